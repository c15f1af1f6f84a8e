//! The adapter's flash memory: two banks for firmware, of which it starts one; and how another one gets there.
//!
//! Who updates takes the handle, says how large the image is, writes it piece by piece into the bank that is not in use, has it
//! verified and activated; the adapter starts it with its next start. Whatever ends that before (a reset, the power, another
//! who releases the handle) leaves the bank that is in use as it was. Source: the mlx5 driver (`fw.c`) and mstflint
//! (`fw_comps_mgr`) for the states and what is allowed in each.

use std::collections::BTreeMap;

use hca_spec::management::{
    IMAGE_DIGEST_FROM, IMAGE_MAGIC, ImageHead, control_state, instruction, update_error, update_state,
};

use crate::personality::{FirmwareVersion, Personality};

/// Most bytes of an image.
pub const MOST: u32 = 1 << 20;
/// Pieces are a multiple of this power of two.
pub(crate) const LOG_WORD: u32 = 2;
/// Most bytes of a piece.
pub(crate) const MOST_AT_ONCE: u32 = 128;
/// Bytes of a sector, which are erased together.
const SECTOR: usize = 4096;
/// Layout of [`ImageHead`].
const FORMAT: u32 = 1;
/// The only component: the image.
pub(crate) const COMPONENT: u32 = 0;

/// An image for adapters of that kind, which then have that version.
pub fn image(kind: &Personality, version: FirmwareVersion, body: &[u8]) -> Vec<u8> {
    let mut head = ImageHead::new();
    let length = ImageHead::SIZE.saturating_add(body.len());
    head.set(ImageHead::MAGIC, IMAGE_MAGIC).set(ImageHead::FORMAT, FORMAT);
    head.set(ImageHead::LENGTH, u32::try_from(length).unwrap_or(u32::MAX));
    head.set(ImageHead::HARDWARE_ID, kind.hardware_id);
    head.set(ImageHead::MAJOR, version.major.into()).set(ImageHead::MINOR, version.minor.into());
    head.set(ImageHead::SUBMINOR, version.subminor.into());
    let [first, last] = kind.psid();
    head.set(ImageHead::PSID_FIRST, first).set(ImageHead::PSID_LAST, last);
    let mut image = [head.bytes(), body].concat();
    let digest = crc32fast::hash(image.get(IMAGE_DIGEST_FROM..).unwrap_or_default());
    hca_spec::put_be32(&mut image, ImageHead::DIGEST.offset(), digest);
    image
}

/// Which version an image is, or why it is none for adapters of that kind ([`update_error`]).
fn verify(kind: &Personality, image: &[u8]) -> Result<FirmwareVersion, u32> {
    let head = ImageHead::from_prefix_or_zero(image);
    let known = head.get(ImageHead::MAGIC) == IMAGE_MAGIC && head.get(ImageHead::FORMAT) == FORMAT;
    // The last piece may have been filled up.
    let length = head.get(ImageHead::LENGTH) as usize;
    let Some(whole) = image.get(IMAGE_DIGEST_FROM..length).filter(|_| known && length >= ImageHead::SIZE)
    else {
        return Err(update_error::BAD_FORMAT);
    };
    if crc32fast::hash(whole) != head.get(ImageHead::DIGEST) {
        return Err(update_error::DIGEST);
    }
    let psid = [head.get(ImageHead::PSID_FIRST), head.get(ImageHead::PSID_LAST)];
    if head.get(ImageHead::HARDWARE_ID) != kind.hardware_id || psid != kind.psid() {
        return Err(update_error::NOT_APPLICABLE);
    }
    let number = |field| head.get(field) as u16;
    Ok(FirmwareVersion {
        major: number(ImageHead::MAJOR),
        minor: number(ImageHead::MINOR),
        subminor: number(ImageHead::SUBMINOR),
    })
}

/// What was done to the memory's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Sectors of 4 KiB that were erased.
    pub erased: u32,
    /// Bytes that were programmed.
    pub programmed: u32,
}

/// An update under way.
#[derive(Debug, Clone, Default)]
struct Update {
    state: u32,
    error: u32,
    size: u32,
    /// What came, by sector.
    sectors: BTreeMap<u32, Box<[u8; SECTOR]>>,
    verified: bool,
}

/// Both banks, and what is under way.
#[derive(Debug, Clone)]
pub(crate) struct Flash {
    /// What is in each; nothing that could be started: it was erased, or not verified yet.
    banks: [Option<FirmwareVersion>; 2],
    /// Which the next start takes.
    next: usize,
    running: FirmwareVersion,
    /// Another image was activated and not started yet.
    waits: bool,
    /// The number of the update under way, or of the next one.
    handle: u32,
    update: Update,
    /// Since it was last taken.
    work: Work,
}

impl Flash {
    /// As delivered: with this version.
    pub(crate) fn new(version: FirmwareVersion) -> Self {
        Self {
            banks: [Some(version), None],
            next: 0,
            running: version,
            waits: false,
            handle: 1,
            update: Update::default(),
            work: Work::default(),
        }
    }

    /// What was done since the last call: it takes its time.
    pub(crate) fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// What runs.
    pub(crate) fn running(&self) -> FirmwareVersion {
        self.running
    }

    fn in_bank(&self, bank: usize) -> Option<FirmwareVersion> {
        self.banks.get(bank).copied().flatten()
    }

    /// What the next start takes.
    fn next(&self) -> FirmwareVersion {
        self.in_bank(self.next).unwrap_or(self.running)
    }

    /// What the next start takes, if that is another image.
    pub(crate) fn pending(&self) -> Option<FirmwareVersion> {
        self.waits.then(|| self.next())
    }

    /// State of the component ([`update_state`]).
    pub(crate) fn update_state(&self) -> u32 {
        match self.update.state {
            _ if self.waits => update_state::ACTIVE_PENDING_RESET,
            control_state::IDLE => update_state::IDLE,
            _ => update_state::IN_PROGRESS,
        }
    }

    /// The firmware ends, whatever it was about, and starts from the bank that was activated last.
    pub(crate) fn restart(&mut self) {
        self.update = Update::default();
        self.running = self.next();
        self.waits = false;
    }

    /// The handle that an instruction may name, what became of the last one, and the state.
    pub(crate) fn state(&self) -> (u32, u32, u32) {
        (self.handle, self.update.error, self.update.state)
    }

    /// Percent of what is to come that came.
    pub(crate) fn progress(&self) -> u32 {
        let came = (self.update.sectors.len() as u64).saturating_mul(SECTOR as u64);
        let of = u64::from(self.update.size).max(1);
        (came.saturating_mul(100) / of).min(100) as u32
    }

    /// An instruction ([`instruction`]) of whoever names that handle.
    ///
    /// # Errors
    /// It is not allowed now; its reason is in [`Flash::state`], too.
    pub(crate) fn instruct(
        &mut self,
        kind: &Personality,
        what: u32,
        handle: u32,
        component: u32,
        size: u32,
    ) -> Result<(), u32> {
        let outcome = self.try_instruct(kind, what, handle, component, size);
        self.update.error = outcome.err().unwrap_or(update_error::OK);
        outcome
    }

    fn try_instruct(
        &mut self,
        kind: &Personality,
        what: u32,
        handle: u32,
        component: u32,
        size: u32,
    ) -> Result<(), u32> {
        let state = self.update.state;
        let mine = handle == self.handle;
        match what {
            instruction::LOCK_UPDATE_HANDLE if state == control_state::IDLE && mine => {
                self.update = Update { state: control_state::LOCKED, ..Update::default() };
            }
            instruction::RELEASE_UPDATE_HANDLE if state != control_state::IDLE && mine => self.release(),
            instruction::FORCE_HANDLE_RELEASE => self.release(),
            instruction::CHECK_UPDATE_HANDLE if mine => {}
            instruction::CANCEL if state != control_state::IDLE && mine => {
                self.update = Update { state: control_state::LOCKED, ..Update::default() };
            }
            instruction::UPDATE_COMPONENT if state == control_state::LOCKED && mine => {
                if self.waits {
                    return Err(update_error::BLOCKED_PENDING_RESET);
                }
                if component != COMPONENT || size > MOST || size == 0 {
                    return Err(update_error::NOT_APPLICABLE);
                }
                self.fill(None);
                self.update = Update { state: control_state::DOWNLOAD, size, ..Update::default() };
            }
            instruction::VERIFY_COMPONENT if state == control_state::DOWNLOAD && mine => {
                self.update.state = control_state::LOCKED;
                let sectors = std::mem::take(&mut self.update.sectors);
                let mut image = vec![0xff; self.update.size as usize];
                for (chunk, number) in image.chunks_mut(SECTOR).zip(0..) {
                    if let Some(sector) = sectors.get(&number) {
                        chunk.iter_mut().zip(sector.iter()).for_each(|(to, from)| *to = *from);
                    }
                }
                let version = verify(kind, &image)?;
                self.fill(Some(version));
                self.update.verified = true;
            }
            instruction::ACTIVATE_COMPONENT | instruction::ACTIVATE
                if state == control_state::LOCKED && mine && self.update.verified =>
            {
                self.next = self.other();
                self.waits = true;
                self.update.verified = false;
            }
            _ => return Err(update_error::ERROR),
        }
        Ok(())
    }

    fn other(&self) -> usize {
        1 - self.next.min(1)
    }

    /// What is in the bank that the next start does not take.
    fn fill(&mut self, version: Option<FirmwareVersion>) {
        let other = self.other();
        if let Some(bank) = self.banks.get_mut(other) {
            *bank = version;
        }
    }

    fn release(&mut self) {
        self.update = Update::default();
        // The handle has 24 bits; 0 is nobody's.
        self.handle = (self.handle.wrapping_add(1) & 0xff_ffff).max(1);
    }

    /// A piece comes. What is behind the end of the image, in its last word, is dropped.
    ///
    /// # Errors
    /// It is nobody's, does not fit, or pieces are not taken now.
    pub(crate) fn piece(&mut self, handle: u32, offset: u32, bytes: &[u8]) -> Result<(), ()> {
        let end = offset.checked_add(bytes.len() as u32).ok_or(())?;
        let room = self.update.size.next_multiple_of(1 << LOG_WORD);
        let aligned = offset.is_multiple_of(1 << LOG_WORD) && bytes.len().is_multiple_of(1 << LOG_WORD);
        if self.update.state != control_state::DOWNLOAD || handle != self.handle || end > room || !aligned {
            return Err(());
        }
        let mut left = bytes;
        let mut at = offset;
        while !left.is_empty() {
            let within = at as usize % SECTOR;
            let (now, rest) = left.split_at_checked(SECTOR - within).unwrap_or((left, &[]));
            let work = &mut self.work;
            let sector = self.update.sectors.entry(at / SECTOR as u32).or_insert_with(|| {
                work.erased = work.erased.saturating_add(1);
                Box::new([0xff; SECTOR])
            });
            work.programmed = work.programmed.saturating_add(now.len() as u32);
            sector.iter_mut().skip(within).zip(now).for_each(|(to, from)| *to = *from);
            at = at.wrapping_add(now.len() as u32);
            left = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: FirmwareVersion = FirmwareVersion { major: 12, minor: 28, subminor: 2100 };

    fn flash() -> (Flash, std::sync::Arc<Personality>) {
        let kind = Personality::default_kind();
        (Flash::new(kind.version), kind)
    }

    fn write(flash: &mut Flash, kind: &Personality, image: &[u8]) -> Result<(), u32> {
        let handle = flash.state().0;
        flash.instruct(kind, instruction::LOCK_UPDATE_HANDLE, handle, 0, 0)?;
        flash.instruct(kind, instruction::UPDATE_COMPONENT, handle, 0, image.len() as u32)?;
        for (number, piece) in image.chunks(128).enumerate() {
            let mut piece = piece.to_vec();
            piece.resize(piece.len().next_multiple_of(4), 0);
            flash.piece(handle, number as u32 * 128, &piece).unwrap();
        }
        flash.instruct(kind, instruction::VERIFY_COMPONENT, handle, 0, 0)
    }

    fn activate(flash: &mut Flash, kind: &Personality) -> Result<(), u32> {
        let handle = flash.state().0;
        flash.instruct(kind, instruction::ACTIVATE, handle, 0, 0)?;
        flash.instruct(kind, instruction::RELEASE_UPDATE_HANDLE, handle, 0, 0)
    }

    /// Twice: each time the other bank is written.
    #[test]
    fn an_image_runs_from_the_next_start_on() {
        let (mut flash, kind) = flash();
        for subminor in [2100, 2200] {
            let version = FirmwareVersion { subminor, ..NEW };
            let before = flash.running();
            write(&mut flash, &kind, &image(&kind, version, &[7; 10_001])).unwrap();
            assert_eq!((flash.pending(), flash.running()), (None, before));
            activate(&mut flash, &kind).unwrap();
            assert_eq!((flash.pending(), flash.running()), (Some(version), before));
            assert_eq!(flash.update_state(), update_state::ACTIVE_PENDING_RESET);
            let again = write(&mut flash, &kind, &image(&kind, version, &[]));
            assert_eq!(again, Err(update_error::BLOCKED_PENDING_RESET));
            flash.restart();
            assert_eq!((flash.pending(), flash.running(), flash.update_state()), (None, version, 0));
        }
    }

    /// At each step of an update, the power goes: what ran before runs again, and the update can be made.
    #[test]
    fn the_power_goes() {
        let (_, kind) = flash();
        let whole = image(&kind, NEW, &[1; 5000]);
        for step in 0..4 {
            let (mut flash, kind) = flash();
            let old = flash.running();
            match step {
                0 => _ = flash.instruct(&kind, instruction::LOCK_UPDATE_HANDLE, 1, 0, 0),
                1 => {
                    flash.instruct(&kind, instruction::LOCK_UPDATE_HANDLE, 1, 0, 0).unwrap();
                    flash.instruct(&kind, instruction::UPDATE_COMPONENT, 1, 0, 5064).unwrap();
                    flash.piece(1, 0, &whole[..64]).unwrap();
                }
                2 => write(&mut flash, &kind, &whole).unwrap(),
                _ => {
                    write(&mut flash, &kind, &whole).unwrap();
                    activate(&mut flash, &kind).unwrap();
                }
            }
            flash.restart();
            assert_eq!(flash.running(), if step == 3 { NEW } else { old }, "{step}");
            write(&mut flash, &kind, &whole).unwrap();
            activate(&mut flash, &kind).unwrap();
            flash.restart();
            assert_eq!(flash.running(), NEW);
        }
    }

    #[test]
    fn images_that_are_none() {
        let (mut flash, kind) = flash();
        let old = flash.running();
        let good = image(&kind, NEW, &[1; 100]);
        let spoilt = |at: usize| {
            let mut image = good.clone();
            image[at] ^= 1;
            image
        };
        let other = Personality { board_id: "ANOTHER", ..(*kind).clone() };
        for (image, error) in [
            (spoilt(0), update_error::BAD_FORMAT),
            (spoilt(0xb), update_error::BAD_FORMAT),
            (spoilt(0x30), update_error::DIGEST),
            (spoilt(0x80), update_error::DIGEST),
            (good[..80].to_vec(), update_error::BAD_FORMAT),
            (vec![0; 4], update_error::BAD_FORMAT),
            (image(&other, NEW, &[]), update_error::NOT_APPLICABLE),
        ] {
            assert_eq!(write(&mut flash, &kind, &image), Err(error));
            assert_eq!(flash.state().1, error);
            assert_eq!(activate(&mut flash, &kind), Err(update_error::ERROR), "it was not verified");
            let handle = flash.state().0;
            flash.instruct(&kind, instruction::RELEASE_UPDATE_HANDLE, handle, 0, 0).unwrap();
            flash.restart();
            assert_eq!(flash.running(), old);
        }
    }

    #[test]
    fn what_is_not_allowed() {
        let (mut flash, kind) = flash();
        let mut refused =
            |what, handle, component, size| flash.instruct(&kind, what, handle, component, size).unwrap_err();
        for what in 0..0x20 {
            if !matches!(
                what,
                instruction::LOCK_UPDATE_HANDLE
                    | instruction::CHECK_UPDATE_HANDLE
                    | instruction::FORCE_HANDLE_RELEASE
            ) {
                assert_eq!(refused(what, 1, 0, 8), update_error::ERROR, "{what}: nobody has the handle");
            }
        }
        assert_eq!(refused(instruction::LOCK_UPDATE_HANDLE, 2, 0, 0), update_error::ERROR, "not that one");
        flash.instruct(&kind, instruction::LOCK_UPDATE_HANDLE, 1, 0, 0).unwrap();
        let mut refused =
            |what, handle, component, size| flash.instruct(&kind, what, handle, component, size).unwrap_err();
        assert_eq!(refused(instruction::LOCK_UPDATE_HANDLE, 1, 0, 0), update_error::ERROR, "taken");
        assert_eq!(refused(instruction::UPDATE_COMPONENT, 1, 1, 8), update_error::NOT_APPLICABLE);
        assert_eq!(refused(instruction::UPDATE_COMPONENT, 1, 0, MOST + 1), update_error::NOT_APPLICABLE);
        flash.instruct(&kind, instruction::UPDATE_COMPONENT, 1, 0, 9).unwrap();
        for (handle, offset, len) in [(2, 0, 4), (1, 12, 4), (1, 2, 4), (1, 0, 3), (1, u32::MAX - 3, 8)] {
            assert!(flash.piece(handle, offset, &vec![0; len]).is_err(), "{handle} {offset} {len}");
        }
        assert!(flash.piece(1, 8, &[0; 4]).is_ok(), "the last word");
        flash.instruct(&kind, instruction::FORCE_HANDLE_RELEASE, 77, 0, 0).unwrap();
        assert_eq!(flash.state(), (2, 0, 0), "the next has another number");
    }
}
