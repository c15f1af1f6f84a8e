//! The world of a part of a simulation. Whatever part it is of, each node and link is the same.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use hca_model::{
    FabricPlan, FirmwareConfig, HcaId, LinkConfig, NodeId, PlannedHca, PlannedSwitch, PortRef, SwitchId,
    TunnelId, World,
};

use super::calm::Tree;
use super::far::PlannedHost;
use super::joint::Planned;
use crate::faults::Faults;
use crate::outside::address::{Address, Medium, Way};
use crate::simbricks::ether::Stations;
use crate::simbricks::{Framing, Role};
use crate::topology::{self, End, Link, ManagementKey, Mode, Part, Time, Topology};
use crate::{model, steps};

/// A world, and the links that leave it.
pub(super) struct Built {
    pub(super) world: World,
    pub(super) joints: Vec<Planned>,
    /// Adapters whose hosts are other simulators.
    pub(super) hosts: Vec<PlannedHost>,
    pub(super) tree: Tree,
}

/// Builds it.
///
/// # Errors
/// The topology has what a simulation can't have.
pub(super) fn world(topology: &Topology, process: Option<&str>) -> anyhow::Result<Built> {
    let mut topology = topology.clone();
    check(&topology)?;
    if topology.fabric.m_key == ManagementKey::Random {
        // Nobody has to be kept out, and every process needs the same.
        topology.fabric.m_key = ManagementKey::None;
    }
    let part = match process {
        Some(_) => topology.part(process)?,
        None => topology.whole()?,
    };
    let mut joints = Vec::new();
    for cut in &part.cuts {
        let [a, b] = &cut.link.between;
        let joint = cut.link.simbricks.as_ref().with_context(|| {
            format!("the link between {a} and {b} leaves the process, and does not say how: simbricks = \"listen:PATH\"")
        })?;
        let place = joint.ends.get(cut.here).context("a link has two ends")?;
        joints.push(Planned {
            tunnel: TunnelId(cut.number.into()),
            name: format!("{a} and {b}"),
            role: place.role,
            path: place.path.clone(),
            framing: match joint.framing {
                topology::Framing::Raw => Framing::Raw,
                topology::Framing::Ethernet => Framing::Ethernet(Stations::new(cut.number, cut.here)),
            },
            between: Some((cut.number, cut.here)),
            peer: cut.peer.map(|peer| peer.name.clone()),
        });
    }
    for exit in &part.exits {
        let Medium::Simbricks(way) = &exit.medium else { continue };
        let (role, address) = match way {
            Way::Listen(address) => (Role::Listen, address),
            Way::Connect(address) => (Role::Connect, address),
        };
        let Address::Unix(path) = address else { continue };
        let [a, b] = &exit.link.between;
        joints.push(Planned {
            tunnel: TunnelId(exit.number.into()),
            name: format!("{a} and {b}"),
            role,
            path: path.clone(),
            framing: Framing::Frames,
            between: None,
            peer: None,
        });
    }
    let seed = topology.fabric.seed;
    let numbers: BTreeMap<&[End; 2], u64> =
        topology.links.iter().map(|link| &link.between).zip(0..).collect();
    let number = |link: &Link| numbers.get(&link.between).copied().unwrap_or_default();
    let mut rows = Vec::new();
    let mut world = model::bare_world(&topology, &part, &mut rows, |row, config| LinkConfig {
        seed: Some(config.seed.unwrap_or_else(|| seed ^ (number(&row.link) + 1).wrapping_mul(SPREAD))),
        room: 1,
        ..config
    })?;
    for exit in &part.exits {
        world.tunnel_of_frames(TunnelId(exit.number.into()), model::full_light(exit.link));
    }
    world.plan_fabric(&plan(&topology, &part)?);
    Faults::new(&topology, &part, &mut world);
    let mut hosts = Vec::new();
    for ((_, hca), function) in part.hcas().zip(steps::functions(&part)) {
        let Some(host) = &hca.simbricks else { continue };
        let crossing = model::crossing(&topology, hca);
        hosts.push(PlannedHost { function, role: host.role, path: host.path.clone(), crossing });
    }
    if !hosts.is_empty() {
        // Each access is of its own time.
        world.set_trains(false);
    }
    let tree = process.map(|process| Tree::of(&topology, process)).unwrap_or_default();
    Ok(Built { world, joints, hosts, tree })
}

/// Spreads numbers of links over seeds (2^64 divided by the golden ratio).
pub(super) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn check(topology: &Topology) -> anyhow::Result<()> {
    let simulated = |end: &End| {
        let outside = topology.outsides.iter().find(|outside| outside.name == end.node());
        matches!(outside, Some(outside) if matches!(outside.medium, Medium::Simbricks(_)))
    };
    if let Some(link) =
        topology.links.iter().find(|link| link.leaves() && !link.between.iter().any(simulated))
    {
        let [a, b] = &link.between;
        bail!(
            "the link between {a} and {b} leads outside, where time is another: a simulation can't have it, but for kind = \"simbricks\""
        );
    }
    let Time { mode, dilation, .. } = topology.time;
    ensure!(
        dilation == Time::default().dilation && mode == Mode::default(),
        "[time] is for guests: a simulation has no clock but the model's"
    );
    Ok(())
}

/// The whole fabric, and which of its nodes are here.
fn plan(topology: &Topology, part: &Part<'_>) -> anyhow::Result<FabricPlan> {
    let mut plan = FabricPlan { routing: topology.fabric.routing, ..FabricPlan::default() };
    let hosts: BTreeSet<&str> = part.hosts.iter().map(|host| host.name.as_str()).collect();
    let mut here = 0..;
    let mut next = |is_here: bool| if is_here { here.next() } else { None };
    for host in &topology.hosts {
        let is_here = hosts.contains(host.name.as_str());
        for hca in &host.hcas {
            let firmware = FirmwareConfig::with_guid(hca.guid);
            let ports =
                (1..).take(hca.personality.ports.len()).map(|port| firmware.mac_of_port(port)).collect();
            let here = next(is_here).map(HcaId);
            plan.hcas.push(PlannedHca { here, kind: hca.port_type, ports });
        }
    }
    let switches: BTreeSet<&str> = part.switches.iter().map(|switch| switch.name.as_str()).collect();
    let mut here = 0..;
    for switch in &topology.switches {
        let is_here = switches.contains(switch.name.as_str());
        let here = if is_here { here.next().map(SwitchId) } else { None };
        plan.switches.push(PlannedSwitch { here, kind: switch.kind });
    }
    let hcas: BTreeMap<(&str, &str), usize> = topology
        .hcas()
        .enumerate()
        .map(|(i, (host, hca))| ((host.name.as_str(), hca.name.as_str()), i))
        .collect();
    let switches: BTreeMap<&str, usize> =
        topology.switches.iter().enumerate().map(|(i, switch)| (switch.name.as_str(), i)).collect();
    let find = |end: &End| {
        let port = match end {
            End::Hca { host, hca, port } => {
                let place = hcas.get(&(host.as_str(), hca.as_str()));
                place.map(|place| PortRef { node: NodeId::Hca(HcaId(*place)), port: *port })
            }
            End::Switch { switch, port } => {
                switches.get(switch.as_str()).map(|place| PortRef::of_switch(SwitchId(*place), *port))
            }
            End::Outside { .. } | End::Nic { .. } => None,
        };
        port.with_context(|| format!("link: there is no port {end}"))
    };
    for link in topology.links.iter().filter(|link| !link.leaves()) {
        let [a, b] = &link.between;
        plan.links.push([find(a)?, find(b)?]);
    }
    Ok(plan)
}
