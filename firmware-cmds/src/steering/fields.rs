//! Which fields groups may compare, and what a packet must have for each.
//!
//! Fields that say whether something is there (tags, IP version, fragment, layer 4) compare with every packet. Any other
//! compares only with packets that have its header: a port of TCP never matches UDP, nor anything that has no layer 4.
//!
//! Source: mlx5 driver (`flow_table_fields_supported`, field use). Which packets a field compares with is an inference
//! for all but the ports.

use hca_spec::flow::{MatchLayers, MatchMisc, MatchMisc2, TableType};
use hca_spec::layout::Field;

use super::key::{INNER, INNER_SHIFT, MISC, MISC_2, OUTER, present};

/// A field of the layers: what a packet must have, and its bit in the capability page, if it has one.
type OfLayers = (Field<MatchLayers>, u32, Option<u8>);

/// Fields of layers 2 to 4, outer and inner.
const LAYERS: [OfLayers; 30] = {
    use MatchLayers as L;
    use present::{IP, TAG, TCP, UDP};
    [
        (L::SMAC_47_16, 0, Some(30)),
        (L::SMAC_15_0, 0, Some(30)),
        (L::ETHERTYPE, 0, Some(29)),
        (L::DMAC_47_16, 0, Some(31)),
        (L::DMAC_15_0, 0, Some(31)),
        (L::FIRST_PRIO, TAG, Some(27)),
        (L::FIRST_CFI, TAG, Some(26)),
        (L::FIRST_VID, TAG, Some(25)),
        (L::IP_PROTOCOL, IP, Some(16)),
        (L::IP_DSCP, IP, Some(14)),
        (L::IP_ECN, IP, Some(15)),
        (L::CVLAN_TAG, 0, None),
        (L::SVLAN_TAG, 0, None),
        (L::FRAG, 0, Some(17)),
        (L::IP_VERSION, 0, Some(28)),
        (L::TCP_FLAGS, TCP, Some(9)),
        (L::TCP_SPORT, TCP, Some(11)),
        (L::TCP_DPORT, TCP, Some(10)),
        (L::L4_TYPE, 0, None),
        (L::TTL_HOPLIMIT, IP, Some(24)),
        (L::UDP_SPORT, UDP, Some(13)),
        (L::UDP_DPORT, UDP, Some(12)),
        (L::SRC_127_96, IP, Some(19)),
        (L::SRC_95_64, IP, Some(19)),
        (L::SRC_63_32, IP, Some(19)),
        (L::SRC_31_0, IP, Some(19)),
        (L::DST_127_96, IP, Some(18)),
        (L::DST_95_64, IP, Some(18)),
        (L::DST_63_32, IP, Some(18)),
        (L::DST_31_0, IP, Some(18)),
    ]
};

/// A further field: what a packet must have, and word and bit in the capability page, if it has one.
type OfMisc = (Field<MatchMisc>, u32, Option<(usize, u8)>);

const fn inner(bits: u32) -> u32 {
    bits << INNER_SHIFT
}

/// Further fields.
const MISC_FIELDS: [OfMisc; 27] = {
    use MatchMisc as M;
    use present::{BTH, ESP, GENEVE, GRE, GRE_KEY, IPV6, LAYERS, SECOND_TAG, SQN, VXLAN};
    [
        (M::SOURCE_SQN, SQN, None),
        (M::GRE_C_PRESENT, GRE, None),
        (M::GRE_K_PRESENT, GRE, None),
        (M::GRE_S_PRESENT, GRE, None),
        (M::OUTER_SECOND_PRIO, SECOND_TAG, Some((0, 23))),
        (M::OUTER_SECOND_CFI, SECOND_TAG, Some((0, 22))),
        (M::OUTER_SECOND_VID, SECOND_TAG, Some((0, 21))),
        (M::INNER_SECOND_PRIO, inner(SECOND_TAG), Some((1, 23))),
        (M::INNER_SECOND_CFI, inner(SECOND_TAG), Some((1, 22))),
        (M::INNER_SECOND_VID, inner(SECOND_TAG), Some((1, 21))),
        (M::OUTER_SECOND_CVLAN_TAG, 0, None),
        (M::OUTER_SECOND_SVLAN_TAG, 0, None),
        (M::INNER_SECOND_CVLAN_TAG, inner(LAYERS), None),
        (M::INNER_SECOND_SVLAN_TAG, inner(LAYERS), None),
        (M::GRE_PROTOCOL, GRE, Some((0, 8))),
        (M::GRE_KEY, GRE_KEY, Some((0, 7))),
        (M::VXLAN_VNI, VXLAN, Some((0, 6))),
        (M::GENEVE_VNI, GENEVE, Some((0, 5))),
        (M::GENEVE_OAM, GENEVE, Some((0, 4))),
        (M::GENEVE_PROTOCOL_TYPE, GENEVE, Some((0, 3))),
        (M::GENEVE_OPT_LEN, GENEVE, Some((0, 2))),
        (M::BTH_OPCODE, BTH, None),
        (M::OUTER_IPV6_FLOW_LABEL, IPV6, None),
        (M::INNER_IPV6_FLOW_LABEL, inner(IPV6), None),
        (M::BTH_DST_QP, BTH, Some((2, 5))),
        (M::INNER_ESP_SPI, inner(ESP), None),
        (M::OUTER_ESP_SPI, ESP, Some((2, 8))),
    ]
};

/// Flags of which one can't be compared without the other: of which kind a tag is. By word and bits.
const TOGETHER: [(usize, u32); 4] = [
    (
        OUTER + MatchLayers::CVLAN_TAG.offset() / 4,
        bits(MatchLayers::CVLAN_TAG) | bits(MatchLayers::SVLAN_TAG),
    ),
    (
        INNER + MatchLayers::CVLAN_TAG.offset() / 4,
        bits(MatchLayers::CVLAN_TAG) | bits(MatchLayers::SVLAN_TAG),
    ),
    (
        MISC + MatchMisc::OUTER_SECOND_CVLAN_TAG.offset() / 4,
        bits(MatchMisc::OUTER_SECOND_CVLAN_TAG) | bits(MatchMisc::OUTER_SECOND_SVLAN_TAG),
    ),
    (
        MISC + MatchMisc::INNER_SECOND_CVLAN_TAG.offset() / 4,
        bits(MatchMisc::INNER_SECOND_CVLAN_TAG) | bits(MatchMisc::INNER_SECOND_SVLAN_TAG),
    ),
];

const fn bits<L>(field: Field<L>) -> u32 {
    field.max() << field.shift()
}

/// What only packets of some types have: who is sent by a queue knows which, and frames bring metadata with their WQEs.
fn lacks(kind: TableType) -> u32 {
    match kind {
        TableType::NicTx => 0,
        TableType::RdmaTx => present::METADATA,
        _ => present::SQN | present::METADATA,
    }
}

/// Every field that tables of a type compare: word, bits, what a packet must have. `geneve`: the adapter looks into Geneve.
fn fields((kind, geneve): (TableType, bool)) -> impl Iterator<Item = (usize, u32, u32)> {
    let layers = |base: usize, shift: u32, always: u32| {
        LAYERS
            .iter()
            .map(move |(field, needs, _)| (base + field.offset() / 4, bits(*field), needs << shift | always))
    };
    let misc = MISC_FIELDS.iter().map(|(field, needs, _)| (MISC + field.offset() / 4, bits(*field), *needs));
    let register = MatchMisc2::METADATA_REG_A;
    let metadata = (MISC_2 + register.offset() / 4, bits(register), present::METADATA);
    layers(OUTER, 0, 0)
        .chain(layers(INNER, INNER_SHIFT, inner(present::LAYERS)))
        .chain(misc)
        .chain([metadata])
        .filter(move |(_, _, needs)| needs & lacks(kind) == 0)
        .filter(move |(_, _, needs)| geneve || needs & present::GENEVE == 0)
}

/// What a packet must have to be compared in those bits of a word. `None`: there is a bit that tables of the type can't
/// compare.
pub(super) fn needed(kind: (TableType, bool), word: usize, mask: u32) -> Option<u32> {
    let (mut left, mut needs) = (mask, 0);
    for (_, bits, of_field) in fields(kind).filter(|(at, bits, _)| *at == word && mask & bits != 0) {
        left &= !bits;
        needs |= of_field;
    }
    (left == 0).then_some(needs)
}

/// The bits that are compared in a word if those of `mask` are to be: of which kind a tag is, C or S or none, is one
/// field, although it has two bits. So an entry that asks for "no C-tag" does not get packets with an S-tag.
pub(super) fn widened(word: usize, mask: u32) -> u32 {
    TOGETHER
        .iter()
        .filter(|(at, together)| *at == word && mask & together != 0)
        .fold(mask, |mask, (_, together)| mask | together)
}

/// What the capability page says of the fields that tables of any type can compare: the words of `ft_field_support`, and of
/// `ft_field_bitmask_support`, as every bit can be left out. `geneve`: the adapter looks into Geneve.
pub fn field_support(geneve: bool) -> [u32; 4] {
    /// The time to live of an inner header has no bit.
    const INNER_TTL: u32 = 1 << 24;
    let mut words = [0; 4];
    let mut set = |word: usize, bit: u8| {
        if let Some(word) = words.get_mut(word) {
            *word |= 1 << bit;
        }
    };
    for bit in LAYERS.iter().filter_map(|(_, _, bit)| *bit) {
        set(0, bit);
        set(1, bit);
    }
    let misc = MISC_FIELDS.iter().filter(|(_, needs, _)| geneve || needs & present::GENEVE == 0);
    misc.filter_map(|(_, _, place)| *place).for_each(|(word, bit)| set(word, bit));
    words[1] &= !INNER_TTL;
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const RX: (TableType, bool) = (TableType::NicRx, false);
    const TX: (TableType, bool) = (TableType::NicTx, false);

    #[test]
    fn what_can_be_compared() {
        let word = |field: Field<MatchLayers>| field.offset() / 4;
        let ports = word(MatchLayers::TCP_DPORT);
        assert_eq!(needed(RX, ports, 0xffff), Some(present::TCP));
        assert_eq!(needed(RX, ports, 1 << 3), Some(present::TCP), "any bit of a field");
        assert_eq!(needed(RX, INNER + ports, 1), Some(inner(present::TCP) | inner(present::LAYERS)));
        let l4 = word(MatchLayers::L4_TYPE);
        assert_eq!(needed(RX, l4, 0x1000), None, "a length of IPv4 headers");
        assert_eq!(needed(RX, l4, 0xc000_10ff), None, "one bit of three fields");
        assert_eq!(needed(RX, MISC, 1), None, "frames that are received have no send queue");
        assert_eq!(needed(TX, MISC, 1), Some(present::SQN));
        let roce = (TableType::RdmaTx, false);
        assert_eq!(needed(roce, MISC, 1), Some(present::SQN), "a queue pair is a send queue");
        let metadata = MISC_2 + MatchMisc2::METADATA_REG_A.offset() / 4;
        assert_eq!((needed(roce, metadata, 1), needed(TX, metadata, 1)), (None, Some(present::METADATA)));
        assert_eq!(needed(TX, MISC + 1, 1), None, "there is no embedded switch");
    }

    #[test]
    fn kinds_of_tags_are_one_field() {
        let word = MatchLayers::CVLAN_TAG.offset() / 4;
        let both = bits(MatchLayers::CVLAN_TAG) | bits(MatchLayers::SVLAN_TAG);
        for one in [MatchLayers::CVLAN_TAG, MatchLayers::SVLAN_TAG] {
            assert_eq!(widened(word, bits(one) | 1), both | 1);
            assert_eq!(widened(INNER + word, bits(one)), both);
        }
        assert_eq!(widened(word, 1), 1);
        assert_eq!(widened(MISC + 3, 1 << 31), 1 << 31 | 1 << 29);
        assert_eq!(widened(MISC + 3, 1 << 28), 1 << 30 | 1 << 28);
    }

    #[test]
    fn the_capability_page_says_so() {
        let words = field_support(false);
        assert_eq!(words[0] >> 28, 0xf, "MAC addresses, ethertype, IP version");
        assert_eq!((words[0] & 1 << 12, words[1] & 1 << 24, words[2]), (1 << 12, 0, 1 << 8 | 1 << 5));
    }
}
