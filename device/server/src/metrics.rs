//! Counters of one function and its hosts.

use serde::Serialize;

/// What happened since the server started.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics {
    /// Hosts that attached.
    pub clients: u64,
    /// Requests of hosts handled.
    pub messages: u64,
    /// Reads of configuration space and BARs.
    pub reads: u64,
    /// Writes to configuration space and BARs.
    pub writes: u64,
    /// Interrupts signalled.
    pub interrupts: u64,
    /// Interrupts kept pending: vector not connected or masked, or bus mastering off.
    pub interrupts_held: u64,
    /// Interrupts for vectors that don't exist, or that could not be told.
    pub interrupts_dropped: u64,
    /// Resets, by message or by function level reset.
    pub resets: u64,
}
