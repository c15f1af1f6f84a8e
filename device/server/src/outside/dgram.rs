//! A datagram socket: each datagram is one frame, and nothing else (QEMU, net/dgram.c).
//!
//! There is no connection. Who is not there misses frames, as on any Ethernet; the link is lit all the time. Of a Unix
//! socket whoever may write to its file is the peer; of an internet socket only the remote address is.

use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, setsockopt, socket, sockopt};
use nix::sys::stat::{Mode, fchmod};

use super::Port;
use super::address::Address;
use super::sending::Sending;
use super::turn::{Counts, Queue, Turn, room};
use crate::listener::{File, is_socket};

/// Bytes that the system is asked to keep while the engine does other things; it may give less.
const BUFFER: usize = 4 << 20;

/// The socket with its peer.
#[derive(Debug)]
pub(super) struct Dgram {
    socket: Socket,
    buffer: Vec<u8>,
    sending: Sending,
}

#[derive(Debug)]
enum Socket {
    Unix { socket: UnixDatagram, remote: PathBuf, _file: File },
    Inet { socket: UdpSocket, remote: SocketAddr },
}

impl Dgram {
    /// Takes frames at `local`, sends them to `remote`.
    ///
    /// # Errors
    /// The address can't be had; the message names it.
    pub(super) fn open(local: &Address, remote: &Address) -> anyhow::Result<Dgram> {
        let socket = match (local, remote) {
            (Address::Unix(local), Address::Unix(remote)) => {
                let (socket, file) = private(local)?;
                Socket::Unix { socket, remote: remote.clone(), _file: file }
            }
            (Address::Inet(local), Address::Inet(remote)) => {
                let socket = UdpSocket::bind(local).with_context(|| local.to_string())?;
                Socket::Inet { socket, remote: *remote }
            }
            (local, remote) => bail!("{local} and {remote} are not of one kind"),
        };
        match &socket {
            Socket::Unix { socket, .. } => socket.set_nonblocking(true)?,
            Socket::Inet { socket, .. } => socket.set_nonblocking(true)?,
        }
        // Best effort: the system has limits of its own.
        let _ = setsockopt(&socket.as_fd(), sockopt::RcvBuf, &BUFFER);
        let _ = setsockopt(&socket.as_fd(), sockopt::SndBuf, &BUFFER);
        Ok(Dgram { socket, buffer: room(), sending: Sending::default() })
    }
}

impl Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix { socket, .. } => socket.as_fd(),
            Socket::Inet { socket, .. } => socket.as_fd(),
        }
    }

    fn send(&self, frame: &[u8]) -> io::Result<usize> {
        match self {
            // By its path each time: a peer that was started again has another socket there.
            Socket::Unix { socket, remote, .. } => socket.send_to(frame, remote),
            Socket::Inet { socket, remote } => socket.send_to(frame, remote),
        }
    }

    /// One datagram. Its length, and whether it is the peer's.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        match self {
            Socket::Unix { socket, .. } => Ok((socket.recv(buffer)?, true)),
            Socket::Inet { socket, remote } => {
                let (length, from) = socket.recv_from(buffer)?;
                Ok((length, from == *remote))
            }
        }
    }
}

impl Port for Dgram {
    fn watch<'a>(&'a self, _waiting: bool, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        add(self.socket.as_fd(), PollFlags::POLLIN);
    }

    fn due(&self, waiting: bool) -> Option<Instant> {
        self.sending.due(waiting)
    }

    fn receive(&mut self, turn: &mut Turn<'_>) -> bool {
        while !turn.is_over() {
            match self.socket.receive(&mut self.buffer) {
                Ok((length, true)) => turn.take(self.buffer.get(..length).unwrap_or_default()),
                Ok((_, false)) => turn.stranger(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                // What the network says of an earlier datagram (refused, unreachable) is no news. It costs a turn's share.
                Err(_) => turn.spend(0),
            }
        }
        true
    }

    fn send(&mut self, queue: &mut Queue, counts: &mut Counts) -> bool {
        let socket = &self.socket;
        self.sending.run(queue, counts, |frame| socket.send(frame))
    }

    fn is_lit(&self) -> bool {
        true
    }
}

/// A bound socket whose file is its owner's only. One that a dead process has left is replaced.
fn private(path: &Path) -> anyhow::Result<(UnixDatagram, File)> {
    let shown = path.display();
    if is_socket(path)? {
        let probe = UnixDatagram::unbound()?;
        match probe.connect(path) {
            Ok(()) => bail!("{shown}: another process takes frames there"),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                tracing::info!("{shown}: stale socket replaced");
                fs::remove_file(path).with_context(|| format!("{shown}: stale socket can't be removed"))?;
            }
            Err(e) => bail!("{shown}: exists, and can't be reached: {e}"),
        }
    }
    let made = || -> io::Result<UnixDatagram> {
        let ours = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        // The file gets the mode that the socket has before it is bound.
        fchmod(&ours, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(ours.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(ours.into())
    };
    let socket = made().with_context(|| format!("{shown}: can't take frames there"))?;
    Ok((socket, File::at(path)))
}
