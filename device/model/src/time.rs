//! Model time: integer picoseconds, and the event heap.

use std::cmp::Reverse;
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

struct Entry<E> {
    at: Ps,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Events in order of time; events of the same time in the order they were scheduled.
pub struct EventHeap<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    sequence: u64,
}

impl<E> Default for EventHeap<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0 }
    }
}

impl<E> EventHeap<E> {
    /// Adds `event` at time `at`.
    pub fn push(&mut self, at: Ps, event: E) {
        self.heap.push(Reverse(Entry { at, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Ps> {
        self.heap.peek().map(|e| e.0.at)
    }

    /// Takes the next event if it is due at or before `until`.
    pub fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        if self.next_at()? > until {
            return None;
        }
        self.heap.pop().map(|Reverse(e)| (e.at, e.event))
    }

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
    fn ticks_of_a_clock() {
        assert_eq!(Ps::from_ms(1000).ticks(156_250), 156_250_000);
    }
}
