//! The PCI function around the adapter, on a server without a socket.

use hca_driver::{Bus, Config, Hca};
use hca_server::pci::Space;
use hca_spec::cmd::ObjectIn;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::init_segment::InitSegment;

use super::{Act, Mistake, Ports, Said, SaidParts};
use crate::direct::{Direct, DirectBus, Kind};

/// One adapter, and a checker.
const TOPOLOGY: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[checker]\nenabled = true\npatience_ms = 400\n";
/// Its patience, and what the adapter's clock counts in a millisecond at most.
const PATIENCE_MS: u32 = 400;
const TICKS_IN_MS: u32 = 160_000;
/// The command register, and values of it.
const COMMAND: u64 = 4;
const ON: [u8; 2] = [6, 0];
const NO_MASTER: [u8; 2] = [2, 0];
const NO_MEMORY: [u8; 2] = [4, 0];
/// Offset of the first capability's offset; id of power management; offset of its control.
const CAPABILITIES: u64 = 0x34;
const POWER_MANAGEMENT: u8 = 1;
const POWER_CONTROL: u64 = 4;
const D3: [u8; 2] = [3, 0];
/// Id of MSI-X; offset of its message control; on, and on with the function's mask.
const MSIX: u8 = 0x11;
const MSIX_CONTROL: u64 = 2;
const MSIX_ON: [u8; 2] = [0, 0x80];
const MSIX_MASKED: [u8; 2] = [0, 0xc0];
/// Vector control of the first entry of the table, in BAR2 (PCIe 7.7.2.8): bit 0 masks the vector.
const VECTOR_CONTROL: u64 = 12;

pub(super) const ALL: &[Mistake] = &[
    mistake("command doorbell with bus mastering off", "command register", |wrong| {
        on_server(wrong, |hca, wrong| {
            hca.bus_mut().write(Space::Config, COMMAND, if wrong { &NO_MASTER } else { &ON });
            let input = ObjectIn::new().bytes().to_vec();
            let sent = hca.execute(Opcode::Nop, 0, input, OutHeader::SIZE);
            assert_eq!(sent.is_err(), wrong);
            hca.bus_mut().write(Space::Config, COMMAND, &ON);
        })
    }),
    mistake("access to BAR0 with memory space off", "command register", |wrong| {
        on_server(wrong, |hca, wrong| {
            hca.bus_mut().write(Space::Config, COMMAND, if wrong { &NO_MEMORY } else { &ON });
            hca.bus_mut().mmio_read32(0);
            hca.bus_mut().write(Space::Config, COMMAND, &ON);
        })
    }),
    mistake("access to BAR0 in D3", "power state", |wrong| {
        on_server(wrong, |hca, wrong| {
            let control = power_control(hca.bus_mut());
            if wrong {
                hca.bus_mut().write(Space::Config, control, &D3);
            }
            hca.bus_mut().mmio_read32(0);
            hca.bus_mut().write(Space::Config, control, &[0, 0]);
        })
    }),
    mistake("event queue that raises a vector with MSI-X off", "MSI-X message control", |wrong| {
        on_server(wrong, |hca, wrong| {
            if wrong {
                hca.bus_mut().disconnect(0);
            }
            let pd = hca.alloc_pd().expect("ALLOC_PD, whose end an event tells");
            hca.dealloc_pd(pd).expect("DEALLOC_PD");
        })
    }),
    mistake("interrupt of a vector while the function's vectors are masked", "mask", |wrong| {
        on_server(wrong, |hca, wrong| {
            let control = capability(hca.bus_mut(), MSIX) + MSIX_CONTROL;
            hca.bus_mut().write(Space::Config, control, if wrong { &MSIX_MASKED } else { &MSIX_ON });
            raise_and_wait(hca);
            hca.bus_mut().write(Space::Config, control, &MSIX_ON);
        })
    }),
    mistake("interrupt of a vector that its own bit masks", "mask", |wrong| {
        on_server(wrong, |hca, wrong| {
            let control = capability(hca.bus_mut(), MSIX) + MSIX_CONTROL;
            hca.bus_mut().write(Space::Config, control, &MSIX_ON);
            // A host that takes an interrupt for itself masks it there, and says so; with others the table counts.
            hca.bus_mut().disconnect(0);
            hca.bus_mut().write(Space::Bar2, VECTOR_CONTROL, &[u8::from(wrong), 0, 0, 0]);
            raise_and_wait(hca);
            hca.bus_mut().write(Space::Bar2, VECTOR_CONTROL, &[0; 4]);
        })
    }),
];

/// Has the vector of commands raised, and lets pass, by the adapter's clock, twice as long as the checker is patient. Events are
/// read meanwhile.
fn raise_and_wait(hca: &mut Hca<DirectBus>) {
    let pd = hca.alloc_pd().expect("ALLOC_PD, whose end an event tells");
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    let ticks = 2 * PATIENCE_MS * TICKS_IN_MS;
    let now = |bus: &mut DirectBus| bus.mmio_read32(InitSegment::INTERNAL_TIMER_L.offset() as u64);
    let begun = now(hca.bus_mut());
    while now(hca.bus_mut()).wrapping_sub(begun) < ticks {
        while hca.poll_event().expect("events").is_some() {}
    }
}

const fn mistake(what: &'static str, field: &'static str, act: fn(bool) -> Vec<Said>) -> Mistake {
    Mistake { what, field, ports: Ports::Ib, act: Act::Server(act), personality: None, before: None }
}

/// Does it on an adapter that was brought up; what the server has diagnosed.
fn on_server(wrong: bool, act: fn(&mut Hca<DirectBus>, bool)) -> Vec<Said> {
    let server = Direct::start(TOPOLOGY);
    let config = Config { command_polls: 200, ..Config::default() };
    let mut hca = Hca::open(server.bus(0, Kind::Descriptor), config).expect("the adapter comes up");
    act(&mut hca, wrong);
    match wrong {
        true => drop(hca),
        false => drop(hca.close().expect("teardown")),
    }
    let answer = server.stop("diagnoses");
    let diagnoses = answer["diagnoses"].as_array().cloned().unwrap_or_default();
    diagnoses.iter().map(said).collect()
}

fn said(diagnosis: &serde_json::Value) -> Said {
    let text = |name: &str| diagnosis[name].as_str().unwrap_or_default().to_owned();
    let rule = diagnosis["rule"]["name"].as_str().map(str::to_owned);
    let parts = rule.map(|rule| SaidParts {
        object: format!("{} {:#x}", text("object"), diagnosis["object_number"].as_u64().unwrap_or_default()),
        field: text("field"),
        found: text("found"),
        expected: text("expected"),
        rule,
    });
    let before = diagnosis["before"].as_array().map_or(&[][..], Vec::as_slice);
    let before = before.iter().map(|before| before["text"].as_str().unwrap_or_default().to_owned()).collect();
    Said { text: text("text"), parts, before }
}

/// Where the power state is set.
fn power_control(bus: &DirectBus) -> u64 {
    capability(bus, POWER_MANAGEMENT) + POWER_CONTROL
}

/// Where a capability begins.
fn capability(bus: &DirectBus, id: u8) -> u64 {
    let mut at = u64::from(bus.read(Space::Config, CAPABILITIES, 1)[0]);
    while bus.read(Space::Config, at, 1)[0] != id {
        at = u64::from(bus.read(Space::Config, at + 1, 1)[0]);
    }
    at
}
