//! The moving parts of a receive queue that takes frames.
//!
//! Source: PRM "Receive Queue", "Doorbell Records".

/// Which WQEs are posted and taken. Counters are modulo 2^16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FrameRing {
    /// The next WQE.
    pub(crate) head: u16,
    /// The first that is not known to be posted.
    pub(crate) posted: u16,
}

impl FrameRing {
    /// WQEs that are known to be posted and not taken, in a queue of 2^`log_size`. None: the doorbell record counts more than a
    /// whole queue.
    pub(crate) fn waiting(&self, log_size: u32) -> Option<u16> {
        let waiting = self.posted.wrapping_sub(self.head);
        (u64::from(waiting) <= 1u64.checked_shl(log_size)?).then_some(waiting)
    }

    /// The place of the next WQE in a queue of 2^`log_size`.
    pub(crate) fn slot(&self, log_size: u32) -> u64 {
        u64::from(self.head) & 1u64.checked_shl(log_size).unwrap_or(0).wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::FrameRing;

    #[test]
    fn counters_wrap() {
        let ring = FrameRing { head: 0xfffe, posted: 2 };
        assert_eq!((ring.waiting(2), ring.waiting(1), ring.slot(2)), (Some(4), None, 2));
        assert_eq!(FrameRing::default().waiting(0), Some(0));
        assert_eq!(FrameRing { head: 5, posted: 6 }.slot(0), 0);
    }
}
