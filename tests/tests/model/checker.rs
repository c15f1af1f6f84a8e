//! The checker says what an adapter keeps silent about; of drivers that do it right it says nothing.

use hca_driver::qp::Path;
use hca_driver::{Bus, InitAttr, RtrAttr, RtsAttr, SendOp, SendRequest, Sge};
use hca_model::link::Faults;
use hca_model::{Finding, HcaId, Ps, Saying};
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::uar::{PAGE_SIZE, SEND_DOORBELL};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair};
use hca_tests::{rig, worlds};

/// How long a driver may leave something undone.
const PATIENCE: Ps = Ps::from_ms(5);

/// Two adapters with queue pairs, and a checker that looks on.
fn checked(options: &Options) -> (Simulation, Pair<ModelBus>) {
    let simulation = Simulation::new(worlds::two(0.0, 1));
    simulation.world(|world, _| world.start_checker(PATIENCE));
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let pair = Pair::connect(hcas, options).expect("the queue pairs connect");
    (simulation, pair)
}

/// What the checker has found of the adapters' drivers.
fn found(simulation: &Simulation) -> Vec<(HcaId, Finding)> {
    let diagnoses = simulation.world(|world, _| world.drain_diagnoses());
    let finding = |d: hca_model::Diagnosis| match d.saying {
        Saying::Found(finding) => Some((d.function.hca, finding)),
        _ => None,
    };
    diagnoses.into_iter().filter_map(finding).collect()
}

fn rules(simulation: &Simulation) -> Vec<&'static str> {
    found(simulation).into_iter().map(|(_, finding)| finding.rule.name).collect()
}

/// A write of 8 bytes.
fn write(pair: &Pair<ModelBus>, wr_id: u64) -> (u64, SendOp, [Sge; 1]) {
    let remote = &pair.ends[1].mr;
    (wr_id, SendOp::Write { address: remote.address, rkey: remote.key, imm: None }, [pair.ends[0].sge(0, 8)])
}

fn post(pair: &mut Pair<ModelBus>, wr_id: u64) {
    let (wr_id, op, sge) = write(pair, wr_id);
    pair.send(0, &SendRequest::new(wr_id, op, &sge));
}

/// Puts a write into the send queue and counts it, but rings no doorbell. Returns the doorbell.
fn count(pair: &mut Pair<ModelBus>, wr_id: u64) -> u64 {
    let (wr_id, op, sge) = write(pair, wr_id);
    let qp = &mut pair.ends[0].qp;
    qp.queue_send(&SendRequest::new(wr_id, op, &sge)).expect("room");
    qp.count_sends().expect("a doorbell")
}

fn ring(pair: &mut Pair<ModelBus>, doorbell: u64) {
    let page = u64::from(pair.hcas[0].uar().0) * PAGE_SIZE;
    pair.hcas[0].bus_mut().mmio_write64(page + SEND_DOORBELL, doorbell);
}

/// The only finding, which is of the first adapter.
fn only(simulation: &Simulation) -> Finding {
    let mut found = found(simulation);
    assert_eq!(found.len(), 1, "{found:?}");
    let (hca, finding) = found.remove(0);
    assert_eq!(hca, HcaId(0), "{finding}");
    finding
}

#[test]
pub(crate) fn nothing_is_said_of_a_driver_that_does_it_right() {
    let (simulation, mut pair) = checked(&Options::default());
    for wr_id in 0..1000 {
        post(&mut pair, wr_id);
        if wr_id % 3 == 0 {
            let doorbell = count(&mut pair, wr_id);
            ring(&mut pair, doorbell);
            pair.sent_ok(0, wr_id);
        }
        pair.sent_ok(0, wr_id);
    }
    // Several doorbells are on their way while the record is far ahead.
    let doorbells: Vec<u64> = (0..5).map(|wr_id| count(&mut pair, wr_id)).collect();
    doorbells.into_iter().for_each(|doorbell| ring(&mut pair, doorbell));
    for wr_id in 0..5 {
        pair.sent_ok(0, wr_id);
    }
    simulation.run(Ps(20 * PATIENCE.0));
    assert_eq!(rules(&simulation), [""; 0]);
    rig::close(pair);
    assert_eq!(rules(&simulation), [""; 0]);
}

/// A queue that is polled on another's account is armed before its driver hears of its event, each time: the number counts, later.
#[test]
pub(crate) fn a_queue_that_is_armed_before_its_event_is_heard_of() {
    let (simulation, mut pair) = checked(&Options::default());
    pair.ends[0].send_cq.arm(pair.hcas[0].bus_mut(), false);
    for wr_id in 0..24 {
        post(&mut pair, wr_id);
        pair.sent_ok(0, wr_id);
        while pair.hcas[0].poll_event().expect("events").is_some() {}
        pair.ends[0].send_cq.arm(pair.hcas[0].bus_mut(), false);
        pair.ends[0].send_cq.event_taken();
        pair.ends[0].send_cq.arm(pair.hcas[0].bus_mut(), false);
    }
    rig::close(pair);
    assert_eq!(rules(&simulation), [""; 0]);
}

#[test]
pub(crate) fn a_doorbell_without_the_counter() {
    let (simulation, mut pair) = checked(&Options::default());
    let doorbell = count(&mut pair, 1);
    ring(&mut pair, doorbell);
    pair.sent_ok(0, 1);
    simulation.run(PATIENCE);
    ring(&mut pair, doorbell);
    simulation.run(Ps::from_us(10));
    let finding = only(&simulation);
    assert_eq!((finding.rule.name, finding.subject.number()), ("send-counter", pair.ends[0].qp.number().0));
    assert!(finding.found.contains("0x1"), "{finding}");
}

/// A busy host may bring a doorbell when more than half of the numbers of WQEs were used since.
#[test]
pub(crate) fn a_doorbell_that_is_very_late() {
    let (simulation, mut pair) = checked(&Options::default());
    let late = count(&mut pair, 0);
    for wr_id in 1..40_000 {
        post(&mut pair, wr_id);
        pair.sent_ok(0, wr_id - 1);
    }
    pair.sent_ok(0, 39_999);
    ring(&mut pair, late);
    simulation.run(PATIENCE);
    assert_eq!(rules(&simulation), [""; 0]);
}

/// Doorbells that fall behind more and more: in the end a WQE's number has come round before its doorbell comes.
#[test]
pub(crate) fn doorbells_that_fall_behind_by_all_numbers() {
    let (simulation, mut pair) = checked(&Options::default());
    let mut late = std::collections::VecDeque::new();
    for wr_id in 0..80_000 {
        late.push_back(count(&mut pair, wr_id));
        // The host brings one of eight: whatever is counted is taken with it.
        if wr_id % 8 == 7 {
            let doorbell = late.pop_front().expect("one");
            ring(&mut pair, doorbell);
            for done in wr_id - 7..=wr_id {
                pair.sent_ok(0, done);
            }
        }
    }
    // The rest come one behind the other, after the queue has come to its end.
    late.into_iter().for_each(|doorbell| ring(&mut pair, doorbell));
    simulation.run(PATIENCE);
    assert_eq!(rules(&simulation), [""; 0]);
}

#[test]
pub(crate) fn a_counter_without_the_doorbell() {
    let (simulation, mut pair) = checked(&Options::default());
    count(&mut pair, 1);
    simulation.run(Ps(PATIENCE.0 / 2));
    assert_eq!(rules(&simulation), [""; 0], "it may still come");
    simulation.run(Ps(10 * PATIENCE.0));
    assert_eq!(only(&simulation).rule.name, "send-doorbell", "said once");
}

#[test]
pub(crate) fn completions_that_nobody_reads() {
    let (simulation, mut pair) = checked(&Options::default());
    post(&mut pair, 1);
    simulation.run(Ps(10 * PATIENCE.0));
    let finding = only(&simulation);
    assert_eq!(finding.rule.name, "cq-polled");
    assert_eq!(finding.subject.kind(), "CQ");
}

/// Two ends of which the first has other values than the second expects.
fn misconnected(rtr: impl Fn(RtrAttr) -> RtrAttr, ready: bool) -> (Simulation, Pair<ModelBus>) {
    let simulation = Simulation::new(worlds::two(0.0, 1));
    simulation.world(|world, _| world.start_checker(PATIENCE));
    let options = Options::default();
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair = Pair::apart(hcas, [&options; 2]).expect("objects");
    if ready {
        pair.to_rts(1, &options).expect("RTS");
    }
    let (peer, lid) = (pair.ends[1].qp.number(), pair.hcas[1].lid(1).expect("a LID"));
    let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
    hca.qp_to_init(qp, &InitAttr { access: options.queue_access, ..InitAttr::default() }).expect("INIT");
    let right = RtrAttr { mtu: options.mtu, ..RtrAttr::new(peer, Path::lid(lid)) };
    hca.qp_to_rtr(qp, &rtr(right)).expect("RTR");
    hca.qp_to_rts(qp, &RtsAttr { timeout: 8, retries: 1, rnr_retries: 1, ..RtsAttr::default() })
        .expect("RTS");
    (simulation, pair)
}

/// The rule that explains why a write fails, and what was found.
fn explained(
    (simulation, mut pair): (Simulation, Pair<ModelBus>),
    op: impl Fn(&Pair<ModelBus>) -> SendOp,
) -> Finding {
    let (op, sge) = (op(&pair), [pair.ends[0].sge(0, 8)]);
    pair.send(0, &SendRequest::new(1, op, &sge));
    let (_, completion) = pair.sent(0);
    assert!(completion.status.is_err(), "{completion:?}");
    simulation.run(Ps::from_us(1));
    only(&simulation)
}

fn a_write(pair: &Pair<ModelBus>) -> SendOp {
    write(pair, 0).1
}

#[test]
fn a_queue_pair_that_the_peer_does_not_have() {
    let finding = explained(misconnected(|rtr| RtrAttr { remote_qpn: Qpn(0x777), ..rtr }, true), a_write);
    assert_eq!(finding.rule.name, "peer-exists");
    assert!(finding.found.contains("777"), "{finding}");
}

#[test]
fn a_peer_that_is_not_ready_to_receive() {
    let finding = explained(misconnected(|rtr| rtr, false), a_write);
    assert_eq!(finding.rule.name, "peer-receives");
    assert!(finding.found.contains("Reset"), "{finding}");
}

#[test]
fn an_address_where_nobody_is() {
    let finding = explained(misconnected(|rtr| RtrAttr { path: Path::lid(Lid(0x77)), ..rtr }, true), a_write);
    assert_eq!(finding.rule.name, "peer-address");
    assert!(finding.found.contains("0x77"), "{finding}");
}

#[test]
fn numbers_of_packets_that_do_not_agree() {
    for (psn, rule) in [(0x500, "peer-psn"), (0xff_ff00, "peer-psn")] {
        let (simulation, mut pair) = misconnected(|rtr| rtr, true);
        let options = Options::default();
        let home = pair.ends[1].home;
        let (peer, lid) = (pair.ends[0].qp.number(), pair.hcas[0].lid(1).expect("a LID"));
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[1].qp);
        hca.qp_to_reset(qp).expect("RESET");
        hca.qp_to_init(qp, &InitAttr { access: options.queue_access, ..InitAttr::default() }).expect("INIT");
        let rtr =
            RtrAttr { mtu: options.mtu, receive_psn: Psn::new(psn), ..RtrAttr::new(peer, Path::lid(lid)) };
        hca.qp_to_rtr(qp, &rtr).expect("RTR");
        let finding = explained((simulation, pair), a_write);
        assert_eq!(finding.rule.name, rule);
        assert!(finding.expected.contains(&format!("{psn:#x}")), "{finding}");
    }
}

#[test]
fn a_peer_without_receive_requests() {
    let finding =
        explained(misconnected(|rtr| RtrAttr { rnr_timer: 1, ..rtr }, true), |_| SendOp::Send { imm: None });
    assert_eq!(finding.rule.name, "receive-counter");
}

/// Of two that send to a queue pair of the same number over Ethernet, each hears of its own peer.
#[test]
fn causes_over_ethernet_are_those_of_the_own_peer() {
    let simulation = Simulation::new(worlds::ethernet(worlds::between(Faults::default())));
    simulation.world(|world, _| world.start_checker(PATIENCE));
    let options = Options { roce: true, ..Options::default() };
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair = Pair::apart(hcas, [&options; 2]).expect("objects");
    for end in [0, 1] {
        let path = pair.path_to(1 - end, &options).expect("an address");
        let (hca, qp) = (&mut pair.hcas[end], &mut pair.ends[end].qp);
        hca.qp_to_init(qp, &InitAttr { access: options.queue_access, ..InitAttr::default() }).expect("INIT");
        let rtr = RtrAttr { mtu: options.mtu, ..RtrAttr::new(Qpn(0x777), path) };
        hca.qp_to_rtr(qp, &rtr).expect("RTR");
        let rts = RtsAttr { timeout: 8, retries: 1, ..RtsAttr::default() };
        hca.qp_to_rts(qp, &rts).expect("RTS");
    }
    for end in [0, 1] {
        let sge = [pair.ends[end].sge(0, 8)];
        pair.send(end, &SendRequest::new(1, SendOp::Send { imm: None }, &sge));
    }
    for end in [0, 1] {
        assert!(pair.sent(end).1.status.is_err());
    }
    simulation.run(Ps::from_us(1));
    let names = simulation.world(|world, _| [0, 1].map(|hca| world.name(HcaId(hca)).to_owned()));
    let mut found = found(&simulation);
    found.sort_by_key(|(hca, _)| hca.0);
    let told: Vec<_> = found.iter().map(|(hca, f)| (hca.0, f.rule.name, f.expected.clone())).collect();
    let expected = |hca: usize| (hca, "peer-exists", format!("a queue pair that {} has", names[1 - hca]));
    assert_eq!(told, [expected(0), expected(1)]);
}

/// A peer that tries for ever: said of the receiver when it has read all that came, long after the patience, once until its counter moves.
#[test]
pub(crate) fn a_peer_that_waits_for_ever_for_a_receive_request() {
    let options = Options { rts: RtsAttr { rnr_retries: 7, ..RtsAttr::default() }, ..Options::default() };
    let (simulation, mut pair) = checked(&options);
    let sge = [pair.ends[0].sge(0, 8)];
    let message = SendRequest::new(1, SendOp::Send { imm: None }, &sge);
    pair.send(0, &message);
    simulation.run(Ps(3 * PATIENCE.0));
    assert_eq!(rules(&simulation), [""; 0], "the receiver may be late");
    pair.recv(1, 1, 0, 64);
    pair.sent_ok(0, 1);
    // What it received lies there unread: it lets its peer wait.
    pair.send(0, &message);
    simulation.run(Ps(20 * PATIENCE.0));
    assert_eq!(rules(&simulation), ["cq-polled"], "the receiver has other work");
    pair.received_ok(1, 1);
    simulation.run(Ps(3 * PATIENCE.0));
    assert_eq!(rules(&simulation), [""; 0], "it has just begun to read");
    simulation.run(Ps(20 * PATIENCE.0));
    let found = found(&simulation);
    let [(hca, finding)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((*hca, finding.rule.name), (HcaId(1), "receive-counter"), "of who has to post");
    assert_eq!(finding.subject.number(), pair.ends[1].qp.number().0);
    assert!(finding.found.starts_with("0x1 since"), "{finding}");
    pair.recv(1, 2, 0, 64);
    pair.sent_ok(0, 1);
    pair.received_ok(1, 2);
}
