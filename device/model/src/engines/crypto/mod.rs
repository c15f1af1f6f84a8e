//! Keys that encrypt: data is encrypted or decrypted between memory and wire (AES-XTS), data unit by data unit.
//!
//! One side of the key is encrypted, memory or wire. Between them signatures may be checked, put in and taken out
//! ([`crate::engines::signature`]); encryption stands on one side of that ([`Side`]):
//!
//! ```text
//! memory -- [encryption] -- signatures -- [encryption] -- wire
//! ```
//!
//! An offset counts bytes of whatever is encrypted. A data unit is encrypted block by block (16 bytes), so what comes in packets is
//! put through as it comes; what is not yet a block waits ([`Partial`]). Of a unit that is no multiple of a block, the last block and
//! the rest belong together.
//!
//! Source: IEEE 1619; `mlx5dv_wr_set_mkey_crypto(3)`. By inference: units are counted from the begin of the memory key; what happens
//! to an access that begins inside a block (it fails), or ends there (the rest is never written).

use hca_firmware::Icm;
use hca_firmware::crypto::{BLOCK, DataKey};
use hca_firmware::icm::{Encryption, Partial, Piece};
use hca_spec::bsf::{MAX_BLOCK, block_size};
use hca_spec::crypto::{BSF_TYPE_CRYPTO, CryptoBsf, STANDARD_AES_XTS, order};
use hca_spec::ids::{Mkey, Pd};

use crate::engines::mkey::Fault;

/// Bytes by their offset: memory, or what signatures make of it.
pub(crate) trait Bytes {
    /// Reads from `offset` on.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault>;
    /// Writes from `offset` on.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault>;
}

/// On which side of the signatures data is encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Between memory and them.
    Memory,
    /// Between them and the wire.
    Wire,
}

/// An encryption part, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) side: Side,
    /// Signatures are those of what is encrypted: only one domain may have some.
    raw: bool,
    /// What goes to the wire is encrypted, and what comes from there decrypted; if not, the other way round.
    seals: bool,
    /// Bytes of a data unit.
    unit: u64,
    /// Tweak of the first one.
    tweak: u128,
    key: u32,
    tag: u64,
}

impl Plan {
    /// Understands an encryption part.
    ///
    /// # Errors
    /// Why the adapter can't do what it says, in words.
    pub(crate) fn new(bsf: &CryptoBsf) -> Result<Self, &'static str> {
        if bsf.get(CryptoBsf::TYPE) != BSF_TYPE_CRYPTO {
            return Err("its encryption part (BSF) is of another type");
        }
        if bsf.get(CryptoBsf::ENCRYPTION_STANDARD) != STANDARD_AES_XTS {
            return Err("its encryption part (BSF) names a standard that is not AES-XTS");
        }
        let wanted = bsf.get(CryptoBsf::ENCRYPTION_ORDER);
        let (side, seals) = match wanted {
            order::WIRE_SIGNATURE => (Side::Wire, true),
            order::MEMORY_SIGNATURE => (Side::Memory, false),
            order::RAW_WIRE => (Side::Memory, true),
            order::RAW_MEMORY => (Side::Wire, false),
            _ => return Err("its encryption part (BSF) names an unknown order"),
        };
        let unit = block_size(bsf.get(CryptoBsf::BLOCK_SIZE))
            .ok_or("its encryption part (BSF) names an unknown size of data units")?;
        let halves = [CryptoBsf::TWEAK_HIGH, CryptoBsf::TWEAK_LOW].map(|half| u128::from(bsf.get(half)));
        let tweak = halves.into_iter().fold(0, |tweak, half| tweak << u64::BITS | half);
        let (key, tag) = (bsf.get(CryptoBsf::DEK), bsf.get(CryptoBsf::KEYTAG));
        let raw = matches!(wanted, order::RAW_WIRE | order::RAW_MEMORY);
        Ok(Self { side, raw, seals, unit: unit.into(), tweak, key, tag })
    }

    /// Whether both domains may have signatures.
    pub(crate) fn takes_both(&self) -> bool {
        !self.raw
    }

    /// The part of a data unit that is encrypted as a whole and has byte `at` of the unit.
    fn part(&self, at: u64) -> (u64, u64) {
        let block = BLOCK as u64;
        let (whole, rest) = (self.unit / block, self.unit % block);
        let last = whole.saturating_sub(1) * block;
        match rest {
            0 => (at / block * block, at / block * block + block),
            _ if at >= last => (last, self.unit),
            _ => (at / block * block, at / block * block + block),
        }
    }

    /// Offset where the part begins that has the byte at `offset`.
    fn begin(&self, offset: u64) -> u64 {
        let inside = offset % self.unit;
        offset - inside + self.part(inside).0
    }

    /// Offset behind the part that has the byte at `offset`.
    fn end(&self, offset: u64) -> u64 {
        let inside = offset % self.unit;
        (offset - inside).saturating_add(self.part(inside).1)
    }

    /// Bytes that have to be there for the first `len`, parts being whole.
    pub(crate) fn whole(&self, len: u64) -> u64 {
        len.checked_sub(1).map_or(0, |last| self.end(last))
    }
}

/// A key that encrypts, in use.
pub(crate) struct Encrypted<'a> {
    key: Mkey,
    pub(crate) plan: Plan,
    cipher: &'a DataKey,
    state: &'a Encryption,
}

impl<'a> Encrypted<'a> {
    /// What the encryption part of a memory key in that domain says.
    ///
    /// # Errors
    /// It names a DEK that is not there, is of another domain, or has another tag.
    pub(crate) fn new(icm: &'a Icm, state: &'a Encryption, key: Mkey, pd: Pd) -> Result<Self, Fault> {
        let plan = Plan::new(&state.bsf).map_err(|_| Fault::DataKey(key))?;
        let cipher = icm.data_key(plan.key).filter(|dek| dek.pd == pd);
        let tagged = |dek: &&DataKey| dek.tag.is_none_or(|tag| u64::from_be_bytes(tag) == plan.tag);
        let cipher = cipher.filter(tagged).ok_or(Fault::DataKey(key))?;
        Ok(Self { key, plan, cipher, state })
    }

    /// Encrypts or decrypts bytes of the data unit that begins at `unit`; the parts that they begin and end with are whole.
    /// `outwards`: they go to the wire.
    fn transform(&self, unit: u64, at: u64, bytes: &mut [u8], outwards: bool) {
        // Blocks before them only move the tweak on.
        let mut whole = [0; MAX_BLOCK];
        let end = (at as usize).saturating_add(bytes.len());
        let Some(whole) = whole.get_mut(..end) else { return };
        let (_, theirs) = whole.split_at_mut(at as usize);
        theirs.copy_from_slice(bytes);
        let tweak = self.plan.tweak.wrapping_add(u128::from(unit / self.plan.unit));
        match outwards == self.plan.seals {
            true => self.cipher.encrypt(whole, tweak),
            false => self.cipher.decrypt(whole, tweak),
        }
        let (_, theirs) = whole.split_at(at as usize);
        bytes.copy_from_slice(theirs);
    }

    /// The same for bytes of any number of units from `offset` on.
    fn transform_all(&self, offset: u64, bytes: &mut [u8], outwards: bool) {
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            let inside = at % self.plan.unit;
            let n = (self.plan.unit - inside).min(rest.len() as u64);
            let (now, later) = std::mem::take(&mut rest).split_at_mut(n as usize);
            self.transform(at - inside, inside, now, outwards);
            (rest, at) = (later, at.saturating_add(n));
        }
    }

    /// What goes to the wire: `below` encrypted, or decrypted.
    pub(crate) fn outwards<'b>(&'b self, below: &'b mut dyn Bytes) -> Through<'b> {
        Through { encrypted: self, below, piece: Piece::default(), access: None }
    }

    /// What comes from the wire, for an access that begins at `access` there; [`Through::close`] ends it.
    pub(crate) fn inwards<'b>(&'b self, below: &'b mut dyn Bytes, access: u64) -> Through<'b> {
        let partial = &self.state.partial;
        // Made again: it found what it found the first time.
        let piece = if partial.access == access { partial.before } else { partial.after };
        Through { encrypted: self, below, piece, access: Some((access, piece)) }
    }
}

/// Bytes below, seen through encryption. Memory is on the far side.
pub(crate) struct Through<'a> {
    encrypted: &'a Encrypted<'a>,
    below: &'a mut dyn Bytes,
    /// What has come and is not enough yet.
    piece: Piece,
    /// Of an access from the wire: where it began, and what had come before.
    access: Option<(u64, Piece)>,
}

impl Through<'_> {
    /// Ends an access from the wire. Returns what has not been enough, to be kept for the next.
    pub(crate) fn close(self) -> Option<Partial> {
        self.access.map(|(access, before)| Partial { access, before, after: self.piece })
    }

    /// Bytes that wait, and where they begin; none if those at `offset` don't follow.
    fn waiting(&self, offset: u64) -> (u64, Vec<u8>) {
        let Piece { start, len, bytes } = self.piece;
        match start.checked_add(len.into()) == Some(offset) && len > 0 {
            true => (start, bytes.get(..len.into()).unwrap_or_default().to_vec()),
            false => (offset, Vec::new()),
        }
    }
}

impl Bytes for Through<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let Some(last) = (buf.len() as u64).checked_sub(1).map(|n| offset.saturating_add(n)) else {
            return Ok(());
        };
        let plan = &self.encrypted.plan;
        let begin = plan.begin(offset);
        // What waits is not below yet.
        let Piece { start, len, bytes } = self.piece;
        let end = if len > 0 && (begin..=last).contains(&start) { start } else { plan.end(last) };
        let mut below = vec![0; end.saturating_sub(begin) as usize];
        self.below.read(begin, &mut below)?;
        self.encrypted.transform_all(begin, &mut below, true);
        let there = below.into_iter().chain(bytes.into_iter().take(len.into()));
        buf.iter_mut().zip(there.skip((offset - begin) as usize)).for_each(|(to, byte)| *to = byte);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let plan = &self.encrypted.plan;
        let (begin, mut all) = self.waiting(offset);
        if plan.begin(begin) != begin {
            return Err(Fault::Block { key: self.encrypted.key, offset });
        }
        all.extend_from_slice(data);
        let end = begin.saturating_add(all.len() as u64);
        // The last part that is not whole.
        let whole = if plan.whole(end) == end { end } else { plan.begin(end) };
        let waits = all.split_off(whole.saturating_sub(begin).min(all.len() as u64) as usize);
        self.encrypted.transform_all(begin, &mut all, false);
        if !all.is_empty() {
            self.below.write(begin, &all)?;
        }
        let mut piece = Piece { start: whole, len: waits.len() as u8, ..Piece::default() };
        piece.bytes.iter_mut().zip(waits).for_each(|(to, byte)| *to = byte);
        self.piece = piece;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
