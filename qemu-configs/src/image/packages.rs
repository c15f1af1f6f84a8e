//! Additional packages, installed by dpkg in a guest: their maintainer scripts run there, as root, and not on this machine.
//!
//! What the installation changes is an erofs image that lies over the root file system of all guests. Scripts may make
//! alternatives, users, caches of the loader, keys; a package whose scripts fail is told of whenever its image is used.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, Package};
use crate::cache::{Cache, remove_tree};
use crate::child::tie;
use crate::guest::{Boot, Disk, Guest, Machine, State, Task};
use crate::image::{make_erofs, rootfs};
use crate::progress::{self, Step};
use crate::signals;
use crate::topology::Host;

/// Raise when this file makes other images from the same packages.
const VERSION: u32 = 2;
const INSTALL: &str = include_str!("../../guest/install.sh");
/// Emulated guests are slow, and there are large packages.
const LIMIT: Duration = Duration::from_secs(3600);
/// Room for the image; the file has holes.
const ROOM: u64 = 16 << 30;
/// Memory of the guest, beside what it unpacks into memory.
const MEMORY: u64 = 1 << 30;

/// Is this something that could be a package's name (Debian policy 5.6.1)?
///
/// # Errors
/// It is not.
pub fn check(name: &str) -> Result<()> {
    let of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if name.len() < 2 || !begins || !name.chars().all(of_a_name) {
        bail!("'{name}' is not the name of a Debian package, such as openmpi-bin");
    }
    Ok(())
}

/// The image with these packages, made if need be by booting `machine`. None if there are none. They may come from further
/// suites than that of the guests.
pub fn get(cache: &Cache, machine: &Machine, names: &[String], further: &[&str]) -> Result<Option<PathBuf>> {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let wanted: Vec<String> = names.iter().map(ToString::to_string).collect();
    let base = machine.rootfs.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let mut suites = vec![rootfs::SUITE];
    suites.extend(further.iter().filter(|suite| **suite != rootfs::SUITE));
    let from = if further.is_empty() { String::new() } else { format!(" from {}", suites.join(", ")) };
    let recipe = format!("packages {VERSION}: on {base}{from}:\n+ {}", wanted.join("\n+ "));
    let folder = cache
        .get_or_build("packages", &recipe, |folder| build(cache, machine, (&wanted, &suites), folder))?;
    let problems = fs::read_to_string(folder.join("problems"))?;
    if !problems.is_empty() {
        progress::note(&format!(
            "of the packages, dpkg could not set up {}; see {}",
            problems.split_whitespace().collect::<Vec<_>>().join(", "),
            folder.join("install.log").display()
        ));
    }
    Ok(Some(folder.join("packages.erofs")))
}

fn build(
    cache: &Cache,
    machine: &Machine,
    (wanted, suites): (&[String], &[&str]),
    folder: &Path,
) -> Result<()> {
    let packages = missing(cache, machine, wanted, suites)?;
    let list: String = packages.iter().map(|(package, _)| format!("{}\n", package.file)).collect();
    fs::write(folder.join("packages"), list)?;
    let debs = folder.join("debs");
    fs::create_dir(&debs)?;
    let mut bytes = 0;
    let mut step = Step::start(format!("unpacking {} packages", packages.len()));
    for (index, (package, file)) in packages.iter().enumerate() {
        let to = debs.join(&package.file);
        uncompressed(file, &to, &folder.join("member"))
            .with_context(|| format!("cannot take {} apart", file.display()))?;
        bytes += fs::metadata(&to)?.len();
        step.at(index, packages.len(), package.name());
    }
    step.done();
    let (input, image) = (folder.join("debs.erofs"), folder.join("packages.erofs"));
    make_erofs(&machine.tools, &debs, &input)?;
    remove_tree(&debs)?;
    File::create(&image)?.set_len(ROOM)?;

    let step = Step::start(format!("installing {} packages in a guest", packages.len()));
    let host = Host {
        hotplug: false,
        name: "install".to_owned(),
        process: None,
        // dpkg unpacks into memory, and half of that may be files.
        memory_bytes: (MEMORY + 2 * bytes).next_multiple_of(1 << 20),
        hugepages_bytes: 0,
        cpus: 2,
        iommu: false,
        hcas: Vec::new(),
        nics: Vec::new(),
    };
    let mut guest = Guest::boot(
        machine,
        &Boot {
            host: &host,
            task: Task::Job(INSTALL.to_owned()),
            modprobe: false,
            copies: &[],
            run_dir: folder,
            log_dir: folder,
            hosts_file: "127.0.0.1 localhost\n",
            side: None,
            devices: Vec::new(),
            disks: vec![Disk::read_only("debs", &input), Disk::writable("out", &image)],
            loader: None,
            colour: None,
            qemu: Vec::new(),
        },
    )?;
    let ended = |guest: &Guest| matches!(guest.state(), State::Done(_)) || signals::interrupted();
    guest.wait_until(LIMIT, |guest| *guest.state() == State::Ready || signals::interrupted())?;
    guest.go();
    guest.wait_until(LIMIT, ended)?;
    let State::Done(status) = *guest.state() else { bail!("interrupted") };
    let output = guest.output().to_owned();
    guest.power_off();
    // The image is whole when QEMU has ended.
    guest.wait_until(Duration::from_secs(60), Guest::is_off)?;
    step.done();
    fs::write(folder.join("install.log"), &output)?;
    fs::remove_file(&input)?;
    let _ = fs::remove_file(folder.join(".install.initrd"));
    if status > 90 {
        bail!("installing packages in a guest failed with status {status}:\n{}", tail(&output));
    }
    let problems = unconfigured(&output);
    if status != 0 && problems.is_empty() {
        bail!("dpkg failed with status {status}:\n{}", tail(&output));
    }
    fs::write(folder.join("problems"), problems.join("\n"))?;
    cut_to_size(&image)
}

/// An image gets the size that its superblock says. Format: Linux `fs/erofs/erofs_fs.h`.
fn cut_to_size(image: &Path) -> Result<()> {
    const SUPERBLOCK: u64 = 1024;
    const MAGIC: u32 = 0xe0f5_e1e2;
    let file = File::options().read(true).write(true).open(image)?;
    let mut superblock = [0; 40];
    file.read_exact_at(&mut superblock, SUPERBLOCK)?;
    let [magic, blocks] = [0, 36].map(|at| {
        let mut word = [0; 4];
        word.copy_from_slice(&superblock[at..at + 4]);
        u32::from_le_bytes(word)
    });
    if magic != MAGIC {
        bail!("the guest left no image of what was installed");
    }
    let block_bits = u32::from(superblock[12]);
    Ok(file.set_len(u64::from(blocks) << block_bits)?)
}

/// What has to be installed beyond what every guest has: packages, and where their files are.
fn missing(
    cache: &Cache,
    machine: &Machine,
    wanted: &[String],
    suites: &[&str],
) -> Result<Vec<(Package, PathBuf)>> {
    let there = machine.rootfs.with_file_name("packages");
    let there = fs::read_to_string(&there).with_context(|| format!("cannot read {}", there.display()))?;
    let there: BTreeSet<&str> = there.lines().collect();
    let apt = Apt::new(cache, suites);
    // What guests do without comes with all that it needs where somebody asks for it, but for what only a kernel needs that boots by itself.
    let comes_whole = |name: &&String| rootfs::is_skipped(name) && !rootfs::is_of_booting(name);
    let asked: Vec<String> = wanted.iter().filter(comes_whole).cloned().collect();
    let mut needed: BTreeSet<String> = wanted.iter().cloned().collect();
    if !asked.is_empty() {
        needed.extend(apt.needs(&asked)?);
    }
    // Together with what is there, so that all fits each other.
    let all: Vec<String> = rootfs::wanted().chain(wanted.iter().cloned()).collect();
    let packages = apt
        .download(&all, |package| {
            there.contains(package.file.as_str())
                || rootfs::is_skipped(package.name()) && !needed.contains(package.name())
        })
        .context("cannot get the packages for the guests")?;
    Ok(packages.into_iter().map(|package| (package.clone(), apt.file_of(&package))).collect())
}

/// A package with its data uncompressed, which an emulated processor would take long for. Format: deb(5).
fn uncompressed(deb: &Path, to: &Path, scratch: &Path) -> Result<()> {
    let mut out = File::create(to)?;
    out.write_all(b"!<arch>\n")?;
    let mut member = |name: &str, from: &str| -> Result<()> {
        let file = File::create(scratch)?;
        if from.is_empty() {
            (&file).write_all(b"2.0\n")?;
        } else {
            let status = tie(&mut Command::new("dpkg-deb"), &[])
                .arg(from)
                .arg(deb)
                .stdin(Stdio::null())
                .stdout(file.try_clone()?)
                .status()?;
            if !status.success() {
                bail!("dpkg-deb {from} failed");
            }
        }
        let size = file.metadata()?.len();
        writeln!(out, "{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`", 0, 0, 0, 100_644)?;
        std::io::copy(&mut File::open(scratch)?, &mut out)?;
        if size % 2 == 1 {
            out.write_all(b"\n")?;
        }
        Ok(())
    };
    member("debian-binary", "")?;
    member("control.tar", "--ctrl-tarfile")?;
    member("data.tar", "--fsys-tarfile")?;
    fs::remove_file(scratch)?;
    Ok(())
}

/// The packages that dpkg names at its end.
fn unconfigured(output: &str) -> Vec<String> {
    let Some((_, names)) = output.rsplit_once("Errors were encountered while processing:") else {
        return Vec::new();
    };
    names
        .lines()
        .skip(1)
        .map_while(|line| line.strip_prefix(' '))
        .map(|name| name.trim().rsplit('/').next().unwrap_or_default().to_owned())
        .collect()
}

fn tail(output: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<_> = output.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages() {
        assert!(["openmpi-bin", "libstdc++6", "7zip"].iter().all(|name| check(name).is_ok()));
        assert!(["", "x", "Foo", "a b", "-x", "x;y", "a/b"].iter().all(|name| check(name).is_err()));
    }

    #[test]
    fn what_dpkg_could_not_set_up() {
        let output = "dpkg: error processing package x (--install):\nErrors were encountered while processing:\n x\n \
                      /run/debs/y_1_all.deb\nend\n";
        assert_eq!(unconfigured(output), ["x", "y_1_all.deb"]);
        assert!(unconfigured("Setting up x ...\n").is_empty());
    }
}
