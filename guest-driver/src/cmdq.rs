//! The command queue: how the driver asks the firmware for something.
//!
//! A command is an *entry* of 64 bytes in host memory. Input and output have 16 bytes each in the entry;
//! the rest lies in chains of *mailboxes* of 512 bytes. The driver hands an entry over by setting its
//! ownership bit and writing the entry's bit to the doorbell; the adapter answers by clearing the bit,
//! and, once an event queue for it exists, with an event that names the finished entries
//! (PRM "Command Interface").

use crate::bus::{Bus, Dma};
use crate::error::{Error, delivered};
use alloc::vec;
use alloc::vec::Vec;
use hca_spec::command::{
    CommandEntry, ENTRY_TYPE_PCIE, INLINE, INLINE_INPUT, INLINE_OUTPUT, InHeader, MAILBOX_DATA, MailboxBlock,
    OutHeader,
};
use hca_spec::init_segment::InitSegment;

/// Mailboxes are aligned to this many bytes (PRM "Command Interface": bits 9..0 of the pointer are zero).
const MAILBOX_STRIDE: usize = 1024;
const MAILBOXES_PER_PAGE: usize = crate::PAGE_SIZE / MAILBOX_STRIDE;
/// Offset of the entry's last word: token, signature, delivery status, ownership.
const ENTRY_TAIL: usize = 0x3c;

/// A command in flight; hand it to [`CommandQueue::finish`] when it is done.
#[must_use = "the command's slot stays taken until it is finished"]
#[derive(Debug)]
pub struct Slot(usize);

struct Pending {
    opcode: u16,
    output_len: usize,
    input: Vec<usize>,
    output: Vec<usize>,
}

/// The queue of command entries and the mailboxes behind it.
pub struct CommandQueue<D> {
    entries: D,
    stride: usize,
    slots: Vec<Option<Pending>>,
    mailboxes: Mailboxes<D>,
    token: u8,
    /// Command events seen for these slots; `None` while the queue is polled.
    completed: Option<u32>,
}

impl<D: Dma> CommandQueue<D> {
    /// Programs the queue's address into the initialization segment.
    ///
    /// # Errors
    /// The queue's geometry, which the adapter dictates, is not usable; or memory is short.
    pub fn start<B: Bus<Dma = D>>(bus: &mut B) -> Result<Self, Error> {
        let segment_word = |bus: &mut B, offset| bus.mmio_read32(offset as u64);
        let geometry = segment_word(bus, InitSegment::LOG_CMDQ_SIZE.offset());
        let log_size = (geometry >> InitSegment::LOG_CMDQ_SIZE.shift()) & InitSegment::LOG_CMDQ_SIZE.max();
        let log_stride = geometry & InitSegment::LOG_CMDQ_STRIDE.max();
        let usable = (1..=5).contains(&log_size) && log_stride >= 6 && log_size + log_stride <= 12;
        if !usable {
            return Err(Error::CommandQueueGeometry { log_size, log_stride });
        }
        let entries = bus.dma_alloc(crate::PAGE_SIZE, crate::PAGE_SIZE).ok_or(Error::OutOfMemory)?;
        let address = entries.bus_address();
        // The low 12 bits select the full driver interface (0) and are otherwise read-only.
        bus.mmio_write32(InitSegment::CMDQ_PHY_ADDR_HIGH.offset() as u64, (address >> 32) as u32);
        bus.mmio_write32(InitSegment::CMDQ_PHY_ADDR_LOW.offset() as u64, address as u32);
        let slots = (0..1 << log_size).map(|_| None).collect();
        let mailboxes = Mailboxes { pages: Vec::new(), free: Vec::new() };
        Ok(Self { entries, stride: 1 << log_stride, slots, mailboxes, token: 0, completed: None })
    }

    /// Hands a command to the adapter: `input` with its header, and the length of the output expected.
    ///
    /// The last slot is kept for `urgent` commands: the firmware may need pages to finish the others.
    pub fn submit<B: Bus<Dma = D>>(
        &mut self,
        bus: &mut B,
        input: &[u8],
        output_len: usize,
        urgent: bool,
    ) -> Result<Slot, Error> {
        let slot = self.enqueue(bus, input, output_len, urgent)?;
        Self::ring(bus, core::slice::from_ref(&slot));
        Ok(slot)
    }

    /// Hands commands over that were made with [`CommandQueue::enqueue`]: one doorbell for all of them.
    pub fn ring<B: Bus<Dma = D>>(bus: &mut B, slots: &[Slot]) {
        let mask = slots.iter().fold(0, |mask, slot| mask | 1u32 << slot.0);
        bus.mmio_write32(InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, mask);
    }

    /// Makes a command ready as [`CommandQueue::submit`] does; the adapter learns of it by [`CommandQueue::ring`].
    pub fn enqueue<B: Bus<Dma = D>>(
        &mut self,
        bus: &mut B,
        input: &[u8],
        output_len: usize,
        urgent: bool,
    ) -> Result<Slot, Error> {
        let last = self.slots.len() - 1;
        let range = if urgent { last..last + 1 } else { 0..last };
        let index = range.into_iter().find(|i| self.slots[*i].is_none()).ok_or(Error::NoCommandSlot)?;
        self.token = self.token.wrapping_add(1).max(1);

        let tail_of = |bytes: &[u8]| bytes.len().saturating_sub(INLINE).div_ceil(MAILBOX_DATA);
        let input_chain = self.mailboxes.take(bus, tail_of(input))?;
        let output_chain =
            match self.mailboxes.take(bus, output_len.saturating_sub(INLINE).div_ceil(MAILBOX_DATA)) {
                Ok(chain) => chain,
                Err(e) => {
                    self.mailboxes.free.extend(input_chain);
                    return Err(e);
                }
            };
        let (inline, rest) = input.split_at(input.len().min(INLINE));
        self.mailboxes.fill(&input_chain, rest, self.token);
        self.mailboxes.fill(&output_chain, &[], self.token);

        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE);
        entry.set(CommandEntry::INPUT_LENGTH, input.len() as u32);
        entry.set(CommandEntry::INPUT_MAILBOX, self.mailboxes.first(&input_chain));
        entry.set(CommandEntry::OUTPUT_MAILBOX, self.mailboxes.first(&output_chain));
        entry.set(CommandEntry::OUTPUT_LENGTH, output_len as u32);
        entry.set(CommandEntry::TOKEN, self.token.into()).set(CommandEntry::OWNERSHIP, 1);
        entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + inline.len()].copy_from_slice(inline);

        let at = index * self.stride;
        self.entries.write(at, &entry.bytes()[..ENTRY_TAIL]);
        self.entries.store32(at + ENTRY_TAIL, hca_spec::be32(entry.bytes(), ENTRY_TAIL));
        let opcode = (hca_spec::be32(input, 0) >> InHeader::OPCODE.shift()) as u16;
        self.slots[index] = Some(Pending { opcode, output_len, input: input_chain, output: output_chain });
        if let Some(completed) = &mut self.completed {
            *completed &= !(1 << index);
        }
        Ok(Slot(index))
    }

    /// Whether the command is done: by its ownership bit, in event mode only after its event came.
    pub fn is_done(&self, slot: &Slot) -> bool {
        self.completed.is_none_or(|c| c & (1 << slot.0) != 0) && !self.owned(slot)
    }

    /// Whether the adapter still owns the entry.
    pub fn owned(&self, slot: &Slot) -> bool {
        self.entries.load32(slot.0 * self.stride + ENTRY_TAIL) & CommandEntry::OWNERSHIP.max() != 0
    }

    /// Frees the slot of a command that is done and returns its output.
    ///
    /// # Errors
    /// The command was not delivered, or the firmware refused it.
    pub fn finish(&mut self, slot: Slot) -> Result<Vec<u8>, Error> {
        let Some(pending) = self.slots[slot.0].take() else { return Err(Error::Invalid("slot not in use")) };
        let Pending { opcode, output_len, input, output } = pending;
        let at = slot.0 * self.stride;
        let mut bytes = vec![0; output_len.max(INLINE)];
        let (inline, rest) = bytes.split_at_mut(INLINE);
        self.entries.read(at + INLINE_OUTPUT, inline);
        self.mailboxes.read(&output, rest);
        self.mailboxes.free.extend(input);
        self.mailboxes.free.extend(output);

        let tail = self.entries.load32(at + ENTRY_TAIL);
        let delivery = ((tail >> CommandEntry::STATUS.shift()) & CommandEntry::STATUS.max()) as u8;
        if !delivered(delivery) {
            return Err(Error::Delivery { opcode, status: delivery });
        }
        let header = OutHeader::from_prefix_or_zero(&bytes);
        match header.get(OutHeader::STATUS) as u8 {
            0 => Ok(bytes),
            status => Err(Error::Command { opcode, status, syndrome: header.get(OutHeader::SYNDROME) }),
        }
    }

    /// Abandons a command that the adapter still owns: its slot and its memory stay taken for good.
    pub fn abandon(&mut self, _slot: Slot) {}

    /// Whether a slot is taken: the adapter may still use the memory of the queue.
    pub fn busy(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// From now on commands complete by events (`true`) or by their ownership bit alone (`false`).
    pub fn use_events(&mut self, on: bool) {
        self.completed = on.then_some(0);
    }

    /// Notes a command event: `mask` names the finished slots.
    pub fn completed(&mut self, mask: u32) {
        if let Some(completed) = &mut self.completed {
            *completed |= mask;
        }
    }

    /// Slots that ordinary commands may use at the same time.
    pub fn regular_slots(&self) -> usize {
        self.slots.len() - 1
    }
}

/// Mailboxes, handed out one by one; a chain is a list of their numbers.
struct Mailboxes<D> {
    pages: Vec<D>,
    free: Vec<usize>,
}

impl<D: Dma> Mailboxes<D> {
    fn take<B: Bus<Dma = D>>(&mut self, bus: &mut B, count: usize) -> Result<Vec<usize>, Error> {
        while self.free.len() < count {
            let page = bus.dma_alloc(crate::PAGE_SIZE, crate::PAGE_SIZE).ok_or(Error::OutOfMemory)?;
            let first = self.pages.len() * MAILBOXES_PER_PAGE;
            self.pages.push(page);
            self.free.extend(first..first + MAILBOXES_PER_PAGE);
        }
        Ok(self.free.split_off(self.free.len() - count))
    }

    fn place(number: usize) -> (usize, usize) {
        (number / MAILBOXES_PER_PAGE, number % MAILBOXES_PER_PAGE * MAILBOX_STRIDE)
    }

    fn first(&self, chain: &[usize]) -> u64 {
        chain.first().map_or(0, |number| self.address(*number))
    }

    fn address(&self, number: usize) -> u64 {
        let (page, offset) = Self::place(number);
        self.pages[page].bus_address() + offset as u64
    }

    /// Writes `data` and the links of the chain.
    fn fill(&mut self, chain: &[usize], data: &[u8], token: u8) {
        let mut pieces = data.chunks(MAILBOX_DATA);
        for (i, number) in chain.iter().enumerate() {
            let mut block = MailboxBlock::new();
            let piece = pieces.next().unwrap_or(&[]);
            block.bytes_mut()[..piece.len()].copy_from_slice(piece);
            block.set(MailboxBlock::NEXT, chain.get(i + 1).map_or(0, |next| self.address(*next)));
            block.set(MailboxBlock::BLOCK_NUMBER, i as u32).set(MailboxBlock::TOKEN, token.into());
            let (page, offset) = Self::place(*number);
            self.pages[page].write(offset, block.bytes());
        }
    }

    fn read(&self, chain: &[usize], data: &mut [u8]) {
        for (piece, number) in data.chunks_mut(MAILBOX_DATA).zip(chain) {
            let (page, offset) = Self::place(*number);
            self.pages[page].read(offset, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBus;

    /// Firmware that answers with the input, the header replaced by "good".
    fn echo(input: &[u8], _output_len: usize) -> Vec<u8> {
        let mut out = input.to_vec();
        out.iter_mut().take(8).for_each(|b| *b = 0);
        out
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 512) as u8).collect()
    }

    #[test]
    fn mailboxes_of_any_length() {
        let mut bus = FakeBus::new(echo);
        let mut queue = CommandQueue::start(&mut bus).unwrap();
        // Twice, so that the second round uses mailboxes with old contents.
        for len in [16, 17, 528, 529, 0x1010, 40_000, 16, 17, 528, 529, 0x1010, 40_000] {
            let input = pattern(len);
            let slot = queue.submit(&mut bus, &input, len, false).unwrap();
            assert!(queue.is_done(&slot));
            let out = queue.finish(slot).unwrap();
            assert_eq!((out.len(), &out[8..]), (len, &input[8..]), "{len} bytes");
        }
    }

    #[test]
    fn several_slots_complete_in_any_order() {
        let mut bus = FakeBus::new(echo);
        let mut queue = CommandQueue::start(&mut bus).unwrap();
        bus.held = Some(0);
        let slots: Vec<Slot> = (0..queue.regular_slots())
            .map(|i| queue.submit(&mut bus, &pattern(600 + i), 600 + i, false).unwrap())
            .collect();
        assert_eq!(queue.submit(&mut bus, &pattern(16), 16, false).unwrap_err(), Error::NoCommandSlot);
        let urgent = queue.submit(&mut bus, &pattern(16), 16, true).unwrap();
        assert_eq!(bus.held, Some(u32::MAX));
        assert!(slots.iter().all(|s| !queue.is_done(s)));
        bus.execute(1 << 31);
        assert!(queue.is_done(&urgent) && !queue.is_done(&slots[0]));
        queue.finish(urgent).unwrap();
        bus.execute(u32::MAX >> 1);
        for (i, slot) in slots.into_iter().enumerate().rev() {
            assert_eq!(queue.finish(slot).unwrap()[8..], pattern(600 + i)[8..]);
        }
    }

    #[test]
    fn event_mode_waits_for_the_event() {
        let mut bus = FakeBus::new(echo);
        let mut queue = CommandQueue::start(&mut bus).unwrap();
        queue.use_events(true);
        let first = queue.submit(&mut bus, &pattern(16), 16, false).unwrap();
        assert!(!queue.is_done(&first) && !queue.owned(&first));
        queue.completed(1);
        assert!(queue.is_done(&first));
        queue.finish(first).unwrap();
        // The old event does not count for the slot's next command.
        let second = queue.submit(&mut bus, &pattern(16), 16, false).unwrap();
        assert!(!queue.is_done(&second));
    }

    #[test]
    fn refusals_carry_status_and_syndrome() {
        let mut bus = FakeBus::new(|_, _| vec![3, 0, 0, 0, 0, 0x12, 0x34, 0x56]);
        let mut queue = CommandQueue::start(&mut bus).unwrap();
        let slot = queue.submit(&mut bus, &[1, 4, 0, 0], 16, false).unwrap();
        let error = queue.finish(slot).unwrap_err();
        assert_eq!(error, Error::Command { opcode: 0x104, status: 3, syndrome: 0x12_3456 });
        assert_eq!(std::format!("{error}"), "EnableHca refused: BadParam (0x3), syndrome 0x123456");
    }

    #[test]
    fn unusable_geometry_is_refused() {
        for (log_size, log_stride) in [(0, 6), (6, 6), (5, 5), (5, 8)] {
            let mut bus = FakeBus::new(echo);
            bus.segment_mut()
                .set(InitSegment::LOG_CMDQ_SIZE, log_size)
                .set(InitSegment::LOG_CMDQ_STRIDE, log_stride);
            let error = CommandQueue::start(&mut bus).err().unwrap();
            assert_eq!(error, Error::CommandQueueGeometry { log_size, log_stride });
        }
    }
}
