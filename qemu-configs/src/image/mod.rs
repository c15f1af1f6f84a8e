//! The guest image in cached parts: user space (erofs), what further packages add to it (erofs), kernel (PVH vmlinux, modules as
//! erofs) and a small initramfs that puts them together.
//!
//! Raw erofs on virtio-blk under an overlay boots fastest under emulation: nothing is decompressed.

pub mod bugs;
pub mod bzimage;
pub mod cpio;
mod dpkg;
pub mod kernel;
pub mod modules;
pub mod packages;
pub mod rootfs;
pub mod series;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::apt::Apt;
use crate::cache::Cache;
use crate::child::tie;
use crate::prefix::Prefix;

const TOOLS: [&str; 6] = ["busybox-static", "erofs-utils", "kmod", "lz4", "xz-utils", "zstd"];

/// The programs that make images, from the same Debian release as the guests.
pub fn tools(cache: &Cache) -> Result<Prefix> {
    let recipe = format!("tools 1: trixie: {}", TOOLS.join(" "));
    let folder = cache.get_or_build("tools", &recipe, |folder| {
        let wanted: Vec<String> = TOOLS.iter().map(ToString::to_string).collect();
        Apt::new(cache, &["trixie"]).unpack(&wanted, folder, |_| false)?;
        Ok(())
    })?;
    Ok(Prefix::new(folder))
}

/// Makes an uncompressed erofs image of a folder, everything owned by root.
pub(crate) fn make_erofs(tools: &Prefix, folder: &Path, image: &Path) -> Result<()> {
    run(tools
        .command("mkfs.erofs")?
        // Fixed time and identifier: the same packages give the same bytes.
        .args(["--quiet", "--all-root", "-T0", "-U", "00000000-0000-0000-0000-000000000000"])
        .args([image, folder]))
}

/// Runs a command to its end; its output is part of the error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = tie(command, &[])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout).trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
