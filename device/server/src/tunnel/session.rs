//! The protocol of one link between two processes, without sockets, clocks or randomness of its own.
//!
//! Both sides do the same. A side has a number that it has not used yet, and sends it in hellos while it has no
//! session. A hello is answered by a welcome with the receiver's own unused number and the sender's as an echo. Who
//! sees its own unused number come back knows that the other is there *now*, and begins the session that the two
//! numbers make; the number is used up. A datagram of that session tells the other side the same. Hence an old hello
//! that someone sends again starts an answer, never a session, and one that comes while a session lives (the peer
//! was started again) ends that session only when the new one begins.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::frame::{Body, DIGEST_SIZE, Frame, Hello, Malformed, OVERHEAD};
use super::key::{Key, NONCE_SIZE, Nonce, SessionKeys};
use super::reassembly::{MAX_PIECES, Outcome, Reassembly};
use super::window::Window;

/// Datagrams with pieces that may be on their way. The smallest receive buffer that Linux gives has room for them. As many leave by one
/// [`Session::tick`], and the rest of a packet, however often the peer says that it has taken some.
const MAX_UNDERWAY: usize = 48;
/// After so many of them the receiver says that it has taken them.
const TAKEN_EVERY: u32 = 16;
/// Those that nobody has taken after so long are lost.
const UNDERWAY_LIMIT: Duration = Duration::from_millis(20);
/// Bytes of packets that may wait for their turn; what comes then is lost.
const MAX_WAITING: usize = 64 << 20;

/// How often a side shows that it lives before the other gives it up.
const SIGNS_OF_LIFE: u32 = 6;

/// What both sides know of the link beforehand.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What the processes share.
    pub key: Key,
    /// The link's number.
    pub link: u16,
    /// Which end is here: 0 or 1.
    pub end: u8,
    /// Of everything about the link that has to be the same on both sides.
    pub digest: [u8; DIGEST_SIZE],
    /// Largest datagram to send, in bytes.
    pub datagram: u16,
    /// Silence after which the peer is lost.
    pub timeout: Duration,
}

/// What a side tells of its end of the cable when it is lit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Light {
    /// Lanes.
    pub width: u8,
    /// Rate of a lane: 0 SDR, 1 DDR, 2 QDR, 3 FDR10, 4 FDR, 5 EDR, 6 HDR.
    pub speed: u8,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing was heard for too long.
    Silent,
    /// The peer began a new session: it was started again, or had lost us.
    Again,
    /// The peer said so.
    Bye,
}

/// What the owner has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session began; nothing is known of the far end's light yet.
    Joined,
    /// The session ended.
    Lost(Loss),
    /// The far end is lit, or dark. Dark is also what it is when no session is.
    Light(Option<Light>),
    /// A packet came.
    Packet(Vec<u8>),
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams of this link received, good and bad.
    pub received: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets received whole.
    pub packets_received: u64,
    /// Packets that were to be sent while nobody was there.
    pub packets_unsent: u64,
    /// Packets that found too many others waiting.
    pub packets_crowded: u64,
    /// Packets given up because pieces were missing.
    pub packets_incomplete: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Datagrams that are not what the protocol knows.
    pub malformed: u64,
    /// Datagrams whose tag is wrong.
    pub unauthenticated: u64,
    /// Datagrams of another session: an old one, or one this side does not know.
    pub stale: u64,
    /// Datagrams seen before, or too late to know.
    pub replayed: u64,
    /// Hellos of a peer that has other properties for the link.
    pub other_terms: u64,
}

#[derive(Debug)]
struct Joint {
    keys: SessionKeys,
    own: Nonce,
    peer: Nonce,
    next: u64,
    window: Window,
    pieces: Reassembly,
    heard: Duration,
    light: Option<Light>,
    /// Numbers of datagrams with pieces that the peer has not taken, as far as is known.
    underway: VecDeque<u64>,
    /// When the last of them were taken, or the first was sent.
    progress: Duration,
    /// Packets that wait until fewer are under way, and their bytes.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// Datagrams with pieces that came since the peer was told.
    untold: u32,
}

/// One side of a tunnel.
pub struct Session {
    terms: Terms,
    hello_send: Key,
    hello_receive: Key,
    fresh: Box<dyn FnMut() -> Nonce + Send>,
    /// Not used in a session yet.
    unused: Nonce,
    /// A peer that has said hello and may be there, with what the session would use.
    candidate: Option<(Nonce, SessionKeys)>,
    joint: Option<Joint>,
    light: Option<Light>,
    /// When the next hello or sign of life is due.
    due: Duration,
    out: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    counts: Counts,
    warned: bool,
}

impl Session {
    /// A side that looks for its peer. `fresh` gives random numbers that nobody can guess.
    pub fn new(terms: Terms, mut fresh: Box<dyn FnMut() -> Nonce + Send>, now: Duration) -> Session {
        let unused = fresh();
        let other = 1 - terms.end.min(1);
        Session {
            hello_send: terms.key.hello(terms.link, terms.end),
            hello_receive: terms.key.hello(terms.link, other),
            terms,
            fresh,
            unused,
            candidate: None,
            joint: None,
            light: None,
            due: now,
            out: VecDeque::new(),
            events: VecDeque::new(),
            counts: Counts::default(),
            warned: false,
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the peer is there.
    pub fn is_joined(&self) -> bool {
        self.joint.is_some()
    }

    /// The next datagram to send.
    pub fn poll_send(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Session::tick`] has something to do.
    pub fn next_tick(&self) -> Duration {
        let Some(joint) = &self.joint else { return self.due };
        let lost = joint.heard.saturating_add(self.terms.timeout);
        let stuck = (!joint.waiting.is_empty()).then(|| joint.progress.saturating_add(UNDERWAY_LIMIT));
        stuck.into_iter().fold(self.due.min(lost), Duration::min)
    }

    /// Time has passed, and what has come was received: packets that waited leave, hellos, signs of life, and the end of a silent peer.
    pub fn tick(&mut self, now: Duration) {
        if self.joint.as_ref().is_some_and(|j| now.saturating_sub(j.heard) >= self.terms.timeout) {
            self.lose(Loss::Silent);
            self.due = now;
        }
        if let Some(joint) = &mut self.joint
            && !joint.waiting.is_empty()
            && now.saturating_sub(joint.progress) >= UNDERWAY_LIMIT
        {
            joint.underway.clear();
            joint.progress = now;
        }
        self.release(now);
        if now < self.due {
            return;
        }
        self.due = now.saturating_add(self.terms.timeout / SIGNS_OF_LIFE);
        if self.joint.is_some() {
            self.say_alive();
        } else {
            let echo = self.candidate.as_ref().map_or([0; NONCE_SIZE], |(peer, _)| *peer);
            let hello = Hello { own: self.unused, echo, terms: self.terms.digest };
            self.say_hello(Body::Hello(hello));
        }
    }

    /// This end of the cable is lit, or dark.
    pub fn set_light(&mut self, light: Option<Light>) {
        if self.light != light {
            self.light = light;
            self.say_alive();
        }
    }

    /// Sends a packet, at once or when fewer are under way. Without a peer it is lost, as on a cable that leads
    /// nowhere.
    pub fn send(&mut self, now: Duration, packet: Vec<u8>) {
        let room = usize::from(self.terms.datagram).saturating_sub(OVERHEAD).max(1);
        let fits =
            packet.len().div_ceil(room) <= usize::from(MAX_PIECES) && u16::try_from(packet.len()).is_ok();
        let Some(joint) = self.joint.as_mut().filter(|_| fits && !packet.is_empty()) else {
            self.counts.packets_unsent += 1;
            return;
        };
        if joint.waiting_bytes.saturating_add(packet.len()) > MAX_WAITING {
            self.counts.packets_crowded += 1;
            return;
        }
        joint.waiting_bytes += packet.len();
        joint.waiting.push_back(packet);
        self.release(now);
    }

    /// Sends packets that wait, as many as may be under way.
    fn release(&mut self, now: Duration) {
        let room = usize::from(self.terms.datagram).saturating_sub(OVERHEAD).max(1);
        while let Some(joint) = self.joint.as_mut().filter(|joint| joint.underway.len() < MAX_UNDERWAY) {
            let Some(packet) = joint.waiting.pop_front() else { return };
            joint.waiting_bytes = joint.waiting_bytes.saturating_sub(packet.len());
            if joint.underway.is_empty() {
                joint.progress = now;
            }
            // `send` has seen to it that they fit.
            let count = u8::try_from(packet.len().div_ceil(room)).unwrap_or(MAX_PIECES);
            let total = u16::try_from(packet.len()).unwrap_or(u16::MAX);
            self.counts.packets_sent += 1;
            for (index, piece) in (0..).zip(packet.chunks(Reassembly::piece_size(total, count))) {
                if let Some(joint) = self.joint.as_mut() {
                    joint.underway.push_back(joint.next);
                }
                self.say(Body::Data { index, count, total, piece });
            }
        }
    }

    /// Tells the peer what has come, if it does not know: when there is nothing more to take for now.
    pub fn tell_taken(&mut self) {
        let Some(joint) = self.joint.as_mut().filter(|joint| joint.untold > 0) else { return };
        joint.untold = 0;
        let highest = joint.window.highest();
        self.say(Body::Taken { highest });
    }

    /// This side ends: the peer need not wait to find out.
    pub fn bye(&mut self) {
        self.say(Body::Bye);
    }

    /// A datagram came.
    pub fn receive(&mut self, now: Duration, datagram: &[u8]) {
        self.counts.received += 1;
        let (frame, message, tag) = match Frame::parse(datagram) {
            Ok(parsed) if parsed.0.link == self.terms.link => parsed,
            Ok(_) | Err(Malformed::Shape) => {
                self.counts.malformed += 1;
                return;
            }
            Err(Malformed::Version(version)) => {
                self.counts.malformed += 1;
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(
                        "link {}: the peer speaks version {version} of the protocol",
                        self.terms.link
                    );
                }
                return;
            }
        };
        match frame.body {
            Body::Hello(hello) | Body::Welcome(hello) => {
                if !self.hello_receive.verify(message, &tag) {
                    self.counts.unauthenticated += 1;
                    return;
                }
                self.meet(now, hello, matches!(frame.body, Body::Hello(_)));
            }
            body => {
                let named = |keys: &SessionKeys| keys.name == frame.session;
                if let Some((peer, keys)) = self.candidate.as_ref().filter(|(_, keys)| named(keys)) {
                    if !keys.receive.verify(message, &tag) {
                        self.counts.unauthenticated += 1;
                        return;
                    }
                    self.join(now, *peer);
                } else if let Some(joint) = self.joint.as_ref().filter(|joint| named(&joint.keys)) {
                    if !joint.keys.receive.verify(message, &tag) {
                        self.counts.unauthenticated += 1;
                        return;
                    }
                } else {
                    self.counts.stale += 1;
                    return;
                }
                self.take(now, frame.sequence, body);
            }
        }
    }

    /// A hello or welcome with a good tag; it may be an old one.
    fn meet(&mut self, now: Duration, hello: Hello, asks: bool) {
        if hello.terms != self.terms.digest {
            self.counts.other_terms += 1;
            if !std::mem::replace(&mut self.warned, true) {
                tracing::error!(
                    "link {}: the peer has other properties for it; both need the same topology file",
                    self.terms.link
                );
            }
            return;
        }
        let answer = if let Some(joint) = self.joint.as_ref().filter(|joint| joint.peer == hello.own) {
            // Our welcome was lost.
            asks.then_some(joint.own)
        } else if hello.echo == self.unused {
            let own = self.unused;
            self.join(now, hello.own);
            Some(own)
        } else if asks {
            let keys = self.terms.key.session(self.terms.link, self.terms.end, &self.unused, &hello.own);
            self.candidate = Some((hello.own, keys));
            Some(self.unused)
        } else {
            None
        };
        if let Some(own) = answer {
            let welcome = Hello { own, echo: hello.own, terms: self.terms.digest };
            self.say_hello(Body::Welcome(welcome));
        }
    }

    /// The peer is there now: a session begins.
    fn join(&mut self, now: Duration, peer: Nonce) {
        if self.joint.is_some() {
            self.lose(Loss::Again);
        }
        let own = std::mem::replace(&mut self.unused, (self.fresh)());
        self.candidate = None;
        self.joint = Some(Joint {
            keys: self.terms.key.session(self.terms.link, self.terms.end, &own, &peer),
            own,
            peer,
            next: 0,
            window: Window::default(),
            pieces: Reassembly::default(),
            heard: now,
            light: None,
            underway: VecDeque::new(),
            progress: now,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            untold: 0,
        });
        self.counts.sessions += 1;
        self.events.push_back(Event::Joined);
        // At once, so that the link need not wait for the next sign of life.
        self.due = now;
    }

    fn lose(&mut self, why: Loss) {
        if let Some(joint) = self.joint.take() {
            if joint.light.is_some() {
                self.events.push_back(Event::Light(None));
            }
            self.events.push_back(Event::Lost(why));
        }
    }

    /// A datagram of the session, with a good tag.
    fn take(&mut self, now: Duration, number: u64, body: Body<'_>) {
        let Some(joint) = self.joint.as_mut() else { return };
        if !joint.window.take(number) {
            self.counts.replayed += 1;
            return;
        }
        joint.heard = now;
        match body {
            Body::Data { index, count, total, piece } => {
                joint.untold += 1;
                let lost = &mut self.counts.packets_incomplete;
                match joint.pieces.take(now, number, (index, count, total), piece, lost) {
                    Outcome::Incomplete => {}
                    Outcome::Bad => self.counts.malformed += 1,
                    Outcome::Whole(packet) => {
                        self.counts.packets_received += 1;
                        self.events.push_back(Event::Packet(packet));
                    }
                }
                if joint.untold >= TAKEN_EVERY {
                    self.tell_taken();
                }
            }
            // It can't have taken what was never sent.
            Body::Taken { highest } if highest >= joint.next => self.counts.malformed += 1,
            Body::Taken { highest } => {
                let before = joint.underway.len();
                while joint.underway.front().is_some_and(|number| *number <= highest) {
                    joint.underway.pop_front();
                }
                if joint.underway.len() < before {
                    // What waits leaves by the next tick: a peer may say this very often.
                    joint.progress = now;
                }
            }
            Body::Alive { lit, width, speed } => {
                let light = lit.then_some(Light { width, speed });
                if joint.light != light {
                    joint.light = light;
                    self.events.push_back(Event::Light(light));
                }
            }
            Body::Bye => {
                self.lose(Loss::Bye);
                self.due = now.saturating_add(self.terms.timeout / SIGNS_OF_LIFE);
            }
            Body::Hello(_) | Body::Welcome(_) => self.counts.malformed += 1,
        }
    }

    fn say_alive(&mut self) {
        let Light { width, speed } = self.light.unwrap_or(Light { width: 0, speed: 0 });
        self.say(Body::Alive { lit: self.light.is_some(), width, speed });
    }

    /// Sends a datagram of the session, if there is one.
    pub(super) fn say(&mut self, body: Body<'_>) {
        let Some(joint) = self.joint.as_mut() else { return };
        let frame = Frame { link: self.terms.link, session: joint.keys.name, sequence: joint.next, body };
        joint.next = joint.next.wrapping_add(1);
        self.counts.sent += 1;
        self.out.push_back(frame.seal(&joint.keys.send));
    }

    fn say_hello(&mut self, body: Body<'_>) {
        let frame = Frame { link: self.terms.link, session: 0, sequence: 0, body };
        self.counts.sent += 1;
        self.out.push_back(frame.seal(&self.hello_send));
    }
}
