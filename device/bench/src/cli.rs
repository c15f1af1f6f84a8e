//! `softhca bench`: options to a scenario, outcomes to text.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::file::Sweep;
use crate::map::{Map, Run};
use crate::outcome::{Outcome, Share};
use crate::scenario::{Metric, Scenario};
use crate::{Error, compare, file, incast, judge, plot, program, rows, sweeps, whatif};

/// Measure latency, message rate or bandwidth of a scenario in virtual time
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca bench\n      \
    latency of 2-byte RC writes between two adapters, as ib_write_lat\n  \
    softhca bench --op send --sweep size=2..4K --metric latency --inline 220\n  \
    softhca bench --op read --size 8 --metric rate --threads 14 --qps 14 --window 32\n  \
    softhca bench --metric bandwidth --size 64K --link eth100 --mtu 1024 --topology switch\n  \
    softhca bench --link eth100 --op frame --size 64 --metric rate --qps 4 --post-list 32 --window 1024
  \
    softhca bench --op send --transport ud --size 60 --inline 256 --metric rate --threads 14 --qps 14 --post-list 16 --window 64\n  \
    softhca bench --op write --size 8 --inline 16 --breakdown\n      \
    where the time of an operation goes\n  \
    softhca bench --op read --what-if pcie.read_ns=600 --what-if program.wqe_ns=50\n  \
    softhca bench --op read --size 8 --metric rate --sweep window=1..64 --sweep qps=1..16 --plot map.svg\n      \
    a heat map; with one --sweep lines\n\n\
    Conventions are perftest's: sends and writes show half of a round trip, reads and atomics all of it;\n\
    bandwidth is payload over time with --window requests outstanding; MiB is 2^20 bytes.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// Scenarios of a TOML file: [[scenario]] tables of these options; those given here come last
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Run once for each value: OPTION=FROM..TO in powers of two, or OPTION=A,B,C; given twice, for each pair
    #[arg(long, value_name = "OPTION=VALUES")]
    sweep: Vec<String>,
    /// Draw the sweep as SVG: lines for one option, a heat map for two
    #[arg(long, value_name = "FILE", conflicts_with_all = ["breakdown", "what_if"])]
    plot: Option<PathBuf>,
    /// Say where the time of an operation goes: a bar by unit, and each number's part
    #[arg(long, conflicts_with_all = ["csv", "what_if", "trace", "trace_hash", "pcap"])]
    breakdown: bool,
    /// Run once more with a number of the profile otherwise, or of the host (program.wqe_ns=50), and say what it changes; more than
    /// once
    #[arg(long, value_name = "UNIT.KEY=VALUE")]
    what_if: Vec<String>,
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
    Sensitivity(judge::Sensitivity),
    CrossValidate(judge::Cross),
    Incast(incast::command::Options),
}

/// Compare the model with published measurements, row by row
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    softhca bench compare specs/timing/calibration.csv --map specs/timing/calibration.toml\n\n\
    ROWS has the columns source,device,link,op,size_bytes,metric,value,unit,conditions. The rules of MAP turn every\n\
    column but the value into the options of softhca bench; specs/timing/MAP.md describes them.")]
struct Compare {
    /// CSV files of measurements
    #[arg(required = true)]
    rows: Vec<PathBuf>,
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
    /// Draw each figure of the map as FIGURE.svg into a folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
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
    /// send, write, read, fetch_add, cmp_swap; umr (registration of --size bytes by work request); by Ethernet queues frame, and lso (large sends of
    /// TCP); or of the PCIe link alone: pcie_read, pcie_write, pcie_write_read, pcie_read_write, with --host nfp6000 [write]
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// rc, uc, ud, dc (--qps are initiators) [rc]
    #[arg(long, value_name = "T")]
    transport: Option<String>,
    /// Message size in bytes (K, M, G for powers of 1024); of a frame with its check sequence [2]
    #[arg(long, value_name = "N")]
    size: Option<String>,
    /// Queue pairs of each initiating adapter, or its send queues of frames, shared out to its threads [1]
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
    /// Messages up to this size travel in the WQE, or lists of pages of a registration [0]
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
    /// sdr ddr qdr fdr10 fdr edr hdr, with a width unless 4 (fdrx8), or eth and its Gb/s: eth10 eth25 eth40 eth50 eth100
    /// eth200; ports are Ethernet then, and packets RoCE [edr]
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// How packets of RoCE look: v2 (IPv4), v2-ipv6, v1 [v2]
    #[arg(long, value_name = "V")]
    roce: Option<String>,
    /// VLAN of RoCE packets and frames; 0: none [0]
    #[arg(long, value_name = "ID")]
    vlan: Option<String>,
    /// Receive queues of a host that gets frames, chosen by RSS; 0: its flow tables drop all [as --qps]
    #[arg(long, value_name = "N")]
    receive_queues: Option<String>,
    /// Flow tables that a frame passes there [1]
    #[arg(long, value_name = "N")]
    tables: Option<String>,
    /// Different source ports of a thread's frames [64]
    #[arg(long, value_name = "N")]
    flows: Option<String>,
    /// Bytes of data in each frame of a large send [1448]
    #[arg(long, value_name = "N")]
    mss: Option<String>,
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
    /// Adapters that an initiator sends to, with --topology switch: datagrams of a queue pair go to one after the other,
    /// connections are shared out to them [1]
    #[arg(long, value_name = "N")]
    targets: Option<String>,
    /// Dynamic connections: targets of each thread of a host that is reached; requests of an initiator go to all of them in
    /// turn [1]
    #[arg(long, value_name = "N")]
    dcts: Option<String>,
    /// Both ends initiate; with several initiators all adapters talk with all [false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    bidirectional: Option<String>,
    /// Memory regions that remote accesses go to [1]
    #[arg(long, value_name = "N")]
    mrs: Option<String>,
    /// Page size of the regions, and of registrations [4096]
    #[arg(long, value_name = "N")]
    page_size: Option<String>,
    /// Remote accesses go to random lines within so many bytes; 0: each queue pair has its place [0]
    #[arg(long, value_name = "N")]
    span: Option<String>,
    /// Data of requests lies at random lines within so many bytes of its thread; 0: each request of a window has its
    /// buffer [0]
    #[arg(long, value_name = "N")]
    local_span: Option<String>,
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
    /// PCIe operations pass the DMA engine of the adapter's program [false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    dma: Option<String>,
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

/// A scenario and its outcome.
#[derive(Debug, Clone, Serialize)]
struct Row {
    name: String,
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
        Some(Command::Sensitivity(args)) => print(&judge::sensitivity(args)?),
        Some(Command::CrossValidate(args)) => print(&judge::cross(args)?),
        Some(Command::Incast(options)) => print(&incast::command::execute(options)?),
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
    let mut rows = Vec::new();
    for path in &args.rows {
        rows.extend(rows::read(path)?);
    }
    let map = Map::parse(&read(&args.map)?).map_err(|why| why.at(args.map.display()))?;
    let only = args.only.as_ref().map(|only| regex::Regex::new(only)).transpose();
    let only = only.map_err(|why| Error::new(format!("--only: {why}")))?;
    let overrides = args.set.iter().map(|text| match text.split_once(':') {
        Some((profile, number)) => (Some(profile.to_string()), number.to_string()),
        None => (None, text.clone()),
    });
    let keep =
        |run: &Run| only.as_ref().is_none_or(|only| only.is_match(&run.rule) || only.is_match(&run.group));
    let comparison = compare::compare(&rows, &map, &overrides.collect(), args.jobs, keep)?;
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&comparison).map_err(|why| Error::new(why.to_string()))?;
        std::fs::write(path, json + "\n").map_err(|why| Error::new(format!("{}: {why}", path.display())))?;
    }
    if let Some(dir) = &args.svg {
        std::fs::create_dir_all(dir).map_err(|why| Error::new(format!("{}: {why}", dir.display())))?;
        for picture in plot::pictures(&comparison)? {
            let path = dir.join(format!("{}.svg", picture.file));
            std::fs::write(&path, picture.svg)
                .map_err(|why| Error::new(format!("{}: {why}", path.display())))?;
        }
    }
    print(&comparison.table())?;
    match comparison.failed.len() {
        0 => Ok(()),
        count => Err(Error::new(format!("{count} runs failed, see above"))),
    }
}

fn measure(args: &Bench) -> Result<(), Error> {
    let mut scenarios = match &args.scenario {
        Some(path) => file::parse(&read(path)?).map_err(|why| why.at(path.display()))?,
        None => vec![(Scenario::default(), Sweep::default())],
    };
    let asked = args.sweep.iter().map(|text| Sweep::parse(text)).collect::<Result<Vec<Sweep>, Error>>()?;
    let mut runs = Vec::new();
    let mut swept = Vec::new();
    for (scenario, own) in &mut scenarios {
        args.options.apply(scenario)?;
        swept = if asked.is_empty() { vec![own.clone()] } else { asked.clone() };
        runs.extend(file::combine(scenario, &swept)?);
    }
    if runs.len() > 1 && args.observe.any() {
        return Err(Error::new("--trace, --trace-hash and --pcap look at one run, here are several"));
    }
    if args.breakdown {
        return print(&whatif::breakdowns(&runs, args.json)?);
    }
    if !args.what_if.is_empty() {
        return print(&whatif::table(&runs, &args.what_if)?);
    }
    let (mut rows, mut seen, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let metric = runs.first().map_or(Metric::Latency, |(_, _, scenario)| scenario.metric);
    for (option, value, scenario) in runs {
        let named = |why: Error| {
            if scenario.name.is_empty() { why } else { why.at(format!("scenario {:?}", scenario.name)) }
        };
        let (outcome, lines) = program::run_observed(&scenario, &args.observe).map_err(named)?;
        seen.extend(lines);
        answers.push(sweeps::Answer::of(&scenario, &outcome));
        let (op, metric, size) = (scenario.op.name(), scenario.metric.name(), scenario.bytes());
        rows.push(Row { name: scenario.name, option, value, op, size, metric, outcome });
    }
    if let Some(path) = &args.plot {
        swept.retain(|sweep| !sweep.option.is_empty());
        let title = rows.first().map_or(String::new(), |row| format!("{}, {}", row.op, row.metric));
        let svg = sweeps::picture(&title, sweeps::unit(metric), &swept, &answers)?;
        std::fs::write(path, svg).map_err(|why| Error::new(format!("{}: {why}", path.display())))?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&rows).map_err(|why| Error::new(why.to_string()))?
    } else if args.csv {
        csv(&rows)
    } else {
        table(&rows)
    };
    print(&text)?;
    // JSON and CSV go to programs.
    seen.iter().for_each(|line| eprintln!("{line}"));
    Ok(())
}

const MIB: f64 = (1u64 << 20) as f64;

fn csv(rows: &[Row]) -> String {
    let mut out = String::from(
        "name,option,value,op,size_bytes,metric,operations,min_ns,p50_ns,p90_ns,p99_ns,p99.9_ns,max_ns,avg_ns,mops,mib_per_s,\
         pcie_reads,pcie_writes,stores\n",
    );
    for row in rows {
        let o = &row.outcome;
        let latency = o.latency.as_ref().map_or(",,,,,,".to_string(), |l| {
            let all = [l.min, l.p50, l.p90, l.p99, l.p999, l.max, l.avg];
            all.map(|v| format!("{v:.1}")).join(",")
        });
        let share = o.usage.as_ref().map_or(",,".to_string(), |u| {
            let s = &u.initiator;
            [s.pcie_reads, s.pcie_writes, s.stores].map(|v| format!("{v:.3}")).join(",")
        });
        out += &format!(
            "{},{},{},{},{},{},{},{latency},{:.4},{:.2},{share}\n",
            quoted(&row.name),
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

/// A cell of CSV.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut last: Option<&Row> = None;
    for row in rows {
        let swept = !row.option.is_empty() && row.option != "size";
        let lead = |text: &str| if swept { format!("{text:>14} ") } else { String::new() };
        let o = &row.outcome;
        let same = |l: &Row| {
            l.name == row.name && l.option == row.option && l.outcome.latency.is_some() == o.latency.is_some()
        };
        if !last.is_some_and(same) {
            if !row.name.is_empty() {
                out += &format!("{}{}\n", if last.is_some() { "\n" } else { "" }, row.name);
            }
            out += &lead(&row.option);
            out += &match o.latency {
                Some(_) => format!(
                    "{:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}   microseconds\n",
                    "bytes", "messages", "min", "50%", "90%", "99%", "99.9%", "max"
                ),
                None => format!(
                    "{:>9} {:>10} {:>10} {:>10} {:>9}   {SHARE_HEAD}\n",
                    "bytes", "operations", "Mops", "MiB/s", "Gb/s"
                ),
            };
        }
        last = Some(row);
        let lead = lead(&row.value);
        if let Some(l) = &o.latency {
            let us = [l.min, l.p50, l.p90, l.p99, l.p999, l.max].map(|v| format!("{:>9.3}", v / 1e3));
            out += &format!("{lead}{:>9} {:>8} {}\n", row.size, o.operations, us.join(" "));
            continue;
        }
        out += &format!(
            "{lead}{:>9} {:>10} {:>10.3} {:>10.1} {:>9.2}   {}\n",
            row.size,
            o.operations,
            o.rate / 1e6,
            o.bandwidth / MIB,
            o.bandwidth * 8.0 / 1e9,
            o.usage.as_ref().map_or(String::new(), |u| share(&u.initiator)),
        );
        if let Some(usage) = &o.usage {
            let space = lead.len() + 9 + 11 + 11 + 11 + 10;
            out += &format!("{:>space$}   {}\n", "target", share(&usage.target));
        }
        if o.is_unsteady() {
            let differs = o.little.unwrap_or_default() * 100.0;
            out += &format!(
                "{lead}{:>9} no steady state: rate times latency is {differs:+.0} % off what was outstanding\n",
                ""
            );
        }
    }
    out
}

/// Columns of [`share`].
const SHARE_HEAD: &str = "PCIe per operation: reads writes stores   hits: QPs  CQs keys MTTs WQEs";

/// What an adapter did per operation.
fn share(share: &Share) -> String {
    let hits = &share.hits;
    let percent = |hits: Option<f64>| hits.map_or("   -".into(), |h| format!("{:>3.0}%", h * 100.0));
    let hits = [hits.contexts, hits.cqs, hits.keys, hits.translations, hits.wqes].map(percent).join(" ");
    format!("{:>25.2} {:>6.2} {:>6.2}        {hits}", share.pcie_reads, share.pcie_writes, share.stores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_begin_anew_with_each_scenario() {
        let row = |name: &str, rate: f64| Row {
            name: name.into(),
            option: "window".into(),
            value: "8".into(),
            op: "read",
            size: 8,
            metric: "rate",
            outcome: Outcome {
                operations: 10,
                time_ns: 1.0,
                latency: None,
                rate,
                rate_each: rate,
                bandwidth: rate * 8.0,
                little: None,
                usage: None,
            },
        };
        let rows = [row("a", 1e6), row("a", 2e6), row("b, c", 3e6)];
        let table = table(&rows);
        assert_eq!(table.matches("operations").count(), 2, "{table}");
        assert!(table.starts_with("a\n") && table.contains("\nb, c\n"), "{table}");
        let csv = csv(&rows);
        let cells = |line: &str| line.split(',').count();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!((lines.len(), cells(lines[0]), cells(lines[1])), (4, 19, 19), "{csv}");
        assert!(lines[3].starts_with("\"b, c\",window,8,read"), "{csv}");
    }
}
