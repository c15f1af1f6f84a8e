//! Links: which port is at which end, and how they come up and go down.
//!
//! Each end of a link knows its own port and what the other end told it, one link latency ago
//! ([`Training`]). A cable that is taken out is out at both ends, or on script at one; a port that is disabled or trains anew is dark
//! at one, and the other hears of it. What that means for what is in adapters' cages is in [`super::cages`].
//!
//! Source: IBTA vol 1 7.2 (states of a port), vol 2 5.7 (training).

use std::collections::VecDeque;

use hca_firmware::{Effect, FunctionId, LinkOffer, PortKind, PortLink};
use hca_spec::mad::port_state;

use super::config::ConfigError;
use super::pause::Asked;
use super::tunnel::COPIES;
use super::{Class, Event, World};
use crate::faults::ModuleError;
use crate::ground::epoch::Rebase;
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef};
use crate::ground::time::Ps;
use crate::link::training::{Training, TrainingStep};
use crate::link::{Carrier, Light, LineRate, LinkMessage, LinkRate};
use crate::link_layer::{BLOCK, LANES};

/// What a link is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkKind {
    rate: LinkRate,
    width: u8,
    /// Lanes that are left of it on script.
    lanes_left: Option<u8>,
    /// What packets occupy of it, if that is not what its ports trained to.
    fixed: Option<LineRate>,
    /// Of a cable; its ports then give each other credits. `None`: a carrier of the caller's.
    pub(super) delay: Option<Ps>,
    /// By how much the input buffers at its ends are larger than others.
    room: u32,
    /// Of which kind the ports at its ends are.
    ports: PortKind,
}

impl LinkKind {
    /// A cable that carries so much; `fixed`: whatever its ports train to, packets take this of it.
    pub(super) fn new(rate: LinkRate, width: u8, fixed: Option<LineRate>, delay: Option<Ps>) -> Self {
        Self { rate, width, lanes_left: None, fixed, delay, room: 1, ports: PortKind::InfiniBand }
    }

    /// The same with input buffers that are so many times as large.
    pub(super) fn with_room(self, room: u32) -> Self {
        Self { room, ..self }
    }

    /// What packets occupy of it before it trained.
    pub(super) fn line(&self) -> LineRate {
        self.line_of(self.rate, self.width)
    }

    /// What packets occupy of it when it trained to that.
    fn line_of(&self, rate: LinkRate, width: u8) -> LineRate {
        let line = LineRate::new(rate, width);
        self.fixed.unwrap_or(match self.ports {
            PortKind::InfiniBand => line,
            PortKind::Ethernet => line.on_ethernet(),
        })
    }

    /// Whether the ports at its ends give each other credits.
    pub(super) fn has_credits(&self) -> bool {
        self.delay.is_some() && self.ports == PortKind::InfiniBand
    }

    /// What it can train to.
    pub(super) fn most(&self) -> PortLink {
        PortLink { width: self.lanes_left.unwrap_or(self.width).min(self.width), speed: self.rate.into() }
    }
}

/// An end of a link.
pub(super) struct End {
    /// What is there.
    pub(super) at: LinkEnd,
    /// The cable is in.
    pub(super) connected: bool,
    /// Why what is in the cage can't be used, on script.
    pub(super) failed: Option<ModuleError>,
    pub(super) training: Training,
    /// What packets that leave here occupy of the link.
    pub(super) line: LineRate,
    /// The other end is outside this world and keeps no credits.
    pub(super) without_credits: bool,
    /// The other end is outside, and knows of frames alone: it tells of no session, and what comes from it is always of this one.
    pub(super) frames_alone: bool,
    /// What is in the input buffer is counted here: the other end is outside this world, whatever it believes, or there are no
    /// credits.
    counted: bool,
    /// What its peer was asked for.
    pub(super) asked: Asked,
    /// Blocks of input buffer that are taken, by lane, where nobody else counts them: of packets from outside, and of frames.
    held: [u32; LANES],
    /// Bit n: some are of lane n.
    holds: u16,
    /// Of these, without credits, what leaves later: when, of which lane, and how many.
    leaving: VecDeque<(Ps, u8, u8)>,
    /// Until when packets that came from outside this world, without credits, fill the line.
    filled: Ps,
}

impl End {
    /// What this end tells the other of itself.
    pub(super) fn near_light(&self) -> Light {
        *self.training.near()
    }

    /// What MAC and PHY take here; nothing at one that is outside.
    #[inline]
    pub(super) fn latency(&self) -> Ps {
        self.training.near().latency
    }

    /// The port, if it is an adapter's, and what MAC and PHY take there.
    #[inline]
    pub(super) fn adapter(&self) -> Option<(PortRef, Ps)> {
        match self.at {
            LinkEnd::Port(port @ PortRef { node: NodeId::Hca(_), .. }) => Some((port, self.latency())),
            _ => None,
        }
    }

    /// Nothing is in its input buffer, or is to leave it.
    fn empty(&mut self) {
        (self.held, self.holds) = ([0; LANES], 0);
        self.asked.forget();
        self.leaving.clear();
    }

    /// A packet takes so many blocks of a lane. False: there is no room.
    pub(super) fn hold(&mut self, lane: u8, blocks: u32, room: u32) -> bool {
        let Some(held) = self.held.get_mut(usize::from(lane)) else { return false };
        let fits = held.saturating_add(blocks) <= room;
        *held += if fits { blocks } else { 0 };
        self.holds |= u16::from(*held > 0) << lane;
        fits
    }

    /// A packet of `len` bytes comes from outside this world, without credits, and is here at `at`. False: what came before it fills the line
    /// until later than that, by more than `room` blocks take. Who keeps to the line's rate never meets that, were there a copy of everything.
    /// It depends on the times of packets alone, not on when they are heard of.
    pub(super) fn expect(&mut self, len: usize, at: Ps, room: u32) -> bool {
        let begin = self.filled.max(at);
        let fits = begin.since(at) <= self.line.serialisation(BLOCK.saturating_mul(room as usize));
        if fits {
            self.filled = begin + Ps(self.line.serialisation(len).0 / u64::from(COPIES));
        }
        fits
    }

    /// Blocks that are taken, by lane, of those of which some are.
    pub(super) fn taken(&self) -> impl Iterator<Item = (u8, u32)> {
        let mut lanes = self.holds;
        std::iter::from_fn(move || {
            let lane = lanes.trailing_zeros();
            let held = self.held.get(lane as usize)?;
            lanes &= lanes - 1;
            Some((lane as u8, *held))
        })
    }

    /// Whether it says what room it has: an adapter's without credits.
    pub(super) fn counts_for_itself(&self) -> bool {
        self.counted && matches!(self.at, LinkEnd::Port(PortRef { node: NodeId::Hca(_), .. }))
    }

    /// One leaves the input buffer at `at`.
    pub(super) fn release_at(&mut self, at: Ps, lane: u8, blocks: u8) {
        let place = self.leaving.iter().rposition(|(other, ..)| *other <= at).map_or(0, |place| place + 1);
        self.leaving.insert(place, (at, lane, blocks));
    }

    /// What was to leave by `now` has left. Returns when the next does.
    pub(super) fn release_due(&mut self, now: Ps) -> Option<Ps> {
        while let Some((_, lane, blocks)) = self.leaving.pop_front_if(|(at, ..)| *at <= now) {
            self.release(lane, blocks);
        }
        self.leaving.front().map(|(at, ..)| *at)
    }

    /// One leaves the input buffer, or never came to it.
    #[inline]
    pub(super) fn release(&mut self, lane: u8, blocks: u8) {
        if self.counted
            && let Some(held) = self.held.get_mut(usize::from(lane))
        {
            *held = held.saturating_sub(blocks.into());
            if *held == 0 {
                self.holds &= !(1 << lane);
            }
        }
    }
}

/// A link with its ends.
pub(super) struct Link {
    pub(super) ends: Vec<End>,
    pub(super) carrier: Box<dyn Carrier + Send>,
    /// [`Carrier::is_plain`].
    pub(super) plain: bool,
    pub(super) kind: LinkKind,
    /// Its ports are of several kinds: it stays dark.
    mixed: bool,
    /// Of which kind the ports outside this world are.
    outside: PortKind,
}

impl Link {
    /// The other end of a cable.
    pub(super) fn other(&self, end: usize) -> Option<usize> {
        (self.ends.len() == 2 && end < 2).then(|| 1 - end)
    }

    /// Whether its ports give each other credits.
    pub(super) fn has_credits(&self) -> bool {
        self.kind.has_credits()
    }

    /// Whether packets pass at that end.
    pub(super) fn is_up(&self, end: usize) -> bool {
        self.ends.get(end).is_some_and(|e| e.training.is_up())
    }
}

impl World {
    /// Connects ports by a carrier of the caller's; they train to `rate` and `width`.
    ///
    /// Place `i` in `ends` is end `i` of the carrier, which may have more than two: simulated fabrics
    /// for tests.
    ///
    /// # Errors
    /// A port is not there, named twice, or has a cable already.
    pub fn connect<E: Into<LinkEnd>>(
        &mut self,
        ends: Vec<E>,
        rate: LinkRate,
        width: u8,
        carrier: Box<dyn Carrier + Send>,
    ) -> Result<(), ConfigError> {
        let kind = LinkKind::new(rate, width, None, None);
        self.join(ends.into_iter().map(Into::into).collect(), kind, carrier)
    }

    /// The same for any kind of link.
    pub(super) fn join(
        &mut self,
        ends: Vec<LinkEnd>,
        kind: LinkKind,
        carrier: Box<dyn Carrier + Send>,
    ) -> Result<(), ConfigError> {
        let number = self.links.len();
        for (i, end) in ends.iter().enumerate() {
            if ends.iter().take(i).any(|e| e == end) {
                return Err(ConfigError::SameEnds { link: number });
            }
            match *end {
                LinkEnd::Port(port) => {
                    if !self.has_port(port) {
                        return Err(ConfigError::NoSuchPort { link: number, port });
                    }
                    if let Some((other, _)) = self.plug(port) {
                        return Err(ConfigError::PortTaken { link: number, port, other });
                    }
                }
                LinkEnd::Tunnel(tunnel) => {
                    if let Some((other, _)) = self.find_tunnel(tunnel) {
                        return Err(ConfigError::TunnelTaken { link: number, tunnel, other });
                    }
                }
            }
        }
        let ports = ends.iter().filter_map(|end| match end {
            LinkEnd::Port(port) => Some(self.port_kind(*port)),
            LinkEnd::Tunnel(_) => None,
        });
        let ports: Vec<PortKind> = ports.collect();
        let kind = LinkKind { ports: ports.first().copied().unwrap_or_default(), ..kind };
        if ports.iter().any(|port| *port != kind.ports) {
            return Err(ConfigError::MixedPorts { link: number });
        }
        let (line, cable) = (kind.line(), ends.len() == 2);
        for (i, end) in ends.iter().enumerate() {
            match *end {
                LinkEnd::Port(port) => {
                    self.set_plug(port, (number, i));
                    self.plug_in(port, line);
                }
                LinkEnd::Tunnel(tunnel) => drop(self.tunnels.insert(tunnel, (number, i))),
            }
        }
        let outside = ends.iter().any(|end| matches!(end, LinkEnd::Tunnel(_)));
        let counted = outside || kind.ports == PortKind::Ethernet;
        let end = |at: LinkEnd| {
            let mut training = Training::new(self.input_buffer(&kind, at), self.port_latency(at));
            if !cable {
                training.assume(LinkOffer::up_to(kind.most()));
            }
            End {
                at,
                connected: true,
                failed: None,
                training,
                line,
                without_credits: false,
                frames_alone: false,
                counted,
                asked: Asked::default(),
                leaving: VecDeque::new(),
                filled: Ps::ZERO,
                held: [0; LANES],
                holds: 0,
            }
        };
        let ends: Vec<End> = ends.into_iter().map(end).collect();
        let count = ends.len();
        self.pin_stations(&ends);
        self.links.push(Link {
            ends,
            plain: carrier.is_plain(),
            carrier,
            kind,
            mixed: false,
            outside: kind.ports,
        });
        self.fill_cages(number);
        (0..count).for_each(|end| self.update_end(number, end, false));
        self.allow_trains_over(number);
        Ok(())
    }

    /// The ports of an adapter are of another kind now: its links have to follow. Those whose ends differ stay dark.
    pub(super) fn retype_links(&mut self, hca: HcaId) {
        let plugs = self.hca_plugs.get(hca.0).cloned().unwrap_or_default();
        for (number, _) in plugs.into_iter().flatten() {
            let Some(link) = self.links.get(number) else { continue };
            let places: Vec<LinkEnd> = link.ends.iter().map(|end| end.at).collect();
            let mut kinds = places.iter().map(|end| match end {
                LinkEnd::Port(port) => self.port_kind(*port),
                LinkEnd::Tunnel(_) => link.outside,
            });
            let ports = kinds.next().unwrap_or_default();
            let mixed = kinds.any(|kind| kind != ports);
            let kind = if mixed { link.kind } else { LinkKind { ports, ..link.kind } };
            let outside = places.iter().any(|end| matches!(end, LinkEnd::Tunnel(_)));
            let rooms: Vec<_> = places.iter().map(|end| self.input_buffer(&kind, *end)).collect();
            if let Some(link) = self.links.get_mut(number) {
                (link.mixed, link.kind) = (mixed, kind);
                for (end, room) in link.ends.iter_mut().zip(rooms) {
                    end.empty();
                    end.counted = outside || kind.ports == PortKind::Ethernet;
                    end.line = kind.line();
                    end.training.give(room);
                }
            }
            for (end, place) in places.into_iter().enumerate() {
                if let LinkEnd::Port(port) = place {
                    self.plug_in(port, kind.line());
                    self.update_end(number, end, true);
                }
            }
        }
        self.allow_trains_at(hca);
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The link at a port.
    pub fn link_of(&self, port: PortRef) -> Option<usize> {
        self.plug(port).map(|(link, _)| link)
    }

    /// Whether a link is up: trained at all ends that are in this world.
    pub fn link_is_up(&self, link: usize) -> bool {
        let near = |end: &&End| matches!(end.at, LinkEnd::Port(_));
        self.links.get(link).is_some_and(|l| l.ends.iter().filter(near).all(|end| end.training.is_up()))
    }

    /// Makes it a port that takes packets of at most `mtu` bytes of payload and has so many data lanes; a subnet
    /// manager programs what both ends of a link can do.
    pub fn limit_port(&mut self, port: PortRef, mtu: u16, lanes: u8) {
        self.rouse();
        self.settle_all();
        match port.node {
            NodeId::Hca(hca) => {
                let Some(chip) = self.hcas.get_mut(hca.0).map(|hca| &mut hca.chip) else { return };
                let Some(own) = chip.managed.port_mut(port.port) else { return };
                own.limit(mtu, lanes);
                if let Some(out) = chip.ports.get_mut(port.port) {
                    out.outlet.configure(own);
                }
            }
            NodeId::Switch(switch) => {
                let Some(switch) = self.switches.get_mut(switch.0) else { return };
                if let Some(port) = switch.fw.port_mut(port.port) {
                    port.limit(mtu, lanes);
                }
                switch.configure_port(port.port);
            }
        }
    }

    /// Takes the cable of a link out at every end in this world, or puts it in again: then it trains. An end outside
    /// hears of it one link latency later.
    pub fn set_cable(&mut self, now: Ps, link: usize, connected: bool) {
        self.rouse();
        self.set_cable_at(now, link, None, connected);
    }

    /// The same of the end at one port only, or (`None`) of all.
    pub(super) fn set_cable_at(&mut self, now: Ps, link: usize, port: Option<PortRef>, connected: bool) {
        self.settle_all();
        self.now = self.now.max(now);
        let Some(ends) = self.links.get_mut(link).map(|l| &mut l.ends) else { return };
        let there =
            |end: &&mut End| port.is_none_or(|port| matches!(end.at, LinkEnd::Port(at) if at == port));
        ends.iter_mut().filter(there).for_each(|end| end.connected = connected);
        self.fill_cages(link);
        self.update_ends(Some(link));
    }

    /// A link has so many lanes left, or (`None`) all of them: it trains again.
    pub(super) fn set_lanes(&mut self, now: Ps, link: usize, lanes: Option<u8>) {
        self.settle_all();
        self.now = self.now.max(now);
        let Some(link_state) = self.links.get_mut(link) else { return };
        link_state.kind.lanes_left = lanes;
        let count = link_state.ends.len();
        (0..count).for_each(|end| self.update_end(link, end, true));
    }

    /// Something changed at a port, which its peer feels too. `lost`: its link went down from this end.
    pub(super) fn port_changed(&mut self, port: PortRef, lost: bool) {
        match self.plug(port) {
            Some((link, end)) => self.update_end(link, end, lost),
            // Without a cable an adapter's port has a plug that leads back to it.
            None if !Self::is_switch(port) && self.is_down(port) && self.is_enabled(port) => {
                self.set_port_link(port, Some(PortLink::default()), None);
            }
            None => {}
        }
        self.manage(port);
    }

    /// Takes a link down if its port at this end is, or was for a moment (`lost`), and lets it train if it may.
    pub(super) fn update_end(&mut self, number: usize, end: usize, lost: bool) {
        let Some(link) = self.links.get(number) else { return };
        let Some(&End { at: LinkEnd::Port(port), connected, failed, .. }) = link.ends.get(end) else {
            return;
        };
        let most = link.kind.most();
        let lit = connected && failed.is_none() && !link.mixed && self.is_enabled(port);
        let offer = if lit { self.port(port).map(|p| p.offer(most)) } else { None };
        let lost = lost || self.is_down(port);
        let Some(end_state) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let step = end_state.training.update(offer, lost);
        self.follow_training(number, end, port, step);
    }

    /// The other end of a link told of itself.
    pub(super) fn light_arrives(&mut self, number: usize, end: usize, light: Light) {
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let LinkEnd::Port(port) = near.at else { return };
        let step = near.training.light(light);
        self.follow_training(number, end, port, step);
    }

    fn follow_training(&mut self, number: usize, end: usize, port: PortRef, step: TrainingStep) {
        if step.lost || step.tell.is_some() {
            self.settle_all();
        }
        if let Some(light) = step.tell {
            self.send_message(number, end, self.now, LinkMessage::Light(light));
        }
        if step.lost {
            tracing::debug!(now = %self.now, "link {number} is down at {port}");
            if let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) {
                // What is still on its way here is void. It takes room until it is here: whoever sends it may say what he likes of the link.
                near.asked.forget();
            }
            self.set_port_link(port, None, None);
        }
        if let Some(generation) = step.train {
            let source = self.source(Class::Trained, port);
            let at = self.now + self.timing.link_training();
            self.heap.push(at, source, Event::Trained { number, end, generation });
        }
    }

    /// An end of a link has trained, if nothing came between.
    pub(super) fn trained(&mut self, number: usize, end: usize, generation: u32) {
        let Some(link) = self.links.get_mut(number) else { return };
        let (cable, kind) = (link.ends.len() == 2, link.kind);
        let Some(near) = link.ends.get_mut(end) else { return };
        let LinkEnd::Port(port) = near.at else { return };
        let Some(agreed) = near.training.trained(generation) else { return };
        let Some(agreed) = agreed else {
            return tracing::debug!(now = %self.now, "link {number}: its ports have no width and speed in common");
        };
        tracing::debug!(now = %self.now, "link {number} is up at {port}");
        let room = near.training.far().buffer.map(|bytes| bytes as usize);
        let line = kind.line_of(agreed.speed.into(), agreed.width);
        near.line = line;
        if cable {
            link.carrier.train(end, line);
        }
        let there = kind.delay.unwrap_or_default() + near.latency() + near.training.far().latency;
        self.plug_in(port, line);
        self.keep_headroom(port, line, there);
        self.set_port_link(port, Some(agreed), room);
        self.manage(port);
    }

    /// The link layer of a port; that of the default where there is none.
    pub fn port_kind(&self, port: PortRef) -> PortKind {
        self.port(port).map_or(PortKind::default(), |p| p.kind())
    }

    fn is_down(&self, port: PortRef) -> bool {
        self.port(port).is_some_and(|p| p.state == port_state::DOWN)
    }

    fn is_enabled(&self, port: PortRef) -> bool {
        self.port(port).is_some_and(|p| !p.is_disabled())
    }

    /// Bytes that an end of a link takes in for each lane; `None`: it gives no credits.
    fn input_buffer(&self, kind: &LinkKind, end: LinkEnd) -> Option<u32> {
        kind.has_credits().then_some(())?;
        let bytes = match end {
            LinkEnd::Port(PortRef { node: NodeId::Hca(hca), .. }) => self.chip(hca)?.timing.adapter_buffer(),
            LinkEnd::Port(PortRef { node: NodeId::Switch(_), .. }) => self.timing.switch_buffer(),
            LinkEnd::Tunnel(_) => return None,
        };
        Some(u32::try_from(bytes).unwrap_or(u32::MAX).saturating_mul(kind.room))
    }

    /// How much more an adapter's port takes in on this Ethernet link than its registers say. `None`: there are credits, or the
    /// port is a switch's, which counts for itself.
    pub(super) fn room_without_credits(&self, link: usize, port: PortRef) -> Option<u32> {
        let kind = self.links.get(link)?.kind;
        let NodeId::Hca(_) = port.node else { return None };
        (kind.ports == PortKind::Ethernet).then_some(kind.room)
    }

    /// What MAC and PHY take at an end of a link; nothing at one that is outside.
    pub(super) fn port_latency(&self, end: LinkEnd) -> Ps {
        match end {
            LinkEnd::Port(PortRef { node: NodeId::Hca(hca), .. }) => {
                self.chip(hca).map_or(Ps::ZERO, |chip| chip.timing.phy())
            }
            LinkEnd::Port(PortRef { node: NodeId::Switch(_), .. }) => self.timing.switch_phy(),
            LinkEnd::Tunnel(_) => Ps::ZERO,
        }
    }

    /// A cable is plugged into a port, or its link trained to this.
    fn plug_in(&mut self, port: PortRef, line: LineRate) {
        match port.node {
            NodeId::Hca(id) => {
                if let Some(out) = self.hcas.get_mut(id.0).and_then(|h| h.chip.ports.get_mut(port.port)) {
                    out.cabled = true;
                    out.outlet.plug(line);
                }
            }
            NodeId::Switch(id) => {
                if let Some(egress) = self.switches.get_mut(id.0).and_then(|s| s.egress(port.port)) {
                    egress.plug(line);
                }
            }
        }
    }

    /// The port's hardware has trained, and sends to one that has `room`, or it lost its link.
    fn set_port_link(&mut self, port: PortRef, link: Option<PortLink>, room: Option<usize>) {
        let now = self.now;
        self.link_changed(port);
        match port.node {
            NodeId::Hca(id) => {
                let Some(hca) = self.hcas.get_mut(id.0) else { return };
                let mut effects = Vec::new();
                hca.chip.managed.set_link(port.port, link, &mut effects);
                if let Some(mut manager) = hca.executor(FunctionId::FIRST) {
                    manager.core.link_changed(now, port.port, link.map(|_| room));
                    manager.port_turn(now, port.port);
                }
                self.apply(id, port.port, now, effects);
            }
            NodeId::Switch(id) => self.switch_link(id, port.port, link, room),
        }
    }

    /// Lets an adapter follow what its firmware did to a port, without asking for another look at that.
    pub(super) fn apply(&mut self, id: HcaId, port: u8, now: Ps, effects: Vec<Effect>) {
        let manager = self.hcas.get_mut(id.0).and_then(|hca| hca.executor(FunctionId::FIRST));
        let Some(mut manager) = manager else { return };
        manager.apply(now, effects);
        manager.core.configure_port(port);
        manager.core.agent_poll_later(now, port);
        manager.core.chip.out.rare().ports_changed.retain(|changed| changed.port != port);
        self.collect(id, FunctionId::FIRST);
    }
}

impl Rebase for End {
    fn rebase(&mut self, by: Ps) {
        let Self {
            at: _,
            connected: _,
            failed: _,
            training: _,
            line: _,
            without_credits: _,
            frames_alone: _,
            counted: _,
            asked,
            held: _,
            filled,
            holds: _,
            leaving,
        } = self;
        asked.rebase(by);
        filled.rebase(by);
        leaving.iter_mut().for_each(|(at, _, _)| at.rebase(by));
    }
}

impl Rebase for Link {
    fn rebase(&mut self, by: Ps) {
        let Self { ends, carrier, plain: _, kind: _, mixed: _, outside: _ } = self;
        ends.rebase(by);
        carrier.rebase(by);
    }
}
