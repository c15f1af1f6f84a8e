//! Fabrics of adapters and switches, and traffic over them.

use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Cq, CqConfig, Dma, Error, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr, SendOp, SendRequest, Sge,
};
use hca_model::{
    HcaId, LinkConfig, LinkEnd, PortRef, Ps, Queueing, SwitchConfig, SwitchId, SwitchIdentity, World,
    WorldConfig,
};
use hca_spec::ids::{Lid, Pd, Qpn};

use crate::in_process::{ModelBus, Simulation};
use crate::pair::{PORT, pattern, wait_active};
use crate::worlds;

/// GUID of the first switch; the others follow.
const FIRST_SWITCH_GUID: u64 = 0x0002_c903_00b0_0001;
/// 4x EDR: bytes in a microsecond.
pub const BYTES_PER_US: u64 = 12_500;

/// A fabric to be: so many adapters, switches with so many ports, and what joins them.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Adapters.
    pub hcas: usize,
    /// Ports of each switch.
    pub switches: Vec<u8>,
    /// Cables.
    pub links: Vec<LinkConfig>,
}

/// A port of a switch.
pub fn port(switch: usize, port: u8) -> PortRef {
    PortRef::of_switch(SwitchId(switch), port)
}

impl Plan {
    /// Adapters around switches: switch `i` has `hcas[i]` of them at its ports from 1 on, and room for `more` cables.
    pub fn around(hcas: &[u8], more: u8) -> Self {
        let mut plan = Self::default();
        for (switch, count) in hcas.iter().enumerate() {
            plan.switches.push(count + more);
            for p in 1..=*count {
                plan.join(HcaId(plan.hcas), port(switch, p));
                plan.hcas += 1;
            }
        }
        plan
    }

    /// A cable, 4x EDR, one metre.
    pub fn join(&mut self, a: impl Into<LinkEnd>, b: impl Into<LinkEnd>) -> &mut LinkConfig {
        self.links.push(worlds::cable(a, b));
        self.links.last_mut().expect("it was just added")
    }

    /// Four switches with 16 adapters each, four above them with four cables to each of those: 64 adapters, and as
    /// much bandwidth between any halves of them as they have themselves. `scale` divides the numbers.
    pub fn two_levels(scale: u8) -> Self {
        const LEAVES: usize = 4;
        let (below, between) = (16 / scale, 4 / scale);
        let mut plan = Self::around(&[below; LEAVES], below);
        let spines = usize::from(below / between);
        for spine in 0..spines {
            plan.switches.push(LEAVES as u8 * between);
            for leaf in 0..LEAVES {
                for cable in 0..between {
                    let up = below + 1 + spine as u8 * between + cable;
                    let down = 1 + leaf as u8 * between + cable;
                    plan.join(port(leaf, up), port(LEAVES + spine, down));
                }
            }
        }
        plan
    }

    /// The world, with the built-in subnet manager.
    pub fn world(&self, seed: u64) -> World {
        World::new(self.config(seed)).expect("a valid topology")
    }

    /// The same, left to a subnet manager that comes from elsewhere.
    pub fn unmanaged_world(&self, seed: u64) -> World {
        World::new(WorldConfig { subnet_manager: false, ..self.config(seed) }).expect("a valid topology")
    }

    /// What the world is made of, with the built-in subnet manager.
    pub fn config(&self, seed: u64) -> WorldConfig {
        let mut config = worlds::config(self.hcas as u64, self.links.clone(), seed);
        config.switches = (0..)
            .zip(&self.switches)
            .map(|(i, ports)| SwitchConfig {
                name: format!("switch{i}"),
                firmware: SwitchIdentity {
                    node_guid: FIRST_SWITCH_GUID + i,
                    system_image_guid: FIRST_SWITCH_GUID + i,
                    node_description: format!("switch {i}"),
                    ports: *ports,
                    kind: hca_firmware::PortKind::InfiniBand,
                },
                queueing: Queueing::default(),
            })
            .collect();
        config
    }
}

/// An adapter with memory and completion queues for connections to many others.
pub struct Node {
    /// The adapter.
    pub hca: Hca<ModelBus>,
    /// Its LID.
    pub lid: Lid,
    /// Its protection domain.
    pub pd: Pd,
    /// Completions of sends, of all its queue pairs.
    pub sends: Cq<<ModelBus as Bus>::Dma>,
    /// Completions of receives.
    pub receives: Cq<<ModelBus as Bus>::Dma>,
    /// Registered memory.
    pub memory: <ModelBus as Bus>::Dma,
    /// Its key.
    pub mr: Mr,
    /// The queue pairs, by peer.
    pub qps: Vec<Option<Qp<<ModelBus as Bus>::Dma>>>,
}

/// Adapters that are up and connected.
pub struct Fabric {
    /// Time and world.
    pub simulation: Simulation,
    /// The adapters.
    pub nodes: Vec<Node>,
    /// When the last message of each adapter was there, since the start of the traffic before.
    pub finished: Vec<Ps>,
    /// How often completions are looked for.
    pub step: Ps,
}

/// Which adapters send to which, and how much.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// From and to.
    pub flows: Vec<(usize, usize)>,
    /// Messages of each flow.
    pub messages: usize,
    /// Bytes of each message.
    pub len: usize,
    /// Service level of each flow.
    pub sl: fn((usize, usize)) -> u8,
    /// Seed of the bytes.
    pub seed: u64,
}

impl Traffic {
    /// These flows on service level 0.
    pub fn new(flows: Vec<(usize, usize)>, messages: usize, len: usize) -> Self {
        Self { flows, messages, len, sl: |_| 0, seed: 1 }
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        (self.flows.len() * self.messages * self.len) as u64
    }

    fn data(&self, (from, to): (usize, usize), message: usize) -> Vec<u8> {
        pattern(self.seed << 40 | (from as u64) << 24 | (to as u64) << 12 | message as u64, self.len)
    }

    /// Every adapter to every other.
    pub fn all_to_all(nodes: usize, messages: usize, len: usize) -> Self {
        let pairs = (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))).filter(|(a, b)| a != b);
        Self::new(pairs.collect(), messages, len)
    }
}

impl Fabric {
    /// Brings every adapter up. Each has `memory` bytes for its host, and completion queues of `cqes`.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(world: World, memory: usize, registered: usize, cqes: u32) -> Result<Self, Error> {
        Self::managed(world, memory, registered, cqes, |_, _, hca| wait_active(hca))
    }

    /// The same; `manage` gets each adapter's port in order.
    ///
    /// # Errors
    /// A command failed.
    pub fn managed(
        world: World,
        memory: usize,
        registered: usize,
        cqes: u32,
        manage: impl Fn(&Simulation, usize, &mut Hca<ModelBus>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let simulation = Simulation::new(world);
        let count = simulation.world(|world, _| world.hcas());
        let mut nodes = Vec::new();
        for i in 0..count {
            let mut hca = Hca::open(simulation.bus(HcaId(i), memory), hca_driver::Config::default())?;
            manage(&simulation, i, &mut hca)?;
            let lid = hca.lid(PORT)?;
            let pd = hca.alloc_pd()?;
            let sends = hca.create_cq(CqConfig::new(cqes))?;
            let receives = hca.create_cq(CqConfig::new(cqes))?;
            let buffer = hca.bus_mut().dma_alloc(registered, 4096).ok_or(Error::OutOfMemory)?;
            let mr = hca.register(pd, &buffer, registered, Access::ALL)?;
            let qps = (0..count).map(|_| None).collect();
            nodes.push(Node { hca, lid, pd, sends, receives, memory: buffer, mr, qps });
        }
        Ok(Self { simulation, finished: vec![Ps::ZERO; nodes.len()], nodes, step: Ps::from_us(1) })
    }

    /// Connects two adapters: a queue pair at each, for `messages` at a time.
    ///
    /// # Errors
    /// A command failed.
    pub fn connect(
        &mut self,
        a: usize,
        b: usize,
        sl: u8,
        messages: usize,
        rts: &RtsAttr,
    ) -> Result<(), Error> {
        for (here, there) in [(a, b), (b, a)] {
            let node = &mut self.nodes[here];
            let defaults = QpConfig::rc(node.pd, &node.sends, &node.receives);
            let slots = messages.next_power_of_two().max(4) as u32;
            let config = QpConfig { recv_requests: slots, send_blocks: slots, ..defaults };
            node.qps[there] = Some(node.hca.create_qp(&config)?);
        }
        for (here, there) in [(a, b), (b, a)] {
            let (lid, number) = (self.nodes[there].lid, self.number(there, here));
            let node = &mut self.nodes[here];
            let Some(qp) = &mut node.qps[there] else { unreachable!("it was just made") };
            node.hca.qp_to_init(qp, &InitAttr::default())?;
            let path = Path { sl, ..Path::lid(lid) };
            node.hca.qp_to_rtr(qp, &RtrAttr { mtu: 5, ..RtrAttr::new(number, path) })?;
            node.hca.qp_to_rts(qp, rts)?;
        }
        Ok(())
    }

    fn number(&self, here: usize, there: usize) -> Qpn {
        self.nodes[here].qps[there].as_ref().map_or(Qpn(0), Qp::number)
    }

    /// Connects whoever sends and is not connected yet.
    ///
    /// # Errors
    /// A command failed.
    pub fn connect_all(&mut self, traffic: &Traffic) -> Result<(), Error> {
        // Waiting in queues must not look like a loss.
        let rts = RtsAttr { timeout: 18, ..RtsAttr::default() };
        for flow @ (from, to) in &traffic.flows {
            if self.nodes[*from].qps[*to].is_none() {
                self.connect(*from, *to, (traffic.sl)(*flow), traffic.messages, &rts)?;
            }
        }
        Ok(())
    }

    /// Connects whoever sends, posts all of it at once, and checks every byte where it arrives. Returns the model time
    /// from the first doorbell to the last completion.
    ///
    /// # Errors
    /// A command failed.
    ///
    /// # Panics
    /// Something did not arrive as it was sent.
    pub fn run(&mut self, traffic: &Traffic) -> Result<Ps, Error> {
        let Traffic { flows, messages, len, .. } = traffic;
        self.connect_all(traffic)?;
        // Each adapter's memory: what it sends first, what it receives behind that.
        let mut used = vec![0; self.nodes.len()];
        let mut place = |node: usize| {
            let at = used[node];
            used[node] += len;
            at
        };
        let mut received = Vec::new();
        let mut posts = Vec::new();
        for flow @ (from, to) in flows {
            for message in 0..*messages {
                let (out, inward) = (place(*from), place(*to));
                self.nodes[*from].memory.write(out, &traffic.data(*flow, message));
                let node = &mut self.nodes[*to];
                node.memory.write(inward, &vec![0; *len]);
                let sge =
                    Sge { address: node.mr.address + inward as u64, len: *len as u32, key: node.mr.key };
                let Some(qp) = &mut node.qps[*from] else { unreachable!("they are connected") };
                qp.post_recv(received.len() as u64, &[sge])?;
                received.push((*flow, message, inward));
                posts.push((*flow, out));
            }
        }
        let start = self.simulation.now();
        for (i, ((from, to), out)) in posts.iter().enumerate() {
            let node = &mut self.nodes[*from];
            let sge = [Sge { address: node.mr.address + *out as u64, len: *len as u32, key: node.mr.key }];
            let Some(qp) = &mut node.qps[*to] else { unreachable!("they are connected") };
            let request = SendRequest::new(i as u64, SendOp::Send { imm: Some(i as u32) }, &sge);
            qp.post_send(node.hca.bus_mut(), &request)?;
        }
        let (mut sent, mut came) = (0, 0);
        let mut seen = vec![false; received.len()];
        let (mut rest, mut end) = (1_000_000, start);
        while sent < posts.len() || came < received.len() {
            self.simulation.run(self.step);
            rest -= 1;
            assert!(rest > 0, "{sent} of {} sent, {came} received", posts.len());
            for (here, node) in self.nodes.iter_mut().enumerate() {
                while let Some(done) = node.sends.poll() {
                    assert_eq!(done.status, Ok(()), "a send of adapter {here}");
                    let qp = node.qps.iter_mut().flatten().find(|qp| qp.number() == done.qpn);
                    assert!(qp.and_then(|qp| qp.finish(&done)).is_some(), "a completion of nothing");
                    sent += 1;
                    end = self.simulation.now();
                }
                while let Some(done) = node.receives.poll() {
                    assert_eq!(done.status, Ok(()), "a receive of adapter {here}");
                    let qp = node.qps.iter_mut().flatten().find(|qp| qp.number() == done.qpn);
                    let wr_id =
                        qp.and_then(|qp| qp.finish(&done)).expect("a completion of something") as usize;
                    let (flow, message, at) = received[wr_id];
                    assert_eq!((done.imm, done.byte_len as usize, flow.1), (Some(wr_id as u32), *len, here));
                    let mut got = vec![0; *len];
                    node.memory.read(at, &mut got);
                    assert!(got == traffic.data(flow, message), "message {message} of {flow:?} was garbled");
                    assert!(
                        !std::mem::replace(&mut seen[wr_id], true),
                        "message {message} of {flow:?} came twice"
                    );
                    self.finished[here] = self.simulation.now() - start;
                    came += 1;
                }
            }
        }
        Ok(end - start)
    }

    /// Looks at a port's counters.
    pub fn counters(&self, port: impl Into<PortRef>) -> hca_model::PortCounters {
        self.simulation.world(|world, _| world.port_counters(port.into())).expect("there is such a port")
    }
}
