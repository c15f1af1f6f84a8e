//! Management datagrams (MAD) and the attributes of subnet management.
//!
//! Source: IBTA 13.4 (MAD format, Notice), 14.2 (SMP format, directed routes and attributes), 16.1.3 and
//! 16.1.4 (ClassPortInfo, PortCounters, PortCountersExtended).

use crate::layout::layout;

/// Size of a MAD in bytes.
pub const MAD_SIZE: usize = 256;
/// Offset of an SMP's attribute data.
pub const SMP_DATA: usize = 64;
/// Offset of a directed-route SMP's initial path: the port to leave by, at each hop from 1 on.
pub const INITIAL_PATH: usize = 128;
/// Offset of a directed-route SMP's return path: the port that it came by, at each hop from 1 on.
pub const RETURN_PATH: usize = 192;
/// Bytes of a path. Byte 0 is not used.
pub const PATH_SIZE: usize = 64;
/// Management class: subnet management, LID routed.
pub const CLASS_SUBN_LID_ROUTED: u32 = 0x01;
/// Management class: subnet management, directed route.
pub const CLASS_SUBN_DIRECTED: u32 = 0x81;
/// Management class: performance management.
pub const CLASS_PERF: u32 = 0x04;
/// Method Get.
pub const METHOD_GET: u32 = 0x01;
/// Method Set.
pub const METHOD_SET: u32 = 0x02;
/// Method Trap.
pub const METHOD_TRAP: u32 = 0x05;
/// Method TrapRepress.
pub const METHOD_TRAP_REPRESS: u32 = 0x07;
/// Method GetResp: answers Get and Set.
pub const METHOD_GET_RESP: u32 = 0x81;
/// MAD status: unsupported class or version.
pub const STATUS_BAD_VERSION: u32 = 0x04;
/// MAD status: unsupported method.
pub const STATUS_BAD_METHOD: u32 = 0x08;
/// MAD status: unsupported method and attribute combination.
pub const STATUS_BAD_ATTRIBUTE: u32 = 0x0c;
/// MAD status: invalid value in attribute or modifier.
pub const STATUS_INVALID_VALUE: u32 = 0x1c;

/// Attribute ids of subnet management (IBTA table 125).
pub mod attr {
    /// Notice: what a trap carries.
    pub const NOTICE: u32 = 0x02;
    /// SwitchInfo.
    pub const SWITCH_INFO: u32 = 0x12;
    /// LinearForwardingTable: 64 LIDs per block.
    pub const LINEAR_FORWARDING: u32 = 0x19;
    /// MulticastForwardingTable: 32 LIDs per block, 16 ports per position.
    pub const MULTICAST_FORWARDING: u32 = 0x1b;
    /// NodeDescription.
    pub const NODE_DESCRIPTION: u32 = 0x10;
    /// NodeInfo.
    pub const NODE_INFO: u32 = 0x11;
    /// GUIDInfo: 8 GUIDs per block.
    pub const GUID_INFO: u32 = 0x14;
    /// PortInfo.
    pub const PORT_INFO: u32 = 0x15;
    /// P_KeyTable: 32 entries per block.
    pub const PKEY_TABLE: u32 = 0x16;
    /// SLtoVLMappingTable.
    pub const SL_TO_VL: u32 = 0x17;
    /// VLArbitrationTable.
    pub const VL_ARBITRATION: u32 = 0x18;
    /// SMInfo.
    pub const SM_INFO: u32 = 0x20;
    /// ExtendedPortInfo, of the vendor: four words whose last bytes are the state change enable, and the speeds
    /// beyond the standard ones that are supported, enabled and active (infiniband-diags, field use).
    pub const VENDOR_EXT_PORT_INFO: u32 = 0xff90;
    /// Class port info (performance management).
    pub const CLASS_PORT_INFO: u32 = 0x01;
    /// PortCounters (performance management).
    pub const PORT_COUNTERS: u32 = 0x12;
    /// PortCountersExtended (performance management).
    pub const PORT_COUNTERS_EXT: u32 = 0x1d;
}

layout! {
    /// A management datagram, 256 bytes, with the header of an SMP.
    pub struct Mad[256] {
        /// Version of the MAD base format: 1.
        BASE_VERSION: 0x0 [31:24];
        /// Management class.
        MGMT_CLASS: 0x0 [23:16];
        /// Version of the class.
        CLASS_VERSION: 0x0 [15:8];
        /// Method; bit 7 = response.
        METHOD: 0x0 [7:0];
        /// Status; directed route: bit 15 is the direction.
        STATUS: 0x4 [31:16];
        /// Directed route: 1 = outbound responses.
        DIRECTION: 0x4 [31:31];
        /// Directed route: hop pointer.
        HOP_POINTER: 0x4 [15:8];
        /// Directed route: hop count.
        HOP_COUNT: 0x4 [7:0];
        /// Transaction id.
        TRANSACTION_ID: 0x8 u64;
        /// Attribute.
        ATTRIBUTE_ID: 0x10 [31:16];
        /// Modifier of the attribute.
        ATTRIBUTE_MODIFIER: 0x14 [31:0];
        /// SMP: M_Key.
        M_KEY: 0x18 u64;
        /// Directed route: source LID.
        DR_SLID: 0x20 [31:16];
        /// Directed route: destination LID.
        DR_DLID: 0x20 [15:0];
    } views {
        /// The attribute as NodeInfo.
        node_info, node_info_mut: 0x40 NodeInfo;
        /// The attribute as PortInfo.
        port_info, port_info_mut: 0x40 PortInfo;
        /// The attribute as SwitchInfo.
        switch_info, switch_info_mut: 0x40 SwitchInfo;
        /// The attribute as Notice.
        notice, notice_mut: 0x40 Notice;
        /// The attribute as 64 bytes.
        smp_data, smp_data_mut: 0x40 SmpData;
    }

    /// Attribute data of an SMP, 64 bytes.
    pub struct SmpData[64] {
        /// The first word.
        WORD0: 0x0 [31:0];
    }

    /// NodeInfo (IBTA 14.2.5.3).
    pub struct NodeInfo[64] {
        /// Base version.
        BASE_VERSION: 0x0 [31:24];
        /// Class version.
        CLASS_VERSION: 0x0 [23:16];
        /// Node type: 1 = channel adapter, 2 = switch.
        NODE_TYPE: 0x0 [15:8];
        /// Number of ports.
        NUM_PORTS: 0x0 [7:0];
        /// GUID of the system.
        SYSTEM_IMAGE_GUID: 0x4 u64;
        /// GUID of the node.
        NODE_GUID: 0xc u64;
        /// GUID of the port.
        PORT_GUID: 0x14 u64;
        /// Entries of the P_Key table.
        PARTITION_CAP: 0x1c [31:16];
        /// Device id.
        DEVICE_ID: 0x1c [15:0];
        /// Device revision.
        REVISION: 0x20 [31:0];
        /// Number of the port that was asked.
        LOCAL_PORT_NUM: 0x24 [31:24];
        /// IEEE company id of the vendor.
        VENDOR_ID: 0x24 [23:0];
    }

    /// PortInfo (IBTA 14.2.5.6).
    pub struct PortInfo[64] {
        /// Management key.
        M_KEY: 0x0 u64;
        /// Subnet prefix.
        GID_PREFIX: 0x8 u64;
        /// Base LID.
        LID: 0x10 [31:16];
        /// LID of the master subnet manager.
        MASTER_SM_LID: 0x10 [15:0];
        /// Capability mask ([`port_cap`]).
        CAPABILITY_MASK: 0x14 [31:0];
        /// Diagnostic code.
        DIAG_CODE: 0x18 [31:16];
        /// Lease period of the M_Key in seconds.
        M_KEY_LEASE_PERIOD: 0x18 [15:0];
        /// Port that was asked.
        LOCAL_PORT_NUM: 0x1c [31:24];
        /// Enabled widths: 1 = 1x, 2 = 4x, 4 = 8x, 8 = 12x, 16 = 2x.
        LINK_WIDTH_ENABLED: 0x1c [23:16];
        /// Supported widths.
        LINK_WIDTH_SUPPORTED: 0x1c [15:8];
        /// Active width.
        LINK_WIDTH_ACTIVE: 0x1c [7:0];
        /// Supported speeds: 1 SDR, 2 DDR, 4 QDR.
        LINK_SPEED_SUPPORTED: 0x20 [31:28];
        /// Logical state: 1 down, 2 init, 3 armed, 4 active.
        PORT_STATE: 0x20 [27:24];
        /// Physical state: 5 = link up, 2 = polling.
        PORT_PHYSICAL_STATE: 0x20 [23:20];
        /// State after a link loss.
        LINK_DOWN_DEFAULT_STATE: 0x20 [19:16];
        /// M_Key protection.
        M_KEY_PROTECT: 0x20 [15:14];
        /// LID mask control.
        LMC: 0x20 [10:8];
        /// Active speed.
        LINK_SPEED_ACTIVE: 0x20 [7:4];
        /// Enabled speeds.
        LINK_SPEED_ENABLED: 0x20 [3:0];
        /// Active MTU, code 1..5.
        NEIGHBOR_MTU: 0x24 [31:28];
        /// Service level to the master subnet manager.
        MASTER_SM_SL: 0x24 [27:24];
        /// Virtual lanes: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
        VL_CAP: 0x24 [23:20];
        /// Init type.
        INIT_TYPE: 0x24 [19:16];
        /// High limit of VL arbitration.
        VL_HIGH_LIMIT: 0x24 [15:8];
        /// Entries of the high priority table.
        VL_ARB_HIGH_CAP: 0x24 [7:0];
        /// Entries of the low priority table.
        VL_ARB_LOW_CAP: 0x28 [31:24];
        /// Init type reply.
        INIT_TYPE_REPLY: 0x28 [23:20];
        /// Largest MTU, code 1..5.
        MTU_CAP: 0x28 [19:16];
        /// Packets that find no credits in a row before a lane stalls: 2^value (switches).
        VL_STALL_COUNT: 0x28 [15:13];
        /// Longest stay at the head of a lane's queue: 4.096 us * 2^value; 20 and up = no limit (switches).
        HOQ_LIFE: 0x28 [12:8];
        /// Operational virtual lanes.
        OPERATIONAL_VLS: 0x28 [7:4];
        /// P_Keys of packets that come in are checked (switches).
        PARTITION_ENFORCEMENT_INBOUND: 0x28 [3:3];
        /// P_Keys of packets that go out are checked (switches).
        PARTITION_ENFORCEMENT_OUTBOUND: 0x28 [2:2];
        /// Raw packets that come in are discarded (switches).
        FILTER_RAW_INBOUND: 0x28 [1:1];
        /// Raw packets that go out are discarded (switches).
        FILTER_RAW_OUTBOUND: 0x28 [0:0];
        /// M_Key violations.
        M_KEY_VIOLATIONS: 0x2c [31:16];
        /// P_Key violations.
        P_KEY_VIOLATIONS: 0x2c [15:0];
        /// Q_Key violations.
        Q_KEY_VIOLATIONS: 0x30 [31:16];
        /// Entries of the GUID table.
        GUID_CAP: 0x30 [15:8];
        /// 1 = clients shall register again.
        CLIENT_REREGISTER: 0x30 [7:7];
        /// Traps about multicast packets with a wrong P_Key are suppressed.
        MULTICAST_PKEY_TRAP_SUPPRESSION: 0x30 [6:5];
        /// Subnet timeout: 4.096 us * 2^value.
        SUBNET_TIMEOUT: 0x30 [4:0];
        /// Response time: 4.096 us * 2^value.
        RESP_TIME_VALUE: 0x34 [28:24];
        /// Local physical errors.
        LOCAL_PHY_ERRORS: 0x34 [23:20];
        /// Overrun errors.
        OVERRUN_ERRORS: 0x34 [19:16];
        /// Round trip latency.
        LINK_ROUND_TRIP_LATENCY: 0x38 [23:0];
        /// Capability mask 2.
        CAPABILITY_MASK2: 0x3c [31:16];
        /// Active extended speed: 0 none, 1 FDR, 2 EDR, 4 HDR. LinkSpeedActive is then 4 (QDR).
        LINK_SPEED_EXT_ACTIVE: 0x3c [15:12];
        /// Supported extended speeds.
        LINK_SPEED_EXT_SUPPORTED: 0x3c [11:8];
        /// Enabled extended speeds.
        LINK_SPEED_EXT_ENABLED: 0x3c [4:0];
    }

    /// SwitchInfo (IBTA 14.2.5.4).
    pub struct SwitchInfo[64] {
        /// Entries of the linear forwarding table.
        LINEAR_FDB_CAP: 0x0 [31:16];
        /// Entries of the random forwarding table.
        RANDOM_FDB_CAP: 0x0 [15:0];
        /// Entries of the multicast forwarding table.
        MULTICAST_FDB_CAP: 0x4 [31:16];
        /// Highest LID that the linear table forwards.
        LINEAR_FDB_TOP: 0x4 [15:0];
        /// Port of LIDs that the random table does not have.
        DEFAULT_PORT: 0x8 [31:24];
        /// Port of multicast LIDs beyond the table.
        DEFAULT_MULTICAST_PRIMARY_PORT: 0x8 [23:16];
        /// The same, for packets that came by the primary port.
        DEFAULT_MULTICAST_NOT_PRIMARY_PORT: 0x8 [15:8];
        /// Longest stay of a packet: 4.096 us * 2^value; 20 and up = no limit.
        LIFE_TIME_VALUE: 0x8 [7:3];
        /// A port's state changed; writing 1 clears.
        PORT_STATE_CHANGE: 0x8 [2:2];
        /// 1 = SL to VL tables of many ports can be set at once.
        OPTIMIZED_SL_TO_VL: 0x8 [1:0];
        /// LIDs of each port that the random table can hold.
        LIDS_PER_PORT: 0xc [31:16];
        /// Entries of each external port's P_Key table.
        PARTITION_ENFORCEMENT_CAP: 0xc [15:0];
        /// P_Keys of packets that come in can be checked.
        INBOUND_ENFORCEMENT_CAP: 0x10 [31:31];
        /// P_Keys of packets that go out can be checked.
        OUTBOUND_ENFORCEMENT_CAP: 0x10 [30:30];
        /// Raw packets that come in can be discarded.
        FILTER_RAW_INBOUND_CAP: 0x10 [29:29];
        /// Raw packets that go out can be discarded.
        FILTER_RAW_OUTBOUND_CAP: 0x10 [28:28];
        /// Port 0 is an end port like an adapter's.
        ENHANCED_PORT0: 0x10 [27:27];
        /// Highest multicast LID that the table forwards; 0 = not set.
        MULTICAST_FDB_TOP: 0x10 [15:0];
    }

    /// Notice, what a trap carries (IBTA 13.4.8.2), with the details of the traps sent here (14.2.5.1).
    pub struct Notice[64] {
        /// 1 = generic, not of the vendor.
        GENERIC: 0x0 [31:31];
        /// Type ([`notice_type`]).
        TYPE: 0x0 [30:24];
        /// Who: 1 = channel adapter, 2 = switch.
        PRODUCER_TYPE: 0x0 [23:0];
        /// Number ([`trap`]).
        TRAP_NUMBER: 0x4 [31:16];
        /// LID of the issuer.
        ISSUER_LID: 0x4 [15:0];
        /// Toggles with each notice of an attribute's queue.
        TOGGLE: 0x8 [31:31];
        /// Notices in the queue.
        COUNT: 0x8 [30:16];
        /// 128: LID of the switch.
        SWITCH_LID: 0x8 [15:0];
        /// 144: LID of the port; 256: of the sender of the datagram; 257, 258: source.
        LID: 0xc [31:16];
        /// 144: something else than the capability mask changed, see the flags.
        OTHER_LOCAL_CHANGES: 0xc [0:0];
        /// 144: the capability mask as it is now.
        CAPABILITY_MASK: 0x10 [31:0];
        /// 144: the change flags, bit 0 = NodeDescription.
        CHANGE_FLAGS: 0x14 [31:16];
        /// 144: CapabilityMask2 as it is now.
        CAPABILITY_MASK2: 0x14 [15:0];
        /// 256: DrSLID of a directed route.
        DR_SLID: 0xc [15:0];
        /// 256: method of the datagram.
        METHOD: 0x10 [31:24];
        /// 256: its attribute.
        ATTRIBUTE_ID: 0x10 [15:0];
        /// 256: its attribute modifier.
        ATTRIBUTE_MODIFIER: 0x14 [31:0];
        /// 256: its M_Key.
        M_KEY: 0x18 u64;
        /// 256: it came on a directed route.
        DR_NOTICE: 0x20 [23:23];
        /// 256: its return path is longer than what fits here.
        DR_PATH_TRUNCATED: 0x20 [22:22];
        /// 256: hops of the return path.
        DR_HOP_COUNT: 0x20 [21:16];
        /// 257, 258: destination LID.
        LID2: 0xc [15:0];
        /// 257, 258: the key.
        KEY: 0x10 [31:0];
        /// 257, 258: service level.
        SL: 0x14 [31:28];
        /// 257, 258: source queue pair.
        QP1: 0x14 [23:0];
        /// 257, 258: destination queue pair.
        QP2: 0x18 [23:0];
    }

    /// ClassPortInfo (IBTA 13.4.8.1), its first words; the rest is where a trap would go.
    pub struct ClassPortInfo[72] {
        /// Base version.
        BASE_VERSION: 0x0 [31:24];
        /// Class version.
        CLASS_VERSION: 0x0 [23:16];
        /// What the agent can ([`perf_cap`]).
        CAPABILITY_MASK: 0x0 [15:0];
        /// Further capabilities of the agent.
        CAPABILITY_MASK2: 0x4 [31:5];
        /// Response time: 4.096 us * 2^value.
        RESP_TIME_VALUE: 0x4 [4:0];
    }

    /// PortCounters (IBTA 16.1.3.5). Counters stop at their largest value.
    pub struct PortCounters[44] {
        /// Port; 255 = all.
        PORT_SELECT: 0x0 [23:16];
        /// Which counters a Set sets, bit 0 = symbol errors.
        COUNTER_SELECT: 0x0 [15:0];
        /// Symbol errors.
        SYMBOL_ERRORS: 0x4 [31:16];
        /// Link error recoveries that succeeded.
        LINK_ERROR_RECOVERY: 0x4 [15:8];
        /// Links lost.
        LINK_DOWNED: 0x4 [7:0];
        /// Packets with errors.
        RCV_ERRORS: 0x8 [31:16];
        /// Packets that were marked bad by someone before.
        RCV_REMOTE_PHYSICAL_ERRORS: 0x8 [15:0];
        /// Packets that the switch could not forward.
        RCV_SWITCH_RELAY_ERRORS: 0xc [31:16];
        /// Packets not sent: port down or not active, too long for it, too old.
        XMIT_DISCARDS: 0xc [15:0];
        /// Packets not sent: wrong P_Key, or raw.
        XMIT_CONSTRAINT_ERRORS: 0x10 [31:24];
        /// Packets not taken: wrong P_Key, or raw.
        RCV_CONSTRAINT_ERRORS: 0x10 [23:16];
        /// Which of the counters beyond 16 a Set sets: bit 0 = wait.
        COUNTER_SELECT2: 0x10 [15:8];
        /// Times the local physical errors went beyond their threshold.
        LOCAL_LINK_INTEGRITY_ERRORS: 0x10 [7:4];
        /// Times the overruns went beyond their threshold.
        EXCESSIVE_BUFFER_OVERRUNS: 0x10 [3:0];
        /// SMPs dropped for lack of room.
        VL15_DROPPED: 0x14 [15:0];
        /// Words sent.
        XMIT_DATA: 0x18 [31:0];
        /// Words received.
        RCV_DATA: 0x1c [31:0];
        /// Packets sent.
        XMIT_PACKETS: 0x20 [31:0];
        /// Packets received.
        RCV_PACKETS: 0x24 [31:0];
        /// Ticks in which something could not be sent for lack of credits.
        XMIT_WAIT: 0x28 [31:0];
    }

    /// PortCountersExtended (IBTA 16.1.4.11).
    pub struct PortCountersExtended[72] {
        /// Port; 255 = all.
        PORT_SELECT: 0x0 [23:16];
        /// Which counters a Set sets, bit 0 = words sent.
        COUNTER_SELECT: 0x0 [15:0];
        /// Words sent.
        XMIT_DATA: 0x8 u64;
        /// Words received.
        RCV_DATA: 0x10 u64;
        /// Packets sent.
        XMIT_PACKETS: 0x18 u64;
        /// Packets received.
        RCV_PACKETS: 0x20 u64;
        /// Packets sent to one.
        UNICAST_XMIT_PACKETS: 0x28 u64;
        /// Packets received that were to one.
        UNICAST_RCV_PACKETS: 0x30 u64;
        /// Packets sent to a group.
        MULTICAST_XMIT_PACKETS: 0x38 u64;
        /// Packets received that were to a group.
        MULTICAST_RCV_PACKETS: 0x40 u64;
    }
}

impl Notice {
    /// 256: offset of the return path.
    pub const DR_RETURN_PATH: usize = 34;
    /// 257, 258: offset of the source GID; the destination's follows.
    pub const GID1: usize = 28;
}

/// Types of a notice (IBTA table 118).
pub mod notice_type {
    /// Urgent.
    pub const URGENT: u32 = 1;
    /// Security.
    pub const SECURITY: u32 = 2;
    /// Informational.
    pub const INFORMATIONAL: u32 = 4;
}

/// Traps of subnet management (IBTA table 131).
pub mod trap {
    /// A port of a switch changed its state.
    pub const LINK_STATE: u32 = 128;
    /// The capability mask, or something else of a port, changed.
    pub const LOCAL_CHANGES: u32 = 144;
    /// An SMP with a wrong M_Key.
    pub const BAD_M_KEY: u32 = 256;
    /// A packet with a wrong P_Key.
    pub const BAD_P_KEY: u32 = 257;
    /// A packet with a wrong Q_Key.
    pub const BAD_Q_KEY: u32 = 258;
}

/// Bits of the performance agent's capability mask (IBTA 16.1.3.1).
pub mod perf_cap {
    /// PortSelect 255 means all ports.
    pub const ALL_PORT_SELECT: u32 = 1 << 8;
    /// PortCountersExtended is supported.
    pub const EXTENDED_WIDTH: u32 = 1 << 9;
    /// PortCounters has PortXmitWait.
    pub const XMIT_WAIT: u32 = 1 << 12;
}

/// Bits of [`PortInfo::CAPABILITY_MASK`].
pub mod port_cap {
    /// The port is a subnet manager.
    pub const IS_SM: u32 = 1 << 1;
    /// Traps are generated.
    pub const TRAP: u32 = 1 << 3;
    /// Automatic path migration.
    pub const AUTO_MIGRATION: u32 = 1 << 5;
    /// SL to VL mapping.
    pub const SL_MAPPING: u32 = 1 << 6;
    /// The subnet manager is switched off.
    pub const SM_DISABLED: u32 = 1 << 10;
    /// System image GUID.
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    /// Extended speeds.
    pub const EXTENDED_SPEEDS: u32 = 1 << 14;
    /// CapabilityMask2 is supported.
    pub const CAP_MASK2: u32 = 1 << 15;
    /// Trap 144 reports changes of the capability mask.
    pub const CAP_MASK_NOTICE: u32 = 1 << 22;
    /// Trap 144 reports other local changes.
    pub const OTHER_LOCAL_CHANGES_NOTICE: u32 = 1 << 26;
    /// SwitchInfo has MulticastFDBTop.
    pub const MULTICAST_FDB_TOP: u32 = 1 << 30;
    /// A communication manager runs.
    pub const CM: u32 = 1 << 16;
    /// Client re-registration is supported.
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
}

/// Bits of [`PortInfo::CAPABILITY_MASK2`].
pub mod port_cap2 {
    /// Links of two lanes.
    pub const LINK_WIDTH_2X: u32 = 1 << 4;
    /// HDR among the extended speeds.
    pub const LINK_SPEED_HDR: u32 = 1 << 5;
}

/// Logical port states ([`PortInfo::PORT_STATE`]).
pub mod port_state {
    /// Down.
    pub const DOWN: u32 = 1;
    /// Initialize.
    pub const INIT: u32 = 2;
    /// Armed.
    pub const ARMED: u32 = 3;
    /// Active.
    pub const ACTIVE: u32 = 4;
}

/// Physical port states ([`PortInfo::PORT_PHYSICAL_STATE`]).
pub mod phys_state {
    /// Polling.
    pub const POLLING: u32 = 2;
    /// Disabled.
    pub const DISABLED: u32 = 3;
    /// Link up.
    pub const LINK_UP: u32 = 5;
}

#[cfg(test)]
mod tests;
