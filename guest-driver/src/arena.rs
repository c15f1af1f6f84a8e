//! Ranges of a DMA window, for back ends that have one large piece of memory to share out.

use alloc::collections::BTreeMap;

/// Free ranges by their start; first fit, neighbours are joined when they are freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arena {
    free: BTreeMap<usize, usize>,
}

impl Arena {
    /// An arena of `size` free bytes from offset 0.
    pub fn new(size: usize) -> Self {
        Self { free: BTreeMap::from([(0, size)]) }
    }

    /// Takes `size` bytes at a multiple of `align` (a power of two).
    pub fn alloc(&mut self, size: usize, align: usize) -> Option<usize> {
        let size = size.max(1);
        let (start, len, at) = self.free.iter().find_map(|(&start, &len)| {
            let at = start.checked_next_multiple_of(align)?;
            let end = at.checked_add(size)?;
            (end <= start + len).then_some((start, len, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let rest = start + len - (at + size);
        if rest > 0 {
            self.free.insert(at + size, rest);
        }
        Some(at)
    }

    /// Frees what [`Arena::alloc`] returned.
    pub fn free(&mut self, mut start: usize, size: usize) {
        let mut len = size.max(1);
        if let Some((&before, &before_len)) = self.free.range(..start).next_back()
            && before + before_len == start
        {
            self.free.remove(&before);
            (start, len) = (before, len + before_len);
        }
        if let Some(after) = self.free.remove(&(start + len)) {
            len += after;
        }
        self.free.insert(start, len);
    }

    /// Free bytes in total.
    pub fn available(&self) -> usize {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_back_joined() {
        let mut arena = Arena::new(1 << 16);
        let all = arena.clone();
        let taken: std::vec::Vec<_> = [(64, 64), (4096, 4096), (1, 1), (10_000, 4096)]
            .map(|(size, align)| (arena.alloc(size, align).unwrap(), size))
            .into();
        assert_eq!(taken.iter().map(|t| t.0).collect::<std::vec::Vec<_>>(), [0, 4096, 64, 8192]);
        assert!(arena.alloc(1 << 16, 1).is_none());
        for (start, size) in [taken[1], taken[3], taken[0], taken[2]] {
            arena.free(start, size);
        }
        assert_eq!(arena, all);
    }
}
