//! The slots of the command queue.

use std::collections::VecDeque;

use crate::engines::command::Fetch;

/// An input of so many bytes is long: those of 32 slots would be 512 MiB, which nobody is charged for.
const LONG: usize = 1 << 20;

/// Which command slots the adapter works on: bit i = slot i.
#[derive(Debug, Default)]
pub(crate) struct CommandSlots {
    /// Handed over by a doorbell and not given back.
    pub(in crate::adapter) busy: u32,
    /// Of those, the ones that wait for pages from the host.
    stalled: u32,
    /// The one with a long input.
    long: Option<u8>,
    /// Others whose inputs become long: they are read on one after the other.
    pub(in crate::adapter) behind: VecDeque<Box<Fetch>>,
}

pub(in crate::adapter) fn slots_of(bits: u32) -> impl Iterator<Item = u8> {
    (0..32u8).filter(move |slot| bits >> slot & 1 == 1)
}

impl CommandSlots {
    /// Slots that were handed over and not given back; of those, the ones that wait for pages.
    pub(crate) fn slots(&self) -> (u32, u32) {
        (self.busy, self.stalled)
    }

    /// Whether more of an input may be read: what is long is read for one slot at a time.
    pub(in crate::adapter) fn may_read_on(&mut self, fetch: &Fetch) -> bool {
        fetch.fetched() < LONG || *self.long.get_or_insert(fetch.slot) == fetch.slot
    }

    /// The input of a slot is not kept any more. Returns that which is read on now.
    pub(in crate::adapter) fn let_go(&mut self, slot: u8) -> Option<Box<Fetch>> {
        let ends = self.long == Some(slot);
        self.long = self.long.filter(|_| !ends);
        if ends { self.behind.pop_front() } else { None }
    }

    pub(in crate::adapter) fn give_back(&mut self, slot: u8) {
        self.busy &= !(1u32.checked_shl(slot.into()).unwrap_or(0));
    }

    pub(in crate::adapter) fn stall(&mut self, slot: u8) {
        self.stalled |= 1u32.checked_shl(slot.into()).unwrap_or(0);
    }

    pub(in crate::adapter) fn take_stalled(&mut self) -> impl Iterator<Item = u8> {
        slots_of(std::mem::take(&mut self.stalled))
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::command::{CommandEntry, ENTRY_TYPE_PCIE, MailboxBlock};

    use super::*;
    use crate::engines::command::FetchStep;

    /// A slot's input of 2 MiB, read up to that many blocks.
    fn fetch(slot: u8, blocks: u32) -> Fetch {
        let mut fetch = Fetch::new(slot, 0);
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::OWNERSHIP, 1).set(CommandEntry::TYPE, ENTRY_TYPE_PCIE);
        entry.set(CommandEntry::INPUT_LENGTH, 2 << 20).set(CommandEntry::OUTPUT_LENGTH, 16);
        entry.set(CommandEntry::INPUT_MAILBOX, 0x1000);
        fetch.read(Ok(entry.bytes()));
        for number in 0..blocks {
            let mut block = MailboxBlock::new();
            block.set(MailboxBlock::BLOCK_NUMBER, number).set(MailboxBlock::NEXT, 0x1000);
            fetch.read(Ok(block.bytes()));
        }
        assert!(matches!(fetch.next(), FetchStep::Read { .. }));
        fetch
    }

    /// Of inputs that become long one is read on; the next when that is executed, whatever short ones do.
    #[test]
    fn one_input_is_long_at_a_time() {
        const BLOCKS: u32 = 2200;
        let mut slots = CommandSlots::default();
        let (short, long, other) = (fetch(0, 100), fetch(1, BLOCKS), fetch(2, BLOCKS));
        assert!(long.fetched() >= LONG && short.fetched() < LONG);
        for _ in 0..2 {
            assert!(slots.may_read_on(&short) && slots.may_read_on(&long) && !slots.may_read_on(&other));
        }
        slots.behind.push_back(Box::new(other));
        assert!(slots.let_go(0).is_none() && !slots.may_read_on(&fetch(2, BLOCKS)));
        let next = slots.let_go(1).expect("the other is read on");
        assert!(next.slot == 2 && slots.may_read_on(&next) && !slots.may_read_on(&long));
        assert!(slots.let_go(2).is_none() && slots.may_read_on(&long));
    }
}
