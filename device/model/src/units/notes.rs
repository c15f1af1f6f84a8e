//! What the units did, for those who look on.

use crate::ground::epoch::Rebase;
use crate::ground::event::{Event, Object};
use crate::ground::time::Ps;

use crate::ground::timing::PcieCost;

/// Something that a unit did: when it was asked for, how long that waited, how long it then took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) at: Ps,
    pub(crate) wait: Ps,
    pub(crate) took: Ps,
    pub(crate) event: Event,
}

/// Notes that nobody has taken yet; nothing is noted unless somebody asked for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(Option<Vec<Note>>);

/// An access to the host's memory: what, for which queue, how much.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) what: Object,
    pub(super) queue: u32,
    pub(super) bytes: usize,
}

impl Notes {
    /// From now on things are noted.
    pub(super) fn start(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Takes what was noted.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Note> {
        self.0.iter_mut().flat_map(|notes| notes.drain(..))
    }

    /// A read that was asked for at `at` and is done at `done`.
    #[inline]
    pub(super) fn read(&mut self, cost: &PcieCost, at: Ps, done: Ps, access: Access) {
        if self.0.is_some() {
            let Access { what, queue, bytes } = access;
            self.access((at, done, cost.idle_read(bytes)), bytes, |bytes| Event::DmaRead {
                what,
                queue,
                bytes,
            });
        }
    }

    /// The same for a write, which is done when the host sees it.
    #[inline]
    pub(super) fn write(&mut self, cost: &PcieCost, at: Ps, done: Ps, access: Access) {
        if self.0.is_some() {
            let Access { what, queue, bytes } = access;
            self.access((at, done, cost.idle_write(bytes)), bytes, |bytes| Event::DmaWrite {
                what,
                queue,
                bytes,
            });
        }
    }

    /// `idle`: how long it takes with nothing else on the link. What is more is waiting.
    #[cold]
    fn access(&mut self, (at, done, idle): (Ps, Ps, Ps), bytes: usize, event: impl Fn(u32) -> Event) {
        if bytes > 0 {
            let took = idle.min(done.since(at));
            let event = event(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.push(Note { at, wait: done.since(at).since(took), took, event });
        }
    }

    /// Something was looked for in a cache at `at`, in vain, and is there at `done`.
    #[inline]
    pub(super) fn miss(&mut self, at: Ps, done: Ps, event: Event) {
        if self.0.is_some() {
            self.push(Note { at, wait: Ps::ZERO, took: done.since(at), event });
        }
    }

    #[cold]
    fn push(&mut self, note: Note) {
        if let Some(notes) = &mut self.0 {
            notes.push(note);
        }
    }
}

impl Rebase for Notes {
    fn rebase(&mut self, by: Ps) {
        for Note { at, wait: _, took: _, event: _ } in self.0.iter_mut().flatten() {
            at.rebase(by);
        }
    }
}
