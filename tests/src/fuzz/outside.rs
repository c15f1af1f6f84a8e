//! A stream of frames as other software sends it, cut anywhere, to a port that is Ethernet.

use hca_model::{HcaId, LinkSpeed, PortKind, PortLink, Ps, TunnelId, World};
use hca_server::outside::prefix::{Decoder, encode};
use hca_server::outside::turn::{Counts, Turn};

use super::feed::Feed;
use crate::fabric::Plan;

/// Steps of one input.
const MOST: usize = 300;
const TUNNEL: TunnelId = TunnelId(3);
/// Room for the port's link to train.
const TRAINING: Ps = Ps::from_ms(30);

/// Types of frames that a port looks into: IPv4, IPv6, ARP, C-VLAN, S-VLAN, MAC control, RoCE v1.
const TYPES: [u16; 7] = [0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x8808, 0x8915];

/// Takes what is whole. Returns false if the stream is of no use any more.
fn deliver(world: &mut World, decoder: &mut Decoder, counts: &mut Counts) -> bool {
    loop {
        let mut turn = Turn::new(counts);
        let drained = decoder.drain(&mut turn);
        for frame in turn.frames {
            assert!((60..=9996).contains(&frame.len()), "{} bytes", frame.len());
            world.tunnel_frame(world.now(), TUNNEL, frame);
        }
        match drained {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => return false,
        }
    }
}

/// A message: a frame with a header that is nearly right, or anything.
fn message(feed: &mut Feed<'_>) -> Vec<u8> {
    if feed.one_in(4) {
        let length = feed.pick(&[0, 1, 13, 14, 59, 60, 9996, 9997]);
        let mut bytes = feed.bytes(64).to_vec();
        bytes.resize(length, feed.u8());
        return bytes;
    }
    let mut bytes = feed.pick(&[[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [2, 0xc9, 0, 0, 0, 1]]).to_vec();
    bytes.extend_from_slice(feed.bytes(6));
    bytes.extend_from_slice(&feed.pick(&TYPES).to_be_bytes());
    let length = usize::from(feed.u16()) % 200;
    bytes.extend_from_slice(feed.bytes(length));
    bytes
}

/// Feeds a stream with what `data` says, and then a good one.
///
/// # Panics
/// If the decoder or the world does, if something is counted that did not come, or if a good stream does not get through afterwards.
pub fn outside(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut plan = Plan { hcas: 1, ..Plan::default() };
    plan.join(HcaId(0), TUNNEL);
    let mut config = plan.config(1);
    config.hcas.iter_mut().for_each(|hca| hca.firmware.port_kind = PortKind::Ethernet);
    let mut world = World::new(config).expect("a valid topology");
    world.tunnel_link(Ps::ZERO, TUNNEL, Some(PortLink { width: 4, speed: LinkSpeed::Edr }));
    world.advance(TRAINING);
    let (mut decoder, mut counts) = (Decoder::default(), Counts::default());
    let (mut whole, mut stream) = (0, Vec::new());
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        match feed.below(8) {
            // Bytes that are no message end the stream, sooner or later.
            0 => {
                decoder.push(feed.bytes(40));
                deliver(&mut world, &mut decoder, &mut counts);
                (decoder, counts, whole) = (Decoder::default(), Counts::default(), 0);
            }
            1 => {
                let now = world.now() + Ps::from_us(feed.u8().into());
                world.advance(now);
                world.drain_tunnels(Ps::MAX);
            }
            2 => {
                let light = feed.one_in(2).then_some(PortLink { width: 4, speed: LinkSpeed::Edr });
                world.tunnel_link(world.now(), TUNNEL, light);
            }
            _ => {
                let message = message(&mut feed);
                encode(&message, &mut stream);
                whole += 1;
                // In pieces.
                while !stream.is_empty() {
                    let length = (1 + usize::from(feed.u8()) * 40).min(stream.len());
                    decoder.push(&stream[..length]);
                    stream.drain(..length);
                    assert!(deliver(&mut world, &mut decoder, &mut counts), "a good length");
                }
                assert_eq!(counts.frames_received + counts.short + counts.long, whole);
            }
        }
    }
    let before = counts.frames_received;
    encode(&[2; 60], &mut stream);
    decoder.push(&stream);
    assert!(deliver(&mut world, &mut decoder, &mut counts));
    assert_eq!(counts.frames_received, before + 1);
    world.advance(world.now() + TRAINING);
}
