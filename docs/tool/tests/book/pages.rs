//! The pages say what the code says, their links lead somewhere, and nothing is left out.

use std::collections::BTreeSet;

use hca_docs::{blocks, book, commands, files, links, root};
use hca_firmware::profile::general_max;
use hca_firmware::{Config, Personality, PortKind};
use hca_spec::caps::{Atomic, EthernetOffloads, General, OdpScheme, object_type, odp};
use hca_spec::eqe::EventType;

#[test]
fn generated_blocks_are_what_the_code_says() {
    assert_eq!(blocks::stale(&root()).unwrap(), Vec::<String>::new());
}

#[test]
fn links_lead_somewhere() {
    assert_eq!(links::broken(&root()).unwrap(), Vec::<String>::new());
}

#[test]
fn pages_of_the_book_are_in_its_summary() {
    assert_eq!(book::unlisted(&root()).unwrap(), Vec::<String>::new());
}

/// Each structure of the interface stands on one page.
#[test]
fn structures_are_on_pages() {
    let shown = blocks::names(&root(), "layout ").unwrap();
    for (module, layouts) in hca_spec::LAYOUTS {
        for layout in *layouts {
            let times = shown.iter().filter(|name| *name == layout.name).count();
            assert_eq!(times, 1, "{module}::{} is on {times} pages", layout.name);
        }
    }
}

/// Each module of the interface with structures is in `hca_spec::LAYOUTS`.
#[test]
fn modules_are_listed() {
    let source = root().join("specs/src");
    for file in files(&source, "rs").unwrap() {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if std::fs::read_to_string(&file).unwrap().contains("\nlayout! {\n") {
            assert!(hca_spec::LAYOUTS.iter().any(|(module, _)| *module == name), "{name} is not in LAYOUTS");
        }
    }
}

/// Each refusal of the firmware is on a page, so that the number that a driver prints can be looked up.
#[test]
fn refusals_are_on_pages() {
    let root = root();
    let source = root.join("firmware-cmds/src");
    let shown: BTreeSet<String> = blocks::names(&root, "refusals ").unwrap().into_iter().collect();
    for file in files(&source, "rs").unwrap() {
        let name = file.strip_prefix(&source).unwrap().with_extension("").to_string_lossy().into_owned();
        let refuses = !commands::refusals_of(&std::fs::read_to_string(&file).unwrap()).is_empty();
        let is_test = name.ends_with("tests") || name.ends_with("testing");
        assert_eq!(shown.contains(&name), refuses && !is_test, "{name}: its refusals and the pages");
    }
}

/// What the book says is not there has no capability bit, and what has no bit is said.
#[test]
fn what_is_not_there_is_not_announced() {
    let config = Config { blueflame: true, ..Config::default() };
    let kind = config.personality.capabilities.clone();
    let (general, atomic, paging) = (general_max(&config), kind.atomic, *kind.odp.transport());
    let ethernet = &kind.ethernet;
    let reserved_only = 1 << object_type::RESERVED_QPN;
    let has = [
        ("masked atomics", atomic.get(Atomic::ATOMIC_OPERATIONS) & !0b11 != 0),
        ("(LRO)", ethernet.offloads.get(EthernetOffloads::LRO_CAP) == 1),
        ("striding receive queues", ethernet.general.get(General::STRIDING_RQ) == 1),
        ("SR-IOV", general.get(General::VPORT_GROUP_MANAGER) == 1 || general.get(General::IB_VIRT) == 1),
        ("on-demand paging for UD receives", paging.get(OdpScheme::UD) & odp::RECEIVE != 0),
        ("receives and UC", paging.get(OdpScheme::UC) != 0),
        ("but reserved QP numbers", general.get(General::GENERAL_OBJ_TYPES) & !reserved_only != 0),
        ("An adapter that is offered has one port", general.get(General::NUM_PORTS) != 1),
    ];
    let page = std::fs::read_to_string(root().join("docs/src/features.md")).unwrap();
    let (_, absent) = page.split_once("## What does not").unwrap();
    let absent = absent.split_whitespace().collect::<Vec<_>>().join(" ");
    for (what, announced) in has {
        assert_ne!(absent.contains(what), announced, "{what}: the page and the capabilities");
    }
}

/// Whether the public interface's capabilities have a field of that kind. A bit without a name is zero on every page.
fn has_field(word: &str) -> bool {
    let of_caps = hca_spec::LAYOUTS.iter().filter(|(module, _)| *module == "caps");
    let mut fields = of_caps.flat_map(|(_, layouts)| layouts.iter()).flat_map(|layout| layout.fields);
    fields.any(|field| field.name.split('_').any(|part| part == word))
}

/// The same of the list that the firmware's documentation begins with, for each kind of adapter.
#[test]
fn what_the_firmware_does_not_implement_is_not_announced() {
    let known = [
        object_type::SW_ICM,
        object_type::FLOW_METER,
        object_type::DEK,
        object_type::MATCH_DEFINER,
        object_type::CRYPTO_LOGIN,
        object_type::FLOW_SAMPLER,
        object_type::SCHEDULING_ELEMENT,
        object_type::RESERVED_QPN,
        object_type::AV_QP_MAPPING,
    ];
    let known = known.into_iter().fold(0, |all, kind| all | 1 << kind);
    let any = |announces: &dyn Fn(&General) -> bool| {
        Personality::names().any(|name| {
            let personality = Personality::named(name).unwrap();
            [PortKind::InfiniBand, PortKind::Ethernet].into_iter().any(|port_kind| {
                let config = Config { personality: personality.clone(), port_kind, ..Config::default() };
                announces(&general_max(&config))
            })
        })
    };
    let has = [
        ("An e-switch between virtual functions", any(&|general| general.get(General::ESWITCH_MANAGER) == 1)),
        ("link aggregation", has_field("LAG")),
        ("TLS", has_field("TLS")),
        ("IPsec", has_field("IPSEC")),
        ("MACsec", has_field("MACSEC")),
        (
            "general objects of other kinds",
            any(&|general| general.get(General::GENERAL_OBJ_TYPES) & !known != 0),
        ),
    ];
    let text = std::fs::read_to_string(root().join("firmware-cmds/src/lib.rs")).unwrap();
    let (_, list) = text.split_once("//! # Not implemented").unwrap();
    let list: Vec<&str> = list.lines().skip(1).map_while(|line| line.strip_prefix("//!")).collect();
    let list = list.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    for (what, announced) in has {
        assert_ne!(list.contains(what), announced, "{what}: the list and the capabilities");
    }
}

/// What an event means stands in the table of events, of each type.
#[test]
fn events_are_on_their_page() {
    let page = std::fs::read_to_string(root().join("specs/doc/eqe.md")).unwrap();
    let (_, table) = page.split_once("## Events").unwrap();
    let (table, _) = table.split_once("softhca sends exactly these.").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let types: BTreeSet<&str> = rows.flat_map(|row| row.split(" | ").next().unwrap().split(", ")).collect();
    for kind in EventType::ALL {
        let number = format!("{:#04x}", kind as u8);
        assert!(types.contains(&*number), "{number} {kind:?} is not in the table of events");
    }
}

/// In what kinds of adapters differ before any command stands on the pages of it.
#[test]
fn kinds_are_on_the_pages() {
    let page = |name: &str| std::fs::read_to_string(root().join("specs/doc").join(name)).unwrap();
    let (pci, segment, management) = (page("pci.md"), page("init-segment.md"), page("management.md"));
    for name in Personality::names() {
        let kind = Personality::named(name).unwrap();
        for id in [kind.pci.device, kind.pci.subsystem] {
            assert!(pci.contains(&format!("{id:#06x}")), "{id:#06x} of {name} is not in pci.md");
        }
        assert!(segment.contains(&format!("{} of a `{name}`", kind.version)), "version of {name}");
        assert!(management.contains(&format!("{:#x}", kind.hardware_id)), "hardware id of {name}");
    }
}
