//! Pages that the host gave, and what they are used for: the accounting of ICM.
//!
//! Source: PRM "Host pages supply", QUERY_PAGES, MANAGE_PAGES, "Page Request event".

use std::collections::BTreeSet;

/// Pages the firmware boots with.
const BOOT: u32 = 32;
/// Pages it needs to initialize.
const INIT: u32 = 64;
/// When fewer pages than this are unused, more are asked for.
const LOW_WATER: u32 = 32;
/// How many are asked for at a time.
const CHUNK: u32 = 128;
/// More are neither asked for nor taken at a time: a command's host time has a bound, some milliseconds.
pub(crate) const MOST_AT_ONCE: u32 = 1 << 14;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes that are used while the host has still to give pages for them, at most.
const MOST_LENT: u64 = 1 << 28;

/// The pool of pages.
#[derive(Debug)]
pub(crate) struct Pages {
    /// More are not taken.
    most: u32,
    given: BTreeSet<u64>,
    /// Bytes of ICM in use.
    used: u64,
    /// Pages that were asked for and have not come.
    asked: u32,
    /// The host said that it can't give more. Holds until a command was refused for it.
    refused: bool,
}

/// Why pages are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// This page was given before, or twice.
    Twice(u64),
    /// More than the firmware can use, or takes at a time.
    TooMany,
}

impl Pages {
    /// None yet, and never more than `most`.
    pub(crate) fn new(most: u32) -> Self {
        Self { most, given: BTreeSet::new(), used: 0, asked: 0, refused: false }
    }

    /// Pages wanted before the firmware can boot.
    pub(crate) fn boot(&self) -> u32 {
        BOOT.saturating_sub(self.given())
    }

    /// Pages wanted before INIT_HCA.
    pub(crate) fn init(&self) -> u32 {
        (BOOT + INIT).saturating_sub(self.given())
    }

    /// Pages wanted in regular operation: those that were asked for and have not come.
    pub(crate) fn regular(&self) -> u32 {
        self.asked
    }

    pub(crate) fn given(&self) -> u32 {
        self.given.len() as u32
    }

    /// The pages that the host has given and not got back, by their addresses.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        self.given.iter().copied()
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.div_ceil(PAGE) as u32
    }

    fn unused(&self) -> u32 {
        self.given().saturating_sub(self.used())
    }

    /// Whether so many pages may be given at once.
    pub(crate) fn takes(&self, count: usize) -> bool {
        count <= MOST_AT_ONCE as usize && self.given.len().saturating_add(count) <= self.most as usize
    }

    /// Takes `count` pages, or none of them.
    pub(crate) fn give(&mut self, count: usize, pages: impl Iterator<Item = u64>) -> Result<(), NotTaken> {
        if !self.takes(count) {
            return Err(NotTaken::TooMany);
        }
        let mut new = BTreeSet::new();
        for page in pages {
            if self.given.contains(&page) || !new.insert(page) {
                return Err(NotTaken::Twice(page));
            }
        }
        // One by one: `append` builds the whole set anew, however few come.
        self.given.extend(new);
        self.asked = self.asked.saturating_sub(count as u32);
        self.refused &= count == 0;
        Ok(())
    }

    pub(crate) fn cant_give(&mut self) {
        self.asked = 0;
        self.refused = true;
    }

    /// Gives back up to `n` pages that are not in use.
    pub(crate) fn take(&mut self, n: u32) -> Vec<u64> {
        (0..n.min(self.unused()).min(MOST_AT_ONCE)).filter_map(|_| self.given.pop_last()).collect()
    }

    /// Whether `bytes` more fit into what was given.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes).div_ceil(PAGE) <= u64::from(self.given())
    }

    /// The pages in use are now those of `bytes`.
    pub(crate) fn account(&mut self, bytes: u64) {
        self.used = bytes;
    }

    /// How many pages to ask the host for now, if any. The caller asks.
    pub(crate) fn want(&mut self) -> Option<u32> {
        let low = self.unused() < LOW_WATER && self.asked == 0 && !self.refused;
        low.then(|| self.ask(self.missing(0).saturating_add(LOW_WATER))).flatten()
    }

    /// Asks again, because a command waits.
    pub(crate) fn ask_for(&mut self, bytes: u64) -> Option<u32> {
        if self.asked > 0 || self.refused {
            return None;
        }
        self.ask(self.missing(bytes))
    }

    /// Asks for that many, or some more at once; for none that would not be taken.
    fn ask(&mut self, pages: u32) -> Option<u32> {
        self.asked = CHUNK.max(pages).min(MOST_AT_ONCE).min(self.most.saturating_sub(self.given()));
        (self.asked > 0).then_some(self.asked)
    }

    /// Pages that the host has not given of those that hold `bytes` more.
    fn missing(&self, bytes: u64) -> u32 {
        let needed = self.used.saturating_add(bytes).div_ceil(PAGE);
        needed.saturating_sub(self.given().into()).min(self.most.into()) as u32
    }

    /// Whether `bytes` more may be used before the host has given pages for them. A work request can't wait
    /// for pages as commands do, so the adapter lends some, unless the host refused to give any.
    pub(crate) fn can_lend(&self, bytes: u64) -> bool {
        let lent = u64::from(self.missing(bytes)) * PAGE;
        self.has_room(bytes) || (!self.refused && lent <= MOST_LENT && !self.is_beyond(bytes))
    }

    /// Nobody listens to requests: what was asked for will not come.
    pub(crate) fn forget_request(&mut self) {
        self.asked = 0;
    }

    /// Whether `bytes` more would be too much however many pages the host gives.
    pub(crate) fn is_beyond(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes).div_ceil(PAGE) > u64::from(self.most)
    }

    /// Whether the host refused to give pages. Asking it again is right the next time.
    pub(crate) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1 << 19;

    #[test]
    fn life_of_a_pool() {
        let mut p = Pages::new(MOST);
        assert_eq!((p.boot(), p.init()), (BOOT, BOOT + INIT));
        p.give(BOOT as usize, (0..BOOT as u64).map(|i| i << 12)).unwrap();
        p.give(INIT as usize, (0..INIT as u64).map(|i| (1 << 20) + (i << 12))).unwrap();
        assert_eq!((p.boot(), p.init()), (0, 0));
        p.account(50 * PAGE);
        assert_eq!(p.want(), None);
        p.account(81 * PAGE);
        assert_eq!(p.want(), Some(CHUNK), "below the low water mark");
        assert_eq!(p.want(), None, "already asked");
        assert_eq!(p.take(10_000).len() as u32, BOOT + INIT - 81, "pages in use stay");
        p.account(0);
        assert_eq!(p.take(10_000).len(), 81);
    }

    #[test]
    fn a_refusal_is_told_once_and_then_asked_again() {
        let mut p = Pages::new(MOST);
        assert_eq!(p.ask_for(3 * PAGE), Some(CHUNK));
        assert_eq!((p.ask_for(3 * PAGE), p.regular()), (None, CHUNK), "one question at a time");
        p.cant_give();
        assert_eq!((p.want(), p.take_refusal(), p.take_refusal()), (None, true, false));
        assert_eq!(p.ask_for(1000 * PAGE), Some(1000), "what is needed, if that is more");
        p.give(1000, (0..1000u64).map(|i| i << 12)).unwrap();
        assert!(p.has_room(1000 * PAGE) && !p.has_room(1000 * PAGE + 1));
        assert!(!p.has_room(u64::MAX) && p.is_beyond(u64::MAX));
    }

    #[test]
    fn pages_are_lent_until_they_come() {
        let mut p = Pages::new(MOST);
        assert!(p.can_lend(MOST_LENT) && !p.can_lend(MOST_LENT + 1));
        p.account(1000 * PAGE);
        assert_eq!(p.want(), Some(1000 + LOW_WATER), "what was lent, and some more");
        assert!(p.can_lend(PAGE));
        p.cant_give();
        assert!(!p.can_lend(PAGE), "not to one who does not give");
        p.give(1001, (0..1001u64).map(|i| i << 12)).unwrap();
        p.cant_give();
        assert!(p.can_lend(PAGE) && !p.can_lend(PAGE + 1), "what was given is there");
    }

    #[test]
    fn a_page_is_given_once() {
        let mut p = Pages::new(MOST);
        assert_eq!(p.give(2, [0x1000, 0x1000].into_iter()), Err(NotTaken::Twice(0x1000)));
        p.give(1, [0x1000].into_iter()).unwrap();
        assert_eq!(p.give(2, [0x2000, 0x1000].into_iter()), Err(NotTaken::Twice(0x1000)));
        assert_eq!(p.given(), 1, "all or none");
        assert_eq!(p.give(MOST as usize, std::iter::empty()), Err(NotTaken::TooMany));
    }
}
