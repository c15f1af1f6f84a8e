//! Copies of shared memory beside memcpy, in one run: `cargo bench -p hca-server --bench copy`.
//!
//! Each row is the best of many short measurements by the processor time of this thread, so that other load makes little
//! difference. The ratio is what to compare between machines: 1.00 is as fast as memcpy.

use std::hint::black_box;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The module itself: it is not part of what the server offers.
#[path = "../src/memory/copy.rs"]
#[allow(dead_code, unused_imports, reason = "its tests are tests of the crate")]
mod copy;

/// Bytes that each measurement copies, and how many there are of each.
const BYTES: usize = 4 << 20;
const TRIES: usize = 60;
/// Lengths: a completion, a small message, the largest payload of a packet, messages.
const LENGTHS: [usize; 7] = [64, 256, 1024, 4096, 16 << 10, 64 << 10, 1 << 20];
/// How far from a word's boundary the shared bytes are in the last rows.
const ODD: usize = 3;

fn now() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock"))
}

/// Bytes per second of `copy`, which copies `len` bytes.
fn rate(len: usize, mut copy: impl FnMut()) -> f64 {
    let count = BYTES / len;
    let best = (0..TRIES).map(|_| {
        let start = now();
        (0..count).for_each(|_| copy());
        now().saturating_sub(start).as_secs_f64()
    });
    (count * len) as f64 / best.fold(f64::MAX, f64::min)
}

fn row(len: usize, shift: usize) -> [f64; 4] {
    let (mut shared, mut other, mut own) =
        (vec![1u8; len + 64 + shift], vec![2u8; len + 64 + shift], vec![3u8; len]);
    let plain = rate(len, || {
        own.copy_from_slice(black_box(&shared[shift..shift + len]));
        black_box(&mut own);
    });
    let load = rate(len, || {
        // SAFETY: the range lies in `shared`, which nobody else has.
        unsafe { copy::load(black_box(shared.as_ptr()).add(shift), &mut own) };
        black_box(&mut own);
    });
    let store = rate(len, || {
        // SAFETY: as above.
        unsafe { copy::store(black_box(shared.as_mut_ptr()).add(shift), black_box(&own)) };
    });
    let carry = rate(len, || {
        // SAFETY: one range lies in `shared`, the other in `other`.
        unsafe {
            copy::carry(black_box(other.as_mut_ptr()).add(shift), black_box(shared.as_ptr()).add(shift), len)
        };
    });
    [plain, load, store, carry]
}

fn main() {
    println!(
        "{:>9} {:>7} {:>12} {:>6} {:>6} {:>6}",
        "bytes", "shifted", "memcpy GiB/s", "load", "store", "carry"
    );
    for shift in [0, ODD] {
        for len in LENGTHS {
            let [plain, rest @ ..] = row(len, shift);
            let [load, store, carry] = rest.map(|rate| rate / plain);
            let gib = plain / f64::from(1 << 30);
            println!("{len:>9} {shift:>7} {gib:>12.1} {load:>6.2} {store:>6.2} {carry:>6.2}");
        }
    }
}
