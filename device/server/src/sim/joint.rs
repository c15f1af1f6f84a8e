//! A link between two parts of a simulation: what left waits until its time is certain, then goes in order.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hca_model::link::LinkMessage;
use hca_model::{Ps, TunnelId, World};

use crate::simbricks::{LinkError, NetLink, Open, Role, net};

/// A link that is to be.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) tunnel: TunnelId,
    /// Its ends, for messages.
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) path: std::path::PathBuf,
}

impl Planned {
    pub(super) fn open(&self, run_dir: &Path) -> Open {
        Open { role: self.role, path: run_dir.join(&self.path), longest: net::LONGEST }
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
    pub(super) fn new(planned: Planned, link: NetLink, (leaves, felt): (Ps, Ps)) -> anyhow::Result<Self> {
        let Planned { tunnel, name, .. } = planned;
        ensure!(
            leaves + felt > Ps(1),
            "the link between {name} takes no time: a simulation can't be cut there"
        );
        Ok(Self { tunnel, name, link, leaves, felt, held: BTreeMap::new(), count: 0 })
    }

    pub(super) fn is(&self, tunnel: TunnelId) -> bool {
        self.tunnel == tunnel
    }

    /// Up to when nothing that is not here yet can be felt.
    pub(super) fn bound(&self) -> Ps {
        (self.link.channel().heard() + self.felt).since(Ps(1))
    }

    /// Takes what has come.
    pub(super) fn hear(&mut self, world: &mut World) -> anyhow::Result<()> {
        while let Some((at, message)) = self.link.take().with_context(|| self.place())? {
            world.deliver(self.tunnel, at, message);
        }
        Ok(())
    }

    fn place(&self) -> String {
        format!("the link between {}", self.name)
    }

    pub(super) fn hold(&mut self, at: Ps, message: LinkMessage) {
        self.count += 1;
        self.held.insert((at, self.count), message);
    }

    /// All has happened here up to that time: what is due before anything else can be goes, and that is said.
    pub(super) fn tell(&mut self, reached: Ps) -> anyhow::Result<()> {
        let certain = reached + self.leaves;
        let later = self.held.split_off(&(certain, 0));
        let told = std::mem::replace(&mut self.held, later)
            .into_iter()
            .try_for_each(|((at, _), message)| self.link.send(at, message));
        let channel = self.link.channel_mut();
        told.and_then(|()| channel.promise(certain))
            .and_then(|()| channel.flush().map(|_| ()))
            .with_context(|| format!("the link between {}", self.name))
    }

    /// Nothing has come for a while: whether the neighbour is there at all.
    pub(super) fn look(&mut self, world: &mut World, until: Ps) -> anyhow::Result<()> {
        if !self.link.channel().is_terminated() && self.link.channel().has_hung_up() {
            // What it said before it ended still counts.
            self.hear(world)?;
            if self.bound() < until {
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
        channel.terminate().with_context(|| name.clone())?;
        let mut patience = Patience::default();
        while !channel.flush().with_context(|| name.clone())? {
            if patience.wait() && channel.has_hung_up() {
                break;
            }
        }
        Ok(())
    }
}

/// How a process waits for another: it looks again at once for a moment, then lets others run, then sleeps.
#[derive(Debug, Default)]
pub(super) struct Patience {
    turns: u32,
    since: Option<Instant>,
}

/// Turns without giving the processor away: a neighbour on another one answers within them.
const SPIN: u32 = 20;
/// Turns between two looks whether the neighbour is there.
const LOOK: u32 = 256;
/// After so long without anything new a process sleeps between two looks.
const RESTLESS: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(200);

impl Patience {
    /// Waits for a moment. Returns whether it is time to see if the neighbours are there.
    pub(super) fn wait(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        if self.turns < SPIN {
            std::hint::spin_loop();
            return false;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.turns.is_multiple_of(LOOK) && since.elapsed() > RESTLESS {
            std::thread::sleep(NAP);
            self.turns = self.turns.wrapping_sub(1);
            return true;
        }
        std::thread::yield_now();
        self.turns.is_multiple_of(LOOK)
    }
}
