//! The adapter's hardware as a sans-IO discrete-event model.
//!
//! A [`World`] holds the adapters of one topology, the links between them and one heap of timed
//! events. Whoever owns it injects register accesses, advances the time, and drains interrupts:
//!
//! ```text
//! mmio_write ─▶ uar decode ─▶ event ─▶ send: fetch WQE ─▶ requester: gather, segment ─▶ port
//!                                                                                      │ fabric
//! interrupt ◀─ eq ◀─ cq ◀─ responder: check key, scatter, ACK ◀─────────────── packet ◀┘
//! ```
//!
//! No file descriptors, no threads, no wall clock: the same inputs give the same outputs. Guest memory
//! is reached through [`GuestMemory`]; what a unit takes in time comes from the timing profile.
//!
//! Not implemented: masked atomics, Ethernet and RoCE.
#![forbid(unsafe_code)]

pub mod dma;
pub mod fabric;
pub mod time;
pub mod timing;
pub mod trace;
pub mod wire;

mod agent;
mod blueflame;
mod command;
mod compress;
mod core;
mod counters;
mod cq;
mod eq;
mod hca;
mod mkey;
mod port;
mod random;
mod registers;
mod signature;
mod slots;
mod transport;
mod world;

pub use counters::{AdapterCounters, Counters, QpCounters, QpReport};
pub use dma::{DmaError, GuestMemory};
pub use hca_firmware::{
    Config as FirmwareConfig, Link as PortLink, LinkSpeed, PortCounters, PortKind, QCounter, Resources,
    Snapshot, SwitchConfig as SwitchIdentity, personality,
};
pub use time::Ps;
pub use world::{
    ConfigError, Effect, HcaConfig, HcaId, LinkConfig, LinkEnd, NodeId, PortRef, SwitchConfig, SwitchId,
    TunnelEvent, TunnelId, TunnelOutput, World, WorldConfig,
};
