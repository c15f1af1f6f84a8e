//! Forwarding tables: by which port a packet leaves.
//!
//! Source: IBTA 14.2.5.11 (LinearForwardingTable), 14.2.5.12 (MulticastForwardingTable), 18.2.4.3 (relay).

use hca_spec::ids::Lid;

/// Entries of the linear table: every unicast LID (0..=0xBFFF) has one.
pub const LINEAR_CAP: u16 = 49152;
/// Entries of the multicast table: LIDs 0xC000 and up.
pub const MULTICAST_CAP: u16 = 4096;
/// Entries of a LinearForwardingTable block.
pub(super) const LINEAR_BLOCK: usize = 64;
/// Entries of a MulticastForwardingTable block.
pub(super) const MULTICAST_BLOCK: usize = 32;
/// Ports of a MulticastForwardingTable entry: the modifier's position says which.
pub(super) const POSITION_PORTS: u32 = 16;
/// Port that means "discard" in a linear entry (IBTA 14.2.5.11: any port that the switch does not have).
pub(super) const NO_PORT: u8 = 0xff;

/// The linear table: port by LID. Blocks that were never written hold [`NO_PORT`].
#[derive(Debug, Clone, Default)]
pub(super) struct Linear {
    blocks: Vec<Option<Box<[u8; LINEAR_BLOCK]>>>,
}

impl Linear {
    /// The entry of a unicast LID.
    pub(super) fn port(&self, lid: Lid) -> u8 {
        let lid = usize::from(lid.0);
        let block = self.blocks.get(lid / LINEAR_BLOCK).and_then(|b| b.as_deref());
        block.and_then(|b| b.get(lid % LINEAR_BLOCK)).copied().unwrap_or(NO_PORT)
    }

    /// A block; `None` beyond the table.
    pub(super) fn block(&self, block: usize) -> Option<[u8; LINEAR_BLOCK]> {
        if block >= usize::from(LINEAR_CAP) / LINEAR_BLOCK {
            return None;
        }
        Some(self.blocks.get(block).and_then(|b| b.as_deref()).copied().unwrap_or([NO_PORT; LINEAR_BLOCK]))
    }

    /// Writes a block; `false` beyond the table.
    pub(super) fn set_block(&mut self, block: usize, ports: &[u8; LINEAR_BLOCK]) -> bool {
        if block >= usize::from(LINEAR_CAP) / LINEAR_BLOCK {
            return false;
        }
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, None);
        }
        if let Some(slot) = self.blocks.get_mut(block) {
            *slot = Some(Box::new(*ports));
        }
        true
    }
}

/// The multicast table: a mask of ports by LID, bit 0 = port 0.
#[derive(Debug, Clone, Default)]
pub(super) struct Multicast {
    masks: Vec<u128>,
}

impl Multicast {
    /// First multicast LID.
    const FIRST: u16 = 0xc000;

    /// The index of a multicast LID.
    pub(super) fn index(lid: Lid) -> usize {
        usize::from(lid.0.saturating_sub(Self::FIRST))
    }

    /// The mask at an index.
    pub(super) fn mask(&self, index: usize) -> u128 {
        self.masks.get(index).copied().unwrap_or(0)
    }

    /// A block's slice: of each entry the 16 ports at `position`. `None` beyond the table.
    pub(super) fn block(&self, block: usize, position: u32) -> Option<[u16; MULTICAST_BLOCK]> {
        let (first, shift) = Self::place(block, position)?;
        Some(std::array::from_fn(|i| (self.mask(first + i) >> shift) as u16))
    }

    /// Writes a block's slice; ports outside `existing` stay clear. `false` beyond the table.
    pub(super) fn set_block(
        &mut self,
        block: usize,
        position: u32,
        slice: &[u16; MULTICAST_BLOCK],
        existing: u128,
    ) -> bool {
        let Some((first, shift)) = Self::place(block, position) else { return false };
        if self.masks.len() < first + MULTICAST_BLOCK {
            self.masks.resize(first + MULTICAST_BLOCK, 0);
        }
        for (mask, new) in self.masks.iter_mut().skip(first).zip(slice) {
            let cleared = *mask & !(u128::from(u16::MAX) << shift);
            *mask = (cleared | u128::from(*new) << shift) & existing;
        }
        true
    }

    /// First entry of a block, and how far its ports are shifted.
    fn place(block: usize, position: u32) -> Option<(usize, u32)> {
        let first = block.checked_mul(MULTICAST_BLOCK).filter(|f| *f < usize::from(MULTICAST_CAP))?;
        let shift = position.checked_mul(POSITION_PORTS).filter(|s| *s < u128::BITS)?;
        Some((first, shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_entries() {
        let mut t = Linear::default();
        assert_eq!(t.port(Lid(70)), NO_PORT);
        let mut block = [NO_PORT; LINEAR_BLOCK];
        block[6] = 3;
        assert!(t.set_block(1, &block));
        assert_eq!((t.port(Lid(70)), t.port(Lid(6)), t.port(Lid(71))), (3, NO_PORT, NO_PORT));
        assert_eq!((t.block(1), t.block(767)), (Some(block), Some([NO_PORT; 64])));
        assert!(!t.set_block(768, &block) && t.block(768).is_none(), "768 blocks are 49152 LIDs");
    }

    #[test]
    fn multicast_slices() {
        let mut t = Multicast::default();
        let ports_0_to_20 = (1 << 21) - 1;
        let mut slice = [0; MULTICAST_BLOCK];
        slice[2] = 0x8001;
        assert!(t.set_block(1, 0, &slice, ports_0_to_20));
        slice[2] = 0xfff1;
        assert!(t.set_block(1, 1, &slice, ports_0_to_20));
        assert_eq!(t.mask(Multicast::index(Lid(0xc022))), 1 << 0 | 1 << 15 | 1 << 16 | 1 << 20);
        assert_eq!(t.block(1, 1).map(|b| b[2]), Some(0x11), "port 21 and up do not exist");
        assert_eq!(t.block(1, 0).map(|b| b[2]), Some(0x8001), "the other slice is as it was");
        assert_eq!(t.mask(9999), 0);
        assert!(!t.set_block(128, 0, &slice, ports_0_to_20) && t.block(0, 8).is_none());
    }
}
