//! What an adapter counts: one struct for the adapter, one for a queue pair; a port's is [`PortCounters`], the units'
//! are the timing model's.
//!
//! Everything that happens passes [`Core::note_span`](crate::adapter::core::Core), and is counted there, once. The counters
//! that drivers read are others: PortCounters come from the same [`PortCounters`], `rdma statistic` reads the sets
//! whose sums are [`Counters::q_counters`].

use std::cmp::Reverse;

use hca_firmware::{PortCounters, QCounter};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, ServiceType};
use serde::Serialize;

use crate::engines::qp::run::Half;
use crate::ground::event::{Event, Status};
use crate::ground::slots::Slots;
use crate::units::Counts;

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
    fn add(&mut self, other: &Self) {
        let Self {
            requests_started,
            requests_done,
            requests_failed,
            request_packets,
            request_bytes,
            response_packets,
            response_bytes,
            executed_packets,
            executed_bytes,
            duplicates,
            answers,
            held,
            timeouts,
            retries,
        } = *other;
        self.requests_started += requests_started;
        self.requests_done += requests_done;
        self.requests_failed += requests_failed;
        self.request_packets += request_packets;
        self.request_bytes += request_bytes;
        self.response_packets += response_packets;
        self.response_bytes += response_bytes;
        self.executed_packets += executed_packets;
        self.executed_bytes += executed_bytes;
        self.duplicates += duplicates;
        self.answers += answers;
        self.held += held;
        self.timeouts += timeouts;
        self.retries += retries;
    }
}

/// Counts for an adapter and its queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// What is of no queue pair, and what queue pairs did that are gone.
    adapter: AdapterCounters,
    pub(crate) qps: Slots<QpCounters>,
}

impl Counting {
    /// Inlined where the event is made: what is left there is what that event counts.
    #[inline(always)]
    pub(crate) fn count(&mut self, event: &Event) {
        let a = &mut self.adapter;
        match *event {
            Event::Command { .. } => a.commands += 1,
            Event::Doorbell { .. } => a.doorbells += 1,
            Event::BlueFlame { .. } => {
                a.blueflame += 1;
                a.doorbells += 1;
            }
            Event::Fetch { .. } => a.fetches += 1,
            Event::Dropped { .. } => a.packets_dropped += 1,
            Event::Cqe { .. } => a.cqes += 1,
            Event::Eqe { .. } => a.eqes += 1,
            Event::Interrupt { .. } => a.interrupts += 1,
            Event::Started { qpn, .. } => self.of(qpn, |qp| qp.requests_started += 1),
            Event::Done { qpn, status: Status(None), .. } => self.of(qpn, |qp| qp.requests_done += 1),
            Event::Done { qpn, .. } => self.of(qpn, |qp| qp.requests_failed += 1),
            Event::Build { qpn, bytes, .. } => self.of(qpn, |qp| {
                qp.request_packets += 1;
                qp.request_bytes += u64::from(bytes);
            }),
            Event::Respond { qpn, bytes, .. } => self.of(qpn, |qp| {
                qp.response_packets += 1;
                qp.response_bytes += u64::from(bytes);
            }),
            Event::Executed { qpn, bytes, .. } => self.of(qpn, |qp| {
                qp.executed_packets += 1;
                qp.executed_bytes += u64::from(bytes);
            }),
            Event::Duplicate { qpn, .. } => self.of(qpn, |qp| qp.duplicates += 1),
            Event::Answered { qpn, .. } => self.of(qpn, |qp| qp.answers += 1),
            Event::Held { qpn, .. } => self.of(qpn, |qp| qp.held += 1),
            Event::Timeout { qpn, .. } => self.of(qpn, |qp| qp.timeouts += 1),
            Event::Retry { qpn, .. } => self.of(qpn, |qp| qp.retries += 1),
            _ => {}
        }
    }

    /// So many packets at once of which each would be an [`Event::Executed`], with so many bytes in all.
    pub(crate) fn count_executed(&mut self, qpn: Qpn, packets: u32, bytes: usize) {
        self.of(qpn, |qp| {
            qp.executed_packets += u64::from(packets);
            qp.executed_bytes += bytes as u64;
        });
    }

    /// So many packets at once of which each would be an [`Event::Answered`].
    pub(crate) fn count_answered(&mut self, qpn: Qpn, packets: u32) {
        self.of(qpn, |qp| qp.answers += u64::from(packets));
    }

    /// So many packets of which each would be an [`Event::Build`] or [`Event::Respond`], with so many bytes in all.
    pub(crate) fn count_made(&mut self, (qpn, half): (Qpn, Half), packets: u32, bytes: usize) {
        self.of(qpn, |qp| {
            let (count, sum) = match half {
                Half::Requester => (&mut qp.request_packets, &mut qp.request_bytes),
                Half::Responder => (&mut qp.response_packets, &mut qp.response_bytes),
            };
            *count += u64::from(packets);
            *sum += bytes as u64;
        });
    }

    /// Adds to what that queue pair counts.
    #[inline]
    pub(in crate::adapter) fn of(&mut self, Qpn(qpn): Qpn, add: impl FnOnce(&mut QpCounters)) {
        match self.qps.get_mut(qpn) {
            Some(qp) => add(qp),
            None => add(self.first_of(qpn)),
        }
    }

    /// The counters of a queue pair that has none yet.
    #[cold]
    fn first_of(&mut self, qpn: u32) -> &mut QpCounters {
        self.qps.insert(qpn, QpCounters::default());
        // Numbers have 24 bits: there is a place for each. What had none would count for the adapter.
        self.qps.get_mut(qpn).unwrap_or(&mut self.adapter.traffic)
    }

    /// The adapter's, with what its queue pairs did.
    pub(crate) fn adapter(&self) -> AdapterCounters {
        let mut all = self.adapter;
        self.qps.iter().for_each(|(_, qp)| all.traffic.add(qp));
        all
    }

    /// Those queue pairs that have most packets, at most so many, in the order of their numbers; and how many there are. Of equal ones the
    /// lower numbers count. Each is looked at once: there may be hundreds of thousands.
    pub(crate) fn busiest(&self, most: usize) -> (Vec<(u32, QpCounters)>, usize) {
        let packets = |c: &QpCounters| c.request_packets + c.response_packets + c.executed_packets;
        let mut all: Vec<_> = self.qps.iter().map(|(qpn, c)| (Reverse(packets(c)), qpn)).collect();
        let known = all.len();
        if known > most {
            all.select_nth_unstable(most);
            all.truncate(most);
        }
        all.sort_unstable_by_key(|(_, qpn)| *qpn);
        let with = |(_, qpn): (_, u32)| Some((qpn, *self.qps.get(qpn)?));
        (all.into_iter().filter_map(with).collect(), known)
    }

    /// A queue pair or DC target is gone.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.remove(qpn.0) {
            self.adapter.traffic.add(&qp);
        }
    }

    /// All queue pairs are gone.
    pub(crate) fn forget_all(&mut self) {
        self.adapter = self.adapter();
        self.qps.clear();
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
    /// Its ports from port 1, as PortCounters shows them.
    pub ports: Vec<PortCounters>,
    /// Its units: PCIe, caches, processing.
    pub units: Counts,
    /// Sums over the sets of counters that QUERY_Q_COUNTER shows.
    pub q_counters: Vec<(QCounter, u64)>,
    /// Queue pairs that did something, by number.
    pub qps: Vec<QpReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_are_chosen() {
        let mut counting = Counting::default();
        let packets = |qpn: u32| u64::from(qpn * 7919 % 1000);
        for qpn in 0..10_000 {
            counting.qps.insert(qpn, QpCounters { request_packets: packets(qpn), ..QpCounters::default() });
        }
        let mut sorted: Vec<u32> = (0..10_000).collect();
        sorted.sort_by_key(|qpn| (Reverse(packets(*qpn)), *qpn));
        for most in [0, 1, 128, 9_999, 10_000, 20_000] {
            let (busiest, known) = counting.busiest(most);
            let mut expected: Vec<u32> = sorted.iter().copied().take(most).collect();
            expected.sort_unstable();
            assert_eq!((busiest.iter().map(|(qpn, _)| *qpn).collect::<Vec<_>>(), known), (expected, 10_000));
            assert!(busiest.iter().all(|(qpn, counters)| counters.request_packets == packets(*qpn)));
        }
    }
}
