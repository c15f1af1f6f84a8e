//! The life of a queue pair carried out: what happens when its state changes, and what changes it.
//!
//! Source: IBTA 10.3.1 (states), 9.9 (error behaviour), 11.6.3 (affiliated events); PRM "QP State Machine".

use hca_firmware::QCounter;
use hca_spec::cqe::{Cqe, Syndrome};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Psn, Qpn};
use hca_spec::qpc::{QpState, Qpc, ServiceType, path_migration};

use super::core::{Core, Executor};
use super::flush::FLUSH_MOST;
use super::state::event::HcaEvent;
use crate::engines::qp::kept::Share;
use crate::engines::qp::migration::MigrationStep;
use crate::engines::qp::recv::ReceiveQueue;
use crate::engines::qp::{Params, QueuePair};
use crate::ground::time::Ps;
use crate::link_layer::Path;
use crate::wire::Repr;

/// While a queue pair is in error, its receive doorbell record is looked at this often, because
/// posting a receive rings no doorbell and it still has to be flushed.
const ERROR_POLL: Ps = Ps::from_us(500);
/// An idle one less and less often, down to this.
const ERROR_POLL_IDLE: Ps = Ps::from_ms(64);

impl Executor<'_> {
    /// A transition command was executed.
    pub(crate) fn qp_modified(&mut self, now: Ps, qpn: Qpn, from: QpState, to: QpState) {
        let Self { core, qps, .. } = self;
        let Some(qp) = core.function.fw.icm.qps.get(qpn.0) else { return };
        if to == QpState::Reset {
            // In RESET nothing moves: an idle queue pair costs its context only.
            core.function.frames.abandon(qpn);
            core.leave_group(now, qpn);
            if let Some(gone) = qps.remove(qpn.0) {
                core.flow_ends(&gone);
            }
            return;
        }
        if qps.get(qpn.0).is_none() {
            let mut new = QueuePair::new(&core.view(), qpn, qp);
            new.requester.share = Share::of(&core.function.requests.kept);
            qps.insert(qpn.0, new);
        }
        let Some(hw) = qps.get_mut(qpn.0) else { return };
        // Only a request to migrate leads from armed to migrated here: 2RST and 2ERR keep the state.
        let was_armed = hw.may_migrate();
        hw.params = Params::new(&core.view(), &qp.ctx);
        hw.aim(&core.view());
        let group = qp.groups.first().copied().unwrap_or(0);
        let moved = std::mem::replace(&mut hw.group, group) != group;
        hw.run = None;
        if to != QpState::Error {
            hw.state = to;
        }
        match (from, to) {
            (_, QpState::Error) => {
                // Its driver may take the memory back: nothing is read for its peer any more.
                hw.responder.queue.clear();
                core.fail(now, hw, None);
            }
            (_, QpState::Rtr) => {
                hw.responder.epsn = Psn::new(qp.ctx.get(Qpc::NEXT_RCV_PSN));
            }
            (QpState::Rtr, QpState::Rts) => {
                hw.requester.start(Psn::new(qp.ctx.get(Qpc::NEXT_SEND_PSN)), &hw.params);
                core.schedule(now, HcaEvent::SendDoorbell(qpn));
            }
            // A send queue of frames: its driver counts anew, but the doorbell record is as it was before the reset until the
            // next doorbell (mlx5 driver, recovery of send queues).
            (QpState::Reset, QpState::Rts) => hw.lane = core.first_lane(hw),
            (_, QpState::Rts) => core.schedule(now, HcaEvent::SendDoorbell(qpn)),
            (QpState::Rts, QpState::SqDraining) => {
                hw.drained_event = qp.drained_event;
                core.drain(now, hw);
            }
            _ => {}
        }
        if was_armed && hw.says_migrated() {
            core.push_qp_event(now, EventType::PathMigrated, qpn);
        }
        if moved && core.leave_group(now, qpn) {
            core.schedule(now, HcaEvent::SendTurn(qpn));
        }
    }

    /// A queue pair in error: flushes what was posted since.
    pub(crate) fn error_poll(&mut self, now: Ps, qpn: Qpn) {
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get_mut(qpn.0).filter(|qp| qp.state == QpState::Error) else { return };
        // A later time than now is noted: a poll of an earlier life of the queue pair.
        let Some((_, interval)) = qp.error_poll.take_if(|(at, _)| *at <= now) else { return };
        // The first one, if a completion could not be written.
        let first = interval == Ps::ZERO;
        if first {
            core.flush_sends(now, qp, None);
        }
        core.abandon_receive(now, qp);
        // A record that can't be read is not looked at again.
        let Some(flushed) = core.flush_receives(now, qp) else { return };
        let interval = match flushed {
            // The others at once, in an event of their own.
            more if more > FLUSH_MOST => Ps::ZERO,
            0 if !first => interval.times(2).min(ERROR_POLL_IDLE),
            _ => ERROR_POLL,
        };
        core.poll_errors(now, qp, interval);
    }
}

impl Core<'_> {
    fn enter(&mut self, qp: &mut QueuePair, state: QpState) {
        qp.state = state;
        if let Some(context) = self.function.fw.icm.qps.get_mut(qp.qpn.0) {
            context.ctx.set(Qpc::STATE, state as u32);
        }
    }

    /// An event about a queue pair, if it is the driver's.
    pub(crate) fn raise(&mut self, now: Ps, qp: &QueuePair, event: EventType) {
        match qp.is_drivers() {
            true => self.push_qp_event(now, event, qp.qpn),
            false => tracing::debug!(hca = self.chip.name, %now, ?event, "a connection of DCT {}", qp.qpn),
        }
    }

    /// Goes to error: completes the oldest message with `cause` if there is one, flushes the rest.
    pub(crate) fn fail(&mut self, now: Ps, qp: &mut QueuePair, cause: Option<Syndrome>) {
        let was = qp.state;
        self.enter(qp, QpState::Error);
        self.flush_sends(now, qp, cause);
        self.abandon_receive(now, qp);
        // What reading the doorbell record waits for is an input of its own, and so are more than one event may flush.
        let more = self.function.outstanding.is_some()
            || self.flush_receives(now, qp).is_some_and(|posted| posted > FLUSH_MOST);
        let interval = if more { Ps::ZERO } else { ERROR_POLL };
        if was != QpState::Error && qp.rq.shared().is_some() {
            self.raise(now, qp, EventType::LastWqe);
        }
        if (was != QpState::Error || more) && matches!(qp.rq, ReceiveQueue::Own { .. }) {
            self.poll_errors(now, qp, interval);
        }
    }

    /// A send request went wrong at this end. Where no peer depends on the order of requests only the send
    /// queue stops: it is flushed, and receives go on (IBTA 10.3.1.5 "SQEr", 9.9.2.4).
    pub(crate) fn fail_sends(&mut self, now: Ps, qp: &mut QueuePair, cause: Option<Syndrome>) {
        let keeps_receiving =
            matches!(qp.service, ServiceType::Uc | ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1);
        if !keeps_receiving || qp.state == QpState::Error {
            return self.fail(now, qp, cause);
        }
        self.enter(qp, QpState::SqError);
        self.flush_sends(now, qp, cause);
    }

    /// Draining ends when everything that was started is complete (IBTA 10.3.1.6).
    pub(crate) fn drain(&mut self, now: Ps, qp: &mut QueuePair) {
        if !qp.is_drained() {
            return;
        }
        self.enter(qp, QpState::SqDrained);
        if std::mem::take(&mut qp.drained_event) {
            self.push_qp_event(now, EventType::SqDrained, qp.qpn);
        }
    }

    /// A signature error drains the send queue if the driver asked for it: work requests that follow can be
    /// cancelled (mlx5dv "signature pipelining"). The event says when.
    pub(crate) fn drain_for_signature(&mut self, now: Ps, qp: &mut QueuePair) {
        if qp.state == QpState::Rts {
            qp.drained_event = true;
            self.enter(qp, QpState::SqDraining);
            // Within the sending of a packet the message is not complete: its end drains the queue.
            self.drain(now, qp);
        }
    }

    fn poll_errors(&mut self, now: Ps, qp: &mut QueuePair, interval: Ps) {
        let at = now + interval;
        qp.error_poll = Some((at, interval));
        self.schedule(at, HcaEvent::ErrorPoll(qp.qpn));
    }

    /// Writes a completion of a queue pair, with `data` in it. A queue pair whose completion queue is in error goes to error
    /// itself; what it holds is flushed to its other completion queue in an event of its own, because this may happen in
    /// the middle of anything.
    pub(crate) fn complete_for(&mut self, now: Ps, qp: &mut QueuePair, cqn: Cqn, cqe: Cqe, data: &[u8]) {
        if !self.complete(now, cqn, cqe, data) && qp.state != QpState::Error {
            self.function.fw.icm.count(qp.qpn, QCounter::CqOverflow);
            self.enter(qp, QpState::Error);
            self.raise(now, qp, EventType::WqCatastrophic);
            if qp.rq.shared().is_some() {
                self.raise(now, qp, EventType::LastWqe);
            }
            self.poll_errors(now, qp, Ps::ZERO);
        }
    }

    /// What a packet of the peer says of its paths.
    #[inline(always)]
    pub(crate) fn follow_migration(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        port: u8,
        headers: (&Path, &Repr),
    ) {
        if qp.heeds_migration() {
            self.follow_paths(now, qp, port, headers);
        }
    }

    #[inline(never)]
    fn follow_paths(&mut self, now: Ps, qp: &mut QueuePair, port: u8, (path, repr): (&Path, &Repr)) {
        match qp.check_migration(&self.view(), port, (path, repr)) {
            MigrationStep::Nothing => {}
            MigrationStep::Armed => {
                qp.run = None;
                if let Some(context) = self.function.fw.icm.qps.get_mut(qp.qpn.0) {
                    context.ctx.set(Qpc::PM_STATE, path_migration::ARMED);
                }
            }
            MigrationStep::Migrated => self.migrate(now, qp),
            MigrationStep::Refused => {
                self.diagnose(
                    now,
                    format_args!(
                        "QP {}: the peer migrates to {} at port {port}, which is not the alternate path here (IBTA 17.2.8)",
                        qp.qpn, path.source()
                    ),
                );
                self.push_qp_event(now, EventType::PathMigrationFailed, qp.qpn);
            }
        }
    }

    /// The retries are used up: goes on over the alternate path, if both ends have one.
    pub(crate) fn migrate_if_armed(&mut self, now: Ps, qp: &mut QueuePair) -> bool {
        let armed = qp.may_migrate();
        if armed {
            self.migrate(now, qp);
            qp.requester.retries_left = qp.params.retry_count;
        }
        armed
    }

    fn migrate(&mut self, now: Ps, qp: &mut QueuePair) {
        let Some(context) = self.function.fw.icm.qps.get_mut(qp.qpn.0) else { return };
        *context.ctx.primary_path_mut() = *context.ctx.secondary_path();
        context.ctx.set(Qpc::PM_STATE, path_migration::MIGRATED);
        let context = context.ctx;
        qp.params = Params::new(&self.view(), &context);
        qp.run = None;
        self.push_qp_event(now, EventType::PathMigrated, qp.qpn);
    }
}
