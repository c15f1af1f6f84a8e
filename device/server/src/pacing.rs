//! Live pacing: host time to model time.
//!
//! Model time is host time since the start, divided by the dilation. The engine lets the model
//! run ahead by at most one quantum, so that the stages of a pipeline don't wait for the host's
//! timers, while timers of protocols keep their distance (temporal decoupling, as in SystemC
//! TLM-2.0). In paced mode the quantum is nothing: no event runs before its time. Time never runs backwards: an access from outside happens at the mapped host time or
//! at the last event that has run, whichever is later.

use std::time::{Duration, Instant};

use hca_model::{Ps, World};

use crate::topology::{Mode, Time};

const PS_PER_NS: u64 = 1000;
const PS_PER_US: u64 = 1_000_000;
/// Events run before the engine looks at its sockets again.
const BATCH: usize = 1024;

/// The clock of one world.
#[derive(Debug)]
pub struct Pacer {
    start: Instant,
    dilation: f64,
    quantum: u64,
    /// Time of the last event that has run.
    reached: u64,
}

impl Pacer {
    /// Starts the clock.
    pub fn new(time: &Time) -> Pacer {
        Pacer {
            start: Instant::now(),
            dilation: time.dilation,
            quantum: match time.mode {
                Mode::Live => time.quantum_us.saturating_mul(PS_PER_US),
                Mode::Paced => 0,
            },
            reached: 0,
        }
    }

    fn host_now(&self) -> u64 {
        let elapsed = self.start.elapsed();
        if self.dilation == 1.0 {
            let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            return ns.saturating_mul(PS_PER_NS);
        }
        // Float-to-integer casts saturate.
        (elapsed.as_nanos() as f64 / self.dilation * PS_PER_NS as f64) as u64
    }

    /// The model time of an access that happens now.
    pub fn now(&self) -> Ps {
        Ps(self.host_now().max(self.reached))
    }

    /// Brings the world to the present, so that an access meets its true state.
    pub fn catch_up(&mut self, world: &mut World) -> Ps {
        let now = self.now();
        world.advance(now);
        self.reached = now.0;
        now
    }

    /// Runs what lies within one quantum of now. Returns true if there is more to do at once.
    pub fn run(&mut self, world: &mut World) -> bool {
        let bound = self.host_now().saturating_add(self.quantum);
        for _ in 0..BATCH {
            match world.next_event() {
                Some(Ps(at)) if at <= bound => {
                    world.advance(Ps(at));
                    self.reached = self.reached.max(at);
                }
                _ => return false,
            }
        }
        true
    }

    /// How long the host may sleep before [`Pacer::run`] has something to do; `None`: for ever.
    pub fn sleep(&self, world: &World) -> Option<Duration> {
        let Ps(at) = world.next_event()?;
        let wait = at.saturating_sub(self.quantum).saturating_sub(self.host_now());
        let ns = wait.div_ceil(PS_PER_NS);
        Some(if self.dilation == 1.0 {
            Duration::from_nanos(ns)
        } else {
            Duration::from_nanos((ns as f64 * self.dilation) as u64)
        })
    }
}
