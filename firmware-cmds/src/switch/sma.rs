//! The switch's subnet management agent.
//!
//! Source: IBTA 14.2.5 (attributes; which port a modifier names), 14.2.4 (M_Key: port 0's).

use hca_spec::ids::Lid;
use hca_spec::mad::{Mad, NodeInfo, PortInfo, STATUS_BAD_ATTRIBUTE, STATUS_INVALID_VALUE, SwitchInfo, attr};

use super::tables::{LINEAR_BLOCK, LINEAR_CAP, MULTICAST_BLOCK, MULTICAST_CAP};
use super::{Switch, SwitchEffect};
use crate::agent::{self, Request, answer};
use crate::limits::{PKEYS, VENDOR_ID};
use crate::notice;
use crate::pma;
use crate::port::KeyCheck;
use crate::port::smp::{port_info, vendor_port_info};

/// A Switch-IB, 36 ports of EDR: of that vendor and age are the adapters here, and of their switches the tools know
/// that they have the vendor's ExtendedPortInfo, which is answered, and nothing else beyond the standard.
const DEVICE_ID: u32 = 0xcb20;
/// NodeType: a switch.
const NODE_TYPE: u32 = 2;
/// SLtoVLMappingTable's modifier: a Set is for all ports of the way in.
const ALL_IN_PORTS: u32 = 1 << 17;
/// SLtoVLMappingTable's modifier: a Set is for all ports of the way out.
const ALL_OUT_PORTS: u32 = 1 << 16;
/// MulticastFDBTop that leaves no multicast LID to the table.
const NO_MULTICAST: u32 = 0xbfff;
/// First multicast LID.
const FIRST_MULTICAST: u32 = 0xc000;

/// Attribute data of an SMP.
type Data = [u8; 64];

impl Switch {
    /// The agents' answer to a datagram from `slid`, if there is one.
    pub(super) fn agents(
        &mut self,
        in_port: u8,
        slid: Lid,
        mad: &Mad,
        effects: &mut Vec<SwitchEffect>,
    ) -> Option<Mad> {
        let mut response = *mad;
        match agent::request(mad) {
            Request::Ignore => None,
            Request::Refuse(status) => Some(answer(mad, status)),
            Request::Performance { set } => {
                let status = pma::performance(&mut self.ports, set, mad, &mut response);
                Some(answer(&response, status))
            }
            Request::Repress => {
                if self.key(slid, mad, false) == KeyCheck::Open {
                    self.notices.repress(mad);
                }
                None
            }
            Request::Subnet { set } => {
                let check = self.key(slid, mad, !set);
                if check == KeyCheck::Refused {
                    return None;
                }
                let status = self.subnet(set, in_port, mad, &mut response, effects);
                let shown = self.port(0).is_none_or(|p| p.shows_key(check));
                if mad.get(Mad::ATTRIBUTE_ID) == attr::PORT_INFO && !shown {
                    response.port_info_mut().set(PortInfo::M_KEY, 0);
                }
                Some(answer(&response, status))
            }
        }
    }

    /// Checks the key of port 0, which is the switch's.
    fn key(&mut self, slid: Lid, mad: &Mad, get: bool) -> KeyCheck {
        let Some(zero) = self.ports.first_mut() else { return KeyCheck::Open };
        let check = zero.check_key(mad.get(Mad::M_KEY), get);
        if check == KeyCheck::Refused {
            self.notices.raise(zero, notice::bad_management_key(notice::SWITCH, slid, mad));
        }
        check
    }

    fn subnet(
        &mut self,
        set: bool,
        in_port: u8,
        mad: &Mad,
        response: &mut Mad,
        effects: &mut Vec<SwitchEffect>,
    ) -> u32 {
        let modifier = mad.get(Mad::ATTRIBUTE_MODIFIER);
        let new = set.then(|| mad.smp_data().bytes());
        let (high, low, byte) = (modifier >> 16, modifier & 0xffff, modifier as u8);
        // Ports in 16 bits: the switch has none beyond 8.
        let port = |n: u32| u8::try_from(n).ok();
        let block = low as usize;
        let data = match (mad.get(Mad::ATTRIBUTE_ID), set) {
            (attr::NODE_DESCRIPTION, false) => self.port(0).map(|p| p.node_description),
            (attr::NODE_INFO, false) => Some(*self.node_info(in_port).bytes()),
            (attr::SWITCH_INFO, _) => self.switch_info(new.map(|_| mad.switch_info())),
            (attr::PORT_INFO, _) => {
                let Some(p) = self.port_mut(byte) else { return STATUS_INVALID_VALUE };
                let status = port_info(p, set, mad, response, effects);
                // The port that the datagram came by, not the one it names.
                response.port_info_mut().set(PortInfo::LOCAL_PORT_NUM, in_port.into());
                return status;
            }
            (attr::VENDOR_EXT_PORT_INFO, _) => self.port_mut(byte).map(|p| vendor_port_info(p, new)),
            (attr::GUID_INFO, _) => {
                self.port_mut(0).and_then(|p| p.guid_block(modifier as usize, new, effects))
            }
            (attr::PKEY_TABLE, _) => {
                let port = port(high).and_then(|n| self.port_mut(n));
                port.and_then(|p| p.pkey_block(block, new, effects))
            }
            (attr::SL_TO_VL, _) => self.lanes(modifier, new),
            (attr::VL_ARBITRATION, _) => {
                port(low).and_then(|n| self.port_mut(n)).and_then(|p| p.arbitration(high, new))
            }
            (attr::LINEAR_FORWARDING, _) => self.linear_block(modifier, new),
            (attr::MULTICAST_FORWARDING, _) => self.multicast_block(modifier, new),
            _ => return STATUS_BAD_ATTRIBUTE,
        };
        let Some(data) = data else { return STATUS_INVALID_VALUE };
        *response.smp_data_mut().bytes_mut() = data;
        0
    }

    fn node_info(&self, in_port: u8) -> NodeInfo {
        let mut n = NodeInfo::new();
        n.set(NodeInfo::BASE_VERSION, 1).set(NodeInfo::CLASS_VERSION, 1);
        n.set(NodeInfo::NODE_TYPE, NODE_TYPE).set(NodeInfo::NUM_PORTS, self.ports().into());
        n.set(NodeInfo::SYSTEM_IMAGE_GUID, self.config.system_image_guid);
        // A switch has one port GUID, the node's (IBTA 14.2.5.3).
        n.set(NodeInfo::NODE_GUID, self.config.node_guid).set(NodeInfo::PORT_GUID, self.config.node_guid);
        n.set(NodeInfo::PARTITION_CAP, PKEYS as u32).set(NodeInfo::DEVICE_ID, DEVICE_ID);
        n.set(NodeInfo::LOCAL_PORT_NUM, in_port.into()).set(NodeInfo::VENDOR_ID, VENDOR_ID);
        n
    }

    /// SwitchInfo, written first if `new` is given. `None`: a value is out of range, nothing was changed.
    fn switch_info(&mut self, new: Option<&SwitchInfo>) -> Option<Data> {
        if let Some(new) = new {
            let top = new.get(SwitchInfo::LINEAR_FDB_TOP);
            let multicast_top = new.get(SwitchInfo::MULTICAST_FDB_TOP);
            let last = FIRST_MULTICAST + u32::from(MULTICAST_CAP) - 1;
            let legal = top < LINEAR_CAP.into()
                && (multicast_top == 0 || (NO_MULTICAST..=last).contains(&multicast_top));
            if !legal {
                return None;
            }
            for field in [
                SwitchInfo::LINEAR_FDB_TOP,
                SwitchInfo::DEFAULT_PORT,
                SwitchInfo::DEFAULT_MULTICAST_PRIMARY_PORT,
                SwitchInfo::DEFAULT_MULTICAST_NOT_PRIMARY_PORT,
                SwitchInfo::LIFE_TIME_VALUE,
                SwitchInfo::MULTICAST_FDB_TOP,
            ] {
                self.info.set(field, new.get(field));
            }
            if new.get(SwitchInfo::PORT_STATE_CHANGE) == 1 {
                self.info.set(SwitchInfo::PORT_STATE_CHANGE, 0);
            }
        }
        Some(*self.info.bytes())
    }

    /// SLtoVLMappingTable: of the way in (bits 15..8) and out (bits 7..0) that the modifier names, or, in a Set, of
    /// all of them.
    fn lanes(&mut self, modifier: u32, new: Option<&Data>) -> Option<Data> {
        let (in_port, out_port) = ((modifier >> 8) as u8, modifier as u8);
        let (all_in, all_out) = (modifier & ALL_IN_PORTS != 0, modifier & ALL_OUT_PORTS != 0);
        if in_port > self.ports() || out_port > self.ports() || (all_in || all_out) && new.is_none() {
            return None;
        }
        let last = self.ports();
        let ins = if all_in { 0..=last } else { in_port..=in_port };
        let outs = if all_out { 0..=last } else { out_port..=out_port };
        let mut data = None;
        for out in outs {
            let Some(p) = self.port_mut(out) else { continue };
            for i in ins.clone() {
                data = Some(p.lanes(i, new));
            }
        }
        data
    }

    fn linear_block(&mut self, modifier: u32, new: Option<&[u8; LINEAR_BLOCK]>) -> Option<Data> {
        let block = usize::try_from(modifier).ok()?;
        if let Some(new) = new
            && !self.linear.set_block(block, new)
        {
            return None;
        }
        self.linear.block(block)
    }

    fn multicast_block(&mut self, modifier: u32, new: Option<&Data>) -> Option<Data> {
        /// The position, in bits 31..28; below it the block in 9 bits.
        const POSITION_SHIFT: u32 = 28;
        let (block, position) = ((modifier & 0x0fff_ffff) as usize, modifier >> POSITION_SHIFT);
        if let Some(new) = new {
            let mut slice = [0; MULTICAST_BLOCK];
            for (to, from) in slice.iter_mut().zip(new.as_chunks::<2>().0) {
                *to = u16::from_be_bytes(*from);
            }
            let existing = (1u128 << (u32::from(self.ports()) + 1)) - 1;
            if !self.multicast.set_block(block, position, &slice, existing) {
                return None;
            }
        }
        let slice = self.multicast.block(block, position)?;
        let mut data = [0; 64];
        data.chunks_exact_mut(2).zip(slice).for_each(|(to, mask)| to.copy_from_slice(&mask.to_be_bytes()));
        Some(data)
    }
}
