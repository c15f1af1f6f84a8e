//! What hosts do: who sends to whom, how much, and when.

use hca_model::{HcaId, Ps};
use hca_spec::ids::Lid;

/// Who sends to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Every host to every other.
    AllToAll,
    /// Every host to the first.
    Incast,
    /// Every host to the next, the last to the first.
    Ring,
    /// Nobody: hosts come up and connect.
    None,
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
    /// How messages get there.
    pub operation: Operation,
    /// How hosts are connected.
    pub transport: Transport,
    /// Messages of each flow.
    pub messages: usize,
    /// Bytes of each.
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

impl Plan {
    /// Whether one host sends to another.
    pub fn sends(&self, from: usize, to: usize) -> bool {
        let all = self.addresses.len().max(1);
        from != to
            && match self.pattern {
                Pattern::AllToAll => (to + all - from) % all <= self.peers.unwrap_or(all),
                Pattern::Incast => to == 0,
                Pattern::Ring => (from + 1) % all == to,
                Pattern::None => false,
            }
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

    /// Bytes of a message.
    pub fn data(&self, from: usize, to: usize, message: usize) -> impl Iterator<Item = u8> {
        let seed = (from as u64) << 40 | (to as u64) << 20 | message as u64;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..self.size).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
    }
}
