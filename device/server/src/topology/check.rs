//! Hosts, adapters and what concerns all of the fabric: each value checked, each error with its place.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use hca_model::Routing;
use hca_model::personality::{Personality, PortKind};
use hca_model::timing::Profile;
use toml::Spanned;

use crate::pci::rom::Rom;

use super::faults::{self, Keys, Scalar, Scripted, Wrong};
use super::joint;
use super::raw::{RawChecker, RawFabric, RawHca, RawHost, RawTime, RawTopology};
use super::{
    Checker, Fabric, Hca, Host, Link, ManagementKey, Nic, Outside, Process, SubnetManager, Switch, Time,
    Topology, TopologyError, first_kind, named_adapter, parse_personality,
};

/// Organization part of derived GUIDs (an OUI of Mellanox).
const GUID_OUI: u64 = 0x02c9;
/// Most processors the launcher may give one guest.
const MAX_CPUS: u32 = 255;
/// What objects may cost by default, and at most: 2 GiB, enough for half a million queue pairs.
pub(super) const DEFAULT_ICM: u64 = 2 << 30;
/// Events of an adapter that may wait: four for each of its queue pairs, unless the topology says otherwise. Fewer than 1024 are those of a
/// few queue pairs; of more than 2^22, to count them takes longer than a round of the engine.
const DEFAULT_EVENTS: usize = 1 << 20;
const EVENTS: RangeInclusive<u64> = 1 << 10..=1 << 22;
/// Bytes of an adapter's packets in a capture, unless the topology says otherwise.
pub(super) const DEFAULT_CAPTURE: u64 = 1 << 30;
/// Least that makes sense: a driver comes up.
const LEAST_ICM: u64 = 4 << 20;
/// Longest training of a link that makes sense: a minute.
const MAX_TRAINING_MS: u64 = 60_000;

/// Checks the text of a file.
pub(super) fn parse(file: &str, text: &str) -> Checked<Topology> {
    let source = Source { file, text };
    let raw: RawTopology = toml::from_str(text).map_err(|e| source.syntax(&e))?;
    source.check(raw)
}

/// What was found so far.
#[derive(Default)]
pub(super) struct Nodes {
    pub(super) processes: Vec<Process>,
    pub(super) hosts: Vec<Host>,
    pub(super) switches: Vec<Switch>,
    pub(super) outsides: Vec<Outside>,
    /// Names of hosts, switches and outsides, with which of them they are.
    pub(super) names: BTreeMap<String, &'static str>,
    /// The place of each host among hosts, and of each switch among switches.
    places: BTreeMap<String, usize>,
    /// Where each of them begins, in the order of the file.
    pub(super) lines: Vec<(String, Range<usize>)>,
    guids: BTreeMap<u64, String>,
    /// Sockets and devices that this process makes or takes, with whose they are.
    pub(super) sockets: BTreeMap<String, String>,
    /// Sockets of SimBricks.
    pub(super) simbricks: joint::Sockets,
}

impl Nodes {
    /// The host of that name.
    pub(super) fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.get(*self.places.get(name)?).filter(|host| host.name == name)
    }

    /// The switch of that name.
    pub(super) fn switch(&self, name: &str) -> Option<&Switch> {
        self.switches.get(*self.places.get(name)?).filter(|switch| switch.name == name)
    }

    /// The process of the host or switch of that name.
    pub(super) fn process_of(&self, node: &str) -> Option<&str> {
        super::process_of(self.host(node), || self.switch(node))
    }
}

/// The text being checked, for error messages.
pub(super) struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

pub(super) type Checked<T> = Result<T, TopologyError>;

impl Source<'_> {
    pub(super) fn line(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or(self.text);
        before.bytes().filter(|&b| b == b'\n').count() + 1
    }

    pub(super) fn error(&self, at: Range<usize>, key: &str, reason: impl fmt::Display) -> TopologyError {
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
        let profile = self.profile("profile", raw.profile)?;
        let processes = self.processes(raw.process)?;
        let mut nodes = Nodes { processes, ..Nodes::default() };
        for host in raw.host {
            let at = host.span();
            let host = self.host(host.into_inner(), at, &mut nodes)?;
            nodes.places.insert(host.name.clone(), nodes.hosts.len());
            nodes.hosts.push(host);
        }
        if nodes.hosts.iter().all(|h| h.hcas.is_empty()) {
            let reason = "no adapter: at least one [[host]] with one [[host.hca]] is needed";
            return Err(self.error(0..0, "host", reason));
        }
        for switch in raw.switch {
            let at = switch.span();
            let switch = self.switch(switch.into_inner(), at, &mut nodes)?;
            nodes.places.insert(switch.name.clone(), nodes.switches.len());
            nodes.switches.push(switch);
        }
        for outside in raw.outside {
            let at = outside.span();
            let outside = self.outside(outside.into_inner(), at, &mut nodes)?;
            nodes.outsides.push(outside);
        }
        let links = self.links(raw.link, &nodes)?;
        self.joined(&nodes, &links)?;
        if !nodes.switches.is_empty() {
            self.reach(&nodes, &links)?;
        }
        let fabric = self.fabric(raw.fabric, &nodes, &links)?;
        let partitions = self.partitions(raw.partition, &nodes, &fabric)?;
        let Nodes { processes, hosts, switches, outsides, .. } = nodes;
        let links: Vec<Link> = links.into_iter().map(|(_, link)| link).collect();
        let isolation = self.isolation(raw.isolation, &processes, &links)?;
        let time = self.time(raw.time)?;
        let checker = self.checker(raw.checker)?;
        let faults = self.faults(raw.fault, &hosts, fabric.seed)?;
        Ok(Topology {
            profile,
            isolation,
            time,
            checker,
            fabric,
            processes,
            hosts,
            switches,
            outsides,
            links,
            partitions,
            faults,
        })
    }

    /// An option that not every kind of adapter has: off unless it is set, and refused with `reason` where the kind has none of it.
    fn option(
        &self,
        (key, raw): (&str, Option<Spanned<bool>>),
        has: bool,
        reason: fmt::Arguments<'_>,
    ) -> Checked<bool> {
        match raw {
            Some(on) if *on.get_ref() && !has => Err(self.error(on.span(), key, reason)),
            on => Ok(on.is_some_and(Spanned::into_inner)),
        }
    }

    /// The name of a timing profile, if there is one.
    fn profile(&self, key: &str, raw: Option<Spanned<String>>) -> Checked<Option<String>> {
        let Some(name) = raw else { return Ok(None) };
        if Profile::named(name.get_ref()).is_none() {
            let names: Vec<_> = Profile::names().collect();
            let reason = format!("there is no profile {:?}, only {}", name.get_ref(), names.join(", "));
            return Err(self.error(name.span(), key, reason));
        }
        Ok(Some(name.into_inner()))
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
        if let Some(budget) = raw.budget_ms {
            if !(1..=1_000).contains(budget.get_ref()) {
                return Err(self.error(budget.span(), "time.budget_ms", "must be 1 to 1000 milliseconds"));
            }
            time.budget_ms = budget.into_inner();
        }
        time.mode = raw.mode.map(Spanned::into_inner).unwrap_or_default();
        Ok(time)
    }

    fn checker(&self, raw: RawChecker) -> Checked<Checker> {
        let mut checker = Checker { enabled: raw.enabled.unwrap_or_default(), ..Checker::default() };
        if let Some(patience) = raw.patience_ms {
            if !(1..=3_600_000).contains(patience.get_ref()) {
                let reason = "must be 1 to 3600000 milliseconds";
                return Err(self.error(patience.span(), "checker.patience_ms", reason));
            }
            checker.patience_ms = patience.into_inner();
        }
        Ok(checker)
    }

    fn faults(
        &self,
        raw: Vec<Spanned<BTreeMap<String, Spanned<Scalar>>>>,
        hosts: &[Host],
        seed: u64,
    ) -> Checked<Vec<Scripted>> {
        let mut all: Vec<Scripted> = Vec::new();
        let mut of_each: BTreeMap<String, usize> = BTreeMap::new();
        for (number, raw) in raw.into_iter().enumerate() {
            let at = raw.span();
            let raw = raw.into_inner();
            let keys: Keys = raw.iter().map(|(key, value)| (key.clone(), value.get_ref().clone())).collect();
            let error = |Wrong { key, reason }: Wrong| {
                let at = raw.get(&key).map_or(at.clone(), Spanned::span);
                self.error(at, &format!("fault.{key}"), reason)
            };
            let (name, fault) = faults::parse(&keys, faults::seed(seed, number as u64)).map_err(error)?;
            let at =
                named_adapter(hosts, &name).map_err(|reason| error(Wrong { key: "at".into(), reason }))?;
            let count = of_each.entry(at.clone()).or_default();
            *count += 1;
            if *count > faults::MOST {
                let reason = format!("an adapter has {} faults at most", faults::MOST);
                return Err(error(Wrong { key: "at".into(), reason }));
            }
            all.push(Scripted { keys, at, fault });
        }
        Ok(all)
    }

    fn fabric(&self, raw: RawFabric, nodes: &Nodes, links: &[(Range<usize>, Link)]) -> Checked<Fabric> {
        if let Some(time) = raw.training_ms.as_ref().filter(|time| *time.get_ref() > MAX_TRAINING_MS) {
            let reason = format!("must be 0 to {MAX_TRAINING_MS} milliseconds");
            return Err(self.error(time.span(), "fabric.training_ms", reason));
        }
        let named = raw.subnet_manager.as_ref().map(Spanned::span);
        let subnet_manager = raw.subnet_manager.map(Spanned::into_inner).unwrap_or_default();
        if subnet_manager == SubnetManager::Builtin
            && let Some((at, ends)) = nodes.spanning(links, |link| link.simbricks.is_none())
        {
            let reason = format!(
                "the built-in subnet manager reaches one process only, and the link between {ends} joins two; \
                 for guests say subnet_manager = \"none\" and run OpenSM in one, for softhca sim simbricks = \"listen:PATH\" of the link"
            );
            return Err(self.error(named.unwrap_or(at), "fabric.subnet_manager", reason));
        }
        Ok(Fabric {
            subnet_manager,
            m_key: self.management_key(raw.m_key, subnet_manager)?,
            routing: self.routing(raw.routing)?,
            seed: raw.seed.unwrap_or(1),
            training_ms: raw.training_ms.map(Spanned::into_inner),
            tunnel: self.tunnel(raw.tunnel_key_file, raw.tunnel_datagram, raw.tunnel_timeout_ms)?,
        })
    }

    fn routing(&self, raw: Option<Spanned<String>>) -> Checked<Routing> {
        match raw.as_ref().map(|text| text.get_ref().as_str()) {
            None | Some("min-hop") => Ok(Routing::MinHop),
            Some("up-down") => Ok(Routing::UpDown),
            Some(other) => {
                let reason = format!("{other:?} is neither \"min-hop\" nor \"up-down\"");
                Err(self.error(raw.map_or(0..0, |raw| raw.span()), "fabric.routing", reason))
            }
        }
    }

    fn management_key(&self, raw: Option<Spanned<String>>, manager: SubnetManager) -> Checked<ManagementKey> {
        let Some(text) = raw else { return Ok(ManagementKey::default()) };
        let wrong = |reason: &str| self.error(text.span(), "fabric.m_key", reason.to_owned());
        if manager == SubnetManager::None {
            return Err(wrong("only the built-in subnet manager has a key; tell another one in its own way"));
        }
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        match text.get_ref().as_str() {
            "random" => Ok(ManagementKey::Random),
            "none" => Ok(ManagementKey::None),
            other => match number(other).filter(|key| *key != 0) {
                Some(key) => Ok(ManagementKey::Given(key)),
                None => Err(wrong("must be \"random\", \"none\" or a hexadecimal number such as \"0x1234\"")),
            },
        }
    }

    fn host(&self, raw: RawHost, at: Range<usize>, nodes: &mut Nodes) -> Checked<Host> {
        let name = self.name("host.name", &raw.name)?;
        if let Some(other) = nodes.names.insert(name.clone(), "host") {
            let reason = format!("two nodes are called {name:?}: a {other} and this host");
            return Err(self.error(raw.name.span(), "host.name", reason));
        }
        nodes.lines.push((name.clone(), at.clone()));
        let process = self.process_of("host.process", raw.process, at, &nodes.processes)?;
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
        let hugepages_bytes = self.hugepages(raw.hugepages, memory_bytes)?;
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
            self.own_guid("host.hca.guid", &span, hca.guid, id.clone(), nodes)?;
            if let Some(other) = nodes.sockets.insert(hca.socket.clone(), id.clone()) {
                let reason = format!("{other} and {id} would share the socket {}", hca.socket);
                return Err(self.error(span, "host.hca.name", reason));
            }
            if let Some(place) = &hca.simbricks
                && let Some(other) = nodes.simbricks.take(&place.path, id.clone(), None)
            {
                let reason = format!("{other} and {id} would share the socket {}", place.path.display());
                return Err(self.error(span, "host.hca.simbricks", reason));
            }
            hcas.push(hca);
        }
        let mut nics: Vec<Nic> = Vec::new();
        for raw in raw.nic {
            let span = raw.span();
            let nic = self.nic(raw.into_inner(), &name, nics.len())?;
            if hcas.iter().any(|h| h.name == nic.name) || nics.iter().any(|n| n.name == nic.name) {
                let reason = format!("host {name:?} has two devices called {:?}", nic.name);
                return Err(self.error(span, "host.nic.name", reason));
            }
            let id = format!("{name}/{}", nic.name);
            for socket in [&nic.local, &nic.remote] {
                let socket = socket.display().to_string();
                if let Some(other) = nodes.sockets.insert(socket.clone(), id.clone()) {
                    let reason = format!("{other} and {id} would share the socket {socket}");
                    return Err(self.error(span, "host.nic.name", reason));
                }
            }
            nics.push(nic);
        }
        Ok(Host {
            name,
            process,
            memory,
            memory_bytes,
            hugepages_bytes,
            cpus,
            iommu: raw.iommu,
            hotplug: raw.hotplug,
            may_manage: raw.may_manage.unwrap_or(true),
            hcas,
            nics,
        })
    }

    /// The guest needs the rest: what it boots from lies in memory, too.
    fn hugepages(&self, raw: Option<Spanned<String>>, memory: u64) -> Checked<u64> {
        const PAGE: u64 = 2 << 20;
        let Some(text) = raw else { return Ok(0) };
        let wrong = |reason: String| self.error(text.span(), "host.hugepages", reason);
        match parse_size(text.get_ref()) {
            None => Err(wrong(format!("{:?} is not a size such as \"512M\" or \"1G\"", text.get_ref()))),
            Some(bytes) if !bytes.is_multiple_of(PAGE) => Err(wrong("is not a multiple of 2M".to_owned())),
            Some(bytes) if bytes > memory / 2 => {
                Err(wrong(format!("more than half of the host's memory of {} MiB", memory >> 20)))
            }
            Some(bytes) => Ok(bytes),
        }
    }

    fn hca(&self, raw: RawHca, host: &str, index: usize) -> Checked<Hca> {
        let name = match raw.name {
            Some(name) => self.name("host.hca.name", &name)?,
            None => format!("hca{index}"),
        };
        let guid = self.guid("host.hca.guid", raw.guid, &format!("{host}/{name}"))?;
        let personality = match raw.personality {
            None => Personality::default_kind(),
            Some(text) => parse_personality(text.get_ref())
                .map_err(|reason| self.error(text.span(), "host.hca.personality", reason))?,
        };
        let profile = self.profile("host.hca.profile", raw.profile)?;
        let port_type = match raw.port_type {
            None => first_kind(&personality),
            Some(text) => {
                let kind = self.kind("host.hca.port_type", &text)?;
                if !personality.ports.iter().all(|port| port.kinds.contains(&kind)) {
                    return Err(self.error(text.span(), "host.hca.port_type", no_port(&personality)));
                }
                kind
            }
        };
        let wrapped_keys = self.option(
            ("host.hca.wrapped_keys", raw.wrapped_keys),
            personality.encrypts(),
            format_args!("a {} has no encryption, so no keys of it", personality.name),
        )?;
        let memory_page_faults = self.option(
            ("host.hca.memory_page_faults", raw.memory_page_faults),
            personality.pages_by_memory(),
            format_args!("page faults of a {} name queues only", personality.name),
        )?;
        let icm_bytes = match raw.icm.as_ref().map(|text| (text.span(), parse_size(text.get_ref()))) {
            None => DEFAULT_ICM,
            Some((_, Some(bytes))) if (LEAST_ICM..=DEFAULT_ICM).contains(&bytes) => bytes,
            Some((span, _)) => {
                let reason = "must be a size from \"4M\" to \"2G\"";
                return Err(self.error(span, "host.hca.icm", reason));
            }
        };
        let capture_bytes = match raw.capture.as_ref().map(|text| (text.span(), parse_size(text.get_ref()))) {
            None => DEFAULT_CAPTURE,
            Some((_, Some(bytes))) => bytes,
            Some((span, None)) => {
                let reason = "must be a size such as \"64M\"; \"0\" keeps its packets out of captures";
                return Err(self.error(span, "host.hca.capture", reason));
            }
        };
        let events = match raw.events.as_ref().map(|number| (number.span(), *number.get_ref())) {
            None => DEFAULT_EVENTS,
            Some((_, number)) if EVENTS.contains(&number) => number as usize,
            Some((span, _)) => {
                let reason = format!("must be {} to {}", EVENTS.start(), EVENTS.end());
                return Err(self.error(span, "host.hca.events", reason));
            }
        };
        let rom = match raw.rom {
            None => None,
            Some(text) => {
                // Files named in the file are beside it.
                let folder = Path::new(self.file).parent().unwrap_or(Path::new(""));
                let rom = Rom::read(&folder.join(text.get_ref()));
                Some(rom.map_err(|reason| self.error(text.span(), "host.hca.rom", reason))?)
            }
        };
        let simbricks = match &raw.simbricks {
            None => None,
            Some(text) => {
                Some(self.place("host.hca.simbricks", text.get_ref(), text.span(), "the adapter does")?)
            }
        };
        let pcie_latency_ns = match raw.pcie_latency_ns {
            Some(ns) if simbricks.is_none() || *ns.get_ref() == 0 => {
                let reason = "must be 1 or more, of an adapter with simbricks";
                return Err(self.error(ns.span(), "host.hca.pcie_latency_ns", reason));
            }
            ns => ns.map(Spanned::into_inner),
        };
        let (socket, blueflame) = (socket_name(host, &name), raw.blueflame);
        Ok(Hca {
            name,
            guid,
            personality,
            profile,
            port_type,
            blueflame,
            wrapped_keys,
            memory_page_faults,
            diagnoses: raw.diagnoses,
            icm_bytes,
            capture_bytes,
            events,
            rom,
            socket,
            simbricks,
            pcie_latency_ns,
        })
    }

    /// A GUID of the file, or the one derived from the node's name.
    pub(super) fn guid(&self, key: &str, raw: Option<Spanned<String>>, id: &str) -> Checked<u64> {
        let Some(text) = raw else { return Ok(derived_guid(id)) };
        text.get_ref()
            .strip_prefix("0x")
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .filter(|&guid| guid != 0)
            .ok_or_else(|| {
                let reason = format!("{:?} is not a GUID such as \"0x0002c9030005a1b2\"", text.get_ref());
                self.error(text.span(), key, reason)
            })
    }

    /// Notes the GUID of a node, which no other may have.
    pub(super) fn own_guid(
        &self,
        key: &str,
        at: &Range<usize>,
        guid: u64,
        id: String,
        nodes: &mut Nodes,
    ) -> Checked<()> {
        match nodes.guids.insert(guid, id.clone()) {
            None => Ok(()),
            Some(other) => {
                let reason = format!("{other} and {id} have the same GUID {guid:#018x}");
                Err(self.error(at.clone(), key, reason))
            }
        }
    }

    /// Names become parts of file names and of command lines: keep them simple.
    pub(super) fn name(&self, key: &str, name: &Spanned<String>) -> Checked<String> {
        let text = name.get_ref();
        let simple = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if text.is_empty() || text.len() > 32 || !text.chars().all(simple) {
            let reason = format!("{text:?} is not a name: 1 to 32 letters, digits, '-' or '_'");
            return Err(self.error(name.span(), key, reason));
        }
        Ok(text.clone())
    }
}

/// Why a port of some kind of adapter can't be what was asked for: what it can be.
fn no_port(personality: &Personality) -> String {
    let name = |kind: &PortKind| match kind {
        PortKind::InfiniBand => "ib",
        PortKind::Ethernet => "eth",
    };
    let first = personality.ports.first();
    let kinds: Vec<_> = first.into_iter().flat_map(|port| port.kinds.iter().map(name)).collect();
    format!("a {} has no such port, only {}", personality.name, kinds.join(", "))
}

/// `512M`, `2G`, `2GiB`, `1048576`: powers of 1024.
pub(super) fn parse_size(text: &str) -> Option<u64> {
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

/// A GUID that stays the same as long as the node keeps its name, `host/hca` or `switch` (FNV-1a).
pub(super) fn derived_guid(id: &str) -> u64 {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    GUID_OUI << 40 | hash & 0xff_ffff_ffff
}

pub(super) fn socket_name(host: &str, hca: &str) -> String {
    format!("{host}-{hca}.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_there_is_not() {
        let whole = Personality::default_kind();
        let mut ports = whole.ports.clone();
        ports.iter_mut().for_each(|port| port.kinds = &[PortKind::Ethernet]);
        let whole = (*whole).clone();
        assert_eq!(no_port(&whole), "a connectx4 has no such port, only ib, eth");
        assert_eq!(no_port(&whole.with_ports(ports)), "a connectx4 has no such port, only eth");
    }
}
