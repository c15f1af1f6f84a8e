//! Answers an adapter's requests at random, and compares what it does with the reference.

use super::peer::{Options, Peer};
use super::requester::{Answer, Kind, Message, Reaction, Requester, Sent, Setup, Why, ahead};
use super::responder::add;
use crate::seeded::Random;
use hca_driver::wqe::SendOp;
use hca_driver::{Access, Dma, RtsAttr, SendRequest, Sge};
use hca_model::Ps;
use hca_model::wire::{AethRepr, Repr};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Mkey, Psn};
use hca_spec::wire::{Operation, aeth};
use std::collections::{HashMap, VecDeque};

/// What is sent comes from the start of memory; what is read goes behind it, to a slot of each request.
const SOURCE: usize = 8192;
const SLOTS: u64 = 16;
const SLOT: usize = 4096;
/// Requests under way at most.
const POSTED: usize = 8;
/// Everything that an answer causes happens within this.
const REACTION_TIME: Ps = Ps::from_us(60);
/// RNR timer codes: 320 to 640 us (IBTA table 45), so that more happens before they are over, but not too much.
const RNR_CODES: [u8; 3] = [10, 11, 12];
const HELD_STEPS: u32 = 4;
/// Longer than they.
const PAUSE: Ps = Ps::from_us(800);
/// ACK timeout code: 67 ms, and a little longer. All other steps of a run take less.
const TIMEOUT: u8 = 14;
const SILENCE: Ps = Ps::from_us(67_500);
/// Where the peer's memory would be.
const REMOTE: (u64, Mkey) = (0x7000_0000_1000, Mkey(0x1234_5678));

/// What a run reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reached {
    /// Packets that the adapter sent, and how many of them again.
    pub packets: usize,
    /// Of them, sent again.
    pub again: usize,
    /// Requests completed well.
    pub completed: usize,
    /// The run ended with an error.
    pub failed: Option<Why>,
}

/// Posts and answers up to `steps` times; an error ends the run, and so does a disagreement.
///
/// # Errors
/// The disagreement, with the seed and the last steps.
pub fn requester(seed: u64, steps: usize) -> Result<Reached, String> {
    let mut run = Run::new(seed)?;
    let mut last = VecDeque::new();
    let mut over = 0;
    for i in 0..steps {
        run.held = if run.requester.is_held() { run.held + 1 } else { 0 };
        let idle = run.requester.oldest() == run.requester.next() && !run.requester.is_held();
        let room = run.posted < run.completed + POSTED as u64 && run.held < HELD_STEPS;
        let step = if idle || (room && run.random.one_in(3)) {
            let (kind, bytes) = run.request();
            last.push_back(format!("{i}: post {kind:?} of {bytes}"));
            run.post(kind, bytes)
        } else {
            let answer = run.answer();
            last.push_back(format!("{i}: {answer:?}").chars().take(120).collect());
            run.take(&answer)
        };
        if last.len() > 8 {
            last.pop_front();
        }
        step.map_err(|what| {
            format!("seed {seed}: {what}\n  the last steps:\n  {}", Vec::from(last.clone()).join("\n  "))
        })?;
        // In error requests are flushed, and answers are nothing.
        over += usize::from(run.requester.dead);
        if over > 3 {
            break;
        }
    }
    Ok(run.reached)
}

struct Run {
    random: Random,
    peer: Peer,
    requester: Requester,
    source: Vec<u8>,
    posted: u64,
    completed: u64,
    /// What was posted.
    messages: HashMap<u64, Message>,
    /// The highest PSN sent so far is before this one.
    fresh: u32,
    /// What was read, by request.
    read: HashMap<u64, Vec<u8>>,
    reached: Reached,
    /// Steps since the peer said that it is not ready.
    held: u32,
}

impl Run {
    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let code = 1 + random.below(3) as u8;
        let psn = if random.one_in(2) { random.bits() as u32 & 0xff_ffff } else { 0xff_fff0 };
        let (retries, rnr_retries) = (random.below(8) as u8, random.below(8) as u8);
        let depth = 1u8 << random.below(4);
        let rts = RtsAttr {
            send_psn: Psn::new(psn),
            timeout: TIMEOUT,
            retries,
            rnr_retries,
            initiator_reads: depth,
        };
        let memory = SOURCE + SLOTS as usize * SLOT;
        let (receive_psn, responder_reads, rnr_timer) = (0, 1, 1);
        let access = Access::ALL;
        let options =
            Options { memory, exposed: 64, mtu: code, receive_psn, access, responder_reads, rnr_timer, rts };
        let mut peer = Peer::new(&options).map_err(|e| e.to_string())?;
        let source = random.bytes(SOURCE);
        peer.memory.write(0, &source);
        let setup = Setup {
            mtu: 128 << code,
            psn,
            retries: retries.into(),
            rnr_retries: rnr_retries.into(),
            depth: depth.into(),
        };
        Ok(Self {
            random,
            peer,
            requester: Requester::new(setup),
            source,
            posted: 0,
            completed: 0,
            messages: HashMap::new(),
            fresh: psn,
            read: HashMap::new(),
            reached: Reached::default(),
            held: 0,
        })
    }

    fn request(&mut self) -> (Kind, usize) {
        let kind =
            self.random.pick(&[Kind::Send, Kind::Send, Kind::Write, Kind::Read, Kind::Read, Kind::Atomic]);
        let mtu = self.requester.setup.mtu;
        let bytes = match self.random.below(3) {
            _ if kind == Kind::Atomic => 8,
            0 => 1 + self.random.below(20),
            1 => (mtu * (1 + self.random.below(3)) + self.random.below(3) - 1).max(1),
            _ => 1 + self.random.below(SLOT - 1),
        };
        (kind, bytes.min(SLOT))
    }

    fn post(&mut self, kind: Kind, bytes: usize) -> Result<(), String> {
        let id = self.posted;
        self.posted += 1;
        let (address, rkey) = (REMOTE.0, REMOTE.1);
        let op = match kind {
            Kind::Send => SendOp::Send { imm: None },
            Kind::Write => SendOp::Write { address, rkey, imm: None },
            Kind::Read => SendOp::Read { address, rkey },
            Kind::Atomic => SendOp::FetchAdd { address, rkey, add: id },
        };
        let at = if matches!(kind, Kind::Read | Kind::Atomic) { slot(id) } else { 0 };
        let mr = self.peer.mr;
        let sge = [Sge { address: mr.address + at as u64, len: bytes as u32, key: mr.key }];
        let request = SendRequest::new(id, op, &sge);
        self.peer.qp.post_send(self.peer.hca.bus_mut(), &request).map_err(|e| e.to_string())?;
        self.messages.insert(id, Message { id, kind, bytes, first: 0, answered: 0 });
        let reaction = self.requester.post(id, kind, bytes);
        let got = self.peer.run(REACTION_TIME);
        self.compare(&reaction, &got)
    }

    /// An answer that may be right, wrong, early, late or again.
    fn answer(&mut self) -> Answer {
        let (oldest, next) = (self.requester.oldest(), self.requester.next());
        if self.requester.is_held() && (self.held >= HELD_STEPS || self.random.one_in(2)) {
            return Answer::Pause;
        }
        let psn = self.request_psn();
        match self.random.below(40) {
            // Ghosts and duplicates.
            0 => Answer::Ack(add(next, self.random.below(5) as u32)),
            1 => Answer::SequenceError(add(next, self.random.below(5) as u32)),
            2 => Answer::NotReady(add(next, self.random.below(5) as u32), 1),
            3 => Answer::Nak(add(oldest, (1 << 24) - 1 - self.random.below(5) as u32), Why::RemoteAccess),
            4 => Answer::Ack(add(oldest, (1 << 24) - 1 - self.random.below(5) as u32)),
            5 => Answer::Data(add(oldest, (1 << 24) - 1), Operation::ReadResponseOnly, vec![1]),
            6 | 7 => Answer::SequenceError(psn),
            8 | 9 => Answer::NotReady(psn, self.random.pick(&RNR_CODES)),
            10 if self.requester.is_held() => Answer::Pause,
            10 => Answer::Silence,
            11 if self.random.one_in(3) => {
                let why = [Why::InvalidRequest, Why::RemoteAccess, Why::RemoteOperation];
                // Half of them behind responses that are missing, if any are.
                let psn = match self.random.one_in(2) {
                    true => self.without_gap().unwrap_or(psn),
                    false => psn,
                };
                Answer::Nak(psn, self.random.pick(&why))
            }
            // A response that is not what is missing, and one that is spoilt.
            12..15 => self.data(false).unwrap_or(Answer::Ack(psn)),
            15 if self.random.one_in(3) => match self.data(true) {
                Some(Answer::Data(psn, operation, mut payload)) => {
                    match self.random.below(3) {
                        0 => payload.push(0),
                        1 => drop(payload.pop()),
                        _ => return Answer::Atomic(psn, 1),
                    }
                    Answer::Data(psn, operation, payload)
                }
                Some(Answer::Atomic(psn, _)) => Answer::Data(psn, Operation::ReadResponseOnly, vec![0; 8]),
                _ => Answer::Pause,
            },
            16 if self.random.one_in(3) => match self.data(true) {
                Some(Answer::Data(psn, operation, payload)) => Answer::Data(psn, wrong(operation), payload),
                _ => Answer::Pause,
            },
            17..19 => Answer::Ack(psn),
            _ => self.right(),
        }
    }

    /// What a good peer would answer to the oldest request.
    fn right(&mut self) -> Answer {
        match self.requester.started.front() {
            Some(m) if m.responds() => self.data(true).unwrap_or(Answer::Pause),
            _ => Answer::Ack(self.without_gap().unwrap_or(self.requester.oldest())),
        }
    }

    /// A PSN at which a responder may be: any of a send or write, the first of the others.
    fn request_psn(&mut self) -> u32 {
        let mtu = self.requester.setup.mtu;
        let mut all = Vec::new();
        for m in &self.requester.started {
            match m.responds() {
                true if m.answered == 0 => all.push((m.first, true)),
                true => {}
                false => all.extend((m.answered..m.packets(mtu)).map(|k| (add(m.first, k), false))),
            }
        }
        if all.is_empty() { self.requester.next() } else { self.random.pick(&all).0 }
    }

    /// Such a PSN before which no response is missing.
    fn without_gap(&mut self) -> Option<u32> {
        let mtu = self.requester.setup.mtu;
        let mut all = Vec::new();
        for m in self.requester.started.iter().take_while(|m| !m.responds()) {
            all.extend((m.answered..m.packets(mtu)).map(|k| add(m.first, k)));
        }
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    /// A response: the next one of the first request that has any (`expected`), or any one.
    fn data(&mut self, expected: bool) -> Option<Answer> {
        let mtu = self.requester.setup.mtu;
        let reads: Vec<_> = self.requester.started.iter().filter(|m| m.responds()).cloned().collect();
        if reads.is_empty() {
            return None;
        }
        let m = if expected { reads[0].clone() } else { reads[self.random.below(reads.len())].clone() };
        if m.kind == Kind::Atomic {
            return Some(Answer::Atomic(m.first, self.random.bits()));
        }
        let packets = m.packets(mtu);
        let k = if expected { m.answered } else { self.random.below(packets as usize) as u32 };
        let operation = match (k == 0, k + 1 == packets) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, true) => Operation::ReadResponseLast,
            (false, false) => Operation::ReadResponseMiddle,
        };
        let len = mtu.min(m.bytes - k as usize * mtu);
        Some(Answer::Data(add(m.first, k), operation, self.random.bytes(len)))
    }

    fn take(&mut self, answer: &Answer) -> Result<(), String> {
        self.note(answer);
        let reaction = self.requester.take(answer);
        let ack = |psn: u32, syndrome: u32| {
            let aeth = Some(AethRepr { syndrome: syndrome as u8, msn: 0 });
            Repr { operation: Operation::Acknowledge, psn: Psn::new(psn), aeth, ..Repr::default() }
        };
        const ACK: u32 = aeth::ACK | aeth::CREDITS_INVALID;
        let mut time = REACTION_TIME;
        let (repr, payload) = match answer {
            Answer::Silence | Answer::Pause => {
                time = if *answer == Answer::Silence { SILENCE } else { PAUSE };
                (None, Vec::new())
            }
            Answer::Ack(psn) => (Some(ack(*psn, ACK)), Vec::new()),
            Answer::SequenceError(psn) => (Some(ack(*psn, aeth::NAK | aeth::PSN_SEQUENCE_ERROR)), Vec::new()),
            Answer::NotReady(psn, code) => (Some(ack(*psn, aeth::RNR_NAK | u32::from(*code))), Vec::new()),
            Answer::Nak(psn, why) => {
                let code = match why {
                    Why::InvalidRequest => aeth::INVALID_REQUEST,
                    Why::RemoteAccess => aeth::REMOTE_ACCESS_ERROR,
                    _ => aeth::REMOTE_OPERATIONAL_ERROR,
                };
                (Some(ack(*psn, aeth::NAK | code)), Vec::new())
            }
            Answer::Data(psn, operation, payload) => {
                (Some(Repr { operation: *operation, ..ack(*psn, ACK) }), payload.clone())
            }
            Answer::Atomic(psn, original) => {
                let operation = Operation::AtomicAcknowledge;
                (Some(Repr { operation, atomic_ack: Some(*original), ..ack(*psn, ACK) }), Vec::new())
            }
        };
        if let Some(repr) = repr {
            self.peer.inject(repr, &payload);
        }
        let got = self.peer.run(time);
        self.compare(&reaction, &got)
    }

    /// Keeps what a response that counts brings.
    fn note(&mut self, answer: &Answer) {
        let (psn, data) = match answer {
            Answer::Data(psn, _, payload) => (*psn, payload.clone()),
            Answer::Atomic(psn, original) => (*psn, original.to_le_bytes().to_vec()),
            _ => return,
        };
        let mtu = self.requester.setup.mtu as u32;
        // In order, up to the first read: only its next response counts.
        let first = self.requester.started.iter().find(|m| m.responds());
        if let Some(m) = first.filter(|m| add(m.first, m.answered) == psn) {
            let held = self.read.entry(m.id).or_default();
            held.truncate((m.answered * mtu) as usize);
            held.extend(data);
        }
    }

    fn compare(&mut self, reaction: &Reaction, got: &[(Repr, Vec<u8>)]) -> Result<(), String> {
        let mtu = self.requester.setup.mtu;
        let sent: Vec<_> = got.iter().map(|(repr, _)| (repr.operation, repr.psn.get())).collect();
        let due: Vec<_> = reaction.sent.iter().map(|s| (s.operation, s.psn)).collect();
        if sent != due {
            return Err(format!("sent {sent:?}, expected {due:?}"));
        }
        for ((repr, payload), Sent { id, offset, psn, .. }) in got.iter().zip(&reaction.sent) {
            let message = &self.messages[id];
            let rest = message.bytes - offset;
            if !message.responds() && payload[..] != self.source[*offset..][..rest.min(mtu)] {
                return Err(format!("packet {psn:#x} carries other bytes"));
            }
            let asked = repr.reth.map(|r| (r.va, r.rkey, r.len as usize));
            let right = match message.kind {
                Kind::Read => Some((REMOTE.0 + *offset as u64, REMOTE.1, rest)),
                Kind::Write if *offset == 0 => Some((REMOTE.0, REMOTE.1, rest)),
                _ => None,
            };
            if asked != right || repr.atomic.is_some_and(|a| (a.va, a.swap_add) != (REMOTE.0, *id)) {
                return Err(format!("packet {psn:#x} asks for {asked:x?}, expected {right:x?}"));
            }
            self.reached.packets += 1;
            if ahead(self.fresh, *psn) < 0 {
                self.reached.again += 1;
            } else {
                self.fresh = add(*psn, 1);
            }
        }
        let mut completed = Vec::new();
        while let Some(completion) = self.peer.send_cq.poll() {
            let id = self.peer.qp.finish(&completion).ok_or("a completion of nothing")?;
            let status = match completion.syndrome() {
                _ if completion.status.is_ok() => Ok(()),
                Some(Syndrome::RemoteInvalidRequest) => Err(Why::InvalidRequest),
                Some(Syndrome::RemoteAccess) => Err(Why::RemoteAccess),
                Some(Syndrome::RemoteOperation) => Err(Why::RemoteOperation),
                Some(Syndrome::BadResponse) => Err(Why::BadResponse),
                Some(Syndrome::TransportRetryExceeded) => Err(Why::RetriesExceeded),
                Some(Syndrome::RnrRetryExceeded) => Err(Why::RnrRetriesExceeded),
                Some(Syndrome::WorkRequestFlushed) => Err(Why::Flushed),
                _ => return Err(format!("{completion:?}")),
            };
            completed.push((id, status));
        }
        if completed != reaction.completed {
            return Err(format!("completed {completed:?}, expected {:?}", reaction.completed));
        }
        for (id, status) in completed {
            self.completed += 1;
            match status {
                Ok(()) => self.reached.completed += 1,
                Err(why) => self.reached.failed = self.reached.failed.or(Some(why)),
            }
            let (Some(data), Ok(())) = (self.read.remove(&id), status) else { continue };
            let mut held = vec![0; data.len()];
            self.peer.memory.read(slot(id), &mut held);
            if held != data {
                return Err(format!("request {id} brought other bytes than the responses had"));
            }
        }
        Ok(())
    }
}

fn slot(id: u64) -> usize {
    SOURCE + (id % SLOTS) as usize * SLOT
}

/// The same response at another place of its message.
fn wrong(operation: Operation) -> Operation {
    match operation {
        Operation::ReadResponseOnly => Operation::ReadResponseFirst,
        Operation::ReadResponseFirst => Operation::ReadResponseOnly,
        Operation::ReadResponseMiddle => Operation::ReadResponseLast,
        _ => Operation::ReadResponseMiddle,
    }
}
