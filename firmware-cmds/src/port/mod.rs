//! A port, of an adapter or a switch: link, addresses, tables and counters. The agents that tell of it are in
//! `sma` and `switch` (subnet management) and `pma` (performance management).
//!
//! Source: IBTA 7.2 (link states), 14.2.5 (attributes of a port), 16.1.3 (counters).

pub mod acceleration;
pub mod buffers;
pub mod classes;
pub mod congestion;
mod counters;
pub(crate) mod error_correction;
pub mod ethernet;
mod info;
mod key;
mod link;
mod modes;
mod rate;
pub(crate) mod smp;
mod tables;

use hca_spec::ids::{Gid, Lid};
use hca_spec::mad::{PortInfo, phys_state, port_cap, port_state};
use hca_spec::qpc::mtu_bytes;

pub use counters::PortCounters;
pub use ethernet::{Ethernet, EthernetCounters, FrameClass, Mac, Pause, RoceAddress, RoceVersion};
pub(crate) use key::KeyCheck;
use key::Lease;
pub use link::{LinkOffer, PortLink};

use crate::effect::Effect;
use crate::limits::{GUIDS, PKEYS};

/// Bits of CapabilityMask that software may change: what it runs on the port, not what the port can do.
pub(crate) const SETTABLE_CAPABILITIES: u32 = port_cap::IS_SM
    | port_cap::CM
    // SNMP tunnelling, device management, vendor class.
    | 1 << 17
    | 1 << 19
    | 1 << 20;

/// Who hears of a port's changes.
pub(crate) trait PortEvents {
    /// The port changed, as [`hca_spec::eqe::port_change`] says.
    fn port_event(&mut self, port: u8, sub_type: u8);
    /// The port was switched on: its link may train.
    fn port_enabled(&mut self, port: u8);
}

impl PortEvents for Vec<Effect> {
    fn port_event(&mut self, port: u8, sub_type: u8) {
        self.push(Effect::PortChange { port, sub_type });
    }

    fn port_enabled(&mut self, port: u8) {
        self.push(Effect::PortEnabled { port });
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
    /// What the cable carries, if its other end is there.
    link: Option<PortLink>,
    fdr10_enabled: u32,
    fdr10_active: u32,
    lease: Lease,
    pub(crate) guids: [u64; GUIDS],
    pub(crate) pkeys: [u16; PKEYS],
    /// Tables of this port as the way out, by the port of the way in; adapters have one. An entry is 4 bits.
    sl_to_vl: Vec<[u8; 8]>,
    vl_arbitration: [[u8; 64]; 4],
    pub(crate) node_description: [u8; 64],
    addresses: u32,
    /// How long its light shines, in seconds, as a driver said; [`hca_spec::register::Mlcr`].
    pub(crate) light: u16,
    /// Of a port that is Ethernet.
    ethernet: Option<Box<Ethernet>>,
}

impl Port {
    /// A port at power-on: no link yet. Port 0 of a switch is active.
    pub fn new(role: Role, number: u8, port_guid: u64, node_description: &str) -> Self {
        let mut info = PortInfo::new();
        info.set(PortInfo::LOCAL_PORT_NUM, number.into());
        // 1x and 4x; SDR to QDR; FDR and EDR.
        info.set(PortInfo::LINK_WIDTH_ENABLED, 3).set(PortInfo::LINK_WIDTH_SUPPORTED, 3);
        info.set(PortInfo::LINK_SPEED_SUPPORTED, 7).set(PortInfo::LINK_SPEED_ENABLED, 7);
        info.set(PortInfo::LINK_SPEED_EXT_SUPPORTED, 3).set(PortInfo::LINK_SPEED_EXT_ENABLED, 3);
        info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
        info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, phys_state::POLLING);
        info.set(PortInfo::NEIGHBOR_MTU, 5).set(PortInfo::MTU_CAP, 5);
        info.set(PortInfo::VL_CAP, 4).set(PortInfo::OPERATIONAL_VLS, 4);
        info.set(PortInfo::VL_ARB_HIGH_CAP, 8).set(PortInfo::VL_ARB_LOW_CAP, 8);
        let mut guids = [0; GUIDS];
        let mut pkeys = [0; PKEYS];
        let traps = port_cap::TRAP | port_cap::CAP_MASK_NOTICE;
        let both = port_cap::SL_MAPPING
            | port_cap::SYS_IMAGE_GUID
            | port_cap::EXTENDED_SPEEDS
            | port_cap::CAP_MASK2
            | port_cap::CLIENT_REREGISTRATION
            | traps;
        let capabilities = match role {
            Role::Adapter => both | port_cap::OTHER_LOCAL_CHANGES_NOTICE,
            Role::SwitchZero => both | port_cap::MULTICAST_FDB_TOP,
            Role::External => 0,
        };
        info.set(PortInfo::CAPABILITY_MASK, capabilities);
        if role != Role::External {
            info.set(PortInfo::GID_PREFIX, 0xfe80_0000_0000_0000);
            info.set(PortInfo::SUBNET_TIMEOUT, 18).set(PortInfo::RESP_TIME_VALUE, 16);
            guids[0] = port_guid;
        }
        // Of a switch's external ports, what the partitions of the switch are is not enforced yet.
        pkeys[0] = 0xffff;
        match role {
            Role::Adapter => _ = info.set(PortInfo::GUID_CAP, GUIDS as u32),
            Role::SwitchZero => {
                info.set(PortInfo::GUID_CAP, 1);
                info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::LINK_UP);
                // 4x EDR: what the switch's ports usually are.
                info.set(PortInfo::LINK_WIDTH_ACTIVE, 2).set(PortInfo::LINK_SPEED_ACTIVE, 4);
                info.set(PortInfo::LINK_SPEED_EXT_ACTIVE, 2);
            }
            Role::External => {
                /// 4.096 us * 2^18: a second.
                const HOQ_LIFE: u32 = 18;
                info.set(PortInfo::HOQ_LIFE, HOQ_LIFE).set(PortInfo::VL_STALL_COUNT, 7);
            }
        }
        let mut description = [0; 64];
        description.iter_mut().zip(node_description.as_bytes()).for_each(|(to, from)| *to = *from);
        Self {
            state: if role == Role::SwitchZero { port_state::ACTIVE } else { port_state::DOWN },
            counters: PortCounters::default(),
            info,
            role,
            number,
            link: None,
            fdr10_enabled: 1,
            fdr10_active: 0,
            lease: Lease::default(),
            guids,
            pkeys,
            sl_to_vl: Vec::new(),
            vl_arbitration: [[0; 64]; 4],
            node_description: description,
            addresses: 1,
            light: 0,
            ethernet: None,
        }
    }

    /// The port's number: of an adapter from 1, of a switch from 0.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Counts, from 1, how often what packets say of their sender became another: LID, LMC, GIDs, P_Keys. What was worked
    /// out from these holds as long as this number stays.
    #[inline]
    pub fn addresses(&self) -> u32 {
        self.addresses
    }

    /// Its addresses are others from now on.
    pub(crate) fn readdress(&mut self) {
        self.addresses = self.addresses.wrapping_add(1).max(1);
    }

    /// It takes the place of a port, whose addresses are not its own.
    pub(crate) fn succeed(&mut self, old: &Port) {
        self.addresses = old.addresses;
        self.readdress();
    }

    /// Base LID.
    #[inline]
    pub fn lid(&self) -> Lid {
        Lid(self.info.get(PortInfo::LID) as u16)
    }

    /// Bytes of the longest packet that passes: of an InfiniBand port, to its link, by NeighborMTU (IBTA vol 1 7.7.8); of an Ethernet port
    /// either way, frame check sequence included.
    #[inline]
    pub fn longest(&self) -> usize {
        /// Bytes that headers and CRCs add to the MTU at most.
        const OVERHEAD: usize = 124;
        match &self.ethernet {
            Some(ethernet) => ethernet.mtu.into(),
            None => mtu_bytes(self.info.get(PortInfo::NEIGHBOR_MTU)).unwrap_or(256) + OVERHEAD,
        }
    }

    #[inline]
    fn path_mask(&self) -> u16 {
        (1 << self.info.get(PortInfo::LMC)) - 1
    }

    /// Whether packets to `lid` are for this port: the base LID or one of its paths.
    #[inline]
    pub fn is_own_lid(&self, lid: Lid) -> bool {
        self.lid().0 != 0 && lid.0 & !self.path_mask() == self.lid().0
    }

    /// Path bits of a destination LID of this port.
    pub fn path_bits(&self, lid: Lid) -> u32 {
        u32::from(lid.0 & self.path_mask())
    }

    /// Source LID of packets with those path bits.
    #[inline]
    pub fn source_lid(&self, path_bits: u32) -> Lid {
        Lid(self.lid().0 | (path_bits as u16 & self.path_mask()))
    }

    /// GID of that index; out of range gives index 0's. Of an Ethernet port, that of the RoCE address; without one, zero.
    #[inline]
    pub fn gid(&self, index: u32) -> Gid {
        if self.ethernet.is_some() {
            let address = u8::try_from(index).ok().and_then(|index| self.roce_address(index));
            return address.map(|address| address.gid).unwrap_or_default();
        }
        let guid = self.guids.get(index as usize).copied().unwrap_or(self.guids[0]);
        Gid::new(self.info.get(PortInfo::GID_PREFIX), guid)
    }

    /// Whether a GID is one of this port, which is InfiniBand's: with the subnet's prefix or the default one.
    pub fn has_gid(&self, gid: Gid) -> bool {
        let own = |guid: &u64| Gid::new(self.info.get(PortInfo::GID_PREFIX), *guid);
        self.guids.iter().filter(|guid| **guid != 0).any(|guid| gid.is_or_defaults_to(own(guid)))
    }

    /// P_Key of that index; out of range gives 0, which matches nothing.
    #[inline]
    pub fn pkey(&self, index: u32) -> u16 {
        self.pkeys.get(index as usize).copied().unwrap_or(0)
    }

    /// All its P_Keys; places that are not used have 0, which matches nothing.
    pub fn pkeys(&self) -> impl Iterator<Item = u16> {
        self.pkeys.iter().copied()
    }

    /// PortInfo as the agent reports it.
    pub fn info(&self) -> PortInfo {
        let mut info = self.info;
        info.set(PortInfo::PORT_STATE, self.state);
        info
    }

    /// Changes CapabilityMask bits that software may change. Whether that made a difference.
    pub(crate) fn change_capabilities(&mut self, mask: u32, value: u32) -> bool {
        let mask = mask & SETTABLE_CAPABILITIES;
        let old = self.info.get(PortInfo::CAPABILITY_MASK);
        let new = old & !mask | value & mask;
        self.info.set(PortInfo::CAPABILITY_MASK, new);
        old != new
    }

    /// Whether the description is another one now.
    pub(crate) fn set_node_description(&mut self, text: &[u8]) -> bool {
        let old = self.node_description;
        for (to, from) in self.node_description.iter_mut().zip(text) {
            *to = *from;
        }
        old != self.node_description
    }

    pub(crate) fn node_description(&self) -> &[u8; 64] {
        &self.node_description
    }

    /// Counts a packet with a wrong P_Key.
    pub(crate) fn pkey_violation(&mut self) {
        self.counters.rcv_constraint_errors = self.counters.rcv_constraint_errors.saturating_add(1);
        let n = self.info.get(PortInfo::P_KEY_VIOLATIONS);
        self.info.set(PortInfo::P_KEY_VIOLATIONS, (n + 1).min(0xffff));
    }

    /// Counts a packet with a wrong Q_Key.
    pub(crate) fn qkey_violation(&mut self) {
        let n = self.info.get(PortInfo::Q_KEY_VIOLATIONS);
        self.info.set(PortInfo::Q_KEY_VIOLATIONS, (n + 1).min(0xffff));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_worked_with_addresses_hears_of_others() {
        let mut p = Port::new(Role::Adapter, 1, 1, "");
        let e = &mut Vec::<Effect>::new();
        let mut seen = vec![p.addresses()];
        let mut set = p.info;
        set.set(PortInfo::LID, 0x40).set(PortInfo::MASTER_SM_LID, 1);
        let mut again = |p: &Port, other: bool| {
            let before = seen.last().copied();
            seen.push(p.addresses());
            assert_eq!(before != seen.last().copied(), other, "{seen:?}");
        };
        for (field, value) in [(PortInfo::LID, 0x44), (PortInfo::LMC, 1)] {
            set.set(field, value);
            assert_eq!(p.set_info(&set, e), 0);
            again(&p, true);
        }
        set.set(PortInfo::GID_PREFIX, 0xfec0_0000_0000_0000);
        assert_eq!(p.set_info(&set, e), 0);
        again(&p, true);
        set.set(PortInfo::MASTER_SM_LID, 9);
        assert_eq!(p.set_info(&set, e), 0);
        again(&p, false);
        p.pkey_block(0, Some(&[0x81; 64]), e);
        again(&p, true);
        p.pkey_block(0, Some(&[0x81; 64]), e);
        again(&p, false);
        p.guid_block(0, Some(&[0x22; 64]), e);
        again(&p, true);
        let mut new = Port::new(Role::Adapter, 1, 1, "");
        new.succeed(&p);
        again(&new, true);
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
}
