//! An adapter with two ports: each has its own link, addresses and counters, and queue pairs stay at theirs.

use std::sync::Arc;

use hca_driver::qp::Path;
use hca_firmware::Personality;
use hca_model::link_layer::{Packet, ib::Address};
use hca_model::wire::Repr;
use hca_model::{
    HcaConfig, HcaId, LinkConfig, PortCounters, PortRef, Ps, SwitchConfig, SwitchIdentity, World, WorldConfig,
};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::{PortInfo, port_state};
use hca_spec::qpc::path_migration;
use hca_tests::fabric::port as switch_port;
use hca_tests::hosts::{End, Hosts, LEN, TIMEOUT, wait_active};
use hca_tests::in_process::Simulation;
use hca_tests::worlds::cable;

/// An adapter with so many ports.
fn adapter(number: u64, ports: usize) -> HcaConfig {
    let mut firmware = hca_firmware::Config::with_guid(0x0002_c903_00a0_0001 + number * 0x100);
    let kind = (*Personality::default_kind()).clone();
    let profile = kind.ports[0].clone();
    firmware.personality = Arc::new(kind.with_ports(vec![profile; ports]));
    HcaConfig { name: format!("hca{number}"), firmware, timing: None }
}

fn own(hca: usize, port: u8) -> PortRef {
    PortRef::of_hca(HcaId(hca), port)
}

/// Adapter 0 has two ports, the others have one.
fn world(hcas: u64, switches: &[u8], links: Vec<LinkConfig>) -> Simulation {
    let switch = |(number, ports): (usize, &u8)| SwitchConfig {
        name: format!("sw{number}"),
        firmware: SwitchIdentity {
            node_guid: 0x0002_c903_00b0_0001 + number as u64,
            system_image_guid: 0x0002_c903_00b0_0001,
            node_description: String::new(),
            ports: *ports,
            kind: hca_firmware::PortKind::InfiniBand,
        },
        queueing: hca_model::Queueing::default(),
    };
    let config = WorldConfig {
        hcas: (0..hcas).map(|n| adapter(n, if n == 0 { 2 } else { 1 })).collect(),
        switches: switches.iter().enumerate().map(switch).collect(),
        links,
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile: hca_model::timing::Profile::connectx4(),
    };
    Simulation::new(World::new(config).expect("a valid topology"))
}

/// Drivers of so many adapters, whose ports are up.
fn connected(simulation: Simulation, hcas: usize) -> Hosts {
    let mut hosts = Hosts::open(simulation, (0..hcas).map(|i| HcaId(i).into()));
    for (i, hca) in hosts.hcas.iter_mut().enumerate() {
        (1..=if i == 0 { 2 } else { 1 }).for_each(|port| wait_active(hca, port));
    }
    hosts
}

fn counters(hosts: &Hosts, port: PortRef) -> PortCounters {
    hosts.simulation.world(|world, _| world.port_counters(port).expect("the port is there"))
}

fn diagnoses(hosts: &Hosts) -> u64 {
    hosts.simulation.world(|world, _| world.diagnoses(HcaId(0)))
}

fn set_cable(hosts: &Hosts, link: usize, connected: bool) {
    hosts.simulation.world(|world, now| world.set_cable(now, link, connected));
}

/// Two ports, two peers, one connection each, at the same time. What is sent by one port is counted there and nowhere
/// else; when its cable is pulled the other goes on.
#[test]
fn each_port_has_its_own_link() {
    let links = vec![cable(own(0, 1), own(1, 1)), cable(own(0, 2), own(2, 1))];
    let mut fabric = connected(world(3, &[], links), 3);
    let lids: Vec<u16> = [(0, 1), (0, 2), (1, 1), (2, 1)]
        .iter()
        .map(|(hca, port): &(usize, u8)| fabric.hcas[*hca].lid(*port).expect("PortInfo").0)
        .collect();
    assert_eq!(lids, [1, 2, 3, 4], "each port has its own LID");
    let info = fabric.hcas[0].node_info(2).expect("NodeInfo");
    assert_eq!(info.get(hca_spec::mad::NodeInfo::NUM_PORTS), 2);
    let (mut first, mut second) = (fabric.connect([(0, 1), (1, 1)]), fabric.connect([(0, 2), (2, 1)]));
    let before = [1, 2].map(|port| counters(&fabric, own(0, port)));
    let started = fabric.simulation.now();
    fabric.post(&mut first, 1);
    fabric.post(&mut second, 2);
    assert_eq!((fabric.done(&mut first, 1), fabric.done(&mut second, 2)), (None, None));
    let both = fabric.simulation.now() - started;
    for (i, port) in [1, 2].into_iter().enumerate() {
        let (old, new) = (before[i], counters(&fabric, own(0, port)));
        assert_eq!(new.xmit_packets - old.xmit_packets, (LEN / 4096) as u64, "port {port}");
        assert!(new.rcv_packets > old.rcv_packets && (new.xmit_data - old.xmit_data) * 4 > LEN as u64);
    }
    // The links carry at the same time: two writes take less than twice the time of one.
    let started = fabric.simulation.now();
    fabric.post(&mut first, 3);
    assert_eq!(fabric.done(&mut first, 3), None);
    assert!(both < (fabric.simulation.now() - started).times(2), "{both}");

    set_cable(&fabric, 1, false);
    fabric.post(&mut second, 4);
    fabric.post(&mut first, 5);
    assert_eq!(fabric.done(&mut first, 5), None);
    assert_eq!(fabric.done(&mut second, 4), Some(Syndrome::TransportRetryExceeded));
    let state = |fabric: &mut Hosts, port| {
        fabric.hcas[0].port_info(port).expect("PortInfo").get(PortInfo::PORT_STATE)
    };
    assert_eq!([1, 2].map(|port| state(&mut fabric, port)), [port_state::ACTIVE, port_state::DOWN]);
    assert_eq!([1, 2].map(|port| counters(&fabric, own(0, port)).link_downed), [0, 1]);
    set_cable(&fabric, 1, true);
    wait_active(&mut fabric.hcas[0], 2);
    wait_active(&mut fabric.hcas[2], 1);
    let mut again = fabric.connect([(0, 2), (2, 1)]);
    fabric.post(&mut again, 6);
    assert_eq!(fabric.done(&mut again, 6), None);
}

/// A port without a cable delivers to itself, and what it delivers stays there.
#[test]
fn loopback_stays_at_its_port() {
    let mut fabric = connected(world(1, &[], Vec::new()), 1);
    let mut pair = fabric.connect([(0, 2), (0, 2)]);
    let before = counters(&fabric, own(0, 1));
    fabric.post(&mut pair, 1);
    assert_eq!(fabric.done(&mut pair, 1), None);
    assert_eq!(counters(&fabric, own(0, 1)), before);
    assert!(counters(&fabric, own(0, 2)).rcv_packets > 0);
}

/// A packet for a queue pair that comes by the other port is dropped, and told of.
#[test]
fn a_packet_by_the_wrong_port_is_dropped() {
    let mut fabric = connected(world(2, &[], vec![cable(own(0, 1), own(1, 1))]), 2);
    let mut pair = fabric.connect([(0, 1), (1, 1)]);
    let (slid, dlid) = (fabric.hcas[1].lid(1).expect("LID"), fabric.hcas[0].lid(2).expect("LID"));
    let packet = || {
        let dest_qp: Qpn = pair[0].qp.number();
        let repr = Repr { dest_qp, ack_req: true, ..Repr::default() };
        Packet::build_empty(&Address::between(slid, dlid).into(), &repr)
    };
    let sent_before = counters(&fabric, own(0, 1)).xmit_packets;
    let told = diagnoses(&fabric);
    fabric.simulation.world(|world, now| world.inject_packet(now, own(0, 2), packet()));
    fabric.simulation.run(Ps::from_us(50));
    assert_eq!(diagnoses(&fabric), told + 1);
    assert_eq!(counters(&fabric, own(0, 1)).xmit_packets, sent_before, "no answer");
    fabric.post(&mut pair, 1);
    assert_eq!(fabric.done(&mut pair, 1), None, "the connection goes on");
}

/// Both ports at one switch: a connection whose port loses its cable goes on by the other port (IBTA 17.2.8).
#[test]
fn a_connection_migrates_to_the_other_port() {
    let at = |number, port| cable(own(number, port), switch_port(0, (number * 2) as u8 + port));
    let mut fabric = connected(world(2, &[4], vec![at(0, 1), at(0, 2), at(1, 1)]), 2);
    let mut pair = fabric.connect([(0, 1), (1, 1)]);
    let peer = fabric.hcas[1].lid(1).expect("LID");
    let second = fabric.hcas[0].lid(2).expect("LID");
    assert_eq!((second, peer), (Lid(2), Lid(3)));
    let alternates = [Path { port: 2, ..Path::lid(peer) }, Path::lid(second)];
    for (i, path) in alternates.iter().enumerate() {
        let End { hca, qp, .. } = &mut pair[i];
        fabric.hcas[*hca].qp_rearm(qp, path, TIMEOUT).expect("RTS2RTS");
    }
    fabric.post(&mut pair, 1);
    assert_eq!(fabric.done(&mut pair, 1), None);
    assert_eq!(fabric.hcas[0].qp_migration(&pair[0].qp), Ok(path_migration::ARMED));
    let before = counters(&fabric, own(0, 2)).xmit_packets;
    set_cable(&fabric, 0, false);
    fabric.post(&mut pair, 2);
    assert_eq!(fabric.done(&mut pair, 2), None, "it goes on by port 2");
    assert_eq!(fabric.hcas[0].qp_migration(&pair[0].qp), Ok(path_migration::MIGRATED));
    assert!(counters(&fabric, own(0, 2)).xmit_packets - before >= (LEN / 4096) as u64);
}
