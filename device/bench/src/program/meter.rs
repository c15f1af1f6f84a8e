//! Counting operations: when a run has warmed up, when it is steady, and whether what was counted can be.

use hca_model::Ps;

/// Counts operations, and when.
///
/// Operations beyond those that warm up are divided into windows of a quarter of the number requested. Where the run may go
/// on until it is steady, it ends when the first two of the last four windows have the same rate as the other two, but for
/// [`STEADY`], and Little's law holds in them but for [`LITTLE`]; or, if that never comes, after [`MOST_WINDOWS`], of which the
/// later half counts.
///
/// Little's law: what is outstanding, on the average, is the rate times how long each operation takes. The first is counted
/// from outside, the second is measured of each operation by itself. They differ where a window begins in a lull and ends behind a
/// burst, or the other way round, so that its rate is none of the run's.
#[derive(Default)]
pub(super) struct Meter {
    warm: u64,
    wanted: u64,
    /// The run may go on until it is steady.
    steady: bool,
    pub(super) done: u64,
    /// Operations at the begin of the first window and the ends of all, and when.
    pub(super) marks: Vec<(u64, Ps)>,
    /// What was outstanding times how long, and how long operations took together, at each mark.
    flow: Vec<Flow>,
    /// The first mark of what counts; the last mark is its end.
    pub(super) measured: Option<usize>,
    /// When something was done last.
    pub(super) last: Ps,
    pub(super) samples: Vec<f64>,
    now: Flow,
    outstanding: u64,
    /// Up to when `now` counts what is outstanding.
    counted: Ps,
}

/// Both sides of Little's law, in picoseconds of operations.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    outstanding: u128,
    taken: u128,
}

/// Windows that are measured.
const WINDOWS: usize = 4;
/// Windows after which a run ends that isn't steady.
const MOST_WINDOWS: usize = 16;
/// By how much, as a share, the two halves of a steady run differ at most.
const STEADY: f64 = 0.01;
/// By how much, as a share, the two sides of Little's law differ at most in a steady run. What begins and ends in the middle of an
/// operation differs by some of them.
const LITTLE: f64 = 0.05;

impl Meter {
    /// Measures so many operations behind those that warm up; more if the run may go on until it is `steady`.
    pub(super) fn new(warm: u64, wanted: u64, steady: bool) -> Self {
        Self { warm, wanted, steady, ..Self::default() }
    }

    /// So many operations were posted.
    pub(super) fn post(&mut self, now: Ps, operations: u64) {
        self.pass(now);
        self.outstanding += operations;
    }

    /// So many operations that were posted are done; `taken`: how long they took together, in picoseconds.
    pub(super) fn leave(&mut self, now: Ps, operations: u64, taken: u128) {
        self.pass(now);
        self.outstanding = self.outstanding.saturating_sub(operations);
        self.now.taken += taken;
    }

    fn pass(&mut self, now: Ps) {
        let time = now.since(self.counted.min(now)).0;
        self.now.outstanding += u128::from(time) * u128::from(self.outstanding);
        self.counted = self.counted.max(now);
    }

    /// By how much the two sides of Little's law differ from mark `first` to the last, as a share. None: nobody said what was
    /// posted.
    fn little(&self, first: usize) -> Option<f64> {
        let (from, to) = (self.flow.get(first)?, self.flow.last()?);
        let of = |from: u128, to: u128| to.saturating_sub(from) as f64;
        let outstanding = of(from.outstanding, to.outstanding);
        (outstanding > 0.0).then(|| of(from.taken, to.taken) / outstanding - 1.0)
    }

    /// The same of what was measured.
    pub(super) fn discrepancy(&self) -> Option<f64> {
        self.little(self.measured?)
    }

    pub(super) fn count(&mut self, now: Ps, operations: u64) {
        self.done += operations;
        self.last = now;
        if self.measured.is_none() && self.done >= self.due() {
            self.pass(now);
            self.marks.push((self.done, now));
            self.flow.push(self.now);
            self.judge();
        }
    }

    /// Operations at which the next mark is made.
    fn due(&self) -> u64 {
        let windows = if self.steady { WINDOWS as u64 } else { 1 };
        self.marks.last().map_or(self.warm, |last| last.0 + self.wanted.div_ceil(windows))
    }

    /// Whether it is enough.
    fn judge(&mut self) {
        let windows = self.marks.len() - 1;
        let Some(first) = windows.checked_sub(WINDOWS) else {
            // Many at once, or nobody asked for a steady state.
            if self.marks.first().is_some_and(|first| windows > 0 && self.done - first.0 >= self.wanted) {
                self.measured = Some(0);
            }
            return;
        };
        let rate = |from: usize| match (self.marks.get(from), self.marks.get(from + WINDOWS / 2)) {
            (Some(from), Some(to)) => (to.0 - from.0) as f64 / to.1.since(from.1).0.max(1) as f64,
            _ => 0.0,
        };
        let (one, other) = (rate(first), rate(first + WINDOWS / 2));
        let lawful = self.little(first).is_none_or(|differs| differs.abs() <= LITTLE);
        if (one - other).abs() <= STEADY * one.max(other) && lawful {
            self.measured = Some(first);
        } else if windows >= MOST_WINDOWS {
            self.measured = Some(windows / 2);
        }
    }

    /// Operations and times of what was measured.
    pub(super) fn span(&self) -> Option<((u64, Ps), (u64, Ps))> {
        self.marks.get(self.measured?).copied().zip(self.marks.last().copied())
    }

    pub(super) fn sample(&mut self, now: Ps, ns: f64) {
        self.count(now, 1);
        if !self.marks.is_empty() && self.done > self.warm {
            self.samples.push(ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered(steady: bool, when: impl Fn(u64) -> u64) -> Meter {
        let mut meter = Meter { warm: 10, wanted: 20, steady, ..Meter::default() };
        for i in 1..1000 {
            meter.count(Ps(when(i)), 1);
        }
        meter
    }

    #[test]
    fn a_meter_leaves_out_what_warms_up() {
        let meter = metered(true, |i| i * 100);
        assert_eq!(meter.span(), Some(((10, Ps(1000)), (30, Ps(3000)))));
        let mut meter = Meter { warm: 10, wanted: 20, ..Meter::default() };
        (1..=5).for_each(|i| meter.count(Ps(i * 100), 8));
        assert_eq!(meter.span(), Some(((16, Ps(200)), (40, Ps(500)))), "many at once");
    }

    /// Operations of two programs, each of which has its own all at once, in turn, a period apart.
    #[test]
    fn bursts_that_windows_cut_are_no_steady_state() {
        let bursts = |size: u64| {
            let mut meter = Meter { warm: 10, wanted: 4 * size, steady: true, ..Meter::default() };
            let mut at = Ps::ZERO;
            meter.post(at, 2 * size);
            while meter.measured.is_none() {
                // One comes soon after the other; then nothing for long.
                for wait in [100, 900] {
                    at += Ps(wait);
                    meter.leave(at, size, u128::from(size) * 1000);
                    meter.count(at, size);
                    meter.post(at, size);
                }
            }
            let ((from, start), (to, end)) = meter.span().unwrap();
            ((to - from) as f64 / (end - start).0 as f64, meter.discrepancy().unwrap())
        };
        let (rate, differs) = bursts(100);
        assert!((rate / 0.2 - 1.0).abs() < 0.1 && differs.abs() < 0.1, "{rate} {differs}");
    }

    #[test]
    fn what_is_outstanding_is_rate_times_latency() {
        let run = |taken: u128| {
            let mut meter = Meter { warm: 10, wanted: 20, steady: true, ..Meter::default() };
            meter.post(Ps::ZERO, 5);
            for i in 1..200 {
                let at = Ps(i * 100);
                meter.leave(at, 1, taken);
                meter.count(at, 1);
                meter.post(at, 1);
            }
            (meter.span().map(|(from, _)| from.0), meter.discrepancy().unwrap())
        };
        let (from, differs) = run(500);
        assert!(from == Some(10) && differs.abs() < 1e-9, "{from:?} {differs}");
        let (from, differs) = run(600);
        assert!(
            from == Some(50) && (differs - 0.2).abs() < 1e-9,
            "it was looked for longer: {from:?} {differs}"
        );
    }

    #[test]
    fn a_meter_waits_for_a_steady_state() {
        // Ever slower up to the 35th.
        let slow = |i: u64| if i < 35 { i * i } else { 1225 + (i - 35) * 100 };
        assert_eq!(metered(true, slow).span(), Some(((35, Ps(1225)), (55, Ps(3225)))));
        assert_eq!(metered(false, slow).span(), Some(((10, Ps(100)), (30, Ps(900)))));
        // Ever slower: the later half of 16 windows of 5 counts.
        assert_eq!(metered(true, |i| i * i).span(), Some(((50, Ps(2500)), (90, Ps(8100)))));
    }
}
