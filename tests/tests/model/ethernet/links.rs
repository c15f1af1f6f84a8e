//! Links and switches of Ethernet: bad frames, flow control, learning.

use hca_driver::eth::Mac;
use hca_model::link_layer::Packet;
use hca_model::{HcaId, Ps};
use hca_tests::frames::{framed, plain};
use hca_tests::lan::Lan;
use hca_tests::pair::pattern;

/// What is wrong with a frame is counted where it belongs, and nobody gets it.
#[test]
pub(crate) fn bad_frames_are_counted() {
    let mut lan = Lan::cable();
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let good = Packet::frame(plain(to, from, &[9; 100])).into_bytes();
    let inject = |bytes: Vec<u8>| {
        let packet = Packet::from_frame_bytes(bytes);
        lan.simulation.world(|world, now| world.inject_packet(now, HcaId(1), packet));
        lan.run();
    };
    for bit in [0, 47, 96, 500, 8 * good.len() - 1] {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        inject(bytes);
    }
    // A right FCS, and too short.
    for len in [0, 3, 4, 17, 63] {
        let mut bytes = good[..len.max(4) - 4].to_vec();
        let fcs = hca_model::wire::ethernet::fcs(&bytes);
        bytes.extend(fcs);
        bytes.truncate(len);
        inject(bytes);
    }
    // Longer than the MTU, and as long.
    for len in [1500, 1501, 1504, 1505, 9000] {
        inject(Packet::frame(plain(to, from, &vec![1; len])).into_bytes());
    }
    let counted = lan.counted(1);
    assert_eq!((counted.fcs_errors, counted.undersize), (5, 5));
    // The MTU has room for two tags: 1522 bytes with FCS.
    assert_eq!((counted.oversize, counted.rx.errors), (2, 12));
    assert_eq!(lan.stations[1].frames().len(), 3);
}

/// What arrives while a station is slow: more than its buffer holds.
fn burst(lan: &mut Lan, frames: usize) -> usize {
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &pattern(1, 1400));
    let (mut sent, mut got, mut idle) = (0, 0, 0);
    while idle < 100 {
        while sent < frames && lan.stations[0].sq.room() > 0 {
            lan.stations[0].send(&frame);
            sent += 1;
        }
        lan.simulation.run(Ps::from_us(2));
        lan.stations[0].sent();
        let now = lan.stations[1].received();
        assert!(now.iter().all(|arrived| arrived.bytes == frame));
        got += now.len();
        idle = if now.is_empty() { idle + 1 } else { 0 };
    }
    got
}

/// Everything arrives that is sent at the rate of the link.
#[test]
pub(crate) fn bursts_arrive() {
    const FRAMES: usize = 2000;
    let mut lan = Lan::cable();
    let got = burst(&mut lan, FRAMES);
    assert_eq!(got + lan.stations[1].out_of_buffer() as usize, FRAMES);
    assert_eq!(lan.counted(1).rx.discards, 0);
}

/// A station that is slower than its link: with PAUSE, or PFC for its priority, nothing is lost, without it much is, and counted.
#[test]
pub(crate) fn pause_keeps_frames() {
    const FRAMES: usize = 1000;
    const PRIORITY: u8 = 3;
    for (pause, pfc) in [(true, 0), (false, 1 << PRIORITY), (false, 1 << 5), (false, 0)] {
        let mut lan = Lan::slow_cable();
        for station in &mut lan.stations {
            match pause {
                true => station.set_pause(true, true),
                false => station.set_pfc(pfc),
            }
        }
        let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
        let frame = framed(to, from, Some(u16::from(PRIORITY) << 13 | 7), 0x88b5, &pattern(1, 1400));
        let (mut sent, mut got, mut idle) = (0, 0, 0);
        while idle < 500 {
            while sent < FRAMES && lan.stations[0].sq.room() > 0 {
                lan.stations[0].send(&frame);
                sent += 1;
            }
            lan.simulation.run(Ps::from_us(2));
            lan.stations[0].sent();
            let now = lan.stations[1].received();
            got += now.len();
            idle = if now.is_empty() { idle + 1 } else { 0 };
        }
        let (counted, at_sender) = (lan.counted(1), lan.counted(0));
        let lost = counted.rx.discards as usize;
        let missed = lan.stations[1].out_of_buffer() as usize;
        assert_eq!(got + lost + missed, FRAMES, "pause {pause}, PFC {pfc:#x}");
        let keeps = pause || pfc == 1 << PRIORITY;
        assert_eq!((lost == 0, missed), (keeps, 0), "pause {pause}, PFC {pfc:#x}: {lost} lost");
        assert_eq!(counted.rx.priorities[usize::from(PRIORITY)].discards as usize, lost);
        let (tx, rx) = (counted.tx.priorities[3], at_sender.rx.priorities[3]);
        assert_eq!((tx.pause > 1, rx.pause, rx.pause_transition), (keeps, tx.pause, tx.pause_transition));
        assert_eq!((counted.tx.pause > 0, at_sender.rx.pause), (pause, counted.tx.pause));
        // It waited longer than all the frames take on their link: 1 ms of PCIe, 0.1 of link.
        assert_eq!(rx.pause_duration > Ps::from_us(500).0, keeps, "{} ps", rx.pause_duration);
    }
}

/// A switch learns where stations are, and no third hears what is for one of them.
#[test]
pub(crate) fn switches_learn() {
    let mut lan = Lan::switch(3);
    let macs: Vec<Mac> = lan.stations.iter().map(|station| station.mac).collect();
    let (broadcast, nobody) = (Mac([0xff; 6]), Mac([2, 9, 9, 9, 9, 9]));
    for (from, to, heard) in [
        (0, macs[1], [false, true, false]),
        (1, macs[0], [true, false, false]),
        (2, macs[1], [false, true, false]),
        (2, broadcast, [true, true, false]),
        (0, nobody, [false, true, true]),
    ] {
        let frame = plain(to, macs[from], &pattern(from as u64, 200));
        lan.stations[from].send(&frame);
        lan.run();
        let got: Vec<_> =
            lan.stations.iter_mut().map(|station| station.frames() == [frame.clone()]).collect();
        assert_eq!(got, heard, "{from} to {to:?}");
    }
    // Who shows another's address is not heard, and does not get what is for that.
    lan.stations[2].send(&plain(macs[1], macs[0], &[6; 100]));
    lan.run();
    assert!(lan.stations[1].frames().is_empty(), "a frame with another's address");
    let frame = plain(macs[0], macs[1], &[7; 100]);
    lan.stations[1].send(&frame);
    lan.run();
    assert!(lan.stations[2].frames().is_empty() && lan.stations[0].frames() == [frame]);
    // Stations behind a port that are no adapters are learned.
    let (virtual_station, wanted) =
        (Mac([2, 7, 7, 7, 7, 7]), plain(Mac([2, 7, 7, 7, 7, 7]), macs[0], &[8; 80]));
    lan.stations[1].send(&plain(macs[0], virtual_station, &[0; 80]));
    lan.run();
    lan.stations[0].frames();
    lan.stations[0].send(&wanted);
    lan.run();
    assert!(lan.stations[1].frames() == [wanted] && lan.stations[2].frames().is_empty());
}
