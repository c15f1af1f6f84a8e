//! Management datagrams (MAD) and the attributes of subnet management.
//!
//! Source: IBTA 13.4 (MAD format), 14.2 (SMP format and attributes: NodeDescription, NodeInfo,
//! PortInfo, GUIDInfo, P_KeyTable, SLtoVLMappingTable, VLArbitrationTable, SMInfo, VendorDiag).

use crate::layout::layout;

/// Size of a MAD in bytes.
pub const MAD_SIZE: usize = 256;
/// Offset of an SMP's attribute data.
pub const SMP_DATA: usize = 64;
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
        /// Enabled widths: 1 = 1x, 2 = 4x, 4 = 8x, 8 = 12x.
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
        /// Operational virtual lanes.
        OPERATIONAL_VLS: 0x28 [7:4];
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
        /// Subnet timeout.
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
    }
}

// The last bytes of PortInfo hold the extended speeds beside CapabilityMask2.
impl PortInfo {
    /// Byte that holds the active (7..4) and supported (3..0) extended speed: 1 FDR, 2 EDR, 4 HDR.
    pub const EXT_SPEED_ACTIVE_SUPPORTED: usize = 62;
    /// Byte whose bits 4..0 hold the enabled extended speeds.
    pub const EXT_SPEED_ENABLED: usize = 63;
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
    /// CapabilityMask2 is there.
    pub const CAP_MASK2: u32 = 1 << 15;
    /// A communication manager runs.
    pub const CM: u32 = 1 << 16;
    /// A client re-registration can be asked for.
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
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
mod tests {
    use super::*;

    /// Byte places the mlx5 driver and rdma-core's `smpquery` read.
    #[test]
    fn golden_port_info() {
        let mut p = PortInfo::new();
        p.set(PortInfo::LID, 1).set(PortInfo::PORT_STATE, 4).set(PortInfo::PORT_PHYSICAL_STATE, 5);
        p.set(PortInfo::LINK_WIDTH_ACTIVE, 2).set(PortInfo::LMC, 1).set(PortInfo::LINK_SPEED_ACTIVE, 4);
        p.set(PortInfo::NEIGHBOR_MTU, 5).set(PortInfo::VL_CAP, 4).set(PortInfo::MTU_CAP, 5);
        p.set(PortInfo::GUID_CAP, 8).set(PortInfo::SUBNET_TIMEOUT, 18).set(PortInfo::P_KEY_VIOLATIONS, 3);
        let b = p.bytes();
        assert_eq!((b[16], b[17]), (0, 1));
        assert_eq!((b[31] & 15, b[32] & 15, b[33] >> 4, b[34] & 7, b[35] >> 4), (2, 4, 5, 1, 4));
        assert_eq!((b[36] >> 4, b[37] >> 4, b[41] & 15), (5, 4, 5));
        assert_eq!((b[47], b[50], b[51] & 31), (3, 8, 18));
    }

    #[test]
    fn golden_node_info() {
        let mut n = NodeInfo::new();
        n.set(NodeInfo::NODE_GUID, 0x0102_0304_0506_0708).set(NodeInfo::PARTITION_CAP, 32);
        n.set(NodeInfo::DEVICE_ID, 0x1013).set(NodeInfo::VENDOR_ID, 0x2c9).set(NodeInfo::LOCAL_PORT_NUM, 1);
        let b = n.bytes();
        assert_eq!(b[12..20], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(b[28..32], [0, 32, 0x10, 0x13]);
        assert_eq!(b[36..40], [1, 0, 2, 0xc9]);
    }
}
