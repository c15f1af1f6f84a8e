//! Descriptors of a client: memory and events, nothing else.
//!
//! A client may send any descriptor it can have, and being asked about it, written to or closed, some block for as long as
//! whoever serves them likes. So what a descriptor is is found out by questions that only the kernel answers, and what is
//! not wanted is closed elsewhere.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open, readlinkat};
use nix::sys::stat::Mode;

use crate::closer::Closer;
use crate::memory::is_memory;

/// What a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A file of memory.
    Memory,
    /// A counter of events (eventfd).
    Event,
}

/// A descriptor that a client sent. When it is dropped it is closed, elsewhere if that may take long.
#[derive(Debug)]
pub struct Descriptor {
    fd: Option<OwnedFd>,
    kind: Kind,
    closer: Closer,
}

impl Descriptor {
    /// Takes a descriptor over; `None` if it is of no use here.
    pub(super) fn new(fd: OwnedFd, closer: &Closer) -> Option<Descriptor> {
        let kind = match () {
            () if is_memory(fd.as_fd()) => Kind::Memory,
            () if is_event(&fd) => Kind::Event,
            () => {
                closer.give(fd);
                return None;
            }
        };
        Some(Descriptor { fd: Some(fd), kind, closer: closer.clone() })
    }

    /// The descriptor as it is, if it is of a file of memory.
    pub(super) fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().filter(|_| self.kind == Kind::Memory).map(AsFd::as_fd)
    }

    /// The descriptor, of a file of memory.
    ///
    /// # Errors
    /// `EINVAL`: it is an event.
    pub(super) fn into_memory(mut self) -> Result<OwnedFd, Errno> {
        self.fd.take_if(|_| self.kind == Kind::Memory).ok_or(Errno::EINVAL)
    }

    /// The descriptor, of an event. Writing to it does not block, unless the client takes that back.
    ///
    /// # Errors
    /// `EINVAL`: it is memory.
    pub(super) fn into_event(mut self) -> Result<OwnedFd, Errno> {
        let fd = self.fd.take_if(|_| self.kind == Kind::Event).ok_or(Errno::EINVAL)?;
        let flags = OFlag::from_bits_truncate(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(fd)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        match (self.fd.take(), self.kind) {
            (Some(fd), Kind::Memory) => self.closer.give(fd),
            (fd, _) => drop(fd),
        }
    }
}

/// The descriptors of this process, a folder whose names say what they are of.
static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();

fn own() -> Option<&'static OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let own = OWN.get_or_init(|| {
        open("/proc/self/fd", flags, Mode::empty())
            .inspect_err(|e| tracing::error!("/proc/self/fd: {e}: no client's interrupts can be connected"))
            .ok()
    });
    own.as_ref()
}

/// Opens what telling kinds apart needs: later this process may open nothing any more.
pub(super) fn prepare() {
    own();
}

/// Whether it is an eventfd: the kernel names it so, and no file on any file system, since those have names from the root.
fn is_event(fd: &OwnedFd) -> bool {
    let Some(own) = own() else { return false };
    readlinkat(own, fd.as_raw_fd().to_string().as_str()).is_ok_and(|name| name == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_memory_and_events_are_kept() {
        let closer = Closer::default();
        let new = |fd| Descriptor::new(fd, &closer);
        let memory = || memfd_create(c"anon_inode:[eventfd]", MFdFlags::empty()).unwrap();
        let event = || EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap();
        assert!(new(memory()).unwrap().into_memory().is_ok());
        assert_eq!(new(memory()).unwrap().into_event().unwrap_err(), Errno::EINVAL);
        assert_eq!(new(event()).unwrap().into_memory().unwrap_err(), Errno::EINVAL);
        let event = new(event()).unwrap().into_event().unwrap();
        let flags = fcntl(&event, FcntlArg::F_GETFL).unwrap();
        assert!(OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK));
        for path in ["/proc/version", "/dev/null", "/"] {
            assert!(new(File::open(path).unwrap().into()).is_none(), "{path}");
        }
        assert!(new(nix::unistd::pipe().unwrap().0).is_none());
        assert!(new(std::net::TcpListener::bind("127.0.0.1:0").unwrap().into()).is_none());
        let timer = nix::sys::timerfd::TimerFd::new(
            nix::sys::timerfd::ClockId::CLOCK_MONOTONIC,
            nix::sys::timerfd::TimerFlags::empty(),
        );
        assert!(new(timer.unwrap().as_fd().try_clone_to_owned().unwrap()).is_none());
    }
}
