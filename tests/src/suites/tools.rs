//! The tools that come with rdma-core and Debian: pingpongs, queries, diagnosis, qperf.

use super::Case;
use super::guest::{Command, run};

/// TCP port of the pingpongs.
const PINGPONG: u16 = 18515;
/// TCP port of qperf.
const QPERF: u16 = 19765;

/// In one guest and between two.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut one = queries();
    one.extend(pairs());
    one.push(reload());
    let mut cases = run("loopback: ", "loopback", kernel, &one);
    let mut two = queries();
    two.extend(pairs());
    two.push(events());
    cases.extend(run("two hosts: ", "two-hosts", kernel, &two));
    cases
}

fn pairs() -> Vec<Command> {
    let mut all: Vec<Command> = [
        "ibv_rc_pingpong -c",
        "ibv_rc_pingpong -c -g 0 -s 1048576 -n 50",
        "ibv_rc_pingpong -c -e -m 4096 -s 100000 -n 100",
        "ibv_rc_pingpong -c -t",
        "ibv_rc_pingpong -c -o -n 100",
        "ibv_rc_pingpong -c -o -P -n 100",
        "ibv_rc_pingpong -N -n 100",
        "ibv_uc_pingpong -c",
        "ibv_uc_pingpong -c -e -g 0 -s 65536 -n 100",
        "ibv_ud_pingpong -c -s 2048",
        "ibv_ud_pingpong -c -e -g 0",
        "ibv_srq_pingpong -c",
        "ibv_srq_pingpong -c -e -q 4 -g 0",
        "ibv_xsrq_pingpong",
        "ibv_xsrq_pingpong -e -g 0 -s 65536 -n 100",
    ]
    .map(|command| Command::pair(command, PINGPONG))
    .into();
    for test in [
        "rc_lat",
        "rc_bw",
        "rc_bi_bw",
        "uc_lat",
        "uc_bw",
        "ud_lat",
        "ud_bw",
        "rc_rdma_read_bw",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_rdma_read_lat",
        "rc_rdma_write_poll_lat",
        "uc_rdma_write_bw",
        "rc_compare_swap_mr",
        "rc_fetch_add_mr",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ] {
        all.push(Command::service("qperf", QPERF, "qperf -t 1", test));
    }
    all
}

fn queries() -> Vec<Command> {
    [
        ("ibv_devices", "ibv_devices | grep mlx5_0"),
        ("ibv_devinfo", "ibv_devinfo -v | tee /dev/stderr | grep PORT_ACTIVE"),
        ("ibstat", "ibstat; ibstat | grep 'State: Active' && ibstat | grep 'Physical state: LinkUp'"),
        ("ibstatus", "ibstatus; ibstatus | grep '4: ACTIVE'"),
        ("ibaddr", "ibaddr; ibaddr | grep 'LID start'"),
        (
            "smpquery nodeinfo",
            "smpquery -D nodeinfo 0; smpquery -D nodeinfo 0 | grep 'NodeType:.*Channel Adapter'",
        ),
        (
            "smpquery portinfo",
            "smpquery -D portinfo 0 1; smpquery -D portinfo 0 1 | grep 'LinkState:.*Active'",
        ),
        ("smpquery nodedesc", "smpquery -D nodedesc 0"),
        ("smpquery pkeys", "smpquery -D pkeys 0 1; smpquery -D pkeys 0 1 | grep 0xffff"),
        ("smpquery sl2vl", "smpquery -D sl2vl 0 1"),
        ("smpquery vlarb", "smpquery -D vlarb 0 1"),
        ("smpquery guidinfo", "smpquery -D guidinfo 0 1"),
        (
            "perfquery counts",
            "data() { perfquery -x | tee /dev/stderr | sed -n 's/^PortXmitData:\\.*//p'; }; before=$(data)
            ibv_rc_pingpong >/dev/null & sleep 1; ibv_rc_pingpong localhost && wait; after=$(data)
            [ \"$after\" -gt $((before + 1000 * 4096 / 4)) ]",
        ),
        (
            "perfquery resets",
            "data() { perfquery -x | sed -n 's/^PortXmitData:\\.*//p'; }; before=$(data); perfquery -x -R; after=$(data)
            echo \"$before, then $after\"; [ \"$before\" -gt 1000000 ] && [ \"$after\" -lt 10000 ]",
        ),
        ("rdma link", "rdma link; rdma link show mlx5_0/1 | grep 'state ACTIVE'"),
        (
            "rdma statistic",
            "rdma statistic show link mlx5_0/1; rdma statistic show link mlx5_0/1 | grep rx_write_requests",
        ),
        ("rdma resource", "rdma resource show; rdma resource show qp link mlx5_0/1 | grep GSI"),
    ]
    .into_iter()
    .map(|(name, script)| Command::alone(name, script))
    .collect()
}

/// ibv_asyncwatch sees the port go down and come back, as its cable does: the manager's key keeps others from resetting it.
fn events() -> Command {
    Command::alone(
        "ibv_asyncwatch",
        "stdbuf -oL ibv_asyncwatch >/tmp/events & watch=$!; sleep 2; outside
        for i in $(seq 60); do grep -q PORT_ACTIVE /tmp/events && break; sleep 1; done; kill $watch; cat /tmp/events
        grep PORT_ERR /tmp/events && grep PORT_ACTIVE /tmp/events && ibstat | grep 'State: Active'",
    )
    .with_outside("softhca ctl link down a:1; sleep 2; softhca ctl link up a:1")
}

fn reload() -> Command {
    Command::alone("reload", "modprobe -r mlx5_ib mlx5_core && modprobe mlx5_ib && ibv_devinfo")
}
