//! RoCE in scenarios: every operation and transport over every look of its packets, and what those cost of the wire.

use hca_bench::program::run;
use hca_bench::stats::Random;
use hca_bench::{Outcome, Scenario};

fn outcome(options: &[(&str, &str)]) -> Outcome {
    let mut scenario = Scenario::default();
    for (key, value) in options {
        scenario.set(key, value).unwrap();
    }
    run(&scenario).unwrap_or_else(|why| panic!("{options:?}: {why}"))
}

const LOOKS: [&str; 3] = ["v1", "v2", "v2-ipv6"];

/// Bytes of a request's packet on the wire beside its payload, where it has no headers beyond the BTH.
fn overhead(roce: &str, vlan: bool) -> u64 {
    let (preamble, gap, fcs, ethernet) = (8, 12, 4, 14);
    let (bth, icrc) = (12, 4);
    let network = match roce {
        "v1" => 40,
        "v2" => 20 + 8,
        _ => 40 + 8,
    };
    preamble + ethernet + if vlan { 4 } else { 0 } + network + bth + icrc + fcs + gap
}

/// The rate of payload is what preambles, gaps and headers leave of the link.
#[test]
fn payload_has_what_the_headers_leave_of_the_wire() {
    let mut random = Random::new(15);
    let mut pick = |of: &[&'static str]| of[random.below(of.len() as u64) as usize];
    for _ in 0..16 {
        let (link, roce, vlan) = (pick(&["eth10", "eth25", "eth40"]), pick(&LOOKS), pick(&["0", "9"]));
        let (mtu, size) = (pick(&["512", "1024", "2048", "4096"]), pick(&["4096", "10000", "65536"]));
        let op = pick(&["write", "send"]);
        let options = [
            ("metric", "bandwidth"),
            ("link", link),
            ("roce", roce),
            ("vlan", vlan),
            ("mtu", mtu),
            ("size", size),
            ("op", op),
            ("qps", "2"),
            ("iterations", "400"),
        ];
        let found = outcome(&options).bandwidth * 8.0;
        let (mtu, size): (u64, u64) = (mtu.parse().unwrap(), size.parse().unwrap());
        // The first packet of a write says where it goes (RETH); the last is padded to words.
        let beside = overhead(roce, vlan != "0") * size.div_ceil(mtu) + if op == "write" { 16 } else { 0 };
        let wire = size.next_multiple_of(4) + beside;
        let rate: f64 = link[3..].parse::<f64>().unwrap() * 1e9;
        let expected = rate * size as f64 / wire as f64;
        // Beginning and end of a measurement are each within a message of a packet's end.
        assert!((found / expected - 1.0).abs() < 5e-3, "{options:?}: {found} of {expected}");
    }
}

#[test]
fn every_operation_passes_every_look() {
    for roce in LOOKS {
        for more in [
            &[("op", "write"), ("inline", "64")][..],
            &[("op", "send")],
            &[("op", "send"), ("transport", "ud")],
            &[("op", "send"), ("transport", "uc"), ("vlan", "3")],
            &[("op", "read")],
            &[("op", "fetch_add")],
        ] {
            for topology in ["back-to-back", "switch", "loopback"] {
                let all = [&[("link", "eth100"), ("roce", roce), ("topology", topology)][..], more].concat();
                let p50 = outcome(&all).latency.expect("a latency").p50;
                assert!((100.0..10_000.0).contains(&p50), "{all:?}: {p50}");
            }
        }
    }
}

/// A larger header takes longer, a faster link less.
#[test]
fn latency_follows_the_bytes_on_the_wire() {
    let at = |link, roce, vlan| {
        let options = [("link", link), ("roce", roce), ("vlan", vlan), ("size", "64"), ("inline", "64")];
        outcome(&options).latency.expect("a latency").p50
    };
    // Programs look at intervals: a latency is a multiple of that.
    let look = 10.0;
    let (v4, v6) = (at("eth10", "v2", "0"), at("eth10", "v2-ipv6", "0"));
    assert!((v6 - v4 - 20.0 * 0.8).abs() < look, "20 bytes of 0.8 ns: {v4} {v6}");
    assert!((at("eth10", "v2", "7") - v4 - 4.0 * 0.8).abs() < look);
    assert!(at("eth25", "v2", "0") < v4 && at("eth200", "v2", "0") < at("eth25", "v2", "0"));
}
