//! Elements that queues are scheduled by, and queue pairs that address vectors are mapped to: general objects of a ConnectX-6 Dx.
//! Elements have commands of their own, too (CREATE_SCHEDULING_ELEMENT): drivers of networks use these, mlx5dv the others, and both are
//! about the same elements.
//!
//! Source: `mlx5dv_sched_node_create(3)`, `mlx5dv_map_ah_to_qp(3)`, mlx5dv and the mlx5 driver (field use). By inference: what is refused.

use hca_spec::caps::{Qos, object_type};
use hca_spec::command::{OutHeader, Status};
use hca_spec::sched::{
    AvQpMapping, CreateSchedulingElementIn, CreateSchedulingElementOut, HIERARCHY_NIC,
    ModifySchedulingElementIn, QuerySchedulingElementOut, SchedulingContext, SchedulingElement,
    SchedulingElementIn, element, field, tsar,
};

use super::call::{done, reply};
use super::fixture::Fixture;
use super::general_object::names_of_elements;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::{Element, GeneralObject, MOST_LEVELS};
use crate::limits::LOG_MAX_QUEUE_GROUPS;
use crate::object::{Kind, Object};

/// Whether queues can be in groups.
pub(super) fn has_groups(fw: &Firmware) -> bool {
    fw.is_ethernet() && fw.personality().capabilities.ethernet.qos.get(Qos::NIC_QP_SCHEDULING) == 1
}

/// Refuses what no queue may be put into. 0 is no group.
pub(super) fn check_group(fw: &Firmware, number: u32) -> Result<(), Failure> {
    const ABSENT: Failure =
        bad_param("qos_queue_group_id: there are no groups of queues (nic_qp_scheduling)");
    const NONE: Failure = bad_resource("qos_queue_group_id: there is no group of queues of that number");
    match fw.icm.element(number) {
        _ if number == 0 => Ok(()),
        _ if !has_groups(fw) => Err(ABSENT.got(number)),
        Some(element) if element.leaf => Ok(()),
        _ => Err(NONE.of(number)),
    }
}

/// What an input says of an element, whichever command it is of.
struct Wanted {
    hierarchy: u32,
    kind: u32,
    turns: u32,
    parent: u32,
    share: u32,
    rate: u32,
}

impl From<&SchedulingElement> for Wanted {
    fn from(input: &SchedulingElement) -> Self {
        Self {
            hierarchy: input.get(SchedulingElement::SCHEDULING_HIERARCHY),
            kind: input.get(SchedulingElement::ELEMENT_TYPE),
            turns: input.get(SchedulingElement::TSAR_TYPE),
            parent: input.get(SchedulingElement::PARENT_ELEMENT_ID),
            share: input.get(SchedulingElement::BW_SHARE),
            rate: input.get(SchedulingElement::MAX_AVERAGE_BW),
        }
    }
}

impl From<&CreateSchedulingElementIn> for Wanted {
    fn from(input: &CreateSchedulingElementIn) -> Self {
        let context = input.context();
        Self {
            hierarchy: input.get(CreateSchedulingElementIn::SCHEDULING_HIERARCHY),
            kind: context.get(SchedulingContext::ELEMENT_TYPE),
            turns: context.get(SchedulingContext::TSAR_TYPE),
            parent: context.get(SchedulingContext::PARENT_ELEMENT_ID),
            share: context.get(SchedulingContext::BW_SHARE),
            rate: context.get(SchedulingContext::MAX_AVERAGE_BW),
        }
    }
}

/// Only trees of the NIC's queues are there.
fn check_hierarchy(hierarchy: u32) -> Result<(), Failure> {
    const HIERARCHY: Failure = bad_param("scheduling element: scheduling_hierarchy must be 3 (NIC)");
    if hierarchy == HIERARCHY_NIC { Ok(()) } else { Err(HIERARCHY.got(hierarchy)) }
}

/// Makes the element that an input describes. Returns its number.
fn make(fw: &mut Firmware, wanted: Wanted) -> Result<u32, Failure> {
    const TYPE: Failure =
        bad_param("scheduling element: element_type must be 0 (node) or 4 (group of queues)");
    const TSAR: Failure = bad_param("scheduling element: tsar_type must be 0 (DWRR)");
    const PARENT: Failure = bad_resource("scheduling element: parent_element_id: there is no such node");
    const ROOT: Failure =
        bad_param("scheduling element: parent_element_id: a group of queues has a node above it");
    const DEEP: Failure = bad_param("scheduling element: parent_element_id: too many nodes above each other");
    const GROUPS: Failure =
        no_room("scheduling element: every group of queues is in use (log_max_qos_nic_queue_group)");
    let Wanted { hierarchy, kind, turns, parent, share, rate } = wanted;
    check_hierarchy(hierarchy)?;
    let leaf = match kind {
        element::TSAR => false,
        element::QUEUE_GROUP => true,
        other => return Err(TYPE.got(other)),
    };
    if !leaf && turns != tsar::DWRR {
        return Err(TSAR.got(turns));
    }
    if parent == 0 && leaf {
        return Err(ROOT);
    }
    if parent != 0 {
        fw.icm.element(parent).filter(|above| !above.leaf).ok_or(PARENT.of(parent))?;
        let above = fw.icm.elements(parent).count();
        if above >= MOST_LEVELS || (!leaf && above.saturating_add(1) >= MOST_LEVELS) {
            return Err(DEEP.of(parent).got(above as u64).limit(MOST_LEVELS as u64));
        }
    }
    // Who has as many as are announced puts another in the place of one before that goes (mlx5e_htb_leaf_to_inner).
    let most = 2 << LOG_MAX_QUEUE_GROUPS;
    if leaf && fw.icm.queue_groups >= most {
        return Err(GROUPS.limit(most));
    }
    let element = GeneralObject::Element(Element { leaf, parent, share, rate, users: 0 });
    let number = fw.icm.general.insert(element).map_err(|_| super::general_object::MANY)?;
    fw.icm.hold_elements([parent], true);
    fw.icm.queue_groups = fw.icm.queue_groups.saturating_add(leaf.into());
    Ok(number)
}

/// CREATE_GENERAL_OBJECT of an element. Returns its number.
pub(super) fn make_object(fw: &mut Firmware, input: &SchedulingElement) -> Result<u32, Failure> {
    make(fw, input.into())
}

/// CREATE_SCHEDULING_ELEMENT.
pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let number = make(fw, call.view::<CreateSchedulingElementIn>()?.into())?;
    let mut out = CreateSchedulingElementOut::new();
    Ok(reply(out.set(CreateSchedulingElementOut::SCHEDULING_ELEMENT_ID, number)))
}

/// The element that a command of its own names.
fn find(fw: &Firmware, number: u32) -> Result<&Element, Failure> {
    const NONE: Failure = bad_resource("scheduling element: scheduling_element_id: there is no such element");
    fw.icm.element(number).ok_or(NONE.of(number))
}

/// QUERY_SCHEDULING_ELEMENT.
pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let input = call.view::<SchedulingElementIn>()?;
    check_hierarchy(input.get(SchedulingElementIn::SCHEDULING_HIERARCHY))?;
    let found = find(fw, input.get(SchedulingElementIn::SCHEDULING_ELEMENT_ID))?;
    let mut out = QuerySchedulingElementOut::new();
    let context = out.context_mut();
    context.set(SchedulingContext::ELEMENT_TYPE, kind_of(found));
    context.set(SchedulingContext::PARENT_ELEMENT_ID, found.parent);
    context.set(SchedulingContext::BW_SHARE, found.share).set(SchedulingContext::MAX_AVERAGE_BW, found.rate);
    Ok(reply(&out))
}

/// MODIFY_SCHEDULING_ELEMENT: what the element is, and where, is not said again: drivers leave it zero.
pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let input = call.view::<ModifySchedulingElementIn>()?;
    check_hierarchy(input.get(ModifySchedulingElementIn::SCHEDULING_HIERARCHY))?;
    let number = input.get(ModifySchedulingElementIn::SCHEDULING_ELEMENT_ID);
    find(fw, number)?;
    let context = input.context();
    let values = (context.get(SchedulingContext::BW_SHARE), context.get(SchedulingContext::MAX_AVERAGE_BW));
    change(fw, number, input.get(ModifySchedulingElementIn::MODIFY_BITMASK).into(), values)
}

/// DESTROY_SCHEDULING_ELEMENT.
pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let input = call.view::<SchedulingElementIn>()?;
    check_hierarchy(input.get(SchedulingElementIn::SCHEDULING_HIERARCHY))?;
    let number = input.get(SchedulingElementIn::SCHEDULING_ELEMENT_ID);
    let found = *find(fw, number)?;
    unmake(fw, number, found)?;
    Ok(done())
}

/// Changes weight and rate of an element, as `select` says.
fn change(fw: &mut Firmware, number: u32, select: u64, (share, rate): (u32, u32)) -> Outcome {
    const FIELDS: Failure =
        bad_param("scheduling element: modify_bitmask, modify_field_select: reserved bits");
    if select & !(field::BW_SHARE | field::MAX_AVERAGE_BW) != 0 {
        return Err(FIELDS.got(select));
    }
    let Some(found) = fw.icm.element_mut(number) else { return Ok(done()) };
    if select & field::BW_SHARE != 0 {
        found.share = share;
    }
    if select & field::MAX_AVERAGE_BW != 0 {
        found.rate = rate;
    }
    Ok(done())
}

/// MODIFY_GENERAL_OBJECT of an element: weight and rate.
pub(super) fn modify_object(fw: &mut Firmware, number: u32, call: &Call<'_>) -> Outcome {
    const TYPE: Failure =
        bad_param("MODIFY_GENERAL_OBJECT: element_type, scheduling_hierarchy: not the element's");
    let input = SchedulingElement::from_prefix_or_zero(call.input);
    let kind = input.get(SchedulingElement::ELEMENT_TYPE);
    let Some(found) = fw.icm.element(number) else { return Ok(done()) };
    let own = kind_of(found);
    if kind != own || input.get(SchedulingElement::SCHEDULING_HIERARCHY) != HIERARCHY_NIC {
        return Err(TYPE.of(number).got(kind).exactly(own));
    }
    let values = (input.get(SchedulingElement::BW_SHARE), input.get(SchedulingElement::MAX_AVERAGE_BW));
    change(fw, number, input.get(SchedulingElement::MODIFY_FIELD_SELECT), values)
}

/// What it is ([`element`]).
fn kind_of(found: &Element) -> u32 {
    if found.leaf { element::QUEUE_GROUP } else { element::TSAR }
}

/// What QUERY_GENERAL_OBJECT tells of an element, with room for a header.
pub(super) fn describe(found: &Element) -> SchedulingElement {
    let mut out = SchedulingElement::new();
    out.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    out.set(SchedulingElement::ELEMENT_TYPE, kind_of(found));
    out.set(SchedulingElement::PARENT_ELEMENT_ID, found.parent);
    out.set(SchedulingElement::BW_SHARE, found.share).set(SchedulingElement::MAX_AVERAGE_BW, found.rate);
    out
}

/// Destroys an element that nothing is below.
pub(super) fn unmake(fw: &mut Firmware, number: u32, found: Element) -> Result<(), Failure> {
    const USED: Failure = Failure::new(
        Status::BadResourceState,
        "scheduling element: queues are in the group, or elements below the node",
    );
    if found.users > 0 {
        return Err(USED.of(number).got(found.users));
    }
    fw.icm.hold_elements([found.parent], false);
    fw.icm.queue_groups = fw.icm.queue_groups.saturating_sub(found.leaf.into());
    fw.icm.general.remove(number);
    Ok(())
}

/// CREATE_SCHEDULING_ELEMENT: the node above.
pub(super) fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    let input = CreateSchedulingElementIn::from_prefix_or_zero(call.input);
    names_of_elements([input.context().get(SchedulingContext::PARENT_ELEMENT_ID)])
}

/// CREATE_SCHEDULING_ELEMENT: a root.
pub(super) fn create_template(_: &Fixture) -> Vec<u8> {
    let mut root = CreateSchedulingElementIn::new();
    root.set(CreateSchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    root.context_mut().set(SchedulingContext::MAX_AVERAGE_BW, 1000);
    root.bytes().to_vec()
}

/// QUERY and DESTROY: an element.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let mut input = SchedulingElementIn::new();
    input.set(SchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    input.set(SchedulingElementIn::SCHEDULING_ELEMENT_ID, known(fixture)).bytes().to_vec()
}

/// MODIFY_SCHEDULING_ELEMENT: a weight.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut input = ModifySchedulingElementIn::new();
    input.set(ModifySchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    input.set(ModifySchedulingElementIn::SCHEDULING_ELEMENT_ID, known(fixture));
    input.set(ModifySchedulingElementIn::MODIFY_BITMASK, field::BW_SHARE as u32);
    input.context_mut().set(SchedulingContext::BW_SHARE, 7);
    input.bytes().to_vec()
}

/// An element that there is, or what may be one.
fn known(fixture: &Fixture) -> u32 {
    let element = |(kind, _): &&(u32, u32)| *kind == object_type::SCHEDULING_ELEMENT;
    let known = fixture.typed_objects.iter().find(element).map(|(_, number)| *number);
    known.unwrap_or(fixture.number(Kind::GeneralObject))
}

/// The mapping that an input describes.
pub(super) fn mapping(fw: &Firmware, input: &AvQpMapping) -> Result<GeneralObject, Failure> {
    const NO_QP: Failure = bad_resource("CREATE_GENERAL_OBJECT: qpn: there is no QP of that number");
    let qpn = input.get(AvQpMapping::QPN);
    super::qp::find(fw, qpn).map_err(|_| NO_QP.of(qpn))?;
    Ok(GeneralObject::Mapping { qpn, vector: *input.vector() })
}

/// The same for what QUERY_GENERAL_OBJECT tells of a mapping.
pub(super) fn describe_mapping(qpn: u32, vector: &hca_spec::wqe::Datagram) -> AvQpMapping {
    let mut out = AvQpMapping::new();
    out.set(AvQpMapping::QPN, qpn);
    *out.vector_mut() = *vector;
    out
}

const _: () = assert!(OutHeader::SIZE == 0x10, "attributes begin where those of an input do");

#[cfg(test)]
mod tests;
