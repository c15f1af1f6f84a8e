//! What a run of a scenario gave.

use hca_model::units::{Counts, Ratio};
use serde::Serialize;

use crate::stats;

/// Percentiles of latency in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// Half were not longer.
    pub p50: f64,
    /// 90 of 100 were not longer.
    pub p90: f64,
    /// 99 of 100 were not longer.
    pub p99: f64,
    /// 999 of 1000 were not longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The mean.
    pub avg: f64,
}

impl Outcome {
    /// Whether Little's law fails by more than what begins and ends in the middle of operations.
    pub fn is_unsteady(&self) -> bool {
        const MOST: f64 = 0.1;
        self.little.is_some_and(|differs| differs.abs() > MOST)
    }
}

impl Latency {
    /// Percentiles of samples.
    pub fn of(samples: &[f64]) -> Self {
        let sorted = stats::sorted(samples.iter().copied());
        let p = |p| stats::percentile(&sorted, p);
        let (min, p50, p90, p99, p999, max) = (p(0.0), p(50.0), p(90.0), p(99.0), p(99.9), p(100.0));
        Self { min, p50, p90, p99, p999, max, avg: stats::mean(&sorted) }
    }
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Operations measured.
    pub operations: u64,
    /// Model time they took, in nanoseconds.
    pub time_ns: f64,
    /// Latency, if that was measured.
    pub latency: Option<Latency>,
    /// Operations per second, of all adapters together.
    pub rate: f64,
    /// Operations per second of one initiating adapter.
    pub rate_each: f64,
    /// Payload bytes per second.
    pub bandwidth: f64,
    /// Little's law: by how much, as a share, rate times latency differs from what was outstanding; where that can be said. Far
    /// from 0 the run had no steady state, and its rate means little.
    pub little: Option<f64>,
    /// What the adapters did meanwhile.
    pub usage: Option<Usage>,
}

/// What two of the adapters did: one that initiates and the target; in loopback both are the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Usage {
    /// The first initiator, per operation of its own.
    pub initiator: Share,
    /// The target, per operation.
    pub target: Share,
}

/// What an adapter did per operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// PCIe reads.
    pub pcie_reads: f64,
    /// Cache lines that they read.
    pub pcie_read_lines: f64,
    /// PCIe writes.
    pub pcie_writes: f64,
    /// Stores of the processor.
    pub stores: f64,
    /// Share of the time of its processing units in which they were busy.
    pub busy: f64,
    /// Share of hits of each cache that was used.
    pub hits: Hits,
}

/// Hit ratios: `None` where a cache was not used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hits {
    /// Queue pair contexts.
    pub contexts: Option<f64>,
    /// Completion queue contexts.
    pub cqs: Option<f64>,
    /// Memory keys.
    pub keys: Option<f64>,
    /// Translations.
    pub translations: Option<f64>,
    /// Send WQEs.
    pub wqes: Option<f64>,
}

impl Share {
    /// The difference of two counts `time_ns` nanoseconds apart, per operation.
    pub fn of(before: &Counts, after: &Counts, operations: f64, time_ns: f64) -> Self {
        let per = |before: u64, after: u64| after.saturating_sub(before) as f64 / operations.max(1.0);
        let hits = |before: Ratio, after: Ratio| {
            let hits = after.hits.saturating_sub(before.hits) as f64;
            let all = hits + after.misses.saturating_sub(before.misses) as f64;
            (all > 0.0).then(|| hits / all)
        };
        let (b, a) = (&before.pcie, &after.pcie);
        Self {
            pcie_reads: per(b.reads, a.reads),
            pcie_read_lines: per(b.read_bytes, a.read_bytes) / LINE,
            pcie_writes: per(b.writes, a.writes),
            stores: per(b.stores, a.stores),
            busy: after.busy.since(before.busy).0 as f64 / 1e3 / (time_ns * after.units as f64).max(1.0),
            hits: Hits {
                contexts: hits(before.contexts, after.contexts),
                cqs: hits(before.cqs, after.cqs),
                keys: hits(before.keys, after.keys),
                translations: hits(before.translations, after.translations),
                wqes: hits(before.wqes, after.wqes),
            },
        }
    }
}

/// Bytes of a cache line.
const LINE: f64 = 64.0;
