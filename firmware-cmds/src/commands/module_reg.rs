//! What is in a cage, whichever link layer its port has: its memory (MCIA), and its state (PMAOS). Source: PRM "MCIA", "PMAOS"; the mlx5
//! driver (`port.c`), illumos' mlxcx and mstflint (`mlxlink`) for what they read; [`crate::module`] for the memory.

use hca_spec::cmd::reg;
use hca_spec::module::{ADMIN_ENABLED, EVENTS_ALWAYS, Pmaos};
use hca_spec::register::{MCIA_DATA, Mcia, mcia_status};

use crate::failure::{Failure, bad_param};
use crate::module::Module;
use crate::ports::Ports;

/// Bytes that every driver brings: room for 48 of the memory. Newer ones have room for more.
pub(super) const LEAST: usize = 0x40;
/// Most of the memory that is read at once.
const MOST: usize = 128;
/// The address of modules with one memory on their bus, as bits 7 to 1 of its first byte.
const ADDRESS: u32 = 0x50;

/// Reads it: `value` is what came and what goes back. What the module does not tell is said by the status.
pub(super) fn access(ports: &Ports, write: bool, value: &mut [u8]) -> Result<(), Failure> {
    const READ_ONLY: Failure = bad_param("MCIA: op_mod: the memory of cables can't be written");
    const MODULE: Failure = bad_param("MCIA: module: the adapter has no such cage");
    const LENGTH: Failure =
        bad_param("MCIA: size: more than is read at once, or than the register has room for");
    if write {
        return Err(READ_ONLY.of(reg::MCIA));
    }
    let mut head = Mcia::from_prefix_or_zero(value);
    let cages = ports.numbers().len() as u64;
    let module = head.get(Mcia::MODULE);
    let module = ports.in_cage(module).ok_or(MODULE.got(module).limit(cages.saturating_sub(1)))?;
    let (from, wanted) = (head.get(Mcia::DEVICE_ADDRESS) as usize, head.get(Mcia::LENGTH) as usize);
    let room = value.len().saturating_sub(MCIA_DATA).min(MOST);
    if wanted > room {
        return Err(LENGTH.got(wanted as u64).limit(room as u64));
    }
    let memory = module.memory();
    let part = memory.as_ref().and_then(|memory| memory.get(from..)?.get(..wanted));
    let status = match (module, part) {
        (Module::Empty, _) => mcia_status::NOT_CONNECTED,
        (Module::Stuck, _) => mcia_status::BUS_ERROR,
        (Module::Loopback, _) => mcia_status::NO_MEMORY,
        (Module::Copper(_), Some(_)) if head.get(Mcia::I2C_DEVICE_ADDRESS) == ADDRESS => mcia_status::GOOD,
        (Module::Copper(_), _) => mcia_status::BUS_ERROR,
    };
    head.set(Mcia::STATUS, status);
    let part = part.filter(|_| status == mcia_status::GOOD).unwrap_or_default();
    let (front, data) = value.split_at_mut_checked(MCIA_DATA).unwrap_or_default();
    front.iter_mut().zip(head.bytes()).for_each(|(to, from)| *to = *from);
    data.fill(0);
    data.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
    Ok(())
}

/// Reads or writes PMAOS: `value` is what came and what goes back. Events of modules are told always, whatever is chosen.
pub(super) fn state(ports: &Ports, write: bool, value: &mut [u8]) -> Result<(), Failure> {
    const MODULE: Failure = bad_param("PMAOS: module: the adapter has no such cage");
    const POWER: Failure = bad_param("PMAOS: admin_status, rst: modules can't be switched off or reset");
    let head = Pmaos::from_prefix_or_zero(value);
    let cages = ports.numbers().len() as u64;
    let module = head.get(Pmaos::MODULE);
    let (status, error) =
        ports.state_of_module(module).ok_or(MODULE.got(module).limit(cages.saturating_sub(1)))?;
    let wanted = head.get(Pmaos::ADMIN_STATUS);
    let changes = head.get(Pmaos::ASE) == 1 && wanted != ADMIN_ENABLED;
    if write && (changes || head.get(Pmaos::RST) == 1) {
        return Err(POWER.got(wanted).limit(ADMIN_ENABLED));
    }
    let mut out = Pmaos::new();
    out.set(Pmaos::MODULE, module).set(Pmaos::ADMIN_STATUS, ADMIN_ENABLED).set(Pmaos::OPER_STATUS, status);
    out.set(Pmaos::ERROR_TYPE, error).set(Pmaos::E, EVENTS_ALWAYS);
    value.iter_mut().zip(out.bytes()).for_each(|(to, from)| *to = *from);
    Ok(())
}

#[cfg(test)]
mod tests {
    use hca_spec::cmd::reg;
    use hca_spec::command::Status;
    use hca_spec::eqe::{module_error, module_status};
    use hca_spec::layout::Field;
    use hca_spec::module::Pmaos;
    use hca_spec::register::{Mcia, mcia_status};

    use super::super::testing::{Bench, ethernet, register};
    use crate::module::{Copper, Module};
    use crate::port::PortLink;

    fn request(module: u32, from: u32, length: u32, len: usize) -> Vec<u8> {
        let mut head = Mcia::new();
        head.set(Mcia::MODULE, module).set(Mcia::I2C_DEVICE_ADDRESS, super::ADDRESS);
        head.set(Mcia::DEVICE_ADDRESS, from).set(Mcia::LENGTH, length);
        let mut data = head.bytes().to_vec();
        data.resize(len, 0xff);
        data
    }

    /// On ports of both link layers, by old drivers and new ones.
    #[test]
    fn what_is_in_the_cage() {
        for mut b in [Bench::initialized(), Bench::initialized_with(ethernet())] {
            let cable = Copper { most: PortLink::default(), metres: 1, serial: 7 };
            for (module, status) in [
                (Module::Loopback, mcia_status::NO_MEMORY),
                (Module::Empty, mcia_status::NOT_CONNECTED),
                (Module::Stuck, mcia_status::BUS_ERROR),
                (Module::Copper(cable), mcia_status::GOOD),
            ] {
                b.fw.ports.put_in_cage(1, module);
                for (len, size) in [(0x40, 48), (0x90, 128)] {
                    let r = register(&mut b, reg::MCIA, false, &request(0, 128, size, len));
                    assert_eq!((r.status(), r.output.len()), (Status::Ok, 16 + len));
                    assert_eq!(u32::from(r.output[19]), status);
                    let vendor = if status == mcia_status::GOOD { b"softhca" } else { &[0; 7] };
                    assert_eq!(r.output[0x20 + 20..][..7], *vendor);
                }
            }
        }
    }

    /// PMAOS, on ports of both link layers; of what was put in last.
    #[test]
    fn state_of_what_is_in_the_cage() {
        let cable = Copper { most: PortLink::default(), metres: 1, serial: 7 };
        for mut b in [Bench::initialized(), Bench::initialized_with(ethernet())] {
            for (module, trouble, state) in [
                (Module::Loopback, None, (module_status::PLUGGED, 0)),
                (Module::Copper(cable), None, (module_status::PLUGGED, 0)),
                (Module::Empty, None, (module_status::UNPLUGGED, 0)),
                (Module::Stuck, None, (module_status::ERROR, module_error::BUS_STUCK)),
                (Module::Copper(cable), Some(6), (module_status::ERROR, module_error::HIGH_TEMPERATURE)),
                (Module::Empty, Some(6), (module_status::UNPLUGGED, 0)),
            ] {
                b.fw.ports.put_in_cage(1, module);
                b.fw.ports.set_module_trouble(1, trouble);
                let r = register(&mut b, reg::PMAOS, false, &[0; 0x10]);
                let told = Pmaos::from_prefix_or_zero(&r.output[16..]);
                assert_eq!((r.status(), r.output.len()), (Status::Ok, 16 + 0x10));
                assert_eq!((told.get(Pmaos::OPER_STATUS), told.get(Pmaos::ERROR_TYPE)), state);
                assert_eq!((told.get(Pmaos::ADMIN_STATUS), told.get(Pmaos::E)), (1, 1));
            }
        }
    }

    #[test]
    fn modules_are_always_on() {
        let mut b = Bench::initialized();
        let mut ask = |write, set: &[(Field<Pmaos>, u32)]| {
            let mut p = Pmaos::new();
            set.iter().for_each(|(field, value)| _ = p.set(*field, *value));
            register(&mut b, reg::PMAOS, write, p.bytes()).status()
        };
        assert_eq!(ask(false, &[(Pmaos::MODULE, 1)]), Status::BadParam, "there is one cage");
        assert_eq!(ask(true, &[(Pmaos::ADMIN_STATUS, 2)]), Status::Ok, "nothing is changed");
        assert_eq!(ask(true, &[(Pmaos::ADMIN_STATUS, 1), (Pmaos::ASE, 1)]), Status::Ok, "it is so");
        assert_eq!(ask(true, &[(Pmaos::ADMIN_STATUS, 2), (Pmaos::ASE, 1)]), Status::BadParam);
        assert_eq!(ask(true, &[(Pmaos::ADMIN_STATUS, 3), (Pmaos::ASE, 1)]), Status::BadParam);
        assert_eq!(ask(true, &[(Pmaos::RST, 1)]), Status::BadParam);
        assert_eq!(ask(true, &[(Pmaos::EE, 1), (Pmaos::E, 0)]), Status::Ok, "events are told all the same");
    }

    #[test]
    fn refused() {
        let mut b = Bench::initialized();
        let cable = Copper { most: PortLink::default(), metres: 1, serial: 7 };
        b.fw.ports.put_in_cage(1, Module::Copper(cable));
        let mut ask = |data: &[u8], write| {
            let r = register(&mut b, reg::MCIA, write, data);
            (r.status(), u32::from(r.output.get(19).copied().unwrap_or_default()))
        };
        assert_eq!(ask(&request(1, 0, 1, 0x40), false).0, Status::BadParam, "there is one cage");
        assert_eq!(ask(&request(0, 0, 49, 0x40), false).0, Status::BadParam, "no room");
        assert_eq!(ask(&request(0, 0, 129, 0x100), false).0, Status::BadParam, "too much at once");
        assert_eq!(ask(&request(0, 0, 1, 0x40), true).0, Status::BadParam, "read only");
        assert_eq!(ask(&request(0, 255, 1, 0x40), false), (Status::Ok, mcia_status::GOOD));
        assert_eq!(ask(&request(0, 255, 2, 0x40), false), (Status::Ok, mcia_status::BUS_ERROR));
        let mut other = request(0, 0, 1, 0x40);
        other[4] = 0x51;
        assert_eq!(ask(&other, false), (Status::Ok, mcia_status::BUS_ERROR), "no second memory");
    }
}
