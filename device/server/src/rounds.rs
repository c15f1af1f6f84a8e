//! Rounds of the engine: what they take of the host's time, and in which order adapters are served.
//!
//! | what a round does | its bound |
//! |---|---|
//! | runs events before accesses | half of `time.budget_ms` ([`crate::pacing`]) |
//! | serves hosts | `time.budget_ms`, looked at between adapters; a front end has a bound of its own for one call |
//! | runs events after them | half of `time.budget_ms` |
//!
//! Whoever was not served because the time was over is the first in the next round.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::topology::Time;

/// What rounds took so far, and who is served next.
#[derive(Debug)]
pub(crate) struct Rounds {
    budget: Duration,
    began: Instant,
    /// The adapter that is served first.
    first: usize,
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

    /// Serves adapters in turn, those that the last round left first, until the budget is spent. `serve` returns
    /// false for one that has nothing to do. Returns true if some were left.
    pub(crate) fn serve(&mut self, adapters: usize, mut serve: impl FnMut(usize) -> bool) -> bool {
        for i in 0..adapters {
            let at = (self.first + i) % adapters;
            if serve(at) && self.began.elapsed() >= self.budget {
                self.first = (at + 1) % adapters;
                return i + 1 < adapters;
            }
        }
        false
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_left_is_first() {
        let mut rounds = Rounds::new(&Time { budget_ms: 1, ..Time::default() });
        let mut served = Vec::new();
        // As if each adapter took a whole budget.
        for _ in 0..4 {
            rounds.begin();
            rounds.began -= rounds.budget;
            rounds.serve(3, |i| {
                served.push(i);
                true
            });
        }
        assert_eq!(served, [0, 1, 2, 0]);
        // Those that have nothing to do take no time.
        served.clear();
        rounds.began -= rounds.budget;
        let left = rounds.serve(3, |i| {
            served.push(i);
            false
        });
        assert!(!left);
        assert_eq!(served, [1, 2, 0]);
    }
}
