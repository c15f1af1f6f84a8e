//! Frames to the own address, and copies of frames: what of them is on the way has a bound, however fast they are made, and however many
//! queues make them.

use hca_driver::eth::{Destination, FlowEntry, FrameRequest, FrameWork, QueueState, Sq, SqConfig};
use hca_driver::{Cq, CqConfig};
use hca_model::{HcaId, Ps, World};
use hca_spec::flow::{MatchParam, TableType};
use hca_tests::frames::plain;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::{Lan, Station};

/// Bytes of data of a frame.
const MSS: usize = 1400;
/// Bytes on their way that the adapter lets wait at a port, or for its receive queues (`adapter/returning.rs`, `adapter/ethernet/copies.rs`).
const RETURNING: usize = 1 << 20;
const COPIED: usize = 4 << 20;
/// In that time everything that is posted here is done.
const LONG: Ps = Ps::from_ms(20);
/// The slow station of [`Lan::slow_cable`]: its unit makes frames faster than their data comes.
const SLOW: usize = 1;

/// Runs what is due, event by event. Returns the most events that waited at once, beside those that do anyway.
fn most_waiting(lan: &mut Lan) -> usize {
    let waiting = |lan: &Lan| lan.simulation.world(|world, _| world.waiting_events());
    let before = waiting(lan);
    let mut most = before;
    lan.simulation.flush_stores(HcaId(0));
    lan.simulation.flush_stores(HcaId(SLOW));
    while !lan.simulation.world(|world, now| world.advance_within(now + LONG, |_: &World| false)) {
        most = most.max(waiting(lan));
    }
    most - before
}

/// A header of TCP to cut by, 54 bytes, from a station to itself.
fn header(lan: &Lan, station: usize) -> Vec<u8> {
    let mac = lan.stations[station].mac;
    let mut header = plain(mac, mac, &[0; 40]);
    header[12..14].copy_from_slice(&[8, 0]);
    header[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    header[46] = 5 << 4;
    header.truncate(54);
    header
}

/// So many send queues of a station.
fn queues(lan: &mut Lan, station: usize, count: usize) -> Vec<(Sq<ModelMemory>, Cq<ModelMemory>)> {
    let station = &mut lan.stations[station];
    let tis = station.hca.create_tis(station.domain, 0).expect("CREATE_TIS");
    let mut queue = || {
        let cq = station.hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let mut sq = station.hca.create_sq(&SqConfig::new(tis, station.pd, &cq)).expect("CREATE_SQ");
        station.hca.modify_sq(&mut sq, QueueState::Ready).expect("MODIFY_SQ");
        (sq, cq)
    };
    (0..count).map(|_| queue()).collect()
}

/// Sends of several queues to the station itself, each of which begins with a frame for the link: all is sent, and little waits.
#[test]
pub(crate) fn frames_to_the_own_address_take_turns() {
    const QUEUES: usize = 16;
    const REQUESTS: usize = 4;
    let mut lan = Lan::slow_cable();
    let header = header(&lan, SLOW);
    let mut queues = queues(&mut lan, SLOW, QUEUES);
    let (to, from) = (lan.stations[0].mac, lan.stations[SLOW].mac);
    let station = &mut lan.stations[SLOW];
    let data = [station.out(0, &[7; 180 * MSS])];
    let out = [station.out(180 * MSS, &plain(to, from, &[1; 64]))];
    let sent = lan.counted(SLOW).tx.frames;
    for (sq, _) in &mut queues {
        let bus = lan.stations[SLOW].hca.bus_mut();
        sq.post(bus, &FrameRequest::new(0, &[], &out)).expect("a free place");
        for n in 0..REQUESTS {
            let large =
                FrameRequest::new(n as u64, &header, &data).work(FrameWork::Large { mss: MSS as u16 });
            sq.post(bus, &large).expect("a free place");
        }
    }
    let most = most_waiting(&mut lan);
    let frames = QUEUES * (1 + REQUESTS * 180);
    assert_eq!(lan.counted(SLOW).tx.frames - sent, frames as u64, "all were sent");
    for (sq, cq) in &mut queues {
        let told = std::iter::from_fn(|| cq.poll()).filter(|told| sq.finish(told).is_some()).count();
        assert_eq!(told, 1 + REQUESTS);
    }
    // A turn of 64 frames begins when there is room for one.
    let bound = RETURNING / MSS + 64 + 4 * QUEUES;
    assert!((RETURNING / MSS / 2..bound).contains(&most), "{most} of {frames} frames waited, {bound} may");
}

/// Flow tables that make many frames of one fill no more memory than that, however many queues send.
#[test]
pub(crate) fn copies_to_the_own_address_are_few() {
    const COPIES: usize = 64;
    const QUEUES: usize = 16;
    let mut lan = Lan::slow_cable();
    let header = header(&lan, SLOW);
    let station = &mut lan.stations[SLOW];
    let hca = &mut station.hca;
    let root = hca.create_flow_table(TableType::NicTx, 3, 4, None).expect("CREATE_FLOW_TABLE");
    let behind = hca.create_flow_table(TableType::NicTx, 4, 4, None).expect("CREATE_FLOW_TABLE");
    let group = hca.create_flow_group(root, 0..=0, 0, &MatchParam::new()).expect("CREATE_FLOW_GROUP");
    let all = [Destination::Table(behind); COPIES];
    let entry = FlowEntry { value: &MatchParam::new(), destinations: &all, counters: &[], tag: 0 };
    hca.set_flow_entry(group, 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    hca.set_flow_root(root).expect("SET_FLOW_TABLE_ROOT");
    let data = [station.out(0, &[7; 8 * MSS])];
    let mut queues = queues(&mut lan, SLOW, QUEUES);
    for (sq, _) in &mut queues {
        let large = FrameRequest::new(1, &header, &data).work(FrameWork::Large { mss: MSS as u16 });
        sq.post(lan.stations[SLOW].hca.bus_mut(), &large).expect("a free place");
    }
    let most = most_waiting(&mut lan);
    let counted = lan.counted(SLOW).tx;
    assert_eq!((counted.frames, counted.discards), ((QUEUES * 8 * COPIES) as u64, 0));
    // A turn of 4 frames begins when there is room for one.
    let bound = RETURNING / MSS + 4 * COPIES + 4 * QUEUES;
    assert!((RETURNING / MSS / 2..bound).contains(&most), "{most} frames waited, {bound} may");
}

/// Copies of a frame for receive queues have a bound of their own; when they are gone, others have room.
#[test]
pub(crate) fn copies_for_receive_queues_are_few() {
    /// What one entry makes of a frame, and how many do.
    const COPIES: usize = 64;
    const TABLES: u32 = 3;
    const FRAMES: usize = 20;
    let mut lan = Lan::cable();
    let station = &mut lan.stations[1];
    let tirs = station.copies(COPIES);
    let to = |station: &mut Station, table, all: &[Destination]| {
        let group = station.hca.create_flow_group(table, 0..=0, 0, &MatchParam::new());
        let entry = FlowEntry { value: &MatchParam::new(), destinations: all, counters: &[], tag: 0 };
        let hca = &mut station.hca;
        hca.set_flow_entry(group.expect("CREATE_FLOW_GROUP"), 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    };
    let mut tables = Vec::new();
    for _ in 0..TABLES {
        let table = station.hca.create_flow_table(TableType::NicRx, 65, 0, None).expect("CREATE_FLOW_TABLE");
        to(station, table, &tirs);
        tables.push(Destination::Table(table));
    }
    to(station, station.table, &tables);
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[0x77; 1400]);
    (0..FRAMES).for_each(|_| lan.stations[0].send(&frame));
    let most = most_waiting(&mut lan);
    let dropped = lan.counted(1).rx.discards;
    assert_eq!(lan.counted(1).rx.frames, FRAMES as u64);
    assert!(dropped > 0, "all had room");
    let bound = COPIED / (1400 + 1024) + FRAMES + 64;
    assert!((COPIED / (1400 + 1024) / 2..bound).contains(&most), "{most} copies waited, {bound} may");
    lan.stations[0].send(&frame);
    most_waiting(&mut lan);
    assert_eq!((lan.counted(1).rx.frames, lan.counted(1).rx.discards), (FRAMES as u64 + 1, dropped));
}
