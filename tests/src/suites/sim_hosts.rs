//! Hosts in processes of their own, over PCI Express: what happens does not depend on how hosts and adapters are cut, nor on what else the
//! machine does.

use std::path::Path;
use std::time::Instant;

use super::peers::case;
use super::sim::{Process, Run, run};
use super::{Case, Outcome, guest};

/// How often each is run.
const TIMES: usize = 10;
/// What is done: its name, and options.
const KINDS: [(&str, &[&str]); 9] = [
    ("sends", &["--size", "6000"]),
    ("dynamic connections", &["--size", "6000", "--transport", "dc"]),
    ("writes", &["--size", "20000", "--operation", "write"]),
    ("reads", &["--size", "20000", "--operation", "read"]),
    ("atomic operations", &["--size", "8", "--operation", "atomic"]),
    ("a ring all-reduce", &["--size", "30000", "--traffic", "ring-all-reduce"]),
    ("a tree all-reduce", &["--size", "200000", "--traffic", "tree-all-reduce", "--operation", "write"]),
    ("storage reads by write", &["--size", "20000", "--traffic", "storage-reads"]),
    ("storage reads by read", &["--size", "20000", "--traffic", "storage-reads", "--operation", "read"]),
];
/// How it is cut: processes of adapters, and of hosts.
const CUTS: [(usize, usize); 4] = [(1, 1), (1, 4), (2, 1), (2, 4)];
/// Options of every run.
const RUN: [&str; 6] = ["--messages", "4", "--start", "2", "--until", "4"];

/// Two switches with two hosts each: all cables are equal, so that as much as can be happens at the same time.
fn topology(processes: usize) -> String {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    (0..processes).for_each(|process| text += &format!("[[process]]\nname = \"p{process}\"\n"));
    for switch in 0..2 {
        let process = format!("process = \"p{}\"", switch * processes / 2);
        text += &format!("[[switch]]\nname = \"s{switch}\"\nports = 8\n{process}\n");
        for place in 1..=2 {
            let host = format!("h{}", 2 * switch + place);
            text += &format!(
                "[[host]]\nname = \"{host}\"\n{process}\n[[host.hca]]\nsimbricks = \"listen:{host}.pci\"\n"
            );
            text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"s{switch}/{place}\"]\n");
        }
    }
    text += "[[link]]\nbetween = [\"s0/7\", \"s1/8\"]\n";
    if processes > 1 {
        text += "simbricks = \"listen:trunk.sock\"\n";
    }
    text
}

/// The processes of a cut.
fn processes((adapters, hosts): (usize, usize)) -> Vec<Process> {
    let mut processes: Vec<_> = (0..adapters).map(|process| Process::named(format!("p{process}"))).collect();
    processes.extend((1..=4).step_by(4 / hosts).map(|first| {
        let hosts = (first..first + 4 / hosts).map(|host| format!("h{host}")).collect();
        Process { hosts, ..Process::default() }
    }));
    processes
}

/// Two hosts at one cable, and no switch; each of the hosts and each of the adapters is a process.
fn pair() -> (String, Vec<Process>) {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    for host in ["a", "b"] {
        text +=
            &format!("[[process]]\nname = \"{host}\"\n[[host]]\nname = \"{host}\"\nprocess = \"{host}\"\n");
        text += &format!("[[host.hca]]\nsimbricks = \"listen:{host}.pci\"\n");
    }
    text += "[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\nsimbricks = \"listen:cable.sock\"\n";
    let mut processes: Vec<_> = ["a", "b"].map(Process::named).into();
    processes.extend(["a", "b"].map(|host| Process { hosts: vec![host.into()], ..Process::default() }));
    (text, processes)
}

/// What two such hosts do to each other: its name, options, and messages.
const BETWEEN_TWO: [(&str, &[&str]); 4] = [
    ("send", &["--size", "20000"]),
    ("write", &["--size", "20000"]),
    ("read", &["--size", "20000"]),
    ("atomic", &["--size", "8"]),
];

/// Both send, write, read and add, and look at every byte; twice the same.
fn between_two(program: &Path, folder: &Path) -> Result<String, String> {
    const MESSAGES: u64 = 16;
    let (text, processes) = pair();
    let mut seen = String::new();
    for (operation, size) in BETWEEN_TWO {
        let number = MESSAGES.to_string();
        let more = ["--messages", &number, "--start", "2", "--until", "4", "--operation", operation];
        let more = [&more[..], size].concat();
        let run = |time: &str| run(program, &folder.join(operation).join(time), &text, &processes, &more);
        let (one, other) = (run("once")?, run("twice")?);
        if (one.hashes, one.counts) != (other.hashes, other.counts) {
            return Err(format!("{operation}: {one:?}, and then {other:?}"));
        }
        if one.messages != 2 * MESSAGES {
            return Err(format!("{operation}: {} messages came", one.messages));
        }
        seen += &format!("{operation}: {:?} events, packets, completions; ", one.counts);
    }
    Ok(format!("{seen}{} messages each, every byte checked", 2 * MESSAGES))
}

/// Two hosts at a cable; then ten runs of each cut, all of which have to give what the first did.
pub(super) fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let name = "a pair, each host and each adapter a process: sends, writes, reads, atomic operations";
    let mut cases: Vec<Case> =
        case(name, || between_two(program, &folder.join("pair"))).into_iter().collect();
    for (name, options) in KINDS {
        let mut first: Option<Run> = None;
        for (adapters, hosts) in CUTS {
            let title = format!(
                "{name} of hosts elsewhere, adapters in {adapters} and hosts in {hosts} processes, {TIMES} times"
            );
            if !guest::is_chosen(&title) {
                continue;
            }
            let (began, mut slowest, mut complaint) = (Instant::now(), f64::MAX, String::new());
            for time in 0..TIMES {
                let folder = folder.join(format!("hosts-{name}-{adapters}-{hosts}-{time}"));
                let more = [&RUN[..], options].concat();
                match run(program, &folder, &topology(adapters), &processes((adapters, hosts)), &more) {
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
            let counts = first.as_ref().map(|run| run.counts).unwrap_or_default();
            let detail =
                format!("{counts:?} events, packets, completions; {slowest:.0} us a second at least");
            let (outcome, detail) = match complaint.is_empty() {
                true => (Outcome::Passed, detail),
                false => (Outcome::Failed, complaint),
            };
            println!("{title}: {detail}");
            cases.push(Case::new(title, outcome, began.elapsed().as_secs_f64(), detail));
        }
    }
    cases
}
