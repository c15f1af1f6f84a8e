//! What a guest is made of and what it is to do.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::accelerator::Accelerator;
use crate::guest::Device;
use crate::image::kernel::Kernel;
use crate::netboot::Loader;
use crate::prefix::Prefix;
use crate::qemu::Qemu;
use crate::topology::Host;

/// Everything that does not differ between the guests of a run.
pub struct Machine {
    /// QEMU to run.
    pub qemu: Qemu,
    /// What it runs guests on.
    pub accelerator: Accelerator,
    /// Programs for the initramfs.
    pub tools: Prefix,
    /// User space image.
    pub rootfs: PathBuf,
    /// What lies over it: further packages.
    pub packages: Option<PathBuf>,
    /// Kernel.
    pub kernel: Kernel,
}

/// What a guest is to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Boot and wait.
    Wait,
    /// Run a shell script.
    Job(String),
    /// Give an interactive shell, for a terminal of this type and size.
    Shell {
        /// Value for `TERM`.
        term: String,
        /// Rows of the terminal.
        rows: u16,
        /// Columns of the terminal.
        columns: u16,
    },
}

/// The side network's part of a guest.
#[derive(Clone, Debug)]
pub struct SideLink {
    /// Address with prefix length.
    pub address: String,
    /// Hardware address.
    pub mac: String,
    /// Socket this guest's QEMU receives on.
    pub local: PathBuf,
    /// Socket of the hub.
    pub hub: PathBuf,
}

/// How one guest boots.
pub struct Boot<'a> {
    /// Its machine, as the topology says.
    pub host: &'a Host,
    /// What it does.
    pub task: Task,
    /// Load the mlx5 drivers before the task.
    pub modprobe: bool,
    /// Files to put in it.
    pub copies: &'a [Copy],
    /// Where the server's sockets are.
    pub run_dir: &'a Path,
    /// Where logs go.
    pub log_dir: &'a Path,
    /// Lines for `/etc/hosts`.
    pub hosts_file: &'a str,
    /// Side network.
    pub side: Option<SideLink>,
    /// The network devices that have a name and addresses of ours.
    pub devices: Vec<Device>,
    /// Disks beside those that make up its root file system.
    pub disks: Vec<Disk>,
    /// What boots it over the network, if it does not start with its kernel.
    pub loader: Option<Loader>,
    /// The terminal type to show colours for, if the output goes to a terminal.
    pub colour: Option<String>,
    /// More arguments of QEMU.
    pub qemu: Vec<String>,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its serial number, by which the guest finds it.
    pub serial: &'static str,
    /// The file with its content.
    pub image: PathBuf,
    /// Whether the guest may write.
    pub is_writable: bool,
}

impl Disk {
    /// A disk that guests can share.
    pub fn read_only(serial: &'static str, image: &Path) -> Self {
        Self { serial, image: image.to_path_buf(), is_writable: false }
    }

    /// A disk of one guest.
    pub fn writable(serial: &'static str, image: &Path) -> Self {
        Self { serial, image: image.to_path_buf(), is_writable: true }
    }
}

impl Machine {
    /// The disks that make up the root file system.
    pub(super) fn disks(&self) -> Vec<Disk> {
        let packages = self.packages.as_deref().map(|image| Disk::read_only("packages", image));
        [Disk::read_only("root", &self.rootfs), Disk::read_only("modules", &self.kernel.modules)]
            .into_iter()
            .chain(packages)
            .collect()
    }
}

/// A file for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// File or folder here.
    pub from: PathBuf,
    /// Absolute path there.
    pub to: String,
}

impl Copy {
    /// Parses `FILE[:GUESTPATH]`; without a guest path the file goes to root's home, where jobs start.
    pub fn parse(text: &str) -> Result<Self> {
        let (from, to) = match text.rsplit_once(':') {
            Some((from, to)) if !Path::new(text).exists() => (from, Some(to)),
            _ => (text, None),
        };
        let from = PathBuf::from(from);
        if !from.exists() {
            bail!("--copy {text}: no file {}", from.display());
        }
        let name = from.canonicalize()?.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let to = match to {
            None | Some("") => format!("/root/{name}"),
            Some(to) if to.ends_with('/') => format!("{to}{name}"),
            Some(to) => to.to_owned(),
        };
        if !to.starts_with('/') || to.split('/').any(|part| part == "..") {
            bail!("--copy {text}: the path in the guest must be absolute and without '..'");
        }
        Ok(Self { from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies() {
        let here = Copy::parse("Cargo.toml").unwrap();
        assert_eq!(here.to, "/root/Cargo.toml");
        assert_eq!(Copy::parse("Cargo.toml:/opt/").unwrap().to, "/opt/Cargo.toml");
        assert_eq!(Copy::parse("Cargo.toml:/opt/x").unwrap().to, "/opt/x");
        assert!(Copy::parse("Cargo.toml:relative").is_err());
        assert!(Copy::parse("Cargo.toml:/a/../b").is_err());
        assert!(Copy::parse("no such file").is_err());
    }
}
