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

use super::{BAR2_SIZE, MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET};

/// Bytes of one table entry: address low and high, data, vector control.
const ENTRY_LEN: usize = 16;
/// Offset of vector control in an entry; bit 0 masks the vector.
const ENTRY_CONTROL: usize = 12;

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
    /// The table as bytes.
    table: Vec<u8>,
    vectors: Vec<Vector>,
}

#[derive(Debug, Default)]
struct Vector {
    signal: Option<Box<dyn Signal>>,
    masked: bool,
    pending: bool,
}

impl Msix {
    /// So many vectors, nobody to tell.
    pub fn new(vectors: u16) -> Msix {
        let count = usize::from(vectors);
        let mut msix = Msix { table: vec![0; count * ENTRY_LEN], vectors: Vec::new() };
        msix.vectors.resize_with(count, Vector::default);
        msix.reset();
        msix
    }

    /// Table and pending bits as after a reset. Connections belong to the host and stay.
    pub fn reset(&mut self) {
        self.table.fill(0);
        for entry in self.table.chunks_exact_mut(ENTRY_LEN) {
            if let Some(control) = entry.get_mut(ENTRY_CONTROL) {
                *control = 1;
            }
        }
        self.vectors.iter_mut().for_each(|v| v.pending = false);
    }

    /// The host is gone.
    pub fn disconnect_all(&mut self) {
        self.vectors.iter_mut().for_each(|v| *v = Vector::default());
    }

    /// The adapter raises `vector`.
    pub fn raise(&mut self, vector: u16) -> Raised {
        match self.vectors.get_mut(usize::from(vector)) {
            Some(v) => v.raise(),
            None => Raised::Dropped,
        }
    }

    /// True if somebody is told of `vector`.
    pub fn is_connected(&self, vector: u16) -> bool {
        self.vectors.get(usize::from(vector)).is_some_and(|vector| vector.signal.is_some())
    }

    /// Whether `vector` is masked: by its host, or, if nobody is connected, in the table.
    pub fn is_masked(&self, vector: u16) -> bool {
        let n = usize::from(vector);
        let control = self.table.get(n.saturating_mul(ENTRY_LEN).saturating_add(ENTRY_CONTROL));
        self.vectors.get(n).is_some_and(|v| match v.signal {
            Some(_) => v.masked,
            None => v.masked || control.is_some_and(|control| control & 1 == 1),
        })
    }

    /// Keeps `vector` pending until [`Msix::deliver_all`].
    pub fn hold(&mut self, vector: u16) -> Raised {
        match self.vectors.get_mut(usize::from(vector)) {
            Some(v) => {
                v.pending = true;
                Raised::Pending
            }
            None => Raised::Dropped,
        }
    }

    /// Delivers what is pending and can be delivered.
    pub fn deliver_all(&mut self) {
        self.vectors.iter_mut().for_each(Vector::deliver);
    }

    /// Connects a vector to who is told of it, or disconnects it. A pending interrupt is delivered.
    ///
    /// # Errors
    /// [`NoSuchVector`].
    pub fn connect(&mut self, vector: u32, signal: Option<Box<dyn Signal>>) -> Result<(), NoSuchVector> {
        let v = self.vector(vector)?;
        v.signal = signal;
        v.deliver();
        Ok(())
    }

    /// Masks or unmasks a vector for the host. A pending interrupt is delivered on unmasking.
    ///
    /// # Errors
    /// [`NoSuchVector`].
    pub fn mask(&mut self, vector: u32, masked: bool) -> Result<(), NoSuchVector> {
        let v = self.vector(vector)?;
        v.masked = masked;
        v.deliver();
        Ok(())
    }

    fn vector(&mut self, vector: u32) -> Result<&mut Vector, NoSuchVector> {
        usize::try_from(vector).ok().and_then(|v| self.vectors.get_mut(v)).ok_or(NoSuchVector)
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

    fn pba(&self) -> Vec<u8> {
        let words = self.vectors.chunks(64).map(|vectors| {
            vectors.iter().enumerate().fold(0u64, |bits, (i, v)| bits | u64::from(v.pending) << i)
        });
        words.flat_map(u64::to_le_bytes).collect()
    }
}

impl Vector {
    fn raise(&mut self) -> Raised {
        match &self.signal {
            Some(signal) if !self.masked => {
                self.pending = false;
                match signal.signal() {
                    Ok(()) => Raised::Signalled,
                    Err(e) => {
                        tracing::debug!("an interrupt could not be told: {e}");
                        Raised::Dropped
                    }
                }
            }
            _ => {
                self.pending = true;
                Raised::Pending
            }
        }
    }

    fn deliver(&mut self) {
        if self.signal.is_some() && self.pending {
            self.raise();
        }
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
        let mut msix = Msix::new(64);
        let (count, signal) = counter();
        msix.connect(3, Some(signal)).unwrap();
        assert_eq!(msix.raise(3), Raised::Signalled);
        assert_eq!(msix.raise(3), Raised::Signalled);
        assert_eq!(told(&count), 2);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn nothing_is_lost_before_the_connection() {
        let mut msix = Msix::new(64);
        assert_eq!(msix.raise(63), Raised::Pending);
        assert_eq!(pba(&msix), 1 << 63);
        let (count, signal) = counter();
        msix.connect(63, Some(signal)).unwrap();
        assert_eq!(told(&count), 1);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn masked_vectors_wait() {
        let mut msix = Msix::new(64);
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
        let mut msix = Msix::new(64);
        assert_eq!(msix.raise(64), Raised::Dropped);
        assert_eq!(msix.raise(u16::MAX), Raised::Dropped);
        assert_eq!(msix.connect(64, None), Err(NoSuchVector));
        assert_eq!(msix.mask(u32::MAX, true), Err(NoSuchVector));
    }

    #[test]
    fn who_is_gone_is_not_waited_for() {
        let mut msix = Msix::new(64);
        let (count, signal) = counter();
        count.store(CLOSED, Ordering::Relaxed);
        msix.connect(0, Some(signal)).unwrap();
        assert_eq!(msix.raise(0), Raised::Dropped);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn table_is_stored_and_masked_after_reset() {
        let mut msix = Msix::new(64);
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
