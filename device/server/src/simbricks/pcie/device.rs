//! The device's side: what it asks of its host's memory, and what the host asks of it.
//!
//! A read of memory waits for its answer: model time stands still meanwhile, and all else that the host has sent before is kept with
//! its time. The question is at the host one crossing after the present, so that the answer has what the host's memory has then, and
//! what the host does depends on nothing that the device has not done yet. Nobody else has to go on for that: each host has a time of
//! its own. (A host that is not ours may have other adapters, too; for it they say how far they are before one of them asks.)

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hca_model::Ps;

use super::super::LinkError;
use super::super::channel::{Channel, Message, Rest};
use super::super::patience::{NAP, Patience, Wait};
use super::message::{MSIX, ToDevice, ToHost};
use crate::memory::{RemoteError, StandingMemory};
use crate::sync::lock;

/// Accesses of the host that are taken from the ring before they are due: a ring of ours, twice. Who reads memory takes what comes
/// before its answer, however much that is; a host writes registers a few times in a microsecond.
const MOST: usize = 1024;

/// What a host asks of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Bytes of a register.
    Read { id: u64, bar: u8, offset: u64, len: u16 },
    /// To write one; with a request, it wants an answer.
    Write { id: Option<u64>, bar: u8, offset: u64, data: Vec<u8> },
    /// Interrupts of these kinds.
    Control { flags: u64 },
    /// Nothing more: it has ended.
    Ended,
}

/// The time of what devices do, which whoever lets it pass sets.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// From now on it is that time.
    pub fn set(&self, now: Ps) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// The time.
    pub fn now(&self) -> Ps {
        Ps(self.0.load(Ordering::Relaxed))
    }
}

/// A link whose channel is looked at.
struct Held<'a>(MutexGuard<'a, State>);

impl Deref for Held<'_> {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.0.channel
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.0.channel
    }
}

/// A device's link to its host.
#[derive(Debug)]
pub struct DeviceLink(Mutex<State>);

#[derive(Debug)]
struct State {
    channel: Channel,
    crossing: Ps,
    clock: Clock,
    next: u64,
    /// Reads and writes of memory that are not answered yet: of reads, how many bytes.
    reads: BTreeMap<u64, usize>,
    writes: BTreeSet<u64>,
    answers: BTreeMap<u64, Vec<u8>>,
    asked: VecDeque<(Ps, Asked)>,
    ended: bool,
    patience: Patience,
    /// Why it can't go on, until somebody asks.
    failed: Option<LinkError>,
    buffer: Vec<u8>,
}

impl State {
    fn send(&mut self, message: ToHost, data: &[u8]) -> Result<(), LinkError> {
        let (kind, own) = message.write();
        self.channel.send_message(&Message { at: self.clock.now() + self.crossing, kind, own }, &[data])
    }

    /// Takes one message, if there is one.
    fn take(&mut self) -> Result<bool, LinkError> {
        let Self { channel, reads, buffer, .. } = self;
        let read = |kind, own: &_| ToDevice::read(kind, own).ok_or(LinkError::Type(kind));
        let message = channel.take_message(buffer, |kind, own| {
            Ok(match read(kind, own)? {
                ToDevice::Write { len, .. } => len.into(),
                ToDevice::ReadDone { id } => *reads.get(&id).ok_or(LinkError::NotAsked(id))?,
                ToDevice::Read { .. } | ToDevice::WriteDone { .. } | ToDevice::Control { .. } => 0,
            })
        })?;
        let Some(Message { at, kind, own }) = message else {
            if self.channel.is_terminated() && !std::mem::replace(&mut self.ended, true) {
                self.asked.push_back((self.clock.now() + Ps(1), Asked::Ended));
            }
            return Ok(false);
        };
        let asked = match read(kind, &own)? {
            ToDevice::ReadDone { id } => {
                self.reads.remove(&id);
                self.answers.insert(id, std::mem::take(&mut self.buffer));
                return Ok(true);
            }
            ToDevice::WriteDone { id } => {
                return if self.writes.remove(&id) { Ok(true) } else { Err(LinkError::NotAsked(id)) };
            }
            ToDevice::Read { id, bar, offset, len } => {
                if usize::from(len) > self.channel.room() {
                    return Err(LinkError::Length { len: len.into(), room: self.channel.room() });
                }
                Asked::Read { id, bar, offset, len }
            }
            ToDevice::Write { id, bar, offset, posted, .. } => {
                Asked::Write { id: (!posted).then_some(id), bar, offset, data: self.buffer.clone() }
            }
            ToDevice::Control { flags } => Asked::Control { flags },
        };
        self.asked.push_back((at, asked));
        Ok(true)
    }

    /// Waits until that is so, and takes what comes meanwhile.
    fn wait(&mut self, is_so: impl Fn(&mut Self) -> Result<bool, LinkError>) -> Result<(), LinkError> {
        self.patience.renew();
        self.channel.flush()?;
        self.channel.rouse()?;
        while !is_so(self)? {
            if self.take()? {
                self.patience.renew();
            } else if self.ended {
                return Err(LinkError::Ended { heard: self.channel.heard().0 });
            } else if self.patience.wait() == Wait::Rest {
                let rest = Channel::rest([&self.channel].into_iter(), NAP, || Ok(true))?;
                if rest == Rest::Never {
                    self.patience.doze();
                }
                // What it said before it ended still counts.
                if rest != Rest::Woken && self.channel.has_hung_up() && !self.take()? && !is_so(self)? {
                    return Err(LinkError::Ended { heard: self.channel.heard().0 });
                }
            }
        }
        Ok(())
    }

    /// Bytes of memory that one request reads or writes at most.
    fn piece(&self, write: bool) -> usize {
        let room = if write { self.channel.room() } else { self.channel.room_inward() };
        room.clamp(1, u16::MAX.into())
    }

    fn request(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), LinkError> {
        let (piece, mut at) = (self.piece(false), iova);
        let mut ids = Vec::new();
        for part in into.chunks(piece) {
            let (id, len) = (self.request(), part.len());
            self.send(ToHost::Read { id, at, len: len as u16 }, &[])?;
            self.reads.insert(id, len);
            ids.push(id);
            at = at.wrapping_add(len as u64);
        }
        for (id, part) in ids.into_iter().zip(into.chunks_mut(piece)) {
            self.wait(|state| Ok(state.answers.contains_key(&id)))?;
            if let Some(answer) = self.answers.remove(&id).filter(|answer| answer.len() == part.len()) {
                part.copy_from_slice(&answer);
                self.buffer = answer;
            }
        }
        Ok(())
    }

    fn write(&mut self, iova: u64, data: &[u8]) -> Result<(), LinkError> {
        let mut at = iova;
        for part in data.chunks(self.piece(true)) {
            let id = self.request();
            self.send(ToHost::Write { id, at, len: part.len() as u16 }, part)?;
            self.writes.insert(id);
            at = at.wrapping_add(part.len() as u64);
        }
        if self.channel.is_backed_up() {
            // A host that takes nothing is waited for.
            self.wait(|state| state.channel.flush())?;
        }
        Ok(())
    }
}

impl DeviceLink {
    /// Over that channel; each crossing takes `crossing`. What is asked and sent is of the clock's time.
    pub fn new(channel: Channel, crossing: Ps, clock: Clock) -> Self {
        Self(Mutex::new(State {
            channel,
            crossing,
            clock,
            next: 0,
            reads: BTreeMap::new(),
            writes: BTreeSet::new(),
            answers: BTreeMap::new(),
            asked: VecDeque::new(),
            ended: false,
            patience: Patience::default(),
            failed: None,
            buffer: Vec::new(),
        }))
    }

    /// Does something with the link; what goes wrong is kept, and nothing is done after it.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> Result<T, LinkError>) -> Result<T, RemoteError> {
        let state = &mut *lock(&self.0);
        if state.ended || state.failed.is_some() {
            return Err(RemoteError::Lost);
        }
        act(state).map_err(|why| {
            state.failed = Some(why);
            RemoteError::Lost
        })
    }

    /// Its channel, as long as that is held.
    pub(crate) fn lock(&self) -> impl DerefMut<Target = Channel> {
        Held(lock(&self.0))
    }

    /// Whether the host is another process of softhca.
    pub(crate) fn is_ours(&self) -> bool {
        lock(&self.0).channel.is_ours()
    }

    /// The host has done what it may not: nothing more is done.
    pub(crate) fn fail(&self, why: LinkError) {
        lock(&self.0).failed = Some(why);
    }

    /// What went wrong, if something did.
    ///
    /// # Errors
    /// That.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        lock(&self.0).failed.take().map_or(Ok(()), Err)
    }

    /// Takes what has come.
    ///
    /// # Errors
    /// The host does not keep to the protocol.
    pub(crate) fn hear(&self) -> Result<(), LinkError> {
        let state = &mut *lock(&self.0);
        while state.asked.len() < MOST && state.take()? {}
        Ok(())
    }

    /// When the host's next access is due; `None`: none has come.
    pub(crate) fn first(&self) -> Option<Ps> {
        lock(&self.0).asked.front().map(|(at, _)| *at)
    }

    /// Takes the host's next access, if it is due.
    pub(crate) fn next(&self, now: Ps) -> Option<Asked> {
        lock(&self.0).asked.pop_front_if(|(at, _)| *at <= now).map(|(_, asked)| asked)
    }

    /// Answers an access to a register: with what was read.
    pub(crate) fn answer(&self, id: u64, read: Option<&[u8]>) {
        let message = if read.is_some() { ToHost::ReadDone { id } } else { ToHost::WriteDone { id } };
        // Whoever lets time pass asks what went wrong.
        let _ = self.with(|state| state.send(message, read.unwrap_or_default()));
    }

    /// Interrupts the host.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn interrupt(&self, vector: u16) -> Result<(), RemoteError> {
        self.with(|state| state.send(ToHost::Interrupt { vector, kind: MSIX }, &[]))
    }
}

impl StandingMemory for DeviceLink {
    fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        self.with(|state| state.read(iova, into))
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), RemoteError> {
        self.with(|state| state.write(iova, data))
    }
}
