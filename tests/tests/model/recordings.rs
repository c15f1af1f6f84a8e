//! Recorded sessions of stock drivers: the adapters do today what they did, and what they do otherwise is found.

use hca_server::recording::{Record, Recording, Replay};
use hca_tests::recordings::{ANEW, KERNELS, file, hashes, play};

#[test]
fn sessions_of_stock_drivers_go_as_they_went() {
    let hashes = hashes().expect("hashes of the sessions");
    for kernel in KERNELS {
        let hash = play(kernel).unwrap_or_else(|why| panic!("{why:#}"));
        let told = "only what is traced differs: if that is meant, keep the hashes";
        assert_eq!(hashes.get(kernel), Some(&hash), "{kernel}: {told}: {ANEW} --hashes");
    }
}

/// What an adapter is told by a host's memory is changed: found at the first thing that it does otherwise.
#[test]
fn a_changed_reply_is_found() {
    let header = Recording::open(&file("6.12")).expect("a recording").header().clone();
    let items = Recording::open(&file("6.12")).expect("a recording");
    let mut records: Vec<Record> = items.map(|item| item.expect("a record").record).collect();
    // What the host reads from a register in the middle of the session was other than it is now.
    let reads: Vec<usize> =
        (0..records.len()).filter(|i| matches!(records[*i], Record::Returned { .. })).collect();
    let at = reads[reads.len() / 2];
    if let Record::Returned { data } = &mut records[at] {
        data[0] ^= 1;
    }
    let mut replay = Replay::of(Recording::of(header, records), false, None).expect("a recording");
    let divergence = replay.run().expect("it can be read").divergence.expect("a divergence");
    assert_eq!(divergence.number, at as u64, "{divergence}");
    assert!(divergence.step.1.contains("the host reads"), "{divergence}");
}
