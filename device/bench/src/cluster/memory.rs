//! Memory of a host, and the bus to its adapter.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_driver::arena::Arena;
use hca_driver::{Bus, Dma};
use hca_model::{DmaError, GuestMemory, HcaId, Ps};
use memmap2::MmapMut;

use super::Adapters;
use super::stage::Turns;
use crate::Error;

/// Where a host's memory begins: above 4 GiB, so that high address words matter.
const WINDOW: u64 = 0x2_0000_0000;

/// Memory of a host.
pub(super) struct Memory {
    /// Of the system, and not of the allocator, which may clear what it has had before: it is touched where it is used alone.
    bytes: Mutex<MmapMut>,
    arena: Mutex<Arena>,
    /// End of the highest piece so far: what lies behind was never touched, and is zero.
    used: AtomicUsize,
    /// The adapter wrote since the host looked.
    pub(super) news: AtomicBool,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Memory of so many bytes, all of them zero.
    ///
    /// # Errors
    /// The system has none.
    pub(super) fn new(size: usize) -> Result<Self, Error> {
        let bytes = MmapMut::map_anon(size).map_err(|why| Error::new(format!("its memory: {why}")))?;
        Ok(Self {
            bytes: Mutex::new(bytes),
            arena: Mutex::new(Arena::new(size)),
            used: AtomicUsize::new(0),
            news: AtomicBool::new(false),
        })
    }

    fn access<T>(&self, iova: u64, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> Result<T, DmaError> {
        let start = iova.checked_sub(WINDOW).and_then(|s| usize::try_from(s).ok());
        let range = start.and_then(|s| Some(s..s.checked_add(len)?));
        range.and_then(|r| lock(&self.bytes).get_mut(r).map(act)).ok_or(DmaError { iova, len })
    }
}

impl GuestMemory for Memory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.access(iova, buf.len(), |bytes| buf.copy_from_slice(bytes))
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.news.store(true, Ordering::Relaxed);
        self.access(iova, data.len(), |bytes| bytes.copy_from_slice(data))
    }
}

/// An adapter as its host sees it.
pub(super) struct HostBus<'a> {
    turns: Turns<'a>,
    hca: HcaId,
    memory: Arc<Memory>,
}

impl<'a> HostBus<'a> {
    pub(super) fn new(turns: Turns<'a>, hca: HcaId, memory: Arc<Memory>) -> Self {
        Self { turns, hca, memory }
    }

    pub(super) fn turns(&mut self) -> &mut Turns<'a> {
        &mut self.turns
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut dyn Adapters, Ps, HcaId) -> T) -> T {
        let hca = self.hca;
        self.turns.adapters(|adapters, now| act(adapters, now, hca))
    }

    /// What the processor has not stored yet it stores now.
    fn flush(&mut self) {
        self.with(|adapters, now, hca| adapters.flush(now, hca));
    }

    /// Waits until that time.
    pub(super) fn sleep_until(&mut self, until: Ps) {
        self.flush();
        self.turns.wait(until, false);
    }
}

impl Bus for HostBus<'_> {
    type Dma = Piece;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        let mut word = self.with(|adapters, now, hca| adapters.load(now, hca, offset));
        // A processor waits for what it reads, and so does the program.
        while word.is_none() && !self.turns.is_over() {
            self.turns.wait(Ps::MAX, true);
            word = self.with(|adapters, _, hca| adapters.answer(hca));
        }
        word.unwrap_or(u32::MAX)
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        self.with(|adapters, now, hca| adapters.store(now, hca, offset, &value.to_be_bytes()));
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.with(|adapters, now, hca| adapters.store(now, hca, offset, &value.to_be_bytes()));
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<Piece> {
        let start = lock(&self.memory.arena).alloc(size, align)?;
        let piece = Piece { memory: Arc::clone(&self.memory), start, size };
        let used = self.memory.used.fetch_max(start + size, Ordering::Relaxed).saturating_sub(start);
        piece.with(0, used.min(size), |bytes| bytes.fill(0));
        Some(piece)
    }

    fn wait(&mut self, _vector: Option<u16>) {
        self.flush();
        let until = self.turns.now() + PATIENCE;
        self.turns.wait(until, true);
    }

    fn vectors(&self) -> u16 {
        1
    }
}

/// A driver that waits looks again after so long, even if its adapter has written nothing.
const PATIENCE: Ps = Ps::from_us(10);

/// A piece of a host's memory.
pub(super) struct Piece {
    memory: Arc<Memory>,
    start: usize,
    size: usize,
}

impl Piece {
    fn with<T>(&self, offset: usize, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.size), "access beyond the allocation");
        let at = self.bus_address() + offset as u64;
        let done = self.memory.access(at, len, act);
        done.unwrap_or_else(|why| unreachable!("allocations lie in the window: {why}"))
    }

    /// Bytes are made in their place.
    pub(super) fn fill(&mut self, offset: usize, len: usize, make: impl FnOnce(&mut [u8])) {
        self.with(offset, len, make);
    }

    /// Looks at bytes without copying them.
    pub(super) fn look<T>(&self, offset: usize, len: usize, act: impl FnOnce(&[u8]) -> T) -> T {
        self.with(offset, len, |bytes| act(bytes))
    }
}

impl Dma for Piece {
    fn bus_address(&self) -> u64 {
        WINDOW + self.start as u64
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.with(offset, buf.len(), |bytes| buf.copy_from_slice(bytes));
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.with(offset, data.len(), |bytes| bytes.copy_from_slice(data));
    }

    fn load32(&self, offset: usize) -> u32 {
        self.with(offset, 4, |bytes| hca_spec::be32(bytes, 0))
    }

    fn store32(&mut self, offset: usize, value: u32) {
        self.with(offset, 4, |bytes| hca_spec::put_be32(bytes, 0, value));
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        lock(&self.memory.arena).free(self.start, self.size);
    }
}
