//! Frames for tests, made without the code that is tested.

use hca_driver::eth::Mac;
use hca_spec::ether::{Ipv4, Ipv6, Tcp, Udp, ethertype, protocol};

/// The checksum of RFC 1071, a word at a time.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A frame of an EtherType that nobody knows.
pub fn plain(to: Mac, from: Mac, payload: &[u8]) -> Vec<u8> {
    framed(to, from, None, 0x88b5, payload)
}

/// A frame.
pub fn framed(to: Mac, from: Mac, tci: Option<u16>, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    if let Some(tci) = tci {
        frame.extend(ethertype::C_TAG.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Addresses and ports of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// IPv6; its addresses are `fd00::a.b.c.d`.
    pub v6: bool,
    /// TCP; otherwise UDP.
    pub tcp: bool,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Ports.
    pub ports: (u16, u16),
}

impl Default for Flow {
    fn default() -> Self {
        Self { v6: false, tcp: true, source: [10, 0, 0, 1], destination: [10, 0, 0, 2], ports: (1000, 2000) }
    }
}

/// What the header of a TCP segment says.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledged: u32,
    /// [`hca_spec::ether::tcp_flags`].
    pub flags: u32,
}

impl Default for Segment {
    fn default() -> Self {
        Self { sequence: 0xffff_f000, acknowledged: 7, flags: 0x18 }
    }
}

fn v6(address: [u8; 4]) -> [u8; 16] {
    let mut all = [0; 16];
    all[0] = 0xfd;
    all[12..].copy_from_slice(&address);
    all
}

impl Flow {
    fn pseudo(&self, len: usize) -> Vec<u8> {
        let protocol = if self.tcp { protocol::TCP } else { protocol::UDP };
        let tail = [(len as u32).to_be_bytes(), u32::from(protocol).to_be_bytes()].concat();
        match self.v6 {
            true => [&v6(self.source)[..], &v6(self.destination), &tail].concat(),
            false => [&self.source[..], &self.destination, &tail].concat(),
        }
    }

    /// An IP datagram of the flow. Checksums are right, or (`false`) zero.
    pub fn datagram(&self, sums: bool, payload: &[u8]) -> Vec<u8> {
        self.segment(sums, &Segment::default(), payload)
    }

    /// The same, of TCP with what its header says.
    pub fn segment(&self, sums: bool, of: &Segment, payload: &[u8]) -> Vec<u8> {
        let (source, destination) = (u32::from(self.ports.0), u32::from(self.ports.1));
        let mut segment = match self.tcp {
            true => {
                let mut tcp = Tcp::new();
                tcp.set(Tcp::SOURCE, source)
                    .set(Tcp::DESTINATION, destination)
                    .set(Tcp::SEQUENCE, of.sequence);
                tcp.set(Tcp::ACKNOWLEDGEMENT, of.acknowledged).set(Tcp::DATA_OFFSET, 5);
                tcp.set(Tcp::FLAGS, of.flags).set(Tcp::WINDOW, 500);
                tcp.bytes().to_vec()
            }
            false => {
                let mut udp = Udp::new();
                udp.set(Udp::SOURCE, source).set(Udp::DESTINATION, destination);
                udp.set(Udp::LENGTH, (8 + payload.len()) as u32);
                udp.bytes().to_vec()
            }
        };
        segment.extend(payload);
        if sums {
            let sum = checksum(&[&self.pseudo(segment.len()), &segment]);
            let at = if self.tcp { 16 } else { 6 };
            segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let next = u32::from(if self.tcp { protocol::TCP } else { protocol::UDP });
        match self.v6 {
            true => {
                let mut ip = Ipv6::new();
                ip.set(Ipv6::VERSION, 6).set(Ipv6::PAYLOAD_LENGTH, segment.len() as u32);
                ip.set(Ipv6::NEXT_HEADER, next).set(Ipv6::HOP_LIMIT, 64);
                ip.bytes_mut()[8..24].copy_from_slice(&v6(self.source));
                ip.bytes_mut()[24..].copy_from_slice(&v6(self.destination));
                [&ip.bytes()[..], &segment].concat()
            }
            false => {
                let mut ip = Ipv4::new();
                ip.set(Ipv4::VERSION, 4)
                    .set(Ipv4::IHL, 5)
                    .set(Ipv4::TOTAL_LENGTH, (20 + segment.len()) as u32);
                ip.set(Ipv4::ID, 77).set(Ipv4::DF, 1).set(Ipv4::TTL, 64).set(Ipv4::PROTOCOL, next);
                ip.set(Ipv4::SOURCE, u32::from_be_bytes(self.source));
                ip.set(Ipv4::DESTINATION, u32::from_be_bytes(self.destination));
                if sums {
                    let sum = checksum(&[ip.bytes()]);
                    ip.set(Ipv4::CHECKSUM, sum.into());
                }
                [&ip.bytes()[..], &segment].concat()
            }
        }
    }

    /// A frame of the flow.
    pub fn frame(&self, to: Mac, from: Mac, tci: Option<u16>, sums: bool, payload: &[u8]) -> Vec<u8> {
        let kind = if self.v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        framed(to, from, tci, kind, &self.datagram(sums, payload))
    }
}
