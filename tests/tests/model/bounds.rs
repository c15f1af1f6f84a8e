//! What one event may do has a bound: the rest is another event's, so that the server can look at its clock.

use hca_driver::SendRequest;
use hca_driver::wqe::SendOp;
use hca_model::{Ps, World};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_tests::pair::Options;
use hca_tests::rig;

/// A queue pair fails with thousands of requests of both kinds: all are flushed, in order, some at a time.
#[test]
fn long_queues_are_flushed_in_pieces() {
    const REQUESTS: u32 = 8192;
    let options =
        Options { cqes: 2 * REQUESTS, recv_requests: REQUESTS, send_blocks: REQUESTS, ..Options::default() };
    let mut pair = rig::loopback(&options);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    for i in 0..REQUESTS {
        pair.recv(0, i.into(), 0, 64);
    }
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    // The first fails at the peer, with the others behind it.
    let bad = SendRequest::write(0, &sge, far.address, Mkey(0xdead_0000));
    pair.ends[0].qp.queue_send(&bad).expect("post");
    let mut posted = 1;
    while posted < u64::from(REQUESTS) {
        let request = SendRequest::new(posted, SendOp::Send { imm: None }, &[]);
        if pair.ends[0].qp.queue_send(&request).is_err() {
            break;
        }
        posted += 1;
    }
    pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
    simulation.flush_stores(pair.hcas[0].bus_mut().hca());
    let (mut sends, mut receives, mut most) = (Vec::new(), Vec::new(), 0);
    let mut end = false;
    while !end {
        end = simulation.world(|world, now| world.advance_within(now + Ps::from_ms(5), |_: &World| false));
        let before = sends.len() + receives.len();
        sends.extend(std::iter::from_fn(|| pair.try_sent(0)));
        receives.extend(std::iter::from_fn(|| pair.try_received(0)));
        most = most.max(sends.len() + receives.len() - before);
    }
    assert!((2..=2 * 1024 + 64).contains(&most), "{most} completions of one event");
    let numbers: Vec<u64> = sends.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..posted).collect::<Vec<_>>());
    let numbers: Vec<u64> = receives.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..u64::from(REQUESTS)).collect::<Vec<_>>());
    let flushed = Some(Syndrome::WorkRequestFlushed);
    assert!(sends.iter().skip(1).chain(&receives).all(|(_, completion)| completion.syndrome() == flushed));
}
