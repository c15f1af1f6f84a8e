use hca_spec::caps::object_type;
use hca_spec::cmd::{CreateQpIn, GeneralObjectIn, ModifyQpExtIn, ModifyQpIn, QueryQpIn, QueryQpOut};
use hca_spec::command::Opcode;
use hca_spec::layout::Field;
use hca_spec::qpc::{Qpc, QpcExt, ServiceType, opt_95_32};

use super::*;
use crate::commands::testing::{Answer, Bench};
use crate::personality::{Personality, PortKind};
use crate::profile::Config;

fn bench() -> Bench {
    let personality = Personality::named("connectx6dx").expect("it is there");
    let port_kind = PortKind::Ethernet;
    Bench::initialized_with(Config { personality, port_kind, ..Config::default() })
}

/// An input of a command about an object of that type.
fn about<const N: usize>(mut bytes: [u8; N], kind: u32, id: u32) -> [u8; N] {
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_TYPE, kind).set(GeneralObjectIn::OBJ_ID, id);
    bytes[..8].copy_from_slice(&head.bytes()[..8]);
    bytes[8..12].copy_from_slice(&head.bytes()[8..12]);
    bytes
}

fn send(b: &mut Bench, op: Opcode, id: u32, element: &SchedulingElement) -> Answer {
    let input = about(*element.bytes(), object_type::SCHEDULING_ELEMENT, id);
    let input = SchedulingElement::from_prefix_or_zero(&input);
    b.put(op, &input, SchedulingElement::SIZE)
}

fn node(kind: u32, parent: u32) -> SchedulingElement {
    let mut input = SchedulingElement::new();
    input.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    input.set(SchedulingElement::ELEMENT_TYPE, kind).set(SchedulingElement::PARENT_ELEMENT_ID, parent);
    input
}

fn create(b: &mut Bench, element: &SchedulingElement) -> (Status, u32) {
    let answer = send(b, Opcode::CreateGeneralObject, 0, element);
    let number = if answer.status() == Status::Ok { answer.number() } else { 0 };
    (answer.status(), number)
}

fn found(b: &mut Bench, id: u32, field: Field<SchedulingElement>) -> u32 {
    let answer = send(b, Opcode::QueryGeneralObject, id, &SchedulingElement::new());
    assert_eq!(answer.status(), Status::Ok);
    SchedulingElement::from_prefix_or_zero(&answer.output).get(field)
}

#[test]
fn life_of_a_tree() {
    let mut b = bench();
    let (_, root) = create(&mut b, &node(element::TSAR, 0));
    let mut limited = node(element::TSAR, root);
    limited.set(SchedulingElement::MAX_AVERAGE_BW, 10).set(SchedulingElement::BW_SHARE, 2);
    let (status, middle) = create(&mut b, &limited);
    assert_eq!(status, Status::Ok);
    let (_, leaf) = create(&mut b, &node(element::QUEUE_GROUP, middle));
    assert_eq!(found(&mut b, middle, SchedulingElement::MAX_AVERAGE_BW), 10);
    assert_eq!(found(&mut b, middle, SchedulingElement::PARENT_ELEMENT_ID), root);
    assert_eq!(found(&mut b, leaf, SchedulingElement::ELEMENT_TYPE), element::QUEUE_GROUP);
    // Only what the mask names changes.
    let mut change = node(element::TSAR, 0);
    change.set(SchedulingElement::MAX_AVERAGE_BW, 4).set(SchedulingElement::BW_SHARE, 9);
    change.set(SchedulingElement::MODIFY_FIELD_SELECT, field::MAX_AVERAGE_BW);
    assert_eq!(send(&mut b, Opcode::ModifyGeneralObject, middle, &change).status(), Status::Ok);
    assert_eq!(found(&mut b, middle, SchedulingElement::MAX_AVERAGE_BW), 4);
    assert_eq!(found(&mut b, middle, SchedulingElement::BW_SHARE), 2);
    let rates: Vec<u32> = b.fw.icm.elements(leaf).map(|(_, element)| element.rate).collect();
    assert_eq!(rates, [0, 4, 0], "from the leaf to the root");
    let destroy = |b: &mut Bench, id| send(b, Opcode::DestroyGeneralObject, id, &SchedulingElement::new());
    assert_eq!(destroy(&mut b, root).status(), Status::BadResourceState, "a node is below it");
    for id in [leaf, middle, root] {
        assert_eq!(destroy(&mut b, id).status(), Status::Ok);
        assert_eq!(destroy(&mut b, id).status(), Status::BadResource);
    }
}

#[test]
fn refusals() {
    let mut b = bench();
    let (_, root) = create(&mut b, &node(element::TSAR, 0));
    let (_, leaf) = create(&mut b, &node(element::QUEUE_GROUP, root));
    let with = |change: fn(&mut SchedulingElement)| {
        let mut input = node(element::TSAR, 0);
        change(&mut input);
        input
    };
    for (input, expected) in [
        (node(1, root), Status::BadParam),
        (node(element::QUEUE_GROUP, 0), Status::BadParam),
        (node(element::TSAR, leaf), Status::BadResource),
        (node(element::TSAR, 777), Status::BadResource),
        (with(|i| _ = i.set(SchedulingElement::SCHEDULING_HIERARCHY, 2)), Status::BadParam),
        (with(|i| _ = i.set(SchedulingElement::TSAR_TYPE, 1)), Status::BadParam),
    ] {
        assert_eq!(create(&mut b, &input).0, expected);
    }
    // A packet looks at few elements.
    let mut below = root;
    for _ in 2..MOST_LEVELS {
        below = create(&mut b, &node(element::TSAR, below)).1;
    }
    assert_eq!(create(&mut b, &node(element::TSAR, below)).0, Status::BadParam);
    let (status, deepest) = create(&mut b, &node(element::QUEUE_GROUP, below));
    assert_eq!((status, b.fw.icm.elements(deepest).count()), (Status::Ok, MOST_LEVELS));
    let mut change = node(element::TSAR, 0);
    assert_eq!(send(&mut b, Opcode::ModifyGeneralObject, leaf, &change).status(), Status::BadParam);
    change.set(SchedulingElement::MODIFY_FIELD_SELECT, 4);
    assert_eq!(send(&mut b, Opcode::ModifyGeneralObject, root, &change).status(), Status::BadParam);
    // A sampler's number or QP numbers are none of it.
    let mut other = SchedulingElement::new();
    let bytes = about(*other.bytes(), object_type::AV_QP_MAPPING, root);
    other = SchedulingElement::from_prefix_or_zero(&bytes);
    assert_eq!(b.put(Opcode::QueryGeneralObject, &other, 0x90).status(), Status::BadResource);
}

fn of_command(kind: u32, parent: u32, hierarchy: u32) -> CreateSchedulingElementIn {
    let mut input = CreateSchedulingElementIn::new();
    input.set(CreateSchedulingElementIn::SCHEDULING_HIERARCHY, hierarchy);
    let context = input.context_mut();
    context.set(SchedulingContext::ELEMENT_TYPE, kind).set(SchedulingContext::PARENT_ELEMENT_ID, parent);
    context.set(SchedulingContext::BW_SHARE, 7).set(SchedulingContext::MAX_AVERAGE_BW, 500);
    input
}

fn create_by_command(b: &mut Bench, kind: u32, parent: u32) -> (Status, u32) {
    let answer = b.put(Opcode::CreateSchedulingElement, &of_command(kind, parent, HIERARCHY_NIC), 0x40);
    let out = CreateSchedulingElementOut::from_prefix_or_zero(&answer.output);
    (answer.status(), out.get(CreateSchedulingElementOut::SCHEDULING_ELEMENT_ID))
}

fn ask(b: &mut Bench, op: Opcode, number: u32) -> Answer {
    let mut input = SchedulingElementIn::new();
    input.set(SchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    input.set(SchedulingElementIn::SCHEDULING_ELEMENT_ID, number);
    b.put(op, &input, QuerySchedulingElementOut::SIZE)
}

/// The commands of elements are about the same ones as those of general objects, and refuse the same.
#[test]
fn commands_of_their_own() {
    let mut b = bench();
    let (_, root) = create_by_command(&mut b, element::TSAR, 0);
    let (_, leaf) = create_by_command(&mut b, element::QUEUE_GROUP, root);
    let (status, other) = create(&mut b, &node(element::QUEUE_GROUP, root));
    assert_eq!((status, b.fw.icm.queue_groups), (Status::Ok, 2));
    assert_eq!(found(&mut b, leaf, SchedulingElement::MAX_AVERAGE_BW), 500);
    let told = |b: &mut Bench, number| {
        let answer = ask(b, Opcode::QuerySchedulingElement, number);
        *QuerySchedulingElementOut::from_prefix_or_zero(&answer.output).context()
    };
    let context = told(&mut b, leaf);
    assert_eq!(context, *of_command(element::QUEUE_GROUP, root, HIERARCHY_NIC).context());
    assert_eq!(told(&mut b, other).get(SchedulingContext::PARENT_ELEMENT_ID), root);
    // What drivers send does not say what the element is.
    let mut modify = ModifySchedulingElementIn::new();
    modify.set(ModifySchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    modify.set(ModifySchedulingElementIn::SCHEDULING_ELEMENT_ID, leaf);
    modify.set(ModifySchedulingElementIn::MODIFY_BITMASK, field::MAX_AVERAGE_BW as u32);
    modify.context_mut().set(SchedulingContext::MAX_AVERAGE_BW, 9).set(SchedulingContext::BW_SHARE, 1);
    assert_eq!(b.put(Opcode::ModifySchedulingElement, &modify, 16).status(), Status::Ok);
    let context = told(&mut b, leaf);
    let values = (context.get(SchedulingContext::MAX_AVERAGE_BW), context.get(SchedulingContext::BW_SHARE));
    assert_eq!(values, (9, 7));
    for bit in 0..u32::BITS {
        modify.set(ModifySchedulingElementIn::MODIFY_BITMASK, 1 << bit | 1);
        let status = b.put(Opcode::ModifySchedulingElement, &modify, 16).status();
        let known = (field::BW_SHARE | field::MAX_AVERAGE_BW) >> bit & 1 == 1;
        assert_eq!(status == Status::Ok, known, "bit {bit}");
        if !known {
            assert_eq!(status, Status::BadParam);
        }
    }
    assert_eq!(told(&mut b, leaf).get(SchedulingContext::BW_SHARE), 1);
    modify.set(ModifySchedulingElementIn::SCHEDULING_ELEMENT_ID, 0x999);
    assert_eq!(b.put(Opcode::ModifySchedulingElement, &modify, 16).status(), Status::BadResource);
    for (kind, parent, hierarchy, expected) in [
        (element::TSAR, 0, 2, Status::BadParam),
        (1, root, HIERARCHY_NIC, Status::BadParam),
        (element::QUEUE_GROUP, 0, HIERARCHY_NIC, Status::BadParam),
        (element::QUEUE_GROUP, leaf, HIERARCHY_NIC, Status::BadResource),
    ] {
        let input = of_command(kind, parent, hierarchy);
        assert_eq!(b.put(Opcode::CreateSchedulingElement, &input, 0x40).status(), expected);
    }
    // Other general objects are no elements.
    let rc = b.connection();
    let mut mapping = AvQpMapping::new();
    mapping.set(AvQpMapping::QPN, rc.qp);
    let mapping = about(*mapping.bytes(), object_type::AV_QP_MAPPING, 0);
    let mapping = AvQpMapping::from_prefix_or_zero(&mapping);
    let mapping = b.put(Opcode::CreateGeneralObject, &mapping, AvQpMapping::SIZE).number();
    for op in [Opcode::QuerySchedulingElement, Opcode::DestroySchedulingElement] {
        assert_eq!(ask(&mut b, op, mapping).status(), Status::BadResource);
    }
    let destroy = |b: &mut Bench, number| ask(b, Opcode::DestroySchedulingElement, number).status();
    assert_eq!(destroy(&mut b, root), Status::BadResourceState, "groups are below it");
    for number in [leaf, other, root] {
        assert_eq!(destroy(&mut b, number), Status::Ok);
        assert_eq!(destroy(&mut b, number), Status::BadResource);
    }
    assert_eq!(b.fw.icm.queue_groups, 0);
}

/// There are as many groups as the capability says, and what is left behind goes with the driver.
#[test]
fn as_many_groups_as_announced_and_those_that_take_their_places() {
    let mut b = bench();
    let log = b.fw.personality().capabilities.ethernet.qos.get(Qos::LOG_MAX_QOS_NIC_QUEUE_GROUP);
    assert_eq!(log, LOG_MAX_QUEUE_GROUPS);
    let (_, root) = create_by_command(&mut b, element::TSAR, 0);
    let mut last = 0;
    for _ in 0..2 << log {
        let (status, group) = create_by_command(&mut b, element::QUEUE_GROUP, root);
        assert!(status == Status::Ok && group <= 0xffff, "send queues name it with 16 bits");
        last = group;
    }
    assert_eq!(create_by_command(&mut b, element::QUEUE_GROUP, root).0, Status::ExceedLimit);
    assert_eq!(create(&mut b, &node(element::QUEUE_GROUP, root)).0, Status::ExceedLimit);
    assert_eq!(create_by_command(&mut b, element::TSAR, root).0, Status::Ok, "nodes are not counted");
    assert_eq!(ask(&mut b, Opcode::DestroySchedulingElement, last).status(), Status::Ok);
    assert_eq!(create_by_command(&mut b, element::QUEUE_GROUP, root).0, Status::Ok);
    b.ok(Opcode::TeardownHca, 0);
    assert_eq!(b.fw.icm.queue_groups, 0);
}

/// The adapters that announce no groups have no commands of them.
#[test]
fn others_have_no_elements() {
    for (kind, port_kind) in [("connectx5", PortKind::Ethernet), ("connectx6dx", PortKind::InfiniBand)] {
        let personality = Personality::named(kind).expect("a kind");
        let mut b = Bench::initialized_with(Config { personality, port_kind, ..Config::default() });
        assert_eq!(create_by_command(&mut b, element::TSAR, 0).0, Status::BadOp, "{kind}");
    }
}

/// Queue pairs come into groups and out of them, and tell of it.
#[test]
fn queue_pairs_in_groups() {
    let mut b = bench();
    let rc = b.connection();
    let (_, root) = create(&mut b, &node(element::TSAR, 0));
    let (_, leaf) = create(&mut b, &node(element::QUEUE_GROUP, root));
    let modify = |b: &mut Bench, op, ext: bool, groups: [u32; 2]| {
        let mut m = ModifyQpIn::new();
        m.set(ModifyQpIn::QPN, rc.qp).set(ModifyQpIn::OPT_PARAM_MASK_95_32, opt_95_32::QOS_QUEUE_GROUP_ID);
        let ctx = m.qpc_mut();
        ctx.set(Qpc::PD, rc.pd).set(Qpc::CQN_SND, rc.cq).set(Qpc::CQN_RCV, rc.cq);
        ctx.primary_path_mut().set(hca_spec::qpc::AddressPath::VHCA_PORT_NUM, 1);
        let mut all = ModifyQpExtIn::from_prefix_or_zero(m.bytes());
        all.set(ModifyQpExtIn::QPC_EXT, ext.into());
        all.ext_mut().set(QpcExt::QOS_QUEUE_GROUP_ID_REQUESTER, groups[0]);
        all.ext_mut().set(QpcExt::QOS_QUEUE_GROUP_ID_RESPONDER, groups[1]);
        b.put(op, &all, 16).status()
    };
    assert_eq!(modify(&mut b, Opcode::Rst2InitQp, false, [0; 2]), Status::Ok);
    let init = Opcode::Init2InitQp;
    assert_eq!(modify(&mut b, init, false, [leaf, leaf]), Status::BadParam, "no extension");
    assert_eq!(modify(&mut b, init, true, [root, 0]), Status::BadResource, "a node is no group");
    assert_eq!(modify(&mut b, init, true, [leaf, leaf]), Status::Ok);
    let groups = |b: &mut Bench| {
        let mut query = QueryQpIn::new();
        query.set(QueryQpIn::QPN, rc.qp).set(QueryQpIn::QPC_EXT, 1);
        let answer = b.put(Opcode::QueryQp, &query, 0x400);
        let ext = QpcExt::from_prefix_or_zero(answer.output.get(QueryQpOut::SIZE..).unwrap_or_default());
        [QpcExt::QOS_QUEUE_GROUP_ID_REQUESTER, QpcExt::QOS_QUEUE_GROUP_ID_RESPONDER].map(|f| ext.get(f))
    };
    assert_eq!(groups(&mut b), [leaf, leaf]);
    let destroy =
        |b: &mut Bench| send(b, Opcode::DestroyGeneralObject, leaf, &SchedulingElement::new()).status();
    assert_eq!(destroy(&mut b), Status::BadResourceState);
    assert_eq!(modify(&mut b, init, true, [leaf, 0]), Status::Ok);
    b.ok(Opcode::ToRstQp, rc.qp);
    assert_eq!((groups(&mut b), destroy(&mut b)), ([0, 0], Status::Ok));
}

/// Streams of initiators are as many as the capabilities say, and none is taken out of an error that it is not in.
#[test]
fn streams_of_initiators() {
    let mut b = bench();
    let rc = b.connection();
    let create = |b: &mut Bench, streams: u32, errored: u32| {
        let mut c = CreateQpIn::new();
        *c.qpc_mut() = rc.qpc(ServiceType::Dci);
        c.qpc_mut().set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, streams);
        c.qpc_mut().set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, errored);
        b.put_list(Opcode::CreateQp, &c, &[0x4000])
    };
    for (streams, errored) in [(6, 1), (1, 6)] {
        assert_eq!(create(&mut b, streams, errored).status(), Status::BadParam);
    }
    let qp = create(&mut b, 5, 5).number();
    b.fw.icm.qps.get_mut(qp).unwrap().ctx.set(Qpc::STATE, hca_spec::qpc::QpState::Rts as u32);
    b.fw.icm.qps.get_mut(qp).unwrap().errored_streams.insert(0x1234);
    let mut m = ModifyQpIn::new();
    m.set(ModifyQpIn::QPN, qp).set(ModifyQpIn::OPT_PARAM_MASK_95_32, opt_95_32::DCI_STREAM_CHANNEL_ID);
    let ctx = m.qpc_mut();
    ctx.set(Qpc::PD, rc.pd).set(Qpc::CQN_SND, rc.cq).set(Qpc::CQN_RCV, rc.cq);
    let mut all = ModifyQpExtIn::from_prefix_or_zero(m.bytes());
    all.set(ModifyQpExtIn::QPC_EXT, 1);
    for (stream, expected) in
        [(0x1235, Status::BadResourceState), (0x1234, Status::Ok), (0x1234, Status::BadResourceState)]
    {
        all.ext_mut().set(QpcExt::DCI_STREAM_CHANNEL_ID, stream);
        assert_eq!(b.put(Opcode::Rts2RtsQp, &all, 16).status(), expected, "{stream:#x}");
    }
}

#[test]
fn mappings_of_address_vectors() {
    let mut b = bench();
    let rc = b.connection();
    let mut input = AvQpMapping::new();
    input.set(AvQpMapping::QPN, rc.qp);
    input.vector_mut().set(hca_spec::wqe::Datagram::RGID_L, 7);
    let send = |b: &mut Bench, op, id, input: &AvQpMapping| {
        let bytes = about(*input.bytes(), object_type::AV_QP_MAPPING, id);
        b.put(op, &AvQpMapping::from_prefix_or_zero(&bytes), AvQpMapping::SIZE)
    };
    let id = send(&mut b, Opcode::CreateGeneralObject, 0, &input).number();
    let answer = send(&mut b, Opcode::QueryGeneralObject, id, &AvQpMapping::new());
    let told = AvQpMapping::from_prefix_or_zero(&answer.output);
    assert_eq!((told.get(AvQpMapping::QPN), told.vector()), (rc.qp, input.vector()));
    // The queue pair may go first.
    b.ok(Opcode::DestroyQp, rc.qp);
    assert_eq!(send(&mut b, Opcode::ModifyGeneralObject, id, &input).status(), Status::BadParam);
    assert_eq!(send(&mut b, Opcode::CreateGeneralObject, 0, &input).status(), Status::BadResource);
    for expected in [Status::Ok, Status::BadResource] {
        assert_eq!(send(&mut b, Opcode::DestroyGeneralObject, id, &input).status(), expected);
    }
}
