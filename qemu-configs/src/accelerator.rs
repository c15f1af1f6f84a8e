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
        match Self::known(cache, qemu)? {
            Some(known) => Ok(known),
            None => Self::tried(cache, qemu, vmlinux, LIMIT),
        }
    }

    /// What a trial finds that takes no longer than so; the verdict is kept.
    fn tried(cache: &Cache, qemu: &Qemu, vmlinux: &Path, limit: Duration) -> Result<Self> {
        let step = Step::start(format!("trying whether guests run on {DEVICE}"));
        let found = if boots(qemu, vmlinux, limit)? { Self::Kvm } else { Self::Tcg };
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
        Ok(Self::kept(cache, qemu))
    }

    /// The verdict of a trial since this machine's boot.
    fn kept(cache: &Cache, qemu: &Qemu) -> Option<Self> {
        let verdict = fs::read_to_string(cache.root().join("kvm")).unwrap_or_default();
        let (when, verdict) = verdict.trim_end().rsplit_once('\n')?;
        (when == occasion(qemu)).then_some(if verdict == "true" { Self::Kvm } else { Self::Tcg })
    }
}

/// What a verdict is of: this boot of the machine, and that QEMU.
fn occasion(qemu: &Qemu) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", boot.trim(), qemu.describe())
}

/// Does a kernel get to where it looks for its root file system? It finds none, and resets the machine.
fn boots(qemu: &Qemu, vmlinux: &Path, limit: Duration) -> Result<bool> {
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
    Ok(child.wait_for(limit.saturating_sub(began.elapsed())).is_some_and(|status| status.success()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A QEMU that does what a shell script says. Another process writes it: one that this forks meanwhile would have it open.
    fn fake(folder: &Path, name: &str, script: &str) -> Qemu {
        let path = folder.join(name);
        let write =
            format!("printf '#!/bin/sh\\n%s\\n' '{script}' > '{0}' && chmod 755 '{0}'", path.display());
        assert!(Command::new("sh").args(["-c", &write]).status().unwrap().success());
        Qemu::System(path)
    }

    /// One that gets to the end is taken, one that is refused the device or hangs is not; the next run knows.
    #[test]
    fn a_trial_has_a_verdict() {
        let folder = std::env::temp_dir().join(format!("hca-vm-accelerator-{}", std::process::id()));
        let cache = Cache::at(folder.clone()).unwrap();
        let kernel = folder.join("vmlinux");
        let boots = fake(&folder, "boots", "echo \"$@\" > \"$0.told\"");
        let refused = fake(&folder, "refused", "echo no such device >&2; exit 1");
        let hangs = fake(&folder, "hangs", "exec sleep 1000");
        let (long, short) = (Duration::from_secs(600), Duration::from_millis(200));
        for (qemu, limit, expected) in [
            (&boots, long, Accelerator::Kvm),
            (&refused, long, Accelerator::Tcg),
            (&hangs, short, Accelerator::Tcg),
            (&boots, long, Accelerator::Kvm),
        ] {
            assert_eq!(Accelerator::kept(&cache, qemu), None, "what another one did says nothing: {qemu:?}");
            assert_eq!(Accelerator::tried(&cache, qemu, &kernel, limit).unwrap(), expected, "{qemu:?}");
            assert_eq!(Accelerator::kept(&cache, qemu), Some(expected), "{qemu:?}");
        }
        let told = fs::read_to_string(folder.join("boots.told")).unwrap();
        assert!(told.contains("-accel kvm") && told.contains(&kernel.display().to_string()), "{told}");
        let nowhere = Qemu::System(folder.join("nowhere"));
        assert!(Accelerator::tried(&cache, &nowhere, &kernel, long).is_err(), "there is no such program");
        fs::remove_dir_all(folder).unwrap();
    }
}
