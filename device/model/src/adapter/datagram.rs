//! Datagrams carried out: sent, received, and copied to the members of multicast groups.

use hca_firmware::QCounter;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Gid, Qpn};
use hca_spec::qpc::ServiceType;
use hca_spec::rules;

use super::core::{Core, Executor};
use super::state::event::{Arrived, HcaEvent};
use crate::engines::mkey::{Fault, TURN_STEPS};
use crate::engines::pieces::spans;
use crate::engines::qp::datagram::{BadDatagram, GRH_ROOM};
use crate::engines::qp::wqe::Wqe;
use crate::engines::qp::{NotAdmitted, QueuePair};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::event::{Event, Status};
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::link_layer::Packet;

/// Copies of a datagram that are received in the event in which it arrived: a group has 240 members. More of them are events of their own,
/// and so are those behind one that has walked long lists of indirect keys.
const COPIES_AT_ONCE: usize = 4;

impl Core<'_> {
    /// Sends the one packet of a datagram and completes its WQE. Returns when the next may follow.
    /// `head` is the WQE's place in the queue.
    pub(crate) fn send_datagram(&mut self, now: Ps, qp: &mut QueuePair, wqe: &Wqe, head: u16) -> Option<Ps> {
        let (path, repr) = match qp.plan_datagram(&self.view(), wqe) {
            Ok(planned) => planned,
            Err(why) => return self.bad_datagram(now, qp, wqe, why),
        };
        let mut found = Default::default();
        let built = Packet::build_with(&path, &repr, wqe.length as usize, |buf| {
            found = self.keyed().gather(qp.accessor(), &wqe.pieces, 0, buf)?;
            Ok::<(), Fault>(())
        });
        let packet = match built {
            Ok(packet) => packet,
            Err(fault) if self.wait_to_send_datagram(now, qp, fault, wqe, head) => return None,
            Err(fault) => {
                let why = BadDatagram(Syndrome::LocalProtection, fault.to_string());
                return self.bad_datagram(now, qp, wqe, why);
            }
        };
        let service = self.chip.timing.wqe() + self.chip.timing.datagram() + self.chip.timing.transmit();
        let free = self.chip.units.send(now, qp.qpn.0, service);
        let data = spans(&self.function.fw.icm, &wqe.pieces, 0, wqe.length as usize);
        let ready = self.chip.units.put_together(now, qp.qpn.0, free, || wqe.further_lines(), data);
        let at = self.chip.units.depart(qp.qpn.0, ready);
        let (qpn, index, psn) = (qp.qpn, wqe.index, qp.requester.next_psn);
        let (operation, bytes) = (repr.operation, packet.len() as u32);
        qp.requester.pass_datagram();
        self.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
        self.note(at, Event::Done { qpn, index, status: Status(None) });
        match qp.service == ServiceType::Qp0 && self.keeps_back(qp.port(), &packet) {
            true => self.keep_back(now, qp),
            false => {
                self.group_sent(now, qp.group, bytes.into());
                qp.lane = self.launch_of(at, qp, operation, packet);
            }
        }
        self.report_signature_errors(now, qp, qp.params.cqn_snd, found);
        if wqe.signaled {
            let due = at + self.chip.units.completion_latency();
            let cqe = qp.datagram_sent(wqe);
            self.complete_at(due, qp, cqe, Vec::new());
        }
        (qp.sends() && !qp.sq.is_empty()).then_some(free + self.chip.units.pause())
    }

    /// An SMP of a host that may not manage the subnet does not leave; for the host it was sent.
    #[cold]
    fn keep_back(&mut self, now: Ps, qp: &QueuePair) {
        self.discarded(qp.port(), 1);
        self.diagnose(
            now,
            format_args!("QP {}: an SMP was kept back: this host may not manage the subnet", qp.qpn),
        );
    }

    fn bad_datagram(&mut self, now: Ps, qp: &mut QueuePair, wqe: &Wqe, why: BadDatagram) -> Option<Ps> {
        let BadDatagram(syndrome, why) = why;
        let (subject, index) = (Subject::qp(qp.qpn), wqe.index);
        self.answer_mistake(now, || {
            let expected = "a send of at most 4096 bytes, with an address vector";
            Finding::new(subject, "send WQE", format!("WQE {index}: {why}"), expected, &rules::WQE_OPERATION)
        });
        self.complete_send_error(now, qp, wqe.into(), syndrome);
        self.fail_sends(now, qp, None);
        None
    }

    /// A datagram for this queue pair. Returns how many entries of indirect keys it took.
    pub(crate) fn receive_datagram(&mut self, now: Ps, qp: &mut QueuePair, arrived: &Arrived) -> u32 {
        let (path, repr, payload) = (arrived.path(), arrived.repr(), arrived.payload_bytes());
        let Some(deth) = repr.deth else { return 0 };
        if !qp.takes_q_key(deth.q_key) {
            let (subject, q_key, own) = (Subject::qp(qp.qpn), deth.q_key, qp.own_q_key());
            self.answer_mistake(now, || {
                let found = format!("{q_key:#x} in a datagram, dropped");
                Finding::new(subject, "q_key", found, format!("{own:#x}"), &rules::DATAGRAM_KEY)
            });
            self.key_violation(now, arrived, true);
            return 0;
        }
        if !qp.takes_datagram(path, repr, payload.len()) {
            tracing::debug!(hca = self.chip.name, %now, "datagram for QP {} dropped: no MAD, or by a wrong lane", qp.qpn);
            return 0;
        }
        let Ok(receive) = self.take_receive(now, qp, None) else {
            tracing::debug!(hca = self.chip.name, %now, "datagram for QP {} dropped: no receive posted", qp.qpn);
            self.function.fw.icm.count(qp.qpn, QCounter::OutOfBuffer);
            return 0;
        };
        let total = GRH_ROOM + payload.len();
        if total as u64 > receive.room {
            self.complete_receive_error(now, qp, &receive, Syndrome::LocalLength);
            self.fail(now, qp, None);
            return 0;
        }
        let (who, pieces, mut keyed) = (qp.local(&receive), &receive.pieces, self.keyed());
        let header = match arrived.grh() {
            Some(grh) => keyed.scatter(who, pieces, 0, Payload::Bytes(&grh)),
            None => Ok(Default::default()),
        };
        let written = header.and_then(|header| {
            let body = keyed.scatter(who, pieces, GRH_ROOM as u64, payload.into())?;
            Ok([header, body])
        });
        let looked_at = keyed.looked_at();
        let found = match written {
            Ok(found) => found,
            Err(fault) => {
                let place = format_args!("receive WQE {}", receive.index);
                self.fault(now, Subject::qp(qp.qpn), place, qp.accessor().pd, &fault);
                self.complete_receive_error(now, qp, &receive, Syndrome::LocalProtection);
                self.fail(now, qp, None);
                return looked_at;
            }
        };
        self.note_executed(now, qp, (path, repr), payload.len());
        let (cqn, cqe) = qp.datagram_received(&self.view(), path, repr, &receive, total);
        for found in found {
            self.report_signature_errors(now, qp, cqn, found);
        }
        self.complete_for(now, qp, cqn, cqe, &[]);
        looked_at
    }
}

impl Executor<'_> {
    /// A multicast datagram: a copy to each member of its group at the port that it came by, and of its partition (IBTA 9.6.1.1.3); to who
    /// sent it, too, unless that one blocks it. What is of nobody's partition is counted once.
    pub(crate) fn receive_multicast(&mut self, now: Ps, arrived: &Arrived) {
        let (path, repr) = (arrived.path(), arrived.repr());
        let Some(dgid) = path.grh().map(|g| g.dgid) else { return };
        let members = self.members(dgid);
        let (many, mut looked_at) = (members.len() > COPIES_AT_ONCE, 0u32);
        let (mut admitted, mut foreign) = (false, false);
        for qpn in members {
            let (Some(qp), core) = (self.qps.get_mut(qpn.0), &mut self.core) else { continue };
            let own_packet = repr.deth.is_some_and(|d| d.src_qp == qpn)
                && core.chip.managed.port(arrived.port).is_some_and(|port| path.is_from(port));
            let blocked = own_packet && qp.params.blocks_own;
            if qp.port() != arrived.port || qp.service != ServiceType::Ud || blocked {
                continue;
            }
            let verdict = qp.admits(&core.view(), repr);
            foreign |= matches!(verdict, Err(NotAdmitted::Partition { .. }));
            if verdict.is_ok() {
                admitted = true;
                match core.function.outstanding {
                    None if many || looked_at > TURN_STEPS => {
                        core.schedule(now, HcaEvent::ReceiveCopy(qpn, arrived.clone()))
                    }
                    None => looked_at = looked_at.saturating_add(core.receive_datagram(now, qp, arrived)),
                    // Each copy waits for itself.
                    Some(_) => self.admit(now, HcaEvent::ReceiveCopy(qpn, arrived.clone())),
                }
            }
        }
        if foreign && !admitted {
            self.core.key_violation(now, arrived, false);
        }
    }

    /// A copy of a multicast datagram, for a member that waited for its memory, or is one of many.
    pub(crate) fn receive_copy(&mut self, now: Ps, qpn: Qpn, arrived: &Arrived) {
        let (Some(qp), core) = (self.qps.get_mut(qpn.0), &mut self.core) else { return };
        if qp.service == ServiceType::Ud && qp.admits(&core.view(), arrived.repr()).is_ok() {
            core.receive_datagram(now, qp, arrived);
        }
    }

    fn members(&self, group: Gid) -> Vec<Qpn> {
        self.core
            .function
            .fw
            .icm
            .mcgs
            .iter()
            .find(|g| g.gid == group)
            .map(|g| g.qps.clone())
            .unwrap_or_default()
    }
}
