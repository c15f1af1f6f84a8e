//! What finds ways by itself, where the whole fabric is known beforehand and this world may be a part of it: the built-in subnet
//! manager, and Ethernet switches.
//!
//! Tables follow from the plan alone. Each node is brought up by itself: a switch some time after one of its own links came
//! up, an adapter's port as soon as it waits for its manager. So what happens at a node depends on it and its links only, and
//! the managers of all worlds do together what one would, wherever the fabric is cut. A link that is down is not gone round, but by
//! an Ethernet switch that it is at and that has another shortest way to a station that is known: the tree stays as it is.

use std::collections::BTreeMap;

use hca_firmware::PortKind;
use hca_spec::ids::Lid;
use hca_spec::mad::port_state;

use super::manager::SWEEP_DELAY;
use super::routing::{Distances, Map, Routing, Way};
use super::ways::Cable;
use super::{Class, Event, World};
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef, SwitchId};
use crate::ground::time::Source;

/// A whole fabric. Its nodes are numbered by their place here.
#[derive(Debug, Clone, Default)]
pub struct FabricPlan {
    /// Adapters. LIDs are in the order of their ports, from 1 on.
    pub hcas: Vec<PlannedHca>,
    /// Switches. LIDs follow those of adapters.
    pub switches: Vec<PlannedSwitch>,
    /// Links, in the numbers of the plan.
    pub links: Vec<[PortRef; 2]>,
    /// How paths of an InfiniBand subnet are chosen.
    pub routing: Routing,
}

/// An adapter of a plan.
#[derive(Debug, Clone)]
pub struct PlannedHca {
    /// Which one of this world it is, if it is here.
    pub here: Option<HcaId>,
    /// Of which kind its ports are.
    pub kind: PortKind,
    /// The Ethernet addresses of its ports, whatever their kind, from port 1 on.
    pub ports: Vec<[u8; 6]>,
}

/// A switch of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlannedSwitch {
    /// Which one of this world it is, if it is here.
    pub here: Option<SwitchId>,
    /// Of which kind its ports are.
    pub kind: PortKind,
}

impl FabricPlan {
    /// Cables between Ethernet switches.
    fn bridged(&self) -> Vec<Cable> {
        let end = |port: &PortRef| Some((self.bridge(port.node)?, port.port));
        let ends = |[a, b]: &[PortRef; 2]| Some(Cable { ends: [end(a)?, end(b)?] });
        self.links.iter().filter_map(ends).collect()
    }

    /// Ports of adapters at Ethernet switches: their address, and where they are.
    fn stations(&self) -> impl Iterator<Item = ([u8; 6], (usize, u8))> {
        let both = self.links.iter().flat_map(|[a, b]| [(a, b), (b, a)]);
        both.filter_map(|(station, at)| {
            let NodeId::Hca(HcaId(hca)) = station.node else { return None };
            let place = usize::from(station.port).checked_sub(1)?;
            Some((*self.hcas.get(hca)?.ports.get(place)?, (self.bridge(at.node)?, at.port)))
        })
    }

    /// The number of an Ethernet switch.
    fn bridge(&self, node: NodeId) -> Option<usize> {
        let NodeId::Switch(SwitchId(number)) = node else { return None };
        (self.switches.get(number)?.kind == PortKind::Ethernet).then_some(number)
    }
}

/// What a plan makes of the switches and adapters here.
pub(super) struct Planned {
    lids: BTreeMap<PortRef, Lid>,
    switches: BTreeMap<SwitchId, Program>,
}

/// What a switch is told.
struct Program {
    lid: usize,
    linear: Vec<u8>,
    multicast: u128,
    /// It is due to be looked at.
    due: bool,
    done: bool,
}

impl Planned {
    fn new(plan: &FabricPlan) -> Self {
        let mut ways: Vec<Vec<Way>> = vec![Vec::new(); plan.switches.len()];
        for [a, b] in &plan.links {
            for (from, to) in [(a, b), (b, a)] {
                if let PortRef { node: NodeId::Switch(SwitchId(switch)), port } = *from
                    && let Some(ways) = ways.get_mut(switch)
                {
                    ways.push(Way { port, to: LinkEnd::Port(*to) });
                }
            }
        }
        ways.iter_mut().for_each(|ways| ways.sort_by_key(|way| way.port));
        let map = Map::new(ways, plan.routing);
        let (mut targets, mut lids) = (Vec::new(), BTreeMap::new());
        for (i, hca) in plan.hcas.iter().enumerate() {
            // Ethernet ports need no manager.
            let here = hca.here.filter(|_| hca.kind == PortKind::InfiniBand);
            for (port, _) in (1..).zip(&hca.ports) {
                targets.push(PortRef::of_hca(HcaId(i), port));
                if let Some(here) = here {
                    lids.insert(PortRef::of_hca(here, port), Lid(targets.len() as u16));
                }
            }
        }
        let hcas = targets.len();
        targets.extend((0..plan.switches.len()).map(|i| PortRef::of_switch(SwitchId(i), 0)));
        // Adapters of one switch are equally far from everywhere.
        let homes: BTreeMap<PortRef, usize> = (0..map.switches())
            .flat_map(|i| map.ways(i).iter().map(move |way| (way.to, i)))
            .filter_map(|(to, i)| match to {
                LinkEnd::Port(port @ PortRef { node: NodeId::Hca(_), .. }) => Some((port, i)),
                _ => None,
            })
            .collect();
        let known: Vec<Distances> = (0..map.switches())
            .map(|i| map.distances(Some(PortRef::of_switch(SwitchId(i), 0).into())))
            .collect();
        let tree = map.tree();
        let managed = plan.switches.iter().enumerate().filter(|(_, of)| of.kind == PortKind::InfiniBand);
        let here = managed.filter_map(|(i, of)| Some((i, of.here?)));
        let program = |(switch, here)| {
            let mut linear = vec![super::routing::NO_PORT];
            // All adapters of another switch are reached by the same ports.
            let mut nearer: Vec<Option<Vec<u8>>> = vec![None; map.switches()];
            for (i, target) in targets.iter().enumerate() {
                let home = match target.node {
                    NodeId::Hca(_) => homes.get(target).copied(),
                    NodeId::Switch(SwitchId(own)) => Some(own),
                };
                let known = home.and_then(|home| Some((home, known.get(home)?, nearer.get_mut(home)?)));
                let port = known.map(|(home, distances, nearer)| match home == switch {
                    true => map.port_towards(switch, Some(LinkEnd::Port(*target)), distances, i + 1),
                    false => {
                        let ports = nearer.get_or_insert_with(|| map.nearer(switch, distances));
                        map.choose(switch, ports, i + 1)
                    }
                });
                linear.push(port.unwrap_or(super::routing::NO_PORT));
            }
            let multicast = tree.get(switch).copied().unwrap_or(0);
            (here, Program { lid: hcas + switch + 1, linear, multicast, due: false, done: false })
        };
        Self { lids, switches: here.map(program).collect() }
    }

    /// The LID of an adapter's port.
    pub(super) fn lid_of(&self, port: PortRef) -> Lid {
        self.lids.get(&port).copied().unwrap_or(Lid(0))
    }
}

impl World {
    /// Lets the built-in subnet manager and Ethernet switches know the whole fabric, of which this world may be a part: before time
    /// goes on.
    pub fn plan_fabric(&mut self, plan: &FabricPlan) {
        self.rouse();
        self.planned = Some(Box::new(Planned::new(plan)));
        if plan.switches.iter().any(|switch| switch.kind == PortKind::Ethernet) {
            let here: Vec<_> = plan.switches.iter().map(|switch| switch.here).collect();
            let stations: Vec<_> = plan.stations().collect();
            self.plan_bridges(&here, &plan.bridged(), &stations);
        }
    }

    /// Brings a port of an adapter up as the plan says. Returns false if there is no plan.
    pub(super) fn manage_planned(&mut self, id: HcaId, port: u8) -> bool {
        if self.planned.is_some() && self.needs_manager(id, port) {
            self.manage_hca(id, port);
        }
        self.planned.is_some()
    }

    /// A link came or went at a port. Returns false if there is no plan.
    pub(super) fn planned_change(&mut self, port: PortRef) -> bool {
        let Some(planned) = &mut self.planned else { return false };
        if let NodeId::Switch(switch) = port.node
            && let Some(program) = planned.switches.get_mut(&switch)
            && !std::mem::replace(&mut program.due, true)
        {
            let source = Source::new(Class::Manager as u8, switch.0, 0);
            self.heap.push(self.now + SWEEP_DELAY, source, Event::Program(switch));
        }
        true
    }

    /// Looks at a switch: its tables, once, and its ports that wait.
    pub(super) fn program(&mut self, switch: SwitchId) {
        let Some(mut planned) = self.planned.take() else { return };
        if let Some(program) = planned.switches.get_mut(&switch) {
            program.due = false;
            self.protect(PortRef::of_switch(switch, 0));
            let count = self.switches.get(switch.0).map_or(0, |s| s.fw.ports());
            let up: Vec<u8> = (1..=count).filter(|port| self.port_is_up(switch, *port)).collect();
            if let Some(entry) = up.first().copied() {
                if !std::mem::replace(&mut program.done, true) {
                    let tables = (program.linear.as_slice(), program.multicast);
                    self.program_tables(entry, switch.0, program.lid, tables);
                }
                for state in [port_state::ARMED, port_state::ACTIVE] {
                    up.iter().for_each(|port| self.advance_port(entry, switch.0, *port, state));
                }
            }
        }
        self.planned = Some(planned);
    }

    fn port_is_up(&self, switch: SwitchId, port: u8) -> bool {
        let plug = self.plug(PortRef::of_switch(switch, port));
        plug.is_some_and(|(link, end)| self.links.get(link).is_some_and(|link| link.is_up(end)))
    }
}
