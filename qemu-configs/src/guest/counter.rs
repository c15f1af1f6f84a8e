//! How fast this machine's time stamp counter counts.
//!
//! An emulated guest reads that same counter (QEMU, `cpu_get_host_ticks`), but its kernel would measure it against an
//! emulated timer, which a busy machine serves late: its clock then runs several times too fast. So the kernel gets the
//! frequency on its command line.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Long enough for 20 ppm, if the ends are known to a microsecond.
const MEASURED: Duration = Duration::from_millis(50);
/// Readings of each end; the one with the least time around it counts.
const READINGS: usize = 20;

/// Ticks a millisecond, measured once in a process.
pub(super) fn kilohertz() -> u64 {
    static MEASUREMENT: OnceLock<u64> = OnceLock::new();
    *MEASUREMENT.get_or_init(|| {
        let (from, start) = reading();
        std::thread::sleep(MEASURED);
        let (to, end) = reading();
        rate(to.wrapping_sub(from), end.saturating_duration_since(start))
    })
}

/// The counter, and when it was read.
fn reading() -> (u64, Instant) {
    let read = |_| {
        let before = Instant::now();
        let ticks = tick_counter::start();
        (before.elapsed(), ticks, before)
    };
    let (around, ticks, before) =
        (0..READINGS).map(read).min_by_key(|(around, ..)| *around).expect("READINGS is not zero");
    (ticks, before + around / 2)
}

fn rate(ticks: u64, time: Duration) -> u64 {
    let rate = u128::from(ticks) * 1_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_over_time() {
        assert_eq!(rate(122_271_500, MEASURED), 2_445_430);
        assert_eq!(rate(1, Duration::ZERO), 1_000_000);
    }

    #[test]
    fn two_measurements_agree() {
        let (from, start) = reading();
        std::thread::sleep(MEASURED);
        let (to, end) = reading();
        let again = rate(to - from, end - start);
        let off = again.abs_diff(kilohertz());
        assert!(off * 1000 < again, "{again} kHz, then {} kHz", kilohertz());
    }
}
