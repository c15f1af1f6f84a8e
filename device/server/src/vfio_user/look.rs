//! Looks how a client has mapped its memory, once, on a thread that nobody waits for but that client.
//!
//! `/proc/PID/maps` is read line by line under a lock of the client's address space: it takes long if there are many
//! mappings, and as long as the client likes if it holds that lock. So the message that hands over its first file waits for
//! the thread, for a second at most; then it stays unknown how the client has mapped its memory.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::front_end::Watch;
use crate::memory::Peer;

/// How long a client waits for its own mappings. QEMU has some hundred, which takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks at the mappings of one client after the other.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// What tells that the present client's are known, or that it has taken too long.
    open: Option<Open>,
    /// The last thread: as long as it is stuck there is no other.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Open {
    done: Arc<EventFd>,
    patience: TimerFd,
}

impl Look {
    /// Whether it is known how the client has mapped its files, or will not be. Otherwise a descriptor of [`Look::watch`]
    /// tells when to ask again.
    pub(super) fn is_done(&mut self, peer: &Peer) -> bool {
        if !peer.is_known() {
            let waits = match &self.open {
                Some(open) => !open.is_over(),
                // The first question, if there is a thread for it.
                None => self.begin(peer).is_some(),
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

    fn begin(&mut self, peer: &Peer) -> Option<()> {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return None;
        }
        let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).ok()?);
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let patience = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).ok()?;
        let once = Expiration::OneShot(TimeSpec::from_duration(PATIENCE));
        patience.set(once, TimerSetTimeFlags::empty()).ok()?;
        let (theirs, peer) = (Arc::clone(&done), peer.clone());
        let thread = std::thread::Builder::new().name("look".into()).spawn(move || {
            peer.look();
            let _ = theirs.write(1);
        });
        self.thread = Some(thread.ok()?);
        self.open = Some(Open { done, patience });
        Some(())
    }
}

impl Open {
    fn is_over(&self) -> bool {
        // One that has not expired would block.
        self.patience.wait().is_ok()
    }
}
