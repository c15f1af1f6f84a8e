//! PDDR: what a port's physical layer does, for tools. Source: PRM "PDDR"; mstflint (`mlxlink`; field use).

use hca_spec::eqe::{module_error, module_status};
use hca_spec::mad::port_state;
use hca_spec::module::{KNOWN_OUI, PddrDown, PddrModule, cable_type, down_reason, module_trouble};
use hca_spec::register::{PDDR_PAGE, PROTO_ETHERNET, Pddr, PddrOperation, PddrTrouble, pddr_page};

use crate::failure::{Failure, bad_param};
use crate::module::Module;
use crate::personality::PortKind;
use crate::port::Port;
use crate::ports::Ports;

/// [`PddrOperation::PROTO_ACTIVE`]: InfiniBand.
const PROTO_INFINIBAND: u32 = 1;

/// What a port's link does, as the pages tell it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Physical {
    Disabled,
    Polling,
    Up,
}

fn physical(port: &Port) -> Physical {
    match () {
        () if port.is_disabled() => Physical::Disabled,
        () if port.state == port_state::DOWN => Physical::Polling,
        () => Physical::Up,
    }
}

/// What is in the port's cage, and how it is.
#[derive(Clone, Copy)]
pub(super) struct Cage {
    module: Module,
    /// [`module_status`], and [`module_error`] or 0.
    state: (u32, u32),
}

impl Cage {
    /// The port of that number's.
    pub(super) fn of(ports: &Ports, port: u8) -> Self {
        let cage = u32::from(port).saturating_sub(1);
        Self {
            module: ports.in_cage(cage).unwrap_or_default(),
            state: ports.state_of_module(cage).unwrap_or((module_status::PLUGGED, 0)),
        }
    }
}

/// Reads it: `value` is what came and what goes back.
pub(super) fn read(port: &Port, cage: Cage, value: &mut [u8]) -> Result<(), Failure> {
    const PAGE: Failure = bad_param("PDDR: page_select: there is no such page");
    let head = Pddr::from_prefix_or_zero(value);
    let data = value.get_mut(PDDR_PAGE..).unwrap_or_default();
    let group = PddrTrouble::from_prefix_or_zero(data).get(PddrTrouble::GROUP_OPCODE);
    data.fill(0);
    let mut put = |bytes: &[u8]| data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    match head.get(Pddr::PAGE_SELECT) {
        pddr_page::OPERATION => put(operation(port).bytes()),
        pddr_page::TROUBLE => put(trouble(port, cage, group).bytes()),
        pddr_page::MODULE => put(module(cage.module).bytes()),
        pddr_page::DOWN => put(down(port, cage).bytes()),
        other => return Err(PAGE.got(other)),
    }
    Ok(())
}

fn operation(port: &Port) -> PddrOperation {
    /// States of the machine that manages the physical layer.
    const MANAGER: [(Physical, u32); 3] =
        [(Physical::Disabled, 0), (Physical::Polling, 2), (Physical::Up, 3)];
    /// States of the machine that negotiates Ethernet: transmitter off, abilities looked for, up.
    const ETHERNET: [(Physical, u32); 3] =
        [(Physical::Disabled, 1), (Physical::Polling, 2), (Physical::Up, 6)];
    /// States of the machine that trains InfiniBand: off, polling, up.
    const INFINIBAND: [(Physical, u32); 3] =
        [(Physical::Disabled, 0), (Physical::Polling, 1), (Physical::Up, 7)];
    let now = physical(port);
    let code = |codes: [(Physical, u32); 3]| {
        codes.into_iter().find(|(state, _)| *state == now).map_or(0, |(_, code)| code)
    };
    let mut page = PddrOperation::new();
    page.set(PddrOperation::PHY_MNGR_FSM_STATE, code(MANAGER));
    let (protocol, wanted, capable, active) = if port.kind() == PortKind::Ethernet {
        page.set(PddrOperation::ETH_AN_FSM_STATE, code(ETHERNET));
        let rates = port.rates();
        (PROTO_ETHERNET, rates.wanted, rates.capable, rates.active)
    } else {
        page.set(PddrOperation::IB_PHY_FSM_STATE, code(INFINIBAND));
        let (wanted, capable) = (port.wanted_modes().word(), port.capable_modes().word());
        (PROTO_INFINIBAND, wanted, capable, port.active_modes().word())
    };
    page.set(PddrOperation::PROTO_ACTIVE, protocol).set(PddrOperation::PHY_MANAGER_LINK_ENABLED, wanted);
    page.set(PddrOperation::CORE_TO_PHY_LINK_ENABLED, wanted);
    page.set(PddrOperation::CABLE_PROTO_CAP, capable).set(PddrOperation::LINK_ACTIVE, active);
    page
}

fn trouble(port: &Port, cage: Cage, group: u32) -> PddrTrouble {
    /// A port that was switched off.
    const CLOSED_BY_COMMAND: u32 = 1;
    /// Nobody answers.
    const NEGOTIATION: u32 = 2;
    /// Where the text begins.
    const TEXT: usize = PddrTrouble::STATUS_MESSAGE.offset();
    let (code, text) = match physical(port) {
        Physical::Up => (0, "No issue was observed."),
        Physical::Disabled => (CLOSED_BY_COMMAND, "The port is closed by command."),
        Physical::Polling => match cage.state {
            (module_status::PLUGGED, _) => (NEGOTIATION, "No partner detected during training."),
            (module_status::UNPLUGGED, _) => (module_trouble::UNPLUGGED, "The cable is unplugged."),
            (_, error) => (of_module(error), "The module can't be used."),
        },
    };
    let mut page = PddrTrouble::new();
    page.set(PddrTrouble::GROUP_OPCODE, group).set(PddrTrouble::STATUS_OPCODE, code);
    page.bytes_mut().iter_mut().skip(TEXT).zip(text.bytes()).for_each(|(to, from)| *to = from);
    page
}

/// The code of what is wrong with a module ([`module_error`]).
fn of_module(error: u32) -> u32 {
    match error {
        module_error::POWER_BUDGET => module_trouble::POWER_BUDGET,
        module_error::PCIE_POWER => module_trouble::PCIE_POWER,
        _ => module_trouble::ERRORS.saturating_add(error),
    }
}

/// What the module's memory says of it (SFF-8636); it measures nothing, so temperature, voltage and light are zero.
fn module(module: Module) -> PddrModule {
    /// SFF-8024: QSFP28.
    const QSFP28: u8 = 0x11;
    /// Codes of the page for QSFP28 and QSFP+.
    const IDENTIFIERS: [u32; 2] = [0, 1];
    /// Power of the first class of SFF-8636 (bits 7 and 6 of byte 129 are 0): 1.5 W.
    const FIRST_CLASS: u32 = 1;
    let mut page = PddrModule::new();
    let Some(memory) = module.memory() else {
        let what = if module == Module::Empty { cable_type::UNPLUGGED } else { cable_type::UNIDENTIFIED };
        page.set(PddrModule::CABLE_TYPE, what);
        return page;
    };
    let byte = |at: usize| memory.get(at).copied().map_or(0, u32::from);
    let word = |at: usize| (at..at.saturating_add(4)).fold(0, |word, at| word << 8 | byte(at));
    let [newer, older] = IDENTIFIERS;
    let identifier = if memory.first() == Some(&QSFP28) { newer } else { older };
    page.set(PddrModule::CABLE_TECHNOLOGY, byte(147)).set(PddrModule::ETHERNET_COMPLIANCE_CODE, byte(131));
    page.set(PddrModule::EXT_ETHERNET_COMPLIANCE_CODE, byte(192));
    page.set(PddrModule::CABLE_TYPE, cable_type::PASSIVE_COPPER).set(PddrModule::CABLE_VENDOR, KNOWN_OUI);
    page.set(PddrModule::CABLE_LENGTH, byte(146)).set(PddrModule::CABLE_IDENTIFIER, identifier);
    page.set(PddrModule::CABLE_POWER_CLASS, FIRST_CLASS);
    page.set(PddrModule::VENDOR_REV, byte(184) << 8 | byte(185));
    page.set(PddrModule::DATE_CODE_FIRST, word(212)).set(PddrModule::DATE_CODE_LAST, word(216));
    page.set(PddrModule::CONNECTOR_TYPE, byte(130));
    page.set(PddrModule::VENDOR_OUI, byte(165) << 16 | byte(166) << 8 | byte(167));
    for (field, from) in
        [(PddrModule::VENDOR_NAME, 148), (PddrModule::VENDOR_PN, 168), (PddrModule::VENDOR_SN, 196)]
    {
        let text = memory.get(from..).unwrap_or_default().iter().take(16);
        page.bytes_mut().iter_mut().skip(field.offset()).zip(text).for_each(|(to, from)| *to = *from);
    }
    page
}

/// Why the link went down: what still holds. Of what is over nothing is kept.
fn down(port: &Port, cage: Cage) -> PddrDown {
    /// Somebody wanted it.
    const INTENTIONAL: u32 = 1;
    let events = match port.ethernet() {
        Some(ethernet) => ethernet.counters.link_down_events,
        None => port.counters.link_downed,
    };
    let (intent, reason) = match (physical(port), cage.state) {
        (Physical::Disabled, _) => (INTENTIONAL, down_reason::COMMAND),
        (Physical::Polling, (module_status::UNPLUGGED, _)) => (INTENTIONAL, down_reason::UNPLUGGED),
        _ if events == 0 => (0, down_reason::NONE),
        _ => (0, down_reason::UNKNOWN),
    };
    let mut page = PddrDown::new();
    page.set(PddrDown::DOWN_INTENT, intent).set(PddrDown::LOCAL_REASON_OPCODE, reason);
    page
}

#[cfg(test)]
mod tests {
    use hca_spec::be32;
    use hca_spec::cmd::reg;
    use hca_spec::command::Status;

    use super::*;
    use crate::commands::testing::{Bench, ethernet, register};
    use crate::module::Copper;
    use crate::port::PortLink;

    fn page(b: &mut Bench, page: u32) -> Vec<u8> {
        let mut p = Pddr::new();
        p.set(Pddr::LOCAL_PORT, 1).set(Pddr::PAGE_SELECT, page);
        let r = register(b, reg::PDDR, false, p.bytes());
        assert_eq!((r.status(), r.output.len()), (Status::Ok, 0x10 + 0x100));
        r.output[0x18..].to_vec()
    }

    /// The page says what the memory says; without one, whether something is there.
    #[test]
    fn page_of_the_module() {
        for mut b in [Bench::initialized(), Bench::initialized_with(ethernet())] {
            let cable = Copper { most: PortLink::default(), metres: 3, serial: 0x1234 };
            b.fw.ports.put_in_cage(1, Module::Copper(cable));
            let memory = Module::Copper(cable).memory().unwrap();
            let p = page(&mut b, pddr_page::MODULE);
            assert_eq!(p[..8], [0xa0, 0, 0x0b, 0x88, 0x32, 3, 0, 1]);
            assert_eq!((&p[0x14..0x24], &p[0x24..0x34]), (&memory[148..164], &memory[168..184]));
            assert_eq!(&p[0x14..0x34], b"softhca         PCC-4X-EDR      ");
            assert_eq!((&p[0x34..0x38], &p[0x3c..0x4c]), (&b"\0\0A1"[..], &b"SH00001234      "[..]));
            assert_eq!((&p[0xb0..0xb8], &p[0xb8..0xbc]), (&b"260101  "[..], &[0x23, 0, 2, 0xc9][..]));
            assert!(p[0x4c..0xb0].iter().all(|byte| *byte == 0), "it measures nothing");
            let older = Copper { most: PortLink { width: 4, speed: crate::speed::LinkSpeed::Qdr }, ..cable };
            b.fw.ports.put_in_cage(1, Module::Copper(older));
            assert_eq!(page(&mut b, pddr_page::MODULE)[6], 1, "QSFP+");
            for (module, kind) in [
                (Module::Empty, cable_type::UNPLUGGED),
                (Module::Loopback, cable_type::UNIDENTIFIED),
                (Module::Stuck, cable_type::UNIDENTIFIED),
            ] {
                b.fw.ports.put_in_cage(1, module);
                let p = page(&mut b, pddr_page::MODULE);
                assert_eq!(
                    (be32(&p, 4), p.iter().filter(|byte| **byte != 0).count() < 2),
                    (kind << 28, true)
                );
            }
            let mut missing = Pddr::new();
            missing.set(Pddr::LOCAL_PORT, 1).set(Pddr::PAGE_SELECT, 2);
            assert_eq!(register(&mut b, reg::PDDR, false, missing.bytes()).status(), Status::BadParam);
        }
    }

    /// Why there is no link, and why it went down, as far as that still holds.
    #[test]
    fn pages_of_links_that_are_down() {
        for mut b in [Bench::initialized(), Bench::initialized_with(ethernet())] {
            let told = |b: &mut Bench| {
                let (why, went) = (page(b, pddr_page::TROUBLE), page(b, pddr_page::DOWN));
                (be32(&why, 4), be32(&went, 0), be32(&went, 4))
            };
            let up = |b: &mut Bench, link| b.fw.ports.set_link(1, link, &mut Vec::new());
            assert_eq!(told(&mut b), (2, 0, down_reason::NONE), "it was never up");
            up(&mut b, Some(PortLink::default()));
            assert_eq!(told(&mut b), (0, 0, down_reason::NONE));
            b.fw.ports.put_in_cage(1, Module::Empty);
            up(&mut b, None);
            assert_eq!(told(&mut b), (module_trouble::UNPLUGGED, 0x10, down_reason::UNPLUGGED));
            b.fw.ports.put_in_cage(1, Module::Stuck);
            assert_eq!(told(&mut b), (1026, 0, down_reason::UNKNOWN));
            for (error, code) in [(0, 1032), (3, 1027), (7, 1031), (0xc, 1040)] {
                b.fw.ports.set_module_trouble(1, Some(error));
                assert_eq!(told(&mut b).0, code);
            }
            b.fw.ports.set_module_trouble(1, None);
            b.fw.ports.put_in_cage(1, Module::Loopback);
            assert_eq!(told(&mut b), (2, 0, down_reason::UNKNOWN));
            up(&mut b, Some(PortLink::default()));
            b.fw.ports.port_mut(1).unwrap().disable(&mut Vec::<crate::effect::Effect>::new());
            assert_eq!(told(&mut b), (1, 0x10, down_reason::COMMAND));
        }
    }
}
