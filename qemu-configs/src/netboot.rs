//! Hosts that boot over the fabric: QEMU enters iPXE, which gets an address, a kernel and an initramfs from another host by
//! DHCP and HTTP over IP over InfiniBand, with its own driver of the adapter.
//!
//! What such a host boots lies in the other hosts in `/srv/netboot/HOST`; there `hca-netboot` (`guest/hca-netboot`) serves it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::apt::Apt;
use crate::cache::Cache;
use crate::guest::{Boot, Copy, Machine, initramfs, kernel_arguments};

/// What the serving host needs.
pub const PACKAGES: [&str; 1] = ["dnsmasq-base"];
/// Where the files are, in the serving host.
const SERVED: &str = "/srv/netboot";
/// The last card is the adapter: it is behind a bridge, and other cards of the host are before it. Again until somebody answers: the
/// manager of the subnet may still be starting.
const SCRIPT: &str = "#!ipxe
ifstat
set card net0
isset ${net1/mac} && set card net1 ||
isset ${net2/mac} && set card net2 ||
isset ${net3/mac} && set card net3 ||
:again
autoboot ${card} ||
sleep 1
goto again
";

/// What QEMU enters.
#[derive(Clone, Debug)]
pub struct Loader {
    /// iPXE as a Linux kernel image.
    pub image: PathBuf,
    /// What it does.
    pub script: PathBuf,
}

/// Debian's iPXE, fetched if need be, with a script in this folder.
///
/// # Errors
/// The package can't be had.
pub fn loader(cache: &Cache, folder: &Path) -> Result<Loader> {
    let made = cache.get_or_build("ipxe", "ipxe 1: trixie", |folder| {
        Apt::new(cache, &["trixie"])
            .unpack(&["ipxe".to_owned()], folder, |package| package.name() != "ipxe")
            .map(drop)
    })?;
    let script = folder.join("netboot.ipxe");
    fs::write(&script, SCRIPT)?;
    let places = ["usr/lib/ipxe/ipxe.lkrn", "boot/ipxe.lkrn"].map(|place| made.join(place));
    let image =
        places.into_iter().find(|place| place.is_file()).context("no ipxe.lkrn in the package ipxe")?;
    Ok(Loader { image, script })
}

/// Makes the files that a host boots, in a folder below this one. Returns what the other hosts get.
///
/// # Errors
/// A file can't be written.
pub fn files(machine: &Machine, boot: &Boot<'_>, folder: &Path) -> Result<Vec<Copy>> {
    let host = &boot.host.name;
    let folder = folder.join("netboot").join(host);
    fs::create_dir_all(&folder)?;
    let script = format!(
        "#!ipxe\nkernel linux {} initrd=initrd\ninitrd initrd\nboot\n",
        kernel_arguments(machine.accelerator, boot.host)
    );
    fs::write(folder.join("boot.ipxe"), script)?;
    fs::write(folder.join("initrd"), initramfs(machine, boot)?)?;
    let copy = |from: PathBuf, name: &str| Copy { from, to: format!("{SERVED}/{host}/{name}") };
    Ok(vec![
        copy(folder.join("boot.ipxe"), "boot.ipxe"),
        copy(folder.join("initrd"), "initrd"),
        copy(machine.kernel.bzimage.clone(), "linux"),
    ])
}
