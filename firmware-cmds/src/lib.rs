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
//! The firmware is also the agent for subnet and performance management of its port. What it claims to be, and to be
//! able to, is data: a [`personality`].
//!
//! No DMA, no clock and no threads here. The modules import downward only: `floors.toml` lists the floors.
//!
//! # Not implemented
//!
//! An e-switch between virtual functions (there is [`virtual_functions`], for models of such an adapter: the offered ones have one function); link aggregation; of Ethernet ports: offloads of TLS, IPsec and MACsec; general objects of other kinds than
//! [`hca_spec::caps::object_type`] has. Commands of those are answered BAD_OP or BAD_PARAM.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used))]

mod agent;
mod buffer;
pub mod commands;
pub mod crypto;
pub mod datagram;
pub mod device_memory;
mod directed;
mod disposal;
pub mod effect;
mod failure;
mod fault_token;
mod firmware;
pub mod flash;
mod function;
pub mod icm;
pub mod limits;
pub mod list;
pub mod module;
pub mod nic;
mod notice;
pub mod object;
mod pages;
pub mod pcie;
pub mod personality;
pub mod piece_list;
mod pma;
pub mod port;
mod ports;
pub mod profile;
pub mod q_counters;
pub mod rq;
mod sensor;
mod settings;
mod sma;
pub mod sparse;
mod speed;
mod steady;
pub mod steering;
pub mod sw_icm;
pub mod switch;
pub mod sync_reset;
pub mod table;
pub mod tracer;
pub mod transport;
mod users;
pub mod virtual_functions;

pub use agent::takes;
pub use commands::mkey::NotChanged;
pub use datagram::{Address, Arrival, Departure};
pub use disposal::{Burden, Disposal};
pub use effect::{DealtWith, Effect};
pub use failure::Refusal;
pub use fault_token::FaultToken;
pub use firmware::{Execution, Firmware, PageAccounts, Resources, Snapshot, State};
pub use function::FunctionId;
pub use icm::Icm;
pub use nic::NicVport;
pub use notice::{BUILT_IN_MANAGER, KeyViolation};
pub use personality::{Personality, PortKind};
pub use port::{
    Ethernet, EthernetCounters, FrameClass, LinkOffer, Pause, Port, PortCounters, PortLink, RoceAddress,
    RoceVersion,
};
pub use ports::Ports;
pub use profile::Config;
pub use q_counters::QCounter;
pub use rq::{Rq, RqSource, RqState, Strides, WqKind};
pub use speed::LinkSpeed;
pub use switch::{Switch, SwitchConfig, SwitchEffect};
pub use tracer::Tracer;
pub use transport::{Dispatch, HashFields, HashFunction, MERGE_UNIT, Merge, Rqt, Tir, Tis};
