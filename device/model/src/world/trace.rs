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
//! [`Core::note`]: crate::adapter::core::Core::note
//! [`World::drain_trace`]: crate::World::drain_trace
//! [`World::drain_packets`]: crate::World::drain_packets

use super::World;
use crate::adapter::state::watch::{Captured, Executed, Watch};
use crate::ground::event::Audience;
use crate::ground::node::{HcaId, NodeId, PortRef};
use crate::ground::record::Record;
use crate::ground::ring::Trace;

impl World {
    fn watch(&mut self, hca: HcaId) -> Option<&mut Watch> {
        Some(self.chip_mut(hca)?.watch.get_or_insert_with(|| Box::new(Watch::new(hca))))
    }

    /// From now on what happens at an adapter is recorded: what those want who look on.
    pub(super) fn record(&mut self, hca: HcaId, audience: Audience) {
        if let Some(watch) = self.watch(hca) {
            watch.record(audience);
        }
    }

    /// The name of an adapter; empty if there is no such adapter.
    pub fn name(&self, hca: HcaId) -> &str {
        self.chip(hca).map_or("", |chip| &chip.name)
    }

    /// From now on everything that happens is recorded; `capacity` records are kept until they are taken.
    pub fn start_trace(&mut self, capacity: usize) {
        self.rouse();
        self.trace = Some(Trace::new(capacity, self.start));
        for hca in (0..self.hcas()).map(HcaId) {
            self.record(hca, Audience::TRACE);
            if let Some(chip) = self.chip_mut(hca) {
                chip.units.start_notes();
            }
        }
    }

    /// From now on everything that happens is hashed, and recorded if there is a trace already with room for it.
    pub fn hash_trace(&mut self) {
        self.rouse();
        let trace = self.trace.take().unwrap_or_else(|| Trace::new(0, self.start));
        self.start_trace(0);
        self.trace = Some(trace);
    }

    /// From now on what tells of the interface's use is recorded, and nothing else unless a trace is started, too; `capacity` records
    /// are kept until they are taken, or as many as a trace keeps that was started before.
    pub fn start_coverage(&mut self, capacity: usize) {
        self.rouse();
        let start = self.start;
        self.trace.get_or_insert_with(|| Trace::new(capacity, start));
        for hca in (0..self.hcas()).map(HcaId) {
            self.record(hca, Audience::COVERAGE);
        }
    }

    /// Takes the commands that were carried out since the last call, if there is a trace or coverage, in the order of time.
    pub fn drain_commands(&mut self) -> Vec<Executed> {
        std::mem::take(&mut self.commands)
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
        self.hca_ports().chain(self.switch_ports())
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
        self.rouse();
        let port = port.into();
        match port.node {
            NodeId::Hca(hca) => {
                if let Some(watch) = self.watch(hca) {
                    watch.capture(port.port);
                }
                self.allow_trains_at(hca);
            }
            NodeId::Switch(_) => self.watch_switch(port),
        }
    }

    /// Packets that were gathered and not taken.
    pub fn captured_packets(&self) -> usize {
        self.captured.len()
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
