//! The ring of a send or receive queue: where the next request goes, and which one a completion is about.

use crate::bus::Dma;
use alloc::vec;
use alloc::vec::Vec;

/// Bookkeeping of one ring: 16-bit running counters, of which the low bits are the place.
pub(crate) struct Ring {
    pub(crate) offset: usize,
    pub(crate) stride: usize,
    pub(crate) size: u32,
    pub(crate) head: u16,
    pub(crate) tail: u16,
    /// Per place: the caller's number, and how many places the request takes.
    pub(crate) requests: Vec<(u64, u16)>,
}

impl Ring {
    pub(crate) fn new(offset: usize, stride: usize, size: u32) -> Self {
        Self { offset, stride, size, head: 0, tail: 0, requests: vec![(0, 0); size as usize] }
    }

    pub(crate) fn place(&self, index: u16) -> usize {
        usize::from(index) & (self.size as usize).saturating_sub(1)
    }

    pub(crate) fn free(&self) -> u32 {
        self.size - u32::from(self.head.wrapping_sub(self.tail))
    }

    /// Takes `count` places for a request.
    pub(crate) fn take(&mut self, wr_id: u64, count: u16) {
        let place = self.place(self.head);
        self.requests[place] = (wr_id, count);
        self.head = self.head.wrapping_add(count);
    }

    /// The request at `index` is done, and so are all before it.
    pub(crate) fn retire(&mut self, index: u16) -> Option<u64> {
        // Only an index between tail and head can be meant; anything else is not ours.
        if index.wrapping_sub(self.tail) >= self.head.wrapping_sub(self.tail) {
            return None;
        }
        let (wr_id, count) = *self.requests.get(self.place(index))?;
        self.tail = index.wrapping_add(count);
        Some(wr_id)
    }

    pub(crate) fn reset(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Copies whole strides into the ring, around its end if need be.
    pub(crate) fn write<D: Dma>(&self, memory: &mut D, data: &[u8]) {
        let first = self.place(self.head);
        for (i, piece) in data.chunks(self.stride).enumerate() {
            let place = (first + i) & (self.size as usize - 1);
            memory.write(self.offset + place * self.stride, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Memory;

    #[test]
    fn ring_wraps_within_a_request() {
        let mut ring = Ring::new(64, 64, 4);
        let mut memory = Memory::new(64 + 4 * 64);
        ring.take(1, 3);
        assert_eq!(ring.retire(0), Some(1));
        let data: Vec<u8> = (1..=2).flat_map(|n| [n; 64]).collect();
        ring.write(&mut memory, &data);
        ring.take(2, 2);
        let mut byte = [0];
        for (place, expected) in [(3, 1), (0, 2), (1, 0), (2, 0)] {
            memory.read(64 + place * 64, &mut byte);
            assert_eq!(byte[0], expected, "place {place}");
        }
        assert_eq!((ring.free(), ring.head), (2, 5));
    }

    #[test]
    fn ring_counts_modulo_65536() {
        let mut ring = Ring::new(0, 64, 8);
        for i in 0..70_000u32 {
            ring.take(u64::from(i), 2);
            if i % 3 == 2 {
                // One report retires the three requests up to it.
                assert_eq!(ring.retire(ring.head.wrapping_sub(2)), Some(u64::from(i)));
                assert_eq!(ring.free(), 8);
            }
        }
    }

    #[test]
    fn a_report_about_nothing_is_refused() {
        let mut ring = Ring::new(0, 64, 4);
        assert_eq!(ring.retire(0), None);
        ring.take(9, 1);
        assert_eq!((ring.retire(1), ring.retire(u16::MAX)), (None, None));
        assert_eq!((ring.retire(0), ring.retire(0)), (Some(9), None));
        assert_eq!(Ring::new(0, 64, 0).retire(0), None);
    }
}
