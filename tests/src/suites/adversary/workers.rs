//! A process for each host (`isolation = "process"`): what happens to one worker, whatever killed or stopped it, is not seen by hosts of
//! others. And attacks of all kinds once more, against such a server.

use std::time::{Duration, Instant};

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, RtsAttr};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::stage::{ATTACKER, Attacker, Failure, Setting, driver};
use super::{ROWS as ALONE, Row};
use crate::pair::{Options, Pair, pattern, wait_active};
use crate::process::Process;
use crate::suites::Case;

/// What is before the name of an attack that is in other lists, too.
const AGAIN: &str = "workers: ";

/// Attacks of other lists.
const OTHERS: &[&str] = &[
    "guest: 1000 writes of 1 MiB with one doorbell, MTU 256",
    "guest: 10 RC queue pairs whose peer is never ready, retried for ever",
    "guest: WQEs that gather 64 KiB in pieces of 1 byte from 60 keys",
    "guest: WQEs that gather from keys of keys, four deep",
    "guest: commands in all slots, always",
    "guest: 16384 queue pairs made and destroyed, over and over",
    "guest with icm = \"32M\": queue pairs until no more are given",
    "guest: resets, one after another",
    "guest: reads of one register, 1000 at a time",
    "guest, root: SubnSet(PortInfo) to the other's port over its own QP0",
    "guest: datagrams to the other's LID, nobody's queue pair",
    "guest: UC messages of 1 MiB to the other's LID, nobody's queue pair",
    "guest: its link taken down and up",
    "guest, root: datagrams to the other's port with its P_Key, of another partition",
    "guest, Ethernet: broadcasts of 64 bytes, as fast as it can",
    "guest, Ethernet: frames with the victim's address as source, to all",
    "client: memory without seals, then shortened",
    "client: 65495 files of one page",
    "client: a TCP socket with SO_LINGER as event descriptor",
    "client: random fields of valid messages",
    "client: connections to the victim's socket",
    "anybody: messages that are warned about, as fast as they go",
    "local user: 32 control connections that say nothing",
];

/// What a link to a worker that takes nothing keeps, a MiB of frames, and what else workers of three hosts take.
const WAITING_KIB: u64 = 24 << 10;
/// DMA memory of a driver.
const MEMORY: usize = 16 << 20;
/// Four hosts behind a switch: two of them, besides the attacker and the victim, talk to each other.
const FOUR: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"v\"\n[[host.hca]]\n\
    [[host]]\nname = \"b\"\n[[host.hca]]\n[[host]]\nname = \"c\"\n[[host.hca]]\n\
    [[switch]]\nname = \"s\"\nports = 4\n[[link]]\nbetween = [\"a/hca0\", \"s/1\"]\n\
    [[link]]\nbetween = [\"v/hca0\", \"s/2\"]\n[[link]]\nbetween = [\"b/hca0\", \"s/3\"]\n\
    [[link]]\nbetween = [\"c/hca0\", \"s/4\"]\n";

/// Attacks that only such a server knows.
pub const ROWS: &[Row] = &[
    four("workers: the attacker's is killed, over and over, while two others talk", killed_beside),
    four(
        "workers: the attacker's is killed in the middle of a flood to another, over and over",
        killed_flooding,
    ),
    four("workers: the attacker's stands still, while two others talk and the operator asks", stopped),
    Row::new(
        "workers: frames to one that stands still, as fast as they go",
        super::ethernet::to_one_that_stands,
    )
    .ethernet()
    .apart()
    .within(WAITING_KIB),
];

const fn four(name: &'static str, attack: super::Attack) -> Row {
    let row = Row::new(name, attack).apart();
    Row { setting: Setting { topology: Some(FOUR), ..row.setting }, ..row }
}

/// How many cases there are.
pub fn count() -> usize {
    ROWS.len() + OTHERS.len()
}

/// The cases whose names have the text.
pub fn cases(chosen: &str) -> Vec<Case> {
    let again = ALONE.iter().copied().flatten().filter(|row| OTHERS.contains(&row.name));
    let again = again.map(|row| (format!("{AGAIN}{}", row.name), row.apart()));
    let own = ROWS.iter().map(|row| (row.name.to_owned(), *row));
    let chosen = own.chain(again).filter(|(name, _)| name.contains(chosen));
    chosen.map(|(name, row)| super::run(&name, &row)).collect()
}

/// Two hosts that write to each other, and look at what came.
struct Talk {
    pair: Pair<VfioUserBus>,
    messages: u64,
}

impl Talk {
    const LEN: usize = 10_000;

    fn between(place: &Attacker, hosts: [&str; 2]) -> Result<Self, Failure> {
        let mut hcas = Vec::new();
        for host in hosts {
            let mut hca = driver(place.bus(host, MEMORY)?)?;
            wait_active(&mut hca)?;
            hcas.push(hca);
        }
        // What a busy machine does between two processes is not a loss.
        let rts = RtsAttr { timeout: 18, ..RtsAttr::default() };
        let pair = Pair::connect(hcas, &Options { memory: 1 << 16, rts, ..Options::default() })?;
        Ok(Self { pair, messages: 0 })
    }

    /// One message there and back. Panics if it is lost, or has other bytes.
    fn go_on(&mut self) {
        self.messages += 1;
        self.pair.deliver_and_read(&pattern(self.messages, Self::LEN), 1 << 15);
    }
}

fn signal(process: Process, signal: Signal) -> Result<(), Failure> {
    Ok(kill(Pid::from_raw(process.0.try_into()?), signal)?)
}

/// Kills the attacker's worker whenever it is there, as long as the attack goes on and at least so many times; `meanwhile` is done
/// between. Gives how often.
///
/// # Errors
/// It is not there often enough, or does not come up.
fn kill_over_and_over(
    place: &Attacker,
    mut before: impl FnMut(&Attacker) -> Result<(), Failure>,
    mut meanwhile: impl FnMut(),
) -> Result<u64, Failure> {
    const LEAST: u64 = 3;
    const LIMIT: Duration = Duration::from_secs(30);
    let (mut last, mut times) = (None, 0);
    let mut rounds = place.rounds();
    let until = Instant::now() + LIMIT;
    while rounds.next().is_some() || times < LEAST {
        if Instant::now() > until {
            return Err(format!("its worker was there {times} times only").into());
        }
        meanwhile();
        let Some(worker) = place.worker(ATTACKER).filter(|worker| Some(worker.0) != last) else { continue };
        before(place)?;
        signal(worker, Signal::SIGKILL)?;
        last = Some(worker.0);
        times += 1;
    }
    Ok(times)
}

/// Its worker dies with its adapter up. The next client of its socket finds another.
///
/// # Errors
/// It does not come up.
pub fn killed(place: &Attacker) -> Result<String, Failure> {
    let attached = |place: &Attacker| place.driver(MEMORY).map(drop);
    let times = kill_over_and_over(place, attached, || std::thread::sleep(Duration::from_millis(5)))?;
    place.driver(MEMORY)?;
    Ok(format!("its worker was killed {times} times"))
}

fn killed_beside(place: &Attacker) -> Result<String, Failure> {
    let mut talk = Talk::between(place, ["b", "c"])?;
    let attached = |place: &Attacker| place.driver(MEMORY).map(drop);
    let times = kill_over_and_over(place, attached, || talk.go_on())?;
    // Whoever comes next is served, and reached.
    let Talk { pair, messages } = talk;
    pair.close()?;
    Talk::between(place, [ATTACKER, "b"])?.go_on();
    Ok(format!("its worker was killed {times} times; {messages} messages between two others"))
}

/// The same while packets of its are under way to a host that talks to another.
fn killed_flooding(place: &Attacker) -> Result<String, Failure> {
    let mut talk = Talk::between(place, ["b", "c"])?;
    let lid = talk.pair.hcas[0].lid(crate::pair::PORT)?;
    let mut flooding = None;
    let flood = |place: &Attacker| {
        flooding = Some(super::fabric::begin_flood(place, lid)?);
        Ok::<(), Failure>(())
    };
    let times = kill_over_and_over(place, flood, || talk.go_on())?;
    drop(flooding);
    Ok(format!(
        "its worker was killed {times} times in a flood; {} messages between two others",
        talk.messages
    ))
}

/// Its worker takes nothing any more, not even what its link brings, and answers nobody.
fn stopped(place: &Attacker) -> Result<String, Failure> {
    let mut talk = Talk::between(place, ["b", "c"])?;
    let mut own = place.driver(MEMORY)?;
    wait_active(&mut own)?;
    let worker = place.worker(ATTACKER).ok_or("it has no worker")?;
    worker.stop()?;
    let mut during = || -> Result<(), Failure> {
        let asked = hca_server::control::query(&place.control(), "stat")?;
        if asked["errors"][format!("host {ATTACKER}")].is_null() {
            return Err(format!("the operator does not hear of it: {}", asked["errors"]).into());
        }
        place.rounds().for_each(|_| talk.go_on());
        Ok(())
    };
    let result = during();
    worker.go_on()?;
    result?;
    // It goes on where it was.
    if own.bus_mut().mmio_read32(0) == u32::MAX {
        return Err("its adapter is gone".into());
    }
    Ok(format!("{} messages between two others", talk.messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_there() {
        let names: Vec<_> = ALONE.iter().copied().flatten().map(|row| row.name).collect();
        let missing: Vec<_> = OTHERS.iter().filter(|name| !names.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(
            ALONE.iter().copied().flatten().all(|row| !row.setting.apart && !row.name.starts_with(AGAIN))
        );
    }
}
