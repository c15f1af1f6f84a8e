//! Rates of links: what a packet occupies of one.

use serde::de::value::{self, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::time::Ps;

/// Signalling rate of a lane, with its line code (IBTA vol 2 5.6 and 6; FDR and later: release 1.3). Files name it in
/// small letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkRate {
    /// 2.5 Gb/s, 8b/10b.
    Sdr,
    /// 5 Gb/s, 8b/10b.
    Ddr,
    /// 10 Gb/s, 8b/10b.
    Qdr,
    /// 10.3125 Gb/s, 64b/66b.
    Fdr10,
    /// 14.0625 Gb/s, 64b/66b.
    Fdr,
    /// 25.78125 Gb/s, 64b/66b.
    Edr,
    /// 53.125 Gb/s (26.5625 GBd PAM4), 257-bit blocks with RS(544, 514): 50 Gb/s of data.
    Hdr,
}

impl LinkRate {
    /// All rates, the slowest first.
    pub const ALL: [LinkRate; 7] =
        [Self::Sdr, Self::Ddr, Self::Qdr, Self::Fdr10, Self::Fdr, Self::Edr, Self::Hdr];

    /// Bits on one lane per second.
    pub const fn signalling(self) -> u64 {
        match self {
            Self::Sdr => 2_500_000_000,
            Self::Ddr => 5_000_000_000,
            Self::Qdr => 10_000_000_000,
            Self::Fdr10 => 10_312_500_000,
            Self::Fdr => 14_062_500_000,
            Self::Edr => 25_781_250_000,
            Self::Hdr => 53_125_000_000,
        }
    }

    /// The line code: so many bits of data in so many bits on the lane.
    pub const fn code(self) -> (u64, u64) {
        match self {
            Self::Sdr | Self::Ddr | Self::Qdr => (8, 10),
            Self::Fdr10 | Self::Fdr | Self::Edr => (64, 66),
            // 256b/257b transcoding, then 514 symbols of data in a codeword of 544.
            Self::Hdr => (256 * 514, 257 * 544),
        }
    }

    /// Bits of data on one lane per second, after the line code.
    pub const fn data(self) -> u64 {
        let (data, line) = self.code();
        (self.signalling() as u128 * data as u128 / line as u128) as u64
    }

    /// Bytes around a packet: start and end delimiter (IBTA vol 2 5.8). In 8b/10b both are symbols of
    /// their own; in 64b/66b the block types that mark them take the same two bytes of block space.
    pub const fn framing(self) -> u64 {
        2
    }

    /// The rate of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<value::Error>::new(name)).ok()
    }
}

/// What packets occupy of a link: its rate of data, and what it has around a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineRate {
    /// Bits of data in a second, as a fraction.
    bits: u64,
    per: u64,
    lanes: u8,
    /// Bytes beyond LRH to VCRC.
    extra: u64,
}

impl LineRate {
    /// An InfiniBand link of `width` lanes (at least 1 is assumed).
    pub const fn new(rate: LinkRate, width: u8) -> Self {
        let lanes = if width == 0 { 1 } else { width };
        let (data, line) = rate.code();
        // 53e9 * 12 * 131_584 at most: it fits.
        let bits = rate.signalling() * lanes as u64 * data;
        let both = common_divisor(bits, line);
        Self { bits: bits / both, per: line / both, lanes, extra: rate.framing() }
    }

    /// Another kind of link, such as Ethernet: bits of data in a second (at least 1 is assumed), and bytes that it has
    /// around a packet beyond those from LRH to VCRC.
    pub const fn of_rate(bits_per_s: u64, extra: u64) -> Self {
        Self { bits: if bits_per_s == 0 { 1 } else { bits_per_s }, per: 1, lanes: 1, extra }
    }

    /// The same with what Ethernet has around a frame: preamble and start delimiter, and the shortest gap (IEEE 802.3 3.2.1,
    /// 4.4.2). Its lanes of 10, 25 and 50 Gb/s have the same rates of data as those of FDR10, EDR and HDR.
    #[must_use]
    pub const fn on_ethernet(self) -> Self {
        Self { extra: 8 + 12, ..self }
    }

    /// Bits of data in a second.
    pub const fn bits_per_s(&self) -> u64 {
        self.bits / if self.per == 0 { 1 } else { self.per }
    }

    /// How long `bytes` of a packet (LRH to VCRC) and what is around it occupy the link.
    pub const fn serialisation(&self, bytes: usize) -> Ps {
        self.time((bytes as u64).saturating_add(self.extra))
    }

    /// A byte on each lane (IBTA vol 1 16.1.4.11 calls that a symbol time).
    pub(crate) const fn symbol(&self) -> Ps {
        self.time(self.lanes as u64)
    }

    /// How long so many bits of data take, of which eight make a byte.
    pub(crate) const fn bit_times(&self, bits: u64) -> Ps {
        self.time(bits / 8)
    }

    const fn time(&self, bytes: u64) -> Ps {
        const PS_PER_S: u64 = 1_000_000_000_000;
        let bits = bytes.saturating_mul(8 * self.per);
        // Rounded up: a link is never faster than its rate. What has no room in 64 bits is longer than most packets.
        match bits.checked_mul(PS_PER_S) {
            Some(all) => Ps(all.div_ceil(self.bits)),
            None => {
                let ps = (bits as u128 * PS_PER_S as u128).div_ceil(self.bits as u128);
                Ps(if ps > u64::MAX as u128 { u64::MAX } else { ps as u64 })
            }
        }
    }
}

/// The largest number that divides both; at least one is not 0.
const fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl From<LinkRate> for hca_firmware::LinkSpeed {
    fn from(rate: LinkRate) -> Self {
        match rate {
            LinkRate::Sdr => Self::Sdr,
            LinkRate::Ddr => Self::Ddr,
            LinkRate::Qdr => Self::Qdr,
            LinkRate::Fdr10 => Self::Fdr10,
            LinkRate::Fdr => Self::Fdr,
            LinkRate::Edr => Self::Edr,
            LinkRate::Hdr => Self::Hdr,
        }
    }
}

impl From<hca_firmware::LinkSpeed> for LinkRate {
    fn from(speed: hca_firmware::LinkSpeed) -> Self {
        use hca_firmware::LinkSpeed;
        match speed {
            LinkSpeed::Sdr => Self::Sdr,
            LinkSpeed::Ddr => Self::Ddr,
            LinkSpeed::Qdr => Self::Qdr,
            LinkSpeed::Fdr10 => Self::Fdr10,
            LinkSpeed::Fdr => Self::Fdr,
            LinkSpeed::Edr => Self::Edr,
            LinkSpeed::Hdr => Self::Hdr,
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_names() {
        let rates = ["sdr", "ddr", "qdr", "fdr10", "fdr", "edr", "hdr"].map(LinkRate::from_name);
        assert_eq!(rates, LinkRate::ALL.map(Some));
        assert_eq!(LinkRate::from_name("xdr"), None);
    }

    #[test]
    fn data_rates_are_the_published_ones() {
        // IBTA: 4x SDR 8, DDR 16, QDR 32, FDR10 40, FDR 54.54, EDR 100, HDR 200 Gb/s.
        let four = |r: LinkRate| 4 * r.data() / 10_000_000;
        assert_eq!(LinkRate::ALL.map(four), [800, 1600, 3200, 4000, 5454, 10_000, 20_000]);
        assert!(LinkRate::ALL.is_sorted_by_key(|r| r.data()));
    }

    #[test]
    fn serialisation_is_bytes_over_rate() {
        let edr = LineRate::new(LinkRate::Edr, 4);
        // 4x EDR: 12.5 bytes per nanosecond.
        assert_eq!(edr.serialisation(4096 + 26), Ps((4096 + 26 + 2) * 80));
        let sdr = LineRate::new(LinkRate::Sdr, 1);
        assert_eq!(sdr.serialisation(98), Ps::from_ns(400));
        assert_eq!(LineRate::new(LinkRate::Sdr, 12).serialisation(98), Ps(33_334));
        // 2 Gb/s on a lane: 4 ns for a byte, 12.5 bytes in a nanosecond on 4 of EDR.
        assert_eq!((sdr.symbol(), edr.symbol()), (Ps::from_ns(4), Ps(320)));
        let ethernet = LineRate::of_rate(100_000_000_000, 56);
        assert_eq!((ethernet.serialisation(944), ethernet.symbol()), (Ps::from_ns(80), Ps(80)));
        assert_eq!(LineRate::of_rate(0, 0).serialisation(usize::MAX), Ps(u64::MAX));
    }
}
