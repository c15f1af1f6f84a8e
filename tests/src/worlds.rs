//! Worlds for tests: one adapter, or two over a link.

use crate::in_process::Simulation;
use hca_model::link::{Faults, LinkRate};
use hca_model::personality::Personality;
use hca_model::timing::Profile;
use hca_model::{HcaConfig, HcaId, LinkConfig, LinkEnd, Ps, World, WorldConfig};

/// GUID of the first adapter; the others follow.
const FIRST_GUID: u64 = 0x0002_c903_00a0_0001;

/// The kind of adapter that most tests use.
pub const COMMON_KIND: &str = "connectx4";
/// One whose page faults name keys and addresses, if its driver asks for that.
pub const WITH_MEMORY_PAGE_FAULTS: &str = "connectx6dx";

/// Makes all adapters ones of that kind. The times stay those of the configuration.
pub fn set_kind(config: &mut WorldConfig, kind: &str) {
    for hca in &mut config.hcas {
        hca.firmware.personality = Personality::named(kind).expect("there is one");
        hca.firmware.memory_page_faults = kind == WITH_MEMORY_PAGE_FAULTS;
    }
}

/// A world whose adapters are of that kind ([`set_kind`]).
pub fn of_kind(kind: &str, mut config: WorldConfig) -> World {
    set_kind(&mut config, kind);
    World::new(config).expect("a valid topology")
}

/// So many adapters with these links.
pub fn config(hcas: u64, links: Vec<LinkConfig>, seed: u64) -> WorldConfig {
    let hca = |i| HcaConfig {
        name: format!("hca{i}"),
        firmware: hca_firmware::Config::with_guid(FIRST_GUID + i * 0x100),
        timing: None,
    };
    WorldConfig {
        hcas: (0..hcas).map(hca).collect(),
        switches: Vec::new(),
        links,
        subnet_manager: true,
        management_key: None,
        seed,
        profile: Profile::connectx4(),
    }
}

/// A topology of two hosts with an adapter each and a cable that trains at once.
pub const TWO_HOSTS: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                             [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n[fabric]\ntraining_ms = 0\n";

/// One adapter without a cable.
pub fn one() -> World {
    World::new(config(1, Vec::new(), 1)).expect("one adapter is a valid topology")
}

/// So many adapters, with these links.
pub fn many(hcas: usize, links: Vec<LinkConfig>, seed: u64) -> World {
    World::new(config(hcas as u64, links, seed)).expect("a valid topology")
}

/// Two adapters with the times of that profile, over a link.
pub fn with_profile(profile: Profile, link: LinkConfig) -> World {
    World::new(WorldConfig { profile, ..config(2, vec![link], 1) }).expect("a valid topology")
}

/// Two adapters over a link that loses packets with probability `loss`.
pub fn two(loss: f64, seed: u64) -> World {
    two_with(Faults::loss(loss), seed)
}

/// A cable, 4x EDR, one metre.
pub fn cable(a: impl Into<LinkEnd>, b: impl Into<LinkEnd>) -> LinkConfig {
    LinkConfig {
        ends: [a.into(), b.into()],
        rate: LinkRate::Edr,
        width: 4,
        line: None,
        delay: Ps::from_ns(5),
        faults: Faults::default(),
        seed: None,
        room: 1,
    }
}

/// One with faults between the first two adapters.
pub fn between(faults: Faults) -> LinkConfig {
    LinkConfig { faults, ..cable(HcaId(0), HcaId(1)) }
}

/// Two adapters over a link with faults.
pub fn two_with(faults: Faults, seed: u64) -> World {
    many(2, vec![between(faults)], seed)
}

/// Two adapters with Ethernet ports on such a link.
pub fn ethernet(link: LinkConfig) -> World {
    crate::lan::ethernet(config(2, vec![link], 1))
}

/// Two adapters with BlueFlame over a link with faults.
pub fn with_blueflame(faults: Faults, seed: u64) -> World {
    let mut config = config(2, vec![between(faults)], seed);
    for hca in &mut config.hcas {
        hca.firmware.blueflame = true;
    }
    World::new(config).expect("two linked adapters are a valid topology")
}

/// Checks that an adapter that was closed holds nothing, and held nothing when it was.
pub fn assert_nothing_held(simulation: &Simulation, hca: HcaId) {
    let resources = simulation.world(|world, _| world.resources(hca));
    assert_eq!(resources.now, Default::default(), "objects are held now");
    assert_eq!(resources.at_last_teardown, Some(Default::default()), "objects were left behind");
}
