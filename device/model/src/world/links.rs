//! Cables: which port is at which end, and how links come up and go down.
//!
//! Source: IBTA vol 1 7.2 (states of a port), vol 2 5.7 (training). A link is up when both its ports have trained;
//! what takes one of them down takes the other down with it, and then they train again, if they may.

use hca_firmware::{Effect, Link as PortLink};
use hca_spec::mad::port_state;

use super::config::ConfigError;
use super::tunnel::{Outside, common};
use super::{Event, World};
use crate::ground::node::{HCA_PORT, HcaId, LinkEnd, NodeId, PortRef};
use crate::ground::time::Ps;
use crate::link::{Carrier, Line, LinkRate};

/// How far a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LinkState {
    #[default]
    Down,
    Training,
    Up,
}

/// Training of a link, or of one end of a carrier that has not two.
#[derive(Debug, Clone, Copy, Default)]
struct Training {
    state: LinkState,
    /// Counts what happened to it: packets and timers of before are void.
    generation: u32,
}

/// What a carrier is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cable {
    rate: LinkRate,
    width: u8,
    /// What packets occupy of it: the rate and width that its ports trained to, or what it always is.
    pub(super) line: Line,
    fixed: bool,
    /// Of a cable with two ends; its ports then give each other credits. `None`: a carrier of the caller's.
    pub(super) delay: Option<Ps>,
}

impl Cable {
    /// A cable that carries so much; `line`: whatever its ports train to, packets take this of it.
    pub(super) fn new(rate: LinkRate, width: u8, line: Option<Line>, delay: Option<Ps>) -> Self {
        let fixed = line.is_some();
        Self { rate, width, line: line.unwrap_or(Line::new(rate, width)), fixed, delay }
    }

    /// How long `bytes` of a packet occupy it.
    pub(super) fn serialisation(&self, bytes: usize) -> Ps {
        self.line.serialisation(bytes)
    }

    /// As it is, or trained to so much.
    fn trained_line(&self, trained: PortLink) -> Line {
        if self.fixed { self.line } else { Line::new(trained.speed.into(), trained.width) }
    }
}

/// A link with its ends.
pub(super) struct Wire {
    pub(super) ends: Vec<LinkEnd>,
    pub(super) carrier: Box<dyn Carrier + Send>,
    pub(super) cable: Cable,
    /// What it trains to.
    pub(super) port: PortLink,
    /// The cable is in.
    connected: bool,
    /// One for both ends of a cable; of other carriers, one for each end.
    training: Vec<Training>,
    /// Of a link that leaves the world.
    pub(super) outside: Option<Outside>,
}

impl Wire {
    /// Only a cable has a far end that goes dark with the near one.
    fn is_cable(&self) -> bool {
        self.ends.len() == 2
    }

    fn place(&self, end: usize) -> usize {
        if self.is_cable() { 0 } else { end }
    }

    fn training(&self, end: usize) -> Training {
        self.training.get(self.place(end)).copied().unwrap_or_default()
    }

    /// The ends that go up and down with `end`.
    fn together(&self, end: usize) -> Vec<LinkEnd> {
        match self.is_cable() {
            true => self.ends.clone(),
            false => self.ends.get(end).copied().into_iter().collect(),
        }
    }

    /// What happened to the link of that end so far.
    pub(super) fn generation(&self, end: usize) -> u32 {
        self.training(end).generation
    }

    /// Whether packets pass at that end.
    pub(super) fn is_up(&self, end: usize) -> bool {
        self.training(end).state == LinkState::Up
    }

    fn set(&mut self, end: usize, state: LinkState) -> u32 {
        let place = self.place(end);
        let Some(training) = self.training.get_mut(place) else { return 0 };
        training.state = state;
        training.generation = training.generation.wrapping_add(1);
        training.generation
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
        let cable = Cable::new(rate, width, None, None);
        self.join(ends.into_iter().map(Into::into).collect(), cable, carrier)
    }

    /// The same for any kind of cable.
    pub(super) fn join(
        &mut self,
        ends: Vec<LinkEnd>,
        cable: Cable,
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
        for (i, end) in ends.iter().enumerate() {
            if let LinkEnd::Port(port) = *end {
                self.set_plug(port, (number, i));
                self.plug_in(port, cable.line);
            }
        }
        let outside = ends.iter().any(|e| matches!(e, LinkEnd::Tunnel(_))).then(Outside::default);
        let training = vec![Training::default(); if ends.len() == 2 { 1 } else { ends.len() }];
        let port = PortLink { width: cable.width, speed: cable.rate.into() };
        self.links.push(Wire { ends, carrier, cable, port, connected: true, training, outside });
        let trainings = self.links.last().map_or(0, |l| l.training.len());
        for end in 0..trainings {
            self.tend_link(number, end, false);
        }
        Ok(())
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The link at a port.
    pub fn link_of(&self, port: PortRef) -> Option<usize> {
        self.plug(port).map(|(link, _)| link)
    }

    /// Whether a link is up: trained at both ends.
    pub fn link_is_up(&self, link: usize) -> bool {
        self.links.get(link).is_some_and(|l| l.training.iter().all(|t| t.state == LinkState::Up))
    }

    /// Makes it a port that takes packets of at most `mtu` bytes of payload and has so many data lanes; a subnet
    /// manager programs what both ends of a link can do.
    pub fn limit_port(&mut self, port: PortRef, mtu: u16, lanes: u8) {
        match port.node {
            NodeId::Hca(hca) => {
                if let Some(port) = self.hcas.get_mut(hca.0).and_then(|h| h.core.fw.port_mut(port.port)) {
                    port.limit(mtu, lanes);
                }
            }
            NodeId::Switch(switch) => {
                let Some(switch) = self.switches.get_mut(switch.0) else { return };
                if let Some(port) = switch.fw.port_mut(port.port) {
                    port.limit(mtu, lanes);
                }
                switch.configure();
            }
        }
    }

    /// Takes the cable of a link out, or puts it in again: then it trains.
    pub fn set_cable(&mut self, now: Ps, link: usize, connected: bool) {
        self.now = self.now.max(now);
        let Some(wire) = self.links.get_mut(link) else { return };
        wire.connected = connected;
        let trainings = wire.training.len();
        for end in 0..trainings {
            self.tend_link(link, end, false);
        }
    }

    /// Something changed at a port, which its peer feels too. `lost`: its link went down from this end.
    pub(super) fn tend_port(&mut self, port: PortRef, lost: bool) {
        match self.plug(port) {
            Some((link, end)) => self.tend_link(link, end, lost),
            // Without a cable an adapter has a plug that leads back to it.
            None if !Self::is_switch(port) && self.is_down(port) && self.is_lit(LinkEnd::Port(port)) => {
                self.set_port_link(port, Some(PortLink::default()), None);
            }
            None => {}
        }
        self.manage(port);
    }

    /// Takes a link down if an end of it is, or was for a moment (`lost`), and lets it train if it may.
    pub(super) fn tend_link(&mut self, number: usize, end: usize, lost: bool) {
        let Some(link) = self.links.get(number) else { return };
        let (ends, connected) = (link.together(end), link.connected);
        let mut state = link.training(end).state;
        let near_lit = |world: &World| {
            let near = |e: &&LinkEnd| matches!(e, LinkEnd::Port(_));
            connected && ends.iter().filter(near).all(|e| world.is_lit(*e))
        };
        let tunnels = ends.iter().filter(|e| matches!(e, LinkEnd::Tunnel(_)));
        let lit = near_lit(self) && tunnels.clone().all(|e| self.is_lit(*e));
        self.tell_tunnel(number, near_lit(self));
        let lost = lost || ends.iter().any(|e| matches!(e, LinkEnd::Port(p) if self.is_down(*p)));
        if state != LinkState::Down && !lit || state == LinkState::Up && lost {
            state = LinkState::Down;
            if let Some(link) = self.links.get_mut(number) {
                link.set(end, state);
                if let Some(outside) = &mut link.outside {
                    outside.forget_held();
                }
            }
            tracing::debug!(now = %self.now, "link {number} is down");
            for end in &ends {
                if let LinkEnd::Port(port) = end {
                    self.set_port_link(*port, None, None);
                }
            }
        }
        if state == LinkState::Down && lit {
            let Some(link) = self.links.get_mut(number) else { return };
            let generation = link.set(end, LinkState::Training);
            self.heap
                .push(self.now + self.timing.link_training(), Event::Trained { number, end, generation });
        }
    }

    /// A link has trained, if nothing came between.
    pub(super) fn trained(&mut self, number: usize, end: usize, generation: u32) {
        let Some(link) = self.links.get_mut(number).filter(|l| l.generation(end) == generation) else {
            return;
        };
        let far = link.outside.as_ref().and_then(|o| o.light);
        let (ends, cable) = (link.together(end), far.map_or(link.port, |far| common(link.port, far)));
        let asked = |link| {
            ends.iter().try_fold(link, |link, end| match end {
                LinkEnd::Port(port) => self.port(*port)?.negotiate(link),
                LinkEnd::Tunnel(_) => Some(link),
            })
        };
        // Each end can only take something away; what the last took away the first must do without too.
        let mut agreed = asked(cable);
        while let Some(again) = agreed.map(asked).filter(|again| *again != agreed) {
            agreed = again;
        }
        let Some(link) = self.links.get_mut(number) else { return };
        let Some(port) = agreed else {
            link.set(end, LinkState::Down);
            return tracing::debug!(now = %self.now, "link {number}: its ports have no width and speed in common");
        };
        link.set(end, LinkState::Up);
        tracing::debug!(now = %self.now, "link {number} is up");
        let line = link.cable.trained_line(port);
        if link.is_cable() {
            link.cable.line = line;
            link.carrier.train(line);
        }
        for (i, end) in ends.iter().enumerate() {
            if let LinkEnd::Port(near) = end {
                self.plug_in(*near, line);
                let room = self.input_buffer(number, ends.get(1 - i.min(1)).copied());
                self.set_port_link(*near, Some(port), room);
            }
        }
        for end in ends {
            if let LinkEnd::Port(near) = end {
                self.manage(near);
            }
        }
    }

    fn is_down(&self, port: PortRef) -> bool {
        self.port(port).is_some_and(|p| p.state == port_state::DOWN)
    }

    /// Whether that end does its part for a link.
    fn is_lit(&self, end: LinkEnd) -> bool {
        match end {
            LinkEnd::Port(port) => self.port(port).is_some_and(|p| !p.is_disabled()),
            LinkEnd::Tunnel(tunnel) => {
                let link = self.find_tunnel(tunnel).and_then(|(number, _)| self.links.get(number));
                link.and_then(|l| l.outside.as_ref()).is_some_and(|o| o.light.is_some())
            }
        }
    }

    /// Bytes that the far end of a link takes in for each lane; `None`: it is not known, or without limit.
    fn input_buffer(&self, number: usize, far: Option<LinkEnd>) -> Option<usize> {
        self.links.get(number)?.cable.delay?;
        match far? {
            LinkEnd::Port(PortRef { node: NodeId::Hca(_), .. }) => Some(self.timing.adapter_buffer()),
            LinkEnd::Port(PortRef { node: NodeId::Switch(_), .. }) => Some(self.timing.switch_buffer()),
            LinkEnd::Tunnel(_) => None,
        }
    }

    /// A cable is plugged into a port, or its link trained to this.
    fn plug_in(&mut self, port: PortRef, line: Line) {
        match port.node {
            NodeId::Hca(id) => {
                if let Some(hca) = self.hcas.get_mut(id.0) {
                    hca.core.port.cabled = true;
                    hca.core.port.egress.plug(line);
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
        self.sweep_later();
        match port.node {
            NodeId::Hca(id) => {
                let Some(hca) = self.hcas.get_mut(id.0) else { return };
                let mut effects = Vec::new();
                hca.core.fw.set_link(HCA_PORT, link, &mut effects);
                hca.core.link_changed(now, link.map(|_| room));
                hca.port_turn(now);
                self.apply(id, now, effects);
            }
            NodeId::Switch(id) => self.switch_link(id, port.port, link, room),
        }
    }

    /// Lets an adapter follow what its firmware did to the port, without asking for another look at that.
    pub(super) fn apply(&mut self, id: HcaId, now: Ps, effects: Vec<Effect>) {
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        hca.apply(now, effects);
        hca.core.configure_port();
        hca.core.agent_poll_later(now);
        (hca.core.out.port_changed, hca.core.out.link_lost) = (false, false);
        self.collect(id);
    }
}
