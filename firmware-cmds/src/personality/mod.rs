//! What one kind of adapter is: one value, all of it data.
//!
//! A personality has everything in which two kinds of adapter differ: what PCI shows, firmware version, capability pages,
//! ports, and which timing profile it has. Each kind has a file of its own here, and [`Personality::names`] lists them. An
//! adapter has one ([`Config::personality`](crate::Config)), and adapters of one world may have different ones.
//!
//! Who reads which part: configuration space and BARs are built from [`Pci`] by the server; the firmware answers queries
//! from [`Capabilities`], [`PortProfile`] and the board id; the hardware model shows [`FirmwareVersion`] in its registers
//! and looks [`Personality::timing`] up among its timing profiles. Numbers of timing are there and not here: a timing
//! profile says how fast an adapter is, and may be chosen apart from what the adapter is.

mod connectx4;
mod connectx5;
mod connectx6dx;

pub(crate) use connectx6dx::STEERING_ICM;

use std::fmt;
use std::sync::{Arc, LazyLock};

use hca_spec::caps::{Atomic, DeviceMemory, EthernetOffloads, General, General2, Odp, Qos, Roce};
use hca_spec::crypto::Crypto;

use crate::speed::LinkSpeed;
use crate::steering::Offer;

/// One kind of adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Personality {
    /// Its name in topologies.
    pub name: &'static str,
    /// What the PCI function shows.
    pub pci: Pci,
    /// Version of its firmware, in the initialization segment.
    pub version: FirmwareVersion,
    /// Hardware id in the health buffer.
    pub hardware_id: u32,
    /// What the vendor calls it.
    pub product: &'static str,
    /// Part number.
    pub part_number: &'static str,
    /// Board id (PSID), ASCII; 16 characters are used.
    pub board_id: &'static str,
    /// Capability pages.
    pub capabilities: Capabilities,
    /// Its ports, from port 1.
    pub ports: Vec<PortProfile>,
    /// WQEs may have 2^3 to 2^8 strides, too. [`General::EXT_STRIDE_NUM_RANGE`] does not say so: UCX would make queues with strides that match
    /// tags, and there are none.
    pub few_strides: bool,
    /// Name of its timing profile.
    pub timing: &'static str,
}

/// Identity and shape of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pci {
    /// Vendor id.
    pub vendor: u16,
    /// Device id; NodeInfo shows it, too.
    pub device: u16,
    /// Revision id.
    pub revision: u8,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
    /// Bytes of BAR0: initialization segment and UAR pages. A power of two, as UAR_SZ says.
    pub bar0_size: u64,
    /// Number of MSI-X vectors.
    pub msix_vectors: u16,
    /// What its edge connector can do.
    pub link: PciLink,
    /// Slot power limit.
    pub slot_power_watts: u8,
    /// Where the capabilities are.
    pub capabilities: PciCapabilities,
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciLink {
    /// Its fastest speed.
    pub speed: PciSpeed,
    /// Lanes.
    pub lanes: u8,
}

/// Speed of a PCI Express link. Its number is its code in the link registers (PCIe 7.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciSpeed {
    /// 2.5 GT/s.
    Gen1 = 1,
    /// 5 GT/s.
    Gen2 = 2,
    /// 8 GT/s.
    Gen3 = 3,
    /// 16 GT/s.
    Gen4 = 4,
}

/// Offsets of the capabilities in configuration space. Software finds them in the order express, product data, MSI-X, vendor, power
/// management; and error reporting, secondary express among the extended ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciCapabilities {
    /// Power management.
    pub power_management: u8,
    /// PCI Express.
    pub express: u8,
    /// Vital product data.
    pub product: u8,
    /// MSI-X.
    pub msix: u8,
    /// The vendor's, for tools and dumps.
    pub vendor: u8,
    /// Advanced error reporting.
    pub error_reporting: u16,
    /// Secondary PCI Express.
    pub secondary_express: u16,
}

/// Version of a firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmwareVersion {
    /// The family of adapters.
    pub major: u16,
    /// The release.
    pub minor: u16,
    /// The build.
    pub subminor: u16,
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.subminor)
    }
}

/// Capability pages, as QUERY_HCA_CAP gives them for "maximum".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// General; the clock's frequency is the hardware's, and what an adapter's options take away is taken from it.
    pub general: General,
    /// Second general page.
    pub general_2: General2,
    /// Atomic operations.
    pub atomic: Atomic,
    /// On-demand paging that is on from the start.
    pub odp_initial: Odp,
    /// All on-demand paging that there is.
    pub odp: Odp,
    /// Memory that programs can have of the adapter.
    pub device_memory: DeviceMemory,
    /// Encryption, with keys in plain.
    pub crypto: Crypto,
    /// What is different, and what there is more, if the ports are Ethernet.
    pub ethernet: EthernetPages,
}

/// Capability pages of an adapter whose ports are Ethernet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthernetPages {
    /// General: instead of [`Capabilities::general`].
    pub general: General,
    /// Offloads.
    pub offloads: EthernetOffloads,
    /// RoCE.
    pub roce: Roce,
    /// Rates.
    pub qos: Qos,
    /// Flow tables: the page is made of it.
    pub steering: Offer,
}

/// A port, as it leaves the factory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortProfile {
    /// Link layers it can have; the first is the one without a choice.
    pub kinds: &'static [PortKind],
    /// Numbers of lanes that it trains to.
    pub widths: &'static [u8],
    /// Rates of a lane that it trains to.
    pub speeds: &'static [LinkSpeed],
    /// Largest payload of a packet, in bytes.
    pub mtu: u16,
    /// Virtual lanes for data.
    pub data_lanes: u8,
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PortKind {
    /// InfiniBand.
    #[default]
    InfiniBand,
    /// Ethernet, with RoCE.
    Ethernet,
}

impl PortKind {
    /// Its value in the general capabilities (PORT_TYPE).
    pub const fn code(self) -> u32 {
        match self {
            PortKind::InfiniBand => 0,
            PortKind::Ethernet => 1,
        }
    }
}

/// The kinds that are complete: the only place that lists them, the default first.
static ALL: LazyLock<Vec<Arc<Personality>>> = LazyLock::new(|| {
    [connectx4::personality(), connectx5::personality(), connectx6dx::personality()].map(Arc::new).into()
});

impl Personality {
    /// The kind that is meant where none is named.
    pub fn default_kind() -> Arc<Personality> {
        match ALL.first() {
            Some(first) => Arc::clone(first),
            None => unreachable!("the list above is not empty"),
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Arc<Personality>> {
        ALL.iter().find(|kind| kind.name == name).cloned()
    }

    /// The board id as two big-endian words, padded with zeros: as commands and images of the firmware carry it.
    pub fn psid(&self) -> [u64; 2] {
        let mut id = [0; 16];
        id.iter_mut().zip(self.board_id.bytes()).for_each(|(to, from)| *to = from);
        [hca_spec::be64(&id, 0), hca_spec::be64(&id, 8)]
    }

    /// Whether it has keys that encrypt.
    pub fn encrypts(&self) -> bool {
        self.capabilities.general.get(General::CRYPTO) == 1
    }

    /// Whether page faults can name keys and addresses.
    pub fn pages_by_memory(&self) -> bool {
        self.capabilities.odp.get(Odp::MEM_PAGE_FAULT) == 1
    }

    /// The same with other ports, for tests: what is not in the list of kinds is not offered to users.
    #[must_use]
    pub fn with_ports(mut self, ports: Vec<PortProfile>) -> Self {
        let count = u32::try_from(ports.len()).unwrap_or(u32::MAX);
        for general in [&mut self.capabilities.general, &mut self.capabilities.ethernet.general] {
            general.set(General::NUM_PORTS, count);
        }
        self.ports = ports;
        self
    }

    /// Names of all kinds, the default first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|kind| kind.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_spec::caps::OdpScheme;

    use crate::limits::{
        LOG_MAX_MULTICAST, LOG_MAX_RQ, LOG_MAX_RQT, LOG_MAX_RQT_SIZE, LOG_MAX_TIR, LOG_MAX_TIS, LOG_MAX_UCTX,
        LOG_MAX_UMEM, LOG_MAX_UNICAST, LOG_MAX_VLANS, MAX_COMPRESSED, MAX_Q_COUNTERS, ROCE_ADDRESSES,
    };

    /// The parts of a kind tell the same story.
    #[test]
    fn parts_agree() {
        assert_eq!(Personality::default_kind().name, "connectx4");
        assert!(Personality::named("connectx9").is_none());
        for name in Personality::names() {
            let kind = Personality::named(name).unwrap();
            assert_eq!(kind.name, name);
            let Personality { pci, capabilities, ports, board_id, .. } = &*kind;
            let general = &capabilities.general;
            for (kind, general) in
                [(PortKind::InfiniBand, general), (PortKind::Ethernet, &capabilities.ethernet.general)]
            {
                assert_eq!(general.get(General::NUM_PORTS) as usize, ports.len(), "{name}");
                assert_eq!(general.get(General::PORT_TYPE), kind.code(), "{name}");
                assert!(ports.iter().all(|port| port.kinds.contains(&kind)), "{name}");
            }
            let memory = &capabilities.device_memory;
            let end = memory.get(DeviceMemory::MEMIC_BAR_START_ADDR)
                + u64::from(memory.get(DeviceMemory::MEMIC_BAR_SIZE));
            match general.get(General::DEVICE_MEMORY) {
                0 => assert_eq!(memory, &DeviceMemory::new(), "{name}"),
                _ => assert_eq!(end, pci.bar0_size, "{name}: behind all doorbells"),
            }
            assert_eq!(general.get(General::DEVICE_MEMORY), memory.get(DeviceMemory::MEMIC), "{name}");
            for port in ports {
                assert!(!port.widths.is_empty() && !port.speeds.is_empty(), "{name}");
            }
            assert_eq!(
                pci.bar0_size,
                1 << (20 + general.get(General::UAR_SZ)),
                "{name}: UAR_SZ is log2 of MiB"
            );
            assert!(board_id.is_ascii() && board_id.len() <= 16, "{name}");
            assert!((1..=2048).contains(&pci.msix_vectors), "{name}");
            let (initial, most) = (&capabilities.odp_initial, &capabilities.odp);
            for field in OdpScheme::TRANSPORTS {
                for (first, all) in
                    [(initial.transport(), most.transport()), (initial.memory(), most.memory())]
                {
                    assert_eq!(first.get(field) & !all.get(field), 0, "{name}: more than there is");
                }
            }
            assert_eq!(initial.get(Odp::MEM_PAGE_FAULT), 0, "{name}: drivers ask for the memory scheme");
        }
    }

    /// Every kind leads packets back to their port by force, whatever that is and RoCE is set to, and says so.
    #[test]
    fn forced_loopback_is_told() {
        for name in Personality::names() {
            let capabilities = &Personality::named(name).unwrap().capabilities;
            for general in [&capabilities.general, &capabilities.ethernet.general] {
                assert_eq!(general.get(General::FL_RC_QP_WHEN_ROCE_DISABLED), 1, "{name}");
            }
            let roce = &capabilities.ethernet.roce;
            for field in [Roce::FL_RC_QP_WHEN_ROCE_ENABLED, Roce::FL_RC_QP_WHEN_ROCE_DISABLED] {
                assert_eq!(roce.get(field), 1, "{name}");
            }
        }
    }

    /// How long a table of receive queues may be stands on two pages: drivers read one, or the other.
    #[test]
    fn two_pages_tell_of_tables_of_receive_queues() {
        for name in Personality::names() {
            let ethernet = &Personality::named(name).unwrap().capabilities.ethernet;
            let most = ethernet.general.get(General::LOG_MAX_RQT_SIZE);
            assert_eq!(most, 11, "{name}");
            assert_eq!(ethernet.offloads.get(EthernetOffloads::RSS_IND_TBL_CAP), most, "{name}");
        }
    }

    /// No kind promises more than this firmware has tables for.
    #[test]
    fn no_kind_exceeds_the_firmware() {
        for name in Personality::names() {
            let capabilities = Personality::named(name).unwrap().capabilities.clone();
            let general = capabilities.ethernet.general;
            for (field, most) in [
                (General::LOG_MAX_RQ, LOG_MAX_RQ),
                (General::LOG_MAX_RQT, LOG_MAX_RQT),
                (General::LOG_MAX_RQT_SIZE, LOG_MAX_RQT_SIZE),
                (General::LOG_MAX_TIR, LOG_MAX_TIR),
                (General::LOG_MAX_TIS, LOG_MAX_TIS),
                (General::LOG_MAX_CURRENT_UC_LIST, LOG_MAX_UNICAST),
                (General::LOG_MAX_CURRENT_MC_LIST, LOG_MAX_MULTICAST),
                (General::LOG_MAX_VLAN_LIST, LOG_MAX_VLANS),
            ] {
                assert!(general.get(field) <= most, "{name}: {:#x}", field.offset());
                assert_eq!(capabilities.general.get(field), 0, "{name}: InfiniBand has none of it");
            }
            assert!(capabilities.ethernet.roce.get(Roce::ROCE_ADDRESS_TABLE_SIZE) as usize <= ROCE_ADDRESSES);
            let general = capabilities.general;
            for (field, most) in [
                (General::MAX_QP_CNT, MAX_Q_COUNTERS),
                (General::LOG_MAX_UCTX, LOG_MAX_UCTX),
                (General::LOG_MAX_UMEM, LOG_MAX_UMEM),
                (General::CQE_COMPRESSION_MAX_NUM, MAX_COMPRESSED),
            ] {
                assert!(general.get(field) <= most, "{name}: {:#x}", field.offset());
            }
        }
    }
}
