//! Where the time of an operation goes, part by part.
//!
//! The time that an operation takes (a message's latency, or the time from one operation to the next where rates are measured) is made of times: those of
//! the profile, of the program on the host, and of bytes on links. Each is made a fifth shorter, alone; by how much the whole gets shorter,
//! five times, is the part of it that it has: what is hidden behind something else has none. Times add up to the whole as long as
//! the same unit is what the others wait for.

use std::fmt::Write;

use hca_model::timing::Profile;
use serde::Serialize;

use crate::numbers::{self, Number};
use crate::outcome::Outcome;
use crate::scenario::{Metric, Scenario};
use crate::{Error, host, program};

/// By how much a time is made shorter, as a share.
const LESS: f64 = 0.2;
/// Parts below that share of the whole are summed up: below it, rates are not that steady.
const LITTLE: f64 = 0.005;

/// A part of an operation's time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// The unit of the model.
    pub unit: &'static str,
    /// The number, as `--set` names it, or what else takes the time.
    pub name: String,
    /// Nanoseconds of an operation.
    pub ns: f64,
}

/// Where the time goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Breakdown {
    /// Nanoseconds of an operation: half of the messages took no more, or one over the rate.
    pub whole_ns: f64,
    /// The parts, largest first within a unit, units in the order of a message's way.
    pub parts: Vec<Part>,
}

/// Units in the order of a message's way, with the begins of the names of their numbers; the first that fits counts.
const UNITS: [(&str, &[&str]); 8] = [
    ("program", &["program"]),
    ("PCIe", &["pcie", "host."]),
    ("caches", &["units.", "cache."]),
    ("frame pipelines", &["ethernet.send_ns", "ethernet.receive_ns", "ethernet.hop_ns", "ethernet.hash_ns"]),
    ("sending", &["send.", "ethernet.frame_ns", "ethernet.segment_ns"]),
    ("receiving", &["receive.", "completion.", "ethernet."]),
    ("link", &["port.", "fabric."]),
    (REST, &[]),
];
/// How often a program looks.
const LOOKS: [&str; 2] = ["program.poll_ns", "program.look_ns"];
/// What is left.
const REST: &str = "bytes on links, cable, waiting";

fn unit_of(key: &str) -> &'static str {
    let fits = |(_, begins): &&(&str, &[&str])| begins.iter().any(|begin| key.starts_with(begin));
    UNITS.iter().find(fits).map_or(REST, |(name, _)| name)
}

/// What an operation of a run took.
fn whole(scenario: &Scenario, outcome: &Outcome) -> f64 {
    match (&outcome.latency, scenario.metric) {
        (Some(latency), Metric::Latency) => latency.p50,
        _ => 1e9 / outcome.rate.max(1e-9),
    }
}

/// The times of a scenario that can be otherwise.
fn times(scenario: &Scenario) -> Result<Vec<Number>, Error> {
    let own = |key: &str| scenario.overrides.iter().rev().find(|(k, _)| k == key)?.1.parse().ok();
    let mut all = numbers::of_profile(&scenario.profile)?;
    all.extend(numbers::parse(&host::text(&scenario.host)?).into_iter().map(|number| {
        // Sections of a host keep their names; what is in none is the program's.
        Number { key: format!("program.{}", number.key), ..number }
    }));
    for number in &mut all {
        number.value = own(&number.key).unwrap_or(number.value);
    }
    if scenario.topology == crate::scenario::Topology::Switch {
        let hop = scenario.switch.0 as f64 / 1e3;
        all.iter_mut()
            .filter(|n| n.key == "fabric.hop_ns")
            .for_each(|n| n.value = own(&n.key).unwrap_or(hop));
    }
    all.retain(|number| number.key.ends_with("_ns") && number.value > 0.0);
    Ok(all)
}

/// Runs a scenario as often as it takes to say where the time goes.
///
/// # Errors
/// As [`program::run`].
pub fn breakdown(scenario: &Scenario) -> Result<Breakdown, Error> {
    let whole_ns = whole(scenario, &program::run(scenario)?);
    // Who looks every so often sees some changes twice and others not at all: it looks all the time instead.
    let mut base = scenario.clone();
    if scenario.metric == Metric::Latency {
        for look in LOOKS {
            base.set("set", &format!("{look}=1"))?;
        }
    }
    let looking_ns = whole(&base, &program::run(&base)?);
    let time = |key: &str, value: &str| -> Result<f64, Error> {
        let mut other = base.clone();
        other.set("set", &format!("{key}={value}"))?;
        Ok(whole(&other, &program::run(&other)?))
    };
    let mut parts = Vec::new();
    let mut part = |name: String, shorter: f64| {
        let (unit, ns) = (unit_of(&name), (looking_ns - shorter) / LESS);
        if ns > LITTLE * whole_ns {
            parts.push(Part { unit, name, ns });
        }
    };
    for number in times(&base)?.into_iter().filter(|number| !LOOKS.contains(&number.key.as_str())) {
        let value = format!("{:.4}", number.value * (1.0 - LESS));
        part(number.key.clone(), time(&number.key, &value)?);
    }
    // A faster lane makes the bytes on PCIe shorter, and nothing else.
    let profile = numbers::parse(Profile::text(&scenario.profile).unwrap_or_default());
    if let Some(lane) = profile.iter().find(|n| n.key == "pcie.lane_gt_per_s") {
        let rate = scenario.pcie_rate().unwrap_or(lane.value);
        let faster = time("pcie.lane_gt_per_s", &format!("{:.4}", rate / (1.0 - LESS)))?;
        part("pcie: bytes".into(), faster);
    }
    if whole_ns - looking_ns > LITTLE * whole_ns {
        let name = "program: until it looks again".to_string();
        parts.push(Part { unit: unit_of(&name), name, ns: whole_ns - looking_ns });
    }
    let order = |part: &Part| UNITS.iter().position(|(name, _)| *name == part.unit);
    parts.sort_by(|a, b| order(a).cmp(&order(b)).then(b.ns.total_cmp(&a.ns)));
    let known: f64 = parts.iter().map(|part| part.ns).sum();
    if whole_ns - known > LITTLE * whole_ns {
        parts.push(Part { unit: REST, name: String::new(), ns: whole_ns - known });
    }
    Ok(Breakdown { whole_ns, parts })
}

impl Breakdown {
    /// A bar of all units and a line for each part.
    pub fn table(&self) -> String {
        const WIDTH: f64 = 72.0;
        let mut units: Vec<(&str, f64)> = Vec::new();
        for part in &self.parts {
            match units.last_mut().filter(|(unit, _)| *unit == part.unit) {
                Some((_, ns)) => *ns += part.ns,
                None => units.push((part.unit, part.ns)),
            }
        }
        let all: f64 = units.iter().map(|(_, ns)| ns).sum::<f64>().max(self.whole_ns);
        let (mut bar, mut marks) = (String::new(), String::new());
        for ((_, ns), mark) in units.iter().zip('A'..) {
            let cells = (ns / all * WIDTH).round().max(1.0) as usize;
            bar.extend(std::iter::repeat_n(mark, cells));
        }
        for ((unit, ns), mark) in units.iter().zip('A'..) {
            let _ = writeln!(marks, "{mark} {ns:>9.1} {:>5.1} %  {unit}", ns / self.whole_ns * 100.0);
            for part in self.parts.iter().filter(|part| part.unit == *unit && !part.name.is_empty()) {
                let _ = writeln!(
                    marks,
                    "  {:>9.1} {:>5.1} %      {}",
                    part.ns,
                    part.ns / self.whole_ns * 100.0,
                    part.name
                );
            }
        }
        format!("an operation takes {:.1} ns\n|{bar}|\n{marks}", self.whole_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(options: &[(&str, &str)]) -> (Breakdown, impl Fn(&str) -> f64) {
        let mut scenario = Scenario::default();
        for (key, value) in options {
            scenario.set(key, value).unwrap();
        }
        let found = breakdown(&scenario).unwrap();
        let parts = found.parts.clone();
        (found, move |name: &str| parts.iter().filter(|p| p.name == name).map(|p| p.ns).sum())
    }

    #[test]
    fn a_message_s_parts_are_those_of_its_way() {
        let (found, of) = parts(&[("op", "write"), ("size", "8"), ("inline", "16"), ("iterations", "20")]);
        let near = |name: &str, ns: f64| assert!((of(name) - ns).abs() < 2.0, "{name}: {}", of(name));
        // connectx4.toml: one crossing of PCIe each, one pass of a unit each, two ends of a link.
        near("pcie.mmio_write_ns", 140.0);
        near("pcie.write_ns", 140.0);
        near("send.packet_ns", 60.0);
        near("port.phy_ns", 100.0);
        assert_eq!(of("pcie.read_ns"), 0.0, "it came with its doorbell");
        let sum: f64 = found.parts.iter().map(|part| part.ns).sum();
        assert!((sum / found.whole_ns - 1.0).abs() < 0.05, "{sum} of {}", found.whole_ns);
        let table = found.table();
        assert!(table.contains("|AA") && table.contains("port.phy_ns"), "{table}");
    }

    #[test]
    fn what_is_hidden_has_no_part() {
        let (_, of) =
            parts(&[("op", "write"), ("metric", "bandwidth"), ("size", "64K"), ("iterations", "200")]);
        assert_eq!((of("pcie.mmio_write_ns"), of("send.packet_ns")), (0.0, 0.0), "the link is what is full");
    }
}
