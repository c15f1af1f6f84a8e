//! Topologies, as `softhca topology` describes them. The launcher never parses the TOML itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::server::Binary;

/// Names of the topologies that the server has built in. Known here too, so that a wrong name is told of before a server
/// is built.
pub const BUILT_IN: [&str; 13] = [
    "loopback",
    "two-hosts",
    "cable",
    "switch",
    "two-switches",
    "two-processes",
    "iommu",
    "blueflame",
    "eth",
    "eth-two-hosts",
    "eth-switch",
    "eth-dpdk",
    "rxe",
];

/// A checked topology.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Topology {
    /// The guests.
    pub hosts: Vec<Host>,
    /// The server processes, if there are several.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// What concerns all of it.
    #[serde(default)]
    pub fabric: Fabric,
}

/// One server process of several.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Process {
    /// Name.
    pub name: String,
    /// Where it takes datagrams of the others.
    pub address: Option<SocketAddr>,
}

/// What concerns all of a topology.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Fabric {
    /// How processes reach each other.
    #[serde(default)]
    pub tunnel: Tunnel,
}

/// How processes reach each other.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Tunnel {
    /// The key they share, if the file names one.
    pub key_file: Option<PathBuf>,
}

/// One guest.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Host {
    /// Name, used as host name and in front of output lines.
    pub name: String,
    /// The process that serves its adapters, if there are several.
    #[serde(default)]
    pub process: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// How much of it is huge pages.
    #[serde(default)]
    pub hugepages_bytes: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Whether devices are behind a virtual IOMMU.
    #[serde(default)]
    pub iommu: bool,
    /// Whether its adapters are in slots from which they can be taken while it runs.
    #[serde(default)]
    pub hotplug: bool,
    /// Adapters.
    #[serde(default)]
    pub hcas: Vec<Hca>,
    /// Network cards of QEMU's own, joined to links of the topology.
    #[serde(default)]
    pub nics: Vec<Nic>,
}

/// One adapter.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Hca {
    /// Name within the host.
    pub name: String,
    /// Socket, relative to the server's run directory.
    pub socket: PathBuf,
    /// Link layer.
    #[serde(default)]
    pub port_type: PortType,
}

/// Link layer of an adapter's ports.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PortType {
    /// InfiniBand.
    #[default]
    Ib,
    /// Ethernet.
    Eth,
}

/// A network card of QEMU's own.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Nic {
    /// Name within the host.
    pub name: String,
    /// Hardware address.
    pub mac: String,
    /// MTU, if not the driver's.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Socket at which it takes frames, relative to the server's run directory.
    pub local: PathBuf,
    /// Socket to which it sends them, the server's.
    pub remote: PathBuf,
}

impl Topology {
    /// The process with this name.
    pub fn process(&self, name: &str) -> Result<&Process> {
        self.processes.iter().find(|process| process.name == name).with_context(|| {
            let names: Vec<_> = self.processes.iter().map(|process| process.name.as_str()).collect();
            format!("the topology has no process '{name}'; its processes are: {}", names.join(", "))
        })
    }

    /// The host with this name.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.iter().find(|host| host.name == name).with_context(|| {
            let names: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            format!("the topology has no host '{name}'; its hosts are: {}", names.join(", "))
        })
    }
}

/// What the server is to be told: the name of a topology that is built in, or the path of a file.
///
/// # Errors
/// There is neither; which names there are.
pub fn find(name: &str) -> Result<PathBuf> {
    if BUILT_IN.contains(&name) {
        return Ok(PathBuf::from(name));
    }
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.canonicalize()?);
    }
    bail!("no topology '{name}': neither a file nor one of the built-in ones ({})", BUILT_IN.join(", "))
}

/// Has the server check the file and describe it.
pub fn load(server: &Binary, file: &Path) -> Result<Topology> {
    let output = server
        .command()
        .arg("topology")
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {server}"))?;
    if !output.status.success() {
        bail!(
            "the topology {} is not valid:\n{}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cannot understand what `{server} topology` printed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_the_server() {
        let text = r#"{"hosts":[{"name":"a","memory":"1G","memory_bytes":1073741824,"cpus":1,
            "hcas":[{"name":"hca0","guid":"0x0002c90300a00001","socket":"a-hca0.sock","port_type":"eth"}],
            "nics":[{"name":"nic0","mac":"02:00:00:00:00:01","mtu":null,"local":"a.peer","remote":"a.net"}]}]}"#;
        let topology: Topology = serde_json::from_str(text).unwrap();
        assert_eq!(topology.host("a").unwrap().hcas[0].socket, Path::new("a-hca0.sock"));
        assert_eq!(topology.hosts[0].hcas[0].port_type, PortType::Eth);
        assert_eq!(topology.hosts[0].nics[0].remote, Path::new("a.net"));
        assert!(topology.host("z").unwrap_err().to_string().contains("its hosts are: a"));
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = find("nonesuch").unwrap_err().to_string();
        assert!(error.contains("loopback") && error.contains("two-hosts"), "{error}");
    }
}
