//! The last records of a world, and the hashes of all of them.

use std::collections::VecDeque;

use super::epoch::{Rebase, Start};
use super::event::{Audience, Value};
use super::node::HcaId;
use super::record::Record;
use super::time::Ps;

/// Records that nobody has taken yet, up to a bound, and for each adapter a hash of every record there was.
///
/// The hashes are of times, names and fields: equal scenarios give equal hashes, on every machine and from
/// every build, as long as the model is the same. They depend neither on the bound nor on which other adapters are in
/// the same world.
#[derive(Debug)]
pub struct Trace {
    records: VecDeque<Record>,
    capacity: usize,
    count: u64,
    lost: u64,
    /// By adapter: hash and number of its records.
    nodes: Vec<(u64, u64)>,
    /// Where their times are counted from.
    start: Start,
}

/// FNV-1a's start and prime, applied to words instead of bytes, with a rotation so that high bits reach low ones.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_PRIME: u64 = 0x0000_0100_0000_01b3;

fn mix(hash: &mut u64, word: u64) {
    *hash = (*hash ^ word).wrapping_mul(HASH_PRIME).rotate_left(29);
}

fn mix_text(hash: &mut u64, text: &str) {
    mix(hash, text.len() as u64);
    text.bytes().for_each(|b| mix(hash, b.into()));
}

impl Trace {
    /// Of a world whose times are counted from there.
    pub(crate) fn new(capacity: usize, start: Start) -> Self {
        Self { records: VecDeque::new(), capacity, count: 0, lost: 0, nodes: Vec::new(), start }
    }

    /// Whether records are kept until they are taken.
    pub(crate) fn keeps(&self) -> bool {
        self.capacity > 0
    }

    pub(crate) fn add(&mut self, record: Record) {
        if record.event.audience().meets(Audience::TRACE) {
            self.hash_in(&record);
        }
        self.keep(record);
    }

    fn hash_in(&mut self, record: &Record) {
        if self.nodes.len() <= record.hca.0 {
            self.nodes.resize(record.hca.0 + 1, (HASH_START, 0));
        }
        let Some((hash, count)) = self.nodes.get_mut(record.hca.0) else { return };
        *count += 1;
        mix_text(hash, record.event.name());
        for time in [self.start.wrapped(record.at), record.wait.0, record.took.0] {
            mix(hash, time);
        }
        record.event.fields(&mut |name, value| {
            mix_text(hash, name);
            match value {
                Value::Number(n) => mix(hash, n),
                // The number alone: a name can be spelt better one day.
                Value::Named(n, _) => mix(hash, n),
            }
        });
        self.count += 1;
    }

    fn keep(&mut self, record: Record) {
        if self.records.len() >= self.capacity {
            self.lost += u64::from(self.records.pop_front().is_some() || self.capacity == 0);
        }
        if self.capacity > 0 {
            self.records.push_back(record);
        }
    }

    /// The hash of every record so far: of the adapters' numbers and hashes.
    pub fn hash(&self) -> u64 {
        let mut all = HASH_START;
        for (node, (hash, _)) in self.nodes.iter().enumerate().filter(|(_, (_, count))| *count > 0) {
            mix(&mut all, node as u64);
            mix(&mut all, *hash);
        }
        all
    }

    /// The hash of every record of an adapter so far, and how many there were.
    pub fn of_node(&self, hca: HcaId) -> (u64, u64) {
        self.nodes.get(hca.0).copied().unwrap_or((HASH_START, 0))
    }

    /// How many records there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many were pushed out by later ones before anybody took them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes the records, the oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = Record> {
        self.records.drain(..)
    }
}

impl Trace {
    /// The start of time moves.
    pub(crate) fn rebase(&mut self, by: Ps) {
        let Self { records, capacity: _, count: _, lost: _, nodes: _, start } = self;
        records.rebase(by);
        start.moves(by);
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::ids::Qpn;

    use super::*;
    use crate::ground::event::Event;
    use crate::ground::node::HcaId;
    use crate::ground::time::Ps;

    fn record(at: u64, qpn: u32) -> Record {
        let event = Event::Doorbell { qpn: Qpn(qpn), index: 0, blocks: 1 };
        Record { at: Ps(at), wait: Ps::ZERO, took: Ps::ZERO, hca: HcaId(0), event }
    }

    #[test]
    fn the_bound_drops_the_oldest_and_the_hash_does_not_care() {
        let (mut small, mut large) = (Trace::new(2, Start::default()), Trace::new(100, Start::default()));
        for i in 0..5 {
            small.add(record(i, 1));
            large.add(record(i, 1));
        }
        assert_eq!((small.count(), small.lost(), large.lost()), (5, 3, 0));
        assert_eq!(small.drain().map(|r| r.at.0).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(small.hash(), large.hash());
        assert_eq!((small.drain().count(), small.lost()), (0, 3));
    }

    #[test]
    fn every_field_counts() {
        let hash = |records: &[Record]| {
            let mut trace = Trace::new(0, Start::default());
            records.iter().for_each(|r| trace.add(*r));
            trace.hash()
        };
        let a = record(1, 1);
        let others = [record(2, 1), record(1, 2), Record { hca: HcaId(1), ..a }, Record { wait: Ps(1), ..a }];
        assert!(others.iter().all(|b| hash(&[a]) != hash(&[*b])));
        assert_ne!(hash(&[a, others[0]]), hash(&[others[0], a]), "the order counts");
        let elsewhere = others[2];
        assert_eq!(hash(&[a, elsewhere]), hash(&[elsewhere, a]), "but not that between adapters");
        // The value itself is part of the promise: a change of it is a change of what is compared.
        assert_eq!(hash(&[a]), hash(&[a]));
    }
}
