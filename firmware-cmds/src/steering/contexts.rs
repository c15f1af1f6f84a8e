//! What entries name beside destinations and counters: contexts of headers, lists of changes, samplers, meters.

use std::cell::Cell;

use super::Steering;
use super::definer::Definer;
use super::meter::Meter;
use super::rewrite::{HeaderChanges, Reformat};
use super::table::Deed;

/// A sampler: all packets go to one table, and copies of some to another.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Where all go.
    pub(crate) all: u32,
    /// Where copies go.
    pub(crate) copies: u32,
    /// One of so many is copied.
    pub(crate) ratio: u32,
    /// Attributes as they were given: level, and whether levels don't count.
    pub(crate) level: u32,
    pub(crate) ignore_level: bool,
    /// Entries that name it.
    pub(crate) users: u32,
    /// Of its random numbers.
    state: Cell<u64>,
}

impl Sampler {
    pub(crate) fn new((all, copies): (u32, u32), ratio: u32, (level, ignore_level): (u32, bool)) -> Self {
        let seed = u64::from(all) << 32 ^ u64::from(copies) ^ u64::from(ratio) << 17;
        Self { all, copies, ratio, level, ignore_level, users: 0, state: Cell::new(seed | 1) }
    }

    /// Whether the next packet is copied: on average one of so many, and never foreseeable by counting (xorshift64*, Vigna
    /// 2016).
    pub(super) fn takes(&self) -> bool {
        let mut state = self.state.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.state.set(state);
        let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        random.wrapping_mul(u64::from(self.ratio)) >> 32 == 0
    }
}

fn more_or_less(users: &mut u32, more: bool) {
    *users = if more { users.saturating_add(1) } else { users.saturating_sub(1) };
}

impl Steering {
    /// A reformat context.
    pub(crate) fn reformat(&self, number: u32) -> Option<&Reformat> {
        self.reformats.get(number)
    }

    /// A list of changes.
    pub(crate) fn header_changes(&self, number: u32) -> Option<&HeaderChanges> {
        self.headers.get(number)
    }

    pub(crate) fn sampler(&self, number: u32) -> Option<&Sampler> {
        self.samplers.get(&number)
    }

    /// Number of reformat contexts, and of lists of changes.
    pub(crate) fn contexts(&self) -> [u32; 2] {
        [self.reformats.len(), self.headers.len()]
    }

    /// Bytes of ICM that a reformat context takes beside what its kind says.
    fn bytes_of(context: &Reformat) -> u64 {
        context.header.len() as u64
    }

    /// Stores a context. `None`: there are as many as there can be.
    pub(crate) fn create_reformat(&mut self, context: Reformat) -> Option<u32> {
        let bytes = Self::bytes_of(&context);
        let number = self.reformats.insert(context).ok()?;
        self.context_bytes += bytes;
        Some(number)
    }

    pub(crate) fn destroy_reformat(&mut self, number: u32) {
        if let Some(context) = self.reformats.remove(number) {
            self.context_bytes = self.context_bytes.saturating_sub(Self::bytes_of(&context));
        }
    }

    /// Stores a list of changes. `None`: there are as many as there can be.
    pub(crate) fn create_header_changes(&mut self, list: HeaderChanges) -> Option<u32> {
        let bytes = size_of_val(&*list.actions) as u64;
        let number = self.headers.insert(list).ok()?;
        self.context_bytes += bytes;
        Some(number)
    }

    pub(crate) fn destroy_header_changes(&mut self, number: u32) {
        if let Some(list) = self.headers.remove(number) {
            self.context_bytes = self.context_bytes.saturating_sub(size_of_val(&*list.actions) as u64);
        }
    }

    /// Stores a sampler of tables that there are, under a number that no other has.
    pub(crate) fn create_sampler(&mut self, number: u32, sampler: Sampler) {
        [sampler.all, sampler.copies].into_iter().for_each(|table| self.hold_table(table, true));
        self.samplers.insert(number, sampler);
    }

    pub(crate) fn destroy_sampler(&mut self, number: u32) {
        let Some(sampler) = self.samplers.remove(&number) else { return };
        [sampler.all, sampler.copies].into_iter().for_each(|table| self.hold_table(table, false));
    }

    pub(crate) fn meter(&self, number: u32) -> Option<&Meter> {
        self.meters.get(&number)
    }

    pub(crate) fn meters(&self) -> u32 {
        self.meters.len() as u32
    }

    pub(crate) fn meter_mut(&mut self, number: u32) -> Option<&mut Meter> {
        self.meters.get_mut(&number)
    }

    /// Stores a meter before a table that there is, under a number that no other has.
    pub(crate) fn create_meter(&mut self, number: u32, meter: Meter) {
        self.hold_table(meter.table, true);
        self.meters.insert(number, meter);
    }

    pub(crate) fn destroy_meter(&mut self, number: u32) {
        let Some(meter) = self.meters.remove(&number) else { return };
        self.hold_table(meter.table, false);
    }

    pub(super) fn definer(&self, number: u32) -> Option<&Definer> {
        self.definers.get(number)
    }

    pub(super) fn hold_sampler(&mut self, number: u32, more: bool) {
        if let Some(sampler) = self.samplers.get_mut(&number) {
            more_or_less(&mut sampler.users, more);
        }
    }

    /// An entry more or less that names them.
    pub(super) fn hold_contexts(&mut self, what: &Deed, more: bool) {
        if let Some(context) = self.reformats.get_mut(what.reformat) {
            more_or_less(&mut context.users, more);
        }
        if let Some(list) = self.headers.get_mut(what.header) {
            more_or_less(&mut list.users, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_one_of_so_many() {
        for ratio in [1, 4, 100] {
            let sampler = Sampler::new((1, 2), ratio, (0, false));
            let taken = (0..100_000).filter(|_| sampler.takes()).count();
            let expected = 100_000 / ratio as usize;
            assert!(taken.abs_diff(expected) * 10 <= expected, "{taken} of {expected}");
        }
    }
}
