//! The sending side of an adapter's port on InfiniBand: which lane a packet takes, and whether it may leave.
//!
//! Source: IBTA vol 1 7.2 (states of a port), 7.6.6 (virtual lane of a service level), 7.6.8 (operational lanes).

use hca_firmware::Port;
use hca_spec::mad::{PortInfo, port_state};

use super::egress::Egress;
use super::{Address, Tables, VL15, operational_lanes};
use crate::link_layer::Packet;
use crate::link_layer::outlet::Fate;

/// Lanes, credits and arbitration of an adapter's port.
#[derive(Debug)]
pub(crate) struct IbOutlet {
    pub(in crate::link_layer) egress: Egress<()>,
    /// Lanes that the subnet manager lets the port use.
    lanes: u8,
    /// Bytes of the longest packet that may leave.
    longest: usize,
}

/// The lane of a packet, and whether it is one for it: subnet management stays on its own, others take that of their
/// service level. One whose service level leads to the management lane has none (7.6.6); it is counted on lane 0 until it
/// is discarded.
#[inline(always)]
fn lane(port: &Port, packet: &mut Packet, address: Address) -> (u8, bool) {
    let (lane, any) = match port.virtual_lane(0, address.sl) {
        _ if address.vl == VL15 => (VL15, true),
        VL15.. => (0, false),
        lane => (lane, true),
    };
    packet.set_lane(lane);
    (lane, any)
}

/// Puts a packet on its lane.
#[inline]
pub(in crate::link_layer) fn choose_lane(port: &Port, packet: &mut Packet) -> u8 {
    let address = packet.ib();
    lane(port, packet, address).0
}

/// Whether a packet is for a LID of the port, or is forced back to it.
#[inline]
pub(in crate::link_layer) fn keeps(port: &Port, packet: &Packet) -> bool {
    keeps_address(port, packet.ib())
}

#[inline]
fn keeps_address(port: &Port, address: Address) -> bool {
    address.forced || port.is_own_lid(address.dlid)
}

impl IbOutlet {
    pub(in crate::link_layer) fn new(management: usize) -> Self {
        let mut egress = Egress::default();
        egress.limits.management = management;
        Self { egress, lanes: 1, longest: usize::MAX }
    }

    #[inline(always)]
    pub(in crate::link_layer) fn admit(&self, port: &Port, packet: &mut Packet) -> Fate {
        let address = packet.ib();
        let smp = address.vl == VL15;
        let (lane, any) = lane(port, packet, address);
        let needed = if smp { port_state::INIT } else { port_state::ACTIVE };
        let may_leave = port.state >= needed && any && (smp || lane < self.lanes);
        let own = keeps_address(port, address);
        // What comes back to the port passes no link.
        Fate { lane, own, may_leave, fits: own || packet.len() <= self.longest }
    }

    pub(in crate::link_layer) fn configure(&mut self, port: &Port) {
        self.lanes = operational_lanes(port.info().get(PortInfo::OPERATIONAL_VLS));
        self.longest = port.longest();
        self.egress.program(Tables::of(port));
    }

    pub(in crate::link_layer) fn reset(&mut self) {
        let Self { egress: _, lanes, longest } = self;
        (*lanes, *longest) = (1, usize::MAX);
    }
}
