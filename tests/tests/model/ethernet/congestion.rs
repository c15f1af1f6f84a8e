//! Switches that are asked for more than a link takes: frames lost or kept, marks, and several ways.

use hca_driver::eth::Mac;
use hca_model::{PriorityQueue, Ps, Queueing, Red};
use hca_tests::fabric::{Plan, port};
use hca_tests::frames::{Flow, framed};
use hca_tests::lan::Lan;
use hca_tests::pair::pattern;

/// Priority of the traffic.
const PRIORITY: u8 = 3;
/// Its tag.
const TAG: u16 = (PRIORITY as u16) << 13 | 7;
/// Memory of a switch that is soon full.
const BUFFER: usize = 400 << 10;

/// All stations but the first send so many frames to it at once. Returns how many came.
fn incast(lan: &mut Lan, frames: usize, frame: impl Fn(Mac, Mac) -> Vec<u8>) -> Vec<Vec<u8>> {
    let to = lan.stations[0].mac;
    let mut sent = vec![0; lan.stations.len()];
    let (mut got, mut idle) = (Vec::new(), 0);
    while idle < 200 {
        for (n, station) in lan.stations.iter_mut().enumerate().skip(1) {
            station.sent();
            let bytes = frame(to, station.mac);
            while sent[n] < frames && station.sq.room() > 0 {
                station.send(&bytes);
                sent[n] += 1;
            }
        }
        lan.simulation.run(Ps::from_us(2));
        let now = lan.stations[0].frames();
        idle = if now.is_empty() { idle + 1 } else { 0 };
        got.extend(now);
    }
    got
}

/// Four send to one: a switch that asks them to wait, with PAUSE or PFC, loses nothing; another does, and says where. A priority
/// that is not asked to wait loses frames, too.
#[test]
fn switches_that_lose_nothing() {
    const FRAMES: usize = 400;
    let (mut pause, mut pfc) = (Queueing::default(), Queueing::default());
    pause.pause = true;
    pfc.priorities[usize::from(PRIORITY)] =
        PriorityQueue { lossless: true, alpha: PriorityQueue::LOSSLESS_ALPHA, ..PriorityQueue::default() };
    for (how, asked, keeps) in
        [(pause, 0, true), (pfc, 1 << PRIORITY, true), (pfc, 1 << 5, false), (Queueing::default(), 0, false)]
    {
        let mut lan = Lan::switched(&Plan::around(&[5], 0), Queueing { buffer: BUFFER, ..how });
        for station in &mut lan.stations {
            match asked {
                0 => station.set_pause(true, true),
                pfc => station.set_pfc(pfc),
            }
        }
        let frame = |to, from| framed(to, from, Some(TAG), 0x88b5, &pattern(1, 1400));
        let got = incast(&mut lan, FRAMES, frame).len();
        let counted = |p| {
            let counters = lan.simulation.world(|world, _| world.ethernet_counters(port(0, p)).copied());
            counters.expect("an Ethernet port")
        };
        let lost: u64 = (1..=5).map(|p| counted(p).tx.discards + counted(p).rx.discards).sum();
        let at_end = lan.counted(0).rx.discards + u64::from(lan.stations[0].out_of_buffer());
        assert_eq!(
            got as u64 + lost + at_end,
            4 * FRAMES as u64,
            "{how:?}, {lost} lost, {at_end} at the end"
        );
        assert_eq!(lost == 0, keeps, "{lost} lost by {how:?}");
        let of = |p| counted(p).tx.priorities[usize::from(PRIORITY)];
        let asks = how.pause || how.priorities[3].lossless;
        assert!((2..=5).all(|p| (of(p).pause > 0) == asks), "{how:?}");
        assert_eq!((counted(2).tx.pause > 0, of(1).pause), (how.pause, 0), "who gets them is not asked");
        // Who waits says so in its own counters, if it was told in a way that it heeds.
        let waited = lan.counted(1).rx.priorities[usize::from(PRIORITY)].pause_duration;
        assert_eq!(waited > 0, keeps, "{how:?}");
    }
}

/// Packets that meet a queue are marked if their senders can be told, and nothing else of them changes.
#[test]
fn queues_mark_packets() {
    const FRAMES: usize = 100;
    let mut how = Queueing::default();
    how.priorities[usize::from(PRIORITY)].ecn = Some(Red { kmin: 20_000, kmax: 60_000, pmax: 0.1 });
    for (tos, can) in [(0, false), (2, true), (1, true)] {
        let mut lan = Lan::switched(&Plan::around(&[4], 0), how);
        let flow = Flow { tcp: false, ..Flow::default() };
        let send = |to, from| {
            let mut frame = flow.frame(to, from, Some(TAG), true, &pattern(2, 1200));
            // The header's checksum follows: it was right for 0.
            frame[19] |= tos;
            let sum = u16::from_be_bytes([frame[28], frame[29]]);
            frame[28..30].copy_from_slice(&(sum - u16::from(tos)).to_be_bytes());
            frame
        };
        let (to, from) = (lan.stations[0].mac, lan.stations[1].mac);
        let untouched = send(to, from);
        let got = incast(&mut lan, FRAMES, send);
        let marked = got.iter().filter(|frame| frame[19] & 3 == 3).count();
        let counters = lan.simulation.world(|world, _| world.ethernet_counters(port(0, 1)).copied());
        assert_eq!(counters.expect("a port").ecn_marked as usize, marked);
        assert_eq!((marked > 0, got.len()), (can, 3 * FRAMES));
        assert!(marked < got.len(), "the first find no queue");
        for frame in got {
            assert_eq!(hca_tests::frames::checksum(&[&frame[18..38]]), 0, "a wrong header");
            assert_eq!(
                (&frame[..6], &frame[20..28], &frame[38..]),
                (&untouched[..6], &untouched[20..28], &untouched[38..])
            );
        }
    }
}

/// Two leaves with two stations each, two spines, two cables from each leaf to each: flows go by all of them, one by one; what is for
/// all comes once to each; and with spines gone everything goes by those that are left.
#[test]
fn flows_take_all_ways() {
    let mut plan = Plan::around(&[2, 2], 4);
    for spine in 2..4 {
        plan.switches.push(4);
        for leaf in 0..2 {
            for cable in 1..=2 {
                let (up, down) = (2 + 2 * (spine as u8 - 2) + cable, 2 * leaf as u8 + cable);
                plan.join(port(leaf, up), port(spine, down));
            }
        }
    }
    let mut lan = Lan::switched(&plan, Queueing::default());
    lan.simulation.run(Ps::from_us(1000));
    let (to, from) = (lan.stations[2].mac, lan.stations[0].mac);
    let sent_up = |lan: &Lan| -> Vec<u64> {
        let frames = |p| {
            lan.simulation.world(|world, _| world.port_counters(port(0, p)).map_or(0, |c| c.xmit_packets))
        };
        (3..=6).map(frames).collect()
    };
    let send = |lan: &mut Lan, flows: std::ops::Range<u16>| {
        let before = sent_up(lan);
        for n in flows.clone() {
            let flow = Flow { tcp: false, ports: (0xc000 + n, 4791), ..Flow::default() };
            lan.stations[0].send(&flow.frame(to, from, None, true, &[n as u8; 100]));
            lan.run();
        }
        assert_eq!(lan.stations[2].frames().len(), flows.len());
        assert!(lan.stations[1].frames().is_empty() && lan.stations[3].frames().is_empty());
        sent_up(lan).iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    let shares = send(&mut lan, 0..60);
    assert!(shares.iter().all(|n| (5..30).contains(n)), "{shares:?}");
    let same = send(&mut lan, 7..8);
    assert_eq!((send(&mut lan, 7..8), same.iter().sum::<u64>()), (same, 1), "a flow has one way");
    // Once to everybody, whatever the cables.
    let all = framed(Mac([0xff; 6]), from, None, 0x88b5, &[7; 80]);
    lan.stations[0].send(&all);
    lan.run();
    for station in &mut lan.stations[1..] {
        assert_eq!(station.frames(), std::slice::from_ref(&all));
    }
    // The first spine's cables go: they came after those of the stations.
    for link in 4..8 {
        lan.simulation.world(|world, now| world.set_cable(now, link, false));
    }
    lan.run();
    let shares = send(&mut lan, 0..40);
    assert!(shares[..2] == [0, 0] && shares[2..].iter().all(|n| *n > 5), "{shares:?}");
    lan.stations[0].send(&all);
    lan.run();
    assert!(lan.stations[1..].iter_mut().all(|station| station.frames() == [all.clone()]));
}
