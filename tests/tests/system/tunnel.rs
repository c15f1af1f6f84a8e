//! Two server processes, each in a network namespace of its own, one guest each, and a cable between them that is a
//! tunnel. One process and its guest are killed and started again: the other guest sees its link go down and come
//! back, and everything works as before.

use std::time::Duration;

use hca_tests::guests::{HANG, Job, turn};
use hca_vm::guest::{Guest, State, Task};
use hca_vm::kmsg;
use hca_vm::lab::{Lab, Options};

/// Waits until the port is as wanted.
const STATE: &str = "port_is() {
    until grep -q $1 /sys/class/infiniband/*/ports/1/state; do sleep 0.2; done
}";
const INTERFACE_UP: &str = "ip link set ib0 up";

/// What `a` does with `b`. OpenSM gives the LIDs 1 and 2.
fn offers(job: Job, ping: &'static str, write: &'static str, ip: &'static str) -> Job {
    job.step(
        ping,
        "hear; lid=$((3 - $(printf %d $(cat /sys/class/infiniband/*/ports/1/lid)))); ibping -c 5 $lid",
    )
    .step(write, "offer b ib_write_bw -F -n 200 -s 16384")
    .step(ip, "hear; ping -c 3 -w 60 10.11.0.2")
}

/// The same on the other side.
fn accepts(job: Job) -> Job {
    job.step("active", format!("{STATE}; port_is ACTIVE"))
        .step("ibping", "ibping -S & sleep 1; tell a")
        .step("write", "accept ib_write_bw -F -n 200 -s 16384 a")
        .step(
            "ipoib",
            format!("modprobe ib_ipoib; ip address add 10.11.0.2/24 dev ib0; {INTERFACE_UP}; tell a; hear"),
        )
}

fn job(lab: &Lab, host: &str, job: &Job) -> Guest {
    lab.boot(host, Task::Job(job.text())).expect("a guest")
}

/// Lets guests begin when all are ready.
fn go(guests: &mut [&mut Guest]) {
    for guest in guests.iter_mut() {
        guest.wait_until(HANG, |guest| *guest.state() == State::Ready).expect("a ready guest");
    }
    guests.iter_mut().for_each(|guest| guest.go());
}

fn printed(lab: &Lab, guest: &mut Guest, text: &str) {
    let ended = |guest: &Guest| matches!(guest.state(), State::Done(_));
    let outcome = guest.wait_until(HANG, |guest| guest.output().contains(text) || ended(guest));
    let output = guest.output();
    assert!(
        outcome.is_ok() && output.contains(text),
        "never {text:?}\n{}: {output}\n{}",
        guest.name(),
        lab.servers().messages()
    );
}

#[test]
fn a_process_is_killed_and_comes_back() {
    let _turn = turn(2);
    let mut lab = Lab::start(Options::new("two-processes"), &[]).expect("two servers");
    let a = Job::new()
        .step("opensm", "opensm -f /tmp/opensm.log >/tmp/opensm.out 2>&1 &")
        .step("active", format!("{STATE}; port_is ACTIVE"))
        .step("address", format!("modprobe ib_ipoib; ip address add 10.11.0.1/24 dev ib0; {INTERFACE_UP}"));
    let a = offers(a, "ibping", "write", "ipoib")
        .step("first part", "tell b; echo first part done")
        .step("down", format!("{STATE}; port_is DOWN; echo link went down"))
        .step("up", "port_is ACTIVE; echo link came back");
    let a = offers(a, "ibping again", "write again", "ipoib again")
        .step("end", "tell b; cat /tmp/opensm.log | grep -i error; true");
    let mut first = job(&lab, "a", &a);
    let mut second = job(&lab, "b", &accepts(Job::new()));
    go(&mut [&mut first, &mut second]);
    printed(&lab, &mut first, "first part done");
    // Power failure of one side.
    lab.servers_mut().of(Some("right")).expect("a server").kill();
    second.kill();
    printed(&lab, &mut first, "link went down");
    lab.servers_mut().restart(Some("right")).expect("a server again");
    let mut third = job(&lab, "b", &accepts(Job::new()));
    go(&mut [&mut third]);
    printed(&lab, &mut first, "link came back");
    for guest in [&mut first, &mut third] {
        let done = guest.wait_until(HANG, |guest| matches!(guest.state(), State::Done(_)));
        assert!(
            done.is_ok() && *guest.state() == State::Done(0),
            "{}\n{}",
            guest.output(),
            lab.servers().messages()
        );
        let complete = guest.wait_until(Duration::from_secs(60), Guest::log_is_complete);
        assert!(complete.is_ok(), "{complete:?}");
        let bad = kmsg::bad_lines(guest.kernel_log(), &[]);
        assert!(bad.is_empty(), "{bad:?}");
    }
    let messages = lab.servers().messages();
    assert!(messages.contains("process right is silent, link down"), "{messages}");
    assert_eq!(messages.matches("process right is there").count(), 2, "{messages}");
}
