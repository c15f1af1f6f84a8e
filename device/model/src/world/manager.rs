//! The built-in subnet manager, for topologies that have none in a guest.
//!
//! It knows the cables, and does the rest with SMPs: LIDs by the order of the nodes, each port of an adapter first; shortest paths,
//! the choices among equal ones spread by LID; every multicast group on one spanning tree; ports to ACTIVE. Without
//! switches each adapter is brought up for itself, at once; with them, each link that comes or goes causes a sweep.
//!
//! With a key of its own it owns the fabric: each port has that M_Key before its link carries a packet, so that nobody else's
//! SMP sets anything. What a host changes at its own port, as firmware lets it (MAD_IFC without a key), is set right.
//!
//! Source: IBTA vol 1 14.2.4 (M_Key), 14.2.5 (attributes), 14.4.3 (initialization).

use std::collections::VecDeque;

use hca_firmware::{Address, Arrival, BUILT_IN_MANAGER, PortKind};
use hca_spec::ids::Lid;
use hca_spec::mad::{
    CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, PortInfo, SwitchInfo, attr, port_state,
};

use super::{Class, Event, World};
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef, SwitchId};
use crate::ground::time::{Ps, Source};

/// LID of the built-in subnet manager. Nobody is there.
const SUBNET_MANAGER_LID: u32 = BUILT_IN_MANAGER.0 as u32;
/// From a change to the sweep that it causes: what changes together is looked at once.
const SWEEP_DELAY: Ps = Ps::from_us(10);
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
/// "No port" of a linear entry.
const NO_PORT: u8 = 0xff;

/// A link of a switch that is up.
#[derive(Clone, Copy)]
struct Way {
    port: u8,
    to: LinkEnd,
}

impl Way {
    /// The switch that it leads to.
    fn switch(&self) -> Option<(usize, u8)> {
        match self.to {
            LinkEnd::Port(PortRef { node: NodeId::Switch(SwitchId(next)), port }) => Some((next, port)),
            _ => None,
        }
    }
}

/// A sweep under way.
pub(super) struct Sweep {
    map: Map,
    /// Whom tables lead to, by LID: adapters first, so many.
    targets: Vec<Option<LinkEnd>>,
    hcas: usize,
    /// To each target.
    distances: Vec<Vec<Option<u32>>>,
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

/// By switch: its links that are up, by port.
struct Map(Vec<Vec<Way>>);

impl Map {
    fn ways(&self, switch: usize) -> &[Way] {
        self.0.get(switch).map_or(&[], Vec::as_slice)
    }

    /// By switch: how many links are between it and the switch at `target`, a port of an adapter, or that is `target`,
    /// port 0 of a switch. `None` leads nowhere.
    fn distances(&self, target: Option<LinkEnd>) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.0.len()];
        let mut queue = VecDeque::new();
        for (i, distance) in distances.iter_mut().enumerate() {
            let adapter = self.ways(i).iter().any(|w| Some(w.to) == target);
            if adapter || target == Some(PortRef::of_switch(SwitchId(i), 0).into()) {
                *distance = Some(0);
                queue.push_back((i, 0));
            }
        }
        while let Some((i, distance)) = queue.pop_front() {
            for way in self.ways(i) {
                if let Some((next, _)) = way.switch()
                    && let Some(slot @ None) = distances.get_mut(next)
                {
                    *slot = Some(distance + 1);
                    queue.push_back((next, distance + 1));
                }
            }
        }
        distances
    }

    /// The port of switch `from` towards `target`; `choice` decides among equal ones.
    fn port_towards(
        &self,
        from: usize,
        target: Option<LinkEnd>,
        distances: &[Option<u32>],
        choice: usize,
    ) -> u8 {
        let distance = |i: usize| distances.get(i).copied().flatten();
        let Some(own) = distance(from) else { return NO_PORT };
        let nearer = |way: &&Way| match way.switch() {
            _ if own == 0 => Some(way.to) == target,
            None => false,
            Some((next, _)) => distance(next).is_some_and(|next| next + 1 == own),
        };
        let ports: Vec<u8> = self.ways(from).iter().filter(nearer).map(|way| way.port).collect();
        // Port 0 is the switch itself.
        let own_lid = target == Some(PortRef::of_switch(SwitchId(from), 0).into());
        if own_lid {
            0
        } else {
            choice.checked_rem(ports.len()).and_then(|c| ports.get(c)).map_or(NO_PORT, |p| *p)
        }
    }

    /// By switch: the ports of a spanning tree, and those to adapters.
    fn tree(&self) -> Vec<u128> {
        let bit = |port: u8| 1u128.checked_shl(port.into()).unwrap_or(0);
        let mut masks: Vec<u128> = vec![0; self.0.len()];
        let mut seen = vec![false; self.0.len()];
        let mut queue = VecDeque::new();
        for root in 0..self.0.len() {
            if seen.get_mut(root).is_some_and(|seen| !std::mem::replace(seen, true)) {
                queue.push_back(root);
            }
            while let Some(i) = queue.pop_front() {
                for way in self.ways(i) {
                    if let Some((next, port)) = way.switch() {
                        if seen.get_mut(next).is_none_or(|seen| std::mem::replace(seen, true)) {
                            continue;
                        }
                        queue.push_back(next);
                        if let Some(mask) = masks.get_mut(next) {
                            *mask |= bit(port);
                        }
                    }
                    if let Some(mask) = masks.get_mut(i) {
                        *mask |= bit(way.port);
                    }
                }
            }
        }
        masks
    }
}

fn smp(method: u32, attribute: u32, modifier: u32) -> Mad {
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
        if self.switches.is_empty() {
            if self.needs_manager(id, port.port) {
                self.manage_hca(id, port.port);
            }
        } else if self.is_changed(id, port.port) {
            self.sweep_later();
        }
        self.protect(port);
    }

    /// Gives a port the manager's key.
    fn protect(&mut self, port: PortRef) {
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
    fn needs_manager(&self, id: HcaId, port: u8) -> bool {
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
                    p.state >= port_state::ARMED && !(set && p.lid() == self.lid_of(id, port))
                },
            )
    }

    /// Says where the ports of all adapters of the subnet are, in the order of their LIDs from 1 on, if some of them are in other
    /// worlds: at a port of this one, behind a tunnel of it, or (`None`) somewhere else. The managers of all worlds then do together
    /// what one would, if they have the same key, and all switches are in one of the worlds.
    pub fn set_subnet(&mut self, adapters: Vec<Option<LinkEnd>>) {
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
        if let Some(adapters) = &self.subnet {
            let own = Some(LinkEnd::Port(PortRef::of_hca(id, port)));
            return Lid(adapters.iter().position(|at| *at == own).map_or(0, |before| before as u16 + 1));
        }
        let before = self.hcas.iter().take(id.0).map(|hca| hca.chip.managed.numbers().len()).sum::<usize>();
        Lid((before + usize::from(port)) as u16)
    }

    /// A link came or went: the forwarding tables have to follow.
    pub(super) fn sweep_later(&mut self) {
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
                let ways = sweep.map.ways(switch).to_vec();
                ways.iter().for_each(|way| self.advance_port(&sweep.map, switch, way.port, state));
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
        let top = targets.len();
        let mut mads = 4;
        self.manage_switch(map, switch, hcas + switch + 1, top);
        let mut ports = vec![NO_PORT; (top + 1).next_multiple_of(LINEAR_BLOCK)];
        for (i, (target, distances)) in targets.iter().zip(distances).enumerate() {
            let lid = i + 1;
            if let Some(port) = ports.get_mut(lid) {
                *port = map.port_towards(switch, *target, distances, lid);
            }
        }
        for (block, ports) in (0..).zip(ports.chunks_exact(LINEAR_BLOCK)) {
            let mut mad = smp(METHOD_SET, attr::LINEAR_FORWARDING, block);
            mad.smp_data_mut().bytes_mut().copy_from_slice(ports);
            self.ask_switch(map, switch, &mad);
            mads += 1;
        }
        let mask = tree.get(switch).copied().unwrap_or(0);
        let ports = u32::from(self.switches.get(switch).map_or(0, |s| s.fw.ports()));
        for position in 0..=ports / MULTICAST_PORTS {
            let slice = (mask >> (position * MULTICAST_PORTS)) as u16;
            for block in 0..MULTICAST_BLOCKS {
                const POSITION_SHIFT: u32 = 28;
                let modifier = position << POSITION_SHIFT | block;
                let mut mad = smp(METHOD_SET, attr::MULTICAST_FORWARDING, modifier);
                let entries = mad.smp_data_mut().bytes_mut().as_chunks_mut::<2>().0;
                entries.iter_mut().for_each(|entry| *entry = slice.to_be_bytes());
                self.ask_switch(map, switch, &mad);
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
        Map((0..self.switches.len()).map(ways).collect())
    }

    /// An SMP to a switch, and its answer.
    fn ask_switch(&mut self, map: &Map, switch: usize, mad: &Mad) -> Option<Mad> {
        // As if it came by a port whose link is up, from one who has no LID: there the answer leaves.
        let port = map.ways(switch).first()?.port;
        let key = self.management_key.unwrap_or_default();
        let node = self.switches.get_mut(switch)?;
        let mut mad = *mad;
        mad.set(Mad::M_KEY, key);
        let arrival = Arrival { port, address: Address::directed(), now: self.now.0 };
        let mut effects = Vec::new();
        let answer = node.fw.management(&arrival, &mad, &mut effects).pop();
        node.configure();
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
    fn manage_switch(&mut self, map: &Map, switch: usize, lid: usize, top: usize) {
        let Some(mut info) = self.ask_switch(map, switch, &smp(METHOD_GET, attr::PORT_INFO, 0)) else {
            return;
        };
        info.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
        info.port_info_mut()
            .set(PortInfo::LID, lid as u32)
            .set(PortInfo::PORT_STATE, 0)
            .set(PortInfo::PORT_PHYSICAL_STATE, 0)
            .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        self.ask_switch(map, switch, &info);
        let Some(mut info) = self.ask_switch(map, switch, &smp(METHOD_GET, attr::SWITCH_INFO, 0)) else {
            return;
        };
        info.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
        info.switch_info_mut()
            .set(SwitchInfo::LINEAR_FDB_TOP, top as u32)
            .set(SwitchInfo::LIFE_TIME_VALUE, LIFETIME)
            .set(SwitchInfo::PORT_STATE_CHANGE, 1);
        self.ask_switch(map, switch, &info);
    }

    /// Takes an external port of a switch one state further.
    fn advance_port(&mut self, map: &Map, switch: usize, port: u8, state: u32) {
        let before = self.port(PortRef::of_switch(SwitchId(switch), port)).map(|p| p.state);
        if before != Some(state - 1) {
            return;
        }
        let get = smp(METHOD_GET, attr::PORT_INFO, port.into());
        let Some(mut info) = self.ask_switch(map, switch, &get) else { return };
        info.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
        info.port_info_mut()
            .set(PortInfo::HOQ_LIFE, LIFETIME)
            .set(PortInfo::PORT_STATE, state)
            .set(PortInfo::PORT_PHYSICAL_STATE, 0)
            .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        self.ask_switch(map, switch, &info);
    }

    fn manage_hca(&mut self, id: HcaId, port: u8) {
        let (now, lid) = (self.now, self.lid_of(id, port));
        let key = self.management_key.unwrap_or_default();
        self.protect(PortRef::of_hca(id, port));
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let mut effects = Vec::new();
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
