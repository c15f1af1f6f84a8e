//! vfio-user, server side: the protocol QEMU's `vfio-user-pci` speaks over a Unix socket.
//!
//! The flow: [`VfioUser`] is the front end of one adapter; it listens, and keeps the client that connects.
//! [`connection::Connection`] cuts the stream into whole messages with their descriptors, [`session::Session`] checks each
//! field and calls a [`session::Backend`], the reply goes back over the connection. The backend translates regions,
//! interrupt types and errors into what the [`Endpoint`](crate::front_end::Endpoint) of the adapter offers. Memory that
//! comes without a descriptor is reached by messages over the same connection.
//!
//! Source: "vfio-user Protocol Specification". Constants shared with VFIO come from the crate
//! `vfio-bindings`.
//!
//! Not implemented: mappable regions, region IO descriptors, migration, dirty page tracking, twin
//! sockets. None of them is offered.

mod backend;
pub mod connection;
pub mod descriptor;
mod eventfd;
mod front_end;
mod look;
#[cfg(test)]
mod look_tests;
mod multi;
pub mod session;
pub mod turn;
pub mod version;
pub mod wire;

pub use front_end::VfioUser;
