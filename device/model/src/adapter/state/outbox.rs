//! What an adapter has done for others, until the world takes it.

use hca_firmware::FunctionId;

use super::event::HcaEvent;
use super::returning::Returned;
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Sent};

/// Effects that leave the adapter, in the order they happened.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// What the function that acts does later.
    pub(crate) events: Vec<(Ps, HcaEvent)>,
    /// Packets on the link of a port.
    pub(crate) sent: Vec<(u8, Sent<()>)>,
    /// Everything else, and whether there may be any of it.
    rare: Rare,
    has_rare: bool,
}

/// Effects that few events have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// What other functions do later.
    pub(crate) for_others: Vec<(Ps, FunctionId, HcaEvent)>,
    /// Packets that never leave the adapter: when they are back, and at which port.
    pub(crate) loopback: Vec<(Ps, u8, Packet, Returned)>,
    /// When a port has to look at credits that arrive; each port is here once.
    pub(crate) credit_turns: Vec<(u8, Ps)>,
    pub(crate) vectors: Vec<u16>,
    /// Ports at which the fabric has to look; each is here once.
    pub(crate) ports_changed: Vec<PortChanged>,
}

/// A port went down or up, or its identity changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortChanged {
    pub(crate) port: u8,
    /// It lost its link, even if it has it again.
    pub(crate) link_lost: bool,
}

impl Outbox {
    /// Whether nothing is in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.has_others()
    }

    /// Whether something is in it besides what the function that acts does later.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.has_rare() || !self.sent.is_empty()
    }

    /// Whether something is in it besides that and packets.
    #[inline]
    pub(crate) fn has_rare(&self) -> bool {
        self.has_rare
    }

    /// What is in it besides that and packets, to add to it.
    #[inline(never)]
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.has_rare = true;
        &mut self.rare
    }

    /// The same, all of which is taken out now.
    pub(crate) fn take_rare(&mut self) -> &mut Rare {
        self.has_rare = false;
        &mut self.rare
    }

    /// Packets in it whose payload is still in memory get the bytes.
    pub(crate) fn fetch_payload(&mut self) {
        self.events.iter_mut().for_each(|(_, event)| event.fetch_payload());
        self.rare.for_others.iter_mut().for_each(|(_, _, event)| event.fetch_payload());
        self.sent.iter_mut().for_each(|(_, sent)| sent.packet.fetch_payload());
    }

    /// A port looks at its credits then, and no more when it wanted to before.
    pub(crate) fn credit_turn(&mut self, port: u8, at: Ps) {
        let turns = &mut self.rare().credit_turns;
        match turns.iter_mut().find(|(of, _)| *of == port) {
            Some((_, turn)) => *turn = at,
            None => turns.push((port, at)),
        }
    }

    /// The fabric has to look at a port.
    pub(crate) fn port_changed(&mut self, port: u8, link_lost: bool) {
        let changes = &mut self.rare().ports_changed;
        match changes.iter_mut().find(|changed| changed.port == port) {
            Some(changed) => changed.link_lost |= link_lost,
            None => changes.push(PortChanged { port, link_lost }),
        }
    }
}
