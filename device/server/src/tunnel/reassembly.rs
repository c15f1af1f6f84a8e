//! Packets from pieces.

use std::collections::BTreeMap;
use std::time::Duration;

/// Packets that may be incomplete at a time.
const MAX_OPEN: usize = 64;
/// How long a packet may take to become whole.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most pieces of a packet.
pub(super) const MAX_PIECES: u8 = 16;

/// One packet that is not whole.
#[derive(Debug)]
struct Open {
    since: Duration,
    pieces: Vec<Option<Vec<u8>>>,
    total: u16,
}

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Others are missing.
    Incomplete,
    /// The packet.
    Whole(Vec<u8>),
    /// It does not fit the others, or can't be a piece of anything.
    Bad,
}

/// Packets that wait for the rest of them.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// By the number of the datagram that has, or had, the first piece.
    open: BTreeMap<u64, Open>,
}

impl Reassembly {
    /// Bytes of all pieces but the last.
    pub(super) fn piece_size(total: u16, count: u8) -> usize {
        usize::from(total).div_ceil(usize::from(count.max(1)))
    }

    /// Takes piece `index` of `count`, which came in datagram `number`. Adds to `lost` the packets that were given up.
    pub(super) fn take(
        &mut self,
        now: Duration,
        number: u64,
        (index, count, total): (u8, u8, u16),
        piece: &[u8],
        lost: &mut u64,
    ) -> Outcome {
        let size = Self::piece_size(total, count);
        let from = size.saturating_mul(usize::from(index));
        let expected = usize::from(total).saturating_sub(from).min(size);
        let Some(first) = number.checked_sub(u64::from(index)) else { return Outcome::Bad };
        if count == 0 || count > MAX_PIECES || index >= count || expected == 0 || piece.len() != expected {
            return Outcome::Bad;
        }
        if count == 1 {
            return Outcome::Whole(piece.to_vec());
        }
        let before = self.open.len();
        self.open.retain(|_, open| now.saturating_sub(open.since) < PATIENCE);
        *lost += (before - self.open.len()) as u64;
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&first) {
            self.open.pop_first();
            *lost += 1;
        }
        let open = self.open.entry(first).or_insert_with(|| Open {
            since: now,
            pieces: vec![None; usize::from(count)],
            total,
        });
        if open.total != total || open.pieces.len() != usize::from(count) {
            return Outcome::Bad;
        }
        if let Some(place) = open.pieces.get_mut(usize::from(index)) {
            *place = Some(piece.to_vec());
        }
        if open.pieces.iter().any(Option::is_none) {
            return Outcome::Incomplete;
        }
        let pieces = self.open.remove(&first).map(|open| open.pieces).unwrap_or_default();
        Outcome::Whole(pieces.into_iter().flatten().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::ZERO;

    fn take(r: &mut Reassembly, number: u64, what: (u8, u8, u16), piece: &[u8]) -> Outcome {
        r.take(START, number, what, piece, &mut 0)
    }

    #[test]
    fn pieces_in_any_order() {
        let mut r = Reassembly::default();
        assert_eq!(take(&mut r, 12, (2, 3, 8), b"gh"), Outcome::Incomplete);
        assert_eq!(take(&mut r, 10, (0, 3, 8), b"abc"), Outcome::Incomplete);
        assert_eq!(take(&mut r, 13, (0, 1, 2), b"xy"), Outcome::Whole(b"xy".to_vec()));
        assert_eq!(take(&mut r, 11, (1, 3, 8), b"def"), Outcome::Whole(b"abcdefgh".to_vec()));
        assert!(r.open.is_empty());
    }

    #[test]
    fn pieces_that_are_none() {
        let mut r = Reassembly::default();
        for (number, what, piece) in [
            (9, (0, 0, 2), &b"ab"[..]),
            (9, (0, 17, 17), b"a"),
            (9, (3, 3, 8), b"ab"),
            (9, (0, 1, 3), b"ab"),
            (9, (0, 3, 8), b"ab"),
            (9, (2, 3, 8), b"abc"),
            (0, (1, 2, 4), b"ab"),
            (9, (0, 1, 0), b""),
            // Rounded up, four pieces of two are enough for eight: there is nothing for a fifth.
            (9, (4, 5, 8), b""),
        ] {
            assert_eq!(take(&mut r, number, what, piece), Outcome::Bad, "{what:?}");
        }
        assert_eq!(take(&mut r, 20, (0, 2, 4), b"ab"), Outcome::Incomplete);
        assert_eq!(take(&mut r, 21, (1, 2, 3), b"c"), Outcome::Bad);
        assert_eq!(take(&mut r, 21, (1, 3, 6), b"cd"), Outcome::Bad);
    }

    #[test]
    fn the_oldest_and_the_late_are_given_up() {
        let (mut r, mut lost) = (Reassembly::default(), 0);
        for n in 0..MAX_OPEN as u64 + 3 {
            r.take(START, 2 * n, (0, 2, 4), b"ab", &mut lost);
        }
        assert_eq!((r.open.len(), lost), (MAX_OPEN, 3));
        assert_eq!(r.take(START, 1, (1, 2, 4), b"cd", &mut lost), Outcome::Incomplete);
        assert_eq!(lost, 4);
        r.take(START + PATIENCE, 1000, (0, 2, 4), b"ab", &mut lost);
        assert_eq!((r.open.len(), lost), (1, 4 + MAX_OPEN as u64));
    }
}
