//! What was diagnosed of a function's driver: counted, logged, and kept for whoever asks, all within a limit.

use std::fmt;

use hca_firmware::Refusal;

use crate::ground::diagnosis::{Finding, RefusedCommand, Saying};
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Diagnoses for each second of model time that are put in words; the others are counted.
const LIMIT: u32 = 20;
/// Diagnoses that are kept until they are taken.
const KEPT: usize = 256;

/// Mistakes of a function's driver.
#[derive(Debug, Default)]
pub(crate) struct Diagnoses {
    /// All there were.
    pub(crate) total: u64,
    second: u64,
    in_second: u32,
    kept: Vec<(Ps, Saying)>,
}

impl Diagnoses {
    /// The adapter has refused or failed something, for that reason.
    pub(crate) fn refused(&mut self, now: Ps, text: fmt::Arguments<'_>, who: &str) {
        if self.admits(now, who) {
            self.say(now, Saying::Refused(text.to_string()), who);
        }
    }

    /// The adapter has answered a mistake for which there is a rule.
    pub(crate) fn answered(&mut self, now: Ps, finding: impl FnOnce() -> Finding, who: &str) {
        if self.admits(now, who) {
            self.say(now, Saying::Answered(finding()), who);
        }
    }

    /// The firmware has refused the command in that slot.
    pub(crate) fn command(&mut self, now: Ps, slot: u8, refusal: Refusal, who: &str) {
        if self.admits(now, who) {
            self.say(now, Saying::Command(RefusedCommand { slot, refusal }), who);
        }
    }

    /// The checker has found something.
    pub(crate) fn found(&mut self, now: Ps, finding: Finding, who: &str) {
        if self.admits(now, who) {
            self.say(now, Saying::Found(finding), who);
        }
    }

    /// Counts one. Returns whether it is to be put in words.
    fn admits(&mut self, now: Ps, who: &str) -> bool {
        self.total += 1;
        let second = now.0 / Ps::from_ms(1000).0;
        if second != self.second {
            if self.in_second > LIMIT {
                tracing::warn!(hca = who, "{} more diagnoses were not printed", self.in_second - LIMIT);
            }
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second = self.in_second.saturating_add(1);
        self.in_second <= LIMIT
    }

    fn say(&mut self, now: Ps, saying: Saying, who: &str) {
        tracing::warn!(hca = who, at = %now, "{saying}");
        if self.kept.len() < KEPT {
            self.kept.push((now, saying));
        }
    }

    /// Takes what was put in words since the last call: the first [`KEPT`] of it.
    pub(crate) fn take(&mut self) -> Vec<(Ps, Saying)> {
        std::mem::take(&mut self.kept)
    }
}

impl Rebase for Diagnoses {
    fn rebase(&mut self, by: Ps) {
        // Diagnoses are counted anew in the second in which the start moves.
        let Self { total: _, second: _, in_second: _, kept } = self;
        kept.iter_mut().for_each(|(at, _)| at.rebase(by));
    }
}
