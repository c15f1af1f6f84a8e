//! The requester: messages to packets, in order and within the limits that hold them back. Packets are numbered; a message
//! of n packets owns n consecutive PSNs, a read as many as its responses. What the peer answers is in [`super::replies`].
//!
//! Source: IBTA 9.7.2 to 9.7.3 (PSN, ordering), 9.7.7.2 (credits), 9.8.2 (unreliable connections).

use std::collections::VecDeque;

use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Psn, Srqn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::Operation;
use hca_spec::wqe::SendOpcode;

use super::credits::Limit;
use super::kept::Share;
use super::landing::ReadLanding;
use super::message::{Message, fill_headers, operation};
use super::page_fault::RequesterFault;
use super::patience::Patience;
use super::wqe::Wqe;
use super::{Params, QueuePair};
use crate::engines::pieces::Piece;
use crate::engines::view::View;
use crate::ground::epoch::Rebase;
use crate::ground::event::Hold;
use crate::ground::time::Ps;
use crate::wire::Repr;

/// Message numbers have 24 bits.
const MESSAGE_MASK: u32 = 0xff_ffff;
/// Reliable queue pairs keep at most this many packets in flight: far below the PSN window of 2^23.
const WINDOW: i32 = 1 << 16;
/// So many requests are under way where a ring has fewer places: connections that a DC initiator makes, and what a queue with tag matching fetches,
/// have none.
const LEAST_RING: usize = 256;

/// The moving parts of the requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(crate) messages: VecDeque<Message>,
    /// What these take of the server's memory, and requests of the adapter's own that wait.
    pub(crate) share: Share,
    /// Of those, reads and atomics whose responses have not all come.
    unanswered: usize,
    /// PSN of the next new message's first packet.
    pub(crate) next_psn: Psn,
    /// PSN of the next packet to send; behind `sent` while retrying.
    pub(crate) cursor: Psn,
    /// PSN after the last packet that was ever sent.
    pub(crate) sent: Psn,
    pub(crate) retries_left: u32,
    pub(crate) rnr_left: u32,
    /// When the oldest unacknowledged packet times out.
    pub(crate) deadline: Option<Ps>,
    /// When the event comes that looks at it; of several, the others mean nothing.
    pub(crate) timer: Option<Ps>,
    /// How long answers take, if that is looked at.
    pub(crate) patience: Option<Box<Patience>>,
    /// Until when an RNR NAK holds the queue back.
    pub(crate) rnr_until: Option<Ps>,
    pub(crate) rnr_generation: u32,
    /// A failed message waits for its predecessors: no WQE is fetched any more.
    pub(crate) poisoned: bool,
    /// The missing response that was already asked for again: what still arrives of the old stream
    /// must not spend another retry.
    pub(crate) gap: Option<Psn>,
    /// Number of the message started last, 24 bits (IBTA "SSN").
    ssn: u32,
    /// How far the peer's receive queue lets messages go.
    pub(super) limit: Limit,
    /// The page fault that the driver has to deal with first.
    pub(crate) fault: Option<RequesterFault>,
    /// Where the response to the read in progress goes.
    pub(super) landing: Option<Box<ReadLanding>>,
}

impl Requester {
    pub(crate) fn start(&mut self, psn: Psn, params: &Params) {
        (self.next_psn, self.cursor, self.sent) = (psn, psn, psn);
        (self.ssn, self.limit) = (0, Limit::default());
        (self.retries_left, self.rnr_left) = (params.retry_count, params.rnr_retry);
    }

    /// Goes on with nothing under way: what was answered or not of what was abandoned means nothing.
    pub(crate) fn restart(&mut self, params: &Params) {
        (self.cursor, self.sent, self.limit) = (self.next_psn, self.next_psn, Limit::default());
        self.refill_retries(params);
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

    /// Place of the message that owns a PSN. They are in the order of their PSNs, and there may be 2^15.
    #[inline]
    pub(crate) fn place_of(&self, psn: Psn) -> Option<usize> {
        let front = self.messages.front()?;
        // Mostly it is the first one's.
        if front.contains(psn) {
            return Some(0);
        }
        let from_front = |psn: Psn| Psn::new(psn.get().wrapping_sub(front.first.get())).get();
        let behind = self.messages.partition_point(|m| from_front(m.first) <= from_front(psn));
        let place = behind.checked_sub(1)?;
        self.messages.get(place).filter(|m| m.contains(psn)).map(|_| place)
    }

    /// The message that owns a PSN.
    #[inline]
    pub(crate) fn message_of(&self, psn: Psn) -> Option<&Message> {
        self.messages.get(self.place_of(psn)?)
    }

    /// The oldest PSN that is not acknowledged.
    pub(crate) fn oldest(&self) -> Psn {
        self.messages.front().map_or(self.next_psn, |m| m.first.add(m.answered))
    }

    /// A datagram takes a PSN (IBTA 9.8.3), and nothing waits for what comes of it.
    pub(crate) fn pass_datagram(&mut self) {
        let next = self.next_psn.next();
        if self.cursor == self.next_psn {
            self.cursor = next;
        }
        (self.next_psn, self.sent) = (next, next);
    }

    /// Queues the packet that begins a dynamic connection.
    pub(crate) fn connect(&mut self) {
        let (first, wqe) = (self.next_psn, Box::new(Wqe { signaled: false, ..Wqe::unreadable(0) }));
        self.next_psn = first.next();
        self.push(Message { connect: true, ..Message::new(wqe, first, 1, self.ssn) });
    }

    /// Whether there is nothing to send again and nothing that holds back what comes next.
    pub(crate) fn is_through(&self) -> bool {
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

    /// Takes every message out, or the first `most`: to be called until there are none.
    pub(crate) fn abandon(&mut self, most: usize) -> VecDeque<Message> {
        self.deadline = None;
        self.rnr_until = None;
        self.poisoned = false;
        self.fault = None;
        self.landing = None;
        self.cursor = self.next_psn;
        let rest = self.messages.split_off(most.min(self.messages.len()));
        let taken = std::mem::replace(&mut self.messages, rest);
        self.unanswered = self.unanswered.saturating_sub(taken.iter().filter(|m| m.is_unanswered()).count());
        self.share.give(taken.iter().map(|m| m.bytes as usize).sum());
        taken
    }

    /// What is sent next is packet `psn`, unless it is an earlier one anyhow.
    pub(crate) fn go_back(&mut self, psn: Psn) {
        if self.cursor.since(psn) > 0 {
            self.cursor = psn;
        }
        self.gap = None;
        if self.oldest().since(psn) >= 0 {
            self.deadline = None;
        }
    }

    /// Whether a page fault holds packet `psn` back.
    pub(crate) fn held(&self, psn: Psn) -> bool {
        self.fault.as_ref().is_some_and(|f| f.holds(psn))
    }

    /// More packets of the response to the read or atomic at that place have come.
    #[inline]
    pub(crate) fn answered(&mut self, place: usize, packets: u32) {
        if let Some(message) = self.messages.get_mut(place) {
            let was = message.is_unanswered();
            message.answered += packets;
            if was && !message.is_unanswered() {
                self.unanswered = self.unanswered.saturating_sub(1);
            }
        }
    }

    fn refill_retries(&mut self, params: &Params) {
        self.gap = None;
        (self.retries_left, self.rnr_left) = (params.retry_count, params.rnr_retry);
    }

    /// What the queue pair's turn to send is for; `ring`: WQEBBs of its send queue.
    pub(crate) fn next(&self, ring: usize) -> Next {
        match () {
            () if self.rnr_until.is_some() => Next::Held(Hold::ReceiverNotReady),
            () if self.connecting() => Next::Held(Hold::Connecting),
            () if self.held(self.cursor) => Next::Held(Hold::PageFault),
            () if !self.all_sent() => Next::Packet,
            // Reliable: a bounded window, and reads up to the negotiated depth.
            () if self.next_psn.since(self.oldest()) >= WINDOW => Next::Held(Hold::Window),
            // A request has its place in the ring until it is completed, whoever posts others over it.
            () if self.messages.len() >= ring.max(LEAST_RING) => Next::Held(Hold::Window),
            () if self.poisoned => Next::Nothing,
            () => Next::Message,
        }
    }

    /// Whether no credit of the peer holds back any packet of a message but its last.
    pub(super) fn allows(&self, message: &Message) -> bool {
        !message.needs_credit(0) || self.limit.allows(message.ssn)
    }

    /// Whether every packet of the messages that were begun was sent.
    pub(crate) fn all_sent(&self) -> bool {
        self.cursor == self.next_psn
    }

    /// The WQE of the message that a plan is about.
    pub(crate) fn wqe_of(&self, plan: &Plan) -> Option<&Wqe> {
        self.messages.get(plan.place).map(|m| &*m.wqe)
    }

    /// `step` packets from `psn` on were sent.
    pub(crate) fn advance(&mut self, psn: Psn, step: u32) {
        self.cursor = psn.add(step);
        if self.cursor.since(self.sent) > 0 {
            self.sent = self.cursor;
        }
    }

    /// A message begins.
    fn push(&mut self, message: Message) {
        self.unanswered += usize::from(message.is_unanswered());
        self.share.take(message.bytes as usize);
        self.messages.push_back(message);
    }

    /// Queues a message that fails when all before it are complete.
    pub(crate) fn push_failed(&mut self, wqe: Box<Wqe>, syndrome: Syndrome) {
        let (first, ssn) = (self.next_psn, self.ssn);
        self.push(Message { failed: Some(syndrome), ..Message::new(wqe, first, 0, ssn) });
        self.poisoned = true;
    }

    /// Unreliable: the next message whose last packet has left.
    pub(crate) fn next_sent(&mut self) -> Option<Message> {
        let cursor = self.cursor;
        let message = self.messages.pop_front_if(|m| m.failed.is_none() && cursor.since(m.end()) >= 0);
        if message.as_ref().is_some_and(Message::is_unanswered) {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        self.share.give(message.as_ref().map_or(0, |m| m.bytes as usize));
        message
    }

    /// Reliable: the next message at the front that is answered.
    ///
    /// # Errors
    /// The message at the front has failed, with this.
    pub(crate) fn next_done(&mut self) -> Result<Option<Message>, Syndrome> {
        match self.messages.front() {
            None => Ok(None),
            Some(Message { failed: Some(syndrome), .. }) => Err(*syndrome),
            Some(front) if front.answered < front.packets => Ok(None),
            Some(front) => {
                self.share.give(front.bytes as usize);
                Ok(self.messages.pop_front())
            }
        }
    }

    /// A cursor that went back for a retry need not resend what is acknowledged now. To be called with the complete
    /// messages gone: only then is the oldest PSN the true one.
    pub(crate) fn skip_acknowledged(&mut self) {
        let oldest = self.oldest();
        if oldest.since(self.cursor) > 0 {
            self.cursor = oldest;
        }
    }

    /// Something was acknowledged: the retries are full again, and the ACK timer stops. Returns whether it starts anew.
    pub(crate) fn progressed(&mut self, now: Ps, params: &Params) -> bool {
        let oldest = self.oldest();
        if let Some(patience) = &mut self.patience {
            patience.acknowledged(now, oldest);
        }
        self.refill_retries(params);
        self.deadline = None;
        self.sent.since(self.oldest()) > 0
    }
}

/// What a turn to send is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: something holds the queue pair back.
    Held(Hold),
    /// Nothing is to be sent.
    Nothing,
    /// A WQE is to be begun.
    Message,
    /// A packet of a message that was begun.
    Packet,
}

/// What becomes of a WQE that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WqeAction {
    /// It has to wait in its queue.
    Held(Hold),
    /// It is a datagram.
    Datagram,
    /// It can't be executed: the syndrome of its completion, and why.
    Refused(Syndrome, String),
    /// It sends nothing.
    Local,
    /// It is a message of so many PSNs.
    Packets(u32),
}

/// The packet at the cursor.
#[derive(Debug)]
pub(crate) enum Cursor {
    /// There is none.
    Nothing,
    /// It waits for a credit of the peer.
    NoCredit,
    /// It can be sent, with the headers that were asked for.
    Packet(Plan),
}

/// A request packet that is to be sent.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Place of its message.
    place: usize,
    /// Bytes of the message before its payload.
    pub(crate) offset: u64,
    /// Bytes of payload.
    pub(crate) payload: usize,
    /// The WQE's index and opcode.
    pub(crate) index: u16,
    pub(crate) opcode: SendOpcode,
    /// It is the first of its message.
    pub(crate) first: bool,
    /// A unit has data read for it.
    pub(crate) gathers: bool,
    /// PSNs that it stands for: its own, or those of all responses to it.
    pub(crate) step: u32,
}

impl QueuePair {
    /// What becomes of the WQE that was fetched from the head of the send queue. Inlined where it is begun.
    #[inline(always)]
    pub(crate) fn classify_wqe(&self, wqe: &Wqe) -> WqeAction {
        let is_read = wqe.wants_response();
        if wqe.fence || is_read {
            let reads = self.requester.unanswered;
            if wqe.fence && reads > 0 {
                return WqeAction::Held(Hold::Fence);
            }
            if wqe.ordered && !self.requester.is_idle() {
                return WqeAction::Held(Hold::Fence);
            }
            if is_read && reads >= self.params.sra_max {
                return WqeAction::Held(Hold::ReadDepth);
            }
        }
        if wqe.datagram.is_some() {
            return WqeAction::Datagram;
        }
        // What a UMR loads is no message.
        let local = wqe.opcode.is_local();
        let allowed = match self.service {
            ServiceType::Rc | ServiceType::Xrc | ServiceType::Dci => true,
            ServiceType::Uc => !is_read && wqe.opcode != SendOpcode::SendInval,
            _ => local,
        };
        if !allowed {
            let why = format!("{:?} is not an operation of a {:?} queue pair", wqe.opcode, self.service);
            return WqeAction::Refused(Syndrome::LocalQpOperation, why);
        }
        if let Some(masks) = wqe.masks
            && self.params.masked_sizes >> masks.log_size & 1 == 0
        {
            let why = format!("the adapter has no masked atomics of {} bytes", 1 << masks.log_size);
            return WqeAction::Refused(Syndrome::LocalQpOperation, why);
        }
        if wqe.atomic.is_some() && wqe.length != wqe.operand() {
            let why = format!("{} bytes of a buffer for an operand of {}", wqe.length, wqe.operand());
            return WqeAction::Refused(Syndrome::LocalLength, why);
        }
        if !local && wqe.length > 1 << self.params.log_msg_max {
            let why = format!("message of {} bytes is too long", wqe.length);
            return WqeAction::Refused(Syndrome::LocalLength, why);
        }
        match wqe.opcode {
            _ if local => WqeAction::Local,
            opcode if opcode.is_atomic() => WqeAction::Packets(1),
            _ => WqeAction::Packets(wqe.length.div_ceil(self.params.mtu as u64).max(1) as u32),
        }
    }

    /// What its turn to send is for.
    pub(crate) fn next(&self) -> Next {
        self.requester.next(1 << self.params.log_sq_size)
    }

    /// Begins a message of so many PSNs; 0: it sends nothing.
    pub(crate) fn begin(&mut self, wqe: Box<Wqe>, packets: u32) {
        let r = &mut self.requester;
        let first = r.next_psn;
        r.next_psn = first.add(packets);
        let ssn = if packets > 0 { r.next_ssn() } else { r.ssn };
        if packets == 0 && r.cursor == first {
            r.cursor = r.next_psn;
        }
        let message = Message::new(wqe, first, packets, ssn);
        // The response needs the WQE again. The last one that was fetched stays in its queue pair's own buffer.
        let mark = self.sq.mark.filter(|_| message.wants_response());
        self.requester.push(Message { mark, ..message });
    }

    /// Plans the packet at the cursor, and puts its headers into `repr`, whose fields are those of [`Repr::default`].
    #[inline(always)]
    pub(crate) fn plan(&self, view: &View<'_>, repr: &mut Repr) -> Cursor {
        let r = &self.requester;
        let psn = r.cursor;
        // Mostly it is the last one's.
        let place = match r.messages.back() {
            Some(last) if last.contains(psn) => Some(r.messages.len() - 1),
            _ => r.place_of(psn),
        };
        let Some(place) = place else { return Cursor::Nothing };
        let (Some(()), Some(message)) = (self.put_connected(view, repr), r.messages.get(place)) else {
            return Cursor::Nothing;
        };
        if message.failed.is_some() {
            return Cursor::Nothing;
        }
        let k = psn.since(message.first) as u32;
        // Without a credit, packets go one at a time, each asking for an answer that may bring credits.
        let short = message.needs_credit(k) && !r.limit.allows(message.ssn);
        if short && r.oldest() != psn {
            return Cursor::NoCredit;
        }
        // The packet behind it will have to wait for a credit: what answers this one may bring it (IBTA 9.7.7.2).
        let stops = !message.needs_credit(k)
            && k + 1 < message.packets
            && message.needs_credit(k + 1)
            && !r.limit.allows(message.ssn);
        let (wqe, mtu) = (&message.wqe, self.params.mtu as u64);
        let offset = u64::from(k) * mtu;
        let wants_response = message.wants_response();
        let payload = match wants_response {
            true => 0,
            false => (wqe.length - offset.min(wqe.length)).min(mtu) as usize,
        };
        let last = wants_response || k + 1 == message.packets;
        repr.operation = match message.connect {
            true => Operation::Connect,
            false => operation(wqe.opcode, k, message.packets),
        };
        repr.psn = psn;
        let often = 1u32 << self.params.log_ack_req_freq;
        repr.ack_req =
            self.service.is_reliable() && (last || short || stops || (k + 1).is_multiple_of(often));
        // A write without immediate, a read and an atomic complete nothing at the peer (IBTA 9.2.3).
        repr.solicited = last && wqe.solicited && message.needs_credit(k);
        repr.xrceth = wqe.xrc_srqn.map(Srqn);
        repr.dceth = self.dceth();
        fill_headers(repr, wqe, offset);
        Cursor::Packet(Plan {
            place,
            offset,
            payload,
            index: wqe.index,
            opcode: wqe.opcode,
            first: k == 0,
            gathers: k == 0 && payload > 0 && wqe.pieces.iter().any(Piece::is_memory),
            step: if wants_response { message.packets - k } else { 1 },
        })
    }

    /// Whether there is no request that was not begun.
    pub(crate) fn has_nothing_to_begin(&self) -> bool {
        self.sq.is_empty() && self.offloads.is_empty()
    }

    /// Whether what is next in the send queue was looked at, and waits for responses to what was sent.
    pub(crate) fn is_waiting_for_responses(&self) -> bool {
        self.sq.waits_for_responses && self.offloads.is_empty()
    }

    /// Whether the send queue, which drains, is drained: everything that was started is complete (IBTA 10.3.1.6).
    pub(crate) fn is_drained(&self) -> bool {
        self.state == QpState::SqDraining && self.requester.is_idle() && self.sq.all_seen()
    }
}

impl Rebase for Requester {
    fn rebase(&mut self, by: Ps) {
        let Self {
            deadline,
            timer,
            patience,
            rnr_until,
            messages: _,
            share: _,
            unanswered: _,
            next_psn: _,
            cursor: _,
            sent: _,
            retries_left: _,
            rnr_left: _,
            rnr_generation: _,
            poisoned: _,
            gap: _,
            ssn: _,
            limit: _,
            fault: _,
            landing: _,
        } = self;
        deadline.rebase(by);
        timer.rebase(by);
        patience.rebase(by);
        rnr_until.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;
    use hca_spec::wqe::SendOpcode;

    /// Whatever comes and goes, reads and atomics without their responses are counted.
    #[test]
    fn responses_that_did_not_come_are_counted() {
        let (mut requester, mut random) = (Requester::default(), SplitMix64(7));
        let mut most = 0;
        for _ in 0..20_000 {
            match random.below(8) {
                0..=3 => {
                    let opcodes = [SendOpcode::RdmaRead, SendOpcode::AtomicFa, SendOpcode::Send];
                    let opcode = opcodes[random.below(3) as usize];
                    let wqe = Box::new(Wqe { opcode, ..Wqe::unreadable(0) });
                    let first = requester.next_psn;
                    requester.next_psn = first.add(2);
                    requester.push(Message::new(wqe, first, 2, 0));
                }
                4..=5 => {
                    let place = requester.messages.iter().position(Message::is_unanswered);
                    place.into_iter().for_each(|place| requester.answered(place, 1));
                }
                6 => {
                    requester.acknowledge(requester.next_psn);
                    while let Ok(Some(_)) = requester.next_done() {}
                }
                _ if random.below(50) == 0 => drop(requester.abandon(random.below(9) as usize)),
                _ => {}
            }
            let counted = requester.messages.iter().filter(|m| m.is_unanswered()).count();
            assert_eq!(requester.unanswered, counted);
            most = most.max(counted);
        }
        assert!(most > 20, "{most}");
    }

    /// By halves or one after the other: the message of a PSN is the same, where numbers begin anew, too, and beside messages without
    /// packets.
    #[test]
    fn messages_are_found_by_their_numbers() {
        let mut random = SplitMix64(11);
        for _ in 0..200 {
            let begin = Psn::new(0xff_ffff - random.below(40) as u32);
            let mut requester = Requester { next_psn: begin, ..Requester::default() };
            for _ in 0..random.below(30) {
                let (first, packets) = (requester.next_psn, random.below(4) as u32);
                requester.next_psn = first.add(packets);
                requester.push(Message::new(Box::new(Wqe::unreadable(0)), first, packets, 0));
            }
            for psn in (0..140).map(|n| begin.prev().prev().add(n)) {
                let one_by_one = requester.messages.iter().position(|m| m.contains(psn));
                assert_eq!(requester.place_of(psn), one_by_one, "{psn:?} from {begin:?}");
            }
        }
    }

    /// Requests that send nothing take no PSN: a ring has places for so many of them all the same.
    #[test]
    fn requests_are_as_many_as_a_ring_has_places() {
        let mut requester = Requester::default();
        for index in 0..LEAST_RING {
            assert_eq!(requester.next(4), Next::Message, "{index} wait");
            let wqe = Box::new(Wqe::unreadable(index as u16));
            requester.messages.push_back(Message::new(wqe, Psn::default(), 0, 0));
        }
        assert_eq!(requester.next(4), Next::Held(Hold::Window));
        assert_eq!(requester.next(2 * LEAST_RING), Next::Message);
        requester.messages.pop_front();
        assert_eq!(requester.next(4), Next::Message);
    }
}
