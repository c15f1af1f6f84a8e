//! Completions to the host: carries out what completion queues ask for. [`crate::engines::cq`] has the queue.

use hca_firmware::icm::Buffer;
use hca_spec::cqe::{Cqe, OP_OWN_BYTE};
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Cqn, Qpn};
use hca_spec::queue::{Cqc, cqe_size};
use hca_spec::rules;

use crate::adapter::core::Core;
use crate::adapter::core::nobodys_doorbell;
use crate::adapter::state::event::HcaEvent;
use crate::engines::compress::Block;
use crate::engines::cq::{Completion, CompletionQueue, CqError, CqStep, EntryWrite, Notice};
use crate::ground::diagnosis::{Clue, Finding, Subject};
use crate::ground::dma::{DmaError, GuestMemory};
use crate::ground::event::Event;
use crate::ground::time::Ps;

impl From<DmaError> for CqError {
    fn from(_: DmaError) -> Self {
        Self::Write
    }
}

/// Reads the consumer counter from a doorbell record.
fn read_consumer(memory: &dyn GuestMemory, at: u64) -> Option<u32> {
    let mut word = [0; 4];
    memory.read(at, &mut word).ok().map(|()| u32::from_be_bytes(word))
}

/// Writes an entry, its owner last.
fn write_entry(memory: &dyn GuestMemory, write: &EntryWrite<'_>) -> Result<(), DmaError> {
    if let Some((at, bytes)) = write.first_half {
        memory.write(at, bytes)?;
    }
    memory.write(write.at, &write.entry[..OP_OWN_BYTE])?;
    memory.write_release(write.at.wrapping_add(OP_OWN_BYTE as u64), write.entry[OP_OWN_BYTE])
}

/// Writes a block of completions, the entry that hands it over last.
fn write_block(
    memory: &dyn GuestMemory,
    cq: &CompletionQueue,
    buffer: &Buffer,
    block: &Block,
) -> Result<(), CqError> {
    for array in cq.arrays(buffer, block) {
        let (at, minis) = array?;
        memory.write(at, &minis)?;
    }
    Ok(write_entry(memory, &cq.entry(buffer, &mut Completion::title(block))?)?)
}

impl Core<'_> {
    /// The state of a queue begins when it is first used, so that an idle one costs nothing here. `false`: there is no
    /// such queue.
    fn start_cq(&mut self, cqn: Cqn) -> bool {
        let Some(cq) = self.function.fw.icm.cqs.get(cqn.0) else { return false };
        if self.function.cqs.get(cqn.0).is_none() {
            self.function.cqs.insert(cqn.0, CompletionQueue::new(cq));
        }
        true
    }

    /// Before a command that needs it, the state goes into the context.
    pub(crate) fn cq_write_back(&mut self, cqn: Cqn) {
        if !self.start_cq(cqn) {
            return;
        }
        if let (Some(context), Some(cq)) =
            (self.function.fw.icm.cqs.get_mut(cqn.0), self.function.cqs.get_mut(cqn.0))
        {
            cq.consumer_read(read_consumer(&*self.function.memory, cq.doorbell_record()));
            cq.write_back(&mut context.ctx);
        }
    }

    /// How many bytes of a message fit into an entry of that queue, for queue pairs whose context says `code`
    /// ("cs_req" and "cs_res", PRM "Scatter to CQE").
    pub(crate) fn scatter_room(&self, cqn: Cqn, code: u32) -> usize {
        // Both fields name the size in their low bits.
        match code & 0xf {
            0 => 0,
            2 if self
                .function
                .fw
                .icm
                .cqs
                .get(cqn.0)
                .is_some_and(|cq| cq.ctx.get(Cqc::CQE_SZ) != cqe_size::B64) =>
            {
                64
            }
            _ => 32,
        }
    }

    /// Writes a completion and raises what is armed; `data` of at most [`Core::scatter_room`] bytes comes with it.
    /// `false`: the queue is in error (or gone), and the work queue that reports to it can't go on.
    pub(super) fn deliver(&mut self, now: Ps, cqn: Cqn, cqe: Cqe, data: &[u8]) -> bool {
        let mut completion =
            Completion::new(cqe, data, || self.chip.start.ticks(now, self.chip.timing.timer_khz()));
        loop {
            let Some(context) = self.function.fw.icm.cqs.get(cqn.0) else { return false };
            let Some(cq) = self.function.cqs.get_mut(cqn.0) else {
                self.function.cqs.insert(cqn.0, CompletionQueue::new(context));
                continue;
            };
            match cq.complete(now, &context.buffer, &mut completion) {
                CqStep::ReadConsumer(at) => cq.consumer_read(read_consumer(&*self.function.memory, at)),
                CqStep::CloseSession => self.cq_close_session(now, cqn),
                CqStep::Wait(timer) => {
                    if let Some((until, generation)) = timer {
                        self.schedule(until, HcaEvent::CqSession(cqn, generation));
                    }
                    self.note_cqe(now, cqn, completion.cqe());
                    return true;
                }
                CqStep::Write(write) => {
                    let bytes = write.bytes;
                    if write_entry(&*self.function.memory, &write).is_err() {
                        let error = cq.write_failed();
                        self.cq_error(now, cqn, error);
                        return false;
                    }
                    let notice = cq.written(now, &completion);
                    self.chip.units.complete(now, cqn.0, bytes);
                    self.note_cqe(now, cqn, completion.cqe());
                    self.cq_notice(now, cqn, notice);
                    return true;
                }
                CqStep::Error(why) => {
                    self.cq_error(now, cqn, Some(why));
                    return false;
                }
                CqStep::Refused => return false,
            }
        }
    }

    /// A queue overflows, whatever room it has.
    pub(super) fn overflow(&mut self, now: Ps, cqn: Cqn) {
        if self.start_cq(cqn) {
            let error = self.function.cqs.get_mut(cqn.0).and_then(CompletionQueue::overflow);
            self.cq_error(now, cqn, error);
        }
    }

    fn note_cqe(&mut self, now: Ps, cqn: Cqn, cqe: &Cqe) {
        let (qpn, index) = (Qpn(cqe.get(Cqe::QPN)), cqe.get(Cqe::WQE_COUNTER) as u16);
        self.note(now, Event::Cqe { cqn, qpn, index, opcode: cqe.get(Cqe::OPCODE) as u8 });
    }

    /// Writes what waits to be compressed.
    fn cq_close_session(&mut self, now: Ps, cqn: Cqn) {
        let Some(context) = self.function.fw.icm.cqs.get(cqn.0) else { return };
        let Some(cq) = self.function.cqs.get_mut(cqn.0) else { return };
        let Some(block) = cq.close_session() else { return };
        match write_block(&*self.function.memory, cq, &context.buffer, &block) {
            Ok(()) => {
                let notice = cq.block_written(now, block);
                self.cq_notice(now, cqn, notice);
            }
            Err(_) => {
                let error = cq.write_failed();
                self.cq_error(now, cqn, error);
            }
        }
    }

    /// A session was open long enough.
    pub(crate) fn cq_session(&mut self, now: Ps, cqn: Cqn, generation: u32) {
        if self.function.cqs.get(cqn.0).is_some_and(|cq| cq.in_session(generation)) {
            self.cq_close_session(now, cqn);
        }
    }

    /// The moderation timer ran out.
    pub(crate) fn cq_moderation(&mut self, now: Ps, cqn: Cqn, generation: u32) {
        let Some(cq) = self.function.cqs.get_mut(cqn.0) else { return };
        let notice = cq.moderation_over(now, generation);
        self.cq_notice(now, cqn, notice);
    }

    /// The driver armed the queue: at once if what it waits for is already there.
    pub(crate) fn cq_arm(&mut self, now: Ps, cqn: Cqn, consumer: u32, solicited: bool) {
        if !self.start_cq(cqn) {
            return self.answer_mistake(now, || nobodys_doorbell(Subject::cq(cqn), "cqn"));
        }
        let Some(cq) = self.function.cqs.get_mut(cqn.0) else { return };
        let notice = cq.arm(now, consumer, solicited);
        self.cq_notice(now, cqn, notice);
    }

    /// The context names a new buffer: the old one ends with a RESIZE entry.
    pub(crate) fn cq_resized(&mut self, now: Ps, cqn: Cqn, old: &Buffer) {
        let Some(context) = self.function.fw.icm.cqs.get(cqn.0) else { return };
        let Some(cq) = self.function.cqs.get_mut(cqn.0) else { return };
        // What waits to be compressed is older than the entry that ends the buffer.
        let mut notice = Notice::None;
        let mut written = Ok(());
        if let Some(block) = cq.close_session() {
            written = write_block(&*self.function.memory, cq, old, &block);
            if written.is_ok() {
                notice = cq.block_written(now, block);
            }
        }
        let mut end = Completion::resize();
        let written = written
            .and_then(|()| cq.entry(old, &mut end))
            .and_then(|write| Ok(write_entry(&*self.function.memory, &write)?));
        cq.resized(&context.ctx, written.is_ok());
        let error = if written.is_err() { cq.write_failed() } else { None };
        self.cq_notice(now, cqn, notice);
        self.cq_error(now, cqn, error);
    }

    /// Tells the host of entries, now or later.
    fn cq_notice(&mut self, now: Ps, cqn: Cqn, notice: Notice) {
        match notice {
            Notice::None => {}
            Notice::Event(eqn) => {
                let mut eqe = Eqe::new();
                eqe.set(Eqe::TYPE, EventType::Completion as u32).set(Eqe::COMPLETION_CQN, cqn.0);
                self.push_eqe(now, eqn, eqe);
            }
            Notice::Moderate { due, generation } => {
                self.schedule(due, HcaEvent::CqModeration(cqn, generation));
            }
        }
    }

    /// Tells the host that the queue went to error, if it did.
    fn cq_error(&mut self, now: Ps, cqn: Cqn, error: Option<CqError>) {
        let Some(why) = error else { return };
        let cq = self.function.cqs.get(cqn.0);
        let (producer, consumer, entries) = cq.map_or((0, 0, 0), |cq| cq.indices());
        let buffer = self.function.fw.icm.cqs.get(cqn.0).map(|context| &context.buffer);
        let next = cq.and_then(|cq| cq.next_entry(buffer?)).unwrap_or(0);
        self.answer_mistake(now, || match why {
            CqError::Overrun => {
                let found = format!("{consumer:#x}, and {producer:#x} completions written: {why}");
                let expected = format!("fewer than {entries:#x} completions ahead of the consumer index");
                let field = "consumer index in the doorbell record";
                Finding::new(Subject::cq(cqn), field, found, expected, &rules::CQ_ROOM)
            }
            CqError::Write => {
                let expected = "memory that is mapped, by an IOMMU too";
                let found = format!("{next:#x}, the next entry: {why}");
                Finding::new(Subject::cq(cqn), "queue memory", found, expected, &rules::MEMORY_MAPPED)
                    .with(Clue::Unreached(next))
            }
        });
        let mut eqe = Eqe::new();
        eqe.set(Eqe::CQ_ERROR_CQN, cqn.0).set(Eqe::CQ_ERROR_SYNDROME, why.syndrome());
        self.push_event(now, EventType::CqError, &mut eqe);
    }
}
