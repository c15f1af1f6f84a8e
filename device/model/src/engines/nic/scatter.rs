//! The scatter list of a receive WQE: where a frame's bytes go.
//!
//! Source: PRM "Receive Queue WQE".

use hca_spec::ids::Mkey;
use hca_spec::wqe::{DS_UNIT, Data, TERMINATE_LKEY};

use crate::engines::pieces::{Piece, total};

/// A stretch of memory under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) key: Mkey,
    pub(crate) va: u64,
    pub(crate) len: u32,
}

/// The list of one receive WQE; its memory is used again for the next.
///
/// A WQE has no more segments than its stride has room for, 128 at most.
#[derive(Debug, Default)]
pub(crate) struct ScatterList {
    stretches: Vec<Stretch>,
    room: u64,
}

impl ScatterList {
    /// Reads a WQE: segments up to the terminating key or to the end of the stride. Empty ones have no room.
    pub(crate) fn read(&mut self, wqe: &[u8]) {
        self.stretches.clear();
        self.room = 0;
        let (segments, _) = wqe.as_chunks::<DS_UNIT>();
        for segment in segments {
            let data = Data::from_prefix_or_zero(segment);
            let (key, len) = (data.get(Data::LKEY), data.get(Data::BYTE_COUNT));
            if key == TERMINATE_LKEY {
                break;
            }
            if len > 0 {
                self.stretches.push(Stretch { key: Mkey(key), va: data.get(Data::ADDRESS), len });
                self.room = self.room.saturating_add(len.into());
            }
        }
    }

    /// Takes the list of a WQE that was read already.
    pub(crate) fn set(&mut self, pieces: &[Piece]) {
        self.stretches.clear();
        self.room = total(pieces);
        self.stretches.extend(pieces.iter().filter_map(|piece| match piece {
            Piece::Memory { key, va, len } => Some(Stretch { key: *key, va: *va, len: *len }),
            Piece::Inline(_) => None,
        }));
    }

    /// Bytes that the list has room for.
    pub(crate) const fn room(&self) -> u64 {
        self.room
    }

    /// The list from that byte on.
    fn from(&self, offset: u64) -> impl Iterator<Item = Stretch> {
        let mut skip = offset;
        self.stretches.iter().filter_map(move |stretch| {
            let passed = skip.min(stretch.len.into());
            skip = skip.saturating_sub(passed);
            let len = stretch.len.saturating_sub(passed as u32);
            (len > 0).then_some(Stretch { va: stretch.va.wrapping_add(passed), len, ..*stretch })
        })
    }

    /// The list from that byte on, as other queues have theirs.
    pub(crate) fn pieces(&self, offset: u64) -> Vec<Piece> {
        self.from(offset).map(|Stretch { key, va, len }| Piece::Memory { key, va, len }).collect()
    }

    /// Where these bytes go, one stretch after the other from the list's byte `offset` on: each place with what is written
    /// there. What there is no room for is not visited.
    ///
    /// # Errors
    /// The first that `visit` has; nothing is visited after it.
    pub(crate) fn place<'d, E>(
        &self,
        offset: u64,
        parts: &[&'d [u8]],
        mut visit: impl FnMut(Stretch, &'d [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut stretches = self.from(offset);
        let mut stretch = stretches.next();
        for part in parts {
            let mut part = *part;
            while let Some(now) = stretch.filter(|_| !part.is_empty()) {
                let (bytes, rest) = part.split_at(part.len().min(now.len as usize));
                let len = bytes.len() as u32;
                visit(Stretch { len, ..now }, bytes)?;
                part = rest;
                let left =
                    Stretch { va: now.va.wrapping_add(len.into()), len: now.len.saturating_sub(len), ..now };
                stretch = if left.len == 0 { stretches.next() } else { Some(left) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wqe(segments: &[(u32, u32, u64)]) -> Vec<u8> {
        let segment = |(len, key, va): &(u32, u32, u64)| {
            let mut data = Data::new();
            data.set(Data::BYTE_COUNT, *len).set(Data::LKEY, *key).set(Data::ADDRESS, *va);
            *data.bytes()
        };
        segments.iter().flat_map(segment).collect()
    }

    fn placed(list: &ScatterList, parts: &[&[u8]]) -> Vec<(u32, u64, Vec<u8>)> {
        let mut all = Vec::new();
        let done: Result<(), ()> = list.place(0, parts, |at, bytes| {
            assert_eq!(at.len as usize, bytes.len());
            all.push((at.key.0, at.va, bytes.to_vec()));
            Ok(())
        });
        assert_eq!(done, Ok(()));
        all
    }

    #[test]
    fn the_list_ends_at_the_terminator_or_the_stride() {
        let mut list = ScatterList::default();
        list.read(&wqe(&[(4, 7, 100), (0, 8, 0), (3, 9, 200), (0, TERMINATE_LKEY, 0), (99, 7, 0)]));
        assert_eq!((list.room(), list.stretches.len()), (7, 2));
        list.read(&wqe(&[(4, 7, 100), (5, 7, 300)])[..31]);
        assert_eq!(list.room(), 4, "half a segment is none");
        list.read(&wqe(&[(u32::MAX >> 1, 7, 0), (u32::MAX >> 1, 7, 0)]));
        assert_eq!(list.room(), 2 * u64::from(u32::MAX >> 1));
    }

    #[test]
    fn parts_and_stretches_need_not_meet() {
        let mut list = ScatterList::default();
        list.read(&wqe(&[(4, 7, 100), (3, 9, u64::MAX)]));
        let got = placed(&list, &[b"ab", b"", b"cdefg", b"lost"]);
        let right = [(7, 100, b"ab".to_vec()), (7, 102, b"cd".to_vec()), (9, u64::MAX, b"efg".to_vec())];
        assert_eq!(got, right);
        let mut visits = 0;
        let failed = list.place(0, &[b"abcdefg"], |_, _| {
            visits += 1;
            Err(())
        });
        assert_eq!((failed, visits), (Err(()), 1));
    }

    #[test]
    fn from_the_middle_of_a_list() {
        let mut list = ScatterList::default();
        list.read(&wqe(&[(4, 7, 100), (3, 9, 200), (5, 8, 300)]));
        let mut got = Vec::new();
        let done: Result<(), ()> = list.place(5, &[b"abcd"], |at, bytes| {
            got.push((at.key.0, at.va, bytes.len()));
            Ok(())
        });
        assert_eq!((done, got), (Ok(()), vec![(9, 201, 2), (8, 300, 2)]));
        assert_eq!(total(&list.pieces(5)), 7);
        assert_eq!((list.pieces(12), total(&list.pieces(0))), (vec![], 12));
    }

    proptest! {
        #[test]
        fn bytes_come_in_order_and_fill_the_room(
            lens in prop::collection::vec(0u32..20, 0..8),
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..4),
        ) {
            let mut list = ScatterList::default();
            list.read(&wqe(&lens.iter().map(|len| (*len, 5, 0)).collect::<Vec<_>>()));
            let all = parts.concat();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let got: Vec<u8> = placed(&list, &parts).into_iter().flat_map(|p| p.2).collect();
            let room = lens.iter().sum::<u32>() as usize;
            prop_assert_eq!(&got[..], &all[..all.len().min(room)]);
        }
    }
}
