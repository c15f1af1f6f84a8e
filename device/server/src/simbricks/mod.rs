//! Links to other simulators and other processes, as SimBricks has them: rings in shared memory, with a promise of time.
//!
//! The side that listens at a Unix socket owns the memory and hands it over in its [`intro`]; the one that connects answers
//! with its own. From then on messages pass by rings (`ring`) of entries, one for each direction, each with the time at which it
//! is to be processed. A [`Channel`] adds what the time means: it never goes backwards, and what was seen of it says how far
//! the receiver may go. [`NetLink`] is a cable of the model over such a channel: to another process of ours, by way of others' switches (`ether`)
//! or not, or to others who speak Ethernet. A [`proxy`] takes links to other machines.
//!
//! The peer is not trusted: what it says is looked at once, copied, and checked; its memory may go away ([`LinkError`]).
//!
//! Who waits looks again and again there, and learns of an idle time step by step, each as long as a link. Two processes of ours do
//! better; a bit of the first messages, where SimBricks has zero, says that both are.
//! - They sleep after a moment ([`Channel::rest`]): a byte of a ring says that its consumer does, and a byte at the socket wakes it.
//! - Messages of time say more than a promise ([`Channel::outlook`]): up to when nothing comes if the receiver sends nothing.
//!
//! Everything is little endian. Source: the base and network protocols of SimBricks, version 1 (`lib/simbricks/base/proto.h`
//! and `lib/simbricks/network/proto.h`).
//!
//! Not implemented: PCIe links, links without synchronisation.

pub mod channel;
pub mod connect;
pub mod ether;
pub mod intro;
pub mod net;
pub mod proxy;
mod ring;

#[cfg(test)]
mod tests;

pub use channel::{Channel, Heard};
pub use connect::{Open, Role, open};
pub use net::{Framing, NetLink};

use hca_model::Ps;

/// Why a link can't be had, or can't go on.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer's first message is not what it should be.
    #[error("the peer's first message: {0}")]
    Intro(#[from] intro::IntroError),
    /// The memory of the link can't be had.
    #[error("the memory of the link: {0}")]
    Memory(std::io::Error),
    /// The memory went away while it was used.
    #[error("the memory of the link went away: its file was made shorter, or the system has no page for it")]
    MemoryLost,
    /// The socket can't be had.
    #[error("{path}: {why}")]
    Socket {
        /// Where it is.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The peer ended before its time.
    #[error("the peer has ended; it had come to {heard} ps, and more was expected of it")]
    Ended {
        /// The last time it told.
        heard: u64,
    },
    /// The system does not let this process wait for the peer.
    #[error("waiting for the peer: {0}")]
    Wait(std::io::Error),
    /// Time went backwards.
    #[error("the peer's time went backwards, from {before} to {now} ps")]
    Backwards {
        /// What it told before.
        before: u64,
        /// What it told now.
        now: u64,
    },
    /// A message of a type that there is not.
    #[error("the peer sent a message of type {0:#04x}, which a network link does not have")]
    Type(u8),
    /// A length that can't be.
    #[error("the peer sent a packet of {len} bytes in an entry that has room for {room}")]
    Length {
        /// What it said.
        len: usize,
        /// What there is.
        room: usize,
    },
    /// A packet is earlier than one may be.
    #[error("the peer sent a packet for {at} ps, though it had said that nothing came before {reached} ps")]
    Early {
        /// When it is to be processed.
        at: u64,
        /// What had been done already.
        reached: u64,
    },
    /// A packet is none of ours.
    #[error("the peer sent a packet of {0} bytes that is no message of an adapter or switch: is it softhca?")]
    Message(usize),
    /// A frame is none.
    #[error("the peer sent {0} bytes that are no frame, or one that ends early")]
    Frame(usize),
    /// A frame for this end is not from the other one.
    #[error("a frame for this end of the link came from {}: who else has its address?", mac(.0))]
    Stranger([u8; 6]),
    /// A message of ours does not fit into the peer's entries.
    #[error("a message of {len} bytes does not fit into an entry, which has room for {room}")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// What there is.
        room: usize,
    },
}

/// An address as one writes it.
fn mac(address: &[u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// Time of the protocol as the model has it.
fn ps(time: u64) -> Ps {
    Ps(time)
}
