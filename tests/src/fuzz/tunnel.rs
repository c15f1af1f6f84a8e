//! Tunnels: datagrams of a peer, of strangers and of a bad network, and what they carry.

use std::collections::VecDeque;
use std::time::Duration;

use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::Repr;
use hca_model::{HcaId, PortLink, Ps, TunnelId, World};
use hca_server::tunnel::key::{Key, NONCE_SIZE, Nonce};
use hca_server::tunnel::{Event, Light, Session, Terms};
use hca_spec::ids::Lid;

use super::feed::Feed;
use super::packet::seal;
use crate::fabric::{Plan, port};

/// Steps of one input.
const MOST: usize = 400;
/// Datagrams that wait on the network, and old ones that may come again.
const NETWORK: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(3);
const TUNNEL: TunnelId = TunnelId(5);
/// The adapter, as the built-in subnet manager numbers it.
const ADAPTER: Lid = Lid(1);
/// Smallest packet with headers: LRH and BTH.
const HEADERS: usize = 20;
/// Room for the port's link to train.
const TRAINING: Ps = Ps::from_ms(30);

fn side(end: u8, seed: u8) -> Session {
    let key = Key::from_secret(b"secret");
    let terms = Terms { key, link: 7, end, digest: [9; 16], datagram: 600, timeout: TIMEOUT };
    let mut number = u128::from(seed);
    let fresh = move || -> Nonce {
        number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).wrapping_add(1);
        let mut nonce = [0; NONCE_SIZE];
        nonce.copy_from_slice(&number.to_be_bytes());
        nonce
    };
    Session::new(terms, Box::new(fresh), Duration::ZERO)
}

/// A side that has the key, the network, the side that is looked at, and what is behind that: the same packets go to an
/// adapter, and to a switch whose port stays as it trained.
struct TunnelledWorlds {
    peer: Session,
    own: Session,
    now: Duration,
    network: VecDeque<Vec<u8>>,
    old: VecDeque<Vec<u8>>,
    world: World,
    switched: World,
    /// Packets that came out of the tunnel.
    packets: u64,
}

impl TunnelledWorlds {
    fn new() -> Self {
        let mut direct = Plan { hcas: 1, ..Plan::default() };
        direct.join(HcaId(0), TUNNEL);
        let mut switched = Plan::around(&[1], 1);
        switched.join(port(0, 2), TUNNEL);
        Self {
            peer: side(0, 1),
            own: side(1, 2),
            now: Duration::ZERO,
            network: VecDeque::new(),
            old: VecDeque::new(),
            world: direct.world(1),
            switched: switched.world(1),
            packets: 0,
        }
    }

    fn advance(&mut self, time: Ps) {
        let until = self.world.now() + time;
        for world in [&mut self.world, &mut self.switched] {
            world.advance(until);
            world.drain_tunnels(Ps::MAX);
        }
    }

    /// What the peer says goes onto the network.
    fn listen(&mut self) {
        while let Some(datagram) = self.peer.poll_send() {
            if self.network.len() < NETWORK {
                self.network.push_back(datagram);
            }
        }
    }

    fn deliver(&mut self, datagram: &[u8]) {
        self.own.receive(self.now, datagram);
        while let Some(event) = self.own.poll_event() {
            let at = self.world.now();
            match event {
                Event::Packet(bytes) => {
                    self.packets += 1;
                    self.switched.tunnel_receive(at, TUNNEL, bytes.clone());
                    self.world.tunnel_receive(at, TUNNEL, bytes);
                }
                Event::Light(light) => {
                    let light = light.map(|_| PortLink::default());
                    self.switched.tunnel_link(at, TUNNEL, light);
                    self.world.tunnel_link(at, TUNNEL, light);
                }
                Event::Joined | Event::Lost(_) => {}
            }
        }
    }

    /// Both sides and the network work as they should.
    fn settle(&mut self) {
        loop {
            for side in [&mut self.peer, &mut self.own] {
                side.tick(self.now);
                side.tell_taken();
            }
            self.listen();
            let mut quiet = true;
            while let Some(datagram) = self.network.pop_front() {
                self.deliver(&datagram);
                quiet = false;
            }
            while let Some(datagram) = self.own.poll_send() {
                self.peer.receive(self.now, &datagram);
                quiet = false;
            }
            while self.peer.poll_event().is_some() {}
            if quiet {
                return;
            }
        }
    }

    fn step(&mut self, feed: &mut Feed<'_>) {
        match feed.below(12) {
            0 | 1 => {
                let len = usize::from(feed.u16() % 700);
                let packet = feed.bytes(len).to_vec();
                self.peer.send(self.now, packet);
            }
            2 | 3 => self.peer.send(self.now, sealed(feed)),
            4 | 5 => {
                if let Some(datagram) = self.network.pop_front() {
                    self.deliver(&datagram);
                    self.old.push_back(datagram);
                    self.old.truncate(NETWORK);
                }
            }
            6 => {
                let place = feed.below(NETWORK);
                let Some(mut datagram) = self.network.get(place).cloned() else { return };
                feed.mutate(&mut datagram, 4);
                datagram.truncate(datagram.len().saturating_sub(feed.below(8)));
                self.deliver(&datagram);
            }
            7 => {
                let place = feed.below(NETWORK);
                if let Some(datagram) = self.old.get(place).cloned() {
                    self.deliver(&datagram);
                }
            }
            8 => {
                let mut datagram = if feed.one_in(4) { Vec::new() } else { b"HCAT\x01".to_vec() };
                let len = feed.below(120);
                datagram.extend_from_slice(feed.bytes(len));
                self.deliver(&datagram);
            }
            9 => {
                self.now += Duration::from_millis(feed.u16().into());
                self.own.tick(self.now);
                self.own.tell_taken();
                self.peer.tick(self.now);
            }
            10 => match feed.below(4) {
                0 => self.peer.bye(),
                1 => self.peer = side(0, feed.u8()),
                2 => {
                    self.own.set_light(feed.one_in(2).then_some(Light { width: feed.u8(), speed: feed.u8() }))
                }
                _ => self
                    .peer
                    .set_light(feed.one_in(2).then_some(Light { width: feed.u8(), speed: feed.u8() })),
            },
            _ => self.settle(),
        }
        self.listen();
        // What this side says in answer is no more than what it was asked.
        while let Some(datagram) = self.own.poll_send() {
            if feed.one_in(4) {
                continue;
            }
            self.peer.receive(self.now, &datagram);
        }
        while self.peer.poll_event().is_some() {}
        self.advance(Ps::from_ns(feed.u8().into()));
    }
}

/// A packet with good checksums and rubbish in its headers; none of management, which could change the switch.
fn sealed(feed: &mut Feed<'_>) -> Vec<u8> {
    const VERSION_0_LANE_7_AT_MOST: u8 = 0x70;
    let len = HEADERS + 4 * feed.below(40);
    let mut bytes = feed.bytes(len).to_vec();
    bytes.resize(len, 0);
    bytes[0] &= VERSION_0_LANE_7_AT_MOST;
    // LNH: BTH next. PktLen: in words, up to the ICRC.
    bytes[1] = bytes[1] & 0xf0 | 2;
    bytes[2..4].copy_from_slice(&ADAPTER.0.to_be_bytes());
    let words = if feed.one_in(4) { feed.u16() } else { (len / 4 + 1) as u16 };
    bytes[4..6].copy_from_slice(&words.to_be_bytes());
    seal(&mut bytes, false);
    bytes
}

/// Lets a peer and strangers send datagrams made of `data` over a network that loses, changes and repeats them, and
/// hands what comes out to a switch with an adapter.
///
/// # Panics
/// If a session or the world does, if something is counted that did not come, or if the tunnel does not work
/// afterwards.
pub fn tunnel(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut tunnelled = TunnelledWorlds::new();
    tunnelled.settle();
    for end in [&mut tunnelled.peer, &mut tunnelled.own] {
        end.set_light(Some(Light { width: 4, speed: 5 }));
    }
    tunnelled.settle();
    tunnelled.advance(TRAINING);
    assert!(tunnelled.world.link_is_up(0) && tunnelled.switched.link_is_up(1), "the tunnel's link trains");
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        tunnelled.step(&mut feed);
    }
    let counts = tunnelled.own.counts();
    let bad = counts.malformed + counts.unauthenticated + counts.stale + counts.replayed + counts.other_terms;
    assert!(bad <= counts.received, "{counts:?}");
    tunnelled.advance(Ps::from_ms(1));
    let counters =
        [tunnelled.world.port_counters(HcaId(0).into()), tunnelled.switched.port_counters(port(0, 2))];
    for counters in counters.into_iter().flatten() {
        let bad = u64::from(counters.rcv_errors) + u64::from(counters.rcv_remote_physical_errors);
        assert!(
            bad <= tunnelled.packets && counters.rcv_packets <= tunnelled.packets,
            "{counters:?} of {}",
            tunnelled.packets
        );
    }
    // A peer that behaves is heard again, and its packets get to the adapter.
    tunnelled.network.clear();
    tunnelled.peer = side(0, 77);
    for _ in 0..4 {
        tunnelled.now += TIMEOUT / 2;
        tunnelled.settle();
    }
    for end in [&mut tunnelled.peer, &mut tunnelled.own] {
        end.set_light(None);
        end.set_light(Some(Light { width: 4, speed: 5 }));
    }
    tunnelled.settle();
    tunnelled.advance(TRAINING);
    let arrived = |tunnelled: &TunnelledWorlds| {
        let direct = tunnelled.world.port_counters(HcaId(0).into());
        [direct, tunnelled.switched.port_counters(port(0, 2))].map(|c| c.map_or(0, |c| c.rcv_packets))
    };
    let before = arrived(&tunnelled);
    let good = Packet::build_empty(&Path::from(Address::between(Lid(0), ADAPTER)), &Repr::default());
    tunnelled.peer.send(tunnelled.now, good.into_bytes());
    tunnelled.settle();
    tunnelled.advance(Ps::from_ms(1));
    assert_eq!(arrived(&tunnelled), before.map(|n| n + 1), "the tunnel works");
}
