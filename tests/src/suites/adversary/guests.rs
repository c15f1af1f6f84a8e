//! A real QEMU with the stock driver as victim: its pingpong goes on while another adapter of the server is attacked from. And the server
//! itself is killed and started again: what QEMU sees, while the victim of another server on the machine sees nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hca_server::control;
use hca_vm::guest::{Guest, State, Task};
use hca_vm::kmsg;
use hca_vm::lab::{Lab, Options};

use regex::Regex;

use super::stage::{ATTACKER, Attacker, Failure, MEMORY, Scratch, Setting, Stage, VICTIM, driver};
use super::victim::{Seen, Victim};
use super::{Attack, BOUNDS, beyond, described, objects, peers, words, work, workers};
use crate::guests::{HANG, Job, turn};
use crate::process::Process;
use crate::suites::{Case, KERNELS, Outcome};

/// The cases: a name, what is done, and whether each host has a process of its own.
const ROWS: &[(&str, Attack, bool)] = &[
    ("QEMU: pingpong during bursts of 1000 writes of 1 MiB at MTU 256", work::small_packets, false),
    ("QEMU: pingpong while 10 queue pairs retry for ever", peers::never_ready, false),
    ("QEMU: pingpong while 16384 queue pairs are made and destroyed", objects::churned, false),
    ("QEMU: pingpong while another's worker is killed, over and over", workers::killed, true),
];

/// Cases in which the server is killed and started again: a name, and whether the adapter is in a slot that it can be taken out of.
const RESTARTS: &[(&str, bool)] = &[
    ("QEMU: its server is killed and started again, the adapter in a slot", true),
    ("QEMU: its server is killed and started again, the adapter in no slot", false),
];

/// Marks a round of the pingpong in the guest's output.
const MARK: &str = "@round ";
/// Rounds before the attack, and after it.
const ROUNDS: usize = 2;
/// The attack is repeated for so long: a round takes seconds in an emulated guest.
const ATTACKS: Duration = Duration::from_secs(20);

/// How many cases there are, and how many of them have a process for each host.
pub fn count() -> (usize, usize) {
    (ROWS.len() + RESTARTS.len(), ROWS.iter().filter(|(.., apart)| *apart).count())
}

/// The cases whose names have the text.
pub fn cases(chosen: &str) -> Vec<Case> {
    let case = |name: &str, run: &dyn Fn() -> Result<String, Failure>| {
        let start = Instant::now();
        let (outcome, detail) = match run() {
            Ok(seen) => (Outcome::Passed, seen),
            Err(why) => (Outcome::Failed, why.to_string()),
        };
        Case::new(name, outcome, start.elapsed().as_secs_f64(), detail)
    };
    let rows = ROWS.iter().filter(|(name, ..)| name.contains(chosen));
    let rows = rows.map(|(name, attack, apart)| case(name, &|| tried(*attack, *apart)));
    let restarts = RESTARTS.iter().filter(|(name, _)| name.contains(chosen));
    rows.chain(restarts.map(|(name, slot)| case(name, &|| restarted(*slot)))).collect()
}

fn rounds(guest: &Guest) -> usize {
    guest.output().matches(MARK).count()
}

fn tried(attack: Attack, apart: bool) -> Result<String, Failure> {
    let _turn = turn(2);
    let scratch = Scratch::new()?;
    let topology = scratch.path().join("topology.toml");
    std::fs::write(&topology, Setting::default().text())?;
    let isolation = ["--isolation", "process"].map(str::to_owned);
    let serve = if apart { Vec::from(isolation) } else { Vec::new() };
    let options =
        Options { kernel: KERNELS[0].into(), serve, ..Options::new(topology.display().to_string()) };
    let mut lab = Lab::start(options, &[])?;
    let script = format!(
        "for round in $(seq 1000); do
            pair ibv_rc_pingpong -c -s 4096 -n 100 >/tmp/out || {{ cat /tmp/out; return 1; }}
            echo '{MARK}'$round
        done"
    );
    let mut guest = lab.boot(VICTIM, Task::Job(Job::new().step("pingpong", script).text()))?;
    guest.wait_until(HANG, |guest| *guest.state() == State::Ready)?;
    guest.go();
    guest.wait_until(HANG, |guest| rounds(guest) >= ROUNDS || ended(guest))?;
    let server = Process(lab.servers_mut().of(None)?.id());
    let before_kib = server.family_kib();
    let place = Attacker::of(scratch.path(), &lab.servers().dir(None));
    let (mut longest, mut peak_kib, first) = (Duration::ZERO, before_kib, rounds(&guest));
    let attacked = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let until = Instant::now() + ATTACKS;
            let mut did = String::new();
            while Instant::now() < until {
                did = attack(&place).map_err(|why| why.to_string())?;
            }
            Ok(did)
        });
        let (mut seen, mut since) = (first, Instant::now());
        while !thread.is_finished() && !ended(&guest) {
            guest.poll(|_| ());
            longest = longest.max(since.elapsed());
            if rounds(&guest) > seen {
                (seen, since) = (rounds(&guest), Instant::now());
            }
            peak_kib = peak_kib.max(server.family_kib());
            std::thread::sleep(Duration::from_millis(20));
        }
        thread.join().unwrap_or_else(|panic| Err(words(&*panic)))
    });
    let during = rounds(&guest) - first;
    let wanted = rounds(&guest) + ROUNDS;
    let after = guest.wait_until(HANG, |guest| rounds(guest) >= wanted || ended(guest));
    let mut complaints = Vec::new();
    if !lab.servers_mut().alive() {
        complaints.push("the server died".to_owned());
    }
    if ended(&guest) || after.is_err() {
        complaints.push(format!("the pingpong did not go on:\n{}", guest.output()));
    }
    if during == 0 {
        complaints.push("no round of the pingpong ended during the attack".to_owned());
    }
    complaints.extend(kmsg::bad_lines(guest.kernel_log(), &[]).iter().map(ToString::to_string));
    if peak_kib - before_kib > BOUNDS.memory_kib {
        complaints.push(format!("the server's memory grew to {} MiB", peak_kib >> 10));
    }
    let did = attacked.unwrap_or_else(|why| {
        complaints.push(format!("the attack: {why}"));
        "nothing".to_owned()
    });
    guest.kill();
    let seen = format!(
        "{did}; {during} rounds of 100 pingpongs meanwhile, longest {longest:.1?}; memory {} to {} MiB",
        before_kib >> 10,
        peak_kib >> 10
    );
    match complaints.is_empty() {
        true => Ok(seen),
        false => Err(format!("{}\n{seen}", complaints.join("\n")).into()),
    }
}

/// Whether the guest does nothing any more: its pingpong has no end of its own.
fn ended(guest: &Guest) -> bool {
    matches!(guest.state(), State::Done(_) | State::Died)
}

/// What a server that is gone looks like to a driver is surprise removal, and drivers say so.
const REMOVED: &str = "^(mlx5_core|pcieport|infiniband) ";
/// How long an adapter that does not come back is waited for.
const QUIET: Duration = Duration::from_secs(10);

/// What the guest does: the lines that it says are what the case waits for.
fn job(slot: bool) -> Job {
    const TALK: &str = "pair ibv_rc_pingpong -c -s 4096 -n 100 >/tmp/out || { cat /tmp/out; false; }";
    let job = Job::new().step("before", format!("{TALK}\necho @ it talks"));
    let there = "there() { [ $(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor 2>/dev/null | wc -l) = $1 ]; }";
    match slot {
        true => job
            .step("out", format!("{there}\nuntil there 0; do sleep 0.2; done\necho @ it is out"))
            .step(
                "in",
                format!(
                    "{there}\nuntil there 1 && grep -q ACTIVE /sys/class/infiniband/*/ports/1/state
                    do sleep 0.5; done\n{TALK}\necho @ it talks again"
                ),
            ),
        false => job
            .step(
                "gone",
                "until dmesg | grep -Eq 'mlx5_core.*(poll_health|[Hh]ealth|[Ff]atal error)'; do sleep 0.5; done
                echo @ its driver has noticed",
            )
            .step("others", "while sleep 0.5; do echo @ it goes on; done"),
    }
}

/// A QEMU's server is killed, and started again, while another server's victim lives.
fn restarted(slot: bool) -> Result<String, Failure> {
    let _turn = turn(1);
    let mut other = Stage::set(&Setting::default())?;
    let victim = Victim::new(&other.attacker(), (other.serves(VICTIM)?, other.process()), false)?;
    let over = AtomicBool::new(false);
    let (seen, (lived, did)) = std::thread::scope(|scope| {
        let living = scope.spawn(|| victim.live(&over));
        let did = followed(slot).map_err(|why| why.to_string());
        over.store(true, Ordering::Relaxed);
        let (seen, lived) = living.join().unwrap_or_else(|panic| (Seen::default(), Err(words(&*panic))));
        (seen, (lived, did))
    });
    let mut complaints = beyond(&seen, other.logged(), &BOUNDS);
    complaints.extend(lived.err().map(|why| format!("the other server's victim: {why}")));
    complaints.extend((!other.server.alive()).then(|| "the other server died".to_owned()));
    let did = did.unwrap_or_else(|why| {
        complaints.push(why);
        "not to the end".to_owned()
    });
    let seen = format!("{did}; beside it {}", described(&seen, other.logged(), ""));
    match complaints.is_empty() {
        true => Ok(seen),
        false => Err(format!("{}\n{seen}", complaints.join("\n")).into()),
    }
}

/// The guest's way, with its server gone in the middle.
fn followed(slot: bool) -> Result<String, Failure> {
    let scratch = Scratch::new()?;
    let topology = scratch.path().join("topology.toml");
    let hotplug = format!("name = \"{VICTIM}\"\nhotplug = {slot}\n");
    let text = Setting::default().text().replace(&format!("name = \"{VICTIM}\"\n"), &hotplug);
    std::fs::write(&topology, text)?;
    let options = Options { kernel: KERNELS[0].into(), ..Options::new(topology.display().to_string()) };
    let mut lab = Lab::start(options, &[])?;
    let mut guest = lab.boot(VICTIM, Task::Job(job(slot).text()))?;
    guest.wait_until(HANG, |guest| *guest.state() == State::Ready)?;
    guest.go();
    said(&mut guest, "@ it talks")?;
    lab.servers_mut().of(None)?.kill();
    let gone = Instant::now();
    said(&mut guest, if slot { "@ it is out" } else { "@ its driver has noticed" })?;
    let noticed = gone.elapsed();
    lab.restart(None)?;
    // Whoever comes is served by the successor.
    let place = Attacker::of(scratch.path(), &lab.servers().dir(None));
    drop(driver(place.bus(ATTACKER, MEMORY)?)?);
    if slot {
        said(&mut guest, "@ it talks again")?;
    } else {
        let (lines, since) = (said_times(&guest), Instant::now());
        while since.elapsed() < QUIET || said_times(&guest) < lines + 4 {
            guest.poll(|_| ());
            if ended(&guest) || since.elapsed() > HANG {
                return Err(format!("the guest does not go on:\n{}", guest.output()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let stat = control::query(&place.control(), "stat")?;
    let commands = stat["hcas"]
        .as_array()
        .and_then(|all| all.iter().find(|hca| hca["name"] == format!("{VICTIM}/hca0")))
        .and_then(|hca| hca["adapter"]["commands"].as_u64())
        .ok_or("the successor does not know the adapter")?;
    let bad: Vec<String> = kmsg::bad_lines(guest.kernel_log(), &[Regex::new(REMOVED)?])
        .iter()
        .map(ToString::to_string)
        .collect();
    let alive = lab.servers_mut().alive();
    guest.kill();
    match (slot, commands) {
        _ if !bad.is_empty() => Err(bad.join("\n").into()),
        _ if !alive => Err("the successor died".into()),
        (false, 1..) => Err("QEMU has come back, though it can't: the documents say otherwise".into()),
        (false, _) => Ok(format!("noticed after {noticed:.1?}, the guest goes on, never reattached")),
        (true, _) => {
            Ok(format!("out after {noticed:.1?}, and in again {:.1?} later", gone.elapsed() - noticed))
        }
    }
}

/// Lines of a guest that has nothing else to do.
fn said_times(guest: &Guest) -> usize {
    guest.output().matches("@ it goes on").count()
}

/// Waits until the guest says that.
fn said(guest: &mut Guest, text: &str) -> Result<(), Failure> {
    // In a step's script the words are there before they are said, but not at the beginning of a line.
    let is_there = |guest: &Guest| guest.output().lines().any(|line| line.trim() == text);
    let outcome = guest.wait_until(HANG, |guest| is_there(guest) || ended(guest));
    match outcome.is_ok() && is_there(guest) {
        true => Ok(()),
        false => Err(format!("the guest never said {text:?}:\n{}", guest.output()).into()),
    }
}
