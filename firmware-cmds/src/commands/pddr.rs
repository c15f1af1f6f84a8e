//! PDDR: what a port's physical layer does, for tools. Source: PRM "PDDR"; mstflint (`mlxlink`; field use).

use hca_spec::mad::port_state;
use hca_spec::register::{PDDR_PAGE, PROTO_ETHERNET, Pddr, PddrOperation, PddrTrouble, pddr_page};

use crate::failure::{Failure, bad_param};
use crate::personality::PortKind;
use crate::port::Port;

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

/// Reads it: `value` is what came and what goes back.
pub(super) fn read(port: &Port, value: &mut [u8]) -> Result<(), Failure> {
    const PAGE: Failure = bad_param("PDDR: page_select: there is no such page");
    let head = Pddr::from_prefix_or_zero(value);
    let data = value.get_mut(PDDR_PAGE..).unwrap_or_default();
    let group = PddrTrouble::from_prefix_or_zero(data).get(PddrTrouble::GROUP_OPCODE);
    data.fill(0);
    let mut put = |bytes: &[u8]| data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    match head.get(Pddr::PAGE_SELECT) {
        pddr_page::OPERATION => put(operation(port).bytes()),
        pddr_page::TROUBLE => put(trouble(port, group).bytes()),
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

fn trouble(port: &Port, group: u32) -> PddrTrouble {
    /// A port that was switched off.
    const CLOSED_BY_COMMAND: u32 = 1;
    /// Nobody answers.
    const NEGOTIATION: u32 = 2;
    /// Where the text begins.
    const TEXT: usize = PddrTrouble::STATUS_MESSAGE.offset();
    let (code, text) = match physical(port) {
        Physical::Up => (0, "No issue was observed."),
        Physical::Disabled => (CLOSED_BY_COMMAND, "The port is closed by command."),
        Physical::Polling => (NEGOTIATION, "No partner detected during training."),
    };
    let mut page = PddrTrouble::new();
    page.set(PddrTrouble::GROUP_OPCODE, group).set(PddrTrouble::STATUS_OPCODE, code);
    page.bytes_mut().iter_mut().skip(TEXT).zip(text.bytes()).for_each(|(to, from)| *to = from);
    page
}
