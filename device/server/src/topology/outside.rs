//! What is at the end of a link and not of the model: other software, and network cards of guests.

use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;
use toml::Spanned;

use super::check::{Checked, Nodes, Source, derived_guid};
use super::raw::{RawNic, RawOutside};
use super::{End, Link, PortKind};
use crate::outside::address::{Address, Medium, Stream, Way};
use crate::simbricks::Role;

/// Pause between two attempts to connect, unless told, in milliseconds.
const RECONNECT_MS: u64 = 1000;
/// From what a guest that boots does not notice to what nobody waits for.
const RECONNECT_RANGE: std::ops::RangeInclusive<u64> = 10..=60_000;
/// What virtio-net takes (virtio 1.2, 5.1.4).
const MTU: std::ops::RangeInclusive<u16> = 68..=65_535;
/// How other software is reached.
const KINDS: [&str; 4] = ["dgram", "stream", "tap", "simbricks"];
/// Longest name of an interface (`IFNAMSIZ` of Linux, with its end).
const MAX_INTERFACE: usize = 15;

/// Other software that speaks Ethernet, at the end of one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outside {
    /// Unique name among hosts, switches and these.
    pub name: String,
    /// How it is reached.
    #[serde(flatten)]
    pub medium: Medium,
}

/// A network card of a host that is not of the model: QEMU's `virtio-net`, which the launcher of guests makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Name, unique among the adapters and cards of its host.
    pub name: String,
    /// Hardware address, as in `52:54:00:12:34:56`.
    pub mac: String,
    /// Its MTU, if not what its driver takes.
    pub mtu: Option<u16>,
    /// The datagram socket at which it takes frames, in the run directory.
    pub local: PathBuf,
    /// The datagram socket to which it sends them: the server's.
    pub remote: PathBuf,
}

/// A link that leaves the model, as whoever serves its other end sees it.
#[derive(Clone, Debug)]
pub struct Exit<'a> {
    /// Its place in the file, the first is 0.
    pub number: u16,
    /// The link.
    pub link: &'a Link,
    /// Which end is of the model: 0 or 1.
    pub here: usize,
    /// What is at the other: a name of the file.
    pub name: String,
    /// How that is reached.
    pub medium: Medium,
}

impl Nic {
    /// How the server reaches it.
    pub fn medium(&self) -> Medium {
        let [local, remote] = [&self.remote, &self.local].map(|path| Address::Unix(path.clone()));
        Medium::Dgram { local, remote }
    }
}

impl Source<'_> {
    /// Checks the name of a link layer of a port or switch.
    pub(super) fn kind(&self, key: &str, text: &Spanned<String>) -> Checked<PortKind> {
        super::parse_port_type(text.get_ref()).map_err(|reason| self.error(text.span(), key, reason))
    }

    /// Checks one network card.
    pub(super) fn nic(&self, raw: RawNic, host: &str, index: usize) -> Checked<Nic> {
        let name = match raw.name {
            Some(name) => self.name("host.nic.name", &name)?,
            None => format!("nic{index}"),
        };
        let mac = match raw.mac {
            None => derived_mac(&format!("{host}/{name}")),
            Some(text) if is_mac(text.get_ref()) => text.into_inner().to_ascii_lowercase(),
            Some(text) => {
                let reason = format!(
                    "{:?} is not the hardware address of one station, such as \"52:54:00:12:34:56\"",
                    text.get_ref()
                );
                return Err(self.error(text.span(), "host.nic.mac", reason));
            }
        };
        if let Some(mtu) = raw.mtu.as_ref().filter(|mtu| !MTU.contains(mtu.get_ref())) {
            let reason = format!("must be {} to {}", MTU.start(), MTU.end());
            return Err(self.error(mtu.span(), "host.nic.mtu", reason));
        }
        let path = |end: &str| PathBuf::from(format!("{host}-{name}.{end}"));
        let (local, remote) = (path("peer"), path("net"));
        Ok(Nic { name, mac, mtu: raw.mtu.map(Spanned::into_inner), local, remote })
    }

    /// Checks one outside.
    pub(super) fn outside(&self, raw: RawOutside, at: Range<usize>, nodes: &mut Nodes) -> Checked<Outside> {
        let name = self.name("outside.name", &raw.name)?;
        if let Some(other) = nodes.names.insert(name.clone(), "outside") {
            let reason = format!("two nodes are called {name:?}: a {other} and this outside");
            return Err(self.error(raw.name.span(), "outside.name", reason));
        }
        nodes.lines.push((name.clone(), at.clone()));
        let RawOutside { name: _, kind, local, remote, listen, connect, reconnect_ms, interface } = raw;
        let known = kind.get_ref().as_str();
        // What each kind has; whatever else there is would be ignored.
        let reconnect_at = reconnect_ms.as_ref().map(Spanned::span);
        let sockets: &[&str] = &["stream", "simbricks"];
        for (key, of, there) in [
            ("outside.local", &["dgram"][..], local.as_ref().map(Spanned::span)),
            ("outside.remote", &["dgram"], remote.as_ref().map(Spanned::span)),
            ("outside.listen", sockets, listen.as_ref().map(Spanned::span)),
            ("outside.connect", sockets, connect.as_ref().map(Spanned::span)),
            ("outside.reconnect_ms", &["stream"], reconnect_at.clone()),
            ("outside.interface", &["tap"], interface.as_ref().map(Spanned::span)),
        ] {
            if let Some(span) = there.filter(|_| !of.contains(&known) && KINDS.contains(&known)) {
                let of = of.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(" or ");
                return Err(self.error(span, key, format!("is for kind = {of}, and this is a {known:?}")));
            }
        }
        let needed = |what: &str| self.error(at.clone(), "outside", format!("kind = {known:?} needs {what}"));
        let medium = match known {
            "dgram" => {
                let (Some(local), Some(remote)) = (local, remote) else {
                    return Err(needed("local and remote"));
                };
                let at = remote.span();
                let (local, remote) =
                    (self.address("outside.local", local)?, self.target("outside.remote", remote)?);
                if !local.is_like(&remote) || local == remote {
                    let reason = format!("{local} can't send to {remote}: two of one kind are needed");
                    return Err(self.error(at, "outside.remote", reason));
                }
                Medium::Dgram { local, remote }
            }
            "stream" => Medium::Stream(match (listen, connect) {
                (Some(_), Some(connect)) => {
                    let reason = "one side listens, the other connects: this one can't do both";
                    return Err(self.error(connect.span(), "outside.connect", reason));
                }
                (Some(listen), None) => {
                    if let Some(span) = reconnect_at {
                        let reason = "is for connect; who listens takes whoever comes";
                        return Err(self.error(span, "outside.reconnect_ms", reason));
                    }
                    Stream::Listen(self.address("outside.listen", listen)?)
                }
                (None, Some(connect)) => {
                    let to = self.target("outside.connect", connect)?;
                    if let Some(ms) =
                        reconnect_ms.as_ref().filter(|ms| !RECONNECT_RANGE.contains(ms.get_ref()))
                    {
                        let (least, most) = (RECONNECT_RANGE.start(), RECONNECT_RANGE.end());
                        let reason = format!("must be {least} to {most} milliseconds");
                        return Err(self.error(ms.span(), "outside.reconnect_ms", reason));
                    }
                    let reconnect_ms = reconnect_ms.map_or(RECONNECT_MS, Spanned::into_inner);
                    Stream::Connect { to, reconnect_ms }
                }
                (None, None) => return Err(needed("listen or connect")),
            }),
            "simbricks" => Medium::Simbricks(match (listen, connect) {
                (Some(_), Some(connect)) => {
                    let reason = "one side listens, the other connects: this one can't do both";
                    return Err(self.error(connect.span(), "outside.connect", reason));
                }
                (Some(listen), None) => Way::Listen(self.path("outside.listen", listen)?),
                (None, Some(connect)) => Way::Connect(self.path("outside.connect", connect)?),
                (None, None) => return Err(needed("listen or connect")),
            }),
            "tap" => {
                let interface = interface.ok_or_else(|| needed("interface"))?;
                let text = interface.get_ref();
                // As the kernel has it (dev_valid_name), but no pattern for it to number.
                let wrong = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
                if text.is_empty()
                    || text.len() > MAX_INTERFACE
                    || text.contains(wrong)
                    || text.starts_with('.')
                {
                    let reason = format!("{text:?} is not the name of an interface, such as \"tap0\"");
                    return Err(self.error(interface.span(), "outside.interface", reason));
                }
                Medium::Tap { interface: interface.into_inner() }
            }
            _ => {
                let kinds = KINDS.map(|kind| format!("{kind:?}")).join(", ");
                let reason = format!("{known:?} is none of {kinds}");
                return Err(self.error(kind.span(), "outside.kind", reason));
            }
        };
        self.own_address(&at, &name, &medium, nodes)?;
        Ok(Outside { name, medium })
    }

    /// An address or device that this process takes for itself has one owner.
    fn own_address(&self, at: &Range<usize>, name: &str, medium: &Medium, nodes: &mut Nodes) -> Checked<()> {
        if let Medium::Simbricks(way) = medium {
            let (role, address) = match way {
                Way::Listen(address) => (Role::Listen, address),
                Way::Connect(address) => (Role::Connect, address),
            };
            if let Address::Unix(path) = address
                && let Some(other) = nodes.simbricks.take(path, name.to_owned(), Some(role))
            {
                let reason = format!("{other} and {name} would share the socket {}", path.display());
                return Err(self.error(at.clone(), "outside", reason));
            }
        }
        let own = match medium {
            Medium::Tap { interface } => Some(format!("interface {interface}")),
            _ => medium.own().map(Address::to_string),
        };
        let Some(own) = own else { return Ok(()) };
        let socket = own.strip_prefix("unix:").unwrap_or(&own).to_owned();
        match nodes.sockets.insert(socket, name.to_owned()) {
            None => Ok(()),
            Some(other) => {
                Err(self.error(at.clone(), "outside", format!("{other} and {name} would share {own}")))
            }
        }
    }

    fn address(&self, key: &str, text: Spanned<String>) -> Checked<Address> {
        text.get_ref()
            .parse()
            .map_err(|why| self.error(text.span(), key, format!("{:?} {why}", text.get_ref())))
    }

    /// The address of a socket of this machine.
    fn path(&self, key: &str, text: Spanned<String>) -> Checked<Address> {
        let span = text.span();
        match self.address(key, text)? {
            path @ Address::Unix(_) => Ok(path),
            other @ Address::Inet(_) => {
                let reason =
                    format!("{other} is none: memory is shared on one machine, by a socket \"unix:PATH\"");
                Err(self.error(span, key, reason))
            }
        }
    }

    /// An address to which something is sent: one station.
    fn target(&self, key: &str, text: Spanned<String>) -> Checked<Address> {
        let span = text.span();
        let address = self.address(key, text)?;
        match &address {
            Address::Inet(at) if at.ip().is_unspecified() || is_many(at.ip()) => {
                Err(self.error(span, key, format!("{address} is not the address of one peer")))
            }
            Address::Inet(_) | Address::Unix(_) => Ok(address),
        }
    }

    /// Checks what is at the ends of a link together: a port of the model at one at least, and link layers that are the same.
    pub(super) fn layers(&self, at: &Range<usize>, between: &[End; 2], nodes: &Nodes) -> Checked<PortKind> {
        let [a, b] = between;
        if a.is_outside() && b.is_outside() {
            let reason = format!("{a} and {b} are both outside: a port of an adapter or switch is needed");
            return Err(self.error(at.clone(), "link.between", reason));
        }
        let (one, other) = (nodes.kind_of(a), nodes.kind_of(b));
        if one != other {
            let word = |kind| match kind {
                PortKind::InfiniBand => "InfiniBand",
                PortKind::Ethernet => "Ethernet",
            };
            let reason = format!(
                "{a} is {} and {b} is {}: say port_type of the adapter, or type of the switch",
                word(one),
                word(other)
            );
            return Err(self.error(at.clone(), "link.between", reason));
        }
        Ok(one)
    }

    /// Each outside and card has its link, and whoever serves that has the run directory of the card's host.
    pub(super) fn joined(&self, nodes: &Nodes, links: &[(Range<usize>, Link)]) -> Checked<()> {
        let is_linked = |end: &End| links.iter().any(|(_, link)| link.between.contains(end));
        let line =
            |name: &str| nodes.lines.iter().find(|(n, _)| n == name).map_or(0..0, |(_, at)| at.clone());
        for outside in &nodes.outsides {
            if !is_linked(&End::Outside { outside: outside.name.clone() }) {
                let reason = format!("{} has no [[link]]", outside.name);
                return Err(self.error(line(&outside.name), "outside", reason));
            }
        }
        for host in &nodes.hosts {
            for nic in &host.nics {
                let end = End::Nic { host: host.name.clone(), nic: nic.name.clone() };
                if !is_linked(&end) {
                    return Err(self.error(line(&host.name), "host.nic", format!("{end} has no [[link]]")));
                }
            }
        }
        for (at, link) in links {
            if let Some(End::Nic { host, .. }) =
                link.between.iter().find(|end| matches!(end, End::Nic { .. }))
                && let [Some(a), Some(b)] = link.between.each_ref().map(|end| nodes.process_of(end.node()))
                && a != b
            {
                let reason = format!("host {host} is in another process than the other end");
                return Err(self.error(at.clone(), "link.between", reason));
            }
        }
        Ok(())
    }
}

impl Nodes {
    /// The link layer of an end.
    fn kind_of(&self, end: &End) -> PortKind {
        let kind = match end {
            End::Hca { host, hca, .. } => {
                let host = self.host(host);
                host.and_then(|host| host.hcas.iter().find(|known| known.name == *hca))
                    .map(|hca| hca.port_type)
            }
            End::Switch { switch, .. } => self.switch(switch).map(|switch| switch.kind),
            End::Outside { .. } | End::Nic { .. } => Some(PortKind::Ethernet),
        };
        kind.unwrap_or(PortKind::InfiniBand)
    }
}

fn is_many(ip: IpAddr) -> bool {
    ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

/// Six bytes in hexadecimal, of one station: the lowest bit of the first is zero, and not all are.
fn is_mac(text: &str) -> bool {
    let byte = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        u8::from_str_radix(part, 16).ok().filter(|_| digits)
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes.is_some_and(|bytes| {
        bytes.len() == 6 && bytes.first().is_some_and(|b| b & 1 == 0) && bytes.iter().any(|b| *b != 0)
    })
}

/// One that stays the same as long as the card keeps its name, locally administered (IEEE 802 8.2).
fn derived_mac(id: &str) -> String {
    let bytes = derived_guid(id).to_be_bytes();
    let [.., a, b, c, d, e] = bytes;
    format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses() {
        for text in ["52:54:00:12:34:56", "00:02:C9:00:00:01"] {
            assert!(is_mac(text), "{text}");
        }
        for text in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "01:00:5e:00:00:01",
            "0:0:0:0:0:1",
            "+2:54:00:12:34:56",
        ] {
            assert!(!is_mac(text), "{text}");
        }
        assert!(!is_mac("00:00:00:00:00:00"));
        assert!(is_mac(&derived_mac("b/nic0")) && derived_mac("b/nic0") != derived_mac("c/nic0"));
    }
}
