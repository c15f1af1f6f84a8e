//! One direction of a link between two processes: a ring of bytes in memory that both have mapped.
//!
//! | offset | what | who writes it |
//! |---|---|---|
//! | 0 | bytes written so far (8) | the sender |
//! | 64 | bytes taken so far (8) | the receiver |
//! | 128 | 1: the receiver sleeps, and wants to be woken (4) | both |
//! | 4096 | the ring: messages, each with its length (4) before it, up to a multiple of 8 | the sender |
//!
//! Neither side trusts the other: counts that can't be are an error that ends the link, and a message is copied out before it is
//! looked at.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use anyhow::Context;
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use crate::memory::copy;

/// Bytes of a ring: more than the input buffer of a lane that its packets go to.
const RING: usize = 4 << 20;
/// Where the ring begins.
const DATA: usize = 4096;
/// Bytes of one direction.
const ONE: usize = DATA + RING;
/// Bytes of a file with both.
pub(super) const SIZE: usize = 2 * ONE;
const WRITTEN: usize = 0;
const TAKEN: usize = 64;
const ASLEEP: usize = 128;
/// Bytes of a message's length.
const LENGTH: usize = 4;
/// Messages begin at multiples of this.
const ALIGN: usize = 8;
/// The longest message: half a ring, so that one always fits when the receiver has taken what was there.
const LONGEST: usize = RING / 2;

/// The other side does not keep to the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other end of the link does not keep to the rules of the ring")]
pub(super) struct Broken;

/// Memory for both directions of a link, for two processes to map. It can't be made smaller or larger by either.
///
/// # Errors
/// The system gives no memory.
pub(super) fn memory() -> anyhow::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(c"softhca-link", flags).context("memory for a link")?;
    ftruncate(&file, i64::try_from(SIZE)?).context("memory for a link")?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).context("memory for a link can't be sealed")?;
    Ok(file)
}

/// One direction, mapped.
#[derive(Debug)]
struct Shared {
    map: MmapRaw,
    /// Where it is in the file.
    at: usize,
}

impl Shared {
    fn map(file: impl AsFd, direction: usize) -> anyhow::Result<Self> {
        let fd = file.as_fd();
        // Only what can't shrink any more: an access behind the end of a file would end the process.
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS).context("memory of a link")?;
        anyhow::ensure!(
            seals & SealFlag::F_SEAL_SHRINK.bits() != 0,
            "memory of a link: it may become shorter"
        );
        let size = nix::sys::stat::fstat(fd).context("memory of a link")?.st_size;
        anyhow::ensure!(u64::try_from(size).ok() == Some(SIZE as u64), "memory of a link: {size} bytes");
        let map = MmapOptions::new().len(SIZE).map_raw(&fd).context("memory of a link can't be mapped")?;
        Ok(Self { map, at: direction * ONE })
    }

    /// A pointer to a byte of this direction.
    fn byte(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < ONE);
        self.map.as_mut_ptr().wrapping_add(self.at + offset)
    }

    fn count(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `offset` is one of the constants above: aligned to 64 bytes and inside the mapping, which lives as long as
        // `self` and whose file can't shrink. Both processes access these words by atomics only.
        unsafe { AtomicU64::from_ptr(self.byte(offset).cast()) }
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: as in `count`.
        unsafe { AtomicU32::from_ptr(self.byte(ASLEEP).cast()) }
    }

    /// The part of the ring from a count on: its offset, and how much there is before the ring's end.
    fn place(count: u64, len: usize) -> (usize, usize) {
        let start = (count % RING as u64) as usize;
        (DATA + start, len.min(RING - start))
    }

    /// Copies into the ring. `data` is at most a ring long.
    fn store(&self, count: u64, data: &[u8]) {
        let (offset, first) = Self::place(count, data.len());
        let Some((head, tail)) = data.split_at_checked(first) else { return };
        // SAFETY: `place` keeps both pieces inside the ring, which is mapped for writing; no Rust object lies there.
        unsafe {
            copy::store(self.byte(offset), head);
            copy::store(self.byte(DATA), tail);
        }
    }

    /// Copies out of the ring. `data` is at most a ring long.
    fn load(&self, count: u64, data: &mut [u8]) {
        let (offset, first) = Self::place(count, data.len());
        let Some((head, tail)) = data.split_at_mut_checked(first) else { return };
        // SAFETY: as in `store`.
        unsafe {
            copy::load(self.byte(offset), head);
            copy::load(self.byte(DATA), tail);
        }
    }
}

/// Bytes that a message takes of the ring.
fn room(len: usize) -> u64 {
    (LENGTH + len).next_multiple_of(ALIGN) as u64
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct Sender {
    shared: Shared,
    written: u64,
}

impl Sender {
    /// Maps a direction of the file: 0 or 1.
    ///
    /// # Errors
    /// The file is not what it should be, or can't be mapped.
    pub(super) fn map(file: impl AsFd, direction: usize) -> anyhow::Result<Self> {
        Ok(Self { shared: Shared::map(file, direction)?, written: 0 })
    }

    /// Puts a message, the first part and what follows it, into the ring. False: there is no room for now.
    ///
    /// # Errors
    /// The receiver says that it has taken what was never there, or the message is longer than any.
    pub(super) fn push(&mut self, first: &[u8], rest: &[u8]) -> Result<bool, Broken> {
        let len = first.len().saturating_add(rest.len());
        let taken = self.shared.count(TAKEN).load(Ordering::Acquire);
        let used = self.written.checked_sub(taken).filter(|used| *used <= RING as u64).ok_or(Broken)?;
        if len > LONGEST {
            return Err(Broken);
        }
        if used + room(len) > RING as u64 {
            return Ok(false);
        }
        self.shared.store(self.written, &(len as u32).to_le_bytes());
        let at = self.written + LENGTH as u64;
        self.shared.store(at, first);
        self.shared.store(at + first.len() as u64, rest);
        self.written += room(len);
        self.shared.count(WRITTEN).store(self.written, Ordering::Release);
        Ok(true)
    }

    /// Whether the receiver sleeps, and has to be woken for what was written. It is told once.
    pub(super) fn must_wake(&self) -> bool {
        // What was written is seen before the flag is, by a receiver that sets the flag and then looks.
        fence(Ordering::SeqCst);
        self.shared.asleep().swap(0, Ordering::SeqCst) != 0
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Receiver {
    shared: Shared,
    taken: u64,
}

impl Receiver {
    /// Maps a direction of the file: 0 or 1.
    ///
    /// # Errors
    /// As [`Sender::map`].
    pub(super) fn map(file: impl AsFd, direction: usize) -> anyhow::Result<Self> {
        Ok(Self { shared: Shared::map(file, direction)?, taken: 0 })
    }

    /// Bytes that wait.
    fn waiting(&self) -> Result<u64, Broken> {
        let written = self.shared.count(WRITTEN).load(Ordering::Acquire);
        written.checked_sub(self.taken).filter(|n| *n <= RING as u64).ok_or(Broken)
    }

    /// Whether there is something to take, or to complain of.
    pub(super) fn has_message(&self) -> bool {
        self.waiting() != Ok(0)
    }

    /// Takes the next message into `message`. False: there is none.
    ///
    /// # Errors
    /// The sender's counts or lengths can't be.
    pub(super) fn pop(&mut self, message: &mut Vec<u8>) -> Result<bool, Broken> {
        let waiting = self.waiting()?;
        if waiting == 0 {
            return Ok(false);
        }
        let mut length = [0; LENGTH];
        self.shared.load(self.taken, &mut length);
        let len = u32::from_le_bytes(length) as usize;
        if len > LONGEST || room(len) > waiting {
            return Err(Broken);
        }
        message.resize(len, 0);
        self.shared.load(self.taken + LENGTH as u64, message);
        self.taken += room(len);
        self.shared.count(TAKEN).store(self.taken, Ordering::Release);
        Ok(true)
    }

    /// This end is about to sleep, and wants to be woken. False: there is something to take, so it must not.
    pub(super) fn sleep(&self) -> bool {
        self.shared.asleep().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let nothing = !self.has_message();
        if !nothing {
            self.wake();
        }
        nothing
    }

    /// It does not sleep any more.
    pub(super) fn wake(&self) {
        self.shared.asleep().store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends() -> (Sender, Receiver) {
        let file = memory().unwrap();
        (Sender::map(&file, 1).unwrap(), Receiver::map(&file, 1).unwrap())
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(lens in prop::collection::vec(0usize..40_000, 1..200), turn in 1usize..20) {
            let (mut sender, mut receiver) = ends();
            let mut sent = std::collections::VecDeque::new();
            let mut got = Vec::new();
            for (i, len) in lens.into_iter().enumerate() {
                let message: Vec<u8> = (0..len).map(|byte| (byte * 7 + i) as u8).collect();
                while !sender.push(&message[..message.len() / 3], &message[message.len() / 3..]).unwrap() {
                    prop_assert!(receiver.pop(&mut got).unwrap());
                    prop_assert!(Some(&got) == sent.pop_front().as_ref());
                }
                sent.push_back(message);
                if i % turn == 0 && receiver.pop(&mut got).unwrap() {
                    prop_assert!(Some(&got) == sent.pop_front().as_ref());
                }
            }
            while receiver.pop(&mut got).unwrap() {
                prop_assert!(Some(&got) == sent.pop_front().as_ref());
            }
            prop_assert!(sent.is_empty());
        }

        /// Whatever the other side writes anywhere, this one gets messages or an error.
        #[test]
        fn nothing_the_other_side_writes_does_harm(words in prop::collection::vec((0usize..ONE / 8, any::<u64>()), 0..40)) {
            let (mut sender, mut receiver) = ends();
            let mut got = Vec::new();
            for (word, value) in words {
                let word = if word % 3 == 0 { word % 24 } else { word };
                // SAFETY: a word inside the mapping.
                unsafe { sender.shared.byte(word * 8).cast::<u64>().write_volatile(value) };
                let _ = sender.push(&[1; 100], &[]);
                for _ in 0..3 {
                    if receiver.pop(&mut got).is_ok() {
                        prop_assert!(got.len() <= LONGEST);
                    }
                }
            }
        }
    }

    #[test]
    fn a_sleeper_is_woken_once_and_does_not_sleep_over_messages() {
        let (mut sender, mut receiver) = ends();
        assert!(!sender.must_wake());
        assert!(receiver.sleep());
        assert!(sender.push(b"x", &[]).unwrap());
        assert!(sender.must_wake() && !sender.must_wake());
        assert!(!receiver.sleep() && !sender.must_wake());
        assert!(receiver.pop(&mut Vec::new()).unwrap());
        assert!(receiver.sleep());
        receiver.wake();
        assert!(!sender.must_wake());
    }

    #[test]
    fn counts_that_cannot_be_end_it() {
        let (mut sender, mut receiver) = ends();
        sender.shared.count(TAKEN).store(8, Ordering::Release);
        assert_eq!(sender.push(b"x", &[]), Err(Broken));
        sender.shared.count(WRITTEN).store(RING as u64 + 8, Ordering::Release);
        assert_eq!(receiver.pop(&mut Vec::new()), Err(Broken));
        // A message that is longer than what waits.
        let (sender, mut receiver) = ends();
        sender.shared.store(0, &100u32.to_le_bytes());
        sender.shared.count(WRITTEN).store(8, Ordering::Release);
        assert_eq!(receiver.pop(&mut Vec::new()), Err(Broken));
    }

    #[test]
    fn other_files_are_refused() {
        let unsealed = memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, SIZE as i64).unwrap();
        assert!(Receiver::map(&unsealed, 0).is_err());
        fcntl(&unsealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(Receiver::map(&unsealed, 0).is_ok());
        let short = memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        fcntl(&short, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(Sender::map(&short, 0).is_err());
    }
}
