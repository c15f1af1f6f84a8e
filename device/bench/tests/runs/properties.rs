//! What holds in every run, whatever the numbers of a profile are: each is asked of all.

use hca_bench::program::run;
use hca_bench::{Outcome, Scenario, numbers};
use hca_model::timing::Profile;

fn outcome(options: &[(&str, &str)]) -> Outcome {
    let mut scenario = Scenario::default();
    for (key, value) in options {
        scenario.set(key, value).unwrap();
    }
    run(&scenario).unwrap_or_else(|why| panic!("{options:?}: {why}"))
}

/// A run for each profile that the model has, with the options and its name.
fn of_each_profile(options: &[(&str, &str)], mut look: impl FnMut(&Outcome, &str)) {
    for profile in Profile::names() {
        look(&outcome(&[options, &[("profile", profile)]].concat()), &format!("{profile} {options:?}"));
    }
}

/// A difference that rounding and the windows of a measurement may make.
const SLACK: f64 = 1.02;

#[test]
fn what_is_outstanding_is_rate_times_latency() {
    for options in [
        &[("op", "write"), ("metric", "rate"), ("inline", "64")][..],
        &[("op", "read"), ("metric", "rate"), ("threads", "4"), ("qps", "8"), ("window", "32")],
        &[("op", "read"), ("metric", "rate"), ("detect", "memory"), ("signal-every", "8")],
        &[("op", "read"), ("metric", "rate"), ("pace", "batch"), ("window", "64")],
        &[("op", "send"), ("metric", "bandwidth"), ("size", "64K"), ("bidirectional", "true")],
        &[
            ("op", "write"),
            ("metric", "bandwidth"),
            ("size", "16K"),
            ("topology", "switch"),
            ("initiators", "2"),
            ("targets", "2"),
        ],
        &[("op", "write"), ("metric", "rate"), ("signal-every", "64"), ("window", "256"), ("qps", "2")],
        &[("op", "write"), ("metric", "bandwidth"), ("size", "4096"), ("link", "eth25"), ("qps", "3")],
        &[("op", "frame"), ("metric", "rate"), ("size", "128"), ("link", "eth100"), ("post-list", "16")],
    ] {
        of_each_profile(options, |found, which| {
            let differs = found.little.expect("requests are outstanding");
            assert!(differs.abs() < 0.1 && !found.is_unsteady(), "{which}: {differs}");
        });
    }
    assert_eq!(outcome(&[("op", "write")]).little, None, "one at a time");
}

/// But for the first byte of a further packet: the unit's time for the completion passes while the packet before is written to the
/// host, and that may be more than the byte costs.
#[test]
fn a_larger_message_is_never_faster() {
    for (op, more) in [
        ("write", &[][..]),
        ("send", &[]),
        ("read", &[]),
        ("write", &[("link", "eth100")]),
        ("send", &[("mtu", "1024")]),
    ] {
        for profile in Profile::names() {
            let mut last = 0.0;
            for size in ["8", "64", "65", "512", "1024", "4096", "16384", "65536"] {
                let options = [&[("op", op), ("size", size), ("profile", profile)], more].concat();
                let latency = outcome(&options).latency.expect("one").p50;
                assert!(latency * SLACK >= last, "{options:?}: {latency} after {last}");
                last = latency;
            }
        }
    }
}

#[test]
fn what_is_not_signalled_is_never_slower() {
    for more in [&[("op", "write"), ("inline", "64"), ("size", "16")][..], &[("op", "read"), ("size", "64")]]
    {
        for profile in Profile::names() {
            let rate = |every| {
                let options = [("metric", "rate"), ("signal-every", every), ("qps", "2"), ("window", "128")];
                outcome(&[&options[..], more, &[("profile", profile)]].concat()).rate
            };
            let (all, few) = (rate("1"), rate("16"));
            assert!(few * SLACK >= all, "{profile} {more:?}: {all} {few}");
        }
    }
}

/// Where the units say how many there are: a READ needs them there and back. A unit that has to have a payload read may take longer
/// for that (`send.gather_ns`: SMART has 111 M READ/s and 93 M WRITE/s of a ConnectX-6), so that is asked of WRITEs that bring theirs.
#[test]
fn reads_never_beat_writes() {
    for profile in Profile::names() {
        let numbers = numbers::of_profile(profile).expect("it is one of them");
        let gather = numbers.iter().find(|number| number.key == "send.gather_ns").expect("all have it");
        let (size, inline) = if gather.value > 0.0 { ("8", "8") } else { ("32", "0") };
        for (qps, threads, window) in [("1", "1", "128"), ("14", "14", "128"), ("28", "14", "64")] {
            let rate = |op| {
                let options = [("metric", "rate"), ("size", size), ("qps", qps), ("threads", threads)];
                let more = [("op", op), ("window", window), ("profile", profile), ("inline", inline)];
                outcome(&[&options[..], &more].concat()).rate
            };
            let (read, write) = (rate("read"), rate("write"));
            assert!(read <= write * SLACK, "{profile} {qps} {threads} {window}: {read} {write}");
        }
    }
}

#[test]
fn no_link_carries_more_than_it_can() {
    for (link, gbps) in [("edr", 100.0), ("fdr", 54.6), ("eth10", 10.0), ("eth40", 40.0), ("eth200", 200.0)] {
        for size in ["2048", "16K", "64K"] {
            for (both, ways) in [("false", 1.0), ("true", 2.0)] {
                let options =
                    [("metric", "bandwidth"), ("size", size), ("link", link), ("bidirectional", both)];
                let found = outcome(&[&options[..], &[("qps", "2")]].concat()).bandwidth * 8e-9;
                assert!(found <= gbps * ways, "{options:?}: {found} Gb/s");
            }
        }
    }
}

#[test]
fn units_are_never_busier_than_all_the_time() {
    for options in [
        &[("op", "read"), ("metric", "rate"), ("threads", "14"), ("qps", "28"), ("window", "64")][..],
        &[("op", "write"), ("metric", "rate"), ("threads", "14"), ("qps", "14"), ("inline", "16")],
        &[("op", "send"), ("metric", "rate"), ("threads", "14"), ("qps", "14"), ("post-list", "16")],
        &[("op", "write"), ("metric", "bandwidth"), ("size", "64K"), ("mtu", "256")],
    ] {
        of_each_profile(options, |found, which| {
            let usage = found.usage.as_ref().expect("adapters");
            for share in [&usage.initiator, &usage.target] {
                assert!(share.busy > 0.0 && share.busy <= SLACK, "{which}: {}", share.busy);
            }
        });
    }
}

/// Nor two of them: what two initiators send to two targets by a switch, in windows of the meter that cut bursts.
#[test]
fn two_links_carry_no_more_than_both() {
    for op in ["write", "send"] {
        for size in ["2048", "16K"] {
            let options = [("op", op), ("size", size), ("metric", "bandwidth"), ("topology", "switch")];
            let found =
                outcome(&[&options[..], &[("initiators", "2"), ("targets", "2"), ("qps", "2")]].concat());
            let gbps = found.bandwidth * 8e-9;
            assert!(gbps <= 200.0 && gbps > 140.0, "{op} {size}: {gbps} Gb/s");
        }
    }
}

/// As perftest lets many queue pairs share a target: thousands have their rings.
#[test]
fn thousands_of_queue_pairs_have_room() {
    let options = [("op", "write"), ("metric", "rate"), ("qps", "4096"), ("threads", "16"), ("window", "64")];
    let found = outcome(&[&options[..], &[("iterations", "4000")]].concat());
    assert!(found.rate > 1e6 && !found.is_unsteady(), "{} {:?}", found.rate, found.little);
}

/// Two initiators that ask the same of one target get the same share of it.
#[test]
fn flows_share_a_unit_fairly() {
    for (op, size) in [("write", "64"), ("write", "16K"), ("read", "64"), ("read", "16K")] {
        for profile in Profile::names() {
            let options =
                [("op", op), ("size", size), ("metric", "rate"), ("topology", "switch"), ("qps", "4")];
            let of = |initiators: &str| {
                let more = [("initiators", initiators), ("threads", "4"), ("profile", profile)];
                let own = outcome(&[&options[..], &more].concat()).usage.expect("adapters").initiator;
                // What the first initiator did per operation, if each has its share of all.
                if op == "read" { own.pcie_writes } else { own.stores }
            };
            let (alone, shared) = (of("1"), of("2"));
            assert!((shared / alone - 1.0).abs() < 0.05, "{profile} {op} {size}: {shared} of {alone}");
        }
    }
}

/// Each of 32 queue pairs has 16 READs on their way at most, more wait in its queue. Fetched one by one, some, or in parts, all, they make
/// a difference of some percent; with a host at Gen4, which answers fetches sooner, one more.
#[test]
fn deeper_queues_are_no_faster_beyond_a_cache() {
    for profile in Profile::names() {
        let some = if profile == "connectx6dx" { 1.07 } else { 1.06 };
        let options =
            [("op", "read"), ("size", "8"), ("metric", "rate"), ("profile", profile), ("link", "hdr")];
        let at = |window| {
            outcome(&[&options[..], &[("threads", "32"), ("qps", "32"), ("window", window)]].concat()).rate
        };
        let mut least = at("16");
        for window in ["32", "48", "96"] {
            let rate = at(window);
            assert!(rate <= least * some, "{profile}, window {window}: {rate} after {least}");
            least = least.min(rate);
        }
    }
}

/// What units receive does not take from those that send: where both ends write, an ACK costs, and the completion it brings.
#[test]
fn unreliable_writes_are_no_slower_than_reliable_ones() {
    for profile in Profile::names() {
        let rate = |transport| {
            let options = [("op", "write"), ("size", "16"), ("inline", "64"), ("metric", "rate")];
            let more = [("bidirectional", "true"), ("threads", "14"), ("qps", "28"), ("profile", profile)];
            outcome(&[&options[..], &more, &[("transport", transport)]].concat()).rate
        };
        let (rc, uc) = (rate("rc"), rate("uc"));
        assert!(rc <= uc * SLACK, "{profile}: {rc} {uc}");
    }
}
