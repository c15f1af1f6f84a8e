//! Send queues of frames (SQ).
//!
//! Source: PRM "SQ Context", "CREATE_SQ", "MODIFY_SQ".

use hca_spec::cmd::{CreateSqIn, ModifySqIn, ObjectIn, QuerySqOut};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::{Cqn, Pd, Qpn, UarIndex};
use hca_spec::queue::{SQ_ERROR, SQ_READY, SQ_RESET, Sqc, Wq};
use hca_spec::uar::{SEND_DOORBELL, SEND_DOORBELL_STEP};
use hca_spec::wqe::WQEBB;

use super::{FrameRequest, Tis};
use crate::bus::{Bus, Dma, pages_of};
use crate::cq::{Completion, Cq, RECORD_LINE, Side};
use crate::error::Error;
use crate::events::{page, with_pages};
use crate::hca::Hca;
use crate::qp::ring::Ring;
use crate::qp::{RECORD_SEND, log2_of};
use crate::wqe::Wqe;

/// [`Wq::WQ_TYPE`]: a ring.
pub(super) const CYCLIC: u32 = 1;

/// State of a send or receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum QueueState {
    /// Nothing is done.
    Reset = SQ_RESET as u8,
    /// It sends, or receives.
    Ready = SQ_READY as u8,
    /// What is posted is flushed.
    Error = SQ_ERROR as u8,
}

impl QueueState {
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        [Self::Reset, Self::Ready, Self::Error].into_iter().find(|state| *state as u32 == bits)
    }
}

/// How a send queue shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SqConfig {
    /// By which transport interface.
    pub tis: Tis,
    /// The completion queue.
    pub cq: Cqn,
    /// Protection domain of the data.
    pub pd: Pd,
    /// Basic blocks; rounded up to a power of two.
    pub blocks: u32,
    /// Headers that have to be inline: 0 none, 1 layer 2, 2 layer 3, 3 layer 4.
    pub min_inline: u8,
    /// WQEs may have several frames.
    pub multi_packet: bool,
    /// What is posted in error is flushed.
    pub flush: bool,
    /// Its requests may name the reserved local key, under which addresses are bus addresses ([`Hca::reserved_lkey`]).
    pub physical: bool,
}

impl SqConfig {
    /// A queue of moderate size.
    pub fn new<D: Dma>(tis: Tis, pd: Pd, cq: &Cq<D>) -> Self {
        Self {
            tis,
            cq: cq.number(),
            pd,
            blocks: 256,
            min_inline: 0,
            multi_packet: true,
            flush: true,
            physical: false,
        }
    }
}

/// A send queue.
#[must_use = "destroy it with Hca::destroy_sq"]
pub struct Sq<D> {
    number: Qpn,
    buffer: D,
    record: D,
    uar: UarIndex,
    ring: Ring,
    state: QueueState,
    doorbell_half: u64,
    wqe: Wqe,
}

impl<D: Dma> Sq<D> {
    /// The queue's number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Posts a request and announces it.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full or the request can't be built.
    pub fn post<B: Bus>(&mut self, bus: &mut B, request: &FrameRequest<'_>) -> Result<(), Error> {
        self.queue(request)?;
        self.ring(bus);
        Ok(())
    }

    /// Puts a request into the ring; [`Sq::ring`] announces it.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full or the request can't be built.
    pub fn queue(&mut self, request: &FrameRequest<'_>) -> Result<(), Error> {
        self.wqe.frame(self.number, self.ring.head, request)?;
        if u32::from(self.wqe.blocks()) > self.ring.free() {
            return Err(Error::QueueFull);
        }
        self.ring.write(&mut self.buffer, self.wqe.bytes());
        self.ring.take(request.wr_id, self.wqe.blocks());
        Ok(())
    }

    /// Announces what is in the ring.
    pub fn ring<B: Bus>(&mut self, bus: &mut B) {
        let doorbell = self.wqe.doorbell();
        self.ring_doorbell(bus, doorbell);
    }

    /// Posts a WQE as it is: whole basic blocks.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full, or `wqe` is not a number of whole blocks.
    pub fn post_raw<B: Bus>(&mut self, bus: &mut B, wr_id: u64, wqe: &[u8]) -> Result<(), Error> {
        let blocks = wqe.len() / WQEBB;
        if blocks == 0 || !wqe.len().is_multiple_of(WQEBB) {
            return Err(Error::Invalid("a WQE is a number of whole basic blocks"));
        }
        if blocks > self.ring.free() as usize {
            return Err(Error::QueueFull);
        }
        self.ring.write(&mut self.buffer, wqe);
        self.ring.take(wr_id, blocks as u16);
        self.ring_doorbell(bus, hca_spec::be64(wqe, 0));
        Ok(())
    }

    fn ring_doorbell<B: Bus>(&mut self, bus: &mut B, doorbell: u64) {
        self.record.store32(RECORD_SEND, self.ring.head.into());
        bus.mmio_write64(page(self.uar) + SEND_DOORBELL + self.doorbell_half, doorbell);
        self.doorbell_half ^= SEND_DOORBELL_STEP;
    }

    /// Index of the next WQE.
    pub fn next_index(&self) -> u16 {
        self.ring.head
    }

    /// Retires what a completion of this queue completes; returns the caller's number of the request.
    pub fn finish(&mut self, completion: &Completion) -> Option<u64> {
        let own = completion.qpn == self.number && completion.side == Side::Send;
        if own { self.ring.retire(completion.wqe_index) } else { None }
    }

    /// Basic blocks that are free.
    pub fn room(&self) -> u32 {
        self.ring.free()
    }
}

impl<B: Bus> Hca<B> {
    /// Creates a send queue in state [`QueueState::Reset`].
    pub fn create_sq(&mut self, config: &SqConfig) -> Result<Sq<B::Dma>, Error> {
        let log_size = log2_of(config.blocks)?;
        let size = WQEBB << log_size;
        let buffer = self.dma_alloc(size.max(crate::PAGE_SIZE))?;
        let record = self.dma_alloc(RECORD_LINE)?;
        let uar = self.uar();
        let mut input = CreateSqIn::new();
        let sqc = input.sqc_mut();
        sqc.set(Sqc::CQN, config.cq.0).set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, config.tis.0);
        sqc.set(Sqc::MIN_WQE_INLINE_MODE, config.min_inline.into());
        sqc.set(Sqc::ALLOW_MULTI_PKT_SEND_WQE, config.multi_packet.into());
        sqc.set(Sqc::RLKY, config.physical.into())
            .set(Sqc::FLUSH_IN_ERROR_EN, config.flush.into())
            .set(Sqc::USER_INDEX, Sqc::USER_INDEX.max());
        let wq = sqc.wq_mut();
        wq.set(Wq::WQ_TYPE, CYCLIC).set(Wq::LOG_WQ_STRIDE, WQEBB.ilog2()).set(Wq::LOG_WQ_SZ, log_size);
        wq.set(Wq::UAR_PAGE, uar.0).set(Wq::PD, config.pd.0).set(Wq::DBR_ADDR, record.bus_address());
        let input = with_pages(input.bytes(), pages_of(buffer.bus_address(), size));
        let number = Qpn(self.create(Opcode::CreateSq, 0, input)?);
        Ok(Sq {
            number,
            buffer,
            record,
            uar,
            ring: Ring::new(0, WQEBB, 1 << log_size),
            state: QueueState::Reset,
            doorbell_half: 0,
            wqe: Wqe::default(),
        })
    }

    /// Moves a send queue to another state. One that is reset begins with its first WQE again.
    ///
    /// # Errors
    /// There is no such transition, or the adapter took the queue to error by itself meanwhile ([`Hca::sq_state`]).
    pub fn modify_sq(&mut self, sq: &mut Sq<B::Dma>, to: QueueState) -> Result<(), Error> {
        let mut input = ModifySqIn::new();
        input.set(ModifySqIn::SQN, sq.number.0).set(ModifySqIn::SQ_STATE, sq.state as u32);
        input.sqc_mut().set(Sqc::STATE, to as u32);
        self.execute(Opcode::ModifySq, 0, input.bytes().to_vec(), OutHeader::SIZE)?;
        sq.state = to;
        if to == QueueState::Reset {
            sq.ring.reset();
            sq.record.store32(RECORD_SEND, 0);
        }
        Ok(())
    }

    /// Asks the adapter for a send queue's state, and remembers it.
    pub fn sq_state(&mut self, sq: &mut Sq<B::Dma>) -> Result<QueueState, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, sq.number.0);
        let out = self.execute(Opcode::QuerySq, 0, input.bytes().to_vec(), QuerySqOut::SIZE)?;
        let state = QuerySqOut::from_prefix_or_zero(&out).sqc().get(Sqc::STATE);
        sq.state = QueueState::from_bits(state).ok_or(Error::Invalid("a reserved state of a send queue"))?;
        Ok(sq.state)
    }

    /// Destroys a send queue.
    pub fn destroy_sq(&mut self, sq: Sq<B::Dma>) -> Result<(), Error> {
        self.destroy(Opcode::DestroySq, sq.number.0, sq)
    }
}
