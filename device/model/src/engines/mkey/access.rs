//! An access: who makes it, what it wants, why it is refused, and where it goes.

use std::fmt;

use hca_spec::ids::{Mkey, Pd, Qpn};
use hca_spec::mkc::Mkc;

use crate::ground::dma::DmaError;

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
    pub(super) const KINDS: usize = Self::RemoteAtomic as usize + 1;

    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::LocalRead | Self::RemoteRead)
    }

    /// The local right that suffices on a key that only an indirect key names.
    pub(super) fn local_equivalent(self) -> Self {
        if self.writes() { Self::LocalWrite } else { Self::LocalRead }
    }

    pub(super) fn allowed_by(self, ctx: &Mkc) -> bool {
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
