//! What a key's BSF says: the memory domain, the wire domain, and how offsets in one are offsets in the other.
//!
//! An offset under a signature key counts bytes on the wire. Without the signatures of the wire domain it is
//! an offset in the data, and with those of the memory domain an offset in the memory behind the key.

use hca_spec::bsf::{Bsf, Dif, GUARD_CHECKSUM, GUARD_CRC, block_size, format};

use super::crc::Guard;

/// When a block is not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    Never,
    AppTag,
    AppAndRefTag,
}

/// The signatures of a domain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Domain {
    guard: Guard,
    /// Bytes of a block, without its signature.
    pub(super) block: u64,
    pub(super) psv: u32,
    app_tag: u16,
    ref_tag: u32,
    increment: bool,
    app_mask: u16,
    escape: Escape,
}

/// A signature: up to 8 bytes as they stand in memory and on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tuple {
    pub(super) bytes: [u8; 8],
    len: usize,
}

impl Tuple {
    pub(super) fn new(bytes: [u8; 8], len: usize) -> Self {
        Self { bytes, len: len.min(8) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The high and the low half, as a CQE of a signature error has them.
    pub(super) fn halves(&self) -> (u32, u32) {
        let all = u64::from_be_bytes(self.bytes);
        ((all >> 32) as u32, all as u32)
    }

    /// The bytes of `other` where `mask` says so: bit 7 is the first byte.
    pub(super) fn with(mut self, other: &Self, mask: u8) -> Self {
        for (k, (to, from)) in self.bytes.iter_mut().zip(other.bytes).enumerate() {
            if mask & 0x80 >> k != 0 {
                *to = from;
            }
        }
        self
    }
}

impl Domain {
    /// Bytes of a signature.
    pub(super) fn tuple_len(&self) -> usize {
        self.guard.signature_len()
    }

    /// Bytes of a block with its signature.
    pub(super) fn stride(&self) -> u64 {
        self.block + self.tuple_len() as u64
    }

    /// The signature of block number `index` with that data.
    pub(super) fn generate(&self, index: u64, data: &[u8], psv: u64) -> Tuple {
        let guard = self.guard.of(data, psv);
        let bytes = if self.guard.has_tags() {
            let ref_tag = if self.increment { self.ref_tag.wrapping_add(index as u32) } else { self.ref_tag };
            guard << 48 | u64::from(self.app_tag) << 32 | u64::from(ref_tag)
        } else if self.tuple_len() == 4 {
            guard << 32
        } else {
            guard
        };
        Tuple::new(bytes.to_be_bytes(), self.tuple_len())
    }

    /// Which parts of a signature that came differ from what they should be: bits of
    /// [`hca_spec::bsf::sig_err`], 0 if none.
    pub(super) fn compare(&self, came: &Tuple, good: &Tuple, check_mask: u8) -> u32 {
        use hca_spec::bsf::sig_err::{APP_TAG, GUARD, REF_TAG};
        let byte_mask = (0..8u32).fold(0u64, |mask, k| {
            let checked = u32::from(check_mask) >> (7 - k) & 1 == 1 && (k as usize) < self.tuple_len();
            mask << 8 | if checked { 0xff } else { 0 }
        });
        let (came, good) = (u64::from_be_bytes(came.bytes), u64::from_be_bytes(good.bytes));
        let wrong = (came ^ good) & byte_mask;
        if !self.guard.has_tags() {
            return if wrong != 0 { GUARD } else { 0 };
        }
        let (app, reference) = ((came >> 32) as u16, came as u32);
        let escaped = match self.escape {
            Escape::Never => false,
            Escape::AppTag => app == 0xffff,
            Escape::AppAndRefTag => app == 0xffff && reference == u32::MAX,
        };
        if escaped {
            return 0;
        }
        let mut syndrome = 0;
        if wrong >> 48 != 0 {
            syndrome |= GUARD;
        }
        if (wrong >> 32) as u16 & self.app_mask != 0 {
            syndrome |= APP_TAG;
        }
        if wrong as u32 != 0 {
            syndrome |= REF_TAG;
        }
        syndrome
    }

    fn new(block_format: u32, dif: &Dif, selector: u32, psv: u32) -> Result<Option<Self>, &'static str> {
        let tagged = dif.get(Dif::VALID) == 1;
        if !tagged && block_format == 0 {
            return Ok(None);
        }
        let guard = match (tagged, block_format & format::KIND_MASK, dif.get(Dif::GUARD)) {
            (true, _, GUARD_CRC) => Guard::T10Crc,
            (true, _, GUARD_CHECKSUM) => Guard::T10Checksum,
            (false, format::CRC32, _) => Guard::Crc32,
            (false, format::CRC32C, _) => Guard::Crc32c,
            (false, format::CRC64_XP10, _) => Guard::Crc64,
            _ => return Err("its signature part (BSF) names a guard that the adapter does not have"),
        };
        let block = block_size(selector).ok_or("its signature part (BSF) names an unknown block size")?;
        // The signature of one block only is nothing that drivers use.
        let repeat = if tagged { dif.get(Dif::REPEAT) == 1 } else { block_format & format::REPEAT != 0 };
        if !repeat {
            return Err("its signature part (BSF) asks for a signature of one block only");
        }
        let escape = match (dif.get(Dif::APP_REF_ESCAPE), dif.get(Dif::APP_ESCAPE)) {
            (1, _) => Escape::AppAndRefTag,
            (_, 1) => Escape::AppTag,
            _ => Escape::Never,
        };
        Ok(Some(Self {
            guard,
            block: block.into(),
            psv,
            app_tag: dif.get(Dif::APP_TAG) as u16,
            ref_tag: dif.get(Dif::REF_TAG),
            increment: dif.get(Dif::INCREMENT) == 1,
            app_mask: dif.get(Dif::APP_MASK) as u16,
            escape,
        }))
    }
}

/// A BSF, understood.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(super) memory: Option<Domain>,
    pub(super) wire: Option<Domain>,
    /// Bytes of the incoming signature that are checked.
    pub(super) check_mask: u8,
    /// Bytes that are copied, if both domains have the same blocks.
    pub(super) copy_mask: Option<u8>,
}

impl Plan {
    /// Understands a BSF.
    ///
    /// # Errors
    /// Why the adapter can't do what it says, in words.
    pub(crate) fn new(bsf: &Bsf) -> Result<Self, &'static str> {
        if [Bsf::WIRE_TRANSACTION, Bsf::MEMORY_TRANSACTION].iter().any(|field| bsf.get(*field) != 0) {
            return Err(
                "its signature part (BSF) has a signature of a whole transaction (tfs_psv): there are those of blocks only",
            );
        }
        let same = bsf.get(Bsf::SAME_STRUCTURE) == 1;
        let memory = Domain::new(
            bsf.get(Bsf::MEMORY_FORMAT),
            bsf.memory_dif(),
            bsf.get(Bsf::MEMORY),
            bsf.get(Bsf::MEMORY_PSV),
        )?;
        let selector = if same { bsf.get(Bsf::MEMORY) } else { bsf.get(Bsf::WIRE) };
        let wire = Domain::new(bsf.get(Bsf::WIRE_FORMAT), bsf.wire_dif(), selector, bsf.get(Bsf::WIRE_PSV))?;
        if same && memory.map(|d| d.tuple_len()) != wire.map(|d| d.tuple_len()) {
            return Err("its signature part (BSF) says that different blocks are the same");
        }
        let copy_mask = (same && memory.is_some()).then_some(bsf.get(Bsf::WIRE) as u8);
        Ok(Self { memory, wire, check_mask: bsf.get(Bsf::CHECK_MASK) as u8, copy_mask })
    }

    /// Whether both domains have signatures.
    pub(crate) fn has_both(&self) -> bool {
        self.memory.is_some() && self.wire.is_some()
    }

    /// Where in memory, signatures included, the byte at `offset` of the data is.
    pub(super) fn in_memory(&self, offset: u64) -> u64 {
        match &self.memory {
            None => offset,
            // No more than 1/64 is added: what overflows is beyond every region.
            Some(d) => (offset / d.block).saturating_mul(d.stride()).saturating_add(offset % d.block),
        }
    }

    /// Bytes of memory, from the start, that the first `len` bytes on the wire touch.
    pub(super) fn memory_len(&self, len: u64) -> u64 {
        let data = match &self.wire {
            None => len,
            Some(d) => len / d.stride() * d.block + (len % d.stride()).min(d.block),
        };
        // A block that is whole has its signature behind it.
        self.in_memory(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_spec::bsf::sig_err;

    fn dif(wire: bool, change: impl Fn(&mut Dif)) -> Plan {
        let mut bsf = Bsf::new();
        bsf.set(Bsf::WIRE, 1).set(Bsf::MEMORY, 1).set(Bsf::CHECK_MASK, 0xff);
        let d = if wire { bsf.wire_dif_mut() } else { bsf.memory_dif_mut() };
        d.set(Dif::VALID, 1).set(Dif::GUARD, GUARD_CRC).set(Dif::REPEAT, 1).set(Dif::APP_MASK, 0xffff);
        d.set(Dif::APP_TAG, 0xabcd).set(Dif::REF_TAG, 0xffff_ffff).set(Dif::INCREMENT, 1);
        change(d);
        Plan::new(&bsf).unwrap()
    }

    /// A signature of a whole transaction is no signature of blocks: it is refused, and not ignored.
    #[test]
    fn transactions() {
        assert!(Plan::new(&Bsf::new()).is_ok());
        for field in [Bsf::WIRE_TRANSACTION, Bsf::MEMORY_TRANSACTION] {
            let mut bsf = Bsf::new();
            bsf.set(field, 7);
            assert!(Plan::new(&bsf).is_err_and(|why| why.contains("transaction")));
        }
    }

    #[test]
    fn offsets() {
        let strip = dif(false, |_| {});
        assert_eq!((strip.in_memory(511), strip.in_memory(512), strip.in_memory(1025)), (511, 520, 1041));
        assert_eq!((strip.memory_len(511), strip.memory_len(512), strip.memory_len(1024)), (511, 520, 1040));
        let insert = dif(true, |_| {});
        assert_eq!((insert.memory_len(512), insert.memory_len(520), insert.memory_len(521)), (512, 512, 513));
    }

    #[test]
    fn a_tuple_of_t10() {
        let d = dif(true, |_| {}).wire.unwrap();
        let mut data = [0; 512];
        data[..9].copy_from_slice(b"123456789");
        assert_eq!(d.generate(0, &data, 0).bytes[2..], [0xab, 0xcd, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(d.generate(2, &data, 0).bytes[4..], [0, 0, 0, 1], "the reference tag wraps");
        assert_eq!(d.generate(0, &[0; 512], 0).bytes[..2], [0, 0]);
    }

    #[test]
    fn what_is_compared() {
        let plain = dif(true, |_| {}).wire.unwrap();
        let good = plain.generate(0, &[7; 512], 0);
        let changed = |k: usize| {
            let mut t = good;
            t.bytes[k] ^= 1;
            t
        };
        assert_eq!(plain.compare(&good, &good, 0xff), 0);
        assert_eq!(plain.compare(&changed(1), &good, 0xff), sig_err::GUARD);
        assert_eq!(plain.compare(&changed(3), &good, 0xff), sig_err::APP_TAG);
        assert_eq!(plain.compare(&changed(4), &good, 0xff), sig_err::REF_TAG);
        assert_eq!(plain.compare(&changed(4), &good, 0xf7), 0, "that byte is not checked");
        assert_eq!(plain.compare(&changed(1), &good, 0x3f), 0);
        let masked = dif(true, |d| _ = d.set(Dif::APP_MASK, 0xfffe)).wire.unwrap();
        assert_eq!(masked.compare(&changed(3), &good, 0xff), 0, "that bit is not checked");
        let all_ones = Tuple::new([1, 2, 0xff, 0xff, 0, 0, 0, 0], 8);
        let escape = dif(true, |d| _ = d.set(Dif::APP_ESCAPE, 1)).wire.unwrap();
        assert_eq!(escape.compare(&all_ones, &good, 0xff), 0);
        let both = dif(true, |d| _ = d.set(Dif::APP_REF_ESCAPE, 1)).wire.unwrap();
        assert_ne!(both.compare(&all_ones, &good, 0xff), 0, "the reference tag is not all ones");
    }

    #[test]
    fn what_is_not_understood() {
        let mut bsf = Bsf::new();
        assert!(Plan::new(&bsf).unwrap().wire.is_none(), "no domain at all");
        bsf.set(Bsf::WIRE_FORMAT, format::CRC32 | format::REPEAT);
        assert!(Plan::new(&bsf).is_err(), "no block size");
        bsf.set(Bsf::WIRE, 5);
        assert!(Plan::new(&bsf).is_err(), "an unknown block size");
        bsf.set(Bsf::WIRE, 1);
        assert!(Plan::new(&bsf).is_ok());
        bsf.set(Bsf::SAME_STRUCTURE, 1).set(Bsf::MEMORY, 1);
        assert!(Plan::new(&bsf).is_err(), "not the same");
        bsf.set(Bsf::WIRE_FORMAT, format::CRC32);
        assert!(Plan::new(&bsf).is_err(), "one block only");
        bsf.set(Bsf::WIRE_FORMAT, 0x70 | format::REPEAT);
        assert!(Plan::new(&bsf).is_err(), "no such CRC");
    }
}
