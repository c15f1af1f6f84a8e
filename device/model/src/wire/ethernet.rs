//! An Ethernet frame: what its headers say, and where they are.
//!
//! [`Headers::parse`] looks at a frame once, without allocation. It takes frames of any bytes: what is short or malformed gives what
//! could be read before, and no more. How much it reads is bounded: two tags, [`MAX_EXTENSIONS`] extension headers, one
//! tunnel header. What is in a tunnel is another [`Headers`], for who asks ([`Headers::inner`]).
//!
//! A frame here ends before its frame check sequence, which [`fcs`] gives.
//!
//! Not here: IP in IP, MPLS, PPPoE: what they carry is payload. Geneve is looked into by who asks ([`Headers::parse_with`]).
//!
//! Source: as [`hca_spec::ether`] says.

#[cfg(test)]
pub(crate) mod build;
mod network;
#[cfg(test)]
mod tests;

use hca_spec::ether::{
    ADDRESSES_SIZE, FCS_SIZE, HEADER_SIZE, MAC_SIZE, MIN_FRAME, VXLAN_PORT, VlanTag, ethertype,
};

/// Extension headers of IPv6 that are looked at; what follows more of them is not known.
pub const MAX_EXTENSIONS: usize = 8;
/// The largest number of tags that are taken for tags.
pub const MAX_TAGS: usize = 2;

/// A MAC address.
pub type Mac = [u8; MAC_SIZE];

/// Whether frames to that address are for several stations.
pub fn is_multicast(mac: Mac) -> bool {
    const GROUP: u8 = 1;
    mac.first().is_some_and(|first| first & GROUP != 0)
}

/// Whether frames to that address are for all stations.
pub fn is_broadcast(mac: Mac) -> bool {
    mac == [0xff; MAC_SIZE]
}

/// The frame check sequence of a frame, as it travels (IEEE 802.3 3.2.9).
pub fn fcs(frame: &[u8]) -> [u8; FCS_SIZE] {
    crc32fast::hash(frame).to_le_bytes()
}

/// Pads a frame with zeros to the shortest length (IEEE 802.3 3.2.8).
pub fn pad(frame: &mut Vec<u8>) {
    if frame.len() < MIN_FRAME {
        frame.resize(MIN_FRAME, 0);
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tag {
    /// [`ethertype::C_TAG`] or [`ethertype::S_TAG`].
    pub tpid: u16,
    /// Priority, drop eligible, VLAN: [`VlanTag`].
    pub tci: u16,
}

impl Tag {
    /// VLAN, 12 bits.
    pub const fn vid(self) -> u16 {
        self.tci & 0xfff
    }

    /// Priority, 3 bits.
    pub const fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }

    /// Drop eligible.
    pub const fn drop_eligible(self) -> bool {
        self.tci >> 12 & 1 == 1
    }

    /// As it travels.
    pub fn bytes(self) -> [u8; VlanTag::SIZE] {
        *VlanTag::new().set(VlanTag::TPID, self.tpid.into()).set(VlanTag::TCI, self.tci.into()).bytes()
    }
}

/// Version of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IpVersion {
    /// Version 4.
    #[default]
    V4,
    /// Version 6.
    V6,
}

/// Which part of a datagram a frame has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragment {
    /// All of it.
    #[default]
    Whole,
    /// The beginning: the header of layer 4 is there.
    First,
    /// Something behind the beginning: no header of layer 4.
    Later,
}

/// What an IP header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ip {
    /// Version.
    pub version: IpVersion,
    /// Source address; that of IPv4 is in the last 4 bytes.
    pub source: [u8; 16],
    /// Destination address; that of IPv4 is in the last 4 bytes.
    pub destination: [u8; 16],
    /// What follows the header and its extensions, [`hca_spec::ether::protocol`]. Unknown extensions are what follows.
    pub protocol: u8,
    /// Differentiated services, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits.
    pub ecn: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Flow label of IPv6, 20 bits.
    pub flow_label: u32,
    /// Which part of the datagram it is.
    pub fragment: Fragment,
    /// Options of IPv4, or extension headers of IPv6.
    pub options: bool,
    /// Where the datagram ends in the frame: not beyond it.
    pub end: usize,
    /// The frame has all bytes that the header says.
    pub complete: bool,
}

/// What the header of layer 4 says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layer4 {
    /// Not IP, no header, or a protocol that is none of the others.
    #[default]
    None,
    /// TCP.
    Tcp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// [`hca_spec::ether::tcp_flags`], 9 bits.
        flags: u16,
        /// Bytes that the header says it has; may be less than 20, or more than there are.
        header: usize,
    },
    /// UDP.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// Bytes of header and payload that the header says.
        length: u16,
    },
    /// ICMP of IPv4 or IPv6.
    Icmp,
    /// Encapsulating security payload.
    Esp {
        /// Security parameter index.
        spi: u32,
    },
    /// Authentication header. What it authenticates is payload here.
    Ah {
        /// Security parameter index.
        spi: u32,
    },
    /// GRE: [`Headers::tunnel`].
    Gre,
}

/// How a tunnel carries frames or datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelKind {
    /// VXLAN.
    Vxlan {
        /// VXLAN network identifier, 24 bits.
        vni: u32,
    },
    /// GRE.
    Gre {
        /// [`ethertype`] of what is in it.
        protocol: u16,
        /// The key, if there is one.
        key: Option<u32>,
        /// There is a checksum.
        checksum: bool,
        /// There is a sequence number.
        sequence: bool,
    },
    /// Geneve.
    Geneve {
        /// [`ethertype`] of what is in it.
        protocol: u16,
        /// Virtual network identifier, 24 bits.
        vni: u32,
        /// Control packet.
        control: bool,
        /// Length of its options, in words.
        options: u8,
    },
}

/// A header that another frame or datagram follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Its kind.
    pub kind: TunnelKind,
    /// Where in the frame its header begins.
    pub start: usize,
    /// Where in the frame the inner one begins.
    pub inner: usize,
}

/// Where a base transport header of RoCE is, and what steers by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoceBth {
    /// Where in the frame it begins.
    pub offset: usize,
    /// Opcode.
    pub opcode: u8,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
}

/// What the headers of a frame say. Offsets count from the frame's first byte, in inner headers as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Destination address; zero within a tunnel that carries IP.
    pub dmac: Mac,
    /// Source address; zero within a tunnel that carries IP.
    pub smac: Mac,
    /// Tags, the outermost first; `tag_count` of them.
    pub tags: [Tag; MAX_TAGS],
    /// How many tags there are.
    pub tag_count: u8,
    /// The type behind the tags; a length if it is below 0x600. 0 if the frame ends before.
    pub ethertype: u16,
    /// Where layer 3 begins: behind the type.
    pub l3: usize,
    /// The IP header, if there is one.
    pub ip: Option<Ip>,
    /// Where layer 4 begins, if that is known and in this fragment.
    pub l4: Option<usize>,
    /// The header of layer 4.
    pub layer4: Layer4,
    /// The header of a tunnel.
    pub tunnel: Option<Tunnel>,
    /// RoCE's transport header, of version 1 or 2.
    pub bth: Option<RoceBth>,
}

/// What may be there to parse.
#[derive(Clone, Copy, Debug)]
struct Rules<'a> {
    /// UDP ports of VXLAN.
    vxlan_ports: &'a [u16],
    /// Only headers are there: lengths in IP headers are not looked at.
    headers_only: bool,
    /// Geneve, and GRE of version 1, are looked into.
    all_tunnels: bool,
}

const RULES: Rules<'static> = Rules { vxlan_ports: &[VXLAN_PORT], headers_only: false, all_tunnels: false };

/// The first `N` bytes at `offset`, if they lie before `end`.
#[inline(always)]
fn at<const N: usize>(frame: &[u8], offset: usize, end: usize) -> Option<&[u8; N]> {
    frame.get(offset..end)?.first_chunk()
}

impl Headers {
    /// The headers of a frame, with VXLAN at its usual port. None if it is shorter than the two addresses.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        Self::ethernet(frame, 0, &RULES)
    }

    /// As [`Headers::parse`], with VXLAN at these UDP ports, and all kinds of tunnels or not.
    pub fn parse_with(frame: &[u8], vxlan_ports: &[u16], all_tunnels: bool) -> Option<Self> {
        Self::ethernet(frame, 0, &Rules { vxlan_ports, all_tunnels, ..RULES })
    }

    /// The headers of a frame whose payload is elsewhere, with VXLAN at these UDP ports: lengths that its IP headers say are not
    /// looked at.
    pub fn parse_template(headers: &[u8], vxlan_ports: &[u16]) -> Option<Self> {
        Self::ethernet(headers, 0, &Rules { vxlan_ports, headers_only: true, ..RULES })
    }

    /// The headers of what is in the tunnel, if it is an Ethernet frame or an IP datagram.
    pub fn inner(&self, frame: &[u8]) -> Option<Self> {
        self.inner_with(frame, false)
    }

    /// As [`Headers::inner`], of what [`Headers::parse_template`] gave.
    pub fn inner_template(&self, headers: &[u8]) -> Option<Self> {
        self.inner_with(headers, true)
    }

    fn inner_with(&self, frame: &[u8], headers_only: bool) -> Option<Self> {
        let Tunnel { kind, inner, start: _ } = self.tunnel?;
        let rules = Rules { headers_only, ..RULES };
        // What lies behind the outer datagram is no part of the inner one.
        let frame = self.ip.map_or(Some(frame), |ip| frame.get(..ip.end))?;
        match kind {
            TunnelKind::Vxlan { .. } => Self::ethernet(frame, inner, &rules),
            TunnelKind::Gre { protocol: ethertype::ETHERNET, .. }
            | TunnelKind::Geneve { protocol: ethertype::ETHERNET, .. } => {
                Self::ethernet(frame, inner, &rules)
            }
            TunnelKind::Gre { protocol: ethertype @ (ethertype::IPV4 | ethertype::IPV6), .. }
            | TunnelKind::Geneve { protocol: ethertype @ (ethertype::IPV4 | ethertype::IPV6), .. } => {
                let mut headers = Self { ethertype, l3: inner, ..Self::default() };
                headers.network(frame, &rules);
                Some(headers)
            }
            TunnelKind::Gre { .. } | TunnelKind::Geneve { .. } => None,
        }
    }

    /// The tags.
    pub fn tags(&self) -> &[Tag] {
        self.tags.get(..self.tag_count.into()).unwrap_or_default()
    }

    /// The outermost tag, if it is of that type.
    pub fn outer_tag(&self, tpid: u16) -> Option<Tag> {
        self.tags().first().copied().filter(|tag| tag.tpid == tpid)
    }

    /// Whether the datagram is all there, not a fragment, and its layer 4 is TCP or UDP: what checksums are made of.
    pub fn has_whole_layer4(&self) -> bool {
        let whole = self.ip.is_some_and(|ip| ip.complete && ip.fragment == Fragment::Whole);
        whole && matches!(self.layer4, Layer4::Tcp { .. } | Layer4::Udp { .. })
    }

    fn ethernet(frame: &[u8], start: usize, rules: &Rules<'_>) -> Option<Self> {
        let addresses: &[u8; ADDRESSES_SIZE] = at(frame, start, frame.len())?;
        let (dmac, smac) = addresses.split_first_chunk::<MAC_SIZE>()?;
        let mut headers = Self {
            dmac: *dmac,
            smac: *smac.first_chunk()?,
            l3: start.saturating_add(ADDRESSES_SIZE),
            ..Self::default()
        };
        loop {
            let Some(kind) = at(frame, headers.l3, frame.len()) else { return Some(headers) };
            let kind = u16::from_be_bytes(*kind);
            let is_tag = matches!(kind, ethertype::C_TAG | ethertype::S_TAG);
            let place = headers.tags.get_mut(usize::from(headers.tag_count)).filter(|_| is_tag);
            let Some(place) = place else {
                headers.ethertype = kind;
                headers.l3 += HEADER_SIZE - ADDRESSES_SIZE;
                break;
            };
            let Some(tag) = at::<{ VlanTag::SIZE }>(frame, headers.l3, frame.len()) else {
                // A tag that is cut off: its type is what is known.
                headers.ethertype = kind;
                headers.l3 = frame.len();
                return Some(headers);
            };
            let tag = VlanTag::from_prefix_or_zero(tag);
            *place = Tag { tpid: kind, tci: tag.get(VlanTag::TCI) as u16 };
            headers.tag_count += 1;
            headers.l3 += VlanTag::SIZE;
        }
        headers.network(frame, rules);
        Some(headers)
    }
}
