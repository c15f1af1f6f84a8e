//! One topology in several worlds, joined by links in memory.
//!
//! Each world goes as far as the others allow: to the time that each neighbour has reached, and the lookahead of the
//! link to it. Which world goes on next is drawn, so that a result which depended on that would be seen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_driver::{Bus, Dma};
use hca_model::link::LinkMessage;
use hca_model::link_layer::Packet;
use hca_model::{
    DmaError, GuestMemory, HcaId, LinkConfig, LinkEnd, NodeId, PortRef, Ps, Sink, SwitchId, TunnelEvent,
    TunnelId, World, WorldConfig,
};

use crate::seeded::Random;

/// Address of a host's memory.
const WINDOW: u64 = 0x2_0000_0000;
/// How far time goes on when a driver waits.
const STEP: Ps = Ps::from_us(1);
/// So often all memory of a world is other than it was while packets of trains wait to be taken.
const SPOILS: u32 = 40;

/// A neighbour of a world, by one link.
struct Channel {
    tunnel: TunnelId,
    from: usize,
    /// From what the neighbour has reached to what can be felt here at the earliest.
    lookahead: Ps,
}

struct Part {
    world: World,
    reached: Ps,
    channels: Vec<Channel>,
    memories: Vec<Arc<Memory>>,
}

/// A topology in worlds, and the time of all of them.
pub struct Joined {
    parts: Vec<Part>,
    now: Ps,
    random: Random,
    /// By adapter of the topology: its world, and its number there.
    hcas: Vec<(usize, HcaId)>,
    switches: Vec<(usize, SwitchId)>,
    /// By link of the topology: the worlds that have an end of it, and its number there.
    links: Vec<Vec<(usize, usize)>>,
    /// Nobody looks at packets: they leave worlds in trains, with payload that is where it was. So often more it is changed there before.
    trains: Option<u32>,
}

/// What is the same however a topology is divided.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// By adapter: hash and number of the events there.
    pub events: BTreeMap<String, (u64, u64)>,
    /// By port: hash and number of the packets there, with their times and bytes.
    pub packets: BTreeMap<String, (u64, u64)>,
}

impl Joined {
    /// Divides a topology into `count` worlds; `place` says in which a node is. All events and packets are recorded.
    ///
    /// # Panics
    /// The topology is not valid.
    pub fn new(config: &WorldConfig, count: usize, seed: u64, place: impl Fn(NodeId) -> usize) -> Self {
        let mut joined = Self::unwatched(config, count, seed, place);
        for Part { world, .. } in &mut joined.parts {
            world.ports().collect::<Vec<_>>().into_iter().for_each(|port| world.capture_packets(port));
        }
        joined
    }

    /// The same, of which nobody looks at packets: where they leave a world they are trains, of which its owner takes the payload.
    ///
    /// # Panics
    /// The topology is not valid.
    pub fn in_trains(config: &WorldConfig, count: usize, seed: u64, place: impl Fn(NodeId) -> usize) -> Self {
        let mut joined = Self::unwatched(config, count, seed, place);
        joined.parts.iter_mut().for_each(|part| part.world.set_trains_out(true));
        joined.trains = Some(SPOILS);
        joined
    }

    fn unwatched(config: &WorldConfig, count: usize, seed: u64, place: impl Fn(NodeId) -> usize) -> Self {
        let mut configs =
            vec![
                WorldConfig { hcas: Vec::new(), switches: Vec::new(), links: Vec::new(), ..config.clone() };
                count
            ];
        let mut hcas = Vec::new();
        for (i, hca) in config.hcas.iter().enumerate() {
            let part = place(NodeId::Hca(HcaId(i)));
            hcas.push((part, HcaId(configs[part].hcas.len())));
            configs[part].hcas.push(hca.clone());
        }
        let mut switches = Vec::new();
        for (i, switch) in config.switches.iter().enumerate() {
            let part = place(NodeId::Switch(SwitchId(i)));
            switches.push((part, SwitchId(configs[part].switches.len())));
            configs[part].switches.push(switch.clone());
        }
        let find = |end: LinkEnd| match end {
            LinkEnd::Port(PortRef { node: NodeId::Hca(hca), .. }) => (hcas[hca.0].0, hcas[hca.0].1.into()),
            LinkEnd::Port(PortRef { node: NodeId::Switch(switch), port }) => {
                (switches[switch.0].0, PortRef::of_switch(switches[switch.0].1, port))
            }
            LinkEnd::Tunnel(_) => unreachable!("no tunnels but ours"),
        };
        let (mut links, mut cuts) = (Vec::new(), Vec::new());
        for (number, link) in config.links.iter().enumerate() {
            let ends = link.ends.map(find);
            let [(a, near), (b, far)] = ends;
            // A link that is cut has the same seed at both ends.
            let link = LinkConfig { seed: Some(link.seed.unwrap_or(seed ^ number as u64)), ..link.clone() };
            let mut put = |part: usize, ends: [LinkEnd; 2]| {
                configs[part].links.push(LinkConfig { ends, ..link.clone() });
                (part, configs[part].links.len() - 1)
            };
            if a == b {
                links.push(vec![put(a, [near.into(), far.into()])]);
            } else {
                let tunnel = TunnelId(number);
                links.push(vec![put(a, [near.into(), tunnel.into()]), put(b, [tunnel.into(), far.into()])]);
                cuts.extend([(a, b, tunnel), (b, a, tunnel)]);
            }
        }
        let mut parts: Vec<Part> = configs
            .into_iter()
            .map(|config| {
                let mut world = World::new(config).expect("a valid topology");
                world.start_trace(0);
                Part { world, reached: Ps::ZERO, channels: Vec::new(), memories: Vec::new() }
            })
            .collect();
        // Each world's manager knows where the adapters of all worlds are.
        for (part, state) in parts.iter_mut().enumerate().filter(|_| count > 1) {
            let place = |(i, hca): (usize, &(usize, HcaId))| {
                let at = LinkEnd::from(HcaId(i));
                let cut = config.links.iter().position(|link| link.ends.contains(&at));
                let cut = cut.filter(|link| links[*link].iter().any(|(of, _)| *of == part));
                if hca.0 == part { Some(hca.1.into()) } else { cut.map(|link| TunnelId(link).into()) }
            };
            state.world.set_subnet(hcas.iter().enumerate().map(place).collect());
        }
        for (to, from, tunnel) in cuts {
            let (leaves, _) = parts[from].world.lookahead(tunnel).expect("the tunnel is there");
            let (_, felt) = parts[to].world.lookahead(tunnel).expect("the tunnel is there");
            let lookahead = leaves + felt;
            assert!(lookahead >= Ps::from_ns(105), "{lookahead} of link {}", tunnel.0);
            parts[to].channels.push(Channel { tunnel, from, lookahead });
        }
        Self { parts, now: Ps::ZERO, random: Random::new(seed), hcas, switches, links, trains: None }
    }

    /// How many trains there were so far, in all worlds.
    pub fn trains_begun(&self) -> u64 {
        self.parts.iter().map(|part| part.world.trains_begun()).sum()
    }

    /// What has left a world.
    fn left(&mut self, from: usize) -> Vec<TunnelEvent> {
        let Part { world, memories, .. } = &mut self.parts[from];
        let Some(spoils) = &mut self.trains else { return world.drain_tunnels(Ps::MAX) };
        let spoil = world.leaving() > 0 && world.trains_begun() > 0 && *spoils > 0;
        let change = || {
            for memory in memories.iter().filter(|_| spoil) {
                memory.lock().iter_mut().for_each(|byte| *byte = !*byte);
            }
        };
        if spoil {
            // As before a host takes its memory away.
            *spoils -= 1;
            (0..world.hcas()).for_each(|hca| world.fetch_payloads(HcaId(hca)));
        }
        change();
        let mut events = Vec::new();
        world.take_leaving(|event| events.push(passed(event)));
        change();
        events
    }

    /// What left a world comes to its neighbours.
    fn carry_on(&mut self, from: usize) {
        for event in self.left(from) {
            let wanted = |c: &Channel| c.tunnel == event.tunnel && c.from == from;
            let to = self.parts.iter_mut().find(|part| part.channels.iter().any(wanted));
            let to = to.expect("a tunnel has a far side");
            let (_, felt) = to.world.lookahead(event.tunnel).expect("the tunnel is there");
            assert!(event.at + felt > to.reached, "{event:?} comes too late: {} is over", to.reached);
            to.world.deliver(event.tunnel, event.at, event.message);
        }
    }

    /// Lets everything happen up to that time.
    pub fn run_until(&mut self, until: Ps) {
        // What hosts did since.
        (0..self.parts.len()).for_each(|part| self.carry_on(part));
        while self.parts.iter().any(|part| part.reached < until) {
            let part = self.random.below(self.parts.len());
            let allowed = |c: &Channel| self.parts[c.from].reached + c.lookahead;
            let bound = self.parts[part].channels.iter().map(allowed).fold(until, Ps::min);
            let part_state = &mut self.parts[part];
            if bound > part_state.reached {
                part_state.reached = bound;
                part_state.world.advance(bound);
                self.carry_on(part);
            }
        }
        self.now = until;
        self.parts.iter_mut().for_each(|part| drop(part.world.drain()));
    }

    /// The time of all.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Takes a cable out, or puts it in again.
    pub fn set_cable(&mut self, link: usize, connected: bool) {
        for (part, number) in self.links[link].clone() {
            self.parts[part].world.set_cable(self.now, number, connected);
        }
    }

    /// Whether a link is up at all its ends.
    pub fn link_is_up(&self, link: usize) -> bool {
        self.links[link].iter().all(|(part, number)| self.parts[*part].world.link_is_up(*number))
    }

    /// Puts a packet on the cable at a port of a switch, as if its peer had sent it.
    pub fn inject(&mut self, switch: usize, port: u8, packet: Packet) {
        let (part, switch) = self.switches[switch];
        self.parts[part].world.inject_packet(self.now, PortRef::of_switch(switch, port), packet);
    }

    /// What happened so far.
    pub fn outcome(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut hashers: BTreeMap<String, (DefaultHasher, u64)> = BTreeMap::new();
        for Part { world, .. } in &mut self.parts {
            for hca in (0..world.hcas()).map(HcaId) {
                let trace = world.trace().expect("it was started");
                outcome.events.insert(world.name(hca).into(), trace.of_node(hca));
            }
            for packet in world.drain_packets() {
                let (hasher, count) = hashers.entry(world.port_name(packet.port)).or_default();
                (packet.at.0, packet.sent, packet.packet.into_bytes()).hash(hasher);
                *count += 1;
            }
        }
        outcome.packets = hashers.into_iter().map(|(name, (h, count))| (name, (h.finish(), count))).collect();
        outcome
    }
}

/// Bytes of a packet.
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// A message as it comes to another process.
pub fn passed(event: TunnelEvent) -> TunnelEvent {
    let TunnelEvent { tunnel, at, mut message } = event;
    if let LinkMessage::Packet(leaving) = &mut message {
        let (kind, due, len) = (leaving.packet.kind(), leaving.packet.due(), leaving.packet.len());
        let mut bytes = Bytes(Vec::new());
        let packet = std::mem::replace(&mut leaving.packet, Packet::from_bytes(Vec::new()));
        packet.put_on_link(&mut bytes);
        leaving.packet = Packet::of_link(kind, due, len, |to| to.copy_from_slice(&bytes.0));
    }
    TunnelEvent { tunnel, at, message }
}

/// A host of a [`Joined`] topology.
#[derive(Clone)]
pub struct JoinedBus {
    joined: Rc<RefCell<Joined>>,
    hca: usize,
    memory: Arc<Memory>,
    used: usize,
}

impl JoinedBus {
    /// The host of adapter `hca`, with so many bytes of memory.
    pub fn new(joined: &Rc<RefCell<Joined>>, hca: usize, memory: usize) -> Self {
        let memory = Arc::new(Memory(Mutex::new(vec![0; memory])));
        let inner = &mut *joined.borrow_mut();
        let (part, number) = inner.hcas[hca];
        inner.parts[part].world.attach(number, memory.clone());
        inner.parts[part].memories.push(memory.clone());
        Self { joined: joined.clone(), hca, memory, used: 0 }
    }

    fn with<T>(&self, act: impl FnOnce(&mut World, Ps, HcaId) -> T) -> T {
        let inner = &mut *self.joined.borrow_mut();
        let (part, number) = inner.hcas[self.hca];
        act(&mut inner.parts[part].world, inner.now, number)
    }
}

impl Bus for JoinedBus {
    type Dma = Piece;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.with(|world, now, hca| world.mmio_read(now, hca, offset, &mut word));
        u32::from_be_bytes(word)
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        self.with(|world, now, hca| world.mmio_write(now, hca, offset, &value.to_be_bytes()));
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.with(|world, now, hca| world.mmio_write(now, hca, offset, &value.to_be_bytes()));
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<Piece> {
        let start = self.used.next_multiple_of(align.max(1));
        self.used = start.checked_add(size).filter(|end| *end <= self.memory.lock().len())?;
        Some(Piece { memory: self.memory.clone(), start, size })
    }

    fn wait(&mut self, _vector: Option<u16>) {
        let inner = &mut *self.joined.borrow_mut();
        inner.run_until(inner.now + STEP);
    }

    fn vectors(&self) -> u16 {
        1
    }
}

/// Memory of a host.
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn access<T>(&self, iova: u64, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> Result<T, DmaError> {
        let start = iova.checked_sub(WINDOW).and_then(|s| usize::try_from(s).ok());
        let range = start.and_then(|s| Some(s..s.checked_add(len)?));
        range.and_then(|r| self.lock().get_mut(r).map(act)).ok_or(DmaError { iova, len })
    }
}

impl GuestMemory for Memory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.access(iova, buf.len(), |bytes| buf.copy_from_slice(bytes))
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.access(iova, data.len(), |bytes| bytes.copy_from_slice(data))
    }

    fn is_mapped(&self, iova: u64, len: usize) -> bool {
        self.access(iova, len, |_| ()).is_ok()
    }
}

/// A piece of a host's memory. It is never freed: a test is short.
pub struct Piece {
    memory: Arc<Memory>,
    start: usize,
    size: usize,
}

impl Piece {
    fn with<T>(&self, offset: usize, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        assert!(offset + len <= self.size, "access beyond the allocation");
        self.memory.access(self.bus_address() + offset as u64, len, act).expect("it lies in the window")
    }
}

impl Dma for Piece {
    fn bus_address(&self) -> u64 {
        WINDOW + self.start as u64
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.with(offset, buf.len(), |bytes| buf.copy_from_slice(bytes));
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.with(offset, data.len(), |bytes| bytes.copy_from_slice(data));
    }

    fn load32(&self, offset: usize) -> u32 {
        self.with(offset, 4, |bytes| hca_spec::be32(bytes, 0))
    }

    fn store32(&mut self, offset: usize, value: u32) {
        self.with(offset, 4, |bytes| hca_spec::put_be32(bytes, 0, value));
    }
}
