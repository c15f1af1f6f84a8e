//! One direction of a link between two processes: a ring of bytes in memory that both have mapped.
//!
//! | offset | what | who writes it |
//! |---|---|---|
//! | 0 | bytes written so far (8) | the sender |
//! | 64 | bytes taken so far (8) | the receiver |
//! | 128 | 1: the receiver sleeps, and wants to be woken (4) | both |
//! | 192 | 1: the sender sleeps, and wants to be woken when there is room (4) | both |
//! | 4096 | the ring: messages, each with its length (4) before it, up to a multiple of 8 | the sender |
//!
//! Neither side trusts the other: counts that can't be are an error that ends the link, and each byte of a message is copied out once,
//! before it is looked at. Nobody sees anything of the other's but the ring: a packet's payload is put into it by its sender, right out of its
//! guest's memory if it is there yet, and taken out of it by its receiver. The other side is told after 64 KiB, and when a turn is over, since
//! each count that both use is a trip between two cores.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use anyhow::Context;
use hca_model::{GuestMemory, Sink};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::wire::Place;
use crate::memory::{HostMemory, copy};

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
const WAITS: usize = 192;
/// Bytes of a message's length.
const LENGTH: usize = 4;
/// Messages begin at multiples of this.
const ALIGN: usize = 8;
/// The other side is told of so many bytes before a turn is over: some packets.
const TELL: u64 = 64 << 10;
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

    fn flag(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `count`.
        unsafe { AtomicU32::from_ptr(self.byte(offset).cast()) }
    }

    /// Somebody is about to sleep, and says so before it looks a last time.
    fn set(&self, flag: usize) {
        self.flag(flag).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn clear(&self, flag: usize) {
        self.flag(flag).store(0, Ordering::SeqCst);
    }

    /// Whether somebody sleeps, and has to be woken for a count that was stored before. It is told once.
    fn take(&self, flag: usize) -> bool {
        // The count is seen before the flag is, by whoever sets the flag and then looks.
        fence(Ordering::SeqCst);
        self.flag(flag).swap(0, Ordering::SeqCst) != 0
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
    /// What of it the receiver was told.
    told: u64,
    /// What the receiver had taken when it was last asked.
    taken: u64,
}

/// Room for a message in the ring.
pub(super) struct Slot<'a> {
    shared: &'a Shared,
    /// Where the message begins, and where its next byte goes.
    begin: u64,
    at: u64,
    left: usize,
    lacks: bool,
}

/// The next bytes of the message. What goes beyond its length is left out.
impl Sink for Slot<'_> {
    fn put(&mut self, data: &[u8]) {
        let data = data.get(..self.left).unwrap_or(data);
        self.shared.store(self.at, data);
        (self.at, self.left) = (self.at + data.len() as u64, self.left - data.len());
    }

    fn put_from(&mut self, memory: &dyn GuestMemory, iova: u64, len: usize) {
        let mut bytes = Vec::new();
        let (mut iova, mut left) = (iova, len.min(self.left));
        while left > 0 {
            let (offset, n) = Shared::place(self.at, left);
            let host = memory.as_any().and_then(|any| any.downcast_ref::<HostMemory>());
            // SAFETY: `place` keeps the piece inside the ring, which is mapped for writing as long as `shared`; no Rust object lies there, and it
            // is mapped by nobody as guest memory: no client is ever given its file.
            let copied =
                host.is_some_and(|host| unsafe { host.carry_out(iova, self.shared.byte(offset), n) });
            if !copied {
                bytes.resize(n, 0);
                if memory.read(iova, &mut bytes).is_err() {
                    bytes.fill(0);
                    self.lacks = true;
                }
                self.shared.store(self.at, &bytes);
            }
            (self.at, self.left) = (self.at + n as u64, self.left - n);
            (iova, left) = (iova.wrapping_add(n as u64), left - n);
        }
    }
}

/// Nobody has been told of the message yet.
impl Place for Slot<'_> {
    fn lacks(&self) -> bool {
        self.lacks
    }

    fn change(&mut self, at: usize, byte: u8) {
        if self.begin + (at as u64) < self.at {
            self.shared.store(self.begin + at as u64, &[byte]);
        }
    }
}

impl Sender {
    /// Maps a direction of the file: 0 or 1.
    ///
    /// # Errors
    /// The file is not what it should be, or can't be mapped.
    pub(super) fn map(file: impl AsFd, direction: usize) -> anyhow::Result<Self> {
        Ok(Self { shared: Shared::map(file, direction)?, written: 0, told: 0, taken: 0 })
    }

    /// Bytes that the receiver has not taken, or at least as it was last asked.
    fn used(&self) -> Result<u64, Broken> {
        self.written.checked_sub(self.taken).filter(|used| *used <= RING as u64).ok_or(Broken)
    }

    /// Puts a message of `len` bytes, all of which `fill` puts into its slot, into the ring. False: there is no room for now. The receiver
    /// hears of it by [`Sender::tell`] at the latest.
    ///
    /// # Errors
    /// The receiver says that it has taken what was never there, or the message is longer than any.
    pub(super) fn push(&mut self, len: usize, fill: impl FnOnce(&mut Slot<'_>)) -> Result<bool, Broken> {
        if len > LONGEST {
            return Err(Broken);
        }
        if self.used()? + room(len) > RING as u64 {
            self.tell();
            self.taken = self.shared.count(TAKEN).load(Ordering::Acquire);
            if self.used()? + room(len) > RING as u64 {
                return Ok(false);
            }
        }
        self.shared.store(self.written, &(len as u32).to_le_bytes());
        let begin = self.written + LENGTH as u64;
        let mut slot = Slot { shared: &self.shared, begin, at: begin, left: len, lacks: false };
        fill(&mut slot);
        debug_assert_eq!(slot.left, 0, "a message is what it says");
        self.written += room(len);
        if self.written - self.told >= TELL {
            self.tell();
        }
        Ok(true)
    }

    /// The receiver sees what was written.
    pub(super) fn tell(&mut self) {
        if self.told != self.written {
            self.told = self.written;
            self.shared.count(WRITTEN).store(self.written, Ordering::Release);
        }
    }

    /// Whether the receiver sleeps, and has to be woken for what was written. It is told once.
    pub(super) fn must_wake(&self) -> bool {
        self.shared.take(ASLEEP)
    }

    /// This end is about to sleep, and wants to be woken when there is room for a message of `len` bytes. False: there is, or the receiver's
    /// count can't be, so it must not.
    pub(super) fn sleep(&self, len: usize) -> bool {
        self.shared.set(WAITS);
        let taken = self.shared.count(TAKEN).load(Ordering::Acquire);
        let used = self.written.checked_sub(taken).filter(|used| *used <= RING as u64);
        let full = used.is_some_and(|used| used + room(len) > RING as u64);
        if !full {
            self.wake();
        }
        full
    }

    /// It does not sleep any more.
    pub(super) fn wake(&self) {
        self.shared.clear(WAITS);
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Receiver {
    shared: Shared,
    taken: u64,
    /// What of it the sender was told.
    told: u64,
    /// It was told something since it was looked after.
    news: bool,
    /// What the sender had written when it was last asked.
    written: u64,
}

impl Receiver {
    /// Maps a direction of the file: 0 or 1.
    ///
    /// # Errors
    /// As [`Sender::map`].
    pub(super) fn map(file: impl AsFd, direction: usize) -> anyhow::Result<Self> {
        Ok(Self { shared: Shared::map(file, direction)?, taken: 0, told: 0, news: false, written: 0 })
    }

    /// Bytes that wait, when so many were written.
    fn waiting(&self, written: u64) -> Result<u64, Broken> {
        written.checked_sub(self.taken).filter(|n| *n <= RING as u64).ok_or(Broken)
    }

    /// Whether there is something to take, or to complain of.
    pub(super) fn has_message(&self) -> bool {
        self.shared.count(WRITTEN).load(Ordering::Acquire) != self.taken
    }

    /// Gives the next message to `take`: how long it is, and what copies bytes from a place in it, zeroes from beyond its end. `None`: there
    /// is no message. The sender hears that there is room again by [`Receiver::tell`] at the latest.
    ///
    /// # Errors
    /// The sender's counts or lengths can't be.
    pub(super) fn pop<T>(
        &mut self,
        take: impl FnOnce(usize, &dyn Fn(usize, &mut [u8])) -> T,
    ) -> Result<Option<T>, Broken> {
        let mut waiting = self.waiting(self.written)?;
        if waiting == 0 {
            self.written = self.shared.count(WRITTEN).load(Ordering::Acquire);
            waiting = self.waiting(self.written)?;
            if waiting == 0 {
                return Ok(None);
            }
        }
        let mut length = [0; LENGTH];
        self.shared.load(self.taken, &mut length);
        let len = u32::from_le_bytes(length) as usize;
        if len > LONGEST || room(len) > waiting {
            return Err(Broken);
        }
        let (shared, begin) = (&self.shared, self.taken + LENGTH as u64);
        let taken = take(len, &|offset, bytes| {
            let (bytes, beyond) = bytes.split_at_mut(bytes.len().min(len.saturating_sub(offset)));
            if !bytes.is_empty() {
                shared.load(begin + offset as u64, bytes);
            }
            beyond.fill(0);
        });
        self.taken += room(len);
        if self.taken - self.told >= TELL {
            self.tell();
        }
        Ok(Some(taken))
    }

    /// The sender sees that what was taken is room again.
    pub(super) fn tell(&mut self) {
        if self.told != self.taken {
            self.told = self.taken;
            self.news = true;
            self.shared.count(TAKEN).store(self.taken, Ordering::Release);
        }
    }

    /// Whether the sender sleeps, and has to be woken for the room that it was told of. It is told once, and nothing is looked at where it
    /// was told of none.
    pub(super) fn must_wake(&mut self) -> bool {
        std::mem::take(&mut self.news) && self.shared.take(WAITS)
    }

    /// This end is about to sleep, and wants to be woken. False: there is something to take, so it must not.
    pub(super) fn sleep(&self) -> bool {
        self.shared.set(ASLEEP);
        let nothing = !self.has_message();
        if !nothing {
            self.wake();
        }
        nothing
    }

    /// It does not sleep any more.
    pub(super) fn wake(&self) {
        self.shared.clear(ASLEEP);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{Backing, Window};

    fn ends() -> (Sender, Receiver) {
        let file = memory().unwrap();
        (Sender::map(&file, 1).unwrap(), Receiver::map(&file, 1).unwrap())
    }

    /// A message in two pieces.
    fn push(sender: &mut Sender, message: &[u8]) -> Result<bool, Broken> {
        sender.push(message.len(), |slot| {
            slot.put(&message[..message.len() / 3]);
            slot.put(&message[message.len() / 3..]);
        })
    }

    fn pop(receiver: &mut Receiver) -> Result<Option<Vec<u8>>, Broken> {
        receiver.pop(|len, load| {
            let mut bytes = vec![0; len];
            load(0, &mut bytes);
            bytes
        })
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(lens in prop::collection::vec(0usize..40_000, 1..200), turn in 1usize..20) {
            let (mut sender, mut receiver) = ends();
            let mut sent = std::collections::VecDeque::new();
            for (i, len) in lens.into_iter().enumerate() {
                let message: Vec<u8> = (0..len).map(|byte| (byte * 7 + i) as u8).collect();
                while !push(&mut sender, &message).unwrap() {
                    prop_assert_eq!(pop(&mut receiver).unwrap(), sent.pop_front());
                    receiver.tell();
                }
                sent.push_back(message);
                if i % turn == 0 && let Some(got) = pop(&mut receiver).unwrap() {
                    prop_assert_eq!(Some(got), sent.pop_front());
                }
            }
            sender.tell();
            while let Some(got) = pop(&mut receiver).unwrap() {
                prop_assert_eq!(Some(got), sent.pop_front());
            }
            prop_assert!(sent.is_empty());
        }

        /// Whatever the other side writes anywhere, this one gets messages or an error.
        #[test]
        fn nothing_the_other_side_writes_does_harm(words in prop::collection::vec((0usize..ONE / 8, any::<u64>()), 0..40)) {
            let (mut sender, mut receiver) = ends();
            for (word, value) in words {
                let word = if word % 3 == 0 { word % 24 } else { word };
                // SAFETY: a word inside the mapping.
                unsafe { sender.shared.byte(word * 8).cast::<u64>().write_volatile(value) };
                let _ = push(&mut sender, &[1; 100]);
                sender.tell();
                for _ in 0..3 {
                    if let Ok(Some(got)) = pop(&mut receiver) {
                        prop_assert!(got.len() <= LONGEST);
                    }
                    receiver.tell();
                }
            }
        }
    }

    #[test]
    fn a_sleeper_is_woken_once_and_does_not_sleep_over_messages() {
        let (mut sender, mut receiver) = ends();
        assert!(!sender.must_wake());
        assert!(receiver.sleep());
        assert!(push(&mut sender, b"x").unwrap());
        sender.tell();
        assert!(sender.must_wake() && !sender.must_wake());
        assert!(!receiver.sleep() && !sender.must_wake());
        assert_eq!(pop(&mut receiver).unwrap().unwrap(), b"x");
        assert!(receiver.sleep());
        receiver.wake();
        assert!(!sender.must_wake());
    }

    /// Who waits for room sleeps, is woken once for enough of it, and does not sleep over it, nor where the other side says what can't be.
    #[test]
    fn who_waits_for_room_is_woken() {
        let (mut sender, mut receiver) = ends();
        let message = [1; 1000];
        while push(&mut sender, &message).unwrap() {}
        assert!(!receiver.must_wake(), "nothing was told");
        assert!(sender.sleep(1000));
        receiver.tell();
        assert!(!receiver.must_wake(), "nothing was taken");
        assert!(pop(&mut receiver).unwrap().is_some() && pop(&mut receiver).unwrap().is_some());
        assert!(!receiver.must_wake(), "nor told");
        receiver.tell();
        assert!(receiver.must_wake() && !receiver.must_wake());
        assert!(!sender.sleep(1000), "there is room");
        assert!(sender.sleep(5000), "not for so much");
        sender.wake();
        assert!(pop(&mut receiver).unwrap().is_some());
        receiver.tell();
        assert!(!receiver.must_wake(), "it is awake");
        // Of what was told in the middle of a turn, too.
        assert!(sender.sleep(100_000));
        let before = receiver.told;
        while receiver.told == before {
            assert!(pop(&mut receiver).unwrap().is_some());
        }
        assert!(receiver.must_wake());
        for never in [u64::MAX, sender.written + 8, sender.written.wrapping_sub(RING as u64 + 8)] {
            sender.shared.count(TAKEN).store(never, Ordering::Release);
            assert!(!sender.sleep(1000));
        }
    }

    #[test]
    fn counts_that_cannot_be_end_it() {
        let (mut sender, mut receiver) = ends();
        sender.shared.count(TAKEN).store(8, Ordering::Release);
        let full =
            (0..=RING / 1024).map(|_| push(&mut sender, &[1; 1024])).find(|pushed| *pushed != Ok(true));
        assert_eq!(full, Some(Ok(false)), "it has taken eight bytes");
        sender.shared.count(TAKEN).store(RING as u64, Ordering::Release);
        assert_eq!(push(&mut sender, &[1; 1024]), Err(Broken), "more than was written");
        sender.shared.count(WRITTEN).store(RING as u64 + 8, Ordering::Release);
        assert_eq!(pop(&mut receiver), Err(Broken));
        // A message that is longer than what waits.
        let (sender, mut receiver) = ends();
        sender.shared.store(0, &100u32.to_le_bytes());
        sender.shared.count(WRITTEN).store(8, Ordering::Release);
        assert_eq!(pop(&mut receiver), Err(Broken));
    }

    /// The other side is told of much at once, and of all at the end of a turn.
    #[test]
    fn counts_are_told_now_and_then() {
        let (mut sender, mut receiver) = ends();
        assert!(push(&mut sender, &[1; 1000]).unwrap());
        assert!(!receiver.has_message());
        (0..TELL / 1024).for_each(|_| assert!(push(&mut sender, &[1; 1024]).unwrap()));
        assert!(receiver.has_message());
        let told = sender.told;
        assert!(told < sender.written);
        let mut count = 0;
        while pop(&mut receiver).unwrap().is_some() {
            count += 1;
        }
        assert_eq!((count, receiver.taken, receiver.told), (TELL / 1024, told, told));
        sender.tell();
        assert!(pop(&mut receiver).unwrap().is_some());
        assert_eq!(sender.shared.count(TAKEN).load(Ordering::Acquire), told);
        receiver.tell();
        assert_eq!(sender.shared.count(TAKEN).load(Ordering::Acquire), sender.written);
    }

    /// Bytes beyond a message are nobody's.
    #[test]
    fn what_is_behind_a_message_is_not_given() {
        let (mut sender, mut receiver) = ends();
        push(&mut sender, &[1; 5]).unwrap();
        push(&mut sender, &[2; 5]).unwrap();
        sender.tell();
        for value in [1, 2] {
            let got = receiver.pop(|len, load| {
                let mut bytes = [9; 12];
                load(3, &mut bytes);
                (len, bytes)
            });
            let mut bytes = [0; 12];
            bytes[..2].fill(value);
            assert_eq!(got, Ok(Some((5, bytes))));
        }
    }

    /// What is in a guest's memory comes into the ring from there, over the ring's end too, and whatever lies before and behind it; what can't be
    /// read is nothing.
    #[test]
    fn bytes_come_out_of_guest_memory() {
        const LEN: usize = 5000;
        let file = memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        let host = HostMemory::new();
        host.set_bus_master(true);
        let window = Window { iova: 0x1000, size: 0x4000, readable: true, writable: true };
        host.map(window, Backing::File { fd: file, offset: 0 }).unwrap();
        let bytes: Vec<u8> = (0..0x4000).map(|i| (i * 7 + i / 256) as u8).collect();
        host.write(0x1000, &bytes).unwrap();
        let (mut sender, mut receiver) = ends();
        let (mut ends_met, mut unmapped) = (0, 0);
        for i in 0..2 * RING / LEN {
            let before = sender.written;
            // Now and then there are bytes that are not mapped: then none of the piece are there.
            let from = (i * 331) % (0x4000 - LEN + 600);
            let pushed = sender.push(LEN + 5, |slot| {
                slot.put(b"abc");
                slot.put_from(&host, 0x1000 + from as u64, LEN);
                slot.put(b"de");
                assert_eq!(slot.lacks(), from + LEN > 0x4000, "{i}");
                slot.change(1, b'B');
                slot.change(LEN + 5, b'X');
            });
            assert_eq!(pushed, Ok(true));
            sender.tell();
            let got = pop(&mut receiver).unwrap().unwrap();
            receiver.tell();
            let meets_end = before / RING as u64 != sender.written / RING as u64;
            ends_met += u64::from(meets_end);
            match bytes.get(from..from + LEN) {
                Some(bytes) => assert!(got[3..LEN + 3] == *bytes, "{i}"),
                None => unmapped += 1,
            }
            if from + LEN > 0x4000 && !meets_end {
                assert!(got[3..LEN + 3].iter().all(|byte| *byte == 0), "{i}");
            }
            assert_eq!((&got[..3], &got[LEN + 3..]), (&b"aBc"[..], &b"de"[..]), "{i}");
        }
        assert!(ends_met > 0 && unmapped > 0);
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
