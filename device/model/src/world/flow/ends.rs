//! How full flow begins and ends: packets become times, and are there again; and how it is kept while its owner has his turn.

use std::collections::VecDeque;

use hca_firmware::FunctionId;
use hca_spec::ids::Psn;

use super::{Flow, Suspended, Times, apart};
use crate::engines::qp::run::Run;
use crate::ground::time::Key;
use crate::link_layer::Packet;
use crate::world::World;
use crate::world::train::Train;

/// With fewer packets to be sent a flow is not begun.
const LEAST: u32 = 16;
/// A flow of fewer events was not worth its begin.
const WORTH: u32 = 24;
/// After such a one, or where there can be none, so many packets go before the next is tried.
const PAUSE: u32 = 16;

impl World {
    /// Tries to have a train in full flow, now and then.
    #[inline]
    pub(in crate::world) fn try_flow(&mut self, train: &mut Train) -> Option<Box<Flow>> {
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
        let (qpn, half, way) = (train.qpn, train.half, train.way);
        if self.checker.is_some() {
            return None;
        }
        let peer = self.links.get(way.link).and_then(|link| link.ends.get(way.ends[1]));
        if !way.credits && peer.is_some_and(|near| near.asked.concerns_somebody()) {
            return None;
        }
        let [from, to] = self.hcas.get_disjoint_mut([train.from.0, way.to.0]).ok()?;
        let (mut sender, receiver) = (from.executor(FunctionId::FIRST)?, to.executor(FunctionId::FIRST)?);
        if !sender.runs_plainly((qpn, half), way.from_port) {
            return None;
        }
        let (run, cursor) = (sender.run_of(qpn)?, sender.cursor_of((qpn, half))?);
        if run.left(cursor) < LEAST && !sender.has_more((qpn, half)) {
            return None;
        }
        let [departs, arrives, receives] = train.queues();
        let next = receives.front().or(arrives.front()).map(|(_, packet)| packet.repr().psn)?;
        let at_port = next.add((receives.len() + arrives.len()) as u32);
        let made = cursor.since(next);
        let under_way = receives.len() + arrives.len() + departs.len();
        let count = usize::try_from(made).ok()?.checked_sub(under_way)?;
        let departing = at_port.add(count as u32);
        let (head, _, _) = run.shape();
        let peer = head.dest_qp;
        let belongs = |run: &Run, packet: &Packet, psn: Psn| {
            run.has_made(packet, psn) || apart::is_one(packet, (psn, peer))
        };
        let mut psns = (0..).map(|i| next.add(i));
        let mut alike =
            |(_, packet): &(Key, Packet)| psns.next().is_some_and(|psn| belongs(run, packet, psn));
        let there = receives.iter().chain(arrives.iter()).all(&mut alike);
        let mut psns = (0..).map(|i| departing.add(i));
        let longest = sender.core.longest(way.from_port);
        let here = departs.iter().all(|(_, packet)| {
            packet.len() <= longest && psns.next().is_some_and(|psn| belongs(run, packet, psn))
        });
        if !there || !here {
            return None;
        }
        let (_, payload, _) = run.shape();
        // As it is when the receiver's port has taken it.
        let mut sample =
            sender.packet_of_run((qpn, way.from_port), cursor, &VecDeque::new(), &mut train.spare)?;
        let taken = receiver.hands_up(way.to_port, &mut sample);
        if !taken || !receiver.takes_messages(way.to_port, (&sample, next)) {
            train.give_back(sample);
            return None;
        }
        let mut waited = Vec::new();
        let mut psns = (0..).map(|i| at_port.add(i));
        let belongs = |run: &Run, packet: &Packet| psns.next().is_some_and(|psn| belongs(run, packet, psn));
        let out =
            sender.begin_outflow((qpn, half), way.from_port, count, belongs, |packet| waited.push(packet))?;
        let mut keys = [const { VecDeque::new() }; 3];
        for (keys, queue) in keys.iter_mut().zip(train.queues_mut()) {
            keys.reserve(queue.len() + 16);
            for (key, packet) in queue.drain(..) {
                keys.push_back(key);
                waited.push(packet);
            }
        }
        let run = sender.run_of(qpn)?;
        let (alike, mut apart): (Vec<Packet>, Vec<Packet>) =
            waited.into_iter().partition(|packet| run.is_of(packet));
        alike.into_iter().for_each(|packet| train.give_back(packet));
        apart.sort_by_key(|packet| packet.repr().psn.since(next));
        let apart = apart.into();
        let [departs, arrives, receives] = keys;
        Some(Box::new(Flow {
            out,
            times: Times { departs, arrives, receives },
            next,
            sample,
            payload,
            apart,
            before: VecDeque::new(),
            places: None,
            events: 0,
        }))
    }

    /// Its packets are there again.
    pub(in crate::world) fn end_flow(&mut self, train: &mut Train, flow: Box<Flow>) {
        let Flow { out, times, next, sample, mut apart, before, events, .. } = *flow;
        let Times { departs, arrives, receives } = times;
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
        let at_port = next.add((receives.len() + arrives.len()) as u32);
        let departing = at_port.add(out.waiting() as u32);
        let begins = [departing, next.add(receives.len() as u32), next];
        let mut spare = std::mem::take(&mut train.spare);
        let mut packet_at = |psn: Psn| {
            apart.take(psn).or_else(|| sender.packet_of_run((qpn, port), psn, &before, &mut spare))
        };
        for ((queue, keys), first) in
            train.queues_mut().iter_mut().zip([departs, arrives, receives]).zip(begins)
        {
            for (i, key) in keys.into_iter().enumerate() {
                if let Some(packet) = packet_at(first.add(i as u32)) {
                    queue.push_back((key, packet));
                }
            }
        }
        let waiting = (0..out.waiting()).filter_map(|i| packet_at(at_port.add(i as u32))).collect();
        sender.end_outflow(out, (qpn, port), waiting);
        train.spare = spare;
    }

    /// Keeps the flow of a train while its owner has his turn.
    pub(in crate::world) fn suspend(&mut self, train: &mut Train, flow: Option<Box<Flow>>) {
        let Some(flow) = flow else { return };
        match self.flow {
            None => self.flow = Some(Suspended { from: train.from, flow }),
            Some(_) => self.end_flow(train, flow),
        }
    }

    /// Takes the flow of a train that was kept; another's is ended.
    #[inline]
    pub(in crate::world) fn resume(&mut self, train: &Train) -> Option<Box<Flow>> {
        let Suspended { from, flow } = self.flow.take()?;
        if from != train.from {
            self.flow = Some(Suspended { from, flow });
            self.rouse();
            return None;
        }
        Some(flow)
    }

    /// The packets of a flow that was kept are there again. Called before anything happens but that the time goes on.
    #[inline]
    pub(in crate::world) fn rouse(&mut self) {
        if self.flow.is_some() {
            self.rouse_now();
        }
    }

    #[inline(never)]
    fn rouse_now(&mut self) {
        let Some(Suspended { from, flow }) = self.flow.take() else { return };
        if let Some(i) = self.trains.iter().position(|train| train.from == from) {
            let mut train = self.trains.swap_remove(i);
            self.end_flow(&mut train, flow);
            self.trains.push(train);
        }
    }
}
