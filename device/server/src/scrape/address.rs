//! Where metrics are offered: on this machine only.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A loopback address, or the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Every user of this machine can read them.
    Tcp(SocketAddr),
    /// This user and root can.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Neither of both forms.
    #[error("127.0.0.1:PORT, [::1]:PORT or unix:PATH is needed")]
    Form,
    /// Other machines would reach it.
    #[error("metrics are offered on loopback only: put a proxy in front that knows who may read them")]
    NotLoopback,
}

impl Address {
    /// The path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Address::Tcp(_) => None,
            Address::Unix(path) => Some(path),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(BadAddress::Form) } else { Ok(Address::Unix(path.into())) };
        }
        let at: SocketAddr = text.parse().map_err(|_| BadAddress::Form)?;
        if at.ip().is_loopback() { Ok(Address::Tcp(at)) } else { Err(BadAddress::NotLoopback) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine() {
        let parse = |text: &str| text.parse::<Address>();
        assert!(matches!(parse("127.0.0.1:9100"), Ok(Address::Tcp(_))));
        assert!(matches!(parse("[::1]:0"), Ok(Address::Tcp(_))));
        assert_eq!(parse("unix:/run/m.sock"), Ok(Address::Unix("/run/m.sock".into())));
        for far in ["0.0.0.0:9100", "[::]:9100", "10.0.0.1:9100", "[::ffff:127.0.0.1]:9100"] {
            assert_eq!(parse(far), Err(BadAddress::NotLoopback), "{far}");
        }
        for wrong in ["", "9100", "localhost:9100", "unix:", "127.0.0.1"] {
            assert_eq!(parse(wrong), Err(BadAddress::Form), "{wrong}");
        }
    }
}
