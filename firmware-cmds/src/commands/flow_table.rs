//! Flow tables and their roots. Groups, entries and counters have files of their own.
//!
//! Source: PRM "CREATE_FLOW_TABLE", "MODIFY_FLOW_TABLE", "SET_FLOW_TABLE_ROOT" and their companions; mlx5 driver (field
//! use). By inference: a table that has groups, or that packets come to from entries or other tables, stays; a root that was said goes,
//! and its type has none. Until SET_FLOW_TABLE_ROOT says another, the root is a table of level 0 (Linux, commit 2fecfb445799
//! "Managing root flow table"): drivers from before that, and Caladan, never send it. By inference it is the first of several, and when that
//! goes the one of the lowest number of those that are left, so that a type that has such a table has a root.

use hca_spec::command::Status;
use hca_spec::flow::{
    CreateFlowTableIn, CreateFlowTableOut, FlowIn, FlowTableContext, ModifyFlowTableIn, QueryFlowTableOut,
    SetFlowTableRootIn, TableType, miss_action, modify_table, root,
};
use hca_spec::layout::Field;
use hca_spec::ste::Ste;

use super::call::{done, reply};
use super::devx::is_kernels;
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::{Kind, Object};
use crate::steering::{Changes, FlowTable, Miss, TypeOffer, address_of_table};

/// Whether the adapter has flow tables: Ethernet ports have.
pub(super) fn has_steering(fw: &Firmware) -> bool {
    !fw.icm.steering.offer().is_none()
}

/// The type of tables that a command is about, if the adapter has it. `OTHER_VPORT` and `TABLE_TYPE` are in the same place
/// in all of them.
pub(super) fn kind_of<'a>(fw: &'a Firmware, call: &Call<'_>) -> Result<(TableType, &'a TypeOffer), Failure> {
    const VPORT: Failure =
        bad_param("flow tables: other_vport is set: the function manages no other's tables");
    const TYPE: Failure = bad_param("flow tables: there is no such table_type");
    const SWITCH: Failure =
        bad_param("flow tables: table_type is of an embedded switch, which the adapter has not");
    const ABSENT: Failure =
        bad_param("flow tables: the adapter has no tables of that table_type (ft_support)");
    let input = call.view::<FlowIn>()?;
    // Without other_vport the number of a vport says nothing.
    if input.get(FlowIn::OTHER_VPORT) == 1 {
        return Err(VPORT);
    }
    let number = input.get(FlowIn::TABLE_TYPE);
    let kind = TableType::from_bits(number).ok_or(TYPE.got(number))?;
    if matches!(kind, TableType::EswEgressAcl | TableType::EswIngressAcl | TableType::Fdb) {
        return Err(SWITCH.got(number));
    }
    Ok((kind, fw.icm.steering.offer().of(kind).ok_or(ABSENT.got(number))?))
}

/// The table that a command names, with its type and what that offers.
pub(super) fn find<'a>(
    fw: &'a Firmware,
    call: &Call<'_>,
) -> Result<(u32, &'a FlowTable, &'a TypeOffer), Failure> {
    let (kind, offer) = kind_of(fw, call)?;
    let number = call.view::<FlowIn>()?.get(FlowIn::TABLE_ID);
    Ok((number, table_of(fw, kind, number)?, offer))
}

fn table_of(fw: &Firmware, kind: TableType, number: u32) -> Result<&FlowTable, Failure> {
    const NONE: Failure = bad_resource("flow tables: there is no table of that number");
    const OTHER: Failure = bad_resource("flow tables: the table is of another table_type");
    let table = fw.icm.steering.table(number).ok_or(NONE.of(number))?;
    if table.kind == kind {
        Ok(table)
    } else {
        Err(OTHER.of(number).got(table.kind as u32).exactly(kind as u32))
    }
}

/// Where a context sends packets that no entry matches, from a table of that level.
fn miss_of(
    fw: &Firmware,
    (kind, offer): (TableType, &TypeOffer),
    level: u32,
    context: &FlowTableContext,
) -> Result<Miss, Failure> {
    const ACTION: Failure = bad_param("table_miss_action: there is no such action");
    const MODE: Failure =
        bad_param("table_miss_action: tables of the type name no other (identified_miss_table_mode)");
    const DOMAIN: Failure = bad_param("table_miss_action: 2 is for tables with table_miss_action_domain");
    const LEVEL: Failure = bad_param("table_miss_id: the table's level is not above that of this one");
    match context.get(FlowTableContext::TABLE_MISS_ACTION) {
        // The identifier then says nothing.
        miss_action::DEFAULT => Ok(Miss::Default),
        miss_action::TABLE if !offer.miss_table => Err(MODE),
        miss_action::TABLE => {
            let number = context.get(FlowTableContext::TABLE_MISS_ID);
            let next = table_of(fw, kind, number)?;
            if next.level <= level && !offer.ignore_level {
                return Err(LEVEL.of(number).got(next.level).least(u64::from(level).saturating_add(1)));
            }
            Ok(Miss::Table(number))
        }
        miss_action::SWITCH_DOMAIN if offer.switch_domain => Ok(Miss::SwitchDomain),
        miss_action::SWITCH_DOMAIN => Err(DOMAIN.got(kind as u32)),
        other => Err(ACTION.got(other)),
    }
}

/// Where entries that drivers write send packets to come to the table. `None`: drivers write none of that type (`written`).
fn address(written: bool, software: Option<u64>, number: u32) -> Option<u64> {
    written.then(|| software.unwrap_or(address_of_table(number)))
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const REFORMAT: Failure = bad_param("CREATE_FLOW_TABLE: reformat_en: packets can't be reformatted");
    const DECAP: Failure = bad_param("CREATE_FLOW_TABLE: decap_en: headers can't be taken off");
    const OWNER: Failure =
        bad_param("CREATE_FLOW_TABLE: sw_owner: drivers don't write entries themselves here (sw_owner_v2)");
    const ROOT: Failure =
        bad_resource("CREATE_FLOW_TABLE: sw_owner_icm_root_0: no memory for entries was allocated there");
    const TERMINATION: Failure =
        bad_param("CREATE_FLOW_TABLE: termination_table: there are none of that kind");
    const SIZE: Failure = bad_param("CREATE_FLOW_TABLE: log_size is above log_max_ft_size");
    const LEVEL: Failure = bad_param("CREATE_FLOW_TABLE: level: it is above max_ft_level");
    const FULL: Failure = no_room("CREATE_FLOW_TABLE: there are 2^log_max_ft_num tables of the type");
    let (kind, offer) = kind_of(fw, call)?;
    let context = call.view::<CreateFlowTableIn>()?.context();
    let flags: [(Field<FlowTableContext>, bool, Failure); 4] = [
        (FlowTableContext::REFORMAT_EN, offer.reformat || offer.decap, REFORMAT),
        (FlowTableContext::DECAP_EN, offer.decap, DECAP),
        (FlowTableContext::SW_OWNER, offer.software, OWNER),
        // Only samplers need them, and those are for tables that drivers write.
        (FlowTableContext::TERMINATION_TABLE, offer.software, TERMINATION),
    ];
    if let Some((_, _, why)) =
        flags.into_iter().find(|(flag, offered, _)| !offered && context.get(*flag) == 1)
    {
        return Err(why);
    }
    let (size, level) = (context.get(FlowTableContext::LOG_SIZE), context.get(FlowTableContext::LEVEL));
    if size > offer.log_max_size {
        return Err(SIZE.got(size).limit(offer.log_max_size));
    }
    if level > offer.max_level {
        return Err(LEVEL.got(level).limit(offer.max_level));
    }
    let (tables, _) = fw.icm.steering.of_type(kind);
    if u64::from(tables) >> offer.log_max_tables != 0 {
        return Err(FULL.got(tables));
    }
    // lag_master_next_table_id is ignored: ports are not bonded.
    let miss = miss_of(fw, (kind, offer), level, context)?;
    let root = context.get(FlowTableContext::SW_OWNER_ICM_ROOT_0);
    let software = (context.get(FlowTableContext::SW_OWNER) == 1).then_some(root);
    if software.is_some_and(|root| !fw.icm.steering.memory.has(root, Ste::SIZE as u64)) {
        return Err(ROOT.got(root));
    }
    let changes = Changes {
        reformat: context.get(FlowTableContext::REFORMAT_EN) == 1,
        decap: context.get(FlowTableContext::DECAP_EN) == 1,
    };
    let ends = context.get(FlowTableContext::TERMINATION_TABLE) == 1;
    let mut table = FlowTable::new(kind, level, size, miss);
    (table.software, table.changes, table.ends) = (software, changes, ends);
    let written = offer.software;
    let number = fw.icm.steering.create_table(table).ok_or(FULL)?;
    // By inference: a program's table becomes no root without being said to be one.
    if level == 0 && software.is_none() && is_kernels(call) {
        fw.icm.steering.offer_root(kind, number);
    }
    let mut out = CreateFlowTableOut::new();
    out.set(CreateFlowTableOut::TABLE_ID, number);
    if let Some(address) = address(written, software, number) {
        out.set(CreateFlowTableOut::ICM_ADDRESS_63_40, (address >> 40) as u32);
        out.set(CreateFlowTableOut::ICM_ADDRESS_39_32, (address >> 32) as u32 & 0xff);
        out.set(CreateFlowTableOut::ICM_ADDRESS_31_0, address as u32);
    }
    Ok(reply(&out))
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const LAG: Failure = bad_param("MODIFY_FLOW_TABLE: modify_field_select: ports are not bonded");
    const SELECT: Failure = bad_param("MODIFY_FLOW_TABLE: modify_field_select has bits that mean nothing");
    const FIXED: Failure =
        bad_param("MODIFY_FLOW_TABLE: tables of the type can't be changed (flow_table_modify)");
    let modify = call.view::<ModifyFlowTableIn>()?;
    let (number, table, offer) = find(fw, call)?;
    let select = modify.get(ModifyFlowTableIn::MODIFY_FIELD_SELECT);
    if select & modify_table::LAG_NEXT_TABLE_ID != 0 {
        return Err(LAG);
    }
    if select & !modify_table::MISS_TABLE_ID != 0 {
        return Err(SELECT.got(select));
    }
    if !offer.modify_tables {
        return Err(FIXED);
    }
    if select & modify_table::MISS_TABLE_ID != 0 {
        let miss = miss_of(fw, (table.kind, offer), table.level, modify.context())?;
        fw.icm.steering.set_miss(number, miss);
    }
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const GROUPS: Failure =
        Failure::new(Status::BadResourceState, "DESTROY_FLOW_TABLE: the table still has groups");
    const USED: Failure = Failure::new(
        Status::BadResourceState,
        "DESTROY_FLOW_TABLE: entries or other tables lead to the table",
    );
    let (number, table, _) = find(fw, call)?;
    if table.groups() > 0 {
        return Err(GROUPS.of(number).got(table.groups() as u64));
    }
    if table.users > 0 {
        return Err(USED.of(number).got(table.users));
    }
    fw.icm.steering.destroy_table(number);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let (number, table, offer) = find(fw, call)?;
    let (action, next) = match table.miss {
        Miss::Default => (miss_action::DEFAULT, 0),
        Miss::Table(next) => (miss_action::TABLE, next),
        Miss::SwitchDomain => (miss_action::SWITCH_DOMAIN, 0),
    };
    let mut out = QueryFlowTableOut::new();
    let context = out.context_mut();
    context.set(FlowTableContext::LEVEL, table.level).set(FlowTableContext::LOG_SIZE, table.log_size);
    context.set(FlowTableContext::TABLE_MISS_ACTION, action).set(FlowTableContext::TABLE_MISS_ID, next);
    context.set(FlowTableContext::REFORMAT_EN, table.changes.reformat.into());
    context.set(FlowTableContext::DECAP_EN, table.changes.decap.into());
    context.set(FlowTableContext::TERMINATION_TABLE, table.ends.into());
    context.set(FlowTableContext::SW_OWNER, table.software.is_some().into());
    let address = address(offer.software, table.software, number);
    context.set(FlowTableContext::SW_OWNER_ICM_ROOT_0, address.unwrap_or(0));
    Ok(reply(&out))
}

pub(super) fn set_root(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FIXED: Failure = bad_param("SET_FLOW_TABLE_ROOT: the root of the type can't be set (modify_root)");
    const UNDERLAY: Failure = bad_param("SET_FLOW_TABLE_ROOT: underlay_qpn: no IPoIB interface has tables");
    const MODIFIER: Failure = bad_param("SET_FLOW_TABLE_ROOT: op_mod is neither 0 (set) nor 1 (disconnect)");
    let set = call.view::<SetFlowTableRootIn>()?;
    let (kind, offer) = kind_of(fw, call)?;
    if !offer.modify_root {
        return Err(FIXED);
    }
    let underlay = set.get(SetFlowTableRootIn::UNDERLAY_QPN);
    if underlay != 0 {
        return Err(UNDERLAY.got(underlay));
    }
    let new = match call.op_mod {
        root::SET => Some(find(fw, call)?.0),
        // A type has one root: the table that is named says nothing more.
        root::DISCONNECT => None,
        other => return Err(MODIFIER.got(other)),
    };
    fw.icm.steering.set_root(kind, new);
    Ok(done())
}

/// Tables that a context of CREATE_FLOW_TABLE or MODIFY_FLOW_TABLE names.
pub(super) fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    let Ok(create) = call.view::<CreateFlowTableIn>() else { return Vec::new() };
    let context = create.context();
    match context.get(FlowTableContext::TABLE_MISS_ACTION) {
        miss_action::TABLE => {
            vec![(Object::new(Kind::FlowTable, context.get(FlowTableContext::TABLE_MISS_ID)), false)]
        }
        _ => Vec::new(),
    }
}

/// log2 of the places of the template's table.
const LOG_SIZE: u32 = 7;
/// Its level.
const LEVEL: u32 = 10;

/// CREATE_FLOW_TABLE: frames that are received.
pub(super) fn create_template(_: &Fixture) -> Vec<u8> {
    let mut create = CreateFlowTableIn::new();
    let context = create.context_mut();
    context.set(FlowTableContext::LEVEL, LEVEL).set(FlowTableContext::LOG_SIZE, LOG_SIZE);
    create.bytes().to_vec()
}

/// MODIFY_FLOW_TABLE: the default for what no entry matches.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyFlowTableIn::new();
    modify.set(ModifyFlowTableIn::MODIFY_FIELD_SELECT, modify_table::MISS_TABLE_ID);
    modify.set(ModifyFlowTableIn::TABLE_ID, fixture.number(Kind::FlowTable)).bytes().to_vec()
}

/// SET_FLOW_TABLE_ROOT: the table.
pub(super) fn root_template(fixture: &Fixture) -> Vec<u8> {
    let mut set = SetFlowTableRootIn::new();
    set.set(SetFlowTableRootIn::TABLE_ID, fixture.number(Kind::FlowTable));
    input(set.bytes(), root::SET, [])
}

/// The other commands: what is there.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let mut flow = FlowIn::new();
    flow.set(FlowIn::TABLE_ID, fixture.number(Kind::FlowTable));
    flow.set(FlowIn::GROUP_ID, fixture.number(Kind::FlowGroup)).bytes().to_vec()
}

#[cfg(test)]
pub(super) mod tests;
