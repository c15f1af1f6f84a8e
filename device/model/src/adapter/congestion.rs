//! Congestion control of RoCE carried out: marks that arrive are told of, flows that are told send slower.
//!
//! Source: IBTA A17.9 (congestion notification packets), SIGCOMM 2015 "Congestion Control for Large-Scale RDMA Deployments".

use hca_firmware::QCounter;
use hca_firmware::port::acceleration::Acceleration;
use hca_firmware::port::congestion::CongestionControl;
use hca_spec::ids::Psn;
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{Operation, Transport};

use super::core::{Core, Executor};
use super::state::event::Arrived;
use crate::engines::qp::QueuePair;
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::Repr;

/// Bytes of a CNP's payload, which are zero.
const CNP_PAYLOAD: usize = 16;

impl Core<'_> {
    fn congestion(&mut self, port: u8) -> Option<&mut CongestionControl> {
        self.chip.managed.port_mut(port)?.ethernet_mut().map(|ethernet| &mut ethernet.congestion)
    }

    /// When a flow may send whose rate is limited, if not now.
    #[inline(always)]
    pub(crate) fn rate_holds(&mut self, now: Ps, qp: &mut QueuePair) -> Option<Ps> {
        if qp.congestion.is_none() { None } else { self.limit_holds(now, qp) }
    }

    #[cold]
    fn limit_holds(&mut self, now: Ps, qp: &mut QueuePair) -> Option<Ps> {
        let how = self.congestion(qp.port())?.reaction;
        qp.congestion.as_mut()?.holds(now, &how)
    }

    /// A flow that met congestion sent a packet.
    #[cold]
    pub(crate) fn limited_sent(&mut self, now: Ps, qp: &mut QueuePair, bytes: u32) {
        let port = qp.port();
        let (Some(flow), Some(control)) = (&mut qp.congestion, self.congestion(port)) else { return };
        if flow.sent(now, bytes as usize, &control.reaction) {
            control.counters.limited = control.counters.limited.saturating_sub(1);
        }
    }

    /// What the RoCE connections of a port do about loss; nothing on InfiniBand.
    #[inline]
    pub(crate) fn acceleration(&self, port: u8) -> Acceleration {
        let ethernet = self.chip.managed.port(port).and_then(|port| port.ethernet());
        ethernet.map_or_else(Acceleration::default, |ethernet| ethernet.acceleration)
    }

    /// A flow sends again: where restarts are slow, it does so as if it had been told of congestion.
    pub(crate) fn restart_slowly(&mut self, now: Ps, qp: &mut QueuePair) {
        let port = qp.port();
        if !self.acceleration(port).slow_restart {
            return;
        }
        let Some(line) = self.chip.ports.get(port).and_then(|out| out.outlet.line()) else { return };
        let Some(control) = self.congestion(port) else { return };
        let flow = qp.congestion.get_or_insert_default();
        let slowed = flow.told(now, line.bits_per_s(), &control.reaction);
        if slowed {
            control.counters.limited = control.counters.limited.saturating_add(1);
            control.counters.ever_limited = control.counters.ever_limited.saturating_add(1);
        }
        let icm = &mut self.function.fw.icm;
        icm.count(qp.qpn, QCounter::RoceSlowRestart);
        icm.count(qp.qpn, QCounter::RoceSlowRestartCnps);
        if slowed {
            icm.count(qp.qpn, QCounter::RoceSlowRestartTrans);
        }
    }

    /// A flow ends.
    pub(crate) fn flow_ends(&mut self, qp: &QueuePair) {
        if qp.congestion.as_ref().is_some_and(|flow| flow.is_limited())
            && let Some(control) = self.congestion(qp.port())
        {
            control.counters.limited = control.counters.limited.saturating_sub(1);
        }
    }

    /// A packet that a queue pair takes met congestion: its sender is told, as often as the port's parameters say.
    #[cold]
    pub(crate) fn notify(&mut self, now: Ps, qp: &mut QueuePair, arrived: &Arrived) {
        let (path, repr, port) = (arrived.path(), arrived.repr(), arrived.port);
        let Some(control) = self.congestion(port) else { return };
        control.counters.marked = control.counters.marked.wrapping_add(1);
        let (how, on) = (control.notification, control.notifies);
        let sender = match (qp.service, repr.deth) {
            (_, Some(deth)) => deth.src_qp,
            (ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc, None) => qp.params.remote_qpn,
            _ => return,
        };
        if on >> path.priority() & 1 == 0 || !qp.congestion.get_or_insert_default().tells(now, &how) {
            return;
        }
        let Some(back) = path.back_to_tell(how.dscp, (!how.same_priority).then_some(how.priority)) else {
            return;
        };
        let repr = Repr {
            transport: Transport::Cnp,
            operation: Operation::SendMiddle,
            pkey: repr.pkey,
            dest_qp: sender,
            psn: Psn::new(0),
            ..Repr::default()
        };
        let fill = |payload: &mut [u8]| {
            payload.fill(0);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(packet) = Packet::build(&back, &repr, CNP_PAYLOAD, fill);
        if let Some(control) = self.congestion(port) {
            control.counters.sent = control.counters.sent.wrapping_add(1);
        }
        self.launch(now, port, Operation::SendMiddle, packet);
    }
}

impl Executor<'_> {
    /// A CNP arrived: the connection that it names sends slower. Nobody but its peer is listened to.
    #[cold]
    pub(crate) fn receive_notification(&mut self, now: Ps, arrived: &Arrived) {
        let Self { core, qps, .. } = self;
        let (port, qpn) = (arrived.port, arrived.repr().dest_qp);
        let line = core.chip.ports.get(port).and_then(|out| out.outlet.line());
        let is_its = |qp: &&mut QueuePair| {
            let connected = matches!(qp.service, ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc);
            connected && qp.state.receives() && qp.check_way(&core.view(), port, arrived.path()).is_ok()
        };
        let flow = qps.get_mut(qpn.0).filter(is_its);
        let priority = flow.as_ref().and_then(|qp| Some(qp.path(&core.view())?.priority()));
        let Some(control) = core.congestion(port) else { return };
        let reacts = priority.is_some_and(|priority| control.reacts >> priority & 1 == 1);
        let counters = &mut control.counters;
        let (Some(qp), Some(line)) = (flow.filter(|_| reacts), line) else {
            counters.ignored = counters.ignored.wrapping_add(1);
            return;
        };
        counters.handled = counters.handled.wrapping_add(1);
        if qp.congestion.get_or_insert_default().told(now, line.bits_per_s(), &control.reaction) {
            counters.limited = counters.limited.saturating_add(1);
            counters.ever_limited = counters.ever_limited.saturating_add(1);
        }
    }
}
