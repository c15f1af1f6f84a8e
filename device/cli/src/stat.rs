//! `softhca stat`: what the adapters and switches of a running server count, and how fast.
//!
//! Every number comes from the server; nothing is counted here. Rates are per second of model time, which is the host's
//! unless time is dilated.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use hca_server::control;
use serde_json::Value;

use crate::cli::print;
use crate::ctl::Which;

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

fn list(v: &Value, name: &str) -> Vec<Value> {
    v.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The ports of an adapter or a switch.
fn ports(out: &mut String, node: &Value, old: Option<&Value>, seconds: Option<f64>) {
    let old = old.map(|o| list(o, "ports")).unwrap_or_default();
    for (i, port) in list(node, "ports").iter().enumerate() {
        let number = port.get("port").and_then(Value::as_u64).unwrap_or(0);
        let old = old.get(i).and_then(|o| o.get("counters"));
        group(out, &format!("port {number}"), port.get("counters"), old, seconds);
    }
}

fn table(now: &Value, before: Option<&Value>) -> String {
    let time = |v: &Value| v.get("time_ns").and_then(Value::as_u64);
    let passed = before.and_then(time).zip(time(now)).map(|(old, new)| new.saturating_sub(old) as f64 / 1e9);
    let seconds = passed.filter(|s| *s > 0.0);
    let at = time(now).unwrap_or(0) as f64 / 1e9;
    let mut out =
        format!("at {at:.6} s of model time{:>26}\n", if seconds.is_some() { "per second" } else { "" });
    if let Some(lag) = now.get("lag_ns").and_then(Value::as_u64).filter(|lag| *lag > 0) {
        out += &format!(
            "behind the clock by {:.6} s: there is more to simulate than this host can\n",
            lag as f64 / 1e9
        );
    }
    let old_hcas = before.map(|b| list(b, "hcas")).unwrap_or_default();
    for (i, hca) in list(now, "hcas").iter().enumerate() {
        let old = old_hcas.get(i);
        let attached = hca.get("attached").and_then(Value::as_bool) == Some(true);
        let name = hca.get("name").and_then(Value::as_str).unwrap_or("?");
        out += &format!("{name} ({})\n", if attached { "attached" } else { "no client" });
        let of = |out: &mut String, key: &str, title: &str| {
            group(out, title, hca.get(key), old.and_then(|o| o.get(key)), seconds);
        };
        of(&mut out, "adapter", "adapter");
        ports(&mut out, hca, old, seconds);
        of(&mut out, "units", "units");
        of(&mut out, "q_counters", "counters of the driver");
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
        ports(&mut out, switch, old_switches.get(i), seconds);
    }
    let old_outsides = before.map(|b| list(b, "outsides")).unwrap_or_default();
    for (i, outside) in list(now, "outsides").iter().enumerate() {
        let word = |key: &str| outside.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
        let lit = outside.get("lit").and_then(Value::as_bool) == Some(true);
        let state = if lit { "connected" } else { "no peer" };
        let title = format!("{} ({}, {state})", word("name"), word("medium"));
        group(&mut out, &title, Some(outside), old_outsides.get(i), seconds);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_per_second_of_model_time() {
        let at = |ns: u64, packets: u64| {
            json!({"time_ns": ns, "hcas": [{"name": "a/hca0", "attached": true,
                "ports": [{"port": 1, "counters": {"xmit_packets": packets, "rcv_errors": 0}}],
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
