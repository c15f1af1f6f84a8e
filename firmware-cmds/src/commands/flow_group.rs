//! Flow groups: ranges of places of a table whose entries compare the same fields.
//!
//! Source: PRM "CREATE_FLOW_GROUP" and its companions; mlx5 driver (field use). By inference: groups of a table have no
//! place in common.

use hca_spec::command::Status;
use hca_spec::flow::{CreateFlowGroupIn, FlowIn, MatchLayers, QueryFlowGroupOut, criteria};

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::flow_table;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::{Kind, Object};
use crate::steering::{Group, MOST_CRITERIA, NewGroup, NoGroup, NotCompared, Steering};

/// The group that a command names.
fn find<'a>(fw: &'a Firmware, call: &Call<'_>) -> Result<(u32, &'a Group), Failure> {
    let (table, ..) = flow_table::find(fw, call)?;
    let number = call.view::<FlowIn>()?.get(FlowIn::GROUP_ID);
    Ok((number, of_table(fw, table, number)?))
}

/// A group of a table.
pub(super) fn of_table(fw: &Firmware, table: u32, number: u32) -> Result<&Group, Failure> {
    const NONE: Failure = bad_resource("flow groups: the table has no group of that number");
    fw.icm.steering.group(number).filter(|group| group.table == table).ok_or(NONE.of(number).got(table))
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const HASH: Failure =
        bad_param("CREATE_FLOW_GROUP: group_type must be 0: entries are told apart by criteria");
    const SOFTWARE: Failure =
        bad_param("CREATE_FLOW_GROUP: the driver writes the table's entries itself (sw_owner)");
    const DEFINER: Failure = bad_param("CREATE_FLOW_GROUP: match_definer_id: groups name no definers");
    const ORDER: Failure = bad_param("CREATE_FLOW_GROUP: start_flow_index is above end_flow_index");
    const BEYOND: Failure = bad_param("CREATE_FLOW_GROUP: end_flow_index is beyond the table");
    const OVERLAP: Failure =
        Failure::new(Status::BadResourceState, "CREATE_FLOW_GROUP: another group has some of the places");
    const COMPARED: Failure =
        bad_param("CREATE_FLOW_GROUP: match_criteria has a field that tables of the type can't compare");
    const CRITERIA: Failure =
        no_room("CREATE_FLOW_GROUP: the groups of a table may have 512 different criteria");
    const FULL: Failure = no_room("CREATE_FLOW_GROUP: every number of a group is in use");
    const _: () = assert!(MOST_CRITERIA == 512, "as the refusal says");
    let create = call.view::<CreateFlowGroupIn>()?;
    let (table, context, _) = flow_table::find(fw, call)?;
    if context.software.is_some() {
        return Err(SOFTWARE.of(table));
    }
    if create.get(CreateFlowGroupIn::GROUP_TYPE) != 0 {
        return Err(HASH.got(create.get(CreateFlowGroupIn::GROUP_TYPE)));
    }
    if create.get(CreateFlowGroupIn::MATCH_DEFINER_ID) != 0 {
        return Err(DEFINER.got(create.get(CreateFlowGroupIn::MATCH_DEFINER_ID)));
    }
    let first = create.get(CreateFlowGroupIn::START_FLOW_INDEX);
    let last = create.get(CreateFlowGroupIn::END_FLOW_INDEX);
    if first > last {
        return Err(ORDER.got(first).limit(last));
    }
    if u64::from(last) >> context.log_size != 0 {
        return Err(BEYOND.of(table).got(last).limit(1u64 << context.log_size));
    }
    if let Some(group) = context.group_within(first, last) {
        return Err(OVERLAP.of(group).got(first).limit(last));
    }
    // Criteria in parts that are not enabled don't count.
    let enable = create.get(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE);
    let new = NewGroup { table, places: (first, last), enable, mask: create.criteria() };
    let number = fw.icm.steering.create_group(&new).map_err(|why| match why {
        // The offset of the word within match_criteria.
        NoGroup::Compared(NotCompared(at)) => COMPARED.of(table).got(at),
        NoGroup::Criteria => CRITERIA.of(table),
        NoGroup::Table | NoGroup::Full => FULL.of(table),
    })?;
    named(number)
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure =
        Failure::new(Status::BadResourceState, "DESTROY_FLOW_GROUP: the group still has entries");
    let (number, group) = find(fw, call)?;
    if group.entries > 0 {
        return Err(USED.of(number).got(group.entries));
    }
    fw.icm.steering.destroy_group(number);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let (_, group) = find(fw, call)?;
    let mut out = QueryFlowGroupOut::new();
    let (first, last) = group.places;
    out.set(QueryFlowGroupOut::START_FLOW_INDEX, first).set(QueryFlowGroupOut::END_FLOW_INDEX, last);
    out.set(QueryFlowGroupOut::MATCH_CRITERIA_ENABLE, group.enable);
    *out.criteria_mut() = Steering::mask(group);
    Ok(reply(&out))
}

/// The table of CREATE_FLOW_GROUP: groups in others' tables would be theirs.
pub(super) fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    let table = call.view::<FlowIn>().map(|flow| flow.get(FlowIn::TABLE_ID)).unwrap_or_default();
    vec![(Object::new(Kind::FlowTable, table), false)]
}

/// Last place of the template's group.
const LAST: u32 = 63;

/// CREATE_FLOW_GROUP: the first places of a table, by destination port of UDP.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateFlowGroupIn::new();
    create.set(CreateFlowGroupIn::TABLE_ID, fixture.number(Kind::FlowTable));
    create.set(CreateFlowGroupIn::END_FLOW_INDEX, LAST);
    create.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, criteria::OUTER);
    let layers = create.criteria_mut().outer_mut();
    layers.set(MatchLayers::IP_VERSION, 0xf).set(MatchLayers::UDP_DPORT, 0xffff);
    create.bytes().to_vec()
}
