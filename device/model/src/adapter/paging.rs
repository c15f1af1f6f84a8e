//! Page faults carried out: the driver is told, and queue pairs go on or fail when it has dealt with them.

use hca_firmware::DealtWith;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::Qpn;
use hca_spec::wire::aeth;

use super::core::{Core, Executor};
use super::dynamic::SLICE;
use super::flush::Failed;
use super::state::event::HcaEvent;
use crate::engines::mkey::Fault;
use crate::engines::qp::QueuePair;
use crate::engines::qp::dct::FaultTold;
use crate::engines::qp::page_fault::{FaultCheck, FaultedWqe, PageWait, RdmaAccess, Resumed};
use crate::engines::qp::responder::Refusal;
use crate::engines::qp::wqe::Wqe;
use crate::ground::time::Ps;
use crate::wire::Repr;

impl Core<'_> {
    /// Tells the driver of a page fault, if that is due. Returns whether something waits.
    fn follow_fault(&mut self, now: Ps, qpn: Qpn, fault: Fault, waits: PageWait) -> bool {
        match waits {
            PageWait::No => false,
            PageWait::Silently => true,
            PageWait::Telling(mut eqe) => {
                tracing::debug!(hca = self.chip.name, %now, "QP {qpn}: page fault: {fault}; event {:x?}", eqe.bytes());
                self.function.faults_told = self.function.faults_told.wrapping_add(1);
                self.push_event(now, EventType::PageFault, &mut eqe);
                true
            }
        }
    }

    /// A packet's data could not be gathered, or its response not be scattered. `true`: the queue pair waits
    /// from that packet on; `false`: it is an error.
    pub(crate) fn wait_to_send(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        fault: Fault,
        met: FaultedWqe,
    ) -> bool {
        let waits = qp.waits_to_send(&self.view(), fault, met);
        self.follow_fault(now, qp.qpn, fault, waits)
    }

    /// The same for a datagram; `head` is its place in the queue.
    pub(crate) fn wait_to_send_datagram(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        fault: Fault,
        wqe: &Wqe,
        head: u16,
    ) -> bool {
        let waits = qp.waits_to_send_datagram(&self.view(), fault, wqe, head);
        self.follow_fault(now, qp.qpn, fault, waits)
    }

    /// Whether a request is looked at in spite of a page fault.
    #[inline]
    pub(crate) fn passes_page_fault(&mut self, now: Ps, qp: &mut QueuePair, repr: &Repr) -> bool {
        match qp.check_fault(repr) {
            FaultCheck::Passes => true,
            FaultCheck::Dropped => false,
            FaultCheck::NotReady(psn) => {
                self.answer(now, qp, psn, aeth::RNR_NAK | qp.params.min_rnr_nak);
                false
            }
            FaultCheck::Acknowledged(psn) => {
                self.answer(now, qp, psn, aeth::ACK | aeth::CREDITS_INVALID);
                false
            }
        }
    }

    /// A request met a page that is not present: the peer shall send it again. Otherwise the refusal is returned.
    pub(crate) fn wait_to_execute(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        repr: &Repr,
        packet: usize,
        refusal: Refusal,
    ) -> Option<Refusal> {
        let view = self.view();
        let (fault, waits) = match refusal {
            Refusal::Local(_, fault) => (fault, qp.waits_to_receive(&view, repr, packet, fault)),
            Refusal::Access(fault) => (fault, qp.waits_to_be_written(&view, repr, packet, fault)),
            _ => return Some(refusal),
        };
        if !self.follow_fault(now, qp.qpn, fault, waits) {
            return Some(refusal);
        }
        self.answer(now, qp, repr.psn, aeth::RNR_NAK | qp.params.min_rnr_nak);
        None
    }

    /// A response to a read met a page that is not present. `true`: the peer shall ask again.
    pub(crate) fn wait_to_answer(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        fault: Fault,
        asked: RdmaAccess,
    ) -> bool {
        let waits = qp.waits_to_answer(&self.view(), fault, asked);
        self.follow_fault(now, qp.qpn, fault, waits)
    }

    fn resume_requester(&mut self, now: Ps, qp: &mut QueuePair, resumed: Resumed) {
        match resumed {
            Resumed::Continues => {}
            Resumed::Datagram { index, opcode } => {
                let failed = Failed::by_itself(index, opcode as u32);
                self.complete_send_error(now, qp, failed, Syndrome::LocalProtection);
                self.fail_sends(now, qp, None);
            }
            Resumed::Message(psn) => _ = self.fail_message(now, qp, psn, Syndrome::LocalProtection),
        }
        if qp.sends() {
            self.ask_turn(now, qp);
        }
    }

    fn resume_responder(&mut self, now: Ps, qp: &mut QueuePair, fault: DealtWith, error: bool) {
        match qp.resumes_responder(fault, error) {
            None => {}
            Some((psn, false)) => {
                self.answer(now, qp, psn, aeth::NAK | aeth::REMOTE_OPERATIONAL_ERROR);
                self.receive_failed(now, qp, Syndrome::LocalProtection);
            }
            Some((psn, true)) => {
                self.answer(now, qp, psn, aeth::NAK | aeth::REMOTE_ACCESS_ERROR);
                self.fail(now, qp, None);
                self.raise(now, qp, EventType::AccessError);
            }
        }
    }
}

impl Executor<'_> {
    /// The driver has dealt with a fault. One that is not there any more, or another one by now, is no error:
    /// the driver can't know.
    pub(crate) fn page_fault_resumed(&mut self, now: Ps, qpn: Qpn, fault: DealtWith, error: bool) {
        let name = &self.core.chip.name;
        tracing::debug!(hca = name, %now, "QP {qpn}: page fault {fault:x?} is dealt with, error: {error}");
        self.dynamic_fault(now, Box::new(FaultTold { dctn: qpn, fault, error, last: None }));
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get_mut(qpn.0) else { return };
        if let Some(resumed) = qp.resumes_requester(fault, error) {
            core.resume_requester(now, qp, resumed);
        }
        core.resume_responder(now, qp, fault, error);
    }

    /// Connections of a DC target hear that one of its page faults was dealt with, a slice of them in an event. All have its number: by
    /// type one may be meant that waits for another page, which meets it again.
    pub(crate) fn dynamic_fault(&mut self, now: Ps, mut told: Box<FaultTold>) {
        let Self { core, dc_responders, .. } = self;
        let (fault, error) = (told.fault, told.error);
        let mut left = SLICE;
        for (peer, responder) in dc_responders.range_mut(told.rest()).take(SLICE) {
            core.resume_responder(now, responder, fault, error);
            (left, told.last) = (left.saturating_sub(1), Some(*peer));
        }
        if left == 0 {
            core.schedule(now, HcaEvent::DynamicFault(told));
        }
    }
}
