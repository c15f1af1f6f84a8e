//! Receive queues without a queue pair (RQ). Source: PRM "CREATE_RQ", "MODIFY_RQ", "DESTROY_RQ", "QUERY_RQ".

use hca_spec::caps::General;
use hca_spec::command::Status;
use hca_spec::ids::Rqn;
use hca_spec::queue::Wq;
use hca_spec::rq::{CreateRqIn, ModifyRqIn, QueryRqOut, RQ_INLINE, RQ_RMP, Rqc, modify_rq};

use super::call::{done, named, record, reply, with_pages};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use super::strides;
use crate::buffer::Buffer;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::SrqKind;
use crate::object::Kind;
use crate::rq::{Rq, RqSource, RqState, WqKind};

const NO_RQ: Failure = bad_resource("there is no RQ of that number");
/// log2 of the least stride of WQEs with a next segment: that and a scatter entry.
const NEXT_STRIDE: u32 = 5;
/// [`Rqc::TS_FORMAT`]: the adapter's own choice.
const DEFAULT_TIMESTAMPS: u32 = 1;

/// Counts the queue among the users of what it names.
fn hold(fw: &mut Firmware, rq: &Rq, held: bool) {
    let change = |users: &mut u32| *users = if held { *users + 1 } else { users.saturating_sub(1) };
    if let Some(cq) = fw.icm.cqs.get_mut(rq.cqn) {
        change(&mut cq.users);
    }
    if let Some(pd) = fw.icm.pds.get_mut(rq.ctx.wq().get(Wq::PD)) {
        change(&mut pd.users);
    }
    if let RqSource::Pool(number) = rq.source
        && let Some(pool) = fw.icm.srqs.get_mut(number)
    {
        change(&mut pool.users);
    }
}

/// Refuses options that the adapter does not have.
fn check_options(rqc: &Rqc) -> Result<(), Failure> {
    const STATE: Failure = bad_param("CREATE_RQ: state: must be 0: a queue is created in reset");
    const DELAY: Failure = bad_param("CREATE_RQ: delay_drop_en: packets don't wait for receive WQEs");
    const HAIRPIN: Failure = bad_param("CREATE_RQ: hairpin: queues can't feed each other");
    const TIMESTAMPS: Failure = bad_param("CREATE_RQ: ts_format must be 0 (free running) or 1 (default)");
    const SIGNATURE: Failure = bad_param("CREATE_RQ: wq_signature: WQEs with signatures are not supported");
    const SLAVE: Failure = bad_param("CREATE_RQ: cd_slave: queues can't wait for each other");
    let wq = rqc.wq();
    if rqc.get(Rqc::STATE) != RqState::Reset.bits() {
        return Err(STATE.got(rqc.get(Rqc::STATE)));
    }
    if rqc.get(Rqc::DELAY_DROP_EN) == 1 {
        return Err(DELAY);
    }
    if rqc.get(Rqc::HAIRPIN) == 1 {
        return Err(HAIRPIN);
    }
    if rqc.get(Rqc::TS_FORMAT) > DEFAULT_TIMESTAMPS {
        return Err(TIMESTAMPS.got(rqc.get(Rqc::TS_FORMAT)));
    }
    for (field, refusal) in [(Wq::WQ_SIGNATURE, SIGNATURE), (Wq::CD_SLAVE, SLAVE)] {
        if wq.get(field) == 1 {
            return Err(refusal);
        }
    }
    // Not looked at: END_PADDING_MODE, because nothing is written behind a packet, which both modes allow.
    Ok(())
}

/// The queue's own work queue: kind, log2 of the number of WQEs and of their stride, memory.
fn own_queue(fw: &Firmware, call: &Call<'_>, wq: &Wq) -> Result<(WqKind, u32, u32, Buffer), Failure> {
    const TYPE: Failure = bad_param("CREATE_RQ: wq_type is reserved");
    const SIZE: Failure = bad_param("CREATE_RQ: log_wq_sz is above log_max_wq_sz");
    const SMALL: Failure = bad_param("CREATE_RQ: log_wq_stride is below the least stride");
    const LARGE: Failure = bad_param("CREATE_RQ: log_wq_stride is above log_max_stride_sz_rq");
    let kind = wq.get(Wq::WQ_TYPE);
    let kind = WqKind::from_bits(kind).ok_or(TYPE.got(kind))?;
    let (log_size, limit) = (wq.get(Wq::LOG_WQ_SZ), fw.general.get(General::LOG_MAX_WQ_SZ));
    if log_size > limit {
        return Err(SIZE.got(log_size).limit(limit));
    }
    let least = match kind.has_next_segment() {
        true => NEXT_STRIDE,
        false => fw.general.get(General::LOG_MIN_STRIDE_SZ_RQ),
    };
    let (log_stride, most) = (wq.get(Wq::LOG_WQ_STRIDE), fw.general.get(General::LOG_MAX_STRIDE_SZ_RQ));
    if log_stride < least {
        return Err(SMALL.got(log_stride).least(least));
    }
    if log_stride > most {
        return Err(LARGE.got(log_stride).limit(most));
    }
    let buffer =
        call.buffer(wq.get(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET), 1 << (log_size + log_stride))?;
    Ok((kind, log_size, log_stride, buffer))
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const SOURCE: Failure = bad_param("CREATE_RQ: mem_rq_type must be 0 (inline) or 1 (RMP)");
    const NO_POOL: Failure = bad_resource("CREATE_RQ: rmpn: there is no RMP of that number");
    const NO_CQ: Failure = bad_resource("CREATE_RQ: cqn: there is no CQ of that number");
    const NO_PD: Failure = bad_resource("CREATE_RQ: pd: the protection domain is not allocated");
    const FULL: Failure = no_room("CREATE_RQ: there are 2^log_max_rq receive queues");
    let mut ctx = *call.view::<CreateRqIn>()?.rqc();
    check_options(&ctx)?;
    let (source, (kind, log_size, log_stride, buffer), strides) = match ctx.get(Rqc::MEM_RQ_TYPE) {
        RQ_INLINE => {
            let queue = own_queue(fw, call, ctx.wq())?;
            let strides = strides::of(fw, queue.0, ctx.wq())?;
            (RqSource::Own, queue, strides)
        }
        RQ_RMP => {
            let number = ctx.get(Rqc::RMPN);
            let pool = fw.icm.srqs.get(number).filter(|srq| srq.kind == SrqKind::Rmp);
            let pool = pool.ok_or(NO_POOL.got(number))?;
            // The pool's are the WQEs and their domain.
            *ctx.wq_mut() = Wq::new();
            let queue = (WqKind::Linked, pool.log_size, pool.log_stride, Buffer::default());
            (RqSource::Pool(number), queue, pool.strides)
        }
        other => return Err(SOURCE.got(other)),
    };
    let (cqn, pd) = (ctx.get(Rqc::CQN), ctx.wq().get(Wq::PD));
    if fw.icm.cqs.get(cqn).is_none() {
        return Err(NO_CQ.got(cqn));
    }
    // A queue that never gets a WQE needs none.
    if pd != 0 && fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    if fw.icm.rqs.len() >> fw.general.get(General::LOG_MAX_RQ) != 0 {
        return Err(FULL.got(fw.icm.rqs.len()));
    }
    ctx.wq_mut().set(Wq::HW_COUNTER, 0).set(Wq::SW_COUNTER, 0);
    let at = record(ctx.wq().get(Wq::DBR_ADDR));
    ctx.wq_mut().set(Wq::DBR_ADDR, at);
    let pages = buffer.pages().len();
    let rq = Rq {
        ctx,
        buffer,
        log_size,
        log_stride,
        kind,
        strides,
        source,
        vsd: ctx.get(Rqc::VSD) == 1,
        scatter_fcs: ctx.get(Rqc::SCATTER_FCS) == 1,
        flush_in_error: ctx.get(Rqc::FLUSH_IN_ERROR_EN) == 1,
        counter_set: ctx.get(Rqc::COUNTER_SET_ID),
        user_index: ctx.get(Rqc::USER_INDEX),
        cqn,
        state: RqState::Reset,
        users: 0,
    };
    hold(fw, &rq, true);
    let number = fw.icm.rqs.insert(rq).map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    effects.push(Effect::RqCreated(Rqn(number)));
    named(number)
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = bad_param("MODIFY_RQ: the queue is not in the state that rq_state says");
    const NEXT: Failure = bad_param("MODIFY_RQ: state: the state to come is reserved");
    const TRANSITION: Failure =
        bad_param("MODIFY_RQ: state: a queue in error goes to reset before it is ready");
    const BITS: Failure = bad_param("MODIFY_RQ: modify_bitmask has reserved bits");
    const ALL: u64 = modify_rq::VSD | modify_rq::SCATTER_FCS | modify_rq::COUNTER_SET_ID;
    let modify = call.view::<ModifyRqIn>()?;
    let (number, new) = (call.number(), modify.rqc());
    let rq = fw.icm.rqs.get_mut(number).ok_or(NO_RQ.of(number))?;
    let from = rq.state;
    let said = modify.get(ModifyRqIn::RQ_STATE);
    // A driver that has not asked does not know that the queue has failed (Linux resets a work queue of a program so).
    let unaware = (from, said) == (RqState::Error, RqState::Ready.bits());
    if from.bits() != said && !unaware {
        return Err(STATE.of(number).got(modify.get(ModifyRqIn::RQ_STATE)).exactly(from.bits()));
    }
    let to = new.get(Rqc::STATE);
    let to = RqState::from_bits(to).ok_or(NEXT.of(number).got(to))?;
    if (from, to) == (RqState::Error, RqState::Ready) {
        return Err(TRANSITION.of(number));
    }
    let bits = modify.get(ModifyRqIn::MODIFY_BITMASK);
    if bits & !ALL != 0 {
        return Err(BITS.of(number).got(bits));
    }
    if bits & modify_rq::VSD != 0 {
        rq.vsd = new.get(Rqc::VSD) == 1;
    }
    if bits & modify_rq::SCATTER_FCS != 0 {
        rq.scatter_fcs = new.get(Rqc::SCATTER_FCS) == 1;
    }
    if bits & modify_rq::COUNTER_SET_ID != 0 {
        rq.counter_set = new.get(Rqc::COUNTER_SET_ID);
    }
    rq.state = to;
    if to == RqState::Reset {
        rq.ctx.wq_mut().set(Wq::HW_COUNTER, 0).set(Wq::SW_COUNTER, 0);
    }
    effects.push(Effect::RqModified { rqn: Rqn(number), from, to });
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const USED: Failure =
        Failure::new(Status::BadResourceState, "DESTROY_RQ: TIRs or RQTs still name the queue");
    let number = call.number();
    let users = fw.icm.rqs.get(number).ok_or(NO_RQ.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let rq = fw.icm.rqs.remove(number).ok_or(NO_RQ.of(number))?;
    fw.icm.uncount_pages(rq.buffer.pages().len());
    hold(fw, &rq, false);
    effects.push(Effect::RqDestroyed(Rqn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let rq = fw.icm.rqs.get(number).ok_or(NO_RQ.of(number))?;
    let mut out = QueryRqOut::new();
    let rqc = out.rqc_mut();
    *rqc = rq.ctx;
    rqc.set(Rqc::STATE, rq.state.bits()).set(Rqc::VSD, rq.vsd.into());
    rqc.set(Rqc::SCATTER_FCS, rq.scatter_fcs.into()).set(Rqc::COUNTER_SET_ID, rq.counter_set);
    Ok(with_pages(reply(&out), &rq.buffer))
}

/// CREATE_RQ: cyclic.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateRqIn::new();
    let rqc = create.rqc_mut();
    rqc.set(Rqc::CQN, fixture.number(Kind::Cq)).set(Rqc::USER_INDEX, Rqc::USER_INDEX.max());
    rqc.set(Rqc::COUNTER_SET_ID, fixture.number(Kind::QCounter)).set(Rqc::FLUSH_IN_ERROR_EN, 1);
    let wq = rqc.wq_mut();
    wq.set(Wq::WQ_TYPE, WqKind::Cyclic as u32).set(Wq::PD, fixture.number(Kind::Pd));
    wq.set(Wq::LOG_WQ_SZ, Fixture::LOG_RECV).set(Wq::LOG_WQ_STRIDE, Fixture::RECV_STRIDE + 4);
    wq.set(Wq::DBR_ADDR, fixture.record);
    input(create.bytes(), 0, [fixture.queue])
}

/// MODIFY_RQ: from reset to ready.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyRqIn::new();
    modify.set(ModifyRqIn::RQN, fixture.number(Kind::Rq)).set(ModifyRqIn::RQ_STATE, RqState::Reset.bits());
    modify.rqc_mut().set(Rqc::STATE, RqState::Ready.bits());
    modify.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, Nic};
    use crate::rq::Strides;
    use hca_spec::command::Opcode;
    use hca_spec::rq::{RQ_ERROR, RQ_READY, RQ_RESET};

    fn modify(number: u32, from: u32, to: u32) -> ModifyRqIn {
        let mut m = ModifyRqIn::new();
        m.set(ModifyRqIn::RQN, number).set(ModifyRqIn::RQ_STATE, from).rqc_mut().set(Rqc::STATE, to);
        m
    }

    fn query(b: &mut Bench, number: u32) -> QueryRqOut {
        let r = b.object_into(Opcode::QueryRq, number, 0x118);
        assert_eq!(r.status(), Status::Ok);
        QueryRqOut::from_prefix_or_zero(&r.output)
    }

    #[test]
    fn life() {
        let (mut b, nic) = Nic::bench();
        let number = b.rq(&nic);
        assert_eq!(b.effects.last(), Some(&Effect::RqCreated(Rqn(number))));
        let rq = b.fw.icm.rqs.get(number).unwrap();
        assert_eq!((rq.kind, rq.log_size, rq.log_stride, rq.state), (WqKind::Cyclic, 4, 4, RqState::Reset));
        assert_eq!((rq.buffer.at(0), rq.users), (Some((0x4000, 0x100)), 0));
        assert_eq!(b.fw.icm.cqs.get(nic.cq).unwrap().users, 1);
        let mut m = modify(number, RQ_RESET, RQ_READY);
        m.set(ModifyRqIn::MODIFY_BITMASK, modify_rq::VSD | modify_rq::COUNTER_SET_ID);
        m.rqc_mut().set(Rqc::VSD, 1).set(Rqc::COUNTER_SET_ID, 9);
        assert_eq!(b.put(Opcode::ModifyRq, &m, 16).status(), Status::Ok);
        let (rqn, from, to) = (Rqn(number), RqState::Reset, RqState::Ready);
        assert_eq!(b.effects.last(), Some(&Effect::RqModified { rqn, from, to }));
        let rqc = *query(&mut b, number).rqc();
        assert_eq!((rqc.get(Rqc::STATE), rqc.get(Rqc::VSD), rqc.get(Rqc::COUNTER_SET_ID)), (RQ_READY, 1, 9));
        assert_eq!((rqc.get(Rqc::CQN), rqc.wq().get(Wq::LOG_WQ_STRIDE)), (nic.cq, 4));
        b.ok(Opcode::DestroyRq, number);
        assert_eq!(b.effects.last(), Some(&Effect::RqDestroyed(Rqn(number))));
        assert_eq!(b.fw.icm.cqs.get(nic.cq).unwrap().users, 0);
        assert_eq!(b.object(Opcode::DestroyRq, number).status(), Status::BadResource);
    }

    #[test]
    fn states() {
        let (mut b, nic) = Nic::bench();
        let number = b.rq(&nic);
        let states = [(RQ_RESET, RqState::Reset), (RQ_READY, RqState::Ready), (RQ_ERROR, RqState::Error)];
        for (from, is) in states {
            for (to, becomes) in states {
                b.fw.icm.rqs.get_mut(number).unwrap().state = is;
                let legal = (from, to) != (RQ_ERROR, RQ_READY);
                let status = b.put(Opcode::ModifyRq, &modify(number, from, to), 16).status();
                assert_eq!(status == Status::Ok, legal, "{from} to {to}");
                assert_eq!(b.fw.icm.rqs.get(number).unwrap().state, if legal { becomes } else { is });
                for other in states.into_iter().map(|(other, _)| other).filter(|other| *other != from) {
                    b.fw.icm.rqs.get_mut(number).unwrap().state = is;
                    let status = b.put(Opcode::ModifyRq, &modify(number, other, to), 16).status();
                    // The driver does not know yet that the queue failed.
                    let legal = (from, other) == (RQ_ERROR, RQ_READY) && to != RQ_READY;
                    assert_eq!(
                        status == Status::Ok,
                        legal,
                        "{from}, said to be {other}, to {to}: {status:?}"
                    );
                }
            }
        }
        assert_eq!(b.put(Opcode::ModifyRq, &modify(number, RQ_ERROR, 2), 16).status(), Status::BadParam);
        let mut m = modify(number, RQ_ERROR, RQ_RESET);
        m.set(ModifyRqIn::MODIFY_BITMASK, 1);
        assert_eq!(b.put(Opcode::ModifyRq, &m, 16).status(), Status::BadParam);
    }

    /// From the start, or switched on and off while the queue is ready.
    #[test]
    fn check_sequences() {
        let (mut b, nic) = Nic::bench();
        let mut c = nic.rq();
        c.rqc_mut().set(Rqc::SCATTER_FCS, 1);
        let number = b.put_list(Opcode::CreateRq, &c, &[0x4000]).number();
        let told = |b: &mut Bench, number| {
            let told = query(b, number).rqc().get(Rqc::SCATTER_FCS);
            assert_eq!(b.fw.icm.rqs.get(number).unwrap().scatter_fcs, told == 1);
            told
        };
        assert_eq!(told(&mut b, number), 1);
        let number = b.rq(&nic);
        assert_eq!(told(&mut b, number), 0);
        b.put(Opcode::ModifyRq, &modify(number, RQ_RESET, RQ_READY), 16);
        for (bits, on, then) in [(0, 1, 0), (modify_rq::SCATTER_FCS, 1, 1), (modify_rq::SCATTER_FCS, 0, 0)] {
            let mut m = modify(number, RQ_READY, RQ_READY);
            m.set(ModifyRqIn::MODIFY_BITMASK, bits).rqc_mut().set(Rqc::SCATTER_FCS, on);
            assert_eq!(b.put(Opcode::ModifyRq, &m, 16).status(), Status::Ok);
            assert_eq!(told(&mut b, number), then);
        }
    }

    /// Several queues on a pool.
    #[test]
    fn from_a_pool() {
        let (mut b, nic) = Nic::bench();
        let pool = b.rmp(&nic);
        let mut c = nic.rq();
        c.rqc_mut().set(Rqc::MEM_RQ_TYPE, RQ_RMP).set(Rqc::RMPN, pool);
        let queues = [b.put(Opcode::CreateRq, &c, 16).number(), b.put(Opcode::CreateRq, &c, 16).number()];
        let rq = b.fw.icm.rqs.get(queues[0]).unwrap();
        assert_eq!((rq.source, rq.kind, rq.log_size), (RqSource::Pool(pool), WqKind::Linked, 3));
        assert_eq!(b.object(Opcode::DestroyRmp, pool).status(), Status::ResourceBusy);
        queues.into_iter().for_each(|rq| b.ok(Opcode::DestroyRq, rq));
        b.ok(Opcode::DestroyRmp, pool);
        assert_eq!(b.put(Opcode::CreateRq, &c, 16).status(), Status::BadResource);
    }

    fn strides(rqc: &mut Rqc) -> &mut Wq {
        rqc.wq_mut().set(Wq::WQ_TYPE, 2).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::LOG_WQ_SZ, 2)
    }

    #[test]
    fn with_strides() {
        let (mut b, nic) = Nic::bench();
        let mut c = nic.rq();
        strides(c.rqc_mut()).set(Wq::LOG_WQE_STRIDE_SIZE, 7).set(Wq::LOG_WQE_NUM_OF_STRIDES, 7);
        c.rqc_mut().wq_mut().set(Wq::TWO_BYTE_SHIFT_EN, 1);
        let number = b.put_list(Opcode::CreateRq, &c, &[0x4000]).number();
        let rq = b.fw.icm.rqs.get(number).unwrap();
        let right = Strides { log_size: 13, log_count: 16, shifted: true };
        assert_eq!((rq.kind, rq.strides), (WqKind::LinkedStriding, Some(right)));
        assert_eq!((right.size(), right.count(), right.front()), (8192, 65536, 2));
        let cyclic = b.rq(&nic);
        assert!(b.fw.icm.rqs.get(cyclic).unwrap().strides.is_none());
        b.fw.general.set(General::STRIDING_RQ, 0);
        assert_eq!(b.put_list(Opcode::CreateRq, &c, &[0x4000]).status(), Status::BadParam);
    }

    #[test]
    fn refusals() {
        let (mut b, nic) = Nic::bench();
        let mut attempt = |change: fn(&mut Rqc)| {
            let mut c = nic.rq();
            change(c.rqc_mut());
            b.put_list(Opcode::CreateRq, &c, &[0x4000]).status()
        };
        for change in [
            (|r| _ = r.set(Rqc::STATE, 1)) as fn(&mut Rqc),
            |r| _ = r.set(Rqc::DELAY_DROP_EN, 1),
            |r| _ = r.set(Rqc::HAIRPIN, 1),
            |r| _ = r.set(Rqc::TS_FORMAT, 2),
            |r| _ = r.set(Rqc::MEM_RQ_TYPE, 2),
            |r| _ = r.wq_mut().set(Wq::WQ_SIGNATURE, 1),
            |r| _ = r.wq_mut().set(Wq::CD_SLAVE, 1),
            |r| _ = r.wq_mut().set(Wq::TWO_BYTE_SHIFT_EN, 1),
            |r| _ = r.wq_mut().set(Wq::WQ_TYPE, 4),
            // Those with strides have a next segment, too.
            |r| _ = r.wq_mut().set(Wq::WQ_TYPE, 2),
            |r| _ = r.wq_mut().set(Wq::WQ_TYPE, 3),
            |r| _ = strides(r).set(Wq::LOG_WQE_NUM_OF_STRIDES, 8),
            |r| _ = r.wq_mut().set(Wq::LOG_WQ_SZ, 16),
            |r| _ = r.wq_mut().set(Wq::LOG_WQ_STRIDE, 3),
            |r| _ = r.wq_mut().set(Wq::LOG_WQ_STRIDE, 10),
            // A linked list needs room for the next segment.
            |r| _ = r.wq_mut().set(Wq::WQ_TYPE, 0),
        ] {
            assert_eq!(attempt(change), Status::BadParam);
        }
        assert_eq!(attempt(|r| _ = r.set(Rqc::CQN, 0x777)), Status::BadResource);
        assert_eq!(attempt(|r| _ = r.wq_mut().set(Wq::PD, 77)), Status::BadResource);
        assert_eq!(attempt(|r| _ = r.wq_mut().set(Wq::LOG_WQ_SZ, 12)), Status::BadInputLength);
        assert_eq!(attempt(|r| _ = r.wq_mut().set(Wq::PD, 0).set(Wq::LOG_WQ_SZ, 0)), Status::Ok);
        assert_eq!(attempt(|r| _ = r.wq_mut().set(Wq::WQ_TYPE, 0).set(Wq::LOG_WQ_STRIDE, 5)), Status::Ok);
        b.fw.general.set(General::LOG_MAX_RQ, 1);
        assert_eq!(b.put_list(Opcode::CreateRq, &nic.rq(), &[0x4000]).status(), Status::ExceedLimit);
    }
}
