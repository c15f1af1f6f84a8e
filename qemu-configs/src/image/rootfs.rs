//! The guest's user space: packages of Debian 13, unpacked and unmodified, without systemd.
//!
//! Their maintainer scripts do not run, since that takes an emulated guest minutes: `configure` leaves behind what they would
//! have, as far as a guest needs it, and dpkg's database says that they are installed. Further packages are installed by dpkg
//! (`packages.rs`).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::Apt;
use crate::cache::{Cache, remove_tree};
use crate::image::{dpkg, kernel, make_erofs, run, tools};
use crate::prefix::Prefix;
use crate::progress::Step;

/// Raise when this file makes other images from the same packages.
const VERSION: u32 = 3;
/// Where packages come from.
pub(super) const SUITE: &str = "trixie";

const PACKAGES: [&str; 57] = [
    // a shell and the usual tools
    "base-files",
    "base-passwd",
    "bash",
    "bsdutils",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "less",
    "libc-bin",
    "login",
    "mount",
    "ncurses-base",
    "ncurses-bin",
    "procps",
    "psmisc",
    "sed",
    "tar",
    "time",
    "util-linux",
    "xz-utils",
    // what installs more
    "adduser",
    "debconf",
    "dpkg",
    "erofs-utils",
    "passwd",
    "ucf",
    // kernel, devices, network
    "ethtool",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kmod",
    "linuxptp",
    "netcat-openbsd",
    "pciutils",
    "strace",
    "tcpdump",
    // RDMA
    "ibverbs-providers",
    "ibutils",
    "ibverbs-utils",
    "infiniband-diags",
    "opensm",
    "perftest",
    "qperf",
    "rdma-core",
    "rdmacm-utils",
    "srptools",
    "open-iscsi",
    "libibverbs1",
    "librdmacm1t64",
    // Python
    "python3",
    "python3-pyverbs",
];

/// rdma-core's tests of DevX compose structures with scapy. They give it fewer bytes than a structure has,
/// which the version of Debian 13 refuses and that of Debian 12 allows.
const OLDER: (&str, &str) = ("bookworm", "python3-scapy");

/// For maintainer scripts that call programs of systemd. They give way to systemd where that is asked for (`install.sh`).
const WITHOUT_SYSTEMD: [&str; 2] = ["systemd-standalone-sysusers", "systemd-standalone-tmpfiles"];

/// Pulled in by dependencies, of no use without systemd or a login.
const SKIPPED: [&str; 6] = ["apt", "libsystemd-shared", "systemd", "systemd-sysv", "tzdata", "udev"];

/// Set up when further packages are installed, which need them; a guest without such packages does not.
const UNCONFIGURED: [&str; 7] =
    ["adduser", "debconf", "dpkg", "init-system-helpers", "libpam-runtime", "passwd", "ucf"];

/// Documentation that stays: rdma-core ships its tests as documentation.
const KEPT_DOCUMENTATION: [&str; 2] = ["rdma-core", "python3-pyverbs"];

/// The image, made if need be. Returns the path of the erofs file.
pub fn get(cache: &Cache) -> Result<PathBuf> {
    let folder = cache.get_or_build("rootfs", &recipe(), |folder| build(cache, folder))?;
    Ok(folder.join("rootfs.erofs"))
}

/// Is the image there?
pub fn is_made(cache: &Cache) -> bool {
    cache.path_of("rootfs", &recipe()).is_dir()
}

/// What the image is made of, beside what that depends on.
pub(super) fn wanted() -> impl Iterator<Item = String> {
    PACKAGES.iter().map(ToString::to_string)
}

/// Is a package left out of guests that do not ask for it?
pub(super) fn is_skipped(name: &str) -> bool {
    SKIPPED.contains(&name) || is_of_booting(name)
}

/// Is it of booting? Headers of a kernel want the kernel, and that what makes its initramfs: guests get both from the launcher.
pub(super) fn is_of_booting(name: &str) -> bool {
    kernel::is_part(name) || name.starts_with("initramfs-tools") || name == "klibc-utils"
}

fn recipe() -> String {
    format!(
        "rootfs {VERSION}: {SUITE}: {} {WITHOUT_SYSTEMD:?} {OLDER:?} {UNCONFIGURED:?}",
        PACKAGES.join(" ")
    )
}

fn build(cache: &Cache, folder: &Path) -> Result<()> {
    let tools = tools(cache)?;
    let tree = folder.join("tree");
    fs::create_dir(&tree)?;
    let apt = Apt::new(cache, &[SUITE]);
    let mut packages = apt
        .unpack(&wanted().collect::<Vec<_>>(), &tree, |package| is_skipped(package.name()))
        .context("cannot get the packages of the guest image")?;
    for name in WITHOUT_SYSTEMD {
        packages.extend(apt.unpack(&[name.to_owned()], &tree, |package| package.name() != name)?);
    }
    let (series, older) = OLDER;
    let older = Apt::new(cache, &[series])
        .unpack(&[older.to_owned()], &tree, |package| package.name() != older)
        .context("cannot get the older packages of the guest image")?;
    packages.extend(older);
    let list: String = packages.iter().map(|one| format!("{}\n", one.package.file)).collect();
    fs::write(folder.join("packages"), list)?;

    let step = Step::start("making the guest's root file system");
    prune(&tree)?;
    configure(&tree)?;
    dpkg::write(&tree, &packages, &UNCONFIGURED)?;
    run(Command::new(tree.join("usr/sbin/ldconfig")).arg("-r").arg(&tree))?;
    compile_python(&tree)?;
    make_erofs(&tools, &tree, &folder.join("rootfs.erofs"))?;
    remove_tree(&tree)?;
    step.done();
    Ok(())
}

/// Removes what no guest reads: manuals, translations, documentation.
fn prune(tree: &Path) -> Result<()> {
    for path in
        ["usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "usr/share/doc-base"]
    {
        remove_tree(&tree.join(path))?;
    }
    let documentation = tree.join("usr/share/doc");
    if let Ok(entries) = fs::read_dir(&documentation) {
        for entry in entries.flatten() {
            let kept = KEPT_DOCUMENTATION.iter().any(|name| entry.file_name() == *name);
            if !kept && entry.file_type()?.is_dir() {
                remove_tree(&entry.path())?;
            }
        }
    }
    Ok(())
}

/// What maintainer scripts would have left behind, as far as a guest needs it.
fn configure(tree: &Path) -> Result<()> {
    let write = |path: &str, text: &str| -> Result<()> {
        let path = tree.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    for (database, source) in [("passwd", "passwd.master"), ("group", "group.master")] {
        let text = fs::read_to_string(tree.join("usr/share/base-passwd").join(source))
            .with_context(|| format!("base-passwd has no {source}"))?;
        // The masters have "*" where a password goes; root may log in at the console without one.
        write(&format!("etc/{database}"), &text.replacen("root:*:", "root::", 1))?;
    }
    write(
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\nnetworks: files\nprotocols: files\nservices: files\n",
    )?;
    write("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")?;
    write("etc/fstab", "")?;
    write("etc/resolv.conf", "")?;
    write("etc/machine-id", "")?;
    // Memory registration pins pages; PAM isn't there to raise the limit, but tools look here.
    write("etc/security/limits.d/rdma.conf", "* soft memlock unlimited\n* hard memlock unlimited\n")?;
    write("root/.bashrc", "PS1='\\h:\\w# '\nalias ll='ls -l'\n")?;
    for folder in [
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "mnt",
        "root",
        "var/tmp",
        "var/log",
        "var/cache/debconf",
        "var/lib",
        "lib/modules",
    ] {
        fs::create_dir_all(tree.join(folder))?;
    }
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    for (link, target) in [
        ("usr/bin/awk", "gawk"),
        ("usr/bin/which", "which.debianutils"),
        ("usr/bin/nc", "nc.openbsd"),
        ("usr/bin/pager", "less"),
        ("etc/mtab", "../proc/self/mounts"),
    ] {
        let path = tree.join(link);
        if !path.is_symlink() && !path.exists() {
            symlink(target, path)?;
        }
    }
    Ok(())
}

/// Compiles Python's modules at build time: under emulation that saves more than a second per start.
fn compile_python(tree: &Path) -> Result<()> {
    let prefix = Prefix::new(tree);
    let Some(python) = fs::read_dir(tree.join("usr/bin"))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find(|name| name.starts_with("python3.") && !name.contains('-'))
    else {
        return Ok(());
    };
    let mut command = prefix.command(&python)?;
    command
        .env_clear()
        .env("PYTHONHOME", tree.join("usr"))
        .env("LC_ALL", "C.UTF-8")
        .args(["-S", "-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash", "-s"])
        .arg(tree)
        .arg(tree.join("usr/lib").join(&python));
    let packages = tree.join("usr/lib/python3/dist-packages");
    if packages.is_dir() {
        command.arg(packages);
    }
    // A file that doesn't compile (templates, old syntax) is no reason to have no image.
    let _ = command.output();
    Ok(())
}
