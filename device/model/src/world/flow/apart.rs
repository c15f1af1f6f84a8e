//! Full flow goes on over the ends of messages: the first and the last packet of each, and whatever else is like no other, are packets
//! among the times of those that are alike, and come where any packet comes. Each of their events is what it is without a flow; so is
//! the turn that makes such a packet, and the reception of one for which the receiver has to look up where it goes.
//!
//! So are a few events beside the flow: an acknowledgement is made, comes back, and completes messages. Behind each of these it is
//! asked whether the flow's ends are as it needs them.

use std::collections::VecDeque;

use hca_firmware::FunctionId;
use hca_spec::ids::{Psn, Qpn};
use hca_spec::wire::Operation;

use super::{Ended, Flow, Suspended, Times, goes_on_to, keep, take};
use crate::adapter::Hca;
use crate::adapter::outflow::Rest;
use crate::adapter::state::event::{Arrived, HcaEvent};
use crate::engines::qp::run::{Half, Run};
use crate::ground::node::PortRef;
use crate::ground::time::{Key, Ps};
use crate::link_layer::{Packet, blocks};
use crate::world::pace::Pace;
use crate::world::stages::Stage;
use crate::world::track::Way;
use crate::world::train::Train;
use crate::world::{Class, Event, World};

/// Packets of a flow that are like no others: a few.
#[derive(Default)]
pub(super) struct Apart(VecDeque<(Psn, Packet)>);

impl From<Vec<Packet>> for Apart {
    fn from(packets: Vec<Packet>) -> Self {
        Self(packets.into_iter().map(|packet| (packet.repr().psn, packet)).collect())
    }
}

impl Apart {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the packet with that PSN is one of them.
    #[inline]
    pub(super) fn has(&self, psn: Psn) -> bool {
        self.0.iter().any(|(of, _)| *of == psn)
    }

    /// The bytes on the link of the packet with that PSN, if it is one of them.
    #[inline]
    pub(super) fn len_of(&self, psn: Psn) -> Option<usize> {
        self.0.iter().find(|(of, _)| *of == psn).map(|(_, packet)| packet.len())
    }

    fn push(&mut self, packet: Packet) {
        self.0.push_back((packet.repr().psn, packet));
    }

    pub(super) fn take(&mut self, psn: Psn) -> Option<Packet> {
        let place = self.0.iter().position(|(of, _)| *of == psn)?;
        self.0.remove(place).map(|(_, packet)| packet)
    }
}

/// Whether a packet may be in a flow although it is none of its run: it has that PSN, and is for the flow's queue pair.
pub(super) fn is_one(packet: &Packet, (psn, peer): (Psn, Qpn)) -> bool {
    let repr = packet.repr();
    packet.is_built() && !packet.is_management() && repr.psn == psn && repr.dest_qp == peer
}

/// The run that a packet is of: one that the queue pair had `before`, or its `own`.
#[inline]
pub(super) fn run_at<'a>(before: &'a VecDeque<Box<Run>>, own: Option<&'a Run>, psn: Psn) -> Option<&'a Run> {
    before.iter().map(|run| &**run).chain(own).find(|run| run.has(psn))
}

impl Flow {
    /// Whether nothing of it is under way.
    pub(super) fn is_over(&self) -> bool {
        let Times { departs, arrives, receives } = &self.times;
        receives.is_empty() && arrives.is_empty() && departs.is_empty() && self.out.is_idle()
    }

    /// PSN of the next packet that its queue pair makes.
    fn cursor(&self) -> Psn {
        let Self { times: Times { departs, arrives, receives }, out, next, .. } = self;
        next.add((receives.len() + arrives.len() + out.waiting() + departs.len()) as u32)
    }
}

impl World {
    /// Whether the flow of that train is kept, and has something under way.
    pub(in crate::world) fn keeps_flow_of(&self, train: &Train) -> bool {
        self.flow.as_ref().is_some_and(|kept| kept.from == train.from && !kept.flow.is_over())
    }

    /// The train whose flow is kept, if what is next on the heap may happen beside that; and when that is.
    #[inline]
    pub(in crate::world) fn flow_beside_next(&self) -> Option<(Key, usize)> {
        let Suspended { from, flow } = self.flow.as_ref()?;
        let (i, train) = self.trains.iter().enumerate().find(|(_, train)| train.from == *from)?;
        let passes = self.heap.peek().is_some_and(|event| train.lets_pass(event, flow));
        passes.then_some((self.heap.next_key()?, i))
    }

    /// What is next on the heap happens beside a flow, if it may, and nothing of `others` is before it.
    pub(super) fn beside(
        &mut self,
        train: &Train,
        flow: &mut Flow,
        others: Key,
        until: &mut Ps,
        pace: &mut impl Pace,
    ) -> Ended {
        let Some(key) = self.heap.next_key().filter(|key| *key < others) else { return Ended::Before };
        if !self.heap.peek().is_some_and(|event| train.lets_pass(event, flow)) {
            return Ended::Before;
        }
        let effects = self.has_effects();
        if key.at() > *until && !goes_on_to(key.at(), &mut self.now, until, pace, effects) {
            return Ended::Enough;
        }
        if let Some((at, event)) = self.heap.pop() {
            self.execute_here(at, event);
        }
        match self.flows_on(train, flow) {
            true => Ended::Asks,
            false => Ended::Rest(Rest::None),
        }
    }

    /// Whether the ends of a flow are as it needs them, behind an event that was none of its own.
    pub(super) fn flows_on(&mut self, train: &Train, flow: &mut Flow) -> bool {
        let Way { to, to_port, from_port, .. } = train.way;
        let Ok([from, to]) = self.hcas.get_disjoint_mut([train.from.0, to.0]) else { return false };
        let (Some(mut sender), Some(receiver)) =
            (from.executor(FunctionId::FIRST), to.executor(FunctionId::FIRST))
        else {
            return false;
        };
        sender.flows_on((train.qpn, from_port), &mut flow.out, train.keys, &flow.sample)
            && receiver.takes_messages(to_port, (&flow.sample, flow.next))
    }

    /// The queue pair of a flow has a turn that makes no packet of its run. `false`: the flow is over, and what came of the turn
    /// is in the outbox.
    pub(super) fn turn_apart(&mut self, train: &mut Train, flow: &mut Flow) -> bool {
        let (qpn, from_port, peer) = (train.qpn, train.way.from_port, flow.peer());
        let Self { hcas, heap, trace, commands, captured, now, .. } = self;
        let mut cursor = flow.cursor();
        let Some(hca) = hcas.get_mut(train.from.0) else { return false };
        let Some(mut sender) = hca.executor(FunctionId::FIRST) else { return false };
        sender.turn_apart(*now, (qpn, &mut flow.out), &mut flow.before);
        let (lane, longest) = (flow.out.lane(), sender.core.longest(from_port));
        let mut fits = |event: &HcaEvent| match event {
            HcaEvent::Depart(departing) => {
                let packet = &departing.packet;
                let fits = departing.port == from_port
                    && !departing.own
                    && departing.reserved as usize == packet.len()
                    && packet.len() <= longest
                    && packet.lane() == lane
                    && is_one(packet, (cursor, peer));
                cursor = cursor.next();
                fits
            }
            _ => true,
        };
        let goes_on = sender.flows_on((qpn, from_port), &mut flow.out, train.keys, &flow.sample)
            && sender.core.chip.out.events.iter().all(|(_, event)| fits(event));
        if !goes_on {
            return false;
        }
        let Hca { chip, functions } = hca;
        if let Some(watch) = &mut chip.watch {
            watch.hand_over(&mut chip.units, trace.as_mut(), commands, captured);
        }
        let Some(function) = functions.first() else { return false };
        let (epoch, own) = (function.epoch, Class::Node.at(train.from, 0));
        let run = function.qps.get(qpn.0).and_then(|qp| qp.run.as_deref());
        for (at, event) in chip.out.events.drain(..) {
            let key = heap.reserve(at.max(*now), own);
            match event {
                HcaEvent::Depart(departing) => {
                    keep(&mut flow.times.departs, train.first_mut(Stage::Depart), key);
                    match run.is_some_and(|run| run.is_of(&departing.packet)) {
                        true => train.give_back(departing.packet),
                        false => flow.apart.push(departing.packet),
                    }
                }
                event => {
                    if let Err(event) = train.keep_event(key, train.from, event) {
                        let function = FunctionId::FIRST;
                        heap.push_reserved(key, Event::Hca { hca: train.from, function, epoch, event });
                    }
                }
            }
        }
        true
    }

    /// A packet that is like no other is at its receiver's port. Returns whether the flow goes on; `None`: it does not, and nothing
    /// has happened.
    pub(super) fn arrive_apart(&mut self, train: &mut Train, flow: &mut Flow) -> Option<bool> {
        let Way { to, to_port, link, ends: [_, end], from_port, back, credits, .. } = train.way;
        let now = self.now;
        let mut packet = flow.apart.take(flow.next.add(flow.times.receives.len() as u32))?;
        let ingress = train.ingress(packet.lane(), packet.len());
        let receiver = self.hcas.get_mut(to.0)?.executor(FunctionId::FIRST)?;
        if !packet.is_built() || receiver.is_backed_up() || !receiver.hands_up(to_port, &mut packet) {
            flow.apart.push(packet);
            return None;
        }
        let room = blocks(packet.len());
        let (port, lane) = (PortRef::of_hca(to, to_port), packet.lane());
        if !credits && !self.takes_quietly((link, end), port, lane, room as u8) {
            flow.apart.push(packet);
            return None;
        }
        take(&mut flow.times.arrives, train.first_mut(Stage::Arrive));
        let mut receiver = self.hcas.get_mut(to.0)?.executor(FunctionId::FIRST)?;
        let Ok((at, arrived)) = receiver.take_in(now, to_port, packet) else {
            tracing::error!("a packet that was built here is not good");
            return Some(false);
        };
        let watched = receiver.core.chip.watch.as_ref().is_some_and(|watch| watch.has_news());
        let key = self.heap.reserve(at, Class::Node.at(to, 0));
        keep(&mut flow.times.receives, train.first_mut(Stage::Receive), key);
        flow.apart.push(arrived.into());
        if watched {
            self.collect(to, FunctionId::FIRST);
        }
        if !credits {
            self.return_credits(ingress, at);
            return Some(true);
        }
        let out = self.hcas.get_mut(train.from.0)?.chip.ports.get_mut(from_port)?;
        let waited_for = out.outlet.credit_lifted(now, flow.out.lifted(), room, at + back);
        self.await_credits(PortRef::of_hca(train.from, from_port), waited_for);
        Some(true)
    }

    /// A packet has passed its receiver's pipeline that is like no other, or that is not received like the one before it. Returns
    /// whether the flow goes on; `None`: it does not, and nothing has happened.
    pub(super) fn receive_apart(&mut self, train: &mut Train, flow: &mut Flow) -> Option<bool> {
        let (now, Way { to, to_port, from_port, .. }) = (self.now, train.way);
        let psn = flow.next;
        let packet = match flow.apart.take(psn) {
            Some(packet) => packet,
            None => {
                let mut sender = self.hcas.get_mut(train.from.0)?.executor(FunctionId::FIRST)?;
                sender.packet_of_run((train.qpn, from_port), psn, &flow.before, &mut train.spare)?
            }
        };
        take(&mut flow.times.receives, train.first_mut(Stage::Receive));
        flow.next = psn.next();
        while flow.before.pop_front_if(|run| run.left(flow.next) == 0).is_some() {}
        let mut receiver = self.hcas.get_mut(to.0)?.executor(FunctionId::FIRST)?;
        receiver.handle(now, HcaEvent::Receive(Arrived::checked(to_port, packet)));
        let chip = receiver.core.chip;
        if !chip.out.is_empty() || chip.watch.as_ref().is_some_and(|watch| watch.has_news()) {
            self.collect(to, FunctionId::FIRST);
        }
        Some(self.flows_on(train, flow))
    }
}

impl Train {
    /// Whether an event of the heap changes nothing of its flow but what is asked for behind it: an acknowledgement is made, leaves, comes
    /// back, and is received, of packets that have come; or a further read, if it is responses that flow.
    fn lets_pass(&self, event: &Event, flow: &Flow) -> bool {
        let peer = flow.peer();
        let Way { to, to_port, from_port, .. } = self.way;
        let (turns, operation) = match self.half {
            Half::Requester => (Half::Responder, Operation::Acknowledge),
            Half::Responder => (Half::Requester, Operation::ReadRequest),
        };
        let goes_back = |packet: &Packet, qpn: Qpn| {
            let repr = packet.repr();
            packet.is_built() && repr.operation == operation && repr.dest_qp == qpn
        };
        match event {
            Event::Hca { hca, function: FunctionId::FIRST, event, .. } if *hca == to => match event {
                HcaEvent::Depart(departing) => {
                    departing.port == to_port && goes_back(&departing.packet, self.qpn)
                }
                turn => turn.is_turn(turns, peer),
            },
            Event::Hca { hca, function: FunctionId::FIRST, event: HcaEvent::Receive(arrived), .. }
                if *hca == self.from =>
            {
                arrived.port == from_port
                    && goes_back(arrived.packet(), self.qpn)
                    && !self.is_cut_by_packet(arrived.repr())
                    && (self.half == Half::Responder || arrived.repr().psn.since(flow.next) < 0)
            }
            Event::Arrive { hca, port, packet, .. } if *hca == self.from => {
                *port == from_port && goes_back(packet, self.qpn)
            }
            _ => false,
        }
    }
}
