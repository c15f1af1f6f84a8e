//! Frames in scenarios: what they cost of the wire, and which of the adapter's units holds them back.

use hca_bench::program::run;
use hca_bench::{Outcome, Scenario};

fn outcome(options: &[(&str, &str)]) -> Outcome {
    let mut scenario = Scenario::default();
    for (key, value) in [("op", "frame"), ("link", "eth100"), ("host", "snabb")].iter().chain(options) {
        scenario.set(key, value).unwrap();
    }
    run(&scenario).unwrap_or_else(|why| panic!("{options:?}: {why}"))
}

/// A sender that no processor holds back.
const GENERATOR: [(&str, &str); 5] =
    [("metric", "rate"), ("qps", "4"), ("post-list", "32"), ("signal-every", "32"), ("window", "1024")];

/// Frames per second.
fn rate(more: &[(&str, &str)]) -> f64 {
    outcome(&[&GENERATOR[..], more].concat()).rate
}

/// The same of those that arrive.
fn received(more: &[(&str, &str)]) -> f64 {
    rate(&[&[("count", "received"), ("threads", "4")][..], more].concat())
}

#[test]
fn a_slow_link_carries_frames_and_what_is_around_them() {
    const AROUND: f64 = 8.0 + 12.0;
    for size in ["64", "65", "128", "512", "1518", "9000"] {
        for (vlan, link, gbps) in [("0", "eth10", 10.0), ("5", "eth25", 25.0)] {
            let found = rate(&[("link", link), ("size", size), ("vlan", vlan), ("receive-queues", "0")]);
            let expected = gbps * 1e9 / 8.0 / (size.parse::<f64>().unwrap() + AROUND);
            assert!((found / expected - 1.0).abs() < 0.01, "{size} {link}: {found} of {expected}");
        }
    }
}

#[test]
fn large_sends_are_frames_with_headers_of_their_own() {
    const HEADERS: f64 = 14.0 + 20.0 + 20.0 + 4.0 + 8.0 + 12.0;
    for (size, mss) in [("64000", "1448"), ("60000", "500"), ("1000", "1448")] {
        let options = [
            ("op", "lso"),
            ("metric", "bandwidth"),
            ("link", "eth10"),
            ("size", size),
            ("mss", mss),
            ("qps", "2"),
            ("window", "64"),
            ("iterations", "2000"),
        ];
        let found = outcome(&options).bandwidth * 8.0;
        let (size, mss): (f64, f64) = (size.parse().unwrap(), mss.parse().unwrap());
        let expected = 10e9 * size / (size + (size / mss).ceil() * HEADERS);
        assert!((found / expected - 1.0).abs() < 0.01, "{size} {mss}: {found} of {expected}");
    }
}

/// SNABB: a queue sends 16 M/s, four or more 64 to 67.
#[test]
fn send_queues_work_side_by_side_up_to_the_pipeline() {
    let of = |queues| rate(&[("size", "68"), ("qps", queues), ("receive-queues", "0")]) / 1e6;
    let (one, two, four, eight) = (of("1"), of("2"), of("4"), of("8"));
    assert!((15.0..17.0).contains(&one) && (1.9..2.1).contains(&(two / one)), "{one} {two}");
    assert!((60.0..68.0).contains(&four) && eight >= four * 0.99 && eight < 68.0, "{four} {eight}");
}

#[test]
fn receive_queues_work_side_by_side() {
    let of = |queues| received(&[("size", "64"), ("receive-queues", queues), ("flows", "512")]) / 1e6;
    let (one, two, four) = (of("1"), of("2"), of("4"));
    assert!(two > 1.5 * one && four > two, "{one} {two} {four}");
}

#[test]
fn flow_tables_take_their_time() {
    let of = |tables| received(&[("size", "64"), ("tables", tables)]);
    let (few, many) = (of("1"), of("32"));
    assert!(many < 0.5 * few, "32 look-ups of 2.3 ns are more than a frame takes otherwise: {few} {many}");
    let large = |tables| received(&[("size", "1518"), ("tables", tables)]);
    assert!((large("1") / large("32") - 1.0).abs() < 0.02, "large frames leave the time for it");
}

#[test]
fn a_frame_to_and_fro_has_a_latency() {
    let of = |more: &[(&str, &str)]| {
        outcome(&[&[("metric", "latency")][..], more].concat()).latency.expect("a latency").p50
    };
    let (small, large) = (of(&[("size", "64")]), of(&[("size", "1518")]));
    assert!(small > 500.0 && large > small + 1454.0 * 0.08, "it is serialised: {small} {large}");
    assert!(of(&[("size", "64"), ("inline", "64")]) + 300.0 < small, "no read of its data");
    assert!(of(&[("size", "64"), ("topology", "switch")]) > small + 150.0);
    assert!(of(&[("size", "64"), ("tables", "32")]) > small + 31.0 * 2.0);
}

#[test]
fn several_send_to_one() {
    let options = [("topology", "switch"), ("initiators", "3"), ("size", "1518"), ("qps", "1")];
    let found = received(&[&options[..], &[("threads", "1")]].concat()) * 1538.0 * 8.0 / 1e9;
    assert!((90.0..100.1).contains(&found), "the target's link is full: {found} Gb/s");
}
