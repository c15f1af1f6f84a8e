//! Requests wait where those under way take as much of the server's memory as they may ([`crate::engines::qp::kept`]).

use super::core::{Core, Executor};
use crate::engines::qp::QueuePair;
use crate::ground::event::{Event, Hold};
use crate::ground::time::Ps;

/// Queue pairs that have a turn in one event when there is memory again: others come after the next.
const MOST_TURNS: usize = 64;

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
