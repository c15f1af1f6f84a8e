//! Room for bytes that come piece by piece.

/// Bytes that are written from the front on, one piece after the other. What nobody has written when it goes is zero, so
/// that who fills it can't leave anything of what was there.
pub(crate) struct Room<'a>(&'a mut [u8]);

impl<'a> Room<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    /// The next `len` bytes, or what is left of them: whoever takes them writes them all.
    #[inline]
    pub(crate) fn next(&mut self, len: usize) -> &mut [u8] {
        let rest = std::mem::take(&mut self.0);
        let (next, rest) = rest.split_at_mut(len.min(rest.len()));
        self.0 = rest;
        next
    }
}

impl Drop for Room<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.0.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_wrote_is_zero() {
        let mut bytes = [7; 5];
        let mut room = Room::new(&mut bytes);
        room.next(2).fill(1);
        room.next(1).fill(2);
        drop(room);
        assert_eq!(bytes, [1, 1, 2, 0, 0]);
        let mut room = Room::new(&mut bytes);
        assert_eq!((room.next(4).len(), room.next(4).len(), room.next(4).len()), (4, 1, 0));
    }
}
