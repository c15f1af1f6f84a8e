//! Messages of a PCI Express link, as their types and headers say them.
//!
//! | type | message | header, by offset (bytes) |
//! |---|---|---|
//! | 0x40 | the device reads memory | 0 request (8), 8 address (8), 16 length (2) |
//! | 0x41 | it writes memory | the same; the data is the payload |
//! | 0x42 | it interrupts | 0 vector (2), 2 kind (1): 3 is MSI-X |
//! | 0x43, 0x44 | it has read, or written, a register | 0 request (8); what was read is the payload |
//! | 0x60 | the host reads a register | 0 request (8), 8 offset (8), 16 length (2), 18 BAR (1) |
//! | 0x61, 0x65 | it writes one, and wants an answer, or none | the same; the data is the payload |
//! | 0x62, 0x63 | it has read, or written, memory | 0 request (8); what was read is the payload |
//! | 0x64 | it has set up interrupts | 0 flags (8): 1 by wire, 2 MSI, 4 MSI-X |

use super::super::ring::OWN;

/// A message interrupt by a vector of MSI-X.
pub const MSIX: u8 = 3;
/// Of [`ToDevice::Control`]: MSI-X is on.
pub const MSIX_ON: u64 = 4;

/// Messages of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToHost {
    /// It reads memory.
    Read {
        /// What the answer bears.
        id: u64,
        /// Bus address.
        at: u64,
        /// Bytes.
        len: u16,
    },
    /// It writes memory; the data comes with it.
    Write {
        /// What the answer bears.
        id: u64,
        /// Bus address.
        at: u64,
        /// Bytes.
        len: u16,
    },
    /// It interrupts.
    Interrupt {
        /// Which vector.
        vector: u16,
        /// Of which kind: [`MSIX`].
        kind: u8,
    },
    /// What a register has; the data comes with it.
    ReadDone {
        /// That of the request.
        id: u64,
    },
    /// A register was written.
    WriteDone {
        /// That of the request.
        id: u64,
    },
}

/// Messages of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToDevice {
    /// It reads a register.
    Read {
        /// What the answer bears.
        id: u64,
        /// Of which base address register.
        bar: u8,
        /// Where in it.
        offset: u64,
        /// Bytes.
        len: u16,
    },
    /// It writes one; the data comes with it.
    Write {
        /// What the answer bears.
        id: u64,
        /// Of which base address register.
        bar: u8,
        /// Where in it.
        offset: u64,
        /// Bytes.
        len: u16,
        /// It wants no answer.
        posted: bool,
    },
    /// What memory has; the data comes with it.
    ReadDone {
        /// That of the request.
        id: u64,
    },
    /// Memory was written.
    WriteDone {
        /// That of the request.
        id: u64,
    },
    /// It has set up interrupts.
    Control {
        /// Which kinds are on: [`MSIX_ON`] is one.
        flags: u64,
    },
}

/// A header, written and read field by field.
#[derive(Clone, Copy)]
struct Header([u8; OWN]);

impl Header {
    fn new(id: u64) -> Self {
        Self([0; OWN]).with(0, id.to_le_bytes())
    }

    fn with<const N: usize>(mut self, at: usize, field: [u8; N]) -> Self {
        if let Some(to) = self.0.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *to = field;
        }
        self
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.get(at))
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at))
    }

    fn byte(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.get(at))
    }
}

/// An access: request, place and length.
fn access(id: u64, at: u64, len: u16) -> Header {
    Header::new(id).with(8, at.to_le_bytes()).with(16, len.to_le_bytes())
}

impl ToHost {
    /// Type and header.
    pub(in super::super) fn write(self) -> (u8, [u8; OWN]) {
        let (kind, header) = match self {
            Self::Read { id, at, len } => (0x40, access(id, at, len)),
            Self::Write { id, at, len } => (0x41, access(id, at, len)),
            Self::Interrupt { vector, kind } => (0x42, Header::new(vector.into()).with(2, [kind])),
            Self::ReadDone { id } => (0x43, Header::new(id)),
            Self::WriteDone { id } => (0x44, Header::new(id)),
        };
        (kind, header.0)
    }

    /// The message of that type and header; `None`: there is no such type.
    pub(in super::super) fn read(kind: u8, header: &[u8; OWN]) -> Option<Self> {
        let header = Header(*header);
        let (id, at, len) = (header.word(0), header.word(8), header.half(16));
        Some(match kind {
            0x40 => Self::Read { id, at, len },
            0x41 => Self::Write { id, at, len },
            0x42 => Self::Interrupt { vector: header.half(0), kind: header.byte(2) },
            0x43 => Self::ReadDone { id },
            0x44 => Self::WriteDone { id },
            _ => return None,
        })
    }
}

impl ToDevice {
    /// Type and header.
    pub(in super::super) fn write(self) -> (u8, [u8; OWN]) {
        let (kind, header) = match self {
            Self::Read { id, bar, offset, len } => (0x60, access(id, offset, len).with(18, [bar])),
            Self::Write { id, bar, offset, len, posted } => {
                (if posted { 0x65 } else { 0x61 }, access(id, offset, len).with(18, [bar]))
            }
            Self::ReadDone { id } => (0x62, Header::new(id)),
            Self::WriteDone { id } => (0x63, Header::new(id)),
            Self::Control { flags } => (0x64, Header::new(flags)),
        };
        (kind, header.0)
    }

    /// The message of that type and header; `None`: there is no such type.
    pub(in super::super) fn read(kind: u8, header: &[u8; OWN]) -> Option<Self> {
        let header = Header(*header);
        let (id, offset, len, bar) = (header.word(0), header.word(8), header.half(16), header.byte(18));
        Some(match kind {
            0x60 => Self::Read { id, bar, offset, len },
            0x61 | 0x65 => Self::Write { id, bar, offset, len, posted: kind == 0x65 },
            0x62 => Self::ReadDone { id },
            0x63 => Self::WriteDone { id },
            0x64 => Self::Control { flags: id },
            _ => return None,
        })
    }
}
