//! Which work request an event belongs to: from its doorbell over the fabric to its completion.
//!
//! A work request owns the PSNs that [`Event::Started`] names. What follows a `Build` or `Respond` at the same
//! adapter with the same PSN is that packet leaving; at other adapters it is known by source, destination, queue pair
//! and PSN. Responses name PSNs of the request they answer. What units did for an event (DMA, cache misses) stands
//! right before it and names its queue: it belongs to the same work request, but is no step of its flow.

use std::collections::{HashMap, VecDeque};

use hca_model::timing::takes_receive;
use hca_model::trace::{Event, Object, Record, Unit};
use hca_model::{HcaId, Ps};
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::wire::Operation;

/// How many work requests are remembered after they are done: their last packets may still be under way.
const REMEMBERED: usize = 1 << 14;
/// How many requests a responder may still have to answer.
const UNANSWERED: usize = 1 << 10;

/// Where a slice stands: enough to bind a flow to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: Ps,
    pub(crate) hca: HcaId,
    pub(crate) track: u32,
}

/// A step of a work request's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of the work request, counted from 1.
    pub(crate) flow: u64,
    pub(crate) kind: StepKind,
    pub(crate) place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepKind {
    First,
    Middle,
    Last,
}

/// What is known of an event's work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Belongs {
    /// Number of the work request, as in [`Step`].
    pub(crate) flow: u64,
    pub(crate) qpn: Qpn,
    pub(crate) index: u16,
    /// When its doorbell was rung, as far as that is known.
    pub(crate) begin: Ps,
    /// The end of the step before.
    pub(crate) before: Ps,
}

type Wire = (Lid, Lid, Qpn, Psn, bool);

#[derive(Debug)]
struct Request {
    hca: HcaId,
    qpn: Qpn,
    index: u16,
    psn: Psn,
    packets: u32,
    signaled: bool,
    begin: Ps,
    last: Ps,
    /// Its flow has ended: later events of it are written, but are no steps.
    over: bool,
    wires: Vec<Wire>,
}

impl Request {
    fn owns(&self, psn: Psn) -> bool {
        let d = psn.since(self.psn);
        d >= 0 && (d as u32) < self.packets.max(1)
    }
}

#[derive(Debug, Default)]
struct SendQueue {
    doorbells: VecDeque<Place>,
    /// Head, end and place of what was fetched.
    fetches: VecDeque<(u16, u16, Place)>,
    /// Work requests that were started and are not done.
    started: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Responder {
    /// Work requests that were executed last.
    executed: VecDeque<u64>,
    /// Completions of receives that were seen before the request that caused them.
    completions: Vec<Place>,
    /// The request was executed, its completion may follow.
    expects_completion: bool,
}

/// Finds the work request of each event.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    requests: HashMap<u64, Request>,
    next: u64,
    queues: HashMap<(HcaId, Qpn), SendQueue>,
    responders: HashMap<(HcaId, Qpn), Responder>,
    /// What was built last at an adapter, which leaves next.
    built: HashMap<HcaId, (Psn, u64)>,
    wires: HashMap<Wire, u64>,
    /// What arrived for a queue pair, by PSN.
    arrived: HashMap<(HcaId, Qpn, Lid, Psn), u64>,
    done: VecDeque<u64>,
}

/// Whether the event is done by a unit for the event that follows.
pub(crate) fn is_aside(event: &Event) -> bool {
    matches!(event.unit(), Unit::DmaRead | Unit::DmaWrite | Unit::Cache)
}

/// Those of `asides` that were done for `event`, which comes behind them: that are about its queue. Reads of send work
/// requests are of its own only if it was not in the cache any more; otherwise they are of those that come later.
pub(crate) fn done_for(event: &Event, asides: &[Record]) -> Vec<bool> {
    let (queue, cq) = match *event {
        Event::Started { qpn, .. }
        | Event::Build { qpn, .. }
        | Event::Respond { qpn, .. }
        | Event::Executed { qpn, .. }
        | Event::Answer { qpn, .. } => (Some(qpn.0), None),
        Event::Received { dest_qp, .. } => (Some(dest_qp.0), None),
        Event::Cqe { cqn, .. } => (None, Some(cqn.0)),
        _ => (None, None),
    };
    let missed = asides.iter().any(|a| matches!(a.event, Event::WqeMiss { .. }));
    let is_it = |aside: &Record| match aside.event {
        Event::DmaRead { what: Object::CqContext, queue: number, .. }
        | Event::DmaWrite { what: Object::Cqe, queue: number, .. } => cq == Some(number),
        Event::CqContextMiss { cqn } => cq == Some(cqn.0),
        Event::DmaRead { what: Object::Wqe, queue: number, .. } => missed && queue == Some(number),
        Event::DmaRead { queue: number, .. } | Event::DmaWrite { queue: number, .. } => queue == Some(number),
        Event::ContextMiss { qpn }
        | Event::KeyMiss { qpn, .. }
        | Event::TranslationMiss { qpn, .. }
        | Event::WqeMiss { qpn } => queue == Some(qpn.0),
        _ => false,
    };
    asides.iter().map(is_it).collect()
}

fn is_response(opcode: u8) -> bool {
    Operation::from_opcode(opcode.into()).is_response()
}

impl Follower {
    /// The steps that an event is, or completes the knowledge of, and its work request if it belongs to one.
    pub(crate) fn steps(&mut self, record: &Record, place: Place) -> (Vec<Step>, Option<Belongs>) {
        let mut steps = Vec::new();
        let flows = self.flows(record, place, &mut steps);
        let mut belongs = None;
        for flow in flows {
            let Some(request) = self.requests.get_mut(&flow) else { continue };
            let Request { qpn, index, begin, last, .. } = *request;
            belongs = belongs.or(Some(Belongs { flow, qpn, index, begin, before: last }));
            request.last = record.end();
            if request.over {
                continue;
            }
            let over = match record.event {
                Event::Done { .. } => !request.signaled,
                Event::Cqe { opcode, .. } => is_send_completion(opcode),
                _ => false,
            };
            let kind = if over { StepKind::Last } else { StepKind::Middle };
            steps.push(Step { flow, kind, place });
            request.over = over;
            if over {
                self.retire(flow);
            }
        }
        (steps, belongs)
    }

    fn flows(&mut self, record: &Record, place: Place, steps: &mut Vec<Step>) -> Vec<u64> {
        let hca = record.hca;
        match record.event {
            Event::Doorbell { qpn, .. } | Event::BlueFlame { qpn, .. } => {
                let doorbells = &mut self.queues.entry((hca, qpn)).or_default().doorbells;
                doorbells.push_back(place);
                // Doorbells without a fetch: nothing new was posted.
                if doorbells.len() > UNANSWERED {
                    doorbells.pop_front();
                }
                Vec::new()
            }
            Event::Fetch { qpn, head, posted } => {
                let fetches = &mut self.queues.entry((hca, qpn)).or_default().fetches;
                fetches.push_back((head, posted, place));
                if fetches.len() > UNANSWERED {
                    fetches.pop_front();
                }
                Vec::new()
            }
            Event::Started { qpn, index, psn, packets, signaled, .. } => {
                self.next += 1;
                let flow = self.next;
                let before = self.before(hca, qpn, index, record.at, flow);
                let begin = before.first().map_or(record.at, |s| s.place.start);
                let request = Request {
                    hca,
                    qpn,
                    index,
                    psn,
                    packets,
                    signaled,
                    begin,
                    last: before.last().map_or(record.at, |s| s.place.start),
                    over: false,
                    wires: Vec::new(),
                };
                self.requests.insert(flow, request);
                self.queues.entry((hca, qpn)).or_default().started.push_back(flow);
                steps.extend(before);
                vec![flow]
            }
            Event::Build { qpn, index, psn, .. } => {
                let flow = self.started(hca, qpn, |r| r.index == index);
                flow.map(|flow| self.built.insert(hca, (psn, flow)));
                flow.into_iter().collect()
            }
            Event::Respond { qpn, psn, .. } => {
                let flow = self.executed(hca, qpn, psn);
                flow.map(|flow| self.built.insert(hca, (psn, flow)));
                flow.into_iter().collect()
            }
            Event::Sent { slid, dlid, dest_qp, psn, opcode, .. } => {
                let Some(&(_, flow)) = self.built.get(&hca).filter(|(built, _)| *built == psn) else {
                    return Vec::new();
                };
                self.built.remove(&hca);
                let wire = (slid, dlid, dest_qp, psn, is_response(opcode));
                self.wires.insert(wire, flow);
                if let Some(request) = self.requests.get_mut(&flow) {
                    request.wires.push(wire);
                }
                vec![flow]
            }
            Event::Received { slid, dlid, dest_qp, psn, opcode, .. } => {
                let flow = self.wires.get(&(slid, dlid, dest_qp, psn, is_response(opcode))).copied();
                if let Some(flow) = flow.filter(|_| !is_response(opcode)) {
                    self.arrived.insert((hca, dest_qp, slid, psn), flow);
                }
                flow.into_iter().collect()
            }
            Event::Dropped { slid, dlid, dest_qp, psn, opcode, .. } => {
                let wire = (slid, dlid, dest_qp, psn, is_response(opcode));
                self.wires.get(&wire).copied().into_iter().collect()
            }
            Event::Executed { qpn, slid, psn, operation, .. } => {
                let flow = self.arrived.remove(&(hca, qpn, slid, psn));
                let responder = self.responders.entry((hca, qpn)).or_default();
                responder.expects_completion = takes_receive(operation) && responder.completions.is_empty();
                let completions = std::mem::take(&mut responder.completions);
                if let Some(flow) = flow {
                    let lives = self.requests.get(&flow).is_some_and(|r| !r.over);
                    let completions = completions.into_iter().filter(|_| lives);
                    steps.extend(completions.map(|place| Step { flow, kind: StepKind::Middle, place }));
                    if responder.executed.back() != Some(&flow) {
                        responder.executed.push_back(flow);
                    }
                    if responder.executed.len() > UNANSWERED {
                        responder.executed.pop_front();
                    }
                }
                flow.into_iter().collect()
            }
            Event::Duplicate { qpn, psn, .. } | Event::Answer { qpn, psn, .. } => {
                self.executed(hca, qpn, psn).into_iter().collect()
            }
            Event::Answered { qpn, psn, .. } => {
                // An answer is one to everything before it, too.
                let Some(queue) = self.queues.get(&(hca, qpn)) else { return Vec::new() };
                let covered = |flow: &&u64| self.requests.get(flow).is_some_and(|r| psn.since(r.psn) >= 0);
                queue.started.iter().filter(covered).copied().collect()
            }
            Event::Done { qpn, index, .. } => {
                self.started(hca, qpn, |r| r.index == index).into_iter().collect()
            }
            Event::Cqe { qpn, index, opcode, .. } if is_send_completion(opcode) => {
                self.started(hca, qpn, |r| r.index == index).into_iter().collect()
            }
            Event::Cqe { qpn, .. } => {
                let responder = self.responders.entry((hca, qpn)).or_default();
                if std::mem::take(&mut responder.expects_completion) {
                    return responder.executed.back().copied().into_iter().collect();
                }
                responder.completions.push(place);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The doorbell and the fetch that a work request which starts at `now` comes from.
    fn before(&mut self, hca: HcaId, qpn: Qpn, index: u16, now: Ps, flow: u64) -> Vec<Step> {
        let queue = self.queues.entry((hca, qpn)).or_default();
        let mut steps = Vec::new();
        let within =
            |(head, posted, _): &(u16, u16, Place)| index.wrapping_sub(*head) < posted.wrapping_sub(*head);
        // The first fetch that covers it, and the last doorbell before that: others came later.
        while queue.fetches.front().is_some_and(|f| !within(f)) {
            queue.fetches.pop_front();
        }
        let fetch = queue.fetches.front().map(|f| f.2);
        let rung = fetch.map_or(now, |f| f.start);
        while queue.doorbells.get(1).is_some_and(|next| next.start <= rung) {
            queue.doorbells.pop_front();
        }
        if let Some(place) = queue.doorbells.front().filter(|d| d.start <= rung).copied() {
            steps.push(Step { flow, kind: StepKind::First, place });
        }
        if let Some(place) = fetch {
            let kind = if steps.is_empty() { StepKind::First } else { StepKind::Middle };
            steps.push(Step { flow, kind, place });
        }
        steps
    }

    fn started(&self, hca: HcaId, qpn: Qpn, is_it: impl Fn(&Request) -> bool) -> Option<u64> {
        let queue = self.queues.get(&(hca, qpn))?;
        queue.started.iter().copied().find(|flow| self.requests.get(flow).is_some_and(&is_it))
    }

    fn executed(&self, hca: HcaId, qpn: Qpn, psn: Psn) -> Option<u64> {
        let responder = self.responders.get(&(hca, qpn))?;
        responder.executed.iter().rev().copied().find(|f| self.requests.get(f).is_some_and(|r| r.owns(psn)))
    }

    /// A work request is over; what is still under way of it may be seen for a while.
    fn retire(&mut self, flow: u64) {
        if let Some(request) = self.requests.get(&flow)
            && let Some(queue) = self.queues.get_mut(&(request.hca, request.qpn))
        {
            queue.started.retain(|f| *f != flow);
        }
        self.done.push_back(flow);
        if self.done.len() > REMEMBERED
            && let Some(old) = self.done.pop_front()
            && let Some(request) = self.requests.remove(&old)
        {
            for wire in request.wires {
                if self.wires.get(&wire) == Some(&old) {
                    self.wires.remove(&wire);
                }
            }
            self.arrived.retain(|_, flow| *flow != old);
        }
    }
}

/// Whether a CQE with that opcode is of a send request: done, or in error.
fn is_send_completion(opcode: u8) -> bool {
    matches!(opcode, 0 | 0xd)
}
