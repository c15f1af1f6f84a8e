//! Copies of frames that wait for receive queues, beside the frames themselves.
//!
//! A frame has a place in its port's input buffer, or among what comes back to its port, until the last queue has it: who sends more waits, or
//! loses it. What flow tables make of one, up to 256 copies, and what sniffers get have no such place. They have room here, and are dropped
//! without it: an adapter whose input buffer is full counts what it drops as well (`rx_discards_phy`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of copies that wait, of all functions of an adapter: an estimate, as much as a few copies each of what the port's own bounds let
/// wait, and little memory of the server.
pub(crate) const MOST_COPIED: usize = 4 << 20;
/// Bytes that a copy takes beside those of its frame: its headers, and the event that brings it.
const BESIDE: usize = 1024;

/// What copies take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copies(Arc<AtomicUsize>);

/// Room that a copy has until it is dropped, wherever that is.
#[derive(Debug)]
pub(crate) struct CopyRoom {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Copies {
    /// Room for a copy of so many bytes. `None`: there is none, the copy is to be dropped.
    pub(crate) fn room(&self, bytes: usize) -> Option<CopyRoom> {
        (self.0.load(Ordering::Relaxed) < MOST_COPIED).then(|| self.owed(bytes))
    }

    /// Room for what others had room for before, whether there is some or not.
    pub(crate) fn owed(&self, bytes: usize) -> CopyRoom {
        let bytes = bytes.saturating_add(BESIDE);
        self.0.fetch_add(bytes, Ordering::Relaxed);
        CopyRoom { all: Arc::clone(&self.0), bytes }
    }
}

impl Drop for CopyRoom {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_room_until_they_are_dropped() {
        let copies = Copies::default();
        let mut rooms: Vec<_> = std::iter::from_fn(|| copies.room(BESIDE)).collect();
        assert_eq!(rooms.len(), MOST_COPIED / (2 * BESIDE));
        rooms.pop();
        rooms.extend(copies.room(BESIDE));
        assert!(copies.room(0).is_none());
        rooms.push(copies.owed(0));
        drop(rooms);
        assert_eq!(copies.0.load(Ordering::Relaxed), 0);
    }
}
