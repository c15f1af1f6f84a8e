//! A train in full flow: all its packets are of one run, nobody else wants to send or waits, and the receiver takes one like the
//! other. Then no packets are made: of each, only the times of its stages are kept, in the same order and with the same places as
//! those of packets. Before anything else happens the packets are there again; while the world's owner has his turn and lets nothing
//! happen but that the time goes on, the flow stays as it is. On links with credits it goes on over the ends of messages ([`apart`]).

mod apart;
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
use crate::adapter::core::HcaEvent;
use crate::adapter::outflow::{Flown, Outflow, Rest};
use crate::engines::qp::run::Run;
use crate::ground::node::{HcaId, PortRef};
use crate::ground::time::{EventHeap, Key, Ps};
use crate::link_layer::{Packet, Sent, blocks};

/// With fewer packets to be sent a flow is not begun.
const LEAST: u32 = 16;
/// A flow of fewer events was not worth its begin.
const WORTH: u32 = 24;
/// So many packets are written at once at the most.
const PUT_OFF: u32 = 64;
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
    /// When packets began to leave that the receiver may have no room for, and their bytes: they are passed on as packets when the
    /// flow ends.
    left: Vec<(Ps, usize)>,
    /// Packets that are like no others.
    apart: Apart,
    /// Runs that the queue pair had before, and of which packets are under way.
    before: VecDeque<Box<Run>>,
    /// It goes on over the ends of messages.
    over_ends: bool,
    /// Something else has happened that leaves it as it is, if its ends do.
    disturbed: bool,
    /// Events so far.
    events: u32,
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
    /// Packets begin to leave, and the receiver's buffer may have no room: the first then, of so many bytes, others as the flow says.
    Sent((Ps, usize), Rest),
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
        let over_ends = way.credits;
        if run.left(cursor) < LEAST && !(over_ends && sender.has_more(qpn)) {
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
            run.has_made(packet, psn) || over_ends && apart::is_one(packet, (psn, peer))
        };
        let mut psns = (0..).map(|i| next.add(i));
        let mut alike =
            |(_, packet): &(Key, Packet)| psns.next().is_some_and(|psn| belongs(run, packet, psn));
        let there = receives.iter().chain(arrives.iter()).all(&mut alike);
        let mut psns = (0..).map(|i| departing.add(i));
        let here = departs.iter().all(|(_, packet)| psns.next().is_some_and(|psn| belongs(run, packet, psn)));
        if !there || !here {
            return None;
        }
        let (_, payload, _) = run.shape();
        // As it is when the receiver's port has taken it.
        let mut sample = sender.packet_of_run((qpn, way.from_port), cursor, &VecDeque::new(), &mut train.spare)?;
        let taken = receiver.hands_up(way.to_port, &mut sample);
        let takes = match over_ends {
            true => receiver.takes_messages(way.to_port, (&sample, next)),
            false => receiver.takes_plainly(way.to_port, (&sample, next)),
        };
        if !taken || !takes {
            train.give_back(sample);
            return None;
        }
        let mut waited = Vec::new();
        let mut psns = (0..).map(|i| at_port.add(i));
        let belongs =
            |run: &Run, packet: &Packet| psns.next().is_some_and(|psn| belongs(run, packet, psn));
        let out =
            sender.begin_outflow((qpn, way.from_port), count, belongs, |packet| waited.push(packet))?;
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
        let left = Vec::new();
        Some(Box::new(Flow {
            out,
            departs,
            arrives,
            receives,
            next,
            sample,
            payload,
            left,
            apart,
            before: VecDeque::new(),
            over_ends,
            disturbed: false,
            events: 0,
        }))
    }

    /// Its packets are there again.
    pub(super) fn end_flow(&mut self, train: &mut Train, flow: Box<Flow>) {
        let Flow { out, departs, arrives, receives, next, sample, left, mut apart, before, events, .. } = *flow;
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
        let psns = (0..).map(|i| leaving.add(i));
        let left = left.into_iter().zip(psns).filter_map(|((start, _), psn)| {
            let packet = packet_at(psn)?;
            Some(Sent { start, end: start, packet, hold: () })
        });
        let left: Vec<Sent<()>> = left.collect();
        let waiting = (0..out.waiting()).filter_map(|i| packet_at(at_port.add(i as u32))).collect();
        sender.end_outflow(out, (qpn, port), waiting);
        train.spare = spare;
        left.into_iter().for_each(|sent| self.pass(train, sent));
    }

    /// Keeps the flow of a train while its owner has his turn.
    pub(super) fn suspend(&mut self, train: &mut Train, flow: Option<Box<Flow>>) {
        let Some(flow) = flow else { return };
        match self.flow {
            None => self.flow = Some(Suspended { from: train.from, flow }),
            Some(_) => self.end_flow(train, flow),
        }
    }

    /// Takes the flow of a train that was kept; another's is ended.
    #[inline]
    pub(super) fn resume(&mut self, train: &mut Train) -> Option<Box<Flow>> {
        let Suspended { from, mut flow } = self.flow.take()?;
        if from != train.from {
            self.flow = Some(Suspended { from, flow });
            self.rouse();
            return None;
        }
        if std::mem::take(&mut flow.disturbed) && !self.flows_on(train, &mut flow) {
            self.end_flow(train, flow);
            return None;
        }
        Some(flow)
    }

    /// The packets of a flow that was kept are there again. Called before anything happens but that the time goes on.
    #[inline]
    pub(super) fn rouse(&mut self) {
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

    /// Events of a train in full flow, as long as none comes before them; of other trains the first is at `others`.
    pub(super) fn step_flow(
        &mut self,
        train: &mut Train,
        flow: &mut Flow,
        others: Key,
        until: &mut Ps,
        pace: &mut impl Pace,
    ) -> Ended {
        loop {
            let beyond = match self.flow_on(train, flow, others, until, pace) {
                Ok(ended) => return ended,
                Err(beyond) => beyond,
            };
            match beyond {
                Beyond::Sent(first, rest) => {
                    let others = std::mem::take(&mut flow.left);
                    for sent in std::iter::once(first).chain(others) {
                        if !flow.left.is_empty() || !self.pass_flown(train, flow, sent) {
                            flow.left.push(sent);
                        }
                    }
                    let turns = rest == Rest::Turns && flow.over_ends && flow.left.is_empty();
                    if turns && self.turn_apart(train, flow) {
                        return Ended::Asks;
                    }
                    if turns {
                        return Ended::Rest(Rest::None);
                    }
                    if rest != Rest::None || !flow.left.is_empty() {
                        return Ended::Rest(rest);
                    }
                }
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
        let mut put_off = 0;
        let done = self.flow_through(train, flow, others, until, pace, &mut put_off);
        if put_off > 0 {
            self.write_put_off(train, flow, put_off);
        }
        let sender = self.hcas.get_mut(train.from.0).and_then(|hca| hca.executor(FunctionId::FIRST));
        if let Some(mut sender) = sender {
            sender.count_flown(train.qpn, &mut flow.out);
        }
        done
    }

    /// The payload of the last packets that have come is written, so many.
    fn write_put_off(&mut self, train: &Train, flow: &Flow, count: u32) {
        let Ok([from, to]) = self.hcas.get_disjoint_mut([train.from.0, train.way.to.0]) else { return };
        let (Some(sender), Some(mut receiver)) =
            (from.executor(FunctionId::FIRST), to.executor(FunctionId::FIRST))
        else {
            return;
        };
        let first = flow.next.add(count.wrapping_neg());
        let Some(run) = run_at(&flow.before, sender.run_of(train.qpn), first) else { return };
        let payload = run.payloads(first, count);
        receiver.write_put_off(flow.sample.repr().dest_qp, (flow.next, count), payload);
    }

    /// The same; `put_off` counts packets whose payload is to be written yet.
    fn flow_through(
        &mut self,
        train: &mut Train,
        flow: &mut Flow,
        others: Key,
        until: &mut Ps,
        pace: &mut impl Pace,
        put_off: &mut u32,
    ) -> Result<Ended, Beyond> {
        let effects = self.has_effects();
        let intake = self.intake(train.way.link, PortRef::of_hca(train.way.to, train.way.to_port));
        let Self { hcas, heap, links, trace, commands, captured, now, .. } = self;
        let (way, qpn) = (train.way, train.qpn);
        let both = hcas.get_disjoint_mut([train.from.0, way.to.0]).ok();
        let both = both.and_then(|[from, to]| {
            let sender = from.executor(FunctionId::FIRST)?.sending((qpn, way.from_port))?;
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
        let (lane, room, service) = (out.lane(), blocks(len), receiver.flow_service(*payload));
        let run = run_at(&flow.before, sender.run(), *next);
        let silent = run.map_or(0, |run| run.silent(*next).min(run.left(*next)).min(PUT_OFF));
        let may_put_off = receiver.may_put_off(peer, *payload, silent);
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
                    service,
                    room,
                    may_put_off,
                };
                let mut progress = Progress { now, until, put_off, moments: 0, events: 0 };
                let unasked = pace.unasked(effects);
                let done = flow.go_on_regularly(train, &mut hands, &mut progress, before.at(), unasked);
                let Progress { moments, events, .. } = progress;
                pace.ran_unasked(moments, events);
                done?;
                before = limit(heap);
            }
            let Flow {
                out,
                departs,
                arrives,
                receives,
                next,
                sample,
                payload,
                left,
                apart,
                before: runs,
                over_ends,
                events,
                ..
            } = &mut *flow;
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
                    _ => *put_off < may_put_off && !apart.has(*next),
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
                    *put_off += 1;
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
                    // At most one packet leaves at an event, mostly.
                    let mut first = None;
                    let mut flown = |flown: Flown| match flown {
                        Flown::Turn(at) => {
                            let key = heap.reserve(at.max(now), own);
                            if !train.keep_turn(Stage::Turn, key) {
                                heap.push_reserved(key, train.own(HcaEvent::SendTurn(qpn)));
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
                        Flown::Sent(start, len) => match first {
                            None => first = Some((start, len)),
                            Some(_) => left.push((start, len)),
                        },
                    };
                    let rest = match stage {
                        Stage::Turn => sender.turn(now, out, &mut flown),
                        Stage::Depart => sender.depart(now, out, departing, &mut flown),
                        _ => sender.port(now, out, &mut flown),
                    };
                    sender.hand_over(trace, commands, captured);
                    if let Some((start, len)) = first {
                        let mut takes =
                            || intake.is_none_or(|intake| intake.take_quietly(now, near, lane, room as u8));
                        if !left.is_empty() || !takes() {
                            return Err(Beyond::Sent((start, len), rest));
                        }
                        if let Some(at) = carrier.pass(start, way.ends[0], len) {
                            let key = heap.reserve(at + way.forth, at_port);
                            keep(arrives, train.first_mut(Stage::Arrive), key);
                        }
                    }
                    match rest {
                        Rest::None => {}
                        Rest::Turns if *over_ends => return Err(Beyond::Turn),
                        rest => return Ok(Ended::Rest(rest)),
                    }
                    before = limit(heap);
                    regular = may_put_off > 0 && stage == Stage::Port;
                }
                Stage::Arrive if apart.has(next.add(receives.len() as u32)) => {
                    return Err(Beyond::Apart(stage));
                }
                Stage::Arrive => {
                    take(arrives, train.first_mut(Stage::Arrive));
                    let of = (*payload, len, lane);
                    let at = receiver.flow_arrive(now, way.to_port, peer, service, of, &mut None);
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
                Stage::Receive if *put_off > 0 => {
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
                    match received {
                        true => {}
                        false if *over_ends => return Err(Beyond::Apart(stage)),
                        false => return Ok(Ended::Back(stage)),
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

    /// A packet of so many bytes begins to leave at `start`. `false`: its receiver has no room for it, and nothing has happened.
    #[inline]
    fn pass_flown(&mut self, train: &mut Train, flow: &mut Flow, (start, len): (Ps, usize)) -> bool {
        let way = train.way;
        let [near, far] = way.ends;
        let port = PortRef::of_hca(way.to, way.to_port);
        if !way.credits && !self.take_in(way.link, far, port, flow.out.lane(), blocks(len) as u8) {
            return false;
        }
        let Some(link) = self.links.get_mut(way.link) else { return true };
        if let Some(at) = link.carrier.pass(start, near, len) {
            let there = Class::Packet.at(way.to, way.to_port);
            let key = self.heap.reserve(at + way.forth, there);
            keep(&mut flow.arrives, train.first_mut(Stage::Arrive), key);
        }
        true
    }
}
