//! A link with its time: what was heard says how far this side may go, what is told says how far the other may.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use hca_model::Ps;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use std::os::fd::AsRawFd;

use super::ring::{Entry, OWN, Ring};
use super::{LinkError, ps};

/// Nothing but a time.
pub(super) const SYNC: u8 = 0x00;
/// Nothing more comes.
pub(super) const TERMINATE: u8 = 0x01;
/// A packet of a network link.
pub(super) const PACKET: u8 = 0x40;

/// What came by a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing, for now.
    Nothing,
    /// A packet that is here at that time; its bytes are in the buffer.
    Packet(Ps),
}

/// A message that found no room.
#[derive(Debug)]
struct Waiting {
    entry: Entry,
    payload: Vec<u8>,
}

/// A link that is up.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    out: Ring,
    inward: Ring,
    /// The last time that was told, and the last that was heard.
    told: u64,
    heard: u64,
    /// The peer said that nothing more comes.
    terminated: bool,
    backlog: VecDeque<Waiting>,
}

impl Channel {
    pub(super) fn new(socket: UnixStream, out: Ring, inward: Ring) -> Self {
        Self { socket, out, inward, told: 0, heard: 0, terminated: false, backlog: VecDeque::new() }
    }

    /// Nothing comes any more that is to be processed before that time; as far as it was looked at.
    pub fn heard(&self) -> Ps {
        ps(self.heard)
    }

    /// The last time that was told the peer, when all that waits has left.
    pub fn told(&self) -> Ps {
        ps(self.told)
    }

    /// Bytes of payload that a message to the peer may have.
    pub fn room(&self) -> usize {
        self.out.room()
    }

    /// Sends a packet, which is all the parts, one behind the other; it is to be processed at `at`. Times never go backwards: an
    /// earlier one than was told is that.
    ///
    /// # Errors
    /// It is too long, or the memory is gone.
    pub fn send(&mut self, at: Ps, parts: &[&[u8]]) -> Result<(), LinkError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let length = u16::try_from(len).map_err(|_| LinkError::TooLong { len, room: self.room() })?;
        let mut own = [0; OWN];
        // Length, then the port, which is 0.
        if let Some(field) = own.first_chunk_mut() {
            *field = length.to_le_bytes();
        }
        self.give(at, PACKET, own, parts)
    }

    /// Tells the peer that nothing more comes that is to be processed before `at`.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn promise(&mut self, at: Ps) -> Result<(), LinkError> {
        // The very first one is told even if it says nothing.
        if at.0 > self.told || self.told == 0 {
            self.give(at, SYNC, [0; OWN], &[])?;
        }
        Ok(())
    }

    /// Tells the peer that nothing comes any more. Only for peers that are known to take it: switches and hosts of SimBricks
    /// end with an error.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn terminate(&mut self) -> Result<(), LinkError> {
        self.give(ps(self.told), TERMINATE, [0; OWN], &[])
    }

    fn give(&mut self, at: Ps, kind: u8, own: [u8; OWN], parts: &[&[u8]]) -> Result<(), LinkError> {
        self.told = self.told.max(at.0);
        let entry = Entry { own, time: self.told, kind };
        if self.flush()? && self.out.push(&entry, parts)? {
            return Ok(());
        }
        let payload = parts.concat();
        if payload.len() > self.room() {
            return Err(LinkError::TooLong { len: payload.len(), room: self.room() });
        }
        self.backlog.push_back(Waiting { entry, payload });
        Ok(())
    }

    /// Sends what waits for room. Returns whether all of it has left.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        while let Some(Waiting { entry, payload }) = self.backlog.front() {
            if !self.out.push(entry, &[payload])? {
                return Ok(false);
            }
            self.backlog.pop_front();
        }
        Ok(true)
    }

    /// Takes what came next, over what is in `into`.
    ///
    /// # Errors
    /// The peer does not keep to the protocol.
    pub fn take(&mut self, into: &mut Vec<u8>) -> Result<Heard, LinkError> {
        while !self.terminated {
            let Some(entry) = self.inward.peek()? else { break };
            let (before, now) = (self.heard, entry.time);
            if now < before && entry.kind != TERMINATE {
                return Err(LinkError::Backwards { before, now });
            }
            match entry.kind {
                SYNC => {
                    self.inward.take(SYNC, 0, into)?;
                    self.heard = now;
                }
                TERMINATE => {
                    self.inward.take(TERMINATE, 0, into)?;
                    self.heard = u64::MAX;
                    self.terminated = true;
                }
                PACKET => {
                    let len = entry.own.first_chunk().map_or(0, |len| u16::from_le_bytes(*len));
                    self.inward.take(PACKET, len.into(), into)?;
                    self.heard = now;
                    return Ok(Heard::Packet(ps(now)));
                }
                other => return Err(LinkError::Type(other)),
            }
        }
        Ok(Heard::Nothing)
    }

    /// Whether the peer's process, or its end of the socket, is gone. What it sent before can still be taken.
    pub fn has_hung_up(&self) -> bool {
        let mut rest = [0; 64];
        loop {
            // Nothing is said there after the first message: what comes is not looked at.
            match recv(self.socket.as_raw_fd(), &mut rest, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Whether the peer said that nothing more comes.
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// What becomes readable when the peer is gone.
    pub fn watch(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
