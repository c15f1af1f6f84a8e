//! A socket at whose other end is another worker, which is not trusted.
//!
//! With anything that it sends can be descriptors. The kernel closes those that nobody receives in the thread that reads past them, or that closes
//! the socket, and that can block for as long as whoever made them likes (a socket that lingers, a file of a file system that a program
//! serves). So it is looked what comes before it is taken: a socket with descriptors is of no use any more, and let go of where nobody waits for it. A
//! pipe carries no descriptors, but who writes to it has a lock of both ends while its memory is fetched, and fetching that can be made to take as long; of a
//! socket each end has its own locks.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{MsgFlags, recvmsg, setsockopt, sockopt::OobInline};

use crate::closer::Closer;
use crate::socket;

/// What comes with bytes that nobody asked descriptors of.
pub(super) const DESCRIPTORS: &str = "it sends descriptors";

/// One end of a pair of sockets.
#[derive(Debug)]
pub(super) struct Wary {
    /// There until it is dropped.
    socket: Option<UnixStream>,
    closer: Closer,
}

/// A pair of sockets for two that do not trust each other.
///
/// # Errors
/// The system gives none.
pub(super) fn pair() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = UnixStream::pair()?;
    // What is sent out of band is read past otherwise, with the descriptors that it has.
    setsockopt(&a, OobInline, &true)?;
    setsockopt(&b, OobInline, &true)?;
    Ok((a.into(), b.into()))
}

/// What was found without taking it.
enum Seen {
    /// The far side has ended, and there is nothing any more.
    End,
    /// So many bytes, and nothing with them.
    Bytes(usize),
    Descriptors,
}

impl Wary {
    /// This end of a [`pair`]. What is not let go of at once is, by `closer`.
    pub(super) fn new(socket: OwnedFd, closer: Closer) -> Wary {
        Wary { socket: Some(socket.into()), closer }
    }

    fn socket(&self) -> io::Result<&UnixStream> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// To wait for what comes.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(UnixStream::as_fd)
    }

    /// Takes bytes, without waiting; none at the end.
    ///
    /// # Errors
    /// There are none now, or descriptors come with them: then the socket is of no use any more.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut socket = self.socket()?;
        match look(socket, bytes)? {
            Seen::End => Ok(0),
            // No more than was looked at.
            Seen::Bytes(n) => socket.read(bytes.get_mut(..n).unwrap_or_default()),
            Seen::Descriptors => Err(io::Error::other(DESCRIPTORS)),
        }
    }

    /// Sends as many bytes as there is room for now.
    ///
    /// # Errors
    /// There is none, or the far side has ended.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(self.socket()?.as_fd(), bytes)
    }
}

/// The far side sees the end at once.
impl Drop for Wary {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        let shut = socket.shutdown(Shutdown::Both).is_ok();
        // From then on nothing comes: what has come is there.
        if !shut || !matches!(look(&socket, &mut [0; 1]), Ok(Seen::End)) {
            self.closer.give(socket);
        }
    }
}

/// Looks at what comes next, without taking it.
fn look(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<Seen> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let mut pieces = [io::IoSliceMut::new(bytes)];
    // With no room for descriptors none are received; that there are some is told.
    let seen = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, None, flags)?;
    Ok(match seen.bytes {
        _ if seen.flags.contains(MsgFlags::MSG_CTRUNC) => Seen::Descriptors,
        0 => Seen::End,
        n => Seen::Bytes(n),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{IoSlice, Write};
    use std::time::{Duration, Instant};

    use nix::sys::socket::{ControlMessage, sendmsg};

    use super::*;

    /// A socket whose last close takes ten seconds: its peer takes nothing of what was sent.
    pub(in super::super) struct Slow {
        _peer: std::net::TcpStream,
        slow: Option<std::net::TcpStream>,
    }

    impl Slow {
        pub(in super::super) fn new() -> Slow {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_peer, _) = listener.accept().unwrap();
            slow.set_nonblocking(true).unwrap();
            while slow.write(&[0; 1 << 16]).is_ok() {}
            slow.set_nonblocking(false).unwrap();
            let linger = nix::libc::linger { l_onoff: 1, l_linger: 10 };
            setsockopt(&slow, nix::sys::socket::sockopt::Linger, &linger).unwrap();
            Slow { _peer, slow: Some(slow) }
        }

        /// Sends it with these bytes: who reads on, or closes that socket, has the last of it.
        pub(in super::super) fn send(&mut self, over: BorrowedFd<'_>, bytes: &[u8], flags: MsgFlags) {
            let slow = self.slow.take().unwrap();
            let rights = [slow.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&rights)];
            sendmsg::<()>(over.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None).unwrap();
        }
    }

    /// What `work` takes is far less than closing would.
    pub(in super::super) fn at_once<T>(work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        done
    }

    #[test]
    fn bytes_pass_and_the_end_is_seen() {
        let (a, b) = pair().unwrap();
        let closer = Closer::default();
        let (a, b) = (Wary::new(a, closer.clone()), Wary::new(b, closer.clone()));
        let mut bytes = [0; 8];
        assert_eq!(a.receive(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        b.send(b"some").unwrap();
        b.send(b"more of it").unwrap();
        assert_eq!((a.receive(&mut bytes).unwrap(), &bytes), (8, b"somemore"));
        assert_eq!((a.receive(&mut bytes).unwrap(), &bytes[..6]), (6, &b" of it"[..]));
        // Whoever still has the other end, it is told.
        let copy = b.socket.as_ref().unwrap().try_clone().unwrap();
        drop(b);
        assert_eq!(a.receive(&mut bytes).unwrap(), 0);
        assert!(a.send(b"x").is_err());
        drop((a, copy));
        assert_eq!(closer.pending(), 0, "nothing was left");
    }

    /// Neither reading nor letting go waits for what a descriptor does when it is closed, however it was sent.
    #[test]
    fn descriptors_are_closed_where_nobody_waits() {
        for (flags, before) in [
            (MsgFlags::empty(), &b""[..]),
            (MsgFlags::empty(), b"a"),
            (MsgFlags::MSG_OOB, b""),
            (MsgFlags::MSG_OOB, b"a"),
        ] {
            for reads in [0, 1, 3] {
                let (ours, theirs) = pair().unwrap();
                let closer = Closer::default();
                let ours = Wary::new(ours, closer.clone());
                if !before.is_empty() {
                    UnixStream::from(theirs.try_clone().unwrap()).write_all(before).unwrap();
                }
                let mut slow = Slow::new();
                slow.send(theirs.as_fd(), b"x", flags);
                let mut heard = Vec::new();
                at_once(|| {
                    heard.extend((0..reads).map(|_| ours.receive(&mut [0; 8])));
                    drop(ours);
                });
                let refused =
                    |heard: &io::Result<usize>| matches!(heard, Err(e) if e.to_string() == DESCRIPTORS);
                assert!(reads < 3 || heard.iter().any(refused), "{heard:?}");
                assert!(closer.pending() > 0, "it is being closed: {flags:?} {reads}");
            }
        }
    }
}
