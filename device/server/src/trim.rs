//! Memory of objects that were destroyed goes back to the system.
//!
//! The C library keeps what is freed between blocks that are still in use. After many objects went that may be
//! much, and nothing else tells it that the time is right. While it gives memory back, nobody gets any: some 75 ms for each
//! GiB, so it is asked before that much has gathered.

/// Fewer objects than this are not worth the walk through the heap.
const WORTH: u64 = 4096;
/// So many are always: of the largest, queue pairs, that is 200 MiB.
const MANY: u64 = 1 << 16;

/// Notes how many objects there were.
#[derive(Debug, Default)]
pub(crate) struct Trim {
    /// The most since memory was given back last.
    most: u64,
}

impl Trim {
    /// Gives memory back if there are `objects` now and that is half of what there were, or less, or [`MANY`] less.
    pub(crate) fn look(&mut self, objects: u64) {
        if self.is_worth(objects) {
            give_back();
        }
    }

    fn is_worth(&mut self, objects: u64) -> bool {
        let gone = self.most.saturating_sub(objects);
        let worth = gone >= MANY || gone >= WORTH && objects <= self.most / 2;
        self.most = if worth { objects } else { self.most.max(objects) };
        worth
    }
}

/// What was freed goes back to the system.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back() {
    // SAFETY: malloc_trim takes no pointer and may be called at any time.
    unsafe { nix::libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_after_many_went() {
        let mut trim = Trim::default();
        let seen = [1_000_000, 999_999, 900_000, 850_000, 60_000, 30_000, 9000, 6000, 2000, 0, 1000, 0];
        let worth: Vec<u64> = seen.into_iter().filter(|n| trim.is_worth(*n)).collect();
        assert_eq!(worth, [900_000, 60_000, 30_000, 9000, 2000]);
    }
}
