//! A sparse array: memory only near the indices that are in use.

/// Places of a chunk: one bit each in [`Chunk::taken`].
const CHUNK: usize = 32;

#[derive(Debug)]
struct Chunk<T> {
    /// Bit i: place i is taken.
    taken: u32,
    places: [Option<Box<T>>; CHUNK],
}

/// An array by number. Chunks of places come with the first object in them and go with the last, so that memory
/// follows the objects that are there, not the highest number that ever was.
#[derive(Debug)]
pub struct Sparse<T> {
    chunks: Vec<Option<Box<Chunk<T>>>>,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

fn split(index: u32) -> (usize, usize) {
    (index as usize / CHUNK, index as usize % CHUNK)
}

impl<T> Sparse<T> {
    /// The object at `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (chunk, place) = split(index);
        self.chunks.get(chunk)?.as_ref()?.places.get(place)?.as_deref()
    }

    /// The object at `index`, to change.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (chunk, place) = split(index);
        self.chunks.get_mut(chunk)?.as_mut()?.places.get_mut(place)?.as_deref_mut()
    }

    /// Stores `value` at `index`; what was there before is dropped. Callers bound the index.
    pub fn insert(&mut self, index: u32, value: T) {
        let (chunk, place) = split(index);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let Some(slot) = self.chunks.get_mut(chunk) else { return };
        let chunk = slot.get_or_insert_with(|| Box::new(Chunk { taken: 0, places: [const { None }; CHUNK] }));
        if let Some(p) = chunk.places.get_mut(place) {
            *p = Some(Box::new(value));
            chunk.taken |= 1 << place;
        }
    }

    /// Takes the object at `index` out.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let (number, place) = split(index);
        let slot = self.chunks.get_mut(number)?;
        let chunk = slot.as_mut()?;
        let value = chunk.places.get_mut(place)?.take()?;
        chunk.taken &= !(1 << place);
        if chunk.taken == 0 {
            *slot = None;
            self.trim();
        }
        Some(*value)
    }

    /// Forgets chunks at the end that are empty.
    fn trim(&mut self) {
        while self.chunks.pop_if(|c| c.is_none()).is_some() {}
        if self.chunks.capacity() > 4 * self.chunks.len().max(CHUNK) {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    /// The first index in `from .. to` where nothing is.
    pub(crate) fn vacant(&self, from: u32, to: u32) -> Option<u32> {
        let mut index = from;
        while index < to {
            let (chunk, place) = split(index);
            let taken = self.chunks.get(chunk).and_then(Option::as_ref).map_or(0, |c| c.taken);
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
        self.chunks.iter().enumerate().filter_map(|(n, c)| Some((n, c.as_ref()?))).flat_map(|(n, chunk)| {
            let places = chunk.places.iter().enumerate();
            places.filter_map(move |(p, t)| Some(((n * CHUNK + p) as u32, t.as_deref()?)))
        })
    }

    /// All objects with their indices, in order, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.chunks.iter_mut().enumerate().filter_map(|(n, c)| Some((n, c.as_mut()?))).flat_map(
            |(n, chunk)| {
                let places = chunk.places.iter_mut().enumerate();
                places.filter_map(move |(p, t)| Some(((n * CHUNK + p) as u32, t.as_deref_mut()?)))
            },
        )
    }

    /// Drops every object.
    pub fn clear(&mut self) {
        self.chunks = Vec::new();
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
        assert_eq!((s.chunks.len(), s.remove(7), s.get(4)), (1, None, Some(&4)));
        assert!(s.chunks.capacity() < 1000);
        s.iter_mut().for_each(|(_, t)| *t += 1);
        assert_eq!(s.iter().map(|(i, t)| t - i).collect::<Vec<_>>(), [1; 5]);
    }

    #[test]
    fn vacant_places_are_found_across_chunks() {
        let mut s = Sparse::default();
        (0..70).for_each(|i| s.insert(i, ()));
        assert_eq!((s.vacant(0, 1000), s.vacant(0, 70), s.vacant(500, 501)), (Some(70), None, Some(500)));
        s.remove(33);
        assert_eq!((s.vacant(0, 34), s.vacant(34, 70), s.vacant(33, 33)), (Some(33), None, None));
    }
}
