//! Groups of queues keep to the rates of their elements.

use hca_driver::{Qp, SendRequest};
use hca_model::Ps;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::Lan;

use super::roce::{End, LOOKS, connected, ends};

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
