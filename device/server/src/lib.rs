//! The server of softhca: attaches modelled adapters to QEMU (or any vfio-user client).
//!
//! The flow: a [`topology`] says which adapters there are; each has a [`front_end`] that attaches it to hosts, one after
//! the other. That of guests is [`vfio_user`]: a Unix socket and the client that connects; simulated hosts have one, too ([`simbricks::pcie`]). The [`engine`] gives front
//! ends their turns with the [`function`] of their adapter. Accesses to configuration space and MSI-X end in [`pci`],
//! accesses to BAR0 go to the model, which reaches guest memory through [`memory`] and returns interrupts that are
//! signalled to the host. Links to other processes are a [`tunnel`], links to other software that speaks Ethernet lead [`outside`].
//! A topology can be simulated without hosts, in one process or several ([`sim`]), which links of SimBricks join ([`simbricks`]).
//! What reaches the adapters can be kept, and played again without hosts: [`recording`].
//!
//! Engine, function, memory and PCI know nothing of vfio-user; a test reads their imports.
//!
//! The program enters a [`sandbox`] when everything is open.
//!
//! Of the adapter, this is the only crate with `unsafe` code: the socket edge, the mapped guest memory, the rings between workers and simulations,
//! the words by which simulations wake each other (a futex), the hint to the C library that memory can go, a TAP device, and what of the sandbox no library does.
//!
//! Not implemented: mapped doorbell pages, migration.

mod closer;
pub mod control;
mod counters;
mod diagnoses;
pub mod engine;
mod faults;
pub mod front_end;
pub mod function;
mod inspect;
mod kept;
mod links;
pub mod listener;
mod log;
pub mod memory;
pub mod metrics;
mod model;
mod operator;
pub mod outside;
pub mod pacing;
pub mod pci;
mod random;
pub mod recording;
mod rounds;
pub mod sandbox;
pub mod scrape;
pub mod sim;
pub mod simbricks;
mod slots;
mod socket;
mod steps;
mod sync;
pub mod topology;
mod trim;
pub mod tunnel;
pub mod vfio_user;
pub mod workers;
