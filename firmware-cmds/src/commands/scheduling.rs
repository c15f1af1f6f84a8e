//! Elements that queues are scheduled by, and queue pairs that address vectors are mapped to: general objects of a ConnectX-6 Dx.
//!
//! Source: `mlx5dv_sched_node_create(3)`, `mlx5dv_map_ah_to_qp(3)`, mlx5dv (field use). By inference: what is refused.

use hca_spec::caps::Qos;
use hca_spec::command::{OutHeader, Status};
use hca_spec::sched::{AvQpMapping, HIERARCHY_NIC, SchedulingElement, element, field, tsar};

use super::call::done;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::icm::{Element, GeneralObject, MOST_LEVELS};

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

/// The element that an input describes.
pub(super) fn element(fw: &Firmware, input: &SchedulingElement) -> Result<GeneralObject, Failure> {
    const HIERARCHY: Failure = bad_param("CREATE_GENERAL_OBJECT: scheduling_hierarchy must be 3 (NIC)");
    const TYPE: Failure =
        bad_param("CREATE_GENERAL_OBJECT: element_type must be 0 (node) or 4 (group of queues)");
    const TSAR: Failure = bad_param("CREATE_GENERAL_OBJECT: tsar_type must be 0 (DWRR)");
    const PARENT: Failure = bad_resource("CREATE_GENERAL_OBJECT: parent_element_id: there is no such node");
    const ROOT: Failure =
        bad_param("CREATE_GENERAL_OBJECT: parent_element_id: a group of queues has a node above it");
    const DEEP: Failure =
        bad_param("CREATE_GENERAL_OBJECT: parent_element_id: too many nodes above each other");
    let hierarchy = input.get(SchedulingElement::SCHEDULING_HIERARCHY);
    if hierarchy != HIERARCHY_NIC {
        return Err(HIERARCHY.got(hierarchy));
    }
    let kind = input.get(SchedulingElement::ELEMENT_TYPE);
    let leaf = match kind {
        element::TSAR => false,
        element::QUEUE_GROUP => true,
        other => return Err(TYPE.got(other)),
    };
    let turns = input.get(SchedulingElement::TSAR_TYPE);
    if !leaf && turns != tsar::DWRR {
        return Err(TSAR.got(turns));
    }
    let parent = input.get(SchedulingElement::PARENT_ELEMENT_ID);
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
    let (share, rate) =
        (input.get(SchedulingElement::BW_SHARE), input.get(SchedulingElement::MAX_AVERAGE_BW));
    Ok(GeneralObject::Element(Element { leaf, parent, share, rate, users: 0 }))
}

/// Weight and rate of an element.
pub(super) fn modify(fw: &mut Firmware, number: u32, call: &Call<'_>) -> Outcome {
    const FIELDS: Failure = bad_param("MODIFY_GENERAL_OBJECT: modify_field_select has reserved bits");
    const TYPE: Failure =
        bad_param("MODIFY_GENERAL_OBJECT: element_type, scheduling_hierarchy: not the element's");
    let input = SchedulingElement::from_prefix_or_zero(call.input);
    let select = input.get(SchedulingElement::MODIFY_FIELD_SELECT);
    if select & !(field::BW_SHARE | field::MAX_AVERAGE_BW) != 0 {
        return Err(FIELDS.got(select));
    }
    let kind = input.get(SchedulingElement::ELEMENT_TYPE);
    let Some(found) = fw.icm.element_mut(number) else { return Ok(done()) };
    let own = if found.leaf { element::QUEUE_GROUP } else { element::TSAR };
    if kind != own || input.get(SchedulingElement::SCHEDULING_HIERARCHY) != HIERARCHY_NIC {
        return Err(TYPE.of(number).got(kind).exactly(own));
    }
    if select & field::BW_SHARE != 0 {
        found.share = input.get(SchedulingElement::BW_SHARE);
    }
    if select & field::MAX_AVERAGE_BW != 0 {
        found.rate = input.get(SchedulingElement::MAX_AVERAGE_BW);
    }
    Ok(done())
}

/// What QUERY_GENERAL_OBJECT tells of an element, with room for a header.
pub(super) fn describe(found: &Element) -> SchedulingElement {
    let mut out = SchedulingElement::new();
    let kind = if found.leaf { element::QUEUE_GROUP } else { element::TSAR };
    out.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    out.set(SchedulingElement::ELEMENT_TYPE, kind).set(SchedulingElement::PARENT_ELEMENT_ID, found.parent);
    out.set(SchedulingElement::BW_SHARE, found.share).set(SchedulingElement::MAX_AVERAGE_BW, found.rate);
    out
}

/// An element that nothing is below can be destroyed.
pub(super) fn check_unused(fw: &Firmware, number: u32) -> Result<(), Failure> {
    const USED: Failure = Failure::new(
        Status::BadResourceState,
        "DESTROY_GENERAL_OBJECT: queues are in the group, or elements below the node",
    );
    match fw.icm.element(number).map_or(0, |element| element.users) {
        0 => Ok(()),
        users => Err(USED.of(number).got(users)),
    }
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
