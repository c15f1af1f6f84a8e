//! How far a world runs before its owner is asked.
//!
//! The owner is asked after a moment, and after an event. Between packets in the middle of a message, of which nobody is told, he is
//! asked without being shown the world, so that they need not be put where others see them.

use super::World;
use crate::ground::time::Ps;

/// Says after each event whether one more may run.
pub trait Allowance {
    /// An event has run: whether one more may.
    fn may(&mut self, world: &World) -> bool;

    /// The same after an event of which nothing comes that an owner sees but the time and what ports count: no effect, no captured
    /// packet. `None`: only [`Allowance::may`] can say.
    fn may_unseen(&mut self) -> Option<bool> {
        None
    }

    /// How many such events may run before [`Allowance::may_unseen`] has something to say.
    fn unasked(&self) -> u32 {
        0
    }

    /// So many of those have run.
    fn ran_unasked(&mut self, _events: u32) {}
}

impl<F: FnMut(&World) -> bool> Allowance for F {
    fn may(&mut self, world: &World) -> bool {
        self(world)
    }
}

/// How far a world may run without that its owner is asked, as long as nothing happens that he sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unasked {
    /// Until then.
    pub(super) until: Ps,
    /// For so many moments.
    pub(super) moments: u32,
    /// For so many events.
    pub(super) events: u32,
}

/// What the owner wants.
pub(super) trait Pace {
    /// All that is due has run: whether what is due next is to run.
    fn more(&mut self, world: &World) -> bool;

    /// The same where that is due at `next`, and nothing has changed that an owner sees since there were, or were no, `effects`.
    fn more_unseen(&mut self, next: Ps, effects: bool) -> bool;

    /// [`Allowance::may`].
    fn may(&mut self, world: &World) -> bool;

    /// [`Allowance::may_unseen`].
    fn may_unseen(&mut self) -> Option<bool>;

    /// How far [`Pace::more_unseen`] and [`Pace::may_unseen`] would let it go on.
    fn unasked(&self, effects: bool) -> Unasked;

    /// So many moments and events passed without that they were called.
    fn ran_unasked(&mut self, moments: u32, events: u32);
}

/// What is due, and no more.
pub(super) struct OnlyDue;

impl Pace for OnlyDue {
    fn more(&mut self, _: &World) -> bool {
        false
    }

    fn more_unseen(&mut self, _: Ps, _: bool) -> bool {
        false
    }

    fn may(&mut self, _: &World) -> bool {
        true
    }

    fn may_unseen(&mut self) -> Option<bool> {
        Some(true)
    }

    fn unasked(&self, _: bool) -> Unasked {
        Unasked { until: Ps::ZERO, moments: 0, events: u32::MAX }
    }

    fn ran_unasked(&mut self, _: u32, _: u32) {}
}

/// What is due at or before `until`, as long as it is allowed.
pub(super) struct Within<A> {
    pub(super) until: Ps,
    pub(super) allowance: A,
    /// Whether that was all.
    pub(super) all: bool,
}

impl<A: Allowance> Pace for Within<A> {
    fn more(&mut self, world: &World) -> bool {
        self.all = world.next_at().is_none_or(|next| next > self.until);
        !self.all
    }

    fn more_unseen(&mut self, next: Ps, _: bool) -> bool {
        self.all = next > self.until;
        !self.all
    }

    fn may(&mut self, world: &World) -> bool {
        self.allowance.may(world)
    }

    fn may_unseen(&mut self) -> Option<bool> {
        self.allowance.may_unseen()
    }

    fn unasked(&self, _: bool) -> Unasked {
        Unasked { until: self.until, moments: u32::MAX, events: self.allowance.unasked() }
    }

    fn ran_unasked(&mut self, _: u32, events: u32) {
        self.allowance.ran_unasked(events);
    }
}

/// So many moments, until there is an effect or it is enough.
pub(super) struct Moments<F> {
    pub(super) most: u32,
    pub(super) passed: u32,
    pub(super) enough: F,
}

impl<F: Fn() -> bool> Pace for Moments<F> {
    fn more(&mut self, world: &World) -> bool {
        self.more_unseen(world.now, world.has_effects())
    }

    #[inline]
    fn more_unseen(&mut self, _: Ps, effects: bool) -> bool {
        self.passed += 1;
        self.passed < self.most && !effects && !(self.enough)()
    }

    fn may(&mut self, _: &World) -> bool {
        true
    }

    fn may_unseen(&mut self) -> Option<bool> {
        Some(true)
    }

    fn unasked(&self, effects: bool) -> Unasked {
        let asks = effects || (self.enough)();
        let moments = if asks { 0 } else { self.most.saturating_sub(self.passed + 1) };
        Unasked { until: Ps::MAX, moments, events: u32::MAX }
    }

    fn ran_unasked(&mut self, moments: u32, _: u32) {
        self.passed += moments;
    }
}
