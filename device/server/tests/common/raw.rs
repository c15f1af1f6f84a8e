//! A vfio-user client that can say anything, and reads what is said to it.
//!
//! Source: "vfio-user Protocol Specification" 0.x. The suite `adversary` uses it too.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// A reply as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// That of the command.
    pub id: u16,
    /// What is answered.
    pub command: u16,
    /// Type and error bits.
    pub flags: u32,
    /// errno of an error.
    pub error: u32,
    /// What follows the header.
    pub payload: Vec<u8>,
}

impl Reply {
    /// The payload of a reply that must not be an error.
    pub fn ok(self) -> Vec<u8> {
        assert_eq!((self.flags, self.error), (1, 0), "{self:?}");
        self.payload
    }

    /// The errno of a reply that must be an error.
    pub fn errno(self) -> i32 {
        assert_eq!(self.flags, 1 | 1 << 5, "{self:?}");
        assert!(self.payload.is_empty());
        self.error as i32
    }
}

/// A client without manners.
pub struct Raw {
    /// The connection.
    pub stream: UnixStream,
    next_id: u16,
}

impl Raw {
    /// Connects, and says nothing yet.
    pub fn connect(path: &Path) -> Raw {
        Raw::over(UnixStream::connect(path).unwrap())
    }

    /// A client on a connection that was made before.
    pub fn over(stream: UnixStream) -> Raw {
        // A guard against hanging tests, not a measurement.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Raw { stream, next_id: 1 }
    }

    /// Negotiates the version as QEMU does ("VFIO_USER_VERSION").
    pub fn negotiate(&mut self) {
        self.negotiate_with("{\"max_msg_fds\":16}");
    }

    /// Negotiates the version with these capabilities, as JSON.
    pub fn negotiate_with(&mut self, capabilities: &str) {
        let mut payload = vec![0, 0, 0, 0];
        payload.extend_from_slice(format!("{{\"capabilities\":{capabilities}}}\0").as_bytes());
        self.call(1, &payload).ok();
    }

    /// Bytes of a message's header; `size` in bytes, with the header.
    pub fn header(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&id.to_ne_bytes());
        out.extend_from_slice(&command.to_ne_bytes());
        out.extend_from_slice(&size.to_ne_bytes());
        out.extend_from_slice(&flags.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out
    }

    /// Bytes of a message with the next id.
    pub fn message(&mut self, command: u16, payload: &[u8], flags: u32) -> Vec<u8> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let mut out = Raw::header(id, command, 16 + payload.len() as u32, flags);
        out.extend_from_slice(payload);
        out
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, command: u16, payload: &[u8]) -> Reply {
        self.call_fds(command, payload, &[])
    }

    /// The same, with descriptors.
    pub fn call_fds(&mut self, command: u16, payload: &[u8], fds: &[RawFd]) -> Reply {
        let message = self.message(command, payload, 0);
        self.send_fds(&message, fds);
        let reply = self.reply().unwrap();
        assert_eq!(reply.id, self.next_id.wrapping_sub(1));
        assert_eq!(reply.command, command);
        reply
    }

    /// Sends bytes, descriptors with the first of them.
    pub fn send_fds(&mut self, bytes: &[u8], fds: &[RawFd]) {
        self.try_send_fds(bytes, fds).unwrap();
    }

    /// The same.
    ///
    /// # Errors
    /// The server has closed the connection.
    pub fn try_send_fds(&mut self, bytes: &[u8], fds: &[RawFd]) -> std::io::Result<()> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let iov = [IoSlice::new(bytes)];
        let sent = sendmsg::<()>(self.stream.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL, None)?;
        self.stream.write_all(&bytes[sent..])
    }

    /// The next message of the server.
    ///
    /// # Errors
    /// The server has closed the connection, or says nothing for a minute.
    pub fn reply(&mut self) -> std::io::Result<Reply> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let u32_at = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; u32_at(4) as usize - 16];
        self.stream.read_exact(&mut payload)?;
        Ok(Reply {
            id: u16::from_ne_bytes([head[0], head[1]]),
            command: u16::from_ne_bytes([head[2], head[3]]),
            flags: u32_at(8),
            error: u32_at(12),
            payload,
        })
    }

    /// True if the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut sink = [0; 4096];
        loop {
            match self.stream.read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Reads `count` bytes of a region.
    pub fn region_read(&mut self, region: u32, offset: u64, count: u32) -> Reply {
        self.call(9, &access(region, offset, count))
    }

    /// Writes a region.
    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Reply {
        let mut payload = access(region, offset, data.len() as u32);
        payload.extend_from_slice(data);
        self.call(10, &payload)
    }

    /// Vendor and device id by way of configuration space: shows that the stream is in step.
    pub fn identity(&mut self) -> u32 {
        let payload = self.region_read(7, 0, 4).ok();
        u32::from_le_bytes(payload[16..].try_into().unwrap())
    }
}

/// What [`Raw::identity`] is.
pub const IDENTITY: u32 = 0x1013_15b3;

/// Payload of an access to a region ("VFIO_USER_REGION_READ").
pub fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut out = offset.to_ne_bytes().to_vec();
    out.extend_from_slice(&region.to_ne_bytes());
    out.extend_from_slice(&count.to_ne_bytes());
    out
}

/// Payload of a window of memory ("VFIO_USER_DMA_MAP"), bytes.
pub fn dma_map(iova: u64, size: u64, offset: u64) -> Vec<u8> {
    let mut out = 32u32.to_ne_bytes().to_vec();
    out.extend_from_slice(&3u32.to_ne_bytes());
    for n in [offset, iova, size] {
        out.extend_from_slice(&n.to_ne_bytes());
    }
    out
}

/// Payload of a window that goes ("VFIO_USER_DMA_UNMAP").
pub fn dma_unmap(flags: u32, iova: u64, size: u64) -> Vec<u8> {
    let mut out = 24u32.to_ne_bytes().to_vec();
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&iova.to_ne_bytes());
    out.extend_from_slice(&size.to_ne_bytes());
    out
}

/// Payload of "VFIO_USER_DEVICE_SET_IRQS".
pub fn set_irqs(flags: u32, index: u32, start: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for n in [20 + data.len() as u32, flags, index, start, count] {
        out.extend_from_slice(&n.to_ne_bytes());
    }
    out.extend_from_slice(data);
    out
}

/// Memory of `len` bytes.
pub fn memfd(len: u64) -> File {
    let fd = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::empty()).unwrap();
    let file = File::from(fd);
    file.set_len(len).unwrap();
    file
}

/// An event descriptor that doesn't block.
pub fn eventfd() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()
}
