//! IP over InfiniBand between guests, in datagram mode and in connected mode.

use super::Case;
use super::fabric::{CABLE, SWITCH, shape};
use super::guest::{Command, HOST, Ready, run};

/// Subnets that OpenSM in host `a` manages, and their shapes.
const TOPOLOGIES: [(&str, &str); 2] = [("cable", CABLE), ("switch", SWITCH)];
/// Port of iperf3.
const IPERF: u16 = 5201;

/// Between two guests.
pub fn cases(kernel: &str) -> Vec<Case> {
    TOPOLOGIES
        .iter()
        .flat_map(|(topology, lines)| run(&format!("{topology}: "), topology, kernel, &commands(lines)))
        .collect()
}

fn commands(lines: &str) -> Vec<Command> {
    let mut commands = set_up();
    commands.push(shape(lines));
    commands.extend(traffic("datagram", 20_000));
    commands.push(Command::everywhere("multicast", "shows ', 0% packet loss' ping -6 -c 3 ff02::1%ib0"));
    commands.push(mode("connected", 65520));
    commands.extend(traffic("connected", 60_000));
    commands.push(mode("datagram", 2044));
    commands.extend(traffic("datagram again", 1_000));
    commands.push(Command::everywhere("interface counters", "ip -s link show ib0; no_errors"));
    commands.push(Command::everywhere("reload", "modprobe -r ib_ipoib && ipoib"));
    commands.push(ping("after reload", ""));
    commands.push(log_of_opensm());
    commands.push(opensm_ends());
    commands
}

/// OpenSM has met no errors.
pub fn log_of_opensm() -> Command {
    Command::alone("opensm.log", "cat /var/log/opensm.log; ! grep ERR /var/log/opensm.log")
}

/// OpenSM in the first host, and an address in each.
pub fn set_up() -> Vec<Command> {
    vec![Command::alone("opensm", "manage"), Command::everywhere("set up", "ipoib")]
}

/// OpenSM ends in whatever host it runs. Otherwise it would sweep while hosts shut down, whose kernels complain of datagrams
/// without a receiver.
pub fn opensm_ends() -> Command {
    Command::everywhere(
        "opensm ends",
        "! pgrep -x opensm || { kill $(pgrep -x opensm) && until_true 20 fails pgrep -x opensm; }",
    )
}

/// A ping to the side that listens. While the way there is looked for, IPoIB keeps three datagrams and drops the others:
/// none may be lost from when the first one was answered.
pub fn ping(name: &str, options: &str) -> Command {
    let client = format!(
        "until_true 60 ping -c 1 -W 2 {HOST} >/dev/null
        shows ' 20 received, 0% packet loss' ping -c 20 -i 0.2 {options} {HOST} || {{ ip -s link show ib0; false; }}"
    );
    Command::sides("true", Ready::Started, &client).over_ipoib().named(name)
}

/// iperf3 for some seconds.
pub fn iperf(name: &str, options: &str) -> Command {
    let client = format!("shows 'receiver$' iperf3 -c {HOST} -t 3 {options}");
    Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), &client).over_ipoib().named(name)
}

fn traffic(mode: &str, large: u32) -> Vec<Command> {
    vec![
        ping(&format!("{mode}: ping"), ""),
        ping(&format!("{mode}: ping -s {large}"), &format!("-s {large}")),
        iperf(&format!("{mode}: iperf3"), ""),
        iperf(&format!("{mode}: iperf3 -R -P 4"), "-R -P 4"),
        iperf(&format!("{mode}: iperf3 -u"), "-u -b 20M"),
    ]
}

fn mode(mode: &str, mtu: u32) -> Command {
    let script = format!(
        "ip link set ib0 down; echo {mode} >/sys/class/net/ib0/mode && ip link set ib0 mtu {mtu} && ip link set ib0 up
        until_true 60 grep -q 1 /sys/class/net/ib0/carrier && shows 'mtu {mtu} .*UP' ip link show ib0
        grep {mode} /sys/class/net/ib0/mode"
    );
    Command::everywhere(format!("{mode} mode"), script)
}
