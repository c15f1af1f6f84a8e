//! Frames that LSO makes: put together again they are the data; each is right by itself.

use hca_spec::cqe::Syndrome;
use hca_spec::ether::{ethertype, protocol};
use proptest::prelude::*;

use super::*;
use crate::engines::nic::transmit::check;
use crate::wire::ethernet::{Tag, build};

const SUMS: Checksums = Checksums { l3: true, l4: true, inner_l3: false, inner_l4: false };
const TAG: Tag = Tag { tpid: ethertype::C_TAG, tci: 9 };

/// All frames.
fn cut(header: &[u8], data: &[u8], mss: u16, sums: Checksums) -> Vec<Vec<u8>> {
    let lso = Lso::new(header, data.len() as u64, mss, sums, &VxlanPorts::default()).unwrap();
    let mut frame = Vec::new();
    (0..lso.frames())
        .map(|i| {
            let range = lso.data(i);
            lso.write(i, header, &data[range.start as usize..range.end as usize], &mut frame);
            assert_eq!(frame.len(), lso.frame_len(i));
            frame.clone()
        })
        .collect()
}

/// A header as a stack hands it over: lengths of the whole, or none.
fn template(tags: &[Tag], v6: bool, is_tcp: bool, flags: u32) -> Vec<u8> {
    let mut frame = build::transport_frame(tags, v6, is_tcp, b"");
    let at = 14 + 4 * tags.len() + if v6 { 40 } else { 20 };
    if is_tcp {
        frame[at + 13] = flags as u8;
    }
    // Rubbish where lengths and checksums are.
    let length = at - if v6 { 36 } else { 18 };
    frame[length..length + 2].fill(0);
    if !v6 {
        frame[at - 10..at - 8].fill(0x55);
    }
    frame
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn tcp_over_both_versions() {
    let all = tcp_flags::FIN | tcp_flags::PSH | tcp_flags::ACK | tcp_flags::CWR;
    for v6 in [false, true] {
        let header = template(&[TAG], v6, true, all);
        let data = data(3001);
        let frames = cut(&header, &data, 1000, SUMS);
        assert_eq!(frames.len(), 4);
        let mut together: Vec<u8> = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            let h = Headers::parse(frame).unwrap();
            let checked = check(frame, &h);
            assert!(checked.l3 && checked.l4 && h.ip.unwrap().end == frame.len(), "v6 {v6} frame {i}");
            let l4 = h.l4.unwrap();
            let tcp = Tcp::from_prefix_or_zero(&frame[l4..]);
            assert_eq!(tcp.get(Tcp::SEQUENCE), 0xffff_f000u32.wrapping_add(i as u32 * 1000));
            let mut flags = tcp_flags::ACK;
            if i == 0 {
                flags |= tcp_flags::CWR;
            }
            if i == 3 {
                flags |= tcp_flags::FIN | tcp_flags::PSH;
            }
            assert_eq!(tcp.get(Tcp::FLAGS), flags, "frame {i}");
            if !v6 {
                let ip = Ipv4::from_prefix_or_zero(&frame[h.l3..]);
                assert_eq!(ip.get(Ipv4::ID), 0x1234 + i as u32);
            }
            together.extend(&frame[l4 + 20..]);
        }
        assert_eq!(together, data);
        assert_eq!(frames[0][..18], header[..18]);
    }
}

#[test]
fn identification_and_sequence_number_wrap() {
    let mut header = template(&[], false, true, 0x10);
    header[18..20].fill(0xff);
    let frames = cut(&header, &data(20), 10, SUMS);
    assert_eq!((&frames[0][18..20], &frames[1][18..20]), (&[0xff, 0xff][..], &[0, 0][..]));
    // 5000 bytes before the end of the numbers, see `build`.
    let frames = cut(&template(&[], false, true, 0x10), &data(5000), 4096, SUMS);
    assert_eq!(frames[1][38..42], [0, 0, 0, 0]);
}

#[test]
fn udp_has_its_length_and_a_checksum() {
    for v6 in [false, true] {
        let header = template(&[], v6, false, 0);
        for (i, frame) in cut(&header, &data(25), 11, SUMS).iter().enumerate() {
            let h = Headers::parse(frame).unwrap();
            let Layer4::Udp { length, .. } = h.layer4 else { panic!("UDP") };
            assert_eq!(length, if i == 2 { 11 } else { 19 });
            assert!(check(frame, &h).l4);
        }
    }
}

#[test]
fn without_flags_the_checksum_of_layer_4_stays() {
    let header = template(&[], false, true, 0x10);
    for frame in cut(&header, &data(25), 10, Checksums::default()) {
        assert_eq!(frame[50..52], header[50..52]);
        let checked = check(&frame, &Headers::parse(&frame).unwrap());
        assert!(checked.l3 && !checked.l4, "the header of IPv4 is new in each frame");
    }
}

#[test]
fn no_data_and_one_frame() {
    let header = template(&[], false, true, tcp_flags::FIN | tcp_flags::CWR);
    for len in [0, 1, 100] {
        let frames = cut(&header, &data(len), 100, SUMS);
        assert_eq!((frames.len(), frames[0].len()), (1, 54 + len));
        assert_eq!(frames[0][47], (tcp_flags::FIN | tcp_flags::CWR) as u8);
    }
    let lso = Lso::new(&header, 100, 100, SUMS, &VxlanPorts::default()).unwrap();
    assert_eq!((lso.data(1), lso.data(u64::MAX)), (100..100, 100..100));
}

#[test]
fn a_header_with_more_than_headers_is_repeated() {
    let header = [template(&[], false, true, 0x10), b"odd".to_vec()].concat();
    for frame in cut(&header, &data(50), 20, SUMS) {
        assert_eq!(&frame[54..57], b"odd");
        assert!(check(&frame, &Headers::parse(&frame).unwrap()).l4);
    }
}

/// A header with a tunnel: VXLAN, or GRE with these bits.
fn tunnel(gre: Option<u16>, outer_v6: bool, inner_v6: bool) -> Vec<u8> {
    let inner = template(&[], inner_v6, true, 0x18);
    let (number, payload) = match gre {
        None => {
            (protocol::UDP, build::udp(outer_v6, 5, 4789, &[&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat()))
        }
        Some(bits) => {
            let head = [bits.to_be_bytes(), ethertype::ETHERNET.to_be_bytes()].concat();
            let word = if bits == 0 { &[][..] } else { &[0, 0, 0, 7] };
            (protocol::GRE, [&head, word, &inner].concat())
        }
    };
    if outer_v6 { build::ipv6_frame(&[], number, &payload) } else { build::ipv4_frame(&[], number, &payload) }
}

#[test]
fn what_a_tunnel_carries_is_cut() {
    let sums = Checksums { inner_l3: true, inner_l4: true, ..SUMS };
    for gre in [None, Some(0), Some(0x2000)] {
        for (outer_v6, inner_v6) in [(false, false), (false, true), (true, false)] {
            let header = tunnel(gre, outer_v6, inner_v6);
            let data = data(101);
            let frames = cut(&header, &data, 40, sums);
            assert_eq!(frames.len(), 3);
            let mut together: Vec<u8> = Vec::new();
            for frame in &frames {
                let outer = Headers::parse(frame).unwrap();
                let inner = outer.inner(frame).unwrap();
                let (outside, inside) = (check(frame, &outer), check(frame, &inner));
                assert!(outside.l3 && inside.l3 && inside.l4);
                assert!(gre.is_some() || outside.l4);
                assert_eq!((outer.ip.unwrap().end, inner.ip.unwrap().end), (frame.len(), frame.len()));
                together.extend(&frame[inner.l4.unwrap() + 20..]);
            }
            assert_eq!(together, data);
        }
    }
}

#[test]
fn what_can_not_be_cut() {
    let header = template(&[], false, true, 0x10);
    let refused = |header: &[u8], data: u64, mss: u16, sums| {
        Lso::new(header, data, mss, sums, &VxlanPorts::default()).unwrap_err()
    };
    assert_eq!(refused(&header, 10, 0, SUMS).syndrome, Syndrome::LocalQpOperation);
    assert!(Lso::new(&header, MAX_DATA, 1448, SUMS, &VxlanPorts::default()).is_ok());
    assert_eq!(refused(&header, MAX_DATA + 1, 1448, SUMS).syndrome, Syndrome::LocalLength);
    for len in 0..header.len() {
        assert_eq!(refused(&header[..len], 10, 5, SUMS).syndrome, Syndrome::LocalQpOperation, "{len} bytes");
    }
    let mut long = header.clone();
    long[46] = 0x60;
    refused(&long, 10, 5, SUMS);
    long[46] = 0x40;
    refused(&long, 10, 5, SUMS);
    refused(&build::ipv4_frame(&[], protocol::ICMP, &[0; 8]), 10, 5, SUMS);
    let mut fragment = header.clone();
    fragment[20] = 0x20;
    refused(&fragment, 10, 5, SUMS);
    // A datagram has 65535 bytes: 20 of IP and 20 of TCP.
    assert!(Lso::new(&header, 100_000, 65495, SUMS, &VxlanPorts::default()).is_ok());
    refused(&header, 100_000, 65496, SUMS);
    assert!(Lso::new(&header, 65495, 65535, SUMS, &VxlanPorts::default()).is_ok(), "the data is what counts");
    let inner = Checksums { inner_l4: true, ..SUMS };
    refused(&header, 10, 5, inner);
    refused(&tunnel(Some(0x8000), false, false), 10, 5, inner);
    let gre = build::ipv4_frame(&[], protocol::GRE, &[0, 0, 8, 0, 0, 0]);
    refused(&gre, 10, 5, SUMS);
}

proptest! {
    #[test]
    fn frames_make_the_data_again(
        v6: bool,
        is_tcp: bool,
        len in 0usize..3000,
        mss in 1u16..2000,
    ) {
        prop_assume!(len / usize::from(mss) < 200);
        let header = template(&[], v6, is_tcp, 0x18);
        let data = data(len);
        let mut together: Vec<u8> = Vec::new();
        for frame in cut(&header, &data, mss, SUMS) {
            let checked = check(&frame, &Headers::parse(&frame).unwrap());
            prop_assert!(checked.l3 && checked.l4);
            together.extend(&frame[header.len()..]);
        }
        prop_assert_eq!(together, data);
    }

    #[test]
    fn any_header(
        base in prop::sample::select(vec![
            template(&[TAG], false, true, 0xff),
            template(&[], true, false, 0),
            tunnel(None, false, true),
            tunnel(Some(0x2000), true, false),
        ]),
        changes in prop::collection::vec((0usize..120, any::<u8>()), 0..5),
        cut_off in 0usize..40,
        flags: u32,
        mss: u16,
    ) {
        let mut header = base;
        for (at, byte) in changes {
            if let Some(place) = header.get_mut(at) {
                *place = byte;
            }
        }
        header.truncate(header.len().saturating_sub(cut_off));
        let data = [0x5a; 64];
        if let Ok(lso) = Lso::new(&header, 64, mss, Checksums::from_bits(flags), &VxlanPorts::default()) {
            let mut frame = Vec::new();
            for i in 0..lso.frames() {
                let range = lso.data(i);
                lso.write(i, &header, &data[range.start as usize..range.end as usize], &mut frame);
                prop_assert!(frame.len() <= header.len() + usize::from(mss));
            }
        }
    }
}
