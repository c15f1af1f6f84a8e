//! perftest: every program with every transport it has, and its modes.

use super::Case;
use super::guest::{Command, run};

/// TCP port; not the default one, which the pingpongs use too.
const PORT: u16 = 18516;

/// In one guest and between two.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut cases = run("loopback: ", "loopback", kernel, &commands());
    cases.extend(run("two hosts: ", "two-hosts", kernel, &commands()));
    cases.extend(run("cable: ", "cable", kernel, &multicast()));
    cases
}

/// Groups that a subnet manager has to make.
fn multicast() -> Vec<Command> {
    let mut all = vec![Command::alone("opensm", "manage"), Command::everywhere("active", "active")];
    for command in ["ib_send_bw -c UD -g -s 1024 -n 100", "ib_send_lat -c UD -g -s 256 -n 100"] {
        all.push(Command::pair(format!("measured {command} -F -p {PORT}"), PORT).named(command));
    }
    all
}

fn commands() -> Vec<Command> {
    let mut all = Vec::new();
    let mut add = |command: String| {
        all.push(Command::pair(format!("{command} -F -p {PORT}"), PORT).named(command));
    };
    for (program, transports) in
        [("send", &["RC", "UC", "UD", "XRC"][..]), ("write", &["RC", "UC", "XRC"]), ("read", &["RC", "XRC"])]
    {
        for transport in transports {
            for kind in ["bw", "lat"] {
                add(format!("ib_{program}_{kind} -c {transport} -n 200 -s 2048"));
            }
        }
        for kind in ["bw", "lat"] {
            // 2 bytes to 8 MiB.
            add(format!("ib_{program}_{kind} -a -n 20"));
            add(format!("ib_{program}_{kind} -n 100 -s 64 -x 0"));
        }
        add(format!("ib_{program}_bw -n 100 -q 8"));
        add(format!("ib_{program}_bw -n 100 -b"));
        add(format!("ib_{program}_bw -n 100 -m 512 -s 10000"));
        add(format!("ib_{program}_bw -n 128 -l 8"));
        add(format!("ib_{program}_bw -D 2"));
    }
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        for transport in ["RC", "XRC"] {
            for program in ["bw", "lat"] {
                add(format!("ib_atomic_{program} -A {kind} -c {transport} -n 200"));
            }
        }
    }
    add("ib_atomic_bw -o 16 -q 4 -n 200".into());
    add("ib_read_bw -o 16 -n 200".into());
    // Small messages inside of the work request.
    add("ib_send_lat -I 64 -s 64 -n 200".into());
    add("ib_write_bw -I 32 -s 32 -n 200".into());
    add("ib_send_lat -c UD -I 64 -s 64 -n 200".into());
    // Completion events, moderation of completions.
    add("ib_send_bw -e -n 100".into());
    add("ib_send_lat -e -n 100".into());
    add("ib_read_lat -e -n 100".into());
    add("ib_send_bw -e -c UD -s 1024 -n 100".into());
    add("ib_write_bw -Q 16 -n 256".into());
    add("ib_send_bw -Q 1 -n 256".into());
    // A receive queue for many.
    add("ib_send_bw --use-srq -q 4 -n 100".into());
    add("ib_send_lat --use-srq -n 100".into());
    // Immediate data, a region for each queue pair, a window over the data.
    add("ib_write_bw --write_with_imm -n 200".into());
    add("ib_send_bw --mr_per_qp -q 4 -n 100".into());
    all
}
