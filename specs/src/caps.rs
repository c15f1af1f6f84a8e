//! Capabilities of the adapter: what QUERY_HCA_CAP reports.
//!
//! Source: PRM "HCA Capabilities" (general device capabilities, atomic capabilities); fields the
//! public manual does not have, and those of on-demand paging, were taken from the mlx5 driver's use of them.

use crate::layout::layout;

/// Type of the general capabilities in QUERY_HCA_CAP.
pub const TYPE_GENERAL: u32 = 0x0;
/// Type of the on-demand paging capabilities.
pub const TYPE_ODP: u32 = 0x2;
/// Type of the atomic capabilities.
pub const TYPE_ATOMIC: u32 = 0x3;
/// Type of the second page of general capabilities.
pub const TYPE_GENERAL_2: u32 = 0x20;

layout! {
    /// General device capabilities, 256 bytes.
    pub struct General[0x100] {
        /// There is a second page of general capabilities ([`General2`]).
        HCA_CAP_2: 0x4 [31:31];
        /// log2 of the WQEs of an SRQ.
        LOG_MAX_SRQ_SZ: 0x10 [31:24];
        /// log2 of the WQEs of a QP.
        LOG_MAX_QP_SZ: 0x10 [23:16];
        /// log2 of the number of QPs.
        LOG_MAX_QP: 0x10 [4:0];
        /// log2 of the number of SRQs.
        LOG_MAX_SRQ: 0x14 [20:16];
        /// Scatter/gather entries for best performance.
        MAX_SGL_FOR_OPTIMIZED_PERFORMANCE: 0x18 [31:24];
        /// log2 of the CQEs of a CQ.
        LOG_MAX_CQ_SZ: 0x18 [23:16];
        /// log2 of the number of CQs.
        LOG_MAX_CQ: 0x18 [4:0];
        /// log2 of the EQEs of an EQ.
        LOG_MAX_EQ_SZ: 0x1c [31:24];
        /// log2 of the number of mkeys.
        LOG_MAX_MKEY: 0x1c [21:16];
        /// The dump-fill mkey exists.
        DUMP_FILL_MKEY: 0x1c [7:7];
        /// Fast teardown is supported.
        FAST_TEARDOWN: 0x1c [4:4];
        /// log2 of the number of EQs.
        LOG_MAX_EQ: 0x1c [3:0];
        /// Levels of indirect mkeys.
        MAX_INDIRECTION: 0x20 [31:24];
        /// The fixed buffer size mode of KSM.
        FIXED_BUFFER_SIZE: 0x20 [23:23];
        /// log2 of the largest region.
        LOG_MAX_MRW_SZ: 0x20 [22:16];
        /// Forced teardown is supported.
        FORCE_TEARDOWN: 0x20 [15:15];
        /// log2 of the signature parts of a key.
        LOG_MAX_BSF_LIST_SIZE: 0x20 [13:8];
        /// UMR WQEs may carry a translation offset beyond 16 bits.
        UMR_EXTENDED_TRANSLATION_OFFSET: 0x20 [7:7];
        /// The null mkey exists.
        NULL_MKEY: 0x20 [6:6];
        /// log2 of the KLMs of an indirect mkey.
        LOG_MAX_KLM_LIST_SIZE: 0x20 [5:0];
        /// All pages may be released at once.
        RELEASE_ALL_PAGES: 0x28 [26:26];
        /// log2 of outstanding reads and atomics, DC initiator.
        LOG_MAX_RA_REQ_DC: 0x24 [21:16];
        /// log2 of outstanding reads and atomics, DC target.
        LOG_MAX_RA_RES_DC: 0x24 [5:0];
        /// Signatures can be CRC-64 of XP10.
        SIG_CRC64_XP10: 0x28 [24:24];
        /// Signatures can be CRC-32C.
        SIG_CRC32C: 0x28 [23:23];
        /// log2 of outstanding reads and atomics, requester.
        LOG_MAX_RA_REQ_QP: 0x28 [21:16];
        /// log2 of outstanding reads and atomics, responder.
        LOG_MAX_RA_RES_QP: 0x28 [5:0];
        /// Messages may be padded at the end to a cache line.
        END_PAD: 0x2c [31:31];
        /// GID table size code: 8 << code entries.
        GID_TABLE_SIZE: 0x2c [15:0];
        /// Q counters count requests that came out of sequence.
        OUT_OF_SEQ_CNT: 0x30 [31:31];
        /// Q counters count retransmissions and their causes.
        RETRANSMISSION_Q_COUNTERS: 0x30 [29:29];
        /// Vport counters exist.
        VPORT_COUNTERS: 0x30 [30:30];
        /// Number of Q counters.
        MAX_QP_CNT: 0x30 [25:16];
        /// P_Key table size code: 128 << code entries.
        PKEY_TABLE_SIZE: 0x30 [15:0];
        /// The function manages virtual ports.
        VPORT_GROUP_MANAGER: 0x34 [31:31];
        /// InfiniBand virtualization.
        IB_VIRT: 0x34 [29:29];
        /// ACK delay of the adapter: 4.096 us * 2^value.
        LOCAL_CA_ACK_DELAY: 0x34 [20:16];
        /// Q counters count completions in error by cause.
        ENHANCED_ERROR_Q_COUNTERS: 0x34 [14:14];
        /// Port type: 0 InfiniBand, 1 Ethernet.
        PORT_TYPE: 0x34 [9:8];
        /// Number of ports.
        NUM_PORTS: 0x34 [7:0];
        /// log2 of the largest message.
        LOG_MAX_MSG: 0x38 [28:24];
        /// Static rates, bit mask.
        STAT_RATE_SUPPORT: 0x3c [31:16];
        /// Signature blocks can have 4048 bytes.
        SIG_BLOCK_4048: 0x3c [15:15];
        /// Highest CQE version.
        CQE_VERSION: 0x3c [3:0];
        /// 1 = UMR WQEs can't change the number of translations.
        UMR_MODIFY_ENTITY_SIZE_DISABLED: 0x40 [24:24];
        /// 1 = UMR WQEs can't change the atomic right.
        UMR_MODIFY_ATOMIC_DISABLED: 0x40 [23:23];
        /// 1 = UMR WQEs can't make indirect mkeys.
        UMR_INDIRECT_MKEY_DISABLED: 0x40 [22:22];
        /// Fence mode after UMR.
        UMR_FENCE: 0x40 [21:20];
        /// A signature error can drain the send queue.
        DRAIN_SIGERR: 0x40 [16:16];
        /// Signature errors are reported by CQEs.
        SIGERR_CQE: 0x40 [13:13];
        /// Signature handover: keys with signature domains.
        SHO: 0x40 [8:8];
        /// Command signatures.
        CMDIF_CHECKSUM: 0x40 [15:14];
        /// Scatter of small data to the CQE.
        SCTR_DATA_CQE: 0x40 [10:10];
        /// Dynamically connected targets exist.
        DCT: 0x40 [5:5];
        /// Atomics exist.
        ATOMIC: 0x40 [1:1];
        /// Overrun can be ignored.
        CQ_OI: 0x44 [31:31];
        /// CQs can be resized.
        CQ_RESIZE: 0x44 [30:30];
        /// CQ moderation.
        CQ_MODERATION: 0x44 [29:29];
        /// On-demand paging.
        PG: 0x44 [24:24];
        /// Loopback of multicast can be blocked.
        BLOCK_LB_MC: 0x44 [23:23];
        /// Moderation breaks for solicited CQEs.
        SCQE_BREAK_MODERATION: 0x44 [21:21];
        /// The moderation period may start at the CQE.
        CQ_PERIOD_START_FROM_CQE: 0x44 [20:20];
        /// MODIFY_CQ can change the EQ.
        CQ_EQ_REMAP: 0x44 [25:25];
        /// Automatic path migration.
        APM: 0x44 [17:17];
        /// Invalidation by RETH-less sends: type 2 windows.
        IMAICL: 0x44 [14:14];
        /// Q_Key violation counter.
        QKV: 0x44 [9:9];
        /// P_Key violation counter.
        PKV: 0x44 [8:8];
        /// Source QPN can be set.
        SET_DETH_SQPN: 0x44 [7:7];
        /// Extended reliable connections.
        XRC: 0x44 [3:3];
        /// Unreliable datagrams.
        UD: 0x44 [2:2];
        /// Unreliable connections.
        UC: 0x44 [1:1];
        /// Reliable connections.
        RC: 0x44 [0:0];
        /// UARs are 4 KiB in larger system pages.
        UAR_4K: 0x48 [31:31];
        /// The kernel, user context 0, may make user memories too.
        UMEM_UID_0: 0x48 [13:13];
        /// log2 of the UAR space in MiB.
        UAR_SZ: 0x48 [21:16];
        /// log2 of the adapter's page size.
        LOG_PG_SZ: 0x48 [7:0];
        /// BlueFlame is supported.
        BF: 0x4c [31:31];
        /// SET_DRIVER_VERSION is supported.
        DRIVER_VERSION: 0x4c [30:30];
        /// log2 of the size of a BlueFlame register (both halves).
        LOG_BF_REG_SIZE: 0x4c [20:16];
        /// Largest send WQE in bytes.
        MAX_WQE_SZ_SQ: 0x50 [15:0];
        /// Largest receive WQE in bytes.
        MAX_WQE_SZ_RQ: 0x54 [15:0];
        /// Largest send WQE of a DC QP in bytes.
        MAX_WQE_SZ_SQ_DC: 0x58 [15:0];
        /// QPs of a multicast group.
        MAX_QP_MCG: 0x5c [24:0];
        /// log2 of the number of multicast groups.
        LOG_MAX_MCG: 0x60 [7:0];
        /// log2 of the number of transport domains.
        LOG_MAX_TRANSPORT_DOMAIN: 0x64 [28:24];
        /// log2 of the number of protection domains.
        LOG_MAX_PD: 0x64 [20:16];
        /// log2 of the number of XRC domains.
        LOG_MAX_XRCD: 0x64 [4:0];
        /// log2 of the number of send queues without a queue pair.
        LOG_MAX_SQ: 0x6c [20:16];
        /// RMPs can be cyclic; kernel flag.
        BASIC_CYCLIC_RCV_WQE: 0x70 [31:31];
        /// log2 of the number of RMPs.
        LOG_MAX_RMP: 0x70 [28:24];
        /// log2 of the WQEs of a work queue.
        LOG_MAX_WQ_SZ: 0x78 [4:0];
        /// Kinds of general objects, bit mask by [`object_type`].
        GENERAL_OBJ_TYPES: 0x80 u64;
        /// log2 of the number of user contexts.
        LOG_MAX_UCTX: 0x8c [28:24];
        /// log2 of the number of user memories.
        LOG_MAX_UMEM: 0x8c [20:16];
        /// Number of EQs, if not a power of two.
        MAX_NUM_EQS: 0x8c [15:0];
        /// CQEs of signature errors contain domain and kind.
        SIGERR_DOMAIN_AND_SIG_TYPE: 0x90 [31:31];
        /// log2 of the UAR page size in 4 KiB units.
        LOG_UAR_PAGE_SZ: 0x90 [15:0];
        /// Frequency of the internal timer in MHz.
        DEVICE_FREQUENCY_MHZ: 0x98 [31:0];
        /// Frequency of the internal timer in kHz.
        DEVICE_FREQUENCY_KHZ: 0x9c [31:0];
        /// Mini CQEs can carry the index of the stride.
        MINI_CQE_RESP_STRIDE_INDEX: 0xb4 [3:3];
        /// 128-byte CQEs can be padded.
        CQE_128_ALWAYS: 0xb4 [2:2];
        /// 128-byte CQEs can be compressed.
        CQE_COMPRESSION_128: 0xb4 [1:1];
        /// 64-byte CQEs can be compressed.
        CQE_COMPRESSION: 0xb4 [0:0];
        /// How long a compressed block stays open.
        CQE_COMPRESSION_TIMEOUT: 0xb8 [31:16];
        /// Most completions of a compressed block.
        CQE_COMPRESSION_MAX_NUM: 0xb8 [15:0];
        /// What user contexts may be allowed ([`uctx_cap`]).
        UCTX_CAP: 0xd4 [31:0];
    }

    /// General device capabilities, second page, 256 bytes.
    pub struct General2[0x100] {
        /// log2 of all QP numbers that can be reserved.
        LOG_MAX_NUM_RESERVED_QPN: 0x10 [20:16];
        /// log2 of the fewest that are reserved at once.
        LOG_RESERVED_QPN_GRANULARITY: 0x10 [12:8];
        /// log2 of the most that are reserved at once.
        LOG_RESERVED_QPN_MAX_ALLOC: 0x10 [4:0];
    }

    /// Atomic capabilities, 256 bytes.
    pub struct Atomic[0x100] {
        /// Byte order of 8-byte atomics in force: 0 none, 1 host order.
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x8 [31:30];
        /// Host byte order is supported.
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x8 [25:25];
        /// Operations: bit 0 compare and swap, bit 1 fetch and add, 2 and 3 masked.
        ATOMIC_OPERATIONS: 0x10 [15:0];
        /// Sizes on RC: bit n = 2^n bytes.
        ATOMIC_SIZE_QP: 0x14 [15:0];
        /// Sizes on DC.
        ATOMIC_SIZE_DC: 0x18 [15:0];
    }

    /// On-demand paging capabilities, 256 bytes: for each transport what may meet a page that is not
    /// present ([`odp`]).
    pub struct Odp[0x100] {
        /// Together with signatures.
        SIG: 0x8 [31:31];
        /// Reliable connections.
        RC: 0x10 [31:26];
        /// Unreliable connections.
        UC: 0x14 [31:26];
        /// Datagrams.
        UD: 0x18 [31:26];
        /// Extended reliable connections.
        XRC: 0x1c [31:26];
        /// Dynamic connections.
        DC: 0x20 [31:26];
    }
}

/// Bits of a transport's field of [`Odp`].
pub mod odp {
    /// Data of sends.
    pub const SEND: u32 = 1 << 5;
    /// Receive buffers of the queue pair's own receive queue.
    pub const RECEIVE: u32 = 1 << 4;
    /// RDMA writes, at both ends.
    pub const WRITE: u32 = 1 << 3;
    /// RDMA reads, at both ends.
    pub const READ: u32 = 1 << 2;
    /// Atomics, at both ends.
    pub const ATOMIC: u32 = 1 << 1;
    /// Receive buffers of a shared receive queue.
    pub const SRQ_RECEIVE: u32 = 1 << 0;
}

/// Kinds of general objects: bits of [`General::GENERAL_OBJ_TYPES`], and what the commands name (mlx5dv, field use).
pub mod object_type {
    /// QP numbers that no queue pair has.
    pub const RESERVED_QPN: u32 = 0x2c;
}

/// Bits of [`General::UCTX_CAP`] and of CREATE_UCTX.
pub mod uctx_cap {
    /// Raw packets may be sent.
    pub const RAW_TX: u32 = 1 << 0;
    /// Resources of the adapter itself may be looked at.
    pub const INTERNAL_DEV_RES: u32 = 1 << 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_general() {
        let mut c = General::new();
        c.set(General::LOG_MAX_QP_SZ, 15).set(General::LOG_MAX_QP, 18).set(General::LOG_MAX_SRQ_SZ, 15);
        c.set(General::XRC, 1)
            .set(General::RC, 1)
            .set(General::NUM_PORTS, 1)
            .set(General::LOCAL_CA_ACK_DELAY, 15);
        c.set(General::CQ_RESIZE, 1).set(General::LOG_BF_REG_SIZE, 9);
        assert_eq!(c.bytes()[0x10..0x14], [15, 15, 0, 18]);
        assert_eq!(c.bytes()[0x34..0x38], [0, 15, 0, 1]);
        assert_eq!(c.bytes()[0x44..0x48], [0x40, 0, 0, 9]);
        assert_eq!(c.bytes()[0x4c..0x50], [0, 9, 0, 0]);
    }

    #[test]
    fn golden_odp() {
        let mut c = Odp::new();
        c.set(Odp::RC, odp::SEND | odp::SRQ_RECEIVE).set(Odp::UD, odp::SEND);
        assert_eq!((c.bytes()[0x10], c.bytes()[0x18]), (0x84, 0x80));
    }
}
