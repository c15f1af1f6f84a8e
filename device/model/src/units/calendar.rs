//! A server that many share, booked in advance.

use std::ops::Range;

use crate::ground::time::Ps;

/// Pages that a calendar reaches ahead: what is beyond waits for nobody. 2^20 pages of 16 ns are 17 ms.
const REACH: u64 = 1 << 20;

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
    /// Number of the first page that is kept.
    first: u64,
    /// Nothing is booked in this page or behind it.
    end: u64,
    /// Work booked per page, in picoseconds: a ring, in which the pages from `first` to before `end` have their places. A
    /// power of two of them once it is used, all others zero.
    booked: Vec<u64>,
    /// Runs of full pages, so that a backlog is not walked again for each job: one from now on and one ahead, say.
    full: [Range<u64>; 2],
}

impl Calendar {
    /// A server of `slots` slots (at least one) with pages of 2^`page` ps.
    pub fn new(slots: u64, page: u32) -> Self {
        Self {
            slots: slots.max(1),
            page: page.min(40),
            first: 0,
            end: 0,
            booked: Vec::new(),
            full: [0..0, 0..0],
        }
    }

    /// The work booked in a page, if the ring has a place for it.
    #[inline]
    fn at(&mut self, page: u64) -> Option<&mut u64> {
        let places = self.booked.len();
        self.booked.get_mut(page as usize & places.wrapping_sub(1))
    }

    /// Forgets what lies before `now`.
    #[inline]
    fn turn_to(&mut self, now: Ps) {
        let page = now.0 >> self.page;
        if page > self.first {
            self.forget(page);
        }
    }

    /// Forgets what lies before `page`.
    #[inline(never)]
    fn forget(&mut self, page: u64) {
        /// So many pages are emptied one by one.
        const FEW: u64 = 4;
        let past = self.end.min(page).saturating_sub(self.first);
        if past <= FEW {
            for past in self.first..self.first + past {
                if let Some(booked) = self.at(past) {
                    *booked = 0;
                }
            }
        } else {
            let (places, past) = (self.booked.len(), past as usize);
            let from = self.first as usize & places.wrapping_sub(1);
            // Up to the ring's last place, and from its first on.
            let ahead = past.min(places.saturating_sub(from));
            for places in [from..from + ahead, 0..past - ahead] {
                if let Some(pages) = self.booked.get_mut(places) {
                    pages.fill(0);
                }
            }
        }
        self.first = page;
        self.end = self.end.max(page);
    }

    /// Makes room in the ring up to page `last`.
    #[cold]
    fn grow(&mut self, last: u64) {
        const LEAST: usize = 64;
        let places = (last.saturating_sub(self.first) as usize + 1).next_power_of_two().max(LEAST);
        let old = std::mem::replace(&mut self.booked, vec![0; places]);
        for page in self.first..self.end {
            let before = old.get(page as usize & old.len().wrapping_sub(1));
            if let (Some(booked), Some(before)) = (self.at(page), before) {
                *booked = *before;
            }
        }
    }

    /// The first page from `page` on that is not known to be full.
    #[inline]
    fn skip(&self, page: u64) -> u64 {
        let [a, b] = &self.full;
        let page = if a.contains(&page) { a.end } else { page };
        if b.contains(&page) { b.end } else { page }
    }

    /// So many pages from `page` on are full now.
    #[inline]
    fn note_full(&mut self, page: u64, pages: u64) {
        let first = self.first;
        let [a, b] = &mut self.full;
        let worth = |run: &Range<u64>| run.end.saturating_sub(run.start.max(first));
        match () {
            () if page == a.end => a.end += pages,
            () if page == b.end => b.end += pages,
            () if worth(a) <= worth(b) => *a = page..page + pages,
            () => *b = page..page + pages,
        }
    }

    /// When a job that can begin at `start` will find room, were it booked at `now`.
    pub fn opens(&mut self, now: Ps, start: Ps) -> Ps {
        self.turn_to(now);
        let room = self.slots << self.page;
        let wanted = start.0 >> self.page;
        let mut page = self.skip(wanted.max(self.first));
        let booked = loop {
            match self.at(page).map_or(0, |booked| *booked) {
                booked if page < self.end && booked >= room => page = self.skip(page + 1),
                booked => break if page < self.end { booked } else { 0 },
            }
        };
        match page == wanted {
            true => start,
            false => start.max(Ps((page << self.page) + booked / self.slots)),
        }
    }

    /// Books a job of `service` that can begin at `start`; `now` is the time of the booking, not later than `start`.
    /// Returns when it is done.
    #[inline(always)]
    pub fn admit(&mut self, now: Ps, start: Ps, service: Ps) -> Ps {
        self.turn_to(now);
        let page = start.0 >> self.page;
        let (first, room) = (self.first, self.slots << self.page);
        // Most jobs are short, and the page in which they can begin has room for more than them.
        if service.0 < room
            && page >= first
            && page - first < self.booked.len() as u64
            && let Some(booked) = self.at(page)
            && *booked + service.0 < room
        {
            *booked += service.0;
            let booked = *booked;
            return self.booked_up_to(page, booked, start + service);
        }
        self.admit_over_pages(start, service)
    }

    /// The same for a job that finds its first page full, or fills it.
    #[inline(never)]
    fn admit_over_pages(&mut self, start: Ps, service: Ps) -> Ps {
        let (slots, shift) = (self.slots, self.page);
        let room = slots << shift;
        let begins = start.0 >> shift;
        let mut page = begins.max(self.first);
        let mut left = service.0;
        let mut begin = start.0;
        loop {
            if page - self.first >= self.booked.len() as u64 {
                let opens = page << shift;
                if page - self.first > REACH {
                    let begun = if left == service.0 { start.0.max(opens) } else { begin };
                    return (Ps(begun) + service).max(Ps(opens));
                }
                self.grow(page);
            }
            let Some(booked) = self.at(page) else { unreachable!("the ring has just grown") };
            let before = *booked;
            let free = room.saturating_sub(before);
            if free == 0 && left > 0 {
                page = self.skip(page).max(page + 1);
                continue;
            }
            // Where in its first page the job finds room: of several slots one is free from the begin on.
            if left == service.0 && page != begins {
                let inside = if slots == 1 { before } else { before / slots };
                begin = begin.max((page << shift) + inside);
            }
            if left < free || left == 0 {
                *booked = before + left;
                return self.booked_up_to(page, before + left, Ps(begin) + service);
            }
            *booked = room;
            left -= free;
            // What follows is empty, mostly.
            let reach = self.first + self.booked.len() as u64;
            let mut full = 1;
            while left > 0
                && page + full < reach
                && let Some(booked) = self.at(page + full).filter(|booked| **booked == 0)
            {
                if left < room {
                    *booked = left;
                    self.note_full(page, full);
                    return self.booked_up_to(page + full, left, Ps(begin) + service);
                }
                *booked = room;
                left -= room;
                full += 1;
            }
            self.note_full(page, full);
            page += full;
            self.end = self.end.max(page);
            if left == 0 {
                return self.booked_up_to(page - 1, room, Ps(begin) + service);
            }
        }
    }

    /// When a job is done that would be done at `done`, were there no others: the last page that it needs is `page`, in
    /// which so much is booked now.
    #[inline]
    fn booked_up_to(&mut self, page: u64, booked: u64, done: Ps) -> Ps {
        self.end = self.end.max(page + 1);
        match self.slots {
            1 => done.max(Ps((page << self.page) + booked)),
            _ => done,
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
        fn admit(&mut self, start: Ps, service: Ps) -> Ps {
            let room = self.slots << self.page;
            let (mut page, mut left, mut begin) = (start.0 >> self.page, service.0, None);
            loop {
                let booked = self.booked.entry(page).or_default();
                let (before, free) = (*booked, room - *booked);
                let opens = page << self.page;
                if free > 0 || left == 0 {
                    let within = if page == start.0 >> self.page { 0 } else { opens + before / self.slots };
                    let begun = *begin.get_or_insert(within.max(start.0)) + service.0;
                    *booked += left.min(free);
                    left -= left.min(free);
                    if left == 0 {
                        return Ps(if self.slots == 1 { begun.max(opens + *booked) } else { begun });
                    }
                }
                page += 1;
            }
        }
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
                let service = Ps(below((1 << 17) * slots * load / 100) + 1);
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
        assert_eq!(c.opens(NS(0), NS(7)), NS(7), "idle");
        for _ in 0..20 {
            c.admit(NS(0), NS(0), NS(40));
        }
        let begin = c.opens(NS(0), NS(0));
        assert!(begin >= NS(384) && begin <= NS(400), "after 800 ns of work on two slots: {begin}");
        assert_eq!(c.admit(NS(0), NS(0), NS(40)), begin + NS(40));
        assert_eq!(c.opens(NS(0), NS(900)), NS(900));
    }

    #[test]
    fn no_service_takes_no_time() {
        let mut c = Calendar::new(1, PAGE);
        assert_eq!(c.admit(NS(3), NS(7), Ps::ZERO), NS(7));
    }
}
