//! What reaches adapters is recorded, and played again without their hosts: they do the same; and what is changed is found.

use std::path::PathBuf;

use hca_driver::{Config, Hca};
use hca_model::Ps;
use hca_server::recording::{End, Ending, Outcome, Record, Recording, Replay};
use hca_tests::direct::{Direct, DirectBus, Kind};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::worlds::TWO_HOSTS;

const CHECKED: &str = "[checker]\nenabled = true\npatience_ms = 5\n";

/// A file that goes when this does.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        File(std::env::temp_dir().join(format!("hca-tests-{}-{name}.rec", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(server: &Direct, place: usize, kind: Kind) -> Hca<DirectBus> {
    Hca::open(server.bus(place, kind), Config::default()).expect("the adapter comes up")
}

/// Two drivers come up, send and read a few messages, and go.
fn session(file: &File, topology: &str, kinds: [Kind; 2]) {
    let server = Direct::start_recorded(topology, &file.0);
    let [near, far] = kinds;
    let hcas = vec![open(&server, 0, near), open(&server, 1, far)];
    let mut pair = Pair::connect(hcas, &Options { memory: 1 << 18, ..Options::default() }).expect("connect");
    for (i, size) in [0, 1, 1025, 60_000].into_iter().enumerate() {
        pair.deliver_and_read(&pattern(i as u64, size), 1 << 17);
    }
    pair.close().expect("teardown");
}

fn replay(file: &File) -> Outcome {
    Replay::open(&file.0, false, None).expect("it is a recording").run().expect("it can be read")
}

fn as_recorded(outcome: &Outcome) {
    if let Some(divergence) = &outcome.divergence {
        panic!("{divergence}");
    }
    assert_eq!(outcome.inside, None, "the trace is as recorded");
    assert_eq!(outcome.ending, Some(Ending::Whole(End::Stopped)));
    assert!(outcome.compared && outcome.hash.1 > 100, "{outcome:?}");
    assert!(outcome.dma_reads > 100 && outcome.dma_writes > 100 && outcome.interrupts > 1, "{outcome:?}");
}

#[test]
fn the_same_happens_again() {
    let kinds = [Kind::Descriptor, Kind::Beside, Kind::Questions, Kind::Later];
    for (i, near) in kinds.into_iter().enumerate() {
        let file = File::new(&format!("again-{i}"));
        session(&file, TWO_HOSTS, [near, kinds[(i + 1) % 4]]);
        let first = replay(&file);
        as_recorded(&first);
        assert_eq!(replay(&file), first, "each time");
    }
}

#[test]
fn with_the_checker_and_looked_at() {
    let file = File::new("checked");
    session(&file, &format!("{TWO_HOSTS}{CHECKED}"), [Kind::Descriptor; 2]);
    let first = replay(&file);
    as_recorded(&first);
    // Packets are captured, which cuts trains where there are any.
    let mut looked_at = Replay::open(&file.0, false, None).expect("it is a recording");
    let pcap = File::new("pcap");
    let options = hca_trace::Options { pcap: Some(pcap.0.clone()), ..hca_trace::Options::default() };
    looked_at.observe(&options).expect("the file is made");
    assert_eq!(looked_at.run().expect("it can be read"), first);
    looked_at.end_observing().expect("it is written");
    let captured = std::fs::metadata(&pcap.0).expect("it is there").len();
    assert!(captured > 200_000, "{captured} bytes of packets");
}

#[test]
fn a_checker_may_look_on_later() {
    let file = File::new("later");
    session(&file, TWO_HOSTS, [Kind::Descriptor; 2]);
    let outcome =
        Replay::open(&file.0, true, None).expect("it is a recording").run().expect("it can be read");
    assert_eq!((outcome.divergence, outcome.diagnoses), (None, 0));
    assert_eq!(outcome.ending, Some(Ending::Whole(End::Stopped)));
}

#[test]
fn until_a_time() {
    let file = File::new("until");
    session(&file, TWO_HOSTS, [Kind::Descriptor; 2]);
    let whole = replay(&file);
    let half = Ps(whole.time / 2);
    let outcome =
        Replay::open(&file.0, false, Some(half)).expect("it is a recording").run().expect("it can be read");
    assert_eq!((&outcome.divergence, outcome.ending), (&None, None));
    assert!(outcome.records < whole.records && outcome.time < whole.time, "{outcome:?}");
}

/// One byte is changed of what a host's memory had, or of what an adapter wrote there: found in that record, or where the first thing
/// is other that comes of it.
#[test]
fn what_is_changed_is_found() {
    let file = File::new("changed");
    session(&file, TWO_HOSTS, [Kind::Descriptor; 2]);
    let items: Vec<_> =
        Recording::open(&file.0).expect("it is one").map(|item| item.expect("a record")).collect();
    let header = Recording::open(&file.0).expect("it is one").header().clone();
    // A completion: 64 bytes, of which the last is written by itself.
    let is_completion = |record: &Record| matches!(record, Record::DmaWrite { data, .. } if data.len() == 63);
    let at = items.iter().rposition(|item| is_completion(&item.record)).expect("a completion");
    let mut changed: Vec<Record> = items.iter().map(|item| item.record.clone()).collect();
    if let Record::DmaWrite { data: hca_server::recording::Bytes::Whole(bytes), .. } = &mut changed[at] {
        bytes[60] ^= 1;
    }
    let mut other =
        Replay::of(Recording::of(header.clone(), changed), false, None).expect("it is a recording");
    let divergence = other.run().expect("it can be read").divergence.expect("a divergence");
    assert_eq!(divergence.number, at as u64, "{divergence}");
    assert!(divergence.found.contains("byte 0x3c is"), "{divergence}");
    // The opcode of a work request, SEND or RDMA_READ: other packets, and another completion.
    let is_request = |record: &Record| matches!(record, Record::DmaRead { data, .. } if matches!(data[..], [0, _, _, 0x0a | 0x10, ..]));
    let at = items.iter().rposition(|item| is_request(&item.record)).expect("a work request");
    let mut changed: Vec<Record> = items.into_iter().map(|item| item.record).collect();
    if let Record::DmaRead { data, .. } = &mut changed[at] {
        data[3] ^= 0x7f;
    }
    let mut other = Replay::of(Recording::of(header, changed), false, None).expect("it is a recording");
    let divergence = other.run().expect("it can be read").divergence.expect("a divergence");
    assert!(divergence.number > at as u64 && divergence.number < at as u64 + 100, "{at}: {divergence}");
}
