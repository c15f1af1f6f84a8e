//! ConnectX-4 VPI with one EDR port, PCIe Gen3 x16.
//!
//! Identity and places of PCI capabilities are those of real cards (lspci, field use). The capability pages tell of what
//! this firmware can do, and of no more than a ConnectX-4 can, but for what is said beside it.

use hca_spec::caps::{
    Atomic, DeviceMemory, EthernetOffloads, General, General2, Odp, OdpScheme, Qos, Roce, inline_mode,
    object_type, odp, uctx_cap,
};
use hca_spec::crypto::Crypto;

use super::{
    Capabilities, EthernetPages, FirmwareVersion, Pci, PciCapabilities, PciLink, PciSpeed, Personality,
    PortKind, PortProfile,
};
use crate::limits::{
    LOG_MAX_MULTICAST, LOG_MAX_RA_RES_DC, LOG_MAX_RESERVED_QPNS, LOG_MAX_RQ, LOG_MAX_RQT, LOG_MAX_RQT_SIZE,
    LOG_MAX_TIR, LOG_MAX_TIS, LOG_MAX_UCTX, LOG_MAX_UMEM, LOG_MAX_UNICAST, LOG_MAX_VLANS, LOG_RESERVED_QPNS,
    MAX_COMPRESSED, MAX_Q_COUNTERS, MAX_RATE, MIN_RATE, RATES, ROCE_ADDRESSES, TRAFFIC_CLASSES,
};
use crate::speed::LinkSpeed;
use crate::steering::Offer;

/// A cable that is wider or faster than this makes the port one for that cable ([`crate::Port::negotiate`]).
const PORTS: &[PortProfile] = &[PortProfile {
    kinds: &[PortKind::InfiniBand, PortKind::Ethernet],
    widths: &[1, 4],
    speeds: &[
        LinkSpeed::Sdr,
        LinkSpeed::Ddr,
        LinkSpeed::Qdr,
        LinkSpeed::Fdr10,
        LinkSpeed::Fdr,
        LinkSpeed::Edr,
    ],
    mtu: 4096,
    data_lanes: 8,
}];

/// Flow steering of Ethernet ports.
const STEERING: Offer = Offer::ethernet();

/// The whole of it.
pub(super) fn personality() -> Personality {
    Personality {
        name: "connectx4",
        pci: Pci {
            vendor: 0x15b3,
            device: 0x1013,
            revision: 0,
            subsystem_vendor: 0x15b3,
            // A card with a single EDR port (pci.ids).
            subsystem: 0x0033,
            bar0_size: 32 << 20,
            msix_vectors: 64,
            link: PciLink { speed: PciSpeed::Gen3, lanes: 16 },
            slot_power_watts: 25,
            capabilities: PciCapabilities {
                power_management: 0x40,
                express: 0x60,
                product: 0x48,
                msix: 0x9c,
                vendor: 0xc0,
                error_reporting: 0x100,
                secondary_express: 0x150,
            },
        },
        // One that ConnectX-4 adapters run.
        version: FirmwareVersion { major: 12, minor: 28, subminor: 2006 },
        // That of the silicon (mstflint's list of devices); 0x20b is the ConnectX-4 Lx.
        hardware_id: 0x209,
        product: "softhca ConnectX-4 VPI adapter card, EDR IB and 100GbE, single-port QSFP28, PCIe3.0 x16",
        part_number: "SHC455A-ECAT",
        board_id: "SHC_2180110032",
        capabilities: Capabilities {
            general: general(),
            general_2: general_2(),
            atomic: atomic(),
            odp_initial: odp_initial(),
            odp: odp(),
            device_memory: DeviceMemory::new(),
            crypto: Crypto::new(),
            ethernet: EthernetPages {
                general: ethernet_general(),
                offloads: ethernet_offloads(),
                roce: roce(),
                qos: qos(),
                steering: STEERING,
            },
        },
        ports: PORTS.to_vec(),
        few_strides: false,
        timing: "connectx4",
    }
}

/// General capabilities.
fn general() -> General {
    let mut c = General::new();
    c.set(General::LOG_MAX_SRQ_SZ, 15).set(General::LOG_MAX_QP_SZ, 15).set(General::LOG_MAX_QP, 18);
    c.set(General::LOG_MAX_SRQ, 18);
    c.set(General::MAX_SGL_FOR_OPTIMIZED_PERFORMANCE, 30);
    c.set(General::LOG_MAX_CQ_SZ, 22).set(General::LOG_MAX_CQ, 24);
    c.set(General::LOG_MAX_EQ_SZ, 22).set(General::LOG_MAX_MKEY, 24).set(General::LOG_MAX_EQ, 7);
    c.set(General::MAX_INDIRECTION, 4).set(General::LOG_MAX_MRW_SZ, 64);
    c.set(General::LOG_MAX_KLM_LIST_SIZE, 16);
    c.set(General::LOG_MAX_RA_REQ_QP, 4).set(General::LOG_MAX_RA_RES_QP, 4);
    c.set(General::PORT_TYPE, 0)
        .set(General::NUM_PORTS, PORTS.len() as u32)
        .set(General::LOCAL_CA_ACK_DELAY, 15);
    c.set(General::LOG_MAX_MSG, 30).set(General::STAT_RATE_SUPPORT, 1).set(General::CQE_VERSION, 1);
    c.set(General::UMR_MODIFY_ATOMIC_DISABLED, 0).set(General::ATOMIC, 1);
    c.set(General::CQ_OI, 1).set(General::CQ_RESIZE, 1).set(General::CQ_MODERATION, 1);
    c.set(General::CQ_EQ_REMAP, 1).set(General::CQ_PERIOD_START_FROM_CQE, 1);
    c.set(General::CQE_COMPRESSION, 1).set(General::CQE_COMPRESSION_128, 1).set(General::CQE_128_ALWAYS, 1);
    c.set(General::MINI_CQE_RESP_STRIDE_INDEX, 1);
    c.set(General::CQE_COMPRESSION_MAX_NUM, MAX_COMPRESSED).set(General::CQE_COMPRESSION_TIMEOUT, 1);
    c.set(General::SCTR_DATA_CQE, 1).set(General::APM, 1);
    c.set(General::BLOCK_LB_MC, 1).set(General::SCQE_BREAK_MODERATION, 1);
    c.set(General::QKV, 1).set(General::PKV, 1).set(General::SET_DETH_SQPN, 1);
    c.set(General::MCAM_REG, 1).set(General::DEBUG, 1).set(General::BEACON_LED, 1);
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
    c.set(General::BF, 1).set(General::LOG_BF_REG_SIZE, 9).set(General::LOG_MAX_SQ, 18);
    c.set(General::MAX_WQE_SZ_SQ, 1024).set(General::MAX_WQE_SZ_RQ, 512).set(General::MAX_WQE_SZ_SQ_DC, 512);
    c.set(General::MAX_QP_MCG, 240).set(General::LOG_MAX_MCG, 13);
    c.set(General::LOG_MAX_TRANSPORT_DOMAIN, 16).set(General::LOG_MAX_PD, 24).set(General::LOG_MAX_XRCD, 24);
    c.set(General::LOG_MAX_RMP, 18).set(General::BASIC_CYCLIC_RCV_WQE, 1).set(General::LOG_MAX_WQ_SZ, 15);
    c.set(General::MAX_QP_CNT, MAX_Q_COUNTERS).set(General::OUT_OF_SEQ_CNT, 1);
    c.set(General::RETRANSMISSION_Q_COUNTERS, 1).set(General::ENHANCED_ERROR_Q_COUNTERS, 1);
    // Only a Connect-IB is known to lack it.
    c.set(General::RTS2RTS_QP_COUNTERS_SET_ID, 1);
    c.set(General::LOG_MAX_UCTX, LOG_MAX_UCTX).set(General::LOG_MAX_UMEM, LOG_MAX_UMEM);
    c.set(General::PORT_MODULE_EVENT, 1).set(General::TEMP_WARN_EVENT, 1);
    c.set(General::UMEM_UID_0, 1).set(General::UCTX_CAP, uctx_cap::INTERNAL_DEV_RES);
    // What a ConnectX-4 or ConnectX-5 says of forced loopback is not public; this adapter has it on either link layer, and drivers ask.
    c.set(General::FL_RC_QP_WHEN_ROCE_DISABLED, 1);
    // A ConnectX-4 is believed not to have them; programs that ask for them get them all the same.
    c.set(General::HCA_CAP_2, 1).set(General::GENERAL_OBJ_TYPES, 1 << object_type::RESERVED_QPN);
    c
}

/// General capabilities of an adapter whose ports are Ethernet.
fn ethernet_general() -> General {
    let mut c = general();
    c.set(General::PORT_TYPE, PortKind::Ethernet.code());
    c.set(General::ETH_NET_OFFLOADS, 1).set(General::NIC_FLOW_TABLE, 1).set(General::ROCE, 1);
    c.set(General::LOG_MAX_RQ, LOG_MAX_RQ).set(General::LOG_MAX_TIR, LOG_MAX_TIR);
    c.set(General::LOG_MAX_TIS, LOG_MAX_TIS).set(General::LOG_MAX_TIS_PER_SQ, 0);
    c.set(General::LOG_MAX_RQT, LOG_MAX_RQT).set(General::LOG_MAX_RQT_SIZE, LOG_MAX_RQT_SIZE);
    // Receive WQEs of 16 bytes to MAX_WQE_SZ_RQ; basic blocks of 64 bytes.
    c.set(General::LOG_MIN_STRIDE_SZ_RQ, 4).set(General::LOG_MAX_STRIDE_SZ_RQ, 9);
    c.set(General::LOG_MIN_STRIDE_SZ_SQ, 6).set(General::LOG_MAX_STRIDE_SZ_SQ, 6);
    c.set(General::LOG_MAX_CURRENT_UC_LIST, LOG_MAX_UNICAST);
    c.set(General::LOG_MAX_CURRENT_UC_LIST_WR_SUPPORTED, 1);
    c.set(General::LOG_MAX_CURRENT_MC_LIST, LOG_MAX_MULTICAST).set(General::LOG_MAX_VLAN_LIST, LOG_MAX_VLANS);
    c.set(General::MODIFY_RQ_COUNTER_SET_ID, 1).set(General::VPORT_COUNTERS, 1);
    c.set(General::CQ_PERIOD_MODE_MODIFY, 1).set(General::NIC_RECEIVE_STEERING_DISCARD, 1);
    c.set(General::RECEIVE_DISCARD_VPORT_DOWN, 1).set(General::TRANSMIT_DISCARD_VPORT_DOWN, 1);
    c.set(General::PCAM_REG, 1).set(General::QCAM_REG, 1);
    c.set(General::ROCE_ACCL, 1);
    c.set(General::CC_QUERY_ALLOWED, 1).set(General::CC_MODIFY_ALLOWED, 1);
    // Flow control and transmission selection are this function's to set: there are no others.
    c.set(General::VPORT_GROUP_MANAGER, 1).set(General::ETS, 1).set(General::MAX_TC, TRAFFIC_CLASSES as u32);
    c.set(General::RTS2RTS_QP_UDP_SPORT, 1).set(General::RTS2RTS_QP_DSCP, 1).set(General::QOS, 1);
    // Frames that take strides of a WQE, whose memory a send queue maps: known of the ConnectX-4 Lx.
    c.set(General::STRIDING_RQ, 1).set(General::UMR_PTR_RLKY, 1);
    // Receive queues share the WQEs of a pool.
    c.set(General::MEM_RQ_RMP, 1);
    // Paths of RoCE don't migrate, which its own group says, too.
    c.set(General::APM, 0);
    STEERING.count_in(&mut c);
    c.set(General::UCTX_CAP, uctx_cap::INTERNAL_DEV_RES | uctx_cap::RAW_TX);
    c
}

/// Offloads of Ethernet. What is not here is off: several packets in a WQE, tunnels.
fn ethernet_offloads() -> EthernetOffloads {
    let mut c = EthernetOffloads::new();
    c.set(EthernetOffloads::CSUM_CAP, 1).set(EthernetOffloads::VLAN_CAP, 1);
    c.set(EthernetOffloads::WQE_VLAN_INSERT, 1).set(EthernetOffloads::SELF_LB_EN_MODIFIABLE, 1);
    // 256 KiB.
    c.set(EthernetOffloads::MAX_LSO_CAP, 18).set(EthernetOffloads::RSS_IND_TBL_CAP, LOG_MAX_RQT_SIZE);
    c.set(EthernetOffloads::SCATTER_FCS, 1);
    // Segments of TCP are merged. Periods in microseconds, an estimate: Linux takes the first of 32 or more.
    c.set(EthernetOffloads::LRO_CAP, 1).set(EthernetOffloads::LRO_PSH_FLAG, 1);
    c.set(EthernetOffloads::LRO_TIME_STAMP, 1);
    c.set(EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_0, 8);
    c.set(EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_1, 16);
    c.set(EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_2, 32);
    c.set(EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_3, 1024);
    c.set(EthernetOffloads::WQE_INLINE_MODE, inline_mode::OF_VPORT).set(EthernetOffloads::REG_UMR_SQ, 1);
    c
}

/// RoCE: both versions, IPv4 and IPv6.
fn roce() -> Roce {
    let mut c = Roce::new();
    c.set(Roce::L3_TYPE, 0b110).set(Roce::ROCE_VERSION, 0b101).set(Roce::R_ROCE_DEST_UDP_PORT, 4791);
    c.set(Roce::R_ROCE_MIN_SRC_UDP_PORT, 0xc000).set(Roce::R_ROCE_MAX_SRC_UDP_PORT, 0xffff);
    c.set(Roce::ROCE_ADDRESS_TABLE_SIZE, ROCE_ADDRESSES as u32);
    c.set(Roce::FL_RC_QP_WHEN_ROCE_ENABLED, 1).set(Roce::FL_RC_QP_WHEN_ROCE_DISABLED, 1);
    c
}

/// Rates that send queues keep to: what they send at once is a WQE.
fn qos() -> Qos {
    let mut c = Qos::new();
    c.set(Qos::PACKET_PACING, 1).set(Qos::PACKET_PACING_RATE_TABLE_SIZE, RATES.into());
    c.set(Qos::PACKET_PACING_MIN_RATE, MIN_RATE).set(Qos::PACKET_PACING_MAX_RATE, MAX_RATE);
    c
}

/// The second page of general capabilities.
fn general_2() -> General2 {
    let mut c = General2::new();
    c.set(General2::LOG_MAX_NUM_RESERVED_QPN, LOG_MAX_RESERVED_QPNS);
    c.set(General2::LOG_RESERVED_QPN_GRANULARITY, LOG_RESERVED_QPNS);
    c.set(General2::LOG_RESERVED_QPN_MAX_ALLOC, LOG_RESERVED_QPNS);
    c
}

/// Atomic capabilities.
fn atomic() -> Atomic {
    let mut c = Atomic::new();
    c.set(Atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, 1);
    // Compare and swap, fetch and add; 8 bytes.
    c.set(Atomic::ATOMIC_OPERATIONS, 0b11)
        .set(Atomic::ATOMIC_SIZE_QP, 1 << 3)
        .set(Atomic::ATOMIC_SIZE_DC, 1 << 3);
    c
}

/// On-demand paging that is on from the start: the driver asks for the rest ([`odp`]).
fn odp_initial() -> Odp {
    let mut c = Odp::new();
    let transport = c.transport_mut();
    transport.set(OdpScheme::RC, odp::SEND | odp::RECEIVE | odp::WRITE | odp::READ | odp::ATOMIC);
    transport.set(OdpScheme::UD, odp::SEND);
    c
}

/// All on-demand paging that the adapter can do.
fn odp() -> Odp {
    let mut c = odp_initial();
    let transport = c.transport_mut();
    transport.set(OdpScheme::RC, transport.get(OdpScheme::RC) | odp::SRQ_RECEIVE);
    transport.set(OdpScheme::XRC, odp::SEND | odp::WRITE | odp::READ | odp::ATOMIC | odp::SRQ_RECEIVE);
    transport.set(OdpScheme::DC, transport.get(OdpScheme::XRC));
    c
}
