//! What a run of a scenario gave.

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
}
