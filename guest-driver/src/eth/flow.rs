//! Flow tables: where frames go that arrive.
//!
//! A table has places; a group is a range of them whose entries compare the same fields; an entry has the values, and says
//! what is done. A frame enters at the root of NIC RX and takes, in each table, the entry of the lowest place that has its
//! values.
//!
//! Source: PRM "CREATE_FLOW_TABLE", "SET_FLOW_TABLE_ROOT", "CREATE_FLOW_GROUP", "SET_FLOW_TABLE_ENTRY" and the commands that
//! undo them, "ALLOC_FLOW_COUNTER", "QUERY_FLOW_COUNTER".

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use hca_spec::command::{Opcode, OutHeader};
use hca_spec::flow::{
    AllocFlowCounterIn, CreateFlowGroupIn, CreateFlowTableIn, FlowContext, FlowIn, FlowListEntry,
    FlowTableContext, MatchParam, QueryFlowCounterIn, SetFlowTableRootIn, SetFteIn, TableType,
    TrafficCounter, action, destination, miss_action, root,
};

use super::Tir;
use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;

/// A flow table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowTable {
    /// Where frames enter it.
    pub kind: TableType,
    /// Its number.
    pub number: u32,
}

impl FlowTable {
    fn name(self, group: u32, place: u32) -> Vec<u8> {
        let mut name = FlowIn::new();
        name.set(FlowIn::TABLE_TYPE, self.kind as u32).set(FlowIn::TABLE_ID, self.number);
        name.set(FlowIn::GROUP_ID, group).set(FlowIn::FLOW_INDEX, place);
        name.bytes().to_vec()
    }
}

/// A group of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowGroup {
    /// Its table.
    pub table: FlowTable,
    /// Its number.
    pub number: u32,
}

/// Where an entry sends a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// To another table.
    Table(FlowTable),
    /// To receive queues.
    Tir(Tir),
    /// Where frames of the table's kind go by themselves, as the only destination.
    Allow,
}

/// A flow counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowCounter(pub u32);

/// What an entry compares and does. With destinations the frame goes there; with none it is dropped.
#[derive(Clone, Copy, Debug)]
pub struct FlowEntry<'a> {
    /// The values that are compared.
    pub value: &'a MatchParam,
    /// Where frames go.
    pub destinations: &'a [Destination],
    /// Who counts them.
    pub counters: &'a [FlowCounter],
    /// What completions show; 0: nothing.
    pub tag: u32,
}

impl FlowEntry<'_> {
    fn input(&self, group: FlowGroup, place: u32) -> Vec<u8> {
        let mut set = SetFteIn::new();
        set.set(SetFteIn::TABLE_TYPE, group.table.kind as u32).set(SetFteIn::TABLE_ID, group.table.number);
        set.set(SetFteIn::FLOW_INDEX, place);
        let (forward, list) = match self.destinations {
            [] => (action::DROP, &[][..]),
            [Destination::Allow] => (action::ALLOW, &[][..]),
            list => (action::FORWARD, list),
        };
        let count = if self.counters.is_empty() { 0 } else { action::COUNT };
        let context = set.context_mut();
        context.set(FlowContext::GROUP_ID, group.number).set(FlowContext::FLOW_TAG, self.tag);
        context.set(FlowContext::ACTION, forward | count);
        context.set(FlowContext::DESTINATION_LIST_SIZE, list.len() as u32);
        context.set(FlowContext::FLOW_COUNTER_LIST_SIZE, self.counters.len() as u32);
        *context.value_mut() = *self.value;
        let mut input = set.bytes().to_vec();
        for to in list {
            let (kind, number) = match to {
                Destination::Table(table) => (destination::FLOW_TABLE, table.number),
                Destination::Tir(tir) => (destination::TIR, tir.0),
                // Refused: an entry does one thing.
                Destination::Allow => (destination::UPLINK, 0),
            };
            let mut entry = FlowListEntry::new();
            entry.set(FlowListEntry::DESTINATION_TYPE, kind).set(FlowListEntry::DESTINATION_ID, number);
            input.extend_from_slice(entry.bytes());
        }
        for counter in self.counters {
            input.extend_from_slice(
                FlowListEntry::new().set(FlowListEntry::FLOW_COUNTER_ID, counter.0).bytes(),
            );
        }
        input
    }
}

impl<B: Bus> Hca<B> {
    /// Creates a table of `1 << log_size` places. Frames that no entry takes go to the table `miss`.
    pub fn create_flow_table(
        &mut self,
        kind: TableType,
        level: u8,
        log_size: u8,
        miss: Option<FlowTable>,
    ) -> Result<FlowTable, Error> {
        let mut input = CreateFlowTableIn::new();
        input.set(CreateFlowTableIn::TABLE_TYPE, kind as u32);
        let context = input.context_mut();
        context.set(FlowTableContext::LEVEL, level.into()).set(FlowTableContext::LOG_SIZE, log_size.into());
        if let Some(table) = miss {
            context.set(FlowTableContext::TABLE_MISS_ACTION, miss_action::TABLE);
            context.set(FlowTableContext::TABLE_MISS_ID, table.number);
        }
        let number = self.create(Opcode::CreateFlowTable, 0, input.bytes().to_vec())?;
        Ok(FlowTable { kind, number })
    }

    /// Makes a table the one where frames of its kind enter.
    pub fn set_flow_root(&mut self, table: FlowTable) -> Result<(), Error> {
        let mut input = SetFlowTableRootIn::new();
        input.set(SetFlowTableRootIn::TABLE_TYPE, table.kind as u32);
        input.set(SetFlowTableRootIn::TABLE_ID, table.number);
        self.execute(Opcode::SetFlowTableRoot, root::SET, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Destroys a table without groups that nothing leads to.
    pub fn destroy_flow_table(&mut self, table: FlowTable) -> Result<(), Error> {
        self.execute(Opcode::DestroyFlowTable, 0, table.name(0, 0), OutHeader::SIZE).map(drop)
    }

    /// Creates a group of the places `places`, whose entries compare the fields of `criteria`; `parts` says which parts of
    /// that count: bits of [`hca_spec::flow::criteria`].
    pub fn create_flow_group(
        &mut self,
        table: FlowTable,
        places: RangeInclusive<u32>,
        parts: u32,
        criteria: &MatchParam,
    ) -> Result<FlowGroup, Error> {
        let mut input = CreateFlowGroupIn::new();
        input.set(CreateFlowGroupIn::TABLE_TYPE, table.kind as u32);
        input.set(CreateFlowGroupIn::TABLE_ID, table.number);
        input.set(CreateFlowGroupIn::START_FLOW_INDEX, *places.start());
        input.set(CreateFlowGroupIn::END_FLOW_INDEX, *places.end());
        input.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, parts);
        *input.criteria_mut() = *criteria;
        let number = self.create(Opcode::CreateFlowGroup, 0, input.bytes().to_vec())?;
        Ok(FlowGroup { table, number })
    }

    /// Destroys a group without entries.
    pub fn destroy_flow_group(&mut self, group: FlowGroup) -> Result<(), Error> {
        let input = group.table.name(group.number, 0);
        self.execute(Opcode::DestroyFlowGroup, 0, input, OutHeader::SIZE).map(drop)
    }

    /// Sets the entry of a place.
    pub fn set_flow_entry(
        &mut self,
        group: FlowGroup,
        place: u32,
        entry: &FlowEntry<'_>,
    ) -> Result<(), Error> {
        self.execute(Opcode::SetFlowTableEntry, 0, entry.input(group, place), OutHeader::SIZE).map(drop)
    }

    /// Takes out the entry of a place.
    pub fn delete_flow_entry(&mut self, table: FlowTable, place: u32) -> Result<(), Error> {
        self.execute(Opcode::DeleteFlowTableEntry, 0, table.name(0, place), OutHeader::SIZE).map(drop)
    }

    /// Allocates a flow counter.
    pub fn alloc_flow_counter(&mut self) -> Result<FlowCounter, Error> {
        let out = self.execute(
            Opcode::AllocFlowCounter,
            0,
            AllocFlowCounterIn::new().bytes().to_vec(),
            OutHeader::SIZE.max(16),
        )?;
        Ok(FlowCounter(hca_spec::be32(&out, 8)))
    }

    /// Frees a flow counter that no entry has.
    pub fn dealloc_flow_counter(&mut self, counter: FlowCounter) -> Result<(), Error> {
        self.object_command(Opcode::DeallocFlowCounter, counter.0)
    }

    /// What a flow counter has counted: packets and octets.
    pub fn flow_counter(&mut self, counter: FlowCounter) -> Result<(u64, u64), Error> {
        const HEADER: usize = 16;
        let mut input = QueryFlowCounterIn::new();
        input.set(QueryFlowCounterIn::FLOW_COUNTER_ID, counter.0);
        let len = HEADER + TrafficCounter::SIZE;
        let out = self.execute(Opcode::QueryFlowCounter, 0, input.bytes().to_vec(), len)?;
        let counted = TrafficCounter::from_prefix_or_zero(out.get(HEADER..).unwrap_or_default());
        Ok((counted.get(TrafficCounter::PACKETS), counted.get(TrafficCounter::OCTETS)))
    }
}
