//! What hosts do: who sends to whom, how much, and when.

use hca_model::{HcaId, Ps};
use hca_spec::ids::Lid;

use super::{reduce, storage};

/// Who sends to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Every host to every other.
    AllToAll,
    /// Every host to the first.
    Incast,
    /// Every host to the next, the last to the first.
    Ring,
    /// All have the sum of everybody's vector at its end: around a ring, twice, in as many chunks as there are hosts.
    RingAllReduce,
    /// The same up a binary tree and down again, in slices that follow each other.
    TreeAllReduce,
    /// Blocks of the first hosts are read by all others.
    StorageReads,
    /// Nobody: hosts come up and connect.
    None,
}

impl Pattern {
    /// Whether all hosts work on one result.
    pub fn is_all_reduce(self) -> bool {
        matches!(self, Self::RingAllReduce | Self::TreeAllReduce)
    }
}

/// How a message gets from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// It is sent, and received.
    Send,
    /// It is written into the receiver's memory, which immediate data tells the receiver.
    Write,
    /// Its receiver reads it from the sender's memory.
    Read,
    /// None: the sender adds what would be its first eight bytes to a counter of the receiver, of which each has its own, and gets what
    /// was there before.
    Atomic,
}

/// How hosts are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// A reliable connection to each peer.
    Rc,
    /// Dynamic connections: what they take does not grow with the number of peers.
    Dc,
}

/// Where an adapter is: its first port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// On InfiniBand.
    Lid(Lid),
    /// On Ethernet: RoCE version 2 over IPv6, by the link-local address that follows from this one.
    Mac([u8; 6]),
}

/// An adapter of this process.
#[derive(Debug, Clone)]
pub struct Member {
    /// Which one of the world it is.
    pub hca: HcaId,
    /// Its place among all adapters of the topology.
    pub number: usize,
    /// Its name.
    pub name: String,
}

/// What hosts do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Those of this process.
    pub members: Vec<Member>,
    /// The address of each adapter of the topology.
    pub addresses: Vec<Address>,
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Of all-to-all: to how many of the next ones each sends; `None`: to all.
    pub peers: Option<usize>,
    /// Of storage reads: how many hosts, the first ones, have blocks.
    pub targets: usize,
    /// Of storage reads: how many blocks a client has under way at each of them.
    pub depth: usize,
    /// How messages get there.
    pub operation: Operation,
    /// How hosts are connected.
    pub transport: Transport,
    /// Messages of each flow; rounds of an all-reduce; blocks that a client reads of each host that has some.
    pub messages: usize,
    /// Bytes of each; of an all-reduce's vector; of a block.
    pub size: usize,
    /// When all begin to send.
    pub start: Ps,
    /// When it ends.
    pub until: Ps,
    /// How long an acknowledgement is waited for: 4.096 us * 2^`timeout`.
    pub timeout: u8,
    /// How often a program looks at its queues.
    pub step: Ps,
    /// Whether all that happens is hashed: it takes time.
    pub hash: bool,
    /// What is traced and captured.
    pub observation: hca_trace::Options,
}

/// The parent of a host in the binary tree, of which the first is the root.
pub fn parent(of: usize) -> Option<usize> {
    of.checked_sub(1).map(|of| of / 2)
}

impl Plan {
    /// Whether one host sends to another.
    pub fn sends(&self, from: usize, to: usize) -> bool {
        let all = self.addresses.len().max(1);
        from != to
            && match self.pattern {
                Pattern::AllToAll => (to + all - from) % all <= self.peers.unwrap_or(all),
                Pattern::Incast => to == 0,
                Pattern::Ring | Pattern::RingAllReduce => (from + 1) % all == to,
                Pattern::TreeAllReduce => parent(from) == Some(to) || parent(to) == Some(from),
                Pattern::StorageReads => from < self.targets && to >= self.targets,
                Pattern::None => false,
            }
    }

    /// Those that a host sends to, the next one first.
    pub fn receivers(&self, from: usize) -> impl Iterator<Item = usize> {
        let all = self.addresses.len().max(1);
        let to = self.steps(all).map(move |step| (from + step) % all);
        to.filter(move |to| self.sends(from, *to))
    }

    /// Those that send to a host, the one before it first.
    pub fn senders(&self, to: usize) -> impl Iterator<Item = usize> {
        let all = self.addresses.len().max(1);
        let from = self.steps(all).map(move |step| (to + all - step) % all);
        from.filter(move |from| self.sends(*from, to))
    }

    /// How far from each other, round all of so many, those are at most of which one sends to the other.
    fn steps(&self, all: usize) -> impl Iterator<Item = usize> {
        let most = match self.pattern {
            Pattern::AllToAll => self.peers.unwrap_or(all),
            Pattern::Ring | Pattern::RingAllReduce => 1,
            _ => all,
        };
        (1..all).take(most)
    }

    /// Whether two hosts have a connection: one of them sends to the other.
    pub fn connects(&self, a: usize, b: usize) -> bool {
        self.sends(a, b) || self.sends(b, a)
    }

    /// Those that a host has a connection with, in order: its queue pairs are made in that order.
    pub fn peers(&self, of: usize) -> Vec<usize> {
        (0..self.addresses.len()).filter(|peer| self.connects(of, *peer)).collect()
    }

    /// The place of the connection to `peer` among those of a host.
    pub fn place(&self, of: usize, peer: usize) -> usize {
        (0..peer).filter(|before| self.connects(of, *before)).count()
    }

    /// Receive requests of a connection that are posted before all begin, at most.
    pub fn receives(&self) -> usize {
        match self.pattern {
            Pattern::RingAllReduce | Pattern::TreeAllReduce => reduce::WINDOW,
            Pattern::StorageReads => storage::slots(self),
            Pattern::AllToAll | Pattern::Incast | Pattern::Ring | Pattern::None => self.messages,
        }
    }

    /// Bytes of a message.
    pub fn data(&self, from: usize, to: usize, message: usize) -> Data {
        let seed = (from as u64) << 40 | (to as u64) << 20 | message as u64;
        Data { seed: Data::mixed(seed) }
    }
}

/// Bytes that differ from message to message and from place to place, in words that don't wait for each other: SplitMix64 (Steele, Lea and Flood,
/// 2014), a word by its number. Hosts make and check gigabytes of them.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    seed: u64,
}

impl Data {
    fn mixed(word: u64) -> u64 {
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Eight bytes of it, in the order of memory.
    pub fn word(self, number: u64) -> [u8; 8] {
        let step = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self::mixed(self.seed.wrapping_add(step)).to_le_bytes()
    }

    /// Puts it there, from its first byte on.
    pub fn put(self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut();
        let last = self.word(words.len() as u64);
        (0..).zip(words).for_each(|(number, word)| *word = self.word(number));
        rest.iter_mut().zip(last).for_each(|(byte, made)| *byte = made);
    }

    /// Whether it is there.
    pub fn is_in(self, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks();
        let last = self.word(words.len() as u64);
        (0..).zip(words).all(|(number, word)| *word == self.word(number)) && last.starts_with(rest)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Hosts at these addresses that send each other a message.
    pub(in super::super) fn plan(addresses: impl Iterator<Item = Address>) -> Plan {
        Plan {
            members: Vec::new(),
            addresses: addresses.collect(),
            pattern: Pattern::AllToAll,
            peers: None,
            targets: 1,
            depth: 1,
            operation: Operation::Send,
            transport: Transport::Rc,
            messages: 1,
            size: 4,
            start: Ps::ZERO,
            until: Ps::ZERO,
            timeout: 14,
            step: Ps::from_us(1),
            hash: false,
            observation: hca_trace::Options::default(),
        }
    }

    #[test]
    fn peers_know_each_others_places() {
        let patterns = [Pattern::AllToAll, Pattern::Incast, Pattern::Ring, Pattern::RingAllReduce];
        for pattern in patterns.into_iter().chain([Pattern::TreeAllReduce, Pattern::StorageReads]) {
            for hosts in 1..9u16 {
                let addresses = (1..=hosts).map(|lid| Address::Lid(Lid(lid)));
                let plan = Plan { pattern, targets: 3, ..plan(addresses) };
                for host in 0..usize::from(hosts) {
                    for (place, peer) in plan.peers(host).into_iter().enumerate() {
                        assert_eq!(plan.place(host, peer), place);
                        assert!(
                            plan.peers(peer).contains(&host),
                            "{pattern:?}: {host} of {hosts} and {peer}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn who_sends_is_heard() {
        let patterns = [Pattern::AllToAll, Pattern::Incast, Pattern::Ring, Pattern::RingAllReduce];
        for pattern in patterns.into_iter().chain([Pattern::TreeAllReduce, Pattern::StorageReads]) {
            for (hosts, peers) in [(1, None), (2, None), (5, None), (9, Some(3)), (9, Some(20))] {
                let addresses = (1..=hosts).map(|lid| Address::Lid(Lid(lid)));
                let plan = Plan { pattern, peers, targets: 3, ..plan(addresses) };
                let all = 0..usize::from(hosts);
                for host in all.clone() {
                    let sorted = |some: &mut dyn Iterator<Item = usize>| {
                        some.collect::<std::collections::BTreeSet<_>>()
                    };
                    let out = sorted(&mut all.clone().filter(|to| plan.sends(host, *to)));
                    let inward = sorted(&mut all.clone().filter(|from| plan.sends(*from, host)));
                    assert_eq!(sorted(&mut plan.receivers(host)), out, "{pattern:?}: {host} of {hosts}");
                    assert_eq!(sorted(&mut plan.senders(host)), inward, "{pattern:?}: {host} of {hosts}");
                }
            }
        }
    }

    #[test]
    fn a_message_is_told_from_any_other() {
        let plan = plan([1, 2, 3].into_iter().map(|lid| Address::Lid(Lid(lid))));
        for size in [1, 7, 8, 9, 4096, 4101] {
            let (data, mut bytes) = (plan.data(0, 1, 5), vec![0; size]);
            data.put(&mut bytes);
            assert!(data.is_in(&bytes));
            for at in [0, size / 2, size - 1] {
                bytes[at] ^= 1;
                assert!(!data.is_in(&bytes), "byte {at} of {size}");
                bytes[at] ^= 1;
            }
            if size > 1 {
                for other in [plan.data(0, 1, 6), plan.data(1, 0, 5), plan.data(0, 2, 5)] {
                    assert!(!other.is_in(&bytes), "{size} bytes");
                }
            }
        }
        let mut bytes = [0; 16];
        plan.data(2, 0, 0).put(&mut bytes);
        assert_eq!(bytes[8..], plan.data(2, 0, 0).word(1));
    }

    #[test]
    fn a_tree_has_one_root_and_two_children_at_most() {
        let children = |of: usize| (0..100).filter(|host| parent(*host) == Some(of)).count();
        assert_eq!(parent(0), None);
        assert!((1..100).all(|host| parent(host).is_some_and(|parent| parent < host)));
        assert!((0..100).all(|host| children(host) <= 2));
    }
}
