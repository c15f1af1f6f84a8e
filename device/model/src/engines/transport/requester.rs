//! The requester: messages to packets, in order and within the limits that hold them back. What the peer
//! answers is in [`super::replies`].
//!
//! Source: IBTA 9.7.2 to 9.7.3 (PSN, ordering), 9.7.7.2 (credits), 9.8.2 (unreliable connections). Packets are numbered; a message of n packets owns n consecutive PSNs, a read as many as
//! its responses.

use std::collections::VecDeque;

use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_spec::ids::{Lid, Psn, Qpn, Srqn};
use hca_spec::qpc::{AddressPath, QpState, ServiceType};
use hca_spec::wire::Operation;
use hca_spec::wqe::{Datagram, SendOpcode};

use super::credits::Limit;
use super::message::{Message, fill_headers, operation};
use super::page_fault::{Met, RequesterFault};
use super::pieces::{Piece, gather, spans};
use super::send::Fetched;
use super::wqe::Wqe;
use super::{Params, QueuePair};
use crate::adapter::core::{Core, HcaEvent};
use crate::ground::event::{Event, Hold};
use crate::ground::time::Ps;
use crate::wire::Packet;

/// Message numbers have 24 bits.
const MESSAGE_MASK: u32 = 0xff_ffff;
/// Reliable queue pairs keep at most this many packets in flight: far below the PSN window of 2^23.
const WINDOW: i32 = 1 << 16;

/// The moving parts of the requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(super) messages: VecDeque<Message>,
    /// PSN of the next new message's first packet.
    pub(crate) next_psn: Psn,
    /// PSN of the next packet to send; behind `sent` while retrying.
    pub(super) cursor: Psn,
    /// PSN after the last packet that was ever sent.
    pub(super) sent: Psn,
    pub(crate) retries_left: u32,
    pub(crate) rnr_left: u32,
    /// When the oldest unacknowledged packet times out.
    pub(super) deadline: Option<Ps>,
    pub(super) timer_running: bool,
    /// Until when an RNR NAK holds the queue back.
    pub(super) rnr_until: Option<Ps>,
    pub(super) rnr_generation: u32,
    /// A failed message waits for its predecessors: no WQE is fetched any more.
    pub(super) poisoned: bool,
    /// The missing response that was already asked for again: what still arrives of the old stream
    /// must not spend another retry.
    pub(super) gap: Option<Psn>,
    /// Number of the message started last, 24 bits (IBTA "SSN").
    ssn: u32,
    /// How far the peer's receive queue lets messages go.
    pub(super) limit: Limit,
    /// The page fault that the driver has to deal with first.
    pub(super) fault: Option<RequesterFault>,
}

impl Requester {
    pub(crate) fn start(&mut self, psn: Psn, params: &Params) {
        (self.next_psn, self.cursor, self.sent) = (psn, psn, psn);
        (self.ssn, self.limit) = (0, Limit::default());
        (self.retries_left, self.rnr_left) = (params.retry_count, params.rnr_retry);
    }

    /// Number of the message started last.
    pub(crate) fn ssn(&self) -> u32 {
        self.ssn
    }

    /// Numbers a message that starts.
    fn next_ssn(&mut self) -> u32 {
        self.ssn = (self.ssn + 1) & MESSAGE_MASK;
        self.ssn
    }

    /// The oldest PSN that is not acknowledged.
    pub(crate) fn oldest(&self) -> Psn {
        self.messages.front().map_or(self.next_psn, |m| m.first.add(m.answered))
    }

    /// Queues the packet that begins a dynamic connection.
    pub(super) fn connect(&mut self) {
        let (first, wqe) = (self.next_psn, Box::new(Wqe { signaled: false, ..Wqe::unreadable(0) }));
        self.next_psn = first.next();
        let (data, failed, ssn) = (Vec::new(), None, self.ssn);
        self.messages.push_back(Message {
            wqe,
            first,
            packets: 1,
            answered: 0,
            failed,
            connect: true,
            mark: None,
            data,
            ssn,
        });
    }

    /// Whether there is nothing to send again and nothing that holds back what comes next.
    pub(super) fn is_through(&self) -> bool {
        self.cursor == self.next_psn
            && self.rnr_until.is_none()
            && !self.connecting()
            && !self.held(self.cursor)
            && self.next_psn.since(self.oldest()) < WINDOW
    }

    /// Whether the connection was asked for and is not there yet: nothing else may leave before, as its
    /// target could take a request that it executed for a new one.
    fn connecting(&self) -> bool {
        self.messages.front().is_some_and(|m| m.connect && self.cursor != m.first)
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
    pub(super) fn held(&self, psn: Psn) -> bool {
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

/// When things happen to a packet that is sent.
struct Sending {
    /// The queue pair may go on.
    free: Ps,
    /// The packet leaves.
    departs: Ps,
}

impl QueuePair {
    /// Sends the next packet, fetching a WQE if all fetched ones are sent.
    pub(crate) fn send_packet(&mut self, core: &mut Core, now: Ps) {
        let r = &self.requester;
        let held = match () {
            () if r.rnr_until.is_some() => Some(Hold::ReceiverNotReady),
            () if r.connecting() => Some(Hold::Connecting),
            () if r.held(r.cursor) => Some(Hold::PageFault),
            () => None,
        };
        if let Some(why) = held {
            return core.note(now, Event::Held { qpn: self.qpn, why });
        }
        if self.requester.cursor == self.requester.next_psn {
            // Reliable: a bounded window, and reads up to the negotiated depth.
            let full = self.requester.next_psn.since(self.requester.oldest()) >= WINDOW;
            if full {
                core.note(now, Event::Held { qpn: self.qpn, why: Hold::Window });
            }
            if self.requester.poisoned || full || !self.next_message(core, now) {
                return;
            }
        }
        let Some(sent) = self.transmit_cursor(core, now) else { return };
        if !self.service.is_reliable() {
            self.complete_front(core, now, sent.departs);
        }
        let done = self.requester.cursor == self.requester.next_psn;
        // Whatever comes later asks for a turn itself.
        if self.sends() && !(done && self.sq.is_empty()) {
            let pause = if done { core.units.pause() } else { Ps::ZERO };
            self.ask_turn(core, sent.free + pause);
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
        match self.at_hand(core, now) {
            None => return false,
            Some(at) if at > now => {
                self.ask_turn(core, at);
                return false;
            }
            Some(_) => {}
        }
        let head = self.sq.head;
        let wqe = match self.fetch_wqe(core) {
            Fetched::Nothing => return false,
            Fetched::Bad(index, why) => {
                core.diagnose(
                    now,
                    format_args!("QP {}: send WQE {index} is not executable: {}", self.qpn, why.0),
                );
                core.note(now, Event::Unreadable { qpn: self.qpn, index });
                self.push_failed(core, now, Box::new(Wqe::unreadable(index)), Syndrome::LocalQpOperation);
                return false;
            }
            Fetched::Wqe(wqe) => wqe,
        };
        let is_read =
            matches!(wqe.opcode, SendOpcode::RdmaRead | SendOpcode::AtomicCs | SendOpcode::AtomicFa);
        if wqe.fence || is_read {
            let reads = self.requester.responses_outstanding();
            if (wqe.fence && reads > 0) || (is_read && reads >= self.params.sra_max) {
                self.sq.head = head;
                let why = if wqe.fence && reads > 0 { Hold::Fence } else { Hold::ReadDepth };
                core.note(now, Event::Held { qpn: self.qpn, why });
                return false;
            }
        }
        if wqe.datagram.is_some() {
            core.note(now, self.started(&wqe, self.requester.next_psn, 1));
            if let Some(at) = self.send_datagram(core, now, &wqe, head) {
                self.ask_turn(core, at);
            }
            return false;
        }
        let allowed = match self.service {
            ServiceType::Rc | ServiceType::Xrc | ServiceType::Dci => true,
            ServiceType::Uc => !is_read && wqe.opcode != SendOpcode::SendInval,
            _ => wqe.opcode.is_local(),
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
        let local = wqe.opcode.is_local();
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
        if packets > 0
            && let Some(target) = wqe.target
            && !self.turn_to(core, now, &target)
        {
            self.sq.head = head;
            return false;
        }
        // The response needs the WQE again. One that was fetched stays in its queue pair's own buffer.
        let mark = self.sq.mark.filter(|_| is_read);
        let executed = (packets == 0).then(|| self.time_local(core, now, &wqe));
        let first = self.requester.next_psn;
        self.requester.next_psn = first.add(packets);
        let ssn = if packets > 0 { self.requester.next_ssn() } else { self.requester.ssn };
        core.note(now, self.started(&wqe, first, packets));
        if packets == 0 && self.requester.cursor == first {
            self.requester.cursor = self.requester.next_psn;
        }
        self.requester.messages.push_back(Message {
            wqe,
            first,
            packets,
            ssn,
            answered: 0,
            failed: None,
            connect: false,
            mark,
            data: Vec::new(),
        });
        if let Some(at) = executed {
            self.sq.due = at + core.units.completion_latency();
            self.retire(core, now);
            if self.sends() {
                self.ask_turn(core, at);
            }
            return false;
        }
        true
    }

    /// What a trace says of a work request that begins.
    fn started(&self, wqe: &Wqe, psn: Psn, packets: u32) -> Event {
        let (dest_qp, dlid) = match &wqe.datagram {
            Some(av) => (Qpn(av.get(Datagram::DQPN)), av.get(Datagram::RLID)),
            None => (self.params.remote_qpn, self.params.path.get(AddressPath::RLID)),
        };
        let (qpn, index, opcode, length) = (self.qpn, wqe.index, wqe.opcode, wqe.length);
        let (dlid, signaled) = (Lid(dlid as u16), wqe.signaled);
        Event::Started { qpn, index, opcode, length, psn, packets, dest_qp, dlid, signaled }
    }

    /// When a WQE that sends nothing is executed: one that loads a list from memory waits for it.
    fn time_local(&self, core: &mut Core, now: Ps, wqe: &Wqe) -> Ps {
        let free = core.units.send(now, self.qpn.0, core.timing.wqe());
        match (&wqe.umr, wqe.pieces.is_empty()) {
            (Some(_), false) => {
                let list = spans(&core.fw.icm, &wqe.pieces, 0, wqe.length as usize);
                core.units.gather(now, self.qpn.0, free, list) + core.timing.umr()
            }
            _ => free,
        }
    }

    fn push_failed(&mut self, core: &mut Core, now: Ps, wqe: Box<Wqe>, syndrome: Syndrome) {
        let (first, ssn) = (self.requester.next_psn, self.requester.ssn);
        self.requester.messages.push_back(Message {
            wqe,
            first,
            packets: 0,
            ssn,
            answered: 0,
            failed: Some(syndrome),
            connect: false,
            mark: None,
            data: Vec::new(),
        });
        self.requester.poisoned = true;
        self.retire(core, now);
    }

    /// Builds and sends the packet at the cursor.
    fn transmit_cursor(&mut self, core: &mut Core, now: Ps) -> Option<Sending> {
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
        // Without a credit, packets go one at a time, each asking for an answer that may bring credits.
        let short = message.needs_credit(k) && !self.requester.limit.allows(message.ssn);
        if short && self.requester.oldest() != psn {
            core.note(now, Event::Held { qpn: self.qpn, why: Hold::NoCredit });
            return None;
        }
        let wqe = &message.wqe;
        let offset = u64::from(k) * mtu;
        let wants_response = message.wants_response();
        let payload_len =
            if wants_response { 0 } else { (wqe.length - offset.min(wqe.length)).min(mtu) as usize };
        let last = wants_response || k + 1 == message.packets;
        repr.operation =
            if message.connect { Operation::Connect } else { operation(wqe.opcode, k, message.packets) };
        repr.psn = psn;
        let often = 1u32 << self.params.log_ack_req_freq;
        repr.ack_req = self.service.is_reliable() && (last || short || (k + 1).is_multiple_of(often));
        repr.solicited = last && wqe.solicited;
        repr.xrceth = wqe.xrc_srqn.map(Srqn);
        repr.dceth = self.dceth();
        fill_headers(&mut repr, wqe, offset);
        let built = Packet::build_with(&repr, payload_len, |buf| gather(core, who, &wqe.pieces, offset, buf));
        let (index, opcode, packets) = (wqe.index, wqe.opcode, message.packets);
        let gathers = k == 0 && payload_len > 0 && wqe.pieces.iter().any(Piece::is_memory);
        let gathering = if gathers { core.timing.gather() } else { Ps::ZERO };
        let cqn = self.params.cqn_snd;
        self.tell_signature_errors(core, now, cqn);
        let packet = match built {
            Ok(packet) => packet,
            Err(fault) => {
                let met = Met { kind: page_fault::SEND_OR_WRITE, psn, index, opcode, committed: offset };
                if !self.wait_to_send(core, now, fault, met) {
                    core.diagnose(now, format_args!("QP {}: send WQE {index}: {fault}", self.qpn));
                    self.fail_message(core, now, psn, Syndrome::LocalProtection);
                }
                return None;
            }
        };
        let step = if wants_response { packets - k } else { 1 };
        self.requester.cursor = psn.add(step);
        if self.requester.cursor.since(self.requester.sent) > 0 {
            self.requester.sent = self.requester.cursor;
        }
        let parsed = if k == 0 { core.timing.wqe() } else { Ps::ZERO };
        let service = core.timing.transmit() + parsed + gathering;
        let free = core.units.send(now, self.qpn.0, service);
        let mut ready = free;
        if let Some(message) = self.requester.messages.get(place) {
            let data = spans(&core.fw.icm, &message.wqe.pieces, offset, payload_len);
            ready = core.units.gather(now, self.qpn.0, free, data);
        }
        let departs = core.units.depart(self.qpn.0, ready);
        let operation = repr.operation;
        let (qpn, bytes) = (self.qpn, packet.len() as u32);
        core.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
        self.lane = core.launch(departs, operation, packet);
        if self.service.is_reliable() && self.requester.deadline.is_none() {
            self.start_timer(core, departs);
        }
        Some(Sending { free, departs })
    }

    /// Unreliable: a message is complete when its last packet has left.
    fn complete_front(&mut self, core: &mut Core, now: Ps, departs: Ps) {
        let cursor = self.requester.cursor;
        self.sq.due = departs + core.units.completion_latency();
        while let Some(m) =
            self.requester.messages.pop_front_if(|m| m.failed.is_none() && cursor.since(m.end()) >= 0)
        {
            self.complete_send(core, now, &m);
        }
        self.drain(core, now);
    }

    pub(super) fn start_timer(&mut self, core: &mut Core, now: Ps) {
        let Some(timeout) = self.params.ack_timeout else { return };
        let deadline = now + timeout;
        self.requester.deadline = Some(deadline);
        if !std::mem::replace(&mut self.requester.timer_running, true) {
            core.schedule(deadline, HcaEvent::AckTimeout(self.qpn));
        }
    }

    /// Something was acknowledged: the timer starts anew if more is outstanding.
    pub(super) fn progress(&mut self, core: &mut Core, now: Ps) {
        let params = &self.params;
        self.requester.refill_retries(params);
        self.requester.deadline = None;
        if self.requester.sent.since(self.requester.oldest()) > 0 {
            self.start_timer(core, now);
        }
    }

    /// Completes, in order, what can be completed at the front.
    pub(super) fn retire(&mut self, core: &mut Core, now: Ps) {
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
}
