//! Programs of another Debian release, run from an unpacked folder through that folder's own loader.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

const LOADER: [&str; 2] = ["usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"];
const LIBRARIES: [&str; 4] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib"];
const PROGRAMS: [&str; 4] = ["usr/bin", "usr/sbin", "bin", "sbin"];

/// A folder of unpacked packages.
#[derive(Clone, Debug)]
pub struct Prefix {
    root: PathBuf,
}

impl Prefix {
    /// The folder at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A command that runs `program` (a bare name) with the folder's libraries.
    pub fn command(&self, program: &str) -> Result<Command> {
        self.command_as(program, program)
    }

    /// The same, started under another name: some programs decide by it what to do.
    pub fn command_as(&self, program: &str, called: &str) -> Result<Command> {
        let find = |folders: &[&str], name: &str| {
            folders.iter().map(|folder| self.root.join(folder).join(name)).find(|path| path.is_file())
        };
        let Some(binary) = find(&PROGRAMS, program) else {
            bail!("{program} is missing in {}; remove that folder to have it made anew", self.root.display());
        };
        let Some(loader) = LOADER.iter().map(|path| self.root.join(path)).find(|path| path.is_file()) else {
            bail!("no loader in {}; remove that folder to have it made anew", self.root.display());
        };
        let libraries: Vec<String> =
            LIBRARIES.iter().map(|folder| self.root.join(folder).display().to_string()).collect();
        let mut command = Command::new(loader);
        command.arg("--library-path").arg(libraries.join(":")).args(["--argv0", called]).arg(binary);
        Ok(command)
    }
}
