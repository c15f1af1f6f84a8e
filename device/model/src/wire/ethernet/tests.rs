//! What is parsed, of frames made in other ways, and of frames of any bytes.

use hca_spec::ether::{Gre, ethertype, protocol};
use proptest::prelude::*;

use super::build::{self, DMAC, SMAC, V4, V6};
use super::*;

const C: Tag = Tag { tpid: ethertype::C_TAG, tci: 0xa123 };
const S: Tag = Tag { tpid: ethertype::S_TAG, tci: 0x0fff };

fn parse(frame: &[u8]) -> Headers {
    Headers::parse(frame).unwrap()
}

#[test]
fn tags_and_types() {
    for tags in [&[][..], &[C], &[S], &[S, C]] {
        let frame = build::frame(tags, ethertype::ARP, &[0; 46]);
        let h = parse(&frame);
        assert_eq!((h.dmac, h.smac, h.tags(), h.ethertype), (DMAC, SMAC, tags, ethertype::ARP));
        assert_eq!((h.l3, h.ip, h.l4), (14 + 4 * tags.len(), None, None));
    }
    assert_eq!((C.vid(), C.priority(), C.drop_eligible(), S.vid()), (0x123, 5, false, 0xfff));
    assert_eq!(parse(&build::frame(&[C], 0x600, &[])).outer_tag(ethertype::S_TAG), None);
    let third = build::frame(&[S, C, C], ethertype::IPV4, &[0; 46]);
    let h = parse(&third);
    assert_eq!((h.tag_count, h.ethertype, h.ip), (2, ethertype::C_TAG, None), "a third tag is payload");
}

#[test]
fn addresses_and_ports_of_both_versions() {
    for tags in [&[][..], &[S, C]] {
        for (v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            let frame = build::transport_frame(tags, v6, is_tcp, b"payload");
            let h = parse(&frame);
            let ip = h.ip.unwrap();
            let header = if v6 { 40 } else { 20 };
            assert_eq!(h.l4, Some(h.l3 + header));
            assert_eq!((ip.end, ip.complete, ip.fragment), (frame.len(), true, Fragment::Whole));
            if v6 {
                assert_eq!((ip.version, ip.source, ip.destination), (IpVersion::V6, V6.0, V6.1));
                assert_eq!((ip.dscp, ip.ecn, ip.ttl, ip.flow_label), (12, 2, 63, 0x12345));
            } else {
                assert_eq!(
                    (ip.version, &ip.source[12..], &ip.destination[12..]),
                    (IpVersion::V4, &V4.0[..], &V4.1[..])
                );
                assert_eq!((&ip.source[..12], ip.dscp, ip.ecn, ip.ttl), (&[0; 12][..], 10, 1, 64));
            }
            match h.layer4 {
                Layer4::Tcp { source, destination, flags, header } if is_tcp => {
                    assert_eq!((source, destination, flags, header), (1000, 2000, 0x18, 20));
                }
                Layer4::Udp { source, destination, length } if !is_tcp => {
                    assert_eq!((source, destination, length), (1000, 2000, 15));
                }
                other => panic!("{other:?}"),
            }
            assert!(h.has_whole_layer4());
        }
    }
}

#[test]
fn padding_is_behind_the_datagram_and_a_short_frame_is_not_complete() {
    let mut frame = build::transport_frame(&[], false, false, b"x");
    let end = frame.len();
    pad(&mut frame);
    assert_eq!((frame.len(), parse(&frame).ip.unwrap().end), (60, end));
    let h = parse(&frame[..end - 1]);
    assert!(!h.ip.unwrap().complete && !h.has_whole_layer4());
}

#[test]
fn extension_headers_are_walked_with_a_bound() {
    let chain = |n: usize| {
        let mut payload: Vec<u8> = (1..n).flat_map(|_| build::extension(protocol::DESTINATION, 14)).collect();
        payload.extend(build::extension(protocol::UDP, 6));
        payload.extend(build::udp(true, 1, 2, b""));
        parse(&build::ipv6_frame(&[], protocol::DESTINATION, &payload))
    };
    let h = chain(MAX_EXTENSIONS);
    assert_eq!((h.l4, h.ip.unwrap().protocol), (Some(54 + 7 * 16 + 8), protocol::UDP));
    assert!(h.ip.unwrap().options);
    let h = chain(MAX_EXTENSIONS + 1);
    assert_eq!((h.l4, h.layer4, h.ip.unwrap().protocol), (None, Layer4::None, protocol::DESTINATION));
}

#[test]
fn fragments() {
    let udp = build::udp(true, 1, 2, &[0; 16]);
    for (offset, more, fragment, has_l4) in [
        (0, true, Fragment::First, true),
        (3, true, Fragment::Later, false),
        (3, false, Fragment::Later, false),
        (0, false, Fragment::Whole, true),
    ] {
        let v6 = build::ipv6_frame(
            &[],
            protocol::FRAGMENT,
            &[&build::fragment(protocol::UDP, offset, more)[..], &udp].concat(),
        );
        let mut v4 = build::ipv4_frame(&[], protocol::UDP, &udp);
        let flags = offset as u16 | if more { 0x2000 } else { 0 };
        v4[20..22].copy_from_slice(&flags.to_be_bytes());
        for h in [parse(&v6), parse(&v4)] {
            let ip = h.ip.unwrap();
            assert_eq!((ip.fragment, ip.protocol), (fragment, protocol::UDP));
            assert_eq!((h.l4.is_some(), h.layer4 != Layer4::None), (has_l4, has_l4));
            assert_eq!(h.has_whole_layer4(), fragment == Fragment::Whole);
        }
    }
}

#[test]
fn security_headers_and_icmp() {
    let spi = [0, 0, 0, 9];
    let esp = build::ipv4_frame(&[], protocol::ESP, &[&spi[..], &[0; 8]].concat());
    assert_eq!(parse(&esp).layer4, Layer4::Esp { spi: 9 });
    let ah = build::ipv6_frame(&[], protocol::AH, &[&[6, 4, 0, 0][..], &spi, &[0; 16]].concat());
    assert_eq!(parse(&ah).layer4, Layer4::Ah { spi: 9 });
    assert_eq!(parse(&build::ipv4_frame(&[], protocol::ICMP, &[8, 0])).layer4, Layer4::Icmp);
}

#[test]
fn tunnels() {
    let inner = build::transport_frame(&[C], true, true, b"in");
    let header = [8, 0, 0, 0, 0x12, 0x34, 0x56, 0];
    let vxlan = build::udp(false, 50000, 4789, &[&header[..], &inner].concat());
    let mut frame = build::ipv4_frame(&[], protocol::UDP, &vxlan);
    let h = parse(&frame);
    assert_eq!(h.tunnel, Some(Tunnel { kind: TunnelKind::Vxlan { vni: 0x123456 }, start: 42, inner: 50 }));
    let inside = h.inner(&frame).unwrap();
    assert_eq!((inside.tags(), inside.l3, inside.l4), (&[C][..], 68, Some(108)));
    assert!(inside.has_whole_layer4());
    assert_eq!(Headers::parse_with(&frame, &[8472], false).unwrap().tunnel, None);
    // What lies behind the outer datagram is not in the tunnel.
    frame.extend([0; 20]);
    frame[16..18].copy_from_slice(&96u16.to_be_bytes());
    assert!(!parse(&frame).inner(&frame).unwrap().ip.unwrap().complete);

    for (bits, words) in [(0, 0), (0x2000, 1), (0x8000, 1), (0x3000, 2), (0xb000, 3)] {
        for (protocol, inner) in [(ethertype::ETHERNET, &inner), (ethertype::IPV6, &inner[18..].to_vec())] {
            let mut gre = (u32::from(protocol) | bits << 16).to_be_bytes().to_vec();
            (0..words).for_each(|i| gre.extend([0, 0, 0, i]));
            gre.extend(inner);
            let frame = build::ipv4_frame(&[], protocol::GRE, &gre);
            let h = parse(&frame);
            let key = (bits & 0x2000 != 0).then_some(bits >> 15);
            let kind =
                TunnelKind::Gre { protocol, key, checksum: bits & 0x8000 != 0, sequence: bits & 0x1000 != 0 };
            assert_eq!(h.tunnel, Some(Tunnel { kind, start: 34, inner: 38 + 4 * usize::from(words) }));
            assert!(h.inner(&frame).unwrap().has_whole_layer4());
        }
    }
    let mut routed = Gre::new();
    routed.set(Gre::R, 1).set(Gre::PROTOCOL, ethertype::IPV4.into());
    let frame = build::ipv4_frame(&[], protocol::GRE, &[&routed.bytes()[..], &[0; 40]].concat());
    assert_eq!((parse(&frame).tunnel, parse(&frame).layer4), (None, Layer4::None));
}

#[test]
fn malformed_headers_end_the_parse() {
    let frame = build::transport_frame(&[], false, false, b"payload");
    let with = |at: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[at] = byte;
        parse(&frame)
    };
    assert_eq!(with(14, 0x55).ip, None, "version 5");
    assert_eq!(with(14, 0x44).ip, None, "a header of 16 bytes");
    assert_eq!(with(14, 0x4f).ip, None, "options beyond the datagram");
    assert_eq!(with(17, 19).ip, None, "a datagram shorter than its header");
    let short = with(17, 27);
    assert_eq!((short.layer4, short.l4), (Layer4::None, Some(34)), "half a UDP header");
}

#[test]
fn groups_and_padding() {
    assert!(is_multicast([1, 0, 0x5e, 0, 0, 1]) && is_multicast([0xff; 6]) && !is_multicast(DMAC));
    assert!(is_broadcast([0xff; 6]) && !is_broadcast([1, 0xff, 0xff, 0xff, 0xff, 0xff]));
    // The check sequence of a frame, appended, gives the residue of the polynomial (IEEE 802.3 3.2.9).
    let mut frame = build::frame(&[], ethertype::ARP, &[1, 2, 3]);
    let check = fcs(&frame);
    frame.extend(check);
    assert_eq!(crc32fast::hash(&frame), !0xdebb_20e3);
}

/// What may be put in front of random bytes, so that they get far.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let inner = [8, 0, 0, 0, 0, 0, 1, 0];
    let gre = [0x20, 0, 0x65, 0x58, 0, 0, 0, 1];
    prop::sample::select(vec![
        vec![],
        build::frame(&[S, C], ethertype::IPV4, &[]),
        build::frame(&[], ethertype::ROCE, &[0x60; 40]),
        build::ipv4_frame(&[], protocol::TCP, &[]),
        build::ipv4_frame(&[C], protocol::UDP, &build::udp(false, 1, 4791, &[])),
        build::ipv6_frame(&[], protocol::ROUTING, &[]),
        build::ipv6_frame(&[], protocol::UDP, &build::udp(true, 1, 4789, &inner)),
        build::ipv4_frame(&[], protocol::GRE, &gre),
    ])
}

proptest! {
    #[test]
    fn any_bytes_are_taken_and_offsets_lie_in_the_frame(
        head in heads(),
        tail in prop::collection::vec(any::<u8>(), 0..200),
        changes in prop::collection::vec((0usize..100, any::<u8>()), 0..6),
        cut in 0usize..300,
    ) {
        let mut frame = [head, tail].concat();
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(cut);
        for parsed in [Headers::parse(&frame), Headers::parse_template(&frame, &[4789])] {
            let Some(headers) = parsed else {
                prop_assert!(frame.len() < 12);
                continue;
            };
            for h in [Some(headers), headers.inner(&frame), headers.inner_template(&frame)].into_iter().flatten() {
                prop_assert!(h.l3 <= frame.len());
                let end = h.ip.map_or(frame.len(), |ip| ip.end);
                prop_assert!(end <= frame.len());
                prop_assert!(h.l4.is_none_or(|l4| l4 <= end));
                prop_assert!(h.tunnel.is_none_or(|t| t.inner <= end));
                prop_assert!(h.bth.is_none_or(|b| b.offset + 12 <= end));
            }
        }
    }

    #[test]
    fn what_was_built_is_parsed(
        tags in prop::sample::subsequence(vec![S, C], 0..=2),
        v6: bool,
        is_tcp: bool,
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let frame = build::transport_frame(&tags, v6, is_tcp, &payload);
        let h = parse(&frame);
        prop_assert_eq!(h.tags(), &tags[..]);
        let header = if is_tcp { 20 } else { 8 };
        prop_assert_eq!(&frame[h.l4.unwrap() + header..h.ip.unwrap().end], &payload[..]);
        prop_assert!(h.has_whole_layer4());
    }
}
