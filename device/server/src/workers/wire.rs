//! What passes over a link between two workers, as bytes. Little endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | 1 packet, 2 credit, 3 light |
//! | 1..9 | when it is at the connector of the receiver's side, in ps of the clock of both |
//!
//! | kind | the rest |
//! |---|---|
//! | packet | time from its first to its last byte, ps (8), credits (2), session (2, 2), LRH to VCRC |
//! | credit | lane (1), blocks (4), session (2, 2) |
//! | light | session (2), has an offer (1): widths (1), speeds (1), has a buffer (1): bytes (4), latency in ps (8) |

use hca_model::link::{Light, LinkMessage, LinkPacket, Session};
use hca_model::link_layer::Packet;
use hca_model::{LinkOffer, Ps};

const PACKET: u8 = 1;
const CREDIT: u8 = 2;
const LIGHT: u8 = 3;

/// Bytes of a packet's message before the packet.
const BEFORE: usize = 1 + 8 + 8 + 2 + 4;

/// Writes a message over what is in `out`.
pub(super) fn write(out: &mut Vec<u8>, at: Ps, message: LinkMessage) {
    out.clear();
    let session = |out: &mut Vec<u8>, Session { near, far }: Session| {
        out.extend_from_slice(&near.to_le_bytes());
        out.extend_from_slice(&far.to_le_bytes());
    };
    match message {
        LinkMessage::Packet(LinkPacket { packet, tail, credits, session: of }) => {
            let bytes = packet.into_bytes();
            out.reserve(BEFORE + bytes.len());
            out.push(PACKET);
            out.extend_from_slice(&at.0.to_le_bytes());
            out.extend_from_slice(&tail.0.to_le_bytes());
            out.extend_from_slice(&credits.to_le_bytes());
            session(out, of);
            out.extend_from_slice(&bytes);
        }
        LinkMessage::Credit { lane, blocks, session: of } => {
            out.push(CREDIT);
            out.extend_from_slice(&at.0.to_le_bytes());
            out.push(lane);
            out.extend_from_slice(&blocks.to_le_bytes());
            session(out, of);
        }
        LinkMessage::Light(Light { session, offer, buffer, latency }) => {
            out.push(LIGHT);
            out.extend_from_slice(&at.0.to_le_bytes());
            out.extend_from_slice(&session.to_le_bytes());
            let LinkOffer { widths, speeds } = offer.unwrap_or(LinkOffer { widths: 0, speeds: 0 });
            out.extend_from_slice(&[offer.is_some().into(), widths, speeds, buffer.is_some().into()]);
            out.extend_from_slice(&buffer.unwrap_or(0).to_le_bytes());
            out.extend_from_slice(&latency.0.to_le_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn session(&mut self) -> Option<Session> {
        Some(Session { near: u16::from_le_bytes(self.take()?), far: u16::from_le_bytes(self.take()?) })
    }

    fn time(&mut self) -> Option<Ps> {
        Some(Ps(u64::from_le_bytes(self.take()?)))
    }
}

/// Takes a message apart; `None`: it is none of ours.
pub(super) fn read(bytes: &[u8]) -> Option<(Ps, LinkMessage)> {
    let mut r = Reader(bytes);
    let ([kind], at) = (r.take()?, r.time()?);
    let message = match kind {
        PACKET => {
            let (tail, credits) = (r.time()?, u16::from_le_bytes(r.take()?));
            let session = r.session()?;
            let packet = Packet::from_bytes(std::mem::take(&mut r.0).to_vec());
            LinkMessage::Packet(LinkPacket { packet, tail, credits, session })
        }
        CREDIT => {
            let ([lane], blocks) = (r.take()?, u32::from_le_bytes(r.take()?));
            LinkMessage::Credit { lane, blocks, session: r.session()? }
        }
        LIGHT => {
            let session = u16::from_le_bytes(r.take()?);
            let (offered, [widths, speeds]) = (r.flag()?, r.take()?);
            let (buffered, buffer) = (r.flag()?, u32::from_le_bytes(r.take()?));
            LinkMessage::Light(Light {
                session,
                offer: offered.then_some(LinkOffer { widths, speeds }),
                buffer: buffered.then_some(buffer),
                latency: r.time()?,
            })
        }
        _ => return None,
    };
    r.0.is_empty().then_some((at, message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> Vec<LinkMessage> {
        let session = Session { near: 3, far: 0xfffe };
        let packet = Packet::from_bytes((0..300).map(|i| i as u8).collect());
        let light = Light { session: 9, latency: Ps(7), ..Light::default() };
        let offer = Some(LinkOffer { widths: 2, speeds: 0x3f });
        vec![
            LinkMessage::Packet(LinkPacket { packet, tail: Ps(1 << 40), credits: 5, session }),
            LinkMessage::Credit { lane: 15, blocks: 0x0102_0304, session },
            LinkMessage::Light(light),
            LinkMessage::Light(Light { offer, buffer: Some(1 << 17), ..light }),
        ]
    }

    #[test]
    fn messages_pass() {
        let mut bytes = Vec::new();
        for message in messages() {
            write(&mut bytes, Ps(u64::MAX - 1), message.clone());
            assert_eq!(read(&bytes), Some((Ps(u64::MAX - 1), message.clone())));
            if !matches!(message, LinkMessage::Packet(_)) {
                assert_eq!(read(&bytes[..bytes.len() - 1]), None, "too short");
                bytes.push(0);
                assert_eq!(read(&bytes), None, "too long");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..5) {
            let _ = read(&bytes);
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = read(&bytes);
        }
    }
}
