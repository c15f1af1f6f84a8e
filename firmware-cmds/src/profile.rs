//! Identity and capabilities of an adapter.

use hca_spec::caps::{Atomic, General, General2, Odp, object_type, odp, uctx_cap};

/// Identity of one adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the system.
    pub system_image_guid: u64,
    /// GUID of port 1.
    pub port_guid: u64,
    /// PCI device id: 0x1013 is a ConnectX-4.
    pub device_id: u16,
    /// NodeDescription before the driver sets one; at most 64 bytes are used.
    pub node_description: String,
    /// Board id, 16 ASCII characters are used.
    pub psid: String,
    /// Frequency of the internal timer in kHz.
    pub timer_khz: u32,
    /// Whether send WQEs may come with their doorbell (BlueFlame).
    pub blueflame: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::with_guid(0x0002_c903_00a0_0001)
    }
}

impl Config {
    /// A ConnectX-4 with that node GUID; port and system GUID are derived as the vendor does.
    pub fn with_guid(guid: u64) -> Self {
        Self {
            node_guid: guid,
            system_image_guid: guid,
            port_guid: guid,
            device_id: 0x1013,
            node_description: "softhca".into(),
            psid: "SHC_2180110032".into(),
            // ConnectX-4: 156.25 MHz.
            timer_khz: 156_250,
            blueflame: false,
        }
    }
}

/// Entries of a port's P_Key table.
pub const PKEYS: usize = 32;
/// Entries of a port's GUID table.
pub const GUIDS: usize = 8;
/// IEEE company id in NodeInfo and QUERY_ADAPTER.
pub const VENDOR_ID: u32 = 0x0002c9;

/// Number of Q counter sets: 8 bits name one, 0 is none.
pub(crate) const MAX_Q_COUNTERS: u32 = 255;
/// log2 of the number of user contexts.
pub(crate) const LOG_MAX_UCTX: u32 = 12;
/// log2 of the number of user memories.
pub(crate) const LOG_MAX_UMEM: u32 = 22;
/// log2 of the QP numbers that can be reserved.
pub(crate) const LOG_MAX_RESERVED_QPNS: u32 = 20;
/// log2 of the QP numbers that are reserved at once.
pub(crate) const LOG_RESERVED_QPNS: u32 = 6;
/// Most completions of a block of compressed CQEs.
pub const MAX_COMPRESSED: u32 = 64;
/// log2 of the reads and atomics that a DC target serves at once for an initiator.
pub const LOG_MAX_RA_RES_DC: u32 = 4;
/// Most translations of one memory key, in 16-byte units.
pub const MAX_KEY_OCTWORDS: u32 = 1 << 24;
/// The most the adapter can do (QUERY_HCA_CAP with "maximum").
pub fn general_max(config: &Config) -> General {
    let mut c = General::new();
    c.set(General::LOG_MAX_SRQ_SZ, 15).set(General::LOG_MAX_QP_SZ, 15).set(General::LOG_MAX_QP, 18);
    c.set(General::LOG_MAX_SRQ, 18);
    c.set(General::MAX_SGL_FOR_OPTIMIZED_PERFORMANCE, 30);
    c.set(General::LOG_MAX_CQ_SZ, 22).set(General::LOG_MAX_CQ, 24);
    c.set(General::LOG_MAX_EQ_SZ, 22).set(General::LOG_MAX_MKEY, 24).set(General::LOG_MAX_EQ, 7);
    c.set(General::MAX_INDIRECTION, 4).set(General::LOG_MAX_MRW_SZ, 64);
    c.set(General::LOG_MAX_KLM_LIST_SIZE, 16);
    c.set(General::LOG_MAX_RA_REQ_QP, 4).set(General::LOG_MAX_RA_RES_QP, 4);
    c.set(General::PORT_TYPE, 0).set(General::NUM_PORTS, 1).set(General::LOCAL_CA_ACK_DELAY, 15);
    c.set(General::LOG_MAX_MSG, 30).set(General::STAT_RATE_SUPPORT, 1).set(General::CQE_VERSION, 1);
    c.set(General::UMR_MODIFY_ATOMIC_DISABLED, 0).set(General::ATOMIC, 1);
    c.set(General::CQ_OI, 1).set(General::CQ_RESIZE, 1).set(General::CQ_MODERATION, 1);
    c.set(General::CQ_EQ_REMAP, 1).set(General::CQ_PERIOD_START_FROM_CQE, 1);
    c.set(General::CQE_COMPRESSION, 1).set(General::CQE_COMPRESSION_128, 1).set(General::CQE_128_ALWAYS, 1);
    c.set(General::MINI_CQE_RESP_STRIDE_INDEX, 1);
    c.set(General::CQE_COMPRESSION_MAX_NUM, MAX_COMPRESSED).set(General::CQE_COMPRESSION_TIMEOUT, 1);
    c.set(General::SCTR_DATA_CQE, 1).set(General::APM, 1);
    c.set(General::BLOCK_LB_MC, 1).set(General::SCQE_BREAK_MODERATION, 1);
    c.set(General::QKV, 1).set(General::PKV, 1);
    // Memory windows of type 1 and 2B, and SEND with invalidate.
    c.set(General::IMAICL, 1);
    // On-demand paging, implicit regions too: their lists are long and name the null key.
    c.set(General::PG, 1).set(General::FIXED_BUFFER_SIZE, 1).set(General::NULL_MKEY, 1);
    c.set(General::UMR_EXTENDED_TRANSLATION_OFFSET, 1);
    // Signature keys, with every block size and CRC that mlx5dv knows.
    c.set(General::SHO, 1).set(General::SIGERR_CQE, 1).set(General::SIGERR_DOMAIN_AND_SIG_TYPE, 1);
    c.set(General::DRAIN_SIGERR, 1).set(General::SIG_BLOCK_4048, 1);
    c.set(General::SIG_CRC32C, 1).set(General::SIG_CRC64_XP10, 1);
    c.set(General::XRC, 1).set(General::UD, 1).set(General::UC, 1).set(General::RC, 1);
    c.set(General::DCT, 1)
        .set(General::LOG_MAX_RA_REQ_DC, 4)
        .set(General::LOG_MAX_RA_RES_DC, LOG_MAX_RA_RES_DC);
    c.set(General::UAR_SZ, 5).set(General::LOG_PG_SZ, 12);
    // The size is also the distance between send doorbells, so it stands even without BlueFlame.
    c.set(General::BF, config.blueflame.into()).set(General::LOG_BF_REG_SIZE, 9);
    // The driver tests write combining with a send queue of its own.
    c.set(General::LOG_MAX_SQ, if config.blueflame { 18 } else { 0 });
    c.set(General::MAX_WQE_SZ_SQ, 1024).set(General::MAX_WQE_SZ_RQ, 512).set(General::MAX_WQE_SZ_SQ_DC, 512);
    c.set(General::MAX_QP_MCG, 240).set(General::LOG_MAX_MCG, 13);
    c.set(General::LOG_MAX_TRANSPORT_DOMAIN, 16).set(General::LOG_MAX_PD, 24).set(General::LOG_MAX_XRCD, 24);
    c.set(General::LOG_MAX_RMP, 18).set(General::LOG_MAX_WQ_SZ, 15);
    c.set(General::MAX_QP_CNT, MAX_Q_COUNTERS).set(General::OUT_OF_SEQ_CNT, 1);
    c.set(General::RETRANSMISSION_Q_COUNTERS, 1).set(General::ENHANCED_ERROR_Q_COUNTERS, 1);
    c.set(General::LOG_MAX_UCTX, LOG_MAX_UCTX).set(General::LOG_MAX_UMEM, LOG_MAX_UMEM);
    c.set(General::UMEM_UID_0, 1).set(General::UCTX_CAP, uctx_cap::INTERNAL_DEV_RES);
    // A ConnectX-4 is believed not to have them; programs that ask for them get them all the same.
    c.set(General::HCA_CAP_2, 1).set(General::GENERAL_OBJ_TYPES, 1 << object_type::RESERVED_QPN);
    c.set(General::DEVICE_FREQUENCY_MHZ, config.timer_khz / 1000);
    c.set(General::DEVICE_FREQUENCY_KHZ, config.timer_khz);
    c
}

/// The second page of general capabilities.
pub fn general_2() -> General2 {
    let mut c = General2::new();
    c.set(General2::LOG_MAX_NUM_RESERVED_QPN, LOG_MAX_RESERVED_QPNS);
    c.set(General2::LOG_RESERVED_QPN_GRANULARITY, LOG_RESERVED_QPNS);
    c.set(General2::LOG_RESERVED_QPN_MAX_ALLOC, LOG_RESERVED_QPNS);
    c
}

/// Atomic capabilities.
pub fn atomic_max() -> Atomic {
    let mut c = Atomic::new();
    c.set(Atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, 1);
    // Compare and swap, fetch and add; 8 bytes.
    c.set(Atomic::ATOMIC_OPERATIONS, 0b11)
        .set(Atomic::ATOMIC_SIZE_QP, 1 << 3)
        .set(Atomic::ATOMIC_SIZE_DC, 1 << 3);
    c
}

/// On-demand paging that is on from the start: the driver asks for the rest ([`odp_max`]).
pub fn odp_initial() -> Odp {
    let mut c = Odp::new();
    c.set(Odp::RC, odp::SEND | odp::RECEIVE | odp::WRITE | odp::READ | odp::ATOMIC);
    c.set(Odp::UD, odp::SEND);
    c
}

/// All on-demand paging that the adapter can do.
pub fn odp_max() -> Odp {
    let mut c = odp_initial();
    c.set(Odp::RC, c.get(Odp::RC) | odp::SRQ_RECEIVE);
    c.set(Odp::XRC, odp::SEND | odp::WRITE | odp::READ | odp::ATOMIC | odp::SRQ_RECEIVE);
    c.set(Odp::DC, c.get(Odp::XRC));
    c
}
