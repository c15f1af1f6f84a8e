//! A carrier that goes wrong now and then, the same way for the same seed. The directions don't know of each other.

use crate::ground::epoch::Rebase;
use crate::ground::random::{SplitMix64, mix};
use crate::ground::time::Ps;
use crate::link_layer::Packet;

use super::{Carrier, Delivery, End, LineRate};

/// What goes wrong, as probabilities per packet (0.0..=1.0; anything else counts as the nearest).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Faults {
    /// The packet never arrives.
    pub loss: f64,
    /// A second copy arrives right behind the first.
    pub duplicate: f64,
    /// The packet arrives late by up to `delay_by`; packets behind it stay behind it.
    pub delay: f64,
    /// The packet arrives late by up to `delay_by`; packets behind it may overtake it.
    pub reorder: f64,
    /// One random bit is flipped.
    pub corrupt: f64,
    /// The longest extra delay of a delayed or reordered packet.
    pub delay_by: Ps,
}

impl Faults {
    /// Only loss.
    pub fn loss(probability: f64) -> Self {
        Self { loss: probability, ..Self::default() }
    }

    /// Whether nothing ever goes wrong.
    pub fn is_none(&self) -> bool {
        let Self { loss, duplicate, delay, reorder, corrupt, delay_by: _ } = self;
        [loss, duplicate, delay, reorder, corrupt].iter().all(|p| **p <= 0.0)
    }
}

/// What went wrong so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Packets handed in.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets delayed in order.
    pub delayed: u64,
    /// Packets delayed out of order.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
}

/// Wraps a carrier and injects faults behind it.
#[derive(Clone, Debug)]
pub struct FaultInjector<C> {
    inner: C,
    faults: Faults,
    /// Nothing ever goes wrong.
    quiet: bool,
    /// Per sending end, so that what goes wrong in one direction does not depend on the other.
    random: [SplitMix64; 2],
    counts: FaultCounts,
    /// Per receiving end: nothing that keeps its order arrives before this.
    not_before: [Ps; 2],
}

impl<C: Carrier> FaultInjector<C> {
    /// Wraps `inner`. The same `faults`, `seed` and packets give the same faults.
    pub fn new(inner: C, faults: Faults, seed: u64) -> Self {
        let (random, quiet) = ([SplitMix64(seed), SplitMix64(mix(!seed))], faults.is_none());
        let counts =
            FaultCounts { packets: 0, lost: 0, duplicated: 0, delayed: 0, reordered: 0, corrupted: 0 };
        Self { inner, faults, quiet, random, counts, not_before: [Ps::ZERO; 2] }
    }

    /// What went wrong so far.
    pub const fn counts(&self) -> FaultCounts {
        self.counts
    }
}

impl<C: Carrier> Carrier for FaultInjector<C> {
    fn transmit(&mut self, now: Ps, from: End, packet: Packet, out: &mut Vec<Delivery>) {
        let before = out.len();
        self.inner.transmit(now, from, packet, out);
        if self.quiet {
            self.counts.packets += out.len().saturating_sub(before) as u64;
            return;
        }
        let Some(random) = self.random.get_mut(from) else { return };
        for mut delivery in out.split_off(before) {
            self.counts.packets += 1;
            // Each packet takes the same number of decisions, so that a changed probability of one
            // fault doesn't reshuffle the others.
            let lost = random.chance(self.faults.loss);
            let corrupt = random.chance(self.faults.corrupt);
            let delayed = random.chance(self.faults.delay);
            let reordered = random.chance(self.faults.reorder);
            let duplicated = random.chance(self.faults.duplicate);
            let extra = Ps(random.below(self.faults.delay_by.0.saturating_add(1)));
            let bit = random.below(delivery.packet.len() as u64 * 8) as usize;
            if lost {
                self.counts.lost += 1;
                continue;
            }
            if corrupt && !delivery.packet.is_empty() {
                self.counts.corrupted += 1;
                delivery.packet = flip(delivery.packet, bit);
            }
            if reordered {
                self.counts.reordered += 1;
                delivery.at += extra;
            } else {
                if delayed {
                    self.counts.delayed += 1;
                    delivery.at += extra;
                }
                if let Some(floor) = self.not_before.get_mut(delivery.end) {
                    delivery.at = delivery.at.max(*floor);
                    *floor = delivery.at;
                }
            }
            if duplicated {
                self.counts.duplicated += 1;
                out.push(delivery.clone());
            }
            out.push(delivery);
        }
    }

    fn train(&mut self, end: End, line: LineRate) {
        self.inner.train(end, line);
    }

    fn is_plain(&self) -> bool {
        self.quiet && self.inner.is_plain()
    }

    fn pass(&mut self, now: Ps, from: End, bytes: usize) -> Option<Ps> {
        self.counts.packets += 1;
        self.inner.pass(now, from, bytes)
    }

    fn rebase(&mut self, by: Ps) {
        let Self { inner, faults: _, quiet: _, random: _, counts: _, not_before } = self;
        inner.rebase(by);
        not_before.rebase(by);
    }
}

/// The packet with one bit inverted.
fn flip(packet: Packet, bit: usize) -> Packet {
    packet.with_changed_bytes(|bytes| {
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Cable, LinkRate};
    use super::*;
    use crate::link_layer::Path;
    use crate::wire::Repr;

    const PACKETS: usize = 10_000;

    fn run(faults: Faults, seed: u64) -> (FaultCounts, Vec<Delivery>) {
        let mut carrier =
            FaultInjector::new(Cable::new(LineRate::new(LinkRate::Edr, 4), Ps::from_ns(5)), faults, seed);
        let mut out = Vec::new();
        for i in 0..PACKETS {
            let psn = hca_spec::ids::Psn::new(i as u32);
            let packet = Packet::build_empty(&Path::default(), &Repr { psn, ..Repr::default() });
            carrier.transmit(Ps(i as u64 * 10_000), i % 2, packet, &mut out);
        }
        (carrier.counts(), out)
    }

    fn all() -> Faults {
        let p = 0.05;
        Faults { loss: p, duplicate: p, delay: p, reorder: p, corrupt: p, delay_by: Ps::from_us(1) }
    }

    /// Per end, how often a packet arrives before one that was sent earlier.
    fn overtakings(deliveries: &[Delivery]) -> usize {
        let mut last = [Ps::ZERO; 2];
        let mut count = 0;
        for d in deliveries {
            count += usize::from(d.at < last[d.end]);
            last[d.end] = last[d.end].max(d.at);
        }
        count
    }

    #[test]
    fn without_faults_the_carrier_is_unchanged() {
        let (counts, out) = run(Faults::default(), 1);
        assert_eq!(counts, FaultCounts { packets: PACKETS as u64, ..FaultCounts::default() });
        let mut plain = Cable::new(LineRate::new(LinkRate::Edr, 4), Ps::from_ns(5));
        let mut expected = Vec::new();
        for (i, delivery) in out.iter().enumerate() {
            plain.transmit(Ps(i as u64 * 10_000), i % 2, delivery.packet.clone(), &mut expected);
        }
        assert_eq!(out, expected);
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        assert_eq!(run(all(), 7), run(all(), 7));
        assert_ne!(run(all(), 7).1, run(all(), 8).1);
    }

    #[test]
    fn each_fault_happens_as_often_as_asked() {
        let (counts, out) = run(all(), 3);
        let about = |n: u64, of: u64| (of * 4 / 100..of * 6 / 100).contains(&n);
        let arrived = counts.packets - counts.lost;
        assert!(about(counts.lost, counts.packets), "{counts:?}");
        for n in [counts.duplicated, counts.reordered, counts.corrupted] {
            assert!(about(n, arrived), "{counts:?}");
        }
        assert!(about(counts.delayed, arrived - counts.reordered), "{counts:?}");
        assert_eq!(out.len() as u64, arrived + counts.duplicated);
    }

    #[test]
    fn loss_at_the_ends_of_the_range() {
        assert_eq!(run(Faults::loss(1.0), 1).1, []);
        assert_eq!(run(Faults::loss(-1.0), 1).1.len(), PACKETS);
        assert_eq!(run(Faults::loss(f64::NAN), 1).1.len(), PACKETS);
        assert!(Faults::loss(0.0).is_none() && !Faults::loss(0.1).is_none());
    }

    #[test]
    fn corrupted_packets_are_noticed() {
        let (counts, out) = run(Faults { corrupt: 0.5, ..Faults::default() }, 5);
        let bad = out.iter().filter(|d| d.packet.parse().is_err()).count() as u64;
        assert_eq!(bad, counts.corrupted);
        assert!(bad > 0);
    }

    #[test]
    fn the_directions_are_independent() {
        let run = |ends: &[usize]| {
            let cable = Cable::new(LineRate::new(LinkRate::Edr, 4), Ps::from_ns(5));
            let mut carrier = FaultInjector::new(cable, all(), 3);
            let mut out = Vec::new();
            for i in 0..1000 {
                for from in ends {
                    let packet = Packet::build_empty(&Path::default(), &Repr::default());
                    carrier.transmit(Ps(i * 10_000), *from, packet, &mut out);
                }
            }
            out
        };
        let both = run(&[0, 1]);
        for from in [0, 1] {
            let part: Vec<_> = both.iter().filter(|d| d.end == 1 - from).cloned().collect();
            assert_eq!(run(&[from]), part);
        }
        let at = |end| both.iter().filter(|d| d.end == end).map(|d| d.at).collect::<Vec<_>>();
        assert_ne!(at(0), at(1));
    }

    #[test]
    fn only_reordering_changes_the_order() {
        let late = Ps::from_us(1);
        let delay = run(Faults { delay: 0.2, delay_by: late, ..Faults::default() }, 9);
        assert!(delay.0.delayed > 0);
        assert_eq!(overtakings(&delay.1), 0);
        let reorder = run(Faults { reorder: 0.2, delay_by: late, ..Faults::default() }, 9);
        assert!(overtakings(&reorder.1) > 0);
    }
}
