//! Packets of one kind that wait to leave by a port, as times instead of packets: those of a run in full flow.

use std::collections::VecDeque;

use crate::ground::time::Ps;

/// Packets of one length that wait for a lane, and nothing for any other: they are taken out, and the times are left.
#[derive(Debug)]
pub(crate) struct Lifted {
    pub(super) vl: u8,
    pub(super) len: usize,
    /// What each takes of credits and of the link.
    pub(super) blocks: u32,
    pub(super) time: Ps,
    /// When each can leave at the earliest.
    pub(super) ready: VecDeque<Ps>,
    /// When the first of them became that.
    pub(super) first_since: Ps,
}

/// What becomes of the first packet of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// There is none.
    None,
    /// It leaves: its first byte does then, which is not later than now.
    Sent(Ps),
    /// It leaves then, if nothing comes between.
    Then(Ps),
    /// Something holds it back that has to be looked at in whole.
    Held,
}

impl Lifted {
    /// How many packets wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// What each takes of the link.
    #[inline]
    pub(crate) fn time(&self) -> Ps {
        self.time
    }

    /// One joins them then, if any does, and the first leaves later.
    #[inline]
    pub(crate) fn turn_over(&mut self, joins: Option<Ps>) {
        self.ready.extend(joins);
        self.ready.pop_front();
    }
}
