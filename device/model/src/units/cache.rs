//! On-chip caches of what lies in host memory. They hold no data: only what is there and what is not.

use crate::ground::epoch::Rebase;
use crate::ground::random::{SPREAD, mix};
use crate::ground::time::Ps;
use crate::ground::timing::Mark;

/// Places that a key can be in.
const WAYS: usize = 8;

/// A cache of so many entries, by key; within a set the one that was not used for the longest gives way.
#[derive(Clone, Debug)]
pub struct Cache {
    sets: usize,
    /// One more than the place of the keys of each set that was used; 0: it was not. Made at the first use.
    places: Vec<u32>,
    /// The keys of each set that was used plus one, the last used first; 0: empty. So what is not used takes next to no memory.
    keys: Vec<[u64; WAYS]>,
    /// One more than the key that was used last, which is the first of its set; 0: none was.
    last: u64,
    hits: u64,
    misses: u64,
}

impl Cache {
    /// A cache of about `entries` entries, at least one set.
    pub fn new(entries: u64) -> Self {
        let sets = usize::try_from(entries).unwrap_or(usize::MAX).div_ceil(WAYS).clamp(1, 1 << 20);
        Self { sets, places: Vec::new(), keys: Vec::new(), last: 0, hits: 0, misses: 0 }
    }

    /// Uses `key`. Returns whether it was there; it is there now.
    #[inline]
    pub fn touch(&mut self, key: u64) -> bool {
        let tag = key.wrapping_add(1);
        let again = tag == self.last && tag != 0;
        if again {
            self.hits += 1;
        }
        again || self.find(key)
    }

    /// Uses a key that was not the last used one.
    fn find(&mut self, key: u64) -> bool {
        let set = self.set(key);
        let tag = key.wrapping_add(1);
        self.last = tag;
        let place = match self.places.get(set) {
            Some(place @ 1..) => *place,
            _ => self.make(set),
        };
        let Some(ways) = self.keys.get_mut(place as usize - 1) else { return false };
        let found = ways.iter().position(|k| *k == tag);
        if found != Some(0) {
            ways.copy_within(..found.unwrap_or(WAYS - 1), 1);
            if let Some(first) = ways.first_mut() {
                *first = tag;
            }
        }
        match found {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        found.is_some()
    }

    /// A set is used for the first time. Returns one more than the place of its keys.
    #[cold]
    fn make(&mut self, set: usize) -> u32 {
        if self.places.is_empty() {
            self.places = vec![0; self.sets];
        }
        self.keys.push([0; WAYS]);
        // There are 2^20 sets at most.
        let made = self.keys.len() as u32;
        if let Some(place) = self.places.get_mut(set) {
            *place = made;
        }
        made
    }

    /// Whether `key` was used last.
    #[inline]
    pub fn used_last(&self, key: u64) -> bool {
        let tag = key.wrapping_add(1);
        tag == self.last && tag != 0
    }

    /// The key that was used last is used so often again.
    pub fn use_again(&mut self, times: u64) {
        self.hits += times;
    }

    /// Whether `key` is there; this is no use of it.
    pub fn holds(&self, key: u64) -> bool {
        let place = self.places.get(self.set(key)).and_then(|place| place.checked_sub(1));
        let ways = place.and_then(|place| self.keys.get(place as usize));
        ways.is_some_and(|ways| ways.contains(&key.wrapping_add(1)))
    }

    fn set(&self, key: u64) -> usize {
        ((u128::from(key.wrapping_mul(SPREAD)) * self.sets as u128) >> 64) as usize
    }

    /// Uses that found their key, and that did not.
    pub const fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

/// A cache of send WQEs, by basic block: in a set of so many ways what came first makes room. Which set is a hash of the
/// queue pair and the index, so that a few sets overflow early and a few late: near its capacity the cache loses more the
/// more there is, and all of it only far beyond.
///
/// A read needs its WQE once more when a unit comes to the response; by then it may be gone. The job is booked before that,
/// so what comes in between is not known yet: it is taken to be as much as came in the same time before, the same for all
/// sets.
#[derive(Clone, Debug)]
pub struct WqeCache {
    ways: u64,
    /// Basic blocks put into each set so far.
    sets: Vec<u64>,
    /// Basic blocks put in so far.
    filled: u64,
    /// Basic blocks that had been put in when each of the last pages of time began; the place of a page is its number
    /// modulo the length.
    pages: Vec<u64>,
    /// Number of the page of the last put.
    page: u64,
    hits: u64,
    misses: u64,
}

/// log2 of such a page in picoseconds: 65 ns.
const PAGE: u32 = 16;
/// Pages that are kept: 17 us, longer than work waits for a unit.
const PAGES: usize = 256;

impl WqeCache {
    /// A cache of about so many basic blocks of 64 bytes, in sets of `ways`.
    pub fn new(blocks: u64, ways: u64) -> Self {
        /// The most that sets take of memory.
        const MOST: u64 = 1 << 16;
        let ways = ways.clamp(1, blocks.max(1));
        let sets = ((blocks + ways / 2) / ways).clamp(1, MOST) as usize;
        Self { ways, sets: vec![0; sets], filled: 0, pages: vec![0; PAGES], page: 0, hits: 0, misses: 0 }
    }

    /// Puts in some basic blocks of queue pair `number`, from `index` on. Returns what the first is known by.
    pub fn put(&mut self, now: Ps, number: u32, index: u16, blocks: u16) -> Mark {
        self.turn_to(now);
        self.filled += u64::from(blocks);
        let mut mark = Mark { set: 0, at: 0 };
        for block in (0..blocks).rev() {
            let set = self.set(number, index.wrapping_add(block));
            if let Some(count) = self.sets.get_mut(set) {
                *count += 1;
                mark = Mark { set, at: *count };
            }
        }
        mark
    }

    /// How many basic blocks have been put in.
    pub const fn taken(&self) -> u64 {
        self.filled
    }

    /// The same for some that came when `came` had been put in, and were not counted then. All sets are taken to have had as
    /// many since.
    pub fn keep(&mut self, now: Ps, (number, index): (u32, u16), blocks: u16, came: u64) -> Mark {
        let since = self.filled.saturating_sub(came);
        let mark = self.put(now, number, index, blocks);
        let sets = self.sets.len() as u64;
        Mark { at: mark.at.saturating_sub((since + sets / 2) / sets), ..mark }
    }

    fn set(&self, number: u32, index: u16) -> usize {
        let z = mix((u64::from(number) << 16 | u64::from(index)).wrapping_mul(SPREAD));
        ((u128::from(z) * self.sets.len() as u128) >> 64) as usize
    }

    fn turn_to(&mut self, now: Ps) {
        let page = now.0 >> PAGE;
        let first = (self.page + 1).max(page.saturating_sub(PAGES as u64 - 1));
        for new in first..=page {
            if let Some(begin) = self.pages.get_mut(new as usize % PAGES) {
                *begin = self.filled;
            }
        }
        self.page = self.page.max(page);
    }

    /// Basic blocks that will be put in from now until `then`, if as many come as before.
    fn coming(&mut self, now: Ps, then: Ps) -> u64 {
        self.turn_to(now);
        let span = (then.since(now).0 >> PAGE).min(PAGES as u64 - 1).min(self.page);
        let past = self.pages.get((self.page - span) as usize % PAGES).copied().filter(|_| span > 0);
        self.filled.saturating_sub(past.unwrap_or(self.filled))
    }

    /// Whether they will not be there any more at `then`: this is a use only if so.
    pub fn lost(&mut self, mark: Mark, now: Ps, then: Ps) -> bool {
        let sets = self.sets.len() as u64;
        let since = self.sets.get(mark.set).map_or(0, |count| count.saturating_sub(mark.at));
        let lost = since * sets + self.coming(now, then) >= self.ways * sets;
        self.misses += u64::from(lost);
        lost
    }

    /// Whether they will still be there at `then`.
    pub fn holds(&mut self, mark: Mark, now: Ps, then: Ps) -> bool {
        let there = !self.lost(mark, now, then);
        self.hits += u64::from(there);
        there
    }

    /// Uses that found their WQE, and that did not.
    pub const fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

impl Rebase for WqeCache {
    fn rebase(&mut self, by: Ps) {
        self.turn_to(by);
        let Self { ways: _, sets: _, filled: _, pages, page, hits: _, misses: _ } = self;
        let by = by.0 >> PAGE;
        // Each page is so much earlier, and so is its place of the ring.
        pages.rotate_left((by % PAGES as u64) as usize);
        *page = page.saturating_sub(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;

    #[test]
    fn what_fits_stays() {
        let mut c = Cache::new(64);
        // Half full: hardly a set overflows.
        for round in 0..4 {
            let hits = (0..32).filter(|k| c.touch(*k)).count();
            assert!(if round == 0 { hits == 0 } else { hits >= 28 }, "round {round}: {hits}");
        }
        assert_eq!(c.counts().0 + c.counts().1, 128);
    }

    #[test]
    fn random_use_hits_in_proportion() {
        // Of 400 keys in random order a cache of 200 has about half.
        let mut c = Cache::new(200);
        let mut random = SplitMix64(1);
        let mut next = || random.below(400);
        (0..2000).for_each(|_| _ = c.touch(next()));
        let hits = (0..20_000).filter(|_| c.touch(next())).count();
        assert!((8_500..11_000).contains(&hits), "{hits}");
    }

    #[test]
    fn the_least_recently_used_gives_way() {
        let mut c = Cache::new(1);
        (0..8).for_each(|k| _ = c.touch(k));
        assert!(c.touch(0));
        assert!(!c.touch(8), "one too many");
        assert!(c.touch(0) && !c.touch(1));
    }

    #[test]
    fn wqes_leave_in_the_order_they_came() {
        let mut c = WqeCache::new(4, 4);
        let now = Ps::from_ns(100);
        let first = c.put(now, 1, 0, 1);
        let second = c.put(now, 1, 1, 3);
        assert!(c.holds(first, now, now) && c.holds(second, now, now));
        c.put(now, 2, 0, 1);
        assert!(!c.holds(first, now, now) && c.holds(second, now, now));
        assert_eq!(c.counts(), (3, 1));
    }

    #[test]
    fn a_cache_of_sets_overflows_by_and_by() {
        let now = Ps::from_ns(100);
        // Percent of WQEs that the cache of 400 still has when so many came after them.
        let kept = |ways: u64, after: usize| {
            let (mut c, mut marks) = (WqeCache::new(400, ways), Vec::new());
            for i in 0..20_000usize {
                marks.push(c.put(now, i as u32 % 50, (i / 50) as u16, 1));
                let old = i.checked_sub(after).and_then(|i| marks.get(i).copied());
                old.into_iter().for_each(|old| _ = c.holds(old, now, now));
            }
            let (hits, misses) = c.counts();
            hits * 100 / (hits + misses)
        };
        assert_eq!((kept(400, 399), kept(400, 400)), (100, 0), "a single set");
        let slope = [100, 300, 400, 500, 1000].map(|after| kept(8, after));
        assert!(slope[0] > 98 && slope[4] < 2, "{slope:?}");
        assert!((70..95).contains(&slope[1]) && (35..60).contains(&slope[2]), "{slope:?}");
        assert!((10..35).contains(&slope[3]), "{slope:?}");
    }

    #[test]
    fn what_waits_ages_as_fast_as_before() {
        let at = |us: u64| Ps::from_ns(1000 * us);
        let mut c = WqeCache::new(950, 950);
        // A hundred in a microsecond.
        let marks: Vec<Mark> = (1..=500).map(|i| c.put(Ps::from_ns(10 * i), 1, i as u16, 1)).collect();
        let (last, now) = (marks[499], at(5));
        assert!(c.holds(last, now, at(9)), "400 in 4 us");
        assert!(c.holds(marks[0], now, at(9)), "899 later");
        assert!(!c.holds(marks[0], now, at(11)), "999 at the latest");
        assert!(c.holds(last, at(50), at(70)), "nothing comes any more");
    }
}
