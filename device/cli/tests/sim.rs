//! `softhca sim`: a topology in one process and in several gives the same, and a process that ends takes the others along.

mod common;

use std::io::{BufRead, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{Running, Scratch};

/// Switches in a line with two hosts each: equal cables, so that as much happens at the same time as can. Switch `i` and its
/// hosts are in process `i * processes / SWITCHES`, but hosts may be apart from their switches.
const SWITCHES: usize = 4;

fn topology(processes: usize, hosts_apart: bool, trunk: &str) -> String {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    let of = |switch: usize| switch * processes / SWITCHES;
    for process in 0..processes + usize::from(hosts_apart) {
        text += &format!("[[process]]\nname = \"p{process}\"\n");
    }
    let mut links = String::new();
    let mut link = |a: &str, b: &str, crosses: bool, more: &str| {
        links += &format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\n{more}\n");
        if crosses {
            links += &format!("simbricks = \"listen:{}.sock\"\n", a.replace('/', "-"));
        }
    };
    for switch in 0..SWITCHES {
        text += &format!("[[switch]]\nname = \"s{switch}\"\nports = 8\nprocess = \"p{}\"\n", of(switch));
        for host in [2 * switch, 2 * switch + 1] {
            let process = if hosts_apart { processes } else { of(switch) };
            text += &format!("[[host]]\nname = \"h{host}\"\nprocess = \"p{process}\"\n[[host.hca]]\n");
            let port = 1 + host % 2;
            link(&format!("h{host}/hca0"), &format!("s{switch}/{port}"), hosts_apart, "");
        }
        if switch > 0 {
            let crosses = of(switch) != of(switch - 1);
            link(&format!("s{}/7", switch - 1), &format!("s{switch}/8"), crosses, trunk);
        }
    }
    text + &links
}

fn sim(topology: &Path, dir: &Path, process: Option<&str>, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
    command.arg("sim").arg("--topology").arg(topology).arg("--run-dir").arg(dir).args(more);
    command.args(process.iter().flat_map(|name| ["--process", name]));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Sums of what a run printed: events, packets, completions, how many there were of each, and messages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums([u64; 3], [u64; 3], u64);

fn add(sums: &mut Sums, output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    for (place, name) in ["events", "packets", "completions"].into_iter().enumerate() {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        let mut words = line.split_whitespace().skip(1);
        let hash = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        sums.0[place] = sums.0[place].wrapping_add(hash);
        sums.1[place] += words.next().unwrap().parse::<u64>().unwrap();
    }
    let before = text.split(" messages came").next().unwrap();
    sums.2 += before.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
}

const TRAFFIC: [&str; 10] =
    ["--messages", "2", "--size", "6000", "--start", "1", "--until", "4", "--ack-timeout", "6"];

/// A topology in so many processes, or in one.
fn run(name: &str, text: &str, processes: &[&str]) -> Sums {
    let scratch = Scratch::new(name);
    let file = scratch.file("topology.toml", text);
    let mut sums = Sums::default();
    if processes.is_empty() {
        add(&mut sums, &sim(&file, &scratch.0, None, &TRAFFIC).output().unwrap());
    }
    let children: Vec<_> =
        processes.iter().map(|name| sim(&file, &scratch.0, Some(name), &TRAFFIC).spawn().unwrap()).collect();
    children.into_iter().for_each(|child| add(&mut sums, &child.wait_with_output().unwrap()));
    sums
}

/// Everybody sends to everybody at the same moment, over trunks that all want.
fn equal(name: &str, trunk: &str) {
    let one = run(&format!("{name}-1"), &topology(1, false, trunk), &["p0"]);
    assert_eq!(one.2, 2 * 8 * 7, "{one:?}");
    assert!(one.1.iter().all(|count| *count > 100), "{one:?}");
    // The file says what is where; who runs all of it need not follow.
    assert_eq!(run(&format!("{name}-all"), &topology(4, false, trunk), &[]), one);
    assert_eq!(run(&format!("{name}-2"), &topology(2, false, trunk), &["p0", "p1"]), one);
    assert_eq!(run(&format!("{name}-4"), &topology(4, false, trunk), &["p0", "p1", "p2", "p3"]), one);
    assert_eq!(run(&format!("{name}-apart"), &topology(1, true, trunk), &["p1", "p0"]), one, "hosts apart");
}

#[test]
fn one_process_and_several_do_the_same() {
    equal("plain", "");
}

#[test]
fn one_process_and_several_do_the_same_with_faults_and_a_narrow_trunk() {
    let trunk = "width = 1\nrate = \"fdr\"\nloss = 0.01\nduplicate = 0.01\ndelay = 0.05\nreorder = 0.01\ncorrupt = 0.01\ndelay_us = 2";
    equal("faults", trunk);
    // And what is compared sees a difference.
    let (plain, other) = (topology(1, false, ""), topology(1, false, "delay_ns = 6"));
    assert_ne!(run("differs-1", &plain, &["p0"]).0, run("differs-2", &other, &["p0"]).0);
}

/// Without times: links that train are waited for, and so are connections and messages. Who looks on changes nothing; what they write is
/// whole, also when a host has failed.
#[test]
fn traces_and_captures_of_a_built_in_topology() {
    let scratch = Scratch::new("observed");
    let [trace, pcap] = ["trace.json", "packets.pcapng"].map(|name| scratch.0.join(name));
    let files = ["--trace", trace.to_str().unwrap(), "--pcap", pcap.to_str().unwrap()];
    let more = ["--messages", "40", "--size", "64K"];
    let run = |more: &[&str]| sim(Path::new("two-hosts"), &scratch.0, None, more).output().unwrap();
    let (mut plain, mut seen) = (Sums::default(), Sums::default());
    add(&mut plain, &run(&more));
    add(&mut seen, &run(&[&more[..], &files].concat()));
    assert_eq!(plain.2, 80);
    assert_eq!(seen, plain);
    let whole = || {
        let text = std::fs::read_to_string(&trace).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        (value.as_array().unwrap().len(), std::fs::metadata(&pcap).unwrap().len())
    };
    let (events, bytes) = whole();
    assert!(events > 1000 && bytes > 80 * 65536, "{events} events, {bytes} bytes");
    let failed = run(&[&files[..], &["--until", "11.002"]].concat());
    assert_eq!(failed.status.code(), Some(1));
    let (fewer, _) = whole();
    assert!(fewer > 0 && fewer < events, "{fewer} events");
}

/// What a simulation has given up when it begins, each thread of it.
#[test]
fn a_simulation_is_in_its_sandbox() {
    let scratch = Scratch::new("sandboxed");
    let file = scratch.file("topology.toml", &topology(2, false, ""));
    let mut ends: Vec<_> = ["p0", "p1"]
        .iter()
        .map(|name| Running(sim(&file, &scratch.0, Some(name), &["--until", "1e6"]).spawn().unwrap()))
        .collect();
    for Running(child) in &mut ends {
        let mut lines = std::io::BufReader::new(child.stderr.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("simulates to")));
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let threads: Vec<_> =
            tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap()).collect();
        for status in threads {
            for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
                assert!(status.contains(line), "{status}");
            }
        }
    }
}

/// A process is killed while others simulate: each says which link, and ends with an error.
#[test]
fn a_process_that_is_killed_ends_the_others_in_words() {
    let scratch = Scratch::new("killed");
    let file = scratch.file("topology.toml", &topology(2, false, ""));
    // Far more model time than anybody waits for.
    let more = ["--until", "1e6"];
    let mut ends: Vec<_> = ["p0", "p1"]
        .iter()
        .map(|name| Running(sim(&file, &scratch.0, Some(name), &more).spawn().unwrap()))
        .collect();
    let mut gone = ends.pop().unwrap();
    // It says how far it is once a second: by then it simulates.
    let mut told = [0; 64];
    let stderr = gone.0.stderr.as_mut().unwrap();
    assert!(stderr.read(&mut told).unwrap() > 0);
    gone.0.kill().unwrap();
    gone.0.wait().unwrap();
    let mut left = ends.pop().unwrap();
    let (mut words, status) = (String::new(), left.0.wait().unwrap());
    left.0.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(status.code(), Some(1), "{words}");
    assert!(words.contains("the link between s1/7 and s2/8: the peer has ended"), "{words}");
}

#[test]
fn what_cannot_be_simulated_is_said() {
    let scratch = Scratch::new("refused");
    let refused = |text: &str, more: &[&str]| {
        let output = sim(&scratch.file("t.toml", text), &scratch.0, None, more).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let pair = topology(1, false, "");
    assert!(refused(&pair, &["--until", "0.001", "--start", "0.0005"]).contains("is not done at 1 us"));
    assert!(refused(&pair, &["--start", "0.001"]).contains("traffic can't start at 1 us"));
    assert!(refused(&pair, &["--start", "5", "--until", "4"]).contains("--start must be before --until"));
    let alone = topology(2, false, "");
    let file = scratch.file("alone.toml", &alone);
    let output = sim(&file, &scratch.0, Some("p0"), &["--patience", "0"]).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("nobody has connected"), "{words}");
}

/// A tree of three tiers of switches, with hosts in two pods, over dynamic connections: all arrives, and twice the same does.
#[test]
fn a_fat_tree_of_two_pods() {
    let scratch = Scratch::new("tree");
    let more = ["--transport", "dc", "--peers", "3", "--start", "1", "--until", "1.2"];
    let run = || {
        let mut sums = Sums::default();
        add(&mut sums, &sim(Path::new("fat-tree:440"), &scratch.0, None, &more).output().unwrap());
        sums
    };
    let first = run();
    assert_eq!(first.2, 440 * 3);
    assert_eq!(run(), first);
}

/// The package for SimBricks: its unit tests, those that need nothing but Python, and that the topology files that it writes are read. What needs
/// SimBricks' packages is in `hca-tests suites sim`.
#[test]
fn the_python_package_writes_topologies_that_are_read() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../simbricks-softhca");
    let scratch = Scratch::new("orchestration");
    let tests = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .env("PYTHONPATH", "src")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TOPOLOGY_DIR", &scratch.0)
        .current_dir(package)
        .output();
    let Ok(tests) = tests else { return eprintln!("skipped: there is no python3") };
    let said = String::from_utf8_lossy(&tests.stderr);
    assert!(tests.status.success(), "{said}");
    let sim = Command::new(env!("CARGO_BIN_EXE_softhca"))
        .args(["sim", "--no-hash", "--ack-timeout", "6", "--topology"])
        .arg(scratch.0.join("two-hosts.toml"))
        .output()
        .unwrap();
    let said = [sim.stdout, sim.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(sim.status.success() && said.contains("2 hosts: 2 messages came"), "{said}");
}
