//! The world of a scenario, brought up: adapters, memory, queue pairs and their connections.

use hca_driver::eth::{Hop, Mac};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::wqe::RoceDatagram;
use hca_driver::{
    Access, Bus, Completion, Config, Cq, CqConfig, Datagram, Dct, Dma, Hca, Mr, Qp, RtrAttr, RtsAttr, SendOp,
    Sge, Srq, Target,
};
use hca_model::timing::Profile;
use hca_model::{HcaId, Ps};
use hca_spec::ids::{Cqn, Gid, Lid, Pd, Qpn};
use hca_spec::qpc::ServiceType;

use crate::Error;
use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::registration::Registration;
use crate::scenario::{Detect, Metric, Op, Scenario, Topology, Transport};
use crate::stations::{self, FrameWorker, Station};
use world::{lid, roce_address, world};

mod world;

/// Place of an adapter's address in its port's table.
pub(crate) const ROCE_INDEX: u8 = 0;
/// Memory of a host beside its regions and rings: firmware pages, buffers.
const HOST_MEMORY: usize = 256 << 20;
/// Bytes of a GRH in front of a received datagram.
pub(crate) const GRH: u64 = 40;
/// A line of the processor's caches: objects that share one slow each other down.
pub(crate) const LINE: u64 = 64;
/// Receive requests of a queue pair in all, shared by few or many queue pairs.
const RECEIVES: u64 = 512;
/// Q_Key of datagrams ([`hca_driver::InitAttr`]'s default).
const QKEY: u32 = 0x1111_1111;
/// Local memory of a thread above which its requests share buffers.
const LOCAL_LIMIT: u64 = 1 << 20;

/// One host and its adapter.
pub struct HostSide {
    /// The adapter.
    pub hca: Hca<ModelBus>,
    /// Its identity in the world.
    pub id: HcaId,
    pub(crate) pd: Pd,
    pub(crate) address: Address,
    /// Memory that peers reach.
    pub regions: Vec<(ModelMemory, Mr)>,
}

/// How peers reach an adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Address {
    /// On InfiniBand.
    Lid(Lid),
    /// On Ethernet, by its entry [`ROCE_INDEX`] of the port's table of RoCE addresses.
    Roce(Gid, Mac),
}

impl Address {
    /// The way to it.
    fn path(&self) -> Path {
        match *self {
            Self::Lid(lid) => Path::lid(lid),
            Self::Roce(gid, mac) => Path::roce(gid, ROCE_INDEX, Hop::to(mac)),
        }
    }

    /// A datagram to one of its queue pairs.
    fn datagram(&self, qpn: Qpn) -> SendOp {
        let qkey = QKEY;
        match *self {
            Self::Lid(lid) => {
                SendOp::Datagram { to: Datagram { qpn, qkey, lid, sl: 0, gid: None }, imm: None }
            }
            Self::Roce(gid, mac) => {
                let (sgid_index, hop) = (ROCE_INDEX, Hop::to(mac));
                SendOp::RoceDatagram { to: RoceDatagram { qpn, qkey, gid, sgid_index, hop }, imm: None }
            }
        }
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// Index in [`Testbed::hosts`].
    pub(crate) peer: usize,
    /// What is sent, of a datagram.
    pub(crate) datagram: Option<SendOp>,
    /// The target, of dynamic connections.
    pub(crate) target: Option<Target>,
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndRef {
    /// Index in [`Testbed::qps`].
    pub qp: usize,
    /// Index in [`Testbed::cqs`] of the send queue's completions.
    pub send_cq: usize,
    /// Where its requests go.
    pub peer: usize,
}

/// What one thread of a host has.
pub struct Worker {
    /// Which thread of its host.
    pub thread: u64,
    /// Index in [`Testbed::hosts`].
    pub host: usize,
    /// Its queue pairs.
    pub ends: Vec<EndRef>,
    /// Index in [`Testbed::cqs`] of the completions of receives.
    pub recv_cq: usize,
    /// Buffers of its requests.
    pub local: ModelMemory,
    /// Their key.
    pub local_mr: Mr,
    /// Bytes of one buffer.
    pub slot: u64,
    /// Buffers.
    pub slots: u64,
    /// Whether it posts requests.
    pub initiates: bool,
    /// Whether it receives messages.
    pub receives: bool,
    /// Receive requests of each of its queue pairs, or of the queue that they share.
    pub depth: u64,
    /// Place in the testbed of the shared receive queue, if its messages come there.
    pub srq: Option<usize>,
    /// What it registers, if it does.
    pub registration: Option<Registration>,
}

/// A scenario's world.
pub struct Testbed {
    /// Virtual time.
    pub sim: Simulation,
    /// The hosts, the targets of initiators behind them.
    pub hosts: Vec<HostSide>,
    /// Every queue pair.
    pub qps: Vec<Qp<ModelMemory>>,
    /// Of each of them, where its requests go, in turn.
    to: Vec<Vec<Destination>>,
    /// Shared receive queues, and the targets whose they are.
    pub(crate) srqs: Vec<Srq<ModelMemory>>,
    pub(crate) dcts: Vec<Dct>,
    /// Every completion queue.
    pub cqs: Vec<Cq<ModelMemory>>,
    /// The threads.
    pub workers: Vec<Worker>,
    /// Ethernet queues, of each host, if frames are sent.
    pub stations: Vec<Station>,
    /// The threads that send and receive frames.
    pub frame_workers: Vec<FrameWorker>,
}

/// The file of a profile: an embedded one, or one of that path.
///
/// # Errors
/// There is neither.
pub(crate) fn profile_text(name: &str) -> Result<String, Error> {
    match Profile::text(name) {
        Some(text) => Ok(text.to_string()),
        None => std::fs::read_to_string(name).map_err(|why| {
            let names: Vec<_> = Profile::names().collect();
            Error::new(format!(
                "profile {name:?} is none of {} and no file that can be read ({why})",
                names.join(", ")
            ))
        }),
    }
}

/// The numbers of that section of a description, as `--set` names them; if it has no such section, what its sections are called.
fn keys(table: &toml::Table, section: Option<&str>) -> String {
    let of = |name| Some((name, table.get(name)?.as_table()?));
    let all: Vec<String> = match section.and_then(of) {
        Some((name, section)) => section.keys().map(|key| format!("{name}.{key}")).collect(),
        None => {
            let sections = table.iter().filter(|(_, value)| value.is_table());
            sections.map(|(name, _)| format!("{name}.*")).collect()
        }
    };
    all.join(", ")
}

/// The profile of a scenario: the named one, with the scenario's own numbers.
///
/// # Errors
/// There is no such profile, or it has no such number.
pub fn profile(scenario: &Scenario) -> Result<Profile, Error> {
    let name = &scenario.profile;
    let text = profile_text(name)?;
    let fail = |why: &dyn std::fmt::Display| Error::new(format!("profile {name:?}: {why}"));
    let mut table: toml::Table = text.parse().map_err(|why| fail(&why))?;
    for (key, value) in scenario.profile_overrides() {
        let known = keys(&table, key.split_once('.').map(|(section, _)| section));
        let place = key.split_once('.').and_then(|(section, key)| Some((table.get_mut(section)?, key)));
        let place = place.and_then(|(section, key)| section.as_table_mut()?.get_mut(key));
        let Some(place) = place else {
            return Err(fail(&format!("--set {key}={value}: it has no number of that name, only {known}")));
        };
        let parsed: toml::Table =
            format!("value = {value}").parse().map_err(|why| fail(&format!("--set {key}={value}: {why}")))?;
        *place = parsed.get("value").cloned().unwrap_or(toml::Value::Integer(0));
    }
    let text = toml::to_string(&table).map_err(|why| fail(&why))?;
    let mut profile = Profile::from_toml(&text).map_err(|why| fail(&why))?;
    // Nobody measures how long a cable takes to train.
    profile.set_link_training(Ps::from_us(1));
    Ok(profile)
}

impl Testbed {
    /// Builds and connects everything of `scenario`, which was checked.
    ///
    /// # Errors
    /// The profile can't be used, or a command failed.
    pub fn new(scenario: &Scenario) -> Result<Self, Error> {
        let adapters = match scenario.topology {
            Topology::Loopback => 1,
            Topology::BackToBack => 2,
            Topology::Switch => (scenario.initiators + scenario.targets) as usize,
        };
        let sim = Simulation::new(world(scenario, adapters)?);
        let memory = HOST_MEMORY + (region_bytes(scenario)? * (scenario.mrs + 1)) as usize + rings(scenario)?;
        let mut hosts = Vec::new();
        for id in (0..adapters).map(HcaId) {
            let mut hca = Hca::open(sim.bus(id, memory), Config::default())?;
            let address = match scenario.link.is_ethernet() {
                false => Address::Lid(lid(&mut hca)?),
                true => roce_address(&mut hca, scenario, id)?,
            };
            let pd = hca.alloc_pd()?;
            hosts.push(HostSide { hca, id, pd, address, regions: Vec::new() });
        }
        let mut testbed = Self {
            sim,
            hosts,
            qps: Vec::new(),
            to: Vec::new(),
            srqs: Vec::new(),
            dcts: Vec::new(),
            cqs: Vec::new(),
            workers: Vec::new(),
            stations: Vec::new(),
            frame_workers: Vec::new(),
        };
        if scenario.op.is_frames() {
            testbed.frame_workers = stations::build(&mut testbed, scenario)?;
            return Ok(testbed);
        }
        let targets = adapters.saturating_sub(scenario.targets as usize)..adapters;
        for host in 0..adapters {
            let both = scenario.bidirectional || scenario.metric == Metric::Latency;
            if targets.contains(&host) || both {
                testbed.add_regions(host, scenario)?;
            }
        }
        for thread in 0..scenario.threads {
            if scenario.initiators > 1 && scenario.bidirectional {
                testbed.connect_all(scenario, thread, adapters)?;
                continue;
            }
            for from in 0..scenario.initiators as usize {
                let mut near = testbed.worker(scenario, thread, from, true)?;
                let far = |target| testbed.worker(scenario, thread, target, scenario.bidirectional);
                let mut far = targets.clone().map(far).collect::<Result<Vec<_>, _>>()?;
                if scenario.transport == Transport::Dc {
                    let both = scenario.bidirectional || scenario.metric == Metric::Latency;
                    let mut all: Vec<Worker> = std::iter::once(near).chain(far).collect();
                    testbed.connect_dynamically(scenario, &mut all, both)?;
                    testbed.workers.extend(all);
                    continue;
                }
                testbed.connect(scenario, &mut near, &mut far, scenario.qps / scenario.threads)?;
                testbed.workers.push(near);
                testbed.workers.extend(far);
            }
        }
        Ok(testbed)
    }

    fn add_regions(&mut self, host: usize, scenario: &Scenario) -> Result<(), Error> {
        let side = &mut self.hosts[host];
        let len = region_bytes(scenario)? as usize;
        // On one host, two threads of a latency scenario write to each other.
        let regions =
            if scenario.topology == Topology::Loopback { scenario.mrs.max(2) } else { scenario.mrs };
        for _ in 0..regions {
            let memory = alloc(&mut side.hca, len, scenario.page_size as usize)?;
            let first = memory.bus_address();
            let pages: Vec<u64> =
                (0..len as u64 / scenario.page_size).map(|i| first + i * scenario.page_size).collect();
            let log = scenario.page_size.ilog2();
            let mr = side.hca.register_pages(side.pd, &pages, log, first, len as u64, Access::ALL)?;
            side.regions.push((memory, mr));
        }
        Ok(())
    }

    /// Thread `thread` of each of `hosts` hosts, with queue pairs to that of every other host.
    fn connect_all(&mut self, scenario: &Scenario, thread: u64, hosts: usize) -> Result<(), Error> {
        let qps = scenario.qps / scenario.threads / scenario.initiators;
        let mut workers = Vec::new();
        for host in 0..hosts {
            let mut worker = self.worker(scenario, thread, host, true)?;
            let connected = if scenario.transport == Transport::Dc { &mut [] } else { &mut workers[..] };
            for other in connected {
                self.connect(scenario, other, std::slice::from_mut(&mut worker), qps)?;
            }
            workers.push(worker);
        }
        if scenario.transport == Transport::Dc {
            self.connect_dynamically(scenario, &mut workers, true)?;
        }
        self.workers.extend(workers);
        Ok(())
    }

    /// Queue pairs between a thread and others: datagrams go to all of those in turn, connections are shared out to them.
    fn connect(
        &mut self,
        scenario: &Scenario,
        near: &mut Worker,
        far: &mut [Worker],
        qps: u64,
    ) -> Result<(), Error> {
        let (from, qps) = (near.host, qps as usize);
        let near_cqs = self.send_cqs(scenario, from, qps)?;
        let far_cqs: Vec<Vec<usize>> =
            far.iter().map(|worker| self.send_cqs(scenario, worker.host, qps)).collect::<Result<_, _>>()?;
        let others = far.len().max(1);
        for i in 0..qps {
            let pick = |cqs: &[usize]| cqs[i % cqs.len()];
            let a = self.create_qp(scenario, near, pick(&near_cqs))?;
            for (place, (far, far_cqs)) in far.iter_mut().zip(&far_cqs).enumerate() {
                if scenario.transport != Transport::Ud && place != i % others {
                    continue;
                }
                let target = far.host;
                let b = self.create_qp(scenario, far, pick(far_cqs))?;
                if self.to[a].is_empty() {
                    self.bring_up(scenario, (from, a), (target, b))?;
                    near.ends.push(EndRef { qp: a, send_cq: pick(&near_cqs), peer: target });
                }
                self.bring_up(scenario, (target, b), (from, a))?;
                far.ends.push(EndRef { qp: b, send_cq: pick(far_cqs), peer: from });
                let datagram = |peer: usize, qp: usize| {
                    let datagram = self.hosts[peer].address.datagram(self.qps[qp].number());
                    Destination { peer, datagram: Some(datagram), target: None }
                };
                let (there, back) = (datagram(target, b), datagram(from, a));
                self.to[a].push(there);
                self.to[b].push(back);
            }
        }
        Ok(())
    }

    /// Where request number `index` of an end goes.
    pub(crate) fn destination(&self, end: &EndRef, index: u64) -> Destination {
        let to = self.to.get(end.qp).map_or(&[][..], Vec::as_slice);
        let place = index.checked_rem(to.len() as u64).unwrap_or_default();
        let straight = Destination { peer: end.peer, datagram: None, target: None };
        to.get(place as usize).copied().unwrap_or(straight)
    }

    pub(crate) fn set_destinations(&mut self, qp: usize, to: Vec<Destination>) {
        if let Some(own) = self.to.get_mut(qp) {
            *own = to;
        }
    }

    pub(crate) fn cq_number(&self, cq: usize) -> Cqn {
        self.cqs.get(cq).map_or(Cqn(0), Cq::number)
    }

    /// Posts a receive request to a shared queue, if that is where a worker's messages come, or to queue pair `qp`.
    pub(crate) fn post_receive(&mut self, srq: Option<usize>, qp: usize, sge: Sge) -> Result<(), Error> {
        let sges = [sge];
        let sges = if sge.len > 0 { &sges[..] } else { &[] };
        match srq.map(|srq| self.srqs.get_mut(srq)) {
            Some(Some(srq)) => srq.post_recv(0, sges)?,
            Some(None) => {}
            None => self.qps.get_mut(qp).map_or(Ok(()), |qp| qp.post_recv(0, sges))?,
        }
        Ok(())
    }

    /// Retires the receive request that a completion completes.
    pub(crate) fn finish_receive(&mut self, srq: Option<usize>, qp: usize, completion: &Completion) {
        match srq.map(|srq| self.srqs.get_mut(srq)) {
            Some(Some(srq)) => _ = srq.finish(completion),
            Some(None) => {}
            None => _ = self.qps.get_mut(qp).and_then(|qp| qp.finish(completion)),
        }
    }

    fn worker(
        &mut self,
        scenario: &Scenario,
        thread: u64,
        host: usize,
        initiates: bool,
    ) -> Result<Worker, Error> {
        let receives = scenario.op == Op::Send
            && (!initiates || scenario.bidirectional || scenario.metric == Metric::Latency);
        let qps = scenario.qps / scenario.threads;
        let shared = scenario.transport == Transport::Dc;
        let depth = if shared { RECEIVES } else { (RECEIVES / qps).max(32) };
        let recv_cq = self.create_cq(
            host,
            if !receives {
                1
            } else if shared {
                depth
            } else {
                depth * qps
            },
        )?;
        let head = if scenario.transport == Transport::Ud { GRH } else { 0 };
        // Who looks at memory has its buffers side by side, as rdma_bench.
        let align = if scenario.detect == Detect::Memory { 1 } else { LINE };
        let slot = (scenario.moved().max(1) + head).next_multiple_of(align);
        let wanted = if scenario.local_span > 0 { scenario.local_span / slot } else { scenario.window };
        let slots = (LOCAL_LIMIT / slot).clamp(1, wanted.max(1));
        let side = &mut self.hosts[host];
        let bytes = ((slot * slots) as usize).next_multiple_of(hca_driver::PAGE_SIZE);
        let local = alloc(&mut side.hca, bytes, hca_driver::PAGE_SIZE)?;
        let local_mr = side.hca.register(side.pd, &local, bytes, Access::ALL)?;
        let registers = initiates && scenario.op == Op::Umr;
        let registration =
            registers.then(|| Registration::new(&mut side.hca, side.pd, scenario, &local)).transpose()?;
        Ok(Worker {
            thread,
            host,
            ends: Vec::new(),
            recv_cq,
            local,
            local_mr,
            slot,
            slots,
            initiates,
            receives,
            depth,
            srq: None,
            registration,
        })
    }

    pub(crate) fn send_cqs(
        &mut self,
        scenario: &Scenario,
        host: usize,
        qps: usize,
    ) -> Result<Vec<usize>, Error> {
        let count = if scenario.cq_per_qp { qps } else { 1 };
        // Every request may complete before one is polled; a little more, as the ring is never quite full.
        let entries = 2 * scenario.window.max(scenario.signal_every) + 16;
        (0..count).map(|_| self.create_cq(host, entries)).collect()
    }

    pub(crate) fn create_cq(&mut self, host: usize, entries: u64) -> Result<usize, Error> {
        let cq = self.hosts[host].hca.create_cq(CqConfig::new(entries as u32))?;
        self.cqs.push(cq);
        Ok(self.cqs.len() - 1)
    }

    pub(crate) fn create_qp(
        &mut self,
        scenario: &Scenario,
        worker: &Worker,
        send_cq: usize,
    ) -> Result<usize, Error> {
        let (send_cq, recv_cq) = (self.cq_number(send_cq), self.cq_number(worker.recv_cq));
        let shared = scenario.transport == Transport::Dc;
        let side = &mut self.hosts[worker.host];
        let config = QpConfig {
            service: match scenario.transport {
                Transport::Rc => ServiceType::Rc,
                Transport::Uc => ServiceType::Uc,
                Transport::Ud => ServiceType::Ud,
                Transport::Dc => ServiceType::Dci,
            },
            pd: side.pd,
            send_cq,
            recv_cq: if shared { Cqn(0) } else { recv_cq },
            send_blocks: send_blocks(scenario) as u32,
            srq: None,
            recv_requests: if worker.receives && !shared { worker.depth as u32 } else { 0 },
            recv_sges: 1,
            fast_registration: scenario.op == Op::Umr,
            xrcd: None,
            scatter_to_cqe: hca_driver::ScatterToCqe::Off,
            streams: None,
            recordless: false,
            fetches: false,
            physical: false,
            blocks_own_multicast: false,
        };
        self.qps.push(side.hca.create_qp(&config)?);
        self.to.push(Vec::new());
        Ok(self.qps.len() - 1)
    }

    fn bring_up(
        &mut self,
        scenario: &Scenario,
        (host, qp): (usize, usize),
        (peer, peer_qp): (usize, usize),
    ) -> Result<(), Error> {
        let (remote, path) = (self.qps[peer_qp].number(), self.hosts[peer].address.path());
        let (hca, qp) = (&mut self.hosts[host].hca, &mut self.qps[qp]);
        let init = hca_driver::InitAttr { access: Access::ALL, ..Default::default() };
        hca.qp_to_init(qp, &init)?;
        let mtu = mtu_code(scenario);
        hca.qp_to_rtr(qp, &RtrAttr { mtu, ..RtrAttr::new(remote, path) })?;
        let initiator_reads = scenario.outstanding as u8;
        hca.qp_to_rts(qp, &RtsAttr { initiator_reads, ..RtsAttr::default() })?;
        Ok(())
    }
}

/// The path MTU as IBTA codes it: 1 is 256 bytes, each next the double.
pub(crate) fn mtu_code(scenario: &Scenario) -> u8 {
    scenario.mtu.ilog2().saturating_sub(7) as u8
}

/// Basic blocks of a send queue: all of its thread's window may be on one.
fn send_blocks(scenario: &Scenario) -> u64 {
    // Control, address and data segments, those of a registration or a target, and what is inline.
    let segments = match (scenario.op, scenario.transport) {
        (Op::Umr, _) | (_, Transport::Dc) => 144,
        _ => 96,
    };
    let blocks = (segments + scenario.inline_bytes()).div_ceil(64);
    ((scenario.window + 2 * scenario.signal_every) * blocks).min(1 << 15)
}

/// Bytes of all rings of the host that has most: what is not touched costs nothing.
fn rings(scenario: &Scenario) -> Result<usize, Error> {
    /// What a queue pair or a completion queue has in pages of its own, and what rounding takes.
    const PAGES: u64 = 4 * hca_driver::PAGE_SIZE as u64;
    let qps = scenario.qps * scenario.initiators.max(scenario.targets);
    let send = send_blocks(scenario).next_power_of_two() * 64;
    let receive = (RECEIVES / (scenario.qps / scenario.threads).max(1)).max(32).next_power_of_two() * 64;
    let entries = (2 * scenario.window.max(scenario.signal_every) + 16).next_power_of_two() * 64;
    let cqs = if scenario.cq_per_qp { qps } else { scenario.threads * scenario.initiators };
    // A receive request has a completion, too.
    let all = qps * (send + 2 * receive + 2 * PAGES) + cqs * (entries + 2 * PAGES);
    match all {
        0..=0x2_0000_0000 => Ok(all as usize),
        _ => Err(Error::new(format!("rings of {all} bytes are too much: less --qps or --window"))),
    }
}

/// Bytes of one of the regions that peers reach, in whole pages.
fn region_bytes(scenario: &Scenario) -> Result<u64, Error> {
    let slot = scenario.moved().max(1).next_multiple_of(LINE);
    let wanted = match (scenario.span, scenario.addresses) {
        (0, 0) => slot * own_places(scenario),
        (0, addresses) => addresses * 8,
        (span, _) => span.max(slot),
    };
    let each = wanted.div_ceil(scenario.mrs).max(slot).next_multiple_of(scenario.page_size);
    if each.checked_mul(scenario.mrs).is_none_or(|all| all > 1 << 33) {
        return Err(Error::new(format!(
            "{} regions of {each} bytes are too much: less --span, --mrs or --page-size",
            scenario.mrs
        )));
    }
    Ok(each)
}

/// How many queue pairs have a place of their own in the target's memory: large messages share one.
pub(crate) fn own_places(scenario: &Scenario) -> u64 {
    let slot = scenario.moved().max(1).next_multiple_of(LINE);
    let qps = scenario.qps * scenario.initiators;
    (LOCAL_LIMIT / slot).clamp(1, qps)
}

fn alloc(hca: &mut Hca<ModelBus>, len: usize, align: usize) -> Result<ModelMemory, Error> {
    hca.bus_mut()
        .dma_alloc(len, align)
        .ok_or(Error::new("the host's memory is used up: less --qps or --window"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_there_is() {
        let refused = |options: &[(&str, &str)]| {
            let mut scenario = Scenario::default();
            options.iter().for_each(|(key, value)| scenario.set(key, value).unwrap());
            profile(&scenario).unwrap_err().to_string()
        };
        let error = refused(&[("profile", "connectx9")]);
        assert!(error.contains("is none of ") && error.contains(", connectx4, connectx5,"), "{error}");
        let error = refused(&[("set", "pcie.raed_ns=1")]);
        assert!(error.contains("only pcie.") && error.contains("pcie.read_ns"), "{error}");
        for wrong in ["pice.read_ns=1", "read_ns=1"] {
            let error = refused(&[("set", wrong)]);
            assert!(error.contains("pcie.*") && !error.contains("pcie.read_ns"), "{error}");
        }
    }
}
