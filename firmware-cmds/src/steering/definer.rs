//! Definers: which fields entries of the format `MATCH` compare ([`hca_spec::definer`]).
//!
//! A format is a list of fields, each a part of a 32-byte tag; a definer is a format and a mask over its tag. The tag of a packet
//! under the mask is both what an entry compares and what makes the number of an entry in a table.

use hca_spec::definer::*;
use hca_spec::layout::{Field, be32, put_be32};

use super::frame::Passing;
use super::tags::View;

/// Bytes of a tag.
pub(crate) const TAG_SIZE: usize = 0x20;

/// A tag, or a mask over one.
pub(crate) type Tag = [u8; TAG_SIZE];

/// What an entry compares, as an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Definer {
    /// Its format: one of [`FORMATS`].
    pub(crate) format: u32,
    /// What of its tag is compared.
    pub(crate) mask: Tag,
}

/// A field of outer or inner layers.
#[derive(Debug, Clone, Copy)]
enum Layer {
    DmacHigh,
    DmacLow,
    SmacHigh,
    SmacLow,
    Ethertype,
    Fragment,
    L3Type,
    L4Type,
    Qualifier(usize),
    Tci(usize),
    Flags,
    Version,
    HeaderLength,
    Dscp,
    Ecn,
    Ttl,
    Protocol,
    FlowLabel,
    SourcePort,
    DestinationPort,
    DataOffset,
    Source4,
    Destination4,
    Source6(usize),
    Destination6(usize),
}

/// Where a part comes from.
#[derive(Debug, Clone, Copy)]
enum Of {
    Outer(Layer),
    Inner(Layer),
    /// A register C.
    C(usize),
    /// Register A.
    A,
    /// A word of a tunnel's header.
    Tunnel(usize),
    /// The queue that the packet comes from.
    Queue,
}

/// A part of a tag.
struct Part {
    offset: usize,
    shift: u32,
    max: u32,
    of: Of,
}

impl Part {
    const fn new<L>(field: Field<L>, of: Of) -> Self {
        Self { offset: field.offset(), shift: field.shift(), max: field.max(), of }
    }

    fn put(&self, tag: &mut Tag, value: u32) {
        let word = be32(tag, self.offset);
        put_be32(tag, self.offset, word | (value & self.max) << self.shift);
    }
}

macro_rules! parts {
    ($format:ident: $($field:ident => $of:expr,)*) => { [$(Part::new($format::$field, $of)),*] };
}

const FORMAT_0: &[Part] = &parts!(Definer0:
    METADATA_REG_C_0 => Of::C(0),
    METADATA_REG_C_1 => Of::C(1),
    DMAC_47_16 => Of::Outer(Layer::DmacHigh),
    DMAC_15_0 => Of::Outer(Layer::DmacLow),
    ETHERTYPE => Of::Outer(Layer::Ethertype),
    IP_FRAG => Of::Outer(Layer::Fragment),
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    FIRST_VLAN_QUALIFIER => Of::Outer(Layer::Qualifier(0)),
    FIRST_VLAN_TCI => Of::Outer(Layer::Tci(0)),
    SECOND_VLAN_QUALIFIER => Of::Outer(Layer::Qualifier(1)),
    SECOND_VLAN_TCI => Of::Outer(Layer::Tci(1)),
    SMAC_47_16 => Of::Outer(Layer::SmacHigh),
    SMAC_15_0 => Of::Outer(Layer::SmacLow),
    TCP_FLAGS => Of::Outer(Layer::Flags),
);
const FORMAT_2: &[Part] = &parts!(Definer2:
    METADATA_REG_A => Of::A,
    OUTER_IP_VERSION => Of::Outer(Layer::Version),
    OUTER_IP_IHL => Of::Outer(Layer::HeaderLength),
    OUTER_IP_DSCP => Of::Outer(Layer::Dscp),
    OUTER_IP_ECN => Of::Outer(Layer::Ecn),
    OUTER_IP_TTL => Of::Outer(Layer::Ttl),
    OUTER_IP_PROTOCOL => Of::Outer(Layer::Protocol),
    OUTER_IP_FLOW_LABEL => Of::Outer(Layer::FlowLabel),
    OUTER_L4_SPORT => Of::Outer(Layer::SourcePort),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
    OUTER_DATA_OFFSET => Of::Outer(Layer::DataOffset),
    OUTER_IP_FRAG => Of::Outer(Layer::Fragment),
    TCP_FLAGS => Of::Outer(Layer::Flags),
);
const FORMAT_6: &[Part] = &parts!(Definer6:
    DST_IPV6_127_96 => Of::Outer(Layer::Destination6(0)),
    DST_IPV6_95_64 => Of::Outer(Layer::Destination6(1)),
    DST_IPV6_63_32 => Of::Outer(Layer::Destination6(2)),
    DST_IPV6_31_0 => Of::Outer(Layer::Destination6(3)),
    OUTER_L4_SPORT => Of::Outer(Layer::SourcePort),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
    IP_FRAG => Of::Outer(Layer::Fragment),
    TCP_FLAGS => Of::Outer(Layer::Flags),
);
const FORMAT_16: &[Part] = &parts!(Definer16:
    TUNNEL_HEADER_0 => Of::Tunnel(0),
    TUNNEL_HEADER_1 => Of::Tunnel(1),
    TUNNEL_HEADER_2 => Of::Tunnel(2),
    TUNNEL_HEADER_3 => Of::Tunnel(3),
    METADATA_REG_A => Of::A,
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    OUTER_FIRST_VLAN_TYPE => Of::Outer(Layer::Qualifier(0)),
    OUTER_IP_FRAG => Of::Outer(Layer::Fragment),
    SOURCE_SQN => Of::Queue,
);
const FORMAT_22: &[Part] = &parts!(Definer22:
    OUTER_IP_SRC_ADDR => Of::Outer(Layer::Source4),
    OUTER_IP_DST_ADDR => Of::Outer(Layer::Destination4),
    OUTER_L4_SPORT => Of::Outer(Layer::SourcePort),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
    OUTER_IP_FRAG => Of::Outer(Layer::Fragment),
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    FIRST_VLAN_QUALIFIER => Of::Outer(Layer::Qualifier(0)),
    FIRST_VLAN_TCI => Of::Outer(Layer::Tci(0)),
    METADATA_REG_C_0 => Of::C(0),
    OUTER_DMAC_47_16 => Of::Outer(Layer::DmacHigh),
    OUTER_SMAC_47_16 => Of::Outer(Layer::SmacHigh),
    OUTER_SMAC_15_0 => Of::Outer(Layer::SmacLow),
    OUTER_DMAC_15_0 => Of::Outer(Layer::DmacLow),
);
const FORMAT_24: &[Part] = &parts!(Definer24:
    METADATA_REG_C_2 => Of::C(2),
    METADATA_REG_C_3 => Of::C(3),
    METADATA_REG_C_0 => Of::C(0),
    METADATA_REG_C_1 => Of::C(1),
    OUTER_IP_SRC_ADDR => Of::Outer(Layer::Source4),
    OUTER_IP_DST_ADDR => Of::Outer(Layer::Destination4),
    OUTER_L4_SPORT => Of::Outer(Layer::SourcePort),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
    INNER_IP_PROTOCOL => Of::Inner(Layer::Protocol),
    INNER_L3_TYPE => Of::Inner(Layer::L3Type),
    INNER_L4_TYPE => Of::Inner(Layer::L4Type),
    INNER_FIRST_VLAN_TYPE => Of::Inner(Layer::Qualifier(0)),
    INNER_IP_FRAG => Of::Inner(Layer::Fragment),
    OUTER_IP_PROTOCOL => Of::Outer(Layer::Protocol),
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    OUTER_FIRST_VLAN_TYPE => Of::Outer(Layer::Qualifier(0)),
    OUTER_IP_FRAG => Of::Outer(Layer::Fragment),
);
const FORMAT_25: &[Part] = &parts!(Definer25:
    INNER_IP_SRC_ADDR => Of::Inner(Layer::Source4),
    INNER_IP_DST_ADDR => Of::Inner(Layer::Destination4),
    INNER_L4_SPORT => Of::Inner(Layer::SourcePort),
    INNER_L4_DPORT => Of::Inner(Layer::DestinationPort),
    TUNNEL_HEADER_0 => Of::Tunnel(0),
    TUNNEL_HEADER_1 => Of::Tunnel(1),
    INNER_L3_TYPE => Of::Inner(Layer::L3Type),
    INNER_L4_TYPE => Of::Inner(Layer::L4Type),
    INNER_FIRST_VLAN_TYPE => Of::Inner(Layer::Qualifier(0)),
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    OUTER_FIRST_VLAN_TYPE => Of::Outer(Layer::Qualifier(0)),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
);
const FORMAT_26: &[Part] = &parts!(Definer26:
    SRC_IPV6_127_96 => Of::Outer(Layer::Source6(0)),
    SRC_IPV6_95_64 => Of::Outer(Layer::Source6(1)),
    SRC_IPV6_63_32 => Of::Outer(Layer::Source6(2)),
    SRC_IPV6_31_0 => Of::Outer(Layer::Source6(3)),
    IP_FRAG => Of::Outer(Layer::Fragment),
    L3_TYPE => Of::Outer(Layer::L3Type),
    L4_TYPE => Of::Outer(Layer::L4Type),
    FIRST_VLAN_TYPE => Of::Outer(Layer::Qualifier(0)),
    FIRST_VLAN_TCI => Of::Outer(Layer::Tci(0)),
    SECOND_VLAN_TYPE => Of::Outer(Layer::Qualifier(1)),
    SECOND_VLAN_TCI => Of::Outer(Layer::Tci(1)),
    SMAC_47_16 => Of::Outer(Layer::SmacHigh),
    SMAC_15_0 => Of::Outer(Layer::SmacLow),
    IP_PROTOCOL => Of::Outer(Layer::Protocol),
    TCP_FLAGS => Of::Outer(Layer::Flags),
);
const FORMAT_28: &[Part] = &parts!(Definer28:
    INNER_L4_SPORT => Of::Inner(Layer::SourcePort),
    INNER_L4_DPORT => Of::Inner(Layer::DestinationPort),
    INNER_IP_SRC_ADDR => Of::Inner(Layer::Source4),
    INNER_IP_DST_ADDR => Of::Inner(Layer::Destination4),
    OUTER_IP_SRC_ADDR => Of::Outer(Layer::Source4),
    OUTER_IP_DST_ADDR => Of::Outer(Layer::Destination4),
    OUTER_L4_SPORT => Of::Outer(Layer::SourcePort),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
    INNER_IP_PROTOCOL => Of::Inner(Layer::Protocol),
    INNER_L3_TYPE => Of::Inner(Layer::L3Type),
    INNER_L4_TYPE => Of::Inner(Layer::L4Type),
    INNER_FIRST_VLAN_TYPE => Of::Inner(Layer::Qualifier(0)),
    INNER_IP_FRAG => Of::Inner(Layer::Fragment),
    OUTER_IP_PROTOCOL => Of::Outer(Layer::Protocol),
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    OUTER_FIRST_VLAN_TYPE => Of::Outer(Layer::Qualifier(0)),
    OUTER_IP_FRAG => Of::Outer(Layer::Fragment),
);
const FORMAT_33: &[Part] = &parts!(Definer33:
    OUTER_IP_SRC_ADDR => Of::Outer(Layer::Source4),
    OUTER_IP_DST_ADDR => Of::Outer(Layer::Destination4),
    OUTER_L4_SPORT => Of::Outer(Layer::SourcePort),
    OUTER_L4_DPORT => Of::Outer(Layer::DestinationPort),
    OUTER_IP_FRAG => Of::Outer(Layer::Fragment),
    OUTER_L3_TYPE => Of::Outer(Layer::L3Type),
    OUTER_L4_TYPE => Of::Outer(Layer::L4Type),
    OUTER_FIRST_VLAN_TYPE => Of::Outer(Layer::Qualifier(0)),
    OUTER_FIRST_VLAN_TCI => Of::Outer(Layer::Tci(0)),
    OUTER_IP_VERSION => Of::Outer(Layer::Version),
    OUTER_IP_IHL => Of::Outer(Layer::HeaderLength),
    OUTER_IP_TTL => Of::Outer(Layer::Ttl),
    OUTER_IP_PROTOCOL => Of::Outer(Layer::Protocol),
);

/// The parts of a format. `None`: there is no such format here.
fn parts(format: u32) -> Option<&'static [Part]> {
    Some(match format {
        0 => FORMAT_0,
        2 => FORMAT_2,
        6 => FORMAT_6,
        16 => FORMAT_16,
        22 => FORMAT_22,
        24 => FORMAT_24,
        25 => FORMAT_25,
        26 => FORMAT_26,
        28 => FORMAT_28,
        33 => FORMAT_33,
        _ => return None,
    })
}

impl Layer {
    fn of(self, view: &View<'_>) -> u32 {
        let ip = view.layers.ip.as_ref();
        let [a, b, c, d, e, f] = match self {
            Self::SmacHigh | Self::SmacLow => view.layers.smac,
            _ => view.layers.dmac,
        };
        let tag = |n: usize| view.layers.tags.get(n).copied().flatten();
        let address = |words: Option<[u32; 4]>, n: usize| words.and_then(|w| w.get(n).copied()).unwrap_or(0);
        match self {
            Self::DmacHigh | Self::SmacHigh => u32::from_be_bytes([a, b, c, d]),
            Self::DmacLow | Self::SmacLow => u32::from_be_bytes([0, 0, e, f]),
            Self::Ethertype => view.layers.ethertype.into(),
            Self::Fragment => view.fragment(),
            Self::L3Type => view.l3_type(),
            Self::L4Type => view.l4_type(),
            Self::Qualifier(n) => super::tags::qualifier(tag(n)),
            Self::Tci(n) => super::tags::tci(tag(n)),
            Self::Flags => view.flags(),
            Self::Version => ip.map_or(0, |ip| ip.version.into()),
            Self::HeaderLength => view.ip(4).map_or(0, |_| view.word_at(view.l3, 0) >> 24 & 0xf),
            Self::Dscp => ip.map_or(0, |ip| ip.dscp.into()),
            Self::Ecn => ip.map_or(0, |ip| ip.ecn.into()),
            Self::Ttl => ip.map_or(0, |ip| ip.ttl.into()),
            Self::Protocol => ip.map_or(0, |ip| ip.protocol.into()),
            Self::FlowLabel => ip.map_or(0, |ip| ip.flow_label),
            Self::SourcePort => view.ports() >> 16,
            Self::DestinationPort => view.ports() & 0xffff,
            Self::DataOffset => view.data_offset(),
            Self::Source4 => view.ip(4).map_or(0, |ip| super::tags::last_word(ip.source)),
            Self::Destination4 => view.ip(4).map_or(0, |ip| super::tags::last_word(ip.destination)),
            Self::Source6(n) => address(view.ip(6).map(|ip| super::tags::address(ip.source)), n),
            Self::Destination6(n) => address(view.ip(6).map(|ip| super::tags::address(ip.destination)), n),
        }
    }
}

impl Definer {
    /// What a mask of a format may compare. `None`: there is no such format.
    pub(crate) fn comparable(format: u32) -> Option<Tag> {
        let mut mask = [0; TAG_SIZE];
        parts(format)?.iter().for_each(|part| part.put(&mut mask, u32::MAX));
        Some(mask)
    }

    /// The tag of a packet under the mask.
    pub(super) fn tag(&self, packet: &Passing<'_>) -> Tag {
        let (sight, bytes) = (packet.sight(), packet.bytes());
        let (outer, inner) = (View::outer(sight, bytes), View::inner(sight, bytes));
        let mut tag = [0; TAG_SIZE];
        for part in parts(self.format).unwrap_or_default() {
            let value = match part.of {
                Of::Outer(layer) => layer.of(&outer),
                Of::Inner(layer) => layer.of(&inner),
                Of::C(n) => packet.registers.c.get(n).copied().unwrap_or(0),
                Of::A => packet.metadata(),
                Of::Tunnel(n) => outer.word_at(sight.places.tunnel, n.saturating_mul(4)),
                Of::Queue => sight.key.source_sqn.unwrap_or(0),
            };
            part.put(&mut tag, value);
        }
        tag.iter_mut().zip(self.mask).for_each(|(byte, mask)| *byte &= mask);
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_parts_that_do_not_overlap() {
        for format in FORMATS {
            let mut seen = [0; TAG_SIZE];
            for part in parts(*format).expect("it is listed") {
                assert_eq!(be32(&seen, part.offset) & part.max << part.shift, 0, "format {format}");
                part.put(&mut seen, u32::MAX);
            }
            assert_eq!(Definer::comparable(*format), Some(seen));
        }
        assert_eq!(Definer::comparable(1), None);
    }
}
