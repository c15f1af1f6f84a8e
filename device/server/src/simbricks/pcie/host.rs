//! The host's side: it reads and writes registers, and is asked for its memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hca_model::Ps;

use super::super::LinkError;
use super::super::channel::{Channel, Message, Rest};
use super::super::patience::{NAP, Patience, Wait};
use super::intro::DeviceIntro;
use super::message::{ToDevice, ToHost};

/// What a device asks of its host, or answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromDevice {
    /// Bytes of memory: [`HostLink::answer`] is due.
    Read {
        /// That of the answer.
        id: u64,
        /// Bus address.
        at: u64,
        /// Bytes.
        len: u16,
    },
    /// To write memory: [`HostLink::answer`] is due, without data.
    Write {
        /// That of the answer.
        id: u64,
        /// Bus address.
        at: u64,
        /// What is written.
        data: Vec<u8>,
    },
    /// An interrupt of MSI-X, or (2) of another kind.
    Interrupt {
        /// Which vector.
        vector: u16,
        /// Of which kind.
        kind: u8,
    },
    /// What a register has.
    ReadDone {
        /// What [`HostLink::read`] gave.
        id: u64,
        /// Its bytes.
        data: Vec<u8>,
    },
    /// A register was written: [`HostLink::write`] without `posted`.
    WriteDone,
}

/// What is known of a device's next message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It is this, at that time.
    Message(Ps, FromDevice),
    /// There is none up to the time in question.
    Quiet,
    /// Nothing yet.
    Unknown,
}

/// A host's link to a device.
#[derive(Debug)]
pub struct HostLink {
    channel: Channel,
    device: DeviceIntro,
    crossing: Ps,
    next: u64,
    /// Reads and writes of registers that are not answered yet: of reads, how many bytes.
    reads: BTreeMap<u64, usize>,
    writes: BTreeSet<u64>,
    /// What has come and is later than was asked for.
    waiting: VecDeque<(Ps, FromDevice)>,
    /// Up to then nothing comes any more.
    quiet: Option<Ps>,
    /// It was asked for what there is up to then.
    asked: Ps,
    buffer: Vec<u8>,
}

impl HostLink {
    /// Over that channel; each crossing takes `crossing`.
    ///
    /// # Errors
    /// What the device says of itself is wrong.
    pub fn new(channel: Channel, crossing: Ps) -> Result<Self, LinkError> {
        let device = DeviceIntro::read(&channel.peer().part)?;
        Ok(Self {
            channel,
            device,
            crossing,
            next: 0,
            reads: BTreeMap::new(),
            writes: BTreeSet::new(),
            waiting: VecDeque::new(),
            quiet: None,
            asked: Ps::ZERO,
            buffer: Vec::new(),
        })
    }

    /// What the device says of itself.
    pub fn device(&self) -> &DeviceIntro {
        &self.device
    }

    /// The device says nothing more before that time, as long as the host sends nothing.
    pub fn heard(&self) -> Ps {
        self.channel.outlook()
    }

    fn send(&mut self, now: Ps, message: ToDevice, data: &[u8]) -> Result<(), LinkError> {
        let (kind, own) = message.write();
        self.channel.send_message(&Message { at: now + self.crossing, kind, own }, &[data])
    }

    /// Reads `len` bytes of a register at `now`. Returns what the answer bears.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn read(&mut self, now: Ps, bar: u8, offset: u64, len: u16) -> Result<u64, LinkError> {
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        self.reads.insert(id, len.into());
        self.send(now, ToDevice::Read { id, bar, offset, len }, &[])?;
        Ok(id)
    }

    /// Writes a register at `now`: posted, or so that the device says when it has.
    ///
    /// # Errors
    /// That is too long, or the memory is gone.
    pub fn write(
        &mut self,
        now: Ps,
        bar: u8,
        offset: u64,
        data: &[u8],
        posted: bool,
    ) -> Result<(), LinkError> {
        let room = self.channel.room();
        let len = u16::try_from(data.len()).map_err(|_| LinkError::TooLong { len: data.len(), room })?;
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        if !posted {
            self.writes.insert(id);
        }
        self.send(now, ToDevice::Write { id, bar, offset, len, posted }, data)
    }

    /// Interrupts of these kinds are on from `now` on.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn control(&mut self, now: Ps, flags: u64) -> Result<(), LinkError> {
        self.send(now, ToDevice::Control { flags }, &[])
    }

    /// Answers an access to memory, with what was read.
    ///
    /// # Errors
    /// That is too long, or the memory is gone.
    pub fn answer(&mut self, now: Ps, id: u64, read: Option<&[u8]>) -> Result<(), LinkError> {
        match read {
            Some(data) => self.send(now, ToDevice::ReadDone { id }, data),
            None => self.send(now, ToDevice::WriteDone { id }, &[]),
        }
    }

    fn take(&mut self) -> Result<Option<(Ps, FromDevice)>, LinkError> {
        let Self { channel, reads, writes, buffer, .. } = self;
        let read = |kind, own: &_| ToHost::read(kind, own).ok_or(LinkError::Type(kind));
        let message = channel.take_message(buffer, |kind, own| {
            Ok(match read(kind, own)? {
                ToHost::Write { len, .. } => len.into(),
                ToHost::ReadDone { id } => *reads.get(&id).ok_or(LinkError::NotAsked(id))?,
                ToHost::Read { .. } | ToHost::WriteDone { .. } | ToHost::Interrupt { .. } => 0,
            })
        })?;
        let Some(Message { at, kind, own }) = message else { return Ok(None) };
        let room = channel.room();
        let from = match read(kind, &own)? {
            ToHost::Read { len, .. } if usize::from(len) > room => {
                return Err(LinkError::Length { len: len.into(), room });
            }
            ToHost::Read { id, at, len } => FromDevice::Read { id, at, len },
            ToHost::Write { id, at, .. } => FromDevice::Write { id, at, data: std::mem::take(buffer) },
            ToHost::Interrupt { vector, kind } => FromDevice::Interrupt { vector, kind },
            ToHost::ReadDone { id } => {
                reads.remove(&id);
                FromDevice::ReadDone { id, data: std::mem::take(buffer) }
            }
            ToHost::WriteDone { id } if writes.remove(&id) => FromDevice::WriteDone,
            ToHost::WriteDone { id } => return Err(LinkError::NotAsked(id)),
        };
        Ok(Some((at, from)))
    }

    /// The device's next message, if it is due at `until` or before.
    ///
    /// # Errors
    /// The device does not keep to the protocol.
    pub fn hear(&mut self, until: Ps) -> Result<Heard, LinkError> {
        self.asked = until;
        if self.waiting.is_empty() {
            let came = self.take()?;
            self.waiting.extend(came);
        }
        Ok(match self.waiting.pop_front_if(|(at, _)| *at <= until) {
            Some((at, _)) if self.quiet.is_some_and(|quiet| at <= quiet) => {
                return Err(LinkError::Early { at: at.0, reached: self.quiet.unwrap_or_default().0 });
            }
            Some((at, message)) => Heard::Message(at, message),
            None if !self.waiting.is_empty() || self.heard() > until => {
                self.quiet = self.quiet.max(Some(until));
                Heard::Quiet
            }
            None => Heard::Unknown,
        })
    }

    /// All has been done up to `reached`, and nothing is before `next` unless the device asks for it: the device may count on that.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn tell(&mut self, reached: Ps, next: Ps) -> Result<(), LinkError> {
        let crossing = self.crossing;
        self.channel.promise(reached + crossing, next + crossing)?;
        self.channel.flush()?;
        self.channel.rouse()
    }

    /// Waits until one of them has something new, or for a moment; `patience` is that of who has found nothing since.
    ///
    /// # Errors
    /// A device has ended; which of them, and how.
    pub fn wait<'a>(
        links: impl Iterator<Item = &'a HostLink> + Clone,
        patience: &mut HostPatience,
    ) -> Result<(), (usize, LinkError)> {
        let first = |why| (0, why);
        for link in links.clone() {
            // More than this it can't be told before the device has said more.
            let looks = link.asked + link.crossing;
            link.channel.wait_for(link.asked + Ps(1), looks).map_err(first)?;
        }
        if patience.0.wait() == Wait::No {
            return Ok(());
        }
        match Channel::rest(links.clone().map(|link| &link.channel), NAP, || Ok(true)).map_err(first)? {
            Rest::Woken => return Ok(()),
            Rest::Looks => {}
            Rest::Never => patience.0.doze(),
        }
        for (place, HostLink { channel, .. }) in links.enumerate() {
            // What it has said before it ended still counts.
            if !channel.is_terminated() && channel.has_hung_up() && !channel.has_more().map_err(first)? {
                return Err((place, LinkError::Ended { heard: channel.heard().0 }));
            }
        }
        Ok(())
    }

    /// Nothing more comes from here.
    ///
    /// # Errors
    /// The memory is gone.
    pub fn finish(&mut self) -> Result<(), LinkError> {
        self.channel.end()
    }
}

/// How long a host has waited in vain.
#[derive(Debug, Default)]
pub struct HostPatience(Patience);

impl HostPatience {
    /// Something has come.
    pub fn renew(&mut self) {
        self.0.renew();
    }
}
