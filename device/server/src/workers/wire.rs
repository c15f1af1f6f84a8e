//! What passes over a link between two workers, as bytes. Little endian.
//!
//! | offset | packet | credit | light |
//! |---|---|---|---|
//! | 0 | 1 | 2 | 3 |
//! | 1 | bit 0: of Ethernet; bits 1, 2: checksums that are right and not computed: none, the link's, all (0 to 2) | lane | bit 0: has an offer; 1: a buffer |
//! | 2 | credits (2) | 0 | widths (1), speeds (1) |
//! | 4 | session (2, 2) | session (2, 2) | session (2), 0 |
//! | 8 | when (8) | when (8) | when (8) |
//! | 16 | time from its first to its last byte, ps (8) | blocks (4), 0 | latency in ps (8) |
//! | 24 | 0 | 0 | bytes of the buffer (4), 0 |
//! | 32 | all of it on the link | | |
//!
//! When (8) it is at the connector of the receiver's side is in ps of the clock of both, modulo 2^64. What is 0 has to be. No link between
//! processes garbles bytes: most of what a packet costs would be to compute checksums and to check them, so that those which are right by construction
//! are not computed at all.

use hca_model::link::{Light, LinkMessage, LinkPacket, Session};
use hca_model::link_layer::{Due, Packet};
use hca_model::{GuestMemory, LinkOffer, PortKind, Ps, Sink};

const PACKET: u8 = 1;
const CREDIT: u8 = 2;
const LIGHT: u8 = 3;

/// Bytes in front of a packet; others have no more.
pub(super) const HEAD: usize = 32;
/// Where it says what a packet is.
const WHAT: usize = 1;
const ETHERNET: u8 = 1;
const DUE_SHIFT: u32 = 1;
const HAS_OFFER: u8 = 1;
const HAS_BUFFER: u8 = 2;

/// Where a message is put, from its beginning on.
pub(crate) trait Place: Sink {
    /// Whether some of what was put could not be read, and is zeroes.
    fn lacks(&self) -> bool;

    /// Another byte is at `at` of what was put.
    fn change(&mut self, at: usize, byte: u8);
}

/// A message that leaves.
pub(crate) struct Leaving {
    head: [u8; HEAD],
    packet: Option<Packet>,
}

impl Leaving {
    /// A message that is there at `at`.
    pub(crate) fn new(at: u64, message: LinkMessage) -> Self {
        let mut head = [0; HEAD];
        let mut packet = None;
        let mut put = |offset: usize, bytes: &[u8]| {
            if let Some(room) = head.get_mut(offset..offset + bytes.len()) {
                room.copy_from_slice(bytes);
            }
        };
        put(8, &at.to_le_bytes());
        match message {
            LinkMessage::Packet(of) => {
                let LinkPacket { packet: leaving, tail, credits, session } = of;
                let due = match leaving.due() {
                    Due::Nothing => 0u8,
                    Due::Link => 1,
                    Due::All => 2,
                };
                let ethernet = if leaving.kind() == PortKind::Ethernet { ETHERNET } else { 0 };
                put(0, &[PACKET, ethernet | due << DUE_SHIFT]);
                put(2, &credits.to_le_bytes());
                put(4, &session.near.to_le_bytes());
                put(6, &session.far.to_le_bytes());
                put(16, &tail.0.to_le_bytes());
                packet = Some(leaving);
            }
            LinkMessage::Credit { lane, blocks, session } => {
                put(0, &[CREDIT, lane]);
                put(4, &session.near.to_le_bytes());
                put(6, &session.far.to_le_bytes());
                put(16, &blocks.to_le_bytes());
            }
            LinkMessage::Light(Light { session, offer, buffer, latency }) => {
                let has = if offer.is_some() { HAS_OFFER } else { 0 };
                let has = has | if buffer.is_some() { HAS_BUFFER } else { 0 };
                let LinkOffer { widths, speeds } = offer.unwrap_or(LinkOffer { widths: 0, speeds: 0 });
                put(0, &[LIGHT, has, widths, speeds]);
                put(4, &session.to_le_bytes());
                put(16, &latency.0.to_le_bytes());
                put(24, &buffer.unwrap_or(0).to_le_bytes());
            }
        }
        Self { head, packet }
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        HEAD + self.packet.as_ref().map_or(0, Packet::len)
    }

    /// Puts them there, piece by piece.
    ///
    /// A packet whose payload can't be read any more is bad: then none of its checksums is right by construction, and where they are is nothing.
    pub(crate) fn put(self, place: &mut impl Place) {
        place.put(&self.head);
        if let Some(packet) = self.packet {
            packet.put_on_link(place);
            let [_, what, ..] = self.head;
            if place.lacks() {
                place.change(WHAT, what & ETHERNET);
            }
        }
    }

    /// All of them.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.put(&mut Behind::new(&mut bytes));
        bytes
    }
}

/// Behind what is there already, in memory of our own.
pub(crate) struct Behind<'a> {
    bytes: &'a mut Vec<u8>,
    begin: usize,
    lacks: bool,
}

impl<'a> Behind<'a> {
    pub(crate) fn new(bytes: &'a mut Vec<u8>) -> Self {
        let begin = bytes.len();
        Self { bytes, begin, lacks: false }
    }
}

impl Sink for Behind<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn put_from(&mut self, memory: &dyn GuestMemory, iova: u64, len: usize) {
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        let room = self.bytes.get_mut(at..).unwrap_or_default();
        if memory.read(iova, room).is_err() {
            room.fill(0);
            self.lacks = true;
        }
    }
}

impl Place for Behind<'_> {
    fn lacks(&self) -> bool {
        self.lacks
    }

    fn change(&mut self, at: usize, byte: u8) {
        if let Some(there) = self.bytes.get_mut(self.begin + at) {
            *there = byte;
        }
    }
}

/// The head of a message, whose bytes are taken one field behind the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// So many bytes that are nothing.
    fn nothing<const N: usize>(&mut self) -> Option<()> {
        (self.take::<N>()? == [0; N]).then_some(())
    }

    fn number(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn session(&mut self) -> Option<Session> {
        let near = self.number()?;
        Some(Session { near, far: self.number()? })
    }

    fn time(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Bytes of a packet that are taken, more than any port sends: a turn counts messages, and each is copied whole.
const LONGEST: usize = 32 << 10;

/// Takes a message of `len` bytes apart, of which `load` copies some from a place on; `None`: it is none of ours. Each byte is copied
/// once. A packet may be anything.
pub(crate) fn read(len: usize, load: impl Fn(usize, &mut [u8])) -> Option<(u64, LinkMessage)> {
    let behind = len.checked_sub(HEAD).filter(|behind| *behind <= LONGEST)?;
    let mut head = [0; HEAD];
    load(0, &mut head);
    let mut r = Reader(&head);
    let [kind, what] = r.take()?;
    if kind != PACKET && behind > 0 {
        return None;
    }
    match kind {
        PACKET => {
            let due = match what >> DUE_SHIFT {
                0 => Due::Nothing,
                1 => Due::Link,
                2 => Due::All,
                _ => return None,
            };
            let kind = if what & ETHERNET != 0 { PortKind::Ethernet } else { PortKind::InfiniBand };
            let (credits, session) = (r.number()?, r.session()?);
            let (at, tail) = (r.time()?, Ps(r.time()?));
            r.nothing::<8>()?;
            let packet = Packet::of_link(kind, due, behind, |bytes| load(HEAD, bytes));
            Some((at, LinkMessage::Packet(LinkPacket { packet, tail, credits, session })))
        }
        CREDIT => {
            r.nothing::<2>()?;
            let (session, at) = (r.session()?, r.time()?);
            let blocks = u32::from_le_bytes(r.take()?);
            r.nothing::<12>()?;
            Some((at, LinkMessage::Credit { lane: what, blocks, session }))
        }
        LIGHT => {
            let [widths, speeds] = r.take()?;
            let session = r.number()?;
            r.nothing::<2>()?;
            let (at, latency) = (r.time()?, Ps(r.time()?));
            let buffer = u32::from_le_bytes(r.take()?);
            r.nothing::<4>()?;
            let known = what & !(HAS_OFFER | HAS_BUFFER) == 0;
            let light = Light {
                session,
                offer: (what & HAS_OFFER != 0).then_some(LinkOffer { widths, speeds }),
                buffer: (what & HAS_BUFFER != 0).then_some(buffer),
                latency,
            };
            known.then_some((at, LinkMessage::Light(light)))
        }
        _ => None,
    }
}

/// The same for bytes that are at hand.
pub(crate) fn read_bytes(bytes: &[u8]) -> Option<(u64, LinkMessage)> {
    read(bytes.len(), |offset, into| {
        if let Some(from) = bytes.get(offset..).and_then(|rest| rest.get(..into.len())) {
            into.copy_from_slice(from);
        }
    })
}

#[cfg(test)]
mod tests {
    use hca_model::link_layer::Path;
    use hca_model::link_layer::eth::{self, Wrapping};
    use hca_model::wire::{GrhRepr, Repr};
    use proptest::prelude::*;

    use super::*;
    use crate::memory::HostMemory;

    /// A write, of which nobody computed a checksum.
    fn transport(ethernet: bool, len: usize) -> Packet {
        let repr = Repr::default();
        let wrapping = Wrapping::V2 { ipv4: false, source_port: 0xc001 };
        let path = match ethernet {
            false => Path::default(),
            true => Path::of_roce(eth::Address { wrapping, ..Default::default() }, GrhRepr::default()),
        };
        let fill = |bytes: &mut [u8]| {
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
            Ok::<(), ()>(())
        };
        Packet::build(&path, &repr, len, fill).unwrap()
    }

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
        for message in messages() {
            let bytes = Leaving::new(u64::MAX - 1, message.clone()).into_bytes();
            assert_eq!(read_bytes(&bytes), Some((u64::MAX - 1, message.clone())));
            assert_eq!(read_bytes(&bytes[..HEAD - 1]), None, "too short");
            if !matches!(message, LinkMessage::Packet(_)) {
                assert_eq!(read_bytes(&[&bytes[..], &[0]].concat()), None, "too long");
                // Where nothing is, nothing has to be.
                let last = [&bytes[..HEAD - 1], &[1]].concat();
                assert_eq!(read_bytes(&last), None);
            }
        }
    }

    /// Of a message that is longer than any packet nothing is copied, however long it says it is.
    #[test]
    fn packets_have_a_longest() {
        let message = |len| {
            let packet = Packet::from_bytes(vec![7; len]);
            let packet = LinkPacket { packet, tail: Ps(1), credits: 1, session: Session::default() };
            Leaving::new(1, LinkMessage::Packet(packet)).into_bytes()
        };
        assert!(read_bytes(&message(32 << 10)).is_some());
        for len in [(32 << 10) + 1, 1 << 20] {
            let bytes = message(len);
            let loads = std::cell::Cell::new(0);
            let load = |at: usize, into: &mut [u8]| {
                loads.set(loads.get() + 1);
                into.copy_from_slice(&bytes[at..][..into.len()]);
            };
            assert_eq!((read(bytes.len(), load), loads.get()), (None, 0), "{len}");
        }
    }

    /// A packet whose checksums nobody computed is the same at the other end as one with all of them.
    #[test]
    fn packets_need_no_checksums() {
        let session = Session::default();
        for (ethernet, len) in [(false, 0), (false, 13), (false, 4096), (true, 5), (true, 4096)] {
            let built = transport(ethernet, len);
            let message =
                |packet| LinkMessage::Packet(LinkPacket { packet, tail: Ps(1), credits: 1, session });
            let bytes = Leaving::new(1, message(built.clone())).into_bytes();
            assert_eq!(bytes[1] >> DUE_SHIFT, 2, "all checksums are due");
            let (_, came) = read_bytes(&bytes).unwrap();
            let LinkMessage::Packet(came) = came else { panic!("{came:?}") };
            assert_eq!(came.packet.parse().unwrap(), built.parse().unwrap());
            // It goes on, and is looked at.
            let again = Leaving::new(1, message(came.packet.clone())).into_bytes();
            assert_eq!(again, bytes);
            assert_eq!(came.packet.into_bytes(), built.clone().into_bytes());
            // One that came with checksums is checked.
            let kind = built.kind();
            let mut bytes = built.into_bytes();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            let wrong = Packet::of_link(kind, Due::Nothing, bytes.len(), |to| to.copy_from_slice(&bytes));
            assert!(wrong.parse().is_err());
        }
    }

    /// A packet whose payload could not be read is none, where that of which all could be is good without checksums.
    #[test]
    fn a_packet_without_its_payload_is_bad() {
        for (ethernet, len) in [(false, 4096), (true, 4096), (false, 13)] {
            for unreadable in [false, true] {
                let message = LinkMessage::Packet(LinkPacket {
                    packet: transport(ethernet, len),
                    tail: Ps(1),
                    credits: 1,
                    session: Session::default(),
                });
                // Something else is before it.
                let mut bytes = vec![1; 5];
                let mut place = Behind::new(&mut bytes);
                place.lacks = unreadable;
                Leaving::new(1, message).put(&mut place);
                assert_eq!(bytes[..5], [1; 5]);
                let (_, came) = read_bytes(&bytes[5..]).unwrap();
                let LinkMessage::Packet(came) = came else { panic!("{came:?}") };
                assert_eq!(came.packet.parse().is_err(), unreadable);
                assert_eq!((came.credits, came.packet.kind() == PortKind::Ethernet), (1, ethernet));
            }
        }
        let memory = HostMemory::new();
        let mut bytes = Vec::new();
        let mut place = Behind::new(&mut bytes);
        place.put_from(&memory, 0x1000, 100);
        assert!(place.lacks());
        assert_eq!(bytes, [0; 100]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..90), kind in 0u8..5) {
            let _ = read_bytes(&bytes);
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Some((at, message)) = read_bytes(&bytes) {
                // It is what its bytes say, and nothing else.
                let again = Leaving::new(at, message.clone()).into_bytes();
                prop_assert_eq!(&again[..], &bytes[..]);
                if let LinkMessage::Packet(packet) = message {
                    let _ = packet.packet.parse();
                    prop_assert_eq!(packet.packet.into_bytes().len(), bytes.len() - HEAD);
                }
            }
        }
    }
}
