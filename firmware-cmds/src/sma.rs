//! The subnet management agents (SMA) of an adapter's ports, and the entry to both agents of a port.
//!
//! Source: IBTA 13.4.7 (MAD status), 14.2 (SMPs and their attributes), 14.2.2 (directed routes), 14.2.4
//! (M_Key), 14.3.

use hca_spec::ids::Lid;
use hca_spec::mad::{
    CLASS_SUBN_DIRECTED, Mad, NodeInfo, PortInfo, STATUS_BAD_ATTRIBUTE, STATUS_INVALID_VALUE, attr,
    port_state,
};

use crate::agent::{self, Request, answer};
use crate::datagram::{Address, Arrival, Departure};
use crate::directed::{self, Step};
use crate::effect::Effect;
use crate::limits::{PKEYS, VENDOR_ID};
use crate::notice::{self, KeyViolation};
use crate::personality::PortKind;
use crate::pma;
use crate::port::smp::{port_info, vendor_port_info};
use crate::port::{KeyCheck, Port};
use crate::ports::{AdapterPort, Ports};

/// Where a datagram came from, for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// From the host, which may do without the key.
    Host {
        /// It does.
        trusted: bool,
    },
    /// From that LID, by the wire.
    Wire(Lid),
}

/// Whether datagrams to QP0 and QP1 are for agents of the port: on Ethernet there is no QP0, and QP1 is its driver's alone
/// (IBTA A16.4, A17.9).
fn has_agents(port: &Port) -> bool {
    port.kind() == PortKind::InfiniBand
}

impl Ports {
    /// An agent's answer to a datagram, as the built-in subnet manager sends it; `None` for what is not answered:
    /// responses, TrapRepress, subnet management with a wrong M_Key, and anything on Ethernet.
    pub fn mad(&mut self, port: u8, mad: &Mad, effects: &mut Vec<Effect>) -> Option<Mad> {
        self.agents(port, mad, Source::Host { trusted: false }, effects)
    }

    /// Gives a port the key of the fabric's owner, whatever it had.
    pub fn protect(&mut self, port: u8, key: u64) {
        if let Some(port) = self.port_mut(port) {
            port.protect(key);
        }
    }

    /// Handles a datagram to QP0 or QP1 that came by the port and that an agent takes ([`takes`](crate::agent::takes)), or for
    /// which no driver has a queue pair there: an agent's answer, addressed. What is not answered was counted.
    pub fn wire_mad(&mut self, arrival: &Arrival, mad: &Mad, effects: &mut Vec<Effect>) -> Option<Departure> {
        let Arrival { port: number, address, .. } = *arrival;
        let port = self.port_mut(number).filter(|port| has_agents(port))?;
        if !agent::is_well_addressed(&address, mad) {
            port.counters.rcv_error();
            return None;
        }
        let directed = mad.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED;
        let mut mad = *mad;
        if directed && directed::step(&mut mad, number) != Step::Agent {
            // An adapter is always the last of a route, and there is no manager here.
            port.counters.rcv_error();
            return None;
        }
        let mut mad = self.agents(number, &mad, Source::Wire(address.slid), effects)?;
        let port = self.port_mut(number)?;
        let address = if directed && mad.get(Mad::DR_DLID) == u32::from(Lid::PERMISSIVE.0) {
            match directed::step(&mut mad, number) {
                Step::Port(port) if port == number => Address::directed(),
                Step::Lid(to) => Address::smp(port.lid(), to),
                _ => {
                    port.counters.rcv_error();
                    return None;
                }
            }
        } else {
            address.answer(port.lid())
        };
        if port.state == port_state::DOWN {
            // The datagram itself took the link down.
            port.counters.xmit_discard();
            return None;
        }
        Some(Departure { port: number, address, mad })
    }

    /// When [`Ports::poll`] of that port has something to do, in picoseconds; 0 = at once. Ask after each call that
    /// may change something: commands, datagrams, links.
    pub fn poll_at(&self, port: u8) -> Option<u64> {
        let AdapterPort { port, notices } = self.ports.get(usize::from(port).wrapping_sub(1))?;
        let traps = notices.at().filter(|_| port.state != port_state::DOWN);
        [traps, port.lease_at()].into_iter().flatten().min()
    }

    /// Time starts later by so many picoseconds: what waits for a moment waits for one that is earlier.
    pub fn rebase(&mut self, by: u64) {
        for AdapterPort { port, notices } in &mut self.ports {
            port.rebase(by);
            notices.rebase(by);
        }
    }

    /// Lets time pass: what a port's agents send of themselves at `now` (picoseconds), traps that is. A manager
    /// at this very port gets them, too: its LID is the port's own.
    pub fn poll(&mut self, port: u8, now: u64) -> Option<Departure> {
        let AdapterPort { port, notices } = self.adapter_port(port)?;
        port.tend_lease(now);
        if port.state == port_state::DOWN {
            return None;
        }
        let (address, mad) = notices.next(port, now)?;
        Some(Departure { port: port.number(), address, mad })
    }

    /// Counts a packet with a wrong P_Key or Q_Key that came by a port, and tells its subnet manager (traps 257 and 258), if
    /// the port is in a subnet that has one.
    pub fn key_violation(&mut self, port: u8, violation: &KeyViolation) {
        let Some(AdapterPort { port, notices }) = self.adapter_port(port) else { return };
        if violation.q_key {
            port.qkey_violation();
        } else {
            port.pkey_violation();
        }
        notices.raise(port, violation.notice());
    }

    /// Changes CapabilityMask bits of a port that software may change, as the PCAP register and
    /// MODIFY_HCA_VPORT_CONTEXT do.
    pub(crate) fn change_capabilities(&mut self, port: u8, mask: u32, value: u32) {
        let Some(AdapterPort { port, notices }) = self.adapter_port(port) else { return };
        if port.change_capabilities(mask, value) {
            notices.raise(port, notice::local_changes(port, false));
        }
    }

    /// Changes NodeDescription, as the driver does: the subnet managers of all ports are told.
    pub(crate) fn set_node_description(&mut self, text: &[u8]) {
        for AdapterPort { port, notices } in &mut self.ports {
            if port.set_node_description(text) {
                notices.raise(port, notice::local_changes(port, true));
            }
        }
    }

    /// Both agents of a port: the answer, if there is one.
    pub(crate) fn agents(
        &mut self,
        number: u8,
        mad: &Mad,
        source: Source,
        effects: &mut Vec<Effect>,
    ) -> Option<Mad> {
        let node = self.node_info(number);
        let at = self.adapter_port(number).filter(|at| has_agents(&at.port))?;
        match agent::request(mad) {
            Request::Ignore => None,
            Request::Refuse(status) => Some(answer(mad, status)),
            Request::Performance { set } => {
                let mut response = *mad;
                let ports = std::slice::from_mut(&mut at.port);
                let status = pma::performance(ports, set, mad, &mut response);
                Some(answer(&response, status))
            }
            Request::Repress => {
                if at.key(mad, false, source) == KeyCheck::Open {
                    at.notices.repress(mad);
                }
                None
            }
            Request::Subnet { set } => {
                let check = at.key(mad, !set, source);
                if check == KeyCheck::Refused {
                    return None;
                }
                let mut response = *mad;
                let status = at.subnet(&node, set, mad, &mut response, effects);
                if mad.get(Mad::ATTRIBUTE_ID) == attr::PORT_INFO && !at.port.shows_key(check) {
                    response.port_info_mut().set(PortInfo::M_KEY, 0);
                }
                Some(answer(&response, status))
            }
        }
    }

    fn node_info(&self, port: u8) -> NodeInfo {
        let mut n = NodeInfo::new();
        n.set(NodeInfo::BASE_VERSION, 1).set(NodeInfo::CLASS_VERSION, 1);
        // A channel adapter.
        n.set(NodeInfo::NODE_TYPE, 1).set(NodeInfo::NUM_PORTS, self.ports.len() as u32);
        n.set(NodeInfo::SYSTEM_IMAGE_GUID, self.config.system_image_guid);
        n.set(NodeInfo::NODE_GUID, self.config.node_guid);
        n.set(NodeInfo::PORT_GUID, self.config.guid_of_port(port));
        n.set(NodeInfo::PARTITION_CAP, PKEYS as u32)
            .set(NodeInfo::DEVICE_ID, self.config.personality.pci.device.into());
        n.set(NodeInfo::LOCAL_PORT_NUM, port.into()).set(NodeInfo::VENDOR_ID, VENDOR_ID);
        n
    }
}

impl AdapterPort {
    fn key(&mut self, mad: &Mad, get: bool, source: Source) -> KeyCheck {
        if source == (Source::Host { trusted: true }) {
            return KeyCheck::Open;
        }
        let check = self.port.check_key(mad.get(Mad::M_KEY), get);
        if let (KeyCheck::Refused, Source::Wire(slid)) = (check, source) {
            let notice = notice::bad_management_key(notice::ADAPTER, slid, mad);
            self.notices.raise(&self.port, notice);
        }
        check
    }

    /// Get or Set of subnet management; the status. `node` is NodeInfo as this port shows it.
    fn subnet(
        &mut self,
        node: &NodeInfo,
        set: bool,
        mad: &Mad,
        response: &mut Mad,
        effects: &mut Vec<Effect>,
    ) -> u32 {
        let modifier = mad.get(Mad::ATTRIBUTE_MODIFIER);
        let new = set.then(|| mad.smp_data().bytes());
        let block = (modifier & 0xffff) as usize;
        let port = &mut self.port;
        let data = match (mad.get(Mad::ATTRIBUTE_ID), set) {
            (attr::NODE_DESCRIPTION, false) => Some(port.node_description),
            (attr::NODE_INFO, false) => {
                *response.node_info_mut() = *node;
                return 0;
            }
            // The modifier names this very port; 0 is the one that the datagram came in by.
            (attr::PORT_INFO | attr::VENDOR_EXT_PORT_INFO, _)
                if modifier & 0xff != 0 && modifier & 0xff != port.number().into() =>
            {
                None
            }
            (attr::PORT_INFO, _) => return port_info(port, set, mad, response, effects),
            (attr::VENDOR_EXT_PORT_INFO, _) => Some(vendor_port_info(port, new)),
            (attr::GUID_INFO, _) => port.guid_block(modifier as usize, new, effects),
            (attr::PKEY_TABLE, _) => port.pkey_block(block, new, effects),
            (attr::SL_TO_VL, _) => Some(port.lanes(0, new)),
            (attr::VL_ARBITRATION, _) => port.arbitration(modifier >> 16, new),
            _ => return STATUS_BAD_ATTRIBUTE,
        };
        let Some(data) = data else { return STATUS_INVALID_VALUE };
        *response.smp_data_mut().bytes_mut() = data;
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortLink;
    use crate::profile::Config;
    use crate::speed::LinkSpeed;
    use hca_spec::eqe::port_change;
    use hca_spec::ids::Qpn;
    use hca_spec::mad::{
        CLASS_PERF, CLASS_SUBN_LID_ROUTED, INITIAL_PATH, METHOD_GET, METHOD_GET_RESP, METHOD_SET,
        METHOD_TRAP_REPRESS, Notice, RETURN_PATH, STATUS_BAD_METHOD, STATUS_BAD_VERSION, phys_state,
        port_cap, trap,
    };

    fn smp(method: u32, attribute: u32, modifier: u32) -> Mad {
        let mut m = Mad::new();
        m.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
        m.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, modifier);
        m
    }

    struct ManagedAdapter {
        f: Ports,
        effects: Vec<Effect>,
    }

    impl ManagedAdapter {
        fn up() -> Self {
            let mut r = Self { f: Ports::new(Config::default()), effects: Vec::new() };
            r.f.set_link(1, Some(PortLink::default()), &mut r.effects);
            r.effects.clear();
            r
        }

        fn ask(&mut self, mad: &Mad) -> Mad {
            self.f.mad(1, mad, &mut self.effects).expect("an answer")
        }

        /// Get(PortInfo), a change, Set(PortInfo), as subnet managers do; the status.
        fn change(&mut self, change: impl Fn(&mut PortInfo)) -> u32 {
            let mut m = self.ask(&smp(METHOD_GET, attr::PORT_INFO, 1));
            m.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
            m.port_info_mut().set(PortInfo::PORT_STATE, 0).set(PortInfo::PORT_PHYSICAL_STATE, 0);
            change(m.port_info_mut());
            self.ask(&m).get(Mad::STATUS)
        }

        fn events(&mut self) -> Vec<u8> {
            self.effects
                .drain(..)
                .map(|e| match e {
                    Effect::PortChange { port: 1, sub_type } => sub_type,
                    other => panic!("{other:?}"),
                })
                .collect()
        }
    }

    #[test]
    fn a_subnet_manager_brings_the_port_up() {
        let mut r = ManagedAdapter::up();
        let set_state = |r: &mut ManagedAdapter, state| r.change(|p| _ = p.set(PortInfo::PORT_STATE, state));
        assert_eq!(r.change(|p| _ = p.set(PortInfo::LID, 7).set(PortInfo::MASTER_SM_LID, 1)), 0);
        assert_eq!(r.events(), [port_change::LID]);
        assert_eq!(set_state(&mut r, port_state::ACTIVE), STATUS_INVALID_VALUE, "not from INIT");
        assert_eq!(set_state(&mut r, port_state::INIT), STATUS_INVALID_VALUE, "never by a Set");
        assert_eq!(r.events(), []);
        for state in [port_state::ARMED, port_state::ACTIVE, port_state::ACTIVE] {
            assert_eq!(set_state(&mut r, state), 0);
        }
        assert_eq!(r.events(), [port_change::ACTIVE]);
        let p = r.f.port(1).unwrap();
        assert!(p.is_own_lid(Lid(7)) && !p.is_own_lid(Lid(8)));
        assert_eq!(set_state(&mut r, port_state::DOWN), 0);
        assert_eq!(r.events(), [port_change::DOWN]);
        r.f.set_link(1, Some(PortLink::default()), &mut r.effects);
        assert_eq!(r.events(), [port_change::INITIALIZED], "the link trains again");
        assert_eq!(r.f.ports[0].port.info().get(PortInfo::LID), 7, "configuration outlives the link");
    }

    #[test]
    fn a_disabled_port_stays_down() {
        let mut r = ManagedAdapter::up();
        let physical = |state| move |p: &mut PortInfo| _ = p.set(PortInfo::PORT_PHYSICAL_STATE, state);
        assert_eq!(r.change(physical(phys_state::DISABLED)), 0);
        assert_eq!(r.events(), [port_change::DOWN]);
        r.f.set_link(1, Some(PortLink::default()), &mut r.effects);
        assert_eq!((r.events(), r.f.ports[0].port.state), (vec![], port_state::DOWN));
        assert_eq!(r.change(physical(phys_state::POLLING)), 0);
        assert_eq!(std::mem::take(&mut r.effects), [Effect::PortEnabled { port: 1 }]);
        r.f.set_link(1, Some(PortLink::default()), &mut r.effects);
        assert_eq!(r.events(), [port_change::INITIALIZED]);
        assert_eq!(r.change(physical(1)), STATUS_INVALID_VALUE, "no sleep");
    }

    #[test]
    fn what_a_set_may_not_say() {
        let mut r = ManagedAdapter::up();
        for bad in [
            (|p| _ = p.set(PortInfo::LID, 0xc000)) as fn(&mut PortInfo),
            |p| _ = p.set(PortInfo::LID, 0xffff),
            |p| _ = p.set(PortInfo::NEIGHBOR_MTU, 6),
            |p| _ = p.set(PortInfo::OPERATIONAL_VLS, 5),
            |p| _ = p.set(PortInfo::PORT_STATE, 5),
        ] {
            let before = r.f.ports[0].port.info();
            assert_eq!(r.change(bad), STATUS_INVALID_VALUE);
            assert_eq!(r.f.ports[0].port.info(), before);
        }
        assert_eq!(r.events(), []);
    }

    #[test]
    fn events_of_changes() {
        let mut r = ManagedAdapter::up();
        assert_eq!(r.change(|p| _ = p.set(PortInfo::CLIENT_REREGISTER, 1)), 0);
        assert_eq!(r.events(), [port_change::CLIENT_REREGISTER]);
        assert_eq!(r.f.ports[0].port.info().get(PortInfo::CLIENT_REREGISTER), 0, "not kept");
        assert_eq!(r.change(|p| p.bytes_mut()[8] = 0xfd), 0);
        assert_eq!(r.events(), [port_change::GUID], "a new subnet prefix changes every GID");
        let mut m = smp(METHOD_SET, attr::PKEY_TABLE, 0);
        m.smp_data_mut().bytes_mut()[..4].copy_from_slice(&[0xff, 0xff, 0x80, 1]);
        assert_eq!(r.ask(&m).smp_data().bytes()[..6], [0xff, 0xff, 0x80, 1, 0, 0]);
        assert_eq!((r.events(), r.f.ports[0].port.pkey(1)), (vec![port_change::PKEY], 0x8001));
        r.ask(&m);
        assert_eq!(r.events(), [], "the same table again");
        let mut m = smp(METHOD_SET, attr::GUID_INFO, 0);
        m.smp_data_mut().bytes_mut()[..16].copy_from_slice(&[9; 16]);
        let own = r.f.config.port_guid;
        assert_eq!(hca_spec::be64(r.ask(&m).smp_data().bytes(), 0), own, "read only");
        assert_eq!(
            (r.events(), r.f.ports[0].port.guids[1]),
            (vec![port_change::GUID], 0x0909_0909_0909_0909)
        );
    }

    #[test]
    fn tables() {
        let mut r = ManagedAdapter::up();
        for (attribute, modifier) in [
            (attr::PKEY_TABLE, 1),
            (attr::PKEY_TABLE, 0xffff),
            (attr::GUID_INFO, 1),
            (attr::GUID_INFO, u32::MAX),
            (attr::PORT_INFO, 2),
            (attr::VL_ARBITRATION, 0),
            (attr::VL_ARBITRATION, 5 << 16),
        ] {
            let status = r.ask(&smp(METHOD_GET, attribute, modifier)).get(Mad::STATUS);
            assert_eq!(status, STATUS_INVALID_VALUE, "{attribute:#x} {modifier:#x}");
        }
        for (attribute, modifier) in [(attr::SL_TO_VL, 0), (attr::VL_ARBITRATION, 3 << 16)] {
            let mut m = smp(METHOD_SET, attribute, modifier);
            m.smp_data_mut().bytes_mut()[..4].copy_from_slice(&[1, 2, 3, 4]);
            assert_eq!(r.ask(&m).get(Mad::STATUS), 0);
            let got = r.ask(&smp(METHOD_GET, attribute, modifier));
            assert_eq!(got.smp_data().bytes()[..5], [1, 2, 3, 4, 0]);
        }
        let name = r.ask(&smp(METHOD_GET, attr::NODE_DESCRIPTION, 0));
        assert_eq!(name.smp_data().bytes()[..8], *b"softhca\0");
    }

    #[test]
    fn speeds_of_the_vendor() {
        let mut r = ManagedAdapter::up();
        let answer = r.ask(&smp(METHOD_GET, attr::VENDOR_EXT_PORT_INFO, 1));
        assert_eq!(answer.get(Mad::STATUS), 0);
        let speeds = |m: &Mad| m.smp_data().bytes()[..16].to_vec();
        assert_eq!(speeds(&answer), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0], "FDR10, not active");
        let fdr10 = PortLink { speed: LinkSpeed::Fdr10, ..PortLink::default() };
        r.f.set_link(1, Some(fdr10), &mut r.effects);
        let mut m = smp(METHOD_SET, attr::VENDOR_EXT_PORT_INFO, 1);
        assert_eq!(speeds(&r.ask(&m))[11..], [1, 0, 0, 0, 1], "active; a Set that enables no change");
        m.smp_data_mut().bytes_mut()[3] = 1;
        assert_eq!(speeds(&r.ask(&m))[11], 0, "disabled for the next training");
        let of_no_port = r.ask(&smp(METHOD_GET, attr::VENDOR_EXT_PORT_INFO, 2));
        assert_eq!(of_no_port.get(Mad::STATUS), STATUS_INVALID_VALUE);
    }

    #[test]
    fn what_is_not_understood() {
        let mut r = ManagedAdapter::up();
        let status = |r: &mut ManagedAdapter, m: &Mad| r.ask(m).get(Mad::STATUS);
        // The driver's private attribute: it is asked for at start and may not be there.
        assert_eq!(status(&mut r, &smp(METHOD_GET, 0xff91, 1)), STATUS_BAD_ATTRIBUTE);
        assert_eq!(status(&mut r, &smp(METHOD_SET, attr::NODE_INFO, 0)), STATUS_BAD_ATTRIBUTE);
        assert_eq!(status(&mut r, &smp(3, attr::NODE_INFO, 0)), STATUS_BAD_METHOD);
        let mut m = smp(METHOD_GET, attr::NODE_INFO, 0);
        m.set(Mad::MGMT_CLASS, 0x21);
        assert_eq!(status(&mut r, &m), STATUS_BAD_VERSION);
        m.set(Mad::MGMT_CLASS, 1).set(Mad::BASE_VERSION, 2);
        assert_eq!(status(&mut r, &m), STATUS_BAD_VERSION);
        for method in [METHOD_GET_RESP, METHOD_TRAP_REPRESS] {
            assert_eq!(r.f.mad(1, &smp(method, attr::NODE_INFO, 0), &mut r.effects), None);
        }
        assert_eq!(r.f.mad(2, &smp(METHOD_GET, attr::NODE_INFO, 0), &mut r.effects), None);
    }

    #[test]
    fn the_management_key_protects() {
        let mut r = ManagedAdapter::up();
        assert_eq!(r.change(|p| _ = p.set(PortInfo::M_KEY, 0x77).set(PortInfo::M_KEY_PROTECT, 1)), 0);
        let get = smp(METHOD_GET, attr::PORT_INFO, 1);
        assert_eq!(r.ask(&get).port_info().get(PortInfo::M_KEY), 0, "not told");
        let mut with_key = get;
        with_key.set(Mad::M_KEY, 0x77);
        let mut m = r.ask(&with_key);
        assert_eq!(m.port_info().get(PortInfo::M_KEY), 0x77);
        m.set(Mad::METHOD, METHOD_SET)
            .port_info_mut()
            .set(PortInfo::PORT_STATE, 0)
            .set(PortInfo::M_KEY_PROTECT, 2);
        m.set(Mad::M_KEY, 0);
        assert_eq!(r.f.mad(1, &m, &mut r.effects), None, "a Set without the key");
        m.set(Mad::M_KEY, 0x77);
        assert_eq!(r.ask(&m).get(Mad::STATUS), 0);
        assert_eq!(r.f.mad(1, &get, &mut r.effects), None, "at 2 not even a Get");
        // The Set brought the counter back to zero; this Get is the first since.
        assert_eq!(r.f.ports[0].port.info().get(PortInfo::M_KEY_VIOLATIONS), 1);
    }

    /// A datagram by the wire, for an adapter without a driver.
    fn arrival(address: Address) -> Arrival {
        Arrival { port: 1, address, now: 0 }
    }

    /// A Get(NodeInfo) on a directed route of `count` hops, as the last switch passes it on.
    fn directed_smp(count: u32) -> Mad {
        let mut m = smp(METHOD_GET, attr::NODE_INFO, 0);
        m.set(Mad::MGMT_CLASS, CLASS_SUBN_DIRECTED).set(Mad::HOP_COUNT, count).set(Mad::HOP_POINTER, count);
        m.set(Mad::DR_SLID, 0xffff).set(Mad::DR_DLID, 0xffff);
        m.bytes_mut()[INITIAL_PATH + 1..][..count as usize].fill(3);
        m
    }

    #[test]
    fn the_end_of_a_directed_route() {
        let mut r = ManagedAdapter::up();
        let wire = arrival(Address::directed());
        let d = r.f.wire_mad(&wire, &directed_smp(2), &mut r.effects).unwrap();
        assert_eq!((d.port, d.address), (1, Address::directed()));
        let m = &d.mad;
        assert_eq!(m.bytes()[..8], [1, 0x81, 1, 0x81, 0x80, 0, 2, 2], "GetResp, D, one hop back already");
        assert_eq!(m.bytes()[RETURN_PATH..][..4], [0, 0, 1, 0], "it came by port 1 at hop 2");
        assert_eq!(m.node_info().get(NodeInfo::NODE_TYPE), 1);
        // The last part by LID: the switch with LID 9 ended the route; the answer goes to it.
        r.change(|p| _ = p.set(PortInfo::LID, 7));
        let mut m = directed_smp(2);
        m.set(Mad::HOP_POINTER, 3).set(Mad::DR_DLID, 7);
        let d = r.f.wire_mad(&arrival(Address::smp(Lid(9), Lid(7))), &m, &mut r.effects).unwrap();
        assert_eq!((d.address, d.mad.get(Mad::HOP_POINTER)), (Address::smp(Lid(7), Lid(9)), 3));
        // No hops: by LID and back.
        let mut m = directed_smp(0);
        m.set(Mad::DR_SLID, 9);
        let d = r.f.wire_mad(&arrival(Address::smp(Lid(9), Lid(7))), &m, &mut r.effects).unwrap();
        assert_eq!((d.address, d.mad.get(Mad::HOP_POINTER)), (Address::smp(Lid(7), Lid(9)), 0));
    }

    #[test]
    fn routes_that_do_not_end_here() {
        let mut r = ManagedAdapter::up();
        let pointers = [(3, 2), (3, 0), (3, 5), (64, 64)];
        for (count, pointer) in pointers {
            let mut m = directed_smp(2);
            m.set(Mad::HOP_COUNT, count).set(Mad::HOP_POINTER, pointer);
            assert_eq!(r.f.wire_mad(&arrival(Address::directed()), &m, &mut r.effects), None);
        }
        let mut back = directed_smp(2);
        back.set(Mad::DIRECTION, 1).set(Mad::HOP_POINTER, 1);
        assert_eq!(
            r.f.wire_mad(&arrival(Address::directed()), &back, &mut r.effects),
            None,
            "no manager here"
        );
        // An SMP to QP1.
        let gmp = Address { qp: Qpn(1), source_qp: Qpn(1), ..Address::smp(Lid(1), Lid(2)) };
        let m = smp(METHOD_GET, attr::NODE_INFO, 0);
        assert_eq!(r.f.wire_mad(&arrival(gmp), &m, &mut r.effects), None);
        assert_eq!(r.f.ports[0].port.counters.rcv_errors, pointers.len() as u32 + 2);
        // A link that the datagram takes down carries no answer.
        r.change(|p| _ = p.set(PortInfo::LID, 2));
        let mut off = r.ask(&smp(METHOD_GET, attr::PORT_INFO, 1));
        off.set(Mad::METHOD, METHOD_SET).port_info_mut().set(PortInfo::PORT_STATE, port_state::DOWN);
        off.port_info_mut().set(PortInfo::PORT_PHYSICAL_STATE, 0);
        assert_eq!(r.f.wire_mad(&arrival(Address::smp(Lid(1), Lid(2))), &off, &mut r.effects), None);
        assert_eq!(
            (r.f.ports[0].port.state, r.f.ports[0].port.counters.xmit_discards),
            (port_state::DOWN, 1)
        );
        assert_eq!(r.f.wire_mad(&Arrival { port: 2, ..arrival(gmp) }, &m, &mut r.effects), None);
    }

    #[test]
    fn the_other_agent_is_asked_by_qp1() {
        let mut r = ManagedAdapter::up();
        let mut m = smp(METHOD_GET, attr::CLASS_PORT_INFO, 0);
        m.set(Mad::MGMT_CLASS, CLASS_PERF);
        let from = Address { qp: Qpn(1), source_qp: Qpn(0x11), sl: 2, ..Address::smp(Lid(9), Lid(7)) };
        let d = r.f.wire_mad(&arrival(from), &m, &mut r.effects).unwrap();
        let to = Address { qp: Qpn(0x11), source_qp: Qpn(1), sl: 2, ..Address::smp(Lid(0), Lid(9)) };
        assert_eq!((d.address, d.mad.get(Mad::STATUS)), (to, 0));
    }

    /// IsSM changes: the manager elsewhere hears of it until it says so.
    #[test]
    fn a_changed_capability_is_told() {
        let mut r = ManagedAdapter::up();
        r.f.change_capabilities(1, port_cap::IS_SM, port_cap::IS_SM);
        assert_eq!(r.f.poll_at(1), None, "no manager yet");
        r.change(|p| _ = p.set(PortInfo::LID, 7).set(PortInfo::MASTER_SM_LID, 1));
        r.f.change_capabilities(1, port_cap::IS_SM, port_cap::IS_SM);
        assert_eq!(r.f.poll_at(1), None, "nothing new");
        r.f.change_capabilities(1, port_cap::IS_SM, 0);
        r.f.set_link(1, None, &mut r.effects);
        assert_eq!((r.f.poll_at(1), r.f.poll(1, 5)), (None, None), "no link");
        r.f.set_link(1, Some(PortLink::default()), &mut r.effects);
        assert_eq!(r.f.poll_at(1), Some(0));
        let d = r.f.poll(1, 5).expect("a trap");
        assert_eq!((d.port, d.address), (1, Address::smp(Lid(7), Lid(1))));
        let n = d.mad.notice();
        assert_eq!((n.get(Notice::TRAP_NUMBER), n.get(Notice::LID)), (trap::LOCAL_CHANGES, 7));
        assert_eq!(n.get(Notice::CAPABILITY_MASK), r.f.ports[0].port.info().get(PortInfo::CAPABILITY_MASK));
        let mut heard = d.mad;
        heard.set(Mad::METHOD, METHOD_TRAP_REPRESS);
        assert_eq!(r.f.wire_mad(&arrival(Address::smp(Lid(1), Lid(7))), &heard, &mut r.effects), None);
        assert_eq!(r.f.poll_at(1), None);
        r.f.set_node_description(b"another");
        assert!(r.f.poll_at(1).is_some());
    }

    #[test]
    fn a_wrong_key_by_wire_is_told() {
        let mut r = ManagedAdapter::up();
        r.change(|p| _ = p.set(PortInfo::LID, 7).set(PortInfo::MASTER_SM_LID, 1).set(PortInfo::M_KEY, 0x77));
        let mut m = smp(METHOD_SET, attr::PKEY_TABLE, 0);
        m.set(Mad::M_KEY, 0x78);
        assert_eq!(r.f.wire_mad(&arrival(Address::smp(Lid(66), Lid(7))), &m, &mut r.effects), None);
        let told = r.f.poll(1, 0).expect("a trap");
        let n = told.mad.notice();
        assert_eq!((n.get(Notice::TRAP_NUMBER), n.get(Notice::LID)), (trap::BAD_M_KEY, 66));
        assert_eq!((n.get(Notice::M_KEY), n.get(Notice::ATTRIBUTE_ID)), (0x78, attr::PKEY_TABLE));
        let bad = KeyViolation {
            key: 0x8001,
            q_key: false,
            slid: Lid(3),
            dlid: Lid(7),
            sl: 0,
            source_qp: 0x10,
            qp: 0x11,
        };
        r.f.key_violation(1, &bad);
        r.f.key_violation(1, &KeyViolation { q_key: true, ..bad });
        let info = r.f.ports[0].port.info();
        assert_eq!((info.get(PortInfo::P_KEY_VIOLATIONS), info.get(PortInfo::Q_KEY_VIOLATIONS)), (1, 1));
    }

    /// Neither by wire nor by command; wrong keys are counted all the same.
    #[test]
    fn no_agents_on_ethernet() {
        let config = Config { port_kind: PortKind::Ethernet, ..Config::default() };
        let mut r = ManagedAdapter { f: Ports::new(config), effects: Vec::new() };
        r.f.set_link(1, Some(PortLink::default()), &mut r.effects);
        let get = smp(METHOD_GET, attr::NODE_INFO, 0);
        assert_eq!(r.f.mad(1, &get, &mut r.effects), None);
        let wire = arrival(Address::smp(Lid(9), Lid(7)));
        assert_eq!(r.f.wire_mad(&wire, &get, &mut r.effects), None);
        r.f.set_node_description(b"other");
        r.f.key_violation(1, &KeyViolation { q_key: true, ..Default::default() });
        assert_eq!((r.f.poll_at(1), r.f.poll(1, u64::MAX)), (None, None));
        let info = r.f.port(1).unwrap().info();
        assert_eq!((info.get(PortInfo::Q_KEY_VIOLATIONS), info.get(PortInfo::M_KEY_VIOLATIONS)), (1, 0));
    }
}
