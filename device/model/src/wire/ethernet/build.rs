//! Frames for tests, with right checksums, made without the code that is tested.

use hca_spec::ether::{Ipv4, Ipv6, Ipv6Extension, Tcp, Udp, ethertype, protocol};

use super::Tag;

pub(crate) const DMAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const SMAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const V4: ([u8; 4], [u8; 4]) = ([10, 0, 0, 1], [10, 0, 0, 2]);
pub(crate) const V6: ([u8; 16], [u8; 16]) = (
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
);

/// The checksum of RFC 1071, a word at a time.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An Ethernet frame.
pub(crate) fn frame(tags: &[Tag], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [DMAC, SMAC].concat();
    tags.iter().for_each(|tag| frame.extend(tag.bytes()));
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A datagram of IPv4.
pub(crate) fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = Ipv4::new();
    ip.set(Ipv4::VERSION, 4).set(Ipv4::IHL, 5).set(Ipv4::DSCP, 10).set(Ipv4::ECN, 1);
    ip.set(Ipv4::TOTAL_LENGTH, (20 + payload.len()) as u32).set(Ipv4::ID, 0x1234).set(Ipv4::DF, 1);
    ip.set(Ipv4::TTL, 64).set(Ipv4::PROTOCOL, protocol.into());
    ip.set(Ipv4::SOURCE, u32::from_be_bytes(V4.0)).set(Ipv4::DESTINATION, u32::from_be_bytes(V4.1));
    let sum = checksum(&[ip.bytes()]);
    ip.set(Ipv4::CHECKSUM, sum.into());
    [&ip.bytes()[..], payload].concat()
}

/// A datagram of IPv6.
pub(crate) fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = Ipv6::new();
    ip.set(Ipv6::VERSION, 6).set(Ipv6::DSCP, 12).set(Ipv6::ECN, 2).set(Ipv6::FLOW_LABEL, 0x12345);
    ip.set(Ipv6::PAYLOAD_LENGTH, payload.len() as u32).set(Ipv6::NEXT_HEADER, next.into());
    ip.set(Ipv6::HOP_LIMIT, 63);
    ip.bytes_mut()[8..24].copy_from_slice(&V6.0);
    ip.bytes_mut()[24..].copy_from_slice(&V6.1);
    [&ip.bytes()[..], payload].concat()
}

/// An extension header of IPv6 with `options` bytes, padded.
pub(crate) fn extension(next: u8, options: usize) -> Vec<u8> {
    let len = (2 + options).next_multiple_of(8);
    let mut bytes = vec![0; len];
    bytes[0] = next;
    bytes[1] = (len / 8 - 1) as u8;
    bytes
}

/// A fragment header of IPv6.
pub(crate) fn fragment(next: u8, offset: u32, more: bool) -> Vec<u8> {
    let mut header = Ipv6Extension::new();
    header.set(Ipv6Extension::NEXT_HEADER, next.into()).set(Ipv6Extension::FRAGMENT_OFFSET, offset);
    header.set(Ipv6Extension::MF, more.into()).set(Ipv6Extension::ID, 7);
    header.bytes().to_vec()
}

fn pseudo(v6: bool, protocol: u8, len: usize) -> Vec<u8> {
    let tail = [(len as u32).to_be_bytes(), u32::from(protocol).to_be_bytes()].concat();
    if v6 { [&V6.0[..], &V6.1, &tail].concat() } else { [&V4.0[..], &V4.1, &tail].concat() }
}

/// A segment of TCP with the right checksum.
pub(crate) fn tcp(v6: bool, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut tcp = Tcp::new();
    tcp.set(Tcp::SOURCE, 1000).set(Tcp::DESTINATION, 2000).set(Tcp::SEQUENCE, 0xffff_f000);
    tcp.set(Tcp::ACKNOWLEDGEMENT, 77).set(Tcp::DATA_OFFSET, 5).set(Tcp::FLAGS, flags).set(Tcp::WINDOW, 500);
    let sum = checksum(&[&pseudo(v6, protocol::TCP, 20 + payload.len()), tcp.bytes(), payload]);
    tcp.set(Tcp::CHECKSUM, sum.into());
    [&tcp.bytes()[..], payload].concat()
}

/// A datagram of UDP, checksum 0.
pub(crate) fn udp_without_checksum(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = Udp::new();
    udp.set(Udp::SOURCE, source.into()).set(Udp::DESTINATION, destination.into());
    udp.set(Udp::LENGTH, (8 + payload.len()) as u32);
    [&udp.bytes()[..], payload].concat()
}

/// A datagram of UDP with the right checksum.
pub(crate) fn udp(v6: bool, source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = udp_without_checksum(source, destination, payload);
    let sum = checksum(&[&pseudo(v6, protocol::UDP, udp.len()), &udp]);
    let sum = if sum == 0 { 0xffff } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    udp
}

pub(crate) fn ipv4_frame(tags: &[Tag], protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(tags, ethertype::IPV4, &ipv4(protocol, payload))
}

pub(crate) fn ipv6_frame(tags: &[Tag], next: u8, payload: &[u8]) -> Vec<u8> {
    frame(tags, ethertype::IPV6, &ipv6(next, payload))
}

/// A frame with TCP or UDP of either version of IP.
pub(crate) fn transport_frame(tags: &[Tag], v6: bool, is_tcp: bool, payload: &[u8]) -> Vec<u8> {
    let (number, segment) = match is_tcp {
        true => (protocol::TCP, tcp(v6, 0x18, payload)),
        false => (protocol::UDP, udp(v6, 1000, 2000, payload)),
    };
    if v6 { ipv6_frame(tags, number, &segment) } else { ipv4_frame(tags, number, &segment) }
}
