//! Counters of queue pairs: each number comes from the transport that it is about.

use hca_driver::{Hca, InitAttr, RtsAttr, SendRequest};
use hca_model::{HcaId, Ps};
use hca_spec::caps::General;
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::cqe::Syndrome;
use hca_spec::port_counters::{LongPortCounters, PPCNT_COUNTERS, Ppcnt, ppcnt_group};
use hca_tests::counters::port_counters;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, PORT, Pair, pattern};
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
pub(crate) fn requests_naks_and_errors_are_counted() {
    let options = Options::default();
    let mut pair = linked(&options, hca_model::link::Faults::default(), 1);
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
pub(crate) fn timeouts_are_counted() {
    let rts = RtsAttr { timeout: 8, retries: 3, ..RtsAttr::default() };
    let options = Options { rts, ..Options::default() };
    let mut pair = linked(&options, hca_model::link::Faults::default(), 1);
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

/// A queue pair in RTS counts into the set that it was given last, from then on.
#[test]
pub(crate) fn a_set_changes_in_rts() {
    let options = Options::default();
    let mut pair = linked(&options, hca_model::link::Faults::default(), 1);
    assert_eq!(pair.hcas[1].caps().get(General::RTS2RTS_QP_COUNTERS_SET_ID), 1);
    let sets = [(); 2].map(|()| pair.hcas[1].create_counters().expect("ALLOC_Q_COUNTER"));
    for end in 0..2 {
        let home = pair.ends[end].home;
        pair.hcas[home].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
    }
    for end in 0..2 {
        let counter_set = if end == 1 { sets[0].0 } else { 0 };
        let init = InitAttr { counter_set, access: options.queue_access, ..InitAttr::default() };
        pair.to_rts_with(end, &options, &init).expect("connect again");
    }
    let (far, sge) = (pair.ends[1].mr, [pair.ends[0].sge(0, 5000)]);
    let write = |pair: &mut Pair<ModelBus>, number, expected: [u32; 2]| {
        pair.send(0, &SendRequest::write(number, &sge, far.address, far.key));
        pair.sent_ok(0, number);
        let counted = sets.map(|set| pair.hcas[1].counters(set).expect("QUERY_Q_COUNTER").at(WRITES));
        assert_eq!(counted, expected);
    };
    write(&mut pair, 1, [1, 0]);
    pair.hcas[1].qp_set_counters(&mut pair.ends[1].qp, sets[1]).expect("RTS2RTS");
    write(&mut pair, 2, [1, 1]);
    write(&mut pair, 3, [1, 2]);
    pair.hcas[1].qp_set_counters(&mut pair.ends[1].qp, sets[0]).expect("RTS2RTS");
    write(&mut pair, 4, [2, 2]);
    for set in sets {
        pair.hcas[1].destroy_counters(set).expect("DEALLOC_Q_COUNTER");
    }
    close(pair);
}

/// What `softhca stat` shows is what the driver's tools read, and what the work was.
#[test]
pub(crate) fn all_counters_are_of_one_source() {
    const WRITES_DONE: u64 = 40;
    let options = Options::default();
    let mut pair = linked(&options, hca_model::link::Faults::loss(0.05), 3);
    let set = pair.hcas[1].create_counters().expect("ALLOC_Q_COUNTER");
    pair.hcas[1].qp_to_reset(&mut pair.ends[1].qp).expect("2RST");
    let init = InitAttr { counter_set: set.0, access: options.queue_access, ..InitAttr::default() };
    pair.to_rts_with(1, &options, &init).expect("connect again");
    let far = pair.ends[1].mr;
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let counters = |i| simulation.world(|w, _| w.counters(HcaId(i)).expect("an adapter"));
    let before = counters(0);
    for number in 0..WRITES_DONE {
        let sge = [pair.ends[0].sge(0, 5000)];
        pair.send(0, &SendRequest::write(number, &sge, far.address, far.key));
        pair.sent_ok(0, number);
    }
    let (near, peer) = (counters(0), counters(1));
    let qp =
        |c: &hca_model::Counters, qpn| c.qps.iter().find(|q| q.qpn == qpn).expect("the queue pair").counters;
    let sender = qp(&near, pair.ends[0].qp.number());
    assert_eq!((sender.requests_started, sender.requests_done), (WRITES_DONE, WRITES_DONE));
    assert!(sender.retries > 0 && sender.request_packets > WRITES_DONE * 5, "{sender:?}");
    let receiver = qp(&peer, pair.ends[1].qp.number());
    assert_eq!(receiver.executed_bytes, WRITES_DONE * 5000, "each byte once, whatever was lost");
    assert_eq!(near.adapter.cqes - before.adapter.cqes, WRITES_DONE);
    assert_eq!(near.adapter.doorbells - before.adapter.doorbells, WRITES_DONE);
    // The driver's own ways to the same numbers.
    let port = port_counters(&mut pair.hcas[0], PORT).expect("PortCounters");
    assert_eq!(u64::from(port.xmit_packets), counters(0).ports[0].xmit_packets);
    assert_eq!(u64::from(port.rcv_packets), counters(0).ports[0].rcv_packets);
    let register = |hca: &mut Hca<ModelBus>, op_mod, group, clear| {
        let mut input = AccessRegIn::new();
        input.set(AccessRegIn::REGISTER_ID, reg::PPCNT);
        let mut ppcnt = Ppcnt::new();
        ppcnt.set(Ppcnt::LOCAL_PORT, PORT.into()).set(Ppcnt::GRP, group).set(Ppcnt::CLR, clear);
        let input = [input.bytes(), &ppcnt.bytes()[..]].concat();
        let size = OutHeader::SIZE + Ppcnt::SIZE;
        let out = hca.execute(Opcode::AccessReg, op_mod, input, size).expect("PPCNT");
        LongPortCounters::from_prefix_or_zero(&out[OutHeader::SIZE + PPCNT_COUNTERS..])
    };
    let long = register(&mut pair.hcas[0], 1, ppcnt_group::INFINIBAND_LONG, 0);
    let port = counters(0).ports[0];
    assert_eq!(long.get(LongPortCounters::PORT_XMIT_PKTS), port.xmit_packets);
    assert_eq!(long.get(LongPortCounters::PORT_RCV_PKTS), port.rcv_packets);
    assert_eq!(long.get(LongPortCounters::PORT_XMIT_DATA), port.xmit_data);
    let sets = pair.hcas[1].counters(set).expect("QUERY_Q_COUNTER");
    for (counter, sum) in counters(1).q_counters {
        assert_eq!(u64::from(sets.at(counter as usize)), sum, "{counter:?}");
    }
    assert_eq!(u64::from(sets.at(WRITES)), WRITES_DONE);
    assert_eq!(u64::from(sets.at(0x40)), receiver.duplicates);
    pair.hcas[1].destroy_counters(set).expect("DEALLOC_Q_COUNTER");
    register(&mut pair.hcas[0], 0, ppcnt_group::ALL, 1);
    let cleared = port_counters(&mut pair.hcas[0], PORT).expect("PortCounters");
    assert_eq!((cleared.xmit_packets, counters(0).ports[0].xmit_data), (0, 0), "for the agent, too");
    close(pair);
    let gone = simulation.world(|w, _| w.counters(HcaId(0)).expect("an adapter"));
    assert_eq!(gone.qps, [], "queue pairs that are gone are not told of");
}
