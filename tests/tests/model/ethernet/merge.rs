//! Segments of TCP that the adapter makes one (LRO).

use hca_driver::eth::{MergeReport, MergeRules};
use hca_model::Ps;
use hca_spec::ether::ethertype;
use hca_tests::frames::{Flow, Segment, checksum, framed, plain};
use hca_tests::lan::Lan;
use hca_tests::pair::pattern;

/// Bytes of the headers of a frame without options.
const HEADERS: usize = 14 + 20 + 20;
/// What the tests' receiver has merged: up to 1792 bytes, for 1 ms.
const RULES: MergeRules = MergeRules { v4: true, v6: false, most: 7, timeout: 1024 };
const ACK: u32 = 0x10;
const PUSHED: u32 = 0x18;

fn lan(rules: &MergeRules) -> Lan {
    let mut lan = Lan::cable();
    let tir = lan.stations[1].tir;
    lan.stations[1].hca.merge_segments(tir, rules).expect("MODIFY_TIR");
    lan
}

/// Sends a segment and lets it arrive, but no session end.
fn send(lan: &mut Lan, flow: &Flow, of: &Segment, data: &[u8]) {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let kind = if flow.v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let frame = framed(to, from, None, kind, &flow.segment(true, of, data));
    lan.stations[0].send(&frame);
    lan.simulation.run(Ps::from_us(50));
    lan.stations[0].sent();
}

/// Until all sessions have ended.
fn wait(lan: &Lan) {
    lan.simulation.run(Ps::from_ms(3));
}

/// The data of segments that follow each other is one, behind the first one's headers; the completion says the rest.
#[test]
pub(crate) fn segments_become_one() {
    let mut lan = lan(&RULES);
    let flow = Flow::default();
    let lens = [333usize, 500, 1, 700];
    let mut all = Vec::new();
    for (i, len) in lens.into_iter().enumerate() {
        let flags = if i + 1 == lens.len() { PUSHED } else { ACK };
        let of = Segment {
            sequence: 0xffff_ff00u32.wrapping_add(all.len() as u32),
            acknowledged: i as u32,
            flags,
        };
        let data = pattern(i as u64, len);
        send(&mut lan, &flow, &of, &data);
        all.extend(data);
    }
    wait(&lan);
    let [one] = &lan.stations[1].received()[..] else { panic!("one frame") };
    assert_eq!(one.bytes[HEADERS..], all);
    let report = one.completion.frame;
    let merged = MergeReport { segments: 4, pushed: true, acknowledged: 3, window: 500, ttl: 64 };
    assert_eq!((report.merged, report.l3_ok, report.l4_ok), (Some(merged), true, true));
    assert_eq!(!report.checksum % 0xffff, checksum(&[&all]) % 0xffff);
    assert_eq!(lan.stations[1].out_of_buffer(), 0);
}

/// What does not continue a flow comes behind what did, and other flows and kinds of frames are left alone.
#[test]
pub(crate) fn sessions_end() {
    let mut lan = lan(&RULES);
    let (one, other) = (Flow::default(), Flow { ports: (1, 2), ..Flow::default() });
    let at = |sequence: u32, flags| Segment { sequence, acknowledged: 7, flags };
    send(&mut lan, &one, &at(0, ACK), &[1; 100]);
    send(&mut lan, &other, &at(0, ACK), &[2; 100]);
    send(&mut lan, &one, &at(100, ACK), &[3; 100]);
    // Neither IPv6 nor what is no TCP waits for anything.
    send(&mut lan, &Flow { v6: true, ..one }, &at(0, ACK), &[4; 100]);
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    lan.stations[0].send(&plain(to, from, &[5; 100]));
    lan.simulation.run(Ps::from_us(50));
    let first = |lan: &mut Lan| -> Vec<(u8, usize, u8)> {
        let all = lan.stations[1].received().into_iter();
        all.map(|arrived| {
            let segments = arrived.completion.frame.merged.map_or(1, |merged| merged.segments);
            (arrived.bytes.last().copied().unwrap_or(0), arrived.bytes.len(), segments)
        })
        .collect()
    };
    assert_eq!(first(&mut lan), [(4, HEADERS + 20 + 100, 1), (5, 114, 1)]);
    // A gap; then one that does not fit any more; then the end of the flow.
    send(&mut lan, &one, &at(201, ACK), &[6; 1000]);
    assert_eq!(first(&mut lan), [(3, HEADERS + 200, 2)]);
    send(&mut lan, &one, &at(1201, ACK), &[7; 900]);
    assert_eq!(first(&mut lan), [(6, HEADERS + 1000, 1)]);
    send(&mut lan, &one, &at(2101, ACK | 1), &[8; 100]);
    assert_eq!(first(&mut lan), [(7, HEADERS + 900, 1), (8, HEADERS + 100, 1)]);
    // Who wants nothing merged any more gets what was begun all the same.
    let tir = lan.stations[1].tir;
    let none = MergeRules { v4: false, v6: false, most: 0, timeout: 0 };
    lan.stations[1].hca.merge_segments(tir, &none).expect("MODIFY_TIR");
    wait(&lan);
    assert_eq!(first(&mut lan), [(2, HEADERS + 100, 1)]);
    send(&mut lan, &one, &at(9, ACK), &[9; 100]);
    assert_eq!(first(&mut lan), [(9, HEADERS + 100, 1)]);
}

/// Segments are gathered as long as the receiver says, and a queue that is reset forgets them.
#[test]
pub(crate) fn time_is_up() {
    let mut lan = lan(&MergeRules { timeout: 1024, ..RULES });
    let flow = Flow::default();
    let at = |sequence: u32| Segment { sequence, acknowledged: 7, flags: ACK };
    send(&mut lan, &flow, &at(0), &[1; 100]);
    send(&mut lan, &flow, &at(100), &[2; 100]);
    assert!(lan.stations[1].received().is_empty());
    wait(&lan);
    let [one] = &lan.stations[1].received()[..] else { panic!("one frame") };
    assert_eq!(one.bytes.len(), HEADERS + 200);
    send(&mut lan, &flow, &at(200), &[3; 100]);
    let station = &mut lan.stations[1];
    station.hca.modify_rq(&mut station.rq, hca_driver::eth::QueueState::Reset).expect("MODIFY_RQ");
    station.hca.modify_rq(&mut station.rq, hca_driver::eth::QueueState::Ready).expect("MODIFY_RQ");
    station.post_all();
    wait(&lan);
    assert!(lan.stations[1].received().is_empty(), "it was forgotten");
}
