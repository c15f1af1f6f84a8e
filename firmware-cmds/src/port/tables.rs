//! Tables of a port that a subnet manager reads and writes block by block: GUIDs, P_Keys, lanes of service
//! levels, arbitration of lanes.
//!
//! Source: IBTA 14.2.5.5 (GUIDInfo), 14.2.5.7 (P_KeyTable), 14.2.5.8 (SLtoVLMappingTable), 14.2.5.9
//! (VLArbitrationTable).

use hca_spec::be64;
use hca_spec::eqe::port_change;
use hca_spec::mad::PortInfo;

use super::{Port, PortEvents};
use crate::limits::PKEYS;

/// GUIDs of one GUIDInfo block.
const GUID_BLOCK: usize = 8;
/// P_Keys of one P_KeyTable block.
const PKEY_BLOCK: usize = 32;

/// Attribute data of an SMP.
type Data = [u8; 64];

impl Port {
    /// GUIDInfo: a block of GUIDs, written first if `new` is given. `None` beyond the table.
    pub(crate) fn guid_block(
        &mut self,
        block: usize,
        new: Option<&Data>,
        effects: &mut impl PortEvents,
    ) -> Option<Data> {
        let count = self.info.get(PortInfo::GUID_CAP) as usize;
        let first = block.checked_mul(GUID_BLOCK).filter(|first| *first < count)?;
        if let Some(new) = new {
            let old = self.guids;
            let entries = self.guids.iter_mut().take(count).skip(first).zip(new.chunks_exact(8));
            for (i, (guid, raw)) in entries.enumerate() {
                // The first is the port's own and can't be written.
                if first + i > 0 {
                    *guid = be64(raw, 0);
                }
            }
            if old != self.guids {
                self.readdress();
                effects.port_event(self.number, port_change::GUID);
            }
        }
        let mut data = [0; 64];
        let entries = self.guids.iter().take(count).skip(first);
        data.chunks_exact_mut(8).zip(entries).for_each(|(slot, guid)| {
            slot.copy_from_slice(&guid.to_be_bytes());
        });
        Some(data)
    }

    /// P_KeyTable: a block of P_Keys, written first if `new` is given. `None` beyond the table.
    pub(crate) fn pkey_block(
        &mut self,
        block: usize,
        new: Option<&Data>,
        effects: &mut impl PortEvents,
    ) -> Option<Data> {
        let first = block.checked_mul(PKEY_BLOCK).filter(|first| *first < PKEYS)?;
        if let Some(new) = new {
            let old = self.pkeys;
            for (key, raw) in self.pkeys.iter_mut().skip(first).zip(new.as_chunks::<2>().0) {
                *key = u16::from_be_bytes(*raw);
            }
            if old != self.pkeys {
                self.readdress();
                effects.port_event(self.number, port_change::PKEY);
            }
        }
        let mut data = [0; 64];
        data.chunks_exact_mut(2).zip(self.pkeys.iter().skip(first)).for_each(|(slot, key)| {
            slot.copy_from_slice(&key.to_be_bytes());
        });
        Some(data)
    }

    /// SLtoVLMappingTable of packets that came by `in_port` (of an adapter: 0), written first if `new` is given.
    pub(crate) fn lanes(&mut self, in_port: u8, new: Option<&Data>) -> Data {
        let index = usize::from(in_port);
        if let Some(table) = new.and_then(|new| new.first_chunk()) {
            if self.sl_to_vl.len() <= index {
                self.sl_to_vl.resize(index + 1, [0; 8]);
            }
            self.sl_to_vl.get_mut(index).into_iter().for_each(|t| *t = *table);
        }
        let table = self.sl_to_vl.get(index).copied().unwrap_or_default();
        let mut data = [0; 64];
        data.iter_mut().zip(table).for_each(|(to, from)| *to = from);
        data
    }

    /// The blocks of the arbitration tables (IBTA 14.2.5.9): two of the low priority table, two of the high one, each
    /// 32 pairs of lane and weight.
    pub fn vl_arbitration(&self) -> &[[u8; 64]; 4] {
        &self.vl_arbitration
    }

    /// The virtual lane of a service level, for packets that came by `in_port` (of an adapter: 0).
    #[inline]
    pub fn virtual_lane(&self, in_port: u8, sl: u8) -> u8 {
        let table = self.sl_to_vl.get(usize::from(in_port)).copied().unwrap_or_default();
        let pair = table.get(usize::from(sl & 0xf) / 2).copied().unwrap_or(0);
        if sl & 1 == 0 { pair >> 4 } else { pair & 0xf }
    }

    /// VLArbitrationTable: a half of the low (1, 2) or the high priority table (3, 4), written first if `new` is
    /// given. `None` for other blocks.
    pub(crate) fn arbitration(&mut self, block: u32, new: Option<&Data>) -> Option<Data> {
        let table = self.vl_arbitration.get_mut(block.checked_sub(1)? as usize)?;
        if let Some(new) = new {
            *table = *new;
        }
        Some(*table)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;
    use crate::effect::Effect;

    #[test]
    fn lanes_of_a_service_level() {
        let mut p = Port::new(Role::External, 3, 0, "");
        assert_eq!(p.virtual_lane(5, 9), 0, "nothing set");
        let mut new = [0; 64];
        new[..8].copy_from_slice(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        p.lanes(5, Some(&new));
        assert_eq!((p.virtual_lane(5, 0), p.virtual_lane(5, 9), p.virtual_lane(5, 15)), (0, 9, 15));
        assert_eq!((p.virtual_lane(4, 9), p.lanes(5, None)), (0, new));
    }

    #[test]
    fn blocks_end() {
        let mut p = Port::new(Role::Adapter, 1, 9, "");
        let e = &mut Vec::<Effect>::new();
        assert_eq!(p.guid_block(0, None, e).map(|d| d[..9].to_vec()), Some(vec![0, 0, 0, 0, 0, 0, 0, 9, 0]));
        assert!(p.guid_block(1, None, e).is_none() && p.guid_block(usize::MAX, None, e).is_none());
        assert!(p.pkey_block(0, None, e).is_some() && p.pkey_block(1, None, e).is_none());
        assert!(p.arbitration(0, None).is_none() && p.arbitration(5, None).is_none());
    }
}
