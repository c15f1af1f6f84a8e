//! `softhca firmware-image`: an image that `devlink dev flash` takes.
//!
//! The file is an MFA2 archive: a list of boards, each with its components, and behind that the components, compressed (xz).
//! Source: the mlxfw module of Linux (`mlxfw_mfa2.c`, `mlxfw_mfa2_format.h`; field use).

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use hca_firmware::flash;
use hca_firmware::personality::FirmwareVersion;
use hca_server::topology::{Personality, parse_personality};

/// Make a firmware image for `devlink dev flash` in a guest
///
/// An adapter that starts with it shows its version, and does what it did before.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    softhca firmware-image --version 12.28.2100 new.mfa2\n  \
    in the guest: cp new.mfa2 /lib/firmware; devlink dev flash pci/0000:01:00.0 file new.mfa2\n\n\
    The adapter starts it with its next start: a reset of its bus, or of the guest; a connectx5's and a\n\
    connectx6dx's also by devlink dev reload pci/0000:01:00.0 action fw_activate.")]
pub(crate) struct FirmwareImage {
    /// Version: MAJOR.MINOR.SUBMINOR
    #[arg(long, value_name = "VERSION")]
    version: Version,
    /// Kind of adapter that it is for [default: connectx4]
    #[arg(long, value_name = "NAME", value_parser = parse_personality)]
    personality: Option<Arc<Personality>>,
    /// Bytes behind the image's head, to make it longer: up to 1 MiB
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    size: usize,
    /// The file to write
    file: PathBuf,
}

#[derive(Debug, Clone, Copy)]
struct Version(FirmwareVersion);

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: MAJOR.MINOR.SUBMINOR is expected, such as 12.28.2100");
        let numbers: Vec<u16> =
            text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        let [major, minor, subminor] = numbers.try_into().map_err(|_| wrong())?;
        // Most registers have a byte for these.
        if major > 255 || minor > 255 {
            return Err(format!("{text:?}: MAJOR and MINOR are below 256"));
        }
        Ok(Self(FirmwareVersion { major, minor, subminor }))
    }
}

/// Writes the file.
pub(crate) fn run(args: &FirmwareImage) -> anyhow::Result<()> {
    let kind = args.personality.clone().unwrap_or_else(Personality::default_kind);
    // Numbers that follow each other: what is at the wrong place is seen.
    let body: Vec<u8> = (0..args.size / 4).flat_map(|n| (n as u32).to_be_bytes()).collect();
    let image = flash::image(&kind, args.version.0, &body);
    ensure!(image.len() <= flash::MOST as usize, "--size: an image has at most {} bytes", flash::MOST);
    let archive = archive(kind.board_id, &image)?;
    std::fs::write(&args.file, &archive).with_context(|| args.file.display().to_string())?;
    println!("{}: version {}, {} bytes", args.file.display(), args.version.0, archive.len());
    Ok(())
}

/// A TLV with what it is filled up by: kind, length, bytes.
fn tlv(kind: u8, bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let [high, low] = u16::try_from(bytes.len()).context("the archive's head is too long")?.to_be_bytes();
    let mut tlv = [&[0, kind, high, low], bytes].concat();
    tlv.resize(tlv.len().next_multiple_of(4), 0);
    Ok(tlv)
}

/// TLVs in one.
fn group(parts: &[Vec<u8>]) -> anyhow::Result<Vec<u8>> {
    const GROUP: u8 = 0x01;
    let inner = parts.concat();
    let count = u16::try_from(parts.len())?.to_be_bytes();
    let head = tlv(GROUP, &[count, u16::try_from(inner.len())?.to_be_bytes()].concat())?;
    Ok([head, inner].concat())
}

/// The archive of one image for one board.
fn archive(board: &str, image: &[u8]) -> anyhow::Result<Vec<u8>> {
    const FINGERPRINT: &[u8; 16] = b"MLNX.MFA2.XZ.00!";
    const COMPONENT: &[u8; 16] = b"#BIN.COMPONENT!#";
    const PACKAGE: u8 = 0x02;
    const DESCRIPTOR: u8 = 0x04;
    const POINTER: u8 = 0x22;
    const BOARD: u8 = 0x2a;
    const XZ: u32 = 1;
    let block = [&COMPONENT[..], image].concat();
    let mut packed = Vec::new();
    lzma_rs::xz_compress(&mut block.as_slice(), &mut packed)?;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let device = group(&[tlv(BOARD, board.as_bytes())?, tlv(POINTER, &words(&[0, 0]))?])?;
    // Component 0, at the beginning of the block.
    let component = group(&[tlv(DESCRIPTOR, &words(&[0, 0, 0, u32::try_from(image.len())?]))?])?;
    let package = |offset: usize| {
        let (packed, whole) = (u32::try_from(packed.len())?, u32::try_from(block.len())?);
        // One component, one board.
        group(&[tlv(PACKAGE, &words(&[1 << 16 | 1, u32::try_from(offset)?, packed, 0, whole, XZ, 0]))?])
    };
    let before = FINGERPRINT.len() + package(0)?.len() + device.len() + component.len();
    Ok([&FINGERPRINT[..], &package(before)?, &device, &component, &packed].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive() {
        let file = archive("BOARD", &[7; 100]).unwrap();
        assert_eq!(file[..16], *b"MLNX.MFA2.XZ.00!");
        // The group, in it the package's descriptor with where the components begin.
        assert_eq!(file[16..28], [0, 1, 0, 4, 0, 1, 0, 32, 0, 2, 0, 28]);
        let at = u32::from_be_bytes(file[32..36].try_into().unwrap()) as usize;
        let mut unpacked = Vec::new();
        lzma_rs::xz_decompress(&mut &file[at..], &mut unpacked).unwrap();
        assert_eq!(unpacked, [&b"#BIN.COMPONENT!#"[..], &[7; 100]].concat());
        assert!(file.windows(12).any(|w| w == b"\x00\x2a\x00\x05BOARD\0\0\0"));
    }

    #[test]
    fn versions() {
        assert_eq!("12.28.2100".parse::<Version>().unwrap().0.to_string(), "12.28.2100");
        for wrong in ["", "12", "12.28", "12.28.2100.1", "12.28.x", "256.1.1", "1.1.65536"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }
}
