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
use hca_spec::ids::{Psn, Qpn};
use hca_spec::layout::Field;
use hca_spec::qpc::ServiceType;
use hca_spec::wqe::SendOpcode;

use super::QueuePair;
use super::wqe::Wqe;
use crate::core::Core;
use crate::hca::Hca;
use crate::mkey::Fault;
use crate::time::Ps;

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

impl QueuePair {
    /// Whether a fault is one that this queue pair may wait for: its transport pages on demand for what is in
    /// `uses` ([`odp`]), and an event queue wants to know.
    fn may_wait(&self, core: &Core, fault: Fault, uses: u32) -> bool {
        let field: Field<Odp> = match self.service {
            ServiceType::Rc => Odp::RC,
            ServiceType::Xrc => Odp::XRC,
            ServiceType::Ud => Odp::UD,
            _ => return false,
        };
        matches!(fault, Fault::Page { .. })
            && core.fw.paging().get(field) & uses != 0
            && core.event_queue_for(EventType::PageFault).is_some()
    }

    fn raise_wqe_fault(&self, core: &mut Core, now: Ps, kind: u8, queue: u32, index: u16, committed: u64) {
        tracing::debug!(
            hca = core.name, %now,
            "QP {}: page fault of type {kind} at WQE {index} of queue {queue:#x}, {committed} bytes done", self.qpn
        );
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, kind::WQE.into()).set(Eqe::FAULT_TYPE, kind.into());
        eqe.set(Eqe::FAULT_COMMITTED, committed as u32).set(Eqe::FAULT_WQE_INDEX, index.into());
        eqe.set(Eqe::FAULT_WQE_TOKEN, self.qpn.0).set(Eqe::FAULT_QUEUE, queue);
        core.push_event(now, EventType::PageFault, &mut eqe);
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
            self.raise_wqe_fault(core, now, kind, self.qpn.0, index, committed);
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
        self.raise_wqe_fault(core, now, kind, self.qpn.0, wqe.index, 0);
        true
    }

    fn resume_requester(&mut self, core: &mut Core, now: Ps, fault: RequesterFault, error: bool) {
        match fault.datagram {
            _ if !error => {}
            Some(datagram) => {
                self.sq.head = datagram.next_head;
                let syndrome = Syndrome::LocalProtection;
                self.complete_send_error(core, now, datagram.index, datagram.opcode, syndrome);
                self.fail(core, now, None);
            }
            None => _ = self.fail_message(core, now, fault.at, Syndrome::LocalProtection),
        }
        if self.sends() {
            self.ask_turn(core, now);
        }
    }
}

impl Hca {
    /// The driver has dealt with a fault. One that is not there any more, or another one by now, is no error:
    /// the driver can't know.
    pub(crate) fn page_fault_resumed(&mut self, now: Ps, qpn: Qpn, kind: u8, error: bool) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        let core = &mut self.core;
        tracing::debug!(hca = core.name, %now, "QP {qpn}: page fault of type {kind} is dealt with, error: {error}");
        if let Some(fault) = qp.requester.fault.take_if(|f| f.kind == kind) {
            qp.resume_requester(core, now, fault, error);
        }
    }
}
