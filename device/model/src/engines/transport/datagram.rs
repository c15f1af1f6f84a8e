//! UD and the special queue pairs: one packet a message, an address vector in each WQE.
//!
//! Source: IBTA 9.8.3 (unreliable datagram), 10.2.5 (Q_Keys), 11.4.1.2 (the 40 bytes for a GRH);
//! PRM "Datagram Segment".

use hca_firmware::QCounter;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ids::{Gid, Lid, Qpn};
use hca_spec::qpc::{AddressPath, ServiceType};
use hca_spec::wire::{Operation, Transport};
use hca_spec::wqe::{Datagram, SendOpcode};

use super::QueuePair;
use super::pieces::{gather, scatter, spans};
use super::wqe::Wqe;
use crate::adapter::Hca;
use crate::adapter::core::{Arrived, Core};
use crate::engines::mkey::Fault;
use crate::ground::event::{Event, Status};
use crate::ground::time::Ps;
use crate::wire::{DethRepr, GrhRepr, Packet, Repr};

/// Destination QP of multicast packets.
pub(crate) const MULTICAST_QP: Qpn = Qpn(0xff_ffff);
/// Every receive buffer of a datagram starts with room for a GRH.
const GRH_ROOM: usize = 40;
/// Q_Key of QP1 (IBTA 10.2.5).
const QP1_Q_KEY: u32 = 0x8001_0000;
/// A Q_Key in a WQE with this bit set means "the queue pair's own" (IBTA 10.2.5).
const CONTROLLED_Q_KEY: u32 = 1 << 31;
/// Virtual lane of subnet management.
const VL15: u8 = 15;
/// Largest datagram: the port's MTU.
const MAX_DATAGRAM: u64 = 4096;

/// Why a datagram can't be sent.
enum NotSent {
    Bad(Syndrome, String),
    Fault(Fault),
}

impl QueuePair {
    fn own_q_key(&self) -> u32 {
        match self.service {
            ServiceType::Qp0 => 0,
            ServiceType::Qp1 => QP1_Q_KEY,
            _ => self.params.q_key,
        }
    }

    /// The number that the wire knows this queue pair by.
    fn wire_qpn(&self) -> Qpn {
        match self.service {
            ServiceType::Qp0 => Qpn(0),
            ServiceType::Qp1 => Qpn(1),
            _ => self.qpn,
        }
    }

    /// Sends the one packet of a datagram and completes its WQE. Returns when the next may follow.
    /// `head` is the WQE's place in the queue.
    pub(crate) fn send_datagram(&mut self, core: &mut Core, now: Ps, wqe: &Wqe, head: u16) -> Option<Ps> {
        match self.build_datagram(core, wqe) {
            Ok((operation, packet)) => {
                let timing = &core.timing;
                let service = timing.wqe() + timing.datagram() + timing.transmit();
                let free = core.units.send(now, self.qpn.0, service);
                let data = spans(&core.fw.icm, &wqe.pieces, 0, wqe.length as usize);
                let ready = core.units.gather(now, self.qpn.0, free, data);
                let at = core.units.depart(self.qpn.0, ready);
                let (qpn, index, psn) = (self.qpn, wqe.index, self.requester.next_psn);
                let bytes = packet.len() as u32;
                core.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
                core.note(at, Event::Done { qpn, index, status: Status(None) });
                self.lane = core.launch(at, operation, packet);
                let cqn = self.params.cqn_snd;
                self.tell_signature_errors(core, now, cqn);
                if wqe.signaled {
                    let mut cqe = self.cqe(CqeOpcode::Req, wqe.index);
                    cqe.set(Cqe::SEND_WQE_OPCODE, wqe.opcode as u32).set(Cqe::BYTE_CNT, wqe.length as u32);
                    self.complete_at(core, at + core.units.completion_latency(), cqe, Vec::new());
                }
                (self.sends() && !self.sq.is_empty()).then_some(free + core.units.pause())
            }
            Err(NotSent::Fault(fault)) if self.wait_to_send_datagram(core, now, fault, wqe, head) => None,
            Err(not_sent) => {
                let (syndrome, why) = match not_sent {
                    NotSent::Bad(syndrome, why) => (syndrome, why),
                    NotSent::Fault(fault) => (Syndrome::LocalProtection, fault.to_string()),
                };
                core.diagnose(now, format_args!("QP {}: datagram WQE {}: {why}", self.qpn, wqe.index));
                self.complete_send_error(core, now, wqe.index, wqe.opcode, syndrome);
                self.fail_sends(core, now, None);
                None
            }
        }
    }

    fn build_datagram(&self, core: &Core, wqe: &Wqe) -> Result<(Operation, Packet), NotSent> {
        let bad = |why: &str| NotSent::Bad(Syndrome::LocalQpOperation, why.to_string());
        let operation = match wqe.opcode {
            SendOpcode::Send => Operation::SendOnly,
            SendOpcode::SendImm => Operation::SendOnlyImm,
            other => return Err(bad(&format!("{other:?} is not an operation of a datagram queue pair"))),
        };
        let av = wqe.datagram.ok_or_else(|| bad("no address vector"))?;
        let port = core.fw.port(1).ok_or_else(|| bad("no port"))?;
        if wqe.length > MAX_DATAGRAM {
            let why = format!("{} bytes are more than one packet", wqe.length);
            return Err(NotSent::Bad(Syndrome::LocalLength, why));
        }
        let q_key = match av.get(Datagram::QKEY) {
            key if key & CONTROLLED_Q_KEY != 0 => self.own_q_key(),
            key => key,
        };
        let dlid = Lid(av.get(Datagram::RLID) as u16);
        let grh = (av.get(Datagram::GRH) == 1).then(|| GrhRepr {
            sgid: port.gid(av.get(Datagram::SGID_INDEX)),
            dgid: Gid::new(av.get(Datagram::RGID_H), av.get(Datagram::RGID_L)),
            tclass: av.get(Datagram::TCLASS) as u8,
            flow_label: av.get(Datagram::FLOW_LABEL),
            hop_limit: av.get(Datagram::HOP_LIMIT) as u8,
        });
        let repr = Repr {
            sl: av.get(Datagram::SL) as u8,
            vl: if self.service == ServiceType::Qp0 { VL15 } else { 0 },
            dlid,
            slid: port.source_lid(av.get(Datagram::MLID)),
            grh,
            transport: Transport::Ud,
            operation,
            solicited: wqe.solicited,
            pkey: port.pkey(self.params.path.get(AddressPath::PKEY_INDEX)),
            dest_qp: if dlid.is_multicast() { MULTICAST_QP } else { Qpn(av.get(Datagram::DQPN)) },
            psn: self.requester.next_psn,
            deth: Some(DethRepr { q_key, src_qp: self.wire_qpn() }),
            imm: (operation == Operation::SendOnlyImm).then_some(wqe.imm),
            ..Repr::default()
        };
        let who = self.accessor();
        Packet::build_with(&repr, wqe.length as usize, |buf| gather(core, who, &wqe.pieces, 0, buf))
            .map(|p| (operation, p))
            .map_err(NotSent::Fault)
    }

    /// A datagram for this queue pair.
    pub(crate) fn receive_datagram(&mut self, core: &mut Core, now: Ps, arrived: &Arrived) {
        let (repr, payload) = (arrived.repr(), arrived.payload());
        let Some(deth) = repr.deth else { return };
        if deth.q_key != self.own_q_key() {
            core.diagnose(
                now,
                format_args!("datagram for QP {} dropped: Q_Key {:#x} is not the QP's", self.qpn, deth.q_key),
            );
            core.key_violation(now, repr, true);
            return;
        }
        let Ok(receive) = self.take_receive(core, now, None) else {
            tracing::debug!(hca = core.name, %now, "datagram for QP {} dropped: no receive posted", self.qpn);
            core.fw.icm.count(self.qpn, QCounter::OutOfBuffer);
            return;
        };
        let total = GRH_ROOM + payload.len();
        if total as u64 > receive.room {
            self.complete_receive_error(core, now, &receive, Syndrome::LocalLength);
            return self.fail(core, now, None);
        }
        let who = self.local(&receive);
        let grh = arrived.grh();
        let written = grh
            .map_or(Ok(()), |grh| scatter(core, who, &receive.pieces, 0, &grh))
            .and_then(|()| scatter(core, who, &receive.pieces, GRH_ROOM as u64, payload));
        if let Err(fault) = written {
            core.diagnose(now, format_args!("QP {}: receive: {fault}", self.qpn));
            self.complete_receive_error(core, now, &receive, Syndrome::LocalProtection);
            return self.fail(core, now, None);
        }
        core.note(now, self.executed(repr, payload));
        let opcode = if repr.imm.is_some() { CqeOpcode::RespSendImm } else { CqeOpcode::RespSend };
        let (cqn, mut cqe) = self.receive_cqe(opcode, &receive);
        self.tell_signature_errors(core, now, cqn);
        cqe.set(Cqe::BYTE_CNT, total as u32).set(Cqe::RQPN, deth.src_qp.0).set(Cqe::SLID, repr.slid.0.into());
        cqe.set(Cqe::SL, repr.sl.into()).set(Cqe::GRH, repr.grh.is_some().into());
        cqe.set(Cqe::SE, repr.solicited.into());
        cqe.set(Cqe::ML_PATH, core.fw.port(1).map_or(0, |p| p.path_bits(repr.dlid)));
        cqe.set(Cqe::IMM_INVAL_PKEY, repr.imm.unwrap_or(u32::from(repr.pkey)));
        self.complete(core, now, cqn, cqe);
    }
}

impl Hca {
    /// A multicast datagram: a copy to each member of its group on this adapter.
    pub(crate) fn receive_multicast(&mut self, now: Ps, arrived: &Arrived) {
        let repr = arrived.repr();
        let Some(dgid) = repr.grh.as_ref().map(|g| g.dgid) else { return };
        for qpn in self.members(dgid) {
            let Some(qp) = self.qps.get_mut(qpn.0) else { continue };
            let own_packet = repr.deth.is_some_and(|d| d.src_qp == qpn)
                && self.core.fw.port(1).is_some_and(|p| p.is_own_lid(repr.slid));
            if qp.state.receives() && qp.service == ServiceType::Ud && !own_packet {
                qp.receive_datagram(&mut self.core, now, arrived);
            }
        }
    }

    fn members(&self, group: Gid) -> Vec<Qpn> {
        self.core.fw.icm.mcgs.iter().find(|g| g.gid == group).map(|g| g.qps.clone()).unwrap_or_default()
    }
}
