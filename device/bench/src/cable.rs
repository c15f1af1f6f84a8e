//! Cables by their rate alone, and a crossbar of them: what a scenario's adapters are joined by.
//!
//! The framing of a packet is part of a cable, so that a link of Ethernet takes as long as it should though the model's
//! packets have InfiniBand headers: its packets have an Ethernet header, an IP and a UDP header instead of an LRH and a
//! VCRC. A switch forwards at the head of a packet (cut-through).

use hca_model::Ps;
use hca_model::fabric::{Carrier, Delivery, End};
use hca_model::wire::Packet;
use hca_spec::ids::Lid;

use crate::scenario::LinkSpec;

/// Cables of one kind from each end to a crossbar; or, with two ends and no crossbar, one cable.
#[derive(Debug)]
pub struct Star {
    link: LinkSpec,
    /// Propagation on one cable.
    cable: Ps,
    /// Latency of the crossbar from input to output, if there is one.
    switch: Option<Ps>,
    /// LIDs of the ends.
    lids: Vec<Lid>,
    /// When each end's cable to the crossbar is free, and that from it.
    busy: Vec<(Ps, Ps)>,
}

impl Star {
    /// A star with an end for each of `lids`.
    pub fn new(link: LinkSpec, cable: Ps, switch: Option<Ps>, lids: Vec<Lid>) -> Self {
        let busy = vec![(Ps::ZERO, Ps::ZERO); lids.len()];
        Self { link, cable, switch, lids, busy }
    }

    /// How long a packet of `len` bytes (LRH to VCRC) occupies a cable.
    pub fn serialisation(&self, len: usize) -> Ps {
        let bits = (len as u64 + self.link.packet_extra) as f64 * 8.0;
        Ps((bits * 1e12 / self.link.bits_per_s).ceil() as u64)
    }
}

impl Carrier for Star {
    fn transmit(&mut self, now: Ps, from: End, packet: Packet) -> Vec<Delivery> {
        let time = self.serialisation(packet.len());
        let dlid = packet.dlid();
        let to = self.lids.iter().position(|l| *l == dlid).filter(|to| *to != from);
        let (Some(to), Some((out, _))) = (to, self.busy.get_mut(from)) else { return Vec::new() };
        let start = now.max(*out);
        *out = start + time;
        let mut head = start + self.cable;
        if let Some(switch) = self.switch {
            // The same rate everywhere, so the output never waits for bytes of a packet it has begun.
            let Some((_, down)) = self.busy.get_mut(to) else { return Vec::new() };
            head = (head + switch).max(*down);
            *down = head + time;
            head += self.cable;
        }
        vec![Delivery { at: head + time, end: to, packet }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet to LID `to` of `len` bytes.
    fn packet(to: u16, len: usize) -> Packet {
        let mut bytes = vec![0; len];
        bytes[2..4].copy_from_slice(&to.to_be_bytes());
        Packet::from_bytes(bytes)
    }

    fn star(switch: Option<Ps>) -> Star {
        let link = LinkSpec { bits_per_s: 8e9, packet_extra: 10 };
        Star::new(link, Ps::from_ns(5), switch, vec![Lid(1), Lid(2), Lid(3)])
    }

    #[test]
    fn a_cable_takes_bytes_over_rate_and_its_length() {
        let mut cable = star(None);
        let all = cable.transmit(Ps::ZERO, 0, packet(2, 90));
        assert_eq!((all[0].at, all[0].end), (Ps::from_ns(105), 1));
        assert_eq!(cable.transmit(Ps::ZERO, 0, packet(2, 90))[0].at, Ps::from_ns(205), "behind the first");
        assert_eq!(
            cable.transmit(Ps::ZERO, 1, packet(1, 90))[0].at,
            Ps::from_ns(105),
            "the other way is free"
        );
    }

    #[test]
    fn a_crossbar_cuts_through_and_its_outputs_queue() {
        let mut star = star(Some(Ps::from_ns(200)));
        assert_eq!(star.transmit(Ps::ZERO, 0, packet(3, 90))[0].at, Ps::from_ns(310));
        assert_eq!(star.transmit(Ps::ZERO, 1, packet(3, 90))[0].at, Ps::from_ns(410), "one output");
    }

    #[test]
    fn nothing_goes_to_nowhere() {
        let mut star = star(None);
        assert_eq!(star.transmit(Ps::ZERO, 0, packet(9, 90)), []);
        assert_eq!(star.transmit(Ps::ZERO, 7, packet(1, 90)), []);
    }
}
