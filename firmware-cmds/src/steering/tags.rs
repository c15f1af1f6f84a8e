//! Tags: what entries that drivers write compare of a packet, by their lookup type ([`hca_spec::ste::lookup`]).
//!
//! A header that is not there is zeros. Not here: fields of MPLS, and those of parsers that programs make.

use hca_spec::ste::{Ste, lookup};

use super::frame::{Passing, Places, Sight};
use super::key::{Ip, L4, Layers, Tag};

/// Kinds of layer 3 and of tags, as tags have them.
const IPV4: u32 = 1;
const IPV6: u32 = 2;
const C_TAG: u32 = 1;
const S_TAG: u32 = 2;
/// Kinds of layer 4.
const TCP: u32 = 1;
const UDP: u32 = 2;
const ICMP: [u8; 2] = [1, 58];

/// A set of headers: the outer or the inner one.
pub(super) struct View<'a> {
    pub(super) layers: Layers,
    bytes: &'a [u8],
    pub(super) l3: Option<usize>,
    l4: Option<usize>,
}

impl<'a> View<'a> {
    pub(super) fn outer(sight: &Sight, bytes: &'a [u8]) -> Self {
        let Places { l3, l4, .. } = sight.places;
        Self { layers: sight.key.outer, bytes, l3: Some(l3), l4 }
    }

    pub(super) fn inner(sight: &Sight, bytes: &'a [u8]) -> Self {
        let Places { inner_l3, inner_l4, .. } = sight.places;
        Self { layers: sight.key.inner.unwrap_or_default(), bytes, l3: inner_l3, l4: inner_l4 }
    }

    pub(super) fn ip(&self, version: u8) -> Option<&Ip> {
        self.layers.ip.as_ref().filter(|ip| ip.version == version)
    }

    pub(super) fn l3_type(&self) -> u32 {
        match self.layers.ip.map(|ip| ip.version) {
            Some(4) => IPV4,
            Some(6) => IPV6,
            _ => 0,
        }
    }

    pub(super) fn l4_type(&self) -> u32 {
        match self.layers.l4 {
            L4::Tcp { .. } => TCP,
            L4::Udp { .. } => UDP,
            L4::None | L4::Esp { .. } => 0,
        }
    }

    pub(super) fn fragment(&self) -> u32 {
        self.layers.ip.is_some_and(|ip| ip.fragment).into()
    }

    pub(super) fn ports(&self) -> u32 {
        match self.layers.l4 {
            L4::Tcp { source, destination, .. } | L4::Udp { source, destination } => {
                u32::from(source) << 16 | u32::from(destination)
            }
            L4::None | L4::Esp { .. } => 0,
        }
    }

    pub(super) fn flags(&self) -> u32 {
        match self.layers.l4 {
            L4::Tcp { flags, .. } => flags.into(),
            _ => 0,
        }
    }

    /// Words of the TCP header.
    pub(super) fn data_offset(&self) -> u32 {
        match self.layers.l4 {
            L4::Tcp { .. } => self.word_at(self.l4, 12) >> 28,
            _ => 0,
        }
    }

    pub(super) fn word_at(&self, at: Option<usize>, by: usize) -> u32 {
        let bytes = at.and_then(|at| self.bytes.get(at.saturating_add(by)..));
        bytes.and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// One of the two addresses and what is with it.
    fn l2(&self, mac: [u8; 6]) -> [u32; 4] {
        let [first, second] = self.layers.tags;
        let [a, b, c, d, e, f] = mac;
        [
            self.fragment() << 28
                | self.l3_type() << 20
                | self.l4_type() << 18
                | qualifier(first) << 16
                | tci(first),
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, 0, 0]) | u32::from(self.layers.ethertype),
            (self.flags() >> 1 & 1) << 25 | qualifier(second) << 16 | tci(second),
        ]
    }

    fn l2_both(&self) -> [u32; 4] {
        let [first, _] = self.layers.tags;
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.layers.dmac, self.layers.smac);
        [
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([g, h, i, j]),
            u32::from_be_bytes([e, f, 0, 0]) | self.l3_type() << 4 | qualifier(first),
            tci(first) << 16 | u32::from_be_bytes([0, 0, k, l]),
        ]
    }

    fn l2_tunnel(&self, network: u32) -> [u32; 4] {
        let [first, _] = self.layers.tags;
        let [a, b, c, d, e, f] = self.layers.dmac;
        [
            network << 8,
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, 0, 0]) | u32::from(self.layers.ethertype),
            self.fragment() << 28
                | self.l3_type() << 20
                | self.l4_type() << 18
                | qualifier(first) << 16
                | tci(first),
        ]
    }

    fn ipv4_5_tuple(&self) -> [u32; 4] {
        let Some(ip) = self.ip(4) else { return [0; 4] };
        let common = u32::from(ip.dscp) << 10 | u32::from(ip.ecn) << 8 | u32::from(ip.protocol);
        [
            last_word(ip.source),
            last_word(ip.destination),
            self.ports(),
            self.fragment() << 25 | self.flags() << 16 | common,
        ]
    }

    fn ipv4_misc(&self) -> [u32; 4] {
        if self.ip(4).is_none() {
            return [0; 4];
        }
        let [first, second, third] = [0, 4, 8].map(|by| self.word_at(self.l3, by));
        [second, first << 16 | third & 0xffff, (first >> 24) << 24 | (third >> 24) << 16, 0]
    }

    fn l4(&self) -> [u32; 4] {
        let Some(ip) = self.layers.ip else { return [0; 4] };
        let class = u32::from(ip.dscp) << 18 | u32::from(ip.ecn) << 16;
        let version = u32::from(ip.version) << 28;
        let payload = self.ip(6).map_or(0, |_| self.word_at(self.l3, 4) >> 16);
        [
            version | class | u32::from(ip.ttl) << 8 | u32::from(ip.protocol),
            self.ports(),
            ip.flow_label,
            self.data_offset() << 28 | self.fragment() << 25 | self.flags() << 16 | payload,
        ]
    }

    fn l4_misc(&self) -> [u32; 4] {
        let word = |by| self.word_at(self.l4, by);
        match self.layers.l4 {
            L4::Tcp { .. } => {
                let (window, urgent, checksum) = (word(12) & 0xffff, word(16) & 0xffff, word(16) >> 16);
                [window << 16 | urgent, word(8), word(4), checksum]
            }
            L4::Udp { .. } => [0, 0, 0, word(4)],
            _ if self.layers.ip.is_some_and(|ip| ICMP.contains(&ip.protocol)) => {
                [word(8), word(4), word(0) & 0xffff_0000, 0]
            }
            _ => [0; 4],
        }
    }
}

pub(super) fn qualifier(tag: Option<Tag>) -> u32 {
    tag.map_or(0, |tag| if tag.service { S_TAG } else { C_TAG })
}

pub(super) fn tci(tag: Option<Tag>) -> u32 {
    tag.map_or(0, |tag| tag.tci.into())
}

pub(super) fn address(bytes: [u8; 16]) -> [u32; 4] {
    let (words, _) = bytes.as_chunks::<4>();
    let mut address = [0; 4];
    address.iter_mut().zip(words).for_each(|(to, word)| *to = u32::from_be_bytes(*word));
    address
}

pub(super) fn last_word(bytes: [u8; 16]) -> u32 {
    address(bytes)[3]
}

/// The tag that a lookup type makes of a packet.
pub(super) fn tag(packet: &Passing<'_>, kind: u32) -> [u8; Ste::TAG_SIZE] {
    let (sight, bytes) = (packet.sight(), packet.bytes());
    let (outer, inner) = (View::outer(sight, bytes), View::inner(sight, bytes));
    let ipv6 = |view: &View<'_>, of: fn(&Ip) -> [u8; 16]| view.ip(6).map_or([0; 4], |ip| address(of(ip)));
    let tunnel = |by| outer.word_at(sight.places.tunnel, by);
    let (c, key) = (packet.registers.c, &sight.key);
    let words = match kind {
        lookup::L2_TUNNEL => inner.l2_tunnel(key.vxlan_vni.unwrap_or(0)),
        lookup::L2_DESTINATION => outer.l2(outer.layers.dmac),
        lookup::L2_DESTINATION_INNER => inner.l2(inner.layers.dmac),
        lookup::L2_SOURCE => outer.l2(outer.layers.smac),
        lookup::L2_SOURCE_INNER => inner.l2(inner.layers.smac),
        lookup::L2_BOTH => outer.l2_both(),
        lookup::L2_BOTH_INNER => inner.l2_both(),
        lookup::IPV4_5_TUPLE => outer.ipv4_5_tuple(),
        lookup::IPV4_5_TUPLE_INNER => inner.ipv4_5_tuple(),
        lookup::IPV4_MISC => outer.ipv4_misc(),
        lookup::IPV4_MISC_INNER => inner.ipv4_misc(),
        lookup::IPV6_DESTINATION => ipv6(&outer, |ip| ip.destination),
        lookup::IPV6_DESTINATION_INNER => ipv6(&inner, |ip| ip.destination),
        lookup::IPV6_SOURCE => ipv6(&outer, |ip| ip.source),
        lookup::IPV6_SOURCE_INNER => ipv6(&inner, |ip| ip.source),
        lookup::L4 => outer.l4(),
        lookup::L4_INNER => inner.l4(),
        lookup::L4_MISC => outer.l4_misc(),
        lookup::L4_MISC_INNER => inner.l4_misc(),
        lookup::GRE => match key.gre {
            Some(gre) => [tunnel(0), 0, gre.key.unwrap_or(0), 0],
            None => [0; 4],
        },
        lookup::TUNNEL_HEADER_8 => [tunnel(0), tunnel(4), 0, 0],
        lookup::TUNNEL_HEADER_16 => [0, 4, 8, 12].map(tunnel),
        lookup::METADATA => [packet.metadata(), 0, 0, 0],
        lookup::REGISTERS_0 => [c[0], c[1], c[2], c[3]],
        lookup::REGISTERS_1 => [c[4], c[5], c[6], c[7]],
        lookup::ROCE => {
            let word = |by| outer.word_at(sight.places.bth, by);
            let opcode = word(0) & 0xff00_0000;
            // Solicited, migration; FECN, BECN; ACK request.
            let bits = (word(0) >> 22 & 3) << 30 | word(8) >> 31 << 29 | (word(4) >> 30) << 27;
            [opcode | word(4) & 0xff_ffff, bits | word(0) & 0xffff, 0, 0]
        }
        lookup::SOURCE_QUEUE => [0, key.source_sqn.unwrap_or(0), 0, 0],
        _ => [0; 4],
    };
    let mut tag = [0; Ste::TAG_SIZE];
    let (to, _) = tag.as_chunks_mut::<4>();
    to.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_be_bytes());
    tag
}

/// The number of a tag in a table of so many entries: `mask` says which bytes count, the first one by its highest bit.
pub(super) fn index(tag: [u8; Ste::TAG_SIZE], mask: u32, entries: u64) -> u64 {
    const FIRST: u32 = 1 << (Ste::TAG_SIZE - 1);
    if mask == 0 {
        return 0;
    }
    let mut bytes = tag;
    let counts = (0..Ste::TAG_SIZE as u32).map(|i| mask & FIRST >> i != 0);
    bytes.iter_mut().zip(counts).filter(|(_, counts)| !counts).for_each(|(byte, _)| *byte = 0);
    place(&bytes, entries)
}

/// The number of what is compared in a table of so many entries.
pub(super) fn place(bytes: &[u8], entries: u64) -> u64 {
    // The usual CRC-32, but from zero on and not inverted at the end; its bytes in the other order.
    u64::from(crc(bytes).swap_bytes()).checked_rem(entries).unwrap_or(0)
}

/// CRC-32 of polynomial 0x04c11db7, reflected, from zero on (mlx5dv, `dr_crc32.c`).
fn crc(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    bytes.iter().fold(0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition: a CRC from zero on is linear, and that of a 1 in the last byte is the table's second entry.
    #[test]
    fn hashes() {
        assert_eq!(crc(&[1]), 0x7707_3096);
        let (a, b) = ([1, 2, 3, 4, 5], [9, 8, 7, 6, 5]);
        let both: Vec<u8> = a.iter().zip(b).map(|(a, b)| a ^ b).collect();
        assert_eq!(crc(&both), crc(&a) ^ crc(&b));
        let mut tag = [0; 16];
        tag[15] = 1;
        assert_eq!(index(tag, 1, 1 << 20), u64::from(0x9630_0777u32 % (1 << 20)));
        assert_eq!(index(tag, 0xfffe, 1 << 20), 0, "that byte does not count");
        assert_eq!((index(tag, 0, 8), index(tag, 1, 0)), (0, 0));
    }
}
