//! Packets of one kind that wait to leave by a port, as times instead of packets: those of a run in full flow. Others may be among
//! them, of which the length is known besides.

use std::collections::VecDeque;

use crate::ground::time::Ps;

/// Packets that wait for a lane, and nothing for any other: they are taken out, and the times are left.
#[derive(Debug)]
pub(crate) struct Lifted {
    pub(super) vl: u8,
    /// What all are but the `others`.
    pub(super) alike: Size,
    /// Packets of other sizes, each by its number in the order of leaving.
    pub(super) others: VecDeque<(u64, Size)>,
    /// Number of the first. Where there are no others nobody counts.
    pub(super) number: u64,
    /// When each can leave at the earliest.
    pub(super) ready: VecDeque<Ps>,
    /// When the first of them became that.
    pub(super) first_since: Ps,
}

/// How long a packet is, and what it takes of credits and of the link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(super) len: usize,
    pub(super) blocks: u32,
    pub(super) time: Ps,
}

/// What becomes of the first packet of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// There is none.
    None,
    /// It leaves, so many bytes: its first byte does then, which is not later than now.
    Sent(Ps, usize),
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

    /// What each takes of the link, but others.
    #[inline]
    pub(crate) fn time(&self) -> Ps {
        self.alike.time
    }

    /// Whether all are of one size.
    #[inline]
    pub(crate) fn are_alike(&self) -> bool {
        self.others.is_empty()
    }

    /// The size of the first.
    #[inline]
    pub(super) fn first(&self) -> Size {
        match self.others.front() {
            Some((number, size)) if *number == self.number => *size,
            _ => self.alike,
        }
    }

    /// One of that size joins them.
    #[inline]
    pub(super) fn join(&mut self, ready: Ps, size: impl FnOnce() -> Size, len: usize) {
        if len != self.alike.len {
            self.others.push_back((self.number + self.ready.len() as u64, size()));
        }
        self.ready.push_back(ready);
    }

    /// The first leaves.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.ready.pop_front();
        if self.others.front().is_some_and(|(number, _)| *number == self.number) {
            self.others.pop_front();
        }
        self.number += 1;
    }

    /// One joins them then, if any does, and the first leaves later.
    #[inline]
    pub(crate) fn turn_over(&mut self, joins: Option<Ps>) {
        self.ready.extend(joins);
        self.ready.pop_front();
    }
}
