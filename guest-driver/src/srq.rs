//! Shared receive queues (SRQ): receive requests that several queue pairs take from.
//!
//! With interface step 1 a basic SRQ is a *receive memory pool* (RMP). Its requests form a linked list in
//! a ring: each entry names the next, the adapter follows the links, and the driver appends an entry
//! when its completion comes back, in whatever order that happens (PRM "Shared Receive Queue").

use crate::bus::{Bus, Dma, pages_of};
use crate::cq::{Completion, RECORD_LINE, Side};
use crate::error::Error;
use crate::hca::Hca;
use crate::wqe::{self, Sge};
use alloc::vec;
use alloc::vec::Vec;
use hca_spec::cmd::{CreateRmpIn, ModifyRmpIn};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::{Pd, Srqn};
use hca_spec::queue::{RMP_READY, Rmpc, Wq};
use hca_spec::wqe::{Data, SrqNext};

/// Offset of the receive counter in the doorbell record.
const RECORD_RECEIVE: usize = 0;
/// Entries are counted with 16 bits.
const LOG_MAX_ENTRIES: u32 = 15;

/// A shared receive queue.
#[must_use = "destroy it with Hca::destroy_srq"]
pub struct Srq<D> {
    number: Srqn,
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

    /// Takes note of a receive completion that names this queue; gives the caller's number of the request.
    pub fn finish(&mut self, completion: &Completion) -> Option<u64> {
        if completion.side != Side::Receive || completion.srqn != self.number {
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

impl<B: Bus> Hca<B> {
    /// Creates a shared receive queue for at least `requests` requests of up to `sges` pieces
    /// (PRM "CREATE_RMP").
    pub fn create_srq(&mut self, pd: Pd, requests: u32, sges: u32) -> Result<Srq<B::Dma>, Error> {
        if !self.has_issi_1() {
            return Err(Error::Unsupported("receive memory pools (interface step 1)"));
        }
        // One entry is always unused.
        let entries = requests.saturating_add(1).checked_next_power_of_two().map(u32::ilog2);
        let log_size =
            entries.filter(|l| *l <= LOG_MAX_ENTRIES).ok_or(Error::Invalid("the queue is too long"))?;
        let log_stride =
            sges.saturating_add(1).checked_next_power_of_two().map(|n| n.ilog2() + Data::SIZE.ilog2());
        let log_stride = log_stride.filter(|l| *l < 12).ok_or(Error::Invalid("too many scatter entries"))?;
        let size = 1usize << (log_size + log_stride);
        let mut srq = Srq {
            number: Srqn(0),
            buffer: self.dma_alloc(size.max(crate::PAGE_SIZE))?,
            record: self.dma_alloc(RECORD_LINE)?,
            stride: 1 << log_stride,
            head: 0,
            tail: (1 << log_size) - 1,
            posted: 0,
            links: vec![0; 1 << log_size],
            wr_ids: vec![None; 1 << log_size],
        };
        for index in 0..srq.tail {
            srq.link(index, index + 1);
        }
        let mut input = CreateRmpIn::new();
        input.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        let wq = input.rmpc_mut().wq_mut();
        wq.set(Wq::PD, pd.0).set(Wq::DBR_ADDR, srq.record.bus_address());
        wq.set(Wq::LOG_WQ_STRIDE, log_stride).set(Wq::LOG_WQ_SZ, log_size);
        let input = crate::events::with_pages(input.bytes(), pages_of(srq.buffer.bus_address(), size));
        srq.number = Srqn(self.create(Opcode::CreateRmp, 0, input)?);
        Ok(srq)
    }

    /// Asks for one event when fewer than `limit` requests are left.
    pub fn arm_srq(&mut self, srq: &Srq<B::Dma>, limit: u16) -> Result<(), Error> {
        let mut input = ModifyRmpIn::new();
        input.set(ModifyRmpIn::RMPN, srq.number.0).set(ModifyRmpIn::RMP_STATE, RMP_READY);
        input.set(ModifyRmpIn::BITMASK_LWM, 1);
        input.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        input.rmpc_mut().wq_mut().set(Wq::LWM, limit.into());
        self.execute(Opcode::ModifyRmp, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Destroys a shared receive queue; no queue pair may use it any more.
    pub fn destroy_srq(&mut self, srq: Srq<B::Dma>) -> Result<(), Error> {
        self.destroy(Opcode::DestroyRmp, srq.number.0, srq)
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
