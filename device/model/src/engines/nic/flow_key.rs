//! What a frame shows to flow tables.

use hca_firmware::steering::{Bth, FlowKey, Geneve, Gre, Ip, L4, Layers, Parser, Places, Sight, Tag};
use hca_spec::ether::ethertype;

use crate::wire::ethernet::{Fragment, Headers, IpVersion, Layer4, TunnelKind};

/// The key of a frame with these headers, and with these within a tunnel ([`Headers::inner`]). Who sends the frame adds where it
/// comes from.
///
/// An authentication header and ICMP show nothing but IP's protocol: entries have no fields for them.
fn flow_key(outer: &Headers, inner: Option<&Headers>) -> FlowKey {
    let tunnel = outer.tunnel.map(|tunnel| tunnel.kind);
    FlowKey {
        outer: layers(outer),
        inner: inner.map(layers),
        gre: match tunnel {
            Some(TunnelKind::Gre { protocol, key, checksum, sequence }) => {
                Some(Gre { protocol, key, checksum, sequence })
            }
            _ => None,
        },
        vxlan_vni: match tunnel {
            Some(TunnelKind::Vxlan { vni }) => Some(vni),
            _ => None,
        },
        geneve: match tunnel {
            Some(TunnelKind::Geneve { protocol, vni, control, options }) => {
                Some(Geneve { vni, control, protocol, options })
            }
            _ => None,
        },
        bth: outer.bth.map(|bth| Bth { opcode: bth.opcode, dest_qp: bth.dest_qp }),
        ..FlowKey::default()
    }
}

/// Where those headers are.
fn places(outer: &Headers, inner: Option<&Headers>) -> Places {
    let carries_frame = outer.tunnel.filter(|tunnel| match tunnel.kind {
        TunnelKind::Vxlan { .. } => true,
        TunnelKind::Gre { protocol, .. } | TunnelKind::Geneve { protocol, .. } => {
            protocol == ethertype::ETHERNET
        }
    });
    Places {
        l3: outer.l3,
        l4: outer.l4,
        tunnel: outer.tunnel.map(|tunnel| tunnel.start),
        inner: carries_frame.map(|tunnel| tunnel.inner),
        inner_l3: inner.map(|inner| inner.l3),
        inner_l4: inner.and_then(|inner| inner.l4),
        bth: outer.bth.map(|bth| bth.offset),
    }
}

/// What flow tables see of a frame with these headers.
pub(crate) fn sight(outer: &Headers, inner: Option<&Headers>) -> Sight {
    Sight { key: flow_key(outer, inner), places: places(outer, inner) }
}

/// What looks at the headers of a frame for flow tables, on an adapter that looks into all kinds of tunnels or not. A frame that is
/// not one shows nothing.
pub fn parser(all_tunnels: bool) -> Parser {
    let look: Parser = |frame, vxlan| seen(frame, Headers::parse_with(frame, vxlan.as_slice(), false));
    let look_into_all: Parser =
        |frame, vxlan| seen(frame, Headers::parse_with(frame, vxlan.as_slice(), true));
    if all_tunnels { look_into_all } else { look }
}

fn seen(frame: &[u8], headers: Option<Headers>) -> Sight {
    headers.map_or_else(Sight::default, |headers| sight(&headers, headers.inner(frame).as_ref()))
}

fn layers(headers: &Headers) -> Layers {
    let tag = |i: usize| {
        let tag = headers.tags().get(i)?;
        Some(Tag { service: tag.tpid == ethertype::S_TAG, tci: tag.tci })
    };
    Layers {
        dmac: headers.dmac,
        smac: headers.smac,
        ethertype: headers.ethertype,
        tags: [tag(0), tag(1)],
        ip: headers.ip.map(|ip| Ip {
            version: match ip.version {
                IpVersion::V4 => 4,
                IpVersion::V6 => 6,
            },
            protocol: ip.protocol,
            dscp: ip.dscp,
            ecn: ip.ecn,
            fragment: ip.fragment != Fragment::Whole,
            ttl: ip.ttl,
            flow_label: ip.flow_label,
            source: ip.source,
            destination: ip.destination,
        }),
        l4: match headers.layer4 {
            Layer4::Tcp { source, destination, flags, .. } => L4::Tcp { source, destination, flags },
            Layer4::Udp { source, destination, .. } => L4::Udp { source, destination },
            Layer4::Esp { spi } => L4::Esp { spi },
            Layer4::None | Layer4::Icmp | Layer4::Ah { .. } | Layer4::Gre => L4::None,
        },
    }
}

#[cfg(test)]
mod tests {
    use hca_firmware::steering::VxlanPorts;
    use hca_spec::ether::protocol;

    use super::*;
    use crate::wire::ethernet::{self, build};

    const C: ethernet::Tag = ethernet::Tag { tpid: ethertype::C_TAG, tci: 0xa005 };
    const S: ethernet::Tag = ethernet::Tag { tpid: ethertype::S_TAG, tci: 6 };

    fn key(frame: &[u8]) -> FlowKey {
        let headers = Headers::parse(frame).unwrap();
        flow_key(&headers, headers.inner(frame).as_ref())
    }

    #[test]
    fn layers_two_to_four() {
        let key = key(&build::transport_frame(&[S, C], true, true, b"x"));
        let outer = key.outer;
        assert_eq!((outer.dmac, outer.smac, outer.ethertype), (build::DMAC, build::SMAC, ethertype::IPV6));
        assert_eq!(
            outer.tags,
            [Some(Tag { service: true, tci: 6 }), Some(Tag { service: false, tci: 0xa005 })]
        );
        let ip = outer.ip.unwrap();
        assert_eq!((ip.version, ip.protocol, ip.dscp, ip.ecn, ip.ttl), (6, 6, 12, 2, 63));
        assert_eq!((ip.flow_label, ip.source, ip.destination), (0x12345, build::V6.0, build::V6.1));
        assert_eq!(outer.l4, L4::Tcp { source: 1000, destination: 2000, flags: 0x18 });
        assert_eq!(
            (key.inner, key.gre, key.vxlan_vni, key.bth, key.source_sqn),
            (None, None, None, None, None)
        );
    }

    #[test]
    fn fragments_and_other_protocols() {
        let mut frame = build::transport_frame(&[], false, false, b"x");
        assert_eq!(key(&frame).outer.l4, L4::Udp { source: 1000, destination: 2000 });
        assert!(!key(&frame).outer.ip.unwrap().fragment);
        frame[21] = 1;
        assert_eq!((key(&frame).outer.l4, key(&frame).outer.ip.unwrap().fragment), (L4::None, true));
        let esp = build::ipv4_frame(&[], protocol::ESP, &[0, 0, 0, 9, 0, 0, 0, 1]);
        assert_eq!(key(&esp).outer.l4, L4::Esp { spi: 9 });
        let icmp = key(&build::ipv4_frame(&[], protocol::ICMP, &[0; 8])).outer;
        assert_eq!((icmp.l4, icmp.ip.unwrap().protocol), (L4::None, 1));
        assert_eq!(key(&build::frame(&[], ethertype::ARP, &[0; 46])).outer.ip, None);
    }

    #[test]
    fn tunnels_and_roce() {
        let inner = build::transport_frame(&[C], false, true, b"x");
        let vxlan = [&[8, 0, 0, 0, 1, 2, 3, 0][..], &inner].concat();
        let outer = key(&build::ipv4_frame(&[], protocol::UDP, &build::udp(false, 1, 4789, &vxlan)));
        assert_eq!((outer.vxlan_vni, outer.inner), (Some(0x010203), Some(key(&inner).outer)));
        // At another port it is one when a driver has said so.
        let other = build::ipv4_frame(&[], protocol::UDP, &build::udp(false, 1, 8472, &vxlan));
        let mut ports = VxlanPorts::default();
        for expected in [None, Some(0x010203)] {
            assert_eq!(parser(false)(&other, &ports).key.vxlan_vni, expected);
            assert_eq!(parser(true)(&other, &ports).places.inner, expected.map(|_| 50));
            ports.add(8472).expect("there is room");
        }
        let gre = [&[0x30, 0, 0x65, 0x58, 0, 0, 0, 7, 0, 0, 0, 1][..], &inner].concat();
        let outer = key(&build::ipv4_frame(&[], protocol::GRE, &gre));
        let head = Gre { protocol: 0x6558, key: Some(7), checksum: false, sequence: true };
        assert_eq!((outer.gre, outer.inner), (Some(head), Some(key(&inner).outer)));
        let bth = [0x64, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0];
        let roce = key(&build::ipv4_frame(&[], protocol::UDP, &build::udp(false, 1, 4791, &bth)));
        assert_eq!(roce.bth, Some(Bth { opcode: 0x64, dest_qp: 0x123456 }));
    }
}
