//! The peer's answers carried out: messages that they complete, data that they bring, packets to be sent again.

use hca_firmware::QCounter;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_spec::ids::{Psn, Qpn};
use hca_spec::wire::Operation;

use super::core::{Core, Executor};
use super::state::event::HcaEvent;
use crate::engines::qp::QueuePair;
use crate::engines::qp::page_fault::FaultedWqe;
use crate::engines::qp::replies::{Acceptance, Data, Timer, Verdict};
use crate::ground::diagnosis::Subject;
use crate::ground::event::{Cause, Event};
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::wire::{Repr, network_order, operand_of};

impl Core<'_> {
    /// Everything before `psn` is acknowledged, except responses that have not come. Returns the PSN to
    /// go back to if a response is missing.
    fn acknowledge_before(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn) -> Option<Psn> {
        let acknowledged = qp.requester.acknowledge(psn);
        self.retire(now, qp);
        if acknowledged.progressed && qp.sends() {
            self.progress(now, qp);
        }
        acknowledged.missing
    }

    /// A response packet of the peer.
    pub(crate) fn receive_response(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        repr: &Repr,
        payload: Payload<'_>,
    ) {
        match qp.accept_response(repr) {
            Acceptance::Ghost => return,
            Acceptance::CreditsOnly => return self.ask_turn(now, qp),
            Acceptance::Answer => {}
        }
        let (qpn, psn, operation) = (qp.qpn, repr.psn, repr.operation);
        let syndrome = repr.aeth.map_or(0, |aeth| aeth.syndrome);
        self.note(now, Event::Answered { qpn, psn, operation, syndrome });
        let completed = match operation {
            Operation::Acknowledge => {
                self.receive_ack(now, qp, repr);
                true
            }
            _ => {
                let messages = qp.requester.messages.len();
                self.receive_data(now, qp, repr, payload);
                qp.requester.messages.len() != messages
            }
        };
        self.ask_behind_answer(now, qp, completed);
    }

    /// Behind an answer, which may have `completed` a message: asks for a turn to send. One of which nothing could come is not asked for,
    /// unless others would notice that it waits: what waits for responses goes on waiting until one has completed something.
    #[inline]
    pub(super) fn ask_behind_answer(&mut self, now: Ps, qp: &mut QueuePair, completed: bool) {
        if qp.sends() && !self.is_idle(qp, completed) {
            self.ask_turn(now, qp);
        }
    }

    /// Whether nothing could come of a turn to send behind an answer, which may have `completed` a message, and nobody would notice that it
    /// waits.
    #[inline]
    pub(super) fn is_idle(&self, qp: &QueuePair, completed: bool) -> bool {
        let waits = qp.has_nothing_to_begin() || qp.is_waiting_for_responses() && !completed;
        waits && qp.requester.is_through() && self.may_send(qp.port_lane())
    }

    fn receive_ack(&mut self, now: Ps, qp: &mut QueuePair, repr: &Repr) {
        let Some(aeth) = repr.aeth else { return };
        let (qpn, psn) = (qp.qpn, repr.psn);
        let waits = qp.requester.waits_for_receiver(psn);
        match Verdict::of(aeth) {
            Verdict::Ack => {
                if let Some(missing) = self.acknowledge_before(now, qp, psn.next()) {
                    self.retry_gap(now, qp, missing);
                }
            }
            Verdict::NotReady(time) => {
                self.function.fw.icm.count(qpn, QCounter::RnrNakRetryErr);
                if waits {
                    return;
                }
                // Of a read, a response in the middle can be what is not ready.
                let missing = self.acknowledge_before(now, qp, psn);
                if let Some(missing) = missing.filter(|missing| *missing != psn) {
                    // That a later request was answered says that this response is lost (IBTA 9.7.5.1.3).
                    return self.retry_gap(now, qp, missing);
                }
                if !qp.sends() {
                    return;
                }
                let until = now + time;
                match qp.requester.receiver_not_ready(psn, until, &qp.params) {
                    Ok(generation) => self.schedule(until, HcaEvent::RnrTimeout(qpn, generation)),
                    Err(syndrome) => self.fail_at(now, qp, psn, syndrome),
                }
            }
            // It is sent again when the receiver may be ready, which costs no retry.
            Verdict::Sequence if waits => self.function.fw.icm.count(qpn, QCounter::PacketSeqErr),
            Verdict::Sequence => {
                let missing = self.acknowledge_before(now, qp, psn);
                if qp.sends() {
                    self.function.fw.icm.count(qpn, QCounter::PacketSeqErr);
                    self.retry(now, qp, missing.unwrap_or(psn), Cause::SequenceNak);
                }
            }
            Verdict::Refused(syndrome) => {
                let missing = self.acknowledge_before(now, qp, psn);
                if let Some(missing) = missing.filter(|missing| *missing != psn) {
                    // What the responder executed before it is not what it refused (IBTA 9.7.5.1.3): that is asked for first.
                    return self.retry_gap(now, qp, missing);
                }
                if qp.sends() {
                    self.fail_at(now, qp, psn, syndrome);
                }
            }
            Verdict::Nothing => {}
        }
    }

    /// Data of a read or atomic.
    fn receive_data(&mut self, now: Ps, qp: &mut QueuePair, repr: &Repr, payload: Payload<'_>) {
        let Some(first) = qp.requester.request_of(repr.psn) else { return };
        // A response acknowledges everything before its own request.
        if let Some(missing) = self.acknowledge_before(now, qp, first) {
            return self.retry_gap(now, qp, missing);
        }
        let result = repr.atomic_ack.unwrap_or_default();
        let original = result.to_le_bytes();
        let atomic = repr.operation == Operation::AtomicAcknowledge;
        let data = if atomic { Payload::Bytes(operand_of(&original, qp.operand(repr.psn))) } else { payload };
        let room = self.scatter_room(qp.params.cqn_snd, qp.params.scatter_request);
        let (place, found) = match qp.locate_data(repr, data.len(), room) {
            Data::Nothing => return,
            Data::Gap(expected) => return self.retry_gap(now, qp, expected),
            Data::Bad => return self.fail_at(now, qp, repr.psn, Syndrome::BadResponse),
            Data::IntoCompletion(place) => {
                if let Some(message) = qp.requester.messages.get_mut(place) {
                    message.data = match atomic {
                        // As it came: the endianness mode is that of memory.
                        true => network_order(result, data.len()),
                        false => data.bytes().unwrap_or_default().into_owned(),
                    };
                }
                (place, Default::default())
            }
            Data::IntoBuffers { place, offset } => {
                let Some(message) = qp.requester.messages.get(place) else { return };
                match self.keyed().scatter(qp.requester_of(&message.wqe), &message.wqe.pieces, offset, data) {
                    Ok(found) => (place, found),
                    Err(fault) => {
                        let (index, opcode) = (message.wqe.index, message.wqe.opcode);
                        let (kind, psn) = (page_fault::READ_OR_ATOMIC, repr.psn);
                        let met = FaultedWqe { kind, psn, index, opcode, committed: offset };
                        if self.wait_to_send(now, qp, fault, met) {
                            return;
                        }
                        let qpn = qp.qpn;
                        let (subject, pd) = (Subject::qp(qpn), qp.accessor().pd);
                        self.fault(now, subject, format_args!("response to send WQE {index}"), pd, &fault);
                        return self.fail_at(now, qp, psn, Syndrome::LocalProtection);
                    }
                }
            }
        };
        qp.requester.answered(place, 1);
        self.report_signature_errors(now, qp, qp.params.cqn_snd, found);
        self.retire(now, qp);
        if qp.sends() {
            self.progress(now, qp);
        }
        if repr.operation == Operation::ReadResponseFirst || repr.operation == Operation::ReadResponseMiddle {
            self.plan_read_landing(qp);
        }
    }

    /// Plans where the response to the read in progress goes, if it is long.
    fn plan_read_landing(&self, qp: &mut QueuePair) {
        let memory = &*self.function.memory;
        qp.plan_read_landing(&self.view(), self.function.key_changes, |pages, len| {
            self.function.outstanding.is_none() || pages.is_mapped(memory, len)
        });
    }

    /// The message that owns `psn` fails, when all before it are complete.
    pub(crate) fn fail_message(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn, syndrome: Syndrome) -> bool {
        let failed = qp.requester.fail_at(psn, syndrome);
        if failed {
            self.retire(now, qp);
        }
        failed
    }

    /// The message that owns `psn` fails; what is before it was acknowledged.
    fn fail_at(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn, syndrome: Syndrome) {
        if self.fail_message(now, qp, psn, syndrome) && qp.sends() && !qp.requester.is_idle() {
            // A response before it is missing for good: the oldest carries the error.
            self.fail_requests(now, qp, syndrome);
        }
    }

    /// A response is missing although later ones came: once for each gap, ask again.
    fn retry_gap(&mut self, now: Ps, qp: &mut QueuePair, missing: Psn) {
        if qp.requester.is_new_gap(missing) {
            self.function.fw.icm.count(qp.qpn, QCounter::ImpliedNakSeqErr);
            self.retry(now, qp, missing, Cause::MissingResponse);
        }
    }

    /// Sends again from `psn` on, if retries are left.
    fn retry(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn, why: Cause) {
        if !qp.may_retry(psn) {
            return;
        }
        if qp.requester.retries_left == 0 && !self.migrate_if_armed(now, qp) {
            return self.fail_at(now, qp, qp.requester.oldest(), Syndrome::TransportRetryExceeded);
        }
        self.note(now, Event::Retry { qpn: qp.qpn, psn, why });
        qp.requester.retry(psn);
        self.restart_slowly(now, qp);
        self.ask_turn(now, qp);
    }

    /// The queue pair does not wait as long as its timeout says: sends again from `psn` on, which costs no retry.
    #[cold]
    fn retry_early(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn) {
        self.function.fw.icm.count(qp.qpn, QCounter::RoceAdpRetrans);
        if !qp.may_retry(psn) {
            return;
        }
        self.note(now, Event::Retry { qpn: qp.qpn, psn, why: Cause::Timeout });
        qp.requester.repeat(psn);
        self.restart_slowly(now, qp);
        self.ask_turn(now, qp);
    }
}

impl Executor<'_> {
    pub(crate) fn ack_timeout(&mut self, now: Ps, qpn: Qpn) {
        let (Some(qp), core) = (self.qps.get_mut(qpn.0), &mut self.core) else { return };
        match qp.requester.timer_ran_out(now) {
            Timer::Stopped => {}
            Timer::Later(deadline) => core.schedule(deadline, HcaEvent::AckTimeout(qpn)),
            Timer::Timeout(psn) => {
                let adaptive = qp.requester.patience.as_mut().map(|patience| patience.ran_out());
                if adaptive == Some(true) {
                    return core.retry_early(now, qp, psn);
                }
                tracing::debug!(hca = core.chip.name, %now, "QP {qpn}: ACK timeout at {psn:?}");
                if adaptive.is_some() {
                    core.function.fw.icm.count(qpn, QCounter::RoceAdpRetransTo);
                }
                core.function.fw.icm.count(qpn, QCounter::LocalAckTimeoutErr);
                core.note(now, Event::Timeout { qpn, psn });
                core.retry(now, qp, psn, Cause::Timeout);
            }
        }
    }

    pub(crate) fn rnr_timeout(&mut self, now: Ps, qpn: Qpn, generation: u32) {
        let (Some(qp), core) = (self.qps.get_mut(qpn.0), &mut self.core) else { return };
        if qp.requester.ready_again(generation) && qp.sends() {
            let (psn, why) = (qp.requester.cursor, Cause::ReceiverNotReady);
            core.note(now, Event::Retry { qpn, psn, why });
            core.ask_turn(now, qp);
        }
    }
}
