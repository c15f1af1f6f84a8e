//! Trains: packets of a message that follow each other over a cable, from one adapter to another.
//!
//! While a queue pair sends a run ([`crate::engines::qp::run`]), the events of its packets and of its turns don't go over
//! the heap. They stay with the train, stage by stage in order, as each stage keeps the order of the packets; the next one
//! is the first of a few. Each has the place in the order of all events that it would have on the heap
//! ([`crate::ground::time::EventHeap::reserve`]), and what is on the heap before it happens before it. So a train changes no time and no order.
//!
//! The payload of its packets stays in their sender's memory until their receiver takes it. Whatever could let the sender
//! have its memory back before that cuts the train: its packets get their bytes and their events go to the heap. That is
//! so before a command of the sender's driver is executed, before its queue pair hears anything but that packets were
//! received, before a timer of the queue pair, the link or the memory's owner does something. What others send in between
//! waits with the train's packets for the units and the link, as always, and cuts nothing.

use std::collections::VecDeque;

use hca_spec::ids::Qpn;
use hca_spec::qpc::QpState;
use hca_spec::wire::Operation;

use super::{Event, World};
use crate::adapter::core::HcaEvent;
use crate::engines::qp::replies::Verdict;
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef};
use crate::ground::time::{Key, Ps, Source};
use crate::wire::{Packet, Repr};

/// Places in the order of events that trains need to have in front of them.
const SEQUENCES: u64 = 1 << 20;
/// The most trains in a world: each event has to be held against all of them.
const MOST: usize = 4;

/// What is next for a packet, or for its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The sender's turn to send, and the port's turn to look at what waits.
    Turn,
    Port,
    /// A packet is made.
    Depart,
    /// It is at the far end of the link.
    Arrive,
    /// It has passed the receiver's pipeline.
    Receive,
}

impl Stage {
    const COUNT: usize = 5;

    /// The stage that an event is of, if it is one of the train of that queue pair.
    fn of(event: &Event, from: HcaId, qpn: Qpn) -> Option<Self> {
        Some(match event {
            Event::Hca { event: HcaEvent::Depart(_, packet, _), .. } if packet.is_referring() => Self::Depart,
            Event::Hca { event: HcaEvent::Receive(arrived), .. } if arrived.packet().is_referring() => {
                Self::Receive
            }
            Event::Arrive { packet, .. } if packet.is_referring() => Self::Arrive,
            Event::Hca { hca, event: HcaEvent::SendTurn(turn), .. } if *hca == from && *turn == qpn => {
                Self::Turn
            }
            Event::Hca { hca, event: HcaEvent::PortTurn, .. } if *hca == from => Self::Port,
            _ => return None,
        })
    }
}

/// A train of packets.
pub(super) struct Train {
    from: HcaId,
    qpn: Qpn,
    link: usize,
    stages: [VecDeque<(Key, Event)>; Stage::COUNT],
    /// The stage whose first event is the next.
    next: Option<(Key, usize)>,
}

impl Train {
    fn new(from: HcaId, qpn: Qpn, link: usize) -> Self {
        Self { from, qpn, link, stages: Default::default(), next: None }
    }

    /// Keeps an event, if it is one of the train's and not before another of its stage; gives it back otherwise.
    #[inline]
    fn keep(&mut self, key: Key, event: Event) -> Result<(), Event> {
        let Some(stage) = Stage::of(&event, self.from, self.qpn) else { return Err(event) };
        let Some(queue) = self.stages.get_mut(stage as usize) else { return Err(event) };
        if queue.back().is_some_and(|(last, _)| *last > key) {
            return Err(event);
        }
        queue.push_back((key, event));
        if self.next.is_none_or(|(next, _)| key < next) {
            self.next = Some((key, stage as usize));
        }
        Ok(())
    }

    /// When its next event is due.
    #[inline]
    pub(super) fn next_key(&self) -> Option<Key> {
        self.next.map(|(key, _)| key)
    }

    /// Takes its next event.
    #[inline]
    fn take(&mut self) -> Option<(Key, Event)> {
        let (_, stage) = self.next?;
        let taken = self.stages.get_mut(stage)?.pop_front();
        let first = |(stage, queue): (usize, &VecDeque<(Key, Event)>)| Some((queue.front()?.0, stage));
        self.next = self.stages.iter().enumerate().filter_map(first).min_by_key(|(key, _)| *key);
        taken
    }

    /// Whether packets are under way.
    fn is_empty(&self) -> bool {
        let [_, _, packets @ ..] = &self.stages;
        packets.iter().all(VecDeque::is_empty)
    }

    /// Whether an event may let the sender's driver have its memory back, or change what the packets are.
    fn is_cut_by(&self, event: &Event) -> bool {
        match event {
            Event::Hca { hca, event, .. } if *hca == self.from => match event {
                HcaEvent::Command(_)
                | HcaEvent::CommandDone(_)
                | HcaEvent::AgentPoll
                | HcaEvent::LinkUp
                | HcaEvent::DynamicIdle(_)
                | HcaEvent::DynamicDrain(..) => true,
                HcaEvent::AckTimeout(qpn) | HcaEvent::ErrorPoll(qpn) | HcaEvent::RnrTimeout(qpn, _) => {
                    *qpn == self.qpn
                }
                HcaEvent::Receive(arrived) => self.is_cut_by_packet(arrived.repr()),
                _ => false,
            },
            Event::Light { number, .. } | Event::Trained { number, .. } => *number == self.link,
            Event::Sweep => true,
            _ => false,
        }
    }

    /// The same for a packet that the sender receives: of its peer, that packets were received cuts nothing.
    fn is_cut_by_packet(&self, repr: &Repr) -> bool {
        match repr.dest_qp {
            Qpn(0 | 1) => true,
            to if to != self.qpn => false,
            _ => {
                let positive = repr.aeth.is_some_and(|aeth| matches!(Verdict::of(aeth), Verdict::Ack));
                repr.operation != Operation::Acknowledge || !positive
            }
        }
    }
}

impl World {
    /// Whether packets travel in trains, as they do from the start: nothing but speed depends on it.
    pub fn set_trains(&mut self, on: bool) {
        self.trains_allowed = on;
        self.allow_trains();
    }

    /// All packets under way have their payload's bytes themselves from now on. Called before a host takes memory away
    /// from an adapter, or an adapter may not read it any more.
    pub fn settle(&mut self) {
        while let Some(train) = self.trains.pop() {
            self.cut(train);
        }
    }

    #[cold]
    fn cut(&mut self, train: Train) {
        let Train { from, qpn, stages, .. } = train;
        if let Some(hca) = self.hcas.get_mut(from.0) {
            hca.core.port.egress.settle();
            hca.core.runs.end();
            if let Some(qp) = hca.qps.get_mut(qpn.0) {
                qp.run = None;
            }
        }
        for (key, mut event) in stages.into_iter().flatten() {
            match &mut event {
                Event::Hca { event, .. } => event.settle(),
                Event::Arrive { packet, .. } => packet.settle(),
                _ => {}
            }
            self.heap.push_reserved(key, event);
        }
    }

    /// Looks again which adapters may send trains: those at a cable to another adapter on which nothing happens to packets
    /// and nobody looks at them.
    pub(super) fn allow_trains(&mut self) {
        self.settle();
        for id in (0..self.hcas()).map(HcaId) {
            let may = self.trains_allowed && self.is_way_plain(id);
            if let Some(core) = self.core_mut(id) {
                core.runs.allow(may);
            }
        }
    }

    fn is_way_plain(&self, from: HcaId) -> bool {
        let watched = |hca: HcaId| self.core(hca).is_none_or(|core| core.captures());
        let far = self.plug(from.into()).and_then(|(number, end)| {
            let link = self.links.get(number).filter(|link| link.carrier.is_plain())?;
            Some(link.ends.get(link.other(end)?)?.at)
        });
        match far {
            Some(LinkEnd::Port(PortRef { node: NodeId::Hca(to), .. })) => !watched(from) && !watched(to),
            _ => false,
        }
    }

    /// An adapter has begun to send packets that are alike: they are a train.
    #[cold]
    pub(super) fn begin_train(&mut self, from: HcaId, qpn: Qpn) {
        if self.trains.iter().any(|train| train.from == from) {
            return;
        }
        let link = self.plug(from.into()).map_or(usize::MAX, |(number, _)| number);
        self.trains.push(Train::new(from, qpn, link));
        if self.trains.len() > MOST || !self.heap.can_reserve(SEQUENCES) {
            self.settle();
        }
    }

    /// Adds an event where it belongs: to a train, or to the heap.
    pub(super) fn push_with_trains(&mut self, at: Ps, source: Source, event: Event) {
        let key = self.heap.reserve(at, source);
        let mut event = event;
        for train in &mut self.trains {
            match train.keep(key, event) {
                Ok(()) => return,
                Err(back) => event = back,
            }
        }
        self.heap.push_reserved(key, event);
    }

    /// Runs every event that is due at or before `until`, as long as there are trains. Returns whether there are none left.
    #[inline(never)]
    pub(super) fn advance_trains(&mut self, until: Ps) -> bool {
        loop {
            let nexts = self.trains.iter().enumerate().filter_map(|(i, train)| Some((train.next_key()?, i)));
            let own = nexts.min().filter(|(key, _)| key.at() <= until);
            let own = own.filter(|(key, _)| self.heap.next_key().is_none_or(|next| *key < next));
            let (at, event) = match own {
                Some((key, i)) => {
                    self.heap.pass(key.at());
                    match self.trains.get_mut(i).and_then(Train::take) {
                        Some((_, event)) => (key.at(), event),
                        None => return false,
                    }
                }
                None => match self.heap.pop_until(until) {
                    Some((at, event)) => {
                        self.cut_by(&event);
                        (at, event)
                    }
                    None => return false,
                },
            };
            self.execute(at, event);
            self.follow_trains();
            if self.trains.is_empty() {
                return true;
            }
        }
    }

    /// Cuts the trains that an event which is about to happen cuts.
    fn cut_by(&mut self, event: &Event) {
        while let Some(i) = self.trains.iter().position(|train| train.is_cut_by(event)) {
            let train = self.trains.swap_remove(i);
            self.cut(train);
        }
    }

    /// After an event: a train that is through is none any more, and one whose queue pair failed is cut.
    fn follow_trains(&mut self) {
        while let Some(i) = self.trains.iter().position(|train| !self.goes_on(train)) {
            let train = self.trains.swap_remove(i);
            self.cut(train);
        }
    }

    fn goes_on(&self, train: &Train) -> bool {
        let Some(hca) = self.hcas.get(train.from.0) else { return false };
        hca.qps.get(train.qpn.0).is_some_and(|qp| {
            let waits = || hca.core.port.egress.queues(Packet::is_referring);
            qp.state == QpState::Rts && (qp.run.is_some() || !train.is_empty() || waits())
        })
    }
}
