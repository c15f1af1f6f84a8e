//! Send queues without a queue pair (SQ).
//!
//! On Ethernet ports they carry raw packets; on InfiniBand ports the driver has one to see whether write combining works
//! (`core/wc.c`). It executes NOPs and nothing that needs a peer. It is kept as a queue pair without a receive queue, in
//! the same number space.
//!
//! Source: PRM "CREATE_SQ", "MODIFY_SQ", "SQ Context"; mlx5 driver (field use).

use hca_spec::caps::General;
use hca_spec::cmd::{CreateSqIn, ModifySqIn, QuerySqOut};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, Qpc, RqType, ServiceType};
use hca_spec::queue::{SQ_ERROR, SQ_READY, SQ_RESET, Sqc, Wq};

use super::call::{check_uar, done, named, reply, with_pages};
use super::fixture::{Fixture, input};
use super::qp::hold;
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::{Qp, SendOnly};
use crate::object::Kind;

const NO_SQ: Failure = bad_resource("there is no SQ of that number");
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

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = bad_param("CREATE_SQ: the queue must be created in reset (0)");
    const TYPE: Failure = bad_param("CREATE_SQ: wq_type must be 1 (cyclic)");
    const STRIDE: Failure = bad_param("CREATE_SQ: log_wq_stride must be 6");
    const TIS: Failure = bad_param("CREATE_SQ: the adapter has no TIS: its port is InfiniBand");
    const SIZE: Failure = bad_param("CREATE_SQ: log_wq_sz is above log_max_qp_sz");
    const UAR: Failure = bad_resource("CREATE_SQ: the UAR page is not allocated");
    const NO_CQ: Failure = bad_resource("CREATE_SQ: cqn names no CQ");
    const NO_PD: Failure = bad_resource("CREATE_SQ: the protection domain is not allocated");
    const FULL: Failure = no_room("CREATE_SQ: there are 2^log_max_sq queue pairs and send queues");
    let sqc = call.view::<CreateSqIn>()?.sqc();
    let wq = sqc.wq();
    if sqc.get(Sqc::STATE) != SQ_RESET {
        return Err(STATE.got(sqc.get(Sqc::STATE)));
    }
    if sqc.get(Sqc::TIS_LST_SZ) != 0 {
        return Err(TIS.got(sqc.get(Sqc::TIS_LST_SZ)));
    }
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
    ctx.set(Qpc::LOG_SQ_SIZE, log_size).set(Qpc::UAR_PAGE, wq.get(Wq::UAR_PAGE));
    ctx.set(Qpc::DBR_ADDR, wq.get(Wq::DBR_ADDR)).set(Qpc::USER_INDEX, sqc.get(Sqc::USER_INDEX));
    ctx.set(Qpc::LOG_PAGE_SIZE, wq.get(Wq::LOG_WQ_PG_SZ)).set(Qpc::PAGE_OFFSET, wq.get(Wq::PAGE_OFFSET));
    let buffer =
        call.buffer(wq.get(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET), 1 << (log_size + LOG_STRIDE))?;
    let pages = buffer.pages().len();
    let number = fw
        .icm
        .qps
        .insert(Qp {
            ctx,
            buffer,
            send_only: Some(SendOnly { flush_in_error: true, ..SendOnly::default() }),
            ..Qp::default()
        })
        .map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    hold(fw, &ctx, true);
    effects.push(Effect::QpCreated(Qpn(number)));
    named(number)
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = bad_param("MODIFY_SQ: the queue is not in the state that sq_state says");
    const TRANSITION: Failure = bad_param("MODIFY_SQ: there is no such transition");
    let modify = call.view::<ModifySqIn>()?;
    let number = modify.get(ModifySqIn::SQN);
    let qp = find(fw, number)?;
    let (from, now) = (qp.state(), state_of(qp));
    if now != modify.get(ModifySqIn::SQ_STATE) {
        return Err(STATE.of(number).got(now));
    }
    let to = match (now, modify.sqc().get(Sqc::STATE)) {
        (SQ_RESET | SQ_READY, SQ_READY) => QpState::Rts,
        (_, SQ_ERROR) => QpState::Error,
        (_, SQ_RESET) => QpState::Reset,
        (_, other) => return Err(TRANSITION.of(number).got(now << 4 | other)),
    };
    if let Some(qp) = fw.icm.qps.get_mut(number) {
        qp.ctx.set(Qpc::STATE, to as u32);
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
    effects.push(Effect::QpDestroyed(Qpn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let qp = find(fw, call.number())?;
    let mut out = QuerySqOut::new();
    let sqc = out.sqc_mut();
    sqc.set(Sqc::STATE, state_of(qp)).set(Sqc::CQN, qp.ctx.get(Qpc::CQN_SND));
    sqc.set(Sqc::FLUSH_IN_ERROR_EN, 1).set(Sqc::USER_INDEX, qp.ctx.get(Qpc::USER_INDEX));
    let wq = sqc.wq_mut();
    wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, LOG_STRIDE);
    wq.set(Wq::LOG_WQ_SZ, qp.ctx.get(Qpc::LOG_SQ_SIZE)).set(Wq::PD, qp.ctx.get(Qpc::PD));
    wq.set(Wq::UAR_PAGE, qp.ctx.get(Qpc::UAR_PAGE)).set(Wq::DBR_ADDR, qp.ctx.get(Qpc::DBR_ADDR));
    wq.set(Wq::LOG_WQ_PG_SZ, qp.ctx.get(Qpc::LOG_PAGE_SIZE));
    wq.set(Wq::PAGE_OFFSET, qp.ctx.get(Qpc::PAGE_OFFSET));
    Ok(with_pages(reply(&out), &qp.buffer))
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateSqIn::new();
    create.sqc_mut().set(Sqc::CQN, fixture.number(Kind::Cq)).set(Sqc::USER_INDEX, Sqc::USER_INDEX.max());
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
    use crate::commands::testing::{Bench, Connection};
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
        let number = b.put_list(Opcode::CreateSq, &sq(&rc), &[0x4000]).number();
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
        // One family does not find the objects of the other.
        assert_eq!(b.object(Opcode::DestroyQp, number).status(), Status::BadResource);
        assert_eq!(b.object(Opcode::ToRstQp, number).status(), Status::BadResource);
        assert_eq!(b.object(Opcode::DestroySq, rc.qp).status(), Status::BadResource);
        b.ok(Opcode::DestroySq, number);
        assert_eq!(b.fw.icm.cqs.get(rc.cq).map(|c| c.users), Some(2));
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
}
