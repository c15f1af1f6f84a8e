//! Trains change no time: what a world does with them is what it does without, to the picosecond, whatever comes
//! between their packets. And what is done to a sender's memory after it has it back is never seen by the receiver.

use std::cell::RefCell;

use hca_driver::qp::{Path, QpConfig};
use hca_driver::{Access, InitAttr, KeyChange, KeyKind, RtrAttr, RtsAttr, SendOp, SendRequest};
use hca_model::link::Faults;
use hca_model::timing::Profile;
use hca_model::{Counters, HcaId, LinkConfig, PortRef, Ps};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::ids::Psn;
use hca_spec::qpc::ServiceType;
use hca_spec::register::{EtsClass, PBMC_BUFFERS, Pbmc, PbmcBuffer, QETCR_CLASSES, Qetcr};
use hca_tests::in_process::{ModelBus, Simulation, deferring_from};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::{rig, worlds};

use super::{dc, xrc};

const MEMORY: usize = 1 << 20;

fn simulation(pair: &mut Pair<ModelBus>) -> Simulation {
    pair.hcas[0].bus_mut().simulation().clone()
}

/// What a run leaves: the hash and number of its events, if they are looked at, when its scenario was over, and the memory and the counters of both ends.
#[derive(Clone)]
struct Left {
    events: (u64, u64),
    over: Ps,
    memory: [Vec<u8>; 2],
    counters: [Option<Counters>; 2],
}

/// What is looked at: each event; or only what there is in the end, and the times of completions. Then long writes are in full
/// flow without that anybody looks at their packets.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Events,
    Ends,
}

/// Runs a scenario over a link of that delay, with or without trains. Returns what it left, and how many trains there were.
fn run(
    (options, delay): (&Options, Ps),
    (trains, look): (bool, Look),
    scenario: &dyn Fn(&mut Pair<ModelBus>),
) -> (Left, u64) {
    let link = LinkConfig { delay, ..worlds::between(Faults::default()) };
    let world = if options.roce { worlds::ethernet(link) } else { worlds::many(2, vec![link], 1) };
    run_in(Simulation::new(world), options, (trains, look), scenario)
}

/// The same in a world.
fn run_in(
    simulation: Simulation,
    options: &Options,
    how: (bool, Look),
    scenario: &dyn Fn(&mut Pair<ModelBus>),
) -> (Left, u64) {
    run_with(simulation, options, how, &|mut pair| {
        scenario(&mut pair);
        pair
    })
}

/// The same with a scenario that makes something else of the pair, and gives that back.
fn run_with(
    simulation: Simulation,
    options: &Options,
    (trains, look): (bool, Look),
    scenario: &dyn Fn(Pair<ModelBus>) -> Pair<ModelBus>,
) -> (Left, u64) {
    simulation.world(|world, _| {
        if look == Look::Events {
            world.start_trace(1 << 10);
        }
        world.set_trains(trains);
    });
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair = Pair::connect(hcas, options).expect("the queue pairs connect");
    for end in 0..2 {
        pair.fill(end, 0, &pattern(end as u64 + 7, options.memory));
    }
    let pair = scenario(pair);
    let over = simulation.now();
    simulation.run(Ps::from_us(200));
    let (events, begun, counters) = simulation.world(|world, _| {
        let trace = world.trace().map(|t| (t.hash(), t.count())).unwrap_or_default();
        (trace, world.trains_begun(), [0, 1].map(|hca| world.counters(HcaId(hca))))
    });
    let memory = [pair.ends[0].bytes(0, options.memory), pair.ends[1].bytes(0, options.memory)];
    (Left { events, over, memory, counters }, begun)
}

/// Runs a scenario with trains and without, and compares. `least`: so many trains there have to be.
fn same(what: &str, options: &Options, least: u64, scenario: impl Fn(&mut Pair<ModelBus>)) {
    same_over(what, options, Ps::from_ns(5), least, scenario);
}

/// The same over a link of that delay.
fn same_over(what: &str, options: &Options, delay: Ps, least: u64, scenario: impl Fn(&mut Pair<ModelBus>)) {
    for look in [Look::Events, Look::Ends] {
        let (with, begun) = run((options, delay), (true, look), &scenario);
        let without = run((options, delay), (false, look), &scenario);
        // A host's memory of which a part answers later, that nothing is in: so are those of QEMU's guests.
        let (beside, as_many) =
            deferring_from(1, usize::MAX, || run((options, delay), (true, look), &scenario));
        compare(
            &format!("{what}, with memory that answers later"),
            least,
            (beside, as_many),
            without.clone(),
        );
        compare(what, least, (with, begun), without);
    }
}

fn compare(what: &str, least: u64, (with, begun): (Left, u64), (without, none): (Left, u64)) {
    assert_eq!(none, 0, "{what}: there are trains although they are off");
    assert!(begun >= least, "{what}: {begun} trains, at least {least} expected");
    assert_eq!(with.events, without.events, "{what}: the traces differ");
    assert_eq!(with.over, without.over, "{what}: it took another time");
    assert_eq!(with.counters, without.counters, "{what}: the counters differ");
    assert!(with.memory == without.memory, "{what}: the memories differ");
}

fn options() -> Options {
    Options { memory: MEMORY, mtu: 5, ..Options::default() }
}

/// Over InfiniBand and over Ethernet.
fn both() -> [Options; 2] {
    [false, true].map(|roce| Options { roce, ..options() })
}

/// A write from `end` to the same place of the other's memory.
fn write(pair: &mut Pair<ModelBus>, end: usize, number: u64, (offset, len): (usize, usize)) {
    let (address, rkey) = (pair.ends[1 - end].mr.address + offset as u64, pair.ends[1 - end].mr.key);
    let sge = [pair.ends[end].sge(offset, len)];
    pair.send(end, &SendRequest::new(number, SendOp::Write { address, rkey, imm: None }, &sge));
}

/// Lengths of messages of other services than RC: of many packets, of some and a bit, of one, of many and a bit.
const LENGTHS: [usize; 4] = [200_000, 5 * 1024 + 1, 100, 70_001];

/// Long sends and writes of an extended reliable connection, whose shared receive queues change.
fn extended(pair: Pair<ModelBus>) -> Pair<ModelBus> {
    let mut xrc = xrc::connect(pair, false);
    let numbers = [xrc.srqs[0].number(), xrc.srqs[1].number()];
    let far = xrc.pair.ends[1].mr;
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let sge = [xrc.pair.ends[0].sge(i * 31, len)];
        let room = xrc.pair.ends[1].sge(300_000, 200_000);
        xrc.srqs[i % 2].post_recv(i as u64, &[room]).expect("post_recv");
        let to = numbers[i % 2];
        let send = SendRequest::new(2 * i as u64, SendOp::Send { imm: None }, &sge).to_srq(to);
        xrc.pair.send(0, &send);
        let op = SendOp::Write { address: far.address + i as u64 * 7, rkey: far.key, imm: None };
        xrc.pair.send(0, &SendRequest::new(2 * i as u64 + 1, op, &sge).to_srq(to));
    }
    (0..2 * LENGTHS.len()).for_each(|i| _ = xrc.pair.sent_ok(0, i as u64));
    xrc.pair
}

/// The same of a dynamic connection, and reads: of two initiators at once.
fn dynamic(pair: Pair<ModelBus>) -> Pair<ModelBus> {
    let mut dc = dc::dc_pair(pair, false);
    let second = dc.add_initiator_with(RtsAttr::default(), |config| config);
    let (far, target) = (dc.pair.ends[1].mr, dc.target(0));
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let sge = [dc.pair.ends[0].sge(i * 31, len)];
        dc.recv(i as u64, 300_000, 200_000);
        let (address, rkey) = (far.address + i as u64 * 7, far.key);
        // What is read goes where nothing is sent from.
        let elsewhere = [dc.pair.ends[0].sge(500_000 + i * 31, len)];
        let ops = [
            (SendOp::Send { imm: None }, &sge),
            (SendOp::Write { address, rkey, imm: None }, &sge),
            (SendOp::Read { address: address + 500_000, rkey }, &elsewhere),
        ];
        for (n, (op, sge)) in ops.into_iter().enumerate() {
            let request = SendRequest::new((3 * i + n) as u64, op, sge).to_target(target);
            dc.post(if n == 1 { second } else { 0 }, &request);
        }
    }
    (0..3 * LENGTHS.len()).for_each(|_| assert_eq!(dc.sent().2.status, Ok(())));
    dc.pair
}

type Scenario = fn(Pair<ModelBus>) -> Pair<ModelBus>;

#[test]
fn services_other_than_rc() {
    let scenarios: [(&str, Scenario); 2] = [("XRC", extended), ("DC", dynamic)];
    let options = Options { memory: MEMORY, ..Options::default() };
    for (what, scenario) in scenarios {
        for look in [Look::Events, Look::Ends] {
            let run = |trains: bool| {
                let link = worlds::between(Faults::default());
                let simulation = Simulation::new(worlds::many(2, vec![link], 1));
                run_with(simulation, &options, (trains, look), &scenario)
            };
            compare(what, 1, run(true), run(false).clone());
        }
    }
}

#[test]
fn writes_of_any_length() {
    for (mtu, options) in [1, 3, 5].into_iter().flat_map(|mtu| both().map(|options| (mtu, options))) {
        same("writes", &Options { mtu, ..options }, 1, |pair| {
            for (i, len) in [300_000, 5000, 8 * 4096, 8 * 4096 + 1, 1, 100_001].into_iter().enumerate() {
                write(pair, 0, i as u64, (i * 17, len));
            }
            (0..6).for_each(|i| _ = pair.sent_ok(0, i));
        });
    }
}

/// A read by `end` of the same place of the other's memory.
fn read(pair: &mut Pair<ModelBus>, end: usize, number: u64, (offset, len): (usize, usize)) {
    let (address, rkey) = (pair.ends[1 - end].mr.address + offset as u64, pair.ends[1 - end].mr.key);
    let sge = [pair.ends[end].sge(offset, len)];
    pair.send(end, &SendRequest::new(number, SendOp::Read { address, rkey }, &sge));
}

#[test]
fn reads_of_any_length() {
    for (mtu, options) in [1, 3, 5].into_iter().flat_map(|mtu| both().map(|options| (mtu, options))) {
        same("reads", &Options { mtu, ..options }, 1, |pair| {
            for (i, len) in [300_000, 5000, 8 * 4096, 8 * 4096 + 1, 1, 100_001, 0].into_iter().enumerate() {
                read(pair, 0, i as u64, (i * 17, len));
            }
            (0..7).for_each(|i| _ = pair.sent_ok(0, i));
            assert!(pair.ends[0].bytes(0, 300_000) == pair.ends[1].bytes(0, 300_000));
        });
    }
}

/// Reads into lists of pieces, some shorter than a packet; both ways at once; beside writes and atomics of the same and of the other end.
#[test]
fn reads_beside_other_messages() {
    for seed in 0..16u64 {
        let rts = RtsAttr { send_psn: Psn::new(0xff_ffa0 + seed as u32), ..RtsAttr::default() };
        let options = Options { mtu: 3 + (seed % 3) as u8, roce: seed / 4 % 2 == 1, rts, ..options() };
        same(&format!("reads of seed {seed}"), &options, 1, |pair| {
            let mut numbers = pattern(seed + 130, 200).into_iter().map(|number| number as usize);
            let mut number = || numbers.next().unwrap_or_default();
            let mut sent = [0, 0];
            for _ in 0..14 {
                let end = if seed % 4 == 3 { number() % 2 } else { 0 };
                let len = if seed % 4 == 0 { 65_536 } else { 1 + number() * 500 };
                let (address, rkey) = (pair.ends[1 - end].mr.address, pair.ends[1 - end].mr.key);
                let at = 500_000 + number() * 16;
                let (first, second) = (len / 3, len / 3 + number().min(len / 3));
                let pieces = [
                    pair.ends[end].sge(at, first),
                    pair.ends[end].sge(at + 150_000, second - first),
                    pair.ends[end].sge(at + 300_000, len - second),
                ];
                let op = match number() % 8 {
                    0 => SendOp::Write { address: address + 300_000, rkey, imm: None },
                    1 => SendOp::FetchAdd { address: address + 8, rkey, add: 3 },
                    _ => SendOp::Read { address: address + number() as u64, rkey },
                };
                let whole =
                    [pair.ends[end].sge(at, if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { len })];
                let list: &[_] =
                    if matches!(op, SendOp::Read { .. }) && seed % 3 == 1 { &pieces } else { &whole };
                pair.send(end, &SendRequest::new(sent[end], op, list));
                sent[end] += 1;
            }
            for _ in 0..12 {
                let simulation = simulation(pair);
                simulation.run(Ps(number() as u64 * 17_011));
                match number() % 8 {
                    0 => _ = pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP"),
                    1 => _ = pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP"),
                    2 => _ = simulation.next_event(),
                    3 if seed % 2 == 0 => {
                        write(pair, 1, sent[1], (450_000, 30_000));
                        sent[1] += 1;
                    }
                    _ => {}
                }
            }
            for (end, sent) in sent.into_iter().enumerate() {
                (0..sent).for_each(|i| _ = pair.sent_ok(end, i));
            }
        });
    }
}

/// Commands, pulled cables and captures between the responses to a read, at many moments; and whoever looks on.
#[test]
fn whatever_comes_between_responses() {
    for step in 1..20u64 {
        let pause = Ps::from_ns(step * 731);
        let options = || Options { roce: step % 3 == 0, ..options() };
        same("commands between", &options(), 1, |pair| {
            read(pair, 0, 0, (0, 250_000));
            let simulation = simulation(pair);
            simulation.run(pause);
            pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP");
            read(pair, 0, 1, (300_000, 50_000));
            simulation.run(pause);
            pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP");
            (0..2).for_each(|i| _ = pair.sent_ok(0, i));
        });
        same("a cable pulled", &options(), 1, |pair| {
            read(pair, 0, 0, (0, 250_000));
            let simulation = simulation(pair);
            simulation.run(pause);
            simulation.world(|world, now| world.set_cable(now, 0, false));
            simulation.run(pause);
            simulation.world(|world, now| world.set_cable(now, 0, true));
            pair.sent(0);
        });
        same("a queue pair that fails", &options(), u64::from(step > 8), |pair| {
            read(pair, 0, 0, (0, 250_000));
            simulation(pair).run(pause);
            pair.hcas[(step % 2) as usize].qp_to_error(&mut pair.ends[(step % 2) as usize].qp).expect("2ERR");
            pair.sent(0);
        });
        same("a capture that begins", &options(), u64::from(step > 8), |pair| {
            read(pair, 0, 0, (0, 250_000));
            let simulation = simulation(pair);
            simulation.run(pause);
            simulation.world(|world, _| world.capture_packets(HcaId(0)));
            pair.sent_ok(0, 0);
            let captured = simulation.world(|world, _| world.drain_packets());
            let sent = pair.ends[1].bytes(0, 250_000);
            for packet in captured.iter().filter(|c| !c.sent) {
                let (_, repr, payload) = packet.packet.parse().expect("good packets");
                assert!(payload.is_empty() || sent.chunks(4096).any(|part| part == payload), "{repr:?}");
            }
        });
    }
}

/// The region that is read ends before its read does: what had left is there, and the rest is refused.
#[test]
fn a_region_that_goes_away_ends_the_responses() {
    for step in 6..30u64 {
        let options = Options { fast_registration: true, ..options() };
        same_over("a key that goes", &options, Ps::from_us(40), u64::from(step > 8), |pair| {
            let peer = &pair.ends[1];
            let region =
                pair.hcas[1].register(peer.pd, &peer.memory, 400_000, Access::ALL).expect("CREATE_MKEY");
            let sge = [pair.ends[0].sge(0, 400_000)];
            let op = SendOp::Read { address: region.address, rkey: region.key };
            pair.send(0, &SendRequest::new(0, op, &sge));
            simulation(pair).run(Ps::from_us(40) + Ps::from_ns(step * 557));
            pair.hcas[1].deregister(region).expect("DESTROY_MKEY");
            pair.fill(1, 0, &[0xff; 400_000]);
            assert!(pair.sent(0).1.status.is_err(), "it was not all there");
        });
    }
}

#[test]
fn other_services_and_global_routes() {
    let global = Options { global: true, ..options() };
    same("writes with a GRH", &global, 1, |pair| {
        write(pair, 0, 0, (64, 200_000));
        pair.sent_ok(0, 0);
    });
    let unreliable = Options { service: ServiceType::Uc, ..options() };
    same("unreliable writes", &unreliable, 0, |pair| {
        write(pair, 0, 0, (64, 200_000));
        pair.sent_ok(0, 0);
    });
    same("reads, atomics and writes", &options(), 1, |pair| {
        let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
        for i in 0..4 {
            write(pair, 0, 3 * i, (0, 60_000));
            let sge = [pair.ends[0].sge(100_000, 60_000)];
            pair.send(0, &SendRequest::new(3 * i + 1, SendOp::Read { address, rkey }, &sge));
            let sge = [pair.ends[0].sge(8, 8)];
            pair.send(0, &SendRequest::new(3 * i + 2, SendOp::FetchAdd { address, rkey, add: 3 }, &sge));
        }
        (0..12).for_each(|i| _ = pair.sent_ok(0, i));
    });
}

#[test]
fn sends_and_their_receives() {
    for posted in [8, 2] {
        same("sends", &options(), u64::from(posted == 8), |pair| {
            for i in 0..8 {
                let sge = [pair.ends[0].sge(0, 70_000 + i as usize)];
                pair.send(0, &SendRequest::new(i, SendOp::Send { imm: Some(5) }, &sge));
            }
            // The last come late: the receiver is not ready.
            for i in 0..8 {
                if i >= posted {
                    let simulation = simulation(pair);
                    simulation.run(Ps::from_us(40));
                }
                pair.recv(1, i, i as usize * 80_000, 80_000);
            }
            (0..8).for_each(|i| _ = pair.sent_ok(0, i));
            (0..8).for_each(|i| _ = pair.received_ok(1, i));
        });
    }
}

#[test]
fn both_directions_at_once() {
    for options in both() {
        same("both directions", &options, 1, |pair| {
            for i in 0..6 {
                write(pair, 0, i, (0, 90_000));
                write(pair, 1, i, (200_000, 90_000));
            }
            (0..6).for_each(|i| _ = pair.sent_ok(0, i));
            (0..6).for_each(|i| _ = pair.sent_ok(1, i));
        });
    }
}

/// Commands, register reads, late doorbells and pulled cables between the packets, at many moments.
#[test]
fn whatever_comes_between() {
    for step in 1..24u64 {
        let pause = Ps::from_ns(step * 731);
        let options = || Options { roce: step % 3 == 0, ..options() };
        same("commands and doorbells between", &options(), 1, |pair| {
            write(pair, 0, 0, (0, 250_000));
            let simulation = simulation(pair);
            simulation.run(pause);
            pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP");
            write(pair, 0, 1, (300_000, 50_000));
            simulation.run(pause);
            pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP");
            (0..2).for_each(|i| _ = pair.sent_ok(0, i));
        });
        same("a cable pulled", &options(), 1, |pair| {
            write(pair, 0, 0, (0, 250_000));
            let simulation = simulation(pair);
            simulation.run(pause);
            simulation.world(|world, now| world.set_cable(now, 0, false));
            simulation.run(pause);
            simulation.world(|world, now| world.set_cable(now, 0, true));
            pair.sent(0);
        });
        same("a capture that begins", &options(), u64::from(step > 8), |pair| {
            write(pair, 0, 0, (0, 250_000));
            let simulation = simulation(pair);
            simulation.run(pause);
            simulation.world(|world, _| world.capture_packets(HcaId(1)));
            pair.sent_ok(0, 0);
            let captured = simulation.world(|world, _| world.drain_packets());
            let sent = pair.ends[0].bytes(0, 250_000);
            for packet in captured.iter().filter(|c| !c.sent) {
                let (_, repr, payload) = packet.packet.parse().expect("good packets");
                assert!(payload.is_empty() || sent.chunks(4096).any(|part| part == payload), "{repr:?}");
            }
        });
    }
}

/// The sender's program gets its memory back by an error, and writes something else there: the receiver has only what was
/// sent. The cable is so long that packets are on it when the program knows.
#[test]
fn memory_that_was_given_back_is_not_sent() {
    const LEN: usize = 250_000;
    for step in 1..40u64 {
        let pause = Ps::from_ns(step * 557);
        let given_back = |pair: &mut Pair<ModelBus>| {
            pair.fill(0, 0, &[0x5a; LEN]);
            pair.fill(1, 0, &[0; LEN]);
            write(pair, 0, 0, (0, LEN));
            simulation(pair).run(pause);
            pair.hcas[0].qp_to_error(&mut pair.ends[0].qp).expect("2ERR");
            pair.sent(0);
            pair.fill(0, 0, &[0xff; LEN]);
            simulation(pair).run(Ps::from_us(100));
            let there = pair.ends[1].bytes(0, LEN);
            assert!(there.contains(&0x5a) || step < 8, "nothing came");
            assert!(there.iter().all(|byte| matches!(byte, 0 | 0x5a)), "after {pause}");
        };
        let (begun, options) = (u64::from(step > 8), Options { roce: step % 3 == 0, ..options() });
        same_over("a queue pair that fails", &options, Ps::from_us(40), begun, given_back);
    }
}

/// The same when a work request of another queue pair has taken a key out of use, as a kernel does before it takes pages back.
#[test]
fn memory_behind_a_key_that_has_changed_is_not_sent() {
    const LEN: usize = 250_000;
    for step in 10..30u64 {
        let options = Options { fast_registration: true, ..options() };
        same_over("a key that changes", &options, Ps::from_us(40), 1, |pair| {
            pair.fill(0, 0, &[0x5a; LEN]);
            pair.fill(1, 0, &[0; LEN]);
            let (pd, cq) = (pair.ends[0].pd, &pair.ends[0].send_cq);
            let config = QpConfig { fast_registration: true, ..QpConfig::rc(pd, cq, &pair.ends[0].recv_cq) };
            let hca = &mut pair.hcas[0];
            let key = hca.alloc_key(pd, KeyKind::Pieces, 1, true).expect("CREATE_MKEY");
            let lid = hca.lid(1).expect("its LID");
            let mut other = hca.create_qp(&config).expect("CREATE_QP");
            let number = other.number();
            hca.qp_to_init(&mut other, &InitAttr::default()).expect("INIT");
            hca.qp_to_rtr(&mut other, &RtrAttr::new(number, Path::lid(lid))).expect("RTR");
            hca.qp_to_rts(&mut other, &RtsAttr::default()).expect("RTS");
            write(pair, 0, 0, (0, LEN));
            simulation(pair).run(Ps::from_ns(step * 557));
            let change = KeyChange::new(key).enable(key.variant()).access(Access::ALL).range(0, 16);
            let request = SendRequest::new(1, SendOp::Change(change), &[]).inline(&[0; 16]);
            other.post_send(pair.hcas[0].bus_mut(), &request).expect("post_send");
            while pair.ends[0].send_cq.poll().is_none() {
                pair.hcas[0].wait(None);
            }
            pair.fill(0, 0, &[0xff; LEN]);
            // What was sent before the change is on the cable; later packets have what is there now.
            simulation(pair).run(Ps::from_us(38));
            let there = pair.ends[1].bytes(0, LEN);
            assert!(there.contains(&0x5a), "nothing came");
            assert!(there.iter().all(|byte| matches!(byte, 0 | 0x5a)), "step {step}");
        });
    }
}

/// A peer that refuses in the middle of a message.
#[test]
fn a_message_that_is_refused_ends_its_train() {
    same("a key that is too short", &options(), 1, |pair| {
        let (address, rkey) = (pair.ends[1].mr.address + (MEMORY - 100_000) as u64, pair.ends[1].mr.key);
        let sge = [pair.ends[0].sge(0, 90_000)];
        pair.send(0, &SendRequest::new(0, SendOp::Write { address, rkey, imm: None }, &sge));
        let sge = [pair.ends[0].sge(0, 120_000)];
        pair.send(0, &SendRequest::new(1, SendOp::Write { address, rkey, imm: None }, &sge));
        pair.sent_ok(0, 0);
        assert!(pair.sent(0).1.status.is_err(), "it does not fit");
    });
}

/// Long writes are in full flow, until something else happens: packets of another queue pair or of the peer, a command.
#[test]
fn full_flow_ends_at_anything() {
    for (mtu, options) in [1, 5].into_iter().flat_map(|mtu| both().map(|options| (mtu, options))) {
        let options = Options { mtu, ..options };
        same("a long write", &options, 1, |pair| {
            write(pair, 0, 0, (3, 1_000_000));
            pair.sent_ok(0, 0);
        });
        same("another write the other way", &options, 1, |pair| {
            write(pair, 0, 0, (0, 400_000));
            write(pair, 1, 0, (600_000, 300_000));
            pair.sent_ok(0, 0);
            pair.sent_ok(1, 0);
        });
        same("looked at on the way", &options, 1, |pair| {
            write(pair, 0, 0, (0, 900_000));
            for time in (0..40).map(|i| Ps::from_ns(1000 + 137 * i)) {
                simulation(pair).run(time);
                let gid = pair.hcas[1].query_qp(&pair.ends[1].qp);
                assert!(gid.is_ok());
            }
            pair.sent_ok(0, 0);
        });
    }
}

/// Nothing is different for who looks on at any moment: not what has come, not what was counted, not when the next event is.
#[test]
fn who_looks_on_sees_the_same_on_the_way() {
    for (mtu, options) in [1, 3, 5].into_iter().flat_map(|mtu| both().map(|options| (mtu, options))) {
        let options = Options { mtu, ..options };
        let looks = |trains: bool| {
            let seen = RefCell::new(Vec::new());
            let scenario = |pair: &mut Pair<ModelBus>| {
                let sent = pair.ends[0].bytes(5, 700_000);
                write(pair, 0, 0, (5, 700_000));
                write(pair, 0, 1, (900_000, 100_000));
                let simulation = simulation(pair);
                for i in 0..120u64 {
                    simulation.run(Ps(1000 * (i * i % 613 + 1) + i));
                    let there = pair.ends[1].bytes(5, 700_000);
                    let came = there.chunks(256).zip(sent.chunks(256)).take_while(|(a, b)| a == b).count();
                    let (counters, next) =
                        simulation.world(|world, _| (world.counters(HcaId(1)), world.next_event()));
                    let own = simulation.world(|world, _| world.counters(HcaId(0)));
                    seen.borrow_mut().push((came, counters, own, next));
                }
                (0..2).for_each(|i| _ = pair.sent_ok(0, i));
            };
            let left = run((&options, Ps::from_ns(5)), (trains, Look::Ends), &scenario);
            (left, seen.into_inner())
        };
        let ((with, seen), (without, expected)) = (looks(true), looks(false));
        assert!(seen == expected, "MTU {mtu}, RoCE {}", options.roce);
        compare("looked at", 1, with, without);
        let parts = seen.windows(2).filter(|two| two[0].0 < two[1].0).count();
        assert!(parts > 20, "it came in {parts} parts");
    }
}

/// Packets of full flow are booked many at a time: wherever that is cut, and whatever cuts it, units, ports and memories are left as by single
/// packets.
#[test]
fn full_flow_is_cut_anywhere() {
    for (seed, options) in (0..24u64).zip(both().into_iter().cycle()) {
        let rts = RtsAttr { send_psn: Psn::new(0xff_ff00 + seed as u32 * 5), ..RtsAttr::default() };
        let options = Options { mtu: if seed % 4 > 1 { 5 } else { 4 }, rts, ..options };
        same(&format!("cuts of seed {seed}"), &options, 1, |pair| {
            let mut numbers = pattern(seed, 120).into_iter().map(u64::from);
            let mut number = || numbers.next().unwrap_or_default();
            let (offset, step) = (number() as usize * 2 * (seed as usize % 3), Ps(1 + 97 * number()));
            write(pair, 0, 0, (offset, 900_000));
            let mut sent = 1;
            for _ in 0..30 {
                let simulation = simulation(pair);
                simulation.run(Ps(number() * 11_003) + step);
                match number() % 8 {
                    0 => _ = pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP"),
                    1 => _ = pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP"),
                    2 => {
                        write(pair, 0, sent, (offset, 20_000));
                        sent += 1;
                    }
                    3 => _ = simulation.next_event(),
                    _ => {}
                }
            }
            (0..sent).for_each(|i| _ = pair.sent_ok(0, i));
            write(pair, 0, sent, (0, 8));
            pair.sent_ok(0, sent);
        });
    }
}

/// The same of reads, whose requester looks on, and asks for more meanwhile.
#[test]
fn reads_in_full_flow_are_cut_anywhere() {
    for (seed, options) in (0..24u64).zip(both().into_iter().cycle()) {
        let rts = RtsAttr { send_psn: Psn::new(0xff_ff00 + seed as u32 * 5), ..RtsAttr::default() };
        let options = Options { mtu: if seed % 4 > 1 { 5 } else { 4 }, rts, ..options };
        same(&format!("cuts of reads, seed {seed}"), &options, 1, |pair| {
            let mut numbers = pattern(seed + 11, 120).into_iter().map(u64::from);
            let mut number = || numbers.next().unwrap_or_default();
            let (offset, step) = (number() as usize * 2 * (seed as usize % 3), Ps(1 + 97 * number()));
            // More than may be under way at once.
            let first = if seed % 3 == 0 { 40 } else { 1 };
            (0..first).for_each(|i| read(pair, 0, i, (offset, 900_000 / first as usize)));
            let mut sent = first;
            for _ in 0..30 {
                let simulation = simulation(pair);
                simulation.run(Ps(number() * 11_003) + step);
                match number() % 8 {
                    0 => _ = pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP"),
                    1 => _ = pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP"),
                    2 => {
                        read(pair, 0, sent, (offset, 20_000));
                        sent += 1;
                    }
                    3 => _ = simulation.next_event(),
                    _ => {}
                }
            }
            (0..sent).for_each(|i| _ = pair.sent_ok(0, i));
            read(pair, 0, sent, (0, 8));
            pair.sent_ok(0, sent);
        });
    }
}

/// Nothing is different for who looks on at any moment while a read is answered.
#[test]
fn who_looks_on_sees_the_same_of_reads() {
    for (mtu, options) in [1, 3, 5].into_iter().flat_map(|mtu| both().map(|options| (mtu, options))) {
        let options = Options { mtu, ..options };
        let looks = |trains: bool| {
            let seen = RefCell::new(Vec::new());
            let scenario = |pair: &mut Pair<ModelBus>| {
                let sent = pair.ends[1].bytes(5, 700_000);
                read(pair, 0, 0, (5, 700_000));
                read(pair, 0, 1, (900_000, 100_000));
                let simulation = simulation(pair);
                for i in 0..120u64 {
                    simulation.run(Ps(1000 * (i * i % 613 + 1) + i));
                    let there = pair.ends[0].bytes(5, 700_000);
                    let came = there.chunks(256).zip(sent.chunks(256)).take_while(|(a, b)| a == b).count();
                    let (counters, next) =
                        simulation.world(|world, _| (world.counters(HcaId(1)), world.next_event()));
                    let own = simulation.world(|world, _| world.counters(HcaId(0)));
                    seen.borrow_mut().push((came, counters, own, next));
                }
                (0..2).for_each(|i| _ = pair.sent_ok(0, i));
            };
            let left = run((&options, Ps::from_ns(5)), (trains, Look::Ends), &scenario);
            (left, seen.into_inner())
        };
        let ((with, seen), (without, expected)) = (looks(true), looks(false));
        assert!(seen == expected, "MTU {mtu}, RoCE {}", options.roce);
        compare("looked at", 1, with, without);
        let parts = seen.windows(2).filter(|two| two[0].0 < two[1].0).count();
        assert!(parts > 20, "it came in {parts} parts");
    }
}

/// Full flow goes on over the ends of messages: of any lengths, with what is no write between them, and whatever cuts it.
#[test]
fn full_flow_over_ends_of_messages() {
    for seed in 0..24u64 {
        let rts = RtsAttr { send_psn: Psn::new(0xff_ffc0 + seed as u32), ..RtsAttr::default() };
        let options = Options { mtu: 3 + (seed % 3) as u8, roce: seed / 4 % 2 == 1, rts, ..options() };
        same(&format!("messages of seed {seed}"), &options, 1, |pair| {
            let mut numbers = pattern(seed + 50, 160).into_iter().map(u64::from);
            let mut number = || numbers.next().unwrap_or_default();
            let mut receives = Vec::new();
            for i in 0..24 {
                let len = match seed % 4 {
                    0 => 65_536,
                    1 => 16_384 + number() as usize * 300,
                    _ => 1 + number() as usize * 500,
                };
                let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
                let op = match number() % 12 {
                    0 => SendOp::Read { address, rkey },
                    1 => SendOp::Send { imm: Some(7) },
                    2 => SendOp::Write { address, rkey, imm: Some(9) },
                    _ => SendOp::Write { address: address + number() * 64, rkey, imm: None },
                };
                if matches!(op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. }) {
                    receives.push(i);
                    // The others come late: the receiver is not ready.
                    if seed % 4 != 3 {
                        receives.drain(..).for_each(|i| pair.recv(1, i, 500_000, 140_000));
                    }
                }
                let sge = [pair.ends[0].sge(number() as usize, len)];
                pair.send(0, &SendRequest::new(i, op, &sge));
            }
            for _ in 0..12 {
                let simulation = simulation(pair);
                simulation.run(Ps(number() * 17_011));
                match number() % 8 {
                    0 => _ = pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP"),
                    1 => _ = pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP"),
                    2 if seed % 2 == 0 => write(pair, 1, 100 + number(), (600_000, 30_000)),
                    _ => {}
                }
            }
            receives.drain(..).for_each(|i| pair.recv(1, i, 500_000, 140_000));
            (0..24).for_each(|i| _ = pair.sent_ok(0, i));
        });
    }
}

/// Sends are in full flow, too: into buffers of one piece and of several, of which packets go into two, shorter and longer than what is
/// looked up at once, with writes between them and too little room in the end.
#[test]
fn full_flow_of_sends() {
    for seed in 0..16u64 {
        let options = Options { mtu: 3 + (seed % 3) as u8, roce: seed / 4 % 2 == 1, ..options() };
        same(&format!("sends of seed {seed}"), &options, 1, |pair| {
            let mut numbers = pattern(seed + 90, 120).into_iter().map(|number| number as usize);
            let mut number = || numbers.next().unwrap_or_default();
            let mut receives = Vec::new();
            for i in 0..20 {
                let len = if seed % 4 == 0 { 65_536 } else { 12_000 + number() * 1200 };
                if i % 6 == 5 {
                    write(pair, 0, i, (number(), len));
                    continue;
                }
                let first = if seed % 2 == 0 { len } else { 1000 + number() * 100 };
                let all =
                    [(300_000 + number(), first), (700_000 - number() * 7, len - first.min(len) + number())];
                let pieces = all.map(|(offset, len)| pair.ends[1].sge(offset, len.max(1)));
                pair.ends[1].qp.post_recv(i, &pieces).expect("post_recv");
                receives.push(i);
                let sge = [pair.ends[0].sge(number(), len)];
                pair.send(0, &SendRequest::new(i, SendOp::Send { imm: None }, &sge));
            }
            (0..20).for_each(|i| _ = pair.sent_ok(0, i));
            receives.into_iter().for_each(|i| _ = pair.received_ok(1, i));
            pair.recv(1, 20, 0, 40_000);
            let sge = [pair.ends[0].sge(0, 60_000)];
            pair.send(0, &SendRequest::new(20, SendOp::Send { imm: None }, &sge));
            let (_, completion) = pair.received(1);
            assert!(completion.status.is_err(), "60000 bytes came into 40000");
        });
    }
}

/// PSNs that begin anew on the way; many messages, of which one begins where the other ends; adapters and links that are slower or faster.
#[test]
fn full_flow_of_many_kinds() {
    let wraps = Options { rts: RtsAttr { send_psn: Psn::new(0xff_ff80), ..RtsAttr::default() }, ..options() };
    same("PSNs that wrap", &wraps, 1, |pair| {
        write(pair, 0, 0, (7, 1_000_000));
        pair.sent_ok(0, 0);
    });
    same("messages of all lengths", &options(), 1, |pair| {
        (0..24).for_each(|i| write(pair, 0, i, (i as usize * 4099, 60_000 + i as usize * 30_001)));
        (0..24).for_each(|i| _ = pair.sent_ok(0, i));
    });
    for name in Profile::names() {
        for (mtu, room) in [(5, 1), (4, 1), (2, 1), (5, 3)] {
            let options = Options { mtu, ..options() };
            let runs = [true, false].map(|trains| {
                let profile = Profile::named(name).expect("it is one of them");
                let link = LinkConfig { room, ..worlds::between(Faults::default()) };
                let simulation = Simulation::new(worlds::with_profile(profile, link));
                run_in(simulation, &options, (trains, Look::Ends), &|pair| {
                    write(pair, 0, 0, (0, 500_000));
                    write(pair, 0, 1, (500_000, 500_000));
                    (0..2).for_each(|i| _ = pair.sent_ok(0, i));
                })
            });
            let [with, without] = runs;
            compare(&format!("{name}, MTU {mtu}, room {room}"), 1, with, without);
        }
    }
}

/// Writes a register of an end's port.
fn set_register(pair: &mut Pair<ModelBus>, end: usize, register: u32, value: &[u8]) {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, register);
    let input = [input.bytes(), value].concat();
    pair.hcas[end].execute(Opcode::AccessReg, 0, input, 16 + value.len()).expect("ACCESS_REG");
}

/// What the receiver's port has dropped for want of room, and how often it asked its peer to wait.
fn dropped_and_asked(pair: &mut Pair<ModelBus>) -> (u64, u64) {
    simulation(pair).world(|world, _| {
        let counters = world.ethernet_counters(PortRef::of_hca(HcaId(1), 1)).expect("an Ethernet port");
        (counters.rx.priorities[0].discards, counters.tx.priorities[0].pause)
    })
}

/// A receiver's buffer that fills has its sender wait, or drops packets; a traffic class may be limited.
#[test]
fn full_flow_over_ethernet_is_held_back() {
    let [_, options] = both();
    let long = |pair: &mut Pair<ModelBus>| {
        write(pair, 0, 0, (3, 1_000_000));
        pair.sent_ok(0, 0);
    };
    // A frame has 33 cells, and two or three are there at a time.
    for (what, cells, xoff, lossy) in [("waits", 1000, 40, false), ("drops", 80, 0, true)] {
        same(what, &options, 1, |pair| {
            let mut buffer = PbmcBuffer::new();
            buffer.set(PbmcBuffer::CELLS, cells).set(PbmcBuffer::LOSSY, lossy.into());
            buffer.set(PbmcBuffer::XOFF_THRESHOLD, xoff).set(PbmcBuffer::XON_THRESHOLD, xoff / 2);
            let mut buffers = Pbmc::new();
            buffers.set(Pbmc::LOCAL_PORT, 1).set(Pbmc::XOFF_TIMER_VALUE, 1000).set(Pbmc::XOFF_REFRESH, 500);
            buffers.bytes_mut()[PBMC_BUFFERS..][..PbmcBuffer::SIZE].copy_from_slice(buffer.bytes());
            set_register(pair, 1, reg::PBMC, buffers.bytes());
            long(pair);
            let (dropped, asked) = dropped_and_asked(pair);
            assert_eq!((dropped > 0, asked > 0), (lossy, !lossy), "{what}: {dropped} {asked}");
        });
    }
    same("is limited", &options, 1, |pair| {
        let mut class = EtsClass::new();
        // 40 Gb/s.
        class.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 4).set(EtsClass::MAX_BW_VALUE, 40);
        let mut classes = Qetcr::new();
        classes.bytes_mut()[QETCR_CLASSES..][..8].copy_from_slice(class.bytes());
        set_register(pair, 0, reg::QETCR, classes.bytes());
        let begun = simulation(pair).now();
        long(pair);
        let took = simulation(pair).now() - begun;
        assert!(took > Ps::from_us(195), "{took}");
    });
}
