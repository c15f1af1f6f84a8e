//! Trains: packets of a message that follow each other over a cable, from one adapter to another.
//!
//! One that leaves the world by a tunnel ([`World::set_trains_out`]) has no stages but those of its sender; its payload stays in memory until
//! the world's owner takes what has left, and is fetched where it would be in a train within the world.
//!
//! While a queue pair sends a run ([`crate::engines::qp::run`]), the events of its packets and of its turns don't go over
//! the heap. They stay with the train, stage by stage in order, as each stage keeps the order of the packets; the next one
//! is the first of a few. Each has the place in the order of all events that it would have on the heap
//! ([`crate::ground::time::EventHeap::reserve`]), and what is on the heap before it happens before it. So a train changes
//! no time and no order.
//!
//! The payload of its packets stays in their sender's memory until their receiver takes it. Whatever could let the sender
//! have its memory back before that cuts the train: its packets get their bytes and their events go to the heap. That is
//! so before a command of the sender's driver is executed, before its queue pair hears anything but that packets were
//! received which were (or, of a train of responses, further reads and responses to its own), before a timer of the queue pair, the link or the memory's owner does something, and when a work request has
//! changed keys, before its completion is seen. What others send in between waits with the train's packets for the units and
//! the link, as always, and cuts nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use hca_firmware::FunctionId;
use hca_spec::ids::Qpn;
use hca_spec::wire::Operation;

use super::flow::Ended;
use super::pace::Pace;
use super::stages::{Stage, earlier};
use super::track::Way;
use super::{Class, Event, World};
use crate::adapter::state::event::{Arrived, Departing, HcaEvent};
use crate::engines::qp::replies::Verdict;
use crate::engines::qp::run::Half;
use crate::ground::node::{HcaId, PortRef};
use crate::ground::region::Region;
use crate::ground::time::{Key, Ps};
use crate::link::{LinkMessage, LinkPacket};
use crate::link_layer::{Packet, blocks};
use crate::wire::Repr;

use super::transfer::Ingress;

/// Places in the order of events that trains need to have in front of them.
const SEQUENCES: u64 = 1 << 20;
/// Packets of a train that are kept for others of their run: about as many as are under way.
const SPARE: usize = 64;
/// The most trains in a world: each event has to be held against all of them.
const MOST: usize = 4;

/// Stages that there are.
const STAGES: usize = 5;
/// Stages that packets have.
const PACKETS: usize = 3;

/// A train of packets.
pub(super) struct Train {
    pub(super) from: HcaId,
    pub(super) qpn: Qpn,
    /// Which packets of its queue pair they are.
    pub(super) half: Half,
    epochs: [u32; 2],
    /// Changes of the sender's memory keys when it began.
    pub(super) keys: u64,
    pub(super) way: Way,
    /// Packets by stage.
    packets: [VecDeque<(Key, Packet)>; PACKETS],
    /// By stage, when its first event is; of the turns, the only one.
    first: [Key; STAGES],
    /// Packets that arrived and were taken, for others of their run.
    pub(super) spare: Vec<Packet>,
    /// Where the payload of the run is of which the receiver has just looked at every header of a packet: while nothing
    /// else happens, what holds for that one holds for those that are like it.
    pub(super) known: Option<Arc<Region>>,
    /// So many packets go before it is looked whether it is in full flow.
    pub(super) no_flow: u32,
}

impl Train {
    fn new(from: HcaId, (qpn, half): (Qpn, Half), way: Way, epochs: [u32; 2], keys: u64) -> Self {
        let first = [Key::NEVER; STAGES];
        Self {
            from,
            qpn,
            half,
            epochs,
            keys,
            way,
            packets: Default::default(),
            first,
            spare: Vec::new(),
            known: None,
            no_flow: 0,
        }
    }

    /// Its next event.
    #[inline]
    pub(super) fn next(&self) -> (Key, Stage) {
        let [_, _, depart, _, receive] = self.first;
        earlier(self.next_that_moves(), earlier((depart, Stage::Depart), (receive, Stage::Receive)))
    }

    /// The next one that is neither a departure nor a reception.
    #[inline]
    pub(super) fn next_that_moves(&self) -> (Key, Stage) {
        let [turn, port, _, arrive, _] = self.first;
        earlier(earlier((turn, Stage::Turn), (port, Stage::Port)), (arrive, Stage::Arrive))
    }

    /// When that is due.
    #[inline]
    pub(super) fn next_at(&self) -> Option<Ps> {
        let (key, _) = self.next();
        (key != Key::NEVER).then(|| key.at())
    }

    pub(super) fn set_first(&mut self, stage: Stage, key: Key) {
        if let Some(first) = self.first.get_mut(stage as usize) {
            *first = key;
        }
    }

    /// Keeps a turn, if there is none of its kind.
    #[inline]
    pub(super) fn keep_turn(&mut self, stage: Stage, key: Key) -> bool {
        let free = self.first.get(stage as usize) == Some(&Key::NEVER);
        if free {
            self.set_first(stage, key);
        }
        free
    }

    #[inline]
    fn queue(&mut self, stage: Stage) -> Option<&mut VecDeque<(Key, Packet)>> {
        self.packets.get_mut((stage as usize).checked_sub(Stage::Depart as usize)?)
    }

    /// Keeps a packet behind those of its stage; gives it back if it is to go before one of them.
    #[inline]
    pub(super) fn keep(&mut self, stage: Stage, key: Key, mut packet: Packet) -> Result<(), Packet> {
        let Some(queue) = self.queue(stage) else { return Err(packet) };
        match queue.back() {
            // The heap does not know when its payload has to be fetched.
            Some((last, _)) if *last > key => {
                packet.fetch_payload();
                return Err(packet);
            }
            Some(_) => queue.push_back((key, packet)),
            None => {
                queue.push_back((key, packet));
                self.set_first(stage, key);
            }
        }
        Ok(())
    }

    /// Takes the first packet of a stage.
    #[inline]
    pub(super) fn take(&mut self, stage: Stage) -> Option<Packet> {
        let queue = self.queue(stage)?;
        let (_, packet) = queue.pop_front()?;
        let next = queue.front().map_or(Key::NEVER, |(key, _)| *key);
        self.set_first(stage, next);
        Some(packet)
    }

    /// Packets that depart, arrive, and are received.
    pub(super) fn queues(&self) -> &[VecDeque<(Key, Packet)>; PACKETS] {
        &self.packets
    }

    /// The same, to change.
    pub(super) fn queues_mut(&mut self) -> &mut [VecDeque<(Key, Packet)>; PACKETS] {
        &mut self.packets
    }

    /// When the first event of a stage is.
    #[inline]
    pub(super) fn first_mut(&mut self, stage: Stage) -> &mut Key {
        let [turn, port, depart, arrive, receive] = &mut self.first;
        match stage {
            Stage::Turn => turn,
            Stage::Port => port,
            Stage::Depart => depart,
            Stage::Arrive => arrive,
            Stage::Receive => receive,
        }
    }

    /// Whether the receiver knows what the headers of a packet say, but for its PSN.
    #[inline]
    pub(super) fn knows(&self, packet: &Packet) -> bool {
        self.known.as_ref().zip(packet.region()).is_some_and(|(known, region)| Arc::ptr_eq(known, region))
    }

    /// Keeps a packet that nobody needs any more.
    #[inline]
    pub(super) fn give_back(&mut self, packet: Packet) {
        if self.spare.len() < SPARE && packet.is_referring() {
            self.spare.push(packet);
        } else {
            packet.retire();
        }
    }

    /// Keeps an event of the sender or the receiver, if it is one of the train's; gives it back otherwise.
    #[inline]
    pub(super) fn keep_event(&mut self, key: Key, hca: HcaId, event: HcaEvent) -> Result<(), HcaEvent> {
        match event {
            _ if hca == self.from && event.is_turn(self.half, self.qpn) => {
                if self.keep_turn(Stage::Turn, key) { Ok(()) } else { Err(event) }
            }
            HcaEvent::PortTurn(port) if hca == self.from && port == self.way.from_port => {
                if self.keep_turn(Stage::Port, key) { Ok(()) } else { Err(event) }
            }
            HcaEvent::Depart(departing)
                if departing.packet.is_referring()
                    && !departing.own
                    && hca == self.from
                    && departing.port == self.way.from_port =>
            {
                let Departing { port, operation, reserved, own, packet } = departing;
                self.keep(Stage::Depart, key, packet)
                    .map_err(|packet| HcaEvent::Depart(Departing { port, operation, reserved, own, packet }))
            }
            HcaEvent::Receive(arrived)
                if arrived.packet().is_referring()
                    && hca == self.way.to
                    && arrived.port == self.way.to_port =>
            {
                let port = arrived.port;
                self.keep(Stage::Receive, key, arrived.into())
                    .map_err(|packet| HcaEvent::Receive(Arrived::checked(port, packet)))
            }
            event => Err(event),
        }
    }

    pub(super) fn own(&self, event: HcaEvent) -> Event {
        let [epoch, _] = self.epochs;
        Event::Hca { hca: self.from, function: FunctionId::FIRST, epoch, event }
    }

    /// The sender's turn.
    #[inline]
    pub(super) fn own_turn(&self) -> HcaEvent {
        HcaEvent::turn(self.half, self.qpn)
    }

    /// What the turns of the sender and of its port are to the heap.
    fn turns(&self) -> [Event; 2] {
        [self.own_turn(), HcaEvent::PortTurn(self.way.from_port)].map(|turn| self.own(turn))
    }

    /// What the departure of a packet, its arrival, and its reception are to the heap.
    pub(super) fn departure(&self, packet: Packet) -> Event {
        self.own(HcaEvent::Depart(self.departing(packet)))
    }

    pub(super) fn arrival(&self, packet: Packet) -> Event {
        let ingress = self.ingress(packet.lane(), packet.len());
        Event::Arrive { hca: self.way.to, port: self.way.to_port, packet, ingress }
    }

    pub(super) fn reception(&self, packet: Packet) -> Event {
        let [_, epoch] = self.epochs;
        let event = HcaEvent::Receive(Arrived::checked(self.way.to_port, packet));
        Event::Hca { hca: self.way.to, function: FunctionId::FIRST, epoch, event }
    }

    pub(super) fn departing(&self, packet: Packet) -> Departing {
        let (operation, reserved) = (packet.repr().operation, packet.len() as u32);
        Departing { port: self.way.from_port, operation, reserved, own: false, packet }
    }

    /// What a packet of `len` bytes that left by that lane occupies of the receiver's input buffer.
    pub(super) fn ingress(&self, lane: u8, len: usize) -> Ingress {
        let Way { link, ends: [_, end], session, credits, .. } = self.way;
        let blocks = blocks(len) as u8;
        Ingress::Link { number: link as u32, end: end as u16, session, lane, blocks, owed: credits }
    }

    /// Whether packets are under way.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.iter().all(VecDeque::is_empty)
    }

    /// Whether an event may let the sender's driver have its memory back, or change what the packets are.
    pub(super) fn is_cut_by(&self, event: &Event) -> bool {
        match event {
            Event::Hca { hca, event, .. } if *hca == self.from => match event {
                HcaEvent::Command(_)
                | HcaEvent::CommandDone(_)
                | HcaEvent::AgentPoll(_)
                | HcaEvent::LinkUp(_)
                | HcaEvent::DynamicIdle(_)
                | HcaEvent::DynamicDrain(..)
                | HcaEvent::DynamicFault(..) => true,
                HcaEvent::AckTimeout(qpn) | HcaEvent::ErrorPoll(qpn) | HcaEvent::RnrTimeout(qpn, _) => {
                    *qpn == self.qpn
                }
                HcaEvent::Receive(arrived) => self.is_cut_by_packet(arrived.repr()),
                _ => false,
            },
            Event::Light { number, .. } | Event::Trained { number, .. } => *number == self.way.link,
            Event::Sweep | Event::Program(_) => true,
            _ => false,
        }
    }

    /// The same for a packet that the sender receives. Of its peer, that packets were received cuts nothing; nor do further reads and
    /// what comes of its own, if it is responses that are sent.
    pub(super) fn is_cut_by_packet(&self, repr: &Repr) -> bool {
        match repr.dest_qp {
            Qpn(0 | 1) => true,
            // It takes a key out of use.
            _ if repr.ieth.is_some() => true,
            to if to != self.qpn => false,
            _ => {
                let positive = repr.aeth.is_none_or(|aeth| matches!(Verdict::of(aeth), Verdict::Ack));
                !positive
                    || match self.half {
                        Half::Requester => repr.operation != Operation::Acknowledge,
                        Half::Responder => {
                            repr.operation != Operation::ReadRequest && !repr.operation.is_response()
                        }
                    }
            }
        }
    }
}

impl World {
    /// How many trains there were so far.
    pub const fn trains_begun(&self) -> u64 {
        self.trains_begun
    }

    /// The packets under way from or to an adapter have their payload's bytes themselves from now on. Called before its
    /// host takes memory away from it, or it may not read it any more.
    pub fn fetch_payloads(&mut self, hca: HcaId) {
        self.rouse();
        while let Some(i) = self.trains.iter().position(|train| hca == train.from || hca == train.way.to) {
            let train = self.trains.swap_remove(i);
            self.cut(train);
        }
        self.fetch_leaving();
    }

    /// The same of all adapters.
    pub(super) fn settle_all(&mut self) {
        self.rouse();
        while let Some(train) = self.trains.pop() {
            self.cut(train);
        }
    }

    /// Packets get their payload's bytes, and their events go to the heap.
    #[cold]
    fn cut(&mut self, mut train: Box<Train>) {
        if let Some(hca) = self.hcas.get_mut(train.from.0) {
            hca.chip.ports.fetch_payload();
            hca.end_run(train.qpn);
        }
        if train.way.leads_out() {
            self.fetch_leaving();
        }
        for (key, turn) in train.first.into_iter().zip(train.turns()) {
            if key != Key::NEVER {
                self.heap.push_reserved(key, turn);
            }
        }
        let events: [fn(&Train, Packet) -> Event; PACKETS] =
            [Train::departure, Train::arrival, Train::reception];
        for (queue, event) in std::mem::take(&mut train.packets).into_iter().zip(events) {
            for (key, mut packet) in queue {
                packet.fetch_payload();
                self.heap.push_reserved(key, event(&train, packet));
            }
        }
    }

    /// An adapter has begun to send packets that are alike: they are a train.
    #[cold]
    pub(super) fn begin_train(&mut self, from: HcaId, (qpn, half): (Qpn, Half)) {
        if self.trains.iter().any(|train| train.from == from) {
            return;
        }
        let epoch = |id: HcaId| self.function(id.into()).map_or(0, |function| function.epoch);
        let qp = self.function(from.into()).and_then(|function| function.qps.get(qpn.0));
        let (port, peer) = qp.map_or((0, Qpn(0)), |qp| (qp.port(), qp.params.remote_qpn));
        let keys = self.key_changes(from);
        // What is read may be what is written, and the other way round: of that connection's packets, those the other way are none of a train.
        let meets = |train: &Train| train.way.to == from && train.qpn == peer && train.half != half;
        match self.plain_way(from, port).filter(|_| !self.trains.iter().any(|train| meets(train))) {
            Some(way) if self.trains.len() < MOST && self.heap.can_reserve(SEQUENCES) => {
                let epochs = [epoch(from), epoch(way.to)];
                self.trains.push(Box::new(Train::new(from, (qpn, half), way, epochs, keys)));
                self.trains_begun += 1;
            }
            // Nobody keeps its packets.
            _ => {
                if let Some(hca) = self.hcas.get_mut(from.0) {
                    hca.chip.out.fetch_payload();
                    hca.end_run(qpn);
                }
            }
        }
    }

    /// Takes the events that an adapter left in its outbox.
    #[inline(never)]
    pub(super) fn collect_with_trains(&mut self, id: HcaId, function: FunctionId) {
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let (epoch, now) = (hca.function(function).map_or(0, |f| f.epoch), self.now);
        let mut events = std::mem::take(&mut hca.chip.out.events);
        for (at, event) in events.drain(..) {
            self.push_with_trains(at.max(now), (id, function), epoch, event);
        }
        if let Some(hca) = self.hcas.get_mut(id.0) {
            hca.chip.out.events = events;
        }
    }

    /// Adds an event of an adapter where it belongs: to a train, or to the heap.
    fn push_with_trains(
        &mut self,
        at: Ps,
        (hca, function): (HcaId, FunctionId),
        epoch: u32,
        event: HcaEvent,
    ) {
        let key = self.heap.reserve(at, Class::Node.at(hca, 0));
        let mut event = event;
        for train in &mut self.trains {
            match train.keep_event(key, hca, event) {
                Ok(()) => return,
                Err(back) => event = back,
            }
        }
        self.heap.push_reserved(key, Event::Hca { hca, function, epoch, event });
    }

    /// The same for a packet that arrives at an adapter.
    pub(super) fn push_arrival(
        &mut self,
        at: Ps,
        port: PortRef,
        hca: HcaId,
        packet: Packet,
        ingress: Ingress,
    ) {
        let key = self.heap.reserve(at, self.source(Class::Packet, port));
        let mut packet = packet;
        if packet.is_referring() {
            let there = |train: &&mut Box<Train>| train.way.to == hca && train.way.to_port == port.port;
            for train in self.trains.iter_mut().filter(there) {
                match train.keep(Stage::Arrive, key, packet) {
                    Ok(()) => return,
                    Err(back) => packet = back,
                }
            }
        }
        self.heap.push_reserved(key, Event::Arrive { hca, port: port.port, packet, ingress });
    }

    /// What [`World::run`] does, as long as there are trains. Returns whether there are none left; `until` moves on.
    #[inline(never)]
    pub(super) fn run_with_trains(&mut self, until: &mut Ps, pace: &mut impl Pace) -> bool {
        loop {
            let nexts = self.trains.iter().enumerate().map(|(i, train)| (train.next().0, i));
            let own = nexts.min().filter(|(key, _)| *key != Key::NEVER);
            let own = own.filter(|(key, _)| self.heap.next_key().is_none_or(|next| *key < next));
            let own = own.or_else(|| self.flow_beside_next());
            let Some(at) = own.map(|(key, _)| key).or(self.heap.next_key()).map(|key| key.at()) else {
                self.now = self.now.max(*until);
                pace.more(self);
                return false;
            };
            if at > *until {
                self.now = self.now.max(*until);
                if !pace.more(self) {
                    return false;
                }
                *until = at;
            }
            match own {
                Some((_, i)) => {
                    if !self.run_train(i, until, pace) {
                        return false;
                    }
                }
                None => {
                    self.rouse();
                    let Some((at, event)) = self.heap.pop_until(*until) else { return false };
                    self.cut_by(&event);
                    self.execute(at, event);
                    if !pace.may(self) {
                        self.follow_trains();
                        return false;
                    }
                }
            }
            self.follow_trains();
            if self.trains.is_empty() {
                return true;
            }
        }
    }

    /// Runs the events of a train until something else comes before them. Returns whether there is to be more.
    #[inline]
    fn run_train(&mut self, i: usize, until: &mut Ps, pace: &mut impl Pace) -> bool {
        let mut train = self.trains.swap_remove(i);
        // Since it ran last, anything may have happened.
        train.known = None;
        let mut flow = self.resume(&train);
        let goes_on = loop {
            let others = self.trains.iter().map(|train| train.next().0).min().unwrap_or(Key::NEVER);
            let (stage, rest) = match flow.as_deref_mut() {
                Some(flowing) => match self.step_flow(&mut train, flowing, others, until, pace) {
                    Ended::Before => break true,
                    Ended::Enough => {
                        self.suspend(&mut train, flow);
                        self.trains.push(train);
                        return false;
                    }
                    Ended::Stopped => break false,
                    Ended::Asks => match pace.may(self) {
                        true => continue,
                        false => break false,
                    },
                    Ended::Rest(rest) => (Stage::Port, Some(rest)),
                    Ended::Back(stage) => (stage, None),
                },
                None => {
                    let (key, stage) = train.next();
                    if key >= others || self.heap.next_key().is_some_and(|next| next < key) {
                        break true;
                    }
                    if key.at() > *until {
                        self.now = self.now.max(*until);
                        // Who is asked sees when its next event is.
                        self.trains.push(train);
                        let goes_on = pace.more(self);
                        let Some(back) = self.trains.pop() else { return goes_on };
                        train = back;
                        if !goes_on {
                            self.trains.push(train);
                            return false;
                        }
                        *until = key.at();
                    }
                    self.heap.pass(key.at());
                    self.now = self.now.max(key.at());
                    (stage, None)
                }
            };
            if let Some(flow) = flow.take() {
                self.end_flow(&mut train, flow);
            }
            let alone = match rest {
                Some(rest) => self.finish(&mut train, rest),
                None => self.step(&mut train, stage),
            };
            if !pace.may(self) {
                break false;
            }
            if !alone {
                break true;
            }
            if stage == Stage::Receive {
                flow = self.try_flow(&mut train);
            }
        };
        // Nothing has happened but that it went on.
        self.suspend(&mut train, flow);
        self.trains.push(train);
        if !goes_on {
            self.follow_trains();
        }
        goes_on
    }

    #[cold]
    pub(super) fn collect_beside(&mut self, train: &mut Box<Train>) {
        let id = train.from;
        let sender = (train.qpn, train.half);
        let apart = Box::new(Train::new(id, sender, train.way, train.epochs, train.keys));
        self.trains.push(std::mem::replace(train, apart));
        self.collect(id, FunctionId::FIRST);
        if let Some(i) = self.trains.iter().position(|train| train.from == id) {
            *train = self.trains.swap_remove(i);
        }
    }

    /// Cuts the trains that an event which is about to happen cuts.
    fn cut_by(&mut self, event: &Event) {
        while let Some(i) = self
            .trains
            .iter()
            .position(|train| train.is_cut_by(event) || self.is_acknowledged_early(train, event))
        {
            let train = self.trains.swap_remove(i);
            self.cut(train);
        }
    }

    /// Whether the sender of a train hears that its peer has received a packet whose payload is in the sender's memory yet. None that keeps to
    /// the rules says so, but anybody may: what is complete then is to be what it was, whenever its packets leave.
    fn is_acknowledged_early(&self, train: &Train, event: &Event) -> bool {
        let Event::Hca { hca, event: HcaEvent::Receive(arrived), .. } = event else { return false };
        let repr = arrived.repr();
        if *hca != train.from || repr.dest_qp != train.qpn || train.half != Half::Requester {
            return false;
        }
        let told = |packet: &Packet| packet.is_referring() && repr.psn.since(packet.repr().psn) >= 0;
        let mut staged = train.packets.iter().filter_map(VecDeque::front);
        if staged.any(|(_, packet)| told(packet)) {
            return true;
        }
        let out = self.hcas.get(hca.0).and_then(|hca| hca.chip.ports.get(train.way.from_port));
        if out.and_then(|out| out.outlet.first(Packet::is_referring)).is_some_and(told) {
            return true;
        }
        // Of what left by its link and was not taken yet the first is the oldest. Other trains have links of their own.
        let Way { link, ends: [_, far], .. } = train.way;
        let mut left = self.tunnel_events.values().filter_map(|event| match &event.message {
            LinkMessage::Packet(LinkPacket { packet, .. })
                if packet.is_referring() && self.find_tunnel(event.tunnel) == Some((link, far)) =>
            {
                Some(packet)
            }
            _ => None,
        });
        self.left_referring > 0 && left.next().is_some_and(told)
    }

    /// After an event: a train that is through is none any more, and one whose queue pair failed is cut.
    fn follow_trains(&mut self) {
        while let Some(i) = self.trains.iter().position(|train| !self.goes_on(train)) {
            if self.flow.is_some() {
                self.rouse();
                continue;
            }
            let train = self.trains.swap_remove(i);
            self.cut(train);
        }
    }

    fn goes_on(&self, train: &Train) -> bool {
        let Some(hca) = self.hcas.get(train.from.0) else { return false };
        let Some(function) = hca.functions.first() else { return false };
        function.qps.get(train.qpn.0).is_some_and(|qp| {
            let out = hca.chip.ports.get(train.way.from_port);
            let waits = || out.is_some_and(|out| out.outlet.first(Packet::is_referring).is_some());
            qp.may_send_runs(train.half)
                && function.state.key_changes == train.keys
                && (qp.run.is_some()
                    || !train.is_empty()
                    || waits()
                    || self.keeps_flow_of(train)
                    || (train.way.leads_out() && self.left_referring > 0))
        })
    }

    fn key_changes(&self, hca: HcaId) -> u64 {
        self.function(hca.into()).map_or(0, |function| function.state.key_changes)
    }
}
