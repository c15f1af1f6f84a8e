//! Sleeping at words of memory that processes share (futexes): who wakes writes no message, and who is woken reads none.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::time::{ClockId, clock_gettime};

/// Words at most that one sleeps at (`FUTEX_WAITV_MAX`).
const MOST: usize = 128;
/// A word of 32 bits, of any process (`FUTEX2_SIZE_U32`).
const SHARED: u32 = 2;

/// What a sleep was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slept {
    /// Somebody woke it, or might have.
    Woken,
    /// As long as it was to be.
    Long,
    /// The system can't: before Linux 5.16, or where it is not allowed.
    Not,
}

/// A word and what is there while one sleeps (`struct futex_waitv`).
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// The system said that it can't.
static LACKING: AtomicBool = AtomicBool::new(false);

/// Whether one can sleep at so many words, as far as is known.
pub(super) fn can(words: usize) -> bool {
    (1..=MOST).contains(&words) && !LACKING.load(Ordering::Relaxed)
}

/// Sleeps while all of these words have that value, until one of them is woken, and so long at most.
///
/// # Errors
/// The memory is gone, or the system does not wait.
pub(super) fn sleep<'a>(
    words: impl Iterator<Item = &'a AtomicU32>,
    value: u32,
    most: Duration,
) -> io::Result<Slept> {
    let waiter = |word: &AtomicU32| Waiter {
        value: value.into(),
        address: word.as_ptr() as u64,
        flags: SHARED,
        reserved: 0,
    };
    let waiters: Vec<Waiter> = words.map(waiter).collect();
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let until = now.saturating_add(most);
    let until = libc::timespec {
        tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: until.subsec_nanos().into(),
    };
    // SAFETY: the system reads that many waiters, which have the layout it wants, and the time; both live until it returns. It reads the words by
    // itself, as atomics, and answers EFAULT if one of them is in no memory.
    let woken = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len(),
            0usize,
            &raw const until,
            usize::try_from(libc::CLOCK_MONOTONIC).unwrap_or_default(),
        )
    };
    if woken >= 0 {
        return Ok(Slept::Woken);
    }
    match Errno::last() {
        Errno::EAGAIN | Errno::EINTR => Ok(Slept::Woken),
        Errno::ETIMEDOUT => Ok(Slept::Long),
        Errno::ENOSYS | Errno::EPERM => {
            LACKING.store(true, Ordering::Relaxed);
            Ok(Slept::Not)
        }
        why => Err(why.into()),
    }
}

/// Wakes who sleeps at a word.
pub(super) fn wake(word: &AtomicU32) {
    // SAFETY: the system takes the address as a name, and looks at no memory of ours but that word's page; where that is gone it answers EFAULT,
    // and nobody sleeps there.
    let _ =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1, 0usize, 0usize, 0usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_at_a_word_is_woken_or_sleeps_long() {
        let words = [AtomicU32::new(2), AtomicU32::new(2)];
        let sleep = |most| sleep(words.iter(), 2, most).expect("it waits");
        let short = sleep(Duration::from_millis(1));
        if short == Slept::Not {
            return assert!(!can(2), "it is not tried again");
        }
        assert_eq!(short, Slept::Long);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| while sleep(Duration::from_secs(600)) != Slept::Woken {});
            let [_, second] = &words;
            // Before or behind the begin of the sleep.
            second.store(0, Ordering::SeqCst);
            wake(second);
            sleeper.join().expect("it wakes");
        });
        assert_eq!(sleep(Duration::from_secs(600)), Slept::Woken, "a word has another value");
        assert!(can(1) && can(MOST) && !can(0) && !can(MOST + 1));
    }
}
