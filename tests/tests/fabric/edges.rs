//! The edges of a fabric: lanes that share a link, links that leave the world, agents that answer by wire.

use hca_driver::{Dma, RtsAttr, SendRequest, Sge};
use hca_driver::{SendOp, wqe::Datagram};
use hca_model::link::LinkMessage;
use hca_model::link_layer::Packet;
use hca_model::{HcaId, LinkOffer, PortLink, Ps, TunnelEvent, TunnelId, World};
use hca_spec::be32;
use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_DIRECTED, METHOD_GET, Mad, NodeInfo, PortInfo, SMP_DATA, SmpData, attr, port_state,
};
use hca_tests::fabric::{BYTES_PER_US, Fabric, Plan, Traffic, port};
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, PORT, Pair, pattern, wait_active};
use hca_tests::{rig, smp, worlds};

const MEMORY: usize = 16 << 20;

/// Two service levels on lanes of their own share an adapter's link as its arbitration table says.
#[test]
fn lanes_have_their_share() {
    const MESSAGES: usize = 32;
    const LEN: usize = 64 << 10;
    // Weights of lane 0 and 1, and whether the flow on lane 1 is done well before the other.
    for (weights, first) in [([64, 192], Some(2)), ([192, 64], Some(1)), ([128, 128], None)] {
        let mut fabric = Fabric::new(Plan::around(&[3], 0).world(1), MEMORY, 8 << 20, 1024).expect("up");
        let hca = &mut fabric.nodes[0].hca;
        let mut lanes = SmpData::new();
        // Service levels 0 and 1 in one byte; the others on lane 0.
        lanes.bytes_mut()[0] = 0x01;
        hca.smp_set(PORT, attr::SL_TO_VL, 0, &lanes).expect("SLtoVLMappingTable");
        let mut table = SmpData::new();
        table.bytes_mut()[..4].copy_from_slice(&[0, weights[0], 1, weights[1]]);
        const LOW: u32 = 1;
        hca.smp_set(PORT, attr::VL_ARBITRATION, LOW << 16, &table).expect("VLArbitrationTable");
        let traffic =
            Traffic { sl: |(_, to)| to as u8 - 1, ..Traffic::new(vec![(0, 1), (0, 2)], MESSAGES, LEN) };
        let time = fabric.run(&traffic).expect("commands");
        let line = traffic.bytes() / BYTES_PER_US;
        assert!(time.as_ns() / 1000 < line + line / 10, "{time} for {line} us of the link");
        let [one, two] = [1, 2].map(|to| fabric.finished[to].as_ns() as f64 / time.as_ns() as f64);
        // With three quarters of the link one is done after 2/3 of the time.
        match first {
            Some(2) => assert!((0.6..0.75).contains(&two) && one > 0.95, "{weights:?}: {one} {two}"),
            Some(_) => assert!((0.6..0.75).contains(&one) && two > 0.95, "{weights:?}: {one} {two}"),
            None => assert!(one > 0.9 && two > 0.9, "{weights:?}: {one} {two}"),
        }
    }
}

/// One end is for four lanes only, the other for one only, whichever of them is asked first.
#[test]
fn ends_without_a_width_in_common_have_no_link() {
    const ONE_LANE: u32 = 1;
    const FOUR_LANES: u32 = 2;
    for widths in [[ONE_LANE, FOUR_LANES], [FOUR_LANES, ONE_LANE], [ONE_LANE, ONE_LANE]] {
        let simulation = Simulation::new(worlds::two(0.0, 1));
        let mut hcas = [rig::open(&simulation, 0), rig::open(&simulation, 1)];
        for (hca, width) in hcas.iter_mut().zip(widths) {
            wait_active(hca).expect("MAD_IFC");
            let mut info = hca.port_info(PORT).expect("MAD_IFC");
            info.set(PortInfo::LINK_WIDTH_ENABLED, width);
            info.set(PortInfo::PORT_STATE, 0).set(PortInfo::PORT_PHYSICAL_STATE, 0);
            info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
            let data = SmpData::from_prefix_or_zero(info.bytes());
            hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), &data).expect("MAD_IFC");
        }
        for connected in [false, true] {
            simulation.world(|world, now| world.set_cable(now, 0, connected));
        }
        simulation.run(Ps::from_ms(20));
        let common = widths[0] == widths[1];
        assert_eq!(simulation.world(|world, _| world.link_is_up(0)), common, "{widths:?}");
        for hca in &mut hcas {
            let state = hca.port_info(PORT).expect("MAD_IFC").get(PortInfo::PORT_STATE);
            assert_eq!(state != port_state::DOWN, common, "{widths:?}: state {state}");
        }
    }
}

const NEAR: TunnelId = TunnelId(10);
const FAR: TunnelId = TunnelId(11);

/// Two adapters, each with a cable that leaves the world.
fn apart() -> World {
    worlds::many(2, vec![worlds::cable(HcaId(0), NEAR), worlds::cable(HcaId(1), FAR)], 1)
}

/// Takes what left by one tunnel to the other, as whoever carries it would; `change` may spoil it.
fn shuttle(simulation: &Simulation, change: impl Fn(&mut Vec<u8>)) {
    simulation.world(|world, now| {
        for TunnelEvent { tunnel, message, at } in world.drain_tunnels(now) {
            assert!(at <= now);
            let other = if tunnel == NEAR { FAR } else { NEAR };
            match message {
                LinkMessage::Packet(packet) => {
                    let mut bytes = packet.packet.into_bytes();
                    change(&mut bytes);
                    world.tunnel_receive(now, other, bytes);
                }
                LinkMessage::Light(light) => {
                    world.tunnel_link(now, other, light.offer.and_then(LinkOffer::best));
                }
                LinkMessage::Credit { .. } => {}
            }
        }
    });
}

fn run(simulation: &Simulation, time: Ps) {
    let end = simulation.now() + time;
    while simulation.now() < end {
        simulation.run(Ps::from_us(1));
        shuttle(simulation, |_| {});
    }
}

#[test]
fn packets_leave_the_world_and_come_back() {
    let simulation = Simulation::new(apart());
    run(&simulation, Ps::from_us(1));
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    run(&simulation, Ps::from_ms(20));
    let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
    let mut pair = Pair::connect(hcas, &Options { rts, ..Options::default() }).expect("connected");
    let data = pattern(1, 9000);
    pair.fill(0, 0, &data);
    pair.recv(1, 1, 20_000, 9000);
    let sge = [pair.ends[0].sge(0, 9000)];
    pair.send(0, &SendRequest::new(1, SendOp::Send { imm: None }, &sge));
    run(&simulation, Ps::from_us(200));
    assert!(pair.try_sent(0).is_some_and(|(_, c)| c.status.is_ok()));
    assert!(pair.try_received(1).is_some_and(|(_, c)| c.status.is_ok()));
    assert!(pair.ends[1].bytes(20_000, 9000) == data);
    // What was spoilt outside is counted and dropped, and repaired by asking again.
    pair.recv(1, 2, 20_000, 9000);
    pair.send(0, &SendRequest::new(2, SendOp::Send { imm: None }, &sge));
    simulation.run(Ps::from_us(5));
    shuttle(&simulation, |bytes| bytes[30] ^= 1);
    run(&simulation, Ps::from_ms(5));
    let errors = |hca| simulation.world(|w, _| w.port_counters(HcaId(hca).into())).map(|c| c.rcv_errors);
    assert!(errors(1) > Some(0));
    assert!(pair.try_sent(0).is_some_and(|(_, c)| c.status.is_ok()));
    // Rubbish of any length does no harm.
    for len in [0, 1, 7, 26, 5000, 70_000] {
        simulation.world(|world, now| world.tunnel_receive(now, FAR, vec![0xa5; len]));
        simulation.world(|world, now| world.tunnel_receive(now, TunnelId(99), vec![0xa5; len]));
    }
    run(&simulation, Ps::from_us(10));
    // The other side is lost: link down here, and packets go nowhere.
    let up = |link| simulation.world(|world, _| world.link_is_up(link));
    assert!(up(0) && up(1));
    simulation.world(|world, now| world.tunnel_link(now, NEAR, None));
    assert!(!up(0));
    pair.send(0, &SendRequest::new(3, SendOp::Send { imm: None }, &sge));
    run(&simulation, Ps::from_ms(20));
    assert!(pair.try_sent(0).is_some_and(|(_, c)| c.status.is_err()));
    let link = PortLink::default();
    simulation.world(|world, now| world.tunnel_link(now, NEAR, Some(link)));
    run(&simulation, Ps::from_ms(20));
    assert!(up(0));
    rig::close(pair);
}

/// A world that sends without having credits is held to those that it was given: the rest is dropped and counted.
#[test]
fn who_ignores_credits_is_held_to_them() {
    let simulation = Simulation::new(apart());
    let carry = |simulation: &Simulation, wanted: &dyn Fn(&LinkMessage) -> usize| {
        simulation.world(|world, _| {
            for TunnelEvent { tunnel, message, at } in world.drain_tunnels(Ps::MAX) {
                let other = if tunnel == NEAR { FAR } else { NEAR };
                (0..wanted(&message)).for_each(|_| world.deliver(other, at, message.clone()));
            }
        });
    };
    let run = |simulation: &Simulation, us: u64| {
        for _ in 0..us {
            simulation.run(Ps::from_us(1));
            carry(simulation, &|_| 1);
        }
    };
    carry(&simulation, &|_| 1);
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    run(&simulation, 20_000);
    let mut pair = Pair::connect(hcas, &Options::default()).expect("connected");
    let far = pair.ends[1].mr;
    let sge = [pair.ends[0].sge(0, 1024)];
    let counters = |hca| simulation.world(|w, _| w.port_counters(HcaId(hca).into())).expect("counters");
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
    simulation.run(Ps::from_us(5));
    const FLOOD: usize = 100_000;
    carry(&simulation, &|message| if matches!(message, LinkMessage::Packet(_)) { FLOOD } else { 1 });
    let refused = counters(1).rcv_errors as usize;
    assert!(refused > FLOOD * 9 / 10 && refused < FLOOD, "{refused} of {FLOOD} refused");
    // What was taken is executed, and the link works on.
    run(&simulation, 2_000);
    assert!(pair.try_sent(0).is_some_and(|(_, c)| c.status.is_ok()));
    for i in 2..50 {
        pair.send(0, &SendRequest::write(i, &sge, far.address, far.key));
        run(&simulation, 20);
        assert!(pair.try_sent(0).is_some_and(|(_, c)| c.status.is_ok()));
    }
    assert_eq!(counters(1).rcv_errors as usize, refused);
    rig::close(pair);
}

/// What is asked by wire, on a directed route that starts outside; the answers.
fn ask(simulation: &Simulation, tunnel: TunnelId, path: &[u8], count: usize) -> Vec<Mad> {
    // The asker's own node has done the first hop.
    let mad = smp::directed(smp::mad(CLASS_SUBN_DIRECTED, METHOD_GET, attr::NODE_INFO), path);
    let packet = smp::packet(&mad).into_bytes();
    for _ in 0..count {
        simulation.world(|world, now| world.tunnel_receive(now, tunnel, packet.clone()));
    }
    simulation.run(Ps::from_us(500));
    let events = simulation.world(|world, _| world.drain_tunnels(Ps::MAX));
    let answers = events.into_iter().filter_map(|e| match e.message {
        LinkMessage::Packet(packet) => Some(packet.packet.into_bytes()),
        LinkMessage::Credit { .. } | LinkMessage::Light(_) => None,
    });
    let parse = |bytes| {
        let packet = Packet::from_bytes(bytes);
        let (path, _, payload) = packet.parse().expect("a good packet");
        let address = path.ib().expect("addresses");
        assert_eq!((address.vl, address.dlid, address.slid), (smp::VL15, Lid::PERMISSIVE, Lid::PERMISSIVE));
        let mut mad = Mad::new();
        mad.bytes_mut().copy_from_slice(payload);
        mad
    };
    answers.map(parse).collect()
}

/// A subnet manager beyond a tunnel finds a switch and what is behind it, before anything has a LID.
#[test]
fn directed_routes_from_outside() {
    let mut plan = Plan::around(&[2], 1);
    plan.join(port(0, 3), NEAR);
    let simulation = Simulation::new(plan.unmanaged_world(1));
    simulation.world(|world, now| world.tunnel_link(now, NEAR, Some(PortLink::default())));
    simulation.run(Ps::from_ms(20));
    let kind = |answers: Vec<Mad>| match answers[..] {
        [mad] => {
            assert_eq!((mad.get(Mad::STATUS) & 0x7fff, mad.get(Mad::TRANSACTION_ID)), (0, 7));
            (mad.node_info().get(NodeInfo::NODE_TYPE), mad.node_info().get(NodeInfo::LOCAL_PORT_NUM))
        }
        _ => panic!("{} answers", answers.len()),
    };
    assert_eq!(kind(ask(&simulation, NEAR, &[1], 1)), (2, 3), "the switch, asked by its port 3");
    assert_eq!(kind(ask(&simulation, NEAR, &[1, 1], 1)), (1, 1), "the adapter at its port 1");
    assert_eq!(kind(ask(&simulation, NEAR, &[1, 2], 1)), (1, 1));
    assert!(ask(&simulation, NEAR, &[1, 9], 1).is_empty(), "there is no port 9");
    assert!(ask(&simulation, NEAR, &[1, 2, 5], 1).is_empty(), "nothing is behind an adapter");
    // More than the switch keeps for its agent: the rest is counted and dropped.
    let answers = ask(&simulation, NEAR, &[1], 100).len();
    let dropped = simulation.world(|w, _| w.port_counters(port(0, 3))).map_or(0, |c| c.vl15_dropped);
    assert!(answers >= 8 && answers + dropped as usize == 100, "{answers} answers, {dropped} dropped");
    // A port that an agent bounces takes its peer down too, and both train.
    simulation.world(|world, now| world.set_cable(now, 0, false));
    assert!(ask(&simulation, NEAR, &[1, 1], 1).is_empty());
    simulation.world(|world, now| world.set_cable(now, 0, true));
    simulation.run(Ps::from_ms(20));
    assert_eq!(kind(ask(&simulation, NEAR, &[1, 1], 1)), (1, 1));
}

/// The performance agents of an adapter and of a switch answer by wire.
#[test]
fn counters_are_read_by_wire() {
    const QP1_Q_KEY: u32 = 0x8001_0000;
    const GRH: usize = 40;
    let mut fabric = Fabric::new(Plan::around(&[2], 0).world(1), MEMORY, 1 << 20, 64).expect("up");
    fabric.run(&Traffic::new(vec![(0, 1)], 3, 100)).expect("commands");
    let node = &mut fabric.nodes[0];
    let mut qp = rig::datagrams(&mut node.hca, node.pd, (&node.sends, &node.receives), QP1_Q_KEY);
    let mut mad = Mad::new();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_PERF).set(Mad::CLASS_VERSION, 1);
    mad.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::PORT_COUNTERS);
    // The other adapter, which has no queue pair 1; and the switch, which has the third LID.
    for (wr_id, lid, select) in [(0, Lid(2), 1), (1, Lid(3), 2)] {
        mad.bytes_mut()[SMP_DATA + 1] = select;
        node.memory.write(0, mad.bytes());
        let room = Sge { address: node.mr.address + 4096, len: 4096, key: node.mr.key };
        qp.post_recv(10 + wr_id, &[room]).expect("post_recv");
        let sge = [Sge { address: node.mr.address, len: 256, key: node.mr.key }];
        let to = Datagram { qpn: Qpn(1), qkey: QP1_Q_KEY, lid, sl: 0, gid: None };
        let request = SendRequest::new(wr_id, SendOp::Datagram { to, imm: None }, &sge);
        qp.post_send(node.hca.bus_mut(), &request).expect("post_send");
        fabric.simulation.run(Ps::from_us(100));
        let done = node.sends.poll().expect("sent");
        qp.finish(&done);
        let done = node.receives.poll().expect("an answer");
        qp.finish(&done);
        assert_eq!((done.source_qpn, done.source_lid), (Qpn(1), lid));
        let mut bytes = [0; 256];
        node.memory.read(4096 + GRH, &mut bytes);
        let word = |at: usize| be32(&bytes, SMP_DATA + at);
        const RCV_PACKETS: usize = 36;
        const XMIT_PACKETS: usize = 32;
        match select {
            1 => assert!(word(RCV_PACKETS) >= 3),
            _ => assert!(word(XMIT_PACKETS) >= 3),
        }
    }
    assert_eq!(node.hca.port_info(PORT).expect("PortInfo").get(PortInfo::PORT_STATE), port_state::ACTIVE);
    node.hca.destroy_qp(qp).expect("DESTROY_QP");
}
