//! Links to other simulators and other processes, as SimBricks has them: rings in shared memory, with a promise of time.
//!
//! The side that listens at a Unix socket owns the memory and hands it over in its [`intro`]; the one that connects answers
//! with its own. From then on messages pass by rings (`ring`) of entries, one for each direction, each with the time at which it
//! is to be processed. A [`Channel`] adds what the time means: it never goes backwards, and what was seen of it says how far
//! the receiver may go. [`NetLink`] is a cable of the model over such a channel: to another process of ours, by way of others' switches (`ether`)
//! or not, or to others who speak Ethernet; [`pcie`] is an adapter and its host. A [`proxy`] takes network links to other machines.
//!
//! The peer is not trusted: what it says is looked at once, copied, and checked; its memory may go away ([`LinkError`]).
//!
//! Who waits looks again and again there, and learns of an idle time step by step, each as long as a link. Two processes of ours do
//! better; four bytes of the first messages, where SimBricks has none, say that both are.
//! - They sleep after a moment ([`Channel::rest`]): each says so in a cell (`bell`), and what it waits for, and is woken (`nap`, or by a byte at the socket) when
//!   that is there.
//! - Messages of time say more than a promise ([`Channel::outlook`]): up to when nothing comes if the receiver sends nothing.
//!
//! Everything is little endian. Source: the base, network and PCIe protocols of SimBricks, version 1 (`proto.h` in
//! `lib/simbricks/base`, `network` and `pcie`).
//!
//! Not implemented: links without synchronisation.

mod bell;
pub mod channel;
pub mod connect;
pub mod ether;
pub mod intro;
mod nap;
pub mod net;
pub(crate) mod patience;
pub mod pcie;
pub mod proxy;
mod ring;

#[cfg(test)]
mod tests;

pub(crate) use bell::Word;
pub use channel::{Channel, Heard, Rest};
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
    #[error("the peer sent a message of type {0:#04x}, which such a link does not have")]
    Type(u8),
    /// A length that can't be.
    #[error("the peer sent a packet of {len} bytes in an entry that has room for {room}")]
    Length {
        /// What it said.
        len: usize,
        /// What there is.
        room: usize,
    },
    /// A message is earlier than one may be.
    #[error("the peer sent a message for {at} ps, though it had said that nothing came before {reached} ps")]
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
    /// An answer to nothing.
    #[error("the peer answered request {0}, which nobody made")]
    NotAsked(u64),
    /// An access to what there is not.
    #[error(
        "the peer accessed {len} bytes at {offset:#x} of BAR {bar}, which the adapter does not take messages for"
    )]
    Access {
        /// Which base address register.
        bar: u8,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        len: u16,
    },
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
