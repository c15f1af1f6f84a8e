//! A thread that keeps requests outstanding.

use std::collections::{BTreeMap, VecDeque};

use hca_driver::{Dma, Sge};
use hca_model::Ps;
use hca_spec::ids::Qpn;

use super::{
    Aim, Next, POLL_BATCH, Program, Request, Shared, by_blueflame, good, operation, post, post_time, ring,
    stores_taken,
};
use crate::Error;
use crate::host::{Host, ns};
use crate::scenario::{Detect, Op, Pace, Pick, Scenario};
use crate::stats::Random;
use crate::testbed::{Testbed, Worker};

/// A queue pair of the thread.
struct Connection {
    /// Requests posted so far.
    posted: u64,
    /// Requests that are completed.
    done: u64,
    /// Its own place in the target's memory.
    place: u64,
    /// When requests were posted that are not completed, where slots don't say it.
    times: VecDeque<Ps>,
}

/// A request that was posted.
struct Slot {
    connection: usize,
    /// Which of the connection's.
    index: u64,
    buffer: u64,
    /// When it was posted.
    since: Ps,
}

enum State {
    /// Decides what to do next.
    Deciding,
    /// Has built so many requests for a connection.
    Posting(usize, u64),
}

/// A thread that keeps requests outstanding.
pub(super) struct Stream {
    worker: Worker,
    aim: Aim,
    connections: Vec<Connection>,
    by_qpn: BTreeMap<Qpn, usize>,
    /// Completion queues, each once.
    cqs: Vec<usize>,
    slots: VecDeque<Slot>,
    outstanding: u64,
    /// How long requests took that were retired since it was asked last, together, in picoseconds.
    took: u128,
    /// Requests of the current batch that are still to be posted.
    batch_left: u64,
    /// Requests posted so far, and those completed.
    posted: u64,
    done: u64,
    /// The connection that posts next, once chosen.
    chosen: Option<usize>,
    turn: usize,
    random: Random,
    state: State,
    /// When PCIe has taken the thread's last store: it can't ring before.
    taken: Ps,
    /// Its slowdown, and how long the way from the adapter's socket to its own is.
    slowness: f64,
    crossing: Ps,
    data: Option<Vec<u8>>,
}

impl Stream {
    /// Requests on the queue pairs of `worker`; watches for their completion as `token`.
    pub(super) fn new(
        testbed: &mut Testbed,
        scenario: &Scenario,
        host: &Host,
        worker: Worker,
        token: usize,
    ) -> Result<Self, Error> {
        let mut cqs: Vec<usize> = worker.ends.iter().map(|e| e.send_cq).collect();
        cqs.dedup();
        for cq in &cqs {
            if let Some(cq) = testbed.cqs.get(*cq) {
                cq.memory().watch(token);
            }
        }
        if scenario.detect == Detect::Memory {
            worker.local.watch(token);
        }
        // What is read is not zero, so that who looks at memory sees it come.
        if scenario.detect == Detect::Memory {
            for side in &mut testbed.hosts {
                for (memory, mr) in &mut side.regions {
                    fill_once(memory, mr.len as usize);
                }
            }
        }
        let by_qpn = worker.ends.iter().enumerate();
        let by_qpn = by_qpn.filter_map(|(i, e)| Some((testbed.qps.get(e.qp)?.number(), i))).collect();
        let first = token as u64 * worker.ends.len() as u64;
        let connection =
            |i: usize| Connection { posted: 0, done: 0, place: first + i as u64, times: VecDeque::new() };
        let seed = scenario.seed.wrapping_mul(0x1_0000_01b3) ^ token as u64;
        Ok(Self {
            aim: Aim::new(scenario),
            connections: (0..worker.ends.len()).map(connection).collect(),
            by_qpn,
            cqs,
            slots: VecDeque::new(),
            outstanding: 0,
            took: 0,
            batch_left: scenario.window,
            posted: 0,
            done: 0,
            chosen: None,
            turn: 0,
            random: Random::new(seed),
            state: State::Deciding,
            taken: Ps::ZERO,
            slowness: host.cores.map_or(1.0, |cores| cores.slowness(worker.thread, scenario.threads)),
            crossing: host.cores.map_or(Ps::ZERO, |cores| cores.crossing(worker.thread)),
            data: scenario.is_inline().then(|| vec![1; scenario.inline_bytes() as usize]),
            worker,
        })
    }

    /// Takes completions; returns how many there were.
    fn poll(
        &mut self,
        now: Ps,
        testbed: &mut Testbed,
        scenario: &Scenario,
        limit: usize,
    ) -> Result<u64, Error> {
        let mut taken = 0;
        let waits_for = match (scenario.cq_per_qp, self.chosen, self.slots.front()) {
            (false, ..) => None,
            (true, Some(chosen), _) => Some(chosen),
            (true, None, slot) => slot.map(|s| s.connection),
        };
        let one = waits_for.and_then(|c| self.worker.ends.get(c)).map(|e| [e.send_cq]);
        for cq in one.as_ref().map_or(&self.cqs[..], |one| one) {
            while taken < limit
                && let Some(completion) = testbed.cqs.get_mut(*cq).and_then(hca_driver::Cq::poll)
            {
                good(&completion)?;
                taken += 1;
                let Some(c) = self.by_qpn.get(&completion.qpn).copied() else { continue };
                let (Some(connection), Some(end)) = (self.connections.get_mut(c), self.worker.ends.get(c))
                else {
                    continue;
                };
                if let Some(wr_id) = testbed.qps.get_mut(end.qp).and_then(|qp| qp.finish(&completion)) {
                    let done = (wr_id + 1).saturating_sub(connection.done);
                    let times = connection.times.drain(..(done as usize).min(connection.times.len()));
                    self.took += times.map(|since| u128::from(now.since(since).0)).sum::<u128>();
                    self.done += done;
                    connection.done = wr_id + 1;
                }
            }
        }
        Ok(taken as u64)
    }

    /// Counts requests that are done; returns how many.
    fn retire(&mut self, now: Ps, scenario: &Scenario) -> u64 {
        let mut retired = 0;
        match scenario.detect {
            Detect::Memory => {
                while let Some(slot) = self.slots.front() {
                    let mut byte = [0];
                    self.worker.local.read(slot.buffer as usize, &mut byte);
                    if byte == [0] {
                        break;
                    }
                    self.worker.local.write(slot.buffer as usize, &[0]);
                    self.took += u128::from(now.since(slot.since).0);
                    self.slots.pop_front();
                    retired += 1;
                }
            }
            Detect::Cq if scenario.pace == Pace::Oldest => {
                let done =
                    |slot: &Slot| self.connections.get(slot.connection).is_some_and(|c| c.done > slot.index);
                while let Some(slot) = self.slots.front().filter(|slot| done(slot)) {
                    self.took += u128::from(now.since(slot.since).0);
                    self.slots.pop_front();
                    retired += 1;
                }
            }
            Detect::Cq => {
                retired = self.done.saturating_sub(self.posted - self.outstanding);
            }
        }
        self.outstanding -= retired.min(self.outstanding);
        if self.outstanding == 0 && self.batch_left == 0 {
            self.batch_left = scenario.window;
        }
        retired
    }

    /// How many requests may be posted now.
    fn room(&self, scenario: &Scenario) -> u64 {
        let list = scenario.post_list;
        match scenario.pace {
            Pace::Batch => self.batch_left.min(list),
            _ if self.outstanding + list <= scenario.window => list,
            _ => 0,
        }
    }

    fn choose(&mut self, scenario: &Scenario) -> usize {
        let count = self.connections.len();
        let chosen = self.chosen.unwrap_or_else(|| match scenario.pick {
            Pick::Random => self.random.below(count as u64) as usize,
            Pick::RoundRobin => {
                self.turn = (self.turn + 1) % count;
                self.turn
            }
        });
        self.chosen = Some(chosen);
        chosen
    }

    /// Whether the chosen queue pair has to be polled before it takes more: its ring would run full of requests that
    /// no completion has covered.
    fn must_poll(&self, scenario: &Scenario, connection: usize) -> bool {
        let every = scenario.signal_every;
        let Some(c) = self.connections.get(connection) else { return false };
        scenario.detect == Detect::Memory
            && (c.posted + 1).is_multiple_of(every)
            && c.posted - c.done + 1 >= every
    }

    fn post(
        &mut self,
        now: Ps,
        testbed: &mut Testbed,
        scenario: &Scenario,
        c: usize,
        count: u64,
    ) -> Result<(), Error> {
        let (Some(end), Some(connection)) = (self.worker.ends.get(c).copied(), self.connections.get_mut(c))
        else {
            return Ok(());
        };
        for _ in 0..count {
            let index = connection.posted;
            let to = testbed.destination(&end, index);
            let aim = self.aim.at(testbed, scenario, to.peer, connection.place, &mut self.random);
            let place = match scenario.local_span {
                0 => self.posted % self.worker.slots,
                _ => self.random.below(self.worker.slots),
            };
            let buffer = place * self.worker.slot;
            let (address, key) = (self.worker.local_mr.address + buffer, self.worker.local_mr.key);
            let sge = Sge { address, len: scenario.moved() as u32, key };
            let every = scenario.signal_every;
            // Who waits for completions needs the last of each group, who doesn't has time: as perftest and rdma_bench.
            let signaled = match scenario.detect {
                Detect::Cq => (index + 1).is_multiple_of(every),
                Detect::Memory => index.is_multiple_of(every),
            };
            let (op, sge, data) = match &self.worker.registration {
                Some(registration) => registration.request(self.posted),
                None => (operation(scenario, to.datagram, aim), sge, self.data.as_deref()),
            };
            let request = Request { wr_id: index, op, target: to.target, sge, data, signaled };
            post(testbed, scenario, self.worker.host, &end, &request)?;
            connection.posted += 1;
            self.posted += 1;
            self.outstanding += 1;
            self.batch_left = self.batch_left.saturating_sub(1);
            if scenario.detect == Detect::Memory || scenario.pace == Pace::Oldest {
                self.slots.push_back(Slot { connection: c, index, buffer, since: now });
            } else {
                connection.times.push_back(now);
            }
        }
        ring(testbed, self.worker.host, &end);
        self.taken = stores_taken(testbed, self.worker.host);
        Ok(())
    }
}

impl Program for Stream {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error> {
        let (scenario, host) = (shared.scenario, &shared.host);
        let slowness = self.slowness;
        let slow = move |time: f64| ns(time * slowness);
        if let State::Posting(connection, count) = self.state {
            if self.taken > now {
                return Ok(Next::At(self.taken));
            }
            self.post(now, testbed, scenario, connection, count)?;
            shared.meter.post(now, count);
            self.state = State::Deciding;
            self.chosen = None;
        }
        let mut busy = Ps::ZERO;
        let mut room = self.room(scenario);
        if room > 0 {
            let connection = self.choose(scenario);
            if self.must_poll(scenario, connection) {
                room = 0;
            }
        }
        if room == 0 {
            let by_memory = scenario.detect == Detect::Memory && self.chosen.is_none();
            let taken = if by_memory { 0 } else { self.poll(now, testbed, scenario, POLL_BATCH)? };
            let retired = self.retire(now, scenario);
            shared.meter.leave(now, retired, std::mem::take(&mut self.took));
            if retired > 0 && !(scenario.count_received && scenario.op == Op::Send) {
                shared.meter.count(now, retired);
            }
            if taken + retired == 0 {
                let every = slow(if by_memory { host.look_ns } else { host.poll_ns });
                return Ok(Next::LookFrom(every, self.crossing));
            }
            busy = slow(host.cqe_ns * taken as f64 + if taken > 0 { host.take_ns } else { 0.0 });
            if by_memory {
                busy = slow(host.look_ns * retired as f64);
            }
            room = self.room(scenario);
        }
        if room == 0 {
            return Ok(Next::At(now + busy));
        }
        let connection = self.choose(scenario);
        if self.must_poll(scenario, connection) {
            return Ok(Next::At(now + busy));
        }
        self.state = State::Posting(connection, room);
        // A thread goes on when its store has left its socket: the barrier behind it waits for that.
        let stores = if by_blueflame(scenario) { room } else { 1 };
        Ok(Next::At(now + busy + slow(post_time(scenario, host, room)) + self.crossing.times(stores)))
    }
}

/// Makes memory non-zero, unless it is.
fn fill_once(memory: &mut crate::in_process::ModelMemory, len: usize) {
    let mut last = [0];
    memory.read(len.saturating_sub(1), &mut last);
    if last == [0] {
        memory.write(0, &vec![1; len]);
    }
}
