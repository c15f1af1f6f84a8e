//! The seam between the engine and what attaches an adapter to a host.
//!
//! A front end serves one PCI function to one host after the other, by a protocol or in another way that only it knows.
//! The engine gives it time: it waits for the descriptors that [`FrontEnd::watch`] names, and then calls
//! [`FrontEnd::serve`] with an [`Endpoint`], which is all that a front end sees of the adapter.
//!
//! | what happens at the host | the front end calls |
//! |---|---|
//! | it is there, it goes away | [`Endpoint::attach`], [`Endpoint::detach`] |
//! | it reads or writes configuration space or a BAR | [`Endpoint::read`], [`Endpoint::write`] |
//! | memory appears, with a descriptor or without | [`Endpoint::map`] with a [`Backing`] |
//! | memory disappears | [`Endpoint::unmap`]; after its return the adapter does not access that memory any more |
//! | it wants to hear of an interrupt vector, or not for now | [`Endpoint::connect`], [`Endpoint::mask`] |
//! | it resets the function | [`Endpoint::reset`] |
//!
//! In the other direction the adapter reaches memory without a descriptor through the [`RemoteMemory`] that
//! [`Endpoint::attach`] was given, and tells of an interrupt through the [`Signal`] of its vector.
//!
//! [`Backing`]: crate::memory::Backing
//! [`RemoteMemory`]: crate::memory::RemoteMemory
//! [`Signal`]: crate::pci::msix::Signal

use std::fmt;
use std::os::fd::BorrowedFd;

use nix::poll::PollFlags;

pub use crate::function::Endpoint;

/// A descriptor that a front end waits for.
#[derive(Debug, Clone, Copy)]
pub struct Watch<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// What has to happen to it. Errors and hang-ups are reported in any case.
    pub events: PollFlags,
}

/// What attaches one function of an adapter to hosts, one at a time.
///
/// A front end never blocks and never trusts its host: whatever the host does wrong ends in an error for the host.
pub trait FrontEnd: fmt::Debug + Send {
    /// Names the descriptors to wait for, until the next call.
    fn watch<'a>(&'a self, add: &mut dyn FnMut(Watch<'a>));

    /// True if there is something to do that no descriptor announces.
    fn has_work(&self) -> bool;

    /// Does what the host has asked for, a bounded amount of it, so that other adapters get their turn.
    ///
    /// `ready` has one flag for each descriptor of the last [`FrontEnd::watch`], in its order. The front end calls
    /// [`Endpoint::detach`] itself when its host goes away.
    fn serve(&mut self, ready: &[bool], endpoint: &mut Endpoint<'_>);

    /// The adapter is taken out of its slot: whoever is there is let go of, for that reason.
    fn take_out(&mut self, endpoint: &mut Endpoint<'_>, reason: &str);
}
