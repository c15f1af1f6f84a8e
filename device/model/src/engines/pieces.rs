//! Scatter and gather lists: one walk for what is sent, received and read back.
//!
//! Source: PRM "Memory Pointer Data Segment", "Inline Data Segment".

use hca_firmware::Icm;
use hca_spec::ids::Mkey;
use smallvec::SmallVec;

use crate::engines::mkey::{Fault, span};
use crate::ground::timing::Place;

/// Data that a WQE brings along. Short as most are it takes no memory of its own.
pub(crate) type Inline = SmallVec<[u8; 32]>;

/// A piece of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Memory { key: Mkey, va: u64, len: u32 },
    Inline(Inline),
}

impl Piece {
    /// Whether the data is in memory, not in the WQE.
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory { .. })
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory { len, .. } => u64::from(*len),
            Self::Inline(data) => data.len() as u64,
        }
    }
}

/// Bytes of a list.
pub(crate) fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::len).sum()
}

/// The piece of memory that byte `offset` of a list is in: how many bytes it has from there on, its key, and the address.
pub(crate) fn piece_at(pieces: &[Piece], offset: u64) -> Option<(u64, Mkey, u64)> {
    let mut skip = offset;
    for piece in pieces {
        let len = piece.len();
        match piece {
            Piece::Memory { key, va, .. } if skip < len => {
                return Some((len - skip, *key, va.wrapping_add(skip)));
            }
            Piece::Inline(_) if skip < len => return None,
            _ => skip -= len,
        }
    }
    None
}

/// Visits what bytes `offset..offset + len` of a list are made of, in order: the piece, the first byte
/// in it, and how many. What lies beyond the list's end is not visited.
pub(crate) fn walk(
    pieces: &[Piece],
    offset: u64,
    len: usize,
    mut visit: impl FnMut(&Piece, u64, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut skip, mut left) = (offset, len);
    for piece in pieces {
        if left == 0 {
            break;
        }
        let size = piece.len();
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(left as u64) as usize;
        visit(piece, skip, n)?;
        left -= n;
        skip = 0;
    }
    Ok(())
}

/// The memory that bytes `offset..offset + len` of a list are in, as the units see it.
pub(crate) fn spans(icm: &Icm, pieces: &[Piece], offset: u64, len: usize) -> impl Iterator<Item = Place> {
    let (mut skip, mut left) = (offset, len);
    pieces.iter().filter_map(move |piece| {
        let size = piece.len();
        if skip >= size || left == 0 {
            skip = skip.saturating_sub(size);
            return None;
        }
        let (from, n) = (std::mem::take(&mut skip), (size - skip).min(left as u64) as usize);
        left -= n;
        match piece {
            Piece::Memory { key, va, .. } => Some(span(icm, *key, va.wrapping_add(from), n)),
            Piece::Inline(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visits(offset: u64, len: usize) -> Vec<(u64, usize)> {
        let memory = |len| Piece::Memory { key: Mkey(0), va: 0, len };
        let list = [memory(4), Piece::Inline(Inline::from_elem(0, 3)), memory(5)];
        let mut seen = Vec::new();
        walk(&list, offset, len, |_, skip, n| {
            seen.push((skip, n));
            Ok(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn the_walk_starts_and_ends_within_pieces() {
        assert_eq!(visits(0, 12), [(0, 4), (0, 3), (0, 5)]);
        assert_eq!(visits(3, 5), [(3, 1), (0, 3), (0, 1)]);
        assert_eq!(visits(4, 3), [(0, 3)]);
        assert_eq!(visits(5, 0), []);
        assert_eq!(visits(10, 99), [(3, 2)], "not beyond the end");
        assert_eq!(visits(99, 1), []);
    }
}
