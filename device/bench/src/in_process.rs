//! `hca-driver` on the model, in one process and in virtual time.
//!
//! A [`Simulation`] owns a world; each adapter in it gets a [`ModelBus`]. Time does not pass while the
//! driver runs and jumps to the model's next event when the driver waits, so a run takes no longer than
//! the work in it and gives the same trace each time. Nobody has to look at every instant: a driver's wait ends
//! when there can be something new for it, and [`ModelMemory::watch`] says what the adapter wrote.
//!
//! Memory answers at once, or, of a simulation made within [`deferring`], at a later time and in any order.

use hca_driver::arena::Arena;
use hca_driver::{Bus, Dma};
use hca_model::dma::copy_bytes;
use hca_model::{Answer, Asked, DeferredReads, DmaError, Effect, FunctionRef, GuestMemory, HcaId, Ps, World};
use hca_trace::Observer;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a host's DMA window begins: above 4 GiB, so that high address words matter.
const WINDOW: u64 = 0x2_0000_0000;
/// How far the time advances when the model has no events.
const IDLE_STEP: Ps = Ps::from_us(1);
/// So many moments may pass in one wait, though nothing that concerns the driver happens in them.
const PATIENCE: u32 = 64;
/// Bytes that are copied at a time.
const PIECE: usize = 4096;
/// With no event due for so long, memory that answers later has answered everything.
const QUIET: Ps = Ps::from_us(5);
/// MSI-X vectors of an adapter.
const VECTORS: u16 = 64;

thread_local! {
    static EPOCHS: RefCell<Option<Epochs>> = const { RefCell::new(None) };
    static DEFERRING: Cell<Option<Deferring>> = const { Cell::new(None) };
}

/// What of the hosts' memory answers later.
#[derive(Clone, Copy)]
struct Deferring {
    seed: u64,
    /// What is from this byte on.
    first: usize,
}

/// Runs `f` as [`deferring`] does, but that the first `first` bytes of each memory answer at once.
pub fn deferring_from<T>(seed: u64, first: usize, f: impl FnOnce() -> T) -> T {
    defer(Deferring { seed, first }, f)
}

/// Runs `f`, in which the memory of each simulation that this thread makes answers each read later: after 0 to some moments
/// in which something happens, in any order, as random numbers from `seed` have it. Sometimes it takes no further reads
/// or writes for a while. Time does not jump to a protocol timer while a read waits.
pub fn deferring<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    defer(Deferring { seed, first: 0 }, f)
}

fn defer<T>(how: Deferring, f: impl FnOnce() -> T) -> T {
    let before = DEFERRING.replace(Some(how));
    let done = f();
    DEFERRING.set(before);
    done
}

/// How simulations pass from one start of time to the next, and what came of them.
struct Epochs {
    /// One in so many waits may move the start.
    every: u32,
    /// It does.
    moves: bool,
    waits: u32,
    /// Hash and length of the traces.
    hashes: Vec<(u64, u64)>,
}

/// Time that passes before a simulation within [`epochs`] begins, and that is kept when the start of time moves: the longest interval
/// that something measures there.
const KEPT: Ps = Ps::from_ms(600_000);

/// Runs `f`, in which the world of each simulation that this thread makes begins some minutes after the start of time, and moves that start
/// in one of `every` waits ([`World::rebase`]); without `moves` by nothing, which cuts trains all the same. Returns the hashes and
/// lengths of the worlds' traces: they are the same with and without.
pub fn epochs(every: u32, moves: bool, f: impl FnOnce()) -> Vec<(u64, u64)> {
    let mine = Epochs { every, moves, waits: 0, hashes: Vec::new() };
    let before = EPOCHS.replace(Some(mine));
    f();
    EPOCHS.replace(before).map_or(Vec::new(), |epochs| epochs.hashes)
}

/// A world and its virtual time.
#[derive(Clone)]
pub struct Simulation(Rc<RefCell<Inner>>);

struct Inner {
    world: World,
    now: Ps,
    /// By so much the start of time was moved.
    moved: Ps,
    /// An adapter wrote to its host's memory or fired a vector since the last wait.
    news: Arc<AtomicBool>,
    /// Since the last wait somebody looked at something else than memory: at that, each moment can be new.
    looked: bool,
    fired: HashMap<(FunctionRef, u16), u64>,
    observer: Option<Observer>,
    /// Why the observer gave up.
    unseen: Option<anyhow::Error>,
    /// Of hosts made from now on: memory answers later.
    deferring: Option<Deferring>,
    /// Memory that answers later.
    later: Vec<(FunctionRef, Arc<Window>)>,
}

impl Simulation {
    /// Time starts at zero.
    pub fn new(mut world: World) -> Self {
        let mut now = Ps::ZERO;
        if EPOCHS.with_borrow(Option::is_some) {
            now = KEPT;
            world.hash_trace();
            world.advance(now);
        }
        Self(Rc::new(RefCell::new(Inner {
            world,
            now,
            moved: Ps::ZERO,
            news: Arc::default(),
            looked: false,
            fired: HashMap::new(),
            observer: None,
            unseen: None,
            deferring: DEFERRING.get(),
            later: Vec::new(),
        })))
    }

    /// Looks on from now, as `options` ask for.
    ///
    /// # Errors
    /// A file can't be made, or there is no adapter of a name that was given.
    pub fn observe(&self, options: &hca_trace::Options) -> anyhow::Result<()> {
        let inner = &mut *self.0.borrow_mut();
        let observer = Observer::new(options, &mut inner.world)?;
        // Who wants nothing does not need to be shown each moment.
        inner.observer = Some(observer).filter(|_| options.any());
        Ok(())
    }

    /// Ends the trace and capture files. Returns the lines to be printed about them.
    ///
    /// # Errors
    /// Writing failed.
    pub fn end_observing(&self) -> anyhow::Result<Vec<String>> {
        let inner = &mut *self.0.borrow_mut();
        if let Some(why) = inner.unseen.take() {
            return Err(why);
        }
        inner.observer.take().map_or(Ok(Vec::new()), |observer| observer.finish(&mut inner.world))
    }

    /// A bus to a function of an adapter, with `memory` bytes of DMA memory attached.
    pub fn bus(&self, function: impl Into<FunctionRef>, memory: usize) -> ModelBus {
        let function = function.into();
        let inner = &mut *self.0.borrow_mut();
        let later = inner.deferring.map(|Deferring { seed, .. }| {
            let random = (seed ^ (function.hca.0 as u64 + 1) << 32) | 1;
            Mutex::new(Later { random, ..Later::default() })
        });
        let first_later =
            inner.deferring.map_or(u64::MAX, |Deferring { first, .. }| WINDOW.saturating_add(first as u64));
        let window = Arc::new(Window {
            host: Mutex::new(Host { bytes: vec![0; memory], unmapped: 0..0, watches: Watches::default() }),
            arena: Mutex::new(Arena::new(memory)),
            used: AtomicUsize::new(0),
            news: inner.news.clone(),
            later,
            first_later,
        });
        inner.later.retain(|(other, _)| *other != function);
        if window.later.is_some() {
            inner.later.push((function, window.clone()));
        }
        inner.world.attach(function, window.clone());
        ModelBus { simulation: self.clone(), function, window }
    }

    /// Model time.
    pub fn now(&self) -> Ps {
        let inner = &mut *self.0.borrow_mut();
        inner.looked = true;
        inner.now + inner.moved
    }

    /// Lets everything happen that is due within `time`.
    pub fn run(&self, time: Ps) {
        let inner = &mut *self.0.borrow_mut();
        inner.flush_stores();
        inner.advance(inner.now + time);
        inner.take_effects();
    }

    /// How often a vector of a function fired so far.
    pub fn interrupts(&self, function: impl Into<FunctionRef>, vector: u16) -> u64 {
        let inner = &mut *self.0.borrow_mut();
        inner.take_effects();
        inner.looked = true;
        inner.fired.get(&(function.into(), vector)).copied().unwrap_or(0)
    }

    /// Looks into the world, or changes it.
    pub fn world<T>(&self, f: impl FnOnce(&mut World, Ps) -> T) -> T {
        let inner = &mut *self.0.borrow_mut();
        inner.looked = true;
        f(&mut inner.world, inner.now)
    }

    /// Moves the start of time if that is due, as a server does ([`World::rebase_if_due`]). Times from [`Simulation::now`] go on; those of the world
    /// are earlier by what is returned.
    pub fn move_start(&self) -> Option<Ps> {
        let inner = &mut *self.0.borrow_mut();
        let by = inner.world.rebase_if_due(inner.now)?;
        inner.now = inner.now.since(by);
        inner.moved += by;
        Some(by)
    }

    /// When the next event of the model is due.
    pub fn next_event(&self) -> Option<Ps> {
        let inner = &mut *self.0.borrow_mut();
        inner.looked = true;
        inner.world.next_event().map(|next| next + inner.moved)
    }

    /// Lets everything happen that is due at or before `time`, and makes that the time.
    pub fn advance_to(&self, time: Ps) {
        let inner = &mut *self.0.borrow_mut();
        inner.advance(inner.now.max(time.since(inner.moved)));
        inner.take_effects();
    }

    /// Flushes the processor's write-combining buffers for a function: a doorbell or a BlueFlame copy is complete.
    pub fn flush_stores(&self, function: impl Into<FunctionRef>) {
        let function = function.into();
        self.world(|world, now| {
            if world.combining(function).is_some() {
                world.flush_stores(now, function);
            }
        });
    }

    /// Advances the time until there can be something new for the driver: the next moment at which an adapter writes or
    /// interrupts. A driver that looks at more than that, such as registers, sees every event.
    fn step(&self) {
        let inner = &mut *self.0.borrow_mut();
        inner.flush_stores();
        inner.rebase();
        inner.news.store(false, Ordering::Relaxed);
        let moments = if std::mem::take(&mut inner.looked) { 1 } else { PATIENCE };
        let news = inner.news.clone();
        let enough = || news.load(Ordering::Relaxed);
        let mut left = moments;
        while left > 0 {
            // An observer sees each moment.
            let most = if inner.observer.is_some() || !inner.later.is_empty() { 1 } else { left };
            while inner.is_quiet() && inner.answer(true) {}
            let passed = inner.world.advance_while(inner.now, most, enough);
            inner.now = inner.now.max(if passed > 0 { inner.world.now() } else { inner.now + IDLE_STEP });
            if passed == 0 {
                inner.world.advance(inner.now);
            }
            inner.answer(false);
            inner.take_effects();
            if passed == 0 || news.load(Ordering::Relaxed) {
                return;
            }
            left -= passed;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let hash = self.world.trace().map(|trace| (trace.hash(), trace.count()));
        EPOCHS.with_borrow_mut(|epochs| epochs.iter_mut().for_each(|epochs| epochs.hashes.extend(hash)));
        for (hca, _) in &self.later {
            let unforeseen = self.world.unforeseen_reads(*hca);
            assert!(unforeseen == 0 || std::thread::panicking(), "{unforeseen} reads were not planned");
        }
    }
}

impl Inner {
    /// The start of time moves, if it is to.
    fn rebase(&mut self) {
        let moves = EPOCHS.with_borrow_mut(|epochs| {
            let Epochs { every, waits, moves, .. } = epochs.as_mut()?;
            *waits = waits.wrapping_add(1);
            waits.is_multiple_of(*every).then_some(*moves)
        });
        if let Some(moves) = moves {
            // The world may be behind what the driver's time is.
            let by = self.world.rebase(if moves { self.world.now().since(KEPT) } else { Ps::ZERO });
            self.now = self.now.since(by);
            self.moved += by;
        }
    }

    /// The time advances: no store continues the last ones.
    fn flush_stores(&mut self) {
        loop {
            let waits = self.world.functions().find(|function| self.world.combining(*function).is_some());
            let Some(function) = waits else { return };
            self.world.flush_stores(self.now, function);
        }
    }

    /// Lets everything happen that is due at or before `until`.
    fn advance(&mut self, until: Ps) {
        while !self.later.is_empty() {
            let quiet = self.is_quiet();
            if quiet && self.answer(true) {
                continue;
            }
            let Some(next) = self.world.next_event().filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            self.world.advance(next);
            self.answer(false);
        }
        self.now = until;
        self.world.advance(until);
    }

    /// Whether nothing is due soon: memory answers before protocol timers run out.
    fn is_quiet(&self) -> bool {
        !self.later.is_empty() && self.world.next_event().is_none_or(|next| next > self.now + QUIET)
    }

    /// Answers some of the reads that wait, or all of them. Returns whether there were any.
    fn answer(&mut self, all: bool) -> bool {
        let mut answered = false;
        for (hca, window) in &self.later {
            answered |= window.answer(all);
            self.world.memory_changed(self.now, *hca);
        }
        answered
    }

    fn take_effects(&mut self) {
        for effect in self.world.drain() {
            let Effect::Msix { hca, function, vector } = effect;
            self.news.store(true, Ordering::Relaxed);
            *self.fired.entry((FunctionRef { hca, function }, vector)).or_default() += 1;
        }
        if let Some(observer) = &mut self.observer
            && let Err(why) = observer.take(&mut self.world)
        {
            (self.unseen, self.observer) = (Some(why), None);
        }
    }
}

/// One function of an adapter of a [`Simulation`], and its host's memory.
#[derive(Clone)]
pub struct ModelBus {
    simulation: Simulation,
    function: FunctionRef,
    window: Arc<Window>,
}

impl ModelBus {
    /// The simulation the adapter is in.
    pub fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    /// Which adapter this is.
    pub fn hca(&self) -> HcaId {
        self.function.hca
    }

    /// The tokens of watched memory that the adapter wrote since the last call, each once.
    pub fn touched(&self) -> Vec<usize> {
        std::mem::take(&mut self.window.host().watches.touched)
    }

    /// Reads of `memory` are not answered until this is said of other memory, or of none. It needs memory that answers later
    /// ([`deferring`]).
    pub fn withhold(&self, memory: Option<&ModelMemory>) {
        if let Some(later) = &mut self.window.later() {
            later.withheld = memory.map(ModelMemory::range).unwrap_or_default();
        }
    }

    /// Takes `memory` away from the adapter: accesses fail.
    pub fn unmap(&self, memory: &ModelMemory) {
        let Range { start, end } = memory.range();
        self.unmap_at(start, end - start);
    }

    /// Takes `len` bytes at a bus address away from the adapter: accesses fail.
    pub fn unmap_at(&self, at: u64, len: u64) {
        let inner = &mut *self.simulation.0.borrow_mut();
        inner.world.fetch_payloads(self.function.hca);
        self.window.host().unmapped = at..at.saturating_add(len);
        inner.world.unmapped(self.function, at, len);
        self.window.answer(true);
        inner.world.memory_changed(inner.now, self.function);
    }

    /// What the host's processor has at a bus address: `data.len()` bytes, as far as the memory goes.
    pub fn peek(&self, at: u64, data: &mut [u8]) {
        if let Ok(bytes) = self.window.host().piece(at, data.len()) {
            data.copy_from_slice(bytes);
        }
    }

    /// The host's processor writes at a bus address, as far as the memory goes.
    pub fn poke(&self, at: u64, data: &[u8]) {
        if let Ok(bytes) = self.window.host().piece(at, data.len()) {
            bytes.copy_from_slice(data);
        }
    }

    /// Bytes of DMA memory that are free.
    pub fn free_memory(&self) -> usize {
        self.window.arena.lock().unwrap_or_else(PoisonError::into_inner).available()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let inner = &mut *self.simulation.0.borrow_mut();
        inner.world.mmio_write(inner.now, self.function, offset, data);
    }
}

impl Bus for ModelBus {
    type Dma = ModelMemory;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        let function = self.function;
        self.simulation.world(|world, now| world.mmio_read(now, function, offset, &mut word));
        u32::from_be_bytes(word)
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        self.write(offset, &value.to_be_bytes());
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.write(offset, &value.to_be_bytes());
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<ModelMemory> {
        let start = self.window.arena.lock().unwrap_or_else(PoisonError::into_inner).alloc(size, align)?;
        let mut memory = ModelMemory { window: self.window.clone(), start, size };
        // What was never used is zero already: large memory costs nothing before it is touched.
        let used =
            self.window.used.fetch_max(start + size, Ordering::Relaxed).saturating_sub(start).min(size);
        memory.write(0, &vec![0; used]);
        Some(memory)
    }

    fn wait(&mut self, _vector: Option<u16>) {
        self.simulation.step();
    }

    fn vectors(&self) -> u16 {
        VECTORS
    }
}

struct Window {
    host: Mutex<Host>,
    arena: Mutex<Arena>,
    /// End of the highest allocation so far.
    used: AtomicUsize,
    /// See [`Inner::news`].
    news: Arc<AtomicBool>,
    /// Reads are answered later.
    later: Option<Mutex<Later>>,
    /// From this bus address on.
    first_later: u64,
}

/// Reads that are answered later.
#[derive(Default)]
struct Later {
    /// Something was asked.
    used: bool,
    random: u64,
    /// Ticket, address, bytes.
    asked: Vec<(u64, u64, usize)>,
    /// Bus addresses whose reads are not answered.
    withheld: Range<u64>,
    answers: VecDeque<Answer>,
    /// No further writes are taken for now.
    full: bool,
}

impl Later {
    /// True once in `n` times.
    fn once_in(&mut self, n: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32).is_multiple_of(n)
    }
}

/// What an access needs to hold.
struct Host {
    bytes: Vec<u8>,
    /// Bus addresses that were taken away.
    unmapped: Range<u64>,
    watches: Watches,
}

/// Memory whose owner is notified when the adapter writes to it.
#[derive(Default)]
struct Watches {
    /// By first address: the address after the last, and whose it is. Ranges don't overlap.
    ranges: BTreeMap<u64, (u64, usize)>,
    touched: Vec<usize>,
}

impl Watches {
    /// The adapter wrote here. Returns whether that is watched.
    fn note(&mut self, iova: u64, len: usize) -> bool {
        let Some(token) = self.of(iova, len) else { return false };
        if !self.touched.contains(&token) {
            self.touched.push(token);
        }
        true
    }

    /// Whose the last watched bytes here are.
    fn of(&self, iova: u64, len: usize) -> Option<usize> {
        let (_, &(end, token)) = self.ranges.range(..iova + len.max(1) as u64).next_back()?;
        (iova < end).then_some(token)
    }
}

fn overlap(iova: u64, len: usize, range: &Range<u64>) -> bool {
    iova < range.end && range.start < iova + len as u64
}

impl Host {
    /// What the adapter accesses.
    fn mapped(&mut self, iova: u64, len: usize) -> Result<&mut [u8], DmaError> {
        match overlap(iova, len, &self.unmapped) {
            true => Err(DmaError { iova, len }),
            false => self.piece(iova, len),
        }
    }

    fn range(&self, iova: u64, len: usize) -> Result<Range<usize>, DmaError> {
        let start = iova.checked_sub(WINDOW).and_then(|s| usize::try_from(s).ok());
        let range = start.and_then(|s| Some(s..s.checked_add(len)?));
        range.filter(|r| r.end <= self.bytes.len()).ok_or(DmaError { iova, len })
    }

    fn piece(&mut self, iova: u64, len: usize) -> Result<&mut [u8], DmaError> {
        let range = self.range(iova, len)?;
        self.bytes.get_mut(range).ok_or(DmaError { iova, len })
    }
}

impl Window {
    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    /// Whether it answers at once there.
    fn is_before_later(&self, iova: u64, len: usize) -> bool {
        iova.checked_add(len as u64).is_some_and(|end| end <= self.first_later)
    }

    fn later(&self) -> Option<MutexGuard<'_, Later>> {
        self.later.as_ref().map(|later| later.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers some of the reads that wait, or all of them. Returns whether there were any.
    fn answer(&self, all: bool) -> bool {
        let Some(later) = &mut self.later() else { return false };
        let asked = std::mem::take(&mut later.asked);
        let (mut waited, was_full) = (false, later.full);
        for (ticket, iova, len) in asked {
            let data = self.host().mapped(iova, len).map(|bytes| bytes.to_vec());
            let withheld = data.is_ok() && overlap(iova, len, &later.withheld);
            waited |= !withheld;
            if withheld || !all && later.once_in(2) {
                later.asked.push((ticket, iova, len));
                continue;
            }
            let answer = Answer::Read { ticket, data };
            match later.once_in(2) {
                true => later.answers.push_front(answer),
                false => later.answers.push_back(answer),
            }
        }
        later.full = !all && later.used && later.once_in(8);
        waited || was_full
    }
}

impl DeferredReads for Window {
    fn answers_at_once(&self, iova: u64, len: usize) -> bool {
        self.is_before_later(iova, len) || self.host().mapped(iova, len).is_err()
    }
    fn ask(&self, ticket: u64, iova: u64, len: usize) -> Asked {
        let Some(later) = &mut self.later() else { return Asked::Failed(DmaError { iova, len }) };
        later.used = true;
        if !later.asked.is_empty() && later.once_in(8) {
            return Asked::Busy;
        }
        later.asked.push((ticket, iova, len));
        Asked::OnItsWay
    }
    fn forget(&self) {
        if let Some(later) = &mut self.later() {
            later.asked.clear();
            later.answers.clear();
        }
    }
    fn next_answer(&self) -> Option<Answer> {
        self.later()?.answers.pop_front()
    }
    fn takes_writes(&self) -> bool {
        self.later().is_none_or(|later| !later.full)
    }
}

impl GuestMemory for Window {
    fn deferred(&self) -> Option<&dyn DeferredReads> {
        self.later.as_ref().map(|_| self as &dyn DeferredReads)
    }
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        buf.copy_from_slice(self.host().mapped(iova, buf.len())?);
        Ok(())
    }
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let mut host = self.host();
        host.mapped(iova, data.len())?.copy_from_slice(data);
        host.watches.note(iova, data.len());
        self.news.store(true, Ordering::Relaxed);
        Ok(())
    }
    fn is_mapped(&self, iova: u64, len: usize) -> bool {
        self.is_before_later(iova, len) && self.host().mapped(iova, len).is_ok()
    }
    fn is_unwatched(&self, iova: u64, len: usize) -> bool {
        let mut host = self.host();
        self.is_before_later(iova, len)
            && host.mapped(iova, len).is_ok()
            && host.watches.of(iova, len).is_none()
    }
    fn copy_from(&self, iova: u64, source: &dyn GuestMemory, from: u64, len: usize) -> Result<(), DmaError> {
        let Some(other) = source.as_any().and_then(|any| any.downcast_ref::<Window>()) else {
            return copy_bytes(self, iova, source, from, len);
        };
        let mut host = self.host();
        if std::ptr::eq(self, other) {
            host.mapped(iova, len)?;
            host.mapped(from, len)?;
            let (to, from) = (host.range(iova, len)?, host.range(from, len)?);
            host.bytes.copy_within(from, to.start);
        } else {
            let (mut source, to) = (other.host(), host.mapped(iova, len)?);
            // For more the C library has an instruction of the processor that tools count once for each byte.
            let from = source.mapped(from, len)?.chunks(PIECE);
            to.chunks_mut(PIECE).zip(from).for_each(|(to, from)| to.copy_from_slice(from));
        }
        // The middle of a message, before its last packet: that is news for who watches it only.
        if host.watches.note(iova, len) {
            self.news.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// Memory of a host.
pub struct ModelMemory {
    window: Arc<Window>,
    start: usize,
    size: usize,
}

impl ModelMemory {
    /// From now on [`ModelBus::touched`] returns `token` when the adapter wrote here.
    pub fn watch(&self, token: usize) {
        let (start, end) = (self.bus_address(), self.bus_address() + self.size as u64);
        self.window.host().watches.ranges.insert(start, (end, token));
    }

    fn range(&self) -> Range<u64> {
        self.bus_address()..self.bus_address() + self.size as u64
    }

    fn with<T>(&self, offset: usize, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.size), "access beyond the allocation");
        let at = WINDOW + (self.start + offset) as u64;
        let mut host = self.window.host();
        f(host.piece(at, len).unwrap_or_else(|e| unreachable!("allocations lie in the window: {e}")))
    }
}

impl Dma for ModelMemory {
    fn bus_address(&self) -> u64 {
        WINDOW + self.start as u64
    }
    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.with(offset, buf.len(), |bytes| buf.copy_from_slice(bytes));
    }
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.with(offset, data.len(), |bytes| bytes.copy_from_slice(data));
    }
    fn load32(&self, offset: usize) -> u32 {
        self.with(offset, 4, |bytes| hca_spec::be32(bytes, 0))
    }
    fn store32(&mut self, offset: usize, value: u32) {
        self.with(offset, 4, |bytes| hca_spec::put_be32(bytes, 0, value));
    }
}

impl Drop for ModelMemory {
    fn drop(&mut self) {
        let start = self.bus_address();
        self.window.host().watches.ranges.remove(&start);
        self.window.arena.lock().unwrap_or_else(PoisonError::into_inner).free(self.start, self.size);
    }
}
