//! Receive queues of frames (RQ): a ring of scatter lists.
//!
//! Source: PRM "RQ Context", "CREATE_RQ", "MODIFY_RQ".

use alloc::vec;

use hca_spec::cmd::ObjectIn;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::{Cqn, Pd, Rqn, Srqn};
use hca_spec::queue::Wq;
use hca_spec::rq::{CreateRqIn, ModifyRqIn, QueryRqOut, RQ_RMP, Rqc, modify_rq};
use hca_spec::wqe::Data;

use super::sq::{CYCLIC, QueueState};
use crate::bus::{Bus, Dma, pages_of};
use crate::counters::CounterSet;
use crate::cq::{Completion, Cq, RECORD_LINE, Side};
use crate::error::Error;
use crate::events::with_pages;
use crate::hca::Hca;
use crate::qp::ring::Ring;
use crate::qp::{RECORD_RECEIVE, log2_of};
use crate::wqe::{self, Sge};

/// How a receive queue shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RqConfig {
    /// The completion queue.
    pub cq: Cqn,
    /// Protection domain of the memory.
    pub pd: Pd,
    /// Receive requests; rounded up to a power of two.
    pub requests: u32,
    /// Scatter entries of a request; rounded up to a power of two.
    pub sges: u32,
    /// A pool of requests that the queue takes from; it has none of its own then.
    pub pool: Option<Srqn>,
    /// VLAN tags are taken out, and shown in the completion.
    pub strip_vlan: bool,
    /// Frame check sequences are written behind the frames ([`Hca::rq_check_sequences`]).
    pub check_sequences: bool,
    /// What is posted in error is flushed.
    pub flush: bool,
    /// Counters of frames without a request.
    pub counters: Option<CounterSet>,
    /// What completions call the queue ([`Completion::srqn`]).
    pub user_index: u32,
    /// Its requests may name the reserved local key, under which addresses are bus addresses ([`Hca::reserved_lkey`]).
    pub physical: bool,
}

impl RqConfig {
    /// A queue of 64 requests of up to two pieces. Tags stay.
    pub fn new<D: Dma>(pd: Pd, cq: &Cq<D>) -> Self {
        Self {
            cq: cq.number(),
            pd,
            requests: 64,
            sges: 2,
            pool: None,
            strip_vlan: false,
            check_sequences: false,
            flush: true,
            counters: None,
            user_index: 0,
            physical: false,
        }
    }
}

/// A receive queue.
#[must_use = "destroy it with Hca::destroy_rq"]
pub struct Rq<D> {
    number: Rqn,
    buffer: D,
    record: D,
    ring: Ring,
    state: QueueState,
}

impl<D: Dma> Rq<D> {
    /// The queue's number.
    pub fn number(&self) -> Rqn {
        self.number
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full or the list is too long.
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        if self.ring.free() == 0 {
            return Err(Error::QueueFull);
        }
        let mut wqe = vec![0; self.ring.stride];
        wqe::receive(sges, self.ring.stride / Data::SIZE, &mut wqe)?;
        self.ring.write(&mut self.buffer, &wqe);
        self.ring.take(wr_id, 1);
        self.record.store32(RECORD_RECEIVE, self.ring.head.into());
        Ok(())
    }

    /// Retires what a completion of this queue completes; returns the caller's number of the request. The completion does not
    /// name the queue: its completion queue or its user index does.
    pub fn finish(&mut self, completion: &Completion) -> Option<u64> {
        if completion.side == Side::Receive { self.ring.retire(completion.wqe_index) } else { None }
    }

    /// Requests that can be posted.
    pub fn room(&self) -> u32 {
        self.ring.free()
    }
}

impl<B: Bus> Hca<B> {
    /// Creates a receive queue in state [`QueueState::Reset`].
    pub fn create_rq(&mut self, config: &RqConfig) -> Result<Rq<B::Dma>, Error> {
        let (log_size, log_sges) = (log2_of(config.requests)?, log2_of(config.sges)?);
        let stride = Data::SIZE << log_sges;
        let size = stride << log_size;
        let buffer = self.dma_alloc(size.max(crate::PAGE_SIZE))?;
        let mut record = self.dma_alloc(RECORD_LINE)?;
        record.store32(RECORD_RECEIVE, 0);
        let mut input = CreateRqIn::new();
        let rqc = input.rqc_mut();
        rqc.set(Rqc::CQN, config.cq.0).set(Rqc::VSD, (!config.strip_vlan).into());
        rqc.set(Rqc::SCATTER_FCS, config.check_sequences.into());
        rqc.set(Rqc::RLKY, config.physical.into())
            .set(Rqc::FLUSH_IN_ERROR_EN, config.flush.into())
            .set(Rqc::USER_INDEX, config.user_index);
        rqc.set(Rqc::COUNTER_SET_ID, config.counters.map_or(0, |set| set.0.into()));
        let (ring, list) = match config.pool {
            Some(pool) => {
                rqc.set(Rqc::MEM_RQ_TYPE, RQ_RMP).set(Rqc::RMPN, pool.0);
                (Ring::new(0, stride, 0), None)
            }
            None => {
                let wq = rqc.wq_mut();
                wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, stride.ilog2());
                wq.set(Wq::LOG_WQ_SZ, log_size).set(Wq::PD, config.pd.0);
                wq.set(Wq::DBR_ADDR, record.bus_address());
                (Ring::new(0, stride, 1 << log_size), Some(pages_of(buffer.bus_address(), size)))
            }
        };
        let input = match list {
            Some(pages) => with_pages(input.bytes(), pages),
            None => input.bytes().to_vec(),
        };
        let number = Rqn(self.create(Opcode::CreateRq, 0, input)?);
        Ok(Rq { number, buffer, record, ring, state: QueueState::Reset })
    }

    /// Moves a receive queue to another state. One that is reset begins with its first WQE again.
    ///
    /// # Errors
    /// There is no such transition, or the adapter took the queue to error by itself meanwhile ([`Hca::rq_state`]).
    pub fn modify_rq(&mut self, rq: &mut Rq<B::Dma>, to: QueueState) -> Result<(), Error> {
        let mut input = ModifyRqIn::new();
        input.set(ModifyRqIn::RQN, rq.number.0).set(ModifyRqIn::RQ_STATE, rq.state as u32);
        input.rqc_mut().set(Rqc::STATE, to as u32);
        self.execute(Opcode::ModifyRq, 0, input.bytes().to_vec(), OutHeader::SIZE)?;
        rq.state = to;
        if to == QueueState::Reset {
            rq.ring.reset();
            rq.record.store32(RECORD_RECEIVE, 0);
        }
        Ok(())
    }

    /// From now on frame check sequences are written behind the frames, or not.
    pub fn rq_check_sequences(&mut self, rq: &Rq<B::Dma>, on: bool) -> Result<(), Error> {
        let mut input = ModifyRqIn::new();
        input.set(ModifyRqIn::RQN, rq.number.0).set(ModifyRqIn::RQ_STATE, rq.state as u32);
        input.set(ModifyRqIn::MODIFY_BITMASK, modify_rq::SCATTER_FCS);
        input.rqc_mut().set(Rqc::STATE, rq.state as u32).set(Rqc::SCATTER_FCS, on.into());
        self.execute(Opcode::ModifyRq, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Asks the adapter for a receive queue's state, and remembers it.
    pub fn rq_state(&mut self, rq: &mut Rq<B::Dma>) -> Result<QueueState, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, rq.number.0);
        let out = self.execute(Opcode::QueryRq, 0, input.bytes().to_vec(), QueryRqOut::SIZE)?;
        let state = QueryRqOut::from_prefix_or_zero(&out).rqc().get(Rqc::STATE);
        rq.state =
            QueueState::from_bits(state).ok_or(Error::Invalid("a reserved state of a receive queue"))?;
        Ok(rq.state)
    }

    /// Destroys a receive queue that no TIR or table names.
    pub fn destroy_rq(&mut self, rq: Rq<B::Dma>) -> Result<(), Error> {
        self.destroy(Opcode::DestroyRq, rq.number.0, rq)
    }
}
