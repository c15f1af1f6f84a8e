//! Guest memory as one adapter sees it: the DMA windows its host has mapped.
//!
//! A window is either a part of a mapped file (guest RAM) or reached by asking the front end
//! (memory that came without a descriptor, or that answers while one waits). Every access is checked against the windows and
//! against the bus-master bit; what lies outside is an error that the model sees as a failed DMA.
//!
//! Nothing here waits, but for hosts whose time stands still meanwhile ([`StandingMemory`]). Mapped memory is accessed at once. Reads of the other kind are asked for and answered later, writes
//! to it are posted; `deferred.rs` has what is under way, and keeps the order between both kinds.
//!
//! Invariant for unmapping: accesses happen only inside [`HostMemory::read`], [`HostMemory::write`],
//! [`HostMemory::copy_from`] and [`DeferredReads::ask`], which look the window up anew each time, and the engine is
//! single-threaded. Writes that are held behind posted ones are done by [`HostMemory::unmap`] before it takes windows away,
//! reads under way fail. So once it has returned, no access to the range happens and no message about it is sent, and the
//! reply may be sent.

pub(crate) mod copy;
mod deferred;
mod error;
pub(crate) mod fault;
mod file;
mod limits;
mod peer;
mod remote;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hca_model::{Answer, Asked, DeferredReads, DmaError};

use crate::closer::Closer;
use crate::log::Source as LogSource;
use crate::sync::lock;
use deferred::Deferred;
pub use error::{MapError, MemoryError};
use file::{FileMap, FileMaps, Owner};
pub(crate) use file::{can_be_shortened, is_memory, keep_length};
pub use limits::Limits;
pub use peer::Peer;
pub use remote::{RemoteAnswer, RemoteError, RemoteMemory, StandingMemory};

/// Number of windows that one host may have: what QEMU asks for. Some 64 bytes each; those that show a file share its
/// mappings.
pub const MAX_WINDOWS: usize = 65535;

/// A window of a host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First address as the device sees it.
    pub iova: u64,
    /// Length in bytes, above 0; `iova + size` is at most 2^64.
    pub size: u64,
    /// The device may read.
    pub readable: bool,
    /// The device may write.
    pub writable: bool,
}

/// Where the bytes of a window are.
#[derive(Debug)]
pub enum Backing {
    /// In a file that host and server map. It is for the front end to keep the host from shortening it, elsewhere than here, where nobody may wait.
    File {
        /// Its descriptor.
        fd: OwnedFd,
        /// Offset of the window in the file.
        offset: u64,
    },
    /// With the host: the [`RemoteMemory`] that came with it is asked.
    Remote,
    /// With the host, which answers while one waits.
    Standing(Arc<dyn StandingMemory>),
}

/// Windows to take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Every window.
    All,
    /// The windows inside `[iova, iova + size)`; the end may be 2^64.
    Part {
        /// First address.
        iova: u64,
        /// Bytes.
        size: u64,
    },
}

#[derive(Debug)]
enum Source {
    /// `offset` bytes into a mapped file; the window lies inside it.
    File { map: Arc<FileMap>, offset: usize },
    /// With the host.
    Remote,
    /// With the host, which answers while one waits.
    Standing(Arc<dyn StandingMemory>),
}

#[derive(Debug)]
struct Mapped {
    first: u64,
    last: u64,
    readable: bool,
    writable: bool,
    source: Source,
}

#[derive(Debug, Default)]
struct Windows {
    /// Sorted by `first`, disjoint.
    list: Vec<Mapped>,
    /// Index of the window of the last access; most accesses hit it again.
    hit: usize,
    files: FileMaps,
    remote: Option<Arc<dyn RemoteMemory>>,
    deferred: Deferred,
    peer: Peer,
    /// The host has taken memory away that was mapped: it has none any more.
    lost: bool,
}

/// The DMA windows of one adapter. Shared between the front end (which maps) and the model
/// (which accesses).
#[derive(Debug, Default)]
pub struct HostMemory {
    bus_master: AtomicBool,
    failed: AtomicU64,
    private: AtomicBool,
    /// There is or was memory without a descriptor since the host came.
    defers: AtomicBool,
    windows: Mutex<Windows>,
    limits: Limits,
    /// Where mappings go that are not needed any more.
    closer: Closer,
    log: LogSource,
}

impl HostMemory {
    /// No windows, bus master off; for the only host of a process.
    pub fn new() -> HostMemory {
        HostMemory::default()
    }

    /// The same, for one of several hosts.
    pub fn limited(limits: Limits) -> HostMemory {
        HostMemory { limits, ..HostMemory::default() }
    }

    /// A host is there: `remote` reaches memory without descriptors, `peer` is who it is.
    pub fn connect(&self, remote: Option<Arc<dyn RemoteMemory>>, peer: Peer) {
        self.private.store(false, Ordering::Relaxed);
        self.defers.store(false, Ordering::Relaxed);
        let mut windows = lock(&self.windows);
        *windows = Windows { remote, peer, ..Windows::default() };
    }

    /// The host is gone: drops every window, and what is under way.
    pub fn disconnect(&self) {
        self.defers.store(false, Ordering::Relaxed);
        *lock(&self.windows) = Windows::default();
        self.set_bus_master(false);
    }

    /// Opens or closes the gate in front of all accesses.
    pub fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, Ordering::Relaxed);
    }

    /// Whether a part of the memory answers later.
    pub(crate) fn defers(&self) -> bool {
        self.defers.load(Ordering::Relaxed)
    }

    /// Number of accesses that failed since the start.
    pub fn failed_accesses(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// True if the host's memory has turned out to be private to it from the start: no DMA can
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
    /// A [`MapError`], and nothing has changed.
    pub fn map(&self, window: Window, backing: Backing) -> Result<(), MapError> {
        let mut windows = lock(&self.windows);
        let last =
            window.size.checked_sub(1).and_then(|n| window.iova.checked_add(n)).ok_or(MapError::Misfit)?;
        let at = windows.list.partition_point(|w| w.last < window.iova);
        let why = match () {
            () if windows.lost => Some(MapError::Lost),
            () if windows.list.get(at).is_some_and(|w| w.first <= last) => Some(MapError::Overlap),
            () if windows.list.len() >= MAX_WINDOWS => Some(MapError::TooMany),
            () => None,
        };
        if let Some(why) = why {
            self.closer.give(backing);
            return Err(self.refused(window, why));
        }
        let mut writable = window.writable;
        let source = match backing {
            Backing::Remote => Source::Remote,
            Backing::Standing(memory) => Source::Standing(memory),
            Backing::File { fd, offset } => {
                let Windows { files, peer, .. } = &mut *windows;
                let has_files = !files.is_empty();
                let owner = Owner { peer, limits: self.limits, closer: &self.closer };
                let map = files.get(fd, offset, window.size, writable, &owner).map_err(|e| {
                    if e == MapError::NotShared && !has_files {
                        self.private.store(true, Ordering::Relaxed);
                    }
                    self.refused(window, e)
                })?;
                // `get` has checked that offset + size lies inside the mapping.
                let offset = map.place(offset).ok_or(MapError::Misfit)?;
                writable &= map.writable();
                Source::File { map, offset }
            }
        };
        let entry = Mapped { first: window.iova, last, readable: window.readable, writable, source };
        tracing::debug!(
            "map {:#x}..={:#x} {}{} {}",
            entry.first,
            entry.last,
            if entry.readable { "r" } else { "-" },
            if entry.writable { "w" } else { "-" },
            match entry.source {
                Source::File { offset, .. } => format!("file offset {offset:#x}"),
                Source::Remote | Source::Standing(_) => "without a descriptor".into(),
            }
        );
        if matches!(entry.source, Source::Remote) {
            self.defers.store(true, Ordering::Relaxed);
        }
        windows.list.insert(at, entry);
        Ok(())
    }

    /// Tells why a window is refused.
    fn refused(&self, window: Window, why: MapError) -> MapError {
        let Window { iova, size, .. } = window;
        self.log.say(|| match why {
            MapError::NotShared => tracing::error!(
                "guest memory is not shared: DMA would go to a copy nobody sees. Start QEMU with \
                 share=on: -object memory-backend-memfd,id=mem0,size=SIZE,share=on \
                 -machine memory-backend=mem0"
            ),
            why => tracing::warn!("window of {size:#x} bytes at {iova:#x} refused: {why}"),
        });
        why
    }

    /// Removes the windows inside a range. A range without windows is fine.
    ///
    /// # Errors
    /// [`MapError::Partial`] if a window lies partly inside, [`MapError::Misfit`] if there is no such range: nothing is
    /// removed then.
    pub fn unmap(&self, range: Range) -> Result<(), MapError> {
        let mut windows = lock(&self.windows);
        let (first, last) = match range {
            Range::All => (0, u64::MAX),
            Range::Part { iova, size } => {
                let last = size.checked_sub(1).and_then(|n| iova.checked_add(n));
                (iova, last.ok_or(MapError::Misfit)?)
            }
        };
        // The list is sorted and disjoint: those that overlap are neighbours, and only the outer two can
        // stick out. A client with an IOMMU of its own has one window per page, so nothing here looks at all.
        let from = windows.list.partition_point(|w| w.last < first);
        let to = windows.list.partition_point(|w| w.first <= last);
        let range = from..to.max(from);
        let hit = windows.list.get(range.clone()).unwrap_or_default();
        if hit.first().is_some_and(|w| w.first < first) || hit.last().is_some_and(|w| w.last > last) {
            return Err(MapError::Partial);
        }
        tracing::debug!("unmap {first:#x}..={last:#x}");
        self.settle_in(&mut windows);
        windows.deferred.fail_within(first, last);
        windows.list.drain(range);
        windows.files.forget_unused();
        Ok(())
    }

    fn settle_in(&self, windows: &mut Windows) {
        let Windows { deferred, remote, .. } = windows;
        let failed = deferred.settle(remote.as_deref(), true);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    /// Makes visible what was written: nothing of it happens later.
    pub fn settle(&self) {
        self.settle_in(&mut lock(&self.windows));
    }

    /// Takes what the host has answered. Returns true if that is news for the model.
    pub fn take_answers(&self) -> bool {
        if !self.defers.load(Ordering::Relaxed) {
            return false;
        }
        let Windows { deferred, remote, .. } = &mut *lock(&self.windows);
        let Some(remote) = remote.as_ref().filter(|_| deferred.is_busy()) else { return false };
        let could = (deferred.takes_reads(), deferred.takes_writes());
        let failed = deferred.take(&**remote);
        self.failed.fetch_add(failed, Ordering::Relaxed);
        deferred.has_answers() || could != (deferred.takes_reads(), deferred.takes_writes())
    }

    /// Whether the host does not see all that was written yet: an interrupt would come too early.
    pub fn is_writing(&self) -> bool {
        self.defers.load(Ordering::Relaxed) && lock(&self.windows).deferred.is_writing()
    }

    /// When something that the host was asked for is given up.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.defers.load(Ordering::Relaxed) {
            return None;
        }
        let windows = lock(&self.windows);
        windows.remote.as_ref().filter(|_| windows.deferred.is_busy())?.deadline()
    }

    /// Reads guest memory that is mapped.
    ///
    /// # Errors
    /// A [`MemoryError`]; `buf` is undefined then.
    pub fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let mut rest = buf;
        let result = self.each_part(iova, rest.len(), false, |part, len, deferred| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut_checked(len).unwrap_or_default();
            rest = tail;
            match part {
                Part::File { iova, map, offset } => {
                    map.read(offset, head).ok_or_else(|| missing(iova, &map))?;
                    deferred.overlay(iova, head);
                    Ok(())
                }
                Part::Remote { iova, .. } => Err(MemoryError::Deferred(iova)),
                Part::Standing { memory, iova } => memory.read(iova, head).map_err(MemoryError::Remote),
            }
        });
        self.count(result)
    }

    /// Writes guest memory: at once, or by a message, or when what was sent before is acknowledged.
    ///
    /// # Errors
    /// A [`MemoryError`]; nothing is written then, except what was sent before it failed. What fails later is told by
    /// [`Answer::WriteFailed`].
    pub fn write(&self, iova: u64, data: &[u8]) -> Result<(), MemoryError> {
        let mut rest = data;
        let result = self.each_part(iova, data.len(), true, |part, len, deferred| {
            let (head, tail) = rest.split_at_checked(len).unwrap_or_default();
            rest = tail;
            match part {
                Part::File { iova, map, offset } => {
                    deferred.write(iova, &map, offset, head).ok_or_else(|| missing(iova, &map))
                }
                Part::Remote { memory, iova } => {
                    deferred.post(&*memory, iova, head).map_err(MemoryError::Remote)
                }
                Part::Standing { memory, iova } => memory.write(iova, head).map_err(MemoryError::Remote),
            }
        });
        self.count(result)
    }

    /// Whether a range is in windows that may be written, of whatever kind.
    pub fn reaches(&self, iova: u64, len: usize) -> bool {
        self.each_part(iova, len, true, |_, _, _| Ok(())).is_ok()
    }

    /// Whether a range may be read, and is mapped here: reading it asks nobody.
    pub fn is_mapped(&self, iova: u64, len: usize) -> bool {
        let mapped = self.each_part(iova, len, false, |part, _, _| match part {
            Part::File { .. } => Ok(()),
            Part::Remote { iova, .. } | Part::Standing { iova, .. } => Err(MemoryError::Deferred(iova)),
        });
        mapped.is_ok()
    }

    /// Whether a range is mapped, may be written, and no write that was posted is under way before it.
    pub fn is_plain(&self, iova: u64, len: usize) -> bool {
        let plain = self.each_part(iova, len, true, |part, _, deferred| match part {
            Part::File { .. } if !deferred.is_writing() => Ok(()),
            Part::File { iova, .. } | Part::Remote { iova, .. } | Part::Standing { iova, .. } => {
                Err(MemoryError::Deferred(iova))
            }
        });
        plain.is_ok()
    }

    /// Writes at `iova` what `source` has at `from`: in one copy where both ranges are mapped and each is in one window.
    ///
    /// # Errors
    /// A [`MemoryError`]; nothing is written then, except what the host wrote before it failed.
    pub fn copy_from(
        &self,
        iova: u64,
        source: &HostMemory,
        from: u64,
        len: usize,
    ) -> Result<(), MemoryError> {
        let mut whole = None;
        let found = source.each_part(from, len, false, |part, n, deferred| {
            whole = match part {
                Part::File { map, offset, .. } if n == len && !deferred.is_writing() => Some((map, offset)),
                _ => None,
            };
            Ok(())
        });
        source.count(found)?;
        let Some((map, first)) = whole else {
            let mut bytes = vec![0; len];
            source.read(from, &mut bytes)?;
            return self.write(iova, &bytes);
        };
        let mut done = 0usize;
        let file = Arc::clone(&map);
        let result = self.each_part(iova, len, true, |part, n, deferred| {
            let at = first.saturating_add(done);
            done = done.saturating_add(n);
            let part = match part {
                Part::File { iova, map: to, offset } if !deferred.is_writing() => {
                    return to.copy(offset, &map, at, n).ok_or_else(|| missing(iova, &to));
                }
                part => part,
            };
            // Behind writes that were posted.
            let mut bytes = vec![0; n];
            map.read(at, &mut bytes).ok_or_else(|| missing(from, &map))?;
            match part {
                Part::File { iova, map, offset } => {
                    deferred.write(iova, &map, offset, &bytes).ok_or_else(|| missing(iova, &map))
                }
                Part::Remote { memory, iova } => {
                    deferred.post(&*memory, iova, &bytes).map_err(MemoryError::Remote)
                }
                Part::Standing { memory, iova } => memory.write(iova, &bytes).map_err(MemoryError::Remote),
            }
        });
        if file.is_lost() {
            // Its host goes; this one gets zeroes.
            source.lose();
        }
        self.count(result)
    }

    /// Copies what is at `iova` to shared memory of another kind, if it is in one window, and there at once. `false`: it is to be read.
    ///
    /// # Safety
    /// `to .. to + len` is mapped and may be written, and no Rust object lies there.
    pub(crate) unsafe fn carry_out(&self, iova: u64, to: *mut u8, len: usize) -> bool {
        let mut done = false;
        let found = self.each_part(iova, len, false, |part, n, deferred| {
            done = match part {
                Part::File { map, offset, .. } if n == len && !deferred.is_writing() => {
                    // SAFETY: the caller vouches for it.
                    unsafe { map.carry_out(offset, to, len) }.is_some()
                }
                _ => false,
            };
            Ok(())
        });
        found.is_ok() && done
    }

    fn count(&self, result: Result<(), MemoryError>) -> Result<(), MemoryError> {
        if let Err(e) = result {
            self.failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("DMA failed: {e}");
            if e == MemoryError::Lost {
                self.lose();
            }
        }
        result
    }

    /// The host has taken memory away that is mapped: it has none any more, and is to be detached.
    fn lose(&self) {
        let remote = {
            let mut windows = lock(&self.windows);
            if std::mem::replace(&mut windows.lost, true) {
                return;
            }
            windows.list.clear();
            windows.files.forget_unused();
            windows.deferred.fail_within(0, u64::MAX);
            windows.remote.clone()
        };
        self.log.say(|| tracing::warn!("guest memory that is mapped was taken away: its host is detached"));
        if let Some(remote) = remote {
            remote.memory_lost();
        }
    }

    /// Cuts `[iova, iova + len)` at window borders and hands each part to `access` with its
    /// length. Nothing is accessed unless every part may be.
    fn each_part(
        &self,
        iova: u64,
        len: usize,
        write: bool,
        mut access: impl FnMut(Part, usize, &mut Deferred) -> Result<(), MemoryError>,
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
            return access(first, len, &mut windows.deferred);
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
        parts.into_iter().try_for_each(|(part, step)| access(part, step, &mut windows.deferred))
    }
}

impl DeferredReads for HostMemory {
    fn answers_at_once(&self, iova: u64, len: usize) -> bool {
        let mut there = false;
        let parts = self.each_part(iova, len, false, |part, _, _| {
            there |= matches!(part, Part::Remote { .. });
            Ok(())
        });
        parts.is_err() || !there
    }

    fn ask(&self, ticket: u64, iova: u64, len: usize) -> Asked {
        let mut remote = None;
        let mut parts = Vec::new();
        let mut read = |part, len, deferred: &mut Deferred| {
            parts.push(match part {
                Part::File { iova, map, offset } => {
                    let mut bytes = vec![0; len];
                    map.read(offset, &mut bytes).ok_or_else(|| missing(iova, &map))?;
                    deferred.overlay(iova, &mut bytes);
                    deferred::Source::Here(bytes)
                }
                Part::Remote { memory, iova } => {
                    remote = Some(memory);
                    deferred::Source::There(iova, len)
                }
                Part::Standing { memory, iova } => {
                    let mut bytes = vec![0; len];
                    memory.read(iova, &mut bytes).map_err(MemoryError::Remote)?;
                    deferred::Source::Here(bytes)
                }
            });
            Ok(())
        };
        if !lock(&self.windows).deferred.takes_reads() {
            return Asked::Busy;
        }
        let found = self.each_part(iova, len, false, &mut read);
        let asked = found.and_then(|()| {
            let remote = remote.ok_or(MemoryError::Unmapped(iova))?;
            let deferred = &mut lock(&self.windows).deferred;
            deferred.ask(&*remote, ticket, iova, parts).map_err(MemoryError::Remote)
        });
        match self.count(asked) {
            Ok(()) => Asked::OnItsWay,
            Err(_) => Asked::Failed(DmaError { iova, len }),
        }
    }

    fn forget(&self) {
        lock(&self.windows).deferred.forget();
    }

    fn next_answer(&self) -> Option<Answer> {
        lock(&self.windows).deferred.next_answer()
    }

    fn takes_writes(&self) -> bool {
        lock(&self.windows).deferred.takes_writes()
    }
}

/// Why an access failed that lies inside a window.
fn missing(iova: u64, map: &FileMap) -> MemoryError {
    match map.is_lost() {
        true => MemoryError::Lost,
        false => MemoryError::Unmapped(iova),
    }
}

/// Where one part of an access goes.
enum Part {
    File { iova: u64, map: Arc<FileMap>, offset: usize },
    Remote { memory: Arc<dyn RemoteMemory>, iova: u64 },
    Standing { memory: Arc<dyn StandingMemory>, iova: u64 },
}

impl Windows {
    /// The place of `iova` and the number of bytes up to the end of its window.
    fn find(&mut self, iova: u64, write: bool) -> Result<(Part, u64), MemoryError> {
        let contains = |w: &&Mapped| w.first <= iova && iova <= w.last;
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
                iova,
                map: Arc::clone(map),
                offset: usize::try_from(skip)
                    .ok()
                    .and_then(|n| offset.checked_add(n))
                    .ok_or(MemoryError::Unmapped(iova))?,
            },
            Source::Remote => Part::Remote {
                memory: self.remote.clone().ok_or(MemoryError::Remote(RemoteError::Lost))?,
                iova,
            },
            Source::Standing(memory) => Part::Standing { memory: Arc::clone(memory), iova },
        };
        Ok((part, room))
    }
}

#[cfg(test)]
mod tests;
