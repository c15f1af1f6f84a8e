//! What runs the guests' instructions: the processor (KVM) where that really works, else QEMU's emulation (TCG).
//!
//! `/dev/kvm` may be there and guests hang all the same, in nested virtual machines above all. So a kernel is booted once, and
//! the verdict holds until this machine boots again.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cache::Cache;
use crate::child::Owned;
use crate::progress::Step;
use crate::qemu::Qemu;

/// Says which one to use, instead of a trial.
pub const VARIABLE: &str = "HCA_VM_ACCEL";
const DEVICE: &str = "/dev/kvm";
/// The trial takes a second where it succeeds.
const LIMIT: Duration = Duration::from_secs(10);

/// What runs the guests' instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "emulation (TCG)",
        })
    }
}

impl Accelerator {
    /// What to use, after a trial with that kernel if there was none since this machine's boot.
    ///
    /// # Errors
    /// [`VARIABLE`] says what there is not.
    pub fn get(cache: &Cache, qemu: &Qemu, vmlinux: &Path) -> Result<Self> {
        if let Some(known) = Self::known(cache, qemu)? {
            return Ok(known);
        }
        let step = Step::start(format!("trying whether guests run on {DEVICE}"));
        let found = if boots(qemu, vmlinux)? { Self::Kvm } else { Self::Tcg };
        step.done();
        fs::write(cache.root().join("kvm"), format!("{}\n{}\n", occasion(qemu), found == Self::Kvm))?;
        Ok(found)
    }

    /// What to use, if that is known without a trial.
    ///
    /// # Errors
    /// [`VARIABLE`] says what there is not.
    pub fn known(cache: &Cache, qemu: &Qemu) -> Result<Option<Self>> {
        match std::env::var(VARIABLE).as_deref() {
            Ok("kvm") => return Ok(Some(Self::Kvm)),
            Ok("tcg") => return Ok(Some(Self::Tcg)),
            Ok(other) if !other.is_empty() => bail!("{VARIABLE} is '{other}'; it can be kvm or tcg"),
            _ => {}
        }
        if File::options().read(true).write(true).open(DEVICE).is_err() {
            return Ok(Some(Self::Tcg));
        }
        let verdict = fs::read_to_string(cache.root().join("kvm")).unwrap_or_default();
        Ok(verdict.trim_end().rsplit_once('\n').filter(|(when, _)| *when == occasion(qemu)).map(
            |(_, verdict)| {
                if verdict == "true" { Self::Kvm } else { Self::Tcg }
            },
        ))
    }
}

/// What a verdict is of: this boot of the machine, and that QEMU.
fn occasion(qemu: &Qemu) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", boot.trim(), qemu.describe())
}

/// Does a kernel get to where it looks for its root file system? It finds none, and resets the machine.
fn boots(qemu: &Qemu, vmlinux: &Path) -> Result<bool> {
    let mut command = qemu.command()?;
    command
        .args(["-accel", "kvm", "-cpu", "host", "-machine", "q35", "-m", "256M"])
        .args(["-display", "none", "-nodefaults", "-no-reboot"])
        .arg("-kernel")
        .arg(vmlinux)
        .args(["-append", "quiet panic=-1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let began = Instant::now();
    let mut child = Owned::spawn(&mut command, &[])?;
    // One that is refused the device ends, too, but says so by its status.
    Ok(child.wait_for(LIMIT.saturating_sub(began.elapsed())).is_some_and(|status| status.success()))
}
