//! `softhca bench --what-if` and `--breakdown`: runs beside one another, as text.

use std::fmt::Write;

use crate::breakdown::breakdown;
use crate::outcome::Outcome;
use crate::scenario::{Metric, Scenario};
use crate::{Error, program};

/// Option and value of a sweep, if there is one, and what runs.
pub(crate) type SweptRun = (String, String, Scenario);

/// How a run is called among several.
fn lead((option, value, scenario): &SweptRun) -> String {
    let swept = if option.is_empty() { String::new() } else { format!("{option} {value}") };
    format!("{} {swept}", scenario.name).trim().to_string()
}

/// What a run is about, with its unit, and whether more is better.
fn told(scenario: &Scenario, outcome: &Outcome) -> (f64, &'static str) {
    match (&outcome.latency, scenario.metric) {
        (Some(latency), _) => (latency.p50 / 1e3, "us"),
        (None, Metric::Bandwidth) => (outcome.bandwidth * 8e-9, "Gb/s"),
        (None, _) => (outcome.rate / 1e6, "Mops"),
    }
}

/// Runs each as it is, and with those numbers otherwise.
///
/// # Errors
/// A run failed, or there is no such number.
pub(crate) fn table(runs: &[SweptRun], numbers: &[String]) -> Result<String, Error> {
    let mut out = format!(
        "{:>12} {:>12} {:>9}        what if {}\n",
        "as it is",
        "what if",
        "change",
        numbers.join(", ")
    );
    for run in runs {
        let scenario = &run.2;
        let mut other = scenario.clone();
        for number in numbers {
            other.set("set", number)?;
        }
        let (value, unit) = told(scenario, &program::run(scenario)?);
        let (changed, _) = told(&other, &program::run(&other)?);
        let change = (changed / value - 1.0) * 100.0;
        let _ = writeln!(out, "{value:>12.3} {changed:>12.3} {change:>+8.1} %  {unit:<5} {}", lead(run));
    }
    Ok(out)
}

/// Where the time of an operation of each goes.
///
/// # Errors
/// A run failed.
pub(crate) fn breakdowns(runs: &[SweptRun], json: bool) -> Result<String, Error> {
    let mut out = String::new();
    let mut all = Vec::new();
    for run in runs {
        let found = breakdown(&run.2)?;
        let lead = lead(run);
        if !lead.is_empty() {
            let _ = writeln!(out, "{lead}");
        }
        out += &found.table();
        all.push(found);
    }
    match json {
        true => serde_json::to_string_pretty(&all).map_err(|why| Error::new(why.to_string())),
        false => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_beside_what_is() {
        let run = ("size".to_string(), "8".to_string(), Scenario::default());
        let text = table(&[run], &["port.phy_ns=150".to_string()]).unwrap();
        let line = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| cells[i].parse::<f64>().unwrap();
        // A message passes two ends of a link, each of which takes 100 more.
        assert!((number(1) - number(0) - 0.2).abs() < 0.02, "{text}");
        assert!(number(2) > 10.0 && line.ends_with("us    size 8"), "{text}");
        let unknown = table(&[(String::new(), String::new(), Scenario::default())], &["port.x=1".into()]);
        assert!(unknown.unwrap_err().to_string().contains("port.x"));
        let faster =
            Scenario { overrides: vec![("program.turn_ns".into(), "0".into())], ..Scenario::default() };
        let p50 = |s: &Scenario| crate::program::run(s).unwrap().latency.unwrap().p50;
        assert!(p50(&faster) < p50(&Scenario::default()), "the host's numbers count, too");
    }
}
