//! The port and its agents: subnet management (SMA) and performance management (PMA).
//!
//! Source: IBTA 14.2 (SMPs and their attributes), 14.3 (SMA behaviour), 16.1 (performance management).

use hca_spec::eqe::port_change;
use hca_spec::ids::{Gid, Lid};
use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_GET_RESP, METHOD_SET, Mad,
    NodeInfo, PortInfo, STATUS_BAD_ATTRIBUTE, STATUS_BAD_METHOD, STATUS_BAD_VERSION, STATUS_INVALID_VALUE,
    attr, phys_state, port_cap, port_state,
};

use crate::effect::Effect;
use crate::firmware::Firmware;
use crate::profile::{Config, GUIDS, PKEYS, VENDOR_ID};

/// Signalling rate of a link's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the rates' names")]
pub enum LinkSpeed {
    Sdr,
    Ddr,
    Qdr,
    Fdr,
    #[default]
    Edr,
}

/// A trained link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Lanes: 1, 4, 8 or 12.
    pub width: u8,
    /// Rate of a lane.
    pub speed: LinkSpeed,
}

impl Default for Link {
    fn default() -> Self {
        Self { width: 4, speed: LinkSpeed::Edr }
    }
}

/// Counters of a port (IBTA 16.1.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "named as in PortCounters")]
pub struct PortCounters {
    pub xmit_data: u64,
    pub rcv_data: u64,
    pub xmit_packets: u64,
    pub rcv_packets: u64,
    pub rcv_errors: u32,
    pub xmit_discards: u32,
    pub link_downed: u32,
}

impl PortCounters {
    /// A packet of `len` bytes left. Data counters count 4-byte words.
    pub fn xmit(&mut self, len: usize) {
        self.xmit_packets += 1;
        self.xmit_data += len as u64 / 4;
    }

    /// A packet of `len` bytes came.
    pub fn rcv(&mut self, len: usize) {
        self.rcv_packets += 1;
        self.rcv_data += len as u64 / 4;
    }
}

/// A port. What a subnet manager sets survives the driver; only a device reset forgets it.
#[derive(Debug, Clone)]
pub struct Port {
    /// Logical state ([`port_state`]).
    pub state: u32,
    /// Counters.
    pub counters: PortCounters,
    info: PortInfo,
    link: Option<Link>,
    guids: [u64; GUIDS],
    pkeys: [u16; PKEYS],
    sl_to_vl: [u8; 8],
    vl_arbitration: [[u8; 64]; 4],
    node_description: [u8; 64],
}

/// Width code of PortInfo.
fn width_code(lanes: u8) -> u32 {
    match lanes {
        1 => 1,
        8 => 4,
        12 => 8,
        _ => 2,
    }
}

/// LinkSpeedActive (1 SDR, 2 DDR, 4 QDR) and LinkSpeedExtActive (1 FDR, 2 EDR). Ports on extended
/// speeds report QDR in the former.
fn speed_codes(speed: LinkSpeed) -> (u32, u8) {
    match speed {
        LinkSpeed::Sdr => (1, 0),
        LinkSpeed::Ddr => (2, 0),
        LinkSpeed::Qdr => (4, 0),
        LinkSpeed::Fdr => (4, 1),
        LinkSpeed::Edr => (4, 2),
    }
}

impl Port {
    pub(crate) fn new(config: &Config) -> Self {
        let mut info = PortInfo::new();
        info.set(PortInfo::GID_PREFIX, 0xfe80_0000_0000_0000);
        info.set(
            PortInfo::CAPABILITY_MASK,
            port_cap::TRAP
                | port_cap::SL_MAPPING
                | port_cap::SYS_IMAGE_GUID
                | port_cap::EXTENDED_SPEEDS
                | port_cap::CLIENT_REREGISTRATION,
        );
        info.set(PortInfo::LOCAL_PORT_NUM, 1);
        // 1x and 4x.
        info.set(PortInfo::LINK_WIDTH_ENABLED, 3).set(PortInfo::LINK_WIDTH_SUPPORTED, 3);
        info.set(PortInfo::LINK_SPEED_SUPPORTED, 7).set(PortInfo::LINK_SPEED_ENABLED, 7);
        info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
        info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, phys_state::POLLING);
        info.set(PortInfo::NEIGHBOR_MTU, 5).set(PortInfo::MTU_CAP, 5);
        info.set(PortInfo::VL_CAP, 4).set(PortInfo::OPERATIONAL_VLS, 4);
        info.set(PortInfo::VL_ARB_HIGH_CAP, 8).set(PortInfo::VL_ARB_LOW_CAP, 8);
        info.set(PortInfo::GUID_CAP, GUIDS as u32).set(PortInfo::SUBNET_TIMEOUT, 18);
        info.set(PortInfo::RESP_TIME_VALUE, 16);
        info.bytes_mut()[PortInfo::EXT_SPEED_ACTIVE_SUPPORTED] = 0x03;
        info.bytes_mut()[PortInfo::EXT_SPEED_ENABLED] = 0x03;
        let mut guids = [0; GUIDS];
        guids[0] = config.port_guid;
        let mut pkeys = [0; PKEYS];
        pkeys[0] = 0xffff;
        let mut node_description = [0; 64];
        let text = config.node_description.as_bytes();
        let n = text.len().min(63);
        node_description[..n].copy_from_slice(&text[..n]);
        Self {
            state: port_state::DOWN,
            counters: PortCounters::default(),
            info,
            link: None,
            guids,
            pkeys,
            sl_to_vl: [0; 8],
            vl_arbitration: [[0; 64]; 4],
            node_description,
        }
    }

    /// Base LID.
    pub fn lid(&self) -> Lid {
        Lid(self.info.get(PortInfo::LID) as u16)
    }

    fn path_mask(&self) -> u16 {
        (1 << self.info.get(PortInfo::LMC)) - 1
    }

    /// Whether packets to `lid` are for this port: the base LID or one of its paths.
    pub fn is_own_lid(&self, lid: Lid) -> bool {
        self.lid().0 != 0 && lid.0 & !self.path_mask() == self.lid().0
    }

    /// Path bits of a destination LID of this port.
    pub fn path_bits(&self, lid: Lid) -> u32 {
        u32::from(lid.0 & self.path_mask())
    }

    /// Source LID of packets with those path bits.
    pub fn source_lid(&self, path_bits: u32) -> Lid {
        Lid(self.lid().0 | (path_bits as u16 & self.path_mask()))
    }

    /// GID of that index; out of range gives index 0's.
    pub fn gid(&self, index: u32) -> Gid {
        let guid = self.guids.get(index as usize).copied().unwrap_or(self.guids[0]);
        Gid::new(self.info.get(PortInfo::GID_PREFIX), guid)
    }

    /// P_Key of that index; out of range gives 0, which matches nothing.
    pub fn pkey(&self, index: u32) -> u16 {
        self.pkeys.get(index as usize).copied().unwrap_or(0)
    }

    /// PortInfo as the agent reports it.
    pub fn info(&self) -> PortInfo {
        let mut info = self.info;
        info.set(PortInfo::PORT_STATE, self.state);
        info
    }

    /// Changes CapabilityMask bits, as the PCAP register and MODIFY_HCA_VPORT_CONTEXT do.
    pub(crate) fn change_capabilities(&mut self, mask: u32, value: u32) {
        let old = self.info.get(PortInfo::CAPABILITY_MASK);
        self.info.set(PortInfo::CAPABILITY_MASK, old & !mask | value & mask);
    }

    pub(crate) fn set_node_description(&mut self, text: &[u8]) {
        for (to, from) in self.node_description.iter_mut().zip(text) {
            *to = *from;
        }
    }

    pub(crate) fn node_description(&self) -> &[u8; 64] {
        &self.node_description
    }

    /// Counts a packet with a wrong P_Key.
    pub fn pkey_violation(&mut self) {
        let n = self.info.get(PortInfo::P_KEY_VIOLATIONS);
        self.info.set(PortInfo::P_KEY_VIOLATIONS, (n + 1).min(0xffff));
    }

    /// Counts a packet with a wrong Q_Key.
    pub fn qkey_violation(&mut self) {
        let n = self.info.get(PortInfo::Q_KEY_VIOLATIONS);
        self.info.set(PortInfo::Q_KEY_VIOLATIONS, (n + 1).min(0xffff));
    }
}

fn changed(effects: &mut Vec<Effect>, sub_type: u8) {
    effects.push(Effect::PortChange { port: 1, sub_type });
}

impl Firmware {
    /// The link of a port trained (to INIT) or was lost (to DOWN).
    pub fn set_link(&mut self, port: u8, link: Option<Link>, effects: &mut Vec<Effect>) {
        let Some(p) = self.port_mut(port) else { return };
        p.link = link;
        match link {
            Some(link) => {
                let (speed, extended) = speed_codes(link.speed);
                p.info.set(PortInfo::LINK_WIDTH_ACTIVE, width_code(link.width));
                p.info.set(PortInfo::LINK_SPEED_ACTIVE, speed);
                let byte = &mut p.info.bytes_mut()[PortInfo::EXT_SPEED_ACTIVE_SUPPORTED];
                *byte = *byte & 0x0f | extended << 4;
                p.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::LINK_UP);
                if p.state == port_state::DOWN {
                    p.state = port_state::INIT;
                    changed(effects, port_change::INITIALIZED);
                }
            }
            None => {
                p.info.set(PortInfo::PORT_PHYSICAL_STATE, phys_state::POLLING);
                if p.state != port_state::DOWN {
                    p.state = port_state::DOWN;
                    p.counters.link_downed = p.counters.link_downed.saturating_add(1);
                    changed(effects, port_change::DOWN);
                }
            }
        }
    }

    /// An agent's answer to a Get or Set; `None` for what is not answered.
    pub fn mad(&mut self, port: u8, mad: &Mad, effects: &mut Vec<Effect>) -> Option<Mad> {
        let method = mad.get(Mad::METHOD);
        if method & 0x80 != 0 || (method != METHOD_GET && method != METHOD_SET) {
            // Responses and TrapRepress end here; other methods get a status.
            let quiet = method & 0x80 != 0 || method == hca_spec::mad::METHOD_TRAP_REPRESS;
            return (!quiet).then(|| answer(mad, STATUS_BAD_METHOD));
        }
        let set = method == METHOD_SET;
        let mut response = *mad;
        let status = if mad.get(Mad::BASE_VERSION) != 1 || port != 1 {
            STATUS_BAD_VERSION
        } else {
            match mad.get(Mad::MGMT_CLASS) {
                CLASS_SUBN_LID_ROUTED | CLASS_SUBN_DIRECTED => self.subnet(set, mad, &mut response, effects),
                CLASS_PERF => self.performance(set, mad, &mut response),
                _ => STATUS_BAD_VERSION,
            }
        };
        Some(answer(&response, status))
    }

    fn subnet(&mut self, set: bool, mad: &Mad, response: &mut Mad, effects: &mut Vec<Effect>) -> u32 {
        let modifier = mad.get(Mad::ATTRIBUTE_MODIFIER);
        let data = response.smp_data_mut().bytes_mut();
        match (mad.get(Mad::ATTRIBUTE_ID), set) {
            (attr::NODE_DESCRIPTION, false) => *data = self.port.node_description,
            (attr::NODE_INFO, false) => *response.node_info_mut() = self.node_info(),
            (attr::PORT_INFO, false) => *response.port_info_mut() = self.port.info(),
            (attr::PORT_INFO, true) => {
                let status = self.set_port_info(mad.port_info(), effects);
                *response.port_info_mut() = self.port.info();
                return status;
            }
            (attr::GUID_INFO, _) => {
                let first = modifier as usize * 8;
                if first >= GUIDS {
                    return STATUS_INVALID_VALUE;
                }
                if set {
                    let old = self.port.guids;
                    for (i, guid) in self.port.guids.iter_mut().enumerate().skip(first.max(1)).take(8) {
                        *guid = hca_spec::be64(mad.smp_data().bytes(), (i - first) * 8);
                    }
                    if old != self.port.guids {
                        changed(effects, port_change::GUID);
                    }
                }
                data.fill(0);
                for (slot, guid) in data.chunks_exact_mut(8).zip(self.port.guids.iter().skip(first)) {
                    slot.copy_from_slice(&guid.to_be_bytes());
                }
            }
            (attr::PKEY_TABLE, _) => {
                let first = (modifier & 0xffff) as usize * 32;
                if first >= PKEYS {
                    return STATUS_INVALID_VALUE;
                }
                if set {
                    let old = self.port.pkeys;
                    for (key, raw) in
                        self.port.pkeys.iter_mut().skip(first).zip(mad.smp_data().bytes().chunks_exact(2))
                    {
                        *key = u16::from_be_bytes([raw[0], raw[1]]);
                    }
                    if old != self.port.pkeys {
                        changed(effects, port_change::PKEY);
                    }
                }
                data.fill(0);
                for (slot, key) in data.chunks_exact_mut(2).zip(self.port.pkeys.iter().skip(first)) {
                    slot.copy_from_slice(&key.to_be_bytes());
                }
            }
            (attr::SL_TO_VL, _) => {
                if set {
                    self.port.sl_to_vl.copy_from_slice(&mad.smp_data().bytes()[..8]);
                }
                data.fill(0);
                data[..8].copy_from_slice(&self.port.sl_to_vl);
            }
            (attr::VL_ARBITRATION, _) => {
                let Some(table) = (modifier >> 16)
                    .checked_sub(1)
                    .and_then(|t| self.port.vl_arbitration.get_mut(t as usize))
                else {
                    return STATUS_INVALID_VALUE;
                };
                if set {
                    *table = *mad.smp_data().bytes();
                }
                *data = *table;
            }
            _ => return STATUS_BAD_ATTRIBUTE,
        }
        0
    }

    fn node_info(&self) -> NodeInfo {
        let mut n = NodeInfo::new();
        n.set(NodeInfo::BASE_VERSION, 1).set(NodeInfo::CLASS_VERSION, 1);
        n.set(NodeInfo::NODE_TYPE, 1).set(NodeInfo::NUM_PORTS, 1);
        n.set(NodeInfo::SYSTEM_IMAGE_GUID, self.config.system_image_guid);
        n.set(NodeInfo::NODE_GUID, self.config.node_guid).set(NodeInfo::PORT_GUID, self.config.port_guid);
        n.set(NodeInfo::PARTITION_CAP, PKEYS as u32).set(NodeInfo::DEVICE_ID, self.config.device_id.into());
        n.set(NodeInfo::LOCAL_PORT_NUM, 1).set(NodeInfo::VENDOR_ID, VENDOR_ID);
        n
    }

    fn set_port_info(&mut self, new: &PortInfo, effects: &mut Vec<Effect>) -> u32 {
        let p = &mut self.port;
        let wanted = new.get(PortInfo::PORT_STATE);
        // 0 = no change; INIT -> ARMED -> ACTIVE, DOWN from anywhere; ACTIVE again is no change (IBTA 7.2.7).
        let legal = match wanted {
            0 | port_state::DOWN => true,
            port_state::ARMED => matches!(p.state, port_state::INIT | port_state::ARMED),
            port_state::ACTIVE => matches!(p.state, port_state::ARMED | port_state::ACTIVE),
            _ => false,
        };
        let mtu = new.get(PortInfo::NEIGHBOR_MTU);
        let lid = Lid(new.get(PortInfo::LID) as u16);
        if !legal || mtu > 5 || lid.is_multicast() || lid == Lid::PERMISSIVE {
            return STATUS_INVALID_VALUE;
        }
        let old = p.info;
        for field in [
            PortInfo::LID,
            PortInfo::MASTER_SM_LID,
            PortInfo::M_KEY_LEASE_PERIOD,
            PortInfo::M_KEY_PROTECT,
            PortInfo::LMC,
            PortInfo::MASTER_SM_SL,
            PortInfo::VL_HIGH_LIMIT,
            PortInfo::SUBNET_TIMEOUT,
            PortInfo::P_KEY_VIOLATIONS,
            PortInfo::Q_KEY_VIOLATIONS,
            PortInfo::M_KEY_VIOLATIONS,
        ] {
            p.info.set(field, new.get(field));
        }
        // Zero means "no change" in these.
        for field in [PortInfo::NEIGHBOR_MTU, PortInfo::OPERATIONAL_VLS, PortInfo::LINK_WIDTH_ENABLED] {
            if new.get(field) != 0 {
                p.info.set(field, new.get(field));
            }
        }
        p.info.set(PortInfo::M_KEY, new.get(PortInfo::M_KEY));
        p.info.set(PortInfo::GID_PREFIX, new.get(PortInfo::GID_PREFIX));
        match wanted {
            port_state::ACTIVE if p.state != port_state::ACTIVE => {
                p.state = port_state::ACTIVE;
                changed(effects, port_change::ACTIVE);
            }
            port_state::ARMED => p.state = port_state::ARMED,
            port_state::DOWN => {
                // The link retrains at once, as long as the cable is there.
                p.state = port_state::DOWN;
                changed(effects, port_change::DOWN);
            }
            _ => {}
        }
        if [PortInfo::LID, PortInfo::MASTER_SM_LID, PortInfo::LMC]
            .iter()
            .any(|f| old.get(*f) != p.info.get(*f))
        {
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

    fn performance(&mut self, set: bool, mad: &Mad, response: &mut Mad) -> u32 {
        let c = &mut self.port.counters;
        let data = response.smp_data_mut().bytes_mut();
        let put = |data: &mut [u8; 64], at: usize, bytes: &[u8]| {
            if let Some(to) = data.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        match (mad.get(Mad::ATTRIBUTE_ID), set) {
            (attr::CLASS_PORT_INFO, _) => {
                data.fill(0);
                // BaseVersion, ClassVersion; CapabilityMask: extended counters (bit 9).
                put(data, 0, &[1, 1, 0x02, 0x00]);
            }
            (attr::PORT_COUNTERS, _) => {
                if set {
                    *c = PortCounters::default();
                }
                let clamp = |v: u64| (v.min(u64::from(u32::MAX)) as u32).to_be_bytes();
                data.fill(0);
                put(data, 1, &[1]);
                put(data, 7, &[c.link_downed.min(255) as u8]);
                put(data, 8, &(c.rcv_errors.min(0xffff) as u16).to_be_bytes());
                put(data, 14, &(c.xmit_discards.min(0xffff) as u16).to_be_bytes());
                put(data, 24, &clamp(c.xmit_data));
                put(data, 28, &clamp(c.rcv_data));
                put(data, 32, &clamp(c.xmit_packets));
                put(data, 36, &clamp(c.rcv_packets));
            }
            (attr::PORT_COUNTERS_EXT, _) => {
                if set {
                    *c = PortCounters::default();
                }
                data.fill(0);
                put(data, 1, &[1]);
                put(data, 8, &c.xmit_data.to_be_bytes());
                put(data, 16, &c.rcv_data.to_be_bytes());
                put(data, 24, &c.xmit_packets.to_be_bytes());
                put(data, 32, &c.rcv_packets.to_be_bytes());
            }
            _ => return STATUS_BAD_ATTRIBUTE,
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

    fn smp(method: u32, attribute: u32, modifier: u32) -> Mad {
        let mut m = Mad::new();
        m.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
        m.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, modifier);
        m
    }

    #[test]
    fn a_subnet_manager_brings_the_port_up() {
        let mut f = Firmware::new(Config::default());
        let mut effects = Vec::new();
        f.set_link(1, Some(Link::default()), &mut effects);
        assert_eq!(effects, [Effect::PortChange { port: 1, sub_type: port_change::INITIALIZED }]);
        let mut m = f.mad(1, &smp(METHOD_GET, attr::PORT_INFO, 1), &mut effects).unwrap();
        assert_eq!(m.port_info().get(PortInfo::PORT_STATE), port_state::INIT);
        m.set(Mad::METHOD, METHOD_SET);
        m.port_info_mut().set(PortInfo::LID, 7).set(PortInfo::PORT_STATE, port_state::ACTIVE);
        assert_eq!(
            f.mad(1, &m, &mut effects).unwrap().get(Mad::STATUS),
            STATUS_INVALID_VALUE,
            "not from INIT"
        );
        effects.clear();
        for state in [port_state::ARMED, port_state::ACTIVE] {
            m.port_info_mut().set(PortInfo::PORT_STATE, state);
            assert_eq!(f.mad(1, &m, &mut effects).unwrap().get(Mad::STATUS), 0);
        }
        assert_eq!(
            effects,
            [port_change::LID, port_change::ACTIVE].map(|sub_type| Effect::PortChange { port: 1, sub_type })
        );
        let p = f.port(1).unwrap();
        assert!(p.is_own_lid(Lid(7)) && !p.is_own_lid(Lid(8)));
    }

    #[test]
    fn tables_and_unknown_attributes() {
        let mut f = Firmware::new(Config::default());
        let mut effects = Vec::new();
        let m = f.mad(1, &smp(METHOD_GET, attr::PKEY_TABLE, 0), &mut effects).unwrap();
        assert_eq!(m.smp_data().bytes()[..4], [0xff, 0xff, 0, 0]);
        let m = f.mad(1, &smp(METHOD_GET, attr::PKEY_TABLE, 1), &mut effects).unwrap();
        assert_eq!(m.get(Mad::STATUS), STATUS_INVALID_VALUE);
        let m = f.mad(1, &smp(METHOD_GET, 0xff90, 1), &mut effects).unwrap();
        assert_eq!(m.get(Mad::STATUS), STATUS_BAD_ATTRIBUTE);
        assert_eq!(f.mad(1, &smp(METHOD_GET_RESP, attr::NODE_INFO, 0), &mut effects), None);
    }
}
