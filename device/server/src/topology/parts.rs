//! Topologies that several processes serve together.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{Context, bail};
use toml::Spanned;

use super::check::{Checked, Nodes, Source};
use super::raw::RawProcess;
use super::{End, Exit, Hca, Host, Isolation, Link, Process, Switch, Topology, TunnelSettings};

/// Datagrams that are worth their headers, and that UDP can carry over IPv4 and IPv6.
const DATAGRAM: std::ops::RangeInclusive<u16> = 512..=65_000;
/// From what a busy machine may miss to what nobody waits for.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 300..=60_000;

/// Why some topologies can't be divided further.
pub(super) const SERVED_BY_PROCESSES: &str =
    "a topology with [[process]] is served by those, each of them one process";
/// Why others can't be divided at all.
pub(super) const LEAVES: &str =
    "links to [[outside]] and [[host.nic]] are served by one process: a worker knows no path";

/// What one process serves.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The process, if there are several.
    pub process: Option<&'a Process>,
    /// Hosts in the order of the file.
    pub hosts: Vec<&'a Host>,
    /// Switches in the order of the file.
    pub switches: Vec<&'a Switch>,
    /// Links with both ends here.
    pub links: Vec<&'a Link>,
    /// Links with one end here.
    pub cuts: Vec<Cut<'a>>,
    /// Links with one end here, the other of which is not of the model.
    pub exits: Vec<Exit<'a>>,
}

/// A link that one process serves one end of.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Its place in the file, the first is 0. Both processes call the link by this number.
    pub number: u16,
    /// The link.
    pub link: &'a Link,
    /// Which end is here: 0 or 1.
    pub here: usize,
    /// Who serves the other end; `None`: another worker of this process.
    pub peer: Option<&'a Process>,
}

/// What a process of its own serves where tenants are apart ([`Isolation::Process`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worker {
    /// The adapters of that host.
    Host(String),
    /// All switches.
    Switches,
}

impl Worker {
    /// The worker of a host, or (`None`) that of the switches.
    pub fn of(host: Option<String>) -> Worker {
        host.map_or(Worker::Switches, Worker::Host)
    }

    /// The host that it serves.
    pub fn host(&self) -> Option<&str> {
        match self {
            Worker::Host(host) => Some(host),
            Worker::Switches => None,
        }
    }
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Worker::Host(host) => write!(f, "host {host}"),
            Worker::Switches => write!(f, "switches"),
        }
    }
}

impl<'a> Part<'a> {
    /// Its adapters with their hosts, in the order of the file.
    pub fn hcas(&self) -> impl Iterator<Item = (&'a Host, &'a Hca)> {
        self.hosts.iter().flat_map(|host| host.hcas.iter().map(|hca| (*host, hca)))
    }
}

impl Topology {
    /// What the named process serves; everything if the file names none.
    ///
    /// # Errors
    /// If the name is missing, unknown, or the file has no processes; the message lists those it has.
    pub fn part(&self, process: Option<&str>) -> anyhow::Result<Part<'_>> {
        let known = || self.processes.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let process = match process {
            None if self.processes.is_empty() => None,
            None => bail!("the topology is for several processes; say which one this is: {}", known()),
            Some(_) if self.processes.is_empty() => bail!("the topology has no [[process]]"),
            Some(name) => Some(
                self.processes
                    .iter()
                    .find(|p| p.name == name)
                    .with_context(|| format!("the topology has no process {name:?}; it has: {}", known()))?,
            ),
        };
        let own = process.map(|p| p.name.as_str());
        let mut part = self.cut(|node| self.process_of(node) == own)?;
        part.process = process;
        for cut in &mut part.cuts {
            let there = cut.link.between.get(1 - cut.here).and_then(|end| self.process_of(end.node()));
            let peer = self.processes.iter().find(|p| Some(p.name.as_str()) == there);
            cut.peer = Some(peer.context("a link leads to no process")?);
        }
        Ok(part)
    }

    /// All of it, as if one process served it.
    ///
    /// # Errors
    /// There are more links than can be numbered.
    pub fn whole(&self) -> anyhow::Result<Part<'_>> {
        self.cut(|_| true)
    }

    /// What a worker serves.
    ///
    /// # Errors
    /// There are more links than can be numbered.
    pub fn part_of(&self, worker: &Worker) -> anyhow::Result<Part<'_>> {
        self.cut(|node| match worker {
            Worker::Host(host) => node == host,
            Worker::Switches => self.switches.iter().any(|switch| switch.name == node),
        })
    }

    /// The workers of a topology whose tenants are apart, in the order of the file, the switches last.
    pub fn workers(&self) -> Vec<Worker> {
        let hosts = self.hosts.iter().filter(|host| !host.hcas.is_empty());
        let switches = (!self.switches.is_empty()).then_some(Worker::Switches);
        hosts.map(|host| Worker::Host(host.name.clone())).chain(switches).collect()
    }

    /// The nodes that are here, and their links.
    fn cut(&self, is_here: impl Fn(&str) -> bool) -> anyhow::Result<Part<'_>> {
        let mut part = Part {
            process: None,
            hosts: self.hosts.iter().filter(|h| is_here(&h.name)).collect(),
            switches: self.switches.iter().filter(|s| is_here(&s.name)).collect(),
            links: Vec::new(),
            cuts: Vec::new(),
            exits: Vec::new(),
        };
        for (number, link) in self.links.iter().enumerate() {
            if link.leaves() {
                part.exits.extend(self.exit(number, link, &is_here)?);
                continue;
            }
            let here = match link.between.each_ref().map(|end| is_here(end.node())) {
                [true, true] => {
                    part.links.push(link);
                    continue;
                }
                [true, false] => 0,
                [false, true] => 1,
                [false, false] => continue,
            };
            let number = u16::try_from(number).context("more links than can be numbered")?;
            part.cuts.push(Cut { number, link, here, peer: None });
        }
        Ok(part)
    }

    /// A link that leaves the model, if its end in it is here.
    fn exit<'a>(
        &'a self,
        number: usize,
        link: &'a Link,
        is_here: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Option<Exit<'a>>> {
        let mut ends = link.between.iter().enumerate();
        let Some((here, end)) = ends.find(|(_, end)| !end.is_outside()) else { return Ok(None) };
        if !is_here(end.node()) {
            return Ok(None);
        }
        let there = link.between.get(1 - here).context("a link has two ends")?;
        let medium = match there {
            End::Outside { outside } => {
                self.outsides.iter().find(|known| known.name == *outside).map(|known| known.medium.clone())
            }
            End::Nic { host, nic } => {
                let host = self.hosts.iter().find(|known| known.name == *host);
                host.and_then(|host| host.nics.iter().find(|known| known.name == *nic))
                    .map(|nic| nic.medium())
            }
            End::Hca { .. } | End::Switch { .. } => None,
        };
        let number = u16::try_from(number).context("more links than can be numbered")?;
        let (name, medium) = (there.to_string(), medium.context("a link leads to nothing")?);
        Ok(Some(Exit { number, link, here, name, medium }))
    }
}

impl Nodes {
    /// The first of those links between two processes: where it is, and its ends.
    pub(super) fn spanning(
        &self,
        links: &[(Range<usize>, Link)],
        which: impl Fn(&Link) -> bool,
    ) -> Option<(Range<usize>, String)> {
        let (at, link) = links.iter().find(|(_, link)| which(link) && self.spans(link))?;
        let [a, b] = &link.between;
        Some((at.clone(), format!("{a} and {b}")))
    }

    /// Whether a link is between two processes.
    pub(super) fn spans(&self, link: &Link) -> bool {
        if link.leaves() {
            return false;
        }
        let [a, b] = link.between.each_ref().map(|end| self.process_of(end.node()));
        a != b
    }
}

impl Source<'_> {
    /// Checks the processes.
    pub(super) fn processes(&self, raw: Vec<RawProcess>) -> Checked<Vec<Process>> {
        let mut processes: Vec<Process> = Vec::new();
        for raw in raw {
            let name = self.name("process.name", &raw.name)?;
            if processes.iter().any(|p| p.name == name) {
                let reason = format!("two processes are called {name:?}");
                return Err(self.error(raw.name.span(), "process.name", reason));
            }
            let Some(raw) = raw.address else {
                processes.push(Process { name, address: None });
                continue;
            };
            let refuse = |reason: String| self.error(raw.span(), "process.address", reason);
            let text = raw.get_ref();
            let address = text.parse::<SocketAddr>().ok().filter(|a| {
                // The others have to know where to send.
                a.port() != 0 && !a.ip().is_unspecified() && !a.ip().is_multicast()
            });
            let Some(address) = address else {
                return Err(refuse(format!(
                    "{text:?} is not an address such as \"192.0.2.1:4791\" or \"[2001:db8::1]:4791\""
                )));
            };
            for other in &processes {
                let Some(taken) = other.address else { continue };
                if taken == address {
                    let both = format!("{} and {name} have the same address {address}", other.name);
                    return Err(refuse(both));
                }
                if taken.is_ipv4() != address.is_ipv4() {
                    let both = format!("{} and {name} are one IPv4, one IPv6: they can't talk", other.name);
                    return Err(refuse(both));
                }
            }
            processes.push(Process { name, address: Some(address) });
        }
        Ok(processes)
    }

    /// The process of a host or switch: one of those the file has, and none if it has none.
    pub(super) fn process_of(
        &self,
        key: &str,
        raw: Option<Spanned<String>>,
        at: Range<usize>,
        processes: &[Process],
    ) -> Checked<Option<String>> {
        let known = || processes.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        match raw {
            None if processes.is_empty() => Ok(None),
            None => {
                let reason = format!("which process is it in? There are: {}", known());
                Err(self.error(at, key, reason))
            }
            Some(name) if processes.iter().any(|p| p.name == *name.get_ref()) => Ok(Some(name.into_inner())),
            Some(name) if processes.is_empty() => {
                let reason = format!("there is no process {:?}, the file has no [[process]]", name.get_ref());
                Err(self.error(name.span(), key, reason))
            }
            Some(name) => {
                let reason = format!("there is no process {:?}; there are: {}", name.get_ref(), known());
                Err(self.error(name.span(), key, reason))
            }
        }
    }

    /// Checks who is kept apart.
    pub(super) fn isolation(
        &self,
        raw: Option<Spanned<Isolation>>,
        processes: &[Process],
        links: &[Link],
    ) -> Checked<Isolation> {
        let Some(raw) = raw else { return Ok(Isolation::default()) };
        if *raw.get_ref() == Isolation::Process && !processes.is_empty() {
            return Err(self.error(raw.span(), "isolation", SERVED_BY_PROCESSES));
        }
        if *raw.get_ref() == Isolation::Process && links.iter().any(Link::leaves) {
            return Err(self.error(raw.span(), "isolation", LEAVES));
        }
        Ok(raw.into_inner())
    }

    /// Checks what tunnels have in common.
    pub(super) fn tunnel(
        &self,
        key_file: Option<Spanned<String>>,
        datagram: Option<Spanned<u16>>,
        timeout_ms: Option<Spanned<u64>>,
    ) -> Checked<TunnelSettings> {
        let mut settings = TunnelSettings {
            key_file: key_file.map(|file| file.into_inner().into()),
            ..TunnelSettings::default()
        };
        if let Some(datagram) = datagram {
            if !DATAGRAM.contains(datagram.get_ref()) {
                let reason = format!("must be {} to {} bytes", DATAGRAM.start(), DATAGRAM.end());
                return Err(self.error(datagram.span(), "fabric.tunnel_datagram", reason));
            }
            settings.datagram = datagram.into_inner();
        }
        if let Some(timeout) = timeout_ms {
            if !TIMEOUT_MS.contains(timeout.get_ref()) {
                let reason = format!("must be {} to {} milliseconds", TIMEOUT_MS.start(), TIMEOUT_MS.end());
                return Err(self.error(timeout.span(), "fabric.tunnel_timeout_ms", reason));
            }
            settings.timeout_ms = timeout.into_inner();
        }
        Ok(settings)
    }
}
