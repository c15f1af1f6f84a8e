//! Words of headers and registers that changes are made in ([`hca_spec::ste::word`]), and which of them the fields of the
//! commands' lists of changes are in ([`hca_spec::rewrite::field`]).

use hca_spec::rewrite::field;
use hca_spec::ste::word;

use super::frame::{Edit, Registers, Sight};
use super::key::L4;

/// A field: its word, its lowest bit there, and how many bits it has.
pub(crate) type Place = (u32, u32, u32);

/// Words of an IPv6 address.
const WORDS: u32 = 4;

/// Where a field of a list of changes is. `None`: there is no such field, or it can't be changed.
pub(crate) fn place_of(number: u32) -> Option<Place> {
    let fourth = |first: u32| number.checked_sub(first).filter(|n| *n < WORDS);
    Some(match number {
        field::SMAC_47_16 => (word::SMAC_47_16, 0, 32),
        field::SMAC_15_0 => (word::SMAC_15_0, 16, 16),
        field::ETHERTYPE => (word::DMAC_15_0_ETHERTYPE, 0, 16),
        field::DMAC_47_16 => (word::DMAC_47_16, 0, 32),
        field::DMAC_15_0 => (word::DMAC_15_0_ETHERTYPE, 16, 16),
        field::IP_DSCP => (word::L3, 18, 6),
        field::IP_ECN => (word::L3, 16, 2),
        field::IPV4_TTL | field::IPV6_HOPLIMIT => (word::L3, 8, 8),
        field::TCP_FLAGS => (word::TCP_FLAGS, 16, 9),
        field::TCP_SPORT | field::UDP_SPORT => (word::L4, 16, 16),
        field::TCP_DPORT | field::UDP_DPORT => (word::L4, 0, 16),
        field::SIPV4 => (word::IPV4_SOURCE, 0, 32),
        field::DIPV4 => (word::IPV4_DESTINATION, 0, 32),
        field::FIRST_VID => (word::FIRST_TAG, 0, 12),
        field::METADATA_REG_A => (word::REGISTER_A, 0, 32),
        field::TCP_SEQ_NUM => (word::TCP_SEQUENCE, 0, 32),
        field::TCP_ACK_NUM => (word::TCP_ACKNOWLEDGED, 0, 32),
        _ => {
            if let Some(n) = fourth(field::SIPV6_127_96) {
                (word::IPV6_SOURCE + n, 0, 32)
            } else if let Some(n) = fourth(field::DIPV6_127_96) {
                (word::IPV6_DESTINATION + n, 0, 32)
            } else {
                let register = number.checked_sub(field::METADATA_REG_C_0)?;
                (*REGISTERS.get(register as usize)?, 0, 32)
            }
        }
    })
}

/// Words of registers C0 to C5; C6 and C7 can't be written.
const REGISTERS: [u32; 6] = [
    word::REGISTER_C_0,
    word::REGISTER_C_1,
    word::REGISTER_C_2,
    word::REGISTER_C_3,
    word::REGISTER_C_4,
    word::REGISTER_C_5,
];

/// Where a word is in a frame.
enum Where {
    /// Four bytes.
    Whole(usize),
    /// Two bytes, and two others.
    Halves(Option<usize>, Option<usize>),
    /// DSCP, ECN and time to live of IPv4 at a place.
    Ipv4(usize),
    /// The same of IPv6.
    Ipv6(usize),
}

fn find(sight: &Sight, number: u32) -> Option<Where> {
    let Sight { key, places } = sight;
    let version = |version| key.outer.ip.is_some_and(|ip| ip.version == version);
    let tcp = || places.l4.filter(|_| matches!(key.outer.l4, L4::Tcp { .. }));
    let ports = || places.l4.filter(|_| matches!(key.outer.l4, L4::Tcp { .. } | L4::Udp { .. }));
    let behind = |at: usize, by: usize| at.saturating_add(by);
    let ipv6 = |first: u32, from: usize| {
        let n = number.checked_sub(first).filter(|n| *n < WORDS)? as usize;
        version(6).then_some(Where::Whole(behind(places.l3, behind(from, n * 4))))
    };
    match number {
        word::DMAC_47_16 => Some(Where::Whole(0)),
        word::DMAC_15_0_ETHERTYPE => Some(Where::Halves(Some(4), places.l3.checked_sub(2))),
        word::FIRST_TAG => key.outer.tags.first()?.map(|_| Where::Halves(None, Some(14))),
        word::SMAC_47_16 => Some(Where::Whole(6)),
        word::SMAC_15_0 => Some(Where::Halves(Some(10), None)),
        word::L3 if version(4) => Some(Where::Ipv4(places.l3)),
        word::L3 if version(6) => Some(Where::Ipv6(places.l3)),
        word::L4 => ports().map(Where::Whole),
        word::TCP_FLAGS => tcp().map(|at| Where::Halves(Some(behind(at, 12)), None)),
        word::IPV4_SOURCE if version(4) => Some(Where::Whole(behind(places.l3, 12))),
        word::IPV4_DESTINATION if version(4) => Some(Where::Whole(behind(places.l3, 16))),
        word::TCP_SEQUENCE => tcp().map(|at| Where::Whole(behind(at, 4))),
        word::TCP_ACKNOWLEDGED => tcp().map(|at| Where::Whole(behind(at, 8))),
        _ => ipv6(word::IPV6_SOURCE, 8).or_else(|| ipv6(word::IPV6_DESTINATION, 24)),
    }
}

/// A word as changes see it. `None`: the frame has no such header.
pub(super) fn read(edit: &mut Edit, registers: &Registers, number: u32) -> Option<u32> {
    if let Some(at) = REGISTERS.iter().position(|register| *register == number) {
        return registers.c.get(at).copied();
    }
    let sight = edit.sight();
    match number {
        word::REGISTER_A => return Some(registers.a.or(sight.key.metadata).unwrap_or(0)),
        word::REGISTER_B => return Some(registers.b),
        _ => {}
    }
    let byte = |at: usize, by: usize| edit.bytes().get(at.saturating_add(by)).copied().map(u32::from);
    let half = |at: Option<usize>| at.map_or(Some(0), |at| edit.half(at).map(u32::from));
    match find(&sight, number)? {
        Where::Whole(at) => edit.word(at),
        Where::Halves(high, low) => Some(half(high)? << 16 | half(low)?),
        Where::Ipv4(at) => Some(byte(at, 1)? << 16 | byte(at, 8)? << 8 | byte(at, 9)?),
        Where::Ipv6(at) => {
            let class = (byte(at, 0)? & 0xf) << 4 | byte(at, 1)? >> 4;
            Some(class << 16 | byte(at, 7)? << 8 | byte(at, 6)?)
        }
    }
}

/// Writes a word.
pub(super) fn write(edit: &mut Edit, registers: &mut Registers, number: u32, value: u32) {
    if let Some(register) = REGISTERS.iter().position(|register| *register == number) {
        if let Some(to) = registers.c.get_mut(register) {
            *to = value;
        }
        return;
    }
    match number {
        word::REGISTER_A => return registers.a = Some(value),
        word::REGISTER_B => return registers.b = value,
        _ => {}
    }
    let sight = edit.sight();
    let [a, b, c, d] = value.to_be_bytes();
    match find(&sight, number) {
        Some(Where::Whole(at)) => edit.put(at, &[a, b, c, d]),
        Some(Where::Halves(high, low)) => {
            high.into_iter().for_each(|at| edit.put(at, &[a, b]));
            low.into_iter().for_each(|at| edit.put(at, &[c, d]));
        }
        Some(Where::Ipv4(at)) => {
            edit.put(at.saturating_add(1), &[b]);
            edit.put(at.saturating_add(8), &[c]);
        }
        Some(Where::Ipv6(at)) => {
            if let Some([first, second]) = edit.half(at).map(u16::to_be_bytes) {
                edit.put(at, &[first & 0xf0 | b >> 4, b << 4 | second & 0xf]);
                edit.put(at.saturating_add(7), &[c]);
            }
        }
        None => {}
    }
}
