//! A run in full flow, as its sender carries it out: no packets are made, of each only the times are kept. Units, counters and what is
//! told of them are those of packets. The queue pair and its port are an [`Outflow`]; the receiver's side is [`super::inflow`].

use std::collections::VecDeque;

use hca_spec::ids::{Psn, Qpn};

use hca_firmware::Port;

use super::core::Core;
use super::core::Executor;
use super::ethernet::{Way, count_unicast};
use super::running::book;
use super::state::chip::Chip;
use super::state::event::HcaEvent;
use super::state::ports::{PortOut, count_waits};
use super::state::watch::{Captured, Executed, Watch};
use crate::engines::qp::run::{Half, Run};
use crate::engines::qp::{PortLane, QueuePair};
use crate::ground::ring::Trace;
use crate::ground::time::Ps;
use crate::ground::timing::Place;
use crate::link_layer::{Leaving, Lifted, Packet, Path};
use crate::units::{Sends, Units};

/// What a queue pair and its port have to do with a run while nothing comes between: what waits at the port is taken out, and
/// only times are kept.
#[derive(Debug)]
pub(crate) struct Outflow {
    /// Which packets of the queue pair they are.
    half: Half,
    lane: u8,
    len: usize,
    /// What its packets travel by.
    path: Path,
    lifted: Lifted,
    /// The queue pair waits for room at the port, for a turn that is not due before.
    waits: Option<Ps>,
    /// Packets that were made and are not counted yet.
    built: u32,
}

/// What sends a flow: looked up once for many events of it.
pub(crate) struct Sending<'a> {
    units: &'a mut Units,
    own: &'a mut Port,
    out: &'a mut PortOut,
    qp: &'a mut QueuePair,
    half: Half,
    watch: Option<&'a mut Watch>,
    /// Changes of keys so far.
    keys: u64,
    /// Bytes that may wait at the port.
    limit: usize,
    /// What a packet takes of a unit.
    service: Ps,
    /// Packets that are booked when the series is over.
    series: Option<Sends>,
}

/// What comes of an event of an [`Outflow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flown {
    /// The queue pair has a turn to send then.
    Turn(Ps),
    /// The port looks at what waits then.
    Port(Ps),
    /// A packet is at its port then.
    Depart(Ps),
    /// The first byte of a packet of so many bytes leaves then.
    Sent(Ps, usize),
}

/// Why an event of an [`Outflow`] is not through: what is taken out has to be put back, and the rest of the event done as ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Nothing is left to do.
    None,
    /// To let leave what can, and give turns.
    Pump,
    /// To give turns.
    Turns,
}

impl Outflow {
    /// The lane that its packets leave by.
    #[inline]
    pub(crate) fn lane(&self) -> u8 {
        self.lane
    }

    /// How many packets wait at the port.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.lifted.len()
    }

    /// Those packets.
    #[inline]
    pub(crate) fn lifted(&self) -> &Lifted {
        &self.lifted
    }

    /// Whether neither a packet nor the queue pair waits at the port.
    pub(crate) fn is_idle(&self) -> bool {
        self.lifted.len() == 0 && self.waits.is_none()
    }

    /// One comes to the port then, if any does, and the first of those that wait leaves later.
    #[inline]
    pub(crate) fn turn_over(&mut self, joins: Option<Ps>) {
        self.lifted.turn_over(joins);
    }
}

impl<'a> Executor<'a> {
    /// What sends a flow of that half of that queue pair by that port.
    #[inline]
    pub(crate) fn sending(self, (qpn, half): (Qpn, Half), port: u8) -> Option<Sending<'a>> {
        let Self { core: Core { chip, function, .. }, qps, .. } = self;
        let Chip { units, managed, ports, watch, timing, .. } = chip;
        Some(Sending {
            units,
            own: managed.port_mut(port)?,
            out: ports.get_mut(port)?,
            qp: qps.get_mut(qpn.0)?,
            half,
            watch: watch.as_deref_mut(),
            keys: function.key_changes,
            limit: timing.egress_buffer(),
            service: timing.transmit(),
            series: None,
        })
    }

    /// Counts the packets of a flow that were made.
    pub(crate) fn count_flown(&mut self, qpn: Qpn, flow: &mut Outflow) {
        let built = std::mem::take(&mut flow.built);
        if built > 0 {
            self.core.function.counting.count_made((qpn, flow.half), built, built as usize * flow.len);
        }
    }
}

impl Executor<'_> {
    /// The run of a queue pair.
    #[inline]
    pub(crate) fn run_of(&self, qpn: Qpn) -> Option<&Run> {
        self.qps.get(qpn.0)?.run.as_deref()
    }

    /// PSN of the next packet of that half that a queue pair sends.
    pub(crate) fn cursor_of(&self, (qpn, half): (Qpn, Half)) -> Option<Psn> {
        self.qps.get(qpn.0)?.cursor(half)
    }

    /// Begins a flow of the run of a queue pair. So many packets wait at the port, each of which `belongs` to it; `take` takes them.
    pub(crate) fn begin_outflow(
        &mut self,
        (qpn, half): (Qpn, Half),
        port: u8,
        count: usize,
        belongs: impl FnMut(&Run, &Packet) -> bool,
        take: impl FnMut(Packet),
    ) -> Option<Outflow> {
        let Self { core, qps, .. } = self;
        let captures = core.chip.captures();
        let run = qps.get(qpn.0)?.run.as_deref()?;
        let ((_, _, len), path) = (run.shape(), *run.path());
        let (own, out) = (core.chip.managed.port(port)?, core.chip.ports.get_mut(port)?);
        let cursor = qps.get(qpn.0)?.cursor(half)?;
        let mut sample = run.packet(cursor, core.function.key_changes, &mut Vec::new())?.packet;
        let fate = out.outlet.admit(own, &mut sample);
        let keeps = out.outlet.keeps(own, &sample) || fate.own || sample.is_multicast();
        let lane = qps.get(qpn.0)?.lane;
        sample.retire();
        if keeps || !fate.may_leave || !fate.fits || !out.cabled || fate.lane != lane || captures {
            return None;
        }
        let mut belongs = belongs;
        let lifted = out.outlet.lift(lane, (count, len), |packet| belongs(run, packet), take)?;
        Some(Outflow { half, lane, len, path, lifted, waits: out.take_waiting(lane), built: 0 })
    }

    /// Ends it. The packets that wait at the port are these.
    pub(crate) fn end_outflow(&mut self, flow: Outflow, (qpn, port): (Qpn, u8), waiting: Vec<Packet>) {
        let Self { core, .. } = self;
        let Outflow { half, lane, lifted, waits, .. } = flow;
        if let Some(out) = core.chip.ports.get_mut(port) {
            let mut packets = waiting.into_iter();
            out.outlet.lower(lifted, |_| packets.next());
        }
        if let Some(at) = waits {
            core.wait_for_room(at, PortLane { port, lane }, HcaEvent::turn(half, qpn));
        }
    }

    /// A packet of a run of a queue pair, or of one that it had `before`, as it is on the way to the port's far end.
    pub(crate) fn packet_of_run(
        &mut self,
        (qpn, port): (Qpn, u8),
        psn: Psn,
        before: &VecDeque<Box<Run>>,
        spare: &mut Vec<Packet>,
    ) -> Option<Packet> {
        let Self { core, qps, .. } = self;
        let own = qps.get(qpn.0)?.run.as_deref();
        let run = before.iter().map(|run| &**run).chain(own).find(|run| run.has(psn))?;
        let mut packet = run.packet(psn, run.keys(), spare)?.packet;
        core.chip.ports.get(port)?.outlet.choose_lane(core.chip.managed.port(port)?, &mut packet);
        Some(packet)
    }

    /// Whether a queue pair has more to send of that half than the message that it is at.
    pub(crate) fn has_more(&self, (qpn, half): (Qpn, Half)) -> bool {
        self.qps.get(qpn.0).is_some_and(|qp| match half {
            Half::Requester => qp.sq.waiting() > 0,
            Half::Responder => qp.responder.queue.len() > 1,
        })
    }

    /// A turn of the queue pair of a flow whose next packet is none of its run: it is taken as any is. Whose packets are under way
    /// still, the run goes to those it had `before`.
    pub(crate) fn turn_apart(
        &mut self,
        now: Ps,
        (qpn, flow): (Qpn, &mut Outflow),
        before: &mut VecDeque<Box<Run>>,
    ) {
        let keys = self.core.function.key_changes;
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        let cursor = qp.cursor(flow.half);
        before.extend(qp.run.take_if(|run| cursor.is_none_or(|cursor| !run.covers(cursor, keys))));
        flow.waits = None;
        let turn = HcaEvent::turn(flow.half, qpn);
        match self.core.function.outstanding.is_some() {
            true => self.admit(now, turn),
            false => self.take_turn(now, &turn),
        }
    }

    /// Whether a flow goes on behind an event that was none of its own: its queue pair sends, with no other run than one that is like
    /// that of `sample`, and nobody else does.
    pub(crate) fn flows_on(
        &mut self,
        (qpn, port): (Qpn, u8),
        flow: &mut Outflow,
        keys: u64,
        sample: &Packet,
    ) -> bool {
        let Self { core, qps, side, .. } = self;
        let (Some(qp), Some(out)) = (qps.get(qpn.0), core.chip.ports.get_mut(port)) else { return false };
        let goes_on = side.parked.is_empty()
            && qp.may_send_runs(flow.half)
            && core.function.key_changes == keys
            && qp.congestion.is_none()
            && qp.group == 0
            && qp.lane == flow.lane
            && qp.run.as_deref().is_none_or(|run| run.is_like(&flow.path, sample))
            && !core.chip.out.has_others()
            && !core.function.runs.has_begun()
            && !out.outlet.is_waiting()
            && out.is_left_to((qpn, flow.half), flow.lane)
            && (out.waited_for == 0 || flow.waits.is_none());
        if goes_on && out.waited_for != 0 {
            flow.waits = out.take_waiting(flow.lane);
        }
        goes_on
    }

    /// The rest of an event that had begun as one of a flow.
    pub(crate) fn finish_flown(&mut self, now: Ps, port: u8, rest: Rest) {
        if rest == Rest::Pump {
            self.core.pump(now, port);
        }
        if rest != Rest::None {
            self.give_turns(now, port);
        }
    }
}

impl Sending<'_> {
    /// Whether the port has room for one more packet.
    #[inline]
    fn has_room(&self, flow: &Outflow) -> bool {
        self.out.has_room(flow.lane, self.limit)
    }

    /// The run.
    #[inline]
    pub(crate) fn run(&self) -> Option<&Run> {
        self.qp.run.as_deref()
    }

    /// Credits of its lane arrive at its port at `at`. Says when to look at them, if what waits needs them.
    #[inline]
    pub(crate) fn credit(&mut self, flow: &Outflow, now: Ps, n: u32, at: Ps) -> Option<Ps> {
        self.out.outlet.credit_lifted(now, &flow.lifted, n, at)
    }

    /// Hands what was gathered for those who look on to the world.
    #[inline]
    pub(crate) fn hand_over(
        &mut self,
        trace: &mut Option<Trace>,
        commands: &mut Vec<Executed>,
        captured: &mut Vec<Captured>,
    ) {
        if let Some(watch) = &mut self.watch {
            watch.hand_over(self.units, trace.as_mut(), commands, captured);
        }
    }

    /// The queue pair's turn.
    #[inline]
    pub(crate) fn turn(&mut self, now: Ps, flow: &mut Outflow, flown: &mut impl FnMut(Flown)) -> Rest {
        if !self.has_room(flow) {
            flow.waits = Some(now);
            return Rest::None;
        }
        match self.make(now, flow, flown) {
            true => Rest::None,
            false => {
                flow.waits = Some(now);
                Rest::Turns
            }
        }
    }

    /// The port looks at what waits.
    #[inline]
    pub(crate) fn port(&mut self, now: Ps, flow: &mut Outflow, flown: &mut impl FnMut(Flown)) -> Rest {
        self.out.timer = self.out.timer.filter(|timer| *timer > now);
        match self.pump(now, flow, flown) {
            true => self.turns(now, flow, flown),
            false => Rest::Pump,
        }
    }

    /// Whether a packet that comes to the port at `now` only makes the queue longer: the port will look at what waits when the link is
    /// free, and can't do anything before.
    #[inline]
    fn is_behind(&self, now: Ps, flow: &Outflow) -> bool {
        let looks = |until: Ps| self.out.timer.is_some_and(|timer| timer > now && timer <= until);
        self.out.outlet.lifted_until(&flow.lifted, now).is_some_and(looks)
    }

    /// The same, and nothing else comes of it.
    #[inline]
    pub(crate) fn only_joins(&self, now: Ps, flow: &Outflow) -> bool {
        self.is_behind(now, flow) && (flow.waits.is_none() || !self.has_room(flow))
    }

    /// A packet of `len` bytes joins those that wait at the port.
    #[inline]
    pub(crate) fn join(&mut self, now: Ps, flow: &mut Outflow, len: usize) {
        self.own.counters.xmit(len);
        count_unicast(self.own, (len, flow.lane), Way::Out);
        self.out.outlet.push_lifted(&mut flow.lifted, now, len);
    }

    /// A packet of `len` bytes comes to the port.
    #[inline]
    pub(crate) fn depart(
        &mut self,
        now: Ps,
        flow: &mut Outflow,
        len: usize,
        flown: &mut impl FnMut(Flown),
    ) -> Rest {
        let behind = self.is_behind(now, flow);
        self.join(now, flow, len);
        match behind || self.pump(now, flow, flown) {
            true => self.turns(now, flow, flown),
            false => Rest::Pump,
        }
    }

    /// The queue pair has its turn if it waits for one and there is room.
    #[inline]
    fn turns(&mut self, now: Ps, flow: &mut Outflow, flown: &mut impl FnMut(Flown)) -> Rest {
        while let Some(at) = flow.waits {
            if !self.has_room(flow) {
                break;
            }
            flow.waits = None;
            if at > now {
                flown(Flown::Turn(at));
                break;
            }
            if !self.make(now, flow, flown) {
                flow.waits = Some(at);
                return Rest::Turns;
            }
        }
        Rest::None
    }

    /// The next packet of a run is made, and the next turn asked for. `false`: nothing has happened, there is no such packet.
    #[inline(never)]
    fn make(&mut self, now: Ps, flow: &mut Outflow, flown: &mut impl FnMut(Flown)) -> bool {
        let Self { units, qp, keys, half, .. } = self;
        // Who waits for no answer yet begins to.
        let begins = *half == Half::Requester && qp.requester.deadline.is_none();
        let run = qp.run.as_deref().filter(|_| !begins).zip(qp.cursor(*half));
        let planned = run.and_then(|(run, psn)| Some((psn, run.outline(psn, *keys)?)));
        let Some((psn, (index, data))) = planned else { return false };
        *qp.turn(*half) = true;
        // Answers don't give way to what arrives.
        let mut again = now;
        let gives_way = *half == Half::Requester;
        if gives_way {
            again = units.idle_from(now);
            qp.sq.yielded = again > now && !qp.sq.yielded;
        }
        if !(gives_way && qp.sq.yielded) {
            let (free, departs) = self.build(now, flow, psn, data);
            if self.watch.is_some() {
                self.note_made(now, (free, departs), (psn, index), flow.len);
            }
            flown(Flown::Depart(departs));
            again = free;
        }
        match self.has_room(flow) {
            true => flown(Flown::Turn(again)),
            false => flow.waits = Some(again),
        }
        true
    }

    /// A packet is made. Returns when the unit is done with it, and when it comes to its port.
    #[inline(always)]
    fn build(&mut self, now: Ps, flow: &mut Outflow, psn: Psn, data: Place) -> (Ps, Ps) {
        let Self { units, qp, service, half, .. } = self;
        qp.made(*half, psn, 1);
        let booked = book(units, (qp.qpn, *half), now, *service, data);
        self.out.outlet.reserve(flow.lane, flow.len);
        flow.built += 1;
        booked
    }

    /// Whether packets that come to the port only make the queue longer until it looks next, at `looks`; each packet that leaves it lets the
    /// queue pair make one more, and no other; and nobody looks on.
    #[inline]
    pub(crate) fn is_regular(&self, flow: &Outflow, now: Ps, looks: Ps) -> bool {
        self.watch.is_none()
            && self.out.timer == Some(looks)
            && flow.lifted.are_alike()
            && self.out.outlet.lifted_until(&flow.lifted, now) == Some(looks)
            && flow.waits.is_some()
            && !self.has_room(flow)
            && self.out.has_room(flow.lane, self.limit.saturating_add(flow.len))
    }

    /// What the port and the queue pair do at `now` where the link has become free, if that [is regular](Sending::is_regular): one
    /// packet leaves, and one is made. Returns when the port looks again, and when the packet that was made comes to it. `None`: it may be
    /// otherwise, and nothing has happened.
    #[inline]
    pub(crate) fn relay(&mut self, now: Ps, flow: &mut Outflow) -> Option<(Ps, Ps)> {
        let psn = self.qp.cursor(self.half)?;
        let may_make = flow.waits.is_some_and(|at| at <= now) && self.out.timer == Some(now);
        let (_, data) = self.qp.run.as_deref().filter(|_| may_make)?.outline(psn, self.keys)?;
        if !self.out.outlet.may_leave_lifted(&flow.lifted, now) {
            return None;
        }
        let Self { units, series, .. } = self;
        let booked = series.as_mut().and_then(|series| units.send_next(series, now, &data));
        if booked.is_none() {
            self.end_series();
            // Answers don't give way to what arrives.
            if self.half == Half::Requester && self.units.idle_from(now) > now {
                return None;
            }
        }
        let next = self.out.outlet.leave_lifted(&mut flow.lifted, now);
        self.out.timer = Some(next);
        self.has_turn();
        let (free, departs) = match booked {
            Some(booked) => {
                self.qp.made(self.half, psn, 1);
                self.out.outlet.reserve(flow.lane, flow.len);
                flow.built += 1;
                booked
            }
            None => self.build(now, flow, psn, data),
        };
        flow.waits = Some(free);
        Some((next, departs))
    }

    /// Whether packets that leave from now on, one after the other, find as many credits as the one that left at `now`; the last
    /// that are known to come do at `last`.
    pub(crate) fn has_regular_credits(&mut self, flow: &Outflow, now: Ps, last: Ps) -> bool {
        let gap = flow.lifted.time();
        self.service <= gap && self.out.outlet.has_regular_credits(&flow.lifted, now, gap, last)
    }

    /// A turn is scheduled, which was not put off.
    #[inline]
    fn has_turn(&mut self) {
        *self.qp.turn(self.half) = true;
        if self.half == Half::Requester {
            self.qp.sq.yielded = false;
        }
    }

    /// How many packets of the run may be made yet.
    pub(crate) fn left(&self) -> u32 {
        let run = self.qp.run.as_deref().zip(self.qp.cursor(self.half));
        let run = run.filter(|(run, cursor)| run.covers(*cursor, self.keys));
        run.map_or(0, |(run, cursor)| run.left(cursor))
    }

    /// The `i`th packet from the cursor on is made at `now` with the series. Returns when it comes to its port. `None`: it is not to be
    /// had like this.
    #[inline]
    pub(crate) fn make_ahead(&mut self, now: Ps, i: u32) -> Option<Ps> {
        let Self { units, qp, half, series: Some(series), keys, .. } = self else { return None };
        let (_, data) = qp.run.as_deref()?.outline(qp.cursor(*half)?.add(i), *keys)?;
        units.send_next(series, now, &data).map(|(_, departs)| departs)
    }

    /// So many packets were made like this, the last at `now`: each when another one left the port; so many came to it.
    pub(crate) fn made_ahead(&mut self, now: Ps, flow: &mut Outflow, [made, joined]: [usize; 2]) {
        let gap = flow.lifted.time();
        if let Some(cursor) = self.qp.cursor(self.half) {
            self.qp.made(self.half, cursor, made as u32);
        }
        self.has_turn();
        flow.built += made as u32;
        flow.waits = Some(now + self.service);
        self.out.outlet.turned_over(&mut flow.lifted, (now, gap), [made, joined]);
        self.out.timer = Some(now + gap);
        for _ in 0..joined {
            self.own.counters.xmit(flow.len);
            count_unicast(self.own, (flow.len, flow.lane), Way::Out);
        }
    }

    /// Packets that follow are booked when it is said that the series is over, if they are like the last.
    pub(crate) fn begin_series(&mut self) {
        let run = self.qp.run.as_deref().zip(self.qp.cursor(self.half));
        if let Some((_, data)) = run.and_then(|(run, cursor)| run.outline(cursor, self.keys)) {
            let sender = (self.qp.qpn.0, self.half == Half::Responder);
            self.series = self.units.begin_sends(sender, self.service, &data);
        }
    }

    /// The series is over.
    pub(crate) fn end_series(&mut self) {
        if let Some(series) = self.series.take() {
            self.units.end_sends(&series);
        }
    }

    /// Says that a packet was made: the unit is done with it at `free`, and it comes to its port at `departs`.
    #[cold]
    fn note_made(&mut self, now: Ps, (free, departs): (Ps, Ps), (psn, index): (Psn, u16), len: usize) {
        let Self { units, qp, watch: Some(watch), keys, service, half, .. } = self else { return };
        let Some(run) = qp.run.as_deref() else { return };
        let (repr, ..) = run.shape();
        let event = half.made((qp.qpn, index), psn, repr.operation, len as u32);
        watch.note_job(units, (now, free, *service), event);
        let planned = || run.packet(psn, *keys, &mut Vec::new());
        if let Some(planned) = watch.records_all().then(planned).flatten() {
            watch.note_sent(units, departs, &planned.packet);
            planned.packet.retire();
        }
    }

    /// Lets everything leave the port that can. `false`: something has to be looked at as ever.
    #[inline]
    fn pump(&mut self, now: Ps, flow: &mut Outflow, flown: &mut impl FnMut(Flown)) -> bool {
        let until = loop {
            match self.out.outlet.next_lifted(&mut flow.lifted, now) {
                Leaving::None => return true,
                Leaving::Sent(start, len) => flown(Flown::Sent(start, len)),
                Leaving::Then(at) => break at,
                Leaving::Held => return false,
            }
        };
        count_waits(self.own, self.out);
        if self.out.timer.is_none_or(|timer| until < timer) {
            self.out.timer = Some(until);
            flown(Flown::Port(until));
        }
        true
    }
}
