//! A bus for the unit tests: memory, and firmware that answers commands at the doorbell by a function.

use crate::bus::{Bus, Dma};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use hca_spec::command::{CommandEntry, INLINE, INLINE_INPUT, INLINE_OUTPUT, MAILBOX_DATA, MailboxBlock};
use hca_spec::init_segment::InitSegment;

/// Where the fake memory begins on the fake bus.
const BASE: u64 = 0x1_0000_0000;

type Arena = Rc<RefCell<Vec<u8>>>;
type Firmware = Box<dyn FnMut(&[u8], usize) -> Vec<u8>>;

/// A piece of fake memory.
pub(crate) struct Memory {
    arena: Arena,
    start: usize,
}

impl Memory {
    pub(crate) fn new(size: usize) -> Self {
        Self { arena: Rc::new(RefCell::new(vec![0; size])), start: 0 }
    }
}

impl Dma for Memory {
    fn bus_address(&self) -> u64 {
        BASE + self.start as u64
    }
    fn read(&self, offset: usize, buf: &mut [u8]) {
        buf.copy_from_slice(&self.arena.borrow()[self.start + offset..][..buf.len()]);
    }
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.arena.borrow_mut()[self.start + offset..][..data.len()].copy_from_slice(data);
    }
    fn load32(&self, offset: usize) -> u32 {
        hca_spec::be32(&self.arena.borrow(), self.start + offset)
    }
    fn store32(&mut self, offset: usize, value: u32) {
        hca_spec::put_be32(&mut self.arena.borrow_mut(), self.start + offset, value);
    }
}

/// The fake bus.
pub(crate) struct FakeBus {
    arena: Arena,
    segment: Box<InitSegment>,
    /// Answers a command: input and expected output length in, output out.
    firmware: Firmware,
    /// Doorbells are remembered and not executed while this is set.
    pub(crate) held: Option<u32>,
}

impl FakeBus {
    pub(crate) fn new(firmware: impl FnMut(&[u8], usize) -> Vec<u8> + 'static) -> Self {
        let mut segment = Box::new(InitSegment::new());
        segment.set(InitSegment::CMD_INTERFACE_REV, 5);
        segment.set(InitSegment::LOG_CMDQ_SIZE, 5).set(InitSegment::LOG_CMDQ_STRIDE, 6);
        Self { arena: Rc::default(), segment, firmware: Box::new(firmware), held: None }
    }

    pub(crate) fn segment_mut(&mut self) -> &mut InitSegment {
        &mut self.segment
    }

    /// Executes the commands of `mask`.
    pub(crate) fn execute(&mut self, mask: u32) {
        let high = u64::from(self.segment.get(InitSegment::CMDQ_PHY_ADDR_HIGH)) << 32;
        let queue = high | u64::from(self.segment.get(InitSegment::CMDQ_PHY_ADDR_LOW)) << 12;
        for slot in (0..32).filter(|s| mask & 1 << s != 0) {
            let at = (queue - BASE) as usize + slot * 64;
            let entry = CommandEntry::from_prefix_or_zero(&self.arena.borrow()[at..]);
            assert_eq!(entry.get(CommandEntry::OWNERSHIP), 1, "doorbell without ownership");
            let len = entry.get(CommandEntry::INPUT_LENGTH) as usize;
            let out_len = entry.get(CommandEntry::OUTPUT_LENGTH) as usize;
            let token = entry.get(CommandEntry::TOKEN);

            let mut input = entry.bytes()[INLINE_INPUT..INLINE_INPUT + len.min(INLINE)].to_vec();
            self.walk(
                entry.get(CommandEntry::INPUT_MAILBOX),
                len.saturating_sub(INLINE),
                token,
                |data, take| {
                    input.extend_from_slice(&data[..take]);
                },
            );
            let mut output = (self.firmware)(&input, out_len);
            output.resize(out_len, 0);
            let mut rest = &output[INLINE.min(out_len)..];
            self.walk(
                entry.get(CommandEntry::OUTPUT_MAILBOX),
                out_len.saturating_sub(INLINE),
                token,
                |data, take| {
                    let (now, later) = rest.split_at(take);
                    data[..take].copy_from_slice(now);
                    rest = later;
                },
            );
            let mut arena = self.arena.borrow_mut();
            arena[at + INLINE_OUTPUT..][..INLINE.min(out_len)]
                .copy_from_slice(&output[..INLINE.min(out_len)]);
            arena[at + 0x3f] = 0;
        }
    }

    fn walk(&self, mut block: u64, mut len: usize, token: u32, mut f: impl FnMut(&mut [u8], usize)) {
        let mut number = 0;
        while len > 0 {
            assert_eq!(block % 1024, 0, "mailbox alignment");
            let at = (block - BASE) as usize;
            let mut arena = self.arena.borrow_mut();
            let header = MailboxBlock::from_prefix_or_zero(&arena[at..]);
            assert_eq!(header.get(MailboxBlock::BLOCK_NUMBER), number);
            assert_eq!(header.get(MailboxBlock::TOKEN), token);
            let take = len.min(MAILBOX_DATA);
            f(&mut arena[at..at + MAILBOX_DATA], take);
            len -= take;
            number += 1;
            block = header.get(MailboxBlock::NEXT);
        }
    }
}

impl Bus for FakeBus {
    type Dma = Memory;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        hca_spec::be32(self.segment.bytes(), offset as usize)
    }
    fn mmio_write32(&mut self, offset: u64, value: u32) {
        if offset == InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64 {
            match &mut self.held {
                Some(mask) => *mask |= value,
                None => self.execute(value),
            }
        } else {
            let low = InitSegment::CMDQ_PHY_ADDR_LOW.offset() as u64;
            // Size and stride are read-only.
            let value = if offset == low { value & !0xff | self.mmio_read32(low) & 0xff } else { value };
            hca_spec::put_be32(self.segment.bytes_mut(), offset as usize, value);
        }
    }
    fn mmio_write64(&mut self, _offset: u64, _value: u64) {}
    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<Memory> {
        let mut arena = self.arena.borrow_mut();
        let start = arena.len().next_multiple_of(align);
        arena.resize(start + size, 0);
        Some(Memory { arena: self.arena.clone(), start })
    }
    fn wait(&mut self, _vector: Option<u16>) {}
    fn vectors(&self) -> u16 {
        1
    }
}
