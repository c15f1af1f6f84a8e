//! The agents of the adapter's ports on the wire: datagrams to QP0 that they take, and to QP0 and QP1 if no driver does.
//!
//! Source: IBTA vol 1 13.5 (special queue pairs), 14.2 (SMPs), 16.1 (performance management).

use hca_firmware::{Arrival, Departure, KeyViolation, takes};

use crate::adapter::core::{Core, Executor};
use crate::adapter::state::event::{Arrived, HcaEvent};
use crate::ground::time::Ps;
use crate::link_layer::ib::datagram;

/// Whether a datagram to QP0 is one that the port's agent takes, whoever receives there: firmware manages the port alone, also
/// for drivers with a QP0 that would not (iPXE).
#[cold]
pub(super) fn is_for_agent(arrived: &Arrived) -> bool {
    let datagram = datagram::parse(arrived.path(), arrived.repr(), arrived.payload_bytes());
    datagram.is_some_and(|(_, mad)| takes(&mad))
}

impl Executor<'_> {
    /// A datagram for which no driver has a queue pair that receives. Ports on Ethernet have no agents.
    pub(crate) fn agent(&mut self, now: Ps, arrived: &Arrived) {
        let Some((address, mad)) = datagram::parse(arrived.path(), arrived.repr(), arrived.payload_bytes())
        else {
            return tracing::debug!(hca = self.core.chip.name, %now, "no datagram that an agent takes: dropped");
        };
        let mut effects = Vec::new();
        let port = arrived.port;
        let arrival = Arrival { port, address, now: now.0 };
        let answer = self.core.chip.managed.wire_mad(&arrival, &mad, &mut effects);
        self.core.configure_port(port);
        self.apply(now, effects);
        if let Some(answer) = answer {
            self.say(now + self.core.chip.timing.agent(), &answer);
        }
        self.core.agent_poll_later(now, port);
    }

    /// What a port's agents send of themselves.
    pub(crate) fn agent_poll(&mut self, now: Ps, port: u8) {
        let Some(out) = self.core.chip.ports.get_mut(port) else { return };
        out.agent_timer = out.agent_timer.filter(|timer| *timer > now);
        if let Some(departure) = self.core.chip.managed.poll(port, now.0) {
            self.say(now, &departure);
        }
        self.core.agent_poll_later(now, port);
    }

    fn say(&mut self, at: Ps, departure: &Departure) {
        // The lane of its service level is found when it leaves.
        if let Some(packet) = datagram::build(departure, 0) {
            self.core.schedule_port(at, HcaEvent::Answer(departure.port, packet));
        }
    }
}

impl Core<'_> {
    /// Schedules the next moment of a port's agents.
    pub(crate) fn agent_poll_later(&mut self, now: Ps, port: u8) {
        let Some(at) = self.chip.managed.poll_at(port).map(|at| now.max(Ps(at))) else { return };
        let Some(out) = self.chip.ports.get_mut(port) else { return };
        if out.agent_timer.is_none_or(|timer| at < timer) {
            out.agent_timer = Some(at);
            self.schedule_port(at, HcaEvent::AgentPoll(port));
        }
    }

    /// The same for all ports.
    pub(crate) fn agents_poll_later(&mut self, now: Ps) {
        self.chip.managed.numbers().for_each(|port| self.agent_poll_later(now, port));
    }

    /// The P_Key or Q_Key (`q_key`) of a packet is not its receiver's: it is counted, and the subnet
    /// manager told.
    pub(crate) fn key_violation(&mut self, now: Ps, arrived: &Arrived, q_key: bool) {
        let (port, repr) = (arrived.port, arrived.repr());
        // On Ethernet it is only counted: there is nobody to tell.
        let (slid, dlid, sl) = arrived.path().ib().map(|l| (l.slid, l.dlid, l.sl)).unwrap_or_default();
        let deth = repr.deth.as_ref();
        let violation = KeyViolation {
            key: if q_key { deth.map_or(0, |d| d.q_key) } else { repr.pkey.into() },
            q_key,
            slid,
            dlid,
            sl,
            source_qp: deth.map_or(0, |d| d.src_qp.0),
            qp: repr.dest_qp.0,
        };
        self.chip.managed.key_violation(port, &violation);
        self.agent_poll_later(now, port);
    }
}
