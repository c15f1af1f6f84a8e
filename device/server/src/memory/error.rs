//! Why memory can't be mapped, and why an access to it failed.

use nix::errno::Errno;
use thiserror::Error;

use super::RemoteError;

/// Why windows can't be mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// The window overlaps another.
    #[error("overlaps another window")]
    Overlap,
    /// There are [`MAX_WINDOWS`](super::MAX_WINDOWS) already, or the host's [`Limits`](super::Limits) are used up.
    #[error("too many windows, or more memory than this host's share")]
    TooMany,
    /// The window is empty, goes beyond 2^64, or is larger than its file.
    #[error("does not fit its address space or file")]
    Misfit,
    /// A window lies partly inside the range.
    #[error("a window lies partly inside")]
    Partial,
    /// The file is private to the host: DMA would go to a copy that nobody sees.
    #[error("memory is not shared")]
    NotShared,
    /// The descriptor is of something else than memory.
    #[error("not a file of memory: it has to be a memfd, or lie on tmpfs or hugetlbfs")]
    NotMemory,
    /// Memory that the host had handed over was not there when it was accessed.
    #[error("the host has taken memory away that is mapped")]
    Lost,
    /// The system refused.
    #[error("{0}")]
    System(Errno),
}

/// Why an access of the device to guest memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// Bus master is off in the command register, or the function is not in D0.
    #[error("bus mastering is disabled")]
    BusMasterOff,
    /// No window covers this address.
    #[error("address {0:#x} is not mapped")]
    Unmapped(u64),
    /// The window forbids this kind of access.
    #[error("address {0:#x} does not allow this access")]
    Forbidden(u64),
    /// The host has taken memory away that is mapped: it has none any more.
    #[error("the host has taken memory away that is mapped")]
    Lost,
    /// The host didn't perform the access.
    #[error("memory without a descriptor: {0}")]
    Remote(RemoteError),
    /// The host has to be asked, the answer comes later ([`hca_model::DeferredReads::ask`]).
    #[error("address {0:#x} is in memory without a descriptor: it has to be asked for")]
    Deferred(u64),
}
