//! Capabilities of the adapter: what QUERY_HCA_CAP reports.
//!
//! Source: PRM "HCA Capabilities" (general device capabilities, atomic capabilities); fields the
//! public manual does not have, and those of on-demand paging, were taken from the mlx5 driver's use of them.

use crate::layout::{Field, layout};

/// Type of the general capabilities in QUERY_HCA_CAP.
pub const TYPE_GENERAL: u32 = 0x0;
/// Type of the offloads of Ethernet.
pub const TYPE_ETHERNET: u32 = 0x1;
/// Type of the on-demand paging capabilities.
pub const TYPE_ODP: u32 = 0x2;
/// Type of the atomic capabilities.
pub const TYPE_ATOMIC: u32 = 0x3;
/// Type of the RoCE capabilities.
pub const TYPE_ROCE: u32 = 0x4;
/// Type of the flow table capabilities of a NIC.
pub const TYPE_FLOW_TABLE: u32 = 0x7;
/// Type of the capabilities of rates.
pub const TYPE_QOS: u32 = 0xc;
/// Type of the capabilities of debugging.
pub const TYPE_DEBUG: u32 = 0xd;
/// Type of the capabilities of device memory.
pub const TYPE_DEVICE_MEMORY: u32 = 0xf;
/// Type of the capabilities of encryption ([`crate::crypto::Crypto`]).
pub const TYPE_CRYPTO: u32 = 0x1a;
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
        /// UMR WQEs may change [`crate::mkc::Mkc::RELAXED_ORDERING_WRITE`].
        RELAXED_ORDERING_WRITE_UMR: 0x18 [15:15];
        /// UMR WQEs may change [`crate::mkc::Mkc::RELAXED_ORDERING_READ`].
        RELAXED_ORDERING_READ_UMR: 0x18 [14:14];
        /// log2 of the number of CQs.
        LOG_MAX_CQ: 0x18 [4:0];
        /// log2 of the EQEs of an EQ.
        LOG_MAX_EQ_SZ: 0x1c [31:24];
        /// Keys have [`crate::mkc::Mkc::RELAXED_ORDERING_WRITE`].
        RELAXED_ORDERING_WRITE: 0x1c [23:23];
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
        /// RTS2RTS_QP can change the UDP source port of a path.
        RTS2RTS_QP_UDP_SPORT: 0x28 [14:14];
        /// Signatures can be CRC-64 of XP10.
        SIG_CRC64_XP10: 0x28 [24:24];
        /// Signatures can be CRC-32C.
        SIG_CRC32C: 0x28 [23:23];
        /// Contexts of queue pairs have an extension ([`crate::qpc::QpcExt`]).
        QPC_EXTENSION: 0x24 [29:29];
        /// Timers and restarts of RoCE can be set (the register ROCE_ACCL), and Q counters count them.
        ROCE_ACCL: 0x28 [22:22];
        /// log2 of outstanding reads and atomics, requester.
        LOG_MAX_RA_REQ_QP: 0x28 [21:16];
        /// log2 of outstanding reads and atomics, responder.
        LOG_MAX_RA_RES_QP: 0x28 [5:0];
        /// Messages may be padded at the end to a cache line.
        END_PAD: 0x2c [31:31];
        /// Congestion control can be looked at.
        CC_QUERY_ALLOWED: 0x2c [30:30];
        /// Congestion control can be changed.
        CC_MODIFY_ALLOWED: 0x2c [29:29];
        /// RTS2RTS_QP can change the Q counter set.
        RTS2RTS_QP_COUNTERS_SET_ID: 0x2c [22:22];
        /// RTS2RTS_QP can change the DSCP of a path ([`crate::qpc::opt::DSCP`]).
        RTS2RTS_QP_DSCP: 0x2c [21:21];
        /// The register QCAM tells of registers of priorities.
        QCAM_REG: 0x2c [16:16];
        /// GID table size code: 8 << code entries.
        GID_TABLE_SIZE: 0x2c [15:0];
        /// Q counters count requests that came out of sequence.
        OUT_OF_SEQ_CNT: 0x30 [31:31];
        /// Q counters count retransmissions and their causes.
        RETRANSMISSION_Q_COUNTERS: 0x30 [29:29];
        /// Vport counters exist.
        VPORT_COUNTERS: 0x30 [30:30];
        /// There are capabilities of debugging ([`struct@Debug`]).
        DEBUG: 0x30 [28:28];
        /// MODIFY_RQ can change the Q counter set.
        MODIFY_RQ_COUNTER_SET_ID: 0x30 [27:27];
        /// Packets wait for a receive WQE.
        RQ_DELAY_DROP: 0x30 [26:26];
        /// Number of Q counters.
        MAX_QP_CNT: 0x30 [25:16];
        /// P_Key table size code: 128 << code entries.
        PKEY_TABLE_SIZE: 0x30 [15:0];
        /// The function manages virtual ports.
        VPORT_GROUP_MANAGER: 0x34 [31:31];
        /// InfiniBand virtualization.
        IB_VIRT: 0x34 [29:29];
        /// Transmission selection (ETS) can be set.
        ETS: 0x34 [26:26];
        /// Flow tables of the NIC ([`FlowTables`]).
        NIC_FLOW_TABLE: 0x34 [25:25];
        /// The function manages the e-switch.
        ESWITCH_MANAGER: 0x34 [24:24];
        /// Programs can have memory of the adapter's own ([`DeviceMemory`]).
        DEVICE_MEMORY: 0x34 [23:23];
        /// The register MCAM tells of further registers.
        MCAM_REG: 0x34 [22:22];
        /// The register PCAM tells of further registers.
        PCAM_REG: 0x34 [21:21];
        /// ACK delay of the adapter: 4.096 us * 2^value.
        LOCAL_CA_ACK_DELAY: 0x34 [20:16];
        /// There are events of what is in the cages ([`crate::eqe::EventType::PortModule`]).
        PORT_MODULE_EVENT: 0x34 [15:15];
        /// Q counters count completions in error by cause.
        ENHANCED_ERROR_Q_COUNTERS: 0x34 [14:14];
        /// The register PCMR exists.
        PORTS_CHECK: 0x34 [13:13];
        /// The port's light can be switched (the register MLCR).
        BEACON_LED: 0x34 [10:10];
        /// Port type: 0 InfiniBand, 1 Ethernet.
        PORT_TYPE: 0x34 [9:8];
        /// Number of ports.
        NUM_PORTS: 0x34 [7:0];
        /// log2 of the largest message.
        LOG_MAX_MSG: 0x38 [28:24];
        /// There are warnings of temperature ([`crate::eqe::EventType::TemperatureWarning`]).
        TEMP_WARN_EVENT: 0x38 [15:15];
        /// There are events of the type that has sub-types ([`crate::eqe::general`]).
        GENERAL_NOTIFICATION_EVENT: 0x38 [13:13];
        /// Drivers are asked before the firmware starts again; set by a driver: it answers.
        PCI_SYNC_FOR_FW_UPDATE_EVENT: 0x3c [14:14];
        /// Static rates, bit mask.
        STAT_RATE_SUPPORT: 0x3c [31:16];
        /// Signature blocks can have 4048 bytes.
        SIG_BLOCK_4048: 0x3c [15:15];
        /// Traffic classes; 0 = 8.
        MAX_TC: 0x38 [19:16];
        /// Highest CQE version.
        CQE_VERSION: 0x3c [3:0];
        /// Receive queues whose packets take strides of a WQE.
        STRIDING_RQ: 0x40 [30:30];
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
        /// Rates and queueing.
        QOS: 0x40 [4:4];
        /// Offloads of Ethernet ([`EthernetOffloads`]).
        ETH_NET_OFFLOADS: 0x40 [3:3];
        /// RoCE ([`Roce`]).
        ROCE: 0x40 [2:2];
        /// Atomics exist.
        ATOMIC: 0x40 [1:1];
        /// Overrun can be ignored.
        CQ_OI: 0x44 [31:31];
        /// CQs can be resized.
        CQ_RESIZE: 0x44 [30:30];
        /// CQ moderation.
        CQ_MODERATION: 0x44 [29:29];
        /// MODIFY_CQ can change where the moderation period starts.
        CQ_PERIOD_MODE_MODIFY: 0x44 [28:28];
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
        /// UMR WQEs may name their lists by the reserved key, where there is one.
        UMR_PTR_RLKY: 0x44 [15:15];
        /// Invalidation by RETH-less sends: type 2 windows.
        IMAICL: 0x44 [14:14];
        /// Q_Key violation counter.
        QKV: 0x44 [9:9];
        /// P_Key violation counter.
        PKV: 0x44 [8:8];
        /// Queue pairs can send datagrams that name another source ([`crate::qpc::Qpc::DETH_SQPN`]).
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
        /// Packets of a queue pair of RC can be forced to come back to their port while RoCE is off, or where there is none.
        FL_RC_QP_WHEN_ROCE_DISABLED: 0x48 [23:23];
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
        /// Number of flow counters, upper half.
        MAX_FLOW_COUNTER_31_16: 0x58 [31:16];
        /// Largest send WQE of a DC QP in bytes.
        MAX_WQE_SZ_SQ_DC: 0x58 [15:0];
        /// QPs of a multicast group.
        MAX_QP_MCG: 0x5c [24:0];
        /// Flow counters that are allocated at once: bit n = 128 << n; 0 = one.
        FLOW_COUNTER_BULK_ALLOC: 0x60 [15:8];
        /// log2 of the number of multicast groups.
        LOG_MAX_MCG: 0x60 [7:0];
        /// log2 of the number of transport domains.
        LOG_MAX_TRANSPORT_DOMAIN: 0x64 [28:24];
        /// Keys have [`crate::mkc::Mkc::RELAXED_ORDERING_READ`].
        RELAXED_ORDERING_READ: 0x64 [21:21];
        /// log2 of the number of protection domains.
        LOG_MAX_PD: 0x64 [20:16];
        /// log2 of the number of XRC domains.
        LOG_MAX_XRCD: 0x64 [4:0];
        /// QUERY_VNIC_ENV tells of packets that flow steering dropped.
        NIC_RECEIVE_STEERING_DISCARD: 0x68 [31:31];
        /// QUERY_VNIC_ENV tells of packets that came while the virtual port was down.
        RECEIVE_DISCARD_VPORT_DOWN: 0x68 [30:30];
        /// The same of packets that were to leave.
        TRANSMIT_DISCARD_VPORT_DOWN: 0x68 [29:29];
        /// log2 of the flow counters that QUERY_FLOW_COUNTER reads at once.
        LOG_MAX_FLOW_COUNTER_BULK: 0x68 [23:16];
        /// Number of flow counters, lower half.
        MAX_FLOW_COUNTER_15_0: 0x68 [15:0];
        /// log2 of the number of receive queues (RQ).
        LOG_MAX_RQ: 0x6c [28:24];
        /// log2 of the number of send queues without a queue pair.
        LOG_MAX_SQ: 0x6c [20:16];
        /// log2 of the number of TIRs.
        LOG_MAX_TIR: 0x6c [12:8];
        /// log2 of the number of TISs.
        LOG_MAX_TIS: 0x6c [4:0];
        /// RMPs can be cyclic; kernel flag.
        BASIC_CYCLIC_RCV_WQE: 0x70 [31:31];
        /// Receive queues (RQ) may take WQEs of an RMP; known from DPDK.
        MEM_RQ_RMP: 0x70 [29:29];
        /// log2 of the number of RMPs.
        LOG_MAX_RMP: 0x70 [28:24];
        /// log2 of the number of tables of receive queues (RQT).
        LOG_MAX_RQT: 0x70 [20:16];
        /// log2 of the entries of such a table.
        LOG_MAX_RQT_SIZE: 0x70 [12:8];
        /// log2 of the TISs that a send queue may name.
        LOG_MAX_TIS_PER_SQ: 0x70 [4:0];
        /// A WQE may have fewer than 2^9 strides: from 2^3 on.
        EXT_STRIDE_NUM_RANGE: 0x74 [31:31];
        /// SET_HCA_CAP can switch RoCE off.
        ROCE_RW_SUPPORTED: 0x74 [30:30];
        /// SET_HCA_CAP can lower [`General::LOG_MAX_CURRENT_UC_LIST`].
        LOG_MAX_CURRENT_UC_LIST_WR_SUPPORTED: 0x74 [29:29];
        /// log2 of the largest stride of a receive queue, in bytes.
        LOG_MAX_STRIDE_SZ_RQ: 0x74 [28:24];
        /// log2 of the smallest.
        LOG_MIN_STRIDE_SZ_RQ: 0x74 [20:16];
        /// log2 of the largest stride of a send queue, in bytes.
        LOG_MAX_STRIDE_SZ_SQ: 0x74 [12:8];
        /// log2 of the smallest.
        LOG_MIN_STRIDE_SZ_SQ: 0x74 [4:0];
        /// log2 of the WQEs of a work queue.
        LOG_MAX_WQ_SZ: 0x78 [4:0];
        /// The NIC vport can be kept from hearing its own unicast.
        DISABLE_LOCAL_LB_UC: 0x7c [30:30];
        /// The NIC vport can be kept from hearing its own multicast.
        DISABLE_LOCAL_LB_MC: 0x7c [29:29];
        /// log2 of the VLANs of a NIC vport.
        LOG_MAX_VLAN_LIST: 0x7c [20:16];
        /// Keys encrypt data units one after the other by AES-XTS; tweaks are big-endian.
        AES_XTS_MULTI_BLOCK_BE_TWEAK: 0x7c [13:13];
        /// log2 of the multicast addresses of a NIC vport.
        LOG_MAX_CURRENT_MC_LIST: 0x7c [12:8];
        /// log2 of the unicast addresses of a NIC vport.
        LOG_MAX_CURRENT_UC_LIST: 0x7c [4:0];
        /// Kinds of general objects, bit mask by [`object_type`].
        GENERAL_OBJ_TYPES: 0x80 u64;
        /// Format of the entries that drivers write into the adapter's memory themselves: [`steering_format`].
        STEERING_FORMAT_VERSION: 0x88 [27:24];
        /// log2 of the number of user contexts.
        LOG_MAX_UCTX: 0x8c [28:24];
        /// log2 of the number of user memories.
        LOG_MAX_UMEM: 0x8c [20:16];
        /// There are capabilities of encryption ([`crate::crypto::Crypto`]).
        CRYPTO: 0x8c [22:22];
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
        /// log2 of the streams that an initiator of dynamic connections may have at once.
        LOG_MAX_DCI_STREAM_CHANNELS: 0xb0 [20:16];
        /// log2 of those of its streams that may be in error before it is itself.
        LOG_MAX_DCI_ERRORED_STREAMS: 0xb0 [12:8];
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
        /// Shared receive queues can match tags ([`crate::xrq`]).
        TAG_MATCHING: 0xbc [15:15];
        /// They fetch data that messages of RC announce.
        RNDV_OFFLOAD_RC: 0xbc [14:14];
        /// log2 of the entries of the list of such a queue.
        LOG_TAG_MATCHING_LIST_SZ: 0xbc [12:8];
        /// log2 of the number of such queues.
        LOG_MAX_XRQ: 0xbc [4:0];
        /// What user contexts may be allowed ([`uctx_cap`]).
        UCTX_CAP: 0xd4 [31:0];
        /// Definers that there may be at once.
        MAX_NUM_MATCH_DEFINER: 0xdc [31:16];
        /// Formats of definers, a bit for each ([`crate::definer::FORMATS`]).
        MATCH_DEFINER_FORMAT_SUPPORTED: 0xf8 u64;
    }

    /// General device capabilities, second page, 256 bytes.
    pub struct General2[0x100] {
        /// log2 of all QP numbers that can be reserved.
        LOG_MAX_NUM_RESERVED_QPN: 0x10 [20:16];
        /// log2 of the fewest that are reserved at once.
        LOG_RESERVED_QPN_GRANULARITY: 0x10 [12:8];
        /// log2 of the most that are reserved at once.
        LOG_RESERVED_QPN_MAX_ALLOC: 0x10 [4:0];
        /// Send queues can do without a doorbell record, if doorbells are rung at [`crate::uar::RECORDLESS_DOORBELL`].
        SEND_DBR_MODE_NO_DBR_EXT: 0x5c [30:30];
        /// log2 of the queue pairs and send queues that can.
        LOG_MAX_SEND_DBR_LESS_QP_SQ: 0x5c [28:24];
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

    /// On-demand paging capabilities, 256 bytes: what there is in each scheme, and which one is in use (mlx5 driver, field use).
    pub struct Odp[0x100] {
        /// The memory scheme is in use: faults name keys and addresses; else the transport scheme, where they name queues.
        MEM_PAGE_FAULT: 0xc0 [31:31];
    } views {
        /// What may meet a page that is not present in the transport scheme.
        transport, transport_mut: 0x0 OdpScheme;
        /// The same in the memory scheme.
        memory, memory_mut: 0x40 OdpScheme;
    }

    /// What may meet a page that is not present, for each transport ([`odp`]), 64 bytes.
    pub struct OdpScheme[0x40] {
        /// Together with signatures.
        SIG: 0x8 [31:31];
        /// Faults of the memory scheme ask for pages around those that are needed, too.
        PAGE_PREFETCH: 0x8 [26:26];
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

    /// Offloads of Ethernet, 256 bytes.
    pub struct EthernetOffloads[0x100] {
        /// Checksums are computed and checked.
        CSUM_CAP: 0x0 [31:31];
        /// VLAN tags are inserted and taken out.
        VLAN_CAP: 0x0 [30:30];
        /// Received packets of a TCP flow are merged (LRO).
        LRO_CAP: 0x0 [29:29];
        /// Packets with the flag PSH are merged.
        LRO_PSH_FLAG: 0x0 [28:28];
        /// Packets with time stamps are merged.
        LRO_TIME_STAMP: 0x0 [27:27];
        /// What the largest size of merged packets is counted from: 0 = layer 4, 1 = layer 2.
        LRO_MAX_MSG_SZ_MODE: 0x0 [26:25];
        /// WQEs can have a VLAN tag inserted.
        WQE_VLAN_INSERT: 0x0 [24:24];
        /// A TIR's attitude to packets of its own domain can be changed.
        SELF_LB_EN_MODIFIABLE: 0x0 [23:23];
        /// log2 of the bytes of a send that is cut into segments (LSO); 0 = it is not.
        MAX_LSO_CAP: 0x0 [20:16];
        /// WQEs may have several packets of one size.
        MULTI_PKT_SEND_WQE: 0x0 [15:14];
        /// Headers that WQEs have to carry inline: 0 layer 2, 1 as the NIC vport says, 2 none.
        WQE_INLINE_MODE: 0x0 [13:12];
        /// log2 of the most entries of a table of receive queues, as [`General::LOG_MAX_RQT_SIZE`] says; 0: there are no tables.
        RSS_IND_TBL_CAP: 0x0 [11:8];
        /// Send queues may change memory keys.
        REG_UMR_SQ: 0x0 [7:7];
        /// Frame check sequences can be written behind packets.
        SCATTER_FCS: 0x0 [6:6];
        /// WQEs may have several packets of any size.
        ENHANCED_MULTI_PKT_SEND_WQE: 0x0 [5:5];
        /// Packets in GRE are looked into.
        TUNNEL_STATELESS_GRE: 0x0 [1:1];
        /// Packets in VXLAN are looked into.
        TUNNEL_STATELESS_VXLAN: 0x0 [0:0];
        /// WQEs can say where headers begin.
        SWP: 0x4 [31:31];
        /// The checksum of completions covers all bytes behind the Ethernet header.
        CQE_CHECKSUM_FULL: 0x4 [28:28];
        /// UDP ports that mean VXLAN.
        MAX_VXLAN_UDP_PORTS: 0x4 [15:8];
        /// Packets with less data are not merged, bytes.
        LRO_MIN_MSS_SIZE: 0x8 [15:0];
        /// Longest times that packets may be gathered for, in microseconds: the shortest.
        LRO_TIMER_SUPPORTED_PERIODS_0: 0x30 [31:0];
        /// The next one.
        LRO_TIMER_SUPPORTED_PERIODS_1: 0x34 [31:0];
        /// The next one.
        LRO_TIMER_SUPPORTED_PERIODS_2: 0x38 [31:0];
        /// The longest.
        LRO_TIMER_SUPPORTED_PERIODS_3: 0x3c [31:0];
    }

    /// RoCE capabilities, 256 bytes.
    pub struct Roce[0x100] {
        /// Automatic path migration.
        ROCE_APM: 0x0 [31:31];
        /// Software may choose UDP source ports.
        SW_R_ROCE_SRC_UDP_PORT: 0x0 [27:27];
        /// Packets of a queue pair of RC can be forced to come back to their port while RoCE is off.
        FL_RC_QP_WHEN_ROCE_DISABLED: 0x0 [26:26];
        /// The same while it is on.
        FL_RC_QP_WHEN_ROCE_ENABLED: 0x0 [25:25];
        /// Layer 3 addresses: bit 1 IPv4, bit 2 IPv6.
        L3_TYPE: 0x10 [19:16];
        /// Versions: bit 0 v1, bit 2 v2.
        ROCE_VERSION: 0x10 [7:0];
        /// UDP destination port of version 2.
        R_ROCE_DEST_UDP_PORT: 0x14 [15:0];
        /// Largest UDP source port.
        R_ROCE_MAX_SRC_UDP_PORT: 0x18 [31:16];
        /// Smallest UDP source port.
        R_ROCE_MIN_SRC_UDP_PORT: 0x18 [15:0];
        /// Entries of the table of RoCE addresses.
        ROCE_ADDRESS_TABLE_SIZE: 0x1c [15:0];
    }

    /// Capabilities of rates, 256 bytes.
    pub struct Qos[0x100] {
        /// Send queues can keep to a rate.
        PACKET_PACING: 0x0 [31:31];
        /// A rate says how much may be sent at once.
        PACKET_PACING_BURST_BOUND: 0x0 [26:26];
        /// A rate says how long packets usually are.
        PACKET_PACING_TYPICAL_SIZE: 0x0 [25:25];
        /// Flow meters, as objects ([`crate::rewrite::FlowMeterIn`]).
        FLOW_METER_OLD: 0x0 [24:24];
        /// Send queues without a queue pair can be in groups ([`crate::sched`]).
        NIC_SQ_SCHEDULING: 0x0 [23:23];
        /// Elements share what their parent may send by weights.
        NIC_BW_SHARE: 0x0 [22:22];
        /// Elements keep to rates.
        NIC_RATE_LIMIT: 0x0 [21:21];
        /// User contexts can set rates.
        PACKET_PACING_UID: 0x0 [20:20];
        /// log2 of the number of flow meters.
        LOG_MAX_FLOW_METER: 0x0 [15:8];
        /// Registers that meters may write the color into: bit n is Cn.
        FLOW_METER_REG_ID: 0x0 [7:0];
        /// Queue pairs can be in groups.
        NIC_QP_SCHEDULING: 0x4 [30:30];
        /// log2 of the groups of queues that there can be.
        LOG_MAX_QOS_NIC_QUEUE_GROUP: 0x4 [20:16];
        /// Meters return the color in a register, and packets go on.
        FLOW_METER: 0x4 [23:23];
        /// Highest rate, kb/s.
        PACKET_PACING_MAX_RATE: 0x8 [31:0];
        /// Lowest rate, kb/s.
        PACKET_PACING_MIN_RATE: 0xc [31:0];
        /// Rates of the table, entry 0 included, which is none.
        PACKET_PACING_RATE_TABLE_SIZE: 0x10 [15:0];
        /// Kinds of elements: bits by [`crate::sched::element`].
        NIC_ELEMENT_TYPE: 0x20 [31:16];
        /// What nodes do with their children: bits by [`crate::sched::tsar`].
        NIC_TSAR_TYPE: 0x20 [15:0];
    }

    /// Capabilities of debugging, 256 bytes.
    pub struct Debug[0x100] {
        /// The firmware traces what it is about when it is asked to (CORE_DUMP).
        CORE_DUMP_GENERAL: 0x0 [31:31];
        /// The same of a queue pair.
        CORE_DUMP_QP: 0x0 [30:30];
        /// Contexts of objects can be dumped (RESOURCE_DUMP).
        RESOURCE_DUMP: 0x0 [22:22];
        /// Ports notice that they ask their peers to wait for too long.
        STALL_DETECT: 0x4 [29:29];
    }

    /// Capabilities of device memory, 256 bytes.
    pub struct DeviceMemory[0x100] {
        /// Programs can have a piece and map it (ALLOC_MEMIC).
        MEMIC: 0x0 [31:31];
        /// Sizes of writes that increment ([`memic_operation`]): bit n = 2^n bytes.
        MEMIC_INCREMENT_SIZES: 0x4 [31:24];
        /// log2 of the smallest piece, in bytes.
        LOG_MIN_MEMIC_ALLOC_SIZE: 0x4 [20:16];
        /// Sizes of reads that test and set.
        MEMIC_TEST_AND_SET_SIZES: 0x4 [15:8];
        /// Largest alignment that a piece can have: 64 << value bytes.
        LOG_MAX_MEMIC_ADDR_ALIGNMENT: 0x4 [7:0];
        /// Where in BAR0 pieces can be mapped, in bytes from its begin.
        MEMIC_BAR_START_ADDR: 0x8 u64;
        /// How many bytes of BAR0 that are.
        MEMIC_BAR_SIZE: 0x10 [31:0];
        /// Bytes of the largest piece.
        MAX_MEMIC_SIZE: 0x14 [31:0];
        /// Where the memory begins that drivers write entries of flow tables into (ICM).
        STEERING_SW_ICM_START_ADDRESS: 0x18 u64;
        /// log2 of the bytes of that for lists of header changes.
        LOG_HEADER_MODIFY_SW_ICM_SIZE: 0x20 [23:16];
        /// log2 of the smallest piece of such memory, in bytes.
        LOG_SW_ICM_ALLOC_GRANULARITY: 0x20 [13:8];
        /// log2 of the bytes of that for entries.
        LOG_STEERING_SW_ICM_SIZE: 0x20 [7:0];
        /// log2 of the bytes of that for patterns, lists of header changes whose numbers are elsewhere.
        LOG_HEADER_MODIFY_PATTERN_SW_ICM_SIZE: 0x24 [7:0];
        /// Where the memory for lists of header changes begins.
        HEADER_MODIFY_SW_ICM_START_ADDRESS: 0x28 u64;
        /// Where the memory for patterns begins.
        HEADER_MODIFY_PATTERN_SW_ICM_START_ADDRESS: 0x38 u64;
        /// Operations that reads and writes at further addresses do (MODIFY_MEMIC): bits by [`memic_operation`].
        MEMIC_OPERATIONS: 0x40 [31:0];
    }

    /// Properties of one kind of flow table, 64 bytes.
    pub struct FlowTableProperties[0x40] {
        /// There are such tables.
        FT_SUPPORT: 0x0 [31:31];
        /// Entries may count.
        FLOW_COUNTER: 0x0 [29:29];
        /// Entries can be changed.
        FLOW_MODIFY_EN: 0x0 [28:28];
        /// The root can be changed.
        MODIFY_ROOT: 0x0 [27:27];
        /// A table can name the one that misses go to.
        IDENTIFIED_MISS_TABLE_MODE: 0x0 [26:26];
        /// Tables can be changed.
        FLOW_TABLE_MODIFY: 0x0 [25:25];
        /// Entries may put headers before packets.
        REFORMAT: 0x0 [24:24];
        /// Entries may take tunnels off.
        DECAP: 0x0 [23:23];
        /// They may give the datagram that was in a tunnel a header of layer 2.
        REFORMAT_L3_TUNNEL_TO_L2: 0x0 [13:13];
        /// They may put datagrams into tunnels without their header of layer 2.
        REFORMAT_L2_TO_L3_TUNNEL: 0x0 [12:12];
        /// Entries may go to tables of any level.
        IGNORE_FLOW_LEVEL: 0x0 [10:10];
        /// What no entry matches may go to the tables of the NIC.
        TABLE_MISS_ACTION_DOMAIN: 0x0 [8:8];
        /// Drivers may write entries into the adapter's memory themselves, in the format that the general capabilities say.
        SW_OWNER_V2: 0x0 [1:1];
        /// log2 of the entries of a table.
        LOG_MAX_FT_SIZE: 0x4 [29:24];
        /// log2 of the lists of header changes.
        LOG_MAX_MODIFY_HEADER_CONTEXT: 0x4 [23:16];
        /// Changes of such a list.
        MAX_MODIFY_HEADER_ACTIONS: 0x4 [15:8];
        /// The highest level of a table.
        MAX_FT_LEVEL: 0x4 [7:0];
        /// log2 of the number of tables.
        LOG_MAX_FT_NUM: 0xc [7:0];
        /// log2 of the counters of an entry.
        LOG_MAX_FLOW_COUNTER: 0x10 [15:8];
        /// log2 of the destinations of an entry.
        LOG_MAX_DESTINATION: 0x10 [7:0];
        /// log2 of the number of entries.
        LOG_MAX_FLOW: 0x14 [7:0];
        /// Fields of outer headers that can be matched: [`match_field`].
        FT_FIELD_SUPPORT_OUTER: 0x20 [31:0];
        /// Fields of inner headers.
        FT_FIELD_SUPPORT_INNER: 0x24 [31:0];
        /// Fields of further headers: [`match_field`].
        FT_FIELD_SUPPORT_MISC: 0x28 [31:0];
        /// Fields of outer headers that can be matched in part.
        FT_FIELD_BITMASK_OUTER: 0x30 [31:0];
        /// Fields of inner headers.
        FT_FIELD_BITMASK_INNER: 0x34 [31:0];
        /// Fields of further headers.
        FT_FIELD_BITMASK_MISC: 0x38 [31:0];
    }

    /// Flow table capabilities of a NIC, 1048 bytes of a page of 4096.
    pub struct FlowTables[0x418] {
        /// An entry may name several TIRs.
        NIC_RX_MULTI_PATH_TIRS: 0x0 [31:31];
        /// An entry may name TIRs and tables together.
        NIC_RX_MULTI_PATH_TIRS_FTS: 0x0 [30:30];
        /// A TIR may be named by sniffer tables too.
        ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR: 0x0 [29:29];
        /// Any header may be put before packets.
        ENCAP_GENERAL_HEADER: 0x4 [31:31];
        /// log2 of the number of reformat contexts.
        LOG_MAX_PACKET_REFORMAT_CONTEXT: 0x4 [20:16];
        /// Bytes of the longest header of such a context.
        MAX_ENCAP_HEADER_SIZE: 0x4 [9:0];
        /// Where entries that drivers write send packets that are received, to have them dropped.
        SW_STEERING_NIC_RX_ACTION_DROP_ICM_ADDRESS: 0x400 u64;
        /// The same of packets that are sent.
        SW_STEERING_NIC_TX_ACTION_DROP_ICM_ADDRESS: 0x408 u64;
        /// Where they send those to let them leave.
        SW_STEERING_NIC_TX_ACTION_ALLOW_ICM_ADDRESS: 0x410 u64;
    } views {
        /// Tables that received packets pass.
        nic_receive, nic_receive_mut: 0x40 FlowTableProperties;
        /// Tables that received packets of RoCE pass.
        nic_receive_rdma, nic_receive_rdma_mut: 0x80 FlowTableProperties;
        /// Tables that see what is received.
        nic_receive_sniffer, nic_receive_sniffer_mut: 0xc0 FlowTableProperties;
        /// Tables that sent packets pass.
        nic_transmit, nic_transmit_mut: 0x100 FlowTableProperties;
        /// Tables that sent packets of RoCE pass.
        nic_transmit_rdma, nic_transmit_rdma_mut: 0x140 FlowTableProperties;
        /// Tables that see what is sent.
        nic_transmit_sniffer, nic_transmit_sniffer_mut: 0x180 FlowTableProperties;
    }
}

impl OdpScheme {
    /// The fields of the transports.
    pub const TRANSPORTS: [Field<Self>; 5] = [Self::RC, Self::UC, Self::UD, Self::XRC, Self::DC];
}

/// Values of [`EthernetOffloads::WQE_INLINE_MODE`] (mlx5 driver, `mlx5_query_min_inline`).
pub mod inline_mode {
    /// As the context of the NIC vport says.
    pub const OF_VPORT: u32 = 1;
    /// WQEs need no headers inline.
    pub const NOT_REQUIRED: u32 = 2;
}

/// Bits of a transport's field of [`OdpScheme`].
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

/// Bits of [`FlowTableProperties::FT_FIELD_SUPPORT_OUTER`], and, where said, of the word of further headers.
pub mod match_field {
    /// MAC addresses, Ethernet type, IP version, the outer VLAN tag, TTL.
    pub const LAYER_2: u32 = 0xff00_0000;
    /// The second VLAN tag.
    pub const SECOND_VLAN: u32 = 0x00e0_0000;
    /// IP addresses, fragments, protocol, ECN and DSCP.
    pub const LAYER_3: u32 = 0x000f_c000;
    /// Ports of UDP and TCP, flags of TCP.
    pub const LAYER_4: u32 = 0x0000_3e00;
    /// Protocol and key of GRE.
    pub const GRE: u32 = 0x0000_0180;
    /// Network of VXLAN.
    pub const VXLAN: u32 = 0x0000_0040;
    /// Network, control, protocol and length of options of Geneve.
    pub const GENEVE: u32 = 0x0000_003c;
    /// Further headers: security parameter index of ESP.
    pub const ESP_SPI: u32 = 1 << 8;
    /// Further headers: destination queue pair of RoCE.
    pub const BTH_DST_QP: u32 = 1 << 5;
}

/// Kinds of general objects: bits of [`General::GENERAL_OBJ_TYPES`], and what the commands name (mlx5dv, field use).
pub mod object_type {
    /// Memory that a driver writes entries of flow tables into.
    pub const SW_ICM: u32 = 0x08;
    /// Flow meters.
    pub const FLOW_METER: u32 = 0x0a;
    /// Keys that data is encrypted with.
    pub const DEK: u32 = 0x0c;
    /// What entries of flow tables that drivers write compare.
    pub const MATCH_DEFINER: u32 = 0x18;
    /// Logins of those who import wrapped keys.
    pub const CRYPTO_LOGIN: u32 = 0x1f;
    /// Samplers of flows.
    pub const FLOW_SAMPLER: u32 = 0x20;
    /// Elements that queues are scheduled by.
    pub const SCHEDULING_ELEMENT: u32 = 0x26;
    /// QP numbers that no queue pair has.
    pub const RESERVED_QPN: u32 = 0x2c;
    /// Queue pairs whose congestion control is that of an address vector.
    pub const AV_QP_MAPPING: u32 = 0x3a;
}

/// Operations of device memory: bits of [`DeviceMemory::MEMIC_OPERATIONS`], and what MODIFY_MEMIC names.
pub mod memic_operation {
    /// A write adds what is written.
    pub const INCREMENT: u32 = 0;
    /// A read leaves 1.
    pub const TEST_AND_SET: u32 = 1;
}

/// Bits of [`Atomic::ATOMIC_OPERATIONS`].
pub mod atomic_operations {
    /// Compare and swap, fetch and add.
    pub const PLAIN: u32 = 1 << 0 | 1 << 1;
    /// The same of the bits that a mask chooses, in fields.
    pub const MASKED: u32 = 1 << 2 | 1 << 3;
}

/// Values of [`General::STEERING_FORMAT_VERSION`].
pub mod steering_format {
    /// That of the ConnectX-5.
    pub const CONNECTX_5: u32 = 0;
    /// That of the ConnectX-6 Dx.
    pub const CONNECTX_6_DX: u32 = 1;
}

/// Bits of [`General::UCTX_CAP`] and of CREATE_UCTX.
pub mod uctx_cap {
    /// Raw packets may be sent.
    pub const RAW_TX: u32 = 1 << 0;
    /// Resources of the adapter itself may be looked at.
    pub const INTERNAL_DEV_RES: u32 = 1 << 1;
    /// The adapter as a whole may be looked at and set, as its tools do (Linux, `drivers/fwctl/mlx5`).
    pub const TOOLS_RESOURCES: u32 = 1 << 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_device_memory() {
        let mut m = DeviceMemory::new();
        m.set(DeviceMemory::MEMIC, 1).set(DeviceMemory::LOG_MIN_MEMIC_ALLOC_SIZE, 6);
        m.set(DeviceMemory::LOG_MAX_MEMIC_ADDR_ALIGNMENT, 5)
            .set(DeviceMemory::MEMIC_BAR_START_ADDR, 0x1fc_0000);
        m.set(DeviceMemory::MEMIC_BAR_SIZE, 0x4_0000).set(DeviceMemory::MAX_MEMIC_SIZE, 0x2_0000);
        assert_eq!(m.bytes()[..8], [0x80, 0, 0, 0, 0, 6, 0, 5]);
        assert_eq!(m.bytes()[8..0x18], [0, 0, 0, 0, 1, 0xfc, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0]);
        let mut c = General::new();
        c.set(General::DEVICE_MEMORY, 1);
        assert_eq!(c.bytes()[0x35], 0x80);
    }

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
    fn golden_ethernet() {
        let mut c = General::new();
        c.set(General::NIC_FLOW_TABLE, 1).set(General::PORT_TYPE, 1).set(General::ETH_NET_OFFLOADS, 1);
        c.set(General::ROCE, 1).set(General::LOG_MAX_RQ, 16).set(General::LOG_MAX_TIS, 15);
        c.set(General::LOG_MAX_RQT_SIZE, 9).set(General::LOG_MAX_CURRENT_UC_LIST, 7);
        let b = c.bytes();
        assert_eq!((b[0x34], b[0x36], b[0x43], b[0x6c], b[0x6f]), (2, 1, 0xc, 16, 15));
        assert_eq!((b[0x72], b[0x7f]), (9, 7));
        let mut e = EthernetOffloads::new();
        e.set(EthernetOffloads::CSUM_CAP, 1).set(EthernetOffloads::MAX_LSO_CAP, 18);
        e.set(EthernetOffloads::RSS_IND_TBL_CAP, 11).set(EthernetOffloads::WQE_INLINE_MODE, 1);
        assert_eq!(e.bytes()[..4], [0x80, 18, 0x1b, 0]);
        let mut r = Roce::new();
        r.set(Roce::L3_TYPE, 6).set(Roce::ROCE_VERSION, 5).set(Roce::R_ROCE_DEST_UDP_PORT, 4791);
        assert_eq!(r.bytes()[0x10..0x18], [0, 6, 0, 5, 0, 0, 0x12, 0xb7]);
        let mut f = FlowTables::new();
        f.nic_receive_mut()
            .set(FlowTableProperties::FT_SUPPORT, 1)
            .set(FlowTableProperties::MAX_FT_LEVEL, 96);
        f.nic_transmit_mut().set(FlowTableProperties::LOG_MAX_FT_SIZE, 20);
        assert_eq!((f.bytes()[0x40], f.bytes()[0x47], f.bytes()[0x104]), (0x80, 96, 20));
    }

    #[test]
    fn golden_odp() {
        let mut c = Odp::new();
        let transport = c.transport_mut();
        transport.set(OdpScheme::RC, odp::SEND | odp::SRQ_RECEIVE).set(OdpScheme::UD, odp::SEND);
        c.memory_mut().set(OdpScheme::PAGE_PREFETCH, 1).set(OdpScheme::DC, odp::READ);
        c.set(Odp::MEM_PAGE_FAULT, 1);
        assert_eq!((c.bytes()[0x10], c.bytes()[0x18]), (0x84, 0x80));
        assert_eq!((c.bytes()[0x48], c.bytes()[0x60], c.bytes()[0xc0]), (0x04, 0x10, 0x80));
    }
}
