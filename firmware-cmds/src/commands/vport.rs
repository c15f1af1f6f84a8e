//! Virtual port queries. The adapter has one function, so that the virtual ports *are* its ports.
//!
//! Source: PRM "QUERY_HCA_VPORT_CONTEXT", "MODIFY_HCA_VPORT_CONTEXT", "QUERY_HCA_VPORT_GID",
//! "QUERY_HCA_VPORT_PKEY", "QUERY_VPORT_COUNTER"; field places from the mlx5 driver's use.

use std::ops::Range;

use hca_spec::caps::General;
use hca_spec::cmd::{QueryHcaVportContextOut as Context, QueryHcaVportIn, QueryVportCounterIn};
use hca_spec::command::Status;
use hca_spec::mad::PortInfo;
use hca_spec::{put_be32, put_be64};

use super::call::{done, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::limits::{GUIDS, PKEYS};
use crate::port::ethernet::DirectionCounters;
use crate::port::{EthernetCounters, Port, SETTABLE_CAPABILITIES};

/// Length of MODIFY_HCA_VPORT_CONTEXT's input: a header and a context, as in the query's output.
pub(super) const MODIFY_CONTEXT_LEN: usize = Context::SIZE;
/// Length of QUERY_VPORT_COUNTER's output.
pub(super) const COUNTERS_LEN: usize = 0x210;
/// Index that means "all entries".
const ALL: u32 = 0xffff;

/// Whether another virtual port of that number is the function's own after all: a manager of virtual ports is number 0.
pub(super) fn is_managers(fw: &Firmware, number: u32) -> bool {
    fw.general.get(General::VPORT_GROUP_MANAGER) == 1 && number == 0
}

/// The port and the index that the command names.
fn check_port<'a>(fw: &'a Firmware, call: &Call<'_>) -> Result<(&'a Port, u32), Failure> {
    const PORT: Failure = bad_param("VPORT: port_num: the adapter has no such port");
    const OTHER: Failure = bad_param("VPORT: other_vport: the adapter has no other functions");
    let query = call.view::<QueryHcaVportIn>()?;
    let other = query.get(QueryHcaVportIn::OTHER_VPORT) == 1;
    if other && !is_managers(fw, query.get(QueryHcaVportIn::VPORT_NUMBER)) {
        return Err(OTHER.got(query.get(QueryHcaVportIn::VPORT_NUMBER)));
    }
    let port = query.get(QueryHcaVportIn::PORT_NUM);
    let named = fw.ports.named(port).and_then(|number| fw.ports.port(number));
    let named = named.ok_or(PORT.got(port).limit(fw.ports.numbers().len() as u64))?;
    Ok((named, query.get(QueryHcaVportIn::INDEX)))
}

pub(super) fn context(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let (port, _) = check_port(fw, call)?;
    let info = port.info();
    let mut out = Context::new();
    out.set(Context::HAS_SMI, 1);
    for (field, of) in [
        (Context::PORT_PHYSICAL_STATE, PortInfo::PORT_PHYSICAL_STATE),
        (Context::VPORT_STATE, PortInfo::PORT_STATE),
        (Context::CAP_MASK1, PortInfo::CAPABILITY_MASK),
        (Context::CAP_MASK2, PortInfo::CAPABILITY_MASK2),
        (Context::LID, PortInfo::LID),
        (Context::INIT_TYPE_REPLY, PortInfo::INIT_TYPE_REPLY),
        (Context::LMC, PortInfo::LMC),
        (Context::SUBNET_TIMEOUT, PortInfo::SUBNET_TIMEOUT),
        (Context::SM_LID, PortInfo::MASTER_SM_LID),
        (Context::SM_SL, PortInfo::MASTER_SM_SL),
        (Context::QKEY_VIOLATION_COUNTER, PortInfo::Q_KEY_VIOLATIONS),
        (Context::PKEY_VIOLATION_COUNTER, PortInfo::P_KEY_VIOLATIONS),
    ] {
        out.set(field, info.get(of));
    }
    out.set(Context::SYSTEM_IMAGE_GUID, fw.config.system_image_guid);
    out.set(Context::PORT_GUID, fw.config.guid_of_port(port.number()))
        .set(Context::NODE_GUID, fw.config.node_guid);
    out.set(Context::CAP_MASK1_FIELD_SELECT, SETTABLE_CAPABILITIES);
    Ok(reply(&out))
}

pub(super) fn modify_context(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let port = check_port(fw, call)?.0.number();
    // The context lies where it does in the query's output.
    let context = call.view::<Context>()?;
    let (value, mask) = (context.get(Context::CAP_MASK1), context.get(Context::CAP_MASK1_FIELD_SELECT));
    fw.ports.change_capabilities(port, mask, value);
    Ok(done())
}

/// The port, and the entries of a table that a query asks for.
fn entries<'a>(fw: &'a Firmware, call: &Call<'_>, count: usize) -> Result<(&'a Port, Range<u32>), Failure> {
    const INDEX: Failure = Failure::new(Status::BadIndex, "VPORT: the index is beyond the table");
    let (port, index) = check_port(fw, call)?;
    match index {
        ALL => Ok((port, 0..count as u32)),
        index if (index as usize) < count => Ok((port, index..index + 1)),
        index => Err(INDEX.got(index).limit(count.saturating_sub(1) as u64)),
    }
}

pub(super) fn gids(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let (port, entries) = entries(fw, call, GUIDS)?;
    let mut out = done();
    put_be32(&mut out, 0xc, (entries.len() as u32) << 16);
    entries.for_each(|i| out.extend_from_slice(&port.gid(i).0));
    Ok(out)
}

pub(super) fn pkeys(fw: &Firmware, call: &Call<'_>) -> Outcome {
    // An Ethernet port has one, the default.
    let (port, entries) = entries(fw, call, if fw.is_ethernet() { 1 } else { PKEYS })?;
    let mut out = done();
    entries.for_each(|i| out.extend_from_slice(&u32::from(port.pkey(i)).to_be_bytes()));
    Ok(out)
}

pub(super) fn counters(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let (port, _) = check_port(fw, call)?;
    let (number, c) = (port.number(), port.counters);
    let mut out = vec![0; COUNTERS_LEN];
    let ethernet = port.ethernet().map(|eth| ethernet_pairs(&eth.counters));
    // Pairs of packets and bytes: errors in, errors out, unicast in and out, multicast in and out.
    let pairs = [
        (u64::from(c.rcv_errors), 0),
        (u64::from(c.xmit_discards), 0),
        (c.unicast_rcv_packets(), c.unicast_rcv_data() * 4),
        (c.unicast_xmit_packets(), c.unicast_xmit_data() * 4),
        (c.multicast_rcv_packets, c.multicast_rcv_data * 4),
        (c.multicast_xmit_packets, c.multicast_xmit_data * 4),
    ];
    for (i, (packets, bytes)) in ethernet.unwrap_or(pairs.to_vec()).into_iter().enumerate() {
        put_be64(&mut out, 0x10 + i * 16, packets);
        put_be64(&mut out, 0x18 + i * 16, bytes);
    }
    if call.view::<QueryVportCounterIn>()?.get(QueryVportCounterIn::CLEAR) == 1
        && let Some(port) = fw.ports.port_mut(number)
    {
        port.counters = Default::default();
        if let Some(eth) = port.ethernet_mut() {
            eth.counters = Default::default();
        }
    }
    Ok(out)
}

/// The same of an Ethernet port: errors, RoCE to one queue pair and to groups, other frames to all, to one and to groups,
/// each in and out; then what came back without having been on the wire.
fn ethernet_pairs(c: &EthernetCounters) -> Vec<(u64, u64)> {
    let (rx, tx) = (&c.rx, &c.tx);
    let unicast = |d: &DirectionCounters| {
        let octets = d.unicast_octets.wrapping_sub(d.roce_unicast_octets);
        (d.unicast.wrapping_sub(d.roce_unicast), octets)
    };
    let multicast = |d: &DirectionCounters| {
        let octets = d.multicast_octets.wrapping_sub(d.roce_multicast_octets);
        (d.multicast.wrapping_sub(d.roce_multicast), octets)
    };
    vec![
        (rx.errors, 0),
        (tx.errors, 0),
        (rx.roce_unicast, rx.roce_unicast_octets),
        (tx.roce_unicast, tx.roce_unicast_octets),
        (rx.roce_multicast, rx.roce_multicast_octets),
        (tx.roce_multicast, tx.roce_multicast_octets),
        (rx.broadcast, rx.broadcast_octets),
        (tx.broadcast, tx.broadcast_octets),
        unicast(rx),
        unicast(tx),
        multicast(rx),
        multicast(tx),
        (c.loopback, c.loopback_octets),
    ]
}

/// QUERY_HCA_VPORT_GID and QUERY_HCA_VPORT_PKEY: the whole table.
pub(super) fn table_template(_: &Fixture) -> Vec<u8> {
    QueryHcaVportIn::new().set(QueryHcaVportIn::INDEX, ALL).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, two_ports};
    use crate::port::PortLink;
    use hca_spec::command::Opcode;
    use hca_spec::mad::{port_cap, port_state};

    #[test]
    fn context_is_the_port() {
        let mut b = Bench::initialized();
        b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
        let r = b.object_into(Opcode::QueryHcaVportContext, 0, 0x210);
        let c = Context::from_prefix_or_zero(&r.output);
        assert_eq!((c.get(Context::VPORT_STATE), c.get(Context::HAS_SMI)), (port_state::INIT, 1));
        assert_eq!(r.output[0x48..0x50], b.fw.config.node_guid.to_be_bytes());
        assert_eq!(r.output[0x30], 0x40, "no GRH required");
        let other = b.run(Opcode::QueryHcaVportContext, 0, &[0x80, 0, 0, 0, 0, 0, 0, 0], 0x210);
        assert_eq!(other.status(), Status::BadParam);
    }

    /// A query is answered by the port that it names; zero is the first.
    #[test]
    fn of_two_ports() {
        let mut b = Bench::initialized_with(two_ports());
        b.fw.ports.set_link(2, Some(PortLink::default()), &mut Vec::new());
        b.fw.ports.ports[1].port.counters.xmit(100);
        let guid = b.fw.config.port_guid;
        for (port, state, port_guid, bytes) in [
            (0, port_state::DOWN, guid, 0),
            (1, port_state::DOWN, guid, 0),
            (2, port_state::INIT, guid + 1, 100),
        ] {
            let r = b.run(Opcode::QueryHcaVportContext, 0, &[0, port, 0, 0, 0, 0, 0, 0], 0x210);
            let c = Context::from_prefix_or_zero(&r.output);
            assert_eq!((c.get(Context::VPORT_STATE), c.get(Context::PORT_GUID)), (state, port_guid));
            let r = b.run(Opcode::QueryHcaVportGid, 0, &[0, port, 0, 0, 0, 0, 0, 0], 32);
            assert_eq!(hca_spec::be64(&r.output, 0x18), port_guid);
            let mut body = [0; 0x18];
            body[1] = port;
            let r = b.run(Opcode::QueryVportCounter, 0, &body, COUNTERS_LEN);
            assert_eq!(hca_spec::be64(&r.output, 0x48), bytes);
        }
        let other = b.run(Opcode::QueryHcaVportContext, 0, &[0, 3, 0, 0, 0, 0, 0, 0], 0x210);
        assert_eq!(other.status(), Status::BadParam);
    }

    #[test]
    fn capabilities() {
        let mut b = Bench::initialized();
        let before = b.fw.ports.ports[0].port.info().get(PortInfo::CAPABILITY_MASK);
        let mut c = Context::new();
        c.set(Context::CAP_MASK1, port_cap::CM | port_cap::TRAP);
        c.set(Context::CAP_MASK1_FIELD_SELECT, u32::MAX);
        assert_eq!(b.put(Opcode::ModifyHcaVportContext, &c, 16).status(), Status::Ok);
        assert_eq!(b.fw.ports.ports[0].port.info().get(PortInfo::CAPABILITY_MASK), before | port_cap::CM);
    }

    #[test]
    fn tables() {
        let mut b = Bench::initialized();
        let mut table = |op, index: u16, len| {
            let mut body = [0; 8];
            body[6..].copy_from_slice(&index.to_be_bytes());
            b.run(op, 0, &body, len)
        };
        let one = table(Opcode::QueryHcaVportGid, 0, 32);
        assert_eq!(
            one.output[0xc..0x20],
            [0, 1, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0xa0, 0, 1]
        );
        assert_eq!(table(Opcode::QueryHcaVportGid, 0xffff, 16 + 8 * 16).output.len(), 16 + 8 * 16);
        assert_eq!(table(Opcode::QueryHcaVportGid, 8, 32).status(), Status::BadIndex);
        assert_eq!(table(Opcode::QueryHcaVportPkey, 0, 20).output[16..], [0, 0, 0xff, 0xff]);
        assert_eq!(table(Opcode::QueryHcaVportPkey, 32, 20).status(), Status::BadIndex);
    }

    #[test]
    fn of_an_ethernet_port() {
        use crate::commands::testing::ethernet;
        use crate::port::FrameClass;
        let mut b = Bench::initialized_with(ethernet());
        let c = &mut b.fw.ports.port_mut(1).unwrap().ethernet_mut().unwrap().counters;
        c.received(FrameClass::Unicast, 100, 0);
        c.received(FrameClass::Unicast, 200, 0);
        c.rx.count_roce(FrameClass::Unicast, 200);
        c.sent(FrameClass::Broadcast, 60, 0);
        c.sent(FrameClass::Multicast, 70, 0);
        let mut body = [0; 0x18];
        body[0x10] = 0x80;
        let r = b.run(Opcode::QueryVportCounter, 0, &body, COUNTERS_LEN);
        let at = |o| (hca_spec::be64(&r.output, o), hca_spec::be64(&r.output, o + 8));
        assert_eq!((at(0x30), at(0x80), at(0x90), at(0xc0)), ((1, 200), (1, 60), (1, 100), (1, 70)));
        let counters = b.fw.ports.port(1).unwrap().ethernet().unwrap().counters;
        assert_eq!(counters, Default::default(), "cleared");
        let r = b.run(Opcode::QueryHcaVportPkey, 0, &[0; 8], 20);
        assert_eq!(r.output[16..], [0, 0, 0xff, 0xff]);
        let r = b.run(Opcode::QueryHcaVportPkey, 0, &[0, 0, 0, 0, 0, 0, 0, 1], 20);
        assert_eq!(r.status(), Status::BadIndex);
        for op in [Opcode::QueryHcaVportContext, Opcode::QueryHcaVportGid, Opcode::MadIfc] {
            assert_eq!(b.object_into(op, 0, 0x210).status(), Status::BadOp, "{op:?}");
        }
    }

    #[test]
    fn traffic() {
        let mut b = Bench::initialized();
        let c = &mut b.fw.ports.ports[0].port.counters;
        c.xmit(100);
        c.xmit_multicast(40);
        c.rcv(8);
        let mut body = [0; 0x18];
        body[0x10] = 0x80;
        let r = b.run(Opcode::QueryVportCounter, 0, &body, COUNTERS_LEN);
        let at = |o| hca_spec::be64(&r.output, o);
        assert_eq!((at(0x30), at(0x38)), (1, 8), "unicast in");
        assert_eq!((at(0x40), at(0x48)), (1, 100), "unicast out");
        assert_eq!((at(0x60), at(0x68)), (1, 40), "multicast out");
        assert_eq!(b.fw.ports.ports[0].port.counters, Default::default(), "cleared");
    }
}
