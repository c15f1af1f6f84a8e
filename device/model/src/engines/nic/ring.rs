//! The moving parts of a receive queue that takes frames.
//!
//! Source: PRM "Receive Queue", "Striding RQ", "Doorbell Records".

use super::scatter::ScatterList;

/// Which WQEs are posted and taken. Counters are modulo 2^16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FrameRing {
    /// How many were taken: in a queue whose WQEs follow in memory, the next one.
    pub(crate) head: u16,
    /// How many are known to be posted.
    pub(crate) posted: u16,
    /// The next WQE of a queue whose WQEs name each other.
    pub(crate) linked: u16,
}

impl FrameRing {
    /// WQEs that are known to be posted and not taken, in a queue of 2^`log_size`. None: the doorbell record counts more than a
    /// whole queue.
    pub(crate) fn waiting(&self, log_size: u32) -> Option<u16> {
        let waiting = self.posted.wrapping_sub(self.head);
        (u64::from(waiting) <= 1u64.checked_shl(log_size)?).then_some(waiting)
    }

    /// The place of the next WQE in a queue of 2^`log_size`, whose WQEs name each other or follow in memory.
    pub(crate) fn slot(&self, log_size: u32, is_linked: bool) -> u64 {
        let next = if is_linked { self.linked } else { self.head };
        u64::from(next) & 1u64.checked_shl(log_size).unwrap_or(0).wrapping_sub(1)
    }

    /// The same when the next WQE was taken, which names that one.
    pub(crate) fn taken(self, next: u16) -> Self {
        Self { head: self.head.wrapping_add(1), linked: next, ..self }
    }
}

/// A WQE that was taken and has strides left.
#[derive(Debug, Default)]
pub(crate) struct OpenWqe {
    /// Its place in the queue.
    pub(crate) index: u16,
    /// Strides that are taken.
    pub(crate) used: u32,
    /// Where it leads.
    pub(crate) list: ScatterList,
}

#[cfg(test)]
mod tests {
    use super::FrameRing;

    #[test]
    fn counters_wrap() {
        let ring = FrameRing { head: 0xfffe, posted: 2, linked: 9 };
        assert_eq!((ring.waiting(2), ring.waiting(1)), (Some(4), None));
        assert_eq!((ring.slot(2, false), ring.slot(2, true)), (2, 1));
        assert_eq!(ring.taken(5), FrameRing { head: 0xffff, posted: 2, linked: 5 });
        assert_eq!(FrameRing::default().waiting(0), Some(0));
        assert_eq!(FrameRing { head: 5, posted: 6, linked: 0 }.slot(0, false), 0);
    }
}
