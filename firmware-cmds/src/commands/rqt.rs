//! Tables of receive queues (RQT). Source: PRM "CREATE_RQT", "MODIFY_RQT", "DESTROY_RQT", "QUERY_RQT".

use hca_spec::caps::General;
use hca_spec::command::Status;
use hca_spec::ids::Rqn;
use hca_spec::transport::{CreateRqtIn, MODIFY_RQT_LIST, ModifyRqtIn, QueryRqtOut, RQT_LIST, Rqtc};

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::transport::Rqt;

const NO_RQT: Failure = bad_resource("there is no RQT of that number");
/// Bytes of an entry of the list.
const ENTRY: usize = 4;

/// The numbers of a list as a command brings it: at most `count`, fewer if the input is shorter.
pub(super) fn entries(input: &[u8], count: usize) -> impl Iterator<Item = Rqn> {
    const NUMBER: u32 = 0xff_ffff;
    let (list, _) = input.get(RQT_LIST..).unwrap_or_default().as_chunks::<ENTRY>();
    list.iter().take(count).map(|entry| Rqn(u32::from_be_bytes(*entry) & NUMBER))
}

/// One use more or less of each queue of a list.
fn hold(fw: &mut Firmware, rqns: &[Rqn], held: bool) {
    for rqn in rqns {
        if let Some(rq) = fw.icm.rqs.get_mut(rqn.0) {
            rq.users = if held { rq.users + 1 } else { rq.users.saturating_sub(1) };
        }
    }
}

/// The list that a context announces; at most `max` queues.
fn list(fw: &Firmware, call: &Call<'_>, rqtc: &Rqtc, max: u32) -> Result<Vec<Rqn>, Failure> {
    const TYPE: Failure = bad_param("RQT: list_q_type must be 0 (receive queues)");
    const FORMAT: Failure = bad_param("RQT: rq_vhca_id_format: queues of other adapters can't be named");
    const SIZE: Failure =
        bad_param("RQT: rqt_actual_size must be a power of two and not be above rqt_max_size");
    const FEW: Failure =
        Failure::new(Status::BadInputLength, "RQT: the list is shorter than rqt_actual_size");
    const NO_RQ: Failure = bad_resource("RQT: rq_num: an entry of the list names no RQ");
    if rqtc.get(Rqtc::LIST_Q_TYPE) != 0 {
        return Err(TYPE.got(rqtc.get(Rqtc::LIST_Q_TYPE)));
    }
    if rqtc.get(Rqtc::RQ_VHCA_ID_FORMAT) == 1 {
        return Err(FORMAT);
    }
    let size = rqtc.get(Rqtc::RQT_ACTUAL_SIZE);
    if !size.is_power_of_two() || size > max {
        return Err(SIZE.got(size).limit(max));
    }
    let rqns: Vec<Rqn> = entries(call.input, size as usize).collect();
    if rqns.len() < size as usize {
        return Err(FEW.got(rqns.len() as u64).least(size));
    }
    match rqns.iter().find(|rqn| fw.icm.rqs.get(rqn.0).is_none()) {
        Some(rqn) => Err(NO_RQ.got(rqn.0)),
        None => Ok(rqns),
    }
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const MAX: Failure = bad_param("CREATE_RQT: rqt_max_size is 0 or above 2^log_max_rqt_size");
    const FULL: Failure = no_room("CREATE_RQT: there are 2^log_max_rqt tables");
    let rqtc = call.view::<CreateRqtIn>()?.rqtc();
    let (max, limit) = (rqtc.get(Rqtc::RQT_MAX_SIZE), 1 << fw.general.get(General::LOG_MAX_RQT_SIZE));
    if max == 0 || max > limit {
        return Err(MAX.got(max).limit(limit));
    }
    let rqns = list(fw, call, rqtc, max)?;
    if fw.icm.rqts.len() >> fw.general.get(General::LOG_MAX_RQT) != 0 {
        return Err(FULL.got(fw.icm.rqts.len()));
    }
    hold(fw, &rqns, true);
    fw.icm.rqt_entries += rqns.len() as u64;
    named(fw.icm.rqts.insert(Rqt { rqns, max, users: 0 }).map_err(|_| FULL)?)
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const BITS: Failure = bad_param("MODIFY_RQT: bitmask: it has reserved bits");
    let modify = call.view::<ModifyRqtIn>()?;
    let number = call.number();
    let max = fw.icm.rqts.get(number).ok_or(NO_RQT.of(number))?.max;
    let bits = modify.get(ModifyRqtIn::BITMASK);
    if bits & !MODIFY_RQT_LIST != 0 {
        return Err(BITS.of(number).got(bits));
    }
    if bits & MODIFY_RQT_LIST == 0 {
        return Ok(done());
    }
    let new = list(fw, call, modify.rqtc(), max)?;
    hold(fw, &new, true);
    let entries = new.len() as u64;
    let rqt = fw.icm.rqts.get_mut(number).ok_or(NO_RQT.of(number))?;
    let old = std::mem::replace(&mut rqt.rqns, new);
    hold(fw, &old, false);
    fw.icm.rqt_entries = (fw.icm.rqt_entries + entries).saturating_sub(old.len() as u64);
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure = Failure::new(Status::BadResourceState, "DESTROY_RQT: TIRs still name the RQT");
    let number = call.number();
    let users = fw.icm.rqts.get(number).ok_or(NO_RQT.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let rqt = fw.icm.rqts.remove(number).ok_or(NO_RQT.of(number))?;
    hold(fw, &rqt.rqns, false);
    fw.icm.rqt_entries = fw.icm.rqt_entries.saturating_sub(rqt.rqns.len() as u64);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let rqt = fw.icm.rqts.get(number).ok_or(NO_RQT.of(number))?;
    let mut out = QueryRqtOut::new();
    out.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, rqt.max).set(Rqtc::RQT_ACTUAL_SIZE, rqt.rqns.len() as u32);
    let mut out = reply(&out);
    rqt.rqns.iter().for_each(|rqn| out.extend_from_slice(&rqn.0.to_be_bytes()));
    Ok(out)
}

/// An input with a list of one queue behind.
fn with_queue(fixed: &[u8], fixture: &Fixture) -> Vec<u8> {
    [fixed, &fixture.number(Kind::Rq).to_be_bytes()].concat()
}

/// CREATE_RQT: one queue, and room for four.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateRqtIn::new();
    create.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, 4).set(Rqtc::RQT_ACTUAL_SIZE, 1);
    with_queue(create.bytes(), fixture)
}

pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyRqtIn::new();
    modify.set(ModifyRqtIn::RQTN, fixture.number(Kind::Rqt)).set(ModifyRqtIn::BITMASK, MODIFY_RQT_LIST);
    modify.rqtc_mut().set(Rqtc::RQT_ACTUAL_SIZE, 1);
    with_queue(modify.bytes(), fixture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Answer, Bench, Nic};
    use hca_spec::command::Opcode;
    use hca_spec::put_be32;

    fn put(b: &mut Bench, op: Opcode, fixed: &[u8], rqns: &[u32]) -> Answer {
        let mut bytes = fixed.to_vec();
        put_be32(&mut bytes, 0, (op as u32) << 16);
        rqns.iter().for_each(|rqn| bytes.extend_from_slice(&rqn.to_be_bytes()));
        b.raw(&bytes, 16)
    }

    fn create(b: &mut Bench, max: u32, rqns: &[u32], change: fn(&mut Rqtc)) -> Answer {
        let mut c = CreateRqtIn::new();
        c.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, max).set(Rqtc::RQT_ACTUAL_SIZE, rqns.len() as u32);
        change(c.rqtc_mut());
        put(b, Opcode::CreateRqt, c.bytes(), rqns)
    }

    #[test]
    fn life() {
        let (mut b, nic) = Nic::bench();
        let [one, two] = [b.rq(&nic), b.rq(&nic)];
        let number = create(&mut b, 4, &[one], |_| {}).number();
        let users = |b: &Bench, rqn| b.fw.icm.rqs.get(rqn).unwrap().users;
        assert_eq!((users(&b, one), users(&b, two)), (1, 0));
        let mut m = ModifyRqtIn::new();
        m.set(ModifyRqtIn::RQTN, number).set(ModifyRqtIn::BITMASK, MODIFY_RQT_LIST);
        m.rqtc_mut().set(Rqtc::RQT_ACTUAL_SIZE, 4);
        let more = put(&mut b, Opcode::ModifyRqt, m.bytes(), &[two, two, two, one]);
        assert_eq!(more.status(), Status::Ok, "the table grows up to its maximum");
        assert_eq!((users(&b, one), users(&b, two), b.fw.icm.rqt_entries), (1, 3, 4));
        let r = b.object_into(Opcode::QueryRqt, number, 0x200);
        let out = QueryRqtOut::from_prefix_or_zero(&r.output);
        assert_eq!((out.rqtc().get(Rqtc::RQT_MAX_SIZE), out.rqtc().get(Rqtc::RQT_ACTUAL_SIZE)), (4, 4));
        assert_eq!(r.output.len(), RQT_LIST + 16);
        assert_eq!(entries(&r.output, 9).map(|rqn| rqn.0).collect::<Vec<_>>(), [two, two, two, one]);
        m.rqtc_mut().set(Rqtc::RQT_ACTUAL_SIZE, 8);
        let beyond = put(&mut b, Opcode::ModifyRqt, m.bytes(), &[one; 8]);
        assert_eq!(beyond.status(), Status::BadParam);
        m.set(ModifyRqtIn::BITMASK, 2);
        assert_eq!(put(&mut b, Opcode::ModifyRqt, m.bytes(), &[one; 8]).status(), Status::BadParam);
        m.set(ModifyRqtIn::BITMASK, 0);
        assert_eq!(put(&mut b, Opcode::ModifyRqt, m.bytes(), &[]).status(), Status::Ok, "nothing to change");
        assert_eq!(b.object(Opcode::DestroyRq, two).status(), Status::BadResourceState);
        b.ok(Opcode::DestroyRqt, number);
        assert_eq!((users(&b, two), b.fw.icm.rqt_entries), (0, 0));
        b.ok(Opcode::DestroyRq, two);
    }

    #[test]
    fn refusals() {
        let (mut b, nic) = Nic::bench();
        let rq = b.rq(&nic);
        assert_eq!(create(&mut b, 0, &[rq], |_| {}).status(), Status::BadParam);
        assert_eq!(create(&mut b, 4096, &[rq], |_| {}).status(), Status::BadParam);
        assert_eq!(create(&mut b, 4, &[], |_| {}).status(), Status::BadParam);
        assert_eq!(create(&mut b, 4, &[rq; 3], |_| {}).status(), Status::BadParam, "a power of two");
        assert_eq!(create(&mut b, 1, &[rq; 2], |_| {}).status(), Status::BadParam);
        assert_eq!(create(&mut b, 4, &[rq, 999], |_| {}).status(), Status::BadResource);
        let short = create(&mut b, 4, &[rq], |c| _ = c.set(Rqtc::RQT_ACTUAL_SIZE, 2));
        assert_eq!(short.status(), Status::BadInputLength);
        assert_eq!(create(&mut b, 4, &[rq], |c| _ = c.set(Rqtc::LIST_Q_TYPE, 1)).status(), Status::BadParam);
        let others = create(&mut b, 4, &[rq], |c| _ = c.set(Rqtc::RQ_VHCA_ID_FORMAT, 1));
        assert_eq!(others.status(), Status::BadParam);
        assert_eq!(b.fw.icm.rqs.get(rq).unwrap().users, 0);
        assert_eq!(create(&mut b, 2048, &[rq; 2048], |_| {}).status(), Status::Ok);
        b.fw.general.set(General::LOG_MAX_RQT, 0);
        assert_eq!(create(&mut b, 4, &[rq], |_| {}).status(), Status::ExceedLimit);
    }
}
