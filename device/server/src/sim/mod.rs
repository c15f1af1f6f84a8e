//! A simulation without guests: a part of a topology with the model's time and nobody else's, joined to other parts.
//!
//! There is no pacer: a part goes as far as its neighbours have promised that nothing comes, and promises them in turn. What
//! happens does not depend on how a topology is cut, since nodes share nothing but links, which take their time
//! ([`hca_model::World::deliver`]), and each process makes the tables of the subnet, and the ways between
//! Ethernet switches, from the whole topology ([`hca_model::FabricPlan`]). Hosts of adapters may be other simulators, too ([`crate::simbricks::pcie`]).

mod build;
mod calm;
mod far;
mod goals;
mod joint;
mod neighbours;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use hca_model::timing::Profile;
use hca_model::{Effect, Ps, World};

use crate::model;
use crate::simbricks::patience::{NAP, Patience, Wait};
use crate::simbricks::pcie::Clock;
use crate::simbricks::{self, Channel, LinkError, Rest};
use crate::topology::{Hca, Topology};
use calm::Calm;
use far::Far;
use goals::Goals;
use joint::Joint;
use neighbours::Neighbours;

/// How long the links of a topology take to train, at most.
pub fn training(topology: &Topology) -> Ps {
    let own = topology.hcas().filter_map(|(_, hca)| hca.profile.as_deref());
    let profiles = own.chain([topology.common_profile()]).filter_map(Profile::named);
    let slowest = profiles.map(|profile| profile.link_training()).max();
    topology.fabric.training_ms.map(Ps::from_ms).or(slowest).unwrap_or_default()
}

/// What a crossing of the PCI Express link takes that joins an adapter to a host elsewhere.
pub fn crossing(topology: &Topology, hca: &Hca) -> Ps {
    model::crossing(topology, hca)
}

/// Where something comes from that is not simulated here.
trait Edge {
    /// From when on something that is not here yet can be felt, if nothing happens here before `next`, and nothing is at the far
    /// connector of any link before `leaves`.
    fn felt(&self, next: Ps, leaves: Ps) -> Ps;

    /// When something more is at the far connector of a link, at the earliest, if nothing happens here before `next`.
    fn leaves(&self, _next: Ps) -> Ps {
        Ps::MAX
    }

    /// When all has happened here up to that time, something leaves that is held back.
    fn holds(&self) -> Option<Ps> {
        None
    }

    /// Up to when nothing comes, as is told, if nothing happens here before `next` but by what comes from there.
    fn tells(&self, next: Ps) -> Ps;

    /// By how much that is after `next`, and how much later than at the connector what comes is felt here.
    fn lookahead(&self) -> (Ps, Ps);

    /// See [`Channel::needed`].
    fn needed(&self) -> Result<Option<Ps>, LinkError>;

    /// See [`Channel::wait_for`].
    fn wait_for(&self, need: Ps, looks: Ps) -> Result<(), LinkError>;
}

/// A part of a topology, and its links to the others.
pub struct Partition {
    world: World,
    joints: Vec<Joint>,
    neighbours: Neighbours,
    /// Adapters whose hosts are other simulators, and the time of what these adapters do.
    hosts: Vec<Far>,
    clock: Clock,
    /// There is a host that may wait for another of its adapters before it answers one.
    strangers: bool,
    /// There is a neighbour that does not say what he needs, and so is told all that can be.
    eager: bool,
    goals: Goals,
    calm: Calm,
    reached: Ps,
    /// How often it went on.
    steps: u64,
    /// Steps since it was seen that the neighbours are there.
    unseen: u32,
    /// How often they were told something since they were woken.
    unrung: u32,
    patience: Patience,
    /// The longest sleep.
    nap: Duration,
}

/// What the memory of a link is that is gone, where it is not known which.
const NEIGHBOURS: &str = "links to other processes";
/// Steps between two looks whether the neighbours are there: what they said last may do for long.
const LOOK: u32 = 1024;
/// Neighbours are woken when this part has to wait itself, once for all that they were told, and after so many times at the latest.
const TELLS: u32 = 16;

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
        let mut built = build::world(topology, process)?;
        let mut links: Vec<_> = built.joints.iter().map(|joint| joint.open(run_dir)).collect();
        links.extend(built.hosts.iter_mut().map(|host| host.open(run_dir, &mut built.world)));
        let mut channels = simbricks::open(&links, patience)?.into_iter();
        let (mut joints, mut hosts, clock) = (Vec::new(), Vec::new(), Clock::default());
        for (joint, channel) in built.joints.into_iter().zip(&mut channels) {
            let lookahead = built.world.lookahead(joint.tunnel).context("a link leads to no process")?;
            joints.push(Joint::new(joint, channel, lookahead)?);
        }
        for (host, channel) in built.hosts.into_iter().zip(channels) {
            hosts.push(Far::new(host, channel, &clock, &mut built.world)?);
        }
        let strangers = hosts.iter().any(|host| !host.link().is_ours());
        let eager = strangers || joints.iter().any(|joint| !joint.channel().is_ours());
        let patience = Patience::default();
        let calm = Calm::new(&built.tree, &joints);
        let neighbours = Neighbours::new(&joints, hosts.len());
        Ok(Self {
            world: built.world,
            joints,
            neighbours,
            hosts,
            clock,
            strangers,
            eager,
            goals: Goals::default(),
            calm,
            reached: Ps::ZERO,
            steps: 0,
            unseen: 0,
            unrung: 0,
            patience,
            nap: NAP,
        })
    }

    /// What is simulated.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// The time up to which everything has happened.
    pub fn reached(&self) -> Ps {
        self.reached
    }

    /// How often it went on so far: each time as far as its neighbours had promised.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Lets everything happen up to `until`, at the neighbours' pace. What is done to the world then is done at that time. Before
    /// what `quiet` says nothing is, as far as is known when it is asked: so neighbours may go further.
    ///
    /// # Errors
    /// A neighbour has ended, or does not keep to the protocol; which link, and what is wrong.
    pub fn run_until(&mut self, until: Ps, quiet: &dyn Fn() -> Ps) -> anyhow::Result<()> {
        if self.edges().next().is_none() {
            self.world.advance(until);
            self.reached = until;
            return Ok(());
        }
        self.patience.renew();
        // What was done to the world is told.
        let mut news = true;
        loop {
            self.unseen += 1;
            if self.unseen >= LOOK {
                self.look(until)?;
            }
            for joint in &mut self.joints {
                joint.hear(&mut self.world, self.reached)?;
            }
            // What came may be answered at once: a port that is full asks its peer to wait.
            self.gather();
            self.neighbours.count(&mut self.joints);
            self.hosts.iter().try_for_each(|host| host.hear(self.reached))?;
            let silent = quiet().max(until);
            let next = self.next(silent);
            let (felt, goal) = (self.felt(next), self.goal(next));
            // Nothing can be felt up to this that is not here yet.
            let bound = felt.first().since(Ps(1)).min(until);
            // What is done to the world may be due at once.
            let goes_on = bound >= self.reached && bound >= goal.min(until);
            if goes_on || news || self.can_help(next, felt).context(NEIGHBOURS)? {
                if bound >= self.reached {
                    self.steps += 1;
                    self.calm.went_on(next <= bound);
                    self.go(bound, silent)?;
                }
                self.tell(quiet().max(until))?;
                news = false;
                if self.reached >= until {
                    return Ok(());
                }
                self.patience.renew();
            } else {
                self.wait(next, goal, until)?;
            }
        }
    }

    /// Lets everything happen up to `bound`. With hosts elsewhere that is event by event, so that what adapters ask of them has its
    /// time.
    fn go(&mut self, bound: Ps, quiet: Ps) -> anyhow::Result<()> {
        while !self.hosts.is_empty() {
            let due = self.hosts.iter().filter_map(Far::due).min();
            let Some(at) = self.world.next_event().into_iter().chain(due).min() else { break };
            if at > bound {
                break;
            }
            if self.strangers && at > self.reached + Ps(1) {
                self.reached = at.since(Ps(1));
                self.world.advance(self.reached);
                self.tell(quiet.min(at))?;
            }
            self.clock.set(at);
            match due == Some(at) {
                true => {
                    let due = |host: &&mut Far| host.due().is_some_and(|due| due <= at);
                    self.hosts.iter_mut().filter(due).for_each(|host| host.serve(&mut self.world, at));
                }
                false => self.world.advance(at),
            }
            self.interrupt();
        }
        self.world.advance(bound);
        self.clock.set(bound);
        self.reached = bound;
        self.hosts.iter().try_for_each(Far::check)
    }

    /// Interrupts of adapters whose hosts are elsewhere are told.
    fn interrupt(&mut self) {
        if !self.world.has_effects() {
            return;
        }
        for effect in self.world.drain() {
            let Effect::Msix { hca, vector, .. } = effect;
            if let Some(host) = self.hosts.iter_mut().find(|host| host.is(hca)) {
                host.raise(vector);
            }
        }
    }

    fn edges(&self) -> impl Iterator<Item = &dyn Edge> {
        let hosts = self.hosts.iter().map(|host| host as &dyn Edge);
        self.joints.iter().map(|joint| joint as &dyn Edge).chain(hosts)
    }

    /// When something is at the far connector of a link at the earliest, if nothing happens here before `next`.
    fn first_to_leave(&self, next: Ps) -> Ps {
        self.edges().map(|edge| edge.leaves(next)).min().unwrap_or(Ps::MAX)
    }

    /// When something happens here by itself, at the earliest, if nothing is done to the world before `quiet`.
    fn next(&self, quiet: Ps) -> Ps {
        let due = self.hosts.iter().filter_map(Far::due);
        self.world.next_event().into_iter().chain(due).fold(quiet, Ps::min)
    }

    /// Waits for the neighbours to promise more.
    fn wait(&mut self, next: Ps, goal: Ps, until: Ps) -> anyhow::Result<()> {
        if self.confer(next).context(NEIGHBOURS)? {
            return Ok(());
        }
        let mut goals = std::mem::take(&mut self.goals);
        let said = self.say_needs(&mut goals, next, goal).context(NEIGHBOURS);
        self.goals = goals;
        said?;
        self.rouse()?;
        if self.patience.wait() == Wait::Rest {
            match self.rest()? {
                Rest::Woken => {}
                Rest::Looks => self.look(until)?,
                Rest::Never => {
                    self.patience.doze();
                    self.look(until)?;
                }
            }
        }
        Ok(())
    }

    /// Sleeps until there is something that is waited for.
    fn rest(&self) -> anyhow::Result<Rest> {
        let hosts: Vec<_> = self.hosts.iter().map(|host| host.link().lock()).collect();
        let channels = self.joints.iter().map(Joint::channel).chain(hosts.iter().map(|host| &**host));
        let still = || Ok(self.goals.are_still(channels.clone())? && self.calm.is_still(&self.joints)?);
        Channel::rest(channels.clone(), self.nap, still).context(NEIGHBOURS)
    }

    /// Sees if the neighbours that have to say more before `until` are there.
    fn look(&mut self, until: Ps) -> anyhow::Result<()> {
        self.unseen = 0;
        let (world, reached) = (&mut self.world, self.reached);
        self.joints.iter_mut().try_for_each(|joint| joint.look(world, reached, until))?;
        self.hosts.iter().try_for_each(|host| host.look(reached, until))
    }

    /// What has left waits until its time is certain.
    fn gather(&mut self) {
        for event in self.world.drain_tunnels(Ps::MAX) {
            if let Some(joint) = self.joints.iter_mut().find(|joint| joint.is(event.tunnel)) {
                joint.hold(event.at, event.message);
            }
        }
    }

    /// What left goes to the neighbours, and what they may count on: nothing is done to the world before `quiet`.
    fn tell(&mut self, quiet: Ps) -> anyhow::Result<()> {
        if self.joints.is_empty() && self.hosts.is_empty() {
            return Ok(());
        }
        self.gather();
        let next = self.next(quiet);
        let (reached, felt, hosts) = (self.reached, self.felt(next), self.joints.len()..);
        let without = |place| felt.without(self.neighbours.of(place)).min(next);
        for (place, joint) in self.joints.iter_mut().enumerate() {
            joint.tell(reached, without(place))?;
        }
        for (place, host) in hosts.zip(&self.hosts) {
            host.tell(reached, without(place))?;
        }
        self.neighbours.count(&mut self.joints);
        self.unrung += 1;
        // An adapter that waits for its host says nothing meanwhile.
        if self.unrung >= TELLS || !self.hosts.is_empty() { self.rouse() } else { Ok(()) }
    }

    /// Wakes neighbours that sleep and wait for what they were told.
    fn rouse(&mut self) -> anyhow::Result<()> {
        self.unrung = 0;
        self.joints.iter_mut().try_for_each(Joint::rouse)?;
        self.hosts.iter().try_for_each(Far::rouse)
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
        self.calm.end(&self.joints).context(NEIGHBOURS)?;
        self.hosts.iter().try_for_each(Far::finish)
    }
}

#[cfg(test)]
mod tests;
