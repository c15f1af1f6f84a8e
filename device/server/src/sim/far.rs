//! An adapter of a simulation whose host is another simulator.

use anyhow::Context;
use hca_model::{HcaId, Ps, World};

use super::Edge;
use crate::front_end::FrontEnd;
use crate::function::{Endpoint, Function};
use crate::simbricks::pcie::{self, Clock, DeviceLink, PcieFrontEnd};
use crate::simbricks::{Channel, LinkError, Open, Role};

/// Stores to BlueFlame registers that nothing has continued for so long are doorbells: a processor that fills a buffer does so in
/// tens of nanoseconds. An estimate.
const COMBINE_WAIT: Ps = Ps::from_us(1);

/// A host that is to be.
#[derive(Debug)]
pub(super) struct PlannedHost {
    pub(super) function: Function,
    pub(super) role: Role,
    /// Where its socket is.
    pub(super) path: std::path::PathBuf,
    /// What a crossing of the link takes.
    pub(super) crossing: Ps,
}

impl PlannedHost {
    /// The link of it, with what its adapter says of itself.
    pub(super) fn open(&mut self, run_dir: &std::path::Path, world: &mut World) -> Open {
        let intro = pcie::describe(&mut Endpoint::at(&mut self.function, world, Ps::ZERO));
        pcie::of_device(self.role, run_dir.join(&self.path), &intro)
    }
}

/// Stores that wait for their continuation.
#[derive(Debug, Clone, Copy)]
struct Combining {
    stores: u64,
    until: Ps,
}

/// An adapter and its link to a host.
#[derive(Debug)]
pub(super) struct Far {
    function: Function,
    front_end: PcieFrontEnd,
    crossing: Ps,
    combining: Option<Combining>,
}

impl Edge for Far {
    /// A host answers what leaves here at `next` after a crossing each way, and does nothing else before what it has said.
    fn felt(&self, next: Ps, _leaves: Ps) -> Ps {
        let channel = self.front_end.link().lock();
        channel.heard().max(channel.outlook().min(next + self.crossing + self.crossing))
    }

    fn tells(&self, next: Ps) -> Ps {
        next + self.crossing
    }

    fn lookahead(&self) -> (Ps, Ps) {
        (self.crossing, Ps::ZERO)
    }

    fn needed(&self) -> Result<Option<Ps>, LinkError> {
        self.link().lock().needed()
    }

    fn wait_for(&self, need: Ps, looks: Ps) -> Result<(), LinkError> {
        self.link().lock().wait_for(need, looks)
    }
}

impl Far {
    /// The host is there.
    pub(super) fn new(
        planned: PlannedHost,
        channel: Channel,
        clock: &Clock,
        world: &mut World,
    ) -> anyhow::Result<Self> {
        let PlannedHost { mut function, crossing, .. } = planned;
        let link = DeviceLink::new(channel, crossing, clock.clone()).into();
        let mut endpoint = Endpoint::at(&mut function, world, Ps::ZERO);
        let front_end = PcieFrontEnd::attach(link, clock.clone(), &mut endpoint)
            .with_context(|| format!("the host of {}", endpoint.name()))?;
        Ok(Self { function, front_end, crossing, combining: None })
    }

    pub(super) fn link(&self) -> &DeviceLink {
        self.front_end.link()
    }

    fn place(&self) -> String {
        format!("the host of {} (PCI Express)", self.function.name())
    }

    fn hca(&self) -> HcaId {
        self.function.place().hca
    }

    pub(super) fn is(&self, hca: HcaId) -> bool {
        self.hca() == hca
    }

    /// Takes what has come. All has happened up to `reached`.
    pub(super) fn hear(&self, reached: Ps) -> anyhow::Result<()> {
        self.link().hear().with_context(|| self.place())?;
        match self.link().first() {
            Some(at) if at <= reached && reached > Ps::ZERO => {
                Err(LinkError::Early { at: at.0, reached: reached.0 }).with_context(|| self.place())
            }
            _ => Ok(()),
        }
    }

    /// When something is to be done that the host has asked for.
    pub(super) fn due(&self) -> Option<Ps> {
        self.link().first().into_iter().chain(self.combining.map(|combining| combining.until)).min()
    }

    /// Does what is due.
    pub(super) fn serve(&mut self, world: &mut World, now: Ps) {
        if self.front_end.has_work() {
            self.front_end.serve(&[], &mut Endpoint::at(&mut self.function, world, now));
        }
        let Some(stores) = world.combining(self.hca()) else {
            self.combining = None;
            return;
        };
        match self.combining {
            Some(known) if known.stores == stores && known.until <= now => {
                world.flush_stores(now, self.hca());
                self.combining = None;
            }
            Some(known) if known.stores == stores => {}
            _ => self.combining = Some(Combining { stores, until: now + COMBINE_WAIT }),
        }
    }

    /// The adapter interrupts its host.
    pub(super) fn raise(&mut self, vector: u16) {
        self.function.raise(vector);
    }

    /// Whether the link has done what it should.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.link().check().with_context(|| self.place())
    }

    /// All has happened here up to `reached`, and nothing does before `next` unless the host does something: says so.
    pub(super) fn tell(&self, reached: Ps, next: Ps) -> anyhow::Result<()> {
        let mut channel = self.link().lock();
        channel
            .promise(reached + self.crossing, next + self.crossing)
            .and_then(|()| channel.flush().map(|_| ()))
            .with_context(|| self.place())
    }

    /// Wakes the host, if it sleeps and waits for what was told.
    pub(super) fn rouse(&self) -> anyhow::Result<()> {
        self.link().lock().rouse().with_context(|| self.place())
    }

    /// Whether the host is there, if it has to say more before `until`; one of ours has to, until it says that it ends: without it nobody
    /// answers the adapter. All has happened up to `reached`.
    pub(super) fn look(&self, reached: Ps, until: Ps) -> anyhow::Result<()> {
        let gone = {
            let channel = self.link().lock();
            !channel.is_terminated() && channel.has_hung_up()
        };
        if gone {
            // What it said before it ended still counts.
            self.hear(reached)?;
            self.link().lock().ended_before(until, Ps::ZERO).with_context(|| self.place())?;
        }
        Ok(())
    }

    /// Nothing more comes from here.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        self.link().lock().end().with_context(|| self.place())
    }
}
