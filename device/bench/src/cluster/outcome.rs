//! What happened, as hashes that add up: those of the parts of a topology give that of the whole.

use std::hash::{DefaultHasher, Hash};

use hca_driver::Completion;
use hca_model::Ps;
use serde::Serialize;

/// Sums over all nodes, modulo 2^64, of hashes of what happened at each of them in the order of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Hashes {
    /// Events at adapters, with their times in ps.
    pub events: u64,
    /// Packets at the ports of adapters and switches: time, direction, every byte.
    pub packets: u64,
    /// Completions as hosts saw them.
    pub completions: u64,
    /// How many events, packets and completions there were.
    pub counts: [u64; 3],
}

impl Hashes {
    /// One number for all of it.
    pub fn total(&self) -> u64 {
        self.events.wrapping_add(self.packets.rotate_left(21)).wrapping_add(self.completions.rotate_left(42))
    }

    /// Those of two parts of a topology.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut counts = self.counts;
        counts.iter_mut().zip(other.counts).for_each(|(to, more)| *to += more);
        Self {
            events: self.events.wrapping_add(other.events),
            packets: self.packets.wrapping_add(other.packets),
            completions: self.completions.wrapping_add(other.completions),
            counts,
        }
    }
}

/// How it went.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Hosts of this process.
    pub hosts: usize,
    /// Messages that came to them, whole, and their bytes.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Packets that its adapters sent.
    pub packets: u64,
    /// When the last completion was seen, in ps of model time.
    pub finished: u64,
    /// When it ended.
    pub until: u64,
    /// If they were asked for.
    pub hashes: Option<Hashes>,
    /// What is to be told of traces and captures.
    pub said: Vec<String>,
}

/// What one host did.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) hasher: DefaultHasher,
    pub(super) completions: u64,
    /// Messages that came, whole.
    pub(super) came: u64,
    /// When the last completion was seen.
    pub(super) finished: Ps,
}

impl Account {
    pub(super) fn new() -> Self {
        Self { hasher: DefaultHasher::new(), completions: 0, came: 0, finished: Ps::ZERO }
    }

    /// A completion was seen.
    pub(super) fn note(&mut self, at: Ps, done: &Completion) {
        (at.0, format!("{done:?}")).hash(&mut self.hasher);
        self.completions += 1;
        self.finished = at;
    }
}
