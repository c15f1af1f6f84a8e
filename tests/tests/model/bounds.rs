//! What one event may do has a bound: the rest is another event's, so that the server can look at its clock.

use hca_driver::umr::pieces;
use hca_driver::wqe::SendOp;
use hca_driver::{SendRequest, Sge};
use hca_model::{HcaId, Ps, World};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_spec::mkc::AccessMode;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig;
use hca_tests::suites::adversary::keys::made;

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

/// Thousands of requests that send nothing wait behind one whose answer comes late: with it all are completed, in order, some at a time.
#[test]
fn what_one_answer_completes_is_completed_in_pieces() {
    const REQUESTS: u32 = 8192;
    let options =
        Options { cqes: 2 * REQUESTS, recv_requests: 4, send_blocks: REQUESTS, ..Options::default() };
    let mut pair = rig::loopback(&options);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let sge = [pair.ends[0].sge(0, 8)];
    // The peer has nowhere to put it, for now.
    pair.ends[0].qp.queue_send(&SendRequest::send(0, &sge)).expect("post");
    let mut posted = 1;
    while pair.ends[0].qp.queue_send(&SendRequest::new(posted, SendOp::Nop, &[])).is_ok() {
        posted += 1;
    }
    assert!(posted > 8000, "{posted}");
    pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
    simulation.flush_stores(pair.hcas[0].bus_mut().hca());
    // All are executed, and wait.
    let step = |time| simulation.world(|world, now| world.advance_within(now + time, |_: &World| false));
    while !step(Ps::from_us(100)) {}
    assert!(pair.try_sent(0).is_none());
    pair.recv(1, 0, 0, 8);
    let (mut sends, mut most, mut end) = (Vec::new(), 0, false);
    while !end || sends.len() < posted as usize {
        end = step(Ps::from_ms(50));
        let before = sends.len();
        sends.extend(std::iter::from_fn(|| pair.try_sent(0)));
        most = most.max(sends.len() - before);
    }
    assert!(most <= 1024 + 64, "{most} completions of one event");
    assert!(sends.iter().map(|(number, _)| *number).eq(0..posted));
    assert!(sends.iter().all(|(_, completion)| completion.status.is_ok()));
}

/// A request that waits for all before it has its turn when the last of them is complete, in however many events that is.
#[test]
fn what_waits_for_thousands_has_its_turn() {
    const REQUESTS: u32 = 8192;
    let options =
        Options { cqes: 2 * REQUESTS, recv_requests: 4, send_blocks: REQUESTS, ..Options::default() };
    let mut pair = rig::loopback(&options);
    let sge = [pair.ends[0].sge(0, 8)];
    pair.ends[0].qp.queue_send(&SendRequest::send(0, &sge)).expect("post");
    let last = 4000;
    for number in 1..=last {
        let nop = SendRequest::new(number, SendOp::Nop, &[]);
        pair.ends[0].qp.queue_send(&if number == last { nop.ordered() } else { nop }).expect("post");
    }
    pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.flush_stores(pair.hcas[0].bus_mut().hca());
    simulation.run(Ps::from_us(500));
    assert!(pair.try_sent(0).is_none(), "the peer has nowhere to put the first");
    pair.recv(1, 0, 0, 8);
    simulation.run(Ps::from_ms(50));
    let sent = std::iter::from_fn(|| pair.try_sent(0)).map(|(number, _)| number);
    assert!(sent.eq(0..=last));
}

/// Pieces of a list of a byte each, too few for marks in it; and bytes of a message, each of which is the last of such a list.
const INNER: usize = 255;
const OUTER: usize = 200;
/// So many entries are looked at for a message.
const ENTRIES: u64 = (INNER * OUTER) as u64;
/// Bytes of an entry.
const ENTRY: u64 = 16;
/// Entries of an event that cost nothing (`mkey/walk.rs`).
const FREE: u64 = 1 << 10;
/// PCIe 3.0 x16 brings fewer bytes than that in a nanosecond.
const BYTES_PER_NS: u64 = 16;

/// A key of end `end` that is long to walk.
fn long(pair: &mut Pair<ModelBus>, end: usize) -> Sge {
    let (pd, byte) = (pair.ends[end].pd, pair.ends[end].sge(0, 1));
    let hca = &mut pair.hcas[0];
    let inner = made(hca, pd, AccessMode::Klm, &pieces(&[byte; INNER]), INNER as u64).expect("a key");
    let last = Sge { address: INNER as u64 - 1, len: 1, key: inner };
    let key = made(hca, pd, AccessMode::Klm, &pieces(&[last; OUTER]), OUTER as u64).expect("a key of keys");
    Sge { address: 0, len: OUTER as u32, key }
}

/// Walks of keys are paid by their adapter, with its time: until it does something else, as much has passed as its link to the host takes to bring
/// the entries, whether it gathered or scattered.
#[test]
fn walks_of_keys_take_the_time_of_their_adapter() {
    const REQUESTS: u64 = 300;
    for gathers in [true, false] {
        let options = Options {
            cqes: 1024,
            recv_requests: 512,
            send_blocks: 512,
            memory: 1 << 12,
            ..Options::default()
        };
        let mut pair = rig::loopback(&options);
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        let walked =
            || simulation.world(|world, _| world.totals(HcaId(0)).expect("it is there").units.entries);
        let (near, far) = match gathers {
            true => (long(&mut pair, 0), pair.ends[1].sge(0, OUTER)),
            false => (pair.ends[0].sge(0, OUTER), long(&mut pair, 1)),
        };
        // A list of common length costs nothing.
        let (pd, part) = (pair.ends[0].pd, pair.ends[0].sge(0, 16));
        let list = pieces(&[part; INNER]);
        let key = made(&mut pair.hcas[0], pd, AccessMode::Klm, &list, 16 * INNER as u64).expect("a key");
        pair.recv(1, 0, 0, 4096);
        pair.send(0, &SendRequest::send(0, &[Sge { address: 16, len: 1024, key }]));
        pair.sent_ok(0, 0);
        pair.received_ok(1, 0);
        assert_eq!(walked(), 0, "its entries are few");
        let began = simulation.world(|_, now| now);
        for i in 0..REQUESTS {
            pair.ends[1].qp.post_recv(i, &[far]).expect("a receive");
            pair.ends[0].qp.queue_send(&SendRequest::send(i, &[near])).expect("a send");
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        for i in 0..REQUESTS {
            pair.received_ok(1, i);
        }
        while pair.try_sent(0).is_some() {}
        let charged = walked();
        assert!(charged >= REQUESTS * (ENTRIES - FREE), "{charged} entries, gathers: {gathers}");
        let (sge, mr) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
        pair.send(0, &SendRequest::write(REQUESTS, &sge, mr.address, mr.key));
        while pair.try_sent(0).is_none_or(|(number, _)| number != REQUESTS) {
            simulation.run(Ps::from_us(1));
        }
        let took = simulation.world(|_, now| now).since(began);
        let least = charged * ENTRY / BYTES_PER_NS;
        assert!(took.as_ns() >= least, "{took} for {charged} entries, gathers: {gathers}");
        assert!(took.as_ns() < 3 * least, "{took} for {charged} entries, gathers: {gathers}");
    }
}
