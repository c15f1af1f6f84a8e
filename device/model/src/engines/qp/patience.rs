//! How long a requester waits for an answer where that is adaptive (ROCE_ACCL): as long as answers usually take, and twice as long each time that
//! was too short, up to the queue pair's own timeout.
//!
//! How hardware does it is not public; this is the rule of TCP. Source: RFC 6298, sections 2 (round trips) and 5 (timer); P. Karn and C. Partridge, SIGCOMM 1987
//! (what was sent again is not measured).

use hca_spec::ids::Psn;

use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// The least time that is waited: four times the unit of timeouts (IBTA 9.7.6.1.3).
const LEAST: Ps = Ps::from_ns(4 * 4096);

/// What a requester knows of the time of its way and back.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// The usual time, and how much it varies.
    usual: Option<(Ps, Ps)>,
    /// What is being measured: until all before this PSN is acknowledged, since then.
    probe: Option<(Psn, Ps)>,
    /// Timers that ran out since something was acknowledged.
    ran_out: u32,
    /// The timer that runs is shorter than the queue pair's own.
    early: bool,
}

impl Patience {
    /// How long to wait for answers from `now` on, when everything before `sent` was sent.
    pub(crate) fn wait(&mut self, now: Ps, sent: Psn, own: Ps) -> Ps {
        if self.ran_out == 0 {
            self.probe.get_or_insert((sent, now));
        }
        let usual = self.usual.map_or(own, |(usual, varies)| {
            let least = Ps(usual.0.saturating_add(varies.0.saturating_mul(4))).max(LEAST);
            Ps(least.0.saturating_mul(1u64.checked_shl(self.ran_out).unwrap_or(u64::MAX)))
        });
        self.early = usual < own;
        usual.min(own)
    }

    /// Everything before `oldest` is acknowledged.
    pub(crate) fn acknowledged(&mut self, now: Ps, oldest: Psn) {
        self.ran_out = 0;
        let Some((_, began)) = self.probe.take_if(|(psn, _)| oldest.since(*psn) >= 0) else { return };
        let took = now.since(began);
        self.usual = Some(match self.usual {
            None => (took, Ps(took.0 / 2)),
            Some((usual, varies)) => {
                let off = usual.0.abs_diff(took.0);
                let part = |old: u64, new: u64, of: u64| old - old / of + new / of;
                (Ps(part(usual.0, took.0, 8)), Ps(part(varies.0, off, 4)))
            }
        });
    }

    /// The timer ran out. Returns whether it was shorter than the queue pair's own.
    pub(crate) fn ran_out(&mut self) -> bool {
        self.probe = None;
        self.ran_out = if self.early { self.ran_out.saturating_add(1) } else { self.ran_out };
        self.early
    }

    /// Something is sent again.
    pub(crate) fn sent_again(&mut self) {
        self.probe = None;
    }
}

impl Rebase for Patience {
    fn rebase(&mut self, by: Ps) {
        let Self { usual: _, probe, ran_out: _, early: _ } = self;
        if let Some((_, at)) = probe {
            at.rebase(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ps = Ps::from_ms(67);

    fn psn(n: u32) -> Psn {
        Psn::new(n)
    }

    #[test]
    fn it_learns_and_doubles() {
        let mut p = Patience::default();
        assert_eq!(p.wait(Ps::ZERO, psn(5), OWN), OWN, "nothing is known");
        assert!(!p.ran_out());
        p.wait(Ps::ZERO, psn(5), OWN);
        p.acknowledged(Ps::from_us(10), psn(4));
        p.acknowledged(Ps::from_us(40), psn(5));
        // 40 us, and four times 20.
        assert_eq!(p.wait(Ps::from_us(40), psn(6), OWN), Ps::from_us(120));
        assert!(p.ran_out());
        assert_eq!(p.wait(Ps::from_us(160), psn(6), OWN), Ps::from_us(240));
        assert!(p.ran_out());
        // What was sent again is not measured.
        p.acknowledged(Ps::from_us(170), psn(6));
        assert_eq!(p.wait(Ps::from_us(170), psn(7), OWN), Ps::from_us(120));
        for _ in 0..80 {
            p.ran_out();
        }
        assert_eq!(p.wait(Ps::from_us(200), psn(7), OWN), OWN, "no longer than its own");
        assert!(!p.ran_out());
    }

    #[test]
    fn steady_ways_are_waited_for_a_little() {
        let mut p = Patience::default();
        for n in 0..200 {
            p.wait(Ps::from_us(10 * u64::from(n)), psn(n + 1), OWN);
            p.acknowledged(Ps::from_us(10 * u64::from(n) + 2), psn(n + 1));
        }
        assert_eq!(p.wait(Ps::from_ms(3), psn(300), OWN), LEAST);
    }
}
