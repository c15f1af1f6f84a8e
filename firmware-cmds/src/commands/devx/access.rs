//! Which commands a user context may send, which objects it may name, and whose objects are.

use hca_spec::caps::uctx_cap;
use hca_spec::command::{InHeader, Status};

use crate::commands::row::{Action, Call, Right};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::object::{Kind, Object};
use crate::users::{Held, SHARED};

/// The user context that a command is executed for.
pub(in crate::commands) fn uid(call: &Call<'_>) -> u16 {
    InHeader::from_prefix_or_zero(call.input).get(InHeader::UID) as u16
}

/// Whether the command's user context may send it and may name the objects it names.
pub(super) fn check(fw: &Firmware, call: &Call<'_>) -> Result<(), Failure> {
    const NO_CONTEXT: Failure = bad_param("uid: there is no such user context");
    const NOT_ALLOWED: Failure =
        Failure::new(Status::BadOp, "uid: the command is not for user contexts of these capabilities");
    const TARGET: Failure = bad_resource("uid: the object belongs to another user context");
    const NAMED: Failure = bad_resource("uid: the command names an object of another user context");
    let uid = uid(call);
    if is_kernels(call) {
        return Ok(());
    }
    let context = fw.icm.users.contexts.get(uid.into()).ok_or(NO_CONTEXT.got(uid))?;
    let owner = context.cap & uctx_cap::INTERNAL_DEV_RES != 0;
    let tools = context.cap & uctx_cap::TOOLS_RESOURCES != 0;
    let allowed = match call.command.user.right {
        _ if tools && call.command.user.tools => true,
        Right::Kernel => false,
        Right::DeviceOwners => owner,
        Right::Users => true,
    };
    // Tools look at everybody's objects. By inference: fwctl lets them ask for contexts, and makes none itself.
    let looks = tools && call.command.object.is_some_and(|object| object.action == Action::Query);
    if !allowed {
        return Err(NOT_ALLOWED.of(uid));
    }
    let users = &fw.icm.users;
    if let Some(object) = call.target()
        && is_of_another(fw, call, object)
        && !(owner && object.kind == Kind::Eq)
        && !looks
    {
        return Err(TARGET.of(object.number).got(users.owner(object)).exactly(uid));
    }
    let names = (call.command.user.names)(call);
    for (object, kernels_too) in names.into_iter().filter(|(object, _)| object.number != 0) {
        let of = users.owner(object);
        if of != uid && of != SHARED && !(kernels_too && of == 0) {
            return Err(NAMED.of(object.number).got(of).exactly(uid));
        }
    }
    Ok(())
}

/// Whether the driver itself sends a command, and no user's context.
pub(in crate::commands) fn is_kernels(call: &Call<'_>) -> bool {
    [0, SHARED].contains(&uid(call))
}

/// Whether an object is neither the context's that sends a command nor everybody's. The driver's command is about all of them.
pub(in crate::commands) fn is_of_another(fw: &Firmware, call: &Call<'_>, object: Object) -> bool {
    !is_kernels(call) && ![uid(call), SHARED].contains(&fw.icm.users.owner(object))
}

/// Keeps the books after a command was executed.
pub(super) fn record_ownership(fw: &mut Firmware, call: &Call<'_>, held: Held, output: &[u8]) {
    let users = &mut fw.icm.users;
    let Some(subject) = call.command.object else { return };
    match (subject.action, call.target()) {
        (Action::Create, _) => {
            for number in call.command.made(output) {
                let object = Object::new(subject.kind, number);
                users.made(object, uid(call));
                users.hold(object, held);
            }
        }
        (Action::Destroy, Some(object)) => users.gone(object),
        (Action::Change, Some(object)) if held != Held::default() => {
            // A resized CQ: the record stays where it was.
            let record = users.held(object).record;
            users.hold(object, Held { record, ..held });
        }
        _ => {}
    }
}
