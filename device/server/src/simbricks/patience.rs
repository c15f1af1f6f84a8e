//! How who needs more of a peer waits for it: never with a processor that others need.

use std::time::{Duration, Instant};

/// How a process waits for another: it looks again at once for a moment, then lets others run, then sleeps. Where others keep the
/// processor for long it sleeps at once: who wakes gets it soon, who lets others run waits for the end of their slice.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    turns: u32,
    since: Option<Instant>,
    /// How often it still sleeps at once.
    crowded: u32,
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
/// Others keep the processor for a slice (some milliseconds) if they compute, and for some tens of microseconds if they simulate, too.
const SLICE: Duration = Duration::from_micros(500);
/// How often a process sleeps at once before it lets others run again, to see if they still keep the processor.
const WARY: u32 = 256;
/// After so long without anything new it does so even where nobody wakes it, between two looks.
const DULL: Duration = Duration::from_millis(20);
const BLINK: Duration = Duration::from_micros(200);
/// The longest sleep, after which it is seen if the neighbours are there.
pub(crate) const NAP: Duration = Duration::from_millis(20);

impl Patience {
    /// There was something new.
    pub(crate) fn renew(&mut self) {
        (self.turns, self.since) = (0, None);
    }

    /// Waits for a moment. Returns what else is to be done.
    pub(crate) fn wait(&mut self) -> Wait {
        self.turns = self.turns.saturating_add(1);
        if self.turns < SPIN {
            std::hint::spin_loop();
            return Wait::No;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.crowded > 0 {
            self.crowded -= 1;
            return Wait::Rest;
        }
        if since.elapsed() > RESTLESS {
            return Wait::Rest;
        }
        let before = Instant::now();
        std::thread::yield_now();
        if before.elapsed() > SLICE {
            self.crowded = WARY;
        }
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
