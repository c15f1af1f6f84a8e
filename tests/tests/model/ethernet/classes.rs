//! Traffic classes of a port: which of its queues sends next, how much, and what priority a frame has where it arrives.

use hca_driver::eth::{FrameRequest, QueueState, Sq, SqConfig};
use hca_driver::{Cq, CqConfig, Sge};
use hca_model::{HcaId, Ps, World};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::ids::Mkey;
use hca_spec::register::{EtsClass, QETCR_CLASSES, Qetcr, Qpts, Qtct, TRUST_DSCP};
use hca_tests::frames::Flow;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::{Lan, Station};

/// Frames of each queue: both together have receive requests.
const FRAMES: usize = 30;
/// Bytes of its headers: Ethernet, IPv4, TCP.
const HEADERS: usize = 54;
/// Bytes of a frame.
const LEN: usize = 1000;

fn write(station: &mut Station, register: u32, value: &[u8]) {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, register);
    let input = [input.bytes(), value].concat();
    station.hca.execute(Opcode::AccessReg, 0, input, 16 + value.len()).expect("ACCESS_REG");
}

/// Writes a class, or what holds for the port: number 8.
pub(crate) fn set_class(station: &mut Station, number: usize, change: impl Fn(&mut EtsClass)) {
    let mut class = EtsClass::new();
    change(&mut class);
    let mut qetcr = Qetcr::new();
    qetcr.bytes_mut()[QETCR_CLASSES + 8 * number..][..8].copy_from_slice(class.bytes());
    write(station, reg::QETCR, qetcr.bytes());
}

/// A send queue of a priority.
fn queue(station: &mut Station, priority: u8) -> (Sq<ModelMemory>, Cq<ModelMemory>) {
    let tis = station.hca.create_tis(station.domain, priority).expect("CREATE_TIS");
    let cq = station.hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
    let mut sq = station.hca.create_sq(&SqConfig::new(tis, station.pd, &cq)).expect("CREATE_SQ");
    station.hca.modify_sq(&mut sq, QueueState::Ready).expect("MODIFY_SQ");
    (sq, cq)
}

/// Sends from queues of those priorities at once, so many frames each. Returns of each frame that arrived the priority of its
/// queue, and how long the last took.
fn race(lan: &mut Lan, priorities: &[u8]) -> (Vec<u8>, Ps) {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let station = &mut lan.stations[0];
    let mut queues: Vec<_> = priorities.iter().map(|priority| queue(station, *priority)).collect();
    for n in 0..FRAMES {
        for ((sq, _), priority) in queues.iter_mut().zip(priorities) {
            let mut payload = vec![0; LEN - HEADERS - 4];
            payload[0] = *priority;
            let frame = Flow::default().frame(to, from, None, false, &payload);
            let data = [station.out((n * 8 + usize::from(*priority)) * 1024, &frame)];
            sq.post(station.hca.bus_mut(), &FrameRequest::new(n as u64, &[], &data)).expect("a free place");
        }
    }
    let begun = lan.simulation.now();
    let mut order = Vec::new();
    while order.len() < FRAMES * priorities.len() {
        lan.simulation.run(Ps::from_us(1));
        order.extend(lan.stations[1].frames().iter().map(|frame| frame[HEADERS]));
        assert!(lan.simulation.now().since(begun) < Ps::from_us(10_000), "they don't come: {order:?}");
    }
    (order, lan.simulation.now().since(begun))
}

fn of(order: &[u8], priority: u8) -> usize {
    order.iter().filter(|of| **of == priority).count()
}

/// Classes of a group share what the group gets; a higher group has it all.
#[test]
pub(crate) fn shares_and_groups() {
    let mut lan = Lan::cable();
    let station = &mut lan.stations[0];
    // So slow that what queues have waits at the port.
    set_class(station, 8, |c| {
        _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 4).set(EtsClass::MAX_BW_VALUE, 1)
    });
    set_class(station, 2, |c| _ = c.set(EtsClass::B, 1).set(EtsClass::BW_ALLOCATION, 25));
    set_class(station, 5, |c| _ = c.set(EtsClass::B, 1).set(EtsClass::BW_ALLOCATION, 75));
    let (order, took) = race(&mut lan, &[2, 5]);
    let share = of(&order[..24], 5);
    assert!((17..=19).contains(&share), "{share} of 24: {order:?}");
    // 60 frames of 1000 bytes at 1 Gb/s.
    assert!((Ps::from_us(460)..Ps::from_us(500)).contains(&took), "{took}");
    let counted = lan.counted(0).tx.priorities;
    assert_eq!((counted[2].frames, counted[5].frames, counted[0].frames), (30, 30, 0));

    set_class(&mut lan.stations[0], 2, |c| _ = c.set(EtsClass::G, 1).set(EtsClass::GROUP, 1));
    let (order, _) = race(&mut lan, &[2, 5]);
    assert!(of(&order[..32], 2) >= 29, "{order:?}");

    // Both in one class: they take turns.
    let mut map = Qtct::new();
    map.set(Qtct::PRIO, 5).set(Qtct::TCLASS, 2);
    write(&mut lan.stations[0], reg::QTCT, map.bytes());
    let (order, _) = race(&mut lan, &[2, 5]);
    assert!((11..=13).contains(&of(&order[..24], 2)), "{order:?}");
}

/// A class that may not send more waits, others go on.
#[test]
pub(crate) fn limits() {
    let mut lan = Lan::cable();
    set_class(&mut lan.stations[0], 3, |c| {
        _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 3).set(EtsClass::MAX_BW_VALUE, 5);
    });
    let (order, took) = race(&mut lan, &[3, 4]);
    assert!(of(&order[..32], 4) == FRAMES, "{order:?}");
    // 30 frames of 1000 bytes at 500 Mb/s, but for the last.
    assert!((Ps::from_us(460)..Ps::from_us(490)).contains(&took), "{took}");
}

/// A port that trusts DSCP has the priority from there.
#[test]
pub(crate) fn priorities_by_code_point() {
    let mut lan = Lan::cable();
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let mut frame = Flow::default().frame(to, from, None, true, b"data");
    // Type of service of IPv4: code point 46. The header's checksum is its sender's.
    frame[15] = 46 << 2;
    lan.stations[0].send(&frame);
    lan.run();
    let mut trust = Qpts::new();
    trust.set(Qpts::LOCAL_PORT, 1).set(Qpts::TRUST_STATE, TRUST_DSCP);
    write(&mut lan.stations[1], reg::QPTS, trust.bytes());
    lan.stations[0].send(&frame);
    lan.run();
    let counted = lan.counted(1).rx.priorities;
    assert_eq!((counted[0].frames, counted[5].frames), (1, 1));
}

/// A queue that has sent nothing yet waits for its own priority, not for another that has no room.
#[test]
pub(crate) fn a_new_queue_waits_for_its_own_priority() {
    let mut lan = Lan::cable();
    set_class(&mut lan.stations[0], 0, |c| {
        _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 3).set(EtsClass::MAX_BW_VALUE, 1);
    });
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let slow = Flow::default().frame(to, from, None, false, &[0; LEN]);
    (0..60).for_each(|_| lan.stations[0].send(&slow));
    lan.simulation.run(Ps::from_us(20));
    lan.stations[1].frames();
    let station = &mut lan.stations[0];
    let (mut sq, _cq) = queue(station, 4);
    let data = [station.out(1 << 17, &Flow::default().frame(to, from, None, false, &[4; LEN]))];
    sq.post(station.hca.bus_mut(), &FrameRequest::new(0, &[], &data)).expect("a free place");
    lan.simulation.run(Ps::from_us(20));
    assert!(lan.stations[1].frames().iter().any(|frame| frame[HEADERS] == 4), "it waits");
}

/// Queues that wait for room at the port and send nothing when they have their turn take no room, so one event could be the turn of all of them:
/// it is of some.
#[test]
pub(crate) fn many_queues_that_wait_have_turns_in_pieces() {
    const QUEUES: usize = 600;
    /// Turns of one event (`adapter/port.rs`).
    const MOST: usize = 256;
    let mut lan = Lan::cable();
    set_class(&mut lan.stations[0], 0, |c| {
        _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 3).set(EtsClass::MAX_BW_VALUE, 1);
    });
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let station = &mut lan.stations[0];
    let tis = station.hca.create_tis(station.domain, 0).expect("CREATE_TIS");
    let mut cq = station.hca.create_cq(CqConfig::new(2 * QUEUES as u32)).expect("CREATE_CQ");
    let mut queue = || {
        let mut sq = station.hca.create_sq(&SqConfig::new(tis, station.pd, &cq)).expect("CREATE_SQ");
        station.hca.modify_sq(&mut sq, QueueState::Ready).expect("MODIFY_SQ");
        sq
    };
    let mut queues: Vec<_> = (0..QUEUES).map(|_| queue()).collect();
    let slow = Flow::default().frame(to, from, None, false, &[0; LEN]);
    (0..60).for_each(|_| lan.stations[0].send(&slow));
    lan.simulation.run(Ps::from_us(5));
    // Its data can't be read: it fails.
    let station = &mut lan.stations[0];
    let data = station.out(1 << 17, &Flow::default().frame(to, from, None, false, &[0; LEN]));
    let data = [Sge { key: Mkey(0xdead_0000), ..data }];
    for sq in &mut queues {
        sq.post(station.hca.bus_mut(), &FrameRequest::new(0, &[], &data)).expect("a free place");
    }
    lan.simulation.flush_stores(HcaId(0));
    let (mut all, mut most, mut end) = (0, 0, false);
    while !end {
        let step = |world: &mut World, now| world.advance_within(now + Ps::from_ms(10), |_: &World| false);
        end = lan.simulation.world(step);
        let of_one = std::iter::from_fn(|| cq.poll()).count();
        (all, most) = (all + of_one, most.max(of_one));
    }
    assert_eq!(all, QUEUES);
    assert!((MOST / 2..=MOST).contains(&most), "{most} turns in one event");
}
