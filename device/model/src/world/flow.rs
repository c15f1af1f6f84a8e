//! A train in full flow: all its packets are of one run, nobody else wants to send or waits, and the receiver takes one like the
//! other. Then no packets are made: of each, only the times of its stages are kept, in the same order and with the same places as
//! those of packets. Before anything else happens the packets are there again; while the world's owner has his turn and lets nothing
//! happen but that the time goes on, the flow stays as it is. It goes on over the ends of messages ([`apart`]).

mod apart;
mod ends;
mod regular;
mod rounds;

use std::collections::VecDeque;

use hca_firmware::FunctionId;
use hca_spec::ids::{Psn, Qpn};

use apart::{Apart, run_at};
use regular::{Hands, Progress};

use super::pace::Pace;
use super::stages::{Stage, earlier};
use super::train::Train;
use super::{Class, Event, World};
use crate::adapter::Executor;
use crate::adapter::outflow::{Flown, Outflow, Rest};
use crate::adapter::state::event::HcaEvent;
use crate::engines::qp::landing::Places;
use crate::engines::qp::run::{Half, Run};
use crate::ground::node::{HcaId, PortRef};
use crate::ground::time::{EventHeap, Key, Ps};
use crate::ground::timing::Place;
use crate::link_layer::{Packet, blocks};

/// So many packets are written at once at the most, whose events were one by one: 256 KiB, however often the owner was asked between them. In
/// host time it is that copy, 25 us at 10 GiB a second; where each page of it is the first that anybody touches of a huge page, as many pages are made.
const PUT_OFF: u32 = 64;
/// The times of a train in full flow. When the first event of each stage is, the train knows.
pub(super) struct Flow {
    out: Outflow,
    times: Times,
    /// PSN that the receiver expects.
    next: Psn,
    /// Any packet of it.
    sample: Packet,
    /// Bytes of payload.
    payload: usize,
    /// Packets that are like no others.
    apart: Apart,
    /// Runs that the queue pair had before, and of which packets are under way.
    before: VecDeque<Box<Run>>,
    /// Where the payload goes of packets that come next, where that is looked up as they come.
    places: Option<Places>,
    /// Events so far.
    events: u32,
}

/// When packets are at their stages, in order.
struct Times {
    departs: VecDeque<Key>,
    arrives: VecDeque<Key>,
    receives: VecDeque<Key>,
}

/// Packets that have come and are to be written yet: how many, and when the last came.
#[derive(Default)]
struct PutOff {
    count: u32,
    last: Ps,
}

/// A flow whose owner does something else that concerns no packet.
pub(super) struct Suspended {
    /// Where its train begins.
    from: HcaId,
    flow: Box<Flow>,
}

/// Why the events of a flow end.
pub(super) enum Ended {
    /// Something else comes first.
    Before,
    /// The owner wants no more moments.
    Enough,
    /// The owner wants no more events.
    Stopped,
    /// The owner is to be asked whether he wants more events.
    Asks,
    /// The flow is over, and the sender does the rest of the event as ever.
    Rest(Rest),
    /// The flow is over, and the event at that stage is to happen yet.
    Back(Stage),
}

/// What of an event concerns more than the two adapters and the link.
enum Beyond {
    /// The queue pair has its turn, and sends none of the run.
    Turn,
    /// A packet that is like no other is at that stage.
    Apart(Stage),
    /// A packet leaves the receiver's buffer then, for which somebody may wait.
    Freed(Ps),
    /// The receiver has left something in its outbox.
    Collect,
    /// As many packets have come as may be written at once.
    Full,
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

/// Where the payload of the packet with that PSN goes, for that queue pair.
#[inline]
fn place_at(
    places: &mut Option<Places>,
    receiver: &Executor<'_>,
    (qpn, psn): (Qpn, Psn),
    payload: usize,
) -> Option<Place> {
    if let Some(place) = places.as_ref().and_then(|places| places.at(psn)) {
        return Some(place);
    }
    *places = receiver.places(qpn, psn, payload);
    places.as_ref()?.at(psn)
}

/// All that is due up to `until` has happened: whether what is due next, at `at`, is to. Then that is how far the owner wants it.
#[inline]
fn goes_on_to(at: Ps, now: &mut Ps, until: &mut Ps, pace: &mut impl Pace, effects: bool) -> bool {
    *now = (*now).max(*until);
    let goes_on = pace.more_unseen(at, effects);
    if goes_on {
        *until = at;
    }
    goes_on
}

impl Flow {
    /// The queue pair that its packets are for.
    fn peer(&self) -> Qpn {
        self.sample.repr().dest_qp
    }
}

impl World {
    /// Events of a train in full flow, as long as none comes before them; of other trains the first is at `others`.
    pub(super) fn step_flow(
        &mut self,
        train: &mut Train,
        flow: &mut Flow,
        others: Key,
        until: &mut Ps,
        pace: &mut impl Pace,
    ) -> Ended {
        if self.heap.next_key().is_some_and(|next| next < train.next().0) {
            return self.beside(train, flow, others, until, pace);
        }
        loop {
            let beyond = match self.flow_on(train, flow, others, until, pace) {
                Ok(Ended::Before) => return self.beside(train, flow, others, until, pace),
                Ok(ended) => return ended,
                Err(beyond) => beyond,
            };
            match beyond {
                Beyond::Turn => match self.turn_apart(train, flow) {
                    true => return Ended::Asks,
                    false => return Ended::Rest(Rest::None),
                },
                Beyond::Apart(stage) => {
                    let goes_on = match stage {
                        Stage::Arrive => self.arrive_apart(train, flow),
                        _ => self.receive_apart(train, flow),
                    };
                    return match goes_on {
                        Some(true) => Ended::Asks,
                        Some(false) => Ended::Rest(Rest::None),
                        None => Ended::Back(stage),
                    };
                }
                Beyond::Freed(at) => {
                    self.return_credits(train.ingress(flow.out.lane(), flow.sample.len()), at);
                }
                Beyond::Collect => self.collect(train.way.to, FunctionId::FIRST),
                Beyond::Full => continue,
            }
            match pace.may_unseen() {
                Some(true) => {}
                Some(false) => return Ended::Stopped,
                None => return Ended::Asks,
            }
        }
    }

    /// The same with both adapters at hand, until an event concerns more than them.
    fn flow_on(
        &mut self,
        train: &mut Train,
        flow: &mut Flow,
        others: Key,
        until: &mut Ps,
        pace: &mut impl Pace,
    ) -> Result<Ended, Beyond> {
        let mut put_off = PutOff::default();
        let done = self.flow_through(train, flow, others, until, pace, &mut put_off);
        if put_off.count > 0 {
            self.write_put_off(train, flow, &put_off);
        }
        let sender = self.hcas.get_mut(train.from.0).and_then(|hca| hca.executor(FunctionId::FIRST));
        if let Some(mut sender) = sender {
            sender.count_flown(train.qpn, &mut flow.out);
        }
        done
    }

    /// The payload of the last packets that have come is written.
    fn write_put_off(&mut self, train: &Train, flow: &Flow, PutOff { count, last }: &PutOff) {
        let (count, last) = (*count, *last);
        let Ok([from, to]) = self.hcas.get_disjoint_mut([train.from.0, train.way.to.0]) else { return };
        let (Some(sender), Some(mut receiver)) =
            (from.executor(FunctionId::FIRST), to.executor(FunctionId::FIRST))
        else {
            return;
        };
        let first = flow.next.add(count.wrapping_neg());
        let Some(run) = run_at(&flow.before, sender.run_of(train.qpn), first) else { return };
        let payload = run.payloads(first, count);
        receiver.write_put_off(flow.sample.repr(), (flow.next, count, last), payload);
    }

    /// The same; `put_off` counts packets whose payload is to be written yet.
    fn flow_through(
        &mut self,
        train: &mut Train,
        flow: &mut Flow,
        others: Key,
        until: &mut Ps,
        pace: &mut impl Pace,
        put_off: &mut PutOff,
    ) -> Result<Ended, Beyond> {
        let effects = self.has_effects();
        let intake = self.intake(train.way.link, PortRef::of_hca(train.way.to, train.way.to_port));
        let Self { hcas, heap, links, trace, commands, captured, now, .. } = self;
        let (way, qpn, half) = (train.way, train.qpn, train.half);
        let both = hcas.get_disjoint_mut([train.from.0, way.to.0]).ok();
        let both = both.and_then(|[from, to]| {
            let sender = from.executor(FunctionId::FIRST)?.sending((qpn, half), way.from_port)?;
            Some((sender, to.executor(FunctionId::FIRST)?))
        });
        let link = links.get_mut(way.link).and_then(|link| {
            let [_, far] = way.ends;
            Some((&mut link.carrier, link.ends.get_mut(far)?))
        });
        let (Some((mut sender, mut receiver)), Some((carrier, near))) = (both, link) else {
            return Ok(Ended::Before);
        };
        let Flow { out, next, sample, payload, .. } = &*flow;
        let len = sample.len();
        let own = Class::Node.at(train.from, 0);
        let at_port = Class::Packet.at(way.to, way.to_port);
        let there = Class::Node.at(way.to, 0);
        let credits_at = Class::Credit.at(train.from, way.from_port);
        let peer = sample.repr().dest_qp;
        let reads = half == Half::Responder;
        let (lane, room, service) = (out.lane(), blocks(len), receiver.flow_service(sample.repr(), *payload));
        let run = run_at(&flow.before, sender.run(), *next);
        let silent = run.map_or(0, |run| run.silent(*next).min(run.left(*next)).min(PUT_OFF));
        let may_put_off = receiver.may_put_off(sample.repr(), *payload, silent);
        let limit = |heap: &EventHeap<Event>| heap.next_key().map_or(others, |next| next.min(others));
        let mut before = limit(heap);
        // Whether what comes next may be regular.
        let mut regular = may_put_off > 0;
        loop {
            if std::mem::take(&mut regular) && flow.apart.is_empty() && flow.before.is_empty() {
                let mut hands = Hands {
                    from: train.from,
                    way,
                    sender: &mut sender,
                    receiver: &mut receiver,
                    carrier: &mut **carrier,
                    near,
                    intake: intake.as_ref(),
                    heap,
                    peer,
                    reads,
                    service,
                    room,
                    may_put_off,
                };
                let mut progress = Progress { now, until, put_off, moments: 0, events: 0 };
                let unasked = pace.unasked(effects);
                flow.go_on_regularly(train, &mut hands, &mut progress, before.at(), unasked);
                let Progress { moments, events, .. } = progress;
                pace.ran_unasked(moments, events);
                before = limit(heap);
            }
            let Flow { out, times, next, sample, payload, apart, before: runs, places, events } = &mut *flow;
            let Times { departs, arrives, receives } = times;
            let (mut key, mut stage) = train.next_that_moves();
            let bound = key.min(before);
            // Departures that only make a queue longer, and receptions that are put off: nothing comes of them.
            loop {
                let departure = (*train.first_mut(Stage::Depart), Stage::Depart);
                let (first, quiet) = earlier(departure, (*train.first_mut(Stage::Receive), Stage::Receive));
                if first >= bound {
                    break;
                }
                let is_quiet = match quiet {
                    Stage::Depart => sender.only_joins(first.at().max(*now), out),
                    _ => put_off.count < may_put_off && !apart.has(*next),
                };
                if !is_quiet {
                    (key, stage) = (first, quiet);
                    break;
                }
                if first.at() > *until && !goes_on_to(first.at(), now, until, pace, effects) {
                    return Ok(Ended::Enough);
                }
                heap.pass(first.at());
                *now = (*now).max(first.at());
                *events += 1;
                if quiet == Stage::Depart {
                    take(departs, train.first_mut(quiet));
                    let under_way = receives.len() + arrives.len() + out.waiting();
                    let len = apart.len_of(next.add(under_way as u32)).unwrap_or(len);
                    sender.join(*now, out, len);
                } else {
                    take(receives, train.first_mut(quiet));
                    *next = next.next();
                    *put_off = PutOff { count: put_off.count + 1, last: *now };
                }
                match pace.may_unseen() {
                    Some(true) => {}
                    Some(false) => return Ok(Ended::Stopped),
                    None => return Ok(Ended::Asks),
                }
            }
            if key >= before {
                return Ok(Ended::Before);
            }
            if key.at() > *until && !goes_on_to(key.at(), now, until, pace, effects) {
                return Ok(Ended::Enough);
            }
            heap.pass(key.at());
            *now = (*now).max(key.at());
            *events += 1;
            let now = *now;
            match stage {
                Stage::Turn | Stage::Port | Stage::Depart => {
                    match stage {
                        Stage::Depart => take(departs, train.first_mut(Stage::Depart)),
                        _ => *train.first_mut(stage) = Key::NEVER,
                    }
                    let under_way = receives.len() + arrives.len() + out.waiting();
                    let departing = apart.len_of(next.add(under_way as u32)).unwrap_or(len);
                    let mut flown = |flown: Flown| match flown {
                        Flown::Turn(at) => {
                            let key = heap.reserve(at.max(now), own);
                            if !train.keep_turn(Stage::Turn, key) {
                                heap.push_reserved(key, train.own(train.own_turn()));
                            }
                        }
                        Flown::Port(at) => {
                            let key = heap.reserve(at.max(now), own);
                            if !train.keep_turn(Stage::Port, key) {
                                heap.push_reserved(key, train.own(HcaEvent::PortTurn(way.from_port)));
                            }
                        }
                        Flown::Depart(at) => {
                            keep(departs, train.first_mut(Stage::Depart), heap.reserve(at.max(now), own));
                        }
                        Flown::Sent(start, len) => {
                            if let Some(at) = carrier.pass(start, way.ends[0], len) {
                                let key = heap.reserve(at + way.forth, at_port);
                                keep(arrives, train.first_mut(Stage::Arrive), key);
                            }
                        }
                    };
                    let rest = match stage {
                        Stage::Turn => sender.turn(now, out, &mut flown),
                        Stage::Depart => sender.depart(now, out, departing, &mut flown),
                        _ => sender.port(now, out, &mut flown),
                    };
                    sender.hand_over(trace, commands, captured);
                    match rest {
                        Rest::None => {}
                        Rest::Turns => return Err(Beyond::Turn),
                        Rest::Pump => return Ok(Ended::Rest(rest)),
                    }
                    before = limit(heap);
                    regular = may_put_off > 0 && stage == Stage::Port;
                }
                Stage::Arrive if apart.has(next.add(receives.len() as u32)) => {
                    return Err(Beyond::Apart(stage));
                }
                // The receiver's buffer may have no room for it, or its peer is to wait.
                Stage::Arrive
                    if intake.is_some_and(|intake| !intake.take_quietly(now, near, lane, room as u8)) =>
                {
                    return Ok(Ended::Back(stage));
                }
                Stage::Arrive => {
                    take(arrives, train.first_mut(Stage::Arrive));
                    let of = (*payload, len, sample.lane());
                    let psn = next.add(receives.len() as u32);
                    let to = if reads { place_at(places, &receiver, (peer, psn), *payload) } else { None };
                    let at = receiver.flow_arrive(now, way.to_port, (peer, service), of, to, &mut None);
                    if receiver.core.traces() {
                        sample.set_psn(next.add(receives.len() as u32));
                        receiver.core.note_received(now, at, service, sample);
                    }
                    keep(receives, train.first_mut(Stage::Receive), heap.reserve(at, there));
                    let chip = &mut *receiver.core.chip;
                    if let Some(watch) = &mut chip.watch {
                        watch.hand_over(&mut chip.units, trace.as_mut(), commands, captured);
                    }
                    if !way.credits {
                        if at <= now || near.asked.is_waited_for() || !near.counts_for_itself() {
                            return Err(Beyond::Freed(at));
                        }
                        near.release_at(at, lane, room as u8);
                    } else if let Some(at) = sender.credit(out, now, room, at + way.back) {
                        let port = PortRef::of_hca(train.from, way.from_port);
                        heap.push(at, credits_at, Event::Credits { port });
                        before = limit(heap);
                    }
                }
                Stage::Receive if put_off.count > 0 => {
                    // It happens when those before it are written.
                    *events -= 1;
                    return Err(Beyond::Full);
                }
                Stage::Receive => {
                    let psn = *next;
                    let received = !apart.has(psn)
                        && run_at(runs, sender.run(), psn).is_some_and(|run| {
                            let of = (sample.path(), sample.repr());
                            receiver.flow_receive(now, of, (psn, run.asks(psn)), run.payload(psn))
                        });
                    if !received {
                        return Err(Beyond::Apart(stage));
                    }
                    take(receives, train.first_mut(Stage::Receive));
                    *next = psn.next();
                    let chip = &*receiver.core.chip;
                    if !chip.out.is_empty() || chip.watch.as_ref().is_some_and(|watch| watch.has_news()) {
                        return Err(Beyond::Collect);
                    }
                }
            }
            match pace.may_unseen() {
                Some(true) => {}
                Some(false) => return Ok(Ended::Stopped),
                None => return Ok(Ended::Asks),
            }
        }
    }
}
