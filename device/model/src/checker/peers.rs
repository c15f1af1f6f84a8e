//! Requests that nobody answers: why, by what became of their packets at the other end.

use std::collections::BTreeMap;

use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::qpc::{QpState, Qpc};
use hca_spec::rules;

use super::record_word;
use crate::adapter::state::chip::Chip;
use crate::adapter::state::function::Function;
use crate::adapter::state::watch::address_in_events;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::epoch::Rebase;
use crate::ground::event::{Status, Unwanted};
use crate::ground::node::FunctionRef;
use crate::ground::time::Ps;

/// Ways of which it is known why packets were not taken: when there are more all are forgotten.
const WAYS: usize = 4096;
/// What happened longer ago explains nothing.
const OLD: Ps = Ps::from_ms(60_000);

/// Whose packets: the address of the port that sends them, as events have it (LID, interface identifier), and the queue pair they
/// are for.
pub(super) type Place = (Lid, u64, Qpn);

#[derive(Debug, Clone, Copy)]
struct Loss {
    at: Ps,
    who: FunctionRef,
    psn: Psn,
    why: Unwanted,
    own: u32,
}

/// What became of packets that were not taken.
#[derive(Debug)]
pub(super) struct Peers {
    /// The adapters' names.
    names: Vec<String>,
    losses: BTreeMap<Place, Loss>,
}

impl Peers {
    /// Of a world with adapters of these names.
    pub(super) fn new(names: Vec<String>) -> Self {
        Self { names, losses: BTreeMap::new() }
    }

    /// A packet was not taken by the function `who`.
    pub(super) fn unwanted(
        &mut self,
        at: Ps,
        (who, function): (FunctionRef, &Function),
        way: Place,
        (psn, why, own): (Psn, Unwanted, u32),
    ) {
        // A queue pair that has received already was given the right number: packets were lost on their way.
        let first = |qpn: Qpn| function.state.fw.icm.qps.get(qpn.0).map(|qp| qp.ctx.get(Qpc::NEXT_RCV_PSN));
        if matches!(why, Unwanted::Ahead | Unwanted::Behind) && first(way.2) != Some(own) {
            return;
        }
        let record = || function.qps.get(way.2.0).map(|qp| qp.params.doorbell_record);
        let own = match why {
            Unwanted::NoReceive => record().and_then(|at| record_word(function, at, 0)).unwrap_or(0),
            _ => own,
        };
        if self.losses.len() >= WAYS {
            self.losses.clear();
        }
        self.losses.insert(way, Loss { at, who, psn, why, own });
    }

    /// A work request is over.
    pub(super) fn done(
        &mut self,
        now: Ps,
        qpn: Qpn,
        status: Status,
        (function, chip): (&Function, &Chip),
    ) -> Option<Finding> {
        let Status(Some(Syndrome::TransportRetryExceeded | Syndrome::RnrRetryExceeded)) = status else {
            return None;
        };
        let qp = function.qps.get(qpn.0)?;
        let (peer, remote) = (qp.params.route.peer(), qp.params.remote_qpn);
        let port = chip.managed.port(qp.port())?;
        let (lid, interface) = address_in_events(qp.params.route.path(port).source());
        let subject = Subject::qp(qpn);
        let loss = self.losses.remove(&(lid, interface, remote)).filter(|loss| now.since(loss.at) < OLD);
        let Some(Loss { who, psn, why, own, .. }) = loss else {
            return Some(Finding::new(
                subject,
                "primary path",
                format!("{peer}, QP {remote}: no packet reached a queue pair there"),
                "the address of the port where the peer is",
                &rules::PEER_ADDRESS,
            ));
        };
        let sent_first = function.state.fw.icm.qps.get(qpn.0).map(|qp| qp.ctx.get(Qpc::NEXT_SEND_PSN));
        if matches!(why, Unwanted::Ahead | Unwanted::Behind) && sent_first == Some(own) {
            // Both ends agree.
            return None;
        }
        let there = self.names.get(who.hca.0).map_or("?", String::as_str);
        let (field, found, expected, rule) = match why {
            Unwanted::NoQueuePair => (
                "remote QPN",
                format!("{remote}"),
                format!("a queue pair that {there} has"),
                &rules::PEER_EXISTS,
            ),
            Unwanted::State => (
                "peer's state",
                format!(
                    "{} (QP {remote} of {there})",
                    QpState::from_bits(own).map_or("?".into(), |s| format!("{s:?}"))
                ),
                "a state that receives, and the same service".into(),
                &rules::PEER_RECEIVES,
            ),
            Unwanted::Partition => (
                "P_Key",
                format!("another partition than {own:#x} of QP {remote} of {there}"),
                "the same partition, one end a full member".into(),
                &rules::PEER_PARTITION,
            ),
            Unwanted::Port => (
                "primary path",
                format!("a port where QP {remote} of {there} is not"),
                format!("its port {own}"),
                &rules::PEER_ADDRESS,
            ),
            Unwanted::Peer => (
                "peer's primary path and remote QPN",
                format!("QP {remote} of {there} names another peer (QP {own:#x})"),
                format!("this end, QP {qpn}"),
                &rules::PEER_ADDRESS,
            ),
            Unwanted::Gid => (
                "rgid, src_addr_index",
                format!("GIDs that QP {remote} of {there} does not have in its path, or its port"),
                "the GIDs of both ends, each the other's destination".into(),
                &rules::PEER_GID,
            ),
            Unwanted::Ahead | Unwanted::Behind => (
                "PSN",
                format!("{:#x}", psn.get()),
                format!("{own:#x}, the next receive PSN of QP {remote} of {there}"),
                &rules::PEER_PSN,
            ),
            Unwanted::NoReceive => (
                "peer's receive counter",
                format!("{own:#x}: QP {remote} of {there} has no receive WQE left"),
                "more: receive WQEs posted, then counted".into(),
                &rules::RECEIVE_COUNTER,
            ),
        };
        Some(Finding::new(subject, field, found, expected, rule))
    }
}

impl Rebase for Loss {
    fn rebase(&mut self, by: Ps) {
        let Self { at, who: _, psn: _, why: _, own: _ } = self;
        at.rebase(by);
    }
}

impl Rebase for Peers {
    fn rebase(&mut self, by: Ps) {
        let Self { names: _, losses } = self;
        losses.values_mut().for_each(|loss| loss.rebase(by));
    }
}
