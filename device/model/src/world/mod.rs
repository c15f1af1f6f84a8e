//! The nodes of one topology, the links between them, and one event heap.
//!
//! - What it is made of: [`config`] names nodes, ports and links; [`links`] takes links down and up.
//! - What it does: [`hosts`] is what hosts do to their adapters, [`running`] lets events happen, [`pace`] is how far before the owner is
//!   asked, [`outbox`] takes what came of them, [`epoch`] lets time go on for ever, [`scripted`] is what goes wrong.
//! - Packets: [`transfer`] brings them over links, [`train`] keeps those that follow each other off the heap, on cables that [`track`] finds, [`stages`] is what happens to
//!   these, [`switch`] forwards them, [`tunnel`] is where links leave the world.
//! - Beside: [`check`] joins the checker, [`manager`] is the built-in subnet manager, [`planned`] the same for a subnet that is known
//!   beforehand, [`routing`] its paths.

mod bridge;
mod cages;
mod check;
mod config;
mod counters;
mod epoch;
mod flow;
mod holds;
mod hosts;
mod inspect;
mod links;
mod manager;
mod outbox;
mod pace;
mod partitions;
mod pause;
mod planned;
mod queueing;
mod quota;
mod relay;
mod routing;
mod running;
mod scripted;
mod stages;
mod switch;
mod trace;
mod track;
mod train;
mod transfer;
mod tunnel;
mod waiting;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;

use hca_firmware::port::{Port, PortCounters};
use hca_firmware::{EthernetCounters, FunctionId};
use hca_spec::ids::Lid;

use crate::adapter::state::chip::Chip;
use crate::adapter::state::event::HcaEvent;
use crate::adapter::state::function::Function;
use crate::adapter::state::watch::{Captured, Executed};
use crate::adapter::{Executor, Hca};
use crate::checker::Checker;
use crate::ground::epoch::Start;
use crate::ground::node::{FunctionRef, HcaId, LinkEnd, NodeId, PortRef, SwitchId, TunnelId};
use crate::ground::random::SPREAD;
use crate::ground::ring::Trace;
use crate::ground::time::{EventHeap, Owned, Ps, Source};
use crate::ground::timing::Timing;
use crate::link::{Cable, Delivery, FaultInjector, Light};
use crate::link_layer::{Packet, Sent};

pub use config::{ConfigError, HcaConfig, LinkConfig, SwitchConfig, WorldConfig};
use flow::Suspended;
use links::{Link, LinkKind};
pub use pace::Allowance;
pub use planned::{FabricPlan, PlannedHca, PlannedSwitch};
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

impl Class {
    /// What orders events of this class at an adapter, by that of its ports; 0: of itself.
    #[inline]
    const fn at(self, hca: HcaId, port: u8) -> Source {
        Source::new(self as u8, hca.0, port)
    }
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
    /// Further events are looked at whether something comes of them.
    Tidy,
    /// Further doorbells that waited are rung.
    Doorbells(HcaId),
}

impl Owned for Event {
    /// The adapter that made it.
    #[inline]
    fn owner(&self) -> Option<usize> {
        match self {
            Event::Hca { hca, .. } => Some(hca.0),
            _ => None,
        }
    }
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
    /// [`World::set_trains_out`].
    trains_leave: bool,
    trains_begun: u64,
    now: Ps,
    /// Where times are counted from.
    start: Start,
    effects: Vec<Effect>,
    /// With so many events those are taken out that nothing comes of.
    tidy_at: usize,
    /// Where that goes on, while it is under way.
    tidying: Option<usize>,
    /// How many events of each adapter may wait.
    quotas: Quotas,
    /// Room for packets that leave an adapter.
    spare: Vec<(u8, Sent<()>)>,
    /// Room for what a link delivers.
    deliveries: Vec<Delivery>,
    /// What left by tunnels, by its time and the order in which it left.
    tunnel_events: BTreeMap<(Ps, u64), TunnelEvent>,
    left: u64,
    /// How many of those are packets whose payload is in their sender's memory.
    left_referring: usize,
    /// Places in input buffers of adapters whose host's memory does not follow.
    held_credits: Vec<(FunctionRef, Ingress)>,
    subnet_manager: bool,
    management_key: Option<u64>,
    /// P_Keys that it gives to ports.
    partitions: partitions::Partitions,
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
            trains_leave: false,
            trains_begun: 0,
            now: Ps::ZERO,
            start: Start::default(),
            effects: Vec::new(),
            tidy_at: waiting::LEAST,
            tidying: None,
            quotas: Quotas::default(),
            spare: Vec::new(),
            deliveries: Vec::new(),
            tunnel_events: BTreeMap::new(),
            left: 0,
            left_referring: 0,
            held_credits: Vec::new(),
            subnet_manager: config.subnet_manager,
            management_key: config.management_key,
            partitions: BTreeMap::new(),
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
        self.allow_trains_at(hca);
        Some(FunctionRef { hca, function })
    }

    /// Adds a virtual function of an adapter's first: its driver gets no further than ENABLE_HCA until that of the first has
    /// enabled it. They have numbers from 1 on, in the order in which they were added. `None`: as of [`World::add_function`].
    ///
    /// For tests of the model: no adapter that is offered has any, as no front end shows more than one PCI function.
    pub fn add_virtual_function(&mut self, hca: HcaId) -> Option<FunctionRef> {
        let function = self.hcas.get_mut(hca.0)?.add_virtual_function()?;
        self.allow_trains_at(hca);
        Some(FunctionRef { hca, function })
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

    /// Counters of a port; of a switch, port 0 is its own.
    pub fn port_counters(&self, port: PortRef) -> Option<PortCounters> {
        self.port(port).map(|p| p.counters)
    }

    /// Counters of an Ethernet port; `None`: it is none.
    pub fn ethernet_counters(&self, port: impl Into<PortRef>) -> Option<&EthernetCounters> {
        self.port(port.into()).and_then(|p| p.ethernet()).map(|ethernet| &ethernet.counters)
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

    #[inline(always)]
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
