//! `softhca sim`: a topology in one process and in several gives the same, and a process that ends takes the others along.

use std::io::{BufRead, Read};
use std::path::Path;
use std::process::Command;

use crate::common::{Running, Scratch, Sums, sim};

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

/// The options of a process.
fn of<'a>(process: Option<&'a str>, more: &[&'a str]) -> Vec<&'a str> {
    let process = process.into_iter().flat_map(|name| ["--process", name]);
    process.chain(["--json"]).chain(more.iter().copied()).collect()
}

const TRAFFIC: [&str; 10] =
    ["--messages", "2", "--size", "6000", "--start", "1", "--until", "4", "--ack-timeout", "6"];

/// A topology in so many processes, or in one, and what the first of them printed.
fn run_with(name: &str, text: &str, processes: &[&str], options: &[&str]) -> (Sums, serde_json::Value) {
    let scratch = Scratch::new(name);
    let file = scratch.file("topology.toml", text);
    let start = |name: Option<&str>| sim(&file, &scratch.0, &of(name, options)).spawn().unwrap();
    let children: Vec<_> = match processes {
        [] => vec![start(None)],
        names => names.iter().map(|name| start(Some(name))).collect(),
    };
    let mut sums = Sums::default();
    let mut said = children.into_iter().map(|child| sums.add(&child.wait_with_output().unwrap()));
    let first = said.next().unwrap();
    said.for_each(drop);
    (sums, first)
}

fn run(name: &str, text: &str, processes: &[&str]) -> Sums {
    run_with(name, text, processes, &TRAFFIC).0
}

/// Everybody sends to everybody at the same moment, over trunks that all want.
fn equal(name: &str, trunk: &str) {
    let one = run(&format!("{name}-1"), &topology(1, false, trunk), &["p0"]);
    assert_eq!(one.messages, 2 * 8 * 7, "{one:?}");
    assert!(one.counts.iter().all(|count| *count > 100), "{one:?}");
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
    assert_ne!(run("differs-1", &plain, &["p0"]).hashes, run("differs-2", &other, &["p0"]).hashes);
}

/// What all hosts do together: the same in 1, 2 and 4 processes, and with hosts apart from their switches, over a trunk that loses
/// packets. Returns what the process of all printed of it.
fn together(name: &str, messages: u64, options: &[&str]) -> serde_json::Value {
    let trunk = "width = 1\nloss = 0.01\nreorder = 0.01\ndelay_us = 2";
    let times = ["--start", "2", "--until", "4", "--ack-timeout", "6"];
    let options = [options, &times].concat();
    let run = |cut: &str, processes: usize, apart: bool, names: &[&str]| {
        run_with(&format!("{name}-{cut}"), &topology(processes, apart, trunk), names, &options)
    };
    let (one, said) = run("1", 1, false, &["p0"]);
    assert_eq!(one.messages, messages);
    assert_eq!(run("2", 2, false, &["p0", "p1"]).0, one);
    assert_eq!(run("4", 4, false, &["p0", "p1", "p2", "p3"]).0, one);
    assert_eq!(run("apart", 1, true, &["p1", "p0"]).0, one, "hosts apart");
    said["measured"].clone()
}

/// The bandwidth of the bus is that of the algorithm times `2 (n - 1) / n`, and no more than a link carries.
fn check_all_reduce(measured: &serde_json::Value, bytes: u64) {
    assert_eq!((&measured["kind"], &measured["ranks"]), (&"collective".into(), &8.into()), "{measured}");
    assert_eq!((&measured["rounds"], &measured["bytes"]), (&2.into(), &bytes.into()), "{measured}");
    let of = |name: &str| measured[name].as_f64().unwrap();
    let (algorithm, bus) = (of("algorithm_bandwidth"), of("bus_bandwidth"));
    assert!((algorithm * of("round_ps") / 1e12 - bytes as f64).abs() < 1.0, "{measured}");
    assert!((bus - algorithm * 2.0 * 7.0 / 8.0).abs() < 1.0, "{measured}");
    // The narrow trunk has one lane of 25 Gb/s, each way.
    assert!(bus < 25e9 / 8.0, "{measured}");
}

/// Eight hosts send 14 chunks each, twice; the last one of a vector is not full.
#[test]
fn a_ring_all_reduce_gives_everybody_the_sum() {
    let options = ["--traffic", "ring-all-reduce", "--messages", "2", "--size", "99996"];
    check_all_reduce(&together("ring", 2 * 8 * 14, &options), 99996);
    together("ring-write", 2 * 8 * 14, &[&options[..], &["--operation", "write"]].concat());
}

/// Two slices go up seven cables and down again, twice.
#[test]
fn a_tree_all_reduce_gives_everybody_the_sum() {
    let options = ["--traffic", "tree-all-reduce", "--messages", "2", "--size", "100000"];
    check_all_reduce(&together("tree", 2 * 2 * 7 * 2, &options), 100_000);
    together("tree-write", 2 * 2 * 7 * 2, &[&options[..], &["--operation", "write"]].concat());
}

/// Six clients read 20 blocks of each of two hosts, four at a time.
#[test]
fn blocks_are_read_of_hosts_that_have_them() {
    let options = ["--traffic", "storage-reads", "--messages", "20", "--depth", "4"];
    for operation in ["write", "read"] {
        let options = [&options[..], &["--operation", operation]].concat();
        let measured = together(&format!("storage-{operation}"), 6 * 2 * 20, &options);
        assert_eq!((&measured["kind"], &measured["blocks"]), (&"storage".into(), &240.into()), "{measured}");
        let latency: Vec<u64> =
            measured["latency_ps"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect();
        assert!(latency[1..].is_sorted() && latency[0] <= latency[3] && latency[1] > 1_000_000, "{measured}");
        let bandwidth = measured["bandwidth"].as_f64().unwrap();
        assert!((bandwidth * measured["took_ps"].as_f64().unwrap() / 1e12 - 240.0 * 4096.0).abs() < 1.0);
    }
}

/// Without times: links that train are waited for, and so are connections and messages. Who looks on changes nothing; what they write is
/// whole, also when a host has failed.
#[test]
fn traces_and_captures_of_a_built_in_topology() {
    let scratch = Scratch::new("observed");
    let [trace, pcap] = ["trace.json", "packets.pcapng"].map(|name| scratch.0.join(name));
    let files = ["--trace", trace.to_str().unwrap(), "--pcap", pcap.to_str().unwrap()];
    let more = ["--messages", "40", "--size", "64K"];
    let run = |more: &[&str]| sim(Path::new("two-hosts"), &scratch.0, &of(None, more)).output().unwrap();
    let (mut plain, mut seen) = (Sums::default(), Sums::default());
    plain.add(&run(&more));
    seen.add(&run(&[&more[..], &files].concat()));
    assert_eq!(plain.messages, 80);
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
        .map(|name| Running(sim(&file, &scratch.0, &of(Some(name), &["--until", "1e6"])).spawn().unwrap()))
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
        .map(|name| Running(sim(&file, &scratch.0, &of(Some(name), &more)).spawn().unwrap()))
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
        let output = sim(&scratch.file("t.toml", text), &scratch.0, more).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let pair = topology(1, false, "");
    assert!(refused(&pair, &["--until", "0.001", "--start", "0.0005"]).contains("is not done at 1 us"));
    assert!(refused(&pair, &["--start", "0.001"]).contains("traffic can't start at 1 us"));
    assert!(refused(&pair, &["--start", "5", "--until", "4"]).contains("--start must be before --until"));
    for (options, why) in [
        (&["--traffic", "ring-all-reduce", "--size", "6"][..], "elements of 4 bytes"),
        (&["--traffic", "tree-all-reduce", "--operation", "read"], "is send or write"),
        (
            &["--traffic", "ring-all-reduce", "--transport", "dc"],
            "ring-all-reduce goes over reliable connections",
        ),
        (&["--traffic", "storage-reads", "--operation", "send"], "--operation is write"),
        (&["--traffic", "storage-reads", "--targets", "8"], "8 of 8 hosts have blocks"),
        (&["--targets", "2"], "--targets is of --traffic storage-reads"),
    ] {
        let said = refused(&pair, options);
        assert!(said.contains(why), "{said}");
    }
    let alone = topology(2, false, "");
    let file = scratch.file("alone.toml", &alone);
    let output = sim(&file, &scratch.0, &of(Some("p0"), &["--patience", "0"])).output().unwrap();
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
        sums.add(&sim(Path::new("fat-tree:440"), &scratch.0, &of(None, &more)).output().unwrap());
        sums
    };
    let first = run();
    assert_eq!(first.messages, 440 * 3);
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
