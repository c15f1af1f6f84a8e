//! `softhca bench sensitivity` and `softhca bench cross-validate`: what the numbers of the profiles move, and what they are worth where
//! nobody fitted them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::compare::{Overrides, compare};
use crate::cross::{Problem, STARTS, Way};
use crate::map::Map;
use crate::numbers;
use crate::rows::{self, Row};
use crate::sensitivity::{self, Choice, Responses};
use crate::{Error, stats};

/// What the median error of the rows judged and its 90th percentile should be in every way, at most.
const GOAL: (f64, f64) = (0.10, 0.25);
/// Ways that the page lists at most.
const LISTED: usize = 40;

/// How far the errors move when a number of a profile is off
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    softhca bench sensitivity specs/timing/calibration.csv --map specs/timing/calibration.toml --sample 3 --jobs 2 --responses r.json\n\n\
    Runs the rows twice for each number that packets may feel: with less and with more of it, in all profiles.")]
pub struct Sensitivity {
    /// CSV file of measurements
    rows: PathBuf,
    /// TOML file of rules
    #[arg(long, value_name = "MAP")]
    map: PathBuf,
    /// By how many percent a number is off
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0)]
    by: f64,
    /// One of so many rows of each group
    #[arg(long, value_name = "N", default_value_t = 1)]
    sample: usize,
    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Write the page into a file instead of to the terminal
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Write what every row did, for cross-validate
    #[arg(long, value_name = "FILE")]
    responses: Option<PathBuf>,
}

/// Fit the numbers to half of the sources and judge by the others, all ways
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    softhca bench cross-validate specs/timing/calibration.csv --map specs/timing/calibration.toml --responses specs/timing/responses.json\n\n\
    The file is what softhca bench sensitivity --responses wrote. Fits follow its responses; --check runs some in the model.")]
pub struct Cross {
    /// CSV file of measurements
    rows: PathBuf,
    /// TOML file of rules
    #[arg(long, value_name = "MAP")]
    map: PathBuf,
    /// What softhca bench sensitivity wrote
    #[arg(long, value_name = "FILE")]
    responses: PathBuf,
    /// So many of the ways are run in the model, too
    #[arg(long, value_name = "N", default_value_t = 0)]
    check: usize,
    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Seed of how far numbers are off at the begin of a fit
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the page into a file instead of to the terminal
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|why| Error::new(format!("{}: {why}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|why| Error::new(format!("{}: {why}", path.display())))
}

fn calibration(rows: &Path, map: &Path) -> Result<(Vec<Row>, Map), Error> {
    Ok((rows::read(rows)?, Map::parse(&read(map)?).map_err(|why| why.at(map.display()))?))
}

/// A page, or what is said of the file that it went to.
fn page(text: String, to: Option<&PathBuf>) -> Result<String, Error> {
    match to {
        Some(path) => write(path, &text).map(|()| format!("wrote {}", path.display())),
        None => Ok(text),
    }
}

/// Runs `softhca bench sensitivity`; returns what it prints.
///
/// # Errors
/// A file can't be used, a rule is wrong, or a run failed.
pub fn sensitivity(args: &Sensitivity) -> Result<String, Error> {
    if !(0.1..=90.0).contains(&args.by) {
        return Err(Error::new("--by must be 0.1 to 90 percent"));
    }
    let (rows, map) = calibration(&args.rows, &args.map)?;
    let choice = Choice { by: args.by / 100.0, sample: args.sample.max(1), jobs: args.jobs };
    let found = sensitivity::measure(&rows, &map, &choice, |key| eprintln!("{key}"))?;
    if let Some(path) = &args.responses {
        write(path, &found.json()?)?;
    }
    page(found.page(choice.sample), args.page.as_ref())
}

/// Runs `softhca bench cross-validate`; returns what it prints.
///
/// # Errors
/// A file can't be used, a rule is wrong, or a run failed.
pub fn cross(args: &Cross) -> Result<String, Error> {
    let responses: Responses = serde_json::from_str(&read(&args.responses)?)
        .map_err(|why| Error::new(format!("{}: {why}", args.responses.display())))?;
    let (rows, map) = calibration(&args.rows, &args.map)?;
    let check = |way: &Way| run(way, &responses, (&rows, &map), args.jobs);
    page(of_all_ways(&responses, args.seed, args.check, check)?, args.page.as_ref())
}

/// The page of all ways to divide the sources. So many of them, from the middle to the worst, are given to `check`, which says the median error of the
/// rows judged and its 90th percentile in the model.
///
/// # Errors
/// A check failed.
pub fn of_all_ways(
    responses: &Responses,
    seed: u64,
    checks: usize,
    check: impl Fn(&Way) -> Result<(f64, f64), Error>,
) -> Result<String, Error> {
    let problem = Problem::new(responses);
    let ways = problem.ways(seed);
    let mut order: Vec<&Way> = ways.iter().collect();
    order.sort_by(|a, b| a.median.total_cmp(&b.median));
    let mut checked = Vec::new();
    for i in 0..checks {
        let place = order.len().saturating_sub(1) * (checks + i) / (2 * checks).max(1);
        if let Some(way) = order.get(place) {
            checked.push((*way, check(way)?));
        }
    }
    let told: Vec<&str> = problem.documented().collect();
    Ok(cross_page(&ways, &problem.one_by_one(seed), &checked, (&told, responses.by)))
}

/// Median and 90th percentile of what the model itself says with the numbers of a way, of the rows of the responses that it is judged by.
fn run(
    way: &Way,
    responses: &Responses,
    (rows, map): (&[Row], &Map),
    jobs: usize,
) -> Result<(f64, f64), Error> {
    let mut overrides: Overrides = Vec::new();
    for profile in responses.places.iter().map(|p| &p.profile).collect::<std::collections::BTreeSet<_>>() {
        for number in numbers::of_profile(profile)? {
            let scaled = way.factors.get(&number.key).and_then(|factor| number.scaled(*factor));
            overrides.extend(scaled.map(|value| (Some(profile.clone()), format!("{}={value}", number.key))));
        }
    }
    let judged: BTreeMap<usize, ()> =
        responses.places.iter().filter(|p| way.judged.contains(&p.source)).map(|p| (p.line, ())).collect();
    let found = compare(rows, map, &overrides, jobs, |_| true)?;
    Ok(sensitivity::errors(
        found.points.iter().filter(|p| judged.contains_key(&p.line)).map(|p| (p.measured, p.modelled)),
    ))
}

/// Which ways miss the goal, and what is judged in them.
fn missed(ways: &[Way]) -> String {
    let percent = |v: f64| format!("{:.1} %", v * 100.0);
    let mut missed: Vec<&Way> = ways.iter().filter(|way| way.median > GOAL.0 || way.p90 > GOAL.1).collect();
    missed.sort_by(|a, b| b.p90.total_cmp(&a.p90));
    let mut out = format!(
        "\nIn {} of the {} ways the median is at most {:.0} % and the 90th percentile at most {:.0} %.",
        ways.len() - missed.len(),
        ways.len(),
        GOAL.0 * 100.0,
        GOAL.1 * 100.0
    );
    if missed.is_empty() {
        return out + "\n";
    }
    let mut judged: BTreeMap<&str, usize> = BTreeMap::new();
    for name in missed.iter().flat_map(|way| &way.judged) {
        *judged.entry(name).or_default() += 1;
    }
    let mut judged: Vec<(&str, usize)> = judged.into_iter().collect();
    judged.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let judged: Vec<String> = judged.iter().map(|(name, count)| format!("{name} in {count}")).collect();
    out += &format!(
        " Of those {} that miss it, judged are: {}. The worst by the 90th percentile{}:\n\n\
         | judged | rows | median | 90 % |\n|---|---|---|---|\n",
        missed.len(),
        judged.join(", "),
        if missed.len() > LISTED { format!(", {LISTED} of them") } else { String::new() }
    );
    for way in missed.iter().take(LISTED) {
        let (median, p90) = (percent(way.median), percent(way.p90));
        let _ = writeln!(out, "| {} | {} | {median} | {p90} |", way.judged.join(", "), way.rows);
    }
    out
}

fn cross_page(
    ways: &[Way],
    single: &[Way],
    checked: &[(&Way, (f64, f64))],
    (told, by): (&[&str], f64),
) -> String {
    let percent = |v: f64| format!("{:.1} %", v * 100.0);
    let keys: Vec<String> = told.iter().map(|key| format!("`{key}`")).collect();
    let documented = match keys.is_empty() {
        true => String::new(),
        false => format!(
            " But for what documents tell and no row (PCIe's framing, the programmer's interface, counters of an adapter): {}\nbegin where they are.",
            keys.join(", ")
        ),
    };
    let mut out = format!(
        "# Judged by sources that were not fitted to\n\n\
         Made by `softhca bench cross-validate specs/timing/calibration.csv --map specs/timing/calibration.toml --responses specs/timing/responses.json\n\
         --page specs/timing/CROSS.md`, of the responses that [SENSITIVITY.md](SENSITIVITY.md) is made of. The sources are divided into halves in all {} ways; a\n\
         factor for each number, the same in all profiles, is fitted to the rows of one half (least absolute errors, and as little moved as that needs) and judged\n\
         by those of the other. As the profiles were chosen with all rows in sight, each fit begins with every number {:.0} % up or down at random: what its half\n\
         does not tell it stays off. Each way is fitted from {STARTS} such starts, and its errors are those of all: which way a number is off is a matter of dice.{}\n\n\
         | of all ways | best | half | 90 of 100 | worst |\n|---|---|---|---|---|\n",
        ways.len(),
        by * 100.0,
        documented,
    );
    let mut quartet = |name: &str, pick: fn(&Way) -> f64| {
        let sorted = stats::sorted(ways.iter().map(pick));
        let at = |p| percent(stats::percentile(&sorted, p));
        let _ = writeln!(out, "| {name} | {} | {} | {} | {} |", at(0.0), at(50.0), at(90.0), at(100.0));
    };
    quartet("median error of the rows judged", |way| way.median);
    quartet("their 90th percentile", |way| way.p90);
    quartet("median, from one start alone", |way| way.first.0);
    quartet("90th percentile, from one start alone", |way| way.first.1);
    out += &missed(ways);
    out += "\n| source | rows | median, fitted to all others | 90 % | median, in the half that is judged | 90 % |\n|---|---|---|---|---|---|\n";
    for way in single {
        let Some((name, median, p90)) = way.by_source.first() else { continue };
        let of = |pick: fn(&(String, f64, f64)) -> f64| {
            let found = ways.iter().flat_map(|way| way.by_source.iter().filter(|s| s.0 == *name)).map(pick);
            percent(stats::percentile(&stats::sorted(found), 50.0))
        };
        let (in_half, in_half_90) = (of(|s| s.1), of(|s| s.2));
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {in_half} | {in_half_90} |",
            way.rows,
            percent(*median),
            percent(*p90)
        );
    }
    if !checked.is_empty() {
        out += "\nThese were run in the model, too, from the middle of all ways to the worst:\n\n\
                | judged | median, by responses, from one start | in the model | 90 %, by responses | in the model |\n|---|---|---|---|---|\n";
        for (way, (median, p90)) in checked {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} |",
                way.judged.join(", "),
                percent(way.first.0),
                percent(*median),
                percent(way.first.1),
                percent(*p90)
            );
        }
    }
    out
}
