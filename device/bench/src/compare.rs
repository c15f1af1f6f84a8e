//! The model against published rows: runs the scenario that a map makes of each row, and summarises the errors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::map::{Figure, Map, Mapped, Quantity, Run};
use crate::outcome::Outcome;
use crate::rows::Row;
use crate::scenario::Scenario;
use crate::{Error, program, stats};

/// A row, or a part of its value, and what the model says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The row's file; empty if it has none.
    pub file: String,
    /// Line of the row in its file.
    pub line: usize,
    /// Source of the row.
    pub source: String,
    /// The adapter.
    pub device: String,
    /// Its timing profile.
    pub profile: String,
    /// The operation.
    pub op: String,
    /// Bytes of a message.
    pub size: Option<u64>,
    /// What was measured.
    pub metric: String,
    /// The conditions.
    pub conditions: String,
    /// Unit of both values.
    pub unit: String,
    /// The published value.
    pub measured: f64,
    /// The model's.
    pub modelled: f64,
    /// Their difference over the published value, if that is not zero.
    pub error: Option<f64>,
    /// Rule that mapped the row.
    pub rule: String,
    /// Group of the summary.
    pub group: String,
    /// Latency, rate or bandwidth.
    pub kind: &'static str,
    /// Curve, if it is a point of one.
    pub curve: Option<String>,
    /// Place on the curve.
    pub x: Option<f64>,
    /// Where the curve is drawn.
    pub figure: Option<Figure>,
    /// Why the model is believed to be wrong here.
    pub note: Option<String>,
    /// What the run gave.
    pub outcome: Outcome,
}

/// A row that was not modelled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unmapped {
    /// The row's file; empty if it has none.
    pub file: String,
    /// Line of the row in its file.
    pub line: usize,
    /// Source of the row.
    pub source: String,
    /// The operation.
    pub op: String,
    /// Why.
    pub reason: String,
}

/// Errors of several points, as shares of the published value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// What was summed up.
    pub name: String,
    /// Points.
    pub points: usize,
    /// Half of the absolute errors are not larger.
    pub median: f64,
    /// 90 of 100 are not larger.
    pub p90: f64,
    /// The largest.
    pub worst: f64,
    /// The mean of the errors with their signs: whether the model is too high or too low on the whole.
    pub bias: f64,
}

/// The rank correlation from which on a curve is followed in shape.
const GOOD_RANK: f64 = 0.9 - 1e-9;

/// How well a curve is followed in shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Points.
    pub points: usize,
    /// Spearman's rank correlation of published and modelled values, if they vary.
    pub rank_correlation: Option<f64>,
}

impl Curve {
    /// Whether it is followed in shape: a rank correlation of 0.9 or more.
    pub fn is_followed(&self) -> bool {
        self.rank_correlation.is_some_and(|rank| rank >= GOOD_RANK)
    }
}

/// A whole comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Rows in the file.
    pub rows: usize,
    /// Rows that a rule mapped, at least in part.
    pub mapped: usize,
    /// What was compared, in the order of the file.
    pub points: Vec<Point>,
    /// What was not.
    pub unmapped: Vec<Unmapped>,
    /// Runs that failed: line, rule and reason in words.
    pub failed: Vec<String>,
    /// By group, then by kind, then all.
    pub summary: Vec<Summary>,
    /// Curves.
    pub curves: Vec<Curve>,
}

/// Profile numbers that are otherwise in every run: of one profile, or of all.
pub type Overrides = Vec<(Option<String>, String)>;

/// Runs every row that `map` maps and `keep` accepts, on `jobs` threads.
///
/// A run that fails is listed in the comparison; the others count.
///
/// # Errors
/// A rule is wrong for a row: all of them, one to a line. Or a number is of a profile that no row's run has.
pub fn compare(
    rows: &[Row],
    map: &Map,
    overrides: &Overrides,
    jobs: usize,
    keep: impl Fn(&Run) -> bool,
) -> Result<Comparison, Error> {
    let (mut tasks, mut unmapped, mut mapped) = (Vec::new(), Vec::new(), 0);
    let mut errors = Vec::new();
    let mut profiles: BTreeSet<String> = BTreeSet::new();
    for row in rows {
        let found = match map.apply(row) {
            Ok(found) => found,
            Err(why) => {
                errors.push(why.at(row.place()).to_string());
                continue;
            }
        };
        mapped += usize::from(found.iter().any(|m| matches!(m, Mapped::Run(_))));
        for mapped in found {
            if let Mapped::Run(run) = &mapped {
                profiles.insert(run.scenario.profile.clone());
            }
            match mapped {
                Mapped::Run(mut run) if keep(&run) => {
                    for (profile, number) in overrides {
                        if profile.as_ref().is_none_or(|p| *p == run.scenario.profile) {
                            run.scenario.set("set", number)?;
                        }
                    }
                    tasks.push((row, run));
                }
                Mapped::Run(_) => {}
                Mapped::Not(reason) => {
                    let (file, source, op) = (row.file.clone(), row.source.clone(), row.op.clone());
                    unmapped.push(Unmapped { file, line: row.line, source, op, reason });
                }
            }
        }
    }
    if !errors.is_empty() {
        return Err(Error::new(errors.join("\n")));
    }
    for (profile, number) in overrides {
        if let Some(profile) = profile.as_ref().filter(|p| !profiles.contains(*p)) {
            let all = profiles.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Error::new(format!(
                "{profile}:{number}: no row is of that profile, the rows have {all}"
            )));
        }
    }
    let (mut points, mut failed) = (Vec::new(), Vec::new());
    for ((row, run), outcome) in tasks.iter().zip(run_all(&tasks, jobs)) {
        match outcome.and_then(|outcome| point(row, run, outcome)) {
            Ok(point) => points.push(point),
            Err(why) => failed.push(why.at(format!("{}: rule {:?}", row.place(), run.rule)).to_string()),
        }
    }
    let (summary, curves) = (summaries(&points), curves(&points));
    Ok(Comparison { rows: rows.len(), mapped, points, unmapped, failed, summary, curves })
}

/// Runs every scenario, equal ones once.
fn run_all(tasks: &[(&Row, Box<Run>)], jobs: usize) -> Vec<Result<Outcome, Error>> {
    let mut distinct: Vec<&Scenario> = Vec::new();
    let mut place = Vec::new();
    for (_, run) in tasks {
        let found = distinct.iter().position(|s| **s == run.scenario);
        place.push(found.unwrap_or_else(|| {
            distinct.push(&run.scenario);
            distinct.len() - 1
        }));
    }
    let results: Vec<Mutex<Option<Result<Outcome, Error>>>> =
        distinct.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, distinct.len().max(1)) {
            scope.spawn(|| {
                while let Some((scenario, result)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    distinct.get(i).zip(results.get(i))
                } {
                    let outcome = program::run(scenario);
                    if let Ok(mut slot) = result.lock() {
                        *slot = Some(outcome);
                    }
                }
            });
        }
    });
    let taken = |i: usize| results.get(i).and_then(|r| r.lock().ok().and_then(|r| r.clone()));
    place.into_iter().map(|i| taken(i).unwrap_or_else(|| Err(Error::new("the run did not end")))).collect()
}

/// The value of a quantity in a published unit.
fn in_unit(quantity: Quantity, outcome: &Outcome, unit: &str) -> Result<(f64, &'static str), Error> {
    let (value, kind) = match (quantity, &outcome.latency) {
        (Quantity::Rate, _) => (outcome.rate, "rate"),
        (Quantity::RateEach, _) => (outcome.rate_each, "rate"),
        (Quantity::Bandwidth, _) => (outcome.bandwidth, "bandwidth"),
        (Quantity::PcieReadLines, _) => {
            let usage = outcome.usage.as_ref().ok_or(Error::new("the run counts no PCIe reads"))?;
            (usage.initiator.pcie_read_lines * outcome.rate_each, "rate")
        }
        (quantity, Some(latency)) => (
            match quantity {
                Quantity::Min => latency.min,
                Quantity::Avg => latency.avg,
                Quantity::P99 => latency.p99,
                Quantity::P999 => latency.p999,
                _ => latency.p50,
            },
            "latency",
        ),
        (_, None) => return Err(Error::new("the run has no latency: metric = \"latency\" is needed")),
    };
    let scale = match (kind, unit) {
        ("latency", "ns") => 1.0,
        ("latency", "us") => 1e-3,
        ("rate", "Mops" | "Mpps") => 1e-6,
        ("rate", "KIOPS" | "Kops") => 1e-3,
        ("bandwidth", "MiB/s") => 1.0 / (1u64 << 20) as f64,
        ("bandwidth", "Gb/s") => 8e-9,
        ("bandwidth", "GB/s") => 1e-9,
        _ => {
            return Err(Error::new(format!(
                "{unit:?} is no unit of a {kind}: the rule needs another metric"
            )));
        }
    };
    Ok((value * scale, kind))
}

fn point(row: &Row, run: &Run, outcome: Outcome) -> Result<Point, Error> {
    let (modelled, kind) = in_unit(run.quantity, &outcome, &row.unit)?;
    let measured = row.values.get(run.part).copied().unwrap_or(f64::NAN);
    let error = (measured > 0.0).then(|| modelled / measured - 1.0);
    let (curve, x) = run.curve.clone().unzip();
    Ok(Point {
        file: row.file.clone(),
        line: row.line,
        source: row.source.clone(),
        device: row.device.clone(),
        profile: run.scenario.profile.clone(),
        op: row.op.clone(),
        size: row.size,
        metric: row.metric.clone(),
        conditions: row.conditions.clone(),
        unit: row.unit.clone(),
        measured,
        modelled,
        error,
        rule: run.rule.clone(),
        group: run.group.clone(),
        kind,
        curve,
        x,
        figure: run.figure.clone(),
        note: run.note.clone(),
        outcome,
    })
}

fn summaries(points: &[Point]) -> Vec<Summary> {
    let mut names: Vec<String> = Vec::new();
    for point in points {
        if !names.contains(&point.group) {
            names.push(point.group.clone());
        }
    }
    let of =
        |name: String, wanted: &dyn Fn(&Point) -> bool| summary(name, points.iter().filter(|p| wanted(p)));
    let groups = names.into_iter().map(|name| of(name.clone(), &|p| p.group == name));
    let kinds = ["latency", "rate", "bandwidth"].map(|kind| of(format!("all {kind}"), &|p| p.kind == kind));
    groups.chain(kinds).chain([of("all".into(), &|_| true)]).flatten().collect()
}

fn summary<'a>(name: String, points: impl Iterator<Item = &'a Point>) -> Option<Summary> {
    let errors: Vec<f64> = points.filter_map(|p| p.error).collect();
    let sorted = stats::sorted(errors.iter().map(|e| e.abs()));
    let p = |p| stats::percentile(&sorted, p);
    let bias = stats::mean(&errors);
    (!errors.is_empty()).then(|| Summary {
        name,
        points: errors.len(),
        median: p(50.0),
        p90: p(90.0),
        worst: p(100.0),
        bias,
    })
}

fn curves(points: &[Point]) -> Vec<Curve> {
    let mut all: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for point in points {
        if let Some(curve) = &point.curve {
            all.entry(curve).or_default().push((point.measured, point.modelled));
        }
    }
    let curve = |(name, pairs): (&str, Vec<(f64, f64)>)| Curve {
        name: name.into(),
        points: pairs.len(),
        rank_correlation: stats::spearman(&pairs),
    };
    all.into_iter().map(curve).collect()
}

impl Comparison {
    /// Tables that a person can read.
    pub fn table(&self) -> String {
        let percent = |share: f64| format!("{:+.1} %", share * 100.0);
        let mut out = String::new();
        let files: BTreeSet<&str> = self.points.iter().map(|p| p.file.as_str()).collect();
        let mut last = None;
        for p in &self.points {
            if last != Some((&p.group, &p.file)) {
                last = Some((&p.group, &p.file));
                let group = match files.len() {
                    0 | 1 => p.group.clone(),
                    _ => format!("{}, {}", p.group, p.file),
                };
                out += &format!(
                    "\n{group}\n{:>5} {:>10} {:>10} {:>9}  row\n",
                    "line", "measured", "modelled", "error"
                );
            }
            let size = p.size.map_or(String::new(), |size| format!(" {size} B"));
            out += &format!(
                "{:>5} {:>10} {:>10} {:>9}  {} {}{size}: {}\n",
                p.line,
                digits(p.measured),
                digits(p.modelled),
                p.error.map_or("-".into(), percent),
                p.source,
                p.op,
                clip(&p.conditions),
            );
        }
        if !self.unmapped.is_empty() {
            out += "\nnot modelled\n";
            let several =
                self.unmapped.iter().any(|u| Some(&u.file) != self.unmapped.first().map(|u| &u.file));
            let mut reasons: Vec<(&Unmapped, Vec<usize>)> = Vec::new();
            for u in &self.unmapped {
                let same = |(first, _): &&mut (&Unmapped, _)| {
                    (&first.file, &first.source, &first.reason) == (&u.file, &u.source, &u.reason)
                };
                match reasons.iter_mut().find(same) {
                    Some((_, lines)) => lines.push(u.line),
                    None => reasons.push((u, vec![u.line])),
                }
            }
            for (first, lines) in reasons {
                let file = if several { format!(" {}", first.file) } else { String::new() };
                out += &format!("  {},{file} {}: {}\n", first.source, ranges(&lines), first.reason);
            }
        }
        if !self.failed.is_empty() {
            out += &format!("\nfailed\n  {}\n", self.failed.join("\n  "));
        }
        if !self.curves.is_empty() {
            out += &format!("\n{:>6} {:>10}  curve\n", "points", "rank corr.");
            for c in &self.curves {
                let rank = c.rank_correlation.map_or("-".into(), |r| format!("{r:.3}"));
                out += &format!("{:>6} {rank:>10}  {}\n", c.points, c.name);
            }
            let followed = self.curves.iter().filter(|c| c.is_followed()).count();
            out += &format!("{followed} of {} curves with 0.9 or more\n", self.curves.len());
        }
        out += &format!(
            "\n{:>6} {:>8} {:>8} {:>8} {:>8}  errors of\n",
            "points", "median", "90 %", "worst", "bias"
        );
        for s in &self.summary {
            let share = |v: f64| format!("{:.1} %", v * 100.0);
            out += &format!(
                "{:>6} {:>8} {:>8} {:>8} {:>8}  {}\n",
                s.points,
                share(s.median),
                share(s.p90),
                share(s.worst),
                percent(s.bias),
                s.name
            );
        }
        let share = 100.0 * self.mapped as f64 / self.rows.max(1) as f64;
        out += &format!("\n{} of {} rows mapped ({share:.1} %)\n", self.mapped, self.rows);
        let unsteady = self.points.iter().filter(|point| point.outcome.is_unsteady()).count();
        if unsteady > 0 {
            out += &format!(
                "{unsteady} points are of runs without a steady state (rate times latency is not what was outstanding)\n"
            );
        }
        out.trim_start().to_string()
    }
}

/// Numbers of lines in words: `lines 3 to 5, 9`.
fn ranges(lines: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for line in lines {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *line => *last = *line,
            _ => runs.push((*line, *line)),
        }
    }
    let words =
        runs.iter().map(|(from, to)| if from == to { from.to_string() } else { format!("{from} to {to}") });
    format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, words.collect::<Vec<_>>().join(", "))
}

fn digits(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// The begin of a long text.
fn clip(text: &str) -> String {
    const LEN: usize = 80;
    let mut short: String = text.chars().take(LEN).collect();
    if text.chars().count() > LEN {
        short += "...";
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(rate: f64, latency: Option<f64>) -> Outcome {
        let latency = latency.map(|l| crate::outcome::Latency::of(&[l]));
        Outcome {
            operations: 1,
            time_ns: 1.0,
            latency,
            rate,
            rate_each: rate,
            bandwidth: rate * 64.0,
            little: None,
            usage: None,
        }
    }

    #[test]
    fn units_are_converted() {
        let value = |quantity, unit| in_unit(quantity, &outcome(2e6, Some(1500.0)), unit).map(|v| v.0);
        assert_eq!((value(Quantity::P50, "us"), value(Quantity::Min, "ns")), (Ok(1.5), Ok(1500.0)));
        assert_eq!((value(Quantity::Rate, "Mops"), value(Quantity::Rate, "KIOPS")), (Ok(2.0), Ok(2000.0)));
        assert_eq!(value(Quantity::Bandwidth, "Gb/s"), Ok(2e6 * 64.0 * 8e-9));
        assert!(value(Quantity::Rate, "us").unwrap_err().to_string().contains("no unit of a rate"));
        assert!(in_unit(Quantity::P50, &outcome(1.0, None), "ns").is_err());
    }

    #[test]
    fn lines_are_told_in_runs() {
        assert_eq!((ranges(&[3, 4, 5, 9]), ranges(&[7])), ("lines 3 to 5, 9".into(), "line 7".into()));
    }

    #[test]
    fn errors_are_summed_up() {
        let mut points = Vec::new();
        for (measured, modelled, group) in
            [(100.0, 110.0, "a"), (100.0, 80.0, "a"), (50.0, 50.0, "b"), (0.0, 9.0, "b")]
        {
            let text = String::new;
            points.push(Point {
                file: text(),
                line: 2,
                source: text(),
                device: text(),
                profile: text(),
                op: text(),
                size: None,
                metric: text(),
                conditions: text(),
                unit: text(),
                measured,
                modelled,
                error: (measured > 0.0).then(|| modelled / measured - 1.0),
                rule: text(),
                group: group.into(),
                kind: "rate",
                curve: Some("c".into()),
                x: None,
                figure: None,
                note: None,
                outcome: outcome(1.0, None),
            });
        }
        let all = summaries(&points);
        let names: Vec<_> = all.iter().map(|s| (s.name.as_str(), s.points)).collect();
        assert_eq!(names, [("a", 2), ("b", 1), ("all rate", 3), ("all", 3)], "zero has no relative error");
        assert!((all[0].median - 0.15).abs() < 1e-9 && (all[0].worst - 0.2).abs() < 1e-9);
        assert!((all[0].bias + 0.05).abs() < 1e-9);
        let curve = curves(&points).remove(0);
        assert_eq!((curve.points, curve.rank_correlation.map(|r| (0.9..1.0).contains(&r))), (4, Some(true)));
    }
}
