//! What is in the cages of adapters' ports: the ends of cables, which can be pulled out or fail, and drivers that hear of it.
//!
//! Source: PRM "MCIA", "Port Module Event".

use hca_firmware::module::{Copper, Module};

use super::World;
use super::links::End;
use crate::faults::{ModuleChange, ModuleError};
use crate::ground::node::{HcaId, LinkEnd, NodeId, PortRef};
use crate::ground::time::Ps;

impl World {
    /// Adapters at the ends of a link find its cable in their cages, or that it was pulled out.
    pub(super) fn fill_cages(&mut self, number: usize) {
        /// Light and electrons go a metre in this time.
        const METRE: Ps = Ps::from_ns(5);
        let Some(link) = self.links.get(number) else { return };
        let metres = link.kind.delay.map_or(0, |delay| delay.0 / METRE.0);
        let cable = Copper {
            most: link.kind.most(),
            metres: u8::try_from(metres).unwrap_or(u8::MAX),
            serial: u32::try_from(number).unwrap_or(u32::MAX),
        };
        let mut changes = Vec::new();
        for end in &link.ends {
            let LinkEnd::Port(PortRef { node: NodeId::Hca(id), port }) = end.at else { continue };
            let module = match (end.connected, end.failed) {
                (false, _) => Module::Empty,
                (true, Some(ModuleError::BusStuck)) => Module::Stuck,
                // As a plug that has none.
                (true, Some(ModuleError::NoEeprom)) => Module::Loopback,
                (true, _) => Module::Copper(cable),
            };
            let Some(hca) = self.hcas.get_mut(id.0) else { continue };
            let before = hca.chip.managed.put_in_cage(port, module);
            let change = match (before == Some(Module::Empty), module == Module::Empty) {
                (false, true) => ModuleChange::Unplugged,
                (true, false) => ModuleChange::Plugged,
                _ => continue,
            };
            changes.push((id, port, change));
        }
        for (hca, port, change) in changes {
            self.act(self.now, hca.into(), |function, now| function.core.tell_of_module(now, port, change));
        }
    }

    /// What is in the cage of a port of an adapter can't be used any more, or (`None`) again: so its link is down, or trains.
    pub(super) fn set_module(&mut self, hca: HcaId, port: u8, error: Option<ModuleError>) {
        let at = PortRef::of_hca(hca, port);
        let link = self.link_of(at);
        let end = link.and_then(|link| self.end_at(link, at));
        let is_there = end.as_ref().is_none_or(|end| end.connected);
        if let Some(end) = end {
            end.failed = error;
        }
        link.into_iter().for_each(|link| self.fill_cages(link));
        if let Some(hca) = self.hcas.get_mut(hca.0) {
            hca.chip.managed.set_module_trouble(port, error.map(ModuleError::code));
        }
        let change = error.map_or(ModuleChange::Plugged, ModuleChange::Failed);
        if is_there {
            self.act(self.now, hca.into(), |function, now| function.core.tell_of_module(now, port, change));
        }
        self.update_ends(link);
    }

    /// Takes the link down where an end of it is dark now, or lets it train.
    pub(super) fn update_ends(&mut self, link: Option<usize>) {
        let Some(number) = link else { return };
        let count = self.links.get(number).map_or(0, |link| link.ends.len());
        (0..count).for_each(|end| self.update_end(number, end, false));
    }

    /// The end of a link at that port.
    fn end_at(&mut self, link: usize, port: PortRef) -> Option<&mut End> {
        let ends = &mut self.links.get_mut(link)?.ends;
        ends.iter_mut().find(|end| matches!(end.at, LinkEnd::Port(at) if at == port))
    }
}
