//! What happens to who tries it, in the sandbox of each role and outside.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use hca_server::sandbox::{Connects, Paths, Role, Sandbox};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::Tests;
use crate::attempts::{ALLOWED, Attempt, FORBIDDEN};
use crate::scene::Scene;

pub(crate) const TESTS: Tests = &[
    ("forbidden::what_a_server_tries", || nothing_is_possible("server")),
    ("forbidden::what_a_worker_tries", || nothing_is_possible("worker")),
    ("forbidden::what_a_server_that_connects_tries", || nothing_is_possible("caller")),
    ("forbidden::what_a_server_does_is_possible", what_a_server_does_is_possible),
    ("forbidden::a_supervisor_starts_itself_only", a_supervisor_starts_itself_only),
];

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It was possible.
    Done,
    /// The system has said no.
    Refused(Errno),
    /// The system has ended the process for it.
    Killed,
    /// The kernel has no landlock, on which it depends.
    Unknown,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Done => f.write_str("done"),
            End::Refused(errno) => write!(f, "{errno}"),
            End::Killed => f.write_str("killed"),
            End::Unknown => f.write_str("unknown"),
        }
    }
}

/// Exit codes of an attempt; errors are their numbers.
const NO_LANDLOCK: u8 = 254;
const TOO_LARGE: u8 = 253;

/// The process that tries.
pub(crate) fn attempt(name: &str, role: &str, dir: &Path) -> ExitCode {
    let all = FORBIDDEN.iter().chain(ALLOWED);
    let attempt: Attempt = all.into_iter().find(|(of, _)| *of == name).expect("an attempt").1;
    let scene = Scene::new(dir);
    // It connects to Unix sockets, and to a port that is not the scene's.
    let connects = match role {
        "caller" => Connects { unix: true, ports: vec![scene.address.port() ^ 1] },
        _ => Connects::default(),
    };
    let needs_landlock =
        role == "supervisor" || name == "remove elsewhere" || role == "caller" && name == "connect";
    let role = match role {
        "server" | "caller" => Some(Role::Server),
        "worker" => Some(Role::Worker),
        "supervisor" => Some(Role::Supervisor),
        _ => None,
    };
    if let Some(role) = role {
        let (remove, read) = (vec![scene.run.clone()], Vec::new());
        let achieved = Sandbox { role, remove, read, outputs: false, descriptors: None, connects }
            .enter()
            .expect("the sandbox");
        assert_eq!((achieved.seccomp, achieved.no_new_privs, achieved.held), (2, true, 0));
        if achieved.paths != Paths::Full && needs_landlock {
            return ExitCode::from(NO_LANDLOCK);
        }
    }
    match attempt(&scene) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => ExitCode::from(e.raw_os_error().and_then(|e| u8::try_from(e).ok()).unwrap_or(TOO_LARGE)),
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let dir = std::env::temp_dir().join(format!("softhca-try-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn end(name: &str, role: &str) -> End {
    let dir = Folder::new(&format!("{role}-{name}"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--attempt", name, role]).arg(&dir.0).stdin(Stdio::null());
    let ended = command.output().unwrap();
    match (ended.status.code(), ended.status.signal()) {
        (Some(0), _) => End::Done,
        (Some(101), _) => panic!("{name} as {role}: {}", String::from_utf8_lossy(&ended.stderr)),
        (Some(code), _) if code == i32::from(NO_LANDLOCK) => End::Unknown,
        (Some(code), _) => End::Refused(Errno::from_raw(code)),
        (None, signal) if signal == Some(Signal::SIGSYS as i32) => End::Killed,
        (None, signal) => panic!("{name} as {role}: ended by signal {signal:?}"),
    }
}

/// What does not end the process: the call is refused, by the filter or by landlock.
fn refusal(name: &str, role: &str) -> Option<Errno> {
    match name {
        "read /etc/passwd"
        | "read in the run directory"
        | "write in the run directory"
        | "write elsewhere"
        | "list a folder" => Some(Errno::EACCES),
        "new process by clone3" => Some(Errno::ENOSYS),
        // Servers remove their sockets; elsewhere landlock is in the way.
        "remove elsewhere" if role != "worker" => Some(Errno::EACCES),
        // To that port it may not.
        "connect" if role == "caller" => Some(Errno::EACCES),
        _ => None,
    }
}

fn nothing_is_possible(role: &str) {
    assert!(FORBIDDEN.len() >= 60);
    let mut wrong = Vec::new();
    for (name, _) in FORBIDDEN {
        let expected = refusal(name, role).map_or(End::Killed, End::Refused);
        let inside = end(name, role);
        if inside == End::Unknown {
            println!("  {name}: skipped, this kernel has not all of landlock");
            continue;
        }
        if inside != expected {
            wrong.push(format!("{name}: {inside:?} in the sandbox, {expected:?} expected"));
        }
        let outside = end(name, "nobody");
        if outside == inside {
            wrong.push(format!("{name}: {outside:?} without the sandbox, too"));
        }
    }
    assert!(wrong.is_empty(), "as {role}:\n{}", wrong.join("\n"));
}

fn what_a_server_does_is_possible() {
    for (name, _) in ALLOWED {
        assert_eq!(end(name, "server"), End::Done, "{name}");
    }
    // A worker has no path.
    for (name, _) in ALLOWED.iter().filter(|(name, _)| *name != "remove in the run directory") {
        assert_eq!(end(name, "worker"), End::Done, "{name}");
    }
    assert_eq!(end("remove in the run directory", "worker"), End::Killed);
}

/// Here landlock is the only wall: the filter lets a supervisor open and execute.
fn a_supervisor_starts_itself_only() {
    for (name, expected) in [
        ("read /etc/passwd", End::Refused(Errno::EACCES)),
        ("write in the run directory", End::Refused(Errno::EACCES)),
        ("write elsewhere", End::Refused(Errno::EACCES)),
        ("remove elsewhere", End::Refused(Errno::EACCES)),
        ("execute", End::Refused(Errno::EACCES)),
        ("signal another process", End::Refused(Errno::EPERM)),
        ("internet socket", End::Killed),
        ("connect", End::Killed),
        ("trace", End::Killed),
        ("mount", End::Killed),
        ("unshare", End::Killed),
        ("bpf", End::Killed),
        ("fork", End::Done),
        ("thread", End::Done),
        ("remove in the run directory", End::Done),
    ] {
        match end(name, "supervisor") {
            End::Unknown => println!("  {name}: skipped, this kernel has not all of landlock"),
            seen => assert_eq!(seen, expected, "{name}"),
        }
    }
}
