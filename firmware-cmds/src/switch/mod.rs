//! A switch, as software sees it: ports, forwarding tables, and the agents that answer for it.
//!
//! The data plane asks ([`Switch::forward`], [`Switch::multicast`], [`Switch::virtual_lane`],
//! [`Switch::admits`]), hands up the datagrams that are for the switch or on a directed route
//! ([`Switch::management`]), tells of links ([`Switch::set_link`]), and lets time pass ([`Switch::poll`]).
//!
//! Port 0 is a base port 0: no end node of its own beside the agents, always active. Not implemented: random
//! forwarding tables, an enhanced port 0, traps other than 128 (a link came or went) and 256 (bad M_Key).
//!
//! Source: IBTA 14.2.5 (attributes), 18.2.4 (relay).

mod sma;
mod tables;
#[cfg(test)]
mod tests;

use hca_spec::ids::Lid;
use hca_spec::mad::{CLASS_SUBN_DIRECTED, Mad, PortInfo, SwitchInfo, port_state};

use crate::agent;
use crate::datagram::{Address, Arrival, Departure};
use crate::directed::{self, Step};
use crate::limits::PKEYS;
use crate::notice::{self, Notices};
use crate::personality::PortKind;
use crate::port::{Port, PortEvents, PortLink, Role};
use crate::profile::mac_of;
pub use tables::{LINEAR_CAP, MULTICAST_CAP};
use tables::{Linear, Multicast};

/// Most external ports of a switch.
pub const MAX_PORTS: u8 = 64;
/// The virtual lane that means "discard" in an SL to VL table (IBTA 14.2.5.8).
pub const DISCARD_VL: u8 = 15;
/// Bit of a P_Key: a full member. Two limited members do not talk (IBTA 10.9.3).
const FULL_MEMBER: u16 = 0x8000;

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
    /// Link layer of the external ports. Of an Ethernet switch nobody asks the agents, and the hardware forwards by itself.
    pub kind: PortKind,
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
    /// A port was switched on: its link may train.
    PortEnabled {
        /// The port.
        port: u8,
    },
}

impl PortEvents for Vec<SwitchEffect> {
    fn port_event(&mut self, port: u8, sub_type: u8) {
        self.push(SwitchEffect::PortChange { port, sub_type });
    }

    fn port_enabled(&mut self, port: u8) {
        self.push(SwitchEffect::PortEnabled { port });
    }
}

/// Which way a packet passes a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the cable into the switch.
    Inbound,
    /// Out of the switch.
    Outbound,
}

/// A switch.
#[derive(Debug, Clone)]
pub struct Switch {
    config: SwitchConfig,
    /// Port 0 and the external ports.
    ports: Vec<Port>,
    info: SwitchInfo,
    linear: Linear,
    multicast: Multicast,
    notices: Notices,
}

impl Switch {
    /// A switch at power-on: no LID, no routes.
    pub fn new(config: SwitchConfig) -> Self {
        let config = SwitchConfig { ports: config.ports.clamp(1, MAX_PORTS), ..config };
        let port = |number| {
            let role = if number == 0 { Role::SwitchZero } else { Role::External };
            let mut port = Port::new(role, number, config.node_guid, &config.node_description);
            if config.kind == PortKind::Ethernet && role == Role::External {
                port.make_ethernet(mac_of(config.node_guid));
            }
            port
        };
        let mut info = SwitchInfo::new();
        info.set(SwitchInfo::LINEAR_FDB_CAP, LINEAR_CAP.into());
        info.set(SwitchInfo::MULTICAST_FDB_CAP, MULTICAST_CAP.into());
        // Default ports that do not exist discard.
        info.set(SwitchInfo::DEFAULT_PORT, 0xff);
        info.set(SwitchInfo::DEFAULT_MULTICAST_PRIMARY_PORT, 0xff);
        info.set(SwitchInfo::DEFAULT_MULTICAST_NOT_PRIMARY_PORT, 0xff);
        info.set(SwitchInfo::OPTIMIZED_SL_TO_VL, 1);
        info.set(SwitchInfo::PARTITION_ENFORCEMENT_CAP, PKEYS as u32);
        for cap in [
            SwitchInfo::INBOUND_ENFORCEMENT_CAP,
            SwitchInfo::OUTBOUND_ENFORCEMENT_CAP,
            SwitchInfo::FILTER_RAW_INBOUND_CAP,
            SwitchInfo::FILTER_RAW_OUTBOUND_CAP,
        ] {
            info.set(cap, 1);
        }
        Self {
            ports: (0..=config.ports).map(port).collect(),
            info,
            linear: Linear::default(),
            multicast: Multicast::default(),
            notices: Notices::default(),
            config,
        }
    }

    /// Link layer of its external ports.
    pub fn kind(&self) -> PortKind {
        self.config.kind
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
    /// The subnet manager is told: PortStateChange and trap 128. It is not told of a port that a Set(PortInfo) took
    /// down: PortStateChange stands for what the link state machines did of themselves, and Sets leave it as it is
    /// (IBTA vol 1 14.2.5.4; trap 128 reports that bit's cause, 13.4.8.1). The link's training again is told.
    pub fn set_link(&mut self, port: u8, link: Option<PortLink>, effects: &mut Vec<SwitchEffect>) {
        let Some(p) = self.port_mut(port).filter(|_| port != 0) else { return };
        let before = p.state;
        p.set_link(link, effects);
        let came_or_went = (before == port_state::DOWN) != (p.state == port_state::DOWN);
        if let (true, Some(zero)) = (came_or_went, self.ports.first()) {
            self.info.set(SwitchInfo::PORT_STATE_CHANGE, 1);
            self.notices.raise(zero, notice::link_state(zero.lid()));
        }
    }

    /// A good data packet arrived at an external port: an armed port is active from now on.
    pub fn data_arrived(&mut self, port: u8, effects: &mut Vec<SwitchEffect>) {
        if let Some(p) = self.port_mut(port).filter(|_| port != 0) {
            p.data_arrived(effects);
        }
    }

    /// Whether `lid` is the switch's own (port 0's).
    pub fn is_own_lid(&self, lid: Lid) -> bool {
        self.port(0).is_some_and(|p| p.is_own_lid(lid))
    }

    /// The port by which a packet with that unicast LID leaves, 0 = to the switch itself; `None` discards it
    /// ([`crate::PortCounters::relay_error`] of the port it came by): beyond LinearFDBTop, no entry, or no such
    /// port. Whether the port is up is for the caller to see, and that it is not the port it came by.
    pub fn forward(&self, dlid: Lid) -> Option<u8> {
        let top = self.info.get(SwitchInfo::LINEAR_FDB_TOP);
        if dlid.is_multicast() || u32::from(dlid.0) > top {
            return None;
        }
        Some(self.linear.port(dlid)).filter(|p| *p <= self.ports())
    }

    /// The ports by which a packet with that multicast LID leaves when it came by `in_port`, which is never
    /// among them; bit 0 = port 0. Empty: discard. LIDs beyond the table go to the default multicast ports
    /// (IBTA 18.2.4.3.3).
    pub fn multicast(&self, in_port: u8, dlid: Lid) -> u128 {
        if !dlid.is_multicast() {
            return 0;
        }
        let bit = |port: u8| 1u128.checked_shl(port.into()).unwrap_or(0);
        let index = Multicast::index(dlid);
        let top = self.info.get(SwitchInfo::MULTICAST_FDB_TOP);
        let in_table = index < usize::from(MULTICAST_CAP) && (top == 0 || u32::from(dlid.0) <= top);
        let mask = if in_table {
            self.multicast.mask(index)
        } else {
            let [primary, other] =
                [SwitchInfo::DEFAULT_MULTICAST_PRIMARY_PORT, SwitchInfo::DEFAULT_MULTICAST_NOT_PRIMARY_PORT]
                    .map(|field| self.info.get(field) as u8);
            let port = if in_port == primary { other } else { primary };
            if port <= self.ports() { bit(port) } else { 0 }
        };
        mask & !bit(in_port)
    }

    /// The virtual lane of a data packet's service level from `in_port` to `out_port`; [`DISCARD_VL`] discards
    /// it.
    pub fn virtual_lane(&self, in_port: u8, out_port: u8, sl: u8) -> u8 {
        let (true, Some(out)) = (in_port <= self.ports(), self.port(out_port)) else { return DISCARD_VL };
        out.virtual_lane(in_port, sl)
    }

    /// Whether partitions let a data packet pass an external port; what does not pass is counted
    /// (PortRcvConstraintErrors, PortXmitConstraintErrors). `pkey`: `None` of a raw packet. Everything passes
    /// until a subnet manager enforces partitions there (IBTA 14.2.5.6, PartitionEnforcementInbound and so on).
    ///
    /// Subnet managers give the port the very table of the adapter's port at its other end. So on the way in it says what that
    /// port may send: as a full member either kind of P_Key, as a limited one no full one. On the way out it says what that port takes
    /// (IBTA 10.9.3): two limited members do not talk.
    pub fn admits(&mut self, port: u8, direction: Direction, pkey: Option<u16>) -> bool {
        let Some(p) = self.port_mut(port).filter(|_| port != 0) else { return true };
        let field = match (direction, pkey) {
            (Direction::Inbound, Some(_)) => PortInfo::PARTITION_ENFORCEMENT_INBOUND,
            (Direction::Outbound, Some(_)) => PortInfo::PARTITION_ENFORCEMENT_OUTBOUND,
            (Direction::Inbound, None) => PortInfo::FILTER_RAW_INBOUND,
            (Direction::Outbound, None) => PortInfo::FILTER_RAW_OUTBOUND,
        };
        let member = |pkey: u16| {
            let base = |k: u16| k & !FULL_MEMBER;
            let kinds = |own: u16| match direction {
                Direction::Inbound => (own | !pkey) & FULL_MEMBER != 0,
                Direction::Outbound => (own | pkey) & FULL_MEMBER != 0,
            };
            p.pkeys.iter().any(|own| base(*own) != 0 && base(*own) == base(pkey) && kinds(*own))
        };
        if p.info.get(field) == 0 || pkey.is_some_and(member) {
            return true;
        }
        let counter = match direction {
            Direction::Inbound => &mut p.counters.rcv_constraint_errors,
            Direction::Outbound => &mut p.counters.xmit_constraint_errors,
        };
        *counter = counter.saturating_add(1);
        false
    }

    /// How long a packet may stay: SwitchInfo:LifeTimeValue.
    pub fn life_time_value(&self) -> u32 {
        self.info.get(SwitchInfo::LIFE_TIME_VALUE)
    }

    /// Gives the switch the key of the fabric's owner, whatever it had: port 0's.
    pub fn protect(&mut self, key: u64) {
        if let Some(zero) = self.ports.first_mut() {
            zero.protect(key);
        }
    }

    /// Handles a datagram: one to the switch's own LID, or an SMP with the permissive LID. What leaves, answers
    /// and datagrams passed on; what is neither answered nor passed on was counted, unless nothing is answered
    /// to it: responses, TrapRepress, a wrong M_Key.
    pub fn management(
        &mut self,
        arrival: &Arrival,
        mad: &Mad,
        effects: &mut Vec<SwitchEffect>,
    ) -> Vec<Departure> {
        let Arrival { port, address, .. } = *arrival;
        let mut mad = *mad;
        let directed = mad.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED;
        let step = if !agent::is_well_addressed(&address, &mad) {
            Step::Nowhere
        } else if directed {
            directed::step(&mut mad, port)
        } else {
            Step::Agent
        };
        if step != Step::Agent {
            return self.pass_on(step, port, mad).into_iter().collect();
        }
        let answer = self.agents(port, address.slid, &mad, effects);
        let departure = answer.and_then(|mut mad| {
            if directed && mad.get(Mad::DR_DLID) == u32::from(Lid::PERMISSIVE.0) {
                let step = directed::step(&mut mad, port);
                return self.pass_on(step, port, mad);
            }
            self.route(port, address.answer(self.lid()), mad)
        });
        departure.into_iter().collect()
    }

    /// Port 0's LID.
    fn lid(&self) -> Lid {
        self.port(0).map_or(Lid(0), Port::lid)
    }

    /// Sends an SMP on along its directed route.
    fn pass_on(&mut self, step: Step, in_port: u8, mad: Mad) -> Option<Departure> {
        match step {
            Step::Port(port) if (1..=self.ports()).contains(&port) => {
                self.leave(port, Address::directed(), mad)
            }
            Step::Lid(to) => self.route(in_port, Address::smp(self.lid(), to), mad),
            // No manager is here, and the agent was asked already.
            Step::Port(_) | Step::Nowhere | Step::Manager | Step::Agent => {
                self.port_mut(in_port)?.counters.relay_error();
                None
            }
        }
    }

    /// Sends a datagram to its LID; one that came without a LID goes back where it came from.
    fn route(&mut self, in_port: u8, address: Address, mad: Mad) -> Option<Departure> {
        let port = if address.dlid == Lid::PERMISSIVE { Some(in_port) } else { self.forward(address.dlid) };
        match port.filter(|p| *p != 0) {
            Some(port) => self.leave(port, address, mad),
            None => {
                self.port_mut(in_port)?.counters.relay_error();
                None
            }
        }
    }

    fn leave(&mut self, port: u8, address: Address, mad: Mad) -> Option<Departure> {
        if !self.can_send(port, address.is_smp()) {
            self.port_mut(port)?.counters.xmit_discard();
            return None;
        }
        Some(Departure { port, address, mad })
    }

    /// When [`Switch::poll`] has something to do, in picoseconds; 0 = at once. Ask after each call that may
    /// change something: datagrams, links.
    pub fn poll_at(&self) -> Option<u64> {
        let lease = self.port(0).and_then(Port::lease_at);
        [self.notices.at(), lease].into_iter().flatten().min()
    }

    /// Time starts later by so many picoseconds: what waits for a moment waits for one that is earlier.
    pub fn rebase(&mut self, by: u64) {
        self.ports.iter_mut().for_each(|port| port.rebase(by));
        self.notices.rebase(by);
    }

    /// Lets time pass: what leaves at `now` (picoseconds), traps that is.
    pub fn poll(&mut self, now: u64) -> Vec<Departure> {
        let Some(zero) = self.ports.first_mut() else { return Vec::new() };
        zero.tend_lease(now);
        let trap = self.notices.next(zero, now);
        trap.and_then(|(address, mad)| self.route(0, address, mad)).into_iter().collect()
    }

    /// Whether a packet can leave by the port at all: SMPs when the link is up, others when it is active.
    pub fn can_send(&self, port: u8, smp: bool) -> bool {
        let needed = if smp { port_state::INIT } else { port_state::ACTIVE };
        self.port(port).is_some_and(|p| p.state >= needed)
    }
}
