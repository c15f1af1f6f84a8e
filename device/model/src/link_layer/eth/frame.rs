//! Frames as bytes: from the destination's address to the FCS.
//!
//! Source: IEEE 802.3 3.1 to 3.2 (frame, FCS, minimum), 802.1Q 9.6 (tag), IBTA vol 1 annex A16 (RoCE) and A17 (RoCE v2), RFC 791, RFC 8200,
//! RFC 768.

use std::ops::Range;

use hca_spec::ether::{FCS_SIZE, Ipv4, MIN_FRAME, ROCE_PORT, Udp, ethertype, protocol};
use hca_spec::ids::Gid;
use hca_spec::wire::{Bth, Grh, ICRC_SIZE};

use super::{Address, Mac, Wrapping};
use crate::link_layer::Due;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{fcs, pad};
use crate::wire::{ExtendedHeaders, GrhRepr, Malformed, Reader, Repr, Writer, icrc_v1, icrc_v2};

/// "Don't fragment": RoCE v2 packets are never fragments.
const DF: u16 = 0x4000;

/// Bytes of a frame on the link: all of them but preamble and gap.
pub(in crate::link_layer) const fn len(
    address: &Address,
    extended: ExtendedHeaders,
    payload: usize,
) -> usize {
    let frame = address.header_size() + extended.bytes_from_bth(payload.next_multiple_of(4));
    (if frame < MIN_FRAME { MIN_FRAME } else { frame }) + FCS_SIZE
}

fn ipv4_of(gid: &Gid) -> [u8; 4] {
    gid.0.last_chunk().copied().unwrap_or_default()
}

/// The GID of an IPv4 address (IBTA vol 1 A17.3.1.3): mapped into IPv6.
fn gid_of(ipv4: [u8; 4]) -> Gid {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&ipv4);
    Gid(gid)
}

/// The IPv4 header of a packet with so many bytes from BTH to ICRC.
fn ipv4_header(grh: &GrhRepr, from_bth: usize) -> [u8; Ipv4::SIZE] {
    let mut header = [0; Ipv4::SIZE];
    let total = (Ipv4::SIZE + Udp::SIZE + from_bth) as u16;
    header[0] = 0x45;
    header[1] = grh.tclass;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&DF.to_be_bytes());
    header[8] = grh.hop_limit;
    header[9] = protocol::UDP;
    header[12..16].copy_from_slice(&ipv4_of(&grh.sgid));
    header[16..20].copy_from_slice(&ipv4_of(&grh.dgid));
    let checksum = Sum::of(&header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The IPv6 header of a packet with so many bytes from BTH to ICRC: a GRH that says UDP.
fn ipv6_header(grh: &GrhRepr, from_bth: usize) -> Grh {
    let mut header = grh.grh(Udp::SIZE + from_bth);
    header.set(Grh::NXT_HDR, protocol::UDP.into());
    header
}

/// The UDP header; IBTA vol 1 A17.3.1.2: its checksum is zero.
fn udp_header(source_port: u16, from_bth: usize) -> [u8; Udp::SIZE] {
    let mut header = [0; Udp::SIZE];
    header[..2].copy_from_slice(&source_port.to_be_bytes());
    header[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    header[4..6].copy_from_slice(&((Udp::SIZE + from_bth) as u16).to_be_bytes());
    header
}

/// The 40 bytes that a receiver of a datagram finds in front of the payload: of IPv4 the header ends them (IBTA vol 1 A17.4.5.3).
pub(in crate::link_layer) fn network_header(
    address: &Address,
    grh: &GrhRepr,
    from_bth: usize,
) -> [u8; Grh::SIZE] {
    match address.wrapping {
        Wrapping::V2 { ipv4: true, .. } => {
            let mut bytes = [0; Grh::SIZE];
            if let Some(last) = bytes.last_chunk_mut() {
                *last = ipv4_header(grh, from_bth);
            }
            bytes
        }
        Wrapping::V2 { ipv4: false, .. } => *ipv6_header(grh, from_bth).bytes(),
        Wrapping::V1 | Wrapping::Frame => grh.to_bytes(from_bth),
    }
}

/// Writes what a transport packet with so many bytes of `payload` has in front of that. Returns how much is left of `bytes`.
pub(in crate::link_layer) fn head(
    address: &Address,
    grh: Option<&GrhRepr>,
    repr: &Repr,
    payload: usize,
    bytes: &mut [u8],
) -> usize {
    let extended = ExtendedHeaders::by(repr.transport, repr.operation).unwrap_or_default();
    let from_bth = extended.bytes_from_bth(payload.next_multiple_of(4));
    let grh = grh.copied().unwrap_or_default();
    let mut writer = Writer(bytes);
    writer.put(&address.dmac.0);
    writer.put(&address.smac.0);
    if let Some(tci) = address.tci {
        writer.put(&ethertype::C_TAG.to_be_bytes());
        writer.put(&tci.to_be_bytes());
    }
    match address.wrapping {
        Wrapping::V1 | Wrapping::Frame => {
            writer.put(&ethertype::ROCE.to_be_bytes());
            writer.put(grh.grh(from_bth).bytes());
        }
        Wrapping::V2 { ipv4: true, source_port } => {
            writer.put(&ethertype::IPV4.to_be_bytes());
            writer.put(&ipv4_header(&grh, from_bth));
            writer.put(&udp_header(source_port, from_bth));
        }
        Wrapping::V2 { ipv4: false, source_port } => {
            writer.put(&ethertype::IPV6.to_be_bytes());
            writer.put(ipv6_header(&grh, from_bth).bytes());
            writer.put(&udp_header(source_port, from_bth));
        }
    }
    repr.write(extended, payload, &mut writer);
    writer.0.len()
}

/// Computes the ICRC anew, of what is a transport packet by its headers.
pub(in crate::link_layer) fn set_icrc(bytes: &mut [u8]) {
    let covered = body(bytes);
    let (address, _) = peek(covered);
    let Ok(from_bth) = length(covered, &address) else { return };
    let end = address.header_size().saturating_add(from_bth).min(covered.len());
    if let Some((body, icrc)) = bytes.get_mut(..end).and_then(<[u8]>::split_last_chunk_mut::<ICRC_SIZE>)
        && let Some(front) = Front::of(body)
    {
        *icrc = front.icrc();
    }
}

/// A frame that is no transport packet, with room for its FCS, padded if it is too short.
pub(in crate::link_layer) fn of_bytes(mut bytes: Vec<u8>) -> Vec<u8> {
    pad(&mut bytes);
    bytes.resize(bytes.len() + FCS_SIZE, 0);
    bytes
}

/// Computes the FCS anew.
pub(in crate::link_layer) fn set_fcs(bytes: &mut [u8]) {
    if let Some((covered, last)) = bytes.split_last_chunk_mut::<FCS_SIZE>() {
        *last = fcs(covered);
    }
}

/// Marks a frame as bad, as one that ends with a transmission error: by the complement of its FCS.
pub(in crate::link_layer) fn mark_bad(bytes: &mut [u8]) {
    if let Some((covered, last)) = bytes.split_last_chunk_mut::<FCS_SIZE>() {
        *last = fcs(covered).map(|byte| !byte);
    }
}

/// The frame without its FCS.
pub(in crate::link_layer) fn body(bytes: &[u8]) -> &[u8] {
    bytes.split_last_chunk::<FCS_SIZE>().map_or(&[], |(body, _)| body)
}

/// Checks what every port on the way checks: FCS (unless it is due) and length. Returns what the FCS covers.
pub(in crate::link_layer) fn check(bytes: &[u8], due: Due) -> Result<&[u8], Malformed> {
    let truncated = Malformed::Truncated { len: bytes.len() };
    let (covered, found) = bytes.split_last_chunk::<FCS_SIZE>().ok_or(truncated)?;
    if due == Due::Nothing {
        let expected = fcs(covered);
        if *found != expected {
            if found.map(|byte| !byte) == expected {
                return Err(Malformed::Marked);
            }
            let (found, expected) = (u32::from_le_bytes(*found), u32::from_le_bytes(expected));
            return Err(Malformed::Fcs { found, expected });
        }
    }
    if covered.len() < MIN_FRAME {
        return Err(truncated);
    }
    Ok(covered)
}

/// Where the IP header of a frame begins, and whether it is IPv4.
fn ip(bytes: &[u8]) -> Option<(usize, bool)> {
    let mut reader = Reader(bytes);
    let (_, kind) = ethernet(&mut reader)?;
    let at = bytes.len().saturating_sub(reader.0.len());
    matches!(kind, ethertype::IPV4 | ethertype::IPV6).then_some((at, kind == ethertype::IPV4))
}

/// DSCP and ECN of the IP packet that a frame is.
pub(in crate::link_layer) fn traffic_class(bytes: &[u8]) -> Option<u8> {
    let (at, ipv4) = ip(bytes)?;
    let word = be16(bytes, at);
    bytes.get(at..at + 2)?;
    Some(if ipv4 { word as u8 } else { (word >> 4) as u8 })
}

/// Says in an IP packet whose sender can be told (ECT) that it met congestion. Whether it was such.
pub(in crate::link_layer) fn mark_congestion(bytes: &mut [u8]) -> bool {
    const CHECKSUM: usize = 10;
    let (Some((at, ipv4)), Some(1 | 2)) = (ip(bytes), traffic_class(bytes).map(|class| class & 3)) else {
        return false;
    };
    let before = be16(bytes, at);
    let after = before | if ipv4 { 3 } else { 3 << 4 };
    put_be16(bytes, at, after);
    if ipv4 {
        // RFC 1624, equation 3.
        let old = be16(bytes, at + CHECKSUM);
        let sum = u32::from(!old) + u32::from(!before) + u32::from(after);
        let folded = (sum & 0xffff) + (sum >> 16);
        let new = !(((folded & 0xffff) + (folded >> 16)) as u16);
        put_be16(bytes, at + CHECKSUM, new);
    }
    true
}

/// Headers in front of a transport packet, and what follows the BTH up to the ICRC.
struct Front<'a> {
    address: Address,
    grh: GrhRepr,
    /// The GRH, or the IP header.
    network: &'a [u8],
    udp: Option<Udp>,
    bth: Bth,
    /// Where it stands.
    bth_at: usize,
    rest: &'a [u8],
}

fn take<const N: usize>(reader: &mut Reader<'_>) -> Option<[u8; N]> {
    reader.take(N).and_then(|bytes| bytes.try_into().ok())
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u16::from_be_bytes(*word))
}

fn put_be16(bytes: &mut [u8], at: usize, word: u16) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = word.to_be_bytes();
    }
}

/// The Ethernet header and its tag, if it has one, and the type of what follows.
fn ethernet(reader: &mut Reader<'_>) -> Option<(Address, u16)> {
    let (dmac, smac) = (Mac(take(reader)?), Mac(take(reader)?));
    let mut kind = u16::from_be_bytes(take(reader)?);
    let mut tci = None;
    if kind == ethertype::C_TAG {
        tci = Some(u16::from_be_bytes(take(reader)?));
        kind = u16::from_be_bytes(take(reader)?);
    }
    Some((Address { dmac, smac, tci, wrapping: Wrapping::Frame, queue: None, forced: false }, kind))
}

/// The UDP header of RoCE v2; `None` if it is one of something else.
fn roce_udp(reader: &mut Reader<'_>) -> Option<[u8; Udp::SIZE]> {
    let udp: [u8; Udp::SIZE] = take(reader)?;
    (be16(&udp, 2) == ROCE_PORT).then_some(udp)
}

/// The addresses of a frame, and which GID a transport packet in it is for; unchecked. No GID: it is no transport packet.
pub(in crate::link_layer) fn peek(bytes: &[u8]) -> (Address, Option<Gid>) {
    let mut reader = Reader(bytes);
    let Some((mut address, kind)) = ethernet(&mut reader) else { return (Address::default(), None) };
    let dgid = (|| match kind {
        ethertype::ROCE => {
            let grh = Grh::from_prefix_or_zero(reader.take(Grh::SIZE)?);
            address.wrapping = Wrapping::V1;
            Some(Gid::new(grh.get(Grh::DGID_H), grh.get(Grh::DGID_L)))
        }
        ethertype::IPV4 => {
            let ip: [u8; Ipv4::SIZE] = take(&mut reader)?;
            let whole = be16(&ip, 6) & !DF == 0;
            if ip[0] != 0x45 || ip[9] != protocol::UDP || !whole {
                return None;
            }
            let udp = roce_udp(&mut reader)?;
            address.wrapping = Wrapping::V2 { ipv4: true, source_port: be16(&udp, 0) };
            Some(gid_of(*ip.last_chunk()?))
        }
        ethertype::IPV6 => {
            let ip = Grh::from_prefix_or_zero(reader.take(Grh::SIZE)?);
            if ip.get(Grh::NXT_HDR) != u32::from(protocol::UDP) {
                return None;
            }
            let udp = roce_udp(&mut reader)?;
            address.wrapping = Wrapping::V2 { ipv4: false, source_port: be16(&udp, 0) };
            Some(Gid::new(ip.get(Grh::DGID_H), ip.get(Grh::DGID_L)))
        }
        _ => None,
    })();
    (address, dgid)
}

impl<'a> Front<'a> {
    /// Of a frame up to the ICRC, whose lengths are not looked at. `None`: it is no transport packet, or ends before the headers do.
    fn of(body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let (mut address, kind) = ethernet(&mut reader)?;
        let (grh, network, udp) = match kind {
            ethertype::ROCE => {
                let header = reader.take(Grh::SIZE)?;
                address.wrapping = Wrapping::V1;
                (GrhRepr::read(&Grh::from_prefix_or_zero(header)), header, None)
            }
            ethertype::IPV4 => {
                let header = reader.take(Ipv4::SIZE)?;
                let ip: &[u8; Ipv4::SIZE] = header.first_chunk()?;
                let udp = roce_udp(&mut reader)?;
                address.wrapping = Wrapping::V2 { ipv4: true, source_port: be16(&udp, 0) };
                let grh = GrhRepr {
                    tclass: ip[1],
                    flow_label: 0,
                    hop_limit: ip[8],
                    sgid: gid_of([ip[12], ip[13], ip[14], ip[15]]),
                    dgid: gid_of([ip[16], ip[17], ip[18], ip[19]]),
                };
                (grh, header, Some(Udp::from_prefix_or_zero(&udp)))
            }
            ethertype::IPV6 => {
                let header = reader.take(Grh::SIZE)?;
                let udp = roce_udp(&mut reader)?;
                address.wrapping = Wrapping::V2 { ipv4: false, source_port: be16(&udp, 0) };
                let grh = GrhRepr::read(&Grh::from_prefix_or_zero(header));
                (grh, header, Some(Udp::from_prefix_or_zero(&udp)))
            }
            _ => return None,
        };
        let bth_at = body.len().saturating_sub(reader.0.len());
        let bth = Bth::from_prefix_or_zero(reader.take(Bth::SIZE)?);
        Some(Self { address, grh, network, udp, bth, bth_at, rest: reader.0 })
    }

    /// Its ICRC, as it travels.
    fn icrc(&self) -> [u8; ICRC_SIZE] {
        match &self.udp {
            None => icrc_v1(&Grh::from_prefix_or_zero(self.network), &self.bth, self.rest),
            Some(udp) => icrc_v2(self.network, udp, &self.bth, self.rest),
        }
    }
}

/// Bytes from BTH to ICRC as the network header says, and what of it is wrong.
fn length(covered: &[u8], address: &Address) -> Result<usize, Malformed> {
    let tag = if address.tci.is_some() { 4 } else { 0 };
    let network = covered.get(14 + tag..).unwrap_or_default();
    let bad = |why| Err(Malformed::Network(why));
    match address.wrapping {
        Wrapping::Frame => bad("no RoCE header follows"),
        Wrapping::V1 => {
            let grh = Grh::from_prefix_or_zero(network);
            let said = grh.get(Grh::PAY_LEN) as usize;
            GrhRepr::check(&grh, said).map(|_| said)
        }
        Wrapping::V2 { ipv4: true, .. } => {
            let Some(header) = network.first_chunk::<{ Ipv4::SIZE }>() else {
                return bad("the IPv4 header is cut off");
            };
            let said = usize::from(be16(network, 2));
            let udp = usize::from(be16(network, Ipv4::SIZE + 4));
            match said.checked_sub(Ipv4::SIZE + Udp::SIZE) {
                _ if header[0] != 0x45 => bad("the IPv4 header has options or another version"),
                _ if !Sum::of(header).is_right() => bad("the checksum of the IPv4 header is wrong"),
                _ if be16(network, 6) & !DF != 0 => bad("the IPv4 packet is a fragment"),
                Some(left) if udp == Udp::SIZE + left => Ok(left),
                _ => bad("the lengths in the IPv4 and UDP headers don't agree"),
            }
        }
        Wrapping::V2 { ipv4: false, .. } => {
            let said = Grh::from_prefix_or_zero(network).get(Grh::PAY_LEN) as usize;
            let udp = usize::from(be16(network, Grh::SIZE + 4));
            match said.checked_sub(Udp::SIZE) {
                _ if network.first().is_none_or(|byte| byte >> 4 != 6) => {
                    bad("the IPv6 header has another version")
                }
                Some(left) if udp == said => Ok(left),
                _ => bad("the lengths in the IPv6 and UDP headers don't agree"),
            }
        }
    }
}

/// What a good transport packet says.
pub(in crate::link_layer) type Parsed = (Address, Option<GrhRepr>, Repr, Range<usize>);

/// Checks every byte of a transport packet that a receiving port checks, but checksums that are due; gives the headers, and where the
/// payload is.
pub(in crate::link_layer) fn parse(bytes: &[u8], due: Due) -> Result<Parsed, Malformed> {
    let covered = check(bytes, due)?;
    let truncated = Malformed::Truncated { len: bytes.len() };
    let (address, _) = peek(covered);
    let from_bth = length(covered, &address)?;
    let end = address.header_size().saturating_add(from_bth);
    let whole = covered.get(..end).ok_or(truncated)?;
    let (body, found) = whole.split_last_chunk::<ICRC_SIZE>().ok_or(truncated)?;
    let front = Front::of(body).ok_or(truncated)?;
    if due != Due::All {
        let computed = front.icrc();
        if *found != computed {
            let (found, expected) = (u32::from_be_bytes(*found), u32::from_be_bytes(computed));
            return Err(Malformed::Icrc { found, expected });
        }
    }
    let Front { address, grh, bth, bth_at, rest, .. } = front;
    let (repr, payload) = Repr::read(&bth, rest, bytes.len())?;
    let start = bth_at + Bth::SIZE;
    Ok((address, Some(grh), repr, start + payload.start..start + payload.end))
}

/// The BTH as it stands there, unchecked, if it is a transport packet of so many bytes.
pub(in crate::link_layer) fn bth(bytes: &[u8]) -> Option<Bth> {
    let (address, dgid) = peek(bytes);
    dgid.and_then(|_| bytes.get(address.header_size()..)).map(Bth::from_prefix_or_zero)
}

#[cfg(test)]
mod tests {
    use hca_spec::ids::{Psn, Qpn};
    use hca_spec::wire::Operation;

    use super::*;
    use crate::link_layer::{Packet, Path};
    use crate::wire::ethernet::Headers;
    use crate::wire::roce_icrc;

    fn wrappings() -> [(Wrapping, Option<u16>); 4] {
        let v2 = |ipv4| Wrapping::V2 { ipv4, source_port: 0xc123 };
        [(Wrapping::V1, None), (v2(true), None), (v2(false), Some(0x6007)), (v2(true), Some(0x2005))]
    }

    fn path(wrapping: Wrapping, tci: Option<u16>) -> Path {
        let address = Address {
            dmac: Mac([2, 1, 1, 1, 1, 1]),
            smac: Mac([2, 2, 2, 2, 2, 2]),
            tci,
            wrapping,
            queue: None,
            forced: false,
        };
        let gid = |n| match wrapping {
            Wrapping::V2 { ipv4: true, .. } => gid_of([10, 0, 0, n]),
            _ => Gid::new(0xfe80 << 48, n.into()),
        };
        let flow_label = if matches!(wrapping, Wrapping::V2 { ipv4: true, .. }) { 0 } else { 0x1_2345 };
        let grh = GrhRepr { tclass: 0x6a, flow_label, hop_limit: 64, sgid: gid(1), dgid: gid(2) };
        Path::of_roce(address, grh)
    }

    fn packet(path: &Path, payload: &[u8]) -> Packet {
        let repr =
            Repr { operation: Operation::SendOnly, dest_qp: Qpn(7), psn: Psn::new(9), ..Repr::default() };
        Packet::build(path, &repr, payload.len(), |buf| {
            buf.copy_from_slice(payload);
            Ok::<(), ()>(())
        })
        .expect("nothing to fail")
    }

    #[test]
    fn packets_become_frames_and_come_back() {
        for (wrapping, tci) in wrappings() {
            for len in [0, 1, 5, 300, 4096] {
                let (path, payload) = (path(wrapping, tci), vec![0x5a; len]);
                let built = packet(&path, &payload);
                let bytes = built.clone().into_bytes();
                assert_eq!(bytes.len(), built.len());
                assert!(bytes.len() >= MIN_FRAME + FCS_SIZE);
                // Another reader of frames finds the same ICRC.
                let headers = Headers::parse(body(&bytes)).expect("headers");
                let (right, found) = roce_icrc(body(&bytes), &headers).expect("a RoCE frame");
                assert_eq!(right, found, "{wrapping:?} {tci:?} {len}");
                let came = Packet::from_frame_bytes(bytes.clone());
                let (parsed, repr, data) = came.parse().expect("it is good");
                assert_eq!((parsed, repr, data), (path, *built.repr(), payload.as_slice()));
                assert_eq!(
                    (came.lane(), built.lane()),
                    (parsed.eth().map_or(9, Address::priority), came.lane())
                );
                for bit in (0..bytes.len() * 8).step_by(37) {
                    let mut wrong = bytes.clone();
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    let error = Packet::from_frame_bytes(wrong).parse().expect_err("a bit is wrong");
                    assert!(matches!(error, Malformed::Fcs { .. }), "bit {bit}: {error}");
                }
                let mut bad = Packet::from_frame_bytes(bytes.clone());
                bad.mark_bad();
                assert_eq!(bad.parse().expect_err("it is marked"), Malformed::Marked);
                for cut in 0..bytes.len().min(120) {
                    assert!(Packet::from_frame_bytes(bytes[..cut].to_vec()).parse().is_err());
                }
            }
        }
    }

    /// Behind a right FCS, everything else is checked too.
    #[test]
    fn wrong_headers_are_found() {
        let good =
            packet(&path(Wrapping::V2 { ipv4: true, source_port: 0xc000 }, None), &[1; 64]).into_bytes();
        let change = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            set_fcs(&mut bytes);
            Packet::from_frame_bytes(bytes).parse().map(drop)
        };
        assert_eq!(change(0, 2), Ok(()), "the same");
        assert!(matches!(change(14, 0x46), Err(Malformed::Network(_))), "options");
        assert!(matches!(change(17, 1), Err(Malformed::Network(_))), "length");
        assert!(matches!(change(22, 1), Err(Malformed::Network(_))), "hop limit without a new checksum");
        assert!(matches!(change(20, 0x20), Err(Malformed::Network(_))), "a fragment");
        assert!(matches!(change(23, 6), Err(Malformed::Network(_))), "not UDP");
        assert!(matches!(change(37, 0), Err(Malformed::Network(_))), "another port");
        assert!(matches!(change(60, 0), Err(Malformed::Icrc { .. })), "payload");
        // What routers may change: the congestion bits, with the checksum made right.
        let mut marked = good.clone();
        marked[15] |= 3;
        marked[24..26].fill(0);
        let header: [u8; Ipv4::SIZE] = marked[14..34].try_into().expect("20 bytes");
        marked[24..26].copy_from_slice(&Sum::of(&header).checksum().to_be_bytes());
        set_fcs(&mut marked);
        assert!(Packet::from_frame_bytes(marked).parse().is_ok());
    }

    #[test]
    fn frames_of_others() {
        let mut frame = Packet::frame(vec![0xab; 20]);
        assert_eq!((frame.len(), frame.check_link()), (MIN_FRAME + FCS_SIZE, Ok(())));
        assert_eq!(frame.as_frame().len(), MIN_FRAME);
        let bytes = frame.clone().into_bytes();
        assert_eq!(
            Packet::from_frame_bytes(bytes).check_link(),
            Ok(()),
            "the FCS is computed when it leaves"
        );
        assert!(matches!(frame.parse(), Err(Malformed::Network(_))), "no transport packet");
        assert_eq!(frame.into_frame().map(|bytes| bytes.len()), Some(MIN_FRAME));
        let mut bad = Packet::frame(vec![1; 100]);
        bad.mark_bad();
        assert_eq!(bad.into_frame(), None);
    }
}
