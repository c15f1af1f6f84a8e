//! Send queues without a queue pair (SQ).
//!
//! On Ethernet ports they carry raw packets by a transport interface (TIS); on InfiniBand ports the driver has one to see
//! whether write combining works (`core/wc.c`). One without a TIS executes NOPs and nothing that needs a peer. It is kept as a
//! queue pair without a receive queue, in the same number space.
//!
//! Source: PRM "CREATE_SQ", "MODIFY_SQ", "SQ Context"; mlx5 driver (field use).

use hca_spec::caps::General;
use hca_spec::cmd::{CreateSqIn, ModifySqIn, QuerySqOut};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, Qpc, RqType, ServiceType};
use hca_spec::queue::{SQ_ERROR, SQ_READY, SQ_RESET, Sqc, Wq};

use super::call::{check_uar, done, named, record, reply, with_pages};
use super::fixture::{Fixture, input};
use super::pacing::{has_rates, may_name};
use super::qp::hold;
use super::row::{Call, Outcome};
use super::scheduling::check_group;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::{Qp, SendOnly};
use crate::limits::RATES;
use crate::object::Kind;

const NO_SQ: Failure = bad_resource("there is no SQ of that number");
const RATE: Failure = bad_param("SQ: packet_pacing_rate_limit_index is beyond packet_pacing_rate_table_size");
/// [`ModifySqIn::MODIFY_BITMASK`]: the rate.
const MODIFY_RATE: u64 = 1 << 0;
/// [`ModifySqIn::MODIFY_BITMASK`]: the group.
const MODIFY_GROUP: u64 = 1 << 2;
/// [`Wq::WQ_TYPE`]: cyclic.
const CYCLIC: u32 = 1;
/// [`Wq::LOG_WQ_STRIDE`]: send WQEs are made of 64-byte basic blocks.
const LOG_STRIDE: u32 = 6;

fn find(fw: &Firmware, number: u32) -> Result<&Qp, Failure> {
    fw.icm.qps.get(number).filter(|qp| qp.send_only.is_some()).ok_or(NO_SQ.of(number))
}

fn state_of(qp: &Qp) -> u32 {
    match qp.state() {
        QpState::Reset => SQ_RESET,
        QpState::Error => SQ_ERROR,
        _ => SQ_READY,
    }
}

/// One use more or less of a transport interface.
fn hold_tis(fw: &mut Firmware, tis: Option<u32>, held: bool) {
    if let Some(tis) = tis.and_then(|number| fw.icm.tiss.get_mut(number)) {
        tis.users = if held { tis.users + 1 } else { tis.users.saturating_sub(1) };
    }
}

/// The highest index of a rate. One that is not set is no limit.
fn rates(fw: &Firmware) -> u32 {
    if has_rates(fw) { u32::from(RATES) - 1 } else { 0 }
}

/// Refuses options that the adapter does not have.
fn check_options(fw: &Firmware, sqc: &Sqc) -> Result<(), Failure> {
    const MASTER: Failure = bad_param("CREATE_SQ: cd_master: queues can't wait for each other");
    const HAIRPIN: Failure = bad_param("CREATE_SQ: hairpin: queues can't feed each other");
    const NON_WIRE: Failure = bad_param("CREATE_SQ: non_wire: only what rests within the adapter has it");
    const TIMESTAMPS: Failure = bad_param("CREATE_SQ: ts_format must be 0 (free running) or 1 (default)");
    const TS_CQE: Failure = bad_param("CREATE_SQ: ts_cqe_to_dest_cqn: no second completion tells of times");
    const INLINE: Failure = bad_param("CREATE_SQ: min_wqe_inline_mode is reserved");
    const SIGNATURE: Failure = bad_param("CREATE_SQ: wq_signature: WQEs with signatures are not supported");
    const DEFAULT_TIMESTAMPS: u32 = 1;
    const LAYER_4: u32 = 3;
    for (field, most, refusal) in [
        (Sqc::CD_MASTER, 0, MASTER),
        (Sqc::HAIRPIN, 0, HAIRPIN),
        (Sqc::NON_WIRE, 0, NON_WIRE),
        (Sqc::TS_FORMAT, DEFAULT_TIMESTAMPS, TIMESTAMPS),
        (Sqc::TS_CQE_TO_DEST_CQN, 0, TS_CQE),
        (Sqc::MIN_WQE_INLINE_MODE, LAYER_4, INLINE),
        (Sqc::PACKET_PACING_RATE_LIMIT_INDEX, rates(fw), RATE),
    ] {
        if sqc.get(field) > most {
            return Err(refusal.got(sqc.get(field)).limit(most));
        }
    }
    match sqc.wq().get(Wq::WQ_SIGNATURE) {
        0 => Ok(()),
        _ => Err(SIGNATURE),
    }
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = bad_param("CREATE_SQ: state: must be 0: a queue is created in reset");
    const TYPE: Failure = bad_param("CREATE_SQ: wq_type must be 1 (cyclic)");
    const MANY: Failure = bad_param("CREATE_SQ: tis_lst_sz is above 2^log_max_tis_per_sq");
    const NO_TIS: Failure = bad_resource("CREATE_SQ: tis_num_0 names no TIS");
    const STRIDE: Failure = bad_param("CREATE_SQ: log_wq_stride must be 6");
    const TIS: Failure = bad_param("CREATE_SQ: tis_num_0: the adapter has no TIS, as its port is InfiniBand");
    const SIZE: Failure = bad_param("CREATE_SQ: log_wq_sz is above log_max_qp_sz");
    const UAR: Failure = bad_resource("CREATE_SQ: uar_page: the UAR page is not allocated");
    const NO_CQ: Failure = bad_resource("CREATE_SQ: cqn: there is no CQ of that number");
    const NO_PD: Failure = bad_resource("CREATE_SQ: pd: the protection domain is not allocated");
    const FULL: Failure = no_room("CREATE_SQ: there are 2^log_max_sq queue pairs and send queues");
    let sqc = call.view::<CreateSqIn>()?.sqc();
    let wq = sqc.wq();
    if sqc.get(Sqc::STATE) != SQ_RESET {
        return Err(STATE.got(sqc.get(Sqc::STATE)));
    }
    let tis = match sqc.get(Sqc::TIS_LST_SZ) {
        0 => None,
        count if !fw.is_ethernet() => return Err(TIS.got(count)),
        1 => Some(sqc.get(Sqc::TIS_NUM_0)),
        count => return Err(MANY.got(count).limit(1u32)),
    };
    if let Some(number) = tis {
        fw.icm.tiss.get(number).ok_or(NO_TIS.got(number))?;
    }
    check_options(fw, sqc)?;
    let groups = [sqc.get(Sqc::QOS_QUEUE_GROUP_ID), 0];
    check_group(fw, sqc.get(Sqc::QOS_QUEUE_GROUP_ID))?;
    may_name(fw, call, sqc.get(Sqc::PACKET_PACING_RATE_LIMIT_INDEX))?;
    if wq.get(Wq::WQ_TYPE) != CYCLIC {
        return Err(TYPE.got(wq.get(Wq::WQ_TYPE)));
    }
    if wq.get(Wq::LOG_WQ_STRIDE) != LOG_STRIDE {
        return Err(STRIDE.got(wq.get(Wq::LOG_WQ_STRIDE)));
    }
    // What a queue pair's context can say.
    let (log_size, limit) = (wq.get(Wq::LOG_WQ_SZ), fw.general.get(General::LOG_MAX_QP_SZ).min(15));
    if log_size > limit {
        return Err(SIZE.got(log_size).limit(limit));
    }
    check_uar(fw, wq.get(Wq::UAR_PAGE), UAR)?;
    let (cqn, pd) = (sqc.get(Sqc::CQN), wq.get(Wq::PD));
    if fw.icm.cqs.get(cqn).is_none() {
        return Err(NO_CQ.got(cqn));
    }
    // Drivers without Ethernet have no domain of their own to name.
    if pd != 0 && fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    if fw.icm.qps.len() >> fw.general.get(General::LOG_MAX_SQ) != 0 {
        return Err(FULL.got(fw.icm.qps.len()));
    }
    let mut ctx = Qpc::new();
    ctx.set(Qpc::ST, ServiceType::RegUmr as u32).set(Qpc::RQ_TYPE, RqType::Zero as u32);
    ctx.set(Qpc::STATE, QpState::Reset as u32).set(Qpc::PD, pd).set(Qpc::CQN_SND, cqn);
    ctx.set(Qpc::RLKY, sqc.get(Sqc::RLKY)).set(Qpc::FRE, sqc.get(Sqc::FRE));
    ctx.set(Qpc::LOG_SQ_SIZE, log_size).set(Qpc::UAR_PAGE, wq.get(Wq::UAR_PAGE));
    ctx.set(Qpc::DBR_ADDR, record(wq.get(Wq::DBR_ADDR))).set(Qpc::USER_INDEX, sqc.get(Sqc::USER_INDEX));
    ctx.set(Qpc::LOG_PAGE_SIZE, wq.get(Wq::LOG_WQ_PG_SZ)).set(Qpc::PAGE_OFFSET, wq.get(Wq::PAGE_OFFSET));
    let buffer =
        call.buffer(wq.get(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET), 1 << (log_size + LOG_STRIDE))?;
    let options = SendOnly {
        tis,
        reg_umr: sqc.get(Sqc::REG_UMR) == 1,
        min_inline_mode: sqc.get(Sqc::MIN_WQE_INLINE_MODE) as u8,
        parser: sqc.get(Sqc::ALLOW_SWP) == 1,
        multi_packet: sqc.get(Sqc::ALLOW_MULTI_PKT_SEND_WQE) == 1,
        flush_in_error: sqc.get(Sqc::FLUSH_IN_ERROR_EN) == 1,
        rate_limit: sqc.get(Sqc::PACKET_PACING_RATE_LIMIT_INDEX) as u16,
        timestamps: sqc.get(Sqc::TS_FORMAT) as u8,
    };
    let pages = buffer.pages().len();
    let number = fw
        .icm
        .qps
        .insert(Qp { ctx, buffer, groups, send_only: Some(options), ..Qp::default() })
        .map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    hold(fw, &ctx, true);
    hold_tis(fw, tis, true);
    fw.icm.hold_elements(groups, true);
    effects.push(Effect::QpCreated(Qpn(number)));
    named(number)
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = bad_param("MODIFY_SQ: the queue is not in the state that sq_state says");
    const TRANSITION: Failure = bad_param("MODIFY_SQ: state: there is no such transition");
    const BITS: Failure = bad_param("MODIFY_SQ: modify_bitmask has reserved bits");
    let modify = call.view::<ModifySqIn>()?;
    let number = modify.get(ModifySqIn::SQN);
    let qp = find(fw, number)?;
    let (from, now) = (qp.state(), state_of(qp));
    let said = modify.get(ModifySqIn::SQ_STATE);
    // A driver that has not asked does not know that the queue has failed (Linux resets a raw packet queue pair so).
    let unaware = (now, said) == (SQ_ERROR, SQ_READY) && modify.sqc().get(Sqc::STATE) != SQ_READY;
    if now != said && !unaware {
        return Err(STATE.of(number).got(now));
    }
    let to = match (now, modify.sqc().get(Sqc::STATE)) {
        (SQ_RESET | SQ_READY, SQ_READY) => QpState::Rts,
        (_, SQ_ERROR) => QpState::Error,
        (_, SQ_RESET) => QpState::Reset,
        (_, other) => return Err(TRANSITION.of(number).got(now << 4 | other)),
    };
    let (bits, new) = (modify.get(ModifySqIn::MODIFY_BITMASK), modify.sqc());
    if bits & !(MODIFY_RATE | MODIFY_GROUP) != 0 {
        return Err(BITS.of(number).got(bits));
    }
    let rate = (bits & MODIFY_RATE != 0).then(|| new.get(Sqc::PACKET_PACING_RATE_LIMIT_INDEX));
    if let Some(index) = rate.filter(|index| *index > rates(fw)) {
        return Err(RATE.of(number).got(index).limit(rates(fw)));
    }
    may_name(fw, call, rate.unwrap_or(0))?;
    let group = (bits & MODIFY_GROUP != 0).then(|| new.get(Sqc::QOS_QUEUE_GROUP_ID));
    check_group(fw, group.unwrap_or(0))?;
    if let Some(qp) = fw.icm.qps.get_mut(number) {
        if let (Some(index), Some(options)) = (rate, &mut qp.send_only) {
            options.rate_limit = index as u16;
        }
        qp.ctx.set(Qpc::STATE, to as u32);
        if let Some(group) = group {
            let old = std::mem::replace(&mut qp.groups, [group, 0]);
            fw.icm.hold_elements([group], true);
            fw.icm.hold_elements(old, false);
        }
    }
    effects.push(Effect::QpModified { qpn: Qpn(number), from, to });
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    let number = call.number();
    find(fw, number)?;
    let qp = fw.icm.qps.remove(number).ok_or(NO_SQ.of(number))?;
    fw.icm.uncount_pages(qp.buffer.pages().len());
    hold(fw, &qp.ctx, false);
    hold_tis(fw, qp.send_only.and_then(|options| options.tis), false);
    fw.icm.hold_elements(qp.groups, false);
    effects.push(Effect::QpDestroyed(Qpn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let qp = find(fw, call.number())?;
    let mut out = QuerySqOut::new();
    let sqc = out.sqc_mut();
    sqc.set(Sqc::STATE, state_of(qp)).set(Sqc::CQN, qp.ctx.get(Qpc::CQN_SND));
    sqc.set(Sqc::USER_INDEX, qp.ctx.get(Qpc::USER_INDEX));
    sqc.set(Sqc::RLKY, qp.ctx.get(Qpc::RLKY)).set(Sqc::FRE, qp.ctx.get(Qpc::FRE));
    let options = qp.send_only.unwrap_or_default();
    sqc.set(Sqc::FLUSH_IN_ERROR_EN, options.flush_in_error.into()).set(Sqc::REG_UMR, options.reg_umr.into());
    sqc.set(Sqc::MIN_WQE_INLINE_MODE, options.min_inline_mode.into());
    sqc.set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, options.rate_limit.into());
    sqc.set(Sqc::ALLOW_MULTI_PKT_SEND_WQE, options.multi_packet.into());
    sqc.set(Sqc::ALLOW_SWP, options.parser.into()).set(Sqc::TS_FORMAT, options.timestamps.into());
    sqc.set(Sqc::QOS_QUEUE_GROUP_ID, qp.groups.first().copied().unwrap_or(0));
    if let Some(tis) = options.tis {
        sqc.set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, tis);
    }
    let wq = sqc.wq_mut();
    wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, LOG_STRIDE);
    wq.set(Wq::LOG_WQ_SZ, qp.ctx.get(Qpc::LOG_SQ_SIZE)).set(Wq::PD, qp.ctx.get(Qpc::PD));
    wq.set(Wq::UAR_PAGE, qp.ctx.get(Qpc::UAR_PAGE)).set(Wq::DBR_ADDR, qp.ctx.get(Qpc::DBR_ADDR));
    wq.set(Wq::LOG_WQ_PG_SZ, qp.ctx.get(Qpc::LOG_PAGE_SIZE));
    wq.set(Wq::PAGE_OFFSET, qp.ctx.get(Qpc::PAGE_OFFSET));
    wq.set(Wq::HW_COUNTER, qp.ctx.get(Qpc::HW_SQ_WQEBB_COUNTER));
    wq.set(Wq::SW_COUNTER, qp.ctx.get(Qpc::SW_SQ_WQEBB_COUNTER));
    Ok(with_pages(reply(&out), &qp.buffer))
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateSqIn::new();
    create.sqc_mut().set(Sqc::CQN, fixture.number(Kind::Cq)).set(Sqc::USER_INDEX, Sqc::USER_INDEX.max());
    // An adapter with InfiniBand ports has none.
    let tis = fixture.number(Kind::Tis);
    create.sqc_mut().set(Sqc::TIS_LST_SZ, (tis != 0).into()).set(Sqc::TIS_NUM_0, tis);
    let wq = create.sqc_mut().wq_mut();
    wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, LOG_STRIDE).set(Wq::LOG_WQ_SZ, Fixture::LOG_SEND);
    wq.set(Wq::PD, fixture.number(Kind::Pd)).set(Wq::UAR_PAGE, fixture.number(Kind::Uar));
    wq.set(Wq::DBR_ADDR, fixture.record);
    input(create.bytes(), 0, [fixture.queue])
}

/// MODIFY_SQ: from reset to ready.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifySqIn::new();
    modify.set(ModifySqIn::SQN, fixture.number(Kind::Sq)).set(ModifySqIn::SQ_STATE, SQ_RESET);
    modify.sqc_mut().set(Sqc::STATE, SQ_READY);
    modify.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, Connection, Nic};
    use hca_spec::command::{Opcode, Status};

    fn sq(rc: &Connection) -> CreateSqIn {
        let mut c = CreateSqIn::new();
        c.sqc_mut().set(Sqc::CQN, rc.cq);
        let wq = c.sqc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, LOG_STRIDE).set(Wq::LOG_WQ_SZ, 4);
        wq.set(Wq::UAR_PAGE, rc.uar).set(Wq::DBR_ADDR, 0x9000);
        c
    }

    fn modify(number: u32, from: u32, to: u32) -> ModifySqIn {
        let mut m = ModifySqIn::new();
        m.set(ModifySqIn::SQN, number).set(ModifySqIn::SQ_STATE, from);
        m.sqc_mut().set(Sqc::STATE, to);
        m
    }

    fn bench() -> (Bench, Connection) {
        let mut b = Bench::initialized();
        let rc = b.connection();
        b.fw.config.blueflame = true;
        b.fw.general.set(General::LOG_MAX_SQ, 18);
        (b, rc)
    }

    #[test]
    fn life() {
        let (mut b, rc) = bench();
        let mut create = sq(&rc);
        create.sqc_mut().set(Sqc::TS_FORMAT, 1);
        let number = b.put_list(Opcode::CreateSq, &create, &[0x4000]).number();
        assert_eq!(b.fw.icm.cqs.get(rc.cq).map(|c| c.users), Some(3));
        assert_eq!(b.put(Opcode::ModifySq, &modify(number, SQ_RESET, SQ_READY), 16).status(), Status::Ok);
        let (from, to) = (QpState::Reset, QpState::Rts);
        assert_eq!(b.effects.last(), Some(&Effect::QpModified { qpn: Qpn(number), from, to }));
        assert_eq!(
            b.put(Opcode::ModifySq, &modify(number, SQ_RESET, SQ_READY), 16).status(),
            Status::BadParam
        );
        let r = b.object_into(Opcode::QuerySq, number, QuerySqOut::SIZE);
        let out = QuerySqOut::from_prefix_or_zero(&r.output);
        assert_eq!((out.sqc().get(Sqc::STATE), out.sqc().wq().get(Wq::LOG_WQ_SZ)), (SQ_READY, 4));
        assert_eq!(out.sqc().get(Sqc::TS_FORMAT), 1, "as it was made");
        // One family does not find the objects of the other.
        assert_eq!(b.object(Opcode::DestroyQp, number).status(), Status::BadResource);
        assert_eq!(b.object(Opcode::ToRstQp, number).status(), Status::BadResource);
        assert_eq!(b.object(Opcode::DestroySq, rc.qp).status(), Status::BadResource);
        b.ok(Opcode::DestroySq, number);
        assert_eq!(b.fw.icm.cqs.get(rc.cq).map(|c| c.users), Some(2));
    }

    /// A queue has failed, and its driver does not know: it leads out of the error all the same, and not past the reset.
    #[test]
    fn a_driver_may_not_know_of_an_error() {
        let (mut b, rc) = bench();
        let number = b.put_list(Opcode::CreateSq, &sq(&rc), &[0x4000]).number();
        for (is, said, to, legal) in [
            (SQ_ERROR, SQ_READY, SQ_RESET, true),
            (SQ_ERROR, SQ_READY, SQ_ERROR, true),
            (SQ_ERROR, SQ_READY, SQ_READY, false),
            (SQ_ERROR, SQ_RESET, SQ_RESET, false),
            (SQ_RESET, SQ_READY, SQ_RESET, false),
            (SQ_READY, SQ_ERROR, SQ_RESET, false),
        ] {
            let state = [(SQ_RESET, QpState::Reset), (SQ_READY, QpState::Rts), (SQ_ERROR, QpState::Error)];
            let state =
                state.into_iter().find(|(bits, _)| *bits == is).map(|(_, state)| state as u32).unwrap();
            b.fw.icm.qps.get_mut(number).unwrap().ctx.set(Qpc::STATE, state);
            let status = b.put(Opcode::ModifySq, &modify(number, said, to), 16).status();
            assert_eq!(status == Status::Ok, legal, "{is}, said to be {said}, to {to}: {status:?}");
        }
    }

    #[test]
    fn refusals() {
        let (mut b, rc) = bench();
        let mut attempt = |change: fn(&mut Sqc)| {
            let mut c = sq(&rc);
            change(c.sqc_mut());
            b.put_list(Opcode::CreateSq, &c, &[0x4000]).status()
        };
        assert_eq!(attempt(|s| _ = s.set(Sqc::STATE, SQ_READY)), Status::BadParam);
        assert_eq!(attempt(|s| _ = s.set(Sqc::TIS_LST_SZ, 1)), Status::BadParam);
        assert_eq!(attempt(|s| _ = s.set(Sqc::CQN, 0x777)), Status::BadResource);
        assert_eq!(attempt(|s| _ = s.wq_mut().set(Wq::WQ_TYPE, 0)), Status::BadParam);
        assert_eq!(attempt(|s| _ = s.wq_mut().set(Wq::LOG_WQ_STRIDE, 5)), Status::BadParam);
        assert_eq!(attempt(|s| _ = s.wq_mut().set(Wq::LOG_WQ_SZ, 31)), Status::BadParam);
        assert_eq!(attempt(|s| _ = s.wq_mut().set(Wq::LOG_WQ_SZ, 15)), Status::BadInputLength);
        assert_eq!(attempt(|s| _ = s.wq_mut().set(Wq::PD, 77)), Status::BadResource);
        assert_eq!(attempt(|s| _ = s.wq_mut().set(Wq::UAR_PAGE, 0x777)), Status::BadResource);
        b.fw.config.blueflame = false;
        assert_eq!(b.put_list(Opcode::CreateSq, &sq(&rc), &[0x4000]).status(), Status::BadOp);
    }

    fn ethernet_sq(nic: &Nic, tis: u32) -> CreateSqIn {
        let mut c = CreateSqIn::new();
        c.sqc_mut().set(Sqc::CQN, nic.cq).set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, tis);
        c.sqc_mut().set(Sqc::FLUSH_IN_ERROR_EN, 1).set(Sqc::MIN_WQE_INLINE_MODE, 1);
        let wq = c.sqc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, LOG_STRIDE).set(Wq::LOG_WQ_SZ, 4);
        wq.set(Wq::UAR_PAGE, nic.uar).set(Wq::PD, nic.pd);
        c
    }

    /// On an Ethernet port, without BlueFlame.
    #[test]
    fn by_a_transport_interface() {
        let (mut b, nic) = Nic::bench();
        let tis = b.tis(&nic);
        let number = b.put_list(Opcode::CreateSq, &ethernet_sq(&nic, tis), &[0x4000]).number();
        let options = b.fw.icm.qps.get(number).unwrap().send_only.unwrap();
        assert_eq!((options.tis, options.flush_in_error, options.min_inline_mode), (Some(tis), true, 1));
        let r = b.object_into(Opcode::QuerySq, number, QuerySqOut::SIZE);
        let out = QuerySqOut::from_prefix_or_zero(&r.output);
        assert_eq!((out.sqc().get(Sqc::TIS_LST_SZ), out.sqc().get(Sqc::TIS_NUM_0)), (1, tis));
        assert_eq!(b.object(Opcode::DestroyTis, tis).status(), Status::BadResourceState);
        b.ok(Opcode::DestroySq, number);
        b.ok(Opcode::DestroyTis, tis);
        let gone = b.put_list(Opcode::CreateSq, &ethernet_sq(&nic, tis), &[0x4000]);
        assert_eq!(gone.status(), Status::BadResource);
    }

    #[test]
    fn transitions() {
        let (mut b, nic) = Nic::bench();
        let tis = b.tis(&nic);
        let number = b.put_list(Opcode::CreateSq, &ethernet_sq(&nic, tis), &[0x4000]).number();
        let states = [(SQ_RESET, QpState::Reset), (SQ_READY, QpState::Rts), (SQ_ERROR, QpState::Error)];
        for (from, is) in states {
            for (to, becomes) in states {
                b.fw.icm.qps.get_mut(number).unwrap().ctx.set(Qpc::STATE, is as u32);
                let legal = (from, to) != (SQ_ERROR, SQ_READY);
                let status = b.put(Opcode::ModifySq, &modify(number, from, to), 16).status();
                assert_eq!(status == Status::Ok, legal, "{from} to {to}");
                let state = b.fw.icm.qps.get(number).unwrap().state();
                assert_eq!(state, if legal { becomes } else { is });
            }
        }
        let mut m = modify(number, SQ_ERROR, SQ_RESET);
        m.set(ModifySqIn::MODIFY_BITMASK, MODIFY_RATE)
            .sqc_mut()
            .set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, 128);
        assert_eq!(b.put(Opcode::ModifySq, &m, 16).status(), Status::BadParam);
        m.sqc_mut().set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, 127);
        assert_eq!(b.put(Opcode::ModifySq, &m, 16).status(), Status::Ok);
        let rate = |b: &mut Bench| {
            let r = b.object_into(Opcode::QuerySq, number, 0x118);
            QuerySqOut::from_prefix_or_zero(&r.output).sqc().get(Sqc::PACKET_PACING_RATE_LIMIT_INDEX)
        };
        assert_eq!(rate(&mut b), 127);
        m = modify(number, SQ_RESET, SQ_READY);
        assert_eq!(b.put(Opcode::ModifySq, &m, 16).status(), Status::Ok);
        assert_eq!(rate(&mut b), 127, "it was not named");
        m = modify(number, SQ_READY, SQ_RESET);
        m.set(ModifySqIn::MODIFY_BITMASK, 2);
        assert_eq!(b.put(Opcode::ModifySq, &m, 16).status(), Status::BadParam);
    }

    #[test]
    fn options_that_are_not_there() {
        let (mut b, nic) = Nic::bench();
        let tis = b.tis(&nic);
        for (field, value) in [
            (Sqc::TIS_LST_SZ, 2),
            (Sqc::CD_MASTER, 1),
            (Sqc::HAIRPIN, 1),
            (Sqc::NON_WIRE, 1),
            (Sqc::TS_FORMAT, 2),
            (Sqc::TS_CQE_TO_DEST_CQN, nic.cq),
            (Sqc::MIN_WQE_INLINE_MODE, 4),
            (Sqc::PACKET_PACING_RATE_LIMIT_INDEX, 128),
            (Sqc::QOS_QUEUE_GROUP_ID, 1),
        ] {
            let mut c = ethernet_sq(&nic, tis);
            c.sqc_mut().set(field, value);
            let status = b.put_list(Opcode::CreateSq, &c, &[0x4000]).status();
            assert_eq!(status, Status::BadParam, "{}", field.name());
        }
    }
}
