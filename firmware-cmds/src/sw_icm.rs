//! Memory that drivers write entries of flow tables, and lists of changes, into themselves (ICM of software steering). Memory
//! keys name it, and flow tables read it.
//!
//! Pages of it take memory when they are first written.
//!
//! Source: mlx5 driver (`core/lib/dm.c`) and mlx5dv (field use); the public manual does not have it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_spec::caps::DeviceMemory;

/// log2 of the bytes of a page, which is the least that is allocated.
const LOG_PAGE: u32 = 12;
const PAGE: usize = 1 << LOG_PAGE;
/// Pages that a function can have written at most: 64 MiB, the largest piece that a domain of mlx5dv asks for.
const MOST_PAGES: usize = 1 << 14;

type Pages = BTreeMap<u64, Box<[u8; PAGE]>>;

/// The memory of a function.
#[derive(Debug, Default)]
pub struct SwIcm {
    /// Where entries may lie; empty if there is no such memory.
    entries: Range<u64>,
    /// Where lists of changes may lie.
    lists: Range<u64>,
    /// Where patterns of such lists may lie, which no entry names.
    patterns: Range<u64>,
    /// End of each piece, by its begin.
    pieces: BTreeMap<u64, u64>,
    /// Pages that were written, by the number of their first byte in pages.
    pages: Mutex<Pages>,
}

impl SwIcm {
    /// What such capabilities promise, with no piece.
    pub(crate) fn new(capabilities: &DeviceMemory) -> Self {
        let range = |start: u64, log: u32| match log {
            0 => 0..0,
            log => start..start.saturating_add(1u64.checked_shl(log).unwrap_or(0)),
        };
        Self {
            entries: range(
                capabilities.get(DeviceMemory::STEERING_SW_ICM_START_ADDRESS),
                capabilities.get(DeviceMemory::LOG_STEERING_SW_ICM_SIZE),
            ),
            lists: range(
                capabilities.get(DeviceMemory::HEADER_MODIFY_SW_ICM_START_ADDRESS),
                capabilities.get(DeviceMemory::LOG_HEADER_MODIFY_SW_ICM_SIZE),
            ),
            patterns: range(
                capabilities.get(DeviceMemory::HEADER_MODIFY_PATTERN_SW_ICM_START_ADDRESS),
                capabilities.get(DeviceMemory::LOG_HEADER_MODIFY_PATTERN_SW_ICM_SIZE),
            ),
            ..Self::default()
        }
    }

    /// Whether an address is one of entries.
    #[inline]
    pub(crate) fn is_entry(&self, address: u64) -> bool {
        self.entries.contains(&address)
    }

    /// Where lists of changes begin.
    pub(crate) fn lists(&self) -> u64 {
        self.lists.start
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether 2^`log` bytes at an address can be a piece: whole pages of one of the three ranges.
    pub(crate) fn is_range(&self, start: u64, log: u32) -> bool {
        let Some(end) = 1u64.checked_shl(log).and_then(|len| start.checked_add(len)) else { return false };
        let within = |range: &Range<u64>| !range.is_empty() && range.start <= start && end <= range.end;
        log >= LOG_PAGE
            && start.is_multiple_of(PAGE as u64)
            && [&self.entries, &self.lists, &self.patterns].into_iter().any(within)
    }

    /// Makes a piece of zeros. Returns false if another one has a part of it.
    pub(crate) fn allocate(&mut self, start: u64, log: u32) -> bool {
        let end = start.saturating_add(1u64.checked_shl(log).unwrap_or(0));
        if self.pieces.range(..end).next_back().is_some_and(|(_, other)| *other > start) {
            return false;
        }
        self.pieces.insert(start, end);
        true
    }

    /// Frees the piece that begins there: at most [`MOST_PAGES`] pages go.
    pub(crate) fn free(&mut self, start: u64) {
        let Some(end) = self.pieces.remove(&start) else { return };
        let mut pages = self.pages();
        let mut behind = pages.split_off(&(start >> LOG_PAGE));
        pages.append(&mut behind.split_off(&(end >> LOG_PAGE)));
    }

    /// Whether a range lies in one piece.
    pub fn has(&self, at: u64, len: u64) -> bool {
        let piece = self.pieces.range(..=at).next_back();
        piece.zip(at.checked_add(len)).is_some_and(|((_, end), last)| last <= *end)
    }

    /// Reads bytes. Returns whether they lie in one piece; if not, `buf` is as it was.
    #[must_use]
    pub fn read(&self, at: u64, buf: &mut [u8]) -> bool {
        if !self.has(at, buf.len() as u64) {
            return false;
        }
        let pages = self.pages();
        let mut at = at;
        let mut rest = buf;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut(rest.len().min(left_in_page(at)));
            let from =
                pages.get(&(at >> LOG_PAGE)).and_then(|page| page.get(within_page(at)..)?.get(..now.len()));
            match from {
                Some(from) => now.copy_from_slice(from),
                None => now.fill(0),
            }
            at = at.saturating_add(now.len() as u64);
            rest = later;
        }
        true
    }

    /// Writes bytes. Returns whether they lie in one piece, and there is memory for them; if not, a part may be written.
    #[must_use]
    pub fn write(&self, at: u64, data: &[u8]) -> bool {
        if !self.has(at, data.len() as u64) {
            return false;
        }
        let mut pages = self.pages();
        let mut at = at;
        let mut rest = data;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(left_in_page(at)));
            let number = at >> LOG_PAGE;
            if pages.len() >= MOST_PAGES && !pages.contains_key(&number) {
                return false;
            }
            let page = pages.entry(number).or_insert_with(|| Box::new([0; PAGE]));
            if let Some(to) = page.get_mut(within_page(at)..).and_then(|page| page.get_mut(..now.len())) {
                to.copy_from_slice(now);
            }
            at = at.saturating_add(now.len() as u64);
            rest = later;
        }
        true
    }
}

fn within_page(at: u64) -> usize {
    at as usize % PAGE
}

fn left_in_page(at: u64) -> usize {
    PAGE - within_page(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x10_0000_0000;
    const LISTS: u64 = 0x20_0000_0000;

    fn memory() -> SwIcm {
        let mut caps = DeviceMemory::new();
        caps.set(DeviceMemory::STEERING_SW_ICM_START_ADDRESS, START)
            .set(DeviceMemory::LOG_STEERING_SW_ICM_SIZE, 28);
        caps.set(DeviceMemory::HEADER_MODIFY_SW_ICM_START_ADDRESS, LISTS)
            .set(DeviceMemory::LOG_HEADER_MODIFY_SW_ICM_SIZE, 22);
        SwIcm::new(&caps)
    }

    #[test]
    fn pieces_lie_side_by_side() {
        let mut m = memory();
        assert!(!SwIcm::default().is_range(0, 12), "there is none");
        assert!(m.is_range(START, 28) && m.is_range(LISTS, 22) && m.is_range(START + 0x1000, 12));
        for (start, log) in [
            (START, 29),
            (START, 11),
            (START + 64, 12),
            (START - 0x1000, 12),
            (LISTS + 0x1000, 22),
            (0, 12),
            (START, 64),
            (u64::MAX << 12, 12),
        ] {
            assert!(!m.is_range(start, log), "{start:#x} {log}");
        }
        assert!(m.allocate(START + 0x1000, 13));
        for start in [START, START + 0x1000, START + 0x2000] {
            assert!(!m.allocate(start, 13), "{start:#x}");
        }
        assert!(m.allocate(START + 0x3000, 12) && m.allocate(START, 12));
    }

    #[test]
    fn what_was_written_is_there() {
        let mut m = memory();
        assert!(m.allocate(START, 14));
        let mut found = [9; 8];
        assert!(m.read(START + 0x1ffc, &mut found) && found == [0; 8], "nobody wrote there");
        assert!(m.write(START + 0x0ffe, &[1, 2, 3, 4]), "over the end of a page");
        assert!(m.read(START + 0x0ffc, &mut found));
        assert_eq!(found, [0, 0, 1, 2, 3, 4, 0, 0]);
        assert!(!m.write(START + 0x3fff, &[1, 2]) && !m.read(START + 0x4000, &mut found), "beyond its end");
        assert!(!m.read(u64::MAX, &mut found));
        m.free(START);
        assert!(!m.read(START, &mut found));
        assert!(m.allocate(START, 14) && m.read(START + 0xffc, &mut found) && found == [0; 8]);
    }

    #[test]
    fn memory_has_an_end() {
        let mut m = memory();
        assert!(m.allocate(START, 28));
        let written = (0..1u64 << 16).take_while(|page| m.write(START + (page << 12), &[1])).count();
        assert_eq!(written, MOST_PAGES);
        assert!(m.write(START, &[2]), "what has memory keeps it");
        m.free(START);
        assert!(m.allocate(START, 28) && m.write(START, &[1]));
    }
}
