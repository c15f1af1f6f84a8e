//! The NIC virtual port of a function: what its driver says of the packets that it wants, and of its port to the network.
//!
//! Source: PRM "NIC Vport Context", "QUERY_VPORT_STATE"; mlx5 driver (field use).

use hca_spec::caps::{EthernetOffloads, inline_mode};

use crate::port::Mac;
use crate::profile::Config;

/// Packets that the driver wants beyond those of its lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promiscuous {
    /// Those to any one station.
    pub unicast: bool,
    /// Those to any group.
    pub multicast: bool,
    /// All.
    pub all: bool,
}

/// State that the administrator of a virtual port wants (PRM "MODIFY_VPORT_STATE").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdminState {
    /// Down, whatever the link is.
    Down,
    /// Up, whatever the link is.
    Up,
    /// As the link.
    #[default]
    Auto,
}

/// The NIC virtual port.
///
/// Its lists and its promiscuous modes say which frames a switch inside the adapter would have to bring to the function. There is
/// no such switch: the function has its port for itself, all frames that arrive are its own, and its flow tables choose among
/// them. So the lists are kept and told, and filter nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicVport {
    /// The function has a RoCE transport: packets of its RoCE addresses are not the NIC's.
    pub roce_enabled: bool,
    /// Largest frame, in bytes, as the driver said: header, a VLAN tag and frame check sequence included. 0: never said.
    pub mtu: u16,
    /// Packets wanted beyond the lists.
    pub promiscuous: Promiscuous,
    /// Addresses of single stations that the driver wants.
    pub unicast: Vec<Mac>,
    /// Addresses of groups that the driver wants.
    pub multicast: Vec<Mac>,
    /// VLANs that the driver wants.
    pub vlans: Vec<u16>,
    /// Permanent address.
    pub mac: Mac,
    /// Headers that send WQEs have to carry inline: 0 none, 1 layer 2, 2 layer 3, 3 layer 4. Told, not demanded: the
    /// adapter takes WQEs with fewer.
    pub min_inline: u8,
    /// What MODIFY_VPORT_STATE set.
    pub admin: AdminState,
    /// Frames for the function that came while its administrator had the virtual port down.
    pub received_down: u64,
    /// Frames of the function that were to leave meanwhile.
    pub sent_down: u64,
}

impl NicVport {
    /// [`NicVport::min_inline`]: layer 2.
    const LAYER_2: u8 = 1;

    /// At power-on. A kind whose WQEs need no headers inline (`wqe_inline_mode`) says so here, too: by inference, drivers read
    /// this of kinds alone that refer to it.
    pub(crate) fn new(config: &Config) -> Self {
        let offloads = &config.personality.capabilities.ethernet.offloads;
        let min_inline = match offloads.get(EthernetOffloads::WQE_INLINE_MODE) {
            inline_mode::NOT_REQUIRED => 0,
            _ => Self::LAYER_2,
        };
        Self {
            roce_enabled: false,
            mtu: 0,
            promiscuous: Promiscuous::default(),
            unicast: Vec::new(),
            multicast: Vec::new(),
            vlans: Vec::new(),
            mac: config.mac_of_port(1),
            min_inline,
            admin: AdminState::default(),
            received_down: 0,
            sent_down: 0,
        }
    }

    /// Whether nothing comes and nothing leaves, whatever the link is.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.admin == AdminState::Down
    }
}
