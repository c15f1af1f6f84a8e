//! What a device says of itself in its first message: what of configuration space the host makes from it.

use super::super::intro::IntroError;

/// Bytes of it.
pub const LEN: usize = 119;
/// Base address registers of a function.
const BARS: usize = 6;

/// A base address register (two of them, if it has 64 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bar {
    /// Bytes; 0: there is none.
    pub len: u64,
    /// `IO`, `WIDE`, `PREFETCHABLE` and `DUMMY`, or none of them.
    pub flags: u64,
}

impl Bar {
    /// Of I/O ports, not memory.
    pub const IO: u64 = 1;
    /// It has 64 bits.
    pub const WIDE: u64 = 2;
    /// It may be prefetched.
    pub const PREFETCHABLE: u64 = 4;
    /// The host keeps it: no messages come for it.
    pub const DUMMY: u64 = 8;
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceIntro {
    /// Its base address registers.
    pub bars: [Bar; BARS],
    /// Vendor and device.
    pub ids: [u16; 2],
    /// Class, sub class, revision, programming interface.
    pub class: [u8; 4],
    /// Message interrupts of the older kind.
    pub msi: u8,
    /// Vectors of MSI-X.
    pub msix: u16,
    /// In which base address register MSI-X has its table, and its pending bits.
    pub msix_bars: [u8; 2],
    /// Where in them.
    pub msix_offsets: [u32; 2],
    /// Where the capability of MSI-X is; 0: the host may choose.
    pub msix_capability: u16,
}

/// Takes numbers off the front of bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

impl DeviceIntro {
    /// As bytes; numbers are not aligned.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { bars, ids, class, msi, msix, msix_bars, msix_offsets, msix_capability } = self;
        let mut bytes = Vec::with_capacity(LEN);
        for Bar { len, flags } in bars {
            bytes.extend(len.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
        }
        bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(class);
        bytes.push(*msi);
        bytes.extend(msix.to_le_bytes());
        bytes.extend(msix_bars);
        bytes.extend(msix_offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        bytes.extend(msix_capability.to_le_bytes());
        bytes
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`IntroError::Part`]: there are fewer or more bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, IntroError> {
        let wrong = IntroError::Part(bytes.len(), LEN);
        if bytes.len() != LEN {
            return Err(wrong);
        }
        Self::parse(Reader(bytes)).ok_or(wrong)
    }

    fn parse(mut from: Reader<'_>) -> Option<Self> {
        let mut bars = [Bar::default(); BARS];
        for bar in &mut bars {
            *bar = Bar { len: from.u64()?, flags: from.u64()? };
        }
        Some(Self {
            bars,
            ids: [from.u16()?, from.u16()?],
            class: from.take()?,
            msi: from.u8()?,
            msix: from.u16()?,
            msix_bars: from.take()?,
            msix_offsets: [from.u32()?, from.u32()?],
            msix_capability: from.u16()?,
        })
    }
}
