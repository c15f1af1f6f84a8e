//! A TAP device: the machine's own network stack at the other end (Documentation/networking/tuntap.rst of Linux).
//!
//! The device is opened before the server enters its sandbox; the interface is there already and this user's, or the server is
//! started with the right to make one (`CAP_NET_ADMIN`). Addresses, bridges and routes are the machine's business. Frames come
//! one for each read, without a header of the device's and, since none was asked for, without offloads left to do.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::poll::PollFlags;

use super::Port;
use super::sending::Sending;
use super::turn::{Counts, Queue, Turn, room};

const DEVICE: &str = "/dev/net/tun";

/// The device.
#[derive(Debug)]
pub(super) struct Tap {
    device: File,
    buffer: Vec<u8>,
    /// The interface was removed.
    gone: bool,
    sending: Sending,
}

impl Tap {
    /// Opens the interface of that name.
    ///
    /// # Errors
    /// It can't be had; the message says how it can be.
    pub(super) fn open(interface: &str) -> anyhow::Result<Tap> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let device = options.open(DEVICE).context(DEVICE)?;
        attach(&device, interface).with_context(|| {
            format!(
                "{DEVICE}: interface {interface}: it has to be this user's \
                 (ip tuntap add {interface} mode tap user NAME), or the server root's"
            )
        })?;
        Ok(Tap { device, buffer: room(), gone: false, sending: Sending::default() })
    }
}

impl Port for Tap {
    fn watch<'a>(&'a self, _waiting: bool, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        if !self.gone {
            add(self.device.as_fd(), PollFlags::POLLIN);
        }
    }

    fn due(&self, waiting: bool) -> Option<Instant> {
        self.sending.due(waiting)
    }

    fn receive(&mut self, turn: &mut Turn<'_>) -> bool {
        while !turn.is_over() && !self.gone {
            match self.device.read(&mut self.buffer) {
                Ok(length) => turn.take(self.buffer.get(..length).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => turn.spend(0),
                Err(e) => self.gone = is_end(&e),
            }
            // Any other error costs a turn's share.
            turn.spend(0);
        }
        !self.gone
    }

    fn send(&mut self, queue: &mut Queue, counts: &mut Counts) -> bool {
        let (device, gone) = (&mut self.device, &mut self.gone);
        // An error says that the interface is down (EIO), or gone.
        self.sending.run(queue, counts, |frame| device.write(frame).inspect_err(|e| *gone |= is_end(e)))
    }

    fn is_lit(&self) -> bool {
        !self.gone
    }
}

/// Whether the interface is no more.
fn is_end(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADFD | libc::ENODEV | libc::EBADF))
}

/// Makes the descriptor that of an interface: Ethernet frames, without packet information.
fn attach(device: &File, interface: &str) -> anyhow::Result<()> {
    // SAFETY: ifreq is plain data; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    ensure!(interface.len() < request.ifr_name.len(), "the name is too long");
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the call reads and writes an ifreq, which lives until it is over; the descriptor is open.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(result)?;
    Ok(())
}
