//! Where a case takes place: a server process of its own with a topology of an attacker's adapters and a victim's, in a
//! directory of its own; and what an attack has to work with.

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hca_driver::eth::Mac;
use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Config, Hca};
use hca_spec::ids::Lid;
use hca_vm::server::{Binary, Server};

use crate::pair::{Options, Pair};
use crate::process::Process;
use crate::raw::Raw;

/// The attacker's host and the victim's.
pub const ATTACKER: &str = "a";
/// The victim's host.
pub const VICTIM: &str = "v";
/// A host that nobody attacks from; for who comes later.
pub const BYSTANDER: &str = "b";
/// How long an attack goes on once it is prepared.
pub const ATTACK: Duration = Duration::from_secs(3);
/// DMA memory of an attacker, in bytes, unless it says otherwise.
pub const MEMORY: usize = 64 << 20;
/// MSI-X vectors of a driver.
pub const VECTORS: u16 = 4;
/// How long a worker may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Waits for an interrupt (a millisecond each) before a command is given up.
const COMMAND_POLLS: u32 = 10_000;

/// A driver of the attacker or the victim.
pub type Driver = Hca<VfioUserBus>;
/// Why an attack could not be made.
pub type Failure = Box<dyn Error>;

/// How the adapters are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// Not at all: each is its own subnet.
    Apart,
    /// Behind one switch.
    Switch,
    /// Behind one Ethernet switch.
    Ethernet,
}

/// What a server is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How the adapters are joined.
    pub joined: Joined,
    /// More arguments of `softhca serve`; `@` stands for the case's directory.
    pub arguments: &'static [&'static str],
    /// What a shell does before it becomes the server; `@` as above.
    pub shell: &'static str,
    /// A topology of its own.
    pub topology: Option<&'static str>,
    /// Whether a datagram socket in the run directory is at the last port of the switch.
    pub outside: bool,
    /// Whether each host has a process of its own.
    pub apart: bool,
}

impl Setting {
    /// Adapters that are not joined.
    pub const PLAIN: Self = Self {
        joined: Joined::Apart,
        arguments: &[],
        shell: "",
        topology: None,
        outside: false,
        apart: false,
    };
}

impl Default for Setting {
    fn default() -> Self {
        Self::PLAIN
    }
}

impl Setting {
    /// The topology, as TOML.
    pub fn text(&self) -> String {
        if let Some(text) = self.topology {
            return text.to_owned();
        }
        let (port, switch) = match self.joined {
            Joined::Ethernet => ("port_type = \"eth\"\n", "type = \"eth\"\n"),
            Joined::Apart | Joined::Switch => ("", ""),
        };
        let mut text = String::new();
        for host in [ATTACKER, VICTIM, BYSTANDER] {
            text += &format!("[[host]]\nname = \"{host}\"\n[[host.hca]]\n{port}");
        }
        if self.joined != Joined::Apart {
            text += &format!("[[switch]]\nname = \"s\"\nports = 4\n{switch}");
            for (port, host) in [ATTACKER, VICTIM, BYSTANDER].iter().enumerate() {
                text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"s/{}\"]\n", port + 1);
            }
        }
        if self.outside {
            text += "[[outside]]\nname = \"o\"\nkind = \"dgram\"\nlocal = \"unix:o.sock\"\n";
            text += "remote = \"unix:/nowhere\"\n[[link]]\nbetween = [\"o\", \"s/4\"]\n";
        }
        text
    }
}

/// A running server of a case. It and its directory are gone when this is dropped.
pub struct Stage {
    /// The server, or the supervisor of its workers.
    pub server: Server,
    apart: bool,
    dir: Scratch,
}

/// A directory that is removed in the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// It can't be made.
    pub fn new() -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("hca-adversary-{}-{number}", std::process::id()));
        // Left by a process that had our number before us and was killed.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Stage {
    /// Starts a server. Call it from a thread that outlives it: the server ends with that thread.
    ///
    /// # Errors
    /// Files, or the server does not come up.
    pub fn set(setting: &Setting) -> Result<Self, Failure> {
        Self::of(Scratch::new()?, &setting.text(), setting)
    }

    /// The same with another topology, as TOML, in a directory where there may be files that the server shall find.
    ///
    /// # Errors
    /// As above.
    pub fn of(dir: Scratch, text: &str, setting: &Setting) -> Result<Self, Failure> {
        let topology = dir.0.join("topology.toml");
        std::fs::write(&topology, text)?;
        let here = |text: &str| text.replace('@', &dir.0.display().to_string());
        let mut binary = Binary::find()?;
        if !setting.shell.is_empty() {
            let script = dir.0.join("server.sh");
            let text = format!("#!/bin/sh\n{}\nexec '{}' \"$@\"\n", here(setting.shell), binary);
            std::fs::write(&script, text)?;
            std::fs::set_permissions(&script, PermissionsExt::from_mode(0o700))?;
            binary = Binary::at(script);
        }
        let mut arguments: Vec<String> = setting.arguments.iter().map(|argument| here(argument)).collect();
        if setting.apart {
            arguments.extend(["--isolation", "process"].map(str::to_owned));
        }
        let (run, log) = (dir.0.join("run"), dir.0.join("log"));
        let server = Server::start(&binary, &topology, None, &arguments, (&run, &log))?;
        Ok(Self { server, apart: setting.apart, dir })
    }

    /// The directory of the case.
    pub fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// The server's process, or the supervisor's.
    pub fn process(&self) -> Process {
        Process(self.server.id())
    }

    /// The process that serves a host.
    ///
    /// # Errors
    /// Its worker is not there after some time.
    pub fn serves(&self, host: &str) -> Result<Process, Failure> {
        if !self.apart {
            return Ok(self.process());
        }
        let place = self.attacker();
        let until = Instant::now() + PATIENCE;
        loop {
            match place.worker(host) {
                Some(process) => return Ok(process),
                None if Instant::now() > until => return Err(format!("no worker serves {host}").into()),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Bytes that the server has logged.
    pub fn logged(&self) -> u64 {
        std::fs::metadata(self.dir.0.join("log")).map_or(0, |file| file.len())
    }

    /// The means of an attacker.
    pub fn attacker(&self) -> Attacker {
        Attacker::of(self.dir(), self.server.run_dir())
    }
}

/// What an attack has to work with: a server's directory, and the time.
#[derive(Clone, Debug)]
pub struct Attacker {
    dir: PathBuf,
    run_dir: PathBuf,
    victim: Lid,
    victim_mac: Mac,
}

impl Attacker {
    /// With a directory of its own, and the run directory of a server.
    pub fn of(dir: &Path, run_dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            run_dir: run_dir.to_path_buf(),
            victim: Lid::default(),
            victim_mac: Mac::default(),
        }
    }

    /// The directory of the case.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The LID of the victim's port.
    pub fn victim(&self) -> Lid {
        self.victim
    }

    /// The MAC address of the victim's port, if it is Ethernet.
    pub fn victim_mac(&self) -> Mac {
        self.victim_mac
    }

    /// The same attacker, who knows that.
    pub fn knowing(self, victim: Lid, victim_mac: Mac) -> Self {
        Self { victim, victim_mac, ..self }
    }

    /// The socket at the last port of the switch.
    pub fn outside(&self) -> PathBuf {
        self.run_dir.join("o.sock")
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.run_dir.join(hca_server::control::SOCKET)
    }

    /// The worker that serves `host`, if one does.
    pub fn worker(&self, host: &str) -> Option<Process> {
        let stat = hca_server::control::query(&self.control(), "stat").ok()?;
        let pid = stat["engine"][format!("host {host}")]["pid"].as_u64()?;
        pid.try_into().ok().map(Process)
    }

    /// The socket of the adapter of `host`.
    pub fn socket(&self, host: &str) -> PathBuf {
        self.run_dir.join(format!("{host}-hca0.sock"))
    }

    /// A count from 0 on, until [`ATTACK`] has passed since this call.
    pub fn rounds(&self) -> impl Iterator<Item = u64> + use<> {
        let until = Instant::now() + ATTACK;
        (0..).take_while(move |_| Instant::now() < until)
    }

    /// A client of the attacker's adapter that has negotiated its version.
    pub fn raw(&self) -> Raw {
        let mut raw = Raw::connect(&self.socket(ATTACKER));
        raw.negotiate();
        raw
    }

    /// The bus of an adapter, with that many bytes of DMA memory.
    ///
    /// # Errors
    /// The socket.
    pub fn bus(&self, host: &str, memory: usize) -> Result<VfioUserBus, Failure> {
        VfioUserBus::connect(&self.socket(host), memory, VECTORS)
    }

    /// A driver of the attacker's adapter.
    ///
    /// # Errors
    /// The adapter does not come up.
    pub fn driver(&self, memory: usize) -> Result<Driver, Failure> {
        driver(self.bus(ATTACKER, memory)?)
    }

    /// Two queue pairs of the attacker's adapter that are connected to each other.
    ///
    /// # Errors
    /// The adapter does not come up, or a command failed.
    pub fn pair(&self, options: &Options) -> Result<Pair<VfioUserBus>, Failure> {
        let driver = self.driver(MEMORY + 2 * options.memory)?;
        Ok(Pair::connect(vec![driver], options)?)
    }
}

/// Brings an adapter up.
///
/// # Errors
/// It does not come up.
pub fn driver(bus: VfioUserBus) -> Result<Driver, Failure> {
    let config = Config { command_polls: COMMAND_POLLS, init_polls: COMMAND_POLLS, ..Config::default() };
    Ok(Hca::open(bus, config)?)
}
