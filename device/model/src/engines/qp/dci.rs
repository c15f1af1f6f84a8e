//! Initiators of dynamic connections (DC): each WQE says where to, the connection follows.
//!
//! An initiator is connected to one target at a time, and its protocol is that of a reliable connection. A WQE for
//! another target waits until everything before it is acknowledged; then the old connection ends with a packet, and
//! a new one begins with a packet that has a PSN like any other and must be acknowledged before data follows. So a
//! target never takes a request that was executed before for a new one, whatever the network loses or repeats.
//!
//! With streams, WQEs that follow each other in one stream are what stays together when something goes wrong: the stream is in error, its WQEs are flushed
//! until the driver takes it out of error, and those of other streams go on, by a new connection. Streams take turns: a WQE of another
//! stream waits until everything before it is complete, so nothing of others is lost with the connection. Real initiators have
//! several streams under way at once.
//!
//! Source: mlx5 driver and its user library (address vectors, access keys); the packets are ours
//! ([`hca_spec::wire::DcEth`]).

use hca_spec::ids::Qpn;
use hca_spec::wire::Operation;
use hca_spec::wqe::Datagram;

use super::{Dynamic, QueuePair};
use crate::engines::view::View;
use crate::ground::epoch::{Rebase, Start};
use crate::ground::time::Ps;
use crate::wire::{DcEthRepr, Repr};

/// After so long without a request the target may have forgotten the connection: a new one is made. Much less than
/// what [`super::dct`] keeps.
const STALE: Ps = Ps::from_ms(10_000);

/// What an initiator knows of its connection.
#[derive(Debug, Default)]
pub(crate) struct Initiator {
    /// Where to, as the WQE said.
    target: Option<Datagram>,
    /// Number of the connection. It follows the clock, so that connections of an initiator that was reset
    /// have higher ones too.
    session: u32,
    /// When a request was last started.
    used: Ps,
    /// The stream of what was begun last.
    stream: u16,
}

/// What an initiator does before a request to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetSwitch {
    /// Nothing: it is connected to that target.
    There,
    /// What is under way to another one comes first.
    PageWait,
    /// It connects ([`QueuePair::connect_to`]); before that it tells the target that it was connected to, if to another one.
    Connects { leaves: bool },
}

impl QueuePair {
    /// Whether what is sent next goes to `target`.
    pub(crate) fn switch_target(&mut self, now: Ps, target: &Datagram) -> TargetSwitch {
        let idle = self.requester.is_idle();
        let Dynamic::Initiator(initiator) = &mut self.dynamic else { return TargetSwitch::PageWait };
        let there = initiator.target.as_ref() == Some(target);
        if there && !(idle && now > initiator.used + STALE) {
            initiator.used = now;
            return TargetSwitch::There;
        }
        match idle {
            true => TargetSwitch::Connects { leaves: !there },
            false => TargetSwitch::PageWait,
        }
    }

    /// A new connection to `target`: the packet that begins it is queued.
    pub(crate) fn connect_to(&mut self, view: &View<'_>, (start, now): (Start, Ps), target: &Datagram) {
        let Dynamic::Initiator(initiator) = &mut self.dynamic else { return };
        let clock = (start.absolute_ns(now) / 1_000) as u32;
        let next = initiator.session.wrapping_add(1);
        // Serial numbers: the later one of both.
        initiator.session = if clock.wrapping_sub(next) as i32 > 0 { clock } else { next };
        (initiator.target, initiator.used) = (Some(*target), now);
        self.aim(view);
        self.requester.connect();
    }

    /// Whether it has streams.
    pub(crate) fn has_streams(&self) -> bool {
        self.params.most_errored.is_some()
    }

    /// Turns to the stream of what is begun next. `false`: what is under way in another one comes first, or there is too much of it.
    pub(crate) fn switch_stream(&mut self, stream: u16, most: usize) -> bool {
        let (idle, begun) = (self.requester.is_idle(), self.requester.messages.len());
        let Dynamic::Initiator(initiator) = &mut self.dynamic else { return true };
        if !idle && (initiator.stream != stream || begun >= most) {
            return false;
        }
        initiator.stream = stream;
        true
    }

    /// The stream of what is under way.
    pub(crate) fn current_stream(&self) -> Option<u16> {
        match &self.dynamic {
            Dynamic::Initiator(initiator) if self.has_streams() => Some(initiator.stream),
            _ => None,
        }
    }

    /// Forgets the connection: the next request makes a new one.
    pub(crate) fn forget_target(&mut self) {
        if let Dynamic::Initiator(initiator) = &mut self.dynamic {
            initiator.target = None;
        }
        self.run = None;
        self.requester.restart(&self.params);
    }

    /// Takes the path of the target that is connected.
    pub(crate) fn aim(&mut self, view: &View<'_>) {
        let Dynamic::Initiator(initiator) = &self.dynamic else { return };
        let Some(av) = &initiator.target else { return };
        self.params.remote_qpn = Qpn(av.get(Datagram::DQPN));
        self.params.route = view.resolved(self.params.route.to_vector(av));
    }

    /// The header of requests to the target that is connected.
    pub(crate) fn dceth(&self) -> Option<DcEthRepr> {
        let Dynamic::Initiator(initiator) = &self.dynamic else { return None };
        let access_key = initiator.target.as_ref()?.get(Datagram::DC_KEY);
        Some(DcEthRepr { access_key, session: initiator.session, src_qp: self.qpn })
    }

    /// The packet that tells the target that no more comes. If that is lost, the target finds out in time.
    pub(crate) fn disconnect(&self, view: &View<'_>) -> Option<Repr> {
        let dceth = self.dceth()?;
        let mut repr = self.connected_repr(view)?;
        (repr.operation, repr.psn, repr.dceth) =
            (Operation::Disconnect, self.requester.next_psn, Some(dceth));
        Some(repr)
    }
}

impl Rebase for Initiator {
    fn rebase(&mut self, by: Ps) {
        let Self { used, target: _, session: _, stream: _ } = self;
        used.rebase(by);
    }
}
