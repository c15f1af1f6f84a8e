//! What is regular in full flow: each time the link becomes free one packet leaves and one is made, and what else happens until then are
//! packets that join those that wait, that arrive, and that are received to be written later. Of none of these comes anything but more
//! of the same, and what they do to the sender and what they do to the receiver don't depend on each other's order. So they need no
//! places among each other but their times, and the owner is asked for many of them at once ([`Unasked`]).
//!
//! Whatever may be otherwise is left to [`World::flow_through`](super::World), before anything of it has happened.

use std::collections::VecDeque;

use hca_spec::ids::Qpn;

use super::{Flow, PutOff, Times, place_at};
use crate::adapter::Executor;
use crate::adapter::outflow::Sending;
use crate::ground::node::{HcaId, PortRef};
use crate::ground::time::{EventHeap, Key, Ps};
use crate::link::Carrier;
use crate::units::Receives;
use crate::world::links::End;
use crate::world::pace::Unasked;
use crate::world::pause::Intake;
use crate::world::stages::Stage;
use crate::world::track::Way;
use crate::world::train::Train;
use crate::world::{Class, Event};

/// What a flow goes through: looked up once for many of its events.
pub(super) struct Hands<'a, 'b> {
    pub(super) from: HcaId,
    pub(super) way: Way,
    pub(super) sender: &'a mut Sending<'b>,
    pub(super) receiver: &'a mut Executor<'b>,
    pub(super) carrier: &'a mut (dyn Carrier + Send),
    /// The receiver's end of the link, and what it takes in, if there are no credits.
    pub(super) near: &'a mut End,
    pub(super) intake: Option<&'a Intake>,
    pub(super) heap: &'a mut EventHeap<Event>,
    pub(super) peer: Qpn,
    /// It is responses to reads that flow: where their payload goes is looked up.
    pub(super) reads: bool,
    /// How long a packet keeps a unit of the receiver busy.
    pub(super) service: Ps,
    /// What a packet takes of the receiver's buffer.
    pub(super) room: u32,
    /// So many packets may be received to be written later.
    pub(super) may_put_off: u32,
}

/// How far a flow has got.
pub(super) struct Progress<'a> {
    pub(super) now: &'a mut Ps,
    /// All that is due up to then happens.
    pub(super) until: &'a mut Ps,
    /// Packets that were received to be written later.
    pub(super) put_off: &'a mut PutOff,
    /// Moments and events for which the owner was not asked.
    pub(super) moments: u32,
    pub(super) events: u32,
}

#[inline]
pub(super) fn first_of(times: &VecDeque<Key>) -> Key {
    times.front().copied().unwrap_or(Key::NEVER)
}

impl Flow {
    /// Lets happen what is regular and due before that moment.
    pub(super) fn go_on_regularly(
        &mut self,
        train: &mut Train,
        hands: &mut Hands<'_, '_>,
        progress: &mut Progress<'_>,
        before: Ps,
        unasked: Unasked,
    ) {
        let mut port = *train.first_mut(Stage::Port);
        let regular = hands.sender.is_regular(&self.out, *progress.now, port.at())
            && *train.first_mut(Stage::Turn) == Key::NEVER
            && hands.service > Ps::ZERO;
        if !regular {
            return;
        }
        let before = before.min(Ps(unasked.until.max(*progress.until).0.saturating_add(1)));
        hands.sender.begin_series();
        let place = hands.reads.then(|| {
            let psn = self.next.add(self.times.receives.len() as u32);
            place_at(&mut self.places, hands.receiver, (hands.peer, psn), self.payload)
        });
        let key = place.flatten().map(|place| place.key);
        let mut series = hands.receiver.begin_receives(hands.peer, hands.service, (self.payload, key));
        self.regular_events(hands, progress, (before, unasked), &mut port, &mut series);
        hands.sender.end_series();
        hands.receiver.end_receives(series);
        train.set_first(Stage::Port, port);
        let Self { times: Times { departs, arrives, receives }, events, .. } = self;
        train.set_first(Stage::Depart, first_of(departs));
        train.set_first(Stage::Arrive, first_of(arrives));
        train.set_first(Stage::Receive, first_of(receives));
        *events += progress.events;
        hands.heap.pass(*progress.now);
    }

    /// The same, where the port looks next at `port`.
    #[inline]
    fn regular_events(
        &mut self,
        hands: &mut Hands<'_, '_>,
        progress: &mut Progress<'_>,
        (before, unasked): (Ps, Unasked),
        port: &mut Key,
        series: &mut Option<Receives>,
    ) {
        let (from, way) = (hands.from, hands.way);
        let (len, lane) = (self.sample.len(), self.out.lane());
        let own = Class::Node.at(from, 0);
        let at_port = Class::Packet.at(way.to, way.to_port);
        let there = Class::Node.at(way.to, 0);
        let (mut departure, mut arrival) =
            (first_of(&self.times.departs).at(), first_of(&self.times.arrives).at());
        let mut reception = first_of(&self.times.receives).at();
        let mut may_go_round = true;
        while progress.events < unasked.events {
            let Hands {
                sender,
                receiver,
                carrier,
                near,
                intake,
                heap,
                peer,
                reads,
                service,
                room,
                may_put_off,
                ..
            } = &mut *hands;
            let Self { out, times, next, payload, sample, places, .. } = &mut *self;
            let Times { departs, arrives, receives } = times;
            let first = departure.min(arrival).min(reception);
            let at = first.min(port.at());
            let is_new = at > *progress.until;
            // At one moment, the port and a packet that comes to it have an order.
            if at >= before || first == port.at() || is_new && progress.moments >= unasked.moments {
                break;
            }
            let mut ends = false;
            if at < first {
                let Some((then, departs_at)) = sender.relay(at, out) else { break };
                *port = heap.reserve(then, own);
                departs.push_back(heap.reserve(departs_at.max(at), own));
                departure = departure.min(departs_at.max(at));
                if let Some(end) = carrier.pass(at, way.ends[0], len) {
                    arrives.push_back(heap.reserve(end + way.forth, at_port));
                    arrival = arrival.min(end + way.forth);
                }
            } else if at == departure {
                departs.pop_front();
                departure = first_of(departs).at();
                sender.join(at, out, len);
            } else if at == arrival {
                let taken = way.credits
                    || near.counts_for_itself()
                        && intake.is_none_or(|intake| intake.take_quietly(at, near, lane, *room as u8));
                if !taken {
                    break;
                }
                arrives.pop_front();
                arrival = first_of(arrives).at();
                let of = (*payload, len, sample.lane());
                let psn = next.add(receives.len() as u32);
                let to = if *reads { place_at(places, receiver, (*peer, psn), *payload) } else { None };
                let free = receiver.flow_arrive(at, way.to_port, (*peer, *service), of, to, series);
                receives.push_back(heap.reserve(free, there));
                reception = reception.min(free);
                if !way.credits {
                    near.release_at(free, lane, *room as u8);
                } else if let Some(then) = sender.credit(out, at, *room, free + way.back) {
                    let port = PortRef::of_hca(from, way.from_port);
                    let credits = Class::Credit.at(from, way.from_port);
                    heap.push(then, credits, Event::Credits { port });
                    // It may come first.
                    ends = true;
                }
            } else {
                if progress.put_off.count >= *may_put_off {
                    break;
                }
                receives.pop_front();
                reception = first_of(receives).at();
                *next = next.next();
                *progress.put_off = PutOff { count: progress.put_off.count + 1, last: at };
            }
            *progress.now = at;
            if is_new {
                (*progress.until, progress.moments) = (at, progress.moments + 1);
            }
            progress.events += 1;
            if ends {
                break;
            }
            if at < first
                && std::mem::take(&mut may_go_round)
                && let Some(series) = series
            {
                self.go_round(hands, progress, (before, unasked), port, series);
                departure = first_of(&self.times.departs).at();
                (arrival, reception) =
                    (first_of(&self.times.arrives).at(), first_of(&self.times.receives).at());
            }
        }
    }
}
