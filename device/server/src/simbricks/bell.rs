//! What each side of a link between two processes of ours waits for, so that the other wakes it when that is there, and not before.
//!
//! Behind the queues each side has a cell, who listens the first one, at a page's beginning; only its owner writes there, but for the sleep:
//!
//! | offset in a cell | what |
//! |---|---|
//! | 0 | *need*: it goes on when so much is promised, ps (8). 0: with anything |
//! | 8 | *looks*: while it sleeps it looks not at a need of the other that is more than this, ps (8) |
//! | 16 | it sleeps, and is woken by 1: a byte at the socket, 2: this word, as a futex (4); who wakes it clears that |
//! | 24 | what parts of a simulation tell each other of all of them: [`Word`], 8 bytes each |
//!
//! Whoever sleeps says so and then looks at ring and need of the other; whoever puts something into a ring, or needs something, does that and
//! then looks if the other sleeps. So one of both sees the other.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use nix::sys::socket::{MsgFlags, send};

use super::channel::{Outlook, SYNC};
use super::intro::{CELL, Queues, cells};
use super::ring::{Entry, Memory};
use super::{LinkError, nap};

/// Offsets in a cell.
const NEED: usize = 0;
const LOOKS: usize = 8;
const SLEEPS: usize = 16;
const WORDS: usize = 24;
const _: () = assert!(Word::Calm.offset() + 8 <= CELL);
/// Who sleeps is woken when so much of its ring is full: a part of this.
const FULL: usize = 4;

/// What one part of a simulation tells the next of all of them (`sim/calm`). It is not looked at here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// The wave that it asks for.
    Asks,
    /// The wave that it has answered, and the answer: a time in ps, and a sum.
    Answered,
    Time,
    Sum,
    /// The wave that has begun.
    Begun,
    /// Up to when nothing is at any connector, ps.
    Calm,
}

impl Word {
    /// All of them, in the order in which they are said: what is read backwards has no answer without its time and its sum.
    pub(super) const ALL: [Self; 6] =
        [Self::Asks, Self::Time, Self::Sum, Self::Answered, Self::Calm, Self::Begun];

    /// Where it is in a cell.
    const fn offset(self) -> usize {
        WORDS + 8 * self as usize
    }
}

/// How a side sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It does not.
    Awake,
    /// A byte at the socket wakes it.
    AtSocket,
    /// The word that says so wakes it.
    AtWord,
}

impl Sleep {
    /// As it is in a cell.
    pub(super) const fn word(self) -> u32 {
        match self {
            Self::Awake => 0,
            Self::AtSocket => 1,
            Self::AtWord => 2,
        }
    }
}

/// One side's view of both cells of a link, and what the peer was not woken for.
#[derive(Debug)]
pub(super) struct Bell {
    memory: Arc<Memory>,
    /// Offsets of the cells.
    own: usize,
    theirs: usize,
    /// So many entries may wait for who sleeps.
    most: usize,
    /// What was put into the ring since the peer was seen awake: how much, what it promises at most, and whether there is more than promises.
    unseen: usize,
    promised: u64,
    pressing: bool,
}

impl Bell {
    /// That of who listens, or of the other side. `queues` were checked against the memory's size, cells included.
    pub(super) fn new(memory: Arc<Memory>, queues: &Queues, listens: bool) -> Self {
        let first = cells(queues);
        assert!(first + 2 * CELL <= memory.len(), "{queues:?}");
        let (own, theirs) = if listens { (first, first + CELL) } else { (first + CELL, first) };
        let [from, to] = queues.map(|queue| queue.count);
        let most = (if listens { from } else { to } / FULL).max(1);
        Self { memory, own, theirs, most, unseen: 0, promised: 0, pressing: false }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is a word of one of the cells, which are inside the mapping (checked in `new`) at a page's beginning and 128 bytes behind it, so
        // that words are aligned; the mapping lives as long as `self`. Both sides access it by atomics only.
        unsafe { AtomicU64::from_ptr(self.memory.byte(at).cast()) }
    }

    fn sleep(&self, cell: usize) -> &AtomicU32 {
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.memory.byte(cell + SLEEPS).cast()) }
    }

    /// Something was put into the ring to the peer.
    pub(super) fn put(&mut self, entry: &Entry) {
        self.unseen += 1;
        match entry.kind {
            SYNC => {
                let Outlook { until, .. } = Outlook::read(&entry.own);
                self.promised = self.promised.max(entry.time).max(until);
            }
            _ => self.pressing = true,
        }
    }

    /// The word that this side sleeps at.
    pub(super) fn bed(&self) -> &AtomicU32 {
        self.sleep(self.own)
    }

    /// Wakes the peer, if it sleeps and something is there that it waits for: behind all that was put into the ring in one go.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn rouse(&mut self, socket: &UnixStream) -> Result<(), LinkError> {
        if self.unseen == 0 {
            return Ok(());
        }
        let (mut sleeps, mut need) = (false, 0);
        self.memory.touch(|| {
            fence(Ordering::SeqCst);
            sleeps = self.sleep(self.theirs).load(Ordering::SeqCst) != 0;
            need = self.word(self.theirs + NEED).load(Ordering::SeqCst);
        })?;
        if sleeps {
            if !self.pressing && self.promised < need && self.unseen < self.most {
                return Ok(());
            }
            self.wake(socket)?;
        }
        // It looks into its ring before it sleeps again.
        (self.unseen, self.promised, self.pressing) = (0, 0, false);
        Ok(())
    }

    /// Wakes the peer if it still sleeps.
    fn wake(&self, socket: &UnixStream) -> Result<(), LinkError> {
        let (awake, mut slept) = (Sleep::Awake.word(), 0);
        let word = self.sleep(self.theirs);
        self.memory.touch(|| slept = word.swap(awake, Ordering::SeqCst))?;
        if slept == Sleep::AtWord.word() {
            nap::wake(word);
        } else if slept != awake {
            // A socket that is full wakes as well, and one whose peer is gone is seen by who waits for it.
            let _ = send(socket.as_raw_fd(), &[0], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        }
        Ok(())
    }

    /// This side goes on when `need` is promised, and looks what the peer needs before it promises more than `looks` itself. A peer that sleeps
    /// and would see that too late is woken.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn wait_for(&self, need: u64, looks: u64, socket: &UnixStream) -> Result<(), LinkError> {
        let mut late = false;
        self.memory.touch(|| {
            self.word(self.own + LOOKS).store(looks, Ordering::SeqCst);
            self.word(self.own + NEED).store(need, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            late = self.sleep(self.theirs).load(Ordering::SeqCst) != 0
                && need <= self.word(self.theirs + LOOKS).load(Ordering::SeqCst);
        })?;
        if late { self.wake(socket) } else { Ok(()) }
    }

    /// What the peer needs.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn need(&self) -> Result<u64, LinkError> {
        self.read(self.theirs + NEED)
    }

    /// Writes words for the peer, one behind the other, and wakes it if it sleeps.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn say(
        &self,
        words: impl IntoIterator<Item = (Word, u64)>,
        socket: &UnixStream,
    ) -> Result<(), LinkError> {
        let mut sleeps = false;
        self.memory.touch(|| {
            for (word, value) in words {
                self.word(self.own + word.offset()).store(value, Ordering::SeqCst);
            }
            fence(Ordering::SeqCst);
            sleeps = self.sleep(self.theirs).load(Ordering::SeqCst) != 0;
        })?;
        if sleeps { self.wake(socket) } else { Ok(()) }
    }

    /// The peer's word.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn said(&self, word: Word) -> Result<u64, LinkError> {
        self.read(self.theirs + word.offset())
    }

    fn read(&self, at: usize) -> Result<u64, LinkError> {
        let mut said = 0;
        self.memory.touch(|| said = self.word(at).load(Ordering::SeqCst))?;
        Ok(said)
    }

    /// This side says how it sleeps.
    ///
    /// # Errors
    /// The memory is gone.
    pub(super) fn set_sleeps(&self, sleeps: Sleep) -> Result<(), LinkError> {
        self.memory.touch(|| {
            self.sleep(self.own).store(sleeps.word(), Ordering::SeqCst);
            // What is looked at behind this was there before the peer saw it, or the peer sees it.
            fence(Ordering::SeqCst);
        })
    }
}
