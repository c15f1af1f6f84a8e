//! A train in full flow: all its packets are of one run, nobody else wants to send or waits, and the receiver takes one like the
//! other. Then no packets are made: of each, only the times of its stages are kept, in the same order and with the same places as
//! those of packets. Before anything else happens the packets are there again.

use std::collections::VecDeque;

use hca_firmware::FunctionId;
use hca_spec::ids::Psn;

use super::train::{Stage, Train};
use super::{Class, Event, World};
use crate::adapter::core::HcaEvent;
use crate::adapter::outflow::{Flown, Outflow, Rest};
use crate::ground::node::PortRef;
use crate::ground::time::{Key, Ps, Source};
use crate::link_layer::{Packet, Sent, blocks};

/// With fewer packets to be sent a flow is not begun.
const LEAST: u32 = 16;
/// A flow of fewer events was not worth its begin.
const WORTH: u32 = 24;
/// After such a one, or where there can be none, so many packets go before the next is tried.
const PAUSE: u32 = 16;

/// The times of a train in full flow. When the first event of each stage is, the train knows.
pub(super) struct Flow {
    out: Outflow,
    departs: VecDeque<Key>,
    arrives: VecDeque<Key>,
    receives: VecDeque<Key>,
    /// PSN that the receiver expects.
    next: Psn,
    /// Any packet of it.
    sample: Packet,
    /// Bytes of payload.
    payload: usize,
    /// When packets began to leave that the receiver may have no room for: they are passed on as packets when the flow ends.
    left: Vec<Ps>,
    /// Events so far.
    events: u32,
}

/// What became of an event.
pub(super) enum Step {
    /// The flow goes on.
    On,
    /// It ends, and the sender does the rest of the event as ever.
    End(Rest),
    /// It ends, and the event is to happen yet.
    Back,
}

#[inline]
fn take(times: &mut VecDeque<Key>, first: &mut Key) {
    times.pop_front();
    *first = times.front().copied().unwrap_or(Key::NEVER);
}

#[inline]
fn keep(times: &mut VecDeque<Key>, first: &mut Key, key: Key) {
    if times.is_empty() {
        *first = key;
    }
    times.push_back(key);
}

impl World {
    /// Tries to have a train in full flow, now and then.
    #[inline]
    pub(super) fn try_flow(&mut self, train: &mut Train) -> Option<Box<Flow>> {
        if train.no_flow > 0 {
            train.no_flow -= 1;
            return None;
        }
        let flow = self.begin_flow(train);
        if flow.is_none() {
            train.no_flow = PAUSE;
        }
        flow
    }

    fn begin_flow(&mut self, train: &mut Train) -> Option<Box<Flow>> {
        let (qpn, way) = (train.qpn, train.way);
        if self.checker.is_some() {
            return None;
        }
        let [from, to] = self.hcas.get_disjoint_mut([train.from.0, way.to.0]).ok()?;
        let (mut sender, receiver) = (from.executor(FunctionId::FIRST)?, to.executor(FunctionId::FIRST)?);
        if !sender.runs_plainly(qpn, way.from_port) {
            return None;
        }
        let (run, cursor) = (sender.run_of(qpn)?, sender.cursor_of(qpn)?);
        if run.left(cursor) < LEAST {
            return None;
        }
        let [departs, arrives, receives] = train.queues();
        let next = receives.front().or(arrives.front()).map(|(_, packet)| packet.repr().psn)?;
        let at_port = next.add((receives.len() + arrives.len()) as u32);
        let made = cursor.since(next);
        let under_way = receives.len() + arrives.len() + departs.len();
        let count = usize::try_from(made).ok()?.checked_sub(under_way)?;
        let departing = at_port.add(count as u32);
        let mut psns = (0..).map(|i| next.add(i));
        let mut alike =
            |(_, packet): &(Key, Packet)| psns.next().is_some_and(|psn| run.has_made(packet, psn));
        let there = receives.iter().chain(arrives.iter()).all(&mut alike);
        let mut psns = (0..).map(|i| departing.add(i));
        let here = departs.iter().all(|(_, packet)| psns.next().is_some_and(|psn| run.has_made(packet, psn)));
        if !there || !here {
            return None;
        }
        let (_, payload, _) = run.shape();
        // As it is when the receiver's port has taken it.
        let mut sample = sender.packet_of_run(qpn, way.from_port, cursor, &mut train.spare)?;
        let taken = receiver.hands_up(way.to_port, &mut sample);
        if !taken || !receiver.takes_plainly(way.to_port, (&sample, next)) {
            train.give_back(sample);
            return None;
        }
        let mut waited = Vec::new();
        let out =
            sender.begin_outflow((qpn, way.from_port), (at_port, count), |packet| waited.push(packet))?;
        let mut keys = [const { VecDeque::new() }; 3];
        for (keys, queue) in keys.iter_mut().zip(train.queues_mut()) {
            keys.reserve(queue.len() + 16);
            for (key, packet) in queue.drain(..) {
                keys.push_back(key);
                waited.push(packet);
            }
        }
        waited.into_iter().for_each(|packet| train.give_back(packet));
        let [departs, arrives, receives] = keys;
        let left = Vec::new();
        Some(Box::new(Flow { out, departs, arrives, receives, next, sample, payload, left, events: 0 }))
    }

    /// Its packets are there again.
    pub(super) fn end_flow(&mut self, train: &mut Train, flow: Box<Flow>) {
        let Flow { out, departs, arrives, receives, next, sample, left, events, .. } = *flow;
        if events < WORTH {
            train.no_flow = PAUSE;
        }
        sample.retire();
        let (qpn, port) = (train.qpn, train.way.from_port);
        let Some(mut sender) =
            self.hcas.get_mut(train.from.0).and_then(|hca| hca.executor(FunctionId::FIRST))
        else {
            return;
        };
        let leaving = next.add((receives.len() + arrives.len()) as u32);
        let at_port = leaving.add(left.len() as u32);
        let departing = at_port.add(out.waiting() as u32);
        let begins = [departing, next.add(receives.len() as u32), next];
        let mut spare = std::mem::take(&mut train.spare);
        for ((queue, keys), first) in
            train.queues_mut().iter_mut().zip([departs, arrives, receives]).zip(begins)
        {
            for (i, key) in keys.into_iter().enumerate() {
                if let Some(packet) = sender.packet_of_run(qpn, port, first.add(i as u32), &mut spare) {
                    queue.push_back((key, packet));
                }
            }
        }
        let psns = (0..).map(|i| leaving.add(i));
        let left = left.into_iter().zip(psns).filter_map(|(start, psn)| {
            let packet = sender.packet_of_run(qpn, port, psn, &mut spare)?;
            Some(Sent { start, end: start, packet, hold: () })
        });
        let left: Vec<Sent<()>> = left.collect();
        sender.end_outflow(out, (qpn, port), at_port, &mut spare);
        train.spare = spare;
        left.into_iter().for_each(|sent| self.pass(train, sent));
    }

    /// An event of a train in full flow happens.
    #[inline]
    pub(super) fn step_flow(&mut self, train: &mut Train, flow: &mut Flow, stage: Stage) -> Step {
        flow.events += 1;
        match stage {
            Stage::Turn | Stage::Port | Stage::Depart => self.flow_out(train, flow, stage),
            Stage::Arrive => self.flow_in(train, flow),
            Stage::Receive => self.flow_taken(train, flow),
        }
    }

    /// One of its sender.
    #[inline]
    fn flow_out(&mut self, train: &mut Train, flow: &mut Flow, stage: Stage) -> Step {
        let Self { hcas, heap, trace, commands, captured, now, .. } = self;
        let now = *now;
        let ends = (train.qpn, train.way.from_port);
        let Some(mut sender) = hcas.get_mut(train.from.0).and_then(|hca| hca.executor(FunctionId::FIRST))
        else {
            return Step::Back;
        };
        let Flow { out, departs, left, .. } = flow;
        let own = Source::new(Class::Node as u8, train.from.0, 0);
        // At most one packet leaves at an event, mostly.
        let mut first = None;
        match stage {
            Stage::Depart => take(departs, train.first_mut(Stage::Depart)),
            _ => *train.first_mut(stage) = Key::NEVER,
        }
        let mut flown = |flown: Flown| match flown {
            Flown::Turn(at) => {
                let key = heap.reserve(at.max(now), own);
                if !train.keep_turn(Stage::Turn, key) {
                    heap.push_reserved(key, train.own(HcaEvent::SendTurn(ends.0)));
                }
            }
            Flown::Port(at) => {
                let key = heap.reserve(at.max(now), own);
                if !train.keep_turn(Stage::Port, key) {
                    heap.push_reserved(key, train.own(HcaEvent::PortTurn(ends.1)));
                }
            }
            Flown::Depart(at) => {
                keep(departs, train.first_mut(Stage::Depart), heap.reserve(at.max(now), own));
            }
            Flown::Sent(start) => match first {
                None => first = Some(start),
                Some(_) => left.push(start),
            },
        };
        let rest = match stage {
            Stage::Turn => sender.flow_turn(now, out, ends, &mut flown),
            Stage::Depart => sender.flow_depart(now, out, ends, &mut flown),
            _ => sender.flow_port(now, out, ends, &mut flown),
        };
        let chip = sender.core.chip;
        if let Some(watch) = &mut chip.watch {
            watch.hand_over(&mut chip.units, trace.as_mut(), commands, captured);
        }
        let others = std::mem::take(&mut flow.left);
        for start in first.into_iter().chain(others) {
            if !flow.left.is_empty() || !self.pass_flown(train, flow, start) {
                flow.left.push(start);
            }
        }
        match rest {
            Rest::None if flow.left.is_empty() => Step::On,
            rest => Step::End(rest),
        }
    }

    /// A packet begins to leave at `start`. `false`: its receiver has no room for it, and nothing has happened.
    #[inline]
    fn pass_flown(&mut self, train: &mut Train, flow: &mut Flow, start: Ps) -> bool {
        let (way, len) = (train.way, flow.sample.len());
        let [near, far] = way.ends;
        let port = PortRef::of_hca(way.to, way.to_port);
        if !way.credits && !self.take_in(way.link, far, port, flow.out.lane(), blocks(len) as u8) {
            return false;
        }
        let Some(link) = self.links.get_mut(way.link) else { return true };
        if let Some(at) = link.carrier.pass(start, near, len) {
            let there = Source::new(Class::Packet as u8, way.to.0, way.to_port);
            let key = self.heap.reserve(at + way.forth, there);
            keep(&mut flow.arrives, train.first_mut(Stage::Arrive), key);
        }
        true
    }

    /// A packet is at the receiver's port.
    #[inline]
    fn flow_in(&mut self, train: &mut Train, flow: &mut Flow) -> Step {
        let Self { hcas, heap, trace, commands, captured, now, .. } = self;
        let (now, way) = (*now, train.way);
        let Ok([from, to]) = hcas.get_disjoint_mut([train.from.0, way.to.0]) else { return Step::Back };
        let Some(mut receiver) = to.executor(FunctionId::FIRST) else { return Step::Back };
        let Some(outlet) = from.chip.ports.get_mut(way.from_port) else { return Step::Back };
        take(&mut flow.arrives, train.first_mut(Stage::Arrive));
        let (qpn, len) = (flow.sample.repr().dest_qp, flow.sample.len());
        let of = (flow.payload, len, flow.sample.lane());
        let (at, service) = receiver.flow_arrive(now, way.to_port, qpn, of);
        if receiver.core.traces() {
            flow.sample.set_psn(flow.next.add(flow.receives.len() as u32));
            receiver.core.note_received(now, at, service, &flow.sample);
        }
        let key = heap.reserve(at, Source::new(Class::Node as u8, way.to.0, 0));
        keep(&mut flow.receives, train.first_mut(Stage::Receive), key);
        let chip = receiver.core.chip;
        if let Some(watch) = &mut chip.watch {
            watch.hand_over(&mut chip.units, trace.as_mut(), commands, captured);
        }
        if !way.credits {
            self.return_credits(train.ingress(flow.out.lane(), len), at);
        } else if let Some(at) = flow.out.credit(&mut outlet.outlet, now, blocks(len), at + way.back) {
            let port = PortRef::of_hca(train.from, way.from_port);
            heap.push(
                at,
                Source::new(Class::Credit as u8, train.from.0, way.from_port),
                Event::Credits { port },
            );
        }
        Step::On
    }

    /// A packet has passed the receiver's pipeline.
    #[inline]
    fn flow_taken(&mut self, train: &mut Train, flow: &mut Flow) -> Step {
        let (now, to) = (self.now, train.way.to);
        let Ok([from, to_hca]) = self.hcas.get_disjoint_mut([train.from.0, to.0]) else { return Step::Back };
        let (Some(sender), Some(mut receiver)) =
            (from.executor(FunctionId::FIRST), to_hca.executor(FunctionId::FIRST))
        else {
            return Step::Back;
        };
        let Some(run) = sender.run_of(train.qpn) else { return Step::Back };
        let (psn, sample) = (flow.next, &flow.sample);
        let asked = (psn, run.asks(psn));
        if !receiver.flow_receive(now, (sample.path(), sample.repr()), asked, run.payload(psn)) {
            return Step::Back;
        }
        take(&mut flow.receives, train.first_mut(Stage::Receive));
        flow.next = psn.next();
        let chip = receiver.core.chip;
        if !chip.out.is_empty() || chip.watch.as_ref().is_some_and(|watch| watch.has_news()) {
            self.collect(to, FunctionId::FIRST);
        }
        Step::On
    }
}
