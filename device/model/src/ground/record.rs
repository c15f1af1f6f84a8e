//! A record of a trace.

use crate::ground::epoch::Rebase;
use crate::ground::event::Event;
use crate::ground::node::HcaId;
use crate::ground::time::Ps;

/// Something that happened at an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When it was asked for.
    pub at: Ps,
    /// How long it then waited: for its unit, which was busy with others, for a pipeline, cache misses or DMA.
    pub wait: Ps,
    /// How long it took after that; zero for what happens in an instant.
    pub took: Ps,
    /// Where.
    pub hca: HcaId,
    /// What.
    pub event: Event,
}

impl Record {
    /// When it was over.
    pub fn end(&self) -> Ps {
        self.at + self.wait + self.took
    }
}

impl Rebase for Record {
    fn rebase(&mut self, by: Ps) {
        let Self { at, wait: _, took: _, hca: _, event: _ } = self;
        at.rebase(by);
    }
}
