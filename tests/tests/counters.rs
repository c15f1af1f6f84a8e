//! Counters of queue pairs: each number comes from the transport that it is about.

use hca_driver::{InitAttr, RtsAttr, SendRequest};
use hca_model::Ps;
use hca_spec::cqe::Syndrome;
use hca_tests::pair::{Options, pattern};
use hca_tests::rig::{close, linked};

/// Offsets in QUERY_Q_COUNTER's output.
const WRITES: usize = 0x10;
const READS: usize = 0x18;
const NO_BUFFER: usize = 0x30;
const RNR_NAKS: usize = 0x48;
const TIMEOUTS: usize = 0x60;
const SEND_ERRORS: usize = 0x94;
const REMOTE_ACCESS: usize = 0xa8;
const REFUSED_ACCESS: usize = 0xac;
const FLUSHED_SENDS: usize = 0xc0;

#[test]
fn requests_naks_and_errors_are_counted() {
    let options = Options::default();
    let mut pair = linked(&options, hca_model::fabric::Faults::default(), 1);
    let mut sets = Vec::new();
    for end in 0..2 {
        let home = pair.ends[end].home;
        let set = pair.hcas[home].create_counters().expect("ALLOC_Q_COUNTER");
        pair.hcas[home].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
        sets.push(set);
    }
    for (end, set) in sets.iter().enumerate() {
        let init = InitAttr { counter_set: set.0, access: options.queue_access, ..InitAttr::default() };
        pair.to_rts_with(end, &options, &init).expect("connect again");
    }
    let data = pattern(1, 5000);
    pair.fill(0, 0, &data);
    let far = pair.ends[1].mr;
    let sge = [pair.ends[0].sge(0, 5000)];
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
    pair.sent_ok(0, 1);
    pair.send(0, &SendRequest::read(2, &sge, far.address, far.key));
    pair.sent_ok(0, 2);
    // Nobody receives for a while.
    pair.send(0, &SendRequest::send(3, &[]).inline(b"x"));
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.run(Ps::from_ms(5));
    pair.recv(1, 4, 0, 64);
    pair.sent_ok(0, 3);
    pair.received_ok(1, 4);
    // Beyond the end, and one behind it that is flushed.
    pair.send(0, &SendRequest::write(5, &sge, far.address + far.len, far.key));
    pair.send(0, &SendRequest::write(6, &sge, far.address, far.key));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::RemoteAccess));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::WorkRequestFlushed));

    let (near, far) = (pair.ends[0].home, pair.ends[1].home);
    let requester = pair.hcas[near].counters(sets[0]).expect("QUERY_Q_COUNTER");
    let responder = pair.hcas[far].counters(sets[1]).expect("QUERY_Q_COUNTER");
    assert_eq!((responder.at(WRITES), responder.at(READS)), (1, 1), "one a message");
    assert!(responder.at(NO_BUFFER) > 0);
    assert_eq!(requester.at(RNR_NAKS), responder.at(NO_BUFFER), "each is told");
    assert_eq!((requester.at(REMOTE_ACCESS), responder.at(REFUSED_ACCESS)), (1, 1));
    assert_eq!((requester.at(SEND_ERRORS), requester.at(FLUSHED_SENDS)), (1, 1));
    assert_eq!((requester.at(TIMEOUTS), requester.at(WRITES)), (0, 0));
    for (home, set) in [(near, sets[0]), (far, sets[1])] {
        pair.hcas[home].destroy_counters(set).expect("DEALLOC_Q_COUNTER");
        assert!(pair.hcas[home].counters(set).is_err());
    }
    close(pair);
}

#[test]
fn timeouts_are_counted() {
    let rts = RtsAttr { timeout: 8, retries: 3, ..RtsAttr::default() };
    let options = Options { rts, ..Options::default() };
    let mut pair = linked(&options, hca_model::fabric::Faults::default(), 1);
    let set = pair.hcas[0].create_counters().expect("ALLOC_Q_COUNTER");
    for end in 0..2 {
        let home = pair.ends[end].home;
        pair.hcas[home].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
    }
    let init = InitAttr { counter_set: set.0, access: options.queue_access, ..InitAttr::default() };
    pair.to_rts_with(0, &options, &init).expect("connect again");
    pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::TransportRetryExceeded));
    let counters = pair.hcas[0].counters(set).expect("QUERY_Q_COUNTER");
    assert_eq!(counters.at(TIMEOUTS), 4, "the first try and three more");
    close(pair);
}
