//! What passes over a link between two workers, as bytes. Little endian. The end of a message says what it is, so that a packet, which
//! is its beginning, is not moved.
//!
//! | kind, the last byte | what is before it, from the first byte on |
//! |---|---|
//! | 1 packet | all of it on the link; 1: of Ethernet (1), 1: the link's checksum is right and was not computed (1); time from its first to its last byte, ps (8); credits (2), session (2, 2); when |
//! | 2 credit | lane (1), blocks (4), session (2, 2); when |
//! | 3 light | session (2), has an offer (1): widths (1), speeds (1), has a buffer (1): bytes (4), latency in ps (8); when |
//!
//! When (8) it is at the connector of the receiver's side is in ps of the clock of both, modulo 2^64. No link between processes garbles bytes: most
//! of what a packet costs would be to compute a checksum and to check it.

use hca_model::link::{Light, LinkMessage, LinkPacket, Session};
use hca_model::link_layer::Packet;
use hca_model::{LinkOffer, PortKind, Ps};

const PACKET: u8 = 1;
const CREDIT: u8 = 2;
const LIGHT: u8 = 3;

/// Writes a message: gives the packet, if it is one, and writes what is behind it over what is in `out`.
pub(crate) fn write(out: &mut Vec<u8>, at: u64, message: LinkMessage) -> Vec<u8> {
    out.clear();
    let session = |out: &mut Vec<u8>, Session { near, far }: Session| {
        out.extend_from_slice(&near.to_le_bytes());
        out.extend_from_slice(&far.to_le_bytes());
    };
    let mut before = Vec::new();
    let kind = match message {
        LinkMessage::Packet(LinkPacket { packet, tail, credits, session: of }) => {
            let ethernet = packet.kind() == PortKind::Ethernet;
            let (bytes, due) = packet.into_link();
            before = bytes;
            out.extend_from_slice(&[ethernet.into(), due.into()]);
            out.extend_from_slice(&tail.0.to_le_bytes());
            out.extend_from_slice(&credits.to_le_bytes());
            session(out, of);
            PACKET
        }
        LinkMessage::Credit { lane, blocks, session: of } => {
            out.push(lane);
            out.extend_from_slice(&blocks.to_le_bytes());
            session(out, of);
            CREDIT
        }
        LinkMessage::Light(Light { session, offer, buffer, latency }) => {
            out.extend_from_slice(&session.to_le_bytes());
            let LinkOffer { widths, speeds } = offer.unwrap_or(LinkOffer { widths: 0, speeds: 0 });
            out.extend_from_slice(&[offer.is_some().into(), widths, speeds, buffer.is_some().into()]);
            out.extend_from_slice(&buffer.unwrap_or(0).to_le_bytes());
            out.extend_from_slice(&latency.0.to_le_bytes());
            LIGHT
        }
    };
    out.extend_from_slice(&at.to_le_bytes());
    out.push(kind);
    before
}

/// Reads from the end.
struct Reader<'a>(&'a mut Vec<u8>);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (_, last) = self.0.split_last_chunk()?;
        let last = *last;
        self.0.truncate(self.0.len().saturating_sub(N));
        Some(last)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn session(&mut self) -> Option<Session> {
        let far = self.number()?;
        Some(Session { near: self.number()?, far })
    }

    fn time(&mut self) -> Option<Ps> {
        Some(Ps(u64::from_le_bytes(self.take()?)))
    }
}

/// Takes a message apart; `None`: it is none of ours. A packet has the memory of `bytes` then.
pub(crate) fn read(bytes: &mut Vec<u8>) -> Option<(u64, LinkMessage)> {
    let mut r = Reader(bytes);
    let ([kind], Ps(at)) = (r.take()?, r.time()?);
    let message = match kind {
        PACKET => {
            let session = r.session()?;
            let (credits, tail) = (r.number()?, r.time()?);
            let (due, ethernet) = (r.flag()?, r.flag()?);
            let kind = if ethernet { PortKind::Ethernet } else { PortKind::InfiniBand };
            let packet = Packet::of_link(kind, std::mem::take(r.0), due);
            LinkMessage::Packet(LinkPacket { packet, tail, credits, session })
        }
        CREDIT => {
            let session = r.session()?;
            let blocks = u32::from_le_bytes(r.take()?);
            let [lane] = r.take()?;
            LinkMessage::Credit { lane, blocks, session }
        }
        LIGHT => {
            let latency = r.time()?;
            let buffer = u32::from_le_bytes(r.take()?);
            let buffered = r.flag()?;
            let [widths, speeds] = r.take()?;
            let (offered, session) = (r.flag()?, r.number()?);
            LinkMessage::Light(Light {
                session,
                offer: offered.then_some(LinkOffer { widths, speeds }),
                buffer: buffered.then_some(buffer),
                latency,
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
        let frame = Packet::frame(vec![7; 100]);
        let light = Light { session: 9, latency: Ps(7), ..Light::default() };
        let offer = Some(LinkOffer { widths: 2, speeds: 0x3f });
        vec![
            LinkMessage::Packet(LinkPacket { packet, tail: Ps(1 << 40), credits: 5, session }),
            LinkMessage::Packet(LinkPacket { packet: frame, tail: Ps(9), credits: 0, session }),
            LinkMessage::Credit { lane: 15, blocks: 0x0102_0304, session },
            LinkMessage::Light(light),
            LinkMessage::Light(Light { offer, buffer: Some(1 << 17), ..light }),
        ]
    }

    #[test]
    fn messages_pass() {
        let mut end = Vec::new();
        for message in messages() {
            let packet = write(&mut end, u64::MAX - 1, message.clone());
            let bytes = [packet, end.clone()].concat();
            assert_eq!(read(&mut bytes.clone()), Some((u64::MAX - 1, message.clone())));
            if !matches!(message, LinkMessage::Packet(_)) {
                assert_eq!(read(&mut bytes[1..].to_vec()), None, "too short");
                assert_eq!(read(&mut [&[0][..], &bytes].concat()), None, "too long");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..5) {
            let _ = read(&mut bytes.clone());
            let mut bytes = bytes;
            if let Some(last) = bytes.last_mut() {
                *last = kind;
            }
            let _ = read(&mut bytes);
        }
    }
}
