//! What changes on script at a port and its link: LIDs, partitions, prefixes, lanes.

use hca_driver::{Event, SendRequest};
use hca_model::fault::{Fault, PortChange, TimeAction, Trigger, What};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_spec::mad::{PortInfo, attr};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::rig::{drain_events, linked};

/// So long that a link trains.
const TRAINING: Ps = Ps::from_ms(5000);

fn pair() -> (Simulation, Pair<ModelBus>) {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    drain_events(&mut pair.hcas[0]);
    (simulation, pair)
}

fn happens(simulation: &Simulation, action: TimeAction) {
    let what = What::Time { every: None, action };
    let fault = Fault { name: "test".into(), what, trigger: Trigger::default() };
    simulation.world(|world, now| world.add_fault(now, HcaId(0), fault)).expect("there is such an adapter");
    simulation.run(Ps::from_us(100));
}

fn write(pair: &mut Pair<ModelBus>, wr_id: u64) -> bool {
    let (sge, far) = ([pair.ends[0].sge(0, 64)], pair.ends[1].mr);
    pair.send(0, &SendRequest::write(wr_id, &sge, far.address, far.key));
    pair.sent(0).1.status.is_ok()
}

/// The driver hears of another LID; a connection to the old one ends.
#[test]
fn another_lid() {
    let (simulation, mut pair) = pair();
    assert!(write(&mut pair, 1));
    happens(&simulation, TimeAction::Port { port: PORT, change: PortChange::Lid(0x77) });
    let events = drain_events(&mut pair.hcas[0]);
    assert!(events.iter().any(|event| matches!(event, Event::PortChange { port: PORT, .. })), "{events:?}");
    assert_eq!(pair.hcas[0].port_info(PORT).expect("PortInfo").get(PortInfo::LID), 0x77);
    assert!(!write(&mut pair, 2), "answers go to the LID of before");
}

/// An entry of the table of partitions; the others stay.
#[test]
fn another_partition() {
    let (simulation, mut pair) = pair();
    let change = PortChange::Pkey { index: 1, pkey: 0x8001 };
    happens(&simulation, TimeAction::Port { port: PORT, change });
    let table = pair.hcas[0].smp_get(PORT, attr::PKEY_TABLE, 0).expect("P_KeyTable");
    assert_eq!(table.smp_data().bytes()[..4], [0xff, 0xff, 0x80, 0x01]);
    assert!(write(&mut pair, 1), "that of the connection is there");
    let events = drain_events(&mut pair.hcas[0]);
    assert!(events.iter().any(|event| matches!(event, Event::PortChange { port: PORT, .. })), "{events:?}");
}

/// The prefix of the port's GIDs.
#[test]
fn another_prefix() {
    let (simulation, mut pair) = pair();
    happens(&simulation, TimeAction::Port { port: PORT, change: PortChange::GidPrefix(0xfec0 << 48) });
    assert_eq!(pair.hcas[0].port_info(PORT).expect("PortInfo").get(PortInfo::GID_PREFIX), 0xfec0 << 48);
}

/// A link that has lost lanes is down for a training, and narrower; its lanes come back in the same way.
#[test]
fn lanes_that_are_lost() {
    let (simulation, mut pair) = pair();
    let width = |pair: &mut Pair<ModelBus>| {
        pair.hcas[0].port_info(PORT).expect("PortInfo").get(PortInfo::LINK_WIDTH_ACTIVE)
    };
    assert_eq!(width(&mut pair), 2, "4x");
    let lasting = Some(Ps(3 * TRAINING.0));
    happens(&simulation, TimeAction::Degrade { port: PORT, lanes: 1, lasting });
    assert!(!simulation.world(|world, _| world.link_is_up(0)));
    simulation.run(TRAINING);
    assert!(simulation.world(|world, _| world.link_is_up(0)));
    assert_eq!(width(&mut pair), 1, "1x");
    simulation.run(Ps(4 * TRAINING.0));
    assert_eq!(width(&mut pair), 2);
    assert!(write(&mut pair, 1));
}
