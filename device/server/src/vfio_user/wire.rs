//! Bytes of vfio-user messages: header, bounded field reader and reply builder.
//!
//! Source: "vfio-user Protocol Specification" 0.x (section numbers do not exist there; names of
//! sections are cited). All numbers are in host byte order.

use nix::errno::Errno;

/// Length of the header in front of every message ("Header").
pub const HEADER_LEN: usize = 16;

/// Largest `count` of one data transfer that we accept and announce (`max_data_xfer_size`).
pub const MAX_DATA_XFER: usize = 1 << 20;

/// Largest message read into memory: one maximal transfer plus the widest fixed part.
pub const MAX_MESSAGE: usize = MAX_DATA_XFER + 256;

/// Number of file descriptors accepted with one message, announced as `max_msg_fds`. QEMU refuses
/// a server that announces more than 16.
pub const MAX_MSG_FDS: usize = 16;

/// Message commands ("Commands").
pub mod command {
    /// Version negotiation, first message of a connection.
    pub const VERSION: u16 = 1;
    /// A window of client memory becomes accessible.
    pub const DMA_MAP: u16 = 2;
    /// A window of client memory goes away.
    pub const DMA_UNMAP: u16 = 3;
    /// Device flags, number of regions and interrupt types.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Size and access flags of one region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// File descriptors in place of region messages; not offered by this server.
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    /// Count and flags of one interrupt type.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Connects, triggers, masks or disables interrupts.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Reads from a device region.
    pub const REGION_READ: u16 = 9;
    /// Writes to a device region.
    pub const REGION_WRITE: u16 = 10;
    /// Server to client: read client memory that has no descriptor.
    pub const DMA_READ: u16 = 11;
    /// Server to client: write client memory that has no descriptor.
    pub const DMA_WRITE: u16 = 12;
    /// Function-wide reset.
    pub const DEVICE_RESET: u16 = 13;
    /// Several small region writes in one message.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

const FLAG_TYPE_MASK: u32 = 0xf;
const FLAG_TYPE_COMMAND: u32 = 0;
const FLAG_TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// What the type bits of a header say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request of the peer.
    Command,
    /// An answer to one of our requests.
    Reply,
    /// Neither: the sender is confused.
    Unknown,
}

/// The fixed header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender, echoed in the reply.
    pub id: u16,
    /// One of [`command`].
    pub command: u16,
    /// Length of the whole message, header included.
    pub size: u32,
    /// Type, no-reply and error bits.
    pub flags: u32,
    /// errno of an error reply.
    pub error: u32,
}

impl Header {
    /// Header of a request from us.
    pub fn request(id: u16, command: u16, payload: usize) -> Header {
        Header { id, command, size: wire_size(payload), flags: FLAG_TYPE_COMMAND, error: 0 }
    }

    /// Reads the header from its 16 bytes.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Header {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Header {
            id: u16::from_ne_bytes([a, b]),
            command: u16::from_ne_bytes([c, d]),
            size: u32::from_ne_bytes([e, f, g, h]),
            flags: u32::from_ne_bytes([i, j, k, l]),
            error: u32::from_ne_bytes([m, n, o, p]),
        }
    }

    /// Writes the header as its 16 bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0..2].copy_from_slice(&self.id.to_ne_bytes());
        out[2..4].copy_from_slice(&self.command.to_ne_bytes());
        out[4..8].copy_from_slice(&self.size.to_ne_bytes());
        out[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        out[12..16].copy_from_slice(&self.error.to_ne_bytes());
        out
    }

    /// What kind of message this is.
    pub fn kind(&self) -> Kind {
        match self.flags & FLAG_TYPE_MASK {
            FLAG_TYPE_COMMAND => Kind::Command,
            FLAG_TYPE_REPLY => Kind::Reply,
            _ => Kind::Unknown,
        }
    }

    /// True if the sender of a command wants no reply, not even for an error.
    pub fn no_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY != 0
    }

    /// True if a reply reports an error.
    pub fn is_error(&self) -> bool {
        self.flags & FLAG_ERROR != 0
    }

    /// A whole successful reply to `self`.
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        let header = Header { size: wire_size(payload.len()), flags: FLAG_TYPE_REPLY, error: 0, ..*self };
        let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(payload);
        out
    }

    /// A whole error reply to `self`: the header alone, as the specification demands.
    pub fn error_reply(&self, errno: Errno) -> Vec<u8> {
        let header = Header {
            size: HEADER_LEN as u32,
            flags: FLAG_TYPE_REPLY | FLAG_ERROR,
            error: errno as i32 as u32,
            ..*self
        };
        header.encode().to_vec()
    }
}

/// Message size field for a payload; payloads of ours never come near the limit of the field.
fn wire_size(payload: usize) -> u32 {
    u32::try_from(HEADER_LEN + payload).unwrap_or(u32::MAX)
}

/// Takes fields off the front of a payload; a missing byte is `EINVAL`, never a panic.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Errno::EINVAL)?;
        self.0 = tail;
        Ok(*head)
    }

    /// The next 16-bit number.
    pub fn u16(&mut self) -> Result<u16, Errno> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Errno::EINVAL)?;
        self.0 = tail;
        Ok(head)
    }
}

/// Builds a payload field by field.
#[derive(Debug, Default)]
pub struct Payload(pub Vec<u8>);

impl Payload {
    /// Appends a 32-bit number.
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends a 64-bit number.
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_golden_bytes() {
        let header =
            Header { id: 0x0102, command: command::REGION_READ, size: 32, flags: FLAG_NO_REPLY, error: 0 };
        let mut golden = Vec::new();
        golden.extend_from_slice(&0x0102u16.to_ne_bytes());
        golden.extend_from_slice(&9u16.to_ne_bytes());
        golden.extend_from_slice(&32u32.to_ne_bytes());
        golden.extend_from_slice(&16u32.to_ne_bytes());
        golden.extend_from_slice(&0u32.to_ne_bytes());
        assert_eq!(header.encode().as_slice(), golden);
        assert_eq!(Header::decode(&header.encode()), header);
        assert!(header.no_reply());
        assert_eq!(header.kind(), Kind::Command);
    }

    #[test]
    fn error_reply_is_a_bare_header() {
        let request = Header::request(7, command::DMA_MAP, 32);
        let bytes = request.error_reply(Errno::EINVAL);
        let reply = Header::decode(bytes.as_slice().try_into().unwrap());
        assert_eq!((reply.id, reply.command, reply.size), (7, command::DMA_MAP, 16));
        assert!(reply.is_error());
        assert_eq!(reply.error, Errno::EINVAL as u32);
        assert_eq!(reply.kind(), Kind::Reply);
    }

    #[test]
    fn fields_end_with_an_error() {
        let bytes = [1, 0, 0, 0, 2];
        let mut fields = Fields(&bytes);
        assert_eq!(fields.u32(), Ok(u32::from_ne_bytes([1, 0, 0, 0])));
        assert_eq!(fields.u16(), Err(Errno::EINVAL));
        assert_eq!(fields.bytes(1), Ok(&[2][..]));
        assert_eq!(fields.bytes(1), Err(Errno::EINVAL));
    }
}
