//! The parts of one adapter that are busy while they work.

use hca_spec::ids::{Cqn, Qpn};

use crate::ground::epoch::Rebase;
use crate::ground::event::{Event, Object};
use crate::ground::time::Ps;

use crate::ground::timing::{Mark, PcieCost, Place, Timing};

mod bus;
mod cache;
mod calendar;
mod frames;
mod notes;
#[cfg(test)]
mod published;
mod series;
mod shared;
#[cfg(test)]
mod tests;
mod walks;

pub use bus::{Bus, PcieCounts};
pub use cache::{Cache, WqeCache};
pub use calendar::Calendar;
use frames::FramePipe;
pub use frames::Lookups;
pub(crate) use notes::Note;
use notes::{Access, Notes};
pub(crate) use series::{Receives, Sends};
use shared::SharedStage;
use walks::Walks;

/// log2 of the calendar pages of the processing units in ps: 65 ns, about a job.
const POOL_PAGE: u32 = 16;
/// Queue pairs that have a lane of their own; of more, those whose numbers are equal modulo this share one.
const LANES: usize = 1024;
/// Bytes of a line of memory, and of translations.
const LINE: usize = 64;
/// Lines that the low 12 bits of an address tell apart.
const LINES: usize = 4096 / LINE;
/// log2 of translations in such a line: 8 bytes each (PRM "MTT").
const LINE_SHIFT: u32 = 3;
/// Bytes of a basic block.
const BLOCK: usize = 64;
/// Bytes that an atomic reads and writes.
const OPERAND: usize = 8;

/// What one queue pair has to do in order.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// When a processing unit is done with what the queue pair sends so far.
    sends: Ps,
    /// The same of what it receives.
    receives: Ps,
    /// When the packet sent last leaves.
    departs: Ps,
    /// When the answer sent last leaves.
    answers: Ps,
    /// When the packet received last has its effects.
    handled: Ps,
}

/// Uses of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ratio {
    /// That found what they looked for.
    pub hits: u64,
    /// That did not.
    pub misses: u64,
}

impl From<(u64, u64)> for Ratio {
    fn from((hits, misses): (u64, u64)) -> Self {
        Self { hits, misses }
    }
}

/// What the units did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Traffic on PCIe.
    pub pcie: PcieCounts,
    /// Contexts of queue pairs.
    pub contexts: Ratio,
    /// Contexts of completion queues.
    pub cqs: Ratio,
    /// Memory keys.
    pub keys: Ratio,
    /// Lines of translations.
    pub translations: Ratio,
    /// Entries of long indirect keys that were walked.
    pub entries: u64,
    /// Send WQEs.
    pub wqes: Ratio,
    /// Jobs of the processing units.
    pub jobs: u64,
    /// How long they were busy, all together.
    pub busy: Ps,
    /// How many of them there are, for both directions together.
    pub units: u64,
}

/// The parts of one adapter that are busy while they work.
///
/// There are units that send and as many that receive. What a queue pair sends is worked on by one unit at a time and in order,
/// and so is what it receives; the units take whatever queue pair has work.
/// What misses a cache waits for a PCIe read, meanwhile the unit works on another job; that it has to take the job up again
/// costs `miss_ns` of it (`wqe_miss_ns` if it was a WQE).
#[derive(Clone, Debug)]
pub struct Units {
    senders: Calendar,
    receivers: Calendar,
    /// As many as were used, up to [`LANES`].
    lanes: Vec<Lane>,
    bus: Bus,
    /// Contexts that the units have at hand, and those in a slower store of the chip.
    contexts: Cache,
    stored_contexts: Cache,
    cqs: Cache,
    keys: Cache,
    translations: Cache,
    walks: Walks,
    wqes: WqeCache,
    /// What frames of Ethernet queues pass, by direction.
    frames_in: FramePipe,
    frames_out: FramePipe,
    /// What packets of queue pairs pass behind the units that send.
    shared: SharedStage,
    /// When each slot of the atomic engine is free.
    atomic_slots: Vec<Ps>,
    /// When the atomic that began last in each queue of the engine did.
    atomic_queues: Vec<Ps>,
    /// When each lock is free; as many as are there once one was used.
    locks: Vec<Ps>,
    buckets: usize,
    /// When the next response may write a part of a line, by the low 12 bits of its address.
    lines: [Ps; LINES],
    /// When the list of the registration that was loaded last is there, and what that takes beside its read.
    loaded: Ps,
    load: Ps,
    operand: Ps,
    miss: Ps,
    wqe_miss: Ps,
    line: Ps,
    write: Ps,
    piece: Ps,
    pause: Ps,
    send_pipeline: Ps,
    receive_wqe: Ps,
    cqe: Ps,
    context_bytes: usize,
    cq_bytes: usize,
    key_bytes: usize,
    jobs: u64,
    busy: Ps,
    count: u64,
    cost: PcieCost,
    notes: Notes,
}

impl Units {
    /// Fresh, idle units.
    pub fn new(timing: &Timing) -> Self {
        let (profile, cost) = (timing.profile(), timing.pcie());
        /// The most that locks and slots take of memory.
        const MANY: u64 = 1 << 16;
        let (cache, receive) = (&profile.cache, &profile.receive);
        Self {
            senders: Calendar::new(profile.units.count.get(), POOL_PAGE),
            receivers: Calendar::new(profile.units.count.get(), POOL_PAGE),
            lanes: Vec::new(),
            bus: Bus::new(timing),
            contexts: Cache::new(cache.context_entries.get()),
            stored_contexts: Cache::new(cache.contexts_on_chip.get()),
            cqs: Cache::new(cache.cq_entries.get()),
            keys: Cache::new(cache.key_entries.get()),
            translations: Cache::new(cache.translation_lines.get()),
            walks: Walks::default(),
            wqes: WqeCache::new(cache.wqe_blocks.get(), cache.wqe_ways.get()),
            frames_in: FramePipe::inward(timing),
            frames_out: FramePipe::outward(timing),
            shared: SharedStage::new(timing),
            atomic_slots: vec![Ps::ZERO; receive.atomic_slots.get().min(MANY) as usize],
            atomic_queues: vec![Ps::ZERO; receive.atomic_queues.get().min(MANY) as usize],
            locks: Vec::new(),
            buckets: receive.atomic_buckets.get().min(MANY) as usize,
            operand: cost.request(OPERAND)
                + cost.read_latency()
                + cost.completion(OPERAND)
                + receive.atomic_ns.0,
            lines: [Ps::ZERO; LINES],
            loaded: Ps::ZERO,
            load: cache.umr_ns.0,
            miss: profile.units.miss_ns.0,
            wqe_miss: profile.units.wqe_miss_ns.0,
            line: receive.line_ns.0,
            write: receive.write_ns.0,
            piece: receive.piece_ns.0,
            pause: profile.send.pause_ns.0,
            send_pipeline: profile.send.pipeline_ns.0,
            receive_wqe: receive.wqe_ns.0,
            cqe: profile.completion.cqe_ns.0,
            context_bytes: cache.context_bytes.get() as usize,
            cq_bytes: cache.cq_bytes.get() as usize,
            key_bytes: cache.key_bytes.get() as usize,
            jobs: 0,
            busy: Ps::ZERO,
            count: profile.units.count.get().saturating_mul(2),
            cost,
            notes: Notes::default(),
        }
    }

    /// The link to the host has another width or speed from now on.
    pub(crate) fn retrain(&mut self, timing: &Timing) {
        let cost = timing.pcie();
        self.operand = cost.request(OPERAND)
            + cost.read_latency()
            + cost.completion(OPERAND)
            + timing.profile().receive.atomic_ns.0;
        self.bus.retrain(cost);
        self.cost = cost;
    }

    /// From now on it is noted what the units do.
    pub(crate) fn start_notes(&mut self) {
        self.notes.start();
    }

    /// Takes what was noted since the last call.
    pub(crate) fn drain_notes(&mut self) -> impl Iterator<Item = Note> {
        self.notes.drain()
    }

    /// What the units did so far.
    pub fn counts(&self) -> Counts {
        Counts {
            pcie: self.bus.counts(),
            contexts: self.contexts.counts().into(),
            cqs: self.cqs.counts().into(),
            keys: self.keys.counts().into(),
            translations: self.translations.counts().into(),
            entries: self.walks.entries,
            wqes: self.wqes.counts().into(),
            jobs: self.jobs,
            busy: self.busy,
            units: self.count,
        }
    }

    #[inline]
    fn lane(&mut self, number: u32) -> &mut Lane {
        let place = number as usize % LANES;
        if place >= self.lanes.len() {
            self.make_lanes(place);
        }
        #[allow(clippy::indexing_slicing, reason = "there are more than that")]
        &mut self.lanes[place]
    }

    #[cold]
    fn make_lanes(&mut self, place: usize) {
        self.lanes.resize((place + 1).next_power_of_two(), Lane::default());
    }

    /// A unit that receives works on queue pair `number` for `service`, from `start` on at the earliest.
    #[inline]
    fn take(&mut self, now: Ps, start: Ps, number: u32, service: Ps) -> Ps {
        let start = start.max(self.lane(number).receives).max(self.walks.until);
        let done = self.receivers.admit(now, start, service);
        if let Some(lane) = self.lanes.get_mut(number as usize % LANES) {
            lane.receives = done;
        }
        self.jobs += 1;
        self.busy += service;
        done
    }

    /// The units of a direction.
    fn of(&mut self, way: Direction) -> &mut Calendar {
        match way {
            Direction::Sends => &mut self.senders,
            Direction::Receives => &mut self.receivers,
        }
    }

    /// Reads from the host for a queue: [`Bus::read`].
    #[inline(always)]
    fn read(&mut self, (now, start): (Ps, Ps), what: Object, queue: u32, address: u64, bytes: usize) -> Ps {
        let done = self.bus.read(now, start, address, bytes);
        self.notes.read(&self.cost, start, done, Access { what, queue, bytes });
        done
    }

    /// When the adapter has stores of `bytes` to a UAR page that the processor makes at `now`.
    pub fn store(&mut self, now: Ps, bytes: usize) -> Ps {
        self.bus.store(now, bytes)
    }

    /// When the context of queue pair `number` is there, and what that costs a unit. It is fetched from the slower store, or
    /// from the host.
    #[inline(always)]
    fn context(&mut self, now: Ps, number: u32) -> (Ps, Ps) {
        match self.contexts.touch(number.into()) {
            true => (now, Ps::ZERO),
            false => self.fetch_context(now, number),
        }
    }

    fn fetch_context(&mut self, now: Ps, number: u32) -> (Ps, Ps) {
        if self.stored_contexts.touch(number.into()) {
            return (now, self.miss);
        }
        let (address, bytes) = (context_address(number), self.context_bytes);
        let done = self.read((now, now), Object::Context, number, address, bytes);
        self.notes.miss(now, done, Event::ContextMiss { qpn: Qpn(number) });
        (done, self.miss)
    }

    /// Reads `blocks` basic blocks of the send queue of queue pair `number`. Returns when they are there.
    pub fn fetch(&mut self, now: Ps, number: u32, blocks: u16) -> Ps {
        self.read((now, now), Object::Wqe, number, ring_address(number), usize::from(blocks) * BLOCK)
    }

    /// If others have driven the WQE with that mark, of `blocks` basic blocks, out of the cache when a unit comes to queue
    /// pair `number`: the unit looks for it in vain, and it is read again. Returns when it is there.
    pub fn fetch_lost(&mut self, now: Ps, number: u32, mark: Mark, blocks: u16) -> Option<Ps> {
        let start = now.max(self.lane(number).sends);
        let then = self.senders.idle_from(now, start);
        self.wqes.lost(mark, now, then).then(|| {
            self.senders.admit(now, now, self.wqe_miss);
            let done = self.fetch(now, number, blocks);
            self.notes.miss(now, done, Event::WqeMiss { qpn: Qpn(number) });
            done
        })
    }

    /// When the link to the host has taken all stores of the processor.
    pub const fn stores_taken(&self) -> Ps {
        self.bus.stores_taken()
    }

    /// A WQE of `blocks` basic blocks from `index` on came with its doorbell. Returns its mark in the cache; `None`: the
    /// context of the queue pair is not there, and the WQE is dropped until it is.
    pub fn cache_from_doorbell(&mut self, now: Ps, number: u32, index: u16, blocks: u16) -> Option<Mark> {
        self.contexts.holds(number.into()).then(|| self.wqes.put(now, number, index, blocks))
    }

    /// How many basic blocks have come into the WQE cache.
    pub const fn wqes_taken(&self) -> u64 {
        self.wqes.taken()
    }

    /// A WQE of `blocks` basic blocks from an index on of a queue pair is executed, and needed once more. It was fetched when
    /// `came` basic blocks had come into the cache ([`Units::wqes_taken`]). Returns its mark.
    pub fn keep(&mut self, now: Ps, (number, index): (u32, u16), blocks: u16, came: u64) -> Mark {
        self.wqes.keep(now, (number, index), blocks, came)
    }

    /// A processing unit sends a packet of queue pair `number`, or executes a WQE without packets, in `service`. Returns when
    /// the queue pair may go on.
    pub fn send(&mut self, now: Ps, number: u32, service: Ps) -> Ps {
        let (start, penalty) = self.context(now, number);
        let start = start.max(self.lane(number).sends).max(self.walks.until);
        let done = self.senders.admit(now, start, service + penalty);
        self.lane(number).sends = done;
        self.jobs += 1;
        self.busy += service + penalty;
        done
    }

    /// When a unit that sends would begin a job that is booked now.
    pub fn idle_from(&mut self, now: Ps) -> Ps {
        self.senders.idle_from(now, now).max(self.walks.until)
    }

    /// Between two WQEs a queue pair gives way for so long.
    pub const fn pause(&self) -> Ps {
        self.pause
    }

    /// Reads the data of a packet of queue pair `number`, from `start` on. Returns when it is there. What several ranges
    /// need is read side by side.
    pub fn gather(&mut self, now: Ps, number: u32, start: Ps, spans: impl Iterator<Item = Place>) -> Ps {
        let mut done = start;
        for span in spans {
            let from = self.translate(Direction::Sends, now, number, (start, &span));
            done = done.max(self.read((now, from), Object::Data, number, span.va, span.len));
        }
        done
    }

    /// When a registration of queue pair `number` has loaded its list of translations, which it asks for from `start` on: all of
    /// the adapter's load theirs one after the other.
    pub fn load(&mut self, now: Ps, number: u32, start: Ps, list: impl Iterator<Item = Place>) -> Ps {
        let begun = start.max(self.loaded);
        self.loaded = self.gather(now, number, begun, list) + self.load;
        self.loaded
    }

    /// When the bus address of a range is known that is asked for at `start`.
    fn translate(&mut self, way: Direction, now: Ps, number: u32, (start, span): (Ps, &Place)) -> Ps {
        let miss = self.miss;
        let mut known = start;
        let (qpn, key) = (Qpn(number), span.key);
        if !self.keys.touch(key.into()) {
            known = self.read((now, start), Object::Key, number, key_address(key), self.key_bytes);
            self.notes.miss(start, known, Event::KeyMiss { qpn, key });
            self.of(way).admit(now, start, miss);
        }
        let Some([first, last]) = series::lines_of(span) else { return known };
        let mut all = known;
        let mut look_up = |tag| {
            if !self.translations.touch(tag) {
                let there = self.read((now, known), Object::Translation, number, line_address(tag), LINE);
                self.notes.miss(known, there, Event::TranslationMiss { qpn, key });
                all = all.max(there);
                self.of(way).admit(now, start, miss);
            }
        };
        look_up(first);
        if last != first {
            look_up(last);
        }
        all
    }

    /// When a frame that arrives is parsed, and known where it goes.
    pub fn frame_in(&mut self, now: Ps, lookups: Lookups) -> Ps {
        self.frames_in.pass(now, now, lookups)
    }

    /// When a frame that is sent, and there at `ready`, is finished and has passed the flow tables.
    pub fn frame_out(&mut self, now: Ps, ready: Ps, lookups: Lookups) -> Ps {
        self.frames_out.pass(now, ready, lookups)
    }

    /// When a packet of queue pair `number` leaves that is ready at `ready`: packets of a queue pair keep their order.
    #[inline]
    pub fn depart(&mut self, number: u32, ready: Ps) -> Ps {
        let ready = ready + self.send_pipeline;
        let lane = self.lane(number);
        lane.departs = lane.departs.max(ready);
        lane.departs
    }

    /// The same for an answer: answers keep their order among themselves.
    pub fn answer_departs(&mut self, number: u32, ready: Ps) -> Ps {
        let ready = ready + self.send_pipeline;
        let lane = self.lane(number);
        lane.answers = lane.answers.max(ready);
        lane.answers
    }

    /// A packet for queue pair `number` arrives that keeps a processing unit busy for `service`. Returns when what it does
    /// is done: what it writes is visible to the host then.
    pub fn receive(&mut self, now: Ps, number: u32, service: Ps, inbound: Inbound) -> Ps {
        let (mut start, mut penalty) = self.context(now, number);
        start = start.max(inbound.after);
        if let Some(mark) = inbound.wqe {
            // What is before it in its queue pair does not keep the unit from looking for it.
            let asked = self.receivers.idle_from(now, start);
            if !self.wqes.holds(mark, now, asked) {
                start = self.read((now, asked), Object::Wqe, number, ring_address(number), BLOCK);
                self.notes.miss(asked, start, Event::WqeMiss { qpn: Qpn(number) });
                penalty += self.wqe_miss;
            }
        }
        let worked = self.take(now, start, number, service + penalty);
        let mut done = worked;
        // What is written or handed on beside data: what is next for the queue pair waits, what this packet does is done.
        if inbound.hands_on || inbound.completes && inbound.bytes == 0 && !inbound.takes_receive {
            self.take(now, worked, number, self.write);
        }
        if self.has_further_pieces(inbound.bytes) {
            self.further_pieces(now, worked, inbound.bytes);
        }
        if let Some(span) = inbound.to {
            done = self.translate(Direction::Receives, now, number, (worked, &span));
        }
        if inbound.bytes > 0 {
            let at = inbound.to.map_or(ring_address(number), |s| s.va);
            let part = inbound.wqe.is_some() && inbound.bytes < LINE;
            let asked = if part { self.part_of_line(done, at) } else { done };
            done = self.bus.write(now, asked, at, inbound.bytes);
            let access = Access { what: Object::Data, queue: number, bytes: inbound.bytes };
            self.notes.write(&self.cost, asked, done, access);
        }
        if inbound.takes_receive {
            done += self.receive_wqe;
        }
        if inbound.completes {
            done += self.cqe;
            if inbound.bytes == 0 {
                done += self.bus.write_latency();
            }
        }
        let lane = self.lane(number);
        lane.handled = lane.handled.max(done);
        lane.handled
    }

    /// When the packet for queue pair `number` that was received last is done.
    #[must_use]
    pub fn handled(&self, number: u32) -> Ps {
        self.lanes.get(number as usize % LANES).map_or(Ps::ZERO, |lane| lane.handled)
    }

    /// Whether payload of so many bytes takes time of units beside that of its packet.
    #[inline]
    const fn has_further_pieces(&self, bytes: usize) -> bool {
        self.piece.0 > 0 && self.cost.writes(bytes) > 1
    }

    /// Payload that does not fit into one write of PCIe takes time of any unit for each further one: it holds up neither the
    /// queue pair nor what this packet does.
    fn further_pieces(&mut self, now: Ps, start: Ps, bytes: usize) {
        for _ in 1..self.cost.writes(bytes) {
            self.receivers.admit(now, start, self.piece);
            self.busy += self.piece;
        }
    }

    /// When a response may write a part of the line at `address`: one after the other do where the low 12 bits are those of
    /// the same line.
    fn part_of_line(&mut self, ready: Ps, address: u64) -> Ps {
        let Some(free) = self.lines.get_mut(address as usize / LINE % LINES) else { return ready };
        let begun = ready.max(*free);
        *free = begun + self.line;
        begun
    }

    /// A completion of `bytes` is written to completion queue `number`. Its place in time is that of what it completes;
    /// it takes room on the link.
    pub fn complete(&mut self, now: Ps, number: u32, bytes: usize) {
        if !self.cqs.touch(number.into()) {
            let there = self.read((now, now), Object::CqContext, number, cq_address(number), self.cq_bytes);
            self.notes.miss(now, there, Event::CqContextMiss { cqn: Cqn(number) });
            self.receivers.admit(now, now, self.miss);
        }
        self.bus.write(now, now, cq_address(number), bytes);
        let asked = now.since(self.cost.idle_write(bytes));
        self.notes.write(&self.cost, asked, now, Access { what: Object::Cqe, queue: number, bytes });
    }

    /// From the end of an operation without packets that come back until the host sees its completion.
    pub fn completion_latency(&self) -> Ps {
        self.cqe + self.bus.write_latency()
    }

    /// When an atomic on `address` that comes for queue pair `number` at `now` is done. One with the same lock goes first;
    /// while it waits, it keeps its slot of the engine, and what is behind it in its queue waits, too.
    pub fn atomic(&mut self, now: Ps, number: u32, address: u64) -> Ps {
        if self.locks.is_empty() {
            self.locks = vec![Ps::ZERO; self.buckets.max(1)];
        }
        let bucket = (address % self.locks.len() as u64) as usize;
        let queue = number as usize % self.atomic_queues.len().max(1);
        let (Some(slot), Some(lock), Some(before)) = (
            self.atomic_slots.iter_mut().min(),
            self.locks.get_mut(bucket),
            self.atomic_queues.get_mut(queue),
        ) else {
            return now;
        };
        let begun = now.max(*slot).max(*lock).max(*before);
        let done = begun + self.operand;
        (*slot, *lock, *before) = (done, done, begun);
        self.bus.atomic(now, begun);
        let access = Access { what: Object::Operand, queue: number, bytes: OPERAND };
        self.notes.read(&self.cost, now, begun + self.cost.idle_read(OPERAND), access);
        self.notes.write(&self.cost, done, done + self.cost.idle_write(OPERAND), access);
        done
    }
}

/// Units that send, or that receive.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Sends,
    Receives,
}

/// What a packet that arrives writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inbound {
    /// No unit can begin with it before that.
    pub after: Ps,
    /// Bytes of payload.
    pub bytes: usize,
    /// Where they go, if that takes a translation that is not part of the queue pair's own.
    pub to: Option<Place>,
    /// It takes a receive request.
    pub takes_receive: bool,
    /// It leads to a completion.
    pub completes: bool,
    /// It asks for a response: that is handed to the units that send.
    pub hands_on: bool,
    /// What the WQE cache knows the WQE by that it answers, if that is needed again.
    pub wqe: Option<Mark>,
}

/// Places in host memory that only the IOMMU's cache tells apart: a page for each object.
const fn context_address(number: u32) -> u64 {
    1 << 60 | (number as u64) << 8
}

const fn cq_address(number: u32) -> u64 {
    2 << 60 | (number as u64) << 12
}

const fn ring_address(number: u32) -> u64 {
    3 << 60 | (number as u64) << 12
}

const fn key_address(number: u32) -> u64 {
    4 << 60 | (number as u64) << 6
}

const fn line_address(tag: u64) -> u64 {
    5 << 60 | (tag << 6) & ((1 << 60) - 1)
}

impl Rebase for Lane {
    fn rebase(&mut self, by: Ps) {
        let Self { sends, receives, departs, answers, handled } = self;
        sends.rebase(by);
        receives.rebase(by);
        departs.rebase(by);
        answers.rebase(by);
        handled.rebase(by);
    }
}

impl Rebase for Units {
    fn rebase(&mut self, by: Ps) {
        let Self {
            senders,
            receivers,
            lanes,
            bus,
            walks,
            wqes,
            frames_in,
            frames_out,
            shared,
            atomic_slots,
            atomic_queues,
            locks,
            lines,
            loaded,
            notes,
            load: _,
            contexts: _,
            stored_contexts: _,
            cqs: _,
            keys: _,
            translations: _,
            buckets: _,
            operand: _,
            miss: _,
            wqe_miss: _,
            line: _,
            write: _,
            piece: _,
            pause: _,
            send_pipeline: _,
            receive_wqe: _,
            cqe: _,
            context_bytes: _,
            cq_bytes: _,
            key_bytes: _,
            jobs: _,
            busy: _,
            count: _,
            cost: _,
        } = self;
        senders.rebase(by);
        receivers.rebase(by);
        lanes.rebase(by);
        bus.rebase(by);
        walks.rebase(by);
        wqes.rebase(by);
        frames_in.rebase(by);
        frames_out.rebase(by);
        shared.rebase(by);
        atomic_slots.rebase(by);
        atomic_queues.rebase(by);
        locks.rebase(by);
        lines.rebase(by);
        loaded.rebase(by);
        notes.rebase(by);
    }
}
