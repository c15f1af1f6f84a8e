//! A sparse array: memory only near the indices that are in use.

/// Places of a chunk: one bit each in [`Chunk::taken`].
const CHUNK: usize = 32;

#[derive(Debug)]
struct Chunk<T> {
    /// Bit i: place i is taken.
    taken: u32,
    places: [Option<Box<T>>; CHUNK],
}

/// Chunks of a group.
const GROUP: usize = 64;

/// Neighbouring chunks. Most arrays have no more than one group.
#[derive(Debug)]
struct Group<T> {
    /// Bit i: chunk i is there.
    taken: u64,
    /// Bit i: every place of chunk i is taken.
    full: u64,
    chunks: [Option<Box<Chunk<T>>>; GROUP],
}

/// An array by number. Chunks of places, and groups of chunks, come with the first object in them and go with the last, so that
/// memory follows the objects that are there, not the highest number that ever was: a number costs four bytes for each thousand
/// below it.
#[derive(Debug)]
pub struct Sparse<T> {
    groups: Vec<Option<Box<Group<T>>>>,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { groups: Vec::new() }
    }
}

/// Group, chunk of it, place of that.
fn split(index: u32) -> (usize, usize, usize) {
    let index = index as usize;
    (index / CHUNK / GROUP, index / CHUNK % GROUP, index % CHUNK)
}

impl<T> Sparse<T> {
    fn chunk(&self, group: usize, chunk: usize) -> Option<&Chunk<T>> {
        self.groups.get(group)?.as_ref()?.chunks.get(chunk)?.as_deref()
    }

    /// The object at `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (group, chunk, place) = split(index);
        self.chunk(group, chunk)?.places.get(place)?.as_deref()
    }

    /// The object at `index`, to change.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (group, chunk, place) = split(index);
        let chunk = self.groups.get_mut(group)?.as_mut()?.chunks.get_mut(chunk)?.as_mut()?;
        chunk.places.get_mut(place)?.as_deref_mut()
    }

    /// Stores `value` at `index`; what was there before is dropped. Callers bound the index.
    pub fn insert(&mut self, index: u32, value: T) {
        let (group, number, place) = split(index);
        if group >= self.groups.len() {
            self.groups.resize_with(group + 1, || None);
        }
        let Some(group) = self.groups.get_mut(group) else { return };
        let group = group
            .get_or_insert_with(|| Box::new(Group { taken: 0, full: 0, chunks: [const { None }; GROUP] }));
        let Some(chunk) = group.chunks.get_mut(number) else { return };
        let chunk =
            chunk.get_or_insert_with(|| Box::new(Chunk { taken: 0, places: [const { None }; CHUNK] }));
        group.taken |= 1 << number;
        if let Some(p) = chunk.places.get_mut(place) {
            *p = Some(Box::new(value));
            chunk.taken |= 1 << place;
            group.full |= u64::from(chunk.taken == u32::MAX) << number;
        }
    }

    /// Takes the object at `index` out.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let (at, number, place) = split(index);
        let slot = self.groups.get_mut(at)?;
        let group = slot.as_mut()?;
        let kept = group.chunks.get_mut(number)?;
        let chunk = kept.as_mut()?;
        let value = chunk.places.get_mut(place)?.take()?;
        chunk.taken &= !(1 << place);
        group.full &= !(1 << number);
        if chunk.taken == 0 {
            *kept = None;
            group.taken &= !(1 << number);
            if group.taken == 0 {
                *slot = None;
                self.trim();
            }
        }
        Some(*value)
    }

    /// Forgets groups at the end that are empty.
    fn trim(&mut self) {
        while self.groups.pop_if(|group| group.is_none()).is_some() {}
        if self.groups.capacity() > 4 * self.groups.len().max(GROUP) {
            self.groups.shrink_to(2 * self.groups.len());
        }
    }

    /// The first index in `from .. to` where nothing is.
    pub(crate) fn vacant(&self, from: u32, to: u32) -> Option<u32> {
        let mut index = from;
        while index < to {
            let (group, chunk, place) = split(index);
            // Full chunks are passed over together.
            let full = self.groups.get(group).and_then(Option::as_ref).map_or(0, |group| group.full);
            let behind = (full >> chunk).trailing_ones();
            if behind > 0 {
                index = index - place as u32 + behind * CHUNK as u32;
                continue;
            }
            let taken = self.chunk(group, chunk).map_or(0, |c| c.taken);
            let free = !taken >> place;
            if free != 0 {
                let found = index + free.trailing_zeros();
                return (found < to).then_some(found);
            }
            index += (CHUNK - place) as u32;
        }
        None
    }

    /// All objects with their indices, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    /// The same from an index on. What is before it is not walked over.
    pub(crate) fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        let (first, _, _) = split(from);
        let groups = self.groups.iter().enumerate().skip(first);
        let groups = groups.filter_map(|(n, group)| Some((n, group.as_ref()?)));
        let chunks = groups.flat_map(|(n, group)| (n * GROUP..).zip(&group.chunks));
        let chunks = chunks.filter_map(|(n, chunk)| Some((n, chunk.as_ref()?)));
        let all = chunks.flat_map(|(n, chunk)| {
            let places = (n * CHUNK..).zip(&chunk.places);
            places.filter_map(|(index, t)| Some((index as u32, t.as_deref()?)))
        });
        all.skip_while(move |(index, _)| *index < from)
    }

    /// All objects with their indices, in order, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let groups = self.groups.iter_mut().enumerate().filter_map(|(n, group)| Some((n, group.as_mut()?)));
        let chunks = groups.flat_map(|(n, group)| (n * GROUP..).zip(&mut group.chunks));
        chunks.filter_map(|(n, chunk)| Some((n, chunk.as_mut()?))).flat_map(|(n, chunk)| {
            let places = (n * CHUNK..).zip(&mut chunk.places);
            places.filter_map(|(index, t)| Some((index as u32, t.as_deref_mut()?)))
        })
    }

    /// Drops every object.
    pub fn clear(&mut self) {
        self.groups = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_objects() {
        let mut s = Sparse::default();
        for i in 0..100_000u32 {
            s.insert(i, i);
        }
        assert_eq!((s.get(99_999), s.get(100_000), s.iter().count()), (Some(&99_999), None, 100_000));
        for i in 5..100_000 {
            assert_eq!(s.remove(i), Some(i));
        }
        assert_eq!((s.groups.len(), s.remove(7), s.get(4)), (1, None, Some(&4)));
        assert!(s.groups.capacity() < 1000);
        assert_eq!(s.groups[0].as_ref().unwrap().taken, 1);
        s.iter_mut().for_each(|(_, t)| *t += 1);
        assert_eq!(s.iter().map(|(i, t)| t - i).collect::<Vec<_>>(), [1; 5]);
    }

    /// A number far from all others takes a group and a chunk, and the way to it.
    #[test]
    fn a_high_number_costs_little() {
        let mut s = Sparse::default();
        s.insert(1 << 20, 1);
        s.insert(3, 2);
        assert_eq!(s.groups.len() * size_of::<usize>(), 4104);
        assert_eq!(s.groups.iter().flatten().count(), 2);
        assert_eq!(s.iter().collect::<Vec<_>>(), [(3, &2), (1 << 20, &1)]);
        let from = |index| s.iter_from(index).map(|(index, _)| index).collect::<Vec<_>>();
        assert_eq!((from(3), from(4), from((1 << 20) + 1)), (vec![3, 1 << 20], vec![1 << 20], vec![]));
        assert_eq!((s.remove(1 << 20), s.groups.len()), (Some(1), 1));
    }

    #[test]
    fn vacant_places_are_found_across_chunks() {
        let mut s = Sparse::default();
        (0..70).for_each(|i| s.insert(i, ()));
        assert_eq!((s.vacant(0, 1000), s.vacant(0, 70), s.vacant(500, 501)), (Some(70), None, Some(500)));
        s.remove(33);
        assert_eq!((s.vacant(0, 34), s.vacant(34, 70), s.vacant(33, 33)), (Some(33), None, None));
        (0..10_000).for_each(|i| s.insert(i, ()));
        assert_eq!((s.vacant(5, 20_000), s.vacant(7, 10_000)), (Some(10_000), None));
        for hole in [0, 31, 32, 2047, 2048, 4097, 9999] {
            s.remove(hole);
            assert_eq!((s.vacant(0, 20_000), s.vacant(hole, 20_000)), (Some(hole), Some(hole)));
            assert_eq!(s.vacant(hole + 1, 20_000), Some(10_000));
            s.insert(hole, ());
        }
    }
}
