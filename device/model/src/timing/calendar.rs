//! A server that many share, booked in advance.

use std::collections::VecDeque;

use crate::time::Ps;

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
    /// Work booked per page, in picoseconds.
    booked: VecDeque<u64>,
    /// A run of full pages, so that a long backlog is not walked again for each job.
    full: std::ops::Range<u64>,
}

impl Calendar {
    /// A server of `slots` slots (at least one) with pages of 2^`page` ps.
    pub fn new(slots: u64, page: u32) -> Self {
        Self { slots: slots.max(1), page: page.min(40), first: 0, booked: VecDeque::new(), full: 0..0 }
    }

    /// Forgets what lies before `now`.
    fn turn_to(&mut self, now: Ps) {
        let page = now.0 >> self.page;
        let past = page.saturating_sub(self.first);
        if past >= self.booked.len() as u64 {
            self.booked.clear();
        } else {
            self.booked.drain(..past as usize);
        }
        self.first = self.first.max(page);
    }

    fn at(&mut self, page: u64) -> &mut u64 {
        /// Pages that a calendar reaches ahead: what is beyond is one page more. 2^20 pages of 16 ns are 17 ms.
        const REACH: u64 = 1 << 20;
        let place = page.saturating_sub(self.first).min(REACH) as usize;
        if place >= self.booked.len() {
            self.booked.resize(place + 1, 0);
        }
        // Just made to be there.
        self.booked.get_mut(place).unwrap_or_else(|| unreachable!("a page beyond the calendar"))
    }

    /// The first page from `page` on that has room.
    fn skip(&self, page: u64) -> u64 {
        if self.full.contains(&page) { self.full.end } else { page }
    }

    fn note_full(&mut self, page: u64) {
        if page == self.full.end {
            self.full.end += 1;
        } else if self.full.is_empty() || self.full.end <= self.first {
            self.full = page..page + 1;
        }
    }

    /// Books a job of `service` that can begin at `start`; `now` is the time of the booking, not later than `start`.
    /// Returns when it is done.
    pub fn admit(&mut self, now: Ps, start: Ps, service: Ps) -> Ps {
        self.turn_to(now);
        let room = self.slots << self.page;
        let mut page = self.skip((start.0 >> self.page).max(self.first));
        let mut left = service.0;
        let mut begin = None;
        loop {
            let booked = self.at(page);
            let free = room - (*booked).min(room);
            if free > 0 || left == 0 {
                let before = *booked;
                let part = left.min(free);
                *booked += part;
                left -= part;
                let (filled, full) = (*booked, *booked >= room);
                let opens = page << self.page;
                // Where in its page the job finds room: of several slots one is free from the begin on.
                begin.get_or_insert(match page == start.0 >> self.page {
                    true => start.0,
                    false => (opens + before / self.slots).max(start.0),
                });
                if full {
                    self.note_full(page);
                }
                if left == 0 {
                    let begun = Ps(begin.unwrap_or(start.0)) + service;
                    return if self.slots == 1 { begun.max(Ps(opens + filled)) } else { begun };
                }
            }
            page = self.skip(page + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn no_service_takes_no_time() {
        let mut c = Calendar::new(1, PAGE);
        assert_eq!(c.admit(NS(3), NS(7), Ps::ZERO), NS(7));
    }
}
