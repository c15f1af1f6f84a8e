//! All-reduce: every host has a vector, and at the end all have the sum of them.
//!
//! Around a ring a vector has as many chunks as there are hosts. Each passes a chunk on with its own share added, `n - 1` times, by which
//! one chunk of each host is the sum; `n - 1` times more, and all have all of them (Patarasuk and Yuan 2009). Up a binary tree each host
//! waits for a slice of both children, adds its own and passes it to its parent; from the root sums go down the same way, one slice
//! behind the other. What a host adds to lies in memory that its peers write: no peer is so far ahead that it needs a place which is
//! still used, since the sum of a round has a share of everybody.
//!
//! Elements are numbers of 32 bits, in little-endian order, and sums are modulo 2^32: exact in whatever order.

use hca_driver::{Dma, SendOp};

use super::connect::{Connected, Needs, start, wait_for};
use super::memory::HostBus;
use super::outcome::Account;
use super::plan::{Operation, Pattern, Plan, parent};
use crate::Error;

/// Bytes of an element.
const ELEMENT: usize = 4;
/// Bytes that a tree passes on as soon as they are there. An estimate: large beside what a message costs.
const SLICE: usize = 64 << 10;
/// Messages of a connection that are under way at most, each way.
pub(super) const WINDOW: usize = 64;
/// Where sums are, and the one or two places for what is to be added.
const AREAS: usize = 3;

/// How a vector is cut.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    each: usize,
    all: usize,
}

impl Pieces {
    fn of(plan: &Plan) -> Self {
        if plan.pattern == Pattern::RingAllReduce {
            // All are equal: behind the last element there may be some more, which are added as well.
            let hosts = plan.addresses.len().max(1);
            let each = plan.size.div_ceil(ELEMENT).div_ceil(hosts) * ELEMENT;
            return Self { each, all: each * hosts };
        }
        let all = plan.size.next_multiple_of(ELEMENT);
        Self { each: SLICE.min(all), all }
    }

    fn count(self) -> usize {
        self.all.div_ceil(self.each.max(1))
    }

    /// Offset and length of one, in an area.
    fn get(self, area: usize, piece: usize) -> (usize, usize) {
        let start = piece * self.each;
        (area * self.all + start, self.each.min(self.all.saturating_sub(start)))
    }
}

/// Messages from one host to another, in a round.
fn count(plan: &Plan, from: usize, to: usize) -> usize {
    let all = plan.addresses.len();
    match plan.pattern {
        Pattern::RingAllReduce if plan.sends(from, to) => 2 * (all - 1),
        Pattern::TreeAllReduce if plan.sends(from, to) => Pieces::of(plan).count(),
        _ => 0,
    }
}

/// The piece that a host sends as its message `number` of a round.
fn piece(plan: &Plan, from: usize, number: usize) -> usize {
    let all = plan.addresses.len().max(1);
    match plan.pattern {
        Pattern::RingAllReduce => (from + 2 * all - number) % all,
        _ => number,
    }
}

/// Where that message is at its receiver: sums are in area 0, others hold what is to be added.
fn area(plan: &Plan, from: usize, to: usize, number: usize) -> usize {
    match plan.pattern {
        Pattern::RingAllReduce => usize::from(number + 1 < plan.addresses.len()),
        _ if parent(to) == Some(from) => 0,
        _ => 1 + (from + 1) % 2,
    }
}

/// Whether a host can send a message of the round: `handled` says how many it has taken, and added, of a peer.
fn may_send(plan: &Plan, me: usize, to: usize, number: usize, handled: impl Fn(usize) -> usize) -> bool {
    let all = plan.addresses.len();
    if plan.pattern == Pattern::RingAllReduce {
        return handled((me + all - 1) % all) >= number;
    }
    match parent(me) {
        Some(parent) if parent != to => handled(parent) > number,
        _ => [2 * me + 1, 2 * me + 2].into_iter().filter(|child| *child < all).all(|c| handled(c) > number),
    }
}

/// An element of a host's vector is `share * (host + 1) + base`, modulo 2^32, with these two; the share is odd, so that no two hosts
/// have the same.
fn terms(round: usize, element: usize) -> (u32, u32) {
    // SplitMix64.
    let mut x = ((round as u64) << 32 | element as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    (x as u32 | 1, (x >> 32) as u32)
}

fn own(host: usize, round: usize, element: usize) -> u32 {
    let (share, base) = terms(round, element);
    share.wrapping_mul(host as u32 + 1).wrapping_add(base)
}

fn sum(hosts: usize, round: usize, element: usize) -> u32 {
    let (share, base) = terms(round, element);
    let shares = (hosts as u64 * (hosts as u64 + 1) / 2) as u32;
    share.wrapping_mul(shares).wrapping_add(base.wrapping_mul(hosts as u32))
}

/// Adds elements to others.
fn add(to: &mut [u8], more: &[u8]) {
    for (to, more) in to.chunks_exact_mut(ELEMENT).zip(more.chunks_exact(ELEMENT)) {
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let sum = word(to).wrapping_add(word(more));
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

/// The first element of a vector that is not the sum.
fn wrong(plan: &Plan, round: usize, vector: &[u8]) -> Option<usize> {
    let hosts = plan.addresses.len();
    let right = |(element, bytes): (usize, &[u8])| *bytes == sum(hosts, round, element).to_le_bytes();
    vector.chunks(ELEMENT).enumerate().position(|element| !right(element))
}

/// What a host needs.
pub(super) fn needs(plan: &Plan, me: usize) -> Needs {
    let peers = plan.peers(me).len();
    let data = (AREAS * Pieces::of(plan).all).max(64);
    Needs { data, slots: WINDOW, completions: [peers * WINDOW; 2] }
}

/// What goes to and comes from a peer: messages of all rounds, but for the first two, which are of one.
struct Lane {
    peer: usize,
    out: usize,
    inward: usize,
    sent: usize,
    acknowledged: usize,
    awaited: usize,
    came: usize,
    handled: usize,
}

struct Host<'a> {
    plan: &'a Plan,
    me: usize,
    pieces: Pieces,
    connected: Connected<'a>,
    lanes: Vec<Lane>,
}

/// Runs it.
///
/// # Errors
/// A command failed, or a sum is wrong.
pub(super) fn run(bus: HostBus<'_>, plan: &Plan, me: usize, account: &mut Account) -> Result<(), Error> {
    let mut connected = Connected::open(bus, plan, me, needs(plan, me))?;
    connected.connect(plan, me)?;
    let lane = |peer| {
        let (out, inward) = (count(plan, me, peer), count(plan, peer, me));
        Lane { peer, out, inward, sent: 0, acknowledged: 0, awaited: 0, came: 0, handled: 0 }
    };
    let lanes = plan.peers(me).into_iter().map(lane).collect();
    let mut host = Host { plan, me, pieces: Pieces::of(plan), connected, lanes };
    for lane in 0..host.lanes.len() {
        (0..WINDOW).try_for_each(|_| host.await_one(lane))?;
    }
    start(&mut host.connected.hca, plan)?;
    (0..plan.messages).try_for_each(|round| host.round(round, account))
}

impl Host<'_> {
    /// Posts the next receive of a lane, if there is one.
    fn await_one(&mut self, lane: usize) -> Result<(), Error> {
        let Self { plan, me, pieces, connected, lanes } = self;
        let Some(lane) = lanes.get_mut(lane) else { return Ok(()) };
        if lane.awaited < lane.inward * plan.messages {
            let number = lane.awaited % lane.inward;
            let place = pieces.get(area(plan, lane.peer, *me, number), piece(plan, lane.peer, number));
            connected.post_recv(lane.peer, lane.awaited as u64, place)?;
            lane.awaited += 1;
        }
        Ok(())
    }

    fn round(&mut self, round: usize, account: &mut Account) -> Result<(), Error> {
        let elements = 0..self.pieces.all / ELEMENT;
        let vector: Vec<u8> =
            elements.flat_map(|element| own(self.me, round, element).to_le_bytes()).collect();
        self.connected.memory.write(0, &vector);
        loop {
            self.take(account)?;
            while self.handle(round, account)? | self.send(round)? {}
            let done = |lane: &Lane| {
                let (out, inward) = ((round + 1) * lane.out, (round + 1) * lane.inward);
                (out - lane.acknowledged, inward.saturating_sub(lane.handled))
            };
            let left = self.lanes.iter().map(done);
            let (sends, receives) = left.fold((0, 0), |sum, left| (sum.0 + left.0, sum.1 + left.1));
            if sends == 0 && receives == 0 {
                break;
            }
            wait_for(&mut self.connected.hca, sends, receives)?;
        }
        let wrong = self.connected.memory.look(0, self.pieces.all, |vector| wrong(self.plan, round, vector));
        match wrong {
            Some(element) => Err(Error::new(format!("round {round}: element {element} is not the sum"))),
            None => Ok(()),
        }
    }

    fn lane(&mut self, peer: usize) -> Result<(usize, &mut Lane), Error> {
        let found = self.lanes.iter_mut().enumerate().find(|(_, lane)| lane.peer == peer);
        found.ok_or(Error::new("a completion of nobody's"))
    }

    /// Takes completions.
    fn take(&mut self, account: &mut Account) -> Result<(), Error> {
        let now = self.connected.hca.bus_mut().turns().now();
        while let Some(done) = self.connected.sends.poll() {
            account.note(now, &done);
            let (peer, number) = self.connected.retire(&done)?;
            let (_, lane) = self.lane(peer)?;
            if lane.acknowledged as u64 != number || lane.acknowledged >= lane.sent {
                return Err(Error::new(format!("send {number} to host {peer} completed out of order")));
            }
            lane.acknowledged += 1;
        }
        while let Some(done) = self.connected.receives.poll() {
            account.note(now, &done);
            let (peer, number) = self.connected.retire(&done)?;
            let (place, lane) = self.lane(peer)?;
            if lane.came as u64 != number {
                return Err(Error::new(format!("message {number} of host {peer} came out of order")));
            }
            lane.came += 1;
            let of_round = number as usize % lane.inward.max(1);
            let (_, len) = self.pieces.get(0, piece(self.plan, peer, of_round));
            if done.byte_len as usize != len {
                let words = format!("{} bytes of host {peer} came instead of {len}", done.byte_len);
                return Err(Error::new(words));
            }
            self.await_one(place)?;
        }
        Ok(())
    }

    /// Adds what has come in this round. Returns whether something has.
    fn handle(&mut self, round: usize, account: &mut Account) -> Result<bool, Error> {
        let Self { plan, me, pieces, connected, lanes } = self;
        let mut found = false;
        for lane in lanes.iter_mut() {
            while lane.handled < lane.came.min((round + 1) * lane.inward) {
                let number = lane.handled % lane.inward;
                let piece = piece(plan, lane.peer, number);
                let (sums, len) = pieces.get(0, piece);
                let area = area(plan, lane.peer, *me, number);
                if area > 0 {
                    let [mut to, mut more] = [vec![0; len], vec![0; len]];
                    connected.memory.read(sums, &mut to);
                    connected.memory.read(pieces.get(area, piece).0, &mut more);
                    add(&mut to, &more);
                    connected.memory.write(sums, &to);
                }
                lane.handled += 1;
                account.take(len);
                found = true;
            }
        }
        Ok(found)
    }

    /// Sends what can be sent. Returns whether something was.
    fn send(&mut self, round: usize) -> Result<bool, Error> {
        let Self { plan, me, pieces, connected, lanes } = self;
        let mut found = false;
        for place in 0..lanes.len() {
            let handled = |peer| {
                let lane = lanes.iter().find(|lane| lane.peer == peer);
                lane.map_or(0, |lane| lane.handled.saturating_sub(round * lane.inward))
            };
            let Some(lane) = lanes.get(place) else { continue };
            let (mut sent, room) = (lane.sent, lane.acknowledged + WINDOW);
            while sent < room.min((round + 1) * lane.out) {
                let number = sent % lane.out;
                if !may_send(plan, *me, lane.peer, number, handled) {
                    break;
                }
                let piece = piece(plan, *me, number);
                let op = match plan.operation {
                    Operation::Write => {
                        let (there, _) = pieces.get(area(plan, *me, lane.peer, number), piece);
                        let (address, rkey) = (connected.at(there), connected.key);
                        SendOp::Write { address, rkey, imm: Some(number as u32) }
                    }
                    _ => SendOp::Send { imm: None },
                };
                connected.post_send(lane.peer, sent as u64, op, pieces.get(0, piece))?;
                sent += 1;
                found = true;
            }
            if let Some(lane) = lanes.get_mut(place) {
                lane.sent = sent;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use hca_spec::ids::Lid;

    use super::*;
    use crate::cluster::plan::tests::plan;

    /// Who adds what is said by the same rules as in [`Host`], but messages are copies, some of which are late.
    fn all_reduce(pattern: Pattern, hosts: usize, size: usize, late: usize) {
        let plan = Plan {
            pattern,
            size,
            ..plan((1..=hosts).map(|lid| crate::cluster::Address::Lid(Lid(lid as u16))))
        };
        let pieces = Pieces::of(&plan);
        let elements = pieces.all / ELEMENT;
        let mut memory: Vec<Vec<u8>> = (0..hosts)
            .map(|host| {
                (0..elements).flat_map(|element| own(host, 5, element).to_le_bytes()).collect::<Vec<_>>()
            })
            .map(|vector| [vector, vec![0; (AREAS - 1) * pieces.all]].concat())
            .collect();
        let mut sent = vec![vec![0; hosts]; hosts];
        let mut handled = vec![vec![0; hosts]; hosts];
        let mut way: Vec<Vec<VecDeque<Vec<u8>>>> = vec![vec![VecDeque::new(); hosts]; hosts];
        for turn in 0.. {
            let mut found = false;
            for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
                let number = sent[from][to];
                if number < count(&plan, from, to)
                    && may_send(&plan, from, to, number, |peer| handled[from][peer])
                {
                    let (start, len) = pieces.get(0, piece(&plan, from, number));
                    way[from][to].push_back(memory[from][start..start + len].to_vec());
                    sent[from][to] += 1;
                    found = true;
                }
                found |= !way[from][to].is_empty();
                if (turn + from * to) % (late + 1) > 0 {
                    continue;
                }
                if let Some(message) = way[from][to].pop_front() {
                    let number = handled[to][from];
                    let (area, piece) = (area(&plan, from, to, number), piece(&plan, from, number));
                    let (start, len) = pieces.get(0, piece);
                    assert_eq!(message.len(), len);
                    match area {
                        0 => memory[to][start..start + len].copy_from_slice(&message),
                        _ => add(&mut memory[to][start..start + len], &message),
                    }
                    handled[to][from] += 1;
                }
            }
            if !found {
                break;
            }
        }
        for (host, memory) in memory.iter().enumerate() {
            assert_eq!(wrong(&plan, 5, &memory[..pieces.all]), None, "host {host} of {hosts}, {pattern:?}");
        }
    }

    #[test]
    fn everybody_has_the_sum() {
        for pattern in [Pattern::RingAllReduce, Pattern::TreeAllReduce] {
            for hosts in 1..12 {
                for size in [4, 100, 3 * SLICE + 8] {
                    all_reduce(pattern, hosts, size, hosts % 3);
                }
            }
        }
    }

    #[test]
    fn a_share_that_is_missing_or_there_twice_is_seen() {
        let plan = plan((1..=3).map(|lid| crate::cluster::Address::Lid(Lid(lid))));
        for shares in [&[0, 1][..], &[0, 1, 1], &[0, 0, 2], &[0, 1, 2, 2]] {
            let total = shares.iter().fold(0u32, |sum, host| sum.wrapping_add(own(*host, 1, 0)));
            assert_eq!(wrong(&plan, 1, &total.to_le_bytes()), Some(0), "{shares:?}");
        }
        let total = (0..3).fold(0u32, |sum, host| sum.wrapping_add(own(host, 1, 0)));
        assert_eq!(wrong(&plan, 1, &total.to_le_bytes()), None);
    }

    #[test]
    fn a_link_carries_what_the_bus_bandwidth_counts() {
        let hosts = 8;
        let plan = Plan {
            pattern: Pattern::RingAllReduce,
            size: hosts * 1000,
            ..plan((1..=hosts).map(|lid| crate::cluster::Address::Lid(Lid(lid as u16))))
        };
        let bytes = count(&plan, 0, 1) * Pieces::of(&plan).each;
        assert_eq!(bytes, 2 * (hosts - 1) * plan.size / hosts);
    }
}
