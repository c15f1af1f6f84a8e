//! One connection as a stream of whole messages.
//!
//! The connection never blocks. It never loses step with the stream: a message too long to
//! be read is skipped byte by byte and reported as such. Header and body are read separately and
//! exactly, so that descriptors belong to the message they arrive with.
//!
//! It asks the client, too: memory without a descriptor is reached by messages ([`RemoteMemory`]), whose replies are taken
//! from the stream by whoever looks for commands.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use thiserror::Error;

use super::descriptor::Descriptor;
use super::turn::Turn;
use super::wire::{Fields, HEADER_LEN, Header, Kind, MAX_MESSAGE, MAX_MSG_FDS, Payload, command};
use crate::closer::Closer;
use crate::log::Source;
use crate::memory::{RemoteAnswer, RemoteError, RemoteMemory};
use crate::socket;
use crate::sync::lock;

/// How long a client may take for the oldest device-initiated DMA access before it fails, whatever else it answers meanwhile:
/// longer than a debugger or a migration stops QEMU. Nobody else waits for it.
const DMA_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// After this many accesses in a row that failed so none is sent any more on this connection.
const DMA_STRIKES: u32 = 4;
/// Device-initiated DMA messages that may wait for an answer: they have 16-bit numbers.
const MAX_QUESTIONS: usize = 1 << 14;
/// Bytes a client may leave unread before the connection counts as dead: twice what can wait by right, that is writes to its
/// memory of 4 MiB and a reply of 1 MiB, since no command is taken before the one before it is answered.
const MAX_UNSENT: usize = 10 << 20;
/// Descriptors of no use here that may wait to be closed ([`Closer`]): more than come with one message.
pub(super) const MAX_CLOSING: usize = 256;
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
    pub fds: Vec<Descriptor>,
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
    /// There is no memory for a message.
    #[error("no memory for a message of {0} bytes")]
    NoMemory(usize),
    /// The client sent descriptors that can't be closed in a while.
    #[error("descriptors that take too long to be closed")]
    Closing,
    /// The client doesn't read its replies.
    #[error("client does not read its replies")]
    Stuffed,
    /// Memory that the client had handed over was not there when it was accessed.
    #[error("memory that it had handed over is gone")]
    MemoryLost,
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
    held: Vec<Descriptor>,
    /// Why they are refused: there were too many, or some of no use.
    refused: Option<Errno>,
    log: Source,
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
    unsent: VecDeque<u8>,
    next_id: u16,
    /// DMA messages without an answer, by their numbers.
    questions: BTreeMap<u16, Question>,
    /// The oldest access, and since when it is that.
    oldest: Option<(u64, Instant)>,
    strikes: u32,
    /// What they are for, by ticket.
    accesses: BTreeMap<u64, Access>,
    answers: VecDeque<RemoteAnswer>,
    /// The client's memory was not there when it was accessed.
    memory_lost: bool,
    /// Where descriptors are closed that are of no use.
    pub(super) closer: Closer,
    /// Largest count of a DMA message, as negotiated.
    pub max_data_xfer: usize,
    /// How long the client may leave DMA messages without any answer.
    pub dma_timeout: Duration,
}

/// A DMA message that waits for its answer.
#[derive(Debug)]
struct Question {
    command: u16,
    address: u64,
    count: usize,
    ticket: u64,
    /// Place of its bytes in the access.
    offset: usize,
}

/// An access to the client's memory, by one message or several.
#[derive(Debug)]
struct Access {
    /// What was read.
    data: Vec<u8>,
    /// Messages that are not answered.
    left: usize,
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
            unsent: VecDeque::new(),
            next_id: 0,
            questions: BTreeMap::new(),
            oldest: None,
            strikes: 0,
            accesses: BTreeMap::new(),
            answers: VecDeque::new(),
            memory_lost: false,
            closer: Closer::default(),
            max_data_xfer: 1 << 20,
            dma_timeout: DMA_REPLY_TIMEOUT,
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

    /// The next whole command, or `None` if there is none yet or the turn is over. Replies to DMA messages on the way are
    /// taken, and count as well.
    ///
    /// # Errors
    /// Any [`ConnectionError`] ends the connection.
    pub fn next_command(&mut self, turn: &mut Turn) -> Result<Option<Message>, ConnectionError> {
        if self.memory_lost {
            return Err(ConnectionError::MemoryLost);
        }
        while turn.goes_on() {
            let Some(message) = self.next_message(turn)? else { return Ok(None) };
            turn.count_message();
            match message.header.kind() {
                Kind::Reply => self.answered(&message),
                Kind::Command | Kind::Unknown => return Ok(Some(message)),
            }
        }
        Ok(None)
    }

    fn next_message(&mut self, turn: &mut Turn) -> Result<Option<Message>, ConnectionError> {
        loop {
            if self.closer.pending() > MAX_CLOSING {
                return Err(ConnectionError::Closing);
            }
            match &mut self.reading {
                Reading::Header { have } => {
                    let Some(rest) = self.header.get_mut(*have..) else {
                        return Err(ConnectionError::Truncated);
                    };
                    let closed =
                        if *have == 0 { ConnectionError::Closed } else { ConnectionError::Truncated };
                    let Some(got) = receive(&self.stream, rest, turn, &mut self.fds, &self.closer, closed)?
                    else {
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
                        self.body.try_reserve_exact(left).map_err(|_| ConnectionError::NoMemory(left))?;
                        self.body.resize(left, 0);
                        Reading::Body { header, have: 0 }
                    };
                }
                Reading::Body { header, have } => {
                    if *have < self.body.len() {
                        let rest = self.body.get_mut(*have..).unwrap_or_default();
                        let closed = ConnectionError::Truncated;
                        let Some(got) =
                            receive(&self.stream, rest, turn, &mut self.fds, &self.closer, closed)?
                        else {
                            return Ok(None);
                        };
                        *have += got;
                        continue;
                    }
                    let header = *header;
                    self.reading = Reading::Header { have: 0 };
                    return Ok(Some(Message {
                        header,
                        payload: std::mem::take(&mut self.body),
                        fds: std::mem::take(&mut self.fds.held),
                        fault: self.fds.refused.take(),
                    }));
                }
                Reading::Skip { header, left } => {
                    if *left > 0 {
                        let mut sink = [0; DISCARD_CHUNK];
                        let rest = sink.get_mut(..(*left).min(DISCARD_CHUNK)).unwrap_or_default();
                        let closed = ConnectionError::Truncated;
                        let Some(got) =
                            receive(&self.stream, rest, turn, &mut self.fds, &self.closer, closed)?
                        else {
                            return Ok(None);
                        };
                        *left = left.saturating_sub(got);
                        continue;
                    }
                    let header = *header;
                    self.reading = Reading::Header { have: 0 };
                    (self.fds.held, self.fds.refused) = (Vec::new(), None);
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

    /// Sends the messages of an access to `len` bytes of client memory ("VFIO_USER_DMA_READ", "VFIO_USER_DMA_WRITE"); `data`:
    /// what is written.
    fn ask(
        &mut self,
        ticket: u64,
        command: u16,
        address: u64,
        len: usize,
        data: Option<&[u8]>,
    ) -> Result<(), RemoteError> {
        if self.strikes >= DMA_STRIKES {
            return Err(RemoteError::TimedOut);
        }
        let step = self.max_data_xfer.max(1);
        let messages = len.div_ceil(step);
        if self.questions.len() + messages > MAX_QUESTIONS {
            return Err(RemoteError::Lost);
        }
        for offset in (0..len).step_by(step) {
            let count = step.min(len - offset);
            let address = address.wrapping_add(offset as u64);
            let mut payload = Payload::default().u64(address).u64(count as u64);
            if let Some(data) = data {
                payload = payload.bytes(data.get(offset..).and_then(|d| d.get(..count)).unwrap_or_default());
            }
            let id = self.free_id();
            let mut bytes = Header::request(id, command, payload.0.len()).encode().to_vec();
            bytes.extend_from_slice(&payload.0);
            self.send(&bytes).map_err(|_| RemoteError::Lost)?;
            self.questions.insert(id, Question { command, address, count, ticket, offset });
        }
        let data = if data.is_some() { Vec::new() } else { vec![0; len] };
        self.accesses.insert(ticket, Access { data, left: messages });
        self.look_at_oldest();
        Ok(())
    }

    /// A number that no open question has. There are four times as many as questions.
    fn free_id(&mut self) -> u16 {
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if !self.questions.contains_key(&id) {
                return id;
            }
        }
    }

    /// The clock starts again when another access is the oldest.
    fn look_at_oldest(&mut self) {
        let oldest = self.accesses.first_key_value().map(|(ticket, _)| *ticket);
        if oldest != self.oldest.map(|(ticket, _)| ticket) {
            self.oldest = oldest.map(|ticket| (ticket, Instant::now()));
        }
    }

    /// A reply of the client. One to a message that was given up, or to none at all, is for nobody.
    fn answered(&mut self, message: &Message) {
        let header = message.header;
        if self.questions.get(&header.id).is_none_or(|question| question.command != header.command) {
            return;
        }
        let Some(question) = self.questions.remove(&header.id) else { return };
        let result = if header.is_error() {
            Err(RemoteError::Refused(Errno::from_raw(i32::try_from(header.error).unwrap_or(0))))
        } else if question.command == command::DMA_READ {
            check_dma_reply(&message.payload, &question)
        } else {
            Ok(&[][..])
        };
        self.conclude(&question, result);
    }

    /// What came of a message: with the last one of its access, that is answered.
    fn conclude(&mut self, question: &Question, result: Result<&[u8], RemoteError>) {
        let Some(access) = self.accesses.get_mut(&question.ticket) else { return };
        access.left = access.left.saturating_sub(1);
        if let Ok(bytes) = result {
            let to = access.data.get_mut(question.offset..).unwrap_or_default();
            to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        }
        let done = access.left == 0 || result.is_err();
        if let Some(Access { data, .. }) = done.then(|| self.accesses.remove(&question.ticket)).flatten() {
            self.strikes = 0;
            self.look_at_oldest();
            if result.is_err() {
                // Of its other messages nobody waits for an answer.
                self.questions.retain(|_, other| other.ticket != question.ticket);
            }
            self.answers.push_back(RemoteAnswer { ticket: question.ticket, result: result.map(|_| data) });
        }
    }

    /// Gives up the oldest access if the client takes too long for it; all of them if that is so too often.
    fn give_up(&mut self) {
        let Some((oldest, since)) = self.oldest else { return };
        if since.elapsed() < self.dma_timeout {
            return;
        }
        self.strikes += 1;
        let all = self.strikes >= DMA_STRIKES;
        if all {
            tracing::warn!(
                "client does not answer DMA messages: memory without a descriptor is out of reach from here on"
            );
        }
        let given_up = |ticket: u64| all || ticket == oldest;
        self.questions.retain(|_, question| !given_up(question.ticket));
        let answers = &mut self.answers;
        self.accesses.retain(|ticket, _| {
            let over = given_up(*ticket);
            if over {
                answers.push_back(RemoteAnswer { ticket: *ticket, result: Err(RemoteError::TimedOut) });
            }
            !over
        });
        self.look_at_oldest();
    }
}

impl RemoteMemory for Mutex<Connection> {
    fn read(&self, ticket: u64, iova: u64, len: usize) -> Result<(), RemoteError> {
        lock(self).ask(ticket, command::DMA_READ, iova, len, None)
    }

    fn write(&self, ticket: u64, iova: u64, data: &[u8]) -> Result<(), RemoteError> {
        lock(self).ask(ticket, command::DMA_WRITE, iova, data.len(), Some(data))
    }

    fn next_answer(&self) -> Option<RemoteAnswer> {
        let mut connection = lock(self);
        connection.give_up();
        connection.answers.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let connection = lock(self);
        connection.oldest.and_then(|(_, since)| since.checked_add(connection.dma_timeout))
    }

    fn memory_lost(&self) {
        let mut connection = lock(self);
        connection.memory_lost = true;
        // Whoever polls it hears of that, and that is the end of the connection.
        let _ = connection.stream.shutdown(Shutdown::Both);
    }
}

/// The bytes of a reply to a read.
fn check_dma_reply<'a>(reply: &'a [u8], question: &Question) -> Result<&'a [u8], RemoteError> {
    let mut fields = Fields(reply);
    match (fields.u64(), fields.u64()) {
        (Ok(address), Ok(count))
            if address == question.address
                && count == question.count as u64
                && fields.0.len() == question.count =>
        {
            Ok(fields.0)
        }
        _ => Err(RemoteError::Malformed),
    }
}

/// One receive: `None` if it would block or the turn is over, `closed` at end of stream.
fn receive(
    stream: &UnixStream,
    buf: &mut [u8],
    turn: &mut Turn,
    fds: &mut Fds,
    closer: &Closer,
    closed: ConnectionError,
) -> Result<Option<usize>, ConnectionError> {
    let room = turn.room().min(buf.len());
    let Some(buf) = buf.get_mut(..room).filter(|buf| !buf.is_empty()) else { return Ok(None) };
    loop {
        let mut came = Vec::new();
        let result = socket::receive(stream.as_fd(), buf, &mut came);
        let (sent, before) = (came.len(), fds.held.len());
        fds.held.extend(came.into_iter().filter_map(|fd| Descriptor::new(fd, closer)));
        let useless = sent.saturating_sub(fds.held.len().saturating_sub(before));
        if useless > 0 {
            fds.log.say(|| {
                tracing::warn!(
                    "a client's descriptor is neither memory (a memfd, or a file on tmpfs or hugetlbfs) nor an eventfd"
                );
            });
            fds.refused = Some(Errno::ENODEV);
        } else if fds.held.len() > MAX_MSG_FDS {
            fds.refused = Some(Errno::EINVAL);
        }
        if fds.refused.is_some() {
            fds.held.clear();
        }
        match result {
            Ok((0, _)) => return Err(closed),
            Ok((n, lost)) => {
                if lost {
                    fds.refused = Some(Errno::EMFILE);
                }
                turn.count_bytes(n);
                return Ok(Some(n));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(closed),
            Err(e) => return Err(e.into()),
        }
    }
}
