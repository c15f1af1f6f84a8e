//! `softhca sim`: a topology, or one process of it, without guests and with no clock but the model's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use hca_bench::cluster::{
    self, Address, Collective, Driven, Measured, Member, Operation, Pattern, Plan, Report, Storage, Transport,
};
use hca_model::{FirmwareConfig, HcaId, PortKind, Ps};
use hca_server::sandbox::{Connects, Role};
use hca_server::sim::{self, Partition};
use hca_server::topology::{Hca, Host, Topology};
use hca_spec::ids::Lid;
use nix::sys::signal::Signal;

use crate::cli::{print, stop_signals};
use crate::confine::Confinement;
use crate::log;
use crate::sim_host::Hosts;

/// How often a program looks at its queues.
const STEP: Ps = Ps::from_us(1);
/// What hosts take to be ready, in ps, as seen (0.7 ms, 50 us and 20 ns) and somewhat more: their adapter, each connection, each
/// receive.
const OPEN: u64 = 900_000_000;
const CONNECT: u64 = 60_000_000;
const RECEIVE: u64 = 100_000;
/// Bytes in a millisecond at 10 Gb/s.
const PER_MS: u64 = 1_250_000;
/// What one host needs in turn after another, in a millisecond: 20 us each, with what is sent again.
const TURNS_PER_MS: u64 = 50;
/// How often it is said how far the simulation is.
const TELL: Duration = Duration::from_secs(1);
/// How often it is seen whether somebody asks for that (SIGUSR1).
const LISTEN: Duration = Duration::from_millis(20);

/// Simulate a topology without guests: hosts run a program of ours, and time is the model's alone
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca sim --topology two-hosts\n      \
    two hosts send to each other; what happened as one number\n  \
    softhca sim --topology fat-tree:32 --traffic ring-all-reduce --size 1M --messages 4\n      \
    all have the sum of everybody's vector of 1 MiB, four times; with the bandwidth of the bus as nccl-tests count it\n  \
    softhca sim --topology fat-tree:32 --traffic storage-reads --targets 4 --depth 8 --messages 100\n      \
    28 hosts read 100 blocks of 4 KiB each of 4 others, 8 at a time, as over NVMe over Fabrics\n  \
    softhca sim --topology far.toml --process left --run-dir /tmp/far &\n  \
    softhca sim --topology far.toml --process right --run-dir /tmp/far\n      \
    the same topology in two processes, joined by its links that say simbricks = \"listen:PATH\": their hashes add\n      \
    up to that of one process\n  \
    softhca sim --topology far.toml --run-dir /tmp/far --host a --host b\n      \
    hosts of adapters that say simbricks = \"listen:PATH\" and are simulated by others, with the same options\n\n\
    Exit code: 0 if all hosts did what they should, 1 if not, or another process has ended.")]
pub(crate) struct Arguments {
    /// Topology file (hosts, adapters, switches, links), or the name of one that is built in
    #[arg(long, value_name = "FILE|NAME")]
    topology: PathBuf,
    /// Process of the topology that this one is; without, it is all of them
    #[arg(long, value_name = "NAME", requires = "run_dir")]
    process: Option<String>,
    /// Not adapters: host (HOST, or HOST/HCA if it has several adapters) of an adapter that another process simulates; may be given
    /// several times
    #[arg(long, value_name = "NAME", requires = "run_dir", conflicts_with = "process")]
    host: Vec<String>,
    /// Directory for the sockets of links to other processes; made if missing, for this user only
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What hosts do: who sends to whom, or what all do together
    #[arg(long, value_name = "PATTERN", value_enum, default_value = "all-to-all")]
    traffic: Pattern,
    /// Of all-to-all: each sends to so many of the next ones only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    peers: Option<u64>,
    /// Of storage-reads: so many hosts, the first ones, have the blocks [default: every fourth, one at least]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    targets: Option<u64>,
    /// Of storage-reads: blocks that a client has under way at each of them
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1024))]
    depth: u64,
    /// How a message gets to its host; atomic operations need messages of 8 bytes at least, an all-reduce sends or writes, and
    /// storage-reads are writes that the target makes when it is asked to, or reads by the client
    /// [default: send; of storage-reads write]
    #[arg(long, value_name = "OPERATION", value_enum)]
    operation: Option<Operation>,
    /// How hosts are connected: to each peer, or dynamically, which takes no more with more of them
    #[arg(long, value_name = "TRANSPORT", value_enum, default_value = "rc")]
    transport: Transport,
    /// Messages of each flow, rounds of an all-reduce, or blocks of each client and target
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    messages: u64,
    /// Bytes of a message, of an all-reduce's vector, or of a block: 64, 4K, 1M
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = message)]
    size: usize,
    /// When all hosts begin to send, in milliseconds of model time [default: when links have trained and all can be connected]
    #[arg(long, value_name = "MS", value_parser = crate::replay::milliseconds)]
    start: Option<Ps>,
    /// When it ends, in milliseconds of model time [default: 4 ms after the start, and twice what the busiest host's bytes take at 10 Gb/s]
    #[arg(long, value_name = "MS", value_parser = crate::replay::milliseconds)]
    until: Option<Ps>,
    /// An acknowledgement is waited for 4.096 us * 2^N before a message is sent again
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..32))]
    ack_timeout: u8,
    /// Do not hash events, packets and completions: that is faster
    #[arg(long)]
    no_hash: bool,
    #[command(flatten)]
    observation: hca_trace::Options,
    /// How many seconds to wait for the other processes
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confinement: Confinement,
}

/// Understands the size of a message.
///
/// # Errors
/// What is possible, as text.
fn message(text: &str) -> Result<usize, String> {
    let size = hca_trace::size(text)?;
    usize::try_from(size).ok().filter(|size| (1..=1 << 30).contains(size)).ok_or("must be 1 to 1G".into())
}

/// Simulates.
///
/// # Errors
/// The topology can't be simulated, a host did not do what it should, or a neighbour has ended.
pub(crate) fn run(args: &Arguments, log: &mut log::End) -> anyhow::Result<()> {
    args.confinement.begin_alone(args.run_dir.as_deref())?;
    let asked = stop_signals(&[Signal::SIGUSR1])?;
    let topology = Topology::load(&args.topology)?;
    if let Some(dir) = &args.run_dir {
        hca_server::sandbox::privileges::private_folder(dir)?;
    }
    let dir = args.run_dir.as_deref().unwrap_or(Path::new("."));
    if !args.host.is_empty() {
        return run_hosts(&topology, args, dir, log, asked);
    }
    let plan = plan(&topology, args)?;
    let status = Status::open();
    let (began, before) = (Instant::now(), status.anonymous());
    let partition =
        Partition::new(&topology, args.process.as_deref(), dir, Duration::from_secs(args.patience))?;
    let built = Built { took: began.elapsed(), bytes: status.anonymous().saturating_sub(before) };
    let (begin, mut teller) = (Instant::now(), Teller::new(plan.until, asked));
    let mut progress = |now: Ps| teller.look(now);
    let ready = || ready_to_run(args, log, plan.until);
    let (world, run_until, finish) = (Partition::world, Partition::run_until, Partition::finish);
    let engine = Driven { part: partition, world, run_until, finish };
    let (report, engine) = cluster::run(Box::new(engine), &plan, ready, &mut progress)?;
    engine.finish()?;
    tell(args, &report, &built, (begin.elapsed(), status.peak()))
}

/// Everything is open: links, traces, captures. From here on nothing can be, and there may be threads.
fn ready_to_run(args: &Arguments, log: &mut log::End, until: Ps) -> Result<(), hca_bench::Error> {
    let confined = args.confinement.enter(Role::Worker, &[], args.observation.any(), Connects::default());
    confined.and_then(|()| Ok(log.begin()?)).map_err(|why| hca_bench::Error::new(format!("{why:#}")))?;
    eprintln!("softhca: simulates to {:.3} ms", ms(until));
    Ok(())
}

/// Says how far it is: now and then, and to whoever asks.
struct Teller {
    until: Ps,
    asked: OwnedFd,
    told: Instant,
    listened: Instant,
    last: Ps,
}

impl Teller {
    fn new(until: Ps, asked: OwnedFd) -> Self {
        let now = Instant::now();
        Self { until, asked, told: now, listened: now, last: Ps::ZERO }
    }

    fn look(&mut self, now: Ps) {
        let at = Instant::now();
        if at.duration_since(self.listened) < LISTEN {
            return;
        }
        self.listened = at;
        let since = at.duration_since(self.told);
        // A signal that came is 128 bytes (`signalfd_siginfo`); several of one kind are one.
        let asks = nix::unistd::read(&self.asked, &mut [0; 128]).is_ok();
        if asks || since >= TELL {
            let rate = (now - self.last).as_ns() as f64 / 1000.0 / since.as_secs_f64();
            eprintln!("softhca: {:.3} ms of {:.3}, {rate:.0} us a second", ms(now), ms(self.until));
            (self.told, self.last) = (at, now);
        }
    }
}

/// Hosts of adapters that other processes simulate.
fn run_hosts(
    topology: &Topology,
    args: &Arguments,
    dir: &Path,
    log: &mut log::End,
    asked: OwnedFd,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        !args.observation.any(),
        "traces and captures are those of the processes that simulate the adapters"
    );
    let mut adapters = Vec::new();
    for name in &args.host {
        let name = topology.adapter(name).map_err(anyhow::Error::msg)?;
        adapters.extend(topology.hcas().filter(|(host, hca)| format!("{}/{}", host.name, hca.name) == name));
    }
    let plan = plan_of(topology, args, |(host, hca)| {
        adapters.iter().position(|known| known.0.name == host.name && known.1.name == hca.name)
    })?;
    let hosts = Hosts::open(topology, &adapters, dir, Duration::from_secs(args.patience))?;
    let status = Status::open();
    let (begin, mut teller) = (Instant::now(), Teller::new(plan.until, asked));
    let mut progress = |now: Ps| teller.look(now);
    let ready = || ready_to_run(args, log, plan.until);
    let (report, hosts) = cluster::far::run(Box::new(hosts), &plan, ready, &mut progress)?;
    hosts.finish()?;
    tell(args, &report, &Built { took: Duration::ZERO, bytes: 0 }, (begin.elapsed(), status.peak()))
}

fn ms(time: Ps) -> f64 {
    time.0 as f64 / 1e9
}

/// What the hosts of a process do that has their adapters, too.
fn plan(topology: &Topology, args: &Arguments) -> anyhow::Result<Plan> {
    let part = match &args.process {
        Some(name) => topology.part(Some(name))?,
        None => topology.whole()?,
    };
    let named = |(host, hca): (&Host, &Hca)| format!("{}/{}", host.name, hca.name);
    let here: BTreeMap<String, usize> = part.hcas().map(named).zip(0..).collect();
    plan_of(topology, args, |of| here.get(&named(of)).copied().filter(|_| of.1.simbricks.is_none()))
}

/// The same of those that have a place.
fn plan_of(
    topology: &Topology,
    args: &Arguments,
    place: impl Fn((&Host, &Hca)) -> Option<usize>,
) -> anyhow::Result<Plan> {
    let (mut members, mut addresses, mut next) = (Vec::new(), Vec::new(), 1u16);
    for (number, (host, hca)) in topology.hcas().enumerate() {
        addresses.push(match hca.port_type {
            PortKind::InfiniBand => Address::Lid(Lid(next)),
            PortKind::Ethernet => Address::Mac(FirmwareConfig::with_guid(hca.guid).mac_of_port(1)),
        });
        let ports = u16::try_from(hca.personality.ports.len())?;
        next = next.checked_add(ports).context("more ports than there are LIDs")?;
        let name = format!("{}/{}", host.name, hca.name);
        if let Some(place) = place((host, hca)) {
            members.push(Member { hca: HcaId(place), number, name });
        }
    }
    let addresses_len = addresses.len();
    let mut plan = Plan {
        members,
        addresses,
        pattern: args.traffic,
        peers: args.peers.map(usize::try_from).transpose()?,
        targets: args.targets.map(usize::try_from).transpose()?.unwrap_or(1.max(addresses_len / 4)),
        depth: usize::try_from(args.depth)?,
        operation: args.operation.unwrap_or(match args.traffic {
            Pattern::StorageReads => Operation::Write,
            _ => Operation::Send,
        }),
        transport: args.transport,
        messages: usize::try_from(args.messages)?,
        size: args.size,
        start: Ps::ZERO,
        until: Ps::ZERO,
        timeout: args.ack_timeout,
        step: STEP,
        hash: !args.no_hash,
        observation: args.observation.clone(),
    };
    check(&plan, args)?;
    plan.start = args.start.unwrap_or_else(|| ready(topology, &plan));
    plan.until = args.until.unwrap_or_else(|| plan.start + enough(&plan));
    anyhow::ensure!(plan.start < plan.until, "--start must be before --until");
    Ok(plan)
}

/// Whether options fit each other.
fn check(plan: &Plan, args: &Arguments) -> anyhow::Result<()> {
    let pattern = plan.pattern.to_possible_value();
    let pattern = pattern.as_ref().map_or("", |value| value.get_name());
    let ethernet = plan.addresses.iter().filter(|address| matches!(address, Address::Mac(_))).count();
    anyhow::ensure!(
        ethernet == 0 || ethernet == plan.addresses.len() || plan.pattern == Pattern::None,
        "{ethernet} of {} adapters are on Ethernet: with any --traffic but none all are, or none is",
        plan.addresses.len()
    );
    anyhow::ensure!(
        ethernet == 0 || plan.transport == Transport::Rc,
        "--transport dc is for InfiniBand: programs here make no dynamic connections over RoCE"
    );
    anyhow::ensure!(
        plan.transport == Transport::Rc
            || !(plan.pattern.is_all_reduce() || plan.pattern == Pattern::StorageReads),
        "--traffic {pattern} goes over reliable connections (--transport rc)"
    );
    anyhow::ensure!(
        plan.operation == Operation::Send || plan.transport == Transport::Rc,
        "--operation is of reliable connections (--transport rc): others send"
    );
    anyhow::ensure!(
        plan.operation != Operation::Atomic || plan.size >= 8,
        "--operation atomic: a message has 8 bytes at least (--size)"
    );
    anyhow::ensure!(
        !plan.pattern.is_all_reduce() || plan.size.is_multiple_of(4),
        "--traffic {pattern}: a vector has elements of 4 bytes (--size)"
    );
    anyhow::ensure!(
        !plan.pattern.is_all_reduce() || matches!(plan.operation, Operation::Send | Operation::Write),
        "--traffic {pattern}: hosts tell each other what they have, so that --operation is send or write"
    );
    let storage = plan.pattern == Pattern::StorageReads;
    anyhow::ensure!(storage || args.targets.is_none(), "--targets is of --traffic storage-reads");
    anyhow::ensure!(
        !storage || matches!(plan.operation, Operation::Write | Operation::Read),
        "--traffic storage-reads: --operation is write (the target does, when it is asked to) or read (the client does)"
    );
    anyhow::ensure!(
        !storage || plan.targets < plan.addresses.len(),
        "--targets: {} of {} hosts have blocks, and none is left that reads them",
        plan.targets,
        plan.addresses.len()
    );
    Ok(())
}

/// A time by which the hosts of a topology are up and connected: the same in each of its processes.
fn ready(topology: &Topology, plan: &Plan) -> Ps {
    let connections = match plan.transport {
        Transport::Rc => most_peers(plan),
        Transport::Dc => 0,
    };
    let receives = connections.saturating_mul(plan.receives() as u64);
    let up = OPEN
        .saturating_add(CONNECT.saturating_mul(connections))
        .saturating_add(RECEIVE.saturating_mul(receives));
    sim::training(topology) + Ps::from_ms(up.div_ceil(Ps::from_ms(1).0))
}

/// Connections of the host that has the most.
fn most_peers(plan: &Plan) -> u64 {
    let hosts = plan.addresses.len();
    // Of all others no host has more than one of the first four: the root of a tree has two, its children three, and the first target
    // and the first client are the first and `targets`.
    let some = [0, 1, 2, 3, plan.targets].into_iter().filter(|host| *host < hosts);
    some.map(|host| plan.peers(host).len()).max().unwrap_or(0) as u64
}

/// What is left for messages to come after all have begun to send.
fn enough(plan: &Plan) -> Ps {
    let hosts = plan.addresses.len();
    let flows = |host: usize| {
        let (out, inward) = (
            (0..hosts).filter(|to| plan.sends(host, *to)),
            (0..hosts).filter(|from| plan.sends(*from, host)),
        );
        out.count().max(inward.count()) as u64
    };
    let (messages, size) = (plan.messages as u64, plan.size as u64);
    let (bytes, turns) = match plan.pattern {
        Pattern::RingAllReduce => (2 * size, 2 * hosts as u64),
        // Two children, up and down.
        Pattern::TreeAllReduce => (4 * size, 2 * u64::from(usize::BITS - hosts.leading_zeros())),
        Pattern::StorageReads => (flows(0).max(flows(plan.targets)).saturating_mul(size), 1),
        Pattern::AllToAll | Pattern::Incast | Pattern::Ring | Pattern::None => {
            (flows(0).saturating_mul(size), 0)
        }
    };
    let ms = bytes.saturating_mul(messages).saturating_mul(2) / PER_MS
        + turns.saturating_mul(messages) / TURNS_PER_MS;
    Ps::from_ms(ms.saturating_add(4).min(1 << 30))
}

/// What the world took that was built.
struct Built {
    took: Duration,
    bytes: u64,
}

/// What the system says of this process: opened before nothing can be.
struct Status(Option<File>);

impl Status {
    fn open() -> Self {
        Self(File::open("/proc/self/status").ok())
    }

    /// A value in bytes; 0 if the system does not tell.
    fn value(&self, key: &str) -> u64 {
        let mut text = String::new();
        if let Some(mut file) = self.0.as_ref() {
            let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
        }
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// Memory that is its own.
    fn anonymous(&self) -> u64 {
        self.value("RssAnon")
    }

    /// The most memory that it ever had.
    fn peak(&self) -> u64 {
        self.value("VmHWM")
    }
}

fn tell(
    args: &Arguments,
    report: &Report,
    built: &Built,
    (took, peak): (Duration, u64),
) -> anyhow::Result<()> {
    let rate = report.until as f64 / 1e6 / took.as_secs_f64();
    report.said.iter().for_each(|line| eprintln!("softhca: {line}"));
    if args.json {
        let mut value = serde_json::to_value(report)?;
        value["process"] = args.process.clone().into();
        value["built_s"] = built.took.as_secs_f64().into();
        value["built_bytes"] = built.bytes.into();
        value["peak_bytes"] = peak.into();
        value["took_s"] = took.as_secs_f64().into();
        return print(&serde_json::to_string_pretty(&value)?);
    }
    let Report { hosts, messages, bytes, packets, finished, until, measured, hashes, said: _ } = report;
    let process = args.process.as_deref().map(|name| format!("process {name}: ")).unwrap_or_default();
    print(&format!(
        "{process}{hosts} hosts: {messages} messages came, {bytes} bytes, every one checked; the last completion at {:.3} us",
        *finished as f64 / 1e6
    ))?;
    if let Some(measured) = measured {
        print(&words(measured))?;
    }
    print(&format!(
        "built in {:.2} s, {:.1} MiB; {} MiB at most",
        built.took.as_secs_f64(),
        built.bytes as f64 / f64::from(1 << 20),
        peak >> 20
    ))?;
    print(&format!(
        "{:.3} ms of model time in {:.2} s: {rate:.0} us and {:.0} packets a second",
        *until as f64 / 1e9,
        took.as_secs_f64(),
        *packets as f64 / took.as_secs_f64()
    ))?;
    if let Some(hashes) = hashes {
        let [events, packets, completions] = hashes.counts;
        print(&format!("events      {:016x}  {events}", hashes.events))?;
        print(&format!("packets     {:016x}  {packets}", hashes.packets))?;
        print(&format!("completions {:016x}  {completions}", hashes.completions))?;
    }
    Ok(())
}

/// What a benchmark would say.
fn words(measured: &Measured) -> String {
    let us = |ps: u64| ps as f64 / 1e6;
    match measured {
        Measured::Collective(Collective {
            ranks,
            bytes,
            rounds,
            round_ps,
            algorithm_bandwidth,
            bus_bandwidth,
        }) => format!(
            "{ranks} ranks, {bytes} bytes each, {rounds} times: {:.3} us each, algorithm bandwidth {:.3} GB/s, bus bandwidth {:.3} GB/s",
            us(*round_ps),
            algorithm_bandwidth / 1e9,
            bus_bandwidth / 1e9
        ),
        Measured::Storage(Storage {
            clients,
            blocks,
            size,
            took_ps,
            bandwidth,
            latency_ps: [mean, half, most, longest],
        }) => format!(
            "{clients} clients read {blocks} blocks of {size} bytes in {:.3} us: {:.3} GB/s, {:.0} blocks a second; latency {:.3} us, \
             50% {:.3}, 99% {:.3}, longest {:.3}",
            us(*took_ps),
            bandwidth / 1e9,
            *blocks as f64 / ((*took_ps).max(1) as f64 / 1e12),
            us(*mean),
            us(*half),
            us(*most),
            us(*longest)
        ),
    }
}
