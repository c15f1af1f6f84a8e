//! Packets that go wrong on script, chosen by their headers: the transport mends it, and nothing else is touched.

use hca_model::fault::{Fault, Header, PacketAction, Psn, Qpn, Trigger, What, packet_named};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, pattern};
use hca_tests::rig::linked;

/// Bytes of a message: several packets.
const SIZE: usize = 20_000;

/// Which packets, at which adapter.
fn named(name: &str) -> Header {
    Header { opcode: Some(packet_named(name).expect("a name")), ..Header::default() }
}

/// A message and its reading back with that fault. Returns how long it took, and how often the fault saw something and happened.
fn run(roce: bool, at: usize, header: Header, action: PacketAction, trigger: Trigger) -> (Ps, u64, u64) {
    let mut pair = linked(&Options { roce, ..Options::default() }, Faults::default(), 1);
    let simulation: Simulation = pair.hcas[0].bus_mut().simulation().clone();
    let fault = Fault { name: "test".into(), what: What::Packet { header, action }, trigger };
    simulation.world(|world, now| world.add_fault(now, HcaId(at), fault)).expect("there is such an adapter");
    let began = simulation.now();
    pair.deliver_and_read(&pattern(7, SIZE), 32_768);
    let took = simulation.now().since(began);
    let report = simulation.world(|world, _| world.faults()).remove(0).1;
    pair.close().expect("teardown");
    (took, report.seen, report.fired)
}

/// What went wrong is mended, over either link layer, and takes the time that it takes to notice.
#[test]
fn the_transport_mends_it() {
    const LATE: PacketAction = PacketAction::Late(Ps::from_us(300));
    let cases = [
        (1, "rc-send-first", PacketAction::Lose, true),
        (1, "rc-send-middle", PacketAction::Twice, false),
        (1, "rc-send-middle", LATE, true),
        (1, "rc-send-last", PacketAction::Corrupt(3), true),
        (1, "rc-send-last", PacketAction::Lose, true),
        (1, "rc-read-request", PacketAction::Lose, true),
        (0, "rc-acknowledge", PacketAction::Lose, true),
        (0, "rc-acknowledge", PacketAction::Twice, false),
        (0, "rc-read-response-middle", LATE, true),
        (0, "rc-read-response-last", PacketAction::Lose, true),
        (0, "rc-read-response-last", PacketAction::Twice, false),
    ];
    for roce in [false, true] {
        let nothing = Header { qpn: Some(Qpn(0x00ab_cdef)), ..Header::default() };
        let (usual, seen, _) = run(roce, 0, nothing, PacketAction::Lose, Trigger::default());
        assert_eq!(seen, 0);
        for (at, name, action, slower) in cases {
            let case = format!("{name} at {at}, {action:?}, RoCE: {roce}");
            let (took, seen, fired) = run(roce, at, named(name), action, Trigger::default());
            assert!(fired == 1 && seen >= 1, "{case}: {seen} seen, {fired} fired");
            assert_eq!(took > usual + Ps::from_us(1), slower, "{case}: {took} instead of {usual}");
            assert_eq!(
                run(roce, at, named(name), action, Trigger::default()),
                (took, seen, fired),
                "{case}: again"
            );
        }
    }
}

/// Only what has all that is asked for: a port, a queue pair, a sequence number.
#[test]
fn by_queue_pair_port_and_number() {
    let lose = |header, trigger| run(false, 1, header, PacketAction::Lose, trigger);
    let always = Trigger { count: None, ..Trigger::default() };
    // The second port that is not there.
    assert_eq!(lose(Header { port: Some(2), ..Header::default() }, always.clone()).1, 0);
    let all = lose(Header { port: Some(1), ..Header::default() }, Trigger { nth: u64::MAX, ..always });
    // Those of the message, and the request to read it back.
    assert_eq!((all.1, all.2), (SIZE.div_ceil(1024) as u64 + 1, 0));
    // The third packet of the message, which is sent again.
    let third = Header { psn: Some(Psn::new(2)), ..Header::default() };
    let (_, seen, fired) = lose(third, Trigger::default());
    assert_eq!((seen, fired), (2, 1));
}
