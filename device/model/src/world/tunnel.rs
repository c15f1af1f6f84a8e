//! Tunnels: ends of links that lie outside this world, in another process or on another machine.
//!
//! What leaves by a tunnel does so with the time at which it is at the far side's connector
//! ([`World::drain_tunnels`]). There are two ways to hand it on:
//!
//! - To a world with the same clock, by [`World::deliver`], with its time. The two worlds then do what one would, event by
//!   event, if neither goes further than the other allows: to the time that the other has reached, and
//!   [`World::lookahead`] of both ends. See [`crate::ground::time::Source`] for events of the same time.
//! - To a world with a clock of its own, by [`World::tunnel_receive`] and [`World::tunnel_link`], when its time has come.
//!   Such a link has no credits.

use hca_firmware::{LinkOffer, PortKind, PortLink};

use super::World;
use crate::ground::epoch::Rebase;
use crate::ground::node::{LinkEnd, NodeId, PortRef, TunnelId};
use crate::ground::time::Ps;
use crate::link::{Light, LinkMessage, LinkPacket};
use crate::link_layer::MAX_FRAME;
use crate::link_layer::{Packet, blocks};
use crate::wire::MAX_PAYLOAD;

/// Something that leaves the world by a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelEvent {
    /// By which.
    pub tunnel: TunnelId,
    /// When it is at the far side's connector.
    pub at: Ps,
    /// What.
    pub message: LinkMessage,
}

/// No packet is longer: the largest payload, and more than all headers together.
const LONGEST: usize = MAX_PAYLOAD + 256;

/// The input buffer behind a tunnel without credits is so many times as large as another, since what comes in by it can't
/// be slowed.
const OVERSIZE: usize = 32;
/// Copies that a link makes of packets take room and no credits: with them there is so many times what the sender knows of.
pub(super) const COPIES: u32 = 2;

/// Bytes of the longest packet that a port of that kind takes.
const fn longest(kind: PortKind) -> usize {
    match kind {
        PortKind::InfiniBand => LONGEST,
        PortKind::Ethernet => MAX_FRAME,
    }
}

impl World {
    /// Takes what is at the far side of tunnels at or before `until`, in order of its time; what is of the same time and
    /// tunnel in the order it left. [`Ps::MAX`]: everything that has left so far.
    pub fn drain_tunnels(&mut self, until: Ps) -> Vec<TunnelEvent> {
        self.fetch_leaving();
        let later = self.tunnel_events.split_off(&(until, u64::MAX));
        std::mem::replace(&mut self.tunnel_events, later).into_values().collect()
    }

    /// Hands everything that has left so far to `take`, in the same order. Payload of packets may be in their senders' memory yet: it is to be
    /// [put where it goes](crate::link_layer::Packet::put_on_link) before anything else is done to the world.
    pub fn take_leaving(&mut self, take: impl FnMut(TunnelEvent)) {
        self.left_referring = 0;
        std::mem::take(&mut self.tunnel_events).into_values().for_each(take);
    }

    /// Packets that left and wait to be taken have their payload's bytes themselves from now on.
    pub(super) fn fetch_leaving(&mut self) {
        if std::mem::take(&mut self.left_referring) > 0 {
            for event in self.tunnel_events.values_mut() {
                if let LinkMessage::Packet(LinkPacket { packet, .. }) = &mut event.message {
                    packet.fetch_payload();
                }
            }
        }
    }

    /// How many messages wait to be taken by [`World::drain_tunnels`].
    pub fn leaving(&self) -> usize {
        self.tunnel_events.len()
    }

    /// From when on something by that tunnel can be at the far side's connector, at the earliest, after it left this
    /// world; and how long after it was at this side's connector something that came is felt here. `None`: there is no
    /// such tunnel.
    pub fn lookahead(&self, tunnel: TunnelId) -> Option<(Ps, Ps)> {
        let (number, end) = self.find_tunnel(tunnel)?;
        let link = self.links.get(number)?;
        let near = self.port_latency(link.ends.get(link.other(end)?)?.at);
        Some((near + link.kind.delay.unwrap_or_default(), near))
    }

    /// Something that left another world by its end of the same link is at this side's connector at `at`, in the time of
    /// both. What is of the same time has to be delivered in the order it left. The other world is not trusted: packets
    /// that are too long, or for which it has no credits, are dropped and counted.
    pub fn deliver(&mut self, tunnel: TunnelId, at: Ps, mut message: LinkMessage) {
        self.rouse();
        self.tidy();
        let Some((number, port, end)) = self.near_end(tunnel) else { return };
        let kind = self.port_kind(port);
        let beside = self.beside_credits();
        let Some(link) = self.links.get_mut(number) else { return };
        let credits_count = link.has_credits();
        let Some(near) = link.ends.get_mut(end) else { return };
        near.without_credits = false;
        if let LinkMessage::Packet(LinkPacket { packet, credits, .. }) = &mut message {
            let (lane, needed) = (packet.lane(), blocks(packet.len()));
            let taken = if packet.is_management() { 0 } else { needed };
            let fits = packet.kind() == kind
                && packet.len() <= longest(kind)
                && match credits_count {
                    true => {
                        let known = blocks(near.near_light().buffer.unwrap_or(u32::MAX) as usize);
                        near.hold(lane, taken, known.saturating_mul(COPIES))
                    }
                    false => near.expect(packet.len(), at, beside),
                };
            if !fits {
                tracing::debug!(
                    "packet by tunnel {} dropped: none of this link, too long, or no room for it",
                    tunnel.0
                );
                return self.count_overrun(port, lane);
            }
            let owed = credits_count && *credits > 0;
            *credits = if owed { u16::try_from(taken).unwrap_or(u16::MAX) } else { 0 };
        }
        // The connector's time may be over, but not yet the PHY's. What is late comes next: what it changes has yet to be seen.
        let earliest = (self.now + Ps(1)).since(self.port_latency(LinkEnd::Port(port)));
        self.message_arrives(number, end, port, at.max(earliest), message);
    }

    /// The far side of a tunnel is ready to train, with these lanes and this rate, or (`None`) it is dark or can't
    /// be reached. Before the first call it is dark. The link trains as soon as both sides are ready; its rate is
    /// then the lower one, its width the smaller one.
    pub fn tunnel_link(&mut self, now: Ps, tunnel: TunnelId, link: Option<PortLink>) {
        self.rouse();
        self.now = self.now.max(now);
        let Some((number, _, end)) = self.near_end(tunnel) else { return };
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        near.without_credits = true;
        let offer = link.map(LinkOffer::up_to);
        let far = *near.training.far();
        if far.offer != offer {
            let light = Light { session: far.session.wrapping_add(1), offer, ..Light::default() };
            self.light_arrives(number, end, light);
        }
    }

    /// At the far side of a tunnel is other software with the same clock, which knows of frames alone: its light is always on, with
    /// these lanes and this rate, and [`World::deliver`] takes its frames in whatever session the link is then. Before time goes on.
    pub fn tunnel_of_frames(&mut self, tunnel: TunnelId, link: PortLink) {
        self.tunnel_link(self.now, tunnel, Some(link));
        let Some((number, _, end)) = self.near_end(tunnel) else { return };
        if let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) {
            near.frames_alone = true;
        }
    }

    /// Tells the far side of a tunnel of this side's light once more: it may be another one than before, which has heard of
    /// none.
    pub fn greet_tunnel(&mut self, now: Ps, tunnel: TunnelId) {
        self.rouse();
        self.now = self.now.max(now);
        let Some((number, _, end)) = self.near_end(tunnel) else { return };
        let Some(near) = self.links.get(number).and_then(|l| l.ends.get(end)) else { return };
        let light = near.near_light();
        self.send_message(number, end, self.now, LinkMessage::Light(light));
    }

    /// A packet arrives through a tunnel: it is at the near end's connector now. While the link is down it is dropped.
    pub fn tunnel_receive(&mut self, now: Ps, tunnel: TunnelId, bytes: Vec<u8>) {
        self.rouse();
        self.tidy();
        self.now = self.now.max(now);
        let Some((number, port, end)) = self.near_end(tunnel) else { return };
        let packet = Packet::from_link(self.port_kind(port), bytes);
        self.come_by_tunnel(tunnel, (number, port, end), packet);
    }

    /// The same of a frame without FCS, which is good: software outside gave it.
    pub fn tunnel_frame(&mut self, now: Ps, tunnel: TunnelId, frame: Vec<u8>) {
        self.rouse();
        self.tidy();
        self.now = self.now.max(now);
        let Some((number, port, end)) = self.near_end(tunnel) else { return };
        if self.port_kind(port) == PortKind::Ethernet {
            self.come_by_tunnel(tunnel, (number, port, end), Packet::frame(frame));
        }
    }

    fn come_by_tunnel(
        &mut self,
        tunnel: TunnelId,
        (number, port, end): (usize, PortRef, usize),
        packet: Packet,
    ) {
        let (lane, n) = (packet.lane(), blocks(packet.len()));
        let room = self.beside_credits();
        let Some(link) = self.links.get_mut(number) else { return };
        let credits_count = link.has_credits();
        let Some(near) = link.ends.get_mut(end) else { return };
        if !near.training.is_up() {
            return tracing::debug!("packet by tunnel {} dropped: the link is down", tunnel.0);
        }
        let session = near.training.session().reversed();
        let fits = packet.len() <= longest(packet.kind())
            && match credits_count {
                true => near.hold(lane, n, room),
                false => near.expect(packet.len(), self.now, room),
            };
        if !fits {
            tracing::debug!("packet by tunnel {} dropped: too long, or no room in lane {lane}", tunnel.0);
            return self.count_overrun(port, lane);
        }
        let credits = if credits_count { u16::try_from(n).unwrap_or(u16::MAX) } else { 0 };
        self.packet_arrives(
            self.now,
            number,
            end,
            port,
            LinkPacket { packet, tail: Ps::ZERO, credits, session },
        );
    }

    /// Blocks of what comes in by a tunnel and can't be slowed that may be on their way here, or in an input buffer, at once.
    fn beside_credits(&self) -> u32 {
        blocks(self.timing.switch_buffer().saturating_mul(OVERSIZE))
    }

    /// There was no room for a packet although its sender may not know of credits: the buffer overran, which counts
    /// as a receive error (IBTA vol 1 16.1.3.5).
    pub(super) fn count_overrun(&mut self, port: PortRef, lane: u8) {
        let counters = match port.node {
            NodeId::Hca(id) => self.hcas.get_mut(id.0).and_then(|h| h.chip.managed.port_mut(port.port)),
            NodeId::Switch(id) => self.switches.get_mut(id.0).and_then(|s| s.fw.port_mut(port.port)),
        };
        if let Some(port) = counters {
            match port.ethernet_mut() {
                Some(ethernet) => {
                    let counters = &mut ethernet.counters.rx;
                    counters.discards = counters.discards.wrapping_add(1);
                    if let Some(of) = counters.priorities.get_mut(usize::from(lane)) {
                        of.discards = of.discards.wrapping_add(1);
                    }
                }
                None => port.counters.rcv_errors = port.counters.rcv_errors.saturating_add(1),
            }
        }
    }

    /// The link that ends at a tunnel, and which of its ends that is.
    pub(super) fn find_tunnel(&self, tunnel: TunnelId) -> Option<(usize, usize)> {
        self.tunnels.get(&tunnel).copied()
    }

    /// The link of a tunnel, and the port at its end in this world.
    fn near_end(&self, tunnel: TunnelId) -> Option<(usize, PortRef, usize)> {
        let (number, far) = self.find_tunnel(tunnel)?;
        let link = self.links.get(number)?;
        let end = link.other(far)?;
        match link.ends.get(end)?.at {
            LinkEnd::Port(port) => Some((number, port, end)),
            LinkEnd::Tunnel(_) => None,
        }
    }

    /// Something leaves the world.
    pub(super) fn leave(&mut self, event: TunnelEvent) {
        self.left += 1;
        if let LinkMessage::Packet(LinkPacket { packet, .. }) = &event.message {
            self.left_referring += usize::from(packet.is_referring());
        }
        self.tunnel_events.insert((event.at, self.left), event);
    }
}

impl Rebase for TunnelEvent {
    fn rebase(&mut self, by: Ps) {
        let Self { tunnel: _, at, message: _ } = self;
        at.rebase(by);
    }
}
