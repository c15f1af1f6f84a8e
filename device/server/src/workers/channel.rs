//! What the supervisor tells a worker: notes with descriptors, over a socket that keeps them apart.
//!
//! A worker can say nothing over it; that it ends is seen at the socket's end.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, sendmsg, shutdown, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::socket;

/// Longer than any note: a path has 4096 bytes, and JSON needs up to six for one.
const LONGEST: usize = 32 << 10;
/// How long a worker may take to make room for a note.
const PATIENCE: Duration = Duration::from_secs(5);

/// A note to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "lowercase")]
pub(super) enum Note {
    /// What the worker is. With it comes the topology's text, and the socket of who looks at clients' mappings, if there is one.
    Setup {
        /// The host that it serves; `None`: all switches.
        host: Option<String>,
        /// What the topology's file is called.
        file: String,
        /// The key of the built-in subnet manager, if it has one.
        m_key: Option<u64>,
        /// When model time began, in nanoseconds of `CLOCK_MONOTONIC`.
        began_ns: u64,
    },
    /// The listening socket of an adapter, in the order of the topology.
    Listener {
        /// Where it listens, for messages: the worker does not look for it.
        path: String,
    },
    /// A link to another worker: its memory, and this end of its bell. One of the same number before is gone.
    Link {
        /// Its number in the topology.
        number: u16,
        /// Which end is here: 0 or 1.
        here: u8,
    },
    /// A connection of the control socket.
    Control,
    /// All is said: serve.
    Serve,
}

/// The supervisor's end.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

/// The worker's end.
#[derive(Debug)]
pub(super) struct Inbox(OwnedFd);

/// A channel's two ends.
///
/// # Errors
/// The system gives none.
pub(super) fn channel() -> anyhow::Result<(Channel, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .context("socketpair")?;
    // What a worker sent would be closed here, unread, and closing descriptors can take as long as it likes.
    shutdown(ours.as_raw_fd(), Shutdown::Read).context("shutdown")?;
    Ok((Channel(ours), theirs))
}

impl Channel {
    /// Sends a note. Waits for a while if the worker has not taken the ones before.
    ///
    /// # Errors
    /// The worker is gone, or takes no notes.
    pub(super) fn send(&self, note: &Note, with: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        self.send_within(note, with, PATIENCE)
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// The worker is gone, or has not taken the notes before.
    pub(super) fn send_now(&self, note: &Note, with: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        self.send_within(note, with, Duration::ZERO)
    }

    fn send_within(&self, note: &Note, with: &[BorrowedFd<'_>], patience: Duration) -> anyhow::Result<()> {
        let text = serde_json::to_vec(note)?;
        let fds: Vec<RawFd> = with.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[] } else { &rights[..] };
        let until = Instant::now() + patience;
        loop {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(&text)], rights, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        bail!("it takes no notes");
                    }
                    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                    let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)], timeout);
                }
                Err(e) => return Err(e).context("it is gone"),
            }
        }
    }

    /// To wait for the worker's end, which is a hang-up.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A note, and the descriptors that came with it.
pub(super) type Delivery = (Note, Vec<OwnedFd>);

impl Inbox {
    /// The worker's end of a channel.
    pub(super) fn new(fd: OwnedFd) -> Inbox {
        Inbox(fd)
    }

    /// The socket, for `poll`.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The next note; `None`: there is none now, if it may not `wait` for one.
    ///
    /// # Errors
    /// The supervisor is gone, or says what is no note.
    pub(super) fn receive(&self, wait: bool) -> anyhow::Result<Option<Delivery>> {
        let (mut text, mut fds) = ([0; LONGEST], Vec::new());
        let len = loop {
            match socket::receive(self.0.as_fd(), &mut text, &mut fds) {
                Ok((0, _)) => bail!("the supervisor has ended"),
                Ok((len, _)) => break len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && !wait => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("the supervisor's channel"),
            }
        };
        let note = serde_json::from_slice(text.get(..len).unwrap_or_default()).context("a note")?;
        Ok(Some((note, fds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_one_by_one_with_their_descriptors() {
        let (channel, inbox) = channel().unwrap();
        let inbox = Inbox::new(inbox);
        assert!(inbox.receive(false).unwrap().is_none());
        let notes = [
            Note::Setup { host: Some("a".into()), file: "f".into(), m_key: Some(u64::MAX), began_ns: 5 },
            Note::Listener { path: "/x/y".into() },
            Note::Link { number: 7, here: 1 },
            Note::Control,
            Note::Serve,
        ];
        let null = std::fs::File::open("/dev/null").unwrap();
        for (i, note) in notes.iter().enumerate() {
            channel.send(note, &vec![null.as_fd(); i % 3]).unwrap();
        }
        for (i, note) in notes.iter().enumerate() {
            let (got, fds) = inbox.receive(true).unwrap().unwrap();
            assert_eq!((&got, fds.len()), (note, i % 3));
        }
        drop(channel);
        assert!(inbox.receive(false).unwrap_err().to_string().contains("ended"));
    }

    #[test]
    fn a_worker_that_takes_no_notes_is_not_waited_for() {
        let (channel, _inbox) = channel().unwrap();
        let full = (0..1_000_000).find_map(|_| channel.send_now(&Note::Serve, &[]).err());
        assert_eq!(full.unwrap().to_string(), "it takes no notes");
    }

    #[test]
    fn a_worker_that_is_gone_is_noticed() {
        let (channel, inbox) = channel().unwrap();
        let ended = |channel: &Channel| {
            poll(&mut [PollFd::new(channel.as_fd(), PollFlags::empty())], PollTimeout::ZERO).unwrap() > 0
        };
        channel.send(&Note::Serve, &[]).unwrap();
        assert!(!ended(&channel));
        drop(inbox);
        assert!(ended(&channel));
        assert!(channel.send(&Note::Serve, &[]).is_err());
    }

    /// Nothing that it sends is there to be dropped here.
    #[test]
    fn a_worker_can_say_nothing() {
        let (channel, inbox) = channel().unwrap();
        let send =
            || sendmsg::<()>(inbox.as_raw_fd(), &[IoSlice::new(b"x")], &[], MsgFlags::MSG_NOSIGNAL, None);
        assert_eq!(send(), Err(Errno::EPIPE));
        channel.send(&Note::Serve, &[]).unwrap();
        assert_eq!(Inbox::new(inbox).receive(false).unwrap().unwrap().0, Note::Serve);
    }
}
