//! The responder: checks the peer's requests in order, says what each does, and how one is refused.
//!
//! Source: IBTA 9.7.1 (PSN ranges), 9.7.4 (request validation), 9.7.5 (responses), 9.9.3 (responder
//! error behaviour), tables 56 to 58; XRC: IBTA annex A14.

use hca_firmware::QCounter;
use hca_spec::cqe::{CqeOpcode, Syndrome};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Mkey, Psn, Srqn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::{Operation, aeth};
use std::collections::VecDeque;

use super::QueuePair;
use super::answers::{ReadLeft, Response};
use super::landing::Landing;
use super::page_fault::ResponderFault;
use super::recv::{NoReceive, Receive, XrcSrq, xrc_srq};
use crate::engines::mkey::{Access, Accessor, Fault, check};
use crate::engines::view::View;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::wire::{AtomicRepr, Repr, RethRepr};

/// Message sequence numbers have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// The message whose packets are coming in.
#[derive(Debug)]
pub(crate) enum Current {
    Send { receive: Receive, offset: u64 },
    Write { va: u64, rkey: Mkey, left: u64, total: u64, srqn: Option<Srqn> },
}

impl Current {
    /// The XRC SRQ that its first packet named.
    fn srqn(&self) -> Option<Srqn> {
        match self {
            Self::Send { receive, .. } => receive.xrc.map(|s| s.srqn),
            Self::Write { srqn, .. } => *srqn,
        }
    }
}

/// What is kept of a request that must not be executed twice, or only as it was (IBTA 9.7.5.1.5).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Resource {
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
    pub(crate) current: Option<Current>,
    /// Where the payload of the message in progress goes.
    pub(super) landing: Option<Box<Landing>>,
    /// The receive WQE of a message that was dropped: it serves the next one.
    pub(crate) spare: Option<Receive>,
    /// A sequence error NAK was sent; no second one until the expected packet comes.
    nak_sent: bool,
    pub(crate) queue: VecDeque<Response>,
    pub(crate) turn: bool,
    /// Reads and atomics that may come again, oldest first; as many as the queue pair has resources.
    resources: VecDeque<Resource>,
    established: bool,
    /// The page fault that the driver has to deal with first.
    pub(crate) fault: Option<ResponderFault>,
}

impl Responder {
    /// One whose first request has that PSN.
    pub(crate) fn expecting(epsn: Psn) -> Self {
        Self { epsn, ..Self::default() }
    }

    /// Forgets the message in progress; returns the receive WQE it had taken.
    pub(crate) fn abandon(&mut self) -> Option<Receive> {
        self.fault = None;
        self.landing = None;
        match self.current.take() {
            Some(Current::Send { receive, .. }) => Some(receive),
            _ => self.spare.take(),
        }
    }

    /// The first packet of a message has come. Nothing is in progress then ([`QueuePair::check_sequence`]).
    #[inline(always)]
    pub(crate) fn begin(&mut self, message: Current) {
        debug_assert!(self.current.is_none(), "the last packet of the message before came");
        self.landing = None;
        self.current = Some(message);
    }

    /// The last packet of the message in progress has come: returns the receive WQE that it had taken.
    pub(crate) fn end_receive(&mut self) -> Option<Receive> {
        self.landing = None;
        match self.current.take() {
            Some(Current::Send { receive, .. }) => Some(receive),
            _ => None,
        }
    }

    /// Another request is completed. Returns its number.
    pub(crate) fn next_msn(&mut self) -> u32 {
        self.msn = (self.msn + 1) & MSN_MASK;
        self.msn
    }

    /// Whether the message in progress has taken a receive WQE.
    pub(crate) fn holds_receive(&self) -> bool {
        matches!(self.current, Some(Current::Send { .. }))
    }

    /// Whether a message that is refused at such a packet had a receive WQE: a write with immediate gives back what it took.
    pub(crate) fn had_receive(&self, repr: &Repr) -> bool {
        self.holds_receive() || (repr.imm.is_some() && self.spare.is_some())
    }

    /// Reads and atomics that are not answered yet: duplicates, or the others.
    fn responses_waiting(&self, duplicates: bool) -> usize {
        let counts = |response: &&Response| match response {
            Response::Read(read) => read.again == duplicates,
            Response::Atomic { again, .. } => *again == duplicates,
            Response::Ack { .. } => false,
        };
        self.queue.iter().filter(counts).count()
    }

    /// A packet is missing. Returns whether that is to be told: once, until the missing packet comes.
    pub(crate) fn misses(&mut self) -> bool {
        !std::mem::replace(&mut self.nak_sent, true)
    }

    /// What was sent behind this packet is dropped in silence until it comes again, as after a sequence error
    /// (IBTA 9.7.5.2.8): a second NAK would cost the peer a retry.
    pub(crate) fn wait_for_again(&mut self) {
        self.nak_sent = true;
    }

    /// The packet that was expected has come.
    pub(crate) fn expected_came(&mut self) {
        self.nak_sent = false;
    }

    /// The result of an atomic that was executed before and comes again. None: it is not kept any more, or still waits to be told.
    pub(crate) fn atomic_again(&self, psn: Psn) -> Option<u64> {
        let waits = |r: &Response| matches!(r, Response::Atomic { psn: of, .. } if *of == psn);
        if self.queue.iter().any(waits) {
            return None;
        }
        self.resources.iter().find_map(|r| match r {
            Resource::Atomic { psn: of, original } if *of == psn => Some(*original),
            _ => None,
        })
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive buffer: try later.
    NotReady,
    /// IBTA "invalid request": of the packet or of the context, what was found, and what would be right.
    Invalid { field: &'static str, found: u64, expected: &'static str },
    /// Key, rights or range.
    Access(Fault),
    /// A fault of the responder's own buffers.
    Local(Syndrome, Fault),
    /// The message does not fit the receive buffers.
    Length,
    /// The receive queue can't be read.
    Broken,
}

/// An invalid request.
pub(crate) const fn invalid(field: &'static str, found: u64, expected: &'static str) -> Refusal {
    Refusal::Invalid { field, found, expected }
}

/// How a refusal is answered and told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Consequence {
    /// The AETH's syndrome.
    pub(crate) syndrome: u32,
    /// What becomes of the queue pair.
    pub(crate) end: End,
    pub(crate) counter: Option<QCounter>,
}

/// What becomes of a queue pair that refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It goes on.
    None,
    /// It fails, and the receive WQE that the message took completes with this.
    Receive(Syndrome),
    /// It fails. The receive WQE that the message took completes with this; without one the driver is told by an event (IBTA 9.9.3, class C).
    Told(Syndrome, EventType),
    /// It fails, and the driver is told by an event.
    Event(EventType),
}

impl Refusal {
    /// What follows from it (IBTA 9.9.3); `min_rnr_nak`: the queue pair's RNR timer.
    pub(crate) fn consequence(&self, min_rnr_nak: u32) -> Consequence {
        let (syndrome, end, counter) = match self {
            Self::NotReady => (aeth::RNR_NAK | min_rnr_nak, End::None, Some(QCounter::OutOfBuffer)),
            Self::Invalid { .. } => (
                aeth::NAK | aeth::INVALID_REQUEST,
                End::Told(Syndrome::RemoteInvalidRequest, EventType::InvalidRequest),
                Some(QCounter::RespRemoteInvalidRequest),
            ),
            Self::Access(_) => (
                aeth::NAK | aeth::REMOTE_ACCESS_ERROR,
                End::Told(Syndrome::RemoteAccess, EventType::AccessError),
                Some(QCounter::RespRemoteAccessErrors),
            ),
            Self::Local(syndrome, _) => {
                (aeth::NAK | aeth::REMOTE_OPERATIONAL_ERROR, End::Receive(*syndrome), None)
            }
            Self::Length => (aeth::NAK | aeth::INVALID_REQUEST, End::Receive(Syndrome::LocalLength), None),
            Self::Broken => {
                (aeth::NAK | aeth::REMOTE_OPERATIONAL_ERROR, End::Event(EventType::WqCatastrophic), None)
            }
        };
        Consequence { syndrome, end, counter }
    }
}

/// Through which domain a request reaches memory, and from where it takes receive WQEs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) who: Accessor,
    pub(crate) xrc: Option<XrcSrq>,
}

/// What a request does that passed the checks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// Its payload goes into a receive WQE; `starts`: one has to be taken first.
    Receive { starts: bool },
    /// Its payload goes into memory; `starts`: a message of that RETH begins.
    Write { starts: Option<RethRepr> },
    /// It reads.
    Read(RethRepr),
    /// It is an atomic.
    Atomic(AtomicRepr),
}

/// Where the payload of a write goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteTo {
    /// The place in the message.
    pub(crate) at: u64,
    pub(crate) va: u64,
    pub(crate) rkey: Mkey,
    /// Bytes of the whole message.
    pub(crate) total: u64,
    pub(crate) last: bool,
}

/// Whether a packet of UC is looked at (IBTA 9.8.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreliable {
    /// It is, after the message in progress was dropped or not.
    Take { dropped: bool },
    /// It belongs to a message that was dropped.
    Skip { dropped: bool },
}

impl QueuePair {
    /// Whether this packet establishes the connection, which is told once (IBTA 11.6.3.1).
    pub(crate) fn establishes(&mut self) -> bool {
        self.state == QpState::Rtr && !std::mem::replace(&mut self.responder.established, true)
    }

    /// Of XRC, every request names an SRQ, and that decides (IBTA A14.5.3).
    pub(crate) fn target(&self, view: &View<'_>, repr: &Repr) -> Result<Target, Refusal> {
        let who = self.accessor();
        if self.service != ServiceType::Xrc {
            return Ok(Target { who, xrc: None });
        }
        let srq = repr.xrceth.and_then(|srqn| xrc_srq(view.icm(), srqn, self.params.xrcd));
        let srq = srq.ok_or(invalid(
            "xrc_srqn",
            repr.xrceth.map_or(0, |srqn| srqn.0.into()),
            "an XRC SRQ of the queue pair's XRC domain",
        ))?;
        Ok(Target { who: Accessor { pd: srq.pd, ..who }, xrc: Some(srq) })
    }

    /// Checks a request with the expected PSN and `payload` bytes, and says what it does.
    pub(crate) fn request(
        &self,
        view: &View<'_>,
        target: &Target,
        repr: &Repr,
        payload: usize,
    ) -> Result<Action, Refusal> {
        use Operation as Op;
        Ok(match repr.operation {
            Op::SendFirst | Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInval => {
                Action::Receive { starts: true }
            }
            Op::SendMiddle | Op::SendLast | Op::SendLastImm | Op::SendLastInval => {
                Action::Receive { starts: false }
            }
            Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm => {
                let reth = repr.reth.ok_or(invalid("RETH", 0, "one"))?;
                if !self.params.remote_write {
                    return Err(invalid("rwe", 0, "1: remote write is enabled"));
                }
                let total = reth.len as usize;
                self.check_length(reth.len)?;
                // Of a single packet, the write itself asks for all of it.
                let asked_later = repr.operation == Op::WriteOnly && total == payload;
                if total > 0 && !asked_later {
                    check(view.icm(), target.who, reth.rkey, reth.va, total, Access::RemoteWrite)
                        .map_err(Refusal::Access)?;
                }
                let only = repr.operation != Op::WriteFirst;
                if (only && total != payload) || (!only && total <= payload) {
                    return Err(invalid("dma_length", reth.len.into(), "what its packets carry"));
                }
                Action::Write { starts: Some(reth) }
            }
            Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm => Action::Write { starts: None },
            Op::ReadRequest => {
                let reth = repr.reth.ok_or(invalid("RETH", 0, "one"))?;
                self.check_resources()?;
                self.check_read(view, target, &reth)?;
                Action::Read(reth)
            }
            operation if operation.is_atomic() => {
                let atomic = repr.atomic.ok_or(invalid("AtomicETH", 0, "one"))?;
                if !self.params.remote_atomic {
                    return Err(invalid("rae", 0, "1: remote atomics are enabled"));
                }
                self.check_resources()?;
                if let Some(masks) = atomic.masks
                    && !self.params.takes_masked(masks.log_size)
                {
                    let size = 1 << masks.log_size.min(63);
                    return Err(invalid(
                        "bytes of a masked atomic",
                        size,
                        "a size that the capabilities tell, atomic_mode no smaller",
                    ));
                }
                if !atomic.va.is_multiple_of(atomic.size() as u64) {
                    return Err(invalid("virtual address of an atomic", atomic.va, "a multiple of its size"));
                }
                Action::Atomic(atomic)
            }
            _ => return Err(invalid("opcode", 0, "that of a request")),
        })
    }

    /// That the transport has the opcode (IBTA 9.9.3), the order of first, middle and last packets, and the payload lengths (IBTA
    /// 9.7.4.1.3).
    pub(crate) fn check_sequence(&self, repr: &Repr, payload: usize) -> Result<(), Refusal> {
        use Operation as Op;
        if !repr.operation.exists_on(repr.transport) {
            let opcode = repr.operation.on(repr.transport);
            return Err(invalid("opcode", opcode.into(), "one that the transport has"));
        }
        let fits = match (&self.responder.current, repr.operation) {
            (
                Some(Current::Send { .. }),
                Op::SendMiddle | Op::SendLast | Op::SendLastImm | Op::SendLastInval,
            ) => true,
            (Some(Current::Write { .. }), Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm) => true,
            (
                None,
                Op::SendMiddle
                | Op::SendLast
                | Op::SendLastImm
                | Op::SendLastInval
                | Op::WriteMiddle
                | Op::WriteLast
                | Op::WriteLastImm,
            )
            | (Some(_), _) => false,
            (None, _) => true,
        };
        if !fits {
            return Err(invalid(
                "opcode",
                repr.operation as u64,
                "one in the first-middle-last order of the message",
            ));
        }
        let srqn = self.responder.current.as_ref().map(Current::srqn);
        if srqn.is_some_and(|srqn| srqn != repr.xrceth) {
            return Err(invalid(
                "xrc_srqn",
                repr.xrceth.map_or(0, |srqn| srqn.0.into()),
                "the same in all packets of a message",
            ));
        }
        let full =
            matches!(repr.operation, Op::SendFirst | Op::SendMiddle | Op::WriteFirst | Op::WriteMiddle);
        // A last packet has one byte or more: without any, the packet before would have been the last.
        let last = self.responder.current.is_some();
        let length_ok = match payload {
            0 => !full && !last,
            n => n == self.params.mtu || (!full && n < self.params.mtu),
        };
        if length_ok {
            Ok(())
        } else {
            Err(invalid(
                "mtu",
                payload as u64,
                "a payload of the path MTU; the last may have less: both ends' mtu agree",
            ))
        }
    }

    /// Longer messages would have more packets than half the PSN space.
    fn check_length(&self, len: u32) -> Result<(), Refusal> {
        match u64::from(len) > 1 << self.params.log_msg_max {
            true => Err(invalid("log_msg_max", len.into(), "a message that is no longer")),
            false => Ok(()),
        }
    }

    /// Whether another read or atomic may wait for its answer.
    fn check_resources(&self) -> Result<(), Refusal> {
        match self.responder.responses_waiting(false) >= self.params.rra_max {
            true => Err(invalid(
                "log_rra_max",
                self.params.rra_max as u64,
                "as many responder resources as the peer has reads and atomics outstanding (log_sra_max)",
            )),
            false => Ok(()),
        }
    }

    /// Whether the range of a read may be read.
    fn check_read(&self, view: &View<'_>, target: &Target, reth: &RethRepr) -> Result<(), Refusal> {
        if !self.params.remote_read {
            return Err(invalid("rre", 0, "1: remote read is enabled"));
        }
        self.check_length(reth.len)?;
        if reth.len == 0 {
            return Ok(());
        }
        check(view.icm(), target.who, reth.rkey, reth.va, reth.len as usize, Access::RemoteRead)
            .map_err(Refusal::Access)
    }

    /// Where the payload of a write packet goes.
    pub(crate) fn write_to(&self, repr: &Repr, payload: usize) -> Result<WriteTo, Refusal> {
        let Some(Current::Write { va, rkey, left, total, .. }) = &self.responder.current else {
            return Err(invalid("opcode", 0, "that of a first packet"));
        };
        let last = !matches!(repr.operation, Operation::WriteFirst | Operation::WriteMiddle);
        let n = payload as u64;
        if n > *left || (last && n != *left) {
            return Err(invalid("dma_length", *total, "what the packets carry"));
        }
        Ok(WriteTo { at: total.saturating_sub(*left), va: *va, rkey: *rkey, total: *total, last })
    }

    /// The payload of a write packet was written.
    pub(crate) fn written(&mut self, payload: usize, last: bool) {
        if last {
            (self.responder.current, self.responder.landing) = (None, None);
            self.responder.next_msn();
        } else {
            self.landed(payload);
        }
    }

    /// The opcode of the completion that a packet of a send ends in, if it is its last.
    pub(crate) fn ends_receive(operation: Operation) -> Option<CqeOpcode> {
        match operation {
            Operation::SendFirst | Operation::SendMiddle => None,
            Operation::SendLastImm | Operation::SendOnlyImm => Some(CqeOpcode::RespSendImm),
            Operation::SendLastInval | Operation::SendOnlyInval => Some(CqeOpcode::RespSendInv),
            _ => Some(CqeOpcode::RespSend),
        }
    }

    /// A read is begun: its responses own PSNs, and it may come again.
    pub(crate) fn begin_read(&mut self, psn: Psn, reth: &RethRepr) {
        let packets = u64::from(reth.len).div_ceil(self.params.mtu as u64).max(1);
        let next = psn.add(packets as u32);
        self.responder.epsn = next;
        self.responder.next_msn();
        self.remember(Resource::Read { first: psn, next });
    }

    /// Keeps what a read or atomic needs if it comes again.
    pub(crate) fn remember(&mut self, resource: Resource) {
        let resources = &mut self.responder.resources;
        resources.push_back(resource);
        while resources.len() > self.params.rra_max {
            resources.pop_front();
        }
    }

    /// Whether a duplicate read, whole or from a packet in the middle on, is answered again (IBTA 9.7.5.1.5), and through
    /// which domain.
    pub(crate) fn read_again(&self, view: &View<'_>, repr: &Repr) -> Option<Result<Target, Refusal>> {
        let reth = repr.reth?;
        let packets = |bytes: u64| bytes.div_ceil(self.params.mtu as u64).max(1) as u32;
        let end = repr.psn.add(packets(reth.len.into()));
        let known = self.responder.resources.iter().any(|r| match r {
            Resource::Read { first, next } => repr.psn.since(*first) >= 0 && end.since(*next) <= 0,
            Resource::Atomic { .. } => false,
        });
        // What is still to be sent need not be asked for again.
        let under_way = self.responder.queue.iter().any(|r| match r {
            Response::Read(ReadLeft { psn, left, .. }) => {
                repr.psn.since(*psn) >= 0 && end.since(psn.add(packets(*left))) <= 0
            }
            _ => false,
        });
        let full = self.responder.responses_waiting(true) >= self.params.rra_max;
        if !known || under_way || full {
            return None;
        }
        Some(self.target(view, repr).and_then(|t| self.check_read(view, &t, &reth).map(|()| t)))
    }

    /// UC: a gap drops the message in progress, as does another first packet; packets of a dropped message are skipped.
    pub(crate) fn unreliable(&mut self, repr: &Repr) -> Unreliable {
        let starts = matches!(
            repr.operation,
            Operation::SendFirst
                | Operation::SendOnly
                | Operation::SendOnlyImm
                | Operation::WriteFirst
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
        );
        let distance = repr.psn.since(self.responder.epsn);
        let dropped = distance != 0 || (starts && self.responder.current.is_some());
        if dropped {
            self.responder.epsn = repr.psn;
        }
        if !starts && (dropped || self.responder.current.is_none()) {
            self.responder.epsn = repr.psn.next();
            return Unreliable::Skip { dropped };
        }
        Unreliable::Take { dropped }
    }

    /// The counter of requests that a packet moves, once a message.
    pub(crate) fn request_counter(operation: Operation) -> Option<QCounter> {
        match operation {
            Operation::WriteFirst | Operation::WriteOnly | Operation::WriteOnlyImm => {
                Some(QCounter::RxWriteRequests)
            }
            Operation::ReadRequest => Some(QCounter::RxReadRequests),
            operation if operation.is_atomic() => Some(QCounter::RxAtomicRequests),
            _ => None,
        }
    }
}

/// The new value of an atomic's operand. Atomic capability "endianness mode 1": memory operands are in host byte order.
pub(crate) fn atomic_result(operation: Operation, atomic: &AtomicRepr, original: u64) -> u64 {
    let masks = atomic.masks.unwrap_or_default();
    match operation {
        Operation::FetchAdd => original.wrapping_add(atomic.swap_add),
        Operation::MaskedFetchAdd => add_in_fields(original, atomic.swap_add, atomic.compare),
        Operation::MaskedCompareSwap if (original ^ atomic.compare) & masks.compare == 0 => {
            original & !masks.swap | atomic.swap_add & masks.swap
        }
        Operation::MaskedCompareSwap => original,
        _ if original == atomic.compare => atomic.swap_add,
        _ => original,
    }
}

/// The sum of two numbers of several fields each: no bit is carried out of one whose last bit is set in `last`.
fn add_in_fields(a: u64, b: u64, last: u64) -> u64 {
    // The bits below each field's last one cannot carry beyond it.
    ((a & !last).wrapping_add(b & !last)) ^ ((a ^ b) & last)
}

impl Rebase for Responder {
    fn rebase(&mut self, by: Ps) {
        let Self { epsn: _, msn: _, current: _, landing: _, spare: _, nak_sent: _, queue, .. } = self;
        queue.rebase(by);
        let Self { turn: _, resources: _, established: _, fault: _, .. } = self;
    }
}
