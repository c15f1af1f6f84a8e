//! What runs where: every option of `softhca bench`, from the command line, a file or a map.

use hca_firmware::switch::MAX_PORTS;
use hca_model::Ps;

use crate::Error;
use crate::link::{LinkSpec, Roce};

/// Most of anything that is counted: queue pairs, threads, adapters, requests.
const MANY: u64 = 1 << 16;
/// What the names of a host's numbers begin with among those of a profile.
const PROGRAM: &str = "program.";
/// The largest message (IBTA 9.7.2: 2^31 bytes; here so that a run ends).
const MAX_SIZE: u64 = 1 << 30;

/// What the work requests do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Sends into receive requests.
    Send,
    /// RDMA writes.
    Write,
    /// RDMA reads.
    Read,
    /// 8-byte fetch-and-add.
    FetchAdd,
    /// 8-byte compare-and-swap.
    CompareSwap,
    /// Frames from Ethernet queues to Ethernet queues.
    Frame,
    /// Large sends of TCP, which the adapter cuts into frames (LSO).
    Lso,
    /// Registrations: work requests that give a key the pages of so many bytes (UMR).
    Umr,
    /// A PCIe read by the adapter, nothing else.
    PcieRead,
    /// A PCIe write by the adapter.
    PcieWrite,
    /// A PCIe write, then a read of the same place; the latency is that of both.
    PcieWriteRead,
    /// PCIe reads and writes at the same time, as many of one as of the other.
    PcieReadWrite,
}

/// The transport of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// Dynamic connections: initiators that go from target to target.
    Dc,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Time of one operation at a time: half a round trip of sends and writes, all of reads and atomics.
    Latency,
    /// Operations per second.
    Rate,
    /// Payload bytes per second.
    Bandwidth,
}

/// How the adapters are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Two adapters and a cable.
    BackToBack,
    /// Every adapter has a cable to one switch.
    Switch,
    /// One adapter talks to itself.
    Loopback,
}

/// How a program sees that a request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detect {
    /// By its completion.
    Cq,
    /// By the data that arrived (reads and atomics).
    Memory,
}

/// When a program posts the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As soon as any request is done.
    Any,
    /// As soon as the oldest request is done.
    Oldest,
    /// When all requests are done, as many again.
    Batch,
}

/// Which queue pair of a thread posts next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
}

/// Whether work requests go with the doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlueFlame {
    /// A post of one WQE that fits, as libmlx5 does.
    Auto,
    /// Never.
    Off,
}

/// A PCIe slot, as far as it is not the profile's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PcieSpec {
    /// Generation and lanes.
    pub slot: Option<(u8, u8)>,
    /// Largest payload of a TLP.
    pub mps: Option<u32>,
    /// Largest read request.
    pub mrrs: Option<u32>,
}

/// A scenario. The defaults are perftest's where it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// Timing profile: a name or a file.
    pub profile: String,
    /// Numbers of the profile that are otherwise: `section.key` and its value.
    pub overrides: Vec<(String, String)>,
    /// Host description: a name or a file.
    pub host: String,
    /// Operation.
    pub op: Op,
    /// Transport.
    pub transport: Transport,
    /// Message size in bytes.
    pub size: u64,
    /// Queue pairs of an initiating adapter, shared out to its threads.
    pub qps: u64,
    /// Threads of an initiating host.
    pub threads: u64,
    /// Requests outstanding per thread.
    pub window: u64,
    /// Reads and atomics outstanding per queue pair.
    pub outstanding: u64,
    /// Messages up to this size are inline.
    pub inline: u64,
    /// Every so many requests of a queue pair one is signalled.
    pub signal_every: u64,
    /// WQEs per doorbell.
    pub post_list: u64,
    /// Path MTU in bytes.
    pub mtu: u64,
    /// Name of the link, for reports.
    pub link_name: String,
    /// The cables.
    pub link: LinkSpec,
    /// How packets of RoCE look, where the cables are Ethernet.
    pub roce: Roce,
    /// VLAN of RoCE packets and frames; 0: they have no tag.
    pub vlan: u16,
    /// Receive queues of a host that receives frames, shared out to its threads; `None`: as many as `qps`. 0: flow tables let
    /// nothing pass.
    pub receive_queues: Option<u64>,
    /// Flow tables that a frame passes, one behind the other.
    pub tables: u64,
    /// Frames of a thread differ in so many source ports.
    pub flows: u64,
    /// Bytes of data in each frame of a large send.
    pub mss: u64,
    /// Length of a cable in time.
    pub cable: Ps,
    /// Latency of the switch, port to port.
    pub switch: Ps,
    /// PCIe slot of every adapter.
    pub pcie: PcieSpec,
    /// How adapters are joined.
    pub topology: Topology,
    /// Adapters that initiate; those behind them are their targets. With `bidirectional`: one less than there are, all of
    /// which talk with all others.
    pub initiators: u64,
    /// Adapters that each initiator talks to: datagrams of a queue pair go to one after the other, connections are shared
    /// out to them.
    pub targets: u64,
    /// Dynamic connections: targets (DCT) of each thread of a host that is reached. Requests of an initiator go to those of all hosts in turn.
    pub dcts: u64,
    /// Both ends initiate.
    pub bidirectional: bool,
    /// Memory regions that remote accesses go to.
    pub mrs: u64,
    /// Page size of regions in bytes.
    pub page_size: u64,
    /// Remote accesses go to random places within so many bytes; 0: to a place of each queue pair's own.
    pub span: u64,
    /// Data of requests lies at random lines within so many bytes of a thread's own; 0: each request of its window has its
    /// buffer.
    pub local_span: u64,
    /// Atomics: addresses, 8 bytes apart; 0: one of each queue pair's own.
    pub addresses: u64,
    /// Where the hosts' memory is, `llc` or `dram`, if it is not as in the profile.
    pub memory: Option<String>,
    /// How requests are seen to be done.
    pub detect: Detect,
    /// When the next is posted.
    pub pace: Pace,
    /// On which queue pair.
    pub pick: Pick,
    /// A completion queue per queue pair instead of one per thread.
    pub cq_per_qp: bool,
    /// Doorbells with WQEs.
    pub blueflame: BlueFlame,
    /// PCIe operations pass the DMA engine of their program.
    pub dma: bool,
    /// Operations count when they are received instead of when they are sent.
    pub count_received: bool,
    /// What is measured.
    pub metric: Metric,
    /// Latency: messages measured. Others: operations measured, 0: enough for a steady state.
    pub iterations: u64,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            name: String::new(),
            profile: "connectx4".into(),
            overrides: Vec::new(),
            host: "xeon".into(),
            op: Op::Write,
            transport: Transport::Rc,
            size: 2,
            qps: 1,
            threads: 1,
            window: 128,
            outstanding: 16,
            inline: 0,
            signal_every: 1,
            post_list: 1,
            mtu: 4096,
            link_name: "edr".into(),
            link: LinkSpec::EDR,
            roce: Roce::NAMES[0].1,
            vlan: 0,
            receive_queues: None,
            tables: 1,
            flows: 64,
            mss: 1448,
            cable: Ps::from_ns(10),
            switch: Ps::from_ns(200),
            pcie: PcieSpec::default(),
            topology: Topology::BackToBack,
            initiators: 1,
            targets: 1,
            dcts: 1,
            bidirectional: false,
            mrs: 1,
            page_size: 4096,
            span: 0,
            local_span: 0,
            addresses: 0,
            memory: None,
            detect: Detect::Cq,
            pace: Pace::Any,
            pick: Pick::RoundRobin,
            cq_per_qp: false,
            blueflame: BlueFlame::Auto,
            dma: false,
            count_received: false,
            metric: Metric::Latency,
            iterations: 0,
            seed: 1,
        }
    }
}

impl PcieSpec {
    /// `gen3x16`, then any of `mps=256` and `mrrs=512`, with commas between; the slot may be left out.
    fn parse(text: &str) -> Option<Self> {
        let mut spec = Self::default();
        for part in text.split(',').map(str::trim) {
            if let Some(mps) = part.strip_prefix("mps=") {
                spec.mps = Some(power_of_two(mps, 128, 4096)? as u32);
            } else if let Some(mrrs) = part.strip_prefix("mrrs=") {
                spec.mrrs = Some(power_of_two(mrrs, 128, 4096)? as u32);
            } else {
                let (generation, lanes) = part.strip_prefix("gen")?.split_once('x')?;
                let generation = generation.parse().ok().filter(|g| (1..=5).contains(g))?;
                spec.slot = Some((generation, power_of_two(lanes, 1, 32)? as u8));
            }
        }
        Some(spec)
    }

    /// What the profile's section `pcie` has otherwise, as keys and values.
    fn overrides(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        let mut set = |key: &str, value: String| out.push((format!("pcie.{key}"), value));
        if let Some((generation, lanes)) = self.slot {
            let (rate, code) = match generation {
                1 => ("2.5", "[8, 10]"),
                2 => ("5.0", "[8, 10]"),
                3 => ("8.0", "[128, 130]"),
                4 => ("16.0", "[128, 130]"),
                _ => ("32.0", "[128, 130]"),
            };
            set("lane_gt_per_s", rate.into());
            set("encoding", code.into());
            set("lanes", lanes.to_string());
        }
        if let Some(mps) = self.mps {
            set("max_payload", mps.to_string());
        }
        if let Some(mrrs) = self.mrrs {
            set("max_read_request", mrrs.to_string());
        }
        out
    }
}

fn power_of_two(text: &str, min: u64, max: u64) -> Option<u64> {
    number(text).filter(|n| n.is_power_of_two() && (min..=max).contains(n))
}

/// A whole number, with `K`, `M` or `G` behind it for powers of 1024.
pub fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.chars().last()? {
        'k' | 'K' => (text.get(..text.len() - 1)?, 1 << 10),
        'm' | 'M' => (text.get(..text.len() - 1)?, 1 << 20),
        'g' | 'G' => (text.get(..text.len() - 1)?, 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn choice<T: Copy>(value: &str, of: &[(&str, T)]) -> Result<T, String> {
    of.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = of.iter().map(|(name, _)| *name).collect();
        format!("is none of {}", names.join(", "))
    })
}

fn count(value: &str, min: u64, max: u64) -> Result<u64, String> {
    number(value)
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("must be a whole number from {min} to {max} (K, M, G for powers of 1024)"))
}

fn flag(value: &str) -> Result<bool, String> {
    choice(value, &[("true", true), ("false", false)])
}

fn nanoseconds(value: &str) -> Result<Ps, String> {
    let ns = value.parse::<f64>().ok().filter(|ns| (0.0..=1e9).contains(ns));
    ns.map(crate::host::ns).ok_or_else(|| "must be a number of nanoseconds from 0 to 1e9".into())
}

impl Op {
    pub(crate) const NAMES: [(&'static str, Op); 12] = [
        ("send", Op::Send),
        ("write", Op::Write),
        ("read", Op::Read),
        ("fetch_add", Op::FetchAdd),
        ("cmp_swap", Op::CompareSwap),
        ("frame", Op::Frame),
        ("lso", Op::Lso),
        ("umr", Op::Umr),
        ("pcie_read", Op::PcieRead),
        ("pcie_write", Op::PcieWrite),
        ("pcie_write_read", Op::PcieWriteRead),
        ("pcie_read_write", Op::PcieReadWrite),
    ];

    /// Whether latency is that from post to completion, as nobody else has a part in it or sends anything: the peer answers with data, or there is none.
    pub fn has_response(self) -> bool {
        !matches!(self, Self::Send | Self::Write) && !self.is_frames()
    }

    /// Whether frames are sent, instead of what a queue pair does.
    pub fn is_frames(self) -> bool {
        matches!(self, Self::Frame | Self::Lso)
    }

    /// Whether the PCIe link alone is looked at.
    pub fn is_pcie(self) -> bool {
        matches!(self, Self::PcieRead | Self::PcieWrite | Self::PcieWriteRead | Self::PcieReadWrite)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, op)| *op == self).map_or("?", |(name, _)| name)
    }
}

impl Metric {
    const NAMES: [(&'static str, Metric); 3] =
        [("latency", Metric::Latency), ("rate", Metric::Rate), ("bandwidth", Metric::Bandwidth)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, metric)| *metric == self).map_or("?", |(name, _)| name)
    }
}

/// The options of a scenario, as [`Scenario::set`] knows them.
const OPTIONS: [&str; 46] = [
    "name",
    "profile",
    "host",
    "op",
    "transport",
    "size",
    "qps",
    "threads",
    "window",
    "outstanding",
    "inline",
    "signal-every",
    "post-list",
    "mtu",
    "link",
    "roce",
    "vlan",
    "receive-queues",
    "tables",
    "flows",
    "mss",
    "cable-ns",
    "switch-ns",
    "pcie",
    "topology",
    "initiators",
    "targets",
    "dcts",
    "bidirectional",
    "mrs",
    "page-size",
    "span",
    "local-span",
    "addresses",
    "memory",
    "detect",
    "pace",
    "pick",
    "cq-per-qp",
    "blueflame",
    "dma",
    "count",
    "metric",
    "iterations",
    "seed",
    "set",
];

impl Scenario {
    /// Sets the option `key` (the long name on the command line) to `value`.
    ///
    /// # Errors
    /// There is no such option, or that is no value of it.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        self.try_set(key, value).map_err(|why| Error(format!("{key} = {value:?}: {why}")))
    }

    fn try_set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "name" => self.name = value.into(),
            "profile" => self.profile = value.into(),
            "host" => self.host = value.into(),
            "op" => self.op = choice(&value.to_ascii_lowercase(), &Op::NAMES)?,
            "transport" => {
                let all = [
                    ("rc", Transport::Rc),
                    ("uc", Transport::Uc),
                    ("ud", Transport::Ud),
                    ("dc", Transport::Dc),
                ];
                self.transport = choice(value, &all)?;
            }
            "size" => self.size = count(value, 0, MAX_SIZE)?,
            "qps" => self.qps = count(value, 1, MANY)?,
            "threads" => self.threads = count(value, 1, 1024)?,
            "window" => self.window = count(value, 1, 1 << 14)?,
            "outstanding" => {
                self.outstanding = power_of_two(value, 1, 16).ok_or("must be 1, 2, 4, 8 or 16")?
            }
            "inline" => self.inline = count(value, 0, 1024)?,
            "signal-every" => self.signal_every = count(value, 1, 1 << 14)?,
            "post-list" => self.post_list = count(value, 1, 1 << 14)?,
            "mtu" => {
                self.mtu = power_of_two(value, 256, 4096).ok_or("must be 256, 512, 1024, 2048 or 4096")?
            }
            "link" => {
                self.link = LinkSpec::named(value).ok_or(LinkSpec::NAMES)?;
                self.link_name = value.into();
            }
            "roce" => self.roce = choice(value, &Roce::NAMES)?,
            "vlan" => self.vlan = count(value, 0, 4094)? as u16,
            "receive-queues" => self.receive_queues = Some(count(value, 0, 1024)?),
            "tables" => self.tables = count(value, 1, 32)?,
            "flows" => self.flows = count(value, 1, MANY)?,
            "mss" => self.mss = count(value, 64, 8960)?,
            "cable-ns" => self.cable = nanoseconds(value)?,
            "switch-ns" => self.switch = nanoseconds(value)?,
            "pcie" => {
                self.pcie = PcieSpec::parse(value).ok_or(
                    "must be like gen3x16,mps=256,mrrs=512 (generation 1 to 5; any part may be left out)",
                )?;
            }
            "topology" => {
                self.topology = choice(
                    value,
                    &[
                        ("back-to-back", Topology::BackToBack),
                        ("switch", Topology::Switch),
                        ("loopback", Topology::Loopback),
                    ],
                )?;
            }
            "initiators" => self.initiators = count(value, 1, u64::from(MAX_PORTS) - 1)?,
            "targets" => self.targets = count(value, 1, u64::from(MAX_PORTS) - 1)?,
            "dcts" => self.dcts = count(value, 1, 1024)?,
            "bidirectional" => self.bidirectional = flag(value)?,
            "mrs" => self.mrs = count(value, 1, MANY)?,
            "page-size" => {
                self.page_size =
                    power_of_two(value, 4096, 1 << 30).ok_or("must be a power of two from 4096 to 1G")?;
            }
            "span" => self.span = count(value, 0, 1 << 33)?,
            "local-span" => self.local_span = count(value, 0, 1 << 24)?,
            "addresses" => self.addresses = count(value, 0, 1 << 24)?,
            "memory" => {
                choice(value, &[("llc", ()), ("dram", ())])?;
                self.memory = Some(value.into());
            }
            "detect" => self.detect = choice(value, &[("cq", Detect::Cq), ("memory", Detect::Memory)])?,
            "pace" => {
                self.pace =
                    choice(value, &[("any", Pace::Any), ("oldest", Pace::Oldest), ("batch", Pace::Batch)])?;
            }
            "pick" => {
                self.pick = choice(value, &[("round-robin", Pick::RoundRobin), ("random", Pick::Random)])?;
            }
            "cq-per-qp" => self.cq_per_qp = flag(value)?,
            "blueflame" => {
                self.blueflame = choice(value, &[("auto", BlueFlame::Auto), ("off", BlueFlame::Off)])?;
            }
            "dma" => self.dma = flag(value)?,
            "count" => self.count_received = choice(value, &[("sent", false), ("received", true)])?,
            "metric" => self.metric = choice(value, &Metric::NAMES)?,
            "iterations" => self.iterations = count(value, 0, 1 << 30)?,
            "seed" => self.seed = count(value, 0, u64::MAX)?,
            "set" => {
                let (key, number) =
                    value.split_once('=').ok_or("must be like pcie.read_ns=450, a number of the profile")?;
                self.overrides.push((key.trim().into(), number.trim().into()));
            }
            _ => return Err(format!("there is no such option, only {}", OPTIONS.join(", "))),
        }
        Ok(())
    }

    /// Bytes of one message: atomics have 8.
    pub fn bytes(&self) -> u64 {
        match self.op {
            Op::FetchAdd | Op::CompareSwap => 8,
            _ => self.size,
        }
    }

    /// Bytes that one request moves: those of its message. A registration moves none.
    pub fn moved(&self) -> u64 {
        match self.op {
            Op::Umr => 0,
            _ => self.bytes(),
        }
    }

    /// Bytes of the list of pages that a registration loads: 8 for each, in chunks of 64.
    pub fn translations(&self) -> u64 {
        (8 * self.size.div_ceil(self.page_size)).next_multiple_of(64)
    }

    /// Packets that carry one message.
    pub fn packets(&self) -> u64 {
        match self.op {
            Op::Frame | Op::Umr => 1,
            Op::Lso => self.size.div_ceil(self.mss),
            _ => self.bytes().div_ceil(self.mtu).max(1),
        }
    }

    /// Whether the data goes in the WQE, or the list that a registration loads.
    pub fn is_inline(&self) -> bool {
        match self.op {
            Op::Umr => self.translations() <= self.inline,
            Op::Lso => false,
            _ => !self.op.has_response() && self.size > 0 && self.size <= self.inline,
        }
    }

    /// How many bytes that are.
    pub fn inline_bytes(&self) -> u64 {
        match (self.is_inline(), self.op) {
            (false, _) => 0,
            (true, Op::Umr) => self.translations(),
            (true, _) => self.size,
        }
    }

    /// Everything that the profile shall have otherwise.
    pub(crate) fn profile_overrides(&self) -> Vec<(String, String)> {
        let mut all = self.pcie.overrides();
        if self.topology == Topology::Switch {
            all.push(("fabric.hop_ns".into(), (self.switch.0 as f64 / 1000.0).to_string()));
        }
        all.extend(self.memory.iter().map(|memory| ("host.memory".into(), format!("{memory:?}"))));
        all.extend(self.overrides.iter().filter(|(key, _)| !key.starts_with(PROGRAM)).cloned());
        all
    }

    /// What the host's description shall have otherwise: numbers set as `program.KEY`.
    pub(crate) fn host_overrides(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.overrides.iter();
        own.filter_map(|(key, value)| Some((key.strip_prefix(PROGRAM)?, value.as_str())))
    }

    /// Gigatransfers per second of a lane, if the slot is not the profile's.
    pub(crate) fn pcie_rate(&self) -> Option<f64> {
        let set = self.pcie.overrides();
        set.iter().find(|(key, _)| key == "pcie.lane_gt_per_s").and_then(|(_, rate)| rate.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(options: &[(&str, &str)]) -> Result<Scenario, Error> {
        let mut scenario = Scenario::default();
        for (key, value) in options {
            scenario.set(key, value)?;
        }
        scenario.check().map(|()| scenario)
    }

    #[test]
    fn the_default_is_a_write_latency() {
        let scenario = with(&[]).unwrap();
        assert_eq!((scenario.op, scenario.metric, scenario.size), (Op::Write, Metric::Latency, 2));
    }

    #[test]
    fn slots_become_numbers_of_the_profile() {
        let scenario = with(&[("pcie", "gen4x8,mps=128")]).unwrap();
        let overrides = scenario.profile_overrides();
        assert!(overrides.contains(&("pcie.lanes".into(), "8".into())));
        assert!(overrides.contains(&("pcie.max_payload".into(), "128".into())));
        assert_eq!(overrides.len(), 4);
        assert!(with(&[("pcie", "gen9x16")]).is_err() && with(&[("pcie", "mps=100")]).is_err());
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!((number("8M"), number("2k"), number("7")), (Some(8 << 20), Some(2048), Some(7)));
        assert_eq!((number("M"), number("-1"), number("99999999999G"), number("")), (None, None, None, None));
    }

    /// Each that is named is one: a value that none has is refused for itself.
    #[test]
    fn options_are_those_that_are_named() {
        for option in OPTIONS {
            let refusal = Scenario::default().set(option, "\u{1}").err().map(|error| error.to_string());
            assert!(refusal.is_none_or(|why| !why.contains("no such option")), "{option}");
        }
        let source = include_str!("scenario.rs");
        let (_, body) = source.split_once("fn try_set").unwrap();
        let (body, _) = body.split_once("no such option").unwrap();
        let arms = body.lines().filter_map(|line| line.strip_prefix("            \"")?.split('"').next());
        assert_eq!(arms.collect::<Vec<_>>(), OPTIONS);
    }

    #[test]
    fn errors_say_what_to_do() {
        for (options, reason) in [
            (&[("op", "wirte")][..], "send, write, read"),
            (&[("sise", "2")], "transport, size, qps"),
            (&[("transport", "uc"), ("op", "read")], "use rc"),
            (&[("transport", "ud")], "--op send"),
            (&[("metric", "rate"), ("qps", "3"), ("threads", "2")], "multiple"),
            (&[("qps", "2")], "--qps"),
            (&[("metric", "rate"), ("window", "8"), ("signal-every", "16")], "--signal-every"),
            (&[("metric", "rate"), ("initiators", "2")], "--topology switch"),
            (&[("metric", "rate"), ("targets", "2")], "--topology switch"),
            (
                &[("metric", "rate"), ("topology", "switch"), ("targets", "2"), ("initiators", "63")],
                "64 ports",
            ),
            (&[("topology", "switch"), ("targets", "2")], "--metric"),
            (&[("size", "0")], "--size"),
            (&[("set", "read_ns")], "pcie.read_ns=450"),
            (&[("op", "pcie_write")], "pcie_write_read"),
            (&[("op", "pcie_read"), ("size", "0")], "--size"),
            (&[("dma", "true")], "PCIe"),
            (&[("vlan", "7")], "--link eth100"),
            (&[("op", "frame"), ("size", "64")], "--link eth100"),
            (&[("op", "frame"), ("link", "eth100")], "64 to 9216"),
            (&[("op", "lso"), ("link", "eth100"), ("size", "8K")], "--metric"),
            (&[("op", "frame"), ("link", "eth100"), ("size", "64"), ("topology", "loopback")], "switch"),
            (&[("dcts", "2")], "--transport dc"),
            (&[("op", "umr"), ("transport", "ud")], "--transport"),
            (&[("op", "umr"), ("size", "0")], "65536 pages"),
            (&[("op", "umr"), ("size", "1G")], "65536 pages"),
            (&[("op", "umr"), ("size", "500K"), ("inline", "1024")], "832"),
            (&[("op", "umr"), ("metric", "rate"), ("signal-every", "2"), ("detect", "memory")], "--detect"),
            (&[("link", "eth30")], "eth25"),
            (&[("roce", "v3")], "v2-ipv6"),
        ] {
            let error = with(options).unwrap_err().to_string();
            assert!(error.contains(reason), "{options:?}: {error}");
        }
    }
}
