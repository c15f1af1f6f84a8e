//! What a trace says: one work request from its doorbell to its completion, and the same of the same history.

use hca_driver::{SendOp, SendRequest};
use hca_model::link::Faults;
use hca_model::trace::{Event, Object, Record};
use hca_model::{HcaId, Ps};
use hca_spec::wire::Operation;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair};
use hca_tests::{rig, worlds};

/// Two linked adapters that record everything.
fn traced(faults: Faults, seed: u64) -> Pair<ModelBus> {
    let simulation = Simulation::new(worlds::two_with(faults, seed));
    simulation.world(|world, _| world.start_trace(1 << 20));
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    Pair::connect(hcas, &Options::default()).expect("the queue pairs connect")
}

fn records(pair: &mut Pair<ModelBus>) -> Vec<Record> {
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.world(|world, _| world.drain_trace().collect())
}

fn hash(pair: &mut Pair<ModelBus>) -> (u64, u64) {
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.world(|world, _| world.trace().map(|t| (t.hash(), t.count())).unwrap_or_default())
}

fn write(pair: &mut Pair<ModelBus>, number: u64, len: usize) {
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    let sge = [pair.ends[0].sge(0, len)];
    pair.send(0, &SendRequest::new(number, SendOp::Write { address, rkey, imm: None }, &sge));
    pair.sent_ok(0, number);
}

/// A write of three packets: each step is there, in order, with the numbers that join it to the next.
#[test]
fn a_work_request_can_be_followed() {
    let mut pair = traced(Faults::default(), 1);
    let qpn = pair.ends[0].qp.number();
    let peer = pair.ends[1].qp.number();
    write(&mut pair, 0, 8);
    records(&mut pair);
    write(&mut pair, 1, 3 * rig::MTU);
    let records = records(&mut pair);
    let at = |what: &str, found: &dyn Fn(&Event) -> bool| -> Record {
        *records.iter().find(|r| found(&r.event)).unwrap_or_else(|| panic!("no {what}: {records:#?}"))
    };
    let doorbell = at("doorbell", &|e| matches!(e, Event::Doorbell { qpn: rung, .. } if *rung == qpn));
    let fetch = at("fetch", &|e| matches!(e, Event::Fetch { qpn: q, .. } if *q == qpn));
    let start = at("start", &|e| matches!(e, Event::Started { qpn: q, .. } if *q == qpn));
    let Event::Started { index, psn, packets, length, dest_qp, dlid, .. } = start.event else {
        unreachable!()
    };
    assert_eq!((packets, length, dest_qp), (3, 3 * rig::MTU as u64, peer));
    let last = psn.add(2);
    let build =
        |n| at("build", &|e| matches!(e, Event::Build { index: i, psn: p, .. } if (*i, *p) == (index, n)));
    let sent =
        at("sent", &|e| matches!(e, Event::Sent { dest_qp, psn, .. } if (*dest_qp, *psn) == (peer, last)));
    let Event::Sent { slid, dlid: to, bytes, .. } = sent.event else { unreachable!() };
    assert_eq!((to, sent.hca), (dlid, HcaId(0)));
    let received = at("received", &|e| {
        matches!(e, Event::Received { slid: s, dlid: d, dest_qp, psn, .. }
            if (*s, *d, *dest_qp, *psn) == (slid, dlid, peer, last))
    });
    assert_eq!(received.hca, HcaId(1));
    let Event::Received { bytes: arrived, .. } = received.event else { unreachable!() };
    assert_eq!(bytes, arrived);
    let executed = at("execute", &|e| matches!(e, Event::Executed { psn, .. } if *psn == last));
    let respond = at(
        "respond",
        &|e| matches!(e, Event::Respond { psn, operation, .. } if (*psn, *operation) == (last, Operation::Acknowledge)),
    );
    let answer =
        at("answer", &|e| matches!(e, Event::Answered { qpn: q, psn, .. } if (*q, *psn) == (qpn, last)));
    let done = at("done", &|e| matches!(e, Event::Done { qpn: q, index: i, .. } if (*q, *i) == (qpn, index)));
    let cqe = at("CQE", &|e| matches!(e, Event::Cqe { qpn: q, index: i, .. } if (*q, *i) == (qpn, index)));
    let way = [
        doorbell,
        fetch,
        start,
        build(psn),
        build(psn.add(1)),
        build(last),
        sent,
        received,
        executed,
        respond,
        answer,
        done,
        cqe,
    ];
    for pair in way.windows(2) {
        assert!(pair[0].at <= pair[1].at, "{pair:#?}");
    }
    assert!(
        fetch.at >= doorbell.end() && start.at >= fetch.end(),
        "what takes time is over before the next step"
    );
    assert!(received.at > sent.at, "the cable takes time");
    rig::close(pair);
}

/// The same history gives the same hash; another seed, or one byte more, another one.
#[test]
fn the_same_history_has_the_same_hash() {
    let run = |seed, len| {
        let mut pair = traced(Faults::loss(0.05), seed);
        for number in 0..100 {
            write(&mut pair, number, len);
        }
        let hash = hash(&mut pair);
        rig::close(pair);
        hash
    };
    let first = run(1, 3000);
    assert!(first.1 > 1000, "a hash of something");
    assert_eq!(first, run(1, 3000));
    assert_ne!(first, run(2, 3000));
    assert_ne!(first, run(1, 3004));
}

/// Losses show: as timeouts or NAKs, and packets sent again.
#[test]
fn losses_are_in_the_trace() {
    let mut pair = traced(Faults::loss(0.2), 3);
    for number in 0..50 {
        write(&mut pair, number, 4 * rig::MTU);
    }
    let records = records(&mut pair);
    let count = |found: &dyn Fn(&Event) -> bool| records.iter().filter(|r| found(&r.event)).count();
    assert!(count(&|e| matches!(e, Event::Retry { .. })) > 0);
    assert!(count(&|e| matches!(e, Event::Timeout { .. })) > 0);
    let built = count(&|e| matches!(e, Event::Build { .. }));
    assert!(built > 200, "{built}: some were built twice");
    assert_eq!(count(&|e| matches!(e, Event::Done { .. })), 50, "but each request was done once");
    rig::close(pair);
}

/// Nothing is recorded that nobody asked for, and looking on changes nothing.
#[test]
fn looking_on_changes_nothing() {
    let run = |watch: bool| -> Ps {
        let simulation = Simulation::new(worlds::two(0.05, 7));
        if watch {
            simulation.world(|world, _| {
                world.start_trace(10);
                (0..2).for_each(|i| world.capture_packets(HcaId(i)));
            });
        }
        let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
        let mut pair = Pair::connect(hcas, &Options::default()).expect("the queue pairs connect");
        for number in 0..50 {
            write(&mut pair, number, 2000);
        }
        let packets = simulation.world(|world, _| world.drain_packets());
        assert_eq!(packets.is_empty(), !watch);
        assert!(packets.is_sorted_by_key(|p| p.at));
        let now = simulation.now();
        rig::close(pair);
        now
    };
    assert_eq!(run(false), run(true));
}

/// What goes over PCIe and what misses a cache is there, with its time: as much as the adapter counts.
#[test]
fn what_the_units_do_is_in_the_trace() {
    let mut pair = traced(Faults::default(), 1);
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let counts = || [0, 1].map(|i| simulation.world(|w, _| w.counters(HcaId(i))).expect("counters").units);
    let before = counts();
    records(&mut pair);
    for number in 0..20 {
        write(&mut pair, number, 5000);
    }
    for (number, op) in
        [(20, SendOp::Read { address, rkey }), (21, SendOp::FetchAdd { address, rkey, add: 1 })]
    {
        let sge = [pair.ends[0].sge(0, if number == 20 { 3000 } else { 8 })];
        pair.send(0, &SendRequest::new(number, op, &sge));
        pair.sent_ok(0, number);
    }
    let (after, records) = (counts(), records(&mut pair));
    for (i, (before, after)) in before.iter().zip(&after).enumerate() {
        let sum = |of: &dyn Fn(&Event) -> u64| -> u64 {
            records.iter().filter(|r| r.hca == HcaId(i)).map(|r| of(&r.event)).sum()
        };
        let read = sum(&|e| if let Event::DmaRead { bytes, .. } = e { u64::from(*bytes) } else { 0 });
        let written = sum(&|e| if let Event::DmaWrite { bytes, .. } = e { u64::from(*bytes) } else { 0 });
        assert_eq!(read, after.pcie.read_bytes - before.pcie.read_bytes, "read by adapter {i}");
        assert_eq!(written, after.pcie.written_bytes - before.pcie.written_bytes, "written by adapter {i}");
        assert!(read > 0 && written > 0);
        let keys = sum(&|e| u64::from(matches!(e, Event::KeyMiss { .. })));
        assert_eq!(keys, after.keys.misses - before.keys.misses, "keys that adapter {i} missed");
        assert!(keys > 0, "the first use of a key misses the cache");
        let lines = sum(&|e| u64::from(matches!(e, Event::TranslationMiss { .. })));
        assert_eq!(
            lines,
            after.translations.misses - before.translations.misses,
            "translations of adapter {i}"
        );
    }
    // A miss lasts until what was read for it is there; a read takes time, and it is that of its queue pair.
    let qpn = pair.ends[0].qp.number();
    let miss = records.iter().find(|r| matches!(r.event, Event::KeyMiss { qpn: q, .. } if q == qpn));
    let miss = miss.expect("a key was missed");
    let read = records.iter().find(|r| {
        r.end() == miss.end()
            && matches!(r.event, Event::DmaRead { what: Object::Key, queue, .. } if queue == qpn.0)
    });
    let read = read.expect("the key was read");
    assert!(read.hca == miss.hca && miss.took == read.wait + read.took && read.took > Ps::from_ns(100));
    rig::close(pair);
}
