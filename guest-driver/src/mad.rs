//! Asking the port about itself: subnet management datagrams (SMP) through the command MAD_IFC.
//!
//! The adapter's own agent answers (IBTA 14.2); nothing goes to the wire.

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use hca_spec::cmd::MadIfc;
use hca_spec::command::Opcode;
use hca_spec::ids::{Gid, Lid};
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, NodeInfo, PortInfo, SmpData, attr};

/// MAD_IFC modifier: neither M_Key nor B_Key is checked.
const IGNORE_KEYS: u32 = 3;
/// GUIDs in a GUIDInfo block.
const GUIDS_PER_BLOCK: u8 = 8;
/// P_Keys in a P_KeyTable block.
const PKEYS_PER_BLOCK: u16 = 32;

impl<B: Bus> Hca<B> {
    /// Sends a datagram to port `port`'s own agent and returns the answer.
    ///
    /// # Errors
    /// The command failed, or the answer's status is not 0.
    pub fn mad(&mut self, port: u8, mad: &Mad) -> Result<Mad, Error> {
        let mut input = MadIfc::new();
        input.set(MadIfc::PORT, port.into());
        *input.mad_mut() = *mad;
        let out = self.execute(Opcode::MadIfc, IGNORE_KEYS, input.bytes().to_vec(), MadIfc::SIZE)?;
        let answer = *MadIfc::from_prefix_or_zero(&out).mad();
        match answer.get(Mad::STATUS) as u16 {
            0 => Ok(answer),
            status => Err(Error::Mad(status)),
        }
    }

    /// Gets an attribute of the port.
    pub fn smp_get(&mut self, port: u8, attribute: u32, modifier: u32) -> Result<Mad, Error> {
        self.mad(port, &smp(METHOD_GET, attribute, modifier, &SmpData::new()))
    }

    /// Sets an attribute of the port, as a subnet manager does.
    pub fn smp_set(&mut self, port: u8, attribute: u32, modifier: u32, data: &SmpData) -> Result<Mad, Error> {
        self.mad(port, &smp(METHOD_SET, attribute, modifier, data))
    }

    /// The node: GUIDs, number of ports, device.
    pub fn node_info(&mut self, port: u8) -> Result<NodeInfo, Error> {
        Ok(*self.smp_get(port, attr::NODE_INFO, 0)?.node_info())
    }

    /// The port: state, LID, MTU, width and speed.
    pub fn port_info(&mut self, port: u8) -> Result<PortInfo, Error> {
        Ok(*self.smp_get(port, attr::PORT_INFO, port.into())?.port_info())
    }

    /// The port's LID; 0 while no subnet manager gave one.
    pub fn lid(&mut self, port: u8) -> Result<Lid, Error> {
        Ok(Lid(self.port_info(port)?.get(PortInfo::LID) as u16))
    }

    /// The GID at `index` of the port's table.
    pub fn gid(&mut self, port: u8, index: u8) -> Result<Gid, Error> {
        let prefix = self.port_info(port)?.get(PortInfo::GID_PREFIX);
        let answer = self.smp_get(port, attr::GUID_INFO, (index / GUIDS_PER_BLOCK).into())?;
        let guid = hca_spec::be64(answer.smp_data().bytes(), usize::from(index % GUIDS_PER_BLOCK) * 8);
        Ok(Gid::new(prefix, guid))
    }

    /// The P_Key at `index` of the port's table.
    pub fn pkey(&mut self, port: u8, index: u16) -> Result<u16, Error> {
        let answer = self.smp_get(port, attr::PKEY_TABLE, (index / PKEYS_PER_BLOCK).into())?;
        let at = usize::from(index % PKEYS_PER_BLOCK) * 2;
        let word = hca_spec::be32(answer.smp_data().bytes(), at & !3);
        Ok(if at & 2 == 0 { (word >> 16) as u16 } else { word as u16 })
    }
}

fn smp(method: u32, attribute: u32, modifier: u32, data: &SmpData) -> Mad {
    let mut mad = Mad::new();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
    mad.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, modifier);
    *mad.smp_data_mut() = *data;
    mad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_get() {
        let mad = smp(METHOD_GET, attr::PORT_INFO, 1, &SmpData::new());
        assert_eq!(mad.bytes()[..4], [1, 1, 1, 1]);
        assert_eq!(mad.bytes()[16..24], [0, 0x15, 0, 0, 0, 0, 0, 1]);
    }
}
