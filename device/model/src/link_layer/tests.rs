use proptest::prelude::*;

use hca_spec::ids::{Gid, Lid, Mkey, Psn, Qpn, Srqn};
use hca_spec::wire::{Bth, Grh, ICRC_SIZE, LNH_GRH, Lrh, Operation, Transport, VCRC_SIZE};

use super::ib::Address;
use super::*;
use crate::wire::{
    AethRepr, AtomicRepr, DcEthRepr, DethRepr, ExtendedHeaders, GrhRepr, MAX_PAYLOAD, Malformed, Masks,
    PortCounter, Repr, RethRepr, icrc,
};

/// The sample packet of IBTA vol 1 7.8.3 (table 29): RC, RDMA write only, 14 bytes of payload. Its
/// ICRC, 0x9625B75A, is printed there. The VCRC behind it is what the table of polynomial 0x100B
/// published in Mellanox VAPI's packet generator (2004) gives, and Endace's dagcrc.
const SAMPLE: [u8; 58] = [
    0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, // LRH
    0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, // BTH
    0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0, 0, 0, 0x0e, // RETH
    0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0,
    0, // payload, pad
    0x96, 0x25, 0xb7, 0x5a, // ICRC
    0x45, 0xfa, // VCRC
];

const SAMPLE_ADDRESS: Address = Address { vl: 7, sl: 1, ..Address::between(Lid(0x17d2), Lid(0x375c)) };

fn sample_path() -> Path {
    SAMPLE_ADDRESS.into()
}

fn sample_repr() -> Repr {
    Repr {
        operation: Operation::WriteOnly,
        pkey: 0x2487,
        dest_qp: Qpn(0x87b1b3),
        psn: Psn::new(0x0d_ec2a),
        reth: Some(RethRepr { va: 0x0171_0a1c_015d_4002, rkey: Mkey(0x38f2_7a05), len: 14 }),
        ..Repr::default()
    }
}

fn build(path: Path, repr: &Repr, payload: &[u8]) -> Packet {
    Packet::build(&path, repr, payload.len(), |p| {
        p.copy_from_slice(payload);
        Ok::<(), ()>(())
    })
    .unwrap()
}

/// Sets the CRCs of hand-made bytes right again, so that a test reaches the checks behind them.
fn sealed(mut bytes: Vec<u8>) -> Packet {
    bytes.truncate(bytes.len() - ICRC_SIZE - VCRC_SIZE);
    let lrh = Lrh::from_prefix_or_zero(&bytes);
    let global = lrh.get(Lrh::LNH) == LNH_GRH;
    let bth_at = Lrh::SIZE + if global { Grh::SIZE } else { 0 };
    let bth = Bth::from_prefix_or_zero(&bytes[bth_at..]);
    let rest = &bytes[bth_at + Bth::SIZE..];
    let icrc = match global {
        true => {
            let grh = GrhRepr::masked(&Grh::from_prefix_or_zero(&bytes[Lrh::SIZE..]));
            icrc(&[&[0xff; Lrh::SIZE], grh.bytes()], &bth, rest)
        }
        false => {
            let mut lrh = lrh;
            icrc(&[lrh.set(Lrh::VL, 15).bytes()], &bth, rest)
        }
    };
    bytes.extend_from_slice(&icrc);
    bytes.extend_from_slice(&[0; VCRC_SIZE]);
    ib::frame::set_vcrc(&mut bytes);
    Packet::from_bytes(bytes)
}

#[test]
fn golden_sample_is_built() {
    let packet = build(sample_path(), &sample_repr(), &SAMPLE[36..50]);
    assert_eq!(packet.clone().into_bytes(), SAMPLE);
}

#[test]
fn golden_sample_is_parsed() {
    let packet = Packet::from_bytes(SAMPLE.to_vec());
    assert_eq!(packet.parse(), Ok((sample_path(), sample_repr(), &SAMPLE[36..50])));
    assert_eq!((packet.ib(), packet.lane()), (SAMPLE_ADDRESS, 7));
}

#[test]
fn the_partition_is_read_from_every_packet() {
    let global = Packet::from_bytes(SAMPLE.to_vec());
    assert_eq!(global.pkey(), Some(sample_repr().pkey));
    let local = build(sample_path(), &Repr { pkey: 0x1234, ..sample_repr() }, &[]);
    assert_eq!(local.pkey(), Some(0x1234));
    let mut raw = local.into_bytes();
    raw[1] &= !3;
    assert_eq!((Packet::from_bytes(raw).pkey(), Packet::from_bytes(Vec::new()).pkey()), (None, None));
}

#[test]
fn every_single_bit_flip_of_the_sample_is_detected() {
    for bit in 0..SAMPLE.len() * 8 {
        let mut bytes = SAMPLE.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(Packet::from_bytes(bytes).parse(), Err(Malformed::Vcrc { .. })), "bit {bit}");
    }
}

#[test]
fn what_a_switch_or_router_changes_leaves_the_icrc_alone() {
    let grh = GrhRepr { tclass: 3, flow_label: 0x12345, hop_limit: 7, ..GrhRepr::default() };
    let icrc = |path: Path| {
        let p = build(path, &sample_repr(), &[1; 14]);
        p.clone().into_bytes()[p.len() - 6..p.len() - 2].to_vec()
    };
    let here = sample_path().with_grh(grh);
    let sent = icrc(here);
    let moved = GrhRepr { tclass: 9, flow_label: 1, hop_limit: 6, ..grh };
    let routed = Path::from(Address { sl: 4, ..Address::between(Lid(2), Lid(1)) }).with_grh(moved);
    assert_eq!(icrc(routed), sent);
    assert_ne!(icrc(here.with_grh(GrhRepr { dgid: Gid([1; 16]), ..grh })), sent);
    let local = icrc(sample_path());
    assert_eq!(icrc(Address { vl: 0, ..SAMPLE_ADDRESS }.into()), local);
    assert_ne!(icrc(Address { sl: 0, ..SAMPLE_ADDRESS }.into()), local);
}

#[test]
fn malformed_packets_name_the_reason() {
    let edit = |at: usize, value: u8| {
        let mut bytes = SAMPLE.to_vec();
        bytes[at] = value;
        sealed(bytes).parse().map(|(_, _, p)| p.len())
    };
    assert_eq!(edit(0, 0x71), Err(Malformed::LinkVersion(1)));
    assert_eq!(edit(5, 15), Err(Malformed::Length { said: 60, len: 56 }));
    assert_eq!(edit(1, 0x10), Err(Malformed::Raw(0)));
    assert_eq!(edit(1, 0x11), Err(Malformed::Raw(1)));
    assert_eq!(edit(9, 0x21), Err(Malformed::TransportVersion(1)));
    assert_eq!(edit(8, 0x35), Err(Malformed::Opcode(0x35)), "reserved operation on UC");
    assert_eq!(edit(8, 0x75), Err(Malformed::Opcode(0x75)), "reserved operation on UD");
    assert_eq!(edit(8, 0xe4), Err(Malformed::Opcode(0xe4)), "no such transport");
    // Those are for the responder to refuse.
    for reserved in [0x15, 0x18, 0x1f, 0xb5, 0xb8] {
        assert!(edit(8, reserved).is_ok(), "{reserved:#x}");
    }
    assert_eq!(edit(8, 0x4a), Err(Malformed::Opcode(0x4a)), "reliable datagram");
    assert_eq!(edit(8, 0x2c), Err(Malformed::Opcode(0x2c)), "no read on UC");
    assert_eq!(edit(8, 0x66), Err(Malformed::Opcode(0x66)), "no write on UD");
    assert_eq!(edit(8, 0x0c), Err(Malformed::Payload { operation: Operation::ReadRequest, len: 14, max: 0 }));
    assert_eq!(edit(9, 0x30), Ok(13));

    // Right VCRC over a wrong ICRC: what a broken switch makes.
    let mut bytes = SAMPLE.to_vec();
    bytes[40] ^= 4;
    ib::frame::set_vcrc(&mut bytes);
    let error = Packet::from_bytes(bytes).parse().unwrap_err();
    assert!(matches!(error, Malformed::Icrc { found: 0x9625_b75a, .. }), "{error}");
    assert_eq!(error.counter(), Some(PortCounter::RcvErrors));
    assert_eq!(Malformed::Opcode(0x35).counter(), None);

    let ack = Repr { operation: Operation::Acknowledge, ..Repr::default() };
    let mut bytes = Packet::build_empty(&Path::default(), &ack).into_bytes();
    bytes[9] |= 0x10;
    assert_eq!(sealed(bytes).parse().unwrap_err(), Malformed::Pad { pad: 1, len: 0 });
}

#[test]
fn a_wrong_grh_is_refused() {
    let good = build(sample_path().with_grh(GrhRepr::default()), &sample_repr(), &[7; 5]);
    let from_bth = good.len() - Lrh::SIZE - Grh::SIZE - VCRC_SIZE;
    for (at, value) in [(8, 0x40), (8 + 5, 0), (8 + 6, 0x11)] {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = value;
        assert!(
            matches!(sealed(bytes).parse(), Err(Malformed::Grh { len, .. }) if len == from_bth),
            "byte {at}"
        );
    }
}

#[test]
fn every_prefix_is_refused() {
    for len in 0..SAMPLE.len() {
        assert!(Packet::from_bytes(SAMPLE[..len].to_vec()).parse().is_err(), "{len} bytes");
    }
    // Even where the CRCs of the short packet are right.
    for len in ICRC_SIZE + VCRC_SIZE..44 {
        let mut bytes = SAMPLE[..len].to_vec();
        if let Some(low) = bytes.get_mut(5) {
            *low = ((len - VCRC_SIZE) / 4) as u8;
        }
        ib::frame::set_vcrc(&mut bytes);
        assert!(Packet::from_bytes(bytes).parse().is_err(), "{len} bytes");
    }
}

#[test]
fn sizes_of_the_smallest_and_the_largest() {
    let ack = Repr { operation: Operation::Acknowledge, ..Repr::default() };
    assert_eq!(Packet::build_empty(&Path::default(), &ack).len(), Packet::MIN_SIZE + 4);
    let path = Path::default().with_grh(GrhRepr::default());
    let large = Repr { transport: Transport::Xrc, operation: Operation::WriteOnlyImm, ..Repr::default() };
    let packet = build(path, &large, &[0xa5; MAX_PAYLOAD]);
    assert_eq!(packet.len(), 8 + 40 + 12 + 4 + 16 + 4 + 4096 + 4 + 2);
    assert_eq!(packet.parse().unwrap().2, [0xa5; MAX_PAYLOAD]);
}

#[test]
fn an_error_of_the_payload_source_is_handed_on() {
    assert_eq!(
        Packet::build(&sample_path(), &sample_repr(), 8, |_| Err("no memory")).unwrap_err(),
        "no memory"
    );
}

prop_compose! {
    fn grh_repr()(tclass: u8, flow_label in 0..1_u32 << 20, hop_limit: u8, sgid: [u8; 16], dgid: [u8; 16])
        -> GrhRepr { GrhRepr { tclass, flow_label, hop_limit, sgid: Gid(sgid), dgid: Gid(dgid) } }
}

prop_compose! {
    fn any_path()(sl in 0..16_u8, vl in 0..16_u8, dlid: u16, slid: u16, grh in prop::option::of(grh_repr())) -> Path {
        let path = Path::from(Address { sl, vl, ..Address::between(Lid(slid), Lid(dlid)) });
        grh.map_or(path, |grh| path.with_grh(grh))
    }
}

prop_compose! {
    /// Any headers that can exist, with exactly the extended ones that the opcode carries.
    fn any_repr()(
        (transport, operation) in (
            prop::sample::select(vec![Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc, Transport::Dc]),
            (0..32_u32).prop_map(Operation::from_opcode),
        ).prop_filter("no opcode", |(t, o)| ExtendedHeaders::by(*t, *o).is_some()),
        (solicited, migrated, ack_req, pkey) in any::<(bool, bool, bool, u16)>(),
        dest_qp in 0..1_u32 << 24,
        psn: u32,
        numbers: [u64; 4],
        words: [u32; 6],
    ) -> Repr {
        let c = ExtendedHeaders::by(transport, operation).unwrap();
        let low24 = |n: u32| n & 0xff_ffff;
        Repr {
            transport, operation, solicited, migrated, ack_req, pkey,
            dest_qp: Qpn(dest_qp),
            psn: Psn::new(psn),
            deth: c.deth.then_some(DethRepr { q_key: words[0], src_qp: Qpn(low24(words[1])) }),
            reth: c.reth.then_some(RethRepr { va: numbers[0], rkey: Mkey(words[2]), len: words[3] }),
            atomic: c.atomic.then_some(AtomicRepr {
                va: numbers[0], rkey: Mkey(words[2]), swap_add: numbers[1], compare: numbers[2],
                masks: c.masks.then_some(Masks { swap: numbers[3], compare: numbers[0], log_size: words[5] as u8 }),
            }),
            aeth: c.aeth.then_some(AethRepr { syndrome: words[4] as u8, msn: low24(words[5]) }),
            atomic_ack: c.atomic_ack.then_some(numbers[3]),
            imm: c.imm.then_some(words[0]),
            ieth: c.ieth.then_some(Mkey(words[1])),
            xrceth: c.xrceth.then_some(Srqn(low24(words[2]))),
            dceth: c.dceth.then_some(DcEthRepr {
                access_key: numbers[3], session: words[4], src_qp: Qpn(low24(words[5])),
            }),
        }
    }
}

proptest! {
    #[test]
    fn what_is_built_is_parsed(path in any_path(), repr in any_repr(), payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let payload = if ExtendedHeaders::by(repr.transport, repr.operation).unwrap().payload { payload } else { vec![] };
        let packet = build(path, &repr, &payload);
        prop_assert_eq!(packet.len() % 4, VCRC_SIZE);
        prop_assert_eq!(packet.parse(), Ok((path, repr, &payload[..])));
        prop_assert_eq!(packet.len(), path.header_size() + repr.header_size() + payload.len().next_multiple_of(4) + ICRC_SIZE + VCRC_SIZE);
        prop_assert_eq!(Some(packet.ib()), path.ib().copied());
    }

    #[test]
    fn any_flipped_bit_is_detected(path in any_path(), repr in any_repr(), bit: prop::sample::Index) {
        let mut bytes = Packet::build_empty(&path, &repr).into_bytes();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Packet::from_bytes(bytes).parse().is_err());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let packet = Packet::from_bytes(bytes);
        let _ = (packet.parse(), packet.ib(), packet.pkey(), packet.bth(), format!("{packet:?}"));
    }

    #[test]
    fn random_bytes_behind_right_crcs_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 72..200), global: bool) {
        bytes.truncate(bytes.len() / 4 * 4 + VCRC_SIZE);
        let words = (bytes.len() - VCRC_SIZE) / 4;
        bytes[0] &= 0xf0;
        bytes[1] = bytes[1] & 0xfc | if global { 3 } else { 2 };
        (bytes[4], bytes[5]) = (0, words as u8);
        let bth_at = if global { 48 } else { 8 };
        bytes[bth_at + 1] &= 0xf0;
        if let Ok((_, repr, payload)) = sealed(bytes).parse() {
            prop_assert!(payload.len() <= 200 && ExtendedHeaders::by(repr.transport, repr.operation).is_some());
        }
    }
}

/// A switch changes the lane: the bytes are those of a packet that was on it from the start.
#[test]
fn another_lane() {
    for from_bytes in [false, true] {
        let mut packet = build(sample_path(), &sample_repr(), &[1; 14]);
        if from_bytes {
            packet = Packet::from_bytes(packet.into_bytes());
        }
        packet.set_lane(3);
        let expected = build(Address { vl: 3, ..SAMPLE_ADDRESS }.into(), &sample_repr(), &[1; 14]);
        assert_eq!((packet.lane(), packet.parse().map(|p| p.0.ib().map(|a| a.vl))), (3, Ok(Some(3))));
        assert_eq!(packet, expected);
        assert_eq!(packet.into_bytes(), expected.into_bytes());
    }
    // What was wrong in the ICRC stays wrong.
    let mut bytes = SAMPLE.to_vec();
    bytes[30] ^= 1;
    let mut packet = Packet::from_bytes(bytes);
    assert!(matches!(packet.check_link(), Err(Malformed::Vcrc { .. })));
    packet.set_lane(3);
    assert!(matches!(packet.parse(), Err(Malformed::Icrc { .. })));
}
