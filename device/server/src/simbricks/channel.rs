//! A link with its time: what was heard says how far this side may go, what is told says how far the other may.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hca_model::Ps;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use std::os::fd::AsRawFd;

use super::bell::{Bell, Sleep, Word};
use super::intro::Peer;
use super::nap::{self, Slept};
use super::patience::{NAP, Patience, Wait};
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

/// How a rest was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// There is something, or may be.
    Woken,
    /// It was long, or a peer is gone: one looks if they are there.
    Looks,
    /// It was none: one of the peers wakes nobody, or has no room for what waits here.
    Never,
}

/// A message of the upper protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    /// When it is to be processed.
    pub(super) at: Ps,
    /// Its type.
    pub(super) kind: u8,
    /// What it has besides its payload.
    pub(super) own: [u8; OWN],
}

/// Types below are not the upper protocol's.
const UPPER: u8 = 0x40;

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
    /// What the peer said first.
    peer: Peer,
    /// If it is a process of ours, each side sleeps and wakes the other, and says more than a promise.
    bell: Option<Bell>,
    /// Messages of the upper protocol that were sent, and that were taken.
    sent: u64,
    taken: u64,
    /// The same of all other links to the same peer.
    beside: [u64; 2],
    /// What the peer, and this side, said last of times beyond a promise.
    outlook: Outlook,
    told_outlook: Outlook,
}

/// What goes beyond a promise: nothing comes that is to be processed before `until`, if the receiver sends nothing behind the first
/// `after` messages that it sent by this link and others to the same peer. Between processes of ours it is in a message of time: bytes 0 and 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Outlook {
    pub(super) until: u64,
    pub(super) after: u64,
}

impl Outlook {
    pub(super) fn read(own: &[u8; OWN]) -> Self {
        let mut words = own.chunks_exact(8).filter_map(|word| word.first_chunk());
        let mut word = || words.next().map_or(0, |word| u64::from_le_bytes(*word));
        Self { until: word(), after: word() }
    }

    fn write(self) -> [u8; OWN] {
        let mut own = [0; OWN];
        for (place, word) in own.chunks_exact_mut(8).zip([self.until, self.after]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        own
    }
}

/// What is read of a peer's socket at most when one looks at it: nothing of sense is said there but the first message.
const LOOKS: usize = 16;

impl Channel {
    pub(super) fn new(
        socket: UnixStream,
        (out, inward): (Ring, Ring),
        peer: Peer,
        bell: Option<Bell>,
    ) -> Self {
        let (outlook, told_outlook) = (Outlook::default(), Outlook::default());
        let backlog = VecDeque::new();
        let (told, heard, sent, taken, beside, terminated) = (0, 0, 0, 0, [0; 2], false);
        Self {
            socket,
            out,
            inward,
            told,
            heard,
            terminated,
            backlog,
            peer,
            bell,
            sent,
            taken,
            beside,
            outlook,
            told_outlook,
        }
    }

    /// Sleeps until one of them has what it waits for ([`Channel::wait_for`]) or a message, a peer is gone, or `most` is over; `still` says, when
    /// peers see that this side sleeps, if that is right.
    ///
    /// # Errors
    /// The memory of one is gone, or the system does not wait.
    pub fn rest<'a>(
        channels: impl Iterator<Item = &'a Channel> + Clone,
        most: Duration,
        still: impl FnOnce() -> Result<bool, LinkError>,
    ) -> Result<Rest, LinkError> {
        if channels.clone().any(|channel| channel.bell.is_none() || !channel.backlog.is_empty()) {
            return Ok(Rest::Never);
        }
        let bells = || channels.clone().filter_map(|channel| channel.bell.as_ref());
        // Who has said that nothing more comes may be gone.
        let there = channels.clone().filter(|channel| !channel.terminated);
        let sleep = if nap::can(there.clone().count()) { Sleep::AtWord } else { Sleep::AtSocket };
        bells().try_for_each(|bell| bell.set_sleeps(sleep))?;
        let mut nothing = still()?;
        for channel in channels.clone() {
            nothing &= channel.inward.peek()?.is_none();
        }
        let rested = match nothing {
            true if sleep == Sleep::AtWord => Self::sleep_at_words(there, most)?,
            true => Self::sleep_at_sockets(there, most)?,
            false => Rest::Woken,
        };
        bells().try_for_each(|bell| bell.set_sleeps(Sleep::Awake))?;
        Ok(rested)
    }

    /// Sleeps until a peer wakes it by a word in the memory of their link. A peer that is gone wakes nobody: that is looked at after a nap.
    fn sleep_at_words<'a>(
        there: impl Iterator<Item = &'a Channel>,
        most: Duration,
    ) -> Result<Rest, LinkError> {
        let beds = there.filter_map(|channel| channel.bell.as_ref()).map(Bell::bed);
        match nap::sleep(beds, Sleep::AtWord.word(), most.min(NAP)) {
            // It sleeps at sockets the next time.
            Ok(Slept::Woken | Slept::Not) => Ok(Rest::Woken),
            Ok(Slept::Long) => Ok(Rest::Looks),
            Err(why) if why.raw_os_error() == Some(Errno::EFAULT as i32) => Err(LinkError::MemoryLost),
            Err(why) => Err(LinkError::Wait(why)),
        }
    }

    /// Sleeps until a peer says something at its socket.
    fn sleep_at_sockets<'a>(
        there: impl Iterator<Item = &'a Channel> + Clone,
        most: Duration,
    ) -> Result<Rest, LinkError> {
        let mut sockets: Vec<_> =
            there.clone().map(|channel| PollFd::new(channel.watch(), PollFlags::POLLIN)).collect();
        match poll(&mut sockets, PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => return Ok(Rest::Looks),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(LinkError::Wait(why.into())),
        }
        let mut rested = Rest::Woken;
        for (channel, socket) in there.zip(&sockets) {
            match socket.revents() {
                Some(said) if said == PollFlags::POLLIN => channel.hush(),
                Some(said) if !said.is_empty() => rested = Rest::Looks,
                _ => {}
            }
        }
        Ok(rested)
    }

    /// Takes from the socket what woke this side.
    fn hush(&self) {
        // A peer that is gone, or says more than to wake, is seen by who looks for it.
        let _ = recv(self.socket.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT);
    }

    /// Wakes the peer if it sleeps and waits for what was sent: behind all that is sent in one go.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn rouse(&mut self) -> Result<(), LinkError> {
        match &mut self.bell {
            Some(bell) => bell.rouse(&self.socket),
            None => Ok(()),
        }
    }

    /// This side goes on when the peer's promise or outlook is `need`: the peer makes none that is less, and wakes it for that if it sleeps; and this
    /// side looks what the peer needs ([`Channel::needed`]) before it has something to say that goes beyond `looks`.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn wait_for(&self, need: Ps, looks: Ps) -> Result<(), LinkError> {
        self.bell.as_ref().map_or(Ok(()), |bell| bell.wait_for(need.0, looks.0, &self.socket))
    }

    /// What the peer needs before it goes on, if it was not told that yet. Who has ended needs nothing.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn needed(&self) -> Result<Option<Ps>, LinkError> {
        let Some(bell) = self.bell.as_ref().filter(|_| !self.terminated) else { return Ok(None) };
        let (need, known) = (bell.need()?, self.known());
        Ok(match need {
            0 => Some(ps(known.saturating_add(1))),
            need => (need > known).then_some(ps(need)),
        })
    }

    /// Says something to the peer of all parts, if it is of ours; wakes it if it sleeps.
    ///
    /// # Errors
    /// The memory is gone.
    pub(crate) fn say(&self, words: impl IntoIterator<Item = (Word, u64)>) -> Result<(), LinkError> {
        self.bell.as_ref().map_or(Ok(()), |bell| bell.say(words, &self.socket))
    }

    /// What the peer says so; 0 if it never did.
    ///
    /// # Errors
    /// The memory is gone.
    pub(crate) fn said(&self, word: Word) -> Result<u64, LinkError> {
        self.bell.as_ref().map_or(Ok(0), |bell| bell.said(word))
    }

    /// Messages of the upper protocol that were sent, and that were taken.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [self.sent, self.taken]
    }

    /// What [`Channel::counts`] are of all other links to the same peer: it may answer by this link what comes by those, and expect by those what goes by
    /// this one.
    pub(crate) fn set_beside(&mut self, counts: [u64; 2]) {
        self.beside = counts;
    }

    fn all_sent(&self) -> u64 {
        self.sent.wrapping_add(self.beside[0])
    }

    fn all_taken(&self) -> u64 {
        self.taken.wrapping_add(self.beside[1])
    }

    /// What the peer was told last, if it has sent nothing since that was not taken.
    fn known(&self) -> u64 {
        let Outlook { until, after } = self.told_outlook;
        if after == self.all_taken() { until.max(self.told) } else { self.told }
    }

    /// Nothing comes any more that is to be processed before that time, as long as this side sends nothing; as far as it was looked at.
    pub fn outlook(&self) -> Ps {
        let beyond = if self.outlook.after == self.all_sent() { self.outlook.until } else { 0 };
        ps(self.heard.max(beyond))
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

    /// Bytes of payload that a message of the peer may have.
    pub(super) fn room_inward(&self) -> usize {
        self.inward.room()
    }

    /// What the peer said first.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether messages wait for room in the ring.
    pub(super) fn is_backed_up(&self) -> bool {
        !self.backlog.is_empty()
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
        self.send_message(&Message { at, kind: PACKET, own }, parts)
    }

    /// Sends a message of the upper protocol with that payload, as [`Channel::send`] does.
    ///
    /// # Errors
    /// It is too long, or the memory is gone.
    pub(super) fn send_message(&mut self, message: &Message, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.sent += 1;
        self.give(message.at, message.kind, message.own, parts)
    }

    /// Tells the peer that nothing more comes that is to be processed before `at`, nor, if it sends nothing itself, before
    /// `outlook`; if it does not know that yet, and is not known to need more.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn promise(&mut self, at: Ps, outlook: Ps) -> Result<(), LinkError> {
        // The very first one is told even if it says nothing.
        let first = self.told == 0;
        let Some(bell) = &self.bell else {
            return if first || at.0 > self.told { self.give(at, SYNC, [0; OWN], &[]) } else { Ok(()) };
        };
        if self.terminated {
            return Ok(());
        }
        let need = bell.need()?;
        let outlook = Outlook { until: at.max(outlook).0, after: self.all_taken() };
        if first || outlook.until > self.known() && outlook.until >= need {
            self.told_outlook = outlook;
            self.give(at, SYNC, outlook.write(), &[])?;
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
            if let Some(bell) = &mut self.bell {
                bell.put(&entry);
            }
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
            if let Some(bell) = &mut self.bell {
                bell.put(entry);
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
        let message = self.take_message(into, |kind, own| match kind {
            PACKET => Ok(own.first_chunk().map_or(0, |len| u16::from_le_bytes(*len)).into()),
            other => Err(LinkError::Type(other)),
        })?;
        Ok(message.map_or(Heard::Nothing, |message| Heard::Packet(message.at)))
    }

    /// Takes the next message of the upper protocol, its payload over what is in `into`. `len` says how many bytes that has, from
    /// type and header, or that there is no such message.
    ///
    /// # Errors
    /// The peer does not keep to the protocol.
    pub(super) fn take_message(
        &mut self,
        into: &mut Vec<u8>,
        len: impl Fn(u8, &[u8; OWN]) -> Result<usize, LinkError>,
    ) -> Result<Option<Message>, LinkError> {
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
                    if self.bell.is_some() {
                        self.outlook = Outlook::read(&entry.own);
                    }
                }
                TERMINATE => {
                    self.inward.take(TERMINATE, 0, into)?;
                    self.heard = u64::MAX;
                    self.terminated = true;
                }
                UPPER.. => {
                    let Entry { own, kind, .. } = entry;
                    self.inward.take(kind, len(kind, &own)?, into)?;
                    self.heard = now;
                    self.taken += 1;
                    return Ok(Some(Message { at: ps(now), kind, own }));
                }
                other => return Err(LinkError::Type(other)),
            }
        }
        Ok(None)
    }

    /// Whether the peer's process, or its end of the socket, is gone. What it sent before can still be taken.
    pub fn has_hung_up(&self) -> bool {
        let mut bytes = [0; 64];
        for _ in 0..LOOKS {
            // Whatever is said there after the first message wakes, and means nothing else.
            match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return false,
                Err(_) => return true,
            }
        }
        false
    }

    /// A peer that is gone, and of which everything was taken, had to say more: it was to be heard up to `until`, what it says is felt
    /// `felt` later; or it is one of ours, who says that it ends.
    ///
    /// # Errors
    /// It ended too early.
    pub(crate) fn ended_before(&self, until: Ps, felt: Ps) -> Result<(), LinkError> {
        let heard = self.heard();
        match heard + felt <= until || self.is_ours() && !self.is_terminated() {
            true => Err(LinkError::Ended { heard: heard.0 }),
            false => Ok(()),
        }
    }

    /// Whether something waits to be taken.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn has_more(&self) -> Result<bool, LinkError> {
        Ok(self.inward.peek()?.is_some())
    }

    /// Nothing more comes from here, which a peer is told that is known to take it. Returns when the peer can have all that was sent, or
    /// does not want it.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn end(&mut self) -> Result<(), LinkError> {
        if self.is_ours() {
            self.terminate()?;
        }
        let mut patience = Patience::default();
        loop {
            let all = self.flush()?;
            self.rouse()?;
            if all {
                return Ok(());
            }
            if patience.wait() == Wait::Rest {
                patience.doze();
                if self.has_hung_up() {
                    return Ok(());
                }
            }
        }
    }

    /// Whether the peer said that nothing more comes.
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// Whether the peer is a process of ours.
    pub fn is_ours(&self) -> bool {
        self.bell.is_some()
    }

    /// What becomes readable when the peer is gone.
    pub fn watch(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
