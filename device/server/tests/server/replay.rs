//! Datagrams of a tunnel that come again: at once and later, on another link, in the other direction, after either side was started
//! again. Over real sockets: the server has one end of two links, the test the other, and keeps what it hears and says.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::Server;
use hca_server::engine::Role;
use hca_server::topology::Topology;
use hca_server::tunnel::key::{Key, NONCE_SIZE};
use hca_server::tunnel::{Session, terms};
use serde_json::Value;

/// A guard against hanging tests, not a measurement.
const HANG: Duration = Duration::from_secs(60);
/// Where the kind, the link's number and the session's name are (`tunnel/frame.rs`).
const KIND: usize = 5;
const LINK: std::ops::Range<usize> = 6..8;
const SESSION: std::ops::Range<usize> = 8..16;
const DATA: u8 = 3;
const PACKETS: usize = 3;

/// The far end of both links.
struct Right {
    text: String,
    socket: UdpSocket,
    left: SocketAddr,
    sessions: Vec<Session>,
    start: Instant,
    nonces: u8,
    said: Vec<Vec<u8>>,
    heard: Vec<Vec<u8>>,
    /// Datagrams that this server was sent.
    sent: u64,
}

impl Right {
    fn new() -> Right {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let left = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let right = socket.local_addr().unwrap();
        let host = |name: &str, process: &str| {
            format!("[[host]]\nname = \"{name}\"\nprocess = \"{process}\"\n[[host.hca]]\n")
        };
        let text = format!(
            "[fabric]\nsubnet_manager = \"none\"\n\
             [[process]]\nname = \"left\"\naddress = \"{left}\"\n[[process]]\nname = \"right\"\naddress = \"{right}\"\n\
             {}{}{}{}[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n[[link]]\nbetween = [\"c/hca0\", \"d/hca0\"]\n",
            host("a", "left"),
            host("c", "left"),
            host("b", "right"),
            host("d", "right")
        );
        let (start, said, heard) = (Instant::now(), Vec::new(), Vec::new());
        let mut right =
            Right { text, socket, left, sessions: Vec::new(), start, nonces: 0, said, heard, sent: 0 };
        right.begin();
        right
    }

    fn key() -> Key {
        Key::from_secret(b"secret")
    }

    fn serve(&mut self) -> Server {
        self.sent = 0;
        let role = Role { process: Some("left".into()), keys: Right::key().into() };
        Server::serve(&self.text, &role)
    }

    /// As if it was started again.
    fn begin(&mut self) {
        let topology = Topology::parse("test", &self.text).unwrap();
        let part = topology.part(Some("right")).unwrap();
        self.sessions.clear();
        for cut in &part.cuts {
            let terms = terms(cut, &topology.fabric.tunnel, &Right::key()).unwrap();
            self.nonces += 1;
            let mut nonce = [self.nonces; NONCE_SIZE];
            let fresh = move || {
                nonce[0] = nonce[0].wrapping_add(1);
                nonce
            };
            self.sessions.push(Session::new(terms, Box::new(fresh), self.start.elapsed()));
        }
    }

    /// Takes what came, says what is due.
    fn pump(&mut self) {
        let mut buffer = [0; 2048];
        while let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
            let datagram = &buffer[..len];
            self.heard.push(datagram.to_vec());
            let link = usize::from(u16::from_be_bytes(datagram[LINK].try_into().unwrap()));
            self.sessions[link].receive(self.start.elapsed(), datagram);
        }
        for session in &mut self.sessions {
            session.tick(self.start.elapsed());
            while session.poll_event().is_some() {}
            while let Some(datagram) = session.poll_send() {
                self.socket.send_to(&datagram, self.left).unwrap();
                self.sent += 1;
                self.said.push(datagram);
            }
        }
    }

    /// Goes on until the server's counts of both links are as wanted.
    fn until(&mut self, server: &Server, wanted: impl Fn(&[Value; 2]) -> bool) {
        let deadline = Instant::now() + HANG;
        loop {
            self.pump();
            let counts = counts(server);
            if wanted(&counts) {
                return;
            }
            assert!(Instant::now() < deadline, "{counts:?}");
        }
    }

    /// Both links have a session, and some packets have passed on the first.
    fn talk(&mut self, server: &Server) {
        let before = counts(server).map(|c| n(&c, "packets_received"));
        self.until(server, |c| c.iter().all(|c| c["joined"] == true));
        let joined = Instant::now();
        while !self.sessions.iter().all(Session::is_joined) {
            self.pump();
            assert!(joined.elapsed() < HANG);
        }
        for _ in 0..PACKETS {
            self.sessions[0].send(self.start.elapsed(), vec![0; 100]);
        }
        self.until(server, |c| n(&c[0], "packets_received") == before[0] + PACKETS as u64);
    }

    /// Waits until the server has looked at everything that it was sent.
    fn settled(&self, server: &Server) -> [Value; 2] {
        let deadline = Instant::now() + HANG;
        loop {
            let now = counts(server);
            if now.iter().map(|c| n(c, "received")).sum::<u64>() == self.sent {
                return now;
            }
            assert!(Instant::now() < deadline, "{now:?} of {}", self.sent);
        }
    }

    /// Sends datagrams, and nothing of its own between them. Returns the counts before and after.
    fn replay(&mut self, server: &Server, datagrams: &[Vec<u8>]) -> ([Value; 2], [Value; 2]) {
        let before = self.settled(server);
        for datagram in datagrams {
            self.socket.send_to(datagram, self.left).unwrap();
            self.sent += 1;
        }
        (before, self.settled(server))
    }

    /// What it said on the first link that has packets.
    fn data(&self) -> Vec<Vec<u8>> {
        self.said.iter().filter(|d| d[KIND] == DATA).cloned().collect()
    }
}

fn counts(server: &Server) -> [Value; 2] {
    let links = server.ask("metrics")["tunnels"]["links"].clone();
    [links[0].clone(), links[1].clone()]
}

fn n(counts: &Value, what: &str) -> u64 {
    counts[what].as_u64().unwrap()
}

/// What has grown, without what always does.
fn grown(before: &Value, now: &Value) -> Vec<(String, u64)> {
    let names =
        before.as_object().unwrap().keys().filter(|name| !["sent", "received"].contains(&name.as_str()));
    let by = names
        .filter_map(|name| Some((name.clone(), now[name].as_u64()?.checked_sub(before[name].as_u64()?)?)));
    by.filter(|(_, by)| *by > 0).collect()
}

fn only(what: &str, count: usize) -> Vec<(String, u64)> {
    vec![(what.to_owned(), count as u64)]
}

#[test]
fn again_at_once_and_later() {
    let mut right = Right::new();
    let server = right.serve();
    right.talk(&server);
    let data = right.data();
    assert_eq!(data.len(), PACKETS);
    let (before, now) = right.replay(&server, &data);
    assert_eq!(grown(&before[0], &now[0]), only("replayed", PACKETS));
    // When so many others have come that it isn't known any more which.
    for _ in 0..60 {
        let passed = n(&counts(&server)[0], "packets_received");
        (0..40).for_each(|_| right.sessions[0].send(right.start.elapsed(), vec![0; 10]));
        right.until(&server, |c| n(&c[0], "packets_received") == passed + 40);
    }
    let (before, now) = right.replay(&server, &data);
    assert_eq!(grown(&before[0], &now[0]), only("replayed", PACKETS));
}

#[test]
fn on_another_link() {
    let mut right = Right::new();
    let server = right.serve();
    right.talk(&server);
    let name_of = |link: u8| {
        let of = |d: &&Vec<u8>| d[LINK] == [0, link] && d[SESSION] != [0; 8];
        right.said.iter().find(of).unwrap()[SESSION].to_vec()
    };
    let other = name_of(1);
    assert_ne!(name_of(0), other);
    let moved = |name: Option<&[u8]>| -> Vec<Vec<u8>> {
        let mut data = right.data();
        for datagram in &mut data {
            datagram[LINK].copy_from_slice(&[0, 1]);
            if let Some(name) = name {
                datagram[SESSION].copy_from_slice(name);
            }
        }
        data
    };
    let (as_it_is, renamed) = (moved(None), moved(Some(&other)));
    let (before, now) = right.replay(&server, &as_it_is);
    assert_eq!(grown(&before[1], &now[1]), only("stale", PACKETS));
    let (before, now) = right.replay(&server, &renamed);
    assert_eq!(grown(&before[1], &now[1]), only("unauthenticated", PACKETS));
    // Hellos have no session's name.
    let mut hellos: Vec<_> =
        right.said.iter().filter(|d| d[KIND] < DATA && d[LINK] == [0, 0]).cloned().collect();
    hellos.iter_mut().for_each(|d| d[LINK].copy_from_slice(&[0, 1]));
    assert!(!hellos.is_empty());
    let (before, now) = right.replay(&server, &hellos);
    assert_eq!(grown(&before[1], &now[1]), only("unauthenticated", hellos.len()));
}

#[test]
fn in_the_other_direction() {
    let mut right = Right::new();
    let server = right.serve();
    right.talk(&server);
    let own: Vec<_> = right.heard.iter().filter(|d| d[LINK] == [0, 0]).cloned().collect();
    assert!(own.iter().any(|d| d[KIND] < DATA) && own.iter().any(|d| d[KIND] > DATA));
    let (before, now) = right.replay(&server, &own);
    assert_eq!(grown(&before[0], &now[0]), only("unauthenticated", own.len()));
}

#[test]
fn after_either_side_was_started_again() {
    let mut right = Right::new();
    let server = right.serve();
    right.talk(&server);
    let old: Vec<_> = right.said.drain(..).filter(|d| d[LINK] == [0, 0]).collect();
    let (hellos, session): (Vec<_>, Vec<_>) = old.into_iter().partition(|d| d[KIND] < DATA);
    right.begin();
    right.until(&server, |c| c.iter().all(|c| n(c, "sessions") == 2));
    right.talk(&server);
    let (before, now) = right.replay(&server, &session);
    assert_eq!(grown(&before[0], &now[0]), only("stale", session.len()));
    // An old hello is answered, and begins nothing.
    let (before, now) = right.replay(&server, &hellos);
    assert_eq!((grown(&before[0], &now[0]), &now[0]["joined"]), (Vec::new(), &true.into()));
    drop(server);
    let server = right.serve();
    let old = [&hellos[..], &session, &right.said].concat();
    let (_, now) = right.replay(&server, &old);
    let none = ["sessions", "packets_received"].map(|what| n(&now[0], what) + n(&now[1], what));
    assert_eq!((none, &now[0]["joined"], &now[1]["joined"]), ([0, 0], &false.into(), &false.into()));
    let numbered = old.iter().filter(|d| d[KIND] >= DATA).count() as u64;
    assert_eq!(n(&now[0], "stale") + n(&now[1], "stale"), numbered);
}
