//! vfio-user, server side: the protocol QEMU's `vfio-user-pci` speaks over a Unix socket.
//!
//! The flow: [`link::Link`] cuts the stream into whole messages with their descriptors,
//! [`session::Session`] checks each field and calls a [`session::Backend`], the reply goes back
//! over the link. The modules know nothing of PCI or of the adapter.
//!
//! Source: "vfio-user Protocol Specification". Constants shared with VFIO come from the crate
//! `vfio-bindings`.
//!
//! Not implemented: mappable regions, region IO descriptors, migration, dirty page tracking, twin
//! sockets. None of them is offered.

pub mod link;
pub mod session;
mod socket;
pub mod version;
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a poisoned lock is as good as any, since every state behind ours is valid at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
