//! Valid command inputs: what the fuzzers bring an adapter up with, and what they change bytes in. All come from the
//! templates of the firmware's table of commands.

use hca_firmware::commands::{Command, Fixture, TABLE, TimeClass, find};
use hca_firmware::object::Kind;
use hca_spec::caps::object_type;
use hca_spec::cmd::{
    AccessRegIn, CreateEqIn, CreateMkeyIn, CreateQpIn, FunctionIn, GeneralObjectIn, MadIfc, ModifyQpIn,
    PAGES_BOOT, PAGES_INIT, PAGES_TAKE, reg,
};
use hca_spec::command::{InHeader, Opcode};
use hca_spec::mad::{METHOD_SET, Mad, attr};
use hca_spec::mkc::{AccessMode, Klm, Mkc};
use hca_spec::put_be32;
use hca_spec::qpc::{OFFLOAD_RENDEZVOUS, Qpc, RqType, ServiceType};
use hca_spec::queue::Eqc;
use hca_spec::sched::{HIERARCHY_NIC, SchedulingElement, field};

use super::feed::Feed;
use super::memory;
use super::objects::{Objects, QueuePair};

/// log2 of the entries of receive queues.
pub const LOG_RECV: u32 = Fixture::LOG_RECV;
/// log2 of the basic blocks of send queues.
pub const LOG_SEND: u32 = Fixture::LOG_SEND;
/// Access key of the DC target.
pub const DC_KEY: u64 = Fixture::DC_KEY;
/// Q_Key of the datagram queue pairs.
pub const Q_KEY: u32 = Fixture::Q_KEY;

/// The row of a command.
fn row(opcode: Opcode) -> &'static Command {
    find(opcode).expect("the adapter has every command that the fuzzers build on")
}

/// The row of the command of an input, if it has a known one.
pub fn row_of(input: &[u8]) -> Option<&'static Command> {
    let opcode = InHeader::from_prefix_or_zero(input).get(InHeader::OPCODE) as u16;
    Opcode::from_u16(opcode).and_then(find)
}

/// Memory for a queue and its record, and pages that the firmware does not have yet.
pub(super) fn fixture(queue: u64, record: u64) -> Fixture {
    Fixture::new(queue, record, memory::FIRMWARE_PAGES + 0x1000 * memory::PAGE)
}

/// Puts a changed layout back into an input.
fn put(mut input: Vec<u8>, fixed: &[u8]) -> Vec<u8> {
    input[..fixed.len()].copy_from_slice(fixed);
    input
}

/// The template of a command.
pub(super) fn of(opcode: Opcode, fixture: &Fixture) -> Vec<u8> {
    row(opcode).template(fixture)
}

fn with_modifier(mut input: Vec<u8>, op_mod: u32) -> Vec<u8> {
    put_be32(&mut input, InHeader::OP_MOD.offset(), op_mod);
    input
}

/// A command whose only input is an object's number.
pub fn object(opcode: Opcode, number: u32) -> Vec<u8> {
    let command = row(opcode);
    let mut fixture = Fixture::default();
    if let Some(object) = command.object {
        fixture.set(object.kind, number);
    }
    command.template(&fixture)
}

/// QUERY_PAGES, "boot" or "init".
pub fn query_pages(boot: bool) -> Vec<u8> {
    let input = row(Opcode::QueryPages).template(&Fixture::default());
    with_modifier(input, if boot { PAGES_BOOT } else { PAGES_INIT })
}

/// MANAGE_PAGES: gives `count` pages from number `first` on.
pub fn give_pages(first: u64, count: u32) -> Vec<u8> {
    let mut input = row(Opcode::ManagePages).template(&Fixture::default());
    input.truncate(FunctionIn::SIZE);
    put_be32(&mut input, FunctionIn::INPUT_NUM_ENTRIES.offset(), count);
    let list = (first..first + u64::from(count)).map(|n| memory::FIRMWARE_PAGES + n * memory::PAGE);
    input.extend(list.flat_map(u64::to_be_bytes));
    input
}

/// CREATE_EQ with the events of `mask`.
pub fn create_eq(uar: u32, vector: u32, mask: u64, page: u64) -> Vec<u8> {
    let input = row(Opcode::CreateEq).template(fixture(page, 0).set(Kind::Uar, uar));
    let mut create = CreateEqIn::from_prefix_or_zero(&input);
    create.eqc_mut().set(Eqc::INTR, vector);
    create.set(CreateEqIn::EVENT_BITMASK_0, mask);
    put(input, create.bytes())
}

/// CREATE_CQ.
pub fn create_cq(uar: u32, eqn: u32, page: u64, record: u64) -> Vec<u8> {
    row(Opcode::CreateCq).template(fixture(page, record).set(Kind::Uar, uar).set(Kind::Eq, eqn))
}

/// Kinds of memory keys that the fuzzers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Bus addresses as they are.
    Physical,
    /// The data area, page by page.
    Pages,
    /// Room for translations, to be filled by UMR.
    Free,
    /// Two pieces of the `Pages` key with that full key.
    Pieces(u32),
}

/// CREATE_MKEY.
pub fn create_mkey(pd: u32, kind: Key) -> Vec<u8> {
    let mut input = row(Opcode::CreateMkey).template(Fixture::default().set(Kind::Pd, pd));
    let mut create = CreateMkeyIn::from_prefix_or_zero(&input);
    let mut list = Vec::new();
    let mkc = create.mkc_mut();
    mkc.set(Mkc::EN_RINVAL, 1).set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 0);
    mkc.set(Mkc::START_ADDR, memory::DATA).set(Mkc::LEN, memory::DATA_LEN).set(Mkc::LOG_PAGE_SIZE, 12);
    match kind {
        Key::Physical => {
            mkc.set_access_mode(AccessMode::Pa).set(Mkc::LENGTH64, 1);
        }
        Key::Pages => {
            mkc.set_access_mode(AccessMode::Mtt);
            list.extend((0..memory::DATA_LEN / memory::PAGE).map(|i| memory::DATA + i * memory::PAGE));
        }
        Key::Free => {
            mkc.set_access_mode(AccessMode::Mtt).set(Mkc::FREE, 1).set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 64);
        }
        Key::Pieces(key) => {
            mkc.set_access_mode(AccessMode::Klm);
            for half in [memory::DATA_LEN / 2, 0] {
                let mut piece = Klm::new();
                piece.set(Klm::BYTE_COUNT, (memory::DATA_LEN / 2) as u32).set(Klm::MKEY, key);
                piece.set(Klm::ADDRESS, memory::DATA + half);
                list.extend(piece.bytes().chunks_exact(8).map(|w| hca_spec::be64(w, 0)));
            }
        }
    }
    let octwords = list.len().div_ceil(2) as u32;
    if octwords > 0 {
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords);
    }
    create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords);
    input.truncate(CreateMkeyIn::SIZE);
    input = put(input, create.bytes());
    input.extend(list.into_iter().flat_map(u64::to_be_bytes));
    input
}

/// CREATE_SRQ, or CREATE_XRC_SRQ with an XRC domain and a completion queue.
pub fn create_srq(pd: u32, xrc: Option<(u32, u32)>, page: u64, record: u64) -> Vec<u8> {
    let mut fixture = fixture(page, record);
    fixture.set(Kind::Pd, pd);
    match xrc {
        Some((xrcd, cqn)) => {
            row(Opcode::CreateXrcSrq).template(fixture.set(Kind::Xrcd, xrcd).set(Kind::Cq, cqn))
        }
        None => row(Opcode::CreateSrq).template(&fixture),
    }
}

/// CREATE_RMP.
pub fn create_rmp(pd: u32, page: u64, record: u64) -> Vec<u8> {
    row(Opcode::CreateRmp).template(fixture(page, record).set(Kind::Pd, pd))
}

/// What a queue pair stands on.
fn queues(o: &Objects) -> Fixture {
    let mut fixture = o.fixture.clone();
    fixture.set(Kind::Cq, o.cq).set(Kind::Pd, o.pd).set(Kind::Uar, o.uar);
    fixture
}

/// CREATE_QP. With a shared receive queue there is none of its own.
pub fn create_qp(o: &Objects, service: ServiceType, srq: Option<u32>, buffer: u64, record: u64) -> Vec<u8> {
    let mut fixture = queues(o);
    (fixture.queue, fixture.record) = (buffer, record);
    let input = row(Opcode::CreateQp).template(&fixture);
    let mut create = CreateQpIn::from_prefix_or_zero(&input);
    let qpc = create.qpc_mut();
    qpc.set(Qpc::ST, service as u32).set(Qpc::XRCD, o.xrcd);
    match (service, srq) {
        (ServiceType::RegUmr, _) => _ = qpc.set(Qpc::RQ_TYPE, RqType::Zero as u32),
        (_, Some(srq)) => _ = qpc.set(Qpc::RQ_TYPE, RqType::Shared as u32).set(Qpc::SRQN_RMPN, srq),
        _ => {}
    }
    put(input, create.bytes())
}

/// The same of a queue pair whose send queue is the adapter's, which fetches data by itself.
pub fn fetching(input: Vec<u8>) -> Vec<u8> {
    let mut create = CreateQpIn::from_prefix_or_zero(&input);
    create.qpc_mut().set(Qpc::NO_SQ, 1).set(Qpc::OFFLOAD_TYPE, OFFLOAD_RENDEZVOUS);
    put(input, create.bytes())
}

/// A transition of a queue pair whose peer is `remote` on the same port, with every field that it may need.
pub fn modify_qp(o: &Objects, opcode: Opcode, qp: &QueuePair, remote: u32) -> Vec<u8> {
    let mut fixture = queues(o);
    (fixture.peer_qp, fixture.peer_lid) = (remote, o.lid);
    let input = row(opcode).template(fixture.set(Kind::Qp, qp.number));
    let mut modify = ModifyQpIn::from_prefix_or_zero(&input);
    modify.qpc_mut().set(Qpc::ST, qp.service as u32);
    put(input, modify.bytes())
}

/// One of `templates`; those that begin or end everything seldom.
pub fn pick(feed: &mut Feed<'_>, templates: &[Vec<u8>]) -> Vec<u8> {
    let input = &templates[feed.below(templates.len())];
    let ends = row_of(input).is_some_and(|command| command.time == TimeClass::Lifecycle);
    if ends && !feed.one_in(8) { object(Opcode::QueryIssi, 0) } else { input.clone() }
}

/// MAD_IFC with that datagram.
pub fn mad_ifc(mad: &Mad) -> Vec<u8> {
    let input = row(Opcode::MadIfc).template(&Fixture::default());
    let mut request = MadIfc::from_prefix_or_zero(&input);
    *request.mad_mut() = *mad;
    put(input, request.bytes())
}

/// MAD_IFC with a Set of that attribute.
fn set_attribute(attribute: u32) -> Vec<u8> {
    let input = row(Opcode::MadIfc).template(&Fixture::default());
    let mut request = MadIfc::from_prefix_or_zero(&input);
    request.mad_mut().set(Mad::METHOD, METHOD_SET).set(Mad::ATTRIBUTE_ID, attribute);
    put(input, request.bytes())
}

/// QUERY_HCA_CAP of the general capabilities, as they are at most.
pub fn general_caps() -> Vec<u8> {
    object(Opcode::QueryHcaCap, 0)
}

/// MODIFY_GENERAL_OBJECT of an object that has something to change.
fn modify_typed((kind, number): &(u32, u32)) -> Option<Vec<u8>> {
    if *kind != object_type::SCHEDULING_ELEMENT {
        return None;
    }
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_TYPE, *kind).set(GeneralObjectIn::OBJ_ID, *number);
    let mut change = SchedulingElement::new();
    change.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    change.set(SchedulingElement::MODIFY_FIELD_SELECT, field::BW_SHARE).set(SchedulingElement::BW_SHARE, 7);
    let input = put(change.bytes().to_vec(), head.bytes());
    Some(put(input, object(Opcode::ModifyGeneralObject, 0).get(..InHeader::OP_MOD.offset())?))
}

/// A valid input of every command, about those objects, and variants that the fuzzers would hardly find by changing
/// single bytes.
pub fn templates(o: &Objects) -> Vec<Vec<u8>> {
    let mut all: Vec<_> = TABLE.iter().flat_map(|command| command.templates(&o.fixture)).collect();
    all.extend([attr::PORT_INFO, attr::GUID_INFO, attr::PKEY_TABLE].map(set_attribute));
    all.push(create_mkey(o.pd, Key::Pieces(o.keys[1])));
    all.push(create_mkey(o.pd, Key::Free));
    all.extend(o.fixture.typed_objects.iter().filter_map(modify_typed));
    let mut take = give_pages(0, 0);
    put_be32(&mut take, FunctionIn::INPUT_NUM_ENTRIES.offset(), 64);
    all.push(with_modifier(take, PAGES_TAKE));
    let write = AccessRegIn::from_prefix_or_zero(&row(Opcode::AccessReg).template(&o.fixture))
        .set(AccessRegIn::OP_MOD, 0)
        .set(AccessRegIn::REGISTER_ID, reg::PCAP)
        .bytes()
        .to_vec();
    all.push([write, vec![0; 0x14]].concat());
    all
}
