//! Programs on hosts, each with a time of its own: what a thread does and what that takes.
//!
//! A program acts at an instant, returns until when its processor is busy, and acts again. One that finds nothing
//! sleeps until the adapter writes to memory it watches, and sees that at its next poll: polls come at a fixed
//! interval, but those that would find nothing are not simulated.

mod frames;
mod latency;
mod meter;
mod receiver;
mod stream;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hca_driver::{Completion, SendOp, SendRequest, Sge, Target};
use hca_model::Ps;
use hca_model::units::Counts;

use crate::host::Host;
use crate::outcome::{Latency, Outcome, Share, Usage};
use crate::scenario::{BlueFlame, Metric, Op, Scenario, Transport};
use crate::testbed::{EndRef, LINE, Testbed, own_places};
use crate::{Error, stats};
use meter::Meter;

/// Nothing completed for so long: the scenario hangs.
const PATIENCE: Ps = Ps::from_ms(100);
/// Latency: messages before those that count.
const WARM_MESSAGES: u64 = 10;
/// Latency: messages measured unless the scenario says how many.
const MESSAGES: u64 = 200;
/// Completions that one call takes.
const POLL_BATCH: usize = 16;
/// Longest WQE that is posted by BlueFlame.
const BLUEFLAME: u64 = 256;

/// When a program acts again.
enum Next {
    /// At that instant.
    At(Ps),
    /// It polls at this interval; there is nothing yet.
    Look(Ps),
    /// The same, and it sees the adapter's writes with this additional latency.
    LookFrom(Ps, Ps),
}

/// What all programs of a run share.
struct Shared<'a> {
    scenario: &'a Scenario,
    host: Host,
    meter: Meter,
}

trait Program {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error>;
}

/// A program that sleeps until the adapter writes: since when it polls, and how often.
#[derive(Clone, Copy)]
struct Sleep {
    since: Ps,
    every: Ps,
    late: Ps,
}

/// Runs a scenario.
///
/// # Errors
/// Its options don't go together, something it names can't be used, or a request failed.
pub fn run(scenario: &Scenario) -> Result<Outcome, Error> {
    run_observed(scenario, &hca_trace::Options::default()).map(|(outcome, _)| outcome)
}

/// The same, traced and captured as `options` say, once everything is connected. Returns also the lines to be printed
/// about the files.
///
/// # Errors
/// As [`run`]; or a file can't be written.
pub fn run_observed(
    scenario: &Scenario,
    options: &hca_trace::Options,
) -> Result<(Outcome, Vec<String>), Error> {
    let unseen = |why: anyhow::Error| Error::new(format!("{why:#}"));
    scenario.check()?;
    if scenario.op.is_pcie() {
        return match options.any() {
            true => Err(Error::new("PCIe operations have no packets and work requests to trace")),
            false => crate::pcie::run(scenario).map(|outcome| (outcome, Vec::new())),
        };
    }
    let host = Host::of(scenario)?;
    let mut testbed = Testbed::new(scenario)?;
    testbed.sim.observe(options).map_err(unseen)?;
    let latency = scenario.metric == Metric::Latency;
    // Who says how many operations are measured gets so many.
    let steady = !latency && scenario.iterations == 0;
    let (warm, wanted) = if latency {
        (WARM_MESSAGES, if scenario.iterations > 0 { scenario.iterations } else { MESSAGES })
    } else {
        amount(scenario)
    };
    let mut shared = Shared { scenario, host, meter: Meter::new(warm, wanted, steady) };
    let workers = std::mem::take(&mut testbed.workers);
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    if scenario.op.is_frames() {
        let workers = std::mem::take(&mut testbed.frame_workers);
        programs.extend(frames::programs(&testbed, scenario, workers, latency));
    } else if latency {
        programs.extend(latency::programs(&mut testbed, scenario, workers)?);
    } else {
        for worker in workers {
            if worker.receives {
                let token = programs.len();
                programs.push(Box::new(receiver::Receiver::new(&mut testbed, scenario, &worker, token)?));
            }
            if worker.initiates {
                let token = programs.len();
                programs.push(Box::new(stream::Stream::new(
                    &mut testbed,
                    scenario,
                    &shared.host,
                    worker,
                    token,
                )?));
            } else {
                // It does nothing, but its memory stays registered.
                testbed.workers.push(worker);
            }
        }
    }
    let units = drive(&mut testbed, &mut shared, &mut programs)?;
    let seen = testbed.sim.end_observing().map_err(unseen)?;
    let meter = &shared.meter;
    let unmeasured = || Error::new("the run ended before it was measured");
    let ((from, start), (to, end)) = meter.span().ok_or_else(unmeasured)?;
    let (before, after) =
        meter.measured.and_then(|first| units.get(first)).zip(units.last()).ok_or_else(unmeasured)?;
    let time_ns = end.since(start).0 as f64 / 1e3;
    let mut operations = to - from;
    if scenario.count_received && scenario.op == Op::Write {
        // Nobody at the target takes note of a write: its adapter's writes to the host are counted.
        let writes = |all: &[Counts]| all.last().map_or(0, |counts| counts.pcie.writes);
        operations = writes(after).saturating_sub(writes(before));
    }
    let rate = operations as f64 / (time_ns / 1e9);
    let latency = latency.then(|| Latency::of(&meter.samples));
    let bandwidth = rate * scenario.bytes() as f64;
    let adapters = scenario.initiators + u64::from(scenario.bidirectional);
    let rate_each = rate / adapters as f64;
    let own = operations as f64 / adapters as f64;
    let share = |(b, a): (&Counts, &Counts), operations| Share::of(b, a, operations, time_ns);
    let usage =
        before.first().zip(after.first()).zip(before.last().zip(after.last())).map(|(first, last)| Usage {
            initiator: share(first, own),
            target: share(last, operations as f64 / scenario.targets as f64),
        });
    let little = meter.discrepancy();
    Ok((Outcome { operations, time_ns, latency, rate, rate_each, bandwidth, little, usage }, seen))
}

/// Within which all programs have started.
const START: Ps = Ps::from_ns(10_000);

/// Operations before the measurement and in it.
fn amount(scenario: &Scenario) -> (u64, u64) {
    /// Packets that are enough for a steady state.
    const PACKETS: u64 = 40_000;
    /// Uses of a queue pair before the measurement.
    const USES: u64 = 4;
    let adapters = scenario.initiators + u64::from(scenario.bidirectional);
    let outstanding = scenario.window * scenario.threads * adapters;
    let packets = scenario.packets();
    let wanted = match scenario.iterations {
        0 => (6 * outstanding).max(8_000).min((PACKETS / packets).max(8)),
        wanted => wanted,
    };
    // Caches hold what they do after a while only when every queue pair was used a few times.
    let used = if scenario.iterations == 0 { USES * scenario.qps * adapters } else { 0 };
    let warm = if packets > 1 { wanted / 4 + 1 } else { (wanted / 2).max(2 * outstanding).max(used) };
    (warm, wanted)
}

/// What each adapter's units did so far.
fn counts(testbed: &Testbed) -> Vec<Counts> {
    testbed
        .hosts
        .iter()
        .map(|host| {
            testbed.sim.world(|world, _| world.counters(host.id).map(|c| c.units)).unwrap_or_default()
        })
        .collect()
}

/// Runs until enough was measured. Returns what each adapter's units had done at each mark of the meter.
fn drive(
    testbed: &mut Testbed,
    shared: &mut Shared<'_>,
    programs: &mut [Box<dyn Program>],
) -> Result<Vec<Vec<Counts>>, Error> {
    let mut units: Vec<Vec<Counts>> = Vec::new();
    let start = testbed.sim.now();
    shared.meter.last = start;
    // Programs don't start at the same instant, as threads don't: within the time that a batch takes.
    let mut random = stats::Random::new(shared.scenario.seed);
    let mut heap: BinaryHeap<Reverse<(Ps, usize)>> =
        (0..programs.len()).map(|i| Reverse((start + Ps(random.below(START.0)), i))).collect();
    let mut asleep: Vec<Option<Sleep>> = vec![None; programs.len()];
    while shared.meter.measured.is_none() {
        let event = testbed.sim.next_event();
        let due = heap.peek().map(|Reverse((at, _))| *at);
        let model_first = match (event, due) {
            (Some(event), Some(due)) => event <= due,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return Err(hang(shared)),
        };
        if model_first {
            let at = event.unwrap_or_default();
            if at > shared.meter.last + PATIENCE {
                return Err(hang(shared));
            }
            testbed.sim.advance_to(at);
            for host in &mut testbed.hosts {
                for token in host.hca.bus_mut().touched() {
                    if let Some(sleep) = asleep.get_mut(token).and_then(Option::take) {
                        heap.push(Reverse((sleep.wakes(at), token)));
                    }
                }
            }
            continue;
        }
        let Some(Reverse((at, who))) = heap.pop() else { continue };
        let Some(program) = programs.get_mut(who) else { continue };
        testbed.sim.advance_to(at);
        match program.act(at, testbed, shared)? {
            Next::At(next) => heap.push(Reverse((next.max(at), who))),
            Next::Look(every) => asleep[who] = Some(Sleep { since: at, every, late: Ps::ZERO }),
            Next::LookFrom(every, late) => asleep[who] = Some(Sleep { since: at, every, late }),
        }
        if units.len() < shared.meter.marks.len() {
            units.push(counts(testbed));
        }
    }
    Ok(units)
}

impl Sleep {
    /// The first poll at or after `at`.
    fn wakes(self, at: Ps) -> Ps {
        let every = self.every.0.max(1);
        let looks = (at + self.late).since(self.since).0.div_ceil(every).max(1);
        self.since + Ps(every * looks)
    }
}

fn hang(shared: &Shared<'_>) -> Error {
    Error::new(format!(
        "nothing completes any more after {} operations: a larger --window or a smaller --signal-every may help",
        shared.meter.done
    ))
}

/// Checks a completion.
fn good(completion: &Completion) -> Result<(), Error> {
    match completion.status {
        Ok(()) => Ok(()),
        Err(why) => Err(Error::new(format!("a request of QP {} failed: {why:?}", completion.qpn))),
    }
}

/// Whether requests go with their doorbells.
fn by_blueflame(scenario: &Scenario) -> bool {
    scenario.blueflame == BlueFlame::Auto && scenario.post_list == 1 && wqe_bytes(scenario) <= BLUEFLAME
}

/// Bytes of a WQE: control segment, target, address, atomic operands, data.
fn wqe_bytes(scenario: &Scenario) -> u64 {
    const SEGMENT: u64 = 16;
    /// Control of a registration, and the key's context.
    const KEY: u64 = 48 + 64;
    if scenario.op == Op::Umr {
        return SEGMENT + KEY + scenario.inline_bytes().max(SEGMENT);
    }
    let target = if scenario.transport == Transport::Dc { 3 * SEGMENT } else { 0 };
    let address = match (scenario.transport, scenario.op) {
        (Transport::Ud, _) => 3 * SEGMENT,
        (_, Op::Send) => 0,
        (_, Op::Write | Op::Read) => SEGMENT,
        (_, Op::FetchAdd | Op::CompareSwap) => 2 * SEGMENT,
        _ => 0,
    };
    let data = match (scenario.bytes(), scenario.is_inline()) {
        (0, _) => 0,
        (size, true) => (4 + size).next_multiple_of(SEGMENT),
        (_, false) => SEGMENT,
    };
    SEGMENT + target + address + data
}

/// What posting `count` requests takes the processor, in nanoseconds.
fn post_time(scenario: &Scenario, host: &Host, count: u64) -> f64 {
    let ring = if by_blueflame(scenario) {
        host.blueflame_ns + host.line_ns * wqe_bytes(scenario).div_ceil(LINE) as f64
    } else {
        host.doorbell_ns
    };
    host.wqe_ns * count as f64 + ring
}

/// Where a request of queue pair number `place` goes in its target's memory, if anywhere.
struct Aim {
    places: u64,
    slot: u64,
}

impl Aim {
    fn new(scenario: &Scenario) -> Self {
        let slot = scenario.moved().max(1).next_multiple_of(LINE);
        Self { places: own_places(scenario), slot }
    }

    /// Address and key.
    fn at(
        &self,
        testbed: &Testbed,
        scenario: &Scenario,
        peer: usize,
        place: u64,
        random: &mut stats::Random,
    ) -> Option<(u64, hca_spec::ids::Mkey)> {
        let regions = &testbed.hosts.get(peer)?.regions;
        let each = regions.first()?.1.len;
        let offset = if scenario.span > 0 {
            let fits = (scenario.span.max(self.slot) - self.slot) / LINE + 1;
            random.below(fits) * LINE
        } else if scenario.addresses > 0 {
            random.below(scenario.addresses) * 8
        } else {
            (place % self.places) * self.slot
        };
        // A message lies in one region.
        let region = (offset / each).min(regions.len() as u64 - 1);
        let inside = (offset - region * each).min(each - scenario.moved().min(each));
        let mr = &regions.get(region as usize)?.1;
        Some((mr.address + inside, mr.key))
    }
}

/// The request of a scenario; it goes to `to` if it is a datagram, else to `aim`.
fn operation(scenario: &Scenario, to: Option<SendOp>, aim: Option<(u64, hca_spec::ids::Mkey)>) -> SendOp {
    let (address, rkey) = aim.unwrap_or_default();
    match (scenario.transport, scenario.op) {
        (Transport::Ud, _) => to.unwrap_or(SendOp::Nop),
        (_, Op::Send) => SendOp::Send { imm: None },
        (_, Op::Write) => SendOp::Write { address, rkey, imm: None },
        (_, Op::Read) => SendOp::Read { address, rkey },
        (_, Op::FetchAdd) => SendOp::FetchAdd { address, rkey, add: 1 },
        (_, Op::CompareSwap) => SendOp::CompareSwap { address, rkey, compare: 0, swap: 0 },
        // PCIe operations have no work requests.
        _ => SendOp::Nop,
    }
}

/// A thread's request.
struct Request<'a> {
    wr_id: u64,
    op: SendOp,
    /// Whom it goes to, over dynamic connections.
    target: Option<Target>,
    sge: Sge,
    /// Payload of an inline request.
    data: Option<&'a [u8]>,
    signaled: bool,
}

/// Puts a request into the ring of `end`, and rings if it is posted by BlueFlame.
fn post(
    testbed: &mut Testbed,
    scenario: &Scenario,
    host: usize,
    end: &EndRef,
    request: &Request<'_>,
) -> Result<(), Error> {
    let (Some(side), Some(qp)) = (testbed.hosts.get_mut(host), testbed.qps.get_mut(end.qp)) else {
        return Ok(());
    };
    let sges = [request.sge];
    let sges = if request.sge.len > 0 { &sges[..] } else { &[] };
    let plain = SendRequest::new(request.wr_id, request.op, sges);
    let mut send = SendRequest { signaled: request.signaled, target: request.target, ..plain };
    if let Some(data) = request.data {
        send = send.inline(data);
    }
    if by_blueflame(scenario) {
        qp.post_send_blueflame(side.hca.bus_mut(), &send)?;
        testbed.sim.flush_stores(side.id);
        return Ok(());
    }
    Ok(qp.queue_send(&send)?)
}

/// Rings the doorbell for what is in the ring of `end`.
fn ring(testbed: &mut Testbed, host: usize, end: &EndRef) {
    let (Some(side), Some(qp)) = (testbed.hosts.get_mut(host), testbed.qps.get_mut(end.qp)) else { return };
    qp.ring_doorbell(side.hca.bus_mut());
    testbed.sim.flush_stores(side.id);
}

/// When PCIe has taken what processors stored to the adapter of `host`.
fn stores_taken(testbed: &Testbed, host: usize) -> Ps {
    let id = testbed.hosts.get(host).map(|side| side.id);
    id.and_then(|id| testbed.sim.world(|world, _| world.stores_taken(id))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_wakes_at_its_next_look() {
        let sleep = Sleep { since: Ps(1000), every: Ps(300), late: Ps::ZERO };
        assert_eq!(sleep.wakes(Ps(1001)), Ps(1300));
        assert_eq!(sleep.wakes(Ps(1300)), Ps(1300));
        assert_eq!(sleep.wakes(Ps(1301)), Ps(1600));
        assert_eq!(sleep.wakes(Ps(1000)), Ps(1300), "what comes with the look in vain is seen at the next");
        assert_eq!(Sleep { late: Ps(300), ..sleep }.wakes(Ps(1001)), Ps(1600));
    }

    #[test]
    fn wqes_are_as_long_as_published() {
        let wqe = |options: &[(&str, &str)]| {
            let mut scenario = Scenario::default();
            for (key, value) in options {
                scenario.set(key, value).unwrap();
            }
            wqe_bytes(&scenario)
        };
        // ATC16: 36 bytes and the payload for RC and UC, 68 for UD, in segments of 16.
        assert_eq!(wqe(&[("op", "write"), ("size", "12"), ("inline", "64")]), 48);
        assert_eq!(wqe(&[("op", "write"), ("size", "28"), ("inline", "64")]), 64);
        assert_eq!(wqe(&[("op", "write"), ("size", "29"), ("inline", "64")]), 80);
        let ud = [("op", "send"), ("transport", "ud"), ("inline", "256")];
        assert_eq!(wqe(&[&ud[..], &[("size", "60")]].concat()), 128);
        assert_eq!(wqe(&[&ud[..], &[("size", "61")]].concat()), 144);
        assert_eq!(wqe(&[("op", "read"), ("size", "8")]), 48);
        assert_eq!(wqe(&[("op", "fetch_add")]), 64);
        // An address vector with a GRH; UMR control segment, key context and a pointer, or the list.
        assert_eq!(wqe(&[("op", "read"), ("size", "8"), ("transport", "dc")]), 96);
        let umr = [("op", "umr"), ("size", "40K")];
        assert_eq!(wqe(&umr), 144);
        assert_eq!(wqe(&[&umr[..], &[("inline", "128")]].concat()), 256, "ten pages take 80 bytes");
    }
}
