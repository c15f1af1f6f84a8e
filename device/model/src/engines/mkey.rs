//! Protection and translation: from a key and an address to bus addresses.
//!
//! Source: PRM "Memory Translation and Protection"; the checks and their order: IBTA 10.6.3 and
//! 10.6.5 (access control), o10-2.

use std::fmt;

use hca_firmware::Icm;
use hca_firmware::icm::MemoryKey;
use hca_spec::ids::{Mkey, Pd, Qpn};
use hca_spec::mkc::{AccessMode, Mkc};

use crate::ground::dma::DmaError;
use crate::ground::region::Pages;
use crate::ground::timing::Place;

mod behind;
mod explain;
mod known;
mod walk;
#[cfg(test)]
mod walk_tests;

pub(crate) use behind::{Behind, Remains};
pub(crate) use known::KnownPages;
pub(crate) use walk::{PagePart, Steps, TURN_STEPS, Walked};
use walk::{Range, Walk, check_bounds, check_owner, find};

/// What an access wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    RemoteAtomic,
}

impl Access {
    /// How many kinds there are.
    const KINDS: usize = Self::RemoteAtomic as usize + 1;

    fn writes(self) -> bool {
        !matches!(self, Self::LocalRead | Self::RemoteRead)
    }

    /// The local right that suffices on a key that only an indirect key names.
    fn local_equivalent(self) -> Self {
        if self.writes() { Self::LocalWrite } else { Self::LocalRead }
    }

    fn allowed_by(self, ctx: &Mkc) -> bool {
        let field = match self {
            Self::LocalRead => Mkc::LR,
            Self::LocalWrite => Mkc::LW,
            Self::RemoteRead => Mkc::RR,
            Self::RemoteWrite => Mkc::RW,
            Self::RemoteAtomic => Mkc::A,
        };
        ctx.get(field) == 1
    }
}

/// Who accesses, and through which protection domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accessor {
    pub(crate) qpn: Qpn,
    pub(crate) pd: Pd,
    /// Its context gives it the reserved local key.
    pub(crate) rlky: bool,
}

/// Why an access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No such key, a wrong variant byte, or the key is free.
    Key(Mkey),
    /// The key belongs to another protection domain.
    Domain(Mkey),
    /// The key belongs to another queue pair.
    Owner(Mkey),
    /// The key is the reserved one, and the queue's context does not give it.
    Reserved(Mkey),
    /// The key does not allow this kind of access.
    Rights(Mkey, Access),
    /// The key does not allow to be invalidated.
    NotInvalidatable(Mkey),
    /// The range is not inside the region.
    Bounds { key: Mkey, va: u64, len: u64 },
    /// No translation is loaded for the address.
    Translation { key: Mkey, va: u64 },
    /// The page is not present, or does not allow the access: the driver may bring it (on-demand paging).
    /// `len`: so many bytes of the access lie under that key from there on.
    Page { key: Mkey, va: u64, len: u64 },
    /// The key's signature part names a signature value that is not there or is of another domain.
    Psv(Mkey),
    /// The key encrypts, and no encryption part was loaded.
    Unencrypted(Mkey),
    /// The key's encryption part names a DEK that is not there, is of another domain, or has another tag.
    DataKey(Mkey),
    /// The key encrypts, and what is written begins inside a block, where nothing came before.
    Block { key: Mkey, offset: u64 },
    /// The bus address is not accessible.
    Dma(DmaError),
}

impl From<DmaError> for Fault {
    fn from(error: DmaError) -> Self {
        Self::Dma(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(k) => write!(f, "key {k} does not exist, is free, or has another variant byte"),
            Self::Domain(k) => write!(f, "key {k} is of another protection domain than the queue pair"),
            Self::Reserved(k) => {
                write!(f, "key {k} is the reserved one, which the queue's context (rlky) denies")
            }
            Self::Owner(k) => write!(f, "key {k} is bound to another queue pair"),
            Self::Rights(k, a) => write!(f, "key {k} does not allow {a:?}"),
            Self::NotInvalidatable(k) => {
                write!(f, "key {k} can't be invalidated by work requests (en_rinval)")
            }
            Self::Bounds { key, va, len } => {
                write!(f, "{len} bytes at {va:#x} are not inside the region of key {key}")
            }
            Self::Translation { key, va } => write!(f, "key {key} has no translation for {va:#x}"),
            Self::Page { key, va, len: _ } => write!(f, "the page of {va:#x} under key {key} is not present"),
            Self::Psv(k) => {
                write!(
                    f,
                    "the signature part of key {k} names a PSV that its protection domain does not have"
                )
            }
            Self::Unencrypted(k) => write!(f, "key {k} encrypts, and no encryption part was loaded into it"),
            Self::DataKey(k) => write!(
                f,
                "the encryption part of key {k} names no DEK of its protection domain, or not with the DEK's tag"
            ),
            Self::Block { key, offset } => {
                write!(f, "what is written at {offset:#x} of key {key} begins inside an encrypted block")
            }
            Self::Dma(e) => write!(f, "{e}"),
        }
    }
}

/// Of what an address is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// The host's memory: bus addresses.
    Host,
    /// The adapter's own: offsets in BAR0.
    Device,
    /// Its memory for entries of flow tables.
    Icm,
}

/// A piece of contiguous addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) space: Space,
    pub(crate) iova: u64,
    pub(crate) len: usize,
}

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
