//! The events of a train ([`super::train`]), one after the other: what a packet's stages do at its sender, on the link and at its
//! receiver.

use hca_firmware::FunctionId;
use hca_firmware::port::Port;
use hca_spec::mad::port_state;

use super::track::Way;
use super::train::Train;
use super::{Class, Event, World};
use crate::adapter::outflow::Rest;
use crate::adapter::running::{Moved, Runner};
use crate::adapter::state::event::{Arrived, HcaEvent};
use crate::adapter::{Executor, Hca};
use crate::ground::node::{HcaId, PortRef};
use crate::ground::time::Key;
use crate::link_layer::{Packet, Sent, blocks};

/// What is next for a packet, or for its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The sender's turn to send.
    Turn,
    /// The port's turn to look at what waits.
    Port,
    /// A packet is made.
    Depart,
    /// It is at the far end of the link.
    Arrive,
    /// It has passed the receiver's pipeline.
    Receive,
}

/// The earlier of two events.
#[inline(always)]
pub(super) fn earlier(one: (Key, Stage), other: (Key, Stage)) -> (Key, Stage) {
    if other.0 < one.0 { other } else { one }
}

impl World {
    /// Of the function that sends trains and receives them.
    #[inline]
    fn executor(&mut self, hca: HcaId) -> Option<Executor<'_>> {
        self.hcas.get_mut(hca.0)?.executor(FunctionId::FIRST)
    }

    /// An event of a train happens. Returns whether the train may go on at once.
    #[inline]
    pub(super) fn step(&mut self, train: &mut Box<Train>, stage: Stage) -> bool {
        match stage {
            Stage::Turn | Stage::Port | Stage::Depart => self.step_send(train, stage),
            Stage::Arrive => {
                let Some(packet) = train.take(stage) else { return false };
                self.step_arrive(train, packet)
            }
            Stage::Receive => {
                let Some(packet) = train.take(stage) else { return false };
                self.step_receive(train, packet)
            }
        }
    }

    /// An event of its sender.
    #[inline]
    fn step_send(&mut self, train: &mut Box<Train>, stage: Stage) -> bool {
        let (from, qpn, half, port) = (train.from, train.qpn, train.half, train.way.from_port);
        let packet = match stage {
            Stage::Depart => train.take(stage),
            _ => {
                train.set_first(stage, Key::NEVER);
                None
            }
        };
        let Self { hcas, heap, now, .. } = self;
        let now = *now;
        let Some(mut sender) = hcas.get_mut(from.0).and_then(|hca| hca.executor(FunctionId::FIRST)) else {
            return false;
        };
        if !sender.runs_plainly((qpn, half), port) {
            match (stage, packet) {
                (Stage::Turn, _) => sender.try_turn(now, train.own_turn()),
                (Stage::Depart, Some(packet)) => sender.depart(now, train.departing(packet)),
                _ => sender.port_turn(now, port),
            }
            return self.send_off(train);
        }
        let mut spare = std::mem::take(&mut train.spare);
        let mut runner = Runner { qpn, half, port, spare: &mut spare };
        let departing = packet.map(|packet| train.departing(packet));
        let mut first = None;
        let mut others: Option<Vec<Sent<()>>> = None;
        let own = Class::Node.at(from, 0);
        let mut moved = |moved: Moved| match moved {
            Moved::Turn(at) => {
                let key = heap.reserve(at.max(now), own);
                if !train.keep_turn(Stage::Turn, key) {
                    heap.push_reserved(key, train.own(train.own_turn()));
                }
            }
            Moved::Port(at) => {
                let key = heap.reserve(at.max(now), own);
                if !train.keep_turn(Stage::Port, key) {
                    heap.push_reserved(key, train.own(HcaEvent::PortTurn(port)));
                }
            }
            Moved::Depart(at, packet) => {
                let key = heap.reserve(at.max(now), own);
                if let Err(packet) = train.keep(Stage::Depart, key, packet) {
                    heap.push_reserved(key, train.departure(packet));
                }
            }
            Moved::Sent(sent) => match first {
                None => first = Some(sent),
                Some(_) => others.get_or_insert_default().push(sent),
            },
        };
        match (stage, departing) {
            (Stage::Turn, _) => sender.run_turn(now, &mut runner, &mut moved),
            (Stage::Depart, Some(departing)) => sender.run_depart(now, departing, &mut runner, &mut moved),
            _ => sender.run_port_turn(now, &mut runner, &mut moved),
        }
        train.spare = spare;
        // At most one packet leaves at an event, mostly.
        if let Some(sent) = first {
            self.pass(train, sent);
        }
        if let Some(others) = others {
            others.into_iter().for_each(|sent| self.pass(train, sent));
        }
        self.send_off(train)
    }

    /// The rest of an event of the sender that had begun in full flow.
    pub(super) fn finish(&mut self, train: &mut Box<Train>, rest: Rest) -> bool {
        let (now, port) = (self.now, train.way.from_port);
        let Some(mut sender) = self.executor(train.from) else { return false };
        sender.finish_flown(now, port, rest);
        self.send_off(train)
    }

    /// A packet of a train has passed its receiver's pipeline.
    #[inline]
    fn step_receive(&mut self, train: &mut Box<Train>, packet: Packet) -> bool {
        let (now, to, to_port) = (self.now, train.way.to, train.way.to_port);
        let Some(mut receiver) = self.executor(to) else { return false };
        if train.knows(&packet) && receiver.receive_alike(now, &packet) {
            train.give_back(packet);
        } else {
            let (region, qpn, next) =
                (packet.region().cloned(), packet.repr().dest_qp, packet.repr().psn.next());
            receiver.handle(now, HcaEvent::Receive(Arrived::checked(to_port, packet)));
            train.known = region.filter(|_| receiver.expects((qpn, train.half), next));
        }
        let chip = receiver.core.chip;
        if !chip.out.is_empty() || chip.watch.as_ref().is_some_and(|watch| watch.has_news()) {
            self.collect(to, FunctionId::FIRST);
        }
        !train.is_empty()
    }

    /// A packet of a train is at its receiver's port.
    #[inline]
    fn step_arrive(&mut self, train: &mut Train, mut packet: Packet) -> bool {
        let (now, Way { to, to_port, link, ends: [_, end], credits, .. }) = (self.now, train.way);
        let ingress = train.ingress(packet.lane(), packet.len());
        let (lane, n) = (packet.lane(), blocks(packet.len()));
        let port = PortRef::of_hca(to, to_port);
        if !credits && !self.take_in(link, end, port, lane, n as u8) {
            packet.retire();
            self.count_overrun(port, lane);
            return true;
        }
        let Some(mut hca) = self.executor(to) else { return false };
        let takes_none = hca.is_backed_up();
        let inactive = |port: &Port| port.state != port_state::ACTIVE;
        let inactive = hca.core.chip.managed.port(to_port).is_none_or(inactive);
        if takes_none || inactive || !hca.hands_up(to_port, &mut packet) {
            packet.fetch_payload();
            self.arrive_in_buffer(now, to, to_port, packet, ingress);
            return false;
        }
        let taken = hca.take_in(now, to_port, packet);
        let watched = hca.core.chip.watch.as_ref().is_some_and(|watch| watch.has_news());
        let free = match taken {
            Ok((at, arrived)) => {
                let key = self.heap.reserve(at, Class::Node.at(to, 0));
                if let Err(packet) = train.keep(Stage::Receive, key, arrived.into()) {
                    self.heap.push_reserved(key, train.reception(packet));
                }
                at
            }
            Err(at) => at,
        };
        if watched {
            self.collect(to, FunctionId::FIRST);
        }
        if !credits {
            self.return_credits(ingress, free);
            return true;
        }
        let Some(sender) = self.hcas.get_mut(train.from.0) else { return false };
        let Way { from_port, back, .. } = train.way;
        let Some(out) = sender.chip.ports.get_mut(from_port) else { return false };
        let waited_for = out.outlet.credit(now, lane, n, free + back);
        if waited_for.is_some() {
            self.await_credits(PortRef::of_hca(train.from, from_port), waited_for);
        }
        true
    }

    /// What the sender of a train left in its outbox.
    #[inline(always)]
    fn send_off(&mut self, train: &mut Box<Train>) -> bool {
        let Self { hcas, trace, commands, captured, .. } = self;
        let Some(hca) = hcas.get_mut(train.from.0) else { return false };
        let chip = &mut hca.chip;
        if let Some(watch) = &mut chip.watch {
            watch.hand_over(&mut chip.units, trace.as_mut(), commands, captured);
        }
        if chip.out.is_empty() {
            return hca.functions.first().is_some_and(|first| first.state.key_changes == train.keys);
        }
        self.send_all_off(train)
    }

    /// The same, if there is something.
    #[inline(never)]
    fn send_all_off(&mut self, train: &mut Box<Train>) -> bool {
        let Self { hcas, heap, now, .. } = self;
        let Some(Hca { chip, functions }) = hcas.get_mut(train.from.0) else { return false };
        let epoch = functions.first().map_or(0, |function| function.epoch);
        let own = Class::Node.at(train.from, 0);
        for (at, event) in chip.out.events.drain(..) {
            let key = heap.reserve(at.max(*now), own);
            if let Err(event) = train.keep_event(key, train.from, event) {
                let function = FunctionId::FIRST;
                heap.push_reserved(key, Event::Hca { hca: train.from, function, epoch, event });
            }
        }
        let alone =
            |(port, sent): &(u8, Sent<()>)| *port == train.way.from_port && sent.packet.is_referring();
        if chip.out.sent.iter().all(alone) {
            // At most one packet leaves at an event, mostly.
            let mut sent = std::mem::take(&mut chip.out.sent);
            sent.drain(..).for_each(|(_, sent)| self.pass(train, sent));
            if let Some(hca) = self.hcas.get_mut(train.from.0) {
                hca.chip.out.sent = sent;
            }
        }
        let Some(hca) = self.hcas.get_mut(train.from.0) else { return false };
        let unchanged = hca.functions.first().is_some_and(|first| first.state.key_changes == train.keys);
        if hca.chip.out.is_empty() {
            return unchanged;
        }
        // Something else than packets of the train.
        self.collect_beside(train);
        false
    }

    /// A packet of a train begins to go over its link.
    #[inline]
    pub(super) fn pass(&mut self, train: &mut Train, Sent { start, packet, .. }: Sent<()>) {
        let Way { to, to_port, link: number, ends: [end, _], forth, .. } = train.way;
        if train.way.leads_out() {
            return self.transmit(start, number, end, packet);
        }
        let Some(link) = self.links.get_mut(number) else { return };
        let Some(there) = link.carrier.pass(start, end, packet.len()) else { return };
        let key = self.heap.reserve(there + forth, Class::Packet.at(to, to_port));
        if let Err(packet) = train.keep(Stage::Arrive, key, packet) {
            self.heap.push_reserved(key, train.arrival(packet));
        }
    }
}
