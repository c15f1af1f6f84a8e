//! The packets of a run ([`crate::engines::qp::run`]) carried out one after the other: what the executor does for any packet,
//! without what was asked for the one before it and is the same for all of them.
//!
//! Whoever takes these steps has asked whether they are plain ([`Executor::runs_plainly`]), takes what comes of a step himself
//! ([`Moved`]), and whatever else the step left in the outbox. In full flow ([`super::outflow`]) there are not even packets.

use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{Operation, aeth};

use super::core::{Core, Executor};
use super::state::event::{Departing, HcaEvent};
use super::state::ports::lane_of;
use crate::engines::qp::QueuePair;
use crate::engines::qp::requester::Next as Turn;
use crate::engines::qp::run::{Half, Planned};
use crate::ground::event::Event;
use crate::ground::region::{Pages, Payload};
use crate::ground::time::Ps;
use crate::ground::timing::Place;
use crate::link_layer::{Next, Outcome, Packet, Path, Sent};
use crate::units::Units;
use crate::wire::Repr;

/// What comes of a step.
pub(crate) enum Moved {
    /// The queue pair has a turn to send then.
    Turn(Ps),
    /// The port looks at what waits then.
    Port(Ps),
    /// A packet is at its port then.
    Depart(Ps, Packet),
    /// A packet leaves.
    Sent(Sent<()>),
}

/// Who sends a run: its queue pair, which of that one's packets they are, and the port; and packets that nobody needs any more.
pub(crate) struct Runner<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) half: Half,
    pub(crate) port: u8,
    pub(crate) spare: &'a mut Vec<Packet>,
}

/// A packet of a run is booked: the unit is busy with it for `service`, and its data is read. Returns when the unit is done with it, and when
/// it comes to its port.
#[inline(always)]
pub(super) fn book(
    units: &mut Units,
    (qpn, half): (Qpn, Half),
    now: Ps,
    service: Ps,
    data: Place,
) -> (Ps, Ps) {
    let free = units.send(now, qpn.0, service);
    let ready = units.put_together(now, qpn.0, free, || 0, std::iter::once(data));
    let departs = match half {
        Half::Requester => units.depart(qpn.0, ready),
        Half::Responder => units.answer_departs(qpn.0, ready),
    };
    (free, departs)
}

impl Runner<'_> {
    fn turn(&self) -> HcaEvent {
        HcaEvent::turn(self.half, self.qpn)
    }
}

impl Executor<'_> {
    /// Whether the next packet of that half of a queue pair is one of its run, nothing holds it back, and nobody else waits for its port.
    #[inline]
    pub(crate) fn runs_plainly(&self, (qpn, half): (Qpn, Half), port: u8) -> bool {
        let Core { chip, function, .. } = &self.core;
        let (Some(qp), Some(out)) = (self.qps.get(qpn.0), chip.ports.get(port)) else { return false };
        let goes_on = match half {
            Half::Requester => qp.requester.deadline.is_some() && qp.next() == Turn::Packet,
            Half::Responder => true,
        };
        self.side.parked.is_empty()
            && qp.may_send_runs(half)
            && qp.congestion.is_none()
            && qp.group == 0
            && qp.is_in_run(half, function.key_changes)
            && goes_on
            && out.is_left_to((qpn, half), qp.lane)
    }

    /// The queue pair's turn has come.
    #[inline]
    pub(crate) fn run_turn(&mut self, now: Ps, runner: &mut Runner<'_>, moved: &mut impl FnMut(Moved)) {
        let Some(qp) = self.qps.get_mut(runner.qpn.0) else { return };
        let lane = qp.port_lane();
        match self.core.may_send(lane) {
            true if self.core.is_to_be_planned(qp, runner.half) => self.admit(now, runner.turn()),
            true => self.core.send_of_run(now, qp, runner, moved),
            false => self.core.wait_for_room(now, lane, runner.turn()),
        }
    }

    /// The port may have room again.
    #[inline]
    pub(crate) fn run_port_turn(&mut self, now: Ps, runner: &mut Runner<'_>, moved: &mut impl FnMut(Moved)) {
        let Some(out) = self.core.chip.ports.get_mut(runner.port) else { return };
        out.timer = out.timer.filter(|timer| *timer > now);
        self.core.pump_run(now, runner.port, moved);
        self.give_run_turns(now, runner, moved);
    }

    /// A packet is at the port.
    #[inline]
    pub(crate) fn run_depart(
        &mut self,
        now: Ps,
        departing: Departing,
        runner: &mut Runner<'_>,
        moved: &mut impl FnMut(Moved),
    ) {
        let Departing { port, operation, reserved, own, packet } = departing;
        if let Some(out) = self.core.chip.ports.get_mut(port) {
            out.unreserve(lane_of(own, packet.lane()), reserved as usize);
        }
        self.core.transmit(now, port, operation, packet);
        match self.core.chip.out.is_empty() {
            true => self.give_run_turns(now, runner, moved),
            // What comes next has its place behind that.
            false => self.give_turns(now, port),
        }
    }

    /// The queue pair has its turn if it waits for one and there is room.
    #[inline]
    fn give_run_turns(&mut self, now: Ps, runner: &mut Runner<'_>, moved: &mut impl FnMut(Moved)) {
        let limit = self.core.chip.timing.egress_buffer();
        loop {
            let Some(out) = self.core.chip.ports.get_mut(runner.port) else { return };
            let lane = out.waited_for.trailing_zeros() as u8;
            if out.waited_for == 0 || !out.has_room(lane, limit) {
                return;
            }
            let Some(waiting) = out.waiting.get_mut(usize::from(lane)) else { return };
            let first = waiting.pop_front();
            if waiting.is_empty() {
                out.waited_for &= !(1 << lane);
            }
            match first {
                Some((at, ..)) if at > now => moved(Moved::Turn(at)),
                Some(_) => {
                    let Some(qp) = self.qps.get_mut(runner.qpn.0) else { return };
                    match self.core.is_to_be_planned(qp, runner.half) {
                        true => self.admit(now, runner.turn()),
                        false => self.core.send_of_run(now, qp, runner, moved),
                    }
                }
                None => {}
            }
        }
    }

    /// Takes a packet of a message in progress that is like the one before it, whose headers were found good. `false`: it has to be
    /// received as any packet is; nothing has happened.
    #[inline]
    pub(crate) fn receive_alike(&mut self, now: Ps, packet: &Packet) -> bool {
        let Self { core, qps, side, .. } = self;
        side.parked.is_empty()
            && qps.get_mut(packet.repr().dest_qp.0).is_some_and(|qp| core.take_alike(now, qp, packet))
    }

    /// Whether the packet with that PSN is the one that a queue pair expects of its peer's requests, or of the response to its read.
    #[inline]
    pub(crate) fn expects(&self, (qpn, half): (Qpn, Half), psn: Psn) -> bool {
        self.qps.get(qpn.0).is_some_and(|qp| match half {
            Half::Requester => qp.responder.epsn == psn,
            Half::Responder => qp.reads_next(psn).is_some(),
        })
    }
}

impl Core<'_> {
    /// Whether what a turn to send reads has to be planned: memory may answer later, and the next packet is none of a run.
    #[inline]
    fn is_to_be_planned(&self, qp: &QueuePair, half: Half) -> bool {
        self.function.outstanding.is_some() && !qp.is_in_run(half, self.function.key_changes)
    }

    /// The next packet of a run is made, and the next turn asked for.
    #[inline]
    fn send_of_run(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        runner: &mut Runner<'_>,
        moved: &mut impl FnMut(Moved),
    ) {
        let half = runner.half;
        *qp.turn(half) = false;
        if half == Half::Requester {
            let idle_from = self.chip.units.idle_from(now);
            qp.sq.yielded = idle_from > now && !qp.sq.yielded;
            if qp.sq.yielded {
                return self.ask_run_turn(idle_from, qp, half, moved);
            }
        }
        let run = qp.run_of(half).zip(qp.cursor(half));
        let keys = self.function.key_changes;
        let planned = run.and_then(|(run, cursor)| run.packet(cursor, keys, runner.spare));
        // It has ended on the way.
        let Some(planned) = planned else {
            return match half {
                Half::Requester => self.send_packet(now, qp),
                Half::Responder => self.take_response_turn(now, qp),
            };
        };
        let Planned { mut packet, psn, operation, index, data } = planned;
        qp.made(half, psn, 1);
        let (qpn, service) = (qp.qpn, self.chip.timing.transmit());
        packet.set_sender(qpn);
        let (free, departs) = book(&mut self.chip.units, (qpn, half), now, service, data);
        let made = half.made((qpn, index), psn, operation, packet.len() as u32);
        self.note_job(now, free, service, made);
        let lane = match (self.chip.managed.port(runner.port), self.chip.ports.get_mut(runner.port)) {
            (Some(own), Some(out)) if !out.outlet.keeps(own, &packet) => {
                let lane = out.outlet.choose_lane(own, &mut packet);
                out.outlet.reserve(lane, packet.len());
                Some(lane)
            }
            _ => None,
        };
        qp.lane = match lane {
            Some(lane) => {
                self.note_sent(departs, &packet);
                moved(Moved::Depart(departs, packet));
                lane
            }
            None => self.launch(departs, runner.port, operation, packet),
        };
        self.ask_run_turn(free, qp, half, moved);
    }

    /// Sends a response packet of a run. Returns when the next may follow.
    pub(super) fn respond_of_run(&mut self, now: Ps, qp: &mut QueuePair, planned: Planned) -> Ps {
        let Planned { packet, psn, operation, data, .. } = planned;
        qp.made(Half::Responder, psn, 1);
        let (qpn, service) = (qp.qpn, self.chip.timing.transmit());
        let (free, departs) = book(&mut self.chip.units, (qpn, Half::Responder), now, service, data);
        let bytes = packet.len() as u32;
        self.note_job(now, free, service, Event::Respond { qpn, psn, operation, bytes });
        qp.lane = self.launch_of(departs, qp, operation, packet);
        if qp.congestion.is_some() {
            self.limited_sent(now, qp, bytes);
        }
        free
    }

    /// Schedules a turn of the queue pair that sends a run, unless one is.
    #[inline]
    fn ask_run_turn(&mut self, at: Ps, qp: &mut QueuePair, half: Half, moved: &mut impl FnMut(Moved)) {
        if std::mem::replace(qp.turn(half), true) {
            return;
        }
        let (lane, limit) = (qp.port_lane(), self.chip.timing.egress_buffer());
        match self.chip.ports.get(lane.port).is_none_or(|out| out.has_room(lane.lane, limit)) {
            true => moved(Moved::Turn(at)),
            false => self.wait_for_room(at, lane, HcaEvent::turn(half, qp.qpn)),
        }
    }

    /// Lets everything leave a port that can at `now`.
    #[inline]
    fn pump_run(&mut self, now: Ps, port: u8, moved: &mut impl FnMut(Moved)) {
        let next = loop {
            let Some(out) = self.chip.ports.get_mut(port) else { return };
            if !out.outlet.is_waiting() {
                return;
            }
            match out.outlet.next(now, now) {
                Next::Outcome(Outcome::Sent(mut sent)) => {
                    sent.packet.forget_queue();
                    self.capture(sent.start, port, true, &sent.packet);
                    match sent.packet.is_referring() && self.chip.out.sent.is_empty() {
                        true => moved(Moved::Sent(sent)),
                        false => self.chip.out.sent.push((port, sent)),
                    }
                }
                Next::Outcome(Outcome::Discarded { .. }) => self.discarded(port, 1),
                Next::Wait(wait) => break wait,
            }
        };
        if let Some(at) = next.credits {
            self.chip.out.credit_turn(port, at);
        }
        self.count_waits(port);
        let Some(out) = self.chip.ports.get_mut(port) else { return };
        if let Some(at) = next.until
            && out.timer.is_none_or(|timer| at < timer)
        {
            out.timer = Some(at);
            moved(Moved::Port(at));
        }
    }

    /// Takes a packet of a message in progress, see [`Executor::receive_alike`].
    #[inline]
    fn take_alike(&mut self, now: Ps, qp: &mut QueuePair, packet: &Packet) -> bool {
        let (repr, payload) = (packet.repr(), packet.payload());
        let plain =
            qp.service == ServiceType::Rc && payload.len() == qp.params.mtu && !packet.met_congestion();
        if repr.operation == Operation::ReadResponseMiddle {
            return plain && self.read_next(now, qp, repr.psn, payload);
        }
        let expected = repr.psn == qp.responder.epsn && qp.responder.fault.is_none();
        plain
            && expected
            && self.write_next(now, qp, (packet.path(), repr), (repr.psn, repr.ack_req), payload)
    }

    /// Writes the next packet of the response to the read in progress where it belongs. `false`: it has to be received as any packet
    /// is.
    #[inline]
    pub(super) fn read_next(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn, payload: Payload<'_>) -> bool {
        // As any input, where writes that were posted are too many.
        if self.function.outstanding.as_ref().is_some_and(|outstanding| !outstanding.takes_writes()) {
            return false;
        }
        let Some(at) = qp.reads_next(psn) else { return false };
        let landing = qp.read_landing(self.function.key_changes);
        let place = landing.and_then(|landing| landing.place(at, payload.len()));
        let written = |(pages, offset): (&Pages, u64)| pages.write(&*self.function.memory, offset, payload);
        if place.is_none_or(|place| written(place).is_err()) {
            return false;
        }
        let (qpn, operation) = (qp.qpn, Operation::ReadResponseMiddle);
        self.note(now, Event::Answered { qpn, psn, operation, syndrome: 0 });
        qp.requester.answered(0, 1);
        self.progress(now, qp);
        self.ask_behind_answer(now, qp, false);
        true
    }

    /// Writes the next packet of a message in progress where it belongs, with the headers of any packet of it; `asks`: for an
    /// acknowledgement. `false`: it has to be received as any packet is.
    #[inline]
    pub(super) fn write_next(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (path, repr): (&Path, &Repr),
        (psn, asks): (Psn, bool),
        payload: Payload<'_>,
    ) -> bool {
        // As any input, where writes that were posted are too many.
        if self.function.outstanding.as_ref().is_some_and(|outstanding| !outstanding.takes_writes()) {
            return false;
        }
        let landing = qp.landing(self.function.key_changes);
        let (Some((at, room)), Some(landing)) = (qp.lands_next(repr.operation), landing) else {
            return false;
        };
        let place = landing.place(at, payload.len()).filter(|_| payload.len() as u64 <= room);
        let written = |(pages, offset): (&Pages, u64)| pages.write(&*self.function.memory, offset, payload);
        if place.is_none_or(|place| written(place).is_err()) {
            return false;
        }
        qp.responder.expected_came();
        qp.landed(payload.len());
        qp.responder.epsn = psn.next();
        self.note_executed_at(now, qp, path, (psn, repr.operation, payload.len() as u32));
        if asks {
            self.answer(now, qp, psn, aeth::ACK);
        }
        true
    }
}
