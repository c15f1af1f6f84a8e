//! A kernel module of one's own: built in a guest against the headers of the guest's kernel, and loaded there.
//!
//! In a guest, since the compiler and the tools that headers want are those of the kernel's own release.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::guest::Copy;
use crate::lab::Options;
use crate::run::Run;

const SCRIPT: &str = include_str!("../guest/module.sh");
/// Where the script finds the module's sources.
const SOURCES: &str = "/root/module";
/// Where it finds a kernel's build folder that is not Debian's.
const HEADERS: &str = "/usr/src/headers";

/// A module, and what is done when it is loaded.
#[derive(Clone, Debug)]
pub struct Module {
    /// Folder with a Makefile for kbuild.
    pub folder: PathBuf,
    /// Build folder of the kernel, if it is not one of Debian's.
    pub headers: Option<PathBuf>,
    /// Shell command in the guest that loaded it.
    pub command: String,
}

impl Module {
    /// The run that builds and loads it in that host.
    ///
    /// # Errors
    /// There is no such module.
    pub fn run(&self, mut options: Options, host: &str) -> Result<Run> {
        let makefile = ["Kbuild", "Makefile"].iter().any(|name| self.folder.join(name).is_file());
        if !makefile {
            bail!(
                "{} is no kernel module: it has neither a Makefile nor a Kbuild file with `obj-m := NAME.o`",
                self.folder.display()
            );
        }
        options.copies.push(copy(&self.folder, SOURCES)?);
        // Headers bring the compiler, but not all of them what it calls.
        options.packages.extend(["binutils", "make"].map(str::to_owned));
        let mut script = String::new();
        match &self.headers {
            None => options.headers = true,
            Some(folder) => {
                if !folder.join("Makefile").is_file() {
                    bail!("--headers {}: no Makefile of a kernel there", folder.display());
                }
                options.packages.push("gcc".to_owned());
                options.copies.push(copy(folder, HEADERS)?);
                script.push_str(&format!("HCA_HEADERS={HEADERS}\n"));
            }
        }
        script.push_str(SCRIPT);
        script.push_str(&self.command);
        Ok(Run::with(options).host(host, script))
    }
}

fn copy(from: &Path, to: &str) -> Result<Copy> {
    let from = from.canonicalize().with_context(|| format!("no folder {}", from.display()))?;
    Ok(Copy { from, to: to.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_no_module() {
        let module =
            |folder: &str| Module { folder: folder.into(), headers: None, command: "true".to_owned() };
        let error = module("src").run(Options::new("loopback"), "a").err().unwrap().to_string();
        assert!(error.contains("obj-m"), "{error}");
        assert!(module("examples/module").run(Options::new("loopback"), "a").is_ok());
        let wrong = Module { headers: Some("src".into()), ..module("examples/module") };
        assert!(wrong.run(Options::new("loopback"), "a").err().unwrap().to_string().contains("--headers"));
    }
}
