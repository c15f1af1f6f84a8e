//! `softhca stat`: what the adapters and switches of a running server count, and how fast.
//!
//! Every number comes from the model's [`Counters`]; nothing is counted here. Rates are per second of model time,
//! which is the host's unless time is dilated.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use hca_model::units::{Counts, PcieCounts};
use hca_model::{Counters, HcaId, NodeId, PortCounters, SwitchId, World};
use serde_json::{Map, Value, json};

use crate::cli::print;
use crate::control;
use crate::ctl::Which;

/// Queue pairs of an adapter that an answer tells of: those with most packets.
const MOST_QPS: usize = 128;

/// Show what the adapters and switches of a running server count
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca stat --run-dir /tmp/pair\n  \
    softhca stat --run-dir /tmp/pair --watch 1\n  \
    softhca stat --socket /tmp/hca.sock --json\n\n\
    Counters that are zero are left out, but not of --json. Rates are per second of model time. Of many queue pairs \
    those with most packets are shown.")]
pub(crate) struct Stat {
    #[command(flatten)]
    server: Which,
    /// Print JSON, one line each time
    #[arg(long)]
    json: bool,
    /// Look again every so many seconds, and show rates
    #[arg(long, value_name = "SECONDS")]
    watch: Option<f64>,
    /// End after so many looks
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
}

pub(crate) fn run(args: &Stat) -> anyhow::Result<()> {
    let path = args.server.control()?;
    let pause = args.watch.unwrap_or(0.0);
    ensure!((0.0..=86400.0).contains(&pause), "--watch {pause}: 0 to 86400 seconds");
    let looks = args.count.unwrap_or(if args.watch.is_some() { u64::MAX } else { 1 });
    let mut before = None;
    for look in 0..looks {
        if look > 0 {
            std::thread::sleep(Duration::from_secs_f64(pause));
        }
        let now = control::query(&path, "stat")?;
        match args.json {
            true => print(&now.to_string())?,
            false => print(table(&now, before.as_ref()).trim_end())?,
        }
        before = Some(now);
    }
    Ok(())
}

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

fn units(counts: &Counts) -> Value {
    let Counts { pcie, contexts, cqs, keys, translations, wqes, jobs, busy } = *counts;
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
        "wqe_cache_hits": wqes.hits,
        "wqe_cache_misses": wqes.misses,
    })
}

/// What an adapter counts.
pub(crate) fn counters(world: &World, hca: HcaId) -> Value {
    let Some(Counters { adapter, port: of_port, units: of_units, q_counters, mut qps }) = world.counters(hca)
    else {
        return json!({});
    };
    let known = qps.len();
    let packets = |c: &hca_model::QpCounters| c.request_packets + c.response_packets + c.executed_packets;
    qps.sort_by_key(|qp| (std::cmp::Reverse(packets(&qp.counters)), qp.qpn));
    qps.truncate(MOST_QPS);
    qps.sort_by_key(|qp| qp.qpn);
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
        "port": port(&of_port),
        "units": units(&of_units),
        "q_counters": q_counters,
        "qps": qps.collect::<Vec<_>>(),
        "qps_with_traffic": known,
        "diagnoses": world.diagnoses(hca),
    })
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
            ports.push(json!({ "port": at.port, "counters": port(&counters) }));
        }
    }
    switches.into_iter().map(|(id, ports)| json!({ "name": world.switch_name(id), "ports": ports })).collect()
}

/// A group of counters as a table.
fn group(out: &mut String, title: &str, now: Option<&Value>, before: Option<&Value>, seconds: Option<f64>) {
    let mut lines = String::new();
    for (name, value) in now.and_then(Value::as_object).into_iter().flatten() {
        let Some(value) = value.as_u64().filter(|v| *v > 0) else { continue };
        let old = before.and_then(|b| b.get(name)).and_then(Value::as_u64);
        let rate = old.zip(seconds).map(|(old, seconds)| value.wrapping_sub(old) as f64 / seconds);
        let rate = rate.map_or(String::new(), |rate| format!("{rate:>16.1}"));
        lines += &format!("    {name:<28} {value:>16} {rate}\n");
    }
    if !lines.is_empty() {
        *out += &format!("  {title}\n{lines}");
    }
}

fn table(now: &Value, before: Option<&Value>) -> String {
    let time = |v: &Value| v.get("time_ns").and_then(Value::as_u64);
    let passed = before.and_then(time).zip(time(now)).map(|(old, new)| new.saturating_sub(old) as f64 / 1e9);
    let seconds = passed.filter(|s| *s > 0.0);
    let list = |v: &Value, name: &str| v.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let at = time(now).unwrap_or(0) as f64 / 1e9;
    let mut out =
        format!("at {at:.6} s of model time{:>26}\n", if seconds.is_some() { "per second" } else { "" });
    let old_hcas = before.map(|b| list(b, "hcas")).unwrap_or_default();
    for (i, hca) in list(now, "hcas").iter().enumerate() {
        let old = old_hcas.get(i);
        let attached = hca.get("attached").and_then(Value::as_bool) == Some(true);
        let name = hca.get("name").and_then(Value::as_str).unwrap_or("?");
        out += &format!("{name} ({})\n", if attached { "attached" } else { "no client" });
        for (key, title) in [
            ("adapter", "adapter"),
            ("port", "port 1"),
            ("units", "units"),
            ("q_counters", "counters of the driver"),
        ] {
            group(&mut out, title, hca.get(key), old.and_then(|o| o.get(key)), seconds);
        }
        let old_qps = old.map(|o| list(o, "qps")).unwrap_or_default();
        for qp in list(hca, "qps") {
            let number = qp.get("qpn").and_then(Value::as_u64).unwrap_or(0);
            let word = |key: &str| qp.get(key).and_then(Value::as_str).unwrap_or("?").to_string();
            let old = old_qps.iter().find(|o| o.get("qpn") == qp.get("qpn")).and_then(|o| o.get("counters"));
            let title = format!("QP {number:#x} {} {}", word("service"), word("state"));
            group(&mut out, &title, qp.get("counters"), old, seconds);
        }
    }
    let old_switches = before.map(|b| list(b, "switches")).unwrap_or_default();
    for (i, switch) in list(now, "switches").iter().enumerate() {
        out += &format!("{} (switch)\n", switch.get("name").and_then(Value::as_str).unwrap_or("?"));
        let old_ports = old_switches.get(i).map(|o| list(o, "ports")).unwrap_or_default();
        for (i, port) in list(switch, "ports").iter().enumerate() {
            let number = port.get("port").and_then(Value::as_u64).unwrap_or(0);
            let old = old_ports.get(i).and_then(|o| o.get("counters"));
            group(&mut out, &format!("port {number}"), port.get("counters"), old, seconds);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        assert_eq!(snake("RxWriteRequests"), "rx_write_requests");
        assert_eq!(snake("LocalAckTimeoutErr"), "local_ack_timeout_err");
    }

    #[test]
    fn rates_are_per_second_of_model_time() {
        let at = |ns: u64, packets: u64| {
            json!({"time_ns": ns, "hcas": [{"name": "a/hca0", "attached": true,
                "port": {"xmit_packets": packets, "rcv_errors": 0},
                "qps": [{"qpn": 64, "service": "Rc", "state": "Rts", "counters": {"retries": packets / 10}}]}]})
        };
        let first = table(&at(1_000_000_000, 100), None);
        assert!(!first.contains("per second") && !first.contains("rcv_errors"), "{first}");
        let second = table(&at(3_000_000_000, 700), Some(&at(1_000_000_000, 100)));
        let words = |name: &str| {
            let line = second.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{second}"));
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words("xmit_packets"), ["xmit_packets", "700", "300.0"]);
        assert_eq!(words("retries"), ["retries", "70", "30.0"]);
        assert_eq!(words("QP 0x40"), ["QP", "0x40", "Rc", "Rts"]);
    }

    #[test]
    fn ports_of_switches_are_shown() {
        let at = |ns: u64, packets: u64| {
            json!({"time_ns": ns, "hcas": [], "switches": [{"name": "spine", "ports": [
                {"port": 1, "counters": {"xmit_packets": 0}},
                {"port": 2, "counters": {"xmit_packets": packets}}]}]})
        };
        let text = table(&at(2_000_000_000, 300), Some(&at(1_000_000_000, 100)));
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1..],
            [vec!["spine", "(switch)"], vec!["port", "2"], vec!["xmit_packets", "300", "200.0"]]
        );
    }
}
