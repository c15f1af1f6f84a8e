//! What switches look at in frames beside addresses: priority, flow, and whether their senders can be told of congestion.
//!
//! Source: RFC 2474 (DSCP), RFC 3168 (ECN), RFC 1624 (a checksum is made right), IEEE 802.1Q 6.9.4 (priority of a tag); PRM "Q_DPDPM".

use hca_spec::ether::{ROCE_PORT, protocol};

use super::{Form, LinkAddress, Packet};
use crate::ground::random::mix;
use crate::link_layer::eth::{self, Wrapping};
use crate::wire::ethernet::{Headers, IpVersion, Layer4};

/// No class was chosen.
pub(super) const UNCLASSED: u8 = u8::MAX;
/// Bits of a DSCP below the priority, where nobody says otherwise.
const DSCP_SHIFT: u8 = 3;

impl Packet {
    /// The DSCP of an IP packet.
    fn dscp(&self) -> Option<u8> {
        match (self.0.form, &self.0.path.link) {
            (_, LinkAddress::Ib(_)) => None,
            (Form::Built, LinkAddress::Eth(address)) => {
                let ip = matches!(address.wrapping, Wrapping::V2 { .. });
                self.0.path.grh.filter(|_| ip).map(|grh| grh.tclass >> 2)
            }
            (_, LinkAddress::Eth(_)) => eth::frame::traffic_class(&self.0.data).map(|class| class >> 2),
        }
    }

    /// The priority that a port gives a frame that arrives: by the DSCP of an IP packet, or by its tag.
    pub(crate) fn class(&self, by_dscp: bool) -> u8 {
        let by_tag = || self.eth().priority();
        if by_dscp { self.dscp().map_or_else(by_tag, |dscp| dscp >> DSCP_SHIFT) } else { by_tag() }
    }

    /// It met congestion: says so to its receiver, if its sender can be told (RFC 3168 section 5). Whether it does, and did not
    /// before.
    pub(crate) fn mark_congestion(&mut self) -> bool {
        let body = &mut *self.0;
        match (body.form, &body.path.link) {
            (_, LinkAddress::Ib(_)) => false,
            (Form::Built, LinkAddress::Eth(address)) => {
                let ip = matches!(address.wrapping, Wrapping::V2 { .. });
                let Some(grh) = body.path.grh.as_mut().filter(|_| ip) else { return false };
                let can = matches!(grh.tclass & 3, 1 | 2);
                grh.tclass |= if can { 3 } else { 0 };
                can
            }
            (_, LinkAddress::Eth(_)) => {
                let marked = eth::frame::mark_congestion(&mut body.data);
                if marked {
                    body.header_changed();
                }
                marked
            }
        }
    }

    /// Whether it met congestion on its way; only of a packet that is good.
    #[inline]
    pub(crate) fn met_congestion(&self) -> bool {
        match &self.0.path.link {
            LinkAddress::Ib(_) => false,
            LinkAddress::Eth(address) => {
                matches!(address.wrapping, Wrapping::V2 { .. })
                    && self.0.path.grh.is_some_and(|grh| grh.tclass & 3 == 3)
            }
        }
    }

    /// A number that all packets of a flow have and those of others hardly: of addresses, protocol and ports, otherwise of MAC
    /// addresses.
    pub(crate) fn flow(&self, seed: u64) -> u64 {
        let hash = |from: u128, to: u128, rest: u64| {
            let words = [(from >> 64) as u64, from as u64, (to >> 64) as u64, to as u64, rest];
            words.into_iter().fold(mix(seed), |hash, word| mix(hash ^ word))
        };
        let ports = |protocol: u8, source: u16, destination: u16| {
            u64::from(protocol) << 32 | u64::from(source) << 16 | u64::from(destination)
        };
        // IPv4 addresses are the last four bytes of GIDs, and of addresses in parsed headers.
        let ip = |version: IpVersion, address: [u8; 16]| match version {
            IpVersion::V4 => u128::from_be_bytes(address) & u128::from(u32::MAX),
            IpVersion::V6 => u128::from_be_bytes(address),
        };
        let macs = |address: eth::Address| {
            let number = |mac: eth::Mac| mac.0.iter().fold(0, |all, byte| all << 8 | u128::from(*byte));
            hash(number(address.smac), number(address.dmac), 0)
        };
        match (self.0.form, &self.0.path.link) {
            (_, LinkAddress::Ib(_)) => 0,
            (Form::Built, LinkAddress::Eth(address)) => match (address.wrapping, self.0.path.grh) {
                (Wrapping::V2 { ipv4, source_port }, Some(grh)) => {
                    let version = if ipv4 { IpVersion::V4 } else { IpVersion::V6 };
                    let rest = ports(protocol::UDP, source_port, ROCE_PORT);
                    hash(ip(version, grh.sgid.0), ip(version, grh.dgid.0), rest)
                }
                _ => macs(*address),
            },
            (_, LinkAddress::Eth(address)) => {
                let headers = Headers::parse(eth::frame::body(&self.0.data)).unwrap_or_default();
                let Some(found) = headers.ip else { return macs(*address) };
                let (source, destination) = match headers.layer4 {
                    Layer4::Tcp { source, destination, .. } | Layer4::Udp { source, destination, .. } => {
                        (source, destination)
                    }
                    _ => (0, 0),
                };
                let rest = ports(found.protocol, source, destination);
                hash(ip(found.version, found.source), ip(found.version, found.destination), rest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::ids::Gid;

    use super::*;
    use crate::link_layer::Path;
    use crate::link_layer::eth::Address;
    use crate::wire::{GrhRepr, Repr};

    fn packet(ipv4: bool, source_port: u16, tclass: u8, tci: Option<u16>) -> Packet {
        let address = Address { tci, wrapping: Wrapping::V2 { ipv4, source_port }, ..Address::default() };
        let gid = |n: u8| match ipv4 {
            true => Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, n]),
            false => Gid::new(0xfd00 << 48, n.into()),
        };
        let grh = GrhRepr { tclass, hop_limit: 64, sgid: gid(1), dgid: gid(2), ..GrhRepr::default() };
        Packet::build_empty(&Path::of_roce(address, grh), &Repr::default())
    }

    fn as_bytes(packet: &Packet) -> Packet {
        Packet::from_frame_bytes(packet.clone().into_bytes())
    }

    /// Headers and bytes say the same.
    #[test]
    fn packets_and_frames_agree() {
        for ipv4 in [true, false] {
            for tci in [None, Some(5 << 13 | 9)] {
                let built = packet(ipv4, 0xc001, 26 << 2 | 2, tci);
                let bytes = as_bytes(&built);
                for packet in [&built, &bytes] {
                    assert_eq!(packet.class(true), 3);
                    assert_eq!(packet.class(false), if tci.is_some() { 5 } else { 0 });
                }
                assert_eq!(built.flow(7), bytes.flow(7));
                assert_ne!(built.flow(7), packet(ipv4, 0xc002, 26 << 2, tci).flow(7));
                assert_ne!(built.flow(7), built.flow(8));
            }
        }
        let frame = Packet::frame(vec![1; 60]);
        assert_eq!((frame.class(true), frame.flow(1)), (frame.class(false), frame.flow(1)));
    }

    /// Only who can be told is told, and the packet is good afterwards.
    #[test]
    fn congestion_is_marked() {
        for ipv4 in [true, false] {
            for (ecn, can) in [(0, false), (1, true), (2, true), (3, false)] {
                let mut built = packet(ipv4, 0xc001, 26 << 2 | ecn, Some(9));
                let mut bytes = as_bytes(&built);
                assert_eq!((built.mark_congestion(), bytes.mark_congestion()), (can, can));
                let bytes = bytes.into_bytes();
                let came = Packet::from_frame_bytes(bytes.clone());
                let (path, ..) = came.parse().expect("FCS, header and ICRC are right");
                assert_eq!(path.grh().map(|grh| grh.tclass & 3), Some(if can { 3 } else { ecn }));
                assert_eq!(bytes, built.clone().into_bytes());
            }
        }
        for len in 0..80 {
            assert!(!Packet::frame(vec![8; len]).mark_congestion());
        }
    }
}
