//! Simulations in several processes: what happens does not depend on how a topology is cut, nor on what else the machine does.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use hca_vm::server::Binary;
use serde_json::Value;

use super::{
    Case, Outcome, guest, namespaces, orchestration, peers, sim_hosts, sim_speed, simulators, strangers,
    timing,
};

/// Switches in a line, and hosts at each: cables and messages are equal, so that as much as can be happens at the same time.
const SWITCHES: usize = 8;
const AT_EACH: usize = 2;
/// How often each is run free, and how often with all of its processes on one processor.
pub(super) const TIMES: usize = 10;
/// Options of every run.
pub(super) const RUN: [&str; 6] = ["--messages", "2", "--start", "2", "--until", "5"];
/// A trunk that loses, doubles, delays and garbles packets.
const FAULTS: &str =
    "loss = 0.01\nduplicate = 0.01\ndelay = 0.05\nreorder = 0.01\ncorrupt = 0.01\ndelay_us = 2\n";
/// A sixteenth of what the hosts behind it can send.
const NARROW: &str = "width = 1\nrate = \"qdr\"\n";

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) fabric: Fabric,
    /// More keys of the cables between switches.
    pub(super) trunk: &'static str,
    /// Requests are sent again soon, but not sooner than a queue at a narrow trunk is.
    pub(super) options: &'static [&'static str],
}

/// Of what switches and adapters are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fabric {
    /// A cable from each switch to the next.
    InfiniBand,
    /// Two from every other one, each flow by one of them; with more keys of the switches. Where a half of the switches ends there is one, for which
    /// a proxy is enough.
    Ethernet(&'static str),
}

impl Fabric {
    /// Keys of a switch and of an adapter.
    fn keys(self) -> [String; 2] {
        match self {
            Self::InfiniBand => Default::default(),
            Self::Ethernet(more) => [format!("type = \"eth\"\n{more}"), "port_type = \"eth\"\n".to_owned()],
        }
    }

    /// How many cables there are to a switch from the one before.
    fn cables(self, switch: usize) -> usize {
        match self {
            _ if switch == 0 => 0,
            Self::Ethernet(_) if switch % 2 == 1 => 2,
            _ => 1,
        }
    }
}

const SMALL: &[&str] = &["--size", "6000", "--ack-timeout", "6"];
const PATIENT: &[&str] = &["--size", "6000", "--ack-timeout", "14"];

pub(super) const KINDS: [Kind; 8] = [
    Kind { name: "ties", fabric: Fabric::InfiniBand, trunk: "", options: SMALL },
    Kind { name: "faults", fabric: Fabric::InfiniBand, trunk: FAULTS, options: SMALL },
    Kind { name: "a congested trunk", fabric: Fabric::InfiniBand, trunk: NARROW, options: PATIENT },
    Kind {
        name: "a ring all-reduce",
        fabric: Fabric::InfiniBand,
        trunk: FAULTS,
        options: &["--size", "100000", "--traffic", "ring-all-reduce", "--ack-timeout", "6"],
    },
    Kind {
        name: "a tree all-reduce",
        fabric: Fabric::InfiniBand,
        trunk: FAULTS,
        options: &["--size", "200000", "--traffic", "tree-all-reduce", "--ack-timeout", "6"],
    },
    Kind {
        name: "storage reads",
        fabric: Fabric::InfiniBand,
        trunk: FAULTS,
        options: &["--size", "6000", "--traffic", "storage-reads", "--ack-timeout", "6"],
    },
    Kind { name: "Ethernet, faults", fabric: Fabric::Ethernet(""), trunk: FAULTS, options: SMALL },
    Kind {
        name: "Ethernet, PAUSE",
        fabric: Fabric::Ethernet("pause = true\nbuffer = \"256K\"\n"),
        trunk: NARROW,
        options: PATIENT,
    },
];

/// A topology in so many processes; `trunk`: more keys of the cables between switches.
pub(super) fn topology(processes: usize, fabric: Fabric, trunk: &str) -> String {
    line(processes, AT_EACH, fabric, trunk)
}

/// The same with so many hosts at each switch.
pub(super) fn line(processes: usize, at_each: usize, fabric: Fabric, trunk: &str) -> String {
    let of = |switch: usize| switch * processes / SWITCHES;
    let [of_switch, of_adapter] = fabric.keys();
    let ports = at_each + 6;
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    (0..processes).for_each(|process| text += &format!("[[process]]\nname = \"p{process}\"\n"));
    for switch in 0..SWITCHES {
        let process = format!("process = \"p{}\"", of(switch));
        text += &format!("[[switch]]\nname = \"s{switch}\"\nports = {ports}\n{process}\n{of_switch}");
        for place in 1..=at_each {
            let host = format!("h{switch}{place}");
            text += &format!("[[host]]\nname = \"{host}\"\n{process}\n[[host.hca]]\n{of_adapter}");
            text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"s{switch}/{place}\"]\n");
        }
        for cable in 0..fabric.cables(switch) {
            let before = switch - 1;
            let (right, left) = (ports - 1 - 2 * cable, ports - 2 * cable);
            text += &format!("[[link]]\nbetween = [\"s{before}/{right}\", \"s{switch}/{left}\"]\n{trunk}");
            if of(switch) != of(before) {
                let further = ["", "-further"][cable];
                text += &format!("simbricks = \"listen:trunk{switch}{further}.sock\"\n");
            }
        }
    }
    text
}

/// What one run gave: hashes of events, packets and completions, how many there were, messages that came, whose bytes were checked, and
/// microseconds of model time in a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Run {
    pub(super) hashes: [u64; 3],
    pub(super) counts: [u64; 3],
    pub(super) messages: u64,
    pub(super) rate: f64,
}

/// A process of a simulation.
#[derive(Debug, Clone, Default)]
pub(super) struct Process {
    /// Its name; `None`: it simulates all.
    pub(super) name: Option<String>,
    /// The namespace of networks that it is in.
    pub(super) namespace: Option<String>,
    /// Its run directory, if not the folder.
    pub(super) dir: Option<PathBuf>,
    /// It is hosts of adapters that others simulate: these.
    pub(super) hosts: Vec<String>,
    /// All that have this share the first processor.
    pub(super) pinned: bool,
}

impl Process {
    pub(super) fn named(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }
}

/// A command in a namespace of networks, or on the first processor.
pub(super) fn command(program: &Path, namespace: Option<&str>, pinned: bool) -> Command {
    let mut words: Vec<&OsStr> = Vec::new();
    if let Some(namespace) = namespace {
        words.extend(["ip", "netns", "exec", namespace].map(OsStr::new));
    }
    if pinned {
        words.extend(["taskset", "-c", "0"].map(OsStr::new));
    }
    words.push(program.as_os_str());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// How each is run: free, and with all of its processes on one processor if that can be had.
pub(super) fn ways() -> impl Iterator<Item = (usize, bool)> {
    let both = if may_pin() { 2 } else { 1 };
    (0..TIMES * both).map(move |time| (time, time % both == 1))
}

/// The same in words.
pub(super) fn times() -> String {
    format!("{TIMES} times{}", if may_pin() { " free and on one processor" } else { "" })
}

fn may_pin() -> bool {
    peers::installed("taskset").is_some()
}

/// Runs a topology in those processes.
pub(super) fn run(
    program: &Path,
    folder: &Path,
    topology: &str,
    processes: &[Process],
    more: &[&str],
) -> Result<Run, String> {
    let text = |why: std::io::Error| why.to_string();
    std::fs::create_dir_all(folder).map_err(text)?;
    let file = folder.join("topology.toml");
    std::fs::write(&file, topology).map_err(text)?;
    let start = |process: &Process| {
        let mut command = command(program, process.namespace.as_deref(), process.pinned);
        let dir = process.dir.as_deref().unwrap_or(folder);
        command.arg("sim").arg("--topology").arg(&file).arg("--run-dir").arg(dir).args(more).arg("--json");
        command.args(process.name.iter().flat_map(|name| ["--process", name]));
        command.args(process.hosts.iter().flat_map(|host| ["--host", host]));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(text)
    };
    let children = processes.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut sum = Run { rate: f64::MAX, ..Run::default() };
    let mut failed = String::new();
    for child in children {
        let output = child.wait_with_output().map_err(text)?;
        if !output.status.success() {
            failed += &String::from_utf8_lossy(&output.stderr);
            continue;
        }
        let value: Value = serde_json::from_slice(&output.stdout).map_err(|why| why.to_string())?;
        // There are none with `--no-hash`.
        let of = &value["hashes"];
        let hashed = if of.is_null() { 0 } else { sum.hashes.len() };
        for (to, name) in sum.hashes.iter_mut().zip(["events", "packets", "completions"]).take(hashed) {
            *to = to.wrapping_add(of[name].as_u64().ok_or("no hash")?);
        }
        for (to, count) in sum.counts.iter_mut().zip(of["counts"].as_array().into_iter().flatten()) {
            *to += count.as_u64().unwrap_or(0);
        }
        sum.messages += value["messages"].as_u64().unwrap_or(0);
        let took = value["took_s"].as_f64().unwrap_or(f64::MAX);
        sum.rate = sum.rate.min(value["until"].as_f64().unwrap_or(0.0) / 1e6 / took);
    }
    if failed.is_empty() { Ok(sum) } else { Err(failed) }
}

/// Several runs of each number of processes, every other one with all of them on one processor, all of which have to give what the first did.
fn case(kind: Kind, program: &Path, folder: &Path) -> Vec<Case> {
    let Kind { name, fabric, trunk, options } = kind;
    let mut first: Option<Run> = None;
    let mut cases = Vec::new();
    for processes in [1, 2, 4, 8] {
        let title = format!("{name}, {processes} processes, {}", times());
        if !guest::is_chosen(&title) {
            continue;
        }
        let began = Instant::now();
        let mut slowest = f64::MAX;
        let mut complaint = String::new();
        for (time, pinned) in ways() {
            let folder = folder.join(format!("{name}-{processes}-{time}"));
            let part = |process| Process { pinned, ..Process::named(format!("p{process}")) };
            let parts: Vec<_> = (0..processes).map(part).collect();
            let text = topology(processes, fabric, trunk);
            let more = [&RUN[..], options].concat();
            match run(program, &folder, &text, &parts, &more) {
                Ok(run) => {
                    slowest = slowest.min(run.rate);
                    let first = first.get_or_insert_with(|| run.clone());
                    if (first.hashes, first.counts) != (run.hashes, run.counts) {
                        complaint += &format!("run {time} differs: {run:?}, the first was {first:?}\n");
                    }
                }
                Err(why) => complaint += &why,
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let counts = first.as_ref().map(|run| run.counts).unwrap_or_default();
        let detail = format!("{counts:?} events, packets, completions; {slowest:.0} us a second at least");
        match &first {
            Some(_) => println!("{name}, {processes} processes: {detail}"),
            None => println!("{name}, {processes} processes: none came to its end"),
        }
        let (outcome, detail) = match complaint.is_empty() {
            true => (Outcome::Passed, detail),
            false => (Outcome::Failed, complaint),
        };
        cases.push(Case::new(title, outcome, seconds, detail));
    }
    cases
}

/// The rows of timing, as one case: links that can be cut have moved parts of times from one unit to another.
fn timing() -> Option<Case> {
    peers::case("rows of timing, as the suite of that name judges them", || {
        let cases = timing::cases();
        let failed = cases.iter().filter(|case| case.outcome == Outcome::Failed);
        let failed: Vec<_> = failed.map(|case| format!("{}: {}", case.name, case.detail)).collect();
        match failed.is_empty() {
            true => Ok(format!("{} of {0} cases", cases.len())),
            false => Err(failed.join("\n")),
        }
    })
}

/// Ties, faults, a congested trunk, all-reduce, storage reads and Ethernet: each in 1, 2, 4 and 8 processes; others' switches; experiments of SimBricks' orchestration; speed.
pub fn cases() -> Vec<Case> {
    let folder: PathBuf = std::env::temp_dir().join(format!("softhca-suite-sim-{}", std::process::id()));
    let program = match Binary::find() {
        Ok(program) => program,
        Err(why) => return vec![Case::check("the program", format!("{why:#}"))],
    };
    let mut cases: Vec<Case> =
        KINDS.into_iter().flat_map(|kind| case(kind, program.path(), &folder)).collect();
    cases.extend(strangers::cases(program.path(), &folder));
    cases.extend(peers::cases(program.path(), &folder));
    cases.extend(namespaces::cases(program.path(), &folder));
    cases.extend(sim_hosts::cases(program.path(), &folder));
    cases.extend(simulators::cases(program.path(), &folder));
    cases.extend(sim_speed::cases(program.path(), &folder));
    cases.extend(timing());
    cases.extend(orchestration::cases(program.path(), &folder));
    let _ = std::fs::remove_dir_all(&folder);
    cases
}
