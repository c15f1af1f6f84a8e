//! The adapter's clock in a stock guest: what a program reads from completions is what `softhca bench` says of the
//! same requests, although the guest is hundreds of times slower than a host.

use hca_bench::Scenario;
use hca_tests::guests::{Job, Session};

/// Operation, size, reads and atomics outstanding.
const CASES: [(&str, u64, u64); 7] = [
    ("read", 8, 1),
    ("read", 4096, 1),
    ("read", 65536, 1),
    ("read", 65536, 16),
    ("fetch_add", 8, 1),
    ("write", 2, 1),
    ("write", 65536, 1),
];
/// Largest relative difference.
const TOLERANCE: f64 = 0.05;

/// Nanoseconds from one completion to the next.
fn modelled(op: &str, size: u64, outstanding: u64) -> f64 {
    let mut scenario = Scenario::default();
    let (size, outstanding) = (size.to_string(), outstanding.to_string());
    for (key, value) in [
        ("op", op),
        ("size", &size),
        ("outstanding", &outstanding),
        ("topology", "loopback"),
        ("metric", "rate"),
        ("window", "128"),
        ("post-list", "64"),
    ] {
        scenario.set(key, value).expect("an option");
    }
    1e9 / hca_bench::program::run(&scenario).expect("a scenario that runs").rate
}

#[test]
fn a_guest_reads_modelled_latencies() {
    let lines: Vec<String> =
        CASES.iter().map(|(op, size, depth)| format!("python3 timestamps.py {op} {size} {depth}")).collect();
    let job = Job::new().step("timestamps", lines.join(" && "));
    let done = Session::new("loopback").copy("guest/timestamps.py").host("a", &job).jobs_pass();
    let printed = done.printed("a", "timestamps");
    for (op, size, depth) in CASES {
        let head = format!("{op} {size} {depth} ");
        let measured = printed.lines().find_map(|l| l.strip_prefix(&head)).expect("a line for each case");
        let measured: f64 = measured.trim().parse().expect("nanoseconds");
        let modelled = modelled(op, size, depth);
        let difference = (measured - modelled).abs() / modelled;
        eprintln!("{head}: in the guest {measured} ns, by the benchmark {modelled:.2} ns");
        assert!(difference <= TOLERANCE, "{head}: {measured} ns in the guest, {modelled:.2} ns modelled");
    }
}
