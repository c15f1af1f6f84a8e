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
use hca_model::timing::Profile;
use hca_model::{Ps, World};

use crate::simbricks;
use crate::topology::Topology;
use joint::{Joint, Patience, Wait};

/// How long the links of a topology take to train, at most.
pub fn training(topology: &Topology) -> Ps {
    let own = topology.hcas().filter_map(|(_, hca)| hca.profile.as_deref());
    let profiles = own.chain([topology.common_profile()]).filter_map(Profile::named);
    let slowest = profiles.map(|profile| profile.link_training()).max();
    topology.fabric.training_ms.map(Ps::from_ms).or(slowest).unwrap_or_default()
}

/// A part of a topology, and its links to the others.
pub struct Partition {
    world: World,
    joints: Vec<Joint>,
    reached: Ps,
    /// Steps since it was seen that the neighbours are there.
    unseen: u32,
}

/// Steps between two looks whether the neighbours are there: what they said last may do for long.
const LOOK: u32 = 1024;

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
            joints.push(Joint::new(joint, channel, lookahead)?);
        }
        Ok(Self { world: built.world, joints, reached: Ps::ZERO, unseen: 0 })
    }

    /// What is simulated.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// The time up to which everything has happened.
    pub fn reached(&self) -> Ps {
        self.reached
    }

    /// Lets everything happen up to `until`, at the neighbours' pace. What is done to the world then is done at that time. Before
    /// `quiet` nothing is, if nothing happens in it: so neighbours may go further.
    ///
    /// # Errors
    /// A neighbour has ended, or does not keep to the protocol; which link, and what is wrong.
    pub fn run_until(&mut self, until: Ps, quiet: Ps) -> anyhow::Result<()> {
        let mut patience = Patience::default();
        let mut quiet = quiet.max(until);
        loop {
            self.unseen += 1;
            if self.unseen >= LOOK {
                self.look(until)?;
            }
            for joint in &mut self.joints {
                joint.hear(&mut self.world, self.reached)?;
            }
            let next = self.next(quiet);
            let bound = joint::bound(&self.joints, next, until);
            let goes_on = bound > self.reached;
            if goes_on {
                if next <= bound {
                    quiet = until;
                }
                self.reached = bound;
                self.world.advance(bound);
            }
            self.tell(quiet)?;
            if self.reached >= until {
                return Ok(());
            }
            if goes_on {
                patience = Patience::default();
            } else if patience.wait() == Wait::Rest {
                self.rest(&patience)?;
                self.look(until)?;
            }
        }
    }

    /// When something happens here by itself, at the earliest, if nothing is done to the world before `quiet`.
    fn next(&self, quiet: Ps) -> Ps {
        self.world.next_event().map_or(quiet, |next| next.min(quiet))
    }

    /// Waits for a neighbour.
    fn rest(&self, patience: &Patience) -> anyhow::Result<()> {
        if !joint::rest(&self.joints)? {
            patience.doze();
        }
        Ok(())
    }

    /// Sees if the neighbours that have to say more before `until` are there.
    fn look(&mut self, until: Ps) -> anyhow::Result<()> {
        self.unseen = 0;
        let (world, reached) = (&mut self.world, self.reached);
        self.joints.iter_mut().try_for_each(|joint| joint.look(world, reached, until))
    }

    /// What left goes to the neighbours, and what they may count on: nothing is done to the world before `quiet`.
    fn tell(&mut self, quiet: Ps) -> anyhow::Result<()> {
        if self.joints.is_empty() {
            return Ok(());
        }
        for event in self.world.drain_tunnels(Ps::MAX) {
            if let Some(joint) = self.joints.iter_mut().find(|joint| joint.is(event.tunnel)) {
                joint.hold(event.at, event.message);
            }
        }
        let next = self.next(quiet);
        for place in 0..self.joints.len() {
            let next = joint::next_without(&self.joints, place, next);
            if let Some(joint) = self.joints.get_mut(place) {
                joint.tell(self.reached, next)?;
            }
        }
        Ok(())
    }

    /// The simulation is over: neighbours may go on as if nothing came any more.
    ///
    /// # Errors
    /// The memory of a link is gone.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.tell(self.reached)?;
        for joint in &mut self.joints {
            joint.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
