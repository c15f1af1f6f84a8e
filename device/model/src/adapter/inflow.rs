//! The receiver of a run in full flow, as an adapter carries it out: it takes each packet like the one before it, once it was asked
//! whether it does ([`Executor::takes_messages`]). Units, counters and what is told of packets are as ever; the sender's side is
//! [`super::outflow`].

use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::Operation;

use super::core::Executor;
use super::ethernet::{Way, count_unicast};
use crate::engines::qp::landing::Places;
use crate::ground::region::{Pages, Payload};
use crate::ground::time::Ps;
use crate::ground::timing::Place;
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
            && qp.service == ServiceType::Rc
            && qp.state == QpState::Rts
            && match repr.operation {
                Operation::WriteMiddle | Operation::SendMiddle => {
                    qp.responder.epsn == first && qp.responder.fault.is_none()
                }
                Operation::ReadResponseMiddle => qp.next_response() == Some(first),
                _ => false,
            }
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
    /// pipeline. `to`: where the payload goes, if that is to be looked up. It is booked with the `series` that it is of, if there is one and it
    /// waits for nothing.
    #[inline]
    pub(crate) fn flow_arrive(
        &mut self,
        now: Ps,
        port: u8,
        (qpn, service): (Qpn, Ps),
        (payload, len, lane): (usize, usize, u8),
        to: Option<Place>,
        series: &mut Option<Receives>,
    ) -> Ps {
        let chip = &mut *self.core.chip;
        if let Some(own) = chip.managed.port_mut(port) {
            own.counters.rcv(len);
            count_unicast(own, (len, lane), Way::In { transport: true });
        }
        let booked = series.as_mut().and_then(|series| chip.units.receive_next(series, now, to.as_ref()));
        if let Some(booked) = booked {
            return booked;
        }
        if let Some(series) = series.take() {
            chip.units.end_receives(&series);
        }
        let inbound = Inbound { bytes: payload, to, ..Inbound::default() };
        chip.units.receive(now, qpn.0, service, inbound)
    }

    /// Where payload of packets goes that come for a queue pair in the middle of the response to a read, from `psn` on.
    pub(crate) fn places(&self, qpn: Qpn, psn: Psn, payload: usize) -> Option<Places> {
        self.qps.get(qpn.0)?.response_places(&self.core.view(), psn, payload)
    }

    /// Whether the units know where that is; to be [looked up](Executor::look_up) when the packet comes.
    #[inline]
    pub(crate) fn knows(&self, place: &Place) -> bool {
        self.core.chip.units.holds_translation(place)
    }

    /// Looks it up.
    #[inline]
    pub(crate) fn look_up(&mut self, place: &Place) {
        self.core.chip.units.find_place(place);
    }

    /// Packets of a flow that come are booked when it is said that the series is over. `payload`: bytes of it, and the key under which it
    /// goes where that is looked up.
    pub(crate) fn begin_receives(
        &mut self,
        qpn: Qpn,
        service: Ps,
        payload: (usize, Option<u32>),
    ) -> Option<Receives> {
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
        let reads = repr.operation == Operation::ReadResponseMiddle;
        // Each response lets the timer run anew, and may ask for a turn to send.
        if reads && (qp.requester.patience.is_some() || !core.is_idle(qp, false)) {
            return 0;
        }
        let landing = qp.landing_of(repr.operation, core.function.key_changes);
        let (Some((at, room)), Some(landing)) = (qp.lands_next(repr.operation), landing) else { return 0 };
        let count = (room.min(landing.left(at)) / payload.max(1) as u64).min(most.into());
        let len = count as usize * payload;
        let unwatched =
            |(pages, offset): (&Pages, u64)| pages.is_unwatched(&*core.function.memory, offset, len);
        if landing.place(at, len).is_some_and(unwatched) { count as u32 } else { 0 }
    }

    /// So many packets of a message in progress have come that were put off, the last at `last`, with these headers and that payload in all;
    /// the next has PSN `next`.
    pub(crate) fn write_put_off(
        &mut self,
        repr: &Repr,
        (next, count, last): (Psn, u32, Ps),
        payload: Payload<'_>,
    ) {
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get_mut(repr.dest_qp.0) else { return };
        let landing = qp.landing_of(repr.operation, core.function.key_changes);
        let (Some((at, _)), Some(landing)) = (qp.lands_next(repr.operation), landing) else { return };
        let Some((pages, offset)) = landing.place(at, payload.len()) else { return };
        if let Payload::Region { region, offset: from, len } = payload
            && let Err(why) = pages.copy(&*core.function.memory, offset, (region, from), len)
        {
            tracing::error!(hca = core.chip.name, %why, "memory that said that it can be written can't");
        }
        if repr.operation == Operation::ReadResponseMiddle {
            qp.requester.answered(0, count);
            core.progress(last, qp);
            return core.function.counting.count_answered(repr.dest_qp, count);
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
        match repr.operation {
            Operation::ReadResponseMiddle => core.read_next(now, qp, psn, payload),
            _ => core.write_next(now, qp, (path, repr), (psn, asks), payload),
        }
    }
}
