//! General objects: QP numbers that no queue pair has, which every kind of adapter offers; memory for entries of flow tables that
//! drivers write themselves; samplers and meters of flows, definers ([`super::flow_object`]); elements of scheduling and mappings ([`super::scheduling`]); keys that
//! data is encrypted with, and logins ([`super::crypto`]).
//!
//! A program names reserved QP numbers in connections whose traffic takes another way, as rdma_cm with a queue pair of its own
//! making does with DC.
//!
//! Source: PRM "General Object Commands"; `mlx5dv_reserved_qpn_alloc(3)`; mlx5 driver (`core/lib/dm.c`) and mlx5dv (field use).
//! By inference: an object of QP numbers begins at a multiple of the count of its numbers.

use hca_spec::caps::{General, object_type};
use hca_spec::cmd::{GeneralObjectIn, QueryReservedQpnOut};
use hca_spec::command::{OutHeader, Status};
use hca_spec::crypto::{CryptoLogin, Dek, PURPOSE_AES_XTS};
use hca_spec::flow::TableType;
use hca_spec::rewrite::{SamplerIn, SwIcmIn};
use hca_spec::sched::{AvQpMapping, HIERARCHY_NIC, SchedulingElement};

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use super::{crypto, devx, flow_object, scheduling};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::GeneralObject;
use crate::limits::LOG_RESERVED_QPNS;
use crate::object::{Kind, Object};
use crate::personality::STEERING_ICM;
use crate::steering::{FlowTable, Sampler, address_of_sampler};

/// Length of QUERY_GENERAL_OBJECT's shortest output.
pub(super) const QUERY_LEN: usize = QueryReservedQpnOut::SIZE;

/// The type that a command is about, if the adapter has it.
fn admit(fw: &Firmware, call: &Call<'_>) -> Result<u32, Failure> {
    const KIND: Failure = bad_param("general objects: the adapter has none of that kind (general_obj_types)");
    let kind = call.view::<GeneralObjectIn>()?.get(GeneralObjectIn::OBJ_TYPE);
    let offered = fw.general_max.get(General::GENERAL_OBJ_TYPES);
    match offered.checked_shr(kind) {
        Some(bits) if bits & 1 == 1 => Ok(kind),
        _ => Err(KIND.got(kind)),
    }
}

/// An object that there is.
enum Found {
    /// Reserved QP numbers, by their entry.
    Numbers(u32),
    Definer(u32),
    Other(u32, GeneralObject),
}

fn find(fw: &Firmware, call: &Call<'_>) -> Result<Found, Failure> {
    const NONE: Failure = bad_resource("general objects: there is no such object");
    let kind = admit(fw, call)?;
    let number = call.view::<GeneralObjectIn>()?.get(GeneralObjectIn::OBJ_ID);
    let none = NONE.of(number);
    if kind == object_type::RESERVED_QPN {
        let entry = number >> LOG_RESERVED_QPNS;
        let there = entry << LOG_RESERVED_QPNS == number && fw.icm.reserved_qpns.get(entry).is_some();
        return if there { Ok(Found::Numbers(entry)) } else { Err(none) };
    }
    if kind == object_type::MATCH_DEFINER && fw.icm.steering.definers.get(number).is_some() {
        return Ok(Found::Definer(number));
    }
    match fw.icm.general.get(number) {
        Some(object) if object.object_type() == kind => Ok(Found::Other(number, *object)),
        _ => Err(none),
    }
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    match admit(fw, call)? {
        object_type::SW_ICM => create_memory(fw, call),
        object_type::FLOW_SAMPLER => create_sampler(fw, call),
        object_type::FLOW_METER => flow_object::create_meter(fw, call),
        object_type::MATCH_DEFINER => flow_object::create_definer(fw, call),
        object_type::SCHEDULING_ELEMENT => create_element(fw, call),
        object_type::AV_QP_MAPPING => {
            let mapping = scheduling::mapping(fw, &whole(call, AvQpMapping::from_prefix_or_zero))?;
            named(fw.icm.general.insert(mapping).map_err(|_| MANY)?)
        }
        object_type::DEK => create_key(fw, call),
        object_type::CRYPTO_LOGIN => create_login(fw, call),
        _ => create_numbers(fw, call),
    }
}

fn create_numbers(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const RANGE: Failure =
        bad_param("CREATE_GENERAL_OBJECT: log_obj_range is not what the capabilities allow for QP numbers");
    const FULL: Failure = no_room("CREATE_GENERAL_OBJECT: every reserved QP number is in use");
    let range = call.view::<GeneralObjectIn>()?.get(GeneralObjectIn::LOG_OBJ_RANGE);
    if range != LOG_RESERVED_QPNS {
        return Err(RANGE.got(range).limit(LOG_RESERVED_QPNS));
    }
    let capacity = fw.icm.reserved_qpns.capacity();
    let entry = fw.icm.reserved_qpns.insert(()).map_err(|_| FULL.limit(capacity))?;
    named(entry << LOG_RESERVED_QPNS)
}

pub(super) const MANY: Failure = no_room("CREATE_GENERAL_OBJECT: every number of a general object is in use");

/// The input as the layout of a type; what a driver left out is zero.
pub(super) fn whole<T>(call: &Call<'_>, from: fn(&[u8]) -> T) -> T {
    from(call.input)
}

fn create_memory(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const RANGE: Failure = bad_param(
        "CREATE_GENERAL_OBJECT: sw_icm_start_addr, log_sw_icm_size: must be whole pages of the memory that the capabilities tell of",
    );
    const TAKEN: Failure = Failure::new(
        Status::NoResources,
        "CREATE_GENERAL_OBJECT: sw_icm_start_addr: another object has a part of that memory",
    );
    let input = whole(call, SwIcmIn::from_prefix_or_zero);
    let (start, log) = (input.get(SwIcmIn::SW_ICM_START_ADDR), input.get(SwIcmIn::LOG_SW_ICM_SIZE));
    let memory = &mut fw.icm.steering.memory;
    if !memory.is_range(start, log) {
        return Err(RANGE.got(start));
    }
    if !memory.allocate(start, log) {
        return Err(TAKEN.got(start));
    }
    let Ok(number) = fw.icm.general.insert(GeneralObject::SwIcm { start, log }) else {
        fw.icm.steering.memory.free(start);
        return Err(MANY);
    };
    named(number)
}

fn create_sampler(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TYPE: Failure =
        bad_param("CREATE_GENERAL_OBJECT: table_type: tables of that type have no samplers");
    const RATIO: Failure = bad_param("CREATE_GENERAL_OBJECT: sample_ratio must not be 0");
    const NO_TABLE: Failure =
        bad_resource("CREATE_GENERAL_OBJECT: sampler: there is no flow table of that number and type");
    const ENDS: Failure = bad_param(
        "CREATE_GENERAL_OBJECT: sample_table_id: copies go to a table in which they end (termination_table)",
    );
    const LEVEL: Failure =
        bad_param("CREATE_GENERAL_OBJECT: sampler: the level of a table is not above the sampler's");
    let input = whole(call, SamplerIn::from_prefix_or_zero);
    let bits = input.get(SamplerIn::TABLE_TYPE);
    let kind = TableType::from_bits(bits).ok_or(TYPE.got(bits))?;
    fw.icm.steering.offer().of(kind).filter(|offer| offer.software).ok_or(TYPE.got(bits))?;
    let ratio = input.get(SamplerIn::SAMPLE_RATIO);
    if ratio == 0 {
        return Err(RATIO);
    }
    let (level, ignore) = (input.get(SamplerIn::LEVEL), input.get(SamplerIn::IGNORE_FLOW_LEVEL) == 1);
    let table = |number: u32| -> Result<&FlowTable, Failure> {
        let table =
            fw.icm.steering.table(number).filter(|table| table.kind == kind).ok_or(NO_TABLE.of(number))?;
        if table.level <= level && !ignore {
            return Err(LEVEL.of(number).got(table.level).least(u64::from(level).saturating_add(1)));
        }
        Ok(table)
    };
    let (all, copies) = (input.get(SamplerIn::DEFAULT_TABLE_ID), input.get(SamplerIn::SAMPLE_TABLE_ID));
    table(all)?;
    if !table(copies)?.ends {
        return Err(ENDS.of(copies));
    }
    let sampler = Sampler::new((all, copies), ratio, (level, ignore));
    let number = fw.icm.general.insert(GeneralObject::Sampler).map_err(|_| MANY)?;
    fw.icm.steering.create_sampler(number, sampler);
    named(number)
}

fn create_element(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let input = whole(call, SchedulingElement::from_prefix_or_zero);
    named(scheduling::make_object(fw, &input)?)
}

fn create_key(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let key = crypto::data_key(fw, call)?;
    let number = fw.icm.general.insert(GeneralObject::DataKey).map_err(|_| MANY)?;
    if let Some(pd) = fw.icm.pds.get_mut(key.pd.0) {
        pd.users += 1;
    }
    fw.icm.crypto.data.insert(number, key);
    named(number)
}

fn create_login(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    crypto::check_login(fw, call)?;
    let uid = devx::uid(call);
    let number = fw.icm.general.insert(GeneralObject::Login { uid }).map_err(|_| MANY)?;
    fw.icm.crypto.logins.insert(uid, number);
    named(number)
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NOTHING: Failure =
        bad_param("MODIFY_GENERAL_OBJECT: modify_field_select: objects of the type have nothing to change");
    match find(fw, call)? {
        Found::Other(number, GeneralObject::Element(_)) => scheduling::modify_object(fw, number, call),
        Found::Other(number, GeneralObject::Meter) => flow_object::modify_meter(fw, number, call),
        _ => Err(NOTHING),
    }
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    Ok(match find(fw, call)? {
        Found::Numbers(entry) => {
            reply(QueryReservedQpnOut::new().set(QueryReservedQpnOut::OBJ_ID, entry << LOG_RESERVED_QPNS))
        }
        Found::Other(number, GeneralObject::SwIcm { start, log }) => {
            let mut out = SwIcmIn::new();
            out.set(SwIcmIn::SW_ICM_START_ADDR, start).set(SwIcmIn::LOG_SW_ICM_SIZE, log);
            about(number, out.bytes())
        }
        Found::Other(number, GeneralObject::Sampler) => {
            let mut out = SamplerIn::new();
            if let Some(found) = fw.icm.steering.sampler(number) {
                let kind = fw.icm.steering.table(found.all).map_or(0, |table| table.kind as u32);
                out.set(SamplerIn::TABLE_TYPE, kind).set(SamplerIn::LEVEL, found.level);
                out.set(SamplerIn::IGNORE_FLOW_LEVEL, found.ignore_level.into());
                out.set(SamplerIn::SAMPLE_RATIO, found.ratio);
                out.set(SamplerIn::SAMPLE_TABLE_ID, found.copies).set(SamplerIn::DEFAULT_TABLE_ID, found.all);
                let address = address_of_sampler(number);
                out.set(SamplerIn::ICM_ADDRESS_RX, address).set(SamplerIn::ICM_ADDRESS_TX, address);
            }
            about(number, out.bytes())
        }
        Found::Definer(number) => about(number, flow_object::describe_definer(fw, number).bytes()),
        Found::Other(number, GeneralObject::Meter) => {
            about(number, flow_object::describe_meter(fw, number).bytes())
        }
        Found::Other(number, GeneralObject::Element(element)) => {
            about(number, scheduling::describe(&element).bytes())
        }
        Found::Other(number, GeneralObject::Mapping { qpn, vector }) => {
            about(number, scheduling::describe_mapping(qpn, &vector).bytes())
        }
        Found::Other(number, GeneralObject::DataKey) => {
            about(number, crypto::describe_key(fw, call, number)?.bytes())
        }
        // A login is valid as long as it is there: neither credentials nor keys of keys are taken away.
        Found::Other(number, GeneralObject::Login { .. }) => about(number, CryptoLogin::new().bytes()),
    })
}

/// An output about an object with attributes behind the header.
fn about(number: u32, attributes: &[u8]) -> Vec<u8> {
    let head = *QueryReservedQpnOut::new().set(QueryReservedQpnOut::OBJ_ID, number);
    let head = head.bytes().get(..OutHeader::SIZE).unwrap_or_default();
    [head, attributes.get(OutHeader::SIZE..).unwrap_or_default()].concat()
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure = Failure::new(
        Status::BadResourceState,
        "DESTROY_GENERAL_OBJECT: entries of flow tables name the sampler",
    );
    match find(fw, call)? {
        Found::Numbers(entry) => _ = fw.icm.reserved_qpns.remove(entry),
        // Entries that name it match nothing from now on.
        Found::Definer(number) => _ = fw.icm.steering.definers.remove(number),
        // Packets that entries send to it find nothing there.
        Found::Other(number, GeneralObject::Meter) => {
            fw.icm.steering.destroy_meter(number);
            fw.icm.general.remove(number);
        }
        // Entries that lie there are no more: packets that come to them are dropped.
        Found::Other(number, GeneralObject::SwIcm { start, .. }) => {
            fw.icm.steering.memory.free(start);
            fw.icm.general.remove(number);
        }
        Found::Other(number, GeneralObject::Sampler) => {
            let users = fw.icm.steering.sampler(number).map_or(0, |sampler| sampler.users);
            if users > 0 {
                return Err(USED.of(number).got(users));
            }
            fw.icm.steering.destroy_sampler(number);
            fw.icm.general.remove(number);
        }
        Found::Other(number, GeneralObject::Element(element)) => {
            scheduling::unmake(fw, number, element)?;
        }
        Found::Other(number, GeneralObject::Mapping { .. }) => _ = fw.icm.general.remove(number),
        // Memory keys that name it find none from now on.
        Found::Other(number, GeneralObject::DataKey) => {
            let key = fw.icm.crypto.data.remove(&number);
            if let Some(pd) = key.and_then(|key| fw.icm.pds.get_mut(key.pd.0)) {
                pd.users = pd.users.saturating_sub(1);
            }
            fw.icm.general.remove(number);
        }
        Found::Other(number, GeneralObject::Login { uid }) => {
            fw.icm.crypto.logins.remove(&uid);
            fw.icm.general.remove(number);
        }
    }
    Ok(done())
}

/// The tables that samplers and meters name, the node above an element, the domain of a key. The queue pair of a mapping may be anybody's: nothing happens to it.
pub(super) fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    let kind = call.view::<GeneralObjectIn>().map(|input| input.get(GeneralObjectIn::OBJ_TYPE));
    match kind {
        Ok(object_type::FLOW_SAMPLER) => {}
        Ok(object_type::FLOW_METER) => return flow_object::names(call),
        Ok(object_type::SCHEDULING_ELEMENT) => {
            let input = whole(call, SchedulingElement::from_prefix_or_zero);
            return names_of_elements([input.get(SchedulingElement::PARENT_ELEMENT_ID)]);
        }
        Ok(object_type::DEK) => {
            let pd = whole(call, Dek::from_prefix_or_zero).get(Dek::PD);
            return vec![(Object::new(Kind::Pd, pd), false)];
        }
        _ => return Vec::new(),
    }
    let input = whole(call, SamplerIn::from_prefix_or_zero);
    let tables = [input.get(SamplerIn::DEFAULT_TABLE_ID), input.get(SamplerIn::SAMPLE_TABLE_ID)];
    tables.into_iter().map(|table| (Object::new(Kind::FlowTable, table), false)).collect()
}

/// Elements that a context or another element names; 0 names none.
pub(in crate::commands) fn names_of_elements(numbers: impl IntoIterator<Item = u32>) -> Vec<(Object, bool)> {
    let named = numbers.into_iter().filter(|number| *number != 0);
    named.map(|number| (Object::new(Kind::GeneralObject, number), false)).collect()
}

/// An input about an object of that type and number, with these attributes.
fn input_about(kind: u32, number: u32, attributes: &[u8]) -> Vec<u8> {
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_TYPE, kind).set(GeneralObjectIn::OBJ_ID, number);
    [head.bytes(), attributes.get(GeneralObjectIn::SIZE..).unwrap_or_default()].concat()
}

/// CREATE_GENERAL_OBJECT: QP numbers first, then an object of each other type that the adapter has, but samplers, which need tables
/// that end packets, and logins, which need an officer.
pub(super) fn create_templates(fixture: &Fixture) -> Vec<Vec<u8>> {
    const LOG_PIECE: u32 = 16;
    let mut numbers = GeneralObjectIn::new();
    numbers.set(GeneralObjectIn::OBJ_TYPE, object_type::RESERVED_QPN);
    numbers.set(GeneralObjectIn::LOG_OBJ_RANGE, LOG_RESERVED_QPNS);
    let known = fixture.typed_objects.iter().filter(|(kind, _)| *kind == object_type::SW_ICM).count() as u64;
    let mut memory = SwIcmIn::new();
    memory.set(SwIcmIn::SW_ICM_START_ADDR, STEERING_ICM.saturating_add(known << LOG_PIECE));
    memory.set(SwIcmIn::LOG_SW_ICM_SIZE, LOG_PIECE);
    let mut node = SchedulingElement::new();
    node.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    node.set(SchedulingElement::BW_SHARE, 3).set(SchedulingElement::MAX_AVERAGE_BW, 1000);
    let mut mapping = AvQpMapping::new();
    mapping.set(AvQpMapping::QPN, fixture.number(Kind::Qp));
    let mut key = Dek::new();
    key.set(Dek::KEY_PURPOSE, PURPOSE_AES_XTS).set(Dek::PD, fixture.number(Kind::Pd));
    // Both halves of a key have to differ.
    key.bytes_mut().iter_mut().skip(Dek::KEY.start).zip(1..=32).for_each(|(to, n)| *to = n);
    let definer = flow_object::definer_template();
    let others = [
        (object_type::SW_ICM, memory.bytes().as_slice()),
        (object_type::SCHEDULING_ELEMENT, node.bytes()),
        (object_type::AV_QP_MAPPING, mapping.bytes()),
        (object_type::DEK, key.bytes()),
        (object_type::MATCH_DEFINER, definer.bytes()),
    ];
    let offered = |kind: u32| fixture.object_types.checked_shr(kind).is_some_and(|bits| bits & 1 == 1);
    let mut all = vec![numbers.bytes().to_vec()];
    all.extend(others.iter().filter(|(kind, _)| offered(*kind)).map(|(kind, of)| input_about(*kind, 0, of)));
    all
}

/// MODIFY_GENERAL_OBJECT: QP numbers.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    input_about(object_type::RESERVED_QPN, fixture.number(Kind::GeneralObject), &[])
}

/// QUERY and DESTROY: the QP numbers that there are, then all other objects.
pub(super) fn templates(fixture: &Fixture) -> Vec<Vec<u8>> {
    let mut all = vec![template(fixture)];
    all.extend(fixture.typed_objects.iter().map(|(kind, number)| input_about(*kind, *number, &[])));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Answer, Bench};
    use hca_spec::command::{Opcode, Status};

    fn send(b: &mut Bench, op: Opcode, kind: u32, id: u32, range: u32) -> Answer {
        let mut input = GeneralObjectIn::new();
        input.set(GeneralObjectIn::OBJ_TYPE, kind).set(GeneralObjectIn::OBJ_ID, id);
        input.set(GeneralObjectIn::LOG_OBJ_RANGE, range);
        b.put(op, &input, 32)
    }

    #[test]
    fn numbers_that_no_queue_pair_has() {
        const KIND: u32 = object_type::RESERVED_QPN;
        let mut b = Bench::initialized();
        let reserve = |b: &mut Bench| send(b, Opcode::CreateGeneralObject, KIND, 0, LOG_RESERVED_QPNS);
        let (one, two) = (reserve(&mut b).number(), reserve(&mut b).number());
        assert!(one.abs_diff(two) >= 1 << LOG_RESERVED_QPNS, "{one:#x} and {two:#x} overlap");
        assert_eq!(b.fw.resources().now.general_objects, 2);
        let rc = b.connection();
        for first in [one, two] {
            assert!(first < 1 << 24 && !(first..first + (1 << LOG_RESERVED_QPNS)).contains(&rc.qp));
            let answer = send(&mut b, Opcode::QueryGeneralObject, KIND, first, 0);
            assert_eq!((answer.status(), answer.number()), (Status::Ok, first));
        }
        let modified = send(&mut b, Opcode::ModifyGeneralObject, KIND, one, 0);
        assert_eq!(modified.status(), Status::BadParam);
        let inside = send(&mut b, Opcode::DestroyGeneralObject, KIND, one + 1, 0);
        assert_eq!(inside.status(), Status::BadResource, "a number is not the object");
        for expected in [Status::Ok, Status::BadResource] {
            assert_eq!(send(&mut b, Opcode::DestroyGeneralObject, KIND, one, 0).status(), expected);
        }
        assert_eq!(b.fw.resources().now.general_objects, 1);
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let mut b = Bench::initialized();
        let other = send(&mut b, Opcode::CreateGeneralObject, 1, 0, LOG_RESERVED_QPNS);
        assert_eq!(other.status(), Status::BadParam);
        for range in [0, LOG_RESERVED_QPNS + 1, 31] {
            let answer = send(&mut b, Opcode::CreateGeneralObject, object_type::RESERVED_QPN, 0, range);
            assert_eq!(answer.status(), Status::BadParam, "2^{range} numbers");
        }
    }
}
