//! What this process may still do once everything is open: serve, and nothing else.
//!
//! A guest, its QEMU or a peer that finds a fault in this program gets a process that can compute, use the descriptors it
//! has, and leave. In the order in which [`Sandbox::enter`] does it:
//!
//! | what | how |
//! |---|---|
//! | files that are made are their owner's | umask 077 |
//! | no core, no file grows where none is written, a worker's descriptors | `limits` |
//! | no rights, none by another program either | [`privileges`]: `no_new_privs`, all five sets of capabilities empty |
//! | no file is opened, changed or made; sockets of the run directory are removed at the end | `landlock` |
//! | no call of the system but those that serving needs | `seccomp` |
//!
//! Landlock and capabilities belong to threads, and threads inherit what their maker has. So the sandbox is entered while
//! there is one thread, and refuses to be entered otherwise. The filter is set for all threads all the same.
//!
//! What is asked of a client's process is asked by another process, which can do just that: `maps`.
//!
//! Not done here: namespaces and a root directory of its own, which need rights that a user doesn't have. A unit file of
//! systemd gives them (`packaging/systemd`).

mod calls;
pub mod descriptors;
mod landlock;
mod limits;
pub(crate) mod maps;
pub mod privileges;
mod seccomp;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use nix::sys::prctl;
use nix::sys::stat::{Mode, umask};

pub use self::landlock::Paths;
pub use self::maps::Helper;

/// What a process is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves hosts, and links to other processes: listens, accepts, removes its sockets at the end.
    Server,
    /// Serves the hosts that connect to a socket it was given. It knows no path at all.
    Worker,
    /// Starts workers, by executing this program again, and joins them. It serves no host. What it may do its workers
    /// may until they enter the sandbox themselves, so that is what a program needs to start.
    Supervisor,
}

/// What a process may do from [`Sandbox::enter`] on.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// What it is there for.
    pub role: Role,
    /// Folders whose sockets it may remove. A worker has none.
    pub remove: Vec<PathBuf>,
    /// Files and folders that it may read; only a supervisor can, for its workers.
    pub read: Vec<PathBuf>,
    /// It writes files that it has open: traces, captures.
    pub outputs: bool,
    /// Descriptors that it may have at most; `None`: as many as whoever started it allowed.
    pub descriptors: Option<u64>,
    /// Connections that it begins. A worker and a supervisor have none.
    pub connects: Connects,
}

/// Where a process may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connects {
    /// To Unix sockets: those that their files let it.
    pub unix: bool,
    /// To these TCP ports, of any machine.
    pub ports: Vec<u16>,
}

/// What a sandbox has become, by the kernel's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Achieved {
    /// `Seccomp` of `/proc/self/status`: 2 with a filter.
    pub seccomp: u32,
    /// `NoNewPrivs` of `/proc/self/status`.
    pub no_new_privs: bool,
    /// All sets of `/proc/self/status` together: inherited, permitted, effective, bounding, ambient.
    pub capabilities: u64,
    /// The same without the bounding set, which only root can empty. It is of no use without new privileges.
    pub held: u64,
    /// What the kernel has of landlock.
    pub paths: Paths,
}

impl Sandbox {
    /// Enters it, for good. To be called when everything is open, while this process has one thread, before the first
    /// client is served.
    ///
    /// # Errors
    /// There are several threads, or the kernel has no filters: nothing that was asked for is left out silently. Landlock
    /// alone is done as far as this kernel can, and [`Achieved::paths`] says how far.
    pub fn enter(&self) -> anyhow::Result<Achieved> {
        let threads = std::fs::read_dir("/proc/self/task").context("/proc/self/task")?.count();
        ensure!(
            threads == 1,
            "the sandbox is for one thread and those that it starts, and there are {threads}"
        );
        // Read when all is done: then nothing can be opened any more.
        let mut status = File::open("/proc/thread-self/status").context("/proc/thread-self/status")?;
        umask(Mode::from_bits_truncate(0o077));
        // A supervisor makes memory for its workers: rings, the topology's text. The limit is that of memfds, too.
        let makes_files = self.outputs || self.role == Role::Supervisor;
        limits::set(makes_files, self.descriptors).context("limits")?;
        prctl::set_no_new_privs().context("no_new_privs")?;
        privileges::drop_all()?;
        let paths = landlock::restrict(self).context("landlock")?;
        seccomp::filter(calls::list(self.role, &self.connects)?)?;
        let mut text = String::new();
        status.read_to_string(&mut text).context("/proc/thread-self/status")?;
        Achieved::read(&text, paths).context("/proc/thread-self/status: a line is missing")
    }
}

impl Achieved {
    /// Reads the text of `/proc/PID/status` (proc(5)).
    fn read(status: &str, paths: Paths) -> Option<Achieved> {
        let value = |name: &str| {
            let of_name = |line: &'_ str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            status.lines().find_map(of_name)
        };
        let set = |name| value(name).and_then(|hex| u64::from_str_radix(&hex, 16).ok());
        let held = set("CapInh")? | set("CapPrm")? | set("CapEff")? | set("CapAmb")?;
        Some(Achieved {
            seccomp: value("Seccomp")?.parse().ok()?,
            no_new_privs: value("NoNewPrivs")? == "1",
            capabilities: held | set("CapBnd")?,
            held,
            paths,
        })
    }
}

impl fmt::Display for Achieved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Achieved { seccomp, no_new_privs, capabilities: _, held, paths } = self;
        let word = |yes| if yes { "yes" } else { "NO" };
        let (filter, none) = (word(*seccomp == 2), word(*held == 0));
        let no_new_privs = word(*no_new_privs);
        write!(
            f,
            "system calls filtered: {filter}, no new privileges: {no_new_privs}, no capabilities: {none}, landlock: {paths}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_understood() {
        let text = "Name:\tsofthca\nNoNewPrivs:\t1\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
                    CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\n\
                    Seccomp:\t2\nSeccomp_filters:\t3\n";
        let achieved = Achieved::read(text, Paths::Full).unwrap();
        assert_eq!((achieved.seccomp, achieved.no_new_privs, achieved.held), (2, true, 0));
        assert_eq!(achieved.capabilities, 0x1ff_ffff_ffff);
        let shown = achieved.to_string();
        assert!(shown.contains("no capabilities: yes") && !shown.contains("NO"), "{shown}");
        assert_eq!(Achieved::read("Seccomp:\t2\n", Paths::Full), None);
        // Only the effective set has one.
        let held =
            Achieved::read(&text.replace("Eff:\t0000000000000000", "Eff:\t0000000000000001"), Paths::Full);
        assert!(held.unwrap().to_string().contains("no capabilities: NO"));
    }

    /// The threads of a test are several.
    #[test]
    fn several_threads_are_refused() {
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        let sandbox = Sandbox {
            role: Role::Worker,
            remove: Vec::new(),
            read: Vec::new(),
            outputs: false,
            descriptors: None,
            connects: Connects::default(),
        };
        let error = sandbox.enter().unwrap_err().to_string();
        assert!(error.contains("one thread"), "{error}");
        drop(go_on);
        let _ = other.join();
    }
}
