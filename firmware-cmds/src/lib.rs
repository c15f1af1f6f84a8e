//! What the adapter's firmware does.
//!
//! A command's input bytes go in, its output bytes come out, and the hardware is told what changed:
//!
//! ```text
//! input ──▶ Firmware::execute ──▶ output (status, syndrome, data)
//!                │  changes
//!                ▼
//!          Icm: tables of contexts            Effect: "QP 0x42 went INIT -> RTR"
//! ```
//!
//! The tables ([`icm::Icm`]) hold every object's *context* as the driver gave it: configuration, not
//! motion. The hardware model reads them, keeps the moving parts (producer indices, sequence numbers)
//! itself, and writes those back before a context is queried.
//!
//! The firmware is also the agent for subnet and performance management of its port.
//!
//! No DMA, no clock and no threads here. Not implemented: virtual functions, Ethernet, flow steering,
//! on-demand paging.

mod agent;
mod commands;
pub mod datagram;
mod directed;
pub mod effect;
mod failure;
mod firmware;
pub mod icm;
mod notice;
mod pages;
mod pma;
pub mod port;
pub mod profile;
pub mod q_counters;
mod sma;
pub mod sparse;
pub mod switch;
pub mod table;
mod users;

pub use commands::mkey::NotChanged;
pub use datagram::{Address, Arrival, Departure};
pub use effect::Effect;
pub use firmware::{Execution, Firmware, Resources, Snapshot, State};
pub use icm::Icm;
pub use notice::{BUILT_IN_MANAGER, KeyViolation};
pub use port::{Link, LinkOffer, LinkSpeed, Port, PortCounters};
pub use profile::Config;
pub use q_counters::QCounter;
pub use switch::{Switch, SwitchConfig, SwitchEffect};
