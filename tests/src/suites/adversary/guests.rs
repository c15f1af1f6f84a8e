//! A real QEMU with the stock driver as victim: its pingpong goes on while another adapter of the server is attacked from.

use std::time::{Duration, Instant};

use hca_vm::guest::{Guest, State, Task};
use hca_vm::kmsg;
use hca_vm::lab::{Lab, Options};

use super::stage::{Attacker, Failure, Scratch, Setting, VICTIM};
use super::{Attack, BOUNDS, objects, peers, words, work, workers};
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

/// Marks a round of the pingpong in the guest's output.
const MARK: &str = "@round ";
/// Rounds before the attack, and after it.
const ROUNDS: usize = 2;
/// The attack is repeated for so long: a round takes seconds in an emulated guest.
const ATTACKS: Duration = Duration::from_secs(20);

/// The cases whose names have the text.
pub fn cases(chosen: &str) -> Vec<Case> {
    let rows = ROWS.iter().filter(|(name, ..)| name.contains(chosen));
    rows.map(|(name, attack, apart)| {
        let start = Instant::now();
        let (outcome, detail) = match tried(*attack, *apart) {
            Ok(seen) => (Outcome::Passed, seen),
            Err(why) => (Outcome::Failed, why.to_string()),
        };
        Case::new(*name, outcome, start.elapsed().as_secs_f64(), detail)
    })
    .collect()
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
