//! Rounds of a flow: from one packet's departure to the next, one packet joins those that wait, one arrives, and one is received. Where
//! packets arrive and are received in steps of a round, so do those that follow them, and of many rounds only those times are to be looked at
//! that are no multiples: when a packet that was made comes to its port.

use std::collections::VecDeque;

use super::regular::{Hands, Progress, first_of};
use super::{Flow, PutOff, Times, place_at};
use crate::ground::time::{EventHeap, Key, Ps, Source};
use crate::units::Receives;
use crate::world::pace::Unasked;
use crate::world::{Class, Event};

/// When the first is due after `from`, if that is within a round and the others follow it in steps of one.
fn phase(times: &VecDeque<Key>, from: Ps, round: Ps) -> Option<Ps> {
    let first = times.front()?.at();
    let steps = times.iter().zip(times.iter().skip(1)).all(|(one, next)| next.at() == one.at() + round);
    (steps && first > from && first < from + round).then(|| first - from)
}

/// So many rounds later: the first of them are over, and as many follow the last.
fn turn(times: &mut VecDeque<Key>, rounds: u64, round: Ps, heap: &mut EventHeap<Event>, source: Source) {
    let Some(last) = times.back().map(|key| key.at()) else { return };
    let over = rounds.min(times.len() as u64);
    times.drain(..over as usize);
    for i in rounds - over..rounds {
        times.push_back(heap.reserve(last + round.times(i + 1), source));
    }
}

impl Flow {
    /// Lets whole rounds pass, before `before`, where a packet has left just now and the port looks next at `port`.
    pub(super) fn go_round(
        &mut self,
        hands: &mut Hands<'_, '_>,
        progress: &mut Progress<'_>,
        (before, unasked): (Ps, Unasked),
        port: &mut Key,
        series: &mut Receives,
    ) {
        let Hands { from, way, sender, receiver, carrier, near, intake, heap, room, may_put_off, .. } = hands;
        let (peer, reads) = (hands.peer, hands.reads);
        let Self { out, times: Times { departs, arrives, receives }, next, sample, payload, places, .. } =
            self;
        let begun = *progress.now;
        let round = port.at() - begun;
        let (Some(arrival), Some(reception)) = (phase(arrives, begun, round), phase(receives, begun, round))
        else {
            return;
        };
        let (first, known) = (begun + arrival, receives.back().map_or(Ps::ZERO, |key| key.at()));
        let regular = arrives.len() > 1
            && arrival != reception
            && receiver.receives_regularly(series, first, round) == Some(known + round)
            && sender.has_regular_credits(out, begun, known + way.back);
        if !regular {
            return;
        }
        let own = Class::Node.at(*from, 0);
        let (len, lane) = (sample.len(), out.lane());
        // Whether each event is a moment of its own for which the owner might be asked.
        let counts = *progress.until <= begun;
        let before = if counts { before } else { before.min(*progress.until) };
        let most = sender.left().min(may_put_off.saturating_sub(progress.put_off.count));
        let (mut rounds, mut joined) = (0, 0);
        while rounds < most {
            let at = port.at();
            let joins = first_of(departs).at();
            let second = departs.get(1).map_or(Ps::MAX, |key| key.at());
            let is_one = joins < at;
            let events = 3 + u32::from(is_one);
            let phase = joins.since(at - round);
            if at >= before
                || joins == at
                || second <= at
                || is_one && (phase == arrival || phase == reception || phase == Ps::ZERO)
                || out.waiting() + usize::from(is_one) < 2
                || counts && progress.moments + events > unasked.moments
                || progress.events + events > unasked.events
                || !way.credits && !near.counts_for_itself()
            {
                break;
            }
            let place = match reads {
                true => {
                    let psn = next.add(receives.len() as u32 + rounds);
                    match place_at(places, receiver, (peer, psn), *payload) {
                        Some(place) if series.key() == Some(place.key) && receiver.knows(&place) => {
                            Some(place)
                        }
                        _ => break,
                    }
                }
                false => None,
            };
            let comes = first + round.times(rounds.into());
            if !intake.is_none_or(|intake| intake.take_quietly(comes, near, lane, *room as u8)) {
                break;
            }
            let Some(departs_at) = sender.make_ahead(at, rounds) else {
                if intake.is_some() {
                    near.release(lane, *room as u8);
                }
                break;
            };
            if let Some(place) = place {
                receiver.look_up(&place);
            }
            out.turn_over(is_one.then_some(joins));
            if is_one {
                departs.pop_front();
                joined += 1;
            }
            *port = heap.reserve(at + round, own);
            departs.push_back(heap.reserve(departs_at.max(at), own));
            if !way.credits {
                near.release_at(known + round.times(u64::from(rounds) + 1), lane, *room as u8);
            }
            carrier.pass(at, way.ends[0], len);
            *progress.now = at;
            progress.events += events;
            if counts {
                (*progress.until, progress.moments) = (at, progress.moments + events);
            }
            rounds += 1;
        }
        if rounds == 0 {
            return;
        }
        let count = rounds as usize;
        sender.made_ahead(*progress.now, out, [count, joined]);
        receiver.receive_all((way.to_port, len, sample.lane()), series, (first, round), count);
        let at_port = Class::Packet.at(way.to, way.to_port);
        let received = first_of(receives).at() + round.times(u64::from(rounds) - 1);
        turn(arrives, rounds.into(), round, heap, at_port);
        turn(receives, rounds.into(), round, heap, Class::Node.at(way.to, 0));
        *next = next.add(rounds);
        *progress.put_off = PutOff { count: progress.put_off.count + rounds, last: received };
    }
}
