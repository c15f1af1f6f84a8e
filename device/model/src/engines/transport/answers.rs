//! The responder's way back: what waits to be answered, and the packets of the answers.
//!
//! Source: IBTA 9.7.5 (responses), 9.7.5.1.1 (acknowledge coalescing).

use hca_spec::ids::{Mkey, Psn, Qpn};
use hca_spec::wire::{Operation, aeth};

use super::page_fault::Asked;
use super::{Dynamic, QueuePair, credits};
use crate::adapter::Hca;
use crate::adapter::core::{Core, HcaEvent};
use crate::engines::mkey::{Access, Accessor, Fault, read, span};
use crate::ground::event::Event;
use crate::ground::time::Ps;
use crate::wire::{AethRepr, Packet, RethRepr};

/// An answer that waits for its turn.
#[derive(Debug)]
pub(super) enum Response {
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
    },
    /// `again`: the request is a duplicate, and has no responder resource of its own.
    Read {
        who: Accessor,
        psn: Psn,
        syndrome: u32,
        msn: u32,
        va: u64,
        rkey: Mkey,
        left: u64,
        first: bool,
        again: bool,
    },
}

impl QueuePair {
    pub(super) fn queue_read(
        &mut self,
        core: &mut Core,
        now: Ps,
        who: Accessor,
        psn: Psn,
        reth: &RethRepr,
        again: bool,
    ) {
        let (syndrome, msn, left) = (self.positive(core), self.responder.msn, reth.len.into());
        let (va, rkey) = (reth.va, reth.rkey);
        let read = Response::Read { who, psn, syndrome, msn, va, rkey, left, first: true, again };
        self.queue_response(core, now, read);
    }

    /// Queues the answer to an atomic, which is executed at `ready`.
    pub(super) fn queue_atomic(
        &mut self,
        core: &mut Core,
        now: Ps,
        psn: Psn,
        msn: u32,
        (original, ready): (u64, Ps),
    ) {
        let syndrome = self.positive(core);
        self.queue_response(core, now, Response::Atomic { psn, syndrome, msn, original, ready });
    }

    /// Queues an ACK (to which the credits are added) or a NAK.
    pub(super) fn answer(&mut self, core: &mut Core, now: Ps, psn: Psn, syndrome: u32) {
        let msn = self.responder.msn;
        let positive = syndrome & aeth::KIND_MASK == aeth::ACK;
        let syndrome = if positive { self.positive(core) } else { syndrome };
        core.note(now, Event::Answer { qpn: self.qpn, psn, syndrome: syndrome as u8 });
        if let Some(Response::Ack { psn: last, syndrome: was, msn: m }) = self.responder.queue.back_mut()
            && positive
            && *was & aeth::KIND_MASK == aeth::ACK
            && psn.since(*last) >= 0
        {
            // An ACK that has not left yet is replaced by the later one: coalescing (IBTA 9.7.5.1.1).
            (*last, *was, *m) = (psn, syndrome, msn);
            return;
        }
        self.queue_response(core, now, Response::Ack { psn, syndrome, msn });
    }

    /// The syndrome of a positive answer: the credits that belong to the MSN of now.
    fn positive(&mut self, core: &Core) -> u32 {
        aeth::ACK | self.credits(core).map_or(aeth::CREDITS_INVALID, credits::encode)
    }

    fn queue_response(&mut self, core: &mut Core, now: Ps, response: Response) {
        self.responder.queue.push_back(response);
        if !std::mem::replace(&mut self.responder.turn, true) {
            core.schedule(now + core.timing.respond(), self.response_turn());
        }
    }

    fn response_turn(&self) -> HcaEvent {
        match &self.dynamic {
            Dynamic::Responder(link) => HcaEvent::DynamicTurn(link.peer),
            _ => HcaEvent::ResponseTurn(self.qpn),
        }
    }

    /// One response packet leaves. Answers still leave in the error state.
    pub(super) fn take_response_turn(&mut self, core: &mut Core, now: Ps) {
        self.responder.turn = false;
        let Some(at) = self.send_response(core, now) else { return };
        if !self.responder.queue.is_empty() && !std::mem::replace(&mut self.responder.turn, true) {
            core.await_turn(at, self.lane, self.response_turn());
        }
    }

    /// Sends one response packet. Returns when the next may follow.
    fn send_response(&mut self, core: &mut Core, now: Ps) -> Option<Ps> {
        let mut repr = self.connected_repr(core)?;
        let mtu = self.params.mtu as u64;
        let response = self.responder.queue.pop_front()?;
        let ack = |syndrome: u32, msn: u32| Some(AethRepr { syndrome: syndrome as u8, msn });
        let (mut rest, mut asked) = (None, None);
        let (mut executed, mut data) = (now, None);
        let packet = match response {
            Response::Ack { psn, syndrome, msn } => {
                (repr.operation, repr.psn, repr.aeth) = (Operation::Acknowledge, psn, ack(syndrome, msn));
                Packet::build(&repr, 0, |_| Ok(()))
            }
            Response::Atomic { psn, syndrome, msn, original, ready } => {
                executed = ready;
                (repr.operation, repr.psn) = (Operation::AtomicAcknowledge, psn);
                repr.aeth = ack(syndrome, msn);
                repr.atomic_ack = Some(original);
                Packet::build(&repr, 0, |_| Ok(()))
            }
            Response::Read { who, psn, syndrome, msn, va, rkey, left, first, again } => {
                let n = left.min(mtu);
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
                let packet = n as usize;
                data = (n > 0).then(|| span(&core.fw.icm, rkey, va, packet));
                asked = Some(Asked { psn, rkey, va, length: left, committed: 0, packet });
                if n < left {
                    let (psn, va) = (psn.next(), va.wrapping_add(n));
                    rest = Some(Response::Read {
                        who,
                        psn,
                        syndrome,
                        msn,
                        va,
                        rkey,
                        left: left - n,
                        first: false,
                        again,
                    });
                }
                Packet::build_with(&repr, n as usize, |buf| match buf.is_empty() {
                    true => Ok(()),
                    false => read(core, who, rkey, va, buf, Access::RemoteRead),
                })
            }
        };
        let cqn = self.params.cqn_rcv;
        self.tell_signature_errors(core, now, cqn);
        let packet = match packet {
            Ok(packet) => packet,
            Err(fault) => {
                repr.operation = Operation::Acknowledge;
                let syndrome = match asked {
                    Some(asked) if self.wait_to_answer(core, now, fault, asked) => {
                        aeth::RNR_NAK | self.params.min_rnr_nak
                    }
                    _ => {
                        // The region went away between the request and its turn.
                        core.diagnose(now, format_args!("QP {}: response to a read: {fault}", self.qpn));
                        aeth::NAK | aeth::REMOTE_ACCESS_ERROR
                    }
                };
                repr.aeth = ack(syndrome, self.responder.msn);
                rest = None;
                data = None;
                Packet::build(&repr, 0, |_| Ok::<(), Fault>(())).ok()?
            }
        };
        if let Some(rest) = rest {
            self.responder.queue.push_front(rest);
        }
        let service = match repr.operation {
            Operation::Acknowledge => core.timing.transmit_ack(),
            _ => core.timing.transmit(),
        };
        let free = core.units.send(now, self.qpn.0, service);
        let ready = core.units.gather(now, self.qpn.0, free, data.into_iter()).max(executed);
        let departs = core.units.answer_departs(self.qpn.0, ready);
        let (qpn, psn, operation, bytes) = (self.qpn, repr.psn, repr.operation, packet.len() as u32);
        core.note_job(now, free, service, Event::Respond { qpn, psn, operation, bytes });
        self.lane = core.launch(departs, repr.operation, packet);
        Some(free)
    }
}

impl Hca {
    /// A queue pair's turn to answer.
    pub(crate) fn response_turn(&mut self, now: Ps, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn.0) {
            qp.take_response_turn(&mut self.core, now);
        }
    }
}
