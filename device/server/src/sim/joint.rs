//! A link between two parts of a simulation: what left waits until its time is certain, then goes in order.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hca_model::link::LinkMessage;
use hca_model::{Ps, TunnelId, World};

use crate::simbricks::{Channel, Framing, LinkError, NetLink, Open, Role, net};

/// A link that is to be.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) tunnel: TunnelId,
    /// Its ends, for messages.
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) path: std::path::PathBuf,
    pub(super) framing: Framing,
}

impl Planned {
    pub(super) fn open(&self, run_dir: &Path) -> Open {
        Open {
            role: self.role,
            path: run_dir.join(&self.path),
            longest: net::LONGEST,
            least: self.framing.least(),
        }
    }
}

/// A link that is up.
#[derive(Debug)]
pub(super) struct Joint {
    tunnel: TunnelId,
    name: String,
    link: NetLink,
    /// From what happens here to the far connector, at least; from this side's connector to what is felt here.
    leaves: Ps,
    felt: Ps,
    /// What left, by its time and the order in which it left: something may be due before it that has not left yet.
    held: BTreeMap<(Ps, u64), LinkMessage>,
    count: u64,
}

impl Joint {
    pub(super) fn new(planned: Planned, channel: Channel, (leaves, felt): (Ps, Ps)) -> anyhow::Result<Self> {
        let Planned { tunnel, name, framing, .. } = planned;
        let link = NetLink::new(channel, framing);
        ensure!(
            leaves + felt > Ps(1),
            "the link between {name} takes no time: a simulation can't be cut there"
        );
        Ok(Self { tunnel, name, link, leaves, felt, held: BTreeMap::new(), count: 0 })
    }

    pub(super) fn is(&self, tunnel: TunnelId) -> bool {
        self.tunnel == tunnel
    }

    /// From when on something that is not here yet can be felt, if nothing is at the far connector of any link before `leaves`: what
    /// is may be answered at once.
    fn felt(&self, leaves: Ps) -> Ps {
        let channel = self.link.channel();
        channel.heard().max(channel.outlook().min(leaves)) + self.felt
    }

    /// Takes what has come. All has happened up to `reached`.
    pub(super) fn hear(&mut self, world: &mut World, reached: Ps) -> anyhow::Result<()> {
        while let Some((at, message)) = self.link.take().with_context(|| self.place())? {
            if at + self.felt <= reached && reached > Ps::ZERO {
                let early = LinkError::Early { at: at.0, reached: reached.0 };
                return Err(early).with_context(|| self.place());
            }
            world.deliver(self.tunnel, at, message);
        }
        Ok(())
    }

    /// When something more is at the far connector, at the earliest, if nothing happens here before `next`: what left already may be
    /// held.
    fn leaves(&self, next: Ps) -> Ps {
        let held = self.held.first_key_value().map(|((at, _), _)| *at);
        held.into_iter().fold(next + self.leaves, Ps::min)
    }

    fn place(&self) -> String {
        format!("the link between {}", self.name)
    }

    pub(super) fn hold(&mut self, at: Ps, message: LinkMessage) {
        self.count += 1;
        let at = self.link.whole(at, &message);
        self.held.insert((at, self.count), message);
    }

    /// All has happened here up to `reached`: what is due before anything else can be goes, and that is said; also that, without
    /// something by this link, nothing happens before `next`.
    pub(super) fn tell(&mut self, reached: Ps, next: Ps) -> anyhow::Result<()> {
        let certain = reached + self.leaves;
        let later = self.held.split_off(&(certain, 0));
        let told = std::mem::replace(&mut self.held, later)
            .into_iter()
            .try_for_each(|((at, _), message)| self.link.send(at, message));
        let outlook = self.leaves(next);
        let channel = self.link.channel_mut();
        told.and_then(|()| channel.promise(certain, outlook))
            .and_then(|()| channel.flush().map(|_| ()))
            .and_then(|()| channel.rouse())
            .with_context(|| format!("the link between {}", self.name))
    }

    /// Whether the neighbour is there, if it has to say more before `until`. All has happened up to `reached`.
    pub(super) fn look(&mut self, world: &mut World, reached: Ps, until: Ps) -> anyhow::Result<()> {
        if !self.link.channel().is_terminated() && self.link.channel().has_hung_up() {
            // What it said before it ended still counts.
            self.hear(world, reached)?;
            if self.felt(Ps::ZERO) <= until {
                let heard = self.link.channel().heard().0;
                return Err(LinkError::Ended { heard }).with_context(|| self.place());
            }
        }
        Ok(())
    }

    /// Nothing more comes from here. Returns when the neighbour can have all of it, or does not want it.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        let mut left = std::mem::take(&mut self.held).into_iter();
        left.try_for_each(|((at, _), message)| self.link.send(at, message)).with_context(|| self.place())?;
        let name = self.place();
        let channel = self.link.channel_mut();
        if channel.is_ours() {
            // Others' switches and hosts end with an error when they hear of it.
            channel.terminate().with_context(|| name.clone())?;
        }
        let mut patience = Patience::default();
        loop {
            let all = channel.flush().and_then(|all| channel.rouse().map(|()| all));
            if all.with_context(|| name.clone())? {
                return Ok(());
            }
            if patience.wait() == Wait::Rest {
                patience.doze();
                if channel.has_hung_up() {
                    return Ok(());
                }
            }
        }
    }
}

/// The last time at which nothing can be felt by any link that is not here yet, if nothing happens here before `next`; at most `until`.
pub(super) fn bound(joints: &[Joint], next: Ps, until: Ps) -> Ps {
    let leaves = first_to_leave(joints, next);
    joints.iter().map(|joint| joint.felt(leaves).since(Ps(1))).fold(until, Ps::min)
}

/// When something can happen here, if nothing happens before `next` by itself, and nothing more comes by link `place`.
pub(super) fn next_without(joints: &[Joint], place: usize, next: Ps) -> Ps {
    let leaves = first_to_leave(joints, next);
    let others = joints.iter().enumerate().filter(|(other, _)| *other != place);
    others.map(|(_, joint)| joint.felt(leaves)).fold(next, Ps::min)
}

fn first_to_leave(joints: &[Joint], next: Ps) -> Ps {
    joints.iter().map(|joint| joint.leaves(next)).min().unwrap_or(Ps::MAX)
}

/// Nothing can be done before a neighbour says more: sleeps until one does, or for a moment. Returns false if that can't be.
pub(super) fn rest(joints: &[Joint]) -> anyhow::Result<bool> {
    Channel::rest(joints.iter().map(|joint| joint.link.channel()), NAP).context("links to other processes")
}

/// How a process waits for another: it looks again at once for a moment, then lets others run, then sleeps.
#[derive(Debug, Default)]
pub(super) struct Patience {
    turns: u32,
    since: Option<Instant>,
}

/// What is to be done beside waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing.
    No,
    /// To sleep until there is something, or for a moment, and to see if the neighbours are there.
    Rest,
}

/// Turns without giving the processor away: a neighbour on another one answers within them.
const SPIN: u32 = 20;
/// After so long without anything new a process sleeps: falling asleep and waking up take some microseconds of each side.
const RESTLESS: Duration = Duration::from_millis(1);
/// After so long without anything new it does so even where nobody wakes it, between two looks.
const DULL: Duration = Duration::from_millis(20);
const BLINK: Duration = Duration::from_micros(200);
/// The longest sleep, after which it is seen if the neighbours are there.
const NAP: Duration = Duration::from_millis(20);

impl Patience {
    /// Waits for a moment. Returns what else is to be done.
    pub(super) fn wait(&mut self) -> Wait {
        self.turns = self.turns.saturating_add(1);
        if self.turns < SPIN {
            std::hint::spin_loop();
            return Wait::No;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > RESTLESS {
            return Wait::Rest;
        }
        std::thread::yield_now();
        Wait::No
    }

    /// Rests where nobody wakes: lets others run, and after a while sleeps between two looks.
    pub(super) fn doze(&self) {
        match self.since.is_some_and(|since| since.elapsed() > DULL) {
            true => std::thread::sleep(BLINK),
            false => std::thread::yield_now(),
        }
    }
}
