//! The built-in subnet manager and those who would like to be it.

use hca_driver::qp::{Qp, QpConfig};
use hca_driver::{Dma, InitAttr, RtsAttr, SendOp, SendRequest, Sge, wqe::Datagram};
use hca_model::{HcaId, Ps, World, WorldConfig};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::{
    CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, MAD_SIZE, METHOD_GET, METHOD_GET_RESP, METHOD_SET, Mad,
    PortInfo, SmpData, attr, phys_state, port_state,
};
use hca_spec::qpc::{QpState, Qpc, ServiceType};
use hca_tests::fabric::{Fabric, Node, Plan, Traffic, port};
use hca_tests::in_process::ModelMemory;
use hca_tests::pair::PORT;
use hca_tests::smp::{directed, mad, packet};

const MEMORY: usize = 16 << 20;
/// The key of the fabric, and that of a host that would like to own it.
const KEY: u64 = 0x1234_5678_9abc_def1;
const OTHER: u64 = 0x77;

/// Two adapters around a switch.
fn fabric(management_key: Option<u64>) -> Fabric {
    let config = WorldConfig { management_key, ..Plan::around(&[2], 0).config(1) };
    Fabric::new(World::new(config).expect("a valid topology"), MEMORY, 1 << 20, 64).expect("up")
}

/// The first adapter's host sends SubnSet(PortInfo) on a directed route to the other's port, or to the switch (`path`): the
/// port goes down and has a key of the host's.
fn attack(fabric: &Fabric, path: &[u8], key: u64) {
    let mut mad = directed(mad(CLASS_SUBN_DIRECTED, METHOD_SET, attr::PORT_INFO), path);
    mad.set(Mad::M_KEY, key);
    mad.port_info_mut()
        .set(PortInfo::M_KEY, OTHER)
        .set(PortInfo::M_KEY_PROTECT, 2)
        .set(PortInfo::LID, 2)
        .set(PortInfo::MASTER_SM_LID, 1)
        .set(PortInfo::PORT_STATE, port_state::DOWN)
        .set(PortInfo::PORT_PHYSICAL_STATE, phys_state::DISABLED);
    fabric.simulation.world(|world, now| world.inject_packet(now, port(0, 1), packet(&mad)));
    fabric.simulation.run(Ps::from_ms(30));
}

fn victim(fabric: &mut Fabric) -> PortInfo {
    fabric.nodes[1].hca.port_info(PORT).expect("PortInfo")
}

#[test]
fn nobody_sets_the_ports_of_others() {
    let mut fabric = fabric(Some(KEY));
    for (path, key) in [(&[1, 2][..], 0), (&[1, 2], OTHER), (&[1], 0), (&[1], OTHER)] {
        attack(&fabric, path, key);
        let info = victim(&mut fabric);
        assert_eq!(info.get(PortInfo::PORT_STATE), port_state::ACTIVE, "{path:?}");
        assert_eq!((info.get(PortInfo::M_KEY), info.get(PortInfo::LID)), (KEY, 2));
    }
    assert_eq!(victim(&mut fabric).get(PortInfo::M_KEY_VIOLATIONS), 2);
    fabric.run(&Traffic::new(vec![(0, 1), (1, 0)], 3, 100)).expect("commands");
    // Without a key it works: the fabric is open to whoever may send SMPs.
    let mut open = self::fabric(None);
    attack(&open, &[1, 2], 0);
    assert_ne!(victim(&mut open).get(PortInfo::PORT_STATE), port_state::ACTIVE);
}

/// Queue pair 0 of a host.
fn management(node: &mut Node) -> Qp<ModelMemory> {
    datagrams(node, ServiceType::Qp0, 0)
}

/// A queue pair of a host for datagrams.
fn datagrams(node: &mut Node, service: ServiceType, qkey: u32) -> Qp<ModelMemory> {
    let config = QpConfig { service, ..QpConfig::ud(node.pd, &node.sends, &node.receives) };
    let mut qp = node.hca.create_qp(&config).expect("CREATE_QP");
    node.hca.qp_to_init(&mut qp, &InitAttr { qkey, ..InitAttr::default() }).expect("INIT");
    node.hca.ud_to_rtr(&mut qp).expect("RTR");
    node.hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
    qp
}

/// What the switch next to the first adapter answers its host's manager, which asks by this queue pair: its status is that of the attribute.
fn ask_switch(
    fabric: &mut Fabric,
    qp: &mut Qp<ModelMemory>,
    method: u32,
    (attribute, modifier): (u32, u32),
    data: &SmpData,
) -> Mad {
    /// What comes in front of a datagram that is received (IBTA vol 1 11.4.1.2).
    const GRH: usize = 40;
    let mut mad = directed(mad(CLASS_SUBN_DIRECTED, method, attribute), &[1]);
    mad.set(Mad::ATTRIBUTE_MODIFIER, modifier);
    mad.smp_data_mut().bytes_mut().copy_from_slice(data.bytes());
    let node = &mut fabric.nodes[0];
    node.memory.write(0, mad.bytes());
    let room = Sge { address: node.mr.address + 4096, len: 4096, key: node.mr.key };
    qp.post_recv(1, &[room]).expect("post_recv");
    let sge = [Sge { address: node.mr.address, len: MAD_SIZE as u32, key: node.mr.key }];
    let to = Datagram { qpn: Qpn(0), qkey: 0, lid: Lid::PERMISSIVE, sl: 0, gid: None };
    let request = SendRequest::new(2, SendOp::Datagram { to, imm: None }, &sge);
    qp.post_send(node.hca.bus_mut(), &request).expect("post_send");
    fabric.simulation.run(Ps::from_ms(1));
    let node = &mut fabric.nodes[0];
    assert!(node.sends.poll().expect("it is sent").status.is_ok());
    assert!(node.receives.poll().expect("an answer").status.is_ok());
    let mut bytes = [0; MAD_SIZE];
    node.memory.read(4096 + GRH, &mut bytes);
    let answer = Mad::from_prefix_or_zero(&bytes);
    assert_eq!(answer.get(Mad::STATUS) & 0x7fff, 0, "attribute {attribute:#x}");
    answer
}

/// A switch whose port enforces partitions drops what is of none of the port's, on the way in and on the way out, and counts it there (IBTA vol 1
/// 14.2.5.6): a subnet manager says so.
#[test]
fn a_switch_drops_what_is_of_no_partition_of_its_port() {
    let enforcements = [
        (1, PortInfo::PARTITION_ENFORCEMENT_INBOUND, (3, 0)),
        (2, PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, (0, 3)),
    ];
    for (number, enforcement, counted) in enforcements {
        let mut fabric = fabric(None);
        let mut qp = management(&mut fabric.nodes[0]);
        let mut ask = |fabric: &mut Fabric, method, what, data: &SmpData| {
            ask_switch(fabric, &mut qp, method, what, data)
        };
        let partitions = |keys: &[u8]| SmpData::from_prefix_or_zero(keys);
        let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
        fabric.connect(0, 1, 0, 4, &rts).expect("commands");
        let table = (attr::PKEY_TABLE, number << 16);
        ask(&mut fabric, METHOD_SET, table, &partitions(&[0x80, 0x01]));
        fabric.run(&Traffic::new(vec![(0, 1)], 3, 100)).expect("not enforced yet");
        let mut info = ask(&mut fabric, METHOD_GET, (attr::PORT_INFO, number), &SmpData::new());
        info.port_info_mut()
            .set(enforcement, 1)
            .set(PortInfo::PORT_STATE, 0)
            .set(PortInfo::PORT_PHYSICAL_STATE, 0)
            .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        ask(&mut fabric, METHOD_SET, (attr::PORT_INFO, number), info.smp_data());
        let before = fabric.counters(HcaId(1));
        let node = &mut fabric.nodes[0];
        let sge = [Sge { address: node.mr.address, len: 10, key: node.mr.key }];
        let sender = node.qps[1].as_mut().expect("connected");
        sender
            .post_send(node.hca.bus_mut(), &SendRequest::new(7, SendOp::Send { imm: None }, &sge))
            .expect("post_send");
        fabric.simulation.run(Ps::from_ms(50));
        let done = fabric.nodes[0].sends.poll().expect("a completion");
        assert_eq!(done.status.map_err(|f| f.syndrome), Err(Some(Syndrome::TransportRetryExceeded)));
        assert_eq!(fabric.counters(HcaId(1)).rcv_packets, before.rcv_packets, "nothing arrives");
        let c = fabric.counters(port(0, number as u8));
        assert_eq!((c.rcv_constraint_errors, c.xmit_constraint_errors), counted, "once, and twice again");
        // With the partition of the packets in the table they pass.
        ask(&mut fabric, METHOD_SET, table, &partitions(&[0x80, 0x01, 0xff, 0xff]));
        for (node, peer) in [(0, 1), (1, 0)] {
            let node = &mut fabric.nodes[node];
            node.hca.destroy_qp(node.qps[peer].take().expect("connected")).expect("DESTROY_QP");
        }
        fabric.run(&Traffic::new(vec![(0, 1), (1, 0)], 3, 100)).expect("commands");
    }
}

/// The SMPs of a host that may not manage the subnet stay in its adapter; it sees them sent.
#[test]
fn a_host_that_may_not_manage_sends_no_smps() {
    for may_manage in [true, false] {
        let mut config = Plan::around(&[2], 0).config(1);
        config.hcas[0].firmware.may_manage = may_manage;
        let world = World::new(config).expect("a valid topology");
        let mut fabric = Fabric::new(world, MEMORY, 1 << 20, 64).expect("up");
        let node = &mut fabric.nodes[0];
        let mut qp = management(node);
        let mad = mad(CLASS_SUBN_LID_ROUTED, METHOD_GET, attr::NODE_INFO);
        node.memory.write(0, mad.bytes());
        let room = Sge { address: node.mr.address + 4096, len: 4096, key: node.mr.key };
        qp.post_recv(1, &[room]).expect("post_recv");
        let sge = [Sge { address: node.mr.address, len: 256, key: node.mr.key }];
        let to = Datagram { qpn: Qpn(0), qkey: 0, lid: Lid(2), sl: 0, gid: None };
        let request = SendRequest::new(2, SendOp::Datagram { to, imm: None }, &sge);
        qp.post_send(node.hca.bus_mut(), &request).expect("post_send");
        fabric.simulation.run(Ps::from_ms(1));
        let node = &mut fabric.nodes[0];
        let sent = node.sends.poll().expect("it is sent");
        assert!(sent.status.is_ok());
        assert_eq!(node.receives.poll().is_some(), may_manage, "an answer");
        let counters = fabric.simulation.world(|w, _| w.port_counters(HcaId(0).into())).expect("counters");
        assert_eq!(counters.xmit_discards, u32::from(!may_manage));
    }
}

/// QP0 and QP1 of a host take MADs and nothing else, QP0 those of the management lane (IBTA vol 1 13.5.3.1): what another host's queue pairs send
/// beside is dropped before it takes a receive request, and breaks nothing.
#[test]
fn special_queue_pairs_take_management_datagrams_alone() {
    const QP1_KEY: u32 = 0x8001_0000;
    const ROOM: u32 = 40 + MAD_SIZE as u32;
    const MAD: u32 = MAD_SIZE as u32;
    for may_manage in [true, false] {
        let mut config = Plan::around(&[2], 0).config(1);
        config.hcas[0].firmware.may_manage = may_manage;
        let world = World::new(config).expect("a valid topology");
        let mut fabric = Fabric::new(world, MEMORY, 1 << 20, 64).expect("up");
        let node = &mut fabric.nodes[1];
        let mut special = [(ServiceType::Qp0, 0), (ServiceType::Qp1, QP1_KEY)]
            .map(|(service, qkey)| datagrams(node, service, qkey));
        for (at, qp) in special.iter_mut().enumerate() {
            for slot in 0..2 {
                let address = node.mr.address + (at as u64 * 2 + slot) * 512;
                qp.post_recv(slot, &[Sge { address, len: ROOM, key: node.mr.key }]).expect("post_recv");
            }
        }
        let node = &mut fabric.nodes[0];
        let mut ud = datagrams(node, ServiceType::Ud, QP1_KEY);
        let mut manager = management(node);
        // An answer, which no port's agent takes for itself: a manager asked for it.
        node.memory.write(0, mad(CLASS_SUBN_LID_ROUTED, METHOD_GET_RESP, attr::NODE_INFO).bytes());
        let mr = node.mr;
        let send = |fabric: &mut Fabric, qp: &mut Qp<ModelMemory>, len, (qpn, qkey, imm)| {
            let to = Datagram { qpn, qkey, lid: Lid(2), sl: 0, gid: None };
            let sge = [Sge { address: mr.address, len, key: mr.key }];
            let request = SendRequest::new(9, SendOp::Datagram { to, imm }, &sge);
            qp.post_send(fabric.nodes[0].hca.bus_mut(), &request).expect("post_send");
            fabric.simulation.run(Ps::from_ms(1));
            assert!(fabric.nodes[0].sends.poll().expect("it is sent").status.is_ok());
            let received = fabric.nodes[1].receives.poll();
            received.map(|received| (received.qpn, received.status.is_ok()))
        };
        let numbers = special.each_ref().map(Qp::number);
        for len in [MAD, 300, 40] {
            assert_eq!(send(&mut fabric, &mut ud, len, (Qpn(0), 0, None)), None, "{len} bytes to QP0");
            assert_eq!(send(&mut fabric, &mut ud, len, (numbers[0], 0, None)), None, "by its own number");
        }
        for (len, imm) in [(300, None), (40, None), (MAD, Some(1))] {
            let to = (Qpn(1), QP1_KEY, imm);
            assert_eq!(send(&mut fabric, &mut ud, len, to), None, "{len} bytes to QP1");
        }
        for (len, to) in [(300, Qpn(0)), (MAD, Qpn(1)), (MAD, numbers[1])] {
            let heard = send(&mut fabric, &mut manager, len, (to, QP1_KEY, None));
            assert_eq!(heard, None, "{len} bytes to {to} by the management lane");
        }
        for qp in &special {
            let state = fabric.nodes[1].hca.query_qp(qp).expect("QUERY_QP").get(Qpc::STATE);
            assert_eq!(state, QpState::Rts as u32);
        }
        // What is right comes, whatever its Q_Key if it is for QP0.
        let (qp0, qp1) = (Some((numbers[0], true)).filter(|_| may_manage), Some((numbers[1], true)));
        for key in [0, 5] {
            assert_eq!(send(&mut fabric, &mut manager, MAD, (Qpn(0), key, None)), qp0, "Q_Key {key}");
        }
        assert_eq!(send(&mut fabric, &mut ud, MAD, (Qpn(1), QP1_KEY, None)), qp1);
    }
}

/// A host that sets its own port by its firmware, which asks for no key, is set right.
#[test]
fn what_a_host_sets_at_its_own_port_is_set_right() {
    let mut fabric = fabric(Some(KEY));
    let hca = &mut fabric.nodes[0].hca;
    let own = hca.smp_get(PORT, attr::PORT_INFO, PORT.into()).expect("PortInfo");
    assert_eq!(own.port_info().get(PortInfo::LID), 1);
    let mut changed = own;
    changed
        .port_info_mut()
        .set(PortInfo::LID, 2)
        .set(PortInfo::MASTER_SM_LID, 9)
        .set(PortInfo::M_KEY, OTHER)
        .set(PortInfo::PORT_STATE, 0)
        .set(PortInfo::PORT_PHYSICAL_STATE, 0)
        .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
    hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), changed.smp_data()).expect("firmware does as it is told");
    fabric.simulation.run(Ps::from_ms(1));
    let info = fabric.nodes[0].hca.port_info(PORT).expect("PortInfo");
    assert_eq!((info.get(PortInfo::LID), info.get(PortInfo::M_KEY)), (1, KEY));
    fabric.run(&Traffic::new(vec![(0, 1), (1, 0)], 3, 100)).expect("commands");
}

/// A host that leads a service level to the management lane gets nothing onto it (IBTA vol 1 7.6.6).
#[test]
fn no_service_level_leads_to_the_management_lane() {
    const LEVEL: u8 = 3;
    let mut config = Plan::around(&[2], 0).config(1);
    config.hcas[0].firmware.may_manage = false;
    let world = World::new(config).expect("a valid topology");
    let mut fabric = Fabric::new(world, MEMORY, 1 << 20, 64).expect("up");
    let node = &mut fabric.nodes[0];
    let mut lanes = SmpData::new();
    lanes.bytes_mut()[usize::from(LEVEL / 2)] = 0x0f;
    node.hca.smp_set(PORT, attr::SL_TO_VL, 0, &lanes).expect("SLtoVLMappingTable");
    let config = QpConfig::ud(node.pd, &node.sends, &node.receives);
    let mut qp = node.hca.create_qp(&config).expect("CREATE_QP");
    node.hca.qp_to_init(&mut qp, &InitAttr::default()).expect("INIT");
    node.hca.ud_to_rtr(&mut qp).expect("RTR");
    node.hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
    let counters = |fabric: &Fabric, hca| {
        fabric.simulation.world(|w, _| w.port_counters(HcaId(hca).into())).expect("counters")
    };
    let before = counters(&fabric, 1).rcv_packets;
    let node = &mut fabric.nodes[0];
    let sge = [Sge { address: node.mr.address, len: 256, key: node.mr.key }];
    for (i, (sl, discards)) in [(LEVEL, 1), (0, 1), (LEVEL, 2)].into_iter().enumerate() {
        let to = Datagram { qpn: Qpn(0), qkey: 0, lid: Lid(2), sl, gid: None };
        let request = SendRequest::new(i as u64, SendOp::Datagram { to, imm: None }, &sge);
        let node = &mut fabric.nodes[0];
        qp.post_send(node.hca.bus_mut(), &request).expect("post_send");
        fabric.simulation.run(Ps::from_ms(1));
        assert!(fabric.nodes[0].sends.poll().expect("it is sent").status.is_ok());
        assert_eq!(counters(&fabric, 0).xmit_discards, discards, "service level {sl}");
    }
    assert_eq!(counters(&fabric, 1).rcv_packets - before, 1, "the one of level 0");
}

/// A sweep over a hundred switches is many events: whoever takes a cable out holds nobody.
#[test]
fn a_large_fabric_is_swept_in_pieces() {
    const SWITCHES: usize = 100;
    let mut plan = Plan::default();
    for switch in 0..SWITCHES {
        plan.switches.push(3);
        if switch > 0 {
            plan.join(port(switch - 1, 2), port(switch, 1));
        }
        if [0, SWITCHES / 2, SWITCHES - 1].contains(&switch) {
            plan.join(HcaId(plan.hcas), port(switch, 3));
            plan.hcas += 1;
        }
    }
    let world = World::new(plan.config(1)).expect("a valid topology");
    let mut fabric = Fabric::new(world, MEMORY, 1 << 20, 64).expect("up");
    fabric.run(&Traffic::new(vec![(0, 2), (2, 0)], 3, 100)).expect("commands");
    let steps = fabric.simulation.world(|world, now| {
        let link = world.link_of(port(SWITCHES / 2, 3)).expect("a cable");
        world.set_cable(now, link, false);
        let (mut at, mut steps, mut most) = (Ps::ZERO, 0, 0);
        while !world.advance_within(now + Ps::from_us(50), |_: &World| false) {
            steps = if world.now() == at { steps + 1 } else { 1 };
            at = world.now();
            most = most.max(steps);
        }
        most
    });
    assert!(steps > 3, "{steps} events");
    // The others still reach each other.
    fabric.run(&Traffic::new(vec![(0, 2), (2, 0)], 4, 100)).expect("commands");
}
