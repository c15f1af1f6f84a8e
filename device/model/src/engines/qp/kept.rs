//! What requests under way take of the server's memory: WQEs that were fetched and are not done, with their lists of pieces.
//!
//! A ring is memory of the driver's, but its places may all be one page, and a WQE that was fetched is several times as long as in the ring. So
//! requests of a function have a bound of their own, beside that of its objects: it is far beyond what works with any peer that answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that requests of a function may take, those of all its queue pairs: some 400,000 of the usual size.
const MOST: usize = 256 << 20;

/// What requests of a function take, in bytes, and what they may.
#[derive(Debug)]
pub(crate) struct Kept {
    taken: Arc<AtomicUsize>,
    most: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Kept {
    /// Nothing yet, of so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most }
    }

    /// Nothing yet, with the same bound.
    pub(crate) fn anew(&self) -> Self {
        Self::new(self.most)
    }

    /// So many bytes may be from now on.
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// How many bytes are taken.
    #[inline]
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether no more requests are to be begun.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.taken() >= self.most
    }
}

/// What of it is a queue pair's: it is given back with the queue pair, wherever that is let go of.
#[derive(Debug, Default)]
pub(crate) struct Share {
    of: Option<Arc<AtomicUsize>>,
    bytes: usize,
}

impl Share {
    /// Nothing yet.
    pub(crate) fn of(kept: &Kept) -> Self {
        Self { of: Some(Arc::clone(&kept.taken)), bytes: 0 }
    }

    /// A request of so many bytes begins.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(taken) = &self.of {
            taken.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// It is over.
    #[inline]
    pub(crate) fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(taken) = &self.of {
            taken.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let kept = Kept::default();
        let (mut one, mut other) = (Share::of(&kept), Share::of(&kept));
        one.take(MOST - 1);
        assert!(!kept.is_spent());
        other.take(1);
        assert!(kept.is_spent());
        one.give(1);
        assert!(!kept.is_spent());
        other.take(100);
        drop(one);
        assert!(!kept.is_spent());
        // No more than was taken.
        other.give(usize::MAX);
        assert_eq!(kept.taken(), 0);
    }
}
