//! Where server and model meet: configuration in, guest memory, resource counts out.

use anyhow::Context;
use hca_model::fabric::{Faults, LinkRate};
use hca_model::timing::Profile;
use hca_model::{
    DmaError, FirmwareConfig, GuestMemory, HcaConfig, HcaId, LinkConfig, Ps, Snapshot, World, WorldConfig,
};
use serde_json::{Value, json};

use crate::memory::HostMemory;
use crate::pci::DEVICE_ID;
use crate::topology::{self, End, SubnetManager, Topology};

impl GuestMemory for HostMemory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        HostMemory::read(self, iova, buf).map_err(|_| DmaError { iova, len })
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        HostMemory::write(self, iova, data).map_err(|_| DmaError { iova, len: data.len() })
    }
}

/// Builds the model of a topology.
///
/// # Errors
/// If there is no such profile or the model refuses the topology, with the reason.
pub(crate) fn world(topology: &Topology) -> anyhow::Result<World> {
    let mut profile = Profile::named(&topology.profile)
        .with_context(|| format!("profile {:?}: there is no such profile", topology.profile))?;
    if let Some(ms) = topology.fabric.training_ms {
        profile.set_link_training(Ps::from_ms(ms));
    }
    let mut names = Vec::new();
    let mut hcas = Vec::new();
    for (host, hca) in topology.hcas() {
        let name = format!("{}/{}", host.name, hca.name);
        let firmware = FirmwareConfig {
            device_id: DEVICE_ID,
            node_description: format!("softhca {name}"),
            blueflame: hca.blueflame,
            ..FirmwareConfig::with_guid(hca.guid)
        };
        names.push(name.clone());
        hcas.push(HcaConfig { name, firmware });
    }
    if let Some(switch) = topology.switches.first() {
        anyhow::bail!("switch {}: the model has no switches yet", switch.name);
    }
    let id = |end: &End| {
        let place = names.iter().position(|name| *name == end.to_string());
        place.map(HcaId).with_context(|| format!("link: there is no adapter {end}"))
    };
    let mut links = Vec::new();
    for link in &topology.links {
        let [a, b] = &link.between;
        links.push(LinkConfig {
            ends: [id(a)?.into(), id(b)?.into()],
            rate: LinkRate::from_name(link.rate.name()).context("link: rate unknown to the model")?,
            width: link.width,
            delay: Ps::from_ns(link.delay_ns),
            faults: faults(link.faults),
        });
    }
    Ok(World::new(WorldConfig {
        hcas,
        links,
        subnet_manager: topology.fabric.subnet_manager == SubnetManager::Builtin,
        seed: topology.fabric.seed,
        profile,
    })?)
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
        mkeys,
        pds,
        xrcds,
        transport_domains,
        uars,
        multicast_groups,
        user_contexts,
        user_memories,
        pages,
    } = snapshot;
    json!({
        "eqs": eqs,
        "cqs": cqs,
        "qps": qps,
        "srqs": srqs,
        "dcts": dcts,
        "mkeys": mkeys,
        "pds": pds,
        "xrcds": xrcds,
        "transport_domains": transport_domains,
        "uars": uars,
        "multicast_groups": multicast_groups,
        "user_contexts": user_contexts,
        "user_memories": user_memories,
        "pages": pages,
    })
}
