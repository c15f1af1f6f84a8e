//! Ethernet ports: frames, where they are steered to, and RoCE.
//!
//! What sends frames is a *send queue* ([`Sq`]) with a *transport interface* (TIS), what receives them a *receive queue*
//! ([`Rq`]). A frame that arrives walks through *flow tables* ([`flow`]) to a transport interface of receivers (TIR), and
//! from there to a queue, directly or by its hash through a table of queues (RQT). Sender and receiver of one *transport
//! domain* don't hear each other unless the TIR says so.
//!
//! ```text
//! let (pd, td) = (hca.alloc_pd()?, hca.alloc_transport_domain()?);
//! let tis = hca.create_tis(td, 0)?;
//! let mut sq = hca.create_sq(&SqConfig::new(tis, &cq))?;
//! hca.sq_to_ready(&mut sq)?;
//! sq.post(hca.bus_mut(), &FrameRequest::new(1, &frame_header, &[sge]))?;
//! ```

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use hca_spec::cmd::{ObjectIn, reg};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::cqe::Cqe;
use hca_spec::ids::Gid;
use hca_spec::nic_vport::{
    ModifyNicVportContextIn, NicVportContext, QueryNicVportContextOut, QueryVportStateOut, ROCE_IPV4,
    ROCE_IPV6, ROCE_V1, ROCE_V2, RoceAddr, RoceAddressIn, VportIn, nic_vport_select,
};
use hca_spec::register::Pmtu;

pub mod flow;
mod interfaces;
mod rq;
mod sq;

pub use crate::wqe::{FrameRequest, FrameWork};
pub use flow::{Destination, FlowEntry, FlowGroup, FlowTable};
pub use interfaces::{HashRules, MergeRules, Rqt, Tir, Tis, TransportDomain};
pub use rq::{Rq, RqConfig};
pub use sq::{QueueState, Sq, SqConfig};

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The first two bytes and the last four, as contexts have them.
    pub(crate) const fn halves(self) -> (u16, u32) {
        let [a, b, c, d, e, f] = self.0;
        (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
    }
}

/// What the way to a RoCE peer has beside its GID (PRM "Address Path", fields of Ethernet).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The next station.
    pub mac: Mac,
    /// Priority of the VLAN tag, if the own address has a VLAN.
    pub priority: u8,
    /// Source port of UDP; 0: the adapter chooses.
    pub source_port: u16,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

impl Hop {
    /// To that station: priority 0, hop limit 64, traffic class 0; the adapter chooses the port.
    pub const fn to(mac: Mac) -> Self {
        Self { mac, priority: 0, source_port: 0, hop_limit: 64, traffic_class: 0 }
    }
}

/// A version of RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoceVersion {
    /// Over Ethernet, with a GRH.
    V1,
    /// Over UDP.
    V2,
}

/// An entry of the port's table of RoCE addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoceAddress {
    /// The GID; an IPv4 address is mapped into IPv6 ([`ipv4_gid`]).
    pub gid: Gid,
    /// MAC address of packets.
    pub mac: Mac,
    /// VLAN of packets.
    pub vlan: Option<u16>,
    /// How packets are wrapped.
    pub version: RoceVersion,
}

/// The GID of an IPv4 address: `::ffff:a.b.c.d` (IBTA vol 1 A17.3.1.3).
pub const fn ipv4_gid(address: [u8; 4]) -> Gid {
    let [a, b, c, d] = address;
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
}

impl RoceAddress {
    /// Whether packets of version 2 are IPv4.
    fn is_ipv4(&self) -> bool {
        self.gid.0.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
    }

    fn layout(&self) -> RoceAddr {
        let mut to = RoceAddr::new();
        to.set(RoceAddr::SOURCE_L3_ADDRESS_H, hca_spec::be64(&self.gid.0, 0));
        to.set(RoceAddr::SOURCE_L3_ADDRESS_L, hca_spec::be64(&self.gid.0, 8));
        let (high, low) = self.mac.halves();
        to.set(RoceAddr::SOURCE_MAC_47_32, high.into()).set(RoceAddr::SOURCE_MAC_31_0, low);
        if let Some(vlan) = self.vlan {
            to.set(RoceAddr::VLAN_VALID, 1).set(RoceAddr::VLAN_ID, vlan.into());
        }
        to.set(RoceAddr::ROCE_VERSION, if self.version == RoceVersion::V1 { ROCE_V1 } else { ROCE_V2 });
        to.set(RoceAddr::ROCE_L3_TYPE, if self.is_ipv4() { ROCE_IPV4 } else { ROCE_IPV6 });
        to
    }
}

/// The longest frame of a port where RoCE has a path MTU of 4096 bytes: what an operating system calls an MTU of 4200, 104 bytes of it for the
/// headers between Ethernet's and the payload (Linux counts 96: `iboe_get_mtu`).
pub const ROCE_FRAME: u16 = 4200 + 22;

/// What a completion says of a received frame (PRM "Completion Queue Entry Format").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FrameReport {
    /// The hash.
    pub hash: u32,
    /// Addresses in the hash: a value of [`hca_spec::cqe::rss_l3`].
    pub hash_l3: u8,
    /// Ports in the hash: a value of [`hca_spec::cqe::rss_l4`].
    pub hash_l4: u8,
    /// Ones-complement sum of the IP datagram.
    pub checksum: u16,
    /// The checksum of the IPv4 header is right, or there is none.
    pub l3_ok: bool,
    /// The checksum of TCP or UDP is right.
    pub l4_ok: bool,
    /// A value of [`hca_spec::cqe::l3_header_type`].
    pub l3_type: u8,
    /// A value of [`hca_spec::cqe::l4_header_type`].
    pub l4_type: u8,
    /// It is a fragment of an IP datagram.
    pub is_fragment: bool,
    /// TCI of the tag that was taken out.
    pub vlan: Option<u16>,
    /// The flow tag.
    pub flow_tag: u32,
    /// Queues whose frames take strides: place of the WQE. [`crate::Completion::wqe_index`] is the first stride then.
    pub wqe: u16,
    /// It is several segments of TCP: `checksum` is that of their data, and their headers are to be made of the first one's.
    pub merged: Option<MergeReport>,
}

/// What an entry says of segments that were merged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MergeReport {
    /// How many there are.
    pub segments: u8,
    /// The last has the flag PSH.
    pub pushed: bool,
    /// The last acknowledgement number.
    pub acknowledged: u32,
    /// The last window.
    pub window: u16,
    /// The least time to live.
    pub ttl: u8,
}

impl MergeReport {
    fn decode(cqe: &Cqe) -> Option<Self> {
        let segments = cqe.get(Cqe::LRO_NUM_SEG) as u8;
        (segments > 1).then(|| Self {
            segments,
            pushed: cqe.get(Cqe::LRO_TCPPSH) == 1,
            acknowledged: cqe.get(Cqe::LRO_ACK_SEQ_NUM),
            window: cqe.get(Cqe::LRO_TCP_WIN) as u16,
            ttl: cqe.get(Cqe::LRO_MIN_TTL) as u8,
        })
    }
}

impl FrameReport {
    /// Decodes an entry.
    pub fn decode(cqe: &Cqe) -> Self {
        Self {
            hash: cqe.get(Cqe::RSS_HASH_RESULT),
            hash_l3: cqe.get(Cqe::RSS_HASH_L3) as u8,
            hash_l4: cqe.get(Cqe::RSS_HASH_L4) as u8,
            checksum: cqe.get(Cqe::CHECK_SUM) as u16,
            l3_ok: cqe.get(Cqe::L3_OK) == 1,
            l4_ok: cqe.get(Cqe::L4_OK) == 1,
            l3_type: cqe.get(Cqe::L3_HEADER_TYPE) as u8,
            l4_type: cqe.get(Cqe::L4_HEADER_TYPE) as u8,
            is_fragment: cqe.get(Cqe::IP_FRAGMENT) == 1,
            vlan: (cqe.get(Cqe::VLAN_STRIPPED) == 1).then(|| cqe.get(Cqe::VLAN_INFO) as u16),
            flow_tag: cqe.get(Cqe::FLOW_TAG),
            wqe: cqe.get(Cqe::WQE_ID) as u16,
            merged: MergeReport::decode(cqe),
        }
    }
}

impl<B: Bus> Hca<B> {
    /// The NIC virtual port: permanent address, MTU, RoCE (PRM "QUERY_NIC_VPORT_CONTEXT").
    pub fn nic_vport(&mut self) -> Result<NicVportContext, Error> {
        let input = VportIn::new().bytes().to_vec();
        let out = self.execute(Opcode::QueryNicVportContext, 0, input, QueryNicVportContextOut::SIZE)?;
        Ok(*QueryNicVportContextOut::from_prefix_or_zero(&out).context())
    }

    /// The port's permanent address.
    pub fn mac(&mut self) -> Result<Mac, Error> {
        let vport = self.nic_vport()?;
        let [a, b] = (vport.get(NicVportContext::PERMANENT_ADDRESS_47_32) as u16).to_be_bytes();
        let [c, d, e, f] = vport.get(NicVportContext::PERMANENT_ADDRESS_31_0).to_be_bytes();
        Ok(Mac([a, b, c, d, e, f]))
    }

    /// Sets the longest frame that a port takes, check sequence and a tag included, in bytes (PRM "PMTU").
    pub fn set_port_mtu(&mut self, port: u8, bytes: u16) -> Result<(), Error> {
        let mut register = Pmtu::new();
        register.set(Pmtu::LOCAL_PORT, port.into()).set(Pmtu::ADMIN_MTU, bytes.into());
        self.write_register(reg::PMTU, register.bytes())
    }

    /// Lets packets of RoCE with a path MTU of 4096 bytes pass a port, as stock drivers do with the MTU of their network device: the largest
    /// frame of the port (PRM "PMTU"), then that of its virtual port (PRM "MODIFY_NIC_VPORT_CONTEXT"; mlx5 driver,
    /// `mlx5e_set_dev_port_mtu`). At power-on frames have 1522 bytes, which is enough for a path MTU of 1024.
    ///
    /// # Errors
    /// A command failed.
    pub fn set_roce_mtu(&mut self, port: u8) -> Result<(), Error> {
        self.set_port_mtu(port, ROCE_FRAME)?;
        let mut input = ModifyNicVportContextIn::new();
        input.set(ModifyNicVportContextIn::FIELD_SELECT, nic_vport_select::MTU);
        input.context_mut().set(NicVportContext::MTU, ROCE_FRAME.into());
        let input = input.bytes().to_vec();
        self.execute(Opcode::ModifyNicVportContext, 0, input, OutHeader::SIZE).map(drop)
    }

    /// Whether the port is up (PRM "QUERY_VPORT_STATE").
    pub fn vport_is_up(&mut self) -> Result<bool, Error> {
        let input = VportIn::new().bytes().to_vec();
        let out = self.execute(Opcode::QueryVportState, 0, input, QueryVportStateOut::SIZE)?;
        Ok(QueryVportStateOut::from_prefix_or_zero(&out).get(QueryVportStateOut::STATE) == 1)
    }

    /// Enables or disables RoCE: without it, packets of RoCE are frames like others.
    pub fn set_roce(&mut self, enabled: bool) -> Result<(), Error> {
        let mut input = ModifyNicVportContextIn::new();
        input.set(ModifyNicVportContextIn::FIELD_SELECT, nic_vport_select::ROCE_EN);
        input.context_mut().set(NicVportContext::ROCE_EN, enabled.into());
        let input = input.bytes().to_vec();
        self.execute(Opcode::ModifyNicVportContext, 0, input, OutHeader::SIZE).map(drop)
    }

    /// Sets an entry of the port's table of RoCE addresses, or takes it out (PRM "SET_ROCE_ADDRESS").
    pub fn set_roce_address(
        &mut self,
        port: u8,
        index: u8,
        address: Option<&RoceAddress>,
    ) -> Result<(), Error> {
        let mut input = RoceAddressIn::new();
        input.set(RoceAddressIn::ROCE_ADDRESS_INDEX, index.into());
        input.set(RoceAddressIn::VHCA_PORT_NUM, port.into());
        if let Some(address) = address {
            *input.address_mut() = address.layout();
        }
        self.execute(Opcode::SetRoceAddress, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Allocates an object that has nothing but a number.
    fn allocate(&mut self, opcode: Opcode) -> Result<u32, Error> {
        self.create(opcode, 0, ObjectIn::new().bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_their_layout() {
        let mac = Mac([2, 0, 0xc9, 0xa0, 0, 1]);
        let gid = ipv4_gid([10, 0, 0, 1]);
        let address = RoceAddress { gid, mac, vlan: Some(0x123), version: RoceVersion::V2 };
        let bytes = *address.layout().bytes();
        assert_eq!(
            bytes[8..0x1c],
            [0, 0, 0xff, 0xff, 10, 0, 0, 1, 0x11, 0x23, 2, 0, 0xc9, 0xa0, 0, 1, 0, 0, 0, 2]
        );
        let other = RoceAddress { gid: Gid::new(1, 2), vlan: None, version: RoceVersion::V1, ..address };
        assert_eq!(other.layout().bytes()[0x10..0x1c], [0, 0, 2, 0, 0xc9, 0xa0, 0, 1, 0, 0, 1, 0]);
    }
}
