//! Guests for the adapter: finds or installs QEMU, makes guest images from Debian packages, starts the
//! adapter's server and the guests of a topology, runs commands in them and judges the outcome.
//!
//! The flow of a run ([`run`]): [`lab`] prepares [`qemu`] and [`image`] (through [`apt`], kept in [`cache`]), has
//! the [`server`] check the [`topology`] and starts it, or several of them ([`servers`]), each in a network of its
//! own ([`namespaces`]); each [`guest`] boots, loads the mlx5 drivers and says that
//! it is ready; when all are, the commands start together; their output streams back line by line; in the end
//! the kernel logs are judged ([`kmsg`]), the guests power off, and nothing is left running.
//!
//! Not implemented: guests other than x86-64 Debian, migration and snapshots of guests, topologies that
//! change while they run.

pub mod accelerator;
pub mod apt;
mod beside;
pub mod built;
pub mod cache;
pub mod child;
pub mod colour;
pub mod confinement;
pub mod demo;
pub mod diagnoses;
pub mod doctor;
pub mod guest;
pub mod hub;
pub mod image;
pub mod judge;
pub mod kmsg;
pub mod lab;
pub mod module;
pub mod namespaces;
pub mod netboot;
pub mod prefix;
mod private;
pub mod progress;
pub mod qemu;
pub mod qmp;
pub mod run;
pub mod server;
pub mod servers;
pub mod shell;
pub mod signals;
mod slots;
pub mod topology;
