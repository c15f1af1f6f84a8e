//! What a requester of a reliable connection has to send, and which of its requests complete how.
//!
//! Source: IBTA vol 1 9.7.2 to 9.7.3 (order and numbers), 9.7.5.1.2 (which answers count), 9.7.5.2 (NAKs), 9.7.6
//! (retries), 9.9.2 (errors).

use super::responder::add;
use hca_spec::wire::Operation;
use std::collections::VecDeque;

/// PSNs have 24 bits.
const MODULUS: u32 = 1 << 24;
/// RNR retries without end.
const FOR_EVER: u32 = 7;

/// How far `to` is ahead of `from`; negative: behind.
pub fn ahead(from: u32, to: u32) -> i32 {
    let d = add(to, MODULUS - from) as i32;
    if d < 1 << 23 { d } else { d - MODULUS as i32 }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as IBTA calls them")]
pub enum Kind {
    Send,
    Write,
    Read,
    Atomic,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The caller's number.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// Bytes; of an atomic 8.
    pub bytes: usize,
    /// PSN of its first packet, once it is started.
    pub first: u32,
    /// Packets acknowledged, or responses taken.
    pub answered: u32,
}

/// Why a request fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as IBTA calls them")]
pub enum Why {
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
    BadResponse,
    RetriesExceeded,
    RnrRetriesExceeded,
    Flushed,
}

/// An answer of the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as IBTA calls them")]
pub enum Answer {
    Ack(u32),
    SequenceError(u32),
    /// Another NAK, which means this.
    Nak(u32, Why),
    /// With a timer code.
    NotReady(u32, u8),
    /// PSN, operation, payload.
    Data(u32, Operation, Vec<u8>),
    Atomic(u32, u64),
    /// None for longer than the ACK timeout.
    Silence,
    /// None for longer than any RNR timer, and shorter than the ACK timeout.
    Pause,
}

/// A packet that is sent: what it does, its number, of which message, and from which of its bytes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Of the BTH.
    pub operation: Operation,
    /// Of the BTH.
    pub psn: u32,
    /// The message's number.
    pub id: u64,
    /// First byte of the message that it carries or asks for.
    pub offset: usize,
}

/// What follows from a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reaction {
    /// Packets, in order.
    pub sent: Vec<Sent>,
    /// Completions, in order.
    pub completed: Vec<(u64, Result<(), Why>)>,
}

/// How the requester is set up.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the verbs call them")]
pub struct Setup {
    pub mtu: usize,
    pub psn: u32,
    pub retries: u32,
    pub rnr_retries: u32,
    /// Reads and atomics under way at most.
    pub depth: usize,
}

/// The reference.
pub struct Requester {
    /// How it was set up.
    pub setup: Setup,
    /// Started, oldest first.
    pub started: VecDeque<Message>,
    /// In error: nothing is sent or heard.
    pub dead: bool,
    waiting: VecDeque<Message>,
    next: u32,
    retries: u32,
    rnr: u32,
    /// While the peer is not ready: from where on to send again.
    held: Option<u32>,
    /// The missing response that was asked for again: responses behind it say nothing new.
    gap: Option<u32>,
    reaction: Reaction,
}

impl Message {
    /// Packets or responses.
    pub fn packets(&self, mtu: usize) -> u32 {
        if self.kind == Kind::Atomic { 1 } else { self.bytes.div_ceil(mtu).max(1) as u32 }
    }

    /// Whether it is answered with data.
    pub fn responds(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Atomic)
    }
}

impl Requester {
    /// A requester in RTS.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            started: VecDeque::new(),
            dead: false,
            waiting: VecDeque::new(),
            next: setup.psn,
            retries: setup.retries,
            rnr: setup.rnr_retries,
            held: None,
            gap: None,
            reaction: Reaction::default(),
        }
    }

    /// The oldest PSN that is not answered.
    pub fn oldest(&self) -> u32 {
        self.started.front().map_or(self.next, |m| add(m.first, m.answered))
    }

    /// The PSN after the last one in use.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Whether the peer said that it is not ready.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// A request is posted.
    pub fn post(&mut self, id: u64, kind: Kind, bytes: usize) -> Reaction {
        if self.dead {
            return Reaction { sent: Vec::new(), completed: vec![(id, Err(Why::Flushed))] };
        }
        self.waiting.push_back(Message { id, kind, bytes, first: 0, answered: 0 });
        self.start();
        std::mem::take(&mut self.reaction)
    }

    /// An answer arrives.
    pub fn take(&mut self, answer: &Answer) -> Reaction {
        if !self.dead {
            self.answer(answer);
            self.start();
        }
        std::mem::take(&mut self.reaction)
    }

    /// 9.7.5.1.2: what is not outstanding is a ghost or a duplicate.
    fn outstanding(&self, psn: u32) -> bool {
        ahead(self.oldest(), psn) >= 0 && ahead(self.next, psn) < 0
    }

    fn answer(&mut self, answer: &Answer) {
        match *answer {
            Answer::Silence if self.held.is_none() && self.oldest() != self.next => {
                self.gap = None;
                self.retry(self.oldest());
            }
            Answer::Silence => {}
            Answer::Pause => {
                if let Some(from) = self.held.take() {
                    self.send_from(from);
                }
            }
            Answer::Ack(psn) if self.outstanding(psn) => {
                if let Some(missing) = self.acknowledge(add(psn, 1)) {
                    self.implied(missing);
                }
            }
            // It waits to send that packet again, which is told already.
            Answer::SequenceError(psn) | Answer::NotReady(psn, _)
                if self.outstanding(psn) && self.waits_to_send(psn) => {}
            Answer::SequenceError(psn) if self.outstanding(psn) => {
                let missing = self.acknowledge(psn);
                self.retry(missing.unwrap_or(psn));
            }
            Answer::NotReady(psn, _) if self.outstanding(psn) => {
                if let Some(missing) = self.acknowledge(psn) {
                    // 9.7.5.1.3: the answer to a later request says that the response is lost.
                    return self.implied(missing);
                }
                if self.setup.rnr_retries != FOR_EVER {
                    if self.rnr == 0 {
                        return self.fail(Why::RnrRetriesExceeded);
                    }
                    self.rnr -= 1;
                }
                self.held = Some(psn);
            }
            Answer::Nak(psn, why) if self.outstanding(psn) => match self.acknowledge(psn) {
                None => self.fail(why),
                Some(missing) => self.implied(missing),
            },
            Answer::Data(psn, operation, ref payload) if self.outstanding(psn) => {
                self.data(psn, Some(operation), payload.len());
            }
            Answer::Atomic(psn, _) if self.outstanding(psn) => self.data(psn, None, 0),
            _ => {}
        }
    }

    /// Whether packet `psn` is the next one when the peer may be ready.
    fn waits_to_send(&self, psn: u32) -> bool {
        let from = |held| if ahead(held, self.oldest()) > 0 { self.oldest() } else { held };
        self.held.is_some_and(|held| from(held) == psn)
    }

    /// Everything before `psn` is acknowledged. Returns the first response missing there.
    fn acknowledge(&mut self, psn: u32) -> Option<u32> {
        let before = self.oldest();
        let mut missing = None;
        while let Some(m) = self.started.front_mut() {
            let covered = ahead(m.first, psn);
            if covered <= 0 {
                break;
            }
            let packets = m.packets(self.setup.mtu);
            if m.responds() {
                // A response before the end is missing.
                missing = Some(add(m.first, m.answered));
                break;
            }
            m.answered = m.answered.max(packets.min(covered as u32));
            if m.answered < packets {
                break;
            }
            self.complete();
        }
        if self.oldest() != before {
            self.progress();
        }
        missing
    }

    fn complete(&mut self) {
        if let Some(m) = self.started.pop_front() {
            self.reaction.completed.push((m.id, Ok(())));
        }
    }

    /// 9.7.6.1: whatever is acknowledged refills the retries.
    fn progress(&mut self) {
        (self.retries, self.rnr, self.gap) = (self.setup.retries, self.setup.rnr_retries, None);
    }

    /// An implied NAK counts once for each response that is missing.
    fn implied(&mut self, missing: u32) {
        if self.gap.replace(missing) != Some(missing) {
            self.retry(missing);
        }
    }

    fn retry(&mut self, from: u32) {
        if self.retries == 0 {
            return self.fail(Why::RetriesExceeded);
        }
        self.retries -= 1;
        match &mut self.held {
            Some(held) => *held = from,
            None => self.send_from(from),
        }
    }

    fn fail(&mut self, why: Why) {
        self.dead = true;
        let mut why = why;
        for m in self.started.drain(..).chain(self.waiting.drain(..)) {
            self.reaction.completed.push((m.id, Err(why)));
            why = Why::Flushed;
        }
    }

    /// A response: everything before its request is acknowledged; responses come in order.
    fn data(&mut self, psn: u32, operation: Option<Operation>, len: usize) {
        use Operation::{ReadResponseLast, ReadResponseOnly};
        let mtu = self.setup.mtu;
        let owner = |m: &&Message| ahead(m.first, psn) >= 0 && ahead(m.first, psn) < m.packets(mtu) as i32;
        let Some(first) = self.started.iter().find(owner).map(|m| m.first) else { return };
        if let Some(missing) = self.acknowledge(first) {
            return self.implied(missing);
        }
        let Some(m) = self.started.front_mut().filter(|m| m.responds()) else { return };
        let expected = add(m.first, m.answered);
        match ahead(expected, psn) {
            0 => {}
            1.. => return self.implied(expected),
            _ => return,
        }
        let packets = m.packets(mtu);
        let last = m.answered + 1 == packets;
        let due = if last { m.bytes - m.answered as usize * mtu } else { mtu };
        let fits = match operation {
            // The end of the response is where it was asked for (9.7.5.1.2, 9.9.2.4.2).
            Some(op) => {
                m.kind == Kind::Read
                    && len == due
                    && matches!(op, ReadResponseLast | ReadResponseOnly) == last
            }
            None => m.kind == Kind::Atomic,
        };
        if !fits {
            return self.fail(Why::BadResponse);
        }
        m.answered += 1;
        if last {
            self.complete();
        }
        self.progress();
    }

    /// Starts what may start: in order, and reads and atomics up to the depth.
    fn start(&mut self) {
        if self.dead || self.held.is_some() {
            return;
        }
        while let Some(m) = self.waiting.front() {
            let reads = self.started.iter().filter(|m| m.responds()).count();
            if m.responds() && reads >= self.setup.depth {
                return;
            }
            let Some(mut m) = self.waiting.pop_front() else { return };
            m.first = self.next;
            self.next = add(self.next, m.packets(self.setup.mtu));
            let from = m.first;
            self.started.push_back(m);
            self.send_from(from);
        }
    }

    /// Sends every packet of what is started, from that one on; never what is answered.
    fn send_from(&mut self, from: u32) {
        use Operation as O;
        let from = if ahead(from, self.oldest()) > 0 { self.oldest() } else { from };
        let mtu = self.setup.mtu;
        for m in &self.started {
            let packets = m.packets(mtu);
            let skip = ahead(m.first, from).max(0) as u32;
            let mut k = skip;
            while k < packets {
                let (first, last) = (k == 0, k + 1 == packets);
                let operation = match m.kind {
                    Kind::Read => O::ReadRequest,
                    Kind::Atomic => O::FetchAdd,
                    Kind::Send => [[O::SendMiddle, O::SendLast], [O::SendFirst, O::SendOnly]]
                        [usize::from(first)][usize::from(last)],
                    Kind::Write => [[O::WriteMiddle, O::WriteLast], [O::WriteFirst, O::WriteOnly]]
                        [usize::from(first)][usize::from(last)],
                };
                let offset = k as usize * mtu;
                self.reaction.sent.push(Sent { operation, psn: add(m.first, k), id: m.id, offset });
                // One request asks for all responses.
                k = if m.responds() { packets } else { k + 1 };
            }
        }
    }
}
