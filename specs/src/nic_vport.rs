//! The NIC virtual port, its state and its environment, and RoCE addresses: contexts and commands.
//!
//! Source: PRM "NIC Vport Context", "QUERY_NIC_VPORT_CONTEXT", "QUERY_VPORT_STATE", "SET_ROCE_ADDRESS"; bits of later
//! adapters and QUERY_VNIC_ENV from the mlx5 driver's use.

use crate::layout::layout;

/// Where the list begins in QUERY_NIC_VPORT_CONTEXT's output: entries of eight bytes. A MAC address is in bytes 2 to 7 of an
/// entry, a VLAN in bits 11..0 of its first word.
pub const QUERY_LIST: usize = 0x110;
/// Where it begins in MODIFY_NIC_VPORT_CONTEXT's input.
pub const MODIFY_LIST: usize = 0x200;

layout! {
    /// NIC virtual port context without its list, 256 bytes.
    pub struct NicVportContext[0x100] {
        /// Headers that send WQEs have to carry inline: 0 none, 1 layer 2, 2 layer 3, 3 layer 4.
        MIN_WQE_INLINE_MODE: 0x0 [26:24];
        /// 1 = multicast does not come back to its sender's adapter.
        DISABLE_MC_LOCAL_LB: 0x0 [2:2];
        /// 1 = unicast does not come back to its sender's adapter.
        DISABLE_UC_LOCAL_LB: 0x0 [1:1];
        /// 1 = there is a RoCE transport.
        ROCE_EN: 0x0 [0:0];
        /// 1 = the next change raises an event.
        ARM_CHANGE_EVENT: 0x4 [31:31];
        /// Changes that do: bit 4 MTU, 3 promiscuous modes, 2 VLANs, 1 multicast, 0 unicast addresses.
        EVENT_ON: 0x4 [4:0];
        /// How the port belongs to another adapter's.
        AFFILIATION_CRITERIA: 0x8 [19:16];
        /// That adapter.
        AFFILIATED_VHCA_ID: 0x8 [15:0];
        /// Group of functions that share a network device; 0 = none.
        SD_GROUP: 0x20 [30:28];
        /// Largest frame in bytes; 0 = never said.
        MTU: 0x24 [15:0];
        /// System image GUID.
        SYSTEM_IMAGE_GUID: 0x28 u64;
        /// Port GUID.
        PORT_GUID: 0x30 u64;
        /// Node GUID.
        NODE_GUID: 0x38 u64;
        /// Q_Key violations.
        QKEY_VIOLATION_COUNTER: 0x68 [31:16];
        /// 1 = packets to any one station are wanted.
        PROMISC_UC: 0xf0 [31:31];
        /// 1 = packets to any group are wanted.
        PROMISC_MC: 0xf0 [30:30];
        /// 1 = all packets are wanted.
        PROMISC_ALL: 0xf0 [29:29];
        /// What the list has: [`list_type`].
        ALLOWED_LIST_TYPE: 0xf0 [26:24];
        /// Entries of the list.
        ALLOWED_LIST_SIZE: 0xf0 [11:0];
        /// Permanent address, bytes 0 and 1.
        PERMANENT_ADDRESS_47_32: 0xf4 [15:0];
        /// Permanent address, bytes 2 to 5.
        PERMANENT_ADDRESS_31_0: 0xf8 [31:0];
    }

    /// Input of commands about a virtual port: QUERY_NIC_VPORT_CONTEXT, QUERY_VPORT_STATE, MODIFY_VPORT_STATE,
    /// QUERY_VNIC_ENV.
    pub struct VportIn[0x10] {
        /// State: 0 = the virtual port, 1 = that of the e-switch, 2 = the way out.
        OP_MOD: 0x4 [15:0];
        /// 1 = another function's port.
        OTHER_VPORT: 0x8 [31:31];
        /// Which.
        VPORT_NUMBER: 0x8 [15:0];
        /// QUERY_NIC_VPORT_CONTEXT: the list wanted, [`list_type`].
        ALLOWED_LIST_TYPE: 0xc [26:24];
        /// MODIFY_VPORT_STATE: 0 down, 1 up, 2 as the link.
        ADMIN_STATE: 0xc [7:4];
    }

    /// QUERY_NIC_VPORT_CONTEXT output; the list follows at [`QUERY_LIST`].
    pub struct QueryNicVportContextOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The context.
        context, context_mut: 0x10 NicVportContext;
    }

    /// MODIFY_NIC_VPORT_CONTEXT input; the list follows at [`MODIFY_LIST`].
    pub struct ModifyNicVportContextIn[0x200] {
        /// 1 = another function's port.
        OTHER_VPORT: 0x8 [31:31];
        /// Which.
        VPORT_NUMBER: 0x8 [15:0];
        /// Values that change: bits of [`nic_vport_select`].
        FIELD_SELECT: 0xc [31:0];
    } views {
        /// New values.
        context, context_mut: 0x100 NicVportContext;
    }

    /// QUERY_VPORT_STATE output.
    pub struct QueryVportStateOut[0x10] {
        /// What MODIFY_VPORT_STATE set: 0 down, 1 up, 2 as the link.
        ADMIN_STATE: 0xc [7:4];
        /// 0 down, 1 up.
        STATE: 0xc [3:0];
    }

    /// QUERY_VNIC_ENV output: what went wrong for a function.
    pub struct QueryVnicEnvOut[0x210] {
        /// Queues in error now.
        COUNTER_ERROR_QUEUES: 0x10 [31:0];
        /// Queues that went into error.
        TOTAL_ERROR_QUEUES: 0x14 [31:0];
        /// Doorbells of a send queue with another priority than its last.
        SEND_QUEUE_PRIORITY_UPDATE_FLOW: 0x18 [31:0];
        /// Packets that flow steering dropped.
        NIC_RECEIVE_STEERING_DISCARD: 0x20 u64;
        /// Packets that came while the virtual port was down.
        RECEIVE_DISCARD_VPORT_DOWN: 0x28 u64;
        /// Packets to be sent while the virtual port was down.
        TRANSMIT_DISCARD_VPORT_DOWN: 0x30 u64;
        /// Overruns of event queues of other events.
        ASYNC_EQ_OVERRUN: 0x38 [31:0];
        /// Overruns of completion event queues.
        COMP_EQ_OVERRUN: 0x3c [31:0];
        /// Commands that were malformed.
        INVALID_COMMAND: 0x44 [31:0];
        /// Commands beyond a function's share.
        QUOTA_EXCEEDED_COMMAND: 0x48 [31:0];
        /// Packets for queues of the adapter's own without a WQE.
        INTERNAL_RQ_OUT_OF_BUFFER: 0x4c [31:0];
        /// Overruns of completion queues.
        CQ_OVERRUN: 0x50 [31:0];
        /// Send WQEs shorter than their headers.
        ETH_WQE_TOO_SMALL: 0x54 [31:0];
    }

    /// A RoCE address, 32 bytes.
    pub struct RoceAddr[0x20] {
        /// Layer 3 address, first half; an IPv4 address is mapped into IPv6.
        SOURCE_L3_ADDRESS_H: 0x0 u64;
        /// Layer 3 address, second half.
        SOURCE_L3_ADDRESS_L: 0x8 u64;
        /// 1 = packets have a VLAN tag.
        VLAN_VALID: 0x10 [28:28];
        /// The VLAN.
        VLAN_ID: 0x10 [27:16];
        /// MAC address, bytes 0 and 1.
        SOURCE_MAC_47_32: 0x10 [15:0];
        /// MAC address, bytes 2 to 5.
        SOURCE_MAC_31_0: 0x14 [31:0];
        /// Layer 3: 0 IPv4, 1 IPv6. Of version 1: what its GRH stands for.
        ROCE_L3_TYPE: 0x18 [11:8];
        /// 0 = version 1, 2 = version 2.
        ROCE_VERSION: 0x18 [7:0];
    }

    /// SET_ROCE_ADDRESS and QUERY_ROCE_ADDRESS input; of the query the first 16 bytes.
    pub struct RoceAddressIn[0x30] {
        /// Index in the table.
        ROCE_ADDRESS_INDEX: 0x8 [31:16];
        /// Port, from 1; 0 = the first.
        VHCA_PORT_NUM: 0x8 [3:0];
    } views {
        /// The address.
        address, address_mut: 0x10 RoceAddr;
    }

    /// QUERY_ROCE_ADDRESS output.
    pub struct QueryRoceAddressOut[0x30] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The address.
        address, address_mut: 0x10 RoceAddr;
    }
}

/// Values of [`NicVportContext::ALLOWED_LIST_TYPE`].
pub mod list_type {
    /// Addresses of single stations.
    pub const UNICAST: u32 = 0;
    /// Addresses of groups.
    pub const MULTICAST: u32 = 1;
    /// VLANs.
    pub const VLAN: u32 = 2;
}

/// Bits of [`ModifyNicVportContextIn::FIELD_SELECT`].
pub mod nic_vport_select {
    /// [`super::NicVportContext::ROCE_EN`].
    pub const ROCE_EN: u32 = 1 << 1;
    /// The list.
    pub const ADDRESSES_LIST: u32 = 1 << 2;
    /// The permanent address.
    pub const PERMANENT_ADDRESS: u32 = 1 << 3;
    /// The promiscuous modes.
    pub const PROMISC: u32 = 1 << 4;
    /// The fields about events.
    pub const CHANGE_EVENT: u32 = 1 << 5;
    /// [`super::NicVportContext::MTU`].
    pub const MTU: u32 = 1 << 6;
    /// [`super::NicVportContext::MIN_WQE_INLINE_MODE`].
    pub const MIN_INLINE: u32 = 1 << 7;
    /// [`super::NicVportContext::PORT_GUID`].
    pub const PORT_GUID: u32 = 1 << 8;
    /// [`super::NicVportContext::NODE_GUID`].
    pub const NODE_GUID: u32 = 1 << 9;
    /// [`super::NicVportContext::DISABLE_MC_LOCAL_LB`].
    pub const DISABLE_MC_LOCAL_LB: u32 = 1 << 10;
    /// [`super::NicVportContext::DISABLE_UC_LOCAL_LB`].
    pub const DISABLE_UC_LOCAL_LB: u32 = 1 << 11;
    /// The fields about another adapter.
    pub const AFFILIATION: u32 = 1 << 13;
}

/// [`RoceAddr::ROCE_VERSION`]: version 1.
pub const ROCE_V1: u32 = 0;
/// [`RoceAddr::ROCE_VERSION`]: version 2.
pub const ROCE_V2: u32 = 2;
/// [`RoceAddr::ROCE_L3_TYPE`]: IPv4.
pub const ROCE_IPV4: u32 = 0;
/// [`RoceAddr::ROCE_L3_TYPE`]: IPv6.
pub const ROCE_IPV6: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_context() {
        let mut m = ModifyNicVportContextIn::new();
        m.set(
            ModifyNicVportContextIn::FIELD_SELECT,
            nic_vport_select::MTU | nic_vport_select::ADDRESSES_LIST,
        );
        let c = m.context_mut();
        c.set(NicVportContext::ROCE_EN, 1)
            .set(NicVportContext::MTU, 1522)
            .set(NicVportContext::PROMISC_MC, 1);
        c.set(NicVportContext::ALLOWED_LIST_TYPE, list_type::VLAN).set(NicVportContext::ALLOWED_LIST_SIZE, 3);
        c.set(NicVportContext::PERMANENT_ADDRESS_47_32, 0x1122);
        c.set(NicVportContext::PERMANENT_ADDRESS_31_0, 0x3344_5566);
        let b = m.bytes();
        assert_eq!((b[0xf], b[0x103]), (0x44, 1));
        assert_eq!(b[0x126..0x128], [5, 0xf2]);
        assert_eq!(b[0x1f0..], [0x42, 0, 0, 3, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_roce_address() {
        let mut s = RoceAddressIn::new();
        s.set(RoceAddressIn::ROCE_ADDRESS_INDEX, 3).set(RoceAddressIn::VHCA_PORT_NUM, 1);
        let a = s.address_mut();
        a.set(RoceAddr::SOURCE_L3_ADDRESS_L, 0xffff_0a00_0001).set(RoceAddr::VLAN_VALID, 1);
        a.set(RoceAddr::VLAN_ID, 0x123).set(RoceAddr::SOURCE_MAC_47_32, 0x0002);
        a.set(RoceAddr::SOURCE_MAC_31_0, 0xc9a0_0001).set(RoceAddr::ROCE_VERSION, ROCE_V2);
        let b = s.bytes();
        assert_eq!(b[8..0xc], [0, 3, 0, 1]);
        assert_eq!(
            b[0x18..],
            [0, 0, 0xff, 0xff, 10, 0, 0, 1, 0x11, 0x23, 0, 2, 0xc9, 0xa0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]
        );
    }

    #[test]
    fn golden_state() {
        let mut out = QueryVportStateOut::new();
        out.set(QueryVportStateOut::ADMIN_STATE, 2).set(QueryVportStateOut::STATE, 1);
        assert_eq!(out.bytes()[0xf], 0x21);
        let mut input = VportIn::new();
        input.set(VportIn::ALLOWED_LIST_TYPE, list_type::MULTICAST).set(VportIn::VPORT_NUMBER, 2);
        assert_eq!(input.bytes()[8..], [0, 0, 0, 2, 1, 0, 0, 0]);
    }
}
