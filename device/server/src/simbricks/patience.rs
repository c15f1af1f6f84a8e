//! How who needs more of a peer waits for it: never with a processor that others need.

use std::time::{Duration, Instant};

/// How a process waits for another: it looks again at once for as long as that was worth while lately, then sleeps until it is woken. It does
/// not let others run and look again: where there are more processes than processors most of such looks are in vain, and where others compute
/// each takes a slice of theirs.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Looks since there was something new.
    turns: u32,
    /// So many it takes before it sleeps.
    spin: u32,
    /// How often they were in vain.
    vain: u32,
    since: Option<Instant>,
}

/// What is to be done beside waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// To sleep until there is something, or for a moment.
    Rest,
}

/// Looks at most before it sleeps: to sleep and to be woken on another processor takes as long as some hundred.
const MOST: u32 = 256;
/// So many it tries where they were in vain, once in so many sleeps.
const TRIES: u32 = 32;
const SELDOM: u32 = 128;
/// After so long without anything new it sleeps even where nobody wakes it, between two looks.
const DULL: Duration = Duration::from_millis(20);
const BLINK: Duration = Duration::from_micros(200);
/// The longest sleep, after which it is seen if the neighbours are there.
pub(crate) const NAP: Duration = Duration::from_millis(20);

impl Default for Patience {
    fn default() -> Self {
        Self { turns: 0, spin: TRIES, vain: 0, since: None }
    }
}

impl Patience {
    /// There was something new.
    pub(crate) fn renew(&mut self) {
        if (1..=self.spin).contains(&self.turns) {
            self.spin = (self.spin * 2).min(MOST);
        }
        (self.turns, self.since) = (0, None);
    }

    /// Waits for a moment. Returns what else is to be done.
    pub(crate) fn wait(&mut self) -> Wait {
        if self.turns < self.spin {
            self.turns += 1;
            std::hint::spin_loop();
            return Wait::No;
        }
        if self.turns == self.spin {
            self.vain = self.vain.wrapping_add(1);
            self.spin = if self.vain.is_multiple_of(SELDOM) { TRIES } else { self.spin / 2 };
            // Not again before there is something new.
            self.turns = u32::MAX;
        }
        Wait::Rest
    }

    /// Rests where nobody wakes: lets others run, and after a while sleeps between two looks.
    pub(crate) fn doze(&mut self) {
        let since = *self.since.get_or_insert_with(Instant::now);
        match since.elapsed() > DULL {
            true => std::thread::sleep(BLINK),
            false => std::thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it sleeps.
    fn looks(patience: &mut Patience) -> u32 {
        (0..).take_while(|_| patience.wait() == Wait::No).count() as u32
    }

    #[test]
    fn who_looks_in_vain_soon_sleeps_at_once() {
        let mut patience = Patience::default();
        let mut vain = || {
            patience.renew();
            looks(&mut patience)
        };
        let first: Vec<_> = (0..8).map(|_| vain()).collect();
        assert_eq!(first, [TRIES, TRIES / 2, TRIES / 4, TRIES / 8, TRIES / 16, 1, 0, 0]);
        let all: u32 = (0..SELDOM).map(|_| vain()).sum();
        assert!((TRIES..2 * TRIES).contains(&all), "it tries again, seldom: {all}");
    }

    #[test]
    fn who_looks_with_success_looks_longer() {
        let mut patience = Patience::default();
        for _ in 0..4 {
            assert_eq!(patience.wait(), Wait::No);
            patience.renew();
        }
        assert_eq!(looks(&mut patience), MOST);
        assert_eq!(patience.wait(), Wait::Rest, "it was in vain once, and nothing is new");
        patience.renew();
        assert_eq!(looks(&mut patience), MOST / 2);
        // It was not while it looked that it came.
        patience.renew();
        assert_eq!(looks(&mut patience), MOST / 4);
    }
}
