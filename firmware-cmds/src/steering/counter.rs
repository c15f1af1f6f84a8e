//! Flow counters: packets and octets of the entries that name them.
//!
//! Counters are allocated one by one or in bulks with numbers in a row. A bulk's first number is a multiple of its size,
//! rounded up to a power of two; so bits 23..20 of a number say how large its bulk is, and the rest which one it is.
//!
//! Source: mlx5 driver (use of bulks, `fs_counters.c`).

use std::cell::Cell;

use crate::table::Table;

/// What a counter has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Octets: of frames, without FCS.
    pub octets: u64,
}

/// log2 of the numbers of a class.
const CLASS_SHIFT: u32 = 20;
/// Classes: bulks of 2^class counters.
const CLASSES: u32 = 16;

#[derive(Debug)]
struct Bulk {
    counters: Box<[Cell<Traffic>]>,
    /// Entries that name one of them.
    users: u32,
}

/// Why counters can't be had or given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoCounter {
    /// As many as offered are allocated.
    Full,
    /// There is none of that number, or it is within a bulk.
    None,
    /// So many entries name it.
    Used(u32),
}

/// All flow counters.
#[derive(Debug)]
pub(super) struct Counters {
    classes: Vec<Table<Bulk>>,
    /// Most counters.
    most: u32,
    total: u32,
}

/// Class, and number within it.
fn split(id: u32) -> (u32, u32) {
    (id >> CLASS_SHIFT, id & ((1 << CLASS_SHIFT) - 1))
}

impl Counters {
    pub(super) fn new(most: u32) -> Self {
        // Number 0 names none.
        let table = |class: u32| {
            let first = u32::from(class == 0);
            Table::new(first, (1 << (CLASS_SHIFT - class)) - first)
        };
        Self { classes: (0..CLASSES).map(table).collect(), most, total: 0 }
    }

    /// Bulks, single counters included.
    pub(super) fn bulks(&self) -> u32 {
        self.classes.iter().map(Table::len).sum()
    }

    /// Counters in bulks of more than one.
    pub(super) fn in_bulks(&self) -> u32 {
        self.total.saturating_sub(self.classes.first().map_or(0, Table::len))
    }

    /// Allocates `count` counters; the first number.
    pub(super) fn alloc(&mut self, count: u32) -> Result<u32, NoCounter> {
        let total =
            self.total.checked_add(count).filter(|total| *total <= self.most).ok_or(NoCounter::Full)?;
        let class = count.max(1).next_power_of_two().trailing_zeros();
        let table = self.classes.get_mut(class as usize).ok_or(NoCounter::Full)?;
        let counters = (0..count).map(|_| Cell::default()).collect();
        let index = table.insert(Bulk { counters, users: 0 }).map_err(|_| NoCounter::Full)?;
        self.total = total;
        Ok(class << CLASS_SHIFT | index << class)
    }

    /// Gives back what was allocated under that number.
    pub(super) fn dealloc(&mut self, id: u32) -> Result<(), NoCounter> {
        let (class, at) = split(id);
        let table = self.classes.get_mut(class as usize).ok_or(NoCounter::None)?;
        let index = at >> class;
        let bulk = table.get(index).filter(|_| index << class == at).ok_or(NoCounter::None)?;
        if bulk.users > 0 {
            return Err(NoCounter::Used(bulk.users));
        }
        let count = bulk.counters.len() as u32;
        table.remove(index);
        self.total = self.total.saturating_sub(count);
        Ok(())
    }

    #[inline]
    fn find(&self, id: u32) -> Option<&Cell<Traffic>> {
        let (class, at) = split(id);
        let bulk = self.classes.get(class as usize)?.get(at >> class)?;
        bulk.counters.get((at & ((1 << class) - 1)) as usize)
    }

    /// What a counter has counted; `None` if it is not there.
    pub(super) fn get(&self, id: u32) -> Option<Traffic> {
        self.find(id).map(Cell::get)
    }

    /// The first number of the bulk that a number would belong to.
    pub(super) fn first_of_bulk(id: u32) -> u32 {
        let (class, at) = split(id);
        if class < CLASSES { class << CLASS_SHIFT | at >> class << class } else { id }
    }

    /// A counter begins anew.
    pub(super) fn clear(&self, id: u32) {
        if let Some(counter) = self.find(id) {
            counter.take();
        }
    }

    /// Counts a packet.
    #[inline]
    pub(super) fn count(&self, id: u32, octets: u64) {
        if let Some(counter) = self.find(id) {
            let Traffic { packets, octets: before } = counter.get();
            counter.set(Traffic { packets: packets.wrapping_add(1), octets: before.wrapping_add(octets) });
        }
    }

    /// An entry names a counter, or does no more.
    pub(super) fn hold(&mut self, id: u32, more: bool) {
        let (class, at) = split(id);
        if let Some(bulk) = self.classes.get_mut(class as usize).and_then(|table| table.get_mut(at >> class))
        {
            bulk.users = if more { bulk.users + 1 } else { bulk.users.saturating_sub(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row() {
        let mut counters = Counters::new(1000);
        let single = counters.alloc(1).unwrap();
        let bulk = counters.alloc(384).unwrap();
        assert!(single != 0 && bulk.is_multiple_of(512));
        assert_eq!((counters.bulks(), counters.in_bulks()), (2, 384));
        assert_eq!(counters.alloc(616), Err(NoCounter::Full));
        let last = bulk + 383;
        counters.count(last, 60);
        counters.count(last, 40);
        assert_eq!(counters.get(last), Some(Traffic { packets: 2, octets: 100 }));
        assert_eq!((counters.get(bulk), counters.get(bulk + 384)), (Some(Traffic::default()), None));
        assert_eq!((Counters::first_of_bulk(last), Counters::first_of_bulk(single)), (bulk, single));
        assert_eq!(Counters::first_of_bulk(u32::MAX), u32::MAX);
        counters.clear(last);
        assert_eq!(counters.get(last), Some(Traffic::default()));
        counters.hold(last, true);
        assert_eq!(counters.dealloc(bulk), Err(NoCounter::Used(1)));
        counters.hold(last, false);
        assert_eq!(counters.dealloc(last), Err(NoCounter::None), "a number within a bulk");
        assert_eq!((counters.dealloc(bulk), counters.dealloc(bulk)), (Ok(()), Err(NoCounter::None)));
        assert_eq!(counters.get(last), None);
        assert_eq!(counters.dealloc(0xff_ffff), Err(NoCounter::None));
        assert!(counters.alloc(999).is_ok());
    }
}
