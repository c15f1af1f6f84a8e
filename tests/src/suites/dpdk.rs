//! DPDK's own driver for the adapter, in user space: `testpmd` in host `a` forwards between two adapters, and hosts `b` and `c`
//! with the kernel's driver talk to each other through it.
//!
//! `tests/guest/dpdk.sh` has the words of the scripts, beside those of `cases.sh`.

use super::Case;
use super::guest::{Command, HOST, Network, Ready, run_in};

/// Debian's packages of its programs, of the driver, and of what keeps its buffers.
const PACKAGES: [&str; 3] = ["dpdk-dev", "librte-net-mlx5-25", "librte-meta-mempool"];

/// Of three guests, the first is the one between the others.
pub fn cases(kernel: &str) -> Vec<Case> {
    run_in(&["guest/dpdk.sh"], &PACKAGES, "testpmd: ", "eth-dpdk", kernel, &commands())
}

/// In host `a`, when the others have come as far.
fn told(name: &str, script: &str) -> [Command; 2] {
    [
        Command::meeting(format!("{name}: now")),
        Command::everywhere(name, format!("[ $(hostname) != a ] || {{ . /root/dpdk.sh; {script}; }}")),
    ]
}

/// Host `b` listens, `c` calls it.
fn through(name: &str, server: &str, ready: Ready, client: &str) -> Command {
    Command::sides(server, ready, client).over(Network::Ethernet).named(name)
}

fn commands() -> Vec<Command> {
    let ping = |name: &str| {
        through(
            name,
            "true",
            Ready::Started,
            &format!(
                "until_true 60 ping -c 1 -W 2 {HOST} >/dev/null; shows ' 0% packet loss' ping -c 10 -i 0.2 {HOST}"
            ),
        )
    };
    // What comes within ten seconds: the harness waits as long for a server when its client has ended.
    let hears = |port: u16| {
        format!("timeout 10 nc -u -l -W 1 {port} >/tmp/heard & echo ready; wait $!; grep hello /tmp/heard")
    };
    let says = |port: u16| {
        format!("sleep 1; for n in 1 2 3; do echo hello | nc -u -N -w 1 {HOST} {port}; done; true")
    };
    let mut all = vec![Command::everywhere(
        "set up",
        "until_true 60 grep -q 1 /sys/class/net/hca0/carrier; ip -br address; rdma link",
    )];
    all.extend(told(
        "nobody forwards",
        "shows 'HugePages_Free: *256' cat /proc/meminfo && mountpoint /dev/hugepages",
    ));
    all.push(through("nothing comes", "true", Ready::Started, &format!("fails ping -c 2 -W 1 {HOST}")));
    all.extend(told(
        "start",
        "testpmd --rxq=2 --txq=2 && cat /tmp/testpmd.log && tell_testpmd show port summary all",
    ));
    all.extend(told("forward", "tell_testpmd set fwd io && tell_testpmd start"));
    all.push(ping("ping"));
    all.push(through(
        "iperf3",
        "iperf3 -s -1",
        Ready::Tcp(5201),
        &format!("shows 'receiver$' iperf3 -c {HOST} -n 3M"),
    ));
    all.push(through(
        "iperf3 -u -P 8",
        "iperf3 -s -1",
        Ready::Tcp(5201),
        &format!("shows 'receiver$' iperf3 -c {HOST} -u -P 8 -b 1M -t 3"),
    ));
    all.extend(told(
        "flows are spread",
        "tell_testpmd show port xstats 1; [ $(counted 1 rx_q0_packets) -gt 10 ] && [ $(counted 1 rx_q1_packets) -gt 10 ]",
    ));
    all.extend(told(
        "nothing was lost inside",
        "tell_testpmd show port stats all; [ $(counted 0 rx_errors) = 0 ] && [ $(counted 1 rx_errors) = 0 ] && [ $(counted 0 tx_errors) = 0 ]",
    ));
    all.extend(told(
        "rules",
        "tell_testpmd flow validate 1 ingress pattern eth / ipv4 / udp dst is 7300 / end actions drop / end &&
        tell_testpmd flow create 1 ingress pattern eth / ipv4 / udp dst is 7300 / end actions drop / end &&
        tell_testpmd flow create 1 ingress pattern eth / ipv4 / udp dst is 7301 / end actions queue index 1 / end &&
        shows 'UDP.*DROP' tell_testpmd flow list 1 && shows 'UDP.*QUEUE' tell_testpmd flow list 1",
    ));
    all.push(through(
        "a rule drops",
        &format!("! {{ {}; }}", hears(7300)),
        Ready::Says("ready"),
        &says(7300),
    ));
    all.extend(told("before the other rule", "counted 1 rx_q1_packets >/tmp/before; cat /tmp/before"));
    all.push(through("a rule lets through", &hears(7301), Ready::Says("ready"), &says(7301)));
    all.extend(told(
        "to its queue",
        "after=$(counted 1 rx_q1_packets); echo $after; [ $after -ge $(($(cat /tmp/before) + 3)) ]",
    ));
    all.extend(told("no rules", "tell_testpmd flow flush 1 && fails shows UDP tell_testpmd flow list 1"));
    all.push(through("no rule drops", &hears(7300), Ready::Says("ready"), &says(7300)));
    for mode in ["mac", "macswap", "flowgen", "txonly", "rxonly", "csum"] {
        all.extend(told(
            &format!("mode {mode}"),
            &format!("tell_testpmd stop && tell_testpmd set fwd {mode} && tell_testpmd start; sleep 2; tell_testpmd stop"),
        ));
    }
    all.extend(told("io again", "tell_testpmd set fwd io && tell_testpmd start"));
    all.push(ping("io again: ping"));
    all.extend(told(
        "link",
        "tell_testpmd stop && tell_testpmd port stop all && tell_testpmd port config mtu 0 3000 && tell_testpmd port start all && tell_testpmd start",
    ));
    all.push(ping("link: ping"));
    all.extend(told("quit", "testpmd_ends"));
    all.extend(told("the kernel has them again", "until_true 30 ping -c 1 -W 1 10.1.0.2"));
    all.extend(told(
        "dpdk-test-flow-perf",
        "shows '[Ii]nsertion' dpdk-test-flow-perf -l 0-1 -a $(slot hca0) -- --ingress --ether --ipv4 --queue --rules-count=1000 --rules-batch=100 --deletion-rate",
    ));
    all.push(Command::meeting("after all"));
    all
}
