//! MSI-X vectors: who is told when the adapter raises one.
//!
//! A front end connects a [`Signal`] to each vector its host wants, and delivers the message itself: QEMU, for
//! instance, keeps the guest's view of the table and does the masking. So a connected
//! vector is signalled whatever our own table says, and one that is not connected, or that the
//! front end has masked, is kept as pending and delivered later. The table stored here
//! serves hosts that access it through its BAR.

use std::sync::Arc;
use std::{fmt, io};

use thiserror::Error;

use super::{BAR2_SIZE, MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET, MSIX_VECTORS};

const VECTORS: usize = MSIX_VECTORS as usize;
/// Bytes of one table entry: address low and high, data, vector control.
const ENTRY_LEN: usize = 16;
const TABLE_LEN: usize = VECTORS * ENTRY_LEN;
/// Offset of vector control in an entry; bit 0 masks the vector.
const ENTRY_CONTROL: usize = 12;
const PBA_LEN: usize = VECTORS.div_ceil(64) * 8;

/// Who is told when a vector is raised.
pub trait Signal: fmt::Debug + Send {
    /// Tells. It does not block.
    ///
    /// # Errors
    /// Whoever it was is not there any more.
    fn signal(&self) -> io::Result<()>;
}

impl<S: Signal + Sync + ?Sized> Signal for Arc<S> {
    fn signal(&self) -> io::Result<()> {
        (**self).signal()
    }
}

/// There is no vector of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no such vector")]
pub struct NoSuchVector;

/// What became of a raised vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The host was told.
    Signalled,
    /// It waits in the pending bit array.
    Pending,
    /// There is no such vector, or telling failed.
    Dropped,
}

/// The vectors of one function.
#[derive(Debug)]
pub struct Msix {
    table: [u8; TABLE_LEN],
    signals: Vec<Option<Box<dyn Signal>>>,
    masked: [bool; VECTORS],
    pending: [bool; VECTORS],
}

impl Default for Msix {
    fn default() -> Self {
        let mut msix = Msix {
            table: [0; TABLE_LEN],
            signals: Vec::new(),
            masked: [false; VECTORS],
            pending: [false; VECTORS],
        };
        msix.signals.resize_with(VECTORS, || None);
        msix.reset();
        msix
    }
}

impl Msix {
    /// Table and pending bits as after a reset. Connections belong to the host and stay.
    pub fn reset(&mut self) {
        self.table = [0; TABLE_LEN];
        for entry in self.table.chunks_exact_mut(ENTRY_LEN) {
            if let Some(control) = entry.get_mut(ENTRY_CONTROL) {
                *control = 1;
            }
        }
        self.pending = [false; VECTORS];
    }

    /// The host is gone.
    pub fn disconnect_all(&mut self) {
        self.signals.iter_mut().for_each(|signal| *signal = None);
        self.masked = [false; VECTORS];
        self.pending = [false; VECTORS];
    }

    /// The adapter raises `vector`.
    pub fn raise(&mut self, vector: u16) -> Raised {
        let v = usize::from(vector);
        let (Some(signal), Some(masked), Some(pending)) =
            (self.signals.get(v), self.masked.get(v), self.pending.get_mut(v))
        else {
            return Raised::Dropped;
        };
        match signal {
            Some(signal) if !masked => {
                *pending = false;
                match signal.signal() {
                    Ok(()) => Raised::Signalled,
                    Err(e) => {
                        tracing::debug!("vector {vector}: {e}");
                        Raised::Dropped
                    }
                }
            }
            _ => {
                *pending = true;
                Raised::Pending
            }
        }
    }

    /// Keeps `vector` pending until [`Msix::deliver_all`].
    pub fn hold(&mut self, vector: u16) -> Raised {
        match self.pending.get_mut(usize::from(vector)) {
            Some(pending) => {
                *pending = true;
                Raised::Pending
            }
            None => Raised::Dropped,
        }
    }

    /// Delivers what is pending and can be delivered.
    pub fn deliver_all(&mut self) {
        (0..VECTORS).for_each(|v| self.deliver(v));
    }

    /// Connects a vector to who is told of it, or disconnects it. A pending interrupt is delivered.
    ///
    /// # Errors
    /// [`NoSuchVector`].
    pub fn connect(&mut self, vector: u32, signal: Option<Box<dyn Signal>>) -> Result<(), NoSuchVector> {
        let v = usize::try_from(vector).map_err(|_| NoSuchVector)?;
        *self.signals.get_mut(v).ok_or(NoSuchVector)? = signal;
        self.deliver(v);
        Ok(())
    }

    /// Masks or unmasks a vector for the host. A pending interrupt is delivered on unmasking.
    ///
    /// # Errors
    /// [`NoSuchVector`].
    pub fn mask(&mut self, vector: u32, masked: bool) -> Result<(), NoSuchVector> {
        let v = usize::try_from(vector).map_err(|_| NoSuchVector)?;
        *self.masked.get_mut(v).ok_or(NoSuchVector)? = masked;
        self.deliver(v);
        Ok(())
    }

    fn deliver(&mut self, v: usize) {
        let connected = self.signals.get(v).is_some_and(Option::is_some);
        if connected && self.pending.get(v) == Some(&true) {
            self.raise(u16::try_from(v).unwrap_or(u16::MAX));
        }
    }

    /// Reads BAR2; what is neither table nor PBA reads as 0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let pba = self.pba();
        for (i, byte) in data.iter_mut().enumerate() {
            let at = offset.saturating_add(i as u64);
            let table = place(at, MSIX_TABLE_OFFSET).and_then(|n| self.table.get(n));
            let pending = place(at, MSIX_PBA_OFFSET).and_then(|n| pba.get(n));
            *byte = table.or(pending).copied().unwrap_or(0);
        }
    }

    /// Writes BAR2; only the table takes it.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (i, &byte) in data.iter().enumerate() {
            let at = offset.saturating_add(i as u64);
            if let Some(n) = place(at, MSIX_TABLE_OFFSET)
                && let Some(cell) = self.table.get_mut(n)
            {
                *cell = match n % ENTRY_LEN {
                    // The message address is 4-byte aligned.
                    0 => byte & !0x3,
                    // Vector control has the mask bit and else only reserved ones.
                    ENTRY_CONTROL => byte & 1,
                    n if n > ENTRY_CONTROL => 0,
                    _ => byte,
                };
            }
        }
    }

    fn pba(&self) -> [u8; PBA_LEN] {
        let mut pba = [0; PBA_LEN];
        for (byte, bits) in pba.iter_mut().zip(self.pending.chunks(8)) {
            for (i, &bit) in bits.iter().enumerate() {
                *byte |= u8::from(bit) << i;
            }
        }
        pba
    }
}

fn place(at: u64, start: u64) -> Option<usize> {
    if at >= BAR2_SIZE {
        return None;
    }
    usize::try_from(at.checked_sub(start)?).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Counts how often it is told; fails once it is closed.
    #[derive(Clone, Debug, Default)]
    struct Count(Arc<AtomicU64>);

    const CLOSED: u64 = u64::MAX;

    impl Signal for Count {
        fn signal(&self) -> io::Result<()> {
            if self.0.load(Ordering::Relaxed) == CLOSED {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn counter() -> (Arc<AtomicU64>, Box<dyn Signal>) {
        let count = Count::default();
        (Arc::clone(&count.0), Box::new(count))
    }

    fn told(count: &AtomicU64) -> u64 {
        count.swap(0, Ordering::Relaxed)
    }

    fn pba(msix: &Msix) -> u64 {
        let mut bytes = [0; 8];
        msix.read(MSIX_PBA_OFFSET, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn connected_vectors_are_signalled() {
        let mut msix = Msix::default();
        let (count, signal) = counter();
        msix.connect(3, Some(signal)).unwrap();
        assert_eq!(msix.raise(3), Raised::Signalled);
        assert_eq!(msix.raise(3), Raised::Signalled);
        assert_eq!(told(&count), 2);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn nothing_is_lost_before_the_connection() {
        let mut msix = Msix::default();
        assert_eq!(msix.raise(63), Raised::Pending);
        assert_eq!(pba(&msix), 1 << 63);
        let (count, signal) = counter();
        msix.connect(63, Some(signal)).unwrap();
        assert_eq!(told(&count), 1);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn masked_vectors_wait() {
        let mut msix = Msix::default();
        let (count, signal) = counter();
        msix.connect(1, Some(signal)).unwrap();
        msix.mask(1, true).unwrap();
        assert_eq!(msix.raise(1), Raised::Pending);
        assert_eq!(pba(&msix), 2);
        msix.mask(1, false).unwrap();
        assert_eq!(told(&count), 1);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn vectors_outside_are_refused() {
        let mut msix = Msix::default();
        assert_eq!(msix.raise(64), Raised::Dropped);
        assert_eq!(msix.raise(u16::MAX), Raised::Dropped);
        assert_eq!(msix.connect(64, None), Err(NoSuchVector));
        assert_eq!(msix.mask(u32::MAX, true), Err(NoSuchVector));
    }

    #[test]
    fn who_is_gone_is_not_waited_for() {
        let mut msix = Msix::default();
        let (count, signal) = counter();
        count.store(CLOSED, Ordering::Relaxed);
        msix.connect(0, Some(signal)).unwrap();
        assert_eq!(msix.raise(0), Raised::Dropped);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn table_is_stored_and_masked_after_reset() {
        let mut msix = Msix::default();
        let mut entry = [0; 16];
        msix.read(16, &mut entry);
        assert_eq!(entry[12], 1);
        msix.write(16, &[0xff; 16]);
        msix.read(16, &mut entry);
        assert_eq!(entry[..12], [0xfc, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(entry[12..], [1, 0, 0, 0]);
        // The PBA is read-only, the rest is void.
        msix.write(MSIX_PBA_OFFSET, &[0xff; 8]);
        msix.write(0x800, &[0xff; 8]);
        assert_eq!(pba(&msix), 0);
        let mut void = [1; 8];
        msix.read(0x800, &mut void);
        assert_eq!(void, [0; 8]);
        msix.read(u64::MAX, &mut void);
        assert_eq!(void, [0; 8]);
        msix.reset();
        msix.read(16, &mut entry);
        assert_eq!(entry, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    }
}
