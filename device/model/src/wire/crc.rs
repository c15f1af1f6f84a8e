//! The two checksums of an InfiniBand packet.
//!
//! - The *invariant* CRC (ICRC, IBTA vol 1 7.8.1) covers what no switch or router may change: the
//!   Ethernet CRC-32 (polynomial 0x04C11DB7, seed and final complement all ones) over LRH to the end
//!   of the pad, with the variable fields read as ones.
//! - The *variant* CRC (VCRC, IBTA vol 1 7.8.2) covers everything from the LRH to the ICRC, and each
//!   link computes it anew: CRC-16 with polynomial 0x100B, seed and final complement all ones.
//!
//! Both take the bits of a byte from the least significant on and travel in that order too, so in
//! the bit-reflected form used here the register goes out in little-endian byte order.

use hca_spec::wire::{Bth, Grh, Lrh};

/// The polynomial 0x100B, bit-reflected.
const VCRC_POLYNOMIAL: u16 = 0xd008;
/// Bytes that one step of the sliced VCRC takes.
const SLICE: usize = 8;

/// `VCRC_TABLES[k][b]`: what byte `b` adds to the remainder when `k` more bytes follow it.
static VCRC_TABLES: [[u16; 256]; SLICE] = vcrc_tables();

#[allow(clippy::indexing_slicing, reason = "worked out by the compiler")]
const fn vcrc_tables() -> [[u16; 256]; SLICE] {
    let mut tables = [[0u16; 256]; SLICE];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ if remainder & 1 != 0 { VCRC_POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = remainder;
        byte += 1;
    }
    let mut k = 1;
    while k < SLICE {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// The VCRC of `bytes` (LRH up to and with the ICRC), as it travels.
#[allow(clippy::indexing_slicing, reason = "a byte is an index into a table of 256")]
pub(super) fn vcrc(bytes: &[u8]) -> [u8; 2] {
    let t = &VCRC_TABLES;
    let mut crc = 0xffff_u16;
    let (chunks, rest) = bytes.as_chunks::<SLICE>();
    for &[b0, b1, b2, b3, b4, b5, b6, b7] in chunks {
        // The remainder so far only meets the first two bytes.
        let [r0, r1] = crc.to_le_bytes();
        crc = t[7][(b0 ^ r0) as usize]
            ^ t[6][(b1 ^ r1) as usize]
            ^ t[5][b2 as usize]
            ^ t[4][b3 as usize]
            ^ t[3][b4 as usize]
            ^ t[2][b5 as usize]
            ^ t[1][b6 as usize]
            ^ t[0][b7 as usize];
    }
    for byte in rest {
        crc = (crc >> 8) ^ t[0][(crc as u8 ^ byte) as usize];
    }
    (!crc).to_le_bytes()
}

/// The ICRC of a local packet, as it travels. `rest` is all between BTH and ICRC.
pub(super) fn icrc_local(lrh: &Lrh, bth: &Bth, rest: &[u8]) -> [u8; 4] {
    let mut lrh = *lrh;
    lrh.set(Lrh::VL, Lrh::VL.max());
    finish(&[lrh.bytes(), masked(bth).bytes(), rest])
}

/// The ICRC of a packet with a GRH, as it travels. `rest` is all between BTH and ICRC.
///
/// A router replaces the whole LRH, so it counts as ones (IBTA vol 1 7.8.1). That also makes this the
/// ICRC of a RoCE version 1 packet, which has no LRH.
pub(super) fn icrc_global(grh: &Grh, bth: &Bth, rest: &[u8]) -> [u8; 4] {
    let mut grh = *grh;
    grh.set(Grh::TCLASS, Grh::TCLASS.max())
        .set(Grh::FLOW_LABEL, Grh::FLOW_LABEL.max())
        .set(Grh::HOP_LMT, Grh::HOP_LMT.max());
    finish(&[&[0xff; Lrh::SIZE], grh.bytes(), masked(bth).bytes(), rest])
}

/// The BTH with its variable byte (Resv8a, beside the destination QP) as ones.
fn masked(bth: &Bth) -> Bth {
    const RESV8A: usize = 4;
    let mut bth = *bth;
    bth.bytes_mut()[RESV8A] = 0xff;
    bth
}

fn finish(parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = crc32fast::Hasher::new();
    for part in parts {
        crc.update(part);
    }
    crc.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One bit at a time, straight from IBTA vol 1 figure "VCRC generator": the plain, slow truth.
    fn vcrc_bitwise(bytes: &[u8]) -> [u8; 2] {
        let mut register = 0xffff_u16;
        for byte in bytes {
            for bit in 0..8 {
                let feedback = (register >> 15) ^ u16::from(byte >> bit & 1);
                register <<= 1;
                if feedback != 0 {
                    register ^= 0x100b;
                }
            }
        }
        (!register).reverse_bits().to_le_bytes()
    }

    #[test]
    fn sliced_vcrc_is_the_bitwise_one() {
        let bytes: Vec<u8> = (0..4200_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in (0..80).chain([4096, 4097, 4122, 4200]) {
            assert_eq!(vcrc(&bytes[..len]), vcrc_bitwise(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn vcrc_table_has_the_published_values() {
        // The values of the VCRC table that other implementations of polynomial 0x100B print
        // (Mellanox VAPI 2004, packet generator; Endace dagcrc computes the same ones).
        let t = &VCRC_TABLES[0];
        assert_eq!((t[1], t[2], t[16], t[128], t[255]), (0x1ba1, 0x3742, 0x1a01, 0xd008, 0x0960));
    }
}
