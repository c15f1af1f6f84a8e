//! Packets through switches: forwarding, back-pressure, lost links.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{Dma, Hca, InitAttr, RtsAttr, SendRequest, Sge};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_spec::cmd::McgIn;
use hca_spec::command::Opcode;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Gid, Lid, Qpn};
use hca_spec::mad::{PortInfo, SmpData, attr, port_state};
use hca_tests::fabric::{BYTES_PER_US, Fabric, Plan, Traffic, port};
use hca_tests::fabric64;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{PORT, wait_active};
use hca_tests::rig;

const MEMORY: usize = 16 << 20;
const REGISTERED: usize = 8 << 20;

fn up(plan: &Plan) -> Fabric {
    Fabric::new(plan.world(1), MEMORY, REGISTERED, 1024).expect("the fabric comes up")
}

fn line(switches: usize) -> Plan {
    let mut hcas = vec![0; switches];
    hcas[0] = 1;
    hcas[switches - 1] += 1;
    let mut plan = Plan::around(&hcas, 2);
    for s in 1..switches {
        let (left, right) = (plan.switches[s - 1], plan.switches[s] - 1);
        plan.join(port(s - 1, left), port(s, right));
    }
    plan
}

/// Model time of one small message there and its completion back.
fn ping(plan: &Plan) -> Ps {
    let mut fabric = up(plan);
    let traffic = Traffic::new(vec![(0, 1)], 1, 2);
    // The first time contexts and keys are not in the adapters' caches.
    fabric.run(&traffic).expect("commands");
    fabric.step = Ps::from_ns(10);
    let warm = fabric.run(&traffic).expect("commands");
    let far = fabric.counters(HcaId(1));
    assert_eq!((far.rcv_errors, far.xmit_discards), (0, 0));
    warm
}

#[test]
fn each_switch_on_the_way_takes_its_time() {
    let times: Vec<Ps> = (1..=3).map(|switches| ping(&line(switches))).collect();
    // There and back, each switch more adds its 130 ns and a cable of 5: packets are not stored before they leave.
    for more in [times[1] - times[0], times[2] - times[1]] {
        assert!(more.as_ns().abs_diff(270) <= 20, "{times:?}");
    }
}

/// The same as below, a quarter of the adapters.
#[test]
fn all_to_all_through_two_levels() {
    let report = fabric64::run(4, 2, 10_000).expect("commands");
    assert_eq!((report.hcas, report.switches, report.messages), (16, 8, 480));
    println!("{report}");
}

/// 64 adapters, 8 switches, 4032 connections.
#[test]
fn all_to_all_in_whole_size() {
    let report = fabric64::run(1, 1, 6000).expect("commands");
    assert_eq!((report.hcas, report.switches, report.messages), (64, 8, 64 * 63));
    println!("{report}");
}

/// Eight send to one as fast as they can: their packets wait, none is lost, and the last link is full.
#[test]
fn incast_slows_senders() {
    let mut fabric = up(&Plan::around(&[9], 0));
    let traffic = Traffic::new((1..9).map(|from| (from, 0)).collect(), 8, 64 << 10);
    let time = fabric.run(&traffic).expect("commands");
    for p in 1..=9 {
        let c = fabric.counters(port(0, p));
        assert_eq!((c.xmit_discards, c.rcv_errors, c.rcv_switch_relay_errors), (0, 0, 0), "port {p}");
    }
    for sender in 1..9 {
        let c = fabric.counters(HcaId(sender));
        assert!(c.xmit_wait > 1000, "sender {sender} had credits all the time: {}", c.xmit_wait);
        assert_eq!(c.xmit_discards, 0);
    }
    assert_eq!(fabric.counters(HcaId(0)).xmit_wait, 0, "ACKs met no queue");
    let line = traffic.bytes() / BYTES_PER_US;
    let took = time.as_ns() / 1000;
    assert!(took >= line && took < line + line / 20, "{took} us for what the link carries in {line} us");
}

/// What waits for a full port takes the room of its ingress port only: another way stays free.
#[test]
fn back_pressure_spreads_no_further_than_it_must() {
    // Adapters 0 and 1 at the first switch, 2, 3 and 4 at the second, one cable between.
    let mut plan = Plan::around(&[2, 3], 1);
    plan.join(port(0, 3), port(1, 4));
    let mut fabric = up(&plan);
    let traffic = Traffic::new(vec![(3, 2), (4, 2), (0, 2), (1, 0)], 8, 64 << 10);
    fabric.run(&traffic).expect("commands");
    // The cable between the switches waited, since its far end is one of three for adapter 2.
    assert!(fabric.counters(port(0, 3)).xmit_wait > 0);
    // The other way through the first switch did not.
    assert_eq!(fabric.counters(HcaId(1)).xmit_wait, 0);
}

#[test]
fn losses_are_repaired_through_a_switch() {
    let mut plan = Plan::around(&[2], 0);
    plan.links[0].faults = Faults { loss: 0.02, corrupt: 0.02, ..Faults::default() };
    let mut fabric = up(&plan);
    fabric.connect(0, 1, 0, 64, &RtsAttr { timeout: 8, ..RtsAttr::default() }).expect("commands");
    fabric.run(&Traffic::new(vec![(0, 1)], 64, 20_000)).expect("commands");
    let broken = fabric.counters(port(0, 1)).rcv_errors;
    assert!(broken > 0, "the switch saw what was corrupt");
    assert_eq!(fabric.counters(HcaId(1)).rcv_errors, 0, "and did not pass it on as if it were good");
}

/// A long packet is leaving already when its end shows that it is bad: it goes on, marked, and is counted as bad from
/// elsewhere by every port behind. A short one has not begun to leave and goes no further.
#[test]
fn bad_packets_are_marked_or_dropped() {
    let bad = |len: usize, messages: usize| {
        let mut plan = line(2);
        plan.links[0].faults = Faults { corrupt: 0.05, ..Faults::default() };
        let mut fabric = up(&plan);
        fabric.connect(0, 1, 0, messages, &RtsAttr { timeout: 8, ..RtsAttr::default() }).expect("commands");
        fabric.run(&Traffic::new(vec![(0, 1)], messages, len)).expect("commands");
        let (first, second) = (fabric.counters(port(0, 1)), fabric.counters(port(1, 2)));
        let far = fabric.counters(HcaId(1));
        assert_eq!((second.rcv_errors, far.rcv_errors), (0, 0), "they were bad before they came there");
        assert_eq!(first.rcv_remote_physical_errors, 0);
        assert_eq!(second.rcv_remote_physical_errors, far.rcv_remote_physical_errors, "marked all the way");
        let out = fabric.counters(port(0, 3));
        assert_eq!((out.xmit_discards, out.xmit_packets), (0, second.rcv_packets));
        // A bit in a header can make a packet go nowhere.
        let dropped = u64::from(first.rcv_errors - second.rcv_remote_physical_errors);
        assert_eq!(first.rcv_packets - dropped, out.xmit_packets, "what was bad and not marked stayed there");
        (first.rcv_errors, second.rcv_remote_physical_errors)
    };
    let (broken, marked) = bad(40_960, 64);
    assert!(broken > 10 && marked * 10 >= broken * 9, "{marked} of {broken}");
    let (broken, marked) = bad(100, 512);
    assert!(broken > 10 && marked == 0, "{marked} of {broken}");
}

const NO_CHANGE: u32 = 0;

/// What a subnet manager does to the port of an adapter.
fn set_port(hca: &mut Hca<ModelBus>, lid: usize, state: u32) -> Result<(), hca_driver::Error> {
    let mut info = hca.port_info(PORT)?;
    info.set(PortInfo::PORT_STATE, state).set(PortInfo::PORT_PHYSICAL_STATE, NO_CHANGE);
    info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, NO_CHANGE).set(PortInfo::LID, lid as u32);
    info.set(PortInfo::MASTER_SM_LID, 1);
    let data = SmpData::from_prefix_or_zero(info.bytes());
    hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), &data).map(|_| ())
}

/// A port that is armed becomes active with the first data packet it receives.
#[test]
fn data_makes_an_armed_port_active() {
    let mut plan = Plan { hcas: 2, ..Plan::default() };
    plan.join(HcaId(0), HcaId(1));
    let arm = |simulation: &Simulation, i: usize, hca: &mut Hca<ModelBus>| {
        simulation.run(Ps::from_ms(20));
        set_port(hca, i + 1, port_state::ARMED)
    };
    let mut fabric = Fabric::managed(plan.unmanaged_world(1), MEMORY, REGISTERED, 64, arm).expect("commands");
    let state = |fabric: &mut Fabric, i: usize| {
        fabric.nodes[i].hca.port_info(PORT).expect("MAD_IFC").get(PortInfo::PORT_STATE)
    };
    set_port(&mut fabric.nodes[0].hca, 1, port_state::ACTIVE).expect("MAD_IFC");
    fabric.simulation.run(Ps::from_us(1));
    assert_eq!((state(&mut fabric, 0), state(&mut fabric, 1)), (port_state::ACTIVE, port_state::ARMED));
    // It answers, which it may not while it is armed.
    fabric.run(&Traffic::new(vec![(0, 1)], 1, 100)).expect("commands");
    assert_eq!((state(&mut fabric, 0), state(&mut fabric, 1)), (port_state::ACTIVE, port_state::ACTIVE));
}

/// What adapter 0 sends to adapter 1 is never acknowledged.
fn expect_no_answer(fabric: &mut Fabric) {
    let node = &mut fabric.nodes[0];
    let sge = [Sge { address: node.mr.address, len: 10, key: node.mr.key }];
    let qp = node.qps[1].as_mut().expect("connected");
    qp.post_send(node.hca.bus_mut(), &SendRequest::new(7, SendOp::Send { imm: None }, &sge)).expect("post");
    fabric.simulation.run(Ps::from_ms(50));
    let done = fabric.nodes[0].sends.poll().expect("a completion");
    assert_eq!(done.status.map_err(|f| f.syndrome), Err(Some(Syndrome::TransportRetryExceeded)));
}

/// A port that no subnet manager has armed takes no data.
#[test]
fn data_does_not_enter_an_unarmed_port() {
    let mut plan = Plan { hcas: 2, ..Plan::default() };
    plan.join(HcaId(0), HcaId(1));
    let address = |simulation: &Simulation, i: usize, hca: &mut Hca<ModelBus>| {
        simulation.run(Ps::from_ms(20));
        set_port(hca, i + 1, NO_CHANGE)
    };
    let mut fabric =
        Fabric::managed(plan.unmanaged_world(1), MEMORY, REGISTERED, 64, address).expect("commands");
    for state in [port_state::ARMED, port_state::ACTIVE] {
        set_port(&mut fabric.nodes[0].hca, 1, state).expect("MAD_IFC");
    }
    let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
    fabric.connect(0, 1, 0, 4, &rts).expect("commands");
    expect_no_answer(&mut fabric);
    let arrived = fabric.counters(HcaId(1));
    assert_eq!((arrived.rcv_packets, arrived.xmit_packets), (3, 0), "three times, never answered");
}

/// A cable out: the peer can't be reached. In again: it can.
#[test]
fn a_cable_goes_and_comes() {
    let mut fabric = up(&Plan::around(&[2], 0));
    let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
    fabric.connect(0, 1, 0, 4, &rts).expect("commands");
    fabric.run(&Traffic::new(vec![(0, 1)], 4, 100)).expect("commands");
    let far = fabric.simulation.world(|world, _| world.link_of(HcaId(1).into())).expect("a link");
    assert!(fabric.simulation.world(|world, _| world.link_is_up(far)));
    fabric.simulation.world(|world, now| world.set_cable(now, far, false));
    assert!(!fabric.simulation.world(|world, _| world.link_is_up(far)));
    expect_no_answer(&mut fabric);
    let c = fabric.counters(port(0, 2));
    assert_eq!((c.link_downed, c.xmit_discards > 0), (1, true));
    fabric.simulation.world(|world, now| world.set_cable(now, far, true));
    fabric.simulation.run(Ps::from_ms(50));
    assert!(fabric.simulation.world(|world, _| world.link_is_up(far)));
    for (node, peer) in [(0, 1), (1, 0)] {
        let node = &mut fabric.nodes[node];
        node.hca.destroy_qp(node.qps[peer].take().expect("connected")).expect("DESTROY_QP");
    }
    fabric.run(&Traffic::new(vec![(0, 1), (1, 0)], 4, 5000)).expect("commands");
}

/// Lanes and rate that an end has not enabled are not used, and what is left is how fast packets pass.
#[test]
fn a_link_is_as_fast_as_its_ends_agreed() {
    let mut fabric = up(&Plan::around(&[2], 0));
    let traffic = Traffic::new(vec![(0, 1)], 16, 65_536);
    fabric.run(&traffic).expect("commands");
    let full = fabric.run(&traffic).expect("commands");
    const ONE_LANE: u32 = 1;
    const STANDARD_ONLY: u32 = 30;
    // 4x EDR has 100 Gb/s, 1x EDR 25; without what the standard added later there is the vendor's FDR10, 10 Gb/s.
    for (field, value, slower) in [
        (PortInfo::LINK_WIDTH_ENABLED, ONE_LANE, 4.0),
        (PortInfo::LINK_SPEED_EXT_ENABLED, STANDARD_ONLY, 10.0),
    ] {
        let hca = &mut fabric.nodes[1].hca;
        let mut info = hca.port_info(PORT).expect("MAD_IFC");
        info.set(field, value).set(PortInfo::PORT_STATE, 0).set(PortInfo::PORT_PHYSICAL_STATE, 0);
        info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        let data = SmpData::from_prefix_or_zero(info.bytes());
        hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), &data).expect("MAD_IFC");
        let same = fabric.run(&traffic).expect("commands");
        assert!(same.as_ns() * 2 < full.as_ns() * slower as u64, "until it trains again it is as it was");
        let link = fabric.simulation.world(|world, _| world.link_of(HcaId(1).into())).expect("a link");
        for connected in [false, true] {
            fabric.simulation.world(|world, now| world.set_cable(now, link, connected));
        }
        wait_active(&mut fabric.nodes[1].hca).expect("MAD_IFC");
        fabric.simulation.run(Ps::from_ms(1));
        let now = fabric.run(&traffic).expect("commands");
        let ratio = now.as_ns() as f64 / full.as_ns() as f64;
        // What is not the link's rate is the same.
        assert!((ratio / slower - 1.0).abs() < 0.08, "{ratio} times as long instead of {slower}");
    }
}

/// With two ways between switches traffic goes on over the other when one is cut.
#[test]
fn the_subnet_manager_finds_another_way() {
    // A ring of three.
    let mut plan = Plan::around(&[1, 1, 1], 2);
    for (a, b) in [(0, 1), (1, 2), (2, 0)] {
        plan.join(port(a, 2), port(b, 3));
    }
    let mut fabric = up(&plan);
    let traffic = Traffic::all_to_all(3, 4, 5000);
    fabric.run(&traffic).expect("commands");
    let direct = fabric.simulation.world(|world, _| world.link_of(port(0, 2))).expect("a link");
    fabric.simulation.world(|world, now| world.set_cable(now, direct, false));
    fabric.simulation.run(Ps::from_ms(1));
    let before = fabric.counters(port(2, 2)).xmit_packets;
    fabric.run(&traffic).expect("commands");
    assert!(fabric.counters(port(2, 2)).xmit_packets > before, "by way of the third switch");
}

const PREFIX: u64 = 0xff12_401b_ffff_0000;
const GROUP_ID: u64 = 0x1234;
const GROUP: Gid = Gid::new(PREFIX, GROUP_ID);
const GROUP_LID: Lid = Lid(0xc001);
const Q_KEY: u32 = 0x1111;
const GRH: usize = 40;

/// Input of the commands about a member of the group.
fn member(qpn: Qpn) -> Vec<u8> {
    let mut mcg = McgIn::new();
    mcg.set(McgIn::QPN, qpn.0).set(McgIn::GID_H, PREFIX).set(McgIn::GID_L, GROUP_ID);
    mcg.bytes().to_vec()
}

/// One datagram to a group: a copy to each member of the sender's partition, to the sender too unless it blocks that, and none to others.
#[test]
fn multicast_reaches_every_member_once() {
    [false, true].into_iter().for_each(multicast);
}

fn multicast(blocks_own_multicast: bool) {
    let mut plan = Plan::around(&[2, 2, 1], 2);
    for (a, b) in [(0, 1), (1, 2), (2, 0)] {
        let (from, to) = (plan.switches[a] - 1, plan.switches[b]);
        plan.join(port(a, from), port(b, to));
    }
    let mut fabric = up(&plan);
    let mut qps = Vec::new();
    for (i, node) in fabric.nodes.iter_mut().enumerate() {
        let config = QpConfig { blocks_own_multicast, ..QpConfig::ud(node.pd, &node.sends, &node.receives) };
        let mut qp = node.hca.create_qp(&config).expect("CREATE_QP");
        // One is of another partition: that place of the table is empty.
        let init = InitAttr { qkey: Q_KEY, pkey_index: u16::from(i == 3), ..InitAttr::default() };
        node.hca.qp_to_init(&mut qp, &init).expect("INIT");
        node.hca.ud_to_rtr(&mut qp).expect("RTR");
        node.hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
        // The last adapter does not join.
        if i < 4 {
            node.hca.execute(Opcode::AttachToMcg, 0, member(qp.number()), 16).expect("ATTACH_TO_MCG");
        }
        let room = Sge { address: node.mr.address, len: 4096, key: node.mr.key };
        for wr_id in 0..2 {
            qp.post_recv(wr_id, &[room]).expect("post_recv");
        }
        qps.push(qp);
    }
    fabric.nodes[0].memory.write(8192, b"to all of you");
    let node = &mut fabric.nodes[0];
    let sge = [Sge { address: node.mr.address + 8192, len: 13, key: node.mr.key }];
    let to = Datagram { qpn: Qpn(0xff_ffff), qkey: Q_KEY, lid: GROUP_LID, sl: 0, gid: Some(GROUP) };
    let request = SendRequest::new(1, SendOp::Datagram { to, imm: None }, &sge);
    qps[0].post_send(node.hca.bus_mut(), &request).expect("post_send");
    fabric.simulation.run(Ps::from_us(50));
    for (i, node) in fabric.nodes.iter_mut().enumerate() {
        let got: Vec<_> = std::iter::from_fn(|| node.receives.poll()).collect();
        let expected = usize::from(i == 0 && !blocks_own_multicast || i == 1 || i == 2);
        assert_eq!(got.len(), expected, "adapter {i}");
        if expected == 1 {
            let mut text = [0; 13];
            node.memory.read(GRH, &mut text);
            assert_eq!(&text, b"to all of you");
        }
    }
    // The tree brings one copy to each port with an adapter.
    let copies = |hca: usize| fabric.counters(HcaId(hca)).multicast_rcv_packets;
    assert_eq!((1..5).map(copies).collect::<Vec<_>>(), [1; 4]);
    for (i, (node, qp)) in fabric.nodes.iter_mut().zip(qps).enumerate() {
        if i < 4 {
            node.hca.execute(Opcode::DetachFromMcg, 0, member(qp.number()), 16).expect("DETACH_FROM_MCG");
        }
        node.hca.destroy_qp(qp).expect("DESTROY_QP");
    }
}

/// A packet to a LID that nobody has is counted where it ended.
#[test]
fn no_route_is_counted() {
    let mut fabric = up(&Plan::around(&[2], 0));
    let node = &mut fabric.nodes[0];
    let mut qp = rig::datagrams(&mut node.hca, node.pd, (&node.sends, &node.receives), Q_KEY);
    let sge = [Sge { address: node.mr.address, len: 13, key: node.mr.key }];
    for (wr_id, lid) in [(1, Lid(77)), (2, Lid(0xc0ff))] {
        let to = Datagram { qpn: Qpn(5), qkey: Q_KEY, lid, sl: 0, gid: Some(GROUP) };
        let request = SendRequest::new(wr_id, SendOp::Datagram { to, imm: None }, &sge);
        qp.post_send(node.hca.bus_mut(), &request).expect("post_send");
    }
    fabric.simulation.run(Ps::from_us(50));
    assert_eq!(fabric.counters(port(0, 1)).rcv_switch_relay_errors, 2);
    assert_eq!(fabric.counters(HcaId(1)).rcv_packets, 0);
    fabric.nodes[0].hca.destroy_qp(qp).expect("DESTROY_QP");
}
