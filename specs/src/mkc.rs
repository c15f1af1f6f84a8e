//! Memory key context (MKC) and translation entries.
//!
//! Source: PRM "Memory Key Context", "MTT entry", "KLM"; the repeat block: mlx5 driver and mlx5dv (field use).

use crate::layout::layout;

layout! {
    /// Memory key context, 64 bytes.
    pub struct Mkc[0x40] {
        /// 1 = the key is free: no access passes.
        FREE: 0x0 [30:30];
        /// Access mode, bits 4..2 ([`AccessMode`]).
        ACCESS_MODE_4_2: 0x0 [28:26];
        /// 1 = writes under the key may pass others on PCI Express: a permission.
        RELAXED_ORDERING_WRITE: 0x0 [18:18];
        /// 1 = UMR WQEs may change the key.
        UMR_EN: 0x0 [15:15];
        /// Remote atomic allowed.
        A: 0x0 [14:14];
        /// Remote write allowed.
        RW: 0x0 [13:13];
        /// Remote read allowed.
        RR: 0x0 [12:12];
        /// Local write allowed.
        LW: 0x0 [11:11];
        /// Local read allowed.
        LR: 0x0 [10:10];
        /// Access mode, bits 1..0.
        ACCESS_MODE_1_0: 0x0 [9:8];
        /// The only queue pair that may use the key; [`ANY_QP`] = any.
        QPN: 0x4 [31:8];
        /// Variant: the low byte of the key.
        MKEY_7_0: 0x4 [7:0];
        /// 1 = the whole address space, `LEN` is ignored.
        LENGTH64: 0xc [31:31];
        /// 1 = data passes the key's signature domains.
        BSF_EN: 0xc [30:30];
        /// Changes whenever the driver has seen a signature error: only then the next one is reported.
        EXPECTED_SIGERR_COUNT: 0xc [26:26];
        /// 1 = remote invalidation allowed.
        EN_RINVAL: 0xc [24:24];
        /// Protection domain.
        PD: 0xc [23:0];
        /// First (virtual) address of the region; of device memory, where it lies in BAR0.
        START_ADDR: 0x10 u64;
        /// Length of the region in bytes.
        LEN: 0x18 u64;
        /// Size of the signature part, 16-byte units.
        BSF_OCTWORD_SIZE: 0x20 [31:0];
        /// Room for translations, 16-byte units (2 MTTs or 1 KLM each).
        TRANSLATIONS_OCTWORD_SIZE: 0x34 [31:0];
        /// 1 = reads under the key may pass others on PCI Express: a permission.
        RELAXED_ORDERING_READ: 0x38 [6:6];
        /// log2 of the page size in bytes.
        LOG_PAGE_SIZE: 0x38 [5:0];
        /// 1 = data is encrypted on one side of the key ([`crate::crypto::CryptoBsf`]); 2 and 3 are reserved.
        CRYPTO_EN: 0x3c [28:27];
    }

    /// Indirect translation entry: a piece of another key, 16 bytes.
    pub struct Klm[16] {
        /// Bytes of the piece.
        BYTE_COUNT: 0x0 [31:0];
        /// The other key.
        MKEY: 0x4 [31:0];
        /// Address under the other key.
        ADDRESS: 0x8 u64;
    }

    /// An indirect translation entry that repeats the [`RepeatPiece`]s after it (strided layout), 16 bytes.
    ///
    /// It stands for `REPEAT_COUNT` cycles; in each, every piece contributes its bytes once, from an
    /// address that moves on by the piece's stride from cycle to cycle.
    pub struct RepeatBlock[16] {
        /// Bytes of one cycle: the sum over the pieces.
        BYTE_COUNT: 0x0 [31:0];
        /// [`REPEAT_BLOCK`], where other entries have a key.
        OP: 0x4 [31:0];
        /// Cycles.
        REPEAT_COUNT: 0x8 [31:0];
        /// Pieces that follow.
        NUM_ENTRIES: 0xc [15:0];
    }

    /// A piece of a [`RepeatBlock`], 16 bytes.
    pub struct RepeatPiece[16] {
        /// How far the address moves from one cycle to the next.
        STRIDE: 0x0 [31:16];
        /// Bytes in each cycle.
        BYTE_COUNT: 0x0 [15:0];
        /// The other key.
        MKEY: 0x4 [31:0];
        /// Address under the other key in the first cycle.
        ADDRESS: 0x8 u64;
    }
}

/// [`Mkc::QPN`]: any queue pair may use the key.
pub const ANY_QP: u32 = 0xff_ffff;

/// [`RepeatBlock::OP`]: no key has this number.
pub const REPEAT_BLOCK: u32 = 0x400;

/// The null key: it stands in the list of an indirect key where no other key is yet. An access that comes
/// to it meets a page that is not present. No other key has its number.
pub const NULL_MKEY: u32 = 0x300;

/// The reserved local key (QUERY_SPECIAL_CONTEXTS): addresses under it are bus addresses. Work requests of queues whose
/// context says so (`RLKY`) may name it for local accesses, in every protection domain. No other key has its number.
pub const RESERVED_LKEY: u32 = 0x700;

/// MTT entry: readable.
pub const MTT_READ: u64 = 1;
/// MTT entry: writable.
pub const MTT_WRITE: u64 = 2;
/// MTT entry: the bits of the page address.
pub const MTT_ADDRESS: u64 = !0xfff;

/// How a memory key translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AccessMode {
    /// Physical: the address is the DMA address.
    Pa = 0,
    /// A list of pages.
    Mtt = 1,
    /// A list of pieces of other keys.
    Klm = 2,
    /// A list of equally long pieces of other keys.
    Ksm = 3,
    /// Device memory: [`Mkc::START_ADDR`] is where in BAR0 it lies, and addresses under the key begin at 0.
    Memic = 5,
    /// Memory for entries of flow tables: as device memory, and [`Mkc::START_ADDR`] is where it lies.
    SwIcm = 4,
}

impl Mkc {
    /// The access mode, if it is one this adapter has.
    #[inline]
    pub fn access_mode(&self) -> Option<AccessMode> {
        Some(match self.get(Mkc::ACCESS_MODE_4_2) << 2 | self.get(Mkc::ACCESS_MODE_1_0) {
            0 => AccessMode::Pa,
            1 => AccessMode::Mtt,
            2 => AccessMode::Klm,
            3 => AccessMode::Ksm,
            4 => AccessMode::SwIcm,
            5 => AccessMode::Memic,
            _ => return None,
        })
    }

    /// Sets the access mode.
    pub fn set_access_mode(&mut self, mode: AccessMode) -> &mut Self {
        self.set(Mkc::ACCESS_MODE_4_2, mode as u32 >> 2).set(Mkc::ACCESS_MODE_1_0, mode as u32 & 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_pa_key() {
        let mut m = Mkc::new();
        m.set_access_mode(AccessMode::Pa).set(Mkc::LW, 1).set(Mkc::LR, 1).set(Mkc::LENGTH64, 1);
        m.set(Mkc::PD, 9).set(Mkc::QPN, ANY_QP);
        let b = m.bytes();
        assert_eq!(b[..16], [0, 0, 0x0c, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0x80, 0, 0, 9]);
    }

    #[test]
    fn golden_repeat_block() {
        let mut b = RepeatBlock::new();
        b.set(RepeatBlock::BYTE_COUNT, 16).set(RepeatBlock::OP, REPEAT_BLOCK);
        b.set(RepeatBlock::REPEAT_COUNT, 3).set(RepeatBlock::NUM_ENTRIES, 2);
        assert_eq!(*b.bytes(), [0, 0, 0, 16, 0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 0, 2]);
        let mut p = RepeatPiece::new();
        p.set(RepeatPiece::STRIDE, 10).set(RepeatPiece::BYTE_COUNT, 8).set(RepeatPiece::MKEY, 0x1234);
        p.set(RepeatPiece::ADDRESS, 0x55);
        assert_eq!(*p.bytes(), [0, 10, 0, 8, 0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0x55]);
    }

    #[test]
    fn golden_mtt_key() {
        let mut m = Mkc::new();
        m.set_access_mode(AccessMode::Mtt).set(Mkc::FREE, 1).set(Mkc::UMR_EN, 1).set(Mkc::LOG_PAGE_SIZE, 12);
        assert_eq!(m.bytes()[..4], [0x40, 0, 0x81, 0]);
        assert_eq!(m.bytes()[0x38..0x3c], [0, 0, 0, 12]);
        assert_eq!(m.access_mode(), Some(AccessMode::Mtt));
    }
}
