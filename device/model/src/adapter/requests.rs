//! Requests wait where those under way take as much of the server's memory as they may ([`crate::engines::qp::kept`]).

use std::collections::BTreeSet;
use std::ops::Bound;

use hca_spec::ids::Qpn;

use super::Executor;
use super::core::Core;
use crate::engines::qp::QueuePair;
use crate::engines::qp::kept::Kept;
use crate::ground::event::{Event, Hold};
use crate::ground::time::Ps;

/// Queue pairs that have a turn in one event when there is memory again: others come after the next.
const MOST_TURNS: usize = 64;

/// The requests of a function.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) kept: Kept,
    /// Queue pairs that wait for memory.
    waiting: BTreeSet<Qpn>,
    /// The one that had a turn last.
    last: Qpn,
}

impl Default for Requests {
    fn default() -> Self {
        Self { kept: Kept::default(), waiting: BTreeSet::new(), last: Qpn(0) }
    }
}

impl Requests {
    /// All queue pairs are gone, and their requests with them: what those take that are let go of elsewhere is no part of it any more.
    pub(crate) fn reset(&mut self) {
        *self = Self { kept: self.kept.anew(), ..Self::default() };
    }

    /// The next queue pair that may go on: each has its turn.
    fn next(&mut self) -> Option<Qpn> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.waiting.range(behind).next().or(self.waiting.first()).copied()?;
        self.waiting.remove(&next);
        self.last = next;
        Some(next)
    }
}

impl Core<'_> {
    /// Whether a queue pair has to wait before it begins another request.
    #[inline]
    pub(super) fn waits_for_memory(&mut self, now: Ps, qp: &QueuePair) -> bool {
        let waits = self.function.requests.kept.is_spent();
        if waits {
            self.function.requests.waiting.insert(qp.qpn);
            self.note(now, Event::Held { qpn: qp.qpn, why: Hold::Memory });
        }
        waits
    }
}

impl Executor<'_> {
    /// After an event: who waited for memory goes on, if there is some.
    #[inline(always)]
    pub(super) fn go_on_with_requests(&mut self, now: Ps) {
        if !self.core.function.requests.waiting.is_empty() {
            self.give_memory(now);
        }
    }

    #[cold]
    fn give_memory(&mut self, now: Ps) {
        let Self { core, qps, .. } = self;
        for _ in 0..MOST_TURNS {
            let requests = &mut core.function.requests;
            if requests.kept.is_spent() {
                return;
            }
            let Some(qpn) = requests.next() else { return };
            if let Some(qp) = qps.get_mut(qpn.0).filter(|qp| qp.sends()) {
                core.ask_turn(now, qp);
            }
        }
    }
}
