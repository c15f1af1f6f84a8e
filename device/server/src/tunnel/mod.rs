//! Tunnels: links whose two ends are in different processes, over UDP.
//!
//! ```text
//! World --LinkMessage---> Session::send / set_light --datagrams--> peer
//! World <--tunnel_receive, tunnel_link-- Session::receive <--datagrams-- peer
//! ```
//!
//! [`Session`] is the protocol of one link, without sockets or clocks; [`Tunnels`] has the socket of a process and
//! one session for each link that leaves it. [`frame`] says what a datagram looks like, [`key`] how two processes
//! know each other, [`keys`] which keys a process has.
//!
//! - **Session.** Both sides send hellos with a fresh random number until they have seen their own number come back
//!   under the shared key. The two numbers make the session's keys, so that nothing recorded in an earlier session
//!   is worth anything, and a peer that was started again is noticed.
//! - **Life.** A silent peer is lost after a timeout, and so are the link and what is on it; when it comes back the
//!   link trains again. Each side tells the other whether its end of the cable is lit: a port that is disabled, or a
//!   cable that is taken out by command, darkens the far end too.
//! - **Size.** A packet that does not fit a datagram goes in several; those that don't become whole in time are
//!   dropped and counted.
//! - **Trust.** Every datagram carries a keyed hash. What is malformed, of a stranger, of an old session or was seen
//!   before is counted in [`Counts`] and dropped; it can't take a link down.
//!
//! - **Pace.** A receiver says what it has taken, and a sender keeps so few datagrams under way that the receiver's
//!   socket has room for them; the rest waits. What is lost all the same is lost: the transports ask for it again.
//!
//! Not here: secrecy (what is on the link can be read on the way; put it into a VPN if that matters), and credits of
//! the link: they end at the tunnel, which takes packets at the link's rate, so that congestion behind the far end
//! does not slow this one. Packets that find 64 MiB waiting are dropped and counted.

pub mod frame;
pub mod key;
pub mod keys;
mod reassembly;
mod session;
mod socket;
mod window;

pub use session::{Counts, Event, Light, Loss, Session, Terms};
pub use socket::{Tunnels, terms};

#[cfg(test)]
mod tests;
