//! Packets that have passed the receive pipeline: each goes to its queue pair, or to the adapter's agents.

use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::rules;
use hca_spec::wire::Transport;

use super::agent::is_for_agent;
use super::core::Executor;
use super::state::event::Arrived;
use crate::engines::qp::datagram::MULTICAST_QP;
use crate::engines::qp::{NotAdmitted, QueuePair, WrongWay};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::event::Unwanted;
use crate::ground::time::Ps;

impl Executor<'_> {
    /// Whether a packet was addressed to another port, or by the permissive LID. Management of the subnet goes by other things.
    #[inline]
    fn is_for_another(&self, arrived: &Arrived) -> bool {
        let port = self.core.chip.managed.port(arrived.port);
        port.is_some_and(|port| arrived.path().is_for_another(port)) && arrived.repr().dest_qp != Qpn(0)
    }

    /// A packet has passed the receive pipeline: to its queue pair.
    #[inline(always)]
    pub(crate) fn receive(&mut self, now: Ps, arrived: &Arrived) {
        let (path, repr, payload) = (arrived.path(), arrived.repr(), arrived.payload());
        if self.is_for_another(arrived) {
            return tracing::debug!(hca = self.core.chip.name, %now, "packet dropped: its address is another port's");
        }
        if repr.dest_qp == MULTICAST_QP {
            return self.receive_multicast(now, arrived);
        }
        match repr.transport {
            Transport::Dc if !repr.operation.is_response() => return self.receive_dynamic(now, arrived),
            Transport::Cnp => return self.receive_notification(now, arrived),
            _ => {}
        }
        let Some(qpn) = self.receiver_of(arrived) else { return self.agent(now, arrived) };
        let Self { core, qps, .. } = self;
        let Some(qp) = qps.get_mut(qpn.0) else {
            tracing::debug!(hca = core.chip.name, %now, "packet for QP {} dropped: no such QP", repr.dest_qp);
            // One that was never out of RESET has no moving parts here.
            let why = match core.function.fw.icm.qps.get(qpn.0) {
                Some(_) => Unwanted::State,
                None => Unwanted::NoQueuePair,
            };
            return core.note_unwanted(now, path.source(), repr, why, QpState::Reset as u32);
        };
        match qp.admits(&core.view(), repr) {
            Ok(()) => {}
            Err(NotAdmitted::State) => {
                tracing::debug!(hca = core.chip.name, %now, "packet for QP {qpn} dropped: wrong state or service");
                return core.note_unwanted(now, path.source(), repr, Unwanted::State, qp.state as u32);
            }
            Err(NotAdmitted::Partition { own }) => {
                core.note_unwanted(now, path.source(), repr, Unwanted::Partition, own.into());
                let found = repr.pkey;
                core.answer_mistake(now, || {
                    let found = format!("{found:#x} in a packet, dropped");
                    let expected = format!("{own:#x} or one that matches it");
                    Finding::new(Subject::qp(qpn), "P_Key", found, expected, &rules::PEER_PARTITION)
                });
                return core.key_violation(now, arrived, false);
            }
        }
        core.follow_migration(now, qp, arrived.port, (path, repr));
        match qp.check_way(&core.view(), arrived.port, path) {
            Ok(()) => {}
            Err(WrongWay::Port(own)) => {
                core.note_unwanted(now, path.source(), repr, Unwanted::Port, own.into());
                let port = arrived.port;
                return core.answer_mistake(now, || {
                    let found = format!("a packet by port {port}, dropped");
                    let expected = format!("port {own}");
                    Finding::new(Subject::qp(qpn), "vhca_port_num", found, expected, &rules::PEER_ADDRESS)
                });
            }
            Err(WrongWay::Peer(peer)) => {
                core.note_unwanted(now, path.source(), repr, Unwanted::Peer, qp.params.remote_qpn.0);
                let source = path.source();
                return core.answer_mistake(now, || {
                    let found = format!("a packet from {source}, dropped");
                    let expected = format!("one from {peer}, to which it is connected");
                    Finding::new(Subject::qp(qpn), "primary path", found, expected, &rules::PEER_ADDRESS)
                });
            }
            Err(WrongWay::Gid(wrong)) => {
                core.note_unwanted(now, path.source(), repr, Unwanted::Gid, 0);
                return core.answer_mistake(now, || {
                    let (field, expected) = (wrong.field, wrong.expected.to_string());
                    Finding::new(
                        Subject::qp(qpn),
                        field,
                        format!("{wrong}, dropped"),
                        expected,
                        &rules::PEER_GID,
                    )
                });
            }
        }
        if arrived.packet().met_congestion() {
            core.notify(now, qp, arrived);
        }
        match qp.service {
            ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1 => {
                core.receive_datagram(now, qp, arrived);
            }
            _ if repr.operation.is_response() => core.receive_response(now, qp, repr, payload),
            _ => core.receive_request(now, qp, (path, repr), payload),
        }
    }

    /// The queue pair or DC target that a packet is for; `None`: one of its port's agents.
    #[inline(always)]
    pub(super) fn receiver_of(&self, arrived: &Arrived) -> Option<Qpn> {
        match arrived.repr().dest_qp {
            Qpn(0) if is_for_agent(arrived) => None,
            Qpn(special @ 0..=1) => self.special_qp(arrived.port, special),
            other => Some(other),
        }
    }

    fn special_qp(&self, port: u8, number: u32) -> Option<Qpn> {
        let service = if number == 0 { ServiceType::Qp0 } else { ServiceType::Qp1 };
        let receives = |q: &QueuePair| q.service == service && q.port() == port && q.state.receives();
        let management = &self.core.function.fw.icm.management;
        management.iter().find(|n| self.qps.get(n.0).is_some_and(receives)).copied()
    }
}
