//! A fabric for tests: adapters around one point that forwards by destination LID.
//!
//! It is no model of a switch (no buffers, credits or management), just a way to join more than two
//! ports. Each adapter has a cable of its own; faults happen on the way down.

use super::Fault;
use crate::seeded::Random;
use hca_model::Ps;
use hca_model::link::{Cable, Carrier, Delivery, FaultInjector, Faults, LineRate, LinkRate};
use hca_model::link_layer::Packet;
use hca_spec::wire::{Bth, Lrh, VCRC_SIZE};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cables of the star: 4x EDR, one metre.
const RATE: LinkRate = LinkRate::Edr;
const WIDTH: u8 = 4;
const DELAY: Ps = Ps::from_ns(5);
/// Byte of the BTH that the ICRC does not cover (IBTA vol 1 7.8.1).
const BTH_UNCOVERED: usize = 4;

/// Packets that were spoilt and had to be refused.
pub(super) type Spoilt = Arc<AtomicU64>;

/// The fabric.
pub(super) struct Star {
    up: Vec<Cable>,
    down: Vec<FaultInjector<Cable>>,
    /// Probability that the middle flips a bit, and makes the VCRC right again.
    inside: f64,
    random: Random,
    spoilt: Spoilt,
}

impl Star {
    /// A star of `ends` adapters; the LID of end `i` is `i + 1`, as the built-in subnet manager gives them.
    pub(super) fn new(ends: usize, fault: Fault, faults: &Faults, inside: f64, seed: u64) -> (Self, Spoilt) {
        debug_assert!(fault != Fault::Inside || inside > 0.0);
        let link = || Cable::new(LineRate::new(RATE, WIDTH), DELAY);
        let mut random = Random::new(seed);
        let down = (0..ends).map(|_| FaultInjector::new(link(), faults.clone(), random.bits())).collect();
        let spoilt = Spoilt::default();
        let star = Self { up: vec![link(); ends], down, inside, random, spoilt: spoilt.clone() };
        (star, spoilt)
    }
}

impl Carrier for Star {
    fn transmit(&mut self, now: Ps, from: usize, packet: Packet, out: &mut Vec<Delivery>) {
        let Some(up) = self.up.get_mut(from) else { return };
        let mut middle = Vec::new();
        up.transmit(now, 0, packet, &mut middle);
        for middle in middle {
            let Some(to) = usize::from(middle.packet.ib().dlid.0).checked_sub(1) else { continue };
            let Some(down) = self.down.get_mut(to) else { continue };
            let mut packet = middle.packet;
            let draw = (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64;
            if draw < self.inside {
                packet = spoil(packet, &mut self.random);
            }
            let mut arriving = Vec::new();
            down.transmit(middle.at, 1, packet, &mut arriving);
            // Packets of ours are good by construction, so what does not parse was spoilt on the way.
            let bad = arriving.iter().filter(|d| d.packet.parse().is_err()).count();
            self.spoilt.fetch_add(bad as u64, Ordering::Relaxed);
            out.extend(arriving.into_iter().map(|d| Delivery { end: to, ..d }));
        }
    }
}

/// Flips a bit behind the LRH that the ICRC covers, and computes the VCRC anew.
fn spoil(packet: Packet, random: &mut Random) -> Packet {
    let mut bytes = packet.into_bytes();
    let covered = bytes.len().saturating_sub(VCRC_SIZE);
    // A GRH's variant fields are not covered: stay behind where one would end, if there is that much.
    let start = if covered > Lrh::SIZE + 40 + Bth::SIZE { Lrh::SIZE + 40 + Bth::SIZE } else { Lrh::SIZE };
    let mut at = start + random.below(covered.saturating_sub(start).max(1));
    if at == Lrh::SIZE + BTH_UNCOVERED {
        at += 1;
    }
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
    let vcrc = vcrc(bytes.get(..covered).unwrap_or_default());
    bytes.truncate(covered);
    bytes.extend_from_slice(&vcrc);
    Packet::from_bytes(bytes)
}

/// The variant CRC, bit by bit (IBTA vol 1 7.8.2): independent of the model's.
fn vcrc(bytes: &[u8]) -> [u8; VCRC_SIZE] {
    const REFLECTED_0X100B: u16 = 0xd008;
    let mut crc = 0xffff_u16;
    for byte in bytes {
        crc ^= u16::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { REFLECTED_0X100B } else { 0 };
        }
    }
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_model::link_layer::{Path, ib::Address};
    use hca_model::wire::{Malformed, Repr};
    use hca_spec::ids::Lid;

    /// What arrives of a packet.
    fn arrivals(star: &mut Star, from: usize, to: u16, payload: usize) -> Vec<Delivery> {
        let path = Path::from(Address::between(Lid(0), Lid(to)));
        let packet =
            Packet::build(&path, &Repr::default(), payload, |_| Ok::<(), ()>(())).expect("nothing to fail");
        let mut out = Vec::new();
        star.transmit(Ps::ZERO, from, packet, &mut out);
        out
    }

    #[test]
    fn forwards_by_lid() {
        let (mut star, _) = Star::new(3, Fault::Loss, &Faults::default(), 0.0, 1);
        for to in 0..3 {
            let arrivals = arrivals(&mut star, 1, to + 1, 100);
            assert_eq!(arrivals.iter().map(|d| d.end).collect::<Vec<_>>(), [usize::from(to)]);
        }
        assert_eq!(arrivals(&mut star, 1, 4, 0), []);
        assert_eq!(arrivals(&mut star, 1, 0, 0), []);
    }

    #[test]
    fn only_the_icrc_sees_what_the_middle_does() {
        let (mut star, spoilt) = Star::new(2, Fault::Inside, &Faults::default(), 1.0, 1);
        for i in 0..500 {
            let arrivals = arrivals(&mut star, 0, 2, i % 90);
            let parsed = arrivals[0].packet.parse();
            assert!(matches!(parsed, Err(Malformed::Icrc { .. })), "{i}: {parsed:?}");
        }
        assert_eq!(spoilt.load(Ordering::Relaxed), 500);
    }
}
