//! Paths and ports (landlock(7)): the second wall, for calls that the filter lets through.
//!
//! A filter sees numbers and no paths. Removing a file is allowed to a server, and here only in its run directory. A
//! supervisor may start this program and read what that needs.

use std::fmt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};

use super::{Role, Sandbox};

/// What this was tested with. What an older kernel does not know is left out.
const TESTED: ABI = ABI::V7;

/// What a program needs to start: itself, the loader and libraries, and what the C library and this program look at.
const LIBRARIES: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"];
const LOOKED_AT: [&str; 5] =
    ["/etc/ld.so.cache", "/proc", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom"];

/// How far paths and ports are restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// All that was asked for.
    Full,
    /// What this kernel knows of it.
    Part,
    /// The kernel has no landlock, or was started without it.
    Missing,
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Paths::Full => "yes",
            Paths::Part => "what this kernel knows of it",
            Paths::Missing => "NO, this kernel has none",
        })
    }
}

/// Restricts this thread and those that it starts.
///
/// # Errors
/// The kernel has landlock and refuses.
pub(super) fn restrict(sandbox: &Sandbox) -> anyhow::Result<Paths> {
    let all = AccessFs::from_all(TESTED);
    let look = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let load = look | AccessFs::Execute;
    let (mut start, mut see): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    if sandbox.role == Role::Supervisor {
        start.push(std::env::current_exe()?);
        start.extend(LIBRARIES.map(PathBuf::from));
        see.extend(LOOKED_AT.map(PathBuf::from));
        see.extend(sandbox.read.iter().cloned());
    }
    let remove = match sandbox.role {
        Role::Worker => &[][..],
        Role::Server | Role::Supervisor => &sandbox.remove,
    };
    let write: &[&Path] = if start.is_empty() { &[] } else { &[Path::new("/dev/null")] };
    let ports = match sandbox.role {
        Role::Server => &sandbox.connects.ports[..],
        Role::Worker | Role::Supervisor => &[],
    };
    let ports = ports.iter().map(|port| Ok::<_, RulesetError>(NetPort::new(*port, AccessNet::ConnectTcp)));
    let rules = |paths: &[PathBuf], access: BitFlags<AccessFs>| path_beneath_rules(paths.to_vec(), access);
    let status = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::from_all(TESTED))?
        .scope(Scope::from_all(TESTED))?
        .create()?
        .add_rules(rules(&start, load))?
        .add_rules(rules(&see, look))?
        .add_rules(path_beneath_rules(write, AccessFs::WriteFile))?
        .add_rules(rules(remove, AccessFs::RemoveFile.into()))?
        .add_rules(ports)?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Paths::Full,
        RulesetStatus::PartiallyEnforced => Paths::Part,
        RulesetStatus::NotEnforced => Paths::Missing,
    })
}
