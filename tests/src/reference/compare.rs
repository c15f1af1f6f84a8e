//! Feeds an adapter and the reference the same random request packets.

use super::peer::{Options, Peer};
use super::responder::{Answer, Reaction, Request, Responder, Setup, Told, add};
use crate::seeded::Random;
use hca_driver::{Access, Dma, RtsAttr, Sge};
use hca_model::Ps;
use hca_model::wire::{AtomicRepr, ExtendedHeaders, Repr, RethRepr};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Mkey, Psn};
use hca_spec::qpc::{QpState, Qpc};
use hca_spec::wire::{Operation, Transport, aeth};
use std::collections::VecDeque;

/// Bytes that the peer may access.
const REGION: usize = 4096;
/// Receive buffers behind it.
const SLOTS: usize = 16;
const SLOT: usize = 2048;
/// Receive requests posted at most.
const POSTED: usize = 8;
/// Everything that a packet causes happens within this.
const REACTION_TIME: Ps = Ps::from_us(40);
/// RNR timer code.
const RNR_TIMER: u8 = 9;

/// Request operations of a reliable connection (without invalidation).
const OPERATIONS: [Operation; 15] = [
    Operation::SendFirst,
    Operation::SendMiddle,
    Operation::SendLast,
    Operation::SendLastImm,
    Operation::SendOnly,
    Operation::SendOnlyImm,
    Operation::WriteFirst,
    Operation::WriteMiddle,
    Operation::WriteLast,
    Operation::WriteLastImm,
    Operation::WriteOnly,
    Operation::WriteOnlyImm,
    Operation::ReadRequest,
    Operation::CompareSwap,
    Operation::FetchAdd,
];

/// What a run reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reached {
    /// Packets fed.
    pub packets: usize,
    /// Answers with data, acknowledgements, and NAKs.
    pub answers: usize,
    /// Receive requests completed with a message.
    pub messages: usize,
    /// The last packet was refused for good.
    pub refused: bool,
}

/// Feeds up to `packets` packets. A packet that breaks a rule ends the run; so does a disagreement.
///
/// # Errors
/// The disagreement, with the seed and the last packets.
pub fn responder(seed: u64, packets: usize) -> Result<Reached, String> {
    let mut run = Run::new(seed)?;
    let mut last = VecDeque::new();
    for i in 0..packets {
        run.post_receives()?;
        let request = run.next_request();
        last.push_back(format!("{i}: {request:?}"));
        if last.len() > 6 {
            last.pop_front();
        }
        if let Err(what) = run.step(&request) {
            let (shown, n) = (Vec::from(last).join("\n  "), i + 1);
            return Err(format!("seed {seed}, {n} packets: {what}\n  the last ones:\n  {shown}"));
        }
        if run.reference.dead {
            run.check_state()?;
            // In error nothing is answered any more.
            for _ in 0..3 {
                let request = run.next_request();
                run.step(&request).map_err(|what| format!("seed {seed}, in error: {what}"))?;
            }
            run.reached.refused = true;
            break;
        }
    }
    Ok(run.reached)
}

struct Run {
    random: Random,
    peer: Peer,
    reference: Responder,
    /// The rest of a valid message.
    plan: VecDeque<Request>,
    /// Packets that were executed.
    history: Vec<Request>,
    posted: u64,
    reached: Reached,
}

impl Run {
    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let code = 1 + random.below(3) as u8;
        // Often just before the numbers start over.
        let psn = if random.one_in(2) { random.bits() as u32 & 0xff_ffff } else { add(0, 0xff_fff0) };
        let resources = 1 << random.below(4);
        let rights = if random.one_in(8) { [(); 3].map(|()| random.one_in(2)) } else { [true; 3] };
        let bits = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
        let granted = bits.into_iter().zip(rights).filter(|(_, has)| *has);
        let access = granted.fold(Access::LOCAL_WRITE, |all, (right, _)| all | right);
        let options = Options {
            memory: REGION + SLOTS * SLOT,
            exposed: REGION,
            mtu: code,
            receive_psn: psn,
            access,
            responder_reads: resources,
            rnr_timer: RNR_TIMER,
            rts: RtsAttr::default(),
        };
        let mut peer = Peer::new(&options).map_err(|e| e.to_string())?;
        let memory = random.bytes(REGION);
        peer.memory.write(0, &memory);
        let setup = Setup {
            mtu: 128 << code,
            psn,
            resources: resources.into(),
            rights,
            rkey: peer.exposed.key.0,
            address: peer.exposed.address,
            memory,
            rnr_timer: RNR_TIMER.into(),
        };
        let reference = Responder::new(setup);
        let (plan, history) = Default::default();
        Ok(Self { random, peer, reference, plan, history, posted: 0, reached: Reached::default() })
    }

    fn post_receives(&mut self) -> Result<(), String> {
        if self.reference.receives.len() >= POSTED || !self.random.one_in(3) {
            return Ok(());
        }
        let room = if self.random.one_in(4) { self.random.below(400) + 1 } else { SLOT };
        let at = REGION + self.posted as usize % SLOTS * SLOT;
        let mr = self.peer.mr;
        let sge = Sge { address: mr.address + at as u64, len: room as u32, key: mr.key };
        self.peer.qp.post_recv(self.posted, &[sge]).map_err(|e| e.to_string())?;
        self.reference.receives.push_back(room);
        self.posted += 1;
        Ok(())
    }

    fn next_request(&mut self) -> Request {
        match self.random.below(24) {
            0..3 if !self.history.is_empty() => self.again(),
            3 => {
                let valid = self.valid();
                let ahead = 1 + self.random.below(4) as u32;
                Request { psn: add(valid.psn, ahead), ..valid }
            }
            4 if self.random.one_in(3) => self.spoilt(),
            _ => self.valid(),
        }
    }

    /// A packet that was executed, as it was, or the later part of a read.
    fn again(&mut self) -> Request {
        let back = self.random.below(self.history.len().min(12));
        let request = self.history[self.history.len() - 1 - back].clone();
        let mtu = self.reference.setup.mtu as u32;
        let (address, rkey, bytes) = request.target;
        let packets = bytes.div_ceil(mtu).max(1);
        if request.operation != Operation::ReadRequest || packets < 2 || self.random.one_in(2) {
            return request;
        }
        let skip = self.random.below(packets as usize) as u32;
        let target = (address + u64::from(skip * mtu), rkey, bytes - skip * mtu);
        Request { psn: add(request.psn, skip), target, ..request }
    }

    /// The next packet of a valid stream.
    fn valid(&mut self) -> Request {
        if self.plan.is_empty() {
            self.plan = self.message();
        }
        let mut request = self.plan[0].clone();
        request.psn = self.reference.expected;
        request
    }

    /// A valid message, in packets.
    fn message(&mut self) -> VecDeque<Request> {
        use Operation as O;
        let mtu = self.reference.setup.mtu;
        let random = &mut self.random;
        let length = match random.below(4) {
            0 => random.below(3),
            1 => (mtu * random.below(4) + random.below(3)).saturating_sub(1),
            _ => random.below(1500),
        };
        let start = random.below(REGION - length);
        let base = self.reference.setup.address;
        let target = (base + start as u64, self.reference.setup.rkey, length as u32);
        let one = Request {
            operation: O::SendOnly,
            psn: 0,
            ack_req: true,
            target,
            operands: (random.bits(), random.bits()),
            imm: random.bits() as u32,
            payload: Vec::new(),
        };
        let kind = random.below(10);
        if kind >= 7 {
            let word = target.0 & !7;
            let target = if kind == 7 { target } else { (word, target.1, 0) };
            let operation = [O::ReadRequest, O::CompareSwap, O::FetchAdd][kind - 7];
            let mut held = [0; 8];
            let at = (word - base) as usize;
            held.copy_from_slice(&self.reference.setup.memory[at..at + 8]);
            // Half of the comparisons succeed.
            let compare = if random.one_in(2) { u64::from_ne_bytes(held) } else { one.operands.1 };
            let operands = (one.operands.0, compare);
            return VecDeque::from([Request { operation, target, operands, ..one }]);
        }
        let (is_write, has_imm) = (kind >= 3, random.one_in(2));
        let data = random.bytes(length);
        let mut pieces: Vec<&[u8]> = data.chunks(mtu).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        let last = pieces.len() - 1;
        let packets = pieces.into_iter().enumerate().map(|(i, payload)| {
            let operation = match (i == 0, i == last, is_write, has_imm) {
                (true, true, false, false) => O::SendOnly,
                (true, true, false, true) => O::SendOnlyImm,
                (true, true, true, false) => O::WriteOnly,
                (true, true, true, true) => O::WriteOnlyImm,
                (true, false, false, _) => O::SendFirst,
                (true, false, true, _) => O::WriteFirst,
                (false, false, false, _) => O::SendMiddle,
                (false, false, true, _) => O::WriteMiddle,
                (false, true, false, false) => O::SendLast,
                (false, true, false, true) => O::SendLastImm,
                (false, true, true, false) => O::WriteLast,
                (false, true, true, true) => O::WriteLastImm,
            };
            let ack_req = i == last || random.one_in(3);
            Request { operation, ack_req, payload: payload.to_vec(), ..one.clone() }
        });
        packets.collect()
    }

    /// A packet with the expected PSN that is not what should come.
    fn spoilt(&mut self) -> Request {
        let mut request = self.valid();
        let (mtu, random) = (self.reference.setup.mtu, &mut self.random);
        match random.below(6) {
            0 => request.operation = random.pick(&OPERATIONS),
            1 => request.payload.push(0),
            2 => drop(request.payload.pop()),
            3 => request.payload = if random.one_in(2) { Vec::new() } else { vec![7; mtu + 4] },
            4 => request.target.1 ^= 1 << random.below(32),
            _ => {
                let near = [REGION as u64 + 1, u64::MAX, 4, 1];
                request.target.0 = request.target.0.wrapping_add(random.pick(&near));
                request.target.2 =
                    request.target.2.wrapping_add(random.pick(&[0, 0, REGION as u32, (1 << 31) + 1]));
            }
        }
        let carries = ExtendedHeaders::by(Transport::Rc, request.operation).is_some_and(|c| c.payload);
        if !carries {
            request.payload.clear();
        }
        request
    }

    fn step(&mut self, request: &Request) -> Result<(), String> {
        let before = self.reference.expected;
        let reaction = self.reference.take(request);
        if self.reference.expected != before {
            self.history.push(request.clone());
            // Also if it was not the planned packet: what else is planned does not fit any more.
            let planned = self.plan.pop_front();
            if planned.is_some_and(|p| p.operation != request.operation) {
                self.plan.clear();
            }
        }
        let (va, rkey, len) = request.target;
        let (swap_add, compare) = request.operands;
        let repr = Repr {
            operation: request.operation,
            psn: Psn::new(request.psn),
            ack_req: request.ack_req,
            reth: Some(RethRepr { va, rkey: Mkey(rkey), len }),
            atomic: Some(AtomicRepr { va, rkey: Mkey(rkey), swap_add, compare, masks: None }),
            imm: Some(request.imm),
            ..Repr::default()
        };
        self.peer.inject(repr, &request.payload);
        let got = self.peer.run(REACTION_TIME);
        self.reached.packets += 1;
        self.reached.answers += got.len();
        self.compare_answers(request, &reaction, &got)?;
        self.compare_told(&reaction)?;
        let mut memory = vec![0; REGION];
        self.peer.memory.read(0, &mut memory);
        match memory.iter().zip(&self.reference.setup.memory).position(|(a, b)| a != b) {
            Some(at) => Err(format!("memory differs from byte {at} on")),
            None => Ok(()),
        }
    }

    fn compare_answers(
        &self,
        request: &Request,
        reaction: &Reaction,
        got: &[(Repr, Vec<u8>)],
    ) -> Result<(), String> {
        let mut due = reaction.answers.iter();
        let mut acknowledged = false;
        for (repr, payload) in got {
            let answer = self.answer(repr, payload)?;
            let is_ack = answer.operation == Operation::Acknowledge
                && answer.aeth == Some((aeth::ACK, self.reference.msn));
            let within =
                |(from, to): (u32, u32)| add(answer.psn, (1 << 24) - from) <= add(to, (1 << 24) - from);
            if is_ack && reaction.acknowledges.is_some_and(within) {
                acknowledged = true;
                continue;
            }
            let expected = due.next();
            if expected != Some(&answer) {
                return Err(format!(
                    "answered {answer:?}, expected {expected:?} (and {:?})",
                    reaction.acknowledges
                ));
            }
        }
        if let Some(missing) = due.next() {
            return Err(format!("no answer, expected {missing:?}"));
        }
        if request.ack_req && reaction.acknowledges.is_some() && !acknowledged {
            return Err(format!("no acknowledgement, expected {:?}", reaction.acknowledges));
        }
        Ok(())
    }

    /// An answer without its credits, which must not promise too much.
    fn answer(&self, repr: &Repr, payload: &[u8]) -> Result<Answer, String> {
        let mut aeth = repr.aeth.map(|a| (u32::from(a.syndrome), a.msn));
        if let Some((syndrome, _)) = &mut aeth
            && *syndrome & aeth::KIND_MASK == aeth::ACK
        {
            let credits = *syndrome & aeth::VALUE_MASK;
            // Credits count from the MSN on: the request that a message under way has taken is one of them.
            let posted =
                self.reference.receives.len() + usize::from(self.reference.under_way() == Some(true));
            if credits != aeth::CREDITS_INVALID && credit_count(credits) > posted {
                return Err(format!("{} credits for {posted} receives", credit_count(credits)));
            }
            *syndrome = aeth::ACK;
        }
        let (psn, original) = (repr.psn.get(), repr.atomic_ack);
        Ok(Answer { operation: repr.operation, psn, aeth, original, payload: payload.to_vec() })
    }

    fn compare_told(&mut self, reaction: &Reaction) -> Result<(), String> {
        let mut due = reaction.told.iter();
        while let Some(completion) = self.peer.recv_cq.poll() {
            let wr_id = self.peer.qp.finish(&completion).ok_or("a completion of nothing")?;
            let told = match completion.syndrome() {
                _ if completion.status.is_ok() => {
                    let bytes = completion.byte_len as usize;
                    let is_send = completion.opcode != Some(hca_spec::cqe::CqeOpcode::RespWrImm);
                    let at = REGION + wr_id as usize % SLOTS * SLOT;
                    let mut data = vec![0; bytes.min(SLOT)];
                    self.peer.memory.read(at, &mut data);
                    self.reached.messages += 1;
                    Told::Message { bytes, imm: completion.imm, sent: is_send.then_some(data) }
                }
                Some(Syndrome::LocalLength) => Told::TooLong,
                Some(Syndrome::RemoteInvalidRequest) => Told::Refused,
                Some(Syndrome::WorkRequestFlushed) => Told::Flushed,
                _ => return Err(format!("{completion:?}")),
            };
            let expected = due.next();
            if expected != Some(&told) {
                return Err(format!("told {told:?}, expected {expected:?}"));
            }
        }
        due.next().map_or(Ok(()), |missing| Err(format!("not told: {missing:?}")))
    }

    fn check_state(&mut self) -> Result<(), String> {
        let qpc = self.peer.hca.query_qp(&self.peer.qp).map_err(|e| e.to_string())?;
        match QpState::from_bits(qpc.get(Qpc::STATE)) {
            Some(QpState::Error) => Ok(()),
            other => Err(format!("the queue pair is in {other:?}, expected Error")),
        }
    }
}

/// Receive requests that a credit code stands for (IBTA vol 1 table 46): 0, 1, 2, 3, 4, 6, 8, 12, ...
const fn credit_count(code: u32) -> usize {
    match code {
        0 => 0,
        1 => 1,
        even if even % 2 == 0 => 1 << (even / 2),
        odd => 3 << (odd / 2 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::credit_count;

    #[test]
    fn credits_of_the_table() {
        let first: Vec<usize> = (0..11).map(credit_count).collect();
        assert_eq!(first, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        assert_eq!(credit_count(30), 32768);
    }
}
