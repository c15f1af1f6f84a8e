//! What a client's process has mapped, for a process in a sandbox.
//!
//! `/proc/PID/maps` can be opened by who may trace that process, and landlock ends that. So a helper is started before the
//! sandbox is entered: a process with the same user that opens this one file, for the process at the other end of a
//! connection that it is handed, and hands it back. Started by root, it keeps the one right that takes (`CAP_SYS_PTRACE`). It reads nothing, and its filter lets it do little else. Processes that share
//! its socket share it: an answer goes to a socket that comes with the question.
//!
//! It ends when nobody has its socket any more.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, getsockopt, sendmsg, socketpair,
};
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork};

use super::{calls, limits, privileges, seccomp};
use crate::socket;

/// How long a question waits for its answer. The helper asks the kernel one thing.
const PATIENCE_MS: u16 = 1000;

/// Of this process, if it has one.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// The socket of a helper.
#[derive(Debug)]
pub struct Helper(OwnedFd);

impl Helper {
    /// Starts one, while this process has one thread.
    ///
    /// # Errors
    /// There are several threads, or the system gives no process.
    pub fn start() -> anyhow::Result<Helper> {
        let threads = std::fs::read_dir("/proc/self/task").context("/proc/self/task")?.count();
        ensure!(threads == 1, "a helper is started by a process with one thread, and there are {threads}");
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        // SAFETY: there is one thread: the child has no lock that another held, so it may do whatever this one may.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Parent { .. } => Ok(Helper(ours)),
            ForkResult::Child => {
                drop(ours);
                let _ = serve(&theirs);
                // SAFETY: always allowed. What this process has of its maker's is not dropped.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// The helper of another process, whose socket this one was given.
    pub fn inherited(socket: OwnedFd) -> Helper {
        Helper(socket)
    }

    /// Its socket, to be given to other processes.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// From now on this process asks it. The first one counts.
    pub fn install(self) {
        let _ = HELPER.set(self);
    }

    /// `/proc/PID/maps` of the process at the other end of `connection`.
    fn open(&self, connection: BorrowedFd<'_>) -> io::Result<File> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (answer, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        send(self.0.as_fd(), &[connection, theirs.as_fd()])?;
        drop(theirs);
        if poll(&mut [PollFd::new(answer.as_fd(), PollFlags::POLLIN)], PollTimeout::from(PATIENCE_MS))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut came = Vec::new();
        socket::receive(answer.as_fd(), &mut [0; 1], &mut came)?;
        came.pop().map(File::from).ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }
}

/// The text of the mappings of process `pid`, which is at the other end of `connection`.
///
/// # Errors
/// The process is another user's, or gone.
pub(crate) fn open(pid: i32, connection: BorrowedFd<'_>) -> io::Result<File> {
    match HELPER.get() {
        Some(helper) => helper.open(connection),
        None => of(pid),
    }
}

fn of(pid: i32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/maps"))
}

/// One byte, and descriptors.
fn send(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> nix::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&[0])], rights, flags, None).map(drop)
}

/// The helper's life.
fn serve(questions: &OwnedFd) -> anyhow::Result<()> {
    let _ = prctl::set_name(c"softhca-maps");
    let null = File::open("/dev/null").context("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    super::descriptors::close_inherited(&[questions.as_fd()]);
    // It has been closed: there is nothing to drop.
    std::mem::forget(null);
    limits::set(false, None)?;
    prctl::set_no_new_privs()?;
    privileges::keep_looking()?;
    seccomp::filter(calls::of_helper()?)?;
    loop {
        match poll(&mut [PollFd::new(questions.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
        }
        let mut came = Vec::new();
        match socket::receive(questions.as_fd(), &mut [0; 1], &mut came) {
            Ok((0, _)) => return Ok(()),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(e.into()),
        }
        if let [connection, answer] = &came[..] {
            let pid =
                getsockopt(connection, PeerCredentials).map(|peer| peer.pid()).ok().filter(|pid| *pid > 0);
            let maps = pid.and_then(|pid| of(pid).ok());
            let fds: Vec<_> = maps.iter().map(AsFd::as_fd).collect();
            let _ = send(answer.as_fd(), &fds);
        }
    }
}
