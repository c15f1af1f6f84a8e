//! A server that many share, booked in advance.

use std::ops::Range;

use crate::ground::epoch::{Rebase, UNIT};
use crate::ground::time::Ps;

/// Pages that a calendar reaches ahead: what is beyond waits for nobody. 2^20 pages of 16 ns are 17 ms.
const REACH: u64 = 1 << 20;

/// Pages of which one word says which are full.
const PAGES: u64 = u64::BITS as u64;

/// So many tails are kept as they are, before they are entered page by page: those of a stream of long reads are past by then.
const TAILS: usize = 4;

/// A server of one or more slots whose jobs are booked ahead, not always in the order of their times.
///
/// A PCIe link is given the completions of a read when the read is issued, some 400 ns ahead; what comes in the meantime
/// must find the time before them free. So the server keeps a calendar of short pages: each page holds as much work as
/// the slots can do in it. A job is booked into the first pages from its begin on that have room.
///
/// With one slot a job is done when its last page is full up to it. With several a job takes its whole service time from
/// where it found room. Both are exact but for the order within a page.
#[derive(Clone, Debug)]
pub struct Calendar {
    slots: u64,
    /// log2 of a page's length in picoseconds.
    page: u32,
    /// Number of the first page that counts: what is before it is past.
    first: u64,
    /// What is booked last: most jobs are put behind it, or into a page of their own behind it.
    tail: Tail,
    /// What was the tail before, in turn, and how many there were: what is not past belongs to the rings.
    old: [Tail; TAILS],
    old_count: usize,
    /// What is booked before the tail: a ring, a power of two of places once it is used, in which the pages from `first` on
    /// have theirs.
    booked: Vec<Page>,
    /// Which pages before the tail are full: a ring of the same kind, with a place for each 64 of them.
    filled: Vec<Filled>,
    /// Runs of full pages before the tail, so that a backlog is not walked again for each job: one from now on and one
    /// ahead, say.
    full: [Range<u64>; 2],
}

/// Pages that are full, and the one behind them, which is not. Nothing is booked behind that.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    /// The first that is full, if any is.
    from: u64,
    /// The one that is not.
    page: u64,
    /// Work booked in that one, in picoseconds.
    booked: u64,
}

/// A place of the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The page that had the place last. What it has booked counts for no other page.
    number: u64,
    /// Work booked in it, in picoseconds.
    booked: u64,
}

/// A place of the ring of full pages.
#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    /// Which 64 pages had the place last.
    number: u64,
    /// Bit n: page n of them is full, whatever else is said of it.
    bits: u64,
}

/// Jobs that were booked one behind the other by [`Calendar::admit_row`].
#[derive(Clone, Copy, Debug)]
pub struct Row {
    first: Ps,
    last: Ps,
    /// Up to here the calendar was full, in the pages in which they could begin.
    level: Ps,
    service: Ps,
}

impl Row {
    /// When job `i` is done. Nothing is known of when jobs can begin that are neither the first nor the last; it does not
    /// matter, as they wait for the first.
    #[inline]
    pub fn done(&self, i: u64) -> Ps {
        let start = if i == 0 { self.first } else { self.last };
        Ps(start.0.max(self.level.0 + self.service.0 * i) + self.service.0)
    }

    /// When each of so many as `ends` has room for is done.
    #[inline]
    pub fn write_to(&self, ends: &mut [Ps]) {
        let Some((first, others)) = ends.split_first_mut() else { return };
        *first = self.done(0);
        // Each of the others waits for the one before it.
        let (Ps(last), Ps(service)) = (self.last, self.service);
        let mut level = self.level.0 + service;
        if level < last {
            for end in others {
                *end = Ps(last.max(level) + service);
                level += service;
            }
        } else {
            for end in others {
                level += service;
                *end = Ps(level);
            }
        }
    }
}

/// How far a calendar is booked, kept beside it: jobs that begin behind all that is booked find the server idle.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    slots: u64,
    page: u32,
    /// The last page with work.
    last: u64,
}

impl Ahead {
    /// The begin of the page in which a job begins that can at `start`, if it is behind all that is booked.
    #[inline]
    pub fn begin(&self, start: Ps) -> Option<Ps> {
        let page = start.0 >> self.page;
        (page > self.last).then_some(Ps(page << self.page))
    }

    /// Such a job, of so much work, is booked.
    #[inline]
    pub fn put(&mut self, start: Ps, work: Ps) {
        self.last = (start.0 >> self.page) + self.filled(work);
    }

    /// Pages that a job fills.
    #[inline]
    fn filled(&self, work: Ps) -> u64 {
        let each = if self.slots == 1 { work.0 } else { work.0 / self.slots };
        each >> self.page
    }

    /// Whether a job that can begin `gap` after one of so much work, which was behind all others, is behind that.
    #[inline]
    pub fn has_room_for(&self, work: Ps, gap: Ps) -> bool {
        gap.0 >> self.page > self.filled(work)
    }
}

impl Calendar {
    /// How far it is booked.
    pub fn ahead(&self) -> Ahead {
        Ahead { slots: self.slots, page: self.page, last: self.tail.page }
    }

    /// A server of `slots` slots (at least one) with pages of 2^`page` ps, at most 2^16: 64 of them are what the start of time moves by.
    pub fn new(slots: u64, page: u32) -> Self {
        Self {
            slots: slots.max(1),
            page: page.min(UNIT - PAGES.ilog2()),
            first: 0,
            tail: Tail::default(),
            old: [Tail::default(); TAILS],
            old_count: 0,
            booked: Vec::new(),
            filled: Vec::new(),
            full: [0..0, 0..0],
        }
    }

    /// Work that a page has room for.
    #[inline]
    fn room(&self) -> u64 {
        self.slots << self.page
    }

    /// What is before `now` is past.
    #[inline]
    fn turn_to(&mut self, now: Ps) {
        self.first = self.first.max(now.0 >> self.page);
    }

    /// The work booked in a page before the tail.
    #[inline]
    fn at(&self, page: u64) -> u64 {
        if self.full_from(page) > 0 {
            return self.room();
        }
        let place = self.booked.get(page as usize & self.booked.len().wrapping_sub(1));
        place.filter(|place| place.number == page).map_or(0, |place| place.booked)
    }

    /// How many pages from `page` on are full, as far as the ring's place says.
    #[inline]
    fn full_from(&self, page: u64) -> u32 {
        let place = self.filled.get((page / PAGES) as usize & self.filled.len().wrapping_sub(1));
        place
            .filter(|place| place.number == page / PAGES)
            .map_or(0, |place| (place.bits >> (page % PAGES)).trailing_ones())
    }

    /// Pages before the tail are full.
    fn fill(&mut self, pages: Range<u64>) {
        if pages.end.saturating_sub(self.first) > self.booked.len() as u64 {
            self.grow(pages.end - 1);
        }
        let places = self.filled.len();
        let mut page = pages.start;
        while page < pages.end {
            let (number, begin) = (page / PAGES, page % PAGES);
            let count = (PAGES - begin).min(pages.end - page);
            if let Some(place) = self.filled.get_mut(number as usize & places.wrapping_sub(1)) {
                if place.number != number {
                    *place = Filled { number, bits: 0 };
                }
                place.bits |= u64::MAX >> (PAGES - count) << begin;
            }
            page += count;
        }
    }

    /// Books so much in a page before the tail.
    #[inline]
    fn set(&mut self, page: u64, booked: u64) {
        if page.saturating_sub(self.first) >= self.booked.len() as u64 {
            self.grow(page);
        }
        let places = self.booked.len();
        if let Some(place) = self.booked.get_mut(page as usize & places.wrapping_sub(1)) {
            *place = Page { number: page, booked };
        }
    }

    /// Makes room in the rings up to page `last`.
    #[cold]
    fn grow(&mut self, last: u64) {
        const LEAST: usize = 64;
        let places = (last.saturating_sub(self.first) as usize + 1).next_power_of_two().max(LEAST);
        let old = std::mem::replace(&mut self.booked, vec![Page::default(); places]);
        for page in old.into_iter().filter(|page| page.number >= self.first && page.booked > 0) {
            if let Some(place) = self.booked.get_mut(page.number as usize & (places - 1)) {
                *place = page;
            }
        }
        // So many pages may begin anywhere in their first 64.
        let places = places / PAGES as usize * 2;
        let old = std::mem::replace(&mut self.filled, vec![Filled::default(); places]);
        for filled in old.into_iter().filter(|filled| filled.number >= self.first / PAGES) {
            if let Some(place) = self.filled.get_mut(filled.number as usize & (places - 1)) {
                *place = filled;
            }
        }
    }

    /// The first page from `page` on that is not known to be full.
    #[inline]
    fn skip(&self, page: u64) -> u64 {
        let [a, b] = &self.full;
        let page = if a.contains(&page) { a.end } else { page };
        let page = if b.contains(&page) { b.end } else { page };
        page + u64::from(self.full_from(page))
    }

    /// These pages before the tail are full now.
    #[inline]
    fn note_full(&mut self, pages: Range<u64>) {
        let first = self.first;
        let [a, b] = &mut self.full;
        let worth = |run: &Range<u64>| run.end.saturating_sub(run.start.max(first));
        match () {
            () if pages.start == a.end => a.end = pages.end,
            () if pages.start == b.end => b.end = pages.end,
            () if worth(a) <= worth(b) => *a = pages,
            () => *b = pages,
        }
    }

    /// The tail begins anew with a page behind it.
    #[inline]
    fn begin_tail(&mut self, page: u64) {
        let old = std::mem::replace(&mut self.tail, Tail { from: page, page, booked: 0 });
        // Mostly it is past.
        if old.page >= self.first {
            self.put_off(old);
        }
    }

    /// Keeps what was the tail, to be entered when somebody looks at what is before the tail, if it is not past then.
    #[inline]
    fn put_off(&mut self, tail: Tail) {
        if let Some(place) = self.old.get_mut(self.old_count % TAILS) {
            let before = std::mem::replace(place, tail);
            self.old_count += 1;
            if before.page >= self.first {
                self.keep(before);
            }
        }
    }

    /// What was put off is entered.
    #[inline]
    fn enter_old(&mut self) {
        if self.old_count > 0 {
            self.enter_all();
        }
    }

    #[inline(never)]
    fn enter_all(&mut self) {
        let (mut old, count) = (std::mem::take(&mut self.old), std::mem::take(&mut self.old_count));
        // The oldest first.
        old.rotate_left(count % TAILS);
        for tail in old {
            if tail.page >= self.first {
                self.keep(tail);
            }
        }
    }

    /// Keeps what was the tail.
    fn keep(&mut self, tail: Tail) {
        if tail.booked > 0 {
            self.set(tail.page, tail.booked);
        }
        let full = tail.from.max(self.first)..tail.page;
        if !full.is_empty() {
            self.fill(full.clone());
            self.note_full(full);
        }
    }

    /// When a job will find room that can begin at `start`, were it booked at `now`.
    pub fn idle_from(&mut self, now: Ps, start: Ps) -> Ps {
        self.turn_to(now);
        let wanted = start.0 >> self.page;
        let Tail { from, page: last, booked } = self.tail;
        let mut page = wanted.max(self.first);
        if page < from {
            self.enter_old();
        }
        let (page, booked) = loop {
            match page {
                _ if page > last => break (page, 0),
                _ if page >= from => break (last, booked),
                _ => page = self.skip(page),
            }
            match self.at(page) {
                booked if page < from && booked < self.room() => break (page, booked),
                _ if page < from => page += 1,
                _ => {}
            }
        };
        match page == wanted {
            true => start,
            false => start.max(Ps((page << self.page) + booked / self.slots)),
        }
    }

    /// Books a job of `service` that can begin at `start`; `now` is the time of the booking, not later than `start`.
    /// Returns when it is done.
    #[inline]
    pub fn admit(&mut self, now: Ps, start: Ps, service: Ps) -> Ps {
        self.turn_to(now);
        self.book(start, service)
    }

    /// Books jobs of the same `service`, one after the other: each entry of `times` is when one can begin, not before `now`,
    /// and becomes when it is done.
    pub fn admit_all(&mut self, now: Ps, times: &mut [Ps], service: Ps) {
        self.turn_to(now);
        for time in times {
            *time = self.book(*time, service);
        }
    }

    /// The same at once, for `count` jobs that can begin in order, the first and the last at these times. Returns when they
    /// are done, or nothing if that is not to be had at once: then nothing is booked.
    #[inline(always)]
    pub fn admit_row(&mut self, now: Ps, (first, last): (Ps, Ps), service: Ps, count: u64) -> Option<Row> {
        self.turn_to(now);
        let page = first.0 >> self.page;
        if page > self.tail.page && page - self.first <= REACH {
            self.begin_tail(page);
        }
        let Tail { from, page: end, booked } = self.tail;
        let level = Ps((end << self.page) + booked);
        // Each of them finds the tail at its begin or behind it, and those before it in the tail.
        let queue = last == first || last <= level + service;
        let here = (from..=end).contains(&page) && page >= self.first && end - self.first <= REACH;
        let work = service.0.checked_mul(count).filter(|work| *work <= REACH << self.page);
        if self.slots != 1 || !here || !queue || last < first || service == Ps::ZERO {
            return None;
        }
        self.put_behind(work?);
        Some(Row { first, last, level, service })
    }

    #[inline(always)]
    fn book(&mut self, start: Ps, service: Ps) -> Ps {
        let wanted = start.0 >> self.page;
        let page = wanted.max(self.first);
        if page > self.tail.page {
            if page - self.first > REACH {
                return start + service;
            }
            self.begin_tail(page);
        }
        if service == Ps::ZERO && self.slots > 1 && wanted >= self.first {
            // It needs no room: of several slots one is taken to be free.
            return start;
        }
        if page < self.tail.from || service == Ps::ZERO {
            return self.book_before(start, service);
        }
        if wanted == self.tail.page {
            return self.append(start, service, service.0);
        }
        if self.tail.page - self.first > REACH {
            return start.max(Ps(self.tail.page << self.page)) + service;
        }
        self.append(self.opening(start, self.tail.page, self.tail.booked), service, service.0)
    }

    /// When a job begins that finds room in this page, in which so much is booked, and could have begun in one before it: of
    /// several slots one is free from the begin on.
    #[inline]
    fn opening(&self, start: Ps, page: u64, booked: u64) -> Ps {
        let inside = if self.slots == 1 { booked } else { booked / self.slots };
        start.max(Ps((page << self.page) + inside))
    }

    /// When a job of `service` is done that begins at `begin`: the last page that it needs is this, in which so much is
    /// booked now.
    #[inline]
    fn done(&self, begin: Ps, service: Ps, page: u64, booked: u64) -> Ps {
        match self.slots {
            1 => (begin + service).max(Ps((page << self.page) + booked)),
            _ => begin + service,
        }
    }

    /// Books what is left of a job into the tail.
    #[inline]
    fn append(&mut self, begin: Ps, service: Ps, left: u64) -> Ps {
        self.put_behind(left);
        self.done(begin, service, self.tail.page, self.tail.booked)
    }

    /// Books so much work into the tail.
    #[inline]
    fn put_behind(&mut self, work: u64) {
        self.tail.booked = self.tail.booked.saturating_add(work);
        if self.tail.booked >= self.room() {
            let full = match self.slots {
                1 => self.tail.booked >> self.page,
                slots => (self.tail.booked / slots) >> self.page,
            };
            self.tail.booked -= full * self.room();
            self.tail.page += full;
            if self.tail.page - self.first > REACH {
                // What is beyond is not booked.
                self.tail.page = self.tail.page.min(self.first + REACH + 1);
                self.tail.booked = 0;
            }
        }
    }

    /// Books a job that can begin before the tail, or one that takes no time.
    #[inline(never)]
    fn book_before(&mut self, start: Ps, service: Ps) -> Ps {
        self.enter_old();
        let begins = start.0 >> self.page;
        let room = self.room();
        let (mut page, mut left) = (begins.max(self.first), service.0);
        // When it begins is known from its first page with room on.
        let mut begun = None;
        loop {
            if left > 0 && page < self.tail.from {
                page = self.skip(page);
            }
            let Tail { from, page: last, booked } = self.tail;
            let (at, before) = match page {
                _ if page < from => (page, self.at(page)),
                _ if left > 0 => (last, booked),
                _ => (page, if page < last { room } else { booked }),
            };
            if before < room || left == 0 {
                let opening = || if at == begins { start } else { self.opening(start, at, before) };
                let begin = *begun.get_or_insert_with(opening);
                if left == 0 {
                    return self.done(begin, service, at, before);
                }
                if at >= from {
                    return self.append(begin, service, left);
                }
                let free = room - before;
                self.set(at, before + left.min(free));
                if left < free {
                    return self.done(begin, service, at, before + left);
                }
                self.note_full(at..at + 1);
                left -= free;
                if left == 0 {
                    return self.done(begin, service, at, room);
                }
            }
            page = at + 1;
        }
    }
}

impl Rebase for Calendar {
    fn rebase(&mut self, by: Ps) {
        // What is before the new start is past, and kept nowhere.
        self.turn_to(by);
        self.enter_old();
        let Self { slots: _, page, first, tail, old: _, old_count: _, booked, filled, full } = self;
        let by = by.0 >> *page;
        let moved = |number: u64| number.saturating_sub(by);
        *first = moved(*first);
        *tail = match *tail {
            Tail { page, .. } if page < by => Tail::default(),
            Tail { from, page, booked } => Tail { from: moved(from), page: moved(page), booked },
        };
        full.iter_mut().for_each(|pages| *pages = moved(pages.start)..moved(pages.end));
        let places = booked.len();
        for Page { number, booked: work } in std::mem::replace(booked, vec![Page::default(); places]) {
            if number >= by
                && work > 0
                && let Some(place) = booked.get_mut(moved(number) as usize & places.wrapping_sub(1))
            {
                *place = Page { number: moved(number), booked: work };
            }
        }
        let (places, by) = (filled.len(), by / PAGES);
        for Filled { number, bits } in std::mem::replace(filled, vec![Filled::default(); places]) {
            let moved = number.saturating_sub(by);
            if number >= by
                && bits != 0
                && let Some(place) = filled.get_mut(moved as usize & places.wrapping_sub(1))
            {
                *place = Filled { number: moved, bits };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;

    const NS: fn(u64) -> Ps = Ps::from_ns;
    /// 16 ns.
    const PAGE: u32 = 14;

    #[test]
    fn one_slot_queues() {
        let mut c = Calendar::new(1, PAGE);
        assert_eq!(c.admit(NS(0), NS(0), NS(40)), NS(40));
        assert_eq!(c.admit(NS(0), NS(5), NS(40)), NS(80), "waits for the first");
        assert_eq!(c.admit(NS(1000), NS(1000), NS(5)), NS(1005), "idle again");
    }

    #[test]
    fn what_is_booked_ahead_leaves_room_before_it() {
        let mut c = Calendar::new(1, PAGE);
        assert_eq!(c.admit(NS(0), NS(400), NS(100)), NS(500));
        assert_eq!(c.admit(NS(0), NS(10), NS(100)), NS(110), "before it");
        let late = c.admit(NS(0), NS(350), NS(100));
        assert!(late >= NS(540) && late <= NS(560), "around it: {late}");
    }

    #[test]
    fn a_longer_calendar_keeps_what_is_booked() {
        let mut c = Calendar::new(1, PAGE);
        for (start, service) in [(4000, 5), (0, 5), (3000, 5), (2000, 5)] {
            assert_eq!(c.admit(NS(0), NS(start), NS(service)), NS(start + service));
        }
        assert_eq!(c.admit(NS(0), NS(0), NS(8)), NS(13), "behind the one that was there");
        assert!(c.admit(NS(0), NS(2000), NS(8)) > NS(2008), "here, too");
    }

    #[test]
    fn throughput_is_slots_over_service() {
        let mut c = Calendar::new(16, 16);
        let last = (0..1600).map(|_| c.admit(Ps::ZERO, Ps::ZERO, NS(143))).max().unwrap();
        let ideal = 100.0 * 143.0;
        assert!((last.as_ns() as f64 / ideal - 1.0).abs() < 0.02, "{last}");
        let mut one = Calendar::new(1, PAGE);
        let last = (0..1000).map(|_| one.admit(Ps::ZERO, Ps::ZERO, Ps(12_345))).max();
        assert_eq!(last, Some(Ps(12_345_000)));
    }

    #[test]
    fn slots_work_side_by_side() {
        let mut c = Calendar::new(4, PAGE);
        for _ in 0..4 {
            assert_eq!(c.admit(NS(0), NS(0), NS(10)), NS(10));
        }
    }

    #[test]
    fn a_long_backlog_does_not_get_slow_or_lost() {
        let mut c = Calendar::new(1, PAGE);
        for i in 1..=200_000u64 {
            assert_eq!(c.admit(Ps::ZERO, Ps::ZERO, NS(50)), NS(50 * i));
        }
        assert_eq!(c.admit(NS(20_000_000), NS(20_000_000), NS(1)), NS(20_000_001));
    }

    /// Page by page, as the type says it.
    struct Plain {
        slots: u64,
        page: u32,
        booked: std::collections::BTreeMap<u64, u64>,
    }

    impl Plain {
        fn idle_from(&self, start: Ps) -> Ps {
            let booked = |page: u64| self.booked.get(&page).copied().unwrap_or(0);
            let begins = start.0 >> self.page;
            let page = (begins..).find(|page| booked(*page) < self.slots << self.page).unwrap();
            let inside = (page << self.page) + booked(page) / self.slots;
            if page == begins { start } else { start.max(Ps(inside)) }
        }

        fn admit(&mut self, start: Ps, service: Ps) -> Ps {
            let room = self.slots << self.page;
            let (mut page, mut left, mut begin) = (start.0 >> self.page, service.0, None);
            loop {
                let booked = self.booked.entry(page).or_default();
                let (before, free) = (*booked, room - *booked);
                let page_begin = page << self.page;
                if free > 0 || left == 0 {
                    let within =
                        if page == start.0 >> self.page { 0 } else { page_begin + before / self.slots };
                    let begun = *begin.get_or_insert(within.max(start.0)) + service.0;
                    *booked += left.min(free);
                    left -= left.min(free);
                    if left == 0 {
                        return Ps(if self.slots == 1 { begun.max(page_begin + *booked) } else { begun });
                    }
                }
                page += 1;
            }
        }
    }

    #[test]
    fn a_row_is_what_one_by_one_is() {
        let mut random = SplitMix64(2);
        let mut below = |n| random.below(n);
        let (mut row, mut each) = (Calendar::new(1, PAGE), Calendar::new(1, PAGE));
        let (mut now, mut rows) = (0, 0);
        for i in 0..20_000 {
            now += below(1 << 17);
            let first = now + below(2) * below(1 << 19);
            let service = Ps(below(1 << 13) + 1);
            let count = below(12) + 2;
            let gap = below(2) * below(1 << 17);
            let mut times: Vec<Ps> = (0..count).map(|i| Ps(first + i * gap / (count - 1))).collect();
            let ends = (times[0], times[times.len() - 1]);
            each.admit_all(Ps(now), &mut times, service);
            match row.admit_row(Ps(now), ends, service, count) {
                Some(row) => {
                    rows += 1;
                    let all: Vec<Ps> = (0..count).map(|i| row.done(i)).collect();
                    assert_eq!(all, times, "row {i}");
                    let mut ends = vec![Ps::ZERO; times.len()];
                    row.write_to(&mut ends);
                    assert_eq!(ends, times, "row {i}");
                }
                None => {
                    for (job, done) in times.iter().enumerate() {
                        let start = Ps(first + job as u64 * gap / (count - 1));
                        assert_eq!(row.admit(Ps(now), start, service), *done, "row {i}, job {job}");
                    }
                }
            }
            // Between them, something short.
            let start = Ps(now + below(1 << 15));
            assert_eq!(row.admit(Ps(now), start, Ps(900)), each.admit(Ps(now), start, Ps(900)), "behind {i}");
        }
        assert!((2_000..18_000).contains(&rows), "{rows}");
    }

    #[test]
    fn it_books_what_a_walk_over_all_pages_books() {
        let mut random = SplitMix64(1);
        let mut below = |n| random.below(n);
        for (slots, load) in [(1, 50), (1, 120), (4, 30), (4, 80), (16, 100)] {
            let mut fast = Calendar::new(slots, PAGE);
            let mut plain = Plain { slots, page: PAGE, booked: Default::default() };
            let mut now = 0;
            for i in 0..20_000 {
                now += below(1 << 17);
                // Like reads and writes: at once or some time ahead, short or long.
                let start = Ps(now + if below(2) == 0 { 0 } else { below(1 << 19) });
                let service = Ps(below((1 << 17) * slots * load / 100));
                if i % 16 == 0 {
                    assert_eq!(
                        fast.idle_from(Ps(now), start),
                        plain.idle_from(start),
                        "job {i} of {slots} slots"
                    );
                }
                assert_eq!(
                    fast.admit(Ps(now), start, service),
                    plain.admit(start, service),
                    "job {i} of {slots} slots, load {load}"
                );
            }
        }
    }

    #[test]
    fn what_is_beyond_the_calendar_waits_for_nobody() {
        let mut c = Calendar::new(1, PAGE);
        let far = Ps::from_ms(100);
        assert_eq!(c.admit(Ps::ZERO, far, NS(10)), far + NS(10));
        let long = Ps::from_ms(30);
        assert!(c.admit(Ps::ZERO, Ps::ZERO, long) >= long, "longer than the calendar");
        assert!(c.admit(Ps::ZERO, Ps::ZERO, NS(10)) >= Ps::from_ms(17), "behind it");
    }

    #[test]
    fn it_says_when_it_has_room() {
        let mut c = Calendar::new(2, PAGE);
        assert_eq!(c.idle_from(NS(0), NS(7)), NS(7), "idle");
        for _ in 0..20 {
            c.admit(NS(0), NS(0), NS(40));
        }
        let begin = c.idle_from(NS(0), NS(0));
        assert!(begin >= NS(384) && begin <= NS(400), "after 800 ns of work on two slots: {begin}");
        assert_eq!(c.admit(NS(0), NS(0), NS(40)), begin + NS(40));
        assert_eq!(c.idle_from(NS(0), NS(900)), NS(900));
    }

    #[test]
    fn no_service_takes_no_time() {
        let mut c = Calendar::new(1, PAGE);
        assert_eq!(c.admit(NS(3), NS(7), Ps::ZERO), NS(7));
    }
}
