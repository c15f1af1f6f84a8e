//! Receive queues: their own, shared ones, and those that XRC requests name.
//!
//! Source: PRM "Receive Queue WQE", "Shared Receive Queue", "Doorbell Records".

use hca_firmware::QCounter;
use hca_firmware::icm::{Qp, Srq, SrqKind};
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Cqn, Mkey, Pd, Qpn, Srqn};
use hca_spec::qpc::{Qpc, RqType};
use hca_spec::queue::{SRQ_ERROR, Srqc};
use hca_spec::wqe::{DS_UNIT, Data, SrqNext, TERMINATE_LKEY};
use zerocopy::FromBytes;

use super::pieces::{Piece, total};
use super::{NO_USER_INDEX, QueuePair};
use crate::adapter::core::Core;
use crate::engines::mkey::Accessor;
use crate::ground::dma::GuestMemory;
use crate::ground::time::Ps;

/// Largest receive WQE in bytes: stride codes go up to 16 << 7.
const MAX_STRIDE: usize = 2048;

/// A receive WQE that was taken from its queue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Receive {
    /// What the CQE carries as `wqe_counter`.
    pub(crate) index: u16,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) room: u64,
    /// Of a shared queue: the domain that its memory belongs to (IBTA 10.2.9.1); else the queue pair's.
    pd: Option<Pd>,
    /// The XRC SRQ it comes from.
    pub(crate) xrc: Option<XrcSrq>,
}

/// What a request's XRCETH names: an XRC SRQ of the target's domain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct XrcSrq {
    pub(crate) srqn: Srqn,
    /// Local and remote keys of the request must belong to this domain.
    pub(crate) pd: Pd,
    cqn: Cqn,
    /// What the CQE says of the SRQ: its number, or what its owner calls it.
    mark: u32,
}

impl Receive {
    fn parse(index: u16, segments: &[u8]) -> Self {
        let mut pieces = Vec::new();
        for raw in segments.chunks_exact(DS_UNIT) {
            let Ok(data) = Data::read_from_bytes(raw) else { break };
            let (key, len) = (data.get(Data::LKEY), data.get(Data::BYTE_COUNT));
            if key == TERMINATE_LKEY {
                break;
            }
            if len > 0 {
                pieces.push(Piece::Memory { key: Mkey(key), va: data.get(Data::ADDRESS), len });
            }
        }
        let room = total(&pieces);
        Self { index, pieces, room, pd: None, xrc: None }
    }
}

/// A receive queue of a queue pair.
#[derive(Debug)]
pub(crate) enum ReceiveQueue {
    None,
    Own { log_size: u32, stride: u64, head: u16, posted: u16 },
    Shared(Srqn),
}

impl ReceiveQueue {
    pub(crate) fn new(qp: &Qp) -> Self {
        match RqType::from_bits(qp.ctx.get(Qpc::RQ_TYPE)) {
            Some(RqType::Own) => Self::Own {
                log_size: qp.ctx.get(Qpc::LOG_RQ_SIZE),
                stride: 16 << qp.ctx.get(Qpc::LOG_RQ_STRIDE),
                head: 0,
                posted: 0,
            },
            Some(RqType::Shared) => Self::Shared(Srqn(qp.ctx.get(Qpc::SRQN_RMPN))),
            _ => Self::None,
        }
    }

    pub(crate) fn shared(&self) -> Option<Srqn> {
        match self {
            Self::Shared(srqn) => Some(*srqn),
            _ => None,
        }
    }

    /// WQEs consumed and posted.
    pub(crate) fn counters(&self, memory: &dyn GuestMemory, doorbell_record: u64) -> (u16, u16) {
        match self {
            Self::Own { head, posted, .. } => {
                (*head, fetch_posted(memory, doorbell_record).unwrap_or(*posted))
            }
            _ => (0, 0),
        }
    }
}

fn fetch_posted(memory: &dyn GuestMemory, doorbell_record: u64) -> Option<u16> {
    let mut word = [0; 4];
    memory.read(doorbell_record, &mut word).ok()?;
    Some(u32::from_be_bytes(word) as u16)
}

impl QueuePair {
    /// How many messages that take a receive request there is room for; `None`: not counted, because others
    /// take from the same queue.
    pub(crate) fn credits(&mut self, core: &Core) -> Option<u32> {
        /// With fewer than this the doorbell record is looked at again.
        const FEW: u16 = 64;
        let started = self.responder.holds_receive();
        let ReceiveQueue::Own { head, posted, .. } = &mut self.rq else { return None };
        if posted.wrapping_sub(*head) < FEW {
            *posted = fetch_posted(&*core.memory, self.params.doorbell_record).unwrap_or(*posted);
        }
        Some(u32::from(posted.wrapping_sub(*head)) + u32::from(started))
    }
}

/// The moving parts of a shared receive queue: a linked list whose head the hardware follows.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    srqn: Srqn,
    doorbell_record: u64,
    log_stride: u32,
    log_size: u32,
    /// Index of the WQE to take next.
    next: u16,
    consumed: u16,
    posted: u16,
    /// Limit water mark; 0 = not armed.
    limit: u16,
}

impl SharedQueue {
    pub(crate) fn new(srqn: Srqn, srq: &Srq) -> Self {
        Self {
            srqn,
            doorbell_record: srq.ctx.get(Srqc::DBR_ADDR),
            log_stride: srq.log_stride,
            log_size: srq.log_size,
            next: 0,
            consumed: 0,
            posted: 0,
            limit: srq.ctx.get(Srqc::LWM) as u16,
        }
    }

    pub(crate) fn arm(&mut self, srq: &Srq) {
        self.limit = srq.ctx.get(Srqc::LWM) as u16;
    }

    pub(crate) fn write_back(&mut self, memory: &dyn GuestMemory, ctx: &mut Srqc) {
        self.posted = fetch_posted(memory, self.doorbell_record).unwrap_or(self.posted);
        ctx.set(Srqc::WQE_CNT, self.posted.wrapping_sub(self.consumed).into());
        ctx.set(Srqc::LWM, self.limit.into());
    }

    fn available(&mut self, memory: &dyn GuestMemory) -> u16 {
        if self.posted == self.consumed {
            self.posted = fetch_posted(memory, self.doorbell_record).unwrap_or(self.posted);
        }
        self.posted.wrapping_sub(self.consumed)
    }
}

/// Why no receive WQE could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoReceive {
    /// None is posted.
    NotReady,
    /// The queue can't be read.
    Broken,
}

impl Core {
    /// The XRC SRQ of that number, if it is one of the domain `xrcd`.
    pub(crate) fn xrc_srq(&self, srqn: Srqn, xrcd: u32) -> Option<XrcSrq> {
        let srq = self.fw.icm.srqs.get(srqn.0)?;
        // With interface step 0 an XRC SRQ is a basic one that has a domain and a completion queue.
        let kind = srq.kind == SrqKind::Xrc || (srq.kind == SrqKind::Basic && srq.ctx.get(Srqc::CQN) != 0);
        (kind && srq.ctx.get(Srqc::XRCD) == xrcd).then(|| XrcSrq {
            srqn,
            pd: Pd(srq.ctx.get(Srqc::PD)),
            cqn: Cqn(srq.ctx.get(Srqc::CQN)),
            mark: match srq.ctx.get(Srqc::USER_INDEX) {
                // Interface step 0 knows no user index.
                NO_USER_INDEX => srqn.0,
                _ if srq.kind == SrqKind::Basic => srqn.0,
                index => index,
            },
        })
    }

    /// Takes the next WQE of a shared receive queue.
    fn take_shared(&mut self, now: Ps, srqn: Srqn) -> Result<Receive, NoReceive> {
        let taken = self.fetch_shared(srqn);
        match taken {
            Ok(_) => self.srq_limit(now, srqn),
            Err(NoReceive::Broken) => self.srq_broken(now, srqn),
            Err(NoReceive::NotReady) => {}
        }
        taken
    }

    /// A shared receive queue that can't be read goes to error and says so, once.
    fn srq_broken(&mut self, now: Ps, srqn: Srqn) {
        let Some(srq) = self.fw.icm.srqs.get_mut(srqn.0).filter(|s| s.ctx.get(Srqc::STATE) != SRQ_ERROR)
        else {
            return;
        };
        srq.ctx.set(Srqc::STATE, SRQ_ERROR);
        self.diagnose(now, format_args!("SRQ {srqn} went to error: its memory can't be read"));
        let mut eqe = Eqe::new();
        eqe.set(Eqe::QUEUE_NUMBER, srqn.0);
        self.push_event(now, EventType::SrqCatastrophic, &mut eqe);
    }

    fn fetch_shared(&mut self, srqn: Srqn) -> Result<Receive, NoReceive> {
        let hw = self.srqs.get_mut(srqn.0).ok_or(NoReceive::NotReady)?;
        if hw.available(&*self.memory) == 0 {
            return Err(NoReceive::NotReady);
        }
        let index = hw.next;
        let stride = (1usize << hw.log_stride).min(MAX_STRIDE);
        let slot = u64::from(index) & ((1 << hw.log_size) - 1);
        let buffer = self.fw.icm.srqs.get(srqn.0).map(|s| &s.buffer);
        let at = buffer.and_then(|b| b.at(slot << hw.log_stride)).ok_or(NoReceive::Broken)?.0;
        let mut bytes = [0; MAX_STRIDE];
        let bytes = bytes.get_mut(..stride).ok_or(NoReceive::Broken)?;
        self.memory.read(at, bytes).map_err(|_| NoReceive::Broken)?;
        let (next, segments) = SrqNext::read_from_prefix(bytes).map_err(|_| NoReceive::Broken)?;
        hw.next = next.get(SrqNext::NEXT_WQE_INDEX) as u16;
        hw.consumed = hw.consumed.wrapping_add(1);
        let mut receive = Receive::parse(index, segments);
        receive.pd = self.fw.icm.srqs.get(srqn.0).map(|s| Pd(s.ctx.get(Srqc::PD)));
        Ok(receive)
    }

    /// Raises the limit event if fewer WQEs are left than the armed limit says; it disarms.
    pub(crate) fn srq_limit(&mut self, now: Ps, srqn: Srqn) {
        let Some(hw) = self.srqs.get_mut(srqn.0).filter(|s| s.limit > 0) else { return };
        hw.posted = fetch_posted(&*self.memory, hw.doorbell_record).unwrap_or(hw.posted);
        if hw.posted.wrapping_sub(hw.consumed) < hw.limit {
            hw.limit = 0;
            let number = hw.srqn.0;
            if let Some(srq) = self.fw.icm.srqs.get_mut(number) {
                srq.ctx.set(Srqc::LWM, 0);
            }
            let mut eqe = Eqe::new();
            eqe.set(Eqe::QUEUE_NUMBER, number);
            self.push_event(now, EventType::SrqLimit, &mut eqe);
        }
    }
}

impl QueuePair {
    /// Who looks up the memory of a receive WQE.
    pub(crate) fn local(&self, receive: &Receive) -> Accessor {
        Accessor { pd: receive.pd.unwrap_or(self.params.pd), ..self.accessor() }
    }

    /// Takes the next receive WQE: of the queue pair's queue, or of the XRC SRQ that the request names.
    pub(crate) fn take_receive(
        &mut self,
        core: &mut Core,
        now: Ps,
        xrc: Option<XrcSrq>,
    ) -> Result<Receive, NoReceive> {
        match self.responder.spare.take() {
            Some(spare) if spare.xrc == xrc => return Ok(spare),
            // The peer changed its mind about the SRQ that the message goes to.
            Some(spare) => self.complete_receive_error(core, now, &spare, Syndrome::WorkRequestFlushed),
            None => {}
        }
        if let Some(srq) = xrc {
            let receive = core.take_shared(now, srq.srqn)?;
            return Ok(Receive { xrc, ..receive });
        }
        match &mut self.rq {
            ReceiveQueue::None => Err(NoReceive::NotReady),
            ReceiveQueue::Shared(srqn) => core.take_shared(now, *srqn),
            ReceiveQueue::Own { log_size, stride, head, posted } => {
                if *head == *posted {
                    *posted =
                        fetch_posted(&*core.memory, self.params.doorbell_record).ok_or(NoReceive::Broken)?;
                }
                if *head == *posted {
                    return Err(NoReceive::NotReady);
                }
                let slot = u64::from(*head) & ((1 << *log_size) - 1);
                let buffer = core.fw.icm.qps.get(self.qpn.0).map(|q| &q.buffer);
                let at = buffer.and_then(|b| b.at(slot * *stride)).ok_or(NoReceive::Broken)?.0;
                let mut bytes = [0; MAX_STRIDE];
                let bytes = bytes.get_mut(..*stride as usize).ok_or(NoReceive::Broken)?;
                core.memory.read(at, bytes).map_err(|_| NoReceive::Broken)?;
                let receive = Receive::parse(*head, bytes);
                *head = head.wrapping_add(1);
                Ok(receive)
            }
        }
    }

    /// Completes every posted receive as flushed. A shared queue's WQEs stay, but for one that a message had
    /// taken. Returns how many were posted; `None`: the doorbell record can't be read, or there is none.
    pub(crate) fn flush_receives(&mut self, core: &mut Core, now: Ps) -> Option<u16> {
        if let Some(started) = self.responder.abandon() {
            self.complete_receive_error(core, now, &started, Syndrome::WorkRequestFlushed);
        }
        let ReceiveQueue::Own { log_size, head, posted, .. } = &mut self.rq else { return None };
        *posted = fetch_posted(&*core.memory, self.params.doorbell_record)?;
        let waiting = posted.wrapping_sub(*head);
        if u32::from(waiting) > 1 << *log_size {
            // More than the queue holds: the record is rubbish, nothing sensible can be flushed.
            *head = *posted;
            return Some(0);
        }
        for _ in 0..waiting {
            let ReceiveQueue::Own { head, .. } = &mut self.rq else { return None };
            let receive = Receive::parse(*head, &[]);
            *head = head.wrapping_add(1);
            self.complete_receive_error(core, now, &receive, Syndrome::WorkRequestFlushed);
        }
        Some(waiting)
    }

    /// A CQE about a receive WQE, and the queue that it goes to.
    pub(crate) fn receive_cqe(&self, opcode: CqeOpcode, receive: &Receive) -> (Cqn, Cqe) {
        let mut cqe = self.cqe(opcode, receive.index);
        match receive.xrc {
            Some(srq) => {
                cqe.set(Cqe::SRQN_USER_INDEX, srq.mark);
                (srq.cqn, cqe)
            }
            None => (self.params.cqn_rcv, cqe),
        }
    }

    pub(crate) fn complete_receive_error(
        &mut self,
        core: &mut Core,
        now: Ps,
        receive: &Receive,
        syndrome: Syndrome,
    ) {
        count_receive_error(core, self.qpn, syndrome);
        let (cqn, mut cqe) = self.receive_cqe(CqeOpcode::RespErr, receive);
        cqe.set(Cqe::SYNDROME, syndrome as u32).set(Cqe::VENDOR_ERR_SYND, syndrome.vendor().into());
        self.complete(core, now, cqn, cqe);
    }
}

/// Counts a receive that completes in error, by cause.
fn count_receive_error(core: &mut Core, qpn: Qpn, syndrome: Syndrome) {
    let icm = &mut core.fw.icm;
    let cause = match syndrome {
        Syndrome::WorkRequestFlushed => return icm.count(qpn, QCounter::RespCqeFlushError),
        Syndrome::LocalLength => Some(QCounter::RespLocalLengthError),
        Syndrome::LocalQpOperation => Some(QCounter::RespLocalQpError),
        Syndrome::LocalProtection | Syndrome::LocalAccess => Some(QCounter::RespLocalProtection),
        _ => None,
    };
    icm.count(qpn, QCounter::RespCqeError);
    if let Some(cause) = cause {
        icm.count(qpn, cause);
    }
}
