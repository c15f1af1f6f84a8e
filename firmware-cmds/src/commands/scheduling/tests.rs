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
