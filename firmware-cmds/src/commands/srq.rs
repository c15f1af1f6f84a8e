//! Shared receive queues of the three families: basic, XRC, and receive memory pools.
//!
//! Source: PRM "CREATE_SRQ", "CREATE_XRC_SRQ", "CREATE_RMP" and their companions.

use hca_spec::caps::General;
use hca_spec::cmd::{CreateRmpIn, CreateSrqIn, ModifyRmpIn, ObjectIn, ObjectOut, QueryRmpOut, QuerySrqOut};
use hca_spec::command::Opcode;
use hca_spec::ids::Srqn;
use hca_spec::queue::{RMP_READY, Rmpc, Srqc, Wq};

use super::{Outcome, done, put_pages, queue_buffer, view};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::{Srq, SrqKind};

const NO_SRQ: Failure = bad_resource("there is no SRQ of that number and kind");
const NO_PD: Failure = bad_resource("SRQ: the protection domain is not allocated");
const SIZE: Failure = bad_param("SRQ: the size or stride is out of range");

fn insert(fw: &mut Firmware, srq: Srq, effects: &mut Vec<Effect>) -> Outcome {
    let pd = srq.ctx.get(Srqc::PD);
    let cqn = srq.ctx.get(Srqc::CQN);
    let xrcd = srq.ctx.get(Srqc::XRCD);
    let kind = srq.kind;
    let pages = srq.buffer.pages().len();
    if fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD);
    }
    let number = fw.icm.srqs.insert(srq).map_err(|_| no_room("every SRQ is in use"))?;
    fw.icm.count_pages(pages);
    if let Some(pd) = fw.icm.pds.get_mut(pd) {
        pd.users += 1;
    }
    if kind == SrqKind::Xrc {
        if let Some(cq) = fw.icm.cqs.get_mut(cqn) {
            cq.users += 1;
        }
        if let Some(xrcd) = fw.icm.xrcds.get_mut(xrcd) {
            xrcd.users += 1;
        }
    }
    effects.push(Effect::SrqCreated(Srqn(number)));
    Ok(ObjectOut::new().set(ObjectOut::NUMBER, number).bytes().to_vec())
}

fn create(fw: &mut Firmware, input: &[u8], kind: SrqKind, effects: &mut Vec<Effect>) -> Outcome {
    let ctx = *view::<CreateSrqIn>(input)?.srqc();
    let log_size = ctx.get(Srqc::LOG_SRQ_SIZE);
    let log_stride = ctx.get(Srqc::LOG_RQ_STRIDE) + 4;
    if log_size > fw.general.get(General::LOG_MAX_SRQ_SZ) {
        return Err(SIZE);
    }
    let (page, offset) = (ctx.get(Srqc::LOG_PAGE_SIZE), ctx.get(Srqc::PAGE_OFFSET));
    let buffer = queue_buffer(input, page, offset, 1 << (log_size + log_stride))?;
    insert(fw, Srq { kind, ctx, buffer, log_stride, log_size, users: 0 }, effects)
}

pub(super) fn create_basic(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    create(fw, input, SrqKind::Basic, effects)
}

pub(super) fn create_xrc(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const NO_XRCD: Failure = bad_resource("CREATE_XRC_SRQ: the XRC domain is not allocated");
    const NO_CQ: Failure = bad_resource("CREATE_XRC_SRQ: the CQ does not exist");
    let ctx = view::<CreateSrqIn>(input)?.srqc();
    if fw.icm.xrcds.get(ctx.get(Srqc::XRCD)).is_none() {
        return Err(NO_XRCD);
    }
    if fw.icm.cqs.get(ctx.get(Srqc::CQN)).is_none() {
        return Err(NO_CQ);
    }
    create(fw, input, SrqKind::Xrc, effects)
}

pub(super) fn create_rmp(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const CYCLIC: Failure = bad_param("CREATE_RMP: only linked lists are supported");
    const STATE: Failure = bad_param("CREATE_RMP: the pool must be created ready");
    let rmpc = view::<CreateRmpIn>(input)?.rmpc();
    let wq = rmpc.wq();
    if rmpc.get(Rmpc::BASIC_CYCLIC_RCV_WQE) == 1 {
        return Err(CYCLIC);
    }
    if rmpc.get(Rmpc::STATE) != RMP_READY {
        return Err(STATE);
    }
    let (log_size, log_stride) = (wq.get(Wq::LOG_WQ_SZ), wq.get(Wq::LOG_WQ_STRIDE));
    if log_size > fw.general.get(General::LOG_MAX_WQ_SZ) || !(5..=11).contains(&log_stride) {
        return Err(SIZE);
    }
    let (page, offset) = (wq.get(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET));
    let buffer = queue_buffer(input, page, offset, 1 << (log_size + log_stride))?;
    let mut ctx = Srqc::new();
    ctx.set(Srqc::LOG_SRQ_SIZE, log_size).set(Srqc::LOG_RQ_STRIDE, log_stride - 4);
    ctx.set(Srqc::PD, wq.get(Wq::PD))
        .set(Srqc::LWM, wq.get(Wq::LWM))
        .set(Srqc::DBR_ADDR, wq.get(Wq::DBR_ADDR));
    ctx.set(Srqc::LOG_PAGE_SIZE, page).set(Srqc::PAGE_OFFSET, offset);
    insert(fw, Srq { kind: SrqKind::Rmp, ctx, buffer, log_stride, log_size, users: 0 }, effects)
}

fn kind(opcode: Opcode) -> SrqKind {
    match opcode {
        Opcode::DestroyXrcSrq | Opcode::QueryXrcSrq | Opcode::ArmXrcSrq => SrqKind::Xrc,
        Opcode::DestroyRmp | Opcode::QueryRmp | Opcode::ModifyRmp => SrqKind::Rmp,
        _ => SrqKind::Basic,
    }
}

fn find(fw: &Firmware, opcode: Opcode, number: u32) -> Result<&Srq, Failure> {
    fw.icm.srqs.get(number).filter(|s| s.kind == kind(opcode)).ok_or(NO_SRQ)
}

pub(super) fn destroy(fw: &mut Firmware, opcode: Opcode, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const USED: Failure = busy("queue pairs still receive from the SRQ");
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    if find(fw, opcode, number)?.users > 0 {
        return Err(USED);
    }
    if let Some(srq) = fw.icm.srqs.remove(number) {
        if let Some(pd) = fw.icm.pds.get_mut(srq.ctx.get(Srqc::PD)) {
            pd.users = pd.users.saturating_sub(1);
        }
        if srq.kind == SrqKind::Xrc {
            if let Some(cq) = fw.icm.cqs.get_mut(srq.ctx.get(Srqc::CQN)) {
                cq.users = cq.users.saturating_sub(1);
            }
            if let Some(xrcd) = fw.icm.xrcds.get_mut(srq.ctx.get(Srqc::XRCD)) {
                xrcd.users = xrcd.users.saturating_sub(1);
            }
        }
        fw.icm.uncount_pages(srq.buffer.pages().len());
    }
    effects.push(Effect::SrqDestroyed(Srqn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, opcode: Opcode, input: &[u8]) -> Outcome {
    let srq = find(fw, opcode, view::<ObjectIn>(input)?.get(ObjectIn::NUMBER))?;
    let mut bytes = if srq.kind == SrqKind::Rmp {
        let mut out = QueryRmpOut::new();
        let rmpc = out.rmpc_mut();
        rmpc.set(Rmpc::STATE, RMP_READY);
        let wq = rmpc.wq_mut();
        wq.set(Wq::LWM, srq.ctx.get(Srqc::LWM)).set(Wq::PD, srq.ctx.get(Srqc::PD));
        wq.set(Wq::DBR_ADDR, srq.ctx.get(Srqc::DBR_ADDR));
        wq.set(Wq::LOG_WQ_STRIDE, srq.log_stride).set(Wq::LOG_WQ_SZ, srq.log_size);
        wq.set(Wq::LOG_WQ_PG_SZ, srq.ctx.get(Srqc::LOG_PAGE_SIZE));
        wq.set(Wq::PAGE_OFFSET, srq.ctx.get(Srqc::PAGE_OFFSET));
        out.bytes().to_vec()
    } else {
        let mut out = QuerySrqOut::new();
        *out.srqc_mut() = srq.ctx;
        out.bytes().to_vec()
    };
    put_pages(&mut bytes, &srq.buffer);
    Ok(bytes)
}

fn set_limit(fw: &mut Firmware, number: u32, lwm: u32, effects: &mut Vec<Effect>) -> Outcome {
    let srq = fw.icm.srqs.get_mut(number).ok_or(NO_SRQ)?;
    srq.ctx.set(Srqc::LWM, lwm);
    effects.push(Effect::SrqArmed(Srqn(number)));
    Ok(done())
}

pub(super) fn arm(fw: &mut Firmware, opcode: Opcode, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const WHAT: Failure = bad_param("ARM_RQ: op_mod must be 1 (SRQ)");
    let object = view::<ObjectIn>(input)?;
    let op_mod = view::<hca_spec::command::InHeader>(input)?.get(hca_spec::command::InHeader::OP_MOD);
    if op_mod != 1 {
        return Err(WHAT);
    }
    let (number, lwm) = (object.get(ObjectIn::NUMBER), object.get(ObjectIn::LWM));
    find(fw, opcode, number)?;
    set_limit(fw, number, lwm, effects)
}

pub(super) fn modify_rmp(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    let modify = view::<ModifyRmpIn>(input)?;
    let number = modify.get(ModifyRmpIn::RMPN);
    find(fw, Opcode::ModifyRmp, number)?;
    if modify.get(ModifyRmpIn::BITMASK_LWM) == 0 {
        return Ok(done());
    }
    set_limit(fw, number, modify.rmpc().wq().get(Wq::LWM), effects)
}
