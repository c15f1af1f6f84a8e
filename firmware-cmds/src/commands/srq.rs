//! Shared receive queues of three families: basic, XRC, and receive memory pools. Those with tag matching are in [`super::xrq`].
//!
//! Source: PRM "CREATE_SRQ", "CREATE_XRC_SRQ", "CREATE_RMP" and their companions. With interface step 0
//! drivers use the basic family for all, with step 1 pools and XRC SRQs; both are always understood.

use hca_spec::caps::General;
use hca_spec::cmd::{
    CreateRmpIn, CreateSrqIn, MODIFY_RMP_LWM, ModifyRmpIn, ObjectIn, QueryRmpOut, QuerySrqOut,
};
use hca_spec::ids::Srqn;
use hca_spec::queue::{RMP_ERROR, RMP_READY, Rmpc, SRQ_ERROR, Srqc, Wq};
use hca_spec::wqe::DS_UNIT;

use super::call::{done, named, record, reply, with_pages};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use super::strides;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::{Srq, SrqKind, SrqOrder};
use crate::object::Kind;
use crate::rq::WqKind;

const NO_SRQ: Failure = bad_resource("there is no SRQ of that number and kind");
/// ARM_RQ and ARM_XRC_SRQ op_mod: a shared receive queue.
const ARM_SRQ: u32 = 1;
/// ARM_RQ op_mod: a queue with tag matching (mlx5 driver).
const ARM_XRQ: u32 = 2;
const SIZE: Failure = bad_param("SRQ: log_srq_size: the number of WQEs is above the maximum");

/// Counts the SRQ among the users of what it names.
fn hold(fw: &mut Firmware, ctx: &Srqc, held: bool) {
    let change = |users: &mut u32| *users = if held { *users + 1 } else { users.saturating_sub(1) };
    if let Some(pd) = fw.icm.pds.get_mut(ctx.get(Srqc::PD)) {
        change(&mut pd.users);
    }
    if let Some(cq) = fw.icm.cqs.get_mut(ctx.get(Srqc::CQN)) {
        change(&mut cq.users);
    }
    if let Some(xrcd) = fw.icm.xrcds.get_mut(ctx.get(Srqc::XRCD)) {
        change(&mut xrcd.users);
    }
}

pub(super) fn insert(fw: &mut Firmware, mut srq: Srq, effects: &mut Vec<Effect>) -> Outcome {
    const NO_PD: Failure = bad_resource("SRQ: pd: the protection domain is not allocated");
    const FULL: Failure = no_room("SRQ: every SRQ is in use");
    srq.ctx.set(Srqc::DBR_ADDR, record(srq.ctx.get(Srqc::DBR_ADDR)));
    let ctx = srq.ctx;
    let pd = ctx.get(Srqc::PD);
    if fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    let pages = srq.buffer.pages().len();
    let number = fw.icm.srqs.insert(srq).map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    hold(fw, &ctx, true);
    effects.push(Effect::SrqCreated(Srqn(number)));
    named(number)
}

fn create(fw: &mut Firmware, call: &Call<'_>, kind: SrqKind, effects: &mut Vec<Effect>) -> Outcome {
    const NO_XRCD: Failure = bad_resource("SRQ: xrcd: the XRC domain is not allocated");
    const NO_CQ: Failure = bad_resource("SRQ: cqn: there is no CQ of that number");
    let mut ctx = *call.view::<CreateSrqIn>()?.srqc();
    let (log_size, limit) = (ctx.get(Srqc::LOG_SRQ_SIZE), fw.general.get(General::LOG_MAX_SRQ_SZ));
    if log_size > limit {
        return Err(SIZE.got(log_size).limit(limit));
    }
    // A basic SRQ may leave these out; what it names must be there all the same.
    let optional = |number: u32| kind == SrqKind::Basic && number == 0;
    let (xrcd, cqn) = (ctx.get(Srqc::XRCD), ctx.get(Srqc::CQN));
    if !optional(xrcd) && fw.icm.xrcds.get(xrcd).is_none() {
        return Err(NO_XRCD.got(xrcd));
    }
    if !optional(cqn) && fw.icm.cqs.get(cqn).is_none() {
        return Err(NO_CQ.got(cqn));
    }
    let log_stride = ctx.get(Srqc::LOG_RQ_STRIDE) + 4;
    let (page, offset) = (ctx.get(Srqc::LOG_PAGE_SIZE), ctx.get(Srqc::PAGE_OFFSET));
    let buffer = call.buffer(page, offset, 1 << (log_size + log_stride))?;
    ctx.set(Srqc::STATE, 0).set(Srqc::WQE_CNT, 0);
    insert(fw, Srq { kind, ctx, buffer, log_stride, log_size, ..Srq::default() }, effects)
}

pub(super) fn create_basic(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    create(fw, call, SrqKind::Basic, effects)
}

pub(super) fn create_xrc(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    create(fw, call, SrqKind::Xrc, effects)
}

pub(super) fn create_rmp(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const TYPE: Failure = bad_param("CREATE_RMP: wq_type is reserved");
    const BASIC: Failure = bad_param(
        "CREATE_RMP: basic_cyclic_rcv_wqe: only a cyclic pool without strides has WQEs without a next segment",
    );
    const STATE: Failure = bad_param("CREATE_RMP: state: must be 1: a pool is created ready");
    const STRIDE: Failure =
        bad_param("CREATE_RMP: log_wq_stride must be 5 to 11, or 4 to 11 with basic_cyclic_rcv_wqe");
    let rmpc = call.view::<CreateRmpIn>()?.rmpc();
    let wq = rmpc.wq();
    let kind = wq.get(Wq::WQ_TYPE);
    let kind = WqKind::from_bits(kind).ok_or(TYPE.got(kind))?;
    let order = match (kind, rmpc.get(Rmpc::BASIC_CYCLIC_RCV_WQE)) {
        (WqKind::Linked | WqKind::LinkedStriding, 0) => SrqOrder::List,
        (WqKind::Cyclic | WqKind::CyclicStriding, 0) => SrqOrder::Cyclic,
        (WqKind::Cyclic, _) => SrqOrder::BasicCyclic,
        (_, basic) => return Err(BASIC.got(basic)),
    };
    if rmpc.get(Rmpc::STATE) != RMP_READY {
        return Err(STATE.got(rmpc.get(Rmpc::STATE)));
    }
    let strides = strides::of(fw, kind, wq)?;
    let srq = from_work_queue(fw, call, wq, order, STRIDE)?;
    insert(fw, Srq { kind: SrqKind::Rmp, strides, ..srq }, effects)
}

/// The shared receive queue that a command's work queue describes; `stride`: what is said of a stride that there is not.
pub(super) fn from_work_queue(
    fw: &Firmware,
    call: &Call<'_>,
    wq: &Wq,
    order: SrqOrder,
    stride: Failure,
) -> Result<Srq, Failure> {
    /// The largest receive WQE.
    const MAX_STRIDE: u32 = 11;
    // Room for one scatter entry.
    let min_stride = (order.head() + DS_UNIT).ilog2();
    let (log_size, log_stride) = (wq.get(Wq::LOG_WQ_SZ), wq.get(Wq::LOG_WQ_STRIDE));
    let limit = fw.general.get(General::LOG_MAX_WQ_SZ);
    if log_size > limit {
        return Err(SIZE.got(log_size).limit(limit));
    }
    if !(min_stride..=MAX_STRIDE).contains(&log_stride) {
        return Err(stride.got(log_stride));
    }
    let (page, offset) = (wq.get(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET));
    let buffer = call.buffer(page, offset, 1 << (log_size + log_stride))?;
    let mut ctx = Srqc::new();
    ctx.set(Srqc::LOG_SRQ_SIZE, log_size).set(Srqc::LOG_RQ_STRIDE, log_stride - 4);
    ctx.set(Srqc::PD, wq.get(Wq::PD)).set(Srqc::LWM, wq.get(Wq::LWM));
    ctx.set(Srqc::DBR_ADDR, wq.get(Wq::DBR_ADDR));
    ctx.set(Srqc::LOG_PAGE_SIZE, page).set(Srqc::PAGE_OFFSET, offset);
    Ok(Srq { order, ctx, buffer, log_stride, log_size, ..Srq::default() })
}

/// Puts what is known of a shared receive queue into the work queue of an answer.
pub(super) fn tell_queue(srq: &Srq, wq: &mut Wq) {
    let kind = match (srq.order, srq.strides) {
        (SrqOrder::List, None) => WqKind::Linked,
        (SrqOrder::List, Some(_)) => WqKind::LinkedStriding,
        (_, None) => WqKind::Cyclic,
        (_, Some(_)) => WqKind::CyclicStriding,
    };
    wq.set(Wq::WQ_TYPE, kind as u32);
    if let Some(strides) = &srq.strides {
        strides::tell(strides, wq);
    }
    wq.set(Wq::LWM, srq.ctx.get(Srqc::LWM)).set(Wq::PD, srq.ctx.get(Srqc::PD));
    wq.set(Wq::DBR_ADDR, srq.ctx.get(Srqc::DBR_ADDR));
    wq.set(Wq::LOG_WQ_STRIDE, srq.log_stride).set(Wq::LOG_WQ_SZ, srq.log_size);
    wq.set(Wq::LOG_WQ_PG_SZ, srq.ctx.get(Srqc::LOG_PAGE_SIZE));
    wq.set(Wq::PAGE_OFFSET, srq.ctx.get(Srqc::PAGE_OFFSET));
}

/// The command's SRQ, if it is of the command's family.
pub(super) fn find<'a>(fw: &'a Firmware, call: &Call<'_>) -> Result<&'a Srq, Failure> {
    let kind = match call.kind() {
        Some(Kind::XrcSrq) => SrqKind::Xrc,
        Some(Kind::Rmp) => SrqKind::Rmp,
        Some(Kind::Xrq) => SrqKind::Xrq,
        _ => SrqKind::Basic,
    };
    of_kind(fw, call, kind)
}

fn of_kind<'a>(fw: &'a Firmware, call: &Call<'_>, kind: SrqKind) -> Result<&'a Srq, Failure> {
    let number = call.number();
    fw.icm.srqs.get(number).filter(|srq| srq.kind == kind).ok_or(NO_SRQ.of(number))
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const USED: Failure = busy("SRQ: queue pairs still receive from it");
    let number = call.number();
    let users = find(fw, call)?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let srq = fw.icm.srqs.remove(number).ok_or(NO_SRQ.of(number))?;
    fw.icm.uncount_pages(srq.buffer.pages().len());
    hold(fw, &srq.ctx, false);
    effects.push(Effect::SrqDestroyed(Srqn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let srq = find(fw, call)?;
    let out = if srq.kind == SrqKind::Rmp {
        let mut out = QueryRmpOut::new();
        let rmpc = out.rmpc_mut();
        let failed = srq.ctx.get(Srqc::STATE) == SRQ_ERROR;
        rmpc.set(Rmpc::STATE, if failed { RMP_ERROR } else { RMP_READY });
        rmpc.set(Rmpc::BASIC_CYCLIC_RCV_WQE, (srq.order == SrqOrder::BasicCyclic).into());
        tell_queue(srq, rmpc.wq_mut());
        reply(&out)
    } else {
        let mut out = QuerySrqOut::new();
        *out.srqc_mut() = srq.ctx;
        reply(&out)
    };
    Ok(with_pages(out, &srq.buffer))
}

fn set_limit(fw: &mut Firmware, number: u32, lwm: u32, effects: &mut Vec<Effect>) -> Outcome {
    const LIMIT: Failure = bad_param("SRQ: lwm: the limit is above the number of WQEs");
    let srq = fw.icm.srqs.get_mut(number).ok_or(NO_SRQ.of(number))?;
    let wqes = 1u32 << srq.log_size;
    if lwm > wqes {
        return Err(LIMIT.of(number).got(lwm).limit(wqes));
    }
    srq.ctx.set(Srqc::LWM, lwm);
    effects.push(Effect::SrqArmed(Srqn(number)));
    Ok(done())
}

/// ARM_RQ, by whose modifier drivers arm queues with tag matching, too; ARM_XRC_SRQ and ARM_XRQ.
pub(super) fn arm(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const WHAT: Failure = bad_param("ARM_RQ: op_mod must be 1 (SRQ) or 2 (XRQ)");
    match (call.kind(), call.op_mod) {
        (Some(Kind::Xrq), _) | (_, ARM_SRQ) => _ = find(fw, call)?,
        (Some(Kind::Srq), ARM_XRQ) => _ = of_kind(fw, call, SrqKind::Xrq)?,
        (_, other) => return Err(WHAT.got(other)),
    }
    let object = call.view::<ObjectIn>()?;
    let (number, lwm) = (object.get(ObjectIn::NUMBER), object.get(ObjectIn::LWM));
    set_limit(fw, number, lwm, effects)
}

pub(super) fn modify_rmp(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = bad_param("MODIFY_RMP: state: must be 1: a pool is ready and stays so");
    const BITS: Failure = bad_param("MODIFY_RMP: bitmask: it has reserved bits");
    let modify = call.view::<ModifyRmpIn>()?;
    let number = call.number();
    find(fw, call)?;
    let (from, to) = (modify.get(ModifyRmpIn::RMP_STATE), modify.rmpc().get(Rmpc::STATE));
    if from != RMP_READY || to != RMP_READY {
        return Err(STATE.of(number).got(from << 4 | to));
    }
    let bits = modify.get(ModifyRmpIn::BITMASK);
    if bits & !MODIFY_RMP_LWM != 0 {
        return Err(BITS.of(number).got(bits));
    }
    if bits == 0 {
        return Ok(done());
    }
    set_limit(fw, number, modify.rmpc().wq().get(Wq::LWM), effects)
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateSrqIn::new();
    let ctx = create.srqc_mut();
    ctx.set(Srqc::LOG_SRQ_SIZE, Fixture::LOG_RECV).set(Srqc::LOG_RQ_STRIDE, Fixture::RECV_STRIDE);
    ctx.set(Srqc::PD, fixture.number(Kind::Pd)).set(Srqc::DBR_ADDR, fixture.record);
    input(create.bytes(), 0, [fixture.queue])
}

pub(super) fn create_xrc_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateSrqIn::from_prefix_or_zero(&create_template(fixture));
    create.srqc_mut().set(Srqc::XRCD, fixture.number(Kind::Xrcd)).set(Srqc::CQN, fixture.number(Kind::Cq));
    input(create.bytes(), 0, [fixture.queue])
}

pub(super) fn create_rmp_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateRmpIn::new();
    create.rmpc_mut().set(Rmpc::STATE, RMP_READY);
    let wq = create.rmpc_mut().wq_mut();
    wq.set(Wq::LOG_WQ_SZ, Fixture::LOG_RECV).set(Wq::LOG_WQ_STRIDE, Fixture::RECV_STRIDE + 4);
    wq.set(Wq::PD, fixture.number(Kind::Pd)).set(Wq::DBR_ADDR, fixture.record);
    input(create.bytes(), 0, [fixture.queue])
}

pub(super) fn arm_input(number: u32) -> Vec<u8> {
    input(ObjectIn::new().set(ObjectIn::NUMBER, number).set(ObjectIn::LWM, 2).bytes(), ARM_SRQ, [])
}

pub(super) fn arm_template(fixture: &Fixture) -> Vec<u8> {
    arm_input(fixture.number(Kind::Srq))
}

pub(super) fn arm_xrc_template(fixture: &Fixture) -> Vec<u8> {
    arm_input(fixture.number(Kind::XrcSrq))
}

pub(super) fn modify_rmp_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyRmpIn::new();
    modify.set(ModifyRmpIn::RMPN, fixture.number(Kind::Rmp)).set(ModifyRmpIn::RMP_STATE, RMP_READY);
    modify.set(ModifyRmpIn::BITMASK, MODIFY_RMP_LWM);
    modify.rmpc_mut().set(Rmpc::STATE, RMP_READY).wq_mut().set(Wq::LWM, 3);
    modify.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, Connection};
    use hca_spec::cmd::CreateQpIn;
    use hca_spec::command::{Opcode, Status};
    use hca_spec::qpc::{Qpc, RqType, ServiceType};

    fn srq(rc: &Connection, xrcd: u32) -> CreateSrqIn {
        let mut c = CreateSrqIn::new();
        let s = c.srqc_mut();
        s.set(Srqc::LOG_SRQ_SIZE, 6).set(Srqc::LOG_RQ_STRIDE, 1).set(Srqc::PD, rc.pd);
        s.set(Srqc::XRCD, xrcd).set(Srqc::CQN, rc.cq).set(Srqc::DBR_ADDR, 0x9000);
        c
    }

    fn rmp(rc: &Connection) -> CreateRmpIn {
        let mut c = CreateRmpIn::new();
        c.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        let wq = c.rmpc_mut().wq_mut();
        wq.set(Wq::LOG_WQ_SZ, 6).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::PD, rc.pd).set(Wq::DBR_ADDR, 0x9000);
        c
    }

    fn modify_rmp(number: u32, lwm: u32) -> ModifyRmpIn {
        let mut m = ModifyRmpIn::new();
        m.set(ModifyRmpIn::RMPN, number).set(ModifyRmpIn::RMP_STATE, RMP_READY);
        m.set(ModifyRmpIn::BITMASK, MODIFY_RMP_LWM);
        m.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        m.rmpc_mut().wq_mut().set(Wq::LWM, lwm);
        m
    }

    /// The three families, each with its own commands, and only those.
    #[test]
    fn families() {
        use Opcode as Op;
        let mut b = Bench::initialized();
        let rc = b.connection();
        let xrcd = b.alloc(Op::AllocXrcd);
        let basic = b.put_list(Op::CreateSrq, &srq(&rc, 0), &[0x5000]);
        let xrc = b.put_list(Op::CreateXrcSrq, &srq(&rc, xrcd), &[0x5000]);
        let pool = b.put_list(Op::CreateRmp, &rmp(&rc), &[0x5000]);
        let families = [
            (basic.number(), Op::QuerySrq, Op::DestroySrq),
            (xrc.number(), Op::QueryXrcSrq, Op::DestroyXrcSrq),
            (pool.number(), Op::QueryRmp, Op::DestroyRmp),
        ];
        assert_eq!(b.object(Op::DeallocXrcd, xrcd).status(), Status::ResourceBusy);
        for (i, (number, query, destroy)) in families.into_iter().enumerate() {
            let (other, ..) = families[(i + 1) % 3];
            assert_eq!(b.object(destroy, other).status(), Status::BadResource, "of another family");
            let r = b.object_into(query, number, 0x118);
            assert_eq!((r.status(), hca_spec::be64(&r.output, 0x110)), (Status::Ok, 0x5000));
            b.ok(destroy, number);
        }
        b.ok(Op::DeallocXrcd, xrcd);
        assert_eq!(b.fw.icm.pds.get(rc.pd).map(|p| p.users), Some(1), "the queue pair's");
    }

    /// What goes into a pool comes out of it as the driver laid it out.
    #[test]
    fn a_pool_is_read_back() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let c = rmp(&rc);
        let number = b.put_list(Opcode::CreateRmp, &c, &[0x5000]).number();
        assert_eq!(b.put(Opcode::ModifyRmp, &modify_rmp(number, 20), 16).status(), Status::Ok);
        assert_eq!(b.effects.last(), Some(&Effect::SrqArmed(Srqn(number))));
        let r = b.object_into(Opcode::QueryRmp, number, 0x110);
        let mut expected = c;
        for basic in [0, 1] {
            let mut cyclic = rmp(&rc);
            cyclic.rmpc_mut().set(Rmpc::BASIC_CYCLIC_RCV_WQE, basic);
            cyclic.rmpc_mut().wq_mut().set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 5 - basic);
            let number = b.put_list(Opcode::CreateRmp, &cyclic, &[0x5000]).number();
            let r = b.object_into(Opcode::QueryRmp, number, 0x110);
            assert_eq!(r.output[0x20..], cyclic.bytes()[0x20..]);
        }
        expected.rmpc_mut().wq_mut().set(Wq::LWM, 20);
        assert_eq!(r.output[0x20..], expected.bytes()[0x20..]);
        assert_eq!(b.put(Opcode::ModifyRmp, &modify_rmp(number, 65), 16).status(), Status::BadParam);
        let mut m = modify_rmp(number, 1);
        m.set(ModifyRmpIn::RMP_STATE, 0);
        assert_eq!(b.put(Opcode::ModifyRmp, &m, 16).status(), Status::BadParam);
    }

    #[test]
    fn arming() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let number = b.put_list(Opcode::CreateSrq, &srq(&rc, 0), &[0x5000]).number();
        let mut arm = ObjectIn::new();
        arm.set(ObjectIn::NUMBER, number).set(ObjectIn::LWM, 10);
        assert_eq!(b.put(Opcode::ArmRq, &arm, 16).status(), Status::BadParam, "op_mod 0");
        arm.bytes_mut()[7] = 1;
        assert_eq!(b.put(Opcode::ArmXrcSrq, &arm, 16).status(), Status::BadResource, "not XRC");
        assert_eq!(b.put(Opcode::ArmRq, &arm, 16).status(), Status::Ok);
        assert_eq!(b.fw.icm.srqs.get(number).unwrap().ctx.get(Srqc::LWM), 10);
        assert_eq!(b.effects.last(), Some(&Effect::SrqArmed(Srqn(number))));
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let xrcd = b.alloc(Opcode::AllocXrcd);
        let mut try_srq = |op, change: fn(&mut Srqc)| {
            let mut c = srq(&rc, xrcd);
            change(c.srqc_mut());
            b.put_list(op, &c, &[0x5000]).status()
        };
        for op in [Opcode::CreateSrq, Opcode::CreateXrcSrq] {
            assert_eq!(try_srq(op, |_| {}), Status::Ok);
            assert_eq!(try_srq(op, |s| _ = s.set(Srqc::PD, 99)), Status::BadResource);
            assert_eq!(try_srq(op, |s| _ = s.set(Srqc::XRCD, 99)), Status::BadResource);
            assert_eq!(try_srq(op, |s| _ = s.set(Srqc::CQN, 0x99)), Status::BadResource);
            assert_eq!(try_srq(op, |s| _ = s.set(Srqc::LOG_SRQ_SIZE, 10)), Status::BadInputLength);
        }
        assert_eq!(try_srq(Opcode::CreateSrq, |s| _ = s.set(Srqc::XRCD, 0)), Status::Ok);
        assert_eq!(try_srq(Opcode::CreateXrcSrq, |s| _ = s.set(Srqc::XRCD, 0)), Status::BadResource);
        let mut try_rmp = |change: fn(&mut Rmpc)| {
            let mut c = rmp(&rc);
            change(c.rmpc_mut());
            b.put_list(Opcode::CreateRmp, &c, &[0x5000]).status()
        };
        assert_eq!(try_rmp(|_| {}), Status::Ok);
        assert_eq!(try_rmp(|r| _ = r.set(Rmpc::STATE, 0)), Status::BadParam);
        assert_eq!(try_rmp(|r| _ = r.wq_mut().set(Wq::LOG_WQ_STRIDE, 4)), Status::BadParam);
        assert_eq!(try_rmp(|r| _ = r.wq_mut().set(Wq::LOG_WQ_SZ, 16)), Status::BadParam);
        assert_eq!(try_rmp(|r| _ = r.wq_mut().set(Wq::WQ_TYPE, 2)), Status::BadParam, "strides");
        assert_eq!(try_rmp(|r| _ = r.set(Rmpc::BASIC_CYCLIC_RCV_WQE, 1)), Status::BadParam, "a list");
        let short = |r: &mut Rmpc| _ = r.wq_mut().set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 4);
        assert_eq!(try_rmp(short), Status::BadParam, "no room for a scatter entry");
        assert_eq!(try_rmp(|r| _ = r.wq_mut().set(Wq::PD, 99)), Status::BadResource);
    }

    /// A queue pair on an SRQ keeps it; kinds and service types must fit.
    #[test]
    fn queue_pairs_on_shared_queues() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let xrcd = b.alloc(Opcode::AllocXrcd);
        let pool = b.put_list(Opcode::CreateRmp, &rmp(&rc), &[0x5000]).number();
        let xrc = b.put_list(Opcode::CreateXrcSrq, &srq(&rc, xrcd), &[0x5000]).number();
        let mut on = |service, srqn| {
            let mut c = CreateQpIn::new();
            *c.qpc_mut() = rc.qpc(service);
            c.qpc_mut().set(Qpc::RQ_TYPE, RqType::Shared as u32).set(Qpc::SRQN_RMPN, srqn);
            c.qpc_mut().set(Qpc::XRCD, xrcd);
            let r = b.put_list(Opcode::CreateQp, &c, &[0x4000]);
            (r.status(), hca_spec::be32(&r.output, 8))
        };
        assert_eq!(on(ServiceType::Rc, xrc).0, Status::BadResource);
        assert_eq!(on(ServiceType::Xrc, pool).0, Status::BadResource);
        let (status, qp) = on(ServiceType::Rc, pool);
        assert_eq!(status, Status::Ok);
        assert_eq!(on(ServiceType::Xrc, xrc).0, Status::Ok);
        assert_eq!(b.object(Opcode::DestroyRmp, pool).status(), Status::ResourceBusy);
        assert_eq!(b.object(Opcode::DestroyXrcSrq, xrc).status(), Status::ResourceBusy);
        b.ok(Opcode::DestroyQp, qp);
        b.ok(Opcode::DestroyRmp, pool);
    }

    /// Packets take strides of a pool's WQEs: what was asked is told, and only queues of frames are on it.
    #[test]
    fn pools_with_strides() {
        use crate::commands::testing::{Nic, ethernet};
        use crate::rq::{RqSource, Strides};
        use crate::{Config, Personality};
        use hca_spec::dct::{CreateDctIn, Dctc};
        use hca_spec::rq::{CreateRqIn, RQ_RMP, Rqc};

        let (mut b, nic) = Nic::bench();
        let rc = b.connection();
        let mut c = rmp(&rc);
        let wq = c.rmpc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, 3).set(Wq::LOG_WQE_STRIDE_SIZE, 2).set(Wq::TWO_BYTE_SHIFT_EN, 1);
        wq.set(Wq::LOG_WQE_NUM_OF_STRIDES, 1);
        let number = b.put_list(Opcode::CreateRmp, &c, &[0x5000]).number();
        let strides = Some(Strides { log_size: 8, log_count: 10, shifted: true });
        let pool = b.fw.icm.srqs.get(number).unwrap();
        assert_eq!((pool.order, pool.strides), (SrqOrder::Cyclic, strides));
        let r = b.object_into(Opcode::QueryRmp, number, 0x110);
        assert_eq!(QueryRmpOut::from_prefix_or_zero(&r.output).rmpc(), c.rmpc());

        let mut queue = CreateRqIn::new();
        let rqc = queue.rqc_mut();
        rqc.set(Rqc::CQN, nic.cq).set(Rqc::MEM_RQ_TYPE, RQ_RMP).set(Rqc::RMPN, number);
        let rqn = b.put(Opcode::CreateRq, &queue, 16).number();
        let rq = b.fw.icm.rqs.get(rqn).unwrap();
        assert_eq!((rq.source, rq.strides), (RqSource::Pool(number), strides));
        let mut qp = CreateQpIn::new();
        *qp.qpc_mut() = rc.qpc(ServiceType::Rc);
        qp.qpc_mut().set(Qpc::RQ_TYPE, RqType::Shared as u32).set(Qpc::SRQN_RMPN, number);
        assert_eq!(b.put_list(Opcode::CreateQp, &qp, &[0x4000]).status(), Status::BadResource);
        let mut dct = CreateDctIn::new();
        dct.dctc_mut().set(Dctc::PD, rc.pd).set(Dctc::CQN, rc.cq).set(Dctc::SRQN, number);
        dct.dctc_mut().set(Dctc::MTU, 3).set(Dctc::PORT, 1);
        assert_eq!(b.put(Opcode::CreateDct, &dct, 16).status(), Status::BadResource);
        b.ok(Opcode::DestroyRq, rqn);
        b.ok(Opcode::DestroyRmp, number);

        let mut refused = |change: fn(&mut CreateRmpIn)| {
            let mut changed = c;
            change(&mut changed);
            b.put_list(Opcode::CreateRmp, &changed, &[0x5000]).status()
        };
        assert_eq!(refused(|c| _ = c.rmpc_mut().wq_mut().set(Wq::WQ_TYPE, 2)), Status::Ok);
        assert_eq!(refused(|c| _ = c.rmpc_mut().wq_mut().set(Wq::WQ_TYPE, 4)), Status::BadParam);
        assert_eq!(
            refused(|c| _ = c.rmpc_mut().wq_mut().set(Wq::WQ_TYPE, 1)),
            Status::BadParam,
            "the two bytes"
        );
        assert_eq!(refused(|c| _ = c.rmpc_mut().set(Rmpc::BASIC_CYCLIC_RCV_WQE, 1)), Status::BadParam);
        assert_eq!(
            refused(|c| _ = c.rmpc_mut().wq_mut().set(Wq::LOG_WQE_NUM_OF_STRIDES, 10)),
            Status::BadParam,
            "a ConnectX-4"
        );
        b.fw.general.set(General::STRIDING_RQ, 0);
        assert_eq!(b.put_list(Opcode::CreateRmp, &c, &[0x5000]).status(), Status::BadParam);

        let personality = Personality::named("connectx5").unwrap();
        let (mut b, _) = Nic::bench_of(Config { personality, ..ethernet() });
        let rc = b.connection();
        c.rmpc_mut().wq_mut().set(Wq::PD, rc.pd);
        let mut few = c;
        few.rmpc_mut().wq_mut().set(Wq::LOG_WQE_NUM_OF_STRIDES, 10);
        let number = b.put_list(Opcode::CreateRmp, &few, &[0x5000]).number();
        assert_eq!(b.fw.icm.srqs.get(number).unwrap().strides.map(|s| s.count()), Some(8));
        let r = b.object_into(Opcode::QueryRmp, number, 0x110);
        assert_eq!(QueryRmpOut::from_prefix_or_zero(&r.output).rmpc(), few.rmpc());
    }
}
