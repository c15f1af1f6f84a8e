//! The peer's answers: what they complete, what they make the requester send again, and its timers.
//!
//! Source: IBTA 9.7.5.1.2 (which responses count), 9.7.6 (retries and timers), 9.7.7.2 (credits), 9.9.2
//! (requester error behaviour), tables 45 and 46.

use hca_firmware::QCounter;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::rnr_timer_ns;
use hca_spec::wire::{Operation, aeth};
use hca_spec::wqe::SendOpcode;

use super::QueuePair;
use super::credits;
use super::page_fault::Met;
use super::pieces::{scatter, spans};
use crate::adapter::Hca;
use crate::adapter::core::{Core, HcaEvent};
use crate::ground::event::{Cause, Event};
use crate::ground::time::Ps;
use crate::units::Inbound;
use crate::wire::{AethRepr, Repr};

/// Bytes of an atomic's operand.
const OPERAND: usize = 8;
/// RNR retry count that means "for ever".
const RNR_FOR_EVER: u32 = 7;

impl QueuePair {
    /// Everything before `psn` is acknowledged, except responses that have not come. Returns the PSN to
    /// go back to if a response is missing.
    fn acknowledge_before(&mut self, core: &mut Core, now: Ps, psn: Psn) -> Option<Psn> {
        let mut missing = None;
        let before = self.requester.oldest();
        for m in &mut self.requester.messages {
            let covered = psn.since(m.first);
            if covered <= 0 {
                break;
            }
            if m.wants_response() {
                if m.answered < m.packets {
                    missing = Some(m.first.add(m.answered));
                    break;
                }
            } else {
                m.answered = m.answered.max((covered as u32).min(m.packets));
            }
        }
        let progressed = self.requester.oldest() != before;
        self.retire(core, now);
        if progressed && self.sends() {
            self.progress(core, now);
        }
        missing
    }

    /// A response arrives: where its data goes, whether it completes something, and what its WQE is known by, which is
    /// needed again. A response that belongs to nothing does nothing.
    pub(crate) fn expect_response(&self, core: &mut Core, repr: &Repr, inbound: &mut Inbound) {
        let Some(message) = self.requester.messages.iter().find(|m| m.contains(repr.psn)) else {
            inbound.bytes = 0;
            return;
        };
        let last = message.end().prev() == repr.psn;
        inbound.completes = message.wqe.signaled && last;
        if !message.wants_response() || repr.operation == Operation::Acknowledge {
            return;
        }
        let offset = repr.psn.since(message.first).max(0) as u64 * self.params.mtu as u64;
        if repr.operation == Operation::AtomicAcknowledge {
            inbound.bytes = OPERAND;
        }
        inbound.to = spans(&core.fw.icm, &message.wqe.pieces, offset, inbound.bytes).next();
        let first = repr.psn == message.first;
        inbound.wqe = message.mark.filter(|_| first);
    }

    /// A response packet of the peer.
    pub(crate) fn receive_response(&mut self, core: &mut Core, now: Ps, repr: &Repr, payload: &[u8]) {
        if !self.service.is_reliable() || !self.sends() {
            return;
        }
        let oldest = self.requester.oldest();
        let psn = repr.psn;
        // IBTA 9.7.5.1.2: responses outside what is outstanding are ghosts or duplicates. The last one again
        // brings credits at most.
        let distance = psn.since(oldest);
        if distance < -1 || psn.since(self.requester.sent) >= 0 || self.requester.held(psn) {
            return;
        }
        if let Some(aeth) = repr.aeth {
            self.take_credits(aeth);
        }
        if distance < 0 {
            return self.ask_turn(core, now);
        }
        let syndrome = repr.aeth.map_or(0, |aeth| aeth.syndrome);
        core.note(now, Event::Answered { qpn: self.qpn, psn, operation: repr.operation, syndrome });
        match repr.operation {
            Operation::Acknowledge => self.receive_ack(core, now, repr),
            _ => self.receive_data(core, now, repr, payload),
        }
        // A turn of which nothing could come is not asked for, unless others would notice that it waits.
        let idle = self.sq.is_empty() && self.requester.is_through() && core.may_send(self.lane);
        if self.sends() && !idle {
            self.ask_turn(core, now);
        }
    }

    /// What a positive answer says of the peer's receive queue.
    fn take_credits(&mut self, aeth: AethRepr) {
        let syndrome = u32::from(aeth.syndrome);
        if syndrome & aeth::KIND_MASK == aeth::ACK {
            self.requester.limit.update(aeth.msn, credits::decode(syndrome & aeth::VALUE_MASK));
        }
    }

    fn receive_ack(&mut self, core: &mut Core, now: Ps, repr: &Repr) {
        let Some(aeth) = repr.aeth else { return };
        let (syndrome, psn) = (u32::from(aeth.syndrome), repr.psn);
        match syndrome & aeth::KIND_MASK {
            aeth::ACK => {
                if let Some(missing) = self.acknowledge_before(core, now, psn.next()) {
                    self.retry_gap(core, now, missing);
                }
            }
            aeth::RNR_NAK => {
                core.fw.icm.count(self.qpn, QCounter::RnrNakRetryErr);
                // Of a read, a response in the middle can be what is not ready.
                let missing = self.acknowledge_before(core, now, psn);
                if let Some(missing) = missing.filter(|missing| *missing != psn) {
                    // That a later request was answered says that this response is lost (IBTA 9.7.5.1.3).
                    return self.retry_gap(core, now, missing);
                }
                if !self.sends() {
                    return;
                }
                if self.params.rnr_retry != RNR_FOR_EVER {
                    if self.requester.rnr_left == 0 {
                        return self.fail_at(core, now, psn, Syndrome::RnrRetryExceeded);
                    }
                    self.requester.rnr_left -= 1;
                }
                self.requester.cursor = psn;
                self.requester.deadline = None;
                let until = now + Ps::from_ns(rnr_timer_ns(syndrome & aeth::VALUE_MASK));
                self.requester.rnr_until = Some(until);
                self.requester.rnr_generation = self.requester.rnr_generation.wrapping_add(1);
                core.schedule(until, HcaEvent::RnrTimeout(self.qpn, self.requester.rnr_generation));
            }
            aeth::NAK => {
                let missing = self.acknowledge_before(core, now, psn);
                if !self.sends() {
                    return;
                }
                let cause = match syndrome & aeth::VALUE_MASK {
                    aeth::PSN_SEQUENCE_ERROR => {
                        core.fw.icm.count(self.qpn, QCounter::PacketSeqErr);
                        return self.retry(core, now, missing.unwrap_or(psn), Cause::SequenceNak);
                    }
                    aeth::INVALID_REQUEST => Syndrome::RemoteInvalidRequest,
                    aeth::REMOTE_ACCESS_ERROR => Syndrome::RemoteAccess,
                    aeth::REMOTE_OPERATIONAL_ERROR => Syndrome::RemoteOperation,
                    _ => Syndrome::BadResponse,
                };
                self.fail_at(core, now, psn, cause);
            }
            _ => {}
        }
    }

    /// Data of a read or atomic.
    fn receive_data(&mut self, core: &mut Core, now: Ps, repr: &Repr, payload: &[u8]) {
        let first = self.requester.messages.iter().find(|m| m.contains(repr.psn)).map(|m| m.first);
        let Some(first) = first else { return };
        // A response acknowledges everything before its own request.
        if let Some(missing) = self.acknowledge_before(core, now, first) {
            return self.retry_gap(core, now, missing);
        }
        let who = self.accessor();
        let mtu = self.params.mtu as u64;
        let Some(message) = self.requester.messages.iter_mut().find(|m| m.contains(repr.psn)) else { return };
        if !message.wants_response() {
            return;
        }
        let expected = message.first.add(message.answered);
        let distance = repr.psn.since(expected);
        if distance < 0 {
            return;
        }
        if distance > 0 {
            return self.retry_gap(core, now, expected);
        }
        let offset = u64::from(message.answered) * mtu;
        let is_read = message.wqe.opcode == SendOpcode::RdmaRead;
        let original = repr.atomic_ack.unwrap_or_default().to_le_bytes();
        let (data, due) = if is_read {
            (payload, (message.wqe.length - offset.min(message.wqe.length)).min(mtu) as usize)
        } else {
            (&original[..], original.len())
        };
        // A read's response ends where its request said, no matter from where on it was asked for again.
        let ends = matches!(repr.operation, Operation::ReadResponseLast | Operation::ReadResponseOnly);
        let misplaced = is_read && ends != (message.answered + 1 == message.packets);
        if data.len() != due || misplaced || is_read == (repr.operation == Operation::AtomicAcknowledge) {
            return self.fail_at(core, now, repr.psn, Syndrome::BadResponse);
        }
        let small = message.packets == 1 && message.wqe.signaled;
        let room = core.scatter_room(self.params.cqn_snd, self.params.scatter_request);
        if small && data.len() <= room {
            message.data = data.to_vec();
        } else if let Err(fault) = scatter(core, who, &message.wqe.pieces, offset, data) {
            let (index, opcode) = (message.wqe.index, message.wqe.opcode);
            let (kind, psn) = (page_fault::READ_OR_ATOMIC, repr.psn);
            if self.wait_to_send(core, now, fault, Met { kind, psn, index, opcode, committed: offset }) {
                return;
            }
            core.diagnose(now, format_args!("QP {}: response to send WQE {index}: {fault}", self.qpn));
            return self.fail_at(core, now, repr.psn, Syndrome::LocalProtection);
        }
        message.answered += 1;
        let cqn = self.params.cqn_snd;
        self.tell_signature_errors(core, now, cqn);
        self.retire(core, now);
        if self.sends() {
            self.progress(core, now);
        }
    }

    /// The message that owns `psn` fails, when all before it are complete.
    pub(super) fn fail_message(&mut self, core: &mut Core, now: Ps, psn: Psn, syndrome: Syndrome) -> bool {
        let Some(m) = self.requester.messages.iter_mut().find(|m| m.contains(psn)) else { return false };
        m.failed = Some(syndrome);
        self.requester.poisoned = true;
        self.retire(core, now);
        true
    }

    /// The message that owns `psn` fails; what is before it was acknowledged.
    fn fail_at(&mut self, core: &mut Core, now: Ps, psn: Psn, syndrome: Syndrome) {
        if self.fail_message(core, now, psn, syndrome) && self.sends() {
            // A response before it is missing for good: the oldest carries the error.
            self.fail(core, now, Some(syndrome));
        }
    }

    /// A response is missing although later ones came: once for each gap, ask again.
    fn retry_gap(&mut self, core: &mut Core, now: Ps, missing: Psn) {
        if self.requester.gap.replace(missing) != Some(missing) {
            core.fw.icm.count(self.qpn, QCounter::ImpliedNakSeqErr);
            self.retry(core, now, missing, Cause::MissingResponse);
        }
    }

    /// Sends again from `psn` on, if retries are left.
    fn retry(&mut self, core: &mut Core, now: Ps, psn: Psn, why: Cause) {
        if !self.sends() || psn.since(self.requester.sent) >= 0 || self.requester.held(psn) {
            return;
        }
        if self.requester.retries_left == 0 && !self.migrate_if_armed(core, now) {
            return self.fail_at(core, now, self.requester.oldest(), Syndrome::TransportRetryExceeded);
        }
        core.note(now, Event::Retry { qpn: self.qpn, psn, why });
        self.requester.retries_left = self.requester.retries_left.saturating_sub(1);
        self.requester.cursor = psn;
        self.requester.deadline = None;
        self.ask_turn(core, now);
    }
}

impl Hca {
    pub(crate) fn ack_timeout(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        qp.requester.timer_running = false;
        match qp.requester.deadline {
            None => {}
            Some(deadline) if deadline > now => {
                qp.requester.timer_running = true;
                self.core.schedule(deadline, HcaEvent::AckTimeout(qpn));
            }
            Some(_) => {
                let oldest = qp.requester.oldest();
                tracing::debug!(hca = self.core.name, %now, "QP {qpn}: ACK timeout at {oldest:?}");
                self.core.fw.icm.count(qpn, QCounter::LocalAckTimeoutErr);
                qp.requester.deadline = None;
                qp.requester.gap = None;
                self.core.note(now, Event::Timeout { qpn, psn: oldest });
                qp.retry(&mut self.core, now, oldest, Cause::Timeout);
            }
        }
    }

    pub(crate) fn rnr_timeout(&mut self, now: Ps, qpn: Qpn, generation: u32) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        if qp.requester.rnr_generation == generation && qp.requester.rnr_until.take().is_some() && qp.sends()
        {
            let (psn, why) = (qp.requester.cursor, Cause::ReceiverNotReady);
            self.core.note(now, Event::Retry { qpn, psn, why });
            qp.ask_turn(&mut self.core, now);
        }
    }
}
