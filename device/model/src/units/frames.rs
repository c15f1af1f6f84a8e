//! What frames of all Ethernet queues pass in one direction: first what parses or finishes each, then the look-ups in flow tables.
//!
//! Both are pipelines: a frame keeps a stage for its time, and the next may follow.

use super::Calendar;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::ground::timing::Timing;

/// log2 of the calendars' pages in ps: 16 ns, about a frame.
const PAGE: u32 = 14;

/// Look-ups that bring a frame to its queues, or out by the port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookups {
    /// Flow tables.
    pub tables: u32,
    /// Tables of queues that its hash chose from.
    pub hashes: u32,
}

/// The pipelines of one direction.
#[derive(Clone, Debug)]
pub(super) struct FramePipe {
    frames: Calendar,
    steering: Calendar,
    frame: Ps,
    hop: Ps,
    hash: Ps,
}

impl FramePipe {
    /// Of frames that arrive.
    pub(super) fn inward(timing: &Timing) -> Self {
        Self::new(timing, timing.profile().ethernet.receive_ns.0)
    }

    /// Of frames that are sent.
    pub(super) fn outward(timing: &Timing) -> Self {
        Self::new(timing, timing.profile().ethernet.send_ns.0)
    }

    fn new(timing: &Timing, frame: Ps) -> Self {
        let ethernet = &timing.profile().ethernet;
        let (hop, hash) = (ethernet.hop_ns.0, ethernet.hash_ns.0);
        Self { frames: Calendar::new(1, PAGE), steering: Calendar::new(1, PAGE), frame, hop, hash }
    }

    /// When a frame has passed that is there from `start` on.
    pub(super) fn pass(&mut self, now: Ps, start: Ps, lookups: Lookups) -> Ps {
        let known = self.frames.admit(now, start, self.frame);
        let hops = self.hop.times(lookups.tables.into()) + self.hash.times(lookups.hashes.into());
        if hops == Ps::ZERO { known } else { self.steering.admit(now, known, hops) }
    }
}

impl Rebase for FramePipe {
    fn rebase(&mut self, by: Ps) {
        let Self { frames, steering, frame: _, hop: _, hash: _ } = self;
        frames.rebase(by);
        steering.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::timing::Profile;

    const FRAMES: u64 = 1000;

    /// Time for each of many frames that are there at once.
    fn each(tables: u32) -> u64 {
        let mut pipe = FramePipe::inward(&Timing::new(&Profile::connectx4()));
        let lookups = Lookups { tables, hashes: 1 };
        let last = (0..FRAMES).map(|_| pipe.pass(Ps::ZERO, Ps::ZERO, lookups)).max();
        last.map_or(0, |last| last.0 / FRAMES)
    }

    #[test]
    fn the_slower_stage_says_how_many_pass() {
        let profile = Profile::connectx4();
        let ethernet = &profile.ethernet;
        let near = |found: u64, wanted: Ps| assert!(found.abs_diff(wanted.0) < 100, "{found} {wanted}");
        near(each(1), ethernet.receive_ns.0);
        near(each(64), ethernet.hop_ns.0.times(64) + ethernet.hash_ns.0);
    }

    #[test]
    fn a_frame_passes_one_stage_after_the_other() {
        let mut pipe = FramePipe::outward(&Timing::new(&Profile::connectx4()));
        let start = Ps::from_ns(500);
        let plain = pipe.pass(Ps::ZERO, start, Lookups::default());
        assert_eq!(plain, start + pipe.frame);
        let later = Ps::from_us(5);
        let looked = pipe.pass(later, later, Lookups { tables: 3, hashes: 0 });
        assert_eq!(looked, later + pipe.frame + pipe.hop.times(3));
    }
}
