//! Buffers of packets that are gone. Large packets take them, so that they cost neither an allocation nor zeroes that
//! are written over at once; small ones are cheaper to allocate.
//!
//! Nothing but speed depends on what lies here: who takes a buffer writes every byte of it.

use std::cell::RefCell;

/// Packets of so many bytes at least are large.
const LARGE: usize = 1024;
/// Buffers kept at most. Packets are under way for a microsecond or two: that is about as many as a link takes in it.
const KEPT: usize = 64;

thread_local! {
    /// The last one that came is taken first, since it is still in the processor's cache.
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `len` bytes of any value.
pub(super) fn take(len: usize) -> Vec<u8> {
    let spare = (len >= LARGE).then(|| BUFFERS.with_borrow_mut(Vec::pop)).flatten();
    let mut buffer = spare.unwrap_or_else(|| Vec::with_capacity(len));
    buffer.resize(len, 0);
    buffer
}

/// Nobody needs that buffer any more.
pub(super) fn give(buffer: Vec<u8>) {
    if buffer.len() >= LARGE {
        BUFFERS.with_borrow_mut(|buffers| {
            if buffers.len() < KEPT {
                buffers.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_taken_again() {
        give(vec![1; LARGE]);
        give(vec![2; LARGE - 1]);
        assert_eq!(take(LARGE - 1), [0; LARGE - 1], "a small one is new");
        let longer = take(LARGE + 1);
        assert_eq!((longer.len(), longer[0], longer[LARGE]), (LARGE + 1, 1, 0));
        assert_eq!(take(LARGE), [0; LARGE], "there is no other");
        (0..2 * KEPT).for_each(|_| give(vec![3; LARGE]));
        assert_eq!((0..2 * KEPT).filter(|_| take(LARGE)[0] == 3).count(), KEPT);
    }
}
