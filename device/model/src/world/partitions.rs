//! Partitions that the built-in subnet manager keeps: it writes P_Key tables of adapters' ports, and gives the port of a switch at the
//! other end the same one, which that enforces both ways.
//!
//! A table is there before its port's link carries data. What a host changes at its own port is set right as other settings are; what
//! it sends until then its switch drops, and counts (PortRcvConstraintErrors).
//!
//! Source: IBTA vol 1 10.9 (partitions), 14.2.5.6 (PortInfo), 14.2.5.7 (P_KeyTable).

use std::collections::BTreeMap;

use hca_firmware::PortKind;
use hca_spec::mad::{METHOD_SET, Mad, attr};

use super::World;
use super::manager::smp;
use crate::ground::node::PortRef;

/// P_Keys by port, in the order of the table; what is behind them is empty.
pub(super) type Partitions = BTreeMap<PortRef, Vec<u16>>;

impl World {
    /// Gives ports of adapters and of switches their P_Keys, which those of switches enforce, before their links are up. The built-in
    /// subnet manager writes them; ports that are not named keep what they have.
    pub fn set_partitions(&mut self, tables: BTreeMap<PortRef, Vec<u16>>) {
        self.rouse();
        self.partitions = tables;
    }

    /// Whether an adapter's port has the P_Keys that it is to have.
    pub(super) fn has_its_partitions(&self, port: PortRef) -> bool {
        let (Some(keys), Some(port)) = (self.partitions.get(&port), self.port(port)) else { return true };
        let all = keys.iter().copied().chain(std::iter::repeat(0));
        port.kind() != PortKind::InfiniBand || port.pkeys().zip(all).all(|(has, wanted)| has == wanted)
    }

    /// The SMP that writes the table of a port, if it is to have one: all of them have a single block. `modifier`: the port of a
    /// switch, in its upper half.
    pub(super) fn partition_table(&self, port: PortRef, modifier: u32) -> Option<Mad> {
        let keys = self.partitions.get(&port)?;
        let mut mad = smp(METHOD_SET, attr::PKEY_TABLE, modifier);
        let entries = mad.smp_data_mut().bytes_mut().as_chunks_mut::<2>().0;
        entries.iter_mut().zip(keys).for_each(|(entry, key)| *entry = key.to_be_bytes());
        Some(mad)
    }

    /// A script changes an entry of a port's table: that is how it is to be from now on.
    pub(super) fn change_partition(&mut self, port: PortRef, index: u16, pkey: u16) {
        if let Some(keys) = self.partitions.get_mut(&port) {
            let index = usize::from(index);
            if keys.len() <= index {
                keys.resize(index + 1, 0);
            }
            keys.iter_mut().skip(index).take(1).for_each(|key| *key = pkey);
        }
    }
}
