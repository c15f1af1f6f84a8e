//! Several functions of one adapter: each has its own memory, objects, events and interrupts; chip and ports are shared. A virtual
//! one works while the physical one has it enabled.

use hca_model::{FunctionRef, HcaId, LinkConfig, Ps};
use hca_spec::caps::General;
use hca_spec::cmd::{FunctionIn, QueryHcaCapIn, QueryHcaCapOut, SetHcaCapIn};
use hca_spec::command::{Opcode, Status};
use hca_spec::ids::Qpn;
use hca_spec::mad::PortInfo;
use hca_tests::hosts::{Hosts, wait_active};
use hca_tests::in_process::Simulation;
use hca_tests::worlds;

/// The functions of adapter 0, and the others' first ones.
fn hosts(adapters: usize, links: Vec<LinkConfig>) -> (Hosts, [FunctionRef; 2]) {
    let simulation = Simulation::new(worlds::many(adapters, links, 1));
    let second = simulation.world(|world, _| world.add_function(HcaId(0)).expect("room for a function"));
    let first = FunctionRef::from(HcaId(0));
    let functions = [first, second].into_iter().chain((1..adapters).map(|i| HcaId(i).into()));
    let mut hosts = Hosts::open(simulation, functions);
    hosts.hcas.iter_mut().for_each(|hca| wait_active(hca, 1));
    (hosts, [first, second])
}

fn queue_pairs(hosts: &Hosts, function: FunctionRef) -> u32 {
    hosts.simulation.world(|world, _| world.resources(function).now.qps)
}

/// They have one LID, and queue pairs with different numbers; a write from one to the other goes by loopback.
#[test]
fn functions_talk_to_each_other() {
    let (mut hosts, functions) = hosts(1, Vec::new());
    assert_eq!(hosts.hcas[0].lid(1), hosts.hcas[1].lid(1), "one port");
    let mut pair = hosts.connect([(0, 1), (1, 1)]);
    let [Qpn(a), Qpn(b)] = [0, 1].map(|end: usize| pair[end].qp.number());
    assert_eq!((a >> 22, b >> 22), (0, 1), "a number says whose it is");
    hosts.post(&mut pair, 1);
    assert_eq!(hosts.done(&mut pair, 1), None);
    pair.reverse();
    hosts.post(&mut pair, 2);
    assert_eq!(hosts.done(&mut pair, 2), None);
    assert_eq!(functions.map(|f| queue_pairs(&hosts, f)), [1, 1], "each has its own");
    let counted = functions.map(|f| hosts.simulation.world(|w, _| w.counters(f).expect("a function")));
    let sent = counted.map(|c| (c.adapter.traffic.requests_done, c.qps.len()));
    assert_eq!(sent, [(1, 1), (1, 1)]);
}

/// Both have a connection to another adapter, over the same link and at the same time.
#[test]
fn functions_share_a_link() {
    let link = worlds::between(hca_model::link::Faults::default());
    let (mut hosts, _) = hosts(2, vec![link]);
    let (mut first, mut second) = (hosts.connect([(0, 1), (2, 1)]), hosts.connect([(1, 1), (2, 1)]));
    for round in 0..8 {
        hosts.post(&mut first, 2 * round);
        hosts.post(&mut second, 2 * round + 1);
        assert_eq!(hosts.done(&mut first, 2 * round), None);
        assert_eq!(hosts.done(&mut second, 2 * round + 1), None);
    }
}

/// A reset of the second leaves the first as it is; a reset of the first takes the port along, but nothing of what the
/// second has made.
#[test]
fn a_reset_leaves_the_other_function() {
    let link = worlds::between(hca_model::link::Faults::default());
    let (mut hosts, [first, second]) = hosts(2, vec![link]);
    let mut of_first = hosts.connect([(0, 1), (2, 1)]);
    let mut of_second = hosts.connect([(1, 1), (2, 1)]);
    hosts.post(&mut of_first, 1);
    hosts.post(&mut of_second, 2);
    hosts.simulation.world(|world, now| world.reset(now, second));
    assert_eq!(hosts.done(&mut of_first, 1), None, "it goes on");
    assert_eq!([first, second].map(|f| queue_pairs(&hosts, f)), [1, 0]);
    for round in 3..8 {
        hosts.post(&mut of_first, round);
        assert_eq!(hosts.done(&mut of_first, round), None);
    }

    // The second comes up again.
    let function = second;
    let bus = hosts.simulation.bus(function, hca_tests::rig::HOST_MEMORY);
    let config = hca_driver::Config::default();
    let again = hca_driver::Hca::open(bus, config).expect("the function comes up");
    drop(std::mem::replace(&mut hosts.hcas[1], again));
    let mut of_second = hosts.connect([(1, 1), (2, 1)]);
    hosts.post(&mut of_second, 10);
    assert_eq!(hosts.done(&mut of_second, 10), None);

    hosts.simulation.world(|world, now| world.reset(now, first));
    assert_eq!([first, second].map(|f| queue_pairs(&hosts, f)), [0, 1]);
    let state = hosts.hcas[1].port_info(1).expect("PortInfo").get(PortInfo::PORT_STATE);
    assert_eq!(state, hca_spec::mad::port_state::DOWN, "the port is everybody's");
    hosts.simulation.run(Ps::from_ms(30));
    wait_active(&mut hosts.hcas[1], 1);
    wait_active(&mut hosts.hcas[2], 1);
    hosts.post(&mut of_second, 11);
    assert_eq!(hosts.done(&mut of_second, 11), None, "its queue pair is as it was");
}

/// There are numbers of queue pairs for four functions.
#[test]
fn an_adapter_has_only_so_many_functions() {
    let mut world = worlds::one();
    let added: Vec<bool> = (0..4).map(|_| world.add_function(HcaId(0)).is_some()).collect();
    assert_eq!(added, [true, true, true, false]);
    assert_eq!(world.functions().count(), 4);
    assert_eq!(world.add_function(HcaId(7)), None);
}

/// The physical function's command about the virtual one of that number; what is refused with which status.
fn enable(hosts: &mut Hosts, opcode: Opcode, number: u32) -> Result<(), u8> {
    let mut input = FunctionIn::new();
    input.set(FunctionIn::FUNCTION_ID, number);
    match hosts.hcas[0].execute(opcode, 0, input.bytes().to_vec(), FunctionIn::SIZE) {
        Ok(_) => Ok(()),
        Err(hca_driver::Error::Command { status, .. }) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

/// What the virtual function of number 1 can do at most, as the physical one sees it.
fn most(hosts: &mut Hosts) -> General {
    let mut input = QueryHcaCapIn::new();
    input.set(QueryHcaCapIn::OTHER_FUNCTION, 1).set(QueryHcaCapIn::FUNCTION_ID, 1);
    let input = input.bytes().to_vec();
    let output = hosts.hcas[0].execute(Opcode::QueryHcaCap, 0, input, QueryHcaCapOut::SIZE).unwrap();
    *QueryHcaCapOut::from_prefix_or_zero(&output).general()
}

/// The physical function enables a virtual one and says what it can do; it has connections of its own then, which are gone when it
/// is disabled, or with the physical one.
#[test]
fn a_virtual_function_lives_while_it_is_enabled() {
    let simulation = Simulation::new(worlds::many(2, vec![worlds::between(Default::default())], 1));
    let virtual_function = simulation.world(|world, _| world.add_virtual_function(HcaId(0)).expect("room"));
    let mut hosts = Hosts::open(simulation, [FunctionRef::from(HcaId(0)), HcaId(1).into()]);
    hosts.hcas.iter_mut().for_each(|hca| wait_active(hca, 1));
    let open = |hosts: &Hosts| {
        let bus = hosts.simulation.bus(virtual_function, hca_tests::rig::HOST_MEMORY);
        hca_driver::Hca::open(bus, hca_driver::Config::default())
    };
    let refused = open(&hosts).err().map(|why| why.to_string()).expect("it is not enabled");
    assert!(refused.contains("EnableHca refused: BadSystemState"), "{refused}");

    let mut set = SetHcaCapIn::new();
    set.set(SetHcaCapIn::OTHER_FUNCTION, 1).set(SetHcaCapIn::FUNCTION_ID, 1);
    *set.general_mut() = most(&mut hosts);
    set.general_mut().set(General::LOG_MAX_QP, 3);
    hosts.hcas[0].execute(Opcode::SetHcaCap, 0, set.bytes().to_vec(), 16).expect("SET_HCA_CAP");
    assert_eq!(most(&mut hosts).get(General::LOG_MAX_QP), 3);
    enable(&mut hosts, Opcode::EnableHca, 1).expect("ENABLE_HCA");
    let sees = open(&hosts).expect("the virtual function comes up");
    assert_eq!(sees.caps().get(General::LOG_MAX_QP), 3);
    hosts.hcas.push(sees);
    wait_active(&mut hosts.hcas[2], 1);
    let mut pair = hosts.connect([(2, 1), (1, 1)]);
    hosts.post(&mut pair, 1);
    assert_eq!(hosts.done(&mut pair, 1), None);
    assert_eq!(queue_pairs(&hosts, virtual_function), 1);

    for number in [2, 3, 0x100, 0xffff] {
        assert_eq!(enable(&mut hosts, Opcode::DisableHca, number), Err(Status::BadParam as u8), "{number}");
    }
    assert_eq!(queue_pairs(&hosts, virtual_function), 1);
    enable(&mut hosts, Opcode::DisableHca, 1).expect("DISABLE_HCA");
    hosts.simulation.run(Ps::from_us(1));
    assert_eq!(queue_pairs(&hosts, virtual_function), 0, "taken away");
    assert_eq!(enable(&mut hosts, Opcode::DisableHca, 1), Err(Status::BadSystemState as u8));
    assert!(open(&hosts).is_err());

    enable(&mut hosts, Opcode::EnableHca, 1).expect("again");
    let again = open(&hosts).expect("it comes up again");
    drop(std::mem::replace(&mut hosts.hcas[2], again));
    let mut pair = hosts.connect([(2, 1), (1, 1)]);
    hosts.post(&mut pair, 2);
    assert_eq!(hosts.done(&mut pair, 2), None);
    hosts.simulation.world(|world, now| world.reset(now, HcaId(0)));
    assert_eq!(queue_pairs(&hosts, virtual_function), 0, "gone with the physical function");
    assert!(open(&hosts).is_err());
}
