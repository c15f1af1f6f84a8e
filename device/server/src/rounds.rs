//! Rounds of the engine: what they take of the host's time, and in which order adapters are served.
//!
//! | what a round does | its bound |
//! |---|---|
//! | runs events before accesses | half of `time.budget_ms` ([`crate::pacing`]) |
//! | serves hosts | `time.budget_ms` besides, looked at between adapters; a front end has a bound of its own for one call, 2 ms |
//! | runs events after them | half of `time.budget_ms` |
//!
//! Hosts are served by deficit round robin (Shreedhar and Varghese, 1995): of what a round took for hosts each that had something to do has an equal
//! share; what one took beyond its share it owes, what it took less it has in hand, a budget each at most. Whoever has most in hand is the first of the next
//! round, and among those that have the same whoever follows the last that was served. So one that takes little is served in the round in which
//! it asks, whatever others take, and those that take all they can get take turns.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::topology::Time;

/// What rounds took so far, and who is served next.
#[derive(Debug)]
pub(crate) struct Rounds {
    budget: Duration,
    began: Instant,
    /// The adapter that is served first of those that owe the same.
    first: usize,
    /// By adapter: what it took beyond its share, or less than that, in nanoseconds.
    owed: Vec<i64>,
    /// Adapters in the order of a round, and what each took; room that is kept.
    order: Vec<usize>,
    took: Vec<Option<i64>>,
    count: u64,
    longest: Duration,
    /// Rounds that took longer than twice the budget.
    late: u64,
}

impl Rounds {
    pub(crate) fn new(time: &Time) -> Self {
        Self {
            budget: Duration::from_millis(time.budget_ms),
            began: Instant::now(),
            first: 0,
            owed: Vec::new(),
            order: Vec::new(),
            took: Vec::new(),
            count: 0,
            longest: Duration::ZERO,
            late: 0,
        }
    }

    /// A round begins.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// It has ended.
    pub(crate) fn end(&mut self) {
        let took = self.began.elapsed();
        self.count += 1;
        self.longest = self.longest.max(took);
        if took > self.budget * 2 {
            self.late += 1;
        }
    }

    /// Serves adapters, those first that owe least, until the budget is spent. `serve` gives what one took; `None`: it has nothing to
    /// do. Returns true if some may be left.
    pub(crate) fn serve(
        &mut self,
        adapters: usize,
        mut serve: impl FnMut(usize) -> Option<Duration>,
    ) -> bool {
        let Self { budget, first, owed, order, took, .. } = self;
        let budget = nanoseconds(*budget);
        owed.resize(adapters, 0);
        order.clear();
        order.extend((*first..adapters).chain(0..(*first).min(adapters)));
        // A stable sort: nothing to do where all owe the same.
        order.sort_by_key(|&at| owed.get(at).copied().unwrap_or_default());
        took.clear();
        let (mut spent, mut idle) = (0, 0);
        for &at in &*order {
            if spent >= budget {
                break;
            }
            let one = serve(at).map(nanoseconds);
            took.push(one);
            match one {
                Some(one) => (spent, *first) = (spent.saturating_add(one), (at + 1) % adapters),
                None => idle += 1,
            }
        }
        let share = spent / i64::try_from(adapters - idle).unwrap_or(i64::MAX).max(1);
        for (i, &at) in order.iter().enumerate() {
            let took = took.get(i).copied().flatten().unwrap_or_default();
            if let Some(owed) = owed.get_mut(at) {
                *owed = owed.saturating_add(took - share).clamp(-budget, budget);
            }
        }
        took.len() < adapters
    }

    /// For `softhca stat`.
    pub(crate) fn report(&self) -> Value {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        json!({
            "pid": std::process::id(),
            "rounds": self.count,
            "longest_us": us(self.longest),
            "late": self.late,
            "budget_us": us(self.budget),
        })
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Rounds {
        Rounds::new(&Time { budget_ms: 4, ..Time::default() })
    }

    /// Adapters that each take so many milliseconds: which are served in a round, and whether some are left.
    fn round(rounds: &mut Rounds, takes: &[u64]) -> (Vec<usize>, bool) {
        let mut served = Vec::new();
        let left = rounds.serve(takes.len(), |i| {
            let took = Duration::from_millis(takes[i]);
            (!took.is_zero()).then(|| {
                served.push(i);
                took
            })
        });
        (served, left)
    }

    #[test]
    fn who_was_left_is_first() {
        let mut rounds = rounds();
        assert_eq!(round(&mut rounds, &[4, 4, 4]), (vec![0], true));
        assert_eq!(round(&mut rounds, &[4, 4, 4]), (vec![1], true));
        assert_eq!(round(&mut rounds, &[4, 4, 4]), (vec![2], true));
        // Those that have nothing to do take no time.
        assert_eq!(round(&mut rounds, &[0, 0, 0]), (vec![], false));
        assert_eq!(round(&mut rounds, &[0, 4, 0]), (vec![1], true));
    }

    /// However many take what they can get, one that takes little is served in each round, wherever it stands.
    #[test]
    fn who_takes_little_goes_first() {
        for place in 0..8 {
            let mut rounds = rounds();
            let mut takes = [2; 8];
            takes[place] = 0;
            (0..10).for_each(|_| drop(round(&mut rounds, &takes)));
            for asks in 0..100 {
                // Less than a share.
                takes[place] = 0;
                let mut served = Vec::new();
                let took = |i: usize| match i == place {
                    true => Duration::from_micros(50),
                    false => Duration::from_millis(2),
                };
                rounds.serve(8, |i| {
                    served.push(i);
                    Some(took(i))
                });
                assert!(served.contains(&place), "{place} at {asks}: {served:?}");
            }
        }
    }

    /// All that take much get the same in the end, and nobody waits longer than for the others.
    #[test]
    fn shares_are_equal() {
        let mut rounds = rounds();
        let (mut got, mut last) = ([0u64; 5], [0; 5]);
        for number in 0..1000 {
            for i in round(&mut rounds, &[1, 2, 3, 2, 4]).0 {
                got[i] += [1, 2, 3, 2, 4][i];
                assert!(number - last[i] <= 5, "{i} waited from {} to {number}", last[i]);
                last[i] = number;
            }
        }
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(most - least <= least / 5, "{got:?}");
        // What others leave is for who owes.
        let takes = [4, 0, 0, 0, 0];
        assert!((0..20).all(|_| round(&mut rounds, &takes).0 == [0]));
    }
}
