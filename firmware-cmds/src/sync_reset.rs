//! A start of the firmware that the drivers of all functions are asked about first.
//!
//! One driver, or a tool, begins it (MFRL). The firmware asks every function whose driver can hear it; when all have agreed, it
//! tells them to let go; when the last has disabled its function, the firmware starts with what is in flash. A driver that
//! disagrees, or none that answers in time, ends it, and those that had agreed are told so.
//!
//! Source: the mlx5 driver (`fw_reset.c`) for events, answers and what drivers do between them, `mlx5_ifc.h` for the states.

use hca_spec::eqe::sync_reset;
use hca_spec::management::reset_state;

use crate::effect::Effect;
use crate::function::{FunctionId, Functions};

/// How long drivers have to answer, and then to let go: in each case in microseconds, what the mlx5 driver waits for both
/// (`tout.c`, PCI_SYNC_UPDATE). Real firmware's limits are not public.
pub const PATIENCE_US: u64 = 5_000_000;

/// Why it does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// One is under way: its state ([`reset_state`]).
    UnderWay(u32),
    /// No driver can hear of it.
    Nobody,
}

/// What is under way.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SyncReset {
    /// [`reset_state`]: of the one under way, or what the last one came to.
    state: u32,
    /// Whose drivers hear of it: they said so, and have the adapter up.
    hears: Functions,
    /// Asked, and no answer yet.
    asked: Functions,
    /// Agreed, and did not let go yet.
    agreed: Functions,
    /// Counts what drivers are waited for.
    waits: u32,
}

impl SyncReset {
    /// [`reset_state`], as drivers read it.
    pub(crate) fn state(&self) -> u32 {
        self.state
    }

    /// The driver of a function has it up, and hears; or does no more.
    pub(crate) fn hears(&mut self, function: FunctionId, does: bool, effects: &mut Vec<Effect>) {
        self.hears.set(function, does);
        // Who goes has nothing to say.
        if !does && self.state == reset_state::NEGOTIATION && self.asked.has(function) {
            self.asked.set(function, false);
            self.go_on(effects);
        }
    }

    /// Begins.
    pub(crate) fn begin(&mut self, effects: &mut Vec<Effect>) -> Result<(), NotNow> {
        if matches!(self.state, reset_state::NEGOTIATION | reset_state::IN_PROGRESS) {
            return Err(NotNow::UnderWay(self.state));
        }
        if self.hears.is_empty() {
            return Err(NotNow::Nobody);
        }
        self.state = reset_state::NEGOTIATION;
        (self.asked, self.agreed) = (self.hears, Functions::default());
        self.tell(self.asked, sync_reset::REQUEST, effects);
        self.wait(effects);
        Ok(())
    }

    /// A driver answers. Who comes too late is told that nothing comes of it.
    pub(crate) fn answer(&mut self, function: FunctionId, agrees: bool, effects: &mut Vec<Effect>) {
        if self.state != reset_state::NEGOTIATION || !self.asked.has(function) {
            if agrees && !self.agreed.has(function) {
                let mut late = Functions::default();
                late.set(function, true);
                self.tell(late, sync_reset::ABORT, effects);
            }
            return;
        }
        self.asked.set(function, false);
        if !agrees {
            return self.end(reset_state::REFUSED, effects);
        }
        self.agreed.set(function, true);
        self.go_on(effects);
    }

    /// It was waited for drivers long enough, if it is still that wait.
    pub fn late(&mut self, wait: u32, effects: &mut Vec<Effect>) {
        if wait == self.waits {
            match self.state {
                reset_state::NEGOTIATION => self.end(reset_state::NEGOTIATION_TIMEOUT, effects),
                reset_state::IN_PROGRESS => self.end(reset_state::UNLOAD_TIMEOUT, effects),
                _ => {}
            }
        }
    }

    /// A driver has disabled its function. Returns whether the firmware is to start now.
    #[must_use]
    pub fn disabled(&mut self, function: FunctionId) -> bool {
        self.agreed.set(function, false);
        self.state == reset_state::IN_PROGRESS && self.agreed.is_empty()
    }

    /// A function was reset: it was no start, so that nothing comes of one that was under way.
    pub fn function_reset(&mut self, function: FunctionId, effects: &mut Vec<Effect>) {
        self.hears.set(function, false);
        let concerned = self.asked.has(function) || self.agreed.has(function);
        self.asked.set(function, false);
        self.agreed.set(function, false);
        if concerned {
            self.end(reset_state::REFUSED, effects);
        }
    }

    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        if !self.asked.is_empty() {
            return;
        }
        if self.agreed.is_empty() {
            return self.end(reset_state::IDLE, effects);
        }
        self.state = reset_state::IN_PROGRESS;
        self.tell(self.agreed, sync_reset::NOW, effects);
        self.wait(effects);
    }

    fn end(&mut self, state: u32, effects: &mut Vec<Effect>) {
        // Those that were told to let go wait for no word.
        if self.state == reset_state::NEGOTIATION {
            self.tell(self.agreed, sync_reset::ABORT, effects);
        }
        self.state = state;
        (self.asked, self.agreed) = Default::default();
    }

    fn tell(&self, functions: Functions, what: u8, effects: &mut Vec<Effect>) {
        if !functions.is_empty() {
            effects.push(Effect::SyncReset { functions, what });
        }
    }

    fn wait(&mut self, effects: &mut Vec<Effect>) {
        self.waits = self.waits.wrapping_add(1);
        effects.push(Effect::SyncResetWaits(self.waits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: FunctionId = FunctionId(0);
    const B: FunctionId = FunctionId(1);

    /// Two functions whose drivers hear.
    fn two() -> (SyncReset, Vec<Effect>) {
        let (mut reset, mut effects) = (SyncReset::default(), Vec::new());
        reset.hears(A, true, &mut effects);
        reset.hears(B, true, &mut effects);
        assert_eq!(effects, []);
        (reset, effects)
    }

    fn told(effects: &mut Vec<Effect>) -> Vec<(u8, u8)> {
        let of = |effect| match effect {
            Effect::SyncReset { functions, what } => {
                Some((functions.iter().fold(0, |bits, f| bits | 1 << f.0), what))
            }
            _ => None,
        };
        effects.drain(..).filter_map(of).collect()
    }

    #[test]
    fn all_agree_and_let_go() {
        let (mut reset, mut effects) = two();
        reset.begin(&mut effects).unwrap();
        assert_eq!(reset.begin(&mut effects), Err(NotNow::UnderWay(reset_state::NEGOTIATION)));
        assert_eq!(told(&mut effects), [(3, sync_reset::REQUEST)]);
        reset.answer(B, true, &mut effects);
        reset.answer(B, true, &mut effects);
        assert_eq!((told(&mut effects), reset.state()), (vec![], reset_state::NEGOTIATION));
        assert!(!reset.disabled(FunctionId(3)));
        reset.answer(A, true, &mut effects);
        assert_eq!(
            (told(&mut effects), reset.state()),
            (vec![(3, sync_reset::NOW)], reset_state::IN_PROGRESS)
        );
        assert_eq!(reset.begin(&mut effects), Err(NotNow::UnderWay(reset_state::IN_PROGRESS)));
        assert_eq!((reset.disabled(A), reset.disabled(B)), (false, true));
    }

    #[test]
    fn one_disagrees() {
        let (mut reset, mut effects) = two();
        reset.begin(&mut effects).unwrap();
        reset.answer(A, true, &mut effects);
        told(&mut effects);
        reset.answer(B, false, &mut effects);
        assert_eq!((told(&mut effects), reset.state()), (vec![(1, sync_reset::ABORT)], reset_state::REFUSED));
        reset.answer(B, true, &mut effects);
        assert_eq!(told(&mut effects), [(2, sync_reset::ABORT)], "too late");
        assert!(!reset.disabled(A));
        reset.begin(&mut effects).unwrap();
        assert_eq!(reset.state(), reset_state::NEGOTIATION, "and again");
    }

    #[test]
    fn one_says_nothing() {
        let (mut reset, mut effects) = two();
        reset.begin(&mut effects).unwrap();
        assert_eq!(effects.pop(), Some(Effect::SyncResetWaits(1)));
        reset.answer(A, true, &mut effects);
        told(&mut effects);
        reset.late(1, &mut effects);
        assert_eq!(told(&mut effects), [(1, sync_reset::ABORT)]);
        assert_eq!(reset.state(), reset_state::NEGOTIATION_TIMEOUT);
        reset.begin(&mut effects).unwrap();
        told(&mut effects);
        reset.late(1, &mut effects);
        assert_eq!(reset.state(), reset_state::NEGOTIATION, "that was the wait of before");
        [A, B].into_iter().for_each(|function| reset.answer(function, true, &mut effects));
        told(&mut effects);
        reset.late(3, &mut effects);
        assert_eq!((told(&mut effects), reset.state()), (vec![], reset_state::UNLOAD_TIMEOUT));
        assert!(!reset.disabled(A) && !reset.disabled(B));
    }

    /// A driver that goes does not hold it up; a reset of its function ends it.
    #[test]
    fn one_goes() {
        let (mut reset, mut effects) = two();
        reset.begin(&mut effects).unwrap();
        reset.answer(A, true, &mut effects);
        told(&mut effects);
        reset.hears(B, false, &mut effects);
        assert_eq!(told(&mut effects), [(1, sync_reset::NOW)]);
        let (mut reset, mut effects) = two();
        reset.begin(&mut effects).unwrap();
        reset.answer(A, true, &mut effects);
        told(&mut effects);
        reset.function_reset(B, &mut effects);
        assert_eq!((told(&mut effects), reset.state()), (vec![(1, sync_reset::ABORT)], reset_state::REFUSED));
        reset.hears(A, false, &mut effects);
        assert_eq!(reset.begin(&mut effects), Err(NotNow::Nobody));
        let (mut reset, mut effects) = two();
        reset.begin(&mut effects).unwrap();
        [A, B].into_iter().for_each(|function| reset.hears(function, false, &mut effects));
        assert_eq!(reset.state(), reset_state::IDLE, "nobody is left");
    }
}
