//! The life of a queue pair: what its moving parts do when its state changes, and when they change it.
//!
//! Source: IBTA 10.3.1 (states), 9.9 (error behaviour), 11.6.3 (affiliated events); PRM "QP State Machine".

use hca_firmware::QCounter;
use hca_spec::cqe::{Cqe, Syndrome};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Psn, Qpn};
use hca_spec::qpc::{QpState, Qpc, ServiceType, path_migration};

use super::recv::ReceiveQueue;
use super::{Params, QueuePair};
use crate::adapter::Hca;
use crate::adapter::core::{Core, HcaEvent};
use crate::ground::time::Ps;

/// While a queue pair is in error, its receive doorbell record is looked at this often, because
/// posting a receive rings no doorbell and it still has to be flushed.
const ERROR_POLL: Ps = Ps::from_us(500);
/// An idle one less and less often, down to this.
const ERROR_POLL_IDLE: Ps = Ps::from_ms(64);

impl Hca {
    /// A transition command was executed.
    pub(crate) fn qp_modified(&mut self, now: Ps, qpn: Qpn, from: QpState, to: QpState) {
        let Some(qp) = self.core.fw.icm.qps.get(qpn.0) else { return };
        if to == QpState::Reset {
            // In RESET nothing moves: an idle queue pair costs its context only.
            drop(self.qps.remove(qpn.0));
            return;
        }
        if self.qps.get(qpn.0).is_none() {
            self.qps.insert(qpn.0, QueuePair::new(qpn, qp));
        }
        let Some(hw) = self.qps.get_mut(qpn.0) else { return };
        // Only a request to migrate leads from armed to migrated here: 2RST and 2ERR keep the state.
        let was_armed = hw.params.path_migration == path_migration::ARMED;
        hw.params = Params::new(&qp.ctx);
        if to != QpState::Error {
            hw.state = to;
        }
        match (from, to) {
            (_, QpState::Error) => hw.fail(&mut self.core, now, None),
            (_, QpState::Rtr) => {
                hw.responder.epsn = Psn::new(qp.ctx.get(Qpc::NEXT_RCV_PSN));
            }
            (QpState::Rtr, QpState::Rts) => {
                hw.requester.start(Psn::new(qp.ctx.get(Qpc::NEXT_SEND_PSN)), &hw.params);
                self.core.schedule(now, HcaEvent::SendDoorbell(qpn));
            }
            (_, QpState::Rts) => self.core.schedule(now, HcaEvent::SendDoorbell(qpn)),
            (QpState::Rts, QpState::SqDraining) => {
                hw.drained_event = qp.drained_event;
                hw.drain(&mut self.core, now);
            }
            _ => {}
        }
        if was_armed && hw.says_migrated() {
            self.core.push_qp_event(now, EventType::PathMigrated, qpn);
        }
    }

    /// A queue pair in error: flushes what was posted since.
    pub(crate) fn error_poll(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0).filter(|qp| qp.state == QpState::Error) else { return };
        // Another time than the one noted: a poll of an earlier life of the queue pair.
        let Some((_, interval)) = qp.error_poll.take_if(|(at, _)| *at == now) else { return };
        // The first one, if a completion could not be written.
        let first = interval == Ps::ZERO;
        if first {
            qp.flush_sends(&mut self.core, now, None);
        }
        // A record that can't be read is not looked at again.
        let Some(flushed) = qp.flush_receives(&mut self.core, now) else { return };
        let again = first || flushed > 0;
        let interval = if again { ERROR_POLL } else { interval.times(2).min(ERROR_POLL_IDLE) };
        qp.poll_errors(&mut self.core, now, interval);
    }
}

impl QueuePair {
    fn enter(&mut self, core: &mut Core, state: QpState) {
        self.state = state;
        if let Some(qp) = core.fw.icm.qps.get_mut(self.qpn.0) {
            qp.ctx.set(Qpc::STATE, state as u32);
        }
    }

    /// Goes to error: completes the oldest message with `cause` if there is one, flushes the rest.
    pub(crate) fn fail(&mut self, core: &mut Core, now: Ps, cause: Option<Syndrome>) {
        let was = self.state;
        self.enter(core, QpState::Error);
        self.flush_sends(core, now, cause);
        self.flush_receives(core, now);
        if was != QpState::Error && self.rq.shared().is_some() {
            self.raise(core, now, EventType::LastWqe);
        }
        if was != QpState::Error && matches!(self.rq, ReceiveQueue::Own { .. }) {
            self.poll_errors(core, now, ERROR_POLL);
        }
    }

    /// A send request went wrong at this end. Where no peer depends on the order of requests only the send
    /// queue stops: it is flushed, and receives go on (IBTA 10.3.1.5 "SQEr", 9.9.2.4).
    pub(crate) fn fail_sends(&mut self, core: &mut Core, now: Ps, cause: Option<Syndrome>) {
        let keeps_receiving =
            matches!(self.service, ServiceType::Uc | ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1);
        if !keeps_receiving || self.state == QpState::Error {
            return self.fail(core, now, cause);
        }
        self.enter(core, QpState::SqError);
        self.flush_sends(core, now, cause);
    }

    /// Draining ends when everything that was started is complete (IBTA 10.3.1.6).
    pub(crate) fn drain(&mut self, core: &mut Core, now: Ps) {
        if self.state != QpState::SqDraining || !self.requester.is_idle() || !self.sq.all_seen() {
            return;
        }
        self.enter(core, QpState::SqDrained);
        if std::mem::take(&mut self.drained_event) {
            core.push_qp_event(now, EventType::SqDrained, self.qpn);
        }
    }

    /// A signature error drains the send queue if the driver asked for it: work requests that follow can be
    /// cancelled (mlx5dv "signature pipelining"). The event says when.
    pub(crate) fn drain_for_signature(&mut self, core: &mut Core, now: Ps) {
        if self.state == QpState::Rts {
            self.drained_event = true;
            self.enter(core, QpState::SqDraining);
            // Within the sending of a packet the message is not complete: its end drains the queue.
            self.drain(core, now);
        }
    }

    fn poll_errors(&mut self, core: &mut Core, now: Ps, interval: Ps) {
        let at = now + interval;
        self.error_poll = Some((at, interval));
        core.schedule(at, HcaEvent::ErrorPoll(self.qpn));
    }

    /// Writes a completion. A queue pair whose completion queue is in error goes to error itself; what it
    /// holds is flushed to its other completion queue in an event of its own, because this may happen in
    /// the middle of anything.
    pub(crate) fn complete(&mut self, core: &mut Core, now: Ps, cqn: Cqn, cqe: Cqe) {
        self.complete_with(core, now, cqn, cqe, &[]);
    }

    /// The same, with the message's data in the completion.
    pub(crate) fn complete_with(&mut self, core: &mut Core, now: Ps, cqn: Cqn, cqe: Cqe, data: &[u8]) {
        if !core.complete(now, cqn, cqe, data) && self.state != QpState::Error {
            core.fw.icm.count(self.qpn, QCounter::CqOverflow);
            self.enter(core, QpState::Error);
            self.raise(core, now, EventType::WqCatastrophic);
            if self.rq.shared().is_some() {
                self.raise(core, now, EventType::LastWqe);
            }
            self.poll_errors(core, now, Ps::ZERO);
        }
    }
}
