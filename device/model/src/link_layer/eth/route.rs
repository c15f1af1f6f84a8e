//! Ethernet's part of routes: what contexts and address vectors say of MAC addresses, tags and ports, and what completions
//! say.
//!
//! Source: PRM "Address Path" and "Datagram Segment" (fields of RoCE), "CQE"; IBTA vol 1 annex A17; mlx5 driver (field use).

use hca_firmware::Port;
use hca_spec::cqe::Cqe;
use hca_spec::ids::Gid;
use hca_spec::qpc::AddressPath;
use hca_spec::wqe::Datagram;

use super::{Address, Mac, Wrapping};

/// What packets show of their sender beside its address in the port's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::link_layer) struct Sender {
    /// Priority.
    priority: u8,
    /// Source port of RoCE v2.
    source_port: u16,
    /// Whether its packets are ECN-capable is the adapter's to say: they are a connection's, and its context does not.
    asks: bool,
}

/// ECN-capable, and the bits of a traffic class that say so (RFC 3168 section 5).
const ECT_0: u8 = 0b10;
const ECN: u8 = 0b11;

impl Sender {
    /// The traffic class of packets that go out of a port with those addresses: a priority whose flows slow down when they are told
    /// of congestion is ECN-capable.
    pub(in crate::link_layer) fn traffic_class(self, port: &Port, address: &Address, class: u8) -> u8 {
        let v2 = matches!(address.wrapping, Wrapping::V2 { .. });
        let reacts = port.ethernet().is_some_and(|own| own.congestion.reacts >> address.priority() & 1 == 1);
        match self.asks {
            true => class & !ECN | if v2 && reacts { ECT_0 } else { 0 },
            false => class,
        }
    }
}

/// Ports that stand for a flow label (IBTA vol 1 A17.3.1.2: 0xc000 to 0xffff).
fn port_of(flow_label: u32) -> u16 {
    const FIRST: u16 = 0xc000;
    const BITS: u32 = 0x3fff;
    (flow_label & BITS ^ flow_label >> 14 & BITS) as u16 | FIRST
}

/// The traffic class that an address path says in fields of RoCE v2.
pub(in crate::link_layer) fn tos_of(path: &AddressPath) -> u8 {
    (path.get(AddressPath::DSCP) << 2 | path.get(AddressPath::ECN)) as u8
}

impl Address {
    /// To where an address path of a context leads, and what it says of the sender.
    pub(in crate::link_layer) fn of_context(path: &AddressPath) -> (Self, Sender) {
        let [a, b] = (path.get(AddressPath::RMAC_47_32) as u16).to_be_bytes();
        let [c, d, e, f] = path.get(AddressPath::RMAC_31_0).to_be_bytes();
        let dmac = Mac([a, b, c, d, e, f]);
        let source_port = match path.get(AddressPath::UDP_SPORT) as u16 {
            0 => port_of(path.get(AddressPath::FLOW_LABEL)),
            port => port,
        };
        let priority = path.get(AddressPath::ETH_PRIO) as u8;
        let asks = (path.get(AddressPath::TCLASS) as u8 | tos_of(path)) & ECN == 0;
        (Self { dmac, ..Self::default() }, Sender { priority, source_port, asks })
    }

    /// The same of an address vector.
    pub(in crate::link_layer) fn of_vector(av: &Datagram) -> (Self, Sender) {
        let [a, b, c, d] = av.get(Datagram::RMAC_H).to_be_bytes();
        let [e, f] = (av.get(Datagram::RMAC_L) as u16).to_be_bytes();
        let dmac = Mac([a, b, c, d, e, f]);
        let source_port = match av.get(Datagram::UDP_SPORT) as u16 {
            0 => port_of(av.get(Datagram::FLOW_LABEL)),
            port => port,
        };
        let priority = av.get(Datagram::ETH_PRIO) as u8;
        (Self { dmac, ..Self::default() }, Sender { priority, source_port, asks: false })
    }

    /// Back to where a packet with these addresses came from.
    pub(in crate::link_layer) fn back(&self) -> (Self, Sender) {
        let source_port = match self.wrapping {
            Wrapping::V2 { source_port, .. } => source_port,
            _ => port_of(0),
        };
        let sender = Sender { priority: self.tagged_priority(), source_port, asks: false };
        (Self { dmac: self.smac, ..Self::default() }, sender)
    }

    /// The same as the port's address of that index sends it. One that is empty leaves the packet without a wrapping: nobody
    /// takes it.
    pub(in crate::link_layer) fn with_sender(self, port: &Port, index: u8, sender: Sender) -> Self {
        match port.roce_address(index) {
            Some(own) => self.sent_by(own, sender.priority, sender.source_port),
            None => Self { dmac: self.dmac, ..Self::default() },
        }
    }

    /// Whether a transport packet with these addresses that is for `dgid` is for one of the port's addresses.
    pub(in crate::link_layer) fn reaches(&self, dgid: &Gid, port: &Port) -> bool {
        port.ethernet().is_some_and(|own| own.roce_addresses().any(|(_, own)| self.is_for(dgid, own)))
    }

    /// What the completion of a receive says of the sender: which network header the packet had, in the place of the service
    /// level, and its tag.
    #[inline]
    pub(in crate::link_layer) fn tell_source(&self, cqe: &mut Cqe) {
        const GRH: u32 = 0;
        const IPV6: u32 = 1;
        const IPV4: u32 = 2;
        let header = match self.wrapping {
            Wrapping::V2 { ipv4: true, .. } => IPV4,
            Wrapping::V2 { ipv4: false, .. } => IPV6,
            _ => GRH,
        };
        cqe.set(Cqe::SL, header);
        if let Some(tci) = self.tci {
            cqe.set(Cqe::VLAN_STRIPPED, 1).set(Cqe::VLAN_INFO, tci.into());
        }
    }
}
