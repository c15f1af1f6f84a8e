//! Transfers over the model's PCIe link alone, as pcie-bench does them from a programmable adapter.
//!
//! What the adapter's own program takes comes from the host description's section `pcie`: issuing a command, setting a
//! DMA up, and moving its data on.

use hca_model::Ps;
use hca_model::timing::Timing;
use hca_model::units::Bus;

use crate::Error;
use crate::host::{Host, PcieProgram, ns};
use crate::outcome::{Latency, Outcome};
use crate::scenario::{Metric, Op, Scenario};
use crate::stats::Random;
use crate::testbed;

/// Transfers measured unless the scenario says how many.
const TRANSFERS: u64 = 2000;
/// Transfers before them.
const WARM: u64 = 200;
/// Where they go unless the scenario has a span: another line each time, so that nothing but the link is measured.
const WINDOW: u64 = 8 << 10;
/// Bytes of a line.
const LINE: u64 = 64;

/// Runs a PCIe scenario.
///
/// # Errors
/// The profile or the host can't be used, or the host is no PCIe program.
pub fn run(scenario: &Scenario) -> Result<Outcome, Error> {
    let host = Host::of(scenario)?;
    let program = host.pcie.ok_or_else(|| {
        Error::new(format!("host {:?} has no section [pcie]: use --host nfp6000", scenario.host))
    })?;
    let bus = Bus::new(&Timing::new(&testbed::profile(scenario)?));
    let wanted = if scenario.iterations > 0 { scenario.iterations } else { TRANSFERS };
    let mut bench = Bench {
        bus,
        program,
        dma: scenario.dma,
        size: scenario.size as usize,
        next: 0,
        span: scenario.span,
        random: Random::new(scenario.seed),
    };
    if scenario.metric == Metric::Latency {
        let mut now = Ps::ZERO;
        let mut samples = Vec::new();
        for _ in 0..wanted {
            let done = bench.transfer(now, scenario.op);
            samples.push((done - now).0 as f64 / 1e3);
            now = done;
        }
        return Ok(outcome(wanted, now, scenario, Some(Latency::of(&samples))));
    }
    let (start, end) = bench.stream(scenario.op, scenario.window, wanted);
    Ok(outcome(wanted, end - start, scenario, None))
}

fn outcome(operations: u64, time: Ps, scenario: &Scenario, latency: Option<Latency>) -> Outcome {
    let time_ns = time.0 as f64 / 1e3;
    let rate = operations as f64 / (time_ns / 1e9);
    let bandwidth = rate * scenario.size as f64;
    Outcome { operations, time_ns, latency, rate, rate_each: rate, bandwidth, little: None, usage: None }
}

struct Bench {
    bus: Bus,
    program: PcieProgram,
    dma: bool,
    size: usize,
    next: u64,
    /// Random lines within so many bytes, if that is not 0.
    span: u64,
    random: Random,
}

impl Bench {
    fn address(&mut self) -> u64 {
        if self.span > 0 {
            return self.random.below(self.span.div_ceil(LINE)) * LINE;
        }
        self.next = (self.next + self.size as u64).next_multiple_of(LINE) % WINDOW;
        self.next
    }

    /// One transfer alone; returns when its program knows that it is done.
    fn transfer(&mut self, now: Ps, op: Op) -> Ps {
        let (address, program) = (self.address(), self.program);
        let begin = if self.dma { now + ns(program.dma_ns) } else { now };
        let done = match op {
            // The read pushes the write before it: links keep that order.
            Op::PcieWriteRead => {
                self.bus.write(now, begin, address, self.size);
                self.bus.read(now, begin + ns(program.command_ns), address, self.size)
            }
            Op::PcieWrite => self.bus.write(now, begin, address, self.size),
            _ => self.bus.read(now, begin, address, self.size),
        };
        if self.dma { done + Ps(program.stage_ps_per_byte.saturating_mul(self.size as u64)) } else { done }
    }

    /// Transfers with a window of them outstanding; returns the time in which the last `wanted` were done. Reads and writes
    /// have an engine each: so many reads are under way at most, and a write begins every so often.
    fn stream(&mut self, op: Op, window: u64, wanted: u64) -> (Ps, Ps) {
        let window = window.max(1) as usize;
        let reads = window.min(self.program.reads.max(1) as usize);
        // Reads are of lines, whatever they use of them; each begins at one.
        let lines = (self.size as u64).div_ceil(LINE) as f64;
        let interval = self.program.read_interval_ns + self.program.read_line_ns * lines;
        let mut read = Engine::new(ns(interval), reads);
        let mut write = Engine::new(ns(self.program.write_interval_ns), window);
        let (mut start, mut end) = (Ps::ZERO, Ps::ZERO);
        for i in 0..WARM + wanted {
            let address = self.address();
            let mut done = Ps::ZERO;
            if op != Op::PcieWrite {
                let at = read.begins();
                done = self.bus.read(at, at, address, self.size);
                read.ends(done);
            }
            if op != Op::PcieRead {
                let at = write.begins();
                // Posted: done when it has left. The host's latency does not count.
                let left = self.bus.write(at, at, address, self.size) - self.bus.write_latency();
                write.ends(left);
                done = done.max(left);
            }
            end = end.max(done);
            if i + 1 == WARM {
                start = end;
            }
        }
        (start, end)
    }
}

/// Begins transfers at an interval, with so many outstanding at most.
struct Engine {
    interval: Ps,
    last: Ps,
    /// When each of the outstanding ones is done, the oldest first.
    done: std::collections::VecDeque<Ps>,
    window: usize,
}

impl Engine {
    fn new(interval: Ps, window: usize) -> Self {
        Self { interval, last: Ps::ZERO, done: Default::default(), window }
    }

    fn begins(&mut self) -> Ps {
        let mut at = self.last + self.interval;
        if self.done.len() >= self.window {
            at = at.max(self.done.pop_front().unwrap_or_default());
        }
        self.last = at;
        at
    }

    fn ends(&mut self, at: Ps) {
        self.done.push_back(at);
    }
}
