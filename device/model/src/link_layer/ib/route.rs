//! InfiniBand's part of routes: what contexts, address vectors and packets say of LIDs, and what completions say.

use hca_firmware::Port;
use hca_spec::cqe::Cqe;
use hca_spec::ids::Lid;
use hca_spec::qpc::AddressPath;
use hca_spec::wqe::Datagram;

use super::{Address, VL15};

/// Path bits of a LID: which of a port's LIDs is meant.
pub(in crate::link_layer) type PathBits = u8;

impl Address {
    /// To where an address path of a context leads, and which LID of the port is the sender's.
    pub(in crate::link_layer) fn of_context(path: &AddressPath) -> (Self, PathBits) {
        let (sl, dlid) = (path.get(AddressPath::SL) as u8, Lid(path.get(AddressPath::RLID) as u16));
        (Self { sl, dlid, ..Self::default() }, path.get(AddressPath::MLID) as u8)
    }

    /// The same of an address vector.
    pub(in crate::link_layer) fn of_vector(av: &Datagram) -> (Self, PathBits) {
        let (sl, dlid) = (av.get(Datagram::SL) as u8, Lid(av.get(Datagram::RLID) as u16));
        (Self { sl, dlid, ..Self::default() }, av.get(Datagram::MLID) as u8)
    }

    /// Back to where a packet with these addresses came from, by the same LID of the port that it came to.
    pub(in crate::link_layer) fn back(&self, port: Option<&Port>) -> (Self, PathBits) {
        let path_bits = port.map_or(0, |port| port.path_bits(self.dlid)) as u8;
        (Self { sl: self.sl, dlid: self.slid, ..Self::default() }, path_bits)
    }

    /// On the lane of subnet management.
    pub(in crate::link_layer) fn managing(self) -> Self {
        Self { vl: VL15, ..self }
    }

    /// Whether it is on that lane.
    pub(in crate::link_layer) fn is_managing(&self) -> bool {
        self.vl == VL15
    }

    /// The same from a port.
    pub(in crate::link_layer) fn sent_by(self, port: &Port, path_bits: PathBits) -> Self {
        Self { slid: port.source_lid(path_bits.into()), ..self }
    }

    /// From a port back to it, by the LID that is the sender's.
    pub(in crate::link_layer) fn led_back(self) -> Self {
        Self { dlid: self.slid, forced: true, ..self }
    }

    /// Whether a packet with these addresses was sent by that port.
    pub(in crate::link_layer) fn is_from(&self, port: &Port) -> bool {
        self.forced || port.is_own_lid(self.slid)
    }

    /// Whether a packet that came to that port has the DLID of another one (IBTA 7.3.1), or the permissive one, by which nothing but QP0 is
    /// reached (IBTA 9.6.1.4.1). What never left its port has none that counts, and a port without a LID none to compare.
    #[inline]
    pub(in crate::link_layer) fn is_for_another(&self, port: &Port) -> bool {
        let unicast = !self.dlid.is_multicast() && !self.forced;
        unicast && !port.is_own_lid(self.dlid) && (port.lid().0 != 0 || self.dlid == Lid::PERMISSIVE)
    }

    /// What the completion of a receive says of the sender.
    #[inline]
    pub(in crate::link_layer) fn tell_source(&self, cqe: &mut Cqe) {
        cqe.set(Cqe::SLID, self.slid.0.into()).set(Cqe::SL, self.sl.into());
    }

    /// What the completion of a datagram says besides: the path bits of the LID that it came to.
    pub(in crate::link_layer) fn tell_arrival(&self, port: Option<&Port>, cqe: &mut Cqe) {
        cqe.set(Cqe::ML_PATH, port.map_or(0, |port| port.path_bits(self.dlid)));
    }
}
