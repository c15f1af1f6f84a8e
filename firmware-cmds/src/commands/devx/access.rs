//! Which commands a user context may send, and which objects it may name.

use hca_spec::bsf::{CreatePsvIn, CreatePsvOut};
use hca_spec::caps::uctx_cap;
use hca_spec::cmd::{
    CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSrqIn, ModifyCqIn, ModifyQpIn, ObjectOut,
    QueryQCounterIn,
};
use hca_spec::command::{InHeader, Opcode, Status};
use hca_spec::dct::{CreateDctIn, Dctc};
use hca_spec::mkc::Mkc;
use hca_spec::qpc::{Qpc, RqType, ServiceType};
use hca_spec::queue::{Cqc, Srqc, Wq};

use crate::commands::{Call, WITH_CONTEXT};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::users::{Held, Kind, Object, SHARED};

/// MODIFY_CQ: bit of modify_field_select that names another EQ.
const MODIFY_CQ_EQ: u32 = 1 << 3;

/// The user context that a command is executed for.
pub(super) fn uid(call: &Call<'_>) -> u16 {
    InHeader::from_prefix_or_zero(call.input).get(InHeader::UID) as u16
}

/// Commands of every user context: objects that programs have, and questions about the adapter.
fn is_for_users(opcode: Opcode) -> bool {
    use Opcode as Op;
    matches!(
        opcode,
        Op::CreateMkey
            | Op::QueryMkey
            | Op::DestroyMkey
            | Op::CreateCq
            | Op::DestroyCq
            | Op::QueryCq
            | Op::ModifyCq
            | Op::CreateQp
            | Op::DestroyQp
            | Op::QueryQp
            | Op::ToErrQp
            | Op::ToRstQp
            | Op::CreateSrq
            | Op::DestroySrq
            | Op::QuerySrq
            | Op::ArmRq
            | Op::CreateXrcSrq
            | Op::DestroyXrcSrq
            | Op::QueryXrcSrq
            | Op::ArmXrcSrq
            | Op::CreateRmp
            | Op::ModifyRmp
            | Op::DestroyRmp
            | Op::QueryRmp
            | Op::CreateDct
            | Op::DestroyDct
            | Op::DrainDct
            | Op::QueryDct
            | Op::ArmDctForKeyViolation
            | Op::AllocPd
            | Op::DeallocPd
            | Op::AllocUar
            | Op::DeallocUar
            | Op::AllocXrcd
            | Op::DeallocXrcd
            | Op::AllocTransportDomain
            | Op::DeallocTransportDomain
            | Op::AllocQCounter
            | Op::DeallocQCounter
            | Op::QueryQCounter
            | Op::CreatePsv
            | Op::DestroyPsv
            | Op::AttachToMcg
            | Op::DetachFromMcg
            | Op::CreateUmem
            | Op::DestroyUmem
            | Op::CreateGeneralObject
            | Op::ModifyGeneralObject
            | Op::QueryGeneralObject
            | Op::DestroyGeneralObject
            | Op::QueryHcaCap
            | Op::QueryAdapter
            | Op::QueryIssi
            | Op::QuerySpecialContexts
            | Op::QueryHcaVportContext
            | Op::QueryHcaVportGid
            | Op::QueryHcaVportPkey
            | Op::QueryVportCounter
            | Op::Nop
    ) || WITH_CONTEXT.contains(&opcode)
}

/// Commands of contexts that may look at the adapter's own resources.
fn is_for_device_owners(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::QueryEq | Opcode::QueryPages)
}

/// Whether the command's user context may send it and may name the objects it names.
pub(super) fn check(fw: &Firmware, call: &Call<'_>) -> Result<(), Failure> {
    const NO_CONTEXT: Failure = bad_param("uid: there is no such user context");
    const NOT_ALLOWED: Failure =
        Failure::new(Status::BadOp, "uid: the command is not for user contexts of these capabilities");
    const TARGET: Failure = bad_resource("uid: the object belongs to another user context");
    const NAMED: Failure = bad_resource("uid: the command names an object of another user context");
    let uid = uid(call);
    if uid == 0 || uid == SHARED {
        return Ok(());
    }
    let context = fw.icm.users.contexts.get(uid.into()).ok_or(NO_CONTEXT.got(uid))?;
    let owner = context.cap & uctx_cap::INTERNAL_DEV_RES != 0;
    if !(is_for_users(call.opcode) || owner && is_for_device_owners(call.opcode)) {
        return Err(NOT_ALLOWED.of(uid));
    }
    let users = &fw.icm.users;
    if let Some(object) = target(call)
        && ![uid, SHARED].contains(&users.owner(object))
        && !(owner && object.0 == Kind::Eq)
    {
        return Err(TARGET.of(object.1).got(users.owner(object)).limit(uid));
    }
    for (object, kernels_too) in names(call).into_iter().filter(|((_, number), _)| *number != 0) {
        let of = users.owner(object);
        if of != uid && of != SHARED && !(kernels_too && of == 0) {
            return Err(NAMED.of(object.1).got(of).limit(uid));
        }
    }
    Ok(())
}

/// The object that a command is about, if it exists already.
fn target(call: &Call<'_>) -> Option<Object> {
    use Opcode as Op;
    let number = call.number().ok()?;
    let kind = match call.opcode {
        Op::DestroyEq | Op::QueryEq => return Some((Kind::Eq, number & 0xff)),
        Op::QueryQCounter => {
            let query = call.view::<QueryQCounterIn>().ok()?;
            return Some((Kind::QCounter, query.get(QueryQCounterIn::COUNTER_SET_ID)));
        }
        Op::DeallocQCounter => return Some((Kind::QCounter, number & 0xff)),
        Op::DestroyCq | Op::QueryCq | Op::ModifyCq => Kind::Cq,
        Op::DestroyQp | Op::QueryQp | Op::ToErrQp | Op::ToRstQp | Op::AttachToMcg | Op::DetachFromMcg => {
            Kind::Qp
        }
        Op::QueryMkey | Op::DestroyMkey => Kind::Mkey,
        Op::DestroySrq | Op::QuerySrq | Op::ArmRq | Op::DestroyXrcSrq | Op::QueryXrcSrq | Op::ArmXrcSrq => {
            Kind::Srq
        }
        Op::DestroyRmp | Op::QueryRmp | Op::ModifyRmp => Kind::Srq,
        Op::DestroyDct | Op::DrainDct | Op::QueryDct | Op::ArmDctForKeyViolation => Kind::Dct,
        Op::DeallocPd => Kind::Pd,
        Op::DeallocXrcd => Kind::Xrcd,
        Op::DeallocTransportDomain => Kind::TransportDomain,
        Op::DeallocUar => Kind::Uar,
        Op::DestroyUmem => Kind::Umem,
        Op::DestroyPsv => Kind::Psv,
        Op::ModifyGeneralObject | Op::QueryGeneralObject | Op::DestroyGeneralObject => Kind::ReservedQpn,
        op if WITH_CONTEXT.contains(&op) => Kind::Qp,
        _ => return None,
    };
    Some((kind, number))
}

/// The kind of object that a command makes.
fn makes(opcode: Opcode) -> Option<Kind> {
    use Opcode as Op;
    Some(match opcode {
        Op::CreateEq => Kind::Eq,
        Op::CreateCq => Kind::Cq,
        Op::CreateQp => Kind::Qp,
        Op::CreateMkey => Kind::Mkey,
        Op::CreateSrq | Op::CreateXrcSrq | Op::CreateRmp => Kind::Srq,
        Op::CreateDct => Kind::Dct,
        Op::AllocPd => Kind::Pd,
        Op::AllocXrcd => Kind::Xrcd,
        Op::AllocTransportDomain => Kind::TransportDomain,
        Op::AllocUar => Kind::Uar,
        Op::AllocQCounter => Kind::QCounter,
        Op::CreateUmem => Kind::Umem,
        Op::CreateGeneralObject => Kind::ReservedQpn,
        _ => return None,
    })
}

fn destroys(opcode: Opcode) -> bool {
    use Opcode as Op;
    matches!(
        opcode,
        Op::DestroyEq
            | Op::DestroyCq
            | Op::DestroyQp
            | Op::DestroyMkey
            | Op::DestroySrq
            | Op::DestroyXrcSrq
            | Op::DestroyRmp
            | Op::DestroyDct
            | Op::DeallocPd
            | Op::DeallocXrcd
            | Op::DeallocTransportDomain
            | Op::DeallocUar
            | Op::DeallocQCounter
            | Op::DestroyUmem
            | Op::DestroyPsv
            | Op::DestroyGeneralObject
    )
}

/// Objects that a command's context names, and whether the kernel's are allowed there: XRC domains are
/// shared between programs, so the driver makes them as its own. UAR pages are not among them: a
/// doorbell in another's page can only harm who asked for it.
fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    use Opcode as Op;
    match call.opcode {
        Op::CreateQp => call.view::<CreateQpIn>().map(|c| of_qp(c.qpc())).unwrap_or_default(),
        op if WITH_CONTEXT.contains(&op) => {
            call.view::<ModifyQpIn>().map(|c| of_qp(c.qpc())).unwrap_or_default()
        }
        Op::CreateCq => {
            let eqn = call.view::<CreateCqIn>().map(|c| c.cqc().get(Cqc::C_EQN)).unwrap_or_default();
            vec![((Kind::Eq, eqn), false)]
        }
        Op::ModifyCq => match call.view::<ModifyCqIn>() {
            Ok(m) if m.get(ModifyCqIn::FIELD_SELECT) & MODIFY_CQ_EQ != 0 && call.op_mod == 0 => {
                vec![((Kind::Eq, m.cqc().get(Cqc::C_EQN)), false)]
            }
            _ => Vec::new(),
        },
        Op::CreateMkey => {
            let pd = call.view::<CreateMkeyIn>().map(|c| c.mkc().get(Mkc::PD)).unwrap_or_default();
            vec![((Kind::Pd, pd), false)]
        }
        Op::CreateRmp => {
            let pd = call.view::<CreateRmpIn>().map(|c| c.rmpc().wq().get(Wq::PD)).unwrap_or_default();
            vec![((Kind::Pd, pd), false)]
        }
        Op::CreatePsv => {
            let pd = call.view::<CreatePsvIn>().map(|c| c.get(CreatePsvIn::PD)).unwrap_or_default();
            vec![((Kind::Pd, pd), false)]
        }
        Op::CreateSrq | Op::CreateXrcSrq => {
            call.view::<CreateSrqIn>().map(|c| of_srq(c.srqc())).unwrap_or_default()
        }
        Op::CreateDct => call.view::<CreateDctIn>().map(|c| of_dct(c.dctc())).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn of_dct(ctx: &Dctc) -> Vec<(Object, bool)> {
    vec![
        ((Kind::Pd, ctx.get(Dctc::PD)), false),
        ((Kind::Cq, ctx.get(Dctc::CQN)), false),
        ((Kind::Srq, ctx.get(Dctc::SRQN)), false),
        ((Kind::QCounter, ctx.get(Dctc::COUNTER_SET_ID)), true),
    ]
}

fn of_srq(ctx: &Srqc) -> Vec<(Object, bool)> {
    vec![
        ((Kind::Pd, ctx.get(Srqc::PD)), false),
        ((Kind::Cq, ctx.get(Srqc::CQN)), false),
        ((Kind::Xrcd, ctx.get(Srqc::XRCD)), true),
    ]
}

fn of_qp(ctx: &Qpc) -> Vec<(Object, bool)> {
    let xrc = ctx.get(Qpc::ST) == ServiceType::Xrc as u32;
    let mut names = vec![
        ((Kind::Pd, ctx.get(Qpc::PD)), false),
        ((Kind::Cq, ctx.get(Qpc::CQN_SND)), false),
        ((Kind::Cq, ctx.get(Qpc::CQN_RCV)), false),
        ((Kind::QCounter, ctx.get(Qpc::COUNTER_SET_ID)), false),
    ];
    if ctx.get(Qpc::RQ_TYPE) == RqType::Shared as u32 {
        // A DC initiator receives nothing: the driver names an SRQ of its own.
        let initiator = ctx.get(Qpc::ST) == ServiceType::Dci as u32;
        names.push(((Kind::Srq, ctx.get(Qpc::SRQN_RMPN)), initiator));
    }
    if xrc {
        names.push(((Kind::Xrcd, ctx.get(Qpc::XRCD)), true));
    }
    names
}

/// The object of a queue or key that a query is about.
pub(super) fn queried(call: &Call<'_>) -> Option<Object> {
    use Opcode as Op;
    match call.opcode {
        Op::QueryQp | Op::QueryCq | Op::QueryMkey | Op::QuerySrq | Op::QueryXrcSrq | Op::QueryRmp => {
            target(call)
        }
        _ => None,
    }
}

/// Keeps the books after a command was executed.
pub(super) fn note(fw: &mut Firmware, call: &Call<'_>, held: Held, output: &[u8]) {
    let users = &mut fw.icm.users;
    if call.opcode == Opcode::CreatePsv {
        let out = CreatePsvOut::from_prefix_or_zero(output);
        let fields = [CreatePsvOut::PSV0, CreatePsvOut::PSV1, CreatePsvOut::PSV2, CreatePsvOut::PSV3];
        for number in fields.map(|field| out.get(field)).into_iter().filter(|number| *number != 0) {
            users.made((Kind::Psv, number), uid(call));
        }
    } else if let Some(kind) = makes(call.opcode) {
        let number = ObjectOut::from_prefix_or_zero(output).get(ObjectOut::NUMBER);
        let object = (kind, number);
        users.made(object, uid(call));
        users.hold(object, held);
    } else if destroys(call.opcode)
        && let Some(object) = target(call)
    {
        users.gone(object);
    } else if held != Held::default()
        && let Some(object) = target(call)
    {
        // A resized CQ: the record stays where it was.
        let record = users.held(object).record;
        users.hold(object, Held { record, ..held });
    }
}
