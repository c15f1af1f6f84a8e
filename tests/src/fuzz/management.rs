//! Management datagrams.

use hca_firmware::port::Port;
use hca_firmware::{
    Address, Arrival, Config, Departure, Firmware, LinkSpeed, PortLink, Switch, SwitchConfig,
};
use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, INITIAL_PATH, METHOD_GET, METHOD_GET_RESP,
    METHOD_SET, METHOD_TRAP, METHOD_TRAP_REPRESS, Mad, NodeInfo, PATH_SIZE, PortInfo, RETURN_PATH, SMP_DATA,
    SwitchInfo, attr, port_state,
};

use super::feed::Feed;

/// Datagrams of one input.
const MOST: usize = 200;
/// External ports of the switch.
const PORTS: u8 = 20;
/// Attributes that an agent knows, and some that none does.
const ATTRIBUTES: [u32; 18] = [
    attr::PORT_INFO,
    attr::SWITCH_INFO,
    attr::LINEAR_FORWARDING,
    attr::MULTICAST_FORWARDING,
    attr::SL_TO_VL,
    attr::VL_ARBITRATION,
    attr::PKEY_TABLE,
    attr::GUID_INFO,
    attr::NODE_INFO,
    attr::NODE_DESCRIPTION,
    attr::VENDOR_EXT_PORT_INFO,
    attr::NOTICE,
    attr::SM_INFO,
    attr::CLASS_PORT_INFO,
    attr::PORT_COUNTERS,
    attr::PORT_COUNTERS_EXT,
    0x1a,
    0x7777,
];

/// Hands datagrams made of `data` to a switch and to an adapter without a driver, between links that come and go and
/// time that passes.
///
/// # Panics
/// If an agent does, or if what leaves is not well formed: a port that is not there or down, a route with impossible
/// hops, an answer to something else.
pub fn management(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut switch = Switch::new(SwitchConfig {
        node_guid: 0x10,
        system_image_guid: 0x10,
        node_description: "fuzzed".into(),
        ports: PORTS,
        kind: hca_firmware::PortKind::InfiniBand,
    });
    let mut adapter = Firmware::new(Config::default());
    let (mut switch_effects, mut effects) = (Vec::new(), Vec::new());
    for port in 1..=PORTS / 2 {
        switch.set_link(port, Some(PortLink::default()), &mut switch_effects);
    }
    adapter.ports.set_link(1, Some(PortLink::default()), &mut effects);
    let mut now = 0;
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        if feed.one_in(8) {
            let link = PortLink {
                width: feed.pick(&[1, 2, 4, 8, 12, 0, 3]),
                speed: feed.pick(&[LinkSpeed::Sdr, LinkSpeed::Fdr10, LinkSpeed::Edr, LinkSpeed::Hdr]),
            };
            let link = (!feed.one_in(2)).then_some(link);
            switch.set_link(feed.u8() % (PORTS + 3), link, &mut switch_effects);
            adapter.ports.set_link(1, link, &mut effects);
        }
        if feed.one_in(4) {
            now += u64::from(feed.u32()) * 1000;
            let told = switch.poll(now).into_iter().chain(adapter.ports.poll(1, now)).collect::<Vec<_>>();
            assert!(told.iter().all(|d| d.mad.get(Mad::METHOD) == METHOD_TRAP), "{told:?}");
        }
        let mad = datagram(&mut feed);
        let arrival = Arrival { port: feed.u8() % (PORTS + 3), address: address(&mut feed, &mad), now };
        let (was_zero, was_one) = (switch.port(0).cloned(), adapter.ports.port(1).cloned());
        let out = switch.management(&arrival, &mad, &mut switch_effects);
        assert!(out.len() <= 1, "{out:?}");
        for d in &out {
            check(d, &mad, switch.port(d.port));
        }
        let arrival = Arrival { port: 1 + u8::from(feed.one_in(32)), ..arrival };
        let out = adapter.ports.wire_mad(&arrival, &mad, &mut effects);
        if let Some(d) = &out {
            check(d, &mad, adapter.ports.port(d.port));
            assert_eq!(d.mad.get(Mad::METHOD), METHOD_GET_RESP, "an adapter passes nothing on: {d:?}");
        }
        if mad.get(Mad::METHOD) == METHOD_GET && mad.get(Mad::M_KEY) == 0 {
            // A Get changes no more than counters of violations.
            let same = |a: Option<Port>, b: Option<&Port>| match (a, b) {
                (Some(a), Some(b)) => a.lid() == b.lid() && a.state == b.state && a.pkey(0) == b.pkey(0),
                _ => false,
            };
            assert!(same(was_zero, switch.port(0)) && same(was_one, adapter.ports.port(1)), "{mad:?}");
        }
        ask_tables(&mut feed, &mut switch);
    }
    alive(&mut switch);
}

/// A datagram that is mostly right.
pub(crate) fn datagram(feed: &mut Feed<'_>) -> Mad {
    let mut m = Mad::new();
    m.set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1);
    m.set(
        Mad::MGMT_CLASS,
        feed.pick(&[CLASS_SUBN_DIRECTED, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, CLASS_PERF]),
    );
    let methods = [METHOD_GET, METHOD_SET, METHOD_SET, METHOD_TRAP_REPRESS, METHOD_GET_RESP, 3, METHOD_TRAP];
    m.set(Mad::METHOD, methods[feed.below(12) % methods.len()]);
    m.set(Mad::ATTRIBUTE_ID, feed.pick(&ATTRIBUTES));
    let high = u32::from(feed.u8()) % 8;
    let modifier = match feed.below(5) {
        0 => 0,
        1 => feed.u8().into(),
        2 => high << 28 | u32::from(feed.u8()),
        3 => high << 16 | u32::from(feed.u16()),
        _ => feed.u32(),
    };
    m.set(Mad::ATTRIBUTE_MODIFIER, modifier);
    m.set(Mad::TRANSACTION_ID, feed.below(8) as u64);
    m.set(Mad::M_KEY, feed.below(16) as u64 / 14);
    let hops = if feed.one_in(8) { feed.u8().into() } else { feed.below(4) as u32 };
    m.set(Mad::HOP_COUNT, hops);
    let pointer = if feed.one_in(8) { feed.u8().into() } else { feed.u8() as u32 % (hops + 2) };
    m.set(Mad::HOP_POINTER, pointer).set(Mad::DIRECTION, feed.u8().into());
    m.set(Mad::DR_SLID, feed.pick(&[0xffff, 0xffff, 1, 2, 0xc000]));
    m.set(Mad::DR_DLID, feed.pick(&[0xffff, 0xffff, 1, 2, 0xc000]));
    for path in [INITIAL_PATH, RETURN_PATH] {
        let ports: Vec<_> = (0..5).map(|_| feed.u8() % (PORTS + 3)).collect();
        m.bytes_mut()[path..path + 5].copy_from_slice(&ports);
    }
    let len = feed.below(65);
    let some = feed.bytes(len);
    m.bytes_mut()[SMP_DATA..SMP_DATA + some.len()].copy_from_slice(some);
    if m.get(Mad::ATTRIBUTE_ID) == attr::PORT_INFO && !feed.one_in(4) {
        // What a manager would say.
        let mut p = PortInfo::new();
        p.set(PortInfo::LID, feed.below(4) as u32).set(PortInfo::MASTER_SM_LID, feed.below(4) as u32);
        p.set(PortInfo::PORT_STATE, feed.below(6) as u32);
        p.set(PortInfo::PORT_PHYSICAL_STATE, feed.below(7) as u32);
        p.set(PortInfo::M_KEY, feed.below(16) as u64 / 14).set(PortInfo::M_KEY_PROTECT, feed.u8().into());
        p.set(PortInfo::M_KEY_LEASE_PERIOD, feed.below(3) as u32).set(PortInfo::LMC, feed.u8().into());
        p.set(PortInfo::SUBNET_TIMEOUT, feed.u8().into());
        *m.port_info_mut() = p;
    }
    if feed.one_in(8) {
        feed.mutate(m.bytes_mut(), 8);
    }
    m
}

fn address(feed: &mut Feed<'_>, mad: &Mad) -> Address {
    let lids = [Lid::PERMISSIVE, Lid(0), Lid(1), Lid(2), Lid(0xc000)];
    let smp = Address::smp(feed.pick(&lids), feed.pick(&lids));
    let subnet = mad.get(Mad::MGMT_CLASS) != CLASS_PERF;
    let qp = Qpn((subnet == feed.one_in(16)).into());
    let other = Qpn(feed.u8().into());
    let source_qp = if feed.one_in(16) { other } else { qp };
    Address { qp, source_qp, sl: feed.u8() & 0xf, ..smp }
}

/// What leaves has to make sense.
fn check(d: &Departure, request: &Mad, port: Option<&Port>) {
    let port = port.unwrap_or_else(|| panic!("no such port: {d:?}"));
    assert!(port.number() != 0 && port.state != port_state::DOWN, "{d:?}");
    assert_eq!(d.address.is_smp(), d.mad.get(Mad::MGMT_CLASS) & 0x7f == CLASS_SUBN_LID_ROUTED, "{d:?}");
    let m = &d.mad;
    assert_eq!(m.get(Mad::TRANSACTION_ID), request.get(Mad::TRANSACTION_ID));
    assert_eq!(m.get(Mad::ATTRIBUTE_ID), request.get(Mad::ATTRIBUTE_ID));
    if m.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED {
        let (count, pointer) = (m.get(Mad::HOP_COUNT), m.get(Mad::HOP_POINTER));
        assert!(count < PATH_SIZE as u32 && pointer <= count + 1, "{d:?}");
    }
    let answered = m.get(Mad::METHOD) == METHOD_GET_RESP && request.get(Mad::METHOD) != METHOD_GET_RESP;
    if !answered {
        // Passed on: the sender's words.
        assert_eq!(m.bytes()[SMP_DATA..INITIAL_PATH], request.bytes()[SMP_DATA..INITIAL_PATH]);
    }
}

/// Whatever the tables hold, they name ports of the switch.
fn ask_tables(feed: &mut Feed<'_>, switch: &mut Switch) {
    let (lid, port, sl) = (Lid(feed.u16()), feed.u8(), feed.u8());
    assert!(switch.forward(lid).is_none_or(|p| p <= PORTS));
    let ports = switch.multicast(port, lid);
    assert!(ports >> (PORTS + 1) == 0 && (port >= 128 || ports >> port & 1 == 0));
    assert!(switch.virtual_lane(port, feed.u8(), sl) <= 15);
    switch.admits(port, hca_firmware::switch::Direction::Inbound, Some(feed.u16()));
}

/// The switch still tells what it is, to who knows its key.
fn alive(switch: &mut Switch) {
    let key = switch.port(0).map_or(0, |p| p.info().get(PortInfo::M_KEY));
    let mut effects = Vec::new();
    switch.set_link(PORTS, Some(PortLink::default()), &mut effects);
    if switch.port(PORTS).is_none_or(|p| p.state == port_state::DOWN) {
        // A manager disabled the port, or left it no speed.
        return;
    }
    let mut ask = |attribute| {
        let mut m = Mad::new();
        m.set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED);
        m.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::M_KEY, key);
        let arrival = Arrival { port: PORTS, address: Address::directed(), now: 0 };
        let out = switch.management(&arrival, &m, &mut effects);
        assert!(matches!(&out[..], [d] if d.port == PORTS && d.mad.get(Mad::STATUS) == 0), "{out:?}");
        out[0].mad
    };
    assert_eq!(ask(attr::NODE_INFO).node_info().get(NodeInfo::NUM_PORTS), u32::from(PORTS));
    assert_eq!(ask(attr::SWITCH_INFO).switch_info().get(SwitchInfo::LINEAR_FDB_CAP), 49152);
}
