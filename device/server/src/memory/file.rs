//! Files of guest memory, mapped in pieces that windows share.
//!
//! Not whole files: a file may be larger than what a window shows of it, by any amount. A window is mapped up to multiples
//! of [`BLOCK`], which keeps page-sized windows (a guest with an IOMMU makes thousands) below the limit of mappings.
//!
//! Only memory is taken: files of tmpfs (memfds are that, too) and hugetlbfs. An access to a page of another file waits for
//! its medium, or for the program that serves its file system, and all hosts would wait with it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::stat::fstat;

use super::MapError;
use super::copy::{carry, load, store};
use super::fault::Area;
use super::limits::{BLOCK, Limits};
use super::peer::{Peer, Sharing};
use crate::closer::Closer;

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    /// Device number.
    pub(super) dev: u64,
    /// Inode number.
    pub(super) ino: u64,
}

/// A piece of a file, mapped shared.
#[derive(Debug)]
pub(super) struct FileMap {
    /// Taken out when this is dropped: then nobody accesses it any more, and it is unmapped elsewhere.
    map: Option<MmapRaw>,
    area: Area,
    first: *mut u8,
    len: usize,
    /// Place of the first byte in the file.
    start: u64,
    writable: bool,
    closer: Closer,
}

// SAFETY: `first` points to the mapping that `map` owns. It is shared with another process in any case: every access is
// volatile, and none depends on which thread makes it.
unsafe impl Send for FileMap {}
// SAFETY: as above.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps `len` bytes from `start` on; both are multiples of the file's pages.
    fn new(file: &File, start: u64, len: usize, writable: bool, closer: Closer) -> Result<FileMap, Errno> {
        let mut options = MmapOptions::new();
        options.offset(start).len(len).no_reserve_swap();
        let errno = |e: std::io::Error| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let map =
            if writable { options.map_raw(file) } else { options.map_raw_read_only(file) }.map_err(errno)?;
        let first = map.as_mut_ptr();
        Ok(FileMap { area: Area::new(first, len), map: Some(map), first, len, start, writable, closer })
    }

    /// True if it may be written.
    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    /// True if a page of it could not be had: the host has taken its memory away.
    pub(super) fn is_lost(&self) -> bool {
        self.area.is_lost()
    }

    fn is_there(&self) -> Option<()> {
        (!self.is_lost()).then_some(())
    }

    /// Place in the mapping of a place in the file.
    pub(super) fn place(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset.checked_sub(self.start)?).ok()
    }

    fn covers(&self, first: u64, end: u64) -> bool {
        self.start <= first && end <= self.start.saturating_add(self.len as u64)
    }

    /// Copies out of the file; `None` if the range is not inside, or the memory is lost.
    ///
    /// Aligned accesses of 1, 2, 4 and 8 bytes are single loads. Loads of a later call don't move before this one.
    pub(super) fn read(&self, offset: usize, buf: &mut [u8]) -> Option<()> {
        let from = self.range(offset, buf.len())?;
        // SAFETY: `range` has checked that all of it lies inside the mapping, which lives as long as `self`; no reference
        // to guest memory is ever formed.
        self.area.access(None, || unsafe { load(from, buf) });
        fence(Ordering::Acquire);
        self.is_there()
    }

    /// Copies into the file; `None` if the range is not inside, the mapping is read-only, or the memory is lost.
    ///
    /// Aligned accesses of 1, 2, 4 and 8 bytes are single stores. Stores of an earlier call are
    /// visible to the guest before those of this one.
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        if !self.writable {
            return None;
        }
        let to = self.range(offset, data.len())?;
        fence(Ordering::Release);
        // SAFETY: as in `read`, and the mapping is writable.
        self.area.access(None, || unsafe { store(to, data) });
        self.is_there()
    }

    /// Copies from another place of this or another file, in one go; `None` if a range is not inside, this mapping is
    /// read-only, or its memory is lost. Where memory of the source is lost there are zeroes. Stores of an earlier call are visible to the guest before those of this one.
    pub(super) fn copy(&self, offset: usize, source: &FileMap, from: usize, len: usize) -> Option<()> {
        if !self.writable {
            return None;
        }
        let (to, from) = (self.range(offset, len)?, source.range(from, len)?);
        fence(Ordering::Release);
        // SAFETY: `range` has checked that both ranges lie inside mappings, which live as long as `self` and `source`, and
        // this one is writable.
        self.area.access(Some(&source.area), || unsafe { carry(to, from, len) });
        fence(Ordering::Acquire);
        self.is_there()
    }

    /// Copies out of the file to other shared memory; `None` if the range is not inside, or the memory is lost.
    ///
    /// # Safety
    /// `to .. to + len` is mapped and may be written, and no Rust object lies there.
    pub(super) unsafe fn carry_out(&self, offset: usize, to: *mut u8, len: usize) -> Option<()> {
        let from = self.range(offset, len)?;
        // SAFETY: `range` has checked that the source lies inside the mapping, which lives as long as `self`; the caller vouches for `to`.
        self.area.access(None, || unsafe { carry(to, from, len) });
        fence(Ordering::Acquire);
        self.is_there()
    }

    fn range(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // `wrapping_add` stays inside the mapping, as just checked.
        (end <= self.len).then(|| self.first.wrapping_add(offset))
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            self.closer.give(map);
        }
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

/// Who hands a file over, and what they may.
pub(super) struct Owner<'a> {
    pub(super) peer: &'a Peer,
    pub(super) limits: Limits,
    pub(super) closer: &'a Closer,
}

impl FileMaps {
    /// The mapping that covers `[offset, offset + size)` of `fd`, made if need be.
    ///
    /// # Errors
    /// [`MapError::Misfit`] if the file is shorter, [`MapError::NotMemory`] if it is none, [`MapError::NotShared`] if its
    /// memory is private to the client, [`MapError::TooMany`] beyond the client's limits, or what the system says.
    pub(super) fn get(
        &mut self,
        fd: OwnedFd,
        offset: u64,
        size: u64,
        writable: bool,
        owner: &Owner<'_>,
    ) -> Result<Arc<FileMap>, MapError> {
        let mapped = self.find_or_map(&fd, offset, size, writable, owner);
        if mapped.is_err() {
            // This descriptor may be the last of its file. That of a mapped one is not: the mapping keeps the file.
            owner.closer.give(fd);
        }
        mapped
    }

    fn find_or_map(
        &mut self,
        fd: &OwnedFd,
        offset: u64,
        size: u64,
        writable: bool,
        owner: &Owner<'_>,
    ) -> Result<Arc<FileMap>, MapError> {
        if !is_memory(fd.as_fd()) {
            return Err(MapError::NotMemory);
        }
        let stat = fstat(fd).map_err(MapError::System)?;
        // That of a huge page on hugetlbfs.
        let page = u64::try_from(stat.st_blksize).ok().filter(|size| size.is_power_of_two());
        let page = page.ok_or(MapError::NotMemory)?;
        let id = FileId { dev: stat.st_dev, ino: stat.st_ino };
        let len = u64::try_from(stat.st_size).map_err(|_| MapError::Misfit)?;
        let end = offset.checked_add(size).filter(|end| *end <= len).ok_or(MapError::Misfit)?;
        let known = self
            .known
            .iter()
            .filter(|k| k.id == id)
            .find_map(|k| k.map.upgrade().filter(|m| m.covers(offset, end) && (m.writable || !writable)));
        if let Some(map) = known {
            return Ok(map);
        }
        if writable && owner.peer.sharing(id) == Sharing::Private {
            return Err(MapError::NotShared);
        }
        let block = BLOCK.max(page);
        let start = offset - offset % block;
        let last_page = len.checked_next_multiple_of(page).ok_or(MapError::Misfit)?;
        let end = end.checked_next_multiple_of(block).map_or(last_page, |end| end.min(last_page));
        let len = end.checked_sub(start).ok_or(MapError::Misfit)?;
        self.admit(len, owner)?;
        let len = usize::try_from(len).map_err(|_| MapError::Misfit)?;
        let file = File::from(fd.try_clone().map_err(|_| MapError::System(Errno::EMFILE))?);
        let new = |writable| FileMap::new(&file, start, len, writable, owner.closer.clone());
        let map = match new(writable) {
            // A descriptor opened read-only can still serve reads.
            Err(Errno::EACCES) if writable => new(false),
            other => other,
        };
        let map = Arc::new(map.map_err(MapError::System)?);
        self.known.push(Known { id, map: Arc::downgrade(&map) });
        Ok(map)
    }

    /// Whether the client may have another mapping, of `len` bytes.
    fn admit(&mut self, len: u64, owner: &Owner<'_>) -> Result<(), MapError> {
        self.forget_unused();
        let bytes: u64 = self.known.iter().filter_map(|k| k.map.upgrade()).map(|m| m.len as u64).sum();
        let mappings = self.known.len().saturating_add(owner.closer.pending());
        let Limits { mappings: most, bytes: most_bytes } = owner.limits;
        match mappings < most && bytes.saturating_add(len) <= most_bytes {
            true => Ok(()),
            false => Err(MapError::TooMany),
        }
    }

    /// How many pieces are mapped.
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

/// Whether a descriptor is of a file on tmpfs or hugetlbfs: these have seals, even where none can be set. The kernel alone
/// answers that; any other question may be passed on to whoever serves the file.
pub(crate) fn is_memory(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GET_SEALS).is_ok()
}

/// Whether a client could shorten a file of memory under our mapping, and [`keep_length`] could keep it from that. The kernel alone answers, and
/// nobody waits.
pub(crate) fn can_be_shortened(fd: BorrowedFd<'_>) -> bool {
    let settled = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).unwrap_or(settled.bits());
    let mode = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL).unwrap_or_default()) & OFlag::O_ACCMODE;
    seals & settled.bits() == 0 && mode != OFlag::O_RDONLY
}

/// Makes sure, where the kind of file allows it, that the client can't shorten the file under our mapping: it would lose
/// its adapter ([`super::fault`]). It may wait for as long as a client likes that holds the file's lock, so it is for a thread that nobody waits for.
pub(crate) fn keep_length(fd: BorrowedFd<'_>) {
    if let Err(e) = fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)) {
        tracing::debug!("guest memory can't be sealed against shrinking: {e}");
    }
}
