//! What one event may do with frames has a bound: the rest is another event's, so that the server can look at its clock.

use hca_driver::CqConfig;
use hca_driver::eth::{FlowEntry, FrameRequest, FrameWork, QueueState, RqConfig};
use hca_driver::{Cq, Sge};
use hca_model::{HcaId, Ps, World};
use hca_spec::flow::MatchParam;
use hca_spec::ids::Mkey;
use hca_tests::frames::plain;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::{Lan, REQUESTS, ROOM};

/// In that time everything that is posted here is done.
const LONG: Ps = Ps::from_ms(2);

/// Runs what is due, event by event; `look` after each.
fn step(lan: &mut Lan, mut look: impl FnMut(&mut Lan)) {
    lan.simulation.flush_stores(HcaId(0));
    while !lan.simulation.world(|world, now| world.advance_within(now + LONG, |_: &World| false)) {
        look(lan);
    }
    look(lan);
}

/// Counts what a queue tells after each event: all, and the most at once.
#[derive(Default)]
struct Told {
    all: usize,
    most: usize,
}

impl Told {
    fn look(&mut self, cq: &mut Cq<ModelMemory>) {
        let now = std::iter::from_fn(|| cq.poll()).count();
        self.all += now;
        self.most = self.most.max(now);
    }
}

/// A TCP header to cut by, 54 bytes.
fn header(lan: &Lan) -> Vec<u8> {
    let mut header = plain(lan.stations[1].mac, lan.stations[0].mac, &[0; 40]);
    header[12..14].copy_from_slice(&[8, 0]);
    header[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    header[46] = 5 << 4;
    header.truncate(54);
    header
}

/// Large send offload with an MSS of one byte: thousands of frames, some at a time.
#[test]
pub(crate) fn frames_of_a_large_send_take_turns() {
    const FRAMES: usize = 4096;
    let mut lan = Lan::cable();
    let header = header(&lan);
    let data: Vec<u8> = (0..FRAMES).map(|i| i as u8).collect();
    let data = [lan.stations[0].out(1 << 17, &data)];
    let request = FrameRequest::new(7, &header, &data).work(FrameWork::Large { mss: 1 });
    lan.stations[0].request(&request);
    let last = plain(lan.stations[1].mac, lan.stations[0].mac, &[0x5a; 50]);
    lan.stations[0].send(&last);
    let waiting = |lan: &Lan| lan.simulation.world(|world, _| world.waiting_events());
    let (mut before, mut most, mut got) = (waiting(&lan), 0, Vec::new());
    step(&mut lan, |lan| {
        let now = waiting(lan);
        most = most.max(now.saturating_sub(before));
        before = now;
        got.extend(lan.stations[1].frames());
    });
    assert!((32..=256).contains(&most), "{most} events of one");
    assert_eq!(lan.stations[0].sent().len(), 2);
    assert_eq!(lan.counted(0).tx.frames, FRAMES as u64 + 1);
    // In order, the data of each behind its header; the next WQE's frame is the last.
    assert_eq!(got.pop().map(|frame| frame[14..].to_vec()), Some(vec![0x5a; 50]));
    let payload: Vec<u8> = got.iter().map(|frame| frame[54]).collect();
    assert_eq!(payload, (0..FRAMES).map(|i| i as u8).collect::<Vec<_>>());
}

/// A send queue that is reset in the middle of a large send goes on with nothing of it.
#[test]
pub(crate) fn a_large_send_ends_with_its_queue() {
    let mut lan = Lan::cable();
    let header = header(&lan);
    for to in [QueueState::Reset, QueueState::Error] {
        let data = [lan.stations[0].out(1 << 17, &[1; 1 << 16])];
        let request = FrameRequest::new(7, &header, &data).work(FrameWork::Large { mss: 1 });
        lan.stations[0].request(&request);
        let station = &mut lan.stations[0];
        station.hca.modify_sq(&mut station.sq, to).expect("MODIFY_SQ");
        let sent = lan.counted(0).tx.frames;
        lan.run();
        assert!(lan.counted(0).tx.frames < sent + 4096, "it ends");
        let told: Vec<_> = lan.stations[0].sent().iter().map(|told| told.syndrome()).collect();
        assert_eq!(told.len(), usize::from(to == QueueState::Error), "{told:?}");
        let station = &mut lan.stations[0];
        if to == QueueState::Error {
            station.hca.modify_sq(&mut station.sq, QueueState::Reset).expect("MODIFY_SQ");
        }
        station.hca.modify_sq(&mut station.sq, QueueState::Ready).expect("MODIFY_SQ");
        lan.stations[1].frames();
        let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[3; 64]);
        lan.stations[0].send(&frame);
        lan.run();
        assert_eq!(lan.stations[1].frames(), [frame]);
        assert_eq!(lan.stations[0].sent().len(), 1);
    }
}

/// A receive queue that fails with thousands of requests tells of them in order, some at a time.
#[test]
pub(crate) fn a_long_receive_queue_is_flushed_in_pieces() {
    const REQUESTS: u32 = 8192;
    let mut lan = Lan::cable();
    let station = &mut lan.stations[1];
    let mut cq = station.hca.create_cq(CqConfig::new(2 * REQUESTS)).expect("CREATE_CQ");
    let config = RqConfig { requests: REQUESTS, sges: 1, ..RqConfig::new(station.pd, &cq) };
    let mut rq = station.hca.create_rq(&config).expect("CREATE_RQ");
    station.hca.modify_rq(&mut rq, QueueState::Ready).expect("MODIFY_RQ");
    let nowhere = Sge { address: station.mr.address, len: 2000, key: Mkey(0xdead_0000) };
    (0..REQUESTS).for_each(|i| rq.post(i.into(), &[nowhere]).expect("post"));
    station.tir = station.hca.create_direct_tir(station.domain, rq.number()).expect("CREATE_TIR");
    station.take_nothing();
    station.take_anything();
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[0; 64]);
    lan.stations[0].send(&frame);
    let (mut told, mut numbers) = (Told::default(), Vec::new());
    step(&mut lan, |_| {
        let now: Vec<_> = std::iter::from_fn(|| cq.poll()).collect();
        told.all += now.len();
        told.most = told.most.max(now.len());
        numbers.extend(now.iter().filter_map(|completion| rq.finish(completion)));
    });
    assert!(told.most <= 1025, "{} completions of one event", told.most);
    assert_eq!(numbers, (0..u64::from(REQUESTS)).collect::<Vec<_>>());
}

/// Copies of a frame to many queues are received one by one.
#[test]
pub(crate) fn copies_are_received_one_by_one() {
    const COPIES: usize = 32;
    let mut lan = Lan::cable();
    let station = &mut lan.stations[1];
    let tirs = station.copies(COPIES);
    let group = station.hca.create_flow_group(station.table, 0..=0, 0, &MatchParam::new());
    let entry = FlowEntry { value: &MatchParam::new(), destinations: &tirs, counters: &[], tag: 0 };
    station.hca.set_flow_entry(group.expect("CREATE_FLOW_GROUP"), 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[0x77; 64]);
    lan.stations[0].send(&frame);
    let mut told = Told::default();
    step(&mut lan, |lan| told.look(&mut lan.stations[1].receives));
    assert_eq!((told.all, told.most), (COPIES, 1));
    assert!(COPIES <= REQUESTS && frame.len() <= ROOM);
    let mut bytes = vec![0; frame.len()];
    hca_driver::Dma::read(&lan.stations[1].memory, (COPIES - 1) * ROOM, &mut bytes);
    assert_eq!(bytes, frame);
}
