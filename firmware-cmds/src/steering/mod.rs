//! Flow steering: tables of rules that say where packets go.
//!
//! ```text
//! type (NIC RX, ...) ── root ──▶ table ──▶ entry: forward to TIRs, to tables of higher levels; drop; allow; count
//!                                  └─ miss ──▶ another table, or what the type does by itself
//! ```
//!
//! The commands about it are in `commands/flow_*.rs`; whoever has a packet fills in a [`FlowKey`], lays it out as a
//! [`MatchValue`] and calls [`Steering::walk`].
//!
//! Groups of a table with the same criteria share a `matcher`: a hash map from the values of what they compare to the
//! lowest place with those values. So a look-up, and an entry that comes or goes, costs the same with one entry and with a
//! million; a packet costs a look-up for each different criteria of each table that it enters. Tables take memory for the
//! entries that are there, not for their size.
//!
//! Entries may change packets: whoever has the packet gives its bytes along ([`Frame`]), and gets other ones. A table may have
//! its entries in memory that the driver writes itself: those are read there for each packet.
//!
//! Not here: meters that entries change by themselves (ASO), an embedded switch.

mod contexts;
mod counter;
mod criteria;
mod definer;
mod entry;
mod fields;
mod frame;
mod key;
mod matcher;
mod meter;
mod offer;
mod rewrite;
mod table;
mod tags;
mod vxlan;
mod walk;
mod words;

#[cfg(test)]
mod changes_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use hca_spec::flow::{MatchParam, TableType};

use crate::steady::SteadyMap;
use crate::sw_icm::SwIcm;
use crate::table::Table;
pub(crate) use contexts::Sampler;
use counter::Counters;
pub(crate) use counter::NoCounter;
pub use counter::Traffic;
use criteria::Criteria;
pub(crate) use criteria::NotCompared;
pub(crate) use definer::Definer;
pub(crate) use entry::{address_of_meter, address_of_sampler, address_of_table, address_of_tir};
pub use fields::field_support;
pub use frame::{Frame, Parser, Places, Sight};
pub use key::{Bth, FlowKey, Geneve, Gre, Ip, L4, Layers, MatchValue, Tag};
pub(crate) use meter::{Meter, Parameters};
pub use offer::{Offer, Rewrite, TypeOffer};
pub(crate) use rewrite::{HeaderChanges, Reformat, ReformatKind, is_valid};
pub(crate) use table::{Changes, Deed, Destination, Entry, FlowTable, Group, MOST_CRITERIA, Miss};
pub use vxlan::{MOST_VXLAN_PORTS, VxlanPorts};
pub use walk::{Delivery, MOST_CHANGES, MOST_COPIES, MOST_LOOKUPS, MOST_TABLES, Target, Verdict};

/// Types of tables.
const TYPES: usize = TableType::PortSelection as usize + 1;

/// Bytes of ICM that an entry takes, without its list.
pub(crate) const ENTRY_BYTES: u64 = 384;
/// Bytes of ICM that a destination or a counter of an entry takes.
pub(crate) const LIST_BYTES: u64 = 8;
/// Bytes of ICM that a counter of a bulk takes.
pub(crate) const COUNTER_BYTES: u64 = 16;

/// Numbers of definers: entries name them with 8 bits, of which some are taken ([`hca_spec::ste::entry_format::NO_DEFINER`]).
const FIRST_DEFINER: u32 = 0x10;
pub(crate) const MOST_DEFINERS: u32 = 0xe0;

/// All flow tables of a function.
#[derive(Debug)]
pub struct Steering {
    offer: Offer,
    tables: Table<FlowTable>,
    groups: Table<Group>,
    counters: Counters,
    roots: [Root; TYPES],
    tables_of: [u32; TYPES],
    entries_of: [u32; TYPES],
    /// How many times entries name each TIR.
    tirs: SteadyMap<u32, u32>,
    /// Elements of the lists of all entries.
    listed: u64,
    /// Contexts of headers, and lists of changes.
    reformats: Table<Reformat>,
    headers: Table<HeaderChanges>,
    /// Samplers, by the numbers of their objects.
    samplers: SteadyMap<u32, Sampler>,
    /// Meters, in the same way.
    meters: SteadyMap<u32, Meter>,
    /// What entries that drivers write compare.
    pub(crate) definers: Table<Definer>,
    /// Ports at which packets are looked into for VXLAN.
    pub vxlan: VxlanPorts,
    /// Bytes of ICM that contexts and lists take.
    context_bytes: u64,
    /// Memory that drivers write entries into themselves.
    pub memory: SwIcm,
}

/// Why a group can't be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoGroup {
    Table,
    Compared(NotCompared),
    /// The table has [`MOST_CRITERIA`] others.
    Criteria,
    Full,
}

/// What a new group says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewGroup<'a> {
    pub(crate) table: u32,
    /// First and last place.
    pub(crate) places: (u32, u32),
    pub(crate) enable: u32,
    pub(crate) mask: &'a MatchParam,
}

/// Where packets of a type enter.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Root {
    /// Nobody has said it: at a table of level 0, the first there was. When that goes, one of the others takes its place, that of the
    /// lowest number.
    First { table: Option<u32>, others: BTreeSet<u32> },
    /// SET_FLOW_TABLE_ROOT has said it.
    Said(Option<u32>),
}

impl Default for Root {
    fn default() -> Self {
        Self::First { table: None, others: BTreeSet::new() }
    }
}

impl Root {
    fn table(&self) -> Option<u32> {
        let (Self::First { table, .. } | Self::Said(table)) = self;
        *table
    }

    /// A table of level 0 was made.
    fn offer(&mut self, number: u32) {
        if let Self::First { table, others } = self {
            match table {
                None => *table = Some(number),
                Some(_) => _ = others.insert(number),
            }
        }
    }

    /// That table is gone.
    fn forget(&mut self, number: u32) {
        match self {
            Self::First { table, others } if *table == Some(number) => *table = others.pop_first(),
            Self::First { others, .. } => _ = others.remove(&number),
            Self::Said(table) => *table = table.filter(|table| *table != number),
        }
    }
}

impl Steering {
    /// No table yet.
    pub fn new(offer: Offer) -> Self {
        // Numbers have 24 bits, and 0 is none.
        const NUMBERS: u32 = (1 << 24) - 1;
        Self {
            offer,
            tables: Table::new(1, NUMBERS),
            groups: Table::new(1, NUMBERS),
            counters: Counters::new(offer.max_counters),
            roots: Default::default(),
            tables_of: [0; TYPES],
            entries_of: [0; TYPES],
            tirs: SteadyMap::default(),
            listed: 0,
            reformats: Table::new(1, offer.rewrite.map_or(0, |rewrite| 1 << rewrite.log_max_reformats)),
            headers: Table::new(1, offer.rewrite.map_or(0, |rewrite| 1 << rewrite.log_max_lists)),
            samplers: SteadyMap::default(),
            meters: SteadyMap::default(),
            definers: Table::new(FIRST_DEFINER, MOST_DEFINERS),
            vxlan: VxlanPorts::default(),
            context_bytes: 0,
            memory: SwIcm::default(),
        }
    }

    /// What is offered.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Number of tables.
    pub fn tables(&self) -> u32 {
        self.tables.len()
    }

    /// Number of groups.
    pub fn groups(&self) -> u32 {
        self.groups.len()
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries_of.iter().sum()
    }

    /// Number of counters that were allocated; a bulk is one.
    pub fn counters(&self) -> u32 {
        self.counters.bulks()
    }

    /// Bytes of ICM that entries and bulks of counters take.
    pub(crate) fn icm_bytes(&self) -> u64 {
        u64::from(self.entries()) * ENTRY_BYTES
            + self.listed * LIST_BYTES
            + u64::from(self.counters.in_bulks()) * COUNTER_BYTES
            + self.context_bytes
    }

    /// How many times entries name a TIR: while they do, it stays.
    pub fn tir_users(&self, tirn: u32) -> u32 {
        self.tirs.get(&tirn).copied().unwrap_or(0)
    }

    /// The table where packets of a type enter.
    #[inline]
    pub fn root(&self, kind: TableType) -> Option<u32> {
        self.roots.get(kind as usize)?.table()
    }

    pub(crate) fn set_root(&mut self, kind: TableType, root: Option<u32>) {
        if let Some(to) = self.roots.get_mut(kind as usize) {
            *to = Root::Said(root);
        }
    }

    /// A table of level 0 was made, at which packets of its type may enter as long as nobody has said where they do.
    pub(crate) fn offer_root(&mut self, kind: TableType, table: u32) {
        if let Some(root) = self.roots.get_mut(kind as usize) {
            root.offer(table);
        }
    }

    pub(crate) fn table(&self, number: u32) -> Option<&FlowTable> {
        self.tables.get(number)
    }

    pub(crate) fn group(&self, number: u32) -> Option<&Group> {
        self.groups.get(number)
    }

    /// Tables, and entries, of a type.
    pub(crate) fn of_type(&self, kind: TableType) -> (u32, u32) {
        let of = |counts: &[u32; TYPES]| counts.get(kind as usize).copied().unwrap_or(0);
        (of(&self.tables_of), of(&self.entries_of))
    }

    /// A table more or less that packets come to a table from.
    fn hold_table(&mut self, number: u32, more: bool) {
        if let Some(table) = self.tables.get_mut(number) {
            table.users = if more { table.users + 1 } else { table.users.saturating_sub(1) };
        }
    }

    fn hold_miss(&mut self, miss: Miss, more: bool) {
        if let Miss::Table(number) = miss {
            self.hold_table(number, more);
        }
    }

    /// Stores a table. `None`: every number is taken.
    pub(crate) fn create_table(&mut self, table: FlowTable) -> Option<u32> {
        let (kind, miss) = (table.kind, table.miss);
        let number = self.tables.insert(table).ok()?;
        self.hold_miss(miss, true);
        if let Some(count) = self.tables_of.get_mut(kind as usize) {
            *count += 1;
        }
        Some(number)
    }

    /// Drops a table without groups. If it was a root that somebody said, its type has none.
    pub(crate) fn destroy_table(&mut self, number: u32) {
        let Some(table) = self.tables.remove(number) else { return };
        self.hold_miss(table.miss, false);
        if let Some(root) = self.roots.get_mut(table.kind as usize) {
            root.forget(number);
        }
        if let Some(count) = self.tables_of.get_mut(table.kind as usize) {
            *count = count.saturating_sub(1);
        }
    }

    /// Packets that no entry of a table matches go elsewhere from now on.
    pub(crate) fn set_miss(&mut self, number: u32, miss: Miss) {
        self.hold_miss(miss, true);
        if let Some(table) = self.tables.get_mut(number) {
            let before = std::mem::replace(&mut table.miss, miss);
            self.hold_miss(before, false);
        }
    }

    /// Makes a group in a table, whose places no other group has.
    pub(crate) fn create_group(&mut self, new: &NewGroup<'_>) -> Result<u32, NoGroup> {
        let NewGroup { table: number, places, enable, mask } = *new;
        let table = self.tables.get_mut(number).ok_or(NoGroup::Table)?;
        let given = criteria::given(mask, enable);
        let criteria = Criteria::new(table.kind, self.offer.geneve, &given).map_err(NoGroup::Compared)?;
        let matcher = table.join(criteria, places.0).ok_or(NoGroup::Criteria)?;
        let group = Group { table: number, places, enable, given, matcher, entries: 0 };
        match self.groups.insert(group) {
            Ok(group) => {
                table.groups.insert(places.0, (places.1, group));
                Ok(group)
            }
            Err(_) => {
                table.leave(matcher, places.0);
                Err(NoGroup::Full)
            }
        }
    }

    /// Drops a group without entries.
    pub(crate) fn destroy_group(&mut self, number: u32) {
        let Some(group) = self.groups.remove(number) else { return };
        if let Some(table) = self.tables.get_mut(group.table) {
            table.groups.remove(&group.places.0);
            table.leave(group.matcher, group.places.0);
        }
    }

    /// The criteria of a group as they were given.
    pub(crate) fn mask(group: &Group) -> MatchParam {
        criteria::mask(&group.given)
    }

    /// Values of an entry as its group compares them.
    pub(crate) fn key(group: &Group, value: &MatchParam) -> Arc<[u32]> {
        Criteria::key_of(&group.given, value)
    }

    /// Values of an entry.
    pub(crate) fn value(group: &Group, entry: &Entry) -> MatchParam {
        criteria::value(&group.given, &entry.key)
    }

    /// An entry more or less that does this.
    fn hold(&mut self, what: &Deed, more: bool) {
        for destination in &what.destinations {
            match *destination {
                Destination::Table(number) => self.hold_table(number, more),
                Destination::Tir(tirn) if more => match self.tirs.get_mut(&tirn) {
                    Some(users) => *users += 1,
                    None => _ = self.tirs.insert(tirn, 1),
                },
                Destination::Tir(tirn) => {
                    if let Some(users) = self.tirs.get_mut(&tirn) {
                        *users = users.saturating_sub(1);
                        if *users == 0 {
                            self.tirs.remove(&tirn);
                        }
                    }
                }
                Destination::Sampler(number) => self.hold_sampler(number, more),
                Destination::Uplink => {}
            }
        }
        self.hold_contexts(what, more);
        what.counters.iter().for_each(|id| self.counters.hold(*id, more));
        let listed = (what.destinations.len() + what.counters.len()) as u64;
        self.listed = if more { self.listed + listed } else { self.listed.saturating_sub(listed) };
    }

    /// Puts an entry into a place of its group that is free.
    pub(crate) fn insert_entry(&mut self, place: u32, entry: Entry) {
        let Some(group) = self.groups.get_mut(entry.group) else { return };
        let (number, matcher) = (group.table, group.matcher);
        group.entries += 1;
        self.hold(&entry.what, true);
        let Some(table) = self.tables.get_mut(number) else { return };
        if let Some(count) = self.entries_of.get_mut(table.kind as usize) {
            *count += 1;
        }
        table.insert(matcher, place, entry);
    }

    /// An entry does something else from now on.
    pub(crate) fn change_entry(&mut self, table: u32, place: u32, what: Deed) {
        // What both name is held all the while.
        self.hold(&what, true);
        let entry = self.tables.get_mut(table).and_then(|table| table.entries.get_mut(&place));
        if let Some(entry) = entry {
            let before = std::mem::replace(&mut entry.what, what);
            self.hold(&before, false);
        }
    }

    /// Takes an entry out.
    pub(crate) fn remove_entry(&mut self, table: u32, place: u32) {
        let Some(table) = self.tables.get_mut(table) else { return };
        let Some(number) = table.entry(place).map(|entry| entry.group) else { return };
        let Some(group) = self.groups.get_mut(number) else { return };
        group.entries = group.entries.saturating_sub(1);
        let Some(entry) = table.remove(group.matcher, place) else { return };
        if let Some(count) = self.entries_of.get_mut(table.kind as usize) {
            *count = count.saturating_sub(1);
        }
        self.hold(&entry.what, false);
    }

    /// What a flow counter has counted; `None` if it is not there.
    pub fn counter(&self, id: u32) -> Option<Traffic> {
        self.counters.get(id)
    }

    #[cfg(test)]
    pub(crate) fn count_for_tests(&self, id: u32, octets: u64) {
        self.counters.count(id, octets);
    }

    /// A counter begins anew.
    pub(crate) fn clear_counter(&self, id: u32) {
        self.counters.clear(id);
    }

    /// The first number of the bulk that the number of a counter belongs to.
    pub(crate) fn first_of_bulk(id: u32) -> u32 {
        Counters::first_of_bulk(id)
    }

    pub(crate) fn alloc_counters(&mut self, count: u32) -> Result<u32, NoCounter> {
        self.counters.alloc(count)
    }

    pub(crate) fn dealloc_counters(&mut self, id: u32) -> Result<(), NoCounter> {
        self.counters.dealloc(id)
    }
}

impl Default for Steering {
    fn default() -> Self {
        Self::new(Offer::none())
    }
}
