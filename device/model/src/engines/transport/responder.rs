//! The responder: takes the peer's requests in order, has them executed and refuses what is wrong.
//!
//! Source: IBTA 9.7.1 (PSN ranges), 9.7.4 (request validation), 9.7.5 (responses), 9.9.3 (responder
//! error behaviour), tables 56 to 58.

use std::collections::VecDeque;

use hca_firmware::QCounter;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Mkey, Psn, Srqn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::{Operation, aeth};

use super::QueuePair;
use super::answers::Response;
use super::page_fault::ResponderFault;
use super::recv::{NoReceive, Receive};
use crate::adapter::core::Core;
use crate::engines::mkey::Fault;
use crate::ground::event::Event;
use crate::ground::time::Ps;
use crate::wire::Repr;

/// Message sequence numbers have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// The message whose packets are coming in.
#[derive(Debug)]
pub(super) enum Current {
    Send { receive: Receive, offset: u64 },
    Write { va: u64, rkey: Mkey, left: u64, total: u64, srqn: Option<Srqn> },
}

impl Current {
    /// The XRC SRQ that its first packet named.
    pub(super) fn srqn(&self) -> Option<Srqn> {
        match self {
            Self::Send { receive, .. } => receive.xrc.map(|s| s.srqn),
            Self::Write { srqn, .. } => *srqn,
        }
    }
}

/// What is kept of a request that must not be executed twice, or only as it was (IBTA 9.7.5.1.5).
#[derive(Debug, Clone, Copy)]
pub(super) enum Resource {
    /// A read of these packets.
    Read {
        first: Psn,
        next: Psn,
    },
    Atomic {
        psn: Psn,
        original: u64,
    },
}

/// The moving parts of the responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// PSN expected next.
    pub(crate) epsn: Psn,
    /// Requests completed, 24 bits.
    pub(crate) msn: u32,
    pub(super) current: Option<Current>,
    /// The receive WQE of a message that was dropped: it serves the next one.
    pub(super) spare: Option<Receive>,
    /// A sequence error NAK was sent; no second one until the expected packet comes.
    nak_sent: bool,
    pub(super) queue: VecDeque<Response>,
    pub(super) turn: bool,
    /// Reads and atomics that may come again, oldest first; as many as the queue pair has resources.
    resources: VecDeque<Resource>,
    established: bool,
    /// The page fault that the driver has to deal with first.
    pub(super) fault: Option<ResponderFault>,
}

impl Responder {
    /// One whose first request has that PSN.
    pub(super) fn expecting(epsn: Psn) -> Self {
        Self { epsn, ..Self::default() }
    }

    /// Forgets the message in progress; returns the receive WQE it had taken.
    pub(crate) fn abandon(&mut self) -> Option<Receive> {
        self.fault = None;
        match self.current.take() {
            Some(Current::Send { receive, .. }) => Some(receive),
            _ => self.spare.take(),
        }
    }

    pub(super) fn next_msn(&mut self) -> u32 {
        self.msn = (self.msn + 1) & MSN_MASK;
        self.msn
    }

    /// Whether the message in progress has taken a receive WQE.
    pub(super) fn holds_receive(&self) -> bool {
        matches!(self.current, Some(Current::Send { .. }))
    }

    /// Reads that are not answered yet: duplicates, or the others.
    pub(super) fn reads_waiting(&self, duplicates: bool) -> usize {
        self.queue
            .iter()
            .filter(|r| matches!(r, Response::Read { again, .. } if *again == duplicates))
            .count()
    }
}

impl From<NoReceive> for Refusal {
    fn from(why: NoReceive) -> Self {
        match why {
            NoReceive::NotReady => Self::NotReady,
            NoReceive::Broken => Self::Broken,
        }
    }
}

/// Why a request is not executed.
pub(super) enum Refusal {
    /// No receive buffer: try later.
    NotReady,
    /// IBTA "invalid request".
    Invalid(&'static str),
    /// Key, rights or range.
    Access(Fault),
    /// A fault of the responder's own buffers.
    Local(Syndrome, Fault),
    /// The message does not fit the receive buffers.
    Length,
    /// The receive queue can't be read.
    Broken,
}

impl QueuePair {
    /// A request packet of the peer.
    pub(crate) fn receive_request(&mut self, core: &mut Core, now: Ps, repr: &Repr, payload: &[u8]) {
        if self.state == QpState::Rtr && !std::mem::replace(&mut self.responder.established, true) {
            core.push_qp_event(now, EventType::CommEstablished, self.qpn);
        }
        let distance = repr.psn.since(self.responder.epsn);
        if self.service == ServiceType::Uc {
            return self.receive_unreliable(core, now, repr, payload, distance);
        }
        if !self.passes_page_fault(core, now, repr) {
            return;
        }
        if distance > 0 {
            core.fw.icm.count(self.qpn, QCounter::OutOfSequence);
            if !std::mem::replace(&mut self.responder.nak_sent, true) {
                let (psn, syndrome) = (self.responder.epsn, aeth::NAK | aeth::PSN_SEQUENCE_ERROR);
                self.answer(core, now, psn, syndrome);
            }
            return;
        }
        if distance < 0 {
            core.fw.icm.count(self.qpn, QCounter::DuplicateRequest);
            core.note(now, Event::Duplicate { qpn: self.qpn, psn: repr.psn, operation: repr.operation });
            return self.receive_duplicate(core, now, repr);
        }
        self.responder.nak_sent = false;
        match self.execute(core, now, repr, payload) {
            Ok(()) => {
                core.note(now, self.executed(repr, payload));
                self.count_request(core, repr.operation);
                if repr.ack_req
                    && !matches!(
                        repr.operation,
                        Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
                    )
                {
                    self.answer(core, now, repr.psn, aeth::ACK);
                }
            }
            Err(refusal) => {
                if let Some(refusal) = self.wait_to_execute(core, now, repr, payload.len(), refusal) {
                    self.refuse(core, now, repr, refusal);
                }
            }
        }
    }

    /// What a trace says of a request that was executed.
    pub(super) fn executed(&self, repr: &Repr, payload: &[u8]) -> Event {
        let (qpn, slid, psn, operation) = (self.qpn, repr.slid, repr.psn, repr.operation);
        Event::Executed { qpn, slid, psn, operation, bytes: payload.len() as u32 }
    }

    /// Counts a request by its kind, once a message.
    fn count_request(&self, core: &mut Core, operation: Operation) {
        let counter = match operation {
            Operation::WriteFirst | Operation::WriteOnly | Operation::WriteOnlyImm => {
                QCounter::RxWriteRequests
            }
            Operation::ReadRequest => QCounter::RxReadRequests,
            Operation::CompareSwap | Operation::FetchAdd => QCounter::RxAtomicRequests,
            _ => return,
        };
        core.fw.icm.count(self.qpn, counter);
    }

    /// UC: a gap or a fault drops the message, nothing is answered.
    fn receive_unreliable(&mut self, core: &mut Core, now: Ps, repr: &Repr, payload: &[u8], distance: i32) {
        let starts = matches!(
            repr.operation,
            Operation::SendFirst
                | Operation::SendOnly
                | Operation::SendOnlyImm
                | Operation::WriteFirst
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
        );
        if distance != 0 || (starts && self.responder.current.is_some()) {
            self.drop_message(core, now);
            self.responder.epsn = repr.psn;
            if !starts {
                self.responder.epsn = repr.psn.next();
                return;
            }
        }
        if !starts && self.responder.current.is_none() {
            self.responder.epsn = repr.psn.next();
            return;
        }
        match self.execute(core, now, repr, payload) {
            Ok(()) => {
                core.note(now, self.executed(repr, payload));
                self.count_request(core, repr.operation);
            }
            Err(Refusal::Local(syndrome, fault)) => {
                core.diagnose(now, format_args!("QP {}: receive: {fault}", self.qpn));
                self.receive_failed(core, now, syndrome);
            }
            Err(Refusal::Length) => self.receive_failed(core, now, Syndrome::LocalLength),
            Err(_) => {
                self.drop_message(core, now);
                self.responder.epsn = repr.psn.next();
            }
        }
    }

    /// UC: the receive WQE of an unfinished message serves the next message (IBTA 9.8.2.2.1).
    fn drop_message(&mut self, core: &mut Core, now: Ps) {
        if let Some(receive) = self.responder.abandon() {
            let index = receive.index;
            tracing::debug!(hca = core.name, %now, "QP {}: message to receive WQE {index} dropped", self.qpn);
            self.responder.spare = Some(receive);
        }
    }

    pub(super) fn receive_failed(&mut self, core: &mut Core, now: Ps, syndrome: Syndrome) {
        if let Some(receive) = self.responder.abandon() {
            self.complete_receive_error(core, now, &receive, syndrome);
        }
        self.fail(core, now, None);
    }

    /// Keeps what a read or atomic needs if it comes again.
    pub(super) fn remember(&mut self, resource: Resource) {
        let resources = &mut self.responder.resources;
        resources.push_back(resource);
        while resources.len() > self.params.rra_max {
            resources.pop_front();
        }
    }

    /// A request that was executed before.
    fn receive_duplicate(&mut self, core: &mut Core, now: Ps, repr: &Repr) {
        match repr.operation {
            Operation::ReadRequest => self.read_again(core, now, repr),
            Operation::CompareSwap | Operation::FetchAdd => {
                let saved = self.responder.resources.iter().find_map(|r| match r {
                    Resource::Atomic { psn, original } if *psn == repr.psn => Some(*original),
                    _ => None,
                });
                // One whose result is not kept any more is dropped in silence.
                if let Some(original) = saved {
                    self.queue_atomic(core, now, repr.psn, self.responder.msn, (original, now));
                }
            }
            _ => {
                // Everything up to the expected PSN is acknowledged again.
                let psn = self.responder.epsn.prev();
                self.answer(core, now, psn, aeth::ACK);
            }
        }
    }

    /// A duplicate read, whole or from a packet in the middle on (IBTA 9.7.5.1.5).
    fn read_again(&mut self, core: &mut Core, now: Ps, repr: &Repr) {
        let Some(reth) = repr.reth else { return };
        let packets = u64::from(reth.len).div_ceil(self.params.mtu as u64).max(1) as u32;
        let end = repr.psn.add(packets);
        let known = self.responder.resources.iter().any(|r| match r {
            Resource::Read { first, next } => repr.psn.since(*first) >= 0 && end.since(*next) <= 0,
            Resource::Atomic { .. } => false,
        });
        // What is still to be sent need not be asked for again.
        let under_way = self.responder.queue.iter().any(|r| match r {
            Response::Read { psn, left, .. } => {
                let until = psn.add(left.div_ceil(self.params.mtu as u64).max(1) as u32);
                repr.psn.since(*psn) >= 0 && end.since(until) <= 0
            }
            _ => false,
        });
        let full = self.responder.reads_waiting(true) >= self.params.rra_max;
        if !known || under_way || full {
            return;
        }
        match self.target(core, repr).and_then(|t| self.check_read(core, t, &reth).map(|()| t)) {
            Ok(target) => self.queue_read(core, now, target.who, repr.psn, &reth, true),
            Err(refusal) => self.refuse(core, now, repr, refusal),
        }
    }

    fn refuse(&mut self, core: &mut Core, now: Ps, repr: &Repr, refusal: Refusal) {
        let psn = repr.psn;
        let (code, event) = match refusal {
            Refusal::NotReady => {
                core.fw.icm.count(self.qpn, QCounter::OutOfBuffer);
                // What was sent behind this packet is dropped in silence until it comes again, as after
                // a sequence error (IBTA 9.7.5.2.8): a second NAK would cost the peer a retry.
                self.responder.nak_sent = true;
                let syndrome = aeth::RNR_NAK | self.params.min_rnr_nak;
                return self.answer(core, now, psn, syndrome);
            }
            Refusal::Invalid(why) => {
                core.diagnose(
                    now,
                    format_args!("QP {}: {:?} from the peer: {why}", self.qpn, repr.operation),
                );
                core.fw.icm.count(self.qpn, QCounter::RespRemoteInvalidRequest);
                (aeth::INVALID_REQUEST, EventType::InvalidRequest)
            }
            Refusal::Access(fault) => {
                core.diagnose(
                    now,
                    format_args!("QP {}: {:?} from the peer: {fault}", self.qpn, repr.operation),
                );
                core.fw.icm.count(self.qpn, QCounter::RespRemoteAccessErrors);
                (aeth::REMOTE_ACCESS_ERROR, EventType::AccessError)
            }
            Refusal::Local(syndrome, fault) => {
                core.diagnose(now, format_args!("QP {}: receive buffers: {fault}", self.qpn));
                self.answer(core, now, psn, aeth::NAK | aeth::REMOTE_OPERATIONAL_ERROR);
                return self.receive_failed(core, now, syndrome);
            }
            Refusal::Length => {
                core.diagnose(
                    now,
                    format_args!("QP {}: a message is longer than its receive buffers", self.qpn),
                );
                self.answer(core, now, psn, aeth::NAK | aeth::INVALID_REQUEST);
                return self.receive_failed(core, now, Syndrome::LocalLength);
            }
            Refusal::Broken => {
                core.diagnose(now, format_args!("QP {}: its receive queue can't be read", self.qpn));
                (aeth::REMOTE_OPERATIONAL_ERROR, EventType::WqCatastrophic)
            }
        };
        self.answer(core, now, psn, aeth::NAK | code);
        self.fail(core, now, None);
        self.raise(core, now, event);
    }
}
