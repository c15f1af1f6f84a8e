//! What stands in front of a frame: MAC addresses, the tag, and how a transport packet is wrapped.

use std::fmt;

use hca_firmware::port::{Port, RoceAddress, RoceVersion};
use hca_spec::ids::Gid;
use hca_spec::wire::Grh;

/// A MAC address, first byte first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether it names a group (IEEE 802-2014 8.2.2).
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What follows the Ethernet header and its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wrapping {
    /// Anything: the frame is no transport packet.
    #[default]
    Frame,
    /// RoCE: a GRH, then the transport packet (IBTA vol 1 annex A16).
    V1,
    /// RoCE v2: an IP header and a UDP header (IBTA vol 1 annex A17).
    V2 {
        /// IPv4; otherwise IPv6.
        ipv4: bool,
        /// Source port of the UDP header.
        source_port: u16,
    },
}

/// Addresses of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Address {
    /// Destination.
    pub dmac: Mac,
    /// Source.
    pub smac: Mac,
    /// The tag's 16 bits: priority, DEI, VLAN (IEEE 802.1Q 9.6).
    pub tci: Option<u16>,
    /// What follows.
    pub wrapping: Wrapping,
    /// The priority that a port treats it by, if that is not the tag's: at its sender that of its queue where there is no
    /// tag, at a receiver that of its code point. Nothing of it is on the link.
    pub queue: Option<u8>,
    /// It comes back to its port, whatever that has of RoCE. Nothing of it is on the link.
    pub forced: bool,
}

/// Bits of a tag that hold the VLAN.
const VLAN_BITS: u16 = 0xfff;
/// Where a tag's priority stands.
const PRIORITY_SHIFT: u32 = 13;

impl Address {
    const HEADER: usize = 14;
    const TAG: usize = 4;
    const UDP: usize = 8;
    const IPV4: usize = 20;

    /// Bytes in front of the BTH.
    pub(in crate::link_layer) const fn header_size(&self) -> usize {
        let tag = if self.tci.is_some() { Self::TAG } else { 0 };
        Self::HEADER
            + tag
            + match self.wrapping {
                Wrapping::Frame => 0,
                Wrapping::V1 => Grh::SIZE,
                Wrapping::V2 { ipv4: true, .. } => Self::IPV4 + Self::UDP,
                Wrapping::V2 { ipv4: false, .. } => Grh::SIZE + Self::UDP,
            }
    }

    /// The VLAN; `None` without a tag and for one that has a priority only.
    #[must_use]
    pub const fn vlan(&self) -> Option<u16> {
        match self.tci {
            Some(tci) if tci & VLAN_BITS != 0 => Some(tci & VLAN_BITS),
            _ => None,
        }
    }

    /// The priority of its tag, 0 without one.
    #[must_use]
    pub const fn tagged_priority(&self) -> u8 {
        match self.tci {
            Some(tci) => (tci >> PRIORITY_SHIFT) as u8,
            None => 0,
        }
    }

    /// The priority that a port treats it by.
    #[must_use]
    pub const fn priority(&self) -> u8 {
        match self.queue {
            Some(priority) => priority & 7,
            None => self.tagged_priority(),
        }
    }

    /// Its sender's queue has that priority. A tag goes before it.
    pub(in crate::link_layer) fn queued(&mut self, priority: u8) {
        self.queue = if self.tci.is_none() && priority != 0 { Some(priority) } else { None };
    }

    /// The same as packets of a port's RoCE address have it: with its MAC, VLAN and version.
    pub(super) fn sent_by(self, own: &RoceAddress, priority: u8, source_port: u16) -> Self {
        let tag = |vlan: u16| vlan & VLAN_BITS | u16::from(priority & 7) << PRIORITY_SHIFT;
        let mut address = Self {
            dmac: self.dmac,
            smac: Mac(own.mac),
            tci: own.vlan.map(tag),
            wrapping: match own.version {
                RoceVersion::V1 => Wrapping::V1,
                RoceVersion::V2 => Wrapping::V2 { ipv4: own.ipv4, source_port },
            },
            queue: None,
            forced: self.forced,
        };
        address.queued(priority & 7);
        address
    }

    /// From a port that has no RoCE address back to it.
    pub(in crate::link_layer) fn led_back(mac: Mac) -> Self {
        Self { dmac: mac, smac: mac, wrapping: Wrapping::V1, forced: true, ..Self::default() }
    }

    /// Of a RoCE v2 packet: back to its sender, by that priority or its own.
    pub(in crate::link_layer) fn reversed(&self, priority: Option<u8>) -> Option<Self> {
        let priority = priority.unwrap_or(self.priority()) & 7;
        let tag = |tci: u16| tci & VLAN_BITS | u16::from(priority) << PRIORITY_SHIFT;
        let (tci, wrapping) = (self.tci.map(tag), self.wrapping);
        let mut back = Self { dmac: self.smac, smac: self.dmac, tci, wrapping, queue: None, forced: false };
        back.queued(priority);
        matches!(wrapping, Wrapping::V2 { .. }).then_some(back)
    }

    /// Whether a transport packet with these addresses that is for `dgid` is for an address of the port.
    pub(super) fn is_for(&self, dgid: &Gid, own: &RoceAddress) -> bool {
        let version = match own.version {
            RoceVersion::V1 => self.wrapping == Wrapping::V1,
            RoceVersion::V2 => matches!(self.wrapping, Wrapping::V2 { ipv4, .. } if ipv4 == own.ipv4),
        };
        version && own.gid == *dgid && own.mac == self.dmac.0 && own.vlan == self.vlan()
    }

    /// Whether a frame with these addresses was sent by that port.
    pub(in crate::link_layer) fn is_from(&self, port: &Port) -> bool {
        is_own(port, self.smac)
    }
}

/// Whether a MAC address is the port's.
pub(in crate::link_layer) fn is_own(port: &Port, mac: Mac) -> bool {
    port.ethernet()
        .is_some_and(|own| own.mac == mac.0 || own.roce_addresses().any(|(_, address)| address.mac == mac.0))
}
