//! A table of objects named by number.

use std::collections::VecDeque;

/// Objects numbered `first .. first + capacity`. Numbers are reused last-freed-last, so that a stale
/// number meets "no such object" for as long as possible.
#[derive(Debug)]
pub struct Table<T> {
    first: u32,
    capacity: u32,
    slots: Vec<Option<Box<T>>>,
    free: VecDeque<u32>,
    used: u32,
}

/// Every number of a table is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl<T> Table<T> {
    /// An empty table that hands out `first ..= first + capacity - 1`.
    pub fn new(first: u32, capacity: u32) -> Self {
        Self { first, capacity, slots: Vec::new(), free: VecDeque::new(), used: 0 }
    }

    fn slot(&self, number: u32) -> Option<usize> {
        number.checked_sub(self.first).map(|i| i as usize)
    }

    /// The object of that number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(self.slot(number)?)?.as_deref()
    }

    /// The object of that number, to change.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slot(number)?;
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// Stores `value` under a number that was free.
    pub fn insert(&mut self, value: T) -> Result<u32, Full> {
        // Prefer fresh numbers while the table is small; afterwards the one freed longest ago.
        const FRESH: u32 = 1024;
        let fresh = self.slots.len() as u32;
        let index = if fresh < self.capacity.min(FRESH) || (self.free.is_empty() && fresh < self.capacity) {
            self.slots.push(None);
            fresh
        } else {
            self.free.pop_front().ok_or(Full)?
        };
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Some(Box::new(value));
        }
        self.used += 1;
        Ok(self.first + index)
    }

    /// Takes the object of that number out; the number becomes free.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.slot(number)?;
        let value = self.slots.get_mut(index)?.take()?;
        self.free.push_back(index as u32);
        self.used = self.used.saturating_sub(1);
        Some(*value)
    }

    /// How many objects there are.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many objects fit.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// All objects with their numbers, in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((self.first + i as u32, s.as_deref()?)))
    }

    /// Drops every object and forgets which numbers were used.
    pub fn clear(&mut self) {
        *self = Self::new(self.first, self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_late() {
        let mut t = Table::new(0x10, 2000);
        let a = t.insert('a').unwrap();
        assert_eq!((a, t.get(a), t.get(0xf)), (0x10, Some(&'a'), None));
        assert_eq!(t.remove(a), Some('a'));
        assert_eq!(t.insert('b'), Ok(0x11));
        assert_eq!((t.len(), t.remove(a)), (1, None));
    }

    #[test]
    fn full_is_an_error() {
        let mut t = Table::new(1, 2);
        assert_eq!((t.insert(()), t.insert(()), t.insert(())), (Ok(1), Ok(2), Err(Full)));
        t.remove(1);
        assert_eq!(t.insert(()), Ok(1));
    }
}
