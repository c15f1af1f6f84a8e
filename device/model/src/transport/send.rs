//! Send queues: from a doorbell to WQEs, and whose turn it is to send a packet.
//!
//! Source: PRM "Send Queue", "Doorbell Records", "Posting a Work Request to a Work Queue".

use hca_firmware::QCounter;
use hca_firmware::icm::Qp;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wqe::{Ctrl, DS_UNIT, SendOpcode, WQEBB};

use super::QueuePair;
use super::message::Message;
use super::wqe::{BadWqe, Wqe};
use crate::core::{Core, HcaEvent};
use crate::hca::Hca;
use crate::time::Ps;
use crate::trace::{Event, Status};

/// Largest send WQE in bytes: DS has 6 bits.
const MAX_WQE: usize = 64 * DS_UNIT;

/// The moving parts of a send queue. Counters are in WQE basic blocks, modulo 2^16.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// First basic block not fetched yet.
    pub(crate) head: u16,
    /// First basic block not posted yet.
    pub(crate) posted: u16,
    /// A turn is scheduled.
    pub(crate) turn: bool,
    /// The WQE at `head`, or the begin of it, as it came by BlueFlame.
    copy: Option<Box<[u8]>>,
}

/// What the send queue holds next.
pub(crate) enum Fetched {
    Nothing,
    Wqe(Box<Wqe>),
    /// A WQE that can't be executed, at that index.
    Bad(u16, BadWqe),
}

fn read_block(core: &Core, qp: &Qp, log_size: u32, index: u16, into: &mut [u8]) -> Result<(), BadWqe> {
    let slot = u64::from(index) & ((1 << log_size) - 1);
    let (at, _) =
        qp.buffer.at(qp.rq_bytes() + slot * WQEBB as u64).ok_or(BadWqe("the send queue has no memory"))?;
    core.memory.read(at, into).map_err(|_| BadWqe("the send queue's memory can't be read"))
}

/// The index that a WQE that came by BlueFlame says it has.
pub(crate) fn copy_index(copy: &[u8]) -> u16 {
    Ctrl::from_prefix_or_zero(copy).get(Ctrl::WQE_INDEX) as u16
}

impl QueuePair {
    /// Reads the send counter of the doorbell record.
    pub(crate) fn fetch_posted(&mut self, core: &Core) -> bool {
        let Ok(word) = core.read_be32(self.params.doorbell_record.wrapping_add(4)) else { return false };
        self.sq.posted = word as u16;
        true
    }

    /// Fetches the WQE at the head; the head moves beyond it.
    pub(crate) fn fetch_wqe(&mut self, core: &Core) -> Fetched {
        let available = self.sq.posted.wrapping_sub(self.sq.head);
        if available == 0 || !self.params.has_sq {
            return Fetched::Nothing;
        }
        let index = self.sq.head;
        let copy = self.sq.copy.take().filter(|copy| copy_index(copy) == index);
        match self.read_wqe(core, available, copy.as_deref().unwrap_or_default()) {
            Ok((wqe, blocks)) => {
                self.sq.head = index.wrapping_add(blocks);
                Fetched::Wqe(Box::new(wqe))
            }
            Err(why) => {
                // Where the next WQE starts is unknown: the queue can only be flushed from here.
                self.sq.head = index.wrapping_add(1);
                Fetched::Bad(index, why)
            }
        }
    }

    /// Reads the WQE at the head: what `copy` has of it from there, the rest from memory.
    fn read_wqe(&self, core: &Core, available: u16, copy: &[u8]) -> Result<(Wqe, u16), BadWqe> {
        let qp = core.fw.icm.qps.get(self.qpn.0).ok_or(BadWqe("no such queue pair"))?;
        if u32::from(available) > 1 << self.params.log_sq_size {
            return Err(BadWqe("the doorbell record's send counter is more than a whole queue ahead"));
        }
        let mut bytes = [0; MAX_WQE];
        let (first, rest) = bytes.split_at_mut(WQEBB);
        let mut copied = copy.chunks_exact(WQEBB);
        match copied.next() {
            Some(block) => first.copy_from_slice(block),
            None => read_block(core, qp, self.params.log_sq_size, self.sq.head, first)?,
        }
        let ctrl = Ctrl::from_prefix_or_zero(first);
        if ctrl.get(Ctrl::QPN) != self.qpn.0 {
            return Err(BadWqe("the control segment names another QP"));
        }
        let size = ctrl.get(Ctrl::DS) as usize * DS_UNIT;
        if size < Ctrl::SIZE {
            return Err(BadWqe("DS is zero"));
        }
        let blocks = size.div_ceil(WQEBB) as u16;
        if blocks > available {
            return Err(BadWqe("the WQE is longer than what was posted"));
        }
        for (i, block) in (1..blocks).zip(rest.chunks_exact_mut(WQEBB)) {
            match copied.next() {
                Some(from) => block.copy_from_slice(from),
                None => read_block(core, qp, self.params.log_sq_size, self.sq.head.wrapping_add(i), block)?,
            }
        }
        let bytes = bytes.get(..size).ok_or(BadWqe("DS is too large"))?;
        let initiator = self.service == ServiceType::Xrc;
        Ok((Wqe::parse(bytes, self.service, initiator)?, blocks))
    }

    /// Schedules a turn to send, unless one is.
    pub(crate) fn ask_turn(&mut self, core: &mut Core, at: Ps) {
        if !std::mem::replace(&mut self.sq.turn, true) {
            core.await_turn(at, self.lane, HcaEvent::SendTurn(self.qpn));
        }
    }

    /// Completes everything in the send queue: `cause` for the oldest message, flushed for the rest.
    pub(crate) fn flush_sends(&mut self, core: &mut Core, now: Ps, cause: Option<Syndrome>) {
        let mut syndrome = cause.unwrap_or(Syndrome::WorkRequestFlushed);
        for message in self.requester.abandon().into_iter().filter(|m| !m.connect) {
            self.complete_send_error(core, now, message.wqe.index, message.wqe.opcode, syndrome);
            syndrome = Syndrome::WorkRequestFlushed;
        }
        self.flush_unfetched(core, now);
    }

    /// Flushes the WQEs that were never fetched. They are only walked, not executed.
    pub(crate) fn flush_unfetched(&mut self, core: &mut Core, now: Ps) {
        self.sq.copy = None;
        if !self.params.has_sq || !self.fetch_posted(core) {
            return;
        }
        loop {
            let available = self.sq.posted.wrapping_sub(self.sq.head);
            if available == 0 {
                return;
            }
            if u32::from(available) > 1 << self.params.log_sq_size {
                self.sq.head = self.sq.posted;
                return;
            }
            let index = self.sq.head;
            let mut block = [0; WQEBB];
            let read =
                core.fw.icm.qps.get(self.qpn.0).is_some_and(|qp| {
                    read_block(core, qp, self.params.log_sq_size, index, &mut block).is_ok()
                });
            if !read {
                self.sq.head = self.sq.posted;
                return;
            }
            let ctrl = Ctrl::from_prefix_or_zero(&block);
            let blocks = (ctrl.get(Ctrl::DS) as usize * DS_UNIT).div_ceil(WQEBB).max(1) as u16;
            self.sq.head = index.wrapping_add(blocks.min(available));
            let opcode = SendOpcode::from_bits(ctrl.get(Ctrl::OPCODE)).unwrap_or(SendOpcode::Nop);
            let wqe_index = ctrl.get(Ctrl::WQE_INDEX) as u16;
            self.complete_send_error(core, now, wqe_index, opcode, Syndrome::WorkRequestFlushed);
        }
    }

    pub(crate) fn complete_send_error(
        &mut self,
        core: &mut Core,
        now: Ps,
        index: u16,
        opcode: SendOpcode,
        syndrome: Syndrome,
    ) {
        count_send_error(core, self.qpn, syndrome);
        core.note(now, Event::Done { qpn: self.qpn, index, status: Status(Some(syndrome)) });
        let mut cqe = self.cqe(CqeOpcode::ReqErr, index);
        cqe.set(Cqe::SEND_WQE_OPCODE, opcode as u32).set(Cqe::SYNDROME, syndrome as u32);
        cqe.set(Cqe::VENDOR_ERR_SYND, syndrome.vendor().into());
        let cqn = self.params.cqn_snd;
        self.complete(core, now, cqn, cqe);
    }

    /// Completes a message that went well.
    pub(crate) fn complete_send(&mut self, core: &mut Core, now: Ps, message: &Message) {
        if !message.connect {
            let (qpn, index) = (self.qpn, message.wqe.index);
            core.note(now, Event::Done { qpn, index, status: Status(None) });
        }
        if !message.wqe.signaled {
            return;
        }
        let mut cqe = self.cqe(CqeOpcode::Req, message.wqe.index);
        cqe.set(Cqe::SEND_WQE_OPCODE, message.wqe.opcode as u32);
        cqe.set(Cqe::BYTE_CNT, message.wqe.length as u32);
        let cqn = self.params.cqn_snd;
        self.complete_with(core, now, cqn, cqe, &message.data);
    }
}

/// Counts a send that completes in error, by cause.
fn count_send_error(core: &mut Core, qpn: Qpn, syndrome: Syndrome) {
    let icm = &mut core.fw.icm;
    let cause = match syndrome {
        Syndrome::WorkRequestFlushed => return icm.count(qpn, QCounter::ReqCqeFlushError),
        Syndrome::LocalLength => Some(QCounter::ReqLocalLengthError),
        Syndrome::LocalQpOperation => Some(QCounter::LocalOperationError),
        Syndrome::LocalProtection => Some(QCounter::ReqLocalProtection),
        Syndrome::MemoryWindowBind => Some(QCounter::ReqMwBinding),
        Syndrome::BadResponse => Some(QCounter::ReqBadResponse),
        Syndrome::RemoteInvalidRequest => Some(QCounter::ReqRemoteInvalidRequest),
        Syndrome::RemoteAccess => Some(QCounter::ReqRemoteAccessErrors),
        Syndrome::RemoteOperation => Some(QCounter::ReqRemoteOperationErrors),
        Syndrome::TransportRetryExceeded => Some(QCounter::ReqTransportRetriesExceeded),
        Syndrome::LocalAccess | Syndrome::RnrRetryExceeded | Syndrome::RemoteAborted => None,
    };
    icm.count(qpn, QCounter::ReqCqeError);
    if let Some(cause) = cause {
        icm.count(qpn, cause);
    }
}

impl Hca {
    /// A send doorbell was rung.
    pub(crate) fn send_doorbell(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        match qp.state {
            QpState::Rts => {
                if !qp.fetch_posted(&self.core) {
                    self.core.diagnose(now, format_args!("QP {qpn}: its doorbell record can't be read"));
                    return;
                }
                let took = self.core.timing.dma_read(4) + self.core.timing.wqe_fetch();
                let at = now + took;
                if qp.sq.posted != qp.sq.head {
                    let (head, posted) = (qp.sq.head, qp.sq.posted);
                    self.core.note_span(now, Ps::ZERO, took, Event::Fetch { qpn, head, posted });
                }
                qp.ask_turn(&mut self.core, at);
            }
            QpState::Error | QpState::SqError => qp.flush_unfetched(&mut self.core, now),
            // PRM: a WQE posted before RTS waits; in RESET it is ignored.
            _ => {}
        }
    }

    /// A WQE came with its doorbell. If it is the next to execute there is nothing to fetch; otherwise, because others
    /// wait before it or because the doorbell record does not count it yet, it is a doorbell like any other.
    pub(crate) fn blueflame(&mut self, now: Ps, qpn: Qpn, copy: Box<[u8]>) {
        if let Some(qp) = self.qps.get_mut(qpn.0)
            && qp.state == QpState::Rts
            && qp.fetch_posted(&self.core)
            && qp.sq.posted != qp.sq.head
            && copy_index(&copy) == qp.sq.head
        {
            tracing::trace!(hca = self.core.name, %now, "QP {qpn}: WQE {} by BlueFlame", qp.sq.head);
            qp.sq.copy = Some(copy);
            return qp.ask_turn(&mut self.core, now);
        }
        self.send_doorbell(now, qpn);
    }

    /// A queue pair's turn: at most one packet leaves, then the next turn is asked for.
    pub(crate) fn send_turn(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        qp.sq.turn = false;
        if qp.sends() {
            qp.send_packet(&mut self.core, now);
        }
    }
}
