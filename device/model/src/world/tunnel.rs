//! Tunnels: ends of links that lie outside this world, in another process or on another machine.

use hca_firmware::Link as PortLink;

use super::{Event, Forwarded, Origin, World};
use crate::ground::node::{LinkEnd, NodeId, PortRef, TunnelId};
use crate::ground::time::Ps;
use crate::link::egress::{LANES, blocks};
use crate::wire::{MAX_PAYLOAD, Packet};

/// Something that leaves the world by a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelEvent {
    /// By which.
    pub tunnel: TunnelId,
    /// When: the model time at which its last byte is there.
    pub at: Ps,
    /// What.
    pub what: TunnelOutput,
}

/// What leaves by a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelOutput {
    /// A packet, LRH to VCRC.
    Packet(Vec<u8>),
    /// The near end is ready to train, with these lanes and this rate; or, `None`, it is dark: its cable is out or
    /// its port disabled. The far side should be told as much by its [`World::tunnel_link`].
    Light(Option<PortLink>),
}

/// The outside of a tunnel.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// What the far side has told of itself.
    pub(super) light: Option<PortLink>,
    /// What it was told of this side.
    told: Option<PortLink>,
    /// Credits' worth of input buffer that its packets take, by lane. Its sender does not know of them.
    held: [u32; LANES],
}

impl Outside {
    /// The link went down: what is still on its way here is void, and takes no room.
    pub(super) fn forget_held(&mut self) {
        self.held = [0; LANES];
    }
}

/// No packet is longer: the largest payload, and more than all headers together.
const LONGEST: usize = MAX_PAYLOAD + 256;

/// The input buffer behind a tunnel is so many times as large as another, since what comes in by it can't be slowed.
const OVERSIZE: usize = 32;

impl World {
    /// Takes what left by tunnels since the last call, in the order it left.
    pub fn drain_tunnels(&mut self) -> Vec<TunnelEvent> {
        std::mem::take(&mut self.tunnel_events)
    }

    /// The far side of a tunnel is ready to train, with these lanes and this rate, or (`None`) it is dark or can't
    /// be reached. Before the first call it is dark. The link trains as soon as both sides are ready; its rate is
    /// then the lower one, its width the smaller one.
    pub fn tunnel_link(&mut self, now: Ps, tunnel: TunnelId, link: Option<PortLink>) {
        self.now = self.now.max(now);
        let Some((number, end)) = self.find_tunnel(tunnel) else { return };
        if let Some(outside) = self.links.get_mut(number).and_then(|l| l.outside.as_mut()) {
            outside.light = link;
        }
        self.tend_link(number, end, false);
    }

    /// A packet arrives through a tunnel: it is at the near end's port now. While the link is down it is dropped.
    pub fn tunnel_receive(&mut self, now: Ps, tunnel: TunnelId, bytes: Vec<u8>) {
        self.now = self.now.max(now);
        let Some((number, end)) = self.find_tunnel(tunnel) else { return };
        let Some(link) = self.links.get(number) else { return };
        let near = 1 - end.min(1);
        let Some(LinkEnd::Port(port)) = link.ends.get(near).copied() else { return };
        let packet = Packet::from_bytes(bytes);
        let (lane, n) = (packet.vl(), blocks(packet.len()));
        let origin = Origin::of(number, near, link.generation(near), lane, n);
        if !self.is_current(origin) {
            return tracing::debug!("packet by tunnel {} dropped: the link is down", tunnel.0);
        }
        let room = blocks(self.timing.switch_buffer().saturating_mul(OVERSIZE));
        let held =
            self.links.get_mut(number).and_then(|l| l.outside.as_mut()?.held.get_mut(usize::from(lane)));
        let Some(held) = held else { return };
        if *held + n > room || packet.len() > LONGEST {
            tracing::debug!("packet by tunnel {} dropped: too long, or no room in lane {lane}", tunnel.0);
            return self.count_overrun(port);
        }
        *held += n;
        let event = match port.node {
            NodeId::Hca(hca) => Event::Arrive { hca, packet, origin },
            NodeId::Switch(switch) => {
                let (port, tail) = (port.port, self.now);
                Event::Forward(Box::new(Forwarded { switch, port, packet, tail, origin }))
            }
        };
        self.heap.push(self.now, event);
    }

    /// A packet that came by a tunnel has left the input buffer.
    pub(super) fn tunnel_credit(&mut self, tunnel: TunnelId, lane: u8, n: u32) {
        let link = self.find_tunnel(tunnel).and_then(|(number, _)| self.links.get_mut(number));
        if let Some(held) = link.and_then(|l| l.outside.as_mut()?.held.get_mut(usize::from(lane))) {
            *held = held.saturating_sub(n);
        }
    }

    /// There was no room for a packet although its sender may not know of credits: the buffer overran, which counts
    /// as a receive error (IBTA vol 1 16.1.3.5).
    fn count_overrun(&mut self, port: PortRef) {
        let counters = match port.node {
            NodeId::Hca(id) => self.hcas.get_mut(id.0).and_then(|h| h.core.fw.port_mut(port.port)),
            NodeId::Switch(id) => self.switches.get_mut(id.0).and_then(|s| s.fw.port_mut(port.port)),
        };
        if let Some(port) = counters {
            port.counters.rcv_errors = port.counters.rcv_errors.saturating_add(1);
        }
    }

    pub(super) fn find_tunnel(&self, tunnel: TunnelId) -> Option<(usize, usize)> {
        let wanted = LinkEnd::Tunnel(tunnel);
        self.links.iter().enumerate().find_map(|(i, l)| Some((i, l.ends.iter().position(|e| *e == wanted)?)))
    }

    /// Tells the far side of a tunnel whether this side is ready, if it does not know.
    pub(super) fn tell_tunnel(&mut self, number: usize, lit: bool) {
        let at = self.now;
        let Some(link) = self.links.get_mut(number) else { return };
        let tunnel = link.ends.iter().find_map(|e| match e {
            LinkEnd::Tunnel(tunnel) => Some(*tunnel),
            LinkEnd::Port(_) => None,
        });
        let (Some(tunnel), Some(outside)) = (tunnel, link.outside.as_mut()) else { return };
        let light = lit.then_some(link.port);
        if outside.told != light {
            outside.told = light;
            self.tunnel_events.push(TunnelEvent { tunnel, at, what: TunnelOutput::Light(light) });
        }
    }
}

/// What a link trains to if its ends can do so much.
pub(super) fn common(a: PortLink, b: PortLink) -> PortLink {
    let speed = if (b.speed as u8) < (a.speed as u8) { b.speed } else { a.speed };
    PortLink { width: a.width.min(b.width), speed }
}
