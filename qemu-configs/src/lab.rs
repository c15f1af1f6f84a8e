//! A topology set up: its server running (or several), the guests ready to be booted one by one.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use hca_vm::guest::{State, Task};
//! # use hca_vm::lab::{Lab, Options};
//! let limit = Duration::from_secs(60);
//! let lab = Lab::start(Options::new("loopback"), &["a"])?;
//! let mut guest = lab.boot("a", Task::Job("echo begun; sleep 1000".into()))?;
//! guest.wait_until(limit, |guest| *guest.state() == State::Ready)?;
//! guest.go();
//! guest.wait_until(limit, |guest| guest.output().contains("begun"))?;
//! guest.kill();
//! // The same host again, against the same server.
//! let mut guest = lab.boot("a", Task::Job("ibv_devinfo".into()))?;
//! guest.wait_until(limit, |guest| *guest.state() == State::Ready)?;
//! guest.go();
//! guest.wait_until(limit, |guest| *guest.state() == State::Done(0))?;
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::accelerator::Accelerator;
use crate::beside::Beside;
use crate::cache::Cache;
use crate::diagnoses::Diagnoses;
use crate::guest::{Boot, Copy, Guest, Machine, Task, devices};
use crate::hub::{self, Hub};
use crate::image::{bugs, kernel, packages, rootfs, tools};
use crate::netboot;
use crate::progress;
use crate::qemu::Qemu;
use crate::server::Binary;
use crate::servers::Servers;
use crate::slots::Slots;
use crate::topology::{self, Topology};

/// What a lab is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of a built-in topology, or a path.
    pub topology: String,
    /// Kernel series or path.
    pub kernel: String,
    /// Additional Debian packages for the guests.
    pub packages: Vec<String>,
    /// The headers of the guests' kernel, too.
    pub headers: bool,
    /// Files for every guest.
    pub copies: Vec<Copy>,
    /// More arguments of QEMU: for all guests, or as `HOST:ARGUMENT` for one.
    pub qemu: Vec<String>,
    /// Load the mlx5 drivers before jobs.
    pub modprobe: bool,
    /// Keep logs here instead of in a temporary folder.
    pub log_dir: Option<PathBuf>,
    /// Only this process of the topology, in this machine's network; the others run elsewhere.
    pub process: Option<String>,
    /// More arguments of `softhca serve`; only where one server runs here.
    pub serve: Vec<String>,
    /// Look for mistakes of drivers that an adapter keeps silent about.
    pub check: bool,
    /// Hosts that boot over the fabric.
    pub netboot: Vec<String>,
    /// The type of the terminal that shows what commands print, if one does.
    pub colour: Option<String>,
}

impl Options {
    /// The defaults, for this topology.
    pub fn new(topology: impl Into<String>) -> Self {
        Self {
            topology: topology.into(),
            kernel: kernel::DEFAULT.to_owned(),
            packages: Vec::new(),
            headers: false,
            copies: Vec::new(),
            qemu: Vec::new(),
            modprobe: true,
            log_dir: None,
            process: None,
            serve: Vec::new(),
            check: true,
            netboot: Vec::new(),
            colour: None,
        }
    }
}

impl Options {
    /// The first host of the topology.
    ///
    /// # Errors
    /// The topology is wrong, or has none.
    pub fn first_host(&self) -> Result<String> {
        let topology = topology::load(&Binary::find()?, &topology::find(&self.topology)?)?;
        let first = topology.hosts.first().context("the topology has no host")?;
        Ok(first.name.clone())
    }
}

/// Makes everything a guest needs (QEMU, images), or finds it in the cache.
pub fn prepare(kernel: &str, packages: &[String]) -> Result<Machine> {
    prepare_with(kernel, packages, false)
}

/// The same, and if it is asked for the headers of the kernel.
fn prepare_with(choice: &str, packages: &[String], headers: bool) -> Result<Machine> {
    let cache = Cache::open()?;
    let qemu = Qemu::get(&cache)?;
    let kernel = kernel::get(&cache, choice)?;
    let mut machine = Machine {
        accelerator: Accelerator::get(&cache, &qemu, &kernel.vmlinux)?,
        qemu,
        tools: tools(&cache)?,
        rootfs: rootfs::get(&cache)?,
        packages: None,
        kernel,
    };
    let (mut wanted, mut suites) = (packages.to_vec(), Vec::new());
    if headers {
        let headers = kernel::headers(choice, &machine.kernel)?;
        wanted.push(headers.package);
        suites.extend(headers.suites);
    }
    machine.packages = packages::get(&cache, &machine, &wanted, &suites)?;
    for bug in bugs::known(&machine.kernel.version).into_iter().filter(|bug| bug.is_common) {
        progress::note(&format!("kernel {} {}", machine.kernel.version, bug.what));
    }
    Ok(machine)
}

/// The running servers and the means to boot the guests of its topology.
///
/// Use it from one thread: processes end when the thread that started them does.
pub struct Lab {
    machine: Machine,
    options: Options,
    topology: Topology,
    binary: Binary,
    // Before the servers, whom it follows.
    slots: Slots,
    servers: Servers,
    log_dir: PathBuf,
    hosts_file: String,
    hub: Option<Hub>,
    // Last: removed when everything else is gone.
    scratch: Scratch,
}

impl Lab {
    /// Prepares images if need be, and starts the server. Something will be asked of these hosts.
    pub fn start(options: Options, hosts: &[&str]) -> Result<Self> {
        // What can be wrong is looked at before anything that takes long.
        let file = topology::find(&options.topology)?;
        kernel::check(&options.kernel)?;
        options.packages.iter().try_for_each(|name| packages::check(name))?;
        let scratch = Scratch::new()?;
        let binary = Binary::find()?;
        let mut topology = topology::load(&binary, &file)?;
        if let Some(process) = &options.process {
            topology.process(process)?;
        }
        for host in hosts.iter().copied().chain(options.netboot.iter().map(String::as_str)) {
            topology.host(host)?;
        }
        let mut names = options.packages.clone();
        if !options.netboot.is_empty() {
            names.extend(netboot::PACKAGES.map(str::to_owned));
        }
        let machine = prepare_with(&options.kernel, &names, options.headers)?;
        let log_dir = match &options.log_dir {
            Some(dir) => {
                fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
                dir.canonicalize()?
            }
            None => scratch.0.clone(),
        };
        let only = options.process.as_deref();
        let servers = Servers::start(
            &binary,
            (&topology, &file),
            only,
            (&options.serve, options.check),
            (&scratch.0, &log_dir),
        )?;
        if only.is_some() {
            topology.hosts.retain(|host| host.process.as_deref() == only);
        }
        let mut hosts_file = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n".to_owned();
        let count = topology.hosts.len();
        for (index, host) in topology.hosts.iter().enumerate() {
            let address = if count > 1 { hub::address(index) } else { Ipv4Addr::LOCALHOST };
            hosts_file.push_str(&format!("{address} {}\n", host.name));
            for device in devices(host, index) {
                hosts_file.push_str(&device.names(&host.name));
            }
        }
        let hub = if count > 1 { Some(Hub::start(&scratch.0, count)?) } else { None };
        let slots = Slots::follow(servers.named().map(|(name, server)| (server, hosts_of(&topology, name))))?;
        Ok(Self { machine, options, topology, binary, slots, servers, log_dir, hosts_file, hub, scratch })
    }

    /// Follows what is diagnosed of the guests' drivers.
    pub(crate) fn diagnoses(&self) -> Result<Diagnoses> {
        Diagnoses::follow(self.servers.all())
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The servers, to ask them things.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The servers, to end them or see whether they live.
    pub fn servers_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }

    /// Starts the server of a process again (or the only one), after it was killed. Adapters in slots, which went with it, are put in again.
    ///
    /// # Errors
    /// There is no such server, or it does not come up.
    pub fn restart(&mut self, process: Option<&str>) -> Result<()> {
        self.servers.restart(process)?;
        let hosts = hosts_of(&self.topology, process);
        self.slots.follow_again(self.servers.of(process)?, hosts)
    }

    /// Starts a command on this machine, with the servers and the logs at hand.
    pub(crate) fn beside(&self, command: &str) -> Result<Beside> {
        Beside::start(command, &self.binary, &self.scratch.0, &self.log_dir)
    }

    /// Where logs are written.
    pub fn log_dir(&self) -> &Path {
        &self.log_dir
    }

    /// Starts one guest. A host whose earlier guest is gone can be booted again.
    pub fn boot(&self, host: &str, task: Task) -> Result<Guest> {
        self.boot_with(host, task, &[])
    }

    /// The same, with more files.
    pub(crate) fn boot_with(&self, host: &str, task: Task, files: &[Copy]) -> Result<Guest> {
        let copies: Vec<Copy> = self.options.copies.iter().chain(files).cloned().collect();
        self.describe(host, task, &copies, |boot| {
            let mut guest = Guest::boot(&self.machine, boot)?;
            if let Some(monitor) = guest.take_monitor() {
                self.slots.begin(boot.host, monitor, &self.binary, boot.run_dir);
            }
            Ok(guest)
        })
    }

    /// Makes what a host boots over the network: files for the others.
    pub(crate) fn netboot(&self, host: &str, task: Task) -> Result<Vec<Copy>> {
        self.describe(host, task, &self.options.copies, |boot| {
            netboot::files(&self.machine, boot, &self.scratch.0)
        })
    }

    /// Hands over how a host boots.
    fn describe<T>(
        &self,
        host: &str,
        task: Task,
        copies: &[Copy],
        then: impl FnOnce(&Boot<'_>) -> Result<T>,
    ) -> Result<T> {
        let index = self.topology.hosts.iter().position(|known| known.name == host);
        let host = self.topology.host(host)?;
        let loader = if self.options.netboot.contains(&host.name) {
            Some(netboot::loader(&Cache::open()?, &self.scratch.0)?)
        } else {
            None
        };
        then(&Boot {
            host,
            task,
            modprobe: self.options.modprobe,
            copies,
            run_dir: &self.servers.dir(host.process.as_deref()),
            log_dir: &self.log_dir,
            hosts_file: &self.hosts_file,
            side: self.hub.as_ref().zip(index).map(|(hub, index)| hub.link(index)),
            devices: index.map_or(Vec::new(), |index| devices(host, index)),
            disks: Vec::new(),
            loader,
            colour: self.options.colour.clone(),
            qemu: for_host(&self.options.qemu, &host.name, &self.topology),
        })
    }
}

/// The hosts that a server has.
fn hosts_of(topology: &Topology, process: Option<&str>) -> Vec<String> {
    let hosts = topology.hosts.iter().filter(|host| process.is_none() || host.process.as_deref() == process);
    hosts.map(|host| host.name.clone()).collect()
}

/// The arguments of QEMU that are for this host. Only what begins with a host's name is for one: QEMU has colons, too.
fn for_host(arguments: &[String], host: &str, topology: &Topology) -> Vec<String> {
    let of_host = |argument: &str| -> Option<String> {
        match argument.split_once(':') {
            Some((name, rest)) if topology.hosts.iter().any(|known| known.name == name) => {
                (name == host).then(|| rest.to_owned())
            }
            _ => Some(argument.to_owned()),
        }
    };
    arguments.iter().filter_map(|argument| of_host(argument)).collect()
}

const SCRATCH_PREFIX: &str = "hca-vm-";

/// A private temporary folder, removed in the end. Its path is short: socket addresses end at 107 bytes.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        remove_leftovers(&std::env::temp_dir());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{SCRATCH_PREFIX}{}-{number}", std::process::id()));
        // Left by a process that had our number before us and was killed.
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

/// Removes folders of processes that were killed before they could.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(SCRATCH_PREFIX))
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_qemu() {
        let topology: Topology = serde_json::from_str(
            r#"{"hosts":[{"name":"a","memory_bytes":1,"cpus":1},{"name":"b","memory_bytes":1,"cpus":1}]}"#,
        )
        .unwrap();
        let all = ["-S", "b:-gdb", "b:tcp::1234", "unix:/x"].map(str::to_owned);
        assert_eq!(for_host(&all, "a", &topology), ["-S", "unix:/x"]);
        assert_eq!(for_host(&all, "b", &topology), ["-S", "-gdb", "tcp::1234", "unix:/x"]);
    }
}
