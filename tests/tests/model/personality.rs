//! Two kinds of adapter in one world: each shows its own identity, capabilities, ports and times.

use std::sync::Arc;

use hca_driver::{Config, Hca, SendRequest};
use hca_model::personality::{FirmwareVersion, Pci, Personality, PortProfile};
use hca_model::timing::Profile;
use hca_model::{FirmwareConfig, HcaConfig, HcaId, LinkSpeed, PortKind, World, WorldConfig};
use hca_spec::caps::General;
use hca_spec::mad::{NodeInfo, PortInfo};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::rig::HOST_MEMORY;

const GUID: u64 = 0x0002_c903_00a0_0001;

/// Another kind than there is: what differs is made up, so that it can't be right by chance.
fn other_kind() -> Personality {
    let known = Personality::default_kind();
    let mut other = (*known).clone();
    other.name = "other";
    other.pci = Pci { device: 0x1fff, ..known.pci.clone() };
    other.version = FirmwareVersion { major: 99, minor: 42, subminor: 7 };
    other.board_id = "OTHER_BOARD";
    other.capabilities.general.set(General::LOG_MAX_CQ_SZ, 13);
    other.capabilities.general.set(General::LOG_MAX_QP, 12);
    other.ports = vec![PortProfile {
        kinds: &[PortKind::InfiniBand],
        widths: &[1],
        speeds: &[LinkSpeed::Sdr, LinkSpeed::Qdr],
        mtu: 2048,
        data_lanes: 4,
    }];
    other
}

fn adapter(number: u64, personality: Option<Arc<Personality>>, timing: Option<&str>) -> HcaConfig {
    let mut firmware = FirmwareConfig::with_guid(GUID + number * 0x100);
    if let Some(personality) = personality {
        firmware.personality = personality;
    }
    let timing = timing.map(|name| Profile::named(name).expect("there is such a profile"));
    HcaConfig { name: format!("hca{number}"), firmware, timing }
}

fn world(hcas: Vec<HcaConfig>, profile: &str) -> Simulation {
    let config = WorldConfig {
        hcas,
        switches: Vec::new(),
        links: Vec::new(),
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile: Profile::named(profile).expect("there is such a profile"),
    };
    Simulation::new(World::new(config).expect("a valid topology"))
}

fn open(simulation: &Simulation, hca: usize) -> Hca<ModelBus> {
    Hca::open(simulation.bus(HcaId(hca), HOST_MEMORY), Config::default()).expect("the adapter comes up")
}

/// What software sees of an adapter's kind: firmware version, device id, board id, two capabilities, and of its port
/// widths, speeds, MTU and lanes.
fn seen(hca: &mut Hca<ModelBus>) -> ([u32; 2], u32, String, [u32; 2], [u32; 5]) {
    use hca_driver::Bus;
    let version = [0, 4].map(|offset| hca.bus_mut().mmio_read32(offset));
    let device = hca.node_info(PORT).expect("NodeInfo").get(NodeInfo::DEVICE_ID);
    let board = hca.board_id().expect("QUERY_ADAPTER");
    let board = String::from_utf8_lossy(&board).trim_end_matches('\0').to_owned();
    let caps = [General::LOG_MAX_CQ_SZ, General::LOG_MAX_QP].map(|field| hca.caps().get(field));
    let info = hca.port_info(PORT).expect("PortInfo");
    let port = [
        PortInfo::LINK_WIDTH_SUPPORTED,
        PortInfo::LINK_SPEED_SUPPORTED,
        PortInfo::LINK_SPEED_EXT_SUPPORTED,
        PortInfo::MTU_CAP,
        PortInfo::VL_CAP,
    ];
    (version, device, board, caps, port.map(|field| info.get(field)))
}

#[test]
fn each_adapter_shows_its_own_kind() {
    let other = Some(Arc::new(other_kind()));
    let simulation = world(vec![adapter(0, None, None), adapter(1, other, None)], "connectx4");
    let mut hcas = [open(&simulation, 0), open(&simulation, 1)];
    // 1x and 4x; SDR, DDR, QDR; FDR, EDR; 4096 bytes; 8 lanes.
    let known =
        ([28 << 16 | 12, 5 << 16 | 2006], 0x1013, "SHC_2180110032".to_owned(), [22, 18], [3, 7, 3, 5, 4]);
    assert_eq!(seen(&mut hcas[0]), known);
    let other = ([42 << 16 | 99, 5 << 16 | 7], 0x1fff, "OTHER_BOARD".to_owned(), [13, 12], [1, 5, 0, 4, 3]);
    assert_eq!(seen(&mut hcas[1]), other);
    // A reset of the function, by the driver's leaving and another's coming, does not change the kind.
    simulation.world(|world, now| world.reset(now, HcaId(1)));
    drop(hcas);
    assert_eq!(seen(&mut open(&simulation, 1)), other);
}

/// How long the adapter takes from its first completion to the last of a batch of writes to itself, in ticks of its clock.
fn batch(simulation: &Simulation, hca: usize) -> u64 {
    const WRITES: u64 = 60;
    let mut pair = Pair::connect(vec![open(simulation, hca)], &Options::default()).expect("connect");
    let far = pair.ends[1].mr;
    for i in 0..WRITES {
        let sge = [pair.ends[0].sge(0, 4096)];
        let request = SendRequest::write(i, &sge, far.address, far.key);
        pair.ends[0].qp.queue_send(&request).expect("queue_send");
    }
    let Pair { hcas, ends } = &mut pair;
    ends[0].qp.ring_doorbell(hcas[0].bus_mut());
    let first = pair.sent_ok(0, 0).timestamp;
    let last = (1..WRITES).map(|i| pair.sent_ok(0, i).timestamp).last().expect("completions");
    pair.close().expect("teardown");
    last - first
}

#[test]
fn each_adapter_has_its_own_time() {
    let alone = |profile| batch(&world(vec![adapter(0, None, None)], profile), 0);
    let [slow, fast] = ["connectx4", "connectx6"].map(alone);
    assert_ne!(slow, fast);
    let mixed = || world(vec![adapter(0, None, None), adapter(1, None, Some("connectx6"))], "connectx4");
    assert_eq!(batch(&mixed(), 0), slow, "the world's profile");
    assert_eq!(batch(&mixed(), 1), fast, "its own profile");
}
