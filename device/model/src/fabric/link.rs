//! A cable between two ports: serialisation and propagation.

use crate::time::Ps;
use crate::wire::Packet;

use super::{Carrier, Delivery, End};

/// Signalling rate of a lane, with its line code (IBTA vol 2 5.6 and 6; FDR and later: release 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
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

    /// The name a topology uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sdr => "sdr",
            Self::Ddr => "ddr",
            Self::Qdr => "qdr",
            Self::Fdr10 => "fdr10",
            Self::Fdr => "fdr",
            Self::Edr => "edr",
            Self::Hdr => "hdr",
        }
    }

    /// The rate of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rate| rate.name() == name)
    }
}

/// A full-duplex link: packets of one direction queue behind each other, the directions are independent.
///
/// A packet arrives when its *last* byte does: the receiving port checks the VCRC before it hands a
/// packet up. A port that forwards at the first bytes (cut-through, as switches do) can subtract
/// [`Link::serialisation`] and add that of the headers it waits for. Skip and idle sequences (below
/// 0.2 % of the symbols) and, for HDR, the decoder's latency are part of `delay`.
#[derive(Clone, Debug)]
pub struct Link {
    rate: LinkRate,
    width: u8,
    delay: Ps,
    /// Per sending end: when the lanes are free again.
    busy_until: [Ps; 2],
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

/// How long `bytes` of a packet (LRH to VCRC) and its framing occupy so many lanes (at least 1 is assumed).
pub(crate) fn serialisation(rate: LinkRate, width: u8, bytes: usize) -> Ps {
    const PS_PER_S: u64 = 1_000_000_000_000;
    let (data, line) = rate.code();
    let bits = (bytes as u64).saturating_add(rate.framing()).saturating_mul(8 * line);
    let per_s = rate.signalling() * u64::from(width.max(1)) * data;
    // Rounded up: a link is never faster than its rate. What has no room in 64 bits is longer than any packet.
    match bits.checked_mul(PS_PER_S) {
        Some(all) => Ps(all.div_ceil(per_s)),
        None => Ps(u64::try_from((u128::from(bits) * u128::from(PS_PER_S)).div_ceil(per_s.into()))
            .unwrap_or(u64::MAX)),
    }
}

impl Link {
    /// A link of `width` lanes (1, 4, 8 or 12; at least 1 is assumed) and propagation time `delay`.
    pub const fn new(rate: LinkRate, width: u8, delay: Ps) -> Self {
        Self { rate, width: if width == 0 { 1 } else { width }, delay, busy_until: [Ps::ZERO; 2] }
    }

    /// How long `bytes` of a packet (LRH to VCRC) and its framing occupy the lanes.
    pub fn serialisation(&self, bytes: usize) -> Ps {
        serialisation(self.rate, self.width, bytes)
    }

    /// When end `from` could start to send.
    pub fn free_at(&self, from: End) -> Option<Ps> {
        self.busy_until.get(from).copied()
    }

    /// Signalling rate of a lane.
    pub const fn rate(&self) -> LinkRate {
        self.rate
    }

    /// Lanes.
    pub const fn width(&self) -> u8 {
        self.width
    }
}

impl Carrier for Link {
    fn transmit(&mut self, now: Ps, from: End, packet: Packet) -> Vec<Delivery> {
        let time = self.serialisation(packet.len());
        let Some(busy_until) = self.busy_until.get_mut(from) else { return Vec::new() };
        *busy_until = now.max(*busy_until) + time;
        vec![Delivery { at: *busy_until + self.delay, end: 1 - from, packet }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: usize) -> Packet {
        Packet::from_bytes(vec![0; len])
    }

    #[test]
    fn data_rates_are_the_published_ones() {
        // IBTA: 4x SDR 8, DDR 16, QDR 32, FDR10 40, FDR 54.54, EDR 100, HDR 200 Gb/s.
        let four = |r: LinkRate| 4 * r.data() / 10_000_000;
        assert_eq!(LinkRate::ALL.map(four), [800, 1600, 3200, 4000, 5454, 10_000, 20_000]);
        assert!(LinkRate::ALL.is_sorted_by_key(|r| r.data()));
    }

    #[test]
    fn names_round_trip() {
        for rate in LinkRate::ALL {
            assert_eq!(LinkRate::from_name(rate.name()), Some(rate));
        }
        assert_eq!(LinkRate::from_name("xdr"), None);
    }

    #[test]
    fn serialisation_is_bytes_over_rate() {
        let edr = Link::new(LinkRate::Edr, 4, Ps::ZERO);
        // 4x EDR: 12.5 bytes per nanosecond.
        assert_eq!(edr.serialisation(4096 + 26), Ps((4096 + 26 + 2) * 80));
        let sdr = Link::new(LinkRate::Sdr, 1, Ps::ZERO);
        assert_eq!(sdr.serialisation(98), Ps::from_ns(400));
        assert_eq!(Link::new(LinkRate::Sdr, 12, Ps::ZERO).serialisation(98), Ps(33_334));
    }

    #[test]
    fn a_direction_queues_and_the_other_does_not() {
        let mut link = Link::new(LinkRate::Edr, 4, Ps::from_ns(5));
        let each = link.serialisation(98);
        let arrivals = |link: &mut Link, from| link.transmit(Ps(1000), from, packet(98)).remove(0);
        let first = arrivals(&mut link, 0);
        assert_eq!((first.at, first.end), (Ps(1000) + each + Ps::from_ns(5), 1));
        assert_eq!(arrivals(&mut link, 0).at, first.at + each);
        let back = arrivals(&mut link, 1);
        assert_eq!((back.at, back.end), (first.at, 0));
        // An idle link starts at once again.
        let later = Ps::from_us(1);
        assert_eq!(link.transmit(later, 0, packet(98))[0].at, later + each + Ps::from_ns(5));
    }

    #[test]
    fn there_is_no_third_end() {
        let mut link = Link::new(LinkRate::Edr, 4, Ps::ZERO);
        assert_eq!(link.transmit(Ps::ZERO, 2, packet(98)), []);
    }
}
