//! The attacker's memory, in a file that the server maps too. Where what lies in it is what the fuzzers of the model have
//! ([`crate::fuzz::memory`]).

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use crate::fuzz::memory::{FIRMWARE_SIZE, SIZE};
use crate::raw::memfd;

/// Memory from address 0 on, and pages for the firmware, which it never touches.
#[derive(Debug)]
pub struct Memory {
    near: File,
    firmware: File,
}

impl Default for Memory {
    fn default() -> Self {
        Self { near: memfd(SIZE as u64), firmware: memfd(FIRMWARE_SIZE) }
    }
}

impl Memory {
    /// The descriptors of the memory from address 0 on, and of the firmware's pages.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.near.as_raw_fd(), self.firmware.as_raw_fd()]
    }

    /// Writes what lies inside the memory.
    pub fn put(&self, at: u64, data: &[u8]) {
        let room = (SIZE as u64).saturating_sub(at);
        let len = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.near.write_all_at(&data[..len], at).expect("a memory file can be written");
    }

    /// Reads `len` bytes; zeros outside the memory.
    pub fn take(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let room = (SIZE as u64).saturating_sub(at);
        let inside = len.min(usize::try_from(room).unwrap_or(usize::MAX));
        if inside > 0 {
            self.near.read_exact_at(&mut bytes[..inside], at).expect("a memory file can be read");
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_there_is_nothing() {
        let memory = Memory::default();
        let end = SIZE as u64;
        memory.put(end - 2, &[1, 2, 3]);
        memory.put(u64::MAX, &[1]);
        assert_eq!(memory.take(end - 3, 5), [0, 1, 2, 0, 0]);
        assert_eq!(memory.take(u64::MAX, 2), [0, 0]);
    }
}
