//! Long lists that commands bring and the adapter keeps: translations of keys, pages of user memory.

/// Bytes of a piece. What one event does to a list touches few of them, whatever its length is; entries of 8 and 16 bytes
/// lie in one.
const PIECE: usize = 1 << 16;

/// A list in pieces, as the driver wrote it. It is taken out of a command's input piece by piece and never copied as a whole: the
/// longest has 16 MiB (CREATE_MKEY), or 256 MiB if UMR work requests load it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// Most lists are short.
    first: Vec<u8>,
    /// A piece that is shorter than it could be goes on with zeros.
    rest: Vec<Vec<u8>>,
    len: usize,
}

impl List {
    /// A list of those bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut list = Self::default();
        list.push(bytes, bytes.len());
        list
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes to a list that will have `whole` of them.
    pub fn push(&mut self, bytes: &[u8], whole: usize) {
        let mut left = bytes;
        while !left.is_empty() {
            let at = self.len % PIECE;
            let most = PIECE.saturating_sub(at);
            let (now, later) = left.split_at_checked(most).unwrap_or((left, &[]));
            let expected = whole.saturating_sub(self.len).max(now.len()).min(most);
            let piece = self.piece_mut(self.len / PIECE);
            if at == 0 {
                piece.reserve_exact(expected);
            }
            piece.resize(at, 0);
            piece.extend_from_slice(now);
            self.len += now.len();
            left = later;
        }
    }

    /// Writes bytes from `at` on. What lies between the end and there is zeros, and takes no memory.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let (mut at, mut left) = (at, bytes);
        while !left.is_empty() {
            let inside = at % PIECE;
            let (now, later) = left.split_at_checked(PIECE.saturating_sub(inside)).unwrap_or((left, &[]));
            let piece = self.piece_mut(at / PIECE);
            let end = inside.saturating_add(now.len());
            if piece.len() < end {
                piece.reserve_exact(end.saturating_sub(piece.len()));
                piece.resize(end, 0);
            }
            if let Some(to) = piece.get_mut(inside..end) {
                to.copy_from_slice(now);
            }
            at = at.saturating_add(now.len());
            self.len = self.len.max(at);
            left = later;
        }
    }

    /// Forgets what lies behind `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.len = len;
            self.rest.truncate(len.div_ceil(PIECE).saturating_sub(1));
            let last = len.saturating_sub(1) / PIECE;
            self.piece_mut(last).truncate(len.saturating_sub(last.saturating_mul(PIECE)));
        }
    }

    /// Entry `index` of a list whose entries have `N` bytes, 8 or 16.
    #[inline]
    pub fn get<const N: usize>(&self, index: usize) -> Option<[u8; N]> {
        let at = index.checked_mul(N)?;
        if at.checked_add(N)? > self.len {
            return None;
        }
        let piece = match at / PIECE {
            0 => &self.first,
            n => self.rest.get(n.saturating_sub(1))?,
        };
        match piece.get(at % PIECE..).and_then(<[u8]>::first_chunk) {
            Some(entry) => Some(*entry),
            None => {
                // The last that was written may have been shorter.
                let mut entry = [0; N];
                let rest = piece.get(at % PIECE..).unwrap_or_default();
                entry.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                Some(entry)
            }
        }
    }

    /// Entries from `index` on, of `N` bytes, 8 or 16: as many as were given one behind the other. There may be more that [`List::get`] has.
    #[inline]
    pub fn entries_from<const N: usize>(&self, index: usize) -> &[[u8; N]] {
        let Some(at) = index.checked_mul(N) else { return &[] };
        let piece = match at / PIECE {
            0 => Some(&self.first),
            n => self.rest.get(n.saturating_sub(1)),
        };
        piece.and_then(|piece| piece.get(at % PIECE..)).unwrap_or_default().as_chunks().0
    }

    /// All whole entries of `N` bytes, 8 or 16.
    pub fn entries<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> {
        (0..self.len / N.max(1)).map_while(|index| self.get(index))
    }

    /// The entries of `N` bytes that were given, piece by piece: for what looks at two million of them.
    pub fn pieces<const N: usize>(&self) -> impl Iterator<Item = &[[u8; N]]> {
        [&self.first].into_iter().chain(&self.rest).map(|piece| piece.as_chunks().0)
    }

    fn piece_mut(&mut self, n: usize) -> &mut Vec<u8> {
        match n.checked_sub(1) {
            None => &mut self.first,
            Some(n) => {
                if self.rest.len() <= n {
                    self.rest.resize_with(n.saturating_add(1), Vec::new);
                }
                // It was made above.
                self.rest.get_mut(n).unwrap_or(&mut self.first)
            }
        }
    }
}

/// What a command brings.
#[derive(Debug)]
pub struct Input<'a> {
    /// Its bytes, header included; up to its list if that is kept as it is ([`crate::commands::kept_list`]).
    pub bytes: &'a [u8],
    /// That list.
    pub list: List,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 8) as u8 ^ i as u8).collect()
    }

    #[test]
    fn as_it_was_given() {
        for len in [0, 8, 16, PIECE - 16, PIECE, PIECE + 16, 3 * PIECE + 48] {
            let all = bytes(len);
            let (whole, mut parts) = (List::of(&all), List::default());
            all.chunks(496).for_each(|part| parts.push(part, len));
            assert_eq!((&whole, whole.len()), (&parts, len));
            assert_eq!(whole.entries::<8>().flatten().collect::<Vec<u8>>(), all);
            assert_eq!(whole.pieces::<8>().flatten().flatten().copied().collect::<Vec<u8>>(), all);
            assert_eq!(whole.get::<8>(len / 8), None);
        }
    }

    /// What is written far behind the end takes the memory of what was written.
    #[test]
    fn changed_in_place() {
        let mut list = List::of(&bytes(64));
        let far = 4000 * PIECE + PIECE - 16;
        list.write(far, &bytes(48));
        assert_eq!(list.len(), far + 48);
        assert_eq!(list.get::<8>(1), Some(bytes(16)[8..].try_into().unwrap()));
        assert_eq!(list.get::<16>(1000), Some([0; 16]));
        assert_eq!(list.get::<16>(far / 16 + 1), Some(bytes(32)[16..].try_into().unwrap()));
        assert_eq!(list.get::<16>(far / 16 + 3), None);
        let given = |index| list.entries_from::<16>(index).len();
        assert_eq!((given(1), given(1000), given(far / 16 + 1), given(usize::MAX)), (3, 0, 2, 0));
        assert_eq!(given(far / 16), 1, "the next is in another piece");
        let held: usize = list.rest.iter().map(Vec::capacity).sum();
        assert!(held <= 2 * PIECE, "{held}");
        list.write(8, &[7; 16]);
        assert_eq!(list.get::<8>(2), Some([7; 8]));
    }

    #[test]
    fn cut() {
        for to in [0, 16, PIECE, PIECE + 16] {
            let mut list = List::of(&bytes(2 * PIECE));
            list.truncate(to);
            assert_eq!((list.len(), list), (to, List::of(&bytes(to))));
        }
    }
}
