//! Send queues: from a doorbell to WQEs, and whose turn it is to send a packet.
//!
//! Source: PRM "Send Queue", "Doorbell Records", "Posting a Work Request to a Work Queue".

use std::collections::VecDeque;

use hca_firmware::QCounter;
use hca_firmware::icm::Qp;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wqe::{Ctrl, DS_UNIT, SendOpcode, WQEBB};

use super::QueuePair;
use super::message::Message;
use super::wqe::{BadWqe, Wqe};
use crate::adapter::Hca;
use crate::adapter::core::{Core, HcaEvent};
use crate::ground::event::{Event, Status};
use crate::ground::time::Ps;
use crate::ground::timing::Mark;

/// Largest send WQE in bytes: DS has 6 bits.
const MAX_WQE: usize = 64 * DS_UNIT;

/// What the doorbell record counts is looked at this much later, even if no doorbell says so.
const LATE_DOORBELL: Ps = Ps::from_ms(5);

/// A part of the send queue that was fetched, or came with a doorbell.
#[derive(Debug, Clone, Copy)]
struct Fetch {
    /// First basic block beyond it.
    end: u16,
    /// When it is on the chip.
    at: Ps,
    /// What the WQE cache knows it by, if it came with a doorbell: then others may take its place there before it is
    /// executed. What is fetched lies in a buffer until then.
    mark: Option<Mark>,
}

/// A completion that the host does not see yet.
#[derive(Debug)]
struct Unseen {
    /// When it does.
    at: Ps,
    cqe: Cqe,
    /// What comes with it.
    data: Vec<u8>,
}

/// The moving parts of a send queue. Counters are in WQE basic blocks, modulo 2^16.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// First basic block not fetched yet.
    pub(crate) head: u16,
    /// First basic block not posted yet.
    pub(crate) posted: u16,
    /// A turn is scheduled.
    pub(crate) turn: bool,
    /// That turn was put off, for packets that arrive.
    yielded: bool,
    /// The WQE at `head`, or the begin of it, as it came by BlueFlame.
    copy: Option<Box<[u8]>>,
    /// What lies on the chip from the head on, or is on its way there. This is about time only: bytes are read when they
    /// are parsed.
    fetched: VecDeque<Fetch>,
    /// What the WQE cache knows the WQE at the head by, if it is there.
    pub(super) mark: Option<Mark>,
    /// Completions that the host does not see before their time.
    sent: VecDeque<Unseen>,
    /// The doorbell record counts more than what doorbells have said.
    behind: bool,
    /// The completion of what is executed last is not seen before.
    pub(super) due: Ps,
}

impl SendQueue {
    /// Drops what lies before the head. Returns the first basic block that was not fetched.
    fn first_unfetched(&mut self) -> u16 {
        let waiting = self.posted.wrapping_sub(self.head);
        let passed = |f: &mut Fetch| !(1..=waiting).contains(&f.end.wrapping_sub(self.head));
        while self.fetched.pop_front_if(passed).is_some() {}
        self.fetched.back().map_or(self.head, |f| f.end)
    }

    /// Whether everything that was posted is fetched and parsed.
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.posted
    }

    /// Whether the host sees all completions.
    pub(super) fn all_seen(&self) -> bool {
        self.sent.is_empty()
    }
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

/// Basic blocks that a WQE that came by BlueFlame says it has.
fn copy_blocks(copy: &[u8]) -> u16 {
    (Ctrl::from_prefix_or_zero(copy).get(Ctrl::DS) as usize * DS_UNIT).div_ceil(WQEBB).max(1) as u16
}

impl QueuePair {
    /// Reads the send counter of the doorbell record.
    pub(crate) fn fetch_posted(&mut self, core: &Core) -> bool {
        let Ok(word) = core.read_be32(self.params.doorbell_record.wrapping_add(4)) else { return false };
        self.sq.posted = word as u16;
        true
    }

    /// When the WQE at the head is on the chip. What is not there is fetched: as many WQEs as one fetch reads, and as many
    /// fetches ahead as there may be. `None`: nothing is posted.
    pub(crate) fn at_hand(&mut self, core: &mut Core, now: Ps) -> Option<Ps> {
        if self.sq.is_empty() || !self.params.has_sq {
            return None;
        }
        let mut next = self.sq.first_unfetched();
        // What was driven out is read again: it alone, and as many ahead as there may be fetches.
        let mut begin = self.sq.head;
        for known in self.sq.fetched.iter_mut().take(core.timing.wqe_prefetches()) {
            let blocks = known.end.wrapping_sub(begin);
            let lost = known.mark.and_then(|mark| core.units.fetch_lost(now, self.qpn.0, mark, blocks));
            if let Some(at) = lost {
                (known.at, known.mark) = (at, None);
            }
            begin = known.end;
        }
        let most = u16::try_from(core.timing.wqe_prefetch() / WQEBB).unwrap_or(u16::MAX).max(1);
        while self.sq.fetched.len() < core.timing.wqe_prefetches() {
            let blocks = self.sq.posted.wrapping_sub(next).min(most);
            if blocks == 0 {
                break;
            }
            let at = core.units.fetch(now, self.qpn.0, blocks);
            next = next.wrapping_add(blocks);
            self.sq.fetched.push_back(Fetch { end: next, at, mark: None });
        }
        let first = self.sq.fetched.front()?;
        self.sq.mark = first.mark;
        Some(first.at)
    }

    /// A doorbell has come: WQEs are fetched, and there is a turn to send them. The doorbell itself says how far the queue
    /// goes: that the record is read takes no time of its own.
    fn rung(&mut self, core: &mut Core, now: Ps) {
        let at = self.at_hand(core, now).unwrap_or(now);
        if !self.sq.is_empty() {
            let (qpn, head, posted) = (self.qpn, self.sq.head, self.sq.posted);
            core.note_span(now, Ps::ZERO, at.since(now), Event::Fetch { qpn, head, posted });
        }
        self.ask_turn(core, at);
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
        let mut first = [0; WQEBB];
        let mut copied = copy.chunks_exact(WQEBB);
        match copied.next() {
            Some(block) => first.copy_from_slice(block),
            None => read_block(core, qp, self.params.log_sq_size, self.sq.head, &mut first)?,
        }
        let ctrl = Ctrl::from_prefix_or_zero(&first);
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
        // Most WQEs are one block: room for the longest is made for those that are not.
        let mut longer;
        let bytes: &[u8] = if blocks == 1 {
            &first
        } else {
            longer = [0; MAX_WQE];
            let (begin, rest) = longer.split_at_mut(WQEBB);
            begin.copy_from_slice(&first);
            for (i, block) in (1..blocks).zip(rest.chunks_exact_mut(WQEBB)) {
                let index = self.sq.head.wrapping_add(i);
                match copied.next() {
                    Some(from) => block.copy_from_slice(from),
                    None => read_block(core, qp, self.params.log_sq_size, index, block)?,
                }
            }
            &longer
        };
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
        self.show_all(core, now);
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
        self.show_all(core, now);
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
        if self.sq.due > now || !self.sq.sent.is_empty() {
            return self.complete_at(core, self.sq.due, cqe, message.data.clone());
        }
        self.complete_with(core, now, cqn, cqe, &message.data);
    }

    /// Completes a request at `at`, behind those before it.
    pub(super) fn complete_at(&mut self, core: &mut Core, at: Ps, cqe: Cqe, data: Vec<u8>) {
        let at = self.sq.sent.back().map_or(at, |last| at.max(last.at));
        self.sq.sent.push_back(Unseen { at, cqe, data });
        core.schedule(at, HcaEvent::Sent(self.qpn));
    }

    /// The host sees the completions that are due.
    fn show(&mut self, core: &mut Core, now: Ps, until: Ps) {
        while let Some(Unseen { cqe, data, .. }) = self.sq.sent.pop_front_if(|c| c.at <= until) {
            let cqn = self.params.cqn_snd;
            self.complete_with(core, now, cqn, cqe, &data);
        }
    }

    /// The host sees all completions, because others follow.
    fn show_all(&mut self, core: &mut Core, now: Ps) {
        self.show(core, now, Ps::MAX);
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
                qp.sq.behind = false;
                qp.rung(&mut self.core, now);
            }
            QpState::Error | QpState::SqError => qp.flush_unfetched(&mut self.core, now),
            // PRM: a WQE posted before RTS waits; in RESET it is ignored.
            _ => {}
        }
    }

    /// A WQE came with its doorbell. If it is the next to execute there is nothing to fetch; otherwise, because others
    /// wait before it or because the doorbell record does not count it yet, it is a doorbell like any other.
    pub(crate) fn blueflame(&mut self, now: Ps, qpn: Qpn, copy: Box<[u8]>) {
        let Some(qp) = self.qps.get_mut(qpn.0).filter(|qp| qp.state == QpState::Rts) else {
            return self.send_doorbell(now, qpn);
        };
        let known = qp.sq.posted.wrapping_sub(qp.sq.head);
        if !qp.fetch_posted(&self.core) || qp.sq.is_empty() {
            return self.send_doorbell(now, qpn);
        }
        let (index, blocks) = (copy_index(&copy), copy_blocks(&copy));
        // The record may count WQEs whose own doorbells are still on their way.
        let counted = qp.sq.posted.wrapping_sub(qp.sq.head);
        // One that says nothing new is late: its WQE is fetched or executed already.
        let rung = index.wrapping_add(blocks).wrapping_sub(qp.sq.head);
        let rung = if rung <= counted { rung.max(known) } else { known };
        if rung < counted {
            qp.sq.posted = qp.sq.head.wrapping_add(rung);
            if !std::mem::replace(&mut qp.sq.behind, true) {
                self.core.schedule(now + LATE_DOORBELL, HcaEvent::SendDoorbell(qpn));
            }
        }
        // It lies on the chip if it is whole and follows what lies there, and that is not too much of one queue.
        let ahead = usize::from(index.wrapping_sub(qp.sq.head)) * WQEBB;
        let most = self.core.timing.wqe_prefetch() * self.core.timing.wqe_prefetches();
        if index == qp.sq.first_unfetched()
            && index != qp.sq.posted
            && ahead < most
            && usize::from(blocks) * WQEBB <= copy.len()
            && let mark @ Some(_) = self.core.units.carried(now, qpn.0, index, blocks)
        {
            qp.sq.fetched.push_back(Fetch { end: index.wrapping_add(blocks), at: now, mark });
        }
        if index == qp.sq.head {
            tracing::trace!(hca = self.core.name, %now, "QP {qpn}: WQE {index} by BlueFlame");
            qp.sq.copy = Some(copy);
        }
        qp.rung(&mut self.core, now);
    }

    /// Completions of requests without an answer are due.
    pub(crate) fn sent(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        qp.show(&mut self.core, now, now);
        qp.drain(&mut self.core, now);
    }

    /// A queue pair's turn: at most one packet leaves, then the next turn is asked for.
    pub(crate) fn send_turn(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        qp.sq.turn = false;
        if qp.sends() {
            // Packets that arrive go first: what the units have to do already, and what comes until they are done.
            let opens = self.core.units.opens(now);
            qp.sq.yielded = opens > now && !qp.sq.yielded;
            if qp.sq.yielded {
                return qp.ask_turn(&mut self.core, opens);
            }
            qp.send_packet(&mut self.core, now);
        }
    }
}
