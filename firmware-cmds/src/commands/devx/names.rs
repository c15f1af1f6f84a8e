//! Objects that a command names beside the one it is about, and whether the kernel's are allowed there: XRC domains are
//! shared between programs, so the driver makes them as its own. UAR pages are not among them: a doorbell in another's
//! page can only harm who asked for it.

use hca_spec::bsf::CreatePsvIn;
use hca_spec::cmd::{
    CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSqIn, CreateSrqIn, ModifyCqIn, ModifyQpExtIn,
    ModifyQpIn, ModifySqIn,
};
use hca_spec::dct::{CreateDctIn, Dctc};
use hca_spec::mkc::Mkc;
use hca_spec::qpc::{Qpc, QpcExt, RqType, ServiceType, opt_95_32};
use hca_spec::queue::{Cqc, Sqc, Srqc, Wq};
use hca_spec::rq::{CreateRqIn, ModifyRqIn, RQ_RMP, Rqc, modify_rq};
use hca_spec::transport::{
    CreateRqtIn, CreateTirIn, CreateTisIn, ModifyTirIn, Rqtc, TIR_DIRECT, Tirc, Tisc, modify_tir,
};
use hca_spec::xrq::{CreateXrqIn, Xrqc};

use crate::commands::general_object::names_of_elements;
use crate::commands::row::Call;
use crate::commands::rqt::entries;
use crate::failure::Failure;
use crate::limits::LOG_MAX_RQT_SIZE;
use crate::object::{Kind, Object};

/// MODIFY_CQ: bit of modify_field_select that names another EQ.
const MODIFY_CQ_EQ: u32 = 1 << 3;

type Names = Vec<(Object, bool)>;

pub(in crate::commands) fn create_qp(call: &Call<'_>) -> Names {
    call.view::<CreateQpIn>().map(|c| of_qp(c.qpc())).unwrap_or_default()
}

pub(in crate::commands) fn transition(call: &Call<'_>) -> Names {
    let Ok(modify) = call.view::<ModifyQpIn>() else { return Vec::new() };
    let mut names = of_qp(modify.qpc());
    if modify.get(ModifyQpIn::OPT_PARAM_MASK_95_32) & opt_95_32::QOS_QUEUE_GROUP_ID != 0 {
        let extended = ModifyQpExtIn::from_prefix_or_zero(call.input);
        let fields = [QpcExt::QOS_QUEUE_GROUP_ID_REQUESTER, QpcExt::QOS_QUEUE_GROUP_ID_RESPONDER];
        names.extend(names_of_elements(fields.map(|field| extended.ext().get(field))));
    }
    names
}

pub(in crate::commands) fn create_cq(call: &Call<'_>) -> Names {
    one(Kind::Eq, call.view::<CreateCqIn>().map(|c| c.cqc().get(Cqc::C_EQN)))
}

pub(in crate::commands) fn modify_cq(call: &Call<'_>) -> Names {
    match call.view::<ModifyCqIn>() {
        Ok(m) if m.get(ModifyCqIn::FIELD_SELECT) & MODIFY_CQ_EQ != 0 && call.op_mod == 0 => {
            one(Kind::Eq, Ok(m.cqc().get(Cqc::C_EQN)))
        }
        _ => Vec::new(),
    }
}

pub(in crate::commands) fn create_mkey(call: &Call<'_>) -> Names {
    one(Kind::Pd, call.view::<CreateMkeyIn>().map(|c| c.mkc().get(Mkc::PD)))
}

pub(in crate::commands) fn create_rmp(call: &Call<'_>) -> Names {
    one(Kind::Pd, call.view::<CreateRmpIn>().map(|c| c.rmpc().wq().get(Wq::PD)))
}

pub(in crate::commands) fn create_xrq(call: &Call<'_>) -> Names {
    let Ok(create) = call.view::<CreateXrqIn>() else { return Vec::new() };
    let ctx = create.xrqc();
    vec![
        (Object::new(Kind::Pd, ctx.wq().get(Wq::PD)), false),
        (Object::new(Kind::Cq, ctx.get(Xrqc::CQN)), false),
    ]
}

pub(in crate::commands) fn create_psv(call: &Call<'_>) -> Names {
    one(Kind::Pd, call.view::<CreatePsvIn>().map(|c| c.get(CreatePsvIn::PD)))
}

pub(in crate::commands) fn create_srq(call: &Call<'_>) -> Names {
    call.view::<CreateSrqIn>().map(|c| of_srq(c.srqc())).unwrap_or_default()
}

pub(in crate::commands) fn create_dct(call: &Call<'_>) -> Names {
    call.view::<CreateDctIn>().map(|c| of_dct(c.dctc())).unwrap_or_default()
}

pub(in crate::commands) fn create_rq(call: &Call<'_>) -> Names {
    call.view::<CreateRqIn>().map(|c| of_rq(c.rqc())).unwrap_or_default()
}

pub(in crate::commands) fn modify_rq(call: &Call<'_>) -> Names {
    match call.view::<ModifyRqIn>() {
        Ok(m) if m.get(ModifyRqIn::MODIFY_BITMASK) & modify_rq::COUNTER_SET_ID != 0 => {
            vec![counter_set(m.rqc())]
        }
        _ => Vec::new(),
    }
}

pub(in crate::commands) fn create_sq(call: &Call<'_>) -> Names {
    call.view::<CreateSqIn>().map(|c| of_sq(c.sqc())).unwrap_or_default()
}

pub(in crate::commands) fn create_tis(call: &Call<'_>) -> Names {
    let Ok(create) = call.view::<CreateTisIn>() else { return Vec::new() };
    vec![
        (Object::new(Kind::TransportDomain, create.tisc().get(Tisc::TRANSPORT_DOMAIN)), false),
        (Object::new(Kind::Pd, create.tisc().get(Tisc::PD)), false),
    ]
}

pub(in crate::commands) fn create_tir(call: &Call<'_>) -> Names {
    call.view::<CreateTirIn>().map(|c| of_tir(c.tirc())).unwrap_or_default()
}

pub(in crate::commands) fn modify_tir(call: &Call<'_>) -> Names {
    match call.view::<ModifyTirIn>() {
        Ok(m) if m.get(ModifyTirIn::BITMASK) & modify_tir::INDIRECT_TABLE != 0 => {
            one(Kind::Rqt, Ok(m.tirc().get(Tirc::INDIRECT_TABLE)))
        }
        _ => Vec::new(),
    }
}

/// CREATE_RQT and MODIFY_RQT: the queues of the list, as many as there can be.
pub(in crate::commands) fn rqt(call: &Call<'_>) -> Names {
    let Ok(create) = call.view::<CreateRqtIn>() else { return Vec::new() };
    let count = create.rqtc().get(Rqtc::RQT_ACTUAL_SIZE).min(1 << LOG_MAX_RQT_SIZE);
    entries(call.input, count as usize).map(|rqn| (Object::new(Kind::Rq, rqn.0), false)).collect()
}

/// An object that has to be the user's own.
fn one(kind: Kind, number: Result<u32, Failure>) -> Names {
    vec![(Object::new(kind, number.unwrap_or_default()), false)]
}

fn of_dct(ctx: &Dctc) -> Vec<(Object, bool)> {
    vec![
        (Object::new(Kind::Pd, ctx.get(Dctc::PD)), false),
        (Object::new(Kind::Cq, ctx.get(Dctc::CQN)), false),
        (Object::new(Kind::Srq, ctx.get(Dctc::SRQN)), false),
        (Object::new(Kind::QCounter, ctx.get(Dctc::COUNTER_SET_ID)), true),
    ]
}

/// A program's queues count in its own set, or in the one that the driver has for the port.
fn counter_set(ctx: &Rqc) -> (Object, bool) {
    (Object::new(Kind::QCounter, ctx.get(Rqc::COUNTER_SET_ID)), true)
}

fn of_rq(ctx: &Rqc) -> Names {
    let mut names = vec![
        (Object::new(Kind::Cq, ctx.get(Rqc::CQN)), false),
        (Object::new(Kind::Pd, ctx.wq().get(Wq::PD)), false),
        counter_set(ctx),
    ];
    if ctx.get(Rqc::MEM_RQ_TYPE) == RQ_RMP {
        names.push((Object::new(Kind::Rmp, ctx.get(Rqc::RMPN)), false));
    }
    names
}

/// MODIFY_SQ: the group.
pub(in crate::commands) fn modify_sq(call: &Call<'_>) -> Names {
    let group = call.view::<ModifySqIn>().map(|m| m.sqc().get(Sqc::QOS_QUEUE_GROUP_ID)).ok();
    names_of_elements(group)
}

fn of_sq(ctx: &Sqc) -> Names {
    let mut names = vec![
        (Object::new(Kind::Cq, ctx.get(Sqc::CQN)), false),
        (Object::new(Kind::Pd, ctx.wq().get(Wq::PD)), false),
    ];
    names.extend(names_of_elements([ctx.get(Sqc::QOS_QUEUE_GROUP_ID)]));
    if ctx.get(Sqc::TIS_LST_SZ) != 0 {
        names.push((Object::new(Kind::Tis, ctx.get(Sqc::TIS_NUM_0)), false));
    }
    names
}

fn of_tir(ctx: &Tirc) -> Names {
    let to = match ctx.get(Tirc::DISP_TYPE) {
        TIR_DIRECT => Object::new(Kind::Rq, ctx.get(Tirc::INLINE_RQN)),
        _ => Object::new(Kind::Rqt, ctx.get(Tirc::INDIRECT_TABLE)),
    };
    vec![(to, false), (Object::new(Kind::TransportDomain, ctx.get(Tirc::TRANSPORT_DOMAIN)), false)]
}

fn of_srq(ctx: &Srqc) -> Vec<(Object, bool)> {
    vec![
        (Object::new(Kind::Pd, ctx.get(Srqc::PD)), false),
        (Object::new(Kind::Cq, ctx.get(Srqc::CQN)), false),
        (Object::new(Kind::Xrcd, ctx.get(Srqc::XRCD)), true),
    ]
}

fn of_qp(ctx: &Qpc) -> Vec<(Object, bool)> {
    let xrc = ctx.get(Qpc::ST) == ServiceType::Xrc as u32;
    let mut names = vec![
        (Object::new(Kind::Pd, ctx.get(Qpc::PD)), false),
        (Object::new(Kind::Cq, ctx.get(Qpc::CQN_SND)), false),
        (Object::new(Kind::Cq, ctx.get(Qpc::CQN_RCV)), false),
        (Object::new(Kind::QCounter, ctx.get(Qpc::COUNTER_SET_ID)), false),
    ];
    if ctx.get(Qpc::RQ_TYPE) == RqType::Shared as u32 {
        // A DC initiator receives nothing: the driver names an SRQ of its own.
        let initiator = ctx.get(Qpc::ST) == ServiceType::Dci as u32;
        names.push((Object::new(Kind::Srq, ctx.get(Qpc::SRQN_RMPN)), initiator));
    }
    if xrc {
        names.push((Object::new(Kind::Xrcd, ctx.get(Qpc::XRCD)), true));
    }
    names
}
