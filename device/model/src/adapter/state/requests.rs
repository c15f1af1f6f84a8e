//! The requests of a function that are under way: what they take of the server's memory, and who waits for some.

use std::collections::BTreeSet;
use std::ops::Bound;

use hca_spec::ids::Qpn;

use crate::engines::qp::kept::Kept;

/// The requests of a function.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) kept: Kept,
    /// Queue pairs that wait for memory.
    pub(in crate::adapter) waiting: BTreeSet<Qpn>,
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
    pub(in crate::adapter) fn next(&mut self) -> Option<Qpn> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.waiting.range(behind).next().or(self.waiting.first()).copied()?;
        self.waiting.remove(&next);
        self.last = next;
        Some(next)
    }
}
