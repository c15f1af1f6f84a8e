//! MSI-X vectors: who is told when the adapter raises one.
//!
//! A vfio-user client connects an event descriptor to each vector it wants, and delivers the
//! message itself: QEMU keeps the guest's view of the table and does the masking. So a connected
//! vector is signalled whatever our own table says, and one that is not connected, or that the
//! client has masked by SET_IRQS, is kept as pending and delivered later. The table stored here
//! serves clients that access it through the region.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use super::{BAR2_SIZE, MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET, MSIX_VECTORS};

const VECTORS: usize = MSIX_VECTORS as usize;
/// Bytes of one table entry: address low and high, data, vector control.
const ENTRY_LEN: usize = 16;
const TABLE_LEN: usize = VECTORS * ENTRY_LEN;
/// Offset of vector control in an entry; bit 0 masks the vector.
const ENTRY_CONTROL: usize = 12;
const PBA_LEN: usize = VECTORS.div_ceil(64) * 8;

/// What became of a raised vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The client was told.
    Signalled,
    /// It waits in the pending bit array.
    Pending,
    /// There is no such vector, or the client's descriptor is broken.
    Dropped,
}

/// The vectors of one function.
#[derive(Debug)]
pub struct Msix {
    table: [u8; TABLE_LEN],
    eventfds: Vec<Option<OwnedFd>>,
    masked: [bool; VECTORS],
    pending: [bool; VECTORS],
}

impl Default for Msix {
    fn default() -> Self {
        let mut msix = Msix {
            table: [0; TABLE_LEN],
            eventfds: Vec::new(),
            masked: [false; VECTORS],
            pending: [false; VECTORS],
        };
        msix.eventfds.resize_with(VECTORS, || None);
        msix.reset();
        msix
    }
}

impl Msix {
    /// Table and pending bits as after a reset. Connections belong to the client and stay.
    pub fn reset(&mut self) {
        self.table = [0; TABLE_LEN];
        for entry in self.table.chunks_exact_mut(ENTRY_LEN) {
            if let Some(control) = entry.get_mut(ENTRY_CONTROL) {
                *control = 1;
            }
        }
        self.pending = [false; VECTORS];
    }

    /// The client is gone.
    pub fn disconnect_all(&mut self) {
        self.eventfds.iter_mut().for_each(|fd| *fd = None);
        self.masked = [false; VECTORS];
        self.pending = [false; VECTORS];
    }

    /// The adapter raises `vector`.
    pub fn raise(&mut self, vector: u16) -> Raised {
        let v = usize::from(vector);
        let (Some(fd), Some(masked), Some(pending)) =
            (self.eventfds.get(v), self.masked.get(v), self.pending.get_mut(v))
        else {
            return Raised::Dropped;
        };
        match fd {
            Some(fd) if !masked => {
                *pending = false;
                match signal(fd) {
                    Ok(()) => Raised::Signalled,
                    Err(e) => {
                        tracing::debug!("event descriptor of vector {vector}: {e}");
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

    /// Connects a vector to a descriptor, or disconnects it. A pending interrupt is delivered.
    ///
    /// # Errors
    /// `EINVAL` if there is no such vector.
    pub fn connect(&mut self, vector: u32, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let v = usize::try_from(vector).map_err(|_| Errno::EINVAL)?;
        *self.eventfds.get_mut(v).ok_or(Errno::EINVAL)? = fd;
        self.deliver(v);
        Ok(())
    }

    /// Masks or unmasks a vector for the client. A pending interrupt is delivered on unmasking.
    ///
    /// # Errors
    /// `EINVAL` if there is no such vector.
    pub fn mask(&mut self, vector: u32, masked: bool) -> Result<(), Errno> {
        let v = usize::try_from(vector).map_err(|_| Errno::EINVAL)?;
        *self.masked.get_mut(v).ok_or(Errno::EINVAL)? = masked;
        self.deliver(v);
        Ok(())
    }

    fn deliver(&mut self, v: usize) {
        let connected = self.eventfds.get(v).is_some_and(Option::is_some);
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

/// Adds 1 to an event counter. A full counter has told the client already.
fn signal(fd: &OwnedFd) -> nix::Result<()> {
    // A client may hand over a blocking descriptor of any kind: ask before writing.
    let mut poll = [nix::poll::PollFd::new(fd.as_fd(), nix::poll::PollFlags::POLLOUT)];
    if nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO)? == 0 {
        return Ok(());
    }
    match nix::unistd::write(fd, &1u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::EAGAIN) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    fn eventfd() -> (EventFd, OwnedFd) {
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let owned = fd.as_fd().try_clone_to_owned().unwrap();
        (fd, owned)
    }

    fn pba(msix: &Msix) -> u64 {
        let mut bytes = [0; 8];
        msix.read(MSIX_PBA_OFFSET, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn connected_vectors_are_signalled() {
        let mut msix = Msix::default();
        let (fd, owned) = eventfd();
        msix.connect(3, Some(owned)).unwrap();
        assert_eq!(msix.raise(3), Raised::Signalled);
        assert_eq!(msix.raise(3), Raised::Signalled);
        assert_eq!(fd.read().unwrap(), 2);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn nothing_is_lost_before_the_connection() {
        let mut msix = Msix::default();
        assert_eq!(msix.raise(63), Raised::Pending);
        assert_eq!(pba(&msix), 1 << 63);
        let (fd, owned) = eventfd();
        msix.connect(63, Some(owned)).unwrap();
        assert_eq!(fd.read().unwrap(), 1);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn masked_vectors_wait() {
        let mut msix = Msix::default();
        let (fd, owned) = eventfd();
        msix.connect(1, Some(owned)).unwrap();
        msix.mask(1, true).unwrap();
        assert_eq!(msix.raise(1), Raised::Pending);
        assert_eq!(pba(&msix), 2);
        msix.mask(1, false).unwrap();
        assert_eq!(fd.read().unwrap(), 1);
        assert_eq!(pba(&msix), 0);
    }

    #[test]
    fn vectors_outside_are_refused() {
        let mut msix = Msix::default();
        assert_eq!(msix.raise(64), Raised::Dropped);
        assert_eq!(msix.raise(u16::MAX), Raised::Dropped);
        assert_eq!(msix.connect(64, None), Err(Errno::EINVAL));
        assert_eq!(msix.mask(u32::MAX, true), Err(Errno::EINVAL));
    }

    #[test]
    fn a_full_counter_does_not_block() {
        let mut msix = Msix::default();
        let fd = EventFd::from_flags(EfdFlags::empty()).unwrap();
        fd.write(u64::MAX - 1).unwrap();
        msix.connect(0, Some(fd.as_fd().try_clone_to_owned().unwrap())).unwrap();
        assert_eq!(msix.raise(0), Raised::Signalled);
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
