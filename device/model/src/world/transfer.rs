//! What passes over links: packets, the credits for them back, and light.
//!
//! A message is handed to its link when it leaves, with the time at which it arrives: that is at least what MAC and PHY
//! of both ends and the cable take later. One that goes to a node of this world becomes an event there; one that leaves
//! the world is handed to who carries it on ([`super::tunnel`]).
//!
//! Source: IBTA vol 1 7.9 (flow control). What a packet takes of its receiver's input buffer is known to the sender
//! as credits; they come back when the packet has left the buffer, or when it never came. Without credits (Ethernet) the receiver reckons
//! when the packet is there.

use hca_firmware::FunctionId;
use hca_spec::mad::port_state;

use super::links::End;
use super::outbox::take_all;
use super::{Class, Event, TunnelEvent, World};
use crate::adapter::state::function::Function;
use crate::adapter::state::returning::Returned;
use crate::ground::epoch::Rebase;
use crate::ground::node::{FunctionRef, HcaId, LinkEnd, NodeId, PortRef, SwitchId};
use crate::ground::time::Ps;
use crate::link::{Delivery, LineRate, LinkMessage, LinkPacket, Session};
use crate::link_layer::{Packet, blocks};

/// How a packet came to a port.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ingress {
    /// Not by a link, but from outside the world.
    Outside,
    /// Not by a link: it never left its adapter.
    Loopback { hca: HcaId, port: u8, returned: Returned },
    /// At end `end` of a link, sent in that session; it takes so many blocks of a lane's buffer, and they are `owed` to
    /// its sender as credits.
    Link { number: u32, end: u16, session: Session, lane: u8, blocks: u8, owed: bool },
}

/// How a packet leaves an end of a link.
#[derive(Clone, Copy)]
struct Departure {
    /// The link.
    number: usize,
    /// What packets occupy of it.
    line: LineRate,
    /// When the first byte of one that leaves now can be at another end.
    earliest: Ps,
    /// What the port's PHY takes.
    leave: Ps,
    /// The session of both ends of a cable. Who sends over a carrier of another kind knows nothing of the far end.
    session: Option<Session>,
}

/// When a packet is at a port, and by which end of a link.
struct Coming {
    number: usize,
    end: usize,
    port: PortRef,
    /// When its first and its last byte are; an adapter asks for the last alone.
    head: Ps,
    tail: Ps,
    credits: u16,
    session: Session,
    /// The packet's lane.
    lane: u8,
}

/// A packet whose header is at a port of a switch.
pub(super) struct Forwarded {
    pub(super) switch: SwitchId,
    pub(super) port: u8,
    pub(super) packet: Packet,
    /// When its last byte is there.
    pub(super) tail: Ps,
    pub(super) ingress: Ingress,
}

impl World {
    /// A packet begins to go over a link from one end.
    pub(super) fn transmit(&mut self, start: Ps, number: usize, from: usize, packet: Packet) {
        let Some(link) = self.links.get_mut(number) else { return };
        let Some(near) = link.ends.get(from).filter(|near| near.training.is_up()) else {
            return tracing::debug!("packet to {} dropped: link {number} is down", receiver(&packet));
        };
        let (session, leave) = (near.training.session(), near.latency());
        let other = link.other(from);
        let (lane, len) = (packet.lane(), packet.len());
        let has_credits = link.has_credits();
        let credits = match has_credits {
            true if !packet.is_management() => blocks(len) as u16,
            _ => 0,
        };
        let earliest = start + link.kind.delay.unwrap_or_default();
        let way = Departure { number, line: near.line, earliest, leave, session: other.map(|_| session) };
        let Some((end, at)) =
            other.filter(|_| link.plain).and_then(|end| Some((end, link.carrier.pass(start, from, len)?)))
        else {
            return self.carry(way, (start, from), packet, credits);
        };
        // Mostly it goes to another adapter, which takes whole packets.
        match link.ends.get(end).and_then(End::adapter) {
            Some((port, latency)) => {
                let tail = at.max(earliest) + leave + latency;
                let head = tail;
                self.come(Coming { number, end, port, head, tail, credits, session, lane }, packet);
            }
            None => self.cross(way, Delivery { at, end, packet }, credits),
        }
    }

    /// The same over a carrier that may lose or change packets.
    #[inline(never)]
    fn carry(&mut self, way: Departure, (start, from): (Ps, usize), packet: Packet, mut credits: u16) {
        let Departure { number, line, earliest, leave, session: _ } = way;
        let Some(link) = self.links.get_mut(number) else { return };
        let (lane, len) = (packet.lane(), packet.len());
        let mut deliveries = std::mem::take(&mut self.deliveries);
        link.carrier.transmit(start, from, packet, &mut deliveries);
        // A copy that the link made of itself was not reckoned with, and takes no credits.
        take_all(&mut deliveries, |delivery| {
            self.cross(way, delivery, std::mem::take(&mut credits));
        });
        self.deliveries = deliveries;
        if credits > 0 {
            // Lost on the way: the receiver tells that its room is as it was.
            let sent = start + line.serialisation(len);
            let Some(near) = self.links.get(number).and_then(|l| l.ends.get(from)) else { return };
            let (far, session) = (near.training.far(), near.training.session());
            let there_and_back = (leave + earliest.since(start) + far.latency).times(2);
            self.credit_arrives(
                number,
                from,
                session.reversed(),
                lane,
                credits.into(),
                sent + there_and_back,
            );
        }
    }

    /// A packet that was put on a link comes to one of its ends.
    fn cross(&mut self, way: Departure, delivery: Delivery, credits: u16) {
        let Departure { number, line, earliest, leave, session } = way;
        let Delivery { at, end, packet } = delivery;
        let Some(link) = self.links.get(number) else { return };
        let Some(there) = link.ends.get(end) else { return };
        let session = session.unwrap_or_else(|| there.training.session().reversed());
        let len = packet.len();
        let head = || at.since(line.serialisation(len)).max(earliest);
        match there.at {
            LinkEnd::Port(port) => {
                let tail = at.max(earliest) + leave + there.latency();
                let head = match port.node {
                    NodeId::Switch(_) => head() + leave + there.latency(),
                    // An adapter takes whole packets.
                    NodeId::Hca(_) => tail,
                };
                let lane = packet.lane();
                self.come(Coming { number, end, port, head, tail, credits, session, lane }, packet);
            }
            LinkEnd::Tunnel(tunnel) => {
                let head = head();
                let packet = LinkPacket { packet, tail: at.since(head), credits, session };
                let message = LinkMessage::Packet(packet);
                self.leave(TunnelEvent { tunnel, at: head + leave, message });
            }
        }
    }

    /// A packet's first byte comes to the connector at an end of a link at `at`: its port has it when it has passed the
    /// PHY.
    pub(super) fn packet_arrives(
        &mut self,
        at: Ps,
        number: usize,
        end: usize,
        port: PortRef,
        packet: LinkPacket,
    ) {
        let LinkPacket { packet, tail, credits, session } = packet;
        let link = self.links.get(number);
        let head = at + link.and_then(|l| l.ends.get(end)).map_or(Ps::ZERO, End::latency);
        let lane = packet.lane();
        let tail = head + tail;
        self.come(Coming { number, end, port, head, tail, credits, session, lane }, packet);
    }

    /// A packet is on its way to a port.
    #[inline(always)]
    fn come(&mut self, coming: Coming, packet: Packet) {
        let Coming { number, end, port, head, tail, credits, session, lane } = coming;
        let owed = credits > 0;
        let taken = match owed {
            true => credits.into(),
            // A copy that the link made of itself takes room, too.
            false if !packet.is_management() => blocks(packet.len()),
            false => 0,
        };
        let taken = u8::try_from(taken).unwrap_or(u8::MAX);
        let ingress =
            Ingress::Link { number: number as u32, end: end as u16, session, lane, blocks: taken, owed };
        let source = self.source(Class::Packet, port);
        match port.node {
            NodeId::Hca(hca) if self.trains.is_empty() => {
                let port = port.port;
                let key = self.heap.reserve(tail, source);
                self.heap.push_reserved(key, Event::Arrive { hca, port, packet, ingress });
            }
            NodeId::Hca(hca) => self.push_arrival(tail, port, hca, packet, ingress),
            NodeId::Switch(switch) => {
                let forwarded = Forwarded { switch, port: port.port, packet, tail, ingress };
                self.heap.push(head, source, Event::Forward(Box::new(forwarded)));
            }
        }
    }

    /// Sends something else than a packet from an end of a link to the other, at `at`.
    pub(super) fn send_message(&mut self, number: usize, from: usize, at: Ps, message: LinkMessage) {
        let Some(link) = self.links.get(number) else { return };
        let Some(to) = link.other(from) else { return };
        let (Some(near), Some(far)) = (link.ends.get(from), link.ends.get(to)) else { return };
        let at = at + near.latency() + link.kind.delay.unwrap_or_default();
        match (far.at, message) {
            (LinkEnd::Tunnel(tunnel), message) => self.leave(TunnelEvent { tunnel, at, message }),
            (LinkEnd::Port(_), LinkMessage::Credit { lane, blocks, session }) => {
                let there = at + far.latency();
                self.credit_arrives(number, to, session, lane, blocks, there);
            }
            (LinkEnd::Port(port), message) => self.message_arrives(number, to, port, at, message),
        }
    }

    /// A message comes to the connector at an end of a link at `at`.
    pub(super) fn message_arrives(
        &mut self,
        number: usize,
        end: usize,
        port: PortRef,
        at: Ps,
        message: LinkMessage,
    ) {
        let latency = self.links.get(number).and_then(|l| l.ends.get(end)).map_or(Ps::ZERO, End::latency);
        let there = at + latency;
        match message {
            LinkMessage::Packet(packet) => self.packet_arrives(at, number, end, port, packet),
            LinkMessage::Credit { lane, blocks, session } => {
                self.credit_arrives(number, end, session, lane, blocks, there);
            }
            LinkMessage::Light(light) => {
                let source = self.source(Class::Light, port);
                self.heap.push(there, source, Event::Light { number, end, light });
            }
        }
    }

    /// Whether the link that a packet came by is up, and was since the packet left.
    pub(super) fn is_current(&self, ingress: Ingress) -> bool {
        match ingress {
            Ingress::Outside | Ingress::Loopback { .. } => true,
            Ingress::Link { number, end, session, .. } => {
                let link = self.links.get(number as usize);
                let near = link.and_then(|l| l.ends.get(usize::from(end)));
                near.is_some_and(|near| {
                    near.training.accepts(session) || (near.frames_alone && near.training.is_up())
                })
            }
        }
    }

    /// A packet is at a port of an adapter. Without credits it is dropped if the input buffer has no room for it.
    #[inline]
    pub(super) fn arrive(&mut self, at: Ps, id: HcaId, port: u8, packet: Packet, ingress: Ingress) {
        if !self.is_current(ingress) {
            return self.leave_buffer(ingress);
        }
        if let Ingress::Link { number, end, lane, blocks, owed: false, .. } = ingress {
            let port = PortRef::of_hca(id, port);
            if !self.take_in(number as usize, usize::from(end), port, lane, blocks) {
                return self.count_overrun(port, lane);
            }
        }
        self.arrive_in_buffer(at, id, port, packet, ingress);
    }

    /// A packet is in the input buffer of a port of an adapter.
    #[inline]
    pub(super) fn arrive_in_buffer(&mut self, at: Ps, id: HcaId, port: u8, packet: Packet, ingress: Ingress) {
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let state = hca.chip.managed.port(port).map_or(port_state::DOWN, |p| p.state);
        let data = matches!(ingress, Ingress::Link { .. }) && !packet.is_management();
        if data && state < port_state::ARMED {
            if let Some(mut manager) = hca.executor(FunctionId::FIRST) {
                manager.arrive_too_soon(at, port, &packet);
            }
            return self.return_credits(ingress, at);
        }
        let scripted = hca.chip.script.is_some() && matches!(ingress, Ingress::Link { .. });
        let packet = match scripted {
            false => packet,
            true => match self.script_packet(at, id, port, packet) {
                Some(packet) => packet,
                None => return self.return_credits(ingress, at),
            },
        };
        if data && state == port_state::ARMED && packet.check_link().is_ok() {
            let Some(hca) = self.hcas.get_mut(id.0) else { return };
            let mut effects = Vec::new();
            hca.chip.managed.data_arrived(port, &mut effects);
            self.apply(id, port, at, effects);
        }
        if let Some((function, free)) = self.arrive_checked(at, id, port, packet) {
            let at = FunctionRef { hca: id, function };
            match self.function(at).is_some_and(|function| function.side.parked.is_backed_up()) {
                true => self.held_credits.push((at, ingress)),
                false => self.return_credits(ingress, free),
            }
        }
    }

    /// Credits that were held because too many packets wait for the memory of a function's host go back, if that is over.
    pub(super) fn release_credits(&mut self, now: Ps, at: FunctionRef) {
        let backed_up = |function: &Function| function.side.parked.is_backed_up();
        if self.held_credits.is_empty() || self.function(at).is_some_and(backed_up) {
            return;
        }
        let held = std::mem::take(&mut self.held_credits);
        let (free, held) = held.into_iter().partition(|(of, _)| *of == at);
        self.held_credits = held;
        let free: Vec<(FunctionRef, Ingress)> = free;
        free.into_iter().for_each(|(_, ingress)| self.return_credits(ingress, now));
    }

    /// A packet's place in its receiver's input buffer is free at `at`: its sender will know one link latency later.
    pub(super) fn return_credits(&mut self, ingress: Ingress, at: Ps) {
        let Ingress::Link { number, end, session: left_in, lane, blocks, owed } = ingress else {
            return self.return_elsewhere(ingress, at);
        };
        let (number, end) = (number as usize, usize::from(end));
        let Some(link) = self.links.get_mut(number) else { return };
        let (credits, other) = (link.has_credits(), link.other(end));
        let delay = link.kind.delay.unwrap_or_default();
        let Some(near) = link.ends.get_mut(end) else { return };
        if !credits && at > self.now && near.counts_for_itself() {
            return self.free_later(number, end, (lane, blocks), at);
        }
        near.release(lane, blocks);
        let returns = !near.without_credits && owed && near.training.accepts(left_in);
        let (session, leave) = (near.training.session(), near.latency());
        if near.asked.is_waited_for() {
            self.flow_control(number, end, false);
        } else if returns
            && let Some(far) = other.and_then(|other| link.ends.get(other))
            && let Some((port, latency)) = far.adapter()
        {
            // Mostly they go to another adapter, which is told at once: the same as below.
            if far.training.accepts(session) {
                self.take_credits(port, lane, blocks.into(), at + leave + delay + latency);
            }
            return;
        }
        if returns {
            self.send_message(number, end, at, LinkMessage::Credit { lane, blocks: blocks.into(), session });
        }
    }

    /// The same of a packet that did not come by a link.
    #[inline(never)]
    fn return_elsewhere(&mut self, ingress: Ingress, at: Ps) {
        if let Ingress::Loopback { hca, port, returned } = ingress {
            self.act(self.now, hca.into(), |executor, now| executor.core.returned(now, port, returned, at));
        }
    }

    /// A packet that came too late to be taken is not in its receiver's input buffer any more, where that was reckoned when it left.
    pub(super) fn leave_buffer(&mut self, ingress: Ingress) {
        if let Ingress::Link { number, end, lane, blocks, .. } = ingress
            && let Some(link) = self.links.get_mut(number as usize).filter(|link| link.has_credits())
            && let Some(near) = link.ends.get_mut(usize::from(end))
        {
            near.release(lane, blocks);
        }
    }

    /// Credits are at an end of a link at `at`.
    fn credit_arrives(&mut self, number: usize, end: usize, session: Session, lane: u8, n: u32, at: Ps) {
        let Some(near) = self.links.get(number).and_then(|l| l.ends.get(end)) else { return };
        let LinkEnd::Port(port) = near.at else { return };
        if near.training.accepts(session) {
            self.take_credits(port, lane, n, at);
        }
    }

    /// A port has credits of a lane from `at` on.
    #[inline(always)]
    fn take_credits(&mut self, port: PortRef, lane: u8, n: u32, at: Ps) {
        let now = self.now;
        let waited_for = match port.node {
            NodeId::Hca(id) => match self.hcas.get_mut(id.0).and_then(|h| h.chip.ports.get_mut(port.port)) {
                Some(out) => out.outlet.credit(now, lane, n, at),
                None => None,
            },
            NodeId::Switch(id) => {
                self.switches.get_mut(id.0).and_then(|s| s.egress(port.port)?.credit(now, lane, n, at))
            }
        };
        if waited_for.is_some() {
            self.await_credits(port, waited_for);
        }
    }

    /// Looks at a port when credits arrive that are waited for.
    pub(super) fn await_credits(&mut self, port: PortRef, at: Option<Ps>) {
        if let Some(at) = at {
            let source = self.source(Class::Credit, port);
            self.heap.push(at, source, Event::Credits { port });
        }
    }

    /// Credits are there that were waited for.
    pub(super) fn credits_turn(&mut self, now: Ps, port: PortRef) {
        let arrived = match port.node {
            NodeId::Hca(id) => {
                let out = self.hcas.get_mut(id.0).and_then(|h| h.chip.ports.get_mut(port.port));
                out.map(|out| out.outlet.credits_arrive(now))
            }
            NodeId::Switch(id) => {
                self.switches.get_mut(id.0).and_then(|s| Some(s.egress(port.port)?.credits_arrive(now)))
            }
        };
        match (arrived, port.node) {
            (Some(Ok(())), NodeId::Hca(id)) => {
                self.act(now, id.into(), |manager, now| manager.port_turn(now, port.port));
            }
            (Some(Ok(())), NodeId::Switch(id)) => self.switch_pump(id, port.port),
            (Some(Err(next)), _) => self.await_credits(port, next),
            (None, _) => {}
        }
    }
}

/// Whom a packet is for, by the addresses on its link, unchecked.
fn receiver(packet: &Packet) -> String {
    match packet.path().eth() {
        Some(address) => format!("MAC {}", address.dmac),
        None => format!("LID {}", packet.ib().dlid),
    }
}

impl Rebase for Forwarded {
    fn rebase(&mut self, by: Ps) {
        let Self { tail, switch: _, port: _, packet: _, ingress: _ } = self;
        tail.rebase(by);
    }
}
