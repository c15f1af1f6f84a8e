//! The adapter's view of its host's memory.

use std::any::Any;
use std::fmt;

use hca_firmware::device_memory::DeviceMemory;
use hca_firmware::sw_icm::SwIcm;

/// A DMA access that did not happen: outside every mapping, not writable, or bus mastering is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaError {
    /// First address of the access.
    pub iova: u64,
    /// Its length in bytes.
    pub len: usize,
}

impl fmt::Display for DmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DMA of {} bytes at {:#x} failed", self.len, self.iova)
    }
}

impl std::error::Error for DmaError {}

/// The DMA window of one adapter's host. An access happens wholly or not at all.
///
/// Writes are posted, in the PCIe sense: they become visible in their order, and a read that follows does not pass them.
pub trait GuestMemory: Send + Sync {
    /// Reads `buf.len()` bytes at bus address `iova`. If that goes well, every byte of `buf` was written.
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError>;
    /// Writes `data` at bus address `iova`.
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError>;

    /// Writes one byte that hands ownership over: every earlier write is visible before it.
    fn write_release(&self, iova: u64, byte: u8) -> Result<(), DmaError> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.write(iova, &[byte])
    }

    /// Reads what is there at once, for who looks on beside the adapter: what would have to be asked for is an error.
    fn read_at_once(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        match self.deferred() {
            Some(later) if !later.answers_at_once(iova, buf.len()) => Err(DmaError { iova, len: buf.len() }),
            _ => self.read(iova, buf),
        }
    }

    /// Does what [`GuestMemory::read`] does for bytes that nobody looks at: what is there at once need not be copied.
    fn touch(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.read(iova, buf)
    }

    /// Whether `len` bytes at `iova` can be read at any time until [`World::fetch_payloads`](crate::World::fetch_payloads) is called: then
    /// payload may stay where it is until its receiver takes it. Memory that has to be asked for its bytes says no.
    fn is_mapped(&self, _iova: u64, _len: usize) -> bool {
        false
    }

    /// Whether nobody is to hear at once of a copy to `len` bytes at `iova`, and it can't fail for their sake before
    /// [`World::fetch_payloads`](crate::World::fetch_payloads) is called: what comes at several moments may then be copied at once, before the memory's owner has
    /// his turn.
    fn is_unwatched(&self, _iova: u64, _len: usize) -> bool {
        false
    }

    /// Whether a range is in the host's memory, so that the adapter may write there.
    fn reaches(&self, iova: u64, len: usize) -> bool {
        let last = (len as u64).checked_sub(1).and_then(|more| iova.checked_add(more));
        [Some(iova), last].into_iter().all(|at| at.is_some_and(|at| self.read(at, &mut [0]).is_ok()))
    }

    /// Writes at `iova` what `source` has at `from`. Memories that know each other's kind do it in one copy.
    fn copy_from(&self, iova: u64, source: &dyn GuestMemory, from: u64, len: usize) -> Result<(), DmaError> {
        copy_bytes(self, iova, source, from, len)
    }

    /// The same memory for who looks on beside the adapter, if that is kept apart: what is read there is no access of the adapter's.
    fn aside(&self) -> Option<&dyn GuestMemory> {
        None
    }

    /// Itself, for memories that know its kind.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The way to ask for what is answered later, if a part of this memory answers reads later. Whoever changes it calls
    /// [`World::memory_changed`](crate::World::memory_changed).
    fn deferred(&self) -> Option<&dyn DeferredReads> {
        None
    }
}

/// Reads that are answered at a later time: memory that has to be asked for by messages.
///
/// When answers came, or there is room again after [`Asked::Busy`] or a `false` of [`DeferredReads::takes_writes`],
/// [`World::memory_changed`](crate::World::memory_changed) is called.
pub trait DeferredReads {
    /// Whether [`GuestMemory::read`] answers a read of this range, be it with an error.
    fn answers_at_once(&self, iova: u64, len: usize) -> bool;

    /// Sends a read of `len` bytes at bus address `iova`, behind all earlier writes. Its answer bears `ticket`.
    fn ask(&self, ticket: u64, iova: u64, len: usize) -> Asked;

    /// Nobody waits for the answers to what was asked any more.
    fn forget(&self);

    /// The next answer that came.
    fn next_answer(&self) -> Option<Answer>;

    /// Whether further writes may be posted. If not the adapter begins nothing new.
    fn takes_writes(&self) -> bool;
}

/// What became of a request to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It is on its way.
    OnItsWay,
    /// Too many are: ask again later.
    Busy,
    /// It can't be made.
    Failed(DmaError),
}

/// What came of an access that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A read was answered, or failed.
    Read {
        /// What [`DeferredReads::ask`] was given.
        ticket: u64,
        /// As many bytes as were asked for.
        data: Result<Vec<u8>, DmaError>,
    },
    /// A posted write was refused.
    WriteFailed(DmaError),
}

/// Writes at `iova` of `to` what `source` has at `from`, by way of bytes in between.
///
/// # Errors
/// Which of the two accesses failed; nothing is written if it is the first.
pub fn copy_bytes<M: GuestMemory + ?Sized>(
    to: &M,
    iova: u64,
    source: &dyn GuestMemory,
    from: u64,
    len: usize,
) -> Result<(), DmaError> {
    let mut bytes = vec![0; len];
    source.read(from, &mut bytes)?;
    to.write(iova, &bytes)
}

/// The adapter's own memory, by offsets in BAR0: as wide an access as the host's.
impl GuestMemory for DeviceMemory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        DeviceMemory::read(self, iova, buf).then_some(()).ok_or(DmaError { iova, len })
    }
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        DeviceMemory::write(self, iova, data).then_some(()).ok_or(DmaError { iova, len: data.len() })
    }
}

impl GuestMemory for SwIcm {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        SwIcm::read(self, iova, buf).then_some(()).ok_or(DmaError { iova, len })
    }
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        SwIcm::write(self, iova, data).then_some(()).ok_or(DmaError { iova, len: data.len() })
    }
}

/// Memory of a host that is not there: every access fails.
#[derive(Debug, Default)]
pub struct NoMemory;

impl GuestMemory for NoMemory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        Err(DmaError { iova, len: buf.len() })
    }
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        Err(DmaError { iova, len: data.len() })
    }
}
