//! The adapter's clock in a stock guest: what a program reads from completions is what `softhca bench` says of the
//! same requests, although the guest is hundreds of times slower than a host; and the clock that a program can look at
//! (`ibv_query_rt_values_ex`) is the one that the server's trace shows.

use hca_bench::Scenario;
use hca_model::Ps;
use hca_model::timing::{Profile, Timing};
use hca_tests::files::Temporary;
use hca_tests::guests::{Job, Session};
use serde_json::Value;

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

/// The clock as a program saw it, in cycles.
struct Clock {
    khz: u64,
    qpn: u64,
    /// Before it posted, at its first completion, at its last, behind them.
    readings: [u64; 4],
}

impl Clock {
    /// One for each program, in the order that they ran.
    fn all(printed: &str) -> Vec<Self> {
        let lines = printed.lines().filter_map(|l| l.strip_prefix("clock "));
        lines
            .map(|line| {
                let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
                let [khz, qpn, readings @ ..] = &numbers[..] else { panic!("{line}") };
                Self { khz: *khz, qpn: *qpn, readings: readings.try_into().expect("four readings") }
            })
            .collect()
    }
}

/// Queue pair and model time of the completions in a trace, in order.
fn completions(trace: &str) -> Vec<(u64, Ps)> {
    let events: Vec<Value> = serde_json::from_str(trace).expect("a trace");
    let cqes = events.iter().filter(|e| e["name"] == "CQE");
    let at = |event: &Value| Ps((event["ts"].as_f64().expect("microseconds") * 1e6).round() as u64);
    cqes.map(|e| (e["args"]["qpn"].as_u64().expect("a queue pair"), at(e))).collect()
}

/// What each program read is the model's time in cycles of the profile's frequency: to the cycle in completions, and
/// `ibv_query_rt_values_ex` before and behind them reads times before and behind.
fn the_clock_is_the_model_s(clocks: &[Clock], trace: &str) {
    let khz = Timing::new(&Profile::default()).timer_khz();
    let completions = completions(trace);
    assert_eq!(clocks.len(), CASES.len());
    for Clock { khz: told, qpn, readings } in clocks {
        assert_eq!(*told, khz, "the driver knows the profile's frequency");
        assert!(readings.is_sorted() && readings[0] < readings[3], "{readings:?}");
        let [before, first, last, after] = *readings;
        let modelled: Vec<u64> = completions.iter().filter(|c| c.0 == *qpn).map(|c| c.1.ticks(khz)).collect();
        // Queue pairs of two programs may have the same number, one after the other.
        let of_this = |ticks: &&u64| (before..=after).contains(*ticks);
        let inside: Vec<u64> = modelled.iter().filter(of_this).copied().collect();
        assert_eq!((inside.first(), inside.last()), (Some(&first), Some(&last)), "QP {qpn:#x}: {readings:?}");
    }
}

#[test]
fn a_guest_reads_modelled_latencies() {
    let lines: Vec<String> =
        CASES.iter().map(|(op, size, depth)| format!("python3 timestamps.py {op} {size} {depth}")).collect();
    let job = Job::new().step("timestamps", lines.join(" && "));
    let trace = Temporary::new("clock.json");
    let session = Session::new("loopback").serve(format!("--trace={}", trace.path().display()));
    let done = session.copy("guest/timestamps.py").host("a", &job).jobs_pass();
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
    the_clock_is_the_model_s(&Clock::all(printed), &trace.text());
}
