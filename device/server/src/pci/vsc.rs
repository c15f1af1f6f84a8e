//! The vendor specific capability: a window that tools and the driver's dump facility use.
//!
//! A semaphore guards it: the counter gives each reader another number; who writes its number and reads it
//! back has the semaphore. `control` selects a space and says whether it is there; in it, words are read and
//! written through `address` and `data`. Here only the space of semaphores is there: the driver then knows
//! that there is nothing to dump.
//!
//! Source: the mlx5 driver (field use).

use std::collections::BTreeMap;

/// Bytes of the capability.
pub(super) const LEN: usize = 0x18;
/// Register: space in bits 15..0, status in bits 31..29.
const CONTROL: usize = 0x04;
const COUNTER: usize = 0x08;
const SEMAPHORE: usize = 0x0c;
/// Register: flag in bit 31, address in bits 29..0.
const ADDRESS: usize = 0x10;
const DATA: usize = 0x14;

/// Space of semaphores that the driver and tools share.
const SPACE_SEMAPHORES: u32 = 0xa;
/// Status bits of [`CONTROL`]: the space is there.
const SUPPORTED: u32 = 1 << 29;
/// Flag of [`ADDRESS`]: to write; when a read is done the adapter sets it, when a write is done it clears it.
const FLAG: u32 = 1 << 31;
const ADDRESS_BITS: u32 = (1 << 30) - 1;
/// Semaphores of the space, so that software can't fill memory with them.
const MAX_SEMAPHORES: usize = 64;

/// The capability's registers.
#[derive(Clone, Debug, Default)]
pub(super) struct Vsc {
    control: u32,
    counter: u32,
    semaphore: u32,
    address: u32,
    data: u32,
    semaphores: BTreeMap<u32, u32>,
}

impl Vsc {
    /// A register after its head.
    pub(super) fn read(&mut self, register: usize) -> u32 {
        match register {
            CONTROL => self.control,
            COUNTER => {
                // Never 0, which means unlocked.
                self.counter = self.counter.wrapping_add(1).max(1);
                self.counter
            }
            SEMAPHORE => self.semaphore,
            ADDRESS => self.address,
            DATA => self.data,
            _ => 0,
        }
    }

    /// A whole register is written.
    pub(super) fn write(&mut self, register: usize, value: u32) {
        match register {
            CONTROL => {
                let space = value & 0xffff;
                self.control = space | if space == SPACE_SEMAPHORES { SUPPORTED } else { 0 };
            }
            // Taken, it can only be given back.
            SEMAPHORE if self.semaphore == 0 || value == 0 => self.semaphore = value,
            DATA => self.data = value,
            ADDRESS => self.access(value),
            _ => {}
        }
    }

    fn access(&mut self, value: u32) {
        let at = value & ADDRESS_BITS;
        let there = self.control & SUPPORTED != 0;
        let held = self.semaphores.get(&at).copied().unwrap_or(0);
        if value & FLAG == 0 {
            self.data = if there { held } else { 0 };
            self.address = at | FLAG;
            return;
        }
        if there && self.data == 0 {
            self.semaphores.remove(&at);
        } else if there && held == 0 && self.semaphores.len() < MAX_SEMAPHORES {
            self.semaphores.insert(at, self.data);
        }
        self.address = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver's protocol at probe: lock, select a space, unlock.
    #[test]
    fn lock_and_look() {
        let mut v = Vsc::default();
        assert_eq!(v.read(SEMAPHORE), 0);
        let (one, two) = (v.read(COUNTER), v.read(COUNTER));
        assert_ne!(one, two);
        v.write(SEMAPHORE, one);
        v.write(SEMAPHORE, two);
        assert_eq!(v.read(SEMAPHORE), one, "the first has it");
        v.write(CONTROL, 7);
        assert_eq!(v.read(CONTROL) >> 29, 0, "no such space");
        v.write(SEMAPHORE, 0);
        assert_eq!(v.read(SEMAPHORE), 0);
    }

    /// The driver's protocol before a reset: a semaphore in the space of semaphores.
    #[test]
    fn semaphores() {
        let mut v = Vsc::default();
        v.write(CONTROL, SPACE_SEMAPHORES);
        assert_ne!(v.read(CONTROL) >> 29, 0);
        let mut take = |id: u32| {
            v.write(DATA, id);
            v.write(ADDRESS, 0x20 | FLAG);
            assert_eq!(v.read(ADDRESS) & FLAG, 0, "written");
            v.write(ADDRESS, 0x20);
            assert_eq!(v.read(ADDRESS) & FLAG, FLAG, "read");
            v.read(DATA)
        };
        assert_eq!((take(5), take(6), take(0), take(6)), (5, 5, 0, 6));
    }
}
