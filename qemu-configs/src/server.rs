//! The adapter's server process: found or built, started, queried for its resource counts, ended.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::child::Owned;
use crate::namespaces::Namespace;
use crate::{built, private, progress};

/// Names the server binary to use.
pub const SERVER_VARIABLE: &str = "SOFTHCA_BIN";
/// What cargo is to do, and as optimised as we are.
///
/// Debug builds are of `cargo test --workspace`, which has built the program already, for its own integration
/// tests. Asking for one of these again, and for all programs, finds that very binary: `cargo build`, or the test alone, would
/// choose other features of the dependencies and build nearly everything once more. `.ci/run` looks whether it is so.
const BUILD: &[&str] = if cfg!(debug_assertions) {
    &["test", "--no-run", "--workspace", "--bins", "--test", "program"]
} else {
    &["build", "--release", "-p", "softhca"]
};
const READY: &str = "softhca: ready";
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Where the server's program is.
#[derive(Clone, Debug)]
pub struct Binary(PathBuf);

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Binary {
    /// That file: the server, or a script that ends by becoming it.
    pub fn at(file: PathBuf) -> Self {
        Self(file)
    }

    /// The program's file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// From the environment, else beside our own executable, else built from the source checkout we came from.
    ///
    /// Who starts us through cargo wants what the sources say: then it is brought up to date there. Who starts a program
    /// that was built wants that one's neighbour.
    pub fn find() -> Result<Self> {
        if let Some(path) = std::env::var_os(SERVER_VARIABLE).map(PathBuf::from) {
            if !path.is_file() {
                bail!("{SERVER_VARIABLE} names {}, which is not a file", path.display());
            }
            return Ok(Self(path));
        }
        let own = std::env::current_exe().context("cannot find our own executable")?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let checkout = source.join("device/cli/Cargo.toml").is_file();
        if checkout && std::env::var_os("CARGO").is_some() {
            return Self::build(&source);
        }
        let beside = own.with_file_name("softhca");
        if beside.is_file() {
            return Ok(Self(beside));
        }
        if checkout {
            return Self::build(&source);
        }
        bail!("no softhca beside {}; set {SERVER_VARIABLE} to the server's binary", own.display())
    }

    fn build(source: &Path) -> Result<Self> {
        built::by_cargo(source, BUILD, "softhca", "building the server").map(Self)
    }

    /// A command that starts it.
    pub fn command(&self) -> Command {
        Command::new(&self.0)
    }
}

/// A running server.
pub struct Server {
    binary: Binary,
    child: Owned,
    run_dir: PathBuf,
    log: PathBuf,
}

/// The part of a topology that one of several servers has.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Name of the process in the topology.
    pub process: &'a str,
    /// The key, if the topology does not name one.
    pub key: Option<&'a Path>,
    /// The network it runs in, if not ours.
    pub namespace: Option<&'a Namespace>,
}

impl Server {
    /// Starts the server of a topology, or of a part of it, with more arguments, and waits until its sockets listen.
    /// Its messages go to `log`.
    pub fn start(
        binary: &Binary,
        topology: &Path,
        part: Option<Part<'_>>,
        arguments: &[String],
        (run_dir, log): (&Path, &Path),
    ) -> Result<Self> {
        let mut command = binary.command();
        command.arg("serve").arg("--topology").arg(topology).arg("--run-dir").arg(run_dir);
        command.args(arguments);
        if let Some(Part { process, key, namespace }) = part {
            command.arg("--process").arg(process);
            if let Some(key) = key {
                command.arg("--tunnel-key-file").arg(key);
            }
            if let Some(namespace) = namespace {
                namespace.enter(&mut command);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(private::create(log)?);
        let mut child = Owned::spawn(&mut command, &[])?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.inner().stdout.take() {
            std::thread::spawn(move || {
                // Keeps reading after "ready", so that the server never blocks on a full pipe.
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        let mut server =
            Self { binary: binary.clone(), child, run_dir: run_dir.to_path_buf(), log: log.to_path_buf() };
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.trim() == READY => return Ok(server),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!(
                        "the server was not ready after {} s:\n{}",
                        READY_LIMIT.as_secs(),
                        server.messages()
                    )
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    server.child.wait_for(Duration::from_secs(1));
                    bail!("the server ended before it was ready:\n{}", server.messages())
                }
            }
        }
    }

    /// The folder with its sockets.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Is it still running?
    pub fn alive(&mut self) -> bool {
        self.child.ended().is_none()
    }

    /// What it wrote to standard error so far.
    pub fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The command that asks it something: a command of `softhca` that takes a run directory.
    pub(crate) fn ask(&self, what: &str) -> Command {
        let mut command = self.binary.command();
        command.arg(what).arg("--run-dir").arg(&self.run_dir);
        command
    }

    /// The resource counts of each adapter, now and at the last teardown: as text, or as JSON.
    pub fn resources(&self, json: bool) -> Result<String> {
        let mut command = self.ask("resources");
        if json {
            command.arg("--json");
        }
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!("cannot read the resource counts: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Ends it at once, as if its machine died.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.child.stop(Duration::from_secs(5));
        if !self.messages().is_empty() && std::env::var_os("HCA_VM_VERBOSE").is_some() {
            progress::note(&format!("the server said:\n{}", self.messages()));
        }
    }
}
