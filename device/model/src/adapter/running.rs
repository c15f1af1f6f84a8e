//! The packets of a run ([`crate::engines::qp::run`]) carried out one after the other: what the executor does for any packet,
//! without what was asked for the one before it and is the same for all of them.
//!
//! Whoever takes these steps has asked whether they are plain ([`Executor::runs_plainly`]), takes what comes of a step himself
//! ([`Moved`]), and whatever else the step left in the outbox. In full flow ([`super::outflow`]) there are not even packets.

use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::aeth;

use super::Executor;
use super::core::{Core, Departing, HcaEvent};
use crate::engines::qp::QueuePair;
use crate::engines::qp::requester::Next as Turn;
use crate::engines::qp::run::{Planned, Run};
use crate::ground::event::Event;
use crate::ground::region::{Pages, Payload};
use crate::ground::time::Ps;
use crate::link_layer::{Next, Outcome, Packet, Path, Sent};
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

/// Who sends a run: its queue pair and the port; and packets that nobody needs any more.
pub(crate) struct Runner<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) port: u8,
    pub(crate) spare: &'a mut Vec<Packet>,
}

impl Executor<'_> {
    /// Whether the next packet of a queue pair is one of its run, nothing holds it back, and nobody else waits for its port.
    #[inline]
    pub(crate) fn runs_plainly(&self, qpn: Qpn, port: u8) -> bool {
        let Core { chip, function, .. } = &self.core;
        let (Some(qp), Some(out)) = (self.qps.get(qpn.0), chip.ports.get(port)) else { return false };
        let requester = &qp.requester;
        let covers = |run: &Run| run.covers(requester.cursor, function.key_changes);
        self.side.parked.is_empty()
            && qp.state == QpState::Rts
            && qp.congestion.is_none()
            && qp.group == 0
            && requester.deadline.is_some()
            && qp.run.as_deref().is_some_and(covers)
            && requester.next() == Turn::Packet
            && out.is_left_to(qpn, qp.lane)
    }

    /// The queue pair's turn has come.
    #[inline]
    pub(crate) fn run_turn(&mut self, now: Ps, runner: &mut Runner<'_>, moved: &mut impl FnMut(Moved)) {
        let Some(qp) = self.qps.get_mut(runner.qpn.0) else { return };
        let lane = qp.port_lane();
        match self.core.may_send(lane) {
            true if self.core.is_to_be_planned(qp) => self.admit(now, HcaEvent::SendTurn(runner.qpn)),
            true => self.core.send_of_run(now, qp, runner, moved),
            false => self.core.wait_for_room(now, lane, HcaEvent::SendTurn(runner.qpn)),
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
        let Departing { port, operation, reserved, packet } = departing;
        if let Some(out) = self.core.chip.ports.get_mut(port) {
            out.outlet.unreserve(packet.lane(), reserved as usize);
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
                    match self.core.is_to_be_planned(qp) {
                        true => self.admit(now, HcaEvent::SendTurn(runner.qpn)),
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
            && qps.get_mut(packet.repr().dest_qp.0).is_some_and(|qp| core.write_alike(now, qp, packet))
    }

    /// Whether the packet with that PSN is the one that a queue pair expects.
    #[inline]
    pub(crate) fn expects(&self, qpn: Qpn, psn: Psn) -> bool {
        self.qps.get(qpn.0).is_some_and(|qp| qp.responder.epsn == psn)
    }
}

impl Core<'_> {
    /// Whether what a turn to send reads has to be planned: memory may answer later, and the next packet is none of a run.
    #[inline]
    fn is_to_be_planned(&self, qp: &QueuePair) -> bool {
        self.function.outstanding.is_some() && !qp.is_in_run(self.function.key_changes)
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
        qp.sq.turn = false;
        let idle_from = self.chip.units.idle_from(now);
        qp.sq.yielded = idle_from > now && !qp.sq.yielded;
        if qp.sq.yielded {
            return self.ask_run_turn(idle_from, qp, moved);
        }
        let cursor = qp.requester.cursor;
        let run = qp.run.as_deref();
        let planned = run.and_then(|run| run.packet(cursor, self.function.key_changes, runner.spare));
        // It has ended on the way.
        let Some(planned) = planned else { return self.send_packet(now, qp) };
        let Planned { mut packet, psn, operation, index, data } = planned;
        qp.requester.advance(psn, 1);
        let (qpn, service) = (qp.qpn, self.chip.timing.transmit());
        let free = self.chip.units.send(now, qpn.0, service);
        let ready = self.chip.units.gather(now, qpn.0, free, std::iter::once(data));
        let departs = self.chip.units.depart(qpn.0, ready);
        let bytes = packet.len() as u32;
        self.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
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
        self.ask_run_turn(free, qp, moved);
    }

    /// Schedules a turn of the queue pair that sends a run, unless one is.
    #[inline]
    fn ask_run_turn(&mut self, at: Ps, qp: &mut QueuePair, moved: &mut impl FnMut(Moved)) {
        if std::mem::replace(&mut qp.sq.turn, true) {
            return;
        }
        let (lane, limit) = (qp.port_lane(), self.chip.timing.egress_buffer());
        match self.chip.ports.get(lane.port).is_none_or(|out| out.has_room(lane.lane, limit)) {
            true => moved(Moved::Turn(at)),
            false => self.wait_for_room(at, lane, HcaEvent::SendTurn(qp.qpn)),
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
    fn write_alike(&mut self, now: Ps, qp: &mut QueuePair, packet: &Packet) -> bool {
        let (repr, payload) = (packet.repr(), packet.payload());
        let plain = qp.service == ServiceType::Rc
            && repr.psn == qp.responder.epsn
            && qp.responder.fault.is_none()
            && payload.len() == qp.params.mtu
            && !packet.met_congestion();
        plain && self.write_next(now, qp, (packet.path(), repr), (repr.psn, repr.ack_req), payload)
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
