//! What the adapters of a world counted.

use hca_firmware::QCounter;
use hca_spec::ids::Qpn;

use super::World;
use crate::adapter::core::Core;
use crate::adapter::counters::{Counters, QpCounters, QpReport};
use crate::ground::node::HcaId;

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
            adapter: core.counting.adapter(),
            ports: core.fw.port_numbers().filter_map(|n| Some(core.fw.port(n)?.counters)).collect(),
            units: core.units.counts(),
            q_counters: QCounter::ALL.into_iter().map(|counter| (counter, sum(counter))).collect(),
            qps: core.counting.qps.iter().map(report).collect(),
        })
    }
}
