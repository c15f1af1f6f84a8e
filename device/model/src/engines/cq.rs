//! Completion queues: writing entries, arming, moderation, overrun, resizing. [`crate::engines::compress`] has compression.
//!
//! Source: PRM "Completion Queues", "CQ arming", "CQ resize", "Interrupt moderation".

use hca_firmware::icm::{Buffer, Cq, Icm};
use hca_spec::cqe::{Cqe, CqeFormat, CqeOpcode, OP_OWN_BYTE};
use hca_spec::eqe::{Eqe, EventType, cq_syndrome};
use hca_spec::ids::{Cqn, Eqn, Qpn};
use hca_spec::queue::{
    Cqc, ST_ARMED, ST_FIRED, ST_SOLICITED_ARMED, STATUS_OVERRUN, STATUS_WRITE_FAILURE, cqe_size,
};

use crate::adapter::core::{Core, HcaEvent};
use crate::engines::compress::{Joined, SESSION, Session};
use crate::ground::dma::GuestMemory;
use crate::ground::event::Event;
use crate::ground::slots::Slots;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Overrun,
    WriteFailure,
}

/// What happens besides writing an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    is_error: bool,
    solicited: bool,
}

impl Kind {
    fn of(cqe: &Cqe) -> Self {
        let opcode = CqeOpcode::from_bits(cqe.get(Cqe::OPCODE));
        let is_error = matches!(opcode, Some(CqeOpcode::ReqErr | CqeOpcode::RespErr));
        Self { is_error, solicited: is_error || cqe.get(Cqe::SE) == 1 }
    }
}

/// The moving parts of a completion queue.
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
    generation: u32,
    health: Health,
}

impl CompletionQueue {
    pub(crate) fn new(cq: &Cq) -> Self {
        let mut q = Self {
            log_size: 0,
            stride: 64,
            padded: false,
            session: (cq.ctx.get(Cqc::CQE_COMP_EN) == 1)
                .then(|| Box::new(Session::new(cq.ctx.get(Cqc::MINI_CQE_RES_FORMAT)))),
            eqn: Eqn(cq.ctx.get(Cqc::C_EQN) as u8),
            doorbell_record: cq.ctx.get(Cqc::DBR_ADDR),
            ignore_overrun: cq.ctx.get(Cqc::OI) == 1,
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
            health: Health::Good,
        };
        q.take_shape(cq);
        q.modified(cq);
        q
    }

    fn take_shape(&mut self, cq: &Cq) {
        self.log_size = cq.ctx.get(Cqc::LOG_CQ_SIZE);
        let size = cq.ctx.get(Cqc::CQE_SZ);
        self.stride = if size == cqe_size::B64 { 64 } else { 128 };
        self.padded = size == cqe_size::B128_PADDED;
    }

    /// Takes what MODIFY_CQ can change of the context, but for the shape.
    pub(crate) fn modified(&mut self, cq: &Cq) {
        self.eqn = Eqn(cq.ctx.get(Cqc::C_EQN) as u8);
        self.ignore_overrun = cq.ctx.get(Cqc::OI) == 1;
        self.max_count = cq.ctx.get(Cqc::CQ_MAX_COUNT);
        self.period = Ps::from_us(cq.ctx.get(Cqc::CQ_PERIOD).into());
        self.period_from_cqe = cq.ctx.get(Cqc::CQ_PERIOD_MODE) == PERIOD_FROM_CQE;
        self.solicited_breaks = cq.ctx.get(Cqc::SCQE_BREAK_MODERATION_EN) == 1;
    }

    /// Whether there is no room for one entry more than the `waiting` ones.
    fn full(&mut self, memory: &dyn GuestMemory, waiting: u32) -> bool {
        let size = 1u32 << self.log_size;
        let used = |q: &Self| (q.producer.wrapping_sub(q.consumer) & COUNTER_MASK) + waiting;
        if used(self) < size {
            return false;
        }
        // The consumer counter is only fetched when the last known one says "full".
        let mut word = [0; 4];
        if memory.read(self.doorbell_record, &mut word).is_ok() {
            self.consumer = u32::from_be_bytes(word) & COUNTER_MASK;
        }
        used(self) >= size
    }

    /// Where the entry `ahead` of the producer begins, and how many bytes it has.
    fn place(&self, buffer: &Buffer, ahead: u32) -> Result<u64, ()> {
        let counter = self.producer.wrapping_add(ahead);
        let index = if self.collapsed { 0 } else { counter & ((1 << self.log_size) - 1) };
        Ok(buffer.at(u64::from(index) * self.stride).ok_or(())?.0)
    }

    /// Writes an entry, its owner last. `data` goes into it if it says so.
    fn write(
        &mut self,
        memory: &dyn GuestMemory,
        buffer: &Buffer,
        cqe: &mut Cqe,
        data: &[u8],
    ) -> Result<(), ()> {
        let at = self.place(buffer, 0)?;
        let entry = at + (self.stride - ENTRY as u64);
        match CqeFormat::from_bits(cqe.get(Cqe::FORMAT)) {
            Some(CqeFormat::Data32) => {
                cqe.bytes_mut().iter_mut().zip(data).for_each(|(to, from)| *to = *from);
            }
            Some(CqeFormat::Data64) => memory.write(at, data).map_err(|_| ())?,
            _ if self.padded => memory.write(at, &[0; ENTRY]).map_err(|_| ())?,
            _ => {}
        }
        cqe.set(Cqe::OWNER, self.producer >> self.log_size & 1);
        memory.write(entry, &cqe.bytes()[..OP_OWN_BYTE]).map_err(|_| ())?;
        memory.write_release(entry + OP_OWN_BYTE as u64, cqe.bytes()[OP_OWN_BYTE]).map_err(|_| ())?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        Ok(())
    }

    /// Writes the completions of the session, as a block if there are several. Gives how many there were.
    fn write_session(&mut self, memory: &dyn GuestMemory, buffer: &Buffer) -> Result<u32, ()> {
        let Some(mut block) = self.session.as_mut().and_then(|s| s.take()) else { return Ok(0) };
        let count = block.len();
        for (ahead, minis) in block.arrays() {
            let at = self.place(buffer, ahead)? + (self.stride - ENTRY as u64);
            memory.write(at, &minis).map_err(|_| ())?;
        }
        self.write(memory, buffer, block.title(), &[])?;
        // The other entries of the block are its own, too.
        self.producer = (self.producer + count - 1) & COUNTER_MASK;
        Ok(count)
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

    /// Writes the moving parts into the context, for queries.
    pub(crate) fn write_back(&mut self, memory: &dyn GuestMemory, ctx: &mut Cqc) {
        let mut word = [0; 4];
        if memory.read(self.doorbell_record, &mut word).is_ok() {
            self.consumer = u32::from_be_bytes(word) & COUNTER_MASK;
        }
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
            match self.health {
                Health::Good => 0,
                Health::Overrun => STATUS_OVERRUN,
                Health::WriteFailure => STATUS_WRITE_FAILURE,
            },
        );
    }
}

/// The moving parts of a completion queue, and its memory. A queue has none before it is first used, so that an idle
/// one costs nothing here.
fn moving<'a>(
    cqs: &'a mut Slots<CompletionQueue>,
    icm: &'a Icm,
    cqn: Cqn,
) -> Option<(&'a mut CompletionQueue, &'a Buffer)> {
    let cq = icm.cqs.get(cqn.0)?;
    if cqs.get(cqn.0).is_none() {
        cqs.insert(cqn.0, CompletionQueue::new(cq));
    }
    Some((cqs.get_mut(cqn.0)?, &cq.buffer))
}

impl Core {
    /// Before a command that needs them, the moving parts go into the context.
    pub(crate) fn cq_write_back(&mut self, cqn: Cqn) {
        if moving(&mut self.cqs, &self.fw.icm, cqn).is_none() {
            return;
        }
        if let (Some(context), Some(cq)) = (self.fw.icm.cqs.get_mut(cqn.0), self.cqs.get_mut(cqn.0)) {
            cq.write_back(&*self.memory, &mut context.ctx);
        }
    }

    /// How many bytes of a message fit into an entry of that queue, for queue pairs whose context says `code`
    /// ("cs_req" and "cs_res", PRM "Scatter to CQE").
    pub(crate) fn scatter_room(&self, cqn: Cqn, code: u32) -> usize {
        // Both fields name the size in their low bits.
        match code & 0xf {
            0 => 0,
            2 if self.fw.icm.cqs.get(cqn.0).is_some_and(|cq| cq.ctx.get(Cqc::CQE_SZ) != cqe_size::B64) => 64,
            _ => 32,
        }
    }

    /// Writes a completion and raises what is armed; `data` of at most [`Core::scatter_room`] bytes comes with it.
    /// `false`: the queue is in error (or gone), and the work queue that reports to it can't go on.
    pub(crate) fn complete(&mut self, now: Ps, cqn: Cqn, mut cqe: Cqe, data: &[u8]) -> bool {
        let kind = Kind::of(&cqe);
        if !kind.is_error {
            cqe.set(Cqe::TIMESTAMP, now.ticks(self.timing.timer_khz()));
        }
        let format = match data.len() {
            0 => CqeFormat::Plain,
            1..=32 => CqeFormat::Data32,
            _ => CqeFormat::Data64,
        };
        cqe.set(Cqe::FORMAT, format as u32);
        let Some((cq, _)) = moving(&mut self.cqs, &self.fw.icm, cqn) else { return false };
        if cq.health != Health::Good {
            return false;
        }
        let waiting = cq.session.as_ref().map_or(0, |s| s.len());
        if !cq.ignore_overrun && cq.full(&*self.memory, waiting) {
            cq.health = Health::Overrun;
            self.cq_error(now, cqn, cq_syndrome::OVERRUN, "the queue is full: completions overran it");
            return false;
        }
        if self.cq_join(now, cqn, &cqe) {
            self.note_cqe(now, cqn, &cqe);
            return true;
        }
        let Some((cq, buffer)) = moving(&mut self.cqs, &self.fw.icm, cqn) else { return false };
        if cq.health != Health::Good || cq.write(&*self.memory, buffer, &mut cqe, data).is_err() {
            return self.cq_write_failed(now, cqn);
        }
        let bytes = cq.stride as usize;
        if kind.solicited {
            cq.solicited = cq.producer;
        }
        self.units.complete(now, cqn.0, bytes);
        self.note_cqe(now, cqn, &cqe);
        self.cq_written(now, cqn, 1, kind);
        true
    }

    fn note_cqe(&mut self, now: Ps, cqn: Cqn, cqe: &Cqe) {
        let (qpn, index) = (Qpn(cqe.get(Cqe::QPN)), cqe.get(Cqe::WQE_COUNTER) as u16);
        self.note(now, Event::Cqe { cqn, qpn, index, opcode: cqe.get(Cqe::OPCODE) as u8 });
    }

    /// Whether the completion waits to be compressed. If not, what waited before it is written.
    fn cq_join(&mut self, now: Ps, cqn: Cqn, cqe: &Cqe) -> bool {
        for _ in 0..2 {
            let Some(cq) = self.cqs.get_mut(cqn.0) else { return false };
            let Some(session) = &mut cq.session else { return false };
            match session.join(cqe, cq.log_size) {
                Joined::First(generation) => {
                    self.schedule(now + SESSION, HcaEvent::CqSession(cqn, generation));
                    return true;
                }
                Joined::Next => return true,
                // Once more: it may open a session of its own.
                Joined::Not => self.cq_close_session(now, cqn),
            }
        }
        false
    }

    /// The queue's memory can't be written; told once.
    fn cq_write_failed(&mut self, now: Ps, cqn: Cqn) -> bool {
        if let Some(cq) = self.cqs.get_mut(cqn.0).filter(|cq| cq.health == Health::Good) {
            cq.health = Health::WriteFailure;
            self.cq_error(now, cqn, cq_syndrome::ACCESS, "its memory can't be written");
        }
        false
    }

    /// Writes what waits to be compressed.
    fn cq_close_session(&mut self, now: Ps, cqn: Cqn) {
        let Some((cq, buffer)) = moving(&mut self.cqs, &self.fw.icm, cqn) else { return };
        match cq.write_session(&*self.memory, buffer) {
            Ok(0) => {}
            Ok(count) => self.cq_written(now, cqn, count, Kind { is_error: false, solicited: false }),
            Err(()) => _ = self.cq_write_failed(now, cqn),
        }
    }

    /// A session was open long enough.
    pub(crate) fn cq_session(&mut self, now: Ps, cqn: Cqn, generation: u32) {
        let session = self.cqs.get(cqn.0).and_then(|cq| cq.session.as_ref());
        if session.is_some_and(|s| s.is_open(generation)) {
            self.cq_close_session(now, cqn);
        }
    }

    /// `count` entries were written: an event, now or later, if the queue is armed for them.
    fn cq_written(&mut self, now: Ps, cqn: Cqn, count: u32, kind: Kind) {
        let Some(cq) = self.cqs.get_mut(cqn.0) else { return };
        if cq.armed == Armed::No || !cq.satisfied(cq.producer.wrapping_sub(count) & COUNTER_MASK) {
            return;
        }
        cq.held += count;
        let moderated = cq.max_count > 1 && cq.period > Ps::ZERO && cq.held < cq.max_count;
        if !moderated || kind.is_error || (kind.solicited && cq.solicited_breaks) {
            return self.notify(now, cqn);
        }
        let start = if cq.period_from_cqe { now } else { cq.last_event };
        let due = start + cq.period;
        if due <= now {
            return self.notify(now, cqn);
        }
        if cq.held == count || cq.period_from_cqe {
            cq.generation = cq.generation.wrapping_add(1);
            let event = HcaEvent::CqModeration(cqn, cq.generation);
            self.schedule(due, event);
        }
    }

    /// The moderation period ran out.
    pub(crate) fn cq_moderation(&mut self, now: Ps, cqn: Cqn, generation: u32) {
        if self.cqs.get(cqn.0).is_some_and(|cq| cq.generation == generation && cq.held > 0) {
            self.notify(now, cqn);
        }
    }

    /// The driver armed the queue: at once if what it waits for is already there.
    pub(crate) fn cq_arm(&mut self, now: Ps, cqn: Cqn, consumer: u32, solicited: bool) {
        let Some((cq, _)) = moving(&mut self.cqs, &self.fw.icm, cqn) else {
            return self.diagnose(now, format_args!("CQ {cqn} was armed, but there is no such CQ"));
        };
        cq.armed = if solicited { Armed::Solicited } else { Armed::Next };
        cq.held = 0;
        if cq.satisfied(consumer & COUNTER_MASK) {
            self.notify(now, cqn);
        }
    }

    fn notify(&mut self, now: Ps, cqn: Cqn) {
        let Some(cq) = self.cqs.get_mut(cqn.0) else { return };
        cq.armed = Armed::No;
        cq.held = 0;
        cq.last_event = now;
        cq.notified = cq.producer;
        let eqn = cq.eqn;
        let mut eqe = Eqe::new();
        eqe.set(Eqe::TYPE, EventType::Completion as u32).set(Eqe::COMPLETION_CQN, cqn.0);
        self.push_eqe(now, eqn, eqe);
    }

    fn cq_error(&mut self, now: Ps, cqn: Cqn, syndrome: u32, why: &str) {
        self.diagnose(now, format_args!("CQ {cqn} went to error: {why}"));
        let mut eqe = Eqe::new();
        eqe.set(Eqe::CQ_ERROR_CQN, cqn.0).set(Eqe::CQ_ERROR_SYNDROME, syndrome);
        self.push_event(now, EventType::CqError, &mut eqe);
    }

    /// The context names a new buffer: the old one ends with a RESIZE entry.
    pub(crate) fn cq_resized(&mut self, now: Ps, cqn: Cqn, old: &Buffer) {
        let Some(cq) = self.cqs.get_mut(cqn.0) else { return };
        let mut cqe = Cqe::new();
        cqe.set(Cqe::OPCODE, CqeOpcode::Resize as u32);
        // What waits to be compressed is older than the entry that ends the buffer.
        let written =
            cq.write_session(&*self.memory, old).and_then(|_| cq.write(&*self.memory, old, &mut cqe, &[]));
        if let Some(shape) = self.fw.icm.cqs.get(cqn.0) {
            cq.take_shape(shape);
        }
        if written.is_err() {
            cq.health = Health::WriteFailure;
            self.cq_error(now, cqn, cq_syndrome::ACCESS, "its old buffer can't be written");
        }
    }
}
