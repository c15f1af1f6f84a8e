//! What an adapter counts: one struct for the adapter, one for a queue pair; a port's is [`PortCounters`], the units'
//! are the timing model's.
//!
//! Everything that happens passes [`Core::note_span`](crate::core::Core), and is counted there, once. The counters
//! that drivers read are others: PortCounters come from the same [`PortCounters`], `rdma statistic` reads the sets
//! whose sums are [`Counters::q_counters`].

use hca_firmware::{PortCounters, QCounter};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, ServiceType};
use serde::Serialize;

use crate::core::Core;
use crate::slots::Slots;
use crate::timing::Counts;
use crate::trace::{Event, Status};
use crate::world::{HcaId, World};

/// What happened at an adapter since its last reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AdapterCounters {
    /// Commands executed.
    pub commands: u64,
    /// Send doorbells, BlueFlame copies included.
    pub doorbells: u64,
    /// Work requests that came with their doorbell.
    pub blueflame: u64,
    /// Fetches of send work requests.
    pub fetches: u64,
    /// Packets that arrived and were dropped by the port.
    pub packets_dropped: u64,
    /// Completions written.
    pub cqes: u64,
    /// Events written.
    pub eqes: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// What its queue pairs, those included that are gone, did.
    #[serde(flatten)]
    pub traffic: QpCounters,
}

/// What a queue pair did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct QpCounters {
    /// Work requests begun.
    pub requests_started: u64,
    /// Work requests done without error.
    pub requests_done: u64,
    /// Work requests that ended in error, flushed ones included.
    pub requests_failed: u64,
    /// Request packets built, those sent again included.
    pub request_packets: u64,
    /// Their bytes, LRH to VCRC.
    pub request_bytes: u64,
    /// Response packets built.
    pub response_packets: u64,
    /// Their bytes, LRH to VCRC.
    pub response_bytes: u64,
    /// Request packets of the peer executed.
    pub executed_packets: u64,
    /// Bytes of payload in them.
    pub executed_bytes: u64,
    /// Request packets of the peer that came again.
    pub duplicates: u64,
    /// Answers of the peer that counted.
    pub answers: u64,
    /// Times that it had to wait with work to do: for credits, a fence, reads, pages.
    pub held: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Times that it went back to send again.
    pub retries: u64,
}

impl QpCounters {
    fn count(&mut self, event: &Event) {
        match *event {
            Event::Started { .. } => self.requests_started += 1,
            Event::Done { status: Status(None), .. } => self.requests_done += 1,
            Event::Done { .. } => self.requests_failed += 1,
            Event::Build { bytes, .. } => {
                self.request_packets += 1;
                self.request_bytes += u64::from(bytes);
            }
            Event::Respond { bytes, .. } => {
                self.response_packets += 1;
                self.response_bytes += u64::from(bytes);
            }
            Event::Executed { bytes, .. } => {
                self.executed_packets += 1;
                self.executed_bytes += u64::from(bytes);
            }
            Event::Duplicate { .. } => self.duplicates += 1,
            Event::Answered { .. } => self.answers += 1,
            Event::Held { .. } => self.held += 1,
            Event::Timeout { .. } => self.timeouts += 1,
            Event::Retry { .. } => self.retries += 1,
            _ => {}
        }
    }
}

/// Counts for an adapter and its queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    adapter: AdapterCounters,
    qps: Slots<QpCounters>,
}

impl Counting {
    #[inline]
    pub(crate) fn count(&mut self, event: &Event) {
        let a = &mut self.adapter;
        match *event {
            Event::Command { .. } => return a.commands += 1,
            Event::Doorbell { .. } => return a.doorbells += 1,
            Event::BlueFlame { .. } => {
                a.blueflame += 1;
                return a.doorbells += 1;
            }
            Event::Fetch { .. } => return a.fetches += 1,
            Event::Dropped { .. } => return a.packets_dropped += 1,
            Event::Cqe { .. } => return a.cqes += 1,
            Event::Eqe { .. } => return a.eqes += 1,
            Event::Interrupt { .. } => return a.interrupts += 1,
            _ => a.traffic.count(event),
        }
        let Some(Qpn(qpn)) = worker(event) else { return };
        match self.qps.get_mut(qpn) {
            Some(counters) => counters.count(event),
            None => {
                let mut counters = QpCounters::default();
                counters.count(event);
                self.qps.insert(qpn, counters);
            }
        }
    }

    /// A queue pair or DC target is gone.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        _ = self.qps.remove(qpn.0);
    }

    /// All queue pairs are gone.
    pub(crate) fn forget_all(&mut self) {
        self.qps.clear();
    }
}

/// The queue pair that did something, of events that [`QpCounters`] count.
fn worker(event: &Event) -> Option<Qpn> {
    match *event {
        Event::Started { qpn, .. }
        | Event::Done { qpn, .. }
        | Event::Build { qpn, .. }
        | Event::Respond { qpn, .. }
        | Event::Executed { qpn, .. }
        | Event::Duplicate { qpn, .. }
        | Event::Answered { qpn, .. }
        | Event::Held { qpn, .. }
        | Event::Timeout { qpn, .. }
        | Event::Retry { qpn, .. } => Some(qpn),
        _ => None,
    }
}

/// A queue pair and what it counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpReport {
    /// Its number.
    pub qpn: Qpn,
    /// Its service; of DC, the number may be that of a target.
    pub service: Option<ServiceType>,
    /// Its state.
    pub state: Option<QpState>,
    /// What it counted.
    pub counters: QpCounters,
}

/// Everything an adapter counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// The adapter.
    pub adapter: AdapterCounters,
    /// Its port, as PortCounters shows it.
    pub port: PortCounters,
    /// Its units: PCIe, caches, processing.
    pub units: Counts,
    /// Sums over the sets of counters that QUERY_Q_COUNTER shows.
    pub q_counters: Vec<(QCounter, u64)>,
    /// Queue pairs that did something, by number.
    pub qps: Vec<QpReport>,
}

impl World {
    /// What an adapter counted; nothing if there is no such adapter.
    pub fn counters(&self, hca: HcaId) -> Option<Counters> {
        let core: &Core = self.core(hca)?;
        let sets = || core.fw.icm.q_counters.iter();
        let sum = |counter| sets().map(|(_, set)| u64::from(set.get(counter))).sum();
        let report = |(qpn, counters): (u32, &QpCounters)| QpReport {
            qpn: Qpn(qpn),
            service: core.fw.icm.qps.get(qpn).map(|qp| qp.service()),
            state: self.qp_state(hca, Qpn(qpn)),
            counters: *counters,
        };
        Some(Counters {
            adapter: core.counting.adapter,
            port: core.fw.port(1).map(|port| port.counters).unwrap_or_default(),
            units: core.units.counts(),
            q_counters: QCounter::ALL.into_iter().map(|counter| (counter, sum(counter))).collect(),
            qps: core.counting.qps.iter().map(report).collect(),
        })
    }
}
