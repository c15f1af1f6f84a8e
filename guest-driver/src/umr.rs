//! Changing memory keys with work requests instead of commands (UMR), and keys that consist of pieces of
//! other keys: lists, strided layouts, memory windows.
//!
//! A key for this is made free and with room ([`Hca::alloc_key`]); a work request
//! ([`SendOp::Change`](crate::SendOp::Change)) then gives it translations, a range, rights and a new variant
//! byte, in use from the moment it completes (PRM "UMR WQE"; masks and checks as the mlx5 driver uses them).

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use crate::mr::Access;
use crate::wqe::Sge;
use alloc::vec::Vec;
use hca_spec::bsf::{BSF_OCTWORDS, Bsf};
use hca_spec::cmd::CreateMkeyIn;
use hca_spec::command::Opcode;
use hca_spec::crypto::CryptoBsf;
use hca_spec::ids::{Mkey, Pd, Qpn};
use hca_spec::mkc::{ANY_QP, AccessMode, Klm, Mkc, REPEAT_BLOCK, RepeatBlock, RepeatPiece};
use hca_spec::wqe::{UmrCtrl, umr_mask};

/// Translations are loaded in units of 16 bytes, in chunks of 64 bytes.
const OCTWORD: usize = 16;
const CHUNK: usize = 64;
/// The longest piece that a list can have: 2 GiB.
pub const MAX_PIECE: u64 = 1 << 31;

/// What a key is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// Pages of `1 << log2` bytes; two take one unit of room.
    Pages(u32),
    /// Pieces of other keys, of any length.
    Pieces,
    /// Pieces of other keys, each `1 << log2` bytes long.
    Blocks(u32),
}

/// A work request's change of a key. What is not mentioned stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyChange {
    /// The key; its variant byte does not matter.
    pub key: Mkey,
    /// UMR control segment; the number of translations is added when the WQE is built.
    pub ctrl: UmrCtrl,
    /// New values of the fields that the mask selects.
    pub mkc: Mkc,
    /// New signature part.
    pub bsf: Option<Bsf>,
    /// New encryption part.
    pub crypto: Option<CryptoBsf>,
}

/// Parts that a key has room for beside its translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// None.
    None,
    /// A signature part.
    Signature,
    /// A signature part and an encryption part.
    Both,
}

impl KeyChange {
    /// A change of nothing.
    pub fn new(key: Mkey) -> Self {
        Self { key, ctrl: UmrCtrl::new(), mkc: Mkc::new(), bsf: None, crypto: None }
    }

    pub(crate) fn mask(mut self, bits: u64) -> Self {
        let mask = self.ctrl.get(UmrCtrl::MKEY_MASK) | bits;
        self.ctrl.set(UmrCtrl::MKEY_MASK, mask);
        self
    }

    /// Fails unless the key is free.
    pub fn if_free(mut self) -> Self {
        self.ctrl.set(UmrCtrl::CHECK_NOT_FREE, 1);
        self
    }

    /// Fails if the key is bound to another queue pair.
    pub fn if_mine(mut self) -> Self {
        self.ctrl.set(UmrCtrl::CHECK_QPN, 1);
        self
    }

    /// The key is in use from now on, with that variant byte.
    pub fn enable(mut self, variant: u8) -> Self {
        self.mkc.set(Mkc::MKEY_7_0, variant.into()).set(Mkc::FREE, 0);
        self.mask(umr_mask::KEY | umr_mask::FREE)
    }

    /// The key is free from now on.
    pub fn free(mut self) -> Self {
        self.mkc.set(Mkc::FREE, 1);
        self.mask(umr_mask::FREE)
    }

    /// New rights. The right to read locally stays as the key was made with.
    pub fn access(mut self, access: Access) -> Self {
        access.write_to(&mut self.mkc);
        self.mask(umr_mask::LW | umr_mask::RR | umr_mask::RW | umr_mask::A)
    }

    /// New range.
    pub fn range(mut self, address: u64, len: u64) -> Self {
        self.mkc.set(Mkc::START_ADDR, address).set(Mkc::LEN, len);
        self.mask(umr_mask::START_ADDR | umr_mask::LEN)
    }

    /// Only that queue pair may use the key from now on; `None`: any may.
    pub fn bound_to(mut self, qpn: Option<Qpn>) -> Self {
        self.mkc.set(Mkc::QPN, qpn.map_or(ANY_QP, |q| q.0));
        self.mask(umr_mask::QPN)
    }

    /// Moves the key to another protection domain: only for registration queue pairs.
    pub fn domain(mut self, pd: Pd) -> Self {
        self.mkc.set(Mkc::PD, pd.0);
        self.mask(umr_mask::PD)
    }

    /// The translations go where those from unit `octword` on are, instead of replacing the first.
    pub fn at(mut self, octword: u64) -> Self {
        self.ctrl.set(UmrCtrl::TRANSLATION_OFFSET_EN, 1);
        self.ctrl.set(UmrCtrl::XLT_OFFSET, octword as u32 & 0xffff);
        self.ctrl.set(UmrCtrl::XLT_OFFSET_47_16, (octword >> 16) as u32);
        self
    }
}

/// Translations of a list of pieces, padded to whole chunks.
pub fn pieces(list: &[Sge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(list.len() * OCTWORD);
    for piece in list {
        let mut klm = Klm::new();
        klm.set(Klm::BYTE_COUNT, piece.len).set(Klm::MKEY, piece.key.0).set(Klm::ADDRESS, piece.address);
        bytes.extend_from_slice(klm.bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(CHUNK), 0);
    bytes
}

/// Translations of a strided layout: `cycles` times the pieces, each from an address that moves on by its
/// length and its gap. Lengths, and lengths with gaps, are below 2^16.
pub fn strided(cycles: u32, list: &[(Sge, u16)]) -> Vec<u8> {
    let mut block = RepeatBlock::new();
    let cycle = list.iter().map(|(piece, _)| piece.len).sum();
    block.set(RepeatBlock::BYTE_COUNT, cycle).set(RepeatBlock::OP, REPEAT_BLOCK);
    block.set(RepeatBlock::REPEAT_COUNT, cycles).set(RepeatBlock::NUM_ENTRIES, list.len() as u32);
    let mut bytes = block.bytes().to_vec();
    for (piece, gap) in list {
        let mut entry = RepeatPiece::new();
        entry.set(RepeatPiece::STRIDE, piece.len + u32::from(*gap)).set(RepeatPiece::BYTE_COUNT, piece.len);
        entry.set(RepeatPiece::MKEY, piece.key.0).set(RepeatPiece::ADDRESS, piece.address);
        bytes.extend_from_slice(entry.bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(CHUNK), 0);
    bytes
}

/// Translations of pages, padded to whole chunks.
pub fn page_list(pages: &[u64]) -> Vec<u8> {
    let present = hca_spec::mkc::MTT_READ | hca_spec::mkc::MTT_WRITE;
    let mut bytes: Vec<u8> = pages.iter().flat_map(|p| (p | present).to_be_bytes()).collect();
    bytes.resize(bytes.len().next_multiple_of(CHUNK), 0);
    bytes
}

impl<B: Bus> Hca<B> {
    /// Makes a free key that work requests fill, with room for that many units of 16 bytes of
    /// translations. A peer may invalidate it if `invalidatable`.
    pub fn alloc_key(
        &mut self,
        pd: Pd,
        kind: KeyKind,
        room: u32,
        invalidatable: bool,
    ) -> Result<Mkey, Error> {
        self.alloc_key_with(pd, kind, room, invalidatable, Parts::None)
    }

    pub(crate) fn alloc_key_with(
        &mut self,
        pd: Pd,
        kind: KeyKind,
        room: u32,
        invalidatable: bool,
        parts: Parts,
    ) -> Result<Mkey, Error> {
        let variant = self.next_key_variant();
        let mut input = CreateMkeyIn::new();
        let mkc = input.mkc_mut();
        match kind {
            KeyKind::Pages(log2) => mkc.set_access_mode(AccessMode::Mtt).set(Mkc::LOG_PAGE_SIZE, log2),
            KeyKind::Pieces => mkc.set_access_mode(AccessMode::Klm),
            KeyKind::Blocks(log2) => mkc.set_access_mode(AccessMode::Ksm).set(Mkc::LOG_PAGE_SIZE, log2),
        };
        mkc.set(Mkc::FREE, 1).set(Mkc::UMR_EN, 1).set(Mkc::LR, 1).set(Mkc::EN_RINVAL, invalidatable.into());
        mkc.set(Mkc::PD, pd.0).set(Mkc::QPN, ANY_QP).set(Mkc::MKEY_7_0, variant.into());
        match parts {
            Parts::None => {}
            Parts::Signature => _ = mkc.set(Mkc::BSF_EN, 1).set(Mkc::BSF_OCTWORD_SIZE, BSF_OCTWORDS),
            Parts::Both => {
                mkc.set(Mkc::BSF_EN, 1).set(Mkc::CRYPTO_EN, 1);
                mkc.set(Mkc::BSF_OCTWORD_SIZE, 2 * BSF_OCTWORDS);
            }
        }
        let units = (CHUNK / OCTWORD) as u32;
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, room.next_multiple_of(units));
        let index = self.create(Opcode::CreateMkey, 0, input.bytes().to_vec())?;
        Ok(Mkey::new(index, variant))
    }

    /// Destroys a key that [`Hca::alloc_key`] made.
    pub fn free_key(&mut self, key: Mkey) -> Result<(), Error> {
        self.object_command(Opcode::DestroyMkey, key.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_strided() {
        let sge = |address, key| Sge { address, len: 8, key: Mkey(key) };
        let bytes = strided(3, &[(sge(0x1000, 0x101), 2), (sge(0x2000, 0x202), 0)]);
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..16], [0, 0, 0, 16, 0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 0, 2]);
        assert_eq!(bytes[16..32], [0, 10, 0, 8, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(bytes[32..48], [0, 8, 0, 8, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0x20, 0]);
    }

    #[test]
    fn golden_pages() {
        let bytes = page_list(&[0x1_2345_6000]);
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..16], [0, 0, 0, 1, 0x23, 0x45, 0x60, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
