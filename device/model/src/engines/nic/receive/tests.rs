//! What host and completion get of frames.

use hca_spec::cqe::{rss_l3, rss_l4};
use hca_spec::ether::{ethertype, protocol};
use proptest::prelude::*;

use super::*;
use crate::wire::ethernet::{Tag, build, pad};

const C: Tag = Tag { tpid: ethertype::C_TAG, tci: 0xe123 };
const S: Tag = Tag { tpid: ethertype::S_TAG, tci: 0x0456 };
const RULES: ReceiveRules = ReceiveRules { strip_vlan: true, scatter_fcs: false, user_index: 0x77 };

fn receive<'a>(rules: &ReceiveRules, frame: &'a [u8]) -> Received<'a> {
    rules.receive(frame, &Headers::parse(frame).unwrap(), Steered::default(), 5, 2048)
}

fn cqe(frame: &[u8]) -> Cqe {
    receive(&RULES, frame).cqe
}

fn bytes(received: &Received<'_>) -> Vec<u8> {
    received.data.unwrap().parts().concat()
}

#[test]
fn the_entry_says_what_it_is_about() {
    let frame = build::transport_frame(&[], false, true, b"data");
    let hash = Hash { value: 0xdead_beef, l3: rss_l3::IPV4, l4: rss_l4::TCP };
    let steered = Steered { hash, flow_tag: 0x123456, merged: None };
    let received = RULES.receive(&frame, &Headers::parse(&frame).unwrap(), steered, 0xfffe, 2048);
    let bytes = received.cqe.bytes();
    assert_eq!(bytes[0x0c..0x12], [0xde, 0xad, 0xbe, 0xef, 0x44, 0]);
    assert_eq!(bytes[0x1c..0x24], [7, 0x48, 0, 0, 0, 0, 0, 0x77]);
    assert_eq!(bytes[0x24..0x30], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 58]);
    assert_eq!(bytes[0x38..], [0, 0x12, 0x34, 0x56, 0xff, 0xfe, 0, 0x20]);
}

#[test]
fn the_tag_goes_into_the_entry_if_it_is_the_customers() {
    let frame = |tags: &[Tag]| build::transport_frame(tags, false, true, b"abc");
    let plain = frame(&[]);
    let tagged = frame(&[C]);
    let received = receive(&RULES, &tagged);
    assert_eq!((received.cqe.get(Cqe::VLAN_STRIPPED), received.cqe.get(Cqe::VLAN_INFO)), (1, 0xe123));
    assert_eq!((bytes(&received), received.cqe.get(Cqe::BYTE_CNT)), (plain.clone(), plain.len() as u32));
    let keep = ReceiveRules { strip_vlan: false, ..RULES };
    for (rules, tags) in [(keep, &[C][..]), (RULES, &[S]), (RULES, &[S, C]), (RULES, &[])] {
        let frame = frame(tags);
        let received = receive(&rules, &frame);
        assert_eq!((received.cqe.get(Cqe::VLAN_STRIPPED), received.cqe.get(Cqe::VLAN_INFO)), (0, 0));
        assert_eq!(bytes(&received), frame);
        assert_eq!(received.cqe.get(Cqe::L4_OK), 1);
    }
    let two = frame(&[C, S]);
    assert_eq!(bytes(&receive(&RULES, &two)), frame(&[S]));
}

#[test]
fn the_check_sequence_is_that_of_the_frame_as_it_came() {
    let frame = build::transport_frame(&[C], true, true, b"abc");
    let received = receive(&ReceiveRules { scatter_fcs: true, ..RULES }, &frame);
    let right = [build::transport_frame(&[], true, true, b"abc"), fcs(&frame).to_vec()].concat();
    assert_eq!((bytes(&received), received.cqe.get(Cqe::BYTE_CNT)), (right.clone(), right.len() as u32));
}

#[test]
fn a_frame_without_room_is_an_error() {
    let frame = build::transport_frame(&[C], false, true, &[0; 100]);
    let headers = Headers::parse(&frame).unwrap();
    for (rules, len) in [
        (RULES, frame.len() - 4),
        (ReceiveRules { strip_vlan: false, ..RULES }, frame.len()),
        (ReceiveRules { scatter_fcs: true, ..RULES }, frame.len()),
    ] {
        let room = |room: usize| rules.receive(&frame, &headers, Steered::default(), 9, room as u64);
        assert_eq!(room(len).data.map(|data| data.len()), Some(len));
        let Received { cqe, data } = room(len - 1);
        assert_eq!((data, cqe.get(Cqe::OPCODE)), (None, CqeOpcode::RespErr as u32));
        assert_eq!((cqe.get(Cqe::SYNDROME), cqe.get(Cqe::WQE_COUNTER)), (Syndrome::LocalLength as u32, 9));
    }
    let flushed = error_cqe(&RULES, 3, Syndrome::WorkRequestFlushed);
    assert_eq!(flushed.bytes()[0x36..], [0xf9, 5, 0, 0, 0, 0, 0, 3, 0, 0xe0]);
}

#[test]
fn the_sum_is_that_of_the_datagram() {
    for v6 in [false, true] {
        for len in [0, 1, 7, 200] {
            for tags in [&[][..], &[C], &[S, C]] {
                let payload: Vec<u8> = (0..len).map(|i: u8| i.wrapping_mul(3)).collect();
                let mut frame = build::transport_frame(tags, v6, true, &payload);
                let sum = !build::checksum(&[&frame[14 + 4 * tags.len()..]]);
                pad(&mut frame);
                frame.extend([0xee; 3]);
                assert_eq!(cqe(&frame).get(Cqe::CHECK_SUM), sum.into(), "padding is not in the sum");
            }
        }
    }
    let mut fragment = build::transport_frame(&[], false, true, &[9; 50]);
    fragment[21] = 1;
    let sum = !build::checksum(&[&fragment[14..]]);
    assert_eq!(cqe(&fragment).get(Cqe::CHECK_SUM), sum.into());
    let later = build::ipv6_frame(
        &[],
        protocol::FRAGMENT,
        &[&build::fragment(protocol::UDP, 4, false)[..], &[1, 2, 3]].concat(),
    );
    assert_eq!(cqe(&later).get(Cqe::CHECK_SUM), (!build::checksum(&[&later[14..]])).into());
    assert_eq!(cqe(&build::frame(&[], ethertype::ARP, &[5; 46])).get(Cqe::CHECK_SUM), 0);
}

#[test]
fn kinds_of_headers() {
    let of = |cqe: Cqe| {
        [Cqe::L3_HEADER_TYPE, Cqe::L4_HEADER_TYPE, Cqe::IP_FRAGMENT, Cqe::L3_OK, Cqe::L4_OK]
            .map(|f| cqe.get(f))
    };
    let tcp =
        |flags, payload: &[u8]| build::ipv4_frame(&[], protocol::TCP, &build::tcp(false, flags, payload));
    assert_eq!(of(cqe(&tcp(tcp_flags::SYN, b""))), [2, 1, 0, 1, 1]);
    assert_eq!(of(cqe(&tcp(tcp_flags::ACK, b""))), [2, 3, 0, 1, 1]);
    assert_eq!(of(cqe(&tcp(tcp_flags::ACK, b"x"))), [2, 4, 0, 1, 1]);
    assert_eq!(of(cqe(&build::transport_frame(&[], true, false, b"x"))), [1, 2, 0, 1, 1]);
    assert_eq!(of(cqe(&build::ipv4_frame(&[], protocol::ICMP, &[0; 8]))), [2, 0, 0, 1, 0]);
    assert_eq!(of(cqe(&build::frame(&[], ethertype::ARP, &[0; 46]))), [0; 5]);
    let mut fragment = build::transport_frame(&[], false, false, b"x");
    fragment[20] = 0x20;
    assert_eq!(of(cqe(&fragment)), [2, 0, 1, 0, 0]);
    let mut wrong = tcp(tcp_flags::ACK, b"x");
    wrong[54] ^= 1;
    assert_eq!(of(cqe(&wrong)), [2, 4, 0, 1, 0]);
    let hops = [&build::extension(protocol::UDP, 6)[..], &build::udp(true, 1, 2, b"")].concat();
    let options = cqe(&build::ipv6_frame(&[], protocol::HOP_BY_HOP, &hops));
    assert_eq!((options.get(Cqe::IP_OPTIONS), of(options)), (1, [1, 2, 0, 1, 1]));
    assert_eq!(cqe(&wrong).get(Cqe::IP_OPTIONS), 0);
}

proptest! {
    #[test]
    fn any_bytes(frame in prop::collection::vec(any::<u8>(), 12..200), v4: bool, strip_vlan: bool, scatter_fcs: bool) {
        let mut frame = frame;
        if v4 && frame.len() > 14 {
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        }
        let rules = ReceiveRules { strip_vlan, scatter_fcs, user_index: 0 };
        let received = receive(&rules, &frame);
        let stripped = received.cqe.get(Cqe::VLAN_STRIPPED) as usize * 4;
        let len = frame.len() - stripped + if scatter_fcs { 4 } else { 0 };
        prop_assert_eq!(received.cqe.get(Cqe::BYTE_CNT) as usize, len);
        prop_assert_eq!(bytes(&received).len(), len);
        prop_assert_eq!(received.cqe.get(Cqe::LRO_NUM_SEG), 0);
    }
}
