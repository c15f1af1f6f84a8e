//! Lists of indirect keys that are long to walk take the adapter's own time, and nobody else's.
//!
//! An entry of such a list is in the host's memory, and is read over PCIe: that is what one takes here, with nothing else on the link.
//! Meanwhile no unit begins a job, so that an adapter comes by no more entries in a second than its link brings, however many
//! queue pairs, keys and packets ask for that. How the hardware walks lists is not published; that its units look for entries side by side
//! would be a bound for each of them, and none for the adapter.

use super::Units;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Bytes of an entry (PRM "KLM").
const ENTRY: usize = 16;

/// What was walked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walks {
    /// No unit begins a job before that.
    pub(super) until: Ps,
    /// Entries that the adapter was charged for.
    pub(super) entries: u64,
}

impl Units {
    /// At `now` so many entries of lists were walked: behind what was walked before, that takes the time in which they come over PCIe.
    #[cold]
    pub(crate) fn walk(&mut self, now: Ps, entries: u32) {
        let takes = self.cost.completion((entries as usize).saturating_mul(ENTRY));
        self.walks.until = self.walks.until.max(now) + takes;
        self.walks.entries += u64::from(entries);
    }
}

impl Rebase for Walks {
    fn rebase(&mut self, by: Ps) {
        let Self { until, entries: _ } = self;
        until.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::timing::{Profile, Timing};
    use crate::units::Inbound;

    /// Nobody begins before a walk is over, whichever queue pair it was for, and walks follow each other.
    #[test]
    fn walks_hold_every_unit() {
        let timing = Timing::new(&Profile::connectx4());
        let mut units = Units::new(&timing);
        let (now, service) = (Ps::from_us(1), Ps::from_ns(60));
        let mut other = units.clone();
        for _ in 0..2 {
            units.walk(now, 1 << 16);
        }
        // A MiB each, by 8 GT/s and 16 lanes: some 75 us.
        let over = units.walks.until;
        assert!(over > now + Ps::from_us(130) && over < now + Ps::from_us(200), "{over}");
        assert_eq!((units.counts().entries, units.idle_from(now)), (1 << 17, over));
        let late = over.since(now);
        for number in [3, 9] {
            // What misses a cache is read meanwhile.
            let [held, free] = [&mut units, &mut other].map(|units| units.send(now, number, service));
            assert!(held >= over + service && held <= free + late, "{held} instead of {free}");
            let inbound = Inbound { bytes: 64, ..Inbound::default() };
            let [held, free] =
                [&mut units, &mut other].map(|units| units.receive(now, number, service, inbound));
            assert!(held >= free.max(over), "{held} instead of {free}");
        }
    }
}
