//! QEMU with `vfio-user-pci`: the one on the PATH if it is new enough, else a private one from Debian packages.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::apt::Apt;
use crate::cache::Cache;
use crate::prefix::Prefix;
use crate::progress;

/// First release with the device `vfio-user-pci`.
pub const MINIMUM: (u32, u32) = (10, 1);
/// Names a QEMU binary to use instead of looking for one.
pub const QEMU_VARIABLE: &str = "HCA_VM_QEMU";

const BINARY: &str = "qemu-system-x86_64";
const RECIPE: &str =
    "qemu 1: trixie + trixie-backports: qemu-system-x86 qemu-system-common qemu-system-data seabios";

/// A QEMU that can attach the adapter.
#[derive(Clone, Debug)]
pub enum Qemu {
    /// A binary of this machine.
    System(PathBuf),
    /// The private one in the cache directory.
    Private(Prefix),
}

impl Qemu {
    /// What there is already, without installing anything.
    pub fn find(cache: &Cache) -> Option<Self> {
        if let Some(path) = std::env::var_os(QEMU_VARIABLE).map(PathBuf::from) {
            return Some(Self::System(path));
        }
        let on_path = Self::System(PathBuf::from(BINARY));
        if on_path.version().is_some_and(|version| version >= MINIMUM) && on_path.has_vfio_user() {
            return Some(on_path);
        }
        let private = cache.path_of("qemu", RECIPE);
        private.is_dir().then(|| Self::Private(Prefix::new(private)))
    }

    /// Finds a QEMU, installing one privately if need be.
    pub fn get(cache: &Cache) -> Result<Self> {
        if let Some(found) = Self::find(cache) {
            return Ok(found);
        }
        let folder = cache.get_or_build("qemu", RECIPE, |folder| {
            progress::note(&format!(
                "no QEMU >= {}.{} on the PATH: installing one into {}",
                MINIMUM.0,
                MINIMUM.1,
                cache.root().display()
            ));
            // The four packages must be of one version; the libraries are those of the release.
            let wanted: Vec<String> =
                ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"]
                    .iter()
                    .map(|name| format!("{name}/trixie-backports"))
                    .collect();
            let unneeded =
                ["adduser", "passwd", "debconf", "libpam-modules", "libpam-modules-bin", "login.defs"];
            Apt::new(cache, &["trixie", "trixie-backports"])
                .unpack(&wanted, folder, |package| unneeded.contains(&package.name()))?;
            let qemu = Self::Private(Prefix::new(folder));
            if qemu.version().is_none_or(|version| version < MINIMUM) {
                bail!("the QEMU just unpacked does not start, or is older than {}.{}", MINIMUM.0, MINIMUM.1);
            }
            Ok(())
        })?;
        Ok(Self::Private(Prefix::new(folder)))
    }

    /// A command that starts it, with its firmware paths set.
    pub fn command(&self) -> Result<Command> {
        match self {
            Self::System(path) => Ok(Command::new(path)),
            Self::Private(prefix) => {
                let mut command = prefix.command(BINARY)?;
                for folder in ["usr/share/seabios", "usr/share/qemu", "usr/lib/ipxe/qemu"] {
                    command.arg("-L").arg(prefix.root().join(folder));
                }
                command.env("QEMU_MODULE_DIR", prefix.root().join("usr/lib/x86_64-linux-gnu/qemu"));
                Ok(command)
            }
        }
    }

    /// Its version, if it starts.
    pub fn version(&self) -> Option<(u32, u32)> {
        let output = self.command().ok()?.arg("--version").stdin(Stdio::null()).output().ok()?;
        parse_version(&String::from_utf8_lossy(&output.stdout))
    }

    /// Where it is, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::System(path) => path.display().to_string(),
            Self::Private(prefix) => format!("{} (private)", prefix.root().display()),
        }
    }

    fn has_vfio_user(&self) -> bool {
        self.command()
            .ok()
            .and_then(|mut command| command.args(["-device", "help"]).stdin(Stdio::null()).output().ok())
            .is_some_and(|output| String::from_utf8_lossy(&output.stdout).contains("\"vfio-user-pci\""))
    }
}

/// A shell script that does what a command does, with its own arguments behind.
pub fn script(command: &Command) -> String {
    let word = |text: &OsStr| {
        let text = text.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            text.into_owned()
        } else {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
    };
    let mut text = "#!/bin/sh\n".to_owned();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            text.push_str(&format!("export {}={}\n", name.to_string_lossy(), word(value)));
        }
    }
    text.push_str("exec ");
    text.push_str(&word(command.get_program()));
    for argument in command.get_args() {
        // An option on each line.
        text.push_str(if argument.to_string_lossy().starts_with('-') { " \\\n\t" } else { " " });
        text.push_str(&word(argument));
    }
    text.push_str(" \"$@\"\n");
    text
}

/// The numbers in `QEMU emulator version 11.1.3 (Debian ...)`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let rest = text.split("version ").nth(1)?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts() {
        let mut command = Command::new("printf");
        command.args(["<%s>", "-append", "a 'b' \"$HOME\"", "-m", "", "1G"]).env("X", "1 2");
        let text = script(&command);
        assert!(text.starts_with("#!/bin/sh\nexport X='1 2'\nexec printf "), "{text}");
        let output = Command::new("sh").args(["-c", &text, "sh", "z"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "<-append><a 'b' \"$HOME\"><-m><><1G><z>");
    }

    #[test]
    fn versions() {
        assert_eq!(parse_version("QEMU emulator version 11.1.3 (Debian 1:11.1.3)\nCopy"), Some((11, 1)));
        assert_eq!(parse_version("QEMU emulator version 7.2.0"), Some((7, 2)));
        assert_eq!(parse_version("bash: not found"), None);
        assert!(parse_version("QEMU emulator version 10.0.13").is_some_and(|version| version < MINIMUM));
    }
}
