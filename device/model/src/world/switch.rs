//! Switches: packets in by one port, out by another.
//!
//! Cut-through: a packet is forwarded as soon as its header is there, if nothing is in its way. Its place in the
//! input buffer is free when its last byte has left by every port it goes to, so that a port that can't send stops
//! those who send to it, and those who send to them.
//!
//! A packet with a wrong VCRC or length shows that with its last byte only. By then it may be leaving already: then it
//! ends with EBP, and the next port counts it as bad from elsewhere (PortRcvRemotePhysicalErrors) and treats it alike,
//! a switch by passing it on as it came, an adapter by dropping it. If it has not begun to leave it is dropped, as is
//! everything that the header or the tunnel that brought it whole shows. The port where it turned bad counts it as
//! PortRcvErrors; the ports on its way count it as sent and received, which the octet and packet counters include
//! (16.1.3.5), and nobody counts it as discarded.
//!
//! Source: IBTA vol 1 18.2 (relay), 7.2 (states of a port), 7.9 (flow control), 16.1.3.5 (which counter counts what).

use hca_firmware::switch::Direction;
use hca_firmware::{Arrival, Departure, PortKind, Switch, SwitchEffect};
use hca_spec::eqe::port_change;
use hca_spec::ids::Lid;
use hca_spec::mad::{Mad, PortInfo, attr, port_state};

use super::config::SwitchConfig;
use super::holds::{Hold, Holds};
use super::relay::Relay;
use super::{Event, Forwarded, Ingress, Plug, World};
use crate::adapter::state::watch::Captured;
use crate::ground::epoch::Rebase;
use crate::ground::node::{NodeId, PortRef, SwitchId};
use crate::ground::time::Ps;
use crate::link_layer::MAX_FRAME;
use crate::link_layer::eth::pause::Pause;
use crate::link_layer::ib::egress::{Egress, Limits};
use crate::link_layer::ib::{Tables, VL15, datagram, operational_lanes};
use crate::link_layer::{Outcome, Packet, Wait};
use crate::wire::Malformed;

/// What a lifetime's code stands for (IBTA vol 1 14.2.5.4): 4.096 us * 2^code, from 20 on no limit.
fn lifetime(code: u32) -> Option<Ps> {
    const NO_LIMIT: u32 = 20;
    (code < NO_LIMIT).then(|| Ps::from_ns(4096).times(1 << code))
}

/// A switch with its data plane.
pub(super) struct SwitchNode {
    pub(super) name: String,
    pub(super) fw: Switch,
    /// Port 0, which has no link, and the external ports.
    pub(super) ports: Vec<SwitchPort>,
    holds: Holds,
    /// Of an Ethernet switch.
    pub(super) relay: Option<Box<Relay>>,
    /// Datagrams that wait for the agent.
    agent_queue: usize,
    /// When the agent is asked next whether it has something to send.
    poll: Option<Ps>,
    /// Ports, as bits, whose packets are gathered for those who look on.
    watched: u128,
}

pub(super) struct SwitchPort {
    plug: Option<Plug>,
    pub(super) egress: Egress<usize>,
    /// When the port is looked at next, at the latest.
    timer: Option<Ps>,
    /// Data lanes in use.
    lanes: u8,
    /// Longest packet.
    longest: usize,
}

impl SwitchNode {
    pub(super) fn new(config: SwitchConfig, management: usize) -> Self {
        let guid = config.firmware.node_guid;
        let mut fw = Switch::new(config.firmware);
        let port = |_| {
            let mut egress = Egress::default();
            egress.limits = Limits { head_of_queue: None, management };
            SwitchPort { plug: None, egress, timer: None, lanes: 1, longest: 0 }
        };
        let relay = match fw.kind() {
            PortKind::InfiniBand => None,
            PortKind::Ethernet => Some(Box::new(Relay::new(config.queueing, &mut fw, guid))),
        };
        let mut node = Self {
            name: config.name,
            relay,
            ports: (0..=fw.ports()).map(port).collect(),
            fw,
            holds: Holds::default(),
            agent_queue: 0,
            poll: None,
            watched: 0,
        };
        node.configure();
        node
    }

    pub(super) fn plug(&self, port: u8) -> Option<Plug> {
        self.ports.get(usize::from(port))?.plug
    }

    pub(super) fn set_plug(&mut self, port: u8, plug: Plug) {
        if let Some(port) = self.ports.get_mut(usize::from(port)) {
            port.plug = Some(plug);
        }
    }

    pub(super) fn egress(&mut self, port: u8) -> Option<&mut Egress<usize>> {
        self.ports.get_mut(usize::from(port)).map(|p| &mut p.egress)
    }

    /// Follows what a datagram may have set of the ports.
    pub(super) fn follow(&mut self, mad: &Mad) {
        match mad.get(Mad::ATTRIBUTE_ID) {
            // Tables of ways are long, and change no port.
            attr::LINEAR_FORWARDING | attr::MULTICAST_FORWARDING => {}
            attr::PORT_INFO => self.configure_port(mad.get(Mad::ATTRIBUTE_MODIFIER) as u8),
            _ => self.configure(),
        }
    }

    /// Follows what software set of the ports.
    fn configure(&mut self) {
        (0..=self.fw.ports()).for_each(|port| self.configure_port(port));
    }

    pub(super) fn configure_port(&mut self, n: u8) {
        if let (Some(out), Some(port)) = (self.ports.get_mut(usize::from(n)), self.fw.port(n)) {
            let info = port.info();
            out.lanes = operational_lanes(info.get(PortInfo::OPERATIONAL_VLS));
            out.longest = match port.kind() {
                PortKind::InfiniBand => port.longest(),
                PortKind::Ethernet => MAX_FRAME,
            };
            out.egress.limits.head_of_queue = match port.kind() {
                PortKind::InfiniBand => lifetime(info.get(PortInfo::HOQ_LIFE)),
                PortKind::Ethernet => None,
            };
            out.egress.program(match &self.relay {
                Some(relay) => relay.buffer.how.shares(),
                None => Tables::of(port),
            });
        }
    }

    /// A copy of what has that place has left. Returns whose it was, and the time when it is free, if it was the last.
    fn leave(&mut self, place: usize, at: Ps) -> Option<(Ingress, Ps)> {
        let Hold { ingress, until, taken, .. } = self.holds.leave(place, at)?;
        if let Some(relay) = &mut self.relay {
            relay.buffer.give(taken);
        }
        Some((ingress, until))
    }

    fn watches(&self, port: u8) -> bool {
        self.watched.checked_shr(port.into()).unwrap_or(0) & 1 == 1
    }

    pub(super) fn count(
        &mut self,
        port: u8,
        counter: impl FnOnce(&mut hca_firmware::PortCounters) -> &mut u32,
    ) {
        if let Some(port) = self.fw.port_mut(port) {
            let counter = counter(&mut port.counters);
            *counter = counter.saturating_add(1);
        }
    }

    /// A packet comes to the queue of a port: if that is long, it says so to its receiver.
    fn tell_congestion(&mut self, port: u8, lane: u8, packet: &mut Packet) {
        let Some(relay) = &mut self.relay else { return };
        let queue = self.ports.get(usize::from(port)).map_or(0, |p| p.egress.waiting_bytes(lane));
        if relay.mark(packet, lane, queue)
            && let Some(ethernet) = self.fw.port_mut(port).and_then(|p| p.ethernet_mut())
        {
            ethernet.counters.ecn_marked = ethernet.counters.ecn_marked.wrapping_add(1);
        }
    }

    /// A frame of a priority was dropped that was to leave by an Ethernet port (`out`), or had come by it.
    pub(super) fn count_discard(&mut self, port: u8, lane: u8, out: bool) {
        let Some(ethernet) = self.fw.port_mut(port).and_then(|p| p.ethernet_mut()) else { return };
        let counters = &mut ethernet.counters;
        let counters = if out { &mut counters.tx } else { &mut counters.rx };
        counters.discards = counters.discards.wrapping_add(1);
        if let Some(of) = counters.priorities.get_mut(usize::from(lane)) {
            of.discards = of.discards.wrapping_add(1);
        }
    }

    /// The ports by which a packet leaves, as bits; bit 0: it is for the switch itself.
    fn route(&mut self, now: Ps, in_port: u8, packet: &Packet) -> u128 {
        if let Some(relay) = &mut self.relay {
            return relay.route(now, &self.fw, in_port, packet, &self.name);
        }
        let dlid = packet.ib().dlid;
        if dlid == Lid::PERMISSIVE || self.fw.is_own_lid(dlid) {
            return 1;
        }
        if dlid.is_multicast() {
            return self.fw.multicast(in_port, dlid) & !1;
        }
        match self.fw.forward(dlid) {
            Some(port) if port != in_port => 1u128.checked_shl(port.into()).unwrap_or(0),
            _ => 0,
        }
    }

    /// The lane by which a packet leaves, if it may leave by that port at all; otherwise that is counted.
    fn lane(&mut self, in_port: u8, out_port: u8, packet: &Packet) -> Option<u8> {
        let smp = packet.is_management();
        let out = self.ports.get(usize::from(out_port))?;
        if !self.fw.can_send(out_port, smp) || packet.len() > out.longest {
            self.count(out_port, |c| &mut c.xmit_discards);
            return None;
        }
        if smp {
            return Some(VL15);
        }
        if self.relay.is_some() {
            return Some(packet.lane());
        }
        // What the switch itself sends is in its own partition.
        if in_port != 0 && !self.fw.admits(out_port, Direction::Outbound, packet.pkey()) {
            return None;
        }
        let lane = self.fw.virtual_lane(in_port, out_port, packet.ib().sl);
        if lane >= out.lanes {
            self.count(in_port, |c| &mut c.rcv_switch_relay_errors);
            return None;
        }
        Some(lane)
    }
}

impl World {
    /// A packet's header is at a port of a switch; its last byte will be at `tail`.
    pub(super) fn switch_arrive(&mut self, forwarded: Forwarded) {
        let Forwarded { switch: id, port: in_port, mut packet, tail, ingress } = forwarded;
        let now = self.now;
        let (hop, queue, agent) = (self.timing.hop_inside(), self.timing.agent_queue(), self.timing.agent());
        let Some(node) = self.switches.get_mut(id.0) else { return };
        if node.watches(in_port) {
            let port = PortRef::of_switch(id, in_port);
            self.captured.push(Captured { at: tail, port, sent: false, packet: packet.clone() });
        }
        let Some(port) = node.fw.port_mut(in_port) else { return };
        match packet.is_multicast() {
            true => port.counters.rcv_multicast(packet.len()),
            false => port.counters.rcv(packet.len()),
        }
        let data = !packet.is_management();
        let accepts = !data || port.state >= port_state::ARMED;
        let armed = port.state == port_state::ARMED;
        let wrong = packet.check_link().err();
        if let Some(why) = wrong {
            tracing::debug!(switch = node.name, %now, in_port, "packet is bad: {why}");
            if let Some(counter) = why.counter() {
                counter.count(&mut port.counters);
            }
            // The header shows these before anything is forwarded.
            if matches!(why, Malformed::Truncated { .. } | Malformed::LinkVersion(_)) {
                return self.return_credits(ingress, tail);
            }
        }
        if wrong.is_some()
            && let Some(ethernet) = node.fw.port_mut(in_port).filter(|_| node.relay.is_some())
            && let Some(ethernet) = ethernet.ethernet_mut()
        {
            // Nobody learns from it, and it goes no further: these switches store a frame before they forward it.
            ethernet.counters.fcs_errors = ethernet.counters.fcs_errors.wrapping_add(1);
            return self.return_credits(ingress, tail);
        }
        if let (None, Some(pause)) = (wrong, packet.pause()) {
            self.switch_paused(id, in_port, pause);
            return self.return_credits(ingress, tail);
        }
        if !accepts {
            tracing::debug!(switch = node.name, %now, in_port, "packet dropped: the port is not active");
            return self.return_credits(ingress, tail);
        }
        if data && armed && wrong.is_none() {
            let mut effects = Vec::new();
            node.fw.data_arrived(in_port, &mut effects);
            self.switch_follow(id, &effects);
        }
        let Some(node) = self.switches.get_mut(id.0) else { return };
        if data && node.relay.is_none() && !node.fw.admits(in_port, Direction::Inbound, packet.pkey()) {
            tracing::debug!(switch = node.name, %now, in_port, "packet dropped: its P_Key is not the port's");
            return self.return_credits(ingress, tail);
        }
        if let Some(relay) = &node.relay {
            let lane = packet.class(relay.buffer.how.by_dscp);
            packet.set_lane(lane);
        }
        let ports = node.route(now, in_port, &packet);
        if ports == 1 {
            if wrong.is_some() {
                return self.return_credits(ingress, tail);
            }
            if node.agent_queue >= queue {
                node.count(in_port, |c| &mut c.vl15_dropped);
                return self.return_credits(ingress, tail);
            }
            node.agent_queue += 1;
            let forwarded = Forwarded { switch: id, port: in_port, packet, tail, ingress };
            let own = self.own_source(NodeId::Switch(id));
            return self.heap.push(tail + agent, own, Event::Agent(Box::new(forwarded)));
        }
        if ports == 0 {
            tracing::debug!(switch = node.name, %now, in_port, dlid = %packet.ib().dlid, "packet dropped: no route");
            node.count(in_port, |c| &mut c.rcv_switch_relay_errors);
        }
        let mut outs: Vec<(u8, u8)> = (1..=node.fw.ports())
            .filter(|out| ports >> out & 1 == 1)
            .filter_map(|out| node.lane(in_port, out, &packet).map(|lane| (out, lane)))
            .collect();
        let taken = if outs.is_empty() { None } else { self.switch_take(id, in_port, &packet, &mut outs) };
        let (Some(taken), Some(node)) = (taken, self.switches.get_mut(id.0)) else {
            return self.return_credits(ingress, tail);
        };
        let bad = wrong.is_some();
        let hold = node.holds.take(Hold { ingress, copies: outs.len(), until: tail, bad, taken });
        let life = match &node.relay {
            Some(_) => Ps::MAX,
            None => lifetime(node.fw.life_time_value()).map_or(Ps::MAX, |life| now + life),
        };
        // What is still here when its end shows that it is bad does not leave.
        let dies = if bad { tail } else { life };
        let mut packet = Some(packet);
        let last = outs.len() - 1;
        for (i, (out, lane)) in outs.into_iter().enumerate() {
            let copy = if i == last { packet.take() } else { packet.clone() };
            let (Some(mut copy), Some(node)) = (copy, self.switches.get_mut(id.0)) else { return };
            copy.set_lane(lane);
            node.tell_congestion(out, lane, &mut copy);
            let Some(egress) = node.egress(out) else { continue };
            // A faster link must not run dry before the packet's end has come.
            let ready = (now + hop).max((tail + hop).since(egress.serialisation(copy.len())));
            if let Err(hold) = egress.push(ready, dies, copy, hold) {
                node.count(in_port, |c| &mut c.vl15_dropped);
                let free = node.leave(hold, tail);
                self.free(free);
            }
            self.switch_pump(id, out);
        }
    }

    /// The station at a port asks the switch to wait, or lets it go on.
    fn switch_paused(&mut self, id: SwitchId, port: u8, pause: Pause) {
        let now = self.now;
        let Some(SwitchNode { fw, ports, .. }) = self.switches.get_mut(id.0) else { return };
        let Some(ethernet) = fw.port_mut(port).and_then(|p| p.ethernet_mut()) else { return };
        let Some(out) = ports.get_mut(usize::from(port)) else { return };
        let wait = out.egress.heed(now, pause, ethernet);
        self.await_credits(PortRef::of_switch(id, port), wait);
        self.switch_pump(id, port);
    }

    fn free(&mut self, place: Option<(Ingress, Ps)>) {
        if let Some((ingress, at)) = place {
            self.return_credits(ingress, at);
        }
    }

    /// Lets leave what can by a port of a switch.
    pub(super) fn switch_pump(&mut self, id: SwitchId, out: u8) {
        let now = self.now;
        // What comes later can't be ready before a hop from now: until then all is known.
        let horizon = now + self.timing.hop_inside();
        let own = self.own_source(NodeId::Switch(id));
        let Some(node) = self.switches.get_mut(id.0) else { return };
        let Some(port) = node.ports.get_mut(usize::from(out)) else { return };
        let plug = port.plug;
        let mut outcomes = Vec::new();
        let Wait { until: next, credits } = port.egress.pump(now, horizon, &mut outcomes);
        let waits = port.egress.take_waits();
        port.timer = port.timer.filter(|timer| *timer > now);
        if let Some(next) = next.filter(|next| port.timer.is_none_or(|timer| *next < timer)) {
            port.timer = Some(next);
            self.heap.push(next, own, Event::SwitchTurn { switch: id, port: out });
        }
        if let Some(port) = node.fw.port_mut(out) {
            port.counters.xmit_wait = port.counters.xmit_wait.saturating_add(waits);
        }
        self.await_credits(PortRef::of_switch(id, out), credits);
        for outcome in outcomes {
            self.switch_outcome(id, out, plug, outcome);
        }
    }

    fn switch_outcome(&mut self, id: SwitchId, out: u8, plug: Option<Plug>, outcome: Outcome<usize>) {
        let Some(node) = self.switches.get_mut(id.0) else { return };
        match outcome {
            Outcome::Sent(mut sent) => {
                if node.holds.is_bad(sent.hold) {
                    sent.packet.mark_bad();
                }
                if let Some(port) = node.fw.port_mut(out) {
                    match sent.packet.is_multicast() {
                        true => port.counters.xmit_multicast(sent.packet.len()),
                        false => port.counters.xmit(sent.packet.len()),
                    }
                }
                let free = node.leave(sent.hold, sent.end);
                if node.watches(out) {
                    let (port, packet) = (PortRef::of_switch(id, out), sent.packet.clone());
                    self.captured.push(Captured { at: sent.start, port, sent: true, packet });
                }
                if let Some((number, end)) = plug {
                    self.transmit(sent.start, number, end, sent.packet);
                }
                self.free(free);
            }
            Outcome::Discarded { at, hold } => {
                if !node.holds.is_bad(hold) {
                    tracing::debug!(switch = node.name, %at, port = out, "packet discarded: too old, or the link is down");
                    node.count(out, |c| &mut c.xmit_discards);
                }
                let free = node.leave(hold, at);
                self.free(free);
            }
        }
    }

    /// A datagram has reached the agent of a switch.
    pub(super) fn switch_agent(&mut self, forwarded: &Forwarded) {
        let Forwarded { switch: id, port, ref packet, ingress, .. } = *forwarded;
        let now = self.now;
        self.return_credits(ingress, now);
        let Some(node) = self.switches.get_mut(id.0) else { return };
        node.agent_queue = node.agent_queue.saturating_sub(1);
        let parsed = packet.parse().map(|(path, repr, payload)| datagram::parse(&path, &repr, payload));
        let (address, mad) = match parsed {
            Ok(Some(datagram)) => datagram,
            Ok(None) => {
                return tracing::debug!(switch = node.name, %now, "no datagram that an agent takes: dropped");
            }
            Err(why) => {
                tracing::debug!(switch = node.name, %now, "datagram dropped: {why}");
                if let Some((port, counter)) = node.fw.port_mut(port).zip(why.counter()) {
                    counter.count(&mut port.counters);
                }
                return;
            }
        };
        let mut effects = Vec::new();
        let departures = node.fw.management(&Arrival { port, address, now: now.0 }, &mad, &mut effects);
        node.follow(&mad);
        for departure in departures {
            self.switch_depart(id, &departure);
        }
        self.switch_follow(id, &effects);
    }

    /// Follows what the agent of a switch did to its ports.
    fn switch_follow(&mut self, id: SwitchId, effects: &[SwitchEffect]) {
        let ports = self.switches.get(id.0).map_or(0, |node| node.fw.ports());
        for port in 1..=ports {
            let down = SwitchEffect::PortChange { port, sub_type: port_change::DOWN };
            self.port_changed(PortRef::of_switch(id, port), effects.contains(&down));
        }
        self.switch_poll_later(id);
    }

    /// A datagram that a switch made leaves.
    fn switch_depart(&mut self, id: SwitchId, departure: &Departure) {
        let Some(node) = self.switches.get_mut(id.0) else { return };
        let lane = node.fw.virtual_lane(0, departure.port, departure.address.sl);
        let Some(packet) = datagram::build(departure, lane) else { return };
        let Some(lane) = node.lane(0, departure.port, &packet) else { return };
        let mut packet = packet;
        packet.set_lane(lane);
        let ready = self.now;
        let Some(egress) = node.egress(departure.port) else { return };
        if egress.push(ready, Ps::MAX, packet, Holds::NONE).is_err() {
            node.count(departure.port, |c| &mut c.xmit_discards);
        }
        self.switch_pump(id, departure.port);
    }

    /// What the agent of a switch sends of itself.
    pub(super) fn switch_poll(&mut self, id: SwitchId) {
        let now = self.now;
        let Some(node) = self.switches.get_mut(id.0) else { return };
        node.poll = node.poll.filter(|timer| *timer > now);
        for departure in node.fw.poll(now.0) {
            self.switch_depart(id, &departure);
        }
        self.switch_poll_later(id);
    }

    /// Schedules the agent's next moment.
    fn switch_poll_later(&mut self, id: SwitchId) {
        let own = self.own_source(NodeId::Switch(id));
        let Some(node) = self.switches.get_mut(id.0) else { return };
        let Some(at) = node.fw.poll_at().map(|at| self.now.max(Ps(at))) else { return };
        if node.poll.is_none_or(|timer| at < timer) {
            node.poll = Some(at);
            self.heap.push(at, own, Event::SwitchPoll(id));
        }
    }

    /// The link of a port of a switch trained, with so much room at its far end, or it went down.
    pub(super) fn switch_link(
        &mut self,
        id: SwitchId,
        port: u8,
        link: Option<hca_firmware::PortLink>,
        room: Option<usize>,
    ) {
        let now = self.now;
        let Some(node) = self.switches.get_mut(id.0) else { return };
        let mut effects = Vec::new();
        node.fw.set_link(port, link, &mut effects);
        node.configure_port(port);
        let Some(out) = node.ports.get_mut(usize::from(port)) else { return };
        let plug = out.plug;
        let lost = match link {
            Some(_) => {
                out.egress.train(room);
                Vec::new()
            }
            None => out.egress.clear(now),
        };
        if let (None, Some(relay)) = (link, &mut node.relay) {
            relay.bridge.clear(port);
        }
        let inner = node.relay.as_ref().is_some_and(|relay| relay.is_inner(port));
        for outcome in lost {
            self.switch_outcome(id, port, plug, outcome);
        }
        if inner {
            self.find_ways();
        }
        self.switch_poll_later(id);
    }

    /// Ports of switches that take a cable.
    pub(crate) fn switch_ports(&self) -> impl Iterator<Item = PortRef> {
        let ports = |(i, node): (usize, &SwitchNode)| {
            (1..=node.fw.ports()).map(move |port| PortRef::of_switch(SwitchId(i), port))
        };
        self.switches.iter().enumerate().flat_map(ports)
    }

    /// The name of a switch; empty if there is no such switch.
    pub fn switch_name(&self, switch: SwitchId) -> &str {
        self.switches.get(switch.0).map_or("", |node| &node.name)
    }

    /// Gathers the packets at that port of a switch.
    pub(super) fn watch_switch(&mut self, PortRef { node, port }: PortRef) {
        if let NodeId::Switch(id) = node
            && let Some(node) = self.switches.get_mut(id.0)
        {
            node.watched |= 1u128.checked_shl(port.into()).unwrap_or(0);
        }
    }

    /// Whether that is a port of a switch.
    pub(super) fn is_switch(port: PortRef) -> bool {
        matches!(port.node, NodeId::Switch(_))
    }
}

impl Rebase for SwitchPort {
    fn rebase(&mut self, by: Ps) {
        let Self { egress, timer, plug: _, lanes: _, longest: _ } = self;
        egress.rebase(by);
        timer.rebase(by);
    }
}

impl Rebase for SwitchNode {
    fn rebase(&mut self, by: Ps) {
        let Self { name: _, fw, ports, holds, relay, agent_queue: _, poll, watched: _ } = self;
        fw.rebase(by.0);
        ports.rebase(by);
        holds.rebase(by);
        if let Some(relay) = relay {
            relay.bridge.rebase(by);
        }
        poll.rebase(by);
    }
}
