//! Hosts without guests: a program for each, all of them at once, on adapters that somebody else's engine simulates.
//!
//! An [`Engine`] has a world, or a part of one whose other parts are in other processes, and lets its time pass. Each adapter
//! in it gets a host: memory ([`memory`]), our driver, and a [`program`] that connects to its peers and sends what the
//! [`Plan`] says, every byte checked where it arrives; all of them together may add vectors up, or read blocks of some. Programs take
//! turns ([`stage`]): time stands while one of them runs, and each looks at its queues at whole steps of time, so that what it does
//! depends on what its adapter has done and on nothing else.
//!
//! The adapters may also be somewhere else ([`far`]): each host then has a time of its own, which follows that of its adapter.
//!
//! All hosts make the same objects in the same order, so that they know each other's queue pairs without being told.
//! What happened is hashed by node ([`outcome`]): hashes of parts add up to that of the whole.

mod connect;
mod dynamic;
pub mod far;
pub mod memory;
pub mod outcome;
pub mod plan;
pub mod program;
mod reduce;
pub mod stage;
mod storage;
mod watch;

pub use outcome::{Collective, Hashes, Measured, Report, Storage};
pub use plan::{Address, Member, Operation, Pattern, Plan, Transport};
pub use stage::run;

use std::sync::Arc;

use hca_model::{GuestMemory, HcaId, Ps, World};

use crate::Error;

/// Who simulates.
pub trait Engine: Send {
    /// What is simulated.
    fn world(&mut self) -> &mut World;

    /// Lets everything happen up to `until`. Before what `quiet` says nothing is done to the world, as far as is known when it is asked:
    /// what happens may change that, to `until` at the earliest.
    ///
    /// # Errors
    /// It can't go on; why.
    fn run_until(&mut self, until: Ps, quiet: &dyn Fn() -> Ps) -> Result<(), Error>;

    /// It is over: others need not wait for it.
    ///
    /// # Errors
    /// That can't be said.
    fn finish(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

/// A part of a world that somebody else lets pass: an [`Engine`], by what that does.
pub struct Driven<P> {
    /// The part.
    pub part: P,
    /// [`Engine::world`].
    pub world: fn(&mut P) -> &mut World,
    /// [`Engine::run_until`].
    pub run_until: fn(&mut P, Ps, &dyn Fn() -> Ps) -> anyhow::Result<()>,
    /// [`Engine::finish`].
    pub finish: fn(P) -> anyhow::Result<()>,
}

impl<P: Send> Engine for Driven<P> {
    fn world(&mut self) -> &mut World {
        (self.world)(&mut self.part)
    }

    fn run_until(&mut self, until: Ps, quiet: &dyn Fn() -> Ps) -> Result<(), Error> {
        (self.run_until)(&mut self.part, until, quiet).map_err(|why| Error::new(format!("{why:#}")))
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        (self.finish)(self.part).map_err(|why| Error::new(format!("{why:#}")))
    }
}

/// Adapters as their hosts reach them.
pub trait Adapters: Send {
    /// The host is there, with this memory.
    fn attach(&mut self, hca: HcaId, memory: Arc<dyn GuestMemory>);

    /// Reads a register of 32 bits. `None`: [`Adapters::answer`] has what it is when the host has its next turn, or a later one.
    fn load(&mut self, now: Ps, hca: HcaId, offset: u64) -> Option<u32>;

    /// What was read and not there yet.
    fn answer(&mut self, hca: HcaId) -> Option<u32>;

    /// Writes registers.
    fn store(&mut self, now: Ps, hca: HcaId, offset: u64, data: &[u8]);

    /// What the host's processor has not stored yet it stores now.
    fn flush(&mut self, now: Ps, hca: HcaId);
}

impl Adapters for World {
    fn attach(&mut self, hca: HcaId, memory: Arc<dyn GuestMemory>) {
        World::attach(self, hca, memory);
    }

    fn load(&mut self, now: Ps, hca: HcaId, offset: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.mmio_read(now, hca, offset, &mut word);
        Some(u32::from_be_bytes(word))
    }

    fn answer(&mut self, _hca: HcaId) -> Option<u32> {
        None
    }

    fn store(&mut self, now: Ps, hca: HcaId, offset: u64, data: &[u8]) {
        self.mmio_write(now, hca, offset, data);
    }

    fn flush(&mut self, now: Ps, hca: HcaId) {
        if self.combining(hca).is_some() {
            self.flush_stores(now, hca);
        }
    }
}

/// All of a topology in this process.
impl Engine for World {
    fn world(&mut self) -> &mut World {
        self
    }

    fn run_until(&mut self, until: Ps, _quiet: &dyn Fn() -> Ps) -> Result<(), Error> {
        self.advance(until);
        Ok(())
    }
}
