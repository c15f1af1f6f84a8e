//! Q counters: sets of counters that queue pairs count into.
//!
//! Source: PRM "ALLOC_Q_COUNTER", "QUERY_Q_COUNTER"; the names are those under which the mlx5 driver shows
//! them (`rdma statistic`).

use hca_spec::put_be32;

/// Offset of the first counter in QUERY_Q_COUNTER's output.
const FIRST: usize = 0x10;
/// Words of counters from there on.
const WORDS: usize = (QCounter::RoceSlowRestartTrans as usize - FIRST) / 4 + 1;

/// A counter; its number is its offset in QUERY_Q_COUNTER's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs, reason = "named as in the output")]
pub enum QCounter {
    RxWriteRequests = 0x10,
    RxReadRequests = 0x18,
    RxAtomicRequests = 0x20,
    /// Messages for which no receive was posted.
    OutOfBuffer = 0x30,
    /// Requests that arrived ahead of the one expected.
    OutOfSequence = 0x38,
    DuplicateRequest = 0x40,
    /// RNR NAKs received.
    RnrNakRetryErr = 0x48,
    /// NAKs "PSN sequence error" received.
    PacketSeqErr = 0x50,
    /// Responses from which followed that an earlier one was lost.
    ImpliedNakSeqErr = 0x58,
    LocalAckTimeoutErr = 0x60,
    RespLocalLengthError = 0x78,
    ReqLocalLengthError = 0x7c,
    RespLocalQpError = 0x80,
    LocalOperationError = 0x84,
    RespLocalProtection = 0x88,
    ReqLocalProtection = 0x8c,
    /// Completions in error of receives, flushed ones not counted.
    RespCqeError = 0x90,
    /// Completions in error of sends, flushed ones not counted.
    ReqCqeError = 0x94,
    ReqMwBinding = 0x98,
    ReqBadResponse = 0x9c,
    ReqRemoteInvalidRequest = 0xa0,
    RespRemoteInvalidRequest = 0xa4,
    ReqRemoteAccessErrors = 0xa8,
    RespRemoteAccessErrors = 0xac,
    ReqRemoteOperationErrors = 0xb0,
    ReqTransportRetriesExceeded = 0xb4,
    CqOverflow = 0xb8,
    RespCqeFlushError = 0xbc,
    ReqCqeFlushError = 0xc0,
    /// Requests sent again sooner than the queue pair's own timeout says.
    RoceAdpRetrans = 0xc8,
    /// Own timeouts of queue pairs that wait adaptively.
    RoceAdpRetransTo = 0xcc,
    /// Flows that were slowed down because they sent again.
    RoceSlowRestart = 0xd0,
    /// CNPs that they were slowed down as if by.
    RoceSlowRestartCnps = 0xd4,
    /// Of these flows, those that sent at the full rate before.
    RoceSlowRestartTrans = 0xd8,
}

impl QCounter {
    /// Every counter, in the order of the output.
    pub const ALL: [QCounter; 34] = [
        Self::RxWriteRequests,
        Self::RxReadRequests,
        Self::RxAtomicRequests,
        Self::OutOfBuffer,
        Self::OutOfSequence,
        Self::DuplicateRequest,
        Self::RnrNakRetryErr,
        Self::PacketSeqErr,
        Self::ImpliedNakSeqErr,
        Self::LocalAckTimeoutErr,
        Self::RespLocalLengthError,
        Self::ReqLocalLengthError,
        Self::RespLocalQpError,
        Self::LocalOperationError,
        Self::RespLocalProtection,
        Self::ReqLocalProtection,
        Self::RespCqeError,
        Self::ReqCqeError,
        Self::ReqMwBinding,
        Self::ReqBadResponse,
        Self::ReqRemoteInvalidRequest,
        Self::RespRemoteInvalidRequest,
        Self::ReqRemoteAccessErrors,
        Self::RespRemoteAccessErrors,
        Self::ReqRemoteOperationErrors,
        Self::ReqTransportRetriesExceeded,
        Self::CqOverflow,
        Self::RespCqeFlushError,
        Self::ReqCqeFlushError,
        Self::RoceAdpRetrans,
        Self::RoceAdpRetransTo,
        Self::RoceSlowRestart,
        Self::RoceSlowRestartCnps,
        Self::RoceSlowRestartTrans,
    ];
}

/// A set of counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterSet([u32; WORDS]);

impl Default for CounterSet {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl CounterSet {
    fn word(counter: QCounter) -> usize {
        (counter as usize - FIRST) / 4
    }

    /// Counts one; the counters wrap.
    pub fn count(&mut self, counter: QCounter) {
        if let Some(value) = self.0.get_mut(Self::word(counter)) {
            *value = value.wrapping_add(1);
        }
    }

    /// A counter's value.
    pub fn get(&self, counter: QCounter) -> u32 {
        self.0.get(Self::word(counter)).copied().unwrap_or(0)
    }

    /// Puts the counters into QUERY_Q_COUNTER's output.
    pub(crate) fn report(&self, output: &mut [u8]) {
        for (i, value) in self.0.iter().enumerate() {
            put_be32(output, FIRST + i * 4, *value);
        }
    }
}
