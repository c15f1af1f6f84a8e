//! Completion queues: writing entries, arming, moderation, overrun, resizing.
//!
//! Source: PRM "Completion Queues", "CQ arming", "CQ resize", "Interrupt moderation".

use hca_firmware::icm::{Buffer, Cq, Icm};
use hca_spec::cqe::{Cqe, CqeOpcode, OP_OWN_BYTE};
use hca_spec::eqe::{Eqe, EventType, cq_syndrome};
use hca_spec::ids::{Cqn, Eqn};
use hca_spec::queue::{Cqc, ST_ARMED, ST_FIRED, ST_SOLICITED_ARMED, STATUS_OVERRUN, STATUS_WRITE_FAILURE};

use crate::core::{Core, HcaEvent};
use crate::dma::GuestMemory;
use crate::slots::Slots;
use crate::time::Ps;

/// Counters of completion queues are 24 bits wide.
const COUNTER_MASK: u32 = 0xff_ffff;

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

/// The moving parts of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    log_size: u32,
    /// 64 or 128.
    stride: u64,
    eqn: Eqn,
    doorbell_record: u64,
    ignore_overrun: bool,
    collapsed: bool,
    max_count: u32,
    period: Ps,
    producer: u32,
    consumer: u32,
    /// Producer counter after the last solicited (or error) entry.
    solicited: u32,
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
            eqn: Eqn(cq.ctx.get(Cqc::C_EQN) as u8),
            doorbell_record: cq.ctx.get(Cqc::DBR_ADDR),
            ignore_overrun: cq.ctx.get(Cqc::OI) == 1,
            collapsed: cq.ctx.get(Cqc::CC) == 1,
            max_count: 0,
            period: Ps::ZERO,
            producer: 0,
            consumer: 0,
            solicited: 0,
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
        self.stride = if cq.ctx.get(Cqc::CQE_SZ) == 1 { 128 } else { 64 };
    }

    /// Takes what MODIFY_CQ can change of the context, but for the shape.
    pub(crate) fn modified(&mut self, cq: &Cq) {
        self.eqn = Eqn(cq.ctx.get(Cqc::C_EQN) as u8);
        self.ignore_overrun = cq.ctx.get(Cqc::OI) == 1;
        self.max_count = cq.ctx.get(Cqc::CQ_MAX_COUNT);
        self.period = Ps::from_us(cq.ctx.get(Cqc::CQ_PERIOD).into());
    }

    fn full(&mut self, memory: &dyn GuestMemory) -> bool {
        let size = 1u32 << self.log_size;
        let used = |q: &Self| q.producer.wrapping_sub(q.consumer) & COUNTER_MASK;
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

    fn write(&mut self, memory: &dyn GuestMemory, buffer: &Buffer, cqe: &mut Cqe) -> Result<(), ()> {
        let index = if self.collapsed { 0 } else { self.producer & ((1 << self.log_size) - 1) };
        let (at, _) = buffer.at(u64::from(index) * self.stride + (self.stride - 64)).ok_or(())?;
        cqe.set(Cqe::OWNER, self.producer >> self.log_size & 1);
        memory.write(at, &cqe.bytes()[..OP_OWN_BYTE]).map_err(|_| ())?;
        memory.write_release(at + OP_OWN_BYTE as u64, cqe.bytes()[OP_OWN_BYTE]).map_err(|_| ())?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        Ok(())
    }

    /// Whether an entry the arming waits for lies beyond `consumer`.
    fn satisfied(&self, consumer: u32) -> bool {
        match self.armed {
            Armed::No => false,
            Armed::Next => after(self.producer, consumer),
            Armed::Solicited => after(self.solicited, consumer),
        }
    }

    /// Writes the moving parts into the context, for queries.
    pub(crate) fn write_back(&mut self, memory: &dyn GuestMemory, ctx: &mut Cqc) {
        let mut word = [0; 4];
        if memory.read(self.doorbell_record, &mut word).is_ok() {
            self.consumer = u32::from_be_bytes(word) & COUNTER_MASK;
        }
        ctx.set(Cqc::PRODUCER_COUNTER, self.producer).set(Cqc::CONSUMER_COUNTER, self.consumer);
        ctx.set(Cqc::LAST_SOLICIT_INDEX, self.solicited);
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

    /// Writes a completion and raises what is armed. `false`: the queue is in error (or gone), and the
    /// work queue that reports to it can't go on.
    pub(crate) fn complete(&mut self, now: Ps, cqn: Cqn, mut cqe: Cqe) -> bool {
        let is_error = matches!(
            CqeOpcode::from_bits(cqe.get(Cqe::OPCODE)),
            Some(CqeOpcode::ReqErr | CqeOpcode::RespErr)
        );
        if !is_error {
            cqe.set(Cqe::TIMESTAMP, now.ticks(self.timing.timer_khz()));
        }
        let Some((cq, buffer)) = moving(&mut self.cqs, &self.fw.icm, cqn) else { return false };
        if cq.health != Health::Good {
            return false;
        }
        if !cq.ignore_overrun && cq.full(&*self.memory) {
            cq.health = Health::Overrun;
            self.cq_error(now, cqn, cq_syndrome::OVERRUN, "the queue is full: completions overran it");
            return false;
        }
        if cq.write(&*self.memory, buffer, &mut cqe).is_err() {
            cq.health = Health::WriteFailure;
            self.cq_error(now, cqn, cq_syndrome::ACCESS, "its memory can't be written");
            return false;
        }
        if is_error || cqe.get(Cqe::SE) == 1 {
            cq.solicited = cq.producer;
        }
        if cq.armed == Armed::No || !cq.satisfied(cq.producer.wrapping_sub(1) & COUNTER_MASK) {
            return true;
        }
        cq.held += 1;
        if cq.max_count > 1 && cq.period > Ps::ZERO && cq.held < cq.max_count && !is_error {
            if cq.held == 1 {
                cq.generation = cq.generation.wrapping_add(1);
                let (at, event) = (now + cq.period, HcaEvent::CqModeration(cqn, cq.generation));
                self.schedule(at, event);
            }
        } else {
            self.notify(now, cqn);
        }
        true
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
        let written = cq.write(&*self.memory, old, &mut cqe);
        if let Some(shape) = self.fw.icm.cqs.get(cqn.0) {
            cq.take_shape(shape);
        }
        if written.is_err() {
            cq.health = Health::WriteFailure;
            self.cq_error(now, cqn, cq_syndrome::ACCESS, "its old buffer can't be written");
        }
    }
}
