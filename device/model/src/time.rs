//! Model time: integer picoseconds, and the event heap.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in model time, or a duration: picoseconds since the world's start. 2^64 ps are 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ps(pub u64);

impl Ps {
    /// The world's start.
    pub const ZERO: Ps = Ps(0);
    /// The end of time.
    pub const MAX: Ps = Ps(u64::MAX);

    /// From nanoseconds; saturates.
    pub const fn from_ns(ns: u64) -> Self {
        Ps(ns.saturating_mul(1_000))
    }

    /// From microseconds; saturates.
    pub const fn from_us(us: u64) -> Self {
        Ps(us.saturating_mul(1_000_000))
    }

    /// From milliseconds; saturates.
    pub const fn from_ms(ms: u64) -> Self {
        Ps(ms.saturating_mul(1_000_000_000))
    }

    /// Whole nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }

    /// The distance from `earlier`, zero if that is not earlier.
    pub const fn since(self, earlier: Ps) -> Ps {
        Ps(self.0.saturating_sub(earlier.0))
    }

    /// `n` times this duration; saturates.
    pub const fn times(self, n: u64) -> Ps {
        Ps(self.0.saturating_mul(n))
    }

    /// Ticks of a clock of `khz` kilohertz in this time.
    pub const fn ticks(self, khz: u64) -> u64 {
        (self.0 as u128 * khz as u128 / 1_000_000_000) as u64
    }
}

impl Add for Ps {
    type Output = Ps;
    fn add(self, other: Ps) -> Ps {
        Ps(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Ps) {
        *self = *self + other;
    }
}

impl Sub for Ps {
    type Output = Ps;
    fn sub(self, other: Ps) -> Ps {
        self.since(other)
    }
}

impl fmt::Debug for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ns", self.0 / 1_000, self.0 % 1_000)
    }
}

impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// When an event is due, and where it is. Small, because a heap moves its entries about. The greatest is due first.
#[derive(Clone, Copy)]
struct Entry {
    at: Ps,
    sequence: u64,
    slot: usize,
}

impl Entry {
    /// Time and sequence as one number: compared without a branch.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at.0) << 64 | u128::from(self.sequence)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn le(&self, other: &Self) -> bool {
        other.key() <= self.key()
    }
}

impl Ord for Entry {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Events in order of time; events of the same time in the order they were scheduled.
pub struct EventHeap<E> {
    heap: BinaryHeap<Entry>,
    sequence: u64,
    /// The events, where their entries say.
    events: Vec<Option<E>>,
    /// Places of `events` where nothing is.
    free: Vec<usize>,
}

impl<E> Default for EventHeap<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0, events: Vec::new(), free: Vec::new() }
    }
}

impl<E> EventHeap<E> {
    /// Adds `event` at time `at`.
    pub fn push(&mut self, at: Ps, event: E) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        if let Some(place) = self.events.get_mut(slot) {
            *place = Some(event);
        }
        self.heap.push(Entry { at, sequence: self.sequence, slot });
        self.sequence += 1;
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Ps> {
        self.heap.peek().map(|e| e.at)
    }

    /// Takes the next event if it is due at or before `until`.
    pub fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        if self.next_at()? > until {
            return None;
        }
        let Entry { at, slot, .. } = self.heap.pop()?;
        let event = self.events.get_mut(slot)?.take()?;
        self.free.push(slot);
        // After a burst its memory goes again.
        if self.heap.is_empty() && self.events.capacity() > Self::KEPT {
            (self.events, self.free) = (Vec::new(), Vec::new());
        }
        Some((at, event))
    }

    /// Room for so many events is kept when none waits.
    const KEPT: usize = 1 << 12;

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_time_keeps_order() {
        let mut h = EventHeap::default();
        for (at, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            h.push(Ps(at), name);
        }
        let order: String = std::iter::from_fn(|| h.pop_until(Ps(5)).map(|e| e.1)).collect();
        assert_eq!(order, "abcd");
        h.push(Ps(9), 'e');
        assert_eq!(h.pop_until(Ps(8)), None);
        assert_eq!(h.next_at(), Some(Ps(9)));
    }

    #[test]
    fn many_events_come_in_order_and_leave_no_memory() {
        const MANY: u64 = 20_000;
        let mut h = EventHeap::default();
        let at = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        for i in 0..MANY {
            h.push(Ps(at(i)), i);
            if i % 3 == 0 {
                assert!(h.pop_until(Ps::MAX).is_some());
            }
        }
        assert_eq!(h.len() as u64, MANY - MANY.div_ceil(3));
        let rest: Vec<(Ps, u64)> = std::iter::from_fn(|| h.pop_until(Ps::MAX)).collect();
        assert!(rest.is_sorted() && rest.iter().all(|(t, i)| t.0 == at(*i)));
        assert!(h.is_empty() && h.events.capacity() <= EventHeap::<u64>::KEPT);
    }

    #[test]
    fn ticks_of_a_clock() {
        assert_eq!(Ps::from_ms(1000).ticks(156_250), 156_250_000);
    }
}
