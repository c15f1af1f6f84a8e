//! Targets of dynamic connections (DC): a responder for each initiator, made by its first packet.
//!
//! Such a responder (the vendor says DCR) is the same as a queue pair's, but for its life: it begins when an initiator
//! that knows the access key connects, and ends when that one goes elsewhere, when a request fails (the target
//! itself lives on), when the target drains, or when nothing came for long.
//!
//! Source: mlx5 driver (context, drain, events); what answers a wrong key and a full table is not public: a NAK
//! "remote access error", and an RNR NAK.

use hca_firmware::profile::LOG_MAX_RA_RES_DC;
use hca_spec::dct::{DctState, Dctc};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Lid, Pd, Qpn, Srqn};
use hca_spec::qpc::{AddressPath, QpState, ServiceType, mtu_bytes};
use hca_spec::wire::{Operation, aeth};

use super::recv::ReceiveQueue;
use super::requester::Requester;
use super::responder::Responder;
use super::send::SendQueue;
use super::{Dynamic, Params, QueuePair, pkeys_match};
use crate::adapter::Hca;
use crate::adapter::core::{Arrived, Core, HcaEvent};
use crate::ground::time::Ps;
use crate::wire::{AethRepr, DcEthRepr, Packet, Repr};

/// An initiator from which nothing came for so long is gone: it would have connected anew.
const LIFE: Ps = Ps::from_ms(60_000);
/// How often a target that drains is looked at.
const DRAIN_STEP: Ps = Ps::from_us(50);
/// Messages that are not complete by then stay so.
const DRAIN_LIMIT: Ps = Ps::from_ms(20);
/// Most connections of an adapter.
const MAX_LINKS: usize = 1 << 14;
/// Largest message: 2^30 bytes, as queue pairs have it.
const LOG_MSG_MAX: u32 = 30;

/// A target and one of its initiators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub(crate) dctn: Qpn,
    lid: Lid,
    initiator: Qpn,
}

/// What a responder of a target knows of its connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) peer: Peer,
    session: u32,
    used: Ps,
    /// When it is looked whether it is still used.
    looked_at: Ps,
}

/// The parameters of a target's responder; the way back is the way that a request came.
fn params(core: &Core, ctx: &Dctc, repr: &Repr, initiator: Qpn) -> Params {
    let mut path = AddressPath::new();
    path.set(AddressPath::RLID, repr.slid.0.into()).set(AddressPath::SL, repr.sl.into());
    path.set(AddressPath::PKEY_INDEX, ctx.get(Dctc::PKEY_INDEX));
    path.set(AddressPath::MLID, core.fw.port(1).map_or(0, |p| p.path_bits(repr.dlid)));
    if let Some(grh) = &repr.grh {
        path.set(AddressPath::GRH, 1).set(AddressPath::SRC_ADDR_INDEX, ctx.get(Dctc::MY_ADDR_INDEX));
        path.set(AddressPath::TCLASS, ctx.get(Dctc::TCLASS));
        path.set(AddressPath::FLOW_LABEL, ctx.get(Dctc::FLOW_LABEL));
        path.set(AddressPath::HOP_LIMIT, ctx.get(Dctc::HOP_LIMIT));
        path.set(AddressPath::RGID_H, hca_spec::be64(&grh.sgid.0, 0));
        path.set(AddressPath::RGID_L, hca_spec::be64(&grh.sgid.0, 8));
    }
    Params {
        pd: Pd(ctx.get(Dctc::PD)),
        mtu: mtu_bytes(ctx.get(Dctc::MTU)).unwrap_or(256),
        log_msg_max: LOG_MSG_MAX,
        remote_qpn: initiator,
        path,
        rra_max: 1 << LOG_MAX_RA_RES_DC,
        remote_read: ctx.get(Dctc::RRE) == 1,
        remote_write: ctx.get(Dctc::RWE) == 1,
        remote_atomic: ctx.get(Dctc::RAE) == 1,
        min_rnr_nak: ctx.get(Dctc::MIN_RNR_NAK),
        cqn_rcv: Cqn(ctx.get(Dctc::CQN)),
        user_index: ctx.get(Dctc::USER_INDEX),
        scatter_response: ctx.get(Dctc::CS_RES),
        ..Params::default()
    }
}

fn responder(core: &Core, now: Ps, ctx: &Dctc, repr: &Repr, eth: &DcEthRepr) -> QueuePair {
    let peer = Peer { dctn: repr.dest_qp, lid: repr.slid, initiator: eth.src_qp };
    let looked_at = now + LIFE;
    QueuePair {
        qpn: peer.dctn,
        service: ServiceType::Dct,
        state: QpState::Rts,
        params: params(core, ctx, repr, eth.src_qp),
        sq: SendQueue::default(),
        rq: ReceiveQueue::Shared(Srqn(ctx.get(Dctc::SRQN))),
        requester: Requester::default(),
        responder: Responder::expecting(repr.psn.next()),
        lane: 0,
        dynamic: Dynamic::Responder(Box::new(Link { peer, session: eth.session, used: now, looked_at })),
        error_poll: None,
        drained_event: false,
        migration_refused: false,
    }
}

impl QueuePair {
    fn link(&self) -> Option<&Link> {
        match &self.dynamic {
            Dynamic::Responder(link) => Some(link),
            _ => None,
        }
    }

    fn touch(&mut self, now: Ps) {
        if let Dynamic::Responder(link) = &mut self.dynamic {
            link.used = now;
        }
    }

    /// No message is on its way in, no answer on its way out.
    fn is_quiet(&self) -> bool {
        self.responder.current.is_none() && self.responder.queue.is_empty() && self.responder.fault.is_none()
    }

    /// Answers without a connection.
    fn refuse_connection(&self, core: &mut Core, now: Ps, repr: &Repr, syndrome: u32) {
        let Some(mut answer) = self.connected_repr(core) else { return };
        (answer.operation, answer.psn) = (Operation::Acknowledge, repr.psn);
        answer.aeth = Some(AethRepr { syndrome: syndrome as u8, msn: 0 });
        let packet = Packet::build_empty(&answer);
        let free = core.units.send(now, self.qpn.0, core.timing.transmit_ack());
        let at = core.units.answer_departs(self.qpn.0, free + core.timing.respond());
        core.launch(at, answer.operation, packet);
    }
}

impl Hca {
    /// A request to a DC target.
    pub(crate) fn receive_dynamic(&mut self, now: Ps, arrived: &Arrived) {
        let repr = arrived.repr();
        let core = &mut self.core;
        let (Some(eth), Some(dct)) = (repr.dceth, core.fw.icm.dcts.get(repr.dest_qp.0)) else {
            tracing::debug!(hca = core.name, %now, "packet for DCT {} dropped: no such target", repr.dest_qp);
            return;
        };
        let (ctx, state) = (dct.ctx, dct.state());
        let own_pkey = core.fw.port(1).map_or(0, |p| p.pkey(ctx.get(Dctc::PKEY_INDEX)));
        if !pkeys_match(own_pkey, repr.pkey) {
            core.diagnose(
                now,
                format_args!(
                    "packet for DCT {} dropped: its P_Key {:#x} does not match the target's {own_pkey:#x} (IBTA 10.9.3)",
                    repr.dest_qp, repr.pkey
                ),
            );
            core.key_violation(now, repr, false);
            return;
        }
        if eth.access_key != ctx.get(Dctc::DC_ACCESS_KEY) {
            return self.key_violation(now, &ctx, repr, &eth);
        }
        let peer = Peer { dctn: repr.dest_qp, lid: repr.slid, initiator: eth.src_qp };
        let known = self.links.get(&peer).and_then(|l| l.link()).map(|l| l.session);
        let older = known.is_some_and(|known| (eth.session.wrapping_sub(known) as i32) < 0);
        match repr.operation {
            Operation::Connect if known == Some(eth.session) => {
                if let Some(link) = self.links.get_mut(&peer).filter(|l| l.state.receives()) {
                    link.touch(now);
                    link.answer(&mut self.core, now, repr.psn, aeth::ACK | aeth::CREDITS_INVALID);
                }
            }
            Operation::Connect if older => {}
            Operation::Connect if state == DctState::Active => self.connect(now, &ctx, repr, &eth, peer),
            Operation::Disconnect if known == Some(eth.session) => self.cut(now, peer),
            Operation::Connect | Operation::Disconnect => {}
            _ if known == Some(eth.session) => {
                let Some(link) = self.links.get_mut(&peer).filter(|l| l.state.receives()) else { return };
                link.touch(now);
                link.receive_request(&mut self.core, now, repr, arrived.payload());
            }
            _ => {
                let (dctn, from) = (peer.dctn, peer.initiator);
                tracing::debug!(hca = self.core.name, %now, "packet for DCT {dctn} of QP {from} dropped: no connection");
            }
        }
    }

    fn key_violation(&mut self, now: Ps, ctx: &Dctc, repr: &Repr, eth: &DcEthRepr) {
        let core = &mut self.core;
        let dctn = repr.dest_qp;
        core.diagnose(
            now,
            format_args!(
                "DCT {dctn}: QP {} of LID {:#x} came with DC access key {:#x}, which is not the target's",
                eth.src_qp, repr.slid.0, eth.access_key
            ),
        );
        let mut armed = false;
        if let Some(dct) = core.fw.icm.dcts.get_mut(dctn.0) {
            let count = dct.ctx.get(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT);
            dct.ctx.set(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT, count.wrapping_add(1));
            armed = std::mem::take(&mut dct.armed);
        }
        if armed {
            core.push_qp_event(now, EventType::DctKeyViolation, dctn);
        }
        if repr.operation != Operation::Disconnect {
            let nobody = responder(core, now, ctx, repr, eth);
            nobody.refuse_connection(core, now, repr, aeth::NAK | aeth::REMOTE_ACCESS_ERROR);
        }
    }

    fn connect(&mut self, now: Ps, ctx: &Dctc, repr: &Repr, eth: &DcEthRepr, peer: Peer) {
        self.cut(now, peer);
        let core = &mut self.core;
        let mut link = responder(core, now, ctx, repr, eth);
        if self.links.len() >= MAX_LINKS {
            core.diagnose(
                now,
                format_args!(
                    "DCT {}: the adapter has {MAX_LINKS} connections, QP {} waits",
                    peer.dctn, eth.src_qp
                ),
            );
            return link.refuse_connection(core, now, repr, aeth::RNR_NAK | ctx.get(Dctc::MIN_RNR_NAK));
        }
        link.answer(core, now, repr.psn, aeth::ACK | aeth::CREDITS_INVALID);
        core.schedule(now + LIFE, HcaEvent::DynamicIdle(peer));
        self.links.insert(peer, link);
    }

    /// Ends a connection. A receive WQE that a message had taken is flushed.
    fn cut(&mut self, now: Ps, peer: Peer) {
        if let Some(mut link) = self.links.remove(&peer) {
            link.flush_receives(&mut self.core, now);
        }
    }

    pub(crate) fn dynamic_turn(&mut self, now: Ps, peer: Peer) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.take_response_turn(&mut self.core, now);
        // It failed, and its last word is said.
        if link.state == QpState::Error && link.responder.queue.is_empty() {
            self.links.remove(&peer);
        }
    }

    pub(crate) fn dynamic_idle(&mut self, now: Ps, peer: Peer) {
        let Some(Dynamic::Responder(link)) = self.links.get_mut(&peer).map(|l| &mut l.dynamic) else {
            return;
        };
        if link.looked_at != now {
            return;
        }
        let due = link.used + LIFE;
        if due > now {
            link.looked_at = due;
            return self.core.schedule(due, HcaEvent::DynamicIdle(peer));
        }
        self.cut(now, peer);
    }

    pub(crate) fn dynamic_draining(&mut self, now: Ps, dctn: Qpn) {
        self.core.schedule(now + DRAIN_STEP, HcaEvent::DynamicDrain(dctn, now + DRAIN_LIMIT));
    }

    /// Cuts the connections of a target that drains where nothing is under way, at last all of them.
    pub(crate) fn dynamic_drain(&mut self, now: Ps, dctn: Qpn, until: Ps) {
        let draining = self.core.fw.icm.dcts.get(dctn.0).is_some_and(|d| d.state() == DctState::Draining);
        if !draining {
            return;
        }
        let of_target = self.links.iter().filter(|(peer, _)| peer.dctn == dctn);
        let (quiet, busy): (Vec<_>, Vec<_>) =
            of_target.partition(|(_, link)| link.is_quiet() || now >= until);
        let (quiet, busy) = (quiet.into_iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), busy.len());
        for peer in quiet {
            self.cut(now, peer);
        }
        if busy > 0 {
            return self.core.schedule(now + DRAIN_STEP, HcaEvent::DynamicDrain(dctn, until));
        }
        if let Some(dct) = self.core.fw.icm.dcts.get_mut(dctn.0) {
            dct.ctx.set(Dctc::STATE, DctState::Drained as u32);
        }
        self.core.push_qp_event(now, EventType::DctDrained, dctn);
    }
}
