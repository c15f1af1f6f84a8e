//! UD and the special queue pairs: one packet a message, an address vector in each WQE.
//!
//! Source: IBTA 9.6.1.4.1 (QP0 asks for no Q_Key), 9.8.3 (unreliable datagram), 10.2.5 (Q_Keys), 11.4.1.2 (the 40 bytes for a
//! GRH), 13.4 (size of management datagrams), 13.5.3.1 (what QP0 and QP1 take; qib driver, `qib_ud_rcv`); PRM "Datagram Segment".

use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ids::{Cqn, Qpn};
use hca_spec::mad::MAD_SIZE;
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{Operation, Transport};
use hca_spec::wqe::{Datagram, SendOpcode};

use super::QueuePair;
use super::recv::Receive;
use super::wqe::Wqe;
use crate::engines::view::View;
use crate::link_layer::Path;
use crate::wire::{DethRepr, Repr};

/// Destination QP of multicast packets.
pub(crate) const MULTICAST_QP: Qpn = Qpn(0xff_ffff);
/// Every receive buffer of a datagram starts with room for a GRH.
pub(crate) const GRH_ROOM: usize = 40;
/// Q_Key of QP1 (IBTA 10.2.5).
const QP1_Q_KEY: u32 = 0x8001_0000;
/// A Q_Key in a WQE with this bit set means "the queue pair's own" (IBTA 10.2.5).
const CONTROLLED_Q_KEY: u32 = 1 << 31;
/// Largest datagram: the port's MTU.
const MAX_DATAGRAM: u64 = 4096;

/// Why a datagram can't be sent: the syndrome of its completion, and in plain words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadDatagram(pub(crate) Syndrome, pub(crate) String);

impl QueuePair {
    /// Its own Q_Key.
    pub(crate) fn own_q_key(&self) -> u32 {
        match self.service {
            ServiceType::Qp0 => 0,
            ServiceType::Qp1 => QP1_Q_KEY,
            _ => self.params.q_key,
        }
    }

    /// The number that its datagrams say they come from. One that speaks for another hears no answers: they go to that one.
    fn wire_qpn(&self) -> Qpn {
        match self.service {
            ServiceType::Qp0 => Qpn(0),
            ServiceType::Qp1 => Qpn(1),
            _ => self.params.source.unwrap_or(self.qpn),
        }
    }

    /// Whether a datagram's Q_Key is the one that it takes. QP0 asks for none: its lane is what keeps others out.
    pub(crate) fn takes_q_key(&self, q_key: u32) -> bool {
        self.service == ServiceType::Qp0 || q_key == self.own_q_key()
    }

    /// Whether it takes a datagram with these headers and so many bytes, of those that its Q_Key lets in. QP0 and QP1 take management
    /// datagrams alone, QP0 those of the lane of subnet management and QP1 the others: the rest is nobody's, and costs no receive request.
    pub(crate) fn takes_datagram(&self, path: &Path, repr: &Repr, len: usize) -> bool {
        let managing = match self.service {
            ServiceType::Qp0 => true,
            ServiceType::Qp1 => false,
            _ => return true,
        };
        path.is_managing() == managing && repr.operation == Operation::SendOnly && len == MAD_SIZE
    }

    /// The one packet of a datagram: what it travels by, and its headers.
    pub(crate) fn plan_datagram(&self, view: &View<'_>, wqe: &Wqe) -> Result<(Path, Repr), BadDatagram> {
        let bad = |why: &str| BadDatagram(Syndrome::LocalQpOperation, why.to_string());
        let operation = match wqe.opcode {
            SendOpcode::Send => Operation::SendOnly,
            SendOpcode::SendImm => Operation::SendOnlyImm,
            other => return Err(bad(&format!("{other:?} is not an operation of a datagram queue pair"))),
        };
        let av = wqe.datagram.ok_or_else(|| bad("no address vector"))?;
        let port = view.port(self.port()).ok_or_else(|| bad("no port"))?;
        if wqe.length > MAX_DATAGRAM {
            let why = format!("{} bytes are more than one packet", wqe.length);
            return Err(BadDatagram(Syndrome::LocalLength, why));
        }
        let q_key = match av.get(Datagram::QKEY) {
            key if key & CONTROLLED_Q_KEY != 0 => self.own_q_key(),
            key => key,
        };
        let mut route = self.params.route.to_vector(&av);
        if self.service == ServiceType::Qp0 {
            route = route.managing();
        }
        let route = route.resolved(Some(port));
        let path = route.path(port);
        let repr = Repr {
            transport: Transport::Ud,
            operation,
            solicited: wqe.solicited,
            pkey: route.pkey(port),
            dest_qp: if path.is_multicast() { MULTICAST_QP } else { Qpn(av.get(Datagram::DQPN)) },
            psn: self.requester.next_psn,
            deth: Some(DethRepr { q_key, src_qp: self.wire_qpn() }),
            imm: (operation == Operation::SendOnlyImm).then_some(wqe.imm),
            ..Repr::default()
        };
        Ok((path, repr))
    }

    /// The completion of a datagram that was sent.
    pub(crate) fn datagram_sent(&self, wqe: &Wqe) -> Cqe {
        let mut cqe = self.cqe(CqeOpcode::Req, wqe.index);
        cqe.set(Cqe::SEND_WQE_OPCODE, wqe.opcode as u32).set(Cqe::BYTE_CNT, wqe.length as u32);
        cqe
    }

    /// The completion of a datagram of `total` bytes, the room for its GRH included, that was received, and where it goes.
    pub(crate) fn datagram_received(
        &self,
        view: &View<'_>,
        path: &Path,
        repr: &Repr,
        receive: &Receive,
        total: usize,
    ) -> (Cqn, Cqe) {
        let opcode = if repr.imm.is_some() { CqeOpcode::RespSendImm } else { CqeOpcode::RespSend };
        let source = repr.deth.map_or(0, |deth| deth.src_qp.0);
        let (cqn, mut cqe) = self.receive_cqe(opcode, receive);
        cqe.set(Cqe::BYTE_CNT, total as u32).set(Cqe::RQPN, source).set(Cqe::SE, repr.solicited.into());
        path.tell_source(&mut cqe);
        path.tell_arrival(view.port(self.port()), &mut cqe);
        cqe.set(Cqe::IMM_INVAL_PKEY, repr.imm.unwrap_or(u32::from(repr.pkey)));
        (cqn, cqe)
    }
}
