//! Objects that a command names beside the one it is about, and whether the kernel's are allowed there: XRC domains are
//! shared between programs, so the driver makes them as its own. UAR pages are not among them: a doorbell in another's
//! page can only harm who asked for it.

use hca_spec::bsf::CreatePsvIn;
use hca_spec::cmd::{CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSrqIn, ModifyCqIn, ModifyQpIn};
use hca_spec::dct::{CreateDctIn, Dctc};
use hca_spec::mkc::Mkc;
use hca_spec::qpc::{Qpc, RqType, ServiceType};
use hca_spec::queue::{Cqc, Srqc, Wq};

use crate::commands::row::Call;
use crate::failure::Failure;
use crate::object::{Kind, Object};

/// MODIFY_CQ: bit of modify_field_select that names another EQ.
const MODIFY_CQ_EQ: u32 = 1 << 3;

type Names = Vec<(Object, bool)>;

pub(in crate::commands) fn create_qp(call: &Call<'_>) -> Names {
    call.view::<CreateQpIn>().map(|c| of_qp(c.qpc())).unwrap_or_default()
}

pub(in crate::commands) fn transition(call: &Call<'_>) -> Names {
    call.view::<ModifyQpIn>().map(|c| of_qp(c.qpc())).unwrap_or_default()
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

pub(in crate::commands) fn create_psv(call: &Call<'_>) -> Names {
    one(Kind::Pd, call.view::<CreatePsvIn>().map(|c| c.get(CreatePsvIn::PD)))
}

pub(in crate::commands) fn create_srq(call: &Call<'_>) -> Names {
    call.view::<CreateSrqIn>().map(|c| of_srq(c.srqc())).unwrap_or_default()
}

pub(in crate::commands) fn create_dct(call: &Call<'_>) -> Names {
    call.view::<CreateDctIn>().map(|c| of_dct(c.dctc())).unwrap_or_default()
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
