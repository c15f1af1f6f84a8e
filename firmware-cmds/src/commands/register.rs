//! The registers, whoever accesses them: a driver by ACCESS_REGISTER ([`super::access_reg`]), tools by the ICMD mailbox
//! ([`super::icmd`]). Source: PRM "Registers". Those that only Ethernet ports have are in [`super::ethernet_reg`], those of
//! management in [`super::management_reg`], those of the tracer in
//! [`super::tracer_reg`].

use hca_spec::cmd::reg;
use hca_spec::command::Status;
use hca_spec::mad::PortInfo;
use hca_spec::module::Pmaos;
use hca_spec::port_counters::Ppcnt;
use hca_spec::register::{Mlcr, Pddr, Pplr, Ptys, Slrg, Sltp};
use hca_spec::{be32, put_be32};

use super::{counter_reg, crypto, dump_reg, ethernet_reg, management_reg, module_reg, pddr, tracer_reg};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::personality::PortKind;
use crate::port::Port;

/// Longest register of a port: the data that is looked at and returned.
const MAX_REGISTER: usize = 0x10c;
/// Port registers: bits of the first word that hold the port.
const PORT_SHIFT: u32 = 16;

/// Why an access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// There is no such register.
    Unknown(Failure),
    /// It can't be read, or not be written.
    Method(Failure),
    /// Of what was written, or asked for.
    Value(Failure),
}

impl From<Failure> for Denied {
    fn from(failure: Failure) -> Self {
        Self::Value(failure)
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Unknown(failure) | Denied::Method(failure) | Denied::Value(failure) => failure,
        }
    }
}

/// Whether an adapter with ports of that kind has the register.
pub(super) fn is_present(kind: PortKind, register: u32) -> bool {
    management_reg::is_one(register)
        || tracer_reg::is_one(register)
        || register == reg::RESOURCE_DUMP
        || length(register, kind).is_some()
}

/// Least bytes of a register of a port of that kind.
fn length(register: u32, kind: PortKind) -> Option<usize> {
    let of_ethernet = ethernet_reg::length(register).filter(|_| is_of_ethernet(register, kind));
    Some(match register {
        _ if of_ethernet.is_some() => return of_ethernet,
        reg::HOST_ENDIANNESS | reg::PAOS => 0x10,
        reg::NODE_DESC => 0x40,
        reg::PPCNT => Ppcnt::SIZE,
        reg::PMAOS => Pmaos::SIZE,
        reg::PPLR => Pplr::SIZE,
        reg::PDDR => Pddr::SIZE,
        reg::SLTP => Sltp::SIZE,
        reg::SLRG => Slrg::SIZE,
        reg::MLCR => Mlcr::SIZE,
        reg::MCIA => module_reg::LEAST,
        _ if kind == PortKind::Ethernet => return None,
        reg::PMTU | reg::PVLC => 0x10,
        reg::PCAP => 0x14,
        reg::PTYS => Ptys::SIZE,
        _ => return None,
    })
}

/// Whether a register of a port of that kind is what it is on Ethernet ports.
fn is_of_ethernet(register: u32, kind: PortKind) -> bool {
    kind == PortKind::Ethernet || register == reg::PMLP
}

/// Reads or writes a register: what came, and what goes back.
///
/// # Errors
/// Nothing has changed then.
pub(super) fn access(
    fw: &mut Firmware,
    register: u32,
    write: bool,
    data: &[u8],
    effects: &mut Vec<Effect>,
) -> Result<Vec<u8>, Denied> {
    const UNKNOWN: Failure =
        bad_param("ACCESS_REGISTER: register_id: this adapter does not have the register");
    const READ_ONLY: Failure = bad_param("ACCESS_REGISTER: op_mod: the register can't be written");
    const WRITE_ONLY: Failure = bad_param("ACCESS_REGISTER: op_mod: the register can't be read");
    const SHORT: Failure = Failure::new(
        Status::BadInputLength,
        "ACCESS_REGISTER: the data is shorter than the register that is written",
    );
    const PORT: Failure = bad_param("ACCESS_REGISTER: local_port: the adapter has no such port");
    if management_reg::is_one(register) {
        return management_reg::access(fw, register, write, data, effects);
    }
    if register == reg::RESOURCE_DUMP {
        return Ok(dump_reg::access(fw, data, effects)?);
    }
    if register == reg::CRYPTO_OPERATIONAL && crypto::has_encryption(fw) {
        return crypto::operational(fw, write, data);
    }
    if tracer_reg::is_one(register) {
        return tracer_reg::access(fw, register, write, data, effects);
    }
    let kind = fw.config.port_kind;
    let least = length(register, kind).ok_or(Denied::Unknown(UNKNOWN.got(register)))?;
    // This one has data of any length; of others, what is behind the register is not looked at.
    let open = register == reg::MCIA;
    let len = if open { data.len().clamp(least, MAX_REGISTER) } else { least };
    // Of a register that is read, what is missing is zero: drivers give as much of it as they have to say.
    if write && data.len() < len {
        return Err(SHORT.of(register).got(data.len() as u64).least(len as u64).into());
    }
    let mut whole = [0; MAX_REGISTER];
    whole.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    let data = whole.get(..len).unwrap_or_default();
    let of_a_port = matches!(
        register,
        reg::PCAP
            | reg::PMTU
            | reg::PVLC
            | reg::PTYS
            | reg::PAOS
            | reg::PPCNT
            | reg::PPLR
            | reg::PDDR
            | reg::SLTP
            | reg::SLRG
            | reg::MLCR
    ) || ethernet_reg::names_a_port(register);
    let port = if of_a_port { be32(data, 0) >> PORT_SHIFT & 0xff } else { 0 };
    let missing = PORT.of(register).got(port).limit(fw.ports.numbers().len() as u64);
    let number = fw.ports.named(port).ok_or(missing)?;
    let module = pddr::Cage::of(&fw.ports, number);
    let port = fw.ports.port_mut(number).ok_or(missing)?;
    let mut value = [0; MAX_REGISTER];
    value.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    match (register, write) {
        (_, write) if is_of_ethernet(register, kind) && ethernet_reg::length(register).is_some() => {
            ethernet_reg::access(register, port, write, &mut value, effects)?;
        }
        // Commands are big-endian whatever the host is; the code only matters for inline data.
        (reg::HOST_ENDIANNESS, true) => {}
        (reg::HOST_ENDIANNESS, false) => return Err(Denied::Method(WRITE_ONLY.of(register))),
        // Word 1: the port's capability bits.
        (reg::PCAP, true) => fw.ports.change_capabilities(number, u32::MAX, be32(data, 4)),
        (reg::PCAP, false) => put_be32(&mut value, 4, port.info().get(PortInfo::CAPABILITY_MASK)),
        (reg::NODE_DESC, true) => fw.ports.set_node_description(data),
        (reg::NODE_DESC, false) => {
            value.iter_mut().zip(port.node_description()).for_each(|(to, from)| *to = *from);
        }
        (reg::PPCNT, write) => counter_reg::access(port, write, &mut value)?,
        (reg::PDDR, false) => pddr::read(port, module, &mut value)?,
        (reg::PPLR, write) => way_back(write, &mut value)?,
        (reg::PMAOS, write) => module_reg::state(&fw.ports, write, &mut value)?,
        // The model has no transmitters and receivers: behind port and lane are zeros.
        (reg::MCIA, write) => module_reg::access(&fw.ports, write, value.get_mut(..len).unwrap_or_default())?,
        (reg::SLTP | reg::SLRG, false) => value.iter_mut().skip(4).for_each(|byte| *byte = 0),
        (reg::MLCR, write) => light(port, write, &mut value),
        (reg::PMTU, false) => port_mtu(port, &mut value),
        (reg::PVLC, false) => port_lanes(port, &mut value),
        (reg::PTYS, write) => ethernet_reg::on(port, write, &mut value, Port::access_modes)?,
        (reg::PAOS, write) => port_state(port, write, &mut value, effects)?,
        _ => return Err(Denied::Method(READ_ONLY.of(register))),
    }
    Ok(value.get(..len).unwrap_or_default().to_vec())
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

/// PPLR: no port leads its packets back by itself; a plug in its cage does.
fn way_back(write: bool, value: &mut [u8]) -> Result<(), Failure> {
    const NONE: Failure = bad_param("PPLR: lb_en must be 0: ports have no way back");
    let mut pplr = Pplr::from_prefix_or_zero(value);
    if write && pplr.get(Pplr::LB_EN) != 0 {
        return Err(NONE.got(pplr.get(Pplr::LB_EN)));
    }
    pplr.set(Pplr::LB_CAP, 0).set(Pplr::LB_EN, 0);
    value.iter_mut().zip(pplr.bytes()).for_each(|(to, from)| *to = *from);
    Ok(())
}

/// MLCR: the light shines as long as was said last. Nobody sees it, and the firmware has no clock: no time passes for it.
fn light(port: &mut Port, write: bool, value: &mut [u8]) {
    let mut mlcr = Mlcr::from_prefix_or_zero(value);
    if write {
        port.light = mlcr.get(Mlcr::BEACON_DURATION) as u16;
    }
    let seconds = port.light.into();
    mlcr.set(Mlcr::BEACON_DURATION, seconds).set(Mlcr::BEACON_REMAIN, seconds);
    value.iter_mut().zip(mlcr.bytes()).for_each(|(to, from)| *to = *from);
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
