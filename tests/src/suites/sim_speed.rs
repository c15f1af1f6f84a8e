//! How fast simulations are. Nothing here is judged by the clock alone: the processor's time of all processes is, and what one run takes
//! beside another. What the clock says stands in the details.

use std::path::Path;

use nix::sys::resource::{Usage, UsageWho, getrusage};

use super::Case;
use super::peers::case;
use super::sim::{Fabric, Process, Run, line, run};
use crate::fabric64;

/// Microseconds of model time for each second of the processor: two hosts at one cable, in two processes.
const LEAST: f64 = 1000.0;
/// A simulation of 64 adapters in one process may take so much more of the processor than [`fabric64`] does with the same.
const MORE: f64 = 1.1;
/// Simulated microseconds in a second by the clock, of one process and of eight: so many times more at most, in the same run of the suite. Both
/// cores of a machine with two are more than one process can use, and less than eight want.
const SLOWER: f64 = 2.0;
/// What is compared is the least of so many runs.
const TIMES: usize = 3;
/// What each of 64 hosts sends to each other one.
const MESSAGES: usize = 4;
const LEN: usize = 6000;

/// The processor's time so far, in seconds: of this process, or of those that it has waited for.
fn spent(who: UsageWho) -> Result<f64, String> {
    let usage: Usage = getrusage(who).map_err(|why| why.to_string())?;
    let seconds = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6);
    Ok(seconds.iter().sum())
}

/// A run, and what all of its processes took of the processor.
fn timed(run: impl FnOnce() -> Result<Run, String>) -> Result<(Run, f64), String> {
    let before = spent(UsageWho::RUSAGE_CHILDREN)?;
    let run = run()?;
    Ok((run, spent(UsageWho::RUSAGE_CHILDREN)? - before))
}

fn same(one: &Run, other: &Run) -> Result<(), String> {
    if (one.hashes, one.counts) == (other.hashes, other.counts) {
        Ok(())
    } else {
        Err(format!("two runs differ: {one:?} and {other:?}"))
    }
}

/// Two hosts, their adapters, and a cable whose ends are 105 ns apart; each host with its adapter is a process.
fn pair(program: &Path, folder: &Path) -> Result<String, String> {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    for host in ["a", "b"] {
        text += &format!(
            "[[process]]\nname = \"{host}\"\n[[host]]\nname = \"{host}\"\nprocess = \"{host}\"\n[[host.hca]]\n"
        );
    }
    text += "[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\nsimbricks = \"listen:cable.sock\"\n";
    let processes = ["a", "b"].map(Process::named);
    let more = ["--messages", "500", "--size", "4096", "--start", "2", "--until", "3"];
    let once = |time: usize| timed(|| run(program, &folder.join(time.to_string()), &text, &processes, &more));
    let (first, mut least) = once(0)?;
    let mut clock = first.rate;
    for time in 1..TIMES {
        let (run, took) = once(time)?;
        same(&first, &run)?;
        (least, clock) = (least.min(took), clock.max(run.rate));
    }
    let rate = 3000.0 / least;
    let said = format!("{rate:.0} us for each second of the processor, {clock:.0} by the clock");
    if rate >= LEAST { Ok(said) } else { Err(format!("{said}, and {LEAST} at least were to be")) }
}

/// The topology of [`fabric64`]: four switches with 16 hosts each, and four above them with four cables to each of those.
fn two_levels() -> String {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 64\n".to_owned();
    (0..4).for_each(|leaf| text += &format!("[[switch]]\nname = \"s{leaf}\"\nports = 32\n"));
    (4..8).for_each(|spine| text += &format!("[[switch]]\nname = \"s{spine}\"\nports = 16\n"));
    for host in 0..64 {
        text += &format!("[[host]]\nname = \"h{host}\"\n[[host.hca]]\n");
        text += &format!("[[link]]\nbetween = [\"h{host}/hca0\", \"s{}/{}\"]\n", host / 16, 1 + host % 16);
    }
    for cable in 0..64 {
        let (spine, leaf, n) = (cable / 16, cable / 4 % 4, cable % 4);
        let (up, down) = (17 + 4 * spine + n, 1 + 4 * leaf + n);
        text += &format!("[[link]]\nbetween = [\"s{leaf}/{up}\", \"s{}/{down}\"]\n", 4 + spine);
    }
    text
}

/// 64 adapters and 8 switches: as a simulation in one process, and in this one, as the suite `all-to-all` has them.
fn whole(program: &Path, folder: &Path) -> Result<String, String> {
    let (messages, len) = (MESSAGES.to_string(), LEN.to_string());
    // What waits in queues is not to look lost.
    let more = ["--messages", &messages, "--size", &len, "--ack-timeout", "18", "--no-hash"];
    let mut least = [f64::MAX; 2];
    let mut came = 0;
    for time in 0..TIMES {
        let folder = folder.join(time.to_string());
        let (run, took) = timed(|| run(program, &folder, &two_levels(), &[Process::default()], &more))?;
        let before = spent(UsageWho::RUSAGE_SELF)?;
        let report = fabric64::run(1, MESSAGES, LEN).map_err(|why| why.to_string())?;
        let own = spent(UsageWho::RUSAGE_SELF)? - before;
        least = [least[0].min(took), least[1].min(own)];
        came = run.messages;
        if came != report.messages as u64 {
            return Err(format!("{came} messages came, and {} in this process", report.messages));
        }
    }
    let [sim, direct] = least;
    let said = format!(
        "{came} messages in {sim:.2} s of the processor, {direct:.2} s as the suite all-to-all has them"
    );
    if sim <= MORE * direct { Ok(said) } else { Err(format!("{said}: more than {MORE} times that")) }
}

/// 64 adapters and 8 switches in 1, 2, 4 and 8 processes.
fn cut(program: &Path, folder: &Path, fabric: Fabric) -> Result<String, String> {
    let more = ["--messages", "1", "--size", "6000", "--start", "4", "--until", "8", "--ack-timeout", "14"];
    let mut first: Option<Run> = None;
    let (mut said, mut rates) = (String::new(), Vec::new());
    for processes in [1, 2, 4, 8] {
        let parts: Vec<_> = (0..processes).map(|process| Process::named(format!("p{process}"))).collect();
        let (mut least, mut clock) = (f64::MAX, 0f64);
        for time in 0..TIMES {
            let folder = folder.join(format!("{processes}-{time}"));
            let text = line(processes, 8, fabric, "");
            let (run, took) = timed(|| run(program, &folder, &text, &parts, &more))?;
            same(first.get_or_insert_with(|| run.clone()), &run)?;
            (least, clock) = (least.min(took), clock.max(run.rate));
        }
        said += &format!("{processes}: {least:.2} s of the processor, {clock:.0} us a second by the clock; ");
        rates.push(clock);
    }
    let counts = first.map(|run| run.counts).unwrap_or_default();
    let said = format!("{said}{counts:?} events, packets, completions");
    let (one, eight) = (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0));
    if one <= SLOWER * eight { Ok(said) } else { Err(format!("{said}: more than {SLOWER} times slower")) }
}

/// A pair, 64 adapters in one process, and in several.
pub(super) fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let cases = [
        case("speed: two hosts at one cable of 105 ns, in two processes", || {
            pair(program, &folder.join("speed"))
        }),
        case("speed: 64 adapters in one process", || whole(program, &folder.join("whole"))),
        case("scaling: 64 adapters in 1, 2, 4 and 8 processes", || {
            cut(program, &folder.join("cut"), Fabric::InfiniBand)
        }),
        // Two cables from every other switch to the next, and so circles of links between processes.
        case("scaling: 64 Ethernet adapters in 1, 2, 4 and 8 processes", || {
            cut(program, &folder.join("cut-eth"), Fabric::Ethernet(""))
        }),
    ];
    cases.into_iter().flatten().collect()
}
