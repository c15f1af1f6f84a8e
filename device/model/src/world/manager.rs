//! The built-in subnet manager, for topologies that have none in a guest.
//!
//! It knows the cables, and does the rest with SMPs: LIDs by the order of the nodes, each port of an adapter first; paths as
//! [`super::routing`] has them; every multicast group on one spanning tree; ports to ACTIVE. Without
//! switches each adapter is brought up for itself, at once; with them, each link that comes or goes causes a sweep.
//!
//! With a key of its own it owns the fabric: each port has that M_Key before its link carries a packet, so that nobody else's
//! SMP sets anything. What a host changes at its own port, as firmware lets it (MAD_IFC without a key), is set right. P_Keys are in
//! [`super::partitions`].
//!
//! Source: IBTA vol 1 14.2.4 (M_Key), 14.2.5 (attributes), 14.4.3 (initialization).

use hca_firmware::{Address, Arrival, BUILT_IN_MANAGER, PortKind};
use hca_spec::ids::Lid;
use hca_spec::mad::{
    CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, PortInfo, SwitchInfo, attr, port_state,
};

use super::routing::{Distances, Map, NO_PORT, Routing, Way};
use super::{Class, Event, World};
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef, SwitchId};
use crate::ground::time::{Ps, Source};

/// LID of the built-in subnet manager. Nobody is there.
const SUBNET_MANAGER_LID: u32 = BUILT_IN_MANAGER.0 as u32;
/// From a change to the sweep that it causes: what changes together is looked at once.
pub(super) const SWEEP_DELAY: Ps = Ps::from_us(10);
/// Entries of a block of the linear table.
const LINEAR_BLOCK: usize = 64;
/// Ports of a block of the multicast table.
const MULTICAST_PORTS: u32 = 16;
/// Blocks of 32 multicast groups that are forwarded.
const MULTICAST_BLOCKS: u32 = 4;
/// Lifetime in switches and at the head of queues: 4.096 us * 2^18, as other subnet managers set it.
const LIFETIME: u32 = 18;
/// What one event of a sweep does, in microseconds, roughly: that of some hundred switches takes many. Any guest may cause one, by its
/// link.
const EFFORT: u32 = 1000;
/// A sweep under way.
pub(super) struct Sweep {
    map: Map,
    /// Whom tables lead to, by LID: adapters first, so many.
    targets: Vec<Option<LinkEnd>>,
    hcas: usize,
    /// To each target.
    distances: Vec<Distances>,
    tree: Vec<u128>,
    at: Stage,
}

/// What is to be done next, and for whom.
#[derive(Clone, Copy)]
enum Stage {
    /// How far a target is from each switch.
    Distances(usize),
    /// The tables of a switch.
    Tables(usize),
    /// The ports of a switch: all to ARMED, then all to ACTIVE.
    Ports(usize),
    /// An adapter's ports.
    Adapters(usize),
}

pub(super) fn smp(method: u32, attribute: u32, modifier: u32) -> Mad {
    let mut smp = Mad::new();
    smp.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
    smp.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, modifier);
    smp
}

impl World {
    /// Brings a port up that waits for its subnet manager, and sets right what is not as it is to be.
    pub(super) fn manage(&mut self, port: PortRef) {
        if !self.subnet_manager {
            return;
        }
        let NodeId::Hca(id) = port.node else { return };
        if self.manage_planned(id, port.port) {
            // That is all.
        } else if self.switches.is_empty() {
            if self.needs_manager(id, port.port) {
                self.manage_hca(id, port.port);
            }
        } else if self.is_changed(id, port.port) {
            self.sweep_later();
        }
        self.protect(port);
    }

    /// Gives a port the manager's key.
    pub(super) fn protect(&mut self, port: PortRef) {
        let Some(key) = self.management_key.filter(|_| self.subnet_manager) else { return };
        match port.node {
            NodeId::Hca(id) => {
                if let Some(hca) = self.hcas.get_mut(id.0) {
                    hca.chip.managed.protect(port.port, key);
                }
            }
            NodeId::Switch(id) => {
                if let Some(switch) = self.switches.get_mut(id.0) {
                    switch.fw.protect(key);
                }
            }
        }
    }

    /// Gives all ports the manager's key.
    pub(super) fn protect_all(&mut self) {
        let switches = (0..self.switches.len()).map(|i| PortRef::of_switch(SwitchId(i), 0));
        let ports: Vec<PortRef> = self.hca_ports().chain(switches).collect();
        ports.into_iter().for_each(|port| self.protect(port));
    }

    /// Whether an adapter's port waits for the manager, or is not as it has set it.
    pub(super) fn needs_manager(&self, id: HcaId, port: u8) -> bool {
        let state = self.port(PortRef::of_hca(id, port)).map_or(port_state::DOWN, |p| p.state);
        state == port_state::INIT || self.is_changed(id, port)
    }

    /// Whether a port that the manager had brought up is not as it has set it any more.
    fn is_changed(&self, id: HcaId, port: u8) -> bool {
        self.management_key.is_some()
            && self.port(PortRef::of_hca(id, port)).filter(|p| p.kind() == PortKind::InfiniBand).is_some_and(
                |p| {
                    let info = p.info();
                    let set = info.get(PortInfo::MASTER_SM_LID) == SUBNET_MANAGER_LID;
                    let set = set && p.lid() == self.lid_of(id, port);
                    p.state >= port_state::ARMED
                        && !(set && self.has_its_partitions(PortRef::of_hca(id, port)))
                },
            )
    }

    /// Says where the ports of all adapters of the subnet are, in the order of their LIDs from 1 on, if some of them are in other
    /// worlds: at a port of this one, behind a tunnel of it, or (`None`) somewhere else. The managers of all worlds then do together
    /// what one would, if they have the same key, and all switches are in one of the worlds.
    pub fn set_subnet(&mut self, adapters: Vec<Option<LinkEnd>>) {
        self.rouse();
        self.subnet = Some(adapters);
    }

    /// Where the ports of all adapters are, in the order of their LIDs.
    fn adapters(&self) -> Vec<Option<LinkEnd>> {
        match &self.subnet {
            Some(adapters) => adapters.clone(),
            None => self.hca_ports().map(|port| Some(port.into())).collect(),
        }
    }

    /// The LID of an adapter's port.
    fn lid_of(&self, id: HcaId, port: u8) -> Lid {
        if let Some(lid) = self.lids_on_script.get(&(id, port)) {
            return *lid;
        }
        if let Some(planned) = &self.planned {
            return planned.lid_of(PortRef::of_hca(id, port));
        }
        if let Some(adapters) = &self.subnet {
            let own = Some(LinkEnd::Port(PortRef::of_hca(id, port)));
            return Lid(adapters.iter().position(|at| *at == own).map_or(0, |before| before as u16 + 1));
        }
        let before = self.hcas.iter().take(id.0).map(|hca| hca.chip.managed.numbers().len()).sum::<usize>();
        Lid((before + usize::from(port)) as u16)
    }

    /// How paths are chosen from the next sweep on.
    pub fn set_routing(&mut self, routing: Routing) {
        self.rouse();
        self.routing = routing;
    }

    /// A link came or went at a port: the forwarding tables have to follow.
    pub(super) fn link_changed(&mut self, port: PortRef) {
        if self.subnet_manager && !self.planned_change(port) {
            self.sweep_later();
        }
    }

    fn sweep_later(&mut self) {
        if self.subnet_manager && !self.switches.is_empty() && !self.sweep_due {
            self.sweep_due = true;
            let source = Source::new(Class::Manager as u8, 0, 0);
            self.heap.push(self.now + SWEEP_DELAY, source, Event::Sweep);
        }
    }

    /// Brings the fabric in order: LIDs, tables, and at last the ports. A large one in several events of the same time, each of
    /// which does [`EFFORT`].
    pub(super) fn sweep(&mut self) {
        let mut sweep = match self.sweep.take() {
            Some(sweep) => sweep,
            None => {
                self.sweep_due = false;
                self.protect_all();
                Box::new(self.begin_sweep())
            }
        };
        let mut effort = 0u32;
        while effort < EFFORT {
            match self.sweep_on(&mut sweep) {
                Some(more) => effort = effort.saturating_add(more),
                None => return,
            }
        }
        self.sweep = Some(sweep);
        let source = Source::new(Class::Manager as u8, 0, 0);
        self.heap.push(self.now, source, Event::Sweep);
    }

    fn begin_sweep(&self) -> Sweep {
        let map = self.map();
        let (mut targets, switches) = (self.adapters(), self.switches.len());
        let hcas = targets.len();
        targets.extend((0..switches).map(|i| Some(PortRef::of_switch(SwitchId(i), 0).into())));
        let tree = map.tree();
        Sweep { map, targets, hcas, distances: Vec::new(), tree, at: Stage::Distances(0) }
    }

    /// The next step of a sweep, and what it cost, some microseconds. `None`: it has ended.
    fn sweep_on(&mut self, sweep: &mut Sweep) -> Option<u32> {
        let switches = self.switches.len();
        let (next, cost) = match sweep.at {
            Stage::Distances(n) => match sweep.targets.get(n) {
                Some(target) => {
                    let distances = sweep.map.distances(*target);
                    sweep.distances.push(distances);
                    (Stage::Distances(n + 1), 1 + switches as u32 / 8)
                }
                None => (Stage::Tables(0), 0),
            },
            Stage::Tables(switch) if switch < switches => {
                let mads = match sweep.map.ways(switch).is_empty() {
                    true => 0,
                    false => self.program_switch(sweep, switch),
                };
                (Stage::Tables(switch + 1), 1 + 2 * mads)
            }
            Stage::Tables(_) => (Stage::Ports(0), 0),
            Stage::Ports(n) if n < 2 * switches => {
                let state = if n < switches { port_state::ARMED } else { port_state::ACTIVE };
                let switch = n % switches.max(1);
                let ways = sweep.map.ways(switch);
                let entry = ways.first().map_or(0, |way| way.port);
                ways.iter().for_each(|way| self.advance_port(entry, switch, way.port, state));
                (Stage::Ports(n + 1), 1 + 4 * ways.len() as u32)
            }
            Stage::Ports(_) => (Stage::Adapters(0), 0),
            Stage::Adapters(n) => {
                let hca = self.hcas.get(n)?;
                for port in hca.chip.managed.numbers().collect::<Vec<_>>() {
                    if self.needs_manager(HcaId(n), port) {
                        self.manage_hca(HcaId(n), port);
                    }
                }
                (Stage::Adapters(n + 1), 10)
            }
        };
        sweep.at = next;
        Some(cost)
    }

    /// The tables of a switch. Returns how many SMPs it took.
    fn program_switch(&mut self, sweep: &Sweep, switch: usize) -> u32 {
        let Sweep { map, targets, hcas, distances, tree, .. } = sweep;
        let Some(entry) = map.ways(switch).first().map(|way| way.port) else { return 0 };
        let towards = |(i, (target, distances)): (usize, (&Option<LinkEnd>, &Distances))| {
            map.port_towards(switch, *target, distances, i + 1)
        };
        let ports = targets.iter().zip(distances).enumerate().map(towards);
        let linear: Vec<u8> = std::iter::once(NO_PORT).chain(ports).collect();
        let mask = tree.get(switch).copied().unwrap_or(0);
        self.program_tables(entry, switch, hcas + switch + 1, (&linear, mask))
    }

    /// The LID and the tables of a switch: the port by LID, and the ports of all multicast groups. SMPs come by port `entry`,
    /// whose link is up. Returns how many it took.
    pub(super) fn program_tables(
        &mut self,
        entry: u8,
        switch: usize,
        lid: usize,
        (linear, multicast): (&[u8], u128),
    ) -> u32 {
        let mut mads = 4;
        self.manage_switch(entry, switch, lid, linear.len().saturating_sub(1));
        for (block, part) in (0..).zip(linear.chunks(LINEAR_BLOCK)) {
            let mut ports = [NO_PORT; LINEAR_BLOCK];
            ports.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            let mut mad = smp(METHOD_SET, attr::LINEAR_FORWARDING, block);
            mad.smp_data_mut().bytes_mut().copy_from_slice(&ports);
            self.ask_switch(entry, switch, &mad);
            mads += 1;
        }
        let ports = u32::from(self.switches.get(switch).map_or(0, |s| s.fw.ports()));
        for position in 0..=ports / MULTICAST_PORTS {
            let slice = (multicast >> (position * MULTICAST_PORTS)) as u16;
            for block in 0..MULTICAST_BLOCKS {
                const POSITION_SHIFT: u32 = 28;
                let modifier = position << POSITION_SHIFT | block;
                let mut mad = smp(METHOD_SET, attr::MULTICAST_FORWARDING, modifier);
                let entries = mad.smp_data_mut().bytes_mut().as_chunks_mut::<2>().0;
                entries.iter_mut().for_each(|entry| *entry = slice.to_be_bytes());
                self.ask_switch(entry, switch, &mad);
                mads += 1;
            }
        }
        mads
    }

    fn map(&self) -> Map {
        let ways = |switch: usize| {
            let ports = 1..=self.switches.get(switch).map_or(0, |s| s.fw.ports());
            let way = |port| {
                let (link, end) = self.plug(PortRef::of_switch(SwitchId(switch), port))?;
                let link = self.links.get(link)?;
                let far = link.other(end).filter(|_| link.is_up(end))?;
                let to = link.ends.get(far)?.at;
                let known = match to {
                    LinkEnd::Port(_) => link.is_up(far),
                    LinkEnd::Tunnel(_) => self.subnet.as_ref().is_some_and(|all| all.contains(&Some(to))),
                };
                known.then_some(Way { port, to })
            };
            ports.filter_map(way).collect()
        };
        Map::new((0..self.switches.len()).map(ways).collect(), self.routing)
    }

    /// An SMP to a switch, and its answer.
    fn ask_switch(&mut self, entry: u8, switch: usize, mad: &Mad) -> Option<Mad> {
        // As if it came by a port whose link is up, from one who has no LID: there the answer leaves.
        let key = self.management_key.unwrap_or_default();
        let node = self.switches.get_mut(switch)?;
        let mut mad = *mad;
        mad.set(Mad::M_KEY, key);
        let arrival = Arrival { port: entry, address: Address::directed(), now: self.now.0 };
        let mut effects = Vec::new();
        let answer = node.fw.management(&arrival, &mad, &mut effects).pop();
        node.follow(&mad);
        match answer.map(|answer| answer.mad) {
            Some(answer) if answer.get(Mad::STATUS) == 0 => Some(answer),
            refused => {
                let status = refused.map_or(u32::MAX, |r| r.get(Mad::STATUS));
                let attribute = mad.get(Mad::ATTRIBUTE_ID);
                tracing::error!(
                    "the built-in subnet manager could not set attribute {attribute:#x} of switch {}: {status:#x}",
                    node.name
                );
                None
            }
        }
    }

    /// The switch's own LID, and how far its table goes.
    fn manage_switch(&mut self, entry: u8, switch: usize, lid: usize, top: usize) {
        let Some(mut info) = self.ask_switch(entry, switch, &smp(METHOD_GET, attr::PORT_INFO, 0)) else {
            return;
        };
        info.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
        info.port_info_mut()
            .set(PortInfo::LID, lid as u32)
            .set(PortInfo::PORT_STATE, 0)
            .set(PortInfo::PORT_PHYSICAL_STATE, 0)
            .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        self.ask_switch(entry, switch, &info);
        let Some(mut info) = self.ask_switch(entry, switch, &smp(METHOD_GET, attr::SWITCH_INFO, 0)) else {
            return;
        };
        info.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
        info.switch_info_mut()
            .set(SwitchInfo::LINEAR_FDB_TOP, top as u32)
            .set(SwitchInfo::LIFE_TIME_VALUE, LIFETIME)
            .set(SwitchInfo::PORT_STATE_CHANGE, 1);
        self.ask_switch(entry, switch, &info);
    }

    /// Takes an external port of a switch one state further.
    pub(super) fn advance_port(&mut self, entry: u8, switch: usize, port: u8, state: u32) {
        let before = self.port(PortRef::of_switch(SwitchId(switch), port)).map(|p| p.state);
        if before != Some(state - 1) {
            return;
        }
        let keys = self.partition_table(PortRef::of_switch(SwitchId(switch), port), u32::from(port) << 16);
        if let Some(table) = &keys {
            self.ask_switch(entry, switch, table);
        }
        let get = smp(METHOD_GET, attr::PORT_INFO, port.into());
        let Some(mut info) = self.ask_switch(entry, switch, &get) else { return };
        info.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
        if keys.is_some() {
            info.port_info_mut()
                .set(PortInfo::PARTITION_ENFORCEMENT_INBOUND, 1)
                .set(PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, 1);
        }
        info.port_info_mut()
            .set(PortInfo::HOQ_LIFE, LIFETIME)
            .set(PortInfo::PORT_STATE, state)
            .set(PortInfo::PORT_PHYSICAL_STATE, 0)
            .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        self.ask_switch(entry, switch, &info);
    }

    pub(super) fn manage_hca(&mut self, id: HcaId, port: u8) {
        let (now, lid) = (self.now, self.lid_of(id, port));
        let key = self.management_key.unwrap_or_default();
        let at = PortRef::of_hca(id, port);
        self.protect(at);
        let table = self.partition_table(at, 0).filter(|_| !self.has_its_partitions(at));
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let mut effects = Vec::new();
        if let Some(mut table) = table {
            table.set(Mad::M_KEY, key);
            hca.chip.managed.mad(port, &table, &mut effects);
        }
        // One that is up stays so.
        let states: &[u32] = match hca.chip.managed.port(port).map(|p| p.state) {
            Some(port_state::ACTIVE) => &[0],
            Some(port_state::ARMED) => &[port_state::ACTIVE],
            _ => &[port_state::ARMED, port_state::ACTIVE],
        };
        for state in states {
            let mut get = smp(METHOD_GET, attr::PORT_INFO, port.into());
            get.set(Mad::M_KEY, key);
            let Some(mut smp) = hca.chip.managed.mad(port, &get, &mut effects) else { break };
            smp.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
            smp.port_info_mut()
                .set(PortInfo::LID, lid.0.into())
                .set(PortInfo::MASTER_SM_LID, SUBNET_MANAGER_LID)
                .set(PortInfo::PORT_STATE, *state)
                .set(PortInfo::PORT_PHYSICAL_STATE, 0)
                .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
            let answer = hca.chip.managed.mad(port, &smp, &mut effects);
            if answer.is_none_or(|a| a.get(Mad::STATUS) != 0) {
                tracing::error!(
                    "the built-in subnet manager could not configure port {port} of adapter {}",
                    id.0
                );
                break;
            }
        }
        self.apply(id, port, now, effects);
    }
}
