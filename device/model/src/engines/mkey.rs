//! Protection and translation: from a key and an address to bus addresses.
//!
//! Source: PRM "Memory Translation and Protection"; the checks and their order: IBTA 10.6.3 and
//! 10.6.5 (access control), o10-2.

use hca_firmware::Icm;
use hca_firmware::icm::MemoryKey;
use hca_spec::ids::Mkey;
use hca_spec::mkc::{AccessMode, Mkc};

use crate::ground::region::Pages;
use crate::ground::timing::Place;

mod access;
mod behind;
mod explain;
mod known;
mod walk;
#[cfg(test)]
mod walk_tests;

pub(crate) use access::{Access, Accessor, Fault, Space, Span};
pub(crate) use behind::{Behind, Remains};
pub(crate) use known::KnownPages;
pub(crate) use walk::{PagePart, Steps, TURN_STEPS, Walked};
use walk::{Range, Walk, check_bounds, check_owner, find};

/// What a range under a key is to the units.
pub(crate) fn span(icm: &Icm, key: Mkey, va: u64, len: usize) -> Place {
    let ctx = icm.mkeys.get(key.index()).map(|k| &k.ctx);
    // Indirect keys are looked up at about the cost of a list of pages.
    let listed =
        |c: &&Mkc| !matches!(c.access_mode(), Some(AccessMode::Pa | AccessMode::Memic | AccessMode::SwIcm));
    let page = ctx.filter(listed).map(|c| c.get(Mkc::LOG_PAGE_SIZE));
    Place { key: key.index(), va, len, page }
}

/// Who may do what with a range: the checks that need no translation.
fn admit(icm: &Icm, who: Accessor, range: Range, access: Access) -> Result<&MemoryKey, Fault> {
    let entry = find(icm, range.key)?;
    check_owner(&entry.ctx, range.key, who)?;
    if !access.allowed_by(&entry.ctx) {
        return Err(Fault::Rights(range.key, access));
    }
    Ok(entry)
}

/// Checks a whole message's range before its first packet is taken: key, domain, owner, rights, bounds.
/// What an indirect key names is checked as the packets come.
pub(crate) fn check(
    icm: &Icm,
    who: Accessor,
    key: Mkey,
    va: u64,
    len: usize,
    access: Access,
) -> Result<(), Fault> {
    let range = Range { key, va, len: len as u64 };
    let entry = admit(icm, who, range, access)?;
    match Behind::of(icm, entry, range)? {
        Some(_) => Ok(()),
        None => check_bounds(&entry.ctx, key, va, range.len),
    }
}

/// What a range under a key is.
pub(crate) enum Target<'a> {
    /// Memory.
    Plain(Plain<'a>),
    /// Memory with the signatures of its blocks, or that is encrypted.
    Signed(Behind<'a>),
}

/// Admits an access to `len` bytes at `va` under `key`: key, domain, owner, rights and bounds are checked before anything
/// is touched; what indirect keys name, piece by piece ([`Plain::spans`]).
#[inline]
pub(crate) fn target(
    icm: &Icm,
    who: Accessor,
    key: Mkey,
    va: u64,
    len: u64,
    access: Access,
) -> Result<Target<'_>, Fault> {
    let range = Range { key, va, len };
    let entry = admit(icm, who, range, access)?;
    Ok(match Behind::of(icm, entry, range)? {
        Some(passage) => Target::Signed(Behind::new(icm, who, entry, key, passage)),
        None => Target::Plain(Plain { icm, who, entry, range, access }),
    })
}

/// A range of memory under a key.
pub(crate) struct Plain<'a> {
    icm: &'a Icm,
    who: Accessor,
    entry: &'a MemoryKey,
    range: Range,
    access: Access,
}

impl Plain<'_> {
    /// The page that all of it is in, as far as that is allowed, if the key names memory itself: to be kept with the [`KnownPages`].
    #[inline]
    pub(crate) fn in_page(&self) -> Option<PagePart> {
        walk::page_of(self.entry, self.range, self.access)
    }

    /// Visits its bus addresses in order.
    #[inline]
    pub(crate) fn spans(
        &self,
        steps: &mut Steps,
        visit: &mut dyn FnMut(Span) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut walk = Walk { icm: self.icm, who: self.who, access: self.access, steps };
        walk.key(self.entry, self.range, 0, visit)
    }
}

/// The pages that `len` bytes at `va` are in, to which `who` has that access under a key that translates to memory itself.
/// `None`: the key is of another kind, or the access would fail at one of them.
pub(crate) fn pages_of(
    icm: &Icm,
    who: Accessor,
    key: Mkey,
    va: u64,
    len: u64,
    access: Access,
) -> Option<Pages> {
    match target(icm, who, key, va, len, access).ok()? {
        Target::Plain(plain) => walk::pages_of(plain.entry, plain.range, access),
        Target::Signed(_) => None,
    }
}

/// Whether whoever knows the key may take it out of use: the peer with SEND with invalidate (IBTA
/// 9.4.1.1.3), the queue pair itself with a local invalidate.
///
/// # Errors
/// Why not: it does not exist, is free already, does not allow it, is of another domain or of another
/// queue pair.
pub(crate) fn check_invalidate(icm: &Icm, who: Accessor, key: Mkey) -> Result<(), Fault> {
    let ctx = &find(icm, key)?.ctx;
    check_owner(ctx, key, who)?;
    if ctx.get(Mkc::EN_RINVAL) == 1 { Ok(()) } else { Err(Fault::NotInvalidatable(key)) }
}
