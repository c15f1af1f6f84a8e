//! Turns: programs are coroutines, of which one runs at a time, or none while time passes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use hca_model::{GuestMemory, HcaId, Ps};

use super::memory::{HostBus, Memory};
use super::outcome::{Account, Report, measured};
use super::plan::{Member, Plan};
use super::watch::Watch;
use super::{Adapters, Engine, program};
use crate::Error;

/// Stack of a program, in bytes; what it does not touch is no memory.
const STACK: usize = 512 << 10;

/// What all share.
struct Shared(Box<dyn Engine>);

type Stage = Arc<Mutex<Shared>>;

pub(super) fn lock<T: ?Sized>(stage: &Mutex<T>) -> MutexGuard<'_, T> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Adapters for Shared {
    fn attach(&mut self, hca: HcaId, memory: Arc<dyn GuestMemory>) {
        Adapters::attach(self.0.world(), hca, memory);
    }

    fn load(&mut self, now: Ps, hca: HcaId, offset: u64) -> Option<u32> {
        self.0.world().load(now, hca, offset)
    }

    fn answer(&mut self, hca: HcaId) -> Option<u32> {
        self.0.world().answer(hca)
    }

    fn store(&mut self, now: Ps, hca: HcaId, offset: u64, data: &[u8]) {
        self.0.world().store(now, hca, offset, data);
    }

    fn flush(&mut self, now: Ps, hca: HcaId) {
        self.0.world().flush(now, hca);
    }
}

/// What a program says when its turn ends: it waits until that time, or (`true`) until its adapter has written.
type Waits = (Ps, bool);
/// A program: its turns are at times, or (`None`) all is over.
type Program = Coroutine<Option<Ps>, Waits, (Result<(), Error>, Account)>;

/// A program's side of its turns.
pub(super) struct Turns<'a> {
    adapters: Arc<Mutex<dyn Adapters>>,
    now: Ps,
    yielder: &'a Yielder<Option<Ps>, Waits>,
    over: bool,
}

impl Turns<'_> {
    /// The time of its turn.
    pub(super) fn now(&self) -> Ps {
        self.now
    }

    /// Whether all is over: time does not pass any more.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn adapters<T>(&mut self, act: impl FnOnce(&mut dyn Adapters, Ps) -> T) -> T {
        act(&mut *lock(&self.adapters), self.now)
    }

    /// Ends the turn; returns at the next one.
    pub(super) fn wait(&mut self, until: Ps, news: bool) {
        if self.over {
            return;
        }
        match self.yielder.suspend((until, news)) {
            Some(now) => self.now = now,
            None => self.over = true,
        }
    }
}

/// A program as the conductor sees it.
pub(super) struct Player<'a> {
    pub(super) member: &'a Member,
    memory: Arc<Memory>,
    program: Program,
    until: Ps,
    news: bool,
    pub(super) ended: Option<Account>,
}

impl<'a> Player<'a> {
    /// The programs of all members, each of which has not had its first turn, and their memory at their adapters.
    pub(super) fn all(plan: &'a Plan, adapters: &Arc<Mutex<dyn Adapters>>) -> Result<Vec<Self>, Error> {
        let shared = Arc::new(plan.clone());
        let start = |member: &'a Member| {
            let memory = Memory::new(program::memory(plan, member.number));
            let memory = Arc::new(memory.map_err(|why| why.at(&member.name))?);
            lock(adapters).attach(member.hca, memory.clone());
            let stack =
                DefaultStack::new(STACK).map_err(|why| Error::new(why.to_string()).at(&member.name))?;
            let (adapters, its_memory, plan) =
                (Arc::clone(adapters), Arc::clone(&memory), Arc::clone(&shared));
            let (hca, number) = (member.hca, member.number);
            let play = move |yielder: &Yielder<_, _>, first: Option<Ps>| {
                let turns =
                    Turns { adapters, now: first.unwrap_or_default(), yielder, over: first.is_none() };
                let mut account = Account::new();
                let result = program::run(HostBus::new(turns, hca, its_memory), &plan, number, &mut account);
                (result, account)
            };
            let program = Coroutine::with_stack(stack, play);
            Ok(Player { member, memory, program, until: Ps::ZERO, news: false, ended: None })
        };
        plan.members.iter().map(start).collect()
    }

    /// If it waits still it is told that all is over, and ends.
    pub(super) fn dismiss(&mut self) {
        while self.program.started() && !self.program.done() {
            self.program.resume(None);
        }
    }

    /// When it has its next turn, if its adapter writes nothing more before; the one before was at `now`. `None`: it is done.
    pub(super) fn next(&self, now: Ps, step: Ps) -> Option<Ps> {
        if self.ended.is_some() {
            return None;
        }
        let soon = now + step;
        let news = self.news && self.memory.news.load(Ordering::Relaxed);
        Some(if news { soon } else { self.until.max(soon) })
    }

    /// There is something new for who waits for that.
    pub(super) fn wake(&self) {
        self.memory.news.store(true, Ordering::Relaxed);
    }

    /// That it is not done when all is over.
    pub(super) fn is_late(&self, plan: &Plan) -> Error {
        let words = format!("is not done at {} us: --until says when a run ends", plan.until.as_ns() / 1000);
        Error::new(words).at(&self.member.name)
    }

    fn is_due(&self, now: Ps) -> bool {
        self.ended.is_none() && (now >= self.until || (self.news && self.memory.news.load(Ordering::Relaxed)))
    }

    /// Its turn.
    pub(super) fn play(&mut self, now: Ps) -> Result<(), Error> {
        self.memory.news.store(false, Ordering::Relaxed);
        match self.program.resume(Some(now)) {
            CoroutineResult::Yield((until, news)) => (self.until, self.news) = (until, news),
            CoroutineResult::Return((result, account)) => {
                result.map_err(|why| why.at(&self.member.name))?;
                self.ended = Some(account);
            }
        }
        Ok(())
    }
}

/// Runs what the plan says. `ready` is called when all that has to be opened is; `progress` is told the time
/// after each step.
///
/// # Errors
/// The engine can't go on, or a host: a command failed, a byte was wrong, or not all was done in time.
pub fn run(
    engine: Box<dyn Engine>,
    plan: &Plan,
    ready: impl FnOnce() -> Result<(), Error>,
    progress: &mut dyn FnMut(Ps),
) -> Result<(Report, Box<dyn Engine>), Error> {
    let stage: Stage = Arc::new(Mutex::new(Shared(engine)));
    let mut watch = Watch::begin(plan, lock(&stage).0.world())?;
    ready()?;
    let adapters: Arc<Mutex<dyn Adapters>> = stage.clone();
    let mut players = Player::all(plan, &adapters)?;
    let done = conduct(&stage, plan, &mut players, &mut watch, progress);
    if done.is_err() {
        // Files show how it came to that.
        watch.close(lock(&stage).0.world())?;
    }
    players.iter_mut().for_each(Player::dismiss);
    drop((players, adapters));
    let report = done?;
    let shared = Arc::into_inner(stage).ok_or(Error::new("a program has not ended"))?;
    Ok((report, shared.into_inner().unwrap_or_else(PoisonError::into_inner).0))
}

fn conduct(
    stage: &Stage,
    plan: &Plan,
    players: &mut [Player<'_>],
    watch: &mut Watch,
    progress: &mut dyn FnMut(Ps),
) -> Result<Report, Error> {
    let mut now = Ps::ZERO;
    loop {
        for player in players.iter_mut() {
            if player.is_due(now) {
                player.play(now)?;
            }
        }
        if now >= plan.until {
            break;
        }
        let quiet =
            || players.iter().filter_map(|player| player.next(now, plan.step)).fold(plan.until, Ps::min);
        let next = (now + plan.step).min(plan.until);
        let shared = &mut *lock(stage);
        shared.0.run_until(next, &quiet)?;
        now = next;
        let world = shared.0.world();
        drop(world.drain());
        watch.take(world)?;
        progress(now);
    }
    if let Some(late) = players.iter().find(|player| player.ended.is_none()) {
        return Err(late.is_late(plan));
    }
    let accounts = || players.iter().filter_map(|p| Some((p.member.name.as_str(), p.ended.as_ref()?)));
    let world = &mut *lock(stage);
    let world = world.0.world();
    let (hashes, said) = watch.end(world, accounts())?;
    let sent = |hca| world.port_counters(HcaId(hca).into());
    let packets = (0..world.hcas()).filter_map(sent).map(|counters| counters.xmit_packets).sum();
    let messages = accounts().map(|(_, account)| account.came).sum();
    let bytes = accounts().map(|(_, account)| account.bytes).sum();
    Ok(Report {
        hosts: players.len(),
        messages,
        bytes,
        measured: measured(plan, accounts().map(|(_, account)| account)),
        packets,
        finished: accounts().map(|(_, account)| account.finished.0).max().unwrap_or(0),
        until: plan.until.0,
        hashes,
        said,
    })
}
