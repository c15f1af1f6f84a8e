//! Threads that send and receive frames by Ethernet queues: as packet generators, and one frame at a time to and fro.

use std::collections::VecDeque;

use hca_model::Ps;

use super::{Next, POLL_BATCH, Program, Shared, good, stores_taken};
use crate::Error;
use crate::host::{Host, ns};
use crate::scenario::Scenario;
use crate::stations::FrameWorker;
use crate::testbed::Testbed;

/// The programs of frame workers, whose tokens begin at 0.
pub(super) fn programs(
    testbed: &Testbed,
    scenario: &Scenario,
    workers: Vec<FrameWorker>,
    latency: bool,
) -> Vec<Box<dyn Program>> {
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    for mut worker in workers {
        if latency {
            watch(testbed, &worker, programs.len(), true, true);
            programs.push(Box::new(Player::new(worker, programs.is_empty())));
            continue;
        }
        let rqs = std::mem::take(&mut worker.rqs);
        if !rqs.is_empty() {
            let sink = Sink { host: worker.host, rqs, room: worker.room };
            for (_, cq) in &sink.rqs {
                if let Some(cq) = testbed.cqs.get(*cq) {
                    cq.memory().watch(programs.len());
                }
            }
            programs.push(Box::new(sink));
        }
        if !worker.sqs.is_empty() {
            watch(testbed, &worker, programs.len(), true, false);
            programs.push(Box::new(Sender::new(scenario, worker)));
        }
    }
    programs
}

fn watch(testbed: &Testbed, worker: &FrameWorker, token: usize, sends: bool, receives: bool) {
    let receives = worker.rqs.iter().filter(|_| receives).map(|(_, cq)| *cq);
    for cq in sends.then_some(worker.send_cq).into_iter().chain(receives) {
        if let Some(cq) = testbed.cqs.get(cq) {
            cq.memory().watch(token);
        }
    }
}

/// What putting so many requests into a ring and ringing takes.
fn post_time(host: &Host, count: u64) -> f64 {
    host.wqe_ns * count as f64 + host.doorbell_ns
}

/// Takes a completion of a receive queue, and posts its request again. Returns whether there was one.
fn take(
    testbed: &mut Testbed,
    host: usize,
    (rq, cq): (usize, usize),
    room: hca_driver::Sge,
) -> Result<bool, Error> {
    let Some(completion) = testbed.cqs.get_mut(cq).and_then(hca_driver::Cq::poll) else { return Ok(false) };
    good(&completion)?;
    if let Some(rq) = testbed.stations.get_mut(host).and_then(|station| station.rqs.get_mut(rq)) {
        rq.finish(&completion);
        rq.post(0, &[room])?;
    }
    Ok(true)
}

/// Puts frames into the ring of a send queue, from flow number `first` on, and rings.
fn send(
    testbed: &mut Testbed,
    scenario: &Scenario,
    worker: &FrameWorker,
    (sq, index, first): (usize, u64, u64),
    count: u64,
) -> Result<(), Error> {
    let Testbed { hosts, stations, sim, .. } = testbed;
    let queue = stations.get_mut(worker.host).and_then(|station| station.sqs.get_mut(sq));
    let (Some(side), Some(queue)) = (hosts.get_mut(worker.host), queue) else { return Ok(()) };
    let flows = worker.flows.len().max(1) as u64;
    for i in 0..count {
        let Some(flow) = worker.flows.get(((first + i) % flows) as usize) else { continue };
        let signaled = (index + i + 1).is_multiple_of(scenario.signal_every);
        queue.queue(&flow.request(scenario, index + i, signaled))?;
    }
    queue.ring(side.hca.bus_mut());
    sim.flush_stores(side.id);
    Ok(())
}

/// A send queue of a thread.
#[derive(Clone, Default)]
struct Queue {
    posted: u64,
    done: u64,
    /// When frames were posted that are not completed.
    times: VecDeque<Ps>,
}

/// A thread that keeps frames outstanding on its send queues, one after the other.
struct Sender {
    worker: FrameWorker,
    queues: Vec<Queue>,
    turn: usize,
    outstanding: u64,
    flow: u64,
    /// Requests built and not posted yet.
    built: u64,
    /// When PCIe has taken the last store.
    taken: Ps,
}

impl Sender {
    fn new(scenario: &Scenario, worker: FrameWorker) -> Self {
        let queues = vec![Queue::default(); worker.sqs.len()];
        // Threads begin with flows of their own.
        let flow = scenario.flows * worker.sqs.start as u64 / scenario.qps.max(1);
        Self { worker, queues, turn: 0, outstanding: 0, flow, built: 0, taken: Ps::ZERO }
    }

    /// Takes completions. Returns how many, how many requests they cover, and how long those took together, in picoseconds.
    fn poll(&mut self, now: Ps, testbed: &mut Testbed) -> Result<(u64, u64, u128), Error> {
        let (mut taken, mut done, mut took) = (0, 0, 0);
        let Testbed { cqs, stations, .. } = testbed;
        let Some(station) = stations.get_mut(self.worker.host) else { return Ok((0, 0, 0)) };
        while taken < POLL_BATCH as u64
            && let Some(completion) = cqs.get_mut(self.worker.send_cq).and_then(hca_driver::Cq::poll)
        {
            good(&completion)?;
            taken += 1;
            let own = station.sqs.get_mut(self.worker.sqs.clone()).unwrap_or_default();
            let of = own.iter_mut().zip(&mut self.queues);
            if let Some((sq, queue)) = of.into_iter().find(|(sq, _)| sq.number() == completion.qpn)
                && let Some(wr_id) = sq.finish(&completion)
            {
                let covered = (wr_id + 1).saturating_sub(queue.done);
                let times = queue.times.drain(..(covered as usize).min(queue.times.len()));
                took += times.map(|since| u128::from(now.since(since).0)).sum::<u128>();
                done += covered;
                queue.done = wr_id + 1;
            }
        }
        self.outstanding -= done.min(self.outstanding);
        Ok((taken, done, took))
    }
}

impl Program for Sender {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error> {
        let (scenario, host) = (shared.scenario, &shared.host);
        if self.built > 0 {
            if self.taken > now {
                return Ok(Next::At(self.taken));
            }
            let count = std::mem::take(&mut self.built);
            self.turn = (self.turn + 1) % self.queues.len().max(1);
            let Some(queue) = self.queues.get_mut(self.turn) else { return Ok(Next::At(now)) };
            let index = queue.posted;
            queue.posted += count;
            queue.times.extend((0..count).map(|_| now));
            let place = (self.worker.sqs.start + self.turn, index, self.flow);
            send(testbed, scenario, &self.worker, place, count)?;
            self.flow += count;
            self.outstanding += count;
            shared.meter.post(now, count);
            self.taken = stores_taken(testbed, self.worker.host);
        }
        let mut busy = 0.0;
        if self.outstanding + scenario.post_list > scenario.window {
            let (taken, done, took) = self.poll(now, testbed)?;
            shared.meter.leave(now, done, took);
            if done > 0 && !scenario.count_received {
                shared.meter.count(now, done);
            }
            if taken == 0 {
                return Ok(Next::Look(ns(host.poll_ns)));
            }
            busy = host.cqe_ns * taken as f64 + host.take_ns;
            if self.outstanding + scenario.post_list > scenario.window {
                return Ok(Next::At(now + ns(busy)));
            }
        }
        self.built = scenario.post_list;
        Ok(Next::At(now + ns(busy + post_time(host, self.built))))
    }
}

/// A thread that receives.
struct Sink {
    host: usize,
    rqs: Vec<(usize, usize)>,
    room: hca_driver::Sge,
}

impl Program for Sink {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error> {
        let mut taken = 0u64;
        for queue in &self.rqs {
            let mut left = POLL_BATCH;
            while left > 0 && take(testbed, self.host, *queue, self.room)? {
                left -= 1;
                taken += 1;
            }
        }
        let host = &shared.host;
        if taken == 0 {
            return Ok(Next::Look(ns(host.poll_ns)));
        }
        if shared.scenario.count_received {
            shared.meter.count(now, taken);
        }
        Ok(Next::At(now + ns((host.cqe_ns + host.recv_ns) * taken as f64)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Has built its frame.
    Posting,
    /// Waits for its frame's completion.
    Completing,
    /// Waits for the other's frame.
    Hearing,
}

/// One of two threads that send a frame to and fro.
struct Player {
    worker: FrameWorker,
    first: bool,
    state: State,
    posted: u64,
    begun: Option<Ps>,
}

impl Player {
    fn new(worker: FrameWorker, first: bool) -> Self {
        Self {
            worker,
            first,
            state: if first { State::Posting } else { State::Hearing },
            posted: 0,
            begun: None,
        }
    }

    /// Begins its next frame; the first counts half of the time since the last.
    fn begin(&mut self, now: Ps, shared: &mut Shared<'_>) -> Next {
        if self.first
            && let Some(begun) = self.begun.replace(now)
        {
            shared.meter.sample(now, now.since(begun).0 as f64 / 2e3);
        }
        self.state = State::Posting;
        Next::At(now + ns(shared.host.turn_ns + post_time(&shared.host, 1)))
    }
}

impl Program for Player {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error> {
        let poll = Next::Look(ns(shared.host.poll_ns));
        match self.state {
            State::Posting if self.begun.is_none() && self.first => Ok(self.begin(now, shared)),
            State::Posting => {
                let place = (self.worker.sqs.start, self.posted, self.posted);
                send(testbed, shared.scenario, &self.worker, place, 1)?;
                self.posted += 1;
                self.state = State::Completing;
                Ok(Next::At(now + ns(shared.host.poll_ns)))
            }
            State::Completing => {
                let Testbed { cqs, stations, .. } = testbed;
                let Some(completion) = cqs.get_mut(self.worker.send_cq).and_then(hca_driver::Cq::poll) else {
                    return Ok(poll);
                };
                good(&completion)?;
                let sqs = stations.get_mut(self.worker.host).map(|station| &mut station.sqs);
                if let Some(sq) = sqs.and_then(|sqs| sqs.get_mut(self.worker.sqs.start)) {
                    sq.finish(&completion);
                }
                self.state = State::Hearing;
                Ok(Next::At(now + ns(shared.host.cqe_ns)))
            }
            State::Hearing => {
                let Some(queue) = self.worker.rqs.first().copied() else { return Ok(poll) };
                if !take(testbed, self.worker.host, queue, self.worker.room)? {
                    return Ok(poll);
                }
                let host = &shared.host;
                let done = now + ns(host.cqe_ns + host.recv_ns);
                Ok(self.begin(done, shared))
            }
        }
    }
}
