//! On-demand paging: a queue pair that meets a page that is not present waits for the driver.
//!
//! The requester stops at the packet whose data it can't gather, or whose response it can't scatter; the
//! responder answers RNR NAK. One event tells the driver, PAGE_FAULT_RESUME lets the queue pair go on where
//! it stopped, or fail. Until then nothing later is done. A fault dies with its queue pair's reset, error or
//! destruction. Each side stops at one fault at a time, so that a driver is told of two for a queue pair at most. In the transport
//! scheme the event names the work request or the peer's, and its token is the queue pair's number; in the memory scheme it names
//! pages ([`super::memory_fault`]).
//!
//! Source: PRM "PAGE_FAULT_RESUME", "Page fault event"; the mlx5 driver (field use); RNR NAK: IBTA 9.7.5.2.8.

use hca_firmware::DealtWith;
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
    /// What the driver repeats.
    told: DealtWith,
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
    /// What the driver repeats.
    told: DealtWith,
    /// Of a request of RDMA; else of a receive buffer.
    rdma: bool,
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

impl RdmaAccess {
    /// Bytes of the operation behind the packet.
    fn rest(&self) -> u64 {
        self.length.saturating_sub(self.committed).saturating_sub(self.packet as u64)
    }
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

    /// Bytes of a message of that length behind the packet that begins after `committed` ones.
    fn behind_packet(&self, length: u64, committed: u64) -> u64 {
        length.saturating_sub(committed).saturating_sub(self.params.mtu as u64)
    }

    fn waits_for(&self, view: &View<'_>, fault: Fault, uses: u32) -> bool {
        view.pages_on_demand(self.service, fault, uses)
    }

    /// A packet's data could not be gathered, or its response not be scattered: whether the queue pair waits from that packet
    /// on.
    pub(crate) fn waits_to_send(&mut self, view: &View<'_>, fault: Fault, met: FaultedWqe) -> PageWait {
        let FaultedWqe { kind, psn, index, opcode, committed } = met;
        let message = self.requester.message_of(psn);
        // The driver has no WQE to look at.
        if message.is_some_and(|m| m.wqe.offload.is_some()) && view.memory_faults().is_none() {
            return PageWait::No;
        }
        let length = message.map_or(0, |m| m.wqe.length);
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
            None => {
                let rest = self.behind_packet(length, committed);
                let of_queue = self.wqe_fault(kind, index, committed);
                let (told, eqe) = self.tell(view, (fault, rest), kind, of_queue);
                self.requester.fault = Some(RequesterFault { told, at: psn, from: psn, datagram: None });
                PageWait::telling(eqe)
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
        let (told, eqe) = self.tell(view, (fault, 0), kind, self.wqe_fault(kind, wqe.index, 0));
        self.requester.fault = Some(RequesterFault { told, at: psn, from: psn, datagram });
        PageWait::telling(eqe)
    }

    /// The driver has dealt with a fault of the requester, or says that it can't. `None`: there is no such fault.
    pub(crate) fn resumes_requester(&mut self, told: DealtWith, error: bool) -> Option<Resumed> {
        let fault = self.requester.fault.take_if(|f| f.told == told)?;
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

    /// Notes that the responder waits for what a request at this PSN needs. `of_queue`: the event of the transport scheme; `rest`:
    /// bytes of the message behind the packet.
    fn stop_responder(
        &mut self,
        view: &View<'_>,
        (fault, rest): (Fault, u64),
        (kind, psn): (u8, Psn),
        of_queue: Eqe,
    ) -> PageWait {
        if let Some(pending) = self.responder.fault.as_mut().filter(|pending| !pending.resumed) {
            if psn.since(pending.psn) < 0 {
                pending.psn = psn;
            }
            return PageWait::Silently;
        }
        let (told, eqe) = self.tell(view, (fault, rest), kind, of_queue);
        let rdma = kind & kind::BY_RDMA != 0;
        self.responder.fault = Some(ResponderFault { told, rdma, psn, resumed: false });
        PageWait::telling(eqe)
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
        if receive.is_entry() && view.memory_faults().is_none() {
            return PageWait::No;
        }
        let (index, offset) = (receive.index, *offset);
        // Of a message that goes on nobody knows how long it is: as long as its buffers, perhaps.
        let rest = match Self::ends_receive(repr.operation) {
            Some(_) => 0,
            None => self.behind_packet(receive.room, offset),
        };
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
        let mut of_queue = self.wqe_fault(kind, index, offset);
        of_queue.set(Eqe::FAULT_QUEUE, shared.map_or(self.qpn.0, |s| s.0));
        of_queue.set(Eqe::FAULT_PACKET, packet as u32);
        self.stop_responder(view, (fault, rest), (kind, repr.psn), of_queue)
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
        let kind = kind::RDMA_WRITE;
        self.stop_responder(view, (fault, asked.rest()), (kind, psn), self.rdma_fault(kind, asked))
    }

    /// A response to a read met a page that is not present: whether the peer shall ask again from that packet on.
    /// What waits behind it will be asked for again as well.
    pub(crate) fn waits_to_answer(&mut self, view: &View<'_>, fault: Fault, asked: RdmaAccess) -> PageWait {
        if !self.state.receives() || !self.waits_for(view, fault, odp::READ) {
            return PageWait::No;
        }
        let (kind, of_queue) = (kind::RDMA_READ, self.rdma_fault(kind::RDMA_READ, asked));
        let waits = self.stop_responder(view, (fault, asked.rest()), (kind, asked.psn), of_queue);
        self.responder.queue.clear();
        waits
    }

    /// The driver has dealt with a fault of the responder, or says that it can't (`error`): then the request at this PSN
    /// fails; whether it was one of RDMA.
    pub(crate) fn resumes_responder(&mut self, told: DealtWith, error: bool) -> Option<(Psn, bool)> {
        let fault = self.responder.fault.take_if(|f| f.told == told && !f.resumed)?;
        if !error {
            self.responder.fault = Some(ResponderFault { resumed: true, ..fault });
            return None;
        }
        Some((fault.psn, fault.rdma))
    }
}
