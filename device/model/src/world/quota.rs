//! How many events of an adapter may wait, and what it does at that bound.
//!
//! What an adapter has to do later follows from what its host rings for: a few events for each queue pair that works. An adapter that has as
//! many as it may have takes no more work: send doorbells are noted, one for each queue pair, as its doorbell collector would, and are rung
//! when a sixty-fourth of the bound is free again. Commands, completions and what comes by links go on. So it is its own host that waits.
//!
//! The heap counts whose events they are. The counts are looked at when as many more as that sixty-fourth were scheduled, and only if there are as
//! many as one adapter may have: that is how far the bound is exceeded, beside the few events of each queue pair that works already. Events
//! that nothing comes of count until they are taken out ([`World::tidy_on`]), which is begun then and at the same model time over.

use super::{Class, Event, World};
use crate::adapter::state::event::HcaEvent;
use crate::ground::node::HcaId;

/// Doorbells that waited and are rung in one event: some 0.2 ms.
const MOST_RUNG: usize = 1024;

/// Events of an adapter that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitingEvents {
    /// How many do.
    pub waiting: usize,
    /// How many may, about.
    pub most: usize,
    /// Queue pairs whose doorbells are not rung before there is room.
    pub doorbells: usize,
    /// Doorbells for which that was so.
    pub held: u64,
}

/// Bounds of a world's adapters.
#[derive(Debug)]
pub(super) struct Quotas {
    /// By adapter; those that are not here have none.
    most: Vec<usize>,
    /// The least of them.
    pub(super) least: usize,
    /// One of them has reached it.
    pub(super) reached: bool,
    /// What was scheduled, and what was over, when events were looked through last.
    pushed: u64,
    popped: u64,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { most: Vec::new(), least: usize::MAX, reached: false, pushed: 0, popped: 0 }
    }
}

impl Quotas {
    fn of(&self, hca: usize) -> usize {
        self.most.get(hca).copied().unwrap_or(usize::MAX)
    }

    /// So many events more or less change nothing.
    fn slack(&self) -> u64 {
        (self.least as u64 / 64).max(1)
    }
}

impl World {
    /// So many events of an adapter may wait, about; without a bound there is none.
    pub fn limit_events(&mut self, hca: HcaId, most: usize) {
        self.rouse();
        let quotas = &mut self.quotas;
        if quotas.most.len() <= hca.0 {
            quotas.most.resize(hca.0 + 1, usize::MAX);
        }
        quotas.most.iter_mut().skip(hca.0).take(1).for_each(|of| *of = most.max(1));
        quotas.least = quotas.most.iter().copied().min().unwrap_or(usize::MAX);
    }

    /// So many bytes of the server's memory may be taken by requests of each of an adapter's functions that are under way; without this it is 256 MiB.
    pub fn limit_requests(&mut self, hca: HcaId, most: usize) {
        self.rouse();
        let functions = self.hcas.get_mut(hca.0).into_iter().flat_map(|hca| &mut hca.functions);
        functions.for_each(|function| function.state.requests.kept.limit(most));
    }

    /// Bytes that requests of an adapter's functions take which are under way.
    pub fn request_bytes(&self, hca: HcaId) -> usize {
        let functions = self.hcas.get(hca.0).into_iter().flat_map(|hca| &hca.functions);
        functions.map(|function| function.state.requests.kept.taken()).sum()
    }

    /// Events that wait, of each adapter.
    pub fn events_of_each(&self) -> Vec<WaitingEvents> {
        let of = |hca: usize| {
            let doorbells = self.chip(HcaId(hca)).map(|chip| &chip.doorbells);
            WaitingEvents {
                waiting: self.heap.len_of(hca),
                most: self.quotas.of(hca),
                doorbells: doorbells.map_or(0, |doorbells| doorbells.queues.len()),
                held: doorbells.map_or(0, |doorbells| doorbells.held),
            }
        };
        (0..self.hcas.len()).map(of).collect()
    }

    /// Looks who has as many as it may have, if enough has happened since the last look.
    #[cold]
    pub(super) fn heed_quotas(&mut self) {
        let Quotas { pushed, popped, reached, .. } = self.quotas;
        let (pushes, pops) = self.heap.passed();
        let since = if reached { pops.wrapping_sub(popped) } else { pushes.wrapping_sub(pushed) };
        if since >= self.quotas.slack() {
            self.heed_quotas_now();
        }
    }

    /// A function was reset: its events mean nothing any more.
    pub(super) fn count_anew(&mut self) {
        if self.quotas.reached {
            self.heed_quotas_now();
        }
    }

    #[cold]
    fn heed_quotas_now(&mut self) {
        let mut hcas = 0..self.hcas.len();
        if self.quotas.reached || hcas.any(|hca| self.heap.len_of(hca) >= self.quotas.of(hca)) {
            self.begin_tidying();
        }
        self.heed_counts();
    }

    /// Says who has as many as it may have, and rings what waited where that is over.
    pub(super) fn heed_counts(&mut self) {
        let slack = self.quotas.slack() as usize;
        let mut reached = false;
        for hca in 0..self.hcas.len() {
            let (count, most) = (self.heap.len_of(hca), self.quotas.of(hca));
            let Some(chip) = self.chip_mut(HcaId(hca)) else { continue };
            let waits = count >= most.saturating_sub(if chip.doorbells.wait { slack } else { 0 });
            if waits != chip.doorbells.wait {
                tracing::info!(hca = chip.name, count, most, "doorbells wait: {waits}");
            }
            chip.doorbells.wait = waits;
            reached |= waits;
            if !waits {
                self.ring_held(HcaId(hca));
            }
        }
        self.quotas.reached = reached;
        (self.quotas.pushed, self.quotas.popped) = self.heap.passed();
    }

    /// Doorbells that waited are rung, as many as one event may ring; the others in an event of their own, if the adapter takes work still.
    pub(super) fn ring_held(&mut self, id: HcaId) {
        let (now, own) = (self.now, Class::Node.at(id, 0));
        if self.heap.len_of(id.0) >= self.quotas.of(id.0) {
            return self.heed_quotas_now();
        }
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        for _ in 0..MOST_RUNG {
            let Some((function, qpn)) = hca.chip.doorbells.queues.pop_first() else { return };
            let Some(epoch) = hca.function(function).map(|function| function.epoch) else { continue };
            let event = HcaEvent::SendDoorbell(qpn);
            self.heap.push(now, own, Event::Hca { hca: id, function, epoch, event });
        }
        if !hca.chip.doorbells.queues.is_empty() {
            self.heap.push(now, own, Event::Doorbells(id));
        }
    }
}
