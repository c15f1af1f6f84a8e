//! RoCE addresses of a port. Source: PRM "SET_ROCE_ADDRESS", "QUERY_ROCE_ADDRESS"; mlx5 driver (how an entry is taken out).

use hca_spec::command::Status;
use hca_spec::ids::Gid;
use hca_spec::nic_vport::{
    QueryRoceAddressOut, ROCE_IPV4, ROCE_IPV6, ROCE_V1, ROCE_V2, RoceAddr, RoceAddressIn,
};

use super::call::{done, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::limits::ROCE_ADDRESSES;
use crate::port::{Mac, RoceAddress, RoceVersion};

/// The last VLAN (IEEE 802.1Q table 9-2).
const LAST_VLAN: u32 = 0xffe;

/// The port and the index that a command names.
fn place(fw: &Firmware, call: &Call<'_>) -> Result<(u8, u8), Failure> {
    const PORT: Failure = bad_param("ROCE_ADDRESS: vhca_port_num: the adapter has no such port");
    const INDEX: Failure = Failure::new(Status::BadIndex, "ROCE_ADDRESS: the index is beyond the table");
    let input = RoceAddressIn::from_prefix_or_zero(call.input);
    let (port, index) =
        (input.get(RoceAddressIn::VHCA_PORT_NUM), input.get(RoceAddressIn::ROCE_ADDRESS_INDEX));
    let number = fw.ports.named(port).ok_or(PORT.got(port).limit(fw.ports.numbers().len() as u64))?;
    let index = u8::try_from(index).map_err(|_| INDEX.got(index).limit(ROCE_ADDRESSES as u64))?;
    Ok((number, index))
}

/// An entry as a command brings it; `None`: it is taken out.
fn parse(address: &RoceAddr) -> Result<Option<RoceAddress>, Failure> {
    const VERSION: Failure = bad_param("SET_ROCE_ADDRESS: roce_version must be 0 (v1) or 2 (v2)");
    const LAYER_3: Failure = bad_param("SET_ROCE_ADDRESS: roce_l3_type must be 0 (IPv4) or 1 (IPv6)");
    const GROUP: Failure = bad_param("SET_ROCE_ADDRESS: source_mac is a group's");
    const VLAN: Failure = bad_param("SET_ROCE_ADDRESS: vlan_id is reserved");
    const GROUP_BIT: u8 = 1;
    let gid =
        Gid::new(address.get(RoceAddr::SOURCE_L3_ADDRESS_H), address.get(RoceAddr::SOURCE_L3_ADDRESS_L));
    let [_, _, mac @ ..] = (u64::from(address.get(RoceAddr::SOURCE_MAC_47_32)) << 32
        | u64::from(address.get(RoceAddr::SOURCE_MAC_31_0)))
    .to_be_bytes();
    if gid == Gid::default() && mac == Mac::default() {
        return Ok(None);
    }
    let version = match address.get(RoceAddr::ROCE_VERSION) {
        ROCE_V1 => RoceVersion::V1,
        ROCE_V2 => RoceVersion::V2,
        other => return Err(VERSION.got(other)),
    };
    let layer_3 = address.get(RoceAddr::ROCE_L3_TYPE);
    if layer_3 > ROCE_IPV6 {
        return Err(LAYER_3.got(layer_3));
    }
    if mac.first().is_some_and(|first| first & GROUP_BIT != 0) {
        return Err(GROUP);
    }
    let vlan = address.get(RoceAddr::VLAN_ID);
    let tagged = address.get(RoceAddr::VLAN_VALID) == 1;
    if tagged && vlan > LAST_VLAN {
        return Err(VLAN.got(vlan).limit(LAST_VLAN));
    }
    Ok(Some(RoceAddress {
        gid,
        mac,
        vlan: tagged.then_some(vlan as u16),
        version,
        // The GRH of version 1 has a GID, whatever that stands for.
        ipv4: version == RoceVersion::V2 && layer_3 == ROCE_IPV4,
    }))
}

pub(super) fn set(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let (number, index) = place(fw, call)?;
    let address = parse(call.view::<RoceAddressIn>()?.address())?;
    if let Some(port) = fw.ports.port_mut(number) {
        port.set_roce_address(index.into(), address);
    }
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let (number, index) = place(fw, call)?;
    let mut out = QueryRoceAddressOut::new();
    if let Some(address) = fw.ports.port(number).and_then(|port| port.roce_address(index)) {
        let to = out.address_mut();
        let gid = u128::from_be_bytes(address.gid.0);
        to.set(RoceAddr::SOURCE_L3_ADDRESS_H, (gid >> 64) as u64);
        to.set(RoceAddr::SOURCE_L3_ADDRESS_L, gid as u64);
        let [a, b, rest @ ..] = address.mac;
        to.set(RoceAddr::SOURCE_MAC_47_32, u16::from_be_bytes([a, b]).into());
        to.set(RoceAddr::SOURCE_MAC_31_0, u32::from_be_bytes(rest));
        to.set(RoceAddr::VLAN_VALID, address.vlan.is_some().into());
        to.set(RoceAddr::VLAN_ID, address.vlan.unwrap_or(0).into());
        let version = if address.version == RoceVersion::V1 { ROCE_V1 } else { ROCE_V2 };
        to.set(RoceAddr::ROCE_VERSION, version);
        to.set(RoceAddr::ROCE_L3_TYPE, if address.ipv4 { ROCE_IPV4 } else { ROCE_IPV6 });
    }
    Ok(reply(&out))
}

/// SET_ROCE_ADDRESS: 10.0.0.1, version 2.
pub(super) fn set_template(_: &Fixture) -> Vec<u8> {
    let mut set = RoceAddressIn::new();
    let address = set.address_mut();
    address.set(RoceAddr::SOURCE_L3_ADDRESS_L, 0xffff_0a00_0001).set(RoceAddr::SOURCE_MAC_31_0, 0xc9a0_0001);
    address.set(RoceAddr::ROCE_VERSION, ROCE_V2);
    set.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use hca_spec::command::Opcode;

    fn entry(index: u32) -> RoceAddressIn {
        let mut s = RoceAddressIn::new();
        s.set(RoceAddressIn::ROCE_ADDRESS_INDEX, index).set(RoceAddressIn::VHCA_PORT_NUM, 1);
        let a = s.address_mut();
        a.set(RoceAddr::SOURCE_L3_ADDRESS_H, 0xfe80 << 48).set(RoceAddr::SOURCE_L3_ADDRESS_L, 7);
        a.set(RoceAddr::SOURCE_MAC_47_32, 2).set(RoceAddr::SOURCE_MAC_31_0, 0xc9a0_0001);
        a.set(RoceAddr::VLAN_VALID, 1).set(RoceAddr::VLAN_ID, 5);
        a.set(RoceAddr::ROCE_VERSION, ROCE_V2).set(RoceAddr::ROCE_L3_TYPE, ROCE_IPV6);
        s
    }

    #[test]
    fn an_entry_comes_and_goes() {
        let mut b = Bench::initialized_with(ethernet());
        assert_eq!(b.put(Opcode::SetRoceAddress, &entry(3), 16).status(), Status::Ok);
        let port = b.fw.ports.port(1).unwrap();
        let address = *port.roce_address(3).unwrap();
        assert_eq!((address.mac, address.vlan, address.ipv4), ([0, 2, 0xc9, 0xa0, 0, 1], Some(5), false));
        assert_eq!((address.version, port.gid(3)), (RoceVersion::V2, Gid::new(0xfe80 << 48, 7)));
        assert_eq!(port.pkey(0), 0xffff);
        let r = b.run(Opcode::QueryRoceAddress, 0, &[0, 3, 0, 1, 0, 0, 0, 0], 0x30);
        assert_eq!(r.output[0x10..], entry(3).bytes()[0x10..]);
        let before = b.fw.ports.port(1).unwrap().addresses();
        let mut gone = RoceAddressIn::new();
        gone.set(RoceAddressIn::ROCE_ADDRESS_INDEX, 3).address_mut().set(RoceAddr::ROCE_VERSION, ROCE_V2);
        assert_eq!(b.put(Opcode::SetRoceAddress, &gone, 16).status(), Status::Ok);
        let port = b.fw.ports.port(1).unwrap();
        assert_eq!(port.roce_address(3), None);
        assert_ne!(port.addresses(), before, "routes are worked out again");
        let r = b.run(Opcode::QueryRoceAddress, 0, &[0, 3, 0, 1, 0, 0, 0, 0], 0x30);
        assert_eq!(r.output[0x10..], [0; 0x20]);
    }

    #[test]
    fn the_driver_takes_them_along() {
        let mut b = Bench::initialized_with(ethernet());
        assert_eq!(b.put(Opcode::SetRoceAddress, &entry(0), 16).status(), Status::Ok);
        b.ok(Opcode::TeardownHca, 0);
        b.ok(Opcode::DisableHca, 0);
        assert_eq!(b.fw.ports.port(1).unwrap().roce_address(0), None);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized_with(ethernet());
        assert_eq!(b.put(Opcode::SetRoceAddress, &entry(256), 16).status(), Status::BadIndex);
        let mut attempt = |change: fn(&mut RoceAddressIn)| {
            let mut s = entry(0);
            change(&mut s);
            b.put(Opcode::SetRoceAddress, &s, 16).status()
        };
        for change in [
            (|s| _ = s.set(RoceAddressIn::VHCA_PORT_NUM, 2)) as fn(&mut RoceAddressIn),
            |s| _ = s.address_mut().set(RoceAddr::ROCE_VERSION, 1),
            |s| _ = s.address_mut().set(RoceAddr::ROCE_L3_TYPE, 2),
            |s| _ = s.address_mut().set(RoceAddr::SOURCE_MAC_47_32, 0x0100),
            |s| _ = s.address_mut().set(RoceAddr::VLAN_ID, 0xfff),
        ] {
            assert_eq!(attempt(change), Status::BadParam);
        }
        assert_eq!(attempt(|s| _ = s.address_mut().set(RoceAddr::VLAN_ID, 0xffe)), Status::Ok);
        assert_eq!(b.put(Opcode::SetRoceAddress, &entry(255), 16).status(), Status::Ok);
    }
}
