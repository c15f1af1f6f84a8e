//! The server of softhca: attaches modelled adapters to QEMU (or any vfio-user client).
//!
//! The flow: a [`topology`] says which adapters there are; for each, the engine listens on a Unix
//! socket and speaks [`vfio_user`] with the client that connects. Accesses to configuration space
//! and MSI-X end in [`pci`], accesses to BAR0 go to the model, which reaches guest memory through
//! [`memory`] and returns interrupts that are signalled to the client. Links to other processes are a [`tunnel`].
//!
//! Of the adapter, this is the only crate with `unsafe` code: the socket edge, the mapped guest memory,
//! and the hint to the C library that memory can go.
//!
//! Not implemented: sandboxing, mapped doorbell pages, migration, ports on Ethernet.

pub mod cli;
pub mod control;
mod ctl;
pub mod device;
pub mod engine;
mod links;
pub mod listener;
pub mod memory;
pub mod metrics;
mod model;
pub mod pacing;
pub mod pci;
mod stat;
pub mod topology;
mod trim;
pub mod tunnel;
pub mod vfio_user;
