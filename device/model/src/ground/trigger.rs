//! To which of the things that match a fault happens, the same ones for the same seed.

use crate::ground::epoch::Rebase;
use crate::ground::random::SplitMix64;
use crate::ground::time::Ps;

/// Which of those that match.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// The first, from 1; 0 is as 1.
    pub nth: u64,
    /// How often it happens at most; `None`: there is no end.
    pub count: Option<u64>,
    /// To each of them with this probability (0.0..=1.0; anything else is as the nearest).
    pub probability: f64,
    /// What matches before this model time does not count ...
    pub from: Ps,
    /// ... nor what matches at this time or later.
    pub until: Ps,
    /// Of what is random about it.
    pub seed: u64,
}

impl Default for Trigger {
    /// The first that matches, and no other.
    fn default() -> Self {
        Self { nth: 1, count: Some(1), probability: 1.0, from: Ps::ZERO, until: Ps::MAX, seed: 1 }
    }
}

/// A trigger, and what it has seen.
#[derive(Debug, Clone)]
pub(crate) struct Firing {
    trigger: Trigger,
    pub(crate) random: SplitMix64,
    /// So many have matched.
    pub(crate) seen: u64,
    /// To so many of them it happened.
    pub(crate) fired: u64,
}

impl Firing {
    pub(crate) fn new(trigger: Trigger) -> Self {
        let random = SplitMix64(trigger.seed);
        Self { trigger, random, seen: 0, fired: 0 }
    }

    /// Whether nothing more will come of it.
    pub(crate) fn is_over(&self) -> bool {
        self.trigger.count.is_some_and(|count| self.fired >= count)
    }

    /// Something matches: whether the fault happens to it.
    pub(crate) fn fires(&mut self, now: Ps) -> bool {
        let Trigger { nth, probability, from, until, .. } = self.trigger;
        if now < from || now >= until {
            return false;
        }
        self.seen = self.seen.saturating_add(1);
        if self.seen < nth || self.is_over() || !self.random.chance(probability) {
            return false;
        }
        self.fired = self.fired.saturating_add(1);
        true
    }
}

impl Rebase for Trigger {
    fn rebase(&mut self, by: Ps) {
        let Self { from, until, nth: _, count: _, probability: _, seed: _ } = self;
        from.rebase(by);
        until.rebase(by);
    }
}

impl Rebase for Firing {
    fn rebase(&mut self, by: Ps) {
        let Self { trigger, random: _, seen: _, fired: _ } = self;
        trigger.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hundred that match, one each microsecond, the numbers of those to which it happens.
    fn hit(trigger: Trigger) -> Vec<u64> {
        let mut firing = Firing::new(trigger);
        (1..=100).filter(|n| firing.fires(Ps::from_us(*n))).collect()
    }

    #[test]
    fn counts_and_times() {
        let trigger = Trigger::default;
        assert_eq!(hit(trigger()), [1]);
        assert_eq!(hit(Trigger { nth: 7, count: Some(3), ..trigger() }), [7, 8, 9]);
        assert_eq!(hit(Trigger { nth: 99, count: None, ..trigger() }), [99, 100]);
        let (from, until) = (Ps::from_us(50), Ps::from_us(60));
        assert_eq!(hit(Trigger { nth: 9, count: None, from, until, ..trigger() }), [58, 59]);
        assert_eq!(hit(Trigger { count: Some(0), ..trigger() }), [0; 0]);
        assert_eq!(hit(Trigger { nth: 0, ..trigger() }), [1]);
    }

    #[test]
    fn chance_by_seed() {
        let of = |seed| hit(Trigger { count: None, probability: 0.2, seed, ..Trigger::default() });
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!((10..30).contains(&of(1).len()), "{:?}", of(1));
        assert_eq!(hit(Trigger { count: None, probability: f64::NAN, ..Trigger::default() }), [0; 0]);
        assert_eq!(hit(Trigger { count: None, probability: 7.0, ..Trigger::default() }).len(), 100);
        let limited = Trigger { count: Some(2), probability: 0.2, ..Trigger::default() };
        assert_eq!(hit(limited), of(1).into_iter().take(2).collect::<Vec<_>>());
    }
}
