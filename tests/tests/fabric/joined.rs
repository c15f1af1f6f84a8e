//! One topology as one world and as several: the same events, packets and completions.

use std::cell::RefCell;
use std::rc::Rc;

use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Completion, Cq, CqConfig, Dma, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr, SendOp, SendRequest,
    Sge,
};
use hca_model::link::Faults;
use hca_model::link_layer::Packet;
use hca_model::{HcaId, NodeId, Ps, SwitchId};
use hca_spec::ids::{Lid, Pd};
use hca_spec::mad::{CLASS_SUBN_DIRECTED, METHOD_SET, Mad, PortInfo, SmpData, SwitchInfo, attr, port_state};
use hca_tests::fabric::{Plan, port};
use hca_tests::joined::{Joined, JoinedBus, Outcome, Piece};
use hca_tests::pair::{PORT, pattern};
use hca_tests::smp;

/// Switches in a line, each with so many adapters.
const SWITCHES: usize = 4;
const AT_EACH: usize = 2;
const HCAS: usize = SWITCHES * AT_EACH;
/// Ports of a switch to the one before and the one behind it.
const LEFT: u8 = AT_EACH as u8 + 1;
const RIGHT: u8 = AT_EACH as u8 + 2;
/// Messages of each flow, and their bytes.
const MESSAGES: usize = 3;
const LEN: usize = 10_000;

fn plan(faults: &Faults) -> Plan {
    let mut plan = Plan::around(&[AT_EACH as u8; SWITCHES], 2);
    for switch in 1..SWITCHES {
        plan.join(port(switch - 1, RIGHT), port(switch, LEFT)).faults = faults.clone();
    }
    plan
}

/// A datagram to the agent of a switch, as its neighbour at port 1 would hand it on.
fn set(attribute: u32, modifier: u32, data: &[u8]) -> Packet {
    let mut mad = smp::directed(smp::mad(CLASS_SUBN_DIRECTED, METHOD_SET, attribute), &[1]);
    mad.set(Mad::ATTRIBUTE_MODIFIER, modifier);
    *mad.smp_data_mut() = SmpData::from_prefix_or_zero(data);
    smp::packet(&mad)
}

fn lid(hca: usize) -> Lid {
    Lid(hca as u16 + 1)
}

/// What a subnet manager writes to switch `switch`, in turns.
fn tables(switch: usize) -> Vec<Packet> {
    let mut info = SwitchInfo::new();
    info.set(SwitchInfo::LINEAR_FDB_TOP, HCAS as u32).set(SwitchInfo::LIFE_TIME_VALUE, 18);
    let mut linear = [0xff; 64];
    for hca in 0..HCAS {
        linear[usize::from(lid(hca).0)] = match (hca / AT_EACH).cmp(&switch) {
            std::cmp::Ordering::Less => LEFT,
            std::cmp::Ordering::Equal => (hca % AT_EACH + 1) as u8,
            std::cmp::Ordering::Greater => RIGHT,
        };
    }
    let mut packets = vec![set(attr::SWITCH_INFO, 0, info.bytes()), set(attr::LINEAR_FORWARDING, 0, &linear)];
    let ports = (1..=RIGHT).filter(|p| (*p != LEFT || switch > 0) && (*p != RIGHT || switch + 1 < SWITCHES));
    for state in [port_state::ARMED, port_state::ACTIVE] {
        for port in ports.clone() {
            let mut info = PortInfo::new();
            info.set(PortInfo::NEIGHBOR_MTU, 5).set(PortInfo::OPERATIONAL_VLS, 4);
            info.set(PortInfo::HOQ_LIFE, 18).set(PortInfo::PORT_STATE, state);
            packets.push(set(attr::PORT_INFO, port.into(), info.bytes()));
        }
    }
    packets
}

/// An adapter and what its host has of it.
struct Node {
    hca: Hca<JoinedBus>,
    pd: Pd,
    cqs: [Cq<Piece>; 2],
    memory: Piece,
    mr: Mr,
    qps: Vec<Option<Qp<Piece>>>,
}

impl Node {
    /// `managed`: a subnet manager brings the port up, not the host.
    fn open(joined: &Rc<RefCell<Joined>>, number: usize, managed: bool) -> Self {
        let mut hca = Hca::open(JoinedBus::new(joined, number, 8 << 20), hca_driver::Config::default())
            .expect("the adapter comes up");
        let from = if managed { port_state::ACTIVE } else { port_state::INIT };
        while hca.port_info(PORT).expect("MAD_IFC").get(PortInfo::PORT_STATE) < from {
            hca.bus_mut().wait(None);
        }
        let given = hca.port_info(PORT).expect("MAD_IFC").get(PortInfo::LID);
        assert!(!managed || given == u32::from(lid(number).0), "LID {given}");
        for state in [port_state::ARMED, port_state::ACTIVE].into_iter().filter(|_| !managed) {
            let mut info = hca.port_info(PORT).expect("MAD_IFC");
            info.set(PortInfo::LID, lid(number).0.into()).set(PortInfo::PORT_STATE, state);
            info.set(PortInfo::PORT_PHYSICAL_STATE, 0).set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
            let data = SmpData::from_prefix_or_zero(info.bytes());
            hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), &data).expect("MAD_IFC");
        }
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let cqs = [(); 2].map(|()| hca.create_cq(CqConfig::new(128)).expect("CREATE_CQ"));
        let len = 2 * HCAS * MESSAGES * LEN;
        let memory = hca.bus_mut().dma_alloc(len, 4096).expect("memory");
        let mr = hca.register(pd, &memory, len, Access::ALL).expect("CREATE_MKEY");
        Self { hca, pd, cqs, memory, mr, qps: (0..HCAS).map(|_| None).collect() }
    }

    /// Where message `message` with `peer` is: what goes out lies before what comes in.
    fn offset(peer: usize, message: usize, inward: bool) -> usize {
        ((usize::from(inward) * HCAS + peer) * MESSAGES + message) * LEN
    }

    fn sge(&self, offset: usize) -> [Sge; 1] {
        [Sge { address: self.mr.address + offset as u64, len: LEN as u32, key: self.mr.key }]
    }
}

fn data(from: usize, to: usize, message: usize) -> Vec<u8> {
    pattern((from << 16 | to << 8 | message) as u64, LEN)
}

/// Everyone sends to everyone, at the same moment. Returns what happened, and all completions with their times.
fn run(
    faults: &Faults,
    worlds: usize,
    seed: u64,
    place: impl Fn(NodeId) -> usize,
) -> (Outcome, Vec<(Ps, usize, Completion)>) {
    run_with(faults, (None, false), worlds, seed, place)
}

/// The same; with a key, built-in managers bring the ports up and protect them by it. With trains nobody looks at packets.
fn run_with(
    faults: &Faults,
    (management_key, trains): (Option<u64>, bool),
    worlds: usize,
    seed: u64,
    place: impl Fn(NodeId) -> usize,
) -> (Outcome, Vec<(Ps, usize, Completion)>) {
    let managed = management_key.is_some();
    let mut config = plan(faults).config(1);
    (config.subnet_manager, config.management_key) = (managed, management_key);
    config.profile.set_link_training(Ps::from_us(20));
    // Faults must not depend on the order in which worlds take turns.
    (0..).zip(&mut config.links).for_each(|(i, link)| link.seed = Some(77 + i));
    let joined = match trains {
        false => Joined::new(&config, worlds, seed, place),
        true => Joined::in_trains(&config, worlds, seed, place),
    };
    let joined = Rc::new(RefCell::new(joined));
    joined.borrow_mut().run_until(Ps::from_us(25));
    for turn in 0..tables(0).len().max(tables(1).len()) {
        for switch in 0..SWITCHES {
            if let Some(packet) = tables(switch).get(turn).filter(|_| !managed) {
                joined.borrow_mut().inject(switch, 1, packet.clone());
            }
        }
        let next = joined.borrow().now() + Ps::from_us(30);
        joined.borrow_mut().run_until(next);
    }
    let mut nodes: Vec<Node> = (0..HCAS).map(|i| Node::open(&joined, i, managed)).collect();
    let pairs = || (0..HCAS).flat_map(|a| (0..HCAS).map(move |b| (a, b))).filter(|(a, b)| a != b);
    for (here, there) in pairs() {
        let node = &mut nodes[here];
        let defaults = QpConfig::rc(node.pd, &node.cqs[0], &node.cqs[1]);
        let config = QpConfig { recv_requests: 4, send_blocks: 4, ..defaults };
        node.qps[there] = Some(node.hca.create_qp(&config).expect("CREATE_QP"));
    }
    for (here, there) in pairs() {
        let number = nodes[there].qps[here].as_ref().expect("it was made").number();
        let Node { hca, qps, .. } = &mut nodes[here];
        let qp = qps[there].as_mut().expect("it was made");
        hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
        hca.qp_to_rtr(qp, &RtrAttr { mtu: 4, ..RtrAttr::new(number, Path::lid(lid(there))) }).expect("RTR");
        hca.qp_to_rts(qp, &RtsAttr { timeout: 10, ..RtsAttr::default() }).expect("RTS");
    }
    for (here, there) in pairs() {
        for message in 0..MESSAGES {
            let node = &mut nodes[here];
            node.memory.write(Node::offset(there, message, false), &data(here, there, message));
            let sge = node.sge(Node::offset(there, message, true));
            let qp = node.qps[there].as_mut().expect("it was made");
            qp.post_recv(message as u64, &sge).expect("room");
        }
    }
    for message in 0..MESSAGES {
        for (here, there) in pairs() {
            let node = &mut nodes[here];
            let sge = node.sge(Node::offset(there, message, false));
            let qp = node.qps[there].as_mut().expect("it was made");
            let request = SendRequest::new(message as u64, SendOp::Send { imm: None }, &sge);
            qp.post_send(node.hca.bus_mut(), &request).expect("room");
        }
    }
    let all = 2 * pairs().count() * MESSAGES;
    let mut completions = Vec::new();
    for _ in 0..200_000 {
        let now = joined.borrow().now() + Ps::from_us(1);
        joined.borrow_mut().run_until(now);
        for (i, node) in nodes.iter_mut().enumerate() {
            for cq in &mut node.cqs {
                while let Some(done) = cq.poll() {
                    assert_eq!(done.status, Ok(()), "adapter {i}");
                    let qp = node.qps.iter_mut().flatten().find(|qp| qp.number() == done.qpn);
                    assert!(qp.and_then(|qp| qp.finish(&done)).is_some());
                    completions.push((now, i, done));
                }
            }
        }
        if completions.len() == all {
            break;
        }
    }
    assert_eq!(completions.len(), all);
    for (here, there) in pairs() {
        for message in 0..MESSAGES {
            let mut got = vec![0; LEN];
            nodes[here].memory.read(Node::offset(there, message, true), &mut got);
            assert!(got == data(there, here, message), "message {message} from {there} to {here}");
        }
    }
    // A trunk is pulled out and put in again: both its ends go down and train.
    let trunk = config.links.len() - 1;
    for connected in [false, true] {
        joined.borrow_mut().set_cable(trunk, connected);
        let next = joined.borrow().now() + Ps::from_us(25);
        joined.borrow_mut().run_until(next);
        assert_eq!(joined.borrow().link_is_up(trunk), connected);
    }
    let begun = joined.borrow().trains_begun();
    assert_eq!(begun > 0, trains && worlds > 1, "{begun} trains");
    let outcome = joined.borrow_mut().outcome();
    (outcome, completions)
}

/// In which of so many worlds a node is: whole switches with their adapters first, then adapters on their own.
fn place(worlds: usize, node: NodeId) -> usize {
    match node {
        NodeId::Switch(SwitchId(switch)) => switch * worlds.min(SWITCHES) / SWITCHES,
        NodeId::Hca(HcaId(hca)) if worlds <= SWITCHES || hca % AT_EACH == 0 => {
            place(worlds, NodeId::Switch(SwitchId(hca / AT_EACH)))
        }
        NodeId::Hca(HcaId(hca)) => SWITCHES + hca / AT_EACH,
    }
}

fn equal(faults: &Faults) {
    let one = run(faults, 1, 1, |_| 0);
    let packets: u64 = one.0.packets.values().map(|(_, count)| count).sum();
    assert_eq!((one.0.events.len(), one.0.packets.len()), (HCAS, 2 * HCAS + 2 * (SWITCHES - 1)));
    assert!(packets > 5_000, "{packets}");
    for (worlds, seed) in [(2, 2), (4, 3), (8, 4), (8, 5)] {
        let many = run(faults, worlds, seed, |node| place(worlds, node));
        assert_eq!(many.0, one.0, "{worlds} worlds");
        assert!(many.1 == one.1, "{worlds} worlds: other completions");
    }
    let apart = run(faults, 2, 6, |node| usize::from(matches!(node, NodeId::Switch(_))));
    assert!(apart == one, "adapters here, switches there");
}

/// Equal cables, equal messages, one moment: as many events at the same time as can be, and trunks that everybody wants.
#[test]
fn one_world_and_several_do_the_same() {
    equal(&Faults::default());
}

#[test]
fn one_world_and_several_do_the_same_with_faults() {
    let delay_by = Ps::from_us(2);
    equal(&Faults { loss: 0.01, duplicate: 0.01, delay: 0.05, reorder: 0.01, corrupt: 0.01, delay_by });
}

/// What leaves a world in trains, whose payload is taken out of its host's memory by who carries it on, is what packets are: in no time and no byte
/// there is a difference, also where the memory is the host's again before that.
#[test]
fn trains_leave_worlds_as_packets_do() {
    let apart = |node| match node {
        NodeId::Switch(_) => 0,
        NodeId::Hca(HcaId(hca)) => 1 + hca,
    };
    let one = run_with(&Faults::default(), (None, true), 1, 1, |_| 0);
    assert!(one.0.events.values().all(|(_, count)| *count > 1000) && one.0.packets.is_empty());
    let many = run_with(&Faults::default(), (None, true), 1 + HCAS, 8, apart);
    assert_eq!(many.0, one.0);
    assert!(many.1 == one.1, "other completions");
}

/// The faults are part of what is compared.
#[test]
fn a_difference_is_seen() {
    let (plain, _) = run(&Faults::default(), 1, 1, |_| 0);
    let (lossy, _) = run(&Faults::loss(0.01), 1, 1, |_| 0);
    assert_ne!(plain.packets, lossy.packets);
    assert_ne!(plain.events, lossy.events);
}

/// One manager in each world, and all of them do what one would: one has the switches, the others an adapter each.
#[test]
fn managers_of_all_worlds_bring_the_fabric_up() {
    const KEY: u64 = 0x1234_5678;
    let place = |node| match node {
        NodeId::Switch(_) => 0,
        NodeId::Hca(HcaId(hca)) => 1 + hca,
    };
    run_with(&Faults::default(), (Some(KEY), false), 1 + HCAS, 7, place);
    run_with(&Faults::default(), (Some(KEY), false), 1, 7, |_| 0);
}
