//! Where software that speaks Ethernet is, and by which socket or device it is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// An end of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A path; one that is not absolute is one in the run directory.
    Unix(PathBuf),
    /// An IPv4 or IPv6 address with its port.
    Inet(SocketAddr),
}

/// A text is neither `unix:PATH` nor `IP:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not an address such as \"unix:net.sock\", \"127.0.0.1:7000\" or \"[::1]:7000\"")]
pub struct BadAddress;

impl Address {
    /// Whether two of them are of one kind: datagrams go from one to the other.
    pub fn is_like(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Unix(_), Address::Unix(_)) => true,
            (Address::Inet(one), Address::Inet(other)) => one.is_ipv4() == other.is_ipv4(),
            (Address::Unix(_), Address::Inet(_)) | (Address::Inet(_), Address::Unix(_)) => false,
        }
    }

    /// A path that is not absolute becomes one in `folder`.
    pub fn put_into(&mut self, folder: &Path) {
        if let Address::Unix(path) = self {
            *path = folder.join(&*path);
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        match text.strip_prefix("unix:") {
            Some("") => Err(BadAddress),
            Some(path) => Ok(Address::Unix(path.into())),
            // Port 0 would be any.
            None => text
                .parse()
                .ok()
                .filter(|at: &SocketAddr| at.port() != 0)
                .map(Address::Inet)
                .ok_or(BadAddress),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Inet(at) => at.fmt(f),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// By what frames leave the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Medium {
    /// A datagram socket, one frame a datagram: QEMU's `-netdev dgram`.
    Dgram {
        /// Where this process takes frames.
        local: Address,
        /// Where the other side does.
        remote: Address,
    },
    /// A stream socket, each frame behind its length: QEMU's `-netdev stream`. One peer at a time.
    Stream(Stream),
    /// A TAP device of this machine.
    Tap {
        /// Its name.
        interface: String,
    },
    /// A network link of SimBricks, for simulations.
    Simbricks(Way),
}

/// Which side of a network link of SimBricks a process is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// It makes the socket, and the memory.
    Listen(Address),
    /// It connects.
    Connect(Address),
}

/// Who begins the connection of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// The other side; this process waits there.
    Listen(Address),
    /// This process, again and again.
    Connect {
        /// Where the other side waits.
        to: Address,
        /// Pause between two attempts, in milliseconds.
        reconnect_ms: u64,
    },
}

impl Medium {
    /// Its addresses.
    pub fn addresses_mut(&mut self) -> impl Iterator<Item = &mut Address> {
        let (one, other) = match self {
            Medium::Dgram { local, remote } => (Some(local), Some(remote)),
            Medium::Stream(Stream::Listen(at)) => (Some(at), None),
            Medium::Stream(Stream::Connect { to, .. }) => (Some(to), None),
            Medium::Simbricks(Way::Listen(at) | Way::Connect(at)) => (Some(at), None),
            Medium::Tap { .. } => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// The address that this process has for itself, if any.
    pub fn own(&self) -> Option<&Address> {
        match self {
            Medium::Dgram { local, .. } => Some(local),
            Medium::Stream(Stream::Listen(at)) | Medium::Simbricks(Way::Listen(at)) => Some(at),
            Medium::Stream(Stream::Connect { .. })
            | Medium::Tap { .. }
            | Medium::Simbricks(Way::Connect(_)) => None,
        }
    }

    /// Its name in topology files.
    pub fn name(&self) -> &'static str {
        match self {
            Medium::Dgram { .. } => "dgram",
            Medium::Stream(_) => "stream",
            Medium::Tap { .. } => "tap",
            Medium::Simbricks(_) => "simbricks",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let parse = |text: &str| text.parse::<Address>();
        assert_eq!(parse("unix:a/b"), Ok(Address::Unix("a/b".into())));
        for text in ["127.0.0.1:7", "[::1]:7", "unix:/run/x"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for text in ["", "unix:", "127.0.0.1", "127.0.0.1:0", "localhost:7", "7"] {
            assert_eq!(parse(text), Err(BadAddress), "{text}");
        }
    }

    #[test]
    fn paths_are_those_of_the_run_directory() {
        let mut medium =
            Medium::Dgram { local: Address::Unix("a".into()), remote: Address::Unix("/b".into()) };
        medium.addresses_mut().for_each(|address| address.put_into(Path::new("/run/x")));
        let [local, remote] = ["/run/x/a", "/b"].map(|path| Address::Unix(path.into()));
        assert_eq!(medium, Medium::Dgram { local, remote });
    }
}
