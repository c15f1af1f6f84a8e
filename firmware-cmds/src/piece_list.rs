//! Lists of pieces that an indirect key is made of, and places in them that walks have come by.
//!
//! Where a byte of such a key is says only the sum of the lengths before it. A walk leaves a mark at every [`EVERY`]th entry that it comes
//! by, and the next one begins at the last mark before its first byte: the packets of a message go through a list once, and not from its
//! begin each. Marks are a hint: whoever walks a copy without any finds the same. They take 24 bytes for 4 KiB of a list.

use std::fmt;

use crate::list::List;

/// Entries between two marks, at least; shorter lists have none.
pub const EVERY: usize = 256;
/// Bytes of an entry.
const ENTRY: usize = 16;

/// A place in a list: an entry, and what lies before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// Its index.
    pub entry: usize,
    /// Bytes that the entries before it name.
    pub before: u64,
    /// Entries that somebody looks at who comes there without a mark.
    pub looks: u32,
}

/// The pieces of a cycle of a strided layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The entry of the layout, before its pieces.
    pub layout: usize,
    /// Bytes of a cycle.
    pub size: u64,
    /// Marks from its first piece on: bytes of the cycle and pieces before each.
    pub marks: Vec<Mark>,
}

#[derive(Debug, Default)]
struct Marks {
    /// In order.
    entries: Vec<Mark>,
    /// Of layouts with many pieces, in order.
    cycles: Vec<Cycle>,
}

/// A list of pieces.
#[derive(Default)]
pub struct PieceList {
    list: List,
    marks: Option<Box<Marks>>,
}

/// The last of some marks that has at most so many bytes before it.
fn last(marks: &[Mark], at: u64) -> Option<Mark> {
    let behind = marks.partition_point(|mark| mark.before <= at);
    marks.get(behind.checked_sub(1)?).copied()
}

impl PieceList {
    /// What the driver wrote.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// The list, to be changed or taken: marks are forgotten.
    pub fn into_list(self) -> List {
        self.list
    }

    /// Its entries.
    pub fn count(&self) -> usize {
        self.list.len() / ENTRY
    }

    /// From where on the entry of byte `at` is looked for.
    pub fn mark(&self, at: u64) -> Mark {
        self.look(|marks| last(&marks.entries, at)).unwrap_or_default()
    }

    /// The first entry that may have a mark next.
    pub fn unmarked(&self) -> usize {
        let last = self.look(|marks| marks.entries.last().map_or(0, |mark| mark.entry));
        last.saturating_add(EVERY)
    }

    /// Leaves a mark, if it is far enough from the last one. It says of all entries before it what is so.
    pub fn leave(&mut self, mark: Mark) {
        if mark.entry >= self.unmarked() && mark.before < u64::MAX {
            self.change(|marks| marks.entries.push(mark));
        }
    }

    /// Bytes of a cycle of the layout at that entry, if they are known.
    pub fn cycle_size(&self, layout: usize) -> Option<u64> {
        self.look(|marks| marks.cycle(layout).map(|cycle| cycle.size))
    }

    /// From where on the piece of byte `at` of a cycle is looked for.
    pub fn in_cycle(&self, layout: usize, at: u64) -> Option<Mark> {
        self.look(|marks| last(&marks.cycle(layout)?.marks, at))
    }

    /// Keeps what a cycle is.
    pub fn keep_cycle(&mut self, cycle: Cycle) {
        self.change(|marks| {
            if let Err(place) = marks.cycles.binary_search_by_key(&cycle.layout, |known| known.layout) {
                marks.cycles.insert(place, cycle);
            }
        });
    }

    /// Looks at the marks, if there are any.
    fn look<T: Default>(&self, look: impl FnOnce(&Marks) -> T) -> T {
        if self.count() < EVERY {
            return T::default();
        }
        self.marks.as_deref().map(look).unwrap_or_default()
    }

    fn change(&mut self, change: impl FnOnce(&mut Marks)) {
        change(self.marks.get_or_insert_default());
    }
}

impl Marks {
    fn cycle(&self, layout: usize) -> Option<&Cycle> {
        let place = self.cycles.binary_search_by_key(&layout, |cycle| cycle.layout).ok()?;
        self.cycles.get(place)
    }
}

impl From<List> for PieceList {
    fn from(list: List) -> Self {
        Self { list, marks: None }
    }
}

impl Clone for PieceList {
    fn clone(&self) -> Self {
        self.list.clone().into()
    }
}

impl PartialEq for PieceList {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for PieceList {}

impl fmt::Debug for PieceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long() -> PieceList {
        List::of(&[0; 4 * EVERY * ENTRY]).into()
    }

    #[test]
    fn the_last_mark_before_a_byte() {
        let mut list = long();
        assert_eq!((list.mark(9), list.unmarked()), (Mark::default(), EVERY));
        let mark = |entry, before| Mark { entry, before, looks: entry as u32 };
        list.leave(mark(EVERY - 1, 5));
        assert_eq!(list.mark(9), Mark::default(), "too near to the begin");
        list.leave(mark(EVERY, 10));
        list.leave(mark(EVERY + 1, 11));
        list.leave(mark(2 * EVERY, 10));
        list.leave(mark(3 * EVERY, u64::MAX));
        assert_eq!([list.mark(9), list.mark(10)], [Mark::default(), mark(2 * EVERY, 10)]);
        assert_eq!(list.mark(u64::MAX), mark(2 * EVERY, 10));
        assert_eq!(list.clone().mark(10), Mark::default(), "a copy has none");
        assert_eq!(list.clone(), list);
    }

    #[test]
    fn cycles_are_kept_by_their_layout() {
        let mut list = long();
        let cycle = |layout, size| Cycle {
            layout,
            size,
            marks: vec![Mark { entry: layout + 1, before: 0, looks: 0 }],
        };
        [cycle(600, 7), cycle(3, 5), cycle(600, 8)].into_iter().for_each(|cycle| list.keep_cycle(cycle));
        assert_eq!([3, 600, 4].map(|layout| list.cycle_size(layout)), [Some(5), Some(7), None]);
        assert_eq!(list.in_cycle(3, 4).map(|mark| mark.entry), Some(4));
        assert_eq!(list.in_cycle(4, 4), None);
    }

    #[test]
    fn short_lists_have_no_marks() {
        let mut list = PieceList::from(List::of(&[0; ENTRY * 10]));
        list.leave(Mark { entry: EVERY, before: 0, looks: 0 });
        assert_eq!(list.mark(1), Mark::default());
    }
}
