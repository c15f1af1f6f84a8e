//! The invariant CRC (IBTA vol 1 7.8.1): it covers what no switch or router may change.
//!
//! It is the CRC-32 of Ethernet (polynomial 0x04C11DB7, seed and final complement all ones) over all headers and the
//! payload to the end of the pad, with the fields that may change read as ones. Which those are in front of the BTH is the
//! link layer's knowledge. Bits of a byte count from the least significant on and travel in that order, so in the
//! bit-reflected form used here the register goes out in little-endian byte order.
//!
//! RoCE has no LRH: eight bytes of ones stand for it (IBTA annex A16 A16.5.1, annex A17 A17.3.3). Ethernet header and tags are not
//! covered.

use hca_spec::ether::{Ipv4, Ipv6, Udp};
use hca_spec::wire::{Bth, Grh, ICRC_SIZE};

use super::GrhRepr;
use super::ethernet::Headers;

/// The ICRC of a packet, as it travels: `before` is what stands in front of its BTH, with ones for what may change, and
/// `rest` all between BTH and ICRC.
pub(crate) fn icrc(before: &[&[u8]], bth: &Bth, rest: &[u8]) -> [u8; ICRC_SIZE] {
    let mut crc = crc32fast::Hasher::new();
    before.iter().for_each(|part| crc.update(part));
    crc.update(masked(bth).bytes());
    crc.update(rest);
    crc.finalize().to_le_bytes()
}

/// The BTH with its variable byte (Resv8a, beside the destination QP) as ones.
fn masked(bth: &Bth) -> Bth {
    const RESV8A: usize = 4;
    let mut bth = *bth;
    bth.bytes_mut()[RESV8A] = 0xff;
    bth
}

/// What stands for the LRH.
const NO_LRH: [u8; 8] = [0xff; 8];

/// The ICRC of a packet of RoCE version 1, as it travels. `rest` is all between BTH and ICRC.
pub fn icrc_v1(grh: &Grh, bth: &Bth, rest: &[u8]) -> [u8; ICRC_SIZE] {
    icrc(&[&NO_LRH, GrhRepr::masked(grh).bytes()], bth, rest)
}

/// The ICRC of a packet of RoCE version 2, as it travels. `ip` is the header of IPv4 or IPv6 with all that lies in front of
/// the UDP header; `rest` is all between BTH and ICRC. Type of service or traffic class, time to live, flow label, and the checksums
/// of IP and UDP are read as ones (IBTA annex A17 A17.3.3).
pub fn icrc_v2(ip: &[u8], udp: &Udp, bth: &Bth, rest: &[u8]) -> [u8; ICRC_SIZE] {
    let mut udp = *udp;
    udp.set(Udp::CHECKSUM, Udp::CHECKSUM.max());
    let udp = udp.bytes();
    const V4: u8 = 4;
    if ip.first().is_some_and(|first| first >> 4 == V4) {
        let mut header = Ipv4::from_prefix_or_zero(ip);
        for field in [Ipv4::DSCP, Ipv4::ECN, Ipv4::TTL, Ipv4::CHECKSUM] {
            header.set(field, field.max());
        }
        let options = ip.get(Ipv4::SIZE..).unwrap_or_default();
        icrc(&[&NO_LRH, header.bytes(), options, udp], bth, rest)
    } else {
        let mut header = Ipv6::from_prefix_or_zero(ip);
        for field in [Ipv6::DSCP, Ipv6::ECN, Ipv6::FLOW_LABEL, Ipv6::HOP_LIMIT] {
            header.set(field, field.max());
        }
        let extensions = ip.get(Ipv6::SIZE..).unwrap_or_default();
        icrc(&[&NO_LRH, header.bytes(), extensions, udp], bth, rest)
    }
}

/// The ICRC that a frame of RoCE is to have, and that it has. None if it is no such frame, or has no room for one.
pub fn roce_icrc(frame: &[u8], headers: &Headers) -> Option<([u8; ICRC_SIZE], [u8; ICRC_SIZE])> {
    let at = headers.bth?.offset;
    let end = match headers.ip {
        Some(ip) => ip.end,
        // Version 1: a short frame is padded behind its ICRC, so that the length is the GRH's.
        None => {
            let grh = Grh::from_prefix_or_zero(frame.get(headers.l3..)?);
            headers.l3.checked_add(Grh::SIZE)?.checked_add(grh.get(Grh::PAY_LEN) as usize)?
        }
    };
    let behind_bth = frame.get(at.checked_add(Bth::SIZE)?..end)?;
    let (rest, found) = behind_bth.split_last_chunk::<ICRC_SIZE>()?;
    let bth = Bth::from_prefix_or_zero(frame.get(at..)?);
    let right = match headers.ip {
        None => icrc_v1(&Grh::from_prefix_or_zero(frame.get(headers.l3..)?), &bth, rest),
        Some(_) => {
            let l4 = headers.l4?;
            icrc_v2(frame.get(headers.l3..l4)?, &Udp::from_prefix_or_zero(frame.get(l4..)?), &bth, rest)
        }
    };
    Some((right, *found))
}

#[cfg(test)]
mod tests {
    use hca_spec::ether::ethertype;

    use super::*;
    use crate::wire::ethernet::build;

    /// The CRC bit by bit, over a packet of which all that may change is ones already. The register begins as it is after eight
    /// bytes of ones.
    fn slow(masked: &[u8]) -> [u8; 4] {
        let mut crc = 0xdebb_20e3u32;
        for byte in masked {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        (!crc).to_le_bytes()
    }

    /// Congestion notification that a ConnectX-4 Lx sent (test data of scapy's RoCE layer).
    const CNP: [u8; 74] = [
        0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, 0x45, 0xc2, 0x00,
        0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
        0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a,
    ];

    #[test]
    fn a_frame_of_hardware_is_right() {
        let headers = Headers::parse(&CNP).unwrap();
        let bth = headers.bth.unwrap();
        assert_eq!((bth.opcode, bth.dest_qp, bth.offset), (0x81, 0x118, 42));
        let (right, found) = roce_icrc(&CNP, &headers).unwrap();
        assert_eq!((right, found), ([0x82, 0xfd, 0x00, 0x2a], right));
    }

    #[test]
    fn what_routers_change_is_not_covered_and_all_else_is() {
        let right = |frame: &[u8]| roce_icrc(frame, &Headers::parse(frame).unwrap()).map(|icrc| icrc.0);
        let icrc = right(&CNP);
        for (at, free) in [(15, true), (22, true), (24, true), (25, true), (40, true), (46, true)]
            .into_iter()
            .chain([(18, false), (26, false), (34, false), (43, false), (47, false), (60, false)])
        {
            let mut frame = CNP;
            frame[at] ^= 0x21;
            assert_eq!(right(&frame) == icrc, free, "byte {at}");
        }
    }

    #[test]
    fn version_6_with_extensions_and_version_1() {
        let mut bth = [0u8; 12];
        bth[0] = 0x0a;
        bth[4] = 0x40;
        bth[7] = 9;
        let mut inner = bth.to_vec();
        inner.extend((0..20).map(|i| i * 3));
        inner.extend([0; 4]);
        let options = build::extension(hca_spec::ether::protocol::UDP, 6);
        let udp = build::udp_without_checksum(0xc001, 4791, &inner);
        let frame =
            build::ipv6_frame(&[], hca_spec::ether::protocol::DESTINATION, &[&options[..], &udp].concat());
        let headers = Headers::parse(&frame).unwrap();
        let mut masked = frame[14..frame.len() - 4].to_vec();
        masked[0] = 0x6f;
        masked[1..4].fill(0xff);
        masked[7] = 0xff;
        masked[40 + 8 + 6..40 + 8 + 8].fill(0xff);
        masked[40 + 8 + 8 + 4] = 0xff;
        assert_eq!(roce_icrc(&frame, &headers).unwrap().0, slow(&masked));

        let grh = GrhRepr { tclass: 3, flow_label: 5, hop_limit: 7, ..GrhRepr::default() };
        let mut packet = grh.to_bytes(inner.len()).to_vec();
        packet.extend(&inner);
        let mut frame = build::frame(&[], ethertype::ROCE, &packet);
        frame.extend([0; 3]);
        let headers = Headers::parse(&frame).unwrap();
        assert_eq!(headers.bth.unwrap().offset, 54);
        let mut masked = packet[..packet.len() - 4].to_vec();
        masked[0] = 0x6f;
        masked[1..4].fill(0xff);
        masked[7] = 0xff;
        masked[44] = 0xff;
        assert_eq!(roce_icrc(&frame, &headers).unwrap().0, slow(&masked));
    }

    #[test]
    fn frames_without_room_have_none() {
        for len in 0..CNP.len() {
            let Some(headers) = Headers::parse(&CNP[..len]) else { continue };
            let short = roce_icrc(&CNP[..len], &headers);
            assert_eq!(short.is_some(), len >= 58, "{len}");
        }
    }
}
