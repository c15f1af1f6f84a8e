//! The receiver of a run in full flow, as an adapter carries it out: it takes each packet like the one before it, once it was asked
//! whether it does ([`Executor::takes_messages`]). Units, counters and what is told of packets are as ever; the sender's side is
//! [`super::outflow`].

use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::Operation;

use super::Executor;
use super::ethernet::{Way, count_unicast};
use crate::ground::region::{Pages, Payload};
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path};
use crate::units::{Inbound, Receives};
use crate::wire::Repr;

impl Executor<'_> {
    /// Whether packets with these headers that come to a port, in the middle of messages, are taken like the ones before them.
    pub(crate) fn takes_messages(&self, port: u8, (packet, first): (&Packet, Psn)) -> bool {
        let Self { core, qps, side, .. } = self;
        let repr = packet.repr();
        let Some(qp) = qps.get(repr.dest_qp.0) else { return false };
        let view = core.view();
        let active = |port: &hca_firmware::Port| port.state == hca_spec::mad::port_state::ACTIVE;
        side.parked.is_empty()
            && !core.chip.captures()
            && core.chip.managed.port(port).is_some_and(active)
            && !packet.met_congestion()
            && matches!(repr.operation, Operation::WriteMiddle | Operation::SendMiddle)
            && qp.service == ServiceType::Rc
            && qp.state == QpState::Rts
            && qp.responder.epsn == first
            && qp.responder.fault.is_none()
            && packet.payload().len() == qp.params.mtu
            && qp.keeps_its_way(repr.migrated)
            && qp.admits(&view, repr).is_ok()
            && qp.check_way(&view, port, packet.path()).is_ok()
    }

    /// How long a packet of a flow with these headers and so much payload keeps a unit busy that receives it.
    pub(crate) fn flow_service(&self, repr: &Repr, payload: usize) -> Ps {
        self.core.chip.timing.receive(repr.operation, payload)
    }

    /// A packet of a flow with so many bytes of payload, `len` on the link, comes to a port by that lane. Returns when it has passed the
    /// pipeline. It is booked with the `series` that it is of, if there is one and it waits for nothing.
    #[inline]
    pub(crate) fn flow_arrive(
        &mut self,
        now: Ps,
        port: u8,
        qpn: Qpn,
        service: Ps,
        (payload, len, lane): (usize, usize, u8),
        series: &mut Option<Receives>,
    ) -> Ps {
        let chip = &mut *self.core.chip;
        if let Some(own) = chip.managed.port_mut(port) {
            own.counters.rcv(len);
            count_unicast(own, (len, lane), Way::In { transport: true });
        }
        if let Some(booked) = series.as_mut().and_then(|series| chip.units.receive_next(series, now)) {
            return booked;
        }
        if let Some(series) = series.take() {
            chip.units.end_receives(&series);
        }
        let inbound = Inbound { bytes: payload, ..Inbound::default() };
        chip.units.receive(now, qpn.0, service, inbound)
    }

    /// Packets of a flow that come are booked when it is said that the series is over.
    pub(crate) fn begin_receives(&mut self, qpn: Qpn, service: Ps, payload: usize) -> Option<Receives> {
        self.core.chip.units.begin_receives(qpn.0, service, payload)
    }

    /// When a packet that comes at `now` would have passed the pipeline, if others follow it `gap` apart, and each waits for nothing.
    pub(crate) fn receives_regularly(&self, series: &Receives, now: Ps, gap: Ps) -> Option<Ps> {
        self.core.chip.units.receives_regularly(series, now, gap)
    }

    /// So many packets of `len` bytes on the link come to a port like this, the first at `first`.
    pub(crate) fn receive_all(
        &mut self,
        (port, len, lane): (u8, usize, u8),
        series: &mut Receives,
        (first, gap): (Ps, Ps),
        count: usize,
    ) {
        let chip = &mut *self.core.chip;
        chip.units.receive_all(series, first, gap, count as u64);
        if let Some(own) = chip.managed.port_mut(port) {
            for _ in 0..count {
                own.counters.rcv(len);
                count_unicast(own, (len, lane), Way::In { transport: true });
            }
        }
    }

    /// The series is over.
    pub(crate) fn end_receives(&mut self, series: Option<Receives>) {
        if let Some(series) = series {
            self.core.chip.units.end_receives(&series);
        }
    }

    /// How many packets of a message in progress, with these headers and so many bytes of payload each, may be written later than they
    /// come, of `most`.
    pub(crate) fn may_put_off(&self, repr: &Repr, payload: usize, most: u32) -> u32 {
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get(repr.dest_qp.0).filter(|_| core.chip.watch.is_none()) else { return 0 };
        let landing = qp.landing(core.function.key_changes);
        let (Some((at, room)), Some(landing)) = (qp.lands_next(repr.operation), landing) else { return 0 };
        let count = (room.min(landing.left(at)) / payload.max(1) as u64).min(most.into());
        let len = count as usize * payload;
        let unwatched =
            |(pages, offset): (&Pages, u64)| pages.is_unwatched(&*core.function.memory, offset, len);
        if landing.place(at, len).is_some_and(unwatched) { count as u32 } else { 0 }
    }

    /// So many packets of a message in progress have come that were put off, with these headers and that payload in all; the next has PSN
    /// `next`.
    pub(crate) fn write_put_off(&mut self, repr: &Repr, (next, count): (Psn, u32), payload: Payload<'_>) {
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get_mut(repr.dest_qp.0) else { return };
        let landing = qp.landing(core.function.key_changes);
        let (Some((at, _)), Some(landing)) = (qp.lands_next(repr.operation), landing) else { return };
        let Some((pages, offset)) = landing.place(at, payload.len()) else { return };
        if let Payload::Region { region, offset: from, len } = payload
            && let Err(why) = pages.copy(&*core.function.memory, offset, (region, from), len)
        {
            tracing::error!(hca = core.chip.name, %why, "memory that said that it can be written can't");
        }
        qp.responder.expected_came();
        qp.landed(payload.len());
        qp.responder.epsn = next;
        core.function.counting.count_executed(repr.dest_qp, count, payload.len());
    }

    /// The next packet of a message in progress has passed the pipeline; `asks`: for an acknowledgement. `false`: it has to be
    /// received as any packet is.
    #[inline]
    pub(crate) fn flow_receive(
        &mut self,
        now: Ps,
        (path, repr): (&Path, &Repr),
        (psn, asks): (Psn, bool),
        payload: Payload<'_>,
    ) -> bool {
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get_mut(repr.dest_qp.0) else { return false };
        core.write_next(now, qp, (path, repr), (psn, asks), payload)
    }
}
