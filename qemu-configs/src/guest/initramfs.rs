//! The initramfs of a guest: what puts its root file system together, its task, and the files copied in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::guest::boot::{Boot, Machine, Task};
use crate::guest::network;
use crate::image::cpio::Cpio;

const STAGE1: &str = include_str!("../../guest/stage1.sh");
const INIT: &str = include_str!("../../guest/init.sh");
const NET: &str = include_str!("../../guest/hca-net");
const NETBOOT: &str = include_str!("../../guest/hca-netboot");
const VFIO_BIND: &str = include_str!("../../guest/hca-vfio-bind");

/// Makes the archive.
pub(crate) fn make(machine: &Machine, boot: &Boot<'_>) -> Result<Vec<u8>> {
    let mut archive = Cpio::new();
    for folder in ["dev", "proc", "sys", "lower", "packages", "rw", "new", "modules"] {
        archive.directory(folder)?;
    }
    let busybox = ["usr/bin/busybox", "bin/busybox"]
        .iter()
        .map(|path| machine.tools.root().join(path))
        .find(|path| path.is_file())
        .context("no busybox among the tools")?;
    let busybox = fs::read(busybox)?;
    archive.file("bin/busybox", 0o755, &busybox)?;
    archive.file("init", 0o755, STAGE1.as_bytes())?;
    for module in &machine.kernel.early {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.file(&format!("modules/{name}"), 0o644, &fs::read(module)?)?;
    }
    archive.file("hca/busybox", 0o755, &busybox)?;
    archive.file("hca/init", 0o755, INIT.as_bytes())?;
    archive.file("copy/usr/local/bin/hca-vfio-bind", 0o755, VFIO_BIND.as_bytes())?;
    archive.file("copy/usr/local/bin/hca-netboot", 0o755, NETBOOT.as_bytes())?;
    archive.file("copy/usr/local/bin/hca-net", 0o755, NET.as_bytes())?;
    archive.file("hca/net", 0o644, network::table(&boot.devices).as_bytes())?;
    let disks: String = machine.disks().iter().map(|disk| format!("{}\n", disk.serial)).collect();
    archive.file("disks", 0o644, disks.as_bytes())?;
    if boot.disks.iter().any(|disk| disk.is_writable) {
        archive.file("hca/keeps", 0o644, b"")?;
    }
    archive.file("hca/env", 0o644, environment(boot).as_bytes())?;
    archive.file("hca/hosts", 0o644, boot.hosts_file.as_bytes())?;
    if let Task::Job(script) = &boot.task {
        archive.file("hca/job", 0o644, format!("{script}\n").as_bytes())?;
    }
    for copy in boot.copies {
        add_copy(&mut archive, &copy.from, &format!("copy{}", copy.to))
            .with_context(|| format!("cannot copy {} into the guest", copy.from.display()))?;
    }
    archive.finish()
}

fn add_copy(archive: &mut Cpio, from: &Path, to: &str) -> Result<()> {
    let meta = fs::metadata(from)?;
    if !meta.is_dir() {
        return archive.file(to, meta.permissions().mode(), &fs::read(from)?);
    }
    archive.directory(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = format!("{to}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_symlink() {
            archive.link(&to, &fs::read_link(entry.path())?.to_string_lossy())?;
        } else {
            add_copy(archive, &entry.path(), &to)?;
        }
    }
    Ok(())
}

fn environment(boot: &Boot<'_>) -> String {
    let mut text = format!("HCA_HOST={}\n", quote(&boot.host.name));
    let mut set = |name: &str, value: &str| text.push_str(&format!("{name}={}\n", quote(value)));
    if boot.modprobe {
        set("HCA_MODPROBE", "1");
    }
    if let Some(side) = &boot.side {
        set("HCA_ADDRESS", &side.address);
        set("HCA_MAC", &side.mac);
    }
    match &boot.task {
        Task::Wait => set("HCA_MODE", "wait"),
        Task::Job(_) => {
            set("HCA_MODE", "job");
            if let Some(term) = &boot.colour {
                set("HCA_TERM", term);
            }
        }
        Task::Shell { term, rows, columns } => {
            set("HCA_MODE", "shell");
            set("HCA_TERM", term);
            set("HCA_ROWS", &rows.to_string());
            set("HCA_COLUMNS", &columns.to_string());
        }
    }
    text
}

/// Quotes a word for the shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        assert_eq!(quote("a b'c"), "'a b'\\''c'");
    }
}
