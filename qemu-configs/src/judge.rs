//! Programs of Debian that judge what we write, such as tshark: that of this machine, or one in the cache directory.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::apt::Apt;
use crate::cache::Cache;
use crate::prefix::Prefix;
use crate::progress;

/// Release that private programs come from.
const SUITE: &str = "trixie";

/// A program that can be started.
#[derive(Clone, Debug)]
pub enum Judge {
    /// On the PATH of this machine.
    System(String),
    /// Unpacked in the cache directory.
    Private(String, Prefix),
}

impl Judge {
    /// Finds `program`, which the package of the same name has; unpacks that privately if it is not on the PATH.
    ///
    /// # Errors
    /// The package can't be had, or the program does not start.
    pub fn get(cache: &Cache, program: &str) -> Result<Self> {
        let system = Self::System(program.to_owned());
        if system.starts() {
            return Ok(system);
        }
        let folder = cache.get_or_build(program, &format!("{program} 1: {SUITE}"), |folder| {
            progress::note(&format!(
                "no {program} on the PATH: unpacking one into {}",
                cache.root().display()
            ));
            // Users and questions of an installation, which this is not.
            let unneeded =
                ["adduser", "passwd", "debconf", "libpam-modules", "libpam-modules-bin", "login.defs"];
            Apt::new(cache, &[SUITE])
                .unpack(&[program.to_owned()], folder, |package| unneeded.contains(&package.name()))?;
            let private = Self::Private(program.to_owned(), Prefix::new(folder));
            if !private.starts() {
                bail!("the {program} just unpacked does not start");
            }
            Ok(())
        })?;
        Ok(Self::Private(program.to_owned(), Prefix::new(folder)))
    }

    /// A command that starts it, without input.
    ///
    /// # Errors
    /// The folder in the cache directory is not whole.
    pub fn command(&self) -> Result<Command> {
        let mut command = match self {
            Self::System(program) => Command::new(program),
            Self::Private(program, prefix) => prefix.command(program)?,
        };
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn starts(&self) -> bool {
        self.command().and_then(|mut c| Ok(c.arg("--version").output()?.status.success())).unwrap_or(false)
    }
}
