//! Hosts without guests: a program for each, all of them at once, on adapters that somebody else's engine simulates.
//!
//! An [`Engine`] has a world, or a part of one whose other parts are in other processes, and lets its time pass. Each adapter
//! in it gets a host: memory ([`memory`]), our driver, and a [`program`] that connects to its peers and sends what the
//! [`Plan`] says, every byte checked where it arrives. Programs take turns ([`stage`]): time stands while one of them runs, and each
//! looks at its queues at whole steps of time, so that what it does depends on what its adapter has done and on nothing else.
//!
//! All hosts make the same objects in the same order, so that they know each other's queue pairs without being told.
//! What happened is hashed by node ([`outcome`]): hashes of parts add up to that of the whole.

mod dynamic;
pub mod memory;
pub mod outcome;
pub mod plan;
pub mod program;
pub mod stage;
mod watch;

pub use outcome::{Hashes, Report};
pub use plan::{Address, Member, Pattern, Plan, Transport};
pub use stage::run;

use hca_model::{Ps, World};

use crate::Error;

/// Who simulates.
pub trait Engine: Send {
    /// What is simulated.
    fn world(&mut self) -> &mut World;

    /// Lets everything happen up to `until`. Before `quiet` nothing is done to the world, if nothing happens in it.
    ///
    /// # Errors
    /// It can't go on; why.
    fn run_until(&mut self, until: Ps, quiet: Ps) -> Result<(), Error>;

    /// It is over: others need not wait for it.
    ///
    /// # Errors
    /// That can't be said.
    fn finish(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

/// All of a topology in this process.
impl Engine for World {
    fn world(&mut self) -> &mut World {
        self
    }

    fn run_until(&mut self, until: Ps, _quiet: Ps) -> Result<(), Error> {
        self.advance(until);
        Ok(())
    }
}
