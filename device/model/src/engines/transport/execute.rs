//! Executing a request: the checks of its packets and keys, and what it does to memory.
//!
//! Source: IBTA 9.7.4 (request validation), table 56; XRC: IBTA annex A14.

use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::qpc::ServiceType;
use hca_spec::wire::Operation;

use super::QueuePair;
use super::pieces::scatter;
use super::recv::{Receive, XrcSrq};
use super::responder::{Current, Refusal, Resource};
use super::umr::invalidate_remote;
use crate::adapter::core::Core;
use crate::engines::mkey::{Access, Accessor, check, read, write};
use crate::ground::time::Ps;
use crate::wire::{AtomicRepr, Repr, RethRepr};

/// Through which domain a request reaches memory, and from where it takes receive WQEs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) who: Accessor,
    pub(super) xrc: Option<XrcSrq>,
}

impl QueuePair {
    /// Of XRC, every request names an SRQ, and that decides (IBTA A14.5.3).
    pub(super) fn target(&self, core: &Core, repr: &Repr) -> Result<Target, Refusal> {
        let who = self.accessor();
        if self.service != ServiceType::Xrc {
            return Ok(Target { who, xrc: None });
        }
        let srq = repr.xrceth.and_then(|srqn| core.xrc_srq(srqn, self.params.xrcd));
        let srq =
            srq.ok_or(Refusal::Invalid("the XRCETH names no XRC SRQ of the queue pair's XRC domain"))?;
        Ok(Target { who: Accessor { pd: srq.pd, ..who }, xrc: Some(srq) })
    }

    /// Executes a request packet with the expected PSN.
    pub(super) fn execute(
        &mut self,
        core: &mut Core,
        now: Ps,
        repr: &Repr,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        use Operation as Op;
        self.check_sequence(repr, payload)?;
        let target = self.target(core, repr)?;
        match repr.operation {
            Op::SendFirst | Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInval => {
                let receive = self.take_receive(core, now, target.xrc)?;
                self.responder.current = Some(Current::Send { receive, offset: 0 });
                self.receive_payload(core, now, target, repr, payload)?;
            }
            Op::SendMiddle | Op::SendLast | Op::SendLastImm | Op::SendLastInval => {
                self.receive_payload(core, now, target, repr, payload)?;
            }
            Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm => {
                let reth = repr.reth.ok_or(Refusal::Invalid("no RETH"))?;
                if !self.params.remote_write {
                    return Err(Refusal::Invalid("remote write is not enabled on the queue pair"));
                }
                let total = u64::from(reth.len);
                self.check_length(reth.len)?;
                if total > 0 {
                    check(core, target.who, reth.rkey, reth.va, total as usize, Access::RemoteWrite)
                        .map_err(Refusal::Access)?;
                }
                let only = repr.operation != Op::WriteFirst;
                if (only && total != payload.len() as u64) || (!only && total <= payload.len() as u64) {
                    return Err(Refusal::Invalid("the RETH's length does not fit the packets"));
                }
                let before = self.responder.current.take();
                let srqn = target.xrc.map(|s| s.srqn);
                self.responder.current =
                    Some(Current::Write { va: reth.va, rkey: reth.rkey, left: total, total, srqn });
                if let Err(refusal) = self.write_payload(core, now, target, repr, payload) {
                    self.responder.current = before;
                    return Err(refusal);
                }
            }
            Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm => {
                self.write_payload(core, now, target, repr, payload)?
            }
            Op::ReadRequest => {
                let reth = repr.reth.ok_or(Refusal::Invalid("no RETH"))?;
                if self.responder.reads_waiting(false) >= self.params.rra_max {
                    return Err(Refusal::Invalid(
                        "more reads outstanding than the queue pair's responder resources",
                    ));
                }
                self.check_read(core, target, &reth)?;
                let packets = u64::from(reth.len).div_ceil(self.params.mtu as u64).max(1);
                let next = repr.psn.add(packets as u32);
                self.responder.epsn = next;
                self.responder.next_msn();
                self.remember(Resource::Read { first: repr.psn, next });
                self.queue_read(core, now, target.who, repr.psn, &reth, false);
                return Ok(());
            }
            Op::CompareSwap | Op::FetchAdd => {
                let atomic = repr.atomic.ok_or(Refusal::Invalid("no AtomicETH"))?;
                let original = self.execute_atomic(core, target, repr.operation, &atomic)?;
                let cqn = self.params.cqn_rcv;
                self.tell_signature_errors(core, now, cqn);
                self.remember(Resource::Atomic { psn: repr.psn, original });
                let msn = self.responder.next_msn();
                let ready = core.units.atomic(now, self.qpn.0, atomic.va);
                self.queue_atomic(core, now, repr.psn, msn, (original, ready));
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
        let srqn = self.responder.current.as_ref().map(Current::srqn);
        if srqn.is_some_and(|srqn| srqn != repr.xrceth) {
            return Err(Refusal::Invalid("the packets of a message name different XRC SRQs"));
        }
        let full =
            matches!(repr.operation, Op::SendFirst | Op::SendMiddle | Op::WriteFirst | Op::WriteMiddle);
        // A last packet has one byte or more: without any, the packet before would have been the last.
        let last = self.responder.current.is_some();
        let length_ok = match payload.len() {
            0 => !full && !last,
            n => n == self.params.mtu || (!full && n < self.params.mtu),
        };
        if length_ok { Ok(()) } else { Err(Refusal::Invalid("payload length does not fit the path MTU")) }
    }

    fn receive_payload(
        &mut self,
        core: &mut Core,
        now: Ps,
        target: Target,
        repr: &Repr,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let Some(Current::Send { receive, offset }) = &self.responder.current else {
            return Err(Refusal::Invalid("no message in progress"));
        };
        let (who, end) = (self.local(receive), *offset + payload.len() as u64);
        if end > receive.room {
            return Err(Refusal::Length);
        }
        // A small message may go into the completion: it then is there whole, and not in the buffers.
        let only =
            matches!(repr.operation, Operation::SendOnly | Operation::SendOnlyImm | Operation::SendOnlyInval);
        let cqn = self.receive_cqe(CqeOpcode::RespSend, receive).0;
        let inline = only && payload.len() <= core.scatter_room(cqn, self.params.scatter_response);
        if !inline {
            scatter(core, who, &receive.pieces, *offset, payload)
                .map_err(|fault| Refusal::Local(Syndrome::LocalProtection, fault))?;
            self.tell_signature_errors(core, now, cqn);
        }
        if let Some(Current::Send { offset, .. }) = &mut self.responder.current {
            *offset = end;
        }
        let opcode = match repr.operation {
            Operation::SendFirst | Operation::SendMiddle => return Ok(()),
            Operation::SendLastImm | Operation::SendOnlyImm => CqeOpcode::RespSendImm,
            Operation::SendLastInval | Operation::SendOnlyInval => CqeOpcode::RespSendInv,
            _ => CqeOpcode::RespSend,
        };
        let mut word = repr.imm.unwrap_or(0);
        if let Some(key) = repr.ieth {
            word = key.0;
            invalidate_remote(&mut core.fw.icm, target.who, key).map_err(Refusal::Access)?;
        }
        if let Some(Current::Send { receive, .. }) = self.responder.current.take() {
            self.responder.next_msn();
            let data = if inline { payload } else { &[] };
            self.complete_receive(core, now, opcode, &receive, end, word, repr, data);
        }
        Ok(())
    }

    fn write_payload(
        &mut self,
        core: &mut Core,
        now: Ps,
        target: Target,
        repr: &Repr,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let Some(Current::Write { va, rkey, left, total, srqn }) = &self.responder.current else {
            return Err(Refusal::Invalid("no message in progress"));
        };
        let (va, rkey, left, total, srqn) = (*va, *rkey, *left, *total, *srqn);
        let n = payload.len() as u64;
        let last = !matches!(repr.operation, Operation::WriteFirst | Operation::WriteMiddle);
        if n > left || (last && n != left) {
            return Err(Refusal::Invalid("the packets do not add up to the RETH's length"));
        }
        // The immediate consumes a receive WQE: it must be there before anything is written.
        let receive = match repr.imm {
            Some(_) => Some(self.take_receive(core, now, target.xrc)?),
            None => None,
        };
        if n > 0 {
            let written = write(core, target.who, rkey, va, payload, Access::RemoteWrite);
            if let Err(fault) = written {
                self.responder.spare = receive;
                return Err(Refusal::Access(fault));
            }
        }
        let cqn = self.params.cqn_rcv;
        self.tell_signature_errors(core, now, cqn);
        self.responder.current =
            Some(Current::Write { va: va.wrapping_add(n), rkey, left: left - n, total, srqn });
        if last {
            self.responder.current = None;
            self.responder.next_msn();
        }
        if let Some(receive) = receive {
            let imm = repr.imm.unwrap_or(0);
            self.complete_receive(core, now, CqeOpcode::RespWrImm, &receive, total, imm, repr, &[]);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a CQE")]
    fn complete_receive(
        &mut self,
        core: &mut Core,
        now: Ps,
        opcode: CqeOpcode,
        receive: &Receive,
        bytes: u64,
        word: u32,
        repr: &Repr,
        data: &[u8],
    ) {
        let (cqn, mut cqe) = self.receive_cqe(opcode, receive);
        cqe.set(Cqe::BYTE_CNT, bytes as u32).set(Cqe::IMM_INVAL_PKEY, word);
        cqe.set(Cqe::SE, repr.solicited.into())
            .set(Cqe::SLID, repr.slid.0.into())
            .set(Cqe::SL, repr.sl.into());
        cqe.set(Cqe::GRH, repr.grh.is_some().into());
        if self.service == ServiceType::Dct {
            cqe.set(Cqe::RQPN, self.params.remote_qpn.0);
        }
        self.complete_with(core, now, cqn, cqe, data);
    }

    /// Longer messages would have more packets than half the PSN space.
    fn check_length(&self, len: u32) -> Result<(), Refusal> {
        match u64::from(len) > 1 << self.params.log_msg_max {
            true => Err(Refusal::Invalid("the message is longer than the queue pair's log_msg_max")),
            false => Ok(()),
        }
    }

    pub(super) fn check_read(&self, core: &Core, target: Target, reth: &RethRepr) -> Result<(), Refusal> {
        if !self.params.remote_read {
            return Err(Refusal::Invalid("remote read is not enabled on the queue pair"));
        }
        self.check_length(reth.len)?;
        if reth.len == 0 {
            return Ok(());
        }
        check(core, target.who, reth.rkey, reth.va, reth.len as usize, Access::RemoteRead)
            .map_err(Refusal::Access)
    }

    fn execute_atomic(
        &self,
        core: &Core,
        target: Target,
        operation: Operation,
        atomic: &AtomicRepr,
    ) -> Result<u64, Refusal> {
        if !self.params.remote_atomic {
            return Err(Refusal::Invalid("remote atomics are not enabled on the queue pair"));
        }
        if !atomic.va.is_multiple_of(8) {
            return Err(Refusal::Invalid("the address of an atomic must be a multiple of 8"));
        }
        let mut word = [0; 8];
        read(core, target.who, atomic.rkey, atomic.va, &mut word, Access::RemoteAtomic)
            .map_err(Refusal::Access)?;
        // Atomic capability "endianness mode 1": memory operands are in host byte order.
        let original = u64::from_le_bytes(word);
        let new = match operation {
            Operation::FetchAdd => original.wrapping_add(atomic.swap_add),
            _ if original == atomic.compare => atomic.swap_add,
            _ => original,
        };
        let new = new.to_le_bytes();
        write(core, target.who, atomic.rkey, atomic.va, &new, Access::RemoteAtomic)
            .map_err(Refusal::Access)?;
        Ok(original)
    }
}
