//! The responder: executes the peer's requests in order and answers them.
//!
//! Source: IBTA 9.7.1 (PSN ranges), 9.7.4 (request validation), 9.7.5 (responses), 9.9.3 (responder
//! error behaviour), tables 56 to 58.

use std::collections::VecDeque;

use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Mkey, Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::{Operation, aeth};

use super::QueuePair;
use super::recv::{NoReceive, Receive};
use super::umr::invalidate_remote;
use crate::core::{Core, HcaEvent};
use crate::hca::Hca;
use crate::mkey::{Access, Fault, check, read, write};
use crate::time::Ps;
use crate::wire::{AethRepr, AtomicRepr, Packet, Repr, RethRepr};

/// Message sequence numbers have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// The message whose packets are coming in.
#[derive(Debug)]
enum Current {
    Send { receive: Receive, offset: u64 },
    Write { va: u64, rkey: Mkey, left: u64, total: u64 },
}

/// An answer that waits for its turn.
#[derive(Debug)]
enum Response {
    Ack { psn: Psn, syndrome: u32, msn: u32 },
    Atomic { psn: Psn, msn: u32, original: u64 },
    Read { psn: Psn, msn: u32, va: u64, rkey: Mkey, left: u64, first: bool },
}

/// The moving parts of the responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// PSN expected next.
    pub(crate) epsn: Psn,
    /// Requests completed, 24 bits.
    pub(crate) msn: u32,
    current: Option<Current>,
    /// A sequence error NAK was sent; no second one until the expected packet comes.
    nak_sent: bool,
    queue: VecDeque<Response>,
    turn: bool,
    /// Results of atomics, for duplicates: responder resources.
    atomics: VecDeque<(Psn, u64)>,
    established: bool,
}

impl Responder {
    /// Forgets the message in progress; returns the receive WQE it had taken.
    pub(crate) fn abandon(&mut self) -> Option<u16> {
        match self.current.take() {
            Some(Current::Send { receive, .. }) => Some(receive.index),
            _ => None,
        }
    }

    fn next_msn(&mut self) -> u32 {
        self.msn = (self.msn + 1) & MSN_MASK;
        self.msn
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
enum Refusal {
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
        if distance > 0 {
            if !std::mem::replace(&mut self.responder.nak_sent, true) {
                let (psn, syndrome) = (self.responder.epsn, aeth::NAK | aeth::PSN_SEQUENCE_ERROR);
                self.answer(core, now, psn, syndrome);
            }
            return;
        }
        if distance < 0 {
            return self.receive_duplicate(core, now, repr);
        }
        self.responder.nak_sent = false;
        match self.execute(core, now, repr, payload) {
            Ok(()) => {
                if repr.ack_req
                    && !matches!(
                        repr.operation,
                        Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
                    )
                {
                    self.answer(core, now, repr.psn, aeth::ACK | aeth::CREDITS_INVALID);
                }
            }
            Err(refusal) => self.refuse(core, now, repr, refusal),
        }
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
            Ok(()) => {}
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
        if let Some(index) = self.responder.abandon() {
            tracing::debug!(hca = core.name, %now, "QP {}: message to receive WQE {index} dropped", self.qpn);
            self.rq.give_back();
        }
    }

    fn receive_failed(&mut self, core: &mut Core, now: Ps, syndrome: Syndrome) {
        if let Some(index) = self.responder.abandon() {
            self.complete_receive_error(core, now, index, syndrome);
        }
        self.fail(core, now, None);
    }

    /// A request that was executed before.
    fn receive_duplicate(&mut self, core: &mut Core, now: Ps, repr: &Repr) {
        match repr.operation {
            Operation::ReadRequest => {
                if let Some(reth) = repr.reth {
                    match self.check_read(core, &reth) {
                        Ok(()) => self.queue_read(core, now, repr.psn, &reth),
                        Err(refusal) => self.refuse(core, now, repr, refusal),
                    }
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let saved = self.responder.atomics.iter().find(|a| a.0 == repr.psn).copied();
                if let Some((psn, original)) = saved {
                    let msn = self.responder.msn;
                    self.queue_response(core, now, Response::Atomic { psn, msn, original });
                }
            }
            _ => {
                // Everything up to the expected PSN is acknowledged again.
                let psn = self.responder.epsn.prev();
                self.answer(core, now, psn, aeth::ACK | aeth::CREDITS_INVALID);
            }
        }
    }

    fn refuse(&mut self, core: &mut Core, now: Ps, repr: &Repr, refusal: Refusal) {
        let psn = repr.psn;
        let (code, event) = match refusal {
            Refusal::NotReady => {
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
                (aeth::INVALID_REQUEST, EventType::InvalidRequest)
            }
            Refusal::Access(fault) => {
                core.diagnose(
                    now,
                    format_args!("QP {}: {:?} from the peer: {fault}", self.qpn, repr.operation),
                );
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
        core.push_qp_event(now, event, self.qpn);
    }

    /// Executes a request packet with the expected PSN.
    fn execute(&mut self, core: &mut Core, now: Ps, repr: &Repr, payload: &[u8]) -> Result<(), Refusal> {
        use Operation as Op;
        self.check_sequence(repr, payload)?;
        match repr.operation {
            Op::SendFirst | Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInval => {
                let receive = self.take_receive(core, now)?;
                self.responder.current = Some(Current::Send { receive, offset: 0 });
                self.receive_payload(core, now, repr, payload)?;
            }
            Op::SendMiddle | Op::SendLast | Op::SendLastImm | Op::SendLastInval => {
                self.receive_payload(core, now, repr, payload)?;
            }
            Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm => {
                let reth = repr.reth.ok_or(Refusal::Invalid("no RETH"))?;
                if !self.params.remote_write {
                    return Err(Refusal::Invalid("remote write is not enabled on the queue pair"));
                }
                let total = u64::from(reth.len);
                self.check_length(reth.len)?;
                if total > 0 {
                    let (icm, who) = (&core.fw.icm, self.accessor());
                    check(icm, who, reth.rkey, reth.va, total as usize, Access::RemoteWrite)
                        .map_err(Refusal::Access)?;
                }
                let only = repr.operation != Op::WriteFirst;
                if (only && total != payload.len() as u64) || (!only && total <= payload.len() as u64) {
                    return Err(Refusal::Invalid("the RETH's length does not fit the packets"));
                }
                let before = self.responder.current.take();
                self.responder.current =
                    Some(Current::Write { va: reth.va, rkey: reth.rkey, left: total, total });
                if let Err(refusal) = self.write_payload(core, now, repr, payload) {
                    self.responder.current = before;
                    return Err(refusal);
                }
            }
            Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm => {
                self.write_payload(core, now, repr, payload)?
            }
            Op::ReadRequest => {
                let reth = repr.reth.ok_or(Refusal::Invalid("no RETH"))?;
                self.check_read(core, &reth)?;
                let packets = u64::from(reth.len).div_ceil(self.params.mtu as u64).max(1);
                self.responder.epsn = repr.psn.add(packets as u32);
                self.responder.next_msn();
                self.queue_read(core, now, repr.psn, &reth);
                return Ok(());
            }
            Op::CompareSwap | Op::FetchAdd => {
                let atomic = repr.atomic.ok_or(Refusal::Invalid("no AtomicETH"))?;
                let original = self.execute_atomic(core, repr.operation, &atomic)?;
                self.responder.atomics.push_back((repr.psn, original));
                while self.responder.atomics.len() > self.params.rra_max {
                    self.responder.atomics.pop_front();
                }
                let msn = self.responder.next_msn();
                self.queue_response(core, now, Response::Atomic { psn: repr.psn, msn, original });
            }
            _ => return Err(Refusal::Invalid("not a request")),
        }
        self.responder.epsn = repr.psn.next();
        Ok(())
    }

    /// The order of first, middle and last packets, and the payload lengths (IBTA 9.7.4.1.3).
    fn check_sequence(&self, repr: &Repr, payload: &[u8]) -> Result<(), Refusal> {
        use Operation as Op;
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
            return Err(Refusal::Invalid("packet out of the first-middle-last order"));
        }
        let full =
            matches!(repr.operation, Op::SendFirst | Op::SendMiddle | Op::WriteFirst | Op::WriteMiddle);
        let length_ok =
            if full { payload.len() == self.params.mtu } else { payload.len() <= self.params.mtu };
        if length_ok { Ok(()) } else { Err(Refusal::Invalid("payload length does not fit the path MTU")) }
    }

    fn receive_payload(
        &mut self,
        core: &mut Core,
        now: Ps,
        repr: &Repr,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let who = self.accessor();
        let Some(Current::Send { receive, offset }) = &mut self.responder.current else {
            return Err(Refusal::Invalid("no message in progress"));
        };
        if *offset + payload.len() as u64 > receive.room {
            return Err(Refusal::Length);
        }
        receive
            .scatter(core, who, *offset, payload)
            .map_err(|fault| Refusal::Local(Syndrome::LocalProtection, fault))?;
        *offset += payload.len() as u64;
        let opcode = match repr.operation {
            Operation::SendFirst | Operation::SendMiddle => return Ok(()),
            Operation::SendLastImm | Operation::SendOnlyImm => CqeOpcode::RespSendImm,
            Operation::SendLastInval | Operation::SendOnlyInval => CqeOpcode::RespSendInv,
            _ => CqeOpcode::RespSend,
        };
        let (index, bytes) = (receive.index, *offset);
        let mut word = repr.imm.unwrap_or(0);
        if let Some(key) = repr.ieth {
            word = key.0;
            invalidate_remote(&mut core.fw.icm, who, key).map_err(Refusal::Access)?;
        }
        self.responder.current = None;
        self.responder.next_msn();
        self.complete_receive(core, now, opcode, index, bytes, word, repr);
        Ok(())
    }

    fn write_payload(
        &mut self,
        core: &mut Core,
        now: Ps,
        repr: &Repr,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let who = self.accessor();
        let Some(Current::Write { va, rkey, left, total }) = &self.responder.current else {
            return Err(Refusal::Invalid("no message in progress"));
        };
        let (va, rkey, left, total) = (*va, *rkey, *left, *total);
        let n = payload.len() as u64;
        let last = !matches!(repr.operation, Operation::WriteFirst | Operation::WriteMiddle);
        if n > left || (last && n != left) {
            return Err(Refusal::Invalid("the packets do not add up to the RETH's length"));
        }
        // The immediate consumes a receive WQE: it must be there before anything is written.
        let receive = match repr.imm {
            Some(_) => Some(self.take_receive(core, now)?),
            None => None,
        };
        if n > 0 {
            write(&core.fw.icm, &*core.memory, who, rkey, va, payload, Access::RemoteWrite)
                .map_err(Refusal::Access)?;
        }
        self.responder.current = Some(Current::Write { va: va.wrapping_add(n), rkey, left: left - n, total });
        if last {
            self.responder.current = None;
            self.responder.next_msn();
        }
        if let Some(receive) = receive {
            let imm = repr.imm.unwrap_or(0);
            self.complete_receive(core, now, CqeOpcode::RespWrImm, receive.index, total, imm, repr);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a CQE")]
    fn complete_receive(
        &mut self,
        core: &mut Core,
        now: Ps,
        opcode: CqeOpcode,
        index: u16,
        bytes: u64,
        word: u32,
        repr: &Repr,
    ) {
        let mut cqe = self.cqe(opcode, index);
        cqe.set(Cqe::BYTE_CNT, bytes as u32).set(Cqe::IMM_INVAL_PKEY, word);
        cqe.set(Cqe::SE, repr.solicited.into())
            .set(Cqe::SLID, repr.slid.0.into())
            .set(Cqe::SL, repr.sl.into());
        cqe.set(Cqe::GRH, repr.grh.is_some().into());
        let cqn = self.params.cqn_rcv;
        self.complete(core, now, cqn, cqe);
    }

    /// Longer messages would have more packets than half the PSN space.
    fn check_length(&self, len: u32) -> Result<(), Refusal> {
        match u64::from(len) > 1 << self.params.log_msg_max {
            true => Err(Refusal::Invalid("the message is longer than the queue pair's log_msg_max")),
            false => Ok(()),
        }
    }

    fn check_read(&self, core: &Core, reth: &RethRepr) -> Result<(), Refusal> {
        if !self.params.remote_read {
            return Err(Refusal::Invalid("remote read is not enabled on the queue pair"));
        }
        let waiting = self.responder.queue.iter().filter(|r| matches!(r, Response::Read { .. })).count();
        if waiting >= self.params.rra_max {
            return Err(Refusal::Invalid("more reads outstanding than the queue pair's responder resources"));
        }
        self.check_length(reth.len)?;
        if reth.len == 0 {
            return Ok(());
        }
        check(&core.fw.icm, self.accessor(), reth.rkey, reth.va, reth.len as usize, Access::RemoteRead)
            .map_err(Refusal::Access)
    }

    fn execute_atomic(&self, core: &Core, operation: Operation, atomic: &AtomicRepr) -> Result<u64, Refusal> {
        if !self.params.remote_atomic {
            return Err(Refusal::Invalid("remote atomics are not enabled on the queue pair"));
        }
        if !atomic.va.is_multiple_of(8) {
            return Err(Refusal::Invalid("the address of an atomic must be a multiple of 8"));
        }
        let (icm, memory, who) = (&core.fw.icm, &*core.memory, self.accessor());
        let mut word = [0; 8];
        read(icm, memory, who, atomic.rkey, atomic.va, &mut word, Access::RemoteAtomic)
            .map_err(Refusal::Access)?;
        // Atomic capability "endianness mode 1": memory operands are in host byte order.
        let original = u64::from_le_bytes(word);
        let new = match operation {
            Operation::FetchAdd => original.wrapping_add(atomic.swap_add),
            _ if original == atomic.compare => atomic.swap_add,
            _ => original,
        };
        let new = new.to_le_bytes();
        write(icm, memory, who, atomic.rkey, atomic.va, &new, Access::RemoteAtomic)
            .map_err(Refusal::Access)?;
        Ok(original)
    }

    fn queue_read(&mut self, core: &mut Core, now: Ps, psn: Psn, reth: &RethRepr) {
        let msn = self.responder.msn;
        let read =
            Response::Read { psn, msn, va: reth.va, rkey: reth.rkey, left: reth.len.into(), first: true };
        self.queue_response(core, now, read);
    }

    fn answer(&mut self, core: &mut Core, now: Ps, psn: Psn, syndrome: u32) {
        let msn = self.responder.msn;
        let positive = syndrome & aeth::KIND_MASK == aeth::ACK;
        if let Some(Response::Ack { psn: last, syndrome: was, msn: m }) = self.responder.queue.back_mut()
            && positive
            && *was & aeth::KIND_MASK == aeth::ACK
            && psn.since(*last) >= 0
        {
            // An ACK that has not left yet is replaced by the later one: coalescing (IBTA 9.7.5.1.1).
            (*last, *m) = (psn, msn);
            return;
        }
        self.queue_response(core, now, Response::Ack { psn, syndrome, msn });
    }

    fn queue_response(&mut self, core: &mut Core, now: Ps, response: Response) {
        self.responder.queue.push_back(response);
        if !std::mem::replace(&mut self.responder.turn, true) {
            core.schedule(now + core.timing.respond(), HcaEvent::ResponseTurn(self.qpn));
        }
    }

    /// Sends one response packet. Returns when the next may follow.
    fn send_response(&mut self, core: &mut Core, now: Ps) -> Option<Ps> {
        let mut repr = self.connected_repr(core)?;
        let who = self.accessor();
        let mtu = self.params.mtu as u64;
        let response = self.responder.queue.pop_front()?;
        let ack = |syndrome: u32, msn: u32| Some(AethRepr { syndrome: syndrome as u8, msn });
        let mut rest = None;
        let packet = match response {
            Response::Ack { psn, syndrome, msn } => {
                (repr.operation, repr.psn, repr.aeth) = (Operation::Acknowledge, psn, ack(syndrome, msn));
                Packet::build(&repr, 0, |_| Ok(()))
            }
            Response::Atomic { psn, msn, original } => {
                (repr.operation, repr.psn) = (Operation::AtomicAcknowledge, psn);
                repr.aeth = ack(aeth::ACK | aeth::CREDITS_INVALID, msn);
                repr.atomic_ack = Some(original);
                Packet::build(&repr, 0, |_| Ok(()))
            }
            Response::Read { psn, msn, va, rkey, left, first } => {
                let n = left.min(mtu);
                repr.psn = psn;
                repr.operation = match (first, n == left) {
                    (true, true) => Operation::ReadResponseOnly,
                    (true, false) => Operation::ReadResponseFirst,
                    (false, false) => Operation::ReadResponseMiddle,
                    (false, true) => Operation::ReadResponseLast,
                };
                if repr.operation != Operation::ReadResponseMiddle {
                    repr.aeth = ack(aeth::ACK | aeth::CREDITS_INVALID, msn);
                }
                if n < left {
                    let (psn, va) = (psn.next(), va.wrapping_add(n));
                    rest = Some(Response::Read { psn, msn, va, rkey, left: left - n, first: false });
                }
                Packet::build(&repr, n as usize, |buf| match buf.is_empty() {
                    true => Ok(()),
                    false => read(&core.fw.icm, &*core.memory, who, rkey, va, buf, Access::RemoteRead),
                })
            }
        };
        let packet = match packet {
            Ok(packet) => packet,
            Err(fault) => {
                // The region went away between the request and its turn.
                core.diagnose(now, format_args!("QP {}: response to a read: {fault}", self.qpn));
                repr.operation = Operation::Acknowledge;
                repr.aeth = ack(aeth::NAK | aeth::REMOTE_ACCESS_ERROR, self.responder.msn);
                rest = None;
                Packet::build(&repr, 0, |_| Ok::<(), Fault>(())).ok()?
            }
        };
        if let Some(rest) = rest {
            self.responder.queue.push_front(rest);
        }
        let at = core.units.transmit.admit(now, core.timing.transmit(packet.len()));
        core.transmit(at, repr.operation, packet);
        Some(at)
    }
}

impl Hca {
    /// A queue pair's turn to answer: one packet leaves. Answers still leave in the error state.
    pub(crate) fn response_turn(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        qp.responder.turn = false;
        let Some(at) = qp.send_response(&mut self.core, now) else { return };
        if !qp.responder.queue.is_empty() && !std::mem::replace(&mut qp.responder.turn, true) {
            self.core.schedule(at, HcaEvent::ResponseTurn(qpn));
        }
    }
}
