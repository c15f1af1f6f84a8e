//! Layers 3 and 4 of a frame.

use hca_spec::ether::{
    GENEVE_PORT, Geneve, Gre, Ipv4, Ipv6, Ipv6Extension, ROCE_PORT, Tcp, Udp, Vxlan, ethertype, protocol,
};
use hca_spec::wire::{Bth, Grh};

use super::{
    Fragment, Headers, Ip, IpVersion, Layer4, MAX_EXTENSIONS, RoceBth, Rules, Tunnel, TunnelKind, at,
};

/// Bytes of the words of a GRE header: the first, and each that a bit announces.
const GRE_WORD: usize = 4;
/// Bytes of ESP and AH up to and with the index.
const ESP_SPI: usize = 4;
const AH_SPI: usize = 8;

/// The transport header of RoCE at `offset`.
fn roce_bth(frame: &[u8], offset: usize, end: usize) -> Option<RoceBth> {
    let bth = Bth::from_prefix_or_zero(at::<{ Bth::SIZE }>(frame, offset, end)?);
    Some(RoceBth { offset, opcode: bth.get(Bth::OPCODE) as u8, dest_qp: bth.get(Bth::DEST_QP) })
}

impl Headers {
    /// From layer 3 on, by the type.
    pub(super) fn network(&mut self, frame: &[u8], rules: &Rules<'_>) {
        let protocol = match self.ethertype {
            ethertype::IPV4 => self.ipv4(frame, rules),
            ethertype::IPV6 => self.ipv6(frame, rules),
            ethertype::ROCE => {
                self.bth = roce_bth(frame, self.l3.saturating_add(Grh::SIZE), frame.len());
                None
            }
            _ => None,
        };
        if let (Some(protocol), Some(offset), Some(ip)) = (protocol, self.l4, self.ip) {
            self.transport(frame, protocol, offset, ip.end, rules);
        }
    }

    /// Where a datagram ends that is to be `length` bytes, and whether the frame has all of it.
    fn end(&self, frame: &[u8], length: usize, rules: &Rules<'_>) -> (usize, bool) {
        let said = self.l3.saturating_add(length);
        if rules.headers_only { (frame.len(), true) } else { (said.min(frame.len()), said <= frame.len()) }
    }

    /// Returns the protocol of layer 4 if its header is here.
    fn ipv4(&mut self, frame: &[u8], rules: &Rules<'_>) -> Option<u8> {
        let ip = Ipv4::from_prefix_or_zero(at::<{ Ipv4::SIZE }>(frame, self.l3, frame.len())?);
        let header = ip.get(Ipv4::IHL) as usize * 4;
        let length = ip.get(Ipv4::TOTAL_LENGTH) as usize;
        let (end, complete) = self.end(frame, length, rules);
        let l4 = self.l3.saturating_add(header);
        if ip.get(Ipv4::VERSION) != 4 || header < Ipv4::SIZE || l4 > end {
            return None;
        }
        let fragment = match (ip.get(Ipv4::FRAGMENT_OFFSET), ip.get(Ipv4::MF)) {
            (0, 0) => Fragment::Whole,
            (0, _) => Fragment::First,
            _ => Fragment::Later,
        };
        let address = |field| u128::from(ip.get(field)).to_be_bytes();
        let protocol = ip.get(Ipv4::PROTOCOL) as u8;
        self.ip = Some(Ip {
            version: IpVersion::V4,
            source: address(Ipv4::SOURCE),
            destination: address(Ipv4::DESTINATION),
            protocol,
            dscp: ip.get(Ipv4::DSCP) as u8,
            ecn: ip.get(Ipv4::ECN) as u8,
            ttl: ip.get(Ipv4::TTL) as u8,
            flow_label: 0,
            fragment,
            options: header > Ipv4::SIZE,
            end,
            complete,
        });
        self.l4 = (fragment != Fragment::Later).then_some(l4);
        self.l4.map(|_| protocol)
    }

    /// Returns the protocol of layer 4 if its header is here.
    fn ipv6(&mut self, frame: &[u8], rules: &Rules<'_>) -> Option<u8> {
        let ip = Ipv6::from_prefix_or_zero(at::<{ Ipv6::SIZE }>(frame, self.l3, frame.len())?);
        if ip.get(Ipv6::VERSION) != 6 {
            return None;
        }
        let length = Ipv6::SIZE + ip.get(Ipv6::PAYLOAD_LENGTH) as usize;
        let (end, complete) = self.end(frame, length, rules);
        let address = |high, low| (u128::from(ip.get(high)) << 64 | u128::from(ip.get(low))).to_be_bytes();
        let mut l4 = self.l3.saturating_add(Ipv6::SIZE);
        let mut next = ip.get(Ipv6::NEXT_HEADER) as u8;
        let mut fragment = Fragment::Whole;
        let mut extensions = 0;
        let mut known = true;
        while matches!(
            next,
            protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::FRAGMENT
                | protocol::DESTINATION
                | protocol::MOBILITY
        ) {
            let header =
                at::<{ Ipv6Extension::SIZE }>(frame, l4, end).filter(|_| extensions < MAX_EXTENSIONS);
            let Some(header) = header.map(|h| Ipv6Extension::from_prefix_or_zero(h)) else {
                known = false;
                break;
            };
            extensions += 1;
            let is_fragment = next == protocol::FRAGMENT;
            let units = if is_fragment { 0 } else { header.get(Ipv6Extension::LENGTH) as usize };
            l4 = l4.saturating_add((units + 1) * Ipv6Extension::SIZE);
            next = header.get(Ipv6Extension::NEXT_HEADER) as u8;
            if is_fragment {
                fragment = match (header.get(Ipv6Extension::FRAGMENT_OFFSET), header.get(Ipv6Extension::MF)) {
                    (0, 0) => Fragment::Whole,
                    (0, _) => Fragment::First,
                    _ => Fragment::Later,
                };
                if fragment == Fragment::Later {
                    break;
                }
            }
        }
        self.ip = Some(Ip {
            version: IpVersion::V6,
            source: address(Ipv6::SOURCE_H, Ipv6::SOURCE_L),
            destination: address(Ipv6::DESTINATION_H, Ipv6::DESTINATION_L),
            protocol: next,
            dscp: ip.get(Ipv6::DSCP) as u8,
            ecn: ip.get(Ipv6::ECN) as u8,
            ttl: ip.get(Ipv6::HOP_LIMIT) as u8,
            flow_label: ip.get(Ipv6::FLOW_LABEL),
            fragment,
            options: extensions > 0 || !known,
            end,
            complete,
        });
        self.l4 = (known && fragment != Fragment::Later && l4 <= end).then_some(l4);
        self.l4.map(|_| next)
    }

    /// Layer 4 at `offset` of a datagram that ends at `end`.
    fn transport(&mut self, frame: &[u8], protocol: u8, offset: usize, end: usize, rules: &Rules<'_>) {
        let word = |word: Option<&[u8; 4]>| word.map(|word| u32::from_be_bytes(*word));
        let layer4 = match protocol {
            protocol::TCP => at::<{ Tcp::SIZE }>(frame, offset, end).map(|tcp| {
                let tcp = Tcp::from_prefix_or_zero(tcp);
                Layer4::Tcp {
                    source: tcp.get(Tcp::SOURCE) as u16,
                    destination: tcp.get(Tcp::DESTINATION) as u16,
                    flags: tcp.get(Tcp::FLAGS) as u16,
                    header: tcp.get(Tcp::DATA_OFFSET) as usize * 4,
                }
            }),
            protocol::UDP => at::<{ Udp::SIZE }>(frame, offset, end).map(|udp| {
                let udp = Udp::from_prefix_or_zero(udp);
                let destination = udp.get(Udp::DESTINATION) as u16;
                let behind = offset.saturating_add(Udp::SIZE);
                if destination == ROCE_PORT {
                    self.bth = roce_bth(frame, behind, end);
                } else if rules.vxlan_ports.contains(&destination) {
                    self.tunnel = vxlan(frame, behind, end);
                } else if rules.all_tunnels && destination == GENEVE_PORT {
                    self.tunnel = geneve(frame, behind, end);
                }
                Layer4::Udp {
                    source: udp.get(Udp::SOURCE) as u16,
                    destination,
                    length: udp.get(Udp::LENGTH) as u16,
                }
            }),
            protocol::GRE => {
                self.tunnel = gre(frame, offset, end, rules.all_tunnels);
                self.tunnel.map(|_| Layer4::Gre)
            }
            protocol::ESP => word(at(frame, offset, end)).map(|spi| Layer4::Esp { spi }),
            protocol::AH => {
                word(at(frame, offset.saturating_add(AH_SPI - ESP_SPI), end)).map(|spi| Layer4::Ah { spi })
            }
            protocol::ICMP | protocol::ICMPV6 => Some(Layer4::Icmp),
            _ => None,
        };
        self.layer4 = layer4.unwrap_or_default();
    }
}

fn vxlan(frame: &[u8], offset: usize, end: usize) -> Option<Tunnel> {
    let vxlan = Vxlan::from_prefix_or_zero(at::<{ Vxlan::SIZE }>(frame, offset, end)?);
    let kind = TunnelKind::Vxlan { vni: vxlan.get(Vxlan::VNI) };
    Some(Tunnel { kind, start: offset, inner: offset.saturating_add(Vxlan::SIZE) })
}

/// A Geneve header of version 0 (RFC 8926).
fn geneve(frame: &[u8], offset: usize, end: usize) -> Option<Tunnel> {
    let head = Geneve::from_prefix_or_zero(at::<{ Geneve::SIZE }>(frame, offset, end)?);
    if head.get(Geneve::VERSION) != 0 {
        return None;
    }
    let options = head.get(Geneve::OPTIONS) as u8;
    let inner = offset.saturating_add(Geneve::SIZE + usize::from(options) * 4);
    if inner > end {
        return None;
    }
    let kind = TunnelKind::Geneve {
        protocol: head.get(Geneve::PROTOCOL) as u16,
        vni: head.get(Geneve::VNI),
        control: head.get(Geneve::CONTROL) == 1,
        options,
    };
    Some(Tunnel { kind, start: offset, inner })
}

/// A GRE header of version 0, or of version 1 too, without routing; others are payload.
fn gre(frame: &[u8], offset: usize, end: usize, version_1: bool) -> Option<Tunnel> {
    let gre = Gre::from_prefix_or_zero(at::<{ Gre::SIZE }>(frame, offset, end)?);
    if gre.get(Gre::VERSION) > u32::from(version_1) || gre.get(Gre::R) != 0 {
        return None;
    }
    let words = |bits: u32| bits as usize * GRE_WORD;
    let key_at = offset.saturating_add(Gre::SIZE + words(gre.get(Gre::C)));
    let inner = key_at
        .saturating_add(words(gre.get(Gre::K) + gre.get(Gre::S) + gre.get(Gre::VERSION) * gre.get(Gre::A)));
    if inner > end {
        return None;
    }
    let key = at::<GRE_WORD>(frame, key_at, end).filter(|_| gre.get(Gre::K) == 1);
    let key = key.map(|key| u32::from_be_bytes(*key));
    let kind = TunnelKind::Gre {
        protocol: gre.get(Gre::PROTOCOL) as u16,
        key,
        checksum: gre.get(Gre::C) == 1,
        sequence: gre.get(Gre::S) == 1,
    };
    Some(Tunnel { kind, start: offset, inner })
}
