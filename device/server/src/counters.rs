//! What the adapters and switches count, as the control socket tells it.
//!
//! Every number comes from the model's [`Counters`]; nothing is counted here.

use hca_model::units::{Counts, PcieCounts};
use hca_model::{Counters, HcaId, NodeId, PortCounters, SwitchId, WaitingEvents, World};
use serde_json::{Map, Value, json};

/// Queue pairs of an adapter that an answer tells of: those with most packets.
const MOST_QPS: usize = 128;

/// `RxWriteRequests` as the kernel's tools write it: `rx_write_requests`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn port(counters: &PortCounters) -> Value {
    // Taken apart, so that a new counter can't be forgotten.
    let PortCounters {
        xmit_data,
        rcv_data,
        xmit_packets,
        rcv_packets,
        multicast_xmit_packets,
        multicast_rcv_packets,
        multicast_xmit_data,
        multicast_rcv_data,
        symbol_errors,
        rcv_errors,
        rcv_remote_physical_errors,
        xmit_discards,
        xmit_constraint_errors,
        rcv_constraint_errors,
        link_error_recovery,
        link_downed,
        vl15_dropped,
        rcv_switch_relay_errors,
        xmit_wait,
    } = *counters;
    json!({
        "xmit_packets": xmit_packets,
        "rcv_packets": rcv_packets,
        "xmit_data_words": xmit_data,
        "rcv_data_words": rcv_data,
        "multicast_xmit_packets": multicast_xmit_packets,
        "multicast_rcv_packets": multicast_rcv_packets,
        "multicast_xmit_data_words": multicast_xmit_data,
        "multicast_rcv_data_words": multicast_rcv_data,
        "symbol_errors": symbol_errors,
        "rcv_errors": rcv_errors,
        "rcv_remote_physical_errors": rcv_remote_physical_errors,
        "xmit_discards": xmit_discards,
        "xmit_constraint_errors": xmit_constraint_errors,
        "rcv_constraint_errors": rcv_constraint_errors,
        "link_error_recovery": link_error_recovery,
        "link_downed": link_downed,
        "vl15_dropped": vl15_dropped,
        "rcv_switch_relay_errors": rcv_switch_relay_errors,
        "xmit_wait_ticks": xmit_wait,
    })
}

fn of_port(number: u8, counters: &PortCounters) -> Value {
    json!({ "port": number, "counters": port(counters) })
}

fn units(counts: &Counts) -> Value {
    let Counts { pcie, contexts, cqs, keys, translations, entries, wqes, jobs, busy, units: _ } = *counts;
    let PcieCounts { reads, read_bytes, writes, written_bytes, stores, stored_bytes } = pcie;
    json!({
        "jobs": jobs,
        "busy_ns": busy.as_ns(),
        "pcie_reads": reads,
        "pcie_read_bytes": read_bytes,
        "pcie_writes": writes,
        "pcie_written_bytes": written_bytes,
        "pcie_stores": stores,
        "pcie_stored_bytes": stored_bytes,
        "qp_context_hits": contexts.hits,
        "qp_context_misses": contexts.misses,
        "cq_context_hits": cqs.hits,
        "cq_context_misses": cqs.misses,
        "key_hits": keys.hits,
        "key_misses": keys.misses,
        "translation_hits": translations.hits,
        "translation_misses": translations.misses,
        "list_entries": entries,
        "wqe_cache_hits": wqes.hits,
        "wqe_cache_misses": wqes.misses,
    })
}

/// What an adapter counts.
pub(crate) fn counters(world: &World, hca: HcaId) -> Value {
    world.busiest(hca, MOST_QPS).map_or(json!({}), |(counters, known)| report(world, hca, counters, known))
}

/// The same without the queue pairs, of which there may be many.
pub(crate) fn totals(world: &World, hca: HcaId) -> Value {
    world.totals(hca).map_or(json!({}), |counters| report(world, hca, counters, 0))
}

/// `known`: how many queue pairs there are, of which `counters` has some.
fn report(world: &World, hca: HcaId, counters: Counters, known: usize) -> Value {
    let Counters { adapter, ports, units: of_units, q_counters, qps } = counters;
    let ports = (1..).zip(&ports).map(|(number, counters)| of_port(number, counters));
    let name = |what: Option<String>| what.map_or(Value::Null, Value::from);
    let qps = qps.iter().map(|qp| {
        json!({
            "qpn": qp.qpn.0,
            "service": name(qp.service.map(|s| format!("{s:?}"))),
            "state": name(qp.state.map(|s| format!("{s:?}"))),
            "counters": qp.counters,
        })
    });
    let q_counters: Map<String, Value> =
        q_counters.into_iter().map(|(c, value)| (snake(&format!("{c:?}")), value.into())).collect();
    json!({
        "adapter": adapter,
        "ports": ports.collect::<Vec<_>>(),
        "units": units(&of_units),
        "q_counters": q_counters,
        "qps": qps.collect::<Vec<_>>(),
        "qps_with_traffic": known,
        "diagnoses": world.diagnoses(hca),
    })
}

/// Events of an adapter that wait.
pub(crate) fn events(of: WaitingEvents) -> Value {
    let WaitingEvents { waiting, most, doorbells, held } = of;
    json!({ "waiting": waiting, "limit": most, "doorbells_waiting": doorbells, "doorbells_held": held })
}

/// What the ports of switches count.
pub(crate) fn switches(world: &World) -> Value {
    let mut switches: Vec<(SwitchId, Vec<Value>)> = Vec::new();
    for at in world.ports() {
        let (NodeId::Switch(id), Some(counters)) = (at.node, world.port_counters(at)) else { continue };
        if switches.last().is_none_or(|(last, _)| *last != id) {
            switches.push((id, Vec::new()));
        }
        if let Some((_, ports)) = switches.last_mut() {
            ports.push(of_port(at.port, &counters));
        }
    }
    switches.into_iter().map(|(id, ports)| json!({ "name": world.switch_name(id), "ports": ports })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        assert_eq!(snake("RxWriteRequests"), "rx_write_requests");
        assert_eq!(snake("LocalAckTimeoutErr"), "local_ack_timeout_err");
    }
}
