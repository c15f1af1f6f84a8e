//! What tests of the program share.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder of one test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("softhca-program-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is ended, whatever becomes of the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `softhca sim` of a topology, with sockets in `dir`; what it prints can be read.
pub(crate) fn sim(topology: &Path, dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
    command.arg("sim").arg("--topology").arg(topology).arg("--run-dir").arg(dir).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Sums over processes of what they printed as JSON: events, packets, completions, how many there were of each, messages and bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) hashes: [u64; 3],
    pub(crate) counts: [u64; 3],
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Sums {
    /// Adds what one printed. Returns all of it.
    pub(crate) fn add(&mut self, output: &Output) -> serde_json::Value {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = &value["hashes"];
        for (place, name) in ["events", "packets", "completions"].into_iter().enumerate() {
            self.hashes[place] = self.hashes[place].wrapping_add(of[name].as_u64().unwrap());
            self.counts[place] += of["counts"][place].as_u64().unwrap();
        }
        self.messages += value["messages"].as_u64().unwrap();
        self.bytes += value["bytes"].as_u64().unwrap();
        value
    }
}
