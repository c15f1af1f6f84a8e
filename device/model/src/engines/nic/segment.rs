//! Large send offload (LSO): one header and much data become frames.
//!
//! [`Lso`] is the plan of one WQE; it has no bytes. [`Lso::write`] makes one frame, as often as somebody asks: what a call costs is one
//! frame, and there are as many as the data has pieces of one MSS, so never more than [`MAX_DATA`].
//!
//! Source: PRM "Large Send Offload" and the mlx5 driver (field use); RFC 9293, RFC 768.

use std::ops::Range;

use hca_spec::ether::{Gre, Ipv4, Ipv6, Tcp, Udp, protocol, tcp_flags};

use super::Refused;
use super::transmit::{Checksums, TCP_CHECKSUM, UDP_CHECKSUM, insert_l3, l4_checksum, put_be16};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{Fragment, Headers, Ip, IpVersion, Layer4};

/// The most data that one WQE may send: what the capability `MAX_LSO_CAP` says, 2^18 bytes.
pub const MAX_DATA: u64 = 1 << 18;

/// What is cut, or the UDP of a tunnel around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
    /// GRE: nothing in it says a length.
    Gre,
}

/// IP and what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    headers: Headers,
    ip: Ip,
    l4: usize,
    transport: Transport,
    checksum: bool,
}

impl Level {
    fn new(headers: Headers, checksum: bool) -> Result<Self, Refused> {
        let (Some(ip), Some(l4)) = (headers.ip, headers.l4) else {
            return Err(Refused::malformed("the inline header of LSO has no IP header, or not all of it"));
        };
        if ip.fragment != Fragment::Whole {
            return Err(Refused::malformed("the inline header of LSO is one of a fragment"));
        }
        let transport = match headers.layer4 {
            Layer4::Tcp { .. } => Transport::Tcp,
            Layer4::Udp { .. } => Transport::Udp,
            Layer4::Gre => Transport::Gre,
            _ => {
                return Err(Refused::malformed(
                    "the inline header of LSO has no TCP or UDP header, or not all of it",
                ));
            }
        };
        Ok(Self { headers, ip, l4, transport, checksum })
    }

    /// Writes lengths and checksums of a frame of which `header` is all but the payload: `len` bytes with that sum.
    fn fill(&self, header: &mut [u8], index: u64, len: usize, payload: Sum) {
        let l3 = self.headers.l3;
        let behind = |start: usize| header.len().saturating_sub(start).saturating_add(len);
        let (datagram, segment) = (behind(l3), behind(self.l4));
        match self.ip.version {
            IpVersion::V4 => {
                let Some(bytes) = header.get_mut(l3..) else { return };
                let mut ip = Ipv4::from_prefix_or_zero(bytes);
                let id = ip.get(Ipv4::ID).wrapping_add(index as u32);
                ip.set(Ipv4::TOTAL_LENGTH, datagram as u32).set(Ipv4::ID, id);
                put(bytes, ip.bytes());
                insert_l3(header, &self.headers);
            }
            IpVersion::V6 => {
                let length = l3.saturating_add(Ipv6::PAYLOAD_LENGTH.offset());
                put_be16(header, length, datagram.saturating_sub(Ipv6::SIZE) as u16);
            }
        }
        let (number, checksum_at) = match self.transport {
            Transport::Tcp => (protocol::TCP, TCP_CHECKSUM),
            Transport::Udp => {
                put_be16(header, self.l4.saturating_add(Udp::LENGTH.offset()), segment as u16);
                (protocol::UDP, UDP_CHECKSUM)
            }
            Transport::Gre => return,
        };
        if !self.checksum {
            return;
        }
        let at = self.l4.saturating_add(checksum_at);
        put_be16(header, at, 0);
        let bytes = header.get(self.l4..).unwrap_or_default();
        let payload = if bytes.len() % 2 == 1 { payload.shifted() } else { payload };
        let sum = Sum::pseudo_header(&self.ip, number, segment).and(Sum::of(bytes)).and(payload);
        put_be16(header, at, l4_checksum(sum, self.transport == Transport::Udp));
    }
}

/// Writes bytes at the front of others.
fn put(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// How the data of an LSO WQE is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lso {
    /// Around a tunnel.
    outer: Option<Level>,
    /// What is cut.
    cut: Level,
    header: usize,
    data: u64,
    mss: u16,
}

impl Lso {
    /// The plan for `data` bytes behind `header`, all headers from the destination address on. Each frame has that header
    /// and `mss` bytes of data, the last what is left. Without data it is one frame.
    ///
    /// # Errors
    /// What makes the WQE complete with error: no MSS, too much data, or a header that is not one of TCP or UDP.
    pub fn new(header: &[u8], data: u64, mss: u16, checksums: Checksums) -> Result<Self, Refused> {
        if mss == 0 {
            return Err(Refused::malformed("LSO with an MSS of 0"));
        }
        if data > MAX_DATA {
            return Err(Refused::length("LSO with more data than the adapter sends at once"));
        }
        let headers = Headers::parse_template(header)
            .ok_or(Refused::malformed("LSO without the headers in the inline header"))?;
        let outer = Level::new(headers, checksums.l4)?;
        let (outer, cut) = if checksums.is_inner() {
            let inner = headers
                .inner_template(header)
                .ok_or(Refused::malformed("LSO with inner checksums, and no tunnel in the inline header"))?;
            (Some(outer), Level::new(inner, checksums.inner_l4)?)
        } else {
            (None, outer)
        };
        match cut.headers.layer4 {
            Layer4::Tcp { header: len, .. } => {
                let room = header.len().saturating_sub(cut.l4);
                if !(Tcp::SIZE..=room).contains(&len) {
                    return Err(Refused::malformed("the TCP header of LSO is longer than the inline header"));
                }
            }
            Layer4::Udp { .. } => {}
            _ => return Err(Refused::malformed("what LSO is to cut is neither TCP nor UDP")),
        }
        if let Some(outer) = outer.filter(|outer| outer.transport == Transport::Gre) {
            let gre = Gre::from_prefix_or_zero(header.get(outer.l4..).unwrap_or_default());
            if gre.get(Gre::C) == 1 {
                return Err(Refused::malformed(
                    "LSO through GRE with a checksum, which the adapter does not make",
                ));
            }
        }
        // The outermost datagram is the longest.
        let datagram = header.len().saturating_sub(headers.l3) as u64 + data.min(mss.into());
        if datagram > u64::from(u16::MAX) {
            return Err(Refused::malformed("LSO with an MSS for which no datagram is long enough"));
        }
        Ok(Self { outer, cut, header: header.len(), data, mss })
    }

    /// How many frames there are.
    pub fn frames(&self) -> u64 {
        self.data.div_ceil(self.mss.into()).max(1)
    }

    /// Which bytes of the data frame `index` has; none behind the last.
    pub fn data(&self, index: u64) -> Range<u64> {
        let start = index.saturating_mul(self.mss.into()).min(self.data);
        start..start.saturating_add(self.mss.into()).min(self.data)
    }

    /// Bytes of frame `index`, header included.
    pub fn frame_len(&self, index: u64) -> usize {
        let data = self.data(index);
        self.header.saturating_add(data.end.saturating_sub(data.start) as usize)
    }

    /// Edits a copy of the inline header for frame `index`, whose data is `len` bytes with that sum.
    pub fn edit(&self, header: &mut [u8], index: u64, len: usize, payload: Sum) {
        let last = index.saturating_add(1) >= self.frames();
        if let (Transport::Tcp, Some(bytes)) = (self.cut.transport, header.get_mut(self.cut.l4..)) {
            let mut tcp = Tcp::from_prefix_or_zero(bytes);
            let sent = index.wrapping_mul(self.mss.into()) as u32;
            let mut flags = tcp.get(Tcp::FLAGS);
            if !last {
                flags &= !(tcp_flags::FIN | tcp_flags::PSH);
            }
            if index > 0 {
                flags &= !tcp_flags::CWR;
            }
            let sequence = tcp.get(Tcp::SEQUENCE).wrapping_add(sent);
            tcp.set(Tcp::SEQUENCE, sequence).set(Tcp::FLAGS, flags);
            put(bytes, tcp.bytes());
        }
        self.cut.fill(header, index, len, payload);
        if let Some(outer) = &self.outer {
            // What the tunnel carries is a header and the payload: their sum together.
            outer.fill(header, index, len, payload);
        }
    }

    /// Makes frame `index` from the inline header and its data, which is read once. `frame` is emptied first; its memory is used
    /// again.
    pub fn write(&self, index: u64, header: &[u8], data: &[u8], frame: &mut Vec<u8>) {
        frame.clear();
        frame.reserve(header.len().saturating_add(data.len()));
        frame.extend_from_slice(header);
        frame.extend_from_slice(data);
        let sum = if self.sums_data() { Sum::of(data) } else { Sum::ZERO };
        if let Some(header) = frame.get_mut(..header.len()) {
            self.edit(header, index, data.len(), sum);
        }
    }

    /// Finishes frame `index`, which has the inline header and its data: its data is read once.
    pub fn finish(&self, index: u64, frame: &mut [u8]) {
        let (header, data) = frame.split_at_mut_checked(self.header).unwrap_or_default();
        let sum = if self.sums_data() { Sum::of(data) } else { Sum::ZERO };
        self.edit(header, index, data.len(), sum);
    }

    /// Whether a checksum covers the data.
    pub fn sums_data(&self) -> bool {
        self.cut.checksum || self.outer.is_some_and(|outer| outer.checksum)
    }
}

#[cfg(test)]
mod tests;
