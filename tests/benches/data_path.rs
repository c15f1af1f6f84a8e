//! What a message costs on the host: our driver against the model in one process.
//!
//! `cargo bench -p hca-tests` prints, for each kind of message, messages and bytes per host second,
//! and the cost as a multiple of copying the same bytes twice (into a packet and out of it), so that
//! figures of different machines can be compared.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hca_driver::SendOp;
use hca_model::fabric::Faults;
use hca_tests::pair::Options;
use hca_tests::rig;

/// Each figure is the best of this many rounds: other load only makes a round slower.
const ROUNDS: usize = 5;
/// Messages posted before the completion of the last is waited for.
const BATCH: u64 = 32;
/// Message lengths.
const LENGTHS: [usize; 5] = [8, 1024, 4096, 65536, 1 << 20];

fn best(mut round: impl FnMut()) -> Duration {
    let time = |round: &mut dyn FnMut()| {
        let start = Instant::now();
        round();
        start.elapsed()
    };
    (0..ROUNDS).map(|_| time(&mut round)).min().unwrap_or_default()
}

fn main() {
    println!(
        "{:<9} {:<8} {:>9} {:>14} {:>12} {:>12}",
        "path", "op", "bytes", "messages/s", "MiB/s", "x 2 copies"
    );
    for (linked, len) in [false, true].into_iter().flat_map(|l| LENGTHS.map(|len| (l, len))) {
        let options = Options { memory: 1 << 20, mtu: 5, send_blocks: 64, ..Options::default() };
        let mut pair = match linked {
            true => rig::linked(&options, Faults::default(), 1),
            false => rig::loopback(&options),
        };
        let path = if linked { "link" } else { "loopback" };
        let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
        let count = (1u64 << 24).div_ceil(len as u64 * BATCH).clamp(2, 200);
        let messages = count * BATCH;
        let from = vec![1u8; len];
        let (mut packet, mut to) = (vec![0u8; len], vec![0u8; len]);
        let copies = best(|| {
            for _ in 0..messages {
                packet.copy_from_slice(black_box(&from));
                to.copy_from_slice(black_box(&packet));
            }
        });
        for (name, op) in
            [("write", SendOp::Write { address, rkey, imm: None }), ("read", SendOp::Read { address, rkey })]
        {
            let cost = best(|| (0..count).for_each(|_| pair.batch(BATCH, op, len)));
            let per_second = messages as f64 / cost.as_secs_f64();
            println!(
                "{path:<9} {name:<8} {len:>9} {per_second:>14.0} {:>12.1} {:>12.1}",
                per_second * len as f64 / (1 << 20) as f64,
                cost.as_secs_f64() / copies.as_secs_f64(),
            );
        }
        rig::close(pair);
    }
}
