//! What lies between two ports.
//!
//! Everything that carries packets implements [`Carrier`]: the plain [`Link`], and wrappers around any
//! carrier, such as the [`FaultInjector`]. A wrapper is put around a link when the topology asks for
//! it; the link and the adapters never know.
//!
//! Not here: switches, and credits (link-level flow control): a receiver always has room.

mod fault;
mod link;

use crate::time::Ps;
use crate::wire::Packet;

pub use fault::{FaultCounts, FaultInjector, Faults};
pub use link::{Link, LinkRate};

/// Which end of a carrier: 0 or 1, of carriers with more ends any number below theirs.
pub type End = usize;

/// A packet that arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// When its last byte is there.
    pub at: Ps,
    /// At which end.
    pub end: End,
    /// The packet, as it arrives.
    pub packet: Packet,
}

/// Something with two ends (or more, see [`crate::World::connect`]) that carries packets from one to another.
pub trait Carrier {
    /// Takes a packet that end `from` has ready at `now`, and says what arrives where and when.
    ///
    /// Nothing arrives of a packet that is lost, and more than one of a duplicated one. Calls come in
    /// the order of `now` per end. An end that isn't there carries nothing.
    fn transmit(&mut self, now: Ps, from: End, packet: Packet) -> Vec<Delivery>;
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn transmit(&mut self, now: Ps, from: End, packet: Packet) -> Vec<Delivery> {
        (**self).transmit(now, from, packet)
    }
}
