//! The adapter's own agents on the wire: datagrams to QP0 and QP1 that no driver takes.
//!
//! Source: IBTA vol 1 13.5 (special queue pairs), 14.2 (SMPs), 16.1 (performance management).

use hca_firmware::{Arrival, Departure, KeyViolation};

use crate::adapter::Hca;
use crate::adapter::core::{Arrived, Core, HcaEvent};
use crate::ground::time::Ps;
use crate::link::datagram;
use crate::wire::Repr;

/// The port of an adapter.
const PORT: u8 = 1;

impl Hca {
    /// A datagram for which no driver has a queue pair that receives.
    pub(crate) fn agent(&mut self, now: Ps, arrived: &Arrived) {
        let Some((address, mad)) = datagram::parse(arrived.repr(), arrived.payload_bytes()) else {
            return tracing::debug!(hca = self.core.name, %now, "no datagram that an agent takes: dropped");
        };
        let mut effects = Vec::new();
        let arrival = Arrival { port: PORT, address, now: now.0 };
        let answer = self.core.fw.wire_mad(&arrival, &mad, &mut effects);
        self.core.configure_port();
        self.apply(now, effects);
        if let Some(answer) = answer {
            self.say(now + self.core.timing.agent(), &answer);
        }
        self.core.agent_poll_later(now);
    }

    /// What the agents send of themselves.
    pub(crate) fn agent_poll(&mut self, now: Ps) {
        self.core.port.agent_timer = self.core.port.agent_timer.filter(|timer| *timer > now);
        for departure in self.core.fw.poll(now.0) {
            self.say(now, &departure);
        }
        self.core.agent_poll_later(now);
    }

    fn say(&mut self, at: Ps, departure: &Departure) {
        // The lane of its service level is found when it leaves.
        if let Some(packet) = datagram::build(departure, 0) {
            self.core.schedule(at, HcaEvent::Answer(packet));
        }
    }
}

impl Core {
    /// Schedules the agents' next moment.
    pub(crate) fn agent_poll_later(&mut self, now: Ps) {
        let Some(at) = self.fw.poll_at().map(|at| now.max(Ps(at))) else { return };
        if self.port.agent_timer.is_none_or(|timer| at < timer) {
            self.port.agent_timer = Some(at);
            self.schedule(at, HcaEvent::AgentPoll);
        }
    }

    /// A packet's P_Key or Q_Key (`q_key`) is not its receiver's: it is counted, and the subnet manager told.
    pub(crate) fn key_violation(&mut self, now: Ps, repr: &Repr, q_key: bool) {
        let deth = repr.deth.as_ref();
        self.fw.key_violation(&KeyViolation {
            key: if q_key { deth.map_or(0, |d| d.q_key) } else { repr.pkey.into() },
            q_key,
            slid: repr.slid,
            dlid: repr.dlid,
            sl: repr.sl,
            source_qp: deth.map_or(0, |d| d.src_qp.0),
            qp: repr.dest_qp.0,
        });
        self.agent_poll_later(now);
    }
}
