//! Which numbers were seen: each datagram counts once, in whatever order they come.

const WORDS: usize = 32;
/// How far behind the newest a datagram may be.
const SPAN: u64 = 64 * WORDS as u64;

/// The newest number and those before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// One more than the newest number.
    next: u64,
    seen: [u64; WORDS],
}

impl Window {
    /// Notes a number. Returns false if it was seen before, or is too old to know.
    pub(super) fn take(&mut self, number: u64) -> bool {
        let Some(after) = number.checked_add(1) else { return false };
        if after > self.next {
            // The numbers between are not seen; those that fall out of the window need no clearing twice.
            let first = self.next.max(after.saturating_sub(SPAN));
            for skipped in first..number {
                self.set(skipped, false);
            }
            self.next = after;
        } else if self.next - after >= SPAN || self.get(number) {
            return false;
        }
        self.set(number, true);
        true
    }

    /// The highest number so far.
    pub(super) fn highest(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    fn place(number: u64) -> (usize, u64) {
        ((number / 64) as usize % WORDS, 1 << (number % 64))
    }

    fn get(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.seen.get(word).is_some_and(|w| w & bit != 0)
    }

    fn set(&mut self, number: u64, seen: bool) {
        let (word, bit) = Self::place(number);
        if let Some(w) = self.seen.get_mut(word) {
            *w = if seen { *w | bit } else { *w & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_counts_once() {
        let mut window = Window::default();
        for (number, fresh) in [
            (0, true),
            (0, false),
            (5, true),
            (3, true),
            (3, false),
            (SPAN + 4, true),
            (4, false), // out of the window
            (5, false), // the last in the window, seen
            (6, true),
            (1 << 40, true),
            (SPAN + 5, false),
            ((1 << 40) - 1, true),
            (u64::MAX, false),
            (u64::MAX - 1, true),
            (u64::MAX - 1, false),
        ] {
            assert_eq!(window.take(number), fresh, "{number}");
        }
    }

    #[test]
    fn like_a_set() {
        let (mut window, mut set, mut newest) = (Window::default(), BTreeSet::new(), 0_u64);
        let mut state = 9_u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (newest + 300).saturating_sub((state >> 33) % (SPAN + 600));
            let old = number + SPAN <= newest;
            let fresh = !old && set.insert(number);
            newest = newest.max(number);
            assert_eq!(window.take(number), fresh, "{number} of {newest}");
        }
    }
}
