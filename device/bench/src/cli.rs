//! `softhca bench`: options to a scenario, outcomes to text.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::map::{Map, Run};
use crate::outcome::Outcome;
use crate::scenario::{Metric, Scenario, number};
use crate::{Error, compare, program, rows};

/// Measure latency, message rate or bandwidth of a scenario in virtual time
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca bench\n      \
    latency of 2-byte RC writes between two adapters, as ib_write_lat\n  \
    softhca bench --op send --sweep size=2..4K --metric latency --inline 220\n  \
    softhca bench --op read --size 8 --metric rate --threads 14 --qps 14 --window 32\n  \
    softhca bench --metric bandwidth --size 64K --link eth100 --mtu 1024 --topology switch\n  \
    softhca bench --op send --transport ud --size 60 --inline 256 --metric rate --threads 14 --qps 14 --post-list 16 --window 64\n\n\
    Conventions are perftest's: sends and writes show half of a round trip, reads and atomics all of it;\n\
    bandwidth is payload over time with --window requests outstanding; MiB is 2^20 bytes.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// Run once for each value: OPTION=FROM..TO in powers of two, or OPTION=A,B,C
    #[arg(long, value_name = "OPTION=VALUES")]
    sweep: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    observe: hca_trace::Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(Compare),
}

/// Compare the model with published measurements, row by row
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    softhca bench compare specs/timing/calibration.csv --map specs/timing/calibration.toml\n\n\
    ROWS has the columns source,device,link,op,size_bytes,metric,value,unit,conditions. The rules of MAP turn every\n\
    column but the value into the options of softhca bench; specs/timing/MAP.md describes them.")]
struct Compare {
    /// CSV file of measurements
    rows: PathBuf,
    /// TOML file of rules
    #[arg(long, value_name = "MAP")]
    map: PathBuf,
    /// Only rows whose rule or group matches this regular expression
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// A number that is otherwise in every profile, or in one: [PROFILE:]KEY=VALUE; more than once
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Write everything as JSON to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Options of a scenario, as text: [`Scenario::set`] understands them.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Options {
    /// Timing profile of the adapters: a name or a TOML file [connectx4]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// A number of the profile that is otherwise, for instance pcie.read_ns=450; more than once
    #[arg(long, value_name = "KEY=VALUE")]
    #[serde(skip)]
    set: Vec<String>,
    /// Processor and program of the hosts: a name or a TOML file [xeon]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// send, write, read, fetch_add, cmp_swap [write]
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// rc, uc, ud [rc]
    #[arg(long, value_name = "T")]
    transport: Option<String>,
    /// Message size in bytes (K, M, G for powers of 1024) [2]
    #[arg(long, value_name = "N")]
    size: Option<String>,
    /// Queue pairs of each initiating adapter, shared out to its threads [1]
    #[arg(long, value_name = "N")]
    qps: Option<String>,
    /// Threads of each initiating host [1]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Requests outstanding per thread, perftest's --tx-depth [128]
    #[arg(long, value_name = "N")]
    window: Option<String>,
    /// Reads and atomics outstanding per queue pair, perftest's --outs: a power of two [16]
    #[arg(long, value_name = "N")]
    outstanding: Option<String>,
    /// Messages up to this size travel in the WQE [0]
    #[arg(long, value_name = "N")]
    inline: Option<String>,
    /// One of so many requests of a queue pair is signalled [1]
    #[arg(long, value_name = "N")]
    signal_every: Option<String>,
    /// WQEs per doorbell [1]
    #[arg(long, value_name = "N")]
    post_list: Option<String>,
    /// Path MTU: 256 to 4096 [4096]
    #[arg(long, value_name = "N")]
    mtu: Option<String>,
    /// sdr ddr qdr fdr10 fdr edr hdr, with a width unless 4 (fdrx8), or RoCEv2 over eth and its Gb/s (eth100) [edr]
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Propagation on each cable in nanoseconds [10]
    #[arg(long, value_name = "NS")]
    cable_ns: Option<String>,
    /// Latency of the switch, port to port, in nanoseconds [200]
    #[arg(long, value_name = "NS")]
    switch_ns: Option<String>,
    /// PCIe slot of the adapters, like gen3x16,mps=256,mrrs=512 [as in the profile]
    #[arg(long, value_name = "SLOT")]
    pcie: Option<String>,
    /// back-to-back, switch, loopback [back-to-back]
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// Adapters that send to the same target, with --topology switch [1]
    #[arg(long, value_name = "N")]
    initiators: Option<String>,
    /// Both ends initiate [false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    bidirectional: Option<String>,
    /// Memory regions that remote accesses go to [1]
    #[arg(long, value_name = "N")]
    mrs: Option<String>,
    /// Page size of the regions [4096]
    #[arg(long, value_name = "N")]
    page_size: Option<String>,
    /// Remote accesses go to random lines within so many bytes; 0: each queue pair has its place [0]
    #[arg(long, value_name = "N")]
    span: Option<String>,
    /// Atomics go to so many 8-byte words at random; 0: each queue pair has its own [0]
    #[arg(long, value_name = "N")]
    addresses: Option<String>,
    /// Where the hosts' memory is: llc, dram [as in the profile]
    #[arg(long, value_name = "WHERE")]
    memory: Option<String>,
    /// How a request is seen to be done: cq, or memory for reads [cq]
    #[arg(long, value_name = "HOW")]
    detect: Option<String>,
    /// When the next request follows: any (is done), oldest (is done), batch (all are done) [any]
    #[arg(long, value_name = "WHEN")]
    pace: Option<String>,
    /// Which queue pair of a thread is next: round-robin, random [round-robin]
    #[arg(long, value_name = "HOW")]
    pick: Option<String>,
    /// A completion queue per queue pair instead of one per thread [false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    cq_per_qp: Option<String>,
    /// WQEs that are posted alone go with their doorbell: auto, off [auto]
    #[arg(long, value_name = "HOW")]
    blueflame: Option<String>,
    /// Whether rates count messages sent or received [sent]
    #[arg(long, value_name = "WHICH")]
    count: Option<String>,
    /// latency, rate, bandwidth [latency]
    #[arg(long, value_name = "M")]
    metric: Option<String>,
    /// Operations to measure [200 for latency, else enough for a steady state]
    #[arg(long, value_name = "N")]
    iterations: Option<String>,
    /// Seed of everything random [1]
    #[arg(long, value_name = "N")]
    seed: Option<String>,
}

impl Options {
    fn apply(&self, scenario: &mut Scenario) -> Result<(), Error> {
        for number in &self.set {
            scenario.set("set", number)?;
        }
        // The names of the fields are those of the options.
        let options = serde_json::to_value(self).map_err(|why| Error::new(why.to_string()))?;
        for (key, value) in options.as_object().into_iter().flatten() {
            if let Some(value) = value.as_str() {
                scenario.set(key, value)?;
            }
        }
        Ok(())
    }
}

/// A scenario and what it gave.
#[derive(Debug, Clone, Serialize)]
struct Row {
    option: String,
    value: String,
    op: &'static str,
    size: u64,
    metric: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Runs `softhca bench`.
///
/// # Errors
/// The options are wrong, or the run failed.
pub fn run(args: &Bench) -> Result<(), Error> {
    match &args.command {
        Some(Command::Compare(args)) => run_compare(args),
        None => measure(args),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|why| Error::new(format!("{}: {why}", path.display())))
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end()).map_err(|why| Error::new(format!("stdout: {why}")))
}

fn run_compare(args: &Compare) -> Result<(), Error> {
    let rows = rows::parse(&read(&args.rows)?).map_err(|why| why.at(args.rows.display()))?;
    let map = Map::parse(&read(&args.map)?).map_err(|why| why.at(args.map.display()))?;
    let only = args.only.as_ref().map(|only| regex::Regex::new(only)).transpose();
    let only = only.map_err(|why| Error::new(format!("--only: {why}")))?;
    let overrides = args.set.iter().map(|text| match text.split_once(':') {
        Some((profile, number)) => (Some(profile.to_string()), number.to_string()),
        None => (None, text.clone()),
    });
    let keep =
        |run: &Run| only.as_ref().is_none_or(|only| only.is_match(&run.rule) || only.is_match(&run.group));
    let comparison = compare::compare(&rows, &map, &overrides.collect(), args.jobs, keep)
        .map_err(|why| why.at(args.rows.display()))?;
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&comparison).map_err(|why| Error::new(why.to_string()))?;
        std::fs::write(path, json + "\n").map_err(|why| Error::new(format!("{}: {why}", path.display())))?;
    }
    print(&comparison.table())
}

fn measure(args: &Bench) -> Result<(), Error> {
    let mut base = Scenario::default();
    args.options.apply(&mut base)?;
    let (option, values) = match &args.sweep {
        Some(sweep) => parse_sweep(sweep)?,
        None => (String::new(), vec![String::new()]),
    };
    if values.len() > 1 && args.observe.any() {
        return Err(Error::new("--trace, --trace-hash and --pcap look at one run, --sweep makes several"));
    }
    let mut rows = Vec::new();
    let mut seen = Vec::new();
    for value in values {
        let mut scenario = base.clone();
        if !option.is_empty() {
            scenario.set(&option, &value)?;
        }
        let (outcome, lines) = program::run_observed(&scenario, &args.observe)?;
        seen.extend(lines);
        let (op, metric) = (scenario.op.name(), scenario.metric.name());
        rows.push(Row { option: option.clone(), value, op, size: scenario.bytes(), metric, outcome });
    }
    let text = if args.json {
        serde_json::to_string_pretty(&rows).map_err(|why| Error::new(why.to_string()))?
    } else if args.csv {
        csv(&rows)
    } else {
        table(&rows, base.metric)
    };
    print(&text)?;
    // JSON and CSV go to programs.
    seen.iter().for_each(|line| eprintln!("{line}"));
    Ok(())
}

/// `size=2..8M`, or `qps=1,4,16`.
fn parse_sweep(text: &str) -> Result<(String, Vec<String>), Error> {
    let wrong =
        || Error::new(format!("--sweep {text:?}: must be like size=2..8M (powers of two) or qps=1,4,16"));
    let (option, values) = text.split_once('=').ok_or_else(wrong)?;
    let Some((from, to)) = values.split_once("..") else {
        return Ok((option.into(), values.split(',').map(str::to_string).collect()));
    };
    let (Some(from), Some(to)) = (number(from), number(to)) else { return Err(wrong()) };
    if from == 0 || from > to {
        return Err(wrong());
    }
    let all = std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(|n| *n <= to);
    Ok((option.into(), all.map(|n| n.to_string()).collect()))
}

const MIB: f64 = (1u64 << 20) as f64;

fn csv(rows: &[Row]) -> String {
    let mut out = String::from(
        "option,value,op,size_bytes,metric,operations,min_ns,p50_ns,p90_ns,p99_ns,p99.9_ns,max_ns,avg_ns,mops,mib_per_s\n",
    );
    for row in rows {
        let o = &row.outcome;
        let latency = o.latency.as_ref().map_or(",,,,,,".to_string(), |l| {
            let all = [l.min, l.p50, l.p90, l.p99, l.p999, l.max, l.avg];
            all.map(|v| format!("{v:.1}")).join(",")
        });
        out += &format!(
            "{},{},{},{},{},{},{latency},{:.4},{:.2}\n",
            row.option,
            row.value,
            row.op,
            row.size,
            row.metric,
            o.operations,
            o.rate / 1e6,
            o.bandwidth / MIB
        );
    }
    out
}

fn table(rows: &[Row], metric: Metric) -> String {
    let swept = rows.first().is_some_and(|r| !r.option.is_empty() && r.option != "size");
    let mut out = String::new();
    for (i, row) in rows.iter().enumerate() {
        let head = if swept { format!("{:>12} ", row.option) } else { String::new() };
        let lead = if swept { format!("{:>12} ", row.value) } else { String::new() };
        let o = &row.outcome;
        match (&o.latency, metric) {
            (Some(l), _) => {
                if i == 0 {
                    out += &format!(
                        "{head}{:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}   microseconds\n",
                        "bytes", "messages", "min", "50%", "90%", "99%", "99.9%", "max"
                    );
                }
                let us = [l.min, l.p50, l.p90, l.p99, l.p999, l.max].map(|v| format!("{:>9.3}", v / 1e3));
                out += &format!("{lead}{:>9} {:>8} {}\n", row.size, o.operations, us.join(" "));
            }
            _ => {
                if i == 0 {
                    out += &format!(
                        "{head}{:>9} {:>10} {:>10} {:>10} {:>9}\n",
                        "bytes", "operations", "Mops", "MiB/s", "Gb/s"
                    );
                }
                out += &format!(
                    "{lead}{:>9} {:>10} {:>10.3} {:>10.1} {:>9.2}\n",
                    row.size,
                    o.operations,
                    o.rate / 1e6,
                    o.bandwidth / MIB,
                    o.bandwidth * 8.0 / 1e9
                );
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_powers_of_two_or_lists() {
        let sweep = |text| parse_sweep(text).map(|(option, values)| (option, values.join(" ")));
        assert_eq!(sweep("size=2..16"), Ok(("size".into(), "2 4 8 16".into())));
        assert_eq!(sweep("size=1K..4K"), Ok(("size".into(), "1024 2048 4096".into())));
        assert_eq!(sweep("qps=1,4,16"), Ok(("qps".into(), "1 4 16".into())));
        for wrong in ["size", "size=8..2", "size=0..2", "size=a..b"] {
            assert!(sweep(wrong).unwrap_err().to_string().contains("powers of two"), "{wrong}");
        }
    }
}
