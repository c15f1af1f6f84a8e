//! Memory without a descriptor: what a front end has to be able to do with it.

use std::fmt;
use std::time::Instant;

use nix::errno::Errno;
use thiserror::Error;

/// Memory that the host gives no descriptor of: each access is a question to it, which is answered later.
///
/// Questions reach the host in their order. Each is answered once, in any order, within a bounded time: what the host does
/// not answer is answered by a [`RemoteError`].
pub trait RemoteMemory: fmt::Debug + Send + Sync {
    /// Asks for `len` bytes from address `iova` on. The answer bears `ticket`, which no other question has.
    ///
    /// # Errors
    /// A [`RemoteError`]; there will be no answer.
    fn read(&self, ticket: u64, iova: u64, len: usize) -> Result<(), RemoteError>;

    /// Sends `data` to address `iova`. The answer bears `ticket`.
    ///
    /// # Errors
    /// A [`RemoteError`]; there will be no answer.
    fn write(&self, ticket: u64, iova: u64, data: &[u8]) -> Result<(), RemoteError>;

    /// The next answer that is there.
    fn next_answer(&self) -> Option<RemoteAnswer>;

    /// When a question will be given up; `None`: none is open.
    fn deadline(&self) -> Option<Instant>;

    /// Memory that the host had handed over with a descriptor was not there when it was accessed: the host is to be
    /// detached. It has no memory from now on.
    fn memory_lost(&self);
}

/// Memory that is asked by messages and answers while one waits, because time stands still meanwhile: that of a host whose time is
/// the model's. Accesses reach it in their order.
pub trait StandingMemory: fmt::Debug + Send + Sync {
    /// Reads from address `iova` on.
    ///
    /// # Errors
    /// A [`RemoteError`]; the bytes are undefined then.
    fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), RemoteError>;

    /// Sends `data` to address `iova`.
    ///
    /// # Errors
    /// A [`RemoteError`]; a part may have been sent.
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), RemoteError>;
}

/// An answer of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAnswer {
    /// That of the question.
    pub ticket: u64,
    /// The bytes that were read; of a write, none. If it failed, a part may have been written.
    pub result: Result<Vec<u8>, RemoteError>,
}

/// Why the host did not perform an access to its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The connection is gone or failing, or the host has no such memory.
    #[error("connection lost")]
    Lost,
    /// The host didn't answer in time (now, or too often before).
    #[error("no answer from the client")]
    TimedOut,
    /// The host answered with an error.
    #[error("client refused: {0}")]
    Refused(Errno),
    /// The host's answer doesn't fit the request.
    #[error("malformed answer")]
    Malformed,
}
