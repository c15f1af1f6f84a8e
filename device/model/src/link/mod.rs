//! What lies between two ports.
//!
//! What passes between two nodes passes over a link, as a [`LinkMessage`] with the time at which it arrives: packets,
//! credits and light. Nodes know of each other by these alone.
//!
//! Everything that carries packets implements [`Carrier`]: the plain [`Cable`], and wrappers around any
//! carrier, such as the [`FaultInjector`]. A wrapper is put around a cable when the topology asks for
//! it; the cable and the adapters never know.
//!
//! What a port does before its packets are on the link is its link layer's ([`crate::link_layer`]). A carrier gets one packet
//! after another and at the time it is sent.

mod cable;
mod fault;
mod message;
pub(crate) mod training;

use crate::ground::time::Ps;
use crate::link_layer::Packet;

pub use crate::ground::rate::{LineRate, LinkRate};
pub use cable::Cable;
pub use fault::{FaultCounts, FaultInjector, Faults};
pub use message::{LinkMessage, LinkPacket};
pub use training::{Light, Session};

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
    /// Takes a packet that end `from` has ready at `now`, and puts behind `out` what arrives where and when.
    ///
    /// Nothing arrives of a packet that is lost, and more than one of a duplicated one. Calls come in
    /// the order of `now` per end. An end that isn't there carries nothing.
    fn transmit(&mut self, now: Ps, from: End, packet: Packet, out: &mut Vec<Delivery>);

    /// An end of the link trained, to less than the link could carry maybe: what it sends takes so long. A carrier of
    /// another kind has its own rate.
    fn train(&mut self, _end: End, _line: LineRate) {}

    /// Whether each packet arrives at the other end once, as it was sent, and nobody looks at its bytes.
    fn is_plain(&self) -> bool {
        false
    }

    /// The same as [`Carrier::transmit`] for a packet of `bytes`, of a carrier that is plain: when its last byte is at the
    /// other end.
    fn pass(&mut self, _now: Ps, _from: End, _bytes: usize) -> Option<Ps> {
        None
    }

    /// Time starts later by `by`: points in time that the carrier keeps are earlier by that much, those before the new start are at it.
    fn rebase(&mut self, _by: Ps) {}
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn transmit(&mut self, now: Ps, from: End, packet: Packet, out: &mut Vec<Delivery>) {
        (**self).transmit(now, from, packet, out);
    }

    fn train(&mut self, end: End, line: LineRate) {
        (**self).train(end, line);
    }

    fn is_plain(&self) -> bool {
        (**self).is_plain()
    }

    fn pass(&mut self, now: Ps, from: End, bytes: usize) -> Option<Ps> {
        (**self).pass(now, from, bytes)
    }

    fn rebase(&mut self, by: Ps) {
        (**self).rebase(by);
    }
}
