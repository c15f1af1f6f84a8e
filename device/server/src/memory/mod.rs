//! Guest memory as one adapter sees it: the DMA windows its client has mapped.
//!
//! A window is either a part of a mapped file (guest RAM) or reached by messages to the client
//! (memory that came without a descriptor). Every access is checked against the windows and
//! against the bus-master bit; what lies outside is an error that the model sees as a failed DMA.
//!
//! Invariant for unmapping: accesses happen only inside [`HostMemory::read`] and
//! [`HostMemory::write`], which look the window up anew each time, and the engine is
//! single-threaded. So once [`HostMemory::unmap`] has returned, no access to the range happens,
//! and the reply may be sent.

mod file;
mod peer;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use thiserror::Error;

use crate::vfio_user::link::{DmaMessageError, Link};
use crate::vfio_user::lock;
use crate::vfio_user::session::{DmaUnmap, DmaWindow};
use crate::vfio_user::wire::MAX_DMA_MAPS;
use file::{FileMap, FileMaps};
pub use peer::Peer;

/// Why an access of the device to guest memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// Bus master is off in the command register, or the function is not in D0.
    #[error("bus mastering is disabled")]
    BusMasterOff,
    /// No window covers this address.
    #[error("address {0:#x} is not mapped")]
    Unmapped(u64),
    /// The window forbids this kind of access.
    #[error("address {0:#x} does not allow this access")]
    Forbidden(u64),
    /// The client didn't perform the access.
    #[error("DMA message: {0}")]
    Message(DmaMessageError),
}

#[derive(Debug)]
enum Source {
    /// `offset` bytes into a mapped file; the window lies inside it.
    File { map: Arc<FileMap>, offset: usize },
    /// By messages over the link.
    Messages,
}

#[derive(Debug)]
struct Window {
    first: u64,
    last: u64,
    readable: bool,
    writable: bool,
    source: Source,
}

#[derive(Debug, Default)]
struct Windows {
    /// Sorted by `first`, disjoint.
    list: Vec<Window>,
    /// Index of the window of the last access; most accesses hit it again.
    hit: usize,
    files: FileMaps,
    link: Option<Arc<Mutex<Link>>>,
    peer: Peer,
}

/// The DMA windows of one adapter. Shared between the front end (which maps) and the model
/// (which accesses).
#[derive(Debug, Default)]
pub struct HostMemory {
    bus_master: AtomicBool,
    failed: AtomicU64,
    private: AtomicBool,
    windows: Mutex<Windows>,
}

impl HostMemory {
    /// No windows, bus master off.
    pub fn new() -> HostMemory {
        HostMemory::default()
    }

    /// A client is there: `link` reaches memory without descriptors, `peer` is who it is.
    pub fn connect(&self, link: Option<Arc<Mutex<Link>>>, peer: Peer) {
        self.private.store(false, Ordering::Relaxed);
        let mut windows = lock(&self.windows);
        *windows = Windows { link, peer, ..Windows::default() };
    }

    /// The client is gone: drops every window.
    pub fn disconnect(&self) {
        *lock(&self.windows) = Windows::default();
        self.set_bus_master(false);
    }

    /// Opens or closes the gate in front of all accesses.
    pub fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, Ordering::Relaxed);
    }

    /// Number of accesses that failed since the start.
    pub fn failed_accesses(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// True if the client's memory has turned out to be private to it from the start: no DMA can
    /// work.
    pub fn is_private(&self) -> bool {
        self.private.load(Ordering::Relaxed)
    }

    /// Number of windows.
    pub fn window_count(&self) -> usize {
        lock(&self.windows).list.len()
    }

    /// Adds a window.
    ///
    /// # Errors
    /// `EEXIST` if it overlaps another, `ENOSPC` if there are too many, `EINVAL` if the file is too
    /// short for it, `EPERM` if it is not shared by the client, or whatever mapping the file gives.
    pub fn map(&self, window: DmaWindow, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let mut windows = lock(&self.windows);
        let last =
            window.size.checked_sub(1).and_then(|n| window.iova.checked_add(n)).ok_or(Errno::EINVAL)?;
        let at = windows.list.partition_point(|w| w.last < window.iova);
        if windows.list.get(at).is_some_and(|w| w.first <= last) {
            tracing::warn!("client maps {:#x}..={last:#x} over an existing window", window.iova);
            return Err(Errno::EEXIST);
        }
        if windows.list.len() >= MAX_DMA_MAPS {
            return Err(Errno::ENOSPC);
        }
        let mut writable = window.writable;
        let source = match fd {
            None => Source::Messages,
            Some(fd) => {
                let peer = windows.peer;
                let has_files = !windows.files.is_empty();
                let map =
                    windows.files.get(fd, window.offset, window.size, writable, peer).inspect_err(|e| {
                        if *e == file::NOT_SHARED && !has_files {
                            self.private.store(true, Ordering::Relaxed);
                        }
                    })?;
                // `get` has checked that offset + size lies inside the mapping.
                let offset = usize::try_from(window.offset).map_err(|_| Errno::EINVAL)?;
                writable &= map.writable();
                Source::File { map, offset }
            }
        };
        let entry = Window { first: window.iova, last, readable: window.readable, writable, source };
        tracing::debug!(
            "map {:#x}..={:#x} {}{} {}",
            entry.first,
            entry.last,
            if entry.readable { "r" } else { "-" },
            if entry.writable { "w" } else { "-" },
            match entry.source {
                Source::File { offset, .. } => format!("file offset {offset:#x}"),
                Source::Messages => "by messages".into(),
            }
        );
        windows.list.insert(at, entry);
        Ok(())
    }

    /// Removes the windows inside a range. A range without windows is fine.
    ///
    /// # Errors
    /// `EINVAL` if a window lies partly inside: nothing is removed then.
    pub fn unmap(&self, what: DmaUnmap) -> Result<(), Errno> {
        let mut windows = lock(&self.windows);
        let (first, last) = match what {
            DmaUnmap::All => (0, u64::MAX),
            DmaUnmap::Range { iova, size } => {
                let last = size.checked_sub(1).and_then(|n| iova.checked_add(n));
                (iova, last.ok_or(Errno::EINVAL)?)
            }
        };
        // The list is sorted and disjoint: those that overlap are neighbours, and only the outer two can
        // stick out. A client with an IOMMU of its own has one window per page, so nothing here looks at all.
        let from = windows.list.partition_point(|w| w.last < first);
        let to = windows.list.partition_point(|w| w.first <= last);
        let range = from..to.max(from);
        let hit = windows.list.get(range.clone()).unwrap_or_default();
        if hit.first().is_some_and(|w| w.first < first) || hit.last().is_some_and(|w| w.last > last) {
            return Err(Errno::EINVAL);
        }
        tracing::debug!("unmap {first:#x}..={last:#x}");
        windows.list.drain(range);
        windows.files.forget_unused();
        Ok(())
    }

    /// Reads guest memory.
    ///
    /// # Errors
    /// A [`MemoryError`]; `buf` is undefined then.
    pub fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let mut rest = buf;
        let result = self.each_part(iova, rest.len(), false, |part, len| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut_checked(len).unwrap_or_default();
            rest = tail;
            match part {
                Part::File { map, offset } => map.read(offset, head).ok_or(MemoryError::Unmapped(iova)),
                Part::Messages { link, iova } => {
                    lock(&link).dma_read(iova, head).map_err(MemoryError::Message)
                }
            }
        });
        self.count(result)
    }

    /// Writes guest memory.
    ///
    /// # Errors
    /// A [`MemoryError`]; nothing is written then, except what DMA messages wrote before one failed.
    pub fn write(&self, iova: u64, data: &[u8]) -> Result<(), MemoryError> {
        let mut rest = data;
        let result = self.each_part(iova, data.len(), true, |part, len| {
            let (head, tail) = rest.split_at_checked(len).unwrap_or_default();
            rest = tail;
            match part {
                Part::File { map, offset } => map.write(offset, head).ok_or(MemoryError::Unmapped(iova)),
                Part::Messages { link, iova } => {
                    lock(&link).dma_write(iova, head).map_err(MemoryError::Message)
                }
            }
        });
        self.count(result)
    }

    fn count(&self, result: Result<(), MemoryError>) -> Result<(), MemoryError> {
        if let Err(e) = result {
            self.failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("DMA failed: {e}");
        }
        result
    }

    /// Cuts `[iova, iova + len)` at window borders and hands each part to `access` with its
    /// length. Nothing is accessed unless every part may be.
    fn each_part(
        &self,
        iova: u64,
        len: usize,
        write: bool,
        mut access: impl FnMut(Part, usize) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        if !self.bus_master.load(Ordering::Relaxed) {
            return Err(MemoryError::BusMasterOff);
        }
        if len == 0 {
            return Ok(());
        }
        let mut windows = lock(&self.windows);
        let (first, room) = windows.find(iova, write)?;
        if room >= len as u64 {
            return access(first, len);
        }
        let mut parts = Vec::new();
        let (mut part, mut room) = (first, room);
        let (mut at, mut left) = (iova, len);
        loop {
            let step = usize::try_from(room).unwrap_or(usize::MAX).min(left);
            parts.push((part, step));
            left = left.saturating_sub(step);
            if left == 0 {
                break;
            }
            at = at.checked_add(step as u64).ok_or(MemoryError::Unmapped(u64::MAX))?;
            (part, room) = windows.find(at, write)?;
        }
        parts.into_iter().try_for_each(|(part, step)| access(part, step))
    }
}

/// Where one part of an access goes.
enum Part {
    File { map: Arc<FileMap>, offset: usize },
    Messages { link: Arc<Mutex<Link>>, iova: u64 },
}

impl Windows {
    /// The place of `iova` and the number of bytes up to the end of its window.
    fn find(&mut self, iova: u64, write: bool) -> Result<(Part, u64), MemoryError> {
        let contains = |w: &&Window| w.first <= iova && iova <= w.last;
        let window = match self.list.get(self.hit).filter(contains) {
            Some(window) => window,
            None => {
                self.hit = self.list.partition_point(|w| w.last < iova);
                self.list.get(self.hit).filter(contains).ok_or(MemoryError::Unmapped(iova))?
            }
        };
        let allowed = if write { window.writable } else { window.readable };
        if !allowed {
            return Err(MemoryError::Forbidden(iova));
        }
        let skip = iova.saturating_sub(window.first);
        // A window of 2^64 bytes ends one byte early here, which no access notices.
        let room = window.last.saturating_sub(iova).saturating_add(1);
        let part = match &window.source {
            Source::File { map, offset } => Part::File {
                map: Arc::clone(map),
                offset: usize::try_from(skip)
                    .ok()
                    .and_then(|n| offset.checked_add(n))
                    .ok_or(MemoryError::Unmapped(iova))?,
            },
            Source::Messages => Part::Messages {
                link: self.link.clone().ok_or(MemoryError::Message(DmaMessageError::Lost))?,
                iova,
            },
        };
        Ok((part, room))
    }
}

#[cfg(test)]
mod tests;
