//! Hosts in processes of their own, over PCI Express: what happens does not depend on who is where, and who is gone is missed.

use std::io::Read;
use std::process::Child;

use crate::common::{Running, Scratch, Sums, sim};

/// Two hosts at a switch and one at another, whose adapters are in so many processes.
fn topology(processes: usize, hca: &str) -> String {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    let of = |node: usize| format!("process = \"p{}\"\n", node * processes / 2);
    (0..processes).for_each(|process| text += &format!("[[process]]\nname = \"p{process}\"\n"));
    for switch in 0..2 {
        text += &format!("[[switch]]\nname = \"s{switch}\"\nports = 8\n{}", of(switch));
    }
    for (host, switch) in HOSTS.into_iter().zip([0, 0, 1]) {
        text += &format!("[[host]]\nname = \"{host}\"\n{}[[host.hca]]\n", of(switch));
        text += &format!("simbricks = \"listen:{host}.pci\"\n{hca}\n");
        text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"s{switch}\"]\n");
    }
    text += "[[link]]\nbetween = [\"s0/8\", \"s1/8\"]\nwidth = 1\n";
    if processes > 1 {
        text += "simbricks = \"listen:trunk.sock\"\n";
    }
    text
}

const HOSTS: [&str; 3] = ["a", "b", "c"];

/// Runs it: adapters in so many processes, hosts together or each in its own.
fn run(name: &str, processes: usize, together: bool, operation: &[&str]) -> Sums {
    let scratch = Scratch::new(name);
    let file = scratch.file("topology.toml", &topology(processes, ""));
    let common = ["--messages", "3", "--start", "2", "--until", "3", "--json"];
    let start = |more: &[&str]| -> Child {
        sim(&file, &scratch.0, &[&common[..], operation, more].concat()).spawn().unwrap()
    };
    let mut children = Vec::new();
    for process in 0..processes {
        children.push(start(&["--process", &format!("p{process}")]));
    }
    match together {
        true => children.push(start(&["--host", "a", "--host", "b/hca0", "--host", "c"])),
        false => children.extend(HOSTS.iter().map(|host| start(&["--host", host]))),
    }
    let mut sums = Sums::default();
    for child in children {
        sums.add(&child.wait_with_output().unwrap());
    }
    sums
}

/// Messages of all to all.
const FLOWS: u64 = 3 * 3 * 2;

/// The same however it is cut, and again.
fn equal(name: &str, messages: u64, operation: &[&str]) {
    let one = run(&format!("{name}-1"), 1, true, operation);
    assert_eq!(one.messages, messages, "{one:?}");
    assert!(one.counts.iter().all(|count| *count >= messages.min(16)), "{one:?}");
    assert_eq!(run(&format!("{name}-2"), 2, false, operation), one);
    assert_eq!(run(&format!("{name}-3"), 1, false, operation), one);
    assert_eq!(run(&format!("{name}-4"), 2, true, operation), one);
}

#[test]
fn sends_of_hosts_elsewhere() {
    equal("pcie-send", FLOWS, &["--size", "6000"]);
}

#[test]
fn dynamic_connections_of_hosts_elsewhere() {
    equal("pcie-dc", FLOWS, &["--size", "6000", "--transport", "dc"]);
}

#[test]
fn writes_of_hosts_elsewhere() {
    equal("pcie-write", FLOWS, &["--size", "20000", "--operation", "write"]);
}

#[test]
fn reads_of_hosts_elsewhere() {
    equal("pcie-read", FLOWS, &["--size", "20000", "--operation", "read"]);
}

#[test]
fn atomic_operations_of_hosts_elsewhere() {
    equal("pcie-atomic", FLOWS, &["--size", "8", "--operation", "atomic"]);
}

/// Of three hosts each sends and gets a chunk four times, three rounds long.
#[test]
fn a_ring_all_reduce_of_hosts_elsewhere() {
    equal("pcie-ring", 3 * 3 * 4, &["--traffic", "ring-all-reduce", "--size", "30000"]);
}

/// Two slices, over two cables each way, three rounds long.
#[test]
fn a_tree_all_reduce_of_hosts_elsewhere() {
    let options = ["--traffic", "tree-all-reduce", "--size", "70000", "--operation", "write"];
    equal("pcie-tree", 3 * 2 * 4, &options);
}

/// Two clients read three blocks of one host.
#[test]
fn storage_reads_of_hosts_elsewhere() {
    let options = ["--traffic", "storage-reads", "--size", "20000", "--depth", "2"];
    equal("pcie-storage", 2 * 3, &options);
    equal("pcie-storage-read", 2 * 3, &[&options[..], &["--operation", "read"]].concat());
}

/// A host is killed, then an adapter's process: who is left says who is gone, and ends with an error.
#[test]
fn who_is_killed_is_missed() {
    for killed_is_host in [true, false] {
        let scratch = Scratch::new(&format!("pcie-killed-{killed_is_host}"));
        let file = scratch.file("topology.toml", &topology(1, ""));
        // Far more model time than anybody waits for.
        let start = |more: &[&str]| {
            Running(sim(&file, &scratch.0, &[&["--until", "1e6"][..], more].concat()).spawn().unwrap())
        };
        let mut ends = [start(&["--process", "p0"]), start(&["--host", "a", "--host", "b", "--host", "c"])];
        if killed_is_host {
            ends.reverse();
        }
        let [mut gone, mut left] = ends;
        // It says how far it is once a second: by then it simulates.
        let mut stderr = gone.0.stderr.take().unwrap();
        let (mut said, mut told) = (Vec::new(), [0; 64]);
        while !String::from_utf8_lossy(&said).contains(" us a second") {
            let len = stderr.read(&mut told).unwrap();
            assert!(len > 0, "{}", String::from_utf8_lossy(&said));
            said.extend(&told[..len]);
        }
        gone.0.kill().unwrap();
        gone.0.wait().unwrap();
        let (mut words, status) = (String::new(), left.0.wait().unwrap());
        left.0.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        assert_eq!(status.code(), Some(1), "{words}");
        let whom = if killed_is_host { "the host of " } else { "the adapter " };
        assert!(words.contains(whom) && words.contains("(PCI Express): the peer has ended"), "{words}");
    }
}

#[test]
fn what_cannot_be_is_said() {
    let scratch = Scratch::new("pcie-refused");
    let refused = |text: &str, more: &[&str]| {
        let output = sim(&scratch.file("t.toml", text), &scratch.0, more).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let slow = refused(&topology(1, "pcie_latency_ns = 141"), &[]);
    assert!(slow.contains("a/hca0: host.hca.pcie_latency_ns: 141 ns"), "{slow}");
    assert!(slow.contains("the 140 ns of pcie.mmio_write_ns in profile connectx4"), "{slow}");
    let here = "[[host]]\nname = \"a\"\n[[host.hca]]\n";
    let why = refused(here, &["--host", "a"]);
    assert!(why.contains("a/hca0: its host is not elsewhere"), "{why}");
    assert!(refused(here, &["--host", "x"]).contains("there is no adapter \"x\""));
    let alone = refused(&topology(1, ""), &["--patience", "0"]);
    assert!(alone.contains("nobody has connected"), "{alone}");
    let alone = refused(&topology(1, ""), &["--host", "a", "--patience", "0"]);
    assert!(alone.contains("nobody listens there"), "{alone}");
}
