//! The world of a testbed: its adapters, switch and cables, and ports that come up.

use hca_driver::Hca;
use hca_driver::eth::RoceAddress;
use hca_model::link::{Faults, LinkRate};
use hca_model::{HcaConfig, HcaId, LinkConfig, LinkEnd, PortRef, SwitchConfig, SwitchId, World, WorldConfig};
use hca_spec::ids::Lid;
use hca_spec::mad::{PortInfo, port_state};

use super::{Address, ROCE_INDEX, profile};
use crate::Error;
use crate::in_process::ModelBus;
use crate::scenario::{Scenario, Topology};

/// GUID of the first adapter; the others follow.
const FIRST_GUID: u64 = 0x0002_c903_00b0_0001;
/// GUID of the switch.
const SWITCH_GUID: u64 = 0x0002_c903_00b1_0000;
/// The switch.
const SWITCH: SwitchId = SwitchId(0);
/// The only port.
const PORT: u8 = 1;
/// Polls of a port before it is given up.
const POLLS: u32 = 1_000_000;

pub(super) fn world(scenario: &Scenario, adapters: usize) -> Result<World, Error> {
    let profile = profile(scenario)?;
    let hca = |i: usize| {
        let mut firmware = hca_firmware::Config::with_guid(FIRST_GUID + i as u64 * 0x100);
        firmware.blueflame = true;
        firmware.port_kind = scenario.link.ports;
        HcaConfig { name: format!("hca{i}"), firmware, timing: None }
    };
    let config = WorldConfig {
        hcas: (0..adapters).map(hca).collect(),
        switches: (scenario.topology == Topology::Switch)
            .then(|| switch(scenario, adapters))
            .into_iter()
            .collect(),
        links: links(scenario, adapters),
        subnet_manager: true,
        management_key: None,
        seed: scenario.seed,
        profile,
    };
    World::new(config).map_err(|why| Error::new(format!("the topology is impossible: {why}")))
}

/// A switch with a port for each adapter.
fn switch(scenario: &Scenario, adapters: usize) -> SwitchConfig {
    let firmware = hca_firmware::SwitchConfig {
        node_guid: SWITCH_GUID,
        system_image_guid: SWITCH_GUID,
        node_description: "switch".into(),
        ports: u8::try_from(adapters).unwrap_or(u8::MAX),
        kind: scenario.link.ports,
    };
    SwitchConfig { name: "switch".into(), firmware, queueing: hca_model::Queueing::default() }
}

/// The cables: two adapters to each other, or each to its port of the switch.
fn links(scenario: &Scenario, adapters: usize) -> Vec<LinkConfig> {
    let link = |ends: [LinkEnd; 2]| LinkConfig {
        ends,
        // What the ports train to, and report; packets take the scenario's link, whatever the adapter's ports can be.
        rate: LinkRate::Edr,
        width: 4,
        line: Some(scenario.link.line()),
        delay: scenario.cable,
        faults: Faults::default(),
        seed: None,
        room: 1,
    };
    let to_switch = |(port, hca)| link([HcaId(hca).into(), PortRef::of_switch(SWITCH, port).into()]);
    match scenario.topology {
        Topology::Loopback => Vec::new(),
        Topology::BackToBack => vec![link([HcaId(0).into(), HcaId(1).into()])],
        Topology::Switch => (1..).zip(0..adapters).map(to_switch).collect(),
    }
}

/// The LID of a port of InfiniBand, once it is active.
pub(super) fn lid(hca: &mut Hca<ModelBus>) -> Result<Lid, Error> {
    wait_until(hca, |hca| Ok(hca.port_info(PORT)?.get(PortInfo::PORT_STATE) == port_state::ACTIVE))?;
    Ok(hca.lid(PORT)?)
}

/// Enables RoCE on a port of Ethernet, once it is up, and gives it an address.
pub(super) fn roce_address(
    hca: &mut Hca<ModelBus>,
    scenario: &Scenario,
    id: HcaId,
) -> Result<Address, Error> {
    if scenario.topology != Topology::Loopback {
        wait_until(hca, |hca| Ok(hca.vport_is_up()?))?;
    }
    let (gid, mac, version) = (scenario.roce.gid(id.0), hca.mac()?, scenario.roce.version);
    let vlan = (scenario.vlan > 0).then_some(scenario.vlan);
    hca.set_roce_mtu(PORT)?;
    hca.set_roce(true)?;
    hca.set_roce_address(PORT, ROCE_INDEX, Some(&RoceAddress { gid, mac, vlan, version }))?;
    Ok(Address::Roce(gid, mac))
}

/// Lets time pass until something holds.
fn wait_until(
    hca: &mut Hca<ModelBus>,
    holds: impl Fn(&mut Hca<ModelBus>) -> Result<bool, Error>,
) -> Result<(), Error> {
    for _ in 0..POLLS {
        if holds(hca)? {
            return Ok(());
        }
        hca.wait(None);
    }
    Err(Error::new("a port does not come up"))
}
