//! Interrupts by event descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::pci::msix::Signal;

/// An event descriptor that a client has connected to a vector.
#[derive(Debug)]
pub(super) struct EventFd(pub(super) OwnedFd);

impl Signal for EventFd {
    /// Adds 1 to the counter. A full counter has told the client already.
    fn signal(&self) -> io::Result<()> {
        // A client may hand over a blocking descriptor of any kind: ask before writing.
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut fds, PollTimeout::ZERO)? == 0 {
            return Ok(());
        }
        match nix::unistd::write(&self.0, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::EfdFlags;

    use super::*;

    fn eventfd(flags: EfdFlags) -> (nix::sys::eventfd::EventFd, EventFd) {
        let fd = nix::sys::eventfd::EventFd::from_flags(flags).unwrap();
        let ours = fd.as_fd().try_clone_to_owned().unwrap();
        (fd, EventFd(ours))
    }

    #[test]
    fn each_signal_counts() {
        let (fd, ours) = eventfd(EfdFlags::EFD_NONBLOCK);
        ours.signal().unwrap();
        ours.signal().unwrap();
        assert_eq!(fd.read().unwrap(), 2);
    }

    #[test]
    fn a_full_counter_does_not_block() {
        let (fd, ours) = eventfd(EfdFlags::empty());
        fd.write(u64::MAX - 1).unwrap();
        ours.signal().unwrap();
    }

    #[test]
    fn a_descriptor_of_another_kind_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(EventFd(file.into()).signal().is_err());
    }
}
