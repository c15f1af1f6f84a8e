//! Messages whose data is gathered from the longest list of pieces that a key can have, or from a strided layout of as many, for tools that
//! count what walking it costs.
//!
//! ```text
//! cargo build --release -p hca-tests --example walk
//! valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null target/release/examples/walk pieces 4
//! ```
//!
//! A message has 1 MiB in 256 packets. What one costs is the difference of two runs over that of their messages; the first one walks a list
//! that nobody has walked.

use std::process::ExitCode;
use std::time::Instant;

use hca_driver::umr::{pieces, strided};
use hca_driver::{SendRequest, Sge};
use hca_model::link::Faults;
use hca_spec::mkc::AccessMode;
use hca_tests::pair::Options;
use hca_tests::rig;
use hca_tests::suites::adversary::keys::made;

/// Entries of a list, the one that says that a layout is strided among them.
const ENTRIES: usize = 1 << 16;
/// Bytes of a piece.
const PIECE: u32 = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kind = arguments.first().map(String::as_str);
    let (Some(kind @ ("pieces" | "strided")), Some(messages)) =
        (kind, arguments.get(1).and_then(|n| n.parse::<u64>().ok()))
    else {
        eprintln!("usage: walk pieces|strided MESSAGES");
        return ExitCode::from(2);
    };
    let memory = ENTRIES * PIECE as usize;
    let options = Options { memory, mtu: 5, ..Options::default() };
    let mut pair = rig::linked(&options, Faults::default(), 1);
    let piece = |n: usize| pair.ends[0].sge(n * PIECE as usize, PIECE as usize);
    let (list, len) = match kind {
        "pieces" => (pieces(&(0..ENTRIES).map(piece).collect::<Vec<_>>()), memory),
        _ => {
            let cycle: Vec<_> = (1..ENTRIES).map(|n| (piece(n), 0)).collect();
            (strided(1, &cycle), memory - PIECE as usize)
        }
    };
    let pd = pair.ends[0].pd;
    let key = made(&mut pair.hcas[0], pd, AccessMode::Klm, &list, len as u64).expect("CREATE_MKEY");
    let far = pair.ends[1].mr;
    let data = [Sge { address: 0, len: len as u32, key }];
    for number in 0..messages {
        let start = Instant::now();
        pair.send(0, &SendRequest::write(number, &data, far.address, far.key));
        assert_eq!(pair.sent(0).1.syndrome(), None);
        println!("message {number}: {} us", start.elapsed().as_micros());
    }
    rig::close(pair);
    ExitCode::SUCCESS
}
