//! The subnet management agent (SMA) of the port, and the entry to both agents.
//!
//! Source: IBTA 13.4.7 (MAD status), 14.2 (SMPs and their attributes), 14.2.4 (M_Key), 14.3.

use hca_spec::eqe::port_change;
use hca_spec::ids::Lid;
use hca_spec::layout::Field;
use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_GET_RESP, METHOD_SET,
    METHOD_TRAP_REPRESS, Mad, NodeInfo, PortInfo, STATUS_BAD_ATTRIBUTE, STATUS_BAD_METHOD,
    STATUS_BAD_VERSION, STATUS_INVALID_VALUE, attr, phys_state, port_state,
};

use crate::datagram::{Arrival, Departure};
use crate::effect::Effect;
use crate::firmware::Firmware;
use crate::port::changed;
use crate::profile::{GUIDS, PKEYS, VENDOR_ID};

/// Bit 7 of a method: a response.
const RESPONSE: u32 = 0x80;
/// GUIDs of one GUIDInfo block.
const GUID_BLOCK: usize = 8;
/// P_Keys of one P_KeyTable block.
const PKEY_BLOCK: usize = 32;

impl Firmware {
    /// An agent's answer to a datagram from the wire; `None` for what is not answered: responses,
    /// TrapRepress, subnet management with a wrong M_Key.
    pub fn mad(&mut self, port: u8, mad: &Mad, effects: &mut Vec<Effect>) -> Option<Mad> {
        if port != 1 {
            return None;
        }
        self.agents(mad, true, effects)
    }

    /// Handles a datagram to QP0 or QP1 that came by the port and for which no driver has a queue pair there: an
    /// agent's answer, addressed. What is not answered was counted.
    pub fn wire_mad(&mut self, arrival: &Arrival, mad: &Mad, effects: &mut Vec<Effect>) -> Option<Departure> {
        let mad = self.mad(arrival.port, mad, effects)?;
        let address = arrival.address.answer(self.port.lid());
        Some(Departure { port: arrival.port, address, mad })
    }

    /// When [`Firmware::poll`] has something to do, in picoseconds; 0 = at once. Ask after each call that may
    /// change something.
    pub fn poll_at(&self) -> Option<u64> {
        None
    }

    /// Lets time pass: what the port's agents send of themselves at `now` (picoseconds), traps that is.
    pub fn poll(&mut self, now: u64) -> Vec<Departure> {
        let _ = now;
        Vec::new()
    }

    /// The same, with the choice not to check the M_Key, as the host has it.
    pub(crate) fn agents(&mut self, mad: &Mad, check_key: bool, effects: &mut Vec<Effect>) -> Option<Mad> {
        let method = mad.get(Mad::METHOD);
        if method & RESPONSE != 0 || method == METHOD_TRAP_REPRESS {
            return None;
        }
        if mad.get(Mad::BASE_VERSION) != 1 {
            return Some(answer(mad, STATUS_BAD_VERSION));
        }
        let class = mad.get(Mad::MGMT_CLASS);
        if !matches!(class, CLASS_SUBN_LID_ROUTED | CLASS_SUBN_DIRECTED | CLASS_PERF) {
            return Some(answer(mad, STATUS_BAD_VERSION));
        }
        if method != METHOD_GET && method != METHOD_SET {
            return Some(answer(mad, STATUS_BAD_METHOD));
        }
        let set = method == METHOD_SET;
        let mut response = *mad;
        let status = if class == CLASS_PERF {
            self.performance(set, mad, &mut response)
        } else {
            let key_fits = !check_key || self.key_fits(mad.get(Mad::M_KEY));
            if !key_fits && !self.allowed_without_key(set) {
                let n = self.port.info.get(PortInfo::M_KEY_VIOLATIONS);
                self.port.info.set(PortInfo::M_KEY_VIOLATIONS, (n + 1).min(0xffff));
                return None;
            }
            let status = self.subnet(set, mad, &mut response, effects);
            // Who does not know the key is not told it, when it is protected.
            let hidden = !key_fits && self.port.info.get(PortInfo::M_KEY_PROTECT) != 0;
            if mad.get(Mad::ATTRIBUTE_ID) == attr::PORT_INFO && hidden {
                response.port_info_mut().set(PortInfo::M_KEY, 0);
            }
            status
        };
        Some(answer(&response, status))
    }

    /// Whether a datagram's M_Key opens the port. A port without a key is open.
    fn key_fits(&self, key: u64) -> bool {
        let own = self.port.info.get(PortInfo::M_KEY);
        own == 0 || own == key
    }

    /// What the protection bits leave to datagrams without the key (IBTA 14.2.4.1): Gets, at 0 and 1.
    fn allowed_without_key(&self, set: bool) -> bool {
        !set && self.port.info.get(PortInfo::M_KEY_PROTECT) <= 1
    }

    fn subnet(&mut self, set: bool, mad: &Mad, response: &mut Mad, effects: &mut Vec<Effect>) -> u32 {
        let modifier = mad.get(Mad::ATTRIBUTE_MODIFIER);
        let data = response.smp_data_mut().bytes_mut();
        let new = mad.smp_data().bytes();
        match (mad.get(Mad::ATTRIBUTE_ID), set) {
            (attr::NODE_DESCRIPTION, false) => *data = self.port.node_description,
            (attr::NODE_INFO, false) => *response.node_info_mut() = self.node_info(),
            // The modifier names a port of a switch; 0 is the one that the datagram came in by.
            (attr::PORT_INFO, _) if modifier & 0xff > 1 => return STATUS_INVALID_VALUE,
            (attr::PORT_INFO, false) => *response.port_info_mut() = self.port.info(),
            (attr::PORT_INFO, true) => {
                let status = self.set_port_info(mad.port_info(), effects);
                *response.port_info_mut() = self.port.info();
                // The bit is echoed, not kept.
                let again = mad.port_info().get(PortInfo::CLIENT_REREGISTER);
                response.port_info_mut().set(PortInfo::CLIENT_REREGISTER, again);
                return status;
            }
            (attr::GUID_INFO, _) => return self.guid_info(set, modifier, new, data, effects),
            (attr::PKEY_TABLE, _) => return self.pkey_table(set, modifier, new, data, effects),
            (attr::SL_TO_VL, _) => {
                if let (true, Some(lanes)) = (set, new.first_chunk()) {
                    self.port.sl_to_vl = vec![*lanes];
                }
                let lanes = self.port.sl_to_vl.first().copied().unwrap_or_default();
                data.fill(0);
                data.iter_mut().zip(lanes).for_each(|(to, from)| *to = from);
            }
            (attr::VL_ARBITRATION, _) => {
                // 1 and 2 are the halves of the low priority table, 3 and 4 of the high.
                let block = (modifier >> 16).checked_sub(1);
                let table = block.and_then(|b| self.port.vl_arbitration.get_mut(b as usize));
                let Some(table) = table else { return STATUS_INVALID_VALUE };
                if set {
                    *table = *new;
                }
                *data = *table;
            }
            (attr::VENDOR_EXT_PORT_INFO, _) if modifier & 0xff > 1 => return STATUS_INVALID_VALUE,
            (attr::VENDOR_EXT_PORT_INFO, _) => {
                // A port has no speeds beyond the standard ones, and a Set changes nothing.
                data.fill(0);
            }
            _ => return STATUS_BAD_ATTRIBUTE,
        }
        0
    }

    fn guid_info(
        &mut self,
        set: bool,
        modifier: u32,
        new: &[u8; 64],
        data: &mut [u8; 64],
        effects: &mut Vec<Effect>,
    ) -> u32 {
        let Some(first) = (modifier as usize).checked_mul(GUID_BLOCK).filter(|first| *first < GUIDS) else {
            return STATUS_INVALID_VALUE;
        };
        if set {
            let old = self.port.guids;
            let block = self.port.guids.iter_mut().skip(first).zip(new.chunks_exact(8));
            for (i, (guid, raw)) in block.enumerate() {
                // The first is the port's own and can't be written.
                if first + i > 0 {
                    *guid = hca_spec::be64(raw, 0);
                }
            }
            if old != self.port.guids {
                changed(effects, port_change::GUID);
            }
        }
        data.fill(0);
        for (slot, guid) in data.chunks_exact_mut(8).zip(self.port.guids.iter().skip(first)) {
            slot.copy_from_slice(&guid.to_be_bytes());
        }
        0
    }

    fn pkey_table(
        &mut self,
        set: bool,
        modifier: u32,
        new: &[u8; 64],
        data: &mut [u8; 64],
        effects: &mut Vec<Effect>,
    ) -> u32 {
        let first = (modifier & 0xffff) as usize * PKEY_BLOCK;
        if first >= PKEYS {
            return STATUS_INVALID_VALUE;
        }
        if set {
            let old = self.port.pkeys;
            for (key, raw) in self.port.pkeys.iter_mut().skip(first).zip(new.chunks_exact(2)) {
                *key = (hca_spec::be32(&[0, 0, raw[0], raw[1]], 0)) as u16;
            }
            if old != self.port.pkeys {
                changed(effects, port_change::PKEY);
            }
        }
        data.fill(0);
        for (slot, key) in data.chunks_exact_mut(2).zip(self.port.pkeys.iter().skip(first)) {
            slot.copy_from_slice(&key.to_be_bytes());
        }
        0
    }

    fn node_info(&self) -> NodeInfo {
        let mut n = NodeInfo::new();
        n.set(NodeInfo::BASE_VERSION, 1).set(NodeInfo::CLASS_VERSION, 1);
        // A channel adapter.
        n.set(NodeInfo::NODE_TYPE, 1).set(NodeInfo::NUM_PORTS, 1);
        n.set(NodeInfo::SYSTEM_IMAGE_GUID, self.config.system_image_guid);
        n.set(NodeInfo::NODE_GUID, self.config.node_guid).set(NodeInfo::PORT_GUID, self.config.port_guid);
        n.set(NodeInfo::PARTITION_CAP, PKEYS as u32).set(NodeInfo::DEVICE_ID, self.config.device_id.into());
        n.set(NodeInfo::LOCAL_PORT_NUM, 1).set(NodeInfo::VENDOR_ID, VENDOR_ID);
        n
    }

    fn set_port_info(&mut self, new: &PortInfo, effects: &mut Vec<Effect>) -> u32 {
        let p = &mut self.port;
        let state = new.get(PortInfo::PORT_STATE);
        // 0 = no change; INIT -> ARMED -> ACTIVE, DOWN from anywhere; ACTIVE again is no change (IBTA 7.2.7).
        let legal_state = match state {
            0 | port_state::DOWN => true,
            port_state::ARMED => matches!(p.state, port_state::INIT | port_state::ARMED),
            port_state::ACTIVE => matches!(p.state, port_state::ARMED | port_state::ACTIVE),
            _ => false,
        };
        let physical = new.get(PortInfo::PORT_PHYSICAL_STATE);
        // 0 = no change. Sleeping is not supported, and a Get's LinkUp may come back in a Set.
        let legal_physical =
            matches!(physical, 0 | phys_state::POLLING | phys_state::DISABLED | phys_state::LINK_UP);
        let mtu = new.get(PortInfo::NEIGHBOR_MTU);
        let lanes = new.get(PortInfo::OPERATIONAL_VLS);
        let lid = Lid(new.get(PortInfo::LID) as u16);
        let legal_lid = !lid.is_multicast() && lid != Lid::PERMISSIVE;
        let legal_mtu = mtu <= p.info.get(PortInfo::MTU_CAP);
        let legal_lanes = lanes <= p.info.get(PortInfo::VL_CAP);
        if !(legal_state && legal_physical && legal_lid && legal_mtu && legal_lanes) {
            return STATUS_INVALID_VALUE;
        }
        let old = p.info;
        const KEPT: [Field<PortInfo>; 12] = [
            PortInfo::LID,
            PortInfo::MASTER_SM_LID,
            PortInfo::M_KEY_LEASE_PERIOD,
            PortInfo::M_KEY_PROTECT,
            PortInfo::LMC,
            PortInfo::MASTER_SM_SL,
            PortInfo::VL_HIGH_LIMIT,
            PortInfo::INIT_TYPE_REPLY,
            PortInfo::SUBNET_TIMEOUT,
            PortInfo::P_KEY_VIOLATIONS,
            PortInfo::Q_KEY_VIOLATIONS,
            PortInfo::M_KEY_VIOLATIONS,
        ];
        // Zero means "no change" in these.
        const NONZERO: [Field<PortInfo>; 3] =
            [PortInfo::NEIGHBOR_MTU, PortInfo::OPERATIONAL_VLS, PortInfo::LINK_WIDTH_ENABLED];
        for field in KEPT {
            p.info.set(field, new.get(field));
        }
        for field in NONZERO.into_iter().filter(|f| new.get(*f) != 0) {
            p.info.set(field, new.get(field));
        }
        p.info.set(PortInfo::M_KEY, new.get(PortInfo::M_KEY));
        p.info.set(PortInfo::GID_PREFIX, new.get(PortInfo::GID_PREFIX));

        match state {
            port_state::ACTIVE if p.state != port_state::ACTIVE => {
                p.state = port_state::ACTIVE;
                changed(effects, port_change::ACTIVE);
            }
            port_state::ARMED => p.state = port_state::ARMED,
            port_state::DOWN => p.drop_link(effects),
            _ => {}
        }
        match physical {
            phys_state::DISABLED => {
                p.drop_link(effects);
                p.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::DISABLED);
            }
            phys_state::POLLING => {
                p.drop_link(effects);
                p.train(effects);
            }
            // The link trains again at once, as long as the cable is there.
            _ if state == port_state::DOWN => p.train(effects),
            _ => {}
        }
        let differs = |fields: &[Field<PortInfo>]| fields.iter().any(|f| old.get(*f) != p.info.get(*f));
        if differs(&[PortInfo::LID, PortInfo::MASTER_SM_LID, PortInfo::LMC]) {
            changed(effects, port_change::LID);
        }
        if old.get(PortInfo::GID_PREFIX) != p.info.get(PortInfo::GID_PREFIX) {
            changed(effects, port_change::GUID);
        }
        if new.get(PortInfo::CLIENT_REREGISTER) == 1 {
            changed(effects, port_change::CLIENT_REREGISTER);
        }
        0
    }
}

/// Makes the response of a request: GetResp, the status, and of a directed route the direction.
fn answer(mad: &Mad, status: u32) -> Mad {
    let mut m = *mad;
    m.set(Mad::METHOD, METHOD_GET_RESP).set(Mad::STATUS, status);
    if m.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED {
        m.set(Mad::DIRECTION, 1);
    }
    m
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Link;
    use crate::profile::Config;

    fn smp(method: u32, attribute: u32, modifier: u32) -> Mad {
        let mut m = Mad::new();
        m.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
        m.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, modifier);
        m
    }

    struct Rig {
        f: Firmware,
        effects: Vec<Effect>,
    }

    impl Rig {
        fn up() -> Self {
            let mut r = Self { f: Firmware::new(Config::default()), effects: Vec::new() };
            r.f.set_link(1, Some(Link::default()), &mut r.effects);
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
        let mut r = Rig::up();
        let set_state = |r: &mut Rig, state| r.change(|p| _ = p.set(PortInfo::PORT_STATE, state));
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
        assert_eq!(r.events(), [port_change::DOWN, port_change::INITIALIZED], "the link trains again");
        assert_eq!(r.f.port.info().get(PortInfo::LID), 7, "configuration outlives the link");
    }

    #[test]
    fn a_disabled_port_stays_down() {
        let mut r = Rig::up();
        let physical = |state| move |p: &mut PortInfo| _ = p.set(PortInfo::PORT_PHYSICAL_STATE, state);
        assert_eq!(r.change(physical(phys_state::DISABLED)), 0);
        assert_eq!(r.events(), [port_change::DOWN]);
        r.f.set_link(1, Some(Link::default()), &mut r.effects);
        assert_eq!((r.events(), r.f.port.state), (vec![], port_state::DOWN));
        assert_eq!(r.change(physical(phys_state::POLLING)), 0);
        assert_eq!(r.events(), [port_change::INITIALIZED]);
        assert_eq!(r.change(physical(1)), STATUS_INVALID_VALUE, "no sleep");
    }

    #[test]
    fn what_a_set_may_not_say() {
        let mut r = Rig::up();
        for bad in [
            (|p| _ = p.set(PortInfo::LID, 0xc000)) as fn(&mut PortInfo),
            |p| _ = p.set(PortInfo::LID, 0xffff),
            |p| _ = p.set(PortInfo::NEIGHBOR_MTU, 6),
            |p| _ = p.set(PortInfo::OPERATIONAL_VLS, 5),
            |p| _ = p.set(PortInfo::PORT_STATE, 5),
        ] {
            let before = r.f.port.info();
            assert_eq!(r.change(bad), STATUS_INVALID_VALUE);
            assert_eq!(r.f.port.info(), before);
        }
        assert_eq!(r.events(), []);
    }

    #[test]
    fn events_of_changes() {
        let mut r = Rig::up();
        assert_eq!(r.change(|p| _ = p.set(PortInfo::CLIENT_REREGISTER, 1)), 0);
        assert_eq!(r.events(), [port_change::CLIENT_REREGISTER]);
        assert_eq!(r.f.port.info().get(PortInfo::CLIENT_REREGISTER), 0, "not kept");
        assert_eq!(r.change(|p| p.bytes_mut()[8] = 0xfd), 0);
        assert_eq!(r.events(), [port_change::GUID], "a new subnet prefix changes every GID");
        let mut m = smp(METHOD_SET, attr::PKEY_TABLE, 0);
        m.smp_data_mut().bytes_mut()[..4].copy_from_slice(&[0xff, 0xff, 0x80, 1]);
        assert_eq!(r.ask(&m).smp_data().bytes()[..6], [0xff, 0xff, 0x80, 1, 0, 0]);
        assert_eq!((r.events(), r.f.port.pkey(1)), (vec![port_change::PKEY], 0x8001));
        r.ask(&m);
        assert_eq!(r.events(), [], "the same table again");
        let mut m = smp(METHOD_SET, attr::GUID_INFO, 0);
        m.smp_data_mut().bytes_mut()[..16].copy_from_slice(&[9; 16]);
        let own = r.f.config.port_guid;
        assert_eq!(hca_spec::be64(r.ask(&m).smp_data().bytes(), 0), own, "read only");
        assert_eq!((r.events(), r.f.port.guids[1]), (vec![port_change::GUID], 0x0909_0909_0909_0909));
    }

    #[test]
    fn tables() {
        let mut r = Rig::up();
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
        let mut r = Rig::up();
        let answer = r.ask(&smp(METHOD_GET, attr::VENDOR_EXT_PORT_INFO, 1));
        assert_eq!(answer.get(Mad::STATUS), 0);
        assert_eq!(answer.smp_data().bytes(), &[0; 64], "none beyond the standard ones");
        let of_no_port = r.ask(&smp(METHOD_GET, attr::VENDOR_EXT_PORT_INFO, 2));
        assert_eq!(of_no_port.get(Mad::STATUS), STATUS_INVALID_VALUE);
    }

    #[test]
    fn what_is_not_understood() {
        let mut r = Rig::up();
        let status = |r: &mut Rig, m: &Mad| r.ask(m).get(Mad::STATUS);
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
        let mut r = Rig::up();
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
        assert_eq!(r.f.port.info().get(PortInfo::M_KEY_VIOLATIONS), 1);
    }
}
