//! A table of objects named by number.

use crate::sparse::Sparse;

/// Objects numbered `first .. first + capacity`. A number that became free comes back late, so that a
/// stale number meets "no such object" for as long as possible.
#[derive(Debug)]
pub struct Table<T> {
    first: u32,
    capacity: u32,
    slots: Sparse<T>,
    /// Numbers are handed out in turn from those below this, counted from `first`: about twice as many as are used.
    window: u32,
    /// Whose turn is next.
    next: u32,
    used: u32,
}

/// Every number of a table is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// The window is never smaller than this.
const LEAST_WINDOW: u32 = 1024;

impl<T> Table<T> {
    /// An empty table that hands out `first ..= first + capacity - 1`.
    pub fn new(first: u32, capacity: u32) -> Self {
        Self {
            first,
            capacity,
            slots: Sparse::default(),
            window: capacity.min(LEAST_WINDOW),
            next: 0,
            used: 0,
        }
    }

    /// The object of that number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number.checked_sub(self.first)?)
    }

    /// The object of that number, to change.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number.checked_sub(self.first)?)
    }

    /// Stores `value` under a number that was free.
    pub fn insert(&mut self, value: T) -> Result<u32, Full> {
        if self.used == self.capacity {
            return Err(Full);
        }
        if self.used >= self.window / 2 {
            self.window = self.window.saturating_mul(2).min(self.capacity);
        }
        let (next, window) = (self.next, self.window);
        let index =
            self.slots.vacant(next, window).or_else(|| self.slots.vacant(0, next.min(window))).ok_or(Full)?;
        self.slots.insert(index, value);
        self.next = if index + 1 < window { index + 1 } else { 0 };
        self.used += 1;
        Ok(self.first + index)
    }

    /// Takes the object of that number out; the number becomes free.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.slots.remove(number.checked_sub(self.first)?)?;
        self.used = self.used.saturating_sub(1);
        if self.window > LEAST_WINDOW && self.used < self.window / 8 {
            self.window = (self.window / 2).max(LEAST_WINDOW);
            self.next = if self.next < self.window { self.next } else { 0 };
        }
        Some(value)
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
        self.slots.iter().map(|(i, t)| (self.first + i, t))
    }

    /// The same from a number on. What is before it is not walked over.
    pub fn iter_from(&self, number: u32) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter_from(number.saturating_sub(self.first)).map(|(i, t)| (self.first + i, t))
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
        let again = (0..).take_while(|_| {
            let n = t.insert('c').unwrap();
            t.remove(n);
            n != 0x11 - 1
        });
        assert!(again.count() > 1000, "a number was free and came back soon");
    }

    #[test]
    fn full_is_an_error() {
        let mut t = Table::new(1, 2);
        assert_eq!((t.insert(()), t.insert(()), t.insert(())), (Ok(1), Ok(2), Err(Full)));
        t.remove(1);
        assert_eq!(t.insert(()), Ok(1));
    }

    #[test]
    fn every_number_is_handed_out_once() {
        let mut t = Table::new(7, 5000);
        let numbers: std::collections::HashSet<u32> = (0..5000).map(|i| t.insert(i).unwrap()).collect();
        assert_eq!((numbers.len(), t.insert(0)), (5000, Err(Full)));
        assert!(numbers.iter().all(|n| (7..5007).contains(n)));
        // All but a few go, from the middle: the table serves on, with numbers that are free.
        for n in (7..5007).filter(|n| n % 500 != 0) {
            t.remove(n).unwrap();
        }
        assert_eq!((t.len(), t.iter().count()), (10, 10));
        let more: Vec<u32> = (0..4990).map(|i| t.insert(i).unwrap()).collect();
        assert!(more.iter().all(|n| n % 500 != 0));
        assert_eq!((t.len(), t.insert(0)), (5000, Err(Full)));
    }
}
