//! What packets of all queue pairs pass one after the other before they leave, where the units that send share it: each keeps it for a
//! time, and for some more with each line of data.

use super::{Calendar, Units};
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::ground::timing::{Place, Timing};

/// log2 of the calendar's pages in ps: 33 ns, about a packet.
const PAGE: u32 = 15;
/// log2 of the bytes of a line.
const LINE: u32 = 6;

/// Lines of memory that a range touches.
fn lines_touched(data: &Place) -> u64 {
    let Some(last) = (data.len as u64).checked_sub(1) else { return 0 };
    (data.va.saturating_add(last) >> LINE) - (data.va >> LINE) + 1
}

/// One for all units of an adapter, or none.
#[derive(Clone, Debug)]
pub(super) struct SharedStage {
    packets: Calendar,
    packet: Ps,
    line: Ps,
}

impl SharedStage {
    pub(super) fn new(timing: &Timing) -> Self {
        let send = &timing.profile().send;
        let (packet, line) = (send.shared_ns.0, send.shared_line_ns.0);
        Self { packets: Calendar::new(1, PAGE), packet, line }
    }

    /// Whether units share anything.
    pub(super) fn is_there(&self) -> bool {
        self.packet > Ps::ZERO || self.line > Ps::ZERO
    }

    /// When a packet with so many lines of data has passed that is there from `ready` on.
    pub(super) fn pass(&mut self, now: Ps, ready: Ps, lines: u64) -> Ps {
        match self.packet + self.line.times(lines) {
            Ps::ZERO => ready,
            service => self.packets.admit(now, ready, service),
        }
    }
}

impl Units {
    /// When a packet of queue pair `number` is put together that a unit is done with at `free`: its data is read as
    /// [`Units::gather`] does, and it passes what the units share. Of a WQE with data in it `further` lines are behind the first,
    /// which nobody counts where nothing is shared.
    #[inline]
    pub fn put_together(
        &mut self,
        now: Ps,
        number: u32,
        free: Ps,
        further: impl FnOnce() -> u64,
        spans: impl Iterator<Item = Place>,
    ) -> Ps {
        if !self.shared.is_there() {
            return self.gather(now, number, free, spans);
        }
        let mut lines = further();
        let ready = self.gather(now, number, free, spans.inspect(|span| lines += lines_touched(span)));
        self.shared.pass(now, ready, lines)
    }
}

impl Rebase for SharedStage {
    fn rebase(&mut self, by: Ps) {
        let Self { packets, packet: _, line: _ } = self;
        packets.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(packet: u64, line: u64) -> SharedStage {
        SharedStage { packets: Calendar::new(1, PAGE), packet: Ps::from_ns(packet), line: Ps::from_ns(line) }
    }

    #[test]
    fn lines_are_those_of_memory() {
        let lines = |va, len| lines_touched(&Place { key: 1, va, len, page: None });
        assert_eq!([lines(0, 0), lines(64, 1), lines(64, 64), lines(127, 2), lines(8, 128)], [0, 1, 1, 2, 3]);
        assert_eq!(lines(u64::MAX, 2), 1, "nothing is behind the last byte");
    }

    #[test]
    fn packets_pass_one_after_the_other() {
        let mut stage = stage(30, 8);
        assert!(stage.is_there());
        // The begin of a page of the calendar.
        let start = Ps(1 << 20);
        let ends = [0, 2, 0].map(|lines| stage.pass(Ps::ZERO, start, lines).0 - start.0);
        assert_eq!(ends, [30_000, 76_000, 106_000]);
    }

    #[test]
    fn where_nothing_is_shared_nothing_waits() {
        let mut stage = stage(0, 0);
        assert!(!stage.is_there());
        let start = Ps::from_us(1);
        assert_eq!([5, 5].map(|lines| stage.pass(Ps::ZERO, start, lines)), [start, start]);
    }
}
