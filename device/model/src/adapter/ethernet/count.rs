//! Counts frames at their port.

use hca_firmware::port::{Ethernet, FrameClass, Port};
use hca_spec::ether::FCS_SIZE;

use crate::link_layer::Packet;

/// Which way a frame passes a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It arrived, for the transport or not.
    In {
        /// For the transport.
        transport: bool,
    },
    /// It leaves.
    Out,
}

/// Counts a frame at its port, if that is Ethernet.
#[inline]
pub(crate) fn count_frame(port: &mut Port, packet: &Packet, way: Way) {
    if let Some(ethernet) = port.ethernet_mut() {
        let class = FrameClass::of(packet.eth().dmac.0);
        count_bytes(ethernet, (class, packet.len(), packet.lane()), way, packet.is_built());
    }
}

/// Counts a transport packet of `len` bytes that one port receives, at its port, if that is Ethernet.
#[inline]
pub(crate) fn count_unicast(port: &mut Port, (len, lane): (usize, u8), way: Way) {
    if let Some(ethernet) = port.ethernet_mut() {
        count_bytes(ethernet, (FrameClass::Unicast, len, lane), way, true);
    }
}

/// Counts a frame of so many bytes and that priority; `built`: it was made here, of a transport packet.
#[inline]
fn count_bytes(
    ethernet: &mut Ethernet,
    (class, len, priority): (FrameClass, usize, u8),
    way: Way,
    built: bool,
) {
    let octets = len.saturating_sub(FCS_SIZE) as u64;
    let counters = &mut ethernet.counters;
    match way {
        Way::In { transport } => {
            counters.received(class, octets, priority);
            if transport {
                counters.rx.count_roce(class, octets);
            }
        }
        Way::Out => {
            counters.sent(class, octets, priority);
            if built {
                counters.tx.count_roce(class, octets);
            }
        }
    }
}
