//! Checksums against those of frames made right; bounds of lengths.

use hca_spec::ether::{ethertype, protocol};
use proptest::prelude::*;

use super::*;
use crate::wire::ethernet::build;

const ALL: Checksums = Checksums { l3: true, l4: true, inner_l3: true, inner_l4: true };
const OUTER: Checksums = Checksums { l3: true, l4: true, inner_l3: false, inner_l4: false };
const TAG: Tag = Tag { tpid: ethertype::C_TAG, tci: 0x2005 };
const S_TAG: Tag = Tag { tpid: ethertype::S_TAG, tci: 7 };

/// Where a frame's checksums are.
fn fields(h: &Headers) -> (Option<usize>, Option<usize>) {
    let v4 = h.ip.is_some_and(|ip| ip.version == IpVersion::V4);
    let l4 = match h.layer4 {
        Layer4::Tcp { .. } => h.l4.map(|l4| l4 + 16),
        Layer4::Udp { .. } => h.l4.map(|l4| l4 + 6),
        _ => None,
    };
    (v4.then_some(h.l3 + 10), l4)
}

/// The frame with rubbish where its checksums are.
fn spoilt(frame: &[u8]) -> Vec<u8> {
    let mut spoilt = frame.to_vec();
    let h = Headers::parse(frame).unwrap();
    let (l3, l4) = fields(&h);
    for at in [l3, l4].into_iter().flatten() {
        spoilt[at] ^= 0x5a;
        spoilt[at + 1] ^= 0xa5;
    }
    spoilt
}

#[test]
fn what_stands_in_the_fields_is_replaced() {
    for (v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        for tags in [&[][..], &[TAG], &[S_TAG, TAG]] {
            for len in [0, 1, 2, 333] {
                let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let right = build::transport_frame(tags, v6, is_tcp, &payload);
                let mut frame = spoilt(&right);
                assert_ne!(frame, right);
                insert_checksums(&mut frame, OUTER, &VxlanPorts::default());
                assert_eq!(frame, right, "v6 {v6} tcp {is_tcp} {len}");
                let h = Headers::parse(&right).unwrap();
                let checked = check(&right, &h);
                assert!(checked.l3 && checked.l4);
                let (_, l4) = fields(&h);
                let mut wrong = right.clone();
                wrong[l4.unwrap()] ^= 1;
                assert!(!check(&wrong, &h).l4);
            }
        }
    }
}

#[test]
fn one_of_them_alone() {
    let right = build::transport_frame(&[], false, true, b"abc");
    let spoilt = spoilt(&right);
    let (mut l3, mut l4, mut none) = (spoilt.clone(), spoilt.clone(), spoilt.clone());
    insert_checksums(&mut l3, Checksums { l3: true, ..Checksums::default() }, &VxlanPorts::default());
    insert_checksums(&mut l4, Checksums { l4: true, ..Checksums::default() }, &VxlanPorts::default());
    insert_checksums(&mut none, Checksums::from_bits(0), &VxlanPorts::default());
    assert_eq!((&l3[24..26], &l3[50..52]), (&right[24..26], &spoilt[50..52]));
    assert_eq!((&l4[24..26], &l4[50..52]), (&spoilt[24..26], &right[50..52]));
    assert_eq!(none, spoilt);
    assert_eq!(Checksums::from_bits(0xff), ALL);
    assert_eq!(Checksums::from_bits(cs_flags::L3 | cs_flags::L4), OUTER);
}

#[test]
fn fragments_and_what_is_cut_off_keep_their_layer_4() {
    let whole = build::transport_frame(&[], false, false, &[7; 40]);
    let mut first = whole.clone();
    first[20] = 0x20;
    let mut later = whole.clone();
    later[21] = 5;
    let mut short = whole.clone();
    short.truncate(50);
    for frame in [first, later, short] {
        let mut done = frame.clone();
        done[40..42].fill(0x77);
        let before = done.clone();
        insert_checksums(&mut done, OUTER, &VxlanPorts::default());
        assert_eq!(done[34..], before[34..]);
        let h = Headers::parse(&done).unwrap();
        let checked = check(&done, &h);
        assert!(checked.l3 && !checked.l4, "the header of IPv4 got its own");
    }
}

#[test]
fn udp_has_no_checksum_of_zero() {
    // The payload makes the sum all ones: its complement is 0.
    let frame = build::transport_frame(&[], false, false, &[0, 0]);
    let mut h = frame.clone();
    let sum = u16::from_be_bytes([frame[40], frame[41]]);
    h[42..44].copy_from_slice(&sum.to_be_bytes());
    insert_checksums(&mut h, OUTER, &VxlanPorts::default());
    assert_eq!(h[40..42], [0xff, 0xff]);
    assert!(check(&h, &Headers::parse(&h).unwrap()).l4);
    // TCP has: the field is then 0.
    let frame = build::transport_frame(&[], false, true, &[0, 0]);
    let mut h = frame.clone();
    let sum = u16::from_be_bytes([frame[50], frame[51]]);
    h[54..56].copy_from_slice(&sum.to_be_bytes());
    insert_checksums(&mut h, OUTER, &VxlanPorts::default());
    assert_eq!(h[50..52], [0, 0]);
    assert!(check(&h, &Headers::parse(&h).unwrap()).l4);
}

#[test]
fn udp_without_checksum_is_right_over_ipv4_only() {
    let udp = build::udp_without_checksum(1, 2, b"abc");
    let v4 = build::ipv4_frame(&[], protocol::UDP, &udp);
    let v6 = build::ipv6_frame(&[], protocol::UDP, &udp);
    assert!(check(&v4, &Headers::parse(&v4).unwrap()).l4);
    assert!(!check(&v6, &Headers::parse(&v6).unwrap()).l4);
}

#[test]
fn a_udp_length_that_is_not_that_of_ip() {
    // Two bytes more in the datagram than UDP counts.
    let udp = build::udp(false, 1, 2, b"abcd");
    let longer = build::ipv4_frame(&[], protocol::UDP, &[&udp[..], &[1, 2]].concat());
    assert!(check(&longer, &Headers::parse(&longer).unwrap()).l4);
    for length in [7u16, 15] {
        let mut wrong = longer.clone();
        wrong[38..40].copy_from_slice(&length.to_be_bytes());
        assert!(!check(&wrong, &Headers::parse(&wrong).unwrap()).l4);
    }
}

#[test]
fn a_tcp_header_longer_than_its_segment_is_not_right() {
    let mut frame = build::transport_frame(&[], false, true, b"abcd");
    assert!(check(&frame, &Headers::parse(&frame).unwrap()).l4);
    for words in [4, 7] {
        frame[46] = words << 4;
        insert_checksums(&mut frame, OUTER, &VxlanPorts::default());
        assert!(!check(&frame, &Headers::parse(&frame).unwrap()).l4, "{words} words");
    }
}

#[test]
fn tunnels_from_the_inside_out() {
    let inner = build::transport_frame(&[], false, true, b"inner");
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat();
    let right = build::ipv4_frame(&[], protocol::UDP, &build::udp(false, 5, 4789, &vxlan));
    let mut frame = spoilt(&right);
    let start = right.len() - inner.len();
    frame[start..].copy_from_slice(&spoilt(&inner));
    let mut outer_only = frame.clone();
    insert_checksums(&mut frame, ALL, &VxlanPorts::default());
    assert_eq!(frame, right);
    insert_checksums(&mut outer_only, OUTER, &VxlanPorts::default());
    assert_eq!(outer_only[start..], spoilt(&inner));
    // Nothing within: nothing happens.
    let mut plain = build::transport_frame(&[], false, true, b"x");
    let before = plain.clone();
    insert_checksums(
        &mut plain,
        Checksums { inner_l3: true, inner_l4: true, ..Checksums::default() },
        &VxlanPorts::default(),
    );
    assert_eq!(plain, before);
}

#[test]
fn tag_padding_and_lengths() {
    let right = build::transport_frame(&[], true, false, b"");
    let tagged = build::transport_frame(&[TAG], true, false, b"");
    let finish =
        |vlan, max_frame| Finish { checksums: OUTER, vlan, max_frame, vxlan_ports: VxlanPorts::default() };
    let mut frame = spoilt(&right);
    frame.reserve(64);
    assert_eq!(finish(Some(TAG), 66).apply(&mut frame), Ok(()));
    assert_eq!(frame, tagged);
    let mut frame = right.clone();
    assert_eq!(finish(Some(TAG), 65).apply(&mut frame).unwrap_err().syndrome as u8, 1);
    assert_eq!(finish(None, 62).apply(&mut frame), Ok(()));
    assert_eq!(finish(None, 61).apply(&mut frame).unwrap_err().syndrome as u8, 1);
    let mut short = build::frame(&[], ethertype::ARP, &[]);
    assert_eq!(finish(None, 1514).apply(&mut short), Ok(()));
    assert_eq!((short.len(), &short[14..]), (60, &[0; 46][..]));
    let mut shorter = short[..13].to_vec();
    assert!(finish(None, 1514).apply(&mut shorter).is_err());
}

#[test]
fn inline_modes() {
    let tcp = build::transport_frame(&[TAG], false, true, b"payload");
    let arp = build::frame(&[], ethertype::ARP, &[0; 46]);
    let least = |frame: &[u8], mode: InlineMode| {
        let h = Headers::parse(frame).unwrap();
        (0..100).find(|n| mode.is_satisfied(*n, &h))
    };
    use InlineMode::{Ip, L2, None, TcpUdp};
    assert_eq!([None, L2, Ip, TcpUdp].map(|mode| least(&tcp, mode)), [Some(0), Some(14), Some(38), Some(58)]);
    assert_eq!([None, L2, Ip, TcpUdp].map(|mode| least(&arp, mode)), [Some(0), Some(14), Some(14), Some(14)]);
    assert_eq!([0, 1, 2, 3].map(InlineMode::from_bits), [None, L2, Ip, TcpUdp].map(Some));
    assert_eq!(InlineMode::from_bits(4), Option::None);
}

proptest! {
    #[test]
    fn any_bytes(
        head in prop::sample::select(vec![
            vec![],
            build::transport_frame(&[TAG], false, true, b""),
            build::transport_frame(&[], true, false, b""),
            build::ipv4_frame(&[], protocol::UDP, &build::udp(false, 1, 4789, &[8, 0, 0, 0, 0, 0, 1, 0])),
        ]),
        tail in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((0usize..80, any::<u8>()), 0..5),
        vlan: bool,
    ) {
        let mut frame = [head, tail].concat();
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        let len = frame.len();
        let finish = Finish { checksums: ALL, vlan: vlan.then_some(TAG), max_frame: 1514, vxlan_ports: VxlanPorts::default() };
        if finish.apply(&mut frame).is_ok() {
            prop_assert_eq!(frame.len(), (len + if vlan { 4 } else { 0 }).max(60));
            let h = Headers::parse(&frame).unwrap();
            let checked = check(&frame, &h);
            let plain = h.tunnel.is_none();
            prop_assert!(!plain || h.ip.is_none() || checked.l3);
        } else {
            prop_assert!(len < 14);
        }
    }
}
