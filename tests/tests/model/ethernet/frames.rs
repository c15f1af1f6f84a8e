//! Frames as they are sent and received: lengths, tags, checksums, large sends, hashes.

use hca_driver::eth::{
    Destination, FlowEntry, FrameRequest, FrameWork, HashRules, Mac, QueueState, RqConfig,
};
use hca_driver::{CqConfig, Dma, Sge};
use hca_spec::cqe::{l3_header_type, l4_header_type};
use hca_spec::ether::{HEADER_SIZE, ethertype};
use hca_spec::flow::MatchParam;
use hca_spec::wqe::cs_flags;
use hca_tests::frames::{Flow, framed, plain};
use hca_tests::lan::{Lan, ROOM};
use hca_tests::pair::pattern;

const SUMS: u32 = cs_flags::L3 | cs_flags::L4;

/// The first two stations' addresses.
fn macs(lan: &Lan) -> (Mac, Mac) {
    (lan.stations[0].mac, lan.stations[1].mac)
}

/// Every length up to the MTU arrives as it was sent; short frames are padded with zeros.
#[test]
pub(crate) fn every_length() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    assert_ne!(a, b);
    for len in [0, 1, 2, 45, 46, 47, 100, 511, 512, 1499, 1500] {
        let frame = plain(b, a, &pattern(len as u64, len));
        lan.stations[0].send(&frame);
        lan.run();
        let sent = lan.stations[0].sent();
        assert_eq!((sent.len(), sent[0].status), (1, Ok(())), "{len}");
        let got = lan.stations[1].frames();
        let mut right = frame.clone();
        right.resize(frame.len().max(60), 0);
        assert!(got == [right], "{len} bytes: {got:x?}");
    }
    let (counted, far) = (lan.counted(0), lan.counted(1));
    assert_eq!((counted.tx.frames, far.rx.frames, far.rx.unicast), (11, 11, 11));
    assert_eq!(counted.tx.octets, far.rx.octets);
    assert_eq!(far.rx.errors, 0);
}

/// The inline header and pieces of memory become one frame, whatever lies where.
#[test]
pub(crate) fn inline_and_gathered() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    let frame = plain(b, a, &pattern(5, 700));
    for inline in [0, 1, 2, 3, 14, 17, 18, 19, 33, 200, 714] {
        let station = &mut lan.stations[0];
        let (header, rest) = frame.split_at(inline);
        let cut = rest.len().min(90);
        let data: [Sge; 2] = [station.out(3, &rest[..cut]), station.out(4096 + 7, &rest[cut..])];
        station.request(&FrameRequest::new(1, header, &data));
        lan.run();
        assert_eq!(lan.stations[0].sent().iter().map(|c| c.status).collect::<Vec<_>>(), [Ok(())]);
        assert!(lan.stations[1].frames() == [frame.clone()], "{inline} inline");
    }
}

#[test]
pub(crate) fn checksums_are_inserted_and_checked() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    for (v6, tcp, tci) in
        [(false, true, None), (false, false, Some(7)), (true, true, Some(0x2005)), (true, false, None)]
    {
        for len in [0, 1, 33, 1200] {
            let flow = Flow { v6, tcp, ..Flow::default() };
            let data = pattern(len as u64, len);
            let right = flow.frame(b, a, tci, true, &data);
            let station = &mut lan.stations[0];
            let piece = [station.out(0, &flow.frame(b, a, tci, false, &data))];
            station.request(&FrameRequest::new(1, &[], &piece).checksums(SUMS));
            lan.run();
            let got = lan.stations[1].received();
            let [arrived] = &got[..] else { panic!("{} frames", got.len()) };
            assert_eq!(arrived.bytes[..right.len()], right[..], "{flow:?} {len}");
            let report = arrived.completion.frame;
            assert!(report.l3_ok && report.l4_ok, "{flow:?} {len}");
            let kind = if v6 { l3_header_type::IPV6 } else { l3_header_type::IPV4 };
            assert_eq!(u32::from(report.l3_type), kind);
            let kind = match (tcp, len) {
                (false, _) => l4_header_type::UDP,
                (true, 0) => l4_header_type::TCP_ACK_NO_DATA,
                _ => l4_header_type::TCP_ACK_AND_DATA,
            };
            assert_eq!(u32::from(report.l4_type), kind);
            // The sum of the datagram: what is summed up, inverted, is its checksum.
            let datagram = flow.datagram(true, &data);
            assert_eq!(!report.checksum, hca_tests::frames::checksum(&[&datagram]), "{flow:?} {len}");
        }
    }
    // A wrong one is told, and nothing else.
    let mut wrong = Flow::default().frame(b, a, None, true, b"data");
    *wrong.last_mut().expect("a byte") ^= 1;
    lan.stations[0].send(&wrong);
    wrong[24] ^= 1;
    lan.stations[0].send(&wrong);
    lan.run();
    let got: Vec<_> = lan.stations[1]
        .received()
        .iter()
        .map(|a| (a.completion.frame.l3_ok, a.completion.frame.l4_ok))
        .collect();
    assert_eq!(got, [(true, false), (false, false)]);
}

/// A queue that was asked for it has the frame check sequence behind each frame, that of the frame as it came; room is needed for it, too. It is
/// switched on and off while frames come.
#[test]
pub(crate) fn check_sequences_are_kept() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    let station = &mut lan.stations[1];
    let mut cq = station.hca.create_cq(CqConfig::new(16)).expect("CREATE_CQ");
    let config = RqConfig { check_sequences: true, strip_vlan: true, ..RqConfig::new(station.pd, &cq) };
    let mut rq = station.hca.create_rq(&config).expect("CREATE_RQ");
    station.hca.modify_rq(&mut rq, QueueState::Ready).expect("MODIFY_RQ");
    let tir = station.hca.create_direct_tir(station.domain, rq.number()).expect("CREATE_TIR");
    station.take_nothing();
    let (anything, to) = (MatchParam::new(), [Destination::Tir(tir)]);
    let entry = FlowEntry { value: &anything, destinations: &to, counters: &[], tag: 0 };
    station.hca.set_flow_entry(station.anything, 31, &entry).expect("SET_FLOW_TABLE_ENTRY");
    let memory = station.mr.address;
    let untagged = plain(b, a, &pattern(1, 100));
    let tagged = framed(b, a, Some(0x6123), 0x88b5, &pattern(1, 100));
    let short = plain(b, a, &pattern(2, 3));
    let tcp = Flow::default().frame(b, a, None, true, b"data of a segment, and more");
    let mut number = 0;
    let mut pass = |lan: &mut Lan, rq: &mut hca_driver::eth::Rq<_>, frame: &[u8], room: usize| {
        let station = &mut lan.stations[1];
        let place = [Sge { len: room as u32, ..station.out(0, &[0; ROOM]) }];
        let offset = (place[0].address - memory) as usize;
        rq.post(number, &place).expect("post");
        lan.stations[0].send(frame);
        lan.run();
        let completion = cq.poll().expect("a completion");
        assert_eq!(rq.finish(&completion), Some(number));
        number += 1;
        let mut bytes = vec![0; completion.byte_len as usize];
        lan.stations[1].memory.read(offset, &mut bytes);
        (completion, bytes)
    };
    for frame in [&untagged, &tagged, &short, &tcp] {
        let mut came = frame.clone();
        came.resize(came.len().max(60), 0);
        let sequence = hca_model::wire::ethernet::fcs(&came);
        let is_tagged = came[12..14] == [0x81, 0];
        if is_tagged {
            came.drain(12..16);
        }
        let (completion, bytes) = pass(&mut lan, &mut rq, frame, ROOM);
        assert_eq!((completion.status, completion.frame.vlan.is_some()), (Ok(()), is_tagged));
        let (data, behind) = bytes.split_at(came.len());
        assert!(data == came && behind == sequence, "{bytes:x?}");
        // What the completion says of sums is of the frame without it.
        if *frame == tcp {
            assert!(completion.frame.l3_ok && completion.frame.l4_ok);
        }
    }
    lan.stations[1].hca.rq_check_sequences(&rq, false).expect("MODIFY_RQ");
    let (completion, bytes) = pass(&mut lan, &mut rq, &untagged, untagged.len());
    assert_eq!((completion.status, bytes), (Ok(()), untagged.clone()));
    lan.stations[1].hca.rq_check_sequences(&rq, true).expect("MODIFY_RQ");
    let (completion, _) = pass(&mut lan, &mut rq, &untagged, untagged.len() + 4);
    assert_eq!((completion.status, completion.byte_len as usize), (Ok(()), untagged.len() + 4));
    let (completion, _) = pass(&mut lan, &mut rq, &untagged, untagged.len() + 3);
    assert!(completion.status.is_err(), "no room for all of it");
}

#[test]
pub(crate) fn tags_go_in_and_out() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    let untagged = plain(b, a, &pattern(1, 100));
    let tagged = framed(b, a, Some(0x6123), 0x88b5, &pattern(1, 100));
    let piece = [lan.stations[0].out(0, &untagged)];
    lan.stations[0].request(&FrameRequest { vlan: Some(0x6123), ..FrameRequest::new(1, &[], &piece) });
    lan.run();
    let got = lan.stations[1].received();
    assert!(got.len() == 1 && got[0].bytes == tagged && got[0].completion.frame.vlan.is_none());
    // A queue that takes them out.
    let station = &mut lan.stations[1];
    let mut cq = station.hca.create_cq(CqConfig::new(16)).expect("CREATE_CQ");
    let config =
        RqConfig { strip_vlan: true, requests: 4, user_index: 0x77, ..RqConfig::new(station.pd, &cq) };
    let mut rq = station.hca.create_rq(&config).expect("CREATE_RQ");
    station.hca.modify_rq(&mut rq, QueueState::Ready).expect("MODIFY_RQ");
    let tir = station.hca.create_direct_tir(station.domain, rq.number()).expect("CREATE_TIR");
    station.take_nothing();
    let anything = MatchParam::new();
    let to = [Destination::Tir(tir)];
    let entry = FlowEntry { value: &anything, destinations: &to, counters: &[], tag: 0x1234 };
    station.hca.set_flow_entry(station.anything, 31, &entry).expect("SET_FLOW_TABLE_ENTRY");
    for i in 0..2 {
        let room = station.out(i * ROOM, &[0; ROOM]);
        rq.post(i as u64, &[room]).expect("post");
    }
    lan.stations[0].send(&tagged);
    lan.stations[0].send(&untagged);
    lan.run();
    let station = &mut lan.stations[1];
    let mut got = Vec::new();
    while let Some(completion) = cq.poll() {
        assert_eq!((completion.status, completion.srqn.0), (Ok(()), 0x77));
        let at = rq.finish(&completion).expect("a request") as usize * ROOM;
        let mut bytes = vec![0; completion.byte_len as usize];
        hca_driver::Dma::read(&station.memory, hca_tests::lan::REQUESTS * ROOM + at, &mut bytes);
        got.push((completion.frame.vlan, completion.frame.flow_tag, bytes == untagged));
    }
    assert_eq!(got, [(Some(0x6123), 0x1234, true), (None, 0x1234, true)]);
    station.hca.delete_flow_entry(station.table, 31).expect("DELETE_FLOW_TABLE_ENTRY");
    station.hca.destroy_tir(tir).expect("DESTROY_TIR");
    station.hca.destroy_rq(rq).expect("DESTROY_RQ");
    station.hca.destroy_cq(cq).expect("DESTROY_CQ");
}

/// A large send arrives as segments that together are the data, each with right lengths and checksums.
#[test]
pub(crate) fn large_sends() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    for (v6, tcp, mss, len) in [
        (false, true, 1448, 40_000),
        (false, true, 100, 99),
        (true, true, 1428, 1428 * 3),
        (false, false, 512, 5_000),
        (true, false, 1, 20),
    ] {
        let flow = Flow { v6, tcp, ..Flow::default() };
        let data = pattern(9, len);
        let header = flow.frame(b, a, Some(0x2007), false, &[]);
        let pieces =
            [lan.stations[0].out(0, &data[..len / 3]), lan.stations[0].out(50_000, &data[len / 3..])];
        let work = FrameWork::Large { mss };
        lan.stations[0].request(&FrameRequest::new(1, &header, &pieces).checksums(SUMS).work(work));
        lan.run();
        let sent = lan.stations[0].sent();
        assert_eq!(sent.iter().map(|c| c.status).collect::<Vec<_>>(), [Ok(())], "{flow:?}");
        let got = lan.stations[1].received();
        assert_eq!(got.len(), len.div_ceil(mss.into()), "{flow:?}");
        let mut whole = Vec::new();
        for arrived in &got {
            let report = arrived.completion.frame;
            assert!(report.l3_ok && report.l4_ok, "{flow:?}");
            let ip = HEADER_SIZE + 4;
            let end = match v6 {
                true => {
                    ip + 40 + usize::from(u16::from_be_bytes([arrived.bytes[ip + 4], arrived.bytes[ip + 5]]))
                }
                false => ip + usize::from(u16::from_be_bytes([arrived.bytes[ip + 2], arrived.bytes[ip + 3]])),
            };
            if tcp {
                let at = header.len() - 16;
                let sequence = u32::from_be_bytes(arrived.bytes[at..at + 4].try_into().expect("4 bytes"));
                assert_eq!(sequence, 0xffff_f000u32.wrapping_add(whole.len() as u32));
            }
            whole.extend_from_slice(&arrived.bytes[header.len()..end]);
        }
        assert!(whole == data, "{flow:?}: the data is another");
    }
}

/// WQEs with several frames, of both forms.
#[test]
pub(crate) fn several_frames_in_a_request() {
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    let frames: Vec<_> = (0..5).map(|i| plain(b, a, &pattern(i, 64 - HEADER_SIZE))).collect();
    let all = [lan.stations[0].out(0, &frames.concat())];
    lan.stations[0].request(&FrameRequest::new(1, &[], &all).work(FrameWork::Equal { len: 64 }));
    lan.run();
    assert!(lan.stations[1].frames() == frames);
    let frames: Vec<_> = (0..5).map(|i| plain(b, a, &pattern(i, 60 + 100 * i as usize))).collect();
    let each: Vec<_> = frames.iter().enumerate().map(|(i, f)| lan.stations[0].out(i * ROOM, f)).collect();
    lan.stations[0].request(&FrameRequest::new(2, &[], &each).work(FrameWork::Each));
    lan.stations[0].request(&FrameRequest::new(3, &[], &[]).work(FrameWork::Nop));
    lan.run();
    assert!(lan.stations[1].frames() == frames);
    let sent: Vec<_> = lan.stations[0].sent().iter().map(|c| (c.status, c.send_opcode)).collect();
    assert_eq!(sent, [(Ok(()), 0x0e), (Ok(()), 0x29), (Ok(()), 0)]);
}

/// The Toeplitz hash of the completion is that of Microsoft's published test vectors, and it chooses the queue.
#[test]
pub(crate) fn hashes_choose_queues() {
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    /// Source address, port, destination address, port, hash with ports.
    type Vector = ([u8; 4], u16, [u8; 4], u16, u32);
    const VECTORS: [Vector; 5] = [
        ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x51cc_c178),
        ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xc626_b0ea),
        ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0x5c2b_394a),
        ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0xafc7_327f),
        ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x10e8_28a2),
    ];
    let mut lan = Lan::cable();
    let (a, b) = macs(&lan);
    let station = &mut lan.stations[1];
    let mut cq = station.hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
    let mut rqs = Vec::new();
    for user_index in 0..4 {
        let config =
            RqConfig { user_index: 0x100 + user_index, requests: 8, ..RqConfig::new(station.pd, &cq) };
        let mut rq = station.hca.create_rq(&config).expect("CREATE_RQ");
        station.hca.modify_rq(&mut rq, QueueState::Ready).expect("MODIFY_RQ");
        for i in 0..8 {
            let room = station.out(0, &[0; ROOM]);
            rq.post(i, &[room]).expect("post");
        }
        rqs.push(rq);
    }
    // More places than queues.
    let numbers: Vec<_> = (0..8).map(|i| rqs[i % 4].number()).collect();
    let rqt = station.hca.create_rqt(&numbers, 16).expect("CREATE_RQT");
    const FIELDS: u32 = 0xf;
    let rules = HashRules { function: 2, symmetric: false, key: KEY, fields: FIELDS };
    let tir = station.hca.create_hashed_tir(station.domain, rqt, &rules).expect("CREATE_TIR");
    station.take_nothing();
    let anything = MatchParam::new();
    let to = [Destination::Tir(tir)];
    let entry = FlowEntry { value: &anything, destinations: &to, counters: &[], tag: 0 };
    station.hca.set_flow_entry(station.anything, 31, &entry).expect("SET_FLOW_TABLE_ENTRY");
    let mut send = |lan: &mut Lan, (source, from, destination, to, _): ([u8; 4], u16, [u8; 4], u16, u32)| {
        let flow = Flow { source, destination, ports: (from, to), ..Flow::default() };
        lan.stations[0].send(&flow.frame(b, a, None, true, b"x"));
        lan.run();
        let completion = cq.poll().expect("a frame");
        assert_eq!((completion.status, cq.poll()), (Ok(()), None));
        completion
    };
    for vector in VECTORS {
        let completion = send(&mut lan, vector);
        assert_eq!(completion.frame.hash, vector.4);
        assert_eq!(completion.srqn.0, 0x100 + vector.4 % 8 % 4, "{vector:?}");
    }
    // The table is given other queues while traffic goes on.
    lan.stations[1].hca.modify_rqt(rqt, &numbers[3..4]).expect("MODIFY_RQT");
    for vector in VECTORS {
        assert_eq!(send(&mut lan, vector).srqn.0, 0x103);
    }
    // What has no IP has no hash, and goes to the first.
    lan.stations[0].send(&framed(b, a, None, ethertype::ARP, &[0; 46]));
    lan.run();
    let completion = cq.poll().expect("a frame");
    assert_eq!((completion.frame.hash, completion.frame.hash_l3, completion.srqn.0), (0, 0, 0x103));
    let station = &mut lan.stations[1];
    station.hca.delete_flow_entry(station.table, 31).expect("DELETE_FLOW_TABLE_ENTRY");
    station.hca.destroy_tir(tir).expect("DESTROY_TIR");
    station.hca.destroy_rqt(rqt).expect("DESTROY_RQT");
    for rq in rqs {
        station.hca.destroy_rq(rq).expect("DESTROY_RQ");
    }
    station.hca.destroy_cq(cq).expect("DESTROY_CQ");
}
