//! 64 adapters and 8 switches in one process: everyone sends to everyone, every byte is checked.

use std::time::{Duration, Instant};

use hca_driver::Error;
use hca_model::{HcaId, Ps};

use crate::fabric::{BYTES_PER_US, Fabric, Plan, Traffic};

/// DMA memory of each host beyond the messages, for queues.
const QUEUES: usize = 4 << 20;

/// What it was and what it took.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Adapters.
    pub hcas: usize,
    /// Switches.
    pub switches: usize,
    /// Messages that came, whole.
    pub messages: usize,
    /// Bytes in them.
    pub bytes: u64,
    /// Packets on the adapters' cables.
    pub packets: u64,
    /// Model time from the first doorbell to the last completion.
    pub model: Ps,
    /// Time of this machine for the traffic, bring-up not included.
    pub host: Duration,
    /// Share of the adapters' links that was in use.
    pub load: f64,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { hcas, switches, messages, bytes, packets, model, host, load } = self;
        write!(
            f,
            "{hcas} adapters, {switches} switches: {messages} messages, {bytes} bytes in {packets} packets; model time \
             {} us, {:.0} % of the links' rate; this machine took {:.2} s, {} MiB at most",
            model.as_ns() / 1000,
            load * 100.0,
            host.as_secs_f64(),
            peak_memory() >> 20,
        )
    }
}

/// The most memory that this process ever had, in bytes; 0 if the system does not tell.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Runs it; `scale` divides the numbers of adapters and cables: 1 is all of it, 64 adapters and 8 switches.
///
/// # Errors
/// A command failed.
///
/// # Panics
/// A message did not arrive as it was sent, or a packet was dropped.
pub fn run(scale: u8, messages: usize, len: usize) -> Result<Report, Error> {
    let plan = Plan::two_levels(scale);
    let (hcas, switches) = (plan.hcas, plan.switches.len());
    let cqes = (2 * hcas * messages).next_power_of_two() as u32;
    let traffic = Traffic::all_to_all(hcas, messages, len);
    // What a host sends, and what it receives.
    let registered = 2 * hcas * messages * len;
    let mut fabric = Fabric::new(plan.world(64), QUEUES + registered, registered, cqes)?;
    fabric.connect_all(&traffic)?;
    let start = Instant::now();
    let model = fabric.run(&traffic)?;
    let host = start.elapsed();
    let all = || (0..hcas).map(|i| fabric.counters(HcaId(i)));
    let packets = all().map(|c| c.xmit_packets).sum();
    assert_eq!(all().map(|c| c.rcv_packets).sum::<u64>(), packets, "every packet arrived");
    let wire = traffic.bytes() as f64 / hcas as f64 / BYTES_PER_US as f64;
    Ok(Report {
        hcas,
        switches,
        messages: traffic.flows.len() * messages,
        bytes: traffic.bytes(),
        packets,
        model,
        host,
        load: wire / (model.as_ns() as f64 / 1000.0),
    })
}
