//! Dynamic connections and registrations in scenarios.

use hca_bench::program::run;
use hca_bench::{Outcome, Scenario};

fn outcome(options: &[(&str, &str)]) -> Outcome {
    let mut scenario = Scenario::default();
    for (key, value) in options {
        scenario.set(key, value).unwrap();
    }
    run(&scenario).unwrap_or_else(|why| panic!("{options:?}: {why}"))
}

const RATE: [(&str, &str); 5] =
    [("metric", "rate"), ("threads", "4"), ("qps", "8"), ("window", "32"), ("size", "32")];

fn rate(options: &[(&str, &str)]) -> f64 {
    outcome(&[&RATE[..], options].concat()).rate
}

#[test]
fn every_operation_goes_over_dynamic_connections() {
    for link in ["edr", "eth100"] {
        for op in ["write", "send", "read", "fetch_add", "cmp_swap"] {
            let at = |transport| {
                let options = [("op", op), ("transport", transport), ("link", link), ("inline", "64")];
                outcome(&options).latency.expect("a latency").p50
            };
            // Its packets have a header more, and its WQE an address vector: nothing else while it stays with one target.
            let (rc, dc) = (at("rc"), at("dc"));
            assert!(dc >= rc && dc < rc + 100.0, "{op} {link}: {rc} {dc}");
        }
    }
    let received = rate(&[("op", "send"), ("transport", "dc"), ("count", "received")]);
    assert!(received > 1e6, "{received}");
}

/// Who goes to another target ends one connection and begins another.
#[test]
fn going_from_target_to_target_costs_round_trips() {
    let dc = [("op", "write"), ("transport", "dc")];
    let one = rate(&dc);
    for others in [
        &[("dcts", "4")][..],
        &[("topology", "switch"), ("targets", "4")],
        &[("topology", "switch"), ("initiators", "3"), ("bidirectional", "true")],
    ] {
        let many = rate(&[&dc[..], others].concat());
        assert!(many * 2.0 < one && many > one / 50.0, "{others:?}: {many} of {one}");
    }
    // More initiators have more connections at a time.
    let switched = |qps| rate(&[&dc[..], &[("dcts", "4"), ("qps", qps)]].concat());
    let (few, more) = (switched("8"), switched("32"));
    assert!(more > 2.0 * few, "{few} {more}");
}

#[test]
fn a_registration_reads_its_list_or_has_it() {
    let umr = [("op", "umr"), ("size", "40K")];
    let at = |more: &[(&str, &str)]| outcome(&[&umr[..], more].concat()).latency.expect("a latency").p50;
    let (read, inline) = (at(&[]), at(&[("inline", "128")]));
    assert!(read > inline + 400.0, "a read of the host's memory, and what loading takes: {read} {inline}");
    // Lists are loaded one after the other, whichever queue pair they are of: UMR's 1.3 M/s. Those in WQEs are not.
    let rate = |more: &[(&str, &str)]| {
        let few = [("metric", "rate"), ("threads", "8"), ("qps", "8"), ("window", "16")];
        outcome(&[&umr[..], &few, &[("profile", "connectx5")], more].concat())
    };
    let (read, inline) = (rate(&[]), rate(&[("inline", "128")]));
    assert!((1.25e6..1.35e6).contains(&read.rate), "{}", read.rate);
    assert!(inline.rate > 4.9e6, "{}", inline.rate);
    assert!(!read.is_unsteady() && !inline.is_unsteady());
    let reads = read.usage.expect("counts").initiator.pcie_reads;
    assert!((1.0..1.6).contains(&reads), "its list, and some of the WQEs: {reads}");
}

#[test]
fn a_longer_list_takes_longer() {
    let at = |size| outcome(&[("op", "umr"), ("size", size)]).latency.expect("a latency").p50;
    let (short, long) = (at("4K"), at("128M"));
    // 32768 pages are 256 KiB of list, at 126 Gb/s.
    assert!(long > short + 16_000.0 && long < short + 30_000.0, "{short} {long}");
}
