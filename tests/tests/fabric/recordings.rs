//! What traces and captures may cost: files that end at their limit, and packets of adapters that have spent their share.

use hca_tests::fabric::Plan;
use hca_tests::files::Temporary;
use hca_tests::in_process::Simulation;
use hca_tests::packets::checksums;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig;
use hca_trace::{Observer, Options as Recorded};

use hca_driver::SendOp;

const BATCH: u64 = 32;
const LEN: usize = 1024;

/// Runs traffic between two adapters behind a switch, and takes what was recorded after each of many batches. Returns the observer.
fn observed(options: &Recorded, quotas: &[(&str, u64)]) -> (Simulation, Observer) {
    let simulation = Simulation::new(Plan::around(&[2], 1).world(1));
    let mut observer = simulation.world(|world, _| Observer::new(options, world)).expect("it starts");
    observer.set_quotas(quotas.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)));
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair = Pair::connect(hcas, &Options::default()).expect("connect");
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    for _ in 0..20 {
        pair.batch(BATCH, SendOp::Write { address, rkey, imm: None }, LEN);
        simulation.world(|world, _| {
            observer.take(world).expect("written");
            assert_eq!(world.drain_trace().count() + world.drain_packets().len(), 0, "nothing piles up");
        });
    }
    (simulation, observer)
}

#[test]
fn files_end_at_their_limit() {
    /// The commands that bring two adapters up are some 630,000 of it: it ends among the records of their traffic.
    const TRACE: u64 = 750_000;
    const PCAP: u64 = 50_000;
    /// No record and no packet of this traffic is longer: a command with capabilities has 4 KiB of input, in hexadecimal digits.
    const ONE: u64 = 10_000;
    let (trace, pcap) = (Temporary::new("limited.json"), Temporary::new("limited.pcapng"));
    let options = Recorded {
        trace: Some(trace.path().to_owned()),
        pcap: Some(pcap.path().to_owned()),
        trace_limit: Some(TRACE),
        pcap_limit: Some(PCAP),
        ..Recorded::default()
    };
    let (simulation, mut observer) = observed(&options, &[]);
    let news = observer.news();
    assert_eq!(news.len(), 2, "{news:?}");
    assert!(["the trace", "the capture"].iter().all(|file| news.iter().any(|line| line.starts_with(file))));
    let status = observer.status();
    for (name, file, limit) in [("trace", &trace, TRACE), ("pcap", &pcap, PCAP)] {
        let bytes = std::fs::metadata(file.path()).expect("a file").len();
        assert!((limit..limit + ONE).contains(&bytes), "{name}: {bytes}");
        let told = status[name]["bytes"].as_u64().expect("a number");
        assert!(status[name]["recording"] == false && (limit..=bytes).contains(&told), "{name}: {status}");
    }
    // Both are whole: JSON, and packets with good checksums.
    let text = std::fs::read_to_string(trace.path()).expect("text");
    assert!(serde_json::from_str::<Vec<serde_json::Value>>(&text).expect("JSON").len() > 100);
    assert!(!checksums(pcap.path()).is_empty());
    assert!(simulation.world(|world, _| observer.finish(world)).expect("an end").is_empty());
}

#[test]
fn an_adapter_has_a_share_of_a_capture() {
    const SHARE: u64 = 20_000;
    let pcap = Temporary::new("shares.pcapng");
    let options = Recorded { pcap: Some(pcap.path().to_owned()), ..Recorded::default() };
    let (simulation, mut observer) = observed(&options, &[("hca0", SHARE), ("hca1", u64::MAX)]);
    let news = observer.news();
    assert!(news.len() == 1 && news[0].starts_with("hca0: "), "{news:?}");
    let status = observer.status();
    let [first, second] = [0, 1].map(|i| status["hcas"][i].clone());
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    assert!((SHARE - 2 * LEN as u64..=SHARE).contains(&number(&first["bytes"])), "{first}");
    assert!(number(&first["packets_left_out"]) > 100 && number(&second["packets_left_out"]) == 0, "{status}");
    simulation.world(|world, _| observer.finish(world)).expect("a file");
    let lines = checksums(pcap.path());
    let of = |port: &str| lines.iter().filter(|line| line.port == port).count();
    assert!(of("hca0:1") > 10 && of("hca1:1") > 20 * of("hca0:1"), "{} {}", of("hca0:1"), of("hca1:1"));
}
