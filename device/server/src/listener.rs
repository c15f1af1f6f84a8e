//! A Unix socket that is ours: replaced if stale, refused if served by another, removed at the end.
//!
//! Only its owner (and root) can connect, whatever the umask is.
//!
//! A connection that can't be had, because the system is short of memory or of descriptors, stays in the queue, where it would wake whoever
//! waits for it for ever. So for a moment a timer is waited for instead.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::libc::{EMFILE, ENFILE};
use nix::sys::socket::sockopt::OobInline;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::log::Source;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long nobody is accepted when that has failed.
const REST: Duration = Duration::from_millis(100);

/// A listening socket with its file.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// `None`: another process made it, and will remove it.
    _file: Option<File>,
    /// Kept to be closed for a moment when there are no descriptors left: who connects is told so, and does not stay in the
    /// queue, where they would wake the engine for ever.
    spare: RefCell<Option<UnixListener>>,
    /// Nobody is accepted before.
    rests_until: Cell<Option<Instant>>,
    /// Readable when that is over. There from the beginning, since there may be no descriptors when it is needed.
    timer: TimerFd,
    log: Source,
}

impl Listener {
    /// Listens at `path`. A socket nobody serves any more is replaced.
    ///
    /// # Errors
    /// If another process serves the socket, if the file is something else, or if the system
    /// refuses; the message names the path.
    pub fn bind(path: &Path) -> anyhow::Result<Listener> {
        let shown = path.display();
        if is_socket(path)? {
            match UnixStream::connect(path) {
                Ok(_) => bail!("{shown}: another server is listening there"),
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    tracing::info!("{shown}: stale socket replaced");
                    std::fs::remove_file(path)
                        .with_context(|| format!("{shown}: stale socket can't be removed"))?;
                }
                Err(e) => bail!("{shown}: exists, and its server can't be reached: {e}"),
            }
        }
        let socket = private_socket(path).with_context(|| format!("{shown}: can't listen there"))?;
        let file = Some(File::at(path));
        Listener::of(socket, path.to_path_buf(), file).context("a descriptor")
    }

    /// One that another process has made, and will remove.
    ///
    /// # Errors
    /// It can't be made non-blocking, or there are no descriptors left.
    pub(crate) fn inherit(socket: OwnedFd, path: PathBuf) -> anyhow::Result<Listener> {
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        Listener::of(socket, path, None)
    }

    fn of(socket: UnixListener, path: PathBuf, file: Option<File>) -> anyhow::Result<Listener> {
        let spare = RefCell::new(Some(socket.try_clone()?));
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let rests_until = Cell::new(None);
        Ok(Listener { socket, path, _file: file, spare, rests_until, timer, log: Source::default() })
    }

    /// The next connection, or `None` if there is none now.
    pub fn accept(&self) -> Option<UnixStream> {
        if self.rests_until.get().is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.rests_until.set(None);
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    // What is sent out of band is read past otherwise, and the kernel closes descriptors that came with it in the reader's thread.
                    let inline = setsockopt(&stream, OobInline, &true);
                    debug_assert_eq!(inline, Ok(()));
                    return Some(stream);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.log.say(|| tracing::warn!("{}: accept: {e}", self.path.display()));
                    let taken = matches!(e.raw_os_error(), Some(EMFILE | ENFILE)) && {
                        drop(self.spare.take());
                        // It is closed at once.
                        let taken = self.socket.accept().is_ok();
                        self.spare.replace(self.socket.try_clone().ok());
                        taken
                    };
                    if !taken {
                        self.rest(REST);
                    }
                    return None;
                }
            }
        }
    }

    /// Accepts nobody for a while.
    fn rest(&self, time: Duration) {
        // The timer first: when it is over, so is the pause.
        let until = Instant::now() + time;
        let set = Expiration::OneShot(TimeSpec::from_duration(time));
        if self.timer.set(set, TimerSetTimeFlags::empty()).is_ok() {
            self.rests_until.set(Some(until));
        }
    }

    /// What to wait for with `poll`, until it is readable, before the next [`accept`](Listener::accept).
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self.rests_until.get() {
            Some(_) => self.timer.as_fd(),
            None => self.socket.as_fd(),
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The file of a socket that this process has made, removed at the end.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    /// Device and inode; another file at the path is not ours to remove.
    identity: Option<(u64, u64)>,
}

impl File {
    /// The one that was just made there.
    pub(crate) fn at(path: &Path) -> File {
        File { path: path.to_path_buf(), identity: identity(path) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether there is a socket at `path`; false: nothing is.
///
/// # Errors
/// There is something else; the message names the path.
pub(crate) fn is_socket(path: &Path) -> anyhow::Result<bool> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => bail!("{shown}: exists and is not a socket"),
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => bail!("{shown}: {e}"),
    }
}

/// A listening socket whose file is its owner's only.
fn private_socket(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let ours = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file gets the mode that the socket has before it is bound: there is no moment when others may connect.
    fchmod(&ours, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(ours.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&ours, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(ours))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("softhca-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn stale_sockets_are_replaced_and_live_ones_respected() {
        let dir = scratch("listener");
        let path = dir.join("s");
        let first = Listener::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = Listener::bind(&path).unwrap_err().to_string();
        assert!(error.contains("another server"), "{error}");
        // A crash leaves the file behind.
        drop(UnixListener::bind(dir.join("stale")).unwrap());
        let second = Listener::bind(&dir.join("stale")).unwrap();
        assert!(UnixStream::connect(second.path()).is_ok());
        drop((first, second));
        assert!(!path.exists() && !dir.join("stale").exists());
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A byte out of band comes with the others, and its descriptors with it: the kernel closes none behind the reader's back.
    #[test]
    fn nothing_comes_out_of_band() {
        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
        let dir = scratch("band");
        let listener = Listener::bind(&dir.join("s")).unwrap();
        let peer = UnixStream::connect(listener.path()).unwrap();
        let descriptor = nix::sys::eventfd::EventFd::new().unwrap();
        let rights = [descriptor.as_fd().as_raw_fd()];
        for (byte, with, flags) in [
            (b"a", &[][..], MsgFlags::empty()),
            (b"b", &[ControlMessage::ScmRights(&rights)][..], MsgFlags::MSG_OOB),
            (b"c", &[][..], MsgFlags::empty()),
        ] {
            sendmsg::<()>(peer.as_raw_fd(), &[io::IoSlice::new(byte)], with, flags, None).unwrap();
        }
        let stream = std::iter::repeat_with(|| listener.accept()).flatten().next().unwrap();
        let (mut got, mut fds) = (Vec::new(), Vec::new());
        while !got.ends_with(b"c") {
            let mut bytes = [0; 8];
            let (n, _) = crate::socket::receive(stream.as_fd(), &mut bytes, &mut fds).unwrap();
            got.extend_from_slice(&bytes[..n]);
        }
        assert_eq!((&got[..], fds.len()), (&b"abc"[..], 1));
        drop(listener);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// While it rests a connection that waits wakes nobody; afterwards it is taken.
    #[test]
    fn a_listener_that_rests_is_not_ready() {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let dir = scratch("rests");
        let listener = Listener::bind(&dir.join("s")).unwrap();
        let _client = UnixStream::connect(listener.path()).unwrap();
        let ready = |timeout: PollTimeout| {
            poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], timeout).unwrap() == 1
        };
        assert!(ready(PollTimeout::ZERO));
        listener.rest(Duration::from_secs(600));
        assert!(!ready(PollTimeout::ZERO) && listener.accept().is_none());
        listener.rest(Duration::from_millis(1));
        assert!(ready(PollTimeout::NONE));
        assert!(listener.accept().is_some() && !ready(PollTimeout::ZERO));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let dir = scratch("other");
        let path = dir.join("file");
        std::fs::write(&path, "x").unwrap();
        let error = Listener::bind(&path).unwrap_err().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert!(path.exists());
        // A file that takes the place of our socket is not removed with it.
        let ours = dir.join("ours");
        let listener = Listener::bind(&ours).unwrap();
        std::fs::remove_file(&ours).unwrap();
        std::fs::write(&ours, "y").unwrap();
        drop(listener);
        assert!(ours.exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
