//! Counters of one adapter's front end.

use serde::Serialize;

/// What happened since the server started.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics {
    /// Clients that attached.
    pub clients: u64,
    /// Messages handled.
    pub messages: u64,
    /// Reads of a region.
    pub region_reads: u64,
    /// Writes to a region.
    pub region_writes: u64,
    /// Interrupts signalled.
    pub interrupts: u64,
    /// Interrupts kept pending: vector not connected or masked, or bus mastering off.
    pub interrupts_held: u64,
    /// Interrupts for vectors that don't exist or whose descriptor failed.
    pub interrupts_dropped: u64,
    /// Resets, by message or by function level reset.
    pub resets: u64,
}
