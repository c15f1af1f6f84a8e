//! Large send offload (LSO): one header and much data become frames.
//!
//! [`Lso`] is the plan of one WQE; it has no bytes. [`Lso::write`] makes one frame, as often as somebody asks: what a call costs is one
//! frame, and there are as many as the data has pieces of one MSS, so never more than [`MAX_DATA`].
//!
//! Source: PRM "Large Send Offload" and the mlx5 driver (field use); RFC 9293, RFC 768.

use std::ops::Range;

use hca_firmware::steering::VxlanPorts;
use hca_spec::ether::{Ipv4, Ipv6, Tcp, Udp, tcp_flags};

use super::Refused;
use super::transmit::{Checksums, IPV4_CHECKSUM, TCP_CHECKSUM, UDP_CHECKSUM, be16, l4_checksum, put_be16};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{Fragment, Headers, Ip, IpVersion, Layer4, TunnelKind};

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

/// Offsets of what differs from frame to frame.
const TOTAL_LENGTH: usize = Ipv4::TOTAL_LENGTH.offset() + 2;
const ID: usize = Ipv4::ID.offset();
const PAYLOAD_LENGTH: usize = Ipv6::PAYLOAD_LENGTH.offset();
const SEQUENCE: usize = Tcp::SEQUENCE.offset();
const FLAGS: usize = Tcp::FLAGS.offset();
const UDP_LENGTH: usize = Udp::LENGTH.offset();

/// IP and what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    ip: Ip,
    l3: usize,
    l4: usize,
    transport: Transport,
    /// The one of TCP or UDP is made.
    checksum: bool,
    /// `ID` of IPv4.
    id: u16,
    /// Sum of the IPv4 header without what differs from frame to frame.
    header_sum: Sum,
}

impl Level {
    fn new(template: &[u8], headers: &Headers, checksum: bool) -> Result<Self, Refused> {
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
        let header = template.get(headers.l3..l4).unwrap_or_default();
        let mut fixed = Ipv4::from_prefix_or_zero(header);
        let id = fixed.get(Ipv4::ID) as u16;
        fixed.set(Ipv4::TOTAL_LENGTH, 0).set(Ipv4::ID, 0).set(Ipv4::CHECKSUM, 0);
        let options = header.get(Ipv4::SIZE..).unwrap_or_default();
        let header_sum = Sum::of(fixed.bytes()).and(Sum::of(options));
        Ok(Self { ip, l3: headers.l3, l4, transport, checksum, id, header_sum })
    }

    /// Writes lengths and the checksum of IPv4 for frame `index`, whose header is followed by `len` bytes.
    #[inline]
    fn fill_lengths(&self, header: &mut [u8], index: u64, len: usize) {
        let datagram = header.len().saturating_sub(self.l3).saturating_add(len);
        let at = |offset: usize| self.l3.saturating_add(offset);
        match self.ip.version {
            IpVersion::V4 => {
                let (length, id) = (datagram as u16, self.id.wrapping_add(index as u16));
                put_be16(header, at(TOTAL_LENGTH), length);
                put_be16(header, at(ID), id);
                let sum = self.header_sum.and_word(length).and_word(id);
                put_be16(header, at(IPV4_CHECKSUM), sum.checksum());
            }
            IpVersion::V6 => {
                put_be16(header, at(PAYLOAD_LENGTH), datagram.saturating_sub(Ipv6::SIZE) as u16);
            }
        }
        if self.transport == Transport::Udp {
            put_be16(header, self.l4.saturating_add(UDP_LENGTH), self.segment(header.len(), len) as u16);
        }
    }

    /// Bytes from layer 4 on.
    fn segment(&self, header: usize, len: usize) -> usize {
        header.saturating_sub(self.l4).saturating_add(len)
    }

    /// Writes the checksum of TCP or UDP, where `sum` is that of pseudo header and layer 4 up to the end of the header.
    #[inline]
    fn fill_checksum(&self, header: &mut [u8], sum: Sum, payload: Sum) {
        let odd = header.len().saturating_sub(self.l4) % 2 == 1;
        let sum = sum.and(if odd { payload.shifted() } else { payload });
        let (offset, is_udp) = match self.transport {
            Transport::Tcp => (TCP_CHECKSUM, false),
            Transport::Udp => (UDP_CHECKSUM, true),
            Transport::Gre => return,
        };
        put_be16(header, self.l4.saturating_add(offset), l4_checksum(sum, is_udp));
    }

    /// The sum of pseudo header and layer 4 up to the end of the header, for `segment` bytes from layer 4 on. The checksum's
    /// field is 0.
    fn sum(&self, header: &[u8], segment: usize) -> Sum {
        let bytes = header.get(self.l4..).unwrap_or_default();
        Sum::pseudo_header(&self.ip, self.ip.protocol, segment).and(Sum::of(bytes))
    }

    /// The checksum of UDP around a tunnel, of which everything differs from frame to frame.
    fn fill_outer(&self, header: &mut [u8], len: usize, payload: Sum) {
        if self.checksum && self.transport == Transport::Udp {
            put_be16(header, self.l4.saturating_add(UDP_CHECKSUM), 0);
            let sum = self.sum(header, self.segment(header.len(), len));
            self.fill_checksum(header, sum, payload);
        }
    }
}

/// How the data of an LSO WQE is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lso {
    /// Around a tunnel.
    outer: Option<Level>,
    /// What is cut.
    cut: Level,
    /// TCP: sequence number, and the word with the flags.
    sequence: u32,
    flags: u16,
    /// Sum of pseudo header and layer 4 up to the end of the header, without what differs from frame to frame.
    fixed_sum: Sum,
    header: usize,
    data: u64,
    mss: u16,
    frames: u64,
}

impl Lso {
    /// The plan for `data` bytes behind `header`, all headers from the destination address on. Each frame has that header
    /// and `mss` bytes of data, the last what is left. Without data it is one frame.
    ///
    /// # Errors
    /// What makes the WQE complete with error: no MSS, too much data, or a header that is not one of TCP or UDP.
    pub fn new(
        header: &[u8],
        data: u64,
        mss: u16,
        checksums: Checksums,
        vxlan: &VxlanPorts,
    ) -> Result<Self, Refused> {
        if mss == 0 {
            return Err(Refused::malformed("LSO with an MSS of 0"));
        }
        if data > MAX_DATA {
            return Err(Refused::length("LSO with more data than the adapter sends at once"));
        }
        let headers = Headers::parse_template(header, vxlan.as_slice())
            .ok_or(Refused::malformed("LSO without the headers in the inline header"))?;
        let outer = Level::new(header, &headers, checksums.l4)?;
        let (outer, cut) = if checksums.is_inner() {
            let inner = headers
                .inner_template(header)
                .ok_or(Refused::malformed("LSO with inner checksums, and no tunnel in the inline header"))?;
            (Some((outer, headers)), (Level::new(header, &inner, checksums.inner_l4)?, inner))
        } else {
            (None, (outer, headers))
        };
        let (outer, (cut, cut_headers)) = (outer.map(|outer| outer.0), cut);
        match cut_headers.layer4 {
            Layer4::Tcp { header: len, .. } => {
                let room = header.len().saturating_sub(cut.l4);
                if !(Tcp::SIZE..=room).contains(&len) {
                    return Err(Refused::malformed("the TCP header of LSO is longer than the inline header"));
                }
            }
            Layer4::Udp { .. } => {}
            _ => return Err(Refused::malformed("what LSO is to cut is neither TCP nor UDP")),
        }
        let tunnel = headers.tunnel.filter(|_| outer.is_some()).map(|tunnel| tunnel.kind);
        if let Some(TunnelKind::Gre { checksum: true, .. }) = tunnel {
            return Err(Refused::malformed(
                "LSO through GRE with a checksum, which the adapter does not make",
            ));
        }
        // The outermost datagram is the longest.
        let datagram = header.len().saturating_sub(headers.l3) as u64 + data.min(mss.into());
        if datagram > u64::from(u16::MAX) {
            return Err(Refused::malformed("LSO with an MSS for which no datagram is long enough"));
        }
        // The header without what differs from frame to frame.
        let mut fixed = header.to_vec();
        let at = |offset: usize| cut.l4.saturating_add(offset);
        let (mut sequence, mut flags) = (0, 0);
        if cut.transport == Transport::Tcp {
            let tcp = Tcp::from_prefix_or_zero(header.get(cut.l4..).unwrap_or_default());
            sequence = tcp.get(Tcp::SEQUENCE);
            flags = be16(header, at(FLAGS));
            put_be16(&mut fixed, at(SEQUENCE), 0);
            put_be16(&mut fixed, at(SEQUENCE).saturating_add(2), 0);
            put_be16(&mut fixed, at(FLAGS), 0);
            put_be16(&mut fixed, at(TCP_CHECKSUM), 0);
        } else {
            put_be16(&mut fixed, at(UDP_LENGTH), 0);
            put_be16(&mut fixed, at(UDP_CHECKSUM), 0);
        }
        let fixed_sum = cut.sum(&fixed, 0);
        let frames = data.div_ceil(mss.into()).max(1);
        Ok(Self { outer, cut, sequence, flags, fixed_sum, header: header.len(), data, mss, frames })
    }

    /// How many frames there are.
    pub const fn frames(&self) -> u64 {
        self.frames
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
        let at = |offset: usize| self.cut.l4.saturating_add(offset);
        // The length is in the pseudo header.
        let segment = self.cut.segment(header.len(), len) as u16;
        let mut sum = self.fixed_sum.and_word(segment);
        if self.cut.transport == Transport::Tcp {
            let sequence = self.sequence.wrapping_add(index.wrapping_mul(self.mss.into()) as u32);
            let mut flags = self.flags;
            if index.saturating_add(1) < self.frames {
                flags &= !((tcp_flags::FIN | tcp_flags::PSH) as u16);
            }
            if index > 0 {
                flags &= !(tcp_flags::CWR as u16);
            }
            put_be16(header, at(SEQUENCE), (sequence >> 16) as u16);
            put_be16(header, at(SEQUENCE).saturating_add(2), sequence as u16);
            put_be16(header, at(FLAGS), flags);
            sum = sum.and_u32(sequence).and_word(flags);
        } else {
            sum = sum.and_word(segment);
        }
        self.cut.fill_lengths(header, index, len);
        if self.cut.checksum {
            self.cut.fill_checksum(header, sum, payload);
        }
        if let Some(outer) = &self.outer {
            // What the tunnel carries is headers and the payload: their sums together.
            outer.fill_lengths(header, index, len);
            outer.fill_outer(header, len, payload);
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
