//! Two sides and the datagrams between them, in time that the test makes.

use std::time::Duration;

use super::frame::{Body, Frame, HEADER_SIZE, Malformed, OVERHEAD};
use super::key::{Key, Nonce, TAG_SIZE};
use super::{Event, Light, Loss, Session, Terms};

const TIMEOUT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(100);
const LIGHT: Light = Light { width: 4, speed: 5 };

/// SplitMix64: what has to be unlike, not unpredictable.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn nonces(seed: u64) -> Box<dyn FnMut() -> Nonce + Send> {
    let mut random = Random(seed);
    Box::new(move || {
        let (a, b) = (random.next().to_be_bytes(), random.next().to_be_bytes());
        std::array::from_fn(|i| a.iter().chain(&b).nth(i).copied().unwrap())
    })
}

fn terms(end: u8) -> Terms {
    Terms {
        key: Key::from_secret(b"secret"),
        link: 7,
        end,
        digest: [9; 16],
        datagram: 1400,
        timeout: TIMEOUT,
    }
}

fn side(end: u8, seed: u64, now: Duration) -> Session {
    Session::new(terms(end), nonces(seed), now)
}

fn events(side: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| side.poll_event()).collect()
}

fn sent(side: &mut Session) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| side.poll_send()).collect()
}

/// Two sides, the time, and what passed.
struct Pair {
    sides: [Session; 2],
    now: Duration,
    /// Everything that was sent, by sender.
    heard: [Vec<Vec<u8>>; 2],
}

impl Pair {
    fn new() -> Pair {
        let now = Duration::ZERO;
        Pair { sides: [side(0, 1, now), side(1, 2, now)], now, heard: Default::default() }
    }

    fn joined() -> Pair {
        let mut pair = Pair::new();
        pair.exchange();
        assert!(pair.sides.iter().all(Session::is_joined));
        for side in &mut pair.sides {
            assert_eq!(events(side), [Event::Joined]);
        }
        pair
    }

    fn send(&mut self, from: usize, packet: &[u8]) {
        self.sides[from].send(self.now, packet.to_vec());
    }

    /// Delivers until nobody has anything to say.
    fn exchange(&mut self) {
        loop {
            for side in &mut self.sides {
                side.tick(self.now);
                side.tell_taken();
            }
            let from: [Vec<_>; 2] = self.sides.each_mut().map(sent);
            if from.iter().all(Vec::is_empty) {
                return;
            }
            for (i, datagrams) in from.into_iter().enumerate() {
                for datagram in datagrams {
                    self.sides[1 - i].receive(self.now, &datagram);
                    self.heard[i].push(datagram);
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.exchange();
        }
    }
}

#[test]
fn a_link_in_both_directions() {
    let mut pair = Pair::joined();
    pair.sides[0].set_light(Some(LIGHT));
    pair.exchange();
    assert_eq!(events(&mut pair.sides[1]), [Event::Light(Some(LIGHT))]);
    for len in [1, 26, 1356, 1357, 4096 + 126, 16_000] {
        let packet: Vec<u8> = (0..len).map(|i| i as u8).collect();
        pair.send(1, &packet);
        pair.exchange();
        assert_eq!(events(&mut pair.sides[0]), [Event::Packet(packet)], "{len} bytes");
    }
    let longest = pair.heard[1].iter().map(Vec::len).max();
    assert_eq!(longest, Some(1400));
    // Longer ones are no InfiniBand packets.
    for len in [0, 30_000, 70_000] {
        pair.send(1, &vec![0; len]);
    }
    assert_eq!(pair.sides[1].counts().packets_unsent, 3);
    pair.sides[0].set_light(None);
    pair.exchange();
    assert_eq!(events(&mut pair.sides[1]), [Event::Light(None)]);
    // Signs of life keep it, and nothing more.
    let before = pair.heard[0].len();
    pair.pass(10 * TIMEOUT);
    assert!(pair.sides.iter_mut().all(|side| events(side).is_empty()));
    assert!((55..=65).contains(&(pair.heard[0].len() - before)), "{}", pair.heard[0].len() - before);
}

#[test]
fn what_is_sent_to_nobody_is_lost() {
    let mut alone = side(0, 1, Duration::ZERO);
    alone.send(Duration::ZERO, b"packet".to_vec());
    assert_eq!(alone.counts().packets_unsent, 1);
    alone.tick(Duration::ZERO);
    assert_eq!(sent(&mut alone).len(), 1, "a hello");
    assert_eq!(alone.next_tick(), TIMEOUT / 6);
}

#[test]
fn a_burst_waits_until_it_is_taken() {
    const PACKETS: u32 = 300;
    let mut pair = Pair::joined();
    for n in 0..PACKETS {
        pair.send(0, &[&n.to_be_bytes()[..], &[0; 4000]].concat());
    }
    let first = sent(&mut pair.sides[0]);
    // 48 datagrams, and no packet is split by it.
    assert_eq!(first.len(), 48);
    for datagram in &first {
        pair.sides[1].receive(pair.now, datagram);
    }
    pair.exchange();
    let order: Vec<u32> = events(&mut pair.sides[1])
        .into_iter()
        .map(|event| match event {
            Event::Packet(packet) => u32::from_be_bytes(packet[..4].try_into().unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, (0..PACKETS).collect::<Vec<_>>());
    // A burst that nobody takes is given up after a while, and what waits goes on.
    for _ in 0..40 {
        pair.send(0, &[1; 4000]);
    }
    assert_eq!(sent(&mut pair.sides[0]).len(), 48);
    assert_eq!(pair.sides[0].next_tick(), pair.now + Duration::from_millis(20));
    pair.now += Duration::from_millis(20);
    pair.exchange();
    assert_eq!(events(&mut pair.sides[1]).len(), 24);
}

/// A peer that says with each of its datagrams that it has taken all, also what it can't have heard of, is sent no more in a round than
/// one that says it once.
#[test]
fn what_leaves_in_a_round_is_bounded() {
    /// More than may be on their way.
    const MOST: u64 = 48;
    let mut pair = Pair::joined();
    (0..10 * MOST).for_each(|_| pair.send(0, &[7; 100]));
    let mut passed = 0;
    while passed < 10 * MOST {
        let out = sent(&mut pair.sides[0]);
        assert!(out.len() as u64 <= MOST, "{}", out.len());
        passed += out.len() as u64;
        let last = Frame::parse(out.last().unwrap()).unwrap().0.sequence;
        let before = pair.sides[0].counts();
        for ahead in 0..256 {
            pair.sides[1].say(Body::Taken { highest: last + ahead * MOST });
        }
        for datagram in sent(&mut pair.sides[1]) {
            pair.sides[0].receive(pair.now, &datagram);
        }
        assert_eq!(pair.sides[0].counts().malformed, before.malformed + 255);
        assert_eq!(pair.sides[0].counts().sent, before.sent, "it leaves by the tick");
        pair.sides[0].tick(pair.now);
    }
    assert_eq!(pair.sides[0].counts().packets_sent, 10 * MOST);
}

#[test]
fn a_silent_peer_is_lost_and_found() {
    let mut pair = Pair::joined();
    pair.sides[0].set_light(Some(LIGHT));
    pair.exchange();
    events(&mut pair.sides[1]);
    // Nothing passes.
    let start = pair.now;
    while events(&mut pair.sides[1]) != [Event::Light(None), Event::Lost(Loss::Silent)] {
        assert!(pair.now < start + 2 * TIMEOUT);
        pair.now += STEP;
        for side in &mut pair.sides {
            side.tick(pair.now);
            sent(side);
        }
    }
    assert!(pair.now >= start + TIMEOUT);
    pair.pass(TIMEOUT);
    assert_eq!(events(&mut pair.sides[1]), [Event::Joined, Event::Light(Some(LIGHT))]);
    assert_eq!(pair.sides[1].counts().sessions, 2);
}

#[test]
fn a_peer_that_is_started_again() {
    for orderly in [false, true] {
        let mut pair = Pair::joined();
        pair.sides[1].set_light(Some(LIGHT));
        pair.exchange();
        events(&mut pair.sides[0]);
        if orderly {
            pair.sides[1].bye();
            pair.exchange();
            assert_eq!(events(&mut pair.sides[0]), [Event::Light(None), Event::Lost(Loss::Bye)]);
        }
        pair.sides[1] = side(1, 77, pair.now);
        pair.pass(STEP * 10);
        let mut expected = vec![Event::Joined];
        if !orderly {
            expected.splice(0..0, [Event::Light(None), Event::Lost(Loss::Again)]);
        }
        assert_eq!(events(&mut pair.sides[0]), expected);
        assert_eq!(events(&mut pair.sides[1]), [Event::Joined]);
        pair.send(0, b"after");
        pair.exchange();
        assert_eq!(events(&mut pair.sides[1]), [Event::Packet(b"after".to_vec())]);
    }
}

#[test]
fn nothing_recorded_is_worth_anything() {
    let mut pair = Pair::joined();
    pair.send(0, b"one");
    pair.exchange();
    assert_eq!(events(&mut pair.sides[1]).len(), 1);
    let recorded = pair.heard.clone();
    let replay = |pair: &mut Pair| {
        for (from, datagrams) in recorded.iter().enumerate() {
            for datagram in datagrams {
                pair.sides[1 - from].receive(pair.now, datagram);
                // Also what is sent to the one who sent it.
                pair.sides[from].receive(pair.now, datagram);
            }
        }
    };
    // In the same session, in the next one, and to one that has none.
    replay(&mut pair);
    assert!(pair.sides[1].counts().replayed > 0);
    pair.exchange();
    assert!(pair.sides.iter_mut().all(|side| events(side).is_empty()));
    pair.sides[0] = side(0, 5, pair.now);
    pair.pass(STEP * 10);
    assert_eq!(events(&mut pair.sides[1]), [Event::Lost(Loss::Again), Event::Joined]);
    assert_eq!(events(&mut pair.sides[0]), [Event::Joined]);
    for _ in 0..3 {
        replay(&mut pair);
        pair.pass(STEP * 10);
    }
    assert!(pair.sides.iter_mut().all(|side| events(side).is_empty()), "the session lives on");
    assert!(pair.sides[1].counts().stale > 0);
    let mut alone = side(1, 6, pair.now);
    for datagram in &recorded[0] {
        alone.receive(pair.now, datagram);
    }
    assert!(!alone.is_joined() && events(&mut alone).is_empty());
}

#[test]
fn strangers_are_refused() {
    let mut pair = Pair::joined();
    let stranger = |change: fn(&mut Terms)| {
        let mut terms = terms(1);
        change(&mut terms);
        let mut side = Session::new(terms, nonces(3), Duration::ZERO);
        side.tick(Duration::ZERO);
        sent(&mut side).remove(0)
    };
    let before = pair.sides[0].counts();
    pair.sides[0].receive(pair.now, &stranger(|t| t.key = Key::from_secret(b"guess")));
    // Who speaks as the end that this side is: an echo of our own words.
    pair.sides[0].receive(pair.now, &stranger(|t| t.end = 0));
    assert_eq!(pair.sides[0].counts().unauthenticated, before.unauthenticated + 2);
    pair.sides[0].receive(pair.now, &stranger(|t| t.link = 8));
    assert_eq!(pair.sides[0].counts().malformed, before.malformed + 1);
    pair.sides[0].receive(pair.now, &stranger(|t| t.digest = [8; 16]));
    assert_eq!(pair.sides[0].counts().other_terms, 1);
    assert!(sent(&mut pair.sides[0]).is_empty() && events(&mut pair.sides[0]).is_empty());
}

#[test]
fn every_changed_bit_is_noticed() {
    let mut pair = Pair::joined();
    pair.send(0, b"packet");
    let [data] = &sent(&mut pair.sides[0])[..] else { panic!() };
    for bit in 0..data.len() * 8 {
        let mut changed = data.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        pair.sides[1].receive(pair.now, &changed);
    }
    let counts = pair.sides[1].counts();
    let noticed = counts.unauthenticated + counts.malformed + counts.stale;
    assert_eq!(noticed, data.len() as u64 * 8);
    pair.sides[1].receive(pair.now, data);
    assert_eq!(events(&mut pair.sides[1]), [Event::Packet(b"packet".to_vec())]);
}

#[test]
fn datagrams_that_are_none() {
    let key = Key::from_secret(b"k");
    let frame = |body| Frame { link: 1, session: 2, sequence: 3, body }.seal(&key);
    let alive = frame(Body::Alive { lit: true, width: 4, speed: 5 });
    let (parsed, message, tag) = Frame::parse(&alive).unwrap();
    assert_eq!((parsed.link, parsed.session, parsed.sequence), (1, 2, 3));
    assert!(key.verify(message, &tag) && !Key::from_secret(b"l").verify(message, &tag));
    assert_eq!(alive.len(), HEADER_SIZE + 3 + TAG_SIZE);
    assert_eq!(frame(Body::Data { index: 0, count: 1, total: 2, piece: b"ab" }).len(), OVERHEAD + 2);
    for len in 0..alive.len() {
        assert_eq!(Frame::parse(&alive[..len]).err(), Some(Malformed::Shape), "{len} bytes");
    }
    let mut longer = alive.clone();
    longer.push(0);
    assert_eq!(Frame::parse(&longer).err(), Some(Malformed::Shape));
    for (at, value, why) in [
        (0, 0, Malformed::Shape),
        (4, 2, Malformed::Version(2)),
        (5, 0, Malformed::Shape),
        (5, 7, Malformed::Shape),
    ] {
        let mut other = alive.clone();
        other[at] = value;
        assert_eq!(Frame::parse(&other).err(), Some(why));
    }
}

/// A network that loses, copies, reorders and damages, and a side that is started again now and then. Packets arrive
/// as they were sent or not at all, at most once, and when the network is well again everything is.
#[test]
fn a_bad_network() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut pair = Pair::new();
        let mut late: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut starts = 0;
        let mut received = [0_u64; 2];
        for round in 0..2000_u64 {
            pair.now += Duration::from_millis(random.next() % 40);
            if random.next().is_multiple_of(400) {
                starts += 1;
                let end = (random.next() % 2) as usize;
                pair.sides[end] = side(end as u8, random.next(), pair.now);
            }
            let from = (random.next() % 2) as usize;
            let mut packet = round.to_be_bytes().to_vec();
            packet.resize(8 + (random.next() % 4000) as usize, round as u8);
            pair.send(from, &packet);
            for i in 0..2 {
                pair.sides[i].tick(pair.now);
                pair.sides[i].tell_taken();
                late.extend(sent(&mut pair.sides[i]).into_iter().map(|d| (1 - i, d)));
            }
            for _ in 0..late.len() {
                let place = (random.next() % late.len() as u64) as usize;
                match random.next() % 10 {
                    0 => drop(late.swap_remove(place)),
                    1 => pair.sides[late[place].0].receive(pair.now, &late[place].1),
                    2 => {
                        let (to, mut datagram) = late.swap_remove(place);
                        let at = (random.next() % datagram.len() as u64) as usize;
                        datagram[at] ^= 1 << (random.next() % 8);
                        pair.sides[to].receive(pair.now, &datagram);
                    }
                    3 => {}
                    _ => {
                        let (to, datagram) = late.remove(0);
                        pair.sides[to].receive(pair.now, &datagram);
                    }
                }
                if late.is_empty() {
                    break;
                }
            }
            for (i, side) in pair.sides.iter_mut().enumerate() {
                for event in events(side) {
                    let Event::Packet(packet) = event else { continue };
                    let number = u64::from_be_bytes(packet[..8].try_into().unwrap());
                    assert!(packet[8..].iter().all(|b| *b == number as u8), "seed {seed}");
                    received[i] += 1;
                }
            }
        }
        assert!(received.iter().all(|n| *n > 200), "seed {seed}: {received:?}, {starts} starts");
        assert!(received.iter().sum::<u64>() <= 2000);
        pair.pass(2 * TIMEOUT);
        pair.sides.iter_mut().for_each(|side| drop(events(side)));
        pair.send(0, b"well");
        pair.exchange();
        assert_eq!(events(&mut pair.sides[1]), [Event::Packet(b"well".to_vec())], "seed {seed}");
    }
}

/// Bytes that somebody makes who has the key, and bytes of somebody who does not: nothing panics, nothing grows.
#[test]
fn random_input() {
    let mut random = Random(42);
    let mut pair = Pair::joined();
    let keys = terms(0).key.hello(7, 0);
    for _ in 0..20_000 {
        let len = (random.next() % 100) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        if !random.next().is_multiple_of(4) {
            let mut frame = b"HCAT\x01".to_vec();
            frame.extend([(random.next() % 8) as u8, 0, 7]);
            frame.extend(bytes);
            bytes = frame;
            let tag = keys.tag(&bytes);
            bytes.extend(tag);
        }
        pair.sides[1].receive(pair.now, &bytes);
        assert!(sent(&mut pair.sides[1]).len() <= 1);
        assert!(events(&mut pair.sides[1]).is_empty());
    }
    assert!(pair.sides[1].is_joined());
}
