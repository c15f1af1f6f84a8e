//! A hash map that never grows at once: no insertion or removal moves more than a part of it.
//!
//! The standard map doubles: the insertion that finds it full moves everything, which for a million flow entries takes as
//! long as ten thousand commands. Here the entries lie in parts of some hundred, each a small hash table. When they become
//! too many, the next part in turn is split in two; when they become few, the last part goes back into the one that it
//! came from (linear hashing: W. Litwin, VLDB 1980).

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Entries of a part, on average, before one is split.
const FULL: usize = 512;
/// Entries of a part, on average, before the last one is given up.
const SPARSE: usize = FULL / 4;
/// A part with this many times as much room as it needs gives room back.
const ROOMY: usize = 8;
/// A part as small as this keeps its room.
const SMALL: usize = 64;

/// A map from keys to values.
pub(crate) struct SteadyMap<K, V> {
    state: RandomState,
    /// At least one.
    parts: Vec<HashTable<(K, V)>>,
    len: usize,
}

impl<K, V> Default for SteadyMap<K, V> {
    fn default() -> Self {
        Self { state: RandomState::default(), parts: vec![HashTable::new()], len: 0 }
    }
}

/// The entries, in an order that the random state has no part in.
impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SteadyMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.parts.iter().flat_map(|part| part.iter());
        let mut all: Vec<String> = entries.map(|(key, value)| format!("{key:?}: {value:?}")).collect();
        all.sort_unstable();
        f.debug_list().entries(all).finish()
    }
}

/// The bits of a hash that choose the part: not those by which a part's own table looks.
fn chosen(hash: u64) -> usize {
    (hash >> 32) as usize & 0xff_ffff
}

/// Which of `parts` parts has a hash.
#[inline]
fn part_of(hash: u64, parts: usize) -> usize {
    let mask = parts.next_power_of_two() - 1;
    let part = chosen(hash) & mask;
    if part < parts { part } else { part & (mask >> 1) }
}

impl<K: Eq + Hash, V> SteadyMap<K, V> {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries that there is room for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.parts.iter().map(HashTable::capacity).sum()
    }

    /// Whether there is no entry.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if self.len == 0 {
            return None;
        }
        let hash = self.state.hash_one(key);
        let part = self.parts.get(part_of(hash, self.parts.len()))?;
        part.find(hash, |(k, _)| k.borrow() == key).map(|(_, value)| value)
    }

    /// The value of a key, to change.
    pub(crate) fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let hash = self.state.hash_one(key);
        let parts = self.parts.len();
        let part = self.parts.get_mut(part_of(hash, parts))?;
        part.find_mut(hash, |(k, _)| k.borrow() == key).map(|(_, value)| value)
    }

    /// Gives a key a value; what it had before is returned.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.state.hash_one(&key);
        let parts = self.parts.len();
        let state = &self.state;
        let part = self.parts.get_mut(part_of(hash, parts))?;
        match part.entry(hash, |(known, _)| *known == key, |(key, _)| state.hash_one(key)) {
            Entry::Occupied(mut old) => return Some(std::mem::replace(&mut old.get_mut().1, value)),
            Entry::Vacant(place) => drop(place.insert((key, value))),
        }
        self.len += 1;
        if self.len > FULL * parts {
            self.split();
        }
        None
    }

    /// Takes a key and its value out.
    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let hash = self.state.hash_one(key);
        let parts = self.parts.len();
        let state = &self.state;
        let part = self.parts.get_mut(part_of(hash, parts))?;
        let ((_, value), _) = part.find_entry(hash, |(k, _)| k.borrow() == key).ok()?.remove();
        if part.capacity() > SMALL.max(ROOMY * part.len()) {
            part.shrink_to(2 * part.len(), |(key, _)| state.hash_one(key));
        }
        self.len = self.len.saturating_sub(1);
        if parts > 1 && self.len < SPARSE * (parts - 1) {
            self.join();
        }
        Some(value)
    }

    /// One more part, from the one whose turn it is.
    fn split(&mut self) {
        let (before, after) = (self.parts.len(), self.parts.len() + 1);
        let from = before & (after.next_power_of_two() / 2 - 1);
        let state = &self.state;
        let Some(part) = self.parts.get_mut(from) else { return };
        let mut new = HashTable::new();
        for entry in part.extract_if(|(key, _)| part_of(state.hash_one(key), after) != from) {
            new.insert_unique(state.hash_one(&entry.0), entry, |(key, _)| state.hash_one(key));
        }
        part.shrink_to(2 * part.len(), |(key, _)| state.hash_one(key));
        self.parts.push(new);
    }

    /// The last part goes back to where it came from.
    fn join(&mut self) {
        let Some(last) = self.parts.pop() else { return };
        let to = self.parts.len() & ((self.parts.len() + 1).next_power_of_two() / 2 - 1);
        let state = &self.state;
        let Some(part) = self.parts.get_mut(to) else { return };
        for entry in last {
            part.insert_unique(state.hash_one(&entry.0), entry, |(key, _)| state.hash_one(key));
        }
        if self.parts.capacity() > SMALL.max(ROOMY * self.parts.len()) {
            self.parts.shrink_to(2 * self.parts.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The most entries of a part, and room for them.
    fn largest(map: &SteadyMap<u32, u32>) -> usize {
        map.parts.iter().map(HashTable::capacity).max().unwrap()
    }

    #[test]
    fn no_part_is_large_and_everything_is_found() {
        const MANY: u32 = 200_000;
        let mut map = SteadyMap::default();
        for n in 0..MANY {
            assert_eq!(map.insert(n, !n), None);
        }
        assert_eq!((map.len(), map.insert(7, 8), map.insert(7, !7)), (MANY as usize, Some(!7), Some(8)));
        assert!((0..MANY).all(|n| map.get(&n) == Some(&!n)));
        assert_eq!(map.get(&MANY), None);
        assert!(largest(&map) < 8 * FULL, "{}", largest(&map));
        for n in 10..MANY {
            assert_eq!(map.remove(&n), Some(!n));
        }
        assert_eq!((map.parts.len(), map.len(), map.remove(&MANY)), (1, 10, None));
        assert!(largest(&map) < SMALL * ROOMY && map.parts.capacity() <= SMALL, "{}", largest(&map));
        assert!((0..10).all(|n| map.get(&n) == Some(&!n)));
    }

    /// Against the standard map, over sizes at which parts are split and joined.
    #[test]
    fn it_does_what_a_map_does() {
        let (mut map, mut plain) = (SteadyMap::default(), HashMap::new());
        let mut random = 1u32;
        for step in 0..60_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = random >> 19;
            let more = if step % 20_000 < 10_000 { 3 } else { 1 };
            if (random >> 7) % 4 < more {
                assert_eq!(map.insert(key, step), plain.insert(key, step));
            } else {
                assert_eq!(map.remove(&key), plain.remove(&key));
            }
            assert_eq!(map.len(), plain.len());
        }
        assert!(plain.iter().all(|(key, value)| map.get(key) == Some(value)));
        assert!((0..1 << 13).all(|key| map.get(&key) == plain.get(&key)));
    }
}
