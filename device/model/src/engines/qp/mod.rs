//! Queue pairs in motion: what the send and receive engines know of each, and its life.
//!
//! [`send`] follows the send queue, [`requester`] turns [`message`]s into packets, [`replies`] judges what the peer
//! answers, [`responder`] checks the peer's requests, [`answers`] plans their answers, [`recv`] follows receive queues,
//! [`datagram`] plans the packets of UD, [`dci`] and [`dct`] are the ends of dynamic connections, [`umr`] changes memory
//! keys, [`run`] sends packets that are alike and [`landing`] knows where they go, [`page_fault`] waits for pages, [`memory_fault`] names them in the memory scheme, [`migration`] changes the path. What they decide is carried out by
//! [`crate::adapter`].

pub(crate) mod answers;
pub(crate) mod congestion;
pub(crate) mod credits;
pub(crate) mod datagram;
pub(crate) mod dci;
pub(crate) mod dct;
pub(crate) mod kept;
pub(crate) mod landing;
mod memory_fault;
pub(crate) mod message;
pub(crate) mod migration;
pub(crate) mod page_fault;
mod patience;
pub(crate) mod recv;
pub(crate) mod replies;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod tags;
pub(crate) mod umr;
pub(crate) mod wqe;

use std::collections::VecDeque;

use hca_firmware::icm::Qp;
use hca_spec::caps::Atomic;
use hca_spec::cqe::{Cqe, CqeOpcode};
use hca_spec::ids::{Cqn, Pd, Qpn};
use hca_spec::qpc::{AddressPath, OFFLOAD_RENDEZVOUS, QpState, Qpc, ServiceType, mtu_bytes, send_dbr_mode};
use hca_spec::wire::Transport;

use crate::engines::mkey::Accessor;
use crate::engines::view::View;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::link_layer::{Path, Route, Station, WrongGid};
use crate::wire::Repr;

use congestion::Congestion;
use recv::ReceiveQueue;
use requester::Requester;
use responder::Responder;
use send::SendQueue;
use tags::Offload;
use wqe::Wqe;

/// `user_index` that asks for version 0 CQEs.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// Parameters of a queue pair, read from its context once per transition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params {
    pub(crate) pd: Pd,
    /// The reserved local key is for it, too.
    pub(crate) rlky: bool,
    pub(crate) mtu: usize,
    pub(crate) log_msg_max: u32,
    pub(crate) remote_qpn: Qpn,
    /// Where its packets go.
    pub(crate) route: Route,
    pub(crate) retry_count: u32,
    pub(crate) rnr_retry: u32,
    pub(crate) ack_timeout: Option<Ps>,
    pub(crate) sra_max: usize,
    pub(crate) rra_max: usize,
    pub(crate) remote_read: bool,
    pub(crate) remote_write: bool,
    pub(crate) remote_atomic: bool,
    /// Bit n: the adapter has masked atomics of 2^n bytes.
    pub(crate) masked_sizes: u32,
    /// See [`Qpc::ATOMIC_MODE`].
    pub(crate) atomic_mode: u32,
    pub(crate) min_rnr_nak: u32,
    pub(crate) cqn_snd: Cqn,
    pub(crate) cqn_rcv: Cqn,
    pub(crate) q_key: u32,
    /// The source that its datagrams name instead of its own number.
    pub(crate) source: Option<Qpn>,
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
    /// Datagrams that it sends to a group of which it is a member don't come back to it.
    pub(crate) blocks_own: bool,
    /// A signature error drains the send queue.
    pub(crate) drain_sigerr: bool,
    /// An initiator with streams: with so many of them in error it is in error itself.
    pub(crate) most_errored: Option<usize>,
    /// The doorbell record counts what is in the send queue; if not, doorbells do.
    pub(crate) has_record: bool,
    /// It has no send queue of its driver, and fetches data that messages announce by itself.
    pub(crate) offloads: bool,
}

impl Params {
    /// Whether a peer may ask for a masked atomic of `2^log_size` bytes: the mode is log2 of the largest.
    pub(crate) fn takes_masked(&self, log_size: u8) -> bool {
        let log_size = u32::from(log_size);
        self.masked_sizes.checked_shr(log_size).is_some_and(|sizes| sizes & 1 == 1)
            && self.atomic_mode >= log_size
    }

    pub(crate) fn new(view: &View<'_>, ctx: &Qpc) -> Self {
        let path = ctx.primary_path();
        let route = view.route_of(path);
        Self {
            pd: Pd(ctx.get(Qpc::PD)),
            rlky: ctx.get(Qpc::RLKY) == 1,
            blocks_own: ctx.get(Qpc::BLOCK_LB_MC) == 1,
            mtu: mtu_bytes(ctx.get(Qpc::MTU)).unwrap_or(256),
            log_msg_max: ctx.get(Qpc::LOG_MSG_MAX),
            remote_qpn: Qpn(ctx.get(Qpc::REMOTE_QPN)),
            route: view.resolved(route),
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
            masked_sizes: view.masked_sizes(Atomic::ATOMIC_SIZE_QP),
            atomic_mode: ctx.get(Qpc::ATOMIC_MODE),
            min_rnr_nak: ctx.get(Qpc::MIN_RNR_NAK),
            cqn_snd: Cqn(ctx.get(Qpc::CQN_SND)),
            cqn_rcv: Cqn(ctx.get(Qpc::CQN_RCV)),
            q_key: ctx.get(Qpc::Q_KEY),
            source: Some(Qpn(ctx.get(Qpc::DETH_SQPN))).filter(|source| source.0 != 0),
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
            most_errored: match (
                ctx.get(Qpc::LOG_NUM_DCI_STREAM_CHANNELS),
                ctx.get(Qpc::LOG_NUM_DCI_ERRORED_STREAMS),
            ) {
                (0, 0) => None,
                (_, errored) => Some(1_usize.checked_shl(errored).unwrap_or(usize::MAX)),
            },
            has_record: ctx.get(Qpc::SEND_DBR_MODE) == send_dbr_mode::RECORD,
            offloads: ctx.get(Qpc::OFFLOAD_TYPE) == OFFLOAD_RENDEZVOUS && ctx.get(Qpc::NO_SQ) == 1,
        }
    }
}

/// A lane of a port's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PortLane {
    pub(crate) port: u8,
    pub(crate) lane: u8,
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
    Responder(Box<dct::Connection>),
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
    /// Packets of the message at the cursor that are alike.
    pub(crate) run: Option<Box<run::Run>>,
    /// The lane of what it sent last.
    pub(crate) lane: u8,
    /// Dynamic connections: which end this is, and of which.
    pub(crate) dynamic: Dynamic,
    /// In error: when the receive doorbell record is looked at next, and the interval after that.
    pub(crate) error_poll: Option<(Ps, Ps)>,
    /// An event was asked for when the send queue is drained.
    pub(crate) drained_event: bool,
    /// The peer's request to migrate was refused, and the driver told.
    pub(crate) migration_refused: bool,
    /// A send queue on its own, for frames: the transport interface by which it sends, if it has one.
    pub(crate) frames: Option<FrameSender>,
    /// What it knows of congestion, if it ever met any.
    pub(crate) congestion: Option<Box<Congestion>>,
    /// The element that its requests are sent by; 0: none.
    pub(crate) group: u32,
    /// Requests of the adapter's own, not begun yet.
    pub(crate) offloads: VecDeque<Box<Wqe>>,
}

/// What a send queue on its own is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSender {
    /// Its transport interface (TIS). Without one it sends nothing.
    pub(crate) tis: Option<u32>,
    /// Headers that WQEs have to carry inline (`min_wqe_inline_mode`).
    pub(crate) inline_mode: u8,
    /// No WQE is begun before: its rate is used up until then.
    pub(crate) not_before: Ps,
}

impl QueuePair {
    pub(crate) fn new(view: &View<'_>, qpn: Qpn, qp: &Qp) -> Self {
        Self {
            qpn,
            service: qp.service(),
            state: QpState::Reset,
            params: Params::new(view, &qp.ctx),
            sq: SendQueue::default(),
            rq: ReceiveQueue::new(qp),
            requester: Requester::default(),
            responder: Responder::default(),
            run: None,
            lane: 0,
            dynamic: match qp.service() {
                ServiceType::Dci => Dynamic::Initiator(Box::default()),
                _ => Dynamic::No,
            },
            error_poll: None,
            drained_event: false,
            migration_refused: false,
            congestion: None,
            offloads: VecDeque::new(),
            group: qp.groups.first().copied().unwrap_or(0),
            frames: qp.send_only.map(|sq| FrameSender {
                tis: sq.tis,
                inline_mode: sq.min_inline_mode,
                not_before: Ps::ZERO,
            }),
        }
    }

    /// Where it waits for its next turn to send.
    #[inline]
    pub(crate) fn port_lane(&self) -> PortLane {
        PortLane { port: self.port(), lane: self.lane }
    }

    /// The port that its packets leave and arrive by.
    #[inline]
    pub(crate) fn port(&self) -> u8 {
        self.params.route.port()
    }

    /// What its packets to the connected peer travel by.
    #[inline]
    pub(crate) fn path(&self, view: &View<'_>) -> Option<Path> {
        Some(self.params.route.path(view.port(self.port())?))
    }

    pub(crate) fn accessor(&self) -> Accessor {
        Accessor { qpn: self.qpn, pd: self.params.pd, rlky: self.params.rlky }
    }

    /// Who looks up the memory of a request.
    pub(crate) fn requester_of(&self, wqe: &Wqe) -> Accessor {
        match wqe.offload {
            Some(Offload::Fetch { owner, .. }) => Accessor { pd: owner.pd, ..self.accessor() },
            _ => self.accessor(),
        }
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

    /// Whether it is a queue pair of the driver's. A DC target lives on when one of its connections fails: there are no
    /// events about these.
    pub(crate) fn is_drivers(&self) -> bool {
        !matches!(self.dynamic, Dynamic::Responder(_))
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
    #[inline(always)]
    pub(crate) fn connected_repr(&self, view: &View<'_>) -> Option<Repr> {
        let mut repr = Repr::default();
        self.put_connected(view, &mut repr)?;
        Some(repr)
    }

    /// The same, put into fields that are those of [`Repr::default`]. `None`: there is no such port.
    #[inline(always)]
    pub(crate) fn put_connected(&self, view: &View<'_>, repr: &mut Repr) -> Option<()> {
        let port = view.port(self.port())?;
        (repr.transport, repr.migrated) = (self.transport(), self.says_migrated());
        (repr.pkey, repr.dest_qp) = (self.params.route.pkey(port), self.params.remote_qpn);
        Some(())
    }

    /// Writes the moving parts into the context, for queries. `posted`: the receive counter of its doorbell record, if that
    /// can be read.
    pub(crate) fn write_back(&self, posted: Option<u16>, ctx: &mut Qpc) {
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
        let (consumed, posted) = self.rq.counters(posted);
        ctx.set(Qpc::HW_RQ_COUNTER, consumed.into()).set(Qpc::SW_RQ_COUNTER, posted.into());
    }

    /// Whether the queue pair takes a packet that arrives for it, but for what only its transport can report.
    #[inline(always)]
    pub(crate) fn admits(&self, view: &View<'_>, repr: &Repr) -> Result<(), NotAdmitted> {
        if !self.state.receives() || self.transport() != repr.transport {
            return Err(NotAdmitted::State);
        }
        let port = view.port(self.port());
        let own = match self.is_asked_to_migrate(repr.migrated) {
            false => port.map_or(0, |port| self.params.route.pkey(port)),
            true => self.alternate_pkey(view),
        };
        // The general services are of all partitions of their port (IBTA 10.9.3).
        let is_of = match self.service {
            ServiceType::Qp0 => true,
            ServiceType::Qp1 => port.is_some_and(|port| port.pkeys().any(|own| pkeys_match(own, repr.pkey))),
            _ => pkeys_match(own, repr.pkey),
        };
        if is_of { Ok(()) } else { Err(NotAdmitted::Partition { own }) }
    }

    /// Whether a datagram that came by `port` is for a GID of that port, or for a group of the queue pair, as far as it has a GRH. The general
    /// services are reached by well known GIDs, too.
    fn check_destination(&self, view: &View<'_>, port: u8, path: &Path) -> Result<(), WrongWay> {
        let Some(wrong) = view.port(port).and_then(|port| path.stray_gid(port)) else { return Ok(()) };
        let is_member = || {
            let mut groups = view.icm().mcgs.iter();
            groups.any(|group| Some(group.gid) == wrong.found && group.qps.contains(&self.qpn))
        };
        match self.service != ServiceType::Ud || is_member() {
            true => Ok(()),
            false => Err(WrongWay::Gid(wrong)),
        }
    }

    /// Whether a packet that came by `port` took the way that the queue pair's packets have to take (IBTA 9.6.1).
    #[inline(always)]
    pub(crate) fn check_way(&self, view: &View<'_>, port: u8, path: &Path) -> Result<(), WrongWay> {
        if port != self.port() {
            return Err(WrongWay::Port(self.port()));
        }
        if self.transport() == Transport::Ud {
            return self.check_destination(view, port, path);
        }
        let route = &self.params.route;
        if route.is_led_back(path) {
            return Ok(());
        }
        if path.source() != route.peer() {
            return Err(WrongWay::Peer(route.peer()));
        }
        match view.port(port).and_then(|port| route.wrong_gid(port, path)) {
            Some(wrong) => Err(WrongWay::Gid(wrong)),
            None => Ok(()),
        }
    }
}

/// A packet that came another way than the queue pair's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongWay {
    /// The queue pair is at this port.
    Port(u8),
    /// The queue pair is connected to this one.
    Peer(Station),
    /// A GID in the packet's GRH is not that of the queue pair's path, or it has no GRH and the path has.
    Gid(WrongGid),
}

/// Why a queue pair does not take a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// It does not receive, or is of another service.
    State,
    /// The packet is of another partition; the queue pair has this P_Key (IBTA 10.9.3).
    Partition { own: u16 },
}

/// Whether two P_Keys are of one partition and not both limited members (IBTA 10.9.3).
pub(crate) fn pkeys_match(a: u16, b: u16) -> bool {
    const MEMBERSHIP: u16 = 0x8000;
    a & !MEMBERSHIP == b & !MEMBERSHIP && a & !MEMBERSHIP != 0 && (a | b) & MEMBERSHIP != 0
}

impl Rebase for FrameSender {
    fn rebase(&mut self, by: Ps) {
        let Self { not_before, tis: _, inline_mode: _ } = self;
        not_before.rebase(by);
    }
}

impl Rebase for Dynamic {
    fn rebase(&mut self, by: Ps) {
        match self {
            Self::No => {}
            Self::Initiator(initiator) => initiator.rebase(by),
            Self::Responder(connection) => connection.rebase(by),
        }
    }
}

impl Rebase for QueuePair {
    fn rebase(&mut self, by: Ps) {
        let Self { qpn: _, service: _, state: _, params: _, sq, rq: _, requester, responder, .. } = self;
        sq.rebase(by);
        requester.rebase(by);
        responder.rebase(by);
        let Self { run: _, lane: _, dynamic, error_poll, drained_event: _, .. } = self;
        dynamic.rebase(by);
        if let Some((at, _)) = error_poll {
            at.rebase(by);
        }
        let Self { migration_refused: _, frames, congestion, group: _, offloads: _, .. } = self;
        frames.rebase(by);
        congestion.rebase(by);
    }
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
