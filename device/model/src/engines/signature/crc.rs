//! The guards of blocks: CRC-16 of T10, the checksum of IP, CRC-32, CRC-32C, CRC-64 of XP10.
//!
//! Source: T10 SBC-3 (CRC-16); RFC 1071 (checksum); FC-PH and IEEE 802.3 (CRC-32); RFC 3720 (CRC-32C); the
//! CRC-64 of XP10 is the one of NVM Express.

/// CRC-16 of T10, most significant bit first.
const T10: u16 = 0x8bb7;
/// CRC-32, bit-reflected.
const CRC32: u64 = 0xedb8_8320;
/// CRC-32C, bit-reflected.
const CRC32C: u64 = 0x82f6_3b78;
/// CRC-64 of XP10, bit-reflected.
const CRC64: u64 = 0x9a6c_9329_ac4b_c9b5;

static T10_TABLE: [u16; 256] = t10_table();
static CRC32_TABLE: [u64; 256] = reflected_table(CRC32);
static CRC32C_TABLE: [u64; 256] = reflected_table(CRC32C);
static CRC64_TABLE: [u64; 256] = reflected_table(CRC64);

#[allow(clippy::indexing_slicing, reason = "worked out by the compiler")]
const fn t10_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder << 1) ^ if remainder & 0x8000 != 0 { T10 } else { 0 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

#[allow(clippy::indexing_slicing, reason = "worked out by the compiler")]
const fn reflected_table(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ if remainder & 1 != 0 { polynomial } else { 0 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// Which guard protects a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// CRC-16 of T10, with tags.
    T10Crc,
    /// The checksum of IP, with tags.
    T10Checksum,
    Crc32,
    Crc32c,
    Crc64,
}

impl Guard {
    /// Bytes of the signature, tags included.
    pub(super) fn signature_len(self) -> usize {
        match self {
            Self::T10Crc | Self::T10Checksum | Self::Crc64 => 8,
            Self::Crc32 | Self::Crc32c => 4,
        }
    }

    /// Whether tags follow the guard.
    pub(super) fn has_tags(self) -> bool {
        matches!(self, Self::T10Crc | Self::T10Checksum)
    }

    /// The guard of `data`, in the low bits. The seed stands in the highest bits of `psv`.
    pub(super) fn of(self, data: &[u8], psv: u64) -> u64 {
        let low32 = |crc: u64| !crc & 0xffff_ffff;
        match self {
            Self::T10Crc => t10(data, (psv >> 48) as u16).into(),
            Self::T10Checksum => checksum(data, (psv >> 48) as u16).into(),
            Self::Crc32 => low32(reflected(&CRC32_TABLE, data, psv >> 32)),
            Self::Crc32c => low32(reflected(&CRC32C_TABLE, data, psv >> 32)),
            Self::Crc64 => !reflected(&CRC64_TABLE, data, psv),
        }
    }
}

#[allow(clippy::indexing_slicing, reason = "a byte is an index into a table of 256")]
fn t10(data: &[u8], seed: u16) -> u16 {
    data.iter().fold(seed, |crc, byte| (crc << 8) ^ T10_TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

#[allow(clippy::indexing_slicing, reason = "a byte is an index into a table of 256")]
fn reflected(table: &[u64; 256], data: &[u8], seed: u64) -> u64 {
    data.iter().fold(seed, |crc, byte| (crc >> 8) ^ table[usize::from(crc as u8 ^ byte)])
}

/// The complement of the one's complement sum of 16-bit words, most significant byte first.
fn checksum(data: &[u8], seed: u16) -> u16 {
    let word = |pair: &[u8]| match *pair {
        [high, low] => u64::from(u16::from_be_bytes([high, low])),
        [high] => u64::from(high) << 8,
        _ => 0,
    };
    let mut sum = u64::from(seed) + data.chunks(2).map(word).sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: &[u8] = b"123456789";

    #[test]
    fn known_check_values() {
        assert_eq!(Guard::T10Crc.of(CHECK, 0), 0xd0db);
        assert_eq!(Guard::Crc32.of(CHECK, u64::MAX), 0xcbf4_3926);
        assert_eq!(Guard::Crc32c.of(CHECK, u64::MAX), 0xe306_9283);
        assert_eq!(Guard::Crc64.of(CHECK, u64::MAX), 0xae8b_1486_0a79_9888);
        // RFC 1071, section 3.
        assert_eq!(Guard::T10Checksum.of(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 0), !0xddf2 & 0xffff);
    }

    #[test]
    fn known_vectors_of_32_bytes() {
        // RFC 3720, B.4.
        assert_eq!(Guard::Crc32c.of(&[0; 32], u64::MAX), 0x8a91_36aa);
        assert_eq!(Guard::Crc32c.of(&[0xff; 32], u64::MAX), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(Guard::Crc32c.of(&rising, u64::MAX), 0x46dd_794e);
        assert_eq!(Guard::T10Crc.of(&[0; 512], 0), 0);
    }

    /// Every single flipped bit of a block changes every CRC, and so does the seed.
    #[test]
    fn each_bit_counts() {
        let block: Vec<u8> = (0..520u32).map(|i| ((i * 37) >> 2) as u8).collect();
        for guard in [Guard::T10Crc, Guard::Crc32, Guard::Crc32c, Guard::Crc64, Guard::T10Checksum] {
            let good = guard.of(&block, 0);
            for at in 0..block.len() * 8 {
                let mut bad = block.clone();
                bad[at / 8] ^= 1 << (at % 8);
                assert_ne!(guard.of(&bad, 0), good, "{guard:?}, bit {at}");
            }
            // All ones are another zero to the checksum.
            assert_eq!(guard.of(&block, u64::MAX) == good, guard == Guard::T10Checksum);
        }
    }

    /// CRCs are linear: the difference of two blocks' CRCs does not depend on the seed.
    #[test]
    fn linear() {
        let a: Vec<u8> = (0..512u32).map(|i| (i * i) as u8).collect();
        let b: Vec<u8> = (0..512u32).map(|i| (i * 91 + 5) as u8).collect();
        for guard in [Guard::T10Crc, Guard::Crc32, Guard::Crc32c, Guard::Crc64] {
            assert_eq!(guard.of(&a, 0) ^ guard.of(&b, 0), guard.of(&a, u64::MAX) ^ guard.of(&b, u64::MAX));
        }
    }
}
