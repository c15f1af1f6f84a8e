//! RoCE connections that lose packets, with what ROCE_ACCL switches on.

use hca_driver::{CounterSet, Hca, InitAttr, RtsAttr, SendRequest};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::register::RoceAccl;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, linked};

/// Offsets in QUERY_Q_COUNTER's output.
const TIMEOUTS: usize = 0x60;
const EARLY: usize = 0xc8;
const OWN_TIMEOUTS: usize = 0xcc;
const RESTARTS: [usize; 3] = [0xd0, 0xd4, 0xd8];

/// Writes to the register: adaptive retransmission, slow restart.
fn accelerate(hca: &mut Hca<ModelBus>, adaptive: bool, slow: bool) {
    let mut register = RoceAccl::new();
    register.set(RoceAccl::ROCE_ADP_RETRANS_FIELD_SELECT, 1).set(RoceAccl::ROCE_SLOW_RESTART_FIELD_SELECT, 1);
    register.set(RoceAccl::ROCE_ADP_RETRANS_EN, adaptive.into());
    register.set(RoceAccl::ROCE_SLOW_RESTART_EN, slow.into());
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, reg::ROCE_ACCL);
    let input = [&input.bytes()[..], register.bytes()].concat();
    let out = hca.execute(Opcode::AccessReg, 0, input, 0x10 + RoceAccl::SIZE).expect("ACCESS_REGISTER");
    let holds = RoceAccl::from_prefix_or_zero(&out[0x10..]);
    assert_eq!(holds.get(RoceAccl::ROCE_ADP_RETRANS_EN), u32::from(adaptive));
    assert_eq!(holds.get(RoceAccl::ROCE_SLOW_RESTART_EN), u32::from(slow));
}

/// A RoCE connection over such a link, whose first end counts.
fn rig(loss: f64, adaptive: bool, slow: bool) -> (Pair<ModelBus>, CounterSet) {
    let rts = RtsAttr { timeout: 14, ..RtsAttr::default() };
    let options = Options { roce: true, rts, ..Options::default() };
    let mut pair = linked(&options, Faults::loss(loss), 1);
    accelerate(&mut pair.hcas[0], adaptive, slow);
    let set = pair.hcas[0].create_counters().expect("ALLOC_Q_COUNTER");
    for end in 0..2 {
        let home = pair.ends[end].home;
        pair.hcas[home].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
    }
    for end in 0..2 {
        let counter_set = if end == 0 { set.0 } else { 0 };
        let init = InitAttr { counter_set, access: options.queue_access, ..InitAttr::default() };
        pair.to_rts_with(end, &options, &init).expect("connect again");
    }
    (pair, set)
}

/// Writes one after the other, each byte checked at the end. Returns how long they took, and the counters.
fn writes(
    pair: &mut Pair<ModelBus>,
    set: CounterSet,
    count: u64,
    len: usize,
) -> (Ps, impl Fn(usize) -> u32 + use<>) {
    let data = pattern(3, len);
    pair.fill(0, 0, &data);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let began = simulation.world(|world, _| world.now());
    let far = pair.ends[1].mr;
    for i in 0..count {
        let sge = [pair.ends[0].sge(0, len)];
        pair.send(0, &SendRequest::write(i, &sge, far.address, far.key));
        pair.sent_ok(0, i);
    }
    let took = simulation.world(|world, _| world.now()).since(began);
    assert_eq!(pair.ends[1].bytes(0, len), data);
    let counters = pair.hcas[0].counters(set).expect("QUERY_Q_COUNTER");
    (took, move |at| counters.at(at))
}

fn end(mut pair: Pair<ModelBus>, set: CounterSet) {
    pair.hcas[0].destroy_counters(set).expect("DEALLOC_Q_COUNTER");
    close(pair);
}

/// A packet or an acknowledgement that is lost at the end of a message is noticed by time alone: by the queue pair's timeout (67 ms),
/// or by what answers usually take.
#[test]
fn adaptive_retransmission_waits_as_long_as_answers_take() {
    let lossy = 0.05;
    let (mut pair, set) = rig(lossy, false, false);
    let (fixed, counters) = writes(&mut pair, set, 200, 256);
    assert!(counters(TIMEOUTS) >= 10, "{}", counters(TIMEOUTS));
    assert_eq!([EARLY, OWN_TIMEOUTS].map(&counters), [0, 0]);
    assert!(fixed > Ps::from_ms(67 * 10));
    end(pair, set);

    let (mut pair, set) = rig(lossy, true, false);
    let (adaptive, counters) = writes(&mut pair, set, 200, 256);
    assert!(counters(EARLY) >= 10, "{}", counters(EARLY));
    assert!(counters(TIMEOUTS) <= 1, "only while nothing is known: {}", counters(TIMEOUTS));
    assert_eq!(counters(OWN_TIMEOUTS), counters(TIMEOUTS));
    assert!(adaptive.0 < fixed.0 / 5, "{adaptive} against {fixed}");
    assert_eq!(RESTARTS.map(&counters), [0; 3]);
    end(pair, set);
}

/// Where nothing is lost, nothing is sent again early, however long messages are.
#[test]
fn adaptive_retransmission_is_patient_enough() {
    let (mut pair, set) = rig(0.0, true, true);
    let (_, counters) = writes(&mut pair, set, 100, 60_000);
    assert_eq!([TIMEOUTS, EARLY, OWN_TIMEOUTS, RESTARTS[0]].map(&counters), [0; 4]);
    end(pair, set);
}

/// A flow that sends again is slow for a while, and counted.
#[test]
fn restarts_are_slow() {
    let lossy = 0.02;
    let (mut pair, set) = rig(lossy, true, false);
    let (fast, _) = writes(&mut pair, set, 20, 60_000);
    end(pair, set);
    let (mut pair, set) = rig(lossy, true, true);
    let (slow, counters) = writes(&mut pair, set, 20, 60_000);
    let [restarts, cnps, from_full] = RESTARTS.map(&counters);
    assert!(restarts >= 10 && cnps == restarts, "{restarts} {cnps}");
    assert!((1..=restarts).contains(&from_full), "{from_full}");
    assert!(slow > fast, "{slow} against {fast}");
    end(pair, set);
}
