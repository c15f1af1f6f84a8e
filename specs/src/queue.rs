//! Contexts of completion, event and shared receive queues.
//!
//! Source: PRM "Completion Queue Context", "Event Queue Context", "SRQ Context",
//! "XRC SRQ Context", "RMP Context" and "Work Queue".

use crate::layout::layout;

layout! {
    /// Completion queue context (CQC), 64 bytes.
    pub struct Cqc[0x40] {
        /// 0 = good, 9 = overrun, 0xa = write failure.
        STATUS: 0x0 [31:28];
        /// 1 = the doorbell record lies in a user memory, its address is an offset there.
        DBR_UMEM_VALID: 0x0 [25:25];
        /// CQE size: [`cqe_size`].
        CQE_SZ: 0x0 [23:21];
        /// Collapsed: every CQE overwrites the first. Counters and owner bits go on as in other queues.
        CC: 0x0 [20:20];
        /// A solicited completion ends moderation.
        SCQE_BREAK_MODERATION_EN: 0x0 [18:18];
        /// Ignore overrun.
        OI: 0x0 [17:17];
        /// Moderation period starts at the event (0) or at the CQE (1).
        CQ_PERIOD_MODE: 0x0 [16:15];
        /// CQE compression enabled.
        CQE_COMP_EN: 0x0 [14:14];
        /// Content of the mini CQEs of receive completions: [`mini_format`].
        MINI_CQE_RES_FORMAT: 0x0 [13:12];
        /// Armed state.
        ST: 0x0 [11:8];
        /// The user memory of the doorbell record.
        DBR_UMEM_ID: 0x4 [31:0];
        /// Offset of the buffer in its first page, in 64ths of a page.
        PAGE_OFFSET: 0x8 [11:6];
        /// log2 of the number of CQEs.
        LOG_CQ_SIZE: 0xc [28:24];
        /// UAR page of the arm doorbell.
        UAR_PAGE: 0xc [23:0];
        /// Moderation period in microseconds.
        CQ_PERIOD: 0x10 [27:16];
        /// Moderation count in CQEs.
        CQ_MAX_COUNT: 0x10 [15:0];
        /// Event queue for completion events.
        C_EQN: 0x14 [7:0];
        /// log2 of the buffer's page size in 4 KiB units.
        LOG_PAGE_SIZE: 0x18 [28:24];
        /// Index of the last notified CQE.
        LAST_NOTIFIED_INDEX: 0x20 [23:0];
        /// Index of the last solicited CQE.
        LAST_SOLICIT_INDEX: 0x24 [23:0];
        /// Consumer counter.
        CONSUMER_COUNTER: 0x28 [23:0];
        /// Producer counter.
        PRODUCER_COUNTER: 0x2c [23:0];
        /// DMA address of the doorbell record.
        DBR_ADDR: 0x38 u64;
    }

    /// Event queue context (EQC), 64 bytes.
    pub struct Eqc[0x40] {
        /// 0 = good, 9 = overrun, 0xa = write failure.
        STATUS: 0x0 [31:28];
        /// Ignore overrun.
        OI: 0x0 [17:17];
        /// State: 9 = armed, 0xa = fired.
        ST: 0x0 [11:8];
        /// Offset of the buffer in its first page, in 64ths of a page.
        PAGE_OFFSET: 0x8 [11:6];
        /// log2 of the number of EQEs.
        LOG_EQ_SIZE: 0xc [28:24];
        /// UAR page of the doorbell.
        UAR_PAGE: 0xc [23:0];
        /// MSI-X vector.
        INTR: 0x14 [11:0];
        /// log2 of the buffer's page size in 4 KiB units.
        LOG_PAGE_SIZE: 0x18 [28:24];
        /// Consumer counter.
        CONSUMER_COUNTER: 0x28 [23:0];
        /// Producer counter.
        PRODUCER_COUNTER: 0x2c [23:0];
    }

    /// Shared receive queue context, basic and XRC, 64 bytes.
    pub struct Srqc[0x40] {
        /// 0 = good, 1 = error.
        STATE: 0x0 [31:28];
        /// log2 of the number of WQEs.
        LOG_SRQ_SIZE: 0x0 [27:24];
        /// log2 of the WQE's stride in 16-byte units.
        LOG_RQ_STRIDE: 0x4 [26:24];
        /// XRC domain.
        XRCD: 0x4 [23:0];
        /// Offset of the buffer in its first page, in 64ths of a page.
        PAGE_OFFSET: 0x8 [31:26];
        /// XRC: 1 = the doorbell record lies in a user memory, its address is an offset there.
        DBR_UMEM_VALID: 0x8 [24:24];
        /// Completion queue (XRC).
        CQN: 0x8 [23:0];
        /// XRC: the user memory of the doorbell record.
        DBR_UMEM_ID: 0xc [31:0];
        /// log2 of the buffer's page size in 4 KiB units.
        LOG_PAGE_SIZE: 0x10 [29:24];
        /// Value echoed in CQEs of version 1 (XRC).
        USER_INDEX: 0x10 [23:0];
        /// Protection domain.
        PD: 0x18 [23:0];
        /// Limit water mark; 0 = not armed.
        LWM: 0x1c [31:16];
        /// WQEs posted and not consumed.
        WQE_CNT: 0x1c [15:0];
        /// DMA address of the doorbell record.
        DBR_ADDR: 0x28 u64;
    }

    /// Work queue, as part of other contexts, 192 bytes.
    pub struct Wq[0xc0] {
        /// Kind: 0 linked list, 1 cyclic, 2 linked list with strides, 3 cyclic with strides.
        WQ_TYPE: 0x0 [31:28];
        /// 1 = WQEs carry signatures.
        WQ_SIGNATURE: 0x0 [27:27];
        /// What follows received data up to the end of its cache line: 0 nothing is written, 1 zeros may be.
        END_PADDING_MODE: 0x0 [26:25];
        /// 1 = another queue's WQEs say when those of this one may be executed.
        CD_SLAVE: 0x0 [24:24];
        /// Offset of the buffer in its first page, in 64ths of a page.
        PAGE_OFFSET: 0x4 [20:16];
        /// Limit water mark; 0 = not armed.
        LWM: 0x4 [15:0];
        /// Protection domain.
        PD: 0x8 [23:0];
        /// UAR page.
        UAR_PAGE: 0xc [23:0];
        /// DMA address of the doorbell record.
        DBR_ADDR: 0x10 u64;
        /// WQEs consumed.
        HW_COUNTER: 0x18 [31:0];
        /// WQEs posted.
        SW_COUNTER: 0x1c [31:0];
        /// log2 of the WQE's stride in bytes.
        LOG_WQ_STRIDE: 0x20 [19:16];
        /// log2 of the buffer's page size in 4 KiB units.
        LOG_WQ_PG_SZ: 0x20 [12:8];
        /// log2 of the number of WQEs.
        LOG_WQ_SZ: 0x20 [4:0];
        /// 1 = the doorbell record lies in a user memory, its address is an offset there.
        DBR_UMEM_VALID: 0x24 [31:31];
        /// 1 = the queue lies in a user memory, no page list follows.
        WQ_UMEM_VALID: 0x24 [30:30];
        /// log2 of the strides of a WQE, less 9; of fewer a number with a sign: 10 stands for 2^3, 15 for 2^8.
        LOG_WQE_NUM_OF_STRIDES: 0x24 [11:8];
        /// 1 = two bytes stay free before a packet, so that its layer 3 is aligned.
        TWO_BYTE_SHIFT_EN: 0x24 [7:7];
        /// log2 of a stride's bytes, less 6.
        LOG_WQE_STRIDE_SIZE: 0x24 [2:0];
        /// The user memory of the doorbell record.
        DBR_UMEM_ID: 0x28 [31:0];
        /// The user memory of the queue.
        WQ_UMEM_ID: 0x2c [31:0];
        /// Where in the user memory the queue begins, in bytes.
        WQ_UMEM_OFFSET: 0x30 u64;
    }

    /// Send queue (SQ) context without its page list, 240 bytes.
    pub struct Sqc[0xf0] {
        /// 1 = the reserved lkey may be used.
        RLKY: 0x0 [31:31];
        /// 1 = the queue's WQEs say when those of others may be executed.
        CD_MASTER: 0x0 [30:30];
        /// 1 = fast registration is allowed.
        FRE: 0x0 [29:29];
        /// 1 = WQEs posted in error are flushed.
        FLUSH_IN_ERROR_EN: 0x0 [28:28];
        /// 1 = a WQE may have several packets.
        ALLOW_MULTI_PKT_SEND_WQE: 0x0 [27:27];
        /// Headers that WQEs have to carry inline: 0 none, 1 layer 2, 2 layer 3, 3 layer 4.
        MIN_WQE_INLINE_MODE: 0x0 [26:24];
        /// 0 = reset, 1 = ready, 3 = error.
        STATE: 0x0 [23:20];
        /// 1 = WQEs may change memory keys (UMR).
        REG_UMR: 0x0 [19:19];
        /// 1 = WQEs may say where headers begin.
        ALLOW_SWP: 0x0 [18:18];
        /// 1 = a receive queue feeds the queue.
        HAIRPIN: 0x0 [17:17];
        /// 1 = nothing leaves the adapter.
        NON_WIRE: 0x0 [16:16];
        /// Timestamps of completions: 0 free running, 1 default, 2 real time.
        TS_FORMAT: 0x0 [5:4];
        /// What completions carry instead of the queue's number.
        USER_INDEX: 0x4 [23:0];
        /// The completion queue.
        CQN: 0x8 [23:0];
        /// Hairpin: the receive queue.
        HAIRPIN_PEER_RQ: 0xc [23:0];
        /// Hairpin: the receive queue's adapter.
        HAIRPIN_PEER_VHCA: 0x10 [15:0];
        /// Completion queue of the times at which packets left the port; 0 = none.
        TS_CQE_TO_DEST_CQN: 0x18 [23:0];
        /// Index of the rate that the queue keeps to; 0 = none.
        PACKET_PACING_RATE_LIMIT_INDEX: 0x1c [15:0];
        /// Transport interfaces (TIS) that follow; Ethernet only.
        TIS_LST_SZ: 0x20 [31:16];
        /// Group of queues that share a rate; 0 = none.
        QOS_QUEUE_GROUP_ID: 0x20 [15:0];
        /// The transport interface.
        TIS_NUM_0: 0x2c [23:0];
    } views {
        /// Its work queue.
        wq, wq_mut: 0x30 Wq;
    }

    /// SET_PP_RATE_LIMIT input (mlx5 driver, field use).
    pub struct SetPpRateLimitIn[0x40] {
        /// Entry of the table of rates; 0 is none.
        RATE_LIMIT_INDEX: 0x8 [15:0];
        /// The rate, kb/s; 0 = without end.
        RATE_LIMIT: 0x10 [31:0];
        /// Bytes that may be sent at once; 0 = the adapter's choice.
        BURST_UPPER_BOUND: 0x14 [31:0];
        /// What is counted: 0 = bits of packets.
        RATE_MODE: 0x18 [19:16];
        /// Usual bytes of a packet; 0 = unknown.
        TYPICAL_PACKET_SIZE: 0x18 [15:0];
    }

    /// Receive memory pool (RMP) context without its page list, 240 bytes.
    pub struct Rmpc[0xf0] {
        /// 0 = reset, 1 = ready, 3 = error.
        STATE: 0x0 [23:20];
        /// 1 = WQEs of a cyclic queue begin with their scatter entries, 0 = with a segment like that of a linked list, unused.
        BASIC_CYCLIC_RCV_WQE: 0x4 [31:31];
    } views {
        /// The pool's work queue.
        wq, wq_mut: 0x30 Wq;
    }
}

/// Values of [`Cqc::CQE_SZ`].
pub mod cqe_size {
    /// 64 bytes.
    pub const B64: u32 = 0;
    /// 128 bytes; without data in it, the first half is not written.
    pub const B128: u32 = 1;
    /// 128 bytes; the first half is always written, so that whole cache lines are.
    pub const B128_PADDED: u32 = 2;
}

/// Values of [`Cqc::MINI_CQE_RES_FORMAT`] (mlx5 driver, field use).
pub mod mini_format {
    /// The hash of the packet's headers.
    pub const HASH: u32 = 0;
    /// The checksum.
    pub const CHECKSUM: u32 = 1;
    /// The checksum and the index of the stride.
    pub const CHECKSUM_STRIDE: u32 = 3;
}

/// Context status "overrun" of CQs and EQs.
pub const STATUS_OVERRUN: u32 = 9;
/// Context status "write failure" of CQs and EQs.
pub const STATUS_WRITE_FAILURE: u32 = 0xa;
/// [`Eqc::ST`] and [`Cqc::ST`]: armed.
pub const ST_ARMED: u32 = 9;
/// [`Eqc::ST`] and [`Cqc::ST`]: fired.
pub const ST_FIRED: u32 = 0xa;
/// [`Cqc::ST`]: armed for solicited completions.
pub const ST_SOLICITED_ARMED: u32 = 6;
/// [`Srqc::STATE`]: error.
pub const SRQ_ERROR: u32 = 1;
/// [`Sqc::STATE`]: reset.
pub const SQ_RESET: u32 = 0;
/// [`Sqc::STATE`]: ready.
pub const SQ_READY: u32 = 1;
/// [`Sqc::STATE`]: error.
pub const SQ_ERROR: u32 = 3;
/// [`Rmpc::STATE`]: error.
pub const RMP_ERROR: u32 = 3;
/// [`Rmpc::STATE`]: ready.
pub const RMP_READY: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_cqc() {
        let mut c = Cqc::new();
        c.set(Cqc::CQE_SZ, 1).set(Cqc::LOG_CQ_SIZE, 8).set(Cqc::UAR_PAGE, 0x11).set(Cqc::C_EQN, 3);
        c.set(Cqc::PAGE_OFFSET, 0x3f).set(Cqc::DBR_ADDR, 0x1000);
        let b = c.bytes();
        assert_eq!(b[..4], [0, 0x20, 0, 0]);
        assert_eq!(b[8..0x10], [0, 0, 0x0f, 0xc0, 8, 0, 0, 0x11]);
        assert_eq!(b[0x14..0x18], [0, 0, 0, 3]);
        assert_eq!(b[0x38..], [0, 0, 0, 0, 0, 0, 0x10, 0]);
    }

    #[test]
    fn golden_eqc() {
        let mut c = Eqc::new();
        c.set(Eqc::LOG_EQ_SIZE, 13).set(Eqc::UAR_PAGE, 0x10).set(Eqc::INTR, 2);
        let b = c.bytes();
        assert_eq!(b[0xc..0x18], [13, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn golden_rmp() {
        let mut c = Rmpc::new();
        c.set(Rmpc::STATE, RMP_READY);
        c.wq_mut().set(Wq::LOG_WQ_STRIDE, 5).set(Wq::LOG_WQ_SZ, 1).set(Wq::PD, 6);
        let b = c.bytes();
        assert_eq!(b[..4], [0, 0x10, 0, 0]);
        assert_eq!(b[0x38..0x3c], [0, 0, 0, 6]);
        assert_eq!(b[0x50..0x54], [0, 5, 0, 1]);
    }
}
