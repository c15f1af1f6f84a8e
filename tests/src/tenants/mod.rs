//! Two tenants of one server, in one process or in workers of their own: one does anything that a guest, a vfio-user client or the far end of a tunnel can do,
//! the other works and looks at every byte.
//!
//! A run has rounds. In each the attacker brings its adapter up, as a driver does, and makes objects of every kind; then come
//! its steps: commands, work requests, doorbells, management datagrams, messages, windows of memory, datagrams of a tunnel. Most
//! are nearly right. What a step does is made of the round's seed and the step's number alone ([`crate::fuzz`] has the
//! generators), so that a seed is a history. Between steps the [`victim`] does a request with checked data.
//!
//! | what is looked at | bound |
//! |---|---|
//! | the server | lives; the attacker's adapter comes up after a reset and for the next connection |
//! | the victim's requests | done without error within a number of register reads, each of which is a turn of the server |
//! | the victim's memory | holds what it should, every byte, after each request |
//! | the server's memory and descriptors | do not grow beyond a bound |
//! | one access to a register | takes no longer than `--stall`, if that is given: the one thing that is measured in time |

pub mod far;
pub mod guest;
pub mod line;
pub mod memory;
pub mod site;
pub mod steps;
pub mod victim;

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use site::{Kind, Reached, Site};

use crate::fuzz::feed::{Feed, seeded};
use crate::seeded::Random;
use crate::suites::adversary::{stage::Failure, words};

/// Bytes that a step is made of; beyond them everything is zero.
const BYTES: usize = 4096;
/// Steps between two requests of the victim, and between two looks at the server.
const WORK: u64 = 4;
const LOOK: u64 = 64;
/// Steps that a finding shows.
const SHOWN: usize = 24;

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seed of the first round; each round's is one more.
    pub seed: u64,
    /// Rounds, unless the time is over before.
    pub rounds: u64,
    /// No round begins after that.
    pub time: Option<Duration>,
    /// Steps of each round.
    pub steps: u64,
    /// How long an access of the victim to a register may take.
    pub stall: Option<Duration>,
    /// Names each step on standard error.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, rounds: 4, time: None, steps: 400, stall: None, verbose: false }
    }
}

/// Something that must not be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What is wrong.
    pub what: String,
    /// Seed of the first round and of this one.
    pub seeds: (u64, u64),
    /// The step of this round after which it was seen.
    pub step: u64,
    /// The steps before, the last one last.
    pub before: Vec<&'static str>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, seeds: (first, seed), step, before } = self;
        writeln!(f, "{what}")?;
        writeln!(f, "round with seed {seed}, step {step}; before: {}", before.join(", "))?;
        writeln!(f, "again: hca-tests tenants --seed {seed} --rounds 1 --steps {}", step + 1)?;
        write!(f, "or, if that does not do: hca-tests tenants --seed {first} --rounds {}", seed - first + 1)
    }
}

/// What was done without a finding.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Rounds.
    pub rounds: u64,
    /// Steps.
    pub steps: u64,
    /// Connections that the server has closed.
    pub closed: u64,
    /// What was seen at each server.
    pub seen: Vec<String>,
    /// How far the attacker got at each server.
    pub reached: Vec<Reached>,
}

/// What one round has come to.
#[derive(Debug, Default)]
struct Round {
    step: u64,
    closed: u64,
    before: VecDeque<&'static str>,
}

/// Runs rounds. Call it from a thread that goes on: the servers end with it.
///
/// # Errors
/// The servers do not come up; or the first finding.
pub fn run(options: &Options) -> Result<Result<Done, Finding>, Failure> {
    let mut sites = Vec::new();
    for kind in Kind::ALL {
        sites.push(Site::new(kind, options.stall)?);
    }
    let start = Instant::now();
    let mut done = Done::default();
    for seed in (options.seed..).take(usize::try_from(options.rounds).unwrap_or(usize::MAX)) {
        if options.time.is_some_and(|time| start.elapsed() > time) {
            break;
        }
        let mut round = Round::default();
        let site = &mut sites[(seed % Kind::ALL.len() as u64) as usize];
        let result = catch_unwind(AssertUnwindSafe(|| play(site, seed, options, &mut round)));
        let result = result.unwrap_or_else(|panic| Err(words(&*panic)));
        if let Err(what) = result {
            let last = site.last_words();
            let what = if last.is_empty() { what } else { format!("{what}\n{last}") };
            let (seeds, before) = ((options.seed, seed), round.before.into());
            return Ok(Err(Finding { what, seeds, step: round.step, before }));
        }
        done.rounds += 1;
        done.steps += round.step;
        done.closed += round.closed;
    }
    done.seen = sites.iter().map(Site::seen).collect();
    done.reached = sites.iter().map(Site::reached).collect();
    Ok(Ok(done))
}

/// One round.
fn play(site: &mut Site, seed: u64, options: &Options, round: &mut Round) -> Result<(), String> {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut work = Random::new(seed);
    let mut guest = site.guest(seed);
    for step in 0..options.steps {
        round.step = step;
        let bytes = seeded(seed.wrapping_mul(ODD) ^ step, BYTES);
        let mut feed = Feed::new(&bytes);
        // Mostly it has an adapter that works, sometimes it goes on without one for long.
        let anew = if guest.spoilt { 4 } else { 64 };
        let anew = feed.one_in(anew);
        if anew {
            site.count().map_err(|why| why.to_string())?;
        }
        let (name, mut result) = match (anew, feed.below(128), site.far()) {
            (true, 0..16, _) => ("a new connection", Err(line::Closed)),
            (true, _, _) => ("a reset", if guest.reset() { Ok(()) } else { Err(line::Closed) }),
            (_, 48..52, _) => {
                ("a write to the victim's memory", steps::forged(&mut guest, &mut feed, &site.guess()))
            }
            (_, 0..48, Some(far)) => (far.step(&mut feed, &guest.objects), Ok(())),
            _ => steps::step(&mut guest, &mut feed, &site.guessed()),
        };
        if options.verbose {
            eprintln!("seed {seed} step {step}: {name}");
        }
        if round.before.len() == SHOWN {
            round.before.pop_front();
        }
        round.before.push_back(name);
        result = result.and_then(|()| guest.line.hear(Some(&guest.memory)));
        if result.is_err() {
            round.closed += 1;
            guest.again();
        }
        if let Some(far) = site.far() {
            far.pump();
        }
        if step % WORK == WORK - 1 {
            site.victim().work(&mut work)?;
        }
        if step % LOOK == LOOK - 1 {
            site.look()?;
        }
    }
    site.victim().work(&mut work)?;
    site.count().map_err(|why| why.to_string())?;
    site.look()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page says which rounds attack how.
    #[test]
    fn the_page_has_the_rounds() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/README.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let rows: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("| seed modulo")).collect();
        let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).skip(2).collect();
        let said = |(place, kind): (usize, &Kind)| format!("| {place} | {} |", kind.words());
        assert_eq!(rows, Kind::ALL.iter().enumerate().map(said).collect::<Vec<_>>());
        assert!(page.contains(&format!("| seed modulo {} |", Kind::ALL.len())));
    }
}
