//! Receive queues: their own, shared ones, and those that XRC requests name.
//!
//! Source: PRM "Receive Queue WQE", "Shared Receive Queue", "Doorbell Records".

use hca_firmware::icm::{Qp, Srq, SrqKind, SrqOrder};
use hca_firmware::{Icm, QCounter};
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ids::{Cqn, Mkey, Pd, Srqn};
use hca_spec::qpc::{Qpc, RqType};
use hca_spec::queue::Srqc;
use hca_spec::wqe::{DS_UNIT, Data, SrqNext, TERMINATE_LKEY};
use smallvec::SmallVec;
use zerocopy::FromBytes;

use super::tags::{TagList, Tagged};
use super::{NO_USER_INDEX, QueuePair};
use crate::engines::mkey::Accessor;
use crate::engines::pieces::{Piece, total};

/// Largest receive WQE in bytes: stride codes go up to 16 << 7.
pub(crate) const MAX_STRIDE: usize = 2048;

/// A receive WQE that was taken from its queue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Receive {
    /// What the CQE carries as `wqe_counter`.
    pub(crate) index: u16,
    /// Few as they mostly are they take no memory of their own.
    pub(crate) pieces: SmallVec<[Piece; 2]>,
    pub(crate) room: u64,
    /// Of a shared queue: the domain that its memory belongs to (IBTA 10.2.9.1); else the queue pair's.
    pub(crate) pd: Option<Pd>,
    /// The XRC SRQ it comes from.
    pub(crate) xrc: Option<XrcSrq>,
    /// Of a queue with tag matching: what that knows of the message.
    pub(crate) tagged: Option<Tagged>,
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
    pub(crate) fn parse(index: u16, segments: &[u8]) -> Self {
        let mut pieces = SmallVec::new();
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
        Self { index, pieces, room, pd: None, xrc: None, tagged: None }
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

    /// WQEs consumed and posted; `posted`: the receive counter of the doorbell record, if that can be read.
    pub(crate) fn counters(&self, known: Option<u16>) -> (u16, u16) {
        match self {
            Self::Own { head, posted, .. } => (*head, known.unwrap_or(*posted)),
            _ => (0, 0),
        }
    }

    /// The doorbell record counts so many WQEs, if it could be read.
    pub(crate) fn post(&mut self, counted: Option<u16>) {
        if let (Self::Own { posted, .. }, Some(counted)) = (self, counted) {
            *posted = counted;
        }
    }

    /// Of an own queue: WQEs that are known to be posted and not consumed.
    pub(crate) fn waiting(&self) -> Option<u16> {
        match self {
            Self::Own { head, posted, .. } => Some(posted.wrapping_sub(*head)),
            _ => None,
        }
    }
}

impl QueuePair {
    /// Whether few receive requests are known to be left, so that the doorbell record is looked at again.
    pub(crate) fn counts_few_receives(&self) -> bool {
        const FEW: u16 = 64;
        self.rq.waiting().is_some_and(|waiting| waiting < FEW)
    }

    /// How many messages that take a receive request there is room for; `None`: not counted, because others
    /// take from the same queue.
    pub(crate) fn credits(&self) -> Option<u32> {
        let started = self.responder.holds_receive();
        self.rq.waiting().map(|waiting| u32::from(waiting) + u32::from(started))
    }
}

/// The moving parts of a shared receive queue: a linked list whose head the hardware follows, or a ring.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(crate) srqn: Srqn,
    doorbell_record: u64,
    order: SrqOrder,
    log_stride: u32,
    log_size: u32,
    /// Index of the WQE to take next.
    next: u16,
    consumed: u16,
    posted: u16,
    /// Limit water mark; 0 = not armed.
    limit: u16,
    /// The list of tags, if it matches them.
    pub(crate) tags: Option<Box<TagList>>,
}

impl SharedQueue {
    pub(crate) fn new(srqn: Srqn, srq: &Srq) -> Self {
        Self {
            srqn,
            doorbell_record: srq.ctx.get(Srqc::DBR_ADDR),
            order: srq.order,
            log_stride: srq.log_stride,
            log_size: srq.log_size,
            next: 0,
            consumed: 0,
            posted: 0,
            limit: srq.ctx.get(Srqc::LWM) as u16,
            tags: TagList::new(srq).map(Box::new),
        }
    }

    pub(crate) fn arm(&mut self, srq: &Srq) {
        self.limit = srq.ctx.get(Srqc::LWM) as u16;
    }

    /// Writes the moving parts into the context; `posted`: the doorbell record, if it can be read.
    pub(crate) fn write_back(&mut self, posted: Option<u16>, srq: &mut Srq) {
        self.post(posted);
        if let Some(tags) = &self.tags {
            tags.write_back(&mut srq.matching);
        }
        let ctx = &mut srq.ctx;
        ctx.set(Srqc::WQE_CNT, self.available().into());
        ctx.set(Srqc::LWM, self.limit.into());
    }

    /// The doorbell record counts so many WQEs, if it could be read.
    pub(crate) fn post(&mut self, counted: Option<u16>) {
        self.posted = counted.unwrap_or(self.posted);
    }

    /// WQEs that are known to be posted and not consumed.
    pub(crate) fn available(&self) -> u16 {
        self.counts(None)
    }

    /// WQEs that are posted and not consumed, if the doorbell record counts so many; `None`: as it is known.
    pub(crate) fn counts(&self, counted: Option<u16>) -> u16 {
        counted.unwrap_or(self.posted).wrapping_sub(self.consumed)
    }

    /// Where its doorbell record is.
    pub(crate) fn doorbell_record(&self) -> u64 {
        self.doorbell_record
    }

    /// The offset of the next WQE in the queue's buffer, and its bytes.
    pub(crate) fn next_wqe(&self) -> (u64, usize) {
        let slot = u64::from(self.next) & ((1 << self.log_size) - 1);
        (slot << self.log_stride, (1usize << self.log_stride).min(MAX_STRIDE))
    }

    /// The next WQE, of these bytes, of a queue in that protection domain, and the index of the one behind it. `None`: they
    /// are too few.
    pub(crate) fn parse(&self, bytes: &[u8], pd: Option<Pd>) -> Option<(u16, Receive)> {
        let (head, segments) = bytes.split_at_checked(self.order.head())?;
        let next = match self.order {
            SrqOrder::List => SrqNext::read_from_bytes(head).ok()?.get(SrqNext::NEXT_WQE_INDEX) as u16,
            SrqOrder::Cyclic | SrqOrder::BasicCyclic => self.next.wrapping_add(1),
        };
        let mut receive = Receive::parse(self.next, segments);
        receive.pd = pd;
        Some((next, receive))
    }

    /// Takes the next WQE, as [`SharedQueue::parse`] reads it.
    pub(crate) fn take(&mut self, bytes: &[u8], pd: Option<Pd>) -> Option<Receive> {
        let (next, receive) = self.parse(bytes, pd)?;
        self.next = next;
        self.consumed = self.consumed.wrapping_add(1);
        Some(receive)
    }

    /// Whether a limit is armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.limit > 0
    }

    /// Whether fewer WQEs are left than the armed limit says; then it disarms.
    pub(crate) fn reaches_limit(&mut self) -> bool {
        let reached = self.available() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
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

/// The XRC SRQ of that number, if it is one of the domain `xrcd`.
pub(crate) fn xrc_srq(icm: &Icm, srqn: Srqn, xrcd: u32) -> Option<XrcSrq> {
    let srq = icm.srqs.get(srqn.0)?;
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

impl QueuePair {
    /// Who looks up the memory of a receive WQE.
    pub(crate) fn local(&self, receive: &Receive) -> Accessor {
        Accessor { pd: receive.pd.unwrap_or(self.params.pd), ..self.accessor() }
    }

    /// The queue that completions of a receive WQE go to.
    pub(crate) fn receive_cqn(&self, receive: &Receive) -> Cqn {
        let tagged = receive.tagged.map(|tagged| tagged.owner.cqn);
        receive.xrc.map(|srq| srq.cqn).or(tagged).unwrap_or(self.params.cqn_rcv)
    }

    /// A CQE about a receive WQE, and the queue that it goes to.
    pub(crate) fn receive_cqe(&self, opcode: CqeOpcode, receive: &Receive) -> (Cqn, Cqe) {
        let mut cqe = self.cqe(opcode, receive.index);
        if let Some(srq) = receive.xrc {
            cqe.set(Cqe::SRQN_USER_INDEX, srq.mark);
        }
        if let Some(tagged) = &receive.tagged {
            tagged.tell(&mut cqe, receive.index);
        }
        (self.receive_cqn(receive), cqe)
    }
}

/// The counters that a receive which completes in error moves: the sum, and that of its cause.
pub(crate) fn error_counters(syndrome: Syndrome) -> [Option<QCounter>; 2] {
    let cause = match syndrome {
        Syndrome::WorkRequestFlushed => return [Some(QCounter::RespCqeFlushError), None],
        Syndrome::LocalLength => Some(QCounter::RespLocalLengthError),
        Syndrome::LocalQpOperation => Some(QCounter::RespLocalQpError),
        Syndrome::LocalProtection | Syndrome::LocalAccess => Some(QCounter::RespLocalProtection),
        _ => None,
    };
    [Some(QCounter::RespCqeError), cause]
}
