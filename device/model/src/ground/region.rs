//! Payload of packets: bytes, or a region of a host's memory that is not read before somebody wants the bytes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::dma::{DmaError, GuestMemory};

/// The pages that a memory key translates a range to.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Pages that follow each other, in order: the number of the first, and its bus address; of a range that has no pages, its own.
    rows: Vec<(usize, u64)>,
    /// Bus address behind the last.
    end: u64,
    /// How many pages there are.
    count: usize,
    /// log2 of their size.
    shift: u32,
    /// Where the range begins in the first.
    first: u64,
}

impl Pages {
    /// No page yet, of 2^`shift` bytes each; the range begins at byte `first` of them.
    pub(crate) fn new(shift: u32, first: u64) -> Self {
        Self { rows: Vec::new(), end: 0, count: 0, shift: shift.min(63), first }
    }

    /// The next page is at this bus address.
    #[inline]
    pub(crate) fn push(&mut self, address: u64) {
        if address != self.end || self.count == 0 {
            self.rows.push((self.count, address));
        }
        self.end = address.wrapping_add(1 << self.shift);
        self.count += 1;
    }

    /// The row that a page is in.
    #[inline]
    fn row_of(&self, page: u64) -> usize {
        match self.rows.len() {
            1 => 0,
            _ => self.rows.partition_point(|(first, _)| *first as u64 <= page).saturating_sub(1),
        }
    }

    /// Visits the bus addresses of `len` bytes from `offset` on, page by page.
    fn spans(
        &self,
        offset: u64,
        len: usize,
        mut visit: impl FnMut(u64, usize) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        let size = 1u64 << self.shift;
        let (mut at, mut left) = (self.first.saturating_add(offset), len);
        let mut place = self.row_of(at >> self.shift);
        while left > 0 {
            let (outside, page) = (DmaError { iova: at, len: left }, at >> self.shift);
            if self.rows.get(place + 1).is_some_and(|(first, _)| *first as u64 <= page) {
                place += 1;
            }
            let row = self.rows.get(place).filter(|_| page < self.count as u64);
            let (first, address) = row.ok_or(outside)?;
            let inside = at & (size - 1);
            let n = left.min(usize::try_from(size - inside).unwrap_or(usize::MAX));
            visit(address.wrapping_add((page - *first as u64) << self.shift).wrapping_add(inside), n)?;
            at = at.saturating_add(n as u64);
            left -= n;
        }
        Ok(())
    }

    /// The same with one visit for pages that follow each other. There are all of them, or none is visited.
    fn stretches(
        &self,
        offset: u64,
        len: usize,
        mut visit: impl FnMut(u64, usize) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        let (mut at, mut left) = (self.first.saturating_add(offset), len);
        let last = at.saturating_add((len as u64).saturating_sub(1)) >> self.shift;
        if left > 0 && last >= self.count as u64 {
            return Err(DmaError { iova: at, len });
        }
        let begin = self.row_of(at >> self.shift);
        let ends = self.rows.iter().skip(begin + 1).map(|(first, _)| *first).chain([self.count]);
        for ((first, address), end) in self.rows.iter().skip(begin).zip(ends) {
            if left == 0 {
                break;
            }
            let inside = at.wrapping_sub((*first as u64) << self.shift);
            let room = (((end - first) as u64) << self.shift).wrapping_sub(inside);
            let n = left.min(usize::try_from(room).unwrap_or(usize::MAX));
            visit(address.wrapping_add(inside), n)?;
            at = at.saturating_add(n as u64);
            left -= n;
        }
        Ok(())
    }

    /// Whether `len` bytes from `offset` on may be copied later than they come ([`GuestMemory::is_unwatched`]).
    pub(crate) fn is_unwatched(&self, memory: &dyn GuestMemory, offset: u64, len: usize) -> bool {
        let mut unwatched = true;
        let visited = self.stretches(offset, len, |iova, len| {
            unwatched &= memory.is_unwatched(iova, len);
            Ok(())
        });
        visited.is_ok() && unwatched
    }

    /// Whether the first `len` bytes can be accessed at any time ([`GuestMemory::is_mapped`]).
    pub(crate) fn is_mapped(&self, memory: &dyn GuestMemory, len: u64) -> bool {
        let Ok(len) = usize::try_from(len) else { return false };
        let mut mapped = true;
        let visited = self.stretches(0, len, |iova, len| {
            mapped &= memory.is_mapped(iova, len);
            Ok(())
        });
        visited.is_ok() && mapped
    }

    /// Copies `len` bytes of a region, from `from` on, to `memory`, from `offset` on: at once what may be copied later than it comes.
    pub(crate) fn copy(
        &self,
        memory: &dyn GuestMemory,
        offset: u64,
        (region, from): (&Region, u64),
        len: usize,
    ) -> Result<(), DmaError> {
        let mut from = from;
        self.stretches(offset, len, |iova, len| {
            let mut to = iova;
            region.pages.stretches(from, len, |source, len| {
                memory.copy_from(to, &*region.memory, source, len)?;
                to = to.wrapping_add(len as u64);
                Ok(())
            })?;
            from = from.wrapping_add(len as u64);
            Ok(())
        })
    }

    /// Writes payload to `memory`, from `offset` on.
    pub(crate) fn write(
        &self,
        memory: &dyn GuestMemory,
        offset: u64,
        payload: Payload<'_>,
    ) -> Result<(), DmaError> {
        let mut rest = payload;
        self.spans(offset, payload.len(), |iova, len| {
            let (now, later) = rest.split_at(len);
            rest = later;
            now.write_to(memory, iova)
        })
    }
}

/// Where bytes go, one behind the other, that leave the process.
pub trait Sink {
    /// The next bytes.
    fn put(&mut self, bytes: &[u8]);

    /// The next `len` bytes are those that `memory` has at bus address `iova` now; zeroes, if they can't be read any more.
    fn put_from(&mut self, memory: &dyn GuestMemory, iova: u64, len: usize) {
        let mut bytes = [0; PIECE];
        let mut done = 0;
        while done < len {
            let piece = bytes.get_mut(..PIECE.min(len - done)).unwrap_or_default();
            if memory.read(iova.wrapping_add(done as u64), piece).is_err() {
                piece.fill(0);
            }
            self.put(piece);
            done += piece.len().max(1);
        }
    }
}

/// Bytes that are copied at once where there is no other way.
const PIECE: usize = 4096;

fn put_zeroes(len: usize, sink: &mut dyn Sink) {
    let zeroes = [0; 64];
    let mut left = len;
    while left > 0 {
        let n = left.min(zeroes.len());
        sink.put(zeroes.get(..n).unwrap_or_default());
        left -= n;
    }
}

/// A range of a host's memory, to be read.
pub(crate) struct Region {
    memory: Arc<dyn GuestMemory>,
    pages: Pages,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pages.fmt(f)
    }
}

impl Region {
    /// The first `len` bytes of the range that has these pages; `None`: there are not so many pages, or memory does not let
    /// bytes be fetched from there at any time.
    pub(crate) fn new(memory: Arc<dyn GuestMemory>, pages: Pages, len: u64) -> Option<Self> {
        pages.is_mapped(&*memory, len).then_some(Self { memory, pages })
    }

    /// Reads what is there from `offset` on.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let mut rest = &mut *buf;
        self.pages.spans(offset, rest.len(), |iova, len| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            rest = later;
            self.memory.read(iova, now)
        })
    }

    /// Hands `len` bytes from `offset` on to `sink`: zeroes for what there are no pages of.
    pub(crate) fn put(&self, offset: u64, len: usize, sink: &mut dyn Sink) {
        let put = |iova, len| {
            sink.put_from(&*self.memory, iova, len);
            Ok(())
        };
        if self.pages.stretches(offset, len, put).is_err() {
            put_zeroes(len, sink);
        }
    }

    /// Copies `len` bytes from `offset` on to bus address `to` of `memory`.
    fn copy(&self, offset: u64, len: usize, memory: &dyn GuestMemory, to: u64) -> Result<(), DmaError> {
        let mut to = to;
        self.pages.spans(offset, len, |iova, len| {
            memory.copy_from(to, &*self.memory, iova, len)?;
            to = to.wrapping_add(len as u64);
            Ok(())
        })
    }
}

/// The payload of a packet, or a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// As bytes.
    Bytes(&'a [u8]),
    /// `len` bytes of a region of its sender's memory.
    Region { region: &'a Region, offset: u64, len: usize },
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> Payload<'a> {
    /// How many bytes it has.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region { len, .. } => *len,
        }
    }

    /// Whether it has none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `n` bytes, or all if there are fewer, and the rest.
    #[inline]
    pub(crate) fn split_at(self, n: usize) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let (a, b) = bytes.split_at_checked(n).unwrap_or((bytes, &[]));
                (Self::Bytes(a), Self::Bytes(b))
            }
            Self::Region { region, offset, len } => {
                let n = n.min(len);
                let rest = Self::Region { region, offset: offset.wrapping_add(n as u64), len: len - n };
                (Self::Region { region, offset, len: n }, rest)
            }
        }
    }

    /// Writes it to bus address `iova` of `memory`.
    #[inline]
    pub(crate) fn write_to(self, memory: &dyn GuestMemory, iova: u64) -> Result<(), DmaError> {
        match self {
            Self::Bytes(bytes) => memory.write(iova, bytes),
            Self::Region { region, offset, len } => region.copy(offset, len, memory, iova),
        }
    }

    /// Its bytes.
    pub(crate) fn bytes(self) -> Result<Cow<'a, [u8]>, DmaError> {
        match self {
            Self::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Region { region, offset, len } => {
                let mut bytes = vec![0; len];
                region.read(offset, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Ram(Mutex<Vec<u8>>);

    impl GuestMemory for Ram {
        fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
            let at = iova as usize;
            buf.copy_from_slice(&self.0.lock().unwrap()[at..at + buf.len()]);
            Ok(())
        }
        fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
            let at = iova as usize;
            self.0.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
            Ok(())
        }
        fn is_mapped(&self, iova: u64, len: usize) -> bool {
            iova as usize + len <= self.0.lock().unwrap().len()
        }
    }

    /// Pages of 4 KiB.
    fn pages_at(addresses: &[u64], first: u64) -> Pages {
        let mut pages = Pages::new(12, first);
        addresses.iter().for_each(|address| pages.push(*address));
        pages
    }

    #[test]
    fn pages_that_follow_each_other_are_copied_at_once() {
        let memory: Arc<dyn GuestMemory> = Arc::new(Ram(Mutex::new((0..0x8000).map(|i| i as u8).collect())));
        let pages = pages_at(&[0x3000, 0x4000, 0x1000], 0x10);
        let mut visited = Vec::new();
        let visit = |iova, len| {
            visited.push((iova, len));
            Ok(())
        };
        pages.stretches(0x20, 0x2000, visit).unwrap();
        assert_eq!(visited, [(0x3030, 0x1fd0), (0x1000, 0x30)]);
        assert!(pages.stretches(0x20, 0x3000, |_, _| Ok(())).is_err(), "there is no fourth page");
        assert!(!pages.is_unwatched(&*memory, 0, 1), "that is the default");
        let region = Region::new(memory.clone(), pages_at(&[0x7000, 0x5000, 0x6000], 3), 0x2ff0).unwrap();
        let mut expected = vec![0; 0x2000];
        region.read(0x100, &mut expected).unwrap();
        pages.copy(&*memory, 0x20, (&region, 0x100), 0x2000).unwrap();
        let (mut there, mut rest) = (vec![0; 0x1fd0], [0; 0x30]);
        memory.read(0x3030, &mut there).unwrap();
        memory.read(0x1000, &mut rest).unwrap();
        assert_eq!([&there[..], &rest[..]].concat(), expected);
    }

    #[test]
    fn a_region_is_read_over_its_pages() {
        let bytes = (0..0x3000u32).map(|i| (i / 0x100) as u8).collect();
        let memory: Arc<dyn GuestMemory> = Arc::new(Ram(Mutex::new(bytes)));
        let new = |pages: &[u64], len| Region::new(memory.clone(), pages_at(pages, 0xf80), len);
        assert!(new(&[0x2000, 0], 0x1081).is_none(), "there is no third page");
        assert!(new(&[0x2000, 0x8000], 0x100).is_none(), "the second is not mapped");
        let region = new(&[0x2000, 0], 0x1080).unwrap();
        let payload = Payload::Region { region: &region, offset: 0x70, len: 0x120 };
        let (head, tail) = payload.split_at(0x20);
        assert_eq!((head.len(), tail.len()), (0x20, 0x100));
        assert_eq!(*head.bytes().unwrap(), [[0x2f; 16], [0; 16]].concat());
        tail.write_to(&*memory, 0x1000).unwrap();
        let mut there = [0; 0x100];
        memory.read(0x1000, &mut there).unwrap();
        assert_eq!(there[..0xf0], [0; 0xf0], "page 0 from byte 16 on");
        assert_eq!(there[0xf0..], [1; 0x10]);
    }
}
