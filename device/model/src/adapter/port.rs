//! The adapter's ports from inside: packets wait for lane, credits and link, senders wait for room.
//!
//! A queue pair builds a packet when it has a turn. If the port has enough to do the turn waits here, in the order
//! of asking, so that nothing piles up before the link: a lane without credits stops the queue pairs that use it,
//! and no others.

use hca_firmware::Port;
use hca_spec::rules;
use hca_spec::wire::Operation;

use crate::adapter::core::{Core, Executor};
use crate::adapter::ethernet::{Way, count_frame};
use crate::adapter::state::event::{Departing, HcaEvent};
use crate::adapter::state::ports::{OWN, count_waits, lane_of};
use crate::adapter::state::returning::Returned;
use crate::engines::qp::{PortLane, QueuePair};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::time::Ps;
use crate::link_layer::{Fate, Next, Outcome, Packet, Sent};

/// Turns of queues that wait for a port in one event: some 0.3 ms.
const MOST_TURNS: usize = 256;

impl Core<'_> {
    /// Whether an SMP of the host is not to leave a port: the host may not manage the subnet, and it is not for the port itself.
    pub(crate) fn keeps_back(&self, port: u8, packet: &Packet) -> bool {
        let for_itself = || {
            let (own, out) = (self.chip.managed.port(port), self.chip.ports.get(port));
            own.zip(out).is_some_and(|(own, out)| out.outlet.keeps(own, packet))
        };
        !self.function.fw.config().may_manage && !for_itself()
    }

    /// Takes a packet of a queue pair to its port later, at `at`. Returns where it will go, as [`Core::launch`] does.
    #[inline]
    pub(crate) fn launch_of(
        &mut self,
        at: Ps,
        qp: &QueuePair,
        operation: Operation,
        mut packet: Packet,
    ) -> u8 {
        packet.set_sender(qp.qpn);
        self.launch(at, qp.port(), operation, packet)
    }

    /// Takes a packet to a port later, at `at`. Returns where it will go, by a lane or to the port itself: that keeps room for it.
    pub(crate) fn launch(&mut self, at: Ps, port: u8, operation: Operation, mut packet: Packet) -> u8 {
        let (Some(own), Some(out)) = (self.chip.managed.port(port), self.chip.ports.get_mut(port)) else {
            return 0;
        };
        let nic = &mut self.function.fw.nic;
        if nic.is_down() && packet.is_frame() {
            nic.sent_down = nic.sent_down.wrapping_add(1);
            return 0;
        }
        // What does not leave the adapter is in nobody's way on the link.
        let own_packet = out.outlet.keeps(own, &packet);
        if own_packet {
            // What waits where no train looks has its bytes.
            packet.fetch_payload();
        }
        let lane = lane_of(own_packet, out.outlet.choose_lane(own, &mut packet));
        let reserved = packet.len() as u32;
        out.reserve(lane, reserved as usize);
        self.note_sent(at, &packet);
        let departing = Departing { port, operation, reserved, own: own_packet, packet };
        self.schedule_port(at, HcaEvent::Depart(departing));
        lane
    }

    /// Takes a packet to a port at time `at`. Returns the lane it goes by.
    pub(crate) fn transmit(&mut self, at: Ps, number: u8, operation: Operation, mut packet: Packet) -> u8 {
        tracing::trace!(hca = self.chip.name, %at, number, ?operation, len = packet.len(), "transmit");
        let (Some(port), Some(out)) = (self.chip.managed.port(number), self.chip.ports.get(number)) else {
            return 0;
        };
        let Fate { lane, own, may_leave, fits } = out.outlet.admit(port, &mut packet);
        if !fits {
            self.discard_long(at, number, &packet);
            return lane;
        }
        if self.looks_at_departures() && !self.lets_leave(at, number, &packet) {
            return lane;
        }
        let (Some(port), Some(out)) = (self.chip.managed.port_mut(number), self.chip.ports.get_mut(number))
        else {
            return lane;
        };
        let multicast = packet.is_multicast();
        match multicast {
            true => port.counters.xmit_multicast(packet.len()),
            false => port.counters.xmit(packet.len()),
        }
        count_frame(port, &packet, Way::Out);
        let may_leave = out.cabled && may_leave;
        if !own && out.cabled && !may_leave {
            port.counters.xmit_discards = port.counters.xmit_discards.saturating_add(1);
        }
        if own || !may_leave {
            self.capture(at, number, true, &packet);
        }
        if own || multicast {
            // Of multicast, a copy comes back for the sender's own members of the group.
            let copy = if own {
                std::mem::replace(&mut packet, Packet::from_bytes(Vec::new()))
            } else {
                packet.clone()
            };
            let returned = Returned { bytes: copy.len() as u32, copy: !own };
            if let Some(out) = self.chip.ports.get_mut(number) {
                out.returning.begin(returned);
            }
            self.chip.out.rare().loopback.push((at + self.chip.timing.loopback(), number, copy, returned));
        }
        if own || !may_leave {
            return lane;
        }
        packet.forget_domain();
        let Some(out) = self.chip.ports.get_mut(number) else { return lane };
        let packet = match out.outlet.pass(at, packet) {
            Ok(sent) => {
                self.put_on_link(number, sent);
                return lane;
            }
            Err(packet) => packet,
        };
        // The port will look at what waits when the link is free, and can't do anything before.
        let looks = |until: Ps| out.timer.is_some_and(|timer| timer > at && timer <= until);
        let behind = out.outlet.is_behind(at, packet.lane()).is_some_and(looks);
        if out.outlet.push(at, Ps::MAX, packet, ()).is_err() {
            self.discarded(number, 1);
        }
        if !behind {
            self.pump(at, number);
        }
        lane
    }

    /// Bytes of the longest packet that a port lets pass.
    pub(crate) fn longest(&self, number: u8) -> usize {
        self.chip.managed.port(number).map_or(usize::MAX, Port::longest)
    }

    /// A packet is longer than its port lets pass.
    #[cold]
    fn discard_long(&mut self, at: Ps, number: u8, packet: &Packet) {
        self.discarded(number, 1);
        self.note_dropped(at, packet);
        let Some(port) = self.chip.managed.port_mut(number) else { return };
        let field = match port.ethernet_mut() {
            Some(ethernet) => {
                ethernet.counters.tx.errors = ethernet.counters.tx.errors.wrapping_add(1);
                "admin_mtu"
            }
            None => "NeighborMTU",
        };
        let (most, len) = (port.longest(), packet.len());
        self.answer_mistake(at, || {
            let found = format!("{most} bytes of a packet, and one of {len} to send, discarded");
            let expected = format!("{len}, or shorter packets: a smaller path MTU");
            Finding::new(Subject::new("port", number.into()), field, found, expected, &rules::PORT_MTU)
        });
    }

    /// Lets everything leave a port that can at `now`.
    pub(super) fn pump(&mut self, now: Ps, port: u8) {
        let next = loop {
            let Some(out) = self.chip.ports.get_mut(port) else { return };
            if !out.outlet.is_waiting() {
                return;
            }
            match out.outlet.next(now, now) {
                Next::Outcome(Outcome::Sent(sent)) => self.put_on_link(port, sent),
                Next::Outcome(Outcome::Discarded { .. }) => self.discarded(port, 1),
                Next::Wait(wait) => break wait,
            }
        };
        if let Some(at) = next.credits {
            self.chip.out.credit_turn(port, at);
        }
        self.count_waits(port);
        if let Some(next) = next.until {
            self.look_at(port, next);
        }
    }

    /// A packet leaves a port for its link.
    #[inline(always)]
    fn put_on_link(&mut self, port: u8, mut sent: Sent<()>) {
        sent.packet.forget_queue();
        self.capture(sent.start, port, true, &sent.packet);
        self.chip.out.sent.push((port, sent));
    }

    /// Counts what packets have waited for credits.
    #[inline]
    pub(super) fn count_waits(&mut self, number: u8) {
        if let (Some(port), Some(out)) = (self.chip.managed.port_mut(number), self.chip.ports.get_mut(number))
        {
            count_waits(port, out);
        }
    }

    /// Has a port looked at, at `at` at the latest.
    fn look_at(&mut self, port: u8, at: Ps) {
        if let Some(out) = self.chip.ports.get_mut(port)
            && out.timer.is_none_or(|timer| at < timer)
        {
            out.timer = Some(at);
            self.schedule_port(at, HcaEvent::PortTurn(port));
        }
    }

    pub(crate) fn discarded(&mut self, port: u8, packets: usize) {
        if let Some(port) = self.chip.managed.port_mut(port) {
            let n = u32::try_from(packets).unwrap_or(u32::MAX);
            port.counters.xmit_discards = port.counters.xmit_discards.saturating_add(n);
        }
    }

    /// Gives a turn to send on a lane from `at` on, as soon as the port has room for more.
    pub(crate) fn await_turn(&mut self, at: Ps, lane: PortLane, turn: HcaEvent) {
        let limit = self.chip.timing.egress_buffer();
        match self.chip.ports.get(lane.port).is_none_or(|out| out.has_room(lane.lane, limit)) {
            true => self.schedule(at, turn),
            false => self.wait_for_room(at, lane, turn),
        }
    }

    pub(super) fn wait_for_room(&mut self, at: Ps, lane: PortLane, turn: HcaEvent) {
        let Some(out) = self.chip.ports.get_mut(lane.port) else { return };
        if let Some(waiting) = out.waiting.get_mut(usize::from(lane.lane)) {
            waiting.push_back((at, self.id, turn));
            out.waited_for |= 1 << lane.lane;
        }
        self.await_returning(at, lane.port, lane.lane);
    }

    /// If it is what comes back that leaves no room in a queue: looks at the port when that is received, or was already.
    fn await_returning(&mut self, now: Ps, port: u8, queue: u8) {
        let Some(out) = self.chip.ports.get_mut(port) else { return };
        let own = queue == OWN;
        if !out.returning.has_room(own)
            && let Some(next) = out.returning.look_again(now, own)
        {
            self.look_at(port, next);
        }
    }

    /// A packet came back to a port, and is received at `free`.
    pub(crate) fn returned(&mut self, now: Ps, port: u8, packet: Returned, free: Ps) {
        let Some(out) = self.chip.ports.get_mut(port) else { return };
        out.returning.pass(now);
        out.returning.arrive(packet, free);
        if out.waited_for != 0 {
            self.look_at(port, free);
        }
    }

    /// Whether a sender may take its turn on that lane now: there is room, and nobody waits before it.
    pub(crate) fn may_send(&self, lane: PortLane) -> bool {
        self.chip.ports.get(lane.port).is_none_or(|out| {
            let alone = out.waited_for >> (lane.lane & 0x1f) & 1 == 0;
            alone && out.has_room(lane.lane, self.chip.timing.egress_buffer())
        })
    }

    /// Which lane those frames of a queue of that priority, from the destination's address on, would have to wait for that nobody looked
    /// at yet: none, if all have room.
    pub(crate) fn lane_without_room<'f>(
        &self,
        port: u8,
        priority: u8,
        mut frames: impl Iterator<Item = &'f [u8]>,
    ) -> Option<u8> {
        let limit = self.chip.timing.egress_buffer();
        let (own, out) = (self.chip.managed.port(port)?, self.chip.ports.get(port)?);
        let full = |lane: &u8| !out.has_room(*lane, limit);
        // Most of the time none is.
        if !(0..=OWN).any(|lane| full(&lane)) {
            return None;
        }
        let lane_of_frame = |frame| {
            let (own, lane) = out.outlet.foresee(own, frame, priority);
            lane_of(own, lane)
        };
        frames.find_map(|frame| Some(lane_of_frame(frame)).filter(full))
    }

    /// Whether a frame that flow tables made may go where it goes: there is some room, or little is there beyond that. It is a
    /// discarded one otherwise.
    pub(crate) fn takes_frame(&self, port: u8, packet: &Packet) -> bool {
        let limit = self.chip.timing.egress_buffer();
        let (Some(own), Some(out)) = (self.chip.managed.port(port), self.chip.ports.get(port)) else {
            return true;
        };
        out.takes_more(lane_of(out.outlet.keeps(own, packet), packet.lane()), limit)
    }

    /// A turn of this function that waited for a lane of a port and may be taken now. Those of others are scheduled.
    fn next_waiting(&mut self, now: Ps, port: u8) -> Option<HcaEvent> {
        let limit = self.chip.timing.egress_buffer();
        let mut lanes = self.chip.ports.get(port)?.waited_for;
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as u8;
            lanes &= lanes - 1;
            loop {
                let out = self.chip.ports.get_mut(port)?;
                out.returning.pass(now);
                if !out.has_room(lane, limit) {
                    self.await_returning(now, port, lane);
                    break;
                }
                let waiting = out.waiting.get_mut(usize::from(lane))?;
                let first = waiting.pop_front();
                if waiting.is_empty() {
                    out.waited_for &= !(1 << lane);
                }
                match first {
                    Some((at, of, turn)) if at > now || of != self.id => {
                        self.schedule_for(at.max(now), of, turn);
                    }
                    Some((_, _, turn)) => return Some(turn),
                    None => break,
                }
            }
        }
        None
    }

    /// The link of a port trained, with so much room at its far end, or it went down.
    pub(crate) fn link_changed(&mut self, now: Ps, port: u8, room: Option<Option<usize>>) {
        let Some(out) = self.chip.ports.get_mut(port) else { return };
        match room {
            Some(room) => out.outlet.train(room),
            None => {
                let lost = out.outlet.clear(now).len();
                self.discarded(port, lost);
            }
        }
        self.configure_port(port);
    }

    /// Follows what software set of a port.
    pub(crate) fn configure_port(&mut self, port: u8) {
        if let (Some(port), Some(out)) = (self.chip.managed.port(port), self.chip.ports.get_mut(port)) {
            out.outlet.configure(port);
        }
    }

    /// Follows what software set of the ports.
    pub(crate) fn configure_ports(&mut self) {
        self.chip.managed.numbers().for_each(|port| self.configure_port(port));
    }
}

impl Executor<'_> {
    /// A port may have room again: what waits leaves, and who waits has a turn.
    pub(crate) fn port_turn(&mut self, now: Ps, port: u8) {
        let Some(out) = self.core.chip.ports.get_mut(port) else { return };
        out.timer = out.timer.filter(|timer| *timer > now);
        self.core.pump(now, port);
        self.give_turns(now, port);
    }

    /// Who waits for a port has a turn, as long as there is room.
    #[inline(always)]
    pub(super) fn give_turns(&mut self, now: Ps, port: u8) {
        if self.core.chip.ports.get(port).is_some_and(|out| out.waited_for != 0) {
            self.give_turns_that_wait(now, port);
        }
    }

    #[inline(never)]
    fn give_turns_that_wait(&mut self, now: Ps, port: u8) {
        for _ in 0..MOST_TURNS {
            let Some(turn) = self.core.next_waiting(now, port) else { return };
            self.give_turn(now, turn);
        }
        // One that only asks again takes no room, and there may be as many as queue pairs.
        if self.core.chip.ports.get(port).is_some_and(|out| out.waited_for != 0) {
            self.core.look_at(port, now);
        }
    }

    /// A turn that the port has room for.
    #[inline(always)]
    fn give_turn(&mut self, now: Ps, turn: HcaEvent) {
        match self.core.function.outstanding {
            None => self.take_turn(now, &turn),
            Some(_) => self.admit(now, turn),
        }
    }

    /// A packet that was made is at its port.
    #[inline(always)]
    pub(crate) fn depart(&mut self, now: Ps, departing: Departing) {
        let Departing { port, operation, reserved, own, packet } = departing;
        if let Some(out) = self.core.chip.ports.get_mut(port) {
            out.unreserve(lane_of(own, packet.lane()), reserved as usize);
        }
        self.core.transmit(now, port, operation, packet);
        self.give_turns(now, port);
    }

    /// A sender's turn has come; if the port has no room it waits on.
    #[inline(always)]
    pub(crate) fn try_turn(&mut self, now: Ps, turn: HcaEvent) {
        let lane = match &turn {
            HcaEvent::SendTurn(qpn) | HcaEvent::ResponseTurn(qpn) => {
                self.qps.get(qpn.0).map(QueuePair::port_lane)
            }
            HcaEvent::DynamicTurn(peer) => self.dc_responders.get(peer).map(QueuePair::port_lane),
            _ => None,
        };
        let lane = lane.unwrap_or_default();
        match self.core.may_send(lane) {
            true if self.core.function.outstanding.is_none() => self.take_turn(now, &turn),
            true => self.admit(now, turn),
            false => self.core.wait_for_room(now, lane, turn),
        }
    }

    /// Does what the turn is for.
    #[inline(never)]
    pub(super) fn take_turn(&mut self, now: Ps, turn: &HcaEvent) {
        match turn {
            HcaEvent::SendTurn(qpn) => self.send_turn(now, *qpn),
            HcaEvent::ResponseTurn(qpn) => self.response_turn(now, *qpn),
            HcaEvent::DynamicTurn(peer) => self.dynamic_turn(now, *peer),
            _ => {}
        }
    }
}
