//! The file as TOML has it, before anything is checked.

use std::collections::BTreeMap;

use hca_model::link::LinkRate;
use serde::Deserialize;
use toml::Spanned;

use super::faults::Scalar;
use super::joint::RawJoint;
use super::partitions::RawPartition;
use super::{Isolation, Mode, SubnetManager};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTopology {
    pub(super) profile: Option<Spanned<String>>,
    pub(super) isolation: Option<Spanned<Isolation>>,
    #[serde(default)]
    pub(super) time: RawTime,
    #[serde(default)]
    pub(super) checker: RawChecker,
    #[serde(default)]
    pub(super) fabric: RawFabric,
    #[serde(default)]
    pub(super) process: Vec<RawProcess>,
    #[serde(default)]
    pub(super) host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    pub(super) switch: Vec<Spanned<RawSwitch>>,
    #[serde(default)]
    pub(super) outside: Vec<Spanned<RawOutside>>,
    #[serde(default)]
    pub(super) link: Vec<Spanned<RawLink>>,
    #[serde(default)]
    pub(super) partition: Vec<Spanned<RawPartition>>,
    #[serde(default)]
    pub(super) fault: Vec<Spanned<BTreeMap<String, Spanned<Scalar>>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTime {
    pub(super) quantum_us: Option<Spanned<u64>>,
    pub(super) dilation: Option<Spanned<f64>>,
    pub(super) mode: Option<Spanned<Mode>>,
    pub(super) budget_ms: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChecker {
    pub(super) enabled: Option<bool>,
    pub(super) patience_ms: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFabric {
    pub(super) subnet_manager: Option<Spanned<SubnetManager>>,
    pub(super) m_key: Option<Spanned<String>>,
    pub(super) routing: Option<Spanned<String>>,
    pub(super) seed: Option<u64>,
    pub(super) training_ms: Option<Spanned<u64>>,
    pub(super) tunnel_key_file: Option<Spanned<String>>,
    pub(super) tunnel_datagram: Option<Spanned<u16>>,
    pub(super) tunnel_timeout_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProcess {
    pub(super) name: Spanned<String>,
    pub(super) address: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHost {
    pub(super) name: Spanned<String>,
    pub(super) process: Option<Spanned<String>>,
    pub(super) memory: Option<Spanned<String>>,
    pub(super) hugepages: Option<Spanned<String>>,
    pub(super) cpus: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) iommu: bool,
    #[serde(default)]
    pub(super) hotplug: bool,
    pub(super) may_manage: Option<bool>,
    #[serde(default)]
    pub(super) hca: Vec<Spanned<RawHca>>,
    #[serde(default)]
    pub(super) nic: Vec<Spanned<RawNic>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHca {
    pub(super) name: Option<Spanned<String>>,
    pub(super) guid: Option<Spanned<String>>,
    pub(super) personality: Option<Spanned<String>>,
    pub(super) profile: Option<Spanned<String>>,
    pub(super) port_type: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) blueflame: bool,
    pub(super) wrapped_keys: Option<Spanned<bool>>,
    pub(super) memory_page_faults: Option<Spanned<bool>>,
    #[serde(default)]
    pub(super) diagnoses: bool,
    pub(super) icm: Option<Spanned<String>>,
    pub(super) capture: Option<Spanned<String>>,
    pub(super) events: Option<Spanned<u64>>,
    pub(super) rom: Option<Spanned<String>>,
    pub(super) simbricks: Option<Spanned<String>>,
    pub(super) pcie_latency_ns: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSwitch {
    pub(super) name: Spanned<String>,
    pub(super) process: Option<Spanned<String>>,
    #[serde(rename = "type")]
    pub(super) kind: Option<Spanned<String>>,
    pub(super) ports: Option<Spanned<u8>>,
    pub(super) guid: Option<Spanned<String>>,
    pub(super) buffer: Option<Spanned<String>>,
    pub(super) pause: Option<Spanned<bool>>,
    pub(super) trust: Option<Spanned<String>>,
    pub(super) headroom: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) priority: Vec<Spanned<RawPriority>>,
}

/// `[[switch.priority]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPriority {
    pub(super) number: Spanned<u8>,
    pub(super) lossless: Option<Spanned<bool>>,
    pub(super) alpha: Option<Spanned<f64>>,
    pub(super) kmin: Option<Spanned<String>>,
    pub(super) kmax: Option<Spanned<String>>,
    pub(super) pmax: Option<Spanned<f64>>,
    pub(super) weight: Option<Spanned<u8>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNic {
    pub(super) name: Option<Spanned<String>>,
    pub(super) mac: Option<Spanned<String>>,
    pub(super) mtu: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOutside {
    pub(super) name: Spanned<String>,
    pub(super) kind: Spanned<String>,
    pub(super) local: Option<Spanned<String>>,
    pub(super) remote: Option<Spanned<String>>,
    pub(super) listen: Option<Spanned<String>>,
    pub(super) connect: Option<Spanned<String>>,
    pub(super) reconnect_ms: Option<Spanned<u64>>,
    pub(super) interface: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    pub(super) between: Spanned<[Spanned<String>; 2]>,
    pub(super) rate: Option<Spanned<LinkRate>>,
    pub(super) width: Option<Spanned<u8>>,
    pub(super) delay_ns: Option<Spanned<u64>>,
    pub(super) vls: Option<Spanned<u8>>,
    pub(super) mtu: Option<Spanned<u16>>,
    pub(super) seed: Option<u64>,
    pub(super) loss: Option<Spanned<f64>>,
    pub(super) duplicate: Option<Spanned<f64>>,
    pub(super) reorder: Option<Spanned<f64>>,
    pub(super) corrupt: Option<Spanned<f64>>,
    pub(super) delay: Option<Spanned<f64>>,
    pub(super) delay_us: Option<Spanned<u64>>,
    pub(super) tunnel_key_file: Option<Spanned<String>>,
    pub(super) simbricks: Option<Spanned<RawJoint>>,
    pub(super) framing: Option<Spanned<String>>,
}
