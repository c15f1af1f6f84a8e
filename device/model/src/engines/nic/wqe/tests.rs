//! WQEs as drivers write them, and any bytes.

use hca_spec::cqe::Syndrome;
use hca_spec::wqe::cs_flags;
use proptest::prelude::*;

use super::*;

/// A WQE with that opcode, Ethernet segment, and what follows it.
fn wqe(opcode: EthOpcode, opmod: u32, segment: &EthSeg, rest: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0; Ctrl::SIZE][..], segment.bytes(), rest].concat();
    bytes.resize(bytes.len().next_multiple_of(DS_UNIT), 0);
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, opcode as u32).set(Ctrl::OPMOD, opmod).set(Ctrl::WQE_INDEX, 0xfffe);
    ctrl.set(Ctrl::QPN, 0x123).set(Ctrl::CE, CE_ALWAYS).set(Ctrl::DS, (bytes.len() / DS_UNIT) as u32);
    bytes[..Ctrl::SIZE].copy_from_slice(ctrl.bytes());
    bytes
}

fn data(len: u32, va: u64) -> [u8; 16] {
    let mut data = Data::new();
    data.set(Data::BYTE_COUNT, len).set(Data::LKEY, 7).set(Data::ADDRESS, va);
    *data.bytes()
}

fn inline(bytes: &[u8]) -> Vec<u8> {
    let mut all = (0x8000_0000 | bytes.len() as u32).to_be_bytes().to_vec();
    all.extend(bytes);
    all.resize(all.len().next_multiple_of(DS_UNIT), 0);
    all
}

fn memory(len: u32, va: u64) -> Piece {
    Piece::Memory { key: Mkey(7), va, len }
}

/// An Ethernet segment with the beginning of an inline header, and the rest of that, padded.
fn with_header(header: &[u8]) -> (EthSeg, Vec<u8>) {
    let mut segment = EthSeg::new();
    segment.set(EthSeg::INLINE_HEADER_SIZE, header.len() as u32);
    let (start, rest) = header.split_at(header.len().min(2));
    segment.bytes_mut()[14..14 + start.len()].copy_from_slice(start);
    let mut rest = rest.to_vec();
    rest.resize(rest.len().next_multiple_of(DS_UNIT), 0xee);
    (segment, rest)
}

fn frame(bytes: &[u8]) -> Frame {
    match EthWqe::parse(bytes).unwrap().work {
        Work::Frame(frame) => frame,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_with_an_inline_header_of_any_length() {
    for len in [0, 1, 2, 3, 18, 19, 34, 100] {
        let header: Vec<u8> = (1..=len).collect();
        let (mut segment, rest) = with_header(&header);
        segment.set(EthSeg::CS_FLAGS, cs_flags::L3 | cs_flags::L4);
        let bytes =
            wqe(EthOpcode::Send, 0, &segment, &[&rest[..], &data(1000, 0x5000), &data(0, 1)].concat());
        let parsed = EthWqe::parse(&bytes).unwrap();
        assert_eq!((parsed.index, parsed.sqn, parsed.opcode, parsed.signaled), (0xfffe, 0x123, 0x0a, true));
        let frame = frame(&bytes);
        assert_eq!((frame.header, frame.vlan, frame.data), (header, None, 1000), "{len}");
        assert_eq!(frame.pieces, [memory(1000, 0x5000)]);
        assert!(frame.checksums.l3 && frame.checksums.l4 && !frame.checksums.is_inner());
    }
}

#[test]
fn a_tag_takes_the_place_of_the_header() {
    for (service, tpid) in [(0, 0x8100), (1, 0x88a8)] {
        let mut segment = EthSeg::new();
        segment.set(EthSeg::INSERT_VLAN, 1).set(EthSeg::INSERT_SVLAN, service).set(EthSeg::VLAN_TCI, 0xa005);
        let frame = frame(&wqe(EthOpcode::Send, 0, &segment, &[&inline(b"abc")[..], &data(9, 9)].concat()));
        assert_eq!((frame.vlan, frame.header.len()), (Some(Tag { tpid, tci: 0xa005 }), 0));
        assert_eq!(frame.pieces, [Piece::Inline(Inline::from_slice(b"abc")), memory(9, 9)]);
        assert_eq!(frame.data, 12);
    }
}

#[test]
fn large_send() {
    let (mut segment, rest) = with_header(&[5; 54]);
    segment.set(EthSeg::MSS, 1448);
    let send = |len| wqe(EthOpcode::Lso, 0, &segment, &[&rest[..], &data(len, 0)].concat());
    let parsed = EthWqe::parse(&send(100_000)).unwrap();
    assert_eq!(parsed.frames(), 70);
    let Work::Lso { mss: 1448, frame } = parsed.work else { panic!("LSO") };
    assert_eq!((frame.header.len(), frame.data), (54, 100_000));
    assert!(EthWqe::parse(&send(MAX_DATA as u32)).is_ok());
    assert_eq!(EthWqe::parse(&send(MAX_DATA as u32 + 1)).unwrap_err().syndrome, Syndrome::LocalLength);
    segment.set(EthSeg::INSERT_VLAN, 1);
    assert!(EthWqe::parse(&wqe(EthOpcode::Lso, 0, &segment, &data(10, 0))).is_err());
}

#[test]
fn enhanced_multi_packet() {
    let mut segment = EthSeg::new();
    segment.set(EthSeg::CS_FLAGS, cs_flags::L4);
    let rest = [&data(60, 1)[..], &inline(&[3; 61]), &data(1500, 2)].concat();
    let parsed = EthWqe::parse(&wqe(EthOpcode::EnhancedMpsw, 0, &segment, &rest)).unwrap();
    assert_eq!(parsed.frames(), 3);
    let Work::Frames(frames) = parsed.work else { panic!("frames") };
    assert_eq!(frames.iter().map(|f| f.data).collect::<Vec<_>>(), [60, 61, 1500]);
    assert!(frames.iter().all(|f| f.checksums.l4 && f.header.is_empty()));
    assert!(EthWqe::parse(&wqe(EthOpcode::EnhancedMpsw, 0, &segment, &[])).is_err());
    let (segment, rest) = with_header(&[1; 18]);
    let with_header = [&rest[..], &data(60, 1)].concat();
    assert!(EthWqe::parse(&wqe(EthOpcode::EnhancedMpsw, 0, &segment, &with_header)).is_err());
}

#[test]
fn multi_packet_of_the_old_form() {
    let mut segment = EthSeg::new();
    segment.set(EthSeg::MSS, 64);
    let parse = |segment: &EthSeg, rest: &[u8]| EthWqe::parse(&wqe(EthOpcode::Lso, 1, segment, rest));
    let rest = [&data(100, 0x1000)[..], &data(28, 0x2000), &inline(&[7; 64])].concat();
    let Work::Frames(frames) = parse(&segment, &rest).unwrap().work else { panic!("frames") };
    let pieces: Vec<_> = frames.iter().map(|f| f.pieces.clone()).collect();
    assert_eq!(
        pieces,
        [
            vec![memory(64, 0x1000)],
            vec![memory(36, 0x1040), memory(28, 0x2000)],
            vec![Piece::Inline(Inline::from_elem(7, 64))],
        ]
    );
    assert!(parse(&segment, &data(63, 0)).is_err() && parse(&segment, &data(65, 0)).is_err());
    assert!(parse(&segment, &data(64 * 63, 0)).is_ok());
    assert!(parse(&segment, &data(64 * 64, 0)).is_err(), "more frames than a WQE has units");
    assert!(parse(&segment, &[]).is_err());
    for mss in [0, 13] {
        segment.set(EthSeg::MSS, mss);
        assert!(parse(&segment, &data(13 * 14, 0)).is_err());
    }
    let (mut segment, rest) = with_header(&[1; 18]);
    segment.set(EthSeg::MSS, 64);
    assert!(parse(&segment, &[&rest[..], &data(64, 0)].concat()).is_err());
}

#[test]
fn what_is_too_short_or_unknown() {
    let (segment, rest) = with_header(&[1; 40]);
    let bytes = wqe(EthOpcode::Send, 0, &segment, &rest);
    for len in [0, 15, 16, 31, 32, 48, 79] {
        assert_eq!(EthWqe::parse(&bytes[..len]).is_ok(), len >= 80, "{len}");
    }
    assert_eq!(bytes.len(), 80);
    let mut long = wqe(EthOpcode::Send, 0, &EthSeg::new(), &inline(&[1; 30]));
    assert!(EthWqe::parse(&long).is_ok());
    long[35] = 45;
    assert!(EthWqe::parse(&long).is_err(), "inline data of 45 bytes");
    let mut unknown = long.clone();
    unknown[3] = 0x08;
    assert_eq!(EthWqe::parse(&unknown).unwrap_err().why, "unknown opcode");
    for (opcode, work) in [(EthOpcode::Nop, Work::Nop), (EthOpcode::Umr, Work::Umr)] {
        let parsed = EthWqe::parse(&wqe(opcode, 0, &EthSeg::new(), &[])[..16]).unwrap();
        assert_eq!((parsed.frames(), parsed.work), (0, work));
    }
}

#[test]
fn frames_longer_than_the_port_sends_are_not_gathered() {
    let (segment, rest) = with_header(&[1; 14]);
    let frame = frame(&wqe(EthOpcode::Send, 0, &segment, &[&rest[..], &data(1500, 0)].concat()));
    assert_eq!(frame.check(1514), Ok(()));
    assert_eq!(frame.check(1513).unwrap_err().syndrome, Syndrome::LocalLength);
}

proptest! {
    #[test]
    fn any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..1008),
        opcode in prop::sample::select(vec![0u8, 0x0a, 0x0e, 0x25, 0x29]),
        opmod in 0u8..2,
        mss in 0u16..100,
        short: bool,
    ) {
        let mut bytes = bytes;
        if bytes.len() > 32 {
            (bytes[0], bytes[3]) = (opmod, opcode);
            bytes[22..24].copy_from_slice(&mss.to_be_bytes());
            if short {
                bytes[28..30].fill(0);
            }
        }
        if let Ok(wqe) = EthWqe::parse(&bytes) {
            let frames = match wqe.work {
                Work::Frames(frames) => frames,
                Work::Frame(frame) | Work::Lso { frame, .. } => vec![frame],
                Work::Nop | Work::Umr => vec![],
            };
            prop_assert!(frames.len() <= 63);
            for frame in frames {
                prop_assert_eq!(frame.data, total(&frame.pieces));
                prop_assert!(frame.pieces.len() <= 63 && frame.header.len() < 1024);
            }
        }
    }
}
