//! What an Ethernet switch does that one of InfiniBand does not: it finds stations, shares its memory, asks peers to wait and tells
//! of congestion.

use hca_firmware::Switch;

use super::World;
use super::bridge::{Bridge, Verdict};
use super::links::End;
use super::queueing::{Buffer, Queueing, Taken};
use super::ways::{self, Cable};
use crate::ground::node::{LinkEnd, NodeId, PortRef, SwitchId};
use crate::ground::random::SplitMix64;
use crate::ground::time::Ps;
use crate::link::LineRate;
use crate::link_layer::Packet;
use crate::link_layer::eth::Mac;

/// The part of a switch that is Ethernet's.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) bridge: Bridge,
    pub(super) buffer: Buffer,
    /// Which packets are marked.
    random: SplitMix64,
    /// Which way a flow goes.
    seed: u64,
}

impl Relay {
    /// Of a switch, whose ports ask their peers to wait as it queues.
    pub(super) fn new(how: Queueing, fw: &mut Switch, seed: u64) -> Self {
        let ports = fw.ports();
        for port in 1..=ports {
            if let Some(ethernet) = fw.port_mut(port).and_then(|p| p.ethernet_mut()) {
                let pause = &mut ethernet.pause;
                (pause.tx, pause.pfc_tx, pause.pfc_rx) = (how.pause, how.pfc(), how.pfc());
            }
        }
        Self { bridge: Bridge::default(), buffer: Buffer::new(how, ports), random: SplitMix64(seed), seed }
    }

    /// Whether there is another switch at a port.
    pub(super) fn is_inner(&self, port: u8) -> bool {
        self.bridge.inner().checked_shr(port.into()).unwrap_or(0) & 1 == 1
    }

    /// The ports by which a frame leaves, as bits.
    pub(super) fn route(&mut self, now: Ps, fw: &Switch, in_port: u8, packet: &Packet, name: &str) -> u128 {
        let sends = |port: &u8| fw.can_send(*port, false);
        let all = (1..=fw.ports()).filter(sends).fold(0, |all, port| all | 1u128 << port);
        match self.bridge.forward(now, in_port, &packet.eth(), all) {
            Verdict::Ports(ports) => ports,
            Verdict::OneOf(ports) => one_of(ports, || packet.flow(self.seed)),
            Verdict::Filtered => 0,
            Verdict::Spoofed => {
                tracing::debug!(switch = name, %now, in_port, "frame dropped: its source belongs to another port");
                0
            }
        }
    }

    /// Marks a frame that comes to a queue of so many bytes, as its priority has it. Whether it was marked.
    pub(super) fn mark(&mut self, packet: &mut Packet, lane: u8, queue: usize) -> bool {
        let Some(red) = self.buffer.how.of(lane).ecn else { return false };
        let probability = red.probability(queue);
        probability > 0.0 && self.random.chance(probability) && packet.mark_congestion()
    }
}

/// One of the ports, by a number of the flow.
fn one_of(ports: u128, flow: impl FnOnce() -> u64) -> u128 {
    if ports & ports.wrapping_sub(1) == 0 {
        return ports;
    }
    let count = u128::from(ports.count_ones());
    let nth = (u128::from(flow()) * count) >> 64;
    let rest = (0..nth).fold(ports, |rest, _| rest & rest.wrapping_sub(1));
    rest & rest.wrapping_neg()
}

impl World {
    /// What an Ethernet port of a switch holds became more or less: asks its peer to wait, or lets it go on; `again`: it is time to
    /// ask once more.
    pub(super) fn switch_flow_control(&mut self, id: SwitchId, port: u8, again: bool) {
        let Some(node) = self.switches.get(id.0) else { return };
        let (Some(relay), Some((number, end))) = (&node.relay, node.plug(port)) else { return };
        self.ask(number, end, relay.buffer.fullness(port), again);
    }

    /// A frame of that lane comes into an Ethernet switch for these ports. It leaves those out whose queues are full, and returns
    /// what it takes of the memory; `None`: there is no room for it.
    pub(super) fn switch_take(
        &mut self,
        id: SwitchId,
        in_port: u8,
        packet: &Packet,
        outs: &mut Vec<(u8, u8)>,
    ) -> Option<Taken> {
        let node = self.switches.get_mut(id.0)?;
        let (lane, bytes) = (packet.lane(), packet.len());
        let Some(relay) = &mut node.relay else { return Some(Taken::default()) };
        let mut full = Vec::new();
        outs.retain(|(out, lane)| {
            let queue = node.ports.get(usize::from(*out)).map_or(0, |p| p.egress.waiting_bytes(*lane));
            let fits = relay.buffer.admits(*lane, bytes, queue);
            if !fits {
                full.push(*out);
            }
            fits
        });
        let taken = if outs.is_empty() { None } else { relay.buffer.take(in_port, lane, bytes) };
        for out in full {
            node.count(out, |c| &mut c.xmit_discards);
            node.count_discard(out, lane, true);
        }
        if taken.is_none() && !outs.is_empty() {
            node.count_discard(in_port, lane, false);
        }
        if taken.is_some_and(|taken| taken.is_lossless()) {
            self.switch_flow_control(id, in_port, false);
        }
        taken
    }

    /// An adapter with that address is at the other end of the cable at a port of an Ethernet switch, in another world: nobody
    /// else's frames come from there.
    pub fn pin_station(&mut self, port: PortRef, mac: [u8; 6]) {
        self.rouse();
        if let NodeId::Switch(id) = port.node
            && let Some(relay) = self.switches.get_mut(id.0).and_then(|node| node.relay.as_mut())
        {
            relay.bridge.pin(Mac(mac), port.port);
        }
    }

    /// Ethernet switches know who is at the far end of a cable within this world, and where other switches are.
    pub(super) fn pin_stations(&mut self, ends: &[End]) {
        let [one, other] = ends else { return };
        for (switch, peer) in [(one, other), (other, one)] {
            let LinkEnd::Port(PortRef { node: NodeId::Switch(id), port }) = switch.at else { continue };
            let mac = match peer.at {
                LinkEnd::Port(at @ PortRef { node: NodeId::Hca(_), .. }) => {
                    self.port(at).and_then(|p| p.ethernet()).map(|e| Mac(e.mac))
                }
                _ => None,
            };
            let is_switch = matches!(peer.at, LinkEnd::Port(PortRef { node: NodeId::Switch(_), .. }));
            let Some(relay) = self.switches.get_mut(id.0).and_then(|node| node.relay.as_mut()) else {
                continue;
            };
            if is_switch {
                relay.bridge.add_inner(port);
            }
            let Some(mac) = mac else { continue };
            relay.bridge.pin(mac, port);
            let others = self.switches.iter_mut().enumerate().filter(|(n, _)| *n != id.0);
            for relay in others.filter_map(|(_, node)| node.relay.as_mut()) {
                relay.bridge.pin_far(mac, id.0);
            }
        }
    }

    /// The Ethernet switches of a whole fabric, where they are here, cables between them, and addresses of adapters with switch and port where
    /// they are; switches are numbered by their place.
    pub(super) fn plan_bridges(
        &mut self,
        switches: &[Option<SwitchId>],
        cables: &[Cable],
        stations: &[([u8; 6], (usize, u8))],
    ) {
        let ways = ways::all(switches.len(), cables);
        for (number, (here, ways)) in switches.iter().zip(ways).enumerate() {
            let node = here.and_then(|here| self.switches.get_mut(here.0));
            let Some(relay) = node.and_then(|node| node.relay.as_mut()) else { continue };
            let inner = cables.iter().flat_map(|cable| cable.from(number)).map(|(port, _)| port);
            relay.bridge = Bridge::new(ways, inner);
            for (mac, (switch, port)) in stations {
                match *switch == number {
                    true => relay.bridge.pin(Mac(*mac), *port),
                    false => relay.bridge.pin_far(Mac(*mac), *switch),
                }
            }
        }
    }

    /// A cable whose other end is so far away, processing included, has trained at a port of an Ethernet switch to that line.
    pub(super) fn keep_headroom(&mut self, port: PortRef, line: LineRate, there: Ps) {
        let there_and_back = there.times(2) + self.timing.hop_inside();
        if let NodeId::Switch(id) = port.node
            && let Some(relay) = self.switches.get_mut(id.0).and_then(|node| node.relay.as_mut())
        {
            relay.buffer.plug(port.port, line, there_and_back);
        }
    }

    /// Finds the ways between Ethernet switches anew, unless they are planned: a link between two of them came or went.
    pub(super) fn find_ways(&mut self) {
        if self.planned.is_some() {
            return;
        }
        let up = |switch: usize, port: u8| {
            let node = self.switches.get(switch).filter(|node| node.relay.is_some());
            node.is_some_and(|node| node.fw.can_send(port, false))
        };
        let cable = |link: &super::Link| {
            let mut ends = link.ends.iter().map(|end| match end.at {
                LinkEnd::Port(PortRef { node: NodeId::Switch(id), port }) => Some((id.0, port)),
                _ => None,
            });
            let (one, other) = (ends.next()??, ends.next()??);
            (up(one.0, one.1) && up(other.0, other.1)).then_some(Cable { ends: [one, other] })
        };
        let cables: Vec<Cable> = self.links.iter().filter_map(cable).collect();
        let ways = ways::all(self.switches.len(), &cables);
        for (node, ways) in self.switches.iter_mut().zip(ways) {
            if let Some(relay) = &mut node.relay {
                relay.bridge.set_ways(ways);
            }
        }
    }

    /// Bytes that wait at a port of a switch in a priority, or lane.
    pub fn switch_queue(&self, port: PortRef, lane: u8) -> usize {
        let NodeId::Switch(id) = port.node else { return 0 };
        let node = self.switches.get(id.0);
        let port = node.and_then(|node| node.ports.get(usize::from(port.port)));
        port.map_or(0, |port| port.egress.waiting_bytes(lane))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn flows_are_shared_out() {
        assert_eq!(one_of(0, || unreachable!("no ways")), 0);
        assert_eq!(one_of(0b100, || unreachable!("one way")), 0b100);
        let ports = 0b1011_0000u128 | 1 << 90;
        let mut counts: HashMap<u128, u32> = HashMap::new();
        let mut random = SplitMix64(1);
        for _ in 0..4000 {
            *counts.entry(one_of(ports, || random.next())).or_default() += 1;
        }
        assert_eq!(counts.len(), 4);
        assert!(
            counts
                .iter()
                .all(|(port, n)| port.count_ones() == 1 && ports & port != 0 && (900..1100).contains(n))
        );
        assert_eq!((one_of(ports, || 0), one_of(ports, || u64::MAX)), (1 << 4, 1 << 90));
    }
}
