//! Incast: many hosts write to one over switches, with and without PFC and congestion control.
//!
//! Conditions are those of two papers: Y. Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015, DCQCN) and
//! Y. Li et al., "HPCC: High Precision Congestion Control" (SIGCOMM 2019). What they have that was measured elsewhere are other
//! senders, hosts and cables: curves compare by shape.
//!
//! [`site`] has the hosts and switches, [`picture`] draws, [`command`] is `softhca bench incast`.

pub mod command;
pub mod picture;
pub mod site;

use hca_model::{HcaId, PortRef, Ps, Red};
use serde::Serialize;

use crate::Error;
use crate::in_process::Simulation;
use crate::link::LinkSpec;
use site::{PRIORITY, Site};

/// Between two points of the curves.
const STEP: Ps = Ps::from_us(100);
/// Between two looks at the queue, and at completions.
const LOOK: Ps = Ps::from_us(5);

/// What holds senders back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Control {
    /// Switches and adapters ask each other to wait.
    pub pfc: bool,
    /// Switches mark, receivers tell, senders slow down.
    pub dcqcn: bool,
}

/// All four ways.
pub const CONTROLS: [Control; 4] = [
    Control { pfc: true, dcqcn: true },
    Control { pfc: false, dcqcn: true },
    Control { pfc: true, dcqcn: false },
    Control { pfc: false, dcqcn: false },
];

impl Control {
    /// In a few words.
    pub fn name(self) -> &'static str {
        match (self.pfc, self.dcqcn) {
            (true, true) => "PFC and DCQCN",
            (false, true) => "DCQCN alone",
            (true, false) => "PFC alone",
            (false, false) => "neither",
        }
    }
}

/// How the network is set up: cables, marks of switches, parameters of adapters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// Every cable.
    pub link: LinkSpec,
    /// Memory of a switch, bytes.
    pub buffer: usize,
    /// When switches mark.
    pub red: Red,
    /// Time between increases of a rate, between decreases, between CNPs, and between updates of alpha, us.
    pub timers: [u32; 4],
    /// Bytes between increases.
    pub bytes: u32,
    /// Increases of fast recovery.
    pub threshold: u32,
    /// Additive and hyper increase, Mb/s.
    pub increases: [u32; 2],
    /// Each decrease makes the rate before it the target.
    pub clamp: bool,
}

impl Conditions {
    /// Names on the command line.
    pub const NAMES: &'static str = "sigcomm2015, sigcomm2019 or sigcomm2019-paper-timers";

    /// Payload that a link takes, Gb/s: each packet has headers and checksums of Ethernet with a tag, IPv4, UDP and the transport.
    pub fn most_payload(&self) -> f64 {
        const AROUND: usize = 14 + 4 + 20 + 8 + 12 + 4 + 4;
        let line = self.link.line();
        site::PAYLOAD as f64 * 8e3 / line.serialisation(AROUND + site::PAYLOAD).0 as f64
    }

    /// Conditions of a paper.
    pub fn named(name: &str) -> Option<Self> {
        // SIGCOMM 2015: 40 Gb/s, 12 MB (section 4), marks from 5 KB to 200 KB with 1 %, a CNP every 50 us, alpha every 55 us, F = 5,
        // 55 us and 10 MB, R_AI = 40 Mb/s (sections 3 and 5). Hyper increase, of which the paper has no number: an estimate.
        let zhu = Self {
            link: LinkSpec::named("eth40")?,
            buffer: 12 << 20,
            red: Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 },
            timers: [55, 50, 50, 55],
            bytes: 10_000_000,
            threshold: 5,
            increases: [40, 200],
            clamp: true,
        };
        // SIGCOMM 2019, and its published simulation (run.py, "dcqcn" and "dcqcn_paper"), for 25 Gb/s: 16 MB for 50, marks from 100 KB
        // to 400 KB with 20 %, the vendor's timers, 5 and 50 Mb/s, one increase of fast recovery; increases by time alone.
        let li = Self {
            link: LinkSpec::named("eth25")?,
            buffer: 8 << 20,
            red: Red { kmin: 100_000, kmax: 400_000, pmax: 0.2 },
            timers: [300, 4, 4, 1],
            bytes: u32::MAX,
            threshold: 1,
            increases: [5, 50],
            clamp: false,
        };
        match name {
            "sigcomm2015" => Some(zhu),
            "sigcomm2019" => Some(li),
            "sigcomm2019-paper-timers" => Some(Self { timers: [55, 50, 50, 50], ..li }),
            _ => None,
        }
    }
}

/// A run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Incast {
    /// How many send.
    pub senders: usize,
    /// 1: all hosts at one switch; 2: senders at two switches, the receiver at a third, two more between them.
    pub tiers: u8,
    /// The network.
    pub conditions: Conditions,
    /// What holds senders back.
    pub control: Control,
    /// How long they send.
    pub time: Ps,
}

/// At one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Since the senders began, ms.
    pub at_ms: f64,
    /// The most bytes that waited for the receiver's link since the last sample.
    pub queue: usize,
    /// What the receiver took of each sender since the last sample, Gb/s of payload, each byte once.
    pub goodput: Vec<f64>,
}

/// What became of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curves {
    /// What held the senders back.
    pub control: Control,
    /// Every 100 us.
    pub samples: Vec<Sample>,
    /// Bytes that waited for the receiver's link, every 5 us of the second half, from the fewest to the most.
    pub queue: Vec<usize>,
    /// The most bytes that ever waited there.
    pub longest: usize,
    /// Frames that switches dropped.
    pub lost: u64,
    /// Request packets that the senders built, and that messages have which were begun.
    pub packets: [u64; 2],
    /// Packets that switches marked.
    pub marked: u64,
    /// CNPs that the receiver sent.
    pub cnps: u64,
    /// PFC frames that switches sent.
    pub pauses: u64,
    /// For how much of the time senders waited for being let go on by PFC: mean of all, 0 to 1.
    pub paused: f64,
    /// Connections that broke.
    pub broken: usize,
}

impl Curves {
    fn late(&self) -> &[Sample] {
        self.samples.get(self.samples.len() / 2..).unwrap_or_default()
    }

    /// The queue in the second half, bytes: so many of 1000 looks saw no more.
    pub fn queue_at(&self, permille: usize) -> usize {
        let place = self.queue.len().saturating_sub(1) * permille / 1000;
        self.queue.get(place).copied().unwrap_or(0)
    }

    /// Mean goodput of the senders in the second half, Gb/s.
    pub fn rates(&self) -> Vec<f64> {
        let late = self.late();
        let senders = self.samples.first().map_or(0, |sample| sample.goodput.len());
        let mean = |n| late.iter().filter_map(|s| s.goodput.get(n)).sum::<f64>() / late.len().max(1) as f64;
        (0..senders).map(mean).collect()
    }

    /// Goodput of all together over the whole run, and in its second half, Gb/s.
    pub fn goodput(&self) -> [f64; 2] {
        let of = |samples: &[Sample]| {
            samples.iter().flat_map(|s| &s.goodput).sum::<f64>() / samples.len().max(1) as f64
        };
        [of(&self.samples), of(self.late())]
    }

    /// How fair the rates are (Jain's index): 1 if all are alike, 1 over their number if one has all.
    pub fn fairness(&self) -> f64 {
        let rates = self.rates();
        let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
        sum * sum / (squares * rates.len() as f64).max(f64::MIN_POSITIVE)
    }

    /// Which part of the packets was sent again (go-back-N): 0 to 1, but for the messages that the run ends in.
    pub fn sent_again(&self) -> f64 {
        let [sent, begun] = self.packets;
        sent.saturating_sub(begun) as f64 / sent.max(1) as f64
    }
}

/// Lets the senders write to the receiver for the time.
///
/// # Errors
/// The topology is impossible, or a command of the driver failed.
pub fn run(incast: &Incast) -> Result<Curves, Error> {
    let sim = Simulation::new(site::world(incast)?);
    let mut site = Site::bring_up(&sim, incast)?;
    let to = PortRef::of_switch(hca_model::SwitchId(0), 1);
    let begin = sim.now();
    let paused = |id: usize| {
        let of = |c: &hca_firmware::port::EthernetCounters| {
            c.rx.priorities.get(usize::from(PRIORITY)).map_or(0, |p| p.pause_duration)
        };
        sim.world(|world, _| world.ethernet_counters(HcaId(id)).map_or(0, of))
    };
    let (mut samples, mut queue) = (Vec::new(), Vec::new());
    let mut before = site.taken(&sim);
    while sim.now().since(begin) < incast.time {
        let (mut most, end) = (0, sim.now() + STEP);
        while sim.now() < end {
            site.post()?;
            sim.run(LOOK);
            let waits = sim.world(|world, _| world.switch_queue(to, PRIORITY));
            queue.push(waits);
            most = most.max(waits);
        }
        let now = site.taken(&sim);
        let rate = |(now, before): (&u64, &u64)| now.wrapping_sub(*before) as f64 * 8e3 / STEP.0 as f64;
        let goodput = now.iter().zip(&before).map(rate).collect();
        before = now;
        samples.push(Sample { at_ms: sim.now().since(begin).0 as f64 / 1e9, queue: most, goodput });
    }
    let longest = queue.iter().copied().max().unwrap_or(0);
    let mut queue = queue.split_off(queue.len() / 2);
    queue.sort_unstable();
    let time = incast.time.0 as f64 * incast.senders as f64;
    let ports = site::switch_ports(incast);
    let counters = |port: &PortRef| sim.world(|world, _| world.ethernet_counters(*port).copied());
    let all: Vec<_> = ports.iter().filter_map(counters).collect();
    let packets = site.packets(&sim);
    Ok(Curves {
        control: incast.control,
        samples,
        queue,
        longest,
        lost: all.iter().map(|c| c.tx.discards + c.rx.discards).sum(),
        packets,
        marked: all.iter().map(|c| c.ecn_marked).sum(),
        cnps: site.told()?,
        pauses: all.iter().map(|c| c.tx.priorities.iter().map(|p| p.pause).sum::<u64>()).sum(),
        paused: (1..=incast.senders).map(paused).sum::<u64>() as f64 / time,
        broken: site.broken(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(senders: usize, tiers: u8, conditions: &str, time: Ps) -> [Curves; 4] {
        let conditions = Conditions::named(conditions).expect("conditions");
        CONTROLS.map(|control| {
            let incast = Incast { senders, tiers, conditions, control, time };
            run(&incast).unwrap_or_else(|why| panic!("{}: {why}", control.name()))
        })
    }

    /// Eight to one: what each way of holding senders back is good for.
    #[test]
    fn the_shapes_of_incast() {
        let [both, dcqcn, pfc, neither] = runs(8, 1, "sigcomm2015", Ps::from_us(20_000));
        assert_eq!((both.lost, pfc.lost), (0, 0), "PFC loses nothing");
        assert!(both.marked > 0 && dcqcn.marked > 0 && pfc.marked == 0 && neither.marked == 0);
        assert!(both.cnps > 0 && both.cnps <= both.marked && pfc.cnps == 0);
        assert!(neither.lost > 0 && dcqcn.lost * 10 <= neither.lost, "{} of {}", dcqcn.lost, neither.lost);
        assert!(pfc.paused > 0.5 && both.paused < pfc.paused / 10.0, "{} and {}", pfc.paused, both.paused);
        for curves in [&both, &dcqcn] {
            // The marks hold it there: all are marked at 200 KB.
            assert!(curves.queue_at(900) < 200_000, "{}", curves.queue_at(900));
            assert!(curves.fairness() > 0.8, "{:?}", curves.rates());
        }
        assert!(both.queue_at(500) * 2 < pfc.queue_at(500), "the queue that PFC alone leaves is long");
        assert!(neither.sent_again() > 0.2 && pfc.sent_again() == 0.0, "{}", neither.sent_again());
    }

    /// Rates recover when nobody sends but one.
    #[test]
    fn who_is_alone_gets_the_link() {
        let conditions = Conditions::named("sigcomm2015").expect("conditions");
        let control = Control { pfc: true, dcqcn: true };
        let alone = Incast { senders: 1, tiers: 1, conditions, control, time: Ps::from_us(2_000) };
        let alone = run(&alone).unwrap_or_else(|why| panic!("{why}"));
        assert!(alone.goodput()[1] > 36.0 && alone.cnps == 0, "{:?}", alone.goodput());
        let over = Incast { senders: 4, tiers: 2, conditions, control, time: Ps::from_us(1_000) };
        let over = run(&over).unwrap_or_else(|why| panic!("{why}"));
        assert!(over.lost == 0 && over.cnps > 0 && over.rates().iter().all(|rate| *rate > 0.0), "{over:?}");
    }
}
