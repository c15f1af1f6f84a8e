//! Flow steering: tables, groups, entries and counters, what a packet is compared by, and the commands about them.
//!
//! A table has places, numbered from 0. A *group* is a range of places whose entries compare the same fields (its
//! *criteria*); an *entry* is one place: the values of those fields, and what is done with a packet that has them.
//!
//! Source: PRM "Flow Table", "Flow Table Context", "Flow Context", "Flow Table Entry Match Parameters" and the commands
//! of their names; fields that the public manual does not have were taken from the mlx5 driver's use of them.

use crate::layout::layout;

layout! {
    /// CREATE_FLOW_TABLE input.
    pub struct CreateFlowTableIn[0x40] {
        /// The table is another function's.
        OTHER_VPORT: 0x8 [31:31];
        /// Number of that function.
        VPORT_NUMBER: 0x8 [15:0];
        /// Where packets enter the table: [`TableType`].
        TABLE_TYPE: 0x10 [31:24];
    } views {
        /// The table's context.
        context, context_mut: 0x18 FlowTableContext;
    }

    /// CREATE_FLOW_TABLE output.
    pub struct CreateFlowTableOut[0x10] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// Where entries of flow tables that drivers write send packets to come to the table: bits 63..40.
        ICM_ADDRESS_63_40: 0x0 [23:0];
        /// Syndrome of the command.
        SYNDROME: 0x4 [31:0];
        /// Bits 39..32 of that address.
        ICM_ADDRESS_39_32: 0x8 [31:24];
        /// The table.
        TABLE_ID: 0x8 [23:0];
        /// Bits 31..0 of that address.
        ICM_ADDRESS_31_0: 0xc [31:0];
    }

    /// Context of a flow table, 40 bytes.
    pub struct FlowTableContext[0x28] {
        /// Entries may reformat packets.
        REFORMAT_EN: 0x0 [31:31];
        /// Entries may take an outer header off.
        DECAP_EN: 0x0 [30:30];
        /// The driver writes entries into the adapter's memory itself.
        SW_OWNER: 0x0 [29:29];
        /// Packets end here.
        TERMINATION_TABLE: 0x0 [28:28];
        /// What becomes of packets that no entry matches: [`miss_action`].
        TABLE_MISS_ACTION: 0x0 [27:24];
        /// Level: packets go from a table to one of a higher level.
        LEVEL: 0x0 [23:16];
        /// log2 of the number of places.
        LOG_SIZE: 0x0 [7:0];
        /// The table that packets go to which no entry matches.
        TABLE_MISS_ID: 0x4 [23:0];
        /// The same, of the master of a link aggregation.
        LAG_MASTER_NEXT_TABLE_ID: 0x8 [23:0];
        /// Where packets enter it in the adapter's memory, of an embedded switch: that are sent.
        SW_OWNER_ICM_ROOT_1: 0x18 u64;
        /// Where packets enter it in the adapter's memory: those of the NIC.
        SW_OWNER_ICM_ROOT_0: 0x20 u64;
    }

    /// MODIFY_FLOW_TABLE input.
    pub struct ModifyFlowTableIn[0x40] {
        /// The table is another function's.
        OTHER_VPORT: 0x8 [31:31];
        /// What is changed: [`modify_table`].
        MODIFY_FIELD_SELECT: 0xc [15:0];
        /// [`TableType`].
        TABLE_TYPE: 0x10 [31:24];
        /// The table.
        TABLE_ID: 0x14 [23:0];
    } views {
        /// The table's context.
        context, context_mut: 0x18 FlowTableContext;
    }

    /// Input of DESTROY_FLOW_TABLE, QUERY_FLOW_TABLE, and of the commands about groups and entries: what they name.
    pub struct FlowIn[0x40] {
        /// The table is another function's.
        OTHER_VPORT: 0x8 [31:31];
        /// [`TableType`].
        TABLE_TYPE: 0x10 [31:24];
        /// The table.
        TABLE_ID: 0x14 [23:0];
        /// The group: DESTROY_FLOW_GROUP, QUERY_FLOW_GROUP.
        GROUP_ID: 0x18 [31:0];
        /// The place: DELETE_FLOW_TABLE_ENTRY, QUERY_FLOW_TABLE_ENTRY.
        FLOW_INDEX: 0x20 [31:0];
    }

    /// QUERY_FLOW_TABLE output.
    pub struct QueryFlowTableOut[0x40] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The table's context.
        context, context_mut: 0x18 FlowTableContext;
    }

    /// SET_FLOW_TABLE_ROOT input; `op_mod` 0 makes a table the root of its type, 1 leaves the type without a root.
    pub struct SetFlowTableRootIn[0x40] {
        /// Modifier: [`root`].
        OP_MOD: 0x4 [15:0];
        /// The table is another function's.
        OTHER_VPORT: 0x8 [31:31];
        /// [`TableType`].
        TABLE_TYPE: 0x10 [31:24];
        /// The table.
        TABLE_ID: 0x14 [23:0];
        /// The queue pair of an IPoIB interface whose packets enter there.
        UNDERLAY_QPN: 0x18 [23:0];
    }

    /// CREATE_FLOW_GROUP input.
    pub struct CreateFlowGroupIn[0x400] {
        /// The table is another function's.
        OTHER_VPORT: 0x8 [31:31];
        /// [`TableType`].
        TABLE_TYPE: 0x10 [31:24];
        /// How entries are told apart: 0 by criteria, 1 by a hash.
        GROUP_TYPE: 0x10 [19:16];
        /// The table.
        TABLE_ID: 0x14 [23:0];
        /// First place.
        START_FLOW_INDEX: 0x1c [31:0];
        /// Last place.
        END_FLOW_INDEX: 0x24 [31:0];
        /// A definer object that says what is compared.
        MATCH_DEFINER_ID: 0x28 [15:0];
        /// Which parts of the criteria count: [`criteria`].
        MATCH_CRITERIA_ENABLE: 0x3c [7:0];
    } views {
        /// Bits that are compared.
        criteria, criteria_mut: 0x40 MatchParam;
    }

    /// QUERY_FLOW_GROUP output.
    pub struct QueryFlowGroupOut[0x400] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// First place.
        START_FLOW_INDEX: 0x1c [31:0];
        /// Last place.
        END_FLOW_INDEX: 0x24 [31:0];
        /// Which parts of the criteria count: [`criteria`].
        MATCH_CRITERIA_ENABLE: 0x3c [7:0];
    } views {
        /// Bits that are compared.
        criteria, criteria_mut: 0x40 MatchParam;
    }

    /// SET_FLOW_TABLE_ENTRY input; [`FlowListEntry`]s follow, destinations first, then counters. `op_mod` 0 makes an
    /// entry, 1 changes one.
    pub struct SetFteIn[0x340] {
        /// Modifier: [`set_entry`].
        OP_MOD: 0x4 [15:0];
        /// The table is another function's.
        OTHER_VPORT: 0x8 [31:31];
        /// [`TableType`].
        TABLE_TYPE: 0x10 [31:24];
        /// The table.
        TABLE_ID: 0x14 [23:0];
        /// Destinations may be tables of any level.
        IGNORE_FLOW_LEVEL: 0x18 [31:31];
        /// What is changed: [`modify_entry`].
        MODIFY_ENABLE_MASK: 0x18 [7:0];
        /// The place.
        FLOW_INDEX: 0x20 [31:0];
    } views {
        /// The entry.
        context, context_mut: 0x40 FlowContext;
    }

    /// QUERY_FLOW_TABLE_ENTRY output; [`FlowListEntry`]s follow as in SET_FLOW_TABLE_ENTRY.
    pub struct QueryFteOut[0x340] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The entry.
        context, context_mut: 0x40 FlowContext;
    }

    /// Flow context, 768 bytes: an entry of a table.
    pub struct FlowContext[0x300] {
        /// Ethertype of the VLAN tag that is pushed.
        PUSH_VLAN_ETHERTYPE: 0x0 [31:16];
        /// Its tag control information.
        PUSH_VLAN_TCI: 0x0 [15:0];
        /// The group that the place belongs to.
        GROUP_ID: 0x4 [31:0];
        /// What the completion of a received packet shows; 0 leaves what an entry before has set.
        FLOW_TAG: 0x8 [23:0];
        /// What is done with a packet: bits of [`action`].
        ACTION: 0xc [15:0];
        /// Destinations have 16 bytes each, with a reformat context.
        EXTENDED_DESTINATION: 0x10 [31:31];
        /// Where packets of an embedded switch come from.
        FLOW_SOURCE: 0x10 [29:28];
        /// Kind of encryption.
        ENCRYPT_DECRYPT_TYPE: 0x10 [27:24];
        /// Number of destinations in the list.
        DESTINATION_LIST_SIZE: 0x10 [23:0];
        /// Number of counters in the list.
        FLOW_COUNTER_LIST_SIZE: 0x14 [23:0];
        /// Reformat context.
        PACKET_REFORMAT_ID: 0x18 [31:0];
        /// Modify header context.
        MODIFY_HEADER_ID: 0x1c [31:0];
        /// A second VLAN tag that is pushed: its ethertype.
        PUSH_VLAN_2_ETHERTYPE: 0x20 [31:16];
        /// Its tag control information.
        PUSH_VLAN_2_TCI: 0x20 [15:0];
        /// Object of the encryption.
        ENCRYPT_DECRYPT_OBJ_ID: 0x24 [31:0];
    } views {
        /// Values of the fields that the group compares.
        value, value_mut: 0x40 MatchParam;
    }

    /// An element of the list behind a flow context, 8 bytes: a destination or a counter.
    pub struct FlowListEntry[8] {
        /// Kind of a destination: [`destination`].
        DESTINATION_TYPE: 0x0 [31:24];
        /// Its number.
        DESTINATION_ID: 0x0 [23:0];
        /// Number of a counter.
        FLOW_COUNTER_ID: 0x0 [31:0];
        /// The destination is at another eswitch.
        ESWITCH_OWNER_VHCA_ID_VALID: 0x4 [31:31];
        /// The packet is reformatted for the destination.
        PACKET_REFORMAT: 0x4 [30:30];
    }

    /// ALLOC_FLOW_COUNTER input.
    pub struct AllocFlowCounterIn[0x10] {
        /// log2 of the number of counters, if it is not 0.
        FLOW_COUNTER_BULK_LOG_SIZE: 0xc [12:8];
        /// Bit n asks for 128 * 2^n counters with numbers in a row; 0 for one.
        FLOW_COUNTER_BULK: 0xc [7:0];
    }

    /// QUERY_FLOW_COUNTER input.
    pub struct QueryFlowCounterIn[0x20] {
        /// The counters are zero afterwards.
        CLEAR: 0x18 [31:31];
        /// How many are reported; 0 is one.
        NUM_OF_COUNTERS: 0x18 [15:0];
        /// The first of them.
        FLOW_COUNTER_ID: 0x1c [31:0];
    }

    /// What a flow counter has counted, 16 bytes; QUERY_FLOW_COUNTER reports them behind its output's header.
    pub struct TrafficCounter[0x10] {
        /// Packets.
        PACKETS: 0x0 u64;
        /// Octets.
        OCTETS: 0x8 u64;
    }

    /// What packets are compared by, 512 bytes: as a mask in groups, as values in entries.
    pub struct MatchParam[0x200] {
    } views {
        /// Headers of layers 2 to 4.
        outer, outer_mut: 0x0 MatchLayers;
        /// Further fields.
        misc, misc_mut: 0x40 MatchMisc;
        /// Headers of layers 2 to 4 inside a tunnel.
        inner, inner_mut: 0x80 MatchLayers;
        /// Further fields, second set.
        misc_2, misc_2_mut: 0xc0 MatchMisc2;
        /// Further fields, third set.
        misc_3, misc_3_mut: 0x100 MatchMisc3;
    }

    /// Headers of layers 2 to 4 as they are compared, 64 bytes.
    pub struct MatchLayers[0x40] {
        /// Source MAC address, first 32 bits.
        SMAC_47_16: 0x0 [31:0];
        /// Its last 16 bits.
        SMAC_15_0: 0x4 [31:16];
        /// Ethertype behind VLAN tags.
        ETHERTYPE: 0x4 [15:0];
        /// Destination MAC address, first 32 bits.
        DMAC_47_16: 0x8 [31:0];
        /// Its last 16 bits.
        DMAC_15_0: 0xc [31:16];
        /// Priority of the outermost VLAN tag.
        FIRST_PRIO: 0xc [15:13];
        /// Its drop eligible bit.
        FIRST_CFI: 0xc [12:12];
        /// Its VLAN.
        FIRST_VID: 0xc [11:0];
        /// IP protocol, behind the extension headers of IPv6.
        IP_PROTOCOL: 0x10 [31:24];
        /// Differentiated services code point.
        IP_DSCP: 0x10 [23:18];
        /// Congestion notification.
        IP_ECN: 0x10 [17:16];
        /// The outermost tag is a C-tag (0x8100).
        CVLAN_TAG: 0x10 [15:15];
        /// The outermost tag is an S-tag (0x88a8).
        SVLAN_TAG: 0x10 [14:14];
        /// The packet is a fragment.
        FRAG: 0x10 [13:13];
        /// 4 or 6; 0 of other packets.
        IP_VERSION: 0x10 [12:9];
        /// Flags of TCP, with NS.
        TCP_FLAGS: 0x10 [8:0];
        /// Source port of TCP.
        TCP_SPORT: 0x14 [31:16];
        /// Destination port of TCP.
        TCP_DPORT: 0x14 [15:0];
        /// Layer 4: 0 none, 1 TCP, 2 UDP.
        L4_TYPE: 0x18 [31:30];
        /// Length of the IPv4 header in words.
        IPV4_IHL: 0x18 [15:12];
        /// Time to live, or hop limit.
        TTL_HOPLIMIT: 0x18 [7:0];
        /// Source port of UDP.
        UDP_SPORT: 0x1c [31:16];
        /// Destination port of UDP.
        UDP_DPORT: 0x1c [15:0];
        /// Source address, bits 127 to 96; an IPv4 address is in the last 32 bits.
        SRC_127_96: 0x20 [31:0];
        /// Bits 95 to 64.
        SRC_95_64: 0x24 [31:0];
        /// Bits 63 to 32.
        SRC_63_32: 0x28 [31:0];
        /// Bits 31 to 0.
        SRC_31_0: 0x2c [31:0];
        /// Destination address, bits 127 to 96.
        DST_127_96: 0x30 [31:0];
        /// Bits 95 to 64.
        DST_95_64: 0x34 [31:0];
        /// Bits 63 to 32.
        DST_63_32: 0x38 [31:0];
        /// Bits 31 to 0.
        DST_31_0: 0x3c [31:0];
    }

    /// Further fields that are compared, 64 bytes.
    pub struct MatchMisc[0x40] {
        /// The GRE header has a checksum.
        GRE_C_PRESENT: 0x0 [31:31];
        /// It has a key.
        GRE_K_PRESENT: 0x0 [29:29];
        /// It has a sequence number.
        GRE_S_PRESENT: 0x0 [28:28];
        /// Port that the packet came by.
        SOURCE_VHCA_PORT: 0x0 [27:24];
        /// Send queue that the packet comes from.
        SOURCE_SQN: 0x0 [23:0];
        /// Adapter whose eswitch the packet comes from.
        SOURCE_ESWITCH_OWNER_VHCA_ID: 0x4 [31:16];
        /// Virtual port that the packet comes from.
        SOURCE_PORT: 0x4 [15:0];
        /// Second VLAN tag: priority.
        OUTER_SECOND_PRIO: 0x8 [31:29];
        /// Its drop eligible bit.
        OUTER_SECOND_CFI: 0x8 [28:28];
        /// Its VLAN.
        OUTER_SECOND_VID: 0x8 [27:16];
        /// Second VLAN tag inside a tunnel: priority.
        INNER_SECOND_PRIO: 0x8 [15:13];
        /// Its drop eligible bit.
        INNER_SECOND_CFI: 0x8 [12:12];
        /// Its VLAN.
        INNER_SECOND_VID: 0x8 [11:0];
        /// The second tag is a C-tag.
        OUTER_SECOND_CVLAN_TAG: 0xc [31:31];
        /// The second tag inside a tunnel is a C-tag.
        INNER_SECOND_CVLAN_TAG: 0xc [30:30];
        /// The second tag is an S-tag.
        OUTER_SECOND_SVLAN_TAG: 0xc [29:29];
        /// The second tag inside a tunnel is an S-tag.
        INNER_SECOND_SVLAN_TAG: 0xc [28:28];
        /// Protocol type of GRE.
        GRE_PROTOCOL: 0xc [15:0];
        /// Key of GRE.
        GRE_KEY: 0x10 [31:0];
        /// Network identifier of VXLAN.
        VXLAN_VNI: 0x14 [31:8];
        /// Opcode of a transport packet.
        BTH_OPCODE: 0x14 [7:0];
        /// Network identifier of Geneve.
        GENEVE_VNI: 0x18 [31:8];
        /// A Geneve option is there.
        GENEVE_TLV_OPTION_0_EXIST: 0x18 [1:1];
        /// Geneve control packet.
        GENEVE_OAM: 0x18 [0:0];
        /// Flow label of IPv6.
        OUTER_IPV6_FLOW_LABEL: 0x1c [19:0];
        /// Flow label of IPv6 inside a tunnel.
        INNER_IPV6_FLOW_LABEL: 0x20 [19:0];
        /// Length of Geneve's options.
        GENEVE_OPT_LEN: 0x24 [21:16];
        /// Protocol type of Geneve.
        GENEVE_PROTOCOL_TYPE: 0x24 [15:0];
        /// Destination queue pair of a transport packet.
        BTH_DST_QP: 0x28 [23:0];
        /// Security parameter index inside a tunnel.
        INNER_ESP_SPI: 0x2c [31:0];
        /// Security parameter index.
        OUTER_ESP_SPI: 0x30 [31:0];
    }

    /// Further fields that are compared, second set, 64 bytes.
    pub struct MatchMisc2[0x40] {
        /// First label of MPLS.
        OUTER_FIRST_MPLS: 0x0 [31:0];
        /// The same inside a tunnel.
        INNER_FIRST_MPLS: 0x4 [31:0];
        /// The same over GRE.
        OUTER_FIRST_MPLS_OVER_GRE: 0x8 [31:0];
        /// The same over UDP.
        OUTER_FIRST_MPLS_OVER_UDP: 0xc [31:0];
        /// Register C7; the others, down to C0, follow.
        METADATA_REG_C_7: 0x10 [31:0];
        /// Register C0.
        METADATA_REG_C_0: 0x2c [31:0];
        /// Register A: the metadata of a sender's work request.
        METADATA_REG_A: 0x30 [31:0];
        /// What MACsec found.
        MACSEC_SYNDROME: 0x34 [23:16];
        /// What IPsec found.
        IPSEC_SYNDROME: 0x34 [15:8];
    }

    /// Further fields that are compared, third set, 64 bytes.
    pub struct MatchMisc3[0x40] {
        /// Sequence number of TCP inside a tunnel.
        INNER_TCP_SEQ_NUM: 0x0 [31:0];
        /// Sequence number of TCP.
        OUTER_TCP_SEQ_NUM: 0x4 [31:0];
        /// Acknowledged number of TCP inside a tunnel.
        INNER_TCP_ACK_NUM: 0x8 [31:0];
        /// Acknowledged number of TCP.
        OUTER_TCP_ACK_NUM: 0xc [31:0];
        /// Network identifier of VXLAN-GPE.
        OUTER_VXLAN_GPE_VNI: 0x10 [23:0];
        /// Its next protocol.
        OUTER_VXLAN_GPE_NEXT_PROTOCOL: 0x14 [31:24];
        /// Its flags.
        OUTER_VXLAN_GPE_FLAGS: 0x14 [23:16];
        /// Second word of an ICMP header.
        ICMP_HEADER_DATA: 0x18 [31:0];
        /// Second word of an ICMPv6 header.
        ICMPV6_HEADER_DATA: 0x1c [31:0];
        /// Type of ICMP.
        ICMP_TYPE: 0x20 [31:24];
        /// Code of ICMP.
        ICMP_CODE: 0x20 [23:16];
        /// Type of ICMPv6.
        ICMPV6_TYPE: 0x20 [15:8];
        /// Code of ICMPv6.
        ICMPV6_CODE: 0x20 [7:0];
        /// Data of a Geneve option.
        GENEVE_TLV_OPTION_0_DATA: 0x24 [31:0];
        /// Tunnel of GTP-U.
        GTPU_TEID: 0x28 [31:0];
        /// Type of its message.
        GTPU_MSG_TYPE: 0x2c [31:24];
        /// Its flags.
        GTPU_MSG_FLAGS: 0x2c [23:16];
        /// Third word of its header.
        GTPU_DW_2: 0x30 [31:0];
        /// First word of its first extension header.
        GTPU_FIRST_EXT_DW_0: 0x34 [31:0];
        /// First word of its header.
        GTPU_DW_0: 0x38 [31:0];
    }
}

/// Where packets enter a table (`table_type`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum TableType {
    /// Frames that a port receives.
    NicRx = 0,
    /// Frames that send queues send.
    NicTx = 1,
    /// Eswitch: what leaves it to a virtual port.
    EswEgressAcl = 2,
    /// Eswitch: what comes from a virtual port.
    EswIngressAcl = 3,
    /// Eswitch: forwarding.
    Fdb = 4,
    /// Copies of what a port receives.
    SnifferRx = 5,
    /// Copies of what send queues send.
    SnifferTx = 6,
    /// RoCE packets that a port receives.
    RdmaRx = 7,
    /// RoCE packets that queue pairs send.
    RdmaTx = 8,
    /// The port by which a frame leaves.
    PortSelection = 9,
}

impl TableType {
    /// The type of that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::NicRx,
            1 => Self::NicTx,
            2 => Self::EswEgressAcl,
            3 => Self::EswIngressAcl,
            4 => Self::Fdb,
            5 => Self::SnifferRx,
            6 => Self::SnifferTx,
            7 => Self::RdmaRx,
            8 => Self::RdmaTx,
            9 => Self::PortSelection,
            _ => return None,
        })
    }
}

/// Values of [`FlowTableContext::TABLE_MISS_ACTION`].
pub mod miss_action {
    /// What the type's tables do by themselves.
    pub const DEFAULT: u32 = 0;
    /// The packet goes to another table.
    pub const TABLE: u32 = 1;
    /// The packet goes to the root of another type: RoCE packets that are received, to that of NIC RX.
    pub const SWITCH_DOMAIN: u32 = 2;
}

/// Bits of [`ModifyFlowTableIn::MODIFY_FIELD_SELECT`].
pub mod modify_table {
    /// What becomes of packets that no entry matches.
    pub const MISS_TABLE_ID: u32 = 1 << 0;
    /// The next table of the master of a link aggregation.
    pub const LAG_NEXT_TABLE_ID: u32 = 1 << 15;
}

/// Values of [`SetFlowTableRootIn::OP_MOD`].
pub mod root {
    /// The table becomes the root.
    pub const SET: u32 = 0;
    /// There is no root any more.
    pub const DISCONNECT: u32 = 1;
}

/// Values of [`SetFteIn::OP_MOD`].
pub mod set_entry {
    /// A new entry.
    pub const CREATE: u32 = 0;
    /// An entry that is there is changed.
    pub const MODIFY: u32 = 1;
}

/// Bits of [`SetFteIn::MODIFY_ENABLE_MASK`].
pub mod modify_entry {
    /// What is done with packets.
    pub const ACTION: u32 = 1 << 0;
    /// The flow tag.
    pub const FLOW_TAG: u32 = 1 << 1;
    /// The list of destinations.
    pub const DESTINATIONS: u32 = 1 << 2;
    /// The list of counters.
    pub const COUNTERS: u32 = 1 << 3;
}

/// Bits of [`CreateFlowGroupIn::MATCH_CRITERIA_ENABLE`].
pub mod criteria {
    /// Layers 2 to 4.
    pub const OUTER: u32 = 1 << 0;
    /// Further fields.
    pub const MISC: u32 = 1 << 1;
    /// Layers 2 to 4 inside a tunnel.
    pub const INNER: u32 = 1 << 2;
    /// Further fields, second set.
    pub const MISC_2: u32 = 1 << 3;
    /// Further fields, third set.
    pub const MISC_3: u32 = 1 << 4;
    /// Fields of a flexible parser.
    pub const MISC_4: u32 = 1 << 5;
    /// Fields of MACsec and of tunnels.
    pub const MISC_5: u32 = 1 << 6;
    /// Fields of PSP.
    pub const MISC_6: u32 = 1 << 7;
}

/// Bits of [`FlowContext::ACTION`].
pub mod action {
    /// The packet goes where the type's packets go by themselves.
    pub const ALLOW: u32 = 1 << 0;
    /// The packet is dropped.
    pub const DROP: u32 = 1 << 1;
    /// The packet goes to each destination of the list.
    pub const FORWARD: u32 = 1 << 2;
    /// The counters of the list count the packet.
    pub const COUNT: u32 = 1 << 3;
    /// A header is put before the packet, or changed.
    pub const REFORMAT: u32 = 1 << 4;
    /// The outer header is taken off.
    pub const DECAP: u32 = 1 << 5;
    /// Fields are changed.
    pub const MODIFY_HEADER: u32 = 1 << 6;
    /// The outermost VLAN tag is taken off.
    pub const POP_VLAN: u32 = 1 << 7;
    /// A VLAN tag is put in.
    pub const PUSH_VLAN: u32 = 1 << 8;
    /// A second VLAN tag is taken off.
    pub const POP_VLAN_2: u32 = 1 << 10;
    /// A second VLAN tag is put in.
    pub const PUSH_VLAN_2: u32 = 1 << 11;
    /// The packet is decrypted.
    pub const DECRYPT: u32 = 1 << 12;
    /// The packet is encrypted.
    pub const ENCRYPT: u32 = 1 << 13;
    /// An advanced steering operation is executed.
    pub const EXECUTE_ASO: u32 = 1 << 14;
}

/// Values of [`FlowListEntry::DESTINATION_TYPE`].
pub mod destination {
    /// A virtual port.
    pub const VPORT: u32 = 0;
    /// A flow table.
    pub const FLOW_TABLE: u32 = 1;
    /// A transport interface receive.
    pub const TIR: u32 = 2;
    /// A sampler of flows.
    pub const FLOW_SAMPLER: u32 = 6;
    /// The wire.
    pub const UPLINK: u32 = 8;
    /// The root of another type of tables.
    pub const TABLE_TYPE: u32 = 0xa;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_table() {
        let mut create = CreateFlowTableIn::new();
        create.set(CreateFlowTableIn::TABLE_TYPE, TableType::RdmaRx as u32);
        let context = create.context_mut();
        context.set(FlowTableContext::TABLE_MISS_ACTION, miss_action::TABLE);
        context.set(FlowTableContext::LEVEL, 66).set(FlowTableContext::LOG_SIZE, 16);
        context.set(FlowTableContext::TABLE_MISS_ID, 0x1234);
        assert_eq!(create.bytes()[0x10..0x20], [7, 0, 0, 0, 0, 0, 0, 0, 1, 66, 0, 16, 0, 0, 0x12, 0x34]);
    }

    #[test]
    fn golden_entry() {
        let mut set = SetFteIn::new();
        set.set(SetFteIn::FLOW_INDEX, 5).set(SetFteIn::MODIFY_ENABLE_MASK, modify_entry::DESTINATIONS);
        let context = set.context_mut();
        context.set(FlowContext::GROUP_ID, 3).set(FlowContext::ACTION, action::FORWARD | action::COUNT);
        context.set(FlowContext::DESTINATION_LIST_SIZE, 2).set(FlowContext::FLOW_COUNTER_LIST_SIZE, 1);
        let value = context.value_mut();
        value.outer_mut().set(MatchLayers::IP_VERSION, 6).set(MatchLayers::CVLAN_TAG, 1);
        value.outer_mut().set(MatchLayers::TCP_FLAGS, 0x1ff);
        value.misc_mut().set(MatchMisc::BTH_DST_QP, 0x123456).set(MatchMisc::VXLAN_VNI, 0xabcdef);
        let bytes = set.bytes();
        assert_eq!(bytes[0x18..0x24], [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(bytes[0x44..0x58], [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 1]);
        assert_eq!(bytes[0x90..0x94], [0, 0, 0x8d, 0xff]);
        assert_eq!(bytes[0xd4..0xd7], [0xab, 0xcd, 0xef]);
        assert_eq!(bytes[0xe8..0xec], [0, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn golden_group() {
        let mut group = CreateFlowGroupIn::new();
        group.set(CreateFlowGroupIn::START_FLOW_INDEX, 4096).set(CreateFlowGroupIn::END_FLOW_INDEX, 8191);
        group.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, criteria::OUTER | criteria::INNER);
        group.criteria_mut().inner_mut().set(MatchLayers::DST_31_0, u32::MAX);
        let bytes = group.bytes();
        assert_eq!((bytes[0x1e], bytes[0x26], bytes[0x3f]), (0x10, 0x1f, 5));
        assert_eq!(bytes[0xfc..0x100], [0xff; 4]);
    }
}
