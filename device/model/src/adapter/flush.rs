//! Send queues of queue pairs in error: everything in them is completed, a bounded number in an event.

use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::wqe::{CE_ON_FIRST_ERROR, Ctrl, WQEBB};

use super::core::Core;
use super::state::event::HcaEvent;
use crate::engines::qp::QueuePair;
use crate::engines::qp::send::{blocks_of, error_counters};
use crate::engines::qp::wqe::Wqe;
use crate::ground::event::{Event, Status};
use crate::ground::time::Ps;

/// A WQE that is completed in error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed {
    /// Its index.
    pub(crate) index: u16,
    /// Its opcode.
    pub(crate) opcode: u32,
    /// It asks to be told of the first error only: there is no CQE of it if another one's error flushes it.
    pub(crate) quiet: bool,
}

impl Failed {
    /// One that fails by itself, of which there is a CQE in any case.
    pub(crate) fn by_itself(index: u16, opcode: u32) -> Self {
        Self { index, opcode, quiet: false }
    }
}

impl From<&Wqe> for Failed {
    fn from(wqe: &Wqe) -> Self {
        Self { index: wqe.index, opcode: wqe.opcode as u32, quiet: wqe.quiet }
    }
}

/// Where memory answers later, so many WQEs are flushed in one go.
pub(super) const FLUSH_STEP: usize = 32;
/// Where it answers at once. A queue may have 2^15; events of others that are due now come in between. Some 0.3 ms.
pub(super) const FLUSH_MOST: u16 = 1024;

impl Core<'_> {
    /// Completes everything in the send queue: `cause` for the oldest message, flushed for the rest; what is more than
    /// [`FLUSH_MOST`] in events of its own.
    pub(crate) fn flush_sends(&mut self, now: Ps, qp: &mut QueuePair, cause: Option<Syndrome>) {
        let mut syndrome = cause.unwrap_or(Syndrome::WorkRequestFlushed);
        self.write_due_completions(now, qp, Ps::MAX);
        if let Some(failed) = self.abandon_frames(qp) {
            self.complete_send_error(now, qp, failed, syndrome);
            syndrome = Syndrome::WorkRequestFlushed;
        }
        for message in qp.requester.abandon(FLUSH_MOST.into()).into_iter().filter(|m| !m.connect) {
            if let Some(offload) = message.wqe.offload {
                self.cancel_offload(now, qp, &message.wqe, offload);
                continue;
            }
            self.complete_send_error(now, qp, (&*message.wqe).into(), syndrome);
            syndrome = Syndrome::WorkRequestFlushed;
        }
        self.cancel_offloads(now, qp);
        match qp.requester.messages.is_empty() {
            true => self.flush_unfetched(now, qp),
            false => self.schedule(now, HcaEvent::SendDoorbell(qp.qpn)),
        }
    }

    /// Flushes the WQEs that were never fetched. They are only walked, not executed.
    pub(super) fn flush_unfetched(&mut self, now: Ps, qp: &mut QueuePair) {
        qp.sq.copy = None;
        match self.function.outstanding {
            // What it reads is found out step by step: that is an input of its own.
            Some(_) if qp.params.has_sq => self.schedule(now, HcaEvent::SendDoorbell(qp.qpn)),
            _ => self.flush_posted(now, qp),
        }
    }

    /// Flushes WQEs that were never fetched: as many as one event may. The rest is another's.
    pub(super) fn flush_posted(&mut self, now: Ps, qp: &mut QueuePair) {
        let most = match self.function.outstanding {
            Some(_) => FLUSH_STEP,
            None => FLUSH_MOST.into(),
        };
        if !qp.params.has_sq || !self.fetch_posted(qp) {
            return;
        }
        self.flush_some(now, qp, most);
        if !qp.sq.is_empty() {
            self.schedule(now, HcaEvent::SendDoorbell(qp.qpn));
        }
    }

    fn flush_some(&mut self, now: Ps, qp: &mut QueuePair, most: usize) {
        for _ in 0..most {
            let available = qp.sq.waiting();
            if available == 0 {
                return;
            }
            let index = qp.sq.head;
            let mut block = [0; WQEBB];
            let log_size = qp.params.log_sq_size;
            let context = self.function.fw.icm.qps.get(qp.qpn.0);
            // What counts more than a whole queue is rubbish: nothing is read for it.
            let read = u32::from(available) <= 1 << log_size
                && context.is_some_and(|qp| self.read_block(qp, log_size, index, &mut block).is_ok());
            if !read {
                qp.sq.head = qp.sq.posted;
                return;
            }
            let ctrl = Ctrl::from_prefix_or_zero(&block);
            qp.sq.head = index.wrapping_add(blocks_of(&ctrl).min(available));
            let failed = Failed {
                index: ctrl.get(Ctrl::WQE_INDEX) as u16,
                opcode: ctrl.get(Ctrl::OPCODE),
                quiet: ctrl.get(Ctrl::CE) == CE_ON_FIRST_ERROR,
            };
            self.complete_send_error(now, qp, failed, Syndrome::WorkRequestFlushed);
        }
    }

    /// Completes a WQE in error. One that is flushed and wanted to be told of the first error only has no CQE, and counts nowhere: an
    /// error of another has been told, or software took the queue there.
    pub(crate) fn complete_send_error(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        Failed { index, opcode, quiet }: Failed,
        syndrome: Syndrome,
    ) {
        self.write_due_completions(now, qp, Ps::MAX);
        if quiet && syndrome == Syndrome::WorkRequestFlushed {
            return self.note(now, Event::Done { qpn: qp.qpn, index, status: Status(Some(syndrome)) });
        }
        for counter in error_counters(syndrome).into_iter().flatten() {
            self.function.fw.icm.count(qp.qpn, counter);
        }
        self.note(now, Event::Done { qpn: qp.qpn, index, status: Status(Some(syndrome)) });
        let mut cqe = qp.cqe(CqeOpcode::ReqErr, index);
        cqe.set(Cqe::SEND_WQE_OPCODE, opcode).set(Cqe::SYNDROME, syndrome as u32);
        cqe.set(Cqe::VENDOR_ERR_SYND, syndrome.vendor().into());
        self.complete_for(now, qp, qp.params.cqn_snd, cqe, &[]);
    }
}
