//! On-demand paging: a queue pair that meets a page that is not present waits for the driver.
//!
//! The requester stops at the packet whose data it can't gather, or whose response it can't scatter; the
//! responder answers RNR NAK. One event tells the driver, PAGE_FAULT_RESUME lets the queue pair go on where
//! it stopped, or fail. Until then nothing later is done. A fault dies with its queue pair's reset, error or
//! destruction. The event's token is the queue pair's number: each side stops at one fault at a time.
//!
//! Source: PRM "PAGE_FAULT_RESUME", "Page fault event"; the mlx5 driver (field use); RNR NAK: IBTA 9.7.5.2.8.

use hca_spec::caps::{Odp, odp};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::{Eqe, EventType, page_fault as kind};
use hca_spec::ids::{Mkey, Psn, Qpn};
use hca_spec::layout::Field;
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{Operation, aeth};
use hca_spec::wqe::SendOpcode;

use super::QueuePair;
use super::responder::{Current, Refusal};
use super::wqe::Wqe;
use crate::adapter::Hca;
use crate::adapter::core::Core;
use crate::engines::mkey::Fault;
use crate::ground::time::Ps;
use crate::wire::Repr;

/// Where a requester met a page that is not present.
#[derive(Debug, Clone, Copy)]
pub(super) struct Met {
    /// [`kind::SEND_OR_WRITE`] or [`kind::READ_OR_ATOMIC`].
    pub(super) kind: u8,
    pub(super) psn: Psn,
    /// The WQE's.
    pub(super) index: u16,
    pub(super) opcode: SendOpcode,
    /// Bytes of the message before the packet.
    pub(super) committed: u64,
}

/// Why the requester waits.
#[derive(Debug)]
pub(super) struct RequesterFault {
    kind: u8,
    /// The packet that met the page.
    at: Psn,
    /// From here on nothing is sent and no answer taken.
    from: Psn,
    /// The datagram that met the page. Its WQE is still in the queue.
    datagram: Option<Datagram>,
}

#[derive(Debug)]
struct Datagram {
    index: u16,
    opcode: SendOpcode,
    /// Where the queue goes on after it.
    next_head: u16,
}

impl RequesterFault {
    /// Whether packet `psn` has to wait.
    pub(super) fn holds(&self, psn: Psn) -> bool {
        self.datagram.is_some() || psn.since(self.from) >= 0
    }
}

/// Why the responder waits.
#[derive(Debug)]
pub(super) struct ResponderFault {
    kind: u8,
    /// The request packet, or the response packet of a read, that met the page.
    psn: Psn,
    /// The driver has dealt with it: the peer has to send that packet again.
    resumed: bool,
}

/// What the peer asked for when the responder met a page that is not present.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) psn: Psn,
    pub(super) rkey: Mkey,
    /// Start and length of the whole operation.
    pub(super) va: u64,
    pub(super) length: u64,
    /// Bytes of it that are done.
    pub(super) committed: u64,
    /// Bytes of the packet.
    pub(super) packet: usize,
}

impl QueuePair {
    /// Whether a fault is one that this queue pair may wait for: its transport pages on demand for what is in
    /// `uses` ([`odp`]), and an event queue wants to know.
    fn may_wait(&self, core: &Core, fault: Fault, uses: u32) -> bool {
        let field: Field<Odp> = match self.service {
            ServiceType::Rc => Odp::RC,
            ServiceType::Xrc => Odp::XRC,
            ServiceType::Ud => Odp::UD,
            ServiceType::Dci | ServiceType::Dct => Odp::DC,
            _ => return false,
        };
        matches!(fault, Fault::Page { .. })
            && core.fw.paging().get(field) & uses != 0
            && core.event_queue_for(EventType::PageFault).is_some()
    }

    /// The event about a page that a WQE's data segments name.
    fn wqe_fault(&self, core: &Core, now: Ps, kind: u8, index: u16, committed: u64) -> Eqe {
        tracing::debug!(
            hca = core.name, %now,
            "QP {}: page fault of type {kind} at WQE {index}, {committed} bytes done", self.qpn
        );
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, kind::WQE.into()).set(Eqe::FAULT_TYPE, kind.into());
        eqe.set(Eqe::FAULT_COMMITTED, committed as u32).set(Eqe::FAULT_WQE_INDEX, index.into());
        eqe.set(Eqe::FAULT_WQE_TOKEN, self.qpn.0).set(Eqe::FAULT_QUEUE, self.qpn.0);
        eqe
    }

    /// A packet's data could not be gathered, or its response not be scattered. `true`: the queue pair waits
    /// from that packet on; `false`: it is an error.
    pub(super) fn wait_to_send(&mut self, core: &mut Core, now: Ps, fault: Fault, met: Met) -> bool {
        let Met { kind, psn, index, opcode, committed } = met;
        let uses = match opcode {
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm => odp::WRITE,
            SendOpcode::RdmaRead => odp::READ,
            SendOpcode::AtomicCs | SendOpcode::AtomicFa => odp::ATOMIC,
            _ => odp::SEND,
        };
        if !self.may_wait(core, fault, uses) {
            return false;
        }
        if let Some(pending) = &mut self.requester.fault {
            // Another page on the way: it is met again, and told, when the first is dealt with.
            if psn.since(pending.from) < 0 {
                pending.from = psn;
            }
        } else {
            self.requester.fault = Some(RequesterFault { kind, at: psn, from: psn, datagram: None });
            let mut eqe = self.wqe_fault(core, now, kind, index, committed);
            core.push_event(now, EventType::PageFault, &mut eqe);
        }
        self.requester.go_back(psn);
        true
    }

    /// A datagram's data could not be gathered: it stays in the queue until the pages are there. `head` is
    /// its place.
    pub(super) fn wait_to_send_datagram(
        &mut self,
        core: &mut Core,
        now: Ps,
        fault: Fault,
        wqe: &Wqe,
        head: u16,
    ) -> bool {
        if !self.may_wait(core, fault, odp::SEND) {
            return false;
        }
        let next_head = std::mem::replace(&mut self.sq.head, head);
        let datagram = Some(Datagram { index: wqe.index, opcode: wqe.opcode, next_head });
        let psn = self.requester.next_psn;
        let kind = kind::SEND_OR_WRITE;
        self.requester.fault = Some(RequesterFault { kind, at: psn, from: psn, datagram });
        let mut eqe = self.wqe_fault(core, now, kind, wqe.index, 0);
        core.push_event(now, EventType::PageFault, &mut eqe);
        true
    }

    fn resume_requester(&mut self, core: &mut Core, now: Ps, fault: RequesterFault, error: bool) {
        match fault.datagram {
            _ if !error => {}
            Some(datagram) => {
                self.sq.head = datagram.next_head;
                let syndrome = Syndrome::LocalProtection;
                self.complete_send_error(core, now, datagram.index, datagram.opcode, syndrome);
                self.fail_sends(core, now, None);
            }
            None => _ = self.fail_message(core, now, fault.at, Syndrome::LocalProtection),
        }
        if self.sends() {
            self.ask_turn(core, now);
        }
    }

    /// Whether a request is looked at in spite of a page fault. What comes after the packet that met the page
    /// is dropped in silence until the peer has sent that one again; what came before it is a duplicate.
    pub(super) fn passes_page_fault(&mut self, core: &mut Core, now: Ps, repr: &Repr) -> bool {
        let Some(fault) = &self.responder.fault else { return true };
        let (psn, distance) = (fault.psn, repr.psn.since(fault.psn));
        if distance > 0 {
            return false;
        }
        if fault.resumed {
            self.responder.fault = None;
            return true;
        }
        if distance == 0 {
            self.not_ready(core, now, psn);
            return false;
        }
        let answered =
            matches!(repr.operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd);
        if !answered {
            // The responder may have gone on beyond the read that it can't answer.
            self.answer(core, now, psn.prev(), aeth::ACK | aeth::CREDITS_INVALID);
        }
        answered
    }

    fn not_ready(&mut self, core: &mut Core, now: Ps, psn: Psn) {
        self.answer(core, now, psn, aeth::RNR_NAK | self.params.min_rnr_nak);
    }

    /// Notes that the responder waits. `true`: the driver has to be told.
    fn stop_responder(&mut self, kind: u8, psn: Psn) -> bool {
        match &mut self.responder.fault {
            Some(pending) if !pending.resumed => {
                if psn.since(pending.psn) < 0 {
                    pending.psn = psn;
                }
                false
            }
            fault => {
                *fault = Some(ResponderFault { kind, psn, resumed: false });
                true
            }
        }
    }

    fn raise_rdma_fault(&self, core: &mut Core, now: Ps, kind: u8, asked: Asked) {
        tracing::debug!(hca = core.name, %now, "QP {}: page fault of type {kind}: {asked:x?}", self.qpn);
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, kind::RDMA.into()).set(Eqe::FAULT_TYPE, kind.into());
        eqe.set(Eqe::FAULT_COMMITTED, asked.committed as u32).set(Eqe::FAULT_RKEY, asked.rkey.0);
        eqe.set(Eqe::FAULT_PACKET, asked.packet as u32).set(Eqe::FAULT_LENGTH, asked.length as u32);
        eqe.set(Eqe::FAULT_ADDRESS, asked.va).set(Eqe::FAULT_QUEUE, self.qpn.0);
        core.push_event(now, EventType::PageFault, &mut eqe);
    }

    /// A request met a page that is not present: the peer shall send it again. Otherwise the refusal is given
    /// back.
    pub(super) fn wait_to_execute(
        &mut self,
        core: &mut Core,
        now: Ps,
        repr: &Repr,
        packet: usize,
        refusal: Refusal,
    ) -> Option<Refusal> {
        let waits = match refusal {
            Refusal::Local(_, fault) => self.wait_to_receive(core, now, repr, packet, fault),
            Refusal::Access(fault) => self.wait_to_be_written(core, now, repr, packet, fault),
            _ => false,
        };
        if !waits {
            return Some(refusal);
        }
        self.not_ready(core, now, repr.psn);
        None
    }

    fn wait_to_receive(
        &mut self,
        core: &mut Core,
        now: Ps,
        repr: &Repr,
        packet: usize,
        fault: Fault,
    ) -> bool {
        let Some(Current::Send { receive, offset }) = &self.responder.current else { return false };
        let (index, offset) = (receive.index, *offset);
        let shared = receive.xrc.map(|x| x.srqn).or(self.rq.shared());
        let (kind, uses) = match shared {
            Some(_) => (kind::SHARED_RECEIVE, odp::SRQ_RECEIVE),
            None => (kind::RECEIVE, odp::RECEIVE),
        };
        if !self.may_wait(core, fault, uses) {
            return false;
        }
        if repr.operation.starts_message()
            && let Some(Current::Send { receive, .. }) = self.responder.current.take()
        {
            self.responder.spare = Some(receive);
        }
        if self.stop_responder(kind, repr.psn) {
            let mut eqe = self.wqe_fault(core, now, kind, index, offset);
            eqe.set(Eqe::FAULT_QUEUE, shared.map_or(self.qpn.0, |s| s.0));
            eqe.set(Eqe::FAULT_PACKET, packet as u32);
            core.push_event(now, EventType::PageFault, &mut eqe);
        }
        true
    }

    fn wait_to_be_written(
        &mut self,
        core: &mut Core,
        now: Ps,
        repr: &Repr,
        packet: usize,
        fault: Fault,
    ) -> bool {
        let psn = repr.psn;
        let asked = match (&self.responder.current, &repr.reth, &repr.atomic) {
            (_, _, Some(a)) => Asked { psn, rkey: a.rkey, va: a.va, length: 8, committed: 0, packet: 8 },
            (_, Some(r), _) => {
                Asked { psn, rkey: r.rkey, va: r.va, length: r.len.into(), committed: 0, packet }
            }
            (Some(Current::Write { va, rkey, left, total, .. }), _, _) => {
                let committed = total.saturating_sub(*left);
                let va = va.wrapping_sub(committed);
                Asked { psn, rkey: *rkey, va, length: *total, committed, packet }
            }
            _ => return false,
        };
        let uses = if repr.atomic.is_some() { odp::ATOMIC } else { odp::WRITE };
        if !self.may_wait(core, fault, uses) {
            return false;
        }
        if self.stop_responder(kind::RDMA_WRITE, psn) {
            self.raise_rdma_fault(core, now, kind::RDMA_WRITE, asked);
        }
        true
    }

    /// A response to a read met a page that is not present: the peer shall ask again from that packet on.
    /// What waits behind it will be asked for again as well.
    pub(super) fn wait_to_answer(&mut self, core: &mut Core, now: Ps, fault: Fault, asked: Asked) -> bool {
        if !self.state.receives() || !self.may_wait(core, fault, odp::READ) {
            return false;
        }
        if self.stop_responder(kind::RDMA_READ, asked.psn) {
            self.raise_rdma_fault(core, now, kind::RDMA_READ, asked);
        }
        self.responder.queue.clear();
        true
    }

    fn resume_responder(&mut self, core: &mut Core, now: Ps, kind: u8, error: bool) {
        let Some(fault) = self.responder.fault.take_if(|f| f.kind == kind && !f.resumed) else { return };
        match error {
            true => self.fail_responder(core, now, &fault),
            false => self.responder.fault = Some(ResponderFault { resumed: true, ..fault }),
        }
    }

    fn fail_responder(&mut self, core: &mut Core, now: Ps, fault: &ResponderFault) {
        if fault.kind & kind::BY_RDMA == 0 {
            self.answer(core, now, fault.psn, aeth::NAK | aeth::REMOTE_OPERATIONAL_ERROR);
            return self.receive_failed(core, now, Syndrome::LocalProtection);
        }
        self.answer(core, now, fault.psn, aeth::NAK | aeth::REMOTE_ACCESS_ERROR);
        self.fail(core, now, None);
        self.raise(core, now, EventType::AccessError);
    }
}

impl Hca {
    /// The driver has dealt with a fault. One that is not there any more, or another one by now, is no error:
    /// the driver can't know.
    pub(crate) fn page_fault_resumed(&mut self, now: Ps, qpn: Qpn, kind: u8, error: bool) {
        let core = &mut self.core;
        tracing::debug!(hca = core.name, %now, "QP {qpn}: page fault of type {kind} is dealt with, error: {error}");
        // All connections of a DC target have its number: one that waits for another page meets it again.
        for (_, link) in self.links.iter_mut().filter(|(peer, _)| peer.dctn == qpn) {
            link.resume_responder(core, now, kind, error);
        }
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        if let Some(fault) = qp.requester.fault.take_if(|f| f.kind == kind) {
            qp.resume_requester(core, now, fault, error);
        }
        qp.resume_responder(core, now, kind, error);
    }
}
