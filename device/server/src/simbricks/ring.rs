//! One direction of a link: a ring of entries of one size, each with its owner.
//!
//! | offset in an entry | what |
//! |---|---|
//! | 0 | of the message's own (48) |
//! | 48 | time at which it is to be processed, ps (8) |
//! | 56 | unused (7) |
//! | 63 | bit 7: 0 the producer has the entry, 1 the consumer; the type of the message below |
//! | 64 | payload |
//!
//! Each side knows its own place only. The one that has an entry writes all of it before it hands it over (release), and the
//! other looks at nothing before it has seen that (acquire).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::LinkError;
use super::intro::{HEADER, Queue};
use crate::memory::copy;
use crate::memory::fault::Area;

/// Bytes of a header that belong to the message.
pub(super) const OWN: usize = 48;
/// Offset of the time.
const TIME: usize = 48;
/// Offset of owner and type.
const OWNER: usize = 63;
/// The consumer has the entry.
const FULL: u8 = 0x80;

/// The memory of a link, mapped.
#[derive(Debug)]
pub(super) struct Memory {
    map: MmapRaw,
    area: Area,
}

impl Memory {
    /// New memory of so many bytes, zeroed, and the file of it for the peer, which can't make it shorter.
    pub(super) fn new(len: usize) -> Result<(OwnedFd, Self), LinkError> {
        let failed = |errno: nix::errno::Errno| LinkError::Memory(errno.into());
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"softhca-simbricks", flags).map_err(failed)?;
        ftruncate(&file, i64::try_from(len).unwrap_or(i64::MAX)).map_err(failed)?;
        let seals = nix::fcntl::SealFlag::F_SEAL_SHRINK | nix::fcntl::SealFlag::F_SEAL_SEAL;
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(seals)).map_err(failed)?;
        let (file, memory) = Self::map(file, len)?;
        Ok((file, memory))
    }

    /// The first `len` bytes of a file of the peer.
    pub(super) fn map(file: OwnedFd, len: usize) -> Result<(OwnedFd, Self), LinkError> {
        let file = File::from(file);
        let map = MmapOptions::new().len(len).map_raw(&file).map_err(LinkError::Memory)?;
        let area = Area::new(map.as_mut_ptr(), len);
        Ok((file.into(), Self { map, area }))
    }

    /// Bytes that there are.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// The address of a byte, which has to be one of them if it is accessed.
    pub(super) fn byte(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.len());
        self.map.as_mut_ptr().wrapping_add(offset)
    }

    /// Touches the memory. What was read is of no use if it went away meanwhile.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn touch(&self, access: impl FnOnce()) -> Result<(), LinkError> {
        self.area.access(None, access);
        if self.area.is_lost() { Err(LinkError::MemoryLost) } else { Ok(()) }
    }
}

/// One side's view of one direction.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Arc<Memory>,
    queue: Queue,
    /// The entry that is next.
    next: usize,
}

/// What an entry has besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) own: [u8; OWN],
    /// In ps.
    pub(super) time: u64,
    pub(super) kind: u8,
}

impl Ring {
    /// `queue` was checked against the memory's size.
    pub(super) fn new(memory: Arc<Memory>, queue: Queue) -> Self {
        assert!(queue.end() <= memory.len() && queue.entry > HEADER && queue.count > 0, "{queue:?}");
        Self { memory, queue, next: 0 }
    }

    /// Bytes of payload that an entry has room for.
    pub(super) fn room(&self) -> usize {
        self.queue.room()
    }

    /// The address of a byte of the next entry. What is accessed from there on has to end with the entry.
    fn byte(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.queue.entry);
        self.memory.byte(self.queue.offset + self.next * self.queue.entry + offset)
    }

    fn owner(&self) -> &AtomicU8 {
        // SAFETY: the byte lies in an entry of the queue, all of which is inside the mapping (checked in `new`), and the mapping
        // lives as long as `self`. Both sides access it by atomics only; a byte is aligned anywhere.
        unsafe { AtomicU8::from_ptr(self.byte(OWNER)) }
    }

    fn advance(&mut self) {
        self.next = (self.next + 1) % self.queue.count;
    }

    /// Puts a message into the ring: payload is the parts, one behind the other. False: the ring is full.
    ///
    /// # Errors
    /// It is longer than an entry, or the memory is gone.
    pub(super) fn push(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<bool, LinkError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.room() {
            return Err(LinkError::TooLong { len, room: self.room() });
        }
        let mut free = false;
        self.memory.touch(|| {
            if self.owner().load(Ordering::Acquire) & FULL != 0 {
                return;
            }
            free = true;
            let mut at = HEADER;
            // SAFETY: header and payload lie inside the entry, since `len` is not more than its room; the entry is inside the
            // mapping (checked in `new`). No Rust object lies there, and the owner byte says that the peer does not use it:
            // if it does nevertheless, it garbles its own messages.
            unsafe {
                copy::store(self.byte(0), &entry.own);
                copy::store(self.byte(TIME), &entry.time.to_le_bytes());
                for part in parts.iter().filter(|part| !part.is_empty()) {
                    copy::store(self.byte(at), part);
                    at += part.len();
                }
            }
            self.owner().store(FULL | entry.kind, Ordering::Release);
        })?;
        if free {
            self.advance();
        }
        Ok(free)
    }

    /// Looks at the next message: its header, copied once. `None`: there is none.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn peek(&self) -> Result<Option<Entry>, LinkError> {
        let mut found = None;
        self.memory.touch(|| {
            let owner = self.owner().load(Ordering::Acquire);
            if owner & FULL == 0 {
                return;
            }
            let (mut own, mut time) = ([0; OWN], [0; 8]);
            // SAFETY: both lie in the header of an entry inside the mapping; no Rust object lies there.
            unsafe {
                copy::load(self.byte(0), &mut own);
                copy::load(self.byte(TIME), &mut time);
            }
            found = Some(Entry { own, time: u64::from_le_bytes(time), kind: owner & !FULL });
        })?;
        Ok(found)
    }

    /// Takes the message that was looked at: the first `len` bytes of its payload, over what is in `into`.
    ///
    /// # Errors
    /// That is more than an entry has, or the memory is gone.
    pub(super) fn take(&mut self, kind: u8, len: usize, into: &mut Vec<u8>) -> Result<(), LinkError> {
        let room = self.room();
        if len > room {
            return Err(LinkError::Length { len, room });
        }
        into.resize(len, 0);
        self.memory.touch(|| {
            if !into.is_empty() {
                // SAFETY: the payload lies inside the entry, since `len` is not more than its room.
                unsafe { copy::load(self.byte(HEADER), into) };
            }
            self.owner().store(kind & !FULL, Ordering::Release);
        })?;
        self.advance();
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn poke(&self, entry: usize, offset: usize, value: u8) {
        let at =
            self.queue.offset + (entry % self.queue.count) * self.queue.entry + offset % self.queue.entry;
        // SAFETY: inside an entry of the queue.
        unsafe { self.memory.byte(at).write_volatile(value) };
    }
}
