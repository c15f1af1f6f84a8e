//! Headers of Ethernet frames: VLAN tag, IPv4, IPv6, TCP, UDP, VXLAN, GRE.
//!
//! Source: IEEE 802.3 3.2 (frame), IEEE 802.1Q 9.6 (tags), RFC 791 (IPv4), RFC 8200 (IPv6), RFC 9293 (TCP), RFC 768 (UDP),
//! RFC 7348 (VXLAN), RFC 2784 and RFC 2890 (GRE), RFC 4302 (AH), RFC 4303 (ESP).

use crate::layout::layout;

/// Bytes of a MAC address.
pub const MAC_SIZE: usize = 6;
/// Bytes of the two addresses.
pub const ADDRESSES_SIZE: usize = 2 * MAC_SIZE;
/// Bytes of a frame's header without tags: addresses and EtherType.
pub const HEADER_SIZE: usize = ADDRESSES_SIZE + 2;
/// Bytes of the frame check sequence.
pub const FCS_SIZE: usize = 4;
/// The shortest frame, without its frame check sequence.
pub const MIN_FRAME: usize = 60;
/// UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;
/// UDP port of Geneve (RFC 8926).
pub const GENEVE_PORT: u16 = 6081;
/// UDP port of RoCE version 2 (IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// EtherTypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Transparent Ethernet bridging: within GRE, an Ethernet frame.
    pub const ETHERNET: u16 = 0x6558;
    /// Customer VLAN tag.
    pub const C_TAG: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MAC control: pause.
    pub const MAC_CONTROL: u16 = 0x8808;
    /// Service VLAN tag.
    pub const S_TAG: u16 = 0x88a8;
    /// RoCE version 1: a GRH follows (IBTA annex A16).
    pub const ROCE: u16 = 0x8915;
}

/// Protocol numbers of IP.
pub mod protocol {
    /// Hop-by-hop options of IPv6.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP of IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// Routing header of IPv6.
    pub const ROUTING: u8 = 43;
    /// Fragment header of IPv6.
    pub const FRAGMENT: u8 = 44;
    /// GRE.
    pub const GRE: u8 = 47;
    /// Encapsulating security payload.
    pub const ESP: u8 = 50;
    /// Authentication header.
    pub const AH: u8 = 51;
    /// ICMP of IPv6.
    pub const ICMPV6: u8 = 58;
    /// No next header.
    pub const NONE: u8 = 59;
    /// Destination options of IPv6.
    pub const DESTINATION: u8 = 60;
    /// Mobility header of IPv6.
    pub const MOBILITY: u8 = 135;
}

/// Bits of [`Tcp::FLAGS`].
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u32 = 1 << 0;
    /// Synchronize sequence numbers.
    pub const SYN: u32 = 1 << 1;
    /// Reset.
    pub const RST: u32 = 1 << 2;
    /// Push.
    pub const PSH: u32 = 1 << 3;
    /// The acknowledgement number counts.
    pub const ACK: u32 = 1 << 4;
    /// Congestion window reduced.
    pub const CWR: u32 = 1 << 7;
}

layout! {
    /// VLAN tag, 4 bytes, behind the addresses; the EtherType follows.
    pub struct VlanTag[4] {
        /// [`ethertype::C_TAG`] or [`ethertype::S_TAG`].
        TPID: 0x0 [31:16];
        /// The three fields below.
        TCI: 0x0 [15:0];
        /// Priority.
        PCP: 0x0 [15:13];
        /// Drop eligible.
        DEI: 0x0 [12:12];
        /// VLAN.
        VID: 0x0 [11:0];
    }

    /// IPv4 header, 20 bytes, options not counted.
    pub struct Ipv4[20] {
        /// 4.
        VERSION: 0x0 [31:28];
        /// Length of the header in 4-byte words.
        IHL: 0x0 [27:24];
        /// Differentiated services.
        DSCP: 0x0 [23:18];
        /// Explicit congestion notification.
        ECN: 0x0 [17:16];
        /// Bytes of the datagram, header included.
        TOTAL_LENGTH: 0x0 [15:0];
        /// Identification.
        ID: 0x4 [31:16];
        /// Don't fragment.
        DF: 0x4 [14:14];
        /// More fragments.
        MF: 0x4 [13:13];
        /// Place of the fragment in 8-byte units.
        FRAGMENT_OFFSET: 0x4 [12:0];
        /// Time to live.
        TTL: 0x8 [31:24];
        /// [`protocol`].
        PROTOCOL: 0x8 [23:16];
        /// Checksum of the header.
        CHECKSUM: 0x8 [15:0];
        /// Source address.
        SOURCE: 0xc [31:0];
        /// Destination address.
        DESTINATION: 0x10 [31:0];
    }

    /// IPv6 header, 40 bytes.
    pub struct Ipv6[40] {
        /// 6.
        VERSION: 0x0 [31:28];
        /// Differentiated services.
        DSCP: 0x0 [27:22];
        /// Explicit congestion notification.
        ECN: 0x0 [21:20];
        /// Flow label.
        FLOW_LABEL: 0x0 [19:0];
        /// Bytes behind this header.
        PAYLOAD_LENGTH: 0x4 [31:16];
        /// [`protocol`] of what follows.
        NEXT_HEADER: 0x4 [15:8];
        /// Hop limit.
        HOP_LIMIT: 0x4 [7:0];
        /// Source address, first half.
        SOURCE_H: 0x8 u64;
        /// Source address, second half.
        SOURCE_L: 0x10 u64;
        /// Destination address, first half.
        DESTINATION_H: 0x18 u64;
        /// Destination address, second half.
        DESTINATION_L: 0x20 u64;
    }

    /// First 8 bytes of an extension header of IPv6; all of a fragment header.
    pub struct Ipv6Extension[8] {
        /// [`protocol`] of what follows.
        NEXT_HEADER: 0x0 [31:24];
        /// Length in 8-byte units, the first not counted. Not in a fragment header.
        LENGTH: 0x0 [23:16];
        /// Fragment header: place of the fragment in 8-byte units.
        FRAGMENT_OFFSET: 0x0 [15:3];
        /// Fragment header: more fragments.
        MF: 0x0 [0:0];
        /// Fragment header: identification.
        ID: 0x4 [31:0];
    }

    /// TCP header, 20 bytes, options not counted.
    pub struct Tcp[20] {
        /// Source port.
        SOURCE: 0x0 [31:16];
        /// Destination port.
        DESTINATION: 0x0 [15:0];
        /// Sequence number.
        SEQUENCE: 0x4 [31:0];
        /// Acknowledgement number.
        ACKNOWLEDGEMENT: 0x8 [31:0];
        /// Length of the header in 4-byte words.
        DATA_OFFSET: 0xc [31:28];
        /// [`tcp_flags`]; the ninth bit is the old nonce sum.
        FLAGS: 0xc [24:16];
        /// Window.
        WINDOW: 0xc [15:0];
        /// Checksum.
        CHECKSUM: 0x10 [31:16];
        /// Urgent pointer.
        URGENT: 0x10 [15:0];
    }

    /// UDP header, 8 bytes.
    pub struct Udp[8] {
        /// Source port.
        SOURCE: 0x0 [31:16];
        /// Destination port.
        DESTINATION: 0x0 [15:0];
        /// Bytes of header and payload.
        LENGTH: 0x4 [31:16];
        /// Checksum; 0 = none.
        CHECKSUM: 0x4 [15:0];
    }

    /// VXLAN header, 8 bytes; an Ethernet frame follows.
    pub struct Vxlan[8] {
        /// 1 = the VNI is valid.
        VNI_VALID: 0x0 [27:27];
        /// VXLAN network identifier.
        VNI: 0x4 [31:8];
    }

    /// Geneve header, 8 bytes (RFC 8926); its options follow.
    pub struct Geneve[8] {
        /// 0.
        VERSION: 0x0 [31:30];
        /// Length of the options, in words.
        OPTIONS: 0x0 [29:24];
        /// 1 = a control packet.
        CONTROL: 0x0 [23:23];
        /// [`ethertype`] of what follows.
        PROTOCOL: 0x0 [15:0];
        /// Virtual network identifier.
        VNI: 0x4 [31:8];
    }

    /// First word of a GRE header. Checksum, key and sequence number follow, each if its bit is set, 4 bytes each.
    pub struct Gre[4] {
        /// 1 = there is a checksum.
        C: 0x0 [31:31];
        /// 1 = there is routing (RFC 1701).
        R: 0x0 [30:30];
        /// 1 = there is a key.
        K: 0x0 [29:29];
        /// 1 = there is a sequence number.
        S: 0x0 [28:28];
        /// Of version 1: 1 = there is a number of what is acknowledged, behind the others.
        A: 0x0 [23:23];
        /// 0, or 1 (RFC 2637).
        VERSION: 0x0 [18:16];
        /// [`ethertype`] of what follows.
        PROTOCOL: 0x0 [15:0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let mut ip = Ipv4::new();
        ip.set(Ipv4::VERSION, 4).set(Ipv4::IHL, 5).set(Ipv4::ECN, 2).set(Ipv4::TOTAL_LENGTH, 0x54);
        ip.set(Ipv4::DF, 1).set(Ipv4::TTL, 64).set(Ipv4::PROTOCOL, protocol::UDP.into());
        assert_eq!(ip.bytes()[..12], [0x45, 2, 0, 0x54, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        let mut ip = Ipv6::new();
        ip.set(Ipv6::VERSION, 6).set(Ipv6::DSCP, 0x3f).set(Ipv6::FLOW_LABEL, 0xabcde);
        assert_eq!(ip.bytes()[..4], [0x6f, 0xca, 0xbc, 0xde]);
        let mut tcp = Tcp::new();
        tcp.set(Tcp::DATA_OFFSET, 5).set(Tcp::FLAGS, tcp_flags::ACK | tcp_flags::PSH);
        assert_eq!(tcp.bytes()[12..14], [0x50, 0x18]);
        let mut tag = VlanTag::new();
        tag.set(VlanTag::TPID, ethertype::C_TAG.into()).set(VlanTag::PCP, 5).set(VlanTag::VID, 0x123);
        assert_eq!(*tag.bytes(), [0x81, 0, 0xa1, 0x23]);
        let mut fragment = Ipv6Extension::new();
        fragment.set(Ipv6Extension::FRAGMENT_OFFSET, 1).set(Ipv6Extension::MF, 1);
        assert_eq!(fragment.bytes()[..4], [0, 0, 0, 9]);
    }
}
