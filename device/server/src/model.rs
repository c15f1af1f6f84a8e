//! Where server and model meet: configuration in, guest memory, resource counts out.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use hca_model::dma::copy_bytes;
use hca_model::link::Faults;
use hca_model::timing::Profile;
use hca_model::{
    DeferredReads, DmaError, FirmwareConfig, GuestMemory, HcaConfig, HcaId, LinkConfig, LinkEnd, LinkSpeed,
    PortKind, PortLink, PortRef, Ps, Snapshot, SwitchConfig, SwitchId, SwitchIdentity, TunnelId, World,
    WorldConfig,
};
use serde_json::{Value, json};

use crate::links::{Links, Row};
use crate::memory::HostMemory;
use crate::random::random;
use crate::topology::{self, Cut, End, Hca, Host, Isolation, ManagementKey, Part, SubnetManager, Topology};
use crate::tunnel::Light;

impl GuestMemory for HostMemory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        HostMemory::read(self, iova, buf).map_err(|_| DmaError { iova, len })
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        HostMemory::write(self, iova, data).map_err(|_| DmaError { iova, len: data.len() })
    }

    fn deferred(&self) -> Option<&dyn DeferredReads> {
        self.defers().then_some(self as &dyn DeferredReads)
    }

    fn is_mapped(&self, iova: u64, len: usize) -> bool {
        HostMemory::is_mapped(self, iova, len)
    }

    /// A processor of the guest that polls a buffer before its message is complete sees what came a little later: nobody is told of it.
    fn is_unwatched(&self, iova: u64, len: usize) -> bool {
        HostMemory::is_plain(self, iova, len)
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        HostMemory::reaches(self, iova, len)
    }

    fn copy_from(&self, iova: u64, source: &dyn GuestMemory, from: u64, len: usize) -> Result<(), DmaError> {
        match source.as_any().and_then(|any| any.downcast_ref::<HostMemory>()) {
            Some(source) => {
                HostMemory::copy_from(self, iova, source, from, len).map_err(|_| DmaError { iova, len })
            }
            None => copy_bytes(self, iova, source, from, len),
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// Builds the model of what this process serves of a topology, and the table of its links.
///
/// # Errors
/// If there is no such profile or the model refuses the topology, with the reason.
pub(crate) fn world(topology: &Topology, part: &Part<'_>) -> anyhow::Result<(World, Links)> {
    if let Some((host, hca)) = part.hcas().find(|(_, hca)| hca.simbricks.is_some()) {
        anyhow::bail!(
            "{}/{}: host.hca.simbricks: only simulations have such hosts (softhca sim)",
            host.name,
            hca.name
        );
    }
    let mut rows = Vec::new();
    let mut world = bare_world(topology, part, &mut rows, |_, link| link)?;
    for (port, mac) in far_stations(topology, &rows) {
        world.pin_station(port, mac);
    }
    world.set_routing(topology.fabric.routing);
    if topology.isolation == Isolation::Process {
        world.set_subnet(subnet(topology, part, &rows));
    }
    Ok((world, Links::new(topology, rows)))
}

/// The bus of an adapter: each is behind a root port of its host, in order.
fn bus(host: &Host, hca: &Hca) -> u8 {
    let before = host.hcas.iter().position(|other| other.name == hca.name).unwrap_or(0);
    u8::try_from(before + 1).unwrap_or(u8::MAX)
}

/// The same, its links as `change` leaves them; `rows` get their table.
///
/// # Errors
/// As [`world`].
pub(crate) fn bare_world(
    topology: &Topology,
    part: &Part<'_>,
    rows: &mut Vec<Row>,
    change: impl Fn(&Row, LinkConfig) -> LinkConfig,
) -> anyhow::Result<World> {
    let named = |name: &str| {
        Profile::named(name).with_context(|| {
            let names: Vec<_> = Profile::names().collect();
            format!("profile {name:?}: there is no such profile, only {}", names.join(", "))
        })
    };
    let mut profile = named(topology.common_profile())?;
    if let Some(ms) = topology.fabric.training_ms {
        profile.set_link_training(Ps::from_ms(ms));
    }
    let mut names = Vec::new();
    let mut hcas = Vec::new();
    for (host, hca) in part.hcas() {
        let name = format!("{}/{}", host.name, hca.name);
        let firmware = FirmwareConfig {
            port_kind: hca.port_type,
            node_description: format!("softhca {name}"),
            personality: Arc::clone(&hca.personality),
            blueflame: hca.blueflame,
            wrapped_keys: hca.wrapped_keys,
            memory_page_faults: hca.memory_page_faults,
            may_manage: host.may_manage,
            bus: bus(host, hca),
            icm_pages: u32::try_from(hca.icm_bytes / 4096).unwrap_or(u32::MAX),
            ..FirmwareConfig::with_guid(hca.guid)
        };
        names.push(name.clone());
        let timing = topology.profile_of(hca);
        let elsewhere = hca.simbricks.is_some();
        let mut timing = (timing != profile.name() || elsewhere).then(|| named(timing)).transpose()?;
        if let Some(timing) = timing.as_mut().filter(|_| elsewhere) {
            let crossing = crossing(topology, hca);
            timing
                .leave_crossing(crossing)
                .map_err(|why| anyhow::anyhow!("{name}: host.hca.pcie_latency_ns: {why}"))?;
        }
        if let (Some(timing), Some(ms)) = (timing.as_mut(), topology.fabric.training_ms) {
            timing.set_link_training(Ps::from_ms(ms));
        }
        hcas.push(HcaConfig { name, firmware, timing });
    }
    let switches: Vec<_> = part
        .switches
        .iter()
        .map(|switch| SwitchConfig {
            name: switch.name.clone(),
            firmware: SwitchIdentity {
                node_guid: switch.guid,
                system_image_guid: switch.guid,
                node_description: format!("softhca {}", switch.name),
                ports: switch.ports,
                kind: switch.kind,
            },
            queueing: switch.queueing,
        })
        .collect();
    let places: BTreeMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    let switch_places: BTreeMap<&str, usize> =
        switches.iter().map(|switch| switch.name.as_str()).zip(0..).collect();
    let port = |end: &End| {
        let port = match end {
            End::Hca { host, hca, port } => {
                let place = places.get(format!("{host}/{hca}").as_str());
                place.map(|place| PortRef::of_hca(HcaId(*place), *port))
            }
            End::Outside { .. } | End::Nic { .. } => None,
            End::Switch { switch, port } => {
                let place = switch_places.get(switch.as_str());
                place.map(|place| PortRef::of_switch(SwitchId(*place), *port))
            }
        };
        port.with_context(|| format!("link: there is no port {end}"))
    };
    for link in &part.links {
        let [a, b] = &link.between;
        let ports = [Some(port(a)?), Some(port(b)?)];
        rows.push(Row { link: (*link).clone(), ports, tunnel: None, cable: true });
    }
    for Cut { number, link, here, .. } in &part.cuts {
        let mut ports = [None; 2];
        if let (Some(slot), Some(end)) = (ports.get_mut(*here), link.between.get(*here)) {
            *slot = Some(port(end)?);
        }
        rows.push(Row { link: (*link).clone(), ports, tunnel: Some(*number), cable: true });
    }
    for exit in &part.exits {
        let mut ports = [None; 2];
        if let (Some(slot), Some(end)) = (ports.get_mut(exit.here), exit.link.between.get(exit.here)) {
            *slot = Some(port(end)?);
        }
        rows.push(Row { link: exit.link.clone(), ports, tunnel: Some(exit.number), cable: true });
    }
    let links = rows.iter().map(|row| Ok(change(row, link(row)?))).collect::<anyhow::Result<_>>()?;
    let management_key = match topology.fabric.m_key {
        ManagementKey::Random => Some(random_key()?),
        ManagementKey::None => None,
        ManagementKey::Given(key) => Some(key),
    };
    let mut world = World::new(WorldConfig {
        hcas,
        switches,
        links,
        subnet_manager: topology.fabric.subnet_manager == SubnetManager::Builtin,
        management_key,
        seed: topology.fabric.seed,
        profile,
    })?;
    world.set_partitions(partitions(topology, part, rows));
    for row in rows.iter() {
        for port in row.ports.iter().flatten() {
            if world.port_kind(*port) == PortKind::InfiniBand {
                world.limit_port(*port, row.link.mtu, row.link.vls);
            }
        }
    }
    Ok(world)
}

/// The P_Keys of ports here: of adapters, and of switches next to adapters.
fn partitions(topology: &Topology, part: &Part<'_>, rows: &[Row]) -> BTreeMap<PortRef, Vec<u16>> {
    let adapters = part.hcas().enumerate().filter(|(_, (_, hca))| hca.port_type == PortKind::InfiniBand);
    let adapters = adapters.flat_map(|(i, (host, hca))| {
        let ports = (1..).take(hca.personality.ports.len());
        let table = move |port| {
            let keys = topology.pkeys(&host.name, &hca.name, port)?;
            Some((PortRef::of_hca(HcaId(i), port), keys))
        };
        ports.filter_map(table)
    });
    let switches = rows.iter().filter_map(|row| {
        let [a, b] = &row.link.between;
        let ends = [(a, b, row.ports[1]), (b, a, row.ports[0])];
        ends.into_iter().find_map(|(end, other, port)| match (end, other) {
            (End::Hca { host, hca, port: number }, End::Switch { .. }) => {
                Some((port?, topology.pkeys(host, hca, *number)?))
            }
            _ => None,
        })
    });
    adapters.chain(switches).collect()
}

/// What a crossing of the PCI Express link takes that joins an adapter to a host elsewhere: as much as its profile has of it, if the
/// topology says nothing.
pub(crate) fn crossing(topology: &Topology, hca: &topology::Hca) -> Ps {
    let own = || Profile::named(topology.profile_of(hca)).map(|profile| profile.pcie_crossing());
    hca.pcie_latency_ns.map(Ps::from_ns).or_else(own).unwrap_or_default()
}

/// Adapters of other processes at the Ethernet switches here, and their addresses.
fn far_stations<'a>(
    topology: &'a Topology,
    rows: &'a [Row],
) -> impl Iterator<Item = (PortRef, [u8; 6])> + 'a {
    rows.iter().filter(|row| row.tunnel.is_some()).filter_map(|row| {
        let here = row.ports.iter().flatten().next()?;
        let far = row.link.between.iter().find_map(|end| match end {
            End::Hca { host, hca, port } => Some((host, hca, *port)),
            _ => None,
        })?;
        let (_, hca) = topology.hcas().find(|(host, hca)| host.name == *far.0 && hca.name == *far.1)?;
        let mac = FirmwareConfig::with_guid(hca.guid).mac_of_port(far.2);
        (hca.port_type == PortKind::Ethernet).then_some((*here, mac))
    })
}

/// Where the ports of all adapters of the topology are, as seen from a part of it.
fn subnet(topology: &Topology, part: &Part<'_>, rows: &[Row]) -> Vec<Option<LinkEnd>> {
    let here: Vec<String> = part.hcas().map(|(host, hca)| format!("{}/{}", host.name, hca.name)).collect();
    let ports = topology.hcas().flat_map(|(host, hca)| {
        let ports = (1..=hca.personality.ports.len()).filter_map(|port| u8::try_from(port).ok());
        ports.map(move |port| (host, hca, port))
    });
    let place = |(host, hca, port): (&topology::Host, &topology::Hca, u8)| {
        if let Some(own) = here.iter().position(|name| *name == format!("{}/{}", host.name, hca.name)) {
            return Some(PortRef::of_hca(HcaId(own), port).into());
        }
        let end = End::Hca { host: host.name.clone(), hca: hca.name.clone(), port };
        let row = rows.iter().find(|row| row.link.between.contains(&end))?;
        row.tunnel.map(|tunnel| TunnelId(tunnel.into()).into())
    };
    ports.map(place).collect()
}

/// A key that no guest can guess.
pub(crate) fn random_key() -> anyhow::Result<u64> {
    let mut random = random()?;
    // 0 would be none.
    Ok(u64::from_be_bytes(*random().first_chunk().context("a random number is longer")?) | 1)
}

/// Input buffers of links to other processes: credits come back after what the system takes to let two processes run, about
/// a hundred times the link's own latency.
pub(crate) const FAR_ROOM: u32 = 32;
/// Bytes of one input buffer: what ports of all profiles have for each lane, in adapters and switches.
pub(crate) const LANE_BUFFER: usize = 32 << 10;
/// Lanes for data that a link has at most.
pub(crate) const DATA_LANES: usize = 15;

fn link(row: &Row) -> anyhow::Result<LinkConfig> {
    let Row { link, ports, tunnel, cable: _ } = row;
    let end = |port: Option<PortRef>| match (port, tunnel) {
        (Some(port), _) => Ok(LinkEnd::Port(port)),
        (None, Some(tunnel)) => Ok(LinkEnd::Tunnel(TunnelId(usize::from(*tunnel)))),
        (None, None) => anyhow::bail!("link: an end is nowhere"),
    };
    let [a, b] = *ports;
    Ok(LinkConfig {
        ends: [end(a)?, end(b)?],
        rate: link.rate,
        width: link.width,
        line: None,
        delay: Ps::from_ns(link.delay_ns),
        faults: faults(link.faults),
        seed: link.seed,
        room: if tunnel.is_some() { FAR_ROOM } else { 1 },
    })
}

/// What is at the end of a link that leads outside shows: all that the cable has.
pub(crate) fn full_light(link: &topology::Link) -> PortLink {
    PortLink { width: link.width, speed: link.rate.into() }
}

/// What a port tells the far side of a tunnel.
pub(crate) fn light(port: PortLink) -> Light {
    Light { width: port.width, speed: port.speed as u8 }
}

/// What the far side of a tunnel tells of its port.
pub(crate) fn port_link(light: Light) -> Option<PortLink> {
    const SPEEDS: [LinkSpeed; 7] = [
        LinkSpeed::Sdr,
        LinkSpeed::Ddr,
        LinkSpeed::Qdr,
        LinkSpeed::Fdr10,
        LinkSpeed::Fdr,
        LinkSpeed::Edr,
        LinkSpeed::Hdr,
    ];
    let speed = SPEEDS.into_iter().find(|speed| *speed as u8 == light.speed)?;
    Some(PortLink { width: light.width, speed })
}

fn faults(faults: topology::Faults) -> Faults {
    let topology::Faults { loss, duplicate, reorder, corrupt, delay, delay_us } = faults;
    Faults { loss, duplicate, reorder, corrupt, delay, delay_by: Ps::from_us(delay_us) }
}

/// Queues and keys that all adapters of the topology hold now.
pub(crate) fn objects(world: &World, adapters: usize) -> u64 {
    let of = |i| {
        let Snapshot { cqs, qps, srqs, mkeys, .. } = world.resources(HcaId(i)).now;
        [cqs, qps, srqs, mkeys].into_iter().map(u64::from).sum::<u64>()
    };
    (0..adapters).map(of).sum()
}

/// Resource counts of an adapter, now and at its last teardown.
pub(crate) fn resources(world: &World, hca: HcaId) -> Value {
    let resources = world.resources(hca);
    json!({
        "now": counts(resources.now),
        "last_teardown": resources.at_last_teardown.map(counts),
    })
}

fn counts(snapshot: Snapshot) -> Value {
    // Destructured, so that a new kind can't be forgotten.
    let Snapshot {
        eqs,
        cqs,
        qps,
        srqs,
        dcts,
        rqs,
        rqts,
        tirs,
        tiss,
        mkeys,
        pds,
        xrcds,
        transport_domains,
        uars,
        multicast_groups,
        user_contexts,
        user_memories,
        general_objects,
        flow_tables,
        flow_groups,
        flow_entries,
        flow_counters,
        pages,
    } = snapshot;
    json!({
        "eqs": eqs,
        "cqs": cqs,
        "qps": qps,
        "srqs": srqs,
        "dcts": dcts,
        "rqs": rqs,
        "rqts": rqts,
        "tirs": tirs,
        "tiss": tiss,
        "mkeys": mkeys,
        "pds": pds,
        "xrcds": xrcds,
        "transport_domains": transport_domains,
        "uars": uars,
        "multicast_groups": multicast_groups,
        "user_contexts": user_contexts,
        "user_memories": user_memories,
        "general_objects": general_objects,
        "flow_tables": flow_tables,
        "flow_groups": flow_groups,
        "flow_entries": flow_entries,
        "flow_counters": flow_counters,
        "pages": pages,
    })
}

#[cfg(test)]
mod tests {
    use hca_model::TunnelEvent;
    use hca_model::link::{LinkMessage, LinkRate};

    use super::*;

    /// What is reckoned with for a lane of a link to another process is what ports of every profile give.
    #[test]
    fn lanes_have_the_room_that_is_reckoned_with() {
        let host = |name| format!("[[host]]\nname = \"{name}\"\n[[host.hca]]\n");
        let link = "[[link]]\nbetween = [\"a/hca0\", \"s\"]\n[[link]]\nbetween = [\"b/hca0\", \"s\"]\n";
        let nodes = format!("{}{}[[switch]]\nname = \"s\"\n{link}", host("a"), host("b"));
        let mut count = 0;
        for profile in ["connectib", "connectx3", "connectx4", "connectx5", "connectx6", "connectx6dx"] {
            let text = format!("isolation = \"process\"\nprofile = \"{profile}\"\n{nodes}");
            let topology = Topology::parse("t.toml", &text).unwrap();
            for worker in topology.workers() {
                let part = topology.part_of(&worker).unwrap();
                let (mut world, _) = crate::steps::world(&topology, &part).unwrap();
                (0..2).for_each(|tunnel| world.greet_tunnel(Ps::ZERO, TunnelId(tunnel)));
                world.take_leaving(|TunnelEvent { message, .. }| {
                    if let LinkMessage::Light(hca_model::link::Light { buffer: Some(buffer), .. }) = message {
                        assert_eq!(buffer, FAR_ROOM * LANE_BUFFER as u32, "{profile} {worker}");
                        count += 1;
                    }
                });
            }
        }
        assert!(count >= 24, "{count}");
    }

    #[test]
    fn every_speed_passes_a_tunnel() {
        for rate in LinkRate::ALL {
            let port = PortLink { width: 4, speed: rate.into() };
            assert_eq!(port_link(light(port)), Some(port));
        }
        assert_eq!(port_link(Light { width: 4, speed: 7 }), None);
    }
}
