//! The variant CRC of an InfiniBand packet (IBTA vol 1 7.8.2).
//!
//! It covers everything from the LRH to the ICRC, and each link computes it anew: CRC-16 with polynomial 0x100B, seed and
//! final complement all ones. It takes the bits of a byte from the least significant on and travels in that order too,
//! so in the bit-reflected form used here the register goes out in little-endian byte order.

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
