//! The sending sides of an adapter's ports: what waits there, and who.

use std::collections::VecDeque;

use hca_firmware::{FunctionId, Port, PortKind};
use hca_spec::ids::Qpn;

use super::event::HcaEvent;
use super::returning::Returning;
use crate::engines::qp::run::Half;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::link_layer::{LANES, Outlet};

/// Where senders to the port itself wait, behind the lanes of its link.
pub(in crate::adapter) const OWN: u8 = LANES as u8;
/// Bytes that flow tables may add to a lane that has no room: a frame and its copies of 10 KB each, of which there may be 256, are made before it is
/// known where they go. What they send beyond that is dropped.
const FLOOD: usize = 4 << 20;
/// Queues of senders that wait.
const QUEUES: usize = LANES + 1;

/// What a port does beside what its firmware says of it.
#[derive(Debug)]
pub(crate) struct PortOut {
    pub(crate) outlet: Outlet,
    /// Turns to send that wait for room, by lane: the moment before which each is not due, and whose it is.
    pub(in crate::adapter) waiting: [VecDeque<(Ps, FunctionId, HcaEvent)>; QUEUES],
    /// Bit n: someone waits for lane n.
    pub(in crate::adapter) waited_for: u32,
    /// What comes back without a link.
    pub(in crate::adapter) returning: Returning,
    /// When the port is looked at next, at the latest.
    pub(in crate::adapter) timer: Option<Ps>,
    /// When the agents are asked next whether they have something to send.
    pub(crate) agent_timer: Option<Ps>,
    /// A cable is in.
    pub(crate) cabled: bool,
}

/// The ports of an adapter, by number from 1.
#[derive(Debug)]
pub(crate) struct Ports(Vec<PortOut>);

impl Ports {
    /// Ports of these kinds; each lets so many management datagrams wait.
    pub(crate) fn new(kinds: impl Iterator<Item = PortKind>, management: usize) -> Self {
        Self(kinds.map(|kind| PortOut::new(kind, management)).collect())
    }

    #[inline]
    pub(crate) fn get(&self, port: u8) -> Option<&PortOut> {
        self.0.get(usize::from(port).wrapping_sub(1))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, port: u8) -> Option<&mut PortOut> {
        self.0.get_mut(usize::from(port).wrapping_sub(1))
    }

    /// Packets that wait get their payload's bytes.
    pub(crate) fn fetch_payload(&mut self) {
        self.0.iter_mut().for_each(|out| out.outlet.fetch_payload());
    }

    /// Whatever waits is gone, who wants to send is forgotten.
    pub(crate) fn reset(&mut self) {
        self.0.iter_mut().for_each(PortOut::reset);
    }
}

impl PortOut {
    fn new(kind: PortKind, management: usize) -> Self {
        Self {
            outlet: Outlet::new(kind, management),
            waiting: Default::default(),
            waited_for: 0,
            returning: Returning::default(),
            timer: None,
            agent_timer: None,
            cabled: false,
        }
    }

    /// Whether a sender may make another packet for a lane.
    #[inline]
    pub(in crate::adapter) fn has_room(&self, lane: u8, limit: usize) -> bool {
        let own = lane == OWN;
        (own || self.outlet.has_room(lane, limit)) && self.returning.has_room(own)
    }

    /// Whether frames may be made for a lane that its senders did not wait for.
    pub(in crate::adapter) fn takes_more(&self, lane: u8, limit: usize) -> bool {
        match lane {
            OWN => self.returning.has_room_behind(FLOOD),
            lane => self.outlet.has_room(lane, limit.saturating_add(FLOOD)),
        }
    }

    /// A packet of so many bytes is being made for a lane, or for the port itself.
    #[inline]
    pub(in crate::adapter) fn reserve(&mut self, lane: u8, bytes: usize) {
        match lane {
            OWN => self.returning.make(bytes),
            lane => self.outlet.reserve(lane, bytes),
        }
    }

    /// It is there, or will not come.
    #[inline(always)]
    pub(in crate::adapter) fn unreserve(&mut self, lane: u8, bytes: usize) {
        match lane {
            OWN => self.returning.made(bytes),
            lane => self.outlet.unreserve(lane, bytes),
        }
    }

    /// Takes the turn of the one who waits for a lane, if somebody does.
    #[inline]
    pub(in crate::adapter) fn take_waiting(&mut self, lane: u8) -> Option<Ps> {
        self.waited_for &= !(1 << (lane & 0x1f));
        self.waiting.get_mut(usize::from(lane))?.pop_front().map(|(at, ..)| at)
    }

    /// Whether nothing is on its way back to it, and nobody waits for room but, if anybody does, that half of that queue pair of the
    /// first function.
    #[inline]
    pub(in crate::adapter) fn is_left_to(&self, (qpn, half): (Qpn, Half), lane: u8) -> bool {
        let own =
            |(_, of, turn): &(Ps, FunctionId, HcaEvent)| *of == FunctionId::FIRST && turn.is_turn(half, qpn);
        let alone = || {
            let waiting = self.waiting.get(usize::from(lane)).filter(|waiting| waiting.len() == 1);
            self.waited_for == 1 << (lane & 0x1f) && waiting.and_then(VecDeque::front).is_some_and(own)
        };
        self.returning.is_empty() && (self.waited_for == 0 || alone())
    }

    fn reset(&mut self) {
        let Self { outlet, waiting, waited_for, returning, timer, agent_timer, cabled: _ } = self;
        outlet.reset();
        *returning = Returning::default();
        *waited_for = 0;
        waiting.iter_mut().for_each(VecDeque::clear);
        (*timer, *agent_timer) = (None, None);
    }
}

/// Where a packet goes that is on that lane: if it is for the port itself (`own`), to none of the link's.
#[inline]
pub(in crate::adapter) fn lane_of(own: bool, lane: u8) -> u8 {
    if own { OWN } else { lane }
}

/// Counts what packets have waited for credits at a port.
#[inline]
pub(in crate::adapter) fn count_waits(port: &mut Port, out: &mut PortOut) {
    let waits = out.outlet.take_waits();
    if waits > 0 {
        port.counters.xmit_wait = port.counters.xmit_wait.saturating_add(waits);
    }
}

impl Rebase for PortOut {
    fn rebase(&mut self, by: Ps) {
        let Self { outlet, waiting, waited_for: _, returning, timer, agent_timer, cabled: _ } = self;
        outlet.rebase(by);
        for (at, _, event) in waiting.iter_mut().flatten() {
            at.rebase(by);
            event.rebase(by);
        }
        returning.rebase(by);
        timer.rebase(by);
        agent_timer.rebase(by);
    }
}

impl Rebase for Ports {
    fn rebase(&mut self, by: Ps) {
        self.0.rebase(by);
    }
}
