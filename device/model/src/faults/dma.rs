//! Accesses to the host's memory that fail on script: a wrapper around that memory, and the rules by which it fails.
//!
//! A read that fails has no data, whatever the reason; the reason is what the function's PCI registers say of it (PCIe 2.2.9, 2.7.2, 6.2).
//! Writes are posted: nobody hears of one that is lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pcie::{PcieError, PcieEvent};
use super::{FaultId, Fired};
use crate::ground::dma::{DmaError, GuestMemory};
use crate::ground::epoch::Rebase;
use crate::ground::event::Seam;
use crate::ground::outstanding::OutstandingReads;
use crate::ground::time::Ps;
use crate::ground::trigger::{Firing, Trigger};

/// What becomes of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaAction {
    /// A read is completed with status Unsupported Request: no data.
    Unsupported,
    /// A read is completed with status Completer Abort: no data.
    Abort,
    /// The data of a read is poisoned: it is not used.
    Poison,
    /// A write is lost.
    Lose,
}

impl DmaAction {
    /// Whether it happens to reads.
    const fn is_of_reads(self) -> bool {
        !matches!(self, Self::Lose)
    }

    /// What the function's registers say of it.
    pub(crate) const fn event(self) -> Option<PcieEvent> {
        match self {
            Self::Unsupported => Some(PcieEvent::ReceivedMasterAbort),
            Self::Abort => Some(PcieEvent::ReceivedTargetAbort),
            Self::Poison => Some(PcieEvent::Error(PcieError::POISONED, [0; 4])),
            Self::Lose => None,
        }
    }
}

/// An access to which it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spoilt {
    pub(crate) fired: (FaultId, u64),
    pub(crate) action: DmaAction,
    pub(crate) iova: u64,
    pub(crate) len: usize,
}

impl Spoilt {
    /// What is said of it: the object is its page.
    pub(crate) fn fired(&self) -> Fired {
        let (id, times) = self.fired;
        Fired { id, seam: Seam::Dma, object: (self.iova >> 12) as u32, times }
    }
}

#[derive(Debug)]
struct Rule {
    id: FaultId,
    /// The first byte, and the one behind the last.
    range: (u64, u64),
    action: DmaAction,
    firing: Firing,
}

#[derive(Debug, Default)]
struct State {
    now: Ps,
    rules: Vec<Rule>,
    /// What happened and was not taken; at most [`MOST`].
    spoilt: Vec<Spoilt>,
    /// Where the last write ended, and whether it was lost.
    written: Option<(u64, bool)>,
}

/// Accesses of one input that are put in words: a WQE of the largest size has fewer pieces.
const MOST: usize = 256;

/// The rules of an adapter, shared with the wrappers around its memory.
#[derive(Debug, Default)]
pub(crate) struct Spoiler(Mutex<State>);

impl Spoiler {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, id: FaultId, range: Option<(u64, u64)>, action: DmaAction, trigger: &Trigger) {
        let range = range.unwrap_or((0, u64::MAX));
        self.state().rules.push(Rule { id, range, action, firing: Firing::new(trigger.clone()) });
    }

    pub(crate) fn remove(&self, id: FaultId) {
        self.state().rules.retain(|rule| rule.id != id);
    }

    /// How many matched and to how many it happened.
    pub(crate) fn counts(&self, id: FaultId) -> Option<(u64, u64)> {
        let state = self.state();
        let firing = &state.rules.iter().find(|rule| rule.id == id)?.firing;
        Some((firing.seen, firing.fired))
    }

    /// It is that time.
    pub(crate) fn at(&self, now: Ps) {
        self.state().now = now;
    }

    /// Time starts later by `by`: see [`Rebase`].
    pub(crate) fn rebase(&self, by: Ps) {
        let State { now, rules, spoilt: _, written: _ } = &mut *self.state();
        now.rebase(by);
        rules.iter_mut().for_each(|Rule { id: _, range: _, action: _, firing }| firing.rebase(by));
    }

    /// Takes what happened since the last call.
    pub(crate) fn take(&self) -> Vec<Spoilt> {
        std::mem::take(&mut self.state().spoilt)
    }

    /// Whether something happens to that access.
    fn spoils(&self, iova: u64, len: usize, read: bool) -> bool {
        let State { now, rules, spoilt, written } = &mut *self.state();
        let end = iova.saturating_add(len as u64);
        let found = rules.iter_mut().find_map(|Rule { id, range: (first, behind), action, firing }| {
            let matches = action.is_of_reads() == read && iova < *behind && *first < end;
            (matches && firing.fires(*now)).then_some(Spoilt {
                fired: (*id, firing.fired),
                action: *action,
                iova,
                len,
            })
        });
        if let Some(found) = found
            && spoilt.len() < MOST
        {
            spoilt.push(found);
        }
        if !read {
            *written = Some((end, found.is_some()));
        }
        found.is_some()
    }

    /// Whether a byte is lost that is written behind all else. The owner of an entry is of the same TLP as the bytes before it.
    fn spoils_release(&self, iova: u64) -> bool {
        let before = self.state().written.take();
        match before {
            Some((end, lost)) if end == iova => lost,
            _ => self.spoils(iova, 1, false),
        }
    }
}

/// A host's memory, some accesses to which fail.
pub(crate) struct SpoiltMemory {
    inner: Arc<dyn GuestMemory>,
    /// The same, if a part of it answers later: nothing happens to reads that are only planned.
    outstanding: Option<Arc<OutstandingReads>>,
    spoiler: Arc<Spoiler>,
}

impl SpoiltMemory {
    pub(crate) fn new(
        inner: Arc<dyn GuestMemory>,
        outstanding: Option<Arc<OutstandingReads>>,
        spoiler: Arc<Spoiler>,
    ) -> Self {
        Self { inner, outstanding, spoiler }
    }

    fn is_planning(&self) -> bool {
        self.outstanding.as_ref().is_some_and(|outstanding| outstanding.is_planning())
    }

    fn spoils(&self, iova: u64, len: usize, read: bool) -> bool {
        len > 0 && !self.is_planning() && self.spoiler.spoils(iova, len, read)
    }
}

impl GuestMemory for SpoiltMemory {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        match self.spoils(iova, buf.len(), true) {
            true => Err(DmaError { iova, len: buf.len() }),
            false => self.inner.read(iova, buf),
        }
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        match self.spoils(iova, data.len(), false) {
            true => Ok(()),
            false => self.inner.write(iova, data),
        }
    }

    fn write_release(&self, iova: u64, byte: u8) -> Result<(), DmaError> {
        match !self.is_planning() && self.spoiler.spoils_release(iova) {
            true => Ok(()),
            false => self.inner.write_release(iova, byte),
        }
    }

    fn copy_from(&self, iova: u64, source: &dyn GuestMemory, from: u64, len: usize) -> Result<(), DmaError> {
        match self.spoils(iova, len, false) {
            true => Ok(()),
            false => self.inner.copy_from(iova, source, from, len),
        }
    }

    // Each read is one of its own: nothing stays where it is. That is [`GuestMemory::is_mapped`]'s default.

    fn reaches(&self, iova: u64, len: usize) -> bool {
        self.inner.reaches(iova, len)
    }

    fn aside(&self) -> Option<&dyn GuestMemory> {
        Some(self.inner.aside().unwrap_or(&*self.inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zeros;

    impl GuestMemory for Zeros {
        fn read(&self, _: u64, buf: &mut [u8]) -> Result<(), DmaError> {
            buf.fill(0);
            Ok(())
        }
        fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
            Err(DmaError { iova, len: data.len() })
        }
    }

    #[test]
    fn the_nth_access_to_a_range_fails() {
        let spoiler = Arc::new(Spoiler::default());
        let memory = SpoiltMemory::new(Arc::new(Zeros), None, Arc::clone(&spoiler));
        let trigger = Trigger { nth: 2, ..Trigger::default() };
        spoiler.add(FaultId(7), Some((0x1000, 0x1040)), DmaAction::Abort, &trigger);
        let read = |at: u64| memory.read(at, &mut [0; 16]).is_ok();
        // Below, across the beginning, behind, inside.
        assert_eq!([0xff0, 0xff8, 0x1040, 0x1030, 0x1000].map(read), [true, true, true, false, true]);
        let spoilt = spoiler.take();
        assert_eq!(spoilt.len(), 1);
        assert_eq!((spoilt[0].iova, spoilt[0].len, spoilt[0].fired), (0x1030, 16, (FaultId(7), 1)));
        assert_eq!((spoiler.counts(FaultId(7)), spoiler.take().len()), (Some((3, 1)), 0));
        assert!(!memory.is_mapped(0, 16) && memory.aside().is_some());
        spoiler.remove(FaultId(7));
        assert_eq!(spoiler.counts(FaultId(7)), None);
    }

    #[test]
    fn a_lost_write_is_not_heard_of_and_is_no_read() {
        let spoiler = Arc::new(Spoiler::default());
        let memory = SpoiltMemory::new(Arc::new(Zeros), None, Arc::clone(&spoiler));
        spoiler.add(FaultId(0), None, DmaAction::Lose, &Trigger { from: Ps(5), ..Trigger::default() });
        assert!(memory.write(0, &[1]).is_err(), "not yet: the memory itself answers");
        spoiler.at(Ps(5));
        assert!(memory.read(0, &mut [0]).is_ok());
        assert!(memory.write(0, &[1]).is_ok() && memory.write(0, &[1]).is_err());
    }

    /// An entry is one TLP: its owner does not come without the rest, and counts for nothing by itself.
    #[test]
    fn the_owner_of_a_lost_entry_is_lost_with_it() {
        let spoiler = Arc::new(Spoiler::default());
        let memory = SpoiltMemory::new(Arc::new(Zeros), None, Arc::clone(&spoiler));
        let trigger = Trigger { nth: 2, ..Trigger::default() };
        spoiler.add(FaultId(0), None, DmaAction::Lose, &trigger);
        let entry = |at| (memory.write(at, &[0; 63]).is_ok(), memory.write_release(at + 63, 1).is_ok());
        assert_eq!([0, 64, 128].map(entry), [(false, false), (true, true), (false, false)]);
        assert_eq!(spoiler.counts(FaultId(0)), Some((3, 1)));
        assert!(memory.write_release(0x2000, 1).is_err(), "by itself");
    }
}
