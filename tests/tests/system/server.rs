//! A server that is killed under a running guest, and its successor.

use std::time::{Duration, Instant};

use hca_server::control;
use hca_tests::guests::{HANG, Job, topology, turn};
use hca_vm::guest::{Guest, State, Task};
use hca_vm::kmsg;
use hca_vm::lab::{Lab, Options};
use regex::Regex;

/// What a killed server looks like to a driver is surprise removal, and drivers say so.
const KNOWN: &str = "^(mlx5_core|pcieport|infiniband) ";

fn wait(guest: &mut Guest, text: &str) {
    let ended = |guest: &Guest| matches!(guest.state(), State::Done(_) | State::Died);
    let outcome = guest.wait_until(HANG, |guest| guest.output().contains(text) || ended(guest));
    let log: Vec<_> = guest.kernel_log().iter().map(ToString::to_string).collect();
    assert!(
        outcome.is_ok() && guest.output().contains(text),
        "never {text:?}\n{}\n{}",
        guest.output(),
        log[log.len().saturating_sub(40)..].join("\n")
    );
}

fn begin(lab: &Lab, job: &Job) -> Guest {
    let mut guest = lab.boot("a", Task::Job(job.text())).expect("a guest");
    guest.wait_until(HANG, |guest| *guest.state() == State::Ready).expect("a ready guest");
    guest.go();
    guest
}

/// Adapters that have executed a command since the server began: somebody uses them.
fn clients(lab: &Lab) -> usize {
    let socket = lab.servers().dir(None).join(control::SOCKET);
    let stat = control::query(&socket, "stat").expect("the server answers");
    let hcas = stat["hcas"].as_array().expect("adapters").iter();
    hcas.filter(|hca| hca["adapter"]["commands"].as_u64().expect("a count") > 0).count()
}

/// The guest's adapters are in slots: they go with their server, without a word, and come back with its successor. Everything else
/// of the guest goes on, and no bug of its kernel's is met.
#[test]
fn adapters_in_slots_come_back_with_the_server() {
    let _turn = turn(1);
    let options = Options::new(topology("slots.toml"));
    let mut lab = Lab::start(options, &[]).expect("a server");
    let there = "there() { [ $(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor 2>/dev/null | wc -l) = $1 ]; }";
    let active = "active() { [ $(cat /sys/class/infiniband/*/ports/1/state | grep -c ACTIVE) = $1 ]; }";
    let talk = "first=$(ls /sys/class/infiniband | head -n 1) second=$(ls /sys/class/infiniband | tail -n 1)
        ibv_rc_pingpong -d $first -c -n 200 >/tmp/out 2>&1 & listening 18515 $! &&
        ibv_rc_pingpong -d $second -c -n 200 localhost && wait $! || { cat /tmp/out; false; }";
    let job = Job::new()
        .step("before", format!("{there}\n{active}\nuntil active 2; do sleep 0.2; done\n{talk}\necho they talk"))
        .step("out", format!("{there}\nuntil there 0; do sleep 0.2; done\necho they are out"))
        .step("in", format!("{there}\n{active}\nuntil there 2 && active 2; do sleep 0.5; done\n{talk}\necho they talk again"));
    let mut guest = begin(&lab, &job);
    wait(&mut guest, "they talk");
    lab.servers_mut().of(None).expect("a server").kill();
    wait(&mut guest, "they are out");
    assert!(!guest.output().contains("they talk again"));
    lab.restart(None).expect("a server again");
    wait(&mut guest, "they talk again");
    guest.wait_until(HANG, |guest| matches!(guest.state(), State::Done(_))).expect("an end");
    assert_eq!(*guest.state(), State::Done(0), "{}", guest.output());
    assert!(guest.problems().is_empty(), "{:?}", guest.problems());
    assert_eq!(clients(&lab), 2);
    let bad = kmsg::bad_lines(guest.kernel_log(), &[Regex::new(KNOWN).expect("it is one")]);
    assert!(bad.is_empty(), "{bad:?}");
    guest.kill();
    assert!(lab.servers_mut().alive());
}

/// Without slots QEMU keeps an adapter whose server is gone, and never asks for the successor: registers are all ones, which the driver
/// says, everything else goes on, and the next QEMU is served.
#[test]
fn without_slots_qemu_does_not_find_the_successor() {
    const QUIET: Duration = Duration::from_secs(10);
    let _turn = turn(1);
    let mut lab = Lab::start(Options::new("loopback"), &[]).expect("a server");
    let talk = "pair ibv_rc_pingpong -c -n 200";
    // The last word of a step is its status.
    let job = Job::new()
        .step("before", format!("{talk}\necho it talks"))
        .step(
            "gone",
            "until dmesg | grep -Eq 'mlx5_core.*(poll_health|[Hh]ealth|[Ff]atal error)'; do sleep 0.5; done
            lspci -vv -s $slot | grep -i 'rev ff' || setpci -s $slot 0.w
            echo its driver has noticed",
        )
        .step("others", "while sleep 0.5; do echo the guest goes on; done");
    let mut guest = begin(&lab, &job);
    wait(&mut guest, "it talks");
    lab.servers_mut().of(None).expect("a server").kill();
    wait(&mut guest, "its driver has noticed");
    lab.restart(None).expect("a server again");
    let (before, since) = (guest.output().matches("goes on").count(), Instant::now());
    while since.elapsed() < QUIET || guest.output().matches("goes on").count() < before + 4 {
        guest.poll(|_| ());
        assert!(!matches!(guest.state(), State::Done(_) | State::Died), "{}", guest.output());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(clients(&lab), 0, "QEMU has come back");
    guest.kill();
    let mut next = begin(&lab, &Job::new().step("again", talk));
    next.wait_until(HANG, |guest| matches!(guest.state(), State::Done(_))).expect("an end");
    assert_eq!(*next.state(), State::Done(0), "{}", next.output());
    let bad = kmsg::bad_lines(next.kernel_log(), &[]);
    assert!(bad.is_empty(), "{bad:?}");
    next.kill();
    assert!(lab.servers_mut().alive());
}
