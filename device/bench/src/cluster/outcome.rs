//! What happened, as hashes that add up: those of the parts of a topology give that of the whole.

use std::hash::{DefaultHasher, Hash};

use hca_driver::Completion;
use hca_model::Ps;
use serde::Serialize;

use super::plan::{Pattern, Plan};

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
    /// What a benchmark would say of it, of this process's hosts.
    pub measured: Option<Measured>,
    /// If they were asked for.
    pub hashes: Option<Hashes>,
    /// What is to be told of traces and captures.
    pub said: Vec<String>,
}

/// What a benchmark of such traffic says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Measured {
    /// All hosts work on one thing.
    Collective(Collective),
    /// Blocks are read.
    Storage(Storage),
}

/// A collective operation, as NCCL's tests count it (nccl-tests, PERFORMANCE.md): the bandwidth of the algorithm is the bytes that a rank
/// has, by the time; that of the bus is the same times what links have to carry of each byte at least, so that it compares with
/// the rate of a link, whatever the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Collective {
    /// Hosts of the whole topology.
    pub ranks: usize,
    /// Bytes of each rank's buffer.
    pub bytes: u64,
    /// How often it was done.
    pub rounds: usize,
    /// From the start until the last host of this process had all its results, divided by the rounds, in ps.
    pub round_ps: u64,
    /// In bytes a second.
    pub algorithm_bandwidth: f64,
    /// In bytes a second.
    pub bus_bandwidth: f64,
}

/// Reads of blocks, as their clients see them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Storage {
    /// Clients of this process.
    pub clients: usize,
    /// Blocks that they have read.
    pub blocks: u64,
    /// Bytes of a block.
    pub size: u64,
    /// From the start until the last of them, in ps.
    pub took_ps: u64,
    /// In bytes a second, of all together.
    pub bandwidth: f64,
    /// Of a block, from its request until its bytes are there, in ps: the mean, half of them, 99 of 100, the longest.
    pub latency_ps: [u64; 4],
}

/// Bytes in so many ps, in a second.
fn rate(bytes: f64, took: u64) -> f64 {
    bytes / (took.max(1) as f64 / 1e12)
}

/// What is to be said of what these hosts did.
pub(super) fn measured<'a>(plan: &Plan, accounts: impl Iterator<Item = &'a Account>) -> Option<Measured> {
    let accounts: Vec<&Account> = accounts.filter(|account| account.completions > 0).collect();
    let took = accounts.iter().map(|account| account.finished).max()?.since(plan.start).0;
    let ranks = plan.addresses.len();
    let share = ranks.saturating_sub(1) as f64 / ranks.max(1) as f64;
    // Of each byte that a rank has, so much goes through its link, each way.
    let (bytes, factor) = match plan.pattern {
        Pattern::RingAllReduce | Pattern::TreeAllReduce => (plan.size, 2.0 * share),
        Pattern::AllToAll if plan.peers.is_none() => (plan.size * ranks, share),
        Pattern::StorageReads => return storage(plan, took, &accounts),
        Pattern::AllToAll | Pattern::Incast | Pattern::Ring | Pattern::None => return None,
    };
    let round_ps = took / plan.messages.max(1) as u64;
    let algorithm_bandwidth = rate(bytes as f64, round_ps);
    Some(Measured::Collective(Collective {
        ranks,
        bytes: bytes as u64,
        rounds: plan.messages,
        round_ps,
        algorithm_bandwidth,
        bus_bandwidth: algorithm_bandwidth * factor,
    }))
}

fn storage(plan: &Plan, took_ps: u64, accounts: &[&Account]) -> Option<Measured> {
    let mut latencies: Vec<u64> =
        accounts.iter().flat_map(|account| &account.latencies).map(|latency| latency.0).collect();
    latencies.sort_unstable();
    let longest = *latencies.last()?;
    let part = |of: usize| latencies.get(latencies.len() * of / 100).copied().unwrap_or(longest);
    let blocks = latencies.len() as u64;
    let mean = latencies.iter().sum::<u64>() / blocks;
    Some(Measured::Storage(Storage {
        clients: accounts.iter().filter(|account| !account.latencies.is_empty()).count(),
        blocks,
        size: plan.size as u64,
        took_ps,
        bandwidth: rate((blocks * plan.size as u64) as f64, took_ps),
        latency_ps: [mean, part(50), part(99), longest],
    }))
}

/// What one host did.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) hasher: DefaultHasher,
    pub(super) completions: u64,
    /// Messages that came, whole.
    pub(super) came: u64,
    /// Bytes of them.
    pub(super) bytes: u64,
    /// When the last completion was seen.
    pub(super) finished: Ps,
    /// What each block took that was read.
    pub(super) latencies: Vec<Ps>,
}

impl Account {
    pub(super) fn new() -> Self {
        Self {
            hasher: DefaultHasher::new(),
            completions: 0,
            came: 0,
            bytes: 0,
            finished: Ps::ZERO,
            latencies: Vec::new(),
        }
    }

    /// A message of `size` bytes came, whole, and was right.
    pub(super) fn take(&mut self, size: usize) {
        self.came += 1;
        self.bytes += size as u64;
    }

    /// A completion was seen.
    pub(super) fn note(&mut self, at: Ps, done: &Completion) {
        (at.0, done).hash(&mut self.hasher);
        self.completions += 1;
        self.finished = at;
    }
}
