//! The NIC virtual port: what the driver wants of it, its state, and what went wrong for the function.
//!
//! Source: PRM "QUERY_NIC_VPORT_CONTEXT", "MODIFY_NIC_VPORT_CONTEXT", "QUERY_VPORT_STATE", "MODIFY_VPORT_STATE"; the mlx5
//! driver for QUERY_VNIC_ENV.

use hca_spec::caps::General;
use hca_spec::command::Status;
use hca_spec::eqe::port_change;
use hca_spec::mad::{PortInfo, port_state};
use hca_spec::nic_vport::{
    MODIFY_LIST, ModifyNicVportContextIn, NicVportContext, QueryNicVportContextOut, QueryVnicEnvOut,
    QueryVportStateOut, VportIn, list_type, nic_vport_select as select,
};

use super::call::{done, reply};
use super::fixture::{Fixture, input};
use super::functions::has_roce;
use super::row::{Call, Outcome};
use super::vport::is_managers;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::nic::{AdminState, Promiscuous};
use crate::port::Mac;
use crate::port::ethernet::MAX_MTU;

/// Least room for QUERY_VNIC_ENV's output: up to the last counter; how much follows depends on the driver.
pub(super) const VNIC_ENV_LEN: usize = 0x58;
/// Bytes of an entry of a list.
const ENTRY: usize = 8;
/// The NIC virtual port and its port are those of the function: its first.
const PORT: u8 = 1;
const OTHER: Failure = bad_param("NIC_VPORT: other_vport: the adapter has no other functions");
const NO_ROCE: Failure =
    bad_param("NIC_VPORT: roce_en: the function has no RoCE: the physical function took it");
const LIST: Failure =
    bad_param("NIC_VPORT: allowed_list_type must be 0 (unicast), 1 (multicast) or 2 (VLAN)");

pub(super) fn own<'a>(fw: &Firmware, call: &Call<'a>) -> Result<&'a VportIn, Failure> {
    let vport = call.view::<VportIn>()?;
    let number = vport.get(VportIn::VPORT_NUMBER);
    match vport.get(VportIn::OTHER_VPORT) == 1 && !is_managers(fw, number) {
        false => Ok(vport),
        true => Err(OTHER.got(number)),
    }
}

/// An entry of a list: the address in its last six bytes.
fn mac_entry(mac: Mac) -> [u8; ENTRY] {
    let [a, b, c, d, e, f] = mac;
    [0, 0, a, b, c, d, e, f]
}

fn mac_of(entry: &[u8; ENTRY]) -> Mac {
    let [_, _, mac @ ..] = *entry;
    mac
}

/// A VLAN's entry: in the first word.
fn vlan_entry(vlan: u16) -> [u8; ENTRY] {
    let [a, b, c, d] = u32::from(vlan).to_be_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

fn vlan_of(entry: &[u8; ENTRY]) -> u16 {
    const VLAN: u16 = 0xfff;
    let [_, _, high, low, ..] = *entry;
    u16::from_be_bytes([high, low]) & VLAN
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let kind = own(fw, call)?.get(VportIn::ALLOWED_LIST_TYPE);
    let nic = &fw.nic;
    let list: Vec<[u8; ENTRY]> = match kind {
        list_type::UNICAST => nic.unicast.iter().map(|mac| mac_entry(*mac)).collect(),
        list_type::MULTICAST => nic.multicast.iter().map(|mac| mac_entry(*mac)).collect(),
        list_type::VLAN => nic.vlans.iter().map(|vlan| vlan_entry(*vlan)).collect(),
        other => return Err(LIST.got(other)),
    };
    let violations = fw.ports.port(PORT).map_or(0, |port| port.info().get(PortInfo::Q_KEY_VIOLATIONS));
    let mut out = QueryNicVportContextOut::new();
    let c = out.context_mut();
    c.set(NicVportContext::MIN_WQE_INLINE_MODE, nic.min_inline.into());
    c.set(NicVportContext::ROCE_EN, nic.roce_enabled.into()).set(NicVportContext::MTU, nic.mtu.into());
    c.set(NicVportContext::SYSTEM_IMAGE_GUID, fw.config.system_image_guid);
    c.set(NicVportContext::PORT_GUID, fw.config.guid_of_port(PORT));
    c.set(NicVportContext::NODE_GUID, fw.config.node_guid);
    c.set(NicVportContext::QKEY_VIOLATION_COUNTER, violations);
    c.set(NicVportContext::PROMISC_UC, nic.promiscuous.unicast.into());
    c.set(NicVportContext::PROMISC_MC, nic.promiscuous.multicast.into());
    c.set(NicVportContext::PROMISC_ALL, nic.promiscuous.all.into());
    c.set(NicVportContext::ALLOWED_LIST_TYPE, kind)
        .set(NicVportContext::ALLOWED_LIST_SIZE, list.len() as u32);
    let [a, b, rest @ ..] = nic.mac;
    c.set(NicVportContext::PERMANENT_ADDRESS_47_32, u16::from_be_bytes([a, b]).into());
    c.set(NicVportContext::PERMANENT_ADDRESS_31_0, u32::from_be_bytes(rest));
    let mut out = reply(&out);
    out.extend(list.iter().flatten());
    Ok(out)
}

/// What a MODIFY asks for that the adapter can't do.
fn refuse(bits: u32) -> Result<(), Failure> {
    const GUID: Failure =
        bad_param("MODIFY_NIC_VPORT: field_select: GUIDs can't be set (no capability announces it)");
    const EVENTS: Failure =
        bad_param("MODIFY_NIC_VPORT: change events are not raised (nic_vport_change_event)");
    const LOOPBACK: Failure = bad_param(
        "MODIFY_NIC_VPORT: loopback can't be switched off (disable_local_lb_uc, disable_local_lb_mc)",
    );
    const AFFILIATION: Failure =
        bad_param("MODIFY_NIC_VPORT: field_select: the port can't belong to another adapter's");
    const RESERVED: Failure = bad_param("MODIFY_NIC_VPORT: field_select has reserved bits");
    const KNOWN: u32 = select::ROCE_EN
        | select::ADDRESSES_LIST
        | select::PERMANENT_ADDRESS
        | select::PROMISC
        | select::MTU
        | select::MIN_INLINE;
    for (mask, refusal) in [
        (select::PORT_GUID | select::NODE_GUID, GUID),
        (select::CHANGE_EVENT, EVENTS),
        (select::DISABLE_MC_LOCAL_LB | select::DISABLE_UC_LOCAL_LB, LOOPBACK),
        (select::AFFILIATION, AFFILIATION),
        (!KNOWN, RESERVED),
    ] {
        if bits & mask != 0 {
            return Err(refusal.got(bits));
        }
    }
    Ok(())
}

/// The list that a MODIFY brings, if it is not too long.
fn list<'a>(fw: &Firmware, call: &Call<'a>, c: &NicVportContext) -> Result<&'a [[u8; ENTRY]], Failure> {
    const LONG: Failure =
        bad_param("MODIFY_NIC_VPORT: allowed_list_size is above the capability of its type");
    const SHORT: Failure =
        Failure::new(Status::BadInputLength, "MODIFY_NIC_VPORT: the list is shorter than allowed_list_size");
    let field = match c.get(NicVportContext::ALLOWED_LIST_TYPE) {
        list_type::UNICAST => General::LOG_MAX_CURRENT_UC_LIST,
        list_type::MULTICAST => General::LOG_MAX_CURRENT_MC_LIST,
        list_type::VLAN => General::LOG_MAX_VLAN_LIST,
        other => return Err(LIST.got(other)),
    };
    let (size, limit) = (c.get(NicVportContext::ALLOWED_LIST_SIZE), 1 << fw.general.get(field));
    if size > limit {
        return Err(LONG.got(size).limit(limit));
    }
    let (entries, _) = call.input.get(MODIFY_LIST..).unwrap_or_default().as_chunks::<ENTRY>();
    entries.get(..size as usize).ok_or(SHORT.got(entries.len() as u64).least(size))
}

/// The permanent address that a MODIFY brings.
fn permanent_address(c: &NicVportContext) -> Result<Mac, Failure> {
    const GROUP: Failure = bad_param("MODIFY_NIC_VPORT: permanent_address is that of a group");
    let [a, b] = (c.get(NicVportContext::PERMANENT_ADDRESS_47_32) as u16).to_be_bytes();
    let [d, e, f, g] = c.get(NicVportContext::PERMANENT_ADDRESS_31_0).to_be_bytes();
    if a & 1 == 1 {
        return Err(GROUP.got(u32::from(a)));
    }
    Ok([a, b, d, e, f, g])
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const MTU: Failure = bad_param("MODIFY_NIC_VPORT: mtu: it is above that of the port");
    const INLINE: Failure = bad_param("MODIFY_NIC_VPORT: min_wqe_inline_mode must be 0 to 3");
    const LAYER_4: u32 = 3;
    let modify = call.view::<ModifyNicVportContextIn>()?;
    own(fw, call)?;
    let (bits, c) = (modify.get(ModifyNicVportContextIn::FIELD_SELECT), modify.context());
    refuse(bits)?;
    let has = |bit| bits & bit != 0;
    let (mtu, inline) = (c.get(NicVportContext::MTU), c.get(NicVportContext::MIN_WQE_INLINE_MODE));
    if has(select::MTU) && mtu > MAX_MTU.into() {
        return Err(MTU.got(mtu).limit(MAX_MTU));
    }
    if has(select::ROCE_EN) && c.get(NicVportContext::ROCE_EN) == 1 && !has_roce(fw) {
        return Err(NO_ROCE.got(1u32));
    }
    if has(select::MIN_INLINE) && inline > LAYER_4 {
        return Err(INLINE.got(inline));
    }
    let address = if has(select::PERMANENT_ADDRESS) { Some(permanent_address(c)?) } else { None };
    let list = if has(select::ADDRESSES_LIST) { Some(list(fw, call, c)?) } else { None };
    let nic = &mut fw.nic;
    if has(select::ROCE_EN) {
        nic.roce_enabled = c.get(NicVportContext::ROCE_EN) == 1;
    }
    if has(select::PROMISC) {
        nic.promiscuous = Promiscuous {
            unicast: c.get(NicVportContext::PROMISC_UC) == 1,
            multicast: c.get(NicVportContext::PROMISC_MC) == 1,
            all: c.get(NicVportContext::PROMISC_ALL) == 1,
        };
    }
    if has(select::MTU) {
        nic.mtu = mtu as u16;
    }
    if let Some(address) = address {
        nic.mac = address;
    }
    if has(select::MIN_INLINE) {
        nic.min_inline = inline as u8;
    }
    if let Some(list) = list {
        match c.get(NicVportContext::ALLOWED_LIST_TYPE) {
            list_type::UNICAST => nic.unicast = list.iter().map(mac_of).collect(),
            list_type::MULTICAST => nic.multicast = list.iter().map(mac_of).collect(),
            _ => nic.vlans = list.iter().map(vlan_of).collect(),
        }
    }
    Ok(done())
}

/// op_mod of the commands about a state: the NIC virtual port.
const OF_VPORT: u32 = 0;
/// The same: the way out of the adapter.
const OF_UPLINK: u32 = 2;

/// What the driver is told of the virtual port: the administrator's will, and whether it is up.
fn state(fw: &Firmware) -> (AdminState, bool) {
    let link = fw.ports.port(PORT).is_some_and(|port| port.state == port_state::ACTIVE);
    let up = match fw.nic.admin {
        AdminState::Down => false,
        AdminState::Up => true,
        AdminState::Auto => link,
    };
    (fw.nic.admin, up)
}

pub(super) fn query_state(fw: &Firmware, call: &Call<'_>) -> Outcome {
    const WHOSE: Failure =
        bad_param("QUERY_VPORT_STATE: op_mod must be 0 (the virtual port) or 2 (the way out)");
    own(fw, call)?;
    let (admin, up) = match call.op_mod {
        OF_VPORT => state(fw),
        // The way out has no administrator of its own: uplink_follow is not announced.
        OF_UPLINK => {
            let link = fw.ports.port(PORT).is_some_and(|port| port.state == port_state::ACTIVE);
            (AdminState::Auto, link)
        }
        other => return Err(WHOSE.got(other)),
    };
    let mut out = QueryVportStateOut::new();
    out.set(QueryVportStateOut::ADMIN_STATE, admin as u32).set(QueryVportStateOut::STATE, up.into());
    Ok(reply(&out))
}

pub(super) fn modify_state(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const WHOSE: Failure =
        bad_param("MODIFY_VPORT_STATE: op_mod must be 0: the way out can't be set (uplink_follow)");
    const STATE: Failure = bad_param("MODIFY_VPORT_STATE: admin_state must be 0 (down), 1 (up) or 2 (auto)");
    let vport = own(fw, call)?;
    if call.op_mod != OF_VPORT {
        return Err(WHOSE.got(call.op_mod));
    }
    let admin = match vport.get(VportIn::ADMIN_STATE) {
        0 => AdminState::Down,
        1 => AdminState::Up,
        2 => AdminState::Auto,
        other => return Err(STATE.got(other)),
    };
    let before = state(fw).1;
    fw.nic.admin = admin;
    let now = state(fw).1;
    if now != before {
        let sub_type = if now { port_change::ACTIVE } else { port_change::DOWN };
        effects.push(Effect::VportChange { port: PORT, sub_type });
    }
    Ok(done())
}

/// Counters of what the capabilities announce; the others are zero.
pub(super) fn query_environment(fw: &Firmware, call: &Call<'_>) -> Outcome {
    own(fw, call)?;
    let counters = fw.ports.port(PORT).and_then(|port| port.ethernet()).map(|eth| eth.counters);
    let mut out = QueryVnicEnvOut::new();
    let discards = counters.map_or(0, |c| c.steering_discards);
    out.set(QueryVnicEnvOut::NIC_RECEIVE_STEERING_DISCARD, discards);
    out.set(QueryVnicEnvOut::RECEIVE_DISCARD_VPORT_DOWN, fw.nic.received_down);
    out.set(QueryVnicEnvOut::TRANSMIT_DISCARD_VPORT_DOWN, fw.nic.sent_down);
    Ok(reply(&out))
}

/// MODIFY_NIC_VPORT_CONTEXT: the MTU, and no unicast addresses.
pub(super) fn modify_template(_: &Fixture) -> Vec<u8> {
    let mut modify = ModifyNicVportContextIn::new();
    modify.set(ModifyNicVportContextIn::FIELD_SELECT, select::MTU | select::ADDRESSES_LIST);
    modify.context_mut().set(NicVportContext::MTU, 1522);
    modify.bytes().to_vec()
}

/// MODIFY_VPORT_STATE: as the link.
pub(super) fn modify_state_template(_: &Fixture) -> Vec<u8> {
    input(VportIn::new().set(VportIn::ADMIN_STATE, AdminState::Auto as u32).bytes(), OF_VPORT, [])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use crate::port::PortLink;
    use crate::{Config, Personality};
    use hca_spec::be64;
    use hca_spec::caps::EthernetOffloads;
    use hca_spec::command::Opcode;

    fn query(b: &mut Bench, kind: u32) -> (NicVportContext, Vec<u8>) {
        let mut q = VportIn::new();
        q.set(VportIn::ALLOWED_LIST_TYPE, kind);
        let r = b.put(Opcode::QueryNicVportContext, &q, 0x1000);
        assert_eq!(r.status(), Status::Ok);
        let out = QueryNicVportContextOut::from_prefix_or_zero(&r.output);
        (*out.context(), r.output[0x110..].to_vec())
    }

    fn modify(bits: u32) -> ModifyNicVportContextIn {
        let mut m = ModifyNicVportContextIn::new();
        m.set(ModifyNicVportContextIn::FIELD_SELECT, bits);
        m
    }

    #[test]
    fn the_address_is_made_of_the_guid() {
        let mut b = Bench::initialized_with(ethernet());
        let r = b.object_into(Opcode::QueryNicVportContext, 0, 0x110);
        assert_eq!(r.output[0x106..0x10c], [0, 2, 0xc9, 0xa0, 0, 1], "of 0002:c903:00a0:0001");
        assert_eq!(be64(&r.output, 0x48), b.fw.config.node_guid);
        assert_eq!(b.fw.ports.port(1).unwrap().ethernet().unwrap().mac, b.fw.nic.mac);
        let config = crate::Config { port_guid: u64::MAX, ..ethernet() };
        assert_eq!(config.mac_of_port(1)[0], 0xfe, "never a group's");
    }

    #[test]
    fn lists_are_replaced() {
        let mut b = Bench::initialized_with(ethernet());
        let mut m = modify(select::ADDRESSES_LIST);
        for (kind, entries) in [
            (list_type::UNICAST, vec![0x0000_0002_c9a0_0001, 0x0000_0200_0000_0007]),
            (list_type::MULTICAST, vec![0x0000_3333_0000_0001]),
            (list_type::VLAN, vec![0x0000_0005 << 32, 0x0000_0ffe << 32]),
        ] {
            let c = m.context_mut();
            c.set(NicVportContext::ALLOWED_LIST_TYPE, kind);
            c.set(NicVportContext::ALLOWED_LIST_SIZE, entries.len() as u32);
            assert_eq!(b.put_list(Opcode::ModifyNicVportContext, &m, &entries).status(), Status::Ok);
            let (context, list) = query(&mut b, kind);
            assert_eq!(context.get(NicVportContext::ALLOWED_LIST_SIZE) as usize, entries.len());
            let expected: Vec<u8> = entries.iter().flat_map(|e| e.to_be_bytes()).collect();
            assert_eq!(list, expected);
        }
        assert_eq!((b.fw.nic.unicast.len(), b.fw.nic.multicast.len()), (2, 1));
        assert_eq!(b.fw.nic.vlans, [5, 0xffe]);
        let c = m.context_mut();
        c.set(NicVportContext::ALLOWED_LIST_TYPE, list_type::UNICAST);
        c.set(NicVportContext::ALLOWED_LIST_SIZE, 0);
        assert_eq!(b.put_list(Opcode::ModifyNicVportContext, &m, &[]).status(), Status::Ok);
        assert_eq!((b.fw.nic.unicast.len(), b.fw.nic.multicast.len()), (0, 1));
        m.context_mut().set(NicVportContext::ALLOWED_LIST_SIZE, 2);
        let short = b.put_list(Opcode::ModifyNicVportContext, &m, &[1]);
        assert_eq!(short.status(), Status::BadInputLength);
        m.context_mut().set(NicVportContext::ALLOWED_LIST_SIZE, 129);
        let long = b.put_list(Opcode::ModifyNicVportContext, &m, &[1; 129]);
        assert_eq!(long.status(), Status::BadParam);
        m.context_mut().set(NicVportContext::ALLOWED_LIST_TYPE, 3).set(NicVportContext::ALLOWED_LIST_SIZE, 0);
        assert_eq!(b.put_list(Opcode::ModifyNicVportContext, &m, &[]).status(), Status::BadParam);
        assert_eq!(
            b.put(
                Opcode::QueryNicVportContext,
                &VportIn::from_prefix_or_zero(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]),
                0x110
            )
            .status(),
            Status::BadParam
        );
    }

    #[test]
    fn only_what_is_selected_changes() {
        let mut b = Bench::initialized_with(ethernet());
        let mut m = modify(select::ROCE_EN);
        let c = m.context_mut();
        c.set(NicVportContext::ROCE_EN, 1)
            .set(NicVportContext::MTU, 9022)
            .set(NicVportContext::PROMISC_ALL, 1);
        c.set(NicVportContext::MIN_WQE_INLINE_MODE, 3);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::Ok);
        let (c, _) = query(&mut b, 0);
        assert_eq!((c.get(NicVportContext::ROCE_EN), c.get(NicVportContext::MTU)), (1, 0));
        assert_eq!(c.get(NicVportContext::MIN_WQE_INLINE_MODE), 1, "layer 2");
        m.set(ModifyNicVportContextIn::FIELD_SELECT, select::MTU | select::PROMISC | select::MIN_INLINE);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::Ok);
        let (c, _) = query(&mut b, 0);
        assert_eq!((c.get(NicVportContext::MTU), c.get(NicVportContext::PROMISC_ALL)), (9022, 1));
        assert_eq!(c.get(NicVportContext::MIN_WQE_INLINE_MODE), 3);
        assert!(b.fw.nic.promiscuous.all && !b.fw.nic.promiscuous.multicast);
        // Its driver is gone.
        b.ok(Opcode::DisableHca, 0);
        assert_eq!((b.fw.nic.roce_enabled, b.fw.nic.mtu), (false, 0));
    }

    /// A ConnectX-4 refers to the virtual port, which says layer 2; later kinds need no headers inline.
    #[test]
    fn headers_inline_by_kind() {
        for (kind, mode, headers) in [("connectx4", 1, 1), ("connectx5", 2, 0), ("connectx6dx", 2, 0)] {
            let personality = Personality::named(kind).expect("a kind");
            let offloads = &personality.capabilities.ethernet.offloads;
            assert_eq!(offloads.get(EthernetOffloads::WQE_INLINE_MODE), mode, "{kind}");
            let mut b = Bench::initialized_with(Config { personality, ..ethernet() });
            let (c, _) = query(&mut b, 0);
            assert_eq!(c.get(NicVportContext::MIN_WQE_INLINE_MODE), headers, "{kind}");
        }
    }

    /// The function manages virtual ports: number 0 is its own, and it sets its address.
    #[test]
    fn a_manager_of_virtual_ports() {
        let mut b = Bench::initialized_with(ethernet());
        let mut m = modify(select::PERMANENT_ADDRESS);
        m.set(ModifyNicVportContextIn::OTHER_VPORT, 1);
        m.context_mut().set(NicVportContext::PERMANENT_ADDRESS_47_32, 0x0201);
        m.context_mut().set(NicVportContext::PERMANENT_ADDRESS_31_0, 0x0304_0506);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::Ok);
        assert_eq!(b.fw.nic.mac, [2, 1, 3, 4, 5, 6]);
        let mut q = VportIn::new();
        q.set(VportIn::OTHER_VPORT, 1);
        for op in [Opcode::QueryNicVportContext, Opcode::QueryVportState, Opcode::QueryVnicEnv] {
            assert_eq!(b.put(op, &q, 0x210).status(), Status::Ok, "{op:?}");
        }
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized_with(ethernet());
        for bit in [0, 5, 8, 9, 10, 11, 12, 13, 14, 31] {
            let status = b.put(Opcode::ModifyNicVportContext, &modify(1 << bit), 16).status();
            assert_eq!(status, Status::BadParam, "bit {bit}");
        }
        let mut m = modify(select::MTU | select::ROCE_EN);
        m.context_mut().set(NicVportContext::MTU, 10_001).set(NicVportContext::ROCE_EN, 1);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::BadParam);
        assert!(!b.fw.nic.roce_enabled, "a refusal changes nothing");
        m = modify(select::MIN_INLINE);
        m.context_mut().set(NicVportContext::MIN_WQE_INLINE_MODE, 4);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::BadParam);
        m = modify(0);
        m.set(ModifyNicVportContextIn::OTHER_VPORT, 1).set(ModifyNicVportContextIn::VPORT_NUMBER, 1);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::BadParam);
        m = modify(select::PERMANENT_ADDRESS);
        m.context_mut().set(NicVportContext::PERMANENT_ADDRESS_47_32, 0x0102);
        assert_eq!(b.put(Opcode::ModifyNicVportContext, &m, 16).status(), Status::BadParam);
        let mut q = VportIn::new();
        q.set(VportIn::OTHER_VPORT, 1).set(VportIn::VPORT_NUMBER, 1);
        for op in [Opcode::QueryNicVportContext, Opcode::QueryVportState, Opcode::QueryVnicEnv] {
            assert_eq!(b.put(op, &q, 0x210).status(), Status::BadParam, "{op:?}");
        }
    }

    #[test]
    fn state_follows_the_link() {
        let mut b = Bench::initialized_with(ethernet());
        let state = |b: &mut Bench, op_mod| b.run(Opcode::QueryVportState, op_mod, &[], 16).output[0xf];
        assert_eq!((state(&mut b, 0), state(&mut b, 2)), (0x20, 0x20));
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        assert_eq!((state(&mut b, 0), state(&mut b, 2)), (0x21, 0x21));
        let set = |b: &mut Bench, op_mod, admin: u8| {
            b.run(Opcode::ModifyVportState, op_mod, &[0, 0, 0, 0, 0, 0, 0, admin << 4], 16).status()
        };
        b.effects.clear();
        assert_eq!((set(&mut b, 0, 2), b.effects.len()), (Status::Ok, 0), "as it was");
        assert_eq!(set(&mut b, 0, 0), Status::Ok);
        assert_eq!((state(&mut b, 0), state(&mut b, 2)), (0x00, 0x21));
        assert_eq!(b.effects, [Effect::VportChange { port: 1, sub_type: port_change::DOWN }]);
        b.effects.clear();
        assert_eq!(set(&mut b, 0, 1), Status::Ok);
        assert_eq!(b.effects, [Effect::VportChange { port: 1, sub_type: port_change::ACTIVE }]);
        b.fw.ports.set_link(1, None, &mut Vec::new());
        assert_eq!((state(&mut b, 0), state(&mut b, 2)), (0x11, 0x20));
        assert_eq!((set(&mut b, 0, 3), set(&mut b, 2, 2)), (Status::BadParam, Status::BadParam));
        assert_eq!(b.run(Opcode::QueryVportState, 1, &[], 16).status(), Status::BadParam);
    }

    #[test]
    fn environment() {
        let mut b = Bench::initialized_with(ethernet());
        b.fw.ports.port_mut(1).unwrap().ethernet_mut().unwrap().counters.steering_discards = 7;
        (b.fw.nic.received_down, b.fw.nic.sent_down) = (8, 9);
        let r = b.run(Opcode::QueryVnicEnv, 0, &[], 0x20c);
        assert_eq!((r.status(), be64(&r.output, 0x20), r.output.len()), (Status::Ok, 7, 0x20c));
        assert_eq!((be64(&r.output, 0x28), be64(&r.output, 0x30)), (8, 9));
    }
}
