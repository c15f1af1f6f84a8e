//! The far end of the attacker's tunnel: a process that has the key and says anything, and one that has not.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use hca_server::tunnel::key::{NONCE_SIZE, Nonce};
use hca_server::tunnel::{Light, Session, Terms};
use hca_spec::ids::Lid;
use hca_spec::mad::{CLASS_PERF, Mad};
use hca_spec::wire::{Bth, Deth, ICRC_SIZE, LNH_BTH, Lrh, Operation, Transport};

use crate::fuzz::commands::Q_KEY;
use crate::fuzz::feed::Feed;
use crate::fuzz::objects::Objects;
use crate::fuzz::{management, packet, seal};
use crate::seeded::Random;

/// Datagrams that may come again.
const OLD: usize = 256;
/// Q_Key of QP1 (IBTA 16.1).
const GSI_QKEY: u32 = 0x8001_0000;
/// Where the version, the link's number and the session's name are in a datagram.
const VERSION: usize = 4;
const LINK: std::ops::Range<usize> = 6..8;
const SESSION: std::ops::Range<usize> = 8..16;

/// The far end.
pub struct Far {
    socket: UdpSocket,
    stranger: UdpSocket,
    server: SocketAddr,
    terms: Terms,
    session: Session,
    start: Instant,
    old: VecDeque<Vec<u8>>,
    nonces: u64,
    psns: Vec<u32>,
}

fn session(terms: &Terms, seed: u64, start: Instant) -> Session {
    let mut random = Random::new(seed);
    let fresh = move || -> Nonce {
        let mut nonce = [0; NONCE_SIZE];
        nonce.copy_from_slice(&random.bytes(NONCE_SIZE));
        nonce
    };
    let mut session = Session::new(terms.clone(), Box::new(fresh), start.elapsed());
    session.set_light(Some(Light { width: 4, speed: 5 }));
    session
}

impl Far {
    /// The process at `socket`, whose link leads to the server's tunnel socket.
    ///
    /// # Errors
    /// There is no other socket.
    pub fn new(socket: UdpSocket, server: SocketAddr, terms: Terms) -> std::io::Result<Self> {
        let stranger = UdpSocket::bind((server.ip(), 0))?;
        socket.set_nonblocking(true)?;
        stranger.set_nonblocking(true)?;
        let start = Instant::now();
        let session = session(&terms, 0, start);
        let (old, psns) = (VecDeque::new(), vec![0; 32]);
        Ok(Self { socket, stranger, server, terms, session, start, old, nonces: 0, psns })
    }

    /// Takes what has come, and says what is to be said.
    pub fn pump(&mut self) {
        let mut buffer = [0; 1 << 16];
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            if from == self.server {
                self.session.receive(self.start.elapsed(), &buffer[..len]);
            }
        }
        self.session.tick(self.start.elapsed());
        self.session.tell_taken();
        while self.session.poll_event().is_some() {}
        while let Some(datagram) = self.session.poll_send() {
            self.say(&datagram);
            self.old.truncate(OLD - 1);
            self.old.push_front(datagram);
        }
    }

    /// Sends a datagram; what the system does not take is lost.
    fn say(&self, datagram: &[u8]) {
        let _ = self.socket.send_to(datagram, self.server);
    }

    /// One thing that the attacker does. `objects` are what its guest has behind the link.
    pub fn step(&mut self, feed: &mut Feed<'_>, objects: &Objects) -> &'static str {
        let did = match feed.below(16) {
            0..6 => {
                let mut objects = objects.clone();
                objects.lid = lid(feed, objects.lid);
                let source = lid(feed, objects.lid);
                let packet = packet::build(feed, &objects, source, &mut self.psns);
                self.session.send(self.start.elapsed(), packet.into_bytes());
                "tunnel: a packet"
            }
            6 | 7 => {
                let packet = datagram(feed, objects.lid);
                self.session.send(self.start.elapsed(), packet);
                "tunnel: a management datagram"
            }
            8 => {
                let len = usize::from(feed.u16() % 5000);
                let packet = feed.bytes(len).to_vec();
                self.session.send(self.start.elapsed(), packet);
                "tunnel: a packet of rubbish"
            }
            9 | 10 => {
                let Some(mut datagram) = self.some_old(feed) else { return "tunnel: nothing" };
                feed.mutate(&mut datagram, 3);
                datagram.truncate(datagram.len().saturating_sub(feed.below(8)));
                self.say(&datagram);
                "tunnel: a datagram that was changed"
            }
            11 => {
                let Some(datagram) = self.some_old(feed) else { return "tunnel: nothing" };
                self.say(&datagram);
                "tunnel: a datagram again"
            }
            12 => {
                let datagram = self.some_old(feed).unwrap_or_default();
                let _ = self.stranger.send_to(&datagram, self.server);
                "tunnel: a stranger with a datagram of the link"
            }
            13 => {
                let mut datagram = b"HCAT\x01".to_vec();
                let len = feed.below(200);
                datagram.extend_from_slice(feed.bytes(len));
                if let (Some(link), true) = (datagram.get_mut(LINK), feed.one_in(2)) {
                    link.copy_from_slice(&self.terms.link.to_be_bytes());
                }
                if let (Some(name), true) = (datagram.get_mut(SESSION), feed.one_in(2)) {
                    name.fill(0);
                }
                if feed.one_in(8) {
                    datagram[VERSION] = feed.u8();
                }
                self.say(&datagram);
                "tunnel: a datagram without the key"
            }
            14 => {
                let light = Light { width: feed.u8(), speed: feed.u8() };
                self.session.set_light(feed.one_in(2).then_some(light));
                self.pump();
                self.session.set_light(Some(Light { width: 4, speed: 5 }));
                "tunnel: its light"
            }
            _ => {
                self.nonces += 1;
                if feed.one_in(2) {
                    self.session.bye();
                    self.pump();
                }
                self.session = session(&self.terms, self.nonces, self.start);
                "tunnel: its process ended and started again"
            }
        };
        self.pump();
        did
    }

    fn some_old(&self, feed: &mut Feed<'_>) -> Option<Vec<u8>> {
        self.old.get(feed.below(OLD)).or(self.old.front()).cloned()
    }
}

/// A LID: mostly `usual`.
fn lid(feed: &mut Feed<'_>, usual: Lid) -> Lid {
    match feed.below(8) {
        0 => Lid(feed.u16()),
        1 => feed.pick(&[Lid(0), Lid(1), Lid(2), Lid(3), Lid(0xc000), Lid::PERMISSIVE]),
        _ => usual,
    }
}

/// A management datagram in a packet with good checksums.
fn datagram(feed: &mut Feed<'_>, usual: Lid) -> Vec<u8> {
    const LANE_15: u32 = 15;
    let mad = management::datagram(feed);
    let subnet = mad.get(Mad::MGMT_CLASS) != CLASS_PERF;
    let words = (Lrh::SIZE + Bth::SIZE + Deth::SIZE + mad.bytes().len() + ICRC_SIZE) / 4;
    let mut lrh = Lrh::new();
    lrh.set(Lrh::LNH, LNH_BTH).set(Lrh::PKT_LEN, words as u32);
    lrh.set(Lrh::VL, if subnet != feed.one_in(16) { LANE_15 } else { 0 });
    lrh.set(Lrh::DLID, lid(feed, usual).0.into()).set(Lrh::SLID, lid(feed, usual).0.into());
    let mut bth = Bth::new();
    bth.set(Bth::OPCODE, (Transport::Ud as u32) << 5 | Operation::SendOnly as u32).set(Bth::P_KEY, 0xffff);
    bth.set(Bth::DEST_QP, u32::from(subnet == feed.one_in(16))).set(Bth::PSN, feed.u32());
    let mut deth = Deth::new();
    deth.set(Deth::Q_KEY, feed.pick(&[0, GSI_QKEY, Q_KEY])).set(Deth::SRC_QP, u32::from(feed.u8() % 3));
    let mut bytes = [&lrh.bytes()[..], bth.bytes(), deth.bytes(), mad.bytes()].concat();
    seal(&mut bytes, false);
    bytes
}
