//! Topology files: which hosts, adapters and switches there are and how they are linked.
//!
//! TOML in, checked [`Topology`] out. Every error names file, line, key and reason. The launcher
//! of guests gets the same topology as JSON from `softhca topology FILE`. One file may describe what several
//! server processes serve together: each serves its [`Part`], and links between parts are tunnels.
//!
//! `personality` of an adapter says of which kind it is: PCI identity, firmware version, capabilities, ports. `profile` is
//! about time alone: of an adapter, else of the topology, else the one that belongs to the personality.
//!
//! `blueflame = true` of an adapter (`[[host.hca]]`) lets programs send small messages with the doorbell itself, as a
//! ConnectX-4 does. It is off unless asked for, because it makes doorbells slower: a trapped BAR has no
//! write-combining buffer, so the server has to wait a moment after each store for the one that continues it.

pub mod built_in;
mod cables;
mod check;
mod fat_tree;
pub mod faults;
mod joint;
mod outside;
pub mod partitions;
mod parts;
mod queues;
mod raw;
mod reach;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hca_model::link::LinkRate;
use hca_model::{Queueing, Routing};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::outside::address::Medium;
use crate::pci::rom::Rom;

pub use hca_model::PortKind;
pub use hca_model::personality::Personality;
pub use joint::{Framing, Joint, Place};
pub use outside::{Exit, Nic, Outside};
pub use parts::{Cut, Part, Worker};

/// A checked topology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// Timing profile of switches, and of adapters that have none of their own, if not what belongs to their personality.
    pub profile: Option<String>,
    /// Who is kept apart from whom.
    pub isolation: Isolation,
    /// How host time becomes model time.
    pub time: Time,
    /// Whether drivers' mistakes are looked for that an adapter keeps silent about.
    pub checker: Checker,
    /// Properties of the fabric as a whole.
    pub fabric: Fabric,
    /// Server processes in the order of the file; none if one process serves everything.
    pub processes: Vec<Process>,
    /// Hosts in the order of the file.
    pub hosts: Vec<Host>,
    /// Switches in the order of the file.
    pub switches: Vec<Switch>,
    /// Other software at the end of links, in the order of the file.
    pub outsides: Vec<Outside>,
    /// Links in the order of the file.
    pub links: Vec<Link>,
    /// Which ports may talk to which, in the order of the file; none: all of them.
    pub partitions: Vec<partitions::Partition>,
    /// What goes wrong on script, in the order of the file.
    #[serde(rename = "fault")]
    pub faults: Vec<faults::Scripted>,
}

/// Which tenants have a process of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// None: one process serves all, with one clock, in which what happens between hosts has the model's times.
    #[default]
    None,
    /// Each host, and the switches together.
    Process,
}

/// How host time becomes model time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Time {
    /// How far the model may run ahead of the mapped host time, in microseconds.
    pub quantum_us: u64,
    /// Host time divided by model time: 2.0 lets the model run at half speed.
    pub dilation: f64,
    /// Whether the model may run ahead at all.
    pub mode: Mode,
    /// Host time that the model may take before hosts are served again, in milliseconds.
    pub budget_ms: u64,
}

/// The checker of drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Checker {
    /// Whether it looks on.
    pub enabled: bool,
    /// Model time that a driver may leave something undone, in milliseconds.
    pub patience_ms: u64,
}

impl Default for Checker {
    fn default() -> Self {
        Checker { enabled: false, patience_ms: 2000 }
    }
}

/// How model time follows the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Up to one quantum ahead: a pipeline of the model never waits for the host's timers.
    #[default]
    Live,
    /// Never ahead: nothing reaches a guest before its model time.
    Paced,
}

impl Default for Time {
    fn default() -> Self {
        Time { quantum_us: 100, dilation: 1.0, mode: Mode::default(), budget_ms: 5 }
    }
}

/// Who assigns LIDs and brings ports up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubnetManager {
    /// A minimal one inside the fabric.
    #[default]
    Builtin,
    /// None: one runs in a guest.
    None,
}

/// The M_Key that the built-in subnet manager gives all ports (IBTA vol 1 14.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagementKey {
    /// One that nobody knows, made when the server starts.
    #[default]
    Random,
    /// None: whoever may send SMPs may set any port.
    None,
    /// This one. It is not shown.
    #[serde(serialize_with = "given")]
    Given(u64),
}

fn given<S: serde::Serializer>(_: &u64, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str("given")
}

/// Properties of the fabric as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fabric {
    /// Who manages the subnet.
    pub subnet_manager: SubnetManager,
    /// What protects ports from other managers than the built-in one.
    pub m_key: ManagementKey,
    /// Seed of everything random.
    pub seed: u64,
    /// How long links take to train, in milliseconds, if not what the timing profile says.
    pub training_ms: Option<u64>,
    /// How the built-in subnet manager chooses paths.
    #[serde(serialize_with = "routing_text")]
    pub routing: Routing,
    /// How processes reach each other.
    pub tunnel: TunnelSettings,
}

/// What all tunnels of a topology have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TunnelSettings {
    /// File with the key that the processes share, as an absolute path or one from where the program runs.
    pub key_file: Option<PathBuf>,
    /// Largest datagram that is sent, in bytes of UDP payload.
    pub datagram: u16,
    /// A peer that is silent for so many milliseconds is lost.
    pub timeout_ms: u64,
}

impl Default for TunnelSettings {
    fn default() -> Self {
        // An Ethernet frame of 1500 bytes holds IPv6 (40) and UDP (8), with some room for tunnels below.
        TunnelSettings { key_file: None, datagram: 1400, timeout_ms: 3000 }
    }
}

/// One server process of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Unique name.
    pub name: String,
    /// Where it takes datagrams of the others; `None`: it has links of simulations only.
    pub address: Option<SocketAddr>,
}

/// One host, that is one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Unique name.
    pub name: String,
    /// The process that serves its adapters, if there are several.
    pub process: Option<String>,
    /// Memory as written in the file.
    pub memory: String,
    /// The same in bytes.
    pub memory_bytes: u64,
    /// How much of it is huge pages of 2 MiB, which the guest's kernel sets aside as it boots.
    pub hugepages_bytes: u64,
    /// Processors of the guest.
    pub cpus: u32,
    /// Whether the guest's devices are behind a virtual IOMMU.
    pub iommu: bool,
    /// Whether its adapters are in slots from which they can be taken while it runs.
    pub hotplug: bool,
    /// Whether its SMPs leave its adapters.
    pub may_manage: bool,
    /// Adapters in the order of the file.
    pub hcas: Vec<Hca>,
    /// Network cards that are not of the model, in the order of the file.
    pub nics: Vec<Nic>,
}

/// One adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hca {
    /// Name, unique within its host.
    pub name: String,
    /// Node GUID.
    #[serde(serialize_with = "guid_text")]
    pub guid: u64,
    /// Of which kind it is.
    #[serde(serialize_with = "personality_name")]
    pub personality: Arc<Personality>,
    /// Its timing profile, if not the topology's.
    pub profile: Option<String>,
    /// Link layer of the port.
    #[serde(serialize_with = "port_type_text")]
    pub port_type: PortKind,
    /// Whether send requests may come with their doorbell (BlueFlame).
    pub blueflame: bool,
    /// Whether keys of encryption are imported wrapped, by an adapter that has any.
    pub wrapped_keys: bool,
    /// Whether drivers may have page faults name keys and addresses, of an adapter that has that.
    pub memory_page_faults: bool,
    /// Whether its host can read what is diagnosed of its driver, in a capability.
    pub diagnoses: bool,
    /// What its host's objects may cost the server, in bytes of the memory that the host gives to the firmware for them.
    pub icm_bytes: u64,
    /// What packets at its ports may take of a capture, in bytes.
    pub capture_bytes: u64,
    /// How many events of it may wait before its host does.
    pub events: usize,
    /// Its expansion ROM, if it has one.
    #[serde(skip)]
    pub rom: Option<Rom>,
    /// File name of its socket in the run directory.
    pub socket: String,
    /// How its host is joined to it, if that is another simulator.
    #[serde(skip)]
    pub simbricks: Option<Place>,
    /// What a crossing of that link takes in nanoseconds, if not as much as it may.
    #[serde(skip)]
    pub pcie_latency_ns: Option<u64>,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Switch {
    /// Name, unique among hosts and switches.
    pub name: String,
    /// The process that serves it, if there are several.
    pub process: Option<String>,
    /// Link layer of its ports.
    #[serde(rename = "type", serialize_with = "port_type_text")]
    pub kind: PortKind,
    /// External ports, numbered from 1.
    pub ports: u8,
    /// Node GUID.
    #[serde(serialize_with = "guid_text")]
    pub guid: u64,
    /// How it queues, if it is one of Ethernet.
    #[serde(skip)]
    pub queueing: Queueing,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// A port of an adapter.
    Hca {
        /// Its host.
        host: String,
        /// Its name.
        hca: String,
        /// Port, from 1.
        port: u8,
    },
    /// A port of a switch.
    Switch {
        /// Its name.
        switch: String,
        /// Port, from 1.
        port: u8,
    },
    /// Other software.
    Outside {
        /// Its name.
        outside: String,
    },
    /// A network card of a host.
    Nic {
        /// Its host.
        host: String,
        /// Its name.
        nic: String,
    },
}

impl End {
    /// The host, switch or outside.
    pub fn node(&self) -> &str {
        match self {
            End::Hca { host, .. } | End::Nic { host, .. } => host,
            End::Switch { switch, .. } => switch,
            End::Outside { outside } => outside,
        }
    }

    /// Whether it is not of the model.
    pub fn is_outside(&self) -> bool {
        matches!(self, End::Outside { .. } | End::Nic { .. })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Hca { host, hca, port: 1 } => write!(f, "{host}/{hca}"),
            End::Hca { host, hca, port } => write!(f, "{host}/{hca}/{port}"),
            End::Switch { switch, port } => write!(f, "{switch}/{port}"),
            End::Outside { outside } => f.write_str(outside),
            End::Nic { host, nic } => write!(f, "{host}/{nic}"),
        }
    }
}

impl Serialize for End {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A cable between two ports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The two ends, as `host/hca`, `host/hca/port`, `switch/port`, `outside` or `host/nic`.
    pub between: [End; 2],
    /// Signalling rate per lane.
    pub rate: LinkRate,
    /// Lanes.
    pub width: u8,
    /// Time on the wire in nanoseconds.
    pub delay_ns: u64,
    /// Virtual lanes for data of the ports at its ends: 1, 2, 4 or 8.
    pub vls: u8,
    /// Largest payload of a packet that the ports at its ends take, in bytes.
    pub mtu: u16,
    /// Seed of what goes wrong on this link, if not that of the fabric.
    pub seed: Option<u64>,
    /// What goes wrong.
    pub faults: Faults,
    /// File with a key of its own, if it joins two processes; they may have it in different places.
    #[serde(skip)]
    pub tunnel_key_file: Option<PathBuf>,
    /// How two processes of a simulation are joined by it.
    #[serde(skip)]
    pub simbricks: Option<Joint>,
}

impl Link {
    /// Whether one of its ends is not of the model.
    pub fn leaves(&self) -> bool {
        self.between.iter().any(End::is_outside)
    }
}

/// What goes wrong on a link: shares of the packets, 0.0 to 1.0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Faults {
    /// Never arrive.
    pub loss: f64,
    /// Arrive twice.
    pub duplicate: f64,
    /// Arrive late, and others may overtake them.
    pub reorder: f64,
    /// Arrive with one bit changed.
    pub corrupt: f64,
    /// Arrive late, in order.
    pub delay: f64,
    /// The longest delay of those that are late, in microseconds.
    pub delay_us: u64,
}

/// Why a topology can't be used.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The file can't be read.
    #[error("{file}: {error}")]
    Read {
        /// The file as named by the user.
        file: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{file}:{line}: {key}: {reason}")]
    Invalid {
        /// The file as named by the user.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key in question.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Topology {
    /// Reads and checks a topology file, or the one that is built in under this name.
    ///
    /// # Errors
    /// A [`TopologyError`] that names file, line, key and reason.
    pub fn load(path: &Path) -> Result<Topology, TopologyError> {
        Topology::read(path).map(|(_, topology)| topology)
    }

    /// The same, with the file's text.
    ///
    /// # Errors
    /// As [`Topology::load`].
    pub fn read(path: &Path) -> Result<(String, Topology), TopologyError> {
        let file = path.display().to_string();
        let text = built_in::read(path).map_err(|error| TopologyError::Read { file: file.clone(), error })?;
        let mut topology = Topology::parse(&file, &text)?;
        // Files named in the file are beside it.
        let folder = path.parent().unwrap_or(Path::new(""));
        let own = topology.links.iter_mut().filter_map(|link| link.tunnel_key_file.as_mut());
        for key in own.chain(&mut topology.fabric.tunnel.key_file) {
            *key = folder.join(&*key);
        }
        Ok((text, topology))
    }

    /// Keeps other tenants apart than the file says.
    ///
    /// # Errors
    /// The topology has processes of its own.
    pub fn isolate(&mut self, isolation: Isolation) -> anyhow::Result<()> {
        if isolation == Isolation::Process && !self.processes.is_empty() {
            anyhow::bail!("isolation: {}", parts::SERVED_BY_PROCESSES);
        }
        if isolation == Isolation::Process && self.links.iter().any(Link::leaves) {
            anyhow::bail!("isolation: {}", parts::LEAVES);
        }
        self.isolation = isolation;
        Ok(())
    }

    /// Sockets whose paths are not absolute are in this directory.
    pub fn put_sockets_into(&mut self, run_dir: &Path) {
        let hcas = self.hosts.iter_mut().flat_map(|host| &mut host.hcas);
        let hosts = hcas.filter_map(|hca| hca.simbricks.as_mut());
        let joints = self.links.iter_mut().filter_map(|link| link.simbricks.as_mut());
        joints.for_each(|joint| joint.put_into(run_dir));
        hosts.for_each(|host| host.put_into(run_dir));
        let media = self.outsides.iter_mut().map(|outside| &mut outside.medium);
        media.flat_map(Medium::addresses_mut).for_each(|address| address.put_into(run_dir));
        for nic in self.hosts.iter_mut().flat_map(|host| &mut host.nics) {
            for path in [&mut nic.local, &mut nic.remote] {
                *path = run_dir.join(&*path);
            }
        }
    }

    /// Checks the text of a topology file; `file` is for error messages.
    ///
    /// # Errors
    /// [`TopologyError::Invalid`].
    pub fn parse(file: &str, text: &str) -> Result<Topology, TopologyError> {
        check::parse(file, text)
    }

    /// One host with one adapter of that kind and no link, as text and checked. `profile` is its timing profile, if not that of its
    /// kind.
    ///
    /// # Errors
    /// There is no such profile.
    pub fn single(
        personality: &Arc<Personality>,
        profile: Option<&str>,
        port_type: PortKind,
    ) -> Result<(String, Topology), TopologyError> {
        let profile =
            profile.map(|name| format!("profile = {}\n", toml::Value::from(name))).unwrap_or_default();
        let port_type = match port_type {
            PortKind::InfiniBand => "ib",
            PortKind::Ethernet => "eth",
        };
        let kind = personality.name;
        let text = format!(
            "{profile}[[host]]\nname = \"host\"\n[[host.hca]]\npersonality = \"{kind}\"\nport_type = \"{port_type}\"\n"
        );
        let topology = Topology::parse("--profile", &text)?;
        Ok((text, topology))
    }

    /// Draws the M_Key of the built-in subnet manager, if the topology leaves it to chance.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn draw_management_key(&mut self) -> anyhow::Result<()> {
        if self.fabric.m_key == ManagementKey::Random {
            self.fabric.m_key = ManagementKey::Given(crate::model::random_key()?);
        }
        Ok(())
    }

    /// The M_Key of the built-in subnet manager, if it is known.
    pub fn management_key(&self) -> Option<u64> {
        match self.fabric.m_key {
            ManagementKey::Given(key) => Some(key),
            ManagementKey::Random | ManagementKey::None => None,
        }
    }

    /// Every adapter with the name of its host, in the order of the file.
    pub fn hcas(&self) -> impl Iterator<Item = (&Host, &Hca)> {
        self.hosts.iter().flat_map(|host| host.hcas.iter().map(move |hca| (host, hca)))
    }

    /// Name of the timing profile of switches, and of everything that is said of no adapter.
    pub fn common_profile(&self) -> &str {
        self.profile.as_deref().unwrap_or(Personality::default_kind().timing)
    }

    /// Name of the timing profile of an adapter: its own, else the topology's, else that of its personality.
    pub fn profile_of<'a>(&'a self, hca: &'a Hca) -> &'a str {
        hca.profile.as_deref().or(self.profile.as_deref()).unwrap_or(hca.personality.timing)
    }

    /// The adapter that a user calls `HOST/HCA`, or `HOST` if that has no other: as `HOST/HCA`.
    ///
    /// # Errors
    /// There is no such adapter; which there are.
    pub fn adapter(&self, name: &str) -> Result<String, String> {
        named_adapter(&self.hosts, name)
    }

    /// The process that serves a host or switch; `None` if there is only one, or no such node.
    pub fn process_of(&self, node: &str) -> Option<&str> {
        let host = self.hosts.iter().find(|host| host.name == node);
        process_of(host, || self.switches.iter().find(|switch| switch.name == node))
    }
}

impl Topology {
    /// Hosts and switches that are of a process, with its name.
    pub fn nodes_of_processes(&self) -> impl Iterator<Item = (&str, &str)> {
        let hosts = self.hosts.iter().map(|host| (&host.name, &host.process));
        let nodes = hosts.chain(self.switches.iter().map(|switch| (&switch.name, &switch.process)));
        nodes.filter_map(|(name, process)| Some((name.as_str(), process.as_deref()?)))
    }
}

/// The process of a host or, if there is none of a name, of the switch of that name.
fn process_of<'a>(host: Option<&'a Host>, switch: impl FnOnce() -> Option<&'a Switch>) -> Option<&'a str> {
    host.map(|host| &host.process).or_else(|| switch().map(|switch| &switch.process))?.as_deref()
}

fn named_adapter(hosts: &[Host], name: &str) -> Result<String, String> {
    let mut known = Vec::new();
    for host in hosts {
        for hca in &host.hcas {
            let id = format!("{}/{}", host.name, hca.name);
            if id == name || (host.name == name && host.hcas.len() == 1) {
                return Ok(id);
            }
            known.push(id);
        }
    }
    Err(format!("there is no adapter {name:?}, only {}", known.join(", ")))
}

/// The link layer that an adapter's first port has without a choice.
fn first_kind(personality: &Personality) -> PortKind {
    let first = personality.ports.first().and_then(|port| port.kinds.first());
    first.copied().unwrap_or(PortKind::InfiniBand)
}

/// Understands the name of a personality.
///
/// # Errors
/// What is possible, as text.
pub fn parse_personality(text: &str) -> Result<Arc<Personality>, String> {
    Personality::named(text).ok_or_else(|| {
        let names: Vec<_> = Personality::names().collect();
        format!("there is no personality {text:?}, only {}", names.join(", "))
    })
}

/// Understands who is to be kept apart.
///
/// # Errors
/// What is possible, as text.
pub fn parse_isolation(text: &str) -> Result<Isolation, String> {
    match text {
        "none" => Ok(Isolation::None),
        "process" => Ok(Isolation::Process),
        other => Err(format!("{other:?} is neither \"none\" nor \"process\"")),
    }
}

/// Understands the name of a link layer.
///
/// # Errors
/// What is possible, as text.
pub fn parse_port_type(text: &str) -> Result<PortKind, String> {
    match text {
        "ib" => Ok(PortKind::InfiniBand),
        "eth" => Ok(PortKind::Ethernet),
        other => Err(format!("{other:?} is neither \"ib\" nor \"eth\"")),
    }
}

fn guid_text<S: serde::Serializer>(guid: &u64, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{guid:#018x}"))
}

fn personality_name<S: serde::Serializer>(personality: &Arc<Personality>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(personality.name)
}

fn routing_text<S: serde::Serializer>(routing: &Routing, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(match routing {
        Routing::MinHop => "min-hop",
        Routing::UpDown => "up-down",
    })
}

fn port_type_text<S: serde::Serializer>(port_type: &PortKind, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(match port_type {
        PortKind::InfiniBand => "ib",
        PortKind::Ethernet => "eth",
    })
}

#[cfg(test)]
mod cable_tests;
#[cfg(test)]
mod outside_tests;
#[cfg(test)]
mod tests;
