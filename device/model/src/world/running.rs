//! Events, one after another, as far as the world's owner lets them.

use super::pace::{Allowance, Moments, OnlyDue, Pace, Within};
use super::{Effect, Event, World};
use crate::ground::time::Ps;

impl World {
    /// Runs every event that is due at or before `until`.
    #[inline]
    pub fn advance(&mut self, until: Ps) {
        self.run(until, &mut OnlyDue);
    }

    /// Runs events that are due at or before `until`, one at least, as long as one more `may` be run after each. Returns
    /// whether all of them have run. Model time is that of the last one.
    ///
    /// What the host may spend is asked between events, not between moments: any number of events may be due at one.
    #[inline]
    pub fn advance_within(&mut self, until: Ps, may: impl Allowance) -> bool {
        let Some(next) = self.next_at().filter(|next| *next <= until) else { return true };
        let mut pace = Within { until, allowance: may, all: false };
        self.run(next, &mut pace);
        pace.all
    }

    /// Runs events moment by moment: those due at or before `until`, then, as long as there are `more` to run, those of the
    /// next moment, and so on. Ends after an event after which none `may` be run.
    #[inline]
    pub(super) fn run(&mut self, mut until: Ps, pace: &mut impl Pace) {
        loop {
            if !self.trains.is_empty() && !self.run_with_trains(&mut until, pace) {
                return;
            }
            let next = self.heap.next_at();
            if next.is_none_or(|next| next > until) {
                self.now = self.now.max(until);
                self.check();
                let goes_on = pace.more(self);
                // To check may have made something due.
                let Some(next) = self.heap.next_at() else { return };
                if !goes_on {
                    return self.heap.pass(until);
                }
                until = until.max(next);
            }
            if let Some((at, event)) = self.heap.pop() {
                self.execute(at, event);
                if !pace.may(self) {
                    return;
                }
            }
        }
    }

    /// The same as [`World::execute`], not inlined.
    #[inline(never)]
    pub(super) fn execute_here(&mut self, at: Ps, event: Event) {
        self.execute(at, event);
    }

    /// An event happens.
    #[inline(always)]
    pub(super) fn execute(&mut self, at: Ps, event: Event) {
        self.now = self.now.max(at);
        match event {
            Event::Hca { hca, function, epoch, event } => self.event_of(hca, function, epoch, event),
            Event::Arrive { hca, port, packet, ingress } => self.arrive(at, hca, port, packet, ingress),
            Event::Forward(forwarded) => match self.is_current(forwarded.ingress) {
                true => self.switch_arrive(*forwarded),
                false => self.leave_buffer(forwarded.ingress),
            },
            Event::Agent(forwarded) => self.switch_agent(&forwarded),
            Event::SwitchTurn { switch, port } => self.switch_pump(switch, port),
            Event::SwitchPoll(switch) => self.switch_poll(switch),
            Event::Light { number, end, light } => self.light_arrives(number, end, light),
            Event::Credits { port } => self.credits_turn(at, port),
            Event::Trained { number, end, generation } => self.trained(number, end, generation),
            Event::Pause(port) => self.pause_again(port),
            Event::Sweep => self.sweep(),
            Event::Program(switch) => self.program(switch),
            Event::Script { hca, due } => self.script_due(hca, due),
            Event::Tidy => self.tidy_on(),
            Event::Doorbells(hca) => self.ring_held(hca),
        }
    }

    /// Runs events moment by moment: those due up to `now` first, then those of the next moment, and so on. Ends after so
    /// many moments, when there are effects or `enough` says so after one, or when no event waits. Returns how many moments passed; it is
    /// [`World::now`] then.
    pub fn advance_while(&mut self, now: Ps, moments: u32, enough: impl Fn() -> bool) -> u32 {
        let Some(next) = self.next_at().filter(|_| moments > 0) else { return 0 };
        let mut pace = Moments { most: moments, passed: 0, enough };
        self.run(next.max(now), &mut pace);
        pace.passed
    }

    /// When the next event is due.
    #[inline]
    pub(super) fn next_at(&self) -> Option<Ps> {
        let trains = self.trains.iter().filter_map(|train| train.next_at());
        self.heap.next_at().into_iter().chain(trains).min()
    }

    /// Whether effects wait to be taken.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// How many do.
    pub fn raised(&self) -> usize {
        self.effects.len()
    }

    /// When the next event is due, or the next message is at the far side of a tunnel.
    pub fn next_event(&self) -> Option<Ps> {
        let left = match self.tunnel_events.is_empty() {
            true => None,
            false => self.tunnel_events.range((self.now + Ps(1), 0)..).next().map(|((at, _), _)| *at),
        };
        let check = self.checker.as_ref().map(|checker| checker.due());
        self.next_at().into_iter().chain(left).chain(check).min()
    }

    /// Takes the effects since the last call.
    pub fn drain(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}
