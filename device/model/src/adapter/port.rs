//! The adapter's port from inside: packets wait for lane, credits and link, senders wait for room.
//!
//! A queue pair builds a packet when it has a turn. If the port has enough to do the turn waits here, in the order
//! of asking, so that nothing piles up before the link: a lane without credits stops the queue pairs that use it,
//! and no others.

use std::collections::VecDeque;

use hca_spec::mad::{PortInfo, port_state};
use hca_spec::wire::Operation;

use crate::adapter::Hca;
use crate::adapter::core::{Core, HcaEvent};
use crate::adapter::watch::Headers;
use crate::ground::event::Event;
use crate::ground::time::Ps;
use crate::link::egress::{Egress, LANES, Next, Outcome, VL15};
use crate::link::{Tables, operational_lanes};
use crate::wire::Packet;

/// The port of an adapter.
const PORT: u8 = 1;

/// What an adapter's port does beside what its firmware says of it.
#[derive(Debug)]
pub(crate) struct PortOut {
    pub(crate) egress: Egress<()>,
    /// Turns to send that wait for room, by lane, and the moment before which each is not due.
    waiting: [VecDeque<(Ps, HcaEvent)>; LANES],
    /// Bit n: someone waits for lane n.
    waited_for: u16,
    /// When the port is looked at next, at the latest.
    timer: Option<Ps>,
    /// Lanes that the subnet manager lets the port use.
    lanes: u8,
    /// When the agents are asked next whether they have something to send.
    pub(crate) agent_timer: Option<Ps>,
    /// A cable is in.
    pub(crate) cabled: bool,
}

impl PortOut {
    pub(crate) fn new(management: usize) -> Self {
        let mut egress = Egress::default();
        egress.limits.management = management;
        Self {
            egress,
            waiting: Default::default(),
            waited_for: 0,
            timer: None,
            lanes: 1,
            agent_timer: None,
            cabled: false,
        }
    }

    /// Whatever waits is gone, who wants to send is forgotten.
    pub(crate) fn reset(&mut self) {
        let Self { egress, waiting, waited_for, timer, lanes, agent_timer, cabled: _ } = self;
        drop(egress.clear(Ps::ZERO));
        egress.forget_reserved();
        *waited_for = 0;
        waiting.iter_mut().for_each(VecDeque::clear);
        (*timer, *agent_timer) = (None, None);
        *lanes = 1;
    }
}

impl Core {
    /// Takes a packet to the port later, at `at`. Returns the lane it will go by, which keeps room for it.
    pub(crate) fn launch(&mut self, at: Ps, operation: Operation, mut packet: Packet) -> u8 {
        let Some(port) = self.fw.port(PORT) else { return 0 };
        let lane = match packet.vl() {
            VL15 => VL15,
            _ => port.virtual_lane(0, packet.sl()),
        };
        // What does not leave the adapter is in nobody's way.
        let reserved = if port.is_own_lid(packet.dlid()) { 0 } else { packet.len() };
        packet.set_vl(lane);
        self.port.egress.reserve(lane, reserved);
        self.note_sent(at, &packet);
        self.schedule(at, HcaEvent::Depart(operation, packet, reserved));
        lane
    }

    /// A packet comes to the port at `at`.
    pub(crate) fn note_sent(&mut self, at: Ps, packet: &Packet) {
        if self.traces() {
            let Headers { slid, dlid, dest_qp, psn, opcode, bytes } = Headers::of(packet);
            self.note(at, Event::Sent { slid, dlid, dest_qp, psn, opcode, bytes });
        }
    }

    /// Takes a packet to the port at time `at`. Returns the lane it goes by.
    pub(crate) fn transmit(&mut self, at: Ps, operation: Operation, mut packet: Packet) -> u8 {
        tracing::trace!(hca = self.name, %at, ?operation, len = packet.len(), "transmit");
        let Some(port) = self.fw.port_mut(PORT) else { return 0 };
        let smp = packet.vl() == VL15;
        let lane = if smp { VL15 } else { port.virtual_lane(0, packet.sl()) };
        packet.set_vl(lane);
        let dlid = packet.dlid();
        match dlid.is_multicast() {
            true => port.counters.xmit_multicast(packet.len()),
            false => port.counters.xmit(packet.len()),
        }
        let own = port.is_own_lid(dlid);
        let needed = if smp { port_state::INIT } else { port_state::ACTIVE };
        let may_leave = self.port.cabled && port.state >= needed && (smp || lane < self.port.lanes);
        if !own && self.port.cabled && !may_leave {
            port.counters.xmit_discards = port.counters.xmit_discards.saturating_add(1);
        }
        if own || !may_leave {
            self.capture(at, true, &packet);
        }
        if own || dlid.is_multicast() {
            // Of multicast, a copy comes back for the sender's own members of the group.
            let copy = if own {
                std::mem::replace(&mut packet, Packet::from_bytes(Vec::new()))
            } else {
                packet.clone()
            };
            self.out.loopback.push((at + self.timing.loopback(), copy));
        }
        if own || !may_leave {
            return lane;
        }
        if self.port.egress.push(at, Ps::MAX, packet, ()).is_err()
            && let Some(port) = self.fw.port_mut(PORT)
        {
            port.counters.xmit_discards = port.counters.xmit_discards.saturating_add(1);
        }
        self.pump(at);
        lane
    }

    /// Lets everything leave that can at `now`.
    fn pump(&mut self, now: Ps) {
        if !self.port.egress.is_waiting() {
            return;
        }
        let next = loop {
            match self.port.egress.next(now, now) {
                Next::Outcome(Outcome::Sent(sent)) => {
                    self.capture(sent.start, true, &sent.packet);
                    self.out.sent.push(sent);
                }
                Next::Outcome(Outcome::Discarded { .. }) => self.discarded(1),
                Next::Wait(wait) => break wait,
            }
        };
        self.out.credit_turn = next.credits.or(self.out.credit_turn);
        let waits = self.port.egress.take_waits();
        if waits > 0
            && let Some(port) = self.fw.port_mut(PORT)
        {
            port.counters.xmit_wait = port.counters.xmit_wait.saturating_add(waits);
        }
        if let Some(next) = next.until {
            self.look_again(next);
        }
    }

    fn discarded(&mut self, packets: usize) {
        if let Some(port) = self.fw.port_mut(PORT) {
            let n = u32::try_from(packets).unwrap_or(u32::MAX);
            port.counters.xmit_discards = port.counters.xmit_discards.saturating_add(n);
        }
    }

    fn look_again(&mut self, at: Ps) {
        if self.port.timer.is_none_or(|timer| at < timer) {
            self.port.timer = Some(at);
            self.schedule(at, HcaEvent::PortTurn);
        }
    }

    /// Gives a turn to send on `lane` from `at` on, as soon as the port has room for more.
    pub(crate) fn await_turn(&mut self, at: Ps, lane: u8, turn: HcaEvent) {
        match self.port.egress.has_room(lane, self.timing.egress_buffer()) {
            true => self.schedule(at, turn),
            false => self.wait_for_room(at, lane, turn),
        }
    }

    fn wait_for_room(&mut self, at: Ps, lane: u8, turn: HcaEvent) {
        if let Some(waiting) = self.port.waiting.get_mut(usize::from(lane)) {
            waiting.push_back((at, turn));
            self.port.waited_for |= 1 << lane;
        }
    }

    /// Whether a sender may take its turn on that lane now: there is room, and nobody waits before it.
    pub(crate) fn may_send(&self, lane: u8) -> bool {
        let alone = self.port.waited_for >> (lane & 0xf) & 1 == 0;
        alone && self.port.egress.has_room(lane, self.timing.egress_buffer())
    }

    /// A turn that waited for a lane and may be taken now.
    fn next_waiting(&mut self, now: Ps) -> Option<HcaEvent> {
        let mut lanes = self.port.waited_for;
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as u8;
            lanes &= lanes - 1;
            while self.port.egress.has_room(lane, self.timing.egress_buffer()) {
                let waiting = self.port.waiting.get_mut(usize::from(lane))?;
                let first = waiting.pop_front();
                if waiting.is_empty() {
                    self.port.waited_for &= !(1 << lane);
                }
                match first {
                    Some((at, turn)) if at > now => self.schedule(at, turn),
                    Some((_, turn)) => return Some(turn),
                    None => break,
                }
            }
        }
        None
    }

    /// The link trained, with so much room at its far end, or it went down.
    pub(crate) fn link_changed(&mut self, now: Ps, room: Option<Option<usize>>) {
        match room {
            Some(room) => self.port.egress.train(room),
            None => {
                let lost = self.port.egress.clear(now).len();
                self.discarded(lost);
            }
        }
        self.configure_port();
    }

    /// Follows what software set of the port.
    pub(crate) fn configure_port(&mut self) {
        if let Some(port) = self.fw.port(PORT) {
            self.port.lanes = operational_lanes(port.info().get(PortInfo::OPERATIONAL_VLS));
            self.port.egress.program(Tables::of(port));
        }
    }
}

impl Hca {
    /// The port may have room again: what waits leaves, and who waits has a turn.
    pub(crate) fn port_turn(&mut self, now: Ps) {
        self.core.port.timer = self.core.port.timer.filter(|timer| *timer > now);
        self.core.pump(now);
        self.give_turns(now);
    }

    /// Who waits has a turn, as long as there is room.
    fn give_turns(&mut self, now: Ps) {
        while let Some(turn) = self.core.next_waiting(now) {
            self.give_turn(now, turn);
        }
    }

    /// A turn that the port has room for.
    fn give_turn(&mut self, now: Ps, turn: HcaEvent) {
        match self.core.outstanding {
            None => self.take_turn(now, turn),
            Some(_) => self.admit(now, turn),
        }
    }

    /// A packet that was made is at the port; `reserved` bytes were kept free for it.
    pub(crate) fn depart(&mut self, now: Ps, operation: Operation, packet: Packet, reserved: usize) {
        self.core.port.egress.unreserve(packet.vl(), reserved);
        self.core.transmit(now, operation, packet);
        self.give_turns(now);
    }

    /// A sender's turn has come; if the port has no room it waits on.
    pub(crate) fn try_turn(&mut self, now: Ps, turn: HcaEvent) {
        let lane = match &turn {
            HcaEvent::SendTurn(qpn) | HcaEvent::ResponseTurn(qpn) => self.qps.get(qpn.0).map(|qp| qp.lane),
            HcaEvent::DynamicTurn(peer) => self.links.get(peer).map(|link| link.lane),
            _ => None,
        };
        let lane = lane.unwrap_or(0);
        match self.core.may_send(lane) {
            true => self.give_turn(now, turn),
            false => self.core.wait_for_room(now, lane, turn),
        }
    }

    pub(super) fn take_turn(&mut self, now: Ps, turn: HcaEvent) {
        match turn {
            HcaEvent::SendTurn(qpn) => self.send_turn(now, qpn),
            HcaEvent::ResponseTurn(qpn) => self.response_turn(now, qpn),
            HcaEvent::DynamicTurn(peer) => self.dynamic_turn(now, peer),
            _ => {}
        }
    }
}
