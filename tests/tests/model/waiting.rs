//! Events that nothing comes of any more don't pile up.

use hca_driver::qp::Path;
use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{Error, InitAttr, QpConfig, RtrAttr, RtsAttr, SendRequest};
use hca_model::link::Faults;
use hca_model::trace::{Event, Hold, Record};
use hca_model::{HcaId, Ps, WaitingEvents};
use hca_spec::ids::{Lid, Qpn};
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::rig;

/// Times that a request is posted; every tenth gets so far that its timer begins, of more than two hours of model time.
const TIMES: usize = 120_000;
/// 4.096 us * 2^31.
const LONGEST: u8 = 31;
/// So many events are looked through, and here nearly all go (`world/waiting.rs`).
const MOST: usize = 4096;

/// A queue pair asks nobody, with the longest timeout, and is reset, over and over: each time an event for the timer is left.
#[test]
fn timers_of_queue_pairs_that_were_reset() {
    let mut pair = rig::loopback(&Options::default());
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let waiting = || simulation.world(|world, _| world.waiting_events());
    let before = waiting();
    let rts = RtsAttr { timeout: LONGEST, ..RtsAttr::default() };
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    let mut most = 0;
    let ask = |pair: &mut hca_tests::pair::Pair<_>| -> Result<(), Error> {
        let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
        hca.qp_to_reset(qp)?;
        hca.qp_to_init(qp, &InitAttr::default())?;
        hca.qp_to_rtr(qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(Lid(1))))?;
        hca.qp_to_rts(qp, &rts)?;
        qp.post_send(hca.bus_mut(), &SendRequest::write(1, &sge, far.address, far.key))
    };
    for _ in 0..TIMES {
        ask(&mut pair).expect("a connection to nobody");
        most = most.max(waiting());
    }
    assert!((MOST / 2..=MOST).contains(&most), "{most} events waited");
    // A timer that runs still does: with a short one the request fails in time.
    let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
    hca.qp_to_reset(qp).expect("2RST");
    assert!(waiting() >= before);
    let options =
        Options { rts: RtsAttr { timeout: 8, retries: 1, ..RtsAttr::default() }, ..Options::default() };
    pair.to_rts(0, &options).expect("RTS");
    // The other end is not ready to answer any more.
    let Ok(()) = pair.hcas[0].qp_to_reset(&mut pair.ends[1].qp) else { panic!("2RST") };
    pair.send(0, &SendRequest::write(2, &sge, far.address, far.key));
    let (_, completion) = pair.sent(0);
    assert!(completion.status.is_err(), "{completion:?}");
}

/// Beside thousands of timers that run, as many that nothing comes of are taken out as there are, in several goes; those that run stay, and
/// an adapter has what it has counted.
#[test]
fn timers_among_many_that_run() {
    const RUNNING: usize = 3000;
    const TIMES: usize = 12_000;
    let mut pair = rig::loopback(&Options { send_blocks: 4, ..Options::default() });
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let waiting = || simulation.world(|world, _| (world.waiting_events(), world.events_of_each()[0].waiting));
    let rts = RtsAttr { timeout: LONGEST, ..RtsAttr::default() };
    let far = pair.ends[1].mr;
    let sge = [pair.ends[0].sge(0, 8)];
    let write = SendRequest::write(1, &sge, far.address, far.key);
    let [end, _] = &pair.ends;
    let hca = &mut pair.hcas[0];
    let rc = QpConfig::rc(end.pd, &end.send_cq, &end.recv_cq);
    let config = QpConfig { send_blocks: 4, recv_requests: 1, recv_sges: 1, ..rc };
    let mut queues: Vec<_> = (0..=RUNNING).map(|_| hca.create_qp(&config).expect("CREATE_QP")).collect();
    let (mut least, mut most) = (usize::MAX, 0);
    for i in 0..RUNNING + TIMES {
        let qp = &mut queues[i.min(RUNNING)];
        if i > RUNNING {
            hca.qp_to_reset(qp).expect("2RST");
        }
        hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
        hca.qp_to_rtr(qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(Lid(1)))).expect("RTR");
        hca.qp_to_rts(qp, &rts).expect("RTS");
        qp.post_send(hca.bus_mut(), &write).expect("it is posted");
        simulation.run(Ps::from_us(10));
        let (all, of_adapter) = waiting();
        assert!(of_adapter <= all && all - of_adapter < 100, "{of_adapter} of {all}");
        most = most.max(all);
        if most > 2 * RUNNING {
            least = least.min(all);
        }
    }
    assert!((2 * RUNNING..=MOST + 2 * RUNNING).contains(&most), "{most} events waited");
    assert!((RUNNING..RUNNING + 200).contains(&least), "{least} were left");
    // All that run still do.
    queues.iter_mut().for_each(|qp| hca.qp_to_reset(qp).expect("2RST"));
}

/// Queue pairs of an adapter, each with a timer that runs for more than two hours.
const QUEUES: usize = 400;
/// Events that may wait there.
const EVENTS: usize = 200;

/// An adapter with as many events as it may have heeds no doorbell until there is room, and everything else.
#[test]
fn doorbells_wait_for_room() {
    let mut pair = rig::loopback(&Options { send_blocks: 4, ..Options::default() });
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let events = || simulation.world(|world, _| world.events_of_each()[0]);
    simulation.world(|world, _| world.limit_events(HcaId(0), EVENTS));
    let rts = RtsAttr { timeout: LONGEST, ..RtsAttr::default() };
    let far = pair.ends[1].mr;
    let [end, _] = &pair.ends;
    let hca = &mut pair.hcas[0];
    let config = QpConfig::rc(end.pd, &end.send_cq, &end.recv_cq);
    let mut queues: Vec<_> = (0..QUEUES).map(|_| hca.create_qp(&config).expect("CREATE_QP")).collect();
    let sge = [end.sge(0, 8)];
    let mut most = 0;
    for qp in &mut queues {
        hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
        hca.qp_to_rtr(qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(Lid(1)))).expect("RTR");
        hca.qp_to_rts(qp, &rts).expect("RTS");
        let write = SendRequest::write(1, &sge, far.address, far.key);
        // Twice: there is one doorbell of each that waits.
        qp.post_send(hca.bus_mut(), &write).expect("it is posted");
        qp.post_send(hca.bus_mut(), &write).expect("it is posted");
        simulation.run(Ps::from_us(10));
        most = most.max(events().waiting);
    }
    let WaitingEvents { waiting, most: limit, doorbells, held } = events();
    // What passed at the moment of the look was counted then; work is taken again when a sixty-fourth of the bound is free.
    let about = EVENTS - EVENTS / 64..EVENTS + EVENTS / 8;
    assert!(about.contains(&most) && limit == EVENTS, "{most} events waited");
    assert!(
        waiting + doorbells >= QUEUES && held as usize > doorbells,
        "{waiting} wait, {doorbells} are noted"
    );
    // Queue pairs that are reset make room, and others' doorbells are heeded.
    let (old, new) = queues.split_at_mut(QUEUES / 2);
    old.iter_mut().for_each(|qp| hca.qp_to_reset(qp).expect("2RST"));
    simulation.run(Ps::from_us(100));
    assert!(events().doorbells < doorbells, "{:?}", events());
    new.iter_mut().for_each(|qp| hca.qp_to_reset(qp).expect("2RST"));
    simulation.run(Ps::from_us(100));
    assert_eq!((events().doorbells, events().held), (0, held));
    // The next message passes.
    pair.deliver_and_read(&[7; 100], 4096);
}

/// Requests under way may take so much of the server's memory and no more; queue pairs that wait for it go on, each in its turn, when others' are
/// answered.
#[test]
fn requests_wait_for_memory() {
    const REQUESTS: u64 = 400;
    let mut pair = rig::linked(&Options { send_blocks: 512, ..Options::default() }, Faults::default(), 1);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let held = || {
        let is_held = |record: &Record| matches!(record.event, Event::Held { why: Hold::Memory, .. });
        simulation.world(|world, _| world.drain_trace().filter(is_held).count())
    };
    simulation.world(|world, _| world.start_trace(1 << 20));
    let write = |pair: &mut Pair<ModelBus>| {
        let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
        let end = &mut pair.ends[0];
        for i in 0..REQUESTS {
            end.qp.queue_send(&SendRequest::write(i, &sge, far.address, far.key)).expect("room");
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        (0..REQUESTS).for_each(|i| _ = pair.sent_ok(0, i));
    };
    write(&mut pair);
    assert_eq!(held(), 0, "there is memory for far more");
    // For some twenty.
    simulation.world(|world, _| world.limit_requests(HcaId(0), 20_000));
    write(&mut pair);
    assert!(held() > 0);
    assert!(simulation.world(|world, _| world.request_bytes(HcaId(0))) == 0, "all is given back");
}

/// What nobody answers is kept for nobody: datagrams leave while requests wait for memory.
#[test]
fn datagrams_wait_for_no_memory() {
    const QKEY: u32 = 0x1234;
    let mut pair = rig::linked(&Options::default(), Faults::default(), 1);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.world(|world, _| world.limit_requests(HcaId(0), 0));
    let lid = pair.hcas[1].lid(PORT).expect("LID");
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
    let (hca, end) = (&mut pair.hcas[0], &mut pair.ends[0]);
    let mut qp = rig::datagrams(hca, end.pd, (&end.send_cq, &end.recv_cq), QKEY);
    let to = Datagram { qpn: Qpn(0xff_fff0), qkey: QKEY, lid, sl: 0, gid: None };
    let datagram = SendRequest::new(2, SendOp::Datagram { to, imm: None }, &sge);
    qp.post_send(hca.bus_mut(), &datagram).expect("it is posted");
    simulation.run(Ps::from_us(100));
    let sent = pair.ends[0].send_cq.poll().expect("it has left");
    assert_eq!((qp.finish(&sent), sent.status), (Some(2), Ok(())));
    assert_eq!(pair.try_sent(0), None, "the write waits");
    simulation.world(|world, _| world.limit_requests(HcaId(0), 1 << 20));
    // Whatever happens next lets it go on.
    qp.post_send(pair.hcas[0].bus_mut(), &datagram).expect("it is posted");
    simulation.run(Ps::from_us(100));
    let ended = std::iter::from_fn(|| pair.ends[0].send_cq.poll()).map(|done| done.status);
    assert_eq!(ended.collect::<Vec<_>>(), [Ok(()); 2]);
}
