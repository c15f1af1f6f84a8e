//! Gets the uncompressed kernel out of a distribution's `vmlinuz`.
//!
//! QEMU enters an ELF kernel with a PVH note directly, which saves the guest decompressing itself: a second or
//! more under emulation. Header fields: Linux `Documentation/arch/x86/boot.rst`.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::prefix::Prefix;

const SETUP_SECTORS: usize = 0x1f1;
const SIGNATURE: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// The payload ends with its uncompressed size.
const SIZE_TRAILER: usize = 4;
const ELF: &[u8] = b"\x7fELF";

/// How the payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
    Lz4,
}

/// The ELF `vmlinux` in `image`, which may be a bzImage or already an ELF file.
pub fn extract(tools: &Prefix, image: &[u8]) -> Result<Vec<u8>> {
    if image.starts_with(ELF) {
        return Ok(image.to_vec());
    }
    let payload = payload(image)?;
    let kernel = match compression(payload)? {
        Compression::None => payload.to_vec(),
        Compression::Gzip => decompress(std::process::Command::new("gzip"), payload)?,
        Compression::Xz => decompress(tools.command("xz")?, payload)?,
        Compression::Zstd => decompress(tools.command("zstd")?, payload)?,
        Compression::Lz4 => decompress(tools.command("lz4")?, payload)?,
    };
    if !kernel.starts_with(ELF) {
        bail!("the kernel's payload is not an ELF file");
    }
    Ok(kernel)
}

fn payload(image: &[u8]) -> Result<&[u8]> {
    if image.get(SIGNATURE..SIGNATURE + 4) != Some(b"HdrS") {
        bail!("neither an ELF kernel nor a bzImage");
    }
    let word = |at: usize| -> Result<usize> {
        let bytes: [u8; 4] = image
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .context("the bzImage is cut short")?;
        Ok(u32::from_le_bytes(bytes) as usize)
    };
    let sectors = match image.get(SETUP_SECTORS) {
        // The boot protocol says that zero means four.
        Some(0) => 4,
        Some(&sectors) => usize::from(sectors),
        None => bail!("the bzImage is cut short"),
    };
    let start = (sectors + 1) * SECTOR + word(PAYLOAD_OFFSET)?;
    let end = start + word(PAYLOAD_LENGTH)?.saturating_sub(SIZE_TRAILER);
    image.get(start..end).context("the bzImage is cut short")
}

fn compression(payload: &[u8]) -> Result<Compression> {
    Ok(match payload {
        [0x7f, b'E', b'L', b'F', ..] => Compression::None,
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        [0x02, 0x21, 0x4c, 0x18, ..] => Compression::Lz4,
        _ => bail!("the kernel is compressed in a way this program does not know"),
    })
}

fn decompress(mut command: std::process::Command, payload: &[u8]) -> Result<Vec<u8>> {
    let mut child = command
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(mut stdin) = stdin {
                // A decompressor that stops early reports it by its exit status or a short result.
                let _ = stdin.write_all(payload);
            }
        });
        child.wait_with_output()
    })?;
    // Some complain about what follows the stream; the caller checks what came out.
    if output.stdout.is_empty() {
        bail!("decompressing the kernel failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR + 16];
        image[SETUP_SECTORS] = 1;
        image[SIGNATURE..SIGNATURE + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16u32.to_le_bytes());
        let length = (payload.len() + SIZE_TRAILER) as u32;
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0; SIZE_TRAILER]);
        image
    }

    #[test]
    fn finds_the_payload() {
        let image = bzimage(b"\x7fELFrest");
        assert_eq!(payload(&image).unwrap(), b"\x7fELFrest");
        assert_eq!(extract(&Prefix::new("/nowhere"), &image).unwrap(), b"\x7fELFrest");
    }

    #[test]
    fn refuses_what_is_not_a_kernel() {
        assert!(payload(b"short").is_err());
        assert!(payload(&bzimage(b"\x7fELF")[..SECTOR * 2]).is_err());
        assert!(compression(b"????????").is_err());
        assert_eq!(compression(&[0x28, 0xb5, 0x2f, 0xfd, 0]).unwrap(), Compression::Zstd);
    }
}
