//! Shared receive queues (SRQ): receive requests that several queue pairs take from.
//!
//! With interface step 1 a basic SRQ is a *receive memory pool* (RMP); an *XRC SRQ* has a completion queue and
//! an XRC domain of its own, and senders name it. Requests form a linked list in a ring: each entry names the next, the adapter follows the links, and the driver appends an entry
//! when its completion comes back, in whatever order that happens (PRM "Shared Receive Queue").

use crate::bus::{Bus, Dma, pages_of};
use crate::cq::{Completion, RECORD_LINE, Side};
use crate::error::Error;
use crate::hca::Hca;
use crate::tags::TagQueueConfig;
use crate::wqe::{self, Sge};
use alloc::vec;
use alloc::vec::Vec;
use hca_spec::cmd::{
    CreateRmpIn, CreateSrqIn, MODIFY_RMP_LWM, ModifyRmpIn, ObjectIn, QueryRmpOut, QuerySrqOut,
};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::{Cqn, Pd, Srqn, Xrcd};
use hca_spec::queue::{RMP_READY, Rmpc, Srqc, Wq};
use hca_spec::wqe::{Data, SrqNext};
use hca_spec::xrq::{QueryXrqOut, Xrqc};

/// Offset of the receive counter in the doorbell record.
const RECORD_RECEIVE: usize = 0;
/// Entries are counted with 16 bits.
const LOG_MAX_ENTRIES: u32 = 15;
/// `op_mod` of ARM_XRC_SRQ: the limit of a shared receive queue.
const ARM_SRQ: u32 = 1;

/// Which family of commands a queue belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pool,
    Xrc,
    Tags,
}

/// How an XRC shared receive queue shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcSrqConfig {
    /// Protection domain of its requests' memory, and of remote accesses that name the queue.
    pub pd: Pd,
    /// XRC domain: queue pairs of the same domain may deliver here.
    pub xrcd: Xrcd,
    /// Completion queue of its receives.
    pub cq: Cqn,
    /// Receive requests.
    pub requests: u32,
    /// Scatter entries of a receive request.
    pub sges: u32,
    /// What completions call the queue; `None`: its number.
    pub user_index: Option<u32>,
}

/// A shared receive queue.
#[must_use = "destroy it with Hca::destroy_srq"]
pub struct Srq<D> {
    number: Srqn,
    kind: Kind,
    /// What completions call the queue.
    mark: u32,
    buffer: D,
    record: D,
    stride: usize,
    /// Entry to fill next.
    head: u16,
    /// Last entry of the list; never filled, so that there is always one to append to.
    tail: u16,
    posted: u16,
    links: Vec<u16>,
    wr_ids: Vec<Option<u64>>,
}

impl<D: Dma> Srq<D> {
    /// The queue's number.
    pub fn number(&self) -> Srqn {
        self.number
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Nothing is posted: the queue is full or the list is too long.
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        if self.head == self.tail {
            return Err(Error::QueueFull);
        }
        let mut segments = vec![0; self.stride - SrqNext::SIZE];
        let room = segments.len() / Data::SIZE;
        wqe::receive(sges, room, &mut segments)?;
        let index = usize::from(self.head);
        self.buffer.write(index * self.stride + SrqNext::SIZE, &segments);
        self.wr_ids[index] = Some(wr_id);
        self.head = self.links[index];
        self.posted = self.posted.wrapping_add(1);
        self.record.store32(RECORD_RECEIVE, self.posted.into());
        Ok(())
    }

    /// Retires what a receive completion that names this queue completes; returns the caller's number of the request.
    pub fn finish(&mut self, completion: &Completion) -> Option<u64> {
        let is_ours = completion.side == Side::Receive && completion.srqn.0 == self.mark;
        if !is_ours || completion.tags.is_some_and(|tags| tags.is_about_the_list()) {
            return None;
        }
        let wr_id = self.wr_ids.get_mut(usize::from(completion.wqe_index))?.take()?;
        self.link(self.tail, completion.wqe_index);
        self.tail = completion.wqe_index;
        Some(wr_id)
    }

    fn link(&mut self, from: u16, to: u16) {
        let mut next = SrqNext::new();
        next.set(SrqNext::NEXT_WQE_INDEX, to.into());
        self.buffer.write(usize::from(from) * self.stride, next.bytes());
        self.links[usize::from(from)] = to;
    }
}

/// log2 of the entries and of the stride in bytes.
struct Shape {
    log_size: u32,
    log_stride: u32,
}

impl Shape {
    fn new(requests: u32, sges: u32) -> Result<Self, Error> {
        // One entry is always unused.
        let entries = requests.saturating_add(1).checked_next_power_of_two().map(u32::ilog2);
        let log_size =
            entries.filter(|l| *l <= LOG_MAX_ENTRIES).ok_or(Error::Invalid("the queue is too long"))?;
        let log_stride =
            sges.saturating_add(1).checked_next_power_of_two().map(|n| n.ilog2() + Data::SIZE.ilog2());
        let log_stride = log_stride.filter(|l| *l < 12).ok_or(Error::Invalid("too many scatter entries"))?;
        Ok(Self { log_size, log_stride })
    }

    fn bytes(&self) -> usize {
        1 << (self.log_size + self.log_stride)
    }
}

impl<B: Bus> Hca<B> {
    /// Allocates an XRC domain (PRM "ALLOC_XRCD").
    pub fn alloc_xrcd(&mut self) -> Result<Xrcd, Error> {
        Ok(Xrcd(self.create(Opcode::AllocXrcd, 0, ObjectIn::new().bytes().to_vec())?))
    }

    /// Frees an XRC domain; no queue pair and no SRQ may be in it any more.
    pub fn dealloc_xrcd(&mut self, xrcd: Xrcd) -> Result<(), Error> {
        self.object_command(Opcode::DeallocXrcd, xrcd.0)
    }

    fn blank_srq(&mut self, kind: Kind, shape: &Shape) -> Result<Srq<B::Dma>, Error> {
        let entries = 1 << shape.log_size;
        let mut srq = Srq {
            number: Srqn(0),
            kind,
            mark: 0,
            buffer: self.dma_alloc(shape.bytes().max(crate::PAGE_SIZE))?,
            record: self.dma_alloc(RECORD_LINE)?,
            stride: 1 << shape.log_stride,
            head: 0,
            tail: (entries - 1) as u16,
            posted: 0,
            links: vec![0; entries],
            wr_ids: vec![None; entries],
        };
        for index in 0..srq.tail {
            srq.link(index, index + 1);
        }
        Ok(srq)
    }

    /// Creates a shared receive queue for at least `requests` requests of up to `sges` pieces
    /// (PRM "CREATE_RMP").
    pub fn create_srq(&mut self, pd: Pd, requests: u32, sges: u32) -> Result<Srq<B::Dma>, Error> {
        if !self.has_issi_1() {
            return Err(Error::Unsupported("receive memory pools (interface step 1)"));
        }
        let shape = Shape::new(requests, sges)?;
        let mut srq = self.blank_srq(Kind::Pool, &shape)?;
        let mut input = CreateRmpIn::new();
        input.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        let wq = input.rmpc_mut().wq_mut();
        wq.set(Wq::PD, pd.0).set(Wq::DBR_ADDR, srq.record.bus_address());
        wq.set(Wq::LOG_WQ_STRIDE, shape.log_stride).set(Wq::LOG_WQ_SZ, shape.log_size);
        let pages = pages_of(srq.buffer.bus_address(), shape.bytes());
        let input = crate::events::with_pages(input.bytes(), pages);
        srq.number = Srqn(self.create(Opcode::CreateRmp, 0, input)?);
        srq.mark = srq.number.0;
        Ok(srq)
    }

    /// Creates an XRC shared receive queue (PRM "CREATE_XRC_SRQ").
    pub fn create_xrc_srq(&mut self, config: &XrcSrqConfig) -> Result<Srq<B::Dma>, Error> {
        if !self.has_issi_1() {
            return Err(Error::Unsupported("XRC shared receive queues (interface step 1)"));
        }
        let shape = Shape::new(config.requests, config.sges)?;
        let mut srq = self.blank_srq(Kind::Xrc, &shape)?;
        let mut input = CreateSrqIn::new();
        let srqc = input.srqc_mut();
        srqc.set(Srqc::PD, config.pd.0).set(Srqc::XRCD, config.xrcd.0).set(Srqc::CQN, config.cq.0);
        srqc.set(Srqc::DBR_ADDR, srq.record.bus_address()).set(Srqc::LOG_SRQ_SIZE, shape.log_size);
        // The stride is given in units of 16 bytes.
        srqc.set(Srqc::LOG_RQ_STRIDE, shape.log_stride - Data::SIZE.ilog2());
        srqc.set(Srqc::USER_INDEX, config.user_index.unwrap_or(Srqc::USER_INDEX.max()));
        let pages = pages_of(srq.buffer.bus_address(), shape.bytes());
        let input = crate::events::with_pages(input.bytes(), pages);
        srq.number = Srqn(self.create(Opcode::CreateXrcSrq, 0, input)?);
        srq.mark = config.user_index.unwrap_or(srq.number.0);
        Ok(srq)
    }

    /// Creates a shared receive queue that matches tags.
    pub fn create_tag_queue(&mut self, config: &TagQueueConfig) -> Result<Srq<B::Dma>, Error> {
        let shape = Shape::new(config.requests, config.sges)?;
        let mut srq = self.blank_srq(Kind::Tags, &shape)?;
        let mut input = config.input();
        let wq = input.xrqc_mut().wq_mut();
        wq.set(Wq::PD, config.pd.0).set(Wq::DBR_ADDR, srq.record.bus_address());
        wq.set(Wq::LOG_WQ_STRIDE, shape.log_stride).set(Wq::LOG_WQ_SZ, shape.log_size);
        let pages = pages_of(srq.buffer.bus_address(), shape.bytes());
        let input = crate::events::with_pages(input.bytes(), pages);
        srq.number = Srqn(self.create(Opcode::CreateXrq, 0, input)?);
        srq.mark = config.user_index.unwrap_or(srq.number.0);
        Ok(srq)
    }

    /// Asks the adapter for the context of a queue that matches tags.
    pub fn tag_queue(&mut self, srq: &Srq<B::Dma>) -> Result<Xrqc, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, srq.number.0);
        let out = self.execute(Opcode::QueryXrq, 0, input.bytes().to_vec(), QueryXrqOut::SIZE)?;
        Ok(*QueryXrqOut::from_prefix_or_zero(&out).xrqc())
    }

    /// Asks for one event when fewer than `limit` requests are left.
    pub fn arm_srq(&mut self, srq: &Srq<B::Dma>, limit: u16) -> Result<(), Error> {
        let command = match srq.kind {
            Kind::Pool => None,
            Kind::Xrc => Some((Opcode::ArmXrcSrq, ARM_SRQ)),
            Kind::Tags => Some((Opcode::ArmXrq, 0)),
        };
        if let Some((opcode, op_mod)) = command {
            let mut input = ObjectIn::new();
            input.set(ObjectIn::NUMBER, srq.number.0).set(ObjectIn::LWM, limit.into());
            let input = input.bytes().to_vec();
            return self.execute(opcode, op_mod, input, OutHeader::SIZE).map(drop);
        }
        let mut input = ModifyRmpIn::new();
        input.set(ModifyRmpIn::RMPN, srq.number.0).set(ModifyRmpIn::RMP_STATE, RMP_READY);
        input.set(ModifyRmpIn::BITMASK, MODIFY_RMP_LWM);
        input.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        input.rmpc_mut().wq_mut().set(Wq::LWM, limit.into());
        self.execute(Opcode::ModifyRmp, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Asks the adapter for the limit that is armed; 0 = none, or its event came.
    pub fn srq_limit(&mut self, srq: &Srq<B::Dma>) -> Result<u16, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, srq.number.0);
        let input = input.bytes().to_vec();
        let limit = match srq.kind {
            Kind::Pool => {
                let out = self.execute(Opcode::QueryRmp, 0, input, QueryRmpOut::SIZE)?;
                QueryRmpOut::from_prefix_or_zero(&out).rmpc().wq().get(Wq::LWM)
            }
            Kind::Xrc => {
                let out = self.execute(Opcode::QueryXrcSrq, 0, input, QuerySrqOut::SIZE)?;
                QuerySrqOut::from_prefix_or_zero(&out).srqc().get(Srqc::LWM)
            }
            Kind::Tags => self.tag_queue(srq)?.wq().get(Wq::LWM),
        };
        Ok(limit as u16)
    }

    /// Destroys a shared receive queue; no queue pair may use it any more.
    pub fn destroy_srq(&mut self, srq: Srq<B::Dma>) -> Result<(), Error> {
        let opcode = match srq.kind {
            Kind::Pool => Opcode::DestroyRmp,
            Kind::Xrc => Opcode::DestroyXrcSrq,
            Kind::Tags => Opcode::DestroyXrq,
        };
        self.destroy(opcode, srq.number.0, srq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Memory;
    use hca_spec::cqe::{Cqe, CqeOpcode};

    fn completion(index: u16) -> Completion {
        let mut cqe = Cqe::new();
        cqe.set(Cqe::OPCODE, CqeOpcode::RespSend as u32).set(Cqe::SRQN_USER_INDEX, 9);
        Completion::decode(cqe.set(Cqe::WQE_COUNTER, index.into()))
    }

    #[test]
    fn entries_return_in_the_order_of_their_completions() {
        let mut srq = Srq {
            number: Srqn(9),
            kind: Kind::Pool,
            mark: 9,
            buffer: Memory::new(4 * 64),
            record: Memory::new(8),
            stride: 64,
            head: 0,
            tail: 3,
            posted: 0,
            links: vec![1, 2, 3, 0],
            wr_ids: vec![None; 4],
        };
        (0..3).for_each(|i| srq.post_recv(i, &[]).unwrap());
        assert_eq!(srq.post_recv(3, &[]), Err(Error::QueueFull));
        assert_eq!((srq.finish(&completion(1)), srq.finish(&completion(1))), (Some(1), None));
        assert_eq!((srq.finish(&completion(0)), srq.finish(&completion(7))), (Some(0), None));
        // The adapter follows 2 -> 3 -> 1 -> 0.
        srq.post_recv(10, &[]).unwrap();
        srq.post_recv(11, &[]).unwrap();
        assert_eq!(srq.post_recv(12, &[]), Err(Error::QueueFull));
        assert_eq!((srq.links[3], srq.links[1]), (1, 0));
        assert_eq!(srq.buffer.load32(3 * 64), 1);
        assert_eq!((srq.finish(&completion(3)), srq.record.load32(0)), (Some(10), 5));
    }
}
