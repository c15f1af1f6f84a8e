//! One function of an adapter: of which kind the adapter is, its identity and options.

use std::sync::Arc;

use hca_spec::caps::{General, Odp, OdpScheme, object_type};

use crate::function::FunctionId;
use crate::personality::{Personality, PortKind};

/// A function of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Which of the adapter's functions.
    pub function: FunctionId,
    /// Of which kind it is.
    pub personality: Arc<Personality>,
    /// Link layer of its ports: one of those that each port of its kind can have.
    pub port_kind: PortKind,
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the system.
    pub system_image_guid: u64,
    /// GUID of port 1; the next ports have the next ones.
    pub port_guid: u64,
    /// NodeDescription before the driver sets one; at most 64 bytes are used.
    pub node_description: String,
    /// Frequency of the internal timer in kHz: that of the timing profile, which the hardware sets.
    pub timer_khz: u32,
    /// Whether send WQEs may come with their doorbell (BlueFlame).
    pub blueflame: bool,
    /// Whether keys of encryption are imported wrapped, if the adapter has any: a choice that its vendor made.
    pub wrapped_keys: bool,
    /// Whether drivers may have page faults name keys and addresses (the memory scheme), if the adapter's kind has that.
    pub memory_page_faults: bool,
    /// Whether SMPs of the host leave the adapter. If not it can neither find nor set what else is in the subnet.
    pub may_manage: bool,
    /// Number of the PCI bus that it says it is on. Hardware reads it off configuration writes, which no front end passes on with it: it is
    /// the number that a host's firmware gives the bus where it finds its root ports in order.
    pub bus: u8,
    /// Pages of 4 KiB that the firmware takes of its host at most: what its objects may cost. Commands that need more are
    /// refused with `ExceedLimit`.
    pub icm_pages: u32,
}

/// 2 GiB: enough for half a million queue pairs.
const ICM_PAGES: u32 = 1 << 19;

impl Default for Config {
    fn default() -> Self {
        Self::with_guid(0x0002_c903_00a0_0001)
    }
}

impl Config {
    /// An adapter of the default kind with that node GUID; port and system GUID are derived as the vendor does.
    pub fn with_guid(guid: u64) -> Self {
        Self {
            function: FunctionId::FIRST,
            personality: Personality::default_kind(),
            port_kind: PortKind::InfiniBand,
            node_guid: guid,
            system_image_guid: guid,
            port_guid: guid,
            node_description: "softhca".into(),
            // ConnectX-4: 156.25 MHz.
            timer_khz: 156_250,
            blueflame: false,
            wrapped_keys: false,
            memory_page_faults: false,
            may_manage: true,
            bus: 1,
            icm_pages: ICM_PAGES,
        }
    }
}

impl Config {
    /// GUID of the port of that number, from 1.
    pub fn guid_of_port(&self, port: u8) -> u64 {
        self.port_guid.wrapping_add(u64::from(port).saturating_sub(1))
    }

    /// MAC address of the port of that number, from 1: what the vendor made the port's GUID of, its first three and its last
    /// three bytes. It is an address of one station, whatever the GUID is.
    pub fn mac_of_port(&self, port: u8) -> [u8; 6] {
        mac_of(self.guid_of_port(port))
    }
}

/// The MAC address that the vendor makes such a GUID of.
pub(crate) fn mac_of(guid: u64) -> [u8; 6] {
    const GROUP: u8 = 1;
    let [a, b, c, _, _, d, e, f] = guid.to_be_bytes();
    [a & !GROUP, b, c, d, e, f]
}

/// The most the adapter can do (QUERY_HCA_CAP with "maximum"): what its kind can, as far as its options leave it.
pub fn general_max(config: &Config) -> General {
    let capabilities = &config.personality.capabilities;
    let mut c = match config.port_kind {
        PortKind::InfiniBand => capabilities.general,
        PortKind::Ethernet => capabilities.ethernet.general,
    };
    if !config.blueflame {
        // LOG_BF_REG_SIZE stays: it is also the distance between send doorbells.
        c.set(General::BF, 0);
        if config.port_kind == PortKind::InfiniBand {
            // The driver tests write combining with a send queue of its own, and needs no other there.
            c.set(General::LOG_MAX_SQ, 0);
        }
    }
    if config.wrapped_keys && c.get(General::CRYPTO) == 1 {
        let objects = c.get(General::GENERAL_OBJ_TYPES);
        c.set(General::GENERAL_OBJ_TYPES, objects | 1 << object_type::CRYPTO_LOGIN);
    }
    c.set(General::DEVICE_FREQUENCY_MHZ, config.timer_khz / 1000);
    c.set(General::DEVICE_FREQUENCY_KHZ, config.timer_khz);
    c
}

/// What may meet a page that is not present, at most: what its kind can, as far as its options leave it.
pub(crate) fn paging_max(config: &Config) -> Odp {
    let mut odp = config.personality.capabilities.odp;
    if !config.memory_page_faults {
        odp.set(Odp::MEM_PAGE_FAULT, 0);
        *odp.memory_mut() = OdpScheme::new();
    }
    odp
}

/// Capabilities before a driver has set some: a driver says by itself that it hears of restarts.
pub(crate) fn initial(mut general: General) -> General {
    general.set(General::PCI_SYNC_FOR_FW_UPDATE_EVENT, 0);
    general
}
