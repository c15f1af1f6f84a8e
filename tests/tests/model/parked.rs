//! Inputs that wait for answers of memory: what goes on meanwhile, and how the waiting ends.

use hca_driver::qp::Path;
use hca_driver::wqe::SendOp;
use hca_driver::{Access, InitAttr, QpConfig, RtrAttr, RtsAttr, SendRequest};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Lid, Qpn};
use hca_tests::in_process::{ModelBus, Simulation, deferring};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, linked, loopback, open};
use hca_tests::worlds;

fn simulation(pair: &mut Pair<ModelBus>) -> Simulation {
    pair.hcas[0].bus_mut().simulation().clone()
}

fn parked(pair: &mut Pair<ModelBus>, hca: usize) -> usize {
    simulation(pair).world(|world, _| world.parked_inputs(HcaId(hca)))
}

/// A message whose payload is not answered waits; another queue pair of the same adapter goes on, and so do commands.
#[test]
fn only_what_reads_waits() {
    deferring(3, || {
        let mut pair = linked(&Options::default(), Faults::default(), 1);
        let mut other = Pair::connect(std::mem::take(&mut pair.hcas), &Options::default()).expect("connect");
        let data = pattern(1, 3000);
        pair.fill(0, 0, &data);
        other.fill(0, 0, &data);
        other.hcas[0].bus_mut().withhold(Some(&pair.ends[0].memory));
        let far = pair.ends[1].mr;
        let sge = [pair.ends[0].sge(0, 3000)];
        let posted = pair.ends[0]
            .qp
            .post_send(other.hcas[0].bus_mut(), &SendRequest::write(1, &sge, far.address, far.key));
        assert_eq!(posted, Ok(()));
        let far = other.ends[1].mr;
        for i in 0..20 {
            let sge = [other.ends[0].sge(0, 3000)];
            other.send(0, &SendRequest::write(i, &sge, far.address, far.key));
            other.sent_ok(0, i);
            let pd = other.hcas[0].alloc_pd().expect("ALLOC_PD");
            other.hcas[0].dealloc_pd(pd).expect("DEALLOC_PD");
        }
        assert_eq!(other.ends[1].bytes(0, 3000), data);
        assert!(pair.try_sent(0).is_none());
        assert_eq!(parked(&mut other, 0), 1);
        other.hcas[0].bus_mut().withhold(None);
        pair.hcas = std::mem::take(&mut other.hcas);
        pair.sent_ok(0, 1);
        assert_eq!(pair.ends[1].bytes(0, 3000), data);
        assert_eq!(parked(&mut pair, 0), 0);
    });
}

/// Later inputs of a queue pair wait behind the one that reads: nothing overtakes.
#[test]
fn a_queue_pair_keeps_its_order() {
    deferring(3, || {
        let mut pair = linked(&Options::default(), Faults::default(), 1);
        pair.fill(0, 0, &[1; 64]);
        pair.hcas[0].bus_mut().withhold(Some(&pair.ends[0].memory));
        let far = pair.ends[1].mr;
        for i in 0..5 {
            let sge = [pair.ends[0].sge(0, 64)];
            pair.send(0, &SendRequest::write(i, &sge, far.address, far.key));
        }
        // The peer writes into this end meanwhile.
        let near = pair.ends[0].mr;
        let sge = [pair.ends[1].sge(100, 8)];
        pair.send(1, &SendRequest::write(9, &sge, near.address + 1000, near.key));
        simulation(&mut pair).run(Ps::from_us(50));
        assert!(pair.try_sent(0).is_none() && pair.try_sent(1).is_none());
        pair.hcas[0].bus_mut().withhold(None);
        for i in 0..5 {
            pair.sent_ok(0, i);
        }
        pair.sent_ok(1, 9);
        close(pair);
    });
}

/// What memory that is taken away, before it is read or while its answer is awaited, does: completions of a send and of its
/// peer.
fn without(end: usize, op: SendOp, before: bool) -> [Option<Result<(), Option<Syndrome>>>; 2] {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    pair.recv(1, 7, 0, 64);
    let home = pair.ends[end].home;
    match before {
        true => pair.hcas[home].bus_mut().unmap(&pair.ends[end].memory),
        false => pair.hcas[home].bus_mut().withhold(Some(&pair.ends[end].memory)),
    }
    let sge = [pair.ends[0].sge(0, 64)];
    let far = pair.ends[1].mr;
    let op = match op {
        SendOp::Read { .. } => SendOp::Read { address: far.address, rkey: far.key },
        op => op,
    };
    pair.send(0, &SendRequest::new(1, op, &sge));
    simulation(&mut pair).run(Ps::from_us(50));
    if !before {
        assert_eq!(parked(&mut pair, home), 1);
        pair.hcas[home].bus_mut().unmap(&pair.ends[end].memory);
    }
    simulation(&mut pair).run(Ps::from_ms(1));
    let status = |c: hca_driver::Completion| c.status.map_err(|why| why.syndrome);
    let of = [pair.try_sent(0), pair.try_received(1)].map(|found| found.map(|(_, c)| status(c)));
    assert_eq!([0, 1].map(|hca| parked(&mut pair, hca)), [0, 0]);
    of
}

/// Memory that goes while its answer is awaited: the driver sees what it sees where memory answers at once.
#[test]
fn unmapping_fails_what_waits() {
    let read = SendOp::Read { address: 0, rkey: hca_spec::ids::Mkey(0) };
    for (end, op) in [(0, SendOp::Send { imm: None }), (1, read)] {
        let at_once = without(end, op, true);
        assert!(matches!(at_once[0], Some(Err(Some(_)))), "{op:?}: {at_once:?}");
        for seed in 1..5 {
            assert_eq!(deferring(seed, || without(end, op, false)), at_once, "{op:?}");
        }
    }
}

/// A reset while inputs wait: nothing of before is done after it, and the adapter comes up again.
#[test]
fn reset_ends_what_waits() {
    deferring(5, || {
        let mut pair = loopback(&Options { access: Access::ALL, ..Options::default() });
        pair.hcas[0].bus_mut().withhold(Some(&pair.ends[0].memory));
        let far = pair.ends[1].mr;
        let sge = [pair.ends[0].sge(0, 64)];
        pair.send(0, &SendRequest::write(1, &sge, far.address + 4096, far.key));
        let simulation = simulation(&mut pair);
        simulation.run(Ps::from_us(50));
        assert!(parked(&mut pair, 0) > 0);
        simulation.world(|world, now| world.reset(now, HcaId(0)));
        assert_eq!(parked(&mut pair, 0), 0);
        pair.hcas[0].bus_mut().withhold(None);
        simulation.run(Ps::from_us(50));
        assert!(pair.try_sent(0).is_none());
        drop(pair);
        let hca = open(&simulation, 0);
        hca.close().expect("teardown");
        worlds::assert_nothing_held(&simulation, HcaId(0));
    });
}

/// Many inputs wait for answers that come at once: some are carried out, and the others in events of their own.
#[test]
fn what_waited_goes_on_in_pieces() {
    const QUEUES: usize = 48;
    /// Inputs of one event (`adapter/parked.rs`).
    const MOST: usize = 16;
    deferring(3, || {
        let mut pair = loopback(&Options::default());
        let far = pair.ends[1].mr;
        let [end, _] = &pair.ends;
        let (sge, hca) = ([end.sge(0, 64)], &mut pair.hcas[0]);
        let config = QpConfig::rc(end.pd, &end.send_cq, &end.recv_cq);
        let mut queues: Vec<_> = (0..QUEUES).map(|_| hca.create_qp(&config).expect("CREATE_QP")).collect();
        for qp in &mut queues {
            hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
            hca.qp_to_rtr(qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(Lid(1)))).expect("RTR");
            hca.qp_to_rts(qp, &RtsAttr::default()).expect("RTS");
        }
        hca.bus_mut().withhold(Some(&end.memory));
        for qp in &mut queues {
            let write = SendRequest::write(1, &sge, far.address, far.key);
            qp.post_send(hca.bus_mut(), &write).expect("it is posted");
        }
        simulation(&mut pair).run(Ps::from_us(50));
        assert_eq!(parked(&mut pair, 0), QUEUES);
        // What the answers are does not matter: these are that there is nothing.
        pair.hcas[0].bus_mut().unmap(&pair.ends[0].memory);
        let left = parked(&mut pair, 0);
        assert!((QUEUES - 2 * MOST..QUEUES).contains(&left), "{left} wait");
        simulation(&mut pair).run(Ps::from_us(50));
        assert_eq!(parked(&mut pair, 0), 0);
        let failed = std::iter::from_fn(|| pair.ends[0].send_cq.poll()).filter(|told| told.status.is_err());
        assert_eq!(failed.count(), QUEUES);
    });
}
