//! One message at a time: perftest's latency programs.
//!
//! Sends and writes go to and fro between two threads, and half of a round trip counts; of reads and atomics the whole.

use hca_driver::{Dma, Sge};
use hca_model::Ps;

use super::{Aim, Next, Program, Request, Shared, good, operation, post, post_time, ring};
use crate::Error;
use crate::host::ns;
use crate::in_process::ModelMemory;
use crate::scenario::{Op, Scenario, Transport};
use crate::stats::Random;
use crate::testbed::{EndRef, GRH, Testbed, Worker};

/// Receive requests that are kept posted.
const RECEIVES: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits for the other's message.
    Hearing,
    /// Has built its message.
    Posting,
    /// Waits for the completion of its own message.
    Completing,
}

/// One of the two threads, or the only one.
struct Player {
    worker: Worker,
    end: EndRef,
    aim: Aim,
    /// Where the other writes to.
    flag: Option<Flag>,
    state: State,
    /// Whether it measures.
    first: bool,
    /// Messages posted.
    posted: u64,
    /// Messages received.
    heard: u64,
    /// When the message that is measured was begun.
    begun: Option<Ps>,
    random: Random,
    data: Option<Vec<u8>>,
}

/// The last byte of the message that the other writes.
#[derive(Clone, Copy)]
struct Flag {
    region: usize,
    offset: usize,
}

/// The threads of a latency scenario.
pub(super) fn programs(
    testbed: &mut Testbed,
    scenario: &Scenario,
    workers: Vec<Worker>,
) -> Result<Vec<Box<dyn Program>>, Error> {
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    let loopback = testbed.hosts.len() == 1;
    for (token, worker) in workers.into_iter().enumerate() {
        let Some(end) = worker.ends.first().copied() else { continue };
        let first = token == 0;
        if scenario.op.has_response() && !first {
            testbed.workers.push(worker);
            continue;
        }
        let mut flag = None;
        if scenario.op == Op::Write {
            // Each writes to the other's memory; on one host to different places.
            let region = if loopback { token } else { 0 };
            flag = Some(Flag { region, offset: scenario.size as usize - 1 });
            if let Some((memory, _)) = testbed.hosts.get(worker.host).and_then(|h| h.regions.get(region)) {
                memory.watch(token);
            }
        }
        for cq in [end.send_cq, worker.recv_cq] {
            if let Some(cq) = testbed.cqs.get(cq) {
                cq.memory().watch(token);
            }
        }
        let player = Player {
            end,
            aim: Aim::new(scenario),
            flag,
            state: if first { State::Posting } else { State::Hearing },
            first,
            posted: 0,
            heard: 0,
            begun: None,
            random: Random::new(scenario.seed),
            data: scenario.is_inline().then(|| vec![0; scenario.inline_bytes() as usize]),
            worker,
        };
        for _ in 0..if scenario.op == Op::Send { RECEIVES } else { 0 } {
            player.receive(testbed, scenario)?;
        }
        programs.push(Box::new(player));
    }
    Ok(programs)
}

impl Player {
    fn receive(&self, testbed: &mut Testbed, scenario: &Scenario) -> Result<(), Error> {
        let head = if scenario.transport == Transport::Ud { GRH } else { 0 };
        let len = (scenario.bytes() + head) as u32;
        let sge = Sge { address: self.worker.local_mr.address, len, key: self.worker.local_mr.key };
        testbed.post_receive(self.worker.srq, self.end.qp, sge)
    }

    fn post(&mut self, testbed: &mut Testbed, scenario: &Scenario) -> Result<(), Error> {
        self.posted += 1;
        let mark = self.posted as u8;
        let mut aim = None;
        let to = testbed.destination(&self.end, self.posted);
        if scenario.op != Op::Send {
            aim = self.aim.at(testbed, scenario, to.peer, 0, &mut self.random);
        }
        if scenario.op == Op::Write {
            // The place that the other looks at.
            let region = if testbed.hosts.len() == 1 && self.first { 1 } else { 0 };
            aim = testbed
                .hosts
                .get(to.peer)
                .and_then(|h| h.regions.get(region))
                .map(|(_, mr)| (mr.address, mr.key));
        }
        let last = scenario.moved().saturating_sub(1) as usize;
        match &mut self.data {
            Some(data) => data.iter_mut().skip(last).for_each(|byte| *byte = mark),
            None if scenario.op.has_response() || scenario.bytes() == 0 => {}
            None => self.worker.local.write(last, &[mark]),
        }
        let len = scenario.bytes() as u32;
        let sge = Sge { address: self.worker.local_mr.address, len, key: self.worker.local_mr.key };
        let (op, sge, data) = match &self.worker.registration {
            Some(registration) => registration.request(self.posted),
            None => (operation(scenario, to.datagram, aim), sge, self.data.as_deref()),
        };
        let request = Request { wr_id: self.posted, op, target: to.target, sge, data, signaled: true };
        post(testbed, scenario, self.worker.host, &self.end, &request)?;
        ring(testbed, self.worker.host, &self.end);
        Ok(())
    }

    /// Whether the other's next message is there.
    fn hears(&self, testbed: &mut Testbed, scenario: &Scenario) -> Result<bool, Error> {
        if let Some(flag) = self.flag {
            let region = testbed.hosts.get(self.worker.host).and_then(|h| h.regions.get(flag.region));
            let Some((memory, _)) = region else { return Ok(false) };
            return Ok(last_byte(memory, flag.offset) == (self.heard + 1) as u8);
        }
        let Some(completion) = testbed.cqs.get_mut(self.worker.recv_cq).and_then(hca_driver::Cq::poll) else {
            return Ok(false);
        };
        good(&completion)?;
        testbed.finish_receive(self.worker.srq, self.end.qp, &completion);
        self.receive(testbed, scenario)?;
        Ok(true)
    }

    /// Begins the next message.
    fn begin(&mut self, now: Ps, shared: &mut Shared<'_>) -> Next {
        let (scenario, host) = (shared.scenario, &shared.host);
        if self.first
            && let Some(begun) = self.begun.replace(now)
        {
            let time = now.since(begun).0 as f64 / 1e3;
            let legs = if scenario.op.has_response() { 1.0 } else { 2.0 };
            shared.meter.sample(now, time / legs);
        }
        self.state = State::Posting;
        Next::At(now + ns(host.turn_ns + post_time(scenario, host, 1)))
    }
}

fn last_byte(memory: &ModelMemory, offset: usize) -> u8 {
    let mut byte = [0];
    memory.read(offset, &mut byte);
    byte[0]
}

impl Program for Player {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error> {
        let scenario = shared.scenario;
        match self.state {
            State::Posting if self.begun.is_none() && self.first => Ok(self.begin(now, shared)),
            State::Posting => {
                self.post(testbed, scenario)?;
                self.state = State::Completing;
                Ok(Next::At(now + ns(shared.host.poll_ns)))
            }
            State::Completing => {
                let Some(completion) = testbed.cqs.get_mut(self.end.send_cq).and_then(hca_driver::Cq::poll)
                else {
                    return Ok(Next::Look(ns(shared.host.poll_ns)));
                };
                good(&completion)?;
                if let Some(qp) = testbed.qps.get_mut(self.end.qp) {
                    qp.finish(&completion);
                }
                let now = now + ns(shared.host.cqe_ns);
                if scenario.op.has_response() {
                    return Ok(self.begin(now, shared));
                }
                self.state = State::Hearing;
                Ok(Next::At(now))
            }
            State::Hearing => {
                if !self.hears(testbed, scenario)? {
                    let host = &shared.host;
                    return Ok(Next::Look(ns(if self.flag.is_some() { host.look_ns } else { host.poll_ns })));
                }
                self.heard += 1;
                let mut now = now;
                if self.flag.is_none() {
                    now += ns(shared.host.cqe_ns + shared.host.recv_ns);
                }
                Ok(self.begin(now, shared))
            }
        }
    }
}
