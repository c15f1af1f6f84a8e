//! On-demand paging: a queue pair that meets a page that is not present waits for the driver.
//!
//! The requester stops at the packet whose data it can't gather, or whose response it can't scatter; the
//! responder answers RNR NAK. One event tells the driver, PAGE_FAULT_RESUME lets the queue pair go on where
//! it stopped, or fail. Until then nothing later is done. A fault dies with its queue pair's reset, error or
//! destruction. The event's token is the queue pair's number: each side stops at one fault at a time.
//!
//! Source: PRM "PAGE_FAULT_RESUME", "Page fault event"; the mlx5 driver (field use); RNR NAK: IBTA 9.7.5.2.8.

use hca_spec::caps::odp;
use hca_spec::eqe::{Eqe, page_fault as kind};
use hca_spec::ids::{Mkey, Psn};
use hca_spec::wire::Operation;
use hca_spec::wqe::SendOpcode;

use super::QueuePair;
use super::responder::Current;
use super::wqe::Wqe;
use crate::engines::mkey::Fault;
use crate::engines::view::View;
use crate::wire::Repr;

/// Where a requester met a page that is not present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultedWqe {
    /// [`kind::SEND_OR_WRITE`] or [`kind::READ_OR_ATOMIC`].
    pub(crate) kind: u8,
    pub(crate) psn: Psn,
    /// The WQE's.
    pub(crate) index: u16,
    pub(crate) opcode: SendOpcode,
    /// Bytes of the message before the packet.
    pub(crate) committed: u64,
}

/// Why the requester waits.
#[derive(Debug)]
pub(crate) struct RequesterFault {
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
    pub(crate) fn holds(&self, psn: Psn) -> bool {
        self.datagram.is_some() || psn.since(self.from) >= 0
    }
}

/// Why the responder waits.
#[derive(Debug)]
pub(crate) struct ResponderFault {
    kind: u8,
    /// The request packet, or the response packet of a read, that met the page.
    psn: Psn,
    /// The driver has dealt with it: the peer has to send that packet again.
    resumed: bool,
}

/// What the peer asked for when the responder met a page that is not present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RdmaAccess {
    pub(crate) psn: Psn,
    pub(crate) rkey: Mkey,
    /// Start and length of the whole operation.
    pub(crate) va: u64,
    pub(crate) length: u64,
    /// Bytes of it that are done.
    pub(crate) committed: u64,
    /// Bytes of the packet.
    pub(crate) packet: usize,
}

/// What becomes of something that met a page which is not present.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PageWait {
    /// It does not wait: the fault is an error.
    No,
    /// It waits, and the driver knows of a fault already.
    Silently,
    /// It waits, and the driver is told by this event.
    Telling(Box<Eqe>),
}

impl PageWait {
    fn telling(eqe: Eqe) -> Self {
        Self::Telling(Box::new(eqe))
    }
}

/// What a responder that waits for a page does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultCheck {
    /// It is looked at.
    Passes,
    /// It is dropped in silence: it comes after the packet that met the page.
    Dropped,
    /// It is the packet that met the page, which is not there yet: RNR NAK.
    NotReady(Psn),
    /// It is dropped, and everything up to this packet is acknowledged again.
    Acknowledged(Psn),
}

/// How a fault of the requester ends.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// It goes on.
    Continues,
    /// The datagram at that index fails, and the queue with it.
    Datagram { index: u16, opcode: SendOpcode },
    /// The message that owns this PSN fails.
    Message(Psn),
}

impl QueuePair {
    /// The event about a page that a WQE's data segments name.
    fn wqe_fault(&self, kind: u8, index: u16, committed: u64) -> Eqe {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, kind::WQE.into()).set(Eqe::FAULT_TYPE, kind.into());
        eqe.set(Eqe::FAULT_COMMITTED, committed as u32).set(Eqe::FAULT_WQE_INDEX, index.into());
        eqe.set(Eqe::FAULT_WQE_TOKEN, self.qpn.0).set(Eqe::FAULT_QUEUE, self.qpn.0);
        eqe
    }

    /// The event about a page that a request of the peer names.
    fn rdma_fault(&self, kind: u8, asked: RdmaAccess) -> Eqe {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, kind::RDMA.into()).set(Eqe::FAULT_TYPE, kind.into());
        eqe.set(Eqe::FAULT_COMMITTED, asked.committed as u32).set(Eqe::FAULT_RKEY, asked.rkey.0);
        eqe.set(Eqe::FAULT_PACKET, asked.packet as u32).set(Eqe::FAULT_LENGTH, asked.length as u32);
        eqe.set(Eqe::FAULT_ADDRESS, asked.va).set(Eqe::FAULT_QUEUE, self.qpn.0);
        eqe
    }

    fn waits_for(&self, view: &View<'_>, fault: Fault, uses: u32) -> bool {
        view.pages_on_demand(self.service, fault, uses)
    }

    /// A packet's data could not be gathered, or its response not be scattered: whether the queue pair waits from that packet
    /// on.
    pub(crate) fn waits_to_send(&mut self, view: &View<'_>, fault: Fault, met: FaultedWqe) -> PageWait {
        let FaultedWqe { kind, psn, index, opcode, committed } = met;
        // The driver has no WQE to look at.
        if self.requester.messages.iter().any(|m| m.contains(psn) && m.wqe.offload.is_some()) {
            return PageWait::No;
        }
        let uses = match opcode {
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm => odp::WRITE,
            SendOpcode::RdmaRead => odp::READ,
            opcode if opcode.is_atomic() => odp::ATOMIC,
            _ => odp::SEND,
        };
        if !self.waits_for(view, fault, uses) {
            return PageWait::No;
        }
        let waits = match &mut self.requester.fault {
            // Another page on the way: it is met again, and told, when the first is dealt with.
            Some(pending) => {
                if psn.since(pending.from) < 0 {
                    pending.from = psn;
                }
                PageWait::Silently
            }
            none => {
                *none = Some(RequesterFault { kind, at: psn, from: psn, datagram: None });
                PageWait::telling(self.wqe_fault(kind, index, committed))
            }
        };
        self.requester.go_back(psn);
        waits
    }

    /// A datagram's data could not be gathered: whether it stays in the queue until the pages are there. `head` is its place.
    pub(crate) fn waits_to_send_datagram(
        &mut self,
        view: &View<'_>,
        fault: Fault,
        wqe: &Wqe,
        head: u16,
    ) -> PageWait {
        if !self.waits_for(view, fault, odp::SEND) {
            return PageWait::No;
        }
        let next_head = std::mem::replace(&mut self.sq.head, head);
        let datagram = Some(Datagram { index: wqe.index, opcode: wqe.opcode, next_head });
        let psn = self.requester.next_psn;
        let kind = kind::SEND_OR_WRITE;
        self.requester.fault = Some(RequesterFault { kind, at: psn, from: psn, datagram });
        PageWait::telling(self.wqe_fault(kind, wqe.index, 0))
    }

    /// The driver has dealt with a fault of the requester, or says that it can't. `None`: there is no fault of that kind.
    pub(crate) fn resumes_requester(&mut self, kind: u8, error: bool) -> Option<Resumed> {
        let fault = self.requester.fault.take_if(|f| f.kind == kind)?;
        Some(match fault.datagram {
            _ if !error => Resumed::Continues,
            Some(Datagram { index, opcode, next_head }) => {
                self.sq.head = next_head;
                Resumed::Datagram { index, opcode }
            }
            None => Resumed::Message(fault.at),
        })
    }

    /// Whether a request is looked at in spite of a page fault. What comes after the packet that met the page
    /// is dropped in silence until the peer has sent that one again; what came before it is a duplicate.
    #[inline]
    pub(crate) fn check_fault(&mut self, repr: &Repr) -> FaultCheck {
        let Some(fault) = &self.responder.fault else { return FaultCheck::Passes };
        let (psn, distance) = (fault.psn, repr.psn.since(fault.psn));
        if distance > 0 {
            return FaultCheck::Dropped;
        }
        if fault.resumed {
            self.responder.fault = None;
            return FaultCheck::Passes;
        }
        if distance == 0 {
            return FaultCheck::NotReady(psn);
        }
        match repr.operation {
            Operation::ReadRequest => FaultCheck::Passes,
            operation if operation.is_atomic() => FaultCheck::Passes,
            // The responder may have gone on beyond the read that it can't answer.
            _ => FaultCheck::Acknowledged(psn.prev()),
        }
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

    /// The payload of a send met a page: whether the peer shall send it again.
    pub(crate) fn waits_to_receive(
        &mut self,
        view: &View<'_>,
        repr: &Repr,
        packet: usize,
        fault: Fault,
    ) -> PageWait {
        let Some(Current::Send { receive, offset }) = &self.responder.current else { return PageWait::No };
        // Of an entry of a list, the driver has no WQE to look at.
        if receive.is_entry() {
            return PageWait::No;
        }
        let (index, offset) = (receive.index, *offset);
        let shared = receive.xrc.map(|x| x.srqn).or(self.rq.shared());
        let (kind, uses) = match shared {
            Some(_) => (kind::SHARED_RECEIVE, odp::SRQ_RECEIVE),
            None => (kind::RECEIVE, odp::RECEIVE),
        };
        if !self.waits_for(view, fault, uses) {
            return PageWait::No;
        }
        if repr.operation.starts_message()
            && let Some(Current::Send { receive, .. }) = self.responder.current.take()
        {
            self.responder.spare = Some(receive);
        }
        if !self.stop_responder(kind, repr.psn) {
            return PageWait::Silently;
        }
        let mut eqe = self.wqe_fault(kind, index, offset);
        eqe.set(Eqe::FAULT_QUEUE, shared.map_or(self.qpn.0, |s| s.0));
        eqe.set(Eqe::FAULT_PACKET, packet as u32);
        PageWait::telling(eqe)
    }

    /// A write or an atomic met a page: whether the peer shall send it again.
    pub(crate) fn waits_to_be_written(
        &mut self,
        view: &View<'_>,
        repr: &Repr,
        packet: usize,
        fault: Fault,
    ) -> PageWait {
        let psn = repr.psn;
        let asked = match (&self.responder.current, &repr.reth, &repr.atomic) {
            (_, _, Some(a)) => {
                let (rkey, va, packet) = (a.rkey, a.va, a.size());
                RdmaAccess { psn, rkey, va, length: packet as u64, committed: 0, packet }
            }
            (_, Some(r), _) => {
                RdmaAccess { psn, rkey: r.rkey, va: r.va, length: r.len.into(), committed: 0, packet }
            }
            (Some(Current::Write { va, rkey, left, total, .. }), _, _) => {
                let committed = total.saturating_sub(*left);
                let va = va.wrapping_sub(committed);
                RdmaAccess { psn, rkey: *rkey, va, length: *total, committed, packet }
            }
            _ => return PageWait::No,
        };
        let uses = if repr.atomic.is_some() { odp::ATOMIC } else { odp::WRITE };
        if !self.waits_for(view, fault, uses) {
            return PageWait::No;
        }
        match self.stop_responder(kind::RDMA_WRITE, psn) {
            true => PageWait::telling(self.rdma_fault(kind::RDMA_WRITE, asked)),
            false => PageWait::Silently,
        }
    }

    /// A response to a read met a page that is not present: whether the peer shall ask again from that packet on.
    /// What waits behind it will be asked for again as well.
    pub(crate) fn waits_to_answer(&mut self, view: &View<'_>, fault: Fault, asked: RdmaAccess) -> PageWait {
        if !self.state.receives() || !self.waits_for(view, fault, odp::READ) {
            return PageWait::No;
        }
        let waits = match self.stop_responder(kind::RDMA_READ, asked.psn) {
            true => PageWait::telling(self.rdma_fault(kind::RDMA_READ, asked)),
            false => PageWait::Silently,
        };
        self.responder.queue.clear();
        waits
    }

    /// The driver has dealt with a fault of the responder, or says that it can't (`error`): then the request at this PSN
    /// fails; whether it was one of RDMA.
    pub(crate) fn resumes_responder(&mut self, kind: u8, error: bool) -> Option<(Psn, bool)> {
        let fault = self.responder.fault.take_if(|f| f.kind == kind && !f.resumed)?;
        if !error {
            self.responder.fault = Some(ResponderFault { resumed: true, ..fault });
            return None;
        }
        Some((fault.psn, fault.kind & kind::BY_RDMA != 0))
    }
}
