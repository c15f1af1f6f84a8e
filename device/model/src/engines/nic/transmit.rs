//! The last touches of a frame that a send queue sends: checksums, a VLAN tag, padding.
//!
//! Source: PRM "Ethernet segment" and the mlx5 driver (field use); for the checksums see [`crate::wire::checksum`].

use hca_firmware::steering::VxlanPorts;
use hca_spec::ether::{ADDRESSES_SIZE, HEADER_SIZE, Ipv4, Tcp, Udp, VlanTag};
use hca_spec::wqe::cs_flags;

use super::Refused;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{Fragment, Headers, IpVersion, Layer4, Tag, pad};

/// Which checksums a frame gets: `EthSeg::CS_FLAGS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksums {
    /// That of the IPv4 header.
    pub l3: bool,
    /// That of TCP or UDP.
    pub l4: bool,
    /// That of the IPv4 header within a tunnel.
    pub inner_l3: bool,
    /// That of TCP or UDP within a tunnel.
    pub inner_l4: bool,
}

impl Checksums {
    /// From [`cs_flags`]; other bits ask for what the adapter has not (they are of features without a capability) and are ignored.
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            l3: bits & cs_flags::L3 != 0,
            l4: bits & cs_flags::L4 != 0,
            inner_l3: bits & cs_flags::L3_INNER != 0,
            inner_l4: bits & cs_flags::L4_INNER != 0,
        }
    }

    /// Whether something within a tunnel is asked for.
    pub const fn is_inner(self) -> bool {
        self.inner_l3 || self.inner_l4
    }

    const fn is_any(self) -> bool {
        self.l3 || self.l4 || self.is_inner()
    }
}

/// How much of a frame has to be in the inline header (`min_wqe_inline_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InlineMode {
    /// Nothing.
    #[default]
    None,
    /// The Ethernet header.
    L2,
    /// The headers of layers 2 and 3.
    Ip,
    /// The headers of layers 2 to 4.
    TcpUdp,
}

impl InlineMode {
    /// Mode of that number (`min_wqe_inline_mode` of the SQ context). None: there is no such mode.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::None,
            1 => Self::L2,
            2 => Self::Ip,
            3 => Self::TcpUdp,
            _ => return None,
        })
    }

    /// Whether an inline header of `inlined` bytes is enough for a frame. What a frame does not have need not be there.
    pub fn is_satisfied(self, inlined: usize, headers: &Headers) -> bool {
        let l4_end = || {
            let header = match headers.layer4 {
                Layer4::Tcp { header, .. } => header.max(Tcp::SIZE),
                Layer4::Udp { .. } => Udp::SIZE,
                _ => 0,
            };
            headers.l4.map(|l4| l4.saturating_add(header))
        };
        let needed = match self {
            Self::None => 0,
            Self::L2 => HEADER_SIZE,
            Self::Ip => headers.l4.unwrap_or(HEADER_SIZE),
            Self::TcpUdp => l4_end().unwrap_or(HEADER_SIZE),
        };
        inlined >= needed
    }
}

/// What a frame still needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    /// Checksums to insert.
    pub checksums: Checksums,
    /// A tag to insert behind the addresses.
    pub vlan: Option<Tag>,
    /// The longest frame that is made, without FCS, with the inserted tag: whether its port sends one that long is found out there.
    pub max_frame: usize,
    /// Ports at which it may be a tunnel.
    pub vxlan_ports: VxlanPorts,
}

impl Finish {
    /// Finishes a frame: addresses to payload, without FCS. Its cost is that of the frame's bytes.
    ///
    /// # Errors
    /// It is shorter than its header, or longer than `max_frame`.
    pub fn apply(&self, frame: &mut Vec<u8>) -> Result<(), Refused> {
        let inserted = self.vlan.map_or(0, |_| VlanTag::SIZE);
        if frame.len() < HEADER_SIZE {
            return Err(Refused::length("the frame is shorter than an Ethernet header"));
        }
        if frame.len().saturating_add(inserted) > self.max_frame {
            return Err(Refused::length("the frame is longer than any port's"));
        }
        insert_checksums(frame, self.checksums, &self.vxlan_ports);
        if let Some(tag) = self.vlan {
            frame.splice(ADDRESSES_SIZE..ADDRESSES_SIZE, tag.bytes());
        }
        pad(frame);
        Ok(())
    }
}

/// Inserts checksums into a frame. What stands in their fields is replaced. What a frame has not gets none: layer 3 of IPv6,
/// layer 4 of fragments, of datagrams that are cut off, and of protocols other than TCP and UDP.
pub fn insert_checksums(frame: &mut [u8], which: Checksums, vxlan: &VxlanPorts) {
    if !which.is_any() {
        return;
    }
    let Some(headers) = Headers::parse_with(frame, vxlan.as_slice(), false) else { return };
    // The outer layer 4 covers the inner checksums.
    if let Some(inner) = which.is_inner().then(|| headers.inner(frame)).flatten() {
        insert(frame, &inner, which.inner_l3, which.inner_l4);
    }
    insert(frame, &headers, which.l3, which.l4);
}

fn insert(frame: &mut [u8], headers: &Headers, l3: bool, l4: bool) {
    if l3 {
        insert_l3(frame, headers);
    }
    if l4 && headers.has_whole_layer4() {
        insert_l4(frame, headers);
    }
}

/// Writes a 16-bit field; beyond the frame nothing.
pub(super) fn put_be16(frame: &mut [u8], at: usize, value: u16) {
    if let Some(place) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value.to_be_bytes();
    }
}

/// Reads a 16-bit field; beyond the frame it is 0.
pub(super) fn be16(frame: &[u8], at: usize) -> u16 {
    let field = frame.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u16::from_be_bytes(*field))
}

/// Offsets of the checksums in their headers.
pub(super) const IPV4_CHECKSUM: usize = Ipv4::CHECKSUM.offset() + 2;
pub(super) const TCP_CHECKSUM: usize = Tcp::CHECKSUM.offset();
pub(super) const UDP_CHECKSUM: usize = Udp::CHECKSUM.offset() + 2;

/// The checksum of an IPv4 header.
fn insert_l3(frame: &mut [u8], headers: &Headers) {
    if headers.ip.is_none_or(|ip| ip.version != IpVersion::V4) {
        return;
    }
    let header = ipv4_header(frame, headers.l3);
    let at = headers.l3.saturating_add(IPV4_CHECKSUM);
    put_be16(frame, at, 0);
    let sum = frame.get(headers.l3..header).map(Sum::of).unwrap_or_default();
    put_be16(frame, at, sum.checksum());
}

/// Where an IPv4 header ends that begins at `l3`.
fn ipv4_header(frame: &[u8], l3: usize) -> usize {
    const IHL: u8 = 0xf;
    let words = frame.get(l3).map_or(0, |first| usize::from(first & IHL));
    l3.saturating_add(words * 4)
}

/// The checksum of TCP or UDP. Its length is what IP says, also for UDP, whose own length says the same.
fn insert_l4(frame: &mut [u8], headers: &Headers) {
    let (Some(ip), Some(l4)) = (headers.ip, headers.l4) else { return };
    let (at, is_udp) = match headers.layer4 {
        Layer4::Tcp { .. } => (l4.saturating_add(TCP_CHECKSUM), false),
        Layer4::Udp { .. } => (l4.saturating_add(UDP_CHECKSUM), true),
        _ => return,
    };
    put_be16(frame, at, 0);
    let Some(bytes) = frame.get(l4..ip.end) else { return };
    let sum = Sum::pseudo_header(&ip, ip.protocol, bytes.len()).and(Sum::of(bytes));
    put_be16(frame, at, l4_checksum(sum, is_udp));
}

/// What the field of TCP or UDP gets: UDP has 0 for "none", so that 0 is written as its other form (RFC 768).
pub(super) const fn l4_checksum(sum: Sum, is_udp: bool) -> u16 {
    match sum.checksum() {
        0 if is_udp => 0xffff,
        checksum => checksum,
    }
}

/// Whether the checksums of a frame's headers are right, and the sum of its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// IPv4 header; IPv6 has none and is right.
    pub l3: bool,
    /// TCP or UDP. False for fragments and other protocols.
    pub l4: bool,
    /// Sum of the datagram from the IP header to its end.
    pub complete: Sum,
}

/// Checks a received frame; sums each byte once. Nothing is right about a frame that has no IP.
pub fn check(frame: &[u8], headers: &Headers) -> Checked {
    let Some(ip) = headers.ip else { return Checked::default() };
    // Layer 4 is unknown, or not here: what follows the header counts for the sum only.
    let header_end = match (headers.l4, ip.version) {
        (Some(l4), _) => l4,
        (None, IpVersion::V4) => ipv4_header(frame, headers.l3).min(ip.end),
        (None, IpVersion::V6) => ip.end,
    };
    let header = Sum::of(frame.get(headers.l3..header_end).unwrap_or_default());
    let bytes = frame.get(header_end..ip.end).unwrap_or_default();
    let payload = Sum::of(bytes);
    let l4 = match headers.layer4 {
        _ if ip.fragment != Fragment::Whole || !ip.complete => false,
        Layer4::Tcp { header, .. } => {
            let fits = (Tcp::SIZE..=bytes.len()).contains(&header);
            fits && Sum::pseudo_header(&ip, ip.protocol, bytes.len()).and(payload).is_right()
        }
        Layer4::Udp { length, .. } => udp_is_right(&ip, usize::from(length), bytes, payload),
        _ => false,
    };
    // An IPv6 header has no checksum, its extensions have none either.
    let l3 = ip.version == IpVersion::V6 || header.is_right();
    Checked { l3, l4, complete: header.and(payload) }
}

/// Whether a UDP datagram in `bytes` is right, which sum up to `sum`.
fn udp_is_right(ip: &crate::wire::ethernet::Ip, length: usize, bytes: &[u8], sum: Sum) -> bool {
    let Some(datagram) = bytes.get(..length).filter(|_| length >= Udp::SIZE) else { return false };
    let udp = Udp::from_prefix_or_zero(datagram);
    if udp.get(Udp::CHECKSUM) == 0 {
        // IPv6 has no UDP without checksum but for tunnels (RFC 8200 8.1, RFC 6935): left to the host.
        return ip.version == IpVersion::V4;
    }
    let sum = if length == bytes.len() { sum } else { Sum::of(datagram) };
    Sum::pseudo_header(ip, ip.protocol, length).and(sum).is_right()
}

#[cfg(test)]
mod tests;
