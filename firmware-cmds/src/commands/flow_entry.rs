//! Entries of flow tables: what a packet must show, and what is done with it.
//!
//! Source: PRM "SET_FLOW_TABLE_ENTRY", "Flow Context" and their companions; mlx5 driver (field use). By inference: an entry
//! has one fate (allow, drop or forward), and a change can't move it to another group or give it other values.

use hca_spec::command::Status;
use hca_spec::flow::{
    FlowContext, FlowIn, FlowListEntry, QueryFteOut, SetFteIn, TableType, action, destination, modify_entry,
    set_entry,
};

use super::call::{done, reply};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use super::{flow_group, flow_table};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::{Kind, Object};
use crate::steering::{Deed, Destination, Entry, FlowTable, ReformatKind, Steering, TypeOffer};

/// Actions that decide where a packet goes.
const FATES: u32 = action::ALLOW | action::DROP | action::FORWARD;

/// Whether there is a TIR of that number.
fn tir_exists(fw: &Firmware, tirn: u32) -> bool {
    fw.icm.tirs.get(tirn).is_some()
}

/// The action, if the adapter can do it, and entries of the table may.
fn action_of(table: &FlowTable, offer: &TypeOffer, actions: u32) -> Result<u32, Failure> {
    const REFORMAT: Failure = bad_param("action: 0x10: packets can't be reformatted (reformat)");
    const DECAP: Failure = bad_param("action: 0x20: tunnels can't be taken off (decap)");
    const REFORMAT_EN: Failure =
        bad_param("action: 0x10: the table was made without reformat_en, so its entries don't reformat");
    const DECAP_EN: Failure =
        bad_param("action: 0x20: the table was made without decap_en, so its entries take nothing off");
    const HEADER: Failure =
        bad_param("action: 0x40: headers can't be modified (log_max_modify_header_context)");
    const VLAN: Failure = bad_param("action: tags can't be pushed or popped (pop_vlan, push_vlan)");
    const CRYPT: Failure = bad_param("action: packets can't be encrypted or decrypted");
    const ASO: Failure = bad_param("action: 0x4000: there are no advanced steering operations");
    const OTHER: Failure = bad_param("action: has bits that mean nothing");
    const COUNT: Failure = bad_param("action: 8: entries of the type don't count (flow_counter)");
    const ALLOW: Failure =
        bad_param("action: 1: frames that are received, and copies, have no way to be let go");
    const FATE: Failure = bad_param("action: must be one of 1 (allow), 2 (drop) and 4 (forward)");
    const CHANGES: u32 = action::REFORMAT | action::DECAP | action::MODIFY_HEADER;
    let absent = [
        (if offer.reformat || offer.decap { 0 } else { action::REFORMAT }, REFORMAT),
        (if offer.decap { 0 } else { action::DECAP }, DECAP),
        (if table.changes.reformat { 0 } else { action::REFORMAT }, REFORMAT_EN),
        (if table.changes.decap { 0 } else { action::DECAP }, DECAP_EN),
        (if offer.max_changes > 0 { 0 } else { action::MODIFY_HEADER }, HEADER),
        (action::POP_VLAN | action::PUSH_VLAN | action::POP_VLAN_2 | action::PUSH_VLAN_2, VLAN),
        (action::ENCRYPT | action::DECRYPT, CRYPT),
        (action::EXECUTE_ASO, ASO),
        (!(FATES | CHANGES | action::COUNT), OTHER),
    ];
    if let Some((_, why)) = absent.into_iter().find(|(bits, _)| actions & bits != 0) {
        return Err(why.got(actions));
    }
    if actions & action::COUNT != 0 && offer.log_max_counters.is_none() {
        return Err(COUNT);
    }
    if (actions & FATES).count_ones() != 1 {
        return Err(FATE.got(actions));
    }
    let leaves = matches!(table.kind, TableType::NicTx | TableType::RdmaRx | TableType::RdmaTx);
    if actions & action::ALLOW != 0 && !leaves {
        return Err(ALLOW.got(table.kind as u32));
    }
    Ok(actions)
}

/// The contexts that an action names, if they are there and of a kind for the table.
fn contexts_of(
    fw: &Firmware,
    table: &FlowTable,
    what: &mut Deed,
    context: &FlowContext,
) -> Result<(), Failure> {
    const NO_REFORMAT: Failure =
        bad_resource("packet_reformat_id: there is no reformat context of that number");
    const NO_LIST: Failure = bad_resource("modify_header_id: there is no list of changes of that number");
    const KIND: Failure =
        bad_param("packet_reformat_id: a tunnel is put before what is sent, and taken off what is received");
    let of = |bit: u32, number: u32| if what.action & bit == 0 { 0 } else { number };
    let reformat = of(action::REFORMAT, context.get(FlowContext::PACKET_REFORMAT_ID));
    let header = of(action::MODIFY_HEADER, context.get(FlowContext::MODIFY_HEADER_ID));
    if what.action & action::REFORMAT != 0 {
        let kind = fw.icm.steering.reformat(reformat).ok_or(NO_REFORMAT.of(reformat))?.kind;
        if (kind == ReformatKind::TunnelToL2) != (table.kind == TableType::NicRx) {
            return Err(KIND.of(reformat).got(kind.bits()));
        }
    }
    if what.action & action::MODIFY_HEADER != 0 && fw.icm.steering.header_changes(header).is_none() {
        return Err(NO_LIST.of(header));
    }
    (what.reformat, what.header) = (reformat, header);
    Ok(())
}

/// No entry has more destinations, or more counters, whatever its table's type: longer lists are refused before they are looked at.
const MOST_LISTED: usize = 1 << 10;

/// Elements of a list, as [`FlowListEntry`] has them.
type Elements = Vec<[u8; 8]>;

/// The list behind the context: as many destinations and counters as it says. Of an element that the input cuts, the rest is zero:
/// drivers leave out the reserved word of the last one (OpenBSD's and Snabb's do).
fn list(call: &Call<'_>) -> Result<(Elements, Elements), Failure> {
    const FEW: Failure =
        Failure::new(Status::BadInputLength, "SET_FLOW_TABLE_ENTRY: the list is shorter than its sizes say");
    const LONG: Failure = bad_param(
        "destination_list_size, flow_counter_list_size: more than 1024, and than entries of any type have",
    );
    let context = call.view::<SetFteIn>()?.context();
    let destinations = context.get(FlowContext::DESTINATION_LIST_SIZE) as usize;
    let counters = context.get(FlowContext::FLOW_COUNTER_LIST_SIZE) as usize;
    let list = call.input.get(SetFteIn::SIZE..).unwrap_or_default().chunks(8).map(|element| {
        let mut whole = [0; 8];
        whole.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
        whole
    });
    let few = FEW.got(list.len() as u64).least(destinations as u64 + counters as u64);
    if list.len() < destinations.saturating_add(counters) {
        return Err(few);
    }
    if destinations.max(counters) > MOST_LISTED {
        return Err(LONG.got(destinations.max(counters) as u64).limit(MOST_LISTED as u64));
    }
    let all: Elements = list.take(destinations + counters).collect();
    let (destinations, counters) = all.split_at_checked(destinations).ok_or(few)?;
    Ok((destinations.to_vec(), counters.to_vec()))
}

/// A destination that entries of a table may have.
fn destination_of(
    fw: &Firmware,
    table: &FlowTable,
    offer: &TypeOffer,
    ignore_level: bool,
    element: &[u8; 8],
) -> Result<Destination, Failure> {
    const VPORT: Failure = bad_param("destination_type 0: there is no embedded switch with virtual ports");
    const SAMPLER: Failure = bad_param("destination_type 6: entries of the type have no samplers");
    const NO_SAMPLER: Failure = bad_resource("destination_id: there is no sampler of that number and type");
    const ENDS: Failure = bad_param("destination_type: packets end in the table (termination_table)");
    const TYPE: Failure = bad_param("destination_type 0xa: tables don't lead to the root of another type");
    const UNKNOWN: Failure = bad_param("destination_type: there is no such type");
    const UPLINK: Failure =
        bad_param("destination_type 8: only frames that are sent by the NIC's tables go to the wire");
    const TIR: Failure = bad_param("destination_type 2: packets that are sent don't go to a TIR");
    const NO_TIR: Failure = bad_resource("destination_id: there is no TIR of that number");
    const NO_TABLE: Failure = bad_resource("destination_id: there is no flow table of that number and type");
    const LEVEL: Failure = bad_param("destination_id: the table's level is not above that of the entry's");
    const REFORMAT: Failure = bad_param("packet_reformat: packets can't be reformatted");
    const SWITCH: Failure = bad_param("destination_eswitch_owner_vhca_id_valid: there is no other switch");
    let element = FlowListEntry::from_prefix_or_zero(element);
    if element.get(FlowListEntry::PACKET_REFORMAT) == 1 {
        return Err(REFORMAT);
    }
    if element.get(FlowListEntry::ESWITCH_OWNER_VHCA_ID_VALID) == 1 {
        return Err(SWITCH);
    }
    let number = element.get(FlowListEntry::DESTINATION_ID);
    let received = matches!(table.kind, TableType::NicRx | TableType::SnifferRx | TableType::RdmaRx);
    match element.get(FlowListEntry::DESTINATION_TYPE) {
        // A copy of what is sent goes to a TIR, too.
        destination::TIR if !received && table.kind != TableType::SnifferTx => Err(TIR.of(number)),
        destination::TIR if !tir_exists(fw, number) => Err(NO_TIR.of(number)),
        destination::TIR => Ok(Destination::Tir(number)),
        destination::FLOW_TABLE => {
            let next = fw.icm.steering.table(number).filter(|next| next.kind == table.kind);
            let next = next.ok_or(NO_TABLE.of(number))?;
            if table.ends {
                return Err(ENDS.of(number));
            }
            if next.level <= table.level && !(ignore_level && offer.ignore_level) {
                return Err(LEVEL.of(number).got(next.level).least(u64::from(table.level).saturating_add(1)));
            }
            Ok(Destination::Table(number))
        }
        destination::UPLINK if table.kind == TableType::NicTx => Ok(Destination::Uplink),
        destination::UPLINK => Err(UPLINK),
        destination::VPORT => Err(VPORT.of(number)),
        destination::FLOW_SAMPLER if !offer.software => Err(SAMPLER.of(number)),
        destination::FLOW_SAMPLER => {
            let sampler = fw.icm.steering.sampler(number);
            let all = sampler.and_then(|sampler| fw.icm.steering.table(sampler.all));
            all.filter(|all| all.kind == table.kind).ok_or(NO_SAMPLER.of(number))?;
            Ok(Destination::Sampler(number))
        }
        destination::TABLE_TYPE => Err(TYPE.of(number)),
        other => Err(UNKNOWN.got(other)),
    }
}

/// What the entry will do: all of it if it is new, else what `mask` says, and the rest as before.
fn deed(
    fw: &Firmware,
    call: &Call<'_>,
    table: &FlowTable,
    offer: &TypeOffer,
    before: Option<&Deed>,
) -> Result<Deed, Failure> {
    const IGNORE: Failure = bad_param("ignore_flow_level: entries of the type lead to higher levels only");
    const EXTENDED: Failure = bad_param("extended_destination: destinations have no reformat contexts");
    const MANY: Failure = bad_param("destination_list_size is above 2^log_max_destination");
    const MANY_COUNTERS: Failure = bad_param("flow_counter_list_size is above 2^log_max_flow_counter");
    const NO_COUNTER: Failure = bad_resource("flow_counter_id: the counter is not allocated");
    const NOWHERE: Failure = bad_param("action: 4 (forward), and destination_list_size is 0");
    const NOTHING: Failure = bad_param("action: 8 (count), and flow_counter_list_size is 0");
    let set = call.view::<SetFteIn>()?;
    let context = set.context();
    let ignore_level = set.get(SetFteIn::IGNORE_FLOW_LEVEL) == 1;
    if ignore_level && !offer.ignore_level {
        return Err(IGNORE);
    }
    // Whether a part of the entry is what the input says.
    let mask = set.get(SetFteIn::MODIFY_ENABLE_MASK);
    let says = |bit| before.is_none() || mask & bit != 0;
    let (destinations, counters) = list(call)?;
    let mut what = before.cloned().unwrap_or_default();
    // What goes with actions that are refused (push_vlan, encryption) says nothing, and so does flow_source: it tells where
    // packets of an embedded switch come from.
    if says(modify_entry::ACTION) {
        what.action = action_of(table, offer, context.get(FlowContext::ACTION))?;
        contexts_of(fw, table, &mut what, context)?;
    }
    if says(modify_entry::FLOW_TAG) {
        what.tag = context.get(FlowContext::FLOW_TAG);
    }
    if says(modify_entry::DESTINATIONS) {
        if context.get(FlowContext::EXTENDED_DESTINATION) == 1 {
            return Err(EXTENDED);
        }
        if destinations.len() as u64 > 1 << offer.log_max_destinations {
            return Err(MANY.got(destinations.len() as u64).limit(1u64 << offer.log_max_destinations));
        }
        let each = |element| destination_of(fw, table, offer, ignore_level, element);
        what.destinations = destinations.iter().map(each).collect::<Result<_, _>>()?;
    }
    if says(modify_entry::COUNTERS) {
        let most = offer.log_max_counters.map_or(0, |log| 1u64 << log);
        if counters.len() as u64 > most {
            return Err(MANY_COUNTERS.got(counters.len() as u64).limit(most));
        }
        let id = |element: &[u8; 8]| {
            FlowListEntry::from_prefix_or_zero(element).get(FlowListEntry::FLOW_COUNTER_ID)
        };
        what.counters = counters.iter().map(id).collect();
        if let Some(none) = what.counters.iter().find(|id| fw.icm.steering.counter(**id).is_none()) {
            return Err(NO_COUNTER.of(*none));
        }
    }
    // A list that the action does not ask for is kept: a later change of the action may.
    if what.action & action::FORWARD != 0 && what.destinations.is_empty() {
        return Err(NOWHERE);
    }
    if what.action & action::COUNT != 0 && what.counters.is_empty() {
        return Err(NOTHING);
    }
    Ok(what)
}

pub(super) fn set(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const MODIFIER: Failure = bad_param("SET_FLOW_TABLE_ENTRY: op_mod is neither 0 (create) nor 1 (modify)");
    match call.op_mod {
        set_entry::CREATE => create(fw, call),
        set_entry::MODIFY => modify(fw, call),
        other => Err(MODIFIER.got(other)),
    }
}

fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const OUTSIDE: Failure = bad_param("SET_FLOW_TABLE_ENTRY: flow_index is not a place of the group");
    const TAKEN: Failure =
        Failure::new(Status::BadResourceState, "SET_FLOW_TABLE_ENTRY: there is an entry at flow_index");
    const FULL: Failure = no_room("SET_FLOW_TABLE_ENTRY: there are 2^log_max_flow entries of the type");
    let set = call.view::<SetFteIn>()?;
    let (number, table, offer) = flow_table::find(fw, call)?;
    let group = set.context().get(FlowContext::GROUP_ID);
    let of = flow_group::of_table(fw, number, group)?;
    let (place, (first, last)) = (set.get(SetFteIn::FLOW_INDEX), of.places);
    if !(first..=last).contains(&place) {
        return Err(OUTSIDE.of(group).got(place).limit(last));
    }
    if table.entry(place).is_some() {
        return Err(TAKEN.of(number).got(place));
    }
    let (_, entries) = fw.icm.steering.of_type(table.kind);
    if u64::from(entries) >> offer.log_max_entries != 0 {
        return Err(FULL.got(entries));
    }
    // Values of what the group does not compare don't count.
    let key = Steering::key(of, set.context().value());
    let what = deed(fw, call, table, offer, None)?;
    fw.icm.steering.insert_entry(place, Entry { group, key, what });
    Ok(done())
}

fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FIXED: Failure =
        bad_param("SET_FLOW_TABLE_ENTRY: entries of the type can't be changed (flow_modify_en)");
    const MASK: Failure = bad_param("SET_FLOW_TABLE_ENTRY: modify_enable_mask has bits that mean nothing");
    const GROUP: Failure = bad_param("SET_FLOW_TABLE_ENTRY: group_id: the entry is in another group");
    const VALUE: Failure = bad_param("SET_FLOW_TABLE_ENTRY: match_value is not that of the entry");
    const ALL: u32 =
        modify_entry::ACTION | modify_entry::FLOW_TAG | modify_entry::DESTINATIONS | modify_entry::COUNTERS;
    let set = call.view::<SetFteIn>()?;
    let (number, table, offer) = flow_table::find(fw, call)?;
    if !offer.modify_entries {
        return Err(FIXED);
    }
    let mask = set.get(SetFteIn::MODIFY_ENABLE_MASK);
    if mask & !ALL != 0 {
        return Err(MASK.got(mask));
    }
    let place = set.get(SetFteIn::FLOW_INDEX);
    let entry = entry_at(table, number, place)?;
    let group = set.context().get(FlowContext::GROUP_ID);
    if group != entry.group {
        return Err(GROUP.of(number).got(group).exactly(entry.group));
    }
    let of = flow_group::of_table(fw, number, group)?;
    if Steering::key(of, set.context().value()) != entry.key {
        return Err(VALUE.of(number).got(place));
    }
    let what = deed(fw, call, table, offer, Some(&entry.what))?;
    fw.icm.steering.change_entry(number, place, what);
    Ok(done())
}

fn entry_at(table: &FlowTable, number: u32, place: u32) -> Result<&Entry, Failure> {
    const NONE: Failure = bad_resource("flow entries: there is none at flow_index");
    table.entry(place).ok_or(NONE.of(number).got(place))
}

pub(super) fn delete(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let (number, table, _) = flow_table::find(fw, call)?;
    let place = call.view::<FlowIn>()?.get(FlowIn::FLOW_INDEX);
    entry_at(table, number, place)?;
    fw.icm.steering.remove_entry(number, place);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let (number, table, _) = flow_table::find(fw, call)?;
    let entry = entry_at(table, number, call.view::<FlowIn>()?.get(FlowIn::FLOW_INDEX))?;
    let group = flow_group::of_table(fw, number, entry.group)?;
    let what = &entry.what;
    let mut out = QueryFteOut::new();
    let context = out.context_mut();
    context.set(FlowContext::GROUP_ID, entry.group).set(FlowContext::FLOW_TAG, what.tag);
    context.set(FlowContext::ACTION, what.action);
    context.set(FlowContext::PACKET_REFORMAT_ID, what.reformat);
    context.set(FlowContext::MODIFY_HEADER_ID, what.header);
    context.set(FlowContext::DESTINATION_LIST_SIZE, what.destinations.len() as u32);
    context.set(FlowContext::FLOW_COUNTER_LIST_SIZE, what.counters.len() as u32);
    *context.value_mut() = Steering::value(group, entry);
    let mut output = reply(&out);
    let destinations = what.destinations.iter().map(|destination| match *destination {
        Destination::Tir(tirn) => element(destination::TIR, tirn),
        Destination::Table(table) => element(destination::FLOW_TABLE, table),
        Destination::Uplink => element(destination::UPLINK, 0),
        Destination::Sampler(number) => element(destination::FLOW_SAMPLER, number),
    });
    let counters =
        what.counters.iter().map(|id| *FlowListEntry::new().set(FlowListEntry::FLOW_COUNTER_ID, *id));
    destinations.chain(counters).for_each(|element| output.extend_from_slice(element.bytes()));
    Ok(output)
}

fn element(kind: u32, number: u32) -> FlowListEntry {
    let mut element = FlowListEntry::new();
    *element.set(FlowListEntry::DESTINATION_TYPE, kind).set(FlowListEntry::DESTINATION_ID, number)
}

/// Groups, tables, TIRs and counters that SET_FLOW_TABLE_ENTRY names.
pub(super) fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    let (Ok(set), Ok((destinations, counters))) = (call.view::<SetFteIn>(), list(call)) else {
        return Vec::new();
    };
    let number = |element: &[u8; 8]| FlowListEntry::from_prefix_or_zero(element);
    let destinations = destinations.iter().map(number).filter_map(|element| {
        let kind = match element.get(FlowListEntry::DESTINATION_TYPE) {
            destination::FLOW_TABLE => Kind::FlowTable,
            destination::TIR => Kind::Tir,
            destination::FLOW_SAMPLER => Kind::GeneralObject,
            // The uplink is nobody's; other kinds are refused.
            _ => return None,
        };
        Some(Object::new(kind, element.get(FlowListEntry::DESTINATION_ID)))
    });
    let counters = counters.iter().map(number).map(|element| {
        Object::new(Kind::FlowCounter, Steering::first_of_bulk(element.get(FlowListEntry::FLOW_COUNTER_ID)))
    });
    let context = set.context();
    let group = Object::new(Kind::FlowGroup, context.get(FlowContext::GROUP_ID));
    let named = |bit: u32, kind, number| {
        (context.get(FlowContext::ACTION) & bit != 0).then(|| Object::new(kind, number))
    };
    let reformat =
        named(action::REFORMAT, Kind::ReformatContext, context.get(FlowContext::PACKET_REFORMAT_ID));
    let header =
        named(action::MODIFY_HEADER, Kind::HeaderContext, context.get(FlowContext::MODIFY_HEADER_ID));
    let destinations = destinations.chain(reformat).chain(header);
    [group].into_iter().chain(destinations).chain(counters).map(|object| (object, false)).collect()
}

/// SET_FLOW_TABLE_ENTRY: the first place of the group; drop and count.
pub(super) fn set_template(fixture: &Fixture) -> Vec<u8> {
    let mut set = SetFteIn::new();
    set.set(SetFteIn::TABLE_ID, fixture.number(Kind::FlowTable));
    let context = set.context_mut();
    context.set(FlowContext::GROUP_ID, fixture.number(Kind::FlowGroup));
    context
        .set(FlowContext::ACTION, action::DROP | action::COUNT)
        .set(FlowContext::FLOW_COUNTER_LIST_SIZE, 1);
    let counter = u64::from(fixture.number(Kind::FlowCounter)) << 32;
    input(set.bytes(), set_entry::CREATE, [counter])
}

#[cfg(test)]
mod tests;
