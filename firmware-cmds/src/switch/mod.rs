//! A switch, as software sees it: ports, forwarding tables, and the agents that answer for it.
//!
//! The data plane asks ([`Switch::forward`], [`Switch::multicast`], [`Switch::virtual_lane`]), hands up the
//! datagrams that are for the switch or on a directed route ([`Switch::management`]), tells of links
//! ([`Switch::set_link`]), and lets time pass ([`Switch::poll`]).
//!
//! Source: IBTA 14.2.5 (attributes), 18.2.4 (relay).

mod tables;

use hca_spec::ids::Lid;
use hca_spec::mad::{Mad, port_state};

use crate::datagram::{Arrival, Departure};
use crate::port::{Link, Port, PortEvents, Role};
pub use tables::{LINEAR_CAP, MULTICAST_CAP};
use tables::{Linear, Multicast};

/// Most external ports of a switch.
pub const MAX_PORTS: u8 = 64;
/// The virtual lane that means "discard" in an SL to VL table (IBTA 14.2.5.8).
pub const DISCARD_VL: u8 = 15;

/// Identity of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchConfig {
    /// GUID of the node, and of port 0.
    pub node_guid: u64,
    /// GUID of the system.
    pub system_image_guid: u64,
    /// NodeDescription; at most 64 bytes are used.
    pub node_description: String,
    /// External ports, 1 to [`MAX_PORTS`]; other numbers are brought into that range.
    pub ports: u8,
}

/// What the hardware of a switch has to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchEffect {
    /// A port changed.
    PortChange {
        /// The port.
        port: u8,
        /// How ([`hca_spec::eqe::port_change`]). `DOWN`: the link went down from this end, so that its peer
        /// loses it too; it trains again (both ends [`Switch::set_link`]) unless an end is disabled.
        sub_type: u8,
    },
}

impl PortEvents for Vec<SwitchEffect> {
    fn port_event(&mut self, port: u8, sub_type: u8) {
        self.push(SwitchEffect::PortChange { port, sub_type });
    }
}

/// A switch.
#[derive(Debug, Clone)]
pub struct Switch {
    config: SwitchConfig,
    /// Port 0, which is a base port 0, and the external ports.
    ports: Vec<Port>,
    linear: Linear,
    linear_top: u16,
    multicast: Multicast,
}

impl Switch {
    /// A switch at power-on: no LID, no routes.
    pub fn new(config: SwitchConfig) -> Self {
        let config = SwitchConfig { ports: config.ports.clamp(1, MAX_PORTS), ..config };
        let port = |number| {
            let role = if number == 0 { Role::SwitchZero } else { Role::External };
            Port::new(role, number, config.node_guid, &config.node_description)
        };
        Self {
            ports: (0..=config.ports).map(port).collect(),
            linear: Linear::default(),
            linear_top: 0,
            multicast: Multicast::default(),
            config,
        }
    }

    /// Number of external ports.
    pub fn ports(&self) -> u8 {
        self.config.ports
    }

    /// A port: 0 is the switch's own, externals count from 1.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number))
    }

    /// A port, to count on.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number))
    }

    /// The link of an external port trained (to INIT) or was lost (to DOWN). A port that is disabled stays down.
    pub fn set_link(&mut self, port: u8, link: Option<Link>, effects: &mut Vec<SwitchEffect>) {
        if let Some(p) = self.port_mut(port).filter(|_| port != 0) {
            p.set_link(link, effects);
        }
    }

    /// Whether `lid` is the switch's own (port 0's).
    pub fn is_own_lid(&self, lid: Lid) -> bool {
        self.port(0).is_some_and(|p| p.is_own_lid(lid))
    }

    /// The port by which a packet with that unicast LID leaves, 0 = to the switch itself; `None` discards it
    /// ([`crate::PortCounters::rcv_switch_relay_errors`] of the port it came by): beyond LinearFDBTop, no
    /// entry, or no such port. Whether the port is up is for the caller to see.
    pub fn forward(&self, dlid: Lid) -> Option<u8> {
        if dlid.is_multicast() || dlid.0 > self.linear_top {
            return None;
        }
        Some(self.linear.port(dlid)).filter(|p| *p <= self.ports())
    }

    /// The ports by which a packet with that multicast LID leaves when it came by `in_port`, which is never
    /// among them; bit 0 = port 0. Empty: discard.
    pub fn multicast(&self, in_port: u8, dlid: Lid) -> u128 {
        let mask = if dlid.is_multicast() { self.multicast.mask(Multicast::index(dlid)) } else { 0 };
        mask & !1u128.checked_shl(in_port.into()).unwrap_or(0)
    }

    /// The virtual lane of a data packet's service level from `in_port` to `out_port`; [`DISCARD_VL`] discards
    /// it.
    pub fn virtual_lane(&self, in_port: u8, out_port: u8, sl: u8) -> u8 {
        let (true, Some(out)) = (in_port <= self.ports(), self.port(out_port)) else { return DISCARD_VL };
        out.virtual_lane(in_port, sl)
    }

    /// Handles a datagram: one to the switch's own LID, or an SMP with the permissive LID. What leaves, answers
    /// and datagrams passed on; what is neither answered nor passed on was counted.
    pub fn management(
        &mut self,
        arrival: &Arrival,
        mad: &Mad,
        effects: &mut Vec<SwitchEffect>,
    ) -> Vec<Departure> {
        let _ = (arrival, mad, effects);
        Vec::new()
    }

    /// When [`Switch::poll`] has something to do, in picoseconds; 0 = at once. Ask after each call that may
    /// change something.
    pub fn poll_at(&self) -> Option<u64> {
        None
    }

    /// Lets time pass: what leaves at `now` (picoseconds), traps that is.
    pub fn poll(&mut self, now: u64) -> Vec<Departure> {
        let _ = now;
        Vec::new()
    }

    /// Whether a packet can leave by the port at all: SMPs when the link is up, others when it is active.
    pub fn can_send(&self, port: u8, smp: bool) -> bool {
        let needed = if smp { port_state::INIT } else { port_state::ACTIVE };
        self.port(port).is_some_and(|p| p.state >= needed)
    }
}
