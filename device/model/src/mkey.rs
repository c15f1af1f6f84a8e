//! Protection and translation: from a key and an address to bus addresses.
//!
//! Source: PRM "Memory Translation and Protection"; the checks and their order: IBTA 10.6.3 and
//! 10.6.5 (access control), o10-2.

use std::fmt;

use hca_firmware::Icm;
use hca_firmware::icm::{MemoryKey, Translation};
use hca_spec::ids::{Mkey, Pd, Qpn};
use hca_spec::mkc::{ANY_QP, AccessMode, Klm, MTT_ADDRESS, MTT_READ, MTT_WRITE, Mkc};

use crate::dma::{DmaError, GuestMemory};

/// Indirect keys may point to indirect keys this deep (the capability `max_indirection`).
const MAX_DEPTH: u32 = 4;
/// Entries of indirect keys that one access may look at: lists within lists multiply.
const MAX_STEPS: u32 = 1 << 20;

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
    fn writes(self) -> bool {
        !matches!(self, Self::LocalRead | Self::RemoteRead)
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accessor {
    pub(crate) qpn: Qpn,
    pub(crate) pd: Pd,
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
    /// The key does not allow this kind of access.
    Rights(Mkey, Access),
    /// The range is not inside the region.
    Bounds { key: Mkey, va: u64, len: u64 },
    /// No translation is loaded for the address.
    Translation { key: Mkey, va: u64 },
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
            Self::Owner(k) => write!(f, "key {k} is bound to another queue pair"),
            Self::Rights(k, a) => write!(f, "key {k} does not allow {a:?}"),
            Self::Bounds { key, va, len } => {
                write!(f, "{len} bytes at {va:#x} are not inside the region of key {key}")
            }
            Self::Translation { key, va } => write!(f, "key {key} has no translation for {va:#x}"),
            Self::Dma(e) => write!(f, "{e}"),
        }
    }
}

/// A piece of contiguous bus addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) iova: u64,
    pub(crate) len: usize,
}

fn find(icm: &Icm, key: Mkey) -> Result<&MemoryKey, Fault> {
    icm.mkeys
        .get(key.index())
        .filter(|k| k.ctx.get(Mkc::MKEY_7_0) == u32::from(key.variant()) && k.ctx.get(Mkc::FREE) == 0)
        .ok_or(Fault::Key(key))
}

/// Checks an access of `len` bytes at `va` and visits its bus addresses in order. The checks of the
/// whole range come before the first visit for direct keys; indirect keys are checked piece by piece.
pub(crate) fn translate(
    icm: &Icm,
    who: Accessor,
    key: Mkey,
    va: u64,
    len: usize,
    access: Access,
    visit: &mut dyn FnMut(Span) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let entry = find(icm, key)?;
    let ctx = &entry.ctx;
    if ctx.get(Mkc::PD) != who.pd.0 {
        return Err(Fault::Domain(key));
    }
    let owner = ctx.get(Mkc::QPN);
    if owner != ANY_QP && owner != who.qpn.0 {
        return Err(Fault::Owner(key));
    }
    if !access.allowed_by(ctx) {
        return Err(Fault::Rights(key, access));
    }
    walk(icm, entry, key, va, len, access, 0, &mut 0, visit)
}

#[allow(clippy::too_many_arguments, reason = "the recursion over indirect keys carries its whole state")]
fn walk(
    icm: &Icm,
    entry: &MemoryKey,
    key: Mkey,
    va: u64,
    len: usize,
    access: Access,
    depth: u32,
    steps: &mut u32,
    visit: &mut dyn FnMut(Span) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let ctx = &entry.ctx;
    let bounds = Fault::Bounds { key, va, len: len as u64 };
    let start = ctx.get(Mkc::START_ADDR);
    let end = va.checked_add(len as u64).ok_or(bounds)?;
    if ctx.get(Mkc::LENGTH64) == 0 {
        let offset = va.checked_sub(start).ok_or(bounds)?;
        if offset.checked_add(len as u64).is_none_or(|e| e > ctx.get(Mkc::LEN)) {
            return Err(bounds);
        }
    }
    if len == 0 {
        return Ok(());
    }
    match (ctx.access_mode(), &entry.translation) {
        (Some(AccessMode::Pa), _) => visit(Span { iova: va, len }),
        (Some(AccessMode::Mtt), Translation::Mtt(pages)) => {
            let shift = ctx.get(Mkc::LOG_PAGE_SIZE).clamp(12, 63);
            let base = start >> shift << shift;
            let needed = if access.writes() { MTT_WRITE } else { MTT_READ };
            let mut at = va;
            while at < end {
                let none = Fault::Translation { key, va: at };
                let page = ((at.checked_sub(base).ok_or(bounds)?) >> shift) as usize;
                let mtt = *pages.get(page).ok_or(none)?;
                if entry.pg_access && mtt & needed == 0 {
                    return Err(none);
                }
                let in_page = at & ((1 << shift) - 1);
                let n = ((1u64 << shift) - in_page).min(end - at);
                visit(Span { iova: (mtt & MTT_ADDRESS).wrapping_add(in_page), len: n as usize })?;
                at += n;
            }
            Ok(())
        }
        (Some(AccessMode::Klm | AccessMode::Ksm), Translation::Klm(pieces)) if depth < MAX_DEPTH => {
            let fixed = (ctx.access_mode() == Some(AccessMode::Ksm))
                .then(|| 1u64 << ctx.get(Mkc::LOG_PAGE_SIZE).clamp(12, 63));
            let mut skip = va.wrapping_sub(start);
            let mut left = len as u64;
            for piece in pieces {
                *steps += 1;
                if *steps > MAX_STEPS {
                    return Err(Fault::Translation { key, va });
                }
                let size = fixed.unwrap_or(u64::from(piece.get(Klm::BYTE_COUNT)));
                if skip >= size {
                    skip -= size;
                    continue;
                }
                let n = (size - skip).min(left);
                let inner_key = Mkey(piece.get(Klm::MKEY));
                let inner = find(icm, inner_key)?;
                // Each piece is also held to its own key's rights.
                if !access.allowed_by(&inner.ctx) && !local_equivalent(access).allowed_by(&inner.ctx) {
                    return Err(Fault::Rights(inner_key, access));
                }
                let inner_va = piece.get(Klm::ADDRESS).wrapping_add(skip);
                walk(icm, inner, inner_key, inner_va, n as usize, access, depth + 1, steps, visit)?;
                skip = 0;
                left -= n;
                if left == 0 {
                    return Ok(());
                }
            }
            Err(Fault::Translation { key, va: va.wrapping_add(len as u64 - left) })
        }
        _ => Err(Fault::Translation { key, va }),
    }
}

/// The local right that suffices on a key that only an indirect key names.
fn local_equivalent(access: Access) -> Access {
    if access.writes() { Access::LocalWrite } else { Access::LocalRead }
}

/// Reads `buf.len()` bytes at `va` under `key`.
pub(crate) fn read(
    icm: &Icm,
    memory: &dyn GuestMemory,
    who: Accessor,
    key: Mkey,
    va: u64,
    buf: &mut [u8],
    access: Access,
) -> Result<(), Fault> {
    let len = buf.len();
    let mut rest = buf;
    translate(icm, who, key, va, len, access, &mut |span| {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(span.len);
        rest = later;
        Ok(memory.read(span.iova, now)?)
    })
}

/// Writes `data` at `va` under `key`.
pub(crate) fn write(
    icm: &Icm,
    memory: &dyn GuestMemory,
    who: Accessor,
    key: Mkey,
    va: u64,
    data: &[u8],
    access: Access,
) -> Result<(), Fault> {
    let mut rest = data;
    translate(icm, who, key, va, data.len(), access, &mut |span| {
        let (now, later) = rest.split_at(span.len);
        rest = later;
        Ok(memory.write(span.iova, now)?)
    })
}

/// Checks an access without doing it.
pub(crate) fn check(
    icm: &Icm,
    who: Accessor,
    key: Mkey,
    va: u64,
    len: usize,
    access: Access,
) -> Result<(), Fault> {
    translate(icm, who, key, va, len, access, &mut |_| Ok(()))
}
