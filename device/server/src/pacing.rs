//! Live pacing: host time to model time.
//!
//! Model time is host time since the start, divided by the dilation. The engine lets the model
//! run ahead by at most one quantum, so that the stages of a pipeline don't wait for the host's
//! timers, while timers of protocols keep their distance (temporal decoupling, as in SystemC
//! TLM-2.0). In paced mode the quantum is nothing: no event runs before its time, so that nothing
//! reaches a guest before it does. Time never runs backwards: an access from outside happens at the
//! mapped host time or at the last event that has run, whichever is later.
//!
//! Host time for events has a bound in each round of the engine: half of its budget before accesses, so that they meet
//! the model's present state, and half after them. When events take longer than they simulate, the model falls behind
//! the host's clock ([`Pacer::lag`]): accesses then happen at the time that it has reached, and don't wait. It makes up for
//! that when there is less to do: at once, or, where other software is on a wire ([`Pacer::with_strangers`]), slowly. Somebody
//! whose time is the host's can't answer in time that is skipped, and timers would run out on him.

use std::time::{Duration, Instant};

use hca_model::{Allowance, DUE, EPOCH, Ps, World};

use crate::recording::{Record, Seam};
use crate::topology::{Mode, Time};

/// The clock shows no more before the start of time moves, which it does then: after a pause of months it has to move more than once.
const MOST: u64 = DUE.0 + EPOCH.0 / 8;
/// So often it moves in one round of the engine.
const MOVES: usize = 64;
const PS_PER_NS: u64 = 1000;
const PS_PER_US: u64 = 1_000_000;
/// Events between two looks at the host's clock: some microseconds. A power of two.
const EVENTS: u32 = 8;
/// When as many took longer than this, the clock is looked at after each: a single one may take a millisecond.
const LONG: Duration = Duration::from_micros(100);
/// With strangers, so much of the host's time is added to it while the model makes up for what it is behind: an eighth.
const MAKES_UP: u64 = 8;

/// Messages for other processes that wait before they are sent on and more is run: some 100 us of work of theirs, which they have to do besides, while
/// this one goes on. With all that a share of the budget gives they would take turns.
const LEAVING: usize = 64;
/// Interrupts that wait to be told before more is run: two calls of the system each, half a millisecond in all, which no budget counts.
const RAISED: usize = 256;
/// Captured packets that are written before more are run: 1 MiB of large ones, a millisecond of the host's disk cache.
const CAPTURED: usize = 256;

/// The clock of one world.
#[derive(Debug)]
pub struct Pacer {
    start: Instant,
    dilation: f64,
    quantum: u64,
    /// Set where somebody on a wire keeps the host's time.
    strangers: Option<Steady>,
    /// Time of the last event that has run.
    reached: u64,
    /// Host time for events before accesses, and as much for those after them.
    share: Duration,
    /// What is left of the share before accesses in this round.
    left: Duration,
    /// Events between two looks at the host's clock, as they took lately.
    stride: u32,
    /// Whether what it makes of the host's time is recorded, or taken from a recording.
    seam: Seam,
}

/// Events up to the next look at the clock, when those up to this one, `stride`, took so long.
fn next_stride(stride: u32, took: Duration) -> u32 {
    if took > LONG { 1 } else { (stride * 2).min(EVENTS) }
}

/// A clock that is never much faster than the host's.
#[derive(Debug, Default)]
struct Steady {
    /// The host's time when it was looked at.
    host: u64,
    /// What it showed then, which is not later.
    shown: u64,
}

impl Steady {
    /// What it shows when it is `host` there.
    fn at(&self, host: u64) -> u64 {
        let passed = host.saturating_sub(self.host);
        host.min(self.shown.saturating_add(passed).saturating_add(passed / MAKES_UP))
    }

    /// The same, remembered.
    fn look(&mut self, host: u64) -> u64 {
        let shown = self.at(host);
        (self.host, self.shown) = (self.host.max(host), shown);
        shown
    }

    /// The model has got no further.
    fn hold(&mut self, reached: u64) {
        self.shown = self.shown.min(reached);
    }
}

/// Host time that runs out.
struct Timer {
    start: Instant,
    share: Duration,
    events: u32,
    stride: u32,
    /// When the clock was looked at last, since the start.
    looked: Duration,
    /// Packets that were captured at the start.
    captured: usize,
}

impl Timer {
    fn new(share: Duration, stride: u32, world: &World) -> Self {
        let captured = world.captured_packets();
        Self { start: Instant::now(), share, events: 0, stride, looked: Duration::ZERO, captured }
    }

    /// Whether there is time for one more event. Looks at the clock now and then.
    #[inline]
    fn goes_on(&mut self) -> bool {
        if !self.events.is_multiple_of(self.stride) {
            return true;
        }
        let elapsed = self.start.elapsed();
        self.stride = next_stride(self.stride, elapsed.saturating_sub(self.looked));
        self.looked = elapsed;
        elapsed < self.share
    }
}

impl Allowance for &mut Timer {
    #[inline]
    fn may(&mut self, world: &World) -> bool {
        self.events = self.events.wrapping_add(1);
        world.captured_packets().saturating_sub(self.captured) < CAPTURED
            && world.leaving() < LEAVING
            && world.raised() < RAISED
            && self.goes_on()
    }

    #[inline]
    fn may_unseen(&mut self) -> Option<bool> {
        self.events = self.events.wrapping_add(1);
        Some(self.goes_on())
    }

    #[inline]
    fn unasked(&self) -> u32 {
        // After none of them is the clock looked at.
        self.stride.saturating_sub(1).saturating_sub(self.events.checked_rem(self.stride).unwrap_or(0))
    }

    #[inline]
    fn ran_unasked(&mut self, events: u32) {
        self.events = self.events.wrapping_add(events);
    }
}

impl Pacer {
    /// Starts the clock.
    pub fn new(time: &Time) -> Pacer {
        Pacer::since(Instant::now(), time)
    }

    /// A clock that was started then.
    pub fn since(start: Instant, time: &Time) -> Pacer {
        let share = Duration::from_millis(time.budget_ms) / 2;
        Pacer {
            start,
            dilation: time.dilation,
            quantum: match time.mode {
                Mode::Live => time.quantum_us.saturating_mul(PS_PER_US),
                Mode::Paced => 0,
            },
            strangers: None,
            reached: 0,
            share,
            left: share,
            stride: EVENTS,
            seam: Seam::Off,
        }
    }

    /// The clock was started so long ago.
    pub(crate) fn set_age(&mut self, age: Duration) {
        self.start = Instant::now().checked_sub(age).unwrap_or(self.start);
    }

    /// What it makes of the host's time is recorded from now on, or taken from a recording.
    pub(crate) fn set_seam(&mut self, seam: Seam) {
        self.seam = seam;
    }

    /// Where other software is on a wire: what the model is behind, it makes up for slowly.
    pub fn with_strangers(self) -> Pacer {
        Pacer { strangers: Some(Steady::default()), ..self }
    }

    /// How far the model may run ahead.
    pub fn quantum(&self) -> Ps {
        Ps(self.quantum)
    }

    /// A round of the engine begins.
    pub fn begin_round(&mut self) {
        self.left = self.share;
    }

    /// What events before accesses took of the host's time in this round.
    pub(crate) fn took(&self) -> Duration {
        self.share.saturating_sub(self.left)
    }

    /// The host's time, or what the model may make of it.
    fn host_now(&mut self) -> u64 {
        let host = self.map(self.start.elapsed());
        self.strangers.as_mut().map_or(host, |steady| steady.look(host))
    }

    /// The same, and nothing is remembered.
    fn shown(&self) -> u64 {
        let host = self.map(self.start.elapsed());
        self.strangers.as_ref().map_or(host, |steady| steady.at(host))
    }

    /// The model has not done what was due: with strangers its clock stays there.
    fn hold(&mut self, world: &World) {
        if let Some(steady) = &mut self.strangers {
            steady.hold(world.now().0);
        }
    }

    /// The model time, in ps, of a host time since the start.
    fn map(&self, elapsed: Duration) -> u64 {
        if self.dilation == 1.0 {
            let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            return ns.saturating_mul(PS_PER_NS).min(MOST);
        }
        // Float-to-integer casts saturate.
        ((elapsed.as_nanos() as f64 / self.dilation * PS_PER_NS as f64) as u64).min(MOST)
    }

    /// The start of the model's time moves if that is due, so that time does not end ([`World::rebase_if_due`]). Returns whether it did.
    pub fn move_start(&mut self, world: &mut World) -> bool {
        let mut moved = false;
        for _ in 0..MOVES {
            let present = self.map(self.start.elapsed()).max(self.reached);
            let Some(by) = world.rebase_if_due(Ps(present)) else { break };
            self.seam.keep(|| Record::Epoch);
            self.rebase(by);
            moved = true;
        }
        moved
    }

    /// Model time is earlier by `by`, a whole number of seconds.
    fn rebase(&mut self, by: Ps) {
        let seconds = by.as_ns() / 1_000_000_000;
        self.start += match self.dilation == 1.0 {
            true => Duration::from_secs(seconds),
            false => Duration::try_from_secs_f64(seconds as f64 * self.dilation).unwrap_or_default(),
        };
        self.reached = self.reached.saturating_sub(by.0);
        if let Some(Steady { host, shown }) = &mut self.strangers {
            *host = host.saturating_sub(by.0);
            *shown = shown.saturating_sub(by.0);
        }
    }

    /// How far the model is behind the host's clock, in model time: something is due that has not run.
    pub fn lag(&self, world: &World) -> Ps {
        let host = self.map(self.start.elapsed());
        world.next_event().map_or(Ps::ZERO, |next| Ps(host.saturating_sub(next.0)))
    }

    /// When what came over a wire, or a host's answer, is there: now, or, while something is due that has not run, at the time
    /// that the model has reached. How long it has waited then nobody knows, and so no timer runs out before it.
    pub fn arrival(&self, world: &World) -> Ps {
        if let Some(player) = self.seam.player() {
            return player.arrival(world);
        }
        let shown = self.shown();
        let behind = world.next_event().is_some_and(|next| next.0 <= shown);
        let at = self.reached.max(world.now().0).max(if behind { 0 } else { shown });
        self.seam.keep(|| Record::Now { at });
        Ps(at)
    }

    /// Brings the world to the present, so that an access meets its true state, or as far as this round's host time goes.
    /// Returns the time of the access.
    pub fn catch_up(&mut self, world: &mut World) -> Ps {
        if let Some(player) = self.seam.player() {
            return player.catch_up(world);
        }
        let now = self.host_now().max(self.reached);
        let reached = if world.next_event().is_none_or(|next| next.0 > now) {
            now
        } else if self.left.is_zero() {
            world.now().0
        } else {
            self.seam.keep(|| Record::Advance { until: now });
            let mut timer = Timer::new(self.left, self.stride, world);
            let all = world.advance_within(Ps(now), &mut timer);
            self.left = self.left.saturating_sub(timer.start.elapsed());
            self.stride = timer.stride;
            if !all {
                self.seam.keep(|| Record::Stopped { events: timer.events });
                self.hold(world);
            }
            if all { now } else { world.now().0 }
        };
        self.reached = self.reached.max(reached);
        self.seam.keep(|| Record::Now { at: self.reached });
        Ps(self.reached)
    }

    /// Runs what lies within one quantum of now. Returns true if there is more to do at once.
    pub fn run(&mut self, world: &mut World) -> bool {
        let host = self.host_now();
        let more = self.run_at(host, world);
        if more {
            self.hold(world);
        }
        more
    }

    fn run_at(&mut self, host: u64, world: &mut World) -> bool {
        let bound = host.saturating_add(self.quantum);
        let due = |world: &World| world.next_event().is_some_and(|next| next.0 <= bound);
        if !due(world) {
            return false;
        }
        self.seam.keep(|| Record::Run);
        self.seam.keep(|| Record::Advance { until: bound });
        let mut timer = Timer::new(self.share, self.stride, world);
        let mut all = world.advance_within(Ps(bound), &mut timer);
        if !all {
            self.seam.keep(|| Record::Stopped { events: timer.events });
        }
        // What is left are messages that come to the far sides of tunnels.
        while all && let Some(next) = world.next_event().filter(|next| next.0 <= bound) {
            self.seam.keep(|| Record::Skip { to: next.0 });
            world.advance(next);
            all = (&mut timer).may(world);
        }
        self.stride = timer.stride;
        self.reached = self.reached.max(world.now().0);
        due(world)
    }

    /// How long the host may sleep before [`Pacer::run`] has something to do; `None`: for ever.
    pub fn sleep(&self, world: &World) -> Option<Duration> {
        self.sleep_at(self.shown(), world)
    }

    fn sleep_at(&self, host: u64, world: &World) -> Option<Duration> {
        let Ps(at) = world.next_event()?;
        let wait = at.saturating_sub(self.quantum).saturating_sub(host);
        let ns = wait.div_ceil(PS_PER_NS);
        Some(if self.dilation == 1.0 {
            Duration::from_nanos(ns)
        } else {
            Duration::from_nanos((ns as f64 * self.dilation).ceil() as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use hca_model::HcaId;
    use hca_model::fault::{Fault, TimeAction, Trigger, What};

    use super::*;
    use crate::topology::Topology;

    /// Two adapters on a link.
    fn world() -> World {
        let text = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                    [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\nrate = \"edr\"\nwidth = 4\n";
        let topology = Topology::parse("test", text).unwrap();
        let part = topology.part(None).unwrap();
        crate::model::world(&topology, &part).unwrap().0
    }

    /// A cable is taken out and put in, `times` times; each time the host sleeps as told and then runs, until the model
    /// has nothing to do. Returns how far ahead of the host's time the model got, in ps.
    fn ahead(time: Time, times: usize) -> u64 {
        let (mut world, mut pacer) = (world(), Pacer::new(&time));
        let (mut elapsed, mut most, mut ran) = (Duration::ZERO, 0, 0);
        for _ in 0..times {
            let now = world.now().max(Ps(pacer.map(elapsed)));
            world.set_cable(now, 0, false);
            world.set_cable(now, 0, true);
            while let Some(wait) = pacer.sleep_at(pacer.map(elapsed), &world) {
                elapsed += wait.max(Duration::from_nanos(1));
                let (host, before) = (pacer.map(elapsed), world.now());
                while pacer.run_at(host, &mut world) {}
                ran += usize::from(world.now() > before);
                most = most.max(world.now().0.saturating_sub(host));
                let left = world.next_event().is_some_and(|next| next.0 <= host + pacer.quantum);
                assert!(!left, "nothing that is due is left behind");
            }
        }
        assert!(ran >= times, "{ran} rounds in which something happened");
        most
    }

    #[test]
    fn long_events_are_looked_at_one_by_one() {
        let (short, long) = (Duration::from_micros(5), Duration::from_millis(1));
        assert_eq!(next_stride(EVENTS, short), EVENTS);
        assert_eq!(next_stride(EVENTS, long), 1);
        assert_eq!(next_stride(1, long), 1);
        assert_eq!((next_stride(1, short), next_stride(4, short)), (2, EVENTS));
    }

    /// An adapter raises interrupts as fast as it likes: as many as may wait are told, and then the rest. Host time there is without end.
    #[test]
    fn interrupts_are_told_before_more_is_run() {
        let mut world = world();
        let every = Some(Ps::from_us(1));
        let what = What::Time { every, action: TimeAction::Interrupt(3) };
        let trigger = Trigger { count: Some(10 * RAISED as u64), from: world.now(), ..Trigger::default() };
        world.add_fault(Ps::ZERO, HcaId(0), Fault { name: "many".into(), what, trigger }).unwrap();
        let mut pacer = Pacer::new(&Time { budget_ms: 3_600_000, ..Time::default() });
        let (host, mut told) = (Ps::from_ms(1000).0, Vec::new());
        loop {
            let more = pacer.run_at(host, &mut world);
            match world.drain().len() {
                0 if !more => break,
                raised => told.push(raised),
            }
        }
        assert!(told.iter().all(|raised| *raised <= RAISED), "{told:?}");
        assert_eq!(told.iter().sum::<usize>(), 10 * RAISED);
        // Before an access, too.
        let more = Fault {
            name: "more".into(),
            what: What::Time { every, action: TimeAction::Interrupt(3) },
            trigger: Trigger { count: Some(10 * RAISED as u64), from: world.now(), ..Trigger::default() },
        };
        world.add_fault(world.now(), HcaId(0), more).unwrap();
        pacer.start = Instant::now() - Duration::from_secs(3600);
        pacer.begin_round();
        pacer.catch_up(&mut world);
        assert_eq!(world.raised(), RAISED);
    }

    #[test]
    fn paced_no_event_runs_before_its_time() {
        for dilation in [1.0, 0.3, 1000.0] {
            let time = Time { mode: Mode::Paced, dilation, ..Time::default() };
            assert_eq!(ahead(time, 20), 0, "dilation {dilation}");
        }
    }

    /// Years pass in which nobody calls, and links train as they do.
    #[test]
    fn time_does_not_end() {
        const YEARS: u64 = 2;
        for dilation in [1.0, 0.3, 0.001, 1000.0] {
            let host = Duration::from_secs(YEARS * 365 * 86_400);
            let time = Time { dilation, ..Time::default() };
            let (mut world, mut pacer) = (world(), Pacer::since(Instant::now() - host, &time));
            world.advance(Ps::from_ms(100));
            while pacer.move_start(&mut world) {}
            let now = pacer.catch_up(&mut world);
            assert!(now < DUE && now.0 < MOST, "{now}");
            let seconds = world.start().absolute(now) as f64 / 1e12;
            let wanted = host.as_secs_f64() / dilation;
            assert!((seconds / wanted - 1.0).abs() < 1e-6, "{seconds} s instead of {wanted}");
            world.set_cable(now, 0, false);
            world.set_cable(now, 0, true);
            let trains = world.next_event().expect("the link trains").since(now);
            assert!(trains > Ps::ZERO && trains < Ps::from_ms(20), "{trains}");
            world.advance(now + Ps::from_ms(50));
            assert!(world.link_is_up(0));
        }
    }

    /// Behind the host's clock the start moves when the model comes to it, whatever the clock shows.
    #[test]
    fn the_start_waits_for_what_is_due() {
        let mut pacer = Pacer::since(Instant::now(), &Time::default());
        let mut world = world();
        world.advance(Ps::from_ms(100));
        let at = EPOCH;
        world.set_cable(at, 0, false);
        world.set_cable(at, 0, true);
        pacer.reached = DUE.0 + 7;
        assert!(!pacer.move_start(&mut world), "something is due before");
        world.advance(DUE);
        assert!(pacer.move_start(&mut world) && !pacer.move_start(&mut world));
        assert_eq!((world.start().ps(), pacer.reached), (u128::from(EPOCH.0), DUE.0 + 7 - EPOCH.0));
    }

    #[test]
    fn a_steady_clock_makes_up_slowly() {
        let mut steady = Steady::default();
        assert_eq!(steady.look(1000), 1000, "nothing to make up for");
        steady.hold(200);
        assert_eq!(steady.look(1000), 200, "no time has passed");
        assert_eq!(steady.look(1800), 1100, "an eighth faster");
        assert_eq!(steady.look(8200), 8200, "as late as the host's, and not later");
        steady.hold(9000);
        assert_eq!(steady.look(8200), 8200, "who is ahead is not held");
        steady.hold(8000);
        assert_eq!(steady.look(8100), 8000, "the host's time does not run backwards");
    }

    /// The model is far behind; a timer that has long to go runs out when its time has passed, with strangers, and at once
    /// without.
    #[test]
    fn with_strangers_no_time_is_skipped() {
        for strangers in [false, true] {
            let mut world = world();
            let mut pacer = Pacer::since(Instant::now() - Duration::from_secs(3600), &Time::default());
            if strangers {
                pacer = pacer.with_strangers();
                // As if the model had got no further in this hour.
                pacer.host_now();
                pacer.hold(&world);
            }
            world.set_cable(Ps(0), 0, false);
            world.set_cable(Ps(0), 0, true);
            while pacer.run(&mut world) {}
            let late = world.now() > Ps::ZERO;
            assert!(!strangers || world.now() < Ps::from_ms(3_000_000), "{}", world.now());
            let waits = world.next_event().is_some();
            assert_eq!(waits, strangers, "training takes a while: late {late}");
        }
    }

    /// What comes over a wire into an idle model comes now; while something is due, it comes before that.
    #[test]
    fn arrivals() {
        const HOUR: Duration = Duration::from_secs(3600);
        let (mut world, hour) = (world(), Ps::from_ms(3_600_000));
        world.advance(Ps::from_ms(100));
        assert!(world.next_event().is_none(), "links are up, and nothing is to be done");
        let pacer = Pacer::since(Instant::now() - HOUR, &Time::default()).with_strangers();
        assert!(pacer.arrival(&world) >= hour, "{}", pacer.arrival(&world));
        world.set_cable(world.now(), 0, false);
        world.set_cable(world.now(), 0, true);
        let due = world.next_event().expect("the link trains");
        let at = pacer.arrival(&world);
        assert!(at == world.now() && at < due, "{at}, and {due} is due");
        let later = hour + hour;
        world.advance(later);
        world.set_cable(later, 0, true);
        assert_eq!(pacer.arrival(&world), later, "not before anything that has happened");
    }

    #[test]
    fn live_the_model_runs_ahead_by_a_quantum_at_most() {
        let time = Time { quantum_us: 20, ..Time::default() };
        assert!((1..=20 * PS_PER_US).contains(&ahead(time, 20)));
    }
}
