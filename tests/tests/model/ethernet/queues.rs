//! Queues of frames: their states, errors and recovery; what is out of room; senders and receivers of one domain.

use hca_driver::eth::{FrameRequest, FrameWork, QueueState};
use hca_driver::{Dma, Event, Hca, Sge};
use hca_spec::cmd::{ObjectIn, QuerySqOut};
use hca_spec::command::Opcode;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_spec::queue::Wq;
use hca_spec::rq::QueryRqOut;
use hca_tests::frames::plain;
use hca_tests::lan::{Lan, REQUESTS};
use hca_tests::pair::pattern;
use hca_tests::rig::drain_events;

#[test]
pub(crate) fn frames_without_a_request_are_counted() {
    let mut lan = Lan::cable();
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[7; 64]);
    for _ in 0..REQUESTS + 5 {
        lan.stations[0].send(&frame);
        lan.run();
    }
    assert_eq!(lan.stations[1].out_of_buffer(), 5);
    assert_eq!(lan.stations[1].frames().len(), REQUESTS);
    lan.stations[0].send(&frame);
    lan.run();
    assert_eq!((lan.stations[1].frames().len(), lan.stations[1].out_of_buffer()), (1, 5));
}

/// Queries say how far queues are: what was posted, and what was taken of that.
#[test]
pub(crate) fn queries_say_how_far_queues_are() {
    const FRAMES: u32 = 3;
    let mut lan = Lan::cable();
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[7; 64]);
    for _ in 0..FRAMES {
        lan.stations[0].send(&frame);
        lan.run();
    }
    let ask = |hca: &mut Hca<_>, opcode, number, len| {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, number);
        hca.execute(opcode, 0, input.bytes().to_vec(), len).expect("a query")
    };
    let number = lan.stations[1].rq.number().0;
    let out = ask(&mut lan.stations[1].hca, Opcode::QueryRq, number, QueryRqOut::SIZE);
    let wq = *QueryRqOut::from_prefix_or_zero(&out).rqc().wq();
    assert_eq!((wq.get(Wq::HW_COUNTER), wq.get(Wq::SW_COUNTER)), (FRAMES, REQUESTS as u32));
    let number = lan.stations[0].sq.number().0;
    let out = ask(&mut lan.stations[0].hca, Opcode::QuerySq, number, QuerySqOut::SIZE);
    let wq = *QuerySqOut::from_prefix_or_zero(&out).sqc().wq();
    assert_eq!(wq.get(Wq::HW_COUNTER), wq.get(Wq::SW_COUNTER), "all was sent");
    assert!(wq.get(Wq::HW_COUNTER) >= FRAMES);
}

/// A request that is too short for a frame fails alone; one that names no memory fails the queue: the rest is flushed, and the queue goes on
/// after a reset.
#[test]
pub(crate) fn a_receive_queue_fails_and_recovers() {
    let mut lan = Lan::cable();
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &pattern(3, 1000));
    let station = &mut lan.stations[1];
    // From reset, with one good place, a short one, and two more.
    station.hca.modify_rq(&mut station.rq, QueueState::Reset).expect("MODIFY_RQ");
    station.hca.modify_rq(&mut station.rq, QueueState::Ready).expect("MODIFY_RQ");
    station.post(0);
    let short = Sge { address: station.mr.address, len: 100, key: station.mr.key };
    station.rq.post(1, &[short]).expect("post");
    station.post(2);
    station.rq.post(3, &[Sge { key: Mkey(0xdead_0000), len: 2000, ..short }]).expect("post");
    station.post(4);
    for _ in 0..4 {
        lan.stations[0].send(&frame);
        lan.run();
    }
    let station = &mut lan.stations[1];
    let mut got = Vec::new();
    while let Some(completion) = station.receives.poll() {
        got.push((station.rq.finish(&completion), completion.syndrome()));
    }
    let flushed = Some(Syndrome::WorkRequestFlushed);
    assert_eq!(
        got,
        [
            (Some(0), None),
            (Some(1), Some(Syndrome::LocalLength)),
            (Some(2), None),
            (Some(3), Some(Syndrome::LocalProtection)),
            (Some(4), flushed)
        ]
    );
    assert_eq!(station.hca.rq_state(&mut station.rq), Ok(QueueState::Error));
    assert!(station.hca.modify_rq(&mut station.rq, QueueState::Ready).is_err(), "not without a reset");
    station.hca.modify_rq(&mut station.rq, QueueState::Reset).expect("MODIFY_RQ");
    lan.stations[0].send(&frame);
    lan.run();
    let station = &mut lan.stations[1];
    station.hca.modify_rq(&mut station.rq, QueueState::Ready).expect("MODIFY_RQ");
    station.post_all();
    lan.stations[0].send(&frame);
    lan.run();
    assert!(lan.stations[1].frames() == [frame], "what came in reset is dropped");
}

/// A frame that is longer than the MTU is dropped by the port, which counts it: the queue does not know, nor do those behind it.
#[test]
pub(crate) fn the_port_drops_a_frame_that_is_too_long() {
    let mut lan = Lan::cable();
    let frame = |lan: &Lan, len| plain(lan.stations[1].mac, lan.stations[0].mac, &pattern(3, len));
    for long in [1600, 2000, 9000] {
        let (good, long) = (frame(&lan, 100), frame(&lan, long));
        let before = lan.counted(0).tx;
        lan.stations[0].send(&good);
        lan.stations[0].send(&long);
        lan.stations[0].send(&good);
        lan.run();
        let got: Vec<_> = lan.stations[0].sent().iter().map(|c| c.syndrome()).collect();
        assert_eq!(got, [None; 3]);
        let station = &mut lan.stations[0];
        assert_eq!(station.hca.sq_state(&mut station.sq), Ok(QueueState::Ready));
        assert!(lan.stations[1].frames() == [good.clone(), good]);
        let after = lan.counted(0).tx;
        assert_eq!((after.errors - before.errors, after.frames - before.frames), (1, 2));
    }
}

/// A WQE that can't be carried out fails the queue; everything behind it is flushed, also what is posted later.
#[test]
pub(crate) fn a_send_queue_fails_and_recovers() {
    let bad_key = Sge { address: 0, len: 100, key: Mkey(0xdead_0000) };
    let small = Sge { address: 0, len: 3, key: Mkey(0) };
    let long = Sge { address: 0, len: 12_000, key: Mkey(0) };
    let cases: [(&[Sge], FrameWork, Syndrome); 5] = [
        (&[bad_key], FrameWork::One, Syndrome::LocalProtection),
        (&[small], FrameWork::One, Syndrome::LocalLength),
        (&[long], FrameWork::One, Syndrome::LocalLength),
        (&[long], FrameWork::Large { mss: 0 }, Syndrome::LocalQpOperation),
        (&[], FrameWork::Each, Syndrome::LocalQpOperation),
    ];
    let mut lan = Lan::cable();
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &pattern(3, 100));
    for (data, work, syndrome) in cases {
        let data: Vec<_> = data
            .iter()
            .map(|sge| if sge.key.0 == 0 { lan.stations[0].out(0, &vec![1; sge.len as usize]) } else { *sge })
            .collect();
        lan.stations[0].send(&frame);
        lan.stations[0].request(&FrameRequest::new(7, &[], &data).work(work));
        lan.stations[0].send(&frame);
        lan.run();
        lan.stations[0].send(&frame);
        lan.run();
        let got: Vec<_> = lan.stations[0].sent().iter().map(|c| c.syndrome()).collect();
        let flushed = Some(Syndrome::WorkRequestFlushed);
        assert_eq!(got, [None, Some(syndrome), flushed, flushed], "{work:?}");
        assert!(lan.stations[1].frames() == [frame.clone()], "{work:?}");
        let station = &mut lan.stations[0];
        assert_eq!(station.hca.sq_state(&mut station.sq), Ok(QueueState::Error));
        station.hca.modify_sq(&mut station.sq, QueueState::Reset).expect("MODIFY_SQ");
        station.hca.modify_sq(&mut station.sq, QueueState::Ready).expect("MODIFY_SQ");
        station.send(&frame);
        lan.run();
        assert_eq!(
            lan.stations[0].sent().iter().map(|c| (c.status, c.wqe_index)).collect::<Vec<_>>(),
            [(Ok(()), 0)]
        );
        assert!(lan.stations[1].frames() == [frame.clone()], "after {work:?}");
    }
}

/// The driver takes a queue to error: what is posted completes as flushed, in order.
#[test]
pub(crate) fn queues_in_error_are_flushed() {
    let mut lan = Lan::cable();
    let station = &mut lan.stations[1];
    station.hca.modify_rq(&mut station.rq, QueueState::Error).expect("MODIFY_RQ");
    lan.run();
    let station = &mut lan.stations[1];
    let mut flushed = 0;
    while let Some(completion) = station.receives.poll() {
        assert_eq!(completion.syndrome(), Some(Syndrome::WorkRequestFlushed));
        assert_eq!(station.rq.finish(&completion), Some(flushed));
        flushed += 1;
    }
    assert_eq!(flushed, REQUESTS as u64);
    station.hca.modify_sq(&mut station.sq, QueueState::Error).expect("MODIFY_SQ");
    for _ in 0..3 {
        station.send(&[0; 64]);
    }
    lan.run();
    let got: Vec<_> = lan.stations[1].sent().iter().map(|c| c.syndrome()).collect();
    assert_eq!(got, [Some(Syndrome::WorkRequestFlushed); 3]);
}

/// Nothing is written to the memory of a queue that is gone.
#[test]
pub(crate) fn destroyed_queues_get_nothing() {
    let mut lan = Lan::cable();
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[0x5a; 1000]);
    for _ in 0..8 {
        lan.stations[0].send(&frame);
    }
    let station = &mut lan.stations[1];
    station.take_nothing();
    station.hca.destroy_tir(station.tir).expect("DESTROY_TIR");
    let cq = station.hca.create_cq(hca_driver::CqConfig::new(4)).expect("CREATE_CQ");
    let config = hca_driver::eth::RqConfig::new(station.pd, &cq);
    let other = station.hca.create_rq(&config).expect("CREATE_RQ");
    let rq = std::mem::replace(&mut station.rq, other);
    station.hca.destroy_rq(rq).expect("DESTROY_RQ");
    station.memory.write(0, &vec![0; REQUESTS * hca_tests::lan::ROOM]);
    while station.receives.poll().is_some() {}
    lan.run();
    let mut memory = vec![0; REQUESTS * hca_tests::lan::ROOM];
    lan.stations[1].memory.read(0, &mut memory);
    assert!(memory.iter().all(|byte| *byte == 0) && lan.stations[1].receives.poll().is_none());
}

/// A frame to the own address comes back to queues of other domains, and to those of its own as the TIR says.
#[test]
pub(crate) fn loopback_by_domain() {
    let mut lan = Lan::cable();
    let station = &mut lan.stations[0];
    let own = station.mac;
    let group = hca_driver::eth::Mac([1, 0, 0x5e, 0, 0, 5]);
    for (unicast, multicast) in [(false, false), (true, false), (false, true), (true, true)] {
        let station = &mut lan.stations[0];
        station.hca.allow_own_frames(station.tir, unicast, multicast).expect("MODIFY_TIR");
        let frames = [plain(own, own, &[1; 64]), plain(group, own, &[2; 64])];
        frames.iter().for_each(|frame| station.send(frame));
        lan.run();
        let wanted: Vec<_> =
            frames.iter().zip([unicast, multicast]).filter(|(_, to)| *to).map(|(f, _)| f.clone()).collect();
        assert!(lan.stations[0].frames() == wanted, "{unicast} {multicast}");
        // The other station hears what is for a group, and not what is for the first.
        assert_eq!(lan.stations[1].frames(), [frames[1].clone()]);
    }
}

/// Send queues of frames have no paths: none is said to have migrated when they are made ready.
#[test]
pub(crate) fn send_queues_do_not_migrate() {
    let mut lan = Lan::cable();
    for station in &mut lan.stations {
        let events = drain_events(&mut station.hca);
        assert!(!events.iter().any(|event| matches!(event, Event::Qp { .. })), "{events:?}");
    }
}
