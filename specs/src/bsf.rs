//! Signature keys: byte stream format (BSF) segments, protection signature values (PSV), and the CQE of a
//! signature error.
//!
//! The public manual does not have these; fields and values as the mlx5 driver and mlx5dv use them.

use crate::layout::layout;

layout! {
    /// Format of the data in memory and on the wire, 64 bytes. It is loaded into a key by a UMR WQE.
    pub struct Bsf[0x40] {
        /// Which parts are present: [`BSF_WITH_INLINE`].
        PARTS: 0x0 [31:30];
        /// 1 = both domains have the same block structure; [`Bsf::WIRE`] then is a copy mask.
        SAME_STRUCTURE: 0x0 [28:28];
        /// Bytes of the incoming signature that are checked: bit 7 is the first byte.
        CHECK_MASK: 0x0 [23:16];
        /// Block size of the wire domain ([`block_size`]), or bytes of the signature that are copied.
        WIRE: 0x0 [15:8];
        /// Block size of the memory domain ([`block_size`]).
        MEMORY: 0x0 [7:0];
        /// Bytes of data without signatures.
        RAW_DATA_SIZE: 0x4 [31:0];
        /// Block format of the wire domain ([`format`]); 0 if the inline part defines it.
        WIRE_FORMAT: 0x8 [31:24];
        /// The wire domain's PSV.
        WIRE_PSV: 0x8 [23:0];
        /// Block format of the memory domain.
        MEMORY_FORMAT: 0xc [31:24];
        /// The memory domain's PSV.
        MEMORY_PSV: 0xc [23:0];
        /// The wire domain's PSV of a transaction's signature, with its format; 0 = there is none (mlx5 driver, `struct mlx5_bsf`).
        WIRE_TRANSACTION: 0x18 [31:0];
        /// The same of the memory domain.
        MEMORY_TRANSACTION: 0x1c [31:0];
    } views {
        /// T10-DIF of the wire domain.
        wire_dif, wire_dif_mut: 0x20 Dif;
        /// T10-DIF of the memory domain.
        memory_dif, memory_dif_mut: 0x30 Dif;
    }

    /// T10-DIF of a domain, 16 bytes: the inline part of a [`Bsf`].
    pub struct Dif[0x10] {
        /// 1 = the domain has T10-DIF.
        VALID: 0x0 [31:31];
        /// 1 = the tags start anew with every block.
        REFRESH: 0x0 [30:30];
        /// Application tag.
        APP_TAG: 0x0 [15:0];
        /// Reference tag of the first block.
        REF_TAG: 0x4 [31:0];
        /// Guard: [`GUARD_CRC`] or [`GUARD_CHECKSUM`].
        GUARD: 0x8 [31:24];
        /// 1 = every block has a signature, not only the first.
        REPEAT: 0x8 [23:23];
        /// The guard's seed is all ones.
        SEED: 0x8 [19:19];
        /// 1 = the reference tag increases by one from block to block.
        INCREMENT: 0xc [22:22];
        /// 1 = no check where application and reference tag are all ones.
        APP_REF_ESCAPE: 0xc [17:17];
        /// 1 = no check where the application tag is all ones.
        APP_ESCAPE: 0xc [16:16];
        /// Bits of the application tag that are checked.
        APP_MASK: 0xc [15:0];
    }

    /// SET_PSV segment, 16 bytes.
    pub struct SetPsv[0x10] {
        /// The PSV.
        PSV: 0x0 [23:0];
        /// Its new value: the guard's seed in the highest bits; for T10-DIF the tags follow.
        VALUE: 0x8 u64;
    }

    /// CQE of a signature error, 64 bytes.
    pub struct SigErrCqe[0x40] {
        /// The high half of the signature that came.
        EXPECTED_HIGH: 0x10 [31:0];
        /// The high half of the signature that the data that came has.
        ACTUAL_HIGH: 0x14 [31:0];
        /// The low half (T10-DIF: the reference tag) of the signature that came.
        EXPECTED_LOW: 0x18 [31:0];
        /// The low half of the signature that the data that came has.
        ACTUAL_LOW: 0x1c [31:0];
        /// What is wrong ([`sig_err`]).
        SYNDROME: 0x20 [31:16];
        /// Kind of signature; 0 = of a block.
        SIG_TYPE: 0x20 [10:8];
        /// [`sig_err::WIRE`] or [`sig_err::MEMORY`].
        DOMAIN: 0x20 [2:0];
        /// The key.
        MKEY: 0x24 [31:0];
        /// Where in the domain, signatures included, the block begins.
        OFFSET: 0x28 u64;
        /// The queue pair.
        QPN: 0x38 [23:0];
        /// [`crate::cqe::CqeOpcode::SigErr`].
        OPCODE: 0x3c [7:4];
    }

    /// CREATE_PSV input.
    pub struct CreatePsvIn[0x10] {
        /// How many PSVs: 1 to [`MAX_PSVS`].
        NUM_PSV: 0x8 [31:28];
        /// Their protection domain.
        PD: 0x8 [23:0];
    }

    /// CREATE_PSV output.
    pub struct CreatePsvOut[0x20] {
        /// The first PSV.
        PSV0: 0x10 [23:0];
        /// The second.
        PSV1: 0x14 [23:0];
        /// The third.
        PSV2: 0x18 [23:0];
        /// The fourth.
        PSV3: 0x1c [23:0];
    }
}

/// [`Bsf::PARTS`]: with the inline parts.
pub const BSF_WITH_INLINE: u32 = 2;
/// A BSF's size in 16-byte units.
pub const BSF_OCTWORDS: u32 = 4;
/// PSVs that one CREATE_PSV makes at most.
pub const MAX_PSVS: u32 = 4;
/// [`Dif::GUARD`]: the CRC-16 of T10.
pub const GUARD_CRC: u32 = 1;
/// [`Dif::GUARD`]: the checksum of IP.
pub const GUARD_CHECKSUM: u32 = 2;

/// Block formats without tags ([`Bsf::WIRE_FORMAT`]).
pub mod format {
    /// The bits that name the CRC.
    pub const KIND_MASK: u32 = 0xf0;
    /// CRC-32 of Ethernet and Fibre Channel.
    pub const CRC32: u32 = 0x20;
    /// CRC-32C of iSCSI.
    pub const CRC32C: u32 = 0x40;
    /// CRC-64 of XP10.
    pub const CRC64_XP10: u32 = 0x50;
    /// Every block has a signature.
    pub const REPEAT: u32 = 0x2;
    /// The seed is zero.
    pub const SEED_ZERO: u32 = 0x1;
}

/// Syndromes and domains of a [`SigErrCqe`].
pub mod sig_err {
    /// The guard, or the CRC, is wrong.
    pub const GUARD: u32 = 1 << 13;
    /// The application tag is wrong.
    pub const APP_TAG: u32 = 1 << 12;
    /// The reference tag is wrong.
    pub const REF_TAG: u32 = 1 << 11;
    /// Domain: the wire.
    pub const WIRE: u32 = 0;
    /// Domain: memory.
    pub const MEMORY: u32 = 1;
}

/// Bytes of a block, by selector; `None`: the adapter has no such size.
pub const fn block_size(selector: u32) -> Option<u32> {
    Some(match selector {
        1 => 512,
        2 => 520,
        3 => 4096,
        4 => 4160,
        6 => 4048,
        _ => return None,
    })
}

/// The largest block.
pub const MAX_BLOCK: usize = 4160;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bsf() {
        let mut b = Bsf::new();
        b.set(Bsf::PARTS, BSF_WITH_INLINE).set(Bsf::SAME_STRUCTURE, 1).set(Bsf::CHECK_MASK, 0xf0);
        b.set(Bsf::WIRE, 0xcf).set(Bsf::MEMORY, 1).set(Bsf::MEMORY_PSV, 7);
        b.set(Bsf::MEMORY_FORMAT, format::CRC32 | format::REPEAT);
        b.memory_dif_mut().set(Dif::VALID, 1).set(Dif::APP_TAG, 0xabcd).set(Dif::GUARD, GUARD_CRC);
        b.memory_dif_mut()
            .set(Dif::REPEAT, 1)
            .set(Dif::SEED, 1)
            .set(Dif::INCREMENT, 1)
            .set(Dif::APP_MASK, 0xffff);
        assert_eq!(b.bytes()[..4], [0x90, 0xf0, 0xcf, 1]);
        assert_eq!(b.bytes()[12..16], [0x22, 0, 0, 7]);
        assert_eq!(b.bytes()[0x30..0x34], [0x80, 0, 0xab, 0xcd]);
        assert_eq!(b.bytes()[0x38..0x40], [1, 0x88, 0, 0, 0, 0x40, 0xff, 0xff]);
    }

    #[test]
    fn golden_error() {
        let mut c = SigErrCqe::new();
        c.set(SigErrCqe::SYNDROME, sig_err::GUARD).set(SigErrCqe::DOMAIN, sig_err::MEMORY);
        assert_eq!(c.bytes()[0x20..0x24], [0x20, 0, 0, 1]);
        c.set(SigErrCqe::OPCODE, 12);
        assert_eq!(c.bytes()[0x3f], 0xc0);
    }
}
