//! Scenarios from end to end: every operation, transport and topology, and that a run says the same each time.

use hca_bench::program::run;
use hca_bench::{Outcome, Scenario};

fn outcome(options: &[(&str, &str)]) -> Outcome {
    let mut scenario = Scenario::default();
    for (key, value) in options {
        scenario.set(key, value).unwrap();
    }
    run(&scenario).unwrap_or_else(|why| panic!("{options:?}: {why}"))
}

/// Median in nanoseconds.
fn latency(options: &[(&str, &str)]) -> f64 {
    outcome(options).latency.expect("a latency").p50
}

const RATE: [(&str, &str); 4] = [("metric", "rate"), ("threads", "4"), ("qps", "8"), ("window", "32")];

#[test]
fn a_run_says_the_same_each_time() {
    let random = [("pick", "random"), ("op", "read"), ("span", "1M"), ("size", "64")];
    let options = [&RATE[..], &random[..]].concat();
    assert_eq!(outcome(&options), outcome(&options));
    let other = outcome(&[&options[..], &[("seed", "2")]].concat());
    assert_ne!(other, outcome(&options), "the seed decides where reads go, and when what is cached");
    assert_eq!(outcome(&[("op", "send")]), outcome(&[("op", "send")]));
}

#[test]
fn every_operation_has_a_latency() {
    let write = latency(&[("op", "write"), ("inline", "64")]);
    let send = latency(&[("op", "send"), ("inline", "64")]);
    let read = latency(&[("op", "read")]);
    let add = latency(&[("op", "fetch_add")]);
    let swap = latency(&[("op", "cmp_swap")]);
    assert!(write > 100.0 && write < send, "a send has a receive request and a completion: {write} {send}");
    assert!(read > write && add > write && swap > write, "these wait for an answer: {read} {add} {swap}");
    let large = latency(&[("op", "write"), ("size", "4096")]);
    assert!(large > write + 4096.0 * 0.08, "4 KiB take 328 ns on the wire: {large}");
}

#[test]
fn topologies_differ_by_their_hops() {
    let at = |topology| latency(&[("topology", topology), ("inline", "64")]);
    let (loopback, direct, switch) = (at("loopback"), at("back-to-back"), at("switch"));
    assert!(loopback < direct && direct + 150.0 < switch, "{loopback} {direct} {switch}");
    let far = latency(&[("inline", "64"), ("cable-ns", "510")]);
    assert!((far - direct - 500.0).abs() < 10.0, "500 ns of cable: {far} {direct}");
}

#[test]
fn every_transport_and_detection_has_a_rate() {
    for more in [
        &[("op", "write"), ("inline", "64")][..],
        &[("op", "write"), ("transport", "uc"), ("signal-every", "8"), ("window", "64")],
        &[("op", "send")],
        &[("op", "send"), ("transport", "ud"), ("post-list", "4"), ("count", "received")],
        &[("op", "send"), ("size", "0")],
        &[("op", "read"), ("detect", "memory"), ("signal-every", "8")],
        &[("op", "read"), ("cq-per-qp", "true"), ("pace", "oldest")],
        &[("op", "read"), ("pace", "batch"), ("bidirectional", "true")],
        &[("op", "fetch_add"), ("addresses", "16"), ("topology", "switch"), ("initiators", "2")],
        &[("op", "write"), ("mrs", "4"), ("span", "64K"), ("page-size", "8K"), ("topology", "loopback")],
    ] {
        let rate = outcome(&[&RATE[..], more].concat()).rate;
        assert!((1e5..1e9).contains(&rate), "{more:?}: {rate}");
    }
}

#[test]
fn long_messages_fill_the_link() {
    let bandwidth = |link| {
        let options =
            [("metric", "bandwidth"), ("size", "64K"), ("mtu", "4096"), ("qps", "2"), ("link", link)];
        outcome(&options).bandwidth * 8.0 / 1e9
    };
    // The payload's share of a packet on the wire: 4096 of 4096 + 28 bytes, of 4096 + 82 on Ethernet.
    for (link, most) in [("fdr", 54.55 * 0.9932), ("eth25", 25.0 * 0.9804)] {
        let found = bandwidth(link);
        assert!(found < most && found > most * 0.97, "{link}: {found} of {most} Gb/s");
    }
}

#[test]
fn numbers_of_the_profile_can_be_otherwise() {
    let slow = latency(&[("op", "read"), ("set", "pcie.mmio_write_ns=5000")]);
    assert!(slow > latency(&[("op", "read")]) + 4000.0, "{slow}");
    let run_with = |key: &str, value: &str| {
        let mut scenario = Scenario::default();
        scenario.set(key, value).and_then(|()| run(&scenario)).unwrap_err().to_string()
    };
    assert!(run_with("set", "pcie.no_such=1").contains("pcie.no_such"));
    assert!(run_with("set", "pcie.read_ns=fast").contains("pcie.read_ns"));
    assert!(run_with("profile", "connectx99").contains("connectx99"));
    assert!(run_with("host", "pdp11").contains("pdp11"));
}
