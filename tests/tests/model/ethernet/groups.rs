//! Groups of queues keep to the rates of their elements.

use hca_driver::{Qp, SendRequest};
use hca_model::{HcaId, Ps, World};
use hca_spec::cmd::ModifySqIn;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::queue::{SQ_READY, Sqc};
use hca_spec::register::EtsClass;
use hca_spec::sched::SchedulingContext;
use hca_tests::frames::plain;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::Lan;

use super::classes::set_class;
use super::roce::{End, LOOKS, PRIORITY, connected, connected_of, ends};

/// Bytes of a message.
const LEN: usize = 30_000;
/// Headers of its packets take less than this part of it.
const HEADERS: f64 = 1.2;

/// How long a write takes.
fn write(lan: &mut Lan, ends: &mut [End], qp: &mut Qp<ModelMemory>) -> Ps {
    let sge = [ends[0].sge(0, LEN)];
    let (far, begin) = (&ends[1].mr, lan.simulation.now());
    let request = SendRequest::write(1, &sge, far.address, far.key);
    qp.post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
    for _ in 0..100_000 {
        if let Some(done) = ends[0].cq.poll() {
            assert_eq!((qp.finish(&done), done.status), (Some(1), Ok(())));
            return lan.simulation.now() - begin;
        }
        lan.simulation.run(Ps::from_ns(200));
    }
    panic!("the write does not end");
}

/// The time of a message at so many Mb/s, without headers.
fn at(rate: u64) -> f64 {
    (LEN as u64 * 8 / rate) as f64
}

#[test]
fn queue_pairs_keep_to_the_lowest_rate_above_them() {
    let mut lan = Lan::of_kind("connectx6dx");
    let mut ends = ends(&mut lan, LOOKS[3]);
    let mut qps = connected(&mut lan, &ends, LOOKS[3]);
    let free = write(&mut lan, &mut ends, &mut qps[0]).as_ns() as f64 / 1000.0;
    let hca = &mut lan.stations[0].hca;
    let root = hca.create_scheduling_element(false, 0, 1000).expect("a root");
    let node = hca.create_scheduling_element(false, root, 0).expect("a node");
    let group = hca.create_scheduling_element(true, node, 4000).expect("a group");
    assert!(hca.qp_set_groups(&mut qps[0], [node, 0]).is_err(), "a node is no group");
    hca.qp_set_groups(&mut qps[0], [group, group]).expect("RTS2RTS");
    let limited = write(&mut lan, &mut ends, &mut qps[0]).as_ns() as f64 / 1000.0;
    assert!(free < at(1000) / 4.0, "{free} us");
    // The last packet is not waited for.
    assert!(limited > at(1000) * 0.9 && limited < at(1000) * HEADERS, "{limited} us");
    // The root lets more through: the group's own rate is what counts.
    lan.stations[0].hca.set_scheduling_rate(root, false, 0).expect("MODIFY_GENERAL_OBJECT");
    let limited = write(&mut lan, &mut ends, &mut qps[0]).as_ns() as f64 / 1000.0;
    assert!(limited > at(4000) * 0.9 && limited < at(4000) * HEADERS, "{limited} us");
    let hca = &mut lan.stations[0].hca;
    assert!(hca.destroy_scheduling_element(group).is_err(), "a queue is in it");
    hca.qp_set_groups(&mut qps[0], [0, 0]).expect("RTS2RTS");
    for element in [group, node, root] {
        hca.destroy_scheduling_element(element).expect("DESTROY_GENERAL_OBJECT");
    }
    let again = write(&mut lan, &mut ends, &mut qps[0]).as_ns() as f64 / 1000.0;
    assert!(again < at(4000) / 2.0, "{again} us");
}

/// Two queues that always have something to send share their node's rate, or the port's, by their groups' weights.
#[test]
fn groups_share_by_their_weights() {
    const MESSAGES: u64 = 12;
    for (rate, weights) in [(4000, [1u32, 3]), (4000, [5, 5]), (0, [1, 4])] {
        let mut lan = Lan::of_kind("connectx6dx");
        let mut all: Vec<(Vec<End>, Vec<Qp<ModelMemory>>)> = (0..2)
            .map(|_| {
                let ends = ends(&mut lan, LOOKS[3]);
                let qps = connected(&mut lan, &ends, LOOKS[3]);
                (ends, qps)
            })
            .collect();
        let hca = &mut lan.stations[0].hca;
        let root = hca.create_scheduling_element(false, 0, rate).expect("a root");
        for ((_, qps), weight) in all.iter_mut().zip(weights) {
            let group = hca.create_scheduling_element_with(true, root, (0, weight)).expect("a group");
            hca.qp_set_groups(&mut qps[0], [group, group]).expect("RTS2RTS");
        }
        for (ends, qps) in &mut all {
            let sge = [ends[0].sge(0, LEN)];
            let far = &ends[1].mr;
            for i in 0..MESSAGES {
                let request = SendRequest::write(i, &sge, far.address, far.key);
                qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
            }
        }
        // Until one of them is done: what the other has sent by then.
        let mut done = [0u64; 2];
        'until: for _ in 0..1_000_000 {
            lan.simulation.run(Ps::from_ns(500));
            for ((ends, qps), done) in all.iter_mut().zip(&mut done) {
                while let Some(completion) = ends[0].cq.poll() {
                    qps[0].finish(&completion);
                    *done += 1;
                }
            }
            if done.contains(&MESSAGES) {
                break 'until;
            }
        }
        let expected = (MESSAGES * u64::from(weights[0]) / u64::from(weights[1])) as i64;
        assert!(done[1] >= MESSAGES - 1, "{done:?}");
        assert!((done[0] as i64 - expected).abs() <= 2, "rate {rate}, weights {weights:?}: {done:?}");
    }
}

/// Puts the first station's send queue into a group; 0: into none (MODIFY_SQ, as mlx5e does it).
fn set_group(lan: &mut Lan, group: u32) -> bool {
    let mut modify = ModifySqIn::new();
    modify.set(ModifySqIn::SQN, lan.stations[0].sq.number().0).set(ModifySqIn::SQ_STATE, SQ_READY);
    modify.set(ModifySqIn::MODIFY_BITMASK, 1 << 2);
    modify.sqc_mut().set(Sqc::STATE, SQ_READY).set(Sqc::QOS_QUEUE_GROUP_ID, group);
    let hca = &mut lan.stations[0].hca;
    hca.execute(Opcode::ModifySq, 0, modify.bytes().to_vec(), OutHeader::SIZE).is_ok()
}

/// What mlx5e does for `tc qdisc add ... htb offload`: a root, classes that become nodes when they get children, queues that move, rates
/// that change; and the queue keeps to the lowest rate above it.
#[test]
fn a_tree_of_htb() {
    const FRAMES: u32 = 40;
    // Frames of 1250 bytes with FCS that came within 100 microseconds: 10 of them at 1 Gb/s.
    let arrived = |lan: &mut Lan| {
        let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[7; 1232]);
        (0..FRAMES).for_each(|_| lan.stations[0].send(&frame));
        lan.simulation.run(Ps::from_us(100));
        let early = lan.stations[1].received().len() as u32;
        lan.simulation.run(Ps::from_ms(2));
        assert_eq!(lan.stations[0].sent().len(), FRAMES as usize);
        assert_eq!(lan.stations[1].received().len() as u32 + early, FRAMES);
        early
    };
    let mut lan = Lan::of_kind("connectx6dx");
    assert_eq!(arrived(&mut lan), FRAMES);
    let hca = &mut lan.stations[0].hca;
    let root = hca.create_element(false, 0, (0, 0)).expect("a root");
    let class = hca.create_element(true, root, (1000, 10)).expect("a class");
    assert!(!set_group(&mut lan, root), "a root is no group");
    assert!(set_group(&mut lan, class));
    let early = arrived(&mut lan);
    assert!((8..=12).contains(&early), "{early} frames at 1 Gb/s");
    lan.stations[0].hca.modify_element(class, (2000, 10)).expect("MODIFY_SCHEDULING_ELEMENT");
    let early = arrived(&mut lan);
    assert!((17..=23).contains(&early), "{early} frames at 2 Gb/s");
    assert!(lan.stations[0].hca.destroy_element(class).is_err(), "a queue is in it");
    // The class gets a child: a node in its place, with the child below.
    let hca = &mut lan.stations[0].hca;
    let node = hca.create_element(false, root, (2000, 10)).expect("a node");
    let child = hca.create_element(true, node, (3000, 1)).expect("a child");
    let told = hca.query_element(child).expect("QUERY_SCHEDULING_ELEMENT");
    assert_eq!(told.get(SchedulingContext::PARENT_ELEMENT_ID), node);
    assert!(set_group(&mut lan, child));
    lan.stations[0].hca.destroy_element(class).expect("nobody is in it");
    let early = arrived(&mut lan);
    assert!((17..=23).contains(&early), "{early} frames at 2 Gb/s, the node's");
    // And it all goes.
    assert!(set_group(&mut lan, 0));
    for element in [child, node, root] {
        lan.stations[0].hca.destroy_element(element).expect("DESTROY_SCHEDULING_ELEMENT");
    }
    assert_eq!(arrived(&mut lan), FRAMES);
}

/// Queues that others come before ask for no turn meanwhile: what all of them cost follows from what they send.
#[test]
fn queues_that_wait_for_others_are_quiet() {
    const QUEUES: usize = 8;
    /// Bytes of a packet's payload.
    const MTU: usize = 1024;
    /// Bytes of a message: more than the port takes of a priority before its queues wait.
    const LONG: usize = 60_000;
    let mut lan = Lan::of_kind("connectx6dx");
    // A packet of the first takes 80 us, and the others have the link to themselves meanwhile.
    set_class(&mut lan.stations[0], PRIORITY.into(), |c| {
        _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 3).set(EtsClass::MAX_BW_VALUE, 1);
    });
    let hca = &mut lan.stations[0].hca;
    let root = hca.create_scheduling_element(false, 0, 0).expect("a root");
    let mut all: Vec<(Vec<End>, Vec<Qp<ModelMemory>>)> = (0..QUEUES)
        .map(|i| {
            let ends = ends(&mut lan, LOOKS[4]);
            let priority = if i == 0 { PRIORITY } else { 0 };
            let mut qps = connected_of(&mut lan, &ends, LOOKS[4], [0, 1], priority);
            let hca = &mut lan.stations[0].hca;
            let group = hca.create_scheduling_element_with(true, root, (0, 1)).expect("a group");
            hca.qp_set_groups(&mut qps[0], [group, group]).expect("RTS2RTS");
            (ends, qps)
        })
        .collect();
    for (ends, qps) in &mut all {
        let (sge, far) = ([ends[0].sge(0, LONG)], &ends[1].mr);
        let request = SendRequest::write(1, &sge, far.address, far.key);
        qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
    }
    lan.simulation.flush_stores(HcaId(0));
    let (mut events, mut end) = (0, false);
    while !end {
        let step = |world: &mut World, now| world.advance_within(now + Ps::from_ms(20), |_: &World| false);
        end = lan.simulation.world(step);
        events += 1;
    }
    for (ends, qps) in &mut all {
        let done = ends[0].cq.poll().expect("a completion");
        assert_eq!((qps[0].finish(&done), done.status), (Some(1), Ok(())));
    }
    let packets = QUEUES * LONG.div_ceil(MTU);
    assert!(events < 40 * packets, "{events} events for {packets} packets");
}
