//! Tags of definers: what entries of the format `MATCH` compare ([`crate::ste`]). A definer object has one of these formats, and a mask
//! over its 32 bytes.
//!
//! Only the fields that softhca compares are here. Others of the formats say whether checksums are right and headers whole, how
//! a packet came, and numbers of chance; definers with a mask over them are refused.
//!
//! Source: mlx5dv (rdma-core, `providers/mlx5/mlx5_ifc.h`, `dr_ste_v1.c`, field use). The public manual does not have it.

use crate::layout::layout;

layout! {
    /// Tag of format 0: layer 2, registers C0 and C1.
    pub struct Definer0[0x20] {
        /// Register C0.
        METADATA_REG_C_0: 0x0 [31:0];
        /// Register C1.
        METADATA_REG_C_1: 0x4 [31:0];
        /// Destination address, its first 4 bytes.
        DMAC_47_16: 0x8 [31:0];
        /// The last 2.
        DMAC_15_0: 0xc [31:16];
        /// Ethertype behind all tags.
        ETHERTYPE: 0xc [15:0];
        /// 1 = a fragment.
        IP_FRAG: 0x10 [28:28];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0x10 [21:20];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0x10 [19:18];
        /// 1 = a customer's tag, 2 = a service tag.
        FIRST_VLAN_QUALIFIER: 0x10 [17:16];
        /// Priority, drop eligible, VLAN.
        FIRST_VLAN_TCI: 0x10 [15:0];
        /// The second tag. 1 = a customer's tag, 2 = a service tag.
        SECOND_VLAN_QUALIFIER: 0x14 [17:16];
        /// The second tag. Priority, drop eligible, VLAN.
        SECOND_VLAN_TCI: 0x14 [15:0];
        /// Source address, its first 4 bytes.
        SMAC_47_16: 0x18 [31:0];
        /// The last 2.
        SMAC_15_0: 0x1c [31:16];
        /// Flags of TCP: its bits from FIN on.
        TCP_FLAGS: 0x1c [7:0];
    }

    /// Tag of format 2: IP, ports, flags of TCP, register A.
    pub struct Definer2[0x20] {
        /// Register A.
        METADATA_REG_A: 0x0 [31:0];
        /// Version of IP.
        OUTER_IP_VERSION: 0x4 [31:28];
        /// Words of the IPv4 header.
        OUTER_IP_IHL: 0x4 [27:24];
        /// Differentiated services.
        OUTER_IP_DSCP: 0x4 [23:18];
        /// Congestion notification.
        OUTER_IP_ECN: 0x4 [17:16];
        /// Time to live, hop limit.
        OUTER_IP_TTL: 0x4 [15:8];
        /// Protocol.
        OUTER_IP_PROTOCOL: 0x4 [7:0];
        /// Flow label of IPv6.
        OUTER_IP_FLOW_LABEL: 0x10 [19:0];
        /// Source port.
        OUTER_L4_SPORT: 0x18 [31:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x18 [15:0];
        /// Words of the TCP header.
        OUTER_DATA_OFFSET: 0x1c [31:28];
        /// 1 = a fragment.
        OUTER_IP_FRAG: 0x1c [25:25];
        /// Flags of TCP: its bits from FIN on.
        TCP_FLAGS: 0x1c [24:16];
    }

    /// Tag of format 6: the destination of IPv6, ports, flags of TCP.
    pub struct Definer6[0x20] {
        /// Destination address, word 0.
        DST_IPV6_127_96: 0x0 [31:0];
        /// Destination address, word 1.
        DST_IPV6_95_64: 0x4 [31:0];
        /// Destination address, word 2.
        DST_IPV6_63_32: 0x8 [31:0];
        /// Destination address, word 3.
        DST_IPV6_31_0: 0xc [31:0];
        /// Source port.
        OUTER_L4_SPORT: 0x18 [31:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x18 [15:0];
        /// 1 = a fragment.
        IP_FRAG: 0x1c [25:25];
        /// Flags of TCP: its bits from FIN on.
        TCP_FLAGS: 0x1c [24:16];
    }

    /// Tag of format 16: a tunnel's header, register A, the sender's queue.
    pub struct Definer16[0x20] {
        /// Word 0 of the tunnel's header.
        TUNNEL_HEADER_0: 0x0 [31:0];
        /// Word 1 of the tunnel's header.
        TUNNEL_HEADER_1: 0x4 [31:0];
        /// Word 2 of the tunnel's header.
        TUNNEL_HEADER_2: 0x8 [31:0];
        /// Word 3 of the tunnel's header.
        TUNNEL_HEADER_3: 0xc [31:0];
        /// Register A.
        METADATA_REG_A: 0x14 [31:0];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0x18 [23:22];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0x18 [21:20];
        /// 1 = a customer's tag, 2 = a service tag.
        OUTER_FIRST_VLAN_TYPE: 0x18 [19:18];
        /// 1 = a fragment.
        OUTER_IP_FRAG: 0x1c [30:30];
        /// The send queue that the packet comes from.
        SOURCE_SQN: 0x1c [23:0];
    }

    /// Tag of format 22: 5-tuple of IPv4, layer 2, register C0.
    pub struct Definer22[0x20] {
        /// Source address of IPv4.
        OUTER_IP_SRC_ADDR: 0x0 [31:0];
        /// Destination address of IPv4.
        OUTER_IP_DST_ADDR: 0x4 [31:0];
        /// Source port.
        OUTER_L4_SPORT: 0x8 [31:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x8 [15:0];
        /// 1 = a fragment.
        OUTER_IP_FRAG: 0xc [28:28];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0xc [21:20];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0xc [19:18];
        /// 1 = a customer's tag, 2 = a service tag.
        FIRST_VLAN_QUALIFIER: 0xc [17:16];
        /// Priority, drop eligible, VLAN.
        FIRST_VLAN_TCI: 0xc [15:0];
        /// Register C0.
        METADATA_REG_C_0: 0x10 [31:0];
        /// Destination address, its first 4 bytes.
        OUTER_DMAC_47_16: 0x14 [31:0];
        /// Source address, its first 4 bytes.
        OUTER_SMAC_47_16: 0x18 [31:0];
        /// The last 2.
        OUTER_SMAC_15_0: 0x1c [31:16];
        /// The last 2.
        OUTER_DMAC_15_0: 0x1c [15:0];
    }

    /// Tag of format 24: 5-tuple of IPv4, registers C0 to C3, what is in a tunnel.
    pub struct Definer24[0x20] {
        /// Register C2.
        METADATA_REG_C_2: 0x0 [31:0];
        /// Register C3.
        METADATA_REG_C_3: 0x4 [31:0];
        /// Register C0.
        METADATA_REG_C_0: 0x8 [31:0];
        /// Register C1.
        METADATA_REG_C_1: 0xc [31:0];
        /// Source address of IPv4.
        OUTER_IP_SRC_ADDR: 0x10 [31:0];
        /// Destination address of IPv4.
        OUTER_IP_DST_ADDR: 0x14 [31:0];
        /// Source port.
        OUTER_L4_SPORT: 0x18 [31:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x18 [15:0];
        /// In the tunnel. Protocol.
        INNER_IP_PROTOCOL: 0x1c [31:24];
        /// In the tunnel. 1 = IPv4, 2 = IPv6.
        INNER_L3_TYPE: 0x1c [23:22];
        /// In the tunnel. 1 = TCP, 2 = UDP.
        INNER_L4_TYPE: 0x1c [21:20];
        /// In the tunnel. 1 = a customer's tag, 2 = a service tag.
        INNER_FIRST_VLAN_TYPE: 0x1c [19:18];
        /// In the tunnel. 1 = a fragment.
        INNER_IP_FRAG: 0x1c [17:17];
        /// Protocol.
        OUTER_IP_PROTOCOL: 0x1c [15:8];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0x1c [7:6];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0x1c [5:4];
        /// 1 = a customer's tag, 2 = a service tag.
        OUTER_FIRST_VLAN_TYPE: 0x1c [3:2];
        /// 1 = a fragment.
        OUTER_IP_FRAG: 0x1c [1:1];
    }

    /// Tag of format 25: 5-tuple inside a tunnel, the tunnel's header.
    pub struct Definer25[0x20] {
        /// In the tunnel. Source address of IPv4.
        INNER_IP_SRC_ADDR: 0x0 [31:0];
        /// In the tunnel. Destination address of IPv4.
        INNER_IP_DST_ADDR: 0x4 [31:0];
        /// In the tunnel. Source port.
        INNER_L4_SPORT: 0x8 [31:16];
        /// In the tunnel. Destination port.
        INNER_L4_DPORT: 0x8 [15:0];
        /// Word 0 of the tunnel's header.
        TUNNEL_HEADER_0: 0xc [31:0];
        /// Word 1 of the tunnel's header.
        TUNNEL_HEADER_1: 0x10 [31:0];
        /// In the tunnel. 1 = IPv4, 2 = IPv6.
        INNER_L3_TYPE: 0x18 [29:28];
        /// In the tunnel. 1 = TCP, 2 = UDP.
        INNER_L4_TYPE: 0x18 [27:26];
        /// In the tunnel. 1 = a customer's tag, 2 = a service tag.
        INNER_FIRST_VLAN_TYPE: 0x18 [25:24];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0x18 [21:20];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0x18 [19:18];
        /// 1 = a customer's tag, 2 = a service tag.
        OUTER_FIRST_VLAN_TYPE: 0x18 [17:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x18 [15:0];
    }

    /// Tag of format 26: the source of IPv6, tags, the source of layer 2, flags of TCP.
    pub struct Definer26[0x20] {
        /// Source address, word 0.
        SRC_IPV6_127_96: 0x0 [31:0];
        /// Source address, word 1.
        SRC_IPV6_95_64: 0x4 [31:0];
        /// Source address, word 2.
        SRC_IPV6_63_32: 0x8 [31:0];
        /// Source address, word 3.
        SRC_IPV6_31_0: 0xc [31:0];
        /// 1 = a fragment.
        IP_FRAG: 0x10 [28:28];
        /// 1 = IPv4, 2 = IPv6.
        L3_TYPE: 0x10 [21:20];
        /// 1 = TCP, 2 = UDP.
        L4_TYPE: 0x10 [19:18];
        /// 1 = a customer's tag, 2 = a service tag.
        FIRST_VLAN_TYPE: 0x10 [17:16];
        /// Priority, drop eligible, VLAN.
        FIRST_VLAN_TCI: 0x10 [15:0];
        /// The second tag. 1 = a customer's tag, 2 = a service tag.
        SECOND_VLAN_TYPE: 0x14 [17:16];
        /// The second tag. Priority, drop eligible, VLAN.
        SECOND_VLAN_TCI: 0x14 [15:0];
        /// Source address, its first 4 bytes.
        SMAC_47_16: 0x18 [31:0];
        /// The last 2.
        SMAC_15_0: 0x1c [31:16];
        /// Protocol.
        IP_PROTOCOL: 0x1c [15:8];
        /// Flags of TCP: its bits from FIN on.
        TCP_FLAGS: 0x1c [7:0];
    }

    /// Tag of format 28: 5-tuples outside and inside a tunnel.
    pub struct Definer28[0x20] {
        /// In the tunnel. Source port.
        INNER_L4_SPORT: 0x0 [31:16];
        /// In the tunnel. Destination port.
        INNER_L4_DPORT: 0x0 [15:0];
        /// In the tunnel. Source address of IPv4.
        INNER_IP_SRC_ADDR: 0x8 [31:0];
        /// In the tunnel. Destination address of IPv4.
        INNER_IP_DST_ADDR: 0xc [31:0];
        /// Source address of IPv4.
        OUTER_IP_SRC_ADDR: 0x10 [31:0];
        /// Destination address of IPv4.
        OUTER_IP_DST_ADDR: 0x14 [31:0];
        /// Source port.
        OUTER_L4_SPORT: 0x18 [31:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x18 [15:0];
        /// In the tunnel. Protocol.
        INNER_IP_PROTOCOL: 0x1c [31:24];
        /// In the tunnel. 1 = IPv4, 2 = IPv6.
        INNER_L3_TYPE: 0x1c [23:22];
        /// In the tunnel. 1 = TCP, 2 = UDP.
        INNER_L4_TYPE: 0x1c [21:20];
        /// In the tunnel. 1 = a customer's tag, 2 = a service tag.
        INNER_FIRST_VLAN_TYPE: 0x1c [19:18];
        /// In the tunnel. 1 = a fragment.
        INNER_IP_FRAG: 0x1c [17:17];
        /// Protocol.
        OUTER_IP_PROTOCOL: 0x1c [15:8];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0x1c [7:6];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0x1c [5:4];
        /// 1 = a customer's tag, 2 = a service tag.
        OUTER_FIRST_VLAN_TYPE: 0x1c [3:2];
        /// 1 = a fragment.
        OUTER_IP_FRAG: 0x1c [1:1];
    }

    /// Tag of format 33: 5-tuple of IPv4, a tag, length of the header, time to live.
    pub struct Definer33[0x20] {
        /// Source address of IPv4.
        OUTER_IP_SRC_ADDR: 0x0 [31:0];
        /// Destination address of IPv4.
        OUTER_IP_DST_ADDR: 0x4 [31:0];
        /// Source port.
        OUTER_L4_SPORT: 0x8 [31:16];
        /// Destination port.
        OUTER_L4_DPORT: 0x8 [15:0];
        /// 1 = a fragment.
        OUTER_IP_FRAG: 0xc [28:28];
        /// 1 = IPv4, 2 = IPv6.
        OUTER_L3_TYPE: 0xc [21:20];
        /// 1 = TCP, 2 = UDP.
        OUTER_L4_TYPE: 0xc [19:18];
        /// 1 = a customer's tag, 2 = a service tag.
        OUTER_FIRST_VLAN_TYPE: 0xc [17:16];
        /// Priority, drop eligible, VLAN.
        OUTER_FIRST_VLAN_TCI: 0xc [15:0];
        /// Version of IP.
        OUTER_IP_VERSION: 0x1c [31:28];
        /// Words of the IPv4 header.
        OUTER_IP_IHL: 0x1c [27:24];
        /// Time to live, hop limit.
        OUTER_IP_TTL: 0x1c [15:8];
        /// Protocol.
        OUTER_IP_PROTOCOL: 0x1c [7:0];
    }
}

/// Formats of definers, as objects name them and the capabilities list them (`match_definer_format_supported`).
pub const FORMATS: &[u32] = &[0, 2, 6, 16, 22, 24, 25, 26, 28, 33];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_tags() {
        let mut t = Definer22::new();
        t.set(Definer22::OUTER_IP_SRC_ADDR, 0x0a00_0001).set(Definer22::OUTER_L4_DPORT, 4791);
        t.set(Definer22::OUTER_L3_TYPE, 1)
            .set(Definer22::OUTER_L4_TYPE, 2)
            .set(Definer22::FIRST_VLAN_TCI, 0x2005);
        t.set(Definer22::OUTER_SMAC_15_0, 0x1234);
        assert_eq!(t.bytes()[..4], [10, 0, 0, 1]);
        assert_eq!(t.bytes()[8..16], [0, 0, 0x12, 0xb7, 0, 0x18, 0x20, 5]);
        assert_eq!(t.bytes()[28..], [0x12, 0x34, 0, 0]);
        let mut t = Definer2::new();
        t.set(Definer2::OUTER_IP_VERSION, 4).set(Definer2::OUTER_IP_IHL, 5).set(Definer2::OUTER_IP_DSCP, 1);
        t.set(Definer2::TCP_FLAGS, 0x102).set(Definer2::OUTER_IP_FRAG, 1);
        assert_eq!(t.bytes()[4..8], [0x45, 4, 0, 0]);
        assert_eq!(t.bytes()[28..], [3, 2, 0, 0]);
    }
}
