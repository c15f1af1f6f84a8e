//! The expansion ROM: images that firmware of the host starts before its operating system.
//!
//! Source: PCI Firmware Specification 3.2, section 5 (what an image begins with), PCIe 7.5.1.2.4 (the base address register).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Most bytes of an expansion ROM (PCI Local Bus 3.0, 6.2.5.2).
pub const MOST: u64 = 16 << 20;
/// The base address register has no address bits below this one.
const LEAST_SIZE: u64 = 2048;
/// Lengths of images count these.
const BLOCK: usize = 512;
/// What an image begins with.
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Where an image says where its data structure is.
const POINTER: usize = 0x18;
/// What that begins with.
const STRUCTURE: &[u8] = b"PCIR";
/// In it: its own bytes, 16 bits. Host software passes over a ROM with 0 here (Linux since 2026: `drivers/pci/rom.c`).
const STRUCTURE_LENGTH: usize = 0x0a;
/// The least of them (revision 0).
const LEAST_STRUCTURE: usize = 0x18;
/// In it: blocks of the image, 16 bits.
const LENGTH: usize = 0x10;
/// In it: bit 7, the last image.
const INDICATOR: usize = 0x15;
/// Of [`INDICATOR`].
const LAST: u8 = 1 << 7;

/// The bytes of an expansion ROM, whose images were checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Rom(Arc<[u8]>);

impl fmt::Debug for Rom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rom({} bytes)", self.0.len())
    }
}

impl Rom {
    /// Reads a file.
    ///
    /// # Errors
    /// Why it is none, in words.
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = path.display();
        let metadata = std::fs::metadata(path).map_err(|error| format!("{file}: {error}"))?;
        if !metadata.is_file() {
            return Err(format!("{file}: is not a file"));
        }
        if metadata.len() > MOST {
            return Err(format!(
                "{file}: {} bytes, more than the {MOST} of an expansion ROM",
                metadata.len()
            ));
        }
        let bytes = std::fs::read(path).map_err(|error| format!("{file}: {error}"))?;
        Self::of(bytes).map_err(|reason| format!("{file}: {reason}"))
    }

    /// Those bytes, if images follow each other in them from the begin on, the last of which says so.
    ///
    /// # Errors
    /// What is wrong with an image.
    pub fn of(bytes: Vec<u8>) -> Result<Self, String> {
        let mut at = 0usize;
        for number in 1.. {
            let image = bytes.get(at..).unwrap_or_default();
            if !image.starts_with(&SIGNATURE) {
                return Err(format!("image {number}, at byte {at:#x}, does not begin with 55 aa"));
            }
            let half = |at: usize| {
                let bytes = image.get(at..at.saturating_add(2))?.try_into().ok()?;
                Some(usize::from(u16::from_le_bytes(bytes)))
            };
            let pointer = half(POINTER).unwrap_or(0);
            let structure = image.get(pointer..).filter(|rest| rest.starts_with(STRUCTURE));
            let Some(structure) = structure.filter(|_| pointer > 0) else {
                return Err(format!("image {number} has no data structure (PCIR) where byte 0x18 says"));
            };
            if !pointer.is_multiple_of(4) {
                return Err(format!(
                    "the data structure of image {number}, at byte {pointer:#x} of it, is not aligned to 4 bytes"
                ));
            }
            let own = half(pointer.saturating_add(STRUCTURE_LENGTH)).unwrap_or(0);
            if own < LEAST_STRUCTURE || own > structure.len() {
                return Err(format!(
                    "the data structure of image {number} says that it has {own} bytes, not {LEAST_STRUCTURE} or more within the image"
                ));
            }
            let indicator = structure.get(INDICATOR).copied().unwrap_or(LAST);
            let blocks = half(pointer.saturating_add(LENGTH)).unwrap_or(0);
            let length = blocks.saturating_mul(BLOCK);
            if length == 0 || length > image.len() {
                let have = image.len();
                return Err(format!("image {number} says that it has {length} bytes, and there are {have}"));
            }
            if indicator & LAST != 0 {
                break;
            }
            at = at.saturating_add(length);
        }
        Ok(Self(bytes.into()))
    }

    /// Bytes that it takes of the bus: a power of two.
    pub fn size(&self) -> u64 {
        (self.0.len() as u64).next_power_of_two().max(LEAST_SIZE)
    }

    /// Reads; behind the images is what erased memory has.
    pub fn get(&self, offset: u64, data: &mut [u8]) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.0.get(from..).unwrap_or_default();
        data.fill(0xff);
        data.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of that many blocks.
    fn image(blocks: u16, last: bool) -> Vec<u8> {
        let mut image = vec![0; usize::from(blocks) * BLOCK];
        image[..2].copy_from_slice(&SIGNATURE);
        image[POINTER] = 0x1c;
        image[0x1c..0x20].copy_from_slice(STRUCTURE);
        image[0x1c + STRUCTURE_LENGTH] = 0x1c;
        image[0x1c + LENGTH..][..2].copy_from_slice(&blocks.to_le_bytes());
        image[0x1c + INDICATOR] = if last { LAST } else { 0 };
        image
    }

    #[test]
    fn images_follow_each_other() {
        let two = [image(3, false), image(2, true)].concat();
        let rom = Rom::of(two.clone()).unwrap();
        assert_eq!(rom.size(), 4096);
        let mut read = vec![0; 2564];
        rom.get(0, &mut read);
        assert_eq!((&read[..2560], &read[2560..]), (&two[..], &[0xff; 4][..]));
        rom.get(u64::MAX, &mut read[..1]);
        assert_eq!((read[0], Rom::of(image(1, true)).unwrap().size()), (0xff, 2048));
    }

    #[test]
    fn what_is_no_rom() {
        let mut structure = image(1, true);
        structure[0x1c] = b'X';
        let mut length = image(1, true);
        length[0x1c + LENGTH] = 2;
        let mut pointer = image(1, true);
        pointer[POINTER..POINTER + 2].fill(0xff);
        let mut own = image(1, true);
        own[0x1c + STRUCTURE_LENGTH] = 0x17;
        let mut beyond = image(1, true);
        beyond[0x1c + STRUCTURE_LENGTH..][..2].copy_from_slice(&0x1e5u16.to_le_bytes());
        let mut odd = image(1, true);
        odd.copy_within(0x1c..0x3c, 0x1e);
        odd[POINTER] = 0x1e;
        for (bytes, reason) in [
            (own, "says that it has 23 bytes"),
            (beyond, "says that it has 485 bytes"),
            (odd, "at byte 0x1e of it, is not aligned"),
            (vec![], "does not begin with 55 aa"),
            (vec![0x55], "does not begin with 55 aa"),
            (vec![0x55, 0xaa], "no data structure"),
            (structure, "no data structure"),
            (pointer, "no data structure"),
            (length, "says that it has 1024 bytes, and there are 512"),
            (image(1, false), "image 2, at byte 0x200, does not begin with 55 aa"),
        ] {
            let error = Rom::of(bytes).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(Rom::read(Path::new("/nowhere/rom")).unwrap_err().starts_with("/nowhere/rom: "));
        assert!(Rom::read(&std::env::temp_dir()).unwrap_err().ends_with("is not a file"));
    }
}
