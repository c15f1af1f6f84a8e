//! Device memory (MEMIC): memory of the adapter's own, of which programs have pieces. They map them through BAR0, and memory
//! keys name them.
//!
//! An operation has addresses of its own, further pages of BAR0 that name the same pieces: what an access does there is one step, which nobody
//! sees half done. For each operation that the capabilities tell of there is a window as large as that of the memory; they lie before it,
//! the operation with the highest number first.
//!
//! Source: mlx5 driver and `ibv_alloc_dm(3)` (field use); the public manual does not have it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_spec::caps;
use hca_spec::caps::memic_operation;

/// Pages of BAR0 that pieces are mapped by, in bytes.
const PAGE: u64 = 4096;

/// The device memory of a function.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    /// Where in BAR0 it can be mapped; empty if there is none.
    window: Range<u64>,
    /// The same with the windows of operations. Every access to BAR0 is compared with it.
    pages: Range<u64>,
    /// The operations that there are: bits by [`memic_operation`].
    operations: u32,
    /// Its pieces, by where in BAR0 they begin.
    pieces: BTreeMap<u64, Piece>,
}

/// A piece.
#[derive(Debug)]
struct Piece {
    /// Bytes of BAR0 from its begin to the end of its pages.
    range: u64,
    bytes: Mutex<Box<[u8]>>,
    /// How many those are.
    len: u64,
    /// The operations that have addresses.
    operations: u32,
}

impl Piece {
    fn bytes(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceMemory {
    /// What such capabilities promise, with no piece.
    pub(crate) fn new(capabilities: &caps::DeviceMemory) -> Self {
        let start = capabilities.get(caps::DeviceMemory::MEMIC_BAR_START_ADDR);
        let size = u64::from(capabilities.get(caps::DeviceMemory::MEMIC_BAR_SIZE));
        let operations = capabilities.get(caps::DeviceMemory::MEMIC_OPERATIONS);
        let window = start..start.saturating_add(size);
        let windows = u64::from(u32::BITS.saturating_sub(operations.leading_zeros()));
        let pages = start.saturating_sub(windows.saturating_mul(size))..window.end;
        Self { window, pages, operations, pieces: BTreeMap::new() }
    }

    /// Whether nobody has a piece of it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Where in BAR0 it can be mapped.
    pub fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// The same with the windows of operations: what is no doorbell.
    pub fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    fn size(&self) -> u64 {
        self.window.end.saturating_sub(self.window.start)
    }

    /// Whether an offset in BAR0 is one of device memory, and not of a doorbell.
    #[inline]
    pub fn is_at(&self, offset: u64) -> bool {
        self.pages.contains(&offset)
    }

    /// Reads bytes as the host does, at an offset in BAR0; an operation's address does what that does. Returns whether something is
    /// there that can be read with this width; if not, `buf` is as it was.
    #[must_use]
    pub fn load(&self, at: u64, buf: &mut [u8]) -> bool {
        if at >= self.window.start {
            return self.read(at, buf);
        }
        let [into] = buf else { return false };
        let read = |operation, byte: &mut u8| {
            *into = *byte;
            if operation == memic_operation::TEST_AND_SET {
                *byte = 1;
            }
        };
        self.operate(at, read).is_some()
    }

    /// Writes bytes as the host does. Returns whether something is there that can be written with this width; if not, nothing is
    /// written.
    #[must_use]
    pub fn store(&self, at: u64, data: &[u8]) -> bool {
        if at >= self.window.start {
            return self.write(at, data);
        }
        let &[by] = data else { return false };
        let increment = |operation, byte: &mut u8| {
            let adds = operation == memic_operation::INCREMENT;
            if adds {
                *byte = byte.wrapping_add(by);
            }
            adds
        };
        self.operate(at, increment).unwrap_or(false)
    }

    /// Does something with the byte that an address in an operation's window names, if its piece has that operation there.
    fn operate<T>(&self, at: u64, f: impl FnOnce(u32, &mut u8) -> T) -> Option<T> {
        // From the window's begin backwards: 1 byte to a whole window before it is operation 0.
        let before = self.window.start.checked_sub(at)?.checked_sub(1)?;
        let operation = u32::try_from(before.checked_div(self.size())?).ok()?;
        let skipped = u64::from(operation).saturating_add(1).checked_mul(self.size())?;
        let (piece, from) = self.find(at.checked_add(skipped)?, 1)?;
        (piece.operations.checked_shr(operation)? & 1 == 1).then_some(())?;
        piece.bytes().get_mut(from).map(|byte| f(operation, byte))
    }

    /// Whether a range of BAR0 lies in one piece.
    pub fn has(&self, at: u64, len: u64) -> bool {
        self.find(at, len).is_some()
    }

    /// Reads bytes at an offset in BAR0. Returns whether they lie in one piece; if not, `buf` is as it was.
    #[must_use]
    pub fn read(&self, at: u64, buf: &mut [u8]) -> bool {
        let Some((piece, from)) = self.find(at, buf.len() as u64) else { return false };
        let bytes = piece.bytes();
        let from = bytes.get(from..).and_then(|bytes| bytes.get(..buf.len()));
        from.map(|from| buf.copy_from_slice(from)).is_some()
    }

    /// Writes bytes at an offset in BAR0. Returns whether they lie in one piece; if not, nothing is written.
    #[must_use]
    pub fn write(&self, at: u64, data: &[u8]) -> bool {
        let Some((piece, to)) = self.find(at, data.len() as u64) else { return false };
        let mut bytes = piece.bytes();
        let to = bytes.get_mut(to..).and_then(|bytes| bytes.get_mut(..data.len()));
        to.map(|to| to.copy_from_slice(data)).is_some()
    }

    /// The piece that a range of BAR0 lies in, and where in it the range begins.
    fn find(&self, at: u64, len: u64) -> Option<(&Piece, usize)> {
        let (start, piece) = self.pieces.range(..=at).next_back()?;
        let from = at.checked_sub(*start)?;
        let end = from.checked_add(len)?;
        (end <= piece.len).then_some(())?;
        Some((piece, usize::try_from(from).ok()?))
    }

    /// Whether a range is one of whole pages that device memory can be mapped by.
    pub(crate) fn is_range(&self, start: u64, len: u64) -> bool {
        let end = start.checked_add(len);
        let inside = end.is_some_and(|end| start >= self.window.start && end <= self.window.end);
        inside && len > 0 && start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE)
    }

    /// Makes a piece of `len` zeros that is mapped by the pages of `range` bytes at `start`. Returns false if one of those pages
    /// maps another piece.
    pub(crate) fn allocate(&mut self, start: u64, range: u64, len: u64) -> bool {
        let end = start.saturating_add(range);
        let before = self.pieces.range(..end).next_back();
        if before.is_some_and(|(at, piece)| at.saturating_add(piece.range) > start) {
            return false;
        }
        let bytes = Mutex::new(vec![0; usize::try_from(len).unwrap_or(0)].into());
        self.pieces.insert(start, Piece { range, bytes, len, operations: 0 });
        true
    }

    /// The bytes of the piece that begins there.
    pub(crate) fn len_at(&self, start: u64) -> Option<u64> {
        self.pieces.get(&start).map(|piece| piece.len)
    }

    /// Whether there is such an operation.
    pub(crate) fn has_operation(&self, operation: u32) -> bool {
        self.operations.checked_shr(operation).is_some_and(|bits| bits & 1 == 1)
    }

    /// The operations of the piece that begins there which have addresses. `None`: there is no such piece.
    pub(crate) fn operations_at(&self, start: u64) -> Option<u32> {
        self.pieces.get(&start).map(|piece| piece.operations)
    }

    /// Says which operations of the piece that begins there have addresses.
    pub(crate) fn set_operations(&mut self, start: u64, operations: u32) {
        if let Some(piece) = self.pieces.get_mut(&start) {
            piece.operations = operations;
        }
    }

    /// Where in BAR0 an operation is done on the byte that is mapped at `start`.
    pub(crate) fn operation_address(&self, start: u64, operation: u32) -> u64 {
        start.saturating_sub(u64::from(operation).saturating_add(1).saturating_mul(self.size()))
    }

    /// Frees the piece that begins there.
    pub(crate) fn free(&mut self, start: u64) {
        self.pieces.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_side_by_side() {
        let mut page = caps::DeviceMemory::new();
        page.set(caps::DeviceMemory::MEMIC_BAR_START_ADDR, 0x10000)
            .set(caps::DeviceMemory::MEMIC_BAR_SIZE, 0x8000);
        let mut memory = DeviceMemory::new(&page);
        assert!(
            memory.is_at(0x10000) && memory.is_at(0x17fff) && !memory.is_at(0x18000) && !memory.is_at(0xffff)
        );
        assert!(memory.is_range(0x10000, 0x8000) && memory.is_range(0x17000, 0x1000));
        for (start, len) in
            [(0x10000, 0), (0x10000, 0x9000), (0xf000, 0x1000), (0x10800, 0x1000), (u64::MAX, 0x1000)]
        {
            assert!(!memory.is_range(start, len), "{start:#x} {len:#x}");
        }
        assert!(memory.allocate(0x11000, 0x2000, 0x1040));
        for start in [0x10000, 0x11000, 0x12000] {
            assert!(!memory.allocate(start, 0x2000, 64), "{start:#x}");
        }
        assert!(memory.allocate(0x13000, 0x1000, 64) && memory.allocate(0x10000, 0x1000, 64));
        assert!(
            memory.write(0x12000, &[7; 0x40]) && !memory.write(0x12001, &[7; 0x40]),
            "to the end, not beyond"
        );
        let mut found = [1; 2];
        assert!(memory.read(0x11fff, &mut found));
        assert_eq!(found, [0, 7]);
        assert!(!memory.read(0x14000, &mut found) && !memory.read(u64::MAX, &mut found));
        memory.free(0x11000);
        assert!(!memory.read(0x11fff, &mut found) && memory.has(0x13000, 64));
        assert!(memory.allocate(0x11000, 0x1000, 64));
        assert!(memory.read(0x11000, &mut found) && found == [0, 0], "nobody reads what another wrote");
    }
}
