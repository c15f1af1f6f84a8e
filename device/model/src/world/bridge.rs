//! Ethernet switches: where stations are.
//!
//! Source: IEEE 802.1Q 8.6 (forwarding), 8.7 and 8.8 (learning, filtering database), 8.6.3 (addresses that are not forwarded).

use std::collections::{BTreeMap, HashMap};

use super::ways::Ways;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::link_layer::eth::{Address, Mac};

/// A station that was not heard of for so long is forgotten (802.1Q table 8-6).
const AGEING: Ps = Ps::from_ms(300_000);
/// Stations that are learned at one port at most: a port that shows more loses its own oldest, and nobody else's.
const STATIONS: usize = 1024;
/// VLAN of frames without one.
const DEFAULT_VLAN: u16 = 1;

type Place = (u16, Mac);

#[derive(Debug, Clone, Copy)]
struct Station {
    port: u8,
    seen: Ps,
}

/// Where stations are.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    stations: HashMap<Place, Station>,
    /// Stations of each port, by when they were heard of last.
    by_port: HashMap<u8, BTreeMap<(Ps, Place), ()>>,
    /// Addresses of adapters whose cable is at a port: nobody else may have them.
    pinned: HashMap<Mac, u8>,
    /// The switches at which other adapters of the fabric are.
    homes: HashMap<Mac, usize>,
    ways: Ways,
}

/// What a switch does with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To these ports, as bits.
    Ports(u128),
    /// To one of these ports, each flow to the same.
    OneOf(u128),
    /// Nobody else gets it: it is for the switch, or nobody is there.
    Filtered,
    /// Its sender shows an address that belongs elsewhere.
    Spoofed,
}

/// Whether a switch keeps what goes to that address: 01:80:c2:00:00:00 to 0f.
fn is_reserved(mac: Mac) -> bool {
    matches!(mac.0, [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00..=0x0f])
}

fn bit(port: u8) -> u128 {
    1u128.checked_shl(port.into()).unwrap_or(0)
}

impl Bridge {
    /// One with those ways, and other switches at the `inner` ports.
    pub(super) fn new(mut ways: Ways, inner: impl Iterator<Item = u8>) -> Self {
        ways.inner = inner.fold(0, |inner, port| inner | bit(port));
        Self { ways, ..Self::default() }
    }

    /// An adapter with that address is at a port.
    pub(super) fn pin(&mut self, mac: Mac, port: u8) {
        self.pinned.insert(mac, port);
    }

    /// An adapter with that address is at another switch.
    pub(super) fn pin_far(&mut self, mac: Mac, switch: usize) {
        self.homes.insert(mac, switch);
    }

    /// There is another switch at a port.
    pub(super) fn add_inner(&mut self, port: u8) {
        self.ways.inner |= bit(port);
    }

    /// The ways to other switches are these.
    pub(super) fn set_ways(&mut self, mut ways: Ways) {
        ways.inner = self.ways.inner;
        self.ways = ways;
    }

    /// Ports at which there is another switch.
    pub(super) fn inner(&self) -> u128 {
        self.ways.inner
    }

    fn forget(&mut self, place: Place) {
        if let Some(old) = self.stations.remove(&place)
            && let Some(of) = self.by_port.get_mut(&old.port)
        {
            of.remove(&(old.seen, place));
        }
    }

    fn learn(&mut self, now: Ps, port: u8, place: Place) {
        self.forget(place);
        let of = self.by_port.entry(port).or_default();
        if of.len() >= STATIONS
            && let Some(((_, oldest), ())) = of.pop_first()
        {
            self.stations.remove(&oldest);
        }
        of.insert((now, place), ());
        self.stations.insert(place, Station { port, seen: now });
    }

    /// A link went down: who was there is somewhere else now, if anywhere.
    pub(super) fn clear(&mut self, port: u8) {
        for (_, place) in self.by_port.remove(&port).unwrap_or_default().into_keys() {
            self.stations.remove(&place);
        }
    }

    /// A frame came by a port; `all`: ports that can send.
    pub(super) fn forward(&mut self, now: Ps, port: u8, address: &Address, all: u128) -> Verdict {
        let Ways { inner, tree, .. } = self.ways;
        let (is_inner, known) = (inner & bit(port) != 0, self.homes.contains_key(&address.smac));
        if self.pinned.get(&address.smac).is_some_and(|home| *home != port) || (known && !is_inner) {
            return Verdict::Spoofed;
        }
        let vlan = address.vlan().unwrap_or(DEFAULT_VLAN);
        // What went another way than the tree says nothing of where the way back is.
        let by_tree = !is_inner || tree & bit(port) != 0;
        if !address.smac.is_group() && !known && by_tree {
            self.learn(now, port, (vlan, address.smac));
        }
        if is_reserved(address.dmac) {
            return Verdict::Filtered;
        }
        let sends = all & !bit(port) & !1;
        let others = sends & if by_tree { !inner | tree } else { !inner };
        if address.dmac.is_group() {
            return if by_tree { Verdict::Ports(others) } else { Verdict::Filtered };
        }
        if let Some(home) = self.homes.get(&address.dmac) {
            return match self.ways.toward(*home) & sends {
                0 => Verdict::Filtered,
                ways => Verdict::OneOf(ways),
            };
        }
        let station = self.stations.get(&(vlan, address.dmac)).filter(|s| now.since(s.seen) < AGEING);
        match self.pinned.get(&address.dmac).copied().or(station.map(|station| station.port)) {
            Some(home) if home == port => Verdict::Filtered,
            Some(home) => Verdict::Ports(bit(home) & sends),
            None => Verdict::Ports(others),
        }
    }
}

impl Rebase for Bridge {
    fn rebase(&mut self, by: Ps) {
        let Self { stations, by_port, pinned: _, homes: _, ways: _ } = self;
        stations.values_mut().for_each(|station| station.seen.rebase(by));
        for of in by_port.values_mut() {
            let moved = |(mut seen, place): (Ps, Place)| {
                seen.rebase(by);
                ((seen, place), ())
            };
            *of = std::mem::take(of).into_keys().map(moved).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::ways::{self, Cable};

    const ALL: u128 = 0b1_1111;

    fn mac(n: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, n])
    }

    fn frame(from: u8, to: Mac) -> Address {
        Address { dmac: to, smac: mac(from), ..Address::default() }
    }

    fn ports(list: &[u8]) -> Verdict {
        Verdict::Ports(list.iter().fold(0, |all, port| all | bit(*port)))
    }

    #[test]
    fn frames_go_where_their_station_is() {
        let mut b = Bridge::default();
        assert_eq!(b.forward(Ps(1), 1, &frame(1, mac(2)), ALL), ports(&[2, 3, 4]), "nobody knows yet");
        assert_eq!(b.forward(Ps(2), 2, &frame(2, mac(1)), ALL), ports(&[1]));
        assert_eq!(b.forward(Ps(3), 1, &frame(1, mac(2)), ALL), ports(&[2]));
        assert_eq!(b.forward(Ps(3), 2, &frame(3, mac(2)), ALL), Verdict::Filtered, "it is at the same port");
        assert_eq!(b.forward(Ps(3), 1, &frame(1, Mac([0xff; 6])), ALL), ports(&[2, 3, 4]));
        let pause = Mac([1, 0x80, 0xc2, 0, 0, 1]);
        assert_eq!(b.forward(Ps(3), 1, &frame(1, pause), ALL), Verdict::Filtered);
        // Another VLAN is another network.
        let tagged = Address { tci: Some(7), ..frame(1, mac(2)) };
        assert_eq!(b.forward(Ps(4), 1, &tagged, ALL), ports(&[2, 3, 4]));
        b.clear(2);
        assert_eq!(b.forward(Ps(5), 1, &frame(1, mac(2)), ALL), ports(&[2, 3, 4]));
        assert_eq!(b.forward(Ps(6), 3, &frame(9, mac(1)), ALL), ports(&[1]));
        let late = Ps(5) + AGEING;
        assert_eq!(b.forward(late, 3, &frame(9, mac(1)), ALL), ports(&[1, 2, 4]), "forgotten");
    }

    #[test]
    fn nobody_takes_the_place_of_another() {
        let mut b = Bridge::default();
        b.pin(mac(1), 1);
        assert_eq!(b.forward(Ps(1), 2, &frame(1, mac(9)), ALL), Verdict::Spoofed);
        assert_eq!(b.forward(Ps(1), 2, &frame(2, mac(1)), ALL), ports(&[1]), "known before it spoke");
        // A port that shows many addresses loses its own.
        b.forward(Ps(2), 3, &frame(3, mac(1)), ALL);
        for n in 0..2 * STATIONS as u32 {
            let [_, x, y, z] = n.to_be_bytes();
            let smac = Mac([2, 1, 0, x, y, z]);
            b.forward(Ps(3 + u64::from(n)), 2, &Address { smac, ..frame(0, mac(1)) }, ALL);
        }
        assert_eq!(b.stations.len(), STATIONS + 1);
        assert_eq!(b.forward(Ps(9999), 1, &frame(1, mac(3)), ALL), ports(&[3]));
    }

    /// Between switches: known stations by all shortest ways, what nobody knows by the tree.
    #[test]
    fn ways_between_switches() {
        let mut b = Bridge::default();
        let cables = [1u8, 2, 3].map(|port| Cable { ends: [(0, port), (1, port)] });
        b.set_ways(ways::all(2, &cables).swap_remove(0));
        (1..=3).for_each(|port| b.add_inner(port));
        assert_eq!(b.ways.tree, 0b10);
        b.pin(mac(1), 4);
        b.pin_far(mac(2), 1);
        assert_eq!(b.forward(Ps(1), 4, &frame(1, mac(2)), ALL), Verdict::OneOf(0b1110));
        assert_eq!(
            b.forward(Ps(1), 4, &frame(1, mac(2)), 0b1_0101),
            Verdict::OneOf(0b100),
            "others can't send"
        );
        assert_eq!(b.forward(Ps(1), 3, &frame(2, mac(1)), ALL), ports(&[4]));
        assert_eq!(b.forward(Ps(1), 4, &frame(2, mac(1)), ALL), Verdict::Spoofed);
        assert_eq!(b.forward(Ps(1), 2, &frame(1, mac(9)), ALL), Verdict::Spoofed, "it came back");
        assert_eq!(b.forward(Ps(1), 4, &frame(1, mac(9)), ALL), ports(&[1]), "nobody knows");
        assert_eq!(b.forward(Ps(1), 4, &frame(1, Mac([0xff; 6])), ALL), ports(&[1]));
        assert_eq!(b.forward(Ps(1), 2, &frame(2, Mac([0xff; 6])), ALL), Verdict::Filtered);
        // Who is not of the world is learned where the tree leads.
        assert_eq!(b.forward(Ps(1), 2, &frame(7, mac(1)), ALL), ports(&[4]));
        assert_eq!(b.forward(Ps(1), 4, &frame(1, mac(7)), ALL), ports(&[1]));
        b.forward(Ps(1), 1, &frame(8, mac(1)), ALL);
        assert_eq!(b.forward(Ps(1), 4, &frame(1, mac(8)), ALL), ports(&[1]));
        assert_eq!(b.stations.len(), 2, "the adapter of its own, and that of the tree");
    }
}
