//! Names of nodes, of their ports, and of the places where links end.

use std::fmt;

use hca_firmware::FunctionId;

/// Names an adapter of a world: its place in [`crate::WorldConfig::hcas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HcaId(pub usize);

/// Names a function of an adapter: what a host attaches to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionRef {
    /// The adapter.
    pub hca: HcaId,
    /// The function.
    pub function: FunctionId,
}

impl From<HcaId> for FunctionRef {
    /// The function that an adapter always has.
    fn from(hca: HcaId) -> Self {
        Self { hca, function: FunctionId::FIRST }
    }
}

/// Names a switch of a world: its place in [`crate::WorldConfig::switches`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchId(pub usize);

/// Names a place where packets leave the world and enter it; the numbers are the caller's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelId(pub usize);

/// A node of the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeId {
    /// An adapter: it has ports from 1 on, as its personality says.
    Hca(HcaId),
    /// A switch: it has external ports from 1 on.
    Switch(SwitchId),
}

/// A port that takes a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRef {
    /// The node.
    pub node: NodeId,
    /// The port, from 1.
    pub port: u8,
}

impl From<HcaId> for PortRef {
    /// The adapter's first port.
    fn from(hca: HcaId) -> Self {
        Self::of_hca(hca, 1)
    }
}

impl PortRef {
    /// A port of an adapter.
    pub const fn of_hca(hca: HcaId, port: u8) -> Self {
        Self { node: NodeId::Hca(hca), port }
    }

    /// A port of a switch.
    pub const fn of_switch(switch: SwitchId, port: u8) -> Self {
        Self { node: NodeId::Switch(switch), port }
    }
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            NodeId::Hca(HcaId(n)) => write!(f, "port {} of adapter {n}", self.port),
            NodeId::Switch(SwitchId(n)) => write!(f, "port {} of switch {n}", self.port),
        }
    }
}

/// Where a link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkEnd {
    /// At a port.
    Port(PortRef),
    /// Outside: see [`crate::World::drain_tunnels`].
    Tunnel(TunnelId),
}

impl From<PortRef> for LinkEnd {
    fn from(port: PortRef) -> Self {
        Self::Port(port)
    }
}

impl From<HcaId> for LinkEnd {
    fn from(hca: HcaId) -> Self {
        Self::Port(hca.into())
    }
}

impl From<TunnelId> for LinkEnd {
    fn from(tunnel: TunnelId) -> Self {
        Self::Tunnel(tunnel)
    }
}
