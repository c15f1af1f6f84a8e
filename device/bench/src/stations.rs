//! Hosts with Ethernet queues: what sends frames, what receives them, and the flow tables on the way.

use std::ops::Range;

use hca_driver::eth::{
    Destination, FlowEntry, FrameRequest, FrameWork, HashRules, Mac, QueueState, Rq, RqConfig, Sq, SqConfig,
    Tir,
};
use hca_driver::{Access, Bus, Dma, Mr, Sge};
use hca_spec::flow::{MatchParam, TableType};
use hca_spec::wqe::cs_flags;

use crate::Error;
use crate::in_process::ModelMemory;
use crate::scenario::{Metric, Op, Scenario};
use crate::testbed::Testbed;

/// Receive requests of a queue.
pub(crate) const RECEIVES: u32 = 1024;
/// Bytes of a frame that go in the WQE at least: up to layer 2 with a tag, as ConnectX-4 wants it.
const INLINE: usize = 18;
/// Frame check sequence.
pub(crate) const FCS: u64 = 4;
/// Ethernet header, IPv4, TCP.
const TCP_HEADERS: usize = 14 + 20 + 20;
/// A tag.
const TAG: usize = 4;
/// Frames begin at lines of the processor's caches.
const LINE: usize = 64;
/// Bytes from which all flows of a thread send.
const SPAN: usize = 1 << 20;
/// Hash function of a TIR.
const TOEPLITZ: u32 = 2;
/// What it hashes.
const ADDRESSES_AND_PORTS: u32 = 0b1111;
/// The ports are those of UDP.
const OF_UDP: u32 = 1 << 30;

/// The queues of a host.
pub struct Station {
    /// Its address.
    pub mac: Mac,
    /// Send queues.
    pub sqs: Vec<Sq<ModelMemory>>,
    /// Receive queues.
    pub rqs: Vec<Rq<ModelMemory>>,
}

/// What one thread of a host does with frames.
pub struct FrameWorker {
    /// Index in [`Testbed::hosts`].
    pub host: usize,
    /// Its send queues: places in [`Station::sqs`].
    pub sqs: Range<usize>,
    /// Index in [`Testbed::cqs`] of their completions.
    pub send_cq: usize,
    /// Its receive queues: places in [`Station::rqs`], and in [`Testbed::cqs`] of their completions.
    pub rqs: Vec<(usize, usize)>,
    /// What it sends, in turn.
    pub flows: Vec<Flow>,
    /// Where what it receives goes.
    pub room: Sge,
    /// Memory of both.
    pub memory: ModelMemory,
}

/// A frame, or a large send, that differs from others by its ports.
#[derive(Debug, Clone)]
pub struct Flow {
    head: Vec<u8>,
    data: Sge,
}

impl Flow {
    /// A request that sends it.
    pub(crate) fn request(&self, scenario: &Scenario, wr_id: u64, signaled: bool) -> FrameRequest<'_> {
        let data = if self.data.len > 0 { std::slice::from_ref(&self.data) } else { &[] };
        let work = match scenario.op {
            Op::Lso => FrameWork::Large { mss: scenario.mss as u16 },
            _ => FrameWork::One,
        };
        let request = FrameRequest::new(wr_id, &self.head, data).checksums(cs_flags::L3 | cs_flags::L4);
        FrameRequest { signaled, ..request }.work(work)
    }
}

/// Bytes of the longest frame, check sequence included.
fn longest(scenario: &Scenario) -> u64 {
    let tag = if scenario.vlan > 0 { TAG as u64 } else { 0 };
    match scenario.op {
        Op::Lso => scenario.mss.min(scenario.size) + TCP_HEADERS as u64 + tag + FCS,
        _ => scenario.size,
    }
}

/// Gives the hosts of a testbed queues, and threads that use them.
///
/// # Errors
/// A command failed.
pub(crate) fn build(testbed: &mut Testbed, scenario: &Scenario) -> Result<Vec<FrameWorker>, Error> {
    let initiators = scenario.initiators as usize;
    let both = scenario.bidirectional || scenario.metric == Metric::Latency;
    let receive_queues = scenario.receive_queues.unwrap_or(scenario.qps) as usize;
    let mut workers = Vec::new();
    for host in 0..testbed.hosts.len() {
        let (sends, receives) = (host < initiators || both, host >= initiators || both);
        let threads = scenario.threads as usize;
        let mut own = Vec::new();
        for _ in 0..threads {
            own.push(worker(testbed, scenario, host)?);
        }
        let station = station(testbed, scenario, (sends, host), &mut own)?;
        testbed.stations.push(station);
        if receives && receive_queues > 0 {
            receiving(testbed, scenario, (host, receive_queues), &mut own)?;
        }
        workers.extend(own);
    }
    for worker in &mut workers {
        let to = if worker.host < initiators { initiators } else { 0 };
        worker.flows = flows(testbed, scenario, worker, to);
    }
    Ok(workers)
}

fn worker(testbed: &mut Testbed, scenario: &Scenario, host: usize) -> Result<FrameWorker, Error> {
    let entries = 2 * scenario.window.max(scenario.signal_every) + 16;
    let send_cq = testbed.create_cq(host, entries)?;
    let side = testbed.hosts.get_mut(host).ok_or(Error::new("no such host"))?;
    let room = (longest(scenario) as usize).next_multiple_of(hca_driver::PAGE_SIZE);
    let len = SPAN + room;
    let memory = side
        .hca
        .bus_mut()
        .dma_alloc(len, hca_driver::PAGE_SIZE)
        .ok_or(Error::new("the host's memory is used up: less --threads"))?;
    let mr: Mr = side.hca.register(side.pd, &memory, len, Access::LOCAL_WRITE)?;
    let room = Sge { address: mr.address + SPAN as u64, len: room as u32, key: mr.key };
    Ok(FrameWorker { host, sqs: 0..0, send_cq, rqs: Vec::new(), flows: Vec::new(), room, memory })
}

/// A host's address and send queues, shared out to its threads.
fn station(
    testbed: &mut Testbed,
    scenario: &Scenario,
    (sends, host): (bool, usize),
    workers: &mut [FrameWorker],
) -> Result<Station, Error> {
    let Testbed { hosts, cqs, .. } = testbed;
    let side = hosts.get_mut(host).ok_or(Error::new("no such host"))?;
    side.hca.set_port_mtu(1, longest(scenario).max(1522) as u16)?;
    let mac = side.hca.mac()?;
    let mut sqs = Vec::new();
    let each = (scenario.qps / scenario.threads) as usize;
    // Control, Ethernet and data segments, and what is inline.
    let inline = if scenario.is_inline() { scenario.size as usize } else { TCP_HEADERS + TAG };
    let blocks = (64 + inline).div_ceil(64) as u64;
    let wanted = (scenario.window + 2 * scenario.signal_every) * blocks;
    for worker in workers.iter_mut().filter(|_| sends) {
        worker.sqs = sqs.len()..sqs.len() + each;
        let Some(cq) = cqs.get(worker.send_cq) else { continue };
        for _ in 0..each {
            let domain = side.hca.alloc_transport_domain()?;
            let tis = side.hca.create_tis(domain, 0)?;
            let config = SqConfig {
                blocks: wanted.min(1 << 15) as u32,
                min_inline: 1,
                multi_packet: false,
                ..SqConfig::new(tis, side.pd, cq)
            };
            let mut sq = side.hca.create_sq(&config)?;
            side.hca.modify_sq(&mut sq, QueueState::Ready)?;
            sqs.push(sq);
        }
    }
    Ok(Station { mac, sqs, rqs: Vec::new() })
}

/// Receive queues of a host, shared out to its threads, and flow tables that lead to them.
fn receiving(
    testbed: &mut Testbed,
    scenario: &Scenario,
    (host, queues): (usize, usize),
    workers: &mut [FrameWorker],
) -> Result<(), Error> {
    let threads = workers.len().max(1);
    let mut rqs = Vec::new();
    for i in 0..queues {
        let Some(worker) = workers.get_mut(i % threads) else { continue };
        let cq = testbed.create_cq(host, u64::from(RECEIVES))?;
        worker.rqs.push((i, cq));
        let Testbed { hosts, cqs, .. } = testbed;
        let (Some(side), Some(cq)) = (hosts.get_mut(host), cqs.get(cq)) else { continue };
        let config = RqConfig { requests: RECEIVES, sges: 1, ..RqConfig::new(side.pd, cq) };
        let mut rq = side.hca.create_rq(&config)?;
        side.hca.modify_rq(&mut rq, QueueState::Ready)?;
        for _ in 0..RECEIVES {
            rq.post(0, &[worker.room])?;
        }
        rqs.push(rq);
    }
    let side = testbed.hosts.get_mut(host).ok_or(Error::new("no such host"))?;
    let numbers: Vec<_> = rqs.iter().map(Rq::number).collect();
    let domain = side.hca.alloc_transport_domain()?;
    let tir = match numbers[..] {
        [one] => side.hca.create_direct_tir(domain, one)?,
        _ => {
            let places = spread(&numbers);
            let table = side.hca.create_rqt(&places, places.len() as u16)?;
            let fields = ADDRESSES_AND_PORTS | if scenario.op == Op::Lso { 0 } else { OF_UDP };
            let key = std::array::from_fn(|i| (i as u8).wrapping_mul(151).wrapping_add(43));
            let rules = HashRules { function: TOEPLITZ, symmetric: false, key, fields };
            side.hca.create_hashed_tir(domain, table, &rules)?
        }
    };
    tables(side, scenario.tables, tir)?;
    if let Some(station) = testbed.stations.get_mut(host) {
        station.rqs = rqs;
    }
    Ok(())
}

/// A table of queues is as long as drivers make it: 128 places at least, each queue as often as the others but for one.
fn spread<T: Copy>(queues: &[T]) -> Vec<T> {
    let places = queues.len().next_power_of_two().max(128);
    queues.iter().copied().cycle().take(places).collect()
}

/// So many flow tables, one behind the other, that let everything pass to a TIR.
fn tables(side: &mut crate::testbed::HostSide, count: u64, tir: Tir) -> Result<(), Error> {
    let mut next = Destination::Tir(tir);
    let anything = MatchParam::new();
    for level in (1..=count).rev() {
        let table = side.hca.create_flow_table(TableType::NicRx, level as u8, 0, None)?;
        let group = side.hca.create_flow_group(table, 0..=0, 0, &anything)?;
        let entry = FlowEntry { value: &anything, destinations: &[next], counters: &[], tag: 0 };
        side.hca.set_flow_entry(group, 0, &entry)?;
        if level == 1 {
            side.hca.set_flow_root(table)?;
        }
        next = Destination::Table(table);
    }
    Ok(())
}

/// What a thread sends to another host: each flow from a port of its own.
fn flows(testbed: &Testbed, scenario: &Scenario, worker: &mut FrameWorker, to: usize) -> Vec<Flow> {
    let mac = |host: usize| testbed.stations.get(host).map_or(Mac::default(), |station| station.mac);
    let (from, first) = (worker.host, worker.room.address - SPAN as u64);
    let mut flow = |i: u64| {
        let port = 1024 + (i as u16).wrapping_add((worker.sqs.start as u16).wrapping_mul(257)) % 60_000;
        let head = headers(scenario, [mac(to), mac(from)], [to as u8, from as u8], port);
        if scenario.op == Op::Lso {
            let data = Sge { address: first, len: scenario.size as u32, key: worker.room.key };
            return Flow { head, data };
        }
        let len = (scenario.size - FCS) as usize;
        let mut frame = head;
        frame.resize(len, 0);
        let inline = if scenario.is_inline() { len } else { INLINE.min(len) };
        let at = i as usize * len.next_multiple_of(LINE);
        worker.memory.write(at, &frame);
        let data =
            Sge { address: first + (at + inline) as u64, len: (len - inline) as u32, key: worker.room.key };
        frame.truncate(inline);
        Flow { head: frame, data }
    };
    // Each frame has a place of its own.
    let places = match scenario.op {
        Op::Lso => u64::MAX,
        _ => SPAN as u64 / scenario.size.next_multiple_of(LINE as u64),
    };
    (0..scenario.flows.min(places)).map(&mut flow).collect()
}

/// Ethernet, IPv4 and UDP or TCP. Checksums are the adapter's.
fn headers(scenario: &Scenario, [to, from]: [Mac; 2], hosts: [u8; 2], port: u16) -> Vec<u8> {
    const UDP: u8 = 17;
    const TCP: u8 = 6;
    const DISCARD: u16 = 9;
    let large = scenario.op == Op::Lso;
    let mut out = [&to.0[..], &from.0].concat();
    if scenario.vlan > 0 {
        out.extend([0x81, 0]);
        out.extend(scenario.vlan.to_be_bytes());
    }
    let len = scenario.size.saturating_sub(FCS + out.len() as u64 + 2) as u16;
    out.extend([8, 0, 0x45, 0]);
    out.extend(if large { 0 } else { len }.to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, if large { TCP } else { UDP }, 0, 0]);
    out.extend([10, 0, 0, hosts[1] + 1, 10, 0, 0, hosts[0] + 1]);
    out.extend(port.to_be_bytes());
    out.extend(DISCARD.to_be_bytes());
    match large {
        // Sequence, acknowledgement, length of the header in words, ACK, window.
        true => out.extend([0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, 0x10, 0xff, 0xff, 0, 0, 0, 0]),
        false => {
            out.extend(len.saturating_sub(20).to_be_bytes());
            out.extend([0, 0]);
        }
    }
    out
}
