//! Completion queue: where entries go, overrun, arming, moderation, resizing. [`crate::engines::compress`] has compression.
//!
//! The engine has no memory. It returns what is to be read and written ([`CqStep`]) and, once an entry is in memory,
//! whether the host is to be told ([`Notice`]).
//!
//! Source: PRM "Completion Queues", "CQ arming", "CQ resize", "Interrupt moderation".

use std::fmt;

use hca_firmware::icm::{Buffer, Cq};
use hca_spec::cqe::{Cqe, CqeFormat, CqeOpcode};
use hca_spec::eqe::cq_syndrome;
use hca_spec::ids::Eqn;
use hca_spec::queue::{
    Cqc, ST_ARMED, ST_FIRED, ST_SOLICITED_ARMED, STATUS_OVERRUN, STATUS_WRITE_FAILURE, cqe_size,
};

use crate::engines::compress::{ARRAY, Block, Joined, SESSION, Session};
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Counters of completion queues are 24 bits wide.
const COUNTER_MASK: u32 = 0xff_ffff;
/// An entry without the first half of 128 bytes.
const ENTRY: usize = Cqe::SIZE;

/// `Cqc::CQ_PERIOD_MODE`: the period starts with the entry.
const PERIOD_FROM_CQE: u32 = 1;

/// Whether counter `a` lies after `b`, modulo 2^24.
fn after(a: u32, b: u32) -> bool {
    let d = a.wrapping_sub(b) & COUNTER_MASK;
    d != 0 && d < 1 << 23
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Next,
    Solicited,
}

/// Why a queue goes to error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CqError {
    /// There is no room for an entry.
    Overrun,
    /// An entry can't be written to memory.
    Write,
}

impl CqError {
    /// What the event says of it: [`cq_syndrome`].
    pub(crate) fn syndrome(self) -> u32 {
        match self {
            Self::Overrun => cq_syndrome::OVERRUN,
            Self::Write => cq_syndrome::ACCESS,
        }
    }
}

impl fmt::Display for CqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overrun => "the queue is full: completions overran it",
            Self::Write => "its memory can't be written",
        })
    }
}

/// A completion on its way into a queue.
#[derive(Debug)]
pub(crate) struct Completion<'a> {
    cqe: Cqe,
    /// Payload that goes into the entry, at most what has room there.
    data: &'a [u8],
    is_error: bool,
    /// It counts as solicited: the responder was asked for an event, or it is an error.
    solicited: bool,
    /// The consumer counter was read for it.
    consumer_read: bool,
}

impl<'a> Completion<'a> {
    /// The completion that `cqe` tells of, with `data` scattered into the entry (at most 32 bytes, or 64 if the entry
    /// has 128). `timestamp` in cycles of the internal timer; completions with error have none.
    pub(crate) fn new(mut cqe: Cqe, data: &'a [u8], timestamp: impl FnOnce() -> u64) -> Self {
        let opcode = CqeOpcode::from_bits(cqe.get(Cqe::OPCODE));
        let is_error = matches!(opcode, Some(CqeOpcode::ReqErr | CqeOpcode::RespErr));
        if !is_error {
            cqe.set(Cqe::TIMESTAMP, timestamp());
        }
        let format = match data.len() {
            0 => CqeFormat::Plain,
            1..=32 => CqeFormat::Data32,
            _ => CqeFormat::Data64,
        };
        cqe.set(Cqe::FORMAT, format as u32);
        let solicited = is_error || cqe.get(Cqe::SE) == 1;
        Self { cqe, data, is_error, solicited, consumer_read: false }
    }

    /// The entry that stands for a block.
    pub(crate) fn title(block: &Block) -> Self {
        Self::silent(*block.title())
    }

    /// The entry that ends the buffer of a queue that gets a new one (PRM "CQ resize").
    pub(crate) fn resize() -> Self {
        let mut cqe = Cqe::new();
        cqe.set(Cqe::OPCODE, CqeOpcode::Resize as u32);
        Self::silent(cqe)
    }

    /// An entry as it is: no data, not solicited.
    fn silent(cqe: Cqe) -> Self {
        Self { cqe, data: &[], is_error: false, solicited: false, consumer_read: false }
    }

    /// The entry.
    pub(crate) fn cqe(&self) -> &Cqe {
        &self.cqe
    }
}

/// An entry to write to host memory.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EntryWrite<'a> {
    /// What goes into the first half of a 128-byte entry, with its DMA address; written first.
    pub(crate) first_half: Option<(u64, &'a [u8])>,
    /// DMA address of the entry, or of the second half.
    pub(crate) at: u64,
    /// Its bytes. The last, at [`hca_spec::cqe::OP_OWN_BYTE`], hands the entry over: it is written last, with release ordering.
    pub(crate) entry: &'a [u8; ENTRY],
    /// Bytes the write takes on the bus, both halves included.
    pub(crate) bytes: usize,
}

/// What is to be done for a completion.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CqStep<'a> {
    /// Read the consumer counter at this DMA address, tell [`CompletionQueue::consumer_read`], and ask again.
    ReadConsumer(u64),
    /// Write the block of [`CompletionQueue::close_session`] first, and ask again.
    CloseSession,
    /// Nothing is written yet: the completion waits to be compressed. If it opened a session, its timer is to run
    /// until the time given, with that generation.
    Wait(Option<(Ps, u32)>),
    /// Write the entry, then tell [`CompletionQueue::written`] or [`CompletionQueue::write_failed`].
    Write(EntryWrite<'a>),
    /// The queue goes to error now.
    Error(CqError),
    /// The queue is in error already.
    Refused,
}

/// Whether the host is told that there are entries.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// No.
    None,
    /// A completion event for this event queue.
    Event(Eqn),
    /// Later: the moderation timer is to run until `due`, with that generation.
    Moderate { due: Ps, generation: u32 },
}

/// State of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    log_size: u32,
    /// 64 or 128.
    stride: u64,
    /// The first half of 128 bytes is written even if there is no data for it.
    padded: bool,
    /// Completions that may become a compressed block; none if the queue does not compress.
    session: Option<Box<Session>>,
    eqn: Eqn,
    doorbell_record: u64,
    ignore_overrun: bool,
    /// Every entry overwrites the first one (PRM "Collapsed CQ").
    collapsed: bool,
    max_count: u32,
    period: Ps,
    /// The period starts anew with each entry; otherwise with each event.
    period_from_cqe: bool,
    /// A solicited entry ends moderation.
    solicited_breaks: bool,
    /// When the last event was sent.
    last_event: Ps,
    producer: u32,
    consumer: u32,
    /// Producer counter after the last solicited (or error) entry.
    solicited: u32,
    /// Producer counter at the last event: entries before it were told of and are not told of again.
    notified: u32,
    armed: Armed,
    /// Entries since the last event, while one is held back by moderation.
    held: u32,
    /// Of the moderation timer.
    generation: u32,
    error: Option<CqError>,
}

impl CompletionQueue {
    /// An empty queue as its context says.
    pub(crate) fn new(cq: &Cq) -> Self {
        let mut q = Self {
            log_size: 0,
            stride: 64,
            padded: false,
            session: (cq.ctx.get(Cqc::CQE_COMP_EN) == 1)
                .then(|| Box::new(Session::new(cq.ctx.get(Cqc::MINI_CQE_RES_FORMAT)))),
            eqn: Eqn(0),
            doorbell_record: cq.ctx.get(Cqc::DBR_ADDR),
            ignore_overrun: false,
            collapsed: cq.ctx.get(Cqc::CC) == 1,
            max_count: 0,
            period: Ps::ZERO,
            period_from_cqe: false,
            solicited_breaks: false,
            last_event: Ps::ZERO,
            producer: 0,
            consumer: 0,
            solicited: 0,
            notified: 0,
            armed: Armed::No,
            held: 0,
            generation: 0,
            error: None,
        };
        q.set_geometry(&cq.ctx);
        q.modify(&cq.ctx);
        q
    }

    /// The context names a new buffer. `ended`: the entry of [`Completion::resize`] is in the old one.
    pub(crate) fn resized(&mut self, ctx: &Cqc, ended: bool) {
        self.producer = (self.producer + u32::from(ended)) & COUNTER_MASK;
        self.set_geometry(ctx);
    }

    /// Takes the size of the queue and of its entries from the context.
    fn set_geometry(&mut self, ctx: &Cqc) {
        self.log_size = ctx.get(Cqc::LOG_CQ_SIZE);
        let size = ctx.get(Cqc::CQE_SZ);
        self.stride = if size == cqe_size::B64 { 64 } else { 128 };
        self.padded = size == cqe_size::B128_PADDED;
    }

    /// Takes what MODIFY_CQ can change without a new buffer from the context: event queue, overrun, moderation.
    pub(crate) fn modify(&mut self, ctx: &Cqc) {
        self.eqn = Eqn(ctx.get(Cqc::C_EQN) as u8);
        self.ignore_overrun = ctx.get(Cqc::OI) == 1;
        self.max_count = ctx.get(Cqc::CQ_MAX_COUNT);
        self.period = Ps::from_us(ctx.get(Cqc::CQ_PERIOD).into());
        self.period_from_cqe = ctx.get(Cqc::CQ_PERIOD_MODE) == PERIOD_FROM_CQE;
        self.solicited_breaks = ctx.get(Cqc::SCQE_BREAK_MODERATION_EN) == 1;
    }

    /// DMA address of the doorbell record, whose first word is the consumer counter.
    pub(crate) fn doorbell_record(&self) -> u64 {
        self.doorbell_record
    }

    /// Producer and consumer index, and how many entries there are.
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.producer, self.consumer, 1 << self.log_size)
    }

    /// The doorbell record, if its consumer counter may be looked at while up to `most` completions are written.
    pub(crate) fn reads_consumer(&self, most: usize) -> Option<u64> {
        let waiting = self.session.as_ref().map_or(0, |s| s.len());
        let used = (self.producer.wrapping_sub(self.consumer) & COUNTER_MASK) + waiting;
        let looks = self.error.is_none()
            && !self.ignore_overrun
            && (used as usize).saturating_add(most) >= 1 << self.log_size;
        looks.then_some(self.doorbell_record)
    }

    /// The first word of the doorbell record; `None` if it can't be read: the counter known stays.
    pub(crate) fn consumer_read(&mut self, word: Option<u32>) {
        if let Some(word) = word {
            self.consumer = word & COUNTER_MASK;
        }
    }

    /// Whether there is no room for one entry more than those of the session, as far as the consumer counter is known. A counter that says that more
    /// entries wait than there are is none of this queue (VPP writes one in its processor's order), and no overrun.
    fn is_full(&self) -> bool {
        let waiting = self.session.as_ref().map_or(0, |s| s.len());
        let (used, size) = (self.producer.wrapping_sub(self.consumer) & COUNTER_MASK, 1 << self.log_size);
        used <= size && used + waiting >= size
    }

    /// What is to be done for a completion next, with entries in `buffer`. A step that says so asks again.
    pub(crate) fn complete<'c>(
        &mut self,
        now: Ps,
        buffer: &Buffer,
        completion: &'c mut Completion<'_>,
    ) -> CqStep<'c> {
        if self.error.is_some() {
            return CqStep::Refused;
        }
        // The consumer counter is only fetched when the last known one says "full".
        if !self.ignore_overrun && self.is_full() {
            if !std::mem::replace(&mut completion.consumer_read, true) {
                return CqStep::ReadConsumer(self.doorbell_record);
            }
            self.error = Some(CqError::Overrun);
            return CqStep::Error(CqError::Overrun);
        }
        let entries = 1u32 << self.log_size;
        if let Some(session) = &mut self.session {
            let left = entries.saturating_sub(self.producer & entries.saturating_sub(1));
            match session.join(&completion.cqe, left) {
                Joined::First(generation) => return CqStep::Wait(Some((now + SESSION, generation))),
                Joined::Next => return CqStep::Wait(None),
                // Once it is closed, the completion may open a session of its own.
                Joined::Not if session.len() > 0 => return CqStep::CloseSession,
                Joined::Not => {}
            }
        }
        match self.entry(buffer, completion) {
            Ok(write) => CqStep::Write(write),
            Err(why) => {
                self.error = Some(why);
                CqStep::Error(why)
            }
        }
    }

    /// DMA address of the entry `ahead` of the producer.
    fn place(&self, buffer: &Buffer, ahead: u32) -> Result<u64, CqError> {
        let index = match self.collapsed {
            true => 0,
            false => self.producer.wrapping_add(ahead) & ((1 << self.log_size) - 1),
        };
        buffer.at(u64::from(index) * self.stride).map(|(at, _)| at).ok_or(CqError::Write)
    }

    /// Bus address where the next entry goes; `None`: the queue has no memory there.
    pub(crate) fn next_entry(&self, buffer: &Buffer) -> Option<u64> {
        self.place(buffer, 0).ok()
    }

    /// The next entry of the queue, with the owner bit of this round.
    pub(crate) fn entry<'c>(
        &self,
        buffer: &Buffer,
        completion: &'c mut Completion<'_>,
    ) -> Result<EntryWrite<'c>, CqError> {
        let at = self.place(buffer, 0)?;
        let Completion { cqe, data, .. } = completion;
        cqe.set(Cqe::OWNER, self.producer >> self.log_size & 1);
        let first_half = match CqeFormat::from_bits(cqe.get(Cqe::FORMAT)) {
            Some(CqeFormat::Data32) => {
                cqe.bytes_mut().iter_mut().zip(*data).for_each(|(to, from)| *to = *from);
                None
            }
            Some(CqeFormat::Data64) => Some((at, *data)),
            _ if self.padded => Some((at, &[0; ENTRY][..])),
            _ => None,
        };
        let at = at.wrapping_add(self.stride - ENTRY as u64);
        Ok(EntryWrite { first_half, at, entry: cqe.bytes(), bytes: self.stride as usize })
    }

    /// The entry of `completion` is in memory.
    pub(crate) fn written(&mut self, now: Ps, completion: &Completion<'_>) -> Notice {
        self.producer = (self.producer + 1) & COUNTER_MASK;
        if completion.solicited {
            self.solicited = self.producer;
        }
        self.notice(now, 1, completion.is_error || (completion.solicited && self.solicited_breaks))
    }

    /// Memory of the queue can't be written. Returns the error if it is the first.
    #[must_use]
    pub(crate) fn write_failed(&mut self) -> Option<CqError> {
        if self.error.is_some() {
            return None;
        }
        self.error = Some(CqError::Write);
        self.error
    }

    /// The queue overflows. Returns the error if it is the first.
    #[must_use]
    pub(crate) fn overflow(&mut self) -> Option<CqError> {
        if self.error.is_some() {
            return None;
        }
        self.error = Some(CqError::Overrun);
        self.error
    }

    /// Whether the session of that generation is still open.
    pub(crate) fn in_session(&self, generation: u32) -> bool {
        self.session.as_ref().is_some_and(|s| s.is_open(generation))
    }

    /// Ends the session: what waits in it is to be written, first [`CompletionQueue::arrays`], then the entry of
    /// [`Completion::title`]; [`CompletionQueue::block_written`] takes the block back.
    pub(crate) fn close_session(&mut self) -> Option<Block> {
        self.session.as_mut()?.close()
    }

    /// DMA addresses and bytes of the entries of `block` with mini CQEs.
    pub(crate) fn arrays(
        &self,
        buffer: &Buffer,
        block: &Block,
    ) -> impl Iterator<Item = Result<(u64, [u8; ARRAY]), CqError>> {
        block.arrays().map(move |(ahead, minis)| {
            let at = self.place(buffer, ahead)?;
            Ok((at.wrapping_add(self.stride - ENTRY as u64), minis))
        })
    }

    /// A block is in memory.
    pub(crate) fn block_written(&mut self, now: Ps, block: Block) -> Notice {
        let count = block.len();
        self.producer = (self.producer + count) & COUNTER_MASK;
        if let Some(session) = &mut self.session {
            session.recycle(block);
        }
        self.notice(now, count, false)
    }

    /// Whether an entry the arming waits for lies beyond `consumer`, and no event told of it yet: a driver may arm the
    /// queue again before it has read what the last event was about.
    fn satisfied(&self, consumer: u32) -> bool {
        let from = if after(self.notified, consumer) { self.notified } else { consumer };
        match self.armed {
            Armed::No => false,
            Armed::Next => after(self.producer, from),
            Armed::Solicited => after(self.solicited, from),
        }
    }

    /// `count` entries were written: an event, now or later, if the queue is armed for them. `at_once`: without moderation.
    fn notice(&mut self, now: Ps, count: u32, at_once: bool) -> Notice {
        if self.armed == Armed::No || !self.satisfied(self.producer.wrapping_sub(count) & COUNTER_MASK) {
            return Notice::None;
        }
        self.held += count;
        let moderated = self.max_count > 1 && self.period > Ps::ZERO && self.held < self.max_count;
        if !moderated || at_once {
            return self.event(now);
        }
        let start = if self.period_from_cqe { now } else { self.last_event };
        let due = start + self.period;
        if due <= now {
            return self.event(now);
        }
        if self.held != count && !self.period_from_cqe {
            // The timer runs.
            return Notice::None;
        }
        self.generation = self.generation.wrapping_add(1);
        Notice::Moderate { due, generation: self.generation }
    }

    fn event(&mut self, now: Ps) -> Notice {
        self.armed = Armed::No;
        self.held = 0;
        self.last_event = now;
        self.notified = self.producer;
        Notice::Event(self.eqn)
    }

    /// The moderation timer of that generation ran out.
    pub(crate) fn moderation_over(&mut self, now: Ps, generation: u32) -> Notice {
        if self.generation == generation && self.held > 0 {
            return self.event(now);
        }
        Notice::None
    }

    /// The driver armed the queue with this consumer counter: an event at once if what it waits for is already there.
    pub(crate) fn arm(&mut self, now: Ps, consumer: u32, solicited: bool) -> Notice {
        // Who asked for the next entry has not had his answer (IBTA 11.4.2.2).
        self.armed = match (self.armed, solicited) {
            (Armed::No | Armed::Solicited, true) => Armed::Solicited,
            (Armed::Next, true) | (_, false) => Armed::Next,
        };
        self.held = 0;
        if self.satisfied(consumer & COUNTER_MASK) {
            return self.event(now);
        }
        Notice::None
    }

    /// Writes the state into the context, for queries.
    pub(crate) fn write_back(&self, ctx: &mut Cqc) {
        ctx.set(Cqc::PRODUCER_COUNTER, self.producer).set(Cqc::CONSUMER_COUNTER, self.consumer);
        ctx.set(Cqc::LAST_SOLICIT_INDEX, self.solicited).set(Cqc::LAST_NOTIFIED_INDEX, self.notified);
        ctx.set(
            Cqc::ST,
            match self.armed {
                Armed::No => ST_FIRED,
                Armed::Next => ST_ARMED,
                Armed::Solicited => ST_SOLICITED_ARMED,
            },
        );
        ctx.set(
            Cqc::STATUS,
            match self.error {
                None => 0,
                Some(CqError::Overrun) => STATUS_OVERRUN,
                Some(CqError::Write) => STATUS_WRITE_FAILURE,
            },
        );
    }
}

impl Rebase for CompletionQueue {
    fn rebase(&mut self, by: Ps) {
        let Self {
            last_event,
            log_size: _,
            stride: _,
            padded: _,
            session: _,
            eqn: _,
            doorbell_record: _,
            ignore_overrun: _,
            collapsed: _,
            max_count: _,
            period: _,
            period_from_cqe: _,
            solicited_breaks: _,
            producer: _,
            consumer: _,
            solicited: _,
            notified: _,
            armed: _,
            held: _,
            generation: _,
            error: _,
        } = self;
        last_event.rebase(by);
    }
}

#[cfg(test)]
mod tests;
