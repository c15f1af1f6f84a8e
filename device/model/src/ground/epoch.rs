//! Model time has no end, though a [`Ps`] has 64 bits: a world counts from a later start now and then.
//!
//! All times in a world are counted from its start. Long before they end ([`DUE`]) its owner has the start moved by an [`EPOCH`]: every
//! point in time that is kept anywhere is then that much earlier, and nothing else changes. So whoever keeps points in time is
//! [`Rebase`], by all of its fields, so that a new one can't be forgotten. What others see of time, ticks of clocks and hashes of traces,
//! counts from the very first start ([`Start`]).
//!
//! A point in time that has passed by more than `DUE - EPOCH`, 53 days, is as if it had passed by that much. No timer or interval is as long
//! (the longest, an ACK timer, has 2.4 hours: IBTA 9.7.6.1.3).

use std::collections::VecDeque;

use super::time::Ps;

/// log2 of what the start of time moves by whole numbers of, in picoseconds: 64 pages of every calendar.
pub(crate) const UNIT: u32 = 22;
/// By so much the start of time moves: 9,216,000 seconds, 107 days.
pub const EPOCH: Ps = Ps::from_ms(9_216_000_000);
/// When it is to move: what lies ahead is within the 53 days that are left then.
pub const DUE: Ps = Ps(EPOCH.0 / 2 * 3);

/// Something that keeps points in time.
pub(crate) trait Rebase {
    /// Time starts later by `by`: points in time are earlier by that much; those before the new start are at it, and what never
    /// comes does not.
    fn rebase(&mut self, by: Ps);
}

impl Rebase for Ps {
    #[inline]
    fn rebase(&mut self, by: Ps) {
        if *self != Ps::MAX {
            *self = self.since(by);
        }
    }
}

/// Of what has many of them.
macro_rules! of_each {
    ($($kind:ident),*) => {$(
        impl<T: Rebase> Rebase for $kind<T> {
            fn rebase(&mut self, by: Ps) {
                self.iter_mut().for_each(|each| each.rebase(by));
            }
        }
    )*};
}

of_each!(Option, Vec, VecDeque);

impl<T: Rebase, const N: usize> Rebase for [T; N] {
    fn rebase(&mut self, by: Ps) {
        self.iter_mut().for_each(|each| each.rebase(by));
    }
}

impl<T: Rebase + ?Sized> Rebase for Box<T> {
    fn rebase(&mut self, by: Ps) {
        (**self).rebase(by);
    }
}

/// When the times of a world begin, counted from its very first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Start(u128);

impl Start {
    /// In picoseconds.
    pub const fn ps(self) -> u128 {
        self.0
    }

    /// A time of the world, in picoseconds since its very first start.
    pub const fn absolute(self, at: Ps) -> u128 {
        self.0 + at.0 as u128
    }

    /// The same in nanoseconds, for 584 years.
    pub const fn absolute_ns(self, at: Ps) -> u64 {
        (self.absolute(at) / 1_000) as u64
    }

    /// The same modulo 2^64 ps: what goes over a wire, into a hash and into a recording.
    #[inline]
    pub const fn wrapped(self, at: Ps) -> u64 {
        (self.0 as u64).wrapping_add(at.0)
    }

    /// The time of the world that is `wrapped` on a wire: the nearest to `now`, not before the start.
    pub const fn unwrapped(self, wrapped: u64, now: Ps) -> Ps {
        let ahead = wrapped.wrapping_sub(self.wrapped(now)) as i64;
        Ps(now.0.saturating_add_signed(ahead))
    }

    /// Ticks of a clock of `khz` kilohertz at that time, modulo 2^64.
    #[inline]
    pub const fn ticks(self, at: Ps, khz: u64) -> u64 {
        (self.absolute(at) * khz as u128 / 1_000_000_000) as u64
    }

    pub(crate) fn moves(&mut self, by: Ps) {
        self.0 = self.absolute(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_time() {
        let mut times = vec![Some(Ps(7)), None, Some(Ps(3)), Some(Ps::MAX)];
        times.rebase(Ps(5));
        assert_eq!(times, [Some(Ps(2)), None, Some(Ps::ZERO), Some(Ps::MAX)]);
        assert!(EPOCH.0.is_multiple_of(1 << UNIT) && EPOCH.0.is_multiple_of(Ps::from_ms(1_000).0));
        assert!(DUE > EPOCH && DUE.since(EPOCH) > Ps::from_ms(50 * 86_400_000));
    }

    #[test]
    fn what_others_see_goes_on() {
        let (mut start, khz) = (Start::default(), 156_250);
        let mut now = DUE;
        assert_eq!(start.ticks(now, khz), now.ticks(khz));
        for epochs in 1..50 {
            let (before, ticks) = (start.absolute(now), start.ticks(now, khz));
            let wire = start.wrapped(now + Ps(5));
            start.moves(EPOCH);
            assert_eq!(start.unwrapped(wire, now.since(EPOCH)), now.since(EPOCH) + Ps(5));
            now.rebase(EPOCH);
            assert_eq!((start.absolute(now), start.ticks(now, khz)), (before, ticks));
            assert_eq!(start.absolute_ns(now), (before / 1000) as u64);
            // A peer that has moved its own already, and one that has not.
            assert_eq!(start.unwrapped(start.wrapped(Ps(9)), now), Ps(9), "{epochs}");
            now += EPOCH;
        }
        assert_eq!(start.unwrapped(start.wrapped(Ps(0)).wrapping_sub(9), Ps(4)), Ps::ZERO);
    }
}
