//! Targets of dynamic connections (DC): a responder for each initiator, made by its first packet.
//!
//! Such a responder (the vendor says DCR) is the same as a queue pair's, but for its life: it begins when an initiator
//! that knows the access key connects, and ends when that one goes elsewhere, when a request fails (the target
//! itself lives on), when the target drains, or when nothing came for long.
//!
//! Source: mlx5 driver (context, drain, events); what answers a wrong key and a full table is not public: a NAK
//! "remote access error", and an RNR NAK.

use std::collections::VecDeque;
use std::ops::Bound;

use hca_firmware::DealtWith;
use hca_firmware::limits::LOG_MAX_RA_RES_DC;
use hca_spec::caps::Atomic;
use hca_spec::dct::{DctState, Dctc};
use hca_spec::ids::{Cqn, Pd, Qpn, Srqn};
use hca_spec::qpc::{QpState, ServiceType, mtu_bytes};
use hca_spec::wire::Operation;

use super::recv::ReceiveQueue;
use super::requester::Requester;
use super::responder::Responder;
use super::send::SendQueue;
use super::{Dynamic, Params, QueuePair};
use crate::engines::view::View;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::link_layer::{Path, Route, Station};
use crate::wire::{AethRepr, DcEthRepr, Repr};

/// An initiator from which nothing came for so long is gone: it would have connected anew.
pub(crate) const LIFE: Ps = Ps::from_ms(60_000);
/// How often a target that drains is looked at.
pub(crate) const DRAIN_STEP: Ps = Ps::from_us(50);
/// Messages that are not complete by then stay so.
pub(crate) const DRAIN_LIMIT: Ps = Ps::from_ms(20);
/// Most connections of an adapter.
pub(crate) const MAX_CONNECTIONS: usize = 1 << 14;
/// Largest message: 2^30 bytes, as queue pairs have it.
const LOG_MSG_MAX: u32 = 30;

/// A target and one of its initiators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub(crate) dctn: Qpn,
    pub(crate) at: Station,
    pub(crate) initiator: Qpn,
}

/// A target drains: how far those who look at its connections have come, a slice of them in an event.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) dctn: Qpn,
    /// Then connections are cut, whatever they do.
    pub(crate) until: Ps,
    /// What was looked at last; the next slice is behind it.
    pub(crate) last: Option<Peer>,
    /// Something was under way in what was looked at.
    pub(crate) busy: bool,
}

impl Drain {
    /// One that begins.
    pub(crate) fn new(dctn: Qpn, until: Ps) -> Self {
        Self { dctn, until, last: None, busy: false }
    }

    /// Which connections come next, all that are left.
    pub(crate) fn rest(&self) -> (Bound<Peer>, Bound<Peer>) {
        Peer::behind(self.dctn, self.last)
    }
}

/// A page fault of a target was dealt with: how far its connections have been told, a slice of them in an event.
#[derive(Debug)]
pub(crate) struct FaultTold {
    pub(crate) dctn: Qpn,
    pub(crate) fault: DealtWith,
    /// The driver could not deal with it.
    pub(crate) error: bool,
    /// What was told last; the next slice is behind it.
    pub(crate) last: Option<Peer>,
}

impl FaultTold {
    /// Which connections come next, all that are left.
    pub(crate) fn rest(&self) -> (Bound<Peer>, Bound<Peer>) {
        Peer::behind(self.dctn, self.last)
    }
}

impl Peer {
    /// All that a target may have, as a range of keys.
    pub(crate) fn all_of(dctn: Qpn) -> (Bound<Self>, Bound<Self>) {
        let [first, last] = Station::ENDS;
        (
            Bound::Included(Self { dctn, at: first, initiator: Qpn(0) }),
            Bound::Included(Self { dctn, at: last, initiator: Qpn(u32::MAX) }),
        )
    }

    /// Those of them that are behind one that was looked at already.
    fn behind(dctn: Qpn, last: Option<Self>) -> (Bound<Self>, Bound<Self>) {
        let (first, end) = Self::all_of(dctn);
        (last.map_or(first, Bound::Excluded), end)
    }

    /// The target and the initiator of a packet.
    pub(crate) fn of(path: &Path, repr: &Repr, eth: &DcEthRepr) -> Self {
        Self { dctn: repr.dest_qp, at: path.source(), initiator: eth.src_qp }
    }
}

/// What a responder of a target knows of its connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    session: u32,
    used: Ps,
    /// When it is looked whether it is still used.
    looked_at: Ps,
}

/// The port of a target.
pub(crate) fn port_of(ctx: &Dctc) -> u8 {
    ctx.get(Dctc::PORT) as u8
}

/// The parameters of a target's responder; the way back is the way that a request came.
fn params(view: &View<'_>, ctx: &Dctc, path: &Path, initiator: Qpn) -> Params {
    let route = Route::back(path, ctx, view.port(port_of(ctx)));
    Params {
        pd: Pd(ctx.get(Dctc::PD)),
        rlky: ctx.get(Dctc::RLKY) == 1,
        blocks_own: false,
        mtu: mtu_bytes(ctx.get(Dctc::MTU)).unwrap_or(256),
        log_msg_max: LOG_MSG_MAX,
        remote_qpn: initiator,
        route: view.resolved(route),
        rra_max: 1 << LOG_MAX_RA_RES_DC,
        remote_read: ctx.get(Dctc::RRE) == 1,
        remote_write: ctx.get(Dctc::RWE) == 1,
        remote_atomic: ctx.get(Dctc::RAE) == 1,
        masked_sizes: view.masked_sizes(Atomic::ATOMIC_SIZE_DC),
        atomic_mode: ctx.get(Dctc::ATOMIC_MODE),
        min_rnr_nak: ctx.get(Dctc::MIN_RNR_NAK),
        cqn_rcv: Cqn(ctx.get(Dctc::CQN)),
        user_index: ctx.get(Dctc::USER_INDEX),
        scatter_response: ctx.get(Dctc::CS_RES),
        ..Params::default()
    }
}

/// The responder of a target for the initiator of that packet.
pub(crate) fn responder(
    view: &View<'_>,
    now: Ps,
    ctx: &Dctc,
    (path, repr): (&Path, &Repr),
    eth: &DcEthRepr,
) -> QueuePair {
    let peer = Peer::of(path, repr, eth);
    let looked_at = now + LIFE;
    QueuePair {
        qpn: peer.dctn,
        service: ServiceType::Dct,
        state: QpState::Rts,
        params: params(view, ctx, path, eth.src_qp),
        sq: SendQueue::default(),
        rq: ReceiveQueue::Shared(Srqn(ctx.get(Dctc::SRQN))),
        requester: Requester::default(),
        responder: Responder::expecting(repr.psn.next()),
        run: None,
        lane: 0,
        dynamic: Dynamic::Responder(Box::new(Connection {
            peer,
            session: eth.session,
            used: now,
            looked_at,
        })),
        error_poll: None,
        drained_event: false,
        migration_refused: false,
        frames: None,
        congestion: None,
        group: 0,
        offloads: VecDeque::new(),
    }
}

impl QueuePair {
    /// Something came of its initiator.
    pub(crate) fn touch(&mut self, now: Ps) {
        if let Dynamic::Responder(connection) = &mut self.dynamic {
            connection.used = now;
        }
    }

    /// No message is on its way in, no answer on its way out.
    pub(crate) fn is_quiet(&self) -> bool {
        self.responder.current.is_none() && self.responder.queue.is_empty() && self.responder.fault.is_none()
    }

    /// The headers of an answer without a connection.
    pub(crate) fn refusal(&self, view: &View<'_>, repr: &Repr, syndrome: u32) -> Option<Repr> {
        let mut answer = self.connected_repr(view)?;
        (answer.operation, answer.psn) = (Operation::Acknowledge, repr.psn);
        answer.aeth = Some(AethRepr { syndrome: syndrome as u8, msn: 0 });
        Some(answer)
    }

    /// Of a responder: the number of its connection.
    pub(crate) fn session(&self) -> Option<u32> {
        match &self.dynamic {
            Dynamic::Responder(connection) => Some(connection.session),
            _ => None,
        }
    }

    /// Whether it is to be looked at then, and at no other time.
    pub(crate) fn is_looked_at(&self, at: Ps) -> bool {
        matches!(&self.dynamic, Dynamic::Responder(connection) if connection.looked_at == at)
    }

    /// Whether nothing came for long. `Err`: it is looked at again then.
    pub(crate) fn is_forgotten(&mut self, now: Ps) -> Option<Result<(), Ps>> {
        let Dynamic::Responder(connection) = &mut self.dynamic else { return None };
        // An event of an earlier connection is too early; this one's may be late, if something waited for memory.
        if connection.looked_at > now {
            return None;
        }
        let due = connection.used + LIFE;
        if due > now {
            connection.looked_at = due;
            return Some(Err(due));
        }
        Some(Ok(()))
    }
}

/// What a target does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DctPacket {
    /// It is a request of a connection that is there.
    Request,
    /// The connection is there already: that is acknowledged again.
    Again,
    /// A connection begins.
    Connect,
    /// The connection ends.
    Disconnect,
    /// It is late, or the target drains.
    Nothing,
    /// There is no such connection.
    Unknown,
}

/// What a target in `state` does with a packet of connection `session`; `known`: the connection of that initiator.
pub(crate) fn classify_packet(
    operation: Operation,
    state: DctState,
    session: u32,
    known: Option<u32>,
) -> DctPacket {
    let older = known.is_some_and(|known| (session.wrapping_sub(known) as i32) < 0);
    let same = known == Some(session);
    match operation {
        Operation::Connect if same => DctPacket::Again,
        Operation::Connect if !older && state == DctState::Active => DctPacket::Connect,
        Operation::Disconnect if same => DctPacket::Disconnect,
        Operation::Connect | Operation::Disconnect => DctPacket::Nothing,
        _ if same => DctPacket::Request,
        _ => DctPacket::Unknown,
    }
}

impl Rebase for Connection {
    fn rebase(&mut self, by: Ps) {
        let Self { used, looked_at, peer: _, session: _ } = self;
        used.rebase(by);
        looked_at.rebase(by);
    }
}

impl Rebase for Drain {
    fn rebase(&mut self, by: Ps) {
        let Self { dctn: _, until, last: _, busy: _ } = self;
        until.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn connections_of_a_target_are_a_range() {
        let peer = |dctn, at, initiator| Peer { dctn: Qpn(dctn), at, initiator: Qpn(initiator) };
        let [first, last] = Station::ENDS;
        let own = [peer(5, first, 0), peer(5, first, 9), peer(5, last, 0), peer(5, last, 0xff_ffff)];
        let others = [peer(4, last, 0xff_ffff), peer(6, first, 0)];
        let all: BTreeMap<Peer, ()> = own.into_iter().chain(others).map(|peer| (peer, ())).collect();
        assert!(all.range(Peer::all_of(Qpn(5))).map(|(peer, ())| *peer).eq(own));
        let drain = Drain { last: Some(own[1]), ..Drain::new(Qpn(5), Ps::ZERO) };
        assert!(all.range(drain.rest()).map(|(peer, ())| *peer).eq(own.into_iter().skip(2)));
        assert_eq!(all.range(Peer::all_of(Qpn(7))).count(), 0);
    }
}
