//! Ethernet switches: where stations are, and how much of the switch's memory a queue may take.
//!
//! Source: IEEE 802.1Q 8.6 (forwarding), 8.7 and 8.8 (learning, filtering database), 8.6.3 (addresses that are not forwarded);
//! A. Choudhury, E. Hahne, "Dynamic Queue Length Thresholds", IEEE/ACM ToN 1998.

use std::collections::{BTreeMap, HashMap};

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
}

/// What a switch does with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To these ports, as bits.
    Ports(u128),
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
    /// An adapter with that address is at a port.
    pub(super) fn pin(&mut self, mac: Mac, port: u8) {
        self.pinned.insert(mac, port);
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
        if self.pinned.get(&address.smac).is_some_and(|home| *home != port) {
            return Verdict::Spoofed;
        }
        let vlan = address.vlan().unwrap_or(DEFAULT_VLAN);
        if !address.smac.is_group() {
            self.learn(now, port, (vlan, address.smac));
        }
        if is_reserved(address.dmac) {
            return Verdict::Filtered;
        }
        let others = all & !bit(port) & !1;
        if address.dmac.is_group() {
            return Verdict::Ports(others);
        }
        let known = self.stations.get(&(vlan, address.dmac)).filter(|s| now.since(s.seen) < AGEING);
        let home = self.pinned.get(&address.dmac).copied().or(known.map(|station| station.port));
        match home {
            Some(home) if home == port => Verdict::Filtered,
            Some(home) => Verdict::Ports(bit(home) & others),
            None => Verdict::Ports(others),
        }
    }
}

/// The memory of a switch that all its queues share. A queue may take a part of what is free.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedBuffer {
    size: usize,
    used: usize,
}

impl SharedBuffer {
    /// A switch with so many bytes. An estimate: those of switches of the adapter's time (16 MiB for 32 ports of 100 Gb/s).
    pub(super) const SIZE: usize = 16 << 20;
    /// What a queue may take is that part of what is free: the default of such switches.
    const ALPHA: usize = 1;

    pub(super) fn new(size: usize) -> Self {
        Self { size, used: 0 }
    }

    /// Whether a queue of so many bytes may take as many more.
    pub(super) fn admits(&self, queue: usize, bytes: usize) -> bool {
        let free = self.size.saturating_sub(self.used);
        queue.saturating_add(bytes) <= free.saturating_mul(Self::ALPHA)
    }

    pub(super) fn take(&mut self, bytes: usize) {
        self.used = self.used.saturating_add(bytes);
    }

    pub(super) fn give(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_queue_takes_a_part_of_what_is_free() {
        let mut buffer = SharedBuffer::new(1000);
        assert!(buffer.admits(0, 1000) && !buffer.admits(1, 1000));
        buffer.take(600);
        assert!(buffer.admits(300, 100) && !buffer.admits(300, 101));
        buffer.give(600);
        assert!(buffer.admits(900, 100));
    }
}
