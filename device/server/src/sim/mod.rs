//! A simulation without guests: a part of a topology with the model's time and nobody else's, joined to other parts.
//!
//! There is no pacer: a part goes as far as its neighbours have promised that nothing comes, and promises them in turn. What
//! happens does not depend on how a topology is cut, since nodes share nothing but links, which take their time
//! ([`hca_model::World::deliver`]), and each process makes the tables of the subnet from the whole topology
//! ([`hca_model::SubnetPlan`]).

mod build;
mod joint;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use hca_model::{Ps, World};

use crate::simbricks;
use crate::topology::Topology;
use joint::{Joint, Patience};

/// A part of a topology, and its links to the others.
pub struct Partition {
    world: World,
    joints: Vec<Joint>,
    reached: Ps,
}

impl Partition {
    /// What that process of the topology simulates, or (`None`) all of it. Sockets are in `run_dir`; all neighbours have to be there
    /// within `patience`.
    ///
    /// # Errors
    /// The topology has what a simulation can't have, or a neighbour is not there or not what it should be.
    pub fn new(
        topology: &Topology,
        process: Option<&str>,
        run_dir: &Path,
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let built = build::world(topology, process)?;
        let links: Vec<_> = built.joints.iter().map(|joint| joint.open(run_dir)).collect();
        let channels = simbricks::open(&links, patience)?;
        let mut joints = Vec::new();
        for (joint, channel) in built.joints.into_iter().zip(channels) {
            let lookahead = built.world.lookahead(joint.tunnel).context("a link leads to no process")?;
            joints.push(Joint::new(joint, simbricks::NetLink::new(channel), lookahead)?);
        }
        Ok(Self { world: built.world, joints, reached: Ps::ZERO })
    }

    /// What is simulated.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// The time up to which everything has happened.
    pub fn reached(&self) -> Ps {
        self.reached
    }

    /// Lets everything happen up to that time, at the neighbours' pace. What is done to the world then is done at that time.
    ///
    /// # Errors
    /// A neighbour has ended, or does not keep to the protocol; which link, and what is wrong.
    pub fn run_until(&mut self, until: Ps) -> anyhow::Result<()> {
        let mut patience = Patience::default();
        loop {
            let mut bound = until;
            for joint in &mut self.joints {
                joint.hear(&mut self.world)?;
                bound = bound.min(joint.bound());
            }
            let goes_on = bound > self.reached;
            if goes_on {
                self.reached = bound;
                self.world.advance(bound);
            }
            self.tell()?;
            if self.reached >= until {
                return Ok(());
            }
            if goes_on {
                patience = Patience::default();
            } else if patience.wait() {
                for joint in &mut self.joints {
                    joint.look(&mut self.world, until)?;
                }
            }
        }
    }

    /// What left goes to the neighbours, and what they may count on.
    fn tell(&mut self) -> anyhow::Result<()> {
        if self.joints.is_empty() {
            return Ok(());
        }
        for event in self.world.drain_tunnels(Ps::MAX) {
            if let Some(joint) = self.joints.iter_mut().find(|joint| joint.is(event.tunnel)) {
                joint.hold(event.at, event.message);
            }
        }
        self.joints.iter_mut().try_for_each(|joint| joint.tell(self.reached))
    }

    /// The simulation is over: neighbours may go on as if nothing came any more.
    ///
    /// # Errors
    /// The memory of a link is gone.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.tell()?;
        for joint in &mut self.joints {
            joint.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
