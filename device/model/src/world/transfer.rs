//! Packets over links, and the credits for them back.
//!
//! Source: IBTA vol 1 7.9 (flow control). What a packet takes of its receiver's input buffer is known to the sender
//! as credits; they come back when the packet has left the buffer, or when it never came.

use hca_spec::mad::port_state;

use super::{Event, World, take_all};
use crate::ground::node::{HCA_PORT, HcaId, LinkEnd, NodeId, PortRef, SwitchId};
use crate::ground::time::Ps;
use crate::link::egress::{VL15, blocks};
use crate::wire::Packet;

/// How a packet came to a port.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// Not by a link: it never left its adapter.
    Loopback,
    /// By end `end` of a link that went down and up so often before; it takes so many credits of a lane.
    Link { number: u32, end: u16, generation: u32, lane: u8, blocks: u16 },
}

impl Origin {
    /// Over a link; the numbers are kept small, since every packet on its way has one of these.
    pub(super) fn of(number: usize, end: usize, generation: u32, lane: u8, blocks: u32) -> Self {
        Self::Link { number: number as u32, end: end as u16, generation, lane, blocks: blocks as u16 }
    }
}

/// A packet whose header is at a port of a switch.
pub(super) struct Forwarded {
    pub(super) switch: SwitchId,
    pub(super) port: u8,
    pub(super) packet: Packet,
    /// When its last byte is there.
    pub(super) tail: Ps,
    pub(super) origin: Origin,
}

impl World {
    /// A packet begins to go over a link from one end.
    pub(super) fn carry(&mut self, start: Ps, number: usize, from: usize, packet: Packet) {
        let Some(link) = self.links.get_mut(number) else { return };
        if !link.is_up(from) {
            return tracing::debug!("packet to LID {} dropped: link {number} is down", packet.dlid());
        }
        let lane = packet.vl();
        let mut credits = match link.cable.delay {
            Some(_) if lane != VL15 => blocks(packet.len()),
            _ => 0,
        };
        let len = packet.len();
        let mut deliveries = std::mem::take(&mut self.deliveries);
        link.carrier.transmit(start, from, packet, &mut deliveries);
        take_all(&mut deliveries, |delivery| {
            let end = delivery.end;
            // A copy that the link made of itself was not reckoned with, and takes no credits.
            let blocks = std::mem::take(&mut credits);
            let origin = Origin::of(number, end, link.generation(end), lane, blocks);
            let packet = delivery.packet;
            let (at, event) = match link.ends.get(end) {
                Some(LinkEnd::Port(PortRef { node: NodeId::Hca(hca), .. })) => {
                    (delivery.at, Event::Arrive { hca: *hca, packet, origin })
                }
                Some(LinkEnd::Port(PortRef { node: NodeId::Switch(switch), port })) => {
                    let head = delivery.at.since(link.cable.serialisation(packet.len())).max(self.now);
                    let tail = delivery.at;
                    let forwarded = Forwarded { switch: *switch, port: *port, packet, tail, origin };
                    (head, Event::Forward(Box::new(forwarded)))
                }
                Some(LinkEnd::Tunnel(tunnel)) => {
                    (delivery.at, Event::Leave { tunnel: *tunnel, packet, origin })
                }
                None => return,
            };
            self.heap.push(at, event);
        });
        self.deliveries = deliveries;
        if credits > 0 {
            // Lost on the way: the receiver tells that its room is as it was.
            let sent = start + link.cable.serialisation(len);
            let there_and_back = link.cable.delay.unwrap_or_default().times(2);
            let sender = link.ends.get(from).copied();
            self.credit(sender, lane, credits, sent + there_and_back);
        }
    }

    /// Whether the link that a packet came by is up, and was since the packet left.
    pub(super) fn is_current(&self, origin: Origin) -> bool {
        match origin {
            Origin::Loopback => true,
            Origin::Link { number, end, generation, .. } => {
                let end = usize::from(end);
                let link = self.links.get(number as usize);
                link.is_some_and(|l| l.is_up(end) && l.generation(end) == generation)
            }
        }
    }

    /// A packet is at the port of an adapter.
    pub(super) fn arrive(&mut self, at: Ps, id: HcaId, packet: Packet, origin: Origin) {
        if !self.is_current(origin) {
            return;
        }
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let state = hca.core.fw.port(HCA_PORT).map_or(port_state::DOWN, |p| p.state);
        let data = matches!(origin, Origin::Link { .. }) && packet.vl() != VL15;
        if data && state < port_state::ARMED {
            hca.arrive_too_soon(at, &packet);
            return self.credit_back(origin, at);
        }
        if data && state == port_state::ARMED && packet.check_link().is_ok() {
            let mut effects = Vec::new();
            hca.core.fw.data_arrived(HCA_PORT, &mut effects);
            self.apply(id, at, effects);
        }
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let free = hca.arrive(at, packet);
        self.collect(id);
        self.credit_back(origin, free);
    }

    /// A packet's place in its receiver's input buffer is free at `at`: its sender will know one link later.
    pub(super) fn credit_back(&mut self, origin: Origin, at: Ps) {
        let Origin::Link { number, end, lane, blocks, .. } = origin else { return };
        if blocks == 0 || !self.is_current(origin) {
            return;
        }
        let Some(link) = self.links.get(number as usize) else { return };
        let sender = link.ends.get(1 - usize::from(end).min(1)).copied();
        let at = at + link.cable.delay.unwrap_or_default();
        self.credit(sender, lane, blocks.into(), at);
    }

    fn credit(&mut self, sender: Option<LinkEnd>, lane: u8, n: u32, at: Ps) {
        let now = self.now;
        match sender {
            Some(LinkEnd::Port(PortRef { node: NodeId::Hca(id), .. })) => {
                if let Some(hca) = self.hcas.get_mut(id.0)
                    && hca.credit(now, lane, n, at)
                {
                    self.collect(id);
                }
            }
            Some(LinkEnd::Port(PortRef { node: NodeId::Switch(id), port })) => {
                let Some(egress) = self.switches.get_mut(id.0).and_then(|s| s.egress(port)) else { return };
                egress.credit(lane, n, at);
                if egress.is_waiting() {
                    self.switch_pump(id, port);
                }
            }
            Some(LinkEnd::Tunnel(tunnel)) => self.tunnel_credit(tunnel, lane, n),
            None => {}
        }
    }
}
