//! A link between two parts of a simulation: what left waits until its time is certain, then goes in order.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use hca_model::link::LinkMessage;
use hca_model::{Ps, TunnelId, World, mix};

use super::Edge;
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
    /// To another part of the topology: the number by which both call the link, and which end is here, 0 or 1.
    pub(super) between: Option<(u16, usize)>,
    /// The part there.
    pub(super) peer: Option<String>,
}

impl Planned {
    pub(super) fn open(&self, run_dir: &Path) -> Open {
        let path = run_dir.join(&self.path);
        Open::network(self.role, path, net::LONGEST, self.framing.least())
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
    /// Its number, and whether this is its first end, if it is between two parts of ours.
    between: Option<(u16, bool)>,
    peer: Option<String>,
    /// Nothing is at a connector of such a link before this.
    calm: Ps,
}

impl Edge for Joint {
    /// What is at the far connector may be answered at once.
    fn felt(&self, _next: Ps, leaves: Ps) -> Ps {
        let channel = self.link.channel();
        channel.heard().max(self.calm).max(channel.outlook().min(leaves)) + self.felt
    }

    /// What left already may be held.
    fn leaves(&self, next: Ps) -> Ps {
        let held = self.held.first_key_value().map(|((at, _), _)| *at);
        held.into_iter().fold(next + self.leaves, Ps::min)
    }

    fn holds(&self) -> Option<Ps> {
        self.held.first_key_value().map(|((at, _), _)| at.since(self.leaves))
    }

    fn tells(&self, next: Ps) -> Ps {
        self.leaves(next)
    }

    fn lookahead(&self) -> (Ps, Ps) {
        (self.leaves, self.felt)
    }

    fn needed(&self) -> Result<Option<Ps>, LinkError> {
        self.channel().needed()
    }

    fn wait_for(&self, need: Ps, looks: Ps) -> Result<(), LinkError> {
        self.channel().wait_for(need, looks)
    }
}

impl Joint {
    pub(super) fn new(planned: Planned, channel: Channel, (leaves, felt): (Ps, Ps)) -> anyhow::Result<Self> {
        let Planned { tunnel, name, framing, between, peer, .. } = planned;
        let between = between.filter(|_| channel.is_ours()).map(|(number, here)| (number, here == 0));
        let link = NetLink::new(channel, framing);
        ensure!(
            leaves + felt > Ps(1),
            "the link between {name} takes no time: a simulation can't be cut there"
        );
        Ok(Self {
            tunnel,
            name,
            link,
            leaves,
            felt,
            held: BTreeMap::new(),
            count: 0,
            between,
            peer,
            calm: Ps::ZERO,
        })
    }

    pub(super) fn channel(&self) -> &Channel {
        self.link.channel()
    }

    /// Its number, if it is between two parts of ours.
    pub(super) fn number(&self) -> Option<u16> {
        self.between.map(|(number, _)| number)
    }

    /// The part there, if it is another of ours.
    pub(super) fn peer(&self) -> Option<&str> {
        self.between.and(self.peer.as_deref())
    }

    /// Nothing is at a connector of links between parts before that.
    pub(super) fn is_calm_until(&mut self, until: Ps) {
        if self.between.is_some() {
            self.calm = self.calm.max(until);
        }
    }

    /// What this end counts of the link: the sum of both is 0 if all that was sent was taken ([`super::calm`]).
    pub(super) fn balance(&self) -> u64 {
        // All was taken of who has ended, who counts nothing any more.
        let Some((number, first)) = self.between.filter(|_| !self.channel().is_terminated()) else {
            return 0;
        };
        let [sent, taken] = self.channel().counts();
        let factor = |which: u64| mix(super::build::SPREAD.wrapping_mul(u64::from(number) * 3 + which + 1));
        let (out, inward) = if first { (1, 2) } else { (2, 1) };
        let counted = sent.wrapping_mul(factor(out)).wrapping_sub(taken.wrapping_mul(factor(inward)));
        match first {
            true => counted.wrapping_add(factor(0)),
            false => counted.wrapping_sub(factor(0)),
        }
    }

    pub(super) fn is(&self, tunnel: TunnelId) -> bool {
        self.tunnel == tunnel
    }

    /// What went and came by all other links to that part.
    pub(super) fn set_beside(&mut self, counts: [u64; 2]) {
        self.link.channel_mut().set_beside(counts);
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
        let later = self.held.split_off(&(certain, u64::MAX));
        let told = std::mem::replace(&mut self.held, later)
            .into_iter()
            .try_for_each(|((at, _), message)| self.link.send(at, message));
        let outlook = self.leaves(next);
        let channel = self.link.channel_mut();
        told.and_then(|()| channel.promise(certain, outlook))
            .and_then(|()| channel.flush().map(|_| ()))
            .with_context(|| format!("the link between {}", self.name))
    }

    /// Wakes the neighbour, if it sleeps and waits for what was told.
    pub(super) fn rouse(&mut self) -> anyhow::Result<()> {
        self.link.channel_mut().rouse().with_context(|| format!("the link between {}", self.name))
    }

    /// Whether the neighbour is there, if it has to say more before `until`; one of ours has to, until it says that it ends. All has
    /// happened up to `reached`.
    pub(super) fn look(&mut self, world: &mut World, reached: Ps, until: Ps) -> anyhow::Result<()> {
        if !self.link.channel().is_terminated() && self.link.channel().has_hung_up() {
            // What it said before it ended still counts.
            self.hear(world, reached)?;
            self.link.channel().ended_before(until, self.felt).with_context(|| self.place())?;
        }
        Ok(())
    }

    /// Nothing more comes from here. Returns when the neighbour can have all of it, or does not want it.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        let mut left = std::mem::take(&mut self.held).into_iter();
        left.try_for_each(|((at, _), message)| self.link.send(at, message)).with_context(|| self.place())?;
        self.link.channel_mut().end().with_context(|| self.place())
    }
}
