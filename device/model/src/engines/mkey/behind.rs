//! The memory behind a key that has signatures or encrypts: what an access to the key becomes there.

use hca_firmware::Icm;
use hca_firmware::icm::{MemoryKey, Partial};
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::Mkc;

use super::access::{Access, Accessor, Fault, Span};
use super::walk::{Range, Steps, Walk, check_bounds};
use crate::engines::crypto::{Bytes, Encrypted, Side, Through};
use crate::engines::signature::{Backing, SignatureError, Signed, signed};

/// What is between memory and wire.
pub(crate) struct Passage<'a> {
    signed: Signed,
    encrypted: Option<Encrypted<'a>>,
    /// The block's signature as far as it has come from the wire before.
    arriving: [u8; 8],
    /// Where the key begins.
    start: u64,
    /// Where on the wire the access begins.
    offset: u64,
}

/// What has come from the wire under a key and is not enough yet.
#[must_use = "it is kept with the key (Remains::keep)"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remains {
    /// The block's signature.
    arriving: [u8; 8],
    /// Of a key that encrypts: the begin of a part of a data unit.
    partial: Option<Partial>,
}

impl Remains {
    /// Keeps it with its key for the next access.
    pub(crate) fn keep(self, icm: &mut Icm, key: Mkey) {
        let entry = icm.mkeys.get_mut(key.index());
        let Some(signature) = entry.and_then(|entry| entry.signature.as_mut()) else { return };
        signature.arriving = self.arriving;
        if let (Some(encryption), Some(partial)) = (&mut signature.crypto, self.partial) {
            encryption.partial = partial;
        }
    }
}

/// The memory behind a signature key or one that encrypts. The key's own rights are checked for the access; what it names is read
/// and written on behalf of the signatures too.
pub(crate) struct Behind<'a> {
    icm: &'a Icm,
    who: Accessor,
    key: Mkey,
    entry: &'a MemoryKey,
    passage: Passage<'a>,
}

impl<'a> Behind<'a> {
    /// What is behind a key, whose bounds [`Behind::of`] has checked.
    pub(super) fn new(
        icm: &'a Icm,
        who: Accessor,
        entry: &'a MemoryKey,
        key: Mkey,
        passage: Passage<'a>,
    ) -> Self {
        Self { icm, who, key, entry, passage }
    }

    /// Checks the bounds of an access through such a key: signatures and encryption, where the key begins, and the offset on the
    /// wire. `None`: the key is none, and nothing was checked.
    #[inline]
    pub(super) fn of(icm: &'a Icm, entry: &'a MemoryKey, range: Range) -> Result<Option<Passage<'a>>, Fault> {
        if range.len == 0 || entry.ctx.get(Mkc::BSF_EN) == 0 {
            return Ok(None);
        }
        Self::passage(icm, entry, range)
    }

    #[cold]
    fn passage(icm: &'a Icm, entry: &'a MemoryKey, range: Range) -> Result<Option<Passage<'a>>, Fault> {
        let encrypted = match entry.ctx.get(Mkc::CRYPTO_EN) {
            0 => None,
            _ => {
                let part = entry.signature.as_ref().and_then(|part| part.crypto.as_ref());
                let (part, pd) = (part.ok_or(Fault::Unencrypted(range.key))?, Pd(entry.ctx.get(Mkc::PD)));
                Some(Encrypted::new(icm, part, range.key, pd)?)
            }
        };
        let Some((signed, arriving)) = signed(icm, entry, range.key)? else { return Ok(None) };
        let bounds = Fault::Bounds { key: range.key, va: range.va, len: range.len };
        let start = entry.ctx.get(Mkc::START_ADDR);
        let offset = range.va.checked_sub(start).ok_or(bounds)?;
        let end = offset.checked_add(range.len).ok_or(bounds)?;
        let end = match encrypted.as_ref().map(|encrypted| &encrypted.plan) {
            None => signed.memory_len(end),
            Some(plan) if plan.side == Side::Memory => plan.whole(signed.memory_len(end)),
            Some(plan) => signed.memory_len(plan.whole(end)),
        };
        check_bounds(&entry.ctx, range.key, start, end).map_err(|_| bounds)?;
        Ok(Some(Passage { signed, encrypted, arriving, start, offset }))
    }

    /// Memory to wire: fills `buf`. `memory` is what [`Behind::spans`] tells of.
    pub(crate) fn gather(&self, memory: &mut dyn Backing, buf: &mut [u8]) -> Result<(), Fault> {
        let Passage { signed, encrypted, offset, .. } = &self.passage;
        let Some(encrypted) = encrypted else { return signed.gather(memory, *offset, buf) };
        match encrypted.plan.side {
            Side::Wire => {
                let mut before = Before { signed, memory, arriving: &mut [0; 8] };
                encrypted.outwards(&mut before).read(*offset, buf)
            }
            Side::Memory => {
                let through = encrypted.outwards(memory);
                let mut sealed = Sealed { through, found: Vec::new() };
                signed.gather(&mut sealed, *offset, buf)?;
                let found = sealed.found;
                found.into_iter().for_each(|error| memory.found(error));
                Ok(())
            }
        }
    }

    /// Wire to memory: stores what came. Returns what is not enough yet, to be kept with the key; if it fails, nothing is: the access
    /// is made again, or the data is nobody's.
    pub(crate) fn scatter(&self, memory: &mut dyn Backing, data: &[u8]) -> Result<Remains, Fault> {
        let Passage { signed, encrypted, arriving, offset, .. } = &self.passage;
        let mut remains = Remains { arriving: *arriving, partial: None };
        let Some(encrypted) = encrypted else {
            signed.scatter(memory, *offset, data, &mut remains.arriving)?;
            return Ok(remains);
        };
        match encrypted.plan.side {
            Side::Wire => {
                let mut before = Before { signed, memory, arriving: &mut remains.arriving };
                let mut through = encrypted.inwards(&mut before, *offset);
                through.write(*offset, data)?;
                remains.partial = through.close();
            }
            Side::Memory => {
                let through = encrypted.inwards(memory, *offset);
                let mut sealed = Sealed { through, found: Vec::new() };
                signed.scatter(&mut sealed, *offset, data, &mut remains.arriving)?;
                let Sealed { through, found } = sealed;
                remains.partial = through.close();
                found.into_iter().for_each(|error| memory.found(error));
            }
        }
        Ok(remains)
    }

    /// Visits the bus addresses of `len` bytes of the memory domain from `offset` on.
    pub(crate) fn spans(
        &self,
        offset: u64,
        len: usize,
        access: Access,
        steps: &mut Steps,
        visit: &mut dyn FnMut(Span) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let range = Range { key: self.key, va: self.passage.start.wrapping_add(offset), len: len as u64 };
        Walk { icm: self.icm, who: self.who, access, steps }.key(self.entry, range, 0, visit)
    }
}

/// What signatures make of memory, as encryption on the wire's side sees it.
struct Before<'a> {
    signed: &'a Signed,
    memory: &'a mut dyn Backing,
    /// The block's signature as far as it has come from the wire.
    arriving: &'a mut [u8; 8],
}

impl Bytes for Before<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        self.signed.gather(self.memory, offset, buf)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        self.signed.scatter(self.memory, offset, data, self.arriving)
    }
}

/// What encryption on memory's side makes of it, as signatures see it.
struct Sealed<'a> {
    through: Through<'a>,
    found: Vec<SignatureError>,
}

impl Bytes for Sealed<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        self.through.read(offset, buf)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        self.through.write(offset, data)
    }
}

impl Backing for Sealed<'_> {
    fn found(&mut self, error: SignatureError) {
        self.found.push(error);
    }
}
