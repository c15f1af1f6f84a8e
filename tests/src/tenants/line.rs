//! A vfio-user connection of the attacker: says anything, never waits for long, and answers the server's questions about
//! memory, mostly as it should.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};

use super::memory::Memory;
use crate::raw::{Raw, Reply};
use crate::seeded::Random;

/// vfio-user commands.
pub const VERSION: u16 = 1;
/// A window of memory comes.
pub const DMA_MAP: u16 = 2;
/// It goes.
pub const DMA_UNMAP: u16 = 3;
/// Event descriptors.
pub const SET_IRQS: u16 = 8;
/// A region is read.
pub const REGION_READ: u16 = 9;
/// A region is written.
pub const REGION_WRITE: u16 = 10;
/// The server reads memory.
pub const DMA_READ: u16 = 11;
/// The function is reset.
pub const RESET: u16 = 13;
/// Header flag: no reply is wanted.
pub const NO_REPLY: u32 = 1 << 4;
/// Header flags of a reply, and of one that is an error.
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;
const TYPE: u32 = 0xf;
/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes of a question of the server: address and count.
const QUESTION: usize = 16;
/// Replies that are kept; who does not look for them does not want them.
const KEPT: usize = 64;
/// A server that takes nothing and says nothing that often, for [`PAUSE`] each, is stuck.
const PATIENCE: u32 = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// The server has closed the connection, as it may when it is told nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// A connection.
pub struct Line {
    raw: Raw,
    inbox: Vec<u8>,
    replies: VecDeque<Reply>,
    /// What was said last was no whole message: what comes now is its rest, and is not answered.
    out_of_step: bool,
    /// How questions are answered. When they come is the server's affair, so that this is nothing a step depends on.
    whim: Random,
}

impl Line {
    /// Connects and negotiates the version.
    ///
    /// # Errors
    /// The server closes the connection: it may still be busy with the one before.
    pub fn connect(socket: &Path, seed: u64) -> Result<Self, Closed> {
        let stream = std::os::unix::net::UnixStream::connect(socket).map_err(|_| Closed)?;
        let (raw, whim) = (Raw::over(stream), Random::new(seed));
        let mut line = Self { raw, inbox: Vec::new(), replies: VecDeque::new(), out_of_step: false, whim };
        let payload = [&[0; 4][..], b"{\"capabilities\":{\"max_msg_fds\":16}}\0"].concat();
        match line.call(VERSION, &payload, &[], None)?.flags & ERROR {
            0 => Ok(line),
            _ => Err(Closed),
        }
    }

    /// Sends a command; gives its number. `memory` answers what the server asks meanwhile.
    ///
    /// # Errors
    /// The connection is closed.
    ///
    /// # Panics
    /// If the server takes nothing for a minute.
    pub fn say(
        &mut self,
        command: u16,
        payload: &[u8],
        (fds, flags): (&[RawFd], u32),
        memory: Option<&Memory>,
    ) -> Result<u16, Closed> {
        let message = self.raw.message(command, payload, flags);
        self.send(&message, fds, memory)?;
        Ok(u16::from_ne_bytes([message[0], message[1]]))
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// The connection is closed.
    ///
    /// # Panics
    /// If the server does not answer for a minute.
    pub fn call(
        &mut self,
        command: u16,
        payload: &[u8],
        fds: &[RawFd],
        memory: Option<&Memory>,
    ) -> Result<Reply, Closed> {
        if self.out_of_step {
            return Err(Closed);
        }
        let id = self.say(command, payload, (fds, 0), memory)?;
        for _ in 0..PATIENCE {
            self.hear(memory)?;
            if let Some(at) = self.replies.iter().position(|reply| reply.id == id) {
                return self.replies.remove(at).ok_or(Closed);
            }
            self.wait(PollFlags::POLLIN);
        }
        panic!("the server does not answer command {command}");
    }

    /// Sends bytes that are no message, or the beginning of one.
    ///
    /// # Errors
    /// The connection is closed.
    ///
    /// # Panics
    /// If the server takes nothing for a minute.
    pub fn babble(&mut self, bytes: &[u8], memory: Option<&Memory>) -> Result<(), Closed> {
        self.out_of_step = true;
        self.send(bytes, &[], memory)
    }

    /// Sends bytes, with descriptors beside the first of them.
    fn send(&mut self, bytes: &[u8], fds: &[RawFd], memory: Option<&Memory>) -> Result<(), Closed> {
        let (mut sent, mut tries) = (0, 0);
        while sent < bytes.len() {
            let rights = [ControlMessage::ScmRights(fds)];
            let control = if fds.is_empty() || sent > 0 { &[][..] } else { &rights[..] };
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            match sendmsg::<()>(self.fd(), &[IoSlice::new(&bytes[sent..])], control, flags, None) {
                Ok(now) => {
                    sent += now;
                    tries = 0;
                }
                Err(Errno::EAGAIN | Errno::ETOOMANYREFS) => {
                    tries += 1;
                    assert!(tries < PATIENCE, "the server takes nothing");
                    self.hear(memory)?;
                    self.wait(PollFlags::POLLIN | PollFlags::POLLOUT);
                }
                Err(_) => return Err(Closed),
            }
        }
        Ok(())
    }

    /// Ends the connection.
    pub fn close(&self) {
        // The server may have been faster.
        let _ = self.raw.stream.shutdown(Shutdown::Both);
    }

    fn fd(&self) -> RawFd {
        self.raw.stream.as_raw_fd()
    }

    fn wait(&self, what: PollFlags) {
        let mut fds = [PollFd::new(self.raw.stream.as_fd(), what)];
        // Interrupted or in vain: the caller looks again.
        let _ = poll(&mut fds, PollTimeout::try_from(PAUSE).unwrap_or(PollTimeout::ZERO));
    }

    /// Takes what the server has said, and answers its questions.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn hear(&mut self, memory: Option<&Memory>) -> Result<(), Closed> {
        let mut piece = [0; 1 << 14];
        loop {
            match recv(self.fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Closed),
                Ok(len) => self.inbox.extend_from_slice(&piece[..len]),
                Err(Errno::EAGAIN) => break,
                Err(_) => return Err(Closed),
            }
        }
        let mut at = 0;
        while let Some((message, len)) = whole(&self.inbox[at..]) {
            at += len;
            if message.flags & TYPE == REPLY {
                self.replies.truncate(KEPT - 1);
                self.replies.push_front(message);
            } else if let Some(answer) = memory.and_then(|memory| self.answer(&message, memory)) {
                // One that finds the socket full is one that never comes.
                let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                let whole = sendmsg::<()>(self.fd(), &[IoSlice::new(&answer)], &[], flags, None);
                if whole.is_ok_and(|sent| sent < answer.len()) {
                    return Err(Closed);
                }
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }

    /// What is said to a question of the server: mostly the truth.
    fn answer(&mut self, question: &Reply, memory: &Memory) -> Option<Vec<u8>> {
        let word = |at: usize| {
            let bytes = question.payload.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        let (address, count) = (word(0)?, word(8)?);
        let mut payload = question.payload.get(..QUESTION)?.to_vec();
        if question.command == DMA_READ {
            let len = usize::try_from(count).ok().filter(|len| *len <= 1 << 20)?;
            payload.extend_from_slice(&memory.take(address, len));
        } else {
            memory.put(address, question.payload.get(QUESTION..)?);
        }
        let (mut id, mut flags, mut command) = (question.id, REPLY, question.command);
        match self.whim.below(64) {
            0 => return None,
            1 => id = id.wrapping_add(1),
            2 => flags |= ERROR,
            3 => command ^= 1,
            4 => payload.truncate(self.whim.below(payload.len())),
            5 => payload.extend([0; 9]),
            _ => {}
        }
        let mut message = Raw::header(id, command, (HEADER + payload.len()) as u32, flags);
        message.extend_from_slice(&payload);
        Some(message)
    }
}

/// The first message of what has come, and its length, if it is whole.
fn whole(bytes: &[u8]) -> Option<(Reply, usize)> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let size = word(4)? as usize;
    let payload = bytes.get(HEADER..size)?.to_vec();
    let first = word(0)?.to_ne_bytes();
    let (id, command) = (u16::from_ne_bytes([first[0], first[1]]), u16::from_ne_bytes([first[2], first[3]]));
    Some((Reply { id, command, flags: word(8)?, error: word(12)?, payload }, size))
}
