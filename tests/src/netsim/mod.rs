//! Simulated networks: every transport under every fault, message size and topology, in virtual time.
//!
//! A [`Cell`] is one combination; with a seed it is a history that repeats byte for byte.
//! [`run`] plays it: `net` builds adapters and queue pairs (with our own driver), `star` a fabric
//! that joins more than two, `flow` posts requests of every kind and knows what has to come of each.
//!
//! What must hold: on RC each byte arrives right, once and in order, or the request completes with an
//! error; on UC and UD a message arrives whole or not at all, and nothing that was not sent arrives.
//! Corrupted packets never get past ICRC and VCRC, and the ports count them.

mod cell;
mod flow;
mod net;
mod oracle;
mod star;

pub use cell::{Cell, Fault, Net, Service, Shape, Size, fast, matrix};

use std::fmt;

/// What a history showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Requests posted.
    pub posted: u64,
    /// Requests that completed without error.
    pub completed: u64,
    /// Messages that a receiver was told of.
    pub delivered: u64,
    /// Queue pairs that gave up: retries exceeded.
    pub gave_up: u64,
    /// Packets that arrived and were refused for their checksums.
    pub refused: u64,
}

impl Report {
    /// Adds what another history showed.
    pub fn add(&mut self, other: &Report) {
        let Report { posted, completed, delivered, gave_up, refused } = other;
        self.posted += posted;
        self.completed += completed;
        self.delivered += delivered;
        self.gave_up += gave_up;
        self.refused += refused;
    }
}

/// A history as a trace shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traced {
    /// What came of it.
    pub report: Report,
    /// Of every record of the trace: times, adapters, events and their fields.
    pub hash: u64,
    /// Records that were hashed.
    pub events: u64,
}

/// A rule was broken; the text says how to see it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The combination.
    pub cell: Cell,
    /// The history.
    pub seed: u64,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { cell, seed, what } = self;
        write!(f, "{cell}, seed {seed}: {what}\n  to see it again: {}", reproduce(cell, *seed))
    }
}

impl std::error::Error for Failure {}

/// The command that plays one history.
pub fn reproduce(cell: &Cell, seed: u64) -> String {
    format!("cargo run --release -p hca-tests --example netsim -- {cell} {seed}")
}

/// Plays the history `seed` of `cell`.
///
/// # Errors
/// A rule was broken. Panics of the code under test are failures too.
pub fn run(cell: &Cell, seed: u64) -> Result<Report, Failure> {
    caught(|| flow::play(cell, seed)).map_err(|what| Failure { cell: *cell, seed, what })
}

/// Plays a history and hashes everything that happens. The requests are those of [`run`]; with `faults` other than 0 the links spoil
/// other packets than there.
///
/// # Errors
/// As [`run`].
pub fn traced(cell: &Cell, seed: u64, faults: u64) -> Result<Traced, Failure> {
    caught(|| flow::traced(cell, seed, faults)).map_err(|what| {
        let what = if faults == 0 { what } else { format!("with other faults, {faults}: {what}") };
        Failure { cell: *cell, seed, what }
    })
}

fn caught<T>(play: impl FnOnce() -> Result<T, String> + std::panic::UnwindSafe) -> Result<T, String> {
    std::panic::catch_unwind(play).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}
