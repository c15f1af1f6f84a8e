//! ACCESS_REGISTER. Source: PRM "ACCESS_REGISTER" and the registers' own layouts; the mlx5 driver for
//! what it reads and writes. Registers that only Ethernet ports have are in [`super::ethernet_reg`].

use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Status;
use hca_spec::mad::PortInfo;
use hca_spec::register::Mnvda;
use hca_spec::{be32, put_be32};

use super::ethernet_reg;
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::personality::PortKind;
use crate::port::Port;

/// op_mod: write the register; 1 reads it.
const WRITE: u32 = 0;
/// Longest register: the data that is looked at and returned.
const MAX_REGISTER: usize = 0x10c;
/// Port registers: bits of the first word that hold the port.
const PORT_SHIFT: u32 = 16;

/// Least bytes of a register of a port of that kind, without the command's header.
fn length(register: u32, kind: PortKind) -> Option<usize> {
    let of_ethernet = ethernet_reg::length(register).filter(|_| kind == PortKind::Ethernet);
    Some(match register {
        _ if of_ethernet.is_some() => return of_ethernet,
        reg::HOST_ENDIANNESS | reg::PAOS => 0x10,
        reg::NODE_DESC => 0x40,
        reg::MNVDA => Mnvda::SIZE,
        _ if kind == PortKind::Ethernet => return None,
        reg::PMTU | reg::PVLC => 0x10,
        reg::PCAP => 0x14,
        reg::PTYS => 0x40,
        _ => return None,
    })
}

pub(super) fn access(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const UNKNOWN: Failure =
        bad_param("ACCESS_REGISTER: register_id: this adapter does not have the register");
    const READ_ONLY: Failure = bad_param("ACCESS_REGISTER: op_mod: the register can't be written");
    const WRITE_ONLY: Failure = bad_param("ACCESS_REGISTER: op_mod: the register can't be read");
    const SHORT: Failure =
        Failure::new(Status::BadInputLength, "ACCESS_REGISTER: the data is shorter than the register");
    const PORT: Failure = bad_param("ACCESS_REGISTER: local_port: the adapter has no such port");
    let register = call.view::<AccessRegIn>()?.get(AccessRegIn::REGISTER_ID);
    let kind = fw.config.port_kind;
    let least = length(register, kind).ok_or(UNKNOWN.got(register))?;
    let data = call.input.get(AccessRegIn::SIZE..).unwrap_or_default();
    // These have data of any length; of others, what is behind the register is not looked at.
    let open = matches!(register, reg::MCIA | reg::MNVDA);
    let len = if open { data.len().clamp(least, MAX_REGISTER) } else { least };
    let data = data.get(..len).ok_or(SHORT.of(register).got(data.len() as u64).least(len as u64))?;
    let of_a_port = matches!(register, reg::PCAP | reg::PMTU | reg::PVLC | reg::PTYS | reg::PAOS)
        || ethernet_reg::names_a_port(register);
    let port = if of_a_port { be32(data, 0) >> PORT_SHIFT & 0xff } else { 0 };
    let missing = PORT.of(register).got(port).limit(fw.ports.numbers().len() as u64);
    let number = fw.ports.named(port).ok_or(missing)?;
    let port = fw.ports.port_mut(number).ok_or(missing)?;
    let mut value = [0; MAX_REGISTER];
    value.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    match (register, call.op_mod == WRITE) {
        (_, write) if kind == PortKind::Ethernet && ethernet_reg::length(register).is_some() => {
            ethernet_reg::access(register, port, write, &mut value, effects)?;
        }
        // Commands are big-endian whatever the host is; the code only matters for inline data.
        (reg::HOST_ENDIANNESS, true) => {}
        (reg::HOST_ENDIANNESS, false) => return Err(WRITE_ONLY.of(register)),
        // Word 1: the port's capability bits.
        (reg::PCAP, true) => fw.ports.change_capabilities(number, u32::MAX, be32(data, 4)),
        (reg::PCAP, false) => put_be32(&mut value, 4, port.info().get(PortInfo::CAPABILITY_MASK)),
        (reg::NODE_DESC, true) => fw.ports.set_node_description(data),
        (reg::NODE_DESC, false) => {
            value.iter_mut().zip(port.node_description()).for_each(|(to, from)| *to = *from);
        }
        (reg::MNVDA, write) => fw.ports.settings.access(write, value.get_mut(..len).unwrap_or_default())?,
        (reg::PMTU, false) => port_mtu(port, &mut value),
        (reg::PVLC, false) => port_lanes(port, &mut value),
        (reg::PTYS, false) => port_type(port, &mut value),
        (reg::PAOS, write) => port_state(port, write, &mut value, effects)?,
        _ => return Err(READ_ONLY.of(register)),
    }
    let mut out = vec![0; AccessRegIn::SIZE];
    out.extend(value.iter().take(len));
    Ok(out)
}

/// PAOS: administrative state in bits 11..8 of word 0, operational state in bits 3..0. A write with bit 31
/// of word 1 set changes the former; every access tells both.
fn port_state(
    port: &mut Port,
    write: bool,
    value: &mut [u8],
    effects: &mut Vec<Effect>,
) -> Result<(), Failure> {
    const STATE: Failure = bad_param("PAOS: admin_status must be 1 (up), 2 (down) or 3 (up once)");
    const UP: u32 = 1;
    const DOWN: u32 = 2;
    const UP_ONCE: u32 = 3;
    const ADMIN_SHIFT: u32 = 8;
    const UPDATE: u32 = 1 << 31;
    let word = be32(value, 0);
    if write && be32(value, 4) & UPDATE != 0 {
        match word >> ADMIN_SHIFT & 0xf {
            UP | UP_ONCE => port.enable(effects),
            DOWN => port.disable(effects),
            other => return Err(STATE.got(other)),
        }
    }
    let state = |up| if up { UP } else { DOWN };
    let admin = state(!port.is_disabled());
    let operational = state(port.state != hca_spec::mad::port_state::DOWN);
    put_be32(value, 0, word & 0xffff_0000 | admin << ADMIN_SHIFT | operational);
    Ok(())
}

/// PMTU: largest, wanted and operational MTU in bytes, bits 31..16 of words 1 to 3.
fn port_mtu(port: &Port, value: &mut [u8]) {
    let info = port.info();
    let bytes = |code| hca_spec::qpc::mtu_bytes(code).unwrap_or(0) as u32;
    let (max, active) = (bytes(info.get(PortInfo::MTU_CAP)), bytes(info.get(PortInfo::NEIGHBOR_MTU)));
    for (word, mtu) in [(4, max), (8, active), (0xc, active)] {
        put_be32(value, word, mtu << 16);
    }
}

/// PVLC: lanes the hardware has, wanted and operational, in bits 3..0 of words 1 to 3.
fn port_lanes(port: &Port, value: &mut [u8]) {
    /// PortInfo's code of virtual lanes, as a number of lanes.
    fn lanes(code: u32) -> u32 {
        match code {
            0..=4 => 1 << code.saturating_sub(1),
            _ => 15,
        }
    }
    let info = port.info();
    put_be32(value, 4, lanes(info.get(PortInfo::VL_CAP)));
    put_be32(value, 8, lanes(info.get(PortInfo::OPERATIONAL_VLS)));
    put_be32(value, 0xc, lanes(info.get(PortInfo::OPERATIONAL_VLS)));
}

/// PTYS: widths (31..16) and speeds (15..0) that are supported (0x10), wanted (0x1c) and active (0x28).
fn port_type(port: &Port, value: &mut [u8]) {
    /// Speeds in this register: SDR, DDR, QDR, FDR10, FDR, EDR, HDR from bit 0 on.
    const VENDOR_SHIFT: u32 = 3;
    const EXTENDED_SHIFT: u32 = 4;
    let info = port.info();
    let (supported, enabled, vendor) = port.vendor_speeds();
    let capable = info.get(PortInfo::LINK_SPEED_SUPPORTED)
        | supported << VENDOR_SHIFT
        | info.get(PortInfo::LINK_SPEED_EXT_SUPPORTED) << EXTENDED_SHIFT;
    let wanted = info.get(PortInfo::LINK_SPEED_ENABLED)
        | enabled << VENDOR_SHIFT
        | info.get(PortInfo::LINK_SPEED_EXT_ENABLED) << EXTENDED_SHIFT;
    let active = match (info.get(PortInfo::LINK_SPEED_EXT_ACTIVE), vendor) {
        (0, 0) => info.get(PortInfo::LINK_SPEED_ACTIVE),
        (0, vendor) => vendor << VENDOR_SHIFT,
        (extended, _) => extended << EXTENDED_SHIFT,
    };
    put_be32(value, 0x10, info.get(PortInfo::LINK_WIDTH_SUPPORTED) << 16 | capable);
    put_be32(value, 0x1c, info.get(PortInfo::LINK_WIDTH_ENABLED) << 16 | wanted);
    put_be32(value, 0x28, info.get(PortInfo::LINK_WIDTH_ACTIVE) << 16 | active);
}

/// ACCESS_REGISTER: reads the node description.
pub(super) fn template(_: &Fixture) -> Vec<u8> {
    const READ: u32 = 1;
    let mut read = AccessRegIn::new();
    read.set(AccessRegIn::REGISTER_ID, reg::NODE_DESC);
    input(read.bytes(), READ, [0; 8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Answer, Bench};
    use crate::port::Link;
    use hca_spec::command::Opcode;
    use hca_spec::eqe::port_change;
    use hca_spec::mad::port_cap;

    fn register(b: &mut Bench, id: u32, write: bool, data: &[u8]) -> Answer {
        let mut body = vec![0; 8];
        body[2..4].copy_from_slice(&(id as u16).to_be_bytes());
        body.extend_from_slice(data);
        b.run(Opcode::AccessReg, u32::from(!write), &body, 16 + data.len())
    }

    /// The two writes without which the stock driver, or its connection manager, does not start.
    #[test]
    fn writes_of_the_driver() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        assert_eq!(register(&mut b, 0x7004, true, &[0x80; 16]).status(), Status::Ok);
        let mut pcap = [0; 0x14];
        pcap[1] = 1;
        pcap[4..8].copy_from_slice(&port_cap::CM.to_be_bytes());
        assert_eq!(register(&mut b, 0x5001, true, &pcap).status(), Status::Ok);
        let caps = b.fw.ports.ports[0].port.info().get(PortInfo::CAPABILITY_MASK);
        assert_eq!(caps & port_cap::CM, port_cap::CM);
        assert_ne!(caps & port_cap::EXTENDED_SPEEDS, 0, "what the hardware is can't be written away");
        pcap[1] = 2;
        assert_eq!(register(&mut b, 0x5001, true, &pcap).status(), Status::BadParam);
    }

    #[test]
    fn port_registers() {
        let mut b = Bench::initialized();
        b.fw.ports.set_link(1, Some(Link::default()), &mut Vec::new());
        let mut ptys = [0; 0x40];
        ptys[1] = 1;
        let r = register(&mut b, 0x5004, false, &ptys);
        // 4x EDR: width 2, speed bit 5.
        assert_eq!(r.output[16 + 0x28..16 + 0x2c], [0, 2, 0, 0x20]);
        let r = register(&mut b, 0x5003, false, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(r.output[16..], [0, 1, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 0, 0]);
        let r = register(&mut b, 0x500f, false, &[0; 16]);
        assert_eq!(r.output[16..], [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 8]);
        assert_eq!(register(&mut b, 0x5004, true, &ptys).status(), Status::BadParam);
    }

    #[test]
    fn port_can_be_switched_off_and_on() {
        let mut b = Bench::initialized();
        let states = |b: &mut Bench, words: [u32; 2]| {
            let data: Vec<u8> = [words[0], words[1], 0, 0].iter().flat_map(|w| w.to_be_bytes()).collect();
            let r = register(b, 0x5006, true, &data);
            assert_eq!(r.status(), Status::Ok);
            (r.output[18] & 0xf, r.output[19] & 0xf)
        };
        assert_eq!(states(&mut b, [1 << 16, 0]), (1, 2), "enabled, the link is not trained");
        b.fw.ports.set_link(1, Some(Link::default()), &mut Vec::new());
        assert_eq!(states(&mut b, [1 << 16, 0]), (1, 1));
        b.effects.clear();
        assert_eq!(states(&mut b, [1 << 16 | 2 << 8, 1 << 31]), (2, 2));
        assert_eq!(b.effects, [Effect::PortChange { port: 1, sub_type: port_change::DOWN }]);
        b.fw.ports.set_link(1, Some(Link::default()), &mut Vec::new());
        assert_eq!(states(&mut b, [1 << 16 | 1 << 8, 0]), (2, 2), "the update bit is not set");
        b.effects.clear();
        assert_eq!(states(&mut b, [1 << 16 | 1 << 8, 1 << 31]), (1, 2), "on, and not trained yet");
        assert_eq!(b.effects, [Effect::PortEnabled { port: 1 }]);
        b.fw.ports.set_link(1, Some(Link::default()), &mut Vec::new());
        assert_eq!(states(&mut b, [1 << 16, 0]), (1, 1));
        let bad = [1u32 << 16 | 9 << 8, 1 << 31, 0, 0].map(u32::to_be_bytes).concat();
        assert_eq!(register(&mut b, 0x5006, true, &bad).status(), Status::BadParam);
    }

    #[test]
    fn node_description() {
        let mut b = Bench::initialized();
        let mut text = [0; 0x40];
        text[..4].copy_from_slice(b"node");
        assert_eq!(register(&mut b, 0x6001, true, &text).status(), Status::Ok);
        assert_eq!(register(&mut b, 0x6001, false, &[0; 0x40]).output[16..], text);
    }

    /// A setting for the next start outlasts resets of all kinds.
    #[test]
    fn lasting_settings() {
        let mut b = Bench::initialized();
        let mut data = [0; 0x10c];
        data[6..8].copy_from_slice(&[0x01, 0x0a]);
        let r = register(&mut b, 0x9024, false, &data);
        assert_eq!((r.status(), r.output.len()), (Status::Ok, 16 + 0x10c));
        data.copy_from_slice(&r.output[16..]);
        data[0xf] |= 1;
        assert_eq!(register(&mut b, 0x9024, true, &data).status(), Status::Ok);
        b.fw.ports.reset();
        assert_eq!(register(&mut b, 0x9024, false, &data).output[16 + 0xf], 1);
        data[7] = 0x0b;
        assert_eq!(register(&mut b, 0x9024, false, &data).status(), Status::BadParam);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        assert_eq!(register(&mut b, 0xc00e, false, &[0; 64]).status(), Status::BadParam, "no such register");
        assert_eq!(register(&mut b, 0x7004, false, &[0; 16]).status(), Status::BadParam);
        assert_eq!(register(&mut b, 0x6001, true, &[0; 63]).status(), Status::BadInputLength);
        assert_eq!(register(&mut b, 0x6001, true, &[]).status(), Status::BadInputLength);
    }
}
