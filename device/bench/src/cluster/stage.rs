//! Turns: programs are threads of which one runs at a time, or none while time passes.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_model::{Ps, World};

use super::memory::{HostBus, Memory};
use super::outcome::{Account, Report};
use super::plan::{Member, Plan};
use super::watch::Watch;
use super::{Engine, program};
use crate::Error;

/// Stack of a program's thread, in bytes.
const STACK: usize = 512 << 10;

/// What all share: the engine, and its time.
struct Shared {
    engine: Box<dyn Engine>,
    now: Ps,
}

type Stage = Arc<Mutex<Shared>>;

fn lock(stage: &Stage) -> MutexGuard<'_, Shared> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a program says when its turn ends.
enum Said {
    /// It waits until that time, or (`true`) until its adapter has written.
    Waits(Ps, bool),
    /// It is done.
    Ended(Result<(), Error>, Account),
}

/// A program's side of its turns.
pub(super) struct Turns {
    stage: Stage,
    now: Ps,
    go: Receiver<Ps>,
    said: Sender<Said>,
    over: bool,
}

impl Turns {
    /// The time of its turn.
    pub(super) fn now(&self) -> Ps {
        self.now
    }

    /// Whether all is over: time does not pass any more.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn world<T>(&mut self, act: impl FnOnce(&mut World, Ps) -> T) -> T {
        act(lock(&self.stage).engine.world(), self.now)
    }

    /// Waits for the first turn.
    pub(super) fn begin(&mut self) {
        match self.go.recv() {
            Ok(now) => self.now = now,
            Err(_) => self.over = true,
        }
    }

    /// Ends the turn; returns at the next one.
    pub(super) fn wait(&mut self, until: Ps, news: bool) {
        if self.over {
            return;
        }
        let next = self.said.send(Said::Waits(until, news)).ok().and_then(|()| self.go.recv().ok());
        match next {
            Some(now) => self.now = now,
            None => self.over = true,
        }
    }
}

/// A program as the conductor sees it.
struct Player<'a> {
    member: &'a Member,
    memory: Arc<Memory>,
    go: Option<Sender<Ps>>,
    said: Receiver<Said>,
    until: Ps,
    news: bool,
    ended: Option<Account>,
}

impl Player<'_> {
    fn is_due(&self, now: Ps) -> bool {
        self.ended.is_none() && (now >= self.until || (self.news && self.memory.news.load(Ordering::Relaxed)))
    }

    /// Its turn.
    fn play(&mut self, now: Ps) -> Result<(), Error> {
        self.memory.news.store(false, Ordering::Relaxed);
        let name = &self.member.name;
        let gone = || Error::new("its program has panicked").at(name);
        let go = self.go.as_ref().ok_or_else(gone)?;
        go.send(now).map_err(|_| gone())?;
        match self.said.recv().map_err(|_| gone())? {
            Said::Waits(until, news) => (self.until, self.news) = (until, news),
            Said::Ended(result, account) => {
                result.map_err(|why| why.at(name))?;
                self.ended = Some(account);
            }
        }
        Ok(())
    }
}

/// Runs what the plan says. `ready` is called when all that has to be opened is, and before there are threads; `progress` is told the time
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
    let stage: Stage = Arc::new(Mutex::new(Shared { engine, now: Ps::ZERO }));
    let mut watch = Watch::begin(plan, lock(&stage).engine.world())?;
    ready()?;
    let report = std::thread::scope(|scope| {
        let mut players = Vec::new();
        for member in &plan.members {
            let memory = Arc::new(Memory::new(program::memory(plan, member.number)));
            lock(&stage).engine.world().attach(member.hca, memory.clone());
            let ((go, going), (says, said)) = (channel(), channel());
            let turns = Turns {
                stage: Arc::clone(&stage),
                now: Ps::ZERO,
                go: going,
                said: says.clone(),
                over: false,
            };
            let bus = HostBus::new(turns, member.hca, Arc::clone(&memory));
            let play = move || {
                let mut account = Account::new();
                let result = program::run(bus, plan, member.number, &mut account);
                let _ = says.send(Said::Ended(result, account));
            };
            let thread = std::thread::Builder::new().name(member.name.clone()).stack_size(STACK);
            thread.spawn_scoped(scope, play).map_err(|why| Error::new(why.to_string()).at(&member.name))?;
            players.push(Player {
                member,
                memory,
                go: Some(go),
                said,
                until: Ps::ZERO,
                news: false,
                ended: None,
            });
        }
        let done = conduct(&stage, plan, &mut players, &mut watch, progress);
        if done.is_err() {
            // Files show how it came to that.
            watch.close(lock(&stage).engine.world())?;
        }
        // Whoever waits still is told that all is over.
        players.iter_mut().for_each(|player| drop(player.go.take()));
        done
    })?;
    let shared = Arc::into_inner(stage).ok_or(Error::new("a program has not ended"))?;
    Ok((report, shared.into_inner().unwrap_or_else(PoisonError::into_inner).engine))
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
        let waits = players.iter().filter(|player| player.ended.is_none()).map(|player| player.until);
        let quiet = waits.fold(plan.until, Ps::min);
        now = (now + plan.step).min(plan.until);
        let shared = &mut *lock(stage);
        shared.engine.run_until(now, quiet)?;
        shared.now = now;
        let world = shared.engine.world();
        drop(world.drain());
        watch.take(world)?;
        progress(now);
    }
    if let Some(late) = players.iter().find(|player| player.ended.is_none()) {
        let words = format!("is not done at {} us: --until says when a run ends", plan.until.as_ns() / 1000);
        return Err(Error::new(words).at(&late.member.name));
    }
    let accounts = || players.iter().filter_map(|p| Some((p.member.name.as_str(), p.ended.as_ref()?)));
    let world = &mut *lock(stage);
    let (hashes, said) = watch.end(world.engine.world(), accounts())?;
    let mut sent = |player: &Player<'_>| world.engine.world().port_counters(player.member.hca.into());
    let packets = players.iter().filter_map(&mut sent).map(|counters| counters.xmit_packets).sum();
    let messages = accounts().map(|(_, account)| account.came).sum();
    Ok(Report {
        hosts: players.len(),
        messages,
        bytes: messages * plan.size as u64,
        packets,
        finished: accounts().map(|(_, account)| account.finished.0).max().unwrap_or(0),
        until: plan.until.0,
        hashes,
        said,
    })
}
