//! Tag matching: shared receive queues (XRQ) that find the buffer of a message by the tag in its header.
//!
//! The public manual does not have it. Source: rdma-core "Hardware tag matching" (`Documentation/tag_matching.md`), `ibv_create_srq_ex(3)`,
//! `ibv_post_srq_ops(3)` and `tm_types.h` (headers of messages); its mlx5 provider, the mlx5 driver and UCX (field use).

use crate::layout::layout;
use crate::queue::Wq;

layout! {
    /// XRQ context without its page list, 320 bytes.
    pub struct Xrqc[0x140] {
        /// [`STATE_GOOD`] or [`STATE_ERROR`].
        STATE: 0x0 [31:28];
        /// What the queue does with messages: [`TOPOLOGY_TAG_MATCHING`].
        TOPOLOGY: 0x0 [11:8];
        /// What the adapter does by itself: [`OFFLOAD_RENDEZVOUS`].
        OFFLOAD: 0x0 [3:0];
        /// Value echoed in CQEs.
        USER_INDEX: 0x4 [23:0];
        /// Completion queue.
        CQN: 0x8 [23:0];
        /// 1 = data that DC targets' messages announce is fetched, too.
        DC: 0xc [0:0];
        /// log2 of the entries of the list.
        LOG_MATCHING_LIST_SZ: 0x20 [31:28];
        /// The entry that the next one is put into.
        APPEND_NEXT_INDEX: 0x20 [15:0];
        /// Unexpected messages that software has told it has seen.
        SW_PHASE_CNT: 0x24 [31:16];
        /// Unexpected messages that came.
        HW_PHASE_CNT: 0x24 [15:0];
    } views {
        /// The queue's work queue.
        wq, wq_mut: 0x80 Wq;
    }

    /// CREATE_XRQ input; the page list follows.
    pub struct CreateXrqIn[0x150] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The context.
        xrqc, xrqc_mut: 0x10 Xrqc;
    }

    /// QUERY_XRQ output; the page list follows.
    pub struct QueryXrqOut[0x150] {
        /// Status.
        STATUS: 0x0 [31:24];
    } views {
        /// The context.
        xrqc, xrqc_mut: 0x10 Xrqc;
    }

    /// Segment of a work request that changes the list, 32 bytes; a data segment with the buffer follows if an entry is appended.
    pub struct TagSeg[0x20] {
        /// What is done: [`list_op`].
        OPCODE: 0x0 [31:28];
        /// 1 = a completion tells of it.
        CQE_REQ: 0x0 [23:23];
        /// 1 = `SW_CNT` is valid.
        SW_CNT_VALID: 0x0 [22:22];
        /// Append: the entry that the next one will be put into. Remove: the entry.
        INDEX: 0x0 [15:0];
        /// Unexpected messages that software has seen.
        SW_CNT: 0x4 [15:0];
        /// The tag.
        TAG: 0x10 u64;
        /// Bits of the tag that count.
        MASK: 0x18 u64;
    }

    /// Header of a message, 16 bytes: its first bytes.
    pub struct TagHeader[0x10] {
        /// Kind of message: [`message`].
        OPCODE: 0x0 [31:24];
        /// The sender's.
        APP_CTX: 0x4 [31:0];
        /// The tag.
        TAG: 0x8 u64;
    }

    /// Second header of a message that announces data, 16 bytes: where the data is.
    pub struct Rendezvous[0x10] {
        /// Address.
        VA: 0x0 u64;
        /// Key.
        RKEY: 0x8 [31:0];
        /// Bytes.
        LEN: 0xc [31:0];
    }

    /// First bytes of the completion of a work request that changed the list, 16 bytes.
    pub struct ListCqe[0x10] {
        /// 1 = it was done; there is nothing to remove of an entry that a message has used.
        SUCCESS: 0x0 [31:31];
        /// [`Xrqc::HW_PHASE_CNT`].
        HW_PHASE_CNT: 0x4 [31:16];
    }
}

/// [`Xrqc::STATE`]: it works.
pub const STATE_GOOD: u32 = 0;
/// [`Xrqc::STATE`]: it does not, as its memory can't be read.
pub const STATE_ERROR: u32 = 1;
/// [`Xrqc::TOPOLOGY`]: tag matching.
pub const TOPOLOGY_TAG_MATCHING: u32 = 1;
/// [`Xrqc::OFFLOAD`]: the adapter fetches data that messages announce.
pub const OFFLOAD_RENDEZVOUS: u32 = 1;
/// [`crate::cqe::Cqe::APP`]: tag matching.
pub const APP_TAG_MATCHING: u32 = 1;

/// Values of [`TagSeg::OPCODE`].
pub mod list_op {
    /// Nothing; software says how many unexpected messages it has seen.
    pub const NOP: u32 = 0;
    /// An entry is appended.
    pub const APPEND: u32 = 1;
    /// An entry is removed.
    pub const REMOVE: u32 = 2;
}

/// Values of [`TagHeader::OPCODE`].
pub mod message {
    /// Its tag means nothing.
    pub const NO_TAG: u32 = 0;
    /// It announces data.
    pub const RENDEZVOUS: u32 = 1;
    /// Announced data was fetched: the headers of the message that announced it, with this opcode.
    pub const FIN: u32 = 2;
    /// It carries its data.
    pub const EAGER: u32 = 3;
}

/// Values of [`crate::cqe::Cqe::APP_OP`].
pub mod app_op {
    /// A message has used an entry, whose data is not there yet.
    pub const CONSUMED: u32 = 0x1;
    /// The data of an entry is there.
    pub const EXPECTED: u32 = 0x2;
    /// A message whose tag is in no entry; it is in a receive WQE.
    pub const UNEXPECTED: u32 = 0x3;
    /// A message whose tag means nothing; it is in a receive WQE.
    pub const NO_TAG: u32 = 0x4;
    /// An entry was appended.
    pub const APPEND: u32 = 0x5;
    /// An entry was removed, or not.
    pub const REMOVE: u32 = 0x6;
    /// Nothing was done to the list.
    pub const NOP: u32 = 0x7;
    /// A message of one packet has used an entry, and its data is there.
    pub const CONSUMED_MSG: u32 = 0xa;
    /// A message that announces data has used an entry, in which its headers are: software has to fetch the data.
    pub const CONSUMED_MSG_SW_RENDEZVOUS: u32 = 0xb;
    /// The data of an entry will not come.
    pub const CANCELED: u32 = 0xc;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_context() {
        let mut x = Xrqc::new();
        x.set(Xrqc::TOPOLOGY, TOPOLOGY_TAG_MATCHING).set(Xrqc::OFFLOAD, OFFLOAD_RENDEZVOUS).set(Xrqc::CQN, 5);
        x.set(Xrqc::LOG_MATCHING_LIST_SZ, 7).set(Xrqc::HW_PHASE_CNT, 3).set(Xrqc::SW_PHASE_CNT, 2);
        x.wq_mut().set(Wq::LOG_WQ_SZ, 6);
        assert_eq!(x.bytes()[..12], [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(x.bytes()[0x20..0x28], [0x70, 0, 0, 0, 0, 2, 0, 3]);
        assert_eq!(x.bytes()[0xa3], 6);
    }

    #[test]
    fn golden_segment() {
        let mut s = TagSeg::new();
        s.set(TagSeg::OPCODE, list_op::REMOVE).set(TagSeg::CQE_REQ, 1).set(TagSeg::SW_CNT_VALID, 1);
        s.set(TagSeg::INDEX, 0x123).set(TagSeg::SW_CNT, 0x456).set(TagSeg::TAG, 7).set(TagSeg::MASK, 8);
        assert_eq!(s.bytes()[..8], [0x20, 0xc0, 1, 0x23, 0, 0, 4, 0x56]);
        assert_eq!((s.bytes()[0x17], s.bytes()[0x1f]), (7, 8));
    }

    #[test]
    fn golden_headers() {
        let mut h = TagHeader::new();
        h.set(TagHeader::OPCODE, message::EAGER).set(TagHeader::APP_CTX, 9).set(TagHeader::TAG, 0x1234);
        assert_eq!(*h.bytes(), [3, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        let mut r = Rendezvous::new();
        r.set(Rendezvous::VA, 1).set(Rendezvous::RKEY, 2).set(Rendezvous::LEN, 3);
        assert_eq!(r.bytes()[7..], [1, 0, 0, 0, 2, 0, 0, 0, 3]);
        let mut c = ListCqe::new();
        c.set(ListCqe::SUCCESS, 1).set(ListCqe::HW_PHASE_CNT, 5);
        assert_eq!(c.bytes()[..8], [0x80, 0, 0, 0, 0, 5, 0, 0]);
    }
}
