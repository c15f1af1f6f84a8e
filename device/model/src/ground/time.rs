//! Model time: integer picoseconds, and the event heap.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use super::epoch::Rebase;

use heap::Heap;

/// A point in model time, or a duration: picoseconds since the world's start. 2^64 ps are 213 days; long before that a world that goes on
/// counts from a later start ([`crate::World::rebase_if_due`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ps(pub u64);

impl Ps {
    /// The world's start.
    pub const ZERO: Ps = Ps(0);
    /// The end of time.
    pub const MAX: Ps = Ps(u64::MAX);

    /// From nanoseconds; saturates.
    pub const fn from_ns(ns: u64) -> Self {
        Ps(ns.saturating_mul(1_000))
    }

    /// From microseconds; saturates.
    pub const fn from_us(us: u64) -> Self {
        Ps(us.saturating_mul(1_000_000))
    }

    /// From milliseconds; saturates.
    pub const fn from_ms(ms: u64) -> Self {
        Ps(ms.saturating_mul(1_000_000_000))
    }

    /// Whole nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }

    /// The distance from `earlier`, zero if that is not earlier.
    pub const fn since(self, earlier: Ps) -> Ps {
        Ps(self.0.saturating_sub(earlier.0))
    }

    /// `n` times this duration; saturates.
    pub const fn times(self, n: u64) -> Ps {
        Ps(self.0.saturating_mul(n))
    }

    /// Ticks of a clock of `khz` kilohertz in this time.
    pub const fn ticks(self, khz: u64) -> u64 {
        (self.0 as u128 * khz as u128 / 1_000_000_000) as u64
    }
}

impl Add for Ps {
    type Output = Ps;
    fn add(self, other: Ps) -> Ps {
        Ps(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Ps) {
        *self = *self + other;
    }
}

impl Sub for Ps {
    type Output = Ps;
    fn sub(self, other: Ps) -> Ps {
        self.since(other)
    }
}

impl fmt::Debug for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ns", self.0 / 1_000, self.0 % 1_000)
    }
}

impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// When an event is due, and where it is. Small, because a heap moves its entries about.
#[derive(Clone, Copy)]
struct Entry {
    at: Ps,
    /// Its source, above [`SEQUENCE_BITS`] bits that say which one it was of those that were scheduled.
    order: u64,
    /// Where the event is.
    slot: u32,
}

/// Bits of a [`Source`].
const SOURCE_BITS: u32 = 28;
/// Bits for the sequence.
const SEQUENCE_BITS: u32 = u64::BITS - SOURCE_BITS;
/// The sequence starts anew before it has more bits than are left.
const SEQUENCES: u64 = 1 << SEQUENCE_BITS;
/// No place.
const NONE: u32 = u32::MAX;

impl Entry {
    /// Time, source and sequence as one number: compared without a branch.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at.0) << 64 | u128::from(self.order)
    }

    /// The same as others know it.
    #[inline]
    fn place(&self) -> Key {
        Key { at: self.at, order: self.order }
    }
}

/// What orders events of the same time, before the order in which they were scheduled does: what kind they are, at
/// which node they happen and by which of its ports they came.
///
/// Nodes share nothing but messages, so only the order at one node matters. There, events of one source are scheduled in
/// the order in which the source makes them, whatever else is in the same heap. So the order of all events is
/// (time, class, node, port, sequence of the source), and does not depend on what else is in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Source(u32);

impl Source {
    const CLASS_BITS: u32 = 3;
    const PORT_BITS: u32 = 8;
    const NODE_BITS: u32 = SOURCE_BITS - Self::CLASS_BITS - Self::PORT_BITS;

    /// Nodes that have an order of their own; what is beyond shares that of the last.
    pub const NODES: usize = 1 << Self::NODE_BITS;

    /// Of class `class` (0 to 7, the lowest first), at the node of that number, by that of its ports.
    pub const fn new(class: u8, node: usize, port: u8) -> Self {
        let node = if node < Self::NODES { node } else { Self::NODES - 1 };
        let class = (class & ((1 << Self::CLASS_BITS) - 1)) as u32;
        Self(class << (Self::NODE_BITS + Self::PORT_BITS) | (node as u32) << Self::PORT_BITS | port as u32)
    }
}

/// An event that may be somebody's.
pub trait Owned {
    /// Whose, as a small number.
    fn owner(&self) -> Option<usize> {
        None
    }
}

/// log2 of what a bucket spans, in picoseconds: 8 ns.
const BUCKET: u32 = 13;
/// Buckets: what is due within 4 us has one.
const BUCKETS: usize = 512;
/// Words with a bit for each bucket: eight, which have a bit each in a byte.
const WORDS: usize = BUCKETS / 64;
/// No bucket: what is in the heap.
const FAR: usize = usize::MAX;
/// So many events of a bucket are passed by to put one behind them; the heap is faster then.
const STEPS: u32 = 32;

/// The place of an event.
struct Slot<E> {
    entry: Entry,
    /// The next one of the same bucket, or of those that are free; of one in the heap, its place there.
    next: u32,
    /// There is none in a free place.
    event: Option<E>,
}

/// Events in order of time; events of the same time in the order of their [`Source`]s, those of one source in the order
/// they were scheduled.
///
/// Most events are due soon. So the near future has buckets, each with a short sorted list, and a bit that says whether
/// there is any; what is farther ahead, and what would have to pass by many, waits in a heap. Time goes round the buckets,
/// which begin with the one of the present.
pub struct EventHeap<E> {
    /// Place of the next event, or [`Key::NEVER`]; where it is, or [`NONE`]; and the bucket that it is in, or [`FAR`].
    next: Key,
    first: u32,
    bucket: usize,
    /// Number of the bucket that time has come to; nothing that is due waits before it.
    present: u64,
    /// The first event of each bucket.
    heads: [u32; BUCKETS],
    /// Bit n of word n / 64: bucket n has events.
    taken: [u64; WORDS],
    /// Bit n: word n of those is not zero.
    words: u8,
    far: Heap,
    sequence: u64,
    /// The events, where buckets and entries say.
    slots: Vec<Slot<E>>,
    /// The first place without an event, or [`NONE`].
    free: u32,
    len: usize,
    /// How many are whose.
    owned: Vec<usize>,
}

impl<E> Default for EventHeap<E> {
    fn default() -> Self {
        Self {
            next: Key::NEVER,
            first: NONE,
            bucket: FAR,
            present: 0,
            heads: [NONE; BUCKETS],
            taken: [0; WORDS],
            words: 0,
            far: Heap::default(),
            sequence: 0,
            slots: Vec::new(),
            free: NONE,
            len: 0,
            owned: Vec::new(),
        }
    }
}

/// The place of an event in the order of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    at: Ps,
    order: u64,
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.rank() < other.rank()
    }
}

impl Key {
    /// Behind all events.
    pub(crate) const NEVER: Self = Self { at: Ps::MAX, order: u64::MAX };

    /// Time, source and sequence as one number: compared without a branch.
    #[inline]
    fn rank(&self) -> u128 {
        u128::from(self.at.0) << 64 | u128::from(self.order)
    }

    /// When the event is due.
    #[inline]
    pub(crate) fn at(&self) -> Ps {
        self.at
    }
}

impl<E: Owned> EventHeap<E> {
    /// Adds `event` of that source at time `at`.
    #[inline(never)]
    pub fn push(&mut self, at: Ps, source: Source, event: E) {
        let key = self.reserve(at, source);
        self.push_reserved(key, event);
    }

    /// The place that an event pushed now would have. Whoever keeps the event himself says when its time comes
    /// ([`EventHeap::pass`]), or pushes it later ([`EventHeap::push_reserved`]).
    #[inline]
    pub(crate) fn reserve(&mut self, at: Ps, source: Source) -> Key {
        if self.sequence >= SEQUENCES {
            self.renumber();
        }
        let order = u64::from(source.0) << SEQUENCE_BITS | self.sequence;
        self.sequence += 1;
        Key { at, order }
    }

    /// Whether so many places can be reserved before the sequence starts anew, which makes reserved places void.
    pub(crate) fn can_reserve(&self, count: u64) -> bool {
        self.sequence.saturating_add(count) < SEQUENCES
    }

    /// The place of the next event.
    #[inline]
    pub(crate) fn next_key(&self) -> Option<Key> {
        (self.next != Key::NEVER).then_some(self.next)
    }

    /// The next event.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&E> {
        self.slots.get(self.first as usize)?.event.as_ref()
    }

    /// Time has come to `at`: nothing is due before it.
    #[inline]
    pub(crate) fn pass(&mut self, at: Ps) {
        self.present = self.present.max(at.0 >> BUCKET);
    }

    /// Adds an event at the place that was reserved for it.
    #[inline(always)]
    pub(crate) fn push_reserved(&mut self, key: Key, event: E) {
        // What should have been before the present is the first there.
        let number = (key.at.0 >> BUCKET).max(self.present);
        let bucket = number as usize % BUCKETS;
        if let Some(owner) = event.owner() {
            match self.owned.get_mut(owner) {
                Some(count) => *count += 1,
                None => self.first_of(owner),
            }
        }
        let entry = self.store(key, event);
        let bucket = match self.heads.get_mut(bucket) {
            // Mostly nothing else is due so soon before or after it.
            Some(head) if *head == NONE && number - self.present < BUCKETS as u64 => {
                *head = entry.slot;
                self.take(bucket)
            }
            _ => self.put(number, entry),
        };
        if key < self.next {
            (self.next, self.first, self.bucket) = (key, entry.slot, bucket);
        }
        self.len += 1;
    }

    /// Keeps an event; says where.
    #[inline(always)]
    fn store(&mut self, Key { at, order }: Key, event: E) -> Entry {
        if let Some(place) = self.slots.get_mut(self.free as usize) {
            let entry = Entry { at, order, slot: self.free };
            self.free = place.next;
            *place = Slot { entry, next: NONE, event: Some(event) };
            return entry;
        }
        let slot = u32::try_from(self.slots.len()).unwrap_or(NONE);
        assert!(slot != NONE, "so many events do not fit into memory");
        let entry = Entry { at, order, slot };
        self.slots.push(Slot { entry, next: NONE, event: Some(event) });
        entry
    }

    /// The first event of somebody.
    #[cold]
    fn first_of(&mut self, owner: usize) {
        self.owned.resize(owner + 1, 0);
        self.owned.iter_mut().skip(owner).for_each(|count| *count = 1);
    }

    /// An event waits no more.
    #[inline(always)]
    fn count_over(&mut self, event: &E) {
        self.len -= 1;
        if let Some(count) = event.owner().and_then(|owner| self.owned.get_mut(owner)) {
            *count = count.saturating_sub(1);
        }
    }

    /// How many events wait that are somebody's.
    pub(crate) fn len_of(&self, owner: usize) -> usize {
        self.owned.get(owner).copied().unwrap_or_default()
    }

    /// A bucket has an event from now on. Returns the bucket.
    #[inline(always)]
    fn take(&mut self, bucket: usize) -> usize {
        if let Some(word) = self.taken.get_mut(bucket / 64) {
            *word |= 1 << (bucket % 64);
            self.words |= 1 << (bucket / 64);
        }
        bucket
    }

    /// Puts an event where others are, or where there are no buckets. Returns its bucket.
    #[inline(never)]
    fn put(&mut self, number: u64, entry: Entry) -> usize {
        let bucket = number as usize % BUCKETS;
        let near = number - self.present < BUCKETS as u64;
        if near && self.put_into(bucket, entry) {
            return bucket;
        }
        self.far.push(entry, moves(&mut self.slots));
        FAR
    }

    /// Puts an event into a bucket with others, behind those that are not later; says whether it did.
    fn put_into(&mut self, bucket: usize, entry: Entry) -> bool {
        let Some(head) = self.heads.get_mut(bucket) else { return false };
        match self.slots.get(*head as usize) {
            Some(first) if first.entry.key() <= entry.key() => {
                let before = *head;
                self.put_behind(before, entry)
            }
            _ => {
                let next = std::mem::replace(head, entry.slot);
                self.link(entry.slot, next);
                self.take(bucket);
                true
            }
        }
    }

    /// Puts an event behind another one in its bucket, if not too many of them are before it.
    fn put_behind(&mut self, mut before: u32, entry: Entry) -> bool {
        let next_of = |slots: &Vec<Slot<E>>, slot: u32| slots.get(slot as usize).map_or(NONE, |s| s.next);
        for _ in 0..STEPS {
            let next = next_of(&self.slots, before);
            if self.slots.get(next as usize).is_none_or(|slot| slot.entry.key() > entry.key()) {
                self.link(before, entry.slot);
                self.link(entry.slot, next);
                return true;
            }
            before = next;
        }
        false
    }

    #[inline]
    fn link(&mut self, slot: u32, next: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.next = next;
        }
    }

    /// Starts the sequence anew.
    #[cold]
    fn renumber(&mut self) {
        let mut all: Vec<&mut Slot<E>> = self.slots.iter_mut().filter(|slot| slot.event.is_some()).collect();
        // By sequence, which says what the new ones are.
        all.sort_unstable_by_key(|slot| slot.entry.order % SEQUENCES);
        self.sequence = all.len() as u64;
        for (i, Slot { entry, .. }) in all.into_iter().enumerate() {
            entry.order = entry.order / SEQUENCES * SEQUENCES + i as u64;
        }
        // The order is the same: what was a heap is one.
        for entry in &mut self.far.0 {
            if let Some(slot) = self.slots.get(entry.slot as usize) {
                *entry = slot.entry;
            }
        }
        self.find();
    }

    /// When the next event is due.
    #[inline]
    pub fn next_at(&self) -> Option<Ps> {
        self.next_key().map(|next| next.at)
    }

    /// Takes the next event if it is due at or before `until`.
    #[inline(always)]
    pub fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        if self.len > 0 && self.next.at <= until {
            return self.pop();
        }
        if self.len > 0 {
            self.pass(until);
        }
        None
    }

    /// Takes the next event.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(Ps, E)> {
        let slot = self.first;
        let place = self.slots.get_mut(slot as usize)?;
        let event = place.event.take()?;
        let later = std::mem::replace(&mut place.next, self.free);
        let at = self.next.at;
        self.free = slot;
        self.count_over(&event);
        self.pass(at);
        match self.heads.get_mut(self.bucket) {
            Some(head) => {
                *head = later;
                match self.slots.get(later as usize) {
                    // Nothing near is before what is in the same bucket.
                    Some(Slot { entry, .. }) => (self.next, self.first) = (entry.place(), later),
                    None => {
                        self.leave(self.bucket);
                        self.find_near();
                    }
                }
            }
            None => {
                self.far.pop(moves(&mut self.slots));
                self.find_near();
            }
        }
        self.heed_far();
        Some((at, event))
    }

    /// A bucket is empty.
    #[inline]
    fn leave(&mut self, bucket: usize) {
        if let Some(word) = self.taken.get_mut(bucket / 64) {
            *word &= !(1 << (bucket % 64));
            if *word == 0 {
                self.words &= !(1 << (bucket / 64));
            }
        }
    }

    /// Looks for the next event.
    fn find(&mut self) {
        self.find_near();
        self.heed_far();
    }

    /// The next event is the first one in the buckets, if there is one.
    #[inline(always)]
    fn find_near(&mut self) {
        if let Some(bucket) = self.first_bucket()
            && let Some(first) = self.heads.get(bucket)
            && let Some(Slot { entry, .. }) = self.slots.get(*first as usize)
        {
            (self.next, self.first, self.bucket) = (entry.place(), *first, bucket);
        } else {
            (self.next, self.first, self.bucket) = (Key::NEVER, NONE, FAR);
            self.tidy();
        }
    }

    /// After a burst its memory goes again.
    #[inline]
    fn tidy(&mut self) {
        if self.len == 0 && self.slots.capacity() > Self::KEPT {
            (self.slots, self.far, self.free) = (Vec::new(), Heap::default(), NONE);
        }
    }

    /// The first one in the heap is the next, if it is before that in the buckets.
    #[inline(always)]
    fn heed_far(&mut self) {
        if let Some(entry) = self.far.0.first()
            && entry.place() < self.next
        {
            (self.next, self.first, self.bucket) = (entry.place(), entry.slot, FAR);
        }
    }

    /// The first bucket with events, from the present on.
    #[inline]
    fn first_bucket(&self) -> Option<usize> {
        let present = self.present as usize % BUCKETS;
        // The word of the present counts from the present on first, and as a whole when all others were looked at.
        let (mut word, mut bits) =
            (present / 64, *self.taken.get(present / 64)? & u64::MAX << (present % 64));
        if bits == 0 {
            let behind = self.words.rotate_right(word as u32 + 1);
            word = (word + 1 + behind.trailing_zeros() as usize) % WORDS;
            bits = *self.taken.get(word)?;
        }
        (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
    }

    /// Room for so many events is kept when none waits.
    const KEPT: usize = 1 << 12;

    /// The events that wait, in no order, with their times.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ps, &E)> {
        self.slots.iter().filter_map(|slot| Some((slot.entry.at, slot.event.as_ref()?)))
    }

    /// Looks at the events in so many places from `from` on, and takes out those that are not to be kept; the order of the others stays.
    /// What has a bucket stays, too: it is due soon. Returns the place to go on at; `None`: it was the last one.
    pub(crate) fn sweep(
        &mut self,
        from: usize,
        places: usize,
        mut keep: impl FnMut(Ps, &E) -> bool,
    ) -> Option<usize> {
        let end = from.saturating_add(places);
        for slot in from..end.min(self.slots.len()) {
            let Some(Slot { entry, next, event: Some(event) }) = self.slots.get(slot) else { continue };
            let (entry, place) = (*entry, *next as usize);
            let is_far = self.far.0.get(place).is_some_and(|far| far.slot == entry.slot);
            if is_far && !keep(entry.at, event) {
                self.take_out(entry, place);
            }
        }
        (end < self.slots.len()).then_some(end)
    }

    /// Takes out an event that has that place in the heap.
    fn take_out(&mut self, entry: Entry, place: usize) {
        self.far.remove(place, moves(&mut self.slots));
        let Some(slot) = self.slots.get_mut(entry.slot as usize) else { return };
        slot.next = std::mem::replace(&mut self.free, entry.slot);
        if let Some(event) = slot.event.take() {
            self.count_over(&event);
        }
        if self.first == entry.slot {
            self.find();
        }
    }

    /// All of it is earlier by `by`, a multiple of what a bucket spans and not later than what waits; so is what `moved` does to each event.
    pub(crate) fn rebase(&mut self, by: Ps, mut moved: impl FnMut(&mut E)) {
        let present = self.present.saturating_sub(by.0 >> BUCKET);
        let rest = Self { present, sequence: self.sequence, ..Self::default() };
        for Slot { entry: Entry { mut at, order, .. }, event, .. } in std::mem::replace(self, rest).slots {
            if let Some(mut event) = event {
                at.rebase(by);
                moved(&mut event);
                self.push_reserved(Key { at, order }, event);
            }
        }
    }

    /// How many were scheduled so far, and how many are over; both begin anew now and then.
    pub(crate) fn passed(&self) -> (u64, u64) {
        (self.sequence, self.sequence.wrapping_sub(self.len as u64))
    }

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Keeps where entries of the heap are.
fn moves<E>(slots: &mut [Slot<E>]) -> impl FnMut(Entry, usize) {
    |entry, place| {
        if let Some(slot) = slots.get_mut(entry.slot as usize) {
            slot.next = place as u32;
        }
    }
}

mod heap;
#[cfg(test)]
mod tests;
