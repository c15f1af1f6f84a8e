//! What an adapter does, as typed events in model time, and the packets at its port.
//!
//! The engines leave a [`Record`] where something begins, waits or is done (`Core::note`); the world gathers
//! them in a bounded [`Trace`], which its owner empties ([`World::drain_trace`]), and hashes them, so that two runs
//! can be compared by one number. Packets are gathered in the same way ([`World::drain_packets`]). Both are off
//! unless asked for, and then cost one check. What the units do (DMA, cache misses) is noted by them and stands before
//! the event that it was done for. Writers of files (Perfetto, pcapng) live elsewhere: they are told by
//! [`Event::name`], [`Event::unit`] and [`Event::fields`] what there is, and need to know no event.
//!
//! A work request can be followed by its queue pair and index to its PSNs ([`Event::Started`]), by `(slid, dlid,
//! dest_qp, psn)` over the fabric, and back by the PSNs of responses to its completion.
//!
//! [`World::drain_trace`]: crate::World::drain_trace
//! [`World::drain_packets`]: crate::World::drain_packets

mod event;
mod ring;

use crate::core::Core;
use crate::time::Ps;
use crate::timing::{Note, Units};
use crate::wire::Packet;
use crate::world::{HcaId, NodeId, PortRef, World};

pub(crate) use event::Headers;
pub use event::{Cause, Event, Hold, Object, Status, Unit, Value, operation_name};
pub use ring::Trace;

/// Something that happened at an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When it was asked for.
    pub at: Ps,
    /// How long it then waited: for its unit, which was busy with others, for a pipeline, cache misses or DMA.
    pub wait: Ps,
    /// How long it took after that; zero for what happens in an instant.
    pub took: Ps,
    /// Where.
    pub hca: HcaId,
    /// What.
    pub event: Event,
}

impl Record {
    /// When it was over.
    pub fn end(&self) -> Ps {
        self.at + self.wait + self.took
    }
}

/// A packet that left or reached a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// When its first byte left, or its last byte was there.
    pub at: Ps,
    /// The port.
    pub port: PortRef,
    /// It left; otherwise it arrived.
    pub sent: bool,
    /// The packet.
    pub packet: Packet,
}

/// What an adapter gathers for those who look on.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) hca: HcaId,
    pub(crate) records: Option<Vec<Record>>,
    pub(crate) packets: Option<Vec<Captured>>,
}

impl Watch {
    /// Gives what was gathered to the world.
    pub(crate) fn hand_over(
        &mut self,
        units: &mut Units,
        trace: Option<&mut Trace>,
        packets: &mut Vec<Captured>,
    ) {
        if let (Some(records), Some(trace)) = (&mut self.records, trace) {
            take_notes(records, self.hca, units);
            records.drain(..).for_each(|record| trace.add(record));
        }
        if let Some(captured) = &mut self.packets {
            packets.append(captured);
        }
    }
}

/// Puts what the units noted behind what is there.
fn take_notes(records: &mut Vec<Record>, hca: HcaId, units: &mut Units) {
    let record = |Note { at, wait, took, event }| Record { at, wait, took, hca, event };
    records.extend(units.drain_notes().map(record));
}

impl World {
    fn watch(&mut self, hca: HcaId) -> Option<&mut Watch> {
        let none = || Box::new(Watch { hca, records: None, packets: None });
        Some(self.core_mut(hca)?.watch.get_or_insert_with(none))
    }

    /// The name of an adapter; empty if there is no such adapter.
    pub fn name(&self, hca: HcaId) -> &str {
        self.core(hca).map_or("", |core| &core.name)
    }

    /// From now on everything that happens is recorded; `capacity` records are kept until they are taken.
    pub fn start_trace(&mut self, capacity: usize) {
        self.trace = Some(Trace::new(capacity));
        for hca in (0..self.hcas()).map(HcaId) {
            if let Some(watch) = self.watch(hca) {
                watch.records = Some(Vec::new());
            }
            if let Some(core) = self.core_mut(hca) {
                core.units.start_notes();
            }
        }
    }

    /// The trace, if one was started.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Takes the records since the last call, in the order they were made: that of [`Record::at`], but for what was
    /// known before it happened.
    pub fn drain_trace(&mut self) -> impl Iterator<Item = Record> {
        self.trace.iter_mut().flat_map(Trace::drain)
    }

    /// Every port that takes a cable: those of adapters, then those of switches.
    pub fn ports(&self) -> impl Iterator<Item = PortRef> {
        let hcas = (0..self.hcas()).map(|i| HcaId(i).into());
        hcas.chain(self.switch_ports())
    }

    /// The name of a port: `HOST/HCA:PORT` or `SWITCH:PORT`.
    pub fn port_name(&self, port: PortRef) -> String {
        let node = match port.node {
            NodeId::Hca(hca) => self.name(hca),
            NodeId::Switch(switch) => self.switch_name(switch),
        };
        format!("{node}:{}", port.port)
    }

    /// From now on the packets at that port are gathered, until they are taken.
    pub fn capture_packets(&mut self, port: impl Into<PortRef>) {
        let port = port.into();
        match port.node {
            NodeId::Hca(hca) => {
                if let Some(watch) = self.watch(hca) {
                    watch.packets = Some(Vec::new());
                }
            }
            NodeId::Switch(_) => self.watch_switch(port),
        }
    }

    /// Takes the packets up to now, in the order of time.
    pub fn drain_packets(&mut self) -> Vec<Captured> {
        let now = self.now();
        // Stable: what happened at the same time stays in the order it was gathered.
        self.captured.sort_by_key(|c| c.at);
        let rest = self.captured.split_off(self.captured.partition_point(|c| c.at <= now));
        std::mem::replace(&mut self.captured, rest)
    }
}

impl Core {
    /// Whether records are wanted: asked before something is computed for them alone.
    pub(crate) fn traces(&self) -> bool {
        self.watch.as_ref().is_some_and(|w| w.records.is_some())
    }

    /// Something happened.
    pub(crate) fn note(&mut self, at: Ps, event: Event) {
        self.note_span(at, Ps::ZERO, Ps::ZERO, event);
    }

    /// Something was asked for at `at`, waited, and took its time.
    #[inline]
    pub(crate) fn note_span(&mut self, at: Ps, wait: Ps, took: Ps, event: Event) {
        self.counting.count(&event);
        if let Some(Watch { hca, records: Some(records), .. }) = self.watch.as_deref_mut() {
            take_notes(records, *hca, &mut self.units);
            records.push(Record { at, wait, took, hca: *hca, event });
        }
    }

    /// A unit that got a job at `at` is done with it at `done`, of which `service` is its own time: it was busy
    /// with others before.
    #[inline]
    pub(crate) fn note_job(&mut self, at: Ps, done: Ps, service: Ps, event: Event) {
        let took = service.min(done.since(at));
        self.note_span(at, done.since(at).since(took), took, event);
    }

    /// A packet leaves the port or has reached it.
    #[inline]
    pub(crate) fn capture(&mut self, at: Ps, sent: bool, packet: &Packet) {
        if let Some(Watch { hca, packets: Some(packets), .. }) = self.watch.as_deref_mut() {
            packets.push(Captured { at, port: (*hca).into(), sent, packet: packet.clone() });
        }
    }
}
