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
//! that when there is less to do.

use std::time::{Duration, Instant};

use hca_model::{Ps, World};

use crate::topology::{Mode, Time};

const PS_PER_NS: u64 = 1000;
const PS_PER_US: u64 = 1_000_000;
/// Events between two looks at the host's clock: some microseconds.
const EVENTS: u32 = 8;

/// Captured packets that are written before more are run: 1 MiB of large ones, a millisecond of the host's disk cache.
const CAPTURED: usize = 256;

/// The clock of one world.
#[derive(Debug)]
pub struct Pacer {
    start: Instant,
    dilation: f64,
    quantum: u64,
    /// Time of the last event that has run.
    reached: u64,
    /// Host time for events before accesses, and as much for those after them.
    share: Duration,
    /// What is left of the share before accesses in this round.
    left: Duration,
}

/// Host time that runs out.
struct Timer {
    start: Instant,
    share: Duration,
    events: u32,
    /// Packets that were captured at the start.
    captured: usize,
}

impl Timer {
    fn new(share: Duration, world: &World) -> Self {
        Self { start: Instant::now(), share, events: 0, captured: world.captured_packets() }
    }

    /// An event has run: whether another one may.
    #[inline]
    fn may(&mut self, world: &World) -> bool {
        self.events = self.events.wrapping_add(1);
        if world.captured_packets().saturating_sub(self.captured) >= CAPTURED {
            return false;
        }
        !self.events.is_multiple_of(EVENTS) || self.start.elapsed() < self.share
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
            reached: 0,
            share,
            left: share,
        }
    }

    /// How far the model may run ahead.
    pub fn quantum(&self) -> Ps {
        Ps(self.quantum)
    }

    /// A round of the engine begins.
    pub fn begin_round(&mut self) {
        self.left = self.share;
    }

    fn host_now(&self) -> u64 {
        self.map(self.start.elapsed())
    }

    /// The model time, in ps, of a host time since the start.
    fn map(&self, elapsed: Duration) -> u64 {
        if self.dilation == 1.0 {
            let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            return ns.saturating_mul(PS_PER_NS);
        }
        // Float-to-integer casts saturate.
        (elapsed.as_nanos() as f64 / self.dilation * PS_PER_NS as f64) as u64
    }

    /// How far the model is behind the host's clock, in model time: something is due that has not run.
    pub fn lag(&self, world: &World) -> Ps {
        let host = self.host_now();
        world.next_event().map_or(Ps::ZERO, |next| Ps(host.saturating_sub(next.0)))
    }

    /// Brings the world to the present, so that an access meets its true state, or as far as this round's host time goes.
    /// Returns the time of the access.
    pub fn catch_up(&mut self, world: &mut World) -> Ps {
        let now = self.host_now().max(self.reached);
        let reached = if world.next_event().is_none_or(|next| next.0 > now) {
            now
        } else if self.left.is_zero() {
            world.now().0
        } else {
            let mut timer = Timer::new(self.left, world);
            let all = world.advance_within(Ps(now), |world| timer.may(world));
            self.left = self.left.saturating_sub(timer.start.elapsed());
            if all { now } else { world.now().0 }
        };
        self.reached = self.reached.max(reached);
        Ps(self.reached)
    }

    /// Runs what lies within one quantum of now. Returns true if there is more to do at once.
    pub fn run(&mut self, world: &mut World) -> bool {
        self.run_at(self.host_now(), world)
    }

    fn run_at(&mut self, host: u64, world: &mut World) -> bool {
        let bound = host.saturating_add(self.quantum);
        let due = |world: &World| world.next_event().is_some_and(|next| next.0 <= bound);
        if !due(world) {
            return false;
        }
        let mut timer = Timer::new(self.share, world);
        let mut all = world.advance_within(Ps(bound), |world| timer.may(world));
        // What is left are messages that come to the far sides of tunnels.
        while all && let Some(next) = world.next_event().filter(|next| next.0 <= bound) {
            world.advance(next);
            all = timer.may(world);
        }
        self.reached = self.reached.max(world.now().0);
        due(world)
    }

    /// How long the host may sleep before [`Pacer::run`] has something to do; `None`: for ever.
    pub fn sleep(&self, world: &World) -> Option<Duration> {
        self.sleep_at(self.host_now(), world)
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
    /// has nothing to do. Gives how far ahead of the host's time the model got, in ps.
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
    fn paced_no_event_runs_before_its_time() {
        for dilation in [1.0, 0.3, 1000.0] {
            let time = Time { mode: Mode::Paced, dilation, ..Time::default() };
            assert_eq!(ahead(time, 20), 0, "dilation {dilation}");
        }
    }

    #[test]
    fn live_the_model_runs_ahead_by_a_quantum_at_most() {
        let time = Time { quantum_us: 20, ..Time::default() };
        assert!((1..=20 * PS_PER_US).contains(&ahead(time, 20)));
    }
}
