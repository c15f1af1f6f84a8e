//! Which bits of a packet a group compares, and the key that entries are found by.

use std::sync::Arc;

use hca_spec::be32;
use hca_spec::flow::{MatchParam, TableType};

use super::fields::{needed, widened};
use super::key::{MatchValue, WORDS, param};

/// Words of a part of [`MatchParam`]; bit n of `match_criteria_enable` is for part n.
const PART: usize = 16;
/// Words of [`MatchParam`].
const ALL_WORDS: usize = MatchParam::SIZE / 4;

/// Bits by the number of their word; words without bits are left out.
type Words = Box<[(u8, u32)]>;

/// What is compared, as groups with the same criteria share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Criteria {
    words: Words,
    /// Headers that a packet must have.
    needs: u32,
}

/// Criteria that ask for a field that can't be compared: the byte offset of its word in the criteria.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotCompared(pub(crate) u32);

/// The bits of the parts that count.
pub(super) fn given(mask: &MatchParam, enable: u32) -> Words {
    let words = (0..ALL_WORDS).filter(|word| enable >> (word / PART) & 1 == 1);
    words.map(|word| (word as u8, be32(mask.bytes(), word * 4))).filter(|(_, bits)| *bits != 0).collect()
}

impl Criteria {
    /// What tables of a type compare if those bits are given; `geneve`: the adapter looks into Geneve.
    pub(super) fn new(kind: TableType, geneve: bool, given: &[(u8, u32)]) -> Result<Self, NotCompared> {
        let mut needs = 0;
        let mut words = Vec::with_capacity(given.len());
        for (word, bits) in given.iter().copied() {
            let at = usize::from(word);
            needs |= needed((kind, geneve), at, bits).ok_or(NotCompared(u32::from(word) * 4))?;
            words.push((word, widened(at, bits)));
        }
        Ok(Self { words: words.into(), needs })
    }

    /// The key of an entry: its values, as far as they are given.
    pub(super) fn key_of(given: &[(u8, u32)], value: &MatchParam) -> Arc<[u32]> {
        given.iter().map(|(word, bits)| be32(value.bytes(), usize::from(*word) * 4) & bits).collect()
    }

    /// The key of a packet, in `room`. `None`: it does not have what is compared.
    #[inline]
    pub(super) fn key<'a>(&self, packet: &MatchValue, room: &'a mut [u32; WORDS]) -> Option<&'a [u32]> {
        if self.needs & !packet.present != 0 {
            return None;
        }
        for (to, (word, bits)) in room.iter_mut().zip(&self.words) {
            *to = packet.words.get(usize::from(*word))? & bits;
        }
        room.get(..self.words.len())
    }
}

/// Bits as they were given.
pub(super) fn mask(given: &[(u8, u32)]) -> MatchParam {
    param(given.iter().map(|(word, bits)| (usize::from(*word), *bits)))
}

/// An entry's values.
pub(super) fn value(given: &[(u8, u32)], key: &[u32]) -> MatchParam {
    param(given.iter().zip(key).map(|((word, _), value)| (usize::from(*word), *value)))
}
