//! A heap of entries with four below each one, from whose middle entries can be taken.

use super::Entry;

/// Entries in no order but that the first is the least: each has up to four below it, none of them before it. `moved` hears where each is
/// whenever it comes to a place, but for one that is taken out.
#[derive(Default)]
pub(super) struct Heap(pub(super) Vec<Entry>);

impl Heap {
    pub(super) fn push(&mut self, entry: Entry, moved: impl FnMut(Entry, usize)) {
        let place = self.0.len();
        self.0.push(entry);
        self.rise(place, entry, moved);
    }

    /// Takes the first one out.
    pub(super) fn pop(&mut self, moved: impl FnMut(Entry, usize)) {
        self.remove(0, moved);
    }

    /// Takes the one at a place out.
    pub(super) fn remove(&mut self, place: usize, moved: impl FnMut(Entry, usize)) {
        let Some(last) = self.0.pop().filter(|_| place < self.0.len()) else { return };
        let above = place.checked_sub(1).and_then(|below| self.0.get(below / 4));
        match above.is_some_and(|above| above.key() > last.key()) {
            true => self.rise(place, last, moved),
            false => self.sink(place, last, moved),
        }
    }

    /// Puts an entry in at a place where nothing is, or above it.
    fn rise(&mut self, mut place: usize, entry: Entry, mut moved: impl FnMut(Entry, usize)) {
        while place > 0 {
            let above = (place - 1) / 4;
            let Some(parent) = self.0.get(above).copied().filter(|p| p.key() > entry.key()) else { break };
            self.set(place, parent, &mut moved);
            place = above;
        }
        self.set(place, entry, &mut moved);
    }

    /// Puts an entry in at a place where nothing is, or below it.
    fn sink(&mut self, mut place: usize, entry: Entry, mut moved: impl FnMut(Entry, usize)) {
        loop {
            let below = 4 * place + 1;
            let children = self.0.get(below..).unwrap_or_default();
            let (least, child) = if let [a, b, c, d, ..] = children {
                let (ab, cd) = (b.key() < a.key(), d.key() < c.key());
                let (x, y) = (if ab { b } else { a }, if cd { d } else { c });
                match y.key() < x.key() {
                    true => (2 + usize::from(cd), y),
                    false => (usize::from(ab), x),
                }
            } else if let Some(least) = children.iter().enumerate().min_by_key(|(_, child)| child.key()) {
                least
            } else {
                break;
            };
            if child.key() > entry.key() {
                break;
            }
            let child = *child;
            self.set(place, child, &mut moved);
            place = below + least;
        }
        self.set(place, entry, &mut moved);
    }

    #[inline]
    fn set(&mut self, place: usize, entry: Entry, moved: &mut impl FnMut(Entry, usize)) {
        if let Some(to) = self.0.get_mut(place) {
            *to = entry;
            moved(entry, place);
        }
    }
}
