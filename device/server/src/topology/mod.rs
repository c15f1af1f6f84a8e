//! Topology files: which hosts and adapters there are and how they are linked.
//!
//! TOML in, checked [`Topology`] out. Every error names file, line, key and reason. The launcher
//! of guests gets the same topology as JSON from `softhca topology FILE`.
//!
//! `blueflame = true` of an adapter (`[[host.hca]]`) lets programs send small messages with the doorbell itself, as a
//! ConnectX-4 does. It is off unless asked for, because it makes doorbells slower: a BAR over vfio-user has no
//! write-combining buffer, so the server has to wait a moment after each store for the one that continues it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use hca_model::timing::Profile;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::Spanned;

use crate::pci::config::PortType;

/// Organization part of derived GUIDs (an OUI of Mellanox).
const GUID_OUI: u64 = 0x02c9;
/// Timing and capability profile used where none is named.
pub const DEFAULT_PROFILE: &str = "connectx4";
/// Most processors the launcher may give one guest.
const MAX_CPUS: u32 = 255;
/// Longest training of a link that makes sense: a minute.
const MAX_TRAINING_MS: u64 = 60_000;

/// A checked topology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// Timing and capability profile of every adapter.
    pub profile: String,
    /// How host time becomes model time.
    pub time: Time,
    /// Properties of the fabric as a whole.
    pub fabric: Fabric,
    /// Hosts in the order of the file.
    pub hosts: Vec<Host>,
    /// Links in the order of the file.
    pub links: Vec<Link>,
}

/// How host time becomes model time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Time {
    /// How far the model may run ahead of the mapped host time, in microseconds.
    pub quantum_us: u64,
    /// Host time divided by model time: 2.0 lets the model run at half speed.
    pub dilation: f64,
}

impl Default for Time {
    fn default() -> Self {
        Time { quantum_us: 100, dilation: 1.0 }
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

/// Properties of the fabric as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fabric {
    /// Who manages the subnet.
    pub subnet_manager: SubnetManager,
    /// Seed of everything random.
    pub seed: u64,
    /// How long links take to train, in milliseconds, if not what the timing profile says.
    pub training_ms: Option<u64>,
}

/// One host, that is one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Unique name.
    pub name: String,
    /// Memory as written in the file.
    pub memory: String,
    /// The same in bytes.
    pub memory_bytes: u64,
    /// Processors of the guest.
    pub cpus: u32,
    /// Whether the guest's devices are behind a virtual IOMMU.
    pub iommu: bool,
    /// Adapters in the order of the file.
    pub hcas: Vec<Hca>,
}

/// One adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hca {
    /// Name, unique within its host.
    pub name: String,
    /// Node GUID.
    #[serde(serialize_with = "guid_text")]
    pub guid: u64,
    /// Link layer of the port.
    #[serde(serialize_with = "port_type_text")]
    pub port_type: PortType,
    /// Whether send requests may come with their doorbell (BlueFlame).
    pub blueflame: bool,
    /// File name of its socket in the run directory.
    pub socket: String,
}

/// Signalling rate of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// 2.5 Gb/s.
    Sdr,
    /// 5 Gb/s.
    Ddr,
    /// 10 Gb/s.
    Qdr,
    /// 10.3125 Gb/s.
    Fdr10,
    /// 14.0625 Gb/s.
    Fdr,
    /// 25.78125 Gb/s.
    Edr,
}

impl Rate {
    /// The name that the file uses.
    pub const fn name(self) -> &'static str {
        match self {
            Rate::Sdr => "sdr",
            Rate::Ddr => "ddr",
            Rate::Qdr => "qdr",
            Rate::Fdr10 => "fdr10",
            Rate::Fdr => "fdr",
            Rate::Edr => "edr",
        }
    }
}

/// A cable between two adapters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The two ends as `host/hca`.
    pub between: [String; 2],
    /// Signalling rate per lane.
    pub rate: Rate,
    /// Lanes.
    pub width: u8,
    /// Time on the wire in nanoseconds.
    pub delay_ns: u64,
    /// Share of packets lost, 0.0 to 1.0.
    pub loss: f64,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTopology {
    profile: Option<Spanned<String>>,
    #[serde(default)]
    time: RawTime,
    #[serde(default)]
    fabric: RawFabric,
    #[serde(default)]
    host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    link: Vec<Spanned<RawLink>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTime {
    quantum_us: Option<Spanned<u64>>,
    dilation: Option<Spanned<f64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFabric {
    #[serde(default)]
    subnet_manager: SubnetManager,
    seed: Option<u64>,
    training_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    name: Spanned<String>,
    memory: Option<Spanned<String>>,
    cpus: Option<Spanned<u32>>,
    #[serde(default)]
    iommu: bool,
    #[serde(default)]
    hca: Vec<Spanned<RawHca>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHca {
    name: Option<Spanned<String>>,
    guid: Option<Spanned<String>>,
    port_type: Option<Spanned<String>>,
    #[serde(default)]
    blueflame: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    between: Spanned<[Spanned<String>; 2]>,
    rate: Option<Rate>,
    width: Option<Spanned<u8>>,
    delay_ns: Option<u64>,
    loss: Option<Spanned<f64>>,
}

impl Topology {
    /// Reads and checks a topology file.
    ///
    /// # Errors
    /// A [`TopologyError`] that names file, line, key and reason.
    pub fn load(path: &Path) -> Result<Topology, TopologyError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| TopologyError::Read { file: file.clone(), error })?;
        Topology::parse(&file, &text)
    }

    /// Checks the text of a topology file; `file` is for error messages.
    ///
    /// # Errors
    /// [`TopologyError::Invalid`].
    pub fn parse(file: &str, text: &str) -> Result<Topology, TopologyError> {
        let source = Source { file, text };
        let raw: RawTopology = toml::from_str(text).map_err(|e| source.syntax(&e))?;
        source.check(raw)
    }

    /// One host with one adapter and no link.
    pub fn single(profile: &str, port_type: PortType) -> Topology {
        let (host, hca) = ("host", "hca0");
        Topology {
            profile: profile.into(),
            time: Time::default(),
            fabric: Fabric { subnet_manager: SubnetManager::Builtin, seed: 1, training_ms: None },
            hosts: vec![Host {
                name: host.into(),
                memory: "1G".into(),
                memory_bytes: 1 << 30,
                cpus: 1,
                iommu: false,
                hcas: vec![Hca {
                    name: hca.into(),
                    guid: derived_guid(host, hca),
                    port_type,
                    blueflame: false,
                    socket: socket_name(host, hca),
                }],
            }],
            links: Vec::new(),
        }
    }

    /// Every adapter with the name of its host, in the order of the file.
    pub fn hcas(&self) -> impl Iterator<Item = (&Host, &Hca)> {
        self.hosts.iter().flat_map(|host| host.hcas.iter().map(move |hca| (host, hca)))
    }
}

/// The text being checked, for error messages.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

type Checked<T> = Result<T, TopologyError>;

impl Source<'_> {
    fn line(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or(self.text);
        before.bytes().filter(|&b| b == b'\n').count() + 1
    }

    fn error(&self, at: Range<usize>, key: &str, reason: impl fmt::Display) -> TopologyError {
        TopologyError::Invalid {
            file: self.file.into(),
            line: self.line(at.start),
            key: key.into(),
            reason: reason.to_string(),
        }
    }

    /// An error of the TOML parser; the key is what stands before `=` in its line.
    fn syntax(&self, e: &toml::de::Error) -> TopologyError {
        let at = e.span().unwrap_or(0..0);
        let line = self.text.lines().nth(self.line(at.start) - 1).unwrap_or_default();
        let key = line.split('=').next().unwrap_or_default().trim();
        let key = if key.is_empty() { "file" } else { key };
        let reason = e.message().trim().replace('\n', "; ");
        self.error(at, key, reason)
    }

    fn check(&self, raw: RawTopology) -> Checked<Topology> {
        let profile = match raw.profile {
            Some(p) if Profile::named(p.get_ref()).is_none() => {
                let reason = format!("there is no profile {:?}, only {DEFAULT_PROFILE:?}", p.get_ref());
                return Err(self.error(p.span(), "profile", reason));
            }
            Some(p) => p.into_inner(),
            None => DEFAULT_PROFILE.into(),
        };
        let mut hosts: Vec<Host> = Vec::new();
        let mut guids = BTreeMap::new();
        for host in raw.host {
            let host = self.host(host.into_inner(), &hosts, &mut guids)?;
            hosts.push(host);
        }
        if hosts.iter().all(|h| h.hcas.is_empty()) {
            let reason = "no adapter: at least one [[host]] with one [[host.hca]] is needed";
            return Err(self.error(0..0, "host", reason));
        }
        let mut sockets = BTreeMap::new();
        for (host, hca) in hosts.iter().flat_map(|h| h.hcas.iter().map(move |a| (h, a))) {
            let id = format!("{}/{}", host.name, hca.name);
            if let Some(other) = sockets.insert(hca.socket.clone(), id.clone()) {
                let reason = format!("{other} and {id} would share the socket {}", hca.socket);
                return Err(self.error(0..0, "host.hca.name", reason));
            }
        }
        let mut ends = BTreeMap::new();
        let links = raw
            .link
            .into_iter()
            .map(|link| self.link(link.into_inner(), &hosts, &mut ends))
            .collect::<Checked<Vec<_>>>()?;
        Ok(Topology { profile, time: self.time(raw.time)?, fabric: self.fabric(raw.fabric)?, hosts, links })
    }

    fn time(&self, raw: RawTime) -> Checked<Time> {
        let mut time = Time::default();
        if let Some(quantum) = raw.quantum_us {
            if !(1..=1_000_000).contains(quantum.get_ref()) {
                let reason = "must be 1 to 1000000 microseconds";
                return Err(self.error(quantum.span(), "time.quantum_us", reason));
            }
            time.quantum_us = quantum.into_inner();
        }
        if let Some(dilation) = raw.dilation {
            if !(0.001..=1_000_000.0).contains(dilation.get_ref()) {
                let reason = "must be 0.001 to 1000000";
                return Err(self.error(dilation.span(), "time.dilation", reason));
            }
            time.dilation = dilation.into_inner();
        }
        Ok(time)
    }

    fn fabric(&self, raw: RawFabric) -> Checked<Fabric> {
        if let Some(time) = raw.training_ms.as_ref().filter(|time| *time.get_ref() > MAX_TRAINING_MS) {
            let reason = format!("must be 0 to {MAX_TRAINING_MS} milliseconds");
            return Err(self.error(time.span(), "fabric.training_ms", reason));
        }
        Ok(Fabric {
            subnet_manager: raw.subnet_manager,
            seed: raw.seed.unwrap_or(1),
            training_ms: raw.training_ms.map(Spanned::into_inner),
        })
    }

    fn host(&self, raw: RawHost, others: &[Host], guids: &mut BTreeMap<u64, String>) -> Checked<Host> {
        let name = self.name("host.name", &raw.name)?;
        if others.iter().any(|h| h.name == name) {
            let reason = format!("two hosts are called {name:?}");
            return Err(self.error(raw.name.span(), "host.name", reason));
        }
        let (memory, memory_bytes) = match raw.memory {
            None => ("1G".to_string(), 1 << 30),
            Some(text) => match parse_size(text.get_ref()) {
                Some(bytes) if bytes >= 64 << 20 => (text.into_inner(), bytes),
                Some(_) => return Err(self.error(text.span(), "host.memory", "less than 64M")),
                None => {
                    let reason = format!("{:?} is not a size such as \"512M\" or \"2G\"", text.get_ref());
                    return Err(self.error(text.span(), "host.memory", reason));
                }
            },
        };
        let cpus = match raw.cpus {
            None => 1,
            Some(cpus) if (1..=MAX_CPUS).contains(cpus.get_ref()) => cpus.into_inner(),
            Some(cpus) => {
                let reason = format!("must be 1 to {MAX_CPUS}");
                return Err(self.error(cpus.span(), "host.cpus", reason));
            }
        };
        let mut hcas: Vec<Hca> = Vec::new();
        for raw in raw.hca {
            let span = raw.span();
            let hca = self.hca(raw.into_inner(), &name, hcas.len())?;
            if hcas.iter().any(|h| h.name == hca.name) {
                let reason = format!("host {name:?} has two adapters called {:?}", hca.name);
                return Err(self.error(span, "host.hca.name", reason));
            }
            let id = format!("{name}/{}", hca.name);
            if let Some(other) = guids.insert(hca.guid, id.clone()) {
                let reason = format!("{other} and {id} have the same GUID {:#018x}", hca.guid);
                return Err(self.error(span, "host.hca.guid", reason));
            }
            hcas.push(hca);
        }
        Ok(Host { name, memory, memory_bytes, cpus, iommu: raw.iommu, hcas })
    }

    fn hca(&self, raw: RawHca, host: &str, index: usize) -> Checked<Hca> {
        let name = match raw.name {
            Some(name) => self.name("host.hca.name", &name)?,
            None => format!("hca{index}"),
        };
        let guid = match raw.guid {
            None => derived_guid(host, &name),
            Some(text) => text
                .get_ref()
                .strip_prefix("0x")
                .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .filter(|&guid| guid != 0)
                .ok_or_else(|| {
                    let reason = format!("{:?} is not a GUID such as \"0x0002c9030005a1b2\"", text.get_ref());
                    self.error(text.span(), "host.hca.guid", reason)
                })?,
        };
        let port_type = match raw.port_type {
            None => PortType::Ib,
            Some(text) => parse_port_type(text.get_ref())
                .map_err(|reason| self.error(text.span(), "host.hca.port_type", reason))?,
        };
        Ok(Hca { socket: socket_name(host, &name), name, guid, port_type, blueflame: raw.blueflame })
    }

    fn link(&self, raw: RawLink, hosts: &[Host], ends: &mut BTreeMap<String, usize>) -> Checked<Link> {
        for end in raw.between.get_ref() {
            let known = end.get_ref().split_once('/').is_some_and(|(host, hca)| {
                hosts.iter().any(|h| h.name == host && h.hcas.iter().any(|a| a.name == hca))
            });
            if !known {
                let reason = format!("there is no adapter {:?} (host/hca)", end.get_ref());
                return Err(self.error(end.span(), "link.between", reason));
            }
            let line = self.line(end.span().start);
            if let Some(other) = ends.insert(end.get_ref().clone(), line) {
                let reason = format!("the port of {} is already linked in line {other}", end.get_ref());
                return Err(self.error(end.span(), "link.between", reason));
            }
        }
        let width = match raw.width {
            None => 4,
            Some(width) if matches!(width.get_ref(), 1 | 4) => width.into_inner(),
            Some(width) => {
                return Err(self.error(width.span(), "link.width", "must be 1 or 4 lanes"));
            }
        };
        let loss = match raw.loss {
            None => 0.0,
            Some(loss) if (0.0..=1.0).contains(loss.get_ref()) => loss.into_inner(),
            Some(loss) => return Err(self.error(loss.span(), "link.loss", "must be 0.0 to 1.0")),
        };
        Ok(Link {
            between: raw.between.into_inner().map(Spanned::into_inner),
            rate: raw.rate.unwrap_or(Rate::Edr),
            width,
            delay_ns: raw.delay_ns.unwrap_or(5),
            loss,
        })
    }

    /// Names become parts of file names and of command lines: keep them simple.
    fn name(&self, key: &str, name: &Spanned<String>) -> Checked<String> {
        let text = name.get_ref();
        let simple = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if text.is_empty() || text.len() > 32 || !text.chars().all(simple) {
            let reason = format!("{text:?} is not a name: 1 to 32 letters, digits, '-' or '_'");
            return Err(self.error(name.span(), key, reason));
        }
        Ok(text.clone())
    }
}

/// Understands the name of a link layer.
///
/// # Errors
/// What is possible, as text.
pub fn parse_port_type(text: &str) -> Result<PortType, String> {
    match text {
        "ib" => Ok(PortType::Ib),
        other => Err(format!("{other:?} is not supported, only \"ib\"")),
    }
}

/// `512M`, `2G`, `2GiB`, `1048576`: powers of 1024.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A GUID that stays the same as long as host and adapter keep their names (FNV-1a).
fn derived_guid(host: &str, hca: &str) -> u64 {
    let hash = format!("{host}/{hca}").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    GUID_OUI << 40 | hash & 0xff_ffff_ffff
}

fn socket_name(host: &str, hca: &str) -> String {
    format!("{host}-{hca}.sock")
}

fn guid_text<S: serde::Serializer>(guid: &u64, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{guid:#018x}"))
}

fn port_type_text<S: serde::Serializer>(port_type: &PortType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(match port_type {
        PortType::Ib => "ib",
    })
}

#[cfg(test)]
mod tests;
