//! One connection as a stream of whole messages.
//!
//! The connection never blocks, except in [`Connection::dma_read`] and [`Connection::dma_write`], which wait for the
//! client's answer for a bounded time. It never loses step with the stream: a message too long to
//! be read is skipped byte by byte and reported as such. Header and body are read separately and
//! exactly, so that descriptors belong to the message they arrive with.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use thiserror::Error;

use super::socket;
use super::wire::{Fields, HEADER_LEN, Header, Kind, MAX_MESSAGE, MAX_MSG_FDS, Payload, command};
use crate::memory::{RemoteError, RemoteMemory};
use crate::sync::lock;

/// How long one device-initiated DMA message may take before the access fails.
const DMA_REPLY_TIMEOUT: Duration = Duration::from_millis(250);
/// After this many unanswered DMA messages in a row none is sent any more on this connection.
const DMA_STRIKES: u32 = 4;
/// Messages that may queue up behind one device-initiated DMA.
const MAX_QUEUED: usize = 4096;
/// Reply bytes a client may leave unread before the connection counts as dead.
const MAX_UNSENT: usize = 16 << 20;
/// Bytes skipped per system call when an oversized message is discarded.
const DISCARD_CHUNK: usize = 16 << 10;

/// One whole message of the client.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// Everything behind the header.
    pub payload: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    /// Set if the message was not taken whole (too long, too many descriptors): the errno to
    /// answer with. `payload` and `fds` may be empty then.
    pub fault: Option<Errno>,
}

/// Why a connection ends.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The client closed the connection.
    #[error("closed by the client")]
    Closed,
    /// The client closed it in the middle of a message.
    #[error("closed by the client in the middle of a message")]
    Truncated,
    /// The length field of a header is impossible, so the next message cannot be found.
    #[error("message size {0} is shorter than a header: stream is out of step")]
    OutOfStep(u32),
    /// The client doesn't read its replies.
    #[error("client does not read its replies")]
    Stuffed,
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
enum Reading {
    Header { have: usize },
    Body { header: Header, have: usize },
    Skip { header: Header, left: usize },
}

/// Descriptors of the message being read, bounded so that a client can't exhaust ours.
#[derive(Debug, Default)]
struct Fds {
    held: Vec<OwnedFd>,
    too_many: bool,
}

/// A client connection.
#[derive(Debug)]
pub struct Connection {
    /// Shared with who polls it.
    stream: Arc<UnixStream>,
    reading: Reading,
    header: [u8; HEADER_LEN],
    body: Vec<u8>,
    fds: Fds,
    /// Commands received while waiting for the answer to a DMA message.
    queued: VecDeque<Message>,
    unsent: VecDeque<u8>,
    next_id: u16,
    strikes: u32,
    /// Largest count of a DMA message, as negotiated.
    pub max_data_xfer: usize,
}

impl Connection {
    /// Takes over a connected stream.
    pub fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream: Arc::new(stream),
            reading: Reading::Header { have: 0 },
            header: [0; HEADER_LEN],
            body: Vec::new(),
            fds: Fds::default(),
            queued: VecDeque::new(),
            unsent: VecDeque::new(),
            next_id: 0,
            strikes: 0,
            max_data_xfer: 1 << 20,
        })
    }

    /// The socket, to be polled while the connection is locked by nobody.
    pub fn stream(&self) -> Arc<UnixStream> {
        Arc::clone(&self.stream)
    }

    /// True while replies wait for the client to read; no command is taken meanwhile.
    pub fn is_congested(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// True if commands wait that no `poll` will announce any more.
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The next whole command, or `None` if there is none yet.
    ///
    /// # Errors
    /// Any [`ConnectionError`] ends the connection.
    pub fn next_command(&mut self) -> Result<Option<Message>, ConnectionError> {
        if let Some(message) = self.queued.pop_front() {
            return Ok(Some(message));
        }
        while let Some(message) = self.next_message()? {
            match message.header.kind() {
                // A late answer to a DMA message that we gave up.
                Kind::Reply => {}
                Kind::Command | Kind::Unknown => return Ok(Some(message)),
            }
        }
        Ok(None)
    }

    fn next_message(&mut self) -> Result<Option<Message>, ConnectionError> {
        loop {
            match &mut self.reading {
                Reading::Header { have } => {
                    let Some(rest) = self.header.get_mut(*have..) else {
                        return Err(ConnectionError::Truncated);
                    };
                    let closed =
                        if *have == 0 { ConnectionError::Closed } else { ConnectionError::Truncated };
                    let Some(got) = receive(&self.stream, rest, &mut self.fds, closed)? else {
                        return Ok(None);
                    };
                    *have += got;
                    if *have < HEADER_LEN {
                        continue;
                    }
                    let header = Header::decode(&self.header);
                    let size = header.size as usize;
                    let Some(left) = size.checked_sub(HEADER_LEN) else {
                        return Err(ConnectionError::OutOfStep(header.size));
                    };
                    self.reading = if size > MAX_MESSAGE {
                        Reading::Skip { header, left }
                    } else {
                        self.body.clear();
                        self.body.resize(left, 0);
                        Reading::Body { header, have: 0 }
                    };
                }
                Reading::Body { header, have } => {
                    if *have < self.body.len() {
                        let rest = self.body.get_mut(*have..).unwrap_or_default();
                        let closed = ConnectionError::Truncated;
                        let Some(got) = receive(&self.stream, rest, &mut self.fds, closed)? else {
                            return Ok(None);
                        };
                        *have += got;
                        continue;
                    }
                    let header = *header;
                    self.reading = Reading::Header { have: 0 };
                    let fds = std::mem::take(&mut self.fds);
                    return Ok(Some(Message {
                        header,
                        payload: std::mem::take(&mut self.body),
                        fds: fds.held,
                        fault: fds.too_many.then_some(Errno::EINVAL),
                    }));
                }
                Reading::Skip { header, left } => {
                    if *left > 0 {
                        let mut sink = [0; DISCARD_CHUNK];
                        let rest = sink.get_mut(..(*left).min(DISCARD_CHUNK)).unwrap_or_default();
                        let closed = ConnectionError::Truncated;
                        let Some(got) = receive(&self.stream, rest, &mut self.fds, closed)? else {
                            return Ok(None);
                        };
                        *left = left.saturating_sub(got);
                        continue;
                    }
                    let header = *header;
                    self.reading = Reading::Header { have: 0 };
                    self.fds = Fds::default();
                    return Ok(Some(Message {
                        header,
                        payload: Vec::new(),
                        fds: Vec::new(),
                        fault: Some(Errno::EMSGSIZE),
                    }));
                }
            }
        }
    }

    /// Sends a whole message, or keeps what the socket does not take for [`Connection::flush`].
    ///
    /// # Errors
    /// [`ConnectionError::Stuffed`] if too much is waiting, [`ConnectionError::Io`] if the socket failed.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.flush()?;
        let mut rest = bytes;
        while self.unsent.is_empty() && !rest.is_empty() {
            match socket::send(self.stream.as_fd(), rest) {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        if self.unsent.len() + rest.len() > MAX_UNSENT {
            return Err(ConnectionError::Stuffed);
        }
        self.unsent.extend(rest);
        Ok(())
    }

    /// Sends what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// [`ConnectionError::Io`] if the socket failed.
    pub fn flush(&mut self) -> Result<(), ConnectionError> {
        while !self.unsent.is_empty() {
            let (front, _) = self.unsent.as_slices();
            match socket::send(self.stream.as_fd(), front) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Reads client memory by messages ("VFIO_USER_DMA_READ").
    ///
    /// # Errors
    /// A [`RemoteError`]; `buf` is undefined then.
    pub fn dma_read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), RemoteError> {
        let step = self.max_data_xfer;
        let mut at = address;
        for part in buf.chunks_mut(step) {
            let count = part.len() as u64;
            let request = Payload::default().u64(at).u64(count);
            let reply = self.dma_message(command::DMA_READ, &request.0)?;
            let data = check_dma_reply(&reply, at, count)?;
            if data.len() != part.len() {
                return Err(RemoteError::Malformed);
            }
            part.copy_from_slice(data);
            at = at.wrapping_add(count);
        }
        Ok(())
    }

    /// Writes client memory by messages ("VFIO_USER_DMA_WRITE").
    ///
    /// # Errors
    /// A [`RemoteError`]; a part may have been written.
    pub fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), RemoteError> {
        let step = self.max_data_xfer;
        let mut at = address;
        for part in data.chunks(step) {
            let count = part.len() as u64;
            let request = Payload::default().u64(at).u64(count).bytes(part);
            self.dma_message(command::DMA_WRITE, &request.0)?;
            at = at.wrapping_add(count);
        }
        Ok(())
    }

    /// Sends one request of ours and waits for its answer, queueing commands that come in between.
    fn dma_message(&mut self, command: u16, payload: &[u8]) -> Result<Vec<u8>, RemoteError> {
        if self.strikes >= DMA_STRIKES {
            return Err(RemoteError::TimedOut);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let mut bytes = Header::request(id, command, payload.len()).encode().to_vec();
        bytes.extend_from_slice(payload);
        let lost = |_| RemoteError::Lost;
        self.send(&bytes).map_err(lost)?;

        let deadline = Instant::now() + DMA_REPLY_TIMEOUT;
        loop {
            self.flush().map_err(lost)?;
            while let Some(message) = self.next_message().map_err(lost)? {
                let header = message.header;
                if header.kind() != Kind::Reply {
                    if self.queued.len() >= MAX_QUEUED {
                        return Err(RemoteError::Lost);
                    }
                    self.queued.push_back(message);
                } else if header.id == id && header.command == command {
                    self.strikes = 0;
                    if header.is_error() {
                        let errno = i32::try_from(header.error).unwrap_or(0);
                        return Err(RemoteError::Refused(Errno::from_raw(errno)));
                    }
                    return Ok(message.payload);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.strikes += 1;
                if self.strikes == DMA_STRIKES {
                    tracing::warn!(
                        "client does not answer DMA messages: memory without a descriptor is out of \
                         reach from here on"
                    );
                }
                return Err(RemoteError::TimedOut);
            }
            let mut events = PollFlags::POLLIN;
            if self.is_congested() {
                events |= PollFlags::POLLOUT;
            }
            let mut fds = [PollFd::new(self.stream.as_fd(), events)];
            let millis = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
            match nix::poll::poll(&mut fds, PollTimeout::from(millis)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return Err(RemoteError::Lost),
            }
        }
    }
}

impl RemoteMemory for Mutex<Connection> {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), RemoteError> {
        lock(self).dma_read(iova, buf)
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), RemoteError> {
        lock(self).dma_write(iova, data)
    }
}

fn check_dma_reply(reply: &[u8], address: u64, count: u64) -> Result<&[u8], RemoteError> {
    let mut fields = Fields(reply);
    match (fields.u64(), fields.u64()) {
        (Ok(a), Ok(c)) if a == address && c == count => Ok(fields.0),
        _ => Err(RemoteError::Malformed),
    }
}

/// One receive: `None` if it would block, `closed` at end of stream.
fn receive(
    stream: &UnixStream,
    buf: &mut [u8],
    fds: &mut Fds,
    closed: ConnectionError,
) -> Result<Option<usize>, ConnectionError> {
    loop {
        let result = socket::receive(stream.as_fd(), buf, &mut fds.held);
        if fds.held.len() > MAX_MSG_FDS {
            fds.held.clear();
            fds.too_many = true;
        }
        match result {
            Ok(0) => return Err(closed),
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(closed),
            Err(e) => return Err(e.into()),
        }
    }
}
