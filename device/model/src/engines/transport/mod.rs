//! Queue pairs in motion: what the send and receive engines know of each, and its life.
//!
//! [`send`] fetches WQEs and gives turns, [`requester`] turns [`message`]s into packets, [`replies`] turns answers
//! into completions, [`responder`] takes the peer's requests, [`execute`] executes them, [`answers`] answers them,
//! [`recv`] hands out receive buffers, [`datagram`] does all of that for UD, [`dci`] and [`dct`] are the ends of
//! dynamic connections, [`umr`] changes memory keys;
//! [`page_fault`] waits for pages; [`migration`] changes the path; [`life`] is what happens when the state changes.

pub(crate) mod answers;
pub(crate) mod credits;
pub(crate) mod datagram;
pub(crate) mod dci;
pub(crate) mod dct;
pub(crate) mod execute;
pub(crate) mod life;
pub(crate) mod message;
pub(crate) mod migration;
pub(crate) mod page_fault;
pub(crate) mod pieces;
pub(crate) mod recv;
pub(crate) mod replies;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod send;
pub(crate) mod umr;
pub(crate) mod wqe;

use hca_firmware::icm::Qp;
use hca_spec::cqe::{Cqe, CqeOpcode};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Gid, Lid, Pd, Qpn};
use hca_spec::qpc::{AddressPath, QpState, Qpc, ServiceType, mtu_bytes};
use hca_spec::wire::Transport;

use crate::adapter::Hca;
use crate::adapter::core::{Arrived, Core};
use crate::engines::mkey::Accessor;
use crate::ground::dma::GuestMemory;
use crate::ground::time::Ps;
use crate::wire::{GrhRepr, Repr};

use recv::ReceiveQueue;
use requester::Requester;
use responder::Responder;
use send::SendQueue;

/// `user_index` that asks for version 0 CQEs.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// Parameters of a queue pair, read from its context once per transition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params {
    pub(crate) pd: Pd,
    pub(crate) mtu: usize,
    pub(crate) log_msg_max: u32,
    pub(crate) remote_qpn: Qpn,
    pub(crate) path: AddressPath,
    pub(crate) retry_count: u32,
    pub(crate) rnr_retry: u32,
    pub(crate) ack_timeout: Option<Ps>,
    pub(crate) sra_max: usize,
    pub(crate) rra_max: usize,
    pub(crate) remote_read: bool,
    pub(crate) remote_write: bool,
    pub(crate) remote_atomic: bool,
    pub(crate) min_rnr_nak: u32,
    pub(crate) cqn_snd: Cqn,
    pub(crate) cqn_rcv: Cqn,
    pub(crate) q_key: u32,
    pub(crate) user_index: u32,
    pub(crate) doorbell_record: u64,
    pub(crate) log_sq_size: u32,
    pub(crate) has_sq: bool,
    pub(crate) xrcd: u32,
    /// "Scatter to CQE" of reads and atomics, and of receives.
    pub(crate) scatter_request: u32,
    pub(crate) scatter_response: u32,
    pub(crate) log_ack_req_freq: u32,
    /// See [`hca_spec::qpc::path_migration`].
    pub(crate) path_migration: u32,
    /// A signature error drains the send queue.
    pub(crate) drain_sigerr: bool,
}

impl Params {
    fn new(ctx: &Qpc) -> Self {
        let path = *ctx.primary_path();
        Self {
            pd: Pd(ctx.get(Qpc::PD)),
            mtu: mtu_bytes(ctx.get(Qpc::MTU)).unwrap_or(256),
            log_msg_max: ctx.get(Qpc::LOG_MSG_MAX),
            remote_qpn: Qpn(ctx.get(Qpc::REMOTE_QPN)),
            path,
            retry_count: ctx.get(Qpc::RETRY_COUNT),
            rnr_retry: ctx.get(Qpc::RNR_RETRY),
            // 4.096 us * 2^n, 0 = never (IBTA 9.7.6.1.3).
            ack_timeout: match path.get(AddressPath::ACK_TIMEOUT) {
                0 => None,
                n => Some(Ps::from_ns(4096).times(1 << n)),
            },
            sra_max: 1 << ctx.get(Qpc::LOG_SRA_MAX),
            rra_max: 1 << ctx.get(Qpc::LOG_RRA_MAX),
            remote_read: ctx.get(Qpc::RRE) == 1,
            remote_write: ctx.get(Qpc::RWE) == 1,
            remote_atomic: ctx.get(Qpc::RAE) == 1,
            min_rnr_nak: ctx.get(Qpc::MIN_RNR_NAK),
            cqn_snd: Cqn(ctx.get(Qpc::CQN_SND)),
            cqn_rcv: Cqn(ctx.get(Qpc::CQN_RCV)),
            q_key: ctx.get(Qpc::Q_KEY),
            user_index: ctx.get(Qpc::USER_INDEX),
            doorbell_record: ctx.get(Qpc::DBR_ADDR),
            log_sq_size: ctx.get(Qpc::LOG_SQ_SIZE),
            has_sq: ctx.get(Qpc::NO_SQ) == 0,
            xrcd: ctx.get(Qpc::XRCD),
            scatter_request: ctx.get(Qpc::CS_REQ),
            scatter_response: ctx.get(Qpc::CS_RES),
            log_ack_req_freq: ctx.get(Qpc::LOG_ACK_REQ_FREQ),
            path_migration: ctx.get(Qpc::PM_STATE),
            drain_sigerr: ctx.get(Qpc::DRAIN_SIGERR) == 1,
        }
    }
}

/// What a queue pair has to do with dynamic connections.
#[derive(Debug, Default)]
pub(crate) enum Dynamic {
    /// Nothing.
    #[default]
    No,
    /// It is an initiator.
    Initiator(Box<dci::Initiator>),
    /// It is no queue pair of the driver, but the responder that a target has for one initiator.
    Responder(Box<dct::Link>),
}

/// The moving parts of a queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    pub(crate) service: ServiceType,
    pub(crate) state: QpState,
    pub(crate) params: Params,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// The virtual lane of what it sent last: where it waits for its next turn.
    pub(crate) lane: u8,
    /// Dynamic connections: which end this is, and of which.
    pub(crate) dynamic: Dynamic,
    /// In error: when the receive doorbell record is looked at next, and the interval after that.
    error_poll: Option<(Ps, Ps)>,
    /// An event was asked for when the send queue is drained.
    drained_event: bool,
    /// The peer's request to migrate was refused, and the driver told.
    migration_refused: bool,
}

impl QueuePair {
    fn new(qpn: Qpn, qp: &Qp) -> Self {
        Self {
            qpn,
            service: qp.service(),
            state: QpState::Reset,
            params: Params::new(&qp.ctx),
            sq: SendQueue::default(),
            rq: ReceiveQueue::new(qp),
            requester: Requester::default(),
            responder: Responder::default(),
            lane: 0,
            dynamic: match qp.service() {
                ServiceType::Dci => Dynamic::Initiator(Box::default()),
                _ => Dynamic::No,
            },
            error_poll: None,
            drained_event: false,
            migration_refused: false,
        }
    }

    pub(crate) fn accessor(&self) -> Accessor {
        Accessor { qpn: self.qpn, pd: self.params.pd }
    }

    pub(crate) fn transport(&self) -> Transport {
        match self.service {
            ServiceType::Uc => Transport::Uc,
            ServiceType::Xrc => Transport::Xrc,
            ServiceType::Dci | ServiceType::Dct => Transport::Dc,
            ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1 => Transport::Ud,
            ServiceType::Rc | ServiceType::RegUmr => Transport::Rc,
        }
    }

    /// Whether started send WQEs go on; new ones are started in RTS only.
    pub(crate) fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::SqDraining)
    }

    /// An event about this queue pair. A DC target lives on when one of its connections fails, so there is none.
    pub(crate) fn raise(&self, core: &mut Core, now: Ps, event: EventType) {
        match self.dynamic {
            Dynamic::Responder(_) => {
                tracing::debug!(hca = core.name, %now, ?event, "a connection of DCT {}", self.qpn)
            }
            _ => core.push_qp_event(now, event, self.qpn),
        }
    }

    /// A CQE of this queue pair with the fields that every kind has.
    pub(crate) fn cqe(&self, opcode: CqeOpcode, wqe_counter: u16) -> Cqe {
        let mut cqe = Cqe::new();
        cqe.set(Cqe::OPCODE, opcode as u32)
            .set(Cqe::QPN, self.qpn.0)
            .set(Cqe::WQE_COUNTER, wqe_counter.into());
        if self.params.user_index != NO_USER_INDEX {
            cqe.set(Cqe::SRQN_USER_INDEX, self.params.user_index);
        } else if opcode != CqeOpcode::Req && opcode != CqeOpcode::ReqErr {
            cqe.set(Cqe::SRQN_USER_INDEX, self.rq.shared().map_or(0, |s| s.0));
        }
        cqe
    }

    /// Header fields of a packet to the connected peer; the caller adds what its operation needs.
    pub(crate) fn connected_repr(&self, core: &Core) -> Option<Repr> {
        let port = core.fw.port(1)?;
        let path = &self.params.path;
        let grh = (path.get(AddressPath::GRH) == 1).then(|| GrhRepr {
            sgid: port.gid(path.get(AddressPath::SRC_ADDR_INDEX)),
            dgid: Gid::new(path.get(AddressPath::RGID_H), path.get(AddressPath::RGID_L)),
            tclass: path.get(AddressPath::TCLASS) as u8,
            flow_label: path.get(AddressPath::FLOW_LABEL),
            hop_limit: path.get(AddressPath::HOP_LIMIT) as u8,
        });
        Some(Repr {
            sl: path.get(AddressPath::SL) as u8,
            dlid: Lid(path.get(AddressPath::RLID) as u16),
            slid: port.source_lid(path.get(AddressPath::MLID)),
            grh,
            transport: self.transport(),
            migrated: self.says_migrated(),
            pkey: port.pkey(path.get(AddressPath::PKEY_INDEX)),
            dest_qp: self.params.remote_qpn,
            ..Repr::default()
        })
    }

    /// Writes the moving parts into the context, for queries.
    pub(crate) fn write_back(&mut self, memory: &dyn GuestMemory, ctx: &mut Qpc) {
        ctx.set(Qpc::STATE, self.state as u32);
        if self.state == QpState::Reset {
            return;
        }
        ctx.set(Qpc::NEXT_SEND_PSN, self.requester.next_psn.get());
        ctx.set(Qpc::LAST_ACKED_PSN, self.requester.oldest().prev().get());
        ctx.set(Qpc::SSN, self.requester.ssn());
        ctx.set(Qpc::CUR_RETRY_COUNT, self.requester.retries_left);
        ctx.set(Qpc::CUR_RNR_RETRY, self.requester.rnr_left);
        ctx.set(Qpc::NEXT_RCV_PSN, self.responder.epsn.get()).set(Qpc::RMSN, self.responder.msn);
        ctx.set(Qpc::HW_SQ_WQEBB_COUNTER, self.sq.head.into());
        ctx.set(Qpc::SW_SQ_WQEBB_COUNTER, self.sq.posted.into());
        let (consumed, posted) = self.rq.counters(memory, self.params.doorbell_record);
        ctx.set(Qpc::HW_RQ_COUNTER, consumed.into()).set(Qpc::SW_RQ_COUNTER, posted.into());
    }
}

impl Hca {
    /// A packet has passed the receive pipeline: to its queue pair.
    pub(crate) fn receive(&mut self, now: Ps, arrived: &Arrived) {
        let (repr, payload) = (arrived.repr(), arrived.payload());
        if repr.dest_qp == datagram::MULTICAST_QP {
            return self.receive_multicast(now, arrived);
        }
        if repr.transport == Transport::Dc && !repr.operation.is_response() {
            return self.receive_dynamic(now, arrived);
        }
        let qpn = match repr.dest_qp {
            Qpn(special @ 0..=1) => self.special_qp(special),
            other => Some(other),
        };
        if qpn.is_none() {
            return self.agent(now, arrived);
        }
        let Some(qp) = qpn.and_then(|n| self.qps.get_mut(n.0)) else {
            tracing::debug!(hca = self.core.name, %now, "packet for QP {} dropped: no such QP", repr.dest_qp);
            return;
        };
        if !qp.state.receives() || qp.transport() != repr.transport {
            tracing::debug!(hca = self.core.name, %now, "packet for QP {} dropped: wrong state or service", qp.qpn);
            return;
        }
        let index = qp.params.path.get(AddressPath::PKEY_INDEX);
        let own_pkey = self.core.fw.port(1).map_or(0, |p| p.pkey(index));
        if qp.service != ServiceType::Qp0
            && qp.service != ServiceType::Qp1
            && !pkeys_match(own_pkey, repr.pkey)
        {
            self.core.diagnose(
                now,
                format_args!(
                    "packet for QP {} dropped: its P_Key {:#x} does not match the QP's {own_pkey:#x} (IBTA 10.9.3)",
                    qp.qpn, repr.pkey
                ),
            );
            self.core.key_violation(now, repr, false);
            return;
        }
        qp.hear_migration(&mut self.core, now, repr);
        let peer = qp.params.path.get(AddressPath::RLID);
        if qp.transport() != Transport::Ud && u32::from(repr.slid.0) != peer {
            self.core.diagnose(
                now,
                format_args!(
                    "packet for QP {} dropped: it comes from LID {:#x}, the QP is connected to {peer:#x} (IBTA 9.6.1)",
                    qp.qpn, repr.slid.0
                ),
            );
            return;
        }
        match qp.service {
            ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1 => {
                qp.receive_datagram(&mut self.core, now, arrived);
            }
            _ if repr.operation.is_response() => qp.receive_response(&mut self.core, now, repr, payload),
            _ => qp.receive_request(&mut self.core, now, repr, payload),
        }
    }

    fn special_qp(&mut self, number: u32) -> Option<Qpn> {
        let service = if number == 0 { ServiceType::Qp0 } else { ServiceType::Qp1 };
        self.qps.iter_mut().find(|(_, q)| q.service == service && q.state.receives()).map(|(n, _)| Qpn(n))
    }
}

/// Whether two P_Keys are of one partition and not both limited members (IBTA 10.9.3).
fn pkeys_match(a: u16, b: u16) -> bool {
    const MEMBERSHIP: u16 = 0x8000;
    a & !MEMBERSHIP == b & !MEMBERSHIP && a & !MEMBERSHIP != 0 && (a | b) & MEMBERSHIP != 0
}

#[cfg(test)]
mod tests {
    use super::pkeys_match;

    #[test]
    fn partition_rules() {
        assert!(pkeys_match(0xffff, 0xffff));
        assert!(pkeys_match(0xffff, 0x7fff));
        assert!(!pkeys_match(0x7fff, 0x7fff), "two limited members");
        assert!(!pkeys_match(0x8001, 0x8002));
        assert!(!pkeys_match(0x8000, 0x8000), "invalid key");
    }
}
