//! What the adapters of a world counted.

use hca_firmware::QCounter;
use hca_spec::ids::Qpn;

use super::World;
use crate::adapter::state::counters::{Counters, QpCounters, QpReport};
use crate::adapter::state::function::Function;
use crate::ground::node::FunctionRef;

impl World {
    /// What a function counted, with the ports and units of its adapter; nothing if there is no such function.
    pub fn counters(&self, at: impl Into<FunctionRef>) -> Option<Counters> {
        let at = at.into();
        let (totals, function) = (self.totals(at)?, self.function(at)?);
        let all = function.state.counting.qps.iter();
        let qps = all.map(|(qpn, counters)| report(function, qpn, counters)).collect();
        Some(Counters { qps, ..totals })
    }

    /// The same with no more than `most` queue pairs, those with most packets; and how many there are. Nothing is looked up of the others.
    pub fn busiest(&self, at: impl Into<FunctionRef>, most: usize) -> Option<(Counters, usize)> {
        let at = at.into();
        let (totals, function) = (self.totals(at)?, self.function(at)?);
        let (busiest, known) = function.state.counting.busiest(most);
        let qps = busiest.into_iter().map(|(qpn, counters)| report(function, qpn, &counters)).collect();
        Some((Counters { qps, ..totals }, known))
    }

    /// The same without the queue pairs, of which there may be many.
    pub fn totals(&self, at: impl Into<FunctionRef>) -> Option<Counters> {
        let at = at.into();
        let (chip, function) = (self.chip(at.hca)?, self.function(at)?);
        let sets = || function.state.fw.icm.q_counters.iter();
        let sum = |counter| sets().map(|(_, set)| u64::from(set.get(counter))).sum();
        Some(Counters {
            adapter: function.state.counting.adapter(),
            ports: chip.managed.numbers().filter_map(|n| Some(chip.managed.port(n)?.counters)).collect(),
            units: chip.units.counts(),
            q_counters: QCounter::ALL.into_iter().map(|counter| (counter, sum(counter))).collect(),
            qps: Vec::new(),
        })
    }
}

fn report(function: &Function, qpn: u32, counters: &QpCounters) -> QpReport {
    QpReport {
        qpn: Qpn(qpn),
        service: function.state.fw.icm.qps.get(qpn).map(|qp| qp.service()),
        state: function.qps.get(qpn).map(|qp| qp.state),
        counters: *counters,
    }
}
