//! Places of packets in the input buffers of a switch.

use super::queueing::Taken;
use super::transfer::Ingress;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// A packet's place in an input buffer.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    pub(super) ingress: Ingress,
    /// Ports that it has to leave by.
    pub(super) copies: usize,
    /// When the last of them so far is done.
    pub(super) until: Ps,
    /// The packet turns out to be bad.
    pub(super) bad: bool,
    /// What it takes of the memory that is shared, on Ethernet.
    pub(super) taken: Taken,
}

/// Places of packets in the input buffers; what is free is used again.
#[derive(Default)]
pub(super) struct Holds {
    places: Vec<Hold>,
    free: Vec<usize>,
}

impl Holds {
    /// Of packets that take no place: they were made in the switch.
    pub(super) const NONE: usize = usize::MAX;

    pub(super) fn take(&mut self, hold: Hold) -> usize {
        match self.free.pop() {
            Some(place) => {
                if let Some(slot) = self.places.get_mut(place) {
                    *slot = hold;
                }
                place
            }
            None => {
                self.places.push(hold);
                self.places.len() - 1
            }
        }
    }

    pub(super) fn is_bad(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|hold| hold.bad)
    }

    /// A copy has left; returns the place and the time when it is free, if it was the last.
    pub(super) fn leave(&mut self, place: usize, at: Ps) -> Option<Hold> {
        let hold = self.places.get_mut(place)?;
        hold.until = hold.until.max(at);
        hold.copies = hold.copies.saturating_sub(1);
        (hold.copies == 0).then(|| {
            self.free.push(place);
            *hold
        })
    }
}

impl Rebase for Hold {
    fn rebase(&mut self, by: Ps) {
        let Self { until, ingress: _, copies: _, bad: _, taken: _ } = self;
        until.rebase(by);
    }
}

impl Rebase for Holds {
    fn rebase(&mut self, by: Ps) {
        let Self { places, free: _ } = self;
        places.rebase(by);
    }
}
