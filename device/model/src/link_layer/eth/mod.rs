//! Ethernet: what only this link layer has.
//!
//! ```text
//! Ethernet header | tag? | anything                                        | pad | FCS
//! Ethernet header | tag? | GRH               | transport packet ... ICRC   | pad | FCS     RoCE
//! Ethernet header | tag? | IPv4 or IPv6, UDP | transport packet ... ICRC   | pad | FCS     RoCE v2
//! ```
//!
//! [`Address`] is what the first headers say, `route` what contexts and address vectors say of it, `frame` packets as bytes
//! with their checksums, `outlet` the sending side of a port: a queue for each priority, `selection` which of them sends next.
//!
//! Frames that are no transport packets stay bytes; queues of their own take them ([`crate::nic`]).

mod address;
pub(crate) mod frame;
pub(crate) mod outlet;
pub(crate) mod pause;
mod route;
pub(in crate::link_layer) mod selection;

pub use address::{Address, Mac, Wrapping};

pub(in crate::link_layer) use address::is_own;
pub(in crate::link_layer) use route::{Sender, tos_of};
