//! Rates of Ethernet: which width and speed of a link is which, and what software wants of them.
//!
//! Source: IEEE 802.3 (PHYs of 10, 25, 40 and 100 Gb/s), the 25/50 Gigabit Ethernet Consortium; PRM "PTYS".

use hca_spec::mad::{PortInfo, port_state};
use hca_spec::register::eth_proto;

use super::Port;
use super::link::{PortLink, speed_bits, width_code};
use crate::speed::LinkSpeed;

/// A rate: lanes, their speed, what it is in 100 Mb/s, its bits in PTYS, the first of which means a copper cable.
struct Rate {
    width: u8,
    speed: LinkSpeed,
    rate: u32,
    bits: [u32; 3],
}

const fn rate(width: u8, speed: LinkSpeed, rate: u32, bits: [u32; 3]) -> Rate {
    Rate { width, speed, rate, bits }
}

const G10: [u32; 3] = [eth_proto::CR_10G, eth_proto::SR_10G, eth_proto::KR_10G];
const G40: [u32; 3] = [eth_proto::CR4_40G, eth_proto::SR4_40G, eth_proto::KR4_40G];
const G50: [u32; 3] = [eth_proto::CR2_50G, eth_proto::SR2_50G, eth_proto::KR2_50G];
const G100: [u32; 3] = [eth_proto::CR4_100G, eth_proto::SR4_100G, eth_proto::KR4_100G];

/// Every rate, the fastest first. Lanes have names of InfiniBand: an EDR lane is one of 25 Gb/s. The register's code ends at
/// 100 Gb/s: what is faster shows its bits, and its own rate.
const RATES: [Rate; 13] = [
    rate(4, LinkSpeed::Hdr, 2000, G100),
    rate(4, LinkSpeed::Edr, 1000, G100),
    rate(2, LinkSpeed::Hdr, 1000, G100),
    rate(4, LinkSpeed::Fdr, 560, [eth_proto::R4_56G, 0, 0]),
    rate(2, LinkSpeed::Edr, 500, G50),
    rate(1, LinkSpeed::Hdr, 500, G50),
    rate(4, LinkSpeed::Fdr10, 400, G40),
    rate(4, LinkSpeed::Qdr, 400, G40),
    rate(1, LinkSpeed::Edr, 250, [eth_proto::CR_25G, eth_proto::SR_25G, eth_proto::KR_25G]),
    rate(1, LinkSpeed::Fdr10, 100, G10),
    rate(1, LinkSpeed::Qdr, 100, G10),
    rate(4, LinkSpeed::Sdr, 100, [eth_proto::CX4_10G, eth_proto::KX4_10G, 0]),
    // A lane of FDR has no Ethernet of its own: it carries 10 Gb/s.
    rate(1, LinkSpeed::Fdr, 100, G10),
];

/// Rates of a port as PTYS tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rates {
    /// What the port can do.
    pub(crate) capable: u32,
    /// What software wants.
    pub(crate) wanted: u32,
    /// What holds: one bit, or 0 if the link is down.
    pub(crate) active: u32,
    /// The same, in 100 Mb/s.
    pub(crate) rate: u32,
}

fn all_bits(rates: impl Iterator<Item = &'static Rate>) -> u32 {
    rates.fold(0, |all, rate| rate.bits.iter().fold(all, |all, bit| all | bit))
}

impl Port {
    /// Rates that widths and speeds of the port's own fields of PortInfo make.
    fn rates_of(&self, enabled: bool) -> impl Iterator<Item = &'static Rate> {
        let info = &self.info;
        let field = |supported, of_enabled| info.get(if enabled { of_enabled } else { supported });
        let widths = field(PortInfo::LINK_WIDTH_SUPPORTED, PortInfo::LINK_WIDTH_ENABLED);
        let standard = field(PortInfo::LINK_SPEED_SUPPORTED, PortInfo::LINK_SPEED_ENABLED);
        let extended = field(PortInfo::LINK_SPEED_EXT_SUPPORTED, PortInfo::LINK_SPEED_EXT_ENABLED);
        let (supported, of_enabled, _) = self.vendor_speeds();
        let vendor = if enabled { of_enabled } else { supported };
        RATES.iter().filter(move |rate| {
            let (s, e, v) = speed_bits(rate.speed);
            widths & width_code(rate.width) != 0 && (s & standard | e & extended | v & vendor) != 0
        })
    }

    /// Its rates, of an Ethernet port.
    pub(crate) fn rates(&self) -> Rates {
        let capable = all_bits(self.rates_of(false));
        let active =
            self.link().filter(|_| self.state != port_state::DOWN).and_then(|PortLink { width, speed }| {
                RATES.iter().find(|rate| rate.width == width && rate.speed == speed)
            });
        let wanted = all_bits(self.rates_of(true)) & self.ethernet().map_or(0, |eth| eth.rates_wanted);
        let [bit, ..] = active.map_or([0; 3], |rate| rate.bits);
        Rates { capable, wanted, active: bit, rate: active.map_or(0, |rate| rate.rate) }
    }

    /// Software wants these rates, from the next training on. Whether the port can do one of them.
    pub(crate) fn want_rates(&mut self, bits: u32) -> bool {
        let wanted: Vec<&Rate> =
            self.rates_of(false).filter(|rate| rate.bits.iter().any(|bit| bit & bits != 0)).collect();
        let Some(best) = wanted.first() else { return false };
        // Widths and speeds are enabled apart from each other: no pair of them may be a rate that is not wanted.
        let widths: Vec<u8> = wanted.iter().filter(|r| r.speed == best.speed).map(|r| r.width).collect();
        let has = |width: u8, speed| wanted.iter().any(|r| r.width == width && r.speed == speed);
        let speeds = wanted.iter().map(|r| r.speed).filter(|speed| widths.iter().all(|w| has(*w, *speed)));
        let (mut standard, mut extended, mut vendor) = (0, 0, 0);
        for (s, e, v) in speeds.map(speed_bits) {
            (standard, extended, vendor) = (standard | s, extended | e, vendor | v);
        }
        let widths = widths.iter().fold(0, |all, width| all | width_code(*width));
        self.info.set(PortInfo::LINK_WIDTH_ENABLED, widths).set(PortInfo::LINK_SPEED_ENABLED, standard);
        self.info.set(PortInfo::LINK_SPEED_EXT_ENABLED, extended);
        self.enable_vendor_speeds(vendor);
        if let Some(eth) = self.ethernet_mut() {
            eth.rates_wanted = bits;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use crate::port::Role;

    fn port() -> Port {
        let mut port = Port::new(Role::Adapter, 1, 1, "");
        port.make_ethernet([2, 0, 0, 0, 0, 1]);
        port
    }

    #[test]
    fn a_link_has_one_rate() {
        for (width, speed, bit, rate) in [
            (4, LinkSpeed::Edr, eth_proto::CR4_100G, 1000),
            (1, LinkSpeed::Edr, eth_proto::CR_25G, 250),
            (4, LinkSpeed::Qdr, eth_proto::CR4_40G, 400),
            (1, LinkSpeed::Qdr, eth_proto::CR_10G, 100),
            (4, LinkSpeed::Hdr, eth_proto::CR4_100G, 2000),
            (2, LinkSpeed::Edr, eth_proto::CR2_50G, 500),
        ] {
            let mut p = port();
            assert_eq!((p.rates().active, p.rates().rate), (0, 0), "down");
            p.set_link(Some(PortLink { width, speed }), &mut Vec::<Effect>::new());
            let rates = p.rates();
            assert_eq!((rates.active, rates.rate), (bit, rate), "{width}x {speed:?}");
            assert_eq!(rates.capable & rates.active, bit);
            assert_eq!(rates.wanted, rates.capable);
        }
    }

    #[test]
    fn what_is_wanted_holds_from_the_next_training_on() {
        let mut p = port();
        let e = &mut Vec::<Effect>::new();
        p.set_link(Some(PortLink::default()), e);
        // 25 and 40 Gb/s: an EDR lane, or four of QDR; but not four of EDR.
        assert!(p.want_rates(eth_proto::CR_25G | eth_proto::CR4_40G));
        p.disable(e);
        p.enable(e);
        p.set_link(Some(PortLink::default()), e);
        assert_eq!(p.rates().rate, 400);
        assert!(p.want_rates(eth_proto::CR_25G));
        p.set_link(Some(PortLink::default()), e);
        assert_eq!((p.rates().rate, p.rates().wanted), (250, eth_proto::CR_25G));
        assert!(!p.want_rates(0) && !p.want_rates(1), "what the port can't do");
        assert!(p.want_rates(u32::MAX));
        p.set_link(Some(PortLink::default()), e);
        assert_eq!(p.rates().rate, 1000);
    }
}
