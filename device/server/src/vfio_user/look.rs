//! Looks how a client has mapped its memory, and keeps its files from being shortened, on a thread that nobody waits for but that client.
//!
//! `/proc/PID/maps` is read line by line under a lock of the client's address space: it takes long if there are many
//! mappings, and as long as the client likes if it holds that lock. To seal a file takes the lock of the file, which the client holds as long
//! as it likes by a write whose bytes are in a file of a file system that it serves itself. So the message that hands over its first file, or one that is
//! not sealed, waits for the thread, for a second at most; then it stays unknown how the client has mapped its memory, and the file is taken as it is
//! (what comes of one that is shortened: [`crate::memory::fault`]).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::front_end::Watch;
use crate::memory::{Peer, can_be_shortened, keep_length};

/// How long a client waits for its own mappings, or its file. QEMU has some hundred of the former, which takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks at the mappings and files of one client after the other.
#[derive(Debug)]
pub(super) struct Look {
    /// What tells that it is done for the present client, or that it has taken too long.
    open: Option<Open>,
    /// The last thread: as long as it is stuck there is no other, so a client has one at most, and one descriptor there.
    thread: Option<JoinHandle<()>>,
    /// How long a client waits.
    pub(super) patience: Duration,
    /// What is done to a file that its client could shorten.
    pub(super) keep_length: fn(BorrowedFd<'_>),
}

impl Default for Look {
    fn default() -> Look {
        Look { open: None, thread: None, patience: PATIENCE, keep_length }
    }
}

#[derive(Debug)]
struct Open {
    done: Arc<EventFd>,
    patience: TimerFd,
}

impl Look {
    /// Whether it is known how the client has mapped its files, and `file` can't be shortened, or both will not be. Otherwise a
    /// descriptor of [`Look::watch`] tells when to ask again, for the same file.
    pub(super) fn is_done(&mut self, peer: &Peer, file: Option<BorrowedFd<'_>>) -> bool {
        let file = file.filter(|file| can_be_shortened(*file));
        if !peer.is_known() || file.is_some() {
            let waits = match &self.open {
                Some(open) if open.is_done() => {
                    // It has nothing left to do but to end, and the next file finds no other.
                    if let Some(thread) = self.thread.take() {
                        let _ = thread.join();
                    }
                    false
                }
                Some(open) => !open.is_late(),
                // The first question, if there is a thread for it.
                None => self.begin(peer, file).is_some(),
            };
            if waits {
                return false;
            }
            peer.give_up();
        }
        self.open = None;
        true
    }

    /// The client is gone.
    pub(super) fn forget(&mut self) {
        self.open = None;
    }

    /// Whether a client waits.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// What to wait for meanwhile.
    pub(super) fn watch<'a>(&'a self, add: &mut dyn FnMut(Watch<'a>)) {
        if let Some(open) = &self.open {
            add(Watch { fd: open.done.as_fd(), events: PollFlags::POLLIN });
            add(Watch { fd: open.patience.as_fd(), events: PollFlags::POLLIN });
        }
    }

    fn begin(&mut self, peer: &Peer, file: Option<BorrowedFd<'_>>) -> Option<()> {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return None;
        }
        let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).ok()?);
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let patience = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).ok()?;
        let once = Expiration::OneShot(TimeSpec::from_duration(self.patience));
        patience.set(once, TimerSetTimeFlags::empty()).ok()?;
        let (theirs, peer, keep_length) = (Arc::clone(&done), peer.clone(), self.keep_length);
        let file = file.map(|file| file.try_clone_to_owned()).transpose().ok()?;
        let thread = std::thread::Builder::new().name("look".into()).spawn(move || {
            if !peer.is_known() {
                peer.look();
            }
            if let Some(file) = file {
                keep_length(file.as_fd());
            }
            let _ = theirs.write(1);
        });
        self.thread = Some(thread.ok()?);
        self.open = Some(Open { done, patience });
        Some(())
    }
}

impl Open {
    // Neither blocks: there is an error if it has not come to that.

    fn is_done(&self) -> bool {
        self.done.read().is_ok()
    }

    fn is_late(&self) -> bool {
        self.patience.wait().is_ok()
    }
}
