//! One end of a link to another worker: a ring to it, a ring from it, and a bell to wake who sleeps.
//!
//! The bell is a pair of sockets, since each end then has its own flags and locks: what a peer does to its end, ours [never
//! blocks](super::wary). It also tells when the peer is gone. A peer that breaks the rules, or takes nothing while much waits for it, is treated as
//! gone: the link is dark until there is a new one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_model::link::{LinkMessage, LinkPacket};
use hca_model::{PortKind, Ps, Sink};

use super::ring::{Receiver, Sender, Slot};
use super::wary::{self, Wary};
use super::wire::{self, Leaving};
use crate::closer::Closer;
use crate::model::{DATA_LANES, FAR_ROOM, LANE_BUFFER};

/// Messages taken before the others of the engine get their turn.
const TURN: usize = 128;
/// Of these, messages that nothing bounds: light, and management datagrams. Of frames, which no credits bound either, the model takes what a line
/// carries.
const UNBOUND_TURN: usize = 16;
/// Bytes of packets without credits, frames and management datagrams, that may wait for a full ring: one that finds more is dropped, as an input
/// buffer that is full drops it. It is as much as a lane has room for.
const LOOSE: usize = FAR_ROOM as usize * LANE_BUFFER;
/// Bytes of packets that credits of a peer of this program let wait, all lanes together.
const CREDITED: usize = DATA_LANES * LOOSE;
/// What credits are counted in, in bytes of a packet; its message is longer.
const BLOCK: usize = 64;
/// Bytes that may wait for a full ring, all together: a peer that keeps to the rules is never gone for being slow. Beside packets there is room for
/// light and credits.
const BACKLOG: usize = CREDITED / BLOCK * (BLOCK + wire::HEAD) + 2 * LOOSE;
/// The lane of packets that manage the network (IBTA vol 1 7.6.2).
const MANAGEMENT_LANE: u8 = 15;
/// Times that a message may bring: longer ones are cut. The slowest link sends its longest packet in 20 us.
const LONGEST: Ps = Ps::from_ms(1);
/// What MAC and PHY of a peer may take, as it says: an Ethernet switch keeps memory for what comes meanwhile, at the cost of other tenants. Those of profiles
/// take up to 0.1 us.
const LONGEST_PHY: Ps = Ps::from_us(1);

/// Why a peer is gone whose end of the bell is closed.
const ENDED: &str = "it has ended";

/// What came of a link.
#[derive(Debug)]
pub(super) enum Taken {
    /// A message, and when it is here, in ps modulo 2^64.
    Message(u64, LinkMessage),
    /// The peer is gone; nothing comes any more.
    Lost(&'static str),
}

/// One end of a link to another worker.
#[derive(Debug)]
pub(super) struct Line {
    sender: Sender,
    receiver: Receiver,
    /// `None`: the peer is gone.
    bell: Option<Wary>,
    /// What found no room in the ring.
    backlog: VecDeque<Waiting>,
    backlog_bytes: usize,
    /// Of these, bytes of packets without credits.
    loose_bytes: usize,
    /// Credits that leave with those that follow them, or before anything else does.
    credit: Option<(u64, LinkMessage)>,
    /// Something was written since the peer was looked after.
    written: bool,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Packets without credits for which there was no room.
    pub(super) dropped: u64,
}

/// A message that found no room.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    /// It is a packet without credits.
    loose: bool,
}

/// What two workers need for a link: its memory, and the two ends of its bell.
///
/// # Errors
/// The system does not give it.
pub(super) fn make() -> anyhow::Result<(OwnedFd, [OwnedFd; 2])> {
    let (a, b) = wary::pair()?;
    Ok((super::ring::memory()?, [a, b]))
}

impl Line {
    /// End `here` (0 or 1) of a link. What its peer leaves behind is let go of by `closer`.
    ///
    /// # Errors
    /// The memory is not what it should be.
    pub(super) fn new(
        memory: impl AsFd,
        bell: OwnedFd,
        here: usize,
        closer: &Closer,
    ) -> anyhow::Result<Line> {
        let bell = Wary::new(bell, closer.clone());
        anyhow::ensure!(here < 2, "a link has two ends");
        Ok(Line {
            sender: Sender::map(&memory, here)?,
            receiver: Receiver::map(&memory, 1 - here)?,
            bell: Some(bell),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            loose_bytes: 0,
            credit: None,
            written: false,
            sent: 0,
            received: 0,
            dropped: 0,
        })
    }

    /// What to wait for; `None`: the peer is gone.
    pub(super) fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().and_then(Wary::as_fd)
    }

    /// Whether the peer is there.
    pub(super) fn is_joined(&self) -> bool {
        self.bell.is_some()
    }

    /// This side is about to sleep. False: something waits, so it must not. Both ends ring for it: the peer for what it has sent, and for room
    /// where something waits for that.
    pub(super) fn sleep(&self) -> bool {
        let full = |waiting: &Waiting| self.sender.sleep(waiting.bytes.len());
        !self.is_joined() || (self.receiver.sleep() && self.backlog.front().is_none_or(full))
    }

    /// It does not sleep any more.
    pub(super) fn wake(&self) {
        self.receiver.wake();
        if self.is_congested() {
            self.sender.wake();
        }
    }

    /// A message leaves; `at`: when it is there, in ps modulo 2^64. Credits for one lane that follow each other leave as one, all at the
    /// time of the first: the room is there already, or they would not have left.
    pub(super) fn send(&mut self, at: u64, message: LinkMessage) {
        if !self.is_joined() {
            return;
        }
        if let Some((_, LinkMessage::Credit { lane, blocks, session })) = &mut self.credit
            && let LinkMessage::Credit { lane: of, blocks: more, session: sent } = message
            && (of, sent) == (*lane, *session)
        {
            *blocks = blocks.saturating_add(more);
            return;
        }
        self.send_credit();
        match message {
            LinkMessage::Credit { .. } => self.credit = Some((at, message)),
            _ => self.write(at, message),
        }
    }

    fn send_credit(&mut self) {
        if let Some((at, credit)) = self.credit.take() {
            self.write(at, credit);
        }
    }

    /// Puts a message into the ring, or behind those that wait for room.
    fn write(&mut self, at: u64, message: LinkMessage) {
        let loose = matches!(&message, LinkMessage::Packet(packet) if packet.credits == 0);
        if loose && self.loose_bytes > LOOSE {
            self.dropped += 1;
            return;
        }
        let leaving = Leaving::new(at, message);
        self.sent += 1;
        let (len, mut leaving) = (leaving.len(), Some(leaving));
        if self.backlog.is_empty() {
            let fill = |slot: &mut Slot<'_>| {
                if let Some(leaving) = leaving.take() {
                    leaving.put(slot);
                }
            };
            self.written |= matches!(self.sender.push(len, fill), Ok(true));
        }
        // There was no room, or the peer broke the rules: that is found out when the backlog is given.
        if let Some(leaving) = leaving {
            self.backlog_bytes += len;
            self.loose_bytes += if loose { len } else { 0 };
            self.backlog.push_back(Waiting { bytes: leaving.into_bytes(), loose });
        }
    }

    /// Gives what waits as far as there is room, and wakes the peer if it sleeps.
    fn give(&mut self) -> Result<(), &'static str> {
        self.send_credit();
        while let Some(Waiting { bytes, loose }) = self.backlog.front() {
            match self.sender.push(bytes.len(), |slot| slot.put(bytes)) {
                Ok(true) => {
                    self.written = true;
                    self.backlog_bytes -= bytes.len();
                    self.loose_bytes -= if *loose { bytes.len() } else { 0 };
                    self.backlog.pop_front();
                }
                Ok(false) if self.backlog_bytes > BACKLOG => return Err("it takes nothing"),
                Ok(false) => break,
                Err(_) => return Err("it does not keep to the rules of the ring"),
            }
        }
        self.sender.tell();
        if std::mem::take(&mut self.written) && self.sender.must_wake() {
            self.ring()?;
        }
        Ok(())
    }

    fn ring(&self) -> Result<(), &'static str> {
        match self.bell.as_ref().map(|bell| bell.send(&[1])) {
            // Full: it was rung often enough.
            Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => Err(ENDED),
            _ => Ok(()),
        }
    }

    /// Sends what waits. Returns why the peer is gone, once.
    pub(super) fn flush(&mut self) -> Option<&'static str> {
        match self.is_joined() {
            false => None,
            true => self.give().err().inspect(|_| self.lose()),
        }
    }

    /// The peer hears of it by the bell's end.
    fn lose(&mut self) {
        self.bell = None;
        self.credit = None;
        self.backlog.clear();
        (self.backlog_bytes, self.loose_bytes) = (0, 0);
    }

    /// True while something waits for room in the ring.
    pub(super) fn is_congested(&self) -> bool {
        self.is_joined() && !self.backlog.is_empty()
    }

    /// Takes what has come, a bounded amount; `rung`: whether the bell may say something, for which the system has to be asked. `taken` says of a
    /// message whether it [is unbound](is_unbound). Returns true if more may be there.
    pub(super) fn take(&mut self, rung: bool, mut taken: impl FnMut(Taken) -> bool) -> bool {
        if !self.is_joined() {
            return false;
        }
        let more = self.take_turn(rung, &mut taken);
        self.receiver.tell();
        if self.receiver.must_wake() {
            // That it has ended is found out when the bell is heard.
            let _ = self.ring();
        }
        more
    }

    fn take_turn(&mut self, rung: bool, taken: &mut impl FnMut(Taken) -> bool) -> bool {
        let gone = match rung.then(|| self.hear()) {
            Some(Err(why)) => {
                self.lose();
                taken(Taken::Lost(why));
                return false;
            }
            Some(Ok(gone)) => gone,
            None => false,
        };
        let mut unbound = 0;
        for _ in 0..TURN {
            let read = match self.receiver.pop(|len, load| wire::read(len, load)) {
                Ok(Some(read)) => read.ok_or("it sends what is no message"),
                Ok(None) if gone => Err(ENDED),
                Ok(None) => return false,
                Err(_) => Err("it does not keep to the rules of the ring"),
            };
            let (at, message) = match read {
                Ok(read) => read,
                Err(why) => {
                    self.lose();
                    taken(Taken::Lost(why));
                    return false;
                }
            };
            self.received += 1;
            unbound += usize::from(taken(Taken::Message(at, within_bounds(message))));
            if unbound >= UNBOUND_TURN {
                break;
            }
        }
        self.receiver.has_message()
    }

    /// Takes what the bell says. True: the peer has ended.
    ///
    /// # Errors
    /// It says what no peer says.
    fn hear(&self) -> Result<bool, &'static str> {
        match self.bell.as_ref().map(|bell| bell.receive(&mut [0; 64])) {
            Some(Ok(0)) | None => Ok(true),
            Some(Ok(_)) => Ok(false),
            Some(Err(e)) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                io::ErrorKind::Other => Err(wary::DESCRIPTORS),
                _ => Ok(true),
            },
        }
    }
}

/// Whether nothing bounds how many messages of a kind there are, by what the message is and not by what it says of credits: light, and management
/// datagrams. `ethernet`: whether it comes to a port that has none of these, for a packet that says so itself.
pub(crate) fn is_unbound(message: &LinkMessage, ethernet: impl FnOnce() -> bool) -> bool {
    match message {
        LinkMessage::Packet(LinkPacket { packet, .. }) => match packet.kind() {
            PortKind::InfiniBand => packet.ib().vl == MANAGEMENT_LANE,
            PortKind::Ethernet => !ethernet(),
        },
        LinkMessage::Credit { .. } => false,
        LinkMessage::Light(_) => true,
    }
}

/// Cuts times that no link has.
pub(crate) fn within_bounds(message: LinkMessage) -> LinkMessage {
    match message {
        LinkMessage::Packet(packet) => {
            LinkMessage::Packet(LinkPacket { tail: packet.tail.min(LONGEST), ..packet })
        }
        LinkMessage::Light(mut light) => {
            light.latency = light.latency.min(LONGEST_PHY);
            LinkMessage::Light(light)
        }
        credit @ LinkMessage::Credit { .. } => credit,
    }
}

#[cfg(test)]
mod tests {
    use hca_model::link::Light;
    use hca_model::link_layer::Packet;
    use nix::sys::socket::MsgFlags;

    use super::wary::tests::{Slow, at_once};
    use super::*;

    fn ends() -> (Line, Line) {
        let (memory, [a, b]) = make().unwrap();
        let closer = Closer::default();
        (Line::new(&memory, a, 0, &closer).unwrap(), Line::new(&memory, b, 1, &closer).unwrap())
    }

    fn packet(len: usize, credits: u16) -> LinkMessage {
        let packet = Packet::from_bytes(vec![7; len]);
        LinkMessage::Packet(LinkPacket { packet, tail: Ps(5), credits, session: Default::default() })
    }

    fn all(line: &mut Line) -> Vec<Taken> {
        let mut got = Vec::new();
        while line.take(true, |taken| {
            got.push(taken);
            false
        }) {}
        got
    }

    #[test]
    fn messages_come_in_order_both_ways() {
        let (mut a, mut b) = ends();
        assert!(a.sleep() && b.sleep());
        for i in 0..3000 {
            a.send(i, packet(100 + i as usize, 2));
            b.send(i, LinkMessage::Light(Light::default()));
        }
        // More than the ring has room for.
        let mut got = 0;
        while got < 3000 {
            assert_eq!((a.flush(), b.flush()), (None, None));
            for taken in all(&mut b) {
                let Taken::Message(at, LinkMessage::Packet(packet)) = taken else { panic!("{taken:?}") };
                assert_eq!((at, packet.packet.len()), (got, 100 + got as usize));
                got += 1;
            }
        }
        assert!(!a.sleep(), "messages wait");
        assert_eq!(all(&mut a).len(), 3000);
        assert!(a.sleep());
    }

    #[test]
    fn credits_leave_together_and_nothing_passes_them() {
        let (mut a, mut b) = ends();
        let credit = |lane, blocks| LinkMessage::Credit { lane, blocks, session: Default::default() };
        for (at, lane, blocks) in [(1, 0, 2), (2, 0, 3), (3, 1, 4), (4, 1, u32::MAX)] {
            a.send(at, credit(lane, blocks));
        }
        a.send(5, packet(64, 1));
        a.send(6, credit(1, 7));
        assert_eq!(a.flush(), None);
        let read = |taken| match taken {
            Taken::Message(at, message) => (at, message),
            Taken::Lost(why) => panic!("{why}"),
        };
        let got: Vec<_> = all(&mut b).into_iter().map(read).collect();
        let expected = [(1, credit(0, 5)), (3, credit(1, u32::MAX)), (5, packet(64, 1)), (6, credit(1, 7))];
        assert_eq!(got, expected);
        assert_eq!((a.sent, b.received), (4, 4));
    }

    /// A datagram of subnet management: its lane is the first thing in it.
    fn management(credits: u16) -> LinkMessage {
        let mut bytes = vec![7; 64];
        bytes[0] = MANAGEMENT_LANE << 4;
        let packet = Packet::from_bytes(bytes);
        LinkMessage::Packet(LinkPacket { packet, tail: Ps(5), credits, session: Default::default() })
    }

    fn frame(len: usize) -> LinkMessage {
        let packet = Packet::frame(vec![7; len]);
        LinkMessage::Packet(LinkPacket { packet, tail: Ps(5), credits: 0, session: Default::default() })
    }

    /// Light and management are the few, whatever they say of credits; a frame is one where frames belong.
    #[test]
    fn a_turn_is_bounded() {
        let light = LinkMessage::Light(Light::default());
        let credit = LinkMessage::Credit { lane: 1, blocks: 1, session: Default::default() };
        let kinds = [
            (packet(64, 1), true, TURN),
            (packet(64, 0), true, TURN),
            (management(0), true, UNBOUND_TURN),
            (management(1), true, UNBOUND_TURN),
            (light, true, UNBOUND_TURN),
            (credit, true, TURN),
            (frame(64), true, TURN),
            (frame(64), false, UNBOUND_TURN),
        ];
        for (message, ethernet, most) in kinds {
            let (mut a, mut b) = ends();
            (0..1000).for_each(|_| {
                a.send(0, message.clone());
                a.send_credit();
            });
            assert_eq!(a.flush(), None);
            let mut count = 0;
            assert!(b.take(false, |taken| {
                count += 1;
                let Taken::Message(_, message) = taken else { panic!("{taken:?}") };
                is_unbound(&message, || ethernet)
            }));
            assert_eq!(count, most, "{message:?}");
        }
    }

    /// The system is asked of the bell where it was rung, and not otherwise.
    #[test]
    fn the_bell_is_heard_where_it_was_rung() {
        let (mut a, mut b) = ends();
        a.send(1, packet(64, 1));
        assert_eq!(a.flush(), None);
        drop(a);
        let mut got = Vec::new();
        let more = b.take(false, |taken| {
            got.push(taken);
            false
        });
        assert!(!more && b.is_joined());
        assert!(matches!(got[..], [Taken::Message(..)]), "{got:?}");
        assert!(matches!(all(&mut b)[..], [Taken::Lost(_)]) && !b.is_joined());
    }

    #[test]
    fn a_peer_that_ends_is_noticed_after_what_it_said() {
        let (mut a, mut b) = ends();
        a.send(1, packet(64, 1));
        assert_eq!(a.flush(), None);
        drop(a);
        let got = all(&mut b);
        assert!(matches!(got[..], [Taken::Message(..), Taken::Lost(_)]), "{got:?}");
        assert!(!b.is_joined() && b.watch().is_none() && all(&mut b).is_empty());
        b.send(1, packet(64, 1));
        assert_eq!((b.flush(), b.is_congested()), (None, false));
    }

    #[test]
    fn a_peer_that_takes_nothing_is_gone() {
        let (mut a, _b) = ends();
        let mut why = None;
        for _ in 0..BACKLOG / 4096 * 2 {
            a.send(0, packet(4096, 65));
            why = why.or(a.flush());
        }
        assert_eq!(why, Some("it takes nothing"));
        assert_eq!(a.backlog_bytes, 0);
    }

    /// Of all packets that credits let a peer have, those whose messages are long for what they take of it.
    #[test]
    fn a_slow_peer_is_not_gone_for_what_it_gave_credits_for() {
        let (mut a, mut b) = ends();
        for at in 0..CREDITED / BLOCK {
            a.send(at as u64, packet(BLOCK, 1));
        }
        // Frames find no less room for that.
        a.send(0, frame(1500));
        assert_eq!((a.flush(), a.dropped), (None, 0));
        let mut got = 0;
        while got <= CREDITED / BLOCK {
            let came = all(&mut b).len();
            assert!(came > 0);
            got += came;
            assert_eq!(a.flush(), None);
        }
        assert!(!a.is_congested() && a.is_joined());
    }

    /// Who can send nothing waits for room without looking for it, and is rung for when there is some.
    #[test]
    fn who_waits_for_room_sleeps() {
        let (mut a, mut b) = ends();
        while !a.is_congested() {
            a.send(0, packet(4096, 65));
        }
        assert_eq!(a.flush(), None);
        assert!(a.sleep(), "nothing is to be done");
        let rung = |line: &Line| line.bell.as_ref().unwrap().receive(&mut [0; 8]).is_ok();
        assert!(!rung(&a));
        assert!(b.take(true, |_| false));
        assert!(rung(&a) && !a.sleep(), "there is room");
        a.wake();
        assert_eq!(a.flush(), None);
        assert!(!a.is_congested() && a.sleep());
        // It is not rung for who wants no room.
        assert!(b.take(true, |_| false) && !rung(&a));
    }

    /// What no credits bound is dropped and counted where nobody takes it, and what was kept comes, in its order.
    #[test]
    fn a_flood_of_frames_ends_nothing() {
        for message in [frame(1500), management(0)] {
            let (mut a, mut b) = ends();
            for at in 0..2 * BACKLOG / 96 {
                a.send(at as u64, message.clone());
                if at % 1000 == 0 {
                    assert_eq!(a.flush(), None);
                }
            }
            assert!(a.dropped > 0 && a.backlog_bytes <= LOOSE + 2000, "{}", a.backlog_bytes);
            a.send(0, packet(100, 2));
            let (mut got, mut last) = (0, None);
            while got < a.sent {
                assert_eq!(a.flush(), None);
                for taken in all(&mut b) {
                    let Taken::Message(at, message) = taken else { panic!("{taken:?}") };
                    got += 1;
                    match message == packet(100, 2) {
                        true => assert_eq!(got, a.sent, "the last"),
                        false => assert!(last.replace(at) < Some(at)),
                    }
                }
            }
            assert_eq!((a.backlog_bytes, a.loose_bytes), (0, 0));
            assert_eq!(a.sent + a.dropped, 2 * (BACKLOG / 96) as u64 + 1);
        }
    }

    /// A bell with descriptors is none, and nobody waits for what they do when they are closed.
    #[test]
    fn a_peer_that_sends_descriptors_is_gone() {
        for hears in [false, true] {
            let (memory, [a, b]) = make().unwrap();
            let closer = Closer::default();
            let mut line = Line::new(&memory, b, 1, &closer).unwrap();
            let mut slow = Slow::new();
            slow.send(a.as_fd(), b"x", MsgFlags::empty());
            at_once(|| {
                if hears {
                    assert!(matches!(all(&mut line)[..], [Taken::Lost(wary::DESCRIPTORS)]));
                    assert!(!line.is_joined() && line.watch().is_none());
                }
                drop(line);
            });
            assert_eq!(closer.pending(), 1);
        }
    }

    /// The other side hears of it, too, though both live.
    #[test]
    fn rubbish_ends_it() {
        let (mut a, mut b) = ends();
        a.sender.push(7, |slot| slot.put(b"rubbish")).unwrap();
        a.sender.tell();
        assert!(matches!(all(&mut b)[..], [Taken::Lost(_)]));
        assert!(matches!(all(&mut a)[..], [Taken::Lost(ENDED)]) && !a.is_joined());
        let far = LinkMessage::Packet(LinkPacket {
            tail: Ps::MAX,
            packet: Packet::from_bytes(vec![0; 8]),
            credits: 1,
            session: Default::default(),
        });
        let LinkMessage::Packet(cut) = within_bounds(far) else { unreachable!() };
        assert_eq!(cut.tail, LONGEST);
        let slow = LinkMessage::Light(Light { latency: Ps::from_ms(1), ..Light::default() });
        let LinkMessage::Light(light) = within_bounds(slow) else { unreachable!() };
        assert_eq!(light.latency, LONGEST_PHY);
    }
}
