//! UDP ports of VXLAN beside the usual one. Source: FreeBSD's mlx5 driver, Linux' (`lib/vxlan.c`), field use.
//!
//! By inference: a port that is there may be added again, and counts once; the usual one stays.

use hca_spec::cmd::VxlanUdpDportIn;
use hca_spec::ether::VXLAN_PORT;

use super::call::done;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::steering::MOST_VXLAN_PORTS;

fn port(call: &Call<'_>) -> Result<u16, Failure> {
    Ok(call.view::<VxlanUdpDportIn>()?.get(VxlanUdpDportIn::VXLAN_UDP_PORT) as u16)
}

/// Packets to one more port are looked into.
pub(super) fn add(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FULL: Failure = no_room("ADD_VXLAN_UDP_DPORT: there are as many ports as there can be");
    let port = port(call)?;
    fw.icm.steering.vxlan.add(port).ok_or(FULL.got(port).limit(MOST_VXLAN_PORTS as u32))?;
    Ok(done())
}

/// Those to a port that was added no more.
pub(super) fn delete(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DELETE_VXLAN_UDP_DPORT: vxlan_udp_port: nobody added it");
    let port = port(call)?;
    fw.icm.steering.vxlan.remove(port).ok_or(NONE.of(port))?;
    Ok(done())
}

/// The usual port.
pub(super) fn template(_: &Fixture) -> Vec<u8> {
    VxlanUdpDportIn::new().set(VxlanUdpDportIn::VXLAN_UDP_PORT, VXLAN_PORT.into()).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use crate::personality::PortKind;
    use crate::profile::Config;
    use hca_spec::command::{Opcode, Status};

    #[test]
    fn ports_come_and_go() {
        let config = Config { port_kind: PortKind::Ethernet, ..Config::default() };
        let mut b = Bench::initialized_with(config);
        let send = |b: &mut Bench, op: Opcode, port: u32| {
            let mut input = VxlanUdpDportIn::new();
            b.put(op, input.set(VxlanUdpDportIn::VXLAN_UDP_PORT, port), 16).status()
        };
        let ports = |b: &Bench| b.fw.icm.steering.vxlan.as_slice().to_vec();
        for port in [4789, 8472, 1, 8472, 65535] {
            assert_eq!(send(&mut b, Opcode::AddVxlanUdpDport, port), Status::Ok);
        }
        assert_eq!(ports(&b), [4789, 8472, 1, 65535]);
        assert_eq!(send(&mut b, Opcode::AddVxlanUdpDport, 2), Status::ExceedLimit);
        for (port, status) in
            [(1, Status::Ok), (1, Status::BadResource), (4789, Status::Ok), (0, Status::BadResource)]
        {
            assert_eq!(send(&mut b, Opcode::DeleteVxlanUdpDport, port), status, "{port}");
        }
        assert_eq!(ports(&b), [4789, 8472, 65535]);
        assert_eq!(send(&mut b, Opcode::AddVxlanUdpDport, 2), Status::Ok);
        b.ok(Opcode::TeardownHca, 0);
        assert_eq!(ports(&b), [4789]);
    }
}
