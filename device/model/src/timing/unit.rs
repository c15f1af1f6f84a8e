//! Servers with a queue.

use crate::time::Ps;

use super::PcieCost;

/// A part of the adapter that works on a few jobs at once.
///
/// It has `capacity` slots. A job takes the slot that is free first, keeps it for its service time, and
/// is done a fixed latency later, during which the slot already works on the next job. Jobs are admitted
/// in the order of their arrival; what can't start yet waits, without a limit.
#[derive(Clone, Debug)]
pub struct Unit {
    busy_until: Vec<Ps>,
    latency: Ps,
    in_order: bool,
    last_done: Ps,
}

impl Unit {
    /// A unit of `capacity` slots (at least one) and a pipeline of `latency` behind them.
    pub fn new(capacity: u64, latency: Ps) -> Self {
        let slots = usize::try_from(capacity).unwrap_or(usize::MAX).clamp(1, Self::MAX_CAPACITY);
        Self { busy_until: vec![Ps::ZERO; slots], latency, in_order: false, last_done: Ps::ZERO }
    }

    /// The most slots a unit has: each admission looks at all of them.
    pub const MAX_CAPACITY: usize = 1024;

    /// The same unit, but jobs leave in the order they came: a short one waits behind a long one.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Takes a job of `service` that arrives at `now`; returns when it is done.
    pub fn admit(&mut self, now: Ps, service: Ps) -> Ps {
        let mut done = now + service + self.latency;
        if let Some(slot) = self.busy_until.iter_mut().min() {
            *slot = now.max(*slot) + service;
            done = *slot + self.latency;
        }
        if self.in_order {
            done = done.max(self.last_done);
            self.last_done = done;
        }
        done
    }

    /// When a job that arrives now or later could start at the earliest.
    pub fn free_at(&self) -> Ps {
        self.busy_until.iter().copied().min().unwrap_or_default()
    }

    /// Slots.
    pub fn capacity(&self) -> usize {
        self.busy_until.len()
    }
}

/// DMA reads: each request holds a tag until its data is there, and the data of all requests shares the
/// link's direction from the host.
#[derive(Clone, Debug)]
pub struct ReadEngine {
    tags: Vec<Ps>,
    link: Unit,
    pcie: PcieCost,
}

impl ReadEngine {
    /// A read engine with `tags` requests outstanding at most (at least one).
    pub fn new(tags: u64, pcie: PcieCost) -> Self {
        let tags = usize::try_from(tags).unwrap_or(usize::MAX).clamp(1, Unit::MAX_CAPACITY);
        Self { tags: vec![Ps::ZERO; tags], link: Unit::new(1, Ps::ZERO), pcie }
    }

    /// When a read of `bytes` that is issued at `now` has its last byte. No bytes take no time.
    pub fn read(&mut self, now: Ps, bytes: usize) -> Ps {
        let mut done = now;
        let mut left = bytes;
        while left > 0 {
            // A whole request at a time; what would need more than all tags several times over is one
            // long transfer, whose requests hide behind its data.
            let requests = self.pcie.max_read_request().max(1);
            let part = if left > requests * self.tags.len() { left } else { left.min(requests) };
            let Some(tag) = self.tags.iter_mut().min() else { return now };
            let arrives = now.max(*tag) + self.pcie.read_latency();
            *tag = self.link.admit(arrives, self.pcie.completion(part));
            done = done.max(*tag);
            left -= part;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: fn(u64) -> Ps = Ps::from_ns;

    #[test]
    fn one_slot_queues() {
        let mut u = Unit::new(1, Ps::ZERO);
        assert_eq!(u.admit(NS(10), NS(5)), NS(15));
        assert_eq!(u.admit(NS(11), NS(5)), NS(20), "waits for the first");
        assert_eq!(u.admit(NS(100), NS(5)), NS(105), "idle again");
        assert_eq!(u.free_at(), NS(105));
    }

    #[test]
    fn latency_does_not_occupy_the_slot() {
        let mut u = Unit::new(1, NS(50));
        assert_eq!(u.admit(NS(0), NS(5)), NS(55));
        assert_eq!(u.admit(NS(0), NS(5)), NS(60));
    }

    #[test]
    fn slots_work_side_by_side() {
        let mut u = Unit::new(2, Ps::ZERO);
        assert_eq!(u.capacity(), 2);
        let done: Vec<_> = [30, 10, 10, 10].into_iter().map(|s| u.admit(NS(0), NS(s))).collect();
        assert_eq!(done, [NS(30), NS(10), NS(20), NS(30)]);
    }

    #[test]
    fn in_order_units_don_t_overtake() {
        let mut u = Unit::new(2, Ps::ZERO).in_order();
        let done: Vec<_> = [30, 10, 10, 40].into_iter().map(|s| u.admit(NS(0), NS(s))).collect();
        assert_eq!(done, [NS(30), NS(30), NS(30), NS(60)], "the slots are free as before");
    }

    #[test]
    fn throughput_is_capacity_over_service() {
        let mut u = Unit::new(16, NS(500));
        let last = (0..1600).map(|_| u.admit(Ps::ZERO, NS(143))).max();
        assert_eq!(last, Some(NS(100 * 143 + 500)));
    }

    #[test]
    fn a_capacity_of_nothing_is_one() {
        assert_eq!(Unit::new(0, Ps::ZERO).capacity(), 1);
        assert_eq!(Unit::new(u64::MAX, Ps::ZERO).capacity(), Unit::MAX_CAPACITY);
    }
}
