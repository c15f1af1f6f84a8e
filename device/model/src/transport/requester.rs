//! The requester: messages to packets, answers to completions, retries.
//!
//! Source: IBTA 9.7.2 to 9.7.6 (PSN, ordering, response handling, retries), 9.9.2 (requester error
//! behaviour). Packets are numbered; a message of n packets owns n consecutive PSNs, a read as many as
//! its responses.

use std::collections::VecDeque;

use hca_firmware::QCounter;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_spec::ids::{Psn, Qpn, Srqn};
use hca_spec::qpc::{QpState, ServiceType, rnr_timer_ns};
use hca_spec::wire::{Operation, aeth};
use hca_spec::wqe::SendOpcode;

use super::message::{Message, fill_headers, operation};
use super::page_fault::{Met, RequesterFault};
use super::pieces::{gather, scatter};
use super::send::Fetched;
use super::wqe::Wqe;
use super::{Params, QueuePair};
use crate::core::{Core, HcaEvent};
use crate::hca::Hca;
use crate::time::Ps;
use crate::wire::{Packet, Repr};

/// RNR retry count that means "for ever".
const RNR_FOR_EVER: u32 = 7;
/// Reliable queue pairs keep at most this many packets in flight: far below the PSN window of 2^23.
const WINDOW: i32 = 1 << 16;

/// The moving parts of the requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    messages: VecDeque<Message>,
    /// PSN of the next new message's first packet.
    pub(crate) next_psn: Psn,
    /// PSN of the next packet to send; behind `sent` while retrying.
    cursor: Psn,
    /// PSN after the last packet that was ever sent.
    sent: Psn,
    pub(crate) retries_left: u32,
    pub(crate) rnr_left: u32,
    /// When the oldest unacknowledged packet times out.
    deadline: Option<Ps>,
    timer_running: bool,
    /// Until when an RNR NAK holds the queue back.
    rnr_until: Option<Ps>,
    rnr_generation: u32,
    /// A failed message waits for its predecessors: no WQE is fetched any more.
    poisoned: bool,
    /// The missing response that was already asked for again: what still arrives of the old stream
    /// must not spend another retry.
    gap: Option<Psn>,
    /// The page fault that the driver has to deal with first.
    pub(super) fault: Option<RequesterFault>,
}

impl Requester {
    pub(crate) fn start(&mut self, psn: Psn, params: &Params) {
        (self.next_psn, self.cursor, self.sent) = (psn, psn, psn);
        (self.retries_left, self.rnr_left) = (params.retry_count, params.rnr_retry);
    }

    /// The oldest PSN that is not acknowledged.
    pub(crate) fn oldest(&self) -> Psn {
        self.messages.front().map_or(self.next_psn, |m| m.first.add(m.answered))
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes every message out.
    pub(crate) fn abandon(&mut self) -> VecDeque<Message> {
        self.deadline = None;
        self.rnr_until = None;
        self.poisoned = false;
        self.fault = None;
        self.cursor = self.next_psn;
        std::mem::take(&mut self.messages)
    }

    /// What is sent next is packet `psn`, unless it is an earlier one anyhow.
    pub(super) fn go_back(&mut self, psn: Psn) {
        if self.cursor.since(psn) > 0 {
            self.cursor = psn;
        }
        self.gap = None;
        if self.oldest().since(psn) >= 0 {
            self.deadline = None;
        }
    }

    /// Whether a page fault holds packet `psn` back.
    fn held(&self, psn: Psn) -> bool {
        self.fault.as_ref().is_some_and(|f| f.holds(psn))
    }

    fn responses_outstanding(&self) -> usize {
        self.messages.iter().filter(|m| m.wants_response() && m.answered < m.packets).count()
    }

    fn refill_retries(&mut self, params: &Params) {
        self.gap = None;
        (self.retries_left, self.rnr_left) = (params.retry_count, params.rnr_retry);
    }
}

impl QueuePair {
    /// Sends the next packet, fetching a WQE if all fetched ones are sent.
    pub(crate) fn send_packet(&mut self, core: &mut Core, now: Ps) {
        if self.requester.rnr_until.is_some() || self.requester.held(self.requester.cursor) {
            return;
        }
        if self.requester.cursor == self.requester.next_psn {
            // Reliable: a bounded window, and reads up to the negotiated depth.
            let full = self.requester.next_psn.since(self.requester.oldest()) >= WINDOW;
            if self.requester.poisoned || full || !self.next_message(core, now) {
                return;
            }
        }
        let Some(at) = self.transmit_cursor(core, now) else { return };
        if !self.service.is_reliable() {
            self.complete_front(core, at);
        }
        if self.sends() {
            self.ask_turn(core, at);
        }
    }

    /// Fetches one WQE and queues it. `false`: it has no packet to send now. What is done at once (datagrams,
    /// local operations) asks for the next turn itself: one WQE a turn, so that none is free of time.
    fn next_message(&mut self, core: &mut Core, now: Ps) -> bool {
        if self.state != QpState::Rts {
            return false;
        }
        // The depth of outstanding reads holds back whatever comes next only if that is one itself, but
        // what comes next is known after the fetch: look first, fetch when it can start.
        let head = self.sq.head;
        let wqe = match self.fetch_wqe(core) {
            Fetched::Nothing => return false,
            Fetched::Bad(index, why) => {
                core.diagnose(
                    now,
                    format_args!("QP {}: send WQE {index} is not executable: {}", self.qpn, why.0),
                );
                self.push_failed(core, now, Wqe::unreadable(index), Syndrome::LocalQpOperation);
                return false;
            }
            Fetched::Wqe(wqe) => *wqe,
        };
        let is_read =
            matches!(wqe.opcode, SendOpcode::RdmaRead | SendOpcode::AtomicCs | SendOpcode::AtomicFa);
        if wqe.fence || is_read {
            let reads = self.requester.responses_outstanding();
            if (wqe.fence && reads > 0) || (is_read && reads >= self.params.sra_max) {
                self.sq.head = head;
                return false;
            }
        }
        if wqe.datagram.is_some() {
            if let Some(at) = self.send_datagram(core, now, wqe, head) {
                self.ask_turn(core, at);
            }
            return false;
        }
        let allowed = match self.service {
            ServiceType::Rc | ServiceType::Xrc => true,
            ServiceType::Uc => !is_read && wqe.opcode != SendOpcode::SendInval,
            _ => matches!(wqe.opcode, SendOpcode::Nop | SendOpcode::Umr | SendOpcode::LocalInval),
        };
        if !allowed {
            core.diagnose(
                now,
                format_args!(
                    "QP {}: {:?} is not an operation of a {:?} queue pair",
                    self.qpn, wqe.opcode, self.service
                ),
            );
            self.push_failed(core, now, wqe, Syndrome::LocalQpOperation);
            return false;
        }
        // What a UMR loads is no message.
        let local = matches!(wqe.opcode, SendOpcode::Nop | SendOpcode::Umr | SendOpcode::LocalInval);
        if !local && wqe.length > 1 << self.params.log_msg_max {
            core.diagnose(now, format_args!("QP {}: message of {} bytes is too long", self.qpn, wqe.length));
            self.push_failed(core, now, wqe, Syndrome::LocalLength);
            return false;
        }
        let packets = match wqe.opcode {
            _ if local => 0,
            SendOpcode::AtomicCs | SendOpcode::AtomicFa => 1,
            _ => wqe.length.div_ceil(self.params.mtu as u64).max(1) as u32,
        };
        if packets == 0
            && let Err(syndrome) = self.execute_local(core, now, &wqe)
        {
            self.push_failed(core, now, wqe, syndrome);
            return false;
        }
        let first = self.requester.next_psn;
        self.requester.next_psn = first.add(packets);
        if packets == 0 && self.requester.cursor == first {
            self.requester.cursor = self.requester.next_psn;
        }
        self.requester.messages.push_back(Message {
            wqe,
            first,
            packets,
            answered: 0,
            failed: None,
            data: Vec::new(),
        });
        if packets == 0 {
            self.retire(core, now);
            if self.sends() {
                let at = now + core.timing.wqe();
                self.ask_turn(core, at);
            }
            return false;
        }
        true
    }

    fn push_failed(&mut self, core: &mut Core, now: Ps, wqe: Wqe, syndrome: Syndrome) {
        let first = self.requester.next_psn;
        self.requester.messages.push_back(Message {
            wqe,
            first,
            packets: 0,
            answered: 0,
            failed: Some(syndrome),
            data: Vec::new(),
        });
        self.requester.poisoned = true;
        self.retire(core, now);
    }

    /// Builds and sends the packet at the cursor. Returns when the transmitter is free again.
    fn transmit_cursor(&mut self, core: &mut Core, now: Ps) -> Option<Ps> {
        let psn = self.requester.cursor;
        let place = self.requester.messages.iter().rposition(|m| m.contains(psn))?;
        let who = self.accessor();
        let mut repr = self.connected_repr(core)?;
        let mtu = self.params.mtu as u64;
        let message = self.requester.messages.get(place)?;
        if message.failed.is_some() {
            return None;
        }
        let k = psn.since(message.first) as u32;
        let wqe = &message.wqe;
        let offset = u64::from(k) * mtu;
        let wants_response = message.wants_response();
        let payload_len =
            if wants_response { 0 } else { (wqe.length - offset.min(wqe.length)).min(mtu) as usize };
        let last = wants_response || k + 1 == message.packets;
        repr.operation = operation(wqe.opcode, k, message.packets);
        repr.psn = psn;
        repr.ack_req = last;
        repr.solicited = last && wqe.solicited;
        repr.xrceth = wqe.xrc_srqn.map(Srqn);
        fill_headers(&mut repr, wqe, offset);
        let built = Packet::build(&repr, payload_len, |buf| gather(core, who, &wqe.pieces, offset, buf));
        let packet = match built {
            Ok(packet) => packet,
            Err(fault) => {
                let (index, opcode) = (wqe.index, wqe.opcode);
                let met = Met { kind: page_fault::SEND_OR_WRITE, psn, index, opcode, committed: offset };
                if !self.wait_to_send(core, now, fault, met) {
                    core.diagnose(now, format_args!("QP {}: send WQE {index}: {fault}", self.qpn));
                    self.fail_message(core, now, psn, Syndrome::LocalProtection);
                }
                return None;
            }
        };
        let step = if wants_response { message.packets - k } else { 1 };
        self.requester.cursor = psn.add(step);
        if self.requester.cursor.since(self.requester.sent) > 0 {
            self.requester.sent = self.requester.cursor;
        }
        let fetched = if k == 0 { core.timing.wqe() } else { Ps::ZERO };
        let service = core.timing.transmit(packet.len()) + fetched;
        let at = core.units.transmit.admit(now, service);
        let operation = repr.operation;
        core.transmit(at, operation, packet);
        if self.service.is_reliable() && self.requester.deadline.is_none() {
            self.start_timer(core, at);
        }
        Some(at)
    }

    /// Unreliable: a message is complete when its last packet has left.
    fn complete_front(&mut self, core: &mut Core, now: Ps) {
        let cursor = self.requester.cursor;
        while let Some(m) =
            self.requester.messages.pop_front_if(|m| m.failed.is_none() && cursor.since(m.end()) >= 0)
        {
            self.complete_send(core, now, &m);
        }
        self.drain(core, now);
    }

    fn start_timer(&mut self, core: &mut Core, now: Ps) {
        let Some(timeout) = self.params.ack_timeout else { return };
        let deadline = now + timeout;
        self.requester.deadline = Some(deadline);
        if !std::mem::replace(&mut self.requester.timer_running, true) {
            core.schedule(deadline, HcaEvent::AckTimeout(self.qpn));
        }
    }

    /// Something was acknowledged: the timer starts anew if more is outstanding.
    fn progress(&mut self, core: &mut Core, now: Ps) {
        let params = &self.params;
        self.requester.refill_retries(params);
        self.requester.deadline = None;
        if self.requester.sent.since(self.requester.oldest()) > 0 {
            self.start_timer(core, now);
        }
    }

    /// Completes, in order, what can be completed at the front.
    fn retire(&mut self, core: &mut Core, now: Ps) {
        while let Some(front) = self.requester.messages.front() {
            if let Some(syndrome) = front.failed {
                return self.fail_sends(core, now, Some(syndrome));
            }
            if front.answered < front.packets {
                break;
            }
            let Some(done) = self.requester.messages.pop_front() else { break };
            self.complete_send(core, now, &done);
        }
        // A cursor that went back for a retry need not resend what is acknowledged now. Only here, with
        // the complete messages gone, is the oldest PSN the true one.
        let oldest = self.requester.oldest();
        if oldest.since(self.requester.cursor) > 0 {
            self.requester.cursor = oldest;
        }
        self.drain(core, now);
    }

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

    /// A response packet of the peer.
    pub(crate) fn receive_response(&mut self, core: &mut Core, now: Ps, repr: &Repr, payload: &[u8]) {
        if !self.service.is_reliable() || !self.sends() {
            return;
        }
        let oldest = self.requester.oldest();
        let psn = repr.psn;
        // IBTA 9.7.5.1.2: responses outside what is outstanding are ghosts or duplicates.
        if psn.since(oldest) < 0 || psn.since(self.requester.sent) >= 0 || self.requester.held(psn) {
            return;
        }
        match repr.operation {
            Operation::Acknowledge => self.receive_ack(core, now, repr),
            _ => self.receive_data(core, now, repr, payload),
        }
        if self.sends() {
            self.ask_turn(core, now);
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
                if missing.is_some_and(|missing| missing != psn) || !self.sends() {
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
                        return self.retry(core, now, missing.unwrap_or(psn));
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
        if data.len() != due || is_read == (repr.operation == Operation::AtomicAcknowledge) {
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
            self.retry(core, now, missing);
        }
    }

    /// Sends again from `psn` on, if retries are left.
    fn retry(&mut self, core: &mut Core, now: Ps, psn: Psn) {
        if !self.sends() || psn.since(self.requester.sent) >= 0 || self.requester.held(psn) {
            return;
        }
        if self.requester.retries_left == 0 {
            return self.fail_at(core, now, self.requester.oldest(), Syndrome::TransportRetryExceeded);
        }
        self.requester.retries_left -= 1;
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
                qp.retry(&mut self.core, now, oldest);
            }
        }
    }

    pub(crate) fn rnr_timeout(&mut self, now: Ps, qpn: Qpn, generation: u32) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        if qp.requester.rnr_generation == generation && qp.requester.rnr_until.take().is_some() && qp.sends()
        {
            qp.ask_turn(&mut self.core, now);
        }
    }
}
