//! What a port to a new environment provides: registers, memory the adapter can reach, and patience.

/// Access to one adapter.
///
/// Registers are big-endian on the bus (PRM "Initialization Segment"); the numbers here are plain
/// values, so a little-endian machine swaps inside these methods. A write must be seen by the adapter
/// after every [`Dma`] write that came before it: on weakly ordered machines `mmio_write*` starts with
/// a write barrier.
pub trait Bus {
    /// Memory that the processor and the adapter share.
    type Dma: Dma;

    /// Reads the 32-bit register at byte `offset` of BAR0. All ones when the adapter is gone.
    fn mmio_read32(&mut self, offset: u64) -> u32;

    /// Writes the 32-bit register at byte `offset` of BAR0.
    fn mmio_write32(&mut self, offset: u64, value: u32);

    /// Writes 8 bytes at byte `offset` of BAR0 in one access: doorbells come in this size.
    fn mmio_write64(&mut self, offset: u64, value: u64);

    /// Writes a block to byte `offset` of BAR0 in ascending order, as one burst if the bus has them; `data` is bytes as
    /// the adapter sees them, a multiple of 8. BlueFlame needs it ([`crate::Qp::post_send_blueflame`]).
    fn mmio_write_block(&mut self, offset: u64, data: &[u8]) {
        for (i, word) in data.as_chunks::<8>().0.iter().enumerate() {
            self.mmio_write64(offset + 8 * i as u64, u64::from_be_bytes(*word));
        }
    }

    /// Allocates `size` zeroed bytes, contiguous on the bus, at a multiple of `align` (a power of two).
    ///
    /// `None` when there is no memory. The memory is freed when the handle is dropped.
    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<Self::Dma>;

    /// Lets time pass between two polls.
    ///
    /// With a `vector` the call may sleep until that MSI-X vector fires, but never for ever: the driver
    /// counts calls, not seconds, before it reports a timeout.
    fn wait(&mut self, vector: Option<u16>);

    /// How many MSI-X vectors the adapter may use; at least 1.
    fn vectors(&self) -> u16;
}

/// A piece of memory shared with the adapter.
///
/// Offsets come from the driver alone, never from the adapter: an implementation may treat one beyond
/// the end as a programming error.
pub trait Dma {
    /// Address of the first byte as the adapter sees it.
    fn bus_address(&self) -> u64;

    /// Copies bytes out, from `offset` on.
    fn read(&self, offset: usize, buf: &mut [u8]);

    /// Copies bytes in, from `offset` on.
    fn write(&mut self, offset: usize, data: &[u8]);

    /// Reads the big-endian word at `offset` in one access; later reads see memory at least as new
    /// (acquire).
    fn load32(&self, offset: usize) -> u32;

    /// Writes the big-endian word at `offset` in one access, after every earlier write (release).
    fn store32(&mut self, offset: usize, value: u32);
}

/// The bus addresses of the 4 KiB pages that cover `len` bytes of contiguous memory at `address`.
pub(crate) fn pages_of(address: u64, len: usize) -> impl Iterator<Item = u64> {
    (0..len.div_ceil(crate::PAGE_SIZE) as u64).map(move |i| address + i * crate::PAGE_SIZE as u64)
}
