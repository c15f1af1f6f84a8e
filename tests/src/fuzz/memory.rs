//! The guest memory of the fuzzed adapter, and where what lies in it.

use hca_model::{DmaError, GuestMemory};
use std::sync::{Mutex, PoisonError};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The command queue.
pub const COMMANDS: u64 = 0;
/// Input mailboxes.
pub const INPUT: u64 = 0x1000;
/// Output mailboxes.
pub const OUTPUT: u64 = 0x9000;
/// Distance between mailboxes.
pub const MAILBOX: u64 = 0x400;
/// The event queue.
pub const EQ: u64 = 0x11000;
/// The completion queue.
pub const CQ: u64 = 0x12000;
/// Doorbell records, 64 bytes apart.
pub const RECORDS: u64 = 0x13000;
/// Two pages for queues that a fuzzer creates.
pub const SPARE: u64 = 0x14000;
/// Data that the memory keys name.
pub const DATA: u64 = 0x60000;
/// Bytes of data.
pub const DATA_LEN: u64 = 0x20000;
/// Bytes of memory.
pub const SIZE: usize = 0x80000;
/// Where the pages of the firmware lie. It never touches them, so there is nothing behind them.
pub const FIRMWARE_PAGES: u64 = 0x1_0000_0000;
/// Bytes of that.
pub const FIRMWARE_SIZE: u64 = 1 << 32;

/// Doorbell record `i`.
pub const fn record(i: usize) -> u64 {
    RECORDS + i as u64 * 64
}

/// Buffer of shared receive queue `i`.
pub const fn srq(i: usize) -> u64 {
    0x16000 + i as u64 * PAGE
}

/// Buffer of queue pair `i`: two pages.
pub const fn qp(i: usize) -> u64 {
    0x20000 + i as u64 * 2 * PAGE
}

/// Guest memory from address 0 on.
pub struct Ram(Mutex<Vec<u8>>);

impl Default for Ram {
    fn default() -> Self {
        Self(Mutex::new(vec![0; SIZE]))
    }
}

fn range(iova: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(iova).ok()?;
    let end = start.checked_add(len)?;
    (end <= SIZE).then_some(start..end)
}

impl Ram {
    fn bytes(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what lies inside the memory.
    pub fn put(&self, at: u64, data: &[u8]) {
        let mut bytes = self.bytes();
        let Some(room) = usize::try_from(at).ok().and_then(|at| bytes.get_mut(at..)) else { return };
        let n = data.len().min(room.len());
        room[..n].copy_from_slice(&data[..n]);
    }

    /// Reads `len` bytes, zeros outside the memory.
    pub fn take(&self, at: u64, len: usize) -> Vec<u8> {
        let bytes = self.bytes();
        range(at, len).and_then(|r| bytes.get(r)).map_or_else(|| vec![0; len], <[u8]>::to_vec)
    }

    /// A copy of everything.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes().clone()
    }
}

impl GuestMemory for Ram {
    fn reaches(&self, iova: u64, len: usize) -> bool {
        let firmware = FIRMWARE_PAGES..FIRMWARE_PAGES + FIRMWARE_SIZE;
        range(iova, len).is_some() || firmware.contains(&iova)
    }

    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: buf.len() };
        let bytes = self.bytes();
        buf.copy_from_slice(range(iova, buf.len()).and_then(|r| bytes.get(r)).ok_or(error)?);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: data.len() };
        let mut bytes = self.bytes();
        range(iova, data.len()).and_then(|r| bytes.get_mut(r)).ok_or(error)?.copy_from_slice(data);
        Ok(())
    }
}
