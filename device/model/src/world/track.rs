//! Tracks: cables that trains may go over, from one adapter to another.

use hca_spec::flow::TableType;

use super::World;
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef};
use crate::ground::time::Ps;
use crate::link::Session;

/// The way of a train: a cable between two adapters.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) from_port: u8,
    /// The receiver; [`OUTSIDE`]: it is none of this world's, and packets leave by a tunnel.
    pub(super) to: HcaId,
    pub(super) to_port: u8,
    pub(super) link: usize,
    /// Its end at the sender, and at the receiver.
    pub(super) ends: [usize; 2],
    /// The session in which packets leave.
    pub(super) session: Session,
    /// Whether its ports give each other credits; otherwise the receiver's input buffer is counted at its end.
    pub(super) credits: bool,
    /// From the end of the cable until a packet is at the receiver's port, the sender's own port included; and from the
    /// receiver's port until what it tells is at the sender's.
    pub(super) forth: Ps,
    pub(super) back: Ps,
}

/// No adapter of any world.
pub(super) const OUTSIDE: HcaId = HcaId(usize::MAX);

impl Way {
    /// Whether it ends at a tunnel: then a train has the stages of its sender alone.
    pub(super) fn leads_out(&self) -> bool {
        self.to == OUTSIDE
    }
}

impl World {
    /// Whether packets travel in trains, as they do from the start: nothing but speed depends on it.
    pub fn set_trains(&mut self, on: bool) {
        self.trains_allowed = on;
        self.allow_trains();
    }

    /// Whether packets that leave by tunnels are trains at their sender, too, as they are not from the start. Who has that takes what leaves by
    /// [`World::take_leaving`].
    pub fn set_trains_out(&mut self, on: bool) {
        self.trains_leave = on;
        self.allow_trains();
    }

    /// Looks again which adapters may send trains: those at a cable to another adapter on which nothing happens to packets
    /// and nobody looks at them.
    fn allow_trains(&mut self) {
        self.settle_all();
        (0..self.hcas()).for_each(|hca| self.allow_trains_of(HcaId(hca)));
    }

    /// The same of those at the ends of a link, of which something has changed.
    pub(super) fn allow_trains_over(&mut self, link: usize) {
        self.settle_all();
        let ends = self.links.get(link).map(|link| link.ends.as_slice()).unwrap_or_default();
        let at = ends.iter().filter_map(|end| match end.at {
            LinkEnd::Port(PortRef { node: NodeId::Hca(hca), .. }) => Some(hca),
            _ => None,
        });
        at.collect::<Vec<_>>().into_iter().for_each(|hca| self.allow_trains_of(hca));
    }

    /// The same of an adapter of which something has changed, and of those at the other ends of its cables.
    pub(super) fn allow_trains_at(&mut self, hca: HcaId) {
        let plugs = self.hca_plugs.get(hca.0).cloned().unwrap_or_default();
        plugs.into_iter().flatten().for_each(|(link, _)| self.allow_trains_over(link));
    }

    fn allow_trains_of(&mut self, id: HcaId) {
        let plain = |world: &Self| {
            let numbers = world.chip(id).map(|chip| chip.managed.numbers());
            let mut ports = numbers.into_iter().flatten();
            ports.any(|port| world.plain_way(id, port).is_some())
        };
        let scripted = self.chip(id).is_some_and(|chip| chip.script.is_some());
        let may = self.trains_allowed && !scripted && plain(self);
        if let Some(function) = self.hcas.get_mut(id.0).and_then(|hca| hca.functions.first_mut()) {
            function.state.runs.allow(may);
        }
    }

    /// The cable at a port of an adapter, if it leads to another one or out of the world, and nobody looks at packets or does something to
    /// them, by tables of RoCE packets and sniffers either. Both adapters have one function.
    pub(super) fn plain_way(&self, from: HcaId, from_port: u8) -> Option<Way> {
        let watched = |hca: HcaId| self.chip(hca).is_none_or(|chip| chip.captures() || chip.functions > 1);
        let (number, end) = self.plug(PortRef::of_hca(from, from_port))?;
        let link = self.links.get(number).filter(|link| link.plain)?;
        let other = link.other(end)?;
        let (near, far) = (link.ends.get(end)?, link.ends.get(other)?);
        let (to, port) = match far.at {
            LinkEnd::Port(PortRef { node: NodeId::Hca(to), port }) => (to, port),
            LinkEnd::Tunnel(_) if self.trains_leave => (OUTSIDE, 0),
            _ => return None,
        };
        let spoilt = |hca: HcaId| {
            let script = self.chip(hca).and_then(|chip| chip.script.as_ref());
            script.is_some_and(|script| script.is_about_packets())
        };
        let steered = |hca: HcaId, kinds: [TableType; 2]| {
            let steering = self.function(hca.into()).map(|function| &function.state.fw.icm.steering);
            steering.is_some_and(|steering| kinds.into_iter().any(|kind| steering.root(kind).is_some()))
        };
        if steered(from, [TableType::RdmaTx, TableType::SnifferTx])
            || steered(to, [TableType::RdmaRx, TableType::SnifferRx])
        {
            return None;
        }
        if to == from || watched(from) || (to != OUTSIDE && watched(to)) || spoilt(to) {
            return None;
        }
        let forth = self.port_latency(near.at) + self.port_latency(far.at);
        let back = forth + link.kind.delay?;
        let (session, credits) = (near.training.session(), link.has_credits());
        let ends = [end, other];
        Some(Way { from_port, to, to_port: port, link: number, ends, session, credits, forth, back })
    }
}
