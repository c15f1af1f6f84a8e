//! Partitions that the built-in subnet manager keeps: who reaches whom, and who would like to.

use std::collections::BTreeMap;

use hca_driver::{RtsAttr, SendOp, SendRequest, Sge};
use hca_model::{HcaId, PortRef, Ps, World, WorldConfig};
use hca_spec::cqe::Syndrome;
use hca_spec::mad::{PortInfo, SmpData, attr};
use hca_tests::fabric::{Fabric, Plan, Traffic, port};
use hca_tests::pair::PORT;

const MEMORY: usize = 16 << 20;
const KEY: u64 = 0x1234_5678_9abc_def1;
/// Full members of two partitions, and a limited one of the first.
const FIRST: u16 = 0x8001;
const LIMITED: u16 = 0x0001;
const SECOND: u16 = 0x8002;
/// Bytes of a message that takes some 70 us.
const LONG: u32 = 900_000;
/// A port's table.
const ENTRIES: usize = 32;

/// Adapters around a switch, each with these P_Keys; the ports of the switch have the same.
fn fabric(keys: &[&[u16]]) -> Fabric {
    let plan = Plan::around(&[keys.len() as u8], 0);
    let config = WorldConfig { management_key: Some(KEY), ..plan.config(1) };
    let mut world = World::new(config).expect("a valid topology");
    let mut tables: BTreeMap<PortRef, Vec<u16>> = BTreeMap::new();
    for (i, keys) in keys.iter().enumerate() {
        tables.insert(HcaId(i).into(), keys.to_vec());
        tables.insert(port(0, i as u8 + 1), keys.to_vec());
    }
    world.set_partitions(tables);
    Fabric::new(world, MEMORY, 1 << 20, 64).expect("up")
}

fn table(fabric: &mut Fabric, node: usize) -> Vec<u16> {
    let table = fabric.nodes[node].hca.smp_get(PORT, attr::PKEY_TABLE, 0).expect("P_KeyTable");
    let entries = table.smp_data().bytes().as_chunks::<2>().0;
    entries.iter().map(|key| u16::from_be_bytes(*key)).collect()
}

fn padded(keys: &[u16]) -> Vec<u16> {
    keys.iter().copied().chain(std::iter::repeat(0)).take(ENTRIES).collect()
}

/// An adapter writes the table of its own port, as its firmware lets it.
fn write_own(fabric: &mut Fabric, node: usize, keys: &[u16]) {
    let mut data = SmpData::new();
    let entries = data.bytes_mut().as_chunks_mut::<2>().0;
    entries.iter_mut().zip(keys).for_each(|(entry, key)| *entry = key.to_be_bytes());
    fabric.nodes[node].hca.smp_set(PORT, attr::PKEY_TABLE, 0, &data).expect("firmware does as it is told");
}

/// A message over a connection, by the first P_Key of each end; how it ended.
fn send(fabric: &mut Fabric, from: usize, to: usize) -> Result<(), Option<Syndrome>> {
    if fabric.nodes[from].qps[to].is_none() {
        let rts = RtsAttr { timeout: 8, retries: 1, ..RtsAttr::default() };
        fabric.connect(from, to, 0, 4, &rts).expect("commands");
    }
    post(fabric, from, to, 100);
    fabric.simulation.run(Ps::from_ms(50));
    let done = fabric.nodes[from].sends.poll().expect("a completion");
    done.status.map_err(|failure| failure.syndrome)
}

fn post(fabric: &mut Fabric, from: usize, to: usize, len: u32) {
    let receiver = &mut fabric.nodes[to];
    let sge = [Sge { address: receiver.mr.address, len, key: receiver.mr.key }];
    receiver.qps[from].as_mut().expect("connected").post_recv(1, &sge).expect("post_recv");
    let sender = &mut fabric.nodes[from];
    let sge = [Sge { address: sender.mr.address, len, key: sender.mr.key }];
    let qp = sender.qps[to].as_mut().expect("connected");
    let request = SendRequest::new(7, SendOp::Send { imm: None }, &sge);
    qp.post_send(sender.hca.bus_mut(), &request).expect("post_send");
}

fn dropped(fabric: &Fabric, number: u8) -> (u32, u32) {
    let counters = fabric.counters(port(0, number));
    (counters.rcv_constraint_errors, counters.xmit_constraint_errors)
}

const GIVEN_UP: Result<(), Option<Syndrome>> = Err(Some(Syndrome::TransportRetryExceeded));

/// Members reach each other; others do not, and it is the switch that drops what they send.
#[test]
fn members_talk_and_others_do_not() {
    let mut fabric = fabric(&[&[FIRST], &[FIRST, SECOND], &[SECOND], &[LIMITED], &[LIMITED]]);
    for (node, keys) in [(0, &[FIRST][..]), (1, &[FIRST, SECOND]), (3, &[LIMITED])] {
        assert_eq!(table(&mut fabric, node), padded(keys));
    }
    fabric.run(&Traffic::new(vec![(0, 1), (1, 0)], 3, 1000)).expect("one partition");
    fabric.run(&Traffic::new(vec![(0, 3), (3, 0), (4, 1)], 3, 1000)).expect("a full member and limited ones");
    let none = (0, 0);
    assert_eq!([1, 2, 3, 4, 5].map(|number| dropped(&fabric, number)), [none; 5]);
    // What nobody there takes does not leave the switch.
    assert_eq!(send(&mut fabric, 0, 2), GIVEN_UP);
    assert_eq!(dropped(&fabric, 3), (0, 2));
    assert_eq!(send(&mut fabric, 3, 4), GIVEN_UP);
    assert_eq!((dropped(&fabric, 4), dropped(&fabric, 5)), (none, (0, 2)), "two limited members");
    // Adapters never saw it.
    for node in [2, 4] {
        let info = fabric.nodes[node].hca.port_info(PORT).expect("PortInfo");
        assert_eq!(info.get(PortInfo::P_KEY_VIOLATIONS), 0);
    }
}

/// A host takes another partition's P_Key for its port: what it sends by it is dropped where it enters the switch, and counted there, and
/// soon the port has its own again.
#[test]
fn a_host_that_takes_anothers_key_is_stopped_and_set_right() {
    for (own, taken) in [(SECOND, FIRST), (LIMITED, FIRST)] {
        let mut fabric = fabric(&[&[FIRST], &[own]]);
        let rts = RtsAttr { timeout: 8, retries: 1, ..RtsAttr::default() };
        fabric.connect(1, 0, 0, 4, &rts).expect("commands");
        let before = fabric.counters(HcaId(0)).rcv_packets;
        // In the middle of a message, whose later packets have the other P_Key for a while.
        post(&mut fabric, 1, 0, LONG);
        write_own(&mut fabric, 1, &[taken]);
        fabric.simulation.run(Ps::from_us(100));
        let (inward, _) = dropped(&fabric, 2);
        assert!(inward > 0, "{own:#x}");
        if own == SECOND {
            assert_eq!(fabric.counters(HcaId(0)).rcv_packets, before, "nothing arrives");
        }
        assert_eq!(table(&mut fabric, 1), padded(&[own]));
        // And over and over.
        for round in 0..20 {
            write_own(&mut fabric, 1, &[taken, round, 0xffff]);
            fabric.simulation.run(Ps::from_us(100));
            assert_eq!(table(&mut fabric, 1), padded(&[own]));
        }
        assert_eq!(fabric.nodes[1].hca.port_info(PORT).expect("PortInfo").get(PortInfo::M_KEY), KEY);
    }
}

/// On a cable without a switch adapters look for themselves, and count.
#[test]
fn a_cable_between_two_partitions() {
    for (keys, reached) in [([FIRST, FIRST], true), ([FIRST, LIMITED], true), ([FIRST, SECOND], false)] {
        let mut plan = Plan { hcas: 2, ..Plan::default() };
        plan.join(HcaId(0), HcaId(1));
        let config = WorldConfig { management_key: Some(KEY), ..plan.config(1) };
        let mut world = World::new(config).expect("a valid topology");
        world.set_partitions([0, 1].map(|i| (HcaId(i).into(), vec![keys[i]])).into());
        let mut fabric = Fabric::new(world, MEMORY, 1 << 20, 64).expect("up");
        assert_eq!(send(&mut fabric, 0, 1).is_ok(), reached, "{keys:x?}");
        let info = fabric.nodes[1].hca.port_info(PORT).expect("PortInfo");
        assert_eq!(info.get(PortInfo::P_KEY_VIOLATIONS), if reached { 0 } else { 2 });
        write_own(&mut fabric, 1, &[0xffff]);
        fabric.simulation.run(Ps::from_us(100));
        assert_eq!(table(&mut fabric, 1), padded(&keys[1..]));
    }
}

/// A link that comes again has its partitions, and what no topology says of partitions is as ever.
#[test]
fn partitions_outlive_a_cable() {
    let mut kept = fabric(&[&[FIRST], &[SECOND]]);
    let cable = |fabric: &Fabric, there: bool| {
        fabric.simulation.world(|world, now| {
            let link = world.link_of(port(0, 2)).expect("a cable");
            world.set_cable(now, link, there);
        });
        fabric.simulation.run(Ps::from_ms(30));
    };
    cable(&kept, false);
    cable(&kept, true);
    assert_eq!(table(&mut kept, 1), padded(&[SECOND]));
    assert_eq!(send(&mut kept, 0, 1), GIVEN_UP);
    let world = World::new(Plan::around(&[2], 0).config(1)).expect("a valid topology");
    let mut open = Fabric::new(world, MEMORY, 1 << 20, 64).expect("up");
    assert_eq!(table(&mut open, 0), padded(&[0xffff]));
    write_own(&mut open, 0, &[0xffff, FIRST]);
    open.simulation.run(Ps::from_ms(1));
    assert_eq!(table(&mut open, 0), padded(&[0xffff, FIRST]), "nobody minds");
}
