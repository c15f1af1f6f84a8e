//! Child processes that never outlive us.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, Signal};

/// Makes the kernel kill the command's process when the thread that starts it dies, gives it no blocked signals,
/// and leaves these descriptors open in it under their own numbers.
pub fn tie<'a>(command: &'a mut Command, inherit: &[OwnedFd]) -> &'a mut Command {
    let raw: Vec<_> = inherit.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: between fork and exec only system calls that are async-signal-safe are made (prctl,
    // sigprocmask, fcntl on descriptors that the caller keeps open); nothing allocates or locks.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            SigSet::empty().thread_set_mask()?;
            for fd in &raw {
                let fd = std::os::fd::BorrowedFd::borrow_raw(*fd);
                fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            Ok(())
        })
    }
}

/// A child process: killed and waited for when dropped, and killed by the kernel when we die first.
pub struct Owned {
    child: Child,
}

impl Owned {
    /// Starts the command. The descriptors in `inherit` stay open in it under their own numbers.
    ///
    /// The death signal is tied to the calling *thread*: call it from one that lives as long as the child.
    pub fn spawn(command: &mut Command, inherit: &[OwnedFd]) -> Result<Self> {
        // An own group, so that Ctrl-C reaches us alone and we end the children in order.
        tie(command.process_group(0), inherit);
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Self { child })
    }

    /// The process, for its pipes.
    pub fn inner(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end at most this long.
    pub fn wait_for(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end (SIGTERM), and insists (SIGKILL) after `grace`.
    pub fn stop(&mut self, grace: Duration) {
        if self.ended().is_none() {
            let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
            let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
            self.wait_for(grace);
        }
        self.kill();
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn dropped_children_are_gone() {
        let child = Owned::spawn(Command::new("sleep").arg("1000"), &[]).unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        assert!(nix::sys::signal::kill(pid, None).is_ok());
        drop(child);
        assert!(nix::sys::signal::kill(pid, None).is_err());
    }

    #[test]
    fn stop_insists() {
        // What is ignored stays so over exec, and no second process is there that a kill would leave behind.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo deaf; exec sleep 1000"]).stdout(Stdio::piped());
        let mut child = Owned::spawn(&mut command, &[]).unwrap();
        let mut line = String::new();
        BufReader::new(child.inner().stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "deaf\n");
        child.stop(Duration::from_millis(200));
        assert_eq!(child.ended().and_then(|status| status.signal()), Some(Signal::SIGKILL as i32));
    }
}
