//! Says what this machine has, what is missing, and how to get it.

use std::fmt::Write;
use std::process::{Command, Stdio};

use crate::accelerator::Accelerator;
use crate::apt::sources;
use crate::cache::Cache;
use crate::confinement;
use crate::image::kernel::Kernel;
use crate::image::{bugs, kernel, rootfs};
use crate::qemu::{self, Qemu};
use crate::server::Binary;

/// What an examination found.
pub struct Findings {
    /// One line per check, for people.
    pub text: String,
    /// Nothing essential is missing.
    pub healthy: bool,
}

/// Examines the machine. Installs and downloads nothing.
pub fn examine() -> Findings {
    let mut findings = Findings { text: String::new(), healthy: true };
    let all = &mut findings;

    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        all.good("machine", "Linux on x86-64");
    } else {
        all.bad(
            "machine",
            "not Linux on x86-64",
            "guests and the private QEMU are amd64 packages: use another machine",
        );
    }
    for (program, package, why) in
        [("apt-get", "apt", "downloads QEMU and the guests' packages"), ("dpkg-deb", "dpkg", "unpacks them")]
    {
        if runs(program) {
            all.good(program, why);
        } else {
            all.bad(
                program,
                &format!("missing; it {why}"),
                &format!("install the package {package}; any Debian or derivative has it"),
            );
        }
    }
    match sources::find() {
        Ok(archive) => {
            all.good("Debian archive", &archive.uri);
            match archive.signed_by {
                Some(path) if path.is_file() => all.good("archive keyring", &path.display().to_string()),
                Some(path) => all.bad(
                    "archive keyring",
                    &format!("{} does not exist", path.display()),
                    "install the package debian-archive-keyring, or set HCA_VM_DEBIAN_KEYRING to its file",
                ),
                None => all.note("archive keyring", "none named; apt's trusted keys are used"),
            }
        }
        Err(error) => all.bad("Debian archive", "not found", &error.to_string()),
    }
    match sources::find_security() {
        Some(archive) => all.good("security updates", &archive.uri),
        None => all.note(
            "security updates",
            &format!(
                "none in /etc/apt, so that kernels may be older than they could be; or set {}",
                sources::SECURITY_VARIABLE
            ),
        ),
    }
    match Cache::open() {
        Ok(cache) => examine_cache(all, &cache),
        Err(error) => all.bad(
            "cache directory",
            &format!("{error:#}"),
            "set XDG_CACHE_HOME to a folder you can write to",
        ),
    }
    if std::env::var_os("SOFTHCA_BIN").is_some() {
        match Binary::find() {
            Ok(binary) => all.good("server", &binary.to_string()),
            Err(error) => all.bad("server", &error.to_string(), "correct or unset SOFTHCA_BIN"),
        }
    } else {
        all.note("server", "softhca beside this program, or built from the source checkout when needed");
    }
    examine_confinement(all);
    findings
}

/// What the server's sandbox needs. Landlock is one wall of two: without it the server runs, and says so.
fn examine_confinement(all: &mut Findings) {
    let remedy = "softhca serve needs it for its sandbox: use a kernel that has it, or --serve=--no-sandbox";
    let (filters, rights) = (confinement::filters(), confinement::no_new_privileges());
    if filters && rights {
        all.good(
            "sandbox",
            "system calls can be filtered (seccomp), new privileges ruled out (no_new_privs)",
        );
    } else {
        let missing = if filters { "no_new_privs" } else { "seccomp filters that end a process" };
        all.bad("sandbox", &format!("this kernel lacks {missing}"), remedy);
    }
    match confinement::landlock() {
        Ok(version) => all.good("landlock", &confinement::landlock_words(version)),
        Err(why) => all.note("landlock", &format!("none ({why}): the sandbox does without it")),
    }
}

fn examine_cache(all: &mut Findings, cache: &Cache) {
    all.good("cache directory", &cache.root().display().to_string());
    match Qemu::find(cache) {
        Some(found) => match found.version() {
            Some((major, minor)) if (major, minor) >= qemu::MINIMUM => {
                all.good("QEMU", &format!("{major}.{minor}, {}", found.describe()));
            }
            _ => all.bad(
                "QEMU",
                &format!("{} does not start or is too old", found.describe()),
                "remove that folder to have it installed anew, or correct HCA_VM_QEMU",
            ),
        },
        None => all.note(
            "QEMU",
            &format!(
                "none >= {}.{} on the PATH; the first run installs one into the cache directory (40 MB to download)",
                qemu::MINIMUM.0,
                qemu::MINIMUM.1
            ),
        ),
    }
    if rootfs::is_made(cache) {
        all.good("guest image", "made");
    } else {
        all.note("guest image", "the first run makes it (60 MB to download)");
    }
    let made = kernel::made(cache, kernel::DEFAULT);
    if made.is_none() {
        all.note("guest kernel", "the first run gets it (110 MB to download)");
    }
    for Kernel { version, .. } in kernel::all_made(cache) {
        match bugs::known(&version).as_slice() {
            [] => all.good("guest kernel", &version),
            known => known
                .iter()
                .for_each(|bug| all.note("guest kernel", &format!("{version}, which {}", bug.what))),
        }
    }
    if let (Some(qemu), Some(kernel)) = (Qemu::find(cache), made) {
        match Accelerator::get(cache, &qemu, &kernel.vmlinux) {
            Ok(Accelerator::Kvm) => all.good("guests run on", "KVM"),
            Ok(Accelerator::Tcg) => {
                all.note("guests run on", "emulation (TCG): there is no /dev/kvm, a kernel does not boot on it, or HCA_VM_ACCEL says so")
            }
            Err(error) => all.bad("guests run on", &format!("{error:#}"), "correct or unset HCA_VM_ACCEL"),
        }
    } else {
        all.note(
            "guests run on",
            "KVM if a kernel boots on it, which the first run tries, else emulation (TCG)",
        );
    }
    if let Ok(space) = nix::sys::statvfs::statvfs(cache.root()) {
        const NEEDED: u64 = 2_000_000_000;
        let free = space.blocks_available().saturating_mul(space.fragment_size());
        let text = format!("{:.1} GB free", free as f64 / 1e9);
        if free >= NEEDED {
            all.good("disk", &text);
        } else {
            all.bad(
                "disk",
                &text,
                "a complete cache takes about 2 GB: make room, or set XDG_CACHE_HOME elsewhere",
            );
        }
    }
}

fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Findings {
    fn good(&mut self, what: &str, detail: &str) {
        let _ = writeln!(self.text, "  ok    {what}: {detail}");
    }

    fn note(&mut self, what: &str, detail: &str) {
        let _ = writeln!(self.text, "  -     {what}: {detail}");
    }

    fn bad(&mut self, what: &str, detail: &str, remedy: &str) {
        self.healthy = false;
        let _ = writeln!(self.text, "  BAD   {what}: {detail}");
        for line in remedy.lines() {
            let _ = writeln!(self.text, "        -> {line}");
        }
    }
}
