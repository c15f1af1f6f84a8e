//! A cable between two ports: serialisation and propagation.

use crate::ground::epoch::Rebase;
use crate::ground::rate::LineRate;
use crate::ground::time::Ps;
use crate::link_layer::Packet;

use super::{Carrier, Delivery, End};

/// A full-duplex link: packets of one direction queue behind each other, the directions are independent.
///
/// A packet arrives when its *last* byte does: the receiving port checks the VCRC before it hands a
/// packet up. A port that forwards at the first bytes (cut-through, as switches do) can subtract
/// [`LineRate::serialisation`] and add that of the headers it waits for. Skip and idle sequences (below
/// 0.2 % of the symbols) and, for HDR, the decoder's latency are part of `delay`.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Per sending end: what its packets occupy.
    lines: [LineRate; 2],
    delay: Ps,
    /// Per sending end: when the lanes are free again.
    busy_until: [Ps; 2],
}

impl Cable {
    /// A cable with propagation time `delay`.
    pub const fn new(line: LineRate, delay: Ps) -> Self {
        Self { lines: [line; 2], delay, busy_until: [Ps::ZERO; 2] }
    }

    /// When end `from` could start to send.
    pub fn free_at(&self, from: End) -> Option<Ps> {
        self.busy_until.get(from).copied()
    }
}

impl Carrier for Cable {
    fn transmit(&mut self, now: Ps, from: End, packet: Packet, out: &mut Vec<Delivery>) {
        if let Some(at) = self.pass(now, from, packet.len()) {
            out.push(Delivery { at, end: 1 - from, packet });
        }
    }

    fn pass(&mut self, now: Ps, from: End, bytes: usize) -> Option<Ps> {
        let (line, busy_until) = (self.lines.get(from)?, self.busy_until.get_mut(from)?);
        *busy_until = now.max(*busy_until) + line.serialisation(bytes);
        Some(*busy_until + self.delay)
    }

    fn train(&mut self, end: End, line: LineRate) {
        if let Some(to) = self.lines.get_mut(end) {
            *to = line;
        }
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn rebase(&mut self, by: Ps) {
        let Self { lines: _, delay: _, busy_until } = self;
        busy_until.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::rate::LinkRate;

    fn packet(len: usize) -> Packet {
        Packet::from_bytes(vec![0; len])
    }

    #[test]
    fn a_direction_queues_and_the_other_does_not() {
        let line = LineRate::new(LinkRate::Edr, 4);
        let mut link = Cable::new(line, Ps::from_ns(5));
        let each = line.serialisation(98);
        let at = |link: &mut Cable, now, from| {
            let mut out = Vec::new();
            link.transmit(now, from, packet(98), &mut out);
            out.remove(0)
        };
        let arrivals = |link: &mut Cable, from| at(link, Ps(1000), from);
        let first = arrivals(&mut link, 0);
        assert_eq!((first.at, first.end), (Ps(1000) + each + Ps::from_ns(5), 1));
        assert_eq!(arrivals(&mut link, 0).at, first.at + each);
        let back = arrivals(&mut link, 1);
        assert_eq!((back.at, back.end), (first.at, 0));
        // An idle link starts at once again.
        let later = Ps::from_us(1);
        assert_eq!(at(&mut link, later, 0).at, later + each + Ps::from_ns(5));
        // A quarter of the lanes, four times as long.
        link.train(0, LineRate::new(LinkRate::Edr, 1));
        let later = Ps::from_us(2);
        assert_eq!(at(&mut link, later, 0).at, later + each.times(4) + Ps::from_ns(5));
        assert_eq!(at(&mut link, later, 1).at, later + each + Ps::from_ns(5), "the other end has not");
    }

    #[test]
    fn there_is_no_third_end() {
        let mut link = Cable::new(LineRate::new(LinkRate::Edr, 4), Ps::ZERO);
        let mut out = Vec::new();
        link.transmit(Ps::ZERO, 2, packet(98), &mut out);
        assert_eq!(out, []);
    }
}
