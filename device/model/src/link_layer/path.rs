//! What a packet travels by.

use std::fmt;

use hca_firmware::{Port, PortKind};
use hca_spec::cqe::Cqe;
use hca_spec::ids::{Gid, Lid};
use hca_spec::wire::Grh;
use hca_spec::wqe::Datagram;

use super::route::WrongGid;
use super::{eth, ib};
use crate::wire::GrhRepr;

/// What a packet travels by from its sender to its receiver, and what it shows of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    pub(super) link: LinkAddress,
    pub(super) grh: Option<GrhRepr>,
}

/// The part of a path that is its link layer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkAddress {
    /// InfiniBand.
    Ib(ib::Address),
    /// Ethernet.
    Eth(eth::Address),
}

impl LinkAddress {
    /// The link layer.
    pub(super) const fn kind(&self) -> PortKind {
        match self {
            Self::Ib(_) => PortKind::InfiniBand,
            Self::Eth(_) => PortKind::Ethernet,
        }
    }
}

impl Default for LinkAddress {
    fn default() -> Self {
        Self::Ib(ib::Address::default())
    }
}

/// A port at the other end of a path, as the link layer knows it. Ordered, to stand in keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Station {
    /// InfiniBand.
    Ib(Lid),
    /// Ethernet: by the network layer's address, as MAC addresses change on the way.
    Eth(Gid),
}

impl Station {
    /// Before all others in the order, and behind them.
    pub(crate) const ENDS: [Self; 2] = [Self::Ib(Lid(0)), Self::Eth(Gid([u8::MAX; 16]))];

    /// Where an address vector of a work request leads to.
    #[inline]
    pub(crate) fn of_vector(kind: PortKind, av: &Datagram) -> Self {
        match kind {
            PortKind::InfiniBand => Self::Ib(ib::Address::of_vector(av).0.dlid),
            PortKind::Ethernet => Self::Eth(Gid::new(av.get(Datagram::RGID_H), av.get(Datagram::RGID_L))),
        }
    }
}

impl fmt::Display for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ib(lid) => write!(f, "LID {:#x}", lid.0),
            Self::Eth(gid) => write!(f, "{gid}"),
        }
    }
}

impl From<ib::Address> for Path {
    /// Within an InfiniBand subnet.
    fn from(address: ib::Address) -> Self {
        Self { link: LinkAddress::Ib(address.travelling()), grh: None }
    }
}

impl Path {
    /// Of an Ethernet frame that wraps a transport packet with these addresses.
    pub fn of_roce(address: eth::Address, grh: GrhRepr) -> Self {
        Self { link: LinkAddress::Eth(address), grh: None }.with_grh(grh)
    }

    /// The same with a global route header. Its flow label has 20 bits.
    #[must_use]
    pub fn with_grh(self, grh: GrhRepr) -> Self {
        Self { grh: Some(GrhRepr { flow_label: grh.flow_label & 0xf_ffff, ..grh }), ..self }
    }

    /// The global route header, if one travels.
    pub fn grh(&self) -> Option<&GrhRepr> {
        self.grh.as_ref()
    }

    /// The addresses on InfiniBand, if that is the link layer.
    pub fn ib(&self) -> Option<&ib::Address> {
        match &self.link {
            LinkAddress::Ib(address) => Some(address),
            LinkAddress::Eth(_) => None,
        }
    }

    /// The addresses on Ethernet, if that is the link layer.
    pub fn eth(&self) -> Option<&eth::Address> {
        match &self.link {
            LinkAddress::Ib(_) => None,
            LinkAddress::Eth(address) => Some(address),
        }
    }

    /// Whether many may receive it.
    pub(crate) fn is_multicast(&self) -> bool {
        match &self.link {
            LinkAddress::Ib(address) => address.dlid.is_multicast(),
            LinkAddress::Eth(address) => address.dmac.is_group(),
        }
    }

    /// Back to where a RoCE v2 packet came from, to tell of congestion: with that DSCP, and that priority if it had a tag. `None`: it
    /// was for a group, or is no such packet.
    pub(crate) fn back_to_tell(&self, dscp: u8, priority: Option<u8>) -> Option<Self> {
        let (LinkAddress::Eth(address), Some(grh)) = (&self.link, &self.grh) else { return None };
        let back = address.reversed(priority).filter(|_| !self.is_multicast())?;
        let grh = GrhRepr { tclass: dscp << 2, sgid: grh.dgid, dgid: grh.sgid, ..*grh };
        Some(Self { link: LinkAddress::Eth(back), grh: Some(grh) })
    }

    /// The priority that an Ethernet port treats its packets by.
    pub(crate) fn priority(&self) -> u8 {
        match &self.link {
            LinkAddress::Ib(_) => 0,
            LinkAddress::Eth(address) => address.priority(),
        }
    }

    /// Whether it is the way of subnet management (SMPs), which is a lane of its own. Ethernet has none.
    pub(crate) fn is_managing(&self) -> bool {
        match &self.link {
            LinkAddress::Ib(address) => address.is_managing(),
            LinkAddress::Eth(_) => false,
        }
    }

    /// Where it comes from.
    #[inline]
    pub(crate) fn source(&self) -> Station {
        match &self.link {
            LinkAddress::Ib(address) => Station::Ib(address.slid),
            LinkAddress::Eth(_) => Station::Eth(self.grh.map_or(Gid::default(), |grh| grh.sgid)),
        }
    }

    /// Whether it comes from that port itself.
    pub(crate) fn is_from(&self, port: &Port) -> bool {
        match &self.link {
            LinkAddress::Ib(address) => address.is_from(port),
            LinkAddress::Eth(address) => address.is_from(port),
        }
    }

    /// Whether a packet that came by it to that port, where it goes by addresses, is for another one. Of Ethernet, who takes frames asks that.
    #[inline]
    pub(crate) fn is_for_another(&self, port: &Port) -> bool {
        match &self.link {
            LinkAddress::Ib(address) => address.is_for_another(port),
            LinkAddress::Eth(_) => false,
        }
    }

    /// The destination of its GRH, if that is no GID of the InfiniBand port that it came to: of a group, its members know. What never
    /// left its port has none that counts. Of Ethernet, who takes frames asks that.
    #[inline]
    pub(crate) fn stray_gid(&self, port: &Port) -> Option<WrongGid> {
        let dgid = self.grh.filter(|_| self.ib().is_some() && !self.is_forced())?.dgid;
        (!port.has_gid(dgid)).then(|| WrongGid { field: "dgid", found: Some(dgid), expected: port.gid(0) })
    }

    /// Whether it leads back to its port, whatever addresses that has.
    pub(crate) fn is_forced(&self) -> bool {
        match &self.link {
            LinkAddress::Ib(address) => address.forced,
            LinkAddress::Eth(address) => address.forced,
        }
    }

    /// What the completion of a receive says of where the packet comes from.
    pub(crate) fn tell_source(&self, cqe: &mut Cqe) {
        match &self.link {
            LinkAddress::Ib(address) => address.tell_source(cqe),
            LinkAddress::Eth(address) => address.tell_source(cqe),
        }
        cqe.set(Cqe::GRH, self.grh.is_some().into());
    }

    /// What the completion of a datagram says besides: by which address of `port` it came.
    pub(crate) fn tell_arrival(&self, port: Option<&Port>, cqe: &mut Cqe) {
        match &self.link {
            LinkAddress::Ib(address) => address.tell_arrival(port, cqe),
            LinkAddress::Eth(_) => {}
        }
    }

    /// Bytes of the headers that are in front of the BTH.
    pub fn header_size(&self) -> usize {
        let grh = if self.grh.is_some() { Grh::SIZE } else { 0 };
        match &self.link {
            LinkAddress::Ib(_) => grh + ib::Address::SIZE,
            LinkAddress::Eth(address) => address.header_size(),
        }
    }
}
