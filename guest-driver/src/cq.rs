//! Completion queues (CQ): the adapter's reports about finished work requests.
//!
//! A CQ is a ring of 64-byte entries with an owner bit each. The driver polls the ring and says how far
//! it came in a doorbell record in host memory; it may arm the CQ to get one event
//! (PRM "Completion Queues").

use crate::bus::{Bus, Dma, pages_of};
use crate::error::Error;
use crate::events::{page, with_pages};
use crate::hca::Hca;
use hca_spec::cmd::{CreateCqIn, ObjectIn, QueryCqOut};
use hca_spec::command::Opcode;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ids::{Cqn, Eqn, Lid, Mkey, Qpn, Srqn, UarIndex};
use hca_spec::queue::Cqc;
use hca_spec::uar;

/// The word of a CQE that holds opcode and owner bit.
const OWNER_WORD: usize = 0x3c;
/// Offset of the consumer index in the doorbell record.
const RECORD_CONSUMER: usize = 0;
/// Offset of the arm word in the doorbell record.
const RECORD_ARM: usize = 4;
/// A doorbell record gets a cache line of its own.
pub(crate) const RECORD_LINE: usize = 64;

/// How a completion queue shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqConfig {
    /// Entries; rounded up to a power of two.
    pub entries: u32,
    /// Event queue for completion events; without one they come as [`crate::Event::Completion`] from
    /// [`Hca::poll_event`].
    pub eq: Option<Eqn>,
}

impl CqConfig {
    /// A queue of `entries` entries on the asynchronous event queue.
    pub const fn new(entries: u32) -> Self {
        Self { entries, eq: None }
    }
}

/// A completion queue.
#[must_use = "destroy it with Hca::destroy_cq"]
pub struct Cq<D> {
    number: Cqn,
    ring: D,
    record: D,
    log_size: u32,
    consumer: u32,
    arm_sequence: u32,
    uar: UarIndex,
}

impl<D: Dma> Cq<D> {
    /// The queue's number.
    pub fn number(&self) -> Cqn {
        self.number
    }

    /// Entries of the ring.
    pub fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Takes the next completion, if there is one, and gives its entry back to the adapter.
    pub fn poll(&mut self) -> Option<Completion> {
        let completion = self.peek()?;
        self.consumer = self.consumer.wrapping_add(1);
        let mask = uar::DoorbellRecord::CQ_CONSUMER_INDEX.max();
        self.record.store32(RECORD_CONSUMER, self.consumer & mask);
        Some(completion)
    }

    /// The next completion, left in place.
    pub fn peek(&self) -> Option<Completion> {
        let at = (self.consumer as usize & ((1 << self.log_size) - 1)) * Cqe::SIZE;
        if !is_ours(self.ring.load32(at + OWNER_WORD), self.consumer, self.log_size) {
            return None;
        }
        let mut cqe = Cqe::new();
        self.ring.read(at, cqe.bytes_mut());
        Some(Completion::decode(&cqe))
    }

    /// Asks for one event: at the next completion, or only at one that is solicited or an error.
    ///
    /// The event comes at once if such a completion is there beyond what was polled.
    pub fn arm<B: Bus>(&mut self, bus: &mut B, solicited_only: bool) {
        let mut doorbell = uar::CqDoorbell::new();
        doorbell.set(uar::CqDoorbell::CMD_SN, self.arm_sequence);
        doorbell.set(uar::CqDoorbell::SOLICITED, solicited_only.into());
        doorbell.set(uar::CqDoorbell::CONSUMER_INDEX, self.consumer);
        doorbell.set(uar::CqDoorbell::CQN, self.number.0);
        self.record.store32(RECORD_ARM, hca_spec::be32(doorbell.bytes(), 0));
        bus.mmio_write64(page(self.uar) + uar::CQ_DOORBELL, u64::from_be_bytes(*doorbell.bytes()));
    }

    /// Notes that the event of the last arming came: the next arming gets a new sequence number.
    pub fn event_taken(&mut self) {
        self.arm_sequence = (self.arm_sequence + 1) & uar::CqDoorbell::CMD_SN.max();
    }
}

/// Whether the entry is for software: written at all, and on this way through the ring.
fn is_ours(word: u32, consumer: u32, log_size: u32) -> bool {
    let opcode = (word >> Cqe::OPCODE.shift()) & Cqe::OPCODE.max();
    opcode != CqeOpcode::Invalid as u32 && word & 1 == (consumer >> log_size) & 1
}

/// Which queue of the queue pair a completion is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// Why a work request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The syndrome, when it is one the interface names.
    pub syndrome: Option<Syndrome>,
    /// The syndrome's number.
    pub code: u8,
    /// The vendor's syndrome.
    pub vendor: u8,
}

/// A completion, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The queue pair.
    pub qpn: Qpn,
    /// Which of its queues.
    pub side: Side,
    /// Whether the request was done. On failure only `qpn`, `side`, `srqn` and
    /// `wqe_index` say something.
    pub status: Result<(), Failure>,
    /// The shared receive queue the request came from; 0 = the queue pair's own queue.
    pub srqn: Srqn,
    /// Index of the work request in its queue; [`crate::Qp::finish`] turns it into the caller's number.
    pub wqe_index: u16,
    /// Kind of the entry's completion.
    pub opcode: Option<CqeOpcode>,
    /// Send side: the work request's opcode.
    pub send_opcode: u8,
    /// Bytes received (datagrams: the 40 bytes of a GRH included) or read.
    pub byte_len: u32,
    /// Immediate data, on the receive side.
    pub imm: Option<u32>,
    /// The key that the peer invalidated with its message.
    pub invalidated: Option<Mkey>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// Datagrams: the sender's queue pair.
    pub source_qpn: Qpn,
    /// The sender's LID.
    pub source_lid: Lid,
    /// Datagrams: a GRH was received.
    pub has_grh: bool,
    /// Time in cycles of the internal timer.
    pub timestamp: u64,
}

impl Completion {
    /// Decodes an entry.
    pub fn decode(cqe: &Cqe) -> Self {
        let opcode = CqeOpcode::from_bits(cqe.get(Cqe::OPCODE));
        let side = match opcode {
            Some(CqeOpcode::Req | CqeOpcode::ReqErr) => Side::Send,
            _ => Side::Receive,
        };
        let failed = matches!(opcode, Some(CqeOpcode::ReqErr | CqeOpcode::RespErr) | None);
        let code = cqe.get(Cqe::SYNDROME);
        let failure = Failure {
            syndrome: Syndrome::from_bits(code),
            code: code as u8,
            vendor: cqe.get(Cqe::VENDOR_ERR_SYND) as u8,
        };
        let has_imm = matches!(opcode, Some(CqeOpcode::RespSendImm | CqeOpcode::RespWrImm));
        Self {
            qpn: Qpn(cqe.get(Cqe::QPN)),
            side,
            status: if failed { Err(failure) } else { Ok(()) },
            srqn: Srqn(cqe.get(Cqe::SRQN_USER_INDEX)),
            wqe_index: cqe.get(Cqe::WQE_COUNTER) as u16,
            opcode,
            send_opcode: cqe.get(Cqe::SEND_WQE_OPCODE) as u8,
            byte_len: cqe.get(Cqe::BYTE_CNT),
            imm: has_imm.then(|| cqe.get(Cqe::IMM_INVAL_PKEY)),
            invalidated: (opcode == Some(CqeOpcode::RespSendInv)).then(|| Mkey(cqe.get(Cqe::IMM_INVAL_PKEY))),
            solicited: cqe.get(Cqe::SE) != 0,
            source_qpn: Qpn(cqe.get(Cqe::RQPN)),
            source_lid: Lid(cqe.get(Cqe::SLID) as u16),
            has_grh: cqe.get(Cqe::GRH) != 0,
            timestamp: cqe.get(Cqe::TIMESTAMP),
        }
    }

    /// The syndrome of a failed request.
    pub fn syndrome(&self) -> Option<Syndrome> {
        self.status.err().and_then(|f| f.syndrome)
    }
}

impl<B: Bus> Hca<B> {
    /// Creates a completion queue (PRM "CREATE_CQ").
    pub fn create_cq(&mut self, config: CqConfig) -> Result<Cq<B::Dma>, Error> {
        let entries =
            config.entries.max(1).checked_next_power_of_two().ok_or(Error::Invalid("too many CQEs"))?;
        let log_size = entries.ilog2();
        if log_size > self.caps().get(hca_spec::caps::General::LOG_MAX_CQ_SZ) {
            return Err(Error::Invalid("too many CQEs"));
        }
        let size = Cqe::SIZE << log_size;
        let mut ring = self.dma_alloc(size.max(crate::PAGE_SIZE))?;
        let mut unwritten = Cqe::new();
        unwritten.set(Cqe::OPCODE, CqeOpcode::Invalid as u32).set(Cqe::OWNER, 1);
        for i in 0..1 << log_size {
            ring.write(i * Cqe::SIZE, unwritten.bytes());
        }
        let record = self.dma_alloc(RECORD_LINE)?;
        let uar = self.uar();
        let mut input = CreateCqIn::new();
        let cqc = input.cqc_mut();
        cqc.set(Cqc::LOG_CQ_SIZE, log_size).set(Cqc::UAR_PAGE, uar.0);
        cqc.set(Cqc::C_EQN, config.eq.unwrap_or(self.default_eq()).0.into());
        cqc.set(Cqc::DBR_ADDR, record.bus_address());
        let input = with_pages(input.bytes(), pages_of(ring.bus_address(), size));
        let number = Cqn(self.create(Opcode::CreateCq, 0, input)?);
        Ok(Cq { number, ring, record, log_size, consumer: 0, arm_sequence: 0, uar })
    }

    /// Destroys a completion queue; no queue pair may use it any more.
    pub fn destroy_cq(&mut self, cq: Cq<B::Dma>) -> Result<(), Error> {
        self.destroy(Opcode::DestroyCq, cq.number.0, cq)
    }

    /// Asks the adapter for a completion queue's context.
    pub fn query_cq(&mut self, cq: &Cq<B::Dma>) -> Result<Cqc, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, cq.number.0);
        let out = self.execute(Opcode::QueryCq, 0, input.bytes().to_vec(), QueryCqOut::SIZE)?;
        Ok(*QueryCqOut::from_prefix_or_zero(&out).cqc())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_needs_the_right_pass_and_a_written_entry() {
        let word = |opcode: u32, owner: u32| opcode << 4 | owner;
        assert!(is_ours(word(2, 0), 0, 3) && is_ours(word(2, 0), 7, 3));
        assert!(!is_ours(word(2, 0), 8, 3) && is_ours(word(2, 1), 8, 3));
        assert!(!is_ours(word(15, 0), 0, 3) && !is_ours(word(15, 1), 8, 3));
        assert!(is_ours(word(13, 0), 16, 3));
    }

    #[test]
    fn completions_decode() {
        let mut c = Cqe::new();
        c.set(Cqe::OPCODE, CqeOpcode::RespWrImm as u32).set(Cqe::IMM_INVAL_PKEY, 7).set(Cqe::BYTE_CNT, 9);
        c.set(Cqe::QPN, 0x42).set(Cqe::WQE_COUNTER, 3).set(Cqe::SE, 1);
        let d = Completion::decode(&c);
        assert_eq!((d.side, d.status, d.imm, d.byte_len), (Side::Receive, Ok(()), Some(7), 9));
        assert_eq!((d.qpn, d.wqe_index, d.solicited), (Qpn(0x42), 3, true));
        let mut c = Cqe::new();
        c.set(Cqe::OPCODE, CqeOpcode::ReqErr as u32).set(Cqe::SYNDROME, 0x13);
        let d = Completion::decode(&c);
        assert_eq!((d.side, d.syndrome()), (Side::Send, Some(Syndrome::RemoteAccess)));
    }
}
