//! A flow table: its groups, its entries, and the index by which entries are found.

use std::collections::BTreeMap;
use std::sync::Arc;

use hca_spec::flow::TableType;

use super::criteria::Criteria;
use super::key::{MatchValue, WORDS};
use super::matcher::Matcher;
use crate::steady::SteadyMap;

/// Different criteria of one table: each may cost a packet a look-up, and the making of a group a comparison.
pub(crate) const MOST_CRITERIA: usize = 512;

/// Where packets go that no entry of a table matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Miss {
    /// What the type does by itself.
    #[default]
    Default,
    /// Another table.
    Table(u32),
    /// The root of the NIC's tables.
    SwitchDomain,
}

/// Where an entry sends a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Tir(u32),
    Table(u32),
    /// The wire.
    Uplink,
    Sampler(u32),
}

/// An entry.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) group: u32,
    /// Values of what the group compares.
    pub(crate) key: Arc<[u32]>,
    pub(crate) what: Deed,
}

/// What an entry does with a packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Deed {
    /// Bits of [`hca_spec::flow::action`].
    pub(crate) action: u32,
    pub(crate) tag: u32,
    /// They count if the action forwards.
    pub(crate) destinations: Box<[Destination]>,
    /// Numbers of counters; they count if the action counts.
    pub(crate) counters: Box<[u32]>,
    /// Its list of changes, if the action changes; 0 = none.
    pub(crate) header: u32,
    /// Its reformat context, if the action reformats; 0 = none.
    pub(crate) reformat: u32,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) table: u32,
    /// First and last place.
    pub(crate) places: (u32, u32),
    /// Which parts of the criteria count.
    pub(crate) enable: u32,
    /// Bits as the driver gave them.
    pub(super) given: Box<[(u8, u32)]>,
    /// Which of the table's matchers has the entries.
    pub(super) matcher: usize,
    pub(crate) entries: u32,
}

/// What entries of a table may do to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Changes {
    /// Reformat them (`reformat_en`).
    pub(crate) reformat: bool,
    /// Take tunnels off (`decap_en`).
    pub(crate) decap: bool,
}

/// A table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    pub(crate) kind: TableType,
    pub(crate) level: u32,
    pub(crate) log_size: u32,
    pub(crate) miss: Miss,
    /// Where in the adapter's memory packets enter, if the driver writes entries there itself: it has no groups.
    pub(crate) software: Option<u64>,
    /// Its entries may change packets: put headers before them, take tunnels off.
    pub(crate) changes: Changes,
    /// Packets end here: its entries lead to no other table.
    pub(crate) ends: bool,
    /// Entries, and tables, from which packets come here.
    pub(crate) users: u32,
    /// Last place and number of each group, by its first place.
    pub(super) groups: BTreeMap<u32, (u32, u32)>,
    /// An empty one is free.
    matchers: Vec<Option<Matcher>>,
    /// The matchers that are there, by the first place of their groups.
    order: Vec<usize>,
    /// By place.
    pub(super) entries: SteadyMap<u32, Entry>,
}

impl FlowTable {
    pub(crate) fn new(kind: TableType, level: u32, log_size: u32, miss: Miss) -> Self {
        Self {
            kind,
            level,
            log_size,
            miss,
            software: None,
            changes: Changes::default(),
            ends: false,
            users: 0,
            groups: BTreeMap::new(),
            matchers: Vec::new(),
            order: Vec::new(),
            entries: SteadyMap::default(),
        }
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The entry at a place.
    pub(crate) fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(&place)
    }

    /// A group that has one of the places `first ..= last`.
    pub(crate) fn group_within(&self, first: u32, last: u32) -> Option<u32> {
        let (_, (end, group)) = self.groups.range(..=last).next_back()?;
        (*end >= first).then_some(*group)
    }

    /// A group with criteria. `None`: the table has [`MOST_CRITERIA`] others.
    pub(super) fn join(&mut self, criteria: Criteria, start: u32) -> Option<usize> {
        let same = |matcher: &Option<Matcher>| matcher.as_ref().is_some_and(|m| m.criteria == criteria);
        let at = match self.matchers.iter().position(same) {
            Some(at) => at,
            None if self.order.len() >= MOST_CRITERIA => return None,
            None => {
                let new = Some(Matcher::new(criteria));
                match self.matchers.iter().position(Option::is_none) {
                    Some(free) => {
                        if let Some(slot) = self.matchers.get_mut(free) {
                            *slot = new;
                        }
                        free
                    }
                    None => {
                        self.matchers.push(new);
                        self.matchers.len() - 1
                    }
                }
            }
        };
        if let Some(Some(matcher)) = self.matchers.get_mut(at) {
            matcher.join(start);
        }
        self.sort();
        Some(at)
    }

    /// The group that begins at a place is gone.
    pub(super) fn leave(&mut self, matcher: usize, start: u32) {
        if let Some(slot) = self.matchers.get_mut(matcher)
            && slot.as_mut().is_some_and(|matcher| matcher.leave(start))
        {
            *slot = None;
        }
        while self.matchers.pop_if(|matcher| matcher.is_none()).is_some() {}
        self.sort();
    }

    /// At most [`MOST_CRITERIA`] of them, when a group comes or goes.
    fn sort(&mut self) {
        let matchers = self.matchers.iter().enumerate();
        let mut order: Vec<(u32, usize)> =
            matchers.filter_map(|(at, matcher)| Some((matcher.as_ref()?.first(), at))).collect();
        order.sort_unstable();
        self.order = order.into_iter().map(|(_, at)| at).collect();
    }

    /// Puts an entry into a place; gives what was there.
    pub(super) fn insert(&mut self, matcher: usize, place: u32, entry: Entry) {
        if let Some(Some(matcher)) = self.matchers.get_mut(matcher) {
            matcher.insert(entry.key.clone(), place);
        }
        self.entries.insert(place, entry);
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, matcher: usize, place: u32) -> Option<Entry> {
        let entry = self.entries.remove(&place)?;
        if let Some(Some(matcher)) = self.matchers.get_mut(matcher) {
            matcher.remove(&entry.key, place);
        }
        Some(entry)
    }

    /// The entry of the lowest place that matches; `budget` loses one for each look-up, and at 0 the search ends.
    #[inline]
    pub(super) fn find(
        &self,
        packet: &MatchValue,
        room: &mut [u32; WORDS],
        budget: &mut u32,
    ) -> Option<&Entry> {
        let mut best: Option<u32> = None;
        for matcher in self.order.iter().filter_map(|at| self.matchers.get(*at)?.as_ref()) {
            // Those behind have higher places only.
            if best.is_some_and(|best| best < matcher.first()) {
                break;
            }
            if matcher.is_empty() {
                continue;
            }
            *budget = budget.checked_sub(1)?;
            if let Some(place) = matcher.find(packet, room) {
                best = Some(best.map_or(place, |best| best.min(place)));
            }
        }
        self.entries.get(&best?)
    }
}
