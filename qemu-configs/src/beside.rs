//! A command on this machine while guests run: it takes cables out, kills things, watches.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use anyhow::{Context, Result};

use crate::child::Owned;
use crate::server::Binary;

/// Names the folder of the guests' logs.
const LOGS_VARIABLE: &str = "HCA_VM_LOGS";
/// Names the run directory of the servers.
const RUN_DIR_VARIABLE: &str = "SOFTHCA_RUN_DIR";
/// `await HOST TEXT...`: until the job of the host has printed one of the texts, or the run is gone, and its folder with it.
const AWAIT: &str = r#"#!/bin/sh
log=$HCA_VM_LOGS/$1.log
shift
for text; do
    set -- "$@" -e "$text"
    shift
done
until grep -qF "$@" "$log" 2>/dev/null; do
    [ -e "$0" ] || exit
    sleep 0.1
done
"#;

/// A running command.
pub(crate) struct Beside {
    child: Owned,
    lines: Receiver<String>,
    output: String,
    exit: Option<i32>,
}

impl Beside {
    /// Starts `sh -c command` with `softhca` and `await` on the PATH.
    pub(crate) fn start(command: &str, binary: &Binary, run_dir: &Path, log_dir: &Path) -> Result<Self> {
        let bin = run_dir.join("bin");
        fs::create_dir_all(&bin)?;
        let script = bin.join("await");
        fs::write(&script, AWAIT)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let server = bin.join("softhca");
        let _ = fs::remove_file(&server);
        std::os::unix::fs::symlink(fs::canonicalize(binary.path())?, server)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = Owned::spawn(
            Command::new("sh")
                .args(["-c", &format!("exec 2>&1\n{command}")])
                .env("PATH", format!("{}:{path}", bin.display()))
                .env(RUN_DIR_VARIABLE, run_dir)
                .env(LOGS_VARIABLE, log_dir)
                .stdin(Stdio::null())
                .stdout(Stdio::piped()),
            &[],
        )?;
        let stdout = child.inner().stdout.take().context("no output of the command")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines, output: String::new(), exit: None })
    }

    /// Takes in what it printed; hands each line to the listener.
    pub(crate) fn poll(&mut self, mut on_line: impl FnMut(&str)) {
        if self.exit.is_none() {
            // Asked first: what it printed before it ended is then there.
            self.exit = self.child.ended().map(|status| status.code().unwrap_or(255));
        }
        while let Ok(line) = self.lines.try_recv() {
            on_line(&line);
            self.output.push_str(&line);
            self.output.push('\n');
        }
    }

    /// Ends it, with all it started, if it has not ended.
    pub(crate) fn kill(&mut self) {
        if self.exit.is_none() {
            // It leads a process group of its own.
            let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            self.child.kill();
        }
    }

    /// Its exit status, once it has one.
    pub(crate) fn exit(&self) -> Option<i32> {
        self.exit
    }

    /// What it printed.
    pub(crate) fn output(&self) -> &str {
        &self.output
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.kill();
    }
}
