//! What a frame shows to flow tables.

use hca_firmware::steering::{Bth, FlowKey, Gre, Ip, L4, Layers, Tag};
use hca_spec::ether::ethertype;

use crate::wire::ethernet::{Fragment, Headers, IpVersion, Layer4, TunnelKind};

/// What the headers of a received frame say, and those within a tunnel.
pub(crate) fn flow_key(frame: &[u8], headers: &Headers) -> FlowKey {
    let inner = headers.tunnel.and_then(|_| headers.inner(frame));
    let mut key = FlowKey {
        outer: layers(headers),
        inner: inner.as_ref().map(layers),
        bth: headers.bth.map(|bth| Bth { opcode: bth.opcode, dest_qp: bth.dest_qp }),
        ..FlowKey::default()
    };
    match headers.tunnel.map(|tunnel| tunnel.kind) {
        Some(TunnelKind::Vxlan { vni }) => key.vxlan_vni = Some(vni),
        Some(TunnelKind::Gre { protocol, key: of, checksum, sequence }) => {
            key.gre = Some(Gre { protocol, key: of, checksum, sequence });
        }
        None => {}
    }
    key
}

fn layers(headers: &Headers) -> Layers {
    let mut tags = [None; 2];
    for (to, tag) in tags.iter_mut().zip(headers.tags()) {
        *to = Some(Tag { service: tag.tpid == ethertype::S_TAG, tci: tag.tci });
    }
    let ip = headers.ip.map(|ip| Ip {
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
    });
    let l4 = match headers.layer4 {
        Layer4::Tcp { source, destination, flags, .. } => L4::Tcp { source, destination, flags },
        Layer4::Udp { source, destination, .. } => L4::Udp { source, destination },
        Layer4::Esp { spi } => L4::Esp { spi },
        _ => L4::None,
    };
    let Headers { dmac, smac, ethertype, .. } = *headers;
    Layers { dmac, smac, ethertype, tags, ip, l4 }
}
