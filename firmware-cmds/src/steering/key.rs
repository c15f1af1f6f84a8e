//! What a packet shows to flow tables: its headers as plain fields ([`FlowKey`]), and laid out as groups compare them
//! ([`MatchValue`]).

use hca_spec::flow::{MatchLayers, MatchMisc, MatchMisc2, MatchParam};
use hca_spec::layout::Field;

/// Headers of a packet that entries can compare. Whoever parses the packet fills in what it has; what is `None` or
/// [`L4::None`] is not there, and no entry that compares it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowKey {
    /// Headers of layers 2 to 4.
    pub outer: Layers,
    /// Those inside a tunnel.
    pub inner: Option<Layers>,
    /// The GRE header.
    pub gre: Option<Gre>,
    /// Network identifier of VXLAN, 24 bits.
    pub vxlan_vni: Option<u32>,
    /// The Geneve header.
    pub geneve: Option<Geneve>,
    /// The base transport header of a RoCE packet.
    pub bth: Option<Bth>,
    /// The send queue that the packet comes from: only of packets that are sent.
    pub source_sqn: Option<u32>,
    /// Metadata of the work request (register A): only of packets that are sent.
    pub metadata: Option<u32>,
}

/// Headers of layers 2 to 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layers {
    /// Destination MAC address.
    pub dmac: [u8; 6],
    /// Source MAC address.
    pub smac: [u8; 6],
    /// Ethertype behind all VLAN tags.
    pub ethertype: u16,
    /// VLAN tags, the outermost first.
    pub tags: [Option<Tag>; 2],
    /// The IP header.
    pub ip: Option<Ip>,
    /// What is behind it. Fragments but the first have none.
    pub l4: L4,
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tag {
    /// A service tag (0x88a8); otherwise a customer's (0x8100).
    pub service: bool,
    /// Tag control information: priority, drop eligible, VLAN.
    pub tci: u16,
}

/// An IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ip {
    /// 4 or 6.
    pub version: u8,
    /// Protocol; of IPv6 that behind the extension headers.
    pub protocol: u8,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Congestion notification, 2 bits.
    pub ecn: u8,
    /// The packet is a fragment.
    pub fragment: bool,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Flow label of IPv6, 20 bits.
    pub flow_label: u32,
    /// Source address; an IPv4 address is in the last 4 bytes, the others are 0.
    pub source: [u8; 16],
    /// Destination address, in the same way.
    pub destination: [u8; 16],
}

/// A header behind IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "fields are those of the headers")]
pub enum L4 {
    /// None of those below.
    #[default]
    None,
    /// `flags` has 9 bits: NS, CWR, ECE, URG, ACK, PSH, RST, SYN, FIN.
    Tcp {
        source: u16,
        destination: u16,
        flags: u16,
    },
    Udp {
        source: u16,
        destination: u16,
    },
    /// Encapsulating security payload.
    Esp {
        spi: u32,
    },
}

/// A GRE header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gre {
    /// Protocol type.
    pub protocol: u16,
    /// Its key, if it has one.
    pub key: Option<u32>,
    /// It has a checksum.
    pub checksum: bool,
    /// It has a sequence number.
    pub sequence: bool,
}

/// A Geneve header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Geneve {
    /// Network identifier, 24 bits.
    pub vni: u32,
    /// Control packet.
    pub control: bool,
    /// Protocol type.
    pub protocol: u16,
    /// Length of the options in words, 6 bits.
    pub options: u8,
}

/// What entries compare of a base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bth {
    /// Opcode.
    pub opcode: u8,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
}

/// Which headers a packet has: bits of [`MatchValue`]. Those of the inner packet are shifted by [`INNER_SHIFT`].
pub(super) mod present {
    /// A VLAN tag.
    pub(in crate::steering) const TAG: u32 = 1 << 0;
    /// A second one.
    pub(in crate::steering) const SECOND_TAG: u32 = 1 << 1;
    /// IP of either version.
    pub(in crate::steering) const IP: u32 = 1 << 2;
    pub(in crate::steering) const IPV6: u32 = 1 << 3;
    pub(in crate::steering) const TCP: u32 = 1 << 4;
    pub(in crate::steering) const UDP: u32 = 1 << 5;
    pub(in crate::steering) const ESP: u32 = 1 << 6;
    /// The layers themselves.
    pub(in crate::steering) const LAYERS: u32 = 1 << 7;
    pub(in crate::steering) const GRE: u32 = 1 << 16;
    pub(in crate::steering) const GRE_KEY: u32 = 1 << 17;
    pub(in crate::steering) const VXLAN: u32 = 1 << 18;
    pub(in crate::steering) const BTH: u32 = 1 << 19;
    pub(in crate::steering) const SQN: u32 = 1 << 20;
    pub(in crate::steering) const METADATA: u32 = 1 << 21;
    pub(in crate::steering) const GENEVE: u32 = 1 << 22;
}

/// By how much bits of [`present`] are shifted for the inner packet.
pub(super) const INNER_SHIFT: u32 = 8;

/// Words of [`MatchParam`] that can be compared: those behind have no field that is.
pub(super) const WORDS: usize = MISC_3 + 16;
/// First words of the parts of [`MatchParam`].
pub(super) const OUTER: usize = 0;
pub(super) const MISC: usize = 16;
pub(super) const INNER: usize = 32;
pub(super) const MISC_2: usize = 48;
const MISC_3: usize = 64;

/// A packet as entries compare it: the words of [`MatchParam`], and which headers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchValue {
    pub(super) words: [u32; WORDS],
    /// Bits of [`present`].
    pub(super) present: u32,
}

impl MatchValue {
    #[inline]
    fn put<L>(&mut self, base: usize, field: Field<L>, value: u32) {
        if let Some(word) = self.words.get_mut(base + field.offset() / 4) {
            *word |= (value & field.max()) << field.shift();
        }
    }

    fn put_mac(&mut self, at: usize, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        if let Some([first, second]) = self.words.get_mut(at..).and_then(|w| w.first_chunk_mut()) {
            *first = u32::from_be_bytes([a, b, c, d]);
            *second |= u32::from_be_bytes([e, f, 0, 0]);
        }
    }

    fn put_address(&mut self, at: usize, address: [u8; 16]) {
        let (words, _) = address.as_chunks::<4>();
        let to = self.words.get_mut(at..).unwrap_or_default();
        to.iter_mut().zip(words).for_each(|(to, word)| *to = u32::from_be_bytes(*word));
    }

    /// Layers at word `base`; their bits are shifted by `shift`.
    fn put_layers(&mut self, base: usize, shift: u32, layers: &Layers) {
        let mut has = present::LAYERS;
        self.put_mac(base + MatchLayers::DMAC_47_16.offset() / 4, layers.dmac);
        self.put_mac(base + MatchLayers::SMAC_47_16.offset() / 4, layers.smac);
        self.put(base, MatchLayers::ETHERTYPE, layers.ethertype.into());
        if let Some(tag) = layers.tags[0] {
            has |= present::TAG;
            // Priority, drop eligible and VLAN are side by side, as in a tag.
            self.put(base, TCI, tag.tci.into());
            let kind = if tag.service { MatchLayers::SVLAN_TAG } else { MatchLayers::CVLAN_TAG };
            self.put(base, kind, 1);
        }
        if let Some(ip) = layers.ip {
            has |= present::IP | if ip.version == 6 { present::IPV6 } else { 0 };
            self.put(base, MatchLayers::IP_VERSION, ip.version.into());
            self.put(base, MatchLayers::IP_PROTOCOL, ip.protocol.into());
            self.put(base, MatchLayers::IP_DSCP, ip.dscp.into());
            self.put(base, MatchLayers::IP_ECN, ip.ecn.into());
            self.put(base, MatchLayers::FRAG, ip.fragment.into());
            self.put(base, MatchLayers::TTL_HOPLIMIT, ip.ttl.into());
            self.put_address(base + MatchLayers::SRC_127_96.offset() / 4, ip.source);
            self.put_address(base + MatchLayers::DST_127_96.offset() / 4, ip.destination);
        }
        match layers.l4 {
            L4::None => {}
            L4::Tcp { source, destination, flags } => {
                has |= present::TCP;
                self.put(base, MatchLayers::L4_TYPE, 1);
                self.put(base, MatchLayers::TCP_SPORT, source.into());
                self.put(base, MatchLayers::TCP_DPORT, destination.into());
                self.put(base, MatchLayers::TCP_FLAGS, flags.into());
            }
            L4::Udp { source, destination } => {
                has |= present::UDP;
                self.put(base, MatchLayers::L4_TYPE, 2);
                self.put(base, MatchLayers::UDP_SPORT, source.into());
                self.put(base, MatchLayers::UDP_DPORT, destination.into());
            }
            L4::Esp { .. } => has |= present::ESP,
        }
        if layers.tags[1].is_some() {
            has |= present::SECOND_TAG;
        }
        self.present |= has << shift;
    }

    /// The words as the bytes of [`MatchParam`].
    pub fn param(&self) -> MatchParam {
        param(self.words.iter().copied().enumerate())
    }
}

/// The bytes of words by their number.
pub(super) fn param(words: impl Iterator<Item = (usize, u32)>) -> MatchParam {
    let mut param = MatchParam::new();
    words.for_each(|(at, word)| hca_spec::put_be32(param.bytes_mut(), at * 4, word));
    param
}

/// Priority, drop eligible and VLAN of the first tag in one.
const TCI: Field<MatchLayers> = Field::new("TCI", 0xc, 15, 0, MatchLayers::SIZE);
/// The same of the second tag.
const OUTER_TCI: Field<MatchMisc> = Field::new("OUTER_SECOND_TCI", 0x8, 31, 16, MatchMisc::SIZE);
/// The same of the second tag inside a tunnel.
const INNER_TCI: Field<MatchMisc> = Field::new("INNER_SECOND_TCI", 0x8, 15, 0, MatchMisc::SIZE);

impl FlowKey {
    /// The packet laid out as entries compare it.
    pub fn lay_out(&self) -> MatchValue {
        let mut value = MatchValue { words: [0; WORDS], present: 0 };
        value.put_layers(OUTER, 0, &self.outer);
        if let Some(inner) = &self.inner {
            value.put_layers(INNER, INNER_SHIFT, inner);
        }
        let second = |layers: &Layers| layers.tags[1];
        if let Some(tag) = second(&self.outer) {
            value.put(MISC, OUTER_TCI, tag.tci.into());
            let kind = if tag.service {
                MatchMisc::OUTER_SECOND_SVLAN_TAG
            } else {
                MatchMisc::OUTER_SECOND_CVLAN_TAG
            };
            value.put(MISC, kind, 1);
        }
        if let Some(tag) = self.inner.as_ref().and_then(second) {
            value.put(MISC, INNER_TCI, tag.tci.into());
            let kind = if tag.service {
                MatchMisc::INNER_SECOND_SVLAN_TAG
            } else {
                MatchMisc::INNER_SECOND_CVLAN_TAG
            };
            value.put(MISC, kind, 1);
        }
        let places = [
            (Some(&self.outer), MatchMisc::OUTER_IPV6_FLOW_LABEL, MatchMisc::OUTER_ESP_SPI),
            (self.inner.as_ref(), MatchMisc::INNER_IPV6_FLOW_LABEL, MatchMisc::INNER_ESP_SPI),
        ];
        for (layers, label, spi) in places {
            let Some(layers) = layers else { continue };
            value.put(MISC, label, layers.ip.filter(|ip| ip.version == 6).map_or(0, |ip| ip.flow_label));
            if let L4::Esp { spi: found } = layers.l4 {
                value.put(MISC, spi, found);
            }
        }
        if let Some(gre) = self.gre {
            value.present |= present::GRE | if gre.key.is_some() { present::GRE_KEY } else { 0 };
            value.put(MISC, MatchMisc::GRE_C_PRESENT, gre.checksum.into());
            value.put(MISC, MatchMisc::GRE_K_PRESENT, gre.key.is_some().into());
            value.put(MISC, MatchMisc::GRE_S_PRESENT, gre.sequence.into());
            value.put(MISC, MatchMisc::GRE_PROTOCOL, gre.protocol.into());
            value.put(MISC, MatchMisc::GRE_KEY, gre.key.unwrap_or(0));
        }
        if let Some(vni) = self.vxlan_vni {
            value.present |= present::VXLAN;
            value.put(MISC, MatchMisc::VXLAN_VNI, vni);
        }
        if let Some(geneve) = self.geneve {
            value.present |= present::GENEVE;
            value.put(MISC, MatchMisc::GENEVE_VNI, geneve.vni);
            value.put(MISC, MatchMisc::GENEVE_OAM, geneve.control.into());
            value.put(MISC, MatchMisc::GENEVE_PROTOCOL_TYPE, geneve.protocol.into());
            value.put(MISC, MatchMisc::GENEVE_OPT_LEN, geneve.options.into());
        }
        if let Some(bth) = self.bth {
            value.present |= present::BTH;
            value.put(MISC, MatchMisc::BTH_OPCODE, bth.opcode.into());
            value.put(MISC, MatchMisc::BTH_DST_QP, bth.dest_qp);
        }
        if let Some(sqn) = self.source_sqn {
            value.present |= present::SQN;
            value.put(MISC, MatchMisc::SOURCE_SQN, sqn);
        }
        if let Some(metadata) = self.metadata {
            value.present |= present::METADATA;
            value.put(MISC_2, MatchMisc2::METADATA_REG_A, metadata);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_interface_says() {
        let ip = Ip {
            version: 6,
            protocol: 6,
            dscp: 0x2a,
            ecn: 1,
            ttl: 64,
            flow_label: 0xf_1234,
            ..Ip::default()
        };
        let outer = Layers {
            dmac: [1, 2, 3, 4, 5, 6],
            smac: [7, 8, 9, 10, 11, 12],
            ethertype: 0x86dd,
            tags: [Some(Tag { service: true, tci: 0xe123 }), Some(Tag { service: false, tci: 0x3007 })],
            ip: Some(Ip { source: [0x20; 16], destination: [0x30; 16], ..ip }),
            l4: L4::Tcp { source: 1000, destination: 80, flags: 0x112 },
        };
        let inner = Layers { ethertype: 0x800, l4: L4::Esp { spi: 0x1122_3344 }, ..Layers::default() };
        let key = FlowKey {
            outer,
            inner: Some(inner),
            gre: Some(Gre { protocol: 0x6558, key: Some(0xaabb_ccdd), checksum: false, sequence: true }),
            vxlan_vni: Some(0x0001_0203),
            geneve: Some(Geneve { vni: 0x0004_0506, control: true, protocol: 0x6558, options: 3 }),
            bth: Some(Bth { opcode: 0x64, dest_qp: 0x1_0002 }),
            source_sqn: Some(0x77),
            metadata: Some(5),
        };
        let param = key.lay_out().param();
        let layers = param.outer();
        assert_eq!(layers.bytes()[..16], [7, 8, 9, 10, 11, 12, 0x86, 0xdd, 1, 2, 3, 4, 5, 6, 0xe1, 0x23]);
        assert_eq!((layers.get(MatchLayers::FIRST_PRIO), layers.get(MatchLayers::FIRST_VID)), (7, 0x123));
        assert_eq!((layers.get(MatchLayers::SVLAN_TAG), layers.get(MatchLayers::CVLAN_TAG)), (1, 0));
        assert_eq!((layers.get(MatchLayers::IP_VERSION), layers.get(MatchLayers::IP_PROTOCOL)), (6, 6));
        assert_eq!((layers.get(MatchLayers::IP_DSCP), layers.get(MatchLayers::IP_ECN)), (0x2a, 1));
        assert_eq!((layers.get(MatchLayers::TCP_SPORT), layers.get(MatchLayers::TCP_DPORT)), (1000, 80));
        assert_eq!((layers.get(MatchLayers::UDP_SPORT), layers.get(MatchLayers::TCP_FLAGS)), (0, 0x112));
        assert_eq!(layers.bytes()[0x20..0x24], [0x20; 4]);
        assert_eq!(layers.bytes()[0x3c..], [0x30; 4]);
        let misc = param.misc();
        assert_eq!((misc.get(MatchMisc::OUTER_SECOND_VID), misc.get(MatchMisc::OUTER_SECOND_PRIO)), (7, 1));
        assert_eq!(misc.get(MatchMisc::OUTER_SECOND_CVLAN_TAG), 1);
        assert_eq!((misc.get(MatchMisc::GRE_PROTOCOL), misc.get(MatchMisc::GRE_KEY)), (0x6558, 0xaabb_ccdd));
        assert_eq!((misc.get(MatchMisc::GRE_K_PRESENT), misc.get(MatchMisc::GRE_S_PRESENT)), (1, 1));
        assert_eq!((misc.get(MatchMisc::VXLAN_VNI), misc.get(MatchMisc::BTH_OPCODE)), (0x010203, 0x64));
        assert_eq!((misc.get(MatchMisc::GENEVE_VNI), misc.get(MatchMisc::GENEVE_OPT_LEN)), (0x040506, 3));
        assert_eq!((misc.get(MatchMisc::GENEVE_OAM), misc.get(MatchMisc::GENEVE_PROTOCOL_TYPE)), (1, 0x6558));
        assert_eq!((misc.get(MatchMisc::BTH_DST_QP), misc.get(MatchMisc::SOURCE_SQN)), (0x1_0002, 0x77));
        assert_eq!(misc.get(MatchMisc::OUTER_IPV6_FLOW_LABEL), 0xf_1234);
        assert_eq!(
            (misc.get(MatchMisc::INNER_ESP_SPI), misc.get(MatchMisc::OUTER_ESP_SPI)),
            (0x1122_3344, 0)
        );
        assert_eq!(param.inner().get(MatchLayers::ETHERTYPE), 0x800);
        assert_eq!(param.misc_2().get(MatchMisc2::METADATA_REG_A), 5);
    }
}
