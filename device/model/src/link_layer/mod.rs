//! The link layer: what carries transport packets from port to port.
//!
//! The transport knows what a packet says from its BTH on ([`crate::wire::Repr`]), and a [`Path`] that it travels by. Both
//! together and a payload make a [`Packet`], which is a frame of the path's link layer: it has a length, can become bytes
//! and be checked when it comes from bytes. A `Route` is where a queue pair's packets go: it is worked out once, from a
//! context or an address vector, and gives the path. An `Outlet` is the sending side of an adapter's port.
//!
//! What a link layer has of its own stands in its room and nowhere else: [`ib`] is InfiniBand's, with LIDs, virtual lanes,
//! credits, the VCRC and datagrams of management; [`eth`] is Ethernet's, with frames of every kind, RoCE among them, MAC
//! addresses, queues of priorities, PAUSE and the FCS. One more is a room beside them, a variant of `Link` (`path.rs`), of
//! `Station`, of `Own` (`route.rs`) and of `Outlet`, and their arms of the functions in these files. Engines and the adapter
//! ask those; `floors.toml` of the crate says who may look into the rooms themselves.

pub mod eth;
pub mod ib;
mod leaving;
mod outlet;
mod packet;
mod path;
mod route;

pub(crate) use leaving::{Leaving, Lifted, Size};
pub(crate) use outlet::{BLOCK, Fate, LANES, Next, Outcome, Outlet, Sent, Wait, blocks};
pub use packet::{Due, Packet};
pub use path::Path;
pub(crate) use path::Station;
pub(crate) use route::{Route, WrongGid};

/// The longest frame that an Ethernet port takes, with its FCS: jumbo frames and what stands around them.
pub const MAX_FRAME: usize = 10 * 1024;

#[cfg(test)]
mod tests;
