//! User contexts (DevX): user programs send commands of their own, through the kernel, which writes the
//! number of their context into each.
//!
//! - here: the contexts themselves, user memory;
//! - [`access`]: which commands a context may send and which objects it may name;
//! - [`names`]: further objects that commands name;
//! - [`place`]: queues and keys that lie in user memory.
//!
//! Source: PRM "CREATE_UCTX", "CREATE_UMEM"; the mlx5 driver.

mod access;
pub(super) use access::{is_kernels, is_of_another, uid};
pub(super) mod names;
pub(super) mod place;
#[cfg(test)]
mod tests;

use hca_spec::caps::General;
use hca_spec::cmd::{CreateUctxIn, CreateUctxOut, CreateUmemIn};
use hca_spec::command::Status;

use super::call::{done, named, reply};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome, Placed};
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::{Firmware, State};
use crate::users::{Umem, UserContext};
use hca_spec::mkc::{MTT_READ, MTT_WRITE};

/// Whether a command may be executed for the user context it names, and in what form.
pub(super) fn before(fw: &Firmware, call: &Call<'_>) -> Result<Placed, Failure> {
    access::check(fw, call)?;
    match fw.state {
        State::Initialized => Ok((call.command.user.place)(fw, call)?.unwrap_or_default()),
        _ => Ok(Placed::default()),
    }
}

/// Notes what a command that was executed made or destroyed; takes out of its output what is not for
/// its user.
pub(super) fn after(fw: &mut Firmware, call: &Call<'_>, placed: &Placed, output: &mut [u8]) {
    access::record_ownership(fw, call, placed.held, output);
    place::hide(fw, call, output);
}

pub(super) fn create_context(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const CAP: Failure = bad_param("CREATE_UCTX: cap has bits that uctx_cap does not offer");
    const FULL: Failure = no_room("CREATE_UCTX: every user context is in use");
    let cap = call.view::<CreateUctxIn>()?.get(CreateUctxIn::CAP);
    let offered = fw.general_max.get(General::UCTX_CAP);
    if cap & !offered != 0 {
        return Err(CAP.got(cap).limit(offered));
    }
    let uid = fw.icm.users.contexts.insert(UserContext { cap, objects: 0 }).map_err(|_| FULL)?;
    let mut out = CreateUctxOut::new();
    out.set(CreateUctxOut::UID, uid);
    Ok(reply(&out))
}

pub(super) fn destroy_context(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DESTROY_UCTX: there is no such user context");
    const USED: Failure = busy("DESTROY_UCTX: the user context still has objects");
    let uid = call.number();
    let objects = fw.icm.users.contexts.get(uid).ok_or(NONE.of(uid))?.objects;
    let rates = fw.icm.rates.iter().filter(|rate| u32::from(rate.owner) == uid && uid != 0).count() as u32;
    if objects + rates > 0 {
        return Err(USED.of(uid).got(objects + rates));
    }
    fw.icm.users.contexts.remove(uid);
    Ok(done())
}

pub(super) fn create_umem(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FEW: Failure =
        Failure::new(Status::BadInputLength, "CREATE_UMEM: the page list is shorter than num_of_mtt");
    const EMPTY: Failure = bad_param("CREATE_UMEM: num_of_mtt is 0");
    const OFFSET: Failure = bad_param("CREATE_UMEM: page_offset or log_page_size is beyond the memory");
    const FULL: Failure = no_room("CREATE_UMEM: every user memory is in use");
    let create = call.view::<CreateUmemIn>()?;
    let count = create.get(CreateUmemIn::NUM_OF_MTT);
    if count == 0 {
        return Err(EMPTY);
    }
    let mut list = call.kept.take();
    let bytes = usize::try_from(count).ok().and_then(|n| n.checked_mul(8)).filter(|n| *n <= list.len());
    list.truncate(bytes.ok_or(FEW.got(list.len() as u64 / 8).least(count))?);
    let (shift, offset) =
        (12 + create.get(CreateUmemIn::LOG_PAGE_SIZE), create.get(CreateUmemIn::PAGE_OFFSET));
    let umem = Umem::new(list, shift, offset.into()).ok_or(OFFSET.got(offset).limit(shift))?;
    let pages = umem.pages();
    let id = fw.icm.users.umems.insert(umem).map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    named(id)
}

pub(super) fn destroy_umem(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DESTROY_UMEM: there is no such user memory");
    const USED: Failure = busy("DESTROY_UMEM: queues, doorbell records or keys lie in the memory");
    let id = call.number();
    let users = fw.icm.users.umems.get(id).ok_or(NONE.of(id))?.users;
    if users > 0 {
        return Err(USED.of(id).got(users));
    }
    let umem = fw.icm.users.umems.remove(id).ok_or(NONE.of(id))?;
    fw.icm.uncount_pages(umem.pages());
    Ok(done())
}

/// CREATE_UMEM: two pages that may be read and written.
pub(super) fn create_umem_template(fixture: &Fixture) -> Vec<u8> {
    const PAGE: u64 = 0x1000;
    let mut create = CreateUmemIn::new();
    create.set(CreateUmemIn::NUM_OF_MTT, 2);
    input(create.bytes(), 0, [fixture.queue, fixture.queue + PAGE].map(|page| page | MTT_READ | MTT_WRITE))
}
