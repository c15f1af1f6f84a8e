//! Congestion control of a queue pair (DCQCN): when it tells its peer of congestion, and how fast it sends after it was told.
//!
//! A flow without congestion has none of this. Nothing here needs an event of its own: what a timer would have done is made up for
//! when the flow sends next, or is told again.
//!
//! Source: Y. Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3 (notification point, reaction
//! point, figure 7); IEEE 802.1Qau (stages of recovery); NVIDIA, "DCQCN CC Parameters" (what the parameters do, alpha in 1/1024).

use hca_firmware::port::congestion::{NotificationPoint, ReactionPoint};

use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Alpha of 1.
const ONE: u64 = 1 << 20;
/// What parameters count alpha in.
const UNIT: u64 = ONE >> 10;
/// bit/s of a Mb/s.
const MEGA: u64 = 1_000_000;
/// So many increases by the timer are made one by one when they are made up for; the rest at once.
const STEPS: u32 = 64;

/// What a queue pair knows of congestion.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    /// It told its peer last then.
    told: Option<Ps>,
    /// Its rate, while that is limited.
    limit: Option<Limit>,
}

/// A rate that is limited.
#[derive(Debug)]
struct Limit {
    /// bit/s.
    current: u64,
    /// What it recovers to.
    target: u64,
    most: u64,
    alpha: u64,
    /// Alpha is up to date until then.
    alpha_at: Ps,
    /// It was told since, as far as alpha knows.
    told: bool,
    /// The rate is lowered then: it was told since the last time.
    cut_due: Option<Ps>,
    /// The rate was lowered last then.
    cut_at: Ps,
    /// Increases since then, by bytes and by time.
    by_bytes: u32,
    by_time: u32,
    bytes_left: u64,
    time_at: Ps,
    /// The next packet is not sent before.
    next: Ps,
}

impl Limit {
    fn set(&mut self, now: Ps, rate: u64, least: u64) {
        let rate = rate.clamp(least.min(self.most), self.most);
        // What is left to wait is as many bits at the new rate.
        let left = u128::from(self.next.since(now).0) * u128::from(self.current) / u128::from(rate.max(1));
        self.next = now + Ps(u64::try_from(left).unwrap_or(u64::MAX));
        self.current = rate;
    }

    fn increase(&mut self, now: Ps, how: &ReactionPoint) {
        let (low, high) = (self.by_bytes.min(self.by_time), self.by_bytes.max(self.by_time));
        let more = match () {
            () if high < how.threshold => 0,
            () if low > how.threshold => u64::from(how.hyper),
            () => u64::from(how.additive),
        };
        self.target = self.target.saturating_add(more * MEGA).min(self.most);
        // Half of the way; it gets there at last, not ever nearer.
        let half = (self.current / 2).saturating_add(self.target / 2).saturating_add(MEGA / 2);
        let rate = half.min(self.target).max(self.current);
        self.set(now, rate, u64::from(how.least) * MEGA);
    }

    /// What the timers have done by now.
    fn pass(&mut self, now: Ps, how: &ReactionPoint) {
        for _ in 0..STEPS {
            match self.cut_due.filter(|cut| *cut <= now) {
                Some(cut) if cut <= self.time_at => self.cut(cut, how),
                None if self.time_at > now || self.current >= self.most => return,
                Some(_) | None => self.tick(how),
            }
        }
        if let Some(cut) = self.cut_due.filter(|cut| *cut <= now) {
            self.leap(cut, how);
            self.cut(cut, how);
        }
        self.leap(now, how);
    }

    /// The timer has run.
    fn tick(&mut self, how: &ReactionPoint) {
        let at = self.time_at;
        self.by_time = self.by_time.saturating_add(1);
        self.time_at = at + Ps::from_us(how.time_reset.max(1).into());
        self.increase(at, how);
    }

    /// The same as [`tick`](Self::tick) until now, at once: the rate follows its target by the last step.
    fn leap(&mut self, now: Ps, how: &ReactionPoint) {
        if self.time_at > now || self.current >= self.most {
            return;
        }
        let period = Ps::from_us(how.time_reset.max(1).into());
        let ticks = now.since(self.time_at).0 / period.0 + 1;
        let (bytes, threshold) = (u64::from(self.by_bytes), u64::from(how.threshold));
        // Those up to the threshold, and those beyond it, are of one stage each.
        let first = threshold.saturating_sub(self.by_time.into()).min(ticks);
        let (additive, hyper) = match bytes.cmp(&threshold) {
            // The one that reaches the threshold is not fast recovery.
            std::cmp::Ordering::Less => {
                (ticks - threshold.saturating_sub(u64::from(self.by_time) + 1).min(ticks), 0)
            }
            std::cmp::Ordering::Equal => (ticks, 0),
            std::cmp::Ordering::Greater => (first, ticks - first),
        };
        let step = |rate: u32, times: u64| (u64::from(rate) * MEGA).saturating_mul(times);
        let more = step(how.additive, additive).saturating_add(step(how.hyper, hyper));
        self.target = self.target.saturating_add(more).min(self.most);
        let last = step(if hyper > 0 { how.hyper } else { how.additive }, additive.max(hyper).min(1));
        self.by_time = u32::try_from(u64::from(self.by_time).saturating_add(ticks)).unwrap_or(u32::MAX);
        self.time_at += Ps(period.0.saturating_mul(ticks));
        let rate = if self.target == self.most { self.most } else { self.target.saturating_sub(last) };
        self.set(now, rate.max(self.current), u64::from(how.least) * MEGA);
    }

    /// Alpha is brought up to date.
    fn update_alpha(&mut self, now: Ps, how: &ReactionPoint) {
        let period = Ps::from_us(how.alpha_period.max(1).into());
        let periods = now.since(self.alpha_at).0 / period.0;
        let keep = u64::from(how.alpha_keep).min(1023);
        for n in 0..periods {
            let told = n == 0 && self.told;
            let next = self.alpha * keep / 1024 + if told { (1024 - keep) * UNIT } else { 0 };
            if next == self.alpha && !told {
                break;
            }
            self.alpha = next;
        }
        if periods > 0 {
            self.told = false;
            self.alpha_at += Ps(periods.saturating_mul(period.0));
        }
    }

    fn cut(&mut self, now: Ps, how: &ReactionPoint) {
        self.update_alpha(now, how);
        let raised = self.by_bytes > 0 || (how.clamp_after_time && self.by_time > 0);
        if how.clamp || raised {
            self.target = self.current;
        }
        let off = (u128::from(self.current) * u128::from(self.alpha)) / u128::from(UNIT);
        let off = u64::try_from(off >> how.gd.min(63)).unwrap_or(u64::MAX);
        let least = self.current / 100 * u64::from(how.least_left.min(100));
        self.set(now, self.current.saturating_sub(off).max(least), u64::from(how.least) * MEGA);
        self.restart(now, how);
    }

    fn restart(&mut self, now: Ps, how: &ReactionPoint) {
        (self.cut_due, self.cut_at) = (None, now);
        (self.by_bytes, self.by_time) = (0, 0);
        self.bytes_left = how.byte_reset.max(1).into();
        self.time_at = now + Ps::from_us(how.time_reset.max(1).into());
    }
}

impl Congestion {
    /// A packet of the flow came with a mark: whether its sender is told now.
    pub(crate) fn tells(&mut self, now: Ps, how: &NotificationPoint) -> bool {
        let tells = self.told.is_none_or(|told| now.since(told) >= Ps::from_us(how.min_time.into()));
        if tells {
            self.told = Some(now);
        }
        tells
    }

    /// The peer told of congestion, on a link of `line` bit/s: the rate is lowered now, or when it may be again. Whether the flow was
    /// free until then.
    pub(crate) fn told(&mut self, now: Ps, line: u64, how: &ReactionPoint) -> bool {
        if let Some(limit) = &mut self.limit {
            limit.pass(now, how);
            limit.update_alpha(now, how);
            limit.told = true;
            let again = limit.cut_at + Ps::from_us(how.monitor_period.into());
            limit.cut_due = limit.cut_due.or(Some(again.max(now)));
            limit.pass(now, how);
            return false;
        }
        let most = if how.most == 0 { line } else { line.min(u64::from(how.most) * MEGA) };
        let mut limit = Limit {
            current: most,
            target: most,
            most,
            alpha: u64::from(how.initial_alpha.min(1024)) * UNIT,
            alpha_at: now,
            told: true,
            cut_due: None,
            cut_at: now,
            by_bytes: 0,
            by_time: 0,
            bytes_left: 0,
            time_at: now,
            next: now,
        };
        match how.first_rate {
            0 => limit.cut(now, how),
            rate => {
                limit.set(now, u64::from(rate) * MEGA, u64::from(how.least) * MEGA);
                limit.target = limit.current;
                limit.restart(now, how);
            }
        }
        self.limit = Some(limit);
        true
    }

    /// Whether the rate is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// The rate, bit/s, while it is limited.
    #[cfg(test)]
    fn rate(&self) -> Option<u64> {
        self.limit.as_ref().map(|limit| limit.current)
    }

    /// When the flow may send, if not now.
    pub(crate) fn holds(&mut self, now: Ps, how: &ReactionPoint) -> Option<Ps> {
        let limit = self.limit.as_mut()?;
        limit.pass(now, how);
        // The rate may be another one when a timer has run.
        let timer = limit.cut_due.unwrap_or(Ps::MAX).min(limit.time_at).max(now + Ps(1));
        (limit.next > now).then(|| limit.next.min(timer))
    }

    /// A packet of so many bytes was sent. Whether the flow is free again.
    pub(crate) fn sent(&mut self, now: Ps, bytes: usize, how: &ReactionPoint) -> bool {
        let Some(limit) = &mut self.limit else { return false };
        let bits = bytes as u128 * 8 * 1_000_000_000_000;
        let takes = Ps(u64::try_from(bits / u128::from(limit.current.max(1))).unwrap_or(u64::MAX));
        limit.next = limit.next.max(now) + takes;
        limit.bytes_left = limit.bytes_left.saturating_sub(bytes as u64);
        if limit.bytes_left == 0 {
            limit.bytes_left = how.byte_reset.max(1).into();
            limit.by_bytes = limit.by_bytes.saturating_add(1);
            limit.increase(now, how);
        }
        let free = limit.current >= limit.most && limit.cut_due.is_none();
        if free {
            self.limit = None;
        }
        free
    }
}

impl Rebase for Limit {
    fn rebase(&mut self, by: Ps) {
        let Self {
            alpha_at,
            cut_due,
            cut_at,
            time_at,
            next,
            current: _,
            target: _,
            most: _,
            alpha: _,
            told: _,
            by_bytes: _,
            by_time: _,
            bytes_left: _,
        } = self;
        alpha_at.rebase(by);
        cut_due.rebase(by);
        cut_at.rebase(by);
        time_at.rebase(by);
        next.rebase(by);
    }
}

impl Rebase for Congestion {
    fn rebase(&mut self, by: Ps) {
        let Self { told, limit } = self;
        told.rebase(by);
        limit.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 40_000 * MEGA;

    /// The parameters of SIGCOMM 2015, section 5: R_AI 40 Mb/s, B 10 MB, T 55 us, F 5, g 1/256.
    fn published() -> ReactionPoint {
        ReactionPoint {
            clamp: true,
            time_reset: 55,
            byte_reset: 10_000_000,
            threshold: 5,
            additive: 40,
            hyper: 200,
            alpha_keep: 1020,
            alpha_period: 55,
            monitor_period: 50,
            initial_alpha: 1024,
            ..ReactionPoint::default()
        }
    }

    fn near(rate: Option<u64>, gbits: f64) -> bool {
        rate.is_some_and(|rate| (rate as f64 / 1e9 - gbits).abs() < 0.01)
    }

    #[test]
    fn a_cnp_halves_and_recovery_halves_the_way_back() {
        let (how, mut c) = (published(), Congestion::default());
        assert!(c.holds(Ps::ZERO, &how).is_none() && c.rate().is_none());
        assert!(c.told(Ps::ZERO, LINE, &how));
        assert!(near(c.rate(), 20.0), "{:?}", c.rate());
        // Five times half the way to the target, by time alone.
        for (n, rate) in [(1, 30.0), (2, 35.0), (3, 37.5), (4, 38.75)] {
            c.holds(Ps::from_us(55 * n), &how);
            assert!(near(c.rate(), rate), "{n}: {:?}", c.rate());
        }
        // Alpha has become less meanwhile.
        assert!(!c.told(Ps::from_us(230), LINE, &how));
        assert!(c.rate().is_some_and(|rate| (19_000..19_700).contains(&(rate / MEGA))), "{:?}", c.rate());
        // One that comes sooner than the rate may be lowered again lowers it when it may be: not twice, and before the timer runs.
        let cut = c.rate();
        c.told(Ps::from_us(240), LINE, &how);
        c.told(Ps::from_us(250), LINE, &how);
        assert_eq!(c.rate(), cut);
        c.sent(Ps::from_us(240), 1 << 20, &how);
        assert_eq!(c.holds(Ps::from_us(279), &how), Some(Ps::from_us(280)));
        c.holds(Ps::from_us(280), &how);
        assert!(c.rate().is_some_and(|rate| (9_800..10_000).contains(&(rate / MEGA))), "{:?}", c.rate());
        c.holds(Ps::from_us(334), &how);
        assert!(c.rate().is_some_and(|rate| rate < 10_000 * MEGA), "once");
    }

    #[test]
    fn a_long_pause_is_made_up_for_at_once() {
        let steps = |how: &ReactionPoint, bytes: u32, until: Ps| {
            let (mut one, mut other) = (Congestion::default(), Congestion::default());
            for c in [&mut one, &mut other] {
                c.told(Ps::ZERO, 400 * LINE, how);
                c.told(Ps::from_us(60), 400 * LINE, how);
                (0..bytes).for_each(|_| _ = c.sent(Ps::from_us(61), how.byte_reset as usize, how));
            }
            let period = u64::from(how.time_reset.max(1));
            (1..)
                .map(|n| Ps::from_us(n * period))
                .take_while(|at| *at < until)
                .for_each(|at| _ = one.holds(at, how));
            one.holds(until, how);
            other.holds(until, how);
            let of = |c: &Congestion| c.limit.as_ref().map(|l| (l.current, l.target, l.by_time, l.time_at));
            (of(&one), of(&other))
        };
        for (threshold, bytes) in
            [(0, 0), (1, 0), (5, 3), (5, 5), (5, 6), (500, 0), (500, 501), (u32::MAX, 1)]
        {
            let how = ReactionPoint { threshold, byte_reset: 100, ..published() };
            for us in [100, 3_000, 30_000, 200_000] {
                let (Some(one), Some(other)) = steps(&how, bytes, Ps::from_us(us)) else {
                    panic!("limited: {threshold} {bytes} {us}");
                };
                assert_eq!((one.1, one.2, one.3), (other.1, other.2, other.3), "{threshold} {bytes} {us}");
                assert!(one.0.abs_diff(other.0) < 2 * MEGA, "{threshold} {bytes} {us}: {one:?} {other:?}");
            }
        }
    }

    #[test]
    fn stages_of_recovery() {
        let mut how = published();
        (how.byte_reset, how.additive, how.hyper) = (1000, 100, 1000);
        let mut c = Congestion::default();
        c.told(Ps::ZERO, LINE, &how);
        c.told(Ps::from_us(60), LINE, &how);
        let target = |c: &Congestion| c.limit.as_ref().map_or(0, |limit| limit.target);
        let first = target(&c);
        // Bytes alone: fast recovery, then additive increase; with time, hyper increase.
        for _ in 0..4 {
            c.sent(Ps::from_us(61), 1000, &how);
        }
        assert_eq!(target(&c), first);
        c.sent(Ps::from_us(61), 1000, &how);
        assert_eq!(target(&c), first + 100 * MEGA);
        for _ in 0..2 {
            c.sent(Ps::from_us(61), 1000, &how);
        }
        c.holds(Ps::from_us(60 + 5 * 55), &how);
        let before = target(&c);
        c.holds(Ps::from_us(60 + 6 * 55), &how);
        assert_eq!(target(&c), before + 1000 * MEGA);
    }

    #[test]
    fn packets_keep_their_distance() {
        let (how, mut c) = (published(), Congestion::default());
        c.told(Ps::ZERO, LINE, &how);
        assert_eq!(c.holds(Ps::ZERO, &how), None);
        assert!(!c.sent(Ps::ZERO, 2500, &how));
        // 20 Gb/s: a microsecond.
        let next = c.holds(Ps::ZERO, &how).expect("it waits");
        assert!(next.0.abs_diff(Ps::from_us(1).0) < 1000, "{next}");
        assert_eq!(c.holds(next, &how), None);
        // Slow flows look again when the timer has run.
        let mut slow = ReactionPoint { first_rate: 1, ..published() };
        slow.least = 1;
        let mut c = Congestion::default();
        c.told(Ps::ZERO, LINE, &slow);
        c.sent(Ps::ZERO, 4096, &slow);
        assert_eq!(c.holds(Ps::ZERO, &slow), Some(Ps::from_us(55)));
    }

    #[test]
    fn limits() {
        let mut how = published();
        (how.least, how.least_left) = (1000, 80);
        let mut c = Congestion::default();
        c.told(Ps::ZERO, LINE, &how);
        assert!(near(c.rate(), 32.0));
        for n in 1..200 {
            c.told(Ps::from_us(51 * n), LINE, &how);
        }
        assert!(near(c.rate(), 1.0), "{:?}", c.rate());
        // Long after it is free again, whatever the numbers.
        let zero = ReactionPoint { time_reset: 0, byte_reset: 0, alpha_period: 0, gd: u32::MAX, ..how };
        c.holds(Ps::from_ms(60_000), &zero);
        assert!(c.sent(Ps::from_ms(60_000), 100, &zero) && !c.is_limited());
    }

    #[test]
    fn a_flow_is_told_so_often() {
        let how = NotificationPoint { min_time: 4, ..NotificationPoint::default() };
        let mut c = Congestion::default();
        let told: Vec<_> = (0..10).filter(|us| c.tells(Ps::from_us(*us), &how)).collect();
        assert_eq!(told, [0, 4, 8]);
    }
}
