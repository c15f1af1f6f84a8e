//! The checksum of IP, TCP and UDP: a ones-complement sum of 16-bit words.
//!
//! A [`Sum`] is worked out once for a stretch of bytes and then added to others: payload is summed once, whatever headers it
//! gets.
//!
//! Source: RFC 1071, RFC 1624.

use super::ethernet::{Ip, IpVersion};

/// A ones-complement sum of 16-bit big-endian words. An odd last byte counts as the high half of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u16);

/// Bytes of an address of IPv4, at the end of the 16 that [`Ip`] has.
const V4_ADDRESS: usize = 4;

impl Sum {
    /// Of no bytes.
    pub const ZERO: Self = Self(0);

    /// The sum of `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        /// Bytes that one round takes: the sums beside each other need no carry between them.
        const ROUND: usize = 32;
        let (rounds, rest) = bytes.as_chunks::<ROUND>();
        // Words of 32 bits in the machine's order into sums of 64: 2^32 rounds fit.
        let mut sums = [0u64; ROUND / 4];
        for round in rounds {
            for (sum, word) in sums.iter_mut().zip(round.as_chunks::<4>().0) {
                *sum += u64::from(u32::from_ne_bytes(*word));
            }
        }
        let (words, odd) = rest.as_chunks::<2>();
        let mut sum: u64 = sums.iter().map(|sum| (sum & 0xffff_ffff) + (sum >> 32)).sum();
        sum += words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum::<u64>();
        if let Some(last) = odd.first() {
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        // The order of bytes is the same in the sum as in the words (RFC 1071 2(B)).
        Self(u16::from_be(fold(sum)))
    }

    /// This sum and `other`, whose bytes begin at an even place.
    #[must_use]
    #[inline]
    pub const fn and(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // After a carry there is room for it.
        Self(sum.wrapping_add(carry as u16))
    }

    /// This sum and a word.
    #[must_use]
    #[inline]
    pub const fn and_word(self, word: u16) -> Self {
        self.and(Self(word))
    }

    /// This sum and a number of two words.
    #[must_use]
    #[inline]
    pub const fn and_u32(self, value: u32) -> Self {
        self.and_word((value >> 16) as u16).and_word(value as u16)
    }

    /// The sum of the same bytes if they begin at an odd place (RFC 1071 2(B)).
    #[must_use]
    pub const fn shifted(self) -> Self {
        Self(self.0.swap_bytes())
    }

    /// The sum of the pseudo header of TCP and UDP (RFC 9293 3.1, RFC 768, RFC 8200 8.1), with `length` bytes of layer 4.
    pub fn pseudo_header(ip: &Ip, protocol: u8, length: usize) -> Self {
        let addresses = |ip: &Ip| match ip.version {
            IpVersion::V4 => {
                let last =
                    |address: &[u8; 16]| address.last_chunk::<V4_ADDRESS>().copied().unwrap_or_default();
                Self::of(&last(&ip.source)).and(Self::of(&last(&ip.destination)))
            }
            IpVersion::V6 => Self::of(&ip.source).and(Self::of(&ip.destination)),
        };
        Self(fold(u64::from(addresses(ip).0) + length as u64 + u64::from(protocol)))
    }

    /// The sum, not inverted.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// What a checksum field gets.
    pub const fn checksum(self) -> u16 {
        !self.0
    }

    /// Whether bytes with this sum have the right checksum among them.
    pub const fn is_right(self) -> bool {
        self.0 == 0xffff
    }
}

/// A sum with its carries added in.
#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 as it is written.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&bytes).value(), 0xddf2);
        assert_eq!(Sum::of(&bytes).checksum(), !0xddf2);
    }

    #[test]
    fn a_header_with_its_checksum_is_right() {
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert!(Sum::of(&header).is_right());
        assert!(!Sum::of(&header[..18]).is_right());
    }

    #[test]
    fn carries_are_not_lost() {
        for len in [0, 1, 2, 31, 32, 33, 64, 65, 9000, 65535] {
            let ones = vec![0xff; len];
            assert_eq!(Sum::of(&ones).value(), slow(&ones), "{len}");
        }
    }

    proptest! {
        #[test]
        fn as_the_slow_one(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300) {
            prop_assert_eq!(Sum::of(&bytes).value(), slow(&bytes));
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            let b = if a.len() % 2 == 1 { Sum::of(b).shifted() } else { Sum::of(b) };
            let both = Sum::of(a).and(b);
            // Both forms of zero are the same sum.
            prop_assert_eq!(both.value() % 0xffff, slow(&bytes) % 0xffff);
        }
    }
}
