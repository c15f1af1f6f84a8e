//! Toeplitz against Microsoft's published values; what goes into the hash of which frame.

use hca_spec::ether::{ethertype, protocol};
use proptest::prelude::*;

use super::*;
use crate::wire::ethernet::build;

/// The key of "Verifying the RSS hash calculation".
const KEY: [u8; KEY_SIZE] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const IPS: HashFields = HashFields {
    v6: false,
    udp: false,
    src_ip: true,
    dst_ip: true,
    src_port: false,
    dst_port: false,
    spi: false,
};
const PORTS: HashFields = HashFields { src_port: true, dst_port: true, ..IPS };

fn rules(outer: HashFields) -> HashRules {
    let function = HashFunction::Toeplitz;
    HashRules { function, symmetric: false, key: KEY, outer, inner: HashFields::default() }
}

fn hasher(rules: HashRules) -> Hasher {
    Hasher::new(rules, &mut KeyTables::default())
}

fn hash(rules: HashRules, frame: &[u8]) -> Hash {
    hasher(rules).hash(&Headers::parse(frame).unwrap(), None)
}

/// A frame of TCP with these addresses and ports.
fn tcp_frame(source: &[u8], destination: &[u8], ports: (u16, u16)) -> Vec<u8> {
    let v6 = source.len() == 16;
    let mut frame = build::transport_frame(&[], v6, true, b"");
    let at = if v6 { 22 } else { 26 };
    frame[at..at + source.len()].copy_from_slice(source);
    frame[at + source.len()..at + 2 * source.len()].copy_from_slice(destination);
    let l4 = at + 2 * source.len();
    frame[l4..l4 + 2].copy_from_slice(&ports.0.to_be_bytes());
    frame[l4 + 2..l4 + 4].copy_from_slice(&ports.1.to_be_bytes());
    frame
}

/// Destination, port, source, port, hash of the addresses, hash with ports: Microsoft's tables.
#[test]
fn values_of_microsoft() {
    type V4 = ([u8; 4], u16, [u8; 4], u16, u32, u32);
    let v4: [V4; 5] = [
        ([161, 142, 100, 80], 1766, [66, 9, 149, 187], 2794, 0x323e_8fc2, 0x51cc_c178),
        ([65, 69, 140, 83], 4739, [199, 92, 111, 2], 14230, 0xd718_262a, 0xc626_b0ea),
        ([12, 22, 207, 184], 38024, [24, 19, 198, 95], 12898, 0xd2d0_a5de, 0x5c2b_394a),
        ([209, 142, 163, 6], 2217, [38, 27, 205, 30], 48228, 0x8298_9176, 0xafc7_327f),
        ([202, 188, 127, 2], 1303, [153, 39, 163, 191], 44251, 0x5d18_09c5, 0x10e8_28a2),
    ];
    for (destination, to, source, from, ips, ports) in v4 {
        let frame = tcp_frame(&source, &destination, (from, to));
        assert_eq!(hash(rules(IPS), &frame), Hash { value: ips, l3: rss_l3::IPV4, l4: rss_l4::NONE });
        assert_eq!(hash(rules(PORTS), &frame), Hash { value: ports, l3: rss_l3::IPV4, l4: rss_l4::TCP });
    }
    let v6 = [
        ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
        ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "fe80::200:f8ff:fe21:67cf",
            38024,
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];
    for (destination, to, source, from, ips, ports) in v6 {
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let frame = tcp_frame(&octets(source), &octets(destination), (from, to));
        let of = |fields| rules(HashFields { v6: true, ..fields });
        assert_eq!(hash(of(IPS), &frame).value, ips);
        assert_eq!(hash(of(PORTS), &frame), Hash { value: ports, l3: rss_l3::IPV6, l4: rss_l4::TCP });
    }
}

#[test]
fn fields_are_chosen_one_by_one() {
    let (source, destination) = ([1, 2, 3, 4], [5, 6, 7, 8]);
    let frame = tcp_frame(&source, &destination, (0x1122, 0x3344));
    let parts: [&[u8]; 4] = [&source, &destination, &[0x11, 0x22], &[0x33, 0x44]];
    for chosen in 0..16 {
        let has = |i: usize| chosen >> i & 1 == 1;
        let fields = HashFields {
            src_ip: has(0),
            dst_ip: has(1),
            src_port: has(2),
            dst_port: has(3),
            ..HashFields::default()
        };
        let input: Vec<u8> = (0..4).filter(|i| has(*i)).flat_map(|i| parts[i].to_vec()).collect();
        let got = hash(rules(fields), &frame);
        let l3 = if has(0) || has(1) { rss_l3::IPV4 } else { rss_l3::NONE };
        let l4 = if has(2) || has(3) { rss_l4::TCP } else { rss_l4::NONE };
        assert_eq!(got, Hash { value: slow(&KEY, &input), l3, l4 });
        let xor = hash(HashRules { function: HashFunction::InvertedXor8, ..rules(fields) }, &frame);
        assert_eq!(xor.value, u32::from(input.iter().fold(0u8, |a, b| a ^ b).reverse_bits()));
    }
    let none = HashRules { function: HashFunction::None, ..rules(PORTS) };
    assert_eq!(hash(none, &frame), Hash::default());
}

#[test]
fn frames_that_are_not_what_the_rules_name() {
    let tcp = build::transport_frame(&[], false, true, b"");
    let udp = build::transport_frame(&[], false, false, b"");
    let ips = hash(rules(IPS), &tcp);
    assert_eq!(hash(rules(PORTS), &udp), ips, "ports of TCP, a frame of UDP");
    let for_udp = rules(HashFields { udp: true, ..PORTS });
    assert_eq!((hash(for_udp, &udp).l4, hash(for_udp, &tcp)), (rss_l4::UDP, ips));
    assert_eq!(hash(rules(HashFields { v6: true, ..PORTS }), &tcp), Hash::default());
    assert_eq!(hash(rules(PORTS), &build::frame(&[], ethertype::ARP, &[0; 46])), Hash::default());
    for bits in [0x20, 0x01] {
        let mut fragment = tcp.clone();
        fragment[20] = bits;
        assert_eq!(hash(rules(PORTS), &fragment), ips, "fragments go without ports");
    }
}

#[test]
fn security_parameter_index() {
    let fields = HashFields { spi: true, ..IPS };
    let esp = build::ipv4_frame(&[], protocol::ESP, &[1, 2, 3, 4, 0, 0, 0, 1]);
    let input = [&build::V4.0[..], &build::V4.1, &[1, 2, 3, 4]].concat();
    assert_eq!(
        hash(rules(fields), &esp),
        Hash { value: slow(&KEY, &input), l3: rss_l3::IPV4, l4: rss_l4::SPI }
    );
    assert_eq!(hash(rules(IPS), &esp).l4, rss_l4::NONE);
}

#[test]
fn symmetric_is_or_and_xor_of_what_has_two_sides() {
    let (a, b) = ([1, 2, 3, 4], [5, 6, 7, 8]);
    let rules = |outer| HashRules { symmetric: true, ..rules(outer) };
    let (there, back) = (tcp_frame(&a, &b, (1000, 3)), tcp_frame(&b, &a, (3, 1000)));
    let input = [5, 6, 7, 12, 4, 4, 4, 12, 3, 0xeb, 3, 0xeb];
    assert_eq!(hash(rules(PORTS), &there).value, slow(&KEY, &input));
    assert_eq!(hash(rules(PORTS), &there), hash(rules(PORTS), &back));
    let one = HashFields { dst_ip: false, ..PORTS };
    assert_ne!(hash(rules(one), &there).value, hash(rules(one), &back).value, "one address is what it is");
}

#[test]
fn tunnels_are_hashed_by_their_inside_if_the_rules_say_so() {
    let inner = tcp_frame(&[9, 9, 9, 1], &[9, 9, 9, 2], (5, 6));
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat();
    let frame = build::ipv4_frame(&[], protocol::UDP, &build::udp(false, 5, 4789, &vxlan));
    let outer = Headers::parse(&frame).unwrap();
    let inside = outer.inner(&frame);
    let of = hasher(HashRules { inner: PORTS, ..rules(IPS) });
    assert!(of.wants_inner() && !hasher(rules(IPS)).wants_inner());
    assert_eq!(of.hash(&outer, inside.as_ref()), hash(rules(PORTS), &inner));
    assert_eq!(of.hash(&outer, None), hash(rules(IPS), &frame));
    assert_eq!(hasher(rules(IPS)).hash(&outer, inside.as_ref()), hash(rules(IPS), &frame));
}

#[test]
fn index_in_a_table() {
    let at = |value, size| Hash { value, ..Hash::default() }.index(size);
    assert_eq!((at(0x1_2345, 256), at(0x1_2345, 1), at(7, 3), at(9, 0)), (0x45, 0, 1, 0));
}

#[test]
fn tables_are_shared_and_bounded() {
    let mut tables = KeyTables::default();
    let of =
        |tables: &mut KeyTables, i: u8| Hasher::new(HashRules { key: [i; KEY_SIZE], ..rules(IPS) }, tables);
    let kept: Vec<Hasher> = (0..100).map(|i| of(&mut tables, i)).collect();
    assert_eq!(kept.iter().filter(|h| h.table.is_some()).count(), KeyTables::MOST);
    let again = of(&mut tables, 3);
    assert!(Arc::ptr_eq(again.table.as_ref().unwrap(), kept[3].table.as_ref().unwrap()));
    let frame = Headers::parse(&build::transport_frame(&[], false, true, b"")).unwrap();
    let input = [build::V4.0, build::V4.1].concat();
    for (i, hasher) in kept.iter().enumerate() {
        assert_eq!(hasher.hash(&frame, None).value, slow(&[i as u8; KEY_SIZE], &input));
    }
    drop((kept, again));
    assert!(of(&mut tables, 200).table.is_some(), "those that nobody has go");
    assert_eq!(tables.0.len(), 1);
}

/// Bit by bit, as Microsoft describes it.
fn slow(key: &[u8; KEY_SIZE], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let mut hash = 0;
    for at in 0..8 * input.len() {
        if bit(input, at) == 1 {
            hash ^= (0..32).fold(0u32, |word, i| word << 1 | u32::from(bit(key, at + i)));
        }
    }
    hash
}

proptest! {
    #[test]
    fn with_and_without_a_table(key: [u8; KEY_SIZE], input in prop::collection::vec(any::<u8>(), 0..=INPUT)) {
        let right = slow(&key, &input);
        prop_assert_eq!(Toeplitz::new(key).hash(&input), right);
        prop_assert_eq!(toeplitz(&key, &input), right);
    }
}
