//! How who needs more of a peer waits for it: never with a processor that others need.

use std::time::{Duration, Instant};

/// How a process waits for another: it looks again at once for a moment, then lets others run, then sleeps.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    turns: u32,
    since: Option<Instant>,
}

/// What is to be done beside waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// To sleep until there is something, or for a moment, and to see if the neighbours are there.
    Rest,
}

/// Turns without giving the processor away: a neighbour on another one answers within them.
const SPIN: u32 = 20;
/// After so long without anything new a process sleeps: falling asleep and waking up take some microseconds of each side.
const RESTLESS: Duration = Duration::from_millis(1);
/// After so long without anything new it does so even where nobody wakes it, between two looks.
const DULL: Duration = Duration::from_millis(20);
const BLINK: Duration = Duration::from_micros(200);
/// The longest sleep, after which it is seen if the neighbours are there.
pub(crate) const NAP: Duration = Duration::from_millis(20);

impl Patience {
    /// Waits for a moment. Returns what else is to be done.
    pub(crate) fn wait(&mut self) -> Wait {
        self.turns = self.turns.saturating_add(1);
        if self.turns < SPIN {
            std::hint::spin_loop();
            return Wait::No;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > RESTLESS {
            return Wait::Rest;
        }
        std::thread::yield_now();
        Wait::No
    }

    /// Rests where nobody wakes: lets others run, and after a while sleeps between two looks.
    pub(crate) fn doze(&self) {
        match self.since.is_some_and(|since| since.elapsed() > DULL) {
            true => std::thread::sleep(BLINK),
            false => std::thread::yield_now(),
        }
    }
}
