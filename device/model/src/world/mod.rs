//! The nodes of one topology, the links between them, and one event heap.
//!
//! [`config`] names nodes, ports and links, [`links`] takes links down and up, [`transfer`] brings messages over them,
//! [`pace`] is how far the world runs before its owner is asked, [`train`] keeps packets that follow each other off the heap, [`stages`] is what happens to them, [`check`] joins the checker, [`epoch`] lets time go on for ever, [`scripted`] what goes wrong, [`switch`] forwards them, [`tunnel`] is where links leave the world, [`manager`] is the built-in subnet manager, [`planned`] the same for a subnet that is known beforehand, [`routing`] its paths.

mod bridge;
mod check;
mod config;
mod counters;
mod epoch;
mod flow;
mod holds;
mod inspect;
mod links;
mod manager;
mod pace;
mod pause;
mod planned;
mod queueing;
mod quota;
mod relay;
mod routing;
mod scripted;
mod stages;
mod switch;
mod trace;
mod train;
mod transfer;
mod tunnel;
mod waiting;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;

use hca_firmware::personality::FirmwareVersion;
use hca_firmware::port::{Port, PortCounters};
use hca_firmware::{Disposal, EthernetCounters, FunctionId, PortKind, Resources};
use hca_spec::ids::Lid;
use hca_spec::init_segment::NIC_INTERFACE_DISABLED;

use crate::adapter::chip::Chip;
use crate::adapter::core::{HcaEvent, PortChanged};
use crate::adapter::function::{Function, FunctionState};
use crate::adapter::management::is_access;
use crate::adapter::watch::{Captured, Executed};
use crate::adapter::{Executor, Hca, is_doorbell};
use crate::checker::Checker;
use crate::ground::dma::GuestMemory;
use crate::ground::epoch::Start;
use crate::ground::node::{FunctionRef, HcaId, LinkEnd, NodeId, PortRef, SwitchId, TunnelId};
use crate::ground::random::SPREAD;
use crate::ground::ring::Trace;
use crate::ground::time::{EventHeap, Ps, Source};
use crate::ground::timing::Timing;
use crate::link::{Cable, Delivery, FaultInjector, Light};
use crate::link_layer::{Packet, Sent};

pub use config::{ConfigError, HcaConfig, LinkConfig, SwitchConfig, WorldConfig};
use flow::Suspended;
use links::{Link, LinkKind};
pub use pace::Allowance;
use pace::{Moments, OnlyDue, Pace, Within};
pub use planned::SubnetPlan;
pub use queueing::{PriorityQueue, Queueing, Red};
use quota::Quotas;
pub use quota::WaitingEvents;
pub use routing::Routing;
use scripted::Due;
use switch::SwitchNode;
use train::Train;
use transfer::{Forwarded, Ingress};
pub use tunnel::TunnelEvent;

/// What the world asks of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Raise an MSI-X vector.
    Msix {
        /// The adapter.
        hca: HcaId,
        /// Its function.
        function: FunctionId,
        /// The vector.
        vector: u16,
    },
}

/// The order of what happens at a node at the same time: what comes by links before what the node does of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// The far end of a link told of itself.
    Light,
    /// A link has trained.
    Trained,
    /// Credits that were waited for arrive.
    Credit,
    /// A packet arrives.
    Packet,
    /// What the node does of itself.
    Node,
    /// The built-in subnet manager, which sees all nodes.
    Manager,
}

enum Event {
    Hca {
        hca: HcaId,
        function: FunctionId,
        epoch: u32,
        event: HcaEvent,
    },
    Arrive {
        hca: HcaId,
        port: u8,
        packet: Packet,
        ingress: Ingress,
    },
    /// The header is there.
    Forward(Box<Forwarded>),
    /// A datagram was looked at by the agent.
    Agent(Box<Forwarded>),
    SwitchTurn {
        switch: SwitchId,
        port: u8,
    },
    SwitchPoll(SwitchId),
    /// The far end of a link told of itself.
    Light {
        number: usize,
        end: usize,
        light: Light,
    },
    /// Credits are there that were waited for.
    Credits {
        port: PortRef,
    },
    Trained {
        number: usize,
        end: usize,
        generation: u32,
    },
    /// An Ethernet port looks whether its peer is to wait still.
    Pause(PortRef),
    /// The built-in subnet manager looks at the fabric.
    Sweep,
    /// The same, at one switch, as its plan says.
    Program(SwitchId),
    /// Something on script is due at an adapter.
    Script {
        hca: HcaId,
        due: Due,
    },
}

/// A link and an end of it.
type Plug = (usize, usize);

/// The nodes of one topology, the links between them, and one event heap.
pub struct World {
    hcas: Vec<Hca>,
    /// What is plugged into the ports of each adapter.
    hca_plugs: Vec<Vec<Option<Plug>>>,
    switches: Vec<SwitchNode>,
    links: Vec<Link>,
    /// Where links leave the world: their number, and which end does.
    tunnels: BTreeMap<TunnelId, Plug>,
    heap: EventHeap<Event>,
    /// Packets that follow each other, and their events.
    #[allow(clippy::vec_box, reason = "a train that moves is taken out and put back")]
    trains: Vec<Box<Train>>,
    /// The one in full flow, while it is not running.
    flow: Option<Suspended>,
    /// Whether there may be any.
    trains_allowed: bool,
    trains_begun: u64,
    now: Ps,
    /// Where times are counted from.
    start: Start,
    effects: Vec<Effect>,
    /// With so many events those are taken out that nothing comes of.
    tidy_at: usize,
    /// How many events of each adapter may wait.
    quotas: Quotas,
    /// Room for packets that leave an adapter.
    spare: Vec<(u8, Sent<()>)>,
    /// Room for what a link delivers.
    deliveries: Vec<Delivery>,
    /// What left by tunnels, by its time and the order in which it left.
    tunnel_events: BTreeMap<(Ps, u64), TunnelEvent>,
    left: u64,
    /// Places in input buffers of adapters whose host's memory does not follow.
    held_credits: Vec<(FunctionRef, Ingress)>,
    subnet_manager: bool,
    management_key: Option<u64>,
    /// LIDs that ports have on script.
    lids_on_script: BTreeMap<(HcaId, u8), Lid>,
    /// Where the adapters are that the manager knows, if not all are here.
    subnet: Option<Vec<Option<LinkEnd>>>,
    /// What it does if it knows the subnet beforehand.
    planned: Option<Box<planned::Planned>>,
    routing: Routing,
    sweep_due: bool,
    /// The built-in manager's sweep under way.
    sweep: Option<Box<manager::Sweep>>,
    timing: Arc<Timing>,
    checker: Option<Box<Checker>>,
    /// Faults on script that there were so far.
    faults_added: u32,
    pub(crate) trace: Option<Trace>,
    /// Commands that were carried out.
    pub(crate) commands: Vec<Executed>,
    pub(crate) captured: Vec<Captured>,
}

/// Takes what is there, in order: a single one, mostly.
#[inline(always)]
fn take_all<T>(from: &mut Vec<T>, mut take: impl FnMut(T)) {
    match from.len() {
        0 => {}
        1 => from.pop().into_iter().for_each(take),
        _ => from.drain(..).for_each(&mut take),
    }
}

impl World {
    /// Builds the topology; the links start to train at time zero.
    pub fn new(config: WorldConfig) -> Result<World, ConfigError> {
        let timing = Arc::new(Timing::new(&config.profile));
        let mut world = World {
            hcas: Vec::new(),
            hca_plugs: Vec::new(),
            switches: Vec::new(),
            links: Vec::new(),
            tunnels: BTreeMap::new(),
            heap: EventHeap::default(),
            trains: Vec::new(),
            flow: None,
            trains_allowed: true,
            trains_begun: 0,
            now: Ps::ZERO,
            start: Start::default(),
            effects: Vec::new(),
            tidy_at: waiting::LEAST,
            quotas: Quotas::default(),
            spare: Vec::new(),
            deliveries: Vec::new(),
            tunnel_events: BTreeMap::new(),
            left: 0,
            held_credits: Vec::new(),
            subnet_manager: config.subnet_manager,
            management_key: config.management_key,
            lids_on_script: BTreeMap::new(),
            subnet: None,
            planned: None,
            routing: Routing::default(),
            sweep_due: false,
            sweep: None,
            timing: timing.clone(),
            checker: None,
            faults_added: 0,
            trace: None,
            commands: Vec::new(),
            captured: Vec::new(),
        };
        for hca in config.hcas {
            let own = hca.timing.map(|profile| Arc::new(Timing::new(&profile)));
            let mut hca = Hca::new(hca.name, hca.firmware, own.unwrap_or_else(|| timing.clone()));
            hca.start(Ps::ZERO);
            world.hca_plugs.push(vec![None; hca.chip.managed.numbers().len()]);
            world.hcas.push(hca);
            world.collect(HcaId(world.hcas.len() - 1), FunctionId::FIRST);
        }
        for switch in config.switches {
            world.switches.push(SwitchNode::new(switch, timing.agent_queue()));
        }
        for (i, link) in config.links.iter().enumerate() {
            let kind = LinkKind::new(link.rate, link.width, link.line, Some(link.delay)).with_room(link.room);
            let plain = Cable::new(kind.line(), link.delay);
            let own = || config.seed ^ (i as u64 + 1).wrapping_mul(SPREAD);
            let seed = link.seed.unwrap_or_else(own);
            let carrier = FaultInjector::new(plain, link.faults.clone(), seed);
            world.join(link.ends.to_vec(), kind, Box::new(carrier))?;
        }
        world.protect_all();
        Ok(world)
    }

    /// What orders events of the same time.
    fn source(&self, class: Class, port: PortRef) -> Source {
        let node = match port.node {
            NodeId::Hca(hca) => hca.0,
            NodeId::Switch(switch) => self.hcas.len().saturating_add(switch.0),
        };
        Source::new(class as u8, node, port.port)
    }

    /// That of what a node does of itself.
    fn own_source(&self, node: NodeId) -> Source {
        self.source(Class::Node, PortRef { node, port: 0 })
    }

    /// Model time: that of the last event or access.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// How many adapters there are.
    pub fn hcas(&self) -> usize {
        self.hcas.len()
    }

    /// The functions of all adapters.
    pub fn functions(&self) -> impl Iterator<Item = FunctionRef> {
        let of = |(hca, node): (usize, &Hca)| {
            (0..node.chip.functions)
                .map(move |function| FunctionRef { hca: HcaId(hca), function: FunctionId(function) })
        };
        self.hcas.iter().enumerate().flat_map(of)
    }

    pub(crate) fn chip(&self, hca: HcaId) -> Option<&Chip> {
        self.hcas.get(hca.0).map(|h| &h.chip)
    }

    pub(crate) fn chip_mut(&mut self, hca: HcaId) -> Option<&mut Chip> {
        self.rouse();
        self.hcas.get_mut(hca.0).map(|h| &mut h.chip)
    }

    fn function(&self, at: FunctionRef) -> Option<&Function> {
        self.hcas.get(at.hca.0)?.function(at.function)
    }

    /// Something happens to an adapter, of which the function does the rest.
    fn with(&mut self, now: Ps, at: FunctionRef, act: impl FnOnce(&mut Hca, Ps)) {
        self.rouse();
        self.now = self.now.max(now);
        if let Some(hca) = self.hcas.get_mut(at.hca.0) {
            act(hca, self.now);
            self.collect(at.hca, at.function);
        }
    }

    /// A function does something.
    #[inline]
    fn act(&mut self, now: Ps, at: FunctionRef, act: impl FnOnce(&mut Executor<'_>, Ps)) {
        self.with(now, at, |hca, now| {
            if let Some(mut executor) = hca.executor(at.function) {
                act(&mut executor, now);
            }
        });
    }

    /// Adds a function to an adapter, like the one that it has: a host may attach to it. `None`: there is no such adapter, or it
    /// has as many as it can.
    ///
    /// For tests of the model: nothing tells a driver of such functions yet.
    pub fn add_function(&mut self, hca: HcaId) -> Option<FunctionRef> {
        let function = self.hcas.get_mut(hca.0)?.add_function()?;
        self.allow_trains();
        Some(FunctionRef { hca, function })
    }

    /// A host is there: its memory.
    pub fn attach(&mut self, at: impl Into<FunctionRef>, memory: Arc<dyn GuestMemory + Send + Sync>) {
        let at = at.into();
        self.settle(at.hca);
        self.act(Ps::ZERO, at, |executor, _| executor.attach(memory));
    }

    /// Who lets go of all objects of a function at once. Without, the command or reset that ends them does, as long as that takes.
    pub fn dispose(&mut self, at: impl Into<FunctionRef>, disposal: Disposal) {
        self.rouse();
        let at = at.into();
        if let Some(function) = self.hcas.get_mut(at.hca.0).and_then(|hca| hca.function_mut(at.function)) {
            function.state.fw.disposal = disposal;
        }
    }

    /// Something is new with the memory of a function's host, which answers reads later in a part of it
    /// ([`GuestMemory::deferred`]): answers came, it takes reads or writes again, windows came or went, or it has begun
    /// to answer later. What the function had to put off goes on, at the model's time of now.
    pub fn memory_changed(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.settle(at.hca);
        self.act(now, at, |executor, now| executor.memory_changed(now));
        self.release_credits(self.now, at);
    }

    /// Inputs of a function that wait for answers of its host's memory.
    pub fn parked_inputs(&self, at: impl Into<FunctionRef>) -> usize {
        self.function(at.into()).map_or(0, |function| function.side.parked.len())
    }

    /// Reads of a function that failed because they were not asked for in time. There are none, or the model is wrong.
    pub fn unforeseen_reads(&self, at: impl Into<FunctionRef>) -> u64 {
        let outstanding = self.function(at.into()).and_then(|function| function.state.outstanding.as_ref());
        outstanding.map_or(0, |reads| reads.unforeseen())
    }

    /// The host is gone: no access to its memory happens any more; the function is reset.
    pub fn detach(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.settle(at.hca);
        self.check_leaving(at, "the end of the host's connection");
        self.with(now, at, |hca, now| hca.detach(now, at.function));
        self.check_anew(at);
        self.count_anew();
        self.release_credits(self.now, at);
    }

    /// Function level reset.
    pub fn reset(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.reset_function(now, at);
        self.script_reset(at);
    }

    fn reset_function(&mut self, now: Ps, at: FunctionRef) {
        self.settle(at.hca);
        self.check_leaving(at, "the reset of the function");
        self.with(now, at, |hca, now| hca.reset(now, at.function));
        self.check_anew(at);
        self.count_anew();
        self.release_credits(self.now, at);
    }

    /// The adapter's firmware starts, as after a reset of its bus or with the power: what is in its flash holds from now on,
    /// its ports may be of another kind. Everything to power-on.
    pub fn restart_firmware(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.settle_all();
        self.check_leaving(at, "the restart of the firmware");
        let before = self.kind_of_ports(at.hca);
        self.with(now, at, |hca, now| hca.restart(now, at.function));
        self.check_anew(at);
        self.release_credits(self.now, at);
        if self.kind_of_ports(at.hca) != before {
            self.retype_links(at.hca);
        }
        self.script_reset(at);
    }

    /// A driver may have disabled its function, which reaches for nothing any more then. The firmware starts if that was the last it waited for. Drivers toggle the
    /// PCI Express link then, which is no part of the model, so that nothing more is waited for.
    #[cold]
    fn look_at_mode(&mut self, at: FunctionRef) {
        let disabled = self
            .function(at)
            .is_some_and(|function| function.side.registers.mode() == NIC_INTERFACE_DISABLED);
        if !disabled {
            return;
        }
        self.act(self.now, at, |function, now| function.disabled(now));
        let starts = self.chip_mut(at.hca).is_some_and(|chip| chip.managed.sync_reset.disabled(at.function));
        if !starts {
            return;
        }
        tracing::info!(hca = self.name(at.hca), now = %self.now, "all drivers have let go: the firmware starts");
        self.restart_firmware(self.now, at.hca);
        let functions = self.hcas.get_mut(at.hca.0).map(|hca| &mut hca.functions);
        functions.into_iter().flatten().for_each(|function| function.side.registers.disable());
    }

    /// Link layer of an adapter's ports.
    pub fn kind_of_ports(&self, hca: HcaId) -> PortKind {
        self.chip(hca).map(|chip| chip.managed.kind()).unwrap_or_default()
    }

    /// Version of the firmware that an adapter runs.
    pub fn firmware_version(&self, hca: HcaId) -> Option<FirmwareVersion> {
        self.chip(hca).map(|chip| chip.managed.firmware_version())
    }

    /// Reads a register of the vendor specific capability, whose offset in it this is.
    pub fn window_read(&mut self, now: Ps, at: impl Into<FunctionRef>, register: usize) -> u32 {
        let mut word = 0;
        self.act(now, at.into(), |function, _| word = function.window_read(register));
        word
    }

    /// What a read would give, without what it does.
    pub fn window_peek(&self, at: impl Into<FunctionRef>, register: usize) -> u32 {
        self.function(at.into()).map_or(0, |function| function.side.window.peek(register))
    }

    /// Writes a register of the vendor specific capability.
    pub fn window_write(&mut self, now: Ps, at: impl Into<FunctionRef>, register: usize, value: u32) {
        let at = at.into();
        if is_access(register) {
            self.settle(at.hca);
        }
        self.act(now, at, |function, now| function.window_write(now, register, value));
    }

    /// Reads BAR0.
    pub fn mmio_read(&mut self, now: Ps, at: impl Into<FunctionRef>, offset: u64, buf: &mut [u8]) {
        let at = at.into();
        if self.checker.is_some() {
            self.check_access(now, at, offset, false);
        }
        self.act(now, at, |function, now| function.mmio_read(now, offset, buf));
    }

    /// Writes BAR0.
    pub fn mmio_write(&mut self, now: Ps, at: impl Into<FunctionRef>, offset: u64, data: &[u8]) {
        let at = at.into();
        if self.checker.is_some() {
            self.check_access(now, at, offset, true);
        }
        self.act(now, at, |function, now| function.mmio_write(now, offset, data));
        if !is_doorbell(offset) {
            self.look_at_mode(at);
        }
        self.tidy();
    }

    /// Whether stores to BlueFlame registers of a function wait for their continuation: how many were collected so far, so
    /// that two calls show whether more came. Who sees none for a while calls [`World::flush_stores`].
    pub fn combining(&self, at: impl Into<FunctionRef>) -> Option<u64> {
        self.function(at.into())?.side.combiner.pending()
    }

    /// Nothing more comes to the stores that wait: they are doorbells.
    pub fn flush_stores(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        self.act(now, at.into(), |function, now| function.flush_stores(now));
    }

    /// When PCIe has taken all that the processor has stored to `hca`: until then it can't empty its write-combining
    /// buffers. `None`: there is no such adapter.
    pub fn stores_taken(&self, hca: HcaId) -> Option<Ps> {
        self.chip(hca).map(|chip| chip.units.stores_taken())
    }

    /// A packet from outside the topology arrives at a port, whatever its destination: what a peer that is not modelled
    /// here, or a hostile one, puts on the cable.
    pub fn inject_packet(&mut self, now: Ps, port: impl Into<PortRef>, packet: Packet) {
        self.rouse();
        let PortRef { node, port } = port.into();
        match node {
            NodeId::Hca(hca) => {
                self.now = self.now.max(now);
                self.arrive_checked(self.now, hca, port, packet);
            }
            NodeId::Switch(switch) => {
                self.now = self.now.max(now);
                let (tail, ingress) = (self.now, Ingress::Outside);
                self.switch_arrive(Forwarded { switch, port, packet, tail, ingress });
            }
        }
    }

    /// Runs every event that is due at or before `until`.
    #[inline]
    pub fn advance(&mut self, until: Ps) {
        self.run(until, &mut OnlyDue);
    }

    /// Runs events that are due at or before `until`, one at least, as long as one more `may` be run after each. Returns
    /// whether all of them have run. Model time is that of the last one.
    ///
    /// What the host may spend is asked between events, not between moments: any number of events may be due at one.
    #[inline]
    pub fn advance_within(&mut self, until: Ps, may: impl Allowance) -> bool {
        let Some(next) = self.next_at().filter(|next| *next <= until) else { return true };
        let mut pace = Within { until, allowance: may, all: false };
        self.run(next, &mut pace);
        pace.all
    }

    /// Runs events moment by moment: those due at or before `until`, then, as long as there are `more` to run, those of the
    /// next moment, and so on. Ends after an event after which none `may` be run.
    #[inline]
    fn run(&mut self, mut until: Ps, pace: &mut impl Pace) {
        loop {
            if !self.trains.is_empty() && !self.run_with_trains(&mut until, pace) {
                return;
            }
            let next = self.heap.next_at();
            if next.is_none_or(|next| next > until) {
                self.now = self.now.max(until);
                self.check();
                let goes_on = pace.more(self);
                let Some(next) = next else { return };
                if !goes_on {
                    return self.heap.pass(until);
                }
                until = until.max(next);
            }
            if let Some((at, event)) = self.heap.pop() {
                self.execute(at, event);
                if !pace.may(self) {
                    return;
                }
            }
        }
    }

    /// An event happens.
    #[inline(always)]
    fn execute(&mut self, at: Ps, event: Event) {
        self.now = self.now.max(at);
        match event {
            Event::Hca { hca, function, epoch, event } => {
                let executor = self.hcas.get_mut(hca.0).and_then(|h| h.executor_since(function, epoch));
                if let Some(mut executor) = executor {
                    executor.handle(self.now, event);
                }
                self.collect_here(hca, function);
            }
            Event::Arrive { hca, port, packet, ingress } => self.arrive(at, hca, port, packet, ingress),
            Event::Forward(forwarded) => match self.is_current(forwarded.ingress) {
                true => self.switch_arrive(*forwarded),
                false => self.leave_buffer(forwarded.ingress),
            },
            Event::Agent(forwarded) => self.switch_agent(&forwarded),
            Event::SwitchTurn { switch, port } => self.switch_pump(switch, port),
            Event::SwitchPoll(switch) => self.switch_poll(switch),
            Event::Light { number, end, light } => self.light_arrives(number, end, light),
            Event::Credits { port } => self.credits_turn(at, port),
            Event::Trained { number, end, generation } => self.trained(number, end, generation),
            Event::Pause(port) => self.pause_again(port),
            Event::Sweep => self.sweep(),
            Event::Program(switch) => self.program(switch),
            Event::Script { hca, due } => self.script_due(hca, due),
        }
    }

    /// Runs events moment by moment: those due up to `now` first, then those of the next moment, and so on. Ends after so
    /// many moments, when there are effects or `enough` says so after one, or when no event waits. Returns how many moments passed; it is
    /// [`World::now`] then.
    pub fn advance_while(&mut self, now: Ps, moments: u32, enough: impl Fn() -> bool) -> u32 {
        let Some(next) = self.next_at().filter(|_| moments > 0) else { return 0 };
        let mut pace = Moments { most: moments, passed: 0, enough };
        self.run(next.max(now), &mut pace);
        pace.passed
    }

    /// When the next event is due.
    #[inline]
    fn next_at(&self) -> Option<Ps> {
        let trains = self.trains.iter().filter_map(|train| train.next_at());
        self.heap.next_at().into_iter().chain(trains).min()
    }

    /// Whether effects wait to be taken.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// When the next event is due, or the next message is at the far side of a tunnel.
    pub fn next_event(&self) -> Option<Ps> {
        let left = match self.tunnel_events.is_empty() {
            true => None,
            false => self.tunnel_events.range((self.now + Ps(1), 0)..).next().map(|((at, _), _)| *at),
        };
        let check = self.checker.as_ref().map(|checker| checker.due());
        self.next_at().into_iter().chain(left).chain(check).min()
    }

    /// Takes the effects since the last call.
    pub fn drain(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Objects that a function holds.
    pub fn resources(&self, at: impl Into<FunctionRef>) -> Resources {
        self.function(at.into()).map(|function| function.state.fw.resources()).unwrap_or_default()
    }

    /// Guest mistakes that a function has met.
    pub fn diagnoses(&self, at: impl Into<FunctionRef>) -> u64 {
        self.function(at.into()).map_or(0, |function| function.state.diagnoses.total)
    }

    /// Counters of a port; of a switch, port 0 is its own.
    pub fn port_counters(&self, port: PortRef) -> Option<PortCounters> {
        self.port(port).map(|p| p.counters)
    }

    /// Counters of an Ethernet port; `None`: it is none.
    pub fn ethernet_counters(&self, port: impl Into<PortRef>) -> Option<&EthernetCounters> {
        self.port(port.into()).and_then(|p| p.ethernet()).map(|ethernet| &ethernet.counters)
    }

    /// Takes what a function left in its adapter's outbox.
    #[inline(never)]
    fn collect(&mut self, id: HcaId, function: FunctionId) {
        self.collect_here(id, function);
    }

    /// The same, inlined: mostly there is what the function does later itself, and nothing else.
    #[inline(always)]
    fn collect_here(&mut self, id: HcaId, function: FunctionId) {
        let Some(Hca { chip: Chip { out, watch, .. }, functions }) = self.hcas.get_mut(id.0) else { return };
        let Some(Function { epoch, state, .. }) = functions.get(usize::from(function.0)) else { return };
        let news = watch.as_ref().is_some_and(|watch| watch.has_news());
        if news || !self.trains.is_empty() || state.runs.has_begun() || out.has_rare() {
            return self.collect_all(id, function);
        }
        let (epoch, now, heap) = (*epoch, self.now, &mut self.heap);
        let own = Source::new(Class::Node as u8, id.0, 0);
        // Mostly it is one, which needs no loop.
        match out.events.len() {
            0 => {}
            1 => {
                if let Some((at, event)) = out.events.pop() {
                    let key = heap.reserve(at.max(now), own);
                    heap.push_reserved(key, Event::Hca { hca: id, function, epoch, event });
                }
            }
            _ => {
                for (at, event) in out.events.drain(..) {
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch, event });
                }
            }
        }
        match out.sent.len() {
            0 => {}
            1 => {
                if let Some((port, sent)) = out.sent.pop() {
                    self.transmit_from(id, port, sent);
                }
            }
            _ => self.transmit_all(id),
        }
    }

    /// A packet that an adapter sent begins to go over its link.
    #[inline(always)]
    fn transmit_from(&mut self, id: HcaId, port: u8, sent: Sent<()>) {
        if let Some((number, end)) = self.plug(PortRef::of_hca(id, port)) {
            self.transmit(sent.start, number, end, sent.packet);
        }
    }

    /// All of them.
    fn transmit_all(&mut self, id: HcaId) {
        let Some(out) = self.hcas.get_mut(id.0).map(|hca| &mut hca.chip.out) else { return };
        // The vectors change places, so that nothing is allocated anew for each packet.
        std::mem::swap(&mut out.sent, &mut self.spare);
        let mut sent = std::mem::take(&mut self.spare);
        sent.drain(..).for_each(|(port, sent)| self.transmit_from(id, port, sent));
        self.spare = sent;
    }

    /// The same, whatever is in the outbox.
    fn collect_all(&mut self, id: HcaId, function: FunctionId) {
        loop {
            let Some(hca) = self.hcas.get_mut(id.0) else { return };
            if let Some(checker) = &mut self.checker {
                checker.see(hca);
            }
            let Hca { chip: Chip { out, watch, units, .. }, functions } = hca;
            let Some(Function { epoch, state: FunctionState { runs, .. }, .. }) =
                functions.get_mut(usize::from(function.0))
            else {
                return;
            };
            let epoch = *epoch;
            if let Some(watch) = watch {
                watch.hand_over(units, self.trace.as_mut(), &mut self.commands, &mut self.captured);
            }
            if let Some(qpn) = runs.take_begun() {
                self.begin_train(id, qpn);
                continue;
            }
            let (now, heap) = (self.now, &mut self.heap);
            let own = Source::new(Class::Node as u8, id.0, 0);
            if !out.for_others.is_empty() {
                for (at, function, event) in out.for_others.drain(..) {
                    let Some(other) = functions.get(usize::from(function.0)) else { continue };
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch: other.epoch, event });
                }
            }
            if self.trains.is_empty() {
                take_all(&mut out.events, |(at, event)| {
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch, event });
                });
            } else if !out.events.is_empty() {
                self.collect_with_trains(id, function);
                continue;
            }
            while let Some((port, at)) = out.credit_turns.pop() {
                let source = Source::new(Class::Credit as u8, id.0, port);
                heap.push(at, source, Event::Credits { port: PortRef::of_hca(id, port) });
            }
            let quiet = out.vectors.is_empty() && out.loopback.is_empty() && out.sent.is_empty();
            if quiet && out.ports_changed.is_empty() {
                return;
            }
            if !out.vectors.is_empty() {
                let msix = |vector| Effect::Msix { hca: id, function, vector };
                self.effects.extend(out.vectors.drain(..).map(msix));
            }
            if !out.loopback.is_empty() {
                for (at, port, packet, returned) in out.loopback.drain(..) {
                    let ingress = Ingress::Loopback { hca: id, port, returned };
                    self.heap.push(at, own, Event::Arrive { hca: id, port, packet, ingress });
                }
            }
            if !out.sent.is_empty() {
                self.transmit_all(id);
            }
            let Some(hca) = self.hcas.get_mut(id.0).filter(|hca| !hca.chip.out.ports_changed.is_empty())
            else {
                return;
            };
            for PortChanged { port, link_lost } in std::mem::take(&mut hca.chip.out.ports_changed) {
                self.port_changed(PortRef::of_hca(id, port), link_lost);
            }
        }
    }

    /// Ports of adapters, in order.
    pub(crate) fn hca_ports(&self) -> impl Iterator<Item = PortRef> {
        let of = |(i, hca): (usize, &Hca)| {
            hca.chip.managed.numbers().map(move |port| PortRef::of_hca(HcaId(i), port))
        };
        self.hcas.iter().enumerate().flat_map(of)
    }

    /// The port's firmware side.
    fn port(&self, port: PortRef) -> Option<&Port> {
        match port.node {
            NodeId::Hca(hca) => self.hcas.get(hca.0)?.chip.managed.port(port.port),
            NodeId::Switch(switch) => self.switches.get(switch.0)?.fw.port(port.port),
        }
    }

    fn port_mut(&mut self, port: PortRef) -> Option<&mut Port> {
        match port.node {
            NodeId::Hca(hca) => self.hcas.get_mut(hca.0)?.chip.managed.port_mut(port.port),
            NodeId::Switch(switch) => self.switches.get_mut(switch.0)?.fw.port_mut(port.port),
        }
    }

    /// Whether a cable can be plugged in there.
    fn has_port(&self, port: PortRef) -> bool {
        port.port != 0 && self.port(port).is_some()
    }

    fn plug(&self, port: PortRef) -> Option<Plug> {
        match port.node {
            NodeId::Hca(hca) => *self.hca_plugs.get(hca.0)?.get(usize::from(port.port).wrapping_sub(1))?,
            NodeId::Switch(switch) => self.switches.get(switch.0)?.plug(port.port),
        }
    }

    fn set_plug(&mut self, port: PortRef, plug: Plug) {
        match port.node {
            NodeId::Hca(hca) => {
                let plugs = self.hca_plugs.get_mut(hca.0);
                if let Some(slot) = plugs.and_then(|p| p.get_mut(usize::from(port.port).wrapping_sub(1))) {
                    *slot = Some(plug);
                }
            }
            NodeId::Switch(switch) => {
                if let Some(node) = self.switches.get_mut(switch.0) {
                    node.set_plug(port.port, plug);
                }
            }
        }
    }
}
