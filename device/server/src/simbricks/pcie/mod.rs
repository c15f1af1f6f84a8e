//! An adapter as a PCI Express device of SimBricks, and hosts without guests for such devices.
//!
//! | what passes | how |
//! |---|---|
//! | registers of BAR 0 | messages of the host, at the time that they bear; reads are answered at once, so that a host waits twice as long as a crossing takes |
//! | memory | messages of the device: reads wait for their answer, time stands still meanwhile ([`DeviceLink`]); writes are posted |
//! | interrupts | messages of the device. Table and pending bits of MSI-X are the host's |
//! | configuration space | what the device's first message says of it ([`DeviceIntro`]), and whether MSI-X is on; the rest is the host's |
//!
//! The device side is a [front end](crate::front_end): the engine and the function do not know it from others.
//!
//! A crossing has a time that each side adds to what it sends. The adapter's profile gives it away
//! ([`hca_model::timing::Profile::leave_crossing`]), so that all takes as long as without such a link.
//!
//! Not in the protocol: errors, resets, bus mastering, power, configuration accesses, atomics.

mod device;
mod front_end;
pub mod host;
pub mod intro;
pub mod message;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use device::{Clock, DeviceLink};
pub use front_end::PcieFrontEnd;
pub(crate) use front_end::describe;
pub use host::HostLink;
pub use intro::DeviceIntro;

use super::connect::{Open, Role};
use super::intro::{Protocol, Upper};

/// Bytes of payload of entries whose memory is ours: what SimBricks takes if nobody says otherwise.
const ROOM: usize = 9024;
/// Bytes of the longest access to a register.
const LEAST: usize = 64;

/// The link of a device that says this of itself.
pub fn of_device(role: Role, path: PathBuf, intro: &DeviceIntro) -> Open {
    Open { role, path, room: ROOM, least: LEAST, upper: Upper::of(Protocol::Pcie, intro.bytes()) }
}

/// The link of a host.
pub fn of_host(role: Role, path: PathBuf) -> Open {
    Open { role, path, room: ROOM, least: LEAST, upper: Upper::of(Protocol::Pcie, vec![0; 4]) }
}
