//! Set(PortInfo): what a subnet manager may change, at each kind of port.
//!
//! Source: IBTA 14.2.5.6 (the table's columns for adapters, base port 0 and external ports), 7.2.7 (states).

use hca_spec::eqe::port_change;
use hca_spec::ids::Lid;
use hca_spec::layout::Field;
use hca_spec::mad::{PortInfo, STATUS_INVALID_VALUE, phys_state, port_state};

use super::{Port, PortEvents, Role};

/// What ports with a LID keep as it is set, zero included.
const ADDRESSED: [Field<PortInfo>; 9] = [
    PortInfo::LID,
    PortInfo::MASTER_SM_LID,
    PortInfo::M_KEY_LEASE_PERIOD,
    PortInfo::M_KEY_PROTECT,
    PortInfo::MASTER_SM_SL,
    PortInfo::SUBNET_TIMEOUT,
    PortInfo::P_KEY_VIOLATIONS,
    PortInfo::Q_KEY_VIOLATIONS,
    PortInfo::M_KEY_VIOLATIONS,
];
/// What ports with a link keep as it is set, zero included.
const LINKED: [Field<PortInfo>; 3] =
    [PortInfo::VL_HIGH_LIMIT, PortInfo::LOCAL_PHY_ERRORS, PortInfo::OVERRUN_ERRORS];
/// What only adapters keep.
const OF_ADAPTERS: [Field<PortInfo>; 2] = [PortInfo::LMC, PortInfo::INIT_TYPE_REPLY];
/// What only external ports of switches keep.
const OF_SWITCHES: [Field<PortInfo>; 6] = [
    PortInfo::HOQ_LIFE,
    PortInfo::VL_STALL_COUNT,
    PortInfo::PARTITION_ENFORCEMENT_INBOUND,
    PortInfo::PARTITION_ENFORCEMENT_OUTBOUND,
    PortInfo::FILTER_RAW_INBOUND,
    PortInfo::FILTER_RAW_OUTBOUND,
];
/// Zero means "no change" in these.
const NONZERO: [Field<PortInfo>; 3] =
    [PortInfo::NEIGHBOR_MTU, PortInfo::OPERATIONAL_VLS, PortInfo::LINK_DOWN_DEFAULT_STATE];

impl Port {
    /// Set(PortInfo); the datagram's status. What is refused changes nothing. A link that the Set takes down is
    /// down: whoever carries it lets it train again ([`Port::set_link`]).
    pub(crate) fn set_info(&mut self, new: &PortInfo, effects: &mut impl PortEvents) -> u32 {
        let (addressed, linked) = (self.role != Role::External, self.role != Role::SwitchZero);
        let link = if linked { self.wanted_link(new) } else { Some((0, 0, 0)) };
        let legal = (!addressed || legal_lid(new)) && (!linked || self.legal_link(new));
        let Some((width, speed, extended)) = link.filter(|_| legal) else { return STATUS_INVALID_VALUE };
        let old = self.info;
        let mut keep = |fields: &[Field<PortInfo>]| {
            for field in fields {
                self.info.set(*field, new.get(*field));
            }
        };
        if addressed {
            keep(&ADDRESSED);
        }
        if linked {
            keep(&LINKED);
            NONZERO.iter().filter(|f| new.get(**f) != 0).for_each(|f| keep(&[*f]));
        }
        match self.role {
            Role::Adapter => keep(&OF_ADAPTERS),
            Role::External => keep(&OF_SWITCHES),
            Role::SwitchZero => {}
        }
        if addressed {
            self.info.set(PortInfo::M_KEY, new.get(PortInfo::M_KEY));
            self.info.set(PortInfo::GID_PREFIX, new.get(PortInfo::GID_PREFIX));
        }
        if linked {
            self.info.set(PortInfo::LINK_WIDTH_ENABLED, width).set(PortInfo::LINK_SPEED_ENABLED, speed);
            self.info.set(PortInfo::LINK_SPEED_EXT_ENABLED, extended);
            self.set_states(new, effects);
        }
        let differs = |fields: &[Field<PortInfo>]| fields.iter().any(|f| old.get(*f) != self.info.get(*f));
        let readdressed = differs(&[PortInfo::LID, PortInfo::LMC])
            || old.get(PortInfo::GID_PREFIX) != self.info.get(PortInfo::GID_PREFIX);
        if differs(&[PortInfo::LID, PortInfo::MASTER_SM_LID, PortInfo::LMC]) {
            effects.port_event(self.number, port_change::LID);
        }
        if old.get(PortInfo::GID_PREFIX) != self.info.get(PortInfo::GID_PREFIX) {
            effects.port_event(self.number, port_change::GUID);
        }
        if readdressed {
            self.readdress();
        }
        if addressed && new.get(PortInfo::CLIENT_REREGISTER) == 1 {
            effects.port_event(self.number, port_change::CLIENT_REREGISTER);
        }
        0
    }

    /// Whether a Set asks for states, lanes and an MTU that the port can take now.
    fn legal_link(&self, new: &PortInfo) -> bool {
        // 0 = no change; INIT -> ARMED -> ACTIVE, DOWN from anywhere; ACTIVE again is no change (IBTA 7.2.7).
        let state = match new.get(PortInfo::PORT_STATE) {
            0 | port_state::DOWN => true,
            port_state::ARMED => matches!(self.state, port_state::INIT | port_state::ARMED),
            port_state::ACTIVE => matches!(self.state, port_state::ARMED | port_state::ACTIVE),
            _ => false,
        };
        // 0 = no change. Sleeping is not supported, and a Get's LinkUp may come back in a Set.
        let physical = matches!(
            new.get(PortInfo::PORT_PHYSICAL_STATE),
            0 | phys_state::POLLING | phys_state::DISABLED | phys_state::LINK_UP
        );
        let after_loss = matches!(new.get(PortInfo::LINK_DOWN_DEFAULT_STATE), 0 | phys_state::POLLING);
        let mtu = new.get(PortInfo::NEIGHBOR_MTU) <= self.info.get(PortInfo::MTU_CAP);
        let lanes = new.get(PortInfo::OPERATIONAL_VLS) <= self.info.get(PortInfo::VL_CAP);
        state && physical && after_loss && mtu && lanes
    }

    fn set_states(&mut self, new: &PortInfo, effects: &mut impl PortEvents) {
        match new.get(PortInfo::PORT_STATE) {
            port_state::ACTIVE if self.state != port_state::ACTIVE => {
                self.state = port_state::ACTIVE;
                effects.port_event(self.number, port_change::ACTIVE);
            }
            port_state::ARMED => self.state = port_state::ARMED,
            port_state::DOWN if !self.is_disabled() => self.drop_link(effects),
            _ => {}
        }
        match new.get(PortInfo::PORT_PHYSICAL_STATE) {
            phys_state::DISABLED => self.disable(effects),
            phys_state::POLLING if self.is_disabled() => self.enable(effects),
            phys_state::POLLING => self.drop_link(effects),
            _ => {}
        }
    }
}

fn legal_lid(new: &PortInfo) -> bool {
    let lid = Lid(new.get(PortInfo::LID) as u16);
    !lid.is_multicast() && lid != Lid::PERMISSIVE
}
