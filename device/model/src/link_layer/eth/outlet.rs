//! The sending side of an adapter's port on Ethernet: which priority a frame has, and whether it may leave.
//!
//! Source: IEEE 802.1Q 8.6.6 (queues), 802.3 annex 31B (pause).

use hca_firmware::Port;
use hca_spec::mad::port_state;

use super::frame::peek;
use super::is_own;
use crate::link_layer::Packet;
use crate::link_layer::ib::egress::Egress;
use crate::link_layer::outlet::Fate;

/// A queue for each priority. The link's rate holds them back, the peer's pauses, and the limits of their traffic classes.
#[derive(Debug, Default)]
pub(crate) struct EthOutlet {
    pub(in crate::link_layer) egress: Egress<()>,
}

/// Whether a frame is for the port itself, or is forced back to it.
#[inline]
pub(in crate::link_layer) fn keeps(port: &Port, packet: &Packet) -> bool {
    let address = packet.eth();
    address.forced || !address.dmac.is_group() && is_own(port, address.dmac)
}

/// Whether a frame of these bytes, from the destination's address on, that a queue of that priority sends is for the port itself, and
/// which lane it is on.
pub(in crate::link_layer) fn foresee(port: &Port, frame: &[u8], priority: u8) -> (bool, u8) {
    let (mut address, _) = peek(frame);
    address.queued(priority);
    (!address.dmac.is_group() && is_own(port, address.dmac), address.priority())
}

impl EthOutlet {
    pub(in crate::link_layer) fn configure(&mut self, port: &Port) {
        if let Some(ethernet) = port.ethernet() {
            self.egress.classify(&ethernet.classes);
        }
    }

    #[inline]
    pub(in crate::link_layer) fn admit(&self, port: &Port, packet: &Packet) -> Fate {
        Fate {
            lane: packet.lane(),
            own: keeps(port, packet),
            may_leave: port.state == port_state::ACTIVE,
            fits: packet.len() <= port.longest(),
        }
    }
}
