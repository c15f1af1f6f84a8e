//! Limits of resources (setrlimit(2)).
//!
//! Not the number of processes: the system counts those of the user, on whatever they are busy, and refuses threads with the
//! same limit. Processes are made by calls that the filter refuses.
//!
//! Not addresses or memory: windows of guests' memory take as many addresses as guests have memory, and more of the heap than there may be would
//! end the process by a failed allocation, with all its guests, where quotas refuse what one guest asks for. A cgroup is the bound of a server.

use std::os::fd::AsFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{SFlag, fstat};

/// No memory image is written, there are no more than so many `descriptors`, and, without `outputs`, no file grows.
///
/// # Errors
/// The system refuses.
pub(super) fn set(outputs: bool, descriptors: Option<u64>) -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    if let Some(descriptors) = descriptors {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let most = most.min(descriptors);
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    }
    // Messages may go to a file, too, and the signal that a longer one costs ends the process.
    if !outputs && !is_file(std::io::stdout()) && !is_file(std::io::stderr()) {
        setrlimit(Resource::RLIMIT_FSIZE, 0, 0)?;
    }
    Ok(())
}

fn is_file(fd: impl AsFd) -> bool {
    let kind = |mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
    fstat(fd.as_fd()).is_ok_and(|stat| kind(stat.st_mode) == SFlag::S_IFREG)
}
