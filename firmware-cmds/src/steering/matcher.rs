//! Entries with the same criteria, found by the value of what they compare: one look-up, however many there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::criteria::Criteria;
use super::key::{MatchValue, WORDS};
use crate::steady::SteadyMap;

/// Places of entries with the same values. The lowest wins; the others wait until it goes.
#[derive(Debug)]
enum Places {
    One(u32),
    More(BTreeSet<u32>),
}

impl Places {
    fn first(&self) -> Option<u32> {
        match self {
            Self::One(place) => Some(*place),
            Self::More(places) => places.first().copied(),
        }
    }
}

/// The entries of all groups of a table that have the same criteria.
#[derive(Debug)]
pub(super) struct Matcher {
    pub(super) criteria: Criteria,
    /// First places of the groups.
    starts: BTreeSet<u32>,
    places: SteadyMap<Arc<[u32]>, Places>,
}

impl Matcher {
    pub(super) fn new(criteria: Criteria) -> Self {
        Self { criteria, starts: BTreeSet::new(), places: SteadyMap::default() }
    }

    /// A group that begins at a place has these criteria.
    pub(super) fn join(&mut self, start: u32) {
        self.starts.insert(start);
    }

    /// The group that begins at a place is gone. Whether it was the last one.
    pub(super) fn leave(&mut self, start: u32) -> bool {
        self.starts.remove(&start);
        self.starts.is_empty()
    }

    /// No entry has a lower place.
    pub(super) fn first(&self) -> u32 {
        self.starts.first().copied().unwrap_or(u32::MAX)
    }

    /// Whether there is an entry.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn insert(&mut self, key: Arc<[u32]>, place: u32) {
        match self.places.get_mut(&key) {
            None => _ = self.places.insert(key, Places::One(place)),
            Some(Places::More(places)) => _ = places.insert(place),
            Some(one) => {
                let both = one.first().into_iter().chain([place]).collect();
                *one = Places::More(both);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &[u32], place: u32) {
        let last = match self.places.get_mut(key) {
            None => return,
            Some(Places::One(one)) => *one == place,
            Some(Places::More(places)) => {
                places.remove(&place);
                places.is_empty()
            }
        };
        if last {
            self.places.remove(key);
        }
    }

    /// The lowest place whose entry matches.
    #[inline]
    pub(super) fn find(&self, packet: &MatchValue, room: &mut [u32; WORDS]) -> Option<u32> {
        let key = self.criteria.key(packet, room)?;
        self.places.get(key)?.first()
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::flow::TableType;

    use super::*;

    /// Entries with the same values: the lowest wins, and nothing is left when the last one goes.
    #[test]
    fn entries_with_the_same_values() {
        let criteria = Criteria::new(TableType::NicRx, false, &[]).unwrap();
        let mut matcher = Matcher::new(criteria);
        let packet = crate::steering::FlowKey::default().lay_out();
        let mut room = [0; WORDS];
        [9, 3, 5].into_iter().for_each(|place| matcher.insert([].into(), place));
        for (gone, next) in [(3, Some(5)), (9, Some(5)), (5, None)] {
            matcher.remove(&[], gone);
            assert_eq!(matcher.find(&packet, &mut room), next);
        }
        assert!(matcher.is_empty());
    }
}
