//! How an Ethernet switch queues: which priorities share its memory how, which of them lose nothing, and when congestion is told.
//!
//! The memory is one, less what is kept apart for what still comes from peers that were asked to wait (headroom). Of the rest
//!
//! - the queue of a port that may lose frames takes up to `alpha` times what is free,
//! - what came by a port in a priority that loses nothing takes up to `alpha` times what is free before the port's peer is asked to
//!   wait, and goes into the headroom from then on. Queues of ports have no limit of their own for it.
//!
//! Source: A. Choudhury, E. Hahne, "Dynamic Queue Length Thresholds", IEEE/ACM ToN 1998; Y. Zhu et al., "Congestion Control for
//! Large-Scale RDMA Deployments", SIGCOMM 2015, sections 3 and 4 (thresholds, headroom, marking); IEEE 802.1Q annex N (headroom);
//! S. Floyd, V. Jacobson, "Random Early Detection", 1993; RFC 3168 (ECN).

use super::pause::{ALL, Fullness};
use crate::ground::rate::LineRate;
use crate::ground::time::Ps;
use crate::link_layer::MAX_FRAME;
use crate::link_layer::eth::pause::PRIORITIES;
use crate::link_layer::ib::Tables;

/// A peer is let go on when so many bytes less are taken than those at which it was stopped: two frames (SIGCOMM 2015, section 4).
const HYSTERESIS: usize = 2 * 4096;
/// Of a port's headroom: frames that have begun at either end, and one that waits behind the peer's own pause.
const FRAMES: usize = 3;
/// What else a peer may send until it has taken note of being stopped: 802.1Q annex N has 614.4 ns for 10 Gb/s; as many bytes as
/// that here at any rate, an estimate.
const RESPONSE: usize = 3840;

/// When a switch marks packets whose senders can be told of congestion (ECT): with a probability that rises with the length of the
/// queue, in bytes, that they go into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Red {
    /// Up to here none is marked.
    pub kmin: usize,
    /// From here on all are marked.
    pub kmax: usize,
    /// How many are just before that: 0 to 1.
    pub pmax: f64,
}

impl Red {
    /// How probable it is that a packet is marked that comes to a queue of so many bytes.
    pub(super) fn probability(&self, queue: usize) -> f64 {
        let (over, range) = (queue.saturating_sub(self.kmin), self.kmax.saturating_sub(self.kmin));
        match () {
            () if over == 0 => 0.0,
            () if over >= range => 1.0,
            () => self.pmax * over as f64 / range as f64,
        }
    }
}

/// What a switch does with frames of a priority.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriorityQueue {
    /// Which part of the free memory a queue may take, or, where nothing is lost, what came by a port.
    pub alpha: f64,
    /// Nothing is lost: peers are asked to wait (PFC).
    pub lossless: bool,
    /// Congestion is told.
    pub ecn: Option<Red>,
    /// What share of a link it has, beside others that have one, in units of 64 bytes a turn; `None`: it goes before all that have.
    /// With no share anywhere, all take turns.
    pub weight: Option<u8>,
}

impl PriorityQueue {
    /// That of a priority that may lose frames, the default of switches of the adapter's time.
    pub const LOSSY_ALPHA: f64 = 1.0;
    /// That of one that loses none: 1/8 (SONiC's `pg_lossless` profiles for such switches, `dynamic_th` -3).
    pub const LOSSLESS_ALPHA: f64 = 0.125;
}

impl Default for PriorityQueue {
    fn default() -> Self {
        Self { alpha: Self::LOSSY_ALPHA, lossless: false, ecn: None, weight: None }
    }
}

/// How an Ethernet switch queues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queueing {
    /// Memory for frames, in bytes.
    pub buffer: usize,
    /// The priority of an IP packet is that of its DSCP, the upper three bits; otherwise, that of its tag.
    pub by_dscp: bool,
    /// Nothing is lost of any priority: peers are asked to wait with everything (PAUSE).
    pub pause: bool,
    /// Bytes that a port keeps apart for each priority that loses nothing; `None`: as its cable needs.
    pub headroom: Option<usize>,
    /// By priority.
    pub priorities: [PriorityQueue; PRIORITIES],
}

impl Default for Queueing {
    /// As switches come: frames are lost where there is no room, nobody is told. 16 MiB: an estimate, as of switches of the
    /// adapter's time with 32 ports of 100 Gb/s.
    fn default() -> Self {
        Self {
            buffer: 16 << 20,
            by_dscp: false,
            pause: false,
            headroom: None,
            priorities: [PriorityQueue::default(); PRIORITIES],
        }
    }
}

impl Queueing {
    /// Priorities that lose nothing and are stopped one by one, as bits.
    pub(super) fn pfc(&self) -> u8 {
        let bits = self.priorities.iter().rev().fold(0, |bits, of| bits << 1 | u8::from(of.lossless));
        if self.pause { 0 } else { bits }
    }

    fn is_lossless(&self, lane: u8) -> bool {
        self.pause || self.pfc() >> (lane & 7) & 1 == 1
    }

    pub(super) fn of(&self, lane: u8) -> PriorityQueue {
        self.priorities.get(usize::from(lane)).copied().unwrap_or_default()
    }

    /// Headroom of a priority that a cable needs: what a peer sends until it stops.
    pub(super) fn headroom(&self, line: LineRate, there_and_back: Ps) -> usize {
        const MANY: usize = 1 << 20;
        let fly = u128::from(there_and_back.0) * MANY as u128 / u128::from(line.serialisation(MANY).0.max(1));
        let fly = usize::try_from(fly).unwrap_or(usize::MAX);
        self.headroom.unwrap_or(fly.saturating_add(FRAMES * MAX_FRAME + RESPONSE))
    }

    /// Whose turn it is at a port.
    pub(super) fn shares(&self) -> Tables {
        let mut tables = Tables { high_limit: u8::MAX, ..Tables::default() };
        let shared = self.priorities.iter().any(|of| of.weight.is_some());
        for (lane, of) in (0..).zip(&self.priorities).filter(|_| shared) {
            let (table, weight) = match of.weight {
                Some(weight) => (&mut tables.low, weight.max(1)),
                None => (&mut tables.high, u8::MAX),
            };
            if let Some(entry) = table.get_mut(usize::from(lane)) {
                *entry = (lane, weight);
            }
        }
        tables
    }
}

/// What a frame takes of the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    bytes: usize,
    /// Of which port's and priority's; of none where it may be lost.
    by: Option<(u8, u8)>,
    /// It is in the headroom.
    spare: bool,
}

impl Taken {
    /// Its port's peer is asked to wait before there is no room.
    pub(super) fn is_lossless(&self) -> bool {
        self.by.is_some()
    }
}

/// What came by a port and is still there, by priority.
#[derive(Debug, Clone, Copy, Default)]
struct PortBuffer {
    taken: [usize; PRIORITIES],
    spare: [usize; PRIORITIES],
    /// Of each priority.
    headroom: usize,
}

/// The memory of a switch.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) how: Queueing,
    /// Without headroom.
    shared: usize,
    used: usize,
    ports: Vec<PortBuffer>,
}

impl Buffer {
    /// Of a switch with so many ports, from 1 on.
    pub(super) fn new(how: Queueing, ports: u8) -> Self {
        let ports = vec![PortBuffer::default(); usize::from(ports) + 1];
        Self { how, shared: how.buffer, used: 0, ports }
    }

    /// A cable has trained at a port, perhaps not for the first time.
    pub(super) fn plug(&mut self, port: u8, line: LineRate, there_and_back: Ps) {
        let classes = if self.how.pause { 1 } else { self.how.pfc().count_ones() as usize };
        let headroom = self.how.headroom(line, there_and_back);
        if let Some(port) = self.ports.get_mut(usize::from(port)) {
            port.headroom = headroom;
        }
        let all: usize = self.ports.iter().map(|port| port.headroom.saturating_mul(classes)).sum();
        self.shared = self.how.buffer.saturating_sub(all);
    }

    /// How much of the free memory one may take.
    fn threshold(&self, lane: u8) -> usize {
        let free = self.shared.saturating_sub(self.used);
        (free as f64 * self.how.of(lane).alpha) as usize
    }

    /// As which priority something counts: with PAUSE there is one.
    fn class(&self, lane: u8) -> u8 {
        if self.how.pause { 0 } else { lane }
    }

    /// Whether so many bytes of a priority may go to a port where `queue` bytes of it wait.
    pub(super) fn admits(&self, lane: u8, bytes: usize, queue: usize) -> bool {
        self.how.is_lossless(lane) || queue.saturating_add(bytes) <= self.threshold(lane)
    }

    /// A frame of a priority came by a port. `None`: there is no room for it.
    pub(super) fn take(&mut self, port: u8, lane: u8, bytes: usize) -> Option<Taken> {
        let class = self.class(lane);
        let most = self.threshold(class);
        if !self.how.is_lossless(lane) {
            let fits = self.used.saturating_add(bytes) <= self.shared;
            self.used += if fits { bytes } else { 0 };
            return fits.then_some(Taken { bytes, ..Taken::default() });
        }
        let free = self.shared.saturating_sub(self.used);
        let of = self.ports.get_mut(usize::from(port))?;
        let (taken, spare) = (of.taken.get_mut(usize::from(class))?, of.spare.get_mut(usize::from(class))?);
        let in_headroom = *spare > 0 || taken.saturating_add(bytes) > most.min(taken.saturating_add(free));
        match in_headroom {
            true if spare.saturating_add(bytes) > of.headroom => return None,
            true => *spare += bytes,
            false => (*taken, self.used) = (*taken + bytes, self.used + bytes),
        }
        Some(Taken { bytes, by: Some((port, class)), spare: in_headroom })
    }

    /// It has left.
    pub(super) fn give(&mut self, Taken { bytes, by, spare }: Taken) {
        if !spare {
            self.used = self.used.saturating_sub(bytes);
        }
        let Some((port, class)) = by else { return };
        let Some(of) = self.ports.get_mut(usize::from(port)) else { return };
        let place = if spare { &mut of.spare } else { &mut of.taken };
        if let Some(count) = place.get_mut(usize::from(class)) {
            *count = count.saturating_sub(bytes);
        }
    }

    /// How full it is with what came by a port.
    pub(super) fn fullness(&self, port: u8) -> Fullness {
        let mut fullness = Fullness::default();
        let Some(of) = self.ports.get(usize::from(port)) else { return fullness };
        for (lane, (taken, spare)) in (0..).zip(of.taken.into_iter().zip(of.spare)) {
            let bits = if self.how.pause { ALL } else { 1 << lane };
            let most = self.threshold(lane);
            if !self.how.is_lossless(lane) || (self.how.pause && lane > 0) {
                continue;
            }
            match () {
                () if spare > 0 || taken > most => fullness.full |= bits,
                () if taken <= most.saturating_sub(HYSTERESIS) => fullness.roomy |= bits,
                () => {}
            }
        }
        fullness
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::rate::LinkRate;

    fn line() -> LineRate {
        LineRate::new(LinkRate::Edr, 4).on_ethernet()
    }

    fn lossless(lanes: &[u8]) -> Queueing {
        let mut how = Queueing { buffer: 1_000_000, headroom: Some(10_000), ..Queueing::default() };
        for lane in lanes {
            let of = &mut how.priorities[usize::from(*lane)];
            (of.lossless, of.alpha) = (true, 0.5);
        }
        how
    }

    #[test]
    fn marks_rise_with_the_queue() {
        let red = Red { kmin: 100, kmax: 300, pmax: 0.1 };
        let all = [0, 100, 200, 299, 300, usize::MAX].map(|queue| red.probability(queue));
        assert!(all[0] == 0.0 && all[1] == 0.0 && (all[2] - 0.05).abs() < 1e-9);
        assert!(all[3] < 0.1 && all[4] == 1.0 && all[5] == 1.0);
        let step = Red { kmin: 50, kmax: 50, pmax: 0.0 };
        assert_eq!((step.probability(50), step.probability(51)), (0.0, 1.0));
    }

    #[test]
    fn a_queue_takes_a_part_of_what_is_free() {
        let mut b = Buffer::new(Queueing { buffer: 1000, ..Queueing::default() }, 2);
        assert!(!b.admits(0, 1000, 1) && b.admits(0, 1000, 0));
        let all = b.take(1, 0, 600).expect("room");
        assert!(!b.admits(0, 101, 300) && b.admits(0, 100, 300));
        assert_eq!(b.take(2, 0, 401), None);
        b.give(all);
        assert!(b.take(1, 5, 800).is_some() && b.fullness(1) == Fullness::default());
    }

    #[test]
    fn what_loses_nothing_stops_its_peer_and_has_headroom() {
        let mut b = Buffer::new(lossless(&[3]), 2);
        b.plug(1, line(), Ps::ZERO);
        b.plug(2, line(), Ps::ZERO);
        assert_eq!(b.shared, 980_000);
        let mut held = Vec::new();
        while b.fullness(1).full == 0 {
            held.push(b.take(1, 3, 1000).expect("room"));
        }
        // It has half of what is free: a third of all, and a frame.
        let taken: usize = held.iter().map(|h| h.bytes).sum();
        assert!((325_000..329_000).contains(&taken), "{taken}");
        assert_eq!(
            (b.fullness(1), b.fullness(2)),
            (Fullness { full: 8, roomy: 0 }, Fullness { full: 0, roomy: 8 })
        );
        // What still comes has room, up to the headroom; others have theirs.
        for _ in 0..9 {
            held.push(b.take(1, 3, 1000).expect("headroom"));
        }
        held.extend(b.take(1, 3, 1000));
        assert_eq!(b.take(1, 3, 1000), None, "ten thousand");
        assert!(b.admits(3, 1000, usize::MAX), "queues have no limit of their own");
        assert!(b.take(2, 3, 1000).is_some() && b.take(1, 0, 1000).is_some());
        while b.fullness(1).roomy == 0 {
            b.give(held.remove(0));
        }
        assert!(b.take(1, 3, 1000).is_some());
        held.drain(..).for_each(|h| b.give(h));
        assert!(b.ports[1].spare == [0; 8]);
    }

    #[test]
    fn with_pause_there_is_one_priority() {
        let mut b = Buffer::new(
            Queueing { pause: true, buffer: 10_000, headroom: Some(1000), ..Queueing::default() },
            1,
        );
        b.plug(1, line(), Ps::ZERO);
        assert_eq!(b.fullness(1), Fullness { full: 0, roomy: ALL });
        for lane in 0..5 {
            b.take(1, lane, 1000).expect("room");
        }
        assert_eq!(b.fullness(1), Fullness { full: ALL, roomy: 0 });
    }

    #[test]
    fn headroom_of_a_cable() {
        let how = Queueing::default();
        let (near, far) = (how.headroom(line(), Ps::from_us(1)), how.headroom(line(), Ps::from_us(11)));
        assert!((120_000..130_000).contains(&(far - near)), "10 us of 100 Gb/s");
    }

    #[test]
    fn shares_of_a_link() {
        assert_eq!(Queueing::default().shares(), Tables { high_limit: u8::MAX, ..Tables::default() });
        let mut how = Queueing::default();
        how.priorities[3].weight = Some(9);
        let tables = how.shares();
        assert_eq!((tables.low[3], tables.high[3], tables.high[6]), ((3, 9), (0, 0), (6, 255)));
    }
}
