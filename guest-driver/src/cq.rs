//! Completion queues (CQ): the adapter's reports about finished work requests.
//!
//! A CQ is a ring of entries of 64 or 128 bytes with an owner bit each. The driver polls the ring and reports how far
//! it came in a doorbell record in host memory; it may arm the CQ to get one event
//! (PRM "Completion Queues"). Like completions may come as one compressed block, small messages in the entry itself.

use crate::bus::{Bus, Dma, pages_of};
use crate::error::Error;
use crate::eth::FrameReport;
use crate::events::{page, with_pages};
use crate::hca::Hca;
use crate::sig::SignatureError;
use crate::tags::TagReport;
use hca_spec::cmd::{CreateCqIn, ModifyCqIn, ObjectIn, QueryCqOut};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::cqe::{Cqe, CqeFormat, CqeOpcode, MINI_CQES, MiniCqe, Syndrome};
use hca_spec::ids::{Cqn, Eqn, Lid, Mkey, Qpn, Srqn, UarIndex};
use hca_spec::queue::{Cqc, cqe_size};
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

/// What a completion queue may have beyond [`CqConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CqOptions {
    /// Size of an entry: a value of [`hca_spec::queue::cqe_size`].
    pub cqe_size: u32,
    /// Compress receive completions, with mini CQEs of that format of [`hca_spec::queue::mini_format`].
    pub compression: Option<u32>,
    /// Moderation, if any.
    pub moderation: Moderation,
}

/// When an armed queue sends its event: after `count` completions, or `period_us` after the last event (or the last
/// completion), whichever comes first. Zero in one of them: at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moderation {
    /// Completions.
    pub count: u16,
    /// Microseconds, 12 bits.
    pub period_us: u16,
    /// The period starts anew with each completion.
    pub from_cqe: bool,
    /// A solicited completion is not held back.
    pub solicited_breaks: bool,
}

impl Moderation {
    fn put(&self, cqc: &mut Cqc) {
        cqc.set(Cqc::CQ_MAX_COUNT, self.count.into()).set(Cqc::CQ_PERIOD, self.period_us.into());
        cqc.set(Cqc::CQ_PERIOD_MODE, self.from_cqe.into());
        cqc.set(Cqc::SCQE_BREAK_MODERATION_EN, self.solicited_breaks.into());
    }
}

/// Fields that MODIFY_CQ changes (PRM "MODIFY_CQ").
mod select {
    pub(super) const PERIOD: u32 = 1 << 0;
    pub(super) const COUNT: u32 = 1 << 1;
    pub(super) const EQ: u32 = 1 << 3;
    pub(super) const PERIOD_MODE: u32 = 1 << 4;
    /// With [`super::RESIZE`]: size, offset in the first page, page size.
    pub(super) const SHAPE: u32 = 0b111;
}
/// MODIFY_CQ op_mod: a new buffer.
const RESIZE: u32 = 1;

/// The memory of a completion queue.
struct Entries<D> {
    memory: D,
    log_size: u32,
    /// log2 of the bytes of an entry.
    log_stride: u32,
}

impl<D: Dma> Entries<D> {
    /// Where the 64 bytes that every entry has begin: at its end.
    fn at(&self, counter: u32) -> usize {
        let index = counter as usize & ((1 << self.log_size) - 1);
        ((index + 1) << self.log_stride) - Cqe::SIZE
    }

    fn size(&self) -> usize {
        1 << (self.log_size + self.log_stride)
    }

    fn get(&self, counter: u32) -> Option<Cqe> {
        let at = self.at(counter);
        if !is_ours(self.memory.load32(at + OWNER_WORD), counter, self.log_size) {
            return None;
        }
        let mut cqe = Cqe::new();
        self.memory.read(at, cqe.bytes_mut());
        Some(cqe)
    }

    /// Marks an entry as not written.
    fn invalidate(&mut self, counter: u32) {
        let word = (CqeOpcode::Invalid as u32) << Cqe::OPCODE.shift() | Cqe::OWNER.max();
        let at = self.at(counter);
        self.memory.store32(at + OWNER_WORD, word);
    }

    fn mini(&self, title: u32, number: u32) -> MiniCqe {
        let array = if number < MINI_CQES { 1 } else { number / MINI_CQES * MINI_CQES };
        let at = self.at(title.wrapping_add(array)) + (number % MINI_CQES) as usize * MiniCqe::SIZE;
        let mut mini = MiniCqe::new();
        self.memory.read(at, mini.bytes_mut());
        mini
    }
}

/// A compressed block that is being read.
struct Block {
    title: Cqe,
    /// Consumer index of the title.
    start: u32,
    /// Completions in it.
    count: u32,
}

impl Block {
    fn open(cqe: &Cqe, consumer: u32) -> Option<Self> {
        let compressed = cqe.get(Cqe::FORMAT) == CqeFormat::Compressed as u32;
        compressed.then(|| Self { title: *cqe, start: consumer, count: cqe.get(Cqe::BYTE_CNT).max(1) })
    }

    /// The completion at `consumer`, as if it had an entry of its own.
    fn expand<D: Dma>(&self, entries: &Entries<D>, consumer: u32) -> Cqe {
        let number = consumer.wrapping_sub(self.start);
        let mini = entries.mini(self.start, number);
        let mut cqe = self.title;
        let index = self.title.get(Cqe::WQE_COUNTER).wrapping_add(number) & Cqe::WQE_COUNTER.max();
        cqe.set(Cqe::FORMAT, CqeFormat::Plain as u32).set(Cqe::BYTE_CNT, mini.get(MiniCqe::BYTE_CNT));
        cqe.set(Cqe::WQE_COUNTER, index);
        cqe
    }
}

/// A completion queue.
#[must_use = "destroy it with Hca::destroy_cq"]
pub struct Cq<D> {
    number: Cqn,
    entries: Entries<D>,
    /// After a resize: the buffer that is read until its last entry says so.
    old: Option<Entries<D>>,
    record: D,
    consumer: u32,
    block: Option<Block>,
    arm_sequence: u32,
    uar: UarIndex,
    options: CqOptions,
    /// Blocks and completions in them so far.
    compressed: (u64, u64),
}

impl<D: Dma> Cq<D> {
    /// The queue's number.
    pub fn number(&self) -> Cqn {
        self.number
    }

    /// Entries of the ring.
    pub fn entries(&self) -> u32 {
        1 << self.entries.log_size
    }

    /// The memory of the ring's entries, for callers that watch it for writes.
    pub fn memory(&self) -> &D {
        &self.current().memory
    }

    /// How many compressed blocks were read so far, and how many completions they had.
    pub fn compressed(&self) -> (u64, u64) {
        self.compressed
    }

    /// The buffer that is read now.
    fn current(&self) -> &Entries<D> {
        self.old.as_ref().unwrap_or(&self.entries)
    }

    /// Takes the next completion, if there is one, and returns its entry to the adapter.
    pub fn poll(&mut self) -> Option<Completion> {
        self.leave_old();
        let completion = self.peek()?;
        if self.block.is_none()
            && let Some(block) =
                self.current().get(self.consumer).and_then(|c| Block::open(&c, self.consumer))
        {
            self.compressed.0 += 1;
            self.compressed.1 += u64::from(block.count);
            self.block = Some(block);
        }
        self.consumer = self.consumer.wrapping_add(1);
        if let Some(block) = self.block.take_if(|b| self.consumer.wrapping_sub(b.start) >= b.count) {
            // Entries of the block have no owner bit of their own: on the next way through the ring they must not look
            // as if the adapter had written them.
            let entries = self.old.as_mut().unwrap_or(&mut self.entries);
            (0..block.count).for_each(|i| entries.invalidate(block.start.wrapping_add(i)));
        }
        self.publish();
        self.leave_old();
        Some(completion)
    }

    fn publish(&mut self) {
        let mask = uar::DoorbellRecord::CQ_CONSUMER_INDEX.max();
        self.record.store32(RECORD_CONSUMER, self.consumer & mask);
    }

    /// The next completion, left in place.
    pub fn peek(&self) -> Option<Completion> {
        if let Some(block) = &self.block {
            return Some(Completion::decode(&block.expand(self.current(), self.consumer)));
        }
        let (entries, consumer) = match &self.old {
            // Behind the old buffer's last entry the new one goes on.
            Some(old) if is_resize(&old.get(self.consumer)?) => {
                (&self.entries, self.consumer.wrapping_add(1))
            }
            Some(old) => (old, self.consumer),
            None => (&self.entries, self.consumer),
        };
        let cqe = entries.get(consumer)?;
        if let Some(block) = Block::open(&cqe, consumer) {
            return Some(Completion::decode(&block.expand(entries, consumer)));
        }
        let mut completion = Completion::decode(&cqe);
        let room = match CqeFormat::from_bits(cqe.get(Cqe::FORMAT)) {
            Some(CqeFormat::Data32) => Some((0, INLINE_32)),
            Some(CqeFormat::Data64) => Some((Cqe::SIZE, Cqe::SIZE)),
            _ => None,
        };
        if let Some((before, room)) = room
            && completion.status.is_ok()
        {
            let mut data =
                InlineData { bytes: [0; Cqe::SIZE], len: (completion.byte_len as usize).min(room) };
            let from = entries.at(consumer).saturating_sub(before);
            entries.memory.read(from, data.bytes.get_mut(..data.len).unwrap_or_default());
            completion.data = Some(data);
        }
        Some(completion)
    }

    /// Leaves the old buffer when everything in it was read: its last entry counts as read, too.
    fn leave_old(&mut self) {
        let done = self.old.as_ref().and_then(|old| old.get(self.consumer)).is_some_and(|c| is_resize(&c));
        if done {
            self.old = None;
            self.consumer = self.consumer.wrapping_add(1);
            self.publish();
        }
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

fn is_resize(cqe: &Cqe) -> bool {
    cqe.get(Cqe::OPCODE) == CqeOpcode::Resize as u32
}

/// Bytes of data in [`CqeFormat::Data32`].
const INLINE_32: usize = 32;

/// Data of a small message that came in the completion's entry and was not written to the request's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InlineData {
    bytes: [u8; Cqe::SIZE],
    len: usize,
}

impl InlineData {
    /// The data.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Which queue of the queue pair a completion is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// Why a work request failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failure {
    /// The syndrome, when it is one the interface names.
    pub syndrome: Option<Syndrome>,
    /// The syndrome's number.
    pub code: u8,
    /// The vendor's syndrome.
    pub vendor: u8,
}

/// A completion, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
    /// Datagrams without immediate data: their P_Key.
    pub pkey: u16,
    /// Datagrams: a GRH was received.
    pub has_grh: bool,
    /// Time in cycles of the internal timer.
    pub timestamp: u64,
    /// The message or response itself, if the queue pair lets it come here.
    pub data: Option<InlineData>,
    /// A signature is wrong: the entry says nothing else, and completes no request.
    pub signature: Option<SignatureError>,
    /// What the entry says of a received frame; of other receives it means nothing. `qpn` means nothing for frames, and
    /// `srqn` is the user index of their queue.
    pub frame: FrameReport,
    /// What a queue with tag matching says.
    pub tags: Option<TagReport>,
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
            pkey: cqe.get(Cqe::IMM_INVAL_PKEY) as u16,
            has_grh: cqe.get(Cqe::GRH) != 0,
            timestamp: cqe.get(Cqe::TIMESTAMP),
            data: None,
            signature: SignatureError::decode(cqe),
            frame: FrameReport::decode(cqe),
            tags: TagReport::decode(cqe),
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
        self.create_cq_with(config, CqOptions::default())
    }

    /// Creates a completion queue that has more than others.
    pub fn create_cq_with(&mut self, config: CqConfig, options: CqOptions) -> Result<Cq<B::Dma>, Error> {
        let entries = self.cq_entries(config.entries, options)?;
        let record = self.dma_alloc(RECORD_LINE)?;
        let uar = self.uar();
        let mut input = CreateCqIn::new();
        let cqc = input.cqc_mut();
        cqc.set(Cqc::LOG_CQ_SIZE, entries.log_size).set(Cqc::UAR_PAGE, uar.0);
        cqc.set(Cqc::CQE_SZ, options.cqe_size);
        cqc.set(Cqc::C_EQN, config.eq.unwrap_or(self.default_eq()).0.into());
        cqc.set(Cqc::DBR_ADDR, record.bus_address());
        if let Some(format) = options.compression {
            cqc.set(Cqc::CQE_COMP_EN, 1).set(Cqc::MINI_CQE_RES_FORMAT, format);
        }
        options.moderation.put(cqc);
        let input = with_pages(input.bytes(), pages_of(entries.memory.bus_address(), entries.size()));
        let number = Cqn(self.create(Opcode::CreateCq, 0, input)?);
        Ok(Cq {
            number,
            entries,
            old: None,
            record,
            consumer: 0,
            block: None,
            arm_sequence: 0,
            uar,
            options,
            compressed: (0, 0),
        })
    }

    /// Memory for a queue of that many entries, none of them written.
    fn cq_entries(&mut self, entries: u32, options: CqOptions) -> Result<Entries<B::Dma>, Error> {
        let entries = entries.max(1).checked_next_power_of_two().ok_or(Error::Invalid("too many CQEs"))?;
        let log_size = entries.ilog2();
        if log_size > self.caps().get(hca_spec::caps::General::LOG_MAX_CQ_SZ) {
            return Err(Error::Invalid("too many CQEs"));
        }
        let log_stride = Cqe::SIZE.ilog2() + u32::from(options.cqe_size != cqe_size::B64);
        let memory = self.dma_alloc((1usize << (log_size + log_stride)).max(crate::PAGE_SIZE))?;
        let mut ring = Entries { memory, log_size, log_stride };
        (0..entries).for_each(|i| ring.invalidate(i));
        Ok(ring)
    }

    /// Resizes a completion queue. Completions stay in order; none is lost (PRM "MODIFY_CQ",
    /// "CQ resize").
    ///
    /// # Errors
    /// More completions are unread than the new queue has entries, or an earlier resize was not read to its end: poll.
    pub fn resize_cq(&mut self, cq: &mut Cq<B::Dma>, entries: u32) -> Result<(), Error> {
        cq.leave_old();
        if cq.old.is_some() {
            return Err(Error::Invalid("the queue was resized and its old buffer is not empty"));
        }
        let entries = self.cq_entries(entries, cq.options)?;
        let mut input = ModifyCqIn::new();
        input.set(ModifyCqIn::CQN, cq.number.0).set(ModifyCqIn::FIELD_SELECT, select::SHAPE);
        let cqc = input.cqc_mut();
        cqc.set(Cqc::LOG_CQ_SIZE, entries.log_size).set(Cqc::CQE_SZ, cq.options.cqe_size);
        let input = with_pages(input.bytes(), pages_of(entries.memory.bus_address(), entries.size()));
        match self.execute(Opcode::ModifyCq, RESIZE, input, OutHeader::SIZE) {
            Ok(_) => {
                cq.old = Some(core::mem::replace(&mut cq.entries, entries));
                cq.leave_old();
                Ok(())
            }
            // Whether the adapter uses the new memory is unknown.
            Err(error @ Error::Timeout { .. }) => {
                core::mem::forget(entries);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Changes when an armed queue sends its event.
    pub fn moderate_cq(&mut self, cq: &Cq<B::Dma>, moderation: Moderation) -> Result<(), Error> {
        let mut input = ModifyCqIn::new();
        let fields = select::PERIOD | select::COUNT | select::PERIOD_MODE;
        input.set(ModifyCqIn::CQN, cq.number.0).set(ModifyCqIn::FIELD_SELECT, fields);
        moderation.put(input.cqc_mut());
        self.execute(Opcode::ModifyCq, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Lets completion events of a queue go to another event queue.
    pub fn remap_cq(&mut self, cq: &Cq<B::Dma>, eq: Eqn) -> Result<(), Error> {
        let mut input = ModifyCqIn::new();
        input.set(ModifyCqIn::CQN, cq.number.0).set(ModifyCqIn::FIELD_SELECT, select::EQ);
        input.cqc_mut().set(Cqc::C_EQN, eq.0.into());
        self.execute(Opcode::ModifyCq, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
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
