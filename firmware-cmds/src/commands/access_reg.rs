//! ACCESS_REGISTER: a driver's way to the registers ([`super::register`]). Source: PRM "ACCESS_REGISTER".

use hca_spec::cmd::{AccessRegIn, reg};

use super::fixture::{Fixture, input};
use super::register;
use super::row::{Call, Outcome};
use super::tracer_reg;
use crate::effect::Effect;
use crate::firmware::Firmware;

/// op_mod: write the register; 1 reads it.
const WRITE: u32 = 0;

pub(super) fn access(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    let register = call.view::<AccessRegIn>()?.get(AccessRegIn::REGISTER_ID);
    let data = call.input.get(AccessRegIn::SIZE..).unwrap_or_default();
    let value = register::access(fw, register, call.op_mod == WRITE, data, effects)?;
    let mut out = vec![0; AccessRegIn::SIZE];
    out.extend(value);
    Ok(out)
}

/// The register that a command is about, if accesses to it are traced.
pub(super) fn traced(input: &[u8]) -> Option<u32> {
    let register = AccessRegIn::from_prefix_or_zero(input).get(AccessRegIn::REGISTER_ID);
    tracer_reg::is_traced(register).then_some(register)
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
    use crate::commands::testing::{Bench, register};
    use crate::port::PortLink;
    use hca_spec::be32;
    use hca_spec::command::{Opcode, Status};
    use hca_spec::eqe::port_change;
    use hca_spec::mad::{PortInfo, port_cap};

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
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        let mut ptys = [0; 0x40];
        ptys[1] = 1;
        let r = register(&mut b, 0x5004, false, &ptys);
        // 4x EDR: width bit 2, speed bit 5.
        assert_eq!(r.output[16 + 0x28..16 + 0x2c], [0, 4, 0, 0x20]);
        let r = register(&mut b, 0x5003, false, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(r.output[16..], [0, 1, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 0, 0]);
        let r = register(&mut b, 0x500f, false, &[0; 16]);
        assert_eq!(r.output[16..], [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 8]);
        assert_eq!(register(&mut b, 0x5003, true, &[0; 16]).status(), Status::BadParam, "PMTU is read-only");
    }

    /// `ethtool -p`: the light is on, and off.
    #[test]
    fn the_light_of_a_port() {
        use crate::commands::testing::ethernet;
        use hca_spec::register::Mlcr;
        for mut b in [Bench::initialized(), Bench::initialized_with(ethernet())] {
            assert_eq!(b.fw.general_max.get(hca_spec::caps::General::BEACON_LED), 1);
            let said = |b: &mut Bench, write, port, duration| {
                let mut mlcr = Mlcr::new();
                mlcr.set(Mlcr::LOCAL_PORT, port).set(Mlcr::BEACON_DURATION, duration);
                let r = register(b, 0x902b, write, mlcr.bytes());
                let told = Mlcr::from_prefix_or_zero(r.output.get(16..).unwrap_or_default());
                (r.status(), told.get(Mlcr::BEACON_DURATION), told.get(Mlcr::BEACON_REMAIN))
            };
            for duration in [0xffff, 7, 0] {
                assert_eq!(said(&mut b, true, 1, duration), (Status::Ok, duration, duration));
                assert_eq!(said(&mut b, false, 1, 0), (Status::Ok, duration, duration));
            }
            assert_eq!(said(&mut b, true, 2, 7).0, Status::BadParam, "there is one port");
        }
    }

    /// PPLR: ports of both link layers have no way back, and take no wish for one.
    #[test]
    fn ports_have_no_way_back() {
        use crate::commands::testing::ethernet;
        use hca_spec::register::Pplr;
        for mut b in [Bench::initialized(), Bench::initialized_with(ethernet())] {
            let mut pplr = Pplr::new();
            pplr.set(Pplr::LOCAL_PORT, 1).set(Pplr::LB_CAP, 2);
            for write in [false, true] {
                let r = register(&mut b, 0x5018, write, pplr.bytes());
                assert_eq!((r.status(), &r.output[16..]), (Status::Ok, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
            }
            pplr.set(Pplr::LB_EN, 2);
            assert_eq!(register(&mut b, 0x5018, true, pplr.bytes()).status(), Status::BadParam);
        }
    }

    /// MCAM tells of parts of registers that are there: a map of sensors, and what power the slot gives.
    #[test]
    fn features_of_management() {
        use hca_spec::management::{Mpein, Mtcap};
        let mut b = Bench::initialized();
        let features = be32(&register(&mut b, 0x907f, false, &[0; 0x48]).output, 0x10 + 0x34);
        assert_eq!(features & (1 | 1 << 6 | 1 << 17), 1 | 1 << 6 | 1 << 17);
        let r = register(&mut b, 0x9009, false, &[0; Mtcap::SIZE]);
        assert_eq!(Mtcap::from_prefix_or_zero(&r.output[16..]).get(Mtcap::SENSOR_MAP), 1);
        let r = register(&mut b, 0x9050, false, &[0; Mpein::SIZE]);
        let mpein = Mpein::from_prefix_or_zero(&r.output[16..]);
        assert_eq!((mpein.get(Mpein::PWR_STATUS), mpein.get(Mpein::PCI_POWER)), (1, 25));
        assert_eq!(r.output[16 + 0x1c..16 + 0x20], [0, 0, 0, 25]);
    }

    /// PTYS of an InfiniBand port: what a boot loader does, which wants SDR and writes the rest back as it read it.
    #[test]
    fn a_host_chooses_speeds() {
        let mut b = Bench::initialized();
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        let mut ptys = [0; 0x40];
        ptys[1..4].copy_from_slice(&[1, 0, 1]);
        let read = register(&mut b, 0x5004, false, &ptys);
        ptys.copy_from_slice(&read.output[16..]);
        assert_eq!(ptys[0x10..0x14], [0, 5, 0, 0x3f], "1x and 4x, up to EDR");
        ptys[0x1e..0x20].copy_from_slice(&[0, 1]);
        let r = register(&mut b, 0x5004, true, &ptys);
        assert_eq!((r.status(), &r.output[16 + 0x1c..16 + 0x20]), (Status::Ok, &[0, 5, 0, 1][..]));
        b.fw.ports.set_link(1, None, &mut Vec::new());
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        let r = register(&mut b, 0x5004, false, &ptys);
        assert_eq!(r.output[16 + 0x28..16 + 0x2c], [0, 4, 0, 1], "4x SDR");
        ptys[0x1e..0x20].copy_from_slice(&[0, 0x40]);
        assert_eq!(register(&mut b, 0x5004, true, &ptys).status(), Status::BadParam, "no HDR");
        ptys[0x1e..0x20].copy_from_slice(&[0, 1]);
        ptys[3] = 4;
        assert_eq!(register(&mut b, 0x5004, true, &ptys).status(), Status::BadParam, "no Ethernet");
        b.fw.ports.reset();
        let r = register(&mut b, 0x5004, false, &ptys);
        assert_eq!(r.output[16 + 0x1c..16 + 0x20], [0, 5, 0, 0x3f], "a reset forgets it");
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
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        assert_eq!(states(&mut b, [1 << 16, 0]), (1, 1));
        b.effects.clear();
        assert_eq!(states(&mut b, [1 << 16 | 2 << 8, 1 << 31]), (2, 2));
        assert_eq!(b.effects, [Effect::PortChange { port: 1, sub_type: port_change::DOWN }]);
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        assert_eq!(states(&mut b, [1 << 16 | 1 << 8, 0]), (2, 2), "the update bit is not set");
        b.effects.clear();
        assert_eq!(states(&mut b, [1 << 16 | 1 << 8, 1 << 31]), (1, 2), "on, and not trained yet");
        assert_eq!(b.effects, [Effect::PortEnabled { port: 1 }]);
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
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
        // What is read may be asked for with less.
        let r = b.run(Opcode::AccessReg, 1, &[0, 0, 0x50, 0x06, 0, 0, 0, 0, 0, 1, 0, 0], 32);
        assert_eq!((r.status(), r.output.len()), (Status::Ok, 32));
    }
}
