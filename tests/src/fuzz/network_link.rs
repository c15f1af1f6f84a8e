//! Packets of a SimBricks network link from a peer that may say anything: messages, messages in Ethernet frames, frames.

use hca_model::link::LinkMessage;
use hca_model::{HcaId, LinkSpeed, PortKind, PortLink, Ps, TunnelId, World};
use hca_server::simbricks::Framing;
use hca_server::simbricks::ether::Stations;

use super::feed::Feed;
use crate::fabric::Plan;

/// Steps of one input.
const MOST: usize = 300;
const TUNNEL: TunnelId = TunnelId(3);
/// Room for the port's link to train.
const TRAINING: Ps = Ps::from_ms(30);
/// Types of frames that a port looks into: IPv4, IPv6, ARP, C-VLAN, S-VLAN, MAC control, RoCE v1.
const TYPES: [u16; 7] = [0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x8808, 0x8915];

/// An adapter whose port is of that kind, and at whose cable's other end somebody else is.
fn world(kind: PortKind) -> World {
    let mut plan = Plan { hcas: 1, ..Plan::default() };
    plan.join(HcaId(0), TUNNEL);
    let mut config = plan.config(1);
    config.hcas.iter_mut().for_each(|hca| hca.firmware.port_kind = kind);
    let mut world = World::new(config).expect("a valid topology");
    if kind == PortKind::Ethernet {
        world.tunnel_of_frames(TUNNEL, PortLink { width: 4, speed: LinkSpeed::Edr });
    }
    world.advance(TRAINING);
    world
}

/// A frame with a header that is nearly right.
fn frame(feed: &mut Feed<'_>) -> Vec<u8> {
    let mut bytes = feed.pick(&[[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [2, 0xc9, 0, 0, 0, 1]]).to_vec();
    bytes.extend_from_slice(feed.bytes(6));
    bytes.extend_from_slice(&feed.pick(&TYPES).to_be_bytes());
    let length = usize::from(feed.u16()) % 200;
    bytes.extend_from_slice(feed.bytes(length));
    bytes
}

/// A message whose first byte, its kind, is nearly right, and of whose head most is nothing, as it has to be in places.
fn message(feed: &mut Feed<'_>) -> Vec<u8> {
    let mut bytes = vec![feed.pick(&[0, 1, 2, 3, 4]), feed.pick(&[0, 1, 2, 3, 4, 5, 6, 15, 0xff])];
    bytes.extend_from_slice(feed.bytes(14));
    bytes.resize(32, 0);
    if feed.one_in(4) {
        feed.mutate(&mut bytes, 2);
    }
    bytes.truncate(feed.pick(&[1, 31, 32, 32, 32, 32, 32, 32]));
    let length = feed.pick(&[0, 0, 1, 13, 24, 60, 300]);
    bytes.extend_from_slice(feed.bytes(length));
    bytes
}

/// Gives two adapters what `data` says came by their links.
///
/// # Panics
/// If reading or a world does, or if a good frame is refused afterwards.
pub fn network_link(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut worlds = [PortKind::InfiniBand, PortKind::Ethernet].map(world);
    let here = Stations::new(7, 0);
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let [infiniband, ethernet] = &mut worlds;
        let (to, framing, mut bytes) = match feed.below(4) {
            0 => (infiniband, Framing::Raw, message(&mut feed)),
            1 => {
                let inside = message(&mut feed);
                let length = if feed.one_in(4) { feed.u16() } else { inside.len() as u16 };
                let mut bytes = vec![2, 0x53, 0x48, 0, 7, 0, 2, 0x53, 0x48, 0, 7, 1, 0x88, 0xb5];
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(&inside);
                if feed.one_in(4) {
                    feed.mutate(&mut bytes, 2);
                }
                (infiniband, Framing::Ethernet(here), bytes)
            }
            2 => (ethernet, Framing::Frames, frame(&mut feed)),
            _ => {
                let length = feed.pick(&[0, 13, 14, 59, 60, 1518, 9996, 12_000]);
                let mut bytes = feed.bytes(64).to_vec();
                bytes.resize(length, feed.u8());
                (ethernet, Framing::Frames, bytes)
            }
        };
        if let Ok(Some(message)) = framing.read(&mut bytes) {
            let at = to.now() + Ps::from_ns(feed.u8().into());
            to.deliver(TUNNEL, at, message);
        }
        let until = to.now() + Ps::from_ns(feed.u8().into());
        to.advance(until);
        to.drain_tunnels(Ps::MAX);
    }
    let [_, ethernet] = &mut worlds;
    ethernet.advance(ethernet.now() + TRAINING);
    assert!(ethernet.link_is_up(0), "nobody took the light away");
    let mut good = vec![2; 64];
    let read = Framing::Frames.read(&mut good).expect("a good frame").expect("for whoever is there");
    assert!(matches!(read, LinkMessage::Packet(_)));
    ethernet.deliver(TUNNEL, ethernet.now(), read);
    ethernet.advance(ethernet.now() + TRAINING);
}
