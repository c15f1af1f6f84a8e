//! InfiniBand: what only this link layer has.
//!
//! ```text
//! LRH | GRH? | transport packet ... ICRC | VCRC
//! ```
//!
//! [`Address`] is what the LRH says, `route` what contexts and address vectors say of it, `frame` packets as bytes with their
//! checksums, `egress` the sending side of a port with virtual lanes, credits and arbitration, `outlet` what an adapter's port
//! adds to that, `datagram` management datagrams as packets.
//!
//! Not here: raw packets (LNH 0 and 1) and link packets (flow control is modelled without its packets).

mod address;
mod arbiter;
pub(crate) mod datagram;
pub(crate) mod egress;
pub(crate) mod frame;
pub(crate) mod outlet;
mod route;
mod vcrc;

pub use address::Address;
pub(crate) use arbiter::Tables;
pub(in crate::link_layer) use route::PathBits;

/// Virtual lane of subnet management: no credits.
pub(crate) const VL15: u8 = 15;

/// Data lanes that PortInfo:OperationalVLs stands for.
pub(crate) fn operational_lanes(code: u32) -> u8 {
    match code {
        2 => 2,
        3 => 4,
        4 => 8,
        5 => 15,
        _ => 1,
    }
}
