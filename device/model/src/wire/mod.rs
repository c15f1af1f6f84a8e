//! Transport packets: what is between the link layer's headers and its checksum.
//!
//! ```text
//! (link) | GRH? | BTH | extended headers? | payload | pad 0..3 | ICRC | (link)
//! ```
//!
//! [`Repr`] is what the headers from the BTH on say, [`GrhRepr`] what the global route header says; `Repr::read` and
//! `Repr::write` turn them into bytes and back. What is around them, and a packet as a whole, is
//! [`crate::link_layer`]'s.
//!
//! [`ethernet`] reads the headers of Ethernet frames, [`checksum`] makes the sums of IP, TCP and UDP.
//!
//! Not here: RD.

pub mod checksum;
pub mod ethernet;
mod grh;
mod icrc;
mod malformed;
mod repr;
mod room;

pub use grh::GrhRepr;
pub(crate) use icrc::icrc;
pub use icrc::{icrc_v1, icrc_v2, roce_icrc};
pub use malformed::{Malformed, PortCounter};
pub use repr::{AethRepr, AtomicRepr, DcEthRepr, DethRepr, ExtendedHeaders, Masks, Repr, RethRepr};
pub(crate) use repr::{Reader, Writer};
pub(crate) use repr::{network_order, operand_of};
pub(crate) use room::Room;

/// The largest payload: a path MTU of 4096 bytes.
pub const MAX_PAYLOAD: usize = 4096;
