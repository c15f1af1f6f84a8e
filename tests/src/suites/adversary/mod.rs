//! No tenant can delay, kill or disturb another: attacks on a server, and what another tenant of it sees meanwhile.
//!
//! Each case starts a server with an attacker's adapter and a victim's ([`stage`]). The [`victim`] reads a register every
//! millisecond and keeps a write with checked data going, while the attack goes on for [`stage::ATTACK`] over sockets of
//! its own. Bounds are [`Bounds`]; what was seen is the case's detail, whether it passed or not. Attacks are functions in the
//! other modules, by what they attack with:
//!
//! | module | attacker |
//! |---|---|
//! | [`work`], [`peers`] | a guest: work requests, and peers that don't answer |
//! | [`keys`] | a guest: memory keys that are long to walk, signatures, pages that are not there |
//! | [`commands`], [`objects`] | a guest: commands, and many objects |
//! | [`quotas`] | a guest that takes all that its quota has |
//! | [`registers`] | a guest: doorbells, registers, interrupts, resets |
//! | [`fabric`] | a guest: management datagrams, floods across a switch |
//! | [`ethernet`] | a guest: frames and flow tables; software at the end of an Ethernet link |
//! | [`clients`], [`streams`] | a vfio-user client: memory, descriptors, messages |
//! | [`local`] | logs, the control socket, files |
//! | [`ages`] | nobody, but the server is old |
//!
//! [`workers`] has attacks on servers with a process for each host, and some of the others once more against those.
//!
//! In [`guests`] the victim is a QEMU with the stock driver.
//!
//! `HCA_ADVERSARY=TEXT` runs only the cases whose names have the text.

pub mod ages;
pub mod clients;
pub mod commands;
pub mod ethernet;
pub mod fabric;
pub mod guests;
pub mod keys;
pub mod local;
pub mod objects;
pub mod peers;
pub mod quotas;
pub mod registers;
pub mod stage;
pub mod streams;
pub mod victim;
pub mod work;
pub mod workers;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hca_driver::eth::Mac;
use hca_server::control;
use hca_spec::ids::Lid;

use super::{Case, Outcome};
use stage::{Attacker, Failure, Joined, Setting, Stage, VICTIM};
use victim::{Seen, Victim};

/// Chooses cases by a part of their names.
const CHOICE: &str = "HCA_ADVERSARY";
/// The victim before the attack and after it.
const BEFORE: Duration = Duration::from_millis(200);
const AFTER: Duration = Duration::from_millis(500);
/// An attack that has not ended by then is held up by the server, which is killed to end it; so is the victim's last access
/// after a third of that.
const LIMIT: Duration = Duration::from_secs(60);
/// Lines of the server's log that a failure shows.
const LINES: usize = 5;

/// What the victim and the machine must not see exceeded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// 99 of 100 accesses to a register.
    pub p99: Duration,
    /// Every access to a register.
    pub worst: Duration,
    /// The same with the time in which the server had no processor, which on a busy machine is not its fault.
    pub longest: Duration,
    /// What the server's anonymous memory grows by, in KiB.
    pub memory_kib: u64,
    /// The server's open descriptors.
    pub descriptors: usize,
    /// What the server logs, in bytes.
    pub log: u64,
}

/// The bounds of every case.
pub const BOUNDS: Bounds = Bounds {
    p99: Duration::from_millis(10),
    worst: Duration::from_millis(50),
    longest: Duration::from_secs(1),
    memory_kib: 256 << 10,
    descriptors: 1024,
    log: 1 << 20,
};

/// What an attacker does; gives what was done, in words.
pub type Attack = fn(&Attacker) -> Result<String, Failure>;

/// A case.
#[derive(Clone, Copy)]
pub struct Row {
    /// Who does what.
    pub name: &'static str,
    /// The server.
    pub setting: Setting,
    /// The attack.
    pub attack: Attack,
    /// What must not be exceeded.
    pub bounds: Bounds,
}

impl Row {
    /// A case with adapters that are not joined.
    pub const fn new(name: &'static str, attack: Attack) -> Self {
        Self { name, setting: Setting::PLAIN, attack, bounds: BOUNDS }
    }

    /// The same with a switch between the adapters.
    pub const fn switched(self) -> Self {
        Self { setting: Setting { joined: Joined::Switch, ..self.setting }, ..self }
    }

    /// The same with an Ethernet switch between them.
    pub const fn ethernet(self) -> Self {
        Self { setting: Setting { joined: Joined::Ethernet, ..self.setting }, ..self }
    }

    /// The same with an Ethernet switch, and a socket at its last port.
    pub const fn outside(self) -> Self {
        Self { setting: Setting { joined: Joined::Ethernet, outside: true, ..self.setting }, ..self }
    }

    /// The same with more arguments of `softhca serve`.
    pub const fn with(self, arguments: &'static [&'static str]) -> Self {
        Self { setting: Setting { arguments, ..self.setting }, ..self }
    }

    /// The same with a process for each host.
    pub const fn apart(self) -> Self {
        Self { setting: Setting { apart: true, ..self.setting }, ..self }
    }

    /// The same, where the server's memory grows by so many KiB at most.
    pub const fn within(self, memory_kib: u64) -> Self {
        Self { bounds: Bounds { memory_kib, ..self.bounds }, ..self }
    }

    /// The same with what a shell does before it becomes the server.
    pub const fn after(self, shell: &'static str) -> Self {
        Self { setting: Setting { shell, ..self.setting }, ..self }
    }
}

/// The cases with a victim at a socket.
const ROWS: &[&[Row]] = &[
    work::ROWS,
    peers::ROWS,
    keys::ROWS,
    commands::ROWS,
    objects::ROWS,
    quotas::ROWS,
    registers::ROWS,
    fabric::ROWS,
    ethernet::ROWS,
    clients::ROWS,
    streams::ROWS,
    local::ROWS,
    ages::ROWS,
];

/// How many cases there are, in words: the page of suites has them.
pub fn counted() -> String {
    let alone: Vec<&Row> = ROWS.iter().copied().flatten().collect();
    let workers = workers::count() + alone.iter().filter(|row| row.setting.apart).count();
    let (guests, apart) = guests::count();
    let (all, workers) = (alone.len() + workers::count() + local::FILES.len() + guests, workers + apart);
    format!(
        "{all} cases: {guests} have a QEMU with the stock driver as victim, {workers} a process for each host"
    )
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let chosen = std::env::var(CHOICE).unwrap_or_default();
    eprintln!("{}", counted());
    let rows = ROWS.iter().copied().flatten().filter(|row| row.name.contains(&chosen));
    let mut cases: Vec<Case> = rows.map(|row| run(row.name, row)).collect();
    cases.extend(workers::cases(&chosen));
    cases.extend(local::cases(&chosen));
    cases.extend(guests::cases(&chosen));
    cases
}

fn run(name: &str, row: &Row) -> Case {
    let start = Instant::now();
    let (outcome, detail) = match tried(row) {
        Ok((seen, complaints)) if complaints.is_empty() => (Outcome::Passed, seen),
        Ok((seen, complaints)) => (Outcome::Failed, format!("{}\n{seen}", complaints.join("\n"))),
        Err(error) => (Outcome::Failed, format!("no attack: {error}")),
    };
    let case = Case::new(name, outcome, start.elapsed().as_secs_f64(), detail);
    // All of them take minutes.
    eprintln!("{:?} {}\n    {}", case.outcome, case.name, case.detail.replace('\n', "\n    "));
    case
}

/// Runs a case: what was seen, and what is wrong with that.
fn tried(row: &Row) -> Result<(String, Vec<String>), Failure> {
    let mut stage = Stage::set(&row.setting)?;
    let place = stage.attacker();
    let ethernet = row.setting.joined == Joined::Ethernet;
    let mut victim = Victim::new(&place, (stage.serves(VICTIM)?, stage.process()), ethernet)?;
    let place = match ethernet {
        true => place.knowing(Lid::default(), victim.mac()?),
        false => place.knowing(victim.lid()?, Mac::default()),
    };
    let over = AtomicBool::new(false);
    let (attack, ((seen, lived), hung)) = std::thread::scope(|scope| {
        let victim = scope.spawn(|| victim.live(&over));
        std::thread::sleep(BEFORE);
        let attack = scope.spawn(|| (row.attack)(&place).map_err(|why| why.to_string()));
        let started = Instant::now();
        while !attack.is_finished() && started.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let hung = !attack.is_finished();
        if hung {
            stage.server.kill();
        }
        let attack = attack.join().unwrap_or_else(|panic| Err(words(&*panic)));
        std::thread::sleep(AFTER);
        over.store(true, Ordering::Relaxed);
        // A server that is stuck answers nobody, and the victim has no time limit of its own.
        let ended = Instant::now();
        while !victim.is_finished() && ended.elapsed() < LIMIT / 3 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let hung = hung || !victim.is_finished();
        if hung {
            stage.server.kill();
        }
        let victim = victim.join().unwrap_or_else(|panic| (Seen::default(), Err(words(&*panic))));
        (attack, (victim, hung))
    });
    let mut complaints = Vec::new();
    if hung {
        complaints
            .push("the attack or the victim's last access did not end: the server was killed".to_owned());
    } else if !stage.server.alive() {
        complaints.push("the server died".to_owned());
        let messages = stage.server.messages();
        let lines: Vec<&str> = messages.lines().collect();
        complaints.extend(lines.iter().rev().take(LINES).rev().map(ToString::to_string));
    }
    if let Err(why) = lived {
        complaints.push(format!("the victim: {why}"));
    }
    let did = attack.unwrap_or_else(|why| {
        complaints.push(format!("the attack: {why}"));
        "nothing".to_owned()
    });
    complaints.extend(beyond(&seen, stage.logged(), &row.bounds));
    let text = format!("{did}; {}", described(&seen, stage.logged(), &engine(&place)));
    Ok((text, complaints))
}

/// Which bounds what was seen is beyond.
fn beyond(seen: &Seen, logged: u64, bounds: &Bounds) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut check = |bad: bool, text: String| complaints.extend(bad.then_some(text));
    let (p99, worst, longest) = (seen.p99(), seen.worst(), seen.longest());
    check(p99 > bounds.p99, format!("p99 of register accesses is {p99:.1?}, above {:?}", bounds.p99));
    check(worst > bounds.worst, format!("a register access took {worst:.1?}, more than {:?}", bounds.worst));
    check(
        longest > bounds.longest,
        format!("a register access took {longest:.1?}, whatever the machine did"),
    );
    check(seen.accesses.is_empty() || seen.writes == 0, "the victim's write did not go on".to_owned());
    let grown = seen.memory_kib.1.saturating_sub(seen.memory_kib.0);
    check(
        grown > bounds.memory_kib,
        format!("the server's memory grew by {} MiB, more than {}", grown >> 10, bounds.memory_kib >> 10),
    );
    check(
        seen.descriptors > bounds.descriptors,
        format!("the server had {} descriptors, more than {}", seen.descriptors, bounds.descriptors),
    );
    check(
        logged > bounds.log,
        format!("the server logged {} KiB, more than {}", logged >> 10, bounds.log >> 10),
    );
    complaints
}

fn described(seen: &Seen, logged: u64, engine: &str) -> String {
    format!(
        "{} accesses, p99 {:.1?}, worst {:.1?} ({:.1?} with waits for a processor); {} writes, longest {:.1?}; memory {} to {} MiB, {} descriptors, log {} KiB{engine}",
        seen.accesses.len(),
        seen.p99(),
        seen.worst(),
        seen.longest(),
        seen.writes,
        seen.longest_write,
        seen.memory_kib.0 >> 10,
        seen.memory_kib.1 >> 10,
        seen.descriptors,
        logged >> 10,
    )
}

/// What the engine says of its rounds, if it answers.
fn engine(place: &Attacker) -> String {
    let Ok(stat) = control::query(&place.control(), "stat") else { return String::new() };
    let engine = match &stat["engine"][format!("host {VICTIM}")] {
        serde_json::Value::Null => &stat["engine"],
        of_worker => of_worker,
    };
    format!("; longest round {} us, {} late", engine["longest_us"], engine["late"])
}

/// What a thread panicked with.
pub fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use victim::Access;

    fn beyond(seen: &Seen, logged: u64) -> Vec<String> {
        super::beyond(seen, logged, &BOUNDS)
    }

    fn fine() -> Seen {
        let access = Access { took: Duration::from_millis(1), waited: Duration::ZERO };
        Seen {
            accesses: vec![access; 1000],
            writes: 1,
            memory_kib: (10, 20),
            descriptors: 30,
            ..Seen::default()
        }
    }

    #[test]
    fn each_bound_is_a_complaint() {
        assert!(beyond(&fine(), 0).is_empty());
        let slow = |count: usize, millis| {
            let mut seen = fine();
            seen.accesses[..count]
                .fill(Access { took: Duration::from_millis(millis), waited: Duration::ZERO });
            seen
        };
        assert!(beyond(&slow(10, 49), 0).is_empty());
        assert!(beyond(&slow(11, 12), 0)[0].starts_with("p99"));
        assert!(beyond(&slow(1, 51), 0)[0].contains("51"));
        let mut seen = fine();
        let waits = Duration::from_millis(1001);
        seen.accesses[0] = Access { took: waits, waited: waits };
        assert_eq!(beyond(&seen, 0).len(), 1);
        let wrong = [
            Seen { writes: 0, ..fine() },
            Seen { accesses: Vec::new(), ..fine() },
            Seen { memory_kib: (0, BOUNDS.memory_kib + 1), ..fine() },
            Seen { descriptors: BOUNDS.descriptors + 1, ..fine() },
        ];
        for seen in wrong {
            assert_eq!(beyond(&seen, 0).len(), 1, "{seen:?}");
        }
        assert_eq!(beyond(&fine(), BOUNDS.log + 1).len(), 1);
        // A case may have a bound of its own.
        let row = Row::new("", |_| Ok(String::new())).within(10);
        assert_eq!(super::beyond(&fine(), 0, &row.bounds), Vec::<String>::new());
        let seen = Seen { memory_kib: (0, 11), ..fine() };
        assert_eq!(super::beyond(&seen, 0, &row.bounds).len(), 1);
    }

    /// What the page of suites says of them.
    #[test]
    fn the_page_has_the_counts() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/suites.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&counted()), "{} is not on the page", counted());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ROWS.iter().copied().flatten().map(|row| row.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
