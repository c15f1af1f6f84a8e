//! The port: link, addresses, tables and counters. Its agents are in `sma` (subnet management) and
//! `pma` (performance management).
//!
//! Source: IBTA 7.2 (link states), 14.2.5 (attributes of a port), 16.1.3 (counters).

use hca_spec::eqe::port_change;
use hca_spec::ids::{Gid, Lid};
use hca_spec::mad::{PortInfo, phys_state, port_cap, port_state};

use crate::effect::Effect;
use crate::firmware::Firmware;
use crate::profile::{GUIDS, PKEYS};

/// Bits of CapabilityMask that software may change: what it runs on the port, not what the port can do.
pub(crate) const SETTABLE_CAPABILITIES: u32 = port_cap::IS_SM
    | port_cap::CM
    // SNMP tunnelling, device management, vendor class.
    | 1 << 17
    | 1 << 19
    | 1 << 20;

/// Signalling rate of a link's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the rates' names")]
pub enum LinkSpeed {
    Sdr,
    Ddr,
    Qdr,
    /// The vendor's 10.3125 Gb/s with FDR's line code.
    Fdr10,
    Fdr,
    #[default]
    Edr,
    Hdr,
}

/// A trained link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Lanes: 1, 2, 4, 8 or 12.
    pub width: u8,
    /// Rate of a lane.
    pub speed: LinkSpeed,
}

impl Default for Link {
    fn default() -> Self {
        Self { width: 4, speed: LinkSpeed::Edr }
    }
}

/// Counters of a port (IBTA 16.1.3.5, 16.1.4.11). Data is counted in 4-byte words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "named as in PortCounters")]
pub struct PortCounters {
    /// All words sent, multicast included.
    pub xmit_data: u64,
    /// All words received, multicast included.
    pub rcv_data: u64,
    /// All packets sent, multicast included.
    pub xmit_packets: u64,
    /// All packets received, multicast included.
    pub rcv_packets: u64,
    pub multicast_xmit_packets: u64,
    pub multicast_rcv_packets: u64,
    pub multicast_xmit_data: u64,
    pub multicast_rcv_data: u64,
    pub symbol_errors: u32,
    pub rcv_errors: u32,
    /// Packets received that were already marked bad.
    pub rcv_remote_physical_errors: u32,
    pub xmit_discards: u32,
    pub xmit_constraint_errors: u32,
    /// Packets received with a P_Key that the partition does not allow.
    pub rcv_constraint_errors: u32,
    pub link_error_recovery: u32,
    pub link_downed: u32,
    /// SMPs that came when there was no room for them.
    pub vl15_dropped: u32,
    /// Packets that a switch could not forward: no route, no virtual lane, or back where they came from.
    pub rcv_switch_relay_errors: u32,
    /// Times a packet was ready and had no credits, in symbol times of the link.
    pub xmit_wait: u64,
}

impl PortCounters {
    /// A packet of `len` bytes left.
    pub fn xmit(&mut self, len: usize) {
        self.xmit_packets = self.xmit_packets.wrapping_add(1);
        self.xmit_data = self.xmit_data.wrapping_add(len as u64 / 4);
    }

    /// A multicast packet of `len` bytes left.
    pub fn xmit_multicast(&mut self, len: usize) {
        self.xmit(len);
        self.multicast_xmit_packets = self.multicast_xmit_packets.wrapping_add(1);
        self.multicast_xmit_data = self.multicast_xmit_data.wrapping_add(len as u64 / 4);
    }

    /// A packet of `len` bytes came.
    pub fn rcv(&mut self, len: usize) {
        self.rcv_packets = self.rcv_packets.wrapping_add(1);
        self.rcv_data = self.rcv_data.wrapping_add(len as u64 / 4);
    }

    /// A multicast packet of `len` bytes came.
    pub fn rcv_multicast(&mut self, len: usize) {
        self.rcv(len);
        self.multicast_rcv_packets = self.multicast_rcv_packets.wrapping_add(1);
        self.multicast_rcv_data = self.multicast_rcv_data.wrapping_add(len as u64 / 4);
    }

    /// Packets sent that were not multicast.
    pub fn unicast_xmit_packets(&self) -> u64 {
        self.xmit_packets.wrapping_sub(self.multicast_xmit_packets)
    }

    /// Packets received that were not multicast.
    pub fn unicast_rcv_packets(&self) -> u64 {
        self.rcv_packets.wrapping_sub(self.multicast_rcv_packets)
    }

    /// Words sent that were not multicast.
    pub fn unicast_xmit_data(&self) -> u64 {
        self.xmit_data.wrapping_sub(self.multicast_xmit_data)
    }

    /// Words received that were not multicast.
    pub fn unicast_rcv_data(&self) -> u64 {
        self.rcv_data.wrapping_sub(self.multicast_rcv_data)
    }
}

/// Who hears of a port's changes ([`hca_spec::eqe::port_change`]).
pub(crate) trait PortEvents {
    /// The port changed.
    fn port_event(&mut self, port: u8, sub_type: u8);
}

impl PortEvents for Vec<Effect> {
    fn port_event(&mut self, port: u8, sub_type: u8) {
        self.push(Effect::PortChange { port, sub_type });
    }
}

/// What a port belongs to; PortInfo means different things for each (IBTA 14.2.5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A channel adapter.
    Adapter,
    /// A switch's base port 0: no link, always active.
    SwitchZero,
    /// A switch's external port: no LID of its own.
    External,
}

/// A port. What a subnet manager sets survives the driver; only a device reset forgets it.
#[derive(Debug, Clone)]
pub struct Port {
    /// Logical state ([`port_state`]).
    pub state: u32,
    /// Counters.
    pub counters: PortCounters,
    /// PortInfo but for the state.
    pub(crate) info: PortInfo,
    role: Role,
    number: u8,
    link: Option<Link>,
    pub(crate) guids: [u64; GUIDS],
    pub(crate) pkeys: [u16; PKEYS],
    /// Tables of this port as the way out, by the port of the way in; adapters have one. An entry is 4 bits.
    pub(crate) sl_to_vl: Vec<[u8; 8]>,
    pub(crate) vl_arbitration: [[u8; 64]; 4],
    pub(crate) node_description: [u8; 64],
}

/// Width code of PortInfo.
fn width_code(lanes: u8) -> u32 {
    match lanes {
        1 => 1,
        8 => 4,
        12 => 8,
        _ => 2,
    }
}

/// LinkSpeedActive (1 SDR, 2 DDR, 4 QDR) and LinkSpeedExtActive (1 FDR, 2 EDR). Ports on extended
/// speeds report QDR in the former.
fn speed_codes(speed: LinkSpeed) -> (u32, u8) {
    match speed {
        LinkSpeed::Sdr => (1, 0),
        LinkSpeed::Ddr => (2, 0),
        LinkSpeed::Qdr => (4, 0),
        LinkSpeed::Fdr10 => (4, 0),
        LinkSpeed::Fdr => (4, 1),
        LinkSpeed::Edr => (4, 2),
        LinkSpeed::Hdr => (4, 4),
    }
}

impl Port {
    pub(crate) fn new(role: Role, number: u8, port_guid: u64, node_description: &str) -> Self {
        let mut info = PortInfo::new();
        info.set(PortInfo::GID_PREFIX, 0xfe80_0000_0000_0000);
        info.set(
            PortInfo::CAPABILITY_MASK,
            port_cap::SL_MAPPING
                | port_cap::SYS_IMAGE_GUID
                | port_cap::EXTENDED_SPEEDS
                | port_cap::CLIENT_REREGISTRATION,
        );
        info.set(PortInfo::LOCAL_PORT_NUM, number.into());
        // 1x and 4x.
        info.set(PortInfo::LINK_WIDTH_ENABLED, 3).set(PortInfo::LINK_WIDTH_SUPPORTED, 3);
        info.set(PortInfo::LINK_SPEED_SUPPORTED, 7).set(PortInfo::LINK_SPEED_ENABLED, 7);
        info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
        info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, phys_state::POLLING);
        info.set(PortInfo::NEIGHBOR_MTU, 5).set(PortInfo::MTU_CAP, 5);
        info.set(PortInfo::VL_CAP, 4).set(PortInfo::OPERATIONAL_VLS, 4);
        info.set(PortInfo::VL_ARB_HIGH_CAP, 8).set(PortInfo::VL_ARB_LOW_CAP, 8);
        info.set(PortInfo::GUID_CAP, GUIDS as u32).set(PortInfo::SUBNET_TIMEOUT, 18);
        info.set(PortInfo::RESP_TIME_VALUE, 16);
        info.bytes_mut()[PortInfo::EXT_SPEED_ACTIVE_SUPPORTED] = 0x03;
        info.bytes_mut()[PortInfo::EXT_SPEED_ENABLED] = 0x03;
        let mut guids = [0; GUIDS];
        guids[0] = port_guid;
        let mut pkeys = [0; PKEYS];
        pkeys[0] = 0xffff;
        let mut description = [0; 64];
        description.iter_mut().zip(node_description.as_bytes()).for_each(|(to, from)| *to = *from);
        Self {
            state: if role == Role::SwitchZero { port_state::ACTIVE } else { port_state::DOWN },
            role,
            number,
            counters: PortCounters::default(),
            info,
            link: None,
            guids,
            pkeys,
            sl_to_vl: Vec::new(),
            vl_arbitration: [[0; 64]; 4],
            node_description: description,
        }
    }

    /// Base LID.
    pub fn lid(&self) -> Lid {
        Lid(self.info.get(PortInfo::LID) as u16)
    }

    fn path_mask(&self) -> u16 {
        (1 << self.info.get(PortInfo::LMC)) - 1
    }

    /// Whether packets to `lid` are for this port: the base LID or one of its paths.
    pub fn is_own_lid(&self, lid: Lid) -> bool {
        self.lid().0 != 0 && lid.0 & !self.path_mask() == self.lid().0
    }

    /// Path bits of a destination LID of this port.
    pub fn path_bits(&self, lid: Lid) -> u32 {
        u32::from(lid.0 & self.path_mask())
    }

    /// Source LID of packets with those path bits.
    pub fn source_lid(&self, path_bits: u32) -> Lid {
        Lid(self.lid().0 | (path_bits as u16 & self.path_mask()))
    }

    /// GID of that index; out of range gives index 0's.
    pub fn gid(&self, index: u32) -> Gid {
        let guid = self.guids.get(index as usize).copied().unwrap_or(self.guids[0]);
        Gid::new(self.info.get(PortInfo::GID_PREFIX), guid)
    }

    /// P_Key of that index; out of range gives 0, which matches nothing.
    pub fn pkey(&self, index: u32) -> u16 {
        self.pkeys.get(index as usize).copied().unwrap_or(0)
    }

    /// PortInfo as the agent reports it.
    pub fn info(&self) -> PortInfo {
        let mut info = self.info;
        info.set(PortInfo::PORT_STATE, self.state);
        info
    }

    /// Changes CapabilityMask bits that software may change, as the PCAP register and MODIFY_HCA_VPORT_CONTEXT do.
    pub(crate) fn change_capabilities(&mut self, mask: u32, value: u32) {
        let mask = mask & SETTABLE_CAPABILITIES;
        let old = self.info.get(PortInfo::CAPABILITY_MASK);
        self.info.set(PortInfo::CAPABILITY_MASK, old & !mask | value & mask);
    }

    pub(crate) fn set_node_description(&mut self, text: &[u8]) {
        for (to, from) in self.node_description.iter_mut().zip(text) {
            *to = *from;
        }
    }

    pub(crate) fn node_description(&self) -> &[u8; 64] {
        &self.node_description
    }

    /// Counts a packet with a wrong P_Key.
    pub fn pkey_violation(&mut self) {
        self.counters.rcv_constraint_errors = self.counters.rcv_constraint_errors.saturating_add(1);
        let n = self.info.get(PortInfo::P_KEY_VIOLATIONS);
        self.info.set(PortInfo::P_KEY_VIOLATIONS, (n + 1).min(0xffff));
    }

    /// Counts a packet with a wrong Q_Key.
    pub fn qkey_violation(&mut self) {
        let n = self.info.get(PortInfo::Q_KEY_VIOLATIONS);
        self.info.set(PortInfo::Q_KEY_VIOLATIONS, (n + 1).min(0xffff));
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

    /// Switches the port on, if it was off.
    pub(crate) fn enable(&mut self, effects: &mut impl PortEvents) {
        if self.is_disabled() {
            self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
            self.train(effects);
        }
    }

    /// The link trained or was lost; a disabled port stays down.
    pub(crate) fn set_link(&mut self, link: Option<Link>, effects: &mut impl PortEvents) {
        self.link = link;
        match link {
            _ if self.is_disabled() => {}
            Some(_) => self.train(effects),
            None => self.drop_link(effects),
        }
    }

    /// The blocks of the arbitration tables (IBTA 14.2.5.9): two of the low priority table, two of the high one, each
    /// 32 pairs of lane and weight.
    pub fn vl_arbitration(&self) -> &[[u8; 64]; 4] {
        &self.vl_arbitration
    }

    /// The virtual lane of a service level, for packets that came by `in_port` (of an adapter: 0).
    pub fn virtual_lane(&self, in_port: u8, sl: u8) -> u8 {
        let table = self.sl_to_vl.get(usize::from(in_port)).copied().unwrap_or_default();
        let pair = table.get(usize::from(sl & 0xf) / 2).copied().unwrap_or(0);
        if sl & 1 == 0 { pair >> 4 } else { pair & 0xf }
    }

    /// Takes the link down; it trains again when [`Port::train`] is called.
    pub(crate) fn drop_link(&mut self, effects: &mut impl PortEvents) {
        self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
        if self.state != port_state::DOWN {
            self.state = port_state::DOWN;
            self.counters.link_downed = self.counters.link_downed.saturating_add(1);
            effects.port_event(self.number, port_change::DOWN);
        }
    }

    /// Brings the link up, if there is one at the cable's other end.
    pub(crate) fn train(&mut self, effects: &mut impl PortEvents) {
        let Some(link) = self.link else { return };
        let (speed, extended) = speed_codes(link.speed);
        self.info.set(PortInfo::LINK_WIDTH_ACTIVE, width_code(link.width));
        self.info.set(PortInfo::LINK_SPEED_ACTIVE, speed);
        if let Some(byte) = self.info.bytes_mut().get_mut(PortInfo::EXT_SPEED_ACTIVE_SUPPORTED) {
            *byte = *byte & 0x0f | extended << 4;
        }
        self.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::LINK_UP);
        if self.state == port_state::DOWN {
            self.state = port_state::INIT;
            effects.port_event(self.number, port_change::INITIALIZED);
        }
    }
}

/// Tells the hardware of an event of an adapter's port 1.
pub(crate) fn changed(effects: &mut Vec<Effect>, sub_type: u8) {
    effects.port_event(1, sub_type);
}

impl Firmware {
    /// The link of a port trained (to INIT) or was lost (to DOWN). A port that a subnet manager disabled
    /// stays down.
    pub fn set_link(&mut self, port: u8, link: Option<Link>, effects: &mut Vec<Effect>) {
        if let Some(p) = self.port_mut(port) {
            p.set_link(link, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Config;

    fn event(sub_type: u8) -> Effect {
        Effect::PortChange { port: 1, sub_type }
    }

    #[test]
    fn the_link_comes_and_goes() {
        let mut f = Firmware::new(Config::default());
        let mut effects = Vec::new();
        f.set_link(1, None, &mut effects);
        f.set_link(2, Some(Link::default()), &mut effects);
        assert_eq!(effects, [], "nothing changed");
        f.set_link(1, Some(Link { width: 1, speed: LinkSpeed::Fdr }), &mut effects);
        f.set_link(1, Some(Link { width: 1, speed: LinkSpeed::Fdr }), &mut effects);
        assert_eq!(effects, [event(port_change::INITIALIZED)]);
        let info = f.port.info();
        assert_eq!((info.get(PortInfo::LINK_WIDTH_ACTIVE), info.get(PortInfo::LINK_SPEED_ACTIVE)), (1, 4));
        assert_eq!(info.bytes()[PortInfo::EXT_SPEED_ACTIVE_SUPPORTED], 0x13);
        f.set_link(1, None, &mut effects);
        assert_eq!(effects[1..], [event(port_change::DOWN)]);
        assert_eq!((f.port.counters.link_downed, f.port.state), (1, port_state::DOWN));
        f.reset();
        assert_eq!(f.port.counters.link_downed, 0);
    }

    #[test]
    fn addresses_of_a_port() {
        let mut p = Port::new(Role::Adapter, 1, 1, "");
        p.info.set(PortInfo::LID, 0x40).set(PortInfo::LMC, 2);
        assert!(p.is_own_lid(Lid(0x43)) && !p.is_own_lid(Lid(0x44)) && !p.is_own_lid(Lid(0)));
        assert_eq!((p.path_bits(Lid(0x43)), p.source_lid(7)), (3, Lid(0x43)));
        assert_eq!((p.pkey(0), p.pkey(1), p.pkey(99)), (0xffff, 0, 0));
        assert_eq!(p.gid(0).0[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn traffic_adds_up() {
        let mut c = PortCounters::default();
        c.xmit(64);
        c.xmit_multicast(32);
        c.rcv_multicast(16);
        assert_eq!((c.xmit_packets, c.xmit_data, c.unicast_xmit_packets()), (2, 24, 1));
        assert_eq!((c.unicast_xmit_data(), c.unicast_rcv_packets(), c.multicast_rcv_data), (16, 0, 4));
    }
}
