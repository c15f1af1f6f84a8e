//! The window of the vendor specific capability, and the spaces behind it.
//!
//! A semaphore guards the window: the counter gives each reader another number; who writes its number and reads it back has
//! the window, until it writes 0. `control` selects a space and says whether it is there; in it, words are read and written
//! through `address` and `data`. What one access costs is bounded: a word, or one access to a register of the firmware.
//!
//! Source: the mlx5 driver (`lib/pci_vsc.c`) and mstflint (`mtcr_ul`; field use). Nothing is known of semaphores that
//! real hardware takes back by itself: here a reset of the function frees them.

use std::collections::BTreeMap;

use hca_spec::management::{cr, icmd, space, vsc};
use hca_spec::{be32, put_be32};

/// Semaphores of the space, so that software can't fill memory with them.
const MAX_SEMAPHORES: usize = 64;

/// The capability's registers of a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// Space and syndrome.
    control: u32,
    counter: u32,
    semaphore: u32,
    address: u32,
    data: u32,
}

/// A word that software reads or writes through the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Where: a space ([`space`]).
    pub(crate) space: u32,
    pub(crate) address: u32,
    /// What is written there; `None`: it is read.
    pub(crate) write: Option<u32>,
}

/// What an access came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The word, or what was written.
    Word(u32),
    /// The word, and the address of the next one.
    WordThen(u32, u32),
    /// There is nothing.
    OutOfRange,
}

/// Bytes of a space that is there and has a size.
fn size(space: u32) -> Option<u32> {
    match space {
        space::CR | space::CR_PROTECTED | space::SCAN => Some(cr::SIZE),
        space::ICMD_EXT | space::ICMD => Some(icmd::MAILBOX.saturating_add(icmd::MAILBOX_BYTES as u32)),
        space::SEMAPHORES => Some(vsc::ADDRESS_BITS),
        _ => None,
    }
}

impl Window {
    /// A register without what a read of it does.
    pub(crate) fn peek(&self, register: usize) -> u32 {
        match register {
            vsc::CONTROL => self.control,
            vsc::COUNTER => self.counter,
            vsc::SEMAPHORE => self.semaphore,
            vsc::ADDRESS => self.address,
            vsc::DATA => self.data,
            _ => 0,
        }
    }

    /// Software reads a register.
    pub(crate) fn read(&mut self, register: usize) -> u32 {
        if register == vsc::COUNTER {
            // Never 0, which means free.
            self.counter = self.counter.wrapping_add(1).max(1);
        }
        self.peek(register)
    }

    /// Software writes a register: what it accesses by that, whose answer [`Window::answer`] takes.
    pub(crate) fn write(&mut self, register: usize, value: u32) -> Option<Access> {
        match register {
            vsc::CONTROL => {
                let space = value & vsc::SPACE;
                self.control = space;
                if let Some(size) = size(space) {
                    self.control |= vsc::SUPPORTED | vsc::SIZE_VALID;
                    self.address = size & vsc::ADDRESS_BITS;
                }
            }
            // Taken, it can only be given back.
            vsc::SEMAPHORE if self.semaphore == 0 || value == 0 => self.semaphore = value,
            vsc::DATA => self.data = value,
            vsc::ADDRESS => {
                self.address = value & (vsc::ADDRESS_BITS | vsc::FLAG);
                let write = (value & vsc::FLAG != 0).then_some(self.data);
                return Some(Access {
                    space: self.control & vsc::SPACE,
                    address: value & vsc::ADDRESS_BITS,
                    write,
                });
            }
            _ => {}
        }
        None
    }

    /// The access is done.
    pub(crate) fn answer(&mut self, access: Access, answer: Answer) {
        const SYNDROMES: u32 = 0xf << vsc::SYNDROME_SHIFT;
        let (word, next, failed) = match answer {
            Answer::Word(word) => (word, access.address, false),
            Answer::WordThen(word, next) => (word, next, false),
            Answer::OutOfRange => (0, access.address, true),
        };
        self.control &= !SYNDROMES;
        self.address = next & vsc::ADDRESS_BITS;
        if failed {
            self.control |= vsc::OUT_OF_RANGE << vsc::SYNDROME_SHIFT;
            self.address |= vsc::FAILED;
        }
        if access.write.is_none() {
            self.data = word;
            self.address |= vsc::FLAG;
        }
    }
}

/// What the spaces keep; an adapter's functions share it.
#[derive(Clone, Debug)]
pub(crate) struct Spaces {
    semaphores: BTreeMap<u32, u32>,
    control: u32,
    mailbox: Box<[u8; icmd::MAILBOX_BYTES]>,
}

impl Default for Spaces {
    fn default() -> Self {
        Self { semaphores: BTreeMap::new(), control: 0, mailbox: Box::new([0; icmd::MAILBOX_BYTES]) }
    }
}

/// What configuration registers say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Identity {
    /// Id of the silicon.
    pub(crate) hardware_id: u32,
    pub(crate) revision: u8,
    /// The firmware has not come up.
    pub(crate) initializing: bool,
}

impl Identity {
    /// Where there is something, in order, and what.
    fn words(&self) -> [(u32, u32); 2] {
        let id = self.hardware_id & 0xffff | u32::from(self.revision & 0xf) << 16;
        [(cr::FIRMWARE_STATUS, u32::from(self.initializing) << 31), (cr::HARDWARE_ID, id)]
    }

    fn at(&self, address: u32) -> u32 {
        self.words().into_iter().find(|(at, _)| *at == address).map_or(0, |(_, word)| word)
    }

    /// Where there is something next, or where the space ends.
    fn next(&self, address: u32) -> u32 {
        self.words().into_iter().map(|(at, _)| at).find(|at| *at > address).unwrap_or(cr::SIZE)
    }
}

impl Spaces {
    /// Carries an access out.
    ///
    /// # Errors
    /// It has the firmware execute that opcode: [`Spaces::executed`] takes the outcome.
    pub(crate) fn access(&mut self, access: Access, identity: Identity) -> Result<Answer, u32> {
        let Access { space, address, write } = access;
        if !address.is_multiple_of(4) {
            return Ok(Answer::OutOfRange);
        }
        Ok(match (space, write) {
            (space::CR | space::CR_PROTECTED | space::SCAN, _) if address >= cr::SIZE => Answer::OutOfRange,
            // Nothing that is there can be written.
            (space::CR | space::CR_PROTECTED | space::SCAN, Some(word)) => Answer::Word(word),
            (space::CR | space::CR_PROTECTED, None) => Answer::Word(identity.at(address)),
            (space::SCAN, None) => Answer::WordThen(identity.at(address), identity.next(address)),
            (space::SEMAPHORES, None) => Answer::Word(self.semaphores.get(&address).copied().unwrap_or(0)),
            (space::SEMAPHORES, Some(0)) => {
                self.semaphores.remove(&address);
                Answer::Word(0)
            }
            (space::SEMAPHORES, Some(word)) => {
                let free = !self.semaphores.contains_key(&address);
                if free && self.semaphores.len() < MAX_SEMAPHORES {
                    self.semaphores.insert(address, word);
                }
                Answer::Word(word)
            }
            (space::ICMD | space::ICMD_EXT, None) => self.icmd_read(address),
            (space::ICMD | space::ICMD_EXT, Some(word)) => return self.icmd_write(address, word),
            _ => Answer::OutOfRange,
        })
    }

    /// Place in the mailbox.
    fn place(address: u32) -> Option<usize> {
        let place = address.checked_sub(icmd::MAILBOX)? as usize;
        (place < icmd::MAILBOX_BYTES).then_some(place)
    }

    fn icmd_read(&self, address: u32) -> Answer {
        match address {
            icmd::CONTROL => Answer::Word(self.control),
            icmd::MAILBOX_SIZE => Answer::Word(icmd::MAILBOX_BYTES as u32),
            _ if address < icmd::MAILBOX => Answer::Word(0),
            _ => Self::place(address).map_or(Answer::OutOfRange, |at| Answer::Word(be32(&*self.mailbox, at))),
        }
    }

    fn icmd_write(&mut self, address: u32, word: u32) -> Result<Answer, u32> {
        let busy = self.control & icmd::BUSY != 0;
        match (address, Self::place(address)) {
            // The firmware has it.
            _ if busy => {}
            (icmd::CONTROL, _) => {
                let opcode = word >> 16;
                self.control = opcode << 16 | word & icmd::BUSY;
                match word & (icmd::BUSY | icmd::EXTERNAL) {
                    icmd::BUSY => return Err(opcode),
                    0 | icmd::EXTERNAL => {}
                    // Mailboxes in the host's memory are not there.
                    _ => self.executed(icmd::BAD_PARAMETER),
                }
            }
            (_, Some(at)) => put_be32(&mut *self.mailbox, at, word),
            _ if address < icmd::MAILBOX => {}
            _ => return Ok(Answer::OutOfRange),
        }
        Ok(Answer::Word(word))
    }

    /// What the firmware is to execute, and where its answer goes.
    pub(crate) fn mailbox(&mut self) -> &mut [u8] {
        &mut *self.mailbox
    }

    /// The firmware has executed what was in the mailbox.
    pub(crate) fn executed(&mut self, status: u32) {
        self.control = self.control & 0xffff_0000 | (status & 0xff) << 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHIP: Identity = Identity { hardware_id: 0x209, revision: 1, initializing: false };

    struct Rig(Window, Spaces);

    impl Rig {
        fn new() -> Self {
            Self(Window::default(), Spaces::default())
        }

        fn access(&mut self, value: u32) -> Option<u32> {
            let access = self.0.write(vsc::ADDRESS, value)?;
            let (answer, opcode) = match self.1.access(access, CHIP) {
                Ok(answer) => (answer, None),
                Err(opcode) => (Answer::Word(0), Some(opcode)),
            };
            self.0.answer(access, answer);
            opcode
        }

        fn get(&mut self, address: u32) -> u32 {
            self.access(address);
            assert_eq!(self.0.read(vsc::ADDRESS) & vsc::FLAG, vsc::FLAG, "read");
            self.0.read(vsc::DATA)
        }

        fn put(&mut self, address: u32, word: u32) -> Option<u32> {
            self.0.write(vsc::DATA, word);
            let opcode = self.access(address | vsc::FLAG);
            assert_eq!(self.0.read(vsc::ADDRESS) & vsc::FLAG, 0, "written");
            opcode
        }
    }

    /// The driver's protocol at probe: lock, select a space, unlock.
    #[test]
    fn lock_and_look() {
        let mut w = Window::default();
        assert_eq!(w.read(vsc::SEMAPHORE), 0);
        let (one, two) = (w.read(vsc::COUNTER), w.read(vsc::COUNTER));
        assert_ne!(one, two);
        w.write(vsc::SEMAPHORE, one);
        w.write(vsc::SEMAPHORE, two);
        assert_eq!(w.read(vsc::SEMAPHORE), one, "the first has it");
        for (space, there) in [
            (0, false),
            (1, true),
            (2, true),
            (3, true),
            (4, false),
            (6, true),
            (7, true),
            (0xa, true),
            (0x102, false),
        ] {
            w.write(vsc::CONTROL, space);
            assert_eq!(w.read(vsc::CONTROL) & vsc::SUPPORTED != 0, there, "{space:#x}");
            assert_eq!(w.read(vsc::CONTROL) & 0xffff, space);
        }
        w.write(vsc::SEMAPHORE, 0);
        assert_eq!(w.read(vsc::SEMAPHORE), 0);
    }

    /// The driver's protocol before a reset: a semaphore in the space of semaphores.
    #[test]
    fn semaphores() {
        let mut r = Rig::new();
        r.0.write(vsc::CONTROL, space::SEMAPHORES);
        let mut take = |id: u32| {
            r.put(0x20, id);
            r.get(0x20)
        };
        assert_eq!((take(5), take(6), take(0), take(6)), (5, 5, 0, 6));
        (0..1000).for_each(|n| _ = r.put(n * 4, 9));
        assert_eq!(r.1.semaphores.len(), MAX_SEMAPHORES);
    }

    #[test]
    fn configuration_registers() {
        for space in [space::CR, space::CR_PROTECTED] {
            configuration_registers_of(space);
        }
    }

    fn configuration_registers_of(space: u32) {
        let mut r = Rig::new();
        r.0.write(vsc::CONTROL, space);
        assert_eq!((r.get(cr::HARDWARE_ID), r.get(cr::FIRMWARE_STATUS), r.get(0x44)), (0x1_0209, 0, 0));
        r.put(cr::HARDWARE_ID, 7);
        assert_eq!(r.get(cr::HARDWARE_ID), 0x1_0209);
        for address in [cr::SIZE, vsc::ADDRESS_BITS & !3, 0xf_0016] {
            r.get(address);
            assert_ne!(r.0.read(vsc::ADDRESS) & vsc::FAILED, 0, "{address:#x}");
            assert_eq!(r.0.read(vsc::CONTROL) >> vsc::SYNDROME_SHIFT & 0xf, vsc::OUT_OF_RANGE);
        }
        r.get(0);
        assert_eq!((r.0.read(vsc::ADDRESS) & vsc::FAILED, r.0.read(vsc::CONTROL) >> 24 & 0xf), (0, 0));
    }

    /// FreeBSD's dump: the addresses come from the space in the order of a dump, the words from the protected one.
    #[test]
    fn dump_of_two_spaces() {
        let mut r = Rig::new();
        let mut at = 0;
        let mut seen = Vec::new();
        while at < cr::SIZE {
            r.0.write(vsc::CONTROL, space::CR_PROTECTED);
            let word = r.get(at);
            assert_eq!(r.0.read(vsc::ADDRESS) & vsc::ADDRESS_BITS, at, "reads leave the address");
            seen.push((at, word));
            r.0.write(vsc::CONTROL, space::SCAN);
            r.get(at);
            at = r.0.read(vsc::ADDRESS) & vsc::ADDRESS_BITS;
        }
        assert_eq!(seen, [(0, 0), (cr::FIRMWARE_STATUS, 0), (cr::HARDWARE_ID, 0x1_0209)]);
    }

    /// A dump goes from address to address, upwards, and ends where the space does.
    #[test]
    fn dump() {
        let mut r = Rig::new();
        r.0.write(vsc::CONTROL, space::SCAN);
        assert_ne!(r.0.read(vsc::CONTROL) & vsc::SIZE_VALID, 0);
        let (size, mut at, mut seen) = (r.0.read(vsc::ADDRESS) & vsc::ADDRESS_BITS, 0, Vec::new());
        while at < size {
            let word = r.get(at);
            seen.push((at, word));
            let next = r.0.read(vsc::ADDRESS) & vsc::ADDRESS_BITS;
            assert!(next > at);
            at = next;
        }
        assert_eq!(seen, [(0, 0), (cr::FIRMWARE_STATUS, 0), (cr::HARDWARE_ID, 0x1_0209)]);
    }

    #[test]
    fn mailbox() {
        let mut r = Rig::new();
        r.0.write(vsc::CONTROL, space::ICMD);
        assert_eq!(r.get(icmd::MAILBOX_SIZE), 0x340);
        assert_eq!(r.put(icmd::CONTROL, 0x9001_0000), None);
        assert_eq!(r.put(icmd::MAILBOX + 4, 0x1234_5678), None);
        assert_eq!(r.1.mailbox()[4..8], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(r.put(icmd::CONTROL, 0x9001_0001), Some(0x9001));
        assert_eq!(r.get(icmd::CONTROL), 0x9001_0001);
        assert_eq!((r.put(icmd::MAILBOX, 1), r.get(icmd::MAILBOX)), (None, 0), "the firmware has it");
        r.1.executed(3);
        assert_eq!(r.get(icmd::CONTROL), 0x9001_0300);
        assert_eq!(r.put(icmd::CONTROL, 0x9001_0003), None);
        assert_eq!(r.get(icmd::CONTROL), 0x9001_0400);
    }
}
