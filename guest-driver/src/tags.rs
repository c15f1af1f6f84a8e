//! Tag matching: a shared receive queue in whose list buffers wait for messages by their tags.
//!
//! Work requests of a queue pair that receives from the queue change the list ([`crate::SendOp::Tags`]). [`TagList`] knows which entries
//! are free: each new entry names the one that the next is put into.
//!
//! Source: [`hca_spec::xrq`].

use alloc::collections::VecDeque;
use hca_spec::cqe::Cqe;
use hca_spec::ids::{Cqn, Mkey, Pd};
use hca_spec::xrq::{
    APP_TAG_MATCHING, CreateXrqIn, ListCqe, OFFLOAD_RENDEZVOUS, Rendezvous, TOPOLOGY_TAG_MATCHING, TagHeader,
    TagSeg, Xrqc, app_op, list_op, message,
};

/// How a shared receive queue with tag matching shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagQueueConfig {
    /// Protection domain of its requests' memory.
    pub pd: Pd,
    /// Completion queue of its receives, and of changes of its list.
    pub cq: Cqn,
    /// Receive requests, for messages that no entry is for.
    pub requests: u32,
    /// Scatter entries of a receive request.
    pub sges: u32,
    /// log2 of the entries of its list.
    pub log_tags: u32,
    /// Whether queue pairs fetch data that messages announce ([`crate::QpConfig::fetches`]).
    pub fetches: bool,
    /// What completions call the queue; `None`: its number.
    pub user_index: Option<u32>,
}

impl TagQueueConfig {
    /// The command's input but for the work queue.
    pub(crate) fn input(&self) -> CreateXrqIn {
        let mut input = CreateXrqIn::new();
        let ctx = input.xrqc_mut();
        ctx.set(Xrqc::TOPOLOGY, TOPOLOGY_TAG_MATCHING).set(Xrqc::CQN, self.cq.0);
        ctx.set(Xrqc::OFFLOAD, if self.fetches { OFFLOAD_RENDEZVOUS } else { 0 });
        ctx.set(Xrqc::LOG_MATCHING_LIST_SZ, self.log_tags);
        ctx.set(Xrqc::USER_INDEX, self.user_index.unwrap_or(Xrqc::USER_INDEX.max()));
        input
    }
}

/// A change of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagChange {
    /// What is changed.
    pub what: ListChange,
    /// Unexpected messages that the caller has seen so far, if it tells; modulo 2^16.
    pub seen: Option<u16>,
    /// Whether a completion tells of it.
    pub told: bool,
}

/// What is changed in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListChange {
    /// Nothing.
    Nothing,
    /// An entry is appended, for messages whose tag is `tag` in the bits of `mask`.
    Append {
        /// The tag.
        tag: u64,
        /// Bits of it that count.
        mask: u64,
        /// The entry that the next one is put into.
        next: u16,
    },
    /// The entry of that index is taken out.
    Remove(u16),
}

impl TagChange {
    /// A change that is told of.
    pub const fn told(what: ListChange) -> Self {
        Self { what, seen: None, told: true }
    }

    /// The same, which also says how many unexpected messages were seen.
    #[must_use]
    pub const fn having_seen(self, seen: u16) -> Self {
        Self { seen: Some(seen), ..self }
    }

    pub(crate) fn segment(&self) -> TagSeg {
        let mut segment = TagSeg::new();
        segment.set(TagSeg::CQE_REQ, self.told.into());
        if let Some(seen) = self.seen {
            segment.set(TagSeg::SW_CNT_VALID, 1).set(TagSeg::SW_CNT, seen.into());
        }
        match self.what {
            ListChange::Nothing => segment.set(TagSeg::OPCODE, list_op::NOP),
            ListChange::Append { tag, mask, next } => {
                segment.set(TagSeg::TAG, tag).set(TagSeg::MASK, mask);
                segment.set(TagSeg::OPCODE, list_op::APPEND).set(TagSeg::INDEX, next.into())
            }
            ListChange::Remove(index) => {
                segment.set(TagSeg::OPCODE, list_op::REMOVE).set(TagSeg::INDEX, index.into())
            }
        };
        segment
    }
}

/// Which entries of a list are free. One always is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TagList {
    /// The entry that the next one is put into.
    next: u16,
    free: VecDeque<u16>,
}

impl TagList {
    /// A list of 2^`log_tags` entries, all free.
    pub fn new(log_tags: u32) -> Self {
        Self { next: 0, free: (1..1 << log_tags).collect() }
    }

    /// An entry for messages whose tag is `tag` in the bits of `mask`: its index, and the change that appends it. `None`: no other
    /// is free.
    pub fn append(&mut self, tag: u64, mask: u64) -> Option<(u16, ListChange)> {
        let next = self.free.pop_front()?;
        let index = core::mem::replace(&mut self.next, next);
        Some((index, ListChange::Append { tag, mask, next }))
    }

    /// The entry is free again: its message is there, or it was taken out.
    pub fn release(&mut self, index: u16) {
        self.free.push_back(index);
    }
}

/// What a completion of a queue with tag matching says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TagReport {
    /// What happened: a value of [`hca_spec::xrq::app_op`].
    pub what: u32,
    /// The entry that it is about.
    pub index: u16,
    /// Of a message that has used an entry: its tag, and the sender's own word.
    pub tag: u64,
    /// See `tag`.
    pub word: u32,
    /// Of a change: whether it was done.
    pub done: bool,
    /// Of a change: unexpected messages that came so far, modulo 2^16.
    pub came: u16,
}

impl TagReport {
    pub(crate) fn decode(cqe: &Cqe) -> Option<Self> {
        let (header, list) = (cqe.matched(), cqe.list_change());
        (cqe.get(Cqe::APP) == APP_TAG_MATCHING).then(|| Self {
            what: cqe.get(Cqe::APP_OP),
            index: cqe.get(Cqe::APP_INFO) as u16,
            tag: header.get(TagHeader::TAG),
            word: header.get(TagHeader::APP_CTX),
            done: list.get(ListCqe::SUCCESS) == 1,
            came: list.get(ListCqe::HW_PHASE_CNT) as u16,
        })
    }

    /// Whether it is about an entry or a change of the list, and not about a receive request.
    pub fn is_about_the_list(&self) -> bool {
        !matches!(self.what, app_op::UNEXPECTED | app_op::NO_TAG)
    }
}

/// The header of a message that carries its data, which follows.
pub fn eager(tag: u64, word: u32) -> TagHeader {
    header(message::EAGER, tag, word)
}

/// A message that announces `len` bytes at that address under the sender's key.
pub fn announcement(tag: u64, word: u32, (address, rkey, len): (u64, Mkey, u32)) -> [u8; 32] {
    let mut second = Rendezvous::new();
    second.set(Rendezvous::VA, address).set(Rendezvous::RKEY, rkey.0).set(Rendezvous::LEN, len);
    let mut bytes = [0; 32];
    bytes[..TagHeader::SIZE].copy_from_slice(header(message::RENDEZVOUS, tag, word).bytes());
    bytes[TagHeader::SIZE..].copy_from_slice(second.bytes());
    bytes
}

fn header(opcode: u32, tag: u64, word: u32) -> TagHeader {
    let mut header = TagHeader::new();
    header.set(TagHeader::OPCODE, opcode).set(TagHeader::TAG, tag).set(TagHeader::APP_CTX, word);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_chained() {
        let mut list = TagList::new(2);
        let append = |next| ListChange::Append { tag: 5, mask: 7, next };
        assert_eq!(list.append(5, 7), Some((0, append(1))));
        assert_eq!(list.append(5, 7), Some((1, append(2))));
        assert_eq!(list.append(5, 7), Some((2, append(3))));
        assert_eq!(list.append(5, 7), None, "the last one is where the next goes");
        list.release(1);
        assert_eq!(list.append(5, 7), Some((3, append(1))));
    }

    #[test]
    fn segments() {
        let change = TagChange::told(ListChange::Append { tag: 1, mask: 2, next: 3 }).having_seen(4);
        let bytes = *change.segment().bytes();
        assert_eq!(bytes[..8], [0x10, 0xc0, 0, 3, 0, 0, 0, 4]);
        assert_eq!((bytes[0x17], bytes[0x1f]), (1, 2));
        let change = TagChange { what: ListChange::Remove(9), seen: None, told: false };
        assert_eq!(change.segment().bytes()[..4], [0x20, 0, 0, 9]);
    }

    #[test]
    fn headers() {
        let bytes = announcement(0x1234, 7, (0x1000, Mkey(0x55), 0x200));
        assert_eq!((bytes[0], bytes[7], &bytes[14..16]), (1, 7, &[0x12, 0x34][..]));
        assert_eq!((bytes[22], bytes[27], bytes[30]), (0x10, 0x55, 2));
    }
}
