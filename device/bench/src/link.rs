//! Cables of a scenario, and how packets of RoCE look on those of Ethernet.

use hca_driver::eth::{RoceVersion, ipv4_gid};
use hca_model::PortKind;
use hca_model::link::{LineRate, LinkRate};
use hca_spec::ids::Gid;

/// Rates of Ethernet in Gb/s, with the lanes that make them (IEEE 802.3: 10GBASE, 25GBASE, 40GBASE-4, 50GBASE, 100GBASE-4, 200GBASE-4).
const ETHERNET: [(&str, LinkRate, u8); 6] = [
    ("10", LinkRate::Fdr10, 1),
    ("25", LinkRate::Edr, 1),
    ("40", LinkRate::Fdr10, 4),
    ("50", LinkRate::Hdr, 1),
    ("100", LinkRate::Edr, 4),
    ("200", LinkRate::Hdr, 4),
];

/// A cable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpec {
    /// Of which kind the ports at its ends are.
    pub ports: PortKind,
    /// Rate of a lane.
    pub rate: LinkRate,
    /// Lanes.
    pub width: u8,
}

impl LinkSpec {
    /// What [`LinkSpec::named`] takes, in words.
    pub(crate) const NAMES: &'static str = "must be sdr, ddr, qdr, fdr10, fdr, edr or hdr, with a width behind it (fdrx8) unless it is 4, or eth10, eth25, eth40, eth50, eth100 or eth200";

    /// 4x EDR.
    pub(crate) const EDR: Self = Self { ports: PortKind::InfiniBand, rate: LinkRate::Edr, width: 4 };

    /// `sdr` to `hdr` with an optional width (`fdrx8`; 4 lanes otherwise), or `eth` and its rate in Gb/s (`eth100`).
    pub fn named(name: &str) -> Option<Self> {
        if let Some(rate) = name.strip_prefix("eth") {
            let (_, rate, width) = *ETHERNET.iter().find(|(name, ..)| *name == rate)?;
            return Some(Self { ports: PortKind::Ethernet, rate, width });
        }
        let (rate, width) = name.split_once('x').map_or((name, "4"), |(r, w)| (r, w));
        let rate = LinkRate::from_name(rate)?;
        let width: u8 = width.parse().ok().filter(|w| [1, 2, 4, 8, 12].contains(w))?;
        Some(Self { ports: PortKind::InfiniBand, rate, width })
    }

    /// Bits of data per second.
    pub fn bits_per_s(&self) -> u64 {
        self.rate.data() * u64::from(self.width)
    }

    /// Whether its ports are Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.ports == PortKind::Ethernet
    }

    /// What packets take of it.
    pub(crate) fn line(&self) -> LineRate {
        match self.ports {
            PortKind::InfiniBand => LineRate::of_rate(self.bits_per_s(), self.rate.framing()),
            PortKind::Ethernet => LineRate::new(self.rate, self.width).on_ethernet(),
        }
    }
}

/// How packets of RoCE look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roce {
    /// Version 1 has a GRH, version 2 IP and UDP.
    pub version: RoceVersion,
    /// Addresses are those of IPv4; of version 2, that is what its packets are.
    pub ipv4: bool,
}

impl Roce {
    /// Names on the command line.
    pub(crate) const NAMES: [(&'static str, Self); 3] = [
        ("v2", Self { version: RoceVersion::V2, ipv4: true }),
        ("v2-ipv6", Self { version: RoceVersion::V2, ipv4: false }),
        ("v1", Self { version: RoceVersion::V1, ipv4: false }),
    ];

    /// Address of adapter number `index`.
    pub(crate) fn gid(&self, index: usize) -> Gid {
        let [.., high, low] = (index as u64 + 1).to_be_bytes();
        match self.ipv4 {
            true => ipv4_gid([10, 0, high, low]),
            false => Gid::new(0xfd00 << 48, index as u64 + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_their_rates() {
        let rate = |name| LinkSpec::named(name).map(|l| (l.bits_per_s() + 500_000_000) / 1_000_000_000);
        assert_eq!((rate("edr"), rate("hdr"), rate("fdrx8")), (Some(100), Some(200), Some(109)));
        for (name, ..) in ETHERNET {
            let link = LinkSpec::named(&format!("eth{name}")).unwrap();
            let bits: u64 = name.parse::<u64>().unwrap() * 1_000_000_000;
            assert!(link.is_ethernet() && link.bits_per_s().abs_diff(bits) < 4, "{name}: {link:?}");
            // 1500 bytes of payload: header 14, check sequence 4; preamble 8 and gap 12 around that.
            let ps = 1538 * 8 * 1_000_000_000_000 / u128::from(bits);
            assert_eq!(u128::from(link.line().serialisation(14 + 1500 + 4).0), ps, "{name}");
        }
        assert!(["xdr", "edrx3", "eth", "eth0", "eth30"].iter().all(|name| LinkSpec::named(name).is_none()));
    }

    #[test]
    fn adapters_have_addresses_of_their_own() {
        for (_, roce) in Roce::NAMES {
            assert_ne!(roce.gid(0), roce.gid(1));
            assert_ne!(roce.gid(0), roce.gid(256));
        }
    }
}
