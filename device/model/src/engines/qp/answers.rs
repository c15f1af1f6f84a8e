//! The responder's way back: what waits to be answered, and what the packets of the answers say.
//!
//! Source: IBTA 9.7.5 (responses), 9.7.5.1.1 (acknowledge coalescing).

use hca_spec::ids::{Mkey, Psn};
use hca_spec::wire::{Operation, aeth};

use super::page_fault::RdmaAccess;
use super::responder::Responder;
use super::{QueuePair, credits};
use crate::engines::mkey::Accessor;
use crate::engines::view::View;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::wire::{AethRepr, Repr};

/// An answer that waits for its turn.
#[derive(Debug)]
pub(crate) enum Response {
    Ack {
        psn: Psn,
        syndrome: u32,
        msn: u32,
    },
    Atomic {
        psn: Psn,
        syndrome: u32,
        msn: u32,
        original: u64,
        /// When it is executed.
        ready: Ps,
        /// The request is a duplicate, and has no responder resource of its own.
        again: bool,
    },
    Read(ReadLeft),
}

/// What is left of a read that is being answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLeft {
    pub(crate) who: Accessor,
    /// PSN of the next packet.
    pub(crate) psn: Psn,
    pub(crate) syndrome: u32,
    pub(crate) msn: u32,
    /// Address of its data.
    pub(crate) va: u64,
    pub(crate) rkey: Mkey,
    /// Bytes that are left.
    pub(crate) left: u64,
    /// Packets that were made.
    pub(crate) passed: u32,
    /// The request is a duplicate, and has no responder resource of its own.
    pub(crate) again: bool,
}

impl ReadLeft {
    /// So many packets of `mtu` bytes were made.
    #[inline]
    pub(crate) fn pass(&mut self, packets: u32, mtu: u64) {
        let bytes = u64::from(packets) * mtu;
        self.psn = self.psn.add(packets);
        self.va = self.va.wrapping_add(bytes);
        self.left = self.left.saturating_sub(bytes);
        self.passed = self.passed.saturating_add(packets);
    }
}

impl Response {
    /// PSN of its next packet.
    #[inline]
    pub(crate) fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => *psn,
            Self::Read(read) => read.psn,
        }
    }
}

/// A response packet that is to be sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) repr: Repr,
    /// Of a read: its data.
    pub(crate) read: Option<ReadData>,
    /// It does not leave before.
    pub(crate) executed: Ps,
}

/// Data that a response packet carries.
#[derive(Debug)]
pub(crate) struct ReadData {
    pub(crate) who: Accessor,
    pub(crate) asked: RdmaAccess,
    /// What is left of the read.
    pub(crate) rest: Option<ReadLeft>,
}

impl Responder {
    /// An ACK that has not left yet is replaced by a later one: coalescing (IBTA 9.7.5.1.1). Returns whether one was.
    pub(crate) fn coalesce(&mut self, psn: Psn, syndrome: u32) -> bool {
        let msn = self.msn;
        match self.queue.back_mut() {
            Some(Response::Ack { psn: last, syndrome: was, msn: m })
                if *was & aeth::KIND_MASK == aeth::ACK && psn.since(*last) >= 0 =>
            {
                (*last, *was, *m) = (psn, syndrome, msn);
                true
            }
            _ => false,
        }
    }
}

fn ack(syndrome: u32, msn: u32) -> Option<AethRepr> {
    Some(AethRepr { syndrome: syndrome as u8, msn })
}

/// ACKs and NAKs that may wait beside those that come between responses to reads and atomics.
const SPARE_ANSWERS: usize = 64;

impl QueuePair {
    /// Whether an ACK or a NAK may wait for its turn. Of responses to reads and atomics as many wait as there are resources, twice if all of them come
    /// again, with an ACK or a NAK behind each: those that follow each other are one.
    pub(crate) fn has_room_for_answer(&self) -> bool {
        self.responder.queue.len() < self.params.rra_max.saturating_mul(4).saturating_add(SPARE_ANSWERS)
    }

    /// The AETH of an answer that belongs to the MSN of now.
    pub(crate) fn aeth(&self, syndrome: u32) -> Option<AethRepr> {
        ack(syndrome, self.responder.msn)
    }

    /// The syndrome of a positive answer: the credits that belong to the MSN of now.
    pub(crate) fn positive(&self) -> u32 {
        aeth::ACK | self.credits().map_or(aeth::CREDITS_INVALID, credits::encode)
    }

    /// Takes the next answer from the queue. What is left of a read is part of what is returned: it goes back to the front if
    /// the packet is sent.
    pub(crate) fn next_answer(&mut self, view: &View<'_>, now: Ps) -> Option<Answer> {
        let mut repr = self.connected_repr(view)?;
        let mtu = self.params.mtu as u64;
        let (mut read, mut executed) = (None, now);
        match self.responder.queue.pop_front()? {
            Response::Ack { psn, syndrome, msn } => {
                (repr.operation, repr.psn, repr.aeth) = (Operation::Acknowledge, psn, ack(syndrome, msn));
            }
            Response::Atomic { psn, syndrome, msn, original, ready, .. } => {
                executed = ready;
                (repr.operation, repr.psn) = (Operation::AtomicAcknowledge, psn);
                repr.aeth = ack(syndrome, msn);
                repr.atomic_ack = Some(original);
            }
            Response::Read(read_left) => {
                let ReadLeft { who, psn, syndrome, msn, va, rkey, left, passed, .. } = read_left;
                let (n, first) = (left.min(mtu), passed == 0);
                repr.psn = psn;
                repr.operation = match (first, n == left) {
                    (true, true) => Operation::ReadResponseOnly,
                    (true, false) => Operation::ReadResponseFirst,
                    (false, false) => Operation::ReadResponseMiddle,
                    (false, true) => Operation::ReadResponseLast,
                };
                if repr.operation != Operation::ReadResponseMiddle {
                    repr.aeth = ack(syndrome, msn);
                }
                let asked = RdmaAccess { psn, rkey, va, length: left, committed: 0, packet: n as usize };
                let mut rest = read_left;
                rest.pass(1, n);
                read = Some(ReadData { who, asked, rest: (rest.left > 0).then_some(rest) });
            }
        }
        Some(Answer { repr, read, executed })
    }
}

impl Rebase for Response {
    fn rebase(&mut self, by: Ps) {
        match self {
            Self::Atomic { ready, .. } => ready.rebase(by),
            Self::Ack { .. } | Self::Read(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_answers_behind_a_positive_one_coalesce() {
        let mut r = Responder::default();
        let ack = |psn: u32, syndrome| Response::Ack { psn: Psn::new(psn), syndrome, msn: 0 };
        assert!(!r.coalesce(Psn::new(5), aeth::ACK), "nothing waits");
        r.queue.push_back(ack(5, aeth::ACK));
        r.msn = 7;
        assert!(r.coalesce(Psn::new(9), aeth::ACK | 3));
        let Some(Response::Ack { psn, syndrome, msn }) = r.queue.front() else { panic!("an ACK") };
        assert_eq!((psn.get(), *syndrome, *msn, r.queue.len()), (9, aeth::ACK | 3, 7, 1));
        assert!(!r.coalesce(Psn::new(8), aeth::ACK), "an older one");
        r.queue.push_back(ack(10, aeth::NAK));
        assert!(!r.coalesce(Psn::new(11), aeth::ACK), "a NAK is told");
    }
}
