//! The adapters of one topology, the links between them, and one event heap.

use std::sync::Arc;

use hca_firmware::{Config, Link as PortLink, Resources};
use hca_spec::ids::Lid;
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, PortInfo, attr, port_state};

use crate::core::{Core, HcaEvent};
use crate::dma::GuestMemory;
use crate::fabric::{Carrier, FaultInjector, Faults, Link, LinkRate};
use crate::hca::Hca;
use crate::time::{EventHeap, Ps};
use crate::timing::{Profile, Timing};
use crate::trace::{Captured, Trace};
use crate::wire::Packet;

/// Names an adapter of a world: its place in [`WorldConfig::hcas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HcaId(pub usize);

/// One adapter of a topology.
#[derive(Debug, Clone)]
pub struct HcaConfig {
    /// Name in logs and reports.
    pub name: String,
    /// Identity and capabilities.
    pub firmware: Config,
}

/// A link between port 1 of two adapters.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The adapters.
    pub ends: [HcaId; 2],
    /// Signalling rate of a lane.
    pub rate: LinkRate,
    /// Lanes: 1, 4, 8 or 12.
    pub width: u8,
    /// Propagation delay.
    pub delay: Ps,
    /// What goes wrong on it.
    pub faults: Faults,
}

/// A topology.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    /// The adapters.
    pub hcas: Vec<HcaConfig>,
    /// The links.
    pub links: Vec<LinkConfig>,
    /// Whether a built-in subnet manager brings the ports up.
    pub subnet_manager: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// What the units take in time.
    pub profile: Profile,
}

/// A topology that can't be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A link names an adapter that isn't there, or both ends are the same.
    #[error("link {0}: its ends must be two different adapters of the topology")]
    LinkEnds(usize),
    /// An adapter has two links on its only port.
    #[error("adapter {0} has more than one link, but one port")]
    TwoLinks(String),
}

/// What the world asks of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Raise an MSI-X vector.
    Msix {
        /// The adapter.
        hca: HcaId,
        /// The vector.
        vector: u16,
    },
}

enum Event {
    Hca { hca: HcaId, epoch: u32, event: HcaEvent },
    Arrive { hca: HcaId, packet: Packet },
}

/// LID of the built-in subnet manager: the last unicast one.
const SUBNET_MANAGER_LID: u32 = 0xbfff;

struct Wire {
    ends: Vec<HcaId>,
    carrier: Box<dyn Carrier + Send>,
    port: PortLink,
}

/// The adapters of one topology, the links between them, and one event heap.
pub struct World {
    hcas: Vec<Hca>,
    links: Vec<Wire>,
    heap: EventHeap<Event>,
    now: Ps,
    effects: Vec<Effect>,
    subnet_manager: bool,
    loopback: Ps,
    pub(crate) trace: Option<Trace>,
    pub(crate) captured: Vec<Captured>,
}

impl World {
    /// Builds the topology; the links start to train at time zero.
    pub fn new(config: WorldConfig) -> Result<World, ConfigError> {
        let timing = Arc::new(Timing::new(&config.profile));
        let mut world = World {
            hcas: Vec::new(),
            links: Vec::new(),
            heap: EventHeap::default(),
            now: Ps::ZERO,
            effects: Vec::new(),
            subnet_manager: config.subnet_manager,
            loopback: timing.loopback(),
            trace: None,
            captured: Vec::new(),
        };
        for hca in config.hcas {
            let mut hca = Hca::new(hca.name, hca.firmware, timing.clone());
            hca.start(Ps::ZERO);
            world.hcas.push(hca);
            world.collect(HcaId(world.hcas.len() - 1));
        }
        for (i, link) in config.links.iter().enumerate() {
            let plain = Link::new(link.rate, link.width, link.delay);
            let seed = config.seed ^ (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let carrier = FaultInjector::new(plain, link.faults.clone(), seed);
            world.connect(link.ends.to_vec(), link.rate, link.width, Box::new(carrier))?;
        }
        Ok(world)
    }

    /// Connects port 1 of adapters by a carrier of the caller's, before the ports train; they train
    /// to `rate` and `width`.
    ///
    /// Place `i` in `ends` is end `i` of the carrier, which may have more than two: simulated fabrics
    /// for tests.
    ///
    /// # Errors
    /// An adapter is not there, named twice, or has a link already.
    pub fn connect(
        &mut self,
        ends: Vec<HcaId>,
        rate: LinkRate,
        width: u8,
        carrier: Box<dyn Carrier + Send>,
    ) -> Result<(), ConfigError> {
        let number = self.links.len();
        for (i, end) in ends.iter().enumerate() {
            let hca = self.hcas.get(end.0).ok_or(ConfigError::LinkEnds(number))?;
            if ends.iter().take(i).any(|e| e == end) {
                return Err(ConfigError::LinkEnds(number));
            }
            if self.links.iter().any(|l| l.ends.contains(end)) {
                return Err(ConfigError::TwoLinks(hca.core.name.clone()));
            }
        }
        self.links.push(Wire { ends, carrier, port: PortLink { width, speed: rate.into() } });
        Ok(())
    }

    /// Model time: that of the last event or access.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// How many adapters there are.
    pub fn hcas(&self) -> usize {
        self.hcas.len()
    }

    pub(crate) fn core_mut(&mut self, hca: HcaId) -> Option<&mut Core> {
        self.hcas.get_mut(hca.0).map(|h| &mut h.core)
    }

    fn with(&mut self, now: Ps, id: HcaId, act: impl FnOnce(&mut Hca, Ps)) {
        self.now = self.now.max(now);
        if let Some(hca) = self.hcas.get_mut(id.0) {
            act(hca, self.now);
            self.collect(id);
        }
    }

    /// A host is there: its memory.
    pub fn attach(&mut self, hca: HcaId, memory: Arc<dyn GuestMemory + Send + Sync>) {
        self.with(Ps::ZERO, hca, |hca, _| hca.attach(memory));
    }

    /// The host is gone: no access to its memory happens any more; the adapter is reset.
    pub fn detach(&mut self, now: Ps, hca: HcaId) {
        self.with(now, hca, |hca, now| hca.detach(now));
    }

    /// Function level reset.
    pub fn reset(&mut self, now: Ps, hca: HcaId) {
        self.with(now, hca, |hca, now| hca.reset(now));
    }

    /// Reads BAR0.
    pub fn mmio_read(&mut self, now: Ps, hca: HcaId, offset: u64, buf: &mut [u8]) {
        self.with(now, hca, |hca, now| hca.mmio_read(now, offset, buf));
    }

    /// Writes BAR0.
    pub fn mmio_write(&mut self, now: Ps, hca: HcaId, offset: u64, data: &[u8]) {
        self.with(now, hca, |hca, now| hca.mmio_write(now, offset, data));
    }

    /// Whether stores to BlueFlame registers of `hca` wait for their continuation: how many were collected so far, so
    /// that two calls show whether more came. Who sees none for a while calls [`World::flush_stores`].
    pub fn combining(&self, hca: HcaId) -> Option<u64> {
        self.hcas.get(hca.0)?.combining()
    }

    /// Nothing more comes to the stores that wait: they are doorbells.
    pub fn flush_stores(&mut self, now: Ps, hca: HcaId) {
        self.with(now, hca, |hca, now| hca.flush_stores(now));
    }

    /// A packet from outside the topology arrives at port 1 of an adapter, whatever its destination:
    /// what a peer that is not modelled here, or a hostile one, puts on the cable.
    pub fn inject_packet(&mut self, now: Ps, hca: HcaId, packet: Packet) {
        self.with(now, hca, |hca, now| hca.arrive(now, packet));
    }

    /// Runs every event that is due at or before `until`.
    pub fn advance(&mut self, until: Ps) {
        while let Some((at, event)) = self.heap.pop_until(until) {
            self.now = self.now.max(at);
            match event {
                Event::Hca { hca, epoch, event } => self.with(at, hca, |h, now| {
                    if h.epoch == epoch {
                        h.handle(now, event);
                    }
                }),
                Event::Arrive { hca, packet } => self.with(at, hca, |h, now| h.arrive(now, packet)),
            }
        }
        self.now = self.now.max(until.min(self.heap.next_at().unwrap_or(until)));
    }

    /// When the next event is due.
    pub fn next_event(&self) -> Option<Ps> {
        self.heap.next_at()
    }

    /// Takes the effects since the last call.
    pub fn drain(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Objects that an adapter holds.
    pub fn resources(&self, hca: HcaId) -> Resources {
        self.hcas.get(hca.0).map(Hca::resources).unwrap_or_default()
    }

    /// Guest mistakes that an adapter has met.
    pub fn diagnoses(&self, hca: HcaId) -> u64 {
        self.hcas.get(hca.0).map_or(0, |h| h.core.diagnoses.total)
    }

    /// Takes what an adapter left in its outbox.
    fn collect(&mut self, id: HcaId) {
        loop {
            let Some(hca) = self.hcas.get_mut(id.0) else { return };
            if let Some(watch) = hca.core.watch.as_deref_mut() {
                watch.hand_over(self.trace.as_mut(), &mut self.captured);
            }
            let out = std::mem::take(&mut hca.core.out);
            let epoch = hca.epoch;
            for (at, event) in out.events {
                self.heap.push(at.max(self.now), Event::Hca { hca: id, epoch, event });
            }
            self.effects.extend(out.vectors.into_iter().map(|vector| Effect::Msix { hca: id, vector }));
            for (at, packet) in out.packets {
                self.route(at, id, packet);
            }
            if !out.port_changed {
                return;
            }
            self.tend_port(id);
        }
    }

    /// A packet leaves an adapter: back to itself, or over its link.
    fn route(&mut self, at: Ps, from: HcaId, packet: Packet) {
        let own = self.hcas.get(from.0).and_then(|h| h.core.fw.port(1));
        let dlid = packet.dlid();
        if own.is_some_and(|p| p.is_own_lid(dlid)) {
            return self.heap.push(at + self.loopback, Event::Arrive { hca: from, packet });
        }
        if dlid.is_multicast() {
            // A copy comes back for the sender's own members of the group.
            self.heap.push(at + self.loopback, Event::Arrive { hca: from, packet: packet.clone() });
        }
        for link in &mut self.links {
            if let Some(end) = link.ends.iter().position(|e| *e == from) {
                for arrival in link.carrier.transmit(at, end, packet) {
                    if let Some(hca) = link.ends.get(arrival.end).copied() {
                        self.heap.push(arrival.at, Event::Arrive { hca, packet: arrival.packet });
                    }
                }
                return;
            }
        }
        tracing::debug!("packet to LID {dlid} dropped: nothing is connected there");
    }

    /// Something changed at a port, which its peer feels too.
    fn tend_port(&mut self, id: HcaId) {
        let link = self.links.iter().find(|l| l.ends.contains(&id));
        // Only a cable has a far end that goes dark with the near one.
        let peer = link.and_then(|l| match l.ends[..] {
            [near, far] if near == id => Some(far),
            [far, near] if near == id => Some(far),
            _ => None,
        });
        self.tend_end(id, peer);
        if let Some(peer) = peer.filter(|peer| *peer != id) {
            self.tend_end(peer, Some(id));
        }
    }

    /// Trains a link that is down, unless its other end is disabled; brings a port up that waits for its subnet
    /// manager.
    fn tend_end(&mut self, id: HcaId, peer: Option<HcaId>) {
        let link = self.links.iter().find(|l| l.ends.contains(&id)).map(|l| l.port);
        let dark = peer
            .and_then(|peer| self.hcas.get(peer.0)?.core.fw.port(1))
            .is_some_and(hca_firmware::port::Port::is_disabled);
        let now = self.now;
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let mut effects = Vec::new();
        if dark {
            hca.core.fw.set_link(1, None, &mut effects);
        } else if hca.core.fw.port(1).is_some_and(|p| p.state == port_state::DOWN) {
            hca.core.fw.set_link(1, Some(link.unwrap_or_default()), &mut effects);
        }
        if self.subnet_manager && hca.core.fw.port(1).is_some_and(|p| p.state == port_state::INIT) {
            let lid = Lid(id.0 as u16 + 1);
            for state in [port_state::ARMED, port_state::ACTIVE] {
                let mut smp = Mad::new();
                smp.set(Mad::BASE_VERSION, 1)
                    .set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED)
                    .set(Mad::CLASS_VERSION, 1);
                smp.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::PORT_INFO);
                smp.set(Mad::ATTRIBUTE_MODIFIER, 1);
                let Some(mut smp) = hca.core.fw.mad(1, &smp, &mut effects) else { return };
                smp.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
                smp.port_info_mut()
                    .set(PortInfo::LID, lid.0.into())
                    .set(PortInfo::MASTER_SM_LID, SUBNET_MANAGER_LID)
                    .set(PortInfo::PORT_STATE, state)
                    .set(PortInfo::PORT_PHYSICAL_STATE, 0)
                    .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
                let answer = hca.core.fw.mad(1, &smp, &mut effects);
                if answer.is_none_or(|a| a.get(Mad::STATUS) != 0) {
                    tracing::error!("the built-in subnet manager could not configure adapter {}", id.0);
                    break;
                }
            }
        }
        // The events must not ask for another look at the port: it was just looked at.
        hca.apply(now, effects);
        hca.core.out.port_changed = false;
    }
}
