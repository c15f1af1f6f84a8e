//! A switch as a subnet manager meets it.

use hca_spec::eqe::port_change;
use hca_spec::ids::Qpn;
use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_LID_ROUTED, INITIAL_PATH, METHOD_GET, METHOD_SET, METHOD_TRAP_REPRESS, NodeInfo,
    Notice, RETURN_PATH, STATUS_BAD_ATTRIBUTE, STATUS_INVALID_VALUE, attr, phys_state, trap,
};

use super::*;

const GUID: u64 = 0x0002_c903_0000_0100;

struct ManagedSwitch {
    s: Switch,
    effects: Vec<SwitchEffect>,
}

fn smp(method: u32, attribute: u32, modifier: u32) -> Mad {
    let mut m = Mad::new();
    m.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
    m.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, modifier);
    m
}

impl ManagedSwitch {
    /// A switch with cables at ports 1 to 3 of 5.
    fn new() -> Self {
        let config = SwitchConfig {
            node_guid: GUID,
            system_image_guid: GUID + 3,
            node_description: "sw".into(),
            ports: 5,
            kind: PortKind::InfiniBand,
        };
        let mut r = Self { s: Switch::new(config), effects: Vec::new() };
        for port in 1..=3 {
            r.s.set_link(port, Some(PortLink::default()), &mut r.effects);
        }
        r.effects.clear();
        r
    }

    fn arrive(&mut self, port: u8, address: Address, mad: &Mad) -> Vec<Departure> {
        self.s.management(&Arrival { port, address, now: 0 }, mad, &mut self.effects)
    }

    /// The answer to an SMP of one hop that came by port 2.
    fn ask(&mut self, mad: &Mad) -> Mad {
        let mut m = *mad;
        m.set(Mad::MGMT_CLASS, CLASS_SUBN_DIRECTED).set(Mad::HOP_COUNT, 1).set(Mad::HOP_POINTER, 1);
        m.set(Mad::DR_SLID, 0xffff).set(Mad::DR_DLID, 0xffff);
        let out = self.arrive(2, Address::directed(), &m);
        let [d] = &out[..] else { panic!("{out:?}") };
        assert_eq!((d.port, d.address, d.mad.get(Mad::HOP_POINTER)), (2, Address::directed(), 1));
        d.mad
    }

    fn get(&mut self, attribute: u32, modifier: u32) -> Mad {
        self.ask(&smp(METHOD_GET, attribute, modifier))
    }

    /// Get, a change, Set, as subnet managers do; the status without the direction.
    fn change(&mut self, attribute: u32, modifier: u32, change: impl Fn(&mut Mad)) -> u32 {
        let got = self.get(attribute, modifier);
        let mut m = smp(METHOD_SET, attribute, modifier);
        *m.smp_data_mut().bytes_mut() = *got.smp_data().bytes();
        if attribute == attr::PORT_INFO {
            m.port_info_mut().set(PortInfo::PORT_STATE, 0).set(PortInfo::PORT_PHYSICAL_STATE, 0);
        }
        change(&mut m);
        self.ask(&m).get(Mad::STATUS) & 0x7fff
    }

    fn port(&mut self, port: u32, change: impl Fn(&mut PortInfo)) -> u32 {
        self.change(attr::PORT_INFO, port, |m| change(m.port_info_mut()))
    }

    /// LID 2; LIDs 2 to 5 are at ports 0, 1, 2 and nowhere.
    fn routed() -> Self {
        let mut r = Self::new();
        assert_eq!(r.port(0, |p| _ = p.set(PortInfo::LID, 2).set(PortInfo::MASTER_SM_LID, 3)), 0);
        let routes = |m: &mut Mad| m.smp_data_mut().bytes_mut()[..6].copy_from_slice(&[255, 255, 0, 1, 2, 9]);
        assert_eq!(r.change(attr::LINEAR_FORWARDING, 0, routes), 0);
        let top = |m: &mut Mad| _ = m.switch_info_mut().set(SwitchInfo::LINEAR_FDB_TOP, 5);
        assert_eq!(r.change(attr::SWITCH_INFO, 0, top), 0);
        for port in 1..=3 {
            for state in [port_state::ARMED, port_state::ACTIVE] {
                assert_eq!(r.port(port, |p| _ = p.set(PortInfo::PORT_STATE, state)), 0);
            }
        }
        r.effects.clear();
        r
    }
}

#[test]
fn golden_identity() {
    let mut r = ManagedSwitch::new();
    let m = r.get(attr::NODE_INFO, 0);
    let mut golden = vec![1, 1, 2, 5];
    golden.extend_from_slice(&(GUID + 3).to_be_bytes());
    golden.extend_from_slice(&GUID.to_be_bytes());
    golden.extend_from_slice(&GUID.to_be_bytes());
    golden.extend_from_slice(&[0, 32, 0xcb, 0x20, 0, 0, 0, 0, 2, 0, 2, 0xc9]);
    assert_eq!(m.node_info().bytes()[..40], golden);
    assert_eq!(m.node_info().get(NodeInfo::LOCAL_PORT_NUM), 2, "the port it came by");
    assert_eq!(r.get(attr::NODE_DESCRIPTION, 0).smp_data().bytes()[..3], *b"sw\0");
    let golden = [0xc0, 0, 0, 0, 0x10, 0, 0, 0, 0xff, 0xff, 0xff, 0x05, 0, 0, 0, 32, 0xf0, 0, 0, 0];
    assert_eq!(r.get(attr::SWITCH_INFO, 0).switch_info().bytes()[..20], golden, "state change: links came");
    let guids = r.get(attr::GUID_INFO, 0);
    assert_eq!(guids.smp_data().bytes()[..16], [GUID.to_be_bytes(), [0; 8]].concat());
    assert_eq!(r.get(attr::GUID_INFO, 1).get(Mad::STATUS) & 0x7fff, STATUS_INVALID_VALUE);
}

#[test]
fn ports_by_their_kind() {
    let mut r = ManagedSwitch::new();
    let info = |r: &mut ManagedSwitch, port| *r.get(attr::PORT_INFO, port).port_info();
    let zero = info(&mut r, 0);
    assert_eq!((zero.get(PortInfo::PORT_STATE), zero.get(PortInfo::LOCAL_PORT_NUM)), (port_state::ACTIVE, 2));
    assert_ne!(zero.get(PortInfo::CAPABILITY_MASK), 0);
    let three = info(&mut r, 3);
    assert_eq!((three.get(PortInfo::PORT_STATE), three.get(PortInfo::LOCAL_PORT_NUM)), (port_state::INIT, 2));
    assert_eq!((three.get(PortInfo::LINK_SPEED_EXT_ACTIVE), three.get(PortInfo::CAPABILITY_MASK)), (2, 0));
    assert_eq!(info(&mut r, 4).get(PortInfo::PORT_STATE), port_state::DOWN);
    assert_eq!(r.get(attr::PORT_INFO, 6).get(Mad::STATUS) & 0x7fff, STATUS_INVALID_VALUE);
    // The bit that OpenSM sets for extended speeds is no port.
    assert_eq!(r.port(3, |p| _ = p.set(PortInfo::HOQ_LIFE, 16).set(PortInfo::LID, 9)), 0);
    let m = r.get(attr::PORT_INFO, 1 << 31 | 3);
    assert_eq!((m.port_info().get(PortInfo::HOQ_LIFE), m.port_info().get(PortInfo::LID)), (16, 0));
    assert_eq!(r.port(0, |p| _ = p.set(PortInfo::LID, 0xc000)), STATUS_INVALID_VALUE);
    assert_eq!(r.port(0, |p| _ = p.set(PortInfo::LMC, 3).set(PortInfo::LID, 8)), 0);
    assert_eq!(info(&mut r, 0).get(PortInfo::LMC), 0, "a base port 0 has one LID");
    assert_eq!(r.port(3, |p| _ = p.set(PortInfo::PORT_STATE, port_state::ACTIVE)), STATUS_INVALID_VALUE);
    assert_eq!(r.port(3, |p| _ = p.set(PortInfo::NEIGHBOR_MTU, 6)), STATUS_INVALID_VALUE);
}

#[test]
fn links_come_and_go() {
    let mut r = ManagedSwitch::routed();
    let changed = |r: &mut ManagedSwitch| {
        let bit = r.get(attr::SWITCH_INFO, 0).switch_info().get(SwitchInfo::PORT_STATE_CHANGE);
        assert_eq!(
            r.change(attr::SWITCH_INFO, 0, |m| _ = m.switch_info_mut().set(SwitchInfo::PORT_STATE_CHANGE, 0)),
            0
        );
        let kept = r.get(attr::SWITCH_INFO, 0).switch_info().get(SwitchInfo::PORT_STATE_CHANGE);
        assert_eq!(kept, bit, "writing 0 keeps it");
        assert_eq!(
            r.change(attr::SWITCH_INFO, 0, |m| _ = m.switch_info_mut().set(SwitchInfo::PORT_STATE_CHANGE, 1)),
            0
        );
        let after = r.get(attr::SWITCH_INFO, 0).switch_info().get(SwitchInfo::PORT_STATE_CHANGE);
        assert_eq!(after, 0, "writing 1 clears it");
        bit
    };
    changed(&mut r);
    assert_eq!(changed(&mut r), 0, "Sets of states are no news to who sent them");
    r.s.set_link(3, None, &mut r.effects);
    assert_eq!(r.effects, [SwitchEffect::PortChange { port: 3, sub_type: port_change::DOWN }]);
    assert_eq!((changed(&mut r), r.s.port(3).unwrap().counters.link_downed), (1, 1));
    r.effects.clear();
    assert_eq!(r.port(1, |p| _ = p.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::DISABLED)), 0);
    assert_eq!(r.effects, [SwitchEffect::PortChange { port: 1, sub_type: port_change::DOWN }]);
    r.s.set_link(1, Some(PortLink::default()), &mut r.effects);
    assert!(r.s.port(1).unwrap().is_disabled() && changed(&mut r) == 0);
    r.effects.clear();
    assert_eq!(r.port(1, |p| _ = p.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING)), 0);
    assert_eq!(r.effects, [SwitchEffect::PortEnabled { port: 1 }]);
    r.s.set_link(1, Some(PortLink::default()), &mut r.effects);
    assert_eq!((changed(&mut r), r.s.port(1).unwrap().state), (1, port_state::INIT));
    r.s.set_link(0, None, &mut r.effects);
    assert_eq!(r.s.port(0).unwrap().state, port_state::ACTIVE, "port 0 has no link");
}

/// An armed port that receives data is active; what a Set does to a port is no news for who sent it.
#[test]
fn data_activates_and_sets_are_no_news() {
    let mut r = ManagedSwitch::new();
    let state = |r: &mut ManagedSwitch| r.get(attr::PORT_INFO, 1).port_info().get(PortInfo::PORT_STATE);
    r.s.data_arrived(1, &mut r.effects);
    assert_eq!(state(&mut r), port_state::INIT, "only from ARMED");
    assert_eq!(r.port(1, |i| _ = i.set(PortInfo::PORT_STATE, port_state::ARMED)), 0);
    r.effects.clear();
    r.s.data_arrived(1, &mut r.effects);
    assert_eq!(r.effects, [SwitchEffect::PortChange { port: 1, sub_type: port_change::ACTIVE }]);
    assert_eq!(state(&mut r), port_state::ACTIVE);
    r.s.data_arrived(0, &mut r.effects);
    r.s.data_arrived(99, &mut r.effects);
    let clear = |r: &mut ManagedSwitch| {
        r.change(attr::SWITCH_INFO, 0, |m| _ = m.switch_info_mut().set(SwitchInfo::PORT_STATE_CHANGE, 1))
    };
    let changed =
        |r: &mut ManagedSwitch| r.get(attr::SWITCH_INFO, 0).switch_info().get(SwitchInfo::PORT_STATE_CHANGE);
    assert_eq!(clear(&mut r), 0);
    assert_eq!(r.port(1, |i| _ = i.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::DISABLED)), 0);
    assert_eq!((state(&mut r), changed(&mut r)), (port_state::DOWN, 0));
    r.s.set_link(3, None, &mut r.effects);
    assert_eq!(changed(&mut r), 1, "but what the link did is");
}

/// Trap 128 goes to the manager's LID, at most once in SubnetTimeOut, until it is heard.
#[test]
fn a_link_change_is_told() {
    let mut r = ManagedSwitch::routed();
    assert_eq!(r.s.poll_at(), None, "there was no manager when the links came");
    r.s.set_link(3, None, &mut r.effects);
    assert_eq!(r.s.poll_at(), Some(0));
    let out = r.s.poll(1000);
    let [d] = &out[..] else { panic!("{out:?}") };
    assert_eq!((d.port, d.address), (1, Address::smp(Lid(2), Lid(3))));
    let n = d.mad.notice();
    assert_eq!((n.get(Notice::TRAP_NUMBER), n.get(Notice::SWITCH_LID)), (trap::LINK_STATE, 2));
    let again = r.s.poll_at().unwrap();
    assert_eq!(again, 1000 + (4_096_000 << 18));
    assert_eq!(r.s.poll(again), out);
    let mut heard = d.mad;
    heard.set(Mad::METHOD, METHOD_TRAP_REPRESS);
    assert_eq!(r.arrive(1, Address::smp(Lid(3), Lid(2)), &heard), []);
    assert_eq!(r.s.poll_at(), None);
}

#[test]
fn unicast_routes() {
    let r = ManagedSwitch::routed();
    let routes: Vec<_> = (0..8).map(|lid| r.s.forward(Lid(lid))).collect();
    assert_eq!(routes[..6], [None, None, Some(0), Some(1), Some(2), None], "port 9 does not exist");
    assert_eq!(routes[6..], [None, None], "beyond the top");
    assert_eq!((r.s.forward(Lid(0xc000)), r.s.forward(Lid::PERMISSIVE)), (None, None));
    assert!(r.s.is_own_lid(Lid(2)) && !r.s.is_own_lid(Lid(3)));
    let mut r = r;
    let top = |m: &mut Mad| _ = m.switch_info_mut().set(SwitchInfo::LINEAR_FDB_TOP, 0xc000);
    assert_eq!(r.change(attr::SWITCH_INFO, 0, top), STATUS_INVALID_VALUE);
    assert_eq!(r.get(attr::LINEAR_FORWARDING, 768).get(Mad::STATUS) & 0x7fff, STATUS_INVALID_VALUE);
    assert_eq!(r.get(attr::LINEAR_FORWARDING, 767).get(Mad::STATUS) & 0x7fff, 0);
}

#[test]
fn multicast_routes() {
    let mut r = ManagedSwitch::routed();
    let set = |m: &mut Mad| m.smp_data_mut().bytes_mut()[..4].copy_from_slice(&[0, 0b1110, 0, 0b10_0001]);
    assert_eq!(r.change(attr::MULTICAST_FORWARDING, 0, set), 0);
    assert_eq!(r.s.multicast(2, Lid(0xc000)), 0b1010, "not back where it came from");
    assert_eq!((r.s.multicast(0, Lid(0xc001)), r.s.multicast(1, Lid(0xc001))), (0b10_0000, 0b10_0001));
    assert_eq!((r.s.multicast(1, Lid(0xc002)), r.s.multicast(1, Lid(3))), (0, 0));
    // Beyond the table: default ports.
    assert_eq!(r.s.multicast(1, Lid(0xd000)), 0);
    let ports = |m: &mut Mad| {
        let s = m.switch_info_mut().set(SwitchInfo::DEFAULT_MULTICAST_PRIMARY_PORT, 3);
        s.set(SwitchInfo::DEFAULT_MULTICAST_NOT_PRIMARY_PORT, 1).set(SwitchInfo::MULTICAST_FDB_TOP, 0xc000);
    };
    assert_eq!(r.change(attr::SWITCH_INFO, 0, ports), 0);
    assert_eq!((r.s.multicast(1, Lid(0xd000)), r.s.multicast(3, Lid(0xd000))), (0b1000, 0b10));
    assert_eq!(r.s.multicast(2, Lid(0xc001)), 0b1000, "beyond the top");
    for (top, status) in [(0xbfff, 0), (0xcfff, 0), (0xd000, STATUS_INVALID_VALUE), (1, STATUS_INVALID_VALUE)]
    {
        let set = |m: &mut Mad| _ = m.switch_info_mut().set(SwitchInfo::MULTICAST_FDB_TOP, top);
        assert_eq!(r.change(attr::SWITCH_INFO, 0, set), status, "{top:#x}");
    }
    let beyond = [128, 8 << 28];
    for modifier in beyond {
        assert_eq!(
            r.get(attr::MULTICAST_FORWARDING, modifier).get(Mad::STATUS) & 0x7fff,
            STATUS_INVALID_VALUE
        );
    }
}

#[test]
fn lanes_by_way_in_and_out() {
    let mut r = ManagedSwitch::new();
    let lanes = |first: u8| move |m: &mut Mad| m.smp_data_mut().bytes_mut()[0] = first;
    assert_eq!(r.change(attr::SL_TO_VL, 0x0102, lanes(0x1f)), 0);
    assert_eq!((r.s.virtual_lane(1, 2, 0), r.s.virtual_lane(1, 2, 1)), (1, DISCARD_VL));
    assert_eq!((r.s.virtual_lane(2, 1, 0), r.s.virtual_lane(3, 2, 0)), (0, 0));
    // Every way in of a way out, then everything, as OpenSM does when it may.
    let mut all = smp(METHOD_SET, attr::SL_TO_VL, 0x2_0003);
    lanes(0x22)(&mut all);
    assert_eq!(r.ask(&all).get(Mad::STATUS) & 0x7fff, 0);
    assert_eq!((r.s.virtual_lane(0, 3, 0), r.s.virtual_lane(5, 3, 1), r.s.virtual_lane(5, 2, 1)), (2, 2, 0));
    all.set(Mad::ATTRIBUTE_MODIFIER, 0x3_0000);
    lanes(0x44)(&mut all);
    assert_eq!(r.ask(&all).get(Mad::STATUS) & 0x7fff, 0);
    assert_eq!((r.s.virtual_lane(1, 2, 0), r.s.virtual_lane(5, 5, 0)), (4, 4));
    for bad in [0x0600, 0x0006, 0x2_0003] {
        assert_eq!(r.get(attr::SL_TO_VL, bad).get(Mad::STATUS) & 0x7fff, STATUS_INVALID_VALUE, "{bad:#x}");
    }
    assert_eq!((r.s.virtual_lane(6, 1, 0), r.s.virtual_lane(1, 6, 0)), (DISCARD_VL, DISCARD_VL));
    assert_eq!(r.change(attr::VL_ARBITRATION, 3 << 16 | 2, lanes(7)), 0);
    assert_eq!(r.get(attr::VL_ARBITRATION, 3 << 16 | 2).smp_data().bytes()[0], 7);
    assert_eq!(r.get(attr::VL_ARBITRATION, 3 << 16 | 1).smp_data().bytes()[0], 0);
    assert_eq!(r.get(attr::VL_ARBITRATION, 5 << 16 | 1).get(Mad::STATUS) & 0x7fff, STATUS_INVALID_VALUE);
}

#[test]
fn partitions() {
    let mut r = ManagedSwitch::new();
    assert!(r.s.admits(2, Direction::Inbound, Some(0x1234)), "not enforced yet");
    let keys = |m: &mut Mad| m.smp_data_mut().bytes_mut()[..4].copy_from_slice(&[0x80, 1, 0, 2]);
    assert_eq!(r.change(attr::PKEY_TABLE, 2 << 16, keys), 0);
    let enforce = |p: &mut PortInfo| {
        p.set(PortInfo::PARTITION_ENFORCEMENT_INBOUND, 1).set(PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, 1);
        p.set(PortInfo::FILTER_RAW_OUTBOUND, 1);
    };
    assert_eq!(r.port(2, enforce), 0);
    let mut pass = |direction, key| r.s.admits(2, direction, key);
    let (inward, outward) = (Direction::Inbound, Direction::Outbound);
    assert!(pass(inward, Some(0x8001)) && pass(inward, Some(1)) && pass(outward, Some(1)));
    // What a limited member sends, and what it takes.
    assert!(pass(inward, Some(2)) && pass(outward, Some(0x8002)));
    assert!(!pass(inward, Some(0x8002)), "it says that it is a full one");
    assert!(!pass(outward, Some(2)), "two limited members");
    assert!(!pass(outward, Some(0x8003)) && !pass(outward, Some(0x8000)) && !pass(outward, None));
    assert!(pass(inward, None));
    let c = r.s.port(2).unwrap().counters;
    assert_eq!((c.rcv_constraint_errors, c.xmit_constraint_errors), (1, 4));
    assert_eq!(r.get(attr::PKEY_TABLE, 1 << 16).smp_data().bytes()[..2], [0xff, 0xff], "other ports");
    for bad in [1, 6 << 16, 2 << 16 | 1, 0x102 << 16] {
        assert_eq!(r.get(attr::PKEY_TABLE, bad).get(Mad::STATUS) & 0x7fff, STATUS_INVALID_VALUE, "{bad:#x}");
    }
}

/// A request goes from hop to hop and the response all the way back, through two switches.
#[test]
fn a_directed_route_through_switches() {
    let (mut near, mut far) = (ManagedSwitch::new(), ManagedSwitch::new());
    // From an adapter's port 1 into near's port 3, out of 1 into far's 2.
    let mut m = smp(METHOD_GET, attr::NODE_INFO, 0);
    m.set(Mad::MGMT_CLASS, CLASS_SUBN_DIRECTED).set(Mad::HOP_COUNT, 2).set(Mad::HOP_POINTER, 1);
    m.set(Mad::DR_SLID, 0xffff).set(Mad::DR_DLID, 0xffff);
    m.bytes_mut()[INITIAL_PATH + 1..][..2].copy_from_slice(&[1, 1]);
    let out = near.arrive(3, Address::directed(), &m);
    assert_eq!((out[0].port, out[0].address, out[0].mad.get(Mad::HOP_POINTER)), (1, Address::directed(), 2));
    let out = far.arrive(2, Address::directed(), &out[0].mad);
    assert_eq!((out[0].port, out[0].mad.get(Mad::HOP_POINTER), out[0].mad.get(Mad::DIRECTION)), (2, 2, 1));
    assert_eq!(out[0].mad.node_info().get(NodeInfo::LOCAL_PORT_NUM), 2);
    let out = near.arrive(1, Address::directed(), &out[0].mad);
    assert_eq!(
        (out[0].port, out[0].mad.get(Mad::HOP_POINTER)),
        (3, 1),
        "to the adapter, which takes it to 0"
    );
    assert_eq!(out[0].mad.bytes()[RETURN_PATH..][..3], [0, 3, 2]);
}

/// Routes with a part by LID before and after.
#[test]
fn a_directed_route_between_lids() {
    let mut r = ManagedSwitch::routed();
    let mut m = smp(METHOD_GET, attr::NODE_INFO, 0);
    m.set(Mad::MGMT_CLASS, CLASS_SUBN_DIRECTED).set(Mad::HOP_COUNT, 1).set(Mad::DR_SLID, 3);
    m.set(Mad::DR_DLID, 0xffff);
    m.bytes_mut()[INITIAL_PATH + 1] = 2;
    let out = r.arrive(1, Address::smp(Lid(3), Lid(2)), &m);
    assert_eq!((out[0].port, out[0].address, out[0].mad.get(Mad::HOP_POINTER)), (2, Address::directed(), 1));
    // Its answer ends the directed part here and goes on to LID 3, which is at port 1.
    let mut back = out[0].mad;
    back.set(Mad::DIRECTION, 1).set(Mad::HOP_POINTER, 1).set(Mad::METHOD, 0x81);
    let out = r.arrive(2, Address::directed(), &back);
    assert_eq!((out[0].port, out[0].address), (1, Address::smp(Lid(2), Lid(3))));
    // A part by LID after: LID 4 at port 2.
    m.set(Mad::DR_SLID, 0xffff).set(Mad::DR_DLID, 4).set(Mad::HOP_POINTER, 1);
    let out = r.arrive(1, Address::directed(), &m);
    assert_eq!((out[0].port, out[0].address), (2, Address::smp(Lid(2), Lid(4))));
    assert_eq!(out[0].mad.get(Mad::HOP_POINTER), 2);
}

#[test]
fn routes_that_lead_nowhere() {
    let mut r = ManagedSwitch::routed();
    let mut m = smp(METHOD_GET, attr::NODE_INFO, 0);
    m.set(Mad::MGMT_CLASS, CLASS_SUBN_DIRECTED).set(Mad::DR_SLID, 0xffff).set(Mad::DR_DLID, 0xffff);
    let errors = |r: &ManagedSwitch, port| r.s.port(port).unwrap().counters.rcv_switch_relay_errors;
    for (i, (direction, count, pointer, next)) in
        [(0, 64, 1, 1), (0, 2, 4, 1), (0, 2, 1, 6), (0, 2, 1, 0), (1, 2, 2, 6), (1, 2, 1, 1), (1, 2, 0, 1)]
            .into_iter()
            .enumerate()
    {
        m.set(Mad::DIRECTION, direction).set(Mad::HOP_COUNT, count).set(Mad::HOP_POINTER, pointer);
        m.bytes_mut()[INITIAL_PATH + 2] = next;
        m.bytes_mut()[RETURN_PATH + 1] = next;
        assert_eq!(r.arrive(1, Address::directed(), &m), [], "{direction} {count} {pointer}");
        assert_eq!(errors(&r, 1), i as u32 + 1, "{direction} {count} {pointer}");
    }
    // A port without a link.
    m.set(Mad::DIRECTION, 0).set(Mad::HOP_COUNT, 2).set(Mad::HOP_POINTER, 1);
    m.bytes_mut()[INITIAL_PATH + 2] = 4;
    assert_eq!(r.arrive(1, Address::directed(), &m), []);
    assert_eq!((r.s.port(4).unwrap().counters.xmit_discards, errors(&r, 1)), (1, 7));
    // An answer to a LID without a route.
    let m = smp(METHOD_GET, attr::NODE_INFO, 0);
    assert_eq!(r.arrive(1, Address::smp(Lid(5), Lid(2)), &m), []);
    assert_eq!(errors(&r, 1), 8);
    // Classes and their queue pairs.
    let gmp = Address { qp: Qpn(1), source_qp: Qpn(1), ..Address::smp(Lid(3), Lid(2)) };
    assert_eq!(r.arrive(1, gmp, &m), []);
    let half = Address { qp: Qpn(1), ..Address::smp(Lid(3), Lid(2)) };
    assert_eq!(r.arrive(1, half, &m), []);
    assert_eq!(errors(&r, 1), 10);
}

#[test]
fn by_lid_and_to_qp1() {
    let mut r = ManagedSwitch::routed();
    let out = r.arrive(2, Address::smp(Lid(3), Lid(2)), &smp(METHOD_GET, attr::SWITCH_INFO, 0));
    assert_eq!((out[0].port, out[0].address), (1, Address::smp(Lid(2), Lid(3))), "by the table, not back");
    let out = r.arrive(2, Address::directed(), &smp(METHOD_GET, attr::SWITCH_INFO, 0));
    assert_eq!((out[0].port, out[0].address), (2, Address::directed()), "without a LID, back");
    r.s.port_mut(3).unwrap().counters.xmit_wait = 5;
    let mut m = smp(METHOD_GET, attr::PORT_COUNTERS, 0);
    m.set(Mad::MGMT_CLASS, CLASS_PERF);
    m.smp_data_mut().bytes_mut()[1] = 3;
    let from = Address { qp: Qpn(1), source_qp: Qpn(1), ..Address::smp(Lid(3), Lid(2)) };
    let out = r.arrive(2, from, &m);
    assert_eq!((out[0].port, out[0].mad.get(Mad::STATUS), out[0].mad.bytes()[64 + 43]), (1, 0, 5));
    assert_eq!(r.port(1, |p| _ = p.set(PortInfo::PORT_STATE, port_state::DOWN)), 0);
    assert_eq!((r.arrive(2, from, &m), r.s.port(1).unwrap().counters.xmit_discards), (vec![], 1));
}

#[test]
fn the_key_of_port_0() {
    let mut r = ManagedSwitch::routed();
    let lock = |p: &mut PortInfo| _ = p.set(PortInfo::M_KEY, 9).set(PortInfo::M_KEY_PROTECT, 1);
    assert_eq!(r.port(0, lock), 0);
    assert_eq!(r.get(attr::PORT_INFO, 0).port_info().get(PortInfo::M_KEY), 0, "not shown");
    let mut set = smp(METHOD_SET, attr::LINEAR_FORWARDING, 0);
    set.set(Mad::M_KEY, 8);
    assert_eq!(r.arrive(2, Address::smp(Lid(4), Lid(2)), &set), []);
    assert_eq!(r.s.forward(Lid(3)), Some(1), "nothing was set");
    assert_eq!(r.s.port(0).unwrap().info().get(PortInfo::M_KEY_VIOLATIONS), 1);
    let out = r.s.poll(0);
    let n = out[0].mad.notice();
    assert_eq!(
        (n.get(Notice::TRAP_NUMBER), n.get(Notice::LID), n.get(Notice::M_KEY)),
        (trap::BAD_M_KEY, 4, 8)
    );
    set.set(Mad::M_KEY, 9);
    assert_eq!(r.ask(&set).get(Mad::STATUS), 0x8000);
    assert_eq!(r.s.forward(Lid(3)), Some(0), "the datagram's zeros");
}

#[test]
fn what_is_not_there() {
    let mut r = ManagedSwitch::new();
    for attribute in [attr::SM_INFO, 0x1a, 0x30, 0x31, attr::NOTICE, 0x7777] {
        let status = r.get(attribute, 0).get(Mad::STATUS);
        assert_eq!(status, 0x8000 | STATUS_BAD_ATTRIBUTE, "{attribute:#x}");
    }
    let answered = smp(0x81, attr::NODE_INFO, 0);
    assert_eq!(r.arrive(1, Address::directed(), &answered), [], "a response");
    let ports = |ports| {
        Switch::new(SwitchConfig {
            ports,
            kind: PortKind::InfiniBand,
            node_guid: 1,
            system_image_guid: 1,
            node_description: "x".repeat(99),
        })
    };
    assert_eq!((ports(0).ports(), ports(255).ports()), (1, MAX_PORTS));
}
