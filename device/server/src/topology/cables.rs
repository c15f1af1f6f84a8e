//! Switches and links: which port is joined to which, and how fast.

use std::collections::BTreeMap;
use std::ops::Range;

use hca_model::link::LinkRate;
use toml::Spanned;

use super::check::{Checked, Nodes, Source};
use super::raw::{RawLink, RawSwitch};
use super::{End, Faults, Link, PortKind, Switch};

/// Ports of a switch unless told: that of a Switch-IB.
const SWITCH_PORTS: u8 = 36;
/// Most ports of a switch.
const MAX_SWITCH_PORTS: u8 = 64;
/// Lanes of an adapter's port.
const HCA_LANES: u8 = 4;
/// Longest propagation: a second is five times around the earth.
const MAX_DELAY_NS: u64 = 1_000_000_000;
/// Longest delay of a packet that is late.
const MAX_DELAY_US: u64 = 1_000_000;

/// An end as the file writes it: a switch may leave the port open.
struct Wanted {
    at: Range<usize>,
    node: Node,
}

#[derive(Clone, PartialEq, Eq)]
enum Node {
    Hca { host: String, hca: String, port: u8 },
    Switch { switch: String, port: Option<u8> },
    Outside { outside: String },
    Nic { host: String, nic: String },
}

impl Source<'_> {
    /// Checks one switch.
    pub(super) fn switch(&self, raw: RawSwitch, at: Range<usize>, nodes: &mut Nodes) -> Checked<Switch> {
        let name = self.name("switch.name", &raw.name)?;
        if let Some(other) = nodes.names.insert(name.clone(), "switch") {
            let reason = format!("two nodes are called {name:?}: a {other} and this switch");
            return Err(self.error(raw.name.span(), "switch.name", reason));
        }
        nodes.lines.push((name.clone(), at.clone()));
        let kind =
            raw.kind.as_ref().map_or(Ok(PortKind::InfiniBand), |text| self.kind("switch.type", text))?;
        let queueing = self.queueing(&raw, kind)?;
        let ports = match raw.ports {
            None => SWITCH_PORTS,
            Some(ports) if (1..=MAX_SWITCH_PORTS).contains(ports.get_ref()) => ports.into_inner(),
            Some(ports) => {
                let reason = format!("must be 1 to {MAX_SWITCH_PORTS}");
                return Err(self.error(ports.span(), "switch.ports", reason));
            }
        };
        let at_guid = raw.guid.as_ref().map_or(at.clone(), Spanned::span);
        let guid = self.guid("switch.guid", raw.guid, &name)?;
        self.own_guid("switch.guid", &at_guid, guid, name.clone(), nodes)?;
        let process = self.process_of("switch.process", raw.process, at, &nodes.processes)?;
        Ok(Switch { name, process, kind, ports, guid, queueing })
    }

    /// Checks all links. Ports that links name are taken first, the others get the lowest that is left.
    pub(super) fn links(
        &self,
        raw: Vec<Spanned<RawLink>>,
        nodes: &Nodes,
    ) -> Checked<Vec<(Range<usize>, Link)>> {
        // With where in the text that is: lines are counted for messages only.
        let mut used: BTreeMap<End, usize> = BTreeMap::new();
        let mut wanted = Vec::new();
        for link in &raw {
            let between = &link.get_ref().between;
            let [a, b] = between.get_ref().each_ref().map(|end| self.wanted(end, nodes));
            let (a, b) = (a?, b?);
            self.different(&a, &b)?;
            for end in [&a, &b] {
                let taken = match end.node.clone() {
                    Node::Hca { host, hca, port } => End::Hca { host, hca, port },
                    Node::Switch { switch, port: Some(port) } => End::Switch { switch, port },
                    Node::Switch { port: None, .. } => continue,
                    Node::Outside { outside } => End::Outside { outside },
                    Node::Nic { host, nic } => End::Nic { host, nic },
                };
                if let Some(other) = used.insert(taken.clone(), end.at.start) {
                    let other = self.line(other);
                    let what = match taken {
                        End::Hca { host, hca, port } => format!("port {port} of {host}/{hca}"),
                        End::Switch { switch, port } => format!("port {port} of switch {switch}"),
                        End::Outside { .. } | End::Nic { .. } => taken.to_string(),
                    };
                    let reason = format!("{what} is already linked in line {other}");
                    return Err(self.error(end.at.clone(), "link.between", reason));
                }
            }
            wanted.push([a, b]);
        }
        let mut links = Vec::new();
        for (raw, [a, b]) in raw.into_iter().zip(wanted) {
            let at = raw.get_ref().between.span();
            let between = [self.port(a, nodes, &mut used)?, self.port(b, nodes, &mut used)?];
            let kind = self.layers(&at, &between, nodes)?;
            let key_file = raw.get_ref().tunnel_key_file.as_ref().map(Spanned::span);
            let joint = raw.get_ref().simbricks.as_ref().map(Spanned::span);
            let link = self.link(raw.into_inner(), between, kind)?;
            self.joins(&link, joint, nodes, &links)?;
            if let Some(key_file) = key_file.filter(|_| !nodes.spans(&link)) {
                let reason = "the link does not join two processes";
                return Err(self.error(key_file, "link.tunnel_key_file", reason));
            }
            links.push((at, link));
        }
        Ok(links)
    }

    /// Understands `host/hca`, its first port, `host/hca/port`, `switch`, `switch/port`, `host/nic` and `outside`.
    fn wanted(&self, end: &Spanned<String>, nodes: &Nodes) -> Checked<Wanted> {
        let text = end.get_ref().as_str();
        let refuse = |reason: String| self.error(end.span(), "link.between", reason);
        let (name, rest) = text.split_once('/').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let node = if let Some(host) = nodes.host(name) {
            let nic = |rest: &&str| host.nics.iter().any(|nic| nic.name == **rest);
            if let Some(nic) = rest.filter(nic) {
                let node = Node::Nic { host: name.into(), nic: nic.into() };
                return Ok(Wanted { at: end.span(), node });
            }
            let adapters = || {
                let names = host.hcas.iter().map(|a| &a.name).chain(host.nics.iter().map(|n| &n.name));
                let ids: Vec<_> = names.map(|device| format!("{name}/{device}")).collect();
                if ids.is_empty() { "none".into() } else { ids.join(", ") }
            };
            let Some(rest) = rest else {
                return Err(refuse(format!("{name:?} is a host; its adapters are: {}", adapters())));
            };
            let (hca, port) = rest.split_once('/').map_or((rest, None), |(hca, port)| (hca, Some(port)));
            let Some(adapter) = host.hcas.iter().find(|a| a.name == hca) else {
                return Err(refuse(format!(
                    "there is no adapter {text:?}; the adapters of {name} are: {}",
                    adapters()
                )));
            };
            let ports = adapter.personality.ports.len();
            let number = port.map_or(Some(1), |port| port.parse().ok());
            let number = number.filter(|port| (1..=ports).contains(&usize::from(*port)));
            let Some(port) = number else {
                let port = port.unwrap_or_default();
                let reason = format!("adapter {name}/{hca} has no port {port:?}; its ports are 1 to {ports}");
                return Err(refuse(reason));
            };
            Node::Hca { host: name.into(), hca: hca.into(), port }
        } else if let Some(switch) = nodes.switch(name) {
            let port = match rest {
                None => None,
                Some(rest) => {
                    let port = rest.parse().ok().filter(|port| (1..=switch.ports).contains(port));
                    Some(port.ok_or_else(|| {
                        refuse(format!(
                            "switch {name} has no port {rest:?}; its ports are 1 to {}",
                            switch.ports
                        ))
                    })?)
                }
            };
            Node::Switch { switch: name.into(), port }
        } else if nodes.outsides.iter().any(|outside| outside.name == text) {
            Node::Outside { outside: text.into() }
        } else {
            let known: Vec<_> = nodes.names.keys().map(String::as_str).collect();
            let reason = format!(
                "there is no host or switch {name:?} (host/hca, host/hca/port, switch or switch/port); there are: {}",
                known.join(", ")
            );
            return Err(refuse(reason));
        };
        Ok(Wanted { at: end.span(), node })
    }

    fn different(&self, a: &Wanted, b: &Wanted) -> Checked<()> {
        let reason = match (&a.node, &b.node) {
            (Node::Hca { host, hca, port }, Node::Hca { .. }) if a.node == b.node => {
                format!("both ends are port {port} of {host}/{hca}")
            }
            (Node::Switch { switch, .. }, Node::Switch { switch: other, .. }) if switch == other => {
                format!("a loop from switch {switch} to itself")
            }
            _ => return Ok(()),
        };
        Err(self.error(b.at.clone(), "link.between", reason))
    }

    /// The port of an end, the lowest free one if the file doesn't say.
    fn port(&self, wanted: Wanted, nodes: &Nodes, used: &mut BTreeMap<End, usize>) -> Checked<End> {
        let (switch, port) = match wanted.node {
            Node::Hca { host, hca, port } => return Ok(End::Hca { host, hca, port }),
            Node::Switch { switch, port } => (switch, port),
            Node::Outside { outside } => return Ok(End::Outside { outside }),
            Node::Nic { host, nic } => return Ok(End::Nic { host, nic }),
        };
        if let Some(port) = port {
            return Ok(End::Switch { switch, port });
        }
        let ports = nodes.switch(&switch).map_or(0, |s| s.ports);
        let free = (1..=ports)
            .map(|port| End::Switch { switch: switch.clone(), port })
            .find(|end| !used.contains_key(end));
        let Some(free) = free else {
            let reason = format!("all {ports} ports of switch {switch} are linked already");
            return Err(self.error(wanted.at, "link.between", reason));
        };
        used.insert(free.clone(), wanted.at.start);
        Ok(free)
    }

    fn link(&self, raw: RawLink, between: [End; 2], kind: PortKind) -> Checked<Link> {
        if kind == PortKind::Ethernet {
            let keys = [
                ("link.vls", raw.vls.as_ref().map(Spanned::span)),
                ("link.mtu", raw.mtu.as_ref().map(Spanned::span)),
            ];
            if let Some((key, Some(span))) = keys.into_iter().find(|(_, span)| span.is_some()) {
                let reason =
                    "is for InfiniBand; of an Ethernet port the driver sets the MTU, and lanes are not there";
                return Err(self.error(span, key, reason));
            }
        }
        let adapter = between.iter().find(|end| matches!(end, End::Hca { .. }));
        let rate = match raw.rate {
            None => LinkRate::Edr,
            Some(rate) => {
                if let (LinkRate::Hdr, Some(adapter)) = (rate.get_ref(), adapter) {
                    let reason = format!(
                        "{adapter} is an adapter that goes up to \"edr\"; \"hdr\" is for two switches"
                    );
                    return Err(self.error(rate.span(), "link.rate", reason));
                }
                rate.into_inner()
            }
        };
        let width = match raw.width {
            None => 4,
            Some(width) if !matches!(width.get_ref(), 1 | 4 | 8 | 12) => {
                return Err(self.error(width.span(), "link.width", "must be 1, 4, 8 or 12 lanes"));
            }
            Some(width) => {
                if let (HCA_LANES.., Some(adapter)) = (width.get_ref().saturating_sub(1), adapter) {
                    let reason = format!(
                        "{adapter} is an adapter with {HCA_LANES} lanes; {} are for two switches",
                        width.get_ref()
                    );
                    return Err(self.error(width.span(), "link.width", reason));
                }
                width.into_inner()
            }
        };
        let one_of = |value: Option<Spanned<u16>>, key: &str, default: u16, all: &[u16]| match value {
            None => Ok(default),
            Some(value) if all.contains(value.get_ref()) => Ok(value.into_inner()),
            Some(value) => {
                let all: Vec<_> = all.iter().map(u16::to_string).collect();
                let reason = format!("must be one of {}", all.join(", "));
                Err(self.error(value.span(), key, reason))
            }
        };
        let vls = raw.vls.map(|vls| Spanned::new(vls.span(), u16::from(*vls.get_ref())));
        let vls = one_of(vls, "link.vls", 8, &[1, 2, 4, 8])? as u8;
        let mtu = one_of(raw.mtu, "link.mtu", 4096, &[256, 512, 1024, 2048, 4096])?;
        let time = |value: Option<Spanned<u64>>, key: &str, default, max| match value {
            None => Ok(default),
            Some(value) if *value.get_ref() <= max => Ok(value.into_inner()),
            Some(value) => Err(self.error(value.span(), key, format!("must be 0 to {max}"))),
        };
        let share = |value: &Option<Spanned<f64>>, key: &str| match value {
            None => Ok(0.0),
            Some(value) if (0.0..=1.0).contains(value.get_ref()) => Ok(*value.get_ref()),
            Some(value) => Err(self.error(value.span(), key, "must be 0.0 to 1.0")),
        };
        let faults = Faults {
            loss: share(&raw.loss, "link.loss")?,
            duplicate: share(&raw.duplicate, "link.duplicate")?,
            reorder: share(&raw.reorder, "link.reorder")?,
            corrupt: share(&raw.corrupt, "link.corrupt")?,
            delay: share(&raw.delay, "link.delay")?,
            delay_us: time(raw.delay_us, "link.delay_us", 0, MAX_DELAY_US)?,
        };
        for (value, key) in [(&raw.reorder, "link.reorder"), (&raw.delay, "link.delay")] {
            if let Some(value) = value.as_ref().filter(|v| *v.get_ref() > 0.0 && faults.delay_us == 0) {
                let reason = "needs delay_us, how late a packet may be";
                return Err(self.error(value.span(), key, reason));
            }
        }
        let delay_ns = time(raw.delay_ns, "link.delay_ns", 5, MAX_DELAY_NS)?;
        let tunnel_key_file = raw.tunnel_key_file.map(|file| file.into_inner().into());
        let simbricks = self.joint(raw.simbricks.as_ref(), raw.framing.as_ref())?;
        Ok(Link {
            between,
            rate,
            width,
            delay_ns,
            vls,
            mtu,
            seed: raw.seed,
            faults,
            tunnel_key_file,
            simbricks,
        })
    }
}
