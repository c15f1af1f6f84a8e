//! Files of guest memory, each mapped once and shared by its windows.
//!
//! One mapping per file keeps page-sized windows (a guest with an IOMMU makes thousands) below
//! the kernel's limit of mappings per process.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;

use super::MapError;
use super::peer::{Peer, Sharing};

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    /// Device number.
    pub(super) dev: u64,
    /// Inode number.
    pub(super) ino: u64,
}

/// A whole file mapped shared.
#[derive(Debug)]
pub(super) struct FileMap {
    map: MmapRaw,
    writable: bool,
}

impl FileMap {
    fn new(file: &File, len: usize, writable: bool) -> Result<FileMap, Errno> {
        let mut options = MmapOptions::new();
        options.len(len).no_reserve_swap();
        let errno = |e: std::io::Error| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let map =
            if writable { options.map_raw(file) } else { options.map_raw_read_only(file) }.map_err(errno)?;
        Ok(FileMap { map, writable })
    }

    /// True if it may be written.
    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    /// Copies out of the file; `None` if the range is not inside.
    ///
    /// Aligned accesses of 1, 2, 4 and 8 bytes are single loads, so that a doorbell record or an
    /// ownership byte is never seen torn. Loads of a later call don't move before this one.
    pub(super) fn read(&self, offset: usize, buf: &mut [u8]) -> Option<()> {
        let from = self.range(offset, buf.len())?;
        let aligned = from.addr().is_multiple_of(buf.len().max(1));
        // SAFETY (all arms): `range` has checked that `from .. from + buf.len()` lies inside the
        // mapping, which lives as long as `self`; `buf` is a distinct Rust object. The guest may
        // write at the same time: nothing here depends on the value, and no reference to guest
        // memory is ever formed. Alignment is checked for the typed loads.
        match buf.len() {
            1 => buf.copy_from_slice(
                // SAFETY: see above.
                &[unsafe { from.read_volatile() }],
            ),
            2 if aligned => buf.copy_from_slice(
                // SAFETY: see above.
                &unsafe { from.cast::<u16>().read_volatile() }.to_ne_bytes(),
            ),
            4 if aligned => buf.copy_from_slice(
                // SAFETY: see above.
                &unsafe { from.cast::<u32>().read_volatile() }.to_ne_bytes(),
            ),
            8 if aligned => buf.copy_from_slice(
                // SAFETY: see above.
                &unsafe { from.cast::<u64>().read_volatile() }.to_ne_bytes(),
            ),
            // SAFETY: see above.
            len => unsafe { from.copy_to_nonoverlapping(buf.as_mut_ptr(), len) },
        }
        fence(Ordering::Acquire);
        Some(())
    }

    /// Copies into the file; `None` if the range is not inside or the mapping is read-only.
    ///
    /// Aligned accesses of 1, 2, 4 and 8 bytes are single stores. Stores of an earlier call are
    /// visible to the guest before those of this one.
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        if !self.writable {
            return None;
        }
        let to = self.range(offset, data.len())?;
        let aligned = to.addr().is_multiple_of(data.len().max(1));
        fence(Ordering::Release);
        // SAFETY (all arms): as in `read`, and the mapping is writable.
        match *data {
            // SAFETY: see above.
            [a] => unsafe { to.write_volatile(a) },
            // SAFETY: see above.
            [a, b] if aligned => unsafe {
                to.cast::<u16>().write_volatile(u16::from_ne_bytes([a, b]));
            },
            // SAFETY: see above.
            [a, b, c, d] if aligned => unsafe {
                to.cast::<u32>().write_volatile(u32::from_ne_bytes([a, b, c, d]));
            },
            // SAFETY: see above.
            [a, b, c, d, e, f, g, h] if aligned => unsafe {
                to.cast::<u64>().write_volatile(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
            },
            // SAFETY: see above.
            _ => unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) },
        }
        Some(())
    }

    /// Copies from another place of this or another file, in one go; `None` if a range is not inside or this mapping is
    /// read-only. Stores of an earlier call are visible to the guest before those of this one.
    pub(super) fn copy(&self, offset: usize, source: &FileMap, from: usize, len: usize) -> Option<()> {
        if !self.writable {
            return None;
        }
        let (to, from) = (self.range(offset, len)?, source.range(from, len)?);
        fence(Ordering::Release);
        // SAFETY: `range` has checked that both ranges lie inside mappings, which live as long as `self` and `source`, and
        // this one is writable. They may overlap: two windows can show the same memory. Guests may write at the same time:
        // nothing here depends on the values, and no reference to guest memory is ever formed.
        unsafe { to.copy_from(from, len) };
        fence(Ordering::Acquire);
        Some(())
    }

    fn range(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // `wrapping_add` stays inside the mapping, as just checked.
        (end <= self.map.len()).then(|| self.map.as_mut_ptr().wrapping_add(offset))
    }
}

#[derive(Debug)]
struct Known {
    id: FileId,
    map: Weak<FileMap>,
}

/// The files of one client.
#[derive(Debug, Default)]
pub(super) struct FileMaps {
    known: Vec<Known>,
}

impl FileMaps {
    /// The mapping that covers `[offset, offset + size)` of `fd`, made if need be.
    ///
    /// # Errors
    /// [`MapError::Misfit`] if the file is shorter, [`MapError::NotShared`] if its memory is private to the client, or what
    /// the system says.
    pub(super) fn get(
        &mut self,
        fd: OwnedFd,
        offset: u64,
        size: u64,
        writable: bool,
        peer: Peer,
    ) -> Result<Arc<FileMap>, MapError> {
        let stat = fstat(fd.as_fd()).map_err(MapError::System)?;
        let id = FileId { dev: stat.st_dev, ino: stat.st_ino };
        let len = u64::try_from(stat.st_size).map_err(|_| MapError::Misfit)?;
        let end = offset.checked_add(size).ok_or(MapError::Misfit)?;
        if end > len {
            tracing::warn!("client maps {offset:#x}..{end:#x} of a file of {len:#x} bytes");
            return Err(MapError::Misfit);
        }
        let end = usize::try_from(end).map_err(|_| MapError::Misfit)?;
        let known = self
            .known
            .iter()
            .filter(|k| k.id == id)
            .find_map(|k| k.map.upgrade().filter(|m| m.map.len() >= end))
            .filter(|m| m.writable || !writable);
        if let Some(map) = known {
            return Ok(map);
        }
        if writable && peer.sharing(id) == Sharing::Private {
            tracing::error!(
                "guest memory is not shared: DMA would go to a copy nobody sees. Start QEMU with \
                 share=on: -object memory-backend-memfd,id=mem0,size=SIZE,share=on \
                 -machine memory-backend=mem0"
            );
            return Err(MapError::NotShared);
        }
        keep_length(&fd);
        let file = File::from(fd);
        let len = usize::try_from(len).map_err(|_| MapError::Misfit)?;
        let map = match FileMap::new(&file, len, writable) {
            // A descriptor opened read-only can still serve reads.
            Err(Errno::EACCES) if writable => FileMap::new(&file, len, false),
            other => other,
        };
        let map = map.map_err(MapError::System)?;
        let map = Arc::new(map);
        self.known.push(Known { id, map: Arc::downgrade(&map) });
        Ok(map)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// True if no window uses a file.
    pub(super) fn is_empty(&self) -> bool {
        self.known.iter().all(|k| k.map.strong_count() == 0)
    }

    /// Drops mappings that no window uses any more.
    pub(super) fn forget_unused(&mut self) {
        self.known.retain(|k| k.map.strong_count() > 0);
    }
}

/// Makes sure, where the kind of file allows it, that the client can't shorten the file under our
/// mapping: touching what is gone would kill the server.
fn keep_length(fd: &OwnedFd) {
    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(seals) if seals & SealFlag::F_SEAL_SHRINK.bits() != 0 => {}
        Ok(_) => {
            if let Err(e) = fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)) {
                tracing::debug!("guest memory can't be sealed against shrinking: {e}");
            }
        }
        Err(e) => tracing::debug!("guest memory is not a memfd ({e}): not sealed"),
    }
}
