//! A topology: nodes with ports, links between the ports, and what can be wrong with it.

use hca_firmware::Config;

use super::queueing::Queueing;
use crate::ground::node::{LinkEnd, PortRef, TunnelId};
use crate::ground::time::Ps;
use crate::ground::timing::Profile;
use crate::link::{Faults, LineRate, LinkRate};

/// One adapter of a topology.
#[derive(Debug, Clone)]
pub struct HcaConfig {
    /// Name in logs and reports.
    pub name: String,
    /// Of which kind it is, identity and options.
    pub firmware: Config,
    /// What its units take in time; `None`: as [`WorldConfig::profile`].
    pub timing: Option<Profile>,
}

/// One switch of a topology.
#[derive(Debug, Clone)]
pub struct SwitchConfig {
    /// Name in logs and reports.
    pub name: String,
    /// Identity and ports.
    pub firmware: hca_firmware::SwitchConfig,
    /// How it queues, if it is one of Ethernet.
    pub queueing: Queueing,
}

/// A link.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// What it joins.
    pub ends: [LinkEnd; 2],
    /// Signalling rate of a lane.
    pub rate: LinkRate,
    /// Lanes: 1, 4, 8 or 12.
    pub width: u8,
    /// What packets occupy of it, if it is no InfiniBand link with the rate and width that its ports trained to.
    pub line: Option<LineRate>,
    /// Propagation delay.
    pub delay: Ps,
    /// What goes wrong on it.
    pub faults: Faults,
    /// Seed of that; `None`: from the world's and the link's number.
    pub seed: Option<u64>,
    /// The input buffers at its ends are so many times as large as their profiles say: 1. More where credits take long to come
    /// back, since the far end is in another process that keeps time by itself.
    pub room: u32,
}

/// A topology.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    /// The adapters.
    pub hcas: Vec<HcaConfig>,
    /// The switches.
    pub switches: Vec<SwitchConfig>,
    /// The links.
    pub links: Vec<LinkConfig>,
    /// Whether a built-in subnet manager brings the ports up.
    pub subnet_manager: bool,
    /// The M_Key that it gives all ports, so that nobody else can set them; `None`: ports are open to whoever sends SMPs.
    pub management_key: Option<u64>,
    /// Seed of everything random.
    pub seed: u64,
    /// What switches take in time, how long links train, and what adapters take that have no profile of their own.
    pub profile: Profile,
}

/// A topology that can't be. Links are named by their place in [`WorldConfig::links`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A link ends at a node or port that isn't there.
    #[error("link {link}: there is no {port}")]
    NoSuchPort {
        /// The link.
        link: usize,
        /// What it names.
        port: PortRef,
    },
    /// A link ends where it begins.
    #[error("link {link}: its ends must be different")]
    SameEnds {
        /// The link.
        link: usize,
    },
    /// A port has two cables.
    #[error("link {link}: {port} has a cable already, of link {other}")]
    PortTaken {
        /// The link.
        link: usize,
        /// The port.
        port: PortRef,
        /// The link that has it.
        other: usize,
    },
    /// A link joins an InfiniBand port to an Ethernet port.
    #[error("link {link}: its ports must be of one kind, InfiniBand or Ethernet")]
    MixedPorts {
        /// The link.
        link: usize,
    },
    /// A tunnel has two links.
    #[error("link {link}: tunnel {} is the end of link {other} already", .tunnel.0)]
    TunnelTaken {
        /// The link.
        link: usize,
        /// The tunnel.
        tunnel: TunnelId,
        /// The link that has it.
        other: usize,
    },
}
