//! Hosts whose adapters are somewhere else: each goes as far as its adapter has said that nothing comes, and says how far it is.
//!
//! A host has no time but that of its link. What its adapter asks of its memory it does when that is due, also while its program does
//! nothing; its program has turns at whole steps, as in [`super::stage`], and what is due at the time of a turn is done before it. So
//! what happens does not depend on how many hosts a process has, nor on where the adapters are.

use std::sync::{Arc, Mutex, PoisonError};

use hca_model::{GuestMemory, HcaId, Ps};

use super::Adapters;
use super::outcome::{Account, Hashes, Report, measured};
use super::plan::Plan;
use super::stage::{Player, lock};
use super::watch;
use crate::Error;

/// What a host knows of the next message of its adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It was due at that time, and is done; whether the program looks up from what it waits for (what is written to its memory lets it,
    /// too).
    Came(Ps, bool),
    /// There is none up to the time in question.
    Quiet,
    /// Nothing yet: nothing comes before that time, if the host does nothing.
    Unknown(Ps),
}

/// Adapters that are somewhere else.
pub trait Remotes: Adapters {
    /// Does what an adapter wants next, if it is due at `until` or before.
    ///
    /// # Errors
    /// The adapter can't go on; why.
    fn hear(&mut self, hca: HcaId, until: Ps) -> Result<Next, Error>;

    /// All has been done up to `reached`, and the host does nothing before `next` if the adapter wants nothing.
    ///
    /// # Errors
    /// That can't be said.
    fn tell(&mut self, hca: HcaId, reached: Ps, next: Ps) -> Result<(), Error>;

    /// Waits, perhaps, after nothing was found; `found`: something was since the last call.
    ///
    /// # Errors
    /// An adapter has ended.
    fn wait(&mut self, found: bool) -> Result<(), Error>;

    /// It is over: nobody need wait for these hosts.
    ///
    /// # Errors
    /// That can't be said.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// What programs see of them.
struct Shared(Box<dyn Remotes>);

impl Adapters for Shared {
    fn attach(&mut self, hca: HcaId, memory: Arc<dyn GuestMemory>) {
        self.0.attach(hca, memory);
    }

    fn load(&mut self, now: Ps, hca: HcaId, offset: u64) -> Option<u32> {
        self.0.load(now, hca, offset)
    }

    fn answer(&mut self, hca: HcaId) -> Option<u32> {
        self.0.answer(hca)
    }

    fn store(&mut self, now: Ps, hca: HcaId, offset: u64, data: &[u8]) {
        self.0.store(now, hca, offset, data);
    }

    fn flush(&mut self, now: Ps, hca: HcaId) {
        self.0.flush(now, hca);
    }
}

/// A host, and where it is in time.
struct Host<'a> {
    player: Player<'a>,
    /// When its last turn was; `None`: there was none.
    turn: Option<Ps>,
    /// The last that its adapter wanted was at that time.
    came: Ps,
    /// All is done before that time.
    reached: Ps,
    /// Its last turn was at the end.
    over: bool,
    /// Its adapter has said that it wants nothing more.
    done: bool,
}

impl Host<'_> {
    /// Its next turn: at a whole step, or at the end.
    fn next(&self, plan: &Plan) -> Ps {
        let Some(turn) = self.turn else { return Ps::ZERO };
        let next = self.player.next(turn, plan.step).unwrap_or(Ps::MAX).min(plan.until);
        // It comes behind what was done, which may be why it has one.
        let next = next.max(self.came);
        Ps(next.0.div_ceil(plan.step.0.max(1)).saturating_mul(plan.step.0)).min(plan.until)
    }

    /// Goes on as far as it can. Returns whether something was done.
    fn go_on(&mut self, stage: &Mutex<Shared>, plan: &Plan) -> Result<bool, Error> {
        let hca = self.player.member.hca;
        let mut found = false;
        while !self.done {
            // Behind its end it answers, until the adapter has come to its own.
            let next = if self.over { Ps(Ps::MAX.0 / 2) } else { self.next(plan) };
            let heard = lock(stage).0.hear(hca, next).map_err(|why| why.at(&self.player.member.name))?;
            match heard {
                Next::Came(at, wakes) => {
                    self.came = at;
                    if wakes {
                        self.player.wake();
                    }
                }
                Next::Unknown(heard) => {
                    self.reached = self.reached.max(heard.min(next));
                    let told = lock(stage).0.tell(hca, self.reached, next);
                    told.map_err(|why| why.at(&self.player.member.name))?;
                    break;
                }
                Next::Quiet if self.over => self.done = true,
                Next::Quiet => {
                    if self.player.ended.is_none() {
                        self.player.play(next)?;
                    }
                    (self.turn, self.over) = (Some(next), next >= plan.until);
                    self.reached = self.reached.max(next);
                }
            }
            found = true;
        }
        Ok(found)
    }
}

/// Runs what the plan says. `ready` is called before anything is sent; `progress` is told the time of the host that is least far.
///
/// # Errors
/// An adapter can't go on, or a host: a command failed, a byte was wrong, or not all was done in time.
pub fn run(
    remotes: Box<dyn Remotes>,
    plan: &Plan,
    ready: impl FnOnce() -> Result<(), Error>,
    progress: &mut dyn FnMut(Ps),
) -> Result<(Report, Box<dyn Remotes>), Error> {
    ready()?;
    let stage = Arc::new(Mutex::new(Shared(remotes)));
    let adapters: Arc<Mutex<dyn Adapters>> = stage.clone();
    let players = Player::all(plan, &adapters)?;
    let (came, reached) = (Ps::ZERO, Ps::ZERO);
    let host = |player| Host { player, turn: None, came, reached, over: false, done: false };
    let mut hosts: Vec<_> = players.into_iter().map(host).collect();
    let done = conduct(&stage, plan, &mut hosts, progress);
    hosts.iter_mut().for_each(|host| host.player.dismiss());
    drop((hosts, adapters));
    let report = done?;
    let shared = Arc::into_inner(stage).ok_or(Error::new("a program has not ended"))?;
    Ok((report, shared.into_inner().unwrap_or_else(PoisonError::into_inner).0))
}

fn conduct(
    stage: &Mutex<Shared>,
    plan: &Plan,
    hosts: &mut [Host<'_>],
    progress: &mut dyn FnMut(Ps),
) -> Result<Report, Error> {
    while hosts.iter().any(|host| !host.done) {
        let mut found = false;
        for host in hosts.iter_mut() {
            found |= host.go_on(stage, plan)?;
        }
        // Also while programs have nothing to do: their adapters go on.
        let least = hosts.iter().map(|host| host.reached).min();
        progress(least.unwrap_or_default().min(plan.until));
        if hosts.iter().any(|host| !host.done) {
            lock(stage).0.wait(found)?;
        }
    }
    if let Some(late) = hosts.iter().find(|host| host.player.ended.is_none()) {
        return Err(late.player.is_late(plan));
    }
    let accounts = || {
        hosts
            .iter()
            .filter_map(|Host { player, .. }| Some((player.member.name.as_str(), player.ended.as_ref()?)))
    };
    let messages = accounts().map(|(_, account): (&str, &Account)| account.came).sum();
    let bytes = accounts().map(|(_, account)| account.bytes).sum();
    let mut hashes = Hashes::default();
    watch::completions(&mut hashes, accounts());
    Ok(Report {
        hosts: hosts.len(),
        messages,
        bytes,
        measured: measured(plan, accounts().map(|(_, account)| account)),
        packets: 0,
        finished: accounts().map(|(_, account)| account.finished.0).max().unwrap_or(0),
        until: plan.until.0,
        hashes: plan.hash.then_some(hashes),
        said: Vec::new(),
    })
}
