//! The link of a port: widths and speeds, training, and its loss.
//!
//! Source: IBTA 7.2 (link states), 14.2.5.6 (widths and speeds of PortInfo); FDR10: infiniband-diags
//! (ExtendedPortInfo of the vendor).

use hca_spec::eqe::port_change;
use hca_spec::mad::{PortInfo, phys_state, port_cap2, port_state};

use super::{Port, PortEvents};
use crate::personality::{PortKind, PortProfile};
use crate::speed::LinkSpeed;

/// A trained link, or what a cable can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortLink {
    /// Lanes: 1, 2, 4, 8 or 12.
    pub width: u8,
    /// Rate of a lane.
    pub speed: LinkSpeed,
}

impl Default for PortLink {
    fn default() -> Self {
        Self { width: 4, speed: LinkSpeed::Edr }
    }
}

/// Lanes and their code in PortInfo.
const WIDTHS: [(u8, u32); 5] = [(1, 1), (2, 16), (4, 2), (8, 4), (12, 8)];
/// LinkSpeedActive of links on extended speeds and FDR10: QDR.
const QDR_CODE: u32 = 4;
/// LinkWidthEnabled: everything that is supported.
const ALL_WIDTHS: u32 = 0xff;
/// LinkSpeedEnabled: everything that is supported.
const ALL_SPEEDS: u32 = 0xf;
/// LinkSpeedExtEnabled: nothing.
const NO_EXTENDED: u32 = 30;
/// LinkSpeedExtEnabled: everything that is supported.
const ALL_EXTENDED: u32 = 31;

/// Width code of PortInfo.
pub(super) fn width_code(lanes: u8) -> u32 {
    WIDTHS.iter().find(|(n, _)| *n == lanes).map_or(2, |(_, code)| *code)
}

/// A speed's bit among the standard speeds, the extended ones, and the vendor's.
pub(super) fn speed_bits(speed: LinkSpeed) -> (u32, u32, u32) {
    match speed {
        LinkSpeed::Sdr => (1, 0, 0),
        LinkSpeed::Ddr => (2, 0, 0),
        LinkSpeed::Qdr => (QDR_CODE, 0, 0),
        LinkSpeed::Fdr10 => (0, 0, 1),
        LinkSpeed::Fdr => (0, 1, 0),
        LinkSpeed::Edr => (0, 2, 0),
        LinkSpeed::Hdr => (0, 4, 0),
    }
}

const SPEEDS: [LinkSpeed; 7] = [
    LinkSpeed::Hdr,
    LinkSpeed::Edr,
    LinkSpeed::Fdr,
    LinkSpeed::Fdr10,
    LinkSpeed::Qdr,
    LinkSpeed::Ddr,
    LinkSpeed::Sdr,
];

/// A value of an "enabled" field: 0 = no change, `all` = what is supported, else bits that are supported.
/// `None` if it is none of these.
pub(super) fn enabled(new: u32, old: u32, supported: u32, all: u32) -> Option<u32> {
    match new {
        0 => Some(old),
        _ if new == all => Some(supported),
        _ => (new & !supported == 0).then_some(new),
    }
}

/// A speed's bit of [`LinkOffer::speeds`].
const fn speed_bit(speed: LinkSpeed) -> u8 {
    1 << speed as u8
}

/// What an end of a link can train to. Both ends tell each other, and come to the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOffer {
    /// Widths, as the bits of PortInfo:LinkWidthEnabled (IBTA vol 1 14.2.5.6).
    pub widths: u8,
    /// Speeds: bit n for the speed that is n as a number.
    pub speeds: u8,
}

impl LinkOffer {
    /// Everything up to that width and speed.
    pub fn up_to(link: PortLink) -> Self {
        let widths = WIDTHS.iter().filter(|(lanes, _)| *lanes <= link.width);
        let speeds = SPEEDS.into_iter().filter(|speed| *speed <= link.speed);
        Self {
            widths: widths.fold(0, |all, (_, code)| all | *code as u8),
            speeds: speeds.fold(0, |all, speed| all | speed_bit(speed)),
        }
    }

    /// What both can.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self { widths: self.widths & other.widths, speeds: self.speeds & other.speeds }
    }

    /// The widest and fastest of it; `None` if there is none.
    pub fn best(self) -> Option<PortLink> {
        let (width, _) = WIDTHS.iter().rev().find(|(_, code)| *code & u32::from(self.widths) != 0)?;
        let speed = SPEEDS.into_iter().find(|speed| speed_bit(*speed) & self.speeds != 0)?;
        Some(PortLink { width: *width, speed })
    }
}

impl Port {
    /// Makes it a port that takes packets of at most `mtu` bytes of payload and has so many data lanes; what is no
    /// power of two counts as the next lower one (IBTA vol 1 14.2.5.6, MTUCap and VLCap).
    pub fn limit(&mut self, mtu: u16, lanes: u8) {
        let mtu = u32::from(mtu.max(256)).ilog2().saturating_sub(7).min(5);
        let lanes = (u32::from(lanes.max(1)).ilog2() + 1).min(4);
        let info = &mut self.info;
        info.set(PortInfo::MTU_CAP, mtu).set(PortInfo::VL_CAP, lanes);
        for (field, most) in [(PortInfo::NEIGHBOR_MTU, mtu), (PortInfo::OPERATIONAL_VLS, lanes)] {
            let now = info.get(field);
            info.set(field, now.min(most));
        }
    }

    /// Makes it a port of that kind, before anything is plugged in: widths and rates that it supports and has enabled,
    /// MTU and data lanes.
    pub(crate) fn equip_as(&mut self, profile: &PortProfile) {
        let widths = profile.widths.iter().fold(0, |all, lanes| all | width_code(*lanes));
        let (standard, extended, vendor) = profile
            .speeds
            .iter()
            .map(|speed| speed_bits(*speed))
            .fold((0, 0, 0), |(s, e, v), bits| (s | bits.0, e | bits.1, v | bits.2));
        let info = &mut self.info;
        info.set(PortInfo::LINK_WIDTH_SUPPORTED, widths).set(PortInfo::LINK_WIDTH_ENABLED, widths);
        info.set(PortInfo::LINK_SPEED_SUPPORTED, standard).set(PortInfo::LINK_SPEED_ENABLED, standard);
        info.set(PortInfo::LINK_SPEED_EXT_SUPPORTED, extended)
            .set(PortInfo::LINK_SPEED_EXT_ENABLED, extended);
        self.fdr10_enabled = vendor;
        self.limit(profile.mtu, profile.data_lanes);
    }

    /// What this port makes of a cable: the widest and fastest that the cable carries and a subnet manager left
    /// enabled. `None`: nothing in common, the link does not train.
    pub fn negotiate(&self, cable: PortLink) -> Option<PortLink> {
        self.offer(cable).best()
    }

    /// What this port tells the other end of a cable that it can train to: what the cable carries and a subnet manager
    /// left enabled.
    pub fn offer(&self, cable: PortLink) -> LinkOffer {
        let info = &self.info;
        // A port that meets a wider or faster cable than it knows is a port for that cable.
        let code = width_code(cable.width);
        let new_width = if info.get(PortInfo::LINK_WIDTH_SUPPORTED) & code == 0 { code } else { 0 };
        let widths = info.get(PortInfo::LINK_WIDTH_ENABLED) | new_width;
        let bit = speed_bits(cable.speed).1;
        let new_speed = bit & !info.get(PortInfo::LINK_SPEED_EXT_SUPPORTED);
        let extended = info.get(PortInfo::LINK_SPEED_EXT_ENABLED) | new_speed;
        let standard = info.get(PortInfo::LINK_SPEED_ENABLED);
        let enabled = |speed: LinkSpeed| {
            let (s, e, v) = speed_bits(speed);
            (s & standard | e & extended | v & self.fdr10_enabled) != 0
        };
        let carried = LinkOffer::up_to(cable);
        let speeds = SPEEDS.into_iter().filter(|speed| enabled(*speed)).fold(0, |all, s| all | speed_bit(s));
        LinkOffer { widths: carried.widths & widths as u8, speeds: carried.speeds & speeds }
    }

    /// The link as it trained; `None` when it is down.
    pub fn link(&self) -> Option<PortLink> {
        self.link.and_then(|cable| self.negotiate(cable)).filter(|_| self.state != port_state::DOWN)
    }

    /// The link trained or was lost; a disabled port stays down.
    pub(crate) fn set_link(&mut self, link: Option<PortLink>, effects: &mut impl PortEvents) {
        self.link = link;
        if let Some(link) = link {
            self.equip(link);
        }
        match link {
            _ if self.is_disabled() => {}
            Some(_) => self.train(effects),
            None => self.drop_link(effects),
        }
    }

    /// A data packet, not on VL15 and whole, arrived: the peer is active, so an armed port becomes active too (IBTA vol 1
    /// 7.2.7).
    pub(crate) fn data_arrived(&mut self, effects: &mut impl PortEvents) {
        if self.state == port_state::ARMED {
            self.state = port_state::ACTIVE;
            effects.port_event(self.number, port_change::ACTIVE);
        }
    }

    /// Makes the port one that supports the cable.
    fn equip(&mut self, cable: PortLink) {
        let code = width_code(cable.width);
        if self.info.get(PortInfo::LINK_WIDTH_SUPPORTED) & code == 0 {
            for field in [PortInfo::LINK_WIDTH_SUPPORTED, PortInfo::LINK_WIDTH_ENABLED] {
                let old = self.info.get(field);
                self.info.set(field, old | code);
            }
        }
        let bit = speed_bits(cable.speed).1;
        if self.info.get(PortInfo::LINK_SPEED_EXT_SUPPORTED) & bit == 0 && bit != 0 {
            for field in [PortInfo::LINK_SPEED_EXT_SUPPORTED, PortInfo::LINK_SPEED_EXT_ENABLED] {
                let old = self.info.get(field);
                self.info.set(field, old | bit);
            }
        }
        let mut known = self.info.get(PortInfo::CAPABILITY_MASK2);
        if cable.width == 2 {
            known |= port_cap2::LINK_WIDTH_2X;
        }
        if cable.speed == LinkSpeed::Hdr {
            known |= port_cap2::LINK_SPEED_HDR;
        }
        self.info.set(PortInfo::CAPABILITY_MASK2, known);
    }

    /// Takes the link down. It trains again when [`Port::set_link`] says so.
    pub(crate) fn drop_link(&mut self, effects: &mut impl PortEvents) {
        self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
        if self.state != port_state::DOWN {
            self.state = port_state::DOWN;
            self.counters.link_downed = self.counters.link_downed.saturating_add(1);
            if let Some(eth) = self.ethernet_mut() {
                eth.counters.link_down_events = eth.counters.link_down_events.saturating_add(1);
            }
            effects.port_event(self.number, port_change::DOWN);
        }
    }

    /// Brings the link up, if there is one at the cable's other end.
    fn train(&mut self, effects: &mut impl PortEvents) {
        let Some(link) = self.link.and_then(|cable| self.negotiate(cable)) else { return };
        let (standard, extended, vendor) = speed_bits(link.speed);
        self.info.set(PortInfo::LINK_WIDTH_ACTIVE, width_code(link.width));
        self.info.set(PortInfo::LINK_SPEED_ACTIVE, if standard == 0 { QDR_CODE } else { standard });
        self.info.set(PortInfo::LINK_SPEED_EXT_ACTIVE, extended);
        self.fdr10_active = vendor;
        self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::LINK_UP);
        if self.state == port_state::DOWN {
            // Ethernet has no subnet manager: a link that is trained is active.
            let (state, event) = match self.kind() {
                PortKind::InfiniBand => (port_state::INIT, port_change::INITIALIZED),
                PortKind::Ethernet => (port_state::ACTIVE, port_change::ACTIVE),
            };
            self.state = state;
            effects.port_event(self.number, event);
        }
    }

    /// Lanes of the widest link that the port can have.
    pub(crate) fn widest(&self) -> u8 {
        let supported = self.info.get(PortInfo::LINK_WIDTH_SUPPORTED);
        WIDTHS.iter().rev().find(|(_, code)| code & supported != 0).map_or(1, |(lanes, _)| *lanes)
    }

    /// Whether the port is switched off, by a subnet manager or by its host.
    pub fn is_disabled(&self) -> bool {
        self.info.get(PortInfo::PORT_PHYSICAL_STATE) == phys_state::DISABLED
    }

    /// Switches the port off: its link goes down and stays so.
    pub(crate) fn disable(&mut self, effects: &mut impl PortEvents) {
        self.drop_link(effects);
        self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::DISABLED);
    }

    /// Switches the port on, if it was off: its link may train.
    pub(crate) fn enable(&mut self, effects: &mut impl PortEvents) {
        if self.is_disabled() {
            self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
            effects.port_enabled(self.number);
        }
    }

    /// The widths and speeds that a Set(PortInfo) enables, for the next training: LinkWidthEnabled,
    /// LinkSpeedEnabled, LinkSpeedExtEnabled. `None` if one is not supported.
    pub(super) fn wanted_link(&self, new: &PortInfo) -> Option<(u32, u32, u32)> {
        let pick = |new: u32, old, supported, all| enabled(new, self.info.get(old), supported, all);
        let info = &self.info;
        let width = pick(
            new.get(PortInfo::LINK_WIDTH_ENABLED),
            PortInfo::LINK_WIDTH_ENABLED,
            info.get(PortInfo::LINK_WIDTH_SUPPORTED),
            ALL_WIDTHS,
        )?;
        let speed = pick(
            new.get(PortInfo::LINK_SPEED_ENABLED),
            PortInfo::LINK_SPEED_ENABLED,
            info.get(PortInfo::LINK_SPEED_SUPPORTED),
            ALL_SPEEDS,
        )?;
        let extended = match new.get(PortInfo::LINK_SPEED_EXT_ENABLED) {
            NO_EXTENDED => 0,
            value => pick(
                value,
                PortInfo::LINK_SPEED_EXT_ENABLED,
                info.get(PortInfo::LINK_SPEED_EXT_SUPPORTED),
                ALL_EXTENDED,
            )?,
        };
        Some((width, speed, extended))
    }

    /// Speeds beyond the standard ones, as the vendor's ExtendedPortInfo has them: supported, enabled, active.
    pub(crate) fn vendor_speeds(&self) -> (u32, u32, u32) {
        let up = self.state != port_state::DOWN;
        (speed_bits(LinkSpeed::Fdr10).2, self.fdr10_enabled, if up { self.fdr10_active } else { 0 })
    }

    /// Enables or disables the vendor's speeds for the next training.
    pub(crate) fn enable_vendor_speeds(&mut self, speeds: u32) {
        self.fdr10_enabled = speeds & speed_bits(LinkSpeed::Fdr10).2;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;
    use crate::effect::Effect;

    fn port() -> Port {
        Port::new(Role::Adapter, 1, 1, "")
    }

    /// LinkWidthActive, LinkSpeedActive, LinkSpeedExtActive and FDR10 of every link.
    #[test]
    fn limits_of_a_port() {
        for (mtu, lanes, codes) in
            [(256, 1, (1, 1)), (2048, 4, (4, 3)), (4096, 8, (5, 4)), (1500, 3, (3, 2)), (0, 0, (1, 1))]
        {
            let mut port = Port::new(Role::Adapter, 1, 1, "");
            port.limit(mtu, lanes);
            let info = port.info();
            assert_eq!((info.get(PortInfo::MTU_CAP), info.get(PortInfo::VL_CAP)), codes);
            assert_eq!((info.get(PortInfo::NEIGHBOR_MTU), info.get(PortInfo::OPERATIONAL_VLS)), codes);
        }
    }

    #[test]
    fn codes() {
        for (width, speed, codes) in [
            (1, LinkSpeed::Sdr, (1, 1, 0, 0)),
            (4, LinkSpeed::Ddr, (2, 2, 0, 0)),
            (4, LinkSpeed::Qdr, (2, 4, 0, 0)),
            (4, LinkSpeed::Fdr10, (2, 4, 0, 1)),
            (4, LinkSpeed::Fdr, (2, 4, 1, 0)),
            (8, LinkSpeed::Edr, (4, 4, 2, 0)),
            (12, LinkSpeed::Edr, (8, 4, 2, 0)),
            (2, LinkSpeed::Hdr, (16, 4, 4, 0)),
        ] {
            let mut p = port();
            let link = PortLink { width, speed };
            p.set_link(Some(link), &mut Vec::<Effect>::new());
            let i = p.info();
            let got = (
                i.get(PortInfo::LINK_WIDTH_ACTIVE),
                i.get(PortInfo::LINK_SPEED_ACTIVE),
                i.get(PortInfo::LINK_SPEED_EXT_ACTIVE),
                p.vendor_speeds().2,
            );
            assert_eq!((got, p.link()), (codes, Some(link)), "{link:?}");
            assert_ne!(i.get(PortInfo::LINK_WIDTH_SUPPORTED) & codes.0, 0, "{link:?}");
            assert_eq!(i.get(PortInfo::LINK_SPEED_EXT_SUPPORTED) & codes.2, codes.2, "{link:?}");
            let hdr = i.get(PortInfo::CAPABILITY_MASK2) & port_cap2::LINK_SPEED_HDR != 0;
            assert_eq!(hdr, speed == LinkSpeed::Hdr);
        }
    }

    #[test]
    fn what_is_enabled_is_trained() {
        let mut p = port();
        let cable = PortLink { width: 4, speed: LinkSpeed::Edr };
        let enable = |p: &mut Port, change: &dyn Fn(&mut PortInfo)| {
            let mut new = PortInfo::new();
            change(&mut new);
            let Some((w, s, e)) = p.wanted_link(&new) else { return false };
            p.info.set(PortInfo::LINK_WIDTH_ENABLED, w).set(PortInfo::LINK_SPEED_ENABLED, s);
            p.info.set(PortInfo::LINK_SPEED_EXT_ENABLED, e);
            true
        };
        assert_eq!(p.negotiate(cable), Some(cable));
        assert!(enable(&mut p, &|i| _ = i.set(PortInfo::LINK_SPEED_EXT_ENABLED, 1)));
        assert_eq!(p.negotiate(cable), Some(PortLink { width: 4, speed: LinkSpeed::Fdr }));
        assert!(enable(&mut p, &|i| _ = i.set(PortInfo::LINK_SPEED_EXT_ENABLED, 30)));
        assert_eq!(p.negotiate(cable).unwrap().speed, LinkSpeed::Fdr10);
        p.enable_vendor_speeds(0);
        assert_eq!(p.negotiate(cable).unwrap().speed, LinkSpeed::Qdr);
        assert!(enable(&mut p, &|i| _ =
            i.set(PortInfo::LINK_SPEED_ENABLED, 1).set(PortInfo::LINK_WIDTH_ENABLED, 1)));
        assert_eq!(p.negotiate(cable), Some(PortLink { width: 1, speed: LinkSpeed::Sdr }));
        assert!(enable(&mut p, &|i| _ = i.set(PortInfo::LINK_SPEED_EXT_ENABLED, 31)));
        assert!(enable(&mut p, &|i| _ = i.set(PortInfo::LINK_WIDTH_ENABLED, 0xff)));
        assert_eq!(p.negotiate(cable), Some(cable));
        assert!(enable(&mut p, &|i| _ = i.set(PortInfo::LINK_WIDTH_ENABLED, 2)));
        assert_eq!(p.negotiate(PortLink { width: 1, ..cable }), None, "4x alone, on one lane");
        let (wide, narrow) = (p.offer(cable), LinkOffer::up_to(PortLink { width: 1, speed: LinkSpeed::Fdr }));
        assert_eq!(wide.common(narrow).best(), None);
        let slow = LinkOffer::up_to(PortLink { width: 12, speed: LinkSpeed::Fdr });
        assert_eq!(wide.common(slow), slow.common(wide));
        assert_eq!(wide.common(slow).best(), Some(PortLink { width: 4, speed: LinkSpeed::Fdr }));
        for (field, value) in [
            (PortInfo::LINK_WIDTH_ENABLED, 8),
            (PortInfo::LINK_SPEED_ENABLED, 9),
            (PortInfo::LINK_SPEED_EXT_ENABLED, 4),
        ] {
            assert!(!enable(&mut p, &|i| _ = i.set(field, value)), "{} {value}", field.name());
        }
    }
}
