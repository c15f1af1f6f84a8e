//! Which virtual lane sends next.
//!
//! Source: IBTA vol 1 7.6.9 (arbitration: two tables of lanes and weights, and a limit for the first), 14.2.5.9 (the
//! tables' attribute).

use hca_firmware::Port;
use hca_spec::mad::PortInfo;

use super::VL15;

/// Bytes of a weight of 1.
const WEIGHT_UNIT: u32 = 64;
/// Bytes of a high limit of 1.
const LIMIT_UNIT: u32 = 4096;
/// High limit that is none.
const NO_LIMIT: u8 = 255;
/// Entries of a table at most.
const ENTRIES: usize = 64;

/// An entry: a lane and how much it may send in its turn, in units of 64 bytes.
pub(crate) type Share = (u8, u8);

/// The tables as a subnet manager wrote them; a weight of zero takes an entry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) high: [Share; ENTRIES],
    pub(crate) low: [Share; ENTRIES],
    /// What the high table may send before the low one has a turn, in units of 4096 bytes; 255: no limit.
    pub(crate) high_limit: u8,
}

impl Default for Tables {
    fn default() -> Self {
        Self { high: [(0, 0); ENTRIES], low: [(0, 0); ENTRIES], high_limit: 0 }
    }
}

impl Tables {
    /// As they are in a port.
    pub(crate) fn of(port: &Port) -> Self {
        let info = port.info();
        let mut tables = Self { high_limit: info.get(PortInfo::VL_HIGH_LIMIT) as u8, ..Self::default() };
        let [low, low_rest, high, high_rest] = port.vl_arbitration();
        let fill = |table: &mut [Share], from: [&[u8; ENTRIES]; 2]| {
            let pairs = from.into_iter().flat_map(|half| half.as_chunks::<2>().0);
            table.iter_mut().zip(pairs).for_each(|(to, [lane, weight])| *to = (lane & 0xf, *weight));
        };
        fill(&mut tables.low, [low, low_rest]);
        fill(&mut tables.high, [high, high_rest]);
        tables
    }
}

/// A place in a table.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    index: usize,
    /// Bytes that the entry may still send in this turn.
    left: u32,
}

impl Place {
    /// The entry whose turn it is among lanes that are ready, from this place on.
    fn find(&self, table: &[Share], ready: u16) -> Option<(usize, u8)> {
        let fits = |index: usize| {
            let (lane, weight) = *table.get(index)?;
            let turn = weight > 0 && ready >> (lane & 0xf) & 1 == 1;
            turn.then_some((index, lane & 0xf))
        };
        if self.left > 0
            && let Some(same) = fits(self.index)
        {
            return Some(same);
        }
        // The whole table once, the entry at this place last.
        (1..=table.len()).find_map(|step| fits((self.index + step) % table.len()))
    }

    fn charge(&mut self, table: &[Share], index: usize, bytes: u32) {
        if index != self.index || self.left == 0 {
            let weight = table.get(index).map_or(0, |(_, weight)| u32::from(*weight));
            *self = Self { index, left: weight * WEIGHT_UNIT };
        }
        // A packet that was begun is sent whole: the turn may be overdrawn.
        self.left = self.left.saturating_sub(bytes);
    }
}

/// Takes turns among lanes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arbiter {
    tables: Box<Tables>,
    programmed: bool,
    high: Place,
    low: Place,
    /// Bytes of the high table since the low one had its turn.
    high_bytes: u32,
    /// Without tables: the lane that sent last.
    last: u8,
}

impl Arbiter {
    /// A subnet manager wrote the tables.
    pub(crate) fn program(&mut self, tables: Tables) {
        if *self.tables != tables {
            self.programmed = tables.high.iter().chain(&tables.low).any(|(_, weight)| *weight > 0);
            *self = Self { tables: Box::new(tables), programmed: self.programmed, ..Self::default() };
        }
    }

    /// The lane that sends now, among those whose bit is set in `ready`; `bytes` says how much it will be.
    pub(crate) fn pick(&mut self, ready: u16, bytes: impl Fn(u8) -> usize) -> Option<u8> {
        if ready == 0 {
            return None;
        }
        if ready >> VL15 & 1 == 1 {
            return Some(VL15);
        }
        let only = ready.trailing_zeros() as u8;
        if !self.programmed {
            if ready & (ready - 1) == 0 {
                self.last = only;
                return Some(only);
            }
            let next = (1..=16).map(|step| (self.last + step) % 16).find(|lane| ready >> lane & 1 == 1)?;
            self.last = next;
            return Some(next);
        }
        let size = |lane: u8| u32::try_from(bytes(lane)).unwrap_or(u32::MAX);
        let limit = match self.tables.high_limit {
            NO_LIMIT => u32::MAX,
            limit => u32::from(limit) * LIMIT_UNIT,
        };
        let high = self.high.find(&self.tables.high, ready);
        let low = self.low.find(&self.tables.low, ready);
        match (high, low) {
            // The limit counts only while something of the low table waits. At 0, one packet passes.
            (Some((index, lane)), low) if low.is_none() || self.high_bytes <= limit => {
                self.high.charge(&self.tables.high, index, size(lane));
                // One packet of the high table is over a limit of 0.
                self.high_bytes = self.high_bytes.saturating_add(size(lane).max(1));
                Some(lane)
            }
            (_, Some((index, lane))) => {
                self.low.charge(&self.tables.low, index, size(lane));
                self.high_bytes = 0;
                Some(lane)
            }
            // A lane that is in neither table: it is not stopped for ever, but comes behind the others.
            _ => Some(only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(arbiter: &mut Arbiter, ready: u16, packets: usize, size: usize) -> Vec<u8> {
        (0..packets).filter_map(|_| arbiter.pick(ready, |_| size)).collect()
    }

    fn table(entries: &[Share]) -> [Share; ENTRIES] {
        let mut table = [(0, 0); ENTRIES];
        table[..entries.len()].copy_from_slice(entries);
        table
    }

    #[test]
    fn without_tables_lanes_take_turns() {
        let mut a = Arbiter::default();
        assert_eq!(order(&mut a, 0b1011, 5, 100), [1, 3, 0, 1, 3]);
        assert_eq!(order(&mut a, 0x8001, 2, 100), [15, 15], "management first");
        assert_eq!(order(&mut a, 0, 1, 100), []);
    }

    #[test]
    fn weights_are_kept() {
        let mut a = Arbiter::default();
        // 3 * 64 bytes of lane 0, 64 of lane 1.
        a.program(Tables { low: table(&[(0, 3), (1, 1)]), ..Tables::default() });
        let sent = order(&mut a, 0b11, 400, 64);
        assert_eq!(sent.iter().filter(|l| **l == 0).count(), 300);
        assert_eq!(order(&mut a, 0b10, 3, 64), [1, 1, 1], "nobody else is ready");
        assert_eq!(order(&mut a, 0b100, 1, 64), [2], "in no table");
    }

    #[test]
    fn the_high_table_is_limited() {
        let high = Tables { high: table(&[(1, 255)]), low: table(&[(0, 1)]), high_limit: 255 };
        let mut a = Arbiter::default();
        a.program(high.clone());
        assert_eq!(order(&mut a, 0b11, 100, 4096), [1; 100], "no limit");
        a.program(Tables { high_limit: 1, ..high.clone() });
        let sent = order(&mut a, 0b11, 300, 4096);
        assert_eq!(sent.iter().filter(|l| **l == 0).count(), 100, "every third");
        a.program(Tables { high_limit: 0, ..high });
        assert_eq!(order(&mut a, 0b11, 4, 4096), [1, 0, 1, 0], "one packet");
        assert_eq!(order(&mut a, 0b10, 3, 4096), [1, 1, 1], "nothing of the low table waits");
    }
}
