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
        &[
            ("op", "write"),
            ("transport", "uc"),
            ("signal-every", "8"),
            ("window", "64"),
            ("count", "received"),
        ],
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
    // The payload's share of a packet on the wire: 4096 of 4096 + 28 bytes, of 4096 + 82 with RoCE.
    for (link, most) in [("fdr", 54.55 * 0.9932), ("eth25", 25.0 * 0.9804)] {
        let found = bandwidth(link);
        assert!(found < most && found > most * 0.97, "{link}: {found} of {most} Gb/s");
    }
}

/// Nobody tells a sender of unreliable writes when they have arrived: the switch's credits do.
#[test]
fn a_switch_holds_unreliable_writers_back() {
    let incast = |transport: &str, initiators: &str| {
        let options = [
            ("metric", "bandwidth"),
            ("topology", "switch"),
            ("initiators", initiators),
            ("size", "2048"),
            ("transport", transport),
        ];
        outcome(&options).bandwidth * 8.0 / 1e9
    };
    // 2048 of 2048 + 28 bytes and more of 100 Gb/s; what fills the switch's buffers at first was before the measurement.
    for (transport, initiators) in [("uc", "4"), ("rc", "4")] {
        let found = incast(transport, initiators);
        assert!((90.0..99.0).contains(&found), "{initiators} of {transport}: {found} Gb/s");
    }
    // Where several share what comes, one queue pair's datagrams are held up less by what a receiver takes.
    let small = |targets: &str| {
        let options = [("metric", "rate"), ("topology", "switch"), ("op", "send"), ("transport", "ud")];
        outcome(&[&options[..], &[("targets", targets), ("size", "32"), ("inline", "64")]].concat()).rate
    };
    let (one, four) = (small("1"), small("4"));
    assert!(four > 1.2 * one, "{one} {four}");
    let wrong = Scenario::default().set("initiators", "64").unwrap_err().to_string();
    assert!(wrong.contains("63"), "one port is the target's: {wrong}");
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

#[test]
fn pcie_alone_is_latency_and_link() {
    let nfp = [("host", "nfp6000"), ("pcie", "gen3x8,mps=256,mrrs=512"), ("size", "64")];
    let at = |more: &[(&str, &str)]| latency(&[&nfp[..], more].concat());
    let near = at(&[("op", "pcie_read"), ("memory", "llc")]);
    let far = at(&[("op", "pcie_read"), ("memory", "dram")]);
    assert!((350.0..500.0).contains(&near) && (50.0..90.0).contains(&(far - near)), "{near} {far}");
    let both = at(&[("op", "pcie_write_read"), ("memory", "llc")]);
    let dma = at(&[("op", "pcie_read"), ("memory", "llc"), ("dma", "true")]);
    assert!(both > near + 100.0 && dma > near, "a write before, an engine: {both} {dma}");
    let bandwidth = |op, size| {
        let more = [("op", op), ("size", size), ("metric", "bandwidth"), ("dma", "true")];
        outcome(&[&nfp[..2], &more].concat()).bandwidth * 8.0 / 1e9
    };
    // Gen3 x8 carries 63 Gb/s; a TLP of 256 bytes has 24 more, and the data link layer its share.
    let large = bandwidth("pcie_write", "2048");
    assert!((48.0..57.0).contains(&large), "{large}");
    assert!(bandwidth("pcie_write", "64") < large && bandwidth("pcie_read_write", "2048") < 2.0 * large);
    let other_host = |host: &str| {
        let mut scenario = Scenario::default();
        for (key, value) in [("op", "pcie_read"), ("host", host)] {
            scenario.set(key, value).unwrap();
        }
        run(&scenario)
    };
    assert!(other_host("xeon").unwrap_err().to_string().contains("--host nfp6000"));
}

#[test]
fn rates_come_with_what_adapters_did() {
    let usage = |more: &[(&str, &str)]| outcome(&[&RATE[..], more].concat()).usage.expect("counts");
    // ATC16 table 1: inline writes that go with their doorbell read nothing and write a completion.
    let inline = usage(&[("op", "write"), ("size", "16"), ("inline", "16")]);
    let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.1 * wanted.max(0.5);
    assert!(inline.initiator.pcie_reads < 0.05 && near(inline.initiator.pcie_writes, 1.0), "{inline:?}");
    assert!(near(inline.initiator.stores, 1.0) && near(inline.target.pcie_writes, 1.0), "{inline:?}");
    // Not inline: the payload is read.
    let gathered = usage(&[("op", "write"), ("size", "64")]);
    assert!(near(gathered.initiator.pcie_reads, 1.0), "{gathered:?}");
    // Reads: their data is read at the target and written at the initiator, as its completion is.
    let read = usage(&[("op", "read"), ("size", "64")]);
    assert!(near(read.target.pcie_reads, 1.0) && near(read.initiator.pcie_writes, 2.0), "{read:?}");
    assert!(read.initiator.hits.contexts.is_some_and(|hits| hits > 0.99), "few queue pairs: {read:?}");
    // Doorbells of four requests: one store and one fetch for four.
    let listed = usage(&[("op", "write"), ("size", "16"), ("inline", "16"), ("post-list", "4")]);
    assert!(near(listed.initiator.stores, 0.25), "{listed:?}");
}
